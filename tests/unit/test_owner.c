/* The owner's link to the master; the test itself is the master, and now and then a peer that writes. */
#include "directory.h"
#include "owner_rig.h"
#include "store/owner/inside.h"

/* ---- tests ---- */

static void test_mount_and_unmount(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    uint32_t segment = 0;
    pthread_t closer;
    rig_create(&rig);
    assert_false(mc_owner_segment(rig.owner, &segment));
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    struct mc_id segment_id = rig.mount.segment_id;
    assert_int_equal(rig.mount.epoch, 0);
    assert_int_equal(rig.mount.capacity, CAPACITY);
    assert_int_equal(rig.mount.slot_count, mc_slot_count(CAPACITY));
    assert_true(mc_id_equal(rig.mount.host, mc_host_id()));
    assert_true(mc_span_equal(rig.mount.name, rig.mount.tcp_address));
    char name[MC_ADDRESS_MAX];
    mc_address_join(name, sizeof(name), "127.0.0.1", mc_owner_port(rig.owner));
    assert_string_equal(rig.tcp_address, name);
    assert_true(rig.unix_path[0] == '@');
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 20000000), MC_ERR_RPC_TIMEOUT);
    answer_mount(&rig, request_id, 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    assert_true(mc_owner_segment(rig.owner, &segment));
    assert_int_equal(segment, SEGMENT);
    assert_int_equal(mc_owner_capacity(rig.owner), CAPACITY);

    uint64_t populated = rig.mount.populated; /* told step by step, to the end */
    while (populated < CAPACITY) {
        request_id = rig_expect_mount(&rig);
        assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
        assert_int_equal(rig.mount.epoch, 3);
        assert_true(rig.mount.populated > populated);
        populated = rig.mount.populated;
        answer_mount(&rig, request_id, 0);
    }
    assert_int_equal(mc_owner_populated(rig.owner), CAPACITY);

    request_id = rig_remount(&rig); /* the heartbeat thread heard that we are unknown */
    assert_int_equal(rig.mount.epoch, 3);
    answer_mount(&rig, request_id, 0);

    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(pthread_create(&closer, NULL, close_run, rig.owner), 0);
    rig_expect(&rig, MC_MESSAGE_UNMOUNT, &frame, &reader);
    struct mc_wire_unmount unmount;
    mc_wire_unmount_read(&reader, &unmount);
    assert_int_equal(unmount.segment, SEGMENT);
    /* An offer that crossed it gives the contact back no more, and if we are killed now nobody takes what lies here. */
    assert_int_equal(mc_segment_memory_contact_ms(rig.owner->memory), 0);
    mc_owner_contact(rig.owner, 4, true, mc_clock_boot_ms(), 2000, 0);
    mc_owner_epoch_set(rig.owner, 4);
    assert_int_equal(mc_segment_memory_epoch(rig.owner->memory), 4);
    assert_int_equal(mc_segment_memory_contact_ms(rig.owner->memory), 0);
    assert_int_equal(mc_segment_memory_contact_at_ms(rig.owner->memory), 0);
    peer_write_code(&rig.link, MC_MESSAGE_UNMOUNT_REPLY, frame.request_id, 0);
    assert_int_equal(peer_flush(&rig.link), 0);
    pthread_join(closer, NULL);
    assert_in_range(mc_clock_ms() - start_ms, 0, 450);
    assert_true(peer_is_closed(&rig.link));
    rig.owner = NULL;
    rig_stop(&rig);
}

static void test_silent_master(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    uint64_t start_ms = mc_clock_ms();
    mc_owner_close(rig.owner); /* UNMOUNT is not answered */
    assert_in_range(mc_clock_ms() - start_ms, 450, 1500);
    rig.owner = NULL;
    rig_stop(&rig);

    rig_create(&rig); /* not even the hello is */
    rig_accept(&rig);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 50000000), MC_ERR_RPC_TIMEOUT);
    start_ms = mc_clock_ms();
    mc_owner_close(rig.owner);
    assert_in_range(mc_clock_ms() - start_ms, 0, 400);
    rig.owner = NULL;
    rig_stop(&rig);
}

