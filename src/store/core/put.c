/* Puts: P1 to P6 of the ordering page. A PUT_START is answered at once; what it granted is remembered until the last
 * grant has ended, one way or the other: live, cleared (the writer or the owner said that it failed) or cut (nobody can
 * say where the writer is); and of an upsert, until the value before is cleared. */
#include "store/core/account.h"
#include "store/core/blank.h"
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/miss.h"
#include "store/core/offload.h"
#include "store/core/pin.h"
#include "store/core/place.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/slow.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/successor.h"
#include "store/core/tombstone.h"

#include <stdlib.h>

struct mc_put *mc_put_create(struct mc_core *core, struct mc_connection *connection, uint64_t request_id,
                             uint32_t item_count, uint32_t grant_capacity)
{
    size_t head = sizeof(struct mc_put) + (item_count * sizeof(int32_t) + 7) / 8 * 8;
    struct mc_put *put = malloc(head + grant_capacity * sizeof(struct mc_grant));
    if (put == NULL)
        return NULL;
    *put = (struct mc_put){
        .connection = connection,
        .writer = connection->member->writer,
        .request_id = request_id,
        .started_ms = mc_core_life_ms(core),
        .item_count = item_count,
        .grants = (struct mc_grant *)(void *)((char *)put + head),
    };
    put->index = mc_table_add(&core->puts, put);
    if (put->index == UINT32_MAX) {
        free(put);
        return NULL;
    }
    put->writer->references++;
    mc_link_init(&put->of_connection);
    mc_link_init(&put->by_age);
    mc_link_init(&put->of_segment);
    mc_link_append(&connection->puts, &put->of_connection);
    mc_link_append(&core->puts_by_age, &put->by_age);
    return put;
}

void mc_put_destroy(struct mc_core *core, struct mc_put *put)
{
    mc_link_remove(&put->of_connection);
    mc_link_remove(&put->by_age);
    mc_link_remove(&put->of_segment);
    mc_table_remove(&core->puts, put->index);
    mc_writer_release(put->writer);
    free(put);
}

const uint64_t mc_core_put_ms[MC_CORE_PUT_BOUNDS] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30000};

static void count_time(struct mc_core *core, uint64_t took_ms)
{
    unsigned at = 0;
    while (at < MC_CORE_PUT_BOUNDS && took_ms > mc_core_put_ms[at])
        at++;
    core->statistics.put_ms[at]++;
    core->statistics.put_ms_sum += took_ms;
}

static void put_finish(struct mc_core *core, struct mc_put *put)
{
    struct mc_buffer *out = put->connection == NULL ? NULL : mc_core_buffer(core, put->connection->number);
    core->statistics.put_answers++;
    if (put->expected == 0) /* else it copies what is there */
        count_time(core, mc_core_life_ms(core) - put->started_ms);
    if (out != NULL) {
        struct mc_wire_none none = {0};
        mc_blank_tell(core, put, out);
        size_t frame = mc_core_frame(core, out, MC_MESSAGE_PUT_DONE, put->request_id);
        size_t list = mc_wire_none_head(out, &none);
        for (uint32_t i = 0; i < put->item_count; i++) {
            struct mc_wire_code code = {.code = put->codes[i]};
            mc_wire_code_write(out, &code);
        }
        mc_frame_end_list(out, frame, list, put->item_count);
    }
    mc_put_destroy(core, put);
}

/* ---- puts whose answer was lost ----
 *
 * A writer that does not know how a put ended asks for it again. Had it happened, and had its value been removed or
 * replaced since, a second one would bring that value back. So it names the version that it was granted. */

static uint64_t *ended_well_word(const struct mc_core *core, uint64_t counter)
{
    return &core->ended_well[counter / 64 % (MC_ENDED_WELL_MAX / 64)];
}

/* 0: it did not happen, or is still open. OBJECT_ALREADY_EXISTS: it did. PUT_IN_PROGRESS: we may know later. RPC_FAIL:
 * nobody will ever know. */
static int32_t unsure_code(const struct mc_core *core, const struct mc_object *object,
                           const struct mc_wire_put_start_item *item)
{
    uint64_t version = item->unsure;
    uint64_t counter = version - mc_base(core, 0);
    if (version > mc_base(core, 0) && counter <= core->counter && core->counter - counter < MC_ENDED_WELL_MAX)
        return (*ended_well_word(core, counter) >> counter % 64 & 1) != 0 ? MC_ERR_OBJECT_ALREADY_EXISTS : 0;
    /* A master before us granted it. A later version was granted while the writer was waiting: its put may count as
     * what replaced the writer's. */
    if (object != NULL && object->visible && mc_object_stored(core, object)) {
        uint64_t put = mc_object_version_put(core, object);
        /* What went into a blank beside a value that was there may be live with an owner that we have not met. */
        bool may_come = put != 0 && put < version && item->blank_segment != 0 && mc_recover_unsettled(core);
        return put == 0         ? MC_ERR_RPC_FAIL
               : put >= version ? MC_ERR_OBJECT_ALREADY_EXISTS
               : may_come       ? MC_ERR_PUT_IN_PROGRESS
                                : 0;
    }
    if (object != NULL && object->tombstone == 0)
        return 0; /* somebody's value is on its way, or may be back: it is waited for */
    return mc_recover_unsettled(core) ? MC_ERR_PUT_IN_PROGRESS : MC_ERR_RPC_FAIL;
}

/* ---- the end of an item ---- */

/* Nothing of the put is open any more: it is answered, or waits where no grant is left that could be cut. */
static void put_settle(struct mc_core *core, struct mc_put *put)
{
    if (put->open > 0)
        return;
    if (put->waiting == 0)
        put_finish(core, put);
    else
        mc_link_remove(&put->by_age);
}

