/* The checks against made-up machines: what is said, how bad it is, and what should be set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "doctor/doctor.h"
#include "env/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct ward {
    char root[64];
    struct mc_doctor doctor;
};

static int set_up(void **state)
{
    struct ward *ward = calloc(1, sizeof(*ward));
    assert_non_null(ward);
    snprintf(ward->root, sizeof(ward->root), "/tmp/test_doctor_XXXXXX");
    assert_non_null(mkdtemp(ward->root));
    struct mc_doctor_config config = {"", "", "", "", "tcp", "", ward->root, ""};
    mc_doctor_init(&ward->doctor, &config);
    ward->doctor.section = "test";
    *state = ward;
    return 0;
}

static int tear_down(void **state)
{
    struct ward *ward = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", ward->root);
    mc_doctor_free(&ward->doctor);
    int rc = system(command);
    free(ward);
    return rc;
}

static void put(const struct ward *ward, const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s%s", ward->root, path);
    for (char *at = whole + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(whole, 0700);
        *at = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The only fact of that name. */
static const struct mc_fact *fact(const struct ward *ward, const char *name)
{
    const struct mc_fact *found = NULL;
    for (size_t i = 0; i < ward->doctor.count; i++) {
        if (strcmp(ward->doctor.facts[i].name, name) != 0)
            continue;
        assert_null(found);
        found = &ward->doctor.facts[i];
    }
    return found;
}

static void assert_fact(const struct ward *ward, const char *name, enum mc_verdict verdict, const char *part)
{
    const struct mc_fact *found = fact(ward, name);
    if (found == NULL)
        fail_msg("no fact '%s'", name);
    if (found->verdict != verdict || strstr(found->value, part) == NULL)
        fail_msg("%s: verdict %d, %s", name, (int)found->verdict, found->value);
    /* What works less well than it could has a remedy. */
    assert_true(verdict < MC_VERDICT_WARNING || found->fix != NULL);
}

static void again(struct ward *ward)
{
    struct mc_doctor_config config = ward->doctor.config;
    mc_doctor_free(&ward->doctor);
    mc_doctor_init(&ward->doctor, &config);
    ward->doctor.section = "test";
}

/* ---- facts ---- */

static void test_saying(void **state)
{
    struct ward *ward = *state;
    struct mc_buffer out = {0};
    mc_doctor_say(&ward->doctor, MC_VERDICT_FINE, "a", 0, NULL, "fine %d", 1);
    assert_int_equal(mc_doctor_code(&ward->doctor), 0);
    mc_doctor_say(&ward->doctor, MC_VERDICT_BROKEN, "b\"", EPERM, "set \\it",
                  "two\nlines\x1b \xff\xc3\xa4\xc2\x9b\xe0\x80\x80\xed\xa0\x80\xf4\x90\x80\x80\xc3");
    assert_int_equal(mc_doctor_code(&ward->doctor), 1);
    mc_doctor_print_json(&ward->doctor, &out);
    struct mc_span json = mc_span(out.data, out.length), value;
    uint64_t number = 0;
    assert_int_equal(mc_json_find(json, "facts.1.fix", &value), 1);
    assert_true(mc_span_equal(value, mc_span_string("set \\\\it")));
    assert_int_equal(mc_json_find_number(json, "facts.1.errno", &number), 1);
    assert_int_equal(number, EPERM);
    assert_int_equal(mc_json_find(json, "facts.0.fix", &value), 0);
    assert_int_equal(mc_json_find_number(json, "broken", &number), 1);
    assert_int_equal(number, 1);
    out.length = 0;
    mc_doctor_print(&ward->doctor, &out);
    mc_buffer_append(&out, "", 1);
    assert_non_null(strstr((char *)out.data,
                           "test\n  ok    a   fine 1\n  FAIL  b\"  two?lines? ?\xc3\xa4????????????? (errno 1: "));
    assert_non_null(strstr((char *)out.data, "-> set \\it\n"));
    mc_buffer_free(&out);
}

