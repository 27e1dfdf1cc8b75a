/* What lies in memory only comes to the disks of its owner: when that leaves (FLUSH), and when a disk comes to memory
 * that holds something already (D6 of the ordering page). And disks that leave alone (D7). */
#include "core_moves.h"

#include "store/core/job.h"

#define MANY 40u

/* A store node without a disk yet. */
static void open_world(struct world *world, struct world_store *store, uint32_t queue_limit)
{
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_PUT;
    config.offload_queue_limit = queue_limit;
    world_open_with(world, &config);
    *store = world_store(world, NODE_A, MIB, "a");
}

static uint32_t mount_disk(struct world *world, const struct world_store *store, uint64_t capacity)
{
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.capacity = mount.populated = capacity;
    struct mc_wire_mount_reply reply = world_mount(world, store->owner, &mount);
    assert_int_equal(reply.code, 0);
    return reply.segment;
}

static void fill(struct world *world, const struct world_store *store, unsigned count)
{
    char key[16];
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(world_put(world, store->call, store->owner, key, OBJECT), 0);
    }
}

static uint32_t count_on_disk(struct world *world, unsigned count)
{
    char key[16];
    uint32_t disks = 0;
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        disks += on_disk(world, key);
    }
    return disks;
}

static struct { /* CLEARs, by a disk that answers none */
    bool is_holding;
    uint32_t segment, count;
    struct mc_wire_slot slots[60 * MANY];
} held_back;

