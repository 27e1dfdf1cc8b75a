/* Segments: mounting, whether they are to be trusted, and their end. */
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/progress.h"
#include "store/core/recover.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct mc_segment *mc_segment_find(const struct mc_core *core, uint32_t number)
{
    struct mc_segment *segment = core->segments[number % MC_SEGMENTS_MAX];
    return segment != NULL && segment->number == number && segment->state != MC_SEGMENT_GONE ? segment : NULL;
}

bool mc_segment_is_populating(const struct mc_core *core, const struct mc_segment *segment)
{
    return segment->populated < segment->capacity && core->now_ms - segment->populated_ms < MC_POPULATING_MS;
}

/* What may be used of it, units. */
static uint64_t budget_of(const struct mc_core *core, const struct mc_segment *segment)
{
    uint64_t bytes = mc_segment_is_populating(core, segment) ? segment->capacity : segment->populated;
    uint64_t units = bytes / MC_EXTENT_UNIT;
    return units > segment->quarantine ? units - segment->quarantine : 0;
}

/* What is free besides the reserve need not be: the reserve is for what comes before the owner has cleared what was
 * evicted for it, and a put that finds none left asks again at once. */
struct mc_marks mc_segment_marks(const struct mc_core *core, const struct mc_segment *segment)
{
    uint64_t budget = budget_of(core, segment), part = budget / MC_RESERVE_PART;
    uint64_t reserve = part < MC_RESERVE / MC_EXTENT_UNIT ? part : MC_RESERVE / MC_EXTENT_UNIT;
    uint64_t high = (uint64_t)(core->config.eviction_high_watermark * (double)budget);
    uint64_t band = (uint64_t)(core->config.eviction_ratio * (double)budget);
    if (high > budget - reserve)
        high = budget - reserve;
    if (band < reserve)
        band = reserve;
    return (struct mc_marks){high, high > band ? high - band : 0};
}

void mc_segment_update_room(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->kind == MC_SEGMENT_DISK)
        return; /* nothing is placed there by writers */
    struct mc_marks marks = mc_segment_marks(core, segment);
    uint64_t taken = segment->used + segment->clearing; /* quarantine is off the budget */
    bool nodes = segment->space.node_count + 2 <= segment->space.node_limit;
    /* What evictions keep at its lower mark stays full: else those that evict just now would be taken for the emptiest,
     * and what the others hold would never grow old. */
    segment->full &= taken + (marks.high - marks.low) > marks.low;
    if (segment->state == MC_SEGMENT_OK && !segment->leaving && nodes && !segment->full && taken <= marks.high)
        mc_set_add(&core->roomy, segment);
    else
        mc_set_remove(&core->roomy, segment);
}

/* ---- trust ---- */

/* Its last contact, by our age and 1. */
static uint64_t contact_at(const struct mc_core *core, const struct mc_segment *segment)
{
    if (segment->detached)
        return segment->depart_ms - core->config.depart_ms + 1;
    return segment->member->seen_at_ms;
}

static void want_to_depart(struct mc_core *core, uint64_t at_ms)
{
    if (at_ms > core->depart_wanted_ms)
        core->depart_wanted_ms = at_ms;
}

/* The last contact of one that nothing is heard of any more; 0: of one that left by itself, or may be back. */
static uint64_t silent_at(const struct mc_core *core, const struct mc_segment *segment)
{
    if (segment->state == MC_SEGMENT_OK)
        return 0;
    if (segment->state == MC_SEGMENT_GONE)
        return segment->gone_at_ms;
    bool is_away = segment->member->departed || (segment->detached && core->now_ms >= segment->depart_ms);
    return is_away ? contact_at(core, segment) : 0;
}

bool mc_segment_departed(const struct mc_core *core, const struct mc_segment *segment)
{
    uint64_t at_ms = silent_at(core, segment);
    if (at_ms == 0)
        return segment->state == MC_SEGMENT_GONE && core->depart_let_ms != 0;
    return at_ms <= core->depart_let_ms;
}

bool mc_segment_ask_departed(struct mc_core *core, const struct mc_segment *segment)
{
    want_to_depart(core, silent_at(core, segment));
    return mc_segment_departed(core, segment);
}