static void test_too_many_facts(void **state)
{
    struct ward *ward = *state;
    struct mc_buffer out = {0};
    for (unsigned i = 0; i < MC_DOCTOR_FACTS_MAX + 10; i++)
        mc_doctor_say(&ward->doctor, i < MC_DOCTOR_FACTS_MAX ? MC_VERDICT_FINE : MC_VERDICT_BROKEN, "a", 0, NULL, "%u",
                      i);
    assert_int_equal(ward->doctor.count, MC_DOCTOR_FACTS_MAX);
    assert_int_equal(mc_doctor_code(&ward->doctor), 1);
    mc_doctor_print(&ward->doctor, &out);
    mc_buffer_append(&out, "", 1);
    assert_non_null(strstr((char *)out.data, "10 more facts are left out"));
    mc_buffer_free(&out);
}

static void test_size(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(mc_doctor_size(text, 0), "0 bytes");
    assert_string_equal(mc_doctor_size(text, 1023), "1023 bytes");
    assert_string_equal(mc_doctor_size(text, 1536), "1.5 KiB");
    assert_string_equal(mc_doctor_size(text, UINT64_MAX), "16.0 EiB");
}

/* Every check, on a machine of which nothing can be read. */
static void test_nothing_there(void **state)
{
    struct ward *ward = *state;
    mc_doctor_run(&ward->doctor);
    assert_int_equal(mc_doctor_code(&ward->doctor), 0);
    assert_true(ward->doctor.count > 15);
    assert_fact(ward, "memory", MC_VERDICT_NOTE, "cannot be read");
    assert_fact(ward, "devices", MC_VERDICT_FINE, "none");
    assert_fact(ward, "peer", MC_VERDICT_FINE, "not asked for");
}

/* Every check, on one whose files hold nonsense. */
static void test_nonsense(void **state)
{
    struct ward *ward = *state;
    static const char *const files[] = {
        "/proc/meminfo",
        "/proc/self/cgroup",
        "/proc/self/status",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/kernel/yama/ptrace_scope",
        "/proc/sys/net/ipv4/tcp_rmem",
        "/proc/sys/net/ipv4/ip_local_port_range",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/cpu.max",
        "/sys/kernel/mm/hugepages/hugepages-kB/nr_hugepages",
        "/sys/devices/system/node/nodeX/cpulist",
        "/sys/devices/system/node/node0/meminfo",
        "/sys/class/infiniband/x/ports/1/state",
        "/sys/class/infiniband/x/ports/nine/state",
        "/sys/class/infiniband/x/ports/1/gids/0",
        "/sys/class/infiniband/y",
        "/proc/driver/nvidia/gpus/0/x",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    };
    for (unsigned kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
            put(ward, files[i], kind == 0 ? "" : kind == 1 ? "\xff\xfe nonsense" : "99999999999999999999999999 -1");
        again(ward);
        mc_doctor_run(&ward->doctor);
        assert_true(ward->doctor.count > 15);
        struct mc_buffer out = {0};
        mc_doctor_print_json(&ward->doctor, &out);
        assert_true(out.length > 1000);
        mc_buffer_free(&out);
    }
}

/* ---- the machine ---- */

static void check_memory(struct ward *ward, const char *meminfo, const char *overcommit)
{
    again(ward);
    put(ward, "/proc/meminfo", meminfo);
    put(ward, "/proc/sys/vm/overcommit_memory", overcommit);
    mc_check_memory(&ward->doctor);
    mc_check_overcommit(&ward->doctor);
}

static void test_memory(void **state)
{
    struct ward *ward = *state;
    check_memory(ward,
                 "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
                 "CommitLimit: 1048576 kB\nCommitted_AS: 524288 kB\n",
                 "2\n");
    assert_fact(ward, "memory", MC_VERDICT_FINE, "16.0 GiB, 8.0 GiB available");
    assert_fact(ward, "overcommit", MC_VERDICT_WARNING, "512.0 MiB of 1.0 GiB");
    check_memory(ward, "MemTotal:       16777216 kB\nMemAvailable:    1024 kB\n", "1\n");
    assert_fact(ward, "memory", MC_VERDICT_WARNING, "1.0 MiB available");
    assert_fact(ward, "overcommit", MC_VERDICT_FINE, "always");
}