static void test_no_master(void **state)
{
    (void)state;
    struct rig rig;
    rig_prepare(&rig);
    close(rig.listener);
    struct mc_owner_config config = config_of(&rig);
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 200000000), MC_ERR_RPC_TIMEOUT);
    /* it comes up late, at the same address */
    uint16_t port = 0;
    char host[MC_ADDRESS_MAX];
    assert_int_equal(mc_address_split(rig.address, host, sizeof(host), &port), 0);
    rig.listener = mc_tcp_listen(host, &port);
    assert_true(rig.listener >= 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    rig_stop(&rig);
}

static void test_refusals(void **state)
{
    (void)state;
    struct rig rig;
    rig_create(&rig);
    rig_accept(&rig);
    answer_hello(&rig, MC_ERR_INVALID_VERSION);
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), MC_ERR_INVALID_VERSION); /* no use to wait */
    assert_in_range(mc_clock_ms() - start_ms, 0, 2000);
    rig_stop(&rig);

    rig_create(&rig);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), MC_ERR_SEGMENT_ALREADY_EXISTS);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 50000000), MC_ERR_SEGMENT_ALREADY_EXISTS);
    rig_accept(&rig); /* tries again by itself */
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    peer_write_code(&rig.link, MC_MESSAGE_FAILED, request_id, MC_ERR_BUSY);
    assert_int_equal(peer_flush(&rig.link), 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), MC_ERR_STALE); /* not even mounted yet: new memory, later */
    struct mc_id refused = rig.mount.segment_id;
    rig_accept(&rig);
    answer_hello(&rig, 0);
    (void)rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, refused));
    rig_stop(&rig);
}

/* Peers may hear of the mount before we do. When we never do, the next master must not take the segment for empty. */
static void test_mount_that_was_not_heard_of(void **state)
{
    (void)state;
    struct rig rig;
    rig_create(&rig);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    (void)rig_expect_mount(&rig);
    struct mc_id first = rig.mount.segment_id;
    assert_int_equal(rig.mount.slot_top, 0);
    struct peer writer = writer_connect(&rig, false, mc_random_id(), 0);
    writer_commit(&writer, 3, 1, 5);
    for (int i = 0; i < 2000 && mc_segment_memory_live(rig_memory(&rig)) == 0; i++)
        usleep(1000);
    peer_close(&rig.link);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_int_equal(rig.mount.slot_top, 4);
    answer_mount(&rig, request_id, MC_ERR_STALE);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(rig.mount.slot_top, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, first));
    peer_close(&writer);
    rig_stop(&rig);
}

static void test_live(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        uint32_t base = is_unix ? 3000 : 0;
        struct peer writer = writer_connect(&rig, is_unix, mc_random_id(), 0);
        writer_commit(&writer, base, 1, 5);
        expect_live(&rig, base, 1, 5, 0);
        writer_commit(&writer, base, 1, 5); /* again: refused, and the master hears that too */
        expect_live(&rig, base, 1, 5, MC_ERR_STALE);
        writer_commit(&writer, base + 1, MC_BATCH_MAX, 6);
        writer_commit(&writer, base + 1 + MC_BATCH_MAX, MC_BATCH_MAX, 6);
        expect_live(&rig, base + 1, 2 * MC_BATCH_MAX, 6, 0);
        peer_close(&writer);
    }
    assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), 2 + 4 * MC_BATCH_MAX);
    rig_stop(&rig);
}

static void test_clear(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_id none = {0, 0};
    rig_mount(&rig);
    struct peer writer = writer_connect(&rig, false, mc_random_id(), 0);
    writer_commit(&writer, 10, 4, 5);
    expect_live(&rig, 10, 4, 5, 0);
    uint32_t slots[4] = {11, 4000000, 13, 12}, kept[3] = {11, 13, 12};
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT + 1, slots, 4, 5, none); /* not ours: nothing happens */
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, slots, 4, 5, none);     /* one of them does not exist */
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 3, 5);
    struct mc_slot copy;
    const struct mc_slot *index = mc_segment_memory_slots(rig_memory(&rig));
    assert_true(mc_slot_read(&index[10], LATER + 5, &copy));
    assert_false(mc_slot_read(&index[11], LATER + 5, &copy));
    assert_false(mc_slot_read(&index[13], LATER + 5, &copy));
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, kept, 3, 5, none); /* sent twice: answered twice */
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 3, 5);
    writer_commit(&writer, 11, 1, 5);
    expect_live(&rig, 11, 1, 5, MC_ERR_STALE);
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, kept, 0, 5, none);
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 0, 5);
    peer_close(&writer);
    rig_stop(&rig);
}