/* The object is offered: whoever asks whether that put has happened is told so. */
static void count_end(struct mc_core *core, uint64_t counter)
{
    core->statistics.put_end_items++;
    *ended_well_word(core, counter) |= 1ull << counter % 64;
}

struct mc_put *mc_put_waiting(const struct mc_core *core, const struct mc_object *object, uint32_t *item)
{
    struct mc_replica first = mc_replica_first(core, object);
    mc_assert(first.segment != NULL); /* what waits has a place */
    const struct mc_node *node = mc_segment_node(first.segment, first.slot);
    if (node->list_previous == MC_NODE_NONE)
        return NULL;
    struct mc_put *put = mc_table_get(&core->puts, node->list_previous);
    *item = put->grants[node->list_next].item;
    mc_assert(put->waiting > 0 && put->codes[*item] == MC_PUT_WAITS);
    return put;
}

/* What was granted is there, will not be, or waits. */
static void end_item(struct mc_core *core, struct mc_put *put, uint32_t item, int32_t code)
{
    bool is_copy = put->expected != 0, has_failed = code < 0 && code != MC_ERR_PUT_IN_PROGRESS;
    put->codes[item] = code;
    core->statistics.put_end_failures += has_failed;
    core->statistics.copy_ends += code == 0 && is_copy;
    core->statistics.copy_end_failures += has_failed && is_copy;
}

void mc_put_waited(struct mc_core *core, struct mc_put *put, uint32_t item, int32_t code)
{
    end_item(core, put, item, code);
    put->waiting--;
    put_settle(core, put);
}

void mc_put_replaced(struct mc_core *core, struct mc_object *object)
{
    uint32_t item = 0;
    struct mc_put *put = mc_put_waiting(core, object, &item);
    struct mc_replica first = mc_replica_first(core, object);
    mc_assert(first.segment != NULL); /* what waits has a place */
    const struct mc_node *node = mc_segment_node(first.segment, first.slot);
    count_end(core, mc_node_version(core, node) - mc_base(core, 0));
    mc_object_appear(core, object); /* from here on its nodes name their neighbours, not their put */
    if (put == NULL)
        return;
    if (put->open == 0 && put->waiting == 1 && mc_slow_is(core, put->started_ms)) {
        struct mc_slow_note note;
        mc_slow_note(&note, mc_object_key(object));
        mc_slow_tell(core, MC_SLOW_PUT, put->connection, &note, put->started_ms, 0);
    }
    mc_put_waited(core, put, item, 0);
}

/* The writer of what waits has had enough: it will ask how that ended. */
static void put_leave(struct mc_core *core, struct mc_object *object, const struct mc_writer *writer)
{
    uint32_t item = 0;
    struct mc_put *put = mc_put_waiting(core, object, &item);
    if (put == NULL || put->writer != writer)
        return;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        mc_segment_node(at.segment, at.slot)->list_previous = MC_NODE_NONE;
    mc_put_waited(core, put, item, MC_ERR_PUT_IN_PROGRESS);
}

/* The object is whole, and no successor: nothing was there when it was begun. Unless its placement has evicted the
 * value that it was to replace: then it waits for the end of that, as a successor does. */
static enum mc_replace first_value(const struct mc_core *core, struct mc_object *object)
{
    if (object->remains == 0)
        return MC_REPLACE_DONE;
    object->soft_until = (uint32_t)core->now_ms;
    return MC_REPLACE_WAITS;
}

/* Every grant of the item has ended, and some of its replicas are live. */
static void item_whole(struct mc_core *core, struct mc_put *put, uint32_t item, struct mc_object *object,
                       uint64_t counter)
{
    bool successor = object->successor; /* then it is freed here */
    enum mc_replace how = successor ? mc_object_replace(core, object, put->expected) : first_value(core, object);
    end_item(core, put, item, how == MC_REPLACE_DONE ? 0 : how == MC_REPLACE_WAITS ? MC_PUT_WAITS : MC_ERR_STALE);
    put->waiting += how == MC_REPLACE_WAITS;
    if (how == MC_REPLACE_DONE)
        count_end(core, counter);
    if (how == MC_REPLACE_DONE && !successor)
        mc_object_appear(core, object);
}

/* ---- the end of a grant ---- */

enum grant_end { GRANT_LIVE, GRANT_CLEAR, GRANT_CUT, GRANT_STALE }; /* STALE: cut, for what it is to replace is going */

