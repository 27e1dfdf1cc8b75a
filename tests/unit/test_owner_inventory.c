/* The owner and masters that do not know its memory; rotten slots. The test itself is the master. */
#include "store/segment/memory_inside.h"
#include "object_make.h"
#include "owner_rig.h"

#include <dirent.h>

#define OBJECT_BYTES 100u
#define EXTENT_BYTES 256u
#define WINDOW 32u
#define PER_FRAME 128u

static uint64_t generation_of(uint64_t epoch, uint64_t counter)
{
    return (epoch << COUNTER) + counter;
}

static void objects_make(struct rig *rig, uint32_t count, uint64_t epoch)
{
    for (uint32_t i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof(key), "key-%u", i);
        /* the later slot lies in front, so that the order of slots is not that of offsets */
        assert_int_equal(object_make(rig_memory(rig), i, generation_of(epoch, i + 1),
                                     (uint64_t)(count - 1 - i) * EXTENT_BYTES, OBJECT_BYTES, key),
                         0);
    }
}

/* The link ends; a master of that epoch answers the next one. Returns the id of the MOUNT. */
static uint64_t master_change(struct rig *rig, uint64_t epoch)
{
    peer_close(&rig->link);
    rig_accept(rig);
    rig->epoch = epoch;
    answer_hello(rig, 0);
    return rig_expect_mount(rig);
}

struct told { /* one INVENTORY frame */
    struct mc_wire_inventory head;
    uint32_t count;
    uint64_t first_offset, last_offset;
};

/* Checks every item; key numbers of `missing` must not be among them. */
static struct told expect_inventory(struct rig *rig, uint64_t epoch, uint32_t total, uint32_t missing)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct told told = {0};
    rig_expect(rig, MC_MESSAGE_INVENTORY, &frame, &reader);
    mc_wire_inventory_read(&reader, &told.head);
    assert_int_equal(told.head.segment, SEGMENT);
    told.count = mc_list_read(&reader);
    assert_in_range(told.count, 0, PER_FRAME);
    for (uint32_t i = 0; i < told.count; i++) {
        struct mc_wire_inventory_item item;
        char key[32];
        mc_wire_inventory_item_read(&reader, &item);
        assert_int_equal(item.state, 1);
        assert_in_range(item.slot, 0, total - 1);
        assert_true(item.slot != missing);
        assert_int_equal(item.generation, generation_of(epoch, item.slot + 1));
        assert_int_equal(item.offset, (uint64_t)(total - 1 - item.slot) * EXTENT_BYTES);
        assert_int_equal(item.length, OBJECT_BYTES);
        assert_int_equal(item.flags, item.slot % 3);
        assert_int_equal(item.replica, item.slot % 2);
        snprintf(key, sizeof(key), "key-%u", item.slot);
        assert_true(mc_span_equal(item.key, mc_span_string(key)));
        if (i == 0)
            told.first_offset = item.offset;
        else
            assert_true(item.offset > told.last_offset);
        told.last_offset = item.offset;
    }
    assert_false(reader.bad);
    return told;
}

static void acknowledge(struct rig *rig, uint32_t sequence, int code)
{
    struct mc_wire_inventory_ack ack = {.segment = SEGMENT, .sequence = sequence, .code = code};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_INVENTORY_ACK, 0);
    mc_wire_inventory_ack_write(&rig->link.out, &ack);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

/* The master offers what lies there: it is of that master now. */
static void offer(struct rig *rig)
{
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_OFFERED, 0);
    mc_wire_segment_write(&rig->link.out, &(struct mc_wire_segment){.segment = SEGMENT});
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

/* Takes and acknowledges all frames from `sequence` on; returns the count of items. */
static uint32_t inventory_take(struct rig *rig, uint64_t epoch, uint32_t total, uint32_t sequence, uint32_t missing)
{
    uint32_t count = 0;
    for (bool last = false; !last; sequence++) {
        struct told told = expect_inventory(rig, epoch, total, missing);
        assert_int_equal(told.head.sequence, sequence);
        acknowledge(rig, sequence, 0);
        count += told.count;
        last = told.head.last != 0;
    }
    return count;
}

