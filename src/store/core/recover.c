/* Recovery: what an owner still holds when the master that placed it is no more (contents of an earlier epoch), or when
 * its process has restarted with its data (takeover within this epoch). The owner lists its contents in INVENTORY
 * frames; nothing is placed in the segment or offered from it before the last was merged.
 *
 * Why a removed object does not come back: within recovery_window_ms of our start a key that goes leaves a tombstone,
 * which says what version of an earlier epoch may still take the key; once something was removed that has no name, or
 * there are too many tombstones, no further entry is taken. After that, for disk_ttl_ms where values go to disks, of
 * the keys that go a bit each is kept, and disks may still bring theirs: machines with much memory start slowly. What
 * the master before us did about a segment that it missed is judged by evidence: it acted only after depart_ms of
 * silence, so a segment is stale if that master is known to have lived so long after the segment's last contact with
 * it. Unless it is known to have acted on nobody's absence.
 */
#include "store/core/blank.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/pin.h"
#include "store/core/progress.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#include <stdlib.h>

bool mc_recover_waits(const struct mc_core *core)
{
    return mc_core_life_ms(core) < core->config.recovery_window_ms;
}

bool mc_recover_open(const struct mc_core *core)
{
    return !core->recovery_over;
}

bool mc_recover_remembers(const struct mc_core *core)
{
    return !core->disks_over && !core->refuse_earlier;
}

/* The window is over, and so is the recovery of whatever began within it, however long that took. */
static void end_when_over(struct mc_core *core)
{
    if (core->disks_over || core->earlier_count > 0 || mc_recover_waits(core) || core->torn ||
        core->now_ms < core->join_until_ms)
        return;
    core->recovery_over = true;
    if (core->config.offload != MC_OFFLOAD_NEVER && mc_core_life_ms(core) < core->config.disk_ttl_ms)
        return;
    core->disks_over = true;
    core->evidence_count = 0;
    mc_tombstone_bits_free(core);
}

void mc_recover_refuse(struct mc_core *core)
{
    if (mc_recover_remembers(core)) {
        core->refuse_earlier = true;
        mc_tombstone_bits_free(core);
        mc_core_log(core, MC_CORE_LOG_INFO, "from now on no contents of earlier epochs are taken");
    }
}

/* ---- generations of earlier epochs ---- */

static bool fits(const struct mc_core *core, uint32_t at, uint64_t value)
{
    return value >= core->bases[at] && value - core->bases[at] < MC_COUNTER_END;
}

unsigned mc_base_of(struct mc_core *core, uint64_t value)
{
    if (core->base_last < core->base_count && fits(core, core->base_last, value))
        return core->base_last + 1;
    for (uint32_t i = 0; i < core->base_count; i++) {
        if (fits(core, i, value)) {
            core->base_last = i;
            return i + 1;
        }
    }
    if (core->base_count == MC_BASES_MAX)
        return 0;
    core->base_last = core->base_count;
    core->bases[core->base_count++] = value >> MC_EPOCH_SHIFT << MC_EPOCH_SHIFT;
    return core->base_last + 1;
}

static bool set_generation(struct mc_core *core, struct mc_node *node, uint64_t generation)
{
    unsigned base = mc_base_of(core, generation);
    if (base == 0)
        return false;
    uint64_t counter = generation - core->bases[base - 1];
    node->base = base & 0xff;
    node->generation_low = (uint32_t)counter;
    node->generation_high = (uint8_t)(counter >> 32);
    return true;
}

/* ---- is it wanted ---- */

/* Nothing is known against these contents; but if a master has acted on them since that contact, and all who heard of
 * it are gone as well, nobody could have told. */
static bool doubtful(const struct mc_core *core, const struct mc_past *past)
{
    return core->config.predecessor_end_ms == 0 && past->epoch > core->config.known_epoch &&
           !mc_evidence_is_whole(core, past) &&
           (int64_t)core->now_ms >= past->contact_ms + (int64_t)core->config.depart_ms;
}

/* In the window what is in doubt is taken, for else each restart without a note would empty the pool. Later it is not:
 * there would be an hour in which all who could have told are gone, as after a power failure. */
