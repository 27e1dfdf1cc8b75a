/* The memory of a segment: limits, seals, populating, the life of a slot, readers against a writer. */
#include "store/segment/memory_inside.h"
#include "store/segment/pin.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

static struct mc_segment_memory *make(uint64_t capacity)
{
    struct mc_segment_memory *memory;
    assert_int_equal(mc_segment_memory_create(capacity, &memory), 0);
    return memory;
}

static struct mc_wire_commit_item commit_of(uint32_t slot, uint64_t generation)
{
    return (struct mc_wire_commit_item){.slot = slot,
                                        .crc = (uint32_t)generation,
                                        .generation = generation,
                                        .offset = 4096,
                                        .length = 1000,
                                        .hash_low = generation * 3,
                                        .hash_high = generation * 7,
                                        .key_length = 20,
                                        .block_shift = mc_block_shift(1000)};
}

/* What is written of a soft pin, and read again by that clock. */
static void test_pin(void **state)
{
    (void)state;
    const uint64_t day_ms = 86400000, clocks[] = {0, 999, 123456789, 1ull << 38, 268435455000, 1900000000000};
    const uint8_t both = MC_PUT_SOFT_PIN | MC_PUT_HARD_PIN;
    for (unsigned i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        uint64_t left_ms, now_ms = clocks[i];
        uint8_t pin[3] = {1, 2, 3}, flags = mc_pin_write(MC_PUT_SOFT_PIN, day_ms, now_ms, pin);
        assert_int_equal(mc_pin_read(flags, pin, now_ms, &left_ms), MC_PUT_SOFT_PIN);
        assert_true(left_ms <= day_ms && left_ms > day_ms - 1000);
        assert_int_equal(mc_pin_read(flags, pin, now_ms + day_ms - 2000, &left_ms), MC_PUT_SOFT_PIN);
        assert_true(left_ms <= 2000 && left_ms > 1000);
        for (unsigned days = 1; days <= 1000; days++) { /* over, for years */
            assert_int_equal(mc_pin_read(flags, pin, now_ms + days * day_ms, &left_ms), 0);
            assert_int_equal(left_ms, 0);
        }
        flags = mc_pin_write(MC_PUT_SOFT_PIN, UINT64_MAX, now_ms, pin); /* anybody may say anything */
        assert_int_equal(mc_pin_read(flags, pin, now_ms, &left_ms), MC_PUT_SOFT_PIN);
        assert_true(left_ms <= MC_PIN_LEFT_MAX_MS && left_ms > MC_PIN_LEFT_MAX_MS - 1000);
        flags = mc_pin_write(MC_PUT_SOFT_PIN, 0, now_ms, pin); /* it is not said */
        assert_int_equal(flags, MC_PUT_SOFT_PIN);
        assert_int_equal(mc_pin_read(flags, pin, now_ms, &left_ms), MC_PUT_SOFT_PIN);
        assert_int_equal(left_ms, 0);
        flags = mc_pin_write(both, day_ms, now_ms, pin);
        assert_int_equal(mc_pin_read(flags, pin, now_ms, &left_ms), both);
        assert_int_equal(mc_pin_read(flags, pin, now_ms + day_ms, &left_ms), MC_PUT_HARD_PIN);
        assert_int_equal(mc_pin_write(0xff & ~MC_PUT_SOFT_PIN, day_ms, now_ms, pin), MC_PUT_HARD_PIN);
    }
    /* An owner of an earlier release has written its value into a slot where there was an end. */
    uint64_t left_ms;
    const uint8_t stale[3] = {9, 9, 9};
    assert_int_equal(mc_pin_read(MC_PUT_SOFT_PIN, stale, 5000, &left_ms), MC_PUT_SOFT_PIN);
    assert_int_equal(left_ms, 0);
}

/* The slot, and what a master is told of it. */
/* It stands where a pin would, so no pin is read out of it, and no hint out of a pin, whatever its end is. */
static void test_hint_in_flags(void **state)
{
    (void)state;
    static const uint8_t wishes[] = {0, MC_PUT_HARD_PIN, MC_PUT_SOFT_PIN, MC_PUT_SOFT_PIN | MC_PUT_HARD_PIN,
                                     MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN};
    const uint8_t ends[3] = {0xff, 0xff, 0xff};
    uint64_t left_ms;
    for (uint8_t hint = 0; hint <= MC_HINT_PAUSE; hint++) {
        assert_int_equal(mc_pin_hint(mc_pin_hinted(hint)), hint);
        assert_int_equal(mc_pin_read(mc_pin_hinted(hint), ends, 5000, &left_ms), 0);
        assert_int_equal(left_ms, 0);
    }
    assert_int_equal(mc_pin_hint(mc_pin_hinted(3)), 0); /* of a later release */
    for (unsigned i = 0; i < sizeof(wishes); i++) {
        for (uint64_t now_ms = 1; now_ms < 1ull << 40; now_ms *= 3) {
            uint8_t pin[3];
            assert_int_equal(mc_pin_hint(mc_pin_write(wishes[i], 0, now_ms, pin)), 0);
            assert_int_equal(mc_pin_hint(mc_pin_write(wishes[i], 100000, now_ms, pin)), 0);
        }
    }
    for (unsigned flags = 0; flags < 256; flags++) { /* what a writer of any release says with its COMMIT */
        uint8_t pin[3];
        assert_int_equal(mc_pin_hint(mc_pin_write((uint8_t)flags, 0, 5000, pin)), 0);
    }
}