void mc_segment_release(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->clears.head == MC_NODE_NONE || segment->state == MC_SEGMENT_GONE ||
        !mc_segment_ask_departed(core, segment))
        return;
    segment->release = segment->clears.head;
    if (segment->release != MC_NODE_NONE && mc_link_alone(&segment->busy))
        mc_link_append(&core->busy, &segment->busy);
}

void mc_segment_refresh(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->state == MC_SEGMENT_GONE)
        return;
    const struct mc_member *member = segment->member;
    bool ok = segment->owner != NULL && !member->heartbeat_lost && !member->silent && !segment->distrusted &&
              !segment->recovering && !core->veiled;
    uint8_t state = ok ? MC_SEGMENT_OK : MC_SEGMENT_SUSPECT;
    if (segment->state == state)
        return;
    segment->state = state;
    mc_core_tell(core, MC_TOPIC_TRUST, MC_CORE_LOG_INFO, "segment %u (%s) is %s", segment->number, segment->name,
                 ok                    ? "trusted"
                 : segment->recovering ? "suspect: what it holds is being taken in"
                 : member->silent      ? "suspect: its owner is silent"
                 : segment->distrusted ? "suspect: a client could not reach it, and it did not answer"
                 : member->heartbeat_lost || segment->owner == NULL
                     ? "suspect: its owner's connection has ended"
                     : "suspect: it is not yet known which cluster this is");
    if (ok) {
        core->has_offered = true;
        if (segment->kind == MC_SEGMENT_MEMORY)
            mc_set_add(&core->ok, segment);
        mc_sweep_trusted(core, segment);
    } else {
        mc_set_remove(&core->ok, segment);
        mc_segment_release(core, segment);
    }
    mc_segment_update_room(core, segment);
}

/* All CLEARs and CUTs. */
static void tell_again(struct mc_segment *segment)
{
    segment->clear_unsent = segment->clears.head;
    segment->cut_unsent = segment->cuts.head;
}

void mc_segment_owner_lost(struct mc_segment *segment)
{
    segment->owner = NULL;
    tell_again(segment);
    mc_offload_unsend(segment);
    mc_hints_unsend(segment);
    mc_link_remove(&segment->dirty);
}

void mc_segment_set_populated(struct mc_core *core, struct mc_segment *segment, uint64_t populated)
{
    if (populated > segment->capacity)
        populated = segment->capacity;
    if (populated > segment->populated) {
        segment->populated = populated;
        segment->populated_ms = core->now_ms;
    }
    if (segment->inventory == MC_INVENTORY_EARLIER || segment->kind == MC_SEGMENT_DISK)
        return; /* its space ends where the inventory has come to */
    /* The slack behind the capacity is the owner's memory too, populated with the rest. */
    uint64_t bytes = segment->populated < segment->capacity ? segment->populated : segment->capacity + MC_EXTENT_SLACK;
    uint64_t units = bytes / MC_EXTENT_UNIT;
    if (units > segment->space.end)
        (void)mc_space_grow(&segment->space,
                            units - segment->space.end); /* without a node for it: at the next heartbeat */
    mc_segment_update_room(core, segment);
}

/* ---- mounting ---- */

static void mount_reply(struct mc_core *core, struct mc_connection *connection, uint64_t request_id, int32_t code,
                        uint32_t number, uint8_t inventory, bool behind)
{
    if (code != 0)
        core->statistics.mount_failures++;
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    struct mc_wire_mount_reply head = {
        .code = code, .segment = number, .epoch = core->epoch, .inventory = inventory, .behind = behind};
    mc_wire_mount_reply_frame(out, mc_core_frame(core, out, MC_MESSAGE_MOUNT_REPLY, request_id), &head);
}

static bool mount_sane(const struct mc_wire_mount *mount)
{
    uint32_t slots_most = mount->kind == MC_SEGMENT_DISK ? MC_DISK_SLOTS_MAX : mc_slot_count(mount->capacity);
    return mount->capacity >= MC_EXTENT_UNIT && mount->capacity <= MC_SEGMENT_CAPACITY_MAX && mount->slot_count > 0 &&
           mount->slot_count <= slots_most && mount->name.length > 0 && mount->name.length <= MC_SEGMENT_TEXT_MAX &&
           mount->tcp_address.length <= MC_SEGMENT_TEXT_MAX && mount->unix_path.length <= MC_SEGMENT_TEXT_MAX &&
           !mc_id_is_zero(mount->segment_id) && mount->epoch <= MC_EPOCH_MAX && mount->slot_top <= mount->slot_count &&
           mount->kind <= MC_SEGMENT_DISK;
}

