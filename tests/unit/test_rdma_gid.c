/* Choice of a GID: every table of the reports that users filed, each row named after its report. Host parts of
 * addresses are changed where that means nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

#include "env/log.h"
#include "rdma/gid.h"
#include "rdma/link_text.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 8

struct row {
    int type; /* 1, 2: RoCE version; 0: InfiniBand */
    const char *address, *netdev;
    int is_here; /* an interface of this network namespace has it */
};

struct report {
    const char *name;
    struct row rows[ROWS]; /* at their index */
    const char *peer;      /* NULL: not known */
    int wanted;            /* MC_GID_INDEX; -1: none */
    int chosen;            /* -1: none */
};

static const struct report reports[] = {
    /* The table of mlx5_4 there: v1 before v2, link-local before the address of a 10.14.0.0/16 fabric. */
    {"Mooncake#2729",
     {{1, "fe80::a288:c2ff:fe32:1f04", "ens16np0", 1},
      {2, "fe80::a288:c2ff:fe32:1f04", "ens16np0", 1},
      {1, "10.14.2.72", "ens16np0", 1},
      {2, "10.14.2.72", "ens16np0", 1}},
     NULL,
     -1,
     3},
    {"Mooncake#2747", {{2, "fe80::690:81ff:fe37:a9e8", "rdma0", 1}, {2, "10.102.9.101", "rdma0", 1}}, NULL, -1, 1},
    {"Mooncake#2747, the other order",
     {{2, "10.102.9.101", "rdma0", 1}, {2, "fe80::690:81ff:fe37:a9e8", "rdma0", 1}},
     NULL,
     -1,
     0},
    {"ROCm/ATOM#1748: no IPv4 at all, a unique local address",
     {{2, "fe80::690:81ff:fe39:e3e8", "enp105s0", 1}, {2, "fd93:16d3:59b6:10d:690:81ff:fe39:e3e8", "enp105s0", 1}},
     NULL,
     -1,
     1},
    {"Mooncake#946: the address of another interface first, ours last",
     {{1, "fe80::1", "", 0},
      {2, "fe80::1", "", 0},
      {1, "26.208.8.250", "", 0},
      {2, "26.208.8.250", "", 0},
      {1, "fe80::2", "eth1", 1},
      {2, "fe80::2", "eth1", 1},
      {1, "26.208.8.252", "eth1", 1},
      {2, "26.208.8.252", "eth1", 1}},
     NULL,
     -1,
     7},
    {"Mooncake#944: the same in a container, where interfaces of the host have names too",
     {{2, "fe80::1", "eth0", 0},
      {1, "26.208.8.250", "eth0", 0},
      {0},
      {2, "26.208.8.250", "eth0", 0},
      {0},
      {0},
      {1, "26.208.8.251", "eth1", 1},
      {2, "26.208.8.251", "eth1", 1}},
     NULL,
     -1,
     7},
    {"Mooncake#1026: one of seven fabrics, and a bridge",
     {{2, "fe80::10", "eth7", 1}, {2, "172.17.0.1", "docker0", 1}, {2, "13.13.6.13", "eth7", 1}},
     NULL,
     -1,
     2},
    {"Mooncake#1026: the peer's fabric is that of the later row",
     {{2, "12.12.12.43", "eth2", 1}, {2, "13.13.6.13", "eth7", 1}},
     "13.13.6.14",
     -1,
     1},
    {"Mooncake#1052: a virtual function in a container, only its own rows are filled",
     {{0},
      {0},
      {0},
      {0},
      {1, "fe80::e", "net1", 1},
      {2, "fe80::e", "net1", 1},
      {1, "192.168.3.4", "net1", 1},
      {2, "192.168.3.4", "net1", 1}},
     NULL,
     -1,
     7},
    {"Mooncake#1592: two rows of 256, both IPv6",
     {{2, "fe80::690:81ff:fe39:e718", "enp153s0", 1}, {2, "fd93:16d3:59b6:10b:690:81ff:fe39:e718", "enp153s0", 1}},
     NULL,
     -1,
     1},
    {"Mooncake#1593: only IPv6, of which only link-local",
     {{1, "fe80::225:9dff:fe33:33aa", "bond0", 1}, {2, "fe80::225:9dff:fe33:33aa", "bond0", 1}},
     NULL,
     -1,
     1},
    {"Mooncake#1617: an uplink without addresses of its own",
     {{1, "fe80::7ec2:55ff:feba:ff88", "enp193s0f0np0", 1}, {2, "fe80::7ec2:55ff:feba:ff88", "enp193s0f0np0", 1}},
     NULL,
     -1,
     1},
    {"Mooncake#204: link-local was chosen and timed out",
     {{1, "fe80::9e63:c0ff:fe65:ab90", "ens1", 1},
      {2, "fe80::9e63:c0ff:fe65:ab90", "ens1", 1},
      {1, "10.249.32.181", "ens1", 1},
      {2, "10.249.32.181", "ens1", 1}},
     NULL,
     -1,
     3},
    {"Mooncake#1766: the IPv4 address stands at 5",
     {{1, "fe80::5", "xs0", 1},
      {2, "fe80::5", "xs0", 1},
      {1, "fd00::5", "xs0", 1},
      {2, "fd00::5", "xs0", 1},
      {1, "172.23.4.5", "xs0", 1},
      {2, "172.23.4.5", "xs0", 1}},
     NULL,
     -1,
     5},
    {"Mooncake#113: version 1 first", {{1, "10.1.1.1", "bond0", 1}, {2, "10.1.1.1", "bond0", 1}}, NULL, -1, 1},
    {"Mooncake#1143, #1145: one address, one row", {{2, "100.100.100.1", "enp5s0f0", 1}}, NULL, -1, 0},
    {"Mooncake#82, #35: the peer says which of two fabrics",
     {{2, "192.168.1.4", "eth1", 1}, {2, "192.168.2.4", "eth1", 1}},
     "192.168.2.9",
     -1,
     1},
    /* And rules that follow. */
    {"the peer speaks IPv6", {{2, "10.0.0.1", "eth0", 1}, {2, "fd00::1", "eth0", 1}}, "fd00::2", -1, 1},
    {"the peer speaks a family that is not here", {{2, "10.0.0.1", "eth0", 1}}, "fd00::2", -1, -1},
    {"the peer has link-local only", {{2, "fd00::1", "eth0", 1}, {2, "fe80::1", "eth0", 1}}, "fe80::2", -1, 1},
    {"link-local IPv4", {{2, "169.254.3.3", "eth0", 1}, {2, "fd00::1", "eth0", 1}}, NULL, -1, 1},
    {"an interface that is not ours, routable, against link-local",
     {{2, "fe80::1", "eth0", 1}, {2, "10.0.0.1", "", 0}},
     NULL,
     -1,
     1},
    {"loopback and nothing", {{2, "127.0.0.1", "lo", 1}, {2, "::1", "lo", 1}}, NULL, -1, -1},
    {"an empty table", {{0}}, NULL, -1, -1},
    {"MC_GID_INDEX", {{2, "fe80::1", "eth0", 1}, {2, "10.0.0.1", "eth0", 1}}, NULL, 0, 0},
    {"MC_GID_INDEX of an empty row", {{2, "fe80::1", "eth0", 1}, {2, "10.0.0.1", "eth0", 1}}, NULL, 3, -1},
    {"MC_GID_INDEX, version 1", {{1, "10.0.0.1", "eth0", 1}, {2, "10.0.0.1", "eth0", 1}}, NULL, 0, 0},
};