const char *mc_recover_unwanted(const struct mc_core *core, const struct mc_past *past, bool is_disk)
{
    bool may_come = is_disk ? !core->disks_over : mc_recover_open(core);
    const char *why = core->refuse_earlier ? "more was removed before they came than can be remembered"
                      : !may_come          ? "the time in which such contents may come is over"
                                           : mc_evidence_against(core, past);
    if (why == NULL && core->recovery_over && doubtful(core, past))
        why = "they come late, and no note of the masters before this one covers the time since (--state_dir)";
    return why;
}

void mc_recover_taken(struct mc_core *core, const struct mc_segment *segment)
{
    if (core->recovery_over && core->gone_count > 0)
        mc_core_log(core, MC_CORE_LOG_INFO,
                    "segment %u (%s) comes late: of what lies there about %llu %% is not taken, though it was not "
                    "removed, for so many keys have gone since this master began",
                    segment->number, segment->name, (unsigned long long)(100 * core->gone_count / MC_GONE_BITS));
    if (!doubtful(core, &segment->past))
        return;
    core->statistics.recovery_in_doubt++;
    if (core->statistics.recovery_in_doubt == 1)
        mc_core_log(
            core, MC_CORE_LOG_WARNING,
            "the contents of segment %u (%s), and perhaps of others, are taken on the word of who is here: their "
            "owner was without a master for %lld ms, and no note of the masters before this one covers that "
            "time. If one of them removed something meanwhile, it may be back. --state_dir keeps a note",
            segment->number, segment->name, (long long)((int64_t)core->now_ms - segment->past.contact_ms));
}

/* ---- the segment ---- */

bool mc_recover_begin(struct mc_core *core, struct mc_segment *segment, enum mc_inventory inventory, uint32_t slot_top)
{
    segment->inventory = (uint8_t)inventory;
    segment->recovering = true;
    segment->told_ms = mc_core_life_ms(core);
    if (inventory == MC_INVENTORY_EARLIER) {
        segment->is_earlier = true;
        core->earlier_count++;
    }
    segment->sequence_known = segment->dropping = false;
    segment->is_untold &= inventory != MC_INVENTORY_TAKEOVER;
    segment->round++;
    mc_progress_begin(core, segment, slot_top);
    if (mc_link_alone(&segment->recovery))
        mc_link_append(&core->recovering, &segment->recovery);
    mc_segment_refresh(core, segment);
    return inventory != MC_INVENTORY_EARLIER || mc_space_rebuild_begin(&segment->space, slot_top);
}

void mc_recover_break_off(struct mc_segment *segment)
{
    segment->is_untold |= segment->inventory == MC_INVENTORY_TAKEOVER;
    segment->inventory = MC_INVENTORY_NONE; /* the next tick waits for it no more */
}

static void acknowledge(struct mc_core *core, const struct mc_connection *to, uint32_t segment, uint32_t sequence,
                        int32_t code)
{
    struct mc_buffer *out = to == NULL ? NULL : mc_core_buffer(core, to->number);
    if (out == NULL)
        return;
    struct mc_wire_inventory_ack head = {.segment = segment, .sequence = sequence, .code = code};
    mc_wire_inventory_ack_frame(out, mc_core_frame(core, out, MC_MESSAGE_INVENTORY_ACK, 0), &head);
}

/* The owner is to bring new memory. */
static void give_up(struct mc_core *core, struct mc_segment *segment, const char *why)
{
    mc_core_tell(core, MC_TOPIC_RECOVERY, MC_CORE_LOG_WARNING, "the contents of segment %u (%s) are not taken: %s",
                 segment->number, segment->name, why);
    acknowledge(core, segment->owner, segment->number, segment->sequence, MC_ERR_STALE);
    mc_segment_give_up(core, segment); /* its owner may not hear of it, and count them as ours */
}

/* What is removed now may lie in a segment that we have not met. The master after us would take that segment's contents
 * unless we had lived depart_ms after its last contact: the same time as with a segment that we know. That contact was
 * with a master before us, so before our start. That nobody told of a master before us proves nothing: perhaps only new
 * processes have come yet. And however long before us the last master ended, by what the election says or by a clock
 * that has leapt: owners that were there all the time can come only since we began, and a client may be quicker. What
 * we slept does not count, since they could not reach us. */
