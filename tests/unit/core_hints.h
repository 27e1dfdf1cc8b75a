/* What tests of hints share. */
#ifndef MC_TEST_CORE_HINTS_H
#define MC_TEST_CORE_HINTS_H

#include "core_moves.h"

#include "store/core/hint.h"

static int32_t say_for(struct world *world, uint64_t connection, unsigned hint, const char *key, uint64_t for_ms)
{
    int32_t code = world_hint(world, connection, hint, key, for_ms);
    world_check(world);
    return code;
}

static int32_t say(struct world *world, uint64_t connection, enum mc_hint hint, const char *key)
{
    return say_for(world, connection, hint, key, 0);
}

/* By a look that is no use. */
static bool is_there(struct world *world, const struct world_store *store, const char *key)
{
    return world_get(world, store->call, key, MC_GET_NO_LEASE, NULL, NULL) == 0;
}

static bool goes_first(const struct world *world, const char *key)
{
    const struct mc_object *object = mc_object_find(world->core, mc_span_string(key));
    return object != NULL && mc_hint_is_first(world->core, object);
}

static void fill(struct world *world, const struct world_store *store, const char *prefix, unsigned count)
{
    char key[32];
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(world_put_hard(world, store, world_name(key, prefix, i), OBJECT, NULL), 0);
}

/* The first that it was told to store. */
static void disk_loses(struct world *world, const struct world_store *store, const struct moves *moves)
{
    struct world_told lost = {.segment = moves->segment, .count = 1};
    lost.slots[0] = (struct mc_wire_slot){.slot = moves->stores[0].slot, .generation = moves->stores[0].generation};
    world_owner_says(world, store->owner, MC_MESSAGE_LOST, &lost);
    world_check(world);
    (void)owner_clears(world, store->owner);
}

/* k0 to k[count - 1] lie on the disk alone. */
static void put_on_disk(struct world *world, const struct world_store *store, unsigned count)
{
    char key[32];
    for (unsigned i = 0; i < count; i++) {
        put_and_store(world, store, world_name(key, "k", i));
        forget_in_memory(world, store, key);
    }
}

/* The next of them is loaded, as its owner does it. */
static void load_one(struct world *world, const struct world_store *store)
{
    static struct moves moves;
    told_moves(world, store->owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    assert_int_equal(moves.count, 1);
    owner_did(world, store->owner, &moves, 0);
}

#endif