/* An index that nobody uses, the one given back longest ago; 0 when there is none. */
static uint32_t free_index(struct mc_core *core)
{
    for (uint32_t i = 0; i < MC_SEGMENTS_MAX; i++) {
        uint32_t index = core->segment_cursor;
        core->segment_cursor = index + 1 < MC_SEGMENTS_MAX ? index + 1 : 1;
        if (core->segments[index] == NULL && core->segment_uses[index] < UINT16_MAX)
            return index;
    }
    return 0;
}

static void copy_text(char text[MC_SEGMENT_TEXT_MAX + 1], struct mc_span from)
{
    if (from.length > 0)
        memcpy(text, from.data, from.length);
    text[from.length] = 0;
}

/* It is there for people to read: one that is too long is cut, and what is no text is no reason to refuse the disk. */
static void copy_directory(struct mc_segment *segment, const struct mc_wire_mount *mount)
{
    size_t length = mount->directory.length < MC_SEGMENT_TEXT_MAX ? mount->directory.length : MC_SEGMENT_TEXT_MAX;
    copy_text(segment->directory, mc_span(mount->directory.data, length));
}

static uint64_t hash_name(const struct mc_core *core, struct mc_span name)
{
    return XXH3_64bits_withSeed(name.data, name.length, core->objects.seed);
}

struct mc_segment *mc_segment_by_name(const struct mc_core *core, struct mc_span name)
{
    return mc_map_get(&core->segments_by_alias[MC_ALIAS_NAME], hash_name(core, name));
}

struct mc_segment *mc_segment_by_host(const struct mc_core *core, struct mc_id host)
{
    return mc_map_get(&core->segments_by_alias[MC_ALIAS_HOST], mc_core_hash_id(core, host));
}

/* Neither need be unique: the map knows the first, the rest is a chain. */
static bool alias_add(struct mc_core *core, struct mc_segment *segment, unsigned which, uint64_t hash)
{
    struct mc_alias *alias = &segment->aliases[which];
    struct mc_segment *first = mc_map_get(&core->segments_by_alias[which], hash);
    alias->hash = hash;
    alias->known = true;
    if (first == NULL) {
        alias->known = mc_map_put(&core->segments_by_alias[which], hash, segment);
        return alias->known;
    }
    alias->next = first->aliases[which].next;
    alias->before = first;
    if (alias->next != NULL)
        alias->next->aliases[which].before = segment;
    first->aliases[which].next = segment;
    return true;
}

static void alias_remove(struct mc_core *core, struct mc_segment *segment, unsigned which)
{
    struct mc_map *map = &core->segments_by_alias[which];
    struct mc_alias *alias = &segment->aliases[which];
    if (!alias->known)
        return;
    alias->known = false;
    if (alias->next != NULL)
        alias->next->aliases[which].before = alias->before;
    if (alias->before != NULL) {
        alias->before->aliases[which].next = alias->next;
    } else {
        (void)mc_map_remove(map, alias->hash);
        bool done = alias->next == NULL || mc_map_put(map, alias->hash, alias->next);
        mc_assert(done); /* its place has just become free */
    }
    alias->next = alias->before = NULL;
}

/* Nobody looks for a disk but its owner. */
static bool aliases_add(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->kind == MC_SEGMENT_DISK)
        return true;
    return alias_add(core, segment, MC_ALIAS_NAME, hash_name(core, mc_span_string(segment->name))) &&
           alias_add(core, segment, MC_ALIAS_HOST, mc_core_hash_id(core, segment->host));
}

static void aliases_remove(struct mc_core *core, struct mc_segment *segment)
{
    for (unsigned which = 0; which < MC_ALIASES; which++)
        alias_remove(core, segment, which);
}

