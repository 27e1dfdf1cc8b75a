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

#define DISK_NUMBER 1000u  /* its segment's id */
#define DISK_SPARE 4096u   /* slots beyond what fits, for what is being stored and cleared */
#define STORES_MAX 100000u /* that wait */

enum { CALLER = 1, OWNER, CONNECTIONS };

struct entry { /* of the disk, by slot */
    uint64_t generation;
    bool lives, was_read;
};
struct stored { /* in the order in which they were written */
    uint32_t slot;
    uint64_t generation;
};

struct disk {
    uint32_t segment, blocks, slots, lives;
    struct entry *entries;
    struct stored *order; /* a ring of twice as many as there are slots: some name what lives no more */
    uint32_t head, tail;
    struct stored *waiting; /* a ring, too: what it was told to store and has not done */
    uint32_t waiting_head, waiting_tail, stores_left;
    bool keeps_hit;
};

struct mc_pool {
    struct mc_core *core;
    struct disk disk;
    uint32_t disk_stores;
    struct mc_pool_counts counts;
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

/* ---- the disk ---- */

static void tell_slot(struct mc_pool *pool, enum mc_message type, uint32_t segment, struct stored slot)
{
    size_t at = begin(pool, type);
    if (type == MC_MESSAGE_LIVE) {
        struct mc_wire_live head = {.segment = segment};
        struct mc_wire_live_item item = {.slot = slot.slot, .generation = slot.generation};
        mc_wire_live_write(&pool->in, &head);
        size_t list = mc_list_begin(&pool->in);
        mc_wire_live_item_write(&pool->in, &item);
        mc_list_end(&pool->in, list, 1);
    } else {
        struct mc_wire_segment head = {.segment = segment};
        struct mc_wire_slot item = {.slot = slot.slot, .generation = slot.generation};
        size_t list = mc_wire_segment_head(&pool->in, &head);
        mc_wire_slot_write(&pool->in, &item);
        mc_list_end(&pool->in, list, 1);
    }
    send(pool, OWNER, at);
}

static void write_young(struct mc_pool *pool, struct stored what)
{
    struct disk *disk = &pool->disk;
    disk->order[disk->tail++ % (2 * disk->slots)] = what;
    pool->broken |= disk->tail - disk->head > 2 * disk->slots;
    pool->counts.disk_writes++;
}

/* The oldest goes, or is written once more. */
static void make_room(struct mc_pool *pool)
{
    struct disk *disk = &pool->disk;
    while (disk->lives >= disk->blocks) {
        struct stored oldest = disk->order[disk->head++ % (2 * disk->slots)];
        struct entry *entry = &disk->entries[oldest.slot];
        if (!entry->lives || entry->generation != oldest.generation)
            continue;
        if (disk->keeps_hit && entry->was_read) {
            entry->was_read = false;
            write_young(pool, oldest);
            continue;
        }
        entry->lives = false;
        disk->lives--;
        tell_slot(pool, MC_MESSAGE_LOST, disk->segment, oldest);
    }
}

static void store_one(struct mc_pool *pool, struct stored what)
{
    struct disk *disk = &pool->disk;
    struct entry *entry = &disk->entries[what.slot];
    if (entry->generation >= what.generation)
        return; /* cleared meanwhile */
    make_room(pool);
    *entry = (struct entry){.generation = what.generation, .lives = true};
    disk->lives++;
    write_young(pool, what);
    tell_slot(pool, MC_MESSAGE_LIVE, disk->segment, what);
}

static void hear_stores(struct mc_pool *pool, const struct mc_frame *frame)
{
    struct disk *disk = &pool->disk;
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    for (uint32_t count = mc_list_read(&reader); count > 0; count--) {
        struct mc_wire_store_item item;
        mc_wire_store_item_read(&reader, &item);
        disk->waiting[disk->waiting_tail++ % STORES_MAX] = (struct stored){item.slot, item.generation};
    }
}

static void hear_loads(struct mc_pool *pool, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    for (uint32_t count = mc_list_read(&reader); count > 0; count--) {
        struct mc_wire_load_item item;
        mc_wire_load_item_read(&reader, &item);
        struct entry *entry = &pool->disk.entries[item.disk_slot];
        pool->broken |= !entry->lives || entry->generation != item.disk_generation;
        entry->was_read = true;
        tell_slot(pool, MC_MESSAGE_LIVE, head.segment, (struct stored){item.slot, item.generation});
    }
}

static void hear_clear(struct mc_pool *pool, struct mc_frame *frame)
{
    struct disk *disk = &pool->disk;
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    for (uint32_t count = mc_list_read(&reader); count > 0 && disk->blocks > 0 && head.segment == disk->segment;
         count--) {
        struct mc_wire_slot item;
        mc_wire_slot_read(&reader, &item);
        struct entry *entry = &disk->entries[item.slot];
        if (entry->generation > item.generation)
            continue;
        disk->lives -= entry->lives;
        *entry = (struct entry){.generation = item.generation};
    }
    frame->type = MC_MESSAGE_CLEARED; /* the same records */
    mc_core_input(pool->core, pool->now_ms, OWNER, frame);
}

static void hear(struct mc_pool *pool, struct mc_frame *frame)
{
    if (frame->type == MC_MESSAGE_STORE)
        hear_stores(pool, frame);
    else if (frame->type == MC_MESSAGE_LOAD)
        hear_loads(pool, frame);
    else if (frame->type == MC_MESSAGE_CLEAR)
        hear_clear(pool, frame);
}

static void store_some(struct mc_pool *pool)
{
    struct disk *disk = &pool->disk;
    for (; disk->waiting_head != disk->waiting_tail && disk->stores_left > 0 && !pool->broken; disk->stores_left--)
        store_one(pool, disk->waiting[disk->waiting_head++ % STORES_MAX]);
}

/* The owner clears what it is told to, and moves it, until there is nothing more to tell. */
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
            hear(pool, &frame);
        }
        mc_buffer_free(&told);
        store_some(pool);
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

