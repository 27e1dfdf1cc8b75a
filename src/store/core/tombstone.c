/* Keys without a value that the table keeps. A tombstone: entries of earlier epochs must not bring the key back, or
 * only those of at least some version. A held key: owners have not confirmed yet that the slots of its last value are
 * cleared. If the master ended now, the one after it would meet that value again; so whoever removes the key waits, and
 * a key that had a value takes no new one. A cell is a tombstone in the list while nothing holds it, else it is held.
 */
#include "store/core/blank.h"
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/miss.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/successor.h"
#include "store/core/tombstone.h"

#include <stdlib.h>
#include <xxhash.h>

#define FINAL 1u /* no entry may bring the key back; above: 1 + number of the base of the least version that may */
_Static_assert(MC_BASES_MAX + 1 <= UINT8_MAX, "a tombstone names its base");

struct mc_object *mc_tombstone_next(const struct mc_object *object)
{
    return (struct mc_object *)(uintptr_t)object->length;
}

static struct mc_object *previous_of(const struct mc_object *object)
{
    return (struct mc_object *)(uintptr_t)((uint64_t)object->first_segment << 32 | object->first_slot);
}

static void set_next(struct mc_object *object, const struct mc_object *next)
{
    object->length = (uint64_t)(uintptr_t)next & ((1ull << 48) - 1);
}

static void set_previous(struct mc_object *object, const struct mc_object *previous)
{
    object->first_slot = (uint32_t)(uintptr_t)previous;
    object->first_segment = (uint16_t)((uint64_t)(uintptr_t)previous >> 32);
}

static void list_add(struct mc_core *core, struct mc_object *object)
{
    set_previous(object, NULL);
    set_next(object, core->tombstones);
    if (core->tombstones != NULL)
        set_previous(core->tombstones, object);
    core->tombstones = object;
    core->tombstone_count++;
    core->statistics.tombstones_made++;
}

static void list_remove(struct mc_core *core, struct mc_object *object)
{
    struct mc_object *next = mc_tombstone_next(object), *previous = previous_of(object);
    if (next != NULL)
        set_previous(next, previous);
    if (previous != NULL)
        set_next(previous, next);
    else
        core->tombstones = next;
    core->tombstone_count--;
}

/* The object becomes a cell without a value; it is in the table and has no replica. */
static void vacate(struct mc_core *core, struct mc_object *object, uint64_t bound)
{
    unsigned base = bound == UINT64_MAX || !mc_is_earlier(core, bound) ? 0 : mc_base_of(core, bound);
    object->tombstone = (uint8_t)(base == 0 ? FINAL : 1 + base);
    object->lease_until_ms = base == 0 ? 0 : (bound - core->bases[base - 1]) & (MC_COUNTER_END - 1);
    object->visible = object->soft = object->hard = 0;
    mc_group_leave(&core->groups, object);
    object->readers = 0;
    object->serial++; /* who reads the object that was here compares in vain */
}

static void forget(struct mc_core *core, struct mc_object *object)
{
    mc_blank_key_left(core, mc_object_key(object));
    mc_objects_remove(&core->objects, object);
    mc_object_free(&core->objects, object);
}

/* ---- when there are too many: a bit for each key, which some other key may share ---- */

static uint64_t gone_bit(const struct mc_core *core, struct mc_span key)
{
    return XXH3_64bits_withSeed(key.data, key.length, core->objects.seed) % MC_GONE_BITS;
}

/* No tombstone is made for the key, but entries of earlier epochs do not bring it back. */
static void note_gone(struct mc_core *core, struct mc_span key)
{
    if (core->gone_bits == NULL) {
        core->gone_bits = calloc(MC_GONE_BITS / 64, sizeof(*core->gone_bits));
        if (mc_recover_open(core))
            mc_core_log(core, MC_CORE_LOG_WARNING,
                        "%llu keys have gone while contents of earlier epochs come back: of those that are still to "
                        "come some that were not removed will be missing",
                        (unsigned long long)core->tombstone_limit);
    }
    if (core->gone_bits == NULL) {
        mc_recover_refuse(core);
        return;
    }
    uint64_t bit = gone_bit(core, key), *word = &core->gone_bits[bit / 64];
    core->gone_count += (*word >> bit % 64 & 1) == 0;
    *word |= 1ull << bit % 64;
}

