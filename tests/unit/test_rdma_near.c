/* Which devices are used for which memory: by sysfs, by a priority matrix, by filters; over the fake device. */
#include "rdma_sides.h"

#include "sysfs_tree.h"

#include <sys/mman.h>

static struct mc_rdma *open_with(const char *matrix, const char *filter, const char *sysfs)
{
    struct mc_rdma_options options = {.verbs = fake_verbs(), .filter = filter, .matrix = matrix, .sysfs = sysfs};
    struct mc_rdma *rdma = NULL;
    assert_int_equal(mc_rdma_open(&options, &rdma), 0);
    return rdma;
}

static uint32_t near(struct mc_rdma *rdma, const char *location, int node, const char *bus_id)
{
    static uint8_t bytes[4096];
    struct mc_rdma_range range = {.address = bytes,
                                  .length = sizeof(bytes),
                                  .dmabuf_fd = -1,
                                  .numa_node = node,
                                  .location = location,
                                  .bus_id = bus_id};
    struct mc_rdma_memory *memory;
    assert_int_equal(mc_rdma_memory_register(rdma, &range, &memory), 0);
    uint32_t local = mc_rdma_memory_local(memory).list[0].preferred;
    assert_int_equal(mc_rdma_memory_remote(memory).list[0].preferred, local);
    assert_int_equal(mc_rdma_memory_local(memory).list[0].valid, (1u << mc_rdma_device_count(rdma)) - 1);
    mc_rdma_memory_unregister(memory);
    return local;
}

static void devices(uint32_t count)
{
    struct fake_device_config configs[4];
    for (uint32_t i = 0; i < 4; i++)
        configs[i] = fake_roce(i);
    fake_reset(configs, count);
}

