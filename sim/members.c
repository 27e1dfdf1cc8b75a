/* Who takes part in a run, and who leads. */
#include "members.h"

#include "store/core/state.h"

struct sim_cluster sim_cluster;

bool sim_has_fault(enum sim_fault fault)
{
    return (sim_plan->faults >> fault & 1u) != 0;
}

bool sim_is_master(uint32_t place)
{
    return place == SIM_PLACE_MASTER || (place >= SIM_PLACE_STANDBY && place < SIM_PLACE_STANDBY + sim_plan->standbys);
}

struct sim_process *sim_master(void)
{
    static struct sim_process nobody = {.place = SIM_PLACE_MASTER, .name = "no master"};
    if (sim_plan->standbys == 0)
        return &sim_processes[SIM_PLACE_MASTER];
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        struct sim_process *one = &sim_processes[place];
        const struct mc_core *core = sim_is_master(place) && one->alive ? one->core : NULL;
        if (core != NULL && core->epoch == sim_cluster.latest_epoch)
            return one;
    }
    return &nobody;
}

uint64_t sim_master_epoch(void)
{
    const struct sim_process *master = sim_master();
    const struct mc_core *core = master->alive ? master->core : NULL;
    return core == NULL ? 0 : core->epoch;
}

bool sim_is_member(uint32_t place)
{
    return sim_is_master(place) || (place >= SIM_PLACE_OWNER && place < SIM_PLACE_OWNER + sim_plan->owners) ||
           (place >= SIM_PLACE_CLIENT && place < SIM_PLACE_CLIENT + sim_plan->clients);
}