/* The put of the grant is freed when this was its last. */
static void grant_end(struct mc_core *core, struct mc_segment *segment, uint32_t slot, enum grant_end how)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_object *object = mc_node_object(node);
    struct mc_put *put = mc_table_get(&core->puts, node->list_previous);
    if (mc_node_is_blank(node)) {
        if (how == GRANT_LIVE)
            mc_blank_filled(put);
        else
            mc_blank_end(core, segment, slot, how == GRANT_CUT);
        return;
    }
    struct mc_grant *grant = &put->grants[node->list_next];
    mc_assert(node->state == MC_NODE_GRANTED && grant->slot == slot && grant->segment == segment->index);
    uint64_t counter = ((uint64_t)node->generation_high << 32 | node->generation_low) - node->replica;
    struct mc_slow_note note = {.is_slow = false};
    if (put->open == 1 && mc_slow_is(core, put->started_ms))
        mc_slow_note(&note, mc_object_key(object)); /* which may be gone below */
    segment->granted--;
    object->granted--;
    if (how == GRANT_LIVE) {
        node->state = MC_NODE_LIVE;
        node->seen = segment->round;
        segment->live++;
        object->live++;
    } else {
        mc_object_unlink(core, object, segment, slot);
        if (how == GRANT_CLEAR)
            mc_node_clear(core, segment, slot, object);
        else
            mc_node_cut(core, segment, slot, object, put->writer);
        if (put->expected != 0 || how == GRANT_STALE)
            mc_key_remains_more(core, node);
    }
    grant->slot = MC_NODE_NONE;
    put->open--;
    if (put->connection != NULL)
        put->connection->grants--;
    if (object->granted == 0 && object->live > 0) {
        put->waiting++; /* another upsert of the key that ends here may be of this put */
        item_whole(core, put, grant->item, object, counter);
        put->waiting--;
    } else if (object->granted == 0) {
        end_item(core, put, grant->item, how == GRANT_STALE ? MC_ERR_STALE : MC_ERR_TRANSFER_FAIL);
        enum mc_gone leaving = core->leaving;
        core->leaving = how == GRANT_CUT ? MC_GONE_EXPIRED : MC_GONE_FAILED;
        /* Nothing was ever there: what may not come back is what might not before, too. */
        mc_object_vanish(core, object, object->soft_until != 0 ? UINT64_MAX : 0, NULL);
        core->leaving = leaving;
    }
    if (note.is_slow && put->waiting == 0)
        mc_slow_tell(core, MC_SLOW_PUT, put->connection, &note, put->started_ms, put->codes[grant->item]);
    put_settle(core, put);
}

void mc_grant_fail(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    grant_end(core, segment, slot, GRANT_CLEAR);
}

void mc_put_found_live(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    grant_end(core, segment, slot, GRANT_LIVE);
}

/* ---- values that are to replace one, and copies: puts that name the version of which they are another place ---- */

static void end_successor(struct mc_core *core, struct mc_object *successor)
{
    mc_object_unlive(core, successor, true);
    for (uint32_t left = successor->granted; left > 0; left--) { /* with the last it is freed */
        struct mc_replica at = mc_replica_first(core, successor);
        mc_assert(at.segment != NULL);
        grant_end(core, at.segment, at.slot, GRANT_STALE);
    }
}

/* Their writers may make them live any moment, and nobody but us knows that they are stale. So they are among what is
 * to be cleared before anybody hears that the value has gone, or reads the one that has taken its place. */
void mc_put_end_successors(struct mc_core *core, struct mc_object *object, const struct mc_object *except)
{
    mc_offload_cancel(core, object);
    struct mc_object *next;
    for (struct mc_object *at = mc_successor_first(core, object); at != NULL; at = next) {
        next = mc_successor_next(at);
        if (at != except)
            end_successor(core, at);
    }
}

static bool is_copy(const struct mc_core *core, const struct mc_object *successor)
{
    struct mc_replica at = mc_replica_first(core, successor);
    while (at.segment != NULL && mc_segment_node(at.segment, at.slot)->state != MC_NODE_GRANTED)
        at = mc_replica_next(core, at);
    mc_assert(at.segment != NULL); /* else it has replaced what it was to, or has ended */
    const struct mc_put *put = mc_table_get(&core->puts, mc_segment_node(at.segment, at.slot)->list_previous);
    return put->expected != 0;
}

/* May one more be begun? Of copies one at a time, since what remains of them is counted. */
static bool takes_successor(const struct mc_core *core, const struct mc_object *object, bool as_copy)
{
    uint32_t count = 0;
    for (const struct mc_object *at = mc_successor_first(core, object); at != NULL; at = mc_successor_next(at))
        if (++count == MC_SUCCESSORS_MAX || (as_copy && is_copy(core, at)))
            return false;
    return true;
}

/* ---- PUT_START ---- */

struct start { /* one message at work */
    struct mc_connection *connection;
    struct mc_put *put;
    struct mc_placement placement;
    uint32_t replica_count, flags;
    uint64_t expected; /* version that is to be replaced, 0 = any */
    uint64_t pin_ms;   /* of a soft pin */
    uint32_t places;   /* written to core->scratch */
    bool is_head;      /* the item that is looked at is one: see stripe.h */
    bool heads[MC_BATCH_MAX];
};

/* Only segments hold it whose contents nothing can bring back: a new value replaces it. */
static bool given_up(struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica replica;
    if (!object->visible || mc_object_stored(core, object))
        return false;
    for (replica = mc_replica_first(core, object); replica.segment != NULL; replica = mc_replica_next(core, replica))
        if (!mc_segment_ask_departed(core, replica.segment))
            return false;
    return true;
}

/* What is said of a key that the table knows; 0 = it may be put. again: the writer may have been granted it before. */
static int32_t known_code(struct mc_core *core, const struct start *start, struct mc_object *object, bool again)
{
    struct mc_replica replica;
    if (object->tombstone != 0)
        return mc_key_takes_no_value(object) ? MC_ERR_PUT_IN_PROGRESS : 0;
    if (object->visible) {
        /* Of a head without its pieces nobody reads anything. */
        bool is_replaced = (start->flags & MC_PUT_REPLACE) != 0 || !mc_stripe_is_whole(core, object);
        /* The writer's own value may lie where it was granted first, with an owner that has not cleared it yet. If it
         * heard "exists" now, that value could still come back after this one. */
        bool exists = mc_object_stored(core, object);
        if (exists && !is_replaced)
            return again && object->clearing > 0 ? MC_ERR_PUT_IN_PROGRESS : MC_ERR_OBJECT_ALREADY_EXISTS;
        /* While one of its owners is cut off the value stays as it is: readable where it can be read. An owner is also
         * where a grant of the key has failed and is not cleared yet: the value may be live there. */
        if (exists && object->clearing == 0 && mc_object_clearable(core, object, NULL))
            return 0;
        /* Only segments that may be lost hold it: to say "exists" would be a promise that no reader finds kept. One
         * that may be back any moment is waited for. */
        return MC_ERR_PUT_IN_PROGRESS;
    }
    for (replica = mc_replica_first(core, object); replica.segment != NULL; replica = mc_replica_next(core, replica)) {
        const struct mc_node *node = mc_segment_node(replica.segment, replica.slot);
        if (node->state != MC_NODE_GRANTED)
            continue;
        const struct mc_put *put = mc_table_get(&core->puts, node->list_previous);
        return put->connection == start->connection ? MC_ERR_OBJECT_ALREADY_EXISTS : MC_ERR_PUT_IN_PROGRESS;
    }
    return MC_ERR_PUT_IN_PROGRESS;
}

