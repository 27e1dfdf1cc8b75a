/* Where objects go: each segment has the share of new ones that its size is of the whole, so that what is used again
 * lives as long in a small one as in a large one; a node that joins empty gets little more than its share; replicas lie
 * on different machines while there are any. */
#include "core_owner.h"

#define OBJECT (4u << 10)
#define STORES_MAX 32u

struct cluster {
    struct world world;
    struct world_store stores[STORES_MAX];
    unsigned count;
    uint64_t random;
};

static uint64_t random_below(struct cluster *cluster, uint64_t limit)
{
    cluster->random = cluster->random * 6364136223846793005ull + 1442695040888963407ull;
    return (cluster->random >> 33) % limit;
}

static void add(struct cluster *cluster, uint64_t capacity, struct mc_id host)
{
    struct world *world = &cluster->world;
    struct world_store *store = &cluster->stores[cluster->count++];
    uint64_t node = 100 + cluster->count;
    char name[16];
    (void)snprintf(name, sizeof(name), "s%u", cluster->count);
    store->heartbeat = world_join(world, MC_ROLE_HEARTBEAT, node, FIRST_LIFE);
    store->owner = world_join(world, MC_ROLE_OWNER, node, FIRST_LIFE);
    store->call = world_join(world, MC_ROLE_CALL, node, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(node, capacity, name);
    mount.host = host;
    struct mc_wire_mount_reply reply = world_mount(world, store->owner, &mount);
    assert_int_equal(reply.code, 0);
    store->segment = reply.segment;
}

static struct world_store *store_of(struct cluster *cluster, uint32_t segment)
{
    for (unsigned i = 0; i < cluster->count; i++)
        if (cluster->stores[i].segment == segment)
            return &cluster->stores[i];
    fail_msg("no store has segment %u", segment);
    return NULL;
}

static void owners_obey(struct cluster *cluster)
{
    for (unsigned i = 0; i < cluster->count; i++)
        (void)world_owner_obeys(&cluster->world, cluster->stores[i].owner);
    world_settle(&cluster->world, 100);
}

/* The segment that it came to. */
static uint32_t put(struct cluster *cluster, const char *key)
{
    uint64_t call = cluster->stores[0].call;
    struct mc_wire_place place;
    int32_t code = MC_ERR_SPACE_SOON;
    for (unsigned tries = 0; tries < 100 && code != 0; tries++) {
        code = world_grant(&cluster->world, call, 5, key, OBJECT, NULL, &place);
        if (code != 0) /* an evicted value of the key, or of others, is not cleared yet */
            owners_obey(cluster);
    }
    assert_int_equal(code, 0);
    world_live(&cluster->world, store_of(cluster, place.segment)->owner, &place);
    assert_int_equal(world_put_done(&cluster->world, call, 5), 0);
    return place.segment;
}

/* Hits of requests of which half are new and half come back, most of them before as much was put as the whole holds. */
static unsigned hits_of(const uint64_t *capacities, unsigned count)
{
    enum { REQUESTS = 160000, BACK_MAX = 26000 };
    static uint32_t requested[REQUESTS];
    struct cluster cluster = {.random = 4711};
    unsigned hits = 0;
    uint32_t fresh = 0;
    world_open(&cluster.world);
    for (unsigned i = 0; i < count; i++)
        add(&cluster, capacities[i], (struct mc_id){i + 1, 1});
    for (unsigned i = 0; i < REQUESTS; i++) {
        char key[16];
        uint64_t back = 1 + random_below(&cluster, BACK_MAX);
        bool again = random_below(&cluster, 2) == 0 && back <= i;
        requested[i] = again ? requested[i - back] : fresh++;
        (void)snprintf(key, sizeof(key), "%u", requested[i]);
        if (world_exist(&cluster.world, cluster.stores[0].call, key))
            hits++;
        else
            (void)put(&cluster, key);
        if (i % 16 == 0)
            owners_obey(&cluster);
    }
    world_close_all(&cluster.world);
    return hits;
}

/* As one node of their size would: none of them is passed over, or used up before the others. */
static void test_unequal_nodes_keep_as_much(void **state)
{
    uint64_t equal[16], unequal[16], steep[16], whole = 64 * MIB;
    (void)state;
    for (unsigned i = 0; i < 16; i++) {
        equal[i] = 4 * MIB;
        unequal[i] = i < 2 ? 18 * MIB : 2 * MIB;
        steep[i] = i < 2 ? 25 * MIB : MIB;
    }
    unsigned best = hits_of(&whole, 1), same = hits_of(equal, 16), some = hits_of(unequal, 16);
    unsigned least = hits_of(steep, 16);
    print_message("hits: one node %u, 16 equal %u, 9:1 %u, 25:1 %u\n", best, same, some, least);
    assert_true(same * 100 >= best * 98);
    assert_true(some * 100 >= best * 98);
    assert_true(least * 100 >= best * 98);
}

static void test_share_follows_size(void **state)
{
    struct cluster cluster = {.random = 1};
    unsigned in_large = 0, total = 20000;
    (void)state;
    world_open(&cluster.world);
    for (unsigned i = 0; i < 16; i++)
        add(&cluster, i == 7 ? 480 * MIB : 32 * MIB, (struct mc_id){i + 1, 1});
    for (unsigned i = 0; i < total; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%u", i);
        in_large += put(&cluster, key) == cluster.stores[7].segment;
    }
    assert_in_range(in_large, total * 48 / 100, total * 52 / 100);
    world_close_all(&cluster.world);
}

/* Also when it is large: what it gets while the others are full is about twice its share, and no more. */
static void test_who_joins_is_not_where_everything_goes(void **state)
{
    (void)state;
    for (unsigned size = 32; size <= 1024; size *= 4) {
        struct cluster cluster = {.random = 1};
        unsigned in_new = 0, total = 400;
        char key[16];
        world_open(&cluster.world);
        for (unsigned i = 0; i < 8; i++)
            add(&cluster, 32 * MIB, (struct mc_id){i + 1, 1});
        unsigned filled = 0;
        for (; filled < 10000; filled++) {
            (void)snprintf(key, sizeof(key), "%u", filled);
            (void)put(&cluster, key);
            if (filled % 16 == 0)
                owners_obey(&cluster);
        }
        add(&cluster, size * MIB, (struct mc_id){99, 1});
        double share = size / (double)(size + 8 * 32);
        for (unsigned i = 0; i < total; i++) {
            (void)snprintf(key, sizeof(key), "%u", filled + i);
            in_new += put(&cluster, key) == cluster.stores[8].segment;
            if (i % 16 == 0)
                owners_obey(&cluster);
        }
        print_message("joins with %.2f of the memory: got %.2f\n", share, in_new / (double)total);
        assert_true(in_new >= share * total);
        assert_true(in_new <= 2.3 * share * total + 1);
        world_close_all(&cluster.world);
    }
}

/* Where the replicas of one object lie. */
static unsigned hosts_of(struct cluster *cluster, unsigned replicas, const char *key)
{
    static struct world_grants grants;
    struct world_wish wish = {.replica_count = (uint8_t)replicas};
    struct world_item item = {mc_span_string(key), OBJECT};
    struct mc_id hosts[16];
    unsigned count = 0;
    world_put_start(&cluster->world, cluster->stores[0].call, 5, &item, 1, &wish, &grants);
    assert_int_equal(grants.items[0].code, 0);
    assert_int_equal(grants.place_count, replicas);
    for (unsigned i = 0; i < grants.place_count; i++) {
        const struct mc_segment *segment = mc_segment_find(cluster->world.core, grants.places[i].segment);
        unsigned at = 0;
        while (at < count && !mc_id_equal(hosts[at], segment->host))
            at++;
        if (at == count)
            hosts[count++] = segment->host;
        world_live(&cluster->world, store_of(cluster, segment->number)->owner, &grants.places[i]);
    }
    assert_int_equal(world_put_done(&cluster->world, cluster->stores[0].call, 5), 0);
    return count;
}

/* Eight segments each, as a host with eight cards has them. */
static void test_replicas_lie_on_different_hosts(void **state)
{
    struct cluster cluster = {.random = 1};
    char key[16];
    (void)state;
    world_open(&cluster.world);
    for (unsigned i = 0; i < 24; i++)
        add(&cluster, 16 * MIB, (struct mc_id){i < 20 ? 1 : i < 23 ? 2 : 3, 1});
    for (unsigned i = 0; i < 200; i++) {
        (void)snprintf(key, sizeof(key), "two%u", i);
        assert_int_equal(hosts_of(&cluster, 2, key), 2);
        (void)snprintf(key, sizeof(key), "three%u", i);
        assert_int_equal(hosts_of(&cluster, 3, key), 3);
    }
    assert_int_equal(hosts_of(&cluster, 5, "five"), 3); /* there are no more */
    world_close_all(&cluster.world);
}

/* Segments whose machine is not known are not taken for being of one. */
static void test_unknown_hosts_are_different(void **state)
{
    struct cluster cluster = {.random = 1};
    (void)state;
    world_open(&cluster.world);
    add(&cluster, 16 * MIB, (struct mc_id){0, 0});
    add(&cluster, 16 * MIB, (struct mc_id){0, 0});
    assert_int_equal(hosts_of(&cluster, 2, "k"), 1);
    world_close_all(&cluster.world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unequal_nodes_keep_as_much),
        cmocka_unit_test(test_share_follows_size),
        cmocka_unit_test(test_who_joins_is_not_where_everything_goes),
        cmocka_unit_test(test_replicas_lie_on_different_hosts),
        cmocka_unit_test(test_unknown_hosts_are_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