/* Nothing is on its way but what was said before the answer to this. */
static void expect_quiet(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    usleep(50000);
    peer_ping(&rig->link, 77);
    assert_int_equal(peer_flush(&rig->link), 0);
    rig_expect(rig, MC_MESSAGE_PONG, &frame, &reader);
    assert_int_equal(frame.request_id, 77);
}

/* Mounted under epoch 3 and populated, so that no MOUNT comes by itself. */
static void rig_ready(struct rig *rig)
{
    rig_mount(rig);
    while (rig->mount.populated < CAPACITY)
        answer_mount(rig, rig_expect_mount(rig), 0);
    expect_quiet(rig);
}

static void commit_expect(struct rig *rig, uint32_t slot, uint64_t generation, int code)
{
    struct peer writer = writer_connect(rig, false, mc_random_id(), 0);
    writer_commit(&writer, slot, 1, generation - LATER);
    expect_live(rig, slot, 1, generation - LATER, code);
    peer_close(&writer);
}

/* ---- tests ---- */

/* What the master says of values is kept with them, and told to the next one; each word is confirmed. */
static void test_hints_are_kept(void **state)
{
    (void)state;
    enum { COUNT = 6 };
    static const struct {
        uint64_t less; /* than the generation that lies there */
        uint8_t said, kept;
    } hints[COUNT] = {
        {0, MC_HINT_DROP, MC_HINT_DROP},   {0, MC_HINT_DROP, 0},                       /* it is pinned hard */
        {0, MC_HINT_PAUSE, MC_HINT_PAUSE}, {1, MC_HINT_DROP, 0}, {0, 0, 0}, {0, 9, 0}, /* of a later release */
    };
    struct rig rig;
    rig_ready(&rig);
    objects_make(&rig, COUNT, 3);
    struct mc_wire_segment head = {.segment = SEGMENT};
    size_t frame = mc_frame_begin(&rig.link.out, MC_MESSAGE_HINTED, 0);
    size_t list = mc_wire_segment_head(&rig.link.out, &head);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct mc_wire_hinted_item item = {
            .slot = i, .generation = generation_of(3, i + 1) - hints[i].less, .hint = hints[i].said};
        mc_wire_hinted_item_write(&rig.link.out, &item);
    }
    mc_frame_end_list(&rig.link.out, frame, list, COUNT);
    assert_int_equal(peer_flush(&rig.link), 0);
    struct mc_frame answer;
    struct mc_reader reader;
    assert_int_equal(expect_list(&rig, MC_MESSAGE_HINTED, &answer, &reader), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct mc_wire_hinted_item item;
        mc_wire_hinted_item_read(&reader, &item);
        assert_int_equal(item.slot, i);
        assert_int_equal(item.generation, generation_of(3, i + 1) - hints[i].less);
    }
    answer_mount_with(&rig, master_change(&rig, 5), 0, 1);
    rig_expect(&rig, MC_MESSAGE_INVENTORY, &answer, &reader);
    struct mc_wire_inventory told;
    mc_wire_inventory_read(&reader, &told);
    assert_int_equal(mc_list_read(&reader), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        struct mc_wire_inventory_item item;
        mc_wire_inventory_item_read(&reader, &item);
        assert_int_equal(item.hint, hints[item.slot].kept);
    }
    rig_stop(&rig);
}

