/* What must be there, after any fault. Certainty is kept for each owner: what a master offers, and nobody has removed,
 * evicted or replaced since, is lost lawfully only if something has happened to every owner that holds it: its memory
 * ended with it, or it was silent for so long that a master may have acted on that.
 *
 * When an owner is silent is judged by what was done to it, not by what it says. An owner is *in touch* while it and
 * its master run and hear each other; then it had contact at most CONTACT_NS ago. A master that lives depart_ms after
 * the last contact may act on it, unless nothing that it did can be seen: one that has neither lived so long itself nor
 * offered anything is no evidence. */
#include "members.h"
#include "held.h"
#include "placed.h"

#include "store/segment/layout.h"
#include "store/segment/memory_inside.h"
#include "store/core/job.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "mooncake.h"

#include <stdio.h>
#include <string.h>

#define CONTACT_NS (1500 * SIM_MS) /* heartbeats come every second, and are answered soon */
#define WELL_NS (3000 * SIM_MS)    /* until all have met again */
#define OPEN_NS (1000 * SIM_MS)    /* until what clients have sent has arrived */
#define SLACK_NS (30 * SIM_MS)     /* clocks of milliseconds, answers under way */

static struct touch {
    uint64_t since_ns;   /* in touch since then; SIM_NEVER: not now */
    uint64_t contact_ns; /* the last contact was not before */
    uint64_t stalled_until_ns;
} touches[SIM_OWNERS_MAX];
static uint64_t depart_ns;
static bool is_roomy, is_strict; /* strict: before the first fault nothing may be missing even for a moment */
static uint64_t well_since_ns;   /* nobody is dead, stopped or cut off since then; SIM_NEVER: somebody is */
static uint64_t open_since_ns;   /* the master runs and hears all clients since then; SIM_NEVER: it does not */
static uint64_t open_at_ns;      /* the last moment of which that is known for OPEN_NS before */

void oracle_held_reset(const struct sim_plan *plan)
{
    for (uint32_t i = 0; i < SIM_OWNERS_MAX; i++)
        touches[i] = (struct touch){.since_ns = SIM_NEVER, .contact_ns = sim_now_ns};
    depart_ns = plan->depart_ms * SIM_MS;
    is_roomy = is_strict = plan->is_roomy;
    well_since_ns = sim_now_ns;
    open_since_ns = SIM_NEVER;
    open_at_ns = 0;
}

/* ---- owners ---- */

static bool is_running(uint32_t place)
{
    return sim_is_running(&sim_processes[place]) && !sim_is_wanting(place);
}

/* A stopped master counts no silence while it stands still. */
static bool is_in_touch(uint32_t owner)
{
    uint32_t place = SIM_PLACE_OWNER + owner;
    const struct sim_process *master = sim_master();
    bool is_there = sim_plan->standbys > 0 ? sim_is_running(master) && master->core != NULL
                                           : master->alive && !sim_is_wanting(master->place);
    return is_running(place) && is_there && !sim_is_partitioned(place, master->place) &&
           sim_now_ns >= touches[owner].stalled_until_ns;
}

static void disturb(void)
{
    well_since_ns = well_since_ns == SIM_NEVER ? SIM_NEVER : sim_now_ns;
}

static void lose(uint32_t place)
{
    if (oracle_placements_lose(place) > 0)
        sim_say("what %s holds may be lost", sim_processes[place].name);
}

void oracle_owner_lost(uint32_t place)
{
    lose(place);
    disturb();
}

/* Brings the account of one owner to now. */
static void touch_settle(uint32_t owner)
{
    struct touch *touch = &touches[owner];
    uint64_t until_ns = sim_now_ns; /* of the time in which the last contact was the one that is known */
    if (touch->since_ns != SIM_NEVER && touch->since_ns + CONTACT_NS < until_ns)
        until_ns = touch->since_ns + CONTACT_NS;
    if (oracle_master_acts(touch->contact_ns + depart_ns - SLACK_NS, until_ns))
        lose(SIM_PLACE_OWNER + owner);
    if (touch->since_ns != SIM_NEVER && sim_now_ns >= touch->since_ns + CONTACT_NS &&
        sim_now_ns - CONTACT_NS > touch->contact_ns)
        touch->contact_ns = sim_now_ns - CONTACT_NS;
}

