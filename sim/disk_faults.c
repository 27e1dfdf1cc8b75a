/* What happens to disks, and to owners because of them, drawn from a stream of its own: owners that end and come back
 * while their keys are removed, masters that end while something is being stored, power that is lost, disks that are
 * slow, full, or fail, threads that stand still. */
#include "disk.h"
#include "held.h"
#include "members.h"
#include "oracle.h"

static bool ends_on_store; /* the master */

static uint64_t pause_draw(void)
{
    const uint32_t most_ms[] = {50, 1000, 6000, (uint32_t)sim_plan->disk_ttl_ms + 9000};
    return (20 + sim_below(SIM_DISKS, most_ms[sim_below(SIM_DISKS, 4)])) * SIM_MS;
}

static uint32_t owner_draw(void)
{
    return SIM_PLACE_OWNER + sim_below(SIM_DISKS, sim_plan->owners);
}

static void owner_ends(uint32_t place)
{
    if (sim_cluster.is_calm)
        sim_fail("rest: %s would end when all is well", sim_processes[place].name);
    sim_place_end(place);
    sim_at(sim_now_ns + pause_draw(), sim_place_restart, (void *)(uintptr_t)place);
}

static void on_heal(void *argument)
{
    sim_partition((uint32_t)(uintptr_t)argument, SIM_PLACE_MASTER, false);
    if (!sim_cluster.is_calm && sim_once_in(SIM_DISKS, 3)) /* what lies there is met by another process */
        owner_ends((uint32_t)(uintptr_t)argument);
}

/* Its keys are removed, or replaced, while nobody can tell it. */
static void owner_is_away(void)
{
    uint32_t place = owner_draw();
    uint64_t back_ns = pause_draw();
    if (!sim_processes[place].alive)
        return;
    if (sim_once_in(SIM_DISKS, 2))
        sim_cluster.removing_until_ns = sim_now_ns + back_ns + 500 * SIM_MS;
    if (sim_once_in(SIM_DISKS, 2)) {
        sim_place_end(place);
        sim_at(sim_now_ns + back_ns, sim_place_restart, (void *)(uintptr_t)place);
        return;
    }
    sim_say("%s and the master are cut off from each other", sim_processes[place].name);
    sim_partition(place, SIM_PLACE_MASTER, true);
    sim_at(sim_now_ns + back_ns, on_heal, (void *)(uintptr_t)place);
}

static void on_master_end(void *argument)
{
    uint32_t place = (uint32_t)(uintptr_t)argument;
    if (sim_cluster.is_calm || !sim_processes[place].alive)
        return;
    sim_place_end(place);
    sim_at(sim_now_ns + (20 + sim_below(SIM_DISKS, 2000)) * SIM_MS, sim_place_restart, argument);
}

void sim_disk_stores(void)
{
    if (!ends_on_store || !sim_once_in(SIM_DISKS, 2))
        return;
    ends_on_store = false;
    sim_at(sim_now_ns + sim_below(SIM_DISKS, 4000) * 1000ull, on_master_end, (void *)(uintptr_t)sim_master()->place);
}

static void on_threads_continue(void *argument)
{
    sim_threads_continue(&sim_processes[(uintptr_t)argument]);
}

static void thread_halts(void)
{
    static const char *const names[] = {"mc-mover", "mc-disk", "mc-serve"};
    uint32_t place = owner_draw();
    if (sim_thread_halt(&sim_processes[place], names[sim_below(SIM_DISKS, 3)]))
        sim_at(sim_now_ns + pause_draw(), on_threads_continue, (void *)(uintptr_t)place);
}

static void disk_is_bad(void)
{
    uint32_t machine = owner_draw() % sim_plan->machines;
    uint64_t until_ns = sim_now_ns + pause_draw();
    static const enum sim_disk_part parts[] = {SIM_DISK_JOURNALS, SIM_DISK_ALL, SIM_DISK_WRITES, SIM_DISK_WRITES};
    enum sim_disk_part part = parts[until_ns / SIM_MS % 4];
    uint32_t in;
    switch (sim_below(SIM_DISKS, 4)) {
    case 0:
        sim_cluster.has_broken_disks = true;
        in = 1u << sim_below(SIM_DISKS, 6);
        if (part == SIM_DISK_WRITES) /* read-only, and for so long that somebody minds */
            sim_disk_fail(machine, EIO, 1, part, until_ns + 4000 * SIM_MS);
        else
            sim_disk_fail(machine, EIO, in, part, until_ns);
        break;
    case 1:
        sim_disk_fail(machine, ENOSPC, 1u << sim_below(SIM_DISKS, 3), SIM_DISK_ALL, until_ns);
        break;
    default:
        sim_disk_slow(machine, 20u << sim_below(SIM_DISKS, 10), until_ns);
        break;
    }
}

static void on_fault(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    sim_at(sim_now_ns + (1 + sim_below(SIM_DISKS, sim_plan->disk_gap_ms)) * SIM_MS, on_fault, NULL);
    if (sim_cluster.operations_done < 10)
        return;
    oracle_fault(true);
    uint32_t what = sim_below(SIM_DISKS, 16);
    sim_note((uint64_t)what << 8 | 9);
    if (what < 4)
        owner_ends(owner_draw());
    else if (what < 8)
        owner_is_away();
    else if (what < 10)
        ends_on_store = sim_plan->standbys == 0;
    else if (what < 12)
        sim_machine_reboot(owner_draw() % sim_plan->machines);
    else if (what < 14)
        disk_is_bad();
    else
        thread_halts();
}

void sim_disk_faults_start(void)
{
    ends_on_store = false;
    if (sim_plan->disk_gap_ms > 0)
        sim_at(sim_now_ns + SIM_MS, on_fault, NULL);
}