static void test_whole(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, PER_FRAME - 1, PER_FRAME, PER_FRAME + 1, 1300};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct rig rig;
        uint32_t segment;
        rig_ready(&rig);
        struct mc_id segment_id = rig.mount.segment_id;
        objects_make(&rig, counts[i], 3);
        mc_owner_contact(rig.owner, 2, true, mc_clock_boot_ms(), 0,
                         0); /* of another master: says nothing of this one */
        mc_owner_contact(rig.owner, 3, true, mc_clock_boot_ms() - 700, 0, 0);
        uint64_t request_id = master_change(&rig, 5);
        assert_int_equal(rig.seen_epoch, 3);
        assert_in_range(rig.seen_age_ms, 0, 500);
        assert_int_equal(rig.mount.epoch, 3);
        assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
        assert_int_equal(rig.mount.slot_top, counts[i]);
        assert_in_range(rig.mount.contact_age_ms, 0, 5000); /* the mount itself, or the heartbeat if that was later */
        answer_mount_with(&rig, request_id, 0, 1);
        assert_int_equal(inventory_take(&rig, 3, counts[i], 0, UINT32_MAX), counts[i]);
        expect_quiet(&rig);
        assert_true(mc_owner_segment(rig.owner, &segment));
        assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), counts[i]);
        commit_expect(&rig, 9000, generation_of(5, 0) - 1, MC_ERR_STALE); /* a writer of the past */
        commit_expect(&rig, 9000, generation_of(5, 1), 0);
        rig_stop(&rig);
    }
}

/* While the owner looks at what lies there, however long that takes, it goes on with all else. The memory's lock, which
 * is taken for the first look, stands for a large segment. */
static void test_collecting_takes_long(void **state)
{
    struct rig rig;
    (void)state;
    rig_ready(&rig);
    objects_make(&rig, 300, 3);
    for (unsigned round = 0; round < 3; round++) {
        uint64_t request_id = master_change(&rig, 3);
        struct mc_segment_memory *memory = rig_memory(&rig);
        pthread_mutex_lock(&memory->lock);
        answer_mount_with(&rig, request_id, 0, 1);
        expect_quiet(&rig);
        if (round == 1) { /* the link breaks meanwhile: what is found is for nobody */
            peer_close(&rig.link);
            usleep(20000);
        }
        pthread_mutex_unlock(&memory->lock);
        if (round != 1)
            assert_int_equal(inventory_take(&rig, 3, 300, 0, UINT32_MAX), 300);
    }
    expect_quiet(&rig);
    rig_stop(&rig);
}

static void test_contact(void **state)
{
    (void)state;
    struct rig rig;
    rig_ready(&rig);
    uint64_t request_id = master_change(&rig, 3);
    assert_in_range(rig.mount.contact_age_ms, 0, 5000); /* no heartbeat was answered yet, but the mount was */
    answer_mount(&rig, request_id, 0);
    expect_quiet(&rig);
    /* The heartbeat thread meets the next master first; what it hears there becomes the memory's contact when it is
     * mounted. */
    mc_owner_contact(rig.owner, 3, true, mc_clock_boot_ms(), 4321, 0);
    mc_owner_contact(rig.owner, 3, true, mc_clock_boot_ms() - 90000, 4000, 0);
    mc_owner_contact(rig.owner, 4, true, mc_clock_boot_ms() - 300, 77, 0);
    request_id = master_change(&rig, 4);
    assert_int_equal(rig.mount.contact_at_ms, 4321); /* of the master whose contents these are */
    assert_int_equal(rig.seen_epoch, 4);
    assert_in_range(rig.mount.contact_age_ms, 0, 5000); /* an older heartbeat does not take the mount's contact back */
    answer_mount_with(&rig, request_id, 0, 1);
    (void)inventory_take(&rig, 3, 0, 0, UINT32_MAX);
    expect_quiet(&rig);
    request_id = master_change(&rig, 4);
    assert_int_equal(rig.mount.epoch, 3); /* not before it is offered */
    answer_mount_with(&rig, request_id, 0, 2);
    offer(&rig);
    expect_quiet(&rig);
    request_id = master_change(&rig, 4);
    assert_int_equal(rig.mount.epoch, 4);
    assert_in_range(rig.mount.contact_age_ms, 0, 5000);
    assert_int_equal(rig.mount.contact_at_ms, 77);
    mc_owner_contact(rig.owner, 4, true, 0, 99, 0); /* that was no contact */
    mc_owner_contact(rig.owner, 5, true, mc_clock_boot_ms() + 1000, 99, 0);
    answer_mount(&rig, request_id, 0);
    expect_quiet(&rig);
    (void)master_change(&rig, 5);
    assert_int_equal(rig.mount.contact_at_ms, 77);
    rig_stop(&rig);
}