void mc_generation_next(struct mc_core *core, struct mc_node *node, uint8_t replica)
{
    core->has_changed = true;
    core->counter++;
    *ended_well_word(core, core->counter) &= ~(1ull << core->counter % 64);
    if (replica == MC_REPLICA_LOADED) /* as if it was the last of so many: no version of a put is taken */
        core->counter += replica;
    node->base = 0;
    node->generation_low = (uint32_t)core->counter;
    node->generation_high = (uint8_t)(core->counter >> 32);
    node->replica = replica;
}

/* Makes the node a grant of the put and tells the writer of it. */
static void grant_add(struct mc_core *core, struct start *start, struct mc_object *object, struct mc_segment *segment,
                      uint32_t slot, uint32_t item)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_put *put = start->put;
    mc_generation_next(core, node, object->granted); /* generation - replica is the same for all of them */
    node->proven = 0;                                /* no disk had it, see mc_object_replace */
    node->list_previous = put->index;
    node->list_next = put->grant_count;
    mc_object_link(core, object, segment, slot);
    object->granted++;
    put->grants[put->grant_count++] = (struct mc_grant){slot, segment->index, (uint16_t)item};
    put->open++;
    start->connection->grants++;
    struct mc_wire_place place = {
        .segment = segment->number,
        .slot = slot,
        .generation = mc_node_generation(core, node),
        .offset = (uint64_t)node->offset * MC_EXTENT_UNIT,
        .replica = node->replica,
    };
    place.tag = mc_segment_tag_write(segment, start->connection->member->id, &place, object, start->is_head);
    mc_wire_place_write(&core->scratch, &place);
    start->places++;
}

/* What the wish for a group has to say about a key that may be put otherwise; 0 or the item's code. */
static int32_t group_code(const struct mc_object *object, uint64_t group)
{
    if (group == 0 || object == NULL || (object->tombstone == 0 && mc_object_is_head(object)))
        return 0;
    if (object->tombstone != 0) /* a cell without room for it stays what it is as long as it is held */
        return object->clearing > 0 && !object->roomy ? MC_ERR_PUT_IN_PROGRESS : 0;
    return group == mc_object_group_id(object) ? 0 : MC_ERR_INVALID_PARAMS; /* a key stays in its group */
}

/* Places for the replicas of one item; how many were found. */
static uint32_t places_take(struct mc_core *core, struct start *start, uint64_t units, struct mc_replica *replicas)
{
    uint32_t stamp = ++core->stamp, count = 0;
    start->placement.hopeful = false;
    for (; count < start->replica_count; count++) {
        replicas[count].segment = mc_place(core, &start->placement, stamp, units, &replicas[count].slot);
        if (replicas[count].segment == NULL)
            break;
    }
    return count;
}

/* How many must be found. For another pin of what is there no replica of it is given up. */
static uint32_t places_least(const struct start *start)
{
    return start->expected != 0 && (start->flags & MC_PUT_NEW_PIN) != 0 ? start->replica_count : 1;
}

static void places_return(struct mc_core *core, const struct mc_replica *replicas, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct mc_segment *segment = replicas[i].segment;
        segment->used -= mc_segment_node(segment, replicas[i].slot)->size;
        segment->granted--;
        mc_node_free(core, segment, replicas[i].slot);
    }
}

/* Has its tenant room for it? 0 or the item's code. *object may have made it. What only moves is let through. */
static int32_t admit(struct mc_core *core, const struct start *start, const struct mc_wire_put_start_item *item,
                     struct mc_object **object)
{
    if (!mc_core_counts(core) || start->expected != 0)
        return 0;
    int32_t code = mc_account_admit(core, item->key, *object, item->length, start->replica_count);
    if (code == 0 && *object != NULL)
        *object = mc_objects_find(&core->objects, item->key);
    return code;
}

/* What is but another place of the value before, or is not to change its pin, has the deadline of that. */
static bool keeps_pin(const struct start *start)
{
    return start->expected != 0 ? (start->flags & MC_PUT_NEW_PIN) == 0
                                : (start->flags & (MC_PUT_PINS | MC_PUT_KEEP_PIN)) == MC_PUT_KEEP_PIN;
}

/* Nothing that is there may go; as long as nodes come to this master there will be more. */
static int32_t no_room_code(const struct mc_core *core)
{
    return mc_recover_unsettled(core) || !mc_link_alone(&core->recovering) ? MC_ERR_SPACE_SOON
                                                                           : MC_ERR_NO_AVAILABLE_HANDLE;
}

struct pin_to_be {    /* of a value */
    uint64_t left_ms; /* of that of the value before it */
    bool is_firm, is_refused;
};