/* Without keys there are no tickets, whoever asks for them: nothing may be needed here to make them by. */
static void copy_keys(struct mc_segment *segment, const struct mc_wire_mount *mount)
{
    segment->has_ticket_key = segment->member->key != 0 && mount->ticket_key.length == sizeof(segment->ticket_key);
    if (segment->has_ticket_key)
        memcpy(segment->ticket_key, mount->ticket_key.data, sizeof(segment->ticket_key));
    segment->has_tag_key = mount->tag_key.length == sizeof(segment->tag_key);
    if (segment->has_tag_key)
        memcpy(segment->tag_key, mount->tag_key.data, sizeof(segment->tag_key));
    segment->key_mark = mount->key_mark & 1;
    segment->key_ms = mount->key_ms;
}

static struct mc_segment *segment_create(struct mc_core *core, const struct mc_wire_mount *mount, uint32_t index)
{
    struct mc_segment *segment = calloc(1, sizeof(*segment));
    if (segment == NULL)
        return NULL;
    segment->index = (uint16_t)index;
    segment->number = (uint32_t)core->segment_uses[index] << 16 | index;
    segment->state = MC_SEGMENT_SUSPECT;
    segment->id = mount->segment_id;
    segment->id_hash = mc_core_hash_id(core, segment->id);
    segment->host = mount->host;
    segment->nonce = mount->nonce;
    segment->kind = mount->kind;
    segment->capacity = mount->capacity;
    segment->slot_count = mount->slot_count;
    copy_text(segment->name, mount->name);
    copy_text(segment->tcp_address, mount->tcp_address);
    copy_text(segment->unix_path, mount->unix_path);
    copy_directory(segment, mount);
    for (unsigned i = 0; i < MC_SETS; i++)
        segment->places[i] = MC_SET_NOWHERE;
    segment->normal = segment->proven = segment->soft = segment->first = segment->clears = segment->cuts =
        segment->moves = (struct mc_node_list){MC_NODE_NONE, MC_NODE_NONE, 0, MC_NODE_NONE, 0};
    segment->clear_unsent = segment->cut_unsent = segment->move_unsent = segment->release = MC_NODE_NONE;
    segment->populated_ms = core->now_ms;
    mc_link_init(&segment->of_member);
    mc_link_init(&segment->dirty);
    mc_link_init(&segment->busy);
    mc_link_init(&segment->watched);
    mc_link_init(&segment->recovery);
    mc_link_init(&segment->blanks);
    segment->job = mc_job_create(segment);
    if (segment->job == NULL || !mc_space_init(&segment->space, mount->slot_count)) {
        free(segment->job);
        free(segment);
        return NULL;
    }
    segment->space.is_bare = segment->kind == MC_SEGMENT_DISK;
    return segment;
}

/* ---- where they come from ---- */

/* Has that address room for so many segments and slots more? So that nobody takes the room of all others, as many
 * members as he says to be. */
static bool lender_has_room(const struct mc_core *core, const struct mc_lender *lender, uint32_t segments,
                            uint64_t slots)
{
    return lender == NULL || (lender->segments + segments <= core->lender_segments &&
                              lender->slots + slots <= core->slot_limit - core->slot_limit / MC_LENDER_PARTS);
}

/* False: memory is out. */
static bool lender_take(struct mc_core *core, uint64_t address, struct mc_segment *segment)
{
    if (address == 0)
        return true;
    struct mc_lender *lender = mc_map_get(&core->lenders, address);
    if (lender == NULL) {
        lender = calloc(1, sizeof(*lender));
        if (lender == NULL || !mc_map_put(&core->lenders, address, lender)) {
            free(lender);
            return false;
        }
        lender->address = address;
    }
    lender->segments++;
    lender->slots += segment->slot_count;
    segment->lender = lender;
    return true;
}

static void lender_give(struct mc_core *core, const struct mc_segment *segment)
{
    struct mc_lender *lender = segment->lender;
    if (lender == NULL)
        return;
    lender->slots -= segment->slot_count;
    if (--lender->segments > 0)
        return;
    (void)mc_map_remove(&core->lenders, lender->address);
    free(lender);
}

/* ---- making them ---- */

