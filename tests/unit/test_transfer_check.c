/* Checksums of transfers: a bit that is another where the bytes arrive fails the transfer, by each path; without the
 * setting, and with peers that do not know of it, nothing is checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "transfer/run/run.h"
#include "transfer/state/metrics.h"
#include "transfer_world.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define INVALID MC_TRANSFER_ERR_INVALID_ARGUMENT

/* ---- a byte that comes out other than it went in, once, in place of libc's ---- */

static _Atomic uintptr_t flipped; /* 0: none */

static void flip_within(const void *base, size_t size)
{
    uintptr_t at = atomic_load(&flipped);
    if (at != 0 && at >= (uintptr_t)base && at - (uintptr_t)base < size &&
        atomic_compare_exchange_strong(&flipped, &at, 0))
        *(uint8_t *)at ^= 4;
}

static ssize_t flip_parts(const struct iovec *parts, size_t count, ssize_t moved)
{
    ssize_t left = moved;
    for (size_t i = 0; i < count && left > 0; i++) {
        size_t size = (size_t)left < parts[i].iov_len ? (size_t)left : parts[i].iov_len;
        flip_within(parts[i].iov_base, size);
        left -= (ssize_t)size;
    }
    return moved;
}

typedef ssize_t process_vm(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long,
                           unsigned long);

static ssize_t (*libc_recvmsg)(int, struct msghdr *, int);
static process_vm *libc_readv, *libc_writev;

static void find_libc(void)
{
    *(void **)&libc_recvmsg = dlsym(RTLD_NEXT, "recvmsg");
    *(void **)&libc_readv = dlsym(RTLD_NEXT, "process_vm_readv");
    *(void **)&libc_writev = dlsym(RTLD_NEXT, "process_vm_writev");
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return flip_parts(message->msg_iov, message->msg_iovlen, libc_recvmsg(fd, message, flags));
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                         unsigned long remotes, unsigned long flags)
{
    return flip_parts(local, locals, libc_readv(pid, local, locals, remote, remotes, flags));
}

/* To this process, as all here. */
ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                          unsigned long remotes, unsigned long flags)
{
    return flip_parts(remote, remotes, libc_writev(pid, local, locals, remote, remotes, flags));
}

static void disturb(void *bytes, size_t length)
{
    uintptr_t at = atomic_load(&flipped);
    if (at != 0 && length > 0 && atomic_compare_exchange_strong(&flipped, &at, 0))
        ((uint8_t *)bytes)[length / 2] ^= 4;
}

/* ---- the ways there are ---- */

static const struct way {
    const char *name;
    int path;
    bool is_own;    /* the peer's memory is its engine's: it is mapped */
    bool is_copied; /* by us: the disturbance takes part in the check */
    const char *lanes;
} ways[] = {{"tcp", MC_TRANSFER_PATH_TCP, false, false, NULL},
            {"tcp over lanes", MC_TRANSFER_PATH_TCP, false, false, "5"},
            {"host", MC_TRANSFER_PATH_HOST, false, false, NULL},
            {"host, mapped", MC_TRANSFER_PATH_HOST, true, true, NULL},
            {"local", MC_TRANSFER_PATH_LOCAL, false, true, NULL}};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static struct mc_peer *far_peer; /* what near knows of far */

static void open_by(struct world *world, const struct way *way)
{
    unsetenv("MC_FORCE_TCP");
    unsetenv("MC_SAME_PROCESS");
    unsetenv("MC_TCP_LANES_PER_PEER");
    if (way->path == MC_TRANSFER_PATH_TCP)
        setenv("MC_FORCE_TCP", "1", 1);
    if (way->path == MC_TRANSFER_PATH_HOST)
        setenv("MC_SAME_PROCESS", "0", 1);
    if (way->lanes != NULL)
        setenv("MC_TCP_LANES_PER_PEER", way->lanes, 1);
    *world = (struct world){.near = engine_open(), .far = engine_open()};
    world->near_memory = map(world->near, &world->near_seen);
    world->far_memory = way->is_own ? mc_transfer_allocate(world->far, MEMORY) : map(world->far, &world->far_seen);
    assert_non_null(world->far_memory);
    world->far_seen = way->is_own ? world->far_memory : world->far_seen;
    world->near->settings.checksum_every = 1;
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &far_peer), 0);
    mc_check_disturb = disturb;
}

