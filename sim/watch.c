/* The oracle that stands beside each owner's index: it keeps its own account of what was promised about slots and
 * floor, and compares each step of the owner with it; and what a master offers with what is live at its owner.
 *
 * Calls between the product's files go through here (symbols.txt, kind w). A call takes its lock and gives it back with
 * other fibers running in between, so it is judged by what had ended before it began: generations and the floor only
 * rise, and who had to refuse then has to refuse later. */
#include "watch.h"

#include "disk_watch.h"
#include "members.h"
#include "oracle.h"
#include "parts.h"
#include "placed.h"
#include "worker.h"

#include "store/client/blank.h"
#include "store/segment/memory_inside.h"
#include "store/segment/pin.h"
#include "store/core/hint_kept.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <string.h>

#define SLOTS_MAX 512u /* higher ones are not looked at; few runs use them */
#define INDEXES_MAX 128u
#define BLANKS_MAX 4096u /* the last that clients heard of: one is used within seconds */

int sim_segment_memory_commit(struct mc_segment_memory *memory, const struct mc_wire_commit_item *commit);
int sim_segment_memory_may_write(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                 uint64_t length);
int sim_segment_memory_clear(struct mc_segment_memory *memory, uint32_t number, uint64_t generation);
void sim_blank_take(struct mc_master_link *link, struct mc_span body);
void sim_segment_memory_set_epoch(struct mc_segment_memory *memory, uint64_t epoch);

static struct account {
    struct mc_id segment;
    uint64_t floor;
    uint64_t top[SLOTS_MAX];   /* of the commits and clears that have ended */
    uint64_t clear[SLOTS_MAX]; /* highest that a clear was begun with */
} accounts[INDEXES_MAX];
static uint32_t account_count;
static uint64_t blanks[BLANKS_MAX], blank_count; /* generations */
static struct last_offer {
    uint64_t epoch, version;
} last_offers[SIM_KEY_NAMES_MAX];

void oracle_watch_reset(void)
{
    account_count = 0;
    blank_count = 0;
    memset(last_offers, 0, sizeof(last_offers));
}

/* By the segment's id: a later process may have taken up the memory. NULL when there are too many. */
static struct account *account_of(const struct mc_segment_memory *memory)
{
    struct mc_id id = memory->file.header->segment_id;
    for (uint32_t i = account_count; i > 0; i--) {
        if (mc_id_equal(accounts[i - 1].segment, id))
            return &accounts[i - 1];
    }
    if (account_count == INDEXES_MAX)
        return NULL;
    struct account *made = &accounts[account_count++];
    memset(made, 0, sizeof(*made));
    made->segment = id;
    return made;
}

static uint64_t generation_of(const struct mc_segment_memory *memory, uint32_t slot)
{
    return atomic_load_explicit(&memory->file.slots[slot].generation, memory_order_acquire);
}

static void raise_to(uint64_t *value, uint64_t least)
{
    *value = least > *value ? least : *value;
}

/* The generation of a slot never falls. */
static void check_top(const struct account *account, const struct mc_segment_memory *memory, uint32_t slot)
{
    if (generation_of(memory, slot) < account->top[slot])
        sim_fail("late: the generation of slot %u fell from %llx to %llx", slot, (unsigned long long)account->top[slot],
                 (unsigned long long)generation_of(memory, slot));
}

void sim_blank_take(struct mc_master_link *link, struct mc_span body)
{
    mc_blank_take(link, body);
    blanks[blank_count++ % BLANKS_MAX] = link->blank.generation;
}

/* Was that place granted ahead? */
static bool is_blank(uint64_t generation)
{
    for (uint64_t i = 0; i < blank_count && i < BLANKS_MAX; i++)
        if (blanks[i] == generation)
            return true;
    return false;
}