void mc_tombstone_bits_free(struct mc_core *core)
{
    free(core->gone_bits);
    core->gone_bits = NULL;
    core->gone_count = 0;
}

bool mc_tombstone_may_be(const struct mc_core *core, struct mc_span key)
{
    if (core->gone_bits == NULL)
        return false;
    uint64_t bit = gone_bit(core, key);
    return (core->gone_bits[bit / 64] >> bit % 64 & 1) != 0;
}

/* Nothing holds the cell: it is remembered as a tombstone, if need be. */
static void rest(struct mc_core *core, struct mc_object *object)
{
    bool lets_all = mc_tombstone_lets(core, object, 0);
    if (!mc_recover_remembers(core) || lets_all) {
        forget(core, object);
    } else if (!mc_recover_open(core) || core->tombstone_count >= core->tombstone_limit) {
        note_gone(core, mc_object_key(object));
        forget(core, object);
    } else {
        list_add(core, object);
    }
}

static void begin_held(struct mc_core *core, struct mc_object *object, bool had_value)
{
    object->hard = had_value;
    object->first_slot = MC_NODE_NONE; /* nobody waits */
    core->held_count++;
}

void mc_object_vanish(struct mc_core *core, struct mc_object *object, uint64_t bound, struct mc_wait *wait)
{
    mc_assert(object->live == 0 && object->granted == 0 && object->first_slot == MC_NODE_NONE);
    if (object->successor) {
        mc_successors_remove(core, object);
        mc_object_free(&core->objects, object);
        return;
    }
    mc_miss_vanished(core, object);
    if (object->visible)
        mc_put_end_successors(core, object, NULL);
    bool had_value = object->visible || object->remains > 0;
    if (object->visible) {
        core->visible_count--;
        core->piece_count -= mc_object_is_piece(object);
        mc_pins_uncount(core, object);
    }
    vacate(core, object, bound);
    if (object->clearing == 0) {
        rest(core, object);
        return;
    }
    begin_held(core, object, had_value);
    if (wait != NULL)
        mc_key_wait(core, object, wait);
}

/* A cell for a key that is not in the table; NULL when memory is out. bound: as that of mc_object_vanish(). */
static struct mc_object *cell_make(struct mc_core *core, struct mc_span key, uint64_t bound)
{
    struct mc_object *object = mc_object_create(&core->objects, key);
    if (object == NULL)
        return NULL;
    if (!mc_objects_insert(&core->objects, object)) {
        mc_object_free(&core->objects, object);
        return NULL;
    }
    vacate(core, object, bound);
    return object;
}

static struct mc_object *cell_add(struct mc_core *core, struct mc_span key)
{
    return cell_make(core, key, UINT64_MAX);
}

void mc_tombstone_add(struct mc_core *core, struct mc_span key, struct mc_object *cell)
{
    if (cell != NULL) {
        cell->tombstone = FINAL;
        return;
    }
    if (!mc_recover_remembers(core))
        return;
    cell = mc_recover_open(core) && core->tombstone_count < core->tombstone_limit ? cell_add(core, key) : NULL;
    if (cell == NULL)
        note_gone(core, key);
    else
        list_add(core, cell);
}

struct mc_object *mc_tombstone_enlarge(struct mc_core *core, struct mc_object *object)
{
    struct mc_object *roomy = mc_object_create_roomy(&core->objects, mc_object_key(object));
    if (roomy == NULL)
        return NULL;
    roomy->tombstone = object->tombstone;
    roomy->lease_until_ms = object->lease_until_ms;
    list_remove(core, object);
    forget(core, object);
    bool inserted = mc_objects_insert(&core->objects, roomy);
    mc_assert(inserted); /* into the place of its chain that has just become free */
    list_add(core, roomy);
    return roomy;
}