/* Is it to be pinned firmly, and may it be? 0, or the item's code. object: whose value it replaces, or NULL. */
static int32_t pin_code(struct mc_core *core, const struct start *start, const struct mc_wire_put_start_item *item,
                        const struct mc_object *object, struct pin_to_be *pin)
{
    bool has_value = object != NULL && object->visible;
    *pin = (struct pin_to_be){.left_ms = has_value ? mc_pin_left_ms(core, object) : 0};
    bool is_wanted = keeps_pin(start) ? has_value && mc_object_is_firm(object)
                                      : (start->flags & MC_PUT_FIRM_PIN) != 0 && start->pin_ms > 0;
    if ((start->flags & MC_PUT_HARD_PIN) != 0 &&
        !mc_hard_fits(core, item->key, object, item->length, start->replica_count))
        return no_room_code(core);
    if (!is_wanted || (start->flags & MC_PUT_HARD_PIN) != 0)
        return 0;
    pin->is_firm = mc_firm_fits(core, item->key, object, item->length, start->replica_count, keeps_pin(start));
    pin->is_refused = !pin->is_firm;
    if (pin->is_refused && start->expected != 0 && keeps_pin(start))
        return MC_ERR_NO_AVAILABLE_HANDLE; /* one more place is not worth the promise */
    return pin->is_refused && (start->flags & MC_PUT_OR_NOT) != 0 ? MC_ERR_FIRM_PIN_REFUSED : 0;
}

/* Places for one item, where it is kept if it is to be pinned firmly; else anywhere: then nothing is promised. 0, or
 * the item's code. */
static int32_t places_find(struct mc_core *core, struct start *start, const struct mc_wire_put_start_item *item,
                           const struct mc_object *object, struct pin_to_be *pin, struct mc_replica *replicas,
                           uint32_t *count)
{
    uint64_t units = mc_extent_units(item->length, item->key.length + (start->is_head ? MC_MARK_LENGTH : 0));
    struct mc_firm_wish *firm = &start->placement.firm;
    *firm = pin->is_firm ? mc_firm_wish(core, object, item->key, item->length) : (struct mc_firm_wish){0};
    firm->is_kept = keeps_pin(start);
    *count = places_take(core, start, units, replicas);
    bool will_be = *count == 0 && start->placement.hopeful;
    if (firm->is_short && *count < start->replica_count && !will_be) {
        pin->is_refused = !firm->is_kept;
        pin->is_firm = firm->is_kept;
        if (pin->is_refused && (start->flags & MC_PUT_OR_NOT) != 0)
            return MC_ERR_FIRM_PIN_REFUSED;
        places_return(core, replicas, *count);
        firm->is_wanted = false;
        *count = places_take(core, start, units, replicas);
    }
    if (*count >= places_least(start))
        return 0;
    return start->placement.hopeful ? MC_ERR_SPACE_SOON : no_room_code(core);
}

/* The pin of what was begun, and what its owner is told of it. */
static void wish_pin(struct mc_core *core, const struct start *start, const struct pin_to_be *pin,
                     struct mc_object *object, struct mc_wire_granted *granted)
{
    core->statistics.firm_pins_refused += pin->is_refused;
    if (object->hard)
        return;
    if (keeps_pin(start)) {
        granted->pin_ms = pin->left_ms;
        mc_pin_wish_left(core, object, pin->left_ms);
    } else if (object->soft) {
        granted->pin_ms = start->pin_ms;
        if (pin->is_firm) /* or its slot, which counts from the COMMIT, might be over before what we say of it */
            mc_pin_wish_left(core, object, start->pin_ms);
        else
            mc_pin_wish(object, start->pin_ms);
    }
    granted->is_firm = object->soft && pin->is_firm;
    if (granted->is_firm)
        mc_firm_begin(object);
}