/* The owner does what it is told so far, with that code; how many values it was to store. */
static unsigned owner_stores(struct world *world, uint64_t owner, int32_t code)
{
    static struct moves moves;
    unsigned count = 0;
    for (;;) {
        struct mc_frame frame = world_receive(world, owner);
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        if (frame.type == 0)
            return count;
        assert_true(frame.type == MC_MESSAGE_STORE || frame.type == MC_MESSAGE_CLEAR);
        mc_wire_segment_read(&reader, &head);
        moves = (struct moves){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
        struct world_told told = {.type = frame.type, .segment = head.segment, .count = moves.count};
        for (uint32_t i = 0; i < moves.count; i++) {
            if (frame.type == MC_MESSAGE_STORE)
                mc_wire_store_item_read(&reader, &moves.stores[i]);
            else
                mc_wire_slot_read(&reader, &told.slots[i]);
        }
        if (frame.type == MC_MESSAGE_CLEAR && held_back.is_holding) {
            assert_true(held_back.count + told.count <= 60 * MANY);
            memcpy(&held_back.slots[held_back.count], told.slots, told.count * sizeof(told.slots[0]));
            held_back.count += told.count;
            held_back.segment = told.segment;
            continue;
        }
        if (frame.type == MC_MESSAGE_CLEAR) {
            world_owner_says(world, owner, MC_MESSAGE_CLEARED, &told);
            continue;
        }
        count += moves.count;
        for (uint32_t i = 0; i < moves.count; i++) {
            struct mc_wire_place place = place_of(&moves, i);
            world_live_code(world, owner, &place, code);
        }
        world_check(world);
    }
}

/* Asks, and gives the answer; what else was said to the owner must have been read before. */
static struct mc_wire_flushed flush(struct world *world, uint64_t owner, uint32_t segment, bool begin)
{
    struct mc_wire_flush head = {.segment = segment, .begin = begin};
    struct mc_wire_flushed told = {0};
    size_t frame = world_begin(world, MC_MESSAGE_FLUSH, 12);
    mc_wire_flush_write(&world->frame, &head);
    world_send(world, owner, frame);
    struct mc_frame answer = world_receive(world, owner);
    assert_int_equal(answer.type, MC_MESSAGE_FLUSHED);
    assert_int_equal(answer.request_id, 12);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_flushed_read(&reader, &told);
    return told;
}

/* MANY values in memory, and a disk that has none of them: nothing is stored when it is put, or mounted. */
static void open_unstored(struct world *world, struct world_store *store, uint32_t queue_limit, uint64_t disk)
{
    open_world(world, store, queue_limit);
    world->core->config.offload = MC_OFFLOAD_NEVER;
    fill(world, store, MANY);
    (void)mount_disk(world, store, disk);
    world->core->config.offload = MC_OFFLOAD_ON_PUT;
    world_settle(world, 100);
    assert_int_equal(owner_stores(world, store->owner, 0), 0);
}

/* What the owner is told to store it stores, until it hears how that ended; how many values it was told. */
static unsigned flush_to_end(struct world *world, const struct world_store *store, int32_t code, unsigned rounds,
                             struct mc_wire_flushed *last)
{
    unsigned told = 0;
    *last = flush(world, store->owner, store->segment, true);
    assert_int_equal(last->code, 0);
    assert_int_equal(last->looks, 0);
    for (; rounds > 0 && (last->looks == 0 || last->left > 0); rounds--) {
        world_pass_beating(world, 100, store->heartbeat);
        told += owner_stores(world, store->owner, code);
        *last = flush(world, store->owner, store->segment, false);
        assert_int_equal(last->code, 0);
    }
    return told;
}

static void test_all_is_stored(void **state)
{
    for (uint32_t limit = 50000; limit > 0; limit = limit == 50000 ? 3 : 0) { /* 3: there is little room in the queue */
        struct world world;
        struct world_store store;
        struct mc_wire_flushed last;
        (void)state;
        open_unstored(&world, &store, limit, 64 * MIB);
        assert_int_equal(flush_to_end(&world, &store, 0, 100, &last), MANY);
        assert_int_equal(last.left, 0);
        assert_int_equal(last.left_bytes, 0);
        assert_int_equal(count_on_disk(&world, MANY), MANY);
        assert_int_equal(statistics_of(&world).offload_begun, MANY); /* each once */
        world_close_all(&world);
    }
}

/* What cannot be stored is tried again, and where the disk clears nothing meanwhile, as its journal is full, more and
 * more of it may lie there: all of it is counted until it is cleared. */
static void test_disk_that_clears_nothing(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed last;
    (void)state;
    open_unstored(&world, &store, 50000, 64 * MIB);
    held_back.is_holding = true;
    held_back.count = 0;
    assert_true(flush_to_end(&world, &store, MC_ERR_CHECKSUM_MISMATCH, 60, &last) >= 40 * MANY);
    held_back.is_holding = false;
    assert_int_equal(last.left, MANY);
    world_check(&world);
    assert_int_equal(count_on_disk(&world, MANY), 0);
    for (uint32_t i = 0; i < held_back.count; i++) {
        struct world_told one = {.type = MC_MESSAGE_CLEAR, .segment = held_back.segment, .count = 1};
        one.slots[0] = held_back.slots[i];
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &one);
    }
    world_check(&world);
    assert_int_equal(flush_to_end(&world, &store, 0, 100, &last), MANY);
    assert_int_equal(last.left, 0);
    world_close_all(&world);
}

/* And a sweep of it that has begun. */
static void open_swept(struct world *world, struct world_store *store, uint32_t limit)
{
    open_unstored(world, store, limit, 64 * MIB);
    (void)flush(world, store->owner, store->segment, true);
    world_settle(world, 100);
}

/* What is left is told while it lasts, with its bytes. */
static void test_progress(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_swept(&world, &store, 50000);
    static struct moves moves;
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.count, MANY);
    struct mc_wire_flushed told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.looks, 1);
    assert_int_equal(told.left, MANY);
    assert_int_equal(told.left_bytes, MANY * OBJECT);
    assert_int_equal(told.moving, MANY);
    for (uint32_t i = 0; i < MANY / 2; i++) {
        struct mc_wire_place place = place_of(&moves, i);
        world_live(&world, store.owner, &place);
    }
    world_pass(&world, 100);
    told = flush(&world, store.owner, store.segment, false);
    assert_true(told.looks > 1);
    assert_int_equal(told.left, MANY / 2);
    assert_int_equal(told.left_bytes, MANY / 2 * OBJECT);
    world_close_all(&world);
}

