/* Segments in named files: taken up again, by whom, and what damaged or foreign files do. Contents and checksums. */
#include "store/segment/memory_inside.h"
#include "env/clock.h"
#include "env/log.h"
#include "object_make.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define CAPACITY (4 * MIB)
#define EPOCH 7ull
#define GENERATION (EPOCH << MC_EPOCH_SHIFT)

static char directory[64];

static int setup(void **state)
{
    (void)state;
    snprintf(directory, sizeof(directory), "/tmp/mc-files-XXXXXX");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    return system(command);
}

static struct mc_segment_memory *open_named(const char *name, uint64_t capacity, bool expected)
{
    struct mc_segment_memory *memory;
    bool contents;
    assert_int_equal(
        mc_segment_memory_open(directory, name, capacity, mc_clock_ns() + 10000000000ull, false, &memory, &contents),
        0);
    assert_int_equal(contents, expected);
    return memory;
}

static struct mc_segment_left left_behind(const char *where, uint64_t capacity_max, uint64_t until_ns)
{
    struct mc_segment_left left;
    assert_int_equal(mc_segment_left_behind(where, capacity_max, until_ns, &left), 0);
    return left;
}

static void test_what_is_left_is_room(void **state)
{
    const char *reason;
    struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
    (void)state;
    assert_int_equal(left_behind(directory, UINT64_MAX - 1, 0).capacity, 0); /* its process lives */
    mc_segment_memory_release(memory);
    assert_int_equal(left_behind(directory, UINT64_MAX - 1, 0).capacity, CAPACITY);
    assert_int_equal(left_behind(directory, CAPACITY, 0).capacity, CAPACITY);
    assert_true(left_behind(directory, CAPACITY, 0).bytes <= 2 * CAPACITY);
    assert_int_equal(left_behind(directory, CAPACITY - 1, 0).capacity, 0);
    assert_int_equal(left_behind("/nowhere", CAPACITY, 0).capacity, 0);
    memory = open_named("b", CAPACITY, false);
    assert_int_equal(left_behind(directory, CAPACITY, 0).capacity, 0); /* the same one, taken up again */
    mc_segment_memory_release(memory);

    /* A segment of 8 of 10 was populated: 2 are left. */
    struct mc_memory_limits limits = {.machine_available = 2 * MIB};
    struct mc_segment_left left = {8 * MIB, 8 * MIB}, none = {0, 0};
    assert_int_equal(mc_memory_capacity_with(&left, 8 * MIB, &limits, &reason), 8 * MIB);
    assert_null(reason);
    assert_true(mc_memory_capacity_with(&none, 8 * MIB, &limits, &reason) < 2 * MIB);
    assert_non_null(reason);
    limits.machine_available = MIB / 2; /* a tenth would stay free, but it is there already */
    assert_int_equal(mc_memory_capacity_with(&left, 8 * MIB, &limits, &reason), 8 * MIB);
    assert_null(reason);
    /* It was limited at its first start: the same size again, though the limit is a little another now. */
    limits.machine_available = 3 * MIB;
    assert_int_equal(mc_memory_capacity_with(&left, 50 * MIB, &limits, &reason), 8 * MIB);
    assert_non_null(reason);
    limits.machine_available = 30 * MIB; /* far more could be had */
    assert_true(mc_memory_capacity_with(&left, 50 * MIB, &limits, &reason) > 30 * MIB);
    /* The limit of a group counts it as well. */
    limits = (struct mc_memory_limits){.cgroup_limit = 10 * MIB, .cgroup_used = 9 * MIB};
    assert_int_equal(mc_memory_capacity_with(&left, 8 * MIB, &limits, &reason), 8 * MIB);
    left.bytes = 2 * MIB; /* most of it was never populated, and there is no room for that now */
    assert_true(mc_memory_capacity_with(&left, 8 * MIB, &limits, &reason) < 3 * MIB);
}

