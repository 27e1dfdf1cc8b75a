/* Which device for which memory: made-up trees of sysfs, and priority matrices of users. */
#include "sysfs_tree.h"

#include "base/error.h"

/* Two sockets; on each four switches with a NIC and a GPU; NICs of one switch are the nearest to its GPU. */
static void put_large_machine(const struct tree *tree)
{
    put(tree, "devices/system/node/node0/x", "");
    put(tree, "devices/system/node/node1/x", "");
    for (unsigned i = 0; i < 8; i++) {
        const char *node = i < 4 ? "0\n" : "1\n";
        char place[128], name[32];
        snprintf(name, sizeof(name), "mlx5_%u", i == 7 ? 10 : i); /* 10 comes after 2 */
        snprintf(place, sizeof(place), "pci0000:%02u/0000:%02u:01.0/0000:%u1:00.0/0000:%u2:00.0", i / 4 * 80,
                 i / 4 * 80, i, i);
        put_nic(tree, name, place, node, "4: ACTIVE\n");
        snprintf(place, sizeof(place), "pci0000:%02u/0000:%02u:01.0/0000:%u1:00.0/0000:%u3:00.0", i / 4 * 80,
                 i / 4 * 80, i, i);
        put_pci(tree, place, node);
    }
}

static const char *names_of(const struct mc_topology *topology, const char *location)
{
    static char text[1024];
    const struct mc_topology_location *chosen = mc_topology_choose(topology, location);
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < chosen->count; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s",
                                 i == 0                   ? ""
                                 : i == chosen->preferred ? "|"
                                                          : " ",
                                 topology->devices[chosen->order[i]].name);
    return text;
}

static void test_empty(void **state)
{
    struct tree *tree = *state;
    struct mc_buffer out = {0};
    mc_topology_discover(&tree->topology, tree->root, NULL, NULL, NULL, 0);
    mc_topology_write(&tree->topology, &out);
    mc_buffer_append(&out, "", 1);
    assert_string_equal((char *)out.data, "{\n    \"cpu:0\": [[], []]\n}\n");
    mc_buffer_free(&out);
    assert_int_equal(mc_topology_choose(&tree->topology, "cpu:0")->count, 0);
    assert_int_equal(mc_topology_choose(&tree->topology, "*")->count, 0);
}

static void test_large_machine(void **state)
{
    struct tree *tree = *state;
    struct mc_topology_gpu gpus[9];
    put_large_machine(tree);
    for (unsigned i = 0; i < 8; i++) {
        snprintf(gpus[i].location, sizeof(gpus[i].location), "cuda:%u", i);
        snprintf(gpus[i].pci_bus_id, sizeof(gpus[i].pci_bus_id), i % 2 == 0 ? "0000:%u3:00.0" : "00000000:%u3:00.0", i);
    }
    gpus[8] = (struct mc_topology_gpu){"cuda:8", "0000:FF:1F.0"}; /* there is none */
    mc_topology_discover(&tree->topology, tree->root, NULL, "", gpus, 9);
    assert_int_equal(tree->topology.device_count, 8);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "mlx5_0 mlx5_1 mlx5_2 mlx5_3|mlx5_4 mlx5_5 mlx5_6 mlx5_10");
    assert_string_equal(names_of(&tree->topology, "cpu:1"), "mlx5_4 mlx5_5 mlx5_6 mlx5_10|mlx5_0 mlx5_1 mlx5_2 mlx5_3");
    assert_string_equal(names_of(&tree->topology, "cuda:2"),
                        "mlx5_2|mlx5_0 mlx5_1 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_10");
    assert_string_equal(names_of(&tree->topology, "cuda:7"),
                        "mlx5_10|mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6");
    assert_int_equal(mc_topology_choose(&tree->topology, "cuda:8")->preferred, 0);
    assert_int_equal(mc_topology_choose(&tree->topology, "cuda:8")->count, 8);
    assert_int_equal(mc_topology_choose(&tree->topology, "*")->preferred, 8);
    assert_ptr_equal(mc_topology_choose(&tree->topology, "cpu:7"), mc_topology_choose(&tree->topology, "*"));
}