static void close_it(struct world *world, const struct way *way)
{
    mc_check_disturb = NULL;
    mc_peer_release(far_peer);
    if (way->is_own) {
        mc_transfer_close(world->near);
        mc_transfer_close(world->far); /* and its memory */
        munmap(world->near_memory, MEMORY);
        munmap(world->near_seen, MEMORY);
    } else {
        world_close(world);
    }
}

static int run(struct world *world, enum mc_transfer_opcode opcode, uint64_t offset, uint64_t length)
{
    struct mc_transfer_item item = {world->near_memory + offset, (uintptr_t)world->far_memory + offset, length};
    return mc_transfer_run(world->near, mc_transfer_name(world->far), opcode, &item, 1, NULL);
}

/* So many batches were compared, and of these so many differed. */
static void expect_checks(int path, uint64_t compared, uint64_t wrong)
{
    const struct mc_tally *tally = far_peer->tally;
    assert_int_equal(tally->checks[path][0], compared);
    assert_int_equal(tally->checks[path][1], wrong);
}

static uint64_t checked_so_far(void)
{
    return far_peer->tally->checks[MC_TRANSFER_PATH_TCP][0];
}

static void fill(struct world *world, uint64_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++) {
        world->near_seen[i] = (uint8_t)(i * 31 + i / 251 + seed);
        world->far_seen[i] = (uint8_t)(i * 17 + i / 509 + seed);
    }
}

/* ---- a bit is another ---- */

static void flip_one(struct world *world, const struct way *way, enum mc_transfer_opcode opcode, uint64_t length,
                     uint64_t at)
{
    const uint8_t *from = opcode == MC_TRANSFER_WRITE ? world->near_seen : world->far_seen;
    const uint8_t *to = opcode == MC_TRANSFER_WRITE ? world->far_seen : world->near_seen;
    const uint8_t *target = opcode == MC_TRANSFER_WRITE ? world->far_memory : world->near_memory;
    uint64_t before = far_peer->tally->checks[way->path][0], wrong = far_peer->tally->checks[way->path][1];
    fill(world, length, (unsigned)length);
    if (!way->is_copied) { /* who does not check is told that all is well */
        world->near->settings.checksum_every = 0;
        atomic_store(&flipped, (uintptr_t)target + at);
        assert_int_equal(run(world, opcode, 0, length), 0);
        assert_int_equal(atomic_load(&flipped), 0);
        assert_memory_not_equal(from, to, length);
        expect_checks(way->path, before, wrong);
        world->near->settings.checksum_every = 1;
    }
    atomic_store(&flipped, (uintptr_t)target + at);
    assert_int_equal(run(world, opcode, 0, length), INVALID);
    assert_int_equal(atomic_load(&flipped), 0);
    assert_memory_not_equal(from, to, length);
    expect_checks(way->path, before + 1, wrong + 1);
    assert_int_equal(run(world, opcode, 0, length), 0); /* nothing is left of that */
    assert_memory_equal(from, to, length);
    expect_checks(way->path, before + 2, wrong + 1);
}

static void test_flipped(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 4096, 100001, (5 << 20) + 5};
    for (size_t i = 0; i < WAYS; i++) {
        struct world world;
        print_message("%s\n", ways[i].name);
        open_by(&world, &ways[i]);
        for (size_t j = 0; j < sizeof(lengths) / sizeof(lengths[0]); j++) {
            for (int opcode = MC_TRANSFER_READ; opcode <= MC_TRANSFER_WRITE; opcode++) {
                flip_one(&world, &ways[i], (enum mc_transfer_opcode)opcode, lengths[j], 0);
                flip_one(&world, &ways[i], (enum mc_transfer_opcode)opcode, lengths[j], lengths[j] - 1);
            }
        }
        close_it(&world, &ways[i]);
    }
}