/* The cluster is as durable as the contents; the half of an id is none. */
static void test_the_cluster_is_kept(void **state)
{
    const struct mc_id cluster = {11, 22};
    (void)state;
    struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
    assert_true(mc_id_is_zero(mc_segment_memory_cluster(memory)));
    mc_segment_memory_set_cluster(memory, cluster);
    mc_segment_memory_release(memory);
    memory = open_named("a", CAPACITY, false);
    assert_true(mc_id_equal(mc_segment_memory_cluster(memory), cluster));
    atomic_store(&memory->file.header->cluster[1], 23);
    assert_true(mc_id_is_zero(mc_segment_memory_cluster(memory)));
    mc_segment_memory_set_cluster(memory, (struct mc_id){0, 0});
    assert_true(mc_id_is_zero(mc_segment_memory_cluster(memory)));
    mc_segment_memory_release(memory);
}

static void populate(struct mc_segment_memory *memory)
{
    assert_int_equal(mc_segment_memory_populate(memory, NULL, NULL), 0);
    for (int i = 0; i < 10000 && mc_segment_memory_populated(memory) < mc_segment_memory_capacity(memory); i++)
        usleep(1000);
    mc_segment_memory_populate_stop(memory);
    assert_int_equal(mc_segment_memory_populated(memory), mc_segment_memory_capacity(memory));
}

/* An object as a writer lays it out; its key follows from the slot. */
static void put(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t length)
{
    char key[32];
    snprintf(key, sizeof(key), "key-%u", slot);
    assert_int_equal(
        object_make_as(memory, slot, generation, offset, length, key, (uint8_t)(slot % 4), (uint8_t)(slot % 3)), 0);
}

/* A named segment with four objects, let go as by a death. */
static struct mc_id make_and_leave(const char *name, uint64_t capacity)
{
    struct mc_segment_memory *memory = open_named(name, capacity, false);
    assert_true(mc_segment_memory_is_named(memory));
    struct mc_id id = mc_segment_memory_id(memory);
    populate(memory);
    mc_segment_memory_set_epoch(memory, EPOCH);
    mc_segment_memory_set_contact_ms(memory, mc_clock_boot_ms());
    mc_segment_memory_set_contact_at_ms(memory, 7654);
    put(memory, 9, GENERATION + 1, 0, 1000);
    put(memory, 2, GENERATION + 2, MIB, 200000);
    put(memory, 0, GENERATION + 3, 2 * MIB, 1);
    put(memory, 4095 < mc_segment_memory_slot_count(memory) ? 4095 : 1, GENERATION + 4, 3 * MIB, MIB);
    mc_segment_memory_release(memory);
    return id;
}

/* Of a contact that an owner without the field has moved on, or of another epoch, no age is known. */
static void test_age_at_the_contact(void **state)
{
    (void)state;
    (void)make_and_leave("aged:1", CAPACITY);
    for (unsigned how = 0; how < 3; how++) {
        struct mc_segment_memory *memory = open_named("aged:1", CAPACITY, true);
        uint64_t contact_ms = mc_segment_memory_contact_ms(memory);
        if (how == 0)
            mc_segment_memory_set_contact_ms(memory, contact_ms + 1);
        if (how == 1)
            mc_segment_memory_set_epoch(memory, EPOCH + 1);
        if (how == 2)
            atomic_store(&memory->file.header->contact_at_ms, 7655);
        assert_int_equal(mc_segment_memory_contact_at_ms(memory), 0);
        mc_segment_memory_set_contact_at_ms(memory, 7656);
        assert_int_equal(mc_segment_memory_contact_at_ms(memory), 7656);
        mc_segment_memory_release(memory);
    }
}

static int64_t count_contents(struct mc_segment_memory *memory)
{
    struct mc_content *contents;
    int64_t count = mc_segment_memory_contents(memory, NULL, &contents);
    free(contents);
    return count;
}

static void file_path(char *path, size_t size, const char *name, const char *ending)
{
    snprintf(path, size, "%s/%s%s", directory, name, ending);
}