/* Masters that took the memory up and died before they had offered anything: its contents stay those of the last that
 * had, with its contact, and no word of the others counts as one of a master that may have acted. The floor rises. */
static void test_masters_that_offer_nothing(void **state)
{
    (void)state;
    struct rig rig;
    rig_ready(&rig);
    objects_make(&rig, 5, 3);
    rig.is_quiet = true;
    uint64_t quiet_ms = mc_clock_boot_ms();
    for (uint64_t epoch = 5; epoch < 8; epoch++) {
        uint64_t request_id = master_change(&rig, epoch);
        assert_int_equal(rig.mount.epoch, 3);
        assert_int_equal(rig.seen_epoch, epoch == 5 ? 3 : epoch - 1);
        assert_true(rig.mount.contact_age_ms + 50 >= mc_clock_boot_ms() - quiet_ms);
        assert_true(rig.seen_age_ms + 50 >= mc_clock_boot_ms() - quiet_ms);
        answer_mount_with(&rig, request_id, 0, 1);
        assert_int_equal(inventory_take(&rig, 3, 5, 0, UINT32_MAX), 5);
        mc_owner_contact(rig.owner, epoch, false, mc_clock_boot_ms(), 0, 0);
        expect_quiet(&rig);
        commit_expect(&rig, 9000, generation_of(epoch, 0) - 1, MC_ERR_STALE);
        usleep(60000);
    }
    offer(&rig);
    expect_quiet(&rig);
    uint64_t offered_ms = mc_clock_boot_ms(), request_id = master_change(&rig, 7);
    assert_int_equal(rig.mount.epoch, 7);
    assert_int_equal(rig.seen_epoch, 7);
    assert_in_range(rig.seen_age_ms, 0, mc_clock_boot_ms() - offered_ms + 100);
    answer_mount(&rig, request_id, 0);
    rig_stop(&rig);
}

static void test_window(void **state)
{
    (void)state;
    struct rig rig;
    const uint32_t total = (WINDOW + 3) * PER_FRAME + 5;
    struct mc_id none = {0, 0}, writer = mc_random_id();
    rig_ready(&rig);
    objects_make(&rig, total, 3);
    answer_mount_with(&rig, master_change(&rig, 5), 0, 1);
    uint32_t count = 0;
    for (uint32_t i = 0; i < WINDOW; i++)
        count += expect_inventory(&rig, 3, total, UINT32_MAX).count;
    assert_int_equal(count, WINDOW * PER_FRAME);
    expect_quiet(&rig); /* not one more */

    /* CLEAR and CUT are answered while it goes on, and what was cleared is not told. Offsets ascend: slot 3 is last. */
    uint32_t slots[1] = {3};
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, slots, 1, generation_of(3, 4) - LATER, none);
    expect_slots(&rig, MC_MESSAGE_CLEARED, slots, 1, generation_of(3, 4) - LATER);
    slots[0] = 12000;
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, generation_of(3, 900000) - LATER, writer);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, generation_of(3, 900000) - LATER);

    acknowledge(&rig, 0, 0);
    count += expect_inventory(&rig, 3, total, 3).count;
    expect_quiet(&rig); /* one for one */
    for (uint32_t i = 1; i < WINDOW + 1; i++)
        acknowledge(&rig, i, 0);
    count += inventory_take(&rig, 3, total, WINDOW + 1, 3);
    assert_int_equal(count, total - 1);
    expect_quiet(&rig);
    rig_stop(&rig);
}

