/* Objects that are read often, and where one more replica of them is to lie. */
#include "store/core/heat.h"

#include "store/core/member.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/wire/proof.h"

#include <stdlib.h>

bool mc_heat_init(struct mc_heat *heat, const struct mc_core_config *config)
{
    if (config->spread == MC_SPREAD_OFF)
        return true;
    double reads = config->spread_reads_per_s * (double)config->spread_window_ms / 1000;
    heat->threshold = reads < 1 ? 1 : reads < UINT32_MAX / 2 ? (uint32_t)reads : UINT32_MAX / 2;
    heat->threshold += (double)heat->threshold < reads;
    heat->entries = calloc(MC_HEAT_ENTRIES, sizeof(*heat->entries));
    return heat->entries != NULL;
}

void mc_heat_destroy(struct mc_heat *heat)
{
    free(heat->entries);
}

/* The entry of that key, or one that it may have; NULL: others, which are read more, have them all. */
static struct mc_heat_entry *entry_find(struct mc_core *core, uint64_t hash)
{
    struct mc_heat_entry *set = &core->heat.entries[hash % (MC_HEAT_ENTRIES / MC_HEAT_WAYS) * MC_HEAT_WAYS];
    struct mc_heat_entry *least = NULL;
    for (unsigned i = 0; i < MC_HEAT_WAYS; i++) {
        struct mc_heat_entry *entry = &set[i];
        if (entry->hash == hash)
            return entry;
        bool is_over = core->now_ms - entry->since_ms >= core->config.spread_window_ms;
        if (is_over && core->now_ms >= entry->quiet_until_ms)
            entry->reads = 0; /* nothing of it counts any more */
        if (core->now_ms >= entry->quiet_until_ms && (least == NULL || entry->reads < least->reads))
            least = entry;
    }
    if (least == NULL || least->reads > 0) {
        if (least != NULL)
            least->reads--;
        return NULL;
    }
    *least = (struct mc_heat_entry){.hash = hash, .since_ms = core->now_ms};
    return least;
}

/* One more read. */
static struct mc_heat_entry *entry_of(struct mc_core *core, uint64_t hash)
{
    struct mc_heat_entry *entry = entry_find(core, hash);
    if (entry == NULL)
        return NULL;
    if (core->now_ms - entry->since_ms >= core->config.spread_window_ms) {
        entry->since_ms = core->now_ms;
        entry->reads = 0;
        entry->is_hot = false;
    }
    entry->reads++;
    return entry;
}

static bool is_among(const struct mc_replica *replicas, uint32_t count, struct mc_id host)
{
    for (uint32_t i = 0; i < count; i++)
        if (mc_id_equal(replicas[i].segment->host, host))
            return true;
    return false;
}

/* The part of what may be used of it that is free with so many units on it; negative: there is no room. */
static double free_part(const struct mc_segment *segment, uint64_t units)
{
    uint64_t bytes = segment->populated < segment->capacity ? segment->populated : segment->capacity;
    const uint64_t whole = bytes / MC_EXTENT_UNIT;
    double all = (double)whole;
    return all <= 0 ? -1 : (all - (double)(segment->used + segment->clearing + segment->quarantine + units)) / all;
}

static bool has_room(const struct mc_segment *segment, uint64_t units)
{
    return segment->kind == MC_SEGMENT_MEMORY && segment->state == MC_SEGMENT_OK && !segment->leaving &&
           !segment->drain && free_part(segment, units) >= MC_HEAT_FREE_PART;
}

/* A copy is the value in place of itself: for a moment there are two of each. */
static bool all_have_room(const struct mc_replica *replicas, uint32_t count, uint64_t units)
{
    for (uint32_t i = 0; i < count; i++)
        if (!has_room(replicas[i].segment, units))
            return false;
    return true;
}

/* On the reader's machine, if that lends memory; else where most is free, but on no machine that has it already. */
static const struct mc_segment *target(const struct mc_core *core, struct mc_id host, uint64_t units,
                                       const struct mc_replica *replicas, uint32_t count)
{
    const struct mc_segment *best = NULL;
    double best_free = 0;
    bool lends = false;
    if (!all_have_room(replicas, count, units))
        return NULL;
    const struct mc_segment *near = mc_id_is_zero(host) ? NULL : mc_segment_by_host(core, host);
    for (; near != NULL; near = near->aliases[MC_ALIAS_HOST].next) {
        if (!mc_id_equal(near->host, host))
            continue;
        if (has_room(near, units))
            return near;
        lends = true;
    }
    for (uint32_t index = 1; index < core->segment_top && !lends; index++) {
        const struct mc_segment *segment = core->segments[index];
        if (segment == NULL || !has_room(segment, units) || mc_id_is_zero(segment->host) || segment->unreachable ||
            is_among(replicas, count, segment->host))
            continue;
        if (free_part(segment, units) > best_free) {
            best = segment;
            best_free = free_part(segment, units);
        }
    }
    return best;
}

uint32_t mc_heat_read(struct mc_core *core, const struct mc_connection *connection, const struct mc_object *object)
{
    struct mc_replica replicas[MC_REPLICA_COUNT_MAX];
    if (mc_object_is_head(object) || mc_object_is_piece(object))
        return 0; /* many nodes serve it anyhow */
    struct mc_heat_entry *entry = entry_of(core, mc_object_hash(&core->objects, object));
    if (entry == NULL || entry->reads < core->heat.threshold)
        return 0;
    core->statistics.hot_objects += !entry->is_hot;
    entry->is_hot = true;
    uint32_t count = mc_object_readable(core, object, replicas, MC_REPLICA_COUNT_MAX);
    if (entry->wanted != 0 && count > entry->replicas) {
        core->statistics.hot_copies++;
        entry->wanted = 0;
    }
    bool may_write = connection->key == 0 || (connection->rights & MC_RIGHT_WRITE) != 0;
    if (object->length > MC_HEAT_BYTES_MAX || mc_object_on_disk(core, object).segment != NULL)
        return 0; /* a disk has it of this version: it would be stored once more */
    if (count == 0 || count >= core->config.spread_replicas_max || core->now_ms < entry->quiet_until_ms || !may_write)
        return 0;
    const struct mc_id host = connection->member->host;
    if (!mc_id_is_zero(host) && is_among(replicas, count, host))
        return 0; /* it is near */
    uint64_t units = mc_object_units(object);
    bool may_be = !mc_object_is_firm(object) ||
                  mc_firm_fits(core, mc_object_key(object), object, object->length, count + 1, true);
    const struct mc_segment *segment = may_be ? target(core, host, units, replicas, count) : NULL;
    if (segment == NULL) {
        entry->quiet_until_ms = core->now_ms + MC_HEAT_NOWHERE_MS;
        return 0;
    }
    entry->quiet_until_ms = core->now_ms + MC_HEAT_QUIET_MS;
    entry->replicas = (uint8_t)count;
    entry->wanted = core->config.spread == MC_SPREAD_ENFORCE;
    core->statistics.hot_copies_wanted++;
    return core->config.spread == MC_SPREAD_ENFORCE ? segment->number : 0;
}