static bool exists(const char *name, const char *ending)
{
    char path[128];
    file_path(path, sizeof(path), name, ending);
    return access(path, F_OK) == 0;
}

static void flip(const char *name, const char *ending, uint64_t offset)
{
    char path[128];
    uint8_t byte;
    file_path(path, sizeof(path), name, ending);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static void test_taken_up(void **state)
{
    (void)state;
    struct mc_id id = make_and_leave("host:1234", CAPACITY);
    struct mc_segment_memory *memory = open_named("host:1234", CAPACITY, true);
    static const struct {
        uint32_t slot;
        uint64_t generation, offset, length;
    } rows[] = {{9, 1, 0, 1000}, {2, 2, MIB, 200000}, {0, 3, 2 * MIB, 1}, {4095, 4, 3 * MIB, MIB}};
    struct mc_content *contents;
    assert_true(mc_id_equal(mc_segment_memory_id(memory), id));
    assert_int_equal(mc_segment_memory_epoch(memory), EPOCH);
    assert_int_equal(mc_segment_memory_populated(memory), CAPACITY);
    assert_in_range(mc_clock_boot_ms() - mc_segment_memory_contact_ms(memory), 0, 10000);
    assert_int_equal(mc_segment_memory_contact_at_ms(memory), 7654);
    assert_int_equal(mc_segment_memory_slot_top(memory), 4096);
    assert_int_equal(mc_segment_memory_contents(memory, NULL, &contents), 4);
    for (size_t i = 0; i < 4; i++) {
        char key[32];
        uint64_t at = 0;
        snprintf(key, sizeof(key), "key-%u", rows[i].slot);
        assert_int_equal(contents[i].state, 1);
        assert_int_equal(contents[i].slot, rows[i].slot);
        assert_int_equal(contents[i].generation, GENERATION + rows[i].generation);
        assert_int_equal(contents[i].offset, rows[i].offset);
        assert_int_equal(contents[i].length, rows[i].length);
        assert_int_equal(contents[i].flags, rows[i].slot % 4);
        assert_int_equal(contents[i].replica, rows[i].slot % 3);
        assert_int_equal(contents[i].key_length, strlen(key));
        assert_memory_equal(contents[i].key, key, strlen(key));
        assert_int_equal(
            mc_segment_memory_verify(memory, contents[i].slot, contents[i].generation, &at, UINT64_MAX / 2), 0);
    }
    free(contents);
    populate(memory); /* does not fall back */
    mc_segment_memory_release(memory);

    memory = open_named("other:99", CAPACITY, true); /* another name, same size */
    assert_true(mc_id_equal(mc_segment_memory_id(memory), id));
    struct mc_segment_memory *second = open_named("host:1234", CAPACITY, false); /* held: one of its own */
    assert_true(mc_segment_memory_is_named(second));
    assert_false(mc_id_equal(mc_segment_memory_id(second), id));
    mc_segment_memory_discard(second);
    mc_segment_memory_release(second);
    mc_segment_memory_discard(memory);
    assert_int_equal(count_contents(memory), 4); /* only its name is gone */
    mc_segment_memory_release(memory);
    assert_false(exists("host_1234", ".index") || exists("host_1234", ".data") || exists("host_1234.1", ".index"));
    memory = open_named("host:1234", CAPACITY, false);
    mc_segment_memory_release(memory);
}

/* However many descriptors are missing: what a process has not got says nothing of the files. A start takes up what was
 * left, or fails; later another memory may do. */
static void test_no_descriptors(void **state)
{
    struct rlimit before, few;
    (void)state;
    struct mc_segment_memory *memory;
    struct mc_id id = make_and_leave("a", CAPACITY);
    unsigned failed = 0, passed_over = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(0);
    close(next);
    for (unsigned i = 0; i < 24; i++) {
        bool contents = false, may_pass_over = i % 2 == 1;
        few = (struct rlimit){.rlim_cur = (rlim_t)next + i / 2, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = mc_segment_memory_open(directory, "a", CAPACITY, mc_clock_ns() + 10000000000ull, may_pass_over,
                                        &memory, &contents);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        failed += rc != 0;
        passed_over += rc == 0 && !contents;
        assert_true(rc != 0 || contents || may_pass_over);
        if (rc == 0)
            mc_segment_memory_release(memory);
    }
    assert_true(failed > 2 && passed_over > 0);
    memory = open_named("a", CAPACITY, true);
    assert_true(mc_id_equal(mc_segment_memory_id(memory), id));
    mc_segment_memory_release(memory);
}

/* Neither is a segment of another capacity made then, beside one that could not be seen. */
static void test_no_descriptors_to_look_by(void **state)
{
    const struct mc_memory_limits limits = {.machine_available = CAPACITY};
    struct rlimit before, few;
    (void)state;
    (void)make_and_leave("a", CAPACITY);
    unsigned failed = 0, seen = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(0);
    close(next);
    for (unsigned i = 0; i < 12; i++) {
        const char *reason;
        uint64_t capacity;
        few = (struct rlimit){.rlim_cur = (rlim_t)next + i, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = mc_memory_capacity_in(directory, CAPACITY + CAPACITY / 2, &limits, mc_clock_ns() + 10000000000ull,
                                       &capacity, &reason);
        int error = errno;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        failed += rc == MC_ERR_FILE_OPEN_FAIL && error == EMFILE;
        seen += rc == 0;
        assert_int_equal(capacity, rc == 0 ? CAPACITY : 0);
    }
    assert_true(failed > 2 && seen > 2 && failed + seen == 12);
}

static void test_other_capacity(void **state)
{
    (void)state;
    struct mc_id id = make_and_leave("a", CAPACITY);
    struct mc_segment_memory *memory = open_named("a", CAPACITY + MIB, false);
    assert_true(mc_segment_memory_is_named(memory));
    assert_true(exists("a", ".index") && exists("a.1", ".index")); /* somebody may still come for it */
    mc_segment_memory_release(memory);
    memory = open_named("a", CAPACITY, true);
    assert_true(mc_id_equal(mc_segment_memory_id(memory), id));
    mc_segment_memory_release(memory);
}

/* Every byte of the header: either it is not believed, or nothing that it says leads astray. */
static void test_header_flipped(void **state)
{
    (void)state;
    struct mc_id id = make_and_leave("a", CAPACITY);
    for (uint64_t offset = 0; offset < sizeof(struct mc_index_header); offset++) {
        flip("a", ".index", offset);
        struct mc_segment_memory *memory;
        bool contents;
        assert_int_equal(mc_segment_memory_open(directory, "a", CAPACITY, 0, false, &memory, &contents), 0);
        bool same = mc_id_equal(mc_segment_memory_id(memory), id);
        if (offset < offsetof(struct mc_index_header, populated))
            assert_false(same);
        if (same)
            assert_in_range(count_contents(memory), 0, 4);
        else
            assert_false(contents);
        if (same && offset / 8 == offsetof(struct mc_index_header, slot_top) / 8)
            assert_int_equal(count_contents(memory), 4);
        mc_segment_memory_discard(memory);
        mc_segment_memory_release(memory);
        id = make_and_leave("a", CAPACITY);
    }
}

static void rewrite_header(void (*change)(struct mc_index_header *header))
{
    union {
        struct mc_index_header header;
        uint8_t bytes[MC_INDEX_SLOTS_AT];
    } page;
    char path[128];
    file_path(path, sizeof(path), "a", ".index");
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, page.bytes, sizeof(page.bytes), 0), sizeof(page.bytes));
    change(&page.header);
    page.header.checksum = mc_hash(&page.header, offsetof(struct mc_index_header, checksum)).low;
    assert_int_equal(pwrite(fd, page.bytes, sizeof(page.bytes), 0), sizeof(page.bytes));
    close(fd);
}

static void other_boot(struct mc_index_header *header)
{
    header->boot.low++;
}
static void other_version(struct mc_index_header *header)
{
    header->version++;
}
static void more_slots(struct mc_index_header *header)
{
    header->slot_count *= 2;
}
static void more_data(struct mc_index_header *header)
{
    header->data_size += 4096;
}

/* Headers that are whole but not for us. */
static void test_header_foreign(void **state)
{
    (void)state;
    static void (*const changes[])(struct mc_index_header *) = {other_boot, other_version, more_slots, more_data};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct mc_id id = make_and_leave("a", CAPACITY);
        rewrite_header(changes[i]);
        struct mc_segment_memory *memory = open_named("b", CAPACITY, false);
        assert_false(mc_id_equal(mc_segment_memory_id(memory), id));
        assert_false(exists("a", ".index") || exists("a", ".data") || exists("a", ".writers"));
        mc_segment_memory_discard(memory);
        mc_segment_memory_release(memory);
    }
}