static void to_gid(const char *text, uint8_t *gid)
{
    memset(gid, 0, MC_GID_BYTES);
    if (inet_pton(AF_INET6, text, gid) == 1)
        return;
    gid[10] = gid[11] = 0xff;
    assert_int_equal(inet_pton(AF_INET, text, gid + 12), 1);
}

static uint32_t to_rows(const struct report *report, struct mc_gid_row *rows)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        if (report->rows[i].address == NULL)
            continue;
        struct mc_gid_row *row = &rows[count++];
        *row = (struct mc_gid_row){.index = i, .prefix_length = 24, .is_here = report->rows[i].is_here != 0};
        row->type = report->rows[i].type == 2 ? MC_GID_ROCE_V2 : MC_GID_ROCE_V1;
        to_gid(report->rows[i].address, row->gid);
        snprintf(row->netdev, sizeof(row->netdev), "%s", report->rows[i].netdev);
    }
    return count;
}

static void test_reports(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(reports) / sizeof(reports[0]); i++) {
        const struct report *report = &reports[i];
        struct mc_gid_row rows[ROWS];
        uint8_t peer[MC_GID_BYTES];
        char reason[MC_RDMA_REASON_MAX] = "";
        uint32_t count = to_rows(report, rows);
        if (report->peer != NULL)
            to_gid(report->peer, peer);
        int at = mc_gid_choose(rows, count, MC_RDMA_ROCE, report->wanted, report->peer != NULL ? peer : NULL, 0, reason,
                               sizeof(reason));
        int index = at < 0 ? -1 : (int)rows[at].index;
        if (index != report->chosen)
            fail_msg("%s: row %d was chosen, not %d: %s", report->name, index, report->chosen, reason);
        assert_true(strlen(reason) > 10);
    }
}