/* slots 0: as many as an owner would have. */
static void mount(struct mc_pool *pool, uint64_t number, uint64_t capacity, uint32_t slots)
{
    struct mc_wire_mount mount = {.segment_id = {number, number},
                                  .capacity = capacity,
                                  .populated = capacity,
                                  .slot_count = slots > 0 ? slots : mc_slot_count(capacity),
                                  .name = mc_span_string("policy"),
                                  .kind = slots > 0 ? MC_SEGMENT_DISK : MC_SEGMENT_MEMORY};
    size_t at = begin(pool, MC_MESSAGE_MOUNT);
    mc_wire_mount_write(&pool->in, &mount);
    send(pool, OWNER, at);
    struct mc_frame frame;
    size_t used;
    struct mc_wire_mount_reply reply = {0};
    if (mc_frame_parse(pool->out[OWNER].data, pool->out[OWNER].length, &frame, &used) == 1) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        mc_wire_mount_reply_read(&reader, &reply);
    }
    pool->disk.segment = reply.segment; /* the last one is the disk, if there is any */
    pool->out[OWNER].length = 0;
}

/* False when memory is out. */
static bool open_disk(struct mc_pool *pool, const struct mc_pool_settings *settings)
{
    struct disk *disk = &pool->disk;
    pool->disk_stores = settings->disk_stores == 0 ? UINT32_MAX : settings->disk_stores;
    disk->blocks = settings->disk_blocks;
    disk->keeps_hit = settings->disk_keeps_hit;
    if (disk->blocks == 0)
        return true;
    disk->slots = disk->blocks + DISK_SPARE;
    disk->entries = calloc(disk->slots, sizeof(*disk->entries));
    disk->order = calloc(2ull * disk->slots, sizeof(*disk->order));
    disk->waiting = calloc(STORES_MAX, sizeof(*disk->waiting));
    return disk->entries != NULL && disk->order != NULL && disk->waiting != NULL;
}