/* A thread of this process that is in the middle of a copy for slot and generation. */
static struct mc_local_write write_start(struct rig *rig, uint32_t slot, uint64_t generation)
{
    struct mc_local_write write;
    assert_int_equal(mc_segment_memory_write_begin(rig_memory(rig), &write, slot, LATER + generation, 0, 100, soon()),
                     0);
    return write;
}

static void test_cut(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    struct mc_id by_tcp = mc_random_id(), by_unix = mc_random_id();
    struct peer tcp = writer_connect(&rig, false, by_tcp, 0), local = writer_connect(&rig, true, by_unix, 0);
    uint32_t slots[3] = {20, 21, 22};
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 3, 9, by_tcp);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 3, 9);
    writer_commit(&tcp, 20, 3, 9);
    expect_live(&rig, 20, 3, 9, MC_ERR_STALE);
    slots[0] = 25; /* a peer that is only connected holds nothing up */
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, by_unix);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, 9);
    slots[0] = 30;
    struct mc_local_write write = write_start(&rig, 30, 9);
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, rig.node);
    writer_commit(&tcp, 40, 1, 9); /* something later that is answered: the cut was not */
    expect_live(&rig, 40, 1, 9, 0);
    mc_segment_memory_write_end(rig_memory(&rig), &write);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, 9);
    peer_close(&local);
    peer_close(&tcp);
    rig_stop(&rig);
}

static void test_reconnect(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_mount(&rig);
    struct mc_id writer_node = mc_random_id(), segment_id = rig.mount.segment_id;
    struct peer writer = writer_connect(&rig, false, writer_node, 0);
    writer_commit(&writer, 1, 1, 5);
    expect_live(&rig, 1, 1, 5, 0);
    uint32_t slots[1] = {50};
    struct mc_local_write write = write_start(&rig, 50, 9);
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, writer_node); /* still waits when the link breaks */
    writer_commit(&writer, 2, 1, 5);
    expect_live(&rig, 2, 1, 5, 0);

    peer_close(&rig.link);
    uint64_t end_ns = soon();
    while (mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 100, 300, 5); /* nobody to tell */
    peer_ping(&writer, 1);
    struct mc_frame frame;
    struct mc_reader reader;
    assert_int_equal(peer_flush(&writer), 0);
    peer_expect(&writer, MC_MESSAGE_PONG, &frame, &reader);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 3);
    assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
    answer_mount(&rig, request_id, 0);
    expect_live(&rig, 100, 300, 5, 0);                                  /* told now */
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, writer_node); /* asked again */
    mc_segment_memory_write_end(rig_memory(&rig), &write);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, 9);

    /* another master of a later epoch that takes the segment as it is: what was not told belongs to the old one */
    peer_close(&rig.link);
    while (mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 500, 10, 5);
    peer_ping(&writer, 2);
    assert_int_equal(peer_flush(&writer), 0);
    peer_expect(&writer, MC_MESSAGE_PONG, &frame, &reader);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    request_id = rig_expect_mount(&rig);
    rig.epoch = 4;
    answer_mount(&rig, request_id, 0);
    end_ns = soon();
    while (!mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 600, 1, 5);
    expect_live(&rig, 600, 1, 5, 0);
    peer_close(&writer);
    rig_stop(&rig);
}

/* A leader that is stopped or cut off breaks no link. The heartbeat thread notices it, and the owner goes to the next
 * one at once: until it comes, what it holds cannot be read there, and if that one ends before, it may be lost. */