static void test_cut_short(void **state)
{
    (void)state;
    static const char *const endings[] = {".data", ".index", ".writers"};
    static const int sizes[] = {0, 1, 4096, 65536, -1};
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 5; j++) {
            char path[128];
            struct mc_id id = make_and_leave("a", CAPACITY);
            file_path(path, sizeof(path), "a", endings[i]);
            assert_int_equal(sizes[j] < 0 ? unlink(path) : truncate(path, sizes[j]), 0);
            struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
            assert_true(mc_segment_memory_is_named(memory));
            assert_false(mc_id_equal(mc_segment_memory_id(memory), id));
            populate(memory);
            put(memory, 1, GENERATION, 0, 5000);
            mc_segment_memory_discard(memory);
            mc_segment_memory_release(memory);
        }
    }
}

/* Punched out: the size is right, the blocks are not there. What was there is dropped; nothing faults. */
static void test_holes(void **state)
{
    (void)state;
    char path[128];
    (void)make_and_leave("a", CAPACITY);
    file_path(path, sizeof(path), "a", ".data");
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, (off_t)(CAPACITY + MC_EXTENT_SLACK)), 0);
    struct mc_segment_memory *memory = open_named("a", CAPACITY, true);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_true((uint64_t)status.st_blocks * 512 >= CAPACITY + MC_EXTENT_SLACK);
    assert_int_equal(count_contents(memory), 0);
    assert_int_equal(mc_segment_memory_live(memory), 0);
    mc_segment_memory_release(memory);
}

