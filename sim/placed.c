/* Where each value lies, and which master put it there: for the one moment in which two values of a key may both be
 * read. A master that is young (has not lived depart_ms, or could not leave word of it for the next one) lets a new
 * value take a key whose old one lies in a segment that it has not met. Until it has met that segment, or is young no
 * more, either may be lost or found; then the old one is gone for ever. A master that dies young has decided nothing,
 * and nor has one whose word went with its machine. */
#include "members.h"
#include "placed.h"
#include "worker.h"

#include "base/bytes.h"
#include "store/segment/layout.h"
#include "store/core/core.h"
#include "store/core/state.h"

#include <string.h>

#define PLACEMENTS_MAX 32768u
#define MET_MAX 4096u
#define LIVES_MAX 1024u

static struct oracle_placement { /* of one replica */
    struct mc_id segment;
    uint64_t generation, cleared_ns; /* SIM_NEVER: it is there */
    uint32_t put, key, slot, place;  /* place: of its owner */
    bool is_offered;                 /* by a master, and nobody has removed, evicted or replaced it since */
    bool is_lost;                    /* something has happened to its owner that may cost it; or it is on a disk */
    bool is_move;                    /* of what was there already: no master decided anything by it */
    bool is_head;                    /* of a value in pieces: that may be lost with any of these */
} placements[PLACEMENTS_MAX];

static struct meeting { /* the owner has heard that this master offers the segment */
    struct mc_id segment;
    uint64_t epoch, since_ns;
} meetings[MET_MAX];

static struct life {
    uint64_t epoch, start_ns, end_ns;
    bool has_offered, may_age; /* may_age: it has left word that it comes of age, or need not */
} lives[LIVES_MAX];

static uint32_t placement_count, meeting_count, life_count;
static uint64_t depart_ns, flipped_ns; /* flipped: a bit of some owner's memory, last; 0: never */

void oracle_placed_reset(const struct sim_plan *plan)
{
    flipped_ns = 0;
    placement_count = meeting_count = life_count = 0;
    depart_ns = plan->depart_ms * SIM_MS;
}

static void master_look(void)
{
    const struct mc_core *core = sim_master()->core;
    for (uint32_t i = 0; core != NULL && core->has_offered && i < life_count; i++) {
        if (lives[i].end_ns == SIM_NEVER && lives[i].epoch == core->epoch)
            lives[i].has_offered = true;
    }
}

void oracle_master_ends(uint64_t epoch)
{
    master_look();
    for (uint32_t i = 0; i < life_count; i++) {
        bool is_meant = lives[i].epoch == epoch || (epoch == 0 && sim_plan->standbys == 0);
        if (is_meant && lives[i].end_ns == SIM_NEVER)
            lives[i].end_ns = sim_now_ns;
    }
}

void oracle_master_begins(uint64_t epoch)
{
    if (sim_plan->standbys == 0)
        oracle_master_ends(0);
    if (life_count < LIVES_MAX)
        lives[life_count++] = (struct life){epoch, sim_now_ns, SIM_NEVER, false, false};
}

void oracle_master_may_age(uint64_t epoch)
{
    for (uint32_t i = 0; i < life_count; i++)
        lives[i].may_age |= lives[i].epoch == epoch && lives[i].end_ns == SIM_NEVER;
}

void oracle_words_lost(uint64_t until_ns)
{
    for (uint32_t i = 0; i < life_count; i++)
        lives[i].may_age &= lives[i].end_ns > until_ns;
}

void oracle_placed_flip(void)
{
    flipped_ns = sim_now_ns;
}

void oracle_placed(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                   uint64_t since_ns)
{
    bool is_lost = flipped_ns != 0 && since_ns <= flipped_ns; /* its bytes may have been there when the bit was */
    sim_say("  put %u is live in slot %u, generation %llx", put, slot, (unsigned long long)generation);
    if (placement_count < PLACEMENTS_MAX)
        placements[placement_count++] = (struct oracle_placement){
            segment, generation, SIM_NEVER, put, key, slot, sim_process()->place, false, is_lost, false, false};
}

void oracle_placed_move(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                        bool is_disk)
{
    uint32_t before = placement_count;
    oracle_placed(segment, slot, generation, put, key, SIM_NEVER);
    if (placement_count == before)
        return;
    placements[before].is_move = true;
    placements[before].is_lost |= is_disk;
}

void oracle_placed_head(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                        bool is_move)
{
    uint32_t before = placement_count;
    oracle_placed(segment, slot, generation, put, key, SIM_NEVER);
    if (placement_count == before)
        return;
    placements[before].is_head = placements[before].is_lost = true;
    placements[before].is_move = is_move;
}

/* ---- what must be there: held.c ---- */

bool oracle_master_acts(uint64_t from_ns, uint64_t until_ns)
{
    master_look();
    for (uint32_t i = 0; i < life_count; i++) {
        uint64_t end_ns = lives[i].end_ns < until_ns ? lives[i].end_ns : until_ns;
        if (lives[i].start_ns < until_ns && end_ns >= from_ns &&
            (lives[i].has_offered || end_ns + 30 * SIM_MS >= lives[i].start_ns + depart_ns))
            return true;
    }
    return false;
}

uint32_t oracle_life(void)
{
    return life_count;
}