/* Two NICs under one bridge, one elsewhere on the same node: both near ones are preferred. */
static void test_equal_distance(void **state)
{
    struct tree *tree = *state;
    struct mc_topology_gpu gpu = {"cuda:0", "0000:05:00.0"};
    put_nic(tree, "a", "pci0000:00/0000:00:01.0/0000:03:00.0", "-1\n", "4: ACTIVE\n");
    put_nic(tree, "b", "pci0000:00/0000:00:01.0/0000:03:00.1", "-1\n", "4: ACTIVE\n");
    put_nic(tree, "c", "pci0000:00/0000:00:02.0/0000:04:00.0", "-1\n", "4: ACTIVE\n");
    put_pci(tree, "pci0000:00/0000:00:01.0/0000:05:00.0", "-1\n");
    mc_topology_discover(&tree->topology, tree->root, NULL, NULL, &gpu, 1);
    assert_string_equal(names_of(&tree->topology, "cuda:0"), "a b|c");
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "a b c");
    assert_int_equal(mc_topology_choose(&tree->topology, "cpu:0")->preferred, 0);
    assert_string_equal(names_of(&tree->topology, "*"), "a b|c");
}

/* "0000:03" must not look like a common part of "0000:03" and "0000:031". */
static void test_prefix_is_no_bridge(void **state)
{
    struct tree *tree = *state;
    struct mc_topology_gpu gpu = {"cuda:0", "0000:07:00.0"};
    put_nic(tree, "a", "pci0000:00/0000:00:10.0/0000:03:00.0", "0\n", "4: ACTIVE\n");
    put_nic(tree, "b", "pci0000:00/0000:00:1/0000:04:00.0", "0\n", "4: ACTIVE\n");
    put_pci(tree, "pci0000:00/0000:00:1/0000:07:00.0", "0\n");
    mc_topology_discover(&tree->topology, tree->root, NULL, NULL, &gpu, 1);
    assert_string_equal(names_of(&tree->topology, "cuda:0"), "b|a");
}

static void test_ports(void **state)
{
    struct tree *tree = *state;
    put_nic(tree, "down", "pci0/0000:01:00.0", "0\n", "1: DOWN\n");
    put_nic(tree, "second", "pci0/0000:02:00.0", "0\n", "1: DOWN\n");
    put(tree, "class/infiniband/second/ports/2/state", "4: ACTIVE\n");
    put_nic(tree, "garbage", "pci0/0000:03:00.0", "nothing\n", "ACTIVE\n");
    put_nic(tree, "strange", "pci0/0000:04:00.0", "99999999999\n", "4: ACTIVE\n");
    put(tree, "class/infiniband/bare/x", ""); /* no ports, no PCI device */
    mc_topology_discover(&tree->topology, tree->root, NULL, NULL, NULL, 0);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "second|bare strange");
}

static void test_filters(void **state)
{
    struct tree *tree = *state;
    put_large_machine(tree);
    mc_topology_discover(&tree->topology, tree->root, " mlx5_1,mlx5_10 ,none", NULL, NULL, 0);
    assert_string_equal(names_of(&tree->topology, "cpu:1"), "mlx5_10|mlx5_1");
    mc_topology_discover(&tree->topology, tree->root, "mlx5_1,mlx5_10", "mlx5_1,mlx5_2", NULL, 0);
    assert_string_equal(names_of(&tree->topology, "*"), "mlx5_1");
    mc_topology_discover(&tree->topology, tree->root, "mlx5", NULL, NULL, 0);
    assert_int_equal(tree->topology.device_count, 0);
    assert_true(mc_topology_allows(" , ", "x"));
    assert_true(mc_topology_allows(NULL, "x"));
    assert_false(mc_topology_allows("xy,y x_", "x"));
    setenv("MC_TE_FILTERS_EXCLUDE", "x, z", 1); /* wins */
    assert_false(mc_topology_allows("x,y", "x"));
    assert_true(mc_topology_allows("x,y", "y"));
    assert_false(mc_topology_allows("", "z"));
    setenv("MC_TE_FILTERS_EXCLUDE", " ,", 1);
    assert_true(mc_topology_allows("x", "x"));
    unsetenv("MC_TE_FILTERS_EXCLUDE");
}