/* A piece, or a head, where the value lies: readers, removals and masters see nothing else of it. */
static void took_part(struct mc_id segment, const struct mc_wire_commit_item *commit, bool is_loaded)
{
    const struct mc_hash hash = {commit->hash_low, commit->hash_high};
    uint32_t put = oracle_head_put(&hash, commit->group);
    if (is_loaded && !oracle_is_part(&hash, commit->length, commit->crc))
        sim_fail("content: slot %u takes from a disk what nobody put", commit->slot);
    if (!is_loaded)
        oracle_part_took(commit);
    if (put == UINT32_MAX)
        return;
    oracle_placed_head(segment, commit->slot, commit->generation, put, oracle_put_key(put), is_loaded);
    if (!is_loaded)
        oracle_put_live(put, false);
}

/* What it is, and whose: of all slots, also of those that are not looked at. */
static void took(struct mc_id segment, const struct mc_wire_commit_item *commit)
{
    uint32_t put = oracle_put_of(commit->hash_low, commit->hash_high, commit->length, commit->crc);
    bool is_loaded = commit->replica == MC_REPLICA_LOADED;
    oracle_disk_loads += is_loaded;
    if (put == UINT32_MAX) {
        took_part(segment, commit, is_loaded);
    } else if (is_loaded) {
        oracle_placed_move(segment, commit->slot, commit->generation, put, oracle_put_key(put), false);
    } else {
        oracle_placed(segment, commit->slot, commit->generation, put, oracle_put_key(put), oracle_put_runs_since(put));
        oracle_put_live(put, is_blank(commit->generation));
    }
}

int sim_segment_memory_commit(struct mc_segment_memory *memory, const struct mc_wire_commit_item *commit)
{
    struct account *account = account_of(memory);
    bool is_watched = account != NULL && commit->slot < SLOTS_MAX;
    uint64_t floor = account == NULL ? 0 : account->floor, top = is_watched ? account->top[commit->slot] : 0;
    int rc = mc_segment_memory_commit(memory, commit);
    if (rc != 0)
        return rc;
    took(memory->file.header->segment_id, commit);
    if (!is_watched)
        return rc;
    if (commit->generation < floor)
        sim_fail("late: slot %u took a commit of generation %llx, below the floor %llx", commit->slot,
                 (unsigned long long)commit->generation, (unsigned long long)floor);
    if (commit->generation <= top)
        sim_fail("late: slot %u took a commit of generation %llx, and had seen %llx", commit->slot,
                 (unsigned long long)commit->generation, (unsigned long long)top);
    raise_to(&account->top[commit->slot], commit->generation);
    check_top(account, memory, commit->slot);
    return rc;
}

int sim_segment_memory_may_write(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                 uint64_t length)
{
    const struct account *account = account_of(memory);
    int rc = mc_segment_memory_may_write(memory, slot, generation, offset, length);
    if (rc == 0 && account != NULL && generation < account->floor)
        sim_fail("late: bytes of generation %llx are taken, below the floor", (unsigned long long)generation);
    if (rc == 0 && account != NULL && slot < SLOTS_MAX && generation <= account->top[slot])
        sim_fail("late: bytes of generation %llx are taken for slot %u, which has seen %llx",
                 (unsigned long long)generation, slot, (unsigned long long)account->top[slot]);
    return rc;
}

int sim_segment_memory_clear(struct mc_segment_memory *memory, uint32_t number, uint64_t generation)
{
    struct account *account = account_of(memory);
    struct mc_id segment = memory->file.header->segment_id;
    if (account == NULL || number >= SLOTS_MAX) {
        int rc = mc_segment_memory_clear(memory, number, generation);
        if (rc == 0)
            oracle_cleared(segment, number, generation, oracle_is_being_put);
        return rc;
    }
    const struct mc_slot *slot = &memory->file.slots[number];
    uint64_t before = generation_of(memory, number);
    bool was_live = slot->state == MC_SLOT_LIVE && before > generation;
    raise_to(&account->clear[number], generation);
    int rc = mc_segment_memory_clear(memory, number, generation);
    if (was_live && generation_of(memory, number) == before && slot->state != MC_SLOT_LIVE &&
        account->clear[number] < before)
        sim_fail("late: a clear of generation %llx took slot %u of generation %llx", (unsigned long long)generation,
                 number, (unsigned long long)before);
    if (rc == 0) {
        raise_to(&account->top[number], generation);
        oracle_cleared(segment, number, generation, oracle_is_being_put);
    }
    check_top(account, memory, number);
    return rc;
}