static bool has_room(const struct mc_core *core, const struct mc_connection *connection,
                     const struct mc_wire_mount *mount)
{
    const struct mc_link *all = &connection->member->segments;
    uint32_t count = 0;
    for (const struct mc_link *link = all->next; link != all && count < MC_MEMBER_SEGMENTS_MAX; link = link->next)
        count++;
    const struct mc_lender *lender = mc_map_get(&core->lenders, connection->address);
    return count < MC_MEMBER_SEGMENTS_MAX && mount->slot_count <= core->slot_limit - core->slots &&
           lender_has_room(core, lender, 1, mount->slot_count);
}

/* A segment of its id: made, or NULL when something is full. */
static struct mc_segment *segment_add(struct mc_core *core, const struct mc_connection *connection,
                                      const struct mc_wire_mount *mount)
{
    struct mc_member *member = connection->member;
    uint32_t index = has_room(core, connection, mount) ? free_index(core) : 0;
    struct mc_segment *segment = index == 0 ? NULL : segment_create(core, mount, index);
    if (segment == NULL)
        return NULL;
    if (!mc_map_put(&core->segments_by_id, segment->id_hash, segment))
        goto fail_id;
    if (!aliases_add(core, segment) || !lender_take(core, connection->address, segment))
        goto fail_alias;
    segment->member = member;
    segment->owner_id = member->id;
    segment->incarnation = member->incarnation;
    mc_link_append(&member->segments, &segment->of_member);
    core->segments[index] = segment;
    core->segment_uses[index]++;
    segment->change = ++core->segment_changes;
    core->segment_count++;
    core->slots += segment->slot_count;
    if (index >= core->segment_top)
        core->segment_top = index + 1;
    return segment;
fail_alias:
    aliases_remove(core, segment);
    (void)mc_map_remove(&core->segments_by_id, segment->id_hash);
fail_id:
    mc_space_destroy(&segment->space);
    free(segment->job);
    free(segment);
    return NULL;
}

/* The segment belongs to another process now. False when memory is out, nothing is changed then. */
static bool take_over(struct mc_core *core, struct mc_segment *segment, struct mc_member *member,
                      const struct mc_wire_mount *mount)
{
    struct mc_member *before = segment->member;
    mc_link_remove(&segment->of_member);
    mc_link_append(&member->segments, &segment->of_member);
    segment->member = member;
    segment->owner_id = member->id;
    segment->incarnation = member->incarnation;
    segment->change = ++core->segment_changes;
    segment->reporter_count = 0;
    copy_text(segment->tcp_address, mount->tcp_address);
    copy_text(segment->unix_path, mount->unix_path);
    aliases_remove(core, segment);
    copy_text(segment->name, mount->name);
    copy_directory(segment, mount);
    segment->health = MC_TOLD_WELL; /* until its owner says something else */
    segment->rest_until_ms = segment->reads_failed = 0;
    segment->host = mount->host;
    if (mc_link_alone(&before->connections) && mc_link_alone(&before->segments))
        mc_member_destroy(core, before);
    return aliases_add(core, segment);
}

static void attach(struct mc_core *core, struct mc_segment *segment, struct mc_connection *connection,
                   uint64_t populated)
{
    /* On its own link, where it mounts often while its memory grows, no STORE or LOAD is told twice: what is done a
     * second time could come late. */
    if (segment->owner == connection)
        tell_again(segment);
    else
        mc_segment_owner_lost(segment);
    segment->owner = connection;
    segment->detached = false;
    mc_job_forget_stop(segment);
    if (segment->clears.count + segment->cuts.count + segment->moves.count + segment->hint_notes.count > 0)
        mc_segment_mark_dirty(core, segment);
    mc_segment_set_populated(core, segment, populated);
    mc_segment_refresh(core, segment);
}

struct mounting { /* one MOUNT at work */
    struct mc_connection *connection;
    struct mc_wire_mount wire;
    struct mc_segment *segment;
    enum mc_inventory inventory; /* what the owner is asked for */
    struct mc_past past;         /* the contents */
};

