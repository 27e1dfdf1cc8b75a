/* The core where masters prove their epochs: what is said of others counts with its proof. */
#include "core_owner.h"
#include "store/segment/layout.h"

/* Proofs of a test: whoever knows how could make them. */
static bool proof_make(uint64_t epoch, uint8_t proof[MC_EPOCH_PROOF_BYTES])
{
    memset(proof, (int)(epoch & 0xff), MC_EPOCH_PROOF_BYTES);
    return true;
}
static bool proof_holds(uint64_t epoch, struct mc_span proof)
{
    uint8_t made[MC_EPOCH_PROOF_BYTES];
    (void)proof_make(epoch, made);
    return proof.length == sizeof(made) && memcmp(proof.data, made, sizeof(made)) == 0;
}
static const struct mc_epoch_proofs proofs = {proof_make, proof_holds};

/* A hello with that right, which says that epoch was met, with the proof of another. What the master answers. */
static struct mc_wire_hello_reply say(struct world *world, uint64_t node, uint64_t epoch, uint64_t proved,
                                      uint64_t age_ms, unsigned rights)
{
    uint8_t proof[MC_EPOCH_PROOF_BYTES];
    uint64_t at = world_connect(world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, 1);
    hello.seen_epoch = epoch;
    hello.seen_age_ms = (uint32_t)age_ms;
    if (proved != 0 && proof_make(proved, proof))
        hello.epoch_proof = mc_span(proof, sizeof(proof));
    mc_core_permitted(world->core, world->now, at, rights, 100 + node, "");
    struct mc_wire_hello_reply reply = world_greet(world, at, &hello);
    if (reply.code == 0) {
        assert_true(proof_holds(FIRST_EPOCH, reply.epoch_proof) || proof_holds(NEXT_EPOCH, reply.epoch_proof));
        size_t frame = world_begin(world, MC_MESSAGE_PING, 2); /* a hello alone is no evidence */
        mc_wire_none_write(&world->frame, &(struct mc_wire_none){0});
        world_send(world, at, frame);
        assert_int_equal(world_receive(world, at).type, MC_MESSAGE_PONG);
    }
    world_disconnect(world, at);
    world->next_connection = at;
    return reply;
}

/* A memory is to be mounted that was of that epoch, with the proof of another. */
static void say_by_mount(struct world *world, uint64_t epoch, uint64_t proved)
{
    uint8_t proof[MC_EPOCH_PROOF_BYTES];
    uint64_t owner = world_connect(world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_OWNER, NODE_C, FIRST_LIFE);
    mc_core_permitted(world->core, world->now, owner, MC_RIGHTS_ALL, 100, "");
    assert_int_equal(world_greet(world, owner, &hello).code, 0);
    struct mc_wire_mount mount = world_mount_of(1, MIB, "a");
    mount.epoch = epoch;
    (void)proof_make(proved, proof);
    mount.epoch_proof = mc_span(proof, sizeof(proof));
    size_t frame = world_begin(world, MC_MESSAGE_MOUNT, 2);
    mc_wire_mount_write(&world->frame, &mount);
    world_send(world, owner, frame);
    assert_true(world->connections[owner].closed);
    world_disconnect(world, owner);
    world->next_connection = owner;
}

/* Where epochs are proved nobody moves a master by one that he has made up, whatever he may: and with the proof anybody
 * does, as it is true. */
static void test_wanted_epoch_with_proofs(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.proofs = &proofs;
    world_start(&world, FIRST_EPOCH, &config);
    for (unsigned word = 0; word < 6; word++, world.now += 1000)
        for (unsigned node = 50; node < 54; node++)
            assert_int_equal(say(&world, node, 7, word % 2 == 0 ? 0 : FIRST_EPOCH, 0, MC_RIGHTS_ALL).code,
                             MC_ERR_PROTOCOL);
    assert_int_equal(mc_core_wanted_epoch(world.core), 0);
    assert_int_equal(statistics_of(&world).epochs_doubted, 24);
    for (unsigned word = 0; word < 4; word++, world.now += 1000) /* nor by a MOUNT behind a modest hello */
        say_by_mount(&world, 7, FIRST_EPOCH);
    assert_int_equal(mc_core_wanted_epoch(world.core), 0);
    for (unsigned word = 0; word < 2; word++)
        (void)say(&world, 60, 7, 7, 0, MC_RIGHT_READ);
    assert_int_equal(mc_core_wanted_epoch(world.core), 7 + MC_EPOCH_CARRY);
    for (unsigned word = 0; word < 4; word++, world.now += 1000)
        say_by_mount(&world, 8, 8);
    assert_int_equal(mc_core_wanted_epoch(world.core), 8 + MC_EPOCH_CARRY);
    for (unsigned word = 0; word < 2; word++) /* however late it is: nobody has made it up */
        (void)say(&world, 60, MC_EPOCH_LATEST, MC_EPOCH_LATEST, 0, MC_RIGHT_READ);
    assert_int_equal(mc_core_wanted_epoch(world.core), MC_EPOCH_LATEST + MC_EPOCH_CARRY);
    finish(&world, NULL, NULL);
}

/* Nor does a writer's word cost what a master before has placed, unless he can prove that there was that master. */
static void test_evidence_with_proofs(void **state)
{
    static const struct {
        uint64_t epoch, proved;
        unsigned rights;
        bool counts;
    } cases[] = {
        {4, 0, MC_RIGHT_WRITE, false}, {4, 3, MC_RIGHT_WRITE, false}, {4, 4, MC_RIGHT_WRITE, true},
        {4, 4, MC_RIGHT_READ, false},  {4, 0, MC_RIGHT_NODE, true},
    };
    struct world world;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        config.proofs = &proofs;
        world_start(&world, NEXT_EPOCH, &config);
        (void)say(&world, WITNESS, cases[i].epoch, cases[i].proved, 5000, cases[i].rights);
        assert_int_equal(world.core->evidence_count, cases[i].counts);
        finish(&world, NULL, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wanted_epoch_with_proofs),
        cmocka_unit_test(test_evidence_with_proofs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
