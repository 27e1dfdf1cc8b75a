/* Feeds a core. Its clock moves by a millisecond when the owner has cleared what it was told to; so no lease ends but
 * with its read. Nobody sends heartbeats, and nobody is given up for that. */
#include "policy/pool.h"

#include "store/core/core.h"
#include "store/core/limits.h"
#include "store/core/policy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 128u /* blocks of one call */
#define ROUNDS_MAX 1000u
#define FOR_EVER_MS (1ull << 40)
#define KEY_BYTES 24u

enum { CALLER = 1, OWNER, CONNECTIONS };

struct mc_pool {
    struct mc_core *core;
    struct mc_buffer out[CONNECTIONS], in;
    uint64_t block_bytes, now_ms;
    bool broken; /* it closed a connection, or said what was not expected */
};

/* ---- the core's surroundings ---- */

static struct mc_buffer *buffer_of(void *context, uint64_t connection)
{
    struct mc_pool *pool = context;
    return &pool->out[connection];
}

static void note_closed(void *context, uint64_t connection)
{
    struct mc_pool *pool = context;
    (void)connection;
    pool->broken = true;
}

static size_t begin(struct mc_pool *pool, enum mc_message type)
{
    pool->in.length = 0;
    return mc_frame_begin(&pool->in, type, 1);
}

static void send(struct mc_pool *pool, uint64_t connection, size_t at)
{
    struct mc_frame frame;
    size_t used;
    mc_frame_end(&pool->in, at);
    if (mc_frame_parse(pool->in.data, pool->in.length, &frame, &used) == 1)
        mc_core_input(pool->core, pool->now_ms, connection, &frame);
    else
        pool->broken = true;
}

/* The first answer to the caller, which must be of that type. */
static struct mc_reader answer(struct mc_pool *pool, enum mc_message type)
{
    struct mc_frame frame;
    size_t used;
    const struct mc_buffer *out = &pool->out[CALLER];
    if (mc_frame_parse(out->data, out->length, &frame, &used) != 1 || frame.type != type) {
        pool->broken = true;
        return mc_reader(NULL, 0);
    }
    return mc_reader(frame.body.data, frame.body.length);
}

/* The owner clears what it is told to, until there is nothing more to tell. */
static void obey(struct mc_pool *pool)
{
    while (pool->out[OWNER].length > 0) {
        struct mc_buffer told = pool->out[OWNER];
        struct mc_frame frame;
        size_t used;
        pool->out[OWNER] = (struct mc_buffer){0};
        for (size_t at = 0; at < told.length; at += used) {
            if (mc_frame_parse(told.data + at, told.length - at, &frame, &used) != 1)
                break;
            if (frame.type != MC_MESSAGE_CLEAR)
                continue;
            frame.type = MC_MESSAGE_CLEARED; /* the same records */
            mc_core_input(pool->core, pool->now_ms, OWNER, &frame);
        }
        mc_buffer_free(&told);
        (void)mc_core_tick(pool->core, ++pool->now_ms);
    }
}

/* ---- opening ---- */

static void join(struct mc_pool *pool, uint64_t connection, uint8_t role)
{
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = role,
                                  .node = {5, 5},
                                  .incarnation = 1};
    mc_core_connected(pool->core, pool->now_ms, connection);
    size_t at = begin(pool, MC_MESSAGE_HELLO);
    mc_wire_hello_write(&pool->in, &hello);
    send(pool, connection, at);
    pool->out[connection].length = 0;
}

static void mount(struct mc_pool *pool, uint64_t number, uint64_t capacity)
{
    struct mc_wire_mount mount = {.segment_id = {number, number},
                                  .capacity = capacity,
                                  .populated = capacity,
                                  .slot_count = mc_slot_count(capacity),
                                  .name = mc_span_string("policy")};
    size_t at = begin(pool, MC_MESSAGE_MOUNT);
    mc_wire_mount_write(&pool->in, &mount);
    send(pool, OWNER, at);
    pool->out[OWNER].length = 0;
}

struct mc_pool *mc_pool_open(const struct mc_pool_settings *settings)
{
    struct mc_pool *pool = calloc(1, sizeof(*pool));
    struct mc_core_output output = {pool, buffer_of, note_closed, NULL, NULL};
    struct mc_core_config config = mc_core_config_default();
    config.recovery_window_ms = 0;
    config.client_ttl_ms = config.depart_ms = FOR_EVER_MS;
    config.policy = mc_eviction_find(settings->policy);
    config.eviction_high_watermark = settings->high_watermark;
    config.eviction_ratio = settings->ratio;
    if (pool != NULL && config.policy != NULL)
        pool->core = mc_core_create(&config, &output, (struct mc_id){1, 2}, 1, 7, 0);
    if (pool == NULL || pool->core == NULL) {
        free(pool);
        return NULL;
    }
    uint64_t extent = mc_extent_size(settings->block_bytes, KEY_BYTES);
    pool->block_bytes = settings->block_bytes;
    join(pool, CALLER, MC_ROLE_CALL);
    join(pool, OWNER, MC_ROLE_OWNER);
    for (uint32_t i = 0; i < settings->segments; i++) { /* what does not divide goes to the first ones */
        uint32_t share = settings->blocks / settings->segments + (i < settings->blocks % settings->segments);
        mount(pool, i + 1u, share * extent);
    }
    return pool;
}