/* A segment that we know nothing of, with contents or without. */
static int32_t mount_unknown(struct mc_core *core, struct mounting *mounting)
{
    const struct mc_past *past = &mounting->past;
    mounting->past.cluster = mounting->connection->cluster;
    const char *why = past->epoch == 0 ? NULL : mc_recover_unwanted(core, past, mounting->wire.kind == MC_SEGMENT_DISK);
    if (why != NULL) {
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "the contents of segment %.*s, of epoch %llu, %lld ms after the last contact, are not taken: %s",
                    (int)mounting->wire.name.length, (const char *)mounting->wire.name.data,
                    (unsigned long long)past->epoch, (long long)core->now_ms - (long long)past->contact_ms, why);
        return MC_ERR_STALE;
    }
    /* Peers heard of its mount before its owner did, and that master has ended: nobody knows what became of this. */
    if (mounting->past.epoch == 0 && mounting->wire.slot_top > 0)
        return MC_ERR_STALE;
    mounting->segment = segment_add(core, mounting->connection, &mounting->wire);
    if (mounting->segment == NULL)
        return MC_ERR_BUSY;
    if (mounting->past.epoch == 0)
        return 0;
    mounting->inventory = MC_INVENTORY_EARLIER;
    mounting->segment->past = mounting->past;
    if (mounting->wire.slot_top > 0)
        mc_recover_taken(core, mounting->segment);
    if (mc_recover_begin(core, mounting->segment, MC_INVENTORY_EARLIER, mounting->wire.slot_top))
        return 0;
    mc_segment_gone(core, mounting->segment);
    return MC_ERR_BUSY;
}

/* A disk may take more or less of its file system than when it was here before, as others fill or empty it; what lies
 * there stays. False when memory, or the slots of all, are out. */
static bool resize(struct mc_core *core, struct mc_segment *segment, const struct mc_wire_mount *mount)
{
    uint64_t more = mount->slot_count > segment->slot_count ? mount->slot_count - segment->slot_count : 0;
    if (more > core->slot_limit - core->slots || !lender_has_room(core, segment->lender, 0, more) ||
        !mc_space_resize(&segment->space, mount->slot_count))
        return false;
    if (segment->lender != NULL)
        segment->lender->slots = segment->lender->slots - segment->slot_count + mount->slot_count;
    core->slots = core->slots - segment->slot_count + mount->slot_count;
    if (mc_link_alone(&segment->busy))
        mc_link_append(&core->busy, &segment->busy); /* numbers are reclaimed */
    segment->capacity = mount->capacity;
    segment->populated = mount->populated;
    segment->slot_count = mount->slot_count;
    return true;
}

/* A segment that is mounted: its owner has come back, or another process has taken its memory up. */
static int32_t mount_known(struct mc_core *core, struct mounting *mounting)
{
    const struct mc_wire_mount *mount = &mounting->wire;
    struct mc_segment *segment = mounting->segment;
    struct mc_member *member = mounting->connection->member;
    bool own = segment->member == member, rebuilding = segment->inventory == MC_INVENTORY_EARLIER;
    if (!mc_id_equal(segment->id, mount->segment_id) || (!own && segment->owner != NULL))
        return MC_ERR_SEGMENT_ALREADY_EXISTS;
    /* Epoch 0 of a segment that we know: the answer to its first mount was lost. It is the same memory either way. An
     * earlier epoch: its contents were not offered yet, or it has not heard of that. */
    bool is_disk = segment->kind == MC_SEGMENT_DISK;
    bool same = segment->kind == mount->kind && segment->nonce == mount->nonce &&
                (is_disk || (segment->capacity == mount->capacity && segment->slot_count == mount->slot_count));
    if (!same || (mount->epoch != 0 && mount->epoch != core->epoch && mount->epoch != segment->past.epoch))
        return MC_ERR_STALE;
    if (is_disk && !resize(core, segment, mount))
        return MC_ERR_BUSY;
    if (rebuilding) { /* broken off half-way: what was merged goes, and all of it comes again */
        mounting->past = segment->past;
        mc_segment_gone(core, segment);
        mounting->segment = NULL;
        return mount_unknown(core, mounting);
    }
    if (!own && !take_over(core, segment, member, mount))
        mc_core_log(core, MC_CORE_LOG_WARNING, "segment %u cannot be found by its name: out of memory",
                    segment->number);
    /* Who has told it all on this very link tells no more: only what it did not tell is still being dropped. */
    if (!own || segment->inventory == MC_INVENTORY_TAKEOVER || segment->is_untold ||
        (segment->dropping && segment->owner != mounting->connection))
        mounting->inventory = MC_INVENTORY_TAKEOVER;
    if (mounting->inventory != MC_INVENTORY_NONE || (segment->refused > 0 && !segment->recovering))
        (void)mc_recover_begin(core, segment, mounting->inventory, 0);
    return 0;
}

