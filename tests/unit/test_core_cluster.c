/* The core and the cluster's id: whose contents come in, who is refused, and how a master finds out which cluster it
 * is. The rows of the table "Which cluster" in docs/ordering.md. */
#include "core_owner.h"

static const struct mc_id A = {0xa, 0xaa}, B = {0xb, 0xbb}, NONE = {0, 0};
/* Of masters of A, before and after NEXT_EPOCH, which a master of B has here. */
enum { EPOCH_OF_A = NEXT_EPOCH - 1, LATER_EPOCH_OF_A = 50 };
/* Of the values that the nodes bring, by which a test knows whose it has found. */
enum { BYTES_A = 111, BYTES_B = 222, BYTES_C = 333 };

static struct mc_core_config config_of(struct mc_id cluster)
{
    struct mc_core_config config = mc_core_config_default();
    config.cluster = cluster;
    config.cluster_way = MC_CLUSTER_NOTED;
    return config;
}

static struct mc_wire_hello hello_of(const struct fake_owner *owner, unsigned role, struct mc_id cluster)
{
    struct mc_wire_hello hello = world_hello(role, owner->node, owner->incarnation);
    hello.seen_epoch = owner->epoch;
    hello.cluster = cluster;
    for (uint32_t i = 0; i < SLOTS; i++)
        hello.holds |= owner->slots[i].state != 0;
    return hello;
}

/* As fake_return, of a node that says whose its contents are: 0, or what its hello is answered with. -1: its contents
 * were lost. */
static int32_t come(struct world *world, struct fake_owner *owner, struct mc_id cluster)
{
    owner->heartbeat = owner->owner = 0;
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = hello_of(owner, MC_ROLE_OWNER, cluster);
    hello.seen_age_ms = (uint32_t)(world->now - owner->contact_ms);
    int32_t code = world_greet(world, connection, &hello).code;
    if (code != 0) {
        assert_true(world->connections[connection].closed);
        world_disconnect(world, connection);
        return code;
    }
    owner->owner = connection;
    owner->heartbeat = world_join(world, MC_ROLE_HEARTBEAT, owner->node, owner->incarnation);
    owner->call = world_join(world, MC_ROLE_CALL, owner->node, owner->incarnation);
    struct mc_wire_mount mount = fake_mount(world, owner, MIB);
    struct mc_wire_mount_reply reply = world_mount(world, owner->owner, &mount);
    if (reply.code != 0)
        return -1;
    owner->segment = reply.segment;
    owner->epoch = world->core->epoch;
    owner->contact_ms = world->now;
    return reply.inventory != 1 || fake_tell(world, owner, 3) ? 0 : -1;
}

/* A node with one value, of that length, put at another master, which has ended. */
static struct fake_owner *node_with(uint64_t node, const char *key, uint64_t length)
{
    struct world other;
    world_start(&other, FIRST_EPOCH, NULL);
    struct fake_owner *owner = fake(node);
    assert_int_equal(fake_join(&other, owner).code, 0);
    assert_int_equal(fake_put(&other, owner, key, length, 0), 0);
    world_close_all(&other);
    owner->heartbeat = 0;
    return owner;
}

static void begin(struct world *world, uint64_t epoch, struct mc_id cluster)
{
    struct mc_core_config config = config_of(cluster);
    *world = (struct world){.now = 1000000, .next_connection = 1};
    master_start(world, epoch, &config);
}

static bool is_settled_as(const struct world *world, struct mc_id cluster)
{
    return mc_id_equal(mc_core_cluster(world->core), cluster);
}

/* Time passes, and those who are here go on to live. */
static void pass(struct world *world, uint64_t ms, struct fake_owner *const *owners, unsigned count)
{
    for (uint64_t at = 0; at < ms; at += 1000) {
        world_pass(world, 1000);
        for (unsigned i = 0; i < count; i++)
            if (owners[i]->heartbeat != 0 && !world->connections[owners[i]->heartbeat].closed)
                (void)world_heartbeat(world, owners[i]->heartbeat, owners[i]->segment, MIB);
    }
}

/* Row 1: a settled master. Who holds contents of another one is refused, in every role, and keeps them; what it has met
 * elsewhere neither makes this master begin again nor costs anybody contents. */
