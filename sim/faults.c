/* What happens to the processes of a run: single faults, and stories of several. All of it is done by the driver. */
#include "cluster.h"
#include "held.h"
#include "members.h"
#include "placed.h"
#include "oracle.h"

void sim_place_restart(void *argument)
{
    uint32_t place = (uint32_t)(uintptr_t)argument;
    if (sim_cluster.is_ended || sim_processes[place].alive)
        return;
    if (sim_machine_sleeps(place % sim_plan->machines))
        sim_at(sim_now_ns + 50 * SIM_MS, sim_place_restart, argument);
    else
        sim_place_start(place);
}

static void on_continue(void *argument)
{
    sim_process_continue(&sim_processes[(uintptr_t)argument]);
}

static void on_heal(void *argument)
{
    uintptr_t pair = (uintptr_t)argument;
    sim_partition((uint32_t)(pair >> 8), (uint32_t)(pair & 255), false);
}

static uint64_t pause_draw(void)
{
    static const uint32_t most_ms[] = {2, 50, 1000, 6000};
    return sim_now_ns + (1 + sim_below(SIM_FAULTS, most_ms[sim_below(SIM_FAULTS, 4)])) * SIM_MS;
}

static void place_kill(uint32_t place)
{
    if (!sim_processes[place].alive || sim_processes[place].asleep)
        return;
    oracle_process_killed(&sim_processes[place]);
    sim_process_kill(&sim_processes[place]);
    /* No process is there again within a hundredth of a second, from which a master takes its epoch. */
    sim_at(pause_draw() + 20 * SIM_MS, sim_place_restart, (void *)(uintptr_t)place);
}

static void place_stop(uint32_t place)
{
    sim_process_stop(&sim_processes[place]);
    sim_at(pause_draw(), on_continue, (void *)(uintptr_t)place);
}

static void on_kill(void *argument)
{
    place_kill((uint32_t)(uintptr_t)argument);
}

static void on_doze_end(void *argument)
{
    struct sim_process *master = &sim_processes[(uintptr_t)argument];
    sim_process_continue(master);
    uint64_t life_ns =
        sim_once_in(SIM_EXTRA, 2) ? sim_below(SIM_EXTRA, 100) * SIM_MS : sim_below(SIM_EXTRA, 500) * 1000;
    if (!sim_cluster.is_calm)
        sim_at(sim_now_ns + life_ns, on_kill, argument);
}

