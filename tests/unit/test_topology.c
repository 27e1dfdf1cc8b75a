/* Which device for which memory: made-up trees of sysfs, and priority matrices of users. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "rdma/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct tree {
    char root[64];
    struct mc_topology topology;
};

static void make_folders(const char *path)
{
    char part[512];
    snprintf(part, sizeof(part), "%s", path);
    for (char *at = part + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(part, 0700);
        *at = '/';
    }
}

static void put(const struct tree *tree, const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s/%s", tree->root, path);
    make_folders(whole);
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void join(const struct tree *tree, const char *path, const char *target)
{
    char whole[512], full[512];
    snprintf(whole, sizeof(whole), "%s/%s", tree->root, path);
    snprintf(full, sizeof(full), "%s/%s", tree->root, target);
    make_folders(whole);
    assert_int_equal(symlink(full, whole), 0);
}

/* A PCI device at that place below devices/, known under its last name. */
static void put_pci(const struct tree *tree, const char *place, const char *node)
{
    char path[256], target[256];
    snprintf(path, sizeof(path), "devices/%s/numa_node", place);
    put(tree, path, node);
    snprintf(path, sizeof(path), "bus/pci/devices/%s", strrchr(place, '/') + 1);
    snprintf(target, sizeof(target), "devices/%s", place);
    join(tree, path, target);
}

static void put_nic(const struct tree *tree, const char *name, const char *place, const char *node, const char *state)
{
    char path[256], target[256];
    put_pci(tree, place, node);
    snprintf(path, sizeof(path), "class/infiniband/%s/device", name);
    snprintf(target, sizeof(target), "devices/%s", place);
    join(tree, path, target);
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/state", name);
    put(tree, path, state);
}

static int set_up(void **state)
{
    struct tree *tree = calloc(1, sizeof(*tree));
    assert_non_null(tree);
    snprintf(tree->root, sizeof(tree->root), "/tmp/test_topology_XXXXXX");
    assert_non_null(mkdtemp(tree->root));
    *state = tree;
    return 0;
}

static int tear_down(void **state)
{
    struct tree *tree = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", tree->root);
    int rc = system(command);
    free(tree);
    return rc;
}

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
        TEST(test_empty),      TEST(test_large_machine),    TEST(test_equal_distance), TEST(test_prefix_is_no_bridge),
        TEST(test_ports),      TEST(test_filters),          TEST(test_many),           TEST(test_matrix),
        TEST(test_matrix_bad), TEST(test_matrix_too_large), TEST(test_local),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