static void test_settled_refuses_foreign_contents(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *stray = node_with(NODE_A, "k", BYTES_A), *own = node_with(NODE_B, "k", BYTES_B);
    begin(&world, NEXT_EPOCH, B);
    stray->epoch = LATER_EPOCH_OF_A;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(come(&world, stray, A), MC_ERR_OTHER_CLUSTER);
        world_pass(&world, 500);
    }
    for (unsigned role = MC_ROLE_CALL; role <= MC_ROLE_OWNER; role++) {
        struct mc_wire_hello hello = hello_of(stray, role, A);
        assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, MC_ERR_OTHER_CLUSTER);
    }
    assert_int_equal(statistics_of(&world).foreign_refused, 23);
    assert_int_equal(mc_core_wanted_epoch(world.core), 0);
    assert_int_equal(world.core->evidence_count, 0);
    own->contact_ms = 1000000 - 100;
    assert_int_equal(come(&world, own, B), 0);
    world_pass(&world, GRACE_OVER_MS);
    assert_int_equal(found(&world, own, "k"), BYTES_B);
    assert_int_equal(held(stray, "k")->state, 1);
    finish(&world, stray, own);
}

/* Row 2: who holds nothing joins, and is told the id; so does who does not say whose its contents are. */
static void test_settled_takes_the_empty_and_the_silent(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *empty = fake(NODE_A), *silent = node_with(NODE_B, "k", BYTES_B);
    begin(&world, NEXT_EPOCH, B);
    uint64_t connection = world_connect(&world);
    struct mc_wire_hello hello = hello_of(empty, MC_ROLE_OWNER, A);
    hello.seen_epoch = EPOCH_OF_A; /* no evidence here */
    struct mc_wire_hello_reply reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, 0);
    assert_true(mc_id_equal(reply.cluster, B));
    silent->contact_ms = world.now;
    assert_int_equal(come(&world, silent, NONE), 0);
    world_pass(&world, GRACE_OVER_MS);
    assert_int_equal(found(&world, silent, "k"), BYTES_B);
    for (uint32_t i = 0; i < world.core->evidence_count; i++)
        assert_int_not_equal(world.core->evidence[i].epoch, EPOCH_OF_A);
    /* A client that holds nothing, but has met a later epoch there, would not believe us. */
    hello.role = MC_ROLE_CALL;
    hello.node.low = WITNESS;
    hello.seen_epoch = LATER_EPOCH_OF_A;
    assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, MC_ERR_OTHER_CLUSTER);
    assert_int_equal(world.core->statistics.epochs_doubted, 0);
    finish(&world, empty, silent);
}

/* Row 3: open, and all bring the same: offered as soon as ever, settled at the end of the window. */
static void test_open_and_of_one_mind(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *one = node_with(NODE_A, "k", BYTES_A), *two = node_with(NODE_B, "l", BYTES_B),
                      *all[] = {one, two};
    begin(&world, NEXT_EPOCH, NONE);
    one->contact_ms = two->contact_ms = world.now;
    assert_int_equal(come(&world, one, A), 0);
    world_pass(&world, SECOND_MS);
    assert_int_equal(found(&world, one, "k"), BYTES_A);
    assert_int_equal(come(&world, two, A), 0);
    assert_int_equal(found(&world, one, "l"), BYTES_B);
    pass(&world, 58000, all, 2);
    assert_true(is_settled_as(&world, NONE));
    pass(&world, 2000, all, 2);
    assert_true(is_settled_as(&world, A));
    assert_int_equal(found(&world, one, "l"), BYTES_B);
    finish(&world, one, two);
}

/* Row 4: nobody brings anything: a new cluster, but not before recovery is over. */
static void test_made_when_nobody_brought_one(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *empty = fake(NODE_A), *all[] = {empty};
    begin(&world, NEXT_EPOCH, NONE);
    world_pass(&world, 70 * SECOND_MS);
    assert_false(mc_core_asks_for_cluster(world.core)); /* nobody is here yet */
    finish(&world, NULL, NULL);
    begin(&world, NEXT_EPOCH, NONE);
    assert_int_equal(come(&world, empty, A), 0);
    pass(&world, 59000, all, 1);
    assert_false(mc_core_asks_for_cluster(world.core));
    mc_core_make_cluster(world.core, B);
    assert_true(is_settled_as(&world, NONE));
    pass(&world, 2000, all, 1);
    assert_true(mc_core_asks_for_cluster(world.core));
    mc_core_make_cluster(world.core, B);
    assert_true(is_settled_as(&world, B));
    finish(&world, empty, NULL);
}

