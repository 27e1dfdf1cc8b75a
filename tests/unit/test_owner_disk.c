/* What an owner does with a disk whose journal breaks: nothing that was to be removed, or was not wanted, may be there
 * for the next master. The master is the test's. */
#include "store/owner/inside.h"
#include "owner_rig.h"

#include "store/disk/disk.h"
#include "mooncake.h"

#include <fcntl.h>
#include <ftw.h>

#define DISK_BYTES (256 * MIB)
#define DISK_SEGMENT 9u
#define SLOT 5u
#define OTHER_SLOT 6u
#define LENGTH 3000u
#define CONTENTS_EPOCH 2u
#define GENERATION (((uint64_t)CONTENTS_EPOCH << MC_EPOCH_SHIFT) + 1)

static char parent[64], folder[80], other_folder[80];
static uint64_t budget_bytes; /* of the first */

static int open_folder(void **state)
{
    (void)state;
    snprintf(parent, sizeof(parent), "/dev/shm/mc-owner-disk-XXXXXX");
    assert_non_null(mkdtemp(parent));
    snprintf(folder, sizeof(folder), "%s/one", parent);
    snprintf(other_folder, sizeof(other_folder), "%s/other", parent);
    return mkdir(folder, 0700) | mkdir(other_folder, 0700);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static int close_folder(void **state)
{
    (void)state;
    return nftw(parent, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- what lies there ---- */

static _Atomic int answered; /* 1: not yet */

static void on_ready(void *context, int code, uint32_t objects)
{
    (void)context, (void)objects;
    answered = code;
}
static void on_stored(void *context, int code, uint32_t slot)
{
    (void)context, (void)slot;
    answered = code;
}
static void on_done(void *context, int code)
{
    (void)context;
    answered = code;
}

static void await_answer(int rc)
{
    assert_int_equal(rc, 0);
    for (uint64_t end_ns = soon(); answered == 1 && mc_clock_ns() < end_ns;)
        usleep(1000);
    assert_int_equal(answered, 0);
    answered = 1;
}

static void fill_slot(struct mc_disk *disk, uint32_t slot)
{
    uint8_t *buffer = mc_disk_lend(disk, LENGTH, 1);
    assert_non_null(buffer);
    memset(buffer, 7, LENGTH);
    buffer[mc_key_offset(LENGTH)] = 'k';
    struct mc_disk_entry entry = {.generation = GENERATION,
                                  .version = GENERATION,
                                  .hash = mc_hash("k", 1),
                                  .length = LENGTH,
                                  .crc = mc_crc32c(0, buffer, LENGTH),
                                  .key_length = 1,
                                  .block_shift = mc_block_shift(LENGTH)};
    await_answer(mc_disk_store(disk, slot, &entry, buffer, false, on_stored, NULL));
}

/* Two values of an earlier master, which had offered them. */
static void fill(const char *path, struct mc_id cluster)
{
    struct mc_disk_config config = {
        .path = path, .capacity = DISK_BYTES, .ports = &mc_disk_ports_system, .ready = on_ready};
    struct mc_disk_mark mark = {
        .cluster = cluster, .epoch = CONTENTS_EPOCH, .floor = (uint64_t)CONTENTS_EPOCH << MC_EPOCH_SHIFT};
    struct mc_disk *disk;
    char why[MC_DISK_ERROR_MAX];
    answered = 1;
    await_answer(mc_disk_open(&config, &disk, why, sizeof(why)));
    fill_slot(disk, SLOT);
    fill_slot(disk, OTHER_SLOT);
    await_answer(mc_disk_set_mark(disk, &mark, on_done, NULL));
    mc_disk_close(disk, MC_DISK_GRACE_MS);
}

static void fill_folder(void)
{
    fill(folder, (struct mc_id){0, 0});
}

/* From now on files of that name, of this process, cannot be written. */
static void break_files(const char *file, unsigned count)
{
    char name[64], target[512];
    unsigned broken = 0;
    for (int fd = 3; fd < 1024; fd++) {
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = 0;
        if (strncmp(target, folder, strlen(folder)) != 0 || strstr(target, file) == NULL)
            continue;
        int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(other >= 0 && dup2(other, fd) == fd);
        close(other);
        broken++;
    }
    assert_int_equal(broken, count);
}

/* ---- an owner with that disk ---- */

/* Its memory is mounted. */
static void open_owner_of(struct rig *rig, uint32_t disk_count)
{
    struct mc_owner_disk_config disks[] = {{.path = folder, .capacity = DISK_BYTES, .budget_bytes = budget_bytes},
                                           {.path = other_folder, .capacity = DISK_BYTES}};
    rig_prepare(rig);
    rig->features = MC_FEATURES_OURS;
    struct mc_owner_config config = config_of(rig);
    config.disks = disks;
    config.disk_count = disk_count;
    assert_int_equal(mc_owner_create(&config, &rig->owner), 0);
    rig_accept(rig);
    answer_hello(rig, 0);
    answer_mount(rig, rig_expect_mount(rig), 0);
}

static void open_owner(struct rig *rig)
{
    open_owner_of(rig, 1);
}

/* The next MOUNT of the disk, in rig->mount; those of memory are answered on the way. */
static uint64_t expect_disk(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    for (;;) {
        peer_expect(&rig->link, MC_MESSAGE_MOUNT, &frame, &reader);
        mount_note(rig, &reader);
        if (rig->mount.kind == MC_SEGMENT_DISK)
            return frame.request_id;
        answer_mount(rig, frame.request_id, 0);
    }
}

static void answer_disk(struct rig *rig, uint64_t request_id, int code)
{
    struct mc_wire_mount_reply reply = {.code = code, .segment = DISK_SEGMENT, .epoch = rig->epoch};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_MOUNT_REPLY, request_id);
    mc_wire_mount_reply_write(&rig->link.out, &reply);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static void say_clear(struct rig *rig)
{
    struct mc_wire_segment head = {.segment = DISK_SEGMENT};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_CLEAR, 0);
    size_t list = mc_wire_segment_head(&rig->link.out, &head);
    mc_wire_slot_write(&rig->link.out, &(struct mc_wire_slot){.slot = SLOT, .generation = GENERATION});
    mc_frame_end_list(&rig->link.out, start, list, 1);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static void say_load(struct rig *rig, uint32_t disk_slot)
{
    struct mc_wire_segment head = {.segment = SEGMENT};
    struct mc_wire_load_item item = {
        .slot = 1, .generation = LATER, .disk = DISK_SEGMENT, .disk_slot = disk_slot, .disk_generation = GENERATION};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_LOAD, 0);
    size_t list = mc_wire_segment_head(&rig->link.out, &head);
    mc_wire_load_item_write(&rig->link.out, &item);
    mc_frame_end_list(&rig->link.out, start, list, 1);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static void await_read_only(struct rig *rig)
{
    struct mc_store_disk disk = {.health = MC_STORE_DISK_WELL};
    for (uint64_t end_ns = soon(); disk.health != MC_STORE_DISK_IS_READ_ONLY && mc_clock_ns() < end_ns; usleep(1000))
        assert_int_equal(mc_owner_disks_seen(rig->owner, &disk, 1), 1);
    assert_int_equal(disk.health, MC_STORE_DISK_IS_READ_ONLY);
}

/* Nothing is asked of the disk any more. */
static void await_quiet(struct rig *rig)
{
    uint32_t under_way = 1;
    for (uint64_t end_ns = soon(); under_way > 0 && mc_clock_ns() < end_ns; usleep(1000)) {
        pthread_mutex_lock(&rig->owner->lock);
        under_way = rig->owner->disks_under_way;
        pthread_mutex_unlock(&rig->owner->lock);
    }
    assert_int_equal(under_way, 0);
}

/* The type of the next frame; MOUNTs of memory are answered on the way. */
static int receive_but_memory(struct rig *rig, struct mc_frame *frame, struct mc_reader *reader)
{
    int type;
    while ((type = peer_receive(&rig->link, frame, reader)) == MC_MESSAGE_MOUNT) {
        mount_note(rig, reader);
        assert_int_equal(rig->mount.kind, MC_SEGMENT_MEMORY);
        answer_mount(rig, frame->request_id, 0);
    }
    return type;
}

/* All that came to the serve thread before is done; it has mounted no disk meanwhile. */
static void expect_no_disk(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    for (unsigned i = 0; i < 3; i++) {
        mc_frame_bare(&rig->link.out, MC_MESSAGE_PING, 0);
        assert_int_equal(peer_flush(&rig->link), 0);
        assert_int_equal(receive_but_memory(rig, &frame, &reader), MC_MESSAGE_PONG);
    }
}

/* ---- */

/* What the master does not want, and the journal cannot have, is not taken for gone: the disk is not used, and the next
 * process is told the same, whatever the master of then knows. */
static void test_not_emptied(void **state)
{
    (void)state;
    struct rig rig;
    fill_folder();
    open_owner(&rig);
    uint64_t request_id = expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, CONTENTS_EPOCH);
    assert_true(rig.mount.slot_top > 0);
    break_files("/clears.", 2);
    answer_disk(&rig, request_id, MC_ERR_STALE);
    await_read_only(&rig);
    expect_no_disk(&rig);
    rig_stop(&rig);
    open_owner(&rig);
    request_id = expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_true(rig.mount.slot_top > 0);
    answer_disk(&rig, request_id, MC_ERR_STALE);
    (void)expect_disk(&rig); /* its journal can be written */
    assert_int_equal(rig.mount.epoch, 0);
    assert_int_equal(rig.mount.slot_top, 0);
    rig_stop(&rig);
}

/* That nobody wants it is on the disk, also when whoever empties it is no more before a master has the disk again. */
static void test_emptied(void **state)
{
    (void)state;
    struct rig rig;
    fill_folder();
    open_owner(&rig);
    answer_disk(&rig, expect_disk(&rig), MC_ERR_STALE);
    (void)expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_int_equal(rig.mount.slot_top, 0);
    rig_stop(&rig);
    open_owner(&rig);
    (void)expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    rig_stop(&rig);
}

/* An owner whose disk with its contents is mounted. */
static void open_mounted(struct rig *rig)
{
    fill_folder();
    open_owner(rig);
    rig->epoch = CONTENTS_EPOCH + 1;
    answer_disk(rig, expect_disk(rig), 0);
}

/* Its master answers over another link. */
static void link_anew(struct rig *rig)
{
    rig_accept(rig); /* leaves the link that there was */
    answer_hello(rig, 0);
    answer_mount(rig, rig_expect_mount(rig), 0);
}

/* A removal that neither the journal nor the identity can have. */
static void cannot_clear(struct rig *rig)
{
    break_files("/clears.", 2);
    break_files("/identity", 1);
    say_clear(rig);
    await_read_only(rig);
}

/* Where the disk cannot have that either it is not mounted again: what the next master was told would lack what is to
 * be removed. */
static void test_not_given_up(void **state)
{
    (void)state;
    struct rig rig;
    open_mounted(&rig);
    cannot_clear(&rig);
    expect_no_disk(&rig);
    link_anew(&rig);
    expect_no_disk(&rig);
    rig_stop(&rig);
}

static void beat(struct rig *rig)
{
    struct mc_told_disk told[MC_OWNER_DISKS_MAX];
    uint8_t off;
    (void)mc_owner_disks_told(rig->owner, told, &off);
}

static void expect_unmount_kept(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_unmount unmount;
    struct mc_wire_code told = {.code = 0};
    assert_int_equal(receive_but_memory(rig, &frame, &reader), MC_MESSAGE_UNMOUNT);
    mc_wire_unmount_read(&reader, &unmount);
    assert_int_equal(unmount.segment, DISK_SEGMENT);
    assert_int_equal(unmount.keep, 1);
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_UNMOUNT_REPLY, frame.request_id);
    mc_wire_code_write(&rig->link.out, &told);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

/* The disk has it that what lies there is of the master's epoch. */
static void await_epoch(struct rig *rig)
{
    for (uint64_t end_ns = soon(); mc_disk_marked(rig->owner->disks[0].disk).epoch != rig->epoch;) {
        assert_true(mc_clock_ns() < end_ns);
        usleep(1000);
    }
}

/* The heartbeat before was heard of by the thread that serves, the attempt has ended, and that was heard of, too. */
static void await_tried(struct rig *rig)
{
    expect_no_disk(rig);
    await_quiet(rig);
    expect_no_disk(rig);
}

/* Neither the journal nor the identity can be written: what else lies there is read until that was tried often enough.
 * Then the disk leaves as it is, over whatever link there is, so that removals need not wait for the end of the
 * process. */
static void leave_as_it_is(bool is_link_new)
{
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_live_item item;
    open_mounted(&rig);
    await_epoch(&rig);
    cannot_clear(&rig);
    say_load(&rig, OTHER_SLOT);
    assert_int_equal(expect_list(&rig, MC_MESSAGE_LIVE, &frame, &reader), 1);
    mc_wire_live_item_read(&reader, &item);
    assert_int_equal(item.code, 0);
    for (unsigned i = 1; i < MC_DISK_GIVE_UP_MAX; i++) {
        await_tried(&rig); /* and there is no UNMOUNT */
        if (i == 1 && is_link_new) {
            link_anew(&rig);
        }
        beat(&rig);
    }
    expect_unmount_kept(&rig);
    expect_no_disk(&rig);
    rig_stop(&rig);
    open_owner(&rig);
    (void)expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, CONTENTS_EPOCH + 1);
    assert_true(rig.mount.slot_top > 0);
    rig_stop(&rig);
}

static void test_leaves_as_it_is(void **state)
{
    (void)state;
    leave_as_it_is(false);
}

static void test_leaves_over_another_link(void **state)
{
    (void)state;
    leave_as_it_is(true);
}

static uint64_t write_errors_of(struct rig *rig)
{
    struct mc_disk_statistics statistics;
    await_quiet(rig);
    mc_disk_statistics_read(rig->owner->disks[0].disk, &statistics);
    return statistics.write_errors;
}

/* A removal more is no reason to try it again: the next heartbeat is. */
static void test_tried_with_each_beat(void **state)
{
    (void)state;
    struct rig rig;
    open_mounted(&rig);
    cannot_clear(&rig);
    uint64_t errors = write_errors_of(&rig);
    for (unsigned i = 0; i < 3; i++) {
        say_clear(&rig);
        expect_no_disk(&rig);
        assert_int_equal(write_errors_of(&rig), errors);
    }
    await_tried(&rig);
    beat(&rig);
    for (uint64_t end_ns = soon(); write_errors_of(&rig) == errors && mc_clock_ns() < end_ns;)
        usleep(1000);
    assert_int_equal(write_errors_of(&rig), errors + 1);
    rig_stop(&rig);
}

/* A removal that the disk cannot confirm: that nothing there is of any epoch is on the disk before the master hears
 * that it is gone, and the next process says so. */
static void test_given_up(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_unmount unmount;
    struct mc_wire_code told = {.code = 0};
    open_mounted(&rig);
    break_files("/clears.", 2);
    say_clear(&rig);
    rig_expect(&rig, MC_MESSAGE_UNMOUNT, &frame, &reader); /* and no CLEARED */
    mc_wire_unmount_read(&reader, &unmount);
    assert_int_equal(unmount.segment, DISK_SEGMENT);
    assert_int_equal(unmount.keep, 0);
    assert_int_equal(mc_disk_marked(rig.owner->disks[0].disk).epoch, 0);
    size_t start = mc_frame_begin(&rig.link.out, MC_MESSAGE_UNMOUNT_REPLY, frame.request_id);
    mc_wire_code_write(&rig.link.out, &told);
    mc_frame_end(&rig.link.out, start);
    assert_int_equal(peer_flush(&rig.link), 0);
    expect_no_disk(&rig);
    rig_stop(&rig);
    open_owner(&rig);
    (void)expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_true(rig.mount.slot_top > 0);
    rig_stop(&rig);
}

/* How it ended. */
static int store_one(struct rig *rig, const struct mc_wire_store_item *store)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_live live;
    struct mc_wire_live_item item;
    struct mc_wire_segment head = {.segment = DISK_SEGMENT};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_STORE, 0);
    size_t list = mc_wire_segment_head(&rig->link.out, &head);
    mc_wire_store_item_write(&rig->link.out, store);
    mc_frame_end_list(&rig->link.out, start, list, 1);
    assert_int_equal(peer_flush(&rig->link), 0);
    rig_expect(rig, MC_MESSAGE_LIVE, &frame, &reader);
    mc_wire_live_read(&reader, &live);
    assert_int_equal(live.segment, DISK_SEGMENT);
    assert_int_equal(mc_list_read(&reader), 1);
    mc_wire_live_item_read(&reader, &item);
    assert_int_equal(item.slot, store->slot);
    assert_int_equal(item.generation, store->generation);
    return item.code;
}

