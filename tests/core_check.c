#include "core_check.h"

#include "store/core/account.h"
#include "store/core/blank.h"
#include "store/core/hint.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/tombstone.h"

struct sums {
    uint64_t used, blank, clearing, quarantine, hard;
    uint32_t granted, live, aged, clears, cuts, late, refused, moves, sent;
};

/* All of its nodes name the same item, which waits; or none. */
static const char *check_waiting(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_node *first = mc_segment_node(core->segments[object->first_segment], object->first_slot);
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        const struct mc_node *node = mc_segment_node(at.segment, at.slot);
        const struct mc_put *put =
            node->list_previous < core->puts.count ? mc_table_get(&core->puts, node->list_previous) : NULL;
        if (node->list_previous != first->list_previous)
            return "the put of an object that waits";
        if (node->list_previous == MC_NODE_NONE)
            continue;
        if (put == NULL || node->list_next >= put->grant_count ||
            put->codes[put->grants[node->list_next].item] != MC_PUT_WAITS)
            return "an object that waits without a put";
    }
    return NULL;
}

static const char *check_object(const struct mc_core *core, const struct mc_object *object,
                                const struct mc_segment *segment, uint32_t slot)
{
    unsigned live = 0, granted = 0;
    uint64_t version = 0;
    unsigned disks = 0;
    bool met = false;
    if (object->tombstone != 0)
        return "a tombstone with a replica";
    if (object->successor ? object->visible != 0 : mc_objects_find(&core->objects, mc_object_key(object)) != object)
        return "an object that is not in the table";
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        const struct mc_node *node = mc_segment_node(at.segment, at.slot);
        if (mc_node_object(node) != object || live + granted > MC_REPLICA_COUNT_MAX)
            return "the chain of an object";
        if (node->replica != MC_REPLICA_LOADED && version != 0 && mc_node_version(core, node) != version)
            return "replicas of different versions";
        version = node->replica != MC_REPLICA_LOADED ? mc_node_version(core, node) : version;
        disks += at.segment->kind == MC_SEGMENT_DISK;
        if ((node->replica == MC_REPLICA_DISK) != (at.segment->kind == MC_SEGMENT_DISK) || disks > 1)
            return "a replica on a disk";
        live += node->state == MC_NODE_LIVE;
        granted += node->state == MC_NODE_GRANTED;
        met |= at.segment == segment && at.slot == slot;
    }
    if (!met || live != object->live || granted != object->granted)
        return "the replicas of an object";
    if (mc_object_waits(object))
        return object->remains == 0 ? "an object that waits for nothing" : check_waiting(core, object);
    return object->visible == (granted == 0 && live > 0 && !object->successor) ? NULL : "visible";
}

static const char *check_grant(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    const struct mc_put *put =
        node->list_previous < core->puts.count ? mc_table_get(&core->puts, node->list_previous) : NULL;
    if (put == NULL || node->list_next >= put->grant_count)
        return "a grant without a put";
    const struct mc_grant *grant = &put->grants[node->list_next];
    return grant->slot == slot && grant->segment == segment->index ? NULL : "a grant of another node";
}

static const char *check_blank(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot)
{
    const struct mc_put *put = mc_table_get(&core->puts, mc_segment_node(segment, slot)->list_previous);
    if (!put->is_blank || put->open != 1 || put->grant_count != 1)
        return "a blank that is none";
    return put->connection == NULL || put->dying || put->connection->blank == put ? NULL : "a blank that nobody knows";
}

static const char *check_move(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    const struct mc_object *object = mc_node_object(node);
    uint64_t packed = (uint64_t)segment->index << 32 | slot;
    if (!object->visible || !object->moving)
        return "a move of an object that does not know it";
    return (uint64_t)(uintptr_t)mc_map_get(&core->moves, (uintptr_t)object) == packed ? NULL
                                                                                      : "a move that is not found";
}