/* Everybody of that node ends. */
static void leave(struct world *world, const struct fake_owner *owner)
{
    world_disconnect(world, owner->owner);
    world_disconnect(world, owner->call);
    world_disconnect(world, owner->heartbeat);
}

/* Row 10: contents of one cluster were taken in, and their node is away when the window is over: it is still that one,
 * and who comes back is no stranger. Of two it is not known which was right. */
static void test_what_came_and_left_decides(void **state)
{
    (void)state;
    for (unsigned count = 1; count <= 2; count++) {
        struct world world;
        struct fake_owner *one = node_with(NODE_A, "k", BYTES_A), *two = node_with(NODE_B, "l", BYTES_B),
                          *empty = fake(NODE_C), *all[] = {empty, one, two};
        begin(&world, NEXT_EPOCH, NONE);
        one->contact_ms = two->contact_ms = world.now;
        assert_int_equal(come(&world, empty, NONE), 0);
        assert_int_equal(come(&world, one, A), 0);
        pass(&world, 5000, all, 2);
        assert_int_equal(found(&world, one, "k"), BYTES_A);
        leave(&world, one);
        one->heartbeat = 0;
        pass(&world, 20000, all, 1);
        if (count == 2) {
            assert_int_equal(come(&world, two, B), 0);
            pass(&world, 1000, (struct fake_owner *[]){empty, two}, 2);
            leave(&world, two);
            two->heartbeat = 0;
        }
        pass(&world, 45000, all, 1);
        assert_int_equal(mc_core_asks_for_cluster(world.core), count == 2);
        assert_true(is_settled_as(&world, count == 2 ? NONE : A));
        if (count == 1)
            assert_int_not_equal(come(&world, one, A), MC_ERR_OTHER_CLUSTER);
        free(one);
        finish(&world, two, empty);
    }
}

/* Who waited and was never let in does not decide; but beside who was, it is not known which was right. */
static void test_who_only_waited_does_not_decide(void **state)
{
    (void)state;
    for (unsigned is_let_in = 0; is_let_in < 2; is_let_in++) {
        struct world world;
        struct fake_owner *one = node_with(NODE_A, "k", BYTES_A), *two = node_with(NODE_B, "l", BYTES_B),
                          *empty = fake(NODE_C), *all[] = {empty, one};
        begin(&world, NEXT_EPOCH, NONE);
        one->contact_ms = two->contact_ms = world.now;
        assert_int_equal(come(&world, empty, NONE), 0);
        if (is_let_in) {
            assert_int_equal(come(&world, one, A), 0);
        } else { /* it ends before it has mounted */
            struct mc_wire_hello hello = hello_of(one, MC_ROLE_OWNER, A);
            uint64_t connection = world_connect(&world);
            assert_int_equal(world_greet(&world, connection, &hello).code, 0);
            world_disconnect(&world, connection);
        }
        assert_int_equal(come(&world, two, B), MC_ERR_BUSY);
        pass(&world, 2000, all, 1 + is_let_in);
        if (is_let_in)
            leave(&world, one);
        one->heartbeat = 0;
        pass(&world, 68000, all, 1);
        assert_true(mc_core_asks_for_cluster(world.core));
        assert_true(is_settled_as(&world, NONE));
        free(one);
        finish(&world, two, empty);
    }
}