/* A number at or above the count that the master was told is not taken: what lay there could not be told to the
 * next. */
static void test_number_too_great(void **state)
{
    (void)state;
    struct rig rig;
    open_mounted(&rig);
    struct mc_wire_store_item store = {.slot = rig.mount.slot_count,
                                       .generation = GENERATION + 1,
                                       .version = GENERATION + 1,
                                       .source = SEGMENT,
                                       .source_generation = GENERATION + 1};
    assert_int_equal(store_one(&rig, &store), MC_ERR_INVALID_PARAMS);
    rig_stop(&rig);
}

/* "k" lies in memory. */
static struct mc_wire_store_item put_in_memory(struct rig *rig)
{
    struct mc_segment_memory *memory = rig->owner->memory;
    struct mc_local_write write;
    struct mc_hash hash = mc_hash("k", 1);
    uint8_t *bytes = mc_segment_memory_data(memory);
    assert_int_equal(mc_segment_memory_write_begin(memory, &write, 1, LATER, 0, mc_extent_size(LENGTH, 1),
                                                   mc_clock_ns() + 1000000000ull),
                     0);
    memset(bytes, 7, LENGTH);
    bytes[mc_key_offset(LENGTH)] = 'k';
    struct mc_wire_commit_item commit = {.slot = 1,
                                         .generation = LATER,
                                         .crc = mc_crc32c(0, bytes, LENGTH),
                                         .length = LENGTH,
                                         .hash_low = hash.low,
                                         .hash_high = hash.high,
                                         .key_length = 1,
                                         .block_shift = mc_block_shift(LENGTH)};
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    mc_segment_memory_write_end(memory, &write);
    return (struct mc_wire_store_item){.slot = OTHER_SLOT + 1,
                                       .generation = GENERATION + (1ull << MC_EPOCH_SHIFT),
                                       .version = LATER,
                                       .source = SEGMENT,
                                       .source_slot = 1,
                                       .source_generation = LATER};
}