void mc_tombstone_revive(struct mc_core *core, struct mc_object *object)
{
    if (object->clearing == 0) {
        list_remove(core, object);
    } else {
        mc_assert(object->first_slot == MC_NODE_NONE); /* who waits has made it final */
        core->held_count--;
    }
    object->tombstone = 0;
    object->hard = 0;
    object->length = 0;
    object->lease_until_ms = 0;
    object->soft_until = 0;
    object->first_slot = MC_NODE_NONE;
    object->first_segment = 0;
}

bool mc_tombstone_lets(const struct mc_core *core, const struct mc_object *object, uint64_t version)
{
    return object->tombstone != FINAL && version >= core->bases[object->tombstone - 2] + object->lease_until_ms;
}

bool mc_tombstones_tick(struct mc_core *core)
{
    if (mc_recover_open(core))
        return false;
    for (uint32_t budget = MC_SLICE_TOMBSTONES; budget > 0 && core->tombstones != NULL; budget--) {
        struct mc_object *object = core->tombstones;
        if (mc_tombstone_next(object) != NULL)
            mc_object_prefetch(&core->objects, mc_tombstone_next(object));
        list_remove(core, object);
        rest(core, object);
    }
    return core->tombstones != NULL;
}

/* ---- keys that are held ---- */

bool mc_key_takes_no_value(const struct mc_object *object)
{
    return object->tombstone != 0 && object->clearing > 0 && object->hard;
}

bool mc_key_hides(const struct mc_core *core, const struct mc_object *object)
{
    if (mc_object_waits(object))
        return true;
    if (!object->visible || object->clearing == 0)
        return false;
    for (uint32_t i = 0; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        /* A disk outlives the process that was told: it may end before it has done that. */
        if (segment != NULL && segment->clears.count > 0 && !mc_segment_departed(core, segment) &&
            (segment->state == MC_SEGMENT_SUSPECT ||
             (segment->state == MC_SEGMENT_OK && segment->kind == MC_SEGMENT_DISK)))
            return true;
    }
    return false; /* their CLEARs went out before any of this value's can */
}

uint64_t mc_key_holders(const struct mc_core *core, const struct mc_object *object)
{
    return object->clearing + (uint64_t)(uintptr_t)mc_map_get(&core->held_more, (uintptr_t)object);
}

uint64_t mc_key_remains(const struct mc_core *core, const struct mc_object *object)
{
    return object->remains + (uint64_t)(uintptr_t)mc_map_get(&core->remains_more, (uintptr_t)object);
}

/* Sets how many there are beyond those that the object counts itself. False when memory is out, which it is not when
 * there were some before. */
static bool set_more(struct mc_map *map, const struct mc_object *object, uint64_t more)
{
    (void)mc_map_remove(map, (uintptr_t)object);
    return more == 0 || mc_map_put(map, (uintptr_t)object, (void *)(uintptr_t)more);
}

/* One more node holds the key. False when memory is out. */
static bool count_holder(struct mc_core *core, struct mc_object *object)
{
    if (object->clearing == MC_OBJECT_CLEARING_MAX)
        return set_more(&core->held_more, object, mc_key_holders(core, object) - MC_OBJECT_CLEARING_MAX + 1);
    object->clearing++;
    return true;
}

void mc_key_remains_more(struct mc_core *core, struct mc_node *node)
{
    struct mc_object *object = node->state == MC_NODE_CLEARING ? mc_node_held(node) : NULL;
    if (object == NULL || !object->visible || (node->seen & MC_CLEARING_REMAINS) != 0)
        return;
    if (object->remains < MC_OBJECT_CLEARING_MAX)
        object->remains++;
    else if (!set_more(&core->remains_more, object, mc_key_remains(core, object) - MC_OBJECT_CLEARING_MAX + 1))
        return;
    node->seen |= MC_CLEARING_REMAINS;
}

static void remains_less(struct mc_core *core, struct mc_object *object)
{
    mc_assert(object->remains > 0);
    uint64_t more = mc_key_remains(core, object) - object->remains;
    if (more == 0) {
        object->remains--;
        return;
    }
    bool done = set_more(&core->remains_more, object, more - 1);
    mc_assert(done);
}