static uint64_t slot_at(uint32_t slot, size_t field)
{
    return MC_INDEX_SLOTS_AT + slot * sizeof(struct mc_slot) + field;
}

static void test_slots_flipped(void **state)
{
    (void)state;
    const struct {
        const char *ending;
        uint64_t offset;
        int64_t left;
    } rows[] = {
        {".data", MIB + mc_key_offset(200000), 3}, /* the key of slot 2 */
        {".index", slot_at(2, offsetof(struct mc_slot, hash_low)), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, key_length) + 1), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, length) + 7), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, length)), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, offset) + 7), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, offset) + 1), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, block_shift)), 3},
        {".index", slot_at(2, offsetof(struct mc_slot, state)), 3},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        (void)make_and_leave("a", CAPACITY);
        flip("a", rows[i].ending, rows[i].offset);
        struct mc_segment_memory *memory = open_named("a", CAPACITY, true);
        if (count_contents(memory) != rows[i].left)
            fail_msg("row %zu", i);
        assert_int_equal(mc_segment_memory_live(memory), rows[i].left);
        assert_int_equal(count_contents(memory), rows[i].left);
        mc_segment_memory_discard(memory);
        mc_segment_memory_release(memory);
    }
}

static void test_overlap(void **state)
{
    (void)state;
    struct mc_segment_memory *memory;
    struct mc_content *contents;
    struct mc_local_write write;
    assert_int_equal(mc_segment_memory_create(CAPACITY, &memory), 0);
    struct mc_id owner = {5, 6};
    mc_segment_memory_set_owner(memory, owner, 1);
    put(memory, 1, 10, 0, 1000);
    put(memory, 2, 11, MIB, 100000);
    put(memory, 3, 12, MIB + 64 * 200, 100); /* inside of 2 */
    put(memory, 2, 13, MIB, 100);            /* 2 again, without its end: both whole */
    assert_int_equal(count_contents(memory), 3);
    put(memory, 4, 14, 2 * MIB, 100000);
    put(memory, 5, 15, 2 * MIB + 64, 10); /* damages nothing that 4's key would show */
    put(memory, 6, 16, 2 * MIB + 128000, 10);
    assert_int_equal(mc_segment_memory_contents(memory, NULL, &contents), 4);
    assert_int_equal(contents[3].slot, 6);
    free(contents);
    uint64_t soon = mc_clock_ns() + 1000000000;
    assert_int_equal(mc_segment_memory_write_begin(memory, &write, 7, 17, 2 * MIB + 128000, 4096, soon), 0);
    assert_int_equal(mc_segment_memory_contents(memory, NULL, &contents), 4); /* over 6, which goes */
    assert_int_equal(contents[3].slot, 7);
    assert_int_equal(contents[3].state, 2);
    assert_int_equal(contents[3].length, 4096);
    assert_true(mc_id_equal(contents[3].writer, owner));
    free(contents);
    put(memory, 7, 17, 2 * MIB + 128000, 10); /* committed before its end */
    assert_int_equal(mc_segment_memory_contents(memory, NULL, &contents), 4);
    assert_int_equal(contents[3].state, 1);
    free(contents);
    mc_segment_memory_write_end(memory, &write);
    mc_segment_memory_release(memory);
}