static void put_group(const struct ward *ward, const char *group, const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/%s", group, file);
    put(ward, path, text);
}

/* The least limit from the process's own group up to the root counts. */
static void test_cgroup(void **state)
{
    struct ward *ward = *state;
    put(ward, "/proc/self/cgroup", "0::/kube/pod\n");
    put_group(ward, "kube/pod", "memory.max", "max\n");
    put_group(ward, "kube/pod", "memory.current", "1073741824\n");
    put_group(ward, "kube", "memory.max", "2147483648\n");
    put_group(ward, "kube/pod", "cpu.max", "150000 100000\n");
    mc_check_cgroup(&ward->doctor);
    assert_fact(ward, "cgroup memory", MC_VERDICT_FINE, "limit 2.0 GiB, 1.0 GiB used");
    assert_fact(ward, "cgroup processors", MC_VERDICT_NOTE, "1.50");
    put_group(ward, "kube/pod", "memory.current", "2147480000\n");
    put_group(ward, "kube/pod", "cpu.max", "max 100000\n");
    again(ward);
    mc_check_cgroup(&ward->doctor);
    assert_fact(ward, "cgroup memory", MC_VERDICT_WARNING, "limit 2.0 GiB");
    assert_null(fact(ward, "cgroup processors"));
}

static void test_old_cgroup(void **state)
{
    struct ward *ward = *state;
    put(ward, "/proc/self/cgroup", "12:memory:/docker/1\n");
    put_group(ward, "memory", "memory.limit_in_bytes", "1048576\n");
    put_group(ward, "memory", "memory.usage_in_bytes", "1024\n");
    mc_check_cgroup(&ward->doctor);
    assert_fact(ward, "cgroup memory", MC_VERDICT_FINE, "limit 1.0 MiB, 1.0 KiB used");
}

