/* Of values in pieces (--stripes). The oracle judges a value's bytes by what its readers get; of pieces and heads,
 * which no call of a user's names, it knows what owners took from their writers: nothing else may come to lie on a
 * disk, or from there in memory. And no pieces stay whose head has left, or does not come: nobody asks for them. */
#include "near_limits.h"
#include "oracle.h"
#include "parts.h"
#include "plan.h"
#include "worker.h"

#include "base/checksum.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#define PARTS_MAX 65536u
#define REST_MAX 256u
#define REST_MS 3000u /* for what is to go at the next ticks */
#define STEP_MS 200u  /* a master that stood still for longer has not ticked meanwhile */

static struct part {
    struct mc_hash hash;
    uint64_t length, group;
    uint32_t crc;
} parts[PARTS_MAX];

static struct rest {                 /* pieces without a head, all of which could go */
    uint64_t group, waited_ms, seen; /* seen: in the look of that number */
} rests[REST_MAX];

static uint32_t part_count, rest_count;
static uint64_t looks, looked_ms, epoch;

void oracle_parts_reset(void)
{
    part_count = rest_count = 0;
    looks = looked_ms = epoch = 0;
}

void oracle_part_took(const struct mc_wire_commit_item *commit)
{
    if (!sim_plan->has_stripes || !mc_stripe_can_be(commit->group) || part_count == PARTS_MAX)
        return;
    parts[part_count++] =
        (struct part){{commit->hash_low, commit->hash_high}, commit->length, commit->group, commit->crc};
}

bool oracle_is_part(const struct mc_hash *hash, uint64_t length, uint32_t crc)
{
    for (uint32_t i = part_count; i > 0; i--) {
        const struct part *part = &parts[i - 1];
        if (part->hash.low == hash->low && part->hash.high == hash->high && part->length == length && part->crc == crc)
            return true;
    }
    return part_count == PARTS_MAX;
}

/* Its pieces were taken before, the first of them among them: no other is the beginning of a put. */
uint32_t oracle_head_put(const struct mc_hash *hash, uint64_t group)
{
    uint32_t put = UINT32_MAX;
    for (uint32_t i = part_count; i > 0 && put == UINT32_MAX; i--)
        if (parts[i - 1].group == group)
            put = oracle_put_of_head(hash, parts[i - 1].length, parts[i - 1].crc);
    return put;
}

static bool is_settled(const struct mc_core *core)
{
    return !mc_recover_unsettled(core) && mc_link_alone(&core->recovering);
}

static bool could_go(const struct mc_core *core, const struct mc_object *object)
{
    if (!object->visible || mc_key_hides(core, object))
        return false;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->state != MC_SEGMENT_OK)
            return false;
    return true;
}

/* Nobody takes a piece from a value that is there; and whose pieces may still be told stays. */
void oracle_part_goes(const struct mc_core *core, const struct mc_object *object, bool is_removed)
{
    const struct mc_group *group = mc_object_group(object);
    if (!sim_plan->has_stripes || group == NULL)
        return;
    bool is_there = group->head != NULL && group->head->visible;
    if (is_removed && mc_object_is_piece(object) && is_there && mc_stripe_is_whole(core, group->head))
        sim_fail("stripes: a piece of group %llx is removed, and its head is there", (unsigned long long)group->id);
    if (!is_removed && mc_object_is_head(object) && !is_settled(core) && could_go(core, object))
        sim_fail("stripes: the head of group %llx goes before all is told", (unsigned long long)group->id);
}

static bool could_all_go(const struct mc_core *core, const struct mc_group *group)
{
    for (const struct mc_object *at = group->first; at != NULL; at = mc_object_membership(at)->next)
        if (!could_go(core, at))
            return false;
    return group->head == NULL && group->pieces > 0;
}

static void look(const struct mc_group *group, uint64_t step_ms)
{
    uint32_t at = 0;
    while (at < rest_count && rests[at].group != group->id)
        at++;
    if (at == REST_MAX)
        return;
    if (at == rest_count)
        rests[rest_count++] = (struct rest){.group = group->id};
    rests[at].seen = looks;
    rests[at].waited_ms += step_ms;
    uint64_t most_ms = REST_MS + (group->is_shown ? 0 : MC_STRIPE_HEADLESS_MS);
    if (rests[at].waited_ms > most_ms)
        sim_fail("stripes: %u pieces of group %llx stay, and there is no head of theirs", group->pieces,
                 (unsigned long long)group->id);
}

void oracle_parts_rest(const struct mc_core *core)
{
    if (!sim_plan->has_stripes)
        return;
    if (core->epoch != epoch)
        rest_count = 0;
    uint64_t step_ms = core->now_ms - looked_ms < STEP_MS ? core->now_ms - looked_ms : STEP_MS;
    epoch = core->epoch;
    looked_ms = core->now_ms;
    looks++;
    bool is_quiet = is_settled(core);
    for (const struct mc_link *at = core->groups.stripes.next; is_quiet && at != &core->groups.stripes; at = at->next) {
        const struct mc_group *group = mc_link_of(at, struct mc_group, open);
        if (at != &core->groups.stripes_turn && could_all_go(core, group))
            look(group, step_ms);
    }
    uint32_t count = rest_count;
    rest_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (rests[i].seen == looks)
            rests[rest_count++] = rests[i];
}