static const char *check_node(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot,
                              struct sums *sums)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    const char *wrong = NULL;
    if (node->state >= MC_NODE_GRANTED && node->state != MC_NODE_DEAD) {
        if (node->base == MC_BASE_RAW ? node->state != MC_NODE_CLEARING : node->base > core->base_count)
            return "the base of a generation";
        if (node->base != 0 && mc_node_generation(core, node) >= core->epoch << MC_EPOCH_SHIFT)
            return "a generation of an earlier epoch that is not";
        if (node->base != 0 && node->state == MC_NODE_GRANTED)
            return "a grant of an earlier epoch";
        if (node->state == MC_NODE_GRANTED && segment->inventory == MC_INVENTORY_EARLIER)
            return "a grant in a segment that is being rebuilt";
    }
    switch (node->state) {
    case MC_NODE_GRANTED:
        sums->granted++;
        wrong = check_grant(core, segment, slot);
        if (mc_node_is_blank(node)) {
            sums->blank += node->size;
            return wrong != NULL ? wrong : check_blank(core, segment, slot);
        }
        sums->used += node->size;
        return wrong != NULL ? wrong : check_object(core, mc_node_object(node), segment, slot);
    case MC_NODE_LIVE:
        sums->used += node->size;
        sums->live++;
        wrong = check_object(core, mc_node_object(node), segment, slot);
        if (wrong != NULL)
            return wrong;
        sums->aged +=
            mc_node_object(node)->visible && !mc_node_object(node)->hard && segment->kind == MC_SEGMENT_MEMORY;
        sums->hard += mc_node_object(node)->visible && mc_node_object(node)->hard ? node->size : 0;
        return NULL;
    case MC_NODE_MOVING:
        sums->used += node->size;
        sums->moves++;
        sums->sent += node->seen;
        return check_move(core, segment, slot);
    case MC_NODE_CLEARING:
        sums->clearing += node->size;
        sums->clears++;
        sums->late += node->seen & MC_CLEARING_LATE;
        sums->refused += (node->seen & MC_CLEARING_REFUSED) != 0;
        if (mc_node_held(node) != NULL && mc_node_held(node)->clearing == 0)
            return "a held key that does not know it";
        return NULL;
    case MC_NODE_QUARANTINE:
        sums->quarantine += node->size;
        sums->cuts++;
        return NULL;
    case MC_NODE_DEAD:
        return segment->state == MC_SEGMENT_GONE ? NULL : "a dead node in a living segment";
    default:
        return NULL;
    }
}

/* All nodes of the list are in one of two states, and its links agree. */
static const char *check_list(const struct mc_segment *segment, const struct mc_node_list *list, uint64_t state)
{
    uint32_t previous = MC_NODE_NONE, count = 0;
    uint64_t ahead = 0;
    bool is_past = false; /* the mark */
    for (uint32_t slot = list->head; slot != MC_NODE_NONE; slot = mc_segment_node(segment, slot)->list_next) {
        const struct mc_node *node = mc_segment_node(segment, slot);
        if (node->state != state || node->list_previous != previous || ++count > list->count)
            return "a list of nodes";
        is_past |= slot == list->mark;
        if (node->ahead == is_past)
            return "the mark of a list";
        ahead += node->ahead ? node->size : 0;
        previous = slot;
    }
    if (is_past != (list->mark != MC_NODE_NONE) || ahead != list->ahead)
        return "what is ahead of a list's mark";
    return list->tail == previous && count == list->count ? NULL : "the ends of a list";
}

/* A node's list is the one that it says. */
static const char *check_policy(const struct mc_core *core, const struct mc_segment *segment)
{
    bool has_uses = core->config.policy->spare != NULL;
    const struct mc_node_list *lists[] = {&segment->normal, &segment->proven};
    for (unsigned proven = 0; proven < 2; proven++)
        for (uint32_t slot = lists[proven]->head; slot != MC_NODE_NONE;) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            if (node->proven != proven || mc_node_object(node)->soft || mc_node_goes_first(node))
                return "a list of the policy";
            if (node->uses > 0 && !has_uses)
                return "a use that the policy does not know";
            slot = node->list_next;
        }
    return NULL;
}