static uint8_t flags_of(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    struct mc_slot copy;
    assert_true(mc_slot_read(&mc_segment_memory_slots(memory)[slot], generation, &copy));
    return copy.flags;
}

/* Of that generation and no other; it ends a soft pin, and leaves what is pinned otherwise as it is. */
static void test_hint_of_a_slot(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(1 << 20);
    struct mc_wire_commit_item commit = commit_of(1, 5);
    commit.flags = MC_PUT_SOFT_PIN;
    commit.pin_ms = 100000;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 4, MC_HINT_DROP), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 6, MC_HINT_DROP), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(mc_segment_memory_hint(memory, 2, 5, MC_HINT_DROP), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(mc_segment_memory_hint(memory, UINT32_MAX, 5, MC_HINT_DROP), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 5, MC_HINT_RESUME), MC_ERR_INVALID_PARAMS);
    assert_int_equal(flags_of(memory, 1, 5) & MC_PUT_SOFT_PIN, MC_PUT_SOFT_PIN);
    for (uint8_t hint = MC_HINT_PAUSE + 1; hint-- > 0;) {
        assert_int_equal(mc_segment_memory_hint(memory, 1, 5, hint), 0);
        assert_int_equal(flags_of(memory, 1, 5), mc_pin_hinted(hint));
    }
    struct mc_content *contents;
    assert_int_equal(mc_segment_memory_hint(memory, 1, 5, MC_HINT_PAUSE), 0);
    assert_int_equal(mc_segment_memory_contents(memory, NULL, &contents), 0); /* its key is none */
    free(contents);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 5, MC_HINT_DROP), MC_ERR_REPLICA_IS_GONE);
    commit.generation = 7; /* another value has no hint */
    commit.flags = MC_PUT_HARD_PIN;
    commit.pin_ms = 0;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 5, MC_HINT_DROP), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 7, MC_HINT_DROP), 0);
    assert_int_equal(flags_of(memory, 1, 7), MC_PUT_HARD_PIN);
    commit.generation = 8;
    commit.flags = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN;
    commit.pin_ms = 100000;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 8, 0), 0);
    assert_int_equal(flags_of(memory, 1, 8) & MC_PIN_FIRM, MC_PIN_FIRM);
    assert_int_equal(mc_segment_memory_hint(memory, 1, 8, MC_HINT_DROP), 0); /* the master's clock is ahead */
    assert_int_equal(flags_of(memory, 1, 8), mc_pin_hinted(MC_HINT_DROP));
    mc_segment_memory_release(memory);
}

/* A firm pin is told longer, never shorter; whoever does not know its bit sees a soft one. */
static void test_firm_pin(void **state)
{
    const uint8_t firm = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN;
    uint64_t left_ms;
    uint8_t pin[3];
    (void)state;
    for (uint64_t now_ms = 5000; now_ms < 6000; now_ms += 111) {
        for (uint64_t ms = 1; ms < 3000; ms += 333) {
            uint8_t flags = mc_pin_write(firm, ms, now_ms, pin);
            assert_int_equal(mc_pin_read(flags, pin, now_ms, &left_ms), firm);
            assert_true(left_ms >= ms + 1000 && left_ms < ms + 2000);
            assert_int_equal(mc_pin_read(flags, pin, now_ms + ms + 999, &left_ms), firm);
            assert_int_equal(mc_pin_read(flags, pin, now_ms + ms + 2000, &left_ms), 0);
            uint8_t to_earlier = flags & (uint8_t)~MC_PIN_FIRM;
            assert_int_equal(mc_pin_read(to_earlier, pin, now_ms, &left_ms), MC_PUT_SOFT_PIN);
        }
    }
    uint8_t flags = mc_pin_write(firm, UINT64_MAX, 5000, pin);
    assert_int_equal(mc_pin_read(flags, pin, 5000, &left_ms), firm);
    /* Firm is what has an end, and no hard one. */
    flags = mc_pin_write(firm, 0, 5000, pin);
    assert_int_equal(mc_pin_read(flags, pin, 5000, &left_ms), MC_PUT_SOFT_PIN);
    flags = mc_pin_write(firm | MC_PUT_HARD_PIN, 1000, 5000, pin);
    assert_int_equal(mc_pin_read(flags, pin, 5000, &left_ms), MC_PUT_HARD_PIN | MC_PUT_SOFT_PIN);
    assert_int_equal(mc_pin_write(MC_PUT_FIRM_PIN, 1000, 5000, pin), 0);
}