static void test_many(void **state)
{
    struct tree *tree = *state;
    for (unsigned i = 0; i < MC_TOPOLOGY_DEVICES_MAX + 6; i++) {
        char path[128];
        snprintf(path, sizeof(path), "class/infiniband/n%u/device/numa_node", i);
        put(tree, path, i % 2 == 0 ? "0\n" : "1\n");
    }
    mc_topology_discover(&tree->topology, tree->root, NULL, NULL, NULL, 0);
    assert_int_equal(tree->topology.device_count, MC_TOPOLOGY_DEVICES_MAX);
    assert_int_equal(mc_topology_choose(&tree->topology, "cpu:0")->count, MC_TOPOLOGY_DEVICES_MAX);
}

/* Devices that are in use count whatever their ports do, and where sysfs does not know their node, a driver may. */
static void test_known(void **state)
{
    struct tree *tree = *state;
    struct mc_topology_known known[3] = {{"a", 1}, {"b", -1}, {"c", 5}};
    put_nic(tree, "a", "pci0000:00/0000:01:00.0", "0\n", "1: DOWN\n");
    put_nic(tree, "other", "pci0000:00/0000:02:00.0", "0\n", "4: ACTIVE\n");
    mc_topology_of(&tree->topology, tree->root, known, 3);
    assert_int_equal(tree->topology.device_count, 3);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "a|b c");
    assert_string_equal(names_of(&tree->topology, "cpu:5"), "c|a b");
    assert_ptr_equal(mc_topology_choose(&tree->topology, "cpu:1"), &tree->topology.any);
    mc_topology_of(&tree->topology, tree->root, known, 0);
    assert_int_equal(tree->topology.device_count, 0);
    assert_int_equal(tree->topology.location_count, 1);
}

/* GPUs that are met one after the other, some of them twice. */
static void test_gpus_met_later(void **state)
{
    struct tree *tree = *state;
    struct mc_topology_known known[2] = {{"mlx5_0", -1}, {"mlx5_5", -1}};
    struct mc_topology_gpu near_first = {"cuda:0", "00000000:03:00.0"}, near_second = {"cuda:1", "0000:53:00.0"},
                           nowhere = {"cuda:2", "0000:ee:00.0"}, moved = {"cuda:0", "0000:53:00.0"};
    put_large_machine(tree);
    mc_topology_of(&tree->topology, tree->root, known, 2);
    mc_topology_add_gpu(&tree->topology, tree->root, &near_first);
    mc_topology_add_gpu(&tree->topology, tree->root, &near_second);
    mc_topology_add_gpu(&tree->topology, tree->root, &nowhere);
    mc_topology_add_gpu(&tree->topology, tree->root, &moved);
    assert_int_equal(tree->topology.location_count, 5);
    assert_string_equal(names_of(&tree->topology, "cuda:0"), "mlx5_0|mlx5_5");
    assert_string_equal(names_of(&tree->topology, "cuda:1"), "mlx5_5|mlx5_0");
    assert_int_equal(mc_topology_choose(&tree->topology, "cuda:2")->preferred, 0);
    for (unsigned i = 0; i < 2 * MC_TOPOLOGY_LOCATIONS_MAX; i++) {
        struct mc_topology_gpu many = {"", "0000:53:00.0"};
        snprintf(many.location, sizeof(many.location), "cuda:%u", i + 100);
        mc_topology_add_gpu(&tree->topology, tree->root, &many);
    }
    assert_int_equal(tree->topology.location_count, MC_TOPOLOGY_LOCATIONS_MAX);
}

static int parse(struct tree *tree, const char *text, const char *filter)
{
    return mc_topology_parse(&tree->topology, mc_span_string(text), filter, NULL);
}

static void test_matrix(void **state)
{
    struct tree *tree = *state;
    struct mc_buffer out = {0};
    const char *text = "{\"cpu:0\": [[\"erdma_0\"], [\"erdma_1\", \"erdma_0\"]], \"cuda:1\":[[\"erdma_1\"],[]]}";
    assert_int_equal(parse(tree, text, ""), 0);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "erdma_0|erdma_1");
    assert_string_equal(names_of(&tree->topology, "cuda:1"), "erdma_1");
    assert_string_equal(names_of(&tree->topology, "*"), "erdma_0 erdma_1");
    mc_topology_write(&tree->topology, &out);
    struct mc_topology *again = calloc(1, sizeof(*again));
    assert_non_null(again);
    assert_int_equal(mc_topology_parse(again, mc_span(out.data, out.length), NULL, NULL), 0);
    assert_memory_equal(again, &tree->topology, sizeof(*again));
    free(again);
    mc_buffer_free(&out);
    assert_int_equal(parse(tree, text, "erdma_1"), 0);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "erdma_1");
    assert_int_equal(mc_topology_choose(&tree->topology, "cpu:0")->preferred, 0);
    assert_int_equal(parse(tree, "{\"*\": [[\"a\"], [\"b\"]], \"cpu:0\": [[\"b\"], []]}", NULL), 0);
    assert_string_equal(names_of(&tree->topology, "cuda:9"), "a|b"); /* for all that is not named */
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "b");
    assert_int_equal(parse(tree, "{}", NULL), 0);
    assert_int_equal(tree->topology.location_count, 0);
}