/* What a hint has said of a node is known where it counts. */
static const char *check_hints(const struct mc_segment *segment)
{
    uint64_t fetched = 0, fetching = 0;
    uint64_t fetches = 0, first = 0;
    for (uint32_t slot = 0; slot < segment->space.node_fresh; slot++) {
        const struct mc_node *node = mc_segment_node(segment, slot);
        bool may_be = node->state == MC_NODE_LIVE || node->state == MC_NODE_MOVING;
        if (node->state == MC_NODE_UNUSED || node->state == MC_NODE_FREE)
            continue;
        if (node->listed && (!may_be || segment->kind != MC_SEGMENT_MEMORY))
            return "a hint about what is no replica in memory";
        bool is_fetched = mc_node_is_fetched(node), is_moving = node->state == MC_NODE_MOVING;
        fetched += is_fetched ? node->size : 0;
        fetching += is_fetched && is_moving ? node->size : 0;
        fetches += is_fetched && is_moving;
        first += mc_node_goes_first(node);
    }
    for (uint32_t slot = segment->first.head; slot != MC_NODE_NONE; slot = mc_segment_node(segment, slot)->list_next)
        if (!mc_node_goes_first(mc_segment_node(segment, slot)))
            return "one that goes first, and does not know it";
    return fetched == segment->fetched && fetching == segment->fetching && fetches == segment->fetches &&
                   first == segment->first.count
               ? NULL
               : "what hints have loaded, or let go first";
}

static bool check_place(const struct mc_segment_set *set, const struct mc_segment *segment)
{
    return !mc_set_has(set, segment) || set->items[segment->places[set->which]] == segment;
}

static const char *check_segment(const struct mc_core *core, const struct mc_segment *segment)
{
    struct sums sums = {0};
    const char *wrong = NULL;
    for (uint32_t slot = 0; slot < segment->space.node_fresh && wrong == NULL; slot++)
        wrong = check_node(core, segment, slot, &sums);
    if (wrong != NULL)
        return wrong;
    if (sums.used != segment->used || sums.clearing != segment->clearing || sums.quarantine != segment->quarantine ||
        sums.hard != segment->hard || sums.blank != segment->blank)
        return "sums of a segment";
    if (sums.granted != segment->granted || sums.live != segment->live ||
        (segment->state != MC_SEGMENT_GONE && (sums.late != segment->late || sums.refused != segment->refused)))
        return "counts of a segment";
    if (sums.moves != segment->moves.count || sums.sent != segment->moves_sent)
        return "what the owner is to move";
    if (sums.clears != segment->clears.count || sums.cuts != segment->cuts.count)
        return "what the owner is told";
    wrong = check_list(segment, &segment->clears, MC_NODE_CLEARING);
    wrong = wrong != NULL ? wrong : check_list(segment, &segment->cuts, MC_NODE_QUARANTINE);
    wrong = wrong != NULL ? wrong : check_list(segment, &segment->moves, MC_NODE_MOVING);
    if (segment->state == MC_SEGMENT_GONE || wrong != NULL)
        return wrong;
    if (sums.aged != segment->first.count + segment->normal.count + segment->proven.count + segment->soft.count)
        return "what may be evicted";
    wrong = check_list(segment, &segment->normal, MC_NODE_LIVE);
    wrong = wrong != NULL ? wrong : check_list(segment, &segment->proven, MC_NODE_LIVE);
    wrong = wrong != NULL ? wrong : check_policy(core, segment);
    wrong = wrong != NULL ? wrong : check_list(segment, &segment->soft, MC_NODE_LIVE);
    wrong = wrong != NULL ? wrong : check_list(segment, &segment->first, MC_NODE_LIVE);
    wrong = wrong != NULL ? wrong : check_hints(segment);
    wrong = wrong != NULL ? wrong : mc_space_check(&segment->space);
    bool is_placed_in = segment->state == MC_SEGMENT_OK && segment->kind == MC_SEGMENT_MEMORY;
    if (mc_set_has(&core->ok, segment) != is_placed_in || !check_place(&core->ok, segment))
        return "the array of segments that are trusted";
    if (segment->recovering == mc_link_alone(&segment->recovery))
        return "the list of segments that recover";
    if (segment->state == MC_SEGMENT_OK && (segment->recovering || segment->distrusted || segment->owner == NULL))
        return "a segment that is trusted too early";
    if (!segment->recovering && (segment->inventory != MC_INVENTORY_NONE || segment->dropping))
        return "an inventory of a segment that does not recover";
    if ((segment->probing || segment->distrusted) == mc_link_alone(&segment->watched))
        return "the list of segments that are watched";
    if (!check_place(&core->roomy, segment) ||
        (mc_set_has(&core->roomy, segment) && (segment->state != MC_SEGMENT_OK || segment->leaving)))
        return "the array of segments with room";
    return wrong;
}