static bool is_of_age(const struct mc_core *core)
{
    return mc_core_life_ms(core) >= core->config.depart_ms;
}

/* That it is of age stands beside the election first, or without one in its note, so that a master of a later boot
 * knows it too. One that is veiled does nothing, however old it is. */
static bool is_young(const struct mc_core *core)
{
    return !core->may_age || !is_of_age(core);
}

bool mc_recover_is_of_age(const struct mc_core *core)
{
    return !is_young(core) && !core->veiled;
}

bool mc_recover_asks_to_age(const struct mc_core *core)
{
    return !core->may_age && is_of_age(core) && !core->veiled;
}

/* Something of the contents of a segment is not known yet. Where all is told and only what was refused is still to be
 * cleared, nothing is left to be met: those keys are held, so each removal that concerns them waits or is told so
 * (mc_key_hides). A disk may never clear them, if its journal cannot be written. */
static bool is_being_told(const struct mc_core *core)
{
    for (const struct mc_link *link = core->recovering.next; link != &core->recovering; link = link->next) {
        const struct mc_segment *segment = mc_link_of(link, struct mc_segment, recovery);
        bool is_told = segment->inventory == MC_INVENTORY_NONE && !segment->dropping;
        if (!is_told || segment->refused == 0 || segment->is_unnamed)
            return true;
    }
    return false;
}

bool mc_recover_unsettled(const struct mc_core *core)
{
    return is_being_told(core) || core->veiled || is_young(core) || mc_core_is_departing(core);
}

bool mc_recover_hides(const struct mc_core *core)
{
    /* What is kept of it for disks that come late counts no more. */
    bool is_told = core->evidence_count > 0 && mc_recover_open(core);
    bool followed = is_told || core->config.predecessor_end_ms != 0 || core->config.aged_epoch != 0;
    return (followed && is_young(core)) || mc_core_is_departing(core);
}

/* What has come here and is offered goes on as it was; a later master meets it again. */
bool mc_recover_acts(const struct mc_core *core)
{
    return core->has_changed || core->has_acted || mc_recover_is_of_age(core);
}

/* From here on the owner counts its contents as of our epoch. Not before: a master that dies while it still learns what
 * the cluster remembers of earlier masters has judged nothing, so what it has merged stays to be judged by the next. */
static void tell_offered(struct mc_core *core, const struct mc_segment *segment)
{
    struct mc_buffer *out = segment->owner == NULL ? NULL : mc_core_buffer(core, segment->owner->number);
    if (out == NULL)
        return; /* the answer to its next mount says it */
    struct mc_wire_segment head = {.segment = segment->number};
    mc_wire_segment_frame(out, mc_core_frame(core, out, MC_MESSAGE_OFFERED, 0), &head);
}

void mc_recover_judged(struct mc_core *core, struct mc_segment *segment)
{
    core->earlier_count -= segment->is_earlier;
    segment->is_earlier = false;
}

/* For what is said until now: from then on its contents are ours. */
static const char *stale_by(const struct mc_core *core, const struct mc_segment *segment)
{
    return segment->is_earlier ? mc_evidence_against(core, &segment->past) : NULL;
}

/* What was refused is not cleared yet. Of a disk whose owner is absent that is not waited for, since it may take an
 * hour: who brings it back is told first, and waits then (mc_segment_mount). */
static bool awaits_clears(struct mc_core *core, const struct mc_segment *segment)
{
    return segment->refused > 0 && (segment->owner != NULL || !mc_segment_ask_departed(core, segment));
}

/* Offers the segment if nothing is left to wait for. */
static void offer(struct mc_core *core, struct mc_segment *segment)
{
    bool grace =
        segment->is_earlier && core->config.predecessor_end_ms == 0 && core->now_ms < core->config.recovery_grace_ms;
    if (!segment->recovering || segment->inventory != MC_INVENTORY_NONE || segment->dropping ||
        awaits_clears(core, segment) || grace || core->veiled ||
        stale_by(core, segment) != NULL) /* given up in the next tick */
        return;
    mc_recover_judged(core, segment);
    segment->recovering = false;
    mc_link_remove(&segment->recovery);
    core->statistics.segments_recovered++;
    mc_progress_done(core, segment);
    tell_offered(core, segment);
    mc_core_tell(core, MC_TOPIC_RECOVERY, MC_CORE_LOG_INFO, "segment %u (%s) is back with replicas of %u objects",
                 segment->number, segment->name, segment->live);
    mc_segment_refresh(core, segment);
}

