/* The oracle beside each disk: what was stored there, and what became of it, by the answers that the owner got.
 * Whenever a disk is ready (another process has it, its machine was down) it is compared with that: nothing is there
 * whose removal was answered, that was told as lost, or that was not there another time; what was stored, and has not
 * been removed since, is there, unless the machine lost its power since then, or operations of disks fail in this run.
 *
 * What lies on a disk is never certain to be read (held.c): it goes when the disk wants the room. */
#include "disk_watch.h"

#include "disk.h"
#include "members.h"
#include "oracle.h"
#include "parts.h"
#include "placed.h"

#include "store/disk/inside.h"

#include <string.h>

#define PLACES_MAX 16384u
#define OPENS_MAX 512u

int sim_disk_open(const struct mc_disk_config *config, struct mc_disk **disk, char *error, size_t error_size);
int sim_disk_store(struct mc_disk *disk, uint32_t slot, const struct mc_disk_entry *entry, uint8_t *buffer,
                   bool was_hit, mc_disk_stored *done, void *context);
int sim_disk_clear(struct mc_disk *disk, const struct mc_disk_place *places, size_t count, bool is_removal,
                   mc_disk_done *done, void *context);
int sim_disk_set_mark(struct mc_disk *disk, const struct mc_disk_mark *mark, mc_disk_done *done, void *context);
void sim_disk_journal_kill(struct mc_disk *disk, uint32_t region);

enum fate {
    IN_DOUBT, /* it is there or not */
    THERE,
    MISSING, /* a disk was ready without it: it may only come back if it is stored again */
    GONE     /* for ever */
};
static struct kept {
    struct mc_id disk;
    uint64_t generation;
    uint32_t slot, machine, put;
    uint32_t region; /* where it lies, unless it was moved since a region was last given up: sim_disk_journal_kill */
    enum fate fate;
} places[PLACES_MAX];
static uint32_t place_count;
uint64_t oracle_disk_stores, oracle_disk_loads, oracle_disk_returns;

struct open { /* of one disk by one process */
    struct mc_disk *disk;
    struct mc_disk_config config;
};
static uint32_t open_count;

void oracle_disks_reset(void)
{
    place_count = open_count = 0;
}

void oracle_disks_lose_power(uint32_t machine)
{
    for (uint32_t i = 0; i < place_count; i++) {
        if (places[i].machine == machine && places[i].fate == THERE)
            places[i].fate = IN_DOUBT;
    }
}

static struct kept *find(struct mc_id disk, struct mc_disk_place place)
{
    for (uint32_t i = place_count; i > 0; i--) {
        struct kept *one = &places[i - 1];
        if (one->slot == place.slot && one->generation == place.generation && mc_id_equal(one->disk, disk))
            return one;
    }
    return NULL;
}

static void is_gone(struct mc_id disk, struct mc_disk_place place)
{
    struct kept *kept = find(disk, place);
    if (kept == NULL)
        return;
    kept->fate = GONE;
    sim_say("  slot %u of disk %llx, generation %llx, is gone", place.slot, (unsigned long long)disk.low,
            (unsigned long long)place.generation);
    oracle_cleared(disk, place.slot, place.generation, oracle_is_being_put);
}

/* ---- what is found ---- */