static void test_broken(void **state)
{
    (void)state;
    struct rig rig;
    const uint32_t total = (WINDOW + 1) * PER_FRAME;
    rig_ready(&rig);
    objects_make(&rig, total, 3);
    for (unsigned i = 0; i < 3; i++) { /* the same master, and then a later one */
        answer_mount_with(&rig, master_change(&rig, 5 + i / 2), 0, 1);
        for (uint32_t j = 0; j < i * 3; j++) {
            assert_int_equal(expect_inventory(&rig, 3, total, UINT32_MAX).head.sequence, j);
            if (j < i)
                acknowledge(&rig, j, 0);
        }
    }
    uint64_t request_id = master_change(&rig, 6);
    assert_int_equal(rig.mount.epoch, 3);
    assert_int_equal(rig.mount.slot_top, total);
    answer_mount_with(&rig, request_id, 0, 1);
    assert_int_equal(inventory_take(&rig, 3, total, 0, UINT32_MAX), total);
    expect_quiet(&rig);
    rig_stop(&rig);
}

static void test_refused(void **state)
{
    (void)state;
    struct rig rig;
    rig_ready(&rig);
    objects_make(&rig, 2 * PER_FRAME - 10, 3);
    struct mc_id old_id = rig.mount.segment_id;
    /* answers that nobody waits for end the connection, not the memory */
    answer_mount_with(&rig, master_change(&rig, 5), 0, 1);
    acknowledge(&rig, 1, 0);
    assert_true(peer_is_closed(&rig.link));
    answer_mount(&rig, master_change(&rig, 5), 0);
    acknowledge(&rig, 0, 0);
    assert_true(peer_is_closed(&rig.link));
    assert_true(mc_id_equal(rig.mount.segment_id, old_id));

    answer_mount_with(&rig, master_change(&rig, 5), 0, 1);
    (void)expect_inventory(&rig, 3, 2 * PER_FRAME - 10, UINT32_MAX);
    (void)expect_inventory(&rig, 3, 2 * PER_FRAME - 10, UINT32_MAX);
    acknowledge(&rig, 0, MC_ERR_STALE);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, old_id));
    answer_mount(&rig, request_id, 0);
    expect_quiet(&rig);
    assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), 0);
    commit_expect(&rig, 1, generation_of(5, 1), 0);
    rig_stop(&rig);
}

static void test_past(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_ready(&rig);
    objects_make(&rig, 10, 3);
    struct mc_id segment_id = rig.mount.segment_id;
    rig.epoch = 2;
    for (unsigned i = 0; i < 3; i++) {
        peer_close(&rig.link);
        rig_accept(&rig);
        answer_hello(&rig, 0);
        assert_int_equal(rig.seen_epoch, 3);
        assert_true(peer_is_closed(&rig.link));
        assert_false(mc_owner_segment(rig.owner, &segment));
    }
    /* what only the heartbeat thread has met counts as well */
    mc_owner_contact(rig.owner, 7, true, mc_clock_boot_ms(), 0, 0);
    rig.epoch = 6;
    rig_accept(&rig);
    answer_hello(&rig, 0);
    assert_int_equal(rig.seen_epoch, 7);
    assert_true(peer_is_closed(&rig.link));
    uint64_t request_id = master_change(&rig, 7);
    assert_int_equal(rig.mount.epoch, 3);
    assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
    answer_mount_with(&rig, request_id, 0, 1);
    assert_int_equal(inventory_take(&rig, 3, 10, 0, UINT32_MAX), 10);
    rig_stop(&rig);
}

