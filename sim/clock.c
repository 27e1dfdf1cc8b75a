/* The clocks of simulated machines. Each has its own: since another boot, a little faster or slower than the world's,
 * with a wall clock that may be off and may be set. While a machine sleeps CLOCK_MONOTONIC stands still, and
 * CLOCK_BOOTTIME and the world go on. Durations that the product asks for are of its machine's monotonic clock. */
#include "sim.h"

#include <string.h>

#define MACHINES_MAX SIM_PROCESSES_MAX
#define MILLION 1000000

struct sim_machine {
    int64_t origin_ns; /* of the world's time, at which its clocks were 0 */
    int32_t fast_ppm;
    uint64_t slept_ns, sleeps_since_ns; /* by the boot clock; SIM_NEVER: awake */
    int64_t wall_ns;                    /* how far its wall clock is off */
    uint32_t boots;
};
static struct sim_machine machines[MACHINES_MAX];

void sim_clocks_reset(void)
{
    for (uint32_t i = 0; i < MACHINES_MAX; i++)
        machines[i] = (struct sim_machine){.sleeps_since_ns = SIM_NEVER};
}

static uint64_t boot_ns(const struct sim_machine *machine)
{
    int64_t passed_ns = (int64_t)sim_now_ns - machine->origin_ns;
    return (uint64_t)(passed_ns + passed_ns / MILLION * machine->fast_ppm);
}

uint64_t sim_boot_ns(const struct sim_process *process)
{
    return process == NULL ? sim_now_ns : boot_ns(&machines[process->machine]);
}

uint64_t sim_monotonic_ns(const struct sim_process *process)
{
    if (process == NULL)
        return sim_now_ns;
    const struct sim_machine *machine = &machines[process->machine];
    uint64_t now_ns = machine->sleeps_since_ns == SIM_NEVER ? boot_ns(machine) : machine->sleeps_since_ns;
    return now_ns - machine->slept_ns;
}

int64_t sim_wall_ns(const struct sim_process *process)
{
    int64_t off_ns =
        process == NULL ? 0 : machines[process->machine].wall_ns + process->wall_s * 1000 * (int64_t)SIM_MS;
    return 1800000000000 * (int64_t)SIM_MS + (int64_t)sim_now_ns + off_ns;
}

uint32_t sim_boots(const struct sim_process *process)
{
    return machines[process->machine].boots;
}

uint64_t sim_world_ns(const struct sim_process *process, uint64_t monotonic_ns)
{
    uint64_t now_ns = sim_monotonic_ns(process);
    if (monotonic_ns == SIM_NEVER || monotonic_ns <= now_ns)
        return monotonic_ns == SIM_NEVER ? SIM_NEVER : sim_now_ns;
    uint64_t left_ns = monotonic_ns - now_ns;
    int32_t fast_ppm = process == NULL ? 0 : machines[process->machine].fast_ppm;
    if (fast_ppm == 0)
        return sim_now_ns + left_ns;
    return sim_now_ns + left_ns + (uint64_t)((int64_t)(left_ns / MILLION) * -fast_ppm) + MILLION;
}

/* ---- what happens to clocks ---- */

void sim_clock_draw(uint32_t machine)
{
    machines[machine].fast_ppm = (int32_t)sim_below(SIM_HARD, 401) - 200;
    machines[machine].origin_ns = -(int64_t)(sim_below(SIM_HARD, 1000000) * SIM_MS);
}

void sim_wall_step(uint32_t machine, int64_t step_ns)
{
    machines[machine].wall_ns += step_ns;
    sim_say("the wall clock of machine %u is set by %.3f s", machine, (double)step_ns / 1e9);
}

void sim_machine_sleep(uint32_t machine)
{
    if (machines[machine].sleeps_since_ns == SIM_NEVER)
        machines[machine].sleeps_since_ns = boot_ns(&machines[machine]);
}

void sim_machine_wake(uint32_t machine)
{
    struct sim_machine *one = &machines[machine];
    if (one->sleeps_since_ns == SIM_NEVER)
        return;
    one->slept_ns += boot_ns(one) - one->sleeps_since_ns;
    one->sleeps_since_ns = SIM_NEVER;
}

bool sim_machine_sleeps(uint32_t machine)
{
    return machines[machine].sleeps_since_ns != SIM_NEVER;
}

void sim_machine_boot(uint32_t machine)
{
    struct sim_machine *one = &machines[machine];
    one->boots++;
    one->slept_ns = 0;
    one->sleeps_since_ns = SIM_NEVER;
    (void)sim_random(SIM_HARD);           /* every seed draws as it did */
    one->origin_ns = (int64_t)sim_now_ns; /* it was down until now: it cannot have been up before that */
}