static const char *check_puts(const struct mc_core *core)
{
    for (uint32_t i = 0; i < core->puts.count; i++) {
        const struct mc_put *put = mc_table_get(&core->puts, i);
        uint32_t open = 0, waiting = 0;
        if (put == NULL)
            continue;
        for (uint32_t item = 0; item < put->item_count; item++)
            waiting += put->codes[item] == MC_PUT_WAITS;
        if (waiting != put->waiting)
            return "the items of a put that wait";
        for (uint32_t g = 0; g < put->grant_count; g++) {
            const struct mc_grant *grant = &put->grants[g];
            if (grant->slot == MC_NODE_NONE)
                continue;
            const struct mc_node *node = mc_segment_node(core->segments[grant->segment], grant->slot);
            if (node->state != MC_NODE_GRANTED || node->list_previous != i || node->list_next != g)
                return "an open grant";
            open++;
        }
        if (open != put->open || open + waiting == 0)
            return "the open grants of a put";
    }
    return NULL;
}

static const char *check_tombstones(const struct mc_core *core)
{
    uint64_t count = 0;
    for (const struct mc_object *object = core->tombstones; object != NULL; object = mc_tombstone_next(object)) {
        if (++count > core->tombstone_count || object->tombstone == 0 || object->tombstone > core->base_count + 1u)
            return "the list of tombstones";
        if (object->visible || object->live > 0 || object->granted > 0 || object->readers > 0 || object->clearing > 0)
            return "a tombstone that lives";
        if (mc_objects_find(&core->objects, mc_object_key(object)) != object)
            return "a tombstone that is not in the table";
    }
    return count == core->tombstone_count ? NULL : "the count of tombstones";
}

struct holding { /* found in the table */
    const struct mc_core *core;
    uint64_t clearing, remains, held, moving;
    bool lost; /* a waiter is no more */
};

static void count_held(const struct mc_object *object, void *context)
{
    struct holding *holding = context;
    holding->clearing += mc_key_holders(holding->core, object);
    holding->remains += mc_key_remains(holding->core, object);
    holding->moving += object->moving;
    if (object->tombstone == 0 || object->clearing == 0)
        return;
    holding->held++;
    holding->lost |=
        object->first_slot != MC_NODE_NONE && (object->first_slot >= holding->core->waits.count ||
                                               mc_table_get(&holding->core->waits, object->first_slot) == NULL);
}

/* Each is drawn by exactly the numbers that its capacity gives it. */
static const char *check_set(const struct mc_segment_set *set)
{
    uint64_t capacity = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        uint64_t end = capacity + set->items[i]->capacity;
        if (end > set->capacity || mc_set_draw(set, capacity) != i || mc_set_draw(set, end - 1) != i)
            return "a place that is not drawn";
        capacity = end;
    }
    return capacity == set->capacity ? NULL : "a sum";
}