static void test_another_leads(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_mount(&rig);
    mc_owner_follow(rig.owner, 3); /* that is whom it has */
    assert_int_equal(mc_socket_wait_read(rig.listener, mc_clock_ns() + 100000000, NULL), MC_ERR_RPC_TIMEOUT);
    assert_true(mc_owner_segment(rig.owner, &segment));
    mc_owner_follow(rig.owner, 4);
    assert_int_equal(mc_socket_wait_read(rig.listener, soon(), NULL), 0); /* while the old link is open */
    assert_true(peer_is_closed(&rig.link));
    rig_accept(&rig);
    mc_owner_follow(rig.owner, 5); /* whoever that is, it has not answered yet */
    assert_int_equal(mc_socket_wait_read(rig.listener, soon(), NULL), 0);
    rig_accept(&rig);
    mc_owner_follow(rig.owner, 5);
    mc_owner_follow(rig.owner, 4);
    rig.epoch = 5;
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(rig.mount.epoch, 3);
    uint64_t end_ns = soon();
    while (!mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    assert_true(mc_owner_segment(rig.owner, &segment));
    assert_int_equal(mc_socket_wait_read(rig.listener, mc_clock_ns() + 100000000, NULL), MC_ERR_RPC_TIMEOUT);
    rig_stop(&rig);
}

static void test_stale(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_mount(&rig);
    struct mc_id old_id = rig.mount.segment_id;
    uint64_t old_nonce = rig.mount.nonce;
    struct peer writer = writer_connect(&rig, true, mc_random_id(), 0);
    writer_commit(&writer, 1, 5, 5);
    expect_live(&rig, 1, 5, 5, 0);
    struct mc_segment_memory *held = mc_paths_find_segment(rig.paths, old_id); /* as a path of this process would */
    assert_non_null(held);
    peer_close(&rig.link);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 3);
    assert_int_equal(rig.mount.slot_top, 6);
    answer_mount(&rig, request_id, MC_ERR_STALE);
    request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.slot_top, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, old_id));
    assert_true(rig.mount.nonce != old_nonce);
    assert_int_equal(rig.mount.epoch, 0);
    assert_true(rig.mount.populated < CAPACITY);
    assert_false(mc_owner_segment(rig.owner, &segment));
    assert_true(peer_is_closed(&writer));
    assert_null(mc_paths_find_segment(rig.paths, old_id));
    rig.epoch = 9;
    answer_mount(&rig, request_id, 0);
    uint64_t new_nonce = rig.mount.nonce;
    rig.mount.nonce = old_nonce;
    peer_close(&writer);
    writer = writer_connect(&rig, false, mc_random_id(), MC_ERR_STALE);
    peer_close(&writer);
    rig.mount.nonce = new_nonce;
    writer = writer_connect(&rig, false, mc_random_id(), 0);
    writer_commit(&writer, 1, 1, 6);
    expect_live(&rig, 1, 1, 6, 0);
    assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), 1);
    assert_int_equal(mc_segment_memory_live(held), 5); /* the old memory lives on for whoever holds it */
    mc_segment_memory_release(held);
    peer_close(&writer);

    /* on a link that is up: the master forgot us and the heartbeat thread noticed */
    old_id = rig.mount.segment_id;
    while (rig.mount.populated < CAPACITY)
        answer_mount(&rig, rig_expect_mount(&rig), 0);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    request_id = rig_expect_mount(&rig);
    assert_false(mc_id_equal(rig.mount.segment_id, old_id));
    assert_int_equal(rig.mount.epoch, 0);
    rig_stop(&rig);
}

static void test_garbage(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t random = 5;
    rig_create(&rig);
    for (unsigned i = 0; i < 6; i++) {
        uint8_t bytes[300];
        rig_accept(&rig);
        if (i % 2 == 1) {
            answer_hello(&rig, 0);
            (void)rig_expect_mount(&rig);
        }
        for (size_t j = 0; j < sizeof(bytes); j++)
            bytes[j] = (uint8_t)random_next(&random);
        if (i >= 4) { /* well-formed, but nobody says that to an owner; or an answer that nobody asked for */
            struct mc_wire_none none = {0};
            rig.link.out.length = 0;
            if (i == 4) {
                size_t start = mc_frame_begin(&rig.link.out, MC_MESSAGE_PONG, 1);
                mc_wire_none_write(&rig.link.out, &none);
                mc_frame_end(&rig.link.out, start);
                assert_int_equal(peer_flush(&rig.link), 0);
            } else {
                answer_mount(&rig, 31415, 0);
            }
        } else {
            assert_int_equal(peer_send_bytes(&rig.link, bytes, sizeof(bytes)), 0);
        }
        assert_true(peer_is_closed(&rig.link));
    }
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    rig_stop(&rig);
}