static void test_epoch(void **state)
{
    (void)state;
    struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
    struct mc_local_write write;
    uint64_t soon = mc_clock_ns() + 1000000000;
    populate(memory);
    put(memory, 1, GENERATION - 1, 0, 100); /* never mounted: no floor */
    mc_segment_memory_set_epoch(memory, EPOCH);
    mc_segment_memory_set_epoch(memory, EPOCH - 1); /* never falls */
    assert_int_equal(mc_segment_memory_epoch(memory), EPOCH);
    struct mc_wire_commit_item commit = {.slot = 2,
                                         .generation = GENERATION - 1,
                                         .length = 10,
                                         .key_length = 3,
                                         .offset = 4096,
                                         .block_shift = MC_BLOCK_SHIFT_MIN};
    for (int round = 0; round < 2; round++) { /* the second time after a restart */
        assert_int_equal(mc_segment_memory_commit(memory, &commit), MC_ERR_STALE);
        assert_int_equal(mc_segment_memory_may_write(memory, 2, GENERATION - 1, 4096, 64), MC_ERR_STALE);
        assert_int_equal(mc_segment_memory_may_write(memory, 2, GENERATION, 4096, 64), 0);
        assert_int_equal(mc_segment_memory_write_begin(memory, &write, 2, GENERATION - 1, 4096, 64, soon),
                         MC_ERR_STALE);
        assert_int_equal(count_contents(memory), 1); /* what was there stays */
        mc_segment_memory_release(memory);
        memory = open_named("a", CAPACITY, true);
    }
    commit.generation = GENERATION;
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    mc_segment_memory_release(memory);
}