static void test_pin_of_a_slot(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    struct mc_wire_commit_item commit = commit_of(3, 10);
    struct mc_slot copy;
    uint64_t left_ms;
    commit.flags = MC_PUT_SOFT_PIN | 0xd0; /* more than there is */
    commit.pin_ms = 60000;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_true(mc_slot_read(&mc_segment_memory_slots(memory)[3], 10, &copy));
    assert_int_equal(mc_pin_read(copy.flags, copy.pin, mc_clock_boot_ms(), &left_ms), MC_PUT_SOFT_PIN);
    assert_true(left_ms > 0 && left_ms <= 60000);
    commit = commit_of(3, 11); /* the next value has none */
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_true(mc_slot_read(&mc_segment_memory_slots(memory)[3], 11, &copy));
    assert_int_equal(mc_pin_read(copy.flags, copy.pin, mc_clock_boot_ms(), &left_ms), 0);
    mc_segment_memory_release(memory);
}

static void test_capacity(void **state)
{
    (void)state;
    static const struct {
        uint64_t wanted, limit, used, available, expected;
        bool limited;
    } rows[] = {
        {0, 0, 0, 0, 0, false},
        {4095, 0, 0, 0, 0, false},
        {4096, 0, 0, 0, 4096, false},
        {10 * MIB + 5, 0, 0, 0, 10 * MIB, false},
        {90 * MIB, 100 * MIB, 0, 0, 90 * MIB / 4096 * 4096, false},
        {91 * MIB, 100 * MIB, 0, 0, 90 * MIB, true},
        {90 * MIB, 200 * MIB, 100 * MIB, 500 * MIB, 90 * MIB, false},
        {90 * MIB, 200 * MIB, 150 * MIB, 500 * MIB, 45 * MIB, true},
        {90 * MIB, 200 * MIB, 0, 50 * MIB, 45 * MIB, true},  /* the machine is tighter */
        {MIB, 100 * MIB, 100 * MIB, 0, 0, true},             /* nothing left */
        {MIB, 100 * MIB, 200 * MIB, 500 * MIB, 0, true},     /* more used than allowed */
        {UINT64_MAX, 0, 0, 0, UINT64_MAX & ~4095ull, false}, /* no limit known: create says no */
        {UINT64_MAX, 0, 0, 100 * MIB, 90 * MIB, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_memory_limits limits = {rows[i].limit, rows[i].used, rows[i].available};
        const char *reason = "unset";
        uint64_t capacity = mc_memory_capacity(rows[i].wanted, &limits, &reason);
        if (capacity != rows[i].expected || (reason != NULL) != rows[i].limited)
            fail_msg("row %zu: %llu, %s", i, (unsigned long long)capacity, reason == NULL ? "-" : reason);
    }
}

static void put_file(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *at = path + 1; *at != 0; at++) {
        if (*at != '/')
            continue;
        *at = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void limits_read(const char *root, struct mc_memory_limits *limits)
{
    char membership[300], mount[300], meminfo[300];
    snprintf(membership, sizeof(membership), "%s/membership", root);
    snprintf(mount, sizeof(mount), "%s/mount", root);
    snprintf(meminfo, sizeof(meminfo), "%s/meminfo", root);
    mc_memory_limits_read_from(membership, mount, meminfo, limits);
}

static void assert_cgroup(const char *root, uint64_t limit, uint64_t used)
{
    struct mc_memory_limits limits;
    limits_read(root, &limits);
    assert_int_equal(limits.cgroup_limit, limit);
    assert_int_equal(limits.cgroup_used, used);
}

static void test_limits(void **state)
{
    (void)state;
    char root[] = "/tmp/mc-limits-XXXXXX", command[64];
    struct mc_memory_limits limits;
    assert_non_null(mkdtemp(root));
    limits_read(root, &limits); /* no files at all */
    assert_int_equal(limits.cgroup_limit, 0);
    assert_int_equal(limits.machine_available, 0);

    put_file(root, "meminfo", "MemTotal:       100 kB\nMemAvailableX:    7 kB\nMemAvailable:     50 kB\n");
    put_file(root, "membership", "garbage\n1:\n0::relative\n0::/a/b\n");
    put_file(root, "mount/a/b/memory.max", "max\n"); /* the limit is further up */
    put_file(root, "mount/a/memory.max", "1000000\n");
    put_file(root, "mount/a/memory.current", "600000\n");
    put_file(root, "mount/a/memory.stat", "anon 5\ninactive_file 100000\n");
    put_file(root, "mount/memory.max", "5000000\n");
    put_file(root, "mount/memory.current", "100\n");
    assert_cgroup(root, 1000000, 500000);
    limits_read(root, &limits);
    assert_int_equal(limits.machine_available, 50 * 1024);

    put_file(root, "mount/memory.current", "4900000\n"); /* larger limit, less left */
    assert_cgroup(root, 5000000, 4900000);

    /* the older interface; the group's own folder is not visible in the container */
    put_file(root, "membership", "5:cpu,cpuacct:/x\n4:blkio,memory:/docker/abc\n3:memoryless:/y\n");
    put_file(root, "mount/memory/memory.limit_in_bytes", "300000\n");
    put_file(root, "mount/memory/memory.usage_in_bytes", "1000\n");
    assert_cgroup(root, 300000, 1000);
    put_file(root, "mount/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* says: none */
    limits_read(root, &limits);
    assert_int_equal(limits.cgroup_limit, 0);

    mc_memory_limits_read(&limits); /* this machine */
    assert_true(limits.machine_available > MIB);
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* Two segments that were set up at the same time were both promised nine tenths of what there was. */
static void test_populating_leaves_room_for_others(void **state)
{
    (void)state;
    struct mc_memory_limits limits = {.machine_available = 129 * MIB};
    assert_true(mc_memory_may_populate(&limits, 0));
    limits.machine_available = 128 * MIB;
    assert_false(mc_memory_may_populate(&limits, 0));
    limits.machine_available = 1024 * MIB;
    assert_true(mc_memory_may_populate(&limits, 15359 * MIB));
    assert_false(mc_memory_may_populate(&limits, 15360 * MIB));
    limits = (struct mc_memory_limits){
        .machine_available = 9000 * MIB, .cgroup_limit = 16384 * MIB, .cgroup_used = 15500 * MIB};
    assert_false(mc_memory_may_populate(&limits, 15000 * MIB));
    assert_true(mc_memory_may_populate(&limits, 1000 * MIB));
    limits = (struct mc_memory_limits){.cgroup_limit = 0}; /* nothing is known */
    assert_true(mc_memory_may_populate(&limits, UINT64_MAX / 2));
    /* What a single one may have (mc_memory_capacity) it gets. */
    limits.machine_available = 10240 * MIB - 9216 * MIB;
    assert_true(mc_memory_may_populate(&limits, 9216 * MIB));
}

static void test_create(void **state)
{
    (void)state;
    struct mc_segment_memory *memory, *other;
    assert_int_equal(mc_segment_memory_create(0, &memory), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_create(4095, &memory), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_create(UINT64_MAX, &memory), MC_ERR_INVALID_PARAMS);
    memory = make(4096);
    other = make(8ull << 30); /* nothing is populated yet: costs address space */
    assert_int_equal(mc_segment_memory_capacity(memory), 4096);
    assert_int_equal(mc_segment_memory_data_size(memory), 4096 + MC_EXTENT_SLACK);
    assert_int_equal(mc_segment_memory_slot_count(memory), MC_SLOT_COUNT_MIN);
    assert_int_equal(mc_segment_memory_slot_count(other), (8ull << 30) / MC_SLOT_BYTES_PER_OBJECT);
    assert_false(mc_id_equal(mc_segment_memory_id(memory), mc_segment_memory_id(other)));
    assert_true(mc_segment_memory_nonce(memory) != 0 &&
                mc_segment_memory_nonce(memory) != mc_segment_memory_nonce(other));
    assert_int_equal(mc_segment_memory_populated(memory), 0);
    assert_int_equal(mc_segment_memory_live(memory), 0);
    mc_segment_memory_retain(memory);
    mc_segment_memory_release(memory);
    assert_int_equal(mc_segment_memory_data(memory)[4095 + MC_EXTENT_SLACK], 0);
    mc_segment_memory_release(memory);
    mc_segment_memory_release(other);
}

/* What a peer that holds the descriptors can do to them. */
static void test_seals(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    int data = mc_segment_memory_data_fd(memory), index = mc_segment_memory_index_fd(memory);
    size_t index_size = MC_INDEX_SLOTS_AT + mc_segment_memory_slot_count(memory) * sizeof(struct mc_slot);
    struct stat status;
    char path[64];
    assert_int_equal(fstat(data, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(fstat(index, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(fcntl(data, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(index, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);

    assert_int_equal(ftruncate(data, 0), -1);
    assert_int_equal(ftruncate(data, (off_t)(64 * MIB)), -1);
    assert_int_equal(fcntl(data, F_ADD_SEALS, F_SEAL_WRITE), -1); /* a peer cannot lock others out */

    snprintf(path, sizeof(path), "/proc/self/fd/%d", index);
    int reopened = open(path, O_RDWR | O_CLOEXEC); /* may be allowed: then the seal holds */
    int tries[2] = {index, reopened};
    for (int i = 0; i < (reopened < 0 ? 1 : 2); i++) {
        assert_int_equal(ftruncate(tries[i], 0), -1);
        assert_ptr_equal(mmap(NULL, index_size, PROT_READ | PROT_WRITE, MAP_SHARED, tries[i], 0), MAP_FAILED);
        assert_int_equal(pwrite(tries[i], "x", 1, 0), -1);
    }
    if (reopened >= 0)
        close(reopened);

    /* peers see what the owner writes, in a map that they cannot make writable */
    uint8_t *peer_index = mmap(NULL, index_size, PROT_READ, MAP_SHARED, index, 0);
    assert_ptr_not_equal(peer_index, MAP_FAILED);
    const struct mc_slot *peer = (const struct mc_slot *)(const void *)(peer_index + MC_INDEX_SLOTS_AT);
    assert_int_equal(mprotect(peer_index, index_size, PROT_READ | PROT_WRITE), -1);
    struct mc_wire_commit_item commit = commit_of(7, 5);
    struct mc_slot copy;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_true(mc_slot_read(&peer[7], 5, &copy));
    assert_int_equal(copy.offset, 4096);
    munmap(peer_index, index_size);

    uint8_t *bytes = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    bytes[77] = 0x5a;
    assert_int_equal(mc_segment_memory_data(memory)[77], 0x5a);
    munmap(bytes, MIB);
    mc_segment_memory_release(memory);
}

/* Looks by name: in a child something else may have come to lie at the same address. */
static bool is_mapped(const char *name)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        found = found || strstr(line, name) != NULL;
    if (file != NULL)
        fclose(file);
    return found || file == NULL;
}

static void test_fork(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    assert_true(is_mapped("memfd:mooncake-data"));
    assert_true(is_mapped("memfd:mooncake-index"));
    int data = mc_segment_memory_data_fd(memory), status;
    pid_t child = fork();
    if (child == 0) {
        bool unmapped = !is_mapped("memfd:mooncake-");
        mc_segment_memory_forked(memory);
        bool is_closed = fcntl(data, F_GETFD) == -1;
        _exit((unmapped ? 0 : 1) + (is_closed ? 0 : 2));
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(fcntl(data, F_GETFD) >= 0);
    mc_segment_memory_release(memory);
}

struct seen {
    _Atomic uint64_t last;
    _Atomic uint32_t calls;
    _Atomic bool fell;
};

static void on_progress(void *context, struct mc_segment_memory *memory, uint64_t populated)
{
    (void)memory;
    struct seen *seen = context;
    if (populated < atomic_load(&seen->last))
        atomic_store(&seen->fell, true);
    atomic_store(&seen->last, populated);
    atomic_fetch_add(&seen->calls, 1);
}

static void test_populate(void **state)
{
    (void)state;
    const uint64_t capacity = 40 * MIB + 4096;
    struct seen seen = {0};
    struct mc_segment_memory *memory = make(capacity);
    assert_int_equal(mc_segment_memory_populate(memory, on_progress, &seen), 0);
    uint64_t end_ms = mc_clock_ms() + 20000;
    while (mc_segment_memory_populated(memory) < capacity && mc_clock_ms() < end_ms)
        usleep(1000);
    mc_segment_memory_populate_stop(memory);
    assert_int_equal(mc_segment_memory_populated(memory), capacity);
    assert_int_equal(atomic_load(&seen.last), capacity);
    assert_false(atomic_load(&seen.fell));
    assert_in_range(atomic_load(&seen.calls), 3, 12);
    struct stat status;
    assert_int_equal(fstat(mc_segment_memory_data_fd(memory), &status), 0);
    assert_true((uint64_t)status.st_blocks * 512 >=
                mc_segment_memory_data_size(memory)); /* real pages, slack included */
    mc_segment_memory_release(memory);

    memory = make(4096); /* smaller than a step, no callback */
    assert_int_equal(mc_segment_memory_populate(memory, NULL, NULL), 0);
    while (mc_segment_memory_populated(memory) < 4096 && mc_clock_ms() < end_ms)
        usleep(1000);
    assert_int_equal(mc_segment_memory_populated(memory), 4096);
    mc_segment_memory_release(memory);
}

/* Whoever has backed what: all before the mark is there, while they work and when they are stopped. */
static void test_several_populate(void **state)
{
    (void)state;
    const uint64_t capacity = 300 * MIB + 4096;
    struct stat status;
    assert_int_equal(setenv("MC_POPULATE_THREADS", "4", 1), 0);
    for (unsigned is_stopped = 0; is_stopped < 2; is_stopped++) {
        struct seen seen = {0};
        struct mc_segment_memory *memory = make(capacity);
        const uint64_t wanted = is_stopped ? 1 : capacity, end_ms = mc_clock_ms() + 20000;
        assert_int_equal(mc_segment_memory_populate(memory, on_progress, &seen), 0);
        while (mc_segment_memory_populated(memory) < wanted && mc_clock_ms() < end_ms)
            usleep(1000);
        mc_segment_memory_populate_stop(memory);
        uint64_t populated = mc_segment_memory_populated(memory);
        assert_true(populated >= wanted);
        assert_true(atomic_load(&seen.last) <= populated); /* it is told from time to time, and at the end */
        assert_true(is_stopped || atomic_load(&seen.last) == populated);
        assert_false(atomic_load(&seen.fell));
        for (uint64_t at = 0; at < populated; at += 4096) {
            unsigned char is_there = 0;
            assert_int_equal(mincore(mc_segment_memory_data(memory) + at, 4096, &is_there), 0);
            assert_int_equal(is_there & 1, 1);
        }
        assert_int_equal(fstat(mc_segment_memory_data_fd(memory), &status), 0);
        if (!is_stopped)
            assert_true((uint64_t)status.st_blocks * 512 >= mc_segment_memory_data_size(memory));
        mc_segment_memory_release(memory);
    }
    assert_int_equal(unsetenv("MC_POPULATE_THREADS"), 0);
}

static void test_populate_stop(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(1ull << 30);
    assert_int_equal(mc_segment_memory_populate(memory, NULL, NULL), 0);
    usleep(20000);
    uint64_t start_ms = mc_clock_ms();
    mc_segment_memory_release(memory);
    assert_in_range(mc_clock_ms() - start_ms, 0, 1000);
}

static void test_slot_life(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    const struct mc_slot *slot = &mc_segment_memory_slots(memory)[3];
    struct mc_slot copy;
    struct mc_wire_commit_item commit = commit_of(3, 0);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE); /* generation 0 is none */
    assert_false(mc_slot_read(slot, 0, &copy));
    commit = commit_of(3, 10);
    commit.replica = MC_REPLICA_LOADED + 1; /* no master gives such a number, and the next would believe nothing here */
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_INVALID_PARAMS);
    commit = commit_of(3, 10);
    assert_int_equal(mc_segment_memory_may_write(memory, 3, 10, 0, 10), 0);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE); /* twice */
    assert_int_equal(mc_segment_memory_may_write(memory, 3, 10, 0, 10), MC_ERR_STALE);
    assert_int_equal(mc_segment_memory_may_write(memory, 3, 11, 0, 10), 0);
    assert_true(mc_slot_read(slot, 10, &copy));
    assert_int_equal(copy.crc, 10);
    assert_int_equal(copy.offset, 4096);
    assert_int_equal(copy.length, 1000);
    assert_int_equal(copy.hash_low, 30);
    assert_int_equal(copy.hash_high, 70);
    assert_int_equal(copy.key_length, 20);
    assert_int_equal(copy.block_shift, MC_BLOCK_SHIFT_MIN);
    assert_false(mc_slot_read(slot, 9, &copy));
    assert_false(mc_slot_read(slot, 11, &copy));
    assert_true(mc_slot_unchanged(slot, 10));
    assert_int_equal(mc_segment_memory_live(memory), 1);

    assert_int_equal(mc_segment_memory_clear(memory, 3, 9), 0); /* an older clear does nothing */
    assert_true(mc_slot_unchanged(slot, 10));
    assert_int_equal(mc_segment_memory_clear(memory, 3, 10), 0);
    assert_false(mc_slot_unchanged(slot, 10));
    assert_false(mc_slot_read(slot, 10, &copy));
    assert_int_equal(mc_segment_memory_live(memory), 0);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE); /* late news */
    assert_int_equal(mc_segment_memory_clear(memory, 3, 10), 0);               /* twice */

    assert_int_equal(mc_segment_memory_clear(memory, 3, 50), 0); /* cut of a grant that never arrived */
    commit = commit_of(3, 50);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE);
    commit = commit_of(3, 51);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    commit = commit_of(3, 52); /* over a live one */
    commit.offset = 0;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    assert_false(mc_slot_unchanged(slot, 51));
    assert_true(mc_slot_read(slot, 52, &copy));
    assert_int_equal(copy.offset, 0);
    assert_int_equal(mc_segment_memory_clear(memory, 3, UINT64_MAX), 0);
    commit = commit_of(3, UINT64_MAX);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE);
    mc_segment_memory_release(memory);
}

/* What no master that we belong to can have granted would keep the slot from all that it does grant. */
static void test_generations_of_nobody(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    const uint64_t first = 7ull << MC_EPOCH_SHIFT, end = first + MC_COUNTER_END;
    const uint64_t refused[] = {first - 1, end, UINT64_MAX}, taken[] = {first, first + 1, end - 1};
    mc_segment_memory_meet(memory, 7);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct mc_wire_commit_item commit = commit_of(3, refused[i]);
        assert_int_equal(mc_segment_memory_may_write(memory, 3, refused[i], 0, 10), MC_ERR_STALE);
        assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE);
    }
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        struct mc_wire_commit_item commit = commit_of(3, taken[i]);
        assert_int_equal(mc_segment_memory_may_write(memory, 3, taken[i], 0, 10), 0);
        assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    }
    mc_segment_memory_meet(memory, 8); /* who carries over into epochs of nobody is followed by one beyond them */
    struct mc_wire_commit_item next = commit_of(3, end);
    assert_int_equal(mc_segment_memory_commit(memory, &next), 0);
    mc_segment_memory_release(memory);
}

/* What a master gave for its epoch is there for who takes the memory up, whole or not at all. */
static void test_proof_of_the_epoch(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    struct mc_index_header *header = memory->file.header;
    struct mc_epoch_proof first = {.epoch = 7, .bytes = {1, 2, 3}}, next = {.epoch = 8, .bytes = {4, [31] = 5}}, kept;
    assert_int_equal(mc_segment_memory_proof(memory).epoch, 0);
    mc_segment_memory_keep_proof(memory, &first); /* it has not met that one */
    assert_int_equal(mc_segment_memory_proof(memory).epoch, 0);
    mc_segment_memory_meet(memory, 7);
    mc_segment_memory_keep_proof(memory, &first);
    mc_segment_memory_keep_proof(memory, &next);
    kept = mc_segment_memory_proof(memory);
    assert_memory_equal(&kept, &first, sizeof(kept));
    mc_segment_memory_meet(memory, 8);
    mc_segment_memory_keep_proof(memory, &next);
    kept = mc_segment_memory_proof(memory);
    assert_memory_equal(&kept, &next, sizeof(kept));
    next.bytes[9] ^= 1; /* by another key */
    mc_segment_memory_keep_proof(memory, &next);
    kept = mc_segment_memory_proof(memory);
    assert_memory_equal(&kept, &next, sizeof(kept));
    atomic_fetch_xor(&header->proof[2], 1);
    assert_int_equal(mc_segment_memory_proof(memory).epoch, 0);
    mc_segment_memory_keep_proof(memory, &next);
    assert_int_equal(mc_segment_memory_proof(memory).epoch, 8);
    mc_segment_memory_release(memory);
}

static void test_bounds(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    uint64_t size = mc_segment_memory_data_size(memory);
    uint32_t slots = mc_segment_memory_slot_count(memory);
    static const uint64_t far[] = {UINT64_MAX, UINT64_MAX - 63, 1ull << 63, 1ull << 40};
    for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
        struct mc_wire_commit_item commit = commit_of(0, 1);
        commit.offset = far[i];
        assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_INVALID_PARAMS);
        commit = commit_of(0, 1);
        commit.length = far[i];
        assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_INVALID_PARAMS);
        assert_int_equal(mc_segment_memory_may_write(memory, 0, 1, far[i], 1), MC_ERR_INVALID_PARAMS);
        assert_int_equal(mc_segment_memory_may_write(memory, 0, 1, 1, far[i]), MC_ERR_INVALID_PARAMS);
    }
    struct mc_wire_commit_item wrong[8];
    for (size_t i = 0; i < 8; i++)
        wrong[i] = commit_of(0, 1);
    wrong[0].slot = slots;
    wrong[1].slot = UINT32_MAX;
    wrong[2].length = 0;
    wrong[3].offset = 4097;
    wrong[4].key_length = 0;
    wrong[5].key_length = MC_KEY_LENGTH_MAX + 1;
    wrong[6].block_shift = MC_BLOCK_SHIFT_MIN + 1;
    wrong[7].offset = size - 1024 + 64; /* data fits, key does not */
    wrong[7].length = 900;
    wrong[7].key_length = 200;
    for (size_t i = 0; i < 8; i++) {
        if (mc_segment_memory_commit(memory, &wrong[i]) != MC_ERR_INVALID_PARAMS)
            fail_msg("commit %zu was not refused", i);
    }
    assert_int_equal(mc_segment_memory_live(memory), 0);
    struct mc_wire_commit_item whole = commit_of(slots - 1, 1); /* as large as the segment, in the last slot */
    whole.offset = 0;
    whole.length = MIB;
    whole.key_length = MC_KEY_LENGTH_MAX;
    whole.block_shift = mc_block_shift(MIB);
    assert_int_equal(mc_segment_memory_commit(memory, &whole), 0);
    assert_int_equal(mc_segment_memory_may_write(memory, 0, 1, 0, size), 0);
    assert_int_equal(mc_segment_memory_may_write(memory, 0, 1, size, 0), 0);
    assert_int_equal(mc_segment_memory_may_write(memory, 0, 1, 1, size), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_may_write(memory, slots, 1, 0, 1), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_clear(memory, slots, 1), MC_ERR_INVALID_PARAMS);
    mc_segment_memory_release(memory);
}