static void test_huge_pages(void **state)
{
    struct ward *ward = *state;
    put(ward, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
    put(ward, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
    put(ward, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    mc_check_huge_pages(&ward->doctor);
    assert_fact(ward, "huge pages of 2.0 MiB", MC_VERDICT_FINE, "512 reserved, 100 free");
    assert_fact(ward, "transparent huge pages", MC_VERDICT_NOTE, "never");
}

static void put_node(const struct ward *ward, unsigned node, const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/%s", node, file);
    put(ward, path, text);
}

static void test_nodes(void **state)
{
    struct ward *ward = *state;
    put_node(ward, 0, "cpulist", "0-31\n");
    put_node(ward, 1, "cpulist", "32-63\n");
    put_node(ward, 1, "meminfo", "Node 1 MemTotal:  1048576 kB\n");
    put(ward, "/proc/sys/kernel/numa_balancing", "1\n");
    mc_check_numa(&ward->doctor);
    assert_fact(ward, "NUMA node 1", MC_VERDICT_FINE, "processors 32-63, 1.0 GiB");
    assert_fact(ward, "NUMA node 0", MC_VERDICT_FINE, "memory ?");
    assert_fact(ward, "NUMA balancing", MC_VERDICT_NOTE, "on");
}

static void test_clock(void **state)
{
    struct ward *ward = *state;
    put(ward, "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    mc_check_clock(&ward->doctor);
    assert_fact(ward, "clock source", MC_VERDICT_WARNING, "hpet");
}

/* ---- limits ---- */

static void test_ptrace(void **state)
{
    struct ward *ward = *state;
    static const struct {
        const char *scope, *capabilities;
        enum mc_verdict verdict;
    } cases[] = {{"0\n", "0", MC_VERDICT_FINE},
                 {"1\n", "0", MC_VERDICT_WARNING},
                 {"1\n", "0000000000080000", MC_VERDICT_FINE},
                 {"2\n", "0", MC_VERDICT_WARNING},
                 {"2\n", "0000000000080000", MC_VERDICT_FINE}, /* CAP_SYS_PTRACE */
                 {"3\n", "000001ffffffffff", MC_VERDICT_WARNING}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char status[64];
        snprintf(status, sizeof(status), "Name:\tx\nCapEff:\t%s\n", cases[i].capabilities);
        put(ward, "/proc/self/status", status);
        put(ward, "/proc/sys/kernel/yama/ptrace_scope", cases[i].scope);
        again(ward);
        mc_check_ptrace(&ward->doctor);
        assert_fact(ward, "ptrace scope", cases[i].verdict, (char[]){cases[i].scope[0], 0});
    }
}

static void assert_locked_memory(struct ward *ward, enum mc_verdict verdict, const char *part)
{
    again(ward);
    mc_check_locked_memory(&ward->doctor);
    assert_fact(ward, "locked memory", verdict, part);
}

static void test_locked_memory(void **state)
{
    struct ward *ward = *state;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    small = (struct rlimit){65536, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    put(ward, "/proc/self/status", "CapEff:\t0\n");
    assert_locked_memory(ward, MC_VERDICT_NOTE, "limit 64.0 KiB");
    put(ward, "/sys/class/infiniband/mlx5_0/x", "");
    assert_locked_memory(ward, MC_VERDICT_WARNING, "limit");
    ward->doctor.config.protocol = "rdma";
    assert_locked_memory(ward, MC_VERDICT_BROKEN, "limit");
    put(ward, "/proc/self/status", "CapEff:\t0000000000004000\n"); /* CAP_IPC_LOCK */
    assert_locked_memory(ward, MC_VERDICT_FINE, "CAP_IPC_LOCK");
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

static void test_environment(void **state)
{
    struct ward *ward = *state;
    setenv("MC_FORCE_TCP", "0", 1);
    setenv("MC_REDIS_PASSWORD", "secret", 1);
    setenv("MC_REDIS_PASWORD", "secret", 1);
    setenv("MC_QQQQ", "7", 1);
    setenv("MC_WORKERS_PER_CTX", "4", 1);
    setenv("MC_RPC_PROTOCOL", "rdma", 1);
    setenv("MOONCAKE_CLIENT", "host:1", 1);
    setenv("MOONCAKE_MASTER_SERVICE_HOST", "10.0.0.1", 1);
    mc_check_environment(&ward->doctor);
    unsetenv("MC_FORCE_TCP");
    unsetenv("MC_REDIS_PASSWORD");
    unsetenv("MC_REDIS_PASWORD");
    unsetenv("MC_QQQQ");
    unsetenv("MC_WORKERS_PER_CTX");
    unsetenv("MC_RPC_PROTOCOL");
    unsetenv("MOONCAKE_CLIENT");
    unsetenv("MOONCAKE_MASTER_SERVICE_HOST");
    assert_fact(ward, "MC_REDIS_PASWORD", MC_VERDICT_WARNING, "not known");
    assert_fact(ward, "MC_QQQQ", MC_VERDICT_WARNING, "not known");
    assert_fact(ward, "MC_WORKERS_PER_CTX", MC_VERDICT_NOTE, "4: changes nothing here");
    assert_fact(ward, "MC_RPC_PROTOCOL", MC_VERDICT_WARNING, "rdma: changes nothing here");
    assert_fact(ward, "MOONCAKE_CLIENT", MC_VERDICT_FINE, "host:1 (read by inference engines)");
    for (size_t i = 0; i < ward->doctor.count; i++)
        assert_string_not_equal(ward->doctor.facts[i].name, "MOONCAKE_MASTER_SERVICE_HOST");
    assert_fact(ward, "MC_FORCE_TCP", MC_VERDICT_WARNING, "0");
    assert_fact(ward, "MC_REDIS_PASSWORD", MC_VERDICT_FINE, "not shown");
}

/* ---- network ---- */

static void test_ports(void **state)
{
    struct ward *ward = *state;
    put(ward, "/proc/sys/net/ipv4/ip_local_port_range", "16000\t60999\n");
    put(ward, "/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t212992\n");
    mc_check_ports(&ward->doctor);
    mc_check_buffers(&ward->doctor);
    assert_fact(ward, "ports of engines", MC_VERDICT_FINE, "15000 to 17000");
    assert_fact(ward, "ports of connections", MC_VERDICT_NOTE, "16000 to 60999");
    assert_fact(ward, "tcp receive buffer", MC_VERDICT_NOTE, "208.0 KiB");
    uint16_t port = 0;
    char text[8];
    int fd = mc_tcp_listen("0.0.0.0", &port);
    assert_true(fd >= 0);
    snprintf(text, sizeof(text), "%u", (unsigned)port);
    setenv("MC_MIN_RPC_PORT", text, 1);
    setenv("MC_MAX_RPC_PORT", text, 1);
    again(ward);
    mc_check_ports(&ward->doctor);
    unsetenv("MC_MIN_RPC_PORT");
    unsetenv("MC_MAX_RPC_PORT");
    close(fd);
    assert_fact(ward, "ports of engines", MC_VERDICT_BROKEN, "0 of 1");
}

static void test_address(void **state)
{
    struct ward *ward = *state;
    setenv("MC_TCP_BIND_ADDRESS", "203.0.113.77", 1);
    mc_check_address(&ward->doctor);
    assert_fact(ward, "address for peers", MC_VERDICT_WARNING, "203.0.113.77");
    again(ward);
    setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1", 1);
    mc_check_address(&ward->doctor);
    assert_fact(ward, "address for peers", MC_VERDICT_FINE, "127.0.0.1");
    unsetenv("MC_TCP_BIND_ADDRESS");
}

/* ---- devices ---- */

static void put_device(const struct ward *ward, const char *name, const char *state_text, const char *layer,
                       const char *gid)
{
    char path[256], line[80];
    static const char *const files[] = {"state", "link_layer", "rate", "lid"};
    const char *texts[] = {state_text, layer, "100 Gb/sec (4X EDR)\n", "0x0\n"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/%s", name, files[i]);
        put(ward, path, texts[i]);
    }
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gids/0", name);
    put(ward, path, "fe80:0000:0000:0000:0000:0000:0000:0000\n");
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gids/3", name);
    put(ward, path, gid);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/types/3", name);
    put(ward, path, "RoCE v2\n");
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/3", name);
    put(ward, path, "eth2\n");
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/numa_node", name);
    put(ward, path, "1\n");
    snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/uverbs_%s/ibdev", name);
    snprintf(line, sizeof(line), "%s\n", name);
    put(ward, path, line);
    snprintf(path, sizeof(path), "/dev/infiniband/uverbs_%s", name);
    put(ward, path, "");
}

static void test_devices(void **state)
{
    struct ward *ward = *state;
    put_device(ward, "mlx5_0", "4: ACTIVE\n", "Ethernet\n", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
    put_device(ward, "mlx5_1", "1: DOWN\n", "Ethernet\n", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    put_device(ward, "mlx5_2", "4: ACTIVE\n", "InfiniBand\n", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    ward->doctor.config.device_name = "mlx5_0,mlx5_1";
    mc_check_devices(&ward->doctor);
    mc_check_topology(&ward->doctor);
    assert_int_equal(ward->doctor.device_count, 1);
    assert_fact(ward, "mlx5_0", MC_VERDICT_FINE, "NUMA node 1");
    assert_fact(ward, "mlx5_0 port 1", MC_VERDICT_FINE, "ACTIVE, 100 Gb/sec");
    assert_fact(ward, "mlx5_0 port 1 GID 3", MC_VERDICT_FINE, "10.0.0.1, RoCE v2, eth2");
    assert_null(fact(ward, "mlx5_0 port 1 GID 0"));
    assert_fact(ward, "mlx5_0 port 1 GID chosen", MC_VERDICT_FINE, "row 3, RoCE v2, 10.0.0.1 on eth2");
    assert_fact(ward, "mlx5_1 port 1", MC_VERDICT_WARNING, "DOWN");
    assert_fact(ward, "mlx5_2", MC_VERDICT_FINE, "left out");
    assert_fact(ward, "near cpu:0", MC_VERDICT_NOTE, "none | mlx5_0");
    assert_int_equal(mc_doctor_code(&ward->doctor), 0);
}

static void test_gids(void **state)
{
    struct ward *ward = *state;
    put_device(ward, "a", "4: ACTIVE\n", "Ethernet\n", "fe80:0000:0000:0000:0c42:a1ff:fe00:0001\n");
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "a port 1 GID chosen", MC_VERDICT_WARNING, "link-local");
    again(ward);
    /* A routable one beats it, whatever its row. */
    put(ward, "/sys/class/infiniband/a/ports/1/gids/9", "fd00:0000:0000:0000:0000:0000:0000:0007\n");
    put(ward, "/sys/class/infiniband/a/ports/1/gid_attrs/types/9", "RoCE v2\n");
    put(ward, "/sys/class/infiniband/a/ports/1/gid_attrs/ndevs/9", "eth3\n");
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "a port 1 GID chosen", MC_VERDICT_FINE, "row 9");
    again(ward);
    setenv("MC_GID_INDEX", "5", 1);
    ward->doctor.config.protocol = "rdma";
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "a port 1 GID chosen", MC_VERDICT_BROKEN, "row 5");
    again(ward);
    unsetenv("MC_GID_INDEX");
    /* In a container the GID is seen, its interface is not. */
    char path[128];
    for (unsigned row = 3; row <= 9; row += 6) {
        snprintf(path, sizeof(path), "%s/sys/class/infiniband/a/ports/1/gid_attrs/ndevs/%u", ward->root, row);
        assert_int_equal(unlink(path), 0);
    }
    mc_check_devices(&ward->doctor);
    const struct mc_fact *chosen = fact(ward, "a port 1 GID chosen");
    assert_true(chosen != NULL && chosen->verdict == MC_VERDICT_BROKEN &&
                strstr(chosen->fix, "network namespace") != NULL);
    again(ward);
    ward->doctor.config.protocol = "tcp";
    put(ward, "/sys/class/infiniband/a/ports/1/gids/3", "not a gid\n");
    put(ward, "/sys/class/infiniband/a/ports/1/gids/9", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "a port 1 GID chosen", MC_VERDICT_WARNING, "no row of the GID table has an address");
    again(ward);
    put(ward, "/sys/class/infiniband/a/node_type", "4: RNIC\n");
    mc_check_devices(&ward->doctor);
    assert_null(fact(ward, "a port 1 GID chosen"));
}

/* As an engine's document tells of them; the last of the other family. */
static void test_pairs(void **state)
{
    struct ward *ward = *state;
    static const char document[] =
        "{\"devices\":[{\"name\":\"erdma_0\",\"lid\":0,\"gid\":\"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:09\"},"
        "{\"name\":\"six\",\"lid\":0,\"gid\":\"fd:00:00:00:00:00:00:00:00:00:00:00:00:00:00:01\"}]}";
    mc_doctor_pairs(&ward->doctor, mc_span_string(document));
    assert_fact(ward, "devices there", MC_VERDICT_NOTE, "2, but none here");
    again(ward);
    put_device(ward, "a", "4: ACTIVE\n", "Ethernet\n", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
    put_device(ward, "b", "1: DOWN\n", "Ethernet\n", "0000:0000:0000:0000:0000:ffff:0a00:0002\n");
    put_device(ward, "c", "4: ACTIVE\n", "InfiniBand\n", "fe80:0000:0000:0000:0000:0000:0000:0002\n");
    mc_doctor_pairs(&ward->doctor, mc_span_string(document));
    assert_fact(ward, "a port 1 to erdma_0", MC_VERDICT_FINE, "10.0.0.9, from here best of the table: row 3");
    assert_fact(ward, "a port 1 to six", MC_VERDICT_WARNING, "no row of the address family");
    assert_fact(ward, "c port 1 to erdma_0", MC_VERDICT_NOTE, "do not fit");
    assert_int_equal(ward->doctor.count, 4);
    static const char *const others[] = {"{}", "{\"devices\":[]}", "{\"devices\":7}", "{\"devices\":[{}]}", "not JSON",
                                         ""};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        again(ward);
        mc_doctor_pairs(&ward->doctor, mc_span_string(others[i]));
        assert_fact(ward, "devices there", i == 2 || i == 3 ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "");
    }
}

/* The same, when RDMA is asked for and no device can be used. */
static void test_devices_missing(void **state)
{
    struct ward *ward = *state;
    ward->doctor.config.protocol = "rdma";
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "devices", MC_VERDICT_BROKEN, "none");
    again(ward);
    put_device(ward, "mlx5_1", "1: DOWN\n", "Ethernet\n", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    char path[128];
    snprintf(path, sizeof(path), "%s/dev/infiniband/uverbs_mlx5_1", ward->root);
    assert_int_equal(unlink(path), 0);
    mc_check_devices(&ward->doctor);
    assert_fact(ward, "devices", MC_VERDICT_BROKEN, "1 are there, none can be used");
    bool is_said = false;
    for (size_t i = 0; i < ward->doctor.count; i++)
        is_said |=
            ward->doctor.facts[i].error == ENOENT && strstr(ward->doctor.facts[i].value, "cannot be opened") != NULL;
    assert_true(is_said);
}

static void test_gpus(void **state)
{
    struct ward *ward = *state;
    put(ward, "/proc/driver/nvidia/gpus/0000:3b:00.0/information", "x");
    ward->doctor.device_count = 1;
    mc_check_gpus(&ward->doctor);
    assert_fact(ward, "GPUs", MC_VERDICT_FINE, "1");
    assert_fact(ward, "peer memory", MC_VERDICT_NOTE, "not loaded");
    put(ward, "/sys/module/nvidia_peermem/refcnt", "0\n");
    again(ward);
    ward->doctor.device_count = 1;
    mc_check_gpus(&ward->doctor);
    assert_fact(ward, "peer memory", MC_VERDICT_FINE, "is loaded");
}

static void test_disk(void **state)
{
    struct ward *ward = *state;
    mc_check_disk(&ward->doctor); /* not asked for */
    assert_int_equal(ward->doctor.count, 0);
    ward->doctor.config.disk = ward->root;
    mc_check_disk(&ward->doctor);
    assert_int_equal(mc_doctor_code(&ward->doctor), 0);
    assert_fact(ward, "path", MC_VERDICT_FINE, ward->root);
    assert_non_null(fact(ward, "file system"));
    assert_non_null(fact(ward, "write"));
    again(ward);
    ward->doctor.config.disk = "here";
    mc_check_disk(&ward->doctor);
    assert_int_equal(mc_doctor_code(&ward->doctor), 1);
    assert_fact(ward, "path", MC_VERDICT_BROKEN, "not absolute");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_saying),        TEST(test_too_many_facts), TEST(test_size),
        TEST(test_nothing_there), TEST(test_nonsense),       TEST(test_memory),
        TEST(test_cgroup),        TEST(test_old_cgroup),     TEST(test_huge_pages),
        TEST(test_nodes),         TEST(test_clock),          TEST(test_ptrace),
        TEST(test_locked_memory), TEST(test_environment),    TEST(test_ports),
        TEST(test_address),       TEST(test_devices),        TEST(test_devices_missing),
        TEST(test_gpus),          TEST(test_gids),           TEST(test_pairs),
        TEST(test_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