struct mc_pool *mc_pool_open(const struct mc_pool_settings *settings)
{
    struct mc_pool *pool = calloc(1, sizeof(*pool));
    struct mc_core_output output = {pool, buffer_of, note_closed, NULL, NULL, NULL, NULL, NULL};
    struct mc_core_config config = mc_core_config_default();
    config.recovery_window_ms = 0;
    config.client_ttl_ms = config.depart_ms = FOR_EVER_MS;
    config.policy = mc_eviction_find(settings->policy);
    config.eviction_high_watermark = settings->high_watermark;
    config.eviction_ratio = settings->ratio;
    if (settings->disk_blocks > 0)
        config.offload = settings->disk_on_evict ? MC_OFFLOAD_ON_EVICT : MC_OFFLOAD_ON_PUT;
    config.promotion_on_hit = settings->promotion;
    config.promotion_threshold = settings->promotion_threshold;
    config.promotion_per_heartbeat = UINT32_MAX;
    if (pool != NULL && config.policy != NULL && open_disk(pool, settings))
        pool->core = mc_core_create(&config, &output, (struct mc_id){1, 2}, 1, 7, 0);
    if (pool == NULL || pool->core == NULL) {
        if (pool != NULL)
            mc_pool_close(pool);
        return NULL;
    }
    uint64_t extent = mc_extent_size(settings->block_bytes, KEY_BYTES);
    pool->block_bytes = settings->block_bytes;
    join(pool, CALLER, MC_ROLE_CALL);
    join(pool, OWNER, MC_ROLE_OWNER);
    for (uint32_t i = 0; i < settings->segments; i++) { /* what does not divide goes to the first ones */
        uint32_t share = settings->blocks / settings->segments + (i < settings->blocks % settings->segments);
        mount(pool, i + 1u, share * extent, 0);
    }
    if (settings->disk_blocks > 0)
        mount(pool, DISK_NUMBER, settings->disk_blocks * extent, pool->disk.slots);
    return pool;
}

void mc_pool_close(struct mc_pool *pool)
{
    mc_core_destroy(pool->core);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        mc_buffer_free(&pool->out[i]);
    mc_buffer_free(&pool->in);
    free(pool->disk.entries);
    free(pool->disk.order);
    free(pool->disk.waiting);
    free(pool);
}

/* ---- requests ---- */

static struct mc_span key_of(char key[KEY_BYTES + 1], uint64_t block)
{
    (void)snprintf(key, KEY_BYTES + 1, "block-00%016" PRIx64, block);
    return mc_span(key, KEY_BYTES);
}

/* Those that are missing stay in `blocks`; how many. `coming` gets those that are on their way from the disk; *comings
 * says how many. */
static uint32_t get_round(struct mc_pool *pool, uint64_t *blocks, uint32_t count, uint64_t *coming, uint32_t *comings)
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
        if (found.code == MC_ERR_PUT_IN_PROGRESS)
            coming[(*comings)++] = blocks[i];
        else if (found.code != 0)
            blocks[missing++] = blocks[i];
    }
    pool->out[CALLER].length = 0;
    return missing;
}

/* Those that are missing stay in `blocks`; how many. */
static uint32_t get_some(struct mc_pool *pool, uint64_t *blocks, uint32_t count)
{
    uint64_t coming[BATCH], next[BATCH];
    uint32_t comings = 0, missing = get_round(pool, blocks, count, coming, &comings);
    for (uint32_t rounds = 0; comings > 0 && !pool->broken; rounds++) {
        uint32_t nexts = 0;
        obey(pool);
        uint32_t lost = get_round(pool, coming, comings, next, &nexts);
        memcpy(blocks + missing, coming, lost * sizeof(*blocks));
        missing += lost;
        pool->counts.disk_hits += comings - nexts - lost;
        memcpy(coming, next, nexts * sizeof(*next));
        comings = nexts;
        pool->broken |= rounds == ROUNDS_MAX;
    }
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
        tell_slot(pool, MC_MESSAGE_LIVE, places[i].segment, (struct stored){places[i].slot, places[i].generation});
    pool->out[CALLER].length = 0; /* that the put is done */
    obey(pool);
    return again;
}

int64_t mc_pool_request(struct mc_pool *pool, const uint64_t *blocks, uint32_t count)
{
    int64_t hits = 0;
    pool->disk.stores_left = pool->disk_stores;
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

struct mc_pool_counts mc_pool_counts(const struct mc_pool *pool)
{
    struct mc_core_statistics statistics;
    struct mc_pool_counts counts = pool->counts;
    mc_core_statistics(pool->core, &statistics);
    struct mc_core_curve curve = {.asked.bytes = 0};
    mc_core_curve(pool->core, &curve);
    counts.late = statistics.offload_late;
    for (unsigned i = 0; i < 3; i++)
        counts.expected[i] = curve.points[(const unsigned[]){3, MC_CORE_CURVE_NOW, 11}[i]].ratio;
    return counts;
}
