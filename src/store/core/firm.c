#include "store/core/firm.h"

#include "store/core/account.h"
#include "store/core/member.h"
#include "store/core/pin.h"
#include "store/core/place.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

/* What a replica takes from others: its extent, and its slot, of which a segment has one for so many bytes. */
static uint64_t bytes_of(uint64_t length, size_t key_length)
{
    uint64_t bytes = mc_extent_size(length, key_length);
    return bytes > MC_SLOT_BYTES_PER_OBJECT ? bytes : MC_SLOT_BYTES_PER_OBJECT;
}

uint64_t mc_firm_bytes(const struct mc_object *object)
{
    return mc_object_is_firm(object) ? bytes_of(object->length, object->key_length) : 0;
}

uint64_t mc_hard_bytes(const struct mc_object *object)
{
    return object->hard && !object->soft ? bytes_of(object->length, object->key_length) : 0;
}

static uint64_t bytes_of_all(const struct mc_core *core, const struct mc_object *object)
{
    uint64_t bytes = 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        bytes += at.segment->kind == MC_SEGMENT_MEMORY ? mc_firm_bytes(object) + mc_hard_bytes(object) : 0;
    return bytes;
}

static void count(struct mc_core *core, const struct mc_object *object, struct mc_segment *segment, uint64_t more,
                  uint64_t less)
{
    segment->firm_bytes += more - less;
    core->firm.bytes += more - less;
    if (!mc_core_counts(core))
        return;
    struct mc_account *account = mc_object_holding(object)->account;
    account->firm_bytes += more - less;
    account->firm_coming += object->successor ? more - less : 0;
    account->firm_length += more > 0 ? object->length : -(uint64_t)object->length;
}

void mc_firm_begin(struct mc_object *object)
{
    mc_assert(object->soft && !object->visible && object->first_slot == MC_NODE_NONE);
    object->hard = 1;
}

void mc_firm_end(struct mc_core *core, struct mc_object *object)
{
    mc_assert(mc_object_is_firm(object));
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        mc_firm_unlinked(core, object, at.segment);
    object->hard = 0;
}

void mc_firm_succeeded(struct mc_core *core, const struct mc_object *object)
{
    if (mc_object_is_firm(object) && mc_core_counts(core))
        mc_object_holding(object)->account->firm_coming -= bytes_of_all(core, object);
}

void mc_firm_linked(struct mc_core *core, const struct mc_object *object, struct mc_segment *segment)
{
    if (mc_object_is_firm(object) && segment->kind == MC_SEGMENT_MEMORY)
        count(core, object, segment, mc_firm_bytes(object), 0);
    core->firm.hard_bytes += segment->kind == MC_SEGMENT_MEMORY ? mc_hard_bytes(object) : 0;
}

void mc_firm_unlinked(struct mc_core *core, const struct mc_object *object, struct mc_segment *segment)
{
    if (mc_object_is_firm(object) && segment->kind == MC_SEGMENT_MEMORY)
        count(core, object, segment, 0, mc_firm_bytes(object));
    core->firm.hard_bytes -= segment->kind == MC_SEGMENT_MEMORY ? mc_hard_bytes(object) : 0;
}

/* ---- how much ---- */

static uint64_t budget_of(const struct mc_core *core, uint64_t bytes)
{
    return (uint64_t)((double)bytes * core->config.firm_pin_ratio);
}

static uint64_t capacity(struct mc_core *core)
{
    if (core->firm.changes != core->segment_changes) {
        core->firm.capacity = mc_segments_capacity(core);
        core->firm.changes = core->segment_changes;
    }
    return core->firm.capacity;
}

uint64_t mc_firm_budget(struct mc_core *core)
{
    return budget_of(core, capacity(core));
}