static bool is_well(void)
{
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (sim_is_member(place) && !is_running(place) &&
            (place < SIM_PLACE_CLIENT || place >= SIM_PLACE_STANDBY || !sim_cluster.is_calm))
            return false;
        for (uint32_t other = 0; other < SIM_PROCESSES_MAX; other++) {
            if (sim_is_partitioned(place, other))
                return false;
        }
    }
    return true;
}

static bool is_open(void)
{
    bool is_cut = sim_is_wanting(sim_master()->place);
    for (uint32_t place = SIM_PLACE_CLIENT; place < SIM_PROCESSES_MAX; place++)
        is_cut |= sim_is_partitioned(place, sim_master()->place) || sim_is_wanting(place);
    return sim_is_running(sim_master()) && !is_cut;
}

static void open_settle(void)
{
    if (open_since_ns != SIM_NEVER && sim_now_ns >= open_since_ns + OPEN_NS)
        open_at_ns = sim_now_ns;
}

void oracle_changed(void)
{
    open_settle();
    if (!is_open())
        open_since_ns = SIM_NEVER;
    else if (open_since_ns == SIM_NEVER)
        open_since_ns = sim_now_ns;
    well_since_ns = is_well() ? sim_now_ns : SIM_NEVER;
    for (uint32_t owner = 0; owner < sim_plan->owners; owner++) {
        struct touch *touch = &touches[owner];
        touch_settle(owner);
        if (!is_in_touch(owner))
            touch->since_ns = SIM_NEVER;
        else if (touch->since_ns == SIM_NEVER)
            touch->since_ns = sim_now_ns;
    }
}

void oracle_connections_break(void)
{
    oracle_changed();
    disturb();
    for (uint32_t owner = 0; owner < sim_plan->owners; owner++) {
        if (touches[owner].since_ns != SIM_NEVER)
            touches[owner].since_ns = sim_now_ns;
    }
}

static void on_stall_ends(void *argument)
{
    (void)argument;
    oracle_changed();
}

void oracle_stalled(uint32_t place, uint64_t until_ns)
{
    touches[place - SIM_PLACE_OWNER].stalled_until_ns = until_ns;
    sim_at(until_ns, on_stall_ends, NULL);
    oracle_changed();
}

/* ---- what an owner says of its own contact ---- */

void sim_segment_memory_set_contact_ms(struct mc_segment_memory *memory, uint64_t contact_ms);
void sim_segment_memory_set_contact_ms(struct mc_segment_memory *memory, uint64_t contact_ms)
{
    uint32_t owner = sim_process()->place - SIM_PLACE_OWNER;
    mc_segment_memory_set_contact_ms(memory, contact_ms);
    if (owner >= sim_plan->owners || contact_ms == 0)
        return;
    touch_settle(owner);
    uint64_t age_ns = sim_boot_ns(sim_process()) - contact_ms * SIM_MS; /* by its own clock */
    if (sim_now_ns - age_ns > touches[owner].contact_ns)
        touches[owner].contact_ns = sim_now_ns - age_ns;
}

/* ---- keys ---- */

void oracle_fault(bool loses_objects)
{
    if (loses_objects)
        is_roomy = false;
    is_strict = false;
}

bool oracle_is_strict(void)
{
    return is_strict;
}

bool oracle_is_held(uint32_t key)
{
    if (is_roomy)
        return true;
    for (uint32_t owner = 0; owner < sim_plan->owners; owner++)
        touch_settle(owner);
    return oracle_placements_hold(key);
}

bool oracle_was_well(uint64_t start_ns)
{
    return well_since_ns != SIM_NEVER && start_ns >= well_since_ns + WELL_NS + depart_ns;
}

bool oracle_is_well_since(uint64_t start_ns)
{
    return well_since_ns <= start_ns;
}

bool oracle_was_open_after(uint64_t since_ns)
{
    open_settle();
    return open_at_ns >= since_ns + OPEN_NS;
}