/* Whatever else a table holds, and in whatever order: link-local is never chosen while something routable is there. */
static void test_link_local_never_wins(void **state)
{
    (void)state;
    static const char *const netdevs[] = {"", "eth0", "docker0"};
    for (unsigned bits = 0; bits < 3 * 2 * 3 * 2 * 2 * 2; bits++) {
        unsigned rest = bits;
        struct mc_gid_row rows[2] = {{.index = 0, .type = MC_GID_ROCE_V2}, {.index = 1, .type = MC_GID_ROCE_V2}};
        char reason[MC_RDMA_REASON_MAX];
        for (unsigned i = 0; i < 2; i++) {
            snprintf(rows[i].netdev, sizeof(rows[i].netdev), "%s", netdevs[rest % 3]);
            rest /= 3;
            rows[i].is_here = rest % 2 != 0;
            rest /= 2;
        }
        unsigned local = rest % 2, is_v4 = rest / 2 % 2;
        to_gid("fe80::1", rows[local].gid);
        to_gid(is_v4 ? "10.1.2.3" : "2001:db8::1", rows[1 - local].gid);
        assert_int_equal(mc_gid_choose(rows, 2, MC_RDMA_ROCE, -1, NULL, 0, reason, sizeof(reason)), 1 - (int)local);
    }
}

static void test_ranks(void **state)
{
    (void)state;
    struct mc_gid_row rows[ROWS];
    char reason[MC_RDMA_REASON_MAX];
    uint32_t count = to_rows(&reports[0], rows), seen = 0;
    for (unsigned rank = 0; rank < 4; rank++) {
        int at = mc_gid_choose(rows, count, MC_RDMA_ROCE, -1, NULL, rank, reason, sizeof(reason));
        assert_true(at >= 0 && (seen >> at & 1) == 0);
        seen |= 1u << at;
    }
    assert_int_equal(mc_gid_choose(rows, count, MC_RDMA_ROCE, -1, NULL, 4, reason, sizeof(reason)), -1);
    assert_int_equal(mc_gid_choose(rows, count, MC_RDMA_ROCE, 2, NULL, 1, reason, sizeof(reason)), -1);
}

static void test_infiniband(void **state)
{
    (void)state;
    struct mc_gid_row rows[2] = {{.index = 0, .type = MC_GID_INFINIBAND}, {.index = 1, .type = MC_GID_INFINIBAND}};
    char reason[MC_RDMA_REASON_MAX];
    to_gid("fe80::a088:c203:24:c926", rows[0].gid); /* sglang#6193 */
    assert_int_equal(mc_gid_choose(rows, 1, MC_RDMA_INFINIBAND, -1, NULL, 0, reason, sizeof(reason)), 0);
    to_gid("fec0::a088:c203:24:c926", rows[1].gid);
    assert_int_equal(mc_gid_choose(rows, 1, MC_RDMA_ROCE, -1, NULL, 0, reason, sizeof(reason)), -1);
    memset(rows[0].gid + 8, 0, 8); /* a prefix alone is no GID */
    assert_int_equal(mc_gid_choose(rows, 1, MC_RDMA_INFINIBAND, -1, NULL, 0, reason, sizeof(reason)), -1);
}

