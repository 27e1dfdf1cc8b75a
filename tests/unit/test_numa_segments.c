/* A store that lends its memory as several segments, one for each NUMA node (MC_STORE_NUMA_SEGMENTS), on a machine
 * whose nodes are made up. */
#include "store_rig.h"

#include "env/log.h"
#include "store/segment/numa.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define MIB (1ull << 20)
#define SIZE (256 * MIB)
#define OBJECT (4 * MIB)
#define OBJECTS 44u /* more than one segment holds */

/* ---- the machine ---- */

static const char *nodes_with_memory = "0-1\n";

/* The first that this process may use. */
static int processor(void)
{
    cpu_set_t allowed;
    int first = 0;
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof(allowed), &allowed);
    while (first + 1 < CPU_SETSIZE && !CPU_ISSET((size_t)first, &allowed))
        first++;
    return first;
}

static const char *file_of(const char *path)
{
    if (strcmp(path, "/sys/devices/system/node/has_memory") == 0 ||
        strcmp(path, "/sys/devices/system/node/online") == 0)
        return nodes_with_memory;
    if (strcmp(path, "/sys/devices/system/node/node1/cpulist") != 0)
        return NULL;
    static _Thread_local char list[16];
    snprintf(list, sizeof(list), "%d\n", processor());
    return list;
}

static int open_as(const char *path, int flags, mode_t mode)
{
    const char *text = file_of(path);
    if (text == NULL) {
        int (*next)(const char *, int, ...);
        *(void **)&next = dlsym(RTLD_NEXT, "open64");
        return next(path, flags, mode);
    }
    int fd = memfd_create("made up", MFD_CLOEXEC);
    if (fd >= 0 && (write(fd, text, strlen(text)) < 0 || lseek(fd, 0, SEEK_SET) != 0))
        abort();
    return fd;
}

/* In place of libc's, as the two after them. */
int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    va_end(list);
    return open_as(path, flags, mode);
}

static struct {
    uint64_t nodes;
    uint64_t size;
} binds[8];
static atomic_uint bind_count;
static atomic_int bind_error;

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    if (number != SYS_mbind)
        return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    unsigned i = atomic_fetch_add(&bind_count, 1) % 8;
    binds[i].size = (uint64_t)a[1];
    memcpy(&binds[i].nodes, (const void *)a[3], sizeof(binds[i].nodes));
    errno = atomic_load(&bind_error);
    return errno == 0 ? 0 : -1;
}

static atomic_uint moved_to_first; /* threads that were to run on the only processor of node 1 */

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    (void)pid;
    atomic_fetch_add(&moved_to_first, CPU_COUNT_S(size, set) == 1 && CPU_ISSET_S((size_t)processor(), size, set));
    return 0;
}

/* ---- */

static unsigned split(const char *setting, uint64_t size, const char *there, bool is_short,
                      struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX])
{
    struct mc_numa_nodes nodes;
    const char *short_of;
    assert_true(mc_numa_parse(there, &nodes));
    unsigned count = mc_numa_split_of(setting, size, &nodes, parts, &short_of);
    assert_int_equal(short_of != NULL, is_short);
    return count;
}

static void splits(void **state)
{
    (void)state;
    struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX];
    assert_int_equal(split(NULL, SIZE, "0-1", false, parts), 1);
    assert_int_equal(split("", SIZE, "0-1", false, parts), 1);
    assert_int_equal(split("0", SIZE, "0-1", false, parts), 1);
    assert_int_equal(split("1", SIZE, "0-1", false, parts), 1);
    assert_int_equal(split("auto", SIZE, "0", false, parts), 1);
    assert_int_equal(split("AUTO", SIZE, "0,2", false, parts), 2);
    assert_true(parts[0].bits[0] == 1 && parts[1].bits[0] == 4);
    assert_int_equal(split("2", SIZE, "0-3", false, parts), 2); /* no node is left over */
    assert_true(parts[0].bits[0] == 5 && parts[1].bits[0] == 10);
    assert_int_equal(split("3", SIZE, "0-1", true, parts), 2);
    assert_int_equal(split("4", SIZE, "7", true, parts), 1);
    assert_int_equal(split("auto", 127 * MIB, "0-1", true, parts), 1);
    assert_int_equal(split("auto", 192 * MIB, "0-3", true, parts), 3);
    assert_int_equal(split("auto", 1, "0-3", true, parts), 1);
    assert_int_equal(split("auto", UINT64_MAX, "0-1023", true, parts), MC_NUMA_PARTS_MAX);
    static const char *const wrong[] = {"x", "-1", "2x", " ", "1.5"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(split(wrong[i], SIZE, "0-1", true, parts), 1);
}

static struct mc_store *open_lender_with(const char *setting, uint64_t size, const char *data_dir,
                                         const char *disk_paths)
{
    setenv("MC_STORE_NUMA_SEGMENTS", setting, 1);
    atomic_store(&bind_count, 0);
    struct mc_store *store = open_configured((struct mc_store_config){.global_segment_size = size,
                                                                      .local_buffer_size = 1,
                                                                      .data_dir = data_dir,
                                                                      .disk_paths = disk_paths,
                                                                      .paths = "all"});
    unsetenv("MC_STORE_NUMA_SEGMENTS");
    uint64_t end_ns = mc_clock_ns() + 30000000000u;
    struct mc_store_statistics seen;
    do {
        usleep(2000);
        mc_store_statistics(store, &seen);
    } while (seen.segment_populated < seen.segment_capacity && mc_clock_ns() < end_ns);
    assert_int_equal(seen.segment_capacity, size);
    assert_int_equal(seen.segment_populated, size);
    return store;
}