void mc_pool_close(struct mc_pool *pool)
{
    mc_core_destroy(pool->core);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        mc_buffer_free(&pool->out[i]);
    mc_buffer_free(&pool->in);
    free(pool);
}

/* ---- requests ---- */

static struct mc_span key_of(char key[KEY_BYTES + 1], uint64_t block)
{
    (void)snprintf(key, KEY_BYTES + 1, "block-00%016" PRIx64, block);
    return mc_span(key, KEY_BYTES);
}

/* Those that are missing stay in `blocks`; how many. */
static uint32_t get_some(struct mc_pool *pool, uint64_t *blocks, uint32_t count)
{
    struct mc_wire_get head = {0};
    struct mc_wire_none none;
    struct mc_wire_found found;
    char key[KEY_BYTES + 1];
    uint32_t missing = 0;
    size_t at = begin(pool, MC_MESSAGE_GET);
    mc_wire_get_write(&pool->in, &head);
    size_t list = mc_list_begin(&pool->in);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_key item = {.key = key_of(key, blocks[i])};
        mc_wire_key_write(&pool->in, &item);
    }
    mc_list_end(&pool->in, list, count);
    send(pool, CALLER, at);
    struct mc_reader reader = answer(pool, MC_MESSAGE_GET_FOUND);
    mc_wire_none_read(&reader, &none);
    pool->broken |= mc_list_read(&reader) != count;
    for (uint32_t i = 0; i < count && !pool->broken; i++) {
        mc_wire_found_read(&reader, &found);
        if (found.code != 0)
            blocks[missing++] = blocks[i];
    }
    pool->out[CALLER].length = 0;
    return missing;
}

static void put_frame(struct mc_pool *pool, const uint64_t *blocks, uint32_t count)
{
    struct mc_wire_put_start head = {.replica_count = 1};
    char key[KEY_BYTES + 1];
    size_t at = begin(pool, MC_MESSAGE_PUT_START);
    mc_wire_put_start_write(&pool->in, &head);
    size_t list = mc_list_begin(&pool->in);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_put_start_item item = {.length = pool->block_bytes, .key = key_of(key, blocks[i])};
        mc_wire_put_start_item_write(&pool->in, &item);
    }
    mc_list_end(&pool->in, list, count);
    mc_list_empty(&pool->in);
    mc_list_empty(&pool->in);
    send(pool, CALLER, at);
}

static void live(struct mc_pool *pool, const struct mc_wire_place *place)
{
    struct mc_wire_live head = {.segment = place->segment};
    struct mc_wire_live_item item = {.slot = place->slot, .generation = place->generation};
    size_t at = begin(pool, MC_MESSAGE_LIVE);
    mc_wire_live_write(&pool->in, &head);
    size_t list = mc_list_begin(&pool->in);
    mc_wire_live_item_write(&pool->in, &item);
    mc_list_end(&pool->in, list, 1);
    send(pool, OWNER, at);
}

/* Those that found no room yet stay in `blocks`; how many. */
static uint32_t put_round(struct mc_pool *pool, uint64_t *blocks, uint32_t count)
{
    struct mc_wire_place places[BATCH];
    struct mc_wire_granted granted;
    struct mc_wire_none none;
    uint32_t again = 0;
    put_frame(pool, blocks, count);
    struct mc_reader reader = answer(pool, MC_MESSAGE_PUT_GRANTED);
    mc_wire_none_read(&reader, &none);
    pool->broken |= mc_list_read(&reader) != count;
    for (uint32_t i = 0; i < count && !pool->broken; i++) {
        mc_wire_granted_read(&reader, &granted);
        if (granted.code == MC_ERR_SPACE_SOON || granted.code == MC_ERR_PUT_IN_PROGRESS)
            blocks[again++] = blocks[i];
        else
            pool->broken |= granted.code != 0;
    }
    uint32_t place_count = mc_list_read(&reader);
    pool->broken |= place_count != count - again;
    for (uint32_t i = 0; i < place_count && !pool->broken; i++)
        mc_wire_place_read(&reader, &places[i]);
    pool->out[CALLER].length = 0;
    for (uint32_t i = 0; i < place_count && !pool->broken; i++)
        live(pool, &places[i]);
    pool->out[CALLER].length = 0; /* that the put is done */
    obey(pool);
    return again;
}

int64_t mc_pool_request(struct mc_pool *pool, const uint64_t *blocks, uint32_t count)
{
    int64_t hits = 0;
    for (uint32_t done = 0; done < count && !pool->broken; done += BATCH) {
        uint64_t some[BATCH];
        uint32_t all = count - done < BATCH ? count - done : BATCH;
        memcpy(some, blocks + done, all * sizeof(*some));
        uint32_t left = get_some(pool, some, all);
        hits += all - left;
        for (uint32_t rounds = 0; left > 0 && !pool->broken; rounds++) {
            left = put_round(pool, some, left);
            pool->broken |= rounds == ROUNDS_MAX;
        }
    }
    return pool->broken ? -1 : hits;
}