static void finish(struct mc_core *core, struct mc_segment *segment)
{
    bool takeover = segment->inventory == MC_INVENTORY_TAKEOVER;
    segment->inventory = MC_INVENTORY_NONE;
    segment->dropping = takeover;
    segment->drop_cursor = 0;
    if (!takeover) {
        mc_space_rebuild_end(&segment->space);
        mc_segment_set_populated(core, segment, segment->populated);
    }
    if (mc_link_alone(&segment->busy))
        mc_link_append(&core->busy, &segment->busy);
    offer(core, segment);
}

bool mc_recover_work(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->inventory == MC_INVENTORY_EARLIER)
        return false; /* there is nothing yet that could be worked off */
    for (uint32_t budget = MC_SLICE_SLOTS / 2; segment->dropping && budget > 0; budget--) {
        if (segment->drop_cursor >= segment->space.node_fresh) {
            segment->dropping = false;
            offer(core, segment);
            break;
        }
        uint32_t slot = segment->drop_cursor++;
        const struct mc_node *node = mc_segment_node(segment, slot);
        if (node->state != MC_NODE_LIVE || node->seen == segment->round)
            continue;
        core->statistics.recovery_dropped++;
        mc_object_lose_replica(core, mc_node_object(node), segment, slot);
    }
    bool more = mc_space_reclaim(&segment->space, MC_SLICE_SLOTS);
    if (!more && !segment->dropping)
        mc_segment_update_room(core, segment);
    return more || segment->dropping;
}

/* ---- merging what was placed under an earlier epoch ---- */

/* The slot, which is to be cleared, has lost against what is known of its key: its segment is not ours before it is. */
static void await_clear(const struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (!segment->is_earlier || node->state != MC_NODE_CLEARING)
        return;
    node->seen |= MC_CLEARING_REFUSED;
    segment->refused++;
    segment->is_unnamed |= mc_node_held(node) == NULL;
    if (segment->inventory == MC_INVENTORY_NONE)
        segment->told_ms = mc_core_life_ms(core); /* it has its time for this one, too */
}

/* The extent is placed and belongs to nobody; its owner is to clear it. Until then the key is not free: if we end
 * before, the master after us meets the same entry. */
static void refuse(struct mc_core *core, struct mc_segment *segment, uint32_t slot, uint64_t generation,
                   struct mc_span key)
{
    core->statistics.recovery_refused++;
    struct mc_node *node = mc_segment_node(segment, slot);
    bool counted = set_generation(core, node, generation);
    mc_node_clear(core, segment, slot, NULL);
    if (counted && key.length > 0)
        mc_key_hold_entry(core, node, key);
    await_clear(core, segment, slot);
    if (!counted) {
        node->base = MC_BASE_RAW;
        node->pointer = (uint32_t)(generation >> 40);
        node->generation_low = (uint32_t)generation;
        node->generation_high = (uint8_t)(generation >> 32);
    }
}

/* Heads are known by their value's key. */
static struct mc_span key_of(const struct mc_wire_inventory_item *item)
{
    return mc_key_is_head(item->key) ? mc_key_unmarked(item->key) : item->key;
}

/* What lies in memory has that of its generation, whatever the entry says. */
static uint64_t item_version(const struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    bool is_told = segment->kind == MC_SEGMENT_DISK && item->version != 0;
    return is_told ? item->version : item->generation - item->replica;
}

/* One more place of that value; there is at most one on a disk. */
static bool may_join(const struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment,
                     const struct mc_wire_inventory_item *item)
{
    struct mc_replica disk = {.segment = NULL};
    if (segment->kind == MC_SEGMENT_DISK)
        disk = mc_object_on_disk(core, object);
    return object->length == item->length && object->live < MC_REPLICA_COUNT_MAX &&
           (disk.segment == NULL || disk.segment->state == MC_SEGMENT_GONE);
}