/* May it be put, as far as its key goes? 0 or the item's code. *object: of the key, or NULL. */
static int32_t item_code(struct mc_core *core, const struct start *start, const struct mc_wire_put_start_item *item,
                         struct mc_object **object)
{
    if (item->key.length == 0 || item->key.length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_KEY;
    if (item->length == 0)
        return MC_ERR_INVALID_PARAMS;
    if (item->length > MC_OBJECT_LENGTH_MAX)
        return MC_ERR_NO_AVAILABLE_HANDLE;
    if (item->unsure != 0 && item->blank_segment != 0)
        mc_blank_name(core, start->connection, item);
    *object = mc_objects_find(&core->objects, item->key);
    if (*object != NULL && given_up(core, *object)) {
        mc_object_drop(core, *object, NULL);
        *object = mc_objects_find(&core->objects, item->key); /* its tombstone, if it left one */
    }
    int32_t code = item->unsure == 0 ? 0 : unsure_code(core, *object, item);
    if (code == 0 && *object != NULL)
        code = known_code(core, start, *object, item->unsure != 0);
    if (code == 0)
        code = start->is_head ? mc_stripe_head_code(core, *object, item->key, item->group, start->expected != 0)
                              : group_code(*object, item->group);
    if (code != 0)
        return code;
    if (start->expected != 0 && (*object == NULL || mc_object_version(core, *object) != start->expected))
        return MC_ERR_STALE;
    if (*object != NULL && !takes_successor(core, *object, start->expected != 0))
        return MC_ERR_PUT_IN_PROGRESS;
    if (start->expected != 0 && mc_jobs_will_meet(core, *object)) /* not past a removal that has still to meet it */
        return MC_ERR_PUT_IN_PROGRESS;
    if (start->connection->grants + start->replica_count > MC_GRANTS_PER_CONNECTION)
        return MC_ERR_BUSY;
    if (start->places + start->replica_count > MC_BATCH_MAX)
        return MC_ERR_SPACE_SOON; /* the answer has no place left for its places; the rest of the batch comes again */
    return 0;
}

/* The object that is put, in the place of the key's (or its cell), which may be NULL; NULL: no memory. */
static struct mc_object *begin_item(struct mc_core *core, const struct start *start,
                                    const struct mc_wire_put_start_item *item, struct mc_object *object, uint64_t group,
                                    struct mc_wire_granted *granted)
{
    bool replaces = object != NULL && object->visible;
    if (replaces) {
        bool was_head = mc_object_is_head(object);
        granted->group = start->is_head && item->group != 0 ? item->group : mc_object_group_id(object);
        if (start->is_head)
            return mc_stripe_succeed(core, object, item->length, start->flags, item->group);
        if (was_head)
            granted->group = 0;
        return mc_object_succeed(core, object, item->length, start->flags);
    }
    object = mc_object_begin(core, object, item->key, item->length, start->flags, group);
    if (object != NULL)
        granted->group = mc_object_group_id(object);
    if (object != NULL && start->is_head)
        mc_group_head(&core->groups, object);
    return object;
}

/* 0 and what was granted, or the item's code. */
static int32_t put_item(struct mc_core *core, struct start *start, const struct mc_wire_put_start_item *item,
                        uint32_t index, struct mc_wire_granted *granted)
{
    struct mc_replica replicas[MC_REPLICA_COUNT_MAX];
    struct mc_object *object = NULL;
    struct pin_to_be pin;
    start->is_head = start->heads[index];
    start->placement.is_spread = start->expected == 0 && mc_key_is_piece(item->key);
    int32_t code = item_code(core, start, item, &object);
    if (code != 0)
        return code;
    /* Kept also when the value that is to be replaced is what has to make room. */
    bool keeps_group = item->group == 0 && object != NULL && (start->is_head || !mc_object_is_head(object));
    uint64_t group = keeps_group ? mc_object_group_id(object) : item->group;
    code = start->expected != 0 ? 0 : mc_account_enter(core, item->key);
    if (code == 0)
        code = pin_code(core, start, item, object, &pin); /* before anything goes for it */
    if (code != 0)
        goto refused;
    code = admit(core, start, item, &object);
    if (code == 0)
        code = pin_code(core, start, item, object, &pin); /* the value that it is to replace may have gone */
    if (code != 0)
        goto refused;
    uint32_t count;
    code = places_find(core, start, item, object, &pin, replicas, &count);
    if (start->expected != 0 && mc_object_version(core, object) != start->expected)
        code = MC_ERR_STALE;         /* it had to make room for its own copy */
    if (code == 0 && start->is_head) /* what had to make room may have been a piece */
        code = mc_stripe_head_code(core, object, item->key, item->group, start->expected != 0);
    if (code != 0)
        goto failed;
    object = begin_item(core, start, item, object, group, granted);
    code = object == NULL ? MC_ERR_NO_MEMORY : 0;
    if (code != 0)
        goto failed;
    wish_pin(core, start, &pin, object, granted);
    for (uint32_t i = 0; i < count; i++)
        grant_add(core, start, object, replicas[i].segment, replicas[i].slot, index);
    core->statistics.put_start_partial += count < start->replica_count;
    granted->replica_count = (uint8_t)count;
    return 0;
failed:
    places_return(core, replicas, count);
refused:
    core->statistics.firm_pins_refused += code == MC_ERR_FIRM_PIN_REFUSED;
    return code;
}

/* Looks all keys up together, for what that brings into the cache: the answers change as items of the batch are
 * granted. */
static void warm(const struct mc_core *core, const struct mc_wire_put_start_item *items, uint32_t count,
                 struct mc_picks *picks)
{
    struct mc_span keys[MC_BATCH_MAX];
    struct mc_object *found[MC_BATCH_MAX];
    for (uint32_t i = 0; i < count; i++)
        keys[i] = items[i].key;
    mc_objects_find_batch(&core->objects, keys, count, found, picks);
}

/* What found no room counts: in a larger memory it would be there. */
static void note_put(struct mc_core *core, const struct start *start, const struct mc_wire_put_start_item *item,
                     uint64_t hash, int32_t code)
{
    if (code == 0 || code == MC_ERR_NO_AVAILABLE_HANDLE)
        mc_miss_put(core, hash, mc_extent_units(item->length, item->key.length) * start->replica_count);
}

static void start_items(struct mc_core *core, struct start *start, struct mc_buffer *out, uint64_t request_id,
                        const struct mc_wire_put_start_item *items, uint32_t count)
{
    struct mc_wire_none none = {0};
    struct mc_wire_granted granted[MC_BATCH_MAX];
    struct mc_picks picks;
    mc_miss_picks(core, &picks);
    core->scratch.length = 0;
    warm(core, items, count, &picks);
    uint32_t refused = 0;
    for (uint32_t i = 0; i < count; i++) {
        granted[i] = (struct mc_wire_granted){0};
        if (mc_core_counts(core))
            mc_account_puts(core, items[i].key);
        granted[i].code = put_item(core, start, &items[i], i, &granted[i]);
        if (granted[i].code != 0)
            granted[i].replica_count = 0;
        refused += granted[i].code != 0 && granted[i].code != MC_ERR_OBJECT_ALREADY_EXISTS;
        start->put->codes[i] = granted[i].code == 0 ? MC_PUT_OPEN : granted[i].code;
        if (granted[i].code != 0)
            mc_miss_refused(core, items[i].key, granted[i].code);
    }
    core->statistics.put_start_failures += refused;
    core->statistics.put_start_none += refused == count && count > 0;
    core->statistics.put_start_some += refused > 0 && refused < count;
    core->statistics.copy_starts += start->expected != 0 ? count : 0;
    core->statistics.copy_start_failures += start->expected != 0 ? refused : 0;
    if (mc_core_counts(core))
        mc_account_puts(core, mc_span(NULL, 0));
    for (uint32_t i = 0; i < picks.count && start->expected == 0; i++)
        note_put(core, start, &items[picks.list[i].index], picks.list[i].hash, granted[picks.list[i].index].code);
    /* Not begun before: what was evicted may have ended another put of this connection, whose PUT_DONE is there then.
     */
    size_t frame = mc_core_frame(core, out, MC_MESSAGE_PUT_GRANTED, request_id);
    size_t list = mc_wire_none_head(out, &none);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_granted_write(out, &granted[i]);
    mc_list_end(out, list, count);
    size_t places = mc_list_begin(out);
    mc_buffer_append(out, core->scratch.data, core->scratch.length);
    mc_frame_end_list(out, frame, places, start->places);
}

/* No generation of this epoch is left: its master begins again under a later one, as if it had been restarted. */
static void epoch_is_full(struct mc_core *core)
{
    if (core->wanted_epoch == 0)
        mc_core_log(core, MC_CORE_LOG_WARNING, "%llu replicas were placed under this epoch: a later one begins",
                    (unsigned long long)core->counter);
    if (core->wanted_epoch < core->epoch + MC_EPOCH_CARRY)
        core->wanted_epoch = core->epoch + MC_EPOCH_CARRY;
}

/* The key as the core knows it, and its group: that of pieces is their writer's word, of which tenant they are. */
static void take_key(const struct mc_connection *connection, uint64_t expected, struct mc_wire_put_start_item *item,
                     bool *is_head)
{
    bool is_copy = expected != 0 && item->group == 0; /* which has the group of what is there */
    bool is_sound = mc_key_is_sound(item->key, is_copy ? mc_stripe_group(1, 2) : item->group);
    bool is_piece = mc_key_is_piece(item->key);
    item->key = mc_key_canonical(item->key, is_head);
    if (!is_sound)
        item->key.length = 0; /* which is no key */
    else if (!*is_head && !is_piece)
        item->group = mc_scope_group(&connection->scope, item->group);
}

/* Of blank_units, 0 for none, a place is to be granted ahead with the answer. */
static void start_goes_on(struct mc_core *core, const struct start *start, uint64_t blank_units)
{
    if (mc_link_alone(&start->put->by_age)) /* nothing was open for a moment */
        mc_link_append(&core->puts_by_age, &start->put->by_age);
    if (blank_units > 0)
        mc_blank_plan(core, start->put, blank_units);
}

/* Who wishes for anything else does not put into one, and its wish comes before where one was drawn. */
static bool wants_place_ahead(const struct start *start, const struct mc_wire_put_start *head,
                              const struct mc_wire_put_start_item *item)
{
    return (head->flags & MC_PUT_BLANK) != 0 && (head->flags & (MC_PUT_PINS | MC_PUT_REPLACE)) == 0 &&
           start->replica_count == 1 && head->expected == 0 && item->group == 0 &&
           start->placement.preferred_count == 0 && mc_id_is_zero(head->host);
}

void mc_put_start(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_put_start head;
    struct mc_wire_put_start_item items[MC_BATCH_MAX];
    struct start start = {.connection = connection};
    mc_wire_put_start_read(&reader, &head);
    start.expected = head.expected;
    uint32_t count = mc_list_read(&reader);
    for (uint32_t i = 0; i < count; i++) {
        mc_wire_put_start_item_read(&reader, &items[i]);
        mc_connection_keep(connection, &items[i].key, 1);
        take_key(connection, head.expected, &items[i], &start.heads[i]);
    }
    for (uint32_t names = mc_list_read(&reader); names > 0; names--) {
        struct mc_wire_name name;
        mc_wire_name_read(&reader, &name);
        mc_placement_prefer(core, &start.placement, name.name);
    }
    if (!mc_id_is_zero(head.host))
        mc_placement_keep_near(core, &start.placement, head.host);
    start.placement.avoid_stamp = ++core->stamp;
    for (uint32_t avoided = mc_list_read(&reader); avoided > 0; avoided--) {
        struct mc_wire_segment number;
        mc_wire_segment_read(&reader, &number);
        struct mc_segment *segment = mc_segment_find(core, number.segment);
        if (segment != NULL)
            segment->avoid_stamp = start.placement.avoid_stamp;
    }
    core->statistics.put_start_requests++;
    core->statistics.put_start_items += count;
    start.replica_count = head.replica_count == 0 ? 1 : head.replica_count;
    start.flags = head.flags;
    start.pin_ms = head.pin_ms == 0 ? core->config.soft_pin_ttl_ms : head.pin_ms;
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    bool is_pin_too_long = (head.flags & MC_PUT_SOFT_PIN) != 0 && head.pin_ms > core->config.soft_pin_max_ms;
    if (start.replica_count > MC_REPLICA_COUNT_MAX || is_pin_too_long) {
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_INVALID_PARAMS);
        return;
    }
    uint32_t capacity = count * start.replica_count < MC_BATCH_MAX ? count * start.replica_count : MC_BATCH_MAX;
    if (core->counter_end - core->counter <= capacity) {
        epoch_is_full(core);
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_BUSY);
        return;
    }
    start.put = mc_put_create(core, connection, frame->request_id, count, capacity);
    if (start.put == NULL) {
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_BUSY);
        return;
    }
    bool wants_blank = count == 1 && wants_place_ahead(&start, &head, &items[0]);
    if (wants_blank)
        start.placement.first = mc_blank_drawn(core, connection);
    start.put->expected = head.expected;
    start.put->waiting++; /* what makes room for one item may end another one, by which it was to be replaced */
    start_items(core, &start, out, frame->request_id, items, count);
    start.put->waiting--;
    if (start.put->grant_count == 0)
        mc_put_destroy(core, start.put);
    else if (start.put->open == 0)
        put_settle(core, start.put);
    else
        start_goes_on(core, &start, wants_blank ? mc_extent_units(items[0].length, items[0].key.length) : 0);
}