/* The same of a batch in the background; and what is told of it. */
static void test_flipped_in_background(void **state)
{
    (void)state;
    struct world world;
    open_by(&world, &ways[0]);
    fill(&world, 1 << 20, 1);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 1 << 20};
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        atomic_store(&flipped, is_wrong ? (uintptr_t)world.far_memory + 500000 : 0);
        int64_t id = mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &item, 1, NULL);
        assert_true(id > 0);
        assert_int_equal(mc_transfer_wait(world.near, &id, 1), is_wrong ? INVALID : 0);
    }
    expect_checks(MC_TRANSFER_PATH_TCP, 2, 1);
    char *text = mc_transfer_metrics_text(world.near);
    assert_non_null(strstr(text, "\nmooncake_transfer_checked_total{"));
    assert_non_null(strstr(text, "path=\"tcp\"} 2\n"));
    const char *row = strstr(text, "\nmooncake_transfer_mismatches_total{");
    assert_non_null(row);
    assert_non_null(strstr(row, "path=\"tcp\"} 1\n"));
    free(text);
    close_it(&world, &ways[0]);
}

/* ---- nothing is ---- */

/* Many items of many sizes, some of which lie at the same place. */
static void test_many(void **state)
{
    (void)state;
    enum { ITEMS = 400 };
    static struct mc_transfer_item items[ITEMS];
    for (size_t i = 0; i < WAYS; i++) {
        struct world world;
        uint64_t at = 0;
        open_by(&world, &ways[i]);
        fill(&world, MEMORY, 3);
        for (size_t j = 0; j < ITEMS; j++) {
            uint64_t length = j % 100 == 7 ? (2 << 20) - 3 : j * 37 % 4099;
            items[j] = (struct mc_transfer_item){world.near_memory + at, (uintptr_t)world.far_memory + at, length};
            at += length;
        }
        assert_true(at <= MEMORY);
        for (int opcode = MC_TRANSFER_READ; opcode <= MC_TRANSFER_WRITE; opcode++) {
            assert_int_equal(mc_transfer_run(world.near, mc_transfer_name(world.far), (enum mc_transfer_opcode)opcode,
                                             items, ITEMS, NULL),
                             0);
            assert_memory_equal(world.near_seen, world.far_seen, at);
            fill(&world, MEMORY, 4);
        }
        if (ways[i].lanes == NULL) { /* one after the other: each is compared before the next */
            for (size_t j = 0; j < 3; j++)
                items[j] = (struct mc_transfer_item){world.near_memory + j * 5000, (uintptr_t)world.far_memory, 5000};
            assert_int_equal(
                mc_transfer_run(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, items, 3, NULL), 0);
        }
        expect_checks(ways[i].path, ways[i].lanes == NULL ? 3 : 2, 0);
        close_it(&world, &ways[i]);
    }
}

/* A peer of before, and the first version of the protocol: as if it were off. */
static void test_who_knows_nothing(void **state)
{
    (void)state;
    for (int row = 0; row < 2; row++) {
        for (size_t i = 0; i < WAYS; i++) {
            struct world world;
            open_by(&world, &ways[i]);
            fill(&world, 8 << 20, 5);
            assert_true(far_peer->document.can_sum);
            if (row == 0)
                far_peer->document.can_sum = false;
            else
                world.near->settings.tcp_version = 1;
            assert_int_equal(run(&world, MC_TRANSFER_WRITE, 0, 3 << 20), 0);
            assert_memory_equal(world.near_seen, world.far_seen, 3 << 20);
            assert_int_equal(run(&world, MC_TRANSFER_READ, 4 << 20, 3 << 20), 0);
            assert_memory_equal(world.near_seen + (4 << 20), world.far_seen + (4 << 20), 3 << 20);
            assert_true(far_peer->is_unchecked);
            expect_checks(ways[i].path, 0, 0);
            close_it(&world, &ways[i]);
        }
    }
}