/* An owner tells what is left of a pin; of one that knows no deadlines, or whose writer did not, it begins anew. A firm
 * one is firm whatever else is by now: the master before us has promised it. But where we give no soft pins at all, it
 * has ended. */
static void take_pin(const struct mc_core *core, struct mc_object *object, const struct mc_wire_inventory_item *item)
{
    uint64_t most_ms = core->config.soft_pin_max_ms, left_ms = item->pin_ms;
    if (left_ms == 0)
        mc_pin_wish(object, core->config.soft_pin_ttl_ms);
    else
        mc_pin_wish_left(core, object, left_ms < most_ms ? left_ms : most_ms);
    if (object->soft && left_ms > 0 && (item->flags & MC_PUT_FIRM_PIN) != 0)
        mc_firm_begin(object);
}

/* An entry of a head that can be none now. */
static bool is_no_head(const struct mc_core *core, const struct mc_object *object,
                       const struct mc_wire_inventory_item *item)
{
    if (!mc_key_is_head(item->key))
        return false;
    const struct mc_group *group = mc_group_find(&core->groups, item->group, key_of(item));
    bool is_taken = group != NULL && group->head != NULL && group->head != object;
    bool has_no_room = object != NULL && !object->roomy && (object->tombstone == 0 || object->clearing > 0);
    return is_taken || has_no_room;
}

/* The object that the entry may become a replica of, made or emptied if need be; NULL: the entry is refused. */
static struct mc_object *claim(struct mc_core *core, const struct mc_segment *segment,
                               const struct mc_wire_inventory_item *item)
{
    uint64_t version = item_version(segment, item);
    struct mc_span key = key_of(item);
    struct mc_object *object = mc_objects_find(&core->objects, key);
    bool has_no_object = object == NULL || object->tombstone != 0; /* a put that failed may have left a cell */
    if (core->refuse_earlier || (has_no_object && mc_tombstone_may_be(core, key)))
        return NULL;
    if (!mc_key_is_sound(item->key, item->group))
        return NULL; /* of an owner that knows no groups, or that makes it up */
    if (object != NULL && object->tombstone == 0) {
        if (!object->visible)
            return NULL; /* it is being put */
        uint64_t known = mc_object_version(core, object);
        if (known == version && mc_key_is_head(item->key) != mc_object_is_head(object))
            return NULL; /* no put makes both */
        if (known == version)
            return may_join(core, object, segment, item) ? object : NULL;
        if (known > version)
            return NULL;
        for (uint32_t left = object->live; left > 0; left--) {
            struct mc_segment *loser = core->segments[object->first_segment];
            uint32_t slot = object->first_slot;
            core->statistics.recovery_refused++;
            mc_object_lose_replica(core, object, loser, slot);
            await_clear(core, loser, slot);
        }
        object = mc_objects_find(&core->objects, key);
    }
    if (object != NULL && !mc_tombstone_lets(core, object, version))
        return NULL;
    if (is_no_head(core, object, item))
        return NULL;
    object = mc_object_begin(core, object, key, item->length, item->flags, item->group);
    if (object != NULL && mc_key_is_head(item->key))
        mc_group_head(&core->groups, object);
    if (object != NULL && object->soft)
        take_pin(core, object, item);
    return object;
}

/* A disk that is told a second time may still be known by the first, which broke off and is not swept yet. */
static void join(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    struct mc_replica before = {.segment = NULL};
    if (segment->kind == MC_SEGMENT_DISK)
        before = mc_object_on_disk(core, object);
    mc_object_join(core, object, segment, slot);
    if (before.segment != NULL)
        mc_object_lose_replica(core, object, before.segment, before.slot);
}

