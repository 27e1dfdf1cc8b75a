/* Hard faults: single threads that stand still, ways that are cut in one direction, machines that reboot, sleep, or
 * whose clocks are off, a master that is there again at once. Drawn from a stream of their own, on top of the others.
 */
#include "disk_watch.h"
#include "members.h"
#include "held.h"
#include "oracle.h"

static uint64_t pause_draw(void)
{
    static const uint32_t most_ms[] = {20, 500, 3000, 12000};
    return sim_now_ns + (1 + sim_below(SIM_HARD, most_ms[sim_below(SIM_HARD, 4)])) * SIM_MS;
}

static uint32_t member_draw(void)
{
    if (sim_plan->standbys > 0 && sim_once_in(SIM_HARD, 4))
        return SIM_PLACE_STANDBY + sim_below(SIM_HARD, sim_plan->standbys);
    uint32_t place = sim_below(SIM_HARD, 1 + sim_plan->owners + sim_plan->clients);
    return place <= sim_plan->owners ? place : SIM_PLACE_CLIENT + place - sim_plan->owners - 1;
}

void sim_place_end(uint32_t place)
{
    if (!sim_processes[place].alive || sim_processes[place].asleep)
        return;
    oracle_process_killed(&sim_processes[place]);
    sim_process_kill(&sim_processes[place]);
}

/* ---- threads ---- */

static void on_threads_continue(void *argument)
{
    sim_threads_continue(&sim_processes[(uintptr_t)argument]);
}

/* A data thread stands still where it hurts: between what it has announced and what it stores, which has the scratch
 * behind it. */
static void data_receives(struct sim_process *process, size_t parts)
{
    if (parts != 2 || sim_cluster.is_calm || strcmp(sim_fiber->name, "mc-data") != 0 || !sim_once_in(SIM_DATA, 8) ||
        !sim_thread_halt(process, NULL))
        return;
    oracle_fault(true);
    sim_at(sim_now_ns + (1 + sim_below(SIM_DATA, 3000)) * SIM_MS, on_threads_continue,
           (void *)(uintptr_t)process->place);
    sim_sleep_ns(500);
}

static void fault_thread(void)
{
    uint32_t owner = SIM_PLACE_OWNER + sim_below(SIM_HARD, sim_plan->owners);
    const char *name = sim_once_in(SIM_HARD, 2) ? "mc-serve" : "mc-heartbeat";
    uint64_t end_ns = pause_draw();
    if (sim_thread_halt(&sim_processes[owner], name))
        sim_at(end_ns, on_threads_continue, (void *)(uintptr_t)owner);
}

/* ---- ways ---- */

static void on_way_open(void *argument)
{
    uintptr_t pair = (uintptr_t)argument;
    sim_way_cut((uint32_t)(pair >> 8), (uint32_t)(pair & 255), false);
}

static void fault_one_way(void)
{
    uint32_t from = member_draw(), to = sim_once_in(SIM_HARD, 2) ? sim_master()->place : member_draw();
    if (sim_once_in(SIM_HARD, 2)) {
        uint32_t other = from;
        from = to;
        to = other;
    }
    if (from == to)
        return;
    sim_say("place %u is not heard by %u any more", from, to);
    sim_way_cut(from, to, true);
    sim_at(pause_draw(), on_way_open, (void *)(uintptr_t)(from << 8 | to));
}

/* ---- machines ---- */

static bool is_on(uint32_t place, uint32_t machine)
{
    return sim_is_member(place) && place % sim_plan->machines == machine;
}

void sim_machine_reboot(uint32_t machine)
{
    uint64_t up_ns = pause_draw() + 100 * SIM_MS;
    if (sim_machine_sleeps(machine))
        return;
    sim_say("machine %u reboots", machine);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (!is_on(place, machine))
            continue;
        for (uint32_t other = 0; other < SIM_PROCESSES_MAX; other++)
            sim_cut_connections(place, other);
        sim_place_end(place);
        if (place >= SIM_PLACE_OWNER && place < SIM_PLACE_CLIENT)
            oracle_owner_lost(place);
        sim_at(up_ns + sim_below(SIM_HARD, 300) * SIM_MS, sim_place_restart, (void *)(uintptr_t)place);
    }
    oracle_connections_break();
    if (sim_once_in(SIM_HARD, 2)) { /* else the directory is on a disk, and of another boot */
        sim_say("machine %u comes back without its directory", machine);
        sim_files_lose(machine);
        if (is_on(sim_master()->place, machine))
            oracle_note_lost();
    }
    sim_files_boot(machine);
    oracle_disks_lose_power(machine);
    sim_machine_boot(machine);
}

static void on_wake(void *argument)
{
    uint32_t machine = (uint32_t)(uintptr_t)argument;
    if (!sim_machine_sleeps(machine))
        return;
    sim_say("machine %u wakes up", machine);
    sim_machine_wake(machine);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (is_on(place, machine))
            sim_process_wake(&sim_processes[place]);
    }
}

