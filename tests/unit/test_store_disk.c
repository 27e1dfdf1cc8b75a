/* A store node with a disk, against a real master: what is put is stored there, what memory has forgotten is loaded
 * again, what was removed stays removed, and a later process finds the rest. */
#include "store_rig.h"

#include "env/socket.h"

#include <ftw.h>

#define MIB (1ull << 20)
#define MEMORY (16 * MIB)
#define DISK (256 * MIB)
#define OBJECT MIB
#define COUNT 40u /* more than twice the memory */
#define STORED_MS 20000u
enum { FEW = 10 }; /* objects that memory holds all of */

static char folder[64];
static int metrics_port;

static void start_offloading_master(int port)
{
    char path[1024], port_text[32];
    const char *build = getenv("MC_BUILD");
    stop(&master, SIGKILL);
    snprintf(path, sizeof(path), "%s/mooncake_master", build == NULL ? "." : build);
    snprintf(port_text, sizeof(port_text), "--rpc_port=%d", port);
    master = start((char *[]){path, port_text, "--metrics_port=0", "--client_ttl=3", "--default_kv_lease_ttl=200",
                              "--enable_offload", NULL},
                   STDERR_FILENO);
    int ports[2] = {0, 0};
    wait_for_numbers(&master,
                     (const char *const[]){"Master service started on port ", "HTTP metrics server started on port "},
                     ports, 2);
    master_port = ports[0];
    metrics_port = ports[1];
    fcntl(master.out, F_SETFL, O_NONBLOCK);
}

static struct mc_store *open_store(uint64_t memory)
{
    return open_configured((struct mc_store_config){
        .global_segment_size = memory, .local_buffer_size = MIB, .disk_paths = folder, .disk_bytes = DISK});
}

static struct mc_store *open_node(void)
{
    return open_store(MEMORY);
}

/* The same as a process of its own. */
static int node_run(int port, const char *directory)
{
    char byte;
    master_port = port;
    snprintf(folder, sizeof(folder), "%s", directory);
    struct mc_store *store = open_node();
    printf("node ready 1\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    return mc_store_close(store) == 0 ? 0 : 1;
}

static struct process start_node_process(void)
{
    char port_text[32];
    snprintf(port_text, sizeof(port_text), "%d", master_port);
    struct process node = start((char *[]){self_path, "node", port_text, folder, NULL}, STDOUT_FILENO);
    (void)wait_for_number(&node, "node ready ");
    return node;
}

/* A number that the master exports; -1: it does not answer. */
static long metric(const char *name)
{
    static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
    static char text[1 << 20], wanted[128], address[64];
    size_t length = 0;
    snprintf(address, sizeof(address), "127.0.0.1:%d", metrics_port);
    int fd = mc_tcp_connect(address, mc_clock_ns() + 5000000000ull);
    if (fd < 0)
        return -1;
    assert_int_equal(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
    for (ssize_t got = 1; got > 0 && length < sizeof(text) - 1; length += (size_t)(got > 0 ? got : 0))
        if (mc_socket_wait_read(fd, mc_clock_ns() + 5000000000ull, NULL) == 0)
            got = read(fd, text + length, sizeof(text) - 1 - length);
    close(fd);
    text[length] = 0;
    snprintf(wanted, sizeof(wanted), "\n%s ", name);
    const char *found = strstr(text, wanted);
    return found == NULL ? -1 : atol(found + strlen(wanted));
}

/* So many objects are on disks. */
static void wait_stored(long count)
{
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; mc_clock_ns() < end_ns; usleep(10000))
        if (metric("file_cache_nums_") == count && metric("mooncake_offload_begun_total") >= count)
            return;
    fail_msg("%ld objects are on disks, and not %ld", metric("file_cache_nums_"), count);
}

/* What is put before the master knows the disk is not stored. */
static void wait_disk(void)
{
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; mc_clock_ns() < end_ns; usleep(10000))
        if (metric("mooncake_disks") == 1)
            return;
    fail_msg("%ld disks, and not one", metric("mooncake_disks"));
}

static void name_key(char key[32], unsigned number)
{
    snprintf(key, 32, "block-%u", number);
}

static int exists(struct mc_store *store, unsigned number)
{
    char key[32];
    int result = 0;
    name_key(key, number);
    struct mc_bytes bytes = {key, strlen(key)};
    assert_int_equal(mc_store_exist(store, &bytes, 1, &result), 0);
    return result;
}

/* Whether it is there and has the right bytes; wrong ones fail the test. */
static bool read_back(struct mc_store *store, unsigned number)
{
    static uint8_t data[OBJECT], back[OBJECT];
    char key[32];
    name_key(key, number);
    memset(back, 0, sizeof(back));
    int64_t got = get(store, key, back, OBJECT);
    if (got == MC_ERR_OBJECT_NOT_FOUND || got == MC_ERR_REPLICA_IS_NOT_READY)
        return false;
    assert_int_equal(got, OBJECT);
    fill(data, OBJECT, number);
    assert_memory_equal(back, data, OBJECT);
    return true;
}