static void test_local_writes(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = make(MIB);
    struct mc_local_write a, b, c;
    assert_int_equal(mc_segment_memory_write_begin(memory, &a, 1, 5, 0, 10, mc_clock_ns() + 1000000000), 0);
    assert_int_equal(mc_segment_memory_write_begin(memory, &b, 1, 7, 0, 10, mc_clock_ns() + 1000000000), 0);
    assert_int_equal(mc_segment_memory_write_begin(memory, &c, 2, 5, 0, 10, mc_clock_ns() + 1000000000), 0);
    assert_false(mc_segment_memory_is_written(memory, 1, 4));
    assert_true(mc_segment_memory_is_written(memory, 1, 5));
    assert_int_equal(mc_segment_memory_clear(memory, 1, 6), 0);
    struct mc_local_write late;
    assert_int_equal(mc_segment_memory_write_begin(memory, &late, 1, 6, 0, 10, mc_clock_ns() + 1000000000),
                     MC_ERR_STALE);
    assert_int_equal(mc_segment_memory_write_begin(memory, &late, UINT32_MAX, 6, 0, 10, mc_clock_ns() + 1000000000),
                     MC_ERR_INVALID_PARAMS);
    mc_segment_memory_write_end(memory, &a);
    assert_false(mc_segment_memory_is_written(memory, 1, 6));
    assert_true(mc_segment_memory_is_written(memory, 1, 7));
    mc_segment_memory_write_end(memory, &c);
    mc_segment_memory_write_end(memory, &b);
    assert_false(mc_segment_memory_is_written(memory, 1, UINT64_MAX));
    mc_segment_memory_release(memory);
}