/* A master that says of itself what cannot be (its clock is beyond 2046, say) is left, whatever it says it with. */
static void test_epochs_that_cannot_be(void **state)
{
    static const uint64_t epochs[] = {0, MC_EPOCH_MAX, MC_EPOCH_MAX + 1, MC_EPOCH_MAX + 2, UINT64_MAX};
    struct rig rig;
    (void)state;
    rig_ready(&rig);
    for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
        rig.epoch = epochs[i];
        rig_accept(&rig);
        answer_hello(&rig, 0);
        assert_int_equal(rig.seen_epoch, 3);
        assert_true(peer_is_closed(&rig.link));
    }
    uint64_t request_id = master_change(&rig, 4);
    rig.epoch = MC_EPOCH_MAX + 1; /* and the hello was right */
    answer_mount(&rig, request_id, 0);
    request_id = master_change(&rig, 5);
    assert_int_equal(rig.seen_epoch, 4);
    answer_mount(&rig, request_id, 0);
    rig_stop(&rig);
}

static void test_standby(void **state)
{
    (void)state;
    struct rig rig;
    uint16_t port = 0;
    char leader[MC_ADDRESS_MAX];
    rig_create(&rig);
    int standby = rig.listener, other = mc_tcp_listen("127.0.0.1", &port);
    assert_true(other >= 0);
    mc_address_join(leader, sizeof(leader), "127.0.0.1", port);
    rig.leader = leader;
    rig_accept(&rig);
    answer_hello(&rig, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_true(peer_is_closed(&rig.link));
    rig.listener = other;
    rig_accept(&rig);
    answer_hello(&rig, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS); /* names itself: back to what is configured */
    assert_true(peer_is_closed(&rig.link));
    rig.listener = standby;
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    close(other);
    rig_stop(&rig);
}

static void say_check(struct rig *rig, uint32_t slot, uint64_t generation)
{
    struct mc_wire_segment head = {.segment = SEGMENT};
    struct mc_wire_slot item = {.slot = slot, .generation = generation};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_CHECK, 0);
    mc_wire_segment_write(&rig->link.out, &head);
    size_t list = mc_list_begin(&rig->link.out);
    mc_wire_slot_write(&rig->link.out, &item);
    mc_list_end(&rig->link.out, list, 1);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

/* As faulty memory does it: no thread wrote this, so none is to be asked whether it may. */
__attribute__((no_sanitize_thread)) static void flip(uint8_t *byte)
{
    *byte ^= 0x10;
}

static void test_check(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_slot copy;
    static const uint64_t lengths[] = {1, 65536, 65537, 5 * MIB + 3};
    uint64_t bytes, rotten, offset = 0, flipped = 0;
    rig_ready(&rig);
    struct mc_segment_memory *memory = rig_memory(&rig);
    const struct mc_slot *slots = mc_segment_memory_slots(memory);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t generation = generation_of(3, i + 1);
        assert_int_equal(object_make(memory, i, generation, offset, lengths[i], "k"), 0);
        say_check(&rig, i, generation);
        say_check(&rig, i, generation + 1); /* another life */
        say_check(&rig, UINT32_MAX, 5);
        expect_quiet(&rig);
        assert_true(mc_slot_read(&slots[i], generation, &copy));
        flip(mc_segment_memory_data(memory) + offset + lengths[i] - 1);
        say_check(&rig, i, generation);
        expect_slots(&rig, MC_MESSAGE_LOST, &i, 1, generation - LATER);
        assert_false(mc_slot_read(&slots[i], generation, &copy));
        mc_owner_scrubbed(rig.owner, &bytes, &rotten);
        assert_int_equal(rotten, ++flipped);
        commit_expect(&rig, i, generation, MC_ERR_STALE);
        offset += (mc_extent_size(lengths[i], 1) + 4095) & ~4095ull;
    }
    mc_owner_scrubbed(rig.owner, &bytes, &rotten);
    assert_in_range(bytes, 5 * MIB, 50 * MIB);

    /* Told again over a new connection, by one frame for all; not to another master, whose inventory lacks them. */
    answer_mount(&rig, master_change(&rig, 3), 0);
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_segment head;
    rig_expect(&rig, MC_MESSAGE_LOST, &frame, &reader);
    mc_wire_segment_read(&reader, &head);
    assert_int_equal(mc_list_read(&reader), 4);
    answer_mount_with(&rig, master_change(&rig, 5), 0, 1);
    assert_int_equal(inventory_take(&rig, 3, 0, 0, UINT32_MAX), 0);
    expect_quiet(&rig);
    rig_stop(&rig);
}