void mc_segment_mount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mounting mounting = {.connection = connection};
    struct mc_wire_mount *mount = &mounting.wire;
    mc_wire_mount_read(&reader, mount);
    core->statistics.mount_requests++;
    if (!mount_sane(mount)) {
        mount_reply(core, connection, frame->request_id, MC_ERR_INVALID_PARAMS, 0, 0, false);
        return;
    }
    if (mount->epoch > core->epoch) { /* we may be late: no answer that could cost the owner its contents */
        const struct mc_member *member = connection->member;
        mc_member_met_later(
            core, connection,
            &(struct mc_later){member->id, mc_span_string(member->name), true, mount->epoch, mount->epoch_proof});
        return;
    }
    int32_t code = 0;
    mounting.segment = mc_map_get(&core->segments_by_id, mc_core_hash_id(core, mount->segment_id));
    bool again = mounting.segment != NULL;
    /* On the link that it has already: it tells how much of its memory is ready, many times while that grows. */
    bool progress = again && mounting.segment->owner == connection;
    if (again) {
        code = mount_known(core, &mounting);
    } else if (mount->epoch == core->epoch) {
        code = MC_ERR_STALE;
    } else {
        mounting.past = (struct mc_past){.epoch = mount->epoch,
                                         .contact_ms = (int64_t)core->now_ms - (int64_t)mount->contact_age_ms,
                                         .contact_at_ms = mount->contact_at_ms};
        code = mount_unknown(core, &mounting);
    }
    bool is_remount = mount->epoch != 0 && !progress; /* another master had it, or it was lent before */
    core->statistics.remounts += is_remount;
    core->statistics.remount_failures += is_remount && code != 0;
    if (code != 0) {
        mount_reply(core, connection, frame->request_id, code, 0, 0, false);
        return;
    }
    struct mc_segment *segment = mounting.segment;
    copy_keys(segment, mount);
    /* The owner remembers a mount as contact: a master after us must not think that we may have acted on its silence.
     */
    mc_member_seen(core, segment->member);
    if (!progress || mounting.inventory != MC_INVENTORY_NONE)
        mc_core_tell(core, MC_TOPIC_SEGMENT, MC_CORE_LOG_INFO, "segment %u (%s, %llu bytes) is %s%s", segment->number,
                     segment->name, (unsigned long long)segment->capacity, again ? "mounted again" : "mounted",
                     mounting.inventory == MC_INVENTORY_NONE ? "" : ", its inventory is wanted");
    if (!again)
        segment->mounted_ms = core->now_ms;
    if (!progress)
        mc_reach_mounted(core, segment);
    uint8_t inventory = mounting.inventory != MC_INVENTORY_NONE ? 1 : segment->recovering ? 2 : 0;
    mount_reply(core, connection, frame->request_id, 0, segment->number, inventory, segment->late > 0);
    attach(core, segment, connection, mount->populated);
}

/* The owner's connection may lend another one. */
static void lent_until_now(const struct mc_core *core, const struct mc_segment *segment)
{
    if (segment->owner != NULL)
        segment->owner->lent_ms = mc_core_life_ms(core);
}

/* As if its owner's process had ended: it is absent. As with any other that is silent nothing that lies there is acted
 * upon for depart_ms: if we ended sooner, the master after us would take the contents from whoever has the disk then.
 * To be gone is to have departed. */
static void detach(struct mc_core *core, struct mc_segment *segment)
{
    uint64_t ttl_ms = core->config.disk_ttl_ms, depart_ms = core->now_ms + core->config.depart_ms;
    uint64_t forget_ms = ttl_ms > core->config.depart_ms ? core->now_ms + ttl_ms : depart_ms;
    mc_job_forget(core, segment, depart_ms);
    mc_core_tell(core, MC_TOPIC_DISK, MC_CORE_LOG_INFO, "disk %u (%s) is unmounted; it may come back within %llu s",
                 segment->number, segment->name, (unsigned long long)ttl_ms / 1000);
    lent_until_now(core, segment);
    mc_segment_owner_lost(segment);
    segment->detached = true;
    segment->depart_ms = depart_ms;
    segment->forget_ms = forget_ms;
    mc_recover_break_off(segment);
    core->has_given_up = true;
    mc_segment_refresh(core, segment);
}