/* Replicas in memory of an object in its tenant's list, or 0 if it should not be there. */
static uint64_t replicas_counted(const struct mc_core *core, const struct mc_object *object,
                                 const struct mc_account *account, const struct mc_object *previous)
{
    const struct mc_holding *holding = mc_object_holding(object);
    uint64_t count = 0;
    if (holding->account != account || holding->previous != previous ||
        mc_account_find(core->objects.accounts, mc_object_key(object)) != account)
        return 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        count += at.segment->kind == MC_SEGMENT_MEMORY;
    return count;
}

/* What tenants have: nodes: replicas in memory of all segments; of which so many bytes are being loaded for hints. */
static const char *check_accounts(const struct mc_core *core, uint64_t nodes, uint64_t fetching)
{
    uint64_t cells = 0, in_use = 0, counted = 0, fetches = core->fetches;
    const struct mc_account *account;
    if (core->objects.accounts == NULL)
        return NULL;
    for (uint32_t i = 0; (account = mc_account_at(core->objects.accounts, i)) != NULL; i++) {
        uint64_t bytes = 0, objects = 0, firm = 0, coming = 0, length = 0;
        const struct mc_object *previous = NULL;
        for (const struct mc_object *object = account->oldest; object != NULL;
             previous = object, object = mc_object_holding(object)->next) {
            uint64_t replicas = replicas_counted(core, object, account, previous);
            if (replicas == 0 || ++objects > account->objects)
                return "the list of a tenant";
            bytes += object->length * replicas;
            firm += mc_firm_bytes(object) * replicas;
            coming += object->successor ? mc_firm_bytes(object) * replicas : 0;
            length += mc_object_is_firm(object) ? object->length * replicas : 0;
            counted += replicas;
        }
        if (previous != account->youngest || objects != account->objects || bytes != account->bytes ||
            firm != account->firm_bytes || coming != account->firm_coming || length != account->firm_length)
            return "what a tenant has";
        cells += account->cells;
        fetching -= account->fetching_bytes;
        fetches -= account->fetching_objects;
    }
    for (uint32_t i = 0; i < MC_OBJECT_SIZES; i++)
        in_use += core->objects.sizes[i].in_use;
    if (fetching != 0 || fetches != 0)
        return "what is loaded for hints of tenants";
    const char *wrong = mc_accounts_check(core->objects.accounts);
    return wrong != NULL || (cells == in_use && counted == nodes) ? wrong : "what all tenants have";
}

/* Each is linked where it belongs, and what it is to replace is there: it would have ended with that. */
static const char *check_successors(const struct mc_core *core, uint64_t count)
{
    uint64_t listed = 0;
    for (uint32_t i = 0; i < MC_SUCCESSOR_BUCKETS; i++) {
        for (const struct mc_object *at = core->successors[i]; at != NULL;
             at = mc_object_membership(at)->next_successor) {
            const struct mc_object *object = mc_objects_find(&core->objects, mc_object_key(at));
            if (!at->successor || !at->roomy || ++listed > count)
                return "the list of values that are to replace others";
            if (at->granted == 0 || mc_object_hash(&core->objects, at) % MC_SUCCESSOR_BUCKETS != i)
                return "a value that is to replace another";
            if (object == NULL || !object->visible || object->serial != at->soft_until)
                return "a value that is to replace one that has gone";
        }
    }
    return listed == count ? NULL : "the count of values that are to replace others";
}