/* ---- memory that outlives its owner ---- */

static void named_create(struct rig *rig, const char *folder, bool drop)
{
    struct mc_owner_config config = config_of(rig);
    config.data_dir = folder;
    config.drop_on_close = drop;
    assert_int_equal(mc_owner_create(&config, &rig->owner), 0);
    rig_accept(rig);
    answer_hello(rig, 0);
}

static unsigned files_in(const char *folder)
{
    unsigned count = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

static void test_named(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    pthread_t closer;
    char folder[] = "/dev/shm/mc-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    rig_prepare(&rig);
    named_create(&rig, folder, false);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(rig.mount.epoch, 0);
    while (rig.mount.populated < CAPACITY)
        answer_mount(&rig, rig_expect_mount(&rig), 0);
    expect_quiet(&rig);
    struct mc_id segment_id = rig.mount.segment_id;
    objects_make(&rig, 700, 3);
    mc_owner_contact(rig.owner, 3, true, mc_clock_boot_ms() - 500, 0, 0);

    for (unsigned i = 0; i < 3; i++) { /* left without a word, and taken up: by the same master twice, by a later one */
        uint64_t start_ms = mc_clock_ms();
        mc_owner_close(rig.owner);
        rig.owner = NULL;
        assert_in_range(mc_clock_ms() - start_ms, 0, 450);
        assert_int_equal(peer_receive(&rig.link, &frame, &reader), MC_ERR_RPC_FAIL); /* no UNMOUNT */
        rig.epoch = i < 2 ? 3 : 5;
        named_create(&rig, folder, i == 2);
        assert_int_equal(rig.seen_epoch, 3);
        uint64_t request_id = rig_expect_mount(&rig);
        assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
        assert_int_equal(rig.mount.epoch, 3);
        assert_int_equal(rig.mount.slot_top, 700);
        assert_int_equal(rig.mount.populated, CAPACITY);
        assert_in_range(rig.mount.contact_age_ms, 0, 20000); /* a mount that was answered is contact too */
        answer_mount_with(&rig, request_id, 0, 1);
        assert_int_equal(inventory_take(&rig, 3, 700, 0, UINT32_MAX), 700);
        if (i == 2)
            offer(&rig);
        expect_quiet(&rig);
    }

    /* The master does not want it: what comes next in that directory is new, and the old is gone from there. */
    unsigned files = files_in(folder);
    uint64_t request_id = master_change(&rig, 5);
    assert_int_equal(rig.mount.epoch, 5);
    answer_mount(&rig, request_id, MC_ERR_STALE);
    request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, segment_id));
    assert_int_equal(files_in(folder), files);
    answer_mount(&rig, request_id, 0);
    expect_quiet(&rig);

    /* drop_on_close: as if it had no directory */
    assert_int_equal(pthread_create(&closer, NULL, close_run, rig.owner), 0);
    rig_expect(&rig, MC_MESSAGE_UNMOUNT, &frame, &reader);
    peer_write_code(&rig.link, MC_MESSAGE_UNMOUNT_REPLY, frame.request_id, 0);
    assert_int_equal(peer_flush(&rig.link), 0);
    pthread_join(closer, NULL);
    rig.owner = NULL;
    assert_int_equal(files_in(folder), 0);
    rig_stop(&rig);
    char lock[64];
    snprintf(lock, sizeof(lock), "%s/.lock", folder); /* all that stays in such a directory */
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hints_are_kept),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_collecting_takes_long),
        cmocka_unit_test(test_contact),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_masters_that_offer_nothing),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_past),
        cmocka_unit_test(test_standby),
        cmocka_unit_test(test_epochs_that_cannot_be),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