static void put_numbered(struct mc_store *store, unsigned number)
{
    static uint8_t data[OBJECT];
    char key[32];
    name_key(key, number);
    fill(data, OBJECT, number);
    assert_int_equal(put(store, key, data, OBJECT), 0);
}

/* Whoever has to confirm it may take a while. */
static void remove_number(struct mc_store *store, unsigned number)
{
    char key[32];
    int rc = MC_ERR_BUSY;
    name_key(key, number);
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; rc < 0 && mc_clock_ns() < end_ns; usleep(10000))
        rc = remove_key(store, key, true);
    assert_int_equal(rc, 0);
}

/* How many of them are there, when nothing more comes: what is evicted before it was stored is not. */
static unsigned put_many(struct mc_store *store)
{
    unsigned there = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        put_numbered(store, i);
        usleep(20000);
    }
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; there < COUNT && mc_clock_ns() < end_ns;) {
        there = 0;
        for (unsigned i = 0; i < COUNT; i++)
            there += exists(store, i) == 1;
        usleep(10000);
    }
    return there;
}

static int open_world(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/dev/shm/mc-disk-XXXXXX");
    assert_non_null(mkdtemp(folder));
    start_offloading_master(0);
    return 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static int close_world(void **state)
{
    (void)state;
    stop(&master, SIGTERM);
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static void test_more_than_memory(void **state)
{
    (void)state;
    struct mc_store *store = open_node();
    wait_disk();
    assert_in_range(put_many(store), COUNT - 2, COUNT);
    for (unsigned round = 0; round < 2; round++) {
        unsigned got = 0;
        for (unsigned i = 0; i < COUNT; i++)
            got += read_back(store, i);
        assert_in_range(got, COUNT - 4, COUNT);
    }
    assert_int_equal(mc_store_close(store), 0);
}

static void test_removed_stays_removed(void **state)
{
    (void)state;
    struct mc_store *store = open_node();
    wait_disk();
    (void)put_many(store);
    for (unsigned i = 0; i < COUNT; i += 2) {
        char key[32];
        int result = 0;
        name_key(key, i);
        struct mc_bytes bytes = {key, strlen(key)};
        assert_int_equal(mc_store_remove(store, &bytes, 1, true, &result), 0);
        assert_true(result == 0 || result == MC_ERR_OBJECT_NOT_FOUND);
        assert_false(read_back(store, i));
    }
    assert_int_equal(mc_store_close(store), 0);
    store = open_node();
    unsigned kept = 0;
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; kept < COUNT / 2 - 2 && mc_clock_ns() < end_ns;) {
        kept = 0;
        for (unsigned i = 0; i < COUNT; i++) {
            assert_true(i % 2 == 1 || exists(store, i) == 0);
            kept += i % 2 == 1 && exists(store, i) == 1;
        }
        usleep(10000);
    }
    assert_in_range(kept, COUNT / 2 - 2, COUNT / 2);
    kept = 0;
    for (unsigned i = 1; i < COUNT; i += 2)
        kept += read_back(store, i);
    assert_in_range(kept, COUNT / 2 - 4, COUNT / 2);
    assert_true(mc_store_remove_all(store, true) > 0);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(exists(store, i), 0);
    assert_int_equal(mc_store_close(store), 0);
}

/* Waits until so many of the few are there again, and reads them all. */
static void expect_few(struct mc_store *store)
{
    unsigned there = 0, got = 0;
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; there < FEW && mc_clock_ns() < end_ns;) {
        there = 0;
        for (unsigned i = 0; i < FEW; i++)
            there += exists(store, i) == 1;
        usleep(10000);
    }
    assert_int_equal(there, FEW);
    for (unsigned i = 0; i < FEW; i++)
        got += read_back(store, i);
    assert_int_equal(got, FEW);
}

/* Its memory is gone with it; the next process has another id, port and address, and the disk. */
static void test_node_killed(void **state)
{
    (void)state;
    struct process node = start_node_process();
    struct mc_store *client = open_store(0);
    wait_disk();
    for (unsigned i = 0; i < FEW; i++)
        put_numbered(client, i);
    for (unsigned away_ms = 0; away_ms <= 5000; away_ms += 5000) { /* 5 s: the master has given the node up */
        wait_stored(FEW);
        stop(&node, SIGKILL);
        usleep(away_ms * 1000);
        node = start_node_process();
        expect_few(client);
    }
    stop(&node, SIGTERM);
    assert_int_equal(mc_store_close(client), 0);
}