/* More than the owner has buffers for is not told at once; the next comes when some of that has ended. */
static void test_not_all_at_once(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed told;
    enum { LARGE = 40 * MIB };
    char key[16];
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    world_open_with(&world, &config);
    store = world_store(&world, NODE_A, 512 * MIB, "a");
    for (unsigned i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(world_put(&world, store.call, store.owner, key, LARGE), 0);
    }
    (void)mount_disk(&world, &store, 1024ull * MIB);
    world.core->config.offload = MC_OFFLOAD_ON_PUT;
    (void)flush(&world, store.owner, store.segment, true);
    for (unsigned stored = 0; stored < 10; stored += 3) {
        world_pass(&world, 100);
        assert_int_equal(owner_stores(&world, store.owner, 0), stored < 9 ? 3 : 1);
    }
    world_pass(&world, 100);
    told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.left, 0);
    world_close_all(&world);
}

/* Nothing is placed there any more, and a put that is under way is waited for. */
static void test_nothing_new_comes(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    struct mc_wire_flushed told;
    (void)state;
    open_unstored(&world, &store, 50000, 64 * MIB);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "late", OBJECT, NULL, &place), 0);
    (void)flush(&world, store.owner, store.segment, true);
    assert_true(world_grant(&world, store.call, PUT_2, "new", OBJECT, NULL, NULL) < 0);
    world_pass(&world, 100);
    assert_int_equal(owner_stores(&world, store.owner, 0), MANY);
    world_pass(&world, 200);
    told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.left, 1);
    assert_int_equal(told.moving, 1);
    world.core->config.offload = MC_OFFLOAD_NEVER; /* not because it has just been put */
    world_live(&world, store.owner, &place);
    world.core->config.offload = MC_OFFLOAD_ON_PUT;
    assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
    world_pass(&world, 200);
    assert_int_equal(owner_stores(&world, store.owner, 0), 1);
    world_pass(&world, 200);
    told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.left, 0);
    assert_int_equal(on_disk(&world, "late"), 1);
    world_close_all(&world);
}

/* A disk that takes nothing is asked for no more than it could hold, and what is left is said. */
static void test_disk_that_takes_nothing(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed last;
    (void)state;
    open_unstored(&world, &store, 50000, MIB);
    unsigned told = flush_to_end(&world, &store, MC_ERR_FILE_WRITE_FAIL, 100, &last);
    assert_in_range(told, MANY, MIB / OBJECT);
    assert_int_equal(last.left, MANY);
    assert_int_equal(last.moving, 0);
    assert_int_equal(count_on_disk(&world, MANY), 0);
    world_close_all(&world);
}

static void test_disk_smaller_than_memory(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed last;
    (void)state;
    uint64_t extent = mc_extent_units(OBJECT, 2) * MC_EXTENT_UNIT;
    open_unstored(&world, &store, 50000, extent * 10 + MC_EXTENT_UNIT * 20); /* keys of three bytes need no more */
    assert_int_equal(flush_to_end(&world, &store, 0, 30, &last), 10);
    assert_int_equal(last.left, MANY - 10);
    assert_int_equal(count_on_disk(&world, MANY), 10);
    world_close_all(&world);
}

static void test_without_a_disk(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed last;
    (void)state;
    open_world(&world, &store, 50000);
    fill(&world, &store, MANY);
    assert_int_equal(flush_to_end(&world, &store, 0, 5, &last), 0);
    assert_int_equal(last.left, MANY);
    assert_int_equal(last.moving, 0);
    world_close_all(&world);
}

