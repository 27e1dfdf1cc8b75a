/* Why keys are not there: see the header. */
#include "store/core/miss.h"

#include "store/core/limits.h"
#include "store/core/replica.h"
#include "store/core/segment.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(MC_OBJECT_BATCH >= MC_BATCH_MAX, "all keys of a request may be picked");
_Static_assert(MC_CORE_SPANS == MC_REUSE_SPANS, "the same bounds");

static void remember(struct mc_core *core, uint64_t hash, struct mc_ghost ghost)
{
    mc_ghosts_add(&core->ghosts, core->now_ms, hash, ghost, core->visible_count);
}

void mc_miss_evicted(struct mc_core *core, const struct mc_object *object, bool was_proven, bool is_wanted)
{
    struct mc_ghost ghost = {.why = core->leaving, .is_proven = was_proven, .is_unwanted = !is_wanted};
    mc_assert(mc_gone_is_evicted(core->leaving));
    uint64_t hash = mc_object_hash(&core->objects, object);
    remember(core, hash, ghost);
    if (mc_reuse_has(&core->reuse, hash))
        mc_reuse_evicted(&core->reuse, core->now_ms, hash);
}

void mc_miss_vanished(struct mc_core *core, const struct mc_object *object)
{
    if (mc_gone_is_evicted(core->leaving))
        return; /* that was said before */
    uint64_t hash = mc_object_hash(&core->objects, object);
    remember(core, hash, (struct mc_ghost){.why = core->leaving});
    if (core->leaving == MC_GONE_REMOVED)
        mc_reuse_forget(&core->reuse, hash);
}

void mc_miss_refused(struct mc_core *core, struct mc_span key, int32_t code)
{
    bool is_final = code == MC_ERR_NO_AVAILABLE_HANDLE || code == MC_ERR_NO_MEMORY ||
                    code == MC_ERR_TENANT_QUOTA_EXCEEDED || code == MC_ERR_TENANT_NOT_REGISTERED;
    if (is_final && key.length > 0 && key.length <= MC_KEY_LENGTH_MAX && mc_object_find(core, key) == NULL)
        remember(core, mc_objects_hash(&core->objects, key), (struct mc_ghost){.why = MC_GONE_REFUSED});
}

void mc_miss_put(struct mc_core *core, uint64_t hash, uint64_t units)
{
    if (core->reuse_changes != core->segment_changes || core->reuse_capacity == 0) {
        core->reuse_capacity = mc_segments_capacity(core) / MC_EXTENT_UNIT;
        core->reuse_changes = core->segment_changes;
    }
    mc_reuse_put(&core->reuse, core->now_ms, hash, units, core->reuse_capacity);
}

/* ---- counting ---- */

bool mc_misses_may_look(struct mc_core *core)
{
    uint64_t more = (core->now_ms - core->misses_ms) * MC_MISSES_MS;
    core->misses_ms = core->now_ms;
    core->misses_left = more >= MC_MISSES_AT_ONCE - core->misses_left ? MC_MISSES_AT_ONCE : core->misses_left + more;
    return core->misses_left > 0;
}

void mc_miss_stamp(struct mc_core *core, struct mc_id stamp)
{
    uint32_t at = 0;
    if (mc_id_is_zero(stamp))
        return;
    while (at < core->known_stamp_count && !mc_id_equal(core->known_stamps[at], stamp))
        at++;
    core->known_stamp_count += at == core->known_stamp_count && at < MC_STAMPS_MAX;
    at -= at == MC_STAMPS_MAX; /* the one that was used longest ago is forgotten */
    memmove(core->known_stamps + 1, core->known_stamps, at * sizeof(stamp));
    core->known_stamps[0] = stamp;
}

static bool is_there_with(const struct mc_core *core, struct mc_scope *scope, struct mc_id stamp, struct mc_span local)
{
    uint8_t other[MC_KEY_LENGTH_MAX];
    mc_scope_stamp(scope, stamp);
    if (scope->length + local.length > sizeof(other))
        return false;
    memcpy(other, scope->bytes, scope->length);
    memcpy(other + scope->length, local.data, local.length);
    const struct mc_object *object = mc_object_find(core, mc_span(other, scope->length + local.length));
    return object != NULL && object->visible;
}

