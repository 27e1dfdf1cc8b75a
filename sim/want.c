/* Want: for a while, calls of one process fail because memory, descriptors or room on the disk have run out. */
#include "cluster.h"
#include "oracle.h"

static struct {
    uint32_t place, what, in; /* of `in` calls one fails */
    uint64_t until_ns;
} sim_want;
static bool has_wanted[SIM_PROCESSES_MAX];

static bool is_in_want(void)
{
    return sim_now_ns < sim_want.until_ns && !sim_cluster.is_calm;
}

bool sim_is_short(enum sim_shortage what)
{
    const struct sim_process *process = sim_process();
    if (sim_want.until_ns == 0 || process == NULL || process->place != sim_want.place ||
        (sim_want.what >> what & 1u) == 0 || !is_in_want() || !sim_once_in(SIM_WANT, sim_want.in))
        return false;
    sim_say("it is out of %s", what == SIM_SHORT_MEMORY ? "memory" : what == SIM_SHORT_FILES ? "descriptors" : "room");
    return true;
}

bool sim_is_wanting(uint32_t place)
{
    return sim_want.until_ns != 0 && place == sim_want.place && is_in_want();
}

bool sim_has_wanted(uint32_t place)
{
    return has_wanted[place];
}

static void on_want_ends(void *argument)
{
    (void)argument;
    oracle_changed();
}

static void on_want(void *argument)
{
    static const uint32_t most_ms[] = {5, 100, 1000, 3000}, in[] = {1, 1, 2, 8};
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    sim_want.place = SIM_PLACE_CLIENT + sim_below(SIM_WANT, sim_plan->clients);
    if (!sim_plan->only_clients_want && sim_once_in(SIM_WANT, 2)) {
        sim_want.place = sim_below(SIM_WANT, 1 + sim_plan->owners);
        oracle_fault(true);
    }
    sim_want.what = 1u << sim_below(SIM_WANT, SIM_SHORTAGES);
    sim_want.in = in[sim_below(SIM_WANT, 4)];
    sim_want.until_ns = sim_now_ns + (1 + sim_below(SIM_WANT, most_ms[sim_below(SIM_WANT, 4)])) * SIM_MS;
    has_wanted[sim_want.place] = true;
    sim_say("%s is in want, %x, until %.3f", sim_processes[sim_want.place].name, sim_want.what,
            (double)(sim_want.until_ns - 10000 * SIM_MS) / 1e9);
    oracle_changed();
    sim_at(sim_want.until_ns, on_want_ends, NULL);
    sim_at(sim_want.until_ns + (1 + sim_below(SIM_WANT, sim_plan->want_gap_ms)) * SIM_MS, on_want, NULL);
}

void sim_want_start(void)
{
    sim_want.until_ns = 0;
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++)
        has_wanted[place] = false;
    if (sim_plan->want_gap_ms > 0)
        sim_at(sim_now_ns + sim_below(SIM_WANT, 500) * SIM_MS, on_want, NULL);
}