static void test_refused(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_unstored(&world, &store, 50000, 64 * MIB);
    struct world_store other = world_store(&world, NODE_B, MIB, "b");
    assert_int_equal(flush(&world, other.owner, store.segment, true).code, MC_ERR_SEGMENT_NOT_FOUND);
    assert_int_equal(flush(&world, store.owner, 12345, true).code, MC_ERR_SEGMENT_NOT_FOUND);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    assert_int_equal(flush(&world, store.owner, store.segment, true).code, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "new", OBJECT, NULL, NULL), 0); /* it does not leave */
    world_pass(&world, 200);
    assert_int_equal(owner_stores(&world, store.owner, 0), 0);
    world_close_all(&world);
}

/* Who does not ask any more is given up; who asks again goes on. The owner's connection may have been another one. */
static void test_asked_no_more(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed told;
    static struct moves moves;
    (void)state;
    open_swept(&world, &store, 50000);
    told_moves(&world, store.owner, &moves); /* and they get lost */
    assert_int_equal(moves.count, MANY);
    world_disconnect(&world, store.owner);
    world_pass_beating(&world, MC_SWEEP_ASKED_MS + SECOND_MS, store.heartbeat);
    assert_false(world.core->segments[store.segment % MC_SEGMENTS_MAX]->flush.runs);
    assert_int_equal(world_return(&world, &store).code, 0);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    world_settle(&world, 100);
    assert_int_equal(owner_stores(&world, store.owner, 0), MANY); /* told again */
    (void)world_beat(&world, store.heartbeat);
    (void)world_beat(&world, store.heartbeat);
    told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.code, 0);
    for (unsigned i = 0; i < 5 && (told.looks == 0 || told.left > 0); i++) {
        world_pass(&world, 100);
        told = flush(&world, store.owner, store.segment, false);
    }
    assert_int_equal(told.left, 0);
    assert_int_equal(count_on_disk(&world, MANY), MANY);
    world_close_all(&world);
}

/* The segment is unmounted while a sweep of it is under way. */
static void test_gone_meanwhile(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_swept(&world, &store, 3);
    struct mc_wire_unmount unmount = {.segment = store.segment};
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 13);
    mc_wire_unmount_write(&world.frame, &unmount);
    world_send(&world, store.owner, frame);
    world_pass(&world, 500);
    assert_int_equal(statistics_of(&world).objects, 0);
    assert_true(mc_link_alone(&world.core->jobs));
    world_close_all(&world);
}

/* As at a master that has just begun: memory is mounted there first. */
static void test_disk_is_mounted_meanwhile(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_flushed told;
    (void)state;
    open_world(&world, &store, 50000);
    fill(&world, &store, MANY);
    (void)flush(&world, store.owner, store.segment, true);
    world_pass(&world, 300);
    (void)mount_disk(&world, &store, 64 * MIB);
    world_pass(&world, 300);
    assert_int_equal(owner_stores(&world, store.owner, 0), MANY);
    world_pass(&world, 300);
    told = flush(&world, store.owner, store.segment, false);
    assert_int_equal(told.left, 0);
    assert_int_equal(count_on_disk(&world, MANY), MANY);
    world_close_all(&world);
}

/* Values were put before there was a disk. */
static void test_disk_comes_later(void **state)
{
    for (uint32_t limit = 50000; limit > 0; limit = limit == 50000 ? 3 : 0) {
        struct world world;
        struct world_store store;
        (void)state;
        open_world(&world, &store, limit);
        fill(&world, &store, MANY);
        (void)mount_disk(&world, &store, 64 * MIB);
        unsigned told = 0;
        for (unsigned i = 0; i < 50; i++) {
            told += owner_stores(&world, store.owner, 0);
            world_pass_beating(&world, 100, store.heartbeat);
        }
        assert_int_equal(told, MANY);
        assert_int_equal(count_on_disk(&world, MANY), MANY);
        assert_true(mc_link_alone(&world.core->jobs));
        assert_int_equal(world_grant(&world, store.call, PUT_1, "new", OBJECT, NULL, NULL), 0); /* it does not leave */
        world_close_all(&world);
    }
}