/* A master that stands still, and ends when it has just gone on: it lived for long, and has run for less. */
static void fault_doze(void)
{
    struct sim_process *master = &sim_processes[SIM_PLACE_MASTER];
    if (!master->alive || master->asleep || master->stopped)
        return;
    sim_process_stop(master);
    sim_at(sim_now_ns + (1000 + sim_below(SIM_EXTRA, 4000)) * SIM_MS, on_doze_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

static void in_abort(struct sim_process *process)
{
    if (!sim_has_wanted(process->place))
        return;
    sim_at(sim_now_ns, on_kill, (void *)(uintptr_t)process->place);
    (void)sim_wait(SIM_NEVER);
}

/* Killed, and started again by who asked for it. */
static void on_end(void *argument)
{
    struct sim_process *process = &sim_processes[(uintptr_t)argument];
    if (sim_cluster.is_calm || !process->alive || process->asleep)
        return;
    oracle_process_killed(process);
    sim_process_kill(process);
}

/* A writer is stopped over half of its bytes, and its owner ends and begins again; the master takes the grant back. */
static void restarted_owner(struct sim_process *process)
{
    uint64_t restart_ns = sim_now_ns + (20 + sim_below(SIM_VARIANT, 200)) * SIM_MS;
    uint64_t end_ns = restart_ns + (sim_plan->put_discard_ms + 500 + sim_below(SIM_VARIANT, 2500)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 200 * SIM_MS;
    oracle_fault(true);
    sim_process_stop(process);
    sim_at(sim_now_ns + sim_below(SIM_VARIANT, 3) * SIM_MS, on_end, (void *)(uintptr_t)SIM_PLACE_OWNER);
    sim_at(restart_ns, sim_place_restart, (void *)(uintptr_t)SIM_PLACE_OWNER);
    sim_at(end_ns, on_continue, (void *)(uintptr_t)process->place);
}

/* A writer is stopped over half of its bytes, and the master that gave it leave to write dies: the next one learns of
 * it by the owner only. */
static void past_writer(struct sim_process *process)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || process->stopped)
        return;
    if (sim_plan->restarts_owner) {
        restarted_owner(process);
        return;
    }
    uint64_t end_ns = sim_now_ns + (1500 + sim_below(SIM_EXTRA, 6000)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 200 * SIM_MS;
    oracle_fault(!sim_plan->is_durable);
    sim_process_stop(process);
    sim_at(sim_now_ns + sim_below(SIM_EXTRA, 3) * SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(end_ns, on_continue, (void *)(uintptr_t)process->place);
}

/* A writer is stopped until its grant was taken away, and once more between its copy and its commit: that comes when
 * the slot is another's. */
static void slow_writer(struct sim_process *process)
{
    if (process->stopped)
        return;
    oracle_fault(!sim_plan->is_durable);
    sim_cluster.is_slow[process->place] = true;
    sim_process_stop(process);
    sim_at(sim_now_ns + (sim_plan->put_discard_ms + sim_below(SIM_EXTRA, 200)) * SIM_MS, on_continue,
           (void *)(uintptr_t)process->place);
}

static void before_commit(struct sim_process *process)
{
    if (!sim_cluster.is_slow[process->place] || process->stopped || sim_cluster.is_calm)
        return;
    sim_cluster.is_slow[process->place] = false;
    sim_process_stop(process);
    sim_at(sim_now_ns + (1 + sim_below(SIM_EXTRA, 60)) * SIM_MS, on_continue, (void *)(uintptr_t)process->place);
}

/* The worst moment for a client to be stopped or to die: half of its bytes are there. */
static void in_copy(struct sim_process *process)
{
    bool may_stop = sim_has_fault(SIM_FAULT_stop_client), may_die = sim_has_fault(SIM_FAULT_kill_client);
    bool is_client = !sim_cluster.is_calm && process->place >= SIM_PLACE_CLIENT && sim_is_member(process->place);
    if (is_client && sim_has_fault(SIM_FAULT_past_writer) && sim_once_in(SIM_EXTRA, 8)) {
        past_writer(process);
        return;
    }
    if (is_client && sim_has_fault(SIM_FAULT_slow_writer) && sim_once_in(SIM_EXTRA, 5)) {
        slow_writer(process);
        return;
    }
    if (sim_cluster.is_calm || (!may_stop && !may_die) || process->place < SIM_PLACE_CLIENT ||
        !sim_is_member(process->place) || !sim_once_in(SIM_FAULTS, 8))
        return;
    oracle_fault(!sim_plan->is_durable);
    if (may_stop && (!may_die || sim_once_in(SIM_FAULTS, 2))) {
        /* Often until after its grant was taken away, and others have written where it writes. */
        sim_process_stop(process);
        sim_at(sim_now_ns + (1 + sim_below(SIM_FAULTS, 2 * (uint32_t)sim_plan->put_discard_ms % 8000)) * SIM_MS,
               on_continue, (void *)(uintptr_t)process->place);
    } else if (may_die)
        sim_at(sim_now_ns, on_kill, (void *)(uintptr_t)process->place);
}

static void on_live(const struct sim_process *process)
{
    if (!sim_plan->loses_answers || sim_cluster.is_calm || sim_now_ns < sim_cluster.absent_until_ns ||
        process->place < SIM_PLACE_CLIENT || !sim_is_member(process->place) || !sim_once_in(SIM_ANSWER, 3))
        return;
    uint64_t end_ns = sim_now_ns + (50 + sim_below(SIM_ANSWER, 800)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 200 * SIM_MS;
    oracle_fault(true); /* a removal that was given up may still arrive */
    sim_say("place %u and the master are cut off from each other", process->place);
    sim_partition(process->place, SIM_PLACE_MASTER, true);
    sim_at(end_ns, on_heal, (void *)(uintptr_t)(process->place << 8 | SIM_PLACE_MASTER));
}

static void fault_partition(void)
{
    uint32_t a = sim_below(SIM_FAULTS, SIM_PLACE_CLIENT + sim_plan->clients),
             b = sim_below(SIM_FAULTS, SIM_PLACE_CLIENT + sim_plan->clients);
    if (a == b || !sim_is_member(a) || !sim_is_member(b))
        return;
    sim_say("places %u and %u are cut off from each other", a, b);
    sim_partition(a, b, true);
    sim_at(pause_draw(), on_heal, (void *)(uintptr_t)(a << 8 | b));
}

/* An owner is silent while its master ends and the next one begins; sometimes the first one noticed, and had time to
 * act on it or not. */
static void fault_absent(uint32_t owner)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[owner].alive ||
        !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t notice_ms = sim_once_in(SIM_EXTRA, 2) ? 0 : 300 + sim_below(SIM_EXTRA, 2400);
    if (notice_ms > 0 && sim_once_in(SIM_EXTRA, 2))
        notice_ms = sim_plan->depart_ms + 200 + sim_below(SIM_EXTRA, 4000);
    uint64_t end_ns = sim_now_ns + (notice_ms + 1000 + sim_below(SIM_EXTRA, 7000)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 6000 * SIM_MS;
    bool is_stopped = sim_once_in(SIM_EXTRA, 2);
    /* What a stopped one reads when it goes on is no sign that the dead master lived until then. */
    oracle_fault(notice_ms > 0 || !sim_plan->is_durable);
    if (is_stopped) {
        sim_process_stop(&sim_processes[owner]);
        sim_at(end_ns, on_continue, (void *)(uintptr_t)owner);
    } else {
        sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(end_ns, on_heal, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    sim_at(sim_now_ns + notice_ms * SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

/* All owners are cut off from the machine of the master, which ends at once; so do those after it, before they have
 * lived depart_ms, until the owners have been away for longer than that. */
static void fault_quiet(void)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t last_ns = sim_now_ns + (sim_plan->depart_ms + 300 + sim_below(SIM_VARIANT, 4000)) * SIM_MS;
    sim_cluster.absent_until_ns = last_ns + 8000 * SIM_MS;
    oracle_fault(false);
    for (uint32_t i = 0; i < sim_plan->owners; i++) {
        uint32_t owner = SIM_PLACE_OWNER + i;
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(last_ns + (100 + sim_below(SIM_VARIANT, 1500)) * SIM_MS, on_heal,
               (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
        /* The last of them meets owners, but has no time to offer what they bring. */
        if (sim_plan->early_mounts)
            sim_at(last_ns - (200 + sim_below(SIM_RETURN, 600)) * SIM_MS, on_heal,
                   (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    if (sim_plan->early_mounts) {
        sim_at(last_ns - 900 * SIM_MS, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
        sim_at(last_ns - 880 * SIM_MS, sim_place_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
    }
    for (uint64_t at_ns = sim_now_ns; at_ns < last_ns; at_ns += (1000 + sim_below(SIM_VARIANT, 1500)) * SIM_MS) {
        sim_at(at_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
        sim_at(at_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS, sim_place_restart,
               (void *)(uintptr_t)SIM_PLACE_MASTER);
    }
    sim_at(last_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(last_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS, sim_place_restart,
           (void *)(uintptr_t)SIM_PLACE_MASTER);
}

/* Does the master that all forget have one owner, so that it may act from its first moment on? */
static uint32_t has_one_owner(void)
{
    return sim_plan->all_forget && sim_plan->owners > 1 && sim_plan->seed % 2 == 0;
}

/* That master ends, and with it all clients, before another owner has heard of it. */
static void all_forget(uint64_t end_ns)
{
    if (has_one_owner())
        sim_at(end_ns - SIM_MS, on_kill, (void *)(uintptr_t)(SIM_PLACE_OWNER + sim_plan->owners - 1));
    sim_at(end_ns - SIM_MS, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(end_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS, sim_place_restart,
           (void *)(uintptr_t)SIM_PLACE_MASTER);
    for (uint32_t i = 0; i < sim_plan->clients; i++)
        sim_at(end_ns - sim_below(SIM_VARIANT, 2) * SIM_MS, on_kill, (void *)(uintptr_t)(SIM_PLACE_CLIENT + i));
}

/* All owners are cut off from the machine of the master, which ends at once; the one after it is of age, and answers
 * removals, before they come. */
static void fault_unmet(void)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t restart_ns = sim_now_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS;
    uint64_t end_ns = restart_ns + (sim_plan->depart_ms + 500 + sim_below(SIM_VARIANT, 3000)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 6000 * SIM_MS;
    oracle_fault(true);
    for (uint32_t i = 0; i < sim_plan->owners - has_one_owner(); i++) {
        uint32_t owner = SIM_PLACE_OWNER + i;
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(end_ns + sim_below(SIM_VARIANT, 1000) * SIM_MS, on_heal,
               (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    sim_at(sim_now_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(restart_ns, sim_place_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
    if (sim_plan->all_forget)
        all_forget(end_ns);
}

static void on_others_cut(void *argument)
{
    for (uint32_t place = SIM_PLACE_OWNER; place < SIM_PROCESSES_MAX; place++) {
        if (place != (uintptr_t)argument)
            sim_partition(place, SIM_PLACE_MASTER, true);
    }
}

static void on_all_healed(void *argument)
{
    (void)argument;
    for (uint32_t place = SIM_PLACE_OWNER; place < SIM_PROCESSES_MAX; place++)
        sim_partition(place, SIM_PLACE_MASTER, false);
}

/* The machine of the master ends: what it has sent and is not there yet is lost. */
static void on_crash(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm || !sim_processes[SIM_PLACE_MASTER].alive || sim_processes[SIM_PLACE_MASTER].asleep)
        return;
    for (uint32_t place = SIM_PLACE_OWNER; place < SIM_PROCESSES_MAX; place++)
        sim_cut_connections(SIM_PLACE_MASTER, place);
    oracle_connections_break();
    on_end((void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(sim_now_ns + (20 + sim_below(SIM_RETURN, 400)) * SIM_MS, sim_place_restart,
           (void *)(uintptr_t)SIM_PLACE_MASTER);
}

static void on_heartbeat(void)
{
    if (!sim_cluster.ends_on_heartbeat || sim_once_in(SIM_RETURN, 4))
        return;
    sim_cluster.ends_on_heartbeat = false;
    sim_at(sim_now_ns + sim_below(SIM_RETURN, 4 * sim_delay_us_max) * 1000ull, on_crash, NULL);
}

static void on_no_heartbeat(void *argument)
{
    if (sim_cluster.ends_on_heartbeat)
        on_crash(argument);
    sim_cluster.ends_on_heartbeat = false;
}

static void on_return(void *argument)
{
    on_heal(argument);
    sim_cluster.ends_on_heartbeat = true;
    uint32_t place = (uint32_t)((uintptr_t)argument >> 8);
    if (sim_once_in(SIM_RETURN, 2)) {
        sim_cut_connections(place, SIM_PLACE_MASTER);
        oracle_connections_break();
    } else {
        uint64_t until_ns = sim_now_ns + (500 + sim_below(SIM_RETURN, 3000)) * SIM_MS;
        sim_stall_connections(place, SIM_PLACE_MASTER, until_ns);
        oracle_stalled(place, until_ns);
    }
}

/* An owner is away until the master has acted on that, or has given its segment up. Soon after it is back the master's
 * machine ends. */
static void fault_returning(uint32_t owner)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[owner].alive ||
        !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t away_ms =
        (sim_plan->is_given_up ? sim_plan->client_ttl_ms : sim_plan->depart_ms) + 300 + sim_below(SIM_RETURN, 2500);
    uint64_t back_ns = sim_now_ns + away_ms * SIM_MS;
    sim_cluster.removing_until_ns = back_ns;
    sim_cluster.absent_until_ns = back_ns + 8000 * SIM_MS;
    oracle_fault(true);
    sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
    sim_partition(owner, SIM_PLACE_MASTER, true);
    sim_at(back_ns, on_return, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    sim_at(back_ns + 1500 * SIM_MS, on_no_heartbeat, NULL);
}

/* The same, but the master ends while the owner is away; the next one hears nobody but that owner, and ends young. */
static void fault_heard_alone(uint32_t owner)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[owner].alive ||
        !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t end_ns = sim_now_ns + (sim_plan->depart_ms + 300 + sim_below(SIM_RETURN, 2500)) * SIM_MS;
    uint64_t restart_ns = end_ns + 20 * SIM_MS, again_ns = restart_ns + (250 + sim_below(SIM_RETURN, 700)) * SIM_MS;
    sim_cluster.removing_until_ns = end_ns;
    sim_cluster.absent_until_ns = again_ns + 6000 * SIM_MS;
    oracle_fault(true);
    sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
    sim_partition(owner, SIM_PLACE_MASTER, true);
    sim_at(end_ns, on_heal, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    sim_at(end_ns, on_others_cut, (void *)(uintptr_t)owner);
    sim_at(end_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(restart_ns, sim_place_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(again_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(again_ns + SIM_MS, on_all_healed, NULL);
    sim_at(again_ns + 20 * SIM_MS, sim_place_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

static void on_late(void *argument)
{
    on_heal(argument);
    sim_slow_way(SIM_PLACE_MASTER, (uint32_t)((uintptr_t)argument >> 8), sim_now_ns + 150 * SIM_MS);
}

/* Owner and master do not hear each other for as long as writers wait for a commit. What was said meanwhile meets what
 * was said against it, and what the master says then comes late: when the slot may be in use again. */
static void fault_late(uint32_t owner)
{
    if (sim_now_ns < sim_cluster.absent_until_ns || !sim_processes[owner].alive)
        return;
    uint64_t end_ns = sim_now_ns + (80 + sim_below(SIM_EXTRA, 250)) * SIM_MS;
    sim_cluster.absent_until_ns = end_ns + 150 * SIM_MS;
    if (sim_plan->holds_keys && sim_processes[SIM_PLACE_MASTER].alive) {
        sim_at(end_ns - SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
        sim_cluster.absent_until_ns = end_ns + 2500 * SIM_MS;
    }
    oracle_fault(true);
    sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
    sim_partition(owner, SIM_PLACE_MASTER, true);
    sim_at(end_ns, on_late, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
}

static void fault_do(enum sim_fault fault)
{
    uint32_t owner = SIM_PLACE_OWNER + sim_below(SIM_FAULTS, sim_plan->owners),
             client = SIM_PLACE_CLIENT + sim_below(SIM_FAULTS, sim_plan->clients);
    bool is_harmless = fault == SIM_FAULT_kill_client || fault == SIM_FAULT_stop_client || fault == SIM_FAULT_broken ||
                       fault == SIM_FAULT_kill_master || fault == SIM_FAULT_stop_master;
    if (fault < SIM_FAULTS_PLAIN)
        oracle_fault(!is_harmless || !sim_plan->is_durable);
    sim_note((uint64_t)fault << 8 | 7);
    switch (fault) {
    case SIM_FAULT_kill_master:
        if (sim_plan->dozes)
            fault_doze();
        else
            place_kill(SIM_PLACE_MASTER);
        break;
    case SIM_FAULT_stop_master:
        place_stop(SIM_PLACE_MASTER);
        break;
    case SIM_FAULT_kill_owner:
        place_kill(owner);
        break;
    case SIM_FAULT_stop_owner:
        place_stop(owner);
        break;
    case SIM_FAULT_leave_owner:
        sim_cluster.leaving[owner] = sim_processes[owner].alive;
        oracle_owner_lost(owner);
        break;
    case SIM_FAULT_kill_client:
        place_kill(client);
        break;
    case SIM_FAULT_stop_client:
        place_stop(client);
        break;
    case SIM_FAULT_partition:
        fault_partition();
        break;
    case SIM_FAULT_broken:
        (void)sim_break_connection();
        oracle_connections_break();
        break;
    case SIM_FAULT_absent_owner:
        if (sim_plan->quiet_masters)
            fault_quiet();
        else if (sim_plan->unmet_keys)
            fault_unmet();
        else if (sim_plan->returning_owner)
            fault_returning(owner);
        else if (sim_plan->heard_alone)
            fault_heard_alone(owner);
        else
            fault_absent(owner);
        break;
    case SIM_FAULT_late_owner:
        fault_late(owner);
        break;
    case SIM_FAULT_past_writer: /* from within copies */
    case SIM_FAULT_slow_writer:
    case SIM_FAULT_clock: /* with each start of the master */
        break;
    case SIM_FAULT_flip:
        if (sim_flip_bit())
            oracle_placed_flip();
        for (uint32_t i = 0; i < sim_plan->owners; i++)
            oracle_owner_lost(SIM_PLACE_OWNER + i);
        break;
    default: /* the hard ones come by themselves */
        break;
    }
}

static void on_fault(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    uint32_t drawn = sim_plan->faults & ((1u << SIM_FAULTS_HARD) - 1);
    enum sim_fault fault =
        (enum sim_fault)sim_below(SIM_FAULTS, drawn >> SIM_FAULTS_PLAIN != 0 ? SIM_FAULTS_HARD : SIM_FAULTS_PLAIN);
    if (sim_has_fault(fault))
        fault_do(fault);
    sim_at(sim_now_ns + (1 + sim_below(SIM_FAULTS, sim_plan->fault_gap_ms)) * SIM_MS, on_fault, NULL);
}

/* ---- want ---- */

static void on_want_ends(void *argument)
{
    (void)argument;
    sim_on_change();
}

static void on_want(void *argument)
{
    static const uint32_t most_ms[] = {5, 100, 1000, 3000}, ins[] = {1, 1, 2, 8};
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    uint32_t place = SIM_PLACE_CLIENT + sim_below(SIM_WANT, sim_plan->clients);
    if (!sim_plan->only_clients_want && sim_once_in(SIM_WANT, 2)) {
        place = sim_below(SIM_WANT, 1 + sim_plan->owners);
        oracle_fault(true);
    }
    enum sim_shortage what = (enum sim_shortage)sim_below(SIM_WANT, SIM_SHORTAGES);
    uint32_t in = ins[sim_below(SIM_WANT, 4)];
    uint64_t until_ns = sim_now_ns + (1 + sim_below(SIM_WANT, most_ms[sim_below(SIM_WANT, 4)])) * SIM_MS;
    sim_want_begin(place, what, in, until_ns);
    sim_on_change();
    sim_at(until_ns, on_want_ends, NULL);
    sim_at(until_ns + (1 + sim_below(SIM_WANT, sim_plan->want_gap_ms)) * SIM_MS, on_want, NULL);
}

void sim_want_start(void)
{
    if (sim_plan->want_gap_ms > 0)
        sim_at(sim_now_ns + sim_below(SIM_WANT, 500) * SIM_MS, on_want, NULL);
}

/* ---- the beginning ---- */

void sim_faults_start(void)
{
    oracle_on_live = on_live;
    sim_on_heartbeat = on_heartbeat;
    sim_in_abort = in_abort;
    sim_in_copy = in_copy;
    sim_in_unix_send = before_commit;
    if ((sim_plan->faults & ((1u << SIM_FAULTS_HARD) - 1)) != 0)
        sim_at(sim_now_ns + SIM_MS, on_fault, NULL);
}