/* Of each size the first and one in three, however many there are of others. */
static void test_sampled(void **state)
{
    (void)state;
    struct world world;
    open_by(&world, &ways[0]);
    world.near->settings.checksum_every = 3;
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, 0, 4096 + i), 0);
    uint64_t before = checked_so_far();
    assert_true(before == 2 || before == 3); /* one of each three, wherever */
    assert_int_equal(run(&world, MC_TRANSFER_READ, 0, 8 << 20), 0);
    assert_int_equal(checked_so_far(), before + 1);
    /* Those of a round of four have their turn, each. */
    unsigned drawn[4] = {0};
    world.near->settings.checksum_every = 4;
    for (unsigned i = 0; i < 160; i++) {
        before = checked_so_far();
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, 0, 64), 0);
        drawn[i % 4] += checked_so_far() > before;
    }
    assert_int_equal(drawn[0] + drawn[1] + drawn[2] + drawn[3], 40);
    for (unsigned i = 0; i < 4; i++)
        assert_in_range(drawn[i], 1, 30);
    close_it(&world, &ways[0]);
}

static void test_settings(void **state)
{
    (void)state;
    static const struct {
        const char *mode, *every;
        uint32_t expected;
    } rows[] = {{NULL, NULL, 0}, {"", NULL, 0},          {"off", "5", 0},       {"0", NULL, 0},
                {"on", "5", 1},  {"sampled", NULL, 100}, {"SAMPLED", "5", 5},   {"sampled", "0", 100},
                {"1", NULL, 1},  {"yes", NULL, 1},       {"sometimes", NULL, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_settings settings;
        unsetenv("MC_TE_CHECKSUM");
        unsetenv("MC_TE_CHECKSUM_EVERY");
        if (rows[i].mode != NULL)
            setenv("MC_TE_CHECKSUM", rows[i].mode, 1);
        if (rows[i].every != NULL)
            setenv("MC_TE_CHECKSUM_EVERY", rows[i].every, 1);
        mc_settings_read(&settings);
        assert_int_equal(settings.checksum_every, rows[i].expected);
    }
    unsetenv("MC_TE_CHECKSUM");
    unsetenv("MC_TE_CHECKSUM_EVERY");
}

/* Who is asked for the sum of memory that was freed and is registered still lives, and says nothing. */
static void test_freed(void **state)
{
    (void)state;
    struct world world;
    open_by(&world, &ways[0]);
    struct mc_sum_check check = {0};
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 2 << 20};
    fill(&world, 2 << 20, 6);
    assert_int_equal(run(&world, MC_TRANSFER_WRITE, 0, 2 << 20), 0);
    assert_int_equal(mc_run_sums(far_peer, far_peer->incarnation, &item, 1, &check, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_int_equal(munmap(world.far_memory + 4096, 4096), 0);
    assert_int_equal(mc_run_sums(far_peer, far_peer->incarnation, &item, 1, &check, mc_clock_ns() + 10 * SECOND_NS),
                     MC_TRANSFER_ERR_SOCKET);
    assert_false(check.is_wrong);
    assert_int_equal(run(&world, MC_TRANSFER_WRITE, 8192, 1 << 20), 0);
    close_it(&world, &ways[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flipped), cmocka_unit_test(test_flipped_in_background),
        cmocka_unit_test(test_many),    cmocka_unit_test(test_who_knows_nothing),
        cmocka_unit_test(test_sampled), cmocka_unit_test(test_settings),
        cmocka_unit_test(test_freed),
    };
    find_libc();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