static struct mc_store *open_lender(const char *setting, uint64_t size, const char *data_dir)
{
    return open_lender_with(setting, size, data_dir, NULL);
}

static uint8_t data[OBJECT], back[OBJECT];

static const char *key_number(unsigned i)
{
    static char key[32];
    snprintf(key, sizeof(key), "numa-%u", i);
    return key;
}

static void put_all(struct mc_store *store)
{
    for (unsigned i = 0; i < OBJECTS; i++) {
        fill(data, OBJECT, i);
        assert_int_equal(put(store, key_number(i), data, OBJECT), 0);
    }
}

static void get_all(struct mc_store *store)
{
    for (unsigned i = 0; i < OBJECTS; i++) {
        fill(data, OBJECT, i);
        assert_int_equal(get(store, key_number(i), back, OBJECT), OBJECT);
        assert_memory_equal(data, back, OBJECT);
    }
}

static void two_nodes(void **state)
{
    (void)state;
    struct mc_store *client = open_client("all", 0), *store = open_lender("auto", SIZE, NULL);
    assert_int_equal(atomic_load(&bind_count), 2);
    assert_int_equal(binds[0].nodes | binds[1].nodes, 3);
    assert_in_range(binds[0].size, SIZE / 2, SIZE / 2 + 4 * MIB);
    assert_int_equal(binds[0].size, binds[1].size);
    assert_true(atomic_load(&moved_to_first) > 0);
    assert_int_equal(mc_store_unmount(store, "", 0), MC_ERR_SEGMENT_NOT_FOUND); /* a part has no id */
    put_all(client);
    get_all(client);
    get_all(store);
    mc_store_close(store);
    for (unsigned i = 0; i < OBJECTS; i++)
        assert_int_equal(exist(client, key_number(i)), 0);
    mc_store_close(client);
}

/* Without permission the memory lies where the kernel puts it; what is too little stays one segment. */
static void next_best(void **state)
{
    (void)state;
    atomic_store(&bind_error, EPERM);
    struct mc_store *store = open_lender("auto", SIZE, NULL);
    assert_int_equal(atomic_load(&bind_count), 2);
    mc_store_close(store);
    atomic_store(&bind_error, 0);
    store = open_lender("auto", 100 * MIB, NULL);
    assert_int_equal(atomic_load(&bind_count), 0);
    mc_store_close(store);
    store = open_lender("5", SIZE, NULL); /* there are two */
    assert_int_equal(atomic_load(&bind_count), 2);
    mc_store_close(store);
    nodes_with_memory = "1\n";
    store = open_lender("auto", SIZE, NULL);
    assert_int_equal(atomic_load(&bind_count), 0);
    mc_store_close(store);
    nodes_with_memory = "0-1\n";
}

static void found_again(void **state)
{
    (void)state;
    char directory[] = "/dev/shm/mooncake-numa-XXXXXX", command[128];
    assert_non_null(mkdtemp(directory));
    struct mc_store *client = open_client("all", 0), *store = open_lender("auto", SIZE, directory);
    put_all(client);
    mc_store_close(store);
    store = open_lender("auto", SIZE, directory);
    for (uint64_t end_ns = mc_clock_ns() + 20000000000u; mc_clock_ns() < end_ns; usleep(10000)) {
        unsigned there = 0;
        for (unsigned i = 0; i < OBJECTS; i++)
            there += exist(client, key_number(i)) == 1;
        if (there == OBJECTS)
            break;
    }
    get_all(client);
    assert_int_equal(mc_store_remove_all(client, true), OBJECTS);
    mc_store_close(store);
    mc_store_close(client);
    snprintf(command, sizeof(command), "%s/numa1", directory);
    assert_int_equal(access(command, F_OK), 0);
    snprintf(command, sizeof(command), "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

/* What lies in other parts would not be stored on the disks of the first: one segment, of all the memory. */
static void with_disks(void **state)
{
    (void)state;
    char directory[] = "/tmp/mooncake-numa-XXXXXX", command[128];
    struct mc_store_disk disks[2];
    assert_non_null(mkdtemp(directory));
    struct mc_store *store = open_lender_with("auto", SIZE, NULL, directory);
    assert_int_equal(atomic_load(&bind_count), 0);
    assert_int_equal(mc_store_disks(store, disks, 2), 1);
    mc_store_close(store);
    snprintf(command, sizeof(command), "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

static void drained(void **state)
{
    (void)state;
    struct mc_store *client = open_client("all", 0), *store = open_lender("auto", SIZE, NULL);
    put_all(client);
    struct process node = start_node(SIZE);
    assert_int_equal(mc_store_retire(store, MC_RETIRE_DRAIN, 60000, NULL, NULL), 0);
    mc_store_close(store);
    get_all(client);
    assert_int_equal(mc_store_remove_all(client, true), OBJECTS);
    mc_store_close(client);
    stop(&node, SIGTERM);
}

static int setup(void **state)
{
    (void)state;
    start_master(0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    stop(&master, SIGTERM);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "node") == 0)
        return node_main(argv[2], argv[3]);
    if (realpath("/proc/self/exe", self_path) == NULL)
        return 1;
    signal(SIGPIPE, SIG_IGN);
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits),      cmocka_unit_test(two_nodes), cmocka_unit_test(next_best),
        cmocka_unit_test(found_again), cmocka_unit_test(drained),   cmocka_unit_test(with_disks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