static void uncount_holder(struct mc_core *core, struct mc_object *object)
{
    mc_assert(object->clearing > 0);
    uint64_t more = object->clearing < MC_OBJECT_CLEARING_MAX ? 0 : mc_key_holders(core, object) - object->clearing;
    if (more == 0) {
        object->clearing--;
        return;
    }
    bool done = set_more(&core->held_more, object, more - 1);
    mc_assert(done);
}

void mc_key_hold(struct mc_core *core, struct mc_node *node, struct mc_object *object)
{
    mc_assert(node->state == MC_NODE_CLEARING && node->pointer == 0);
    if (object->tombstone != 0 && object->clearing == 0) {
        list_remove(core, object);
        begin_held(core, object, false);
    }
    if (!count_holder(core, object))
        return;
    node->pointer = (uint64_t)(uintptr_t)object & ((1ull << 48) - 1);
}

static void hold_key(struct mc_core *core, struct mc_node *node, struct mc_span key, uint64_t bound)
{
    if (node->state != MC_NODE_CLEARING)
        return; /* the segment is gone */
    struct mc_object *object = mc_objects_find(&core->objects, key);
    if (object == NULL) {
        object = cell_make(core, key, bound);
        if (object == NULL)
            return;
        list_add(core, object);
    }
    mc_key_hold(core, node, object);
}

void mc_key_hold_entry(struct mc_core *core, struct mc_node *node, struct mc_span key)
{
    hold_key(core, node, key, UINT64_MAX);
}

void mc_key_hold_failed(struct mc_core *core, struct mc_node *node, struct mc_span key)
{
    hold_key(core, node, key, 0);
}

void mc_key_release(struct mc_core *core, struct mc_node *node)
{
    struct mc_object *object = mc_node_held(node);
    node->pointer = node->base == MC_BASE_RAW ? node->pointer : 0;
    if (object == NULL)
        return;
    uncount_holder(core, object);
    if ((node->seen & MC_CLEARING_REMAINS) != 0) {
        node->seen &= (uint16_t)~MC_CLEARING_REMAINS;
        remains_less(core, object);
        if (object->remains == 0 && mc_object_waits(object))
            mc_put_replaced(core, object);
    }
    if (object->clearing > 0 || object->tombstone == 0)
        return;
    uint32_t wait = object->first_slot;
    core->held_count--;
    rest(core, object);
    if (wait != MC_NODE_NONE)
        mc_wait_done(core, mc_table_get(&core->waits, wait));
}

/* Who waited last for the key, without those at the end of the chain that have left. So whoever comes and goes leaves
 * one note with a key, not many. */
static struct mc_wait *waiting(struct mc_core *core, struct mc_object *object)
{
    struct mc_wait *last = mc_table_get(&core->waits, object->first_slot);
    while (last->kind == MC_WAIT_BOTH && last->own->connection == NULL)
        last = mc_wait_part(core, last);
    object->first_slot = last->index;
    return last;
}

void mc_key_wait(struct mc_core *core, struct mc_object *object, struct mc_wait *wait)
{
    mc_assert(object->tombstone != 0 && object->clearing > 0);
    object->tombstone = FINAL;
    object->hard = 1; /* a value that came now would begin before the removal is over */
    if (object->first_slot == MC_NODE_NONE) {
        object->first_slot = wait->index;
        wait->outstanding++;
        return;
    }
    struct mc_wait *first = waiting(core, object);
    if (first == wait || first->own == wait)
        return;
    if (first->kind != MC_WAIT_BOTH && first->connection == NULL) {
        mc_wait_done(core, first);
        object->first_slot = wait->index;
        wait->outstanding++;
        return;
    }
    struct mc_wait *both = mc_wait_create(core, MC_WAIT_BOTH, NULL, 0, 0);
    if (both == NULL) {
        wait->code = MC_ERR_BUSY; /* then it is not said to be done */
        return;
    }
    both->before = first; /* which counts this one in the place of the object */
    both->own = wait;
    wait->outstanding++;
    object->first_slot = both->index;
}