/* ---- LIVE, PUT_REVOKE ---- */

/* The owner holds something live that we do not know (any more): it is to be cleared. These are not awaited. */
static void clear_stale(struct mc_core *core, const struct mc_segment *segment, const struct mc_wire_slot *slots,
                        uint32_t count)
{
    core->statistics.stale_refused += count;
    if (count > 0)
        mc_core_send_slots(core, segment->owner, MC_MESSAGE_CLEAR, segment->number, slots, count);
}

void mc_put_live(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_live head;
    struct mc_wire_slot stale[MC_BATCH_MAX];
    uint32_t stale_count = 0;
    mc_wire_live_read(&reader, &head);
    uint32_t count = mc_list_read(&reader);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    if (segment == NULL || segment->member != connection->member) {
        core->statistics.stale_refused += count; /* of a segment that is gone, or of another epoch */
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_live_item item;
        mc_wire_live_item_read(&reader, &item);
        const struct mc_node *node = mc_space_node_checked(&segment->space, item.slot);
        bool known = node != NULL && node->state != MC_NODE_FREE && node->state != MC_NODE_UNUSED &&
                     mc_node_generation(core, node) == item.generation;
        if (known && node->state == MC_NODE_GRANTED)
            grant_end(core, segment, item.slot, item.code == 0 ? GRANT_LIVE : GRANT_CLEAR);
        else if (known && node->state == MC_NODE_MOVING)
            mc_offload_moved(core, segment, item.slot, item.code == 0);
        else if (item.code == 0 && !(known && node->state == MC_NODE_LIVE)) /* what is live already was said twice */
            stale[stale_count++] = (struct mc_wire_slot){.slot = item.slot, .generation = item.generation};
    }
    clear_stale(core, segment, stale, stale_count);
}