/* While a master stands still, or its machine sleeps, nobody can come: its window is longer by that. */
static void test_the_window_waits_while_we_stand_still(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *empty = fake(NODE_A), *late = node_with(NODE_B, "k", BYTES_B), *all[] = {empty, late};
    begin(&world, NEXT_EPOCH, NONE);
    assert_int_equal(come(&world, empty, A), 0);
    world_pass(&world, SECOND_MS);
    world.now += 3600 * SECOND_MS;
    world_settle(&world, 10);
    assert_true(mc_recover_open(world.core));
    assert_false(mc_core_asks_for_cluster(world.core));
    late->contact_ms = world.now;
    assert_int_equal(come(&world, late, B), 0);
    pass(&world, 5000, all, 2);
    assert_int_equal(found(&world, late, "k"), BYTES_B);
    pass(&world, 60000, all, 2);
    assert_true(is_settled_as(&world, B));
    finish(&world, empty, late);
}

/* Row 5: a stray node comes first, the right ones after it. Nothing of theirs is lost, and they decide. */
static void test_a_stray_that_comes_first_does_not_decide(void **state)
{
    (void)state;
    for (unsigned late = 0; late < 2; late++) { /* late: what the stray brought was offered meanwhile */
        struct world world;
        struct fake_owner *stray = node_with(NODE_A, "k", BYTES_A), *one = node_with(NODE_B, "k", BYTES_B),
                          *two = node_with(NODE_C, "m", BYTES_C), *all[] = {stray, one, two};
        begin(&world, NEXT_EPOCH, NONE);
        stray->contact_ms = one->contact_ms = two->contact_ms = world.now;
        assert_int_equal(come(&world, stray, A), 0);
        if (late == 1) {
            pass(&world, 5000, all, 3);
            assert_int_equal(found(&world, stray, "k"), BYTES_A);
        }
        uint64_t epoch = one->epoch;
        assert_int_equal(come(&world, one, B), MC_ERR_BUSY);
        assert_true(world.core->torn && world.core->veiled);
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(found(&world, stray, "k"), 0);                       /* nothing is offered, */
        assert_int_equal(fake_remove(&world, stray, NULL, "k"), MC_ERR_BUSY); /* nothing removed, */
        assert_int_not_equal(fake_put(&world, stray, "n", 10, 0), 0);         /* nothing put, */
        assert_int_equal(hello_acts(&world, WITNESS), late); /* and a later master need not fear that something was */
        assert_int_equal(statistics_of(&world).clusters_torn, 1);
        for (unsigned i = 0; i < 60; i++) {
            assert_int_equal(one->epoch, epoch);
            if (is_settled_as(&world, B))
                break;
            assert_int_equal(come(&world, one, B), MC_ERR_BUSY);
            assert_int_equal(come(&world, two, B), MC_ERR_BUSY);
            pass(&world, 1000, all, 1);
        }
        assert_true(is_settled_as(&world, B));
        assert_int_equal(come(&world, one, B), 0);
        assert_int_equal(come(&world, two, B), 0);
        world_pass(&world, 200);
        assert_int_equal(found(&world, one, "k"), BYTES_B);
        assert_int_equal(found(&world, one, "m"), BYTES_C);
        assert_int_equal(come(&world, stray, A), MC_ERR_OTHER_CLUSTER);
        assert_int_equal(held(stray, "k")->state, 1);
        free(stray);
        finish(&world, one, two);
    }
}

/* Row 6: a stray comes to many: they go on, it waits and is refused in the end. */
static void test_a_stray_waits_for_the_many(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *stray = node_with(NODE_A, "k", BYTES_A), *one = node_with(NODE_B, "k", BYTES_B),
                      *two = node_with(NODE_C, "m", BYTES_C), *all[] = {one, two};
    begin(&world, NEXT_EPOCH, NONE);
    one->contact_ms = two->contact_ms = stray->contact_ms = world.now;
    assert_int_equal(come(&world, one, B), 0);
    assert_int_equal(come(&world, two, B), 0);
    assert_int_equal(come(&world, stray, A), MC_ERR_BUSY);
    world_pass(&world, GRACE_OVER_MS);
    assert_true(world.core->torn && !world.core->veiled);
    assert_int_equal(found(&world, one, "k"), BYTES_B);
    for (unsigned i = 0; i < 12; i++) {
        pass(&world, 5000, all, 2);
        (void)come(&world, stray, A);
    }
    assert_true(is_settled_as(&world, B));
    assert_int_equal(come(&world, stray, A), MC_ERR_OTHER_CLUSTER);
    assert_int_equal(held(stray, "k")->state, 1);
    assert_int_equal(found(&world, one, "m"), BYTES_C);
    free(stray);
    finish(&world, one, two);
}

