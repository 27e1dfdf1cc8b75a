/* NUMA nodes of a segment: how they are named, and that the memory has the policy that was asked for. */
#include "base/error.h"
#include "store/segment/memory.h"
#include "store/segment/numa.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define OF_ADDRESS 2ul /* MPOL_F_ADDR */

static void lists(void **state)
{
    static const struct {
        const char *text, *back;
        unsigned count;
    } rows[] = {
        {"0", "0", 1},         {"0\n", "0", 1},     {"0,1", "0-1", 2},
        {"1,0", "0-1", 2},     {"0-3", "0-3", 4},   {"0,2-3,5", "0,2-3,5", 4},
        {"63-64", "63-64", 2}, {"1023", "1023", 1}, {"7,7", "7", 1},
    };
    static const char *const wrong[] = {
        "",    ",", "0,", ",0", "-1", "0-", "3-1", "a", "0 1", "0;1", "1024", "0-1024", "99999999999999999999",
        "all", " 0"};
    struct mc_numa_nodes nodes;
    char text[64];
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(mc_numa_parse(rows[i].text, &nodes));
        assert_int_equal(mc_numa_count(&nodes), rows[i].count);
        mc_numa_text(&nodes, text, sizeof(text));
        assert_string_equal(text, rows[i].back);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(mc_numa_parse(wrong[i], &nodes));
    assert_true(mc_numa_parse("0-1023", &nodes));
    assert_int_equal(mc_numa_count(&nodes), 1024);
    assert_false(mc_numa_has(&nodes, 1024));
    mc_numa_text(&nodes, text, 4); /* cut */
    assert_string_equal(text, "0-1");
    nodes = mc_numa_online("/nowhere");
    assert_int_equal(mc_numa_count(&nodes), 0);
}

/* The policy of an address and its first 64 nodes; false: this kernel has none. */
static bool policy_of(const void *address, int *policy, uint64_t *nodes)
{
    uint64_t bits[MC_NUMA_NODES_MAX / 64] = {0};
    if (syscall(SYS_get_mempolicy, policy, bits, (unsigned long)MC_NUMA_NODES_MAX, address, OF_ADDRESS) != 0)
        return false;
    *nodes = bits[0];
    return true;
}

static struct mc_segment_memory *memory_with(const char *setting)
{
    struct mc_segment_memory *memory;
    if (setting == NULL)
        unsetenv("MC_STORE_NUMA_NODES");
    else
        setenv("MC_STORE_NUMA_NODES", setting, 1);
    assert_int_equal(mc_segment_memory_create(16 * MIB, &memory), 0);
    unsetenv("MC_STORE_NUMA_NODES");
    return memory;
}

static void segments(void **state)
{
    static const struct {
        const char *setting;
        bool is_placed;
    } rows[] = {{NULL, false},    {"", false},     {"0", true}, {"all", true},
                {"0,1000", true}, {"1000", false}, {"x", false}};
    (void)state;
    struct mc_numa_nodes online = mc_numa_online("/sys/devices/system/node/online");
    if (!mc_numa_has(&online, 0))
        skip();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_segment_memory *memory = memory_with(rows[i].setting);
        uint8_t *data = mc_segment_memory_data(memory);
        int policy = -1;
        uint64_t nodes = 0;
        memset(data, 1, 4096);
        if (!policy_of(data, &policy, &nodes) && (errno == ENOSYS || errno == EPERM)) {
            mc_segment_memory_release(memory);
            skip();
        }
        bool is_one = mc_numa_count(&online) == 1 || rows[i].setting == NULL || strcmp(rows[i].setting, "all") != 0;
        assert_int_equal(policy, !rows[i].is_placed ? 0 : is_one ? 1 : 3);
        assert_true(!rows[i].is_placed || (nodes & 1) != 0);
        mc_segment_memory_release(memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists), cmocka_unit_test(segments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