/* ---- readers against a writer ---- */

struct hammer {
    struct mc_segment_memory *memory;
    _Atomic uint64_t generation; /* the latest that was committed */
    _Atomic bool stop;
    _Atomic uint64_t read, torn;
};

static void *hammer_read(void *argument)
{
    struct hammer *hammer = argument;
    const struct mc_slot *slot = &mc_segment_memory_slots(hammer->memory)[0];
    while (!atomic_load(&hammer->stop)) {
        uint64_t generation = atomic_load(&hammer->generation);
        struct mc_slot copy;
        if (!mc_slot_read(slot, generation, &copy))
            continue;
        atomic_fetch_add(&hammer->read, 1);
        if (copy.crc != (uint32_t)generation || copy.hash_low != generation * 3 || copy.hash_high != generation * 7 ||
            copy.offset != generation % 64 * 64 || copy.length != generation % 500 + 1 ||
            copy.key_length != generation % 100 + 1)
            atomic_fetch_add(&hammer->torn, 1);
    }
    return NULL;
}

static void test_hammer(void **state)
{
    (void)state;
    struct hammer hammer = {.memory = make(MIB)};
    pthread_t readers[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, hammer_read, &hammer), 0);
    uint64_t end_ms = mc_clock_ms() + 1000;
    for (uint64_t generation = 1; mc_clock_ms() < end_ms; generation++) {
        struct mc_wire_commit_item commit = commit_of(0, generation);
        commit.offset = generation % 64 * 64;
        commit.length = generation % 500 + 1;
        commit.key_length = (uint16_t)(generation % 100 + 1);
        if (mc_segment_memory_commit(hammer.memory, &commit) != 0)
            fail_msg("commit %llu", (unsigned long long)generation);
        atomic_store(&hammer.generation, generation);
        if (generation % 3 == 0)
            mc_segment_memory_clear(hammer.memory, 0, generation);
        if (generation % 64 == 0) /* readers do not only see a slot in change */
            usleep(10);
    }
    atomic_store(&hammer.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    assert_true(atomic_load(&hammer.read) > 0);
    assert_int_equal(atomic_load(&hammer.torn), 0);
    mc_segment_memory_release(hammer.memory);
}