static void merge_live(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    struct mc_node *node = mc_segment_node(segment, item->slot);
    /* Owners of earlier releases keep whatever number a writer says: it is not for them to be disbelieved. */
    if (!set_generation(core, node, item->generation) || item->replica > MC_REPLICA_LOADED) {
        refuse(core, segment, item->slot, item->generation, key_of(item));
        return;
    }
    node->replica = item->replica;
    if (segment->kind == MC_SEGMENT_DISK)
        mc_node_set_version(node, item_version(segment, item));
    struct mc_object *object = claim(core, segment, item);
    if (object == NULL) {
        refuse(core, segment, item->slot, item->generation, key_of(item));
        return;
    }
    core->statistics.recovered_replicas++;
    if (object->visible) {
        join(core, object, segment, item->slot);
        mc_hint_found(core, object, segment, item->slot, item->hint);
        return;
    }
    node->state = MC_NODE_LIVE;
    mc_object_link(core, object, segment, item->slot);
    object->live++;
    segment->live++;
    core->statistics.recovered_objects++;
    mc_object_show(core, object);
    mc_hint_found(core, object, segment, item->slot, item->hint);
}

/* Somebody may still be writing there: the extent rests until the owner says that nobody does. */
static bool merge_written(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    struct mc_node *node = mc_segment_node(segment, item->slot);
    struct mc_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL || !set_generation(core, node, item->generation)) {
        refuse(core, segment, item->slot, item->generation,
               mc_span(NULL, 0)); /* the segment is given up, the state stays whole */
        free(writer);
        return false;
    }
    *writer = (struct mc_writer){item->writer, 1};
    mc_node_cut(core, segment, item->slot, NULL, writer); /* below the floor: it cannot become live */
    mc_writer_release(writer);                            /* the node has one of its own */
    return true;
}

static bool item_sane(const struct mc_core *core, const struct mc_segment *segment,
                      const struct mc_wire_inventory_item *item)
{
    if (segment->kind == MC_SEGMENT_DISK && (item->state != 1 || item->version >= core->epoch << MC_EPOCH_SHIFT))
        return false;
    if (!mc_is_earlier(core, item->generation) || item->length == 0 || item->length > MC_OBJECT_LENGTH_MAX ||
        item->offset > MC_SEGMENT_CAPACITY_MAX + MC_EXTENT_SLACK)
        return false;
    if (item->state == 2)
        return item->generation > 0;
    return item->state == 1 && item->key.length > 0 && item->key.length <= MC_KEY_LENGTH_MAX &&
           item->generation > item->replica && item->offset % MC_EXTENT_UNIT == 0;
}

/* The extent took up the gap behind it, because no number was left for the gap. */
static void count_growth(struct mc_segment *segment, uint32_t slot, uint64_t units)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    if (node->state == MC_NODE_CLEARING)
        segment->clearing += units;
    else if (node->state == MC_NODE_QUARANTINE)
        segment->quarantine += units;
    else if (node->state == MC_NODE_LIVE) {
        segment->used += units;
        segment->hard += mc_node_object(node)->hard ? units : 0;
    }
}

/* What lies on a disk has a number there and no place that matters to us. */
static bool merge_disk(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    if (mc_space_rebuild_number(&segment->space, item->slot) != MC_SPACE_PLACED)
        return false;
    struct mc_node *node = mc_segment_node(segment, item->slot);
    node->offset = 0;
    node->size = mc_extent_units(item->length, item->key.length) & ((1ull << 40) - 1);
    segment->used += node->size;
    merge_live(core, segment, item);
    return true;
}

/* False when the entry cannot be true. */
static bool merge(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    if (!item_sane(core, segment, item))
        return false;
    if (segment->kind == MC_SEGMENT_DISK)
        return merge_disk(core, segment, item);
    uint64_t from = item->offset / MC_EXTENT_UNIT;
    uint64_t units = item->state == 1 ? mc_extent_units(item->length, item->key.length)
                                      : (item->offset + item->length + MC_EXTENT_UNIT - 1) / MC_EXTENT_UNIT - from;
    uint64_t limit = (segment->capacity + MC_EXTENT_SLACK) / MC_EXTENT_UNIT;
    uint32_t last = segment->space.last;
    uint64_t size = last == MC_NODE_NONE ? 0 : mc_segment_node(segment, last)->size;
    if (mc_space_rebuild_place(&segment->space, item->slot, from, units, limit) != MC_SPACE_PLACED)
        return false;
    if (last != MC_NODE_NONE)
        count_growth(segment, last, mc_segment_node(segment, last)->size - size);
    segment->used += mc_segment_node(segment, item->slot)->size;
    if (item->state == 2)
        return merge_written(core, segment, item);
    merge_live(core, segment, item);
    return true;
}