uint32_t oracle_placements_lose(uint32_t place)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement_count; i++) {
        struct oracle_placement *one = &placements[i];
        if (one->place == place && !one->is_lost) {
            one->is_lost = true;
            count += one->is_offered;
        }
    }
    return count;
}

void oracle_placements_evict(uint32_t key, uint64_t generation)
{
    for (uint32_t i = 0; i < placement_count; i++) {
        if (placements[i].key == key && (generation == 0 || placements[i].generation == generation))
            placements[i].is_offered = false;
    }
}

uint32_t oracle_offered(uint32_t key, uint64_t *generations, uint32_t capacity)
{
    struct mc_core_replica replicas[8];
    const struct sim_process *master = sim_master();
    if (!master->alive || master->core == NULL)
        return 0;
    int count = mc_core_query(master->core, sim_key_full(key), replicas, capacity < 8 ? capacity : 8);
    for (int i = 0; i < count; i++)
        generations[i] = replicas[i].generation;
    return count < 0 ? 0 : (uint32_t)count;
}

void oracle_placements_offer(uint32_t key)
{
    uint64_t generations[8];
    uint32_t count = oracle_offered(key, generations, 8);
    for (uint32_t i = 0; i < placement_count; i++) {
        if (placements[i].key != key)
            continue;
        placements[i].is_offered = false;
        for (uint32_t k = 0; k < count; k++)
            placements[i].is_offered |= placements[i].generation == generations[k];
    }
}

bool oracle_placements_hold(uint32_t key)
{
    for (uint32_t i = 0; i < placement_count; i++) {
        if (placements[i].is_offered && !placements[i].is_lost && placements[i].key == key)
            return true;
    }
    return false;
}

uint32_t oracle_placed_put(uint64_t generation)
{
    for (uint32_t i = placement_count; i > 0; i--) {
        if (placements[i - 1].generation == generation && !placements[i - 1].is_head)
            return placements[i - 1].put;
    }
    return UINT32_MAX;
}

/* Has a later value taken the key, or is one about to? A copy is a later one, of the same put. */
static bool is_replaced(const struct oracle_placement *old,
                        bool (*is_being_put)(uint32_t key, uint32_t other, bool is_earlier))
{
    uint32_t key = old->key;
    for (uint32_t i = 0; i < placement_count; i++) {
        if (placements[i].generation > old->generation &&
            (placements[i].put != old->put || sim_plan->has_jobs || sim_plan->has_drains || sim_plan->disks > 0) &&
            placements[i].key == key)
            return true;
    }
    bool is_earlier = life_count > 0 && old->generation >> MC_EPOCH_SHIFT < lives[life_count - 1].epoch;
    return is_being_put(key, old->put, is_earlier);
}

void oracle_cleared(struct mc_id segment, uint32_t slot, uint64_t generation,
                    bool (*is_being_put)(uint32_t key, uint32_t other, bool is_earlier))
{
    for (uint32_t i = placement_count; i > 0; i--) {
        struct oracle_placement *one = &placements[i - 1];
        if (one->slot == slot && one->generation <= generation && one->cleared_ns == SIM_NEVER &&
            mc_id_equal(one->segment, segment)) {
            one->cleared_ns = sim_now_ns;
            if (one->is_offered && is_replaced(one, is_being_put))
                oracle_placements_offer(one->key);
        }
    }
}

void oracle_met(struct mc_id segment, uint64_t epoch)
{
    if (meeting_count < MET_MAX)
        meetings[meeting_count++] = (struct meeting){segment, epoch, sim_now_ns};
}

static bool has_met(uint64_t epoch, struct mc_id segment, uint64_t by_ns)
{
    for (uint32_t i = 0; i < meeting_count; i++) {
        if (meetings[i].epoch == epoch && meetings[i].since_ns <= by_ns && mc_id_equal(meetings[i].segment, segment))
            return true;
    }
    return false;
}

/* Had the master of that epoch, or with or_later any after it, come of age by then? */
static bool has_aged(uint64_t epoch, uint64_t by_ns, bool or_later)
{
    for (uint32_t i = 0; i < life_count; i++) {
        uint64_t end_ns = lives[i].end_ns < by_ns ? lives[i].end_ns : by_ns;
        bool is_meant = lives[i].epoch == epoch || (or_later && lives[i].epoch > epoch);
        if (is_meant && lives[i].may_age && end_ns >= lives[i].start_ns + depart_ns)
            return true;
    }
    return false;
}

bool oracle_both_live(uint32_t newer, uint32_t older, uint64_t by_ns, bool newer_was_read)
{
    for (uint32_t i = 0; i < placement_count; i++) {
        const struct oracle_placement *one = &placements[i];
        uint64_t epoch = one->generation >> MC_EPOCH_SHIFT;
        if (one->put != newer || one->is_move || has_aged(epoch, by_ns, newer_was_read))
            continue;
        for (uint32_t k = 0; k < placement_count; k++) {
            const struct oracle_placement *other = &placements[k];
            if (other->put == older && other->generation >> MC_EPOCH_SHIFT < epoch && other->cleared_ns >= by_ns &&
                !has_met(epoch, other->segment, by_ns))
                return true;
        }
    }
    return false;
}