/* A put that does not end, and values that the disk has no room for: nothing is left that could be done. */
static void test_all_had_their_turn(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    uint64_t extent = mc_extent_units(OBJECT, 2) * MC_EXTENT_UNIT;
    (void)state;
    open_world(&world, &store, 50000);
    fill(&world, &store, MANY);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "late", OBJECT, NULL, &place), 0);
    (void)mount_disk(&world, &store, extent * 10 + MC_EXTENT_UNIT * 20);
    world_pass_beating(&world, 200, store.heartbeat);
    assert_int_equal(owner_stores(&world, store.owner, 0), 10);
    world_pass_beating(&world, SECOND_MS, store.heartbeat);
    assert_true(mc_link_alone(&world.core->jobs));
    world_live(&world, store.owner, &place); /* it is stored like any that is put */
    assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
    world_settle(&world, 100);
    assert_int_equal(owner_stores(&world, store.owner, 0), 1);
    world_close_all(&world);
}

/* A disk that answers nothing is waited for, without a look at everything each time. */
static void test_looks_become_rare(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    open_world(&world, &store, 3);
    fill(&world, &store, MANY);
    (void)mount_disk(&world, &store, 64 * MIB);
    world_settle(&world, 100);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.count, 3);
    world_pass_beating(&world, 20 * SECOND_MS, store.heartbeat);
    const struct mc_sweep *sweep = &world.core->segments[store.segment % MC_SEGMENTS_MAX]->flush;
    assert_true(sweep->runs);
    assert_in_range(sweep->looks, 20, 30);
    for (uint32_t i = 0; i < 3; i++) {
        struct mc_wire_place place = place_of(&moves, i);
        world_live(&world, store.owner, &place);
    }
    unsigned told = 0;
    for (unsigned i = 0; i < 30; i++) {
        world_pass_beating(&world, 100, store.heartbeat);
        told += owner_stores(&world, store.owner, 0);
    }
    assert_int_equal(told, MANY - 3);
    assert_false(sweep->runs);
    world_close_all(&world);
}

/* What was put while the disk took nothing, since it did not answer, is stored when it does again. */
static void test_disk_was_slow(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_world(&world, &store, 50000);
    uint32_t disk = mount_disk(&world, &store, 64 * MIB);
    world.told_health = MC_TOLD_SLOW;
    assert_int_equal(world_heartbeat(&world, store.heartbeat, disk, 64 * MIB), 0);
    fill(&world, &store, MANY);
    world_pass_beating(&world, 300, store.heartbeat);
    assert_int_equal(owner_stores(&world, store.owner, 0), 0);
    for (unsigned i = 0; i < 2; i++) { /* once: nothing has come since */
        world.told_health = MC_TOLD_WELL;
        assert_int_equal(world_heartbeat(&world, store.heartbeat, disk, 64 * MIB), 0);
        world_pass(&world, 300);
        assert_int_equal(owner_stores(&world, store.owner, 0), i == 0 ? MANY : 0);
    }
    assert_int_equal(count_on_disk(&world, MANY), MANY);
    world_close_all(&world);
}

/* A new master does not know yet what lies in the memory of an owner that leaves: it says nothing of what is left. */
static void test_memory_is_told_meanwhile(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_flushed told;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    put_numbered(&world, a, 5);
    master_stop(&world);
    config.offload = MC_OFFLOAD_ON_PUT;
    master_start(&world, NEXT_EPOCH, &config);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    for (unsigned i = 0; i < 4; i++) {
        told = flush(&world, a->owner, a->segment, i == 0);
        assert_int_equal(told.code, 0);
        assert_int_equal(told.looks, 0);
        world_pass_beating(&world, SECOND_MS, a->heartbeat);
    }
    assert_true(fake_tell(&world, a, 2));
    world_pass_beating(&world, GRACE_OVER_MS, a->heartbeat);
    (void)fake_obey(&world, a);
    told = flush(&world, a->owner, a->segment, false);
    assert_true(told.looks > 0);
    assert_int_equal(told.left, 5);
    finish(&world, a, NULL);
}