/* ---- comparing what another process has taken up ---- */

/* False when the entry is nothing that we know. */
static bool compare(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *item)
{
    struct mc_node *node = mc_space_node_checked(&segment->space, item->slot);
    if (node == NULL || node->state == MC_NODE_FREE || node->state == MC_NODE_UNUSED ||
        mc_node_generation(core, node) != item->generation)
        return false;
    if (item->state == 2) /* granted, or it rests already, or was said to have failed: the node says so itself */
        return true;
    if (node->state == MC_NODE_GRANTED)
        mc_put_found_live(core, segment, item->slot);
    if (node->state == MC_NODE_MOVING)
        mc_offload_moved(core, segment, item->slot, true);
    if (mc_node_is_blank(node)) /* its key will be told */
        return true;
    if (node->state != MC_NODE_LIVE)
        return node->state == MC_NODE_CLEARING || node->state == MC_NODE_QUARANTINE; /* told since the mount */
    node->seen = segment->round;
    return true;
}

/* ---- the frames ---- */

static bool take_items(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_inventory_item *items,
                       uint32_t count)
{
    struct mc_span keys[MC_INVENTORY_ITEMS_MAX];
    struct mc_object *found[MC_INVENTORY_ITEMS_MAX];
    struct mc_wire_slot unknown[MC_INVENTORY_ITEMS_MAX];
    uint32_t unknown_count = 0;
    if (segment->inventory == MC_INVENTORY_EARLIER) {
        for (uint32_t i = 0; i < count; i++)
            keys[i] = items[i].key;
        mc_objects_find_batch(&core->objects, keys, count, found, NULL); /* for what it brings into the cache */
        for (uint32_t i = 0; i < count; i++)
            if (!merge(core, segment, &items[i]))
                return false;
        return true;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!compare(core, segment, &items[i]))
            unknown[unknown_count++] = (struct mc_wire_slot){.slot = items[i].slot, .generation = items[i].generation};
    core->statistics.recovery_refused += unknown_count;
    if (unknown_count > 0)
        mc_core_send_slots(core, segment->owner, MC_MESSAGE_CLEAR, segment->number, unknown, unknown_count);
    return true;
}

void mc_recover_inventory(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_inventory head;
    struct mc_wire_inventory_item items[MC_INVENTORY_ITEMS_MAX];
    mc_wire_inventory_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    if (segment == NULL || segment->member != connection->member) { /* given up meanwhile */
        acknowledge(core, connection, head.segment, head.sequence, MC_ERR_STALE);
        return;
    }
    uint32_t count = mc_list_read(&reader);
    if (segment->owner != connection || segment->inventory == MC_INVENTORY_NONE || count > MC_INVENTORY_ITEMS_MAX) {
        mc_core_malformed(core, connection, "an inventory that was not asked for");
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        mc_wire_inventory_item_read(&reader, &items[i]);
    bool in_order = segment->sequence_known ? head.sequence == segment->sequence : head.sequence <= 1;
    segment->sequence_known = true;
    segment->sequence = head.sequence;
    if (!in_order || !take_items(core, segment, items, count)) {
        core->statistics.protocol_errors++;
        give_up(core, segment, "its inventory contradicts itself");
        return;
    }
    acknowledge(core, connection, segment->number, head.sequence, 0);
    segment->told_ms = mc_core_life_ms(core);
    segment->told += count;
    segment->sequence++;
    if (head.last)
        finish(core, segment);
}

bool mc_recover_tick(struct mc_core *core)
{
    const struct mc_link *first = NULL;
    uint32_t budget = MC_RECOVERING_SLICE;
    for (struct mc_link *link = core->recovering.next; link != &core->recovering && link != first && budget > 0;
         budget--) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, recovery);
        link = link->next;
        mc_link_remove(&segment->recovery); /* the others have their turn before it comes again */
        mc_link_append(&core->recovering, &segment->recovery);
        const char *stale = stale_by(core, segment);
        if (stale != NULL)
            give_up(core, segment, stale);
        else if (segment->inventory != MC_INVENTORY_NONE &&
                 mc_core_life_ms(core) - segment->told_ms >= MC_INVENTORY_PATIENCE_MS)
            give_up(core, segment, "its owner does not go on to tell them");
        else if (segment->refused > 0 && segment->owner != NULL && !segment->dropping &&
                 mc_core_life_ms(core) - segment->told_ms >= MC_INVENTORY_PATIENCE_MS)
            give_up(core, segment, "its owner does not clear what was refused of them");
        else
            offer(core, segment);
        if (first == NULL && !mc_link_alone(&segment->recovery))
            first = &segment->recovery;
    }
    end_when_over(core);
    mc_progress_tick(core);
    mc_cluster_tick(core);
    core->has_acted |= mc_recover_acts(core);
    return mc_tombstones_tick(core);
}