static void compare(const struct open *open)
{
    struct mc_disk *disk = open->disk;
    struct mc_id id = mc_disk_id(disk);
    for (uint32_t i = 0; i < place_count; i++) {
        struct kept *kept = &places[i];
        if (!mc_id_equal(kept->disk, id))
            continue;
        const struct mc_disk_item *item = mc_disk_index_find(&disk->index, kept->slot, kept->generation);
        bool is_there = item != NULL, is_cut_off = kept->region >= disk->region_count;
        if (is_there && kept->fate >= MISSING)
            sim_fail("resurrection: slot %u of a disk, generation %llx, put %u, is there again, and was %s", kept->slot,
                     (unsigned long long)kept->generation, kept->put, kept->fate == GONE ? "gone" : "missing");
        /* What lies beyond a smaller size is cut off, and must not be there again either. */
        if (!is_there && kept->fate == THERE && !sim_cluster.has_broken_disks && !is_cut_off)
            sim_fail("lost: slot %u of a disk, generation %llx, put %u, was stored, and is not there after a restart",
                     kept->slot, (unsigned long long)kept->generation, kept->put);
        if (is_there)
            kept->region = item->region;
        oracle_disk_returns += is_there;
        if (!is_there && kept->fate != GONE)
            kept->fate = MISSING;
    }
}

static void on_ready(void *context, int code, uint32_t objects)
{
    struct open *open = context;
    if (code == 0 && open->disk != NULL)
        compare(open);
    open->config.ready(open->config.context, code, objects);
}

static void on_lost(void *context, const struct mc_disk_place *lost, size_t count)
{
    struct open *open = context;
    for (size_t i = 0; i < count; i++)
        is_gone(mc_disk_id(open->disk), lost[i]);
    open->config.lost(open->config.context, lost, count);
}

/* What lies beyond a smaller size is cut off when the disk is opened, and its process may end before it is ready. */
static void doubt_cut_off(const struct mc_disk *disk)
{
    for (uint32_t i = 0; i < place_count; i++) {
        bool is_cut_off = mc_id_equal(places[i].disk, mc_disk_id(disk)) && places[i].region >= disk->region_count;
        if (is_cut_off && places[i].fate == THERE)
            places[i].fate = IN_DOUBT;
    }
}

int sim_disk_open(const struct mc_disk_config *config, struct mc_disk **disk, char *error, size_t error_size)
{
    struct open *open = sim_allocate(sizeof(*open));
    struct mc_disk_config watched = *config;
    open->config = *config;
    watched.budget_bytes = sim_plan->has_budget ? SIM_DISK_REGION : 0;
    watched.context = open;
    watched.ready = on_ready;
    watched.lost = on_lost;
    int rc = mc_disk_open(&watched, disk, error, error_size);
    if (rc == 0) {
        open->disk = *disk;
        doubt_cut_off(*disk);
    }
    return rc;
}

/* ---- calls ---- */

struct call {
    struct mc_id disk;
    struct mc_disk *stored_on;
    struct mc_disk_place place;
    union {
        mc_disk_stored *stored;
        mc_disk_done *done;
    } answer;
    void *context;
    const struct mc_disk_place *places;
    size_t count;
    bool is_removal;
};

static void on_stored(void *context, int code, uint32_t slot)
{
    struct call *call = context;
    struct kept *kept = find(call->disk, call->place);
    if (kept != NULL && code == 0 && (kept->fate == IN_DOUBT || kept->fate == MISSING))
        kept->fate = THERE;
    const struct mc_disk_item *item =
        code == 0 ? mc_disk_index_find(&call->stored_on->index, call->place.slot, call->place.generation) : NULL;
    if (kept != NULL && item != NULL)
        kept->region = item->region;
    oracle_disk_stores += code == 0;
    sim_say("  slot %u of disk %llx, generation %llx, is stored: %s", call->place.slot,
            (unsigned long long)call->disk.low, (unsigned long long)call->place.generation, mc_error_name(code));
    call->answer.stored(call->context, code, slot);
}