/* The budget that the owner was given, and what its master says of a value, come to the disk. */
static void test_budget(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_store_disk seen = {.health = MC_STORE_DISK_WELL};
    budget_bytes = 1;
    open_mounted(&rig);
    budget_bytes = 0;
    struct mc_wire_store_item store = put_in_memory(&rig);
    assert_int_equal(store_one(&rig, &store), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    store.slot++;
    store.generation++;
    store.flags = MC_STORE_WAS_READ;
    assert_int_equal(store_one(&rig, &store), 0);
    for (uint64_t end_ns = soon(); seen.not_stored[MC_STORE_DISK_BUDGET] == 0 && mc_clock_ns() < end_ns; usleep(1000))
        assert_int_equal(mc_owner_disks_seen(rig.owner, &seen, 1), 1);
    assert_int_equal(seen.not_stored[MC_STORE_DISK_BUDGET], 1);
    rig_stop(&rig);
}

/* What is rotten in memory is not stored, and the master hears that it is lost: else it would say so for ever. */
static void test_rotten_is_not_stored(void **state)
{
    (void)state;
    struct rig rig;
    const uint32_t slot = 1;
    open_mounted(&rig);
    struct mc_wire_store_item store = put_in_memory(&rig);
    mc_segment_memory_data(rig.owner->memory)[LENGTH / 2] ^= 1;
    assert_int_equal(store_one(&rig, &store), MC_ERR_CHECKSUM_MISMATCH);
    expect_slots(&rig, MC_MESSAGE_LOST, &slot, 1, 0);
    rig_stop(&rig);
}

/* What cannot be read, nor noted as lost, costs that value alone: no removal waits for it, so the disk is not given
 * up. */
static void test_lost_unsaid(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_live_item item;
    open_mounted(&rig);
    break_files("/clears.", 2);
    break_files("/volume.", 1);
    say_load(&rig, SLOT);
    assert_int_equal(expect_list(&rig, MC_MESSAGE_LIVE, &frame, &reader), 1);
    mc_wire_live_item_read(&reader, &item);
    assert_true(item.code < 0);
    await_read_only(&rig);
    await_quiet(&rig);
    expect_no_disk(&rig); /* and no UNMOUNT */
    await_epoch(&rig);    /* it still is */
    rig_stop(&rig);
    open_owner(&rig);
    (void)expect_disk(&rig);
    assert_int_equal(rig.mount.epoch, CONTENTS_EPOCH + 1);
    assert_true(rig.mount.slot_top > 0);
    rig_stop(&rig);
}

/* How the latest FLUSH is answered, and when something was last seen to move. */
static uint64_t flush_once(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_owner_flushed flushed;
    mc_owner_flush(rig->owner, &flushed);
    assert_false(flushed.is_over);
    rig_expect(rig, MC_MESSAGE_FLUSH, &frame, &reader);
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_FLUSHED, frame.request_id);
    mc_wire_flushed_write(&rig->link.out,
                          &(struct mc_wire_flushed){.segment = SEGMENT, .looks = 1, .left = 5, .left_bytes = 5});
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
    expect_no_disk(rig);
    pthread_mutex_lock(&rig->owner->lock);
    uint64_t moved_ms = rig->owner->flush.moved_ms;
    pthread_mutex_unlock(&rig->owner->lock);
    return moved_ms;
}