static uint64_t index_blocks(const struct mc_segment_memory *memory)
{
    struct stat status;
    assert_int_equal(fstat(mc_segment_memory_index_fd(memory), &status), 0);
    return (uint64_t)status.st_blocks;
}

/* The memory of an index follows its use: nobody who only looks at slots that were never used gives them pages,
 * wherever he looks. */
static void test_index_of_what_is_used(void **state)
{
    (void)state;
    struct mc_segment_memory *memory;
    struct mc_content *contents;
    assert_int_equal(mc_segment_memory_create(1ull << 30, &memory), 0);
    atomic_store(&memory->backed_end, mc_segment_memory_data_size(memory));
    uint32_t count = mc_segment_memory_slot_count(memory);
    struct mc_wire_commit_item commit = {.slot = 3, .generation = 5, .length = 10, .key_length = 5};
    commit.block_shift = mc_block_shift(10);
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    uint64_t before = index_blocks(memory);
    assert_true(before > 0);
    for (uint32_t slot = 64; slot < count; slot += 64) {
        uint64_t at = 0;
        struct mc_slot copy;
        assert_int_equal(mc_segment_memory_may_write(memory, slot, 7, 0, 4096), 0);
        assert_int_equal(mc_segment_memory_verify(memory, slot, 7, &at, 4096), MC_ERR_REPLICA_IS_GONE);
        assert_false(mc_segment_memory_slot_read(memory, slot, 7, &copy));
        commit.slot = slot;
        commit.generation = UINT64_MAX; /* which no master of ours can have granted */
        assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE);
    }
    assert_int_equal(mc_segment_memory_live(memory), 1);
    (void)mc_segment_memory_contents(memory, NULL, &contents);
    free(contents);
    assert_int_equal(index_blocks(memory), before);
    assert_false(mc_segment_memory_slot_read(memory, count, 7, &(struct mc_slot){.crc = 0}));
    commit.slot = 40 * 64;
    commit.generation = 6;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    if (before <= 16 * 4096 / 512) /* else the kernel has backed the index by one huge page */
        assert_in_range(index_blocks(memory), before + 1, before + 2 * 4096 / 512);
    mc_segment_memory_release(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_pin),
        cmocka_unit_test(test_firm_pin),
        cmocka_unit_test(test_hint_in_flags),
        cmocka_unit_test(test_hint_of_a_slot),
        cmocka_unit_test(test_pin_of_a_slot),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_populating_leaves_room_for_others),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_seals),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_populate),
        cmocka_unit_test(test_proof_of_the_epoch),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_several_populate),
        cmocka_unit_test(test_populate_stop),
        cmocka_unit_test(test_slot_life),
        cmocka_unit_test(test_generations_of_nobody),
        cmocka_unit_test(test_hammer),
        cmocka_unit_test(test_local_writes),
        cmocka_unit_test(test_index_of_what_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
