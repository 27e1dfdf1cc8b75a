/* Want: for a while, calls of one process fail because memory, descriptors or room on the disk have run out. */
#include "members.h"

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

void sim_want_reset(void)
{
    sim_want.until_ns = 0;
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++)
        has_wanted[place] = false;
}

void sim_want_begin(uint32_t place, enum sim_shortage what, uint32_t in, uint64_t until_ns)
{
    sim_want.place = place;
    sim_want.what = 1u << what;
    sim_want.in = in;
    sim_want.until_ns = until_ns;
    has_wanted[place] = true;
    sim_say("%s is in want, %x, until %.3f", sim_processes[place].name, sim_want.what,
            (double)(until_ns - 10000 * SIM_MS) / 1e9);
}