int sim_disk_store(struct mc_disk *disk, uint32_t slot, const struct mc_disk_entry *entry, uint8_t *buffer,
                   bool was_hit, mc_disk_stored *done, void *context)
{
    struct call *call = sim_allocate(sizeof(*call));
    *call = (struct call){.disk = mc_disk_id(disk),
                          .stored_on = disk,
                          .place = {slot, entry->generation},
                          .answer.stored = done,
                          .context = context};
    uint32_t put = oracle_put_of(entry->hash.low, entry->hash.high, entry->length, entry->crc);
    if (put == UINT32_MAX && !oracle_is_part(&entry->hash, entry->length, entry->crc))
        sim_fail("content: what is stored on a disk as generation %llx nobody put",
                 (unsigned long long)entry->generation);
    bool is_head = put == UINT32_MAX;
    if (is_head)
        put = oracle_head_put(&entry->hash, entry->group);
    struct kept *told = find(call->disk, call->place); /* a master that has no answer tells it again */
    if (told != NULL && told->fate == GONE)
        sim_fail("late: generation %llx is stored in slot %u of a disk, where it was and is gone",
                 (unsigned long long)entry->generation, slot);
    if (told != NULL && told->fate == MISSING)
        told->fate = IN_DOUBT;
    if (told == NULL && put != UINT32_MAX && place_count < PLACES_MAX) {
        places[place_count++] = (struct kept){.disk = call->disk,
                                              .generation = entry->generation,
                                              .slot = slot,
                                              .machine = sim_process()->machine,
                                              .put = put,
                                              .fate = IN_DOUBT};
        if (is_head)
            oracle_placed_head(call->disk, slot, entry->generation, put, oracle_put_key(put), true);
        else
            oracle_placed_move(call->disk, slot, entry->generation, put, oracle_put_key(put), true);
    }
    sim_disk_stores();
    int rc = mc_disk_store(disk, slot, entry, buffer, was_hit, on_stored, call);
    if (rc < 0)
        sim_say("  slot %u of disk %llx, generation %llx, which was %s, is refused: %s", slot,
                (unsigned long long)call->disk.low, (unsigned long long)entry->generation,
                was_hit ? "read" : "not read", mc_error_name(rc));
    return rc;
}

static void on_cleared(void *context, int code)
{
    struct call *call = context;
    for (size_t i = 0; code == 0 && call->is_removal && i < call->count; i++)
        is_gone(call->disk, call->places[i]);
    call->answer.done(call->context, code);
}

int sim_disk_clear(struct mc_disk *disk, const struct mc_disk_place *cleared, size_t count, bool is_removal,
                   mc_disk_done *done, void *context)
{
    struct call *call = sim_allocate(sizeof(*call));
    *call = (struct call){.disk = mc_disk_id(disk),
                          .answer.done = done,
                          .context = context,
                          .places = cleared,
                          .count = count,
                          .is_removal = is_removal};
    for (size_t i = 0; i < count; i++) {
        struct kept *kept = find(call->disk, cleared[i]);
        if (kept != NULL && kept->fate == THERE)
            kept->fate = IN_DOUBT;
    }
    return mc_disk_clear(disk, cleared, count, is_removal, on_cleared, call);
}

/* A region makes room: what lies there is told as lost when the journal has that. Whoever is killed in between has told
 * nobody, and need not have it any more. What was moved to another before lies there alone from now on. */
void sim_disk_journal_kill(struct mc_disk *disk, uint32_t region)
{
    for (uint32_t i = 0; i < place_count; i++) {
        struct kept *kept = &places[i];
        const struct mc_disk_item *item = mc_id_equal(kept->disk, mc_disk_id(disk))
                                              ? mc_disk_index_find(&disk->index, kept->slot, kept->generation)
                                              : NULL;
        if (item != NULL && item->region == region && kept->fate == THERE)
            kept->fate = IN_DOUBT;
        if (item != NULL)
            kept->region = item->region;
    }
    mc_disk_journal_kill(disk, region);
}

/* Its contents are of that epoch: the owner has heard that a master offers them. */
int sim_disk_set_mark(struct mc_disk *disk, const struct mc_disk_mark *mark, mc_disk_done *done, void *context)
{
    if (mark->epoch != 0)
        oracle_met(mc_disk_id(disk), mark->epoch);
    return mc_disk_set_mark(disk, mark, done, context);
}