/* ---- rotten replicas ---- */

void mc_recover_lost(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    if (segment == NULL || segment->member != connection->member)
        return;
    for (uint32_t count = mc_list_read(&reader); count > 0; count--) {
        struct mc_wire_slot item;
        mc_wire_slot_read(&reader, &item);
        for (uint32_t i = 0; i < MC_CHECKS_MAX; i++)
            if (segment->checks[i].slot == item.slot && segment->checks[i].generation == item.generation)
                segment->checks[i].open = false;
        const struct mc_node *node = mc_space_node_checked(&segment->space, item.slot);
        if (node == NULL || node->state != MC_NODE_LIVE || mc_node_generation(core, node) != item.generation ||
            (!mc_node_object(node)->visible && !mc_object_waits(mc_node_object(node))))
            continue;
        if (segment->kind == MC_SEGMENT_DISK) { /* mostly to make room for what is newer */
            core->statistics.disk_lost++;
        } else {
            core->statistics.rotten_replicas++;
            mc_core_log(core, MC_CORE_LOG_WARNING, "a replica in segment %u (%s) is rotten and dropped",
                        segment->number, segment->name);
        }
        core->leaving = segment->kind == MC_SEGMENT_DISK ? MC_GONE_DISK : MC_GONE_ROTTEN;
        mc_object_lose_replica(core, mc_node_object(node), segment, item.slot);
        core->leaving = MC_GONE_LOST;
    }
}

/* A place for the check of that slot; NULL when it is being checked already, or too many are. */
static struct mc_check *check_begin(const struct mc_core *core, struct mc_segment *segment,
                                    const struct mc_wire_slot *item)
{
    struct mc_check *place = NULL;
    for (uint32_t i = 0; i < MC_CHECKS_MAX; i++) {
        struct mc_check *check = &segment->checks[i];
        bool open = check->open && core->now_ms - check->sent_ms < MC_CHECK_MS;
        if (open && check->slot == item->slot && check->generation == item->generation)
            return NULL;
        if (!open)
            place = check;
    }
    if (place != NULL)
        *place = (struct mc_check){item->generation, core->now_ms, item->slot, true};
    return place;
}

/* A reader's word alone drops nothing: the owner looks for itself. */
void mc_recover_rotten(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    struct mc_wire_slot wanted[MC_CHECKS_MAX];
    uint32_t wanted_count = 0;
    (void)connection;
    mc_wire_segment_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    uint32_t count = mc_list_read(&reader);
    core->statistics.rotten_reports += count;
    if (segment == NULL || segment->owner == NULL)
        return;
    for (; count > 0 && wanted_count < MC_CHECKS_MAX; count--) {
        struct mc_wire_slot item;
        mc_wire_slot_read(&reader, &item);
        const struct mc_node *node = mc_space_node_checked(&segment->space, item.slot);
        if (node != NULL && node->state == MC_NODE_LIVE && mc_node_generation(core, node) == item.generation &&
            check_begin(core, segment, &item) != NULL)
            wanted[wanted_count++] = item;
    }
    if (wanted_count > 0)
        mc_core_send_slots(core, segment->owner, MC_MESSAGE_CHECK, segment->number, wanted, wanted_count);
}