static void fault_suspend(void)
{
    uint32_t machine = sim_below(SIM_HARD, sim_plan->machines);
    if (sim_machine_sleeps(machine))
        return;
    sim_say("machine %u sleeps", machine);
    sim_machine_sleep(machine);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (is_on(place, machine))
            sim_process_sleep(&sim_processes[place]);
    }
    sim_at(pause_draw(), on_wake, (void *)(uintptr_t)machine);
}

static void fault_wall_step(void)
{
    static const uint32_t most_ms[] = {20, 1000, 100000, 4000000};
    int64_t step_ns = (int64_t)(1 + sim_below(SIM_HARD, most_ms[sim_below(SIM_HARD, 4)])) * (int64_t)SIM_MS;
    sim_wall_step(sim_below(SIM_HARD, sim_plan->machines), sim_once_in(SIM_HARD, 2) ? step_ns : -step_ns);
}

/* ---- the master ---- */

static void fault_quick_master(void)
{
    uint32_t place = sim_master()->place;
    if (!sim_processes[place].alive || sim_processes[place].asleep)
        return;
    sim_place_end(place);
    sim_at(sim_now_ns + sim_below(SIM_HARD, 20000) * 1000ull, sim_place_restart, (void *)(uintptr_t)place);
}

static void on_hard_fault(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    enum sim_fault fault = (enum sim_fault)(SIM_FAULTS_HARD + sim_below(SIM_HARD, SIM_FAULTS_COUNT - SIM_FAULTS_HARD));
    sim_at(sim_now_ns + (1 + sim_below(SIM_HARD, sim_plan->hard_gap_ms)) * SIM_MS, on_hard_fault, NULL);
    if (!sim_has_fault(fault))
        return;
    sim_note((uint64_t)fault << 8 | 7);
    oracle_fault(true);
    switch (fault) {
    case SIM_FAULT_stop_thread:
        fault_thread();
        break;
    case SIM_FAULT_one_way:
        fault_one_way();
        break;
    case SIM_FAULT_reboot:
        sim_machine_reboot(sim_below(SIM_HARD, sim_plan->machines));
        break;
    case SIM_FAULT_quick_master:
        fault_quick_master();
        break;
    case SIM_FAULT_suspend:
        fault_suspend();
        break;
    case SIM_FAULT_wall_step:
        fault_wall_step();
        break;
    default: /* clocks are skewed from the start */
        break;
    }
}

/* ---- elections ---- */

static void on_master_continues(void *argument)
{
    sim_process_continue(&sim_processes[(uintptr_t)argument]);
}

static void on_etcd_heard(void *argument)
{
    sim_partition((uint32_t)(uintptr_t)argument, SIM_PLACE_ETCD, false);
}

static uint64_t election_pause_draw(void)
{
    static const uint32_t most_ms[] = {100, 1500, 2500, 6000};
    return sim_now_ns + (1 + sim_below(SIM_ELECTION, most_ms[sim_below(SIM_ELECTION, 4)])) * SIM_MS;
}

/* Most of it meets the leader. */
static void on_election_fault(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    sim_at(sim_now_ns + (1 + sim_below(SIM_ELECTION, sim_plan->election_gap_ms)) * SIM_MS, on_election_fault, NULL);
    uint32_t standby = SIM_PLACE_STANDBY + sim_below(SIM_ELECTION, sim_plan->standbys),
             place = sim_once_in(SIM_ELECTION, 3) ? standby : sim_master()->place;
    uint64_t end_ns = election_pause_draw();
    oracle_fault(true);
    switch (sim_below(SIM_ELECTION, 7)) {
    case 0:
        sim_place_end(place);
        sim_at(end_ns, sim_place_restart, (void *)(uintptr_t)place);
        break;
    case 1:
        sim_process_stop(&sim_processes[place]);
        sim_at(end_ns, on_master_continues, (void *)(uintptr_t)place);
        break;
    case 2:
        sim_say("%s and etcd are cut off from each other", sim_processes[place].name);
        sim_partition(place, SIM_PLACE_ETCD, true);
        sim_at(end_ns, on_etcd_heard, (void *)(uintptr_t)place);
        break;
    case 3:
        sim_etcd_slow(end_ns);
        break;
    case 4:
        sim_etcd_away(end_ns);
        break;
    case 5:
        sim_etcd_full(end_ns);
        break;
    default:
        sim_etcd_forget();
        break;
    }
}

void sim_hard_start(void)
{
    bool halts = sim_plan->data_threads > 0 && sim_plan->hard_gap_ms > 0 && sim_plan->faults != 0;
    sim_in_receive = halts ? data_receives : NULL;
    if (sim_plan->standbys > 0)
        sim_at(sim_now_ns + 2500 * SIM_MS, on_election_fault, NULL);
    if (sim_plan->hard_gap_ms > 0)
        sim_at(sim_now_ns + SIM_MS, on_hard_fault, NULL);
}