void mc_put_revoke(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_none head;
    mc_wire_none_read(&reader, &head);
    uint32_t count = mc_list_read(&reader);
    core->statistics.put_revoke_requests++;
    core->statistics.put_revoke_failures += count; /* until it is seen that one is open */
    for (; count > 0; count--) {
        struct mc_wire_grant item;
        mc_wire_grant_read(&reader, &item);
        struct mc_segment *segment = mc_segment_find(core, item.segment);
        const struct mc_node *node = segment == NULL ? NULL : mc_space_node_checked(&segment->space, item.slot);
        if (node == NULL || mc_node_generation(core, node) != item.generation)
            continue;
        if (node->state == MC_NODE_LIVE && mc_object_waits(mc_node_object(node)))
            put_leave(core, mc_node_object(node), connection->member->writer);
        if (node->state != MC_NODE_GRANTED)
            continue; /* it has ended otherwise meanwhile */
        const struct mc_put *put = mc_table_get(&core->puts, node->list_previous);
        if (put->writer != connection->member->writer)
            continue;
        core->statistics.put_revokes++;
        core->statistics.put_revoke_failures--;
        core->statistics.copy_revokes += put->expected != 0;
        grant_end(core, segment, item.slot, GRANT_CLEAR);
    }
}

/* ---- the dead and the late ---- */

void mc_put_dies(struct mc_core *core, struct mc_put *put)
{
    if (put->dying || put->open == 0)
        return;
    put->dying = true;
    mc_link_remove(&put->by_age);
    mc_link_append(&core->puts_dying, &put->by_age);
}

void mc_puts_abandon(struct mc_core *core, struct mc_connection *connection, bool keep)
{
    struct mc_link *link = connection->puts.next;
    while (link != &connection->puts) {
        struct mc_put *put = mc_link_of(link, struct mc_put, of_connection);
        link = link->next;
        mc_put_dies(core, put);
        if (keep)
            continue;
        connection->grants -= put->open;
        put->connection = NULL;
        mc_link_remove(&put->of_connection);
    }
}

bool mc_puts_tick(struct mc_core *core)
{
    uint64_t now = mc_core_life_ms(core);
    mc_blanks_tick(core);
    while (!mc_link_alone(&core->puts_by_age)) {
        struct mc_put *put = mc_link_of(core->puts_by_age.next, struct mc_put, by_age);
        if (now - put->started_ms < core->config.put_discard_ms)
            break;
        mc_put_dies(core, put);
    }
    for (uint32_t budget = MC_SLICE_GRANTS; budget > 0 && !mc_link_alone(&core->puts_dying); budget--) {
        struct mc_put *put = mc_link_of(core->puts_dying.next, struct mc_put, by_age);
        mc_assert(put->cursor < put->grant_count); /* an open grant lies ahead, or it would have been freed */
        const struct mc_grant *grant = &put->grants[put->cursor++];
        if (grant->slot != MC_NODE_NONE)
            grant_end(core, core->segments[grant->segment], grant->slot, GRANT_CUT);
    }
    return !mc_link_alone(&core->puts_dying);
}