static void test_verify(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 65536, 65537, 3 * MIB + 5};
    struct mc_segment_memory *memory;
    assert_int_equal(mc_segment_memory_create(CAPACITY, &memory), 0);
    uint8_t *data = mc_segment_memory_data(memory);
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t length = lengths[i], at = 0, steps = 1,
                 places[] = {0, length / 2, length - 1, mc_table_offset(length)};
        put(memory, 1, 10 + i, 0, length);
        while (mc_segment_memory_verify(memory, 1, 10 + i, &at, 200000) == 1)
            steps++;
        assert_int_equal(steps, (mc_block_count(length, MC_BLOCK_SHIFT_MIN) + 2) / 3);
        at = 0;
        assert_int_equal(mc_segment_memory_verify(memory, 1, 10 + i, &at, 1), length > 65536 ? 1 : 0);
        for (size_t j = 0; j < (mc_table_length(length, MC_BLOCK_SHIFT_MIN) > 0 ? 4 : 3); j++) {
            int rc;
            data[places[j]] ^= 1;
            at = 0;
            while ((rc = mc_segment_memory_verify(memory, 1, 10 + i, &at, 100000)) == 1)
                ;
            assert_int_equal(rc, MC_ERR_CHECKSUM_MISMATCH);
            data[places[j]] ^= 1;
        }
        at = 0;
        assert_int_equal(mc_segment_memory_verify(memory, 1, 9 + i, &at, MIB), MC_ERR_REPLICA_IS_GONE);
    }
    uint64_t at = 0;
    assert_int_equal(mc_segment_memory_verify(memory, UINT32_MAX, 9, &at, MIB), MC_ERR_REPLICA_IS_GONE);
    at = UINT64_MAX; /* no place at all: nothing is read */
    assert_int_equal(mc_segment_memory_verify(memory, 1, 13, &at, MIB), 0);
    mc_segment_memory_release(memory);
}