/* A node with a few values, all on its disk. */
static struct mc_store *open_filled(void)
{
    struct mc_store *store = open_node();
    wait_disk();
    for (unsigned i = 0; i < FEW; i++)
        put_numbered(store, i);
    wait_stored(FEW);
    return store;
}

/* The next master learns from the disk what lies there. */
static void test_master_killed(void **state)
{
    (void)state;
    struct mc_store *store = open_filled();
    start_offloading_master(master_port);
    expect_few(store);
    /* And with the memory gone as well: a node that comes to a master that knows nothing. */
    assert_int_equal(mc_store_close(store), 0);
    start_offloading_master(master_port);
    store = open_node();
    expect_few(store);
    assert_int_equal(mc_store_close(store), 0);
}

static void test_path_that_cannot_be_used(void **state)
{
    (void)state;
    char kept[sizeof(folder)];
    memcpy(kept, folder, sizeof(kept));
    snprintf(folder, sizeof(folder), "/nonexistent/mc-disk");
    struct mc_store *store = open_node(); /* goes on without it */
    put_numbered(store, 0);
    assert_true(read_back(store, 0));
    assert_int_equal(mc_store_close(store), 0);
    memcpy(folder, kept, sizeof(folder));
}

/* From now on its journal cannot be written, nor its volumes read; in this process, whose descriptors those are. */
static unsigned break_disk(bool and_volumes)
{
    char name[64], target[512];
    unsigned broken = 0;
    for (int fd = 3; fd < 1024; fd++) {
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = 0;
        bool is_volume = strstr(target, "/volume.") != NULL;
        bool is_meant = is_volume ? and_volumes : strstr(target, "/clears.") != NULL;
        if (strncmp(target, folder, strlen(folder)) != 0 || !is_meant)
            continue;
        int other = open("/dev/null", is_volume ? O_WRONLY : O_RDONLY);
        assert_true(other >= 0 && dup2(other, fd) == fd);
        close(other);
        broken++;
    }
    return broken;
}

/* A disk that a new master cannot be told of goes; the memory beside it, and the link, stay. */
static void test_disk_that_cannot_be_listed(void **state)
{
    (void)state;
    struct mc_store *store = open_filled();
    assert_int_equal(mc_store_close(store), 0);
    store = open_node(); /* what it finds is read again to be listed, as it has no tables of it in memory */
    expect_few(store);
    assert_true(break_disk(true) >= 3);
    start_offloading_master(master_port);
    for (uint64_t end_ns = mc_clock_ns() + STORED_MS * 1000000ull; mc_clock_ns() < end_ns && exists(store, 0) != 1;)
        usleep(10000);
    for (unsigned i = 0; i < 300; i++) { /* a link that breaks again and again is made anew within that */
        for (unsigned j = 0; j < FEW; j++)
            assert_int_equal(exists(store, j), 1);
        usleep(10000);
    }
    assert_int_equal(metric("mooncake_segments"), 1);
    put_numbered(store, FEW);
    assert_true(read_back(store, FEW));
    assert_int_equal(mc_store_close(store), 0);
}

/* What cannot be removed there is not waited for: the disk is given up, and whoever has it next finds nothing. */
static void test_removal_without_a_journal(void **state)
{
    (void)state;
    struct mc_store *store = open_filled();
    assert_int_equal(break_disk(false), 2);
    remove_number(store, 0);
    assert_int_equal(metric("file_cache_nums_"), 0);
    for (unsigned i = 0; i < FEW; i++) /* memory is as good as before */
        assert_int_equal(exists(store, i), i == 0 ? 0 : 1);
    put_numbered(store, 0);
    remove_number(store, 0);
    assert_int_equal(mc_store_close(store), 0);
    store = open_node();
    wait_disk();
    for (unsigned i = 0; i < FEW; i++)
        assert_int_equal(exists(store, i), 0);
    put_numbered(store, 0);
    wait_stored(1);
    assert_int_equal(mc_store_close(store), 0);
}

/* Whoever gives disks an hour to leave does not wait for it when there is no master to leave. */
static void test_disks_leave_without_a_master(void **state)
{
    (void)state;
    struct mc_store *store = open_node();
    wait_disk();
    stop(&master, SIGKILL);
    assert_int_equal(mc_store_unmount_disks(store, 3600000), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(mc_store_close(store), 0);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "node") == 0)
        return node_run(atoi(arguments[2]), arguments[3]);
    assert_true(readlink("/proc/self/exe", self_path, sizeof(self_path) - 1) > 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_more_than_memory, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_removed_stays_removed, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_node_killed, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_master_killed, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_disk_that_cannot_be_listed, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_removal_without_a_journal, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_disks_leave_without_a_master, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_path_that_cannot_be_used, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