/* And when nobody asks any more, nothing is left of that. */
static void test_asked_no_more_before_it_is_told(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    master_stop(&world);
    config.offload = MC_OFFLOAD_ON_PUT;
    master_start(&world, NEXT_EPOCH, &config);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    (void)flush(&world, a->owner, a->segment, true);
    assert_false(mc_link_alone(&world.core->jobs));
    world_pass_beating(&world, MC_SWEEP_ASKED_MS + SECOND_MS, a->heartbeat);
    assert_true(mc_link_alone(&world.core->jobs));
    finish(&world, a, NULL);
}

/* ---- a disk that is unmounted, and kept ---- */

static int32_t unmount_kept(struct world *world, uint64_t owner, uint32_t segment)
{
    struct mc_wire_unmount unmount = {.segment = segment, .keep = 1};
    struct mc_wire_code told = {.code = 1};
    size_t frame = world_begin(world, MC_MESSAGE_UNMOUNT, 14);
    mc_wire_unmount_write(&world->frame, &unmount);
    world_send(world, owner, frame);
    struct mc_frame answer = world_receive(world, owner);
    assert_int_equal(answer.type, MC_MESSAGE_UNMOUNT_REPLY);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_code_read(&reader, &told);
    world_settle(world, 100);
    world_check(world);
    return told.code;
}

/* Another process with that disk; it tells nothing of what lies there. */
static struct mc_wire_mount_reply come_with_disk(struct world *world, struct world_store *store)
{
    *store = world_store(world, NODE_B, MIB, "b");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = DISK_SLOTS;
    return world_mount(world, store->owner, &mount);
}

static size_t refused; /* not 0: so many bytes at a time are not given */

void *calloc(size_t count, size_t size)
{
    size_t bytes = count * size;
    void *given = refused > 0 && bytes == refused ? NULL : malloc(bytes);
    if (given != NULL)
        explicit_bzero(given, bytes); /* not memset: of that and malloc a compiler makes a calloc */
    return given;
}

/* Without memory for a job it is absent all the same, and not gone. */
static void test_kept_without_memory(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT);
    put_and_store(&world, &store, "removed");
    forget_in_memory(&world, &store, "removed");
    refused = sizeof(struct mc_job);
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    refused = 0;
    assert_int_equal(statistics_of(&world).disks_absent, 1);
    int32_t code = 1;
    world_remove_one_send(&world, client, "removed");
    world_pass_beating(&world, world.core->config.depart_ms - 200, store.heartbeat);
    assert_false(world_remove_answer(&world, client, &code, 1));
    world_pass_beating(&world, 400, store.heartbeat);
    assert_true(world_remove_answer(&world, client, &code, 1));
    assert_int_equal(code, 0);
    world_close_all(&world);
}

/* Memory is served on, what lies on the disk only is not there, and can be removed: for good, so not before a later
 * master knows that we may have. */