/* Row 7: as many of one as of the other: nothing is chosen, however long it takes, until one of them goes. */
static void test_a_tie_is_not_broken(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *stray = node_with(NODE_A, "k", BYTES_A), *one = node_with(NODE_B, "k", BYTES_B),
                      *all[] = {stray};
    begin(&world, NEXT_EPOCH, NONE);
    one->contact_ms = stray->contact_ms = world.now;
    assert_int_equal(come(&world, stray, A), 0);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(come(&world, one, B), MC_ERR_BUSY);
        pass(&world, 1000, all, 1);
    }
    assert_true(is_settled_as(&world, NONE) && world.core->veiled);
    assert_int_equal(hello_acts(&world, WITNESS), 0); /* so the next master takes what one holds */
    world_disconnect(&world, stray->owner);
    world_disconnect(&world, stray->call);
    world_disconnect(&world, stray->heartbeat);
    int32_t code = MC_ERR_BUSY;
    for (unsigned i = 0; i < 30 && code == MC_ERR_BUSY; i++) {
        world_pass(&world, SECOND_MS);
        code = come(&world, one, B);
    }
    assert_int_equal(code, 0);
    assert_true(is_settled_as(&world, B));
    world_pass(&world, 200);
    assert_int_equal(found(&world, one, "k"), BYTES_B);
    finish(&world, stray, one);
}

/* Row 8: what a node of another cluster has met is no evidence against contents, also while the id is open. */
static void test_foreign_evidence_costs_nothing(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *one = node_with(NODE_B, "k", BYTES_B);
    begin(&world, NEXT_EPOCH, NONE);
    one->contact_ms = world.now - 20000;
    uint64_t connection = world_connect(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, WITNESS, FIRST_LIFE);
    hello.seen_epoch = EPOCH_OF_A;
    hello.cluster = A;
    assert_int_equal(world_greet(&world, connection, &hello).code, 0);
    size_t frame = world_begin(&world, MC_MESSAGE_PING, 2);
    mc_wire_none_write(&world.frame, &(struct mc_wire_none){0});
    world_send(&world, connection, frame);
    assert_int_equal(world.core->evidence_count, 1);
    assert_int_equal(come(&world, one, B), 0);
    world_pass(&world, GRACE_OVER_MS);
    assert_int_equal(found(&world, one, "k"), BYTES_B);
    finish(&world, one, NULL);
}

/* Nobody is told before it is kept for the masters to come. */
static void test_told_when_it_is_kept(void **state)
{
    struct world world;
    (void)state;
    struct mc_core_config config = config_of(A);
    config.asks_to_keep_cluster = true;
    world = (struct world){.now = 1000000, .next_connection = 1};
    master_start(&world, NEXT_EPOCH, &config);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, NODE_A, FIRST_LIFE);
    assert_true(mc_id_is_zero(world_greet(&world, world_connect(&world), &hello).cluster));
    assert_true(mc_core_asks_to_keep_cluster(world.core));
    mc_core_cluster_is_kept(world.core);
    assert_false(mc_core_asks_to_keep_cluster(world.core));
    assert_true(mc_id_equal(world_greet(&world, world_connect(&world), &hello).cluster, A));
    finish(&world, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settled_refuses_foreign_contents),
        cmocka_unit_test(test_settled_takes_the_empty_and_the_silent),
        cmocka_unit_test(test_open_and_of_one_mind),
        cmocka_unit_test(test_made_when_nobody_brought_one),
        cmocka_unit_test(test_what_came_and_left_decides),
        cmocka_unit_test(test_who_only_waited_does_not_decide),
        cmocka_unit_test(test_the_window_waits_while_we_stand_still),
        cmocka_unit_test(test_a_stray_that_comes_first_does_not_decide),
        cmocka_unit_test(test_a_stray_waits_for_the_many),
        cmocka_unit_test(test_a_tie_is_not_broken),
        cmocka_unit_test(test_foreign_evidence_costs_nothing),
        cmocka_unit_test(test_told_when_it_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