/* fake0 and fake1 on node 0, each beside a GPU; fake2 on node 1; fake3 is not to be seen: its driver says node 1. */
static void test_sysfs(void **state)
{
    struct tree *tree = *state;
    put_nic(tree, "fake0", "pci0000:00/0000:01:00.0/0000:02:00.0", "0\n", "4: ACTIVE\n");
    put_pci(tree, "pci0000:00/0000:01:00.0/0000:03:00.0", "0\n");
    put_nic(tree, "fake1", "pci0000:00/0000:11:00.0/0000:12:00.0", "0\n", "1: DOWN\n");
    put_pci(tree, "pci0000:00/0000:11:00.0/0000:13:00.0", "0\n");
    put_nic(tree, "fake2", "pci0000:80/0000:81:00.0", "1\n", "4: ACTIVE\n");
    put(tree, "devices/system/node/node1/x", "");
    put(tree, "devices/system/node/node2/x", "");
    devices(4);
    struct mc_rdma *rdma = open_with(NULL, NULL, tree->root);
    static const struct {
        const char *location;
        int node;
        const char *bus_id;
        uint32_t near;
    } rows[] = {
        {NULL, 0, NULL, 3},
        {"*", 0, NULL, 3},
        {"", 1, NULL, 12},
        {"cpu:1", 0, NULL, 12}, /* what is said is believed */
        {NULL, 2, NULL, 0},     /* nothing hangs there: all are alike */
        {NULL, 7, NULL, 0},
        {NULL, -1, NULL, 0},
        {"#4096#cpu:0,cpu:1", 0, NULL, 0},
        {"cuda:0", -1, "0000:03:00.0", 1},
        {"cuda:1", -1, "00000000:13:00.0", 2},
        {"cuda:0", -1, NULL, 1}, /* met already */
        {"cuda:2", -1, NULL, 0},
        {"cuda:3", -1, "0000:ff:00.0", 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(near(rdma, rows[i].location, rows[i].node, rows[i].bus_id), rows[i].near);
    mc_rdma_close(rdma);
    devices(2); /* all there are hang there */
    rdma = open_with(NULL, NULL, tree->root);
    assert_int_equal(near(rdma, "cpu:0", -1, NULL), 0);
    mc_rdma_close(rdma);
}

/* A matrix says which devices are used at all, and is believed, not sysfs. */
static void test_matrix(void **state)
{
    struct tree *tree = *state;
    const char *text = "{\"cpu:0\": [[\"fake3\"], [\"fake1\", \"mlx5_0\"]], \"cuda:1\": [[\"fake1\"], []], "
                       "\"cpu:1\": [[], [\"fake1\", \"fake3\"]]}";
    struct mc_rdma_device_info info;
    devices(4);
    struct mc_rdma *rdma = open_with(text, NULL, tree->root);
    assert_int_equal(mc_rdma_device_count(rdma), 2);
    mc_rdma_device_info(rdma, 1, &info);
    assert_string_equal(info.name, "fake3");
    assert_int_equal(near(rdma, "cpu:0", -1, NULL), 2);
    assert_int_equal(near(rdma, NULL, 0, NULL), 2);
    assert_int_equal(near(rdma, "cuda:1", -1, "0000:03:00.0"), 1);
    assert_int_equal(near(rdma, "cpu:1", -1, NULL), 0);
    assert_int_equal(near(rdma, "cuda:9", -1, "0000:03:00.0"), 0);
    mc_rdma_close(rdma);
    rdma = open_with("{\"*\": [[\"fake0\"], [\"fake2\"]], \"cpu:0\": [[\"fake2\"], []]}", NULL, tree->root);
    assert_int_equal(near(rdma, "cuda:9", -1, NULL), 1);
    assert_int_equal(near(rdma, NULL, -1, NULL), 1);
    assert_int_equal(near(rdma, NULL, 0, NULL), 2);
    mc_rdma_close(rdma);
}

static void test_matrix_of_no_use(void **state)
{
    (void)state;
    static const struct {
        const char *matrix, *filter;
        int rc;
    } rows[] = {
        {"", NULL, MC_ERR_INVALID_PARAMS},
        {"{\"cpu:0\": [[\"fake0\"]]}", NULL, MC_ERR_INVALID_PARAMS},
        {"{}", NULL, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE},
        {"{\"cpu:0\": [[\"mlx5_0\"],[]]}", NULL, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE},
        {"{\"cpu:0\": [[\"fake0\"],[]]}", "fake1", MC_ERR_UNAVAILABLE_IN_CURRENT_MODE},
        {"{\"cpu:0\": [[\"fake0\"],[]]}", "nobody", MC_ERR_INVALID_PARAMS},
    };
    devices(2);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_rdma_options options = {.verbs = fake_verbs(), .filter = rows[i].filter, .matrix = rows[i].matrix};
        struct mc_rdma *rdma;
        assert_int_equal(mc_rdma_open(&options, &rdma), rows[i].rc);
        assert_int_equal(fake_counts().contexts, 0);
    }
}

/* The environment: a file, and a filter that goes with device_name. */
static void test_environment(void **state)
{
    struct tree *tree = *state;
    char path[128];
    put(tree, "matrix.json", "{\"cpu:0\": [[\"fake1\"], [\"fake2\", \"fake3\"]]}");
    snprintf(path, sizeof(path), "%s/matrix.json", tree->root);
    devices(4);
    setenv("MC_TE_FILTERS", "fake0,fake1,fake2,nobody", 1);
    struct mc_rdma *rdma = open_with(NULL, "fake1,fake2,fake3", tree->root);
    assert_int_equal(mc_rdma_device_count(rdma), 2);
    mc_rdma_close(rdma);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    rdma = open_with(NULL, NULL, tree->root);
    assert_int_equal(mc_rdma_device_count(rdma), 2);
    assert_int_equal(near(rdma, "cpu:0", -1, NULL), 1);
    mc_rdma_close(rdma);
    unsetenv("MC_TE_FILTERS");
    rdma = open_with(NULL, NULL, tree->root);
    assert_int_equal(mc_rdma_device_count(rdma), 3);
    mc_rdma_close(rdma);
    rdma = open_with("{\"cpu:0\": [[\"fake0\"], []]}", NULL, tree->root); /* what is given wins */
    assert_int_equal(mc_rdma_device_count(rdma), 1);
    mc_rdma_close(rdma);
    setenv("MC_CUSTOM_TOPO_JSON", tree->root, 1);
    rdma = open_with(NULL, NULL, tree->root);
    assert_int_equal(mc_rdma_device_count(rdma), 4);
    mc_rdma_close(rdma);
    unsetenv("MC_CUSTOM_TOPO_JSON");
}

/* A port that a matrix names is opened though it is down, and used when it comes. */
static void test_down_at_first(void **state)
{
    (void)state;
    devices(2);
    fake_port(1, false);
    struct mc_rdma *rdma = open_with("{\"cpu:0\": [[\"fake1\"], [\"fake0\"]]}", NULL, NULL);
    assert_int_equal(mc_rdma_device_count(rdma), 2);
    assert_int_equal(near(rdma, "cpu:0", -1, NULL), 2);
    mc_rdma_close(rdma);
}

/* Where memory lies is asked of pages that are there: to ask of others would make them, of zeros, and name any node. */
static void test_untouched(void **state)
{
    (void)state;
    const size_t length = 64u << 12;
    unsigned char there[64] = {0};
    devices(2);
    struct mc_rdma *rdma = open_with(NULL, NULL, NULL);
    void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(bytes != MAP_FAILED);
    struct mc_rdma_range range = {
        .address = bytes, .length = length, .dmabuf_fd = -1, .numa_node = MC_RDMA_NODE_SOUGHT};
    struct mc_rdma_memory *memory = NULL;
    for (uint32_t i = 0; i < 2; i++)
        fake_fail_registrations(i, 1, ENOMEM);
    assert_int_equal(mc_rdma_memory_register(rdma, &range, &memory), MC_ERR_NO_MEMORY);
    assert_int_equal(mincore(bytes, length, there), 0);
    for (size_t i = 0; i < sizeof(there); i++)
        assert_int_equal(there[i] & 1, 0);
    munmap(bytes, length);
    mc_rdma_close(rdma);
}

static unsigned node_count, pages_each; /* interleaved so */
static uintptr_t lowest, highest;       /* what may be asked for */

static int interleaved(uintptr_t address)
{
    assert_true(address + 4095 >= lowest && address <= highest);
    return (int)(address / 4096 / pages_each % node_count);
}

/* A piece has a node when all that is asked of it has the same; pages that are dealt over several nodes have none. */
static void test_nodes(void **state)
{
    static const unsigned grains[] = {1, 2, 16, 512};
    (void)state;
    for (uint64_t length = 4096; length <= 2ull << 30; length *= 2) {
        for (unsigned grain = 0; grain < 4; grain++) {
            for (node_count = 1; node_count <= 9; node_count++) {
                pages_each = grains[grain];
                lowest = (uintptr_t)5 << 30;
                highest = lowest + length - 1;
                bool is_one = node_count == 1 || length <= pages_each * 4096u;
                int node = mc_rdma_near_node(lowest, length, interleaved);
                assert_int_equal(node, is_one ? interleaved(lowest) : -1);
            }
        }
    }
    pages_each = node_count = 2;
    lowest = 12287; /* a byte of page 2, on the second node, and one of page 4 */
    highest = 16384;
    assert_int_equal(mc_rdma_near_node(12287, 1, interleaved), 1);
    assert_int_equal(mc_rdma_near_node(12287, 4097, interleaved), 1);
    assert_int_equal(mc_rdma_near_node(12287, 4098, interleaved), -1);
}

/* Our memory lies best near the device that leads to the one near the peer's memory. */
static void test_link(void **state)
{
    (void)state;
    start(1u << 20); /* fake0 to fake2, fake1 to fake3; the even ones are on node 0, the odd ones on node 1 */
    assert_int_equal(mc_rdma_device_node(asking.rdma, 0), 0);
    assert_int_equal(mc_rdma_device_node(asking.rdma, 1), 1);
    static const struct {
        uint32_t valid, preferred;
        int here, node;
    } rows[] = {
        {3, 1, -1, 0}, {3, 1, 1, 0}, {3, 2, -1, 1}, {3, 2, 0, 1}, {3, 0, -1, 0},
        {3, 0, 1, 1},  {3, 0, 7, 0}, {1, 2, -1, 0}, {2, 1, 0, 1}, {0, 0, 0, -1},
    };
    for (size_t turn = 0; turn < 2; turn++) { /* of pairs that no run has taken yet, and of those that stand */
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            struct mc_rdma_chunk chunk = {.valid = rows[i].valid, .preferred = rows[i].preferred};
            assert_int_equal(mc_rdma_link_node(link_a, &chunk, rows[i].here), rows[i].node);
        }
        move_all();
    }
    finish();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_sysfs),       TEST(test_matrix),        TEST(test_matrix_of_no_use),
        TEST(test_environment), TEST(test_down_at_first), TEST(test_untouched),
        TEST(test_nodes),       TEST(test_link),
    };
    settings_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