static void test_kept_disk(void **state)
{
    struct world world;
    struct world_store store, next;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT);
    put_and_store(&world, &store, "both");
    put_and_store(&world, &store, "removed");
    forget_in_memory(&world, &store, "removed");
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    assert_int_equal(statistics_of(&world).disks, 1);
    assert_int_equal(statistics_of(&world).disks_absent, 1);
    assert_int_equal(world_get(&world, client, "both", 0, NULL, NULL), 0);
    assert_int_equal(world_exist(&world, client, "removed"), 0);
    int32_t code = 1;
    world_remove_one_send(&world, client, "removed");
    world_pass_beating(&world, world.core->config.depart_ms - 200, store.heartbeat);
    assert_false(world_remove_answer(&world, client, &code, 1));
    world_pass_beating(&world, 400, store.heartbeat);
    assert_true(world_remove_answer(&world, client, &code, 1));
    assert_int_equal(code, 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "new", OBJECT), 0);
    assert_int_equal(owner_stores(&world, store.owner, 0), 0);
    struct mc_wire_mount_reply reply = come_with_disk(&world, &next);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.segment, disk);
    assert_int_equal(reply.inventory, 1); /* a new process says what it has found */
    assert_true(reply.behind);            /* and has a removal to confirm */
    struct world_told told;
    world_owner_told(&world, next.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.segment, disk);
    assert_int_equal(told.count, 1);
    world_owner_says(&world, next.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(statistics_of(&world).disks_absent, 0);
    assert_int_equal(world_exist(&world, client, "removed"), 0);
    world_close_all(&world);
}

/* Its owner may mount it again, and then all that lies there is there. */
static void test_kept_disk_comes_back(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    forget_in_memory(&world, &store, "k");
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    world_pass_beating(&world, world.core->config.disk_ttl_ms + SECOND_MS, store.heartbeat); /* and stays */
    assert_int_equal(statistics_of(&world).disks, 1);
    world_close_all(&world);
}

static void test_kept_disk_is_forgotten(void **state)
{
    struct world world;
    struct world_store store, next;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    forget_in_memory(&world, &store, "k");
    assert_int_equal(unmount_kept(&world, store.owner, 77), MC_ERR_SEGMENT_NOT_FOUND);
    assert_int_equal(unmount_kept(&world, store.owner, store.segment), MC_ERR_INVALID_PARAMS); /* it is no disk */
    world.core->config.disk_ttl_ms = 10 * SECOND_MS;
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    world_pass_beating(&world, 8 * SECOND_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).disks, 1);
    world_pass_beating(&world, 3 * SECOND_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).disks, 0);
    assert_int_equal(statistics_of(&world).objects, 0);
    assert_int_equal(come_with_disk(&world, &next).code, MC_ERR_STALE);
    world_close_all(&world);
}

/* It was unmounted before, and has come back: the time counts from the last. */
static void test_kept_disk_is_unmounted_again(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    world.core->config.disk_ttl_ms = 10 * SECOND_MS;
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    world_pass_beating(&world, 5 * SECOND_MS, store.heartbeat);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    world_pass_beating(&world, 3 * SECOND_MS, store.heartbeat);
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    world_pass_beating(&world, 9 * SECOND_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).disks, 1);
    world_pass_beating(&world, 2 * SECOND_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).disks, 0);
    world_close_all(&world);
}

/* However often it goes and comes, one departure is waited for, and none while it is here. */
static void test_kept_disk_comes_and_goes(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
        assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
        assert_false(mc_link_alone(&world.core->jobs));
        assert_ptr_equal(world.core->jobs.next, world.core->jobs.previous);
        assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
        assert_true(mc_link_alone(&world.core->jobs));
    }
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    struct mc_wire_unmount unmount = {.segment = disk};
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 14);
    mc_wire_unmount_write(&world.frame, &unmount);
    world_send(&world, store.owner, frame);
    world_settle(&world, 100);
    assert_int_equal(statistics_of(&world).disks, 0);
    assert_true(mc_link_alone(&world.core->jobs)); /* nor of one that is gone */
    world_close_all(&world);
}

/* A disk that comes to a master anew, and goes before it has told what lies there: nobody waits for the rest, and it
 * comes again as it came. */