/* Two living processes never have one segment. */
static void test_two_processes(void **state)
{
    (void)state;
    int status, ready[2], go[2];
    char byte = 0;
    struct mc_id id = make_and_leave("a", CAPACITY);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) {
        struct mc_segment_memory *memory;
        bool contents;
        if (mc_segment_memory_open(directory, "a", CAPACITY, mc_clock_ns() + 10000000000ull, false, &memory,
                                   &contents) != 0 ||
            !contents)
            _exit(1);
        (void)!write(ready[1], "x", 1);
        close(go[1]);
        (void)!read(go[0], &byte, 1);
        _exit(mc_id_equal(mc_segment_memory_id(memory), id) ? 0 : 2);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
    assert_true(mc_segment_memory_is_named(memory));
    assert_false(mc_id_equal(mc_segment_memory_id(memory), id));
    mc_segment_memory_discard(memory);
    mc_segment_memory_release(memory);
    close(go[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    memory = open_named("a", CAPACITY, true);
    assert_true(mc_id_equal(mc_segment_memory_id(memory), id));
    mc_segment_memory_release(memory);
    close(ready[0]);
    close(ready[1]);
    close(go[0]);
}

/* A process that was stopped while it is at work there: nobody waits for it beyond his time, nor loses what lies there.
 */
static void test_directory_at_work(void **state)
{
    (void)state;
    struct mc_segment_memory *memory;
    bool contents;
    char path[80];
    struct mc_id left = make_and_leave("a", CAPACITY);
    snprintf(path, sizeof(path), "%s/.lock", directory);
    int lock = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    for (uint64_t wait_ns = 0; wait_ns <= 20000000; wait_ns += 10000000) {
        uint64_t until_ns = mc_clock_ns() + wait_ns;
        assert_int_equal(left_behind(directory, CAPACITY, until_ns).capacity, 0);
        assert_true(mc_clock_ns() >= until_ns);
        assert_int_equal(mc_segment_memory_open(directory, "a", CAPACITY, until_ns, false, &memory, &contents), 0);
        assert_false(contents);
        assert_false(mc_segment_memory_is_named(memory));
        put(memory, 1, 5, 0, 100);
        mc_segment_memory_release(memory);
    }
    close(lock);
    memory = open_named("a", CAPACITY, true);
    assert_true(mc_id_equal(mc_segment_memory_id(memory), left));
    mc_segment_memory_release(memory);
}

static void test_fallback(void **state)
{
    (void)state;
    struct mc_segment_memory *memory;
    bool contents;
    static const char *const bad[] = {"/proc/nowhere", "/dev/null", "/nonexistent/deep/er", "/proc"};
    char long_path[2000];
    memset(long_path, 'x', sizeof(long_path));
    long_path[0] = '/';
    long_path[sizeof(long_path) - 1] = 0;
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(
            mc_segment_memory_open(i < 4 ? bad[i] : long_path, "a", CAPACITY, 0, false, &memory, &contents), 0);
        assert_false(contents);
        assert_false(mc_segment_memory_is_named(memory));
        put(memory, 1, 5, 0, 100);
        mc_segment_memory_discard(memory); /* nothing to do */
        mc_segment_memory_release(memory);
    }
    assert_int_equal(mc_segment_memory_open(NULL, "a", CAPACITY, 0, false, &memory, &contents), 0);
    assert_false(mc_segment_memory_is_named(memory));
    mc_segment_memory_release(memory);
    assert_int_equal(mc_segment_memory_open(directory, "a", 0, 0, false, &memory, &contents), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_segment_memory_open(directory, "a", UINT64_MAX, 0, false, &memory, &contents),
                     MC_ERR_INVALID_PARAMS);
    /* More than the file system has: populating says so, and what is not there is not touched. */
    memory = open_named("../../etc/passwd", 1ull << 30, false);
    assert_true(exists("_._.._etc_passwd", ".index") || mc_segment_memory_is_named(memory));
    assert_int_equal(mc_segment_memory_may_write(memory, 1, 5, 0, 64), MC_ERR_INVALID_PARAMS);
    mc_segment_memory_discard(memory);
    mc_segment_memory_release(memory);
}

/* A file system that is too small for the index says so, and memory takes its place. */
static void test_no_room(void **state)
{
    (void)state;
    struct statvfs room;
    struct mc_segment_memory *memory = NULL;
    bool contents;
    char path[] = "/dev/shm/mc-files-XXXXXX", lock[64];
    const uint64_t capacity = 4ull << 40;
#ifdef __SANITIZE_THREAD__
    skip(); /* TSan leaves no address range of that length */
#endif
    if (mkdtemp(path) == NULL)
        skip();
    bool is_small = statvfs(path, &room) == 0 && (uint64_t)room.f_blocks * room.f_frsize < capacity / 64;
    int rc = is_small ? mc_segment_memory_open(path, "a", capacity, 0, false, &memory, &contents) : 0;
    snprintf(lock, sizeof(lock), "%s/.lock", path);
    (void)unlink(lock);
    assert_int_equal(rmdir(path), 0); /* nothing was left behind */
    if (!is_small)
        skip();
    assert_int_equal(rc, 0);
    assert_false(mc_segment_memory_is_named(memory));
    mc_segment_memory_release(memory);
}

/* A link in the place of a file leads nowhere. */
static void test_links(void **state)
{
    (void)state;
    char path[128], victim[128];
    struct stat status;
    file_path(victim, sizeof(victim), "victim", "");
    int fd = open(victim, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, "mine", 4), 4);
    close(fd);
    file_path(path, sizeof(path), "a", ".index");
    assert_int_equal(symlink(victim, path), 0);
    file_path(path, sizeof(path), "a.1", ".data");
    assert_int_equal(symlink(victim, path), 0);
    struct mc_segment_memory *memory = open_named("a", CAPACITY, false);
    populate(memory);
    put(memory, 1, 5, 0, 100);
    mc_segment_memory_release(memory);
    assert_int_equal(stat(victim, &status), 0);
    assert_int_equal(status.st_size, 4);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_left_is_room),
        TEST(test_the_cluster_is_kept),
        TEST(test_taken_up),
        TEST(test_no_descriptors),
        TEST(test_no_descriptors_to_look_by),
        TEST(test_age_at_the_contact),
        TEST(test_other_capacity),
        TEST(test_header_flipped),
        TEST(test_header_foreign),
        TEST(test_cut_short),
        TEST(test_holes),
        TEST(test_slots_flipped),
        TEST(test_overlap),
        TEST(test_epoch),
        TEST(test_verify),
        TEST(test_two_processes),
        TEST(test_directory_at_work),
        TEST(test_fallback),
        TEST(test_links),
        TEST(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