static void test_text(void **state)
{
    (void)state;
    uint8_t gid[MC_GID_BYTES], back[MC_GID_BYTES];
    char text[MC_GID_TEXT_MAX];
    to_gid("10.55.0.1", gid);
    mc_gid_format(gid, text, sizeof(text));
    assert_string_equal(text, "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:37:00:01");
    assert_int_equal(mc_gid_parse(text, back), 0);
    assert_memory_equal(gid, back, MC_GID_BYTES);
    mc_gid_address(gid, text, sizeof(text));
    assert_string_equal(text, "10.55.0.1");
    static const char *const bad[] = {
        "", "00", "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:37:00:0g",
        "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:37:00:01:", "00-00-00-00-00-00-00-00-00-00-ff-ff-0a-37-00-01"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(mc_gid_parse(bad[i], back), MC_ERR_PROTOCOL);
}

static void test_subnets(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        unsigned bits;
        bool is_same;
    } cases[] = {
        {"10.0.0.1", "10.0.0.2", 24, true},      {"10.0.0.1", "10.0.1.2", 24, false},
        {"10.0.0.1", "10.0.1.2", 23, true},      {"10.14.1.72", "10.14.1.8", 26, false},
        {"10.14.1.72", "10.14.1.100", 26, true}, {"fd00::1", "fd00::2", 64, true},
        {"fd00::1", "fd00:0:0:1::2", 64, false}, {"fd00::1", "10.0.0.1", 0, false},
        {"10.0.0.1", "10.0.0.1", 32, true},      {"fd00::1", "fd00::1", 200, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t a[MC_GID_BYTES], b[MC_GID_BYTES];
        to_gid(cases[i].a, a);
        to_gid(cases[i].b, b);
        assert_int_equal(mc_gid_same_subnet(a, b, cases[i].bits), cases[i].is_same);
    }
}

/* Eight fabrics on either side (#2729): each device talks to the peer's device of its own subnet, whatever the order.
 */
static void test_rails(void **state)
{
    (void)state;
    struct mc_rdma_peer_device peers[8];
    for (uint32_t i = 0; i < 8; i++) {
        char text[32];
        snprintf(text, sizeof(text), "10.14.%u.9", (unsigned)(7 - i));
        peers[i] = (struct mc_rdma_peer_device){.is_up = true, .fabric = MC_RDMA_ROCE};
        snprintf(peers[i].name, sizeof(peers[i].name), "mlx5_%u", (unsigned)i);
        to_gid(text, peers[i].gid);
    }
    for (uint32_t i = 0; i < 8; i++) {
        char name[16], text[32];
        struct mc_gid_row row = {.type = MC_GID_ROCE_V2, .is_here = true, .prefix_length = 24, .netdev = "eth0"};
        snprintf(text, sizeof(text), "10.14.%u.8", (unsigned)i);
        snprintf(name, sizeof(name), "mlx5_%u", (unsigned)i);
        to_gid(text, row.gid);
        struct mc_rdma_local_device local = {name, i, MC_RDMA_ROCE, &row, 1, -1};
        assert_int_equal(mc_rdma_choose_peer(&local, peers, 8, 0, 0), 7 - i);
        assert_int_equal(mc_rdma_choose_peer(&local, peers, 8, 1u << 3, 0), 3);
        peers[7 - i].is_up = false;
        assert_int_not_equal(mc_rdma_choose_peer(&local, peers, 8, 0, 0), 7 - i);
        peers[7 - i].is_up = true;
        uint32_t seen = 0;
        for (uint32_t rank = 0; rank < 8; rank++)
            seen |= 1u << mc_rdma_choose_peer(&local, peers, 8, 0, rank);
        assert_int_equal(seen, 0xff);
        assert_int_equal(mc_rdma_choose_peer(&local, peers, 8, 0, 8), 7 - i);
    }
    /* One subnet for all, as in many small clusters: the same name, so that the load is spread. */
    for (uint32_t i = 0; i < 8; i++) {
        char name[16];
        struct mc_gid_row row = {.type = MC_GID_ROCE_V2, .is_here = true, .prefix_length = 16, .netdev = "eth0"};
        snprintf(name, sizeof(name), "mlx5_%u", (unsigned)i);
        to_gid("10.14.0.8", row.gid);
        struct mc_rdma_local_device local = {name, i, MC_RDMA_ROCE, &row, 1, -1};
        assert_int_equal(mc_rdma_choose_peer(&local, peers, 8, 0, 0), i);
        snprintf(name, sizeof(name), "other%u", (unsigned)i);
        assert_int_equal(mc_rdma_choose_peer(&local, peers, 8, 0, 0), i);
    }
}

/* ---- settings ---- */

static void test_settings(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value;
        size_t offset;
        int64_t expected;
    } cases[] = {
#define AT(field) offsetof(struct mc_rdma_settings, field)
        {"MC_IB_PORT", "2", AT(ib_port), 2},
        {"MC_IB_PORT", "0", AT(ib_port), 1},
        {"MC_IB_PORT", "256", AT(ib_port), 1},
        {"MC_GID_INDEX", "3", AT(gid_index), 3},
        {"MC_GID_INDEX", "", AT(gid_index), -1},
        {"MC_GID_INDEX", "three", AT(gid_index), -1},
        {"MC_GID_INDEX", "3x", AT(gid_index), -1},
        {"MC_GID_INDEX", " 3", AT(gid_index), -1},
        {"MC_GID_INDEX", "-2", AT(gid_index), -1},
        {"NCCL_IB_GID_INDEX", "5", AT(gid_index), 5},
        {"MC_MTU", "1024", AT(mtu_bytes), 1024},
        {"MC_MTU", "1500", AT(mtu_bytes), 4096},
        {"MC_MTU", "8192", AT(mtu_bytes), 4096},
        {"MC_IB_TC", "106", AT(traffic_class), 106},
        {"MC_SLICE_SIZE", "99999999999999999999", AT(slice_bytes), 65536},
        {"MC_MAX_INLINE", "0", AT(inline_max), 0},
        {"MC_RDMA_SETUP", "cm", AT(setup), MC_RDMA_SETUP_CM},
        {"MC_RDMA_SETUP", "OOB", AT(setup), MC_RDMA_SETUP_OOB},
        {"MC_RDMA_SETUP", "magic", AT(setup), MC_RDMA_SETUP_AUTO},
#undef AT
    };
    struct mc_rdma_settings settings;
    mc_log_set_level(MC_LOG_ERROR);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t value;
        assert_int_equal(setenv(cases[i].variable, cases[i].value, 1), 0);
        mc_rdma_settings_read(&settings);
        memcpy(&value, (const char *)&settings + cases[i].offset, sizeof(value));
        if (value != cases[i].expected)
            fail_msg("%s=%s is %lld", cases[i].variable, cases[i].value, (long long)value);
        assert_int_equal(unsetenv(cases[i].variable), 0);
    }
    (void)setenv("MC_GID_INDEX", "1", 1); /* ours first */
    (void)setenv("NCCL_IB_GID_INDEX", "2", 1);
    mc_rdma_settings_read(&settings);
    assert_int_equal(settings.gid_index, 1);
    (void)unsetenv("MC_GID_INDEX");
    (void)unsetenv("NCCL_IB_GID_INDEX");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reports), cmocka_unit_test(test_link_local_never_wins),
        cmocka_unit_test(test_ranks),   cmocka_unit_test(test_infiniband),
        cmocka_unit_test(test_text),    cmocka_unit_test(test_subnets),
        cmocka_unit_test(test_rails),   cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