bool mc_hard_fits(struct mc_core *core, struct mc_span key, const struct mc_object *before, uint64_t length,
                  uint32_t replicas)
{
    bool replaces = before != NULL && before->visible && before->hard && !before->soft;
    uint64_t had = replaces ? bytes_of_all(core, before) : 0, has = bytes_of(length, key.length) * replicas;
    if (core->config.hard_pin_ratio >= 1 || has <= had)
        return true;
    return core->firm.hard_bytes - had + has <= (uint64_t)((double)capacity(core) * core->config.hard_pin_ratio);
}

static uint64_t most_of_quota(const struct mc_core *core, const struct mc_account *account)
{
    uint64_t most = mc_account_most_bytes(core, account), firm = account->quota.firm_bytes;
    if (firm == 0)
        return budget_of(core, most);
    return firm < most ? firm : most;
}

/* Of a tenant: who has no quota leaves the others half of what all may have. more: than it has; for that, others may be
 * those that an earlier master knew. */
static uint64_t most_of(struct mc_core *core, const struct mc_account *account, bool more)
{
    if (account != NULL && account->has_quota)
        return most_of_quota(core, account);
    bool others = mc_account_has_others(core->objects.accounts, account) || (more && mc_recover_unsettled(core));
    return others ? mc_firm_budget(core) / 2 : UINT64_MAX;
}

bool mc_firm_fits(struct mc_core *core, struct mc_span key, const struct mc_object *before, uint64_t length,
                  uint32_t replicas, bool is_kept)
{
    bool replaces = before != NULL && before->visible && mc_object_is_firm(before);
    uint64_t had = replaces ? bytes_of_all(core, before) : 0, has = bytes_of(length, key.length) * replicas;
    bool more = has > had;
    if (!more && is_kept) /* the promise that was given goes on, whatever has become of the memory it was given for */
        return true;
    if (more && core->firm.bytes - had + has > mc_firm_budget(core))
        return false;
    if (!mc_core_counts(core))
        return true;
    const struct mc_account *account = mc_account_find(core->objects.accounts, key);
    uint64_t pinned = account == NULL ? 0 : account->firm_bytes;
    if (!more) /* those that are being renewed count once, or not all could be at a time */
        pinned -= account->firm_coming;
    return pinned - had + has <= most_of(core, account, more);
}

/* ---- where ---- */

#define SEGMENT_PART 0.5 /* of its memory at most, unless more than that may be pinned of all */

struct mc_firm_wish mc_firm_wish(const struct mc_core *core, const struct mc_object *before, struct mc_span key,
                                 uint64_t length)
{
    /* One that is over may go while it is placed. */
    bool replaces = before != NULL && before->visible && mc_object_is_firm(before) && mc_pin_left_ms(core, before) > 0;
    return (struct mc_firm_wish){
        .is_wanted = true, .bytes = bytes_of(length, key.length), .before = replaces ? before : NULL};
}

/* What it takes of that memory and would leave. */
static uint64_t bytes_there(const struct mc_core *core, const struct mc_object *object,
                            const struct mc_segment *segment)
{
    uint64_t bytes = 0;
    struct mc_replica at = object == NULL ? (struct mc_replica){.segment = NULL} : mc_replica_first(core, object);
    for (; at.segment != NULL; at = mc_replica_next(core, at))
        bytes += at.segment == segment ? mc_firm_bytes(object) : 0;
    return bytes;
}

bool mc_firm_goes_to(const struct mc_core *core, const struct mc_firm_wish *wish, const struct mc_segment *segment)
{
    if (!mc_wire_can(&segment->owner->peer, MC_FEATURE_FIRM_PINS))
        return false;
    double part = core->config.firm_pin_ratio > SEGMENT_PART ? core->config.firm_pin_ratio : SEGMENT_PART;
    uint64_t most = (uint64_t)((double)segment->capacity * part), had = bytes_there(core, wish->before, segment);
    uint64_t hard = segment->hard * MC_EXTENT_UNIT, pinned = segment->firm_bytes > hard ? segment->firm_bytes : hard;
    return wish->is_kept || wish->bytes <= had || pinned - had + wish->bytes <= most;
}