/* Whoever leaves does not wait for a disk that will not be mounted any more. */
static void test_flush_without(void **state)
{
    (void)state;
    struct rig rig;
    open_mounted(&rig);
    cannot_clear(&rig);
    await_quiet(&rig);
    link_anew(&rig);
    expect_no_disk(&rig);
    uint64_t moved_ms = flush_once(&rig);
    usleep(5000);
    assert_int_equal(flush_once(&rig), moved_ms);
    rig_stop(&rig);
}

/* A disk that does not say of which cluster it is does not hide that another one does. */
static void test_cluster_of_the_other(void **state)
{
    (void)state;
    const struct mc_id cluster = {3, 4};
    struct rig rig;
    fill_folder();
    fill(other_folder, cluster);
    open_owner_of(&rig, 2);
    assert_true(mc_id_equal(rig.seen_cluster, cluster));
    rig_stop(&rig);
    open_owner(&rig);
    assert_true(mc_id_is_zero(rig.seen_cluster));
    rig_stop(&rig);
}

/* Nor does memory whose contents do not say it, as they were put before the master knew. */
static void test_cluster_that_memory_does_not_say(void **state)
{
    (void)state;
    const struct mc_id cluster = {3, 4};
    const struct mc_wire_commit_item commit = {.slot = 1,
                                               .generation = GENERATION + (5ull << MC_EPOCH_SHIFT),
                                               .length = 8,
                                               .key_length = 1,
                                               .block_shift = mc_block_shift(8)};
    struct rig rig;
    fill(folder, cluster);
    open_owner(&rig);
    assert_true(mc_id_equal(rig.seen_cluster, cluster));
    assert_int_equal(mc_segment_memory_commit(rig.owner->memory, &commit), 0);
    assert_true(mc_id_is_zero(mc_segment_memory_cluster(rig.owner->memory)));
    link_anew(&rig);
    assert_true(mc_id_equal(rig.seen_cluster, cluster));
    rig_stop(&rig);
}