static void test_unmounted_before_it_has_told(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = DISK_SLOTS;
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_true(fake_return(&world, a));
    grow_old(&world, a);
    (void)fake_obey(&world, a);
    for (unsigned i = 0; i < 2; i++) {
        struct mc_wire_mount_reply reply = world_mount(&world, a->owner, &mount);
        assert_int_equal(reply.code, 0);
        assert_int_equal(reply.inventory, 1);
        assert_int_equal(world_remove(&world, a->call, "none", true), MC_ERR_BUSY);
        assert_int_equal(unmount_kept(&world, a->owner, reply.segment), 0);
        assert_int_equal(world_remove(&world, a->call, "none", true), MC_ERR_OBJECT_NOT_FOUND);
        assert_int_equal(statistics_of(&world).disks, 0);
    }
    finish(&world, a, NULL);
}

/* The same with a disk that was taken over: what lies there is known, and is told by the same process when that mounts
 * it again. */
static void test_unmounted_before_it_has_told_again(void **state)
{
    struct world world;
    struct world_store store, next;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    assert_int_equal(come_with_disk(&world, &next).inventory, 1);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_remove(&world, client, "none", true), MC_ERR_BUSY);
    assert_int_equal(unmount_kept(&world, next.owner, disk), 0);
    assert_int_equal(world_remove(&world, client, "none", true), MC_ERR_OBJECT_NOT_FOUND);
    for (unsigned i = 0; i < 40; i++) {
        world_pass_beating(&world, SECOND_MS, store.heartbeat);
        (void)world_beat(&world, next.heartbeat);
    }
    assert_int_equal(statistics_of(&world).disks, 1);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = DISK_SLOTS;
    struct mc_wire_mount_reply reply = world_mount(&world, next.owner, &mount);
    assert_int_equal(reply.inventory, 1);
    send_inventory(&world, next.owner, reply.segment, 0, true, NULL, 0); /* it has nothing any more */
    world_settle(&world, 100);
    assert_int_equal(on_disk(&world, "k"), 0);
    world_close_all(&world);
}

/* Its node's data is served no more: the disk, which that has left before, is not given up with the memory. */
static void test_kept_disk_of_a_stuck_node(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_core_segment segment;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    assert_true(mc_core_segment(world.core, disk, &segment) && !segment.absent);
    assert_int_equal(unmount_kept(&world, store.owner, disk), 0);
    assert_true(mc_core_segment(world.core, disk, &segment) && segment.absent);
    world_disconnect(&world, store.owner);
    world_pass_beating(&world, 60 * SECOND_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).segments, 0);
    assert_int_equal(statistics_of(&world).disks, 1);
    assert_int_equal(statistics_of(&world).owners_stuck, 1);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_stored),
        cmocka_unit_test(test_disk_that_clears_nothing),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_not_all_at_once),
        cmocka_unit_test(test_nothing_new_comes),
        cmocka_unit_test(test_disk_that_takes_nothing),
        cmocka_unit_test(test_disk_smaller_than_memory),
        cmocka_unit_test(test_without_a_disk),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_asked_no_more),
        cmocka_unit_test(test_gone_meanwhile),
        cmocka_unit_test(test_disk_is_mounted_meanwhile),
        cmocka_unit_test(test_disk_comes_later),
        cmocka_unit_test(test_all_had_their_turn),
        cmocka_unit_test(test_looks_become_rare),
        cmocka_unit_test(test_disk_was_slow),
        cmocka_unit_test(test_memory_is_told_meanwhile),
        cmocka_unit_test(test_asked_no_more_before_it_is_told),
        cmocka_unit_test(test_kept_disk),
        cmocka_unit_test(test_kept_without_memory),
        cmocka_unit_test(test_kept_disk_comes_back),
        cmocka_unit_test(test_kept_disk_is_forgotten),
        cmocka_unit_test(test_kept_disk_is_unmounted_again),
        cmocka_unit_test(test_kept_disk_comes_and_goes),
        cmocka_unit_test(test_unmounted_before_it_has_told),
        cmocka_unit_test(test_unmounted_before_it_has_told_again),
        cmocka_unit_test(test_kept_disk_of_a_stuck_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