/* Others are told that host: do we listen at an address of this machine that it does not name? */
static void test_where_it_listens(void **state)
{
    static const struct {
        const char *host;
        bool everywhere;
    } cases[] = {{"store.example", true}, {"localhost", false}, {"127.0.1.1", false}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;
        char address[MC_ADDRESS_MAX];
        rig_prepare(&rig);
        struct mc_owner_config config = config_of(&rig);
        config.advertise_host = cases[i].host;
        assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
        rig_accept(&rig);
        mc_address_join(address, sizeof(address), "127.0.0.7", mc_owner_port(rig.owner));
        int fd = mc_tcp_connect(address, soon());
        assert_int_equal(fd >= 0, cases[i].everywhere);
        mc_fd_close(fd);
        rig_stop(&rig);
    }
}

static void test_create(void **state)
{
    (void)state;
    struct rig rig;
    uint16_t taken = 0;
    rig_prepare(&rig);
    struct mc_owner_config config = config_of(&rig);
    config.capacity = 0;
    assert_int_equal(mc_owner_create(&config, &rig.owner), MC_ERR_INVALID_PARAMS);
    config = config_of(&rig);
    int holder = mc_tcp_listen("127.0.0.1", &taken);
    assert_true(holder >= 0);
    config.port = taken;
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    assert_true(mc_owner_port(rig.owner) != taken && mc_owner_port(rig.owner) != 0);
    rig_accept(&rig);
    mc_owner_close(rig.owner);
    close(holder);
    config.port = 0;
    config.advertise_host = "192.0.2.1"; /* nobody has it */
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    (void)rig_expect_mount(&rig);
    char name[MC_ADDRESS_MAX];
    mc_address_join(name, sizeof(name), "192.0.2.1", mc_owner_port(rig.owner));
    assert_string_equal(rig.tcp_address, name);
    rig_stop(&rig);
}

static void test_life(void **state)
{
    (void)state;
    unsigned fds = 0, threads = 0;
    for (unsigned i = 0; i < 20; i++) {
        struct rig rig;
        if (i % 3 == 0) {
            rig_mount(&rig);
        } else {
            rig_create(&rig); /* closed while it connects, or says hello */
            if (i % 3 == 1)
                rig_accept(&rig);
        }
        rig_stop(&rig);
        uint64_t end_ns = soon(); /* a thread that was connecting ends on its own */
        while (i > 3 && mc_clock_ns() < end_ns &&
               (count_of("/proc/self/fd") > fds || count_of("/proc/self/task") > threads))
            usleep(1000);
        if (i == 3) {
            usleep(50000);
            fds = count_of("/proc/self/fd");
            threads = count_of("/proc/self/task");
        }
    }
    assert_in_range(count_of("/proc/self/fd"), 0, fds);
    assert_in_range(count_of("/proc/self/task"), 0, threads);
}

/* A disk that is being closed answers what it has still, when nobody copies any more: that ends, and lets go of what it
 * held. */
static void test_move_behind_the_mover(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_mover *mover;
    rig_mount(&rig);
    struct mc_owner *owner = rig.owner;
    struct mc_owner_disk disk = {.owner = owner, .state = MC_OWNER_DISK_OFF, .under_way = 1};
    struct mc_move *move = calloc(1, sizeof(*move));
    assert_non_null(move);
    *move = (struct mc_move){
        .kind = MC_MOVE_LOAD, .disk = &disk, .memory = owner->memory, .memory_slot = 4, .memory_generation = LATER};
    mc_segment_memory_retain(move->memory);
    pthread_mutex_lock(&owner->lock);
    owner->disks_under_way++;
    pthread_mutex_unlock(&owner->lock);
    assert_int_equal(mc_mover_start(owner, &mover), 0);
    mc_mover_stop(mover);
    mc_mover_add(mover, move);
    expect_live(&rig, 4, 1, 0, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    pthread_mutex_lock(&owner->lock);
    assert_int_equal(owner->disks_under_way, 0);
    pthread_mutex_unlock(&owner->lock);
    mc_mover_free(mover);
    rig_stop(&rig);
}

int main(void)
{
    setenv("MC_SCRUB_MB_PER_S", "0", 1); /* slots of these tests have no bytes behind them */
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mount_and_unmount),
        cmocka_unit_test(test_silent_master),
        cmocka_unit_test(test_no_master),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_mount_that_was_not_heard_of),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_another_leads),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_where_it_listens),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_move_behind_the_mover),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