void sim_segment_memory_set_epoch(struct mc_segment_memory *memory, uint64_t epoch)
{
    struct account *account = account_of(memory);
    struct mc_id segment = memory->file.header->segment_id;
    mc_segment_memory_set_epoch(memory, epoch);
    if (account != NULL)
        raise_to(&account->floor, epoch << MC_EPOCH_SHIFT);
    oracle_met(segment, epoch);
}

/* ---- what is offered is live, and never older than what the same master has offered ---- */

static const struct mc_core *offering;
uint64_t oracle_hints_kept;

static void check_version(const struct mc_node *node)
{
    const struct mc_object *object = mc_node_object(node);
    uint32_t key;
    if (!object->visible || !sim_key_of(object, &key))
        return;
    uint64_t version = mc_node_version(offering, node);
    if (node->replica == MC_REPLICA_LOADED) /* that version is of the loading */
        return;
    if (last_offers[key].epoch == offering->epoch && version < last_offers[key].version)
        sim_fail("offered: key %u with version %llx, and %llx was offered before", key, (unsigned long long)version,
                 (unsigned long long)last_offers[key].version);
    last_offers[key] = (struct last_offer){offering->epoch, version};
}

/* When an owner has said of all changes that it keeps them, its slots say of each value what the master knows of it: so
 * nothing of that is lost with the master, or was with the one before it. An owner may have been told by another master
 * what this one has to hear first. */
static void check_hint(const struct mc_segment *segment, const struct mc_node *node, const struct mc_slot *slot,
                       const char *owner)
{
    bool is_settled = segment->owner != NULL && segment->hint_notes.count == 0 && !segment->hint_notes.is_short &&
                      mc_wire_can(&segment->owner->peer, MC_FEATURE_KEPT_HINTS);
    unsigned kept = mc_pin_hint(slot->flags), known = mc_hint_of(offering, node);
    oracle_hints_kept += is_settled && kept != 0;
    if (is_settled && mc_node_object(node)->visible && kept != known)
        sim_fail("hints: generation %llx at %s is known with %u, and %u is kept there",
                 (unsigned long long)slot->generation, owner, known, kept);
}

static void check_offers(const char *owner, const uint8_t *index, uint64_t size, const uint8_t *data,
                         uint64_t data_size)
{
    const struct mc_index_header *header = (const struct mc_index_header *)(const void *)index;
    const struct mc_slot *slots = (const struct mc_slot *)(const void *)(index + MC_INDEX_SLOTS_AT);
    const struct mc_segment *segment = NULL;
    (void)size, (void)data, (void)data_size;
    for (uint32_t i = 0; i < offering->segment_top && segment == NULL; i++) {
        const struct mc_segment *one = offering->segments[i];
        if (one != NULL && one->state != MC_SEGMENT_GONE && mc_id_equal(one->id, header->segment_id))
            segment = one;
    }
    /* Until all is told, a master that met the segment before may hold what went with the process that died. */
    if (segment == NULL || segment->recovering)
        return;
    for (uint32_t i = 0; i < segment->space.node_fresh; i++) {
        const struct mc_node *node = mc_segment_node(segment, i);
        if (node->state != MC_NODE_LIVE)
            continue;
        uint64_t generation = mc_node_generation(offering, node);
        if (slots[i].state != MC_SLOT_LIVE || slots[i].generation != generation)
            sim_fail("offered: slot %u of %s is known as generation %llx, but %s with %llx", i, owner,
                     (unsigned long long)generation, slots[i].state == MC_SLOT_LIVE ? "live" : "empty",
                     (unsigned long long)slots[i].generation);
        check_version(node);
        check_hint(segment, node, &slots[i], owner);
    }
}

void oracle_check_offers(void)
{
    const struct sim_process *master = sim_master();
    offering = master->alive ? master->core : NULL;
    if (offering != NULL)
        sim_each_segment(check_offers);
}