/* A master that finds out its cluster only after a disk was mounted: the next one of another cluster must not take what
 * lies there. */
static void test_cluster_told_late(void **state)
{
    (void)state;
    const struct mc_id cluster = {3, 4};
    struct rig rig;
    open_mounted(&rig);
    await_epoch(&rig);
    mc_owner_cluster_told(rig.owner, rig.epoch - 1, (struct mc_id){7, 7}); /* of the master before */
    expect_no_disk(&rig);
    mc_owner_cluster_told(rig.owner, rig.epoch, cluster);
    expect_no_disk(&rig); /* the serving thread has heard of it, */
    await_quiet(&rig);
    rig_stop(&rig); /* and the disk has it by the end */
    open_owner(&rig);
    assert_true(mc_id_equal(rig.seen_cluster, cluster));
    rig_stop(&rig);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_not_emptied, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_emptied, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_not_given_up, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_leaves_as_it_is, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_leaves_over_another_link, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_tried_with_each_beat, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_given_up, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_number_too_great, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_budget, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_rotten_is_not_stored, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_lost_unsaid, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_flush_without, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_cluster_of_the_other, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_cluster_that_memory_does_not_say, open_folder, close_folder),
        cmocka_unit_test_setup_teardown(test_cluster_told_late, open_folder, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