static void test_matrix_bad(void **state)
{
    struct tree *tree = *state;
    static const char *const bad[] = {
        "",
        "[]",
        "{\"cpu:0\"",
        "{\"cpu:0\": [[\"a\"]]}",
        "{\"cpu:0\": [[\"a\"],[],[]]}",
        "{\"cpu:0\": [[1],[]]}",
        "{\"cpu:0\": [[\"\"],[]]}",
        "{\"cpu:0\": \"a\"}",
        "{\"cpu:0\": [\"a\",\"b\"]}",
        "{\"cpu:0\": [[],[]], \"cpu:0\": [[],[]]}",
        "{\"\": [[],[]]}",
        "{\"cpu:0\": [[\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"],[]]}",
        "{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\": [[],[]]}",
        "{\"cpu:0\": [[\"a\"],[]]} x",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(tree, bad[i], NULL), MC_ERR_PROTOCOL);
        assert_int_equal(tree->topology.device_count + tree->topology.location_count, 0);
    }
}

/* More devices, or more locations, than fit. */
static void test_matrix_too_large(void **state)
{
    struct tree *tree = *state;
    for (unsigned what = 0; what < 2; what++) {
        struct mc_buffer text = {0};
        mc_buffer_printf(&text, what == 0 ? "{\"cpu:0\":[[" : "{");
        unsigned count = what == 0 ? MC_TOPOLOGY_DEVICES_MAX + 1 : MC_TOPOLOGY_LOCATIONS_MAX + 1;
        for (unsigned i = 0; i < count; i++)
            mc_buffer_printf(&text, what == 0 ? "%s\"n%u\"" : "%s\"cpu:%u\":[[],[]]", i == 0 ? "" : ",", i);
        mc_buffer_printf(&text, what == 0 ? "],[]]}" : "}");
        assert_int_equal(mc_topology_parse(&tree->topology, mc_span(text.data, text.length), NULL, NULL),
                         MC_ERR_PROTOCOL);
        mc_buffer_free(&text);
    }
}

static void test_local(void **state)
{
    struct tree *tree = *state;
    char path[128];
    put(tree, "topology.json", "{\"cpu:0\": [[\"a\", \"b\"], [\"c\"]]}");
    snprintf(path, sizeof(path), "%s/topology.json", tree->root);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    setenv("MC_TE_FILTERS", "b,c", 1);
    mc_topology_local(&tree->topology, "", NULL, 0);
    assert_string_equal(names_of(&tree->topology, "cpu:0"), "b|c");
    put(tree, "topology.json", "{\"cpu:0\": ");
    mc_topology_local(&tree->topology, "", NULL, 0);
    assert_true(tree->topology.location_count >= 1); /* /sys has taken over */
    assert_int_equal(mc_topology_choose(&tree->topology, "cpu:0")->count, 0);
    setenv("MC_CUSTOM_TOPO_JSON", tree->root, 1); /* a folder */
    mc_topology_local(&tree->topology, "no such device", NULL, 0);
    assert_int_equal(tree->topology.device_count, 0);
    unsetenv("MC_CUSTOM_TOPO_JSON");
    unsetenv("MC_TE_FILTERS");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_empty),          TEST(test_large_machine),
        TEST(test_equal_distance), TEST(test_prefix_is_no_bridge),
        TEST(test_ports),          TEST(test_filters),
        TEST(test_many),           TEST(test_matrix),
        TEST(test_matrix_bad),     TEST(test_matrix_too_large),
        TEST(test_local),          TEST(test_known),
        TEST(test_gpus_met_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