void mc_segment_forget(struct mc_core *core, struct mc_segment *segment)
{
    if (core->now_ms < segment->forget_ms) {
        mc_job_forget(core, segment, segment->forget_ms);
        mc_segment_release(core, segment);
        return;
    }
    mc_segment_give_up(core, segment);
}

void mc_segment_unmount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_unmount head;
    mc_wire_unmount_read(&reader, &head);
    core->statistics.unmount_requests++;
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    int32_t code = segment == NULL                         ? MC_ERR_SEGMENT_NOT_FOUND
                   : segment->member != connection->member ? MC_ERR_ILLEGAL_CLIENT
                   : head.keep != 0 && segment->kind != MC_SEGMENT_DISK
                       ? MC_ERR_INVALID_PARAMS /* a number of an earlier master */
                       : 0;
    /* What was told of it in part is not kept: it comes again as it came. */
    bool is_kept = head.keep != 0 && code == 0 && segment->inventory != MC_INVENTORY_EARLIER;
    if (is_kept)
        detach(core, segment);
    else if (code == 0)
        mc_segment_gone(core, segment);
    core->has_unmounted |= code == 0;
    core->statistics.unmount_failures += code != 0;
    mc_core_reply_code(core, connection->number, MC_MESSAGE_UNMOUNT_REPLY, frame->request_id, code);
}

void mc_segment_gone(struct mc_core *core, struct mc_segment *segment)
{
    mc_core_tell(core, MC_TOPIC_SEGMENT, MC_CORE_LOG_INFO, "segment %u (%s) is gone, with replicas of %u objects",
                 segment->number, segment->name, segment->live);
    mc_set_remove(&core->ok, segment);
    mc_set_remove(&core->roomy, segment);
    aliases_remove(core, segment);
    (void)mc_map_remove(&core->segments_by_id, segment->id_hash);
    mc_link_remove(&segment->of_member);
    mc_link_remove(&segment->dirty);
    mc_link_remove(&segment->busy);
    mc_link_remove(&segment->watched);
    mc_link_remove(&segment->recovery);
    segment->is_unmet = segment->is_earlier;
    mc_recover_judged(core, segment);
    if (segment->recovering)
        mc_progress_left(core);
    segment->recovering = segment->dropping = segment->probing = segment->distrusted = false;
    segment->reporter_count = 0;
    segment->inventory = MC_INVENTORY_NONE;
    lent_until_now(core, segment);
    segment->member = NULL;
    segment->owner = NULL;
    segment->debt = 0;
    segment->state = MC_SEGMENT_GONE;
    mc_hints_free(segment);
    core->segment_changes++;
    mc_job_sweep(core, segment);
}

void mc_segment_give_up(struct mc_core *core, struct mc_segment *segment)
{
    /* What we have not offered is of another master, whose age we do not know. */
    uint64_t at_ms = segment->is_earlier ? 1 : contact_at(core, segment);
    core->has_given_up = true;
    want_to_depart(core, at_ms);
    mc_segment_gone(core, segment);
    segment->gone_at_ms = at_ms;
}

void mc_segment_destroy(struct mc_core *core, struct mc_segment *segment)
{
    core->segments[segment->index] = NULL;
    core->segment_count--;
    core->slots -= segment->slot_count;
    lender_give(core, segment);
    mc_space_destroy(&segment->space);
    mc_hints_free(segment);
    free(segment->job);
    free(segment);
}

uint64_t mc_segments_capacity(const struct mc_core *core)
{
    uint64_t capacity = 0;
    for (uint32_t i = 1; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        if (segment != NULL && segment->state != MC_SEGMENT_GONE && segment->kind == MC_SEGMENT_MEMORY)
            capacity += segment->capacity;
    }
    return capacity;
}