/* Has somebody put that key with another stamp of those that are known, or without one? */
static bool has_other_stamp(const struct mc_core *core, struct mc_span key)
{
    struct mc_id own, none = {0, 0};
    struct mc_span tenant = mc_key_scope(key), local = mc_key_local(key);
    struct mc_scope scope = {.length = (uint8_t)tenant.length, .tenant = (uint8_t)tenant.length};
    bool is_stamped = mc_key_stamp(key, &own), is_there = false;
    if (core->known_stamp_count == 0 && !is_stamped)
        return false;
    memcpy(scope.bytes, tenant.data, tenant.length);
    if (is_stamped)
        is_there = is_there_with(core, &scope, none, local);
    for (uint32_t i = 0; i < core->known_stamp_count && !is_there; i++)
        if (!is_stamped || !mc_id_equal(core->known_stamps[i], own))
            is_there = is_there_with(core, &scope, core->known_stamps[i], local);
    return is_there;
}

static enum mc_gone why_of(const struct mc_core *core, struct mc_span key, struct mc_ghost *ghost)
{
    const struct mc_object *object = mc_object_find(core, key);
    *ghost = (struct mc_ghost){.why = MC_GONE_NONE};
    if (object != NULL && object->visible)
        return mc_object_stored(core, object) ? MC_GONE_NONE : MC_GONE_AWAY;
    if (object != NULL)
        return MC_GONE_COMING;
    *ghost = mc_ghosts_find(&core->ghosts, core->now_ms, mc_objects_hash(&core->objects, key));
    if (ghost->why != MC_GONE_NONE)
        return ghost->why;
    return has_other_stamp(core, key) ? MC_GONE_STAMP : MC_GONE_NEVER;
}

void mc_miss_count(struct mc_core *core, struct mc_span key)
{
    struct mc_ghost ghost;
    if (key.length == 0 || key.length > MC_KEY_LENGTH_MAX)
        return;
    core->misses_left -= core->misses_left > 0;
    core->statistics.misses[why_of(core, key, &ghost)]++; /* NONE: a disk has it, and it could not be loaded */
}

/* ---- questions ---- */

void mc_core_why(const struct mc_core *core, struct mc_span key, struct mc_core_why *why)
{
    struct mc_ghost ghost = {.why = MC_GONE_NONE};
    bool is_key = key.length > 0 && key.length <= MC_KEY_LENGTH_MAX;
    *why = (struct mc_core_why){.why = is_key ? why_of(core, key, &ghost) : MC_GONE_NEVER};
    why->known_ms = core->now_ms - mc_ghosts_since_ms(&core->ghosts);
    if (ghost.why == MC_GONE_NONE)
        return;
    why->is_proven = ghost.is_proven;
    why->least_ms = core->now_ms - ghost.to_ms;
    why->most_ms = core->now_ms - ghost.from_ms;
}

static int compare_ages(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

static void tell_ages(const struct mc_reuse *reuse, struct mc_core_ages *ages)
{
    uint64_t last_ms[MC_REUSE_AGES];
    memcpy(ages->counts, reuse->ages, sizeof(ages->counts));
    ages->sum_s = reuse->age_sum_s;
    ages->lately = reuse->evicted < MC_REUSE_AGES ? reuse->evicted : MC_REUSE_AGES;
    ages->least_ms = ages->median_ms = ages->most_ms = 0;
    if (ages->lately == 0)
        return;
    memcpy(last_ms, reuse->last_ms, ages->lately * sizeof(last_ms[0]));
    qsort(last_ms, ages->lately, sizeof(last_ms[0]), compare_ages);
    ages->least_ms = last_ms[0];
    ages->median_ms = last_ms[ages->lately / 2];
    ages->most_ms = last_ms[ages->lately - 1];
}

void mc_core_curve(const struct mc_core *core, struct mc_core_curve *curve)
{
    static const unsigned eighths[MC_CORE_CURVE_POINTS] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32};
    const struct mc_reuse *reuse = &core->reuse;
    curve->capacity = mc_segments_capacity(core);
    curve->known = mc_reuse_depth(reuse) * MC_EXTENT_UNIT;
    curve->found = mc_reuse_found(reuse);
    curve->sample = 1 / (double)(1ull << reuse->shift);
    for (unsigned i = 0; i < MC_CORE_CURVE_POINTS; i++) {
        struct mc_core_curve_point *point = &curve->points[i];
        point->bytes = curve->capacity / 8 * eighths[i];
        point->ratio = mc_reuse_ratio(reuse, point->bytes / MC_EXTENT_UNIT);
    }
    curve->asked.ratio = mc_reuse_ratio(reuse, curve->asked.bytes / MC_EXTENT_UNIT);
    memcpy(curve->span_s, mc_reuse_span_s, sizeof(curve->span_s));
    memcpy(curve->spans, reuse->spans, sizeof(curve->spans));
    curve->span_sum_s = reuse->span_sum_s;
    tell_ages(reuse, &curve->ages);
}