/* What only sums over all segments can tell. */
static const char *check_sums(const struct mc_core *core)
{
    uint64_t objects = 0, clearing = 0, remains = 0, waiting = 0, moving = 0, in_memory = 0, firm = 0, pausing = 0,
             hard = 0, fetches = 0, fetching = 0, successors = 0;
    struct holding holding = {.core = core};
    mc_objects_visit(&core->objects, count_held, &holding);
    if (holding.lost)
        return "a waiter that is no more";
    if (check_set(&core->ok) != NULL || check_set(&core->roomy) != NULL)
        return "the capacity of a set";
    for (uint32_t index = 0; index < core->segment_top; index++) {
        const struct mc_segment *segment = core->segments[index];
        uint64_t firm_before = firm;
        for (uint32_t slot = 0; segment != NULL && slot < segment->space.node_fresh; slot++) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            clearing += node->state == MC_NODE_CLEARING && mc_node_held(node) != NULL;
            remains += node->state == MC_NODE_CLEARING && (node->seen & MC_CLEARING_REMAINS) != 0;
            moving += node->state == MC_NODE_MOVING;
            pausing += node->state == MC_NODE_MOVING && node->uses > 0;
            bool is_fetching = node->state == MC_NODE_MOVING && mc_node_is_fetched(node);
            fetches += is_fetching;
            fetching += is_fetching ? mc_node_object(node)->length : 0;
            if ((node->state != MC_NODE_LIVE && node->state != MC_NODE_GRANTED) || mc_node_is_blank(node))
                continue;
            const struct mc_object *object = mc_node_object(node);
            in_memory += segment->kind == MC_SEGMENT_MEMORY;
            firm += segment->kind == MC_SEGMENT_MEMORY ? mc_firm_bytes(object) : 0;
            hard += segment->kind == MC_SEGMENT_MEMORY ? mc_hard_bytes(object) : 0;
            bool is_first = object->first_segment == index && object->first_slot == slot;
            successors += is_first && object->successor;
            is_first = is_first && !object->successor;
            objects += is_first;
            waiting += is_first && mc_object_waits(object) && node->list_previous != MC_NODE_NONE;
        }
        if (segment != NULL && firm - firm_before != segment->firm_bytes)
            return "what is pinned firmly there";
    }
    for (uint32_t i = 0; i < core->puts.count; i++) {
        const struct mc_put *put = mc_table_get(&core->puts, i);
        waiting -= put == NULL ? 0 : put->waiting;
    }
    if (waiting != 0)
        return "the objects that wait";
    const char *wrong = check_accounts(core, in_memory, fetching);
    wrong = wrong != NULL ? wrong : check_successors(core, successors);
    if (wrong != NULL)
        return wrong;
    if (firm != core->firm.bytes)
        return "what is pinned firmly";
    if (hard != core->firm.hard_bytes)
        return "what is pinned for ever";
    if (fetches != core->fetches)
        return "what is loaded for hints";
    if (pausing != core->pausing)
        return "what is stored for those who pause";
    if (moving != core->moves.count || moving != holding.moving)
        return "the objects that are moved";
    if (clearing != holding.clearing || remains != holding.remains || core->held_count != holding.held)
        return "the keys that are held";
    return objects + core->tombstone_count + holding.held == core->objects.count ? NULL : "an object without a replica";
}

const char *mc_core_check(const struct mc_core *core)
{
    uint64_t segments = 0;
    const char *wrong = mc_objects_check(&core->objects);
    for (uint32_t index = 0; index < core->segment_top && wrong == NULL; index++) {
        if (core->segments[index] == NULL)
            continue;
        segments++;
        wrong = check_segment(core, core->segments[index]);
    }
    if (wrong == NULL && segments != core->segment_count)
        wrong = "the count of segments";
    wrong = wrong != NULL ? wrong : mc_groups_check(&core->groups, &core->objects);
    wrong = wrong != NULL ? wrong : check_puts(core);
    wrong = wrong != NULL ? wrong : check_tombstones(core);
    wrong = wrong != NULL ? wrong : mc_pins_check(core);
    return wrong != NULL ? wrong : check_sums(core);
}
