/* Ends of things that no run would come to by itself: counters begin near their end, tables are full soon; and peers
 * of an earlier build. */
#include "members.h"
#include "held.h"

#include "store/core/core.h"
#include "store/core/state.h"
#include "store/wire/version.h"

uint32_t sim_clearing_max = 31;
static bool is_old[SIM_PROCESSES_MAX];

void sim_limits_start(void)
{
    sim_clearing_max = sim_plan->few_clearing > 0 ? sim_plan->few_clearing : 31;
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++)
        is_old[place] = sim_plan->has_old && sim_once_in(SIM_OLD, 2);
}

void sim_limits_core(struct mc_core *core)
{
    if (sim_plan->few_tombstones)
        core->tombstone_limit = sim_below(SIM_LIMIT, 3);
    if (sim_plan->few_generations) {
        oracle_fault(true); /* it begins again, and all meet it anew */
        core->counter = MC_COUNTER_END - 10 - sim_below(SIM_LIMIT, 60);
    }
}

/* What a build without features says of itself. */
void sim_wire_hello_sign(struct mc_wire_hello *hello);
void sim_wire_hello_sign(struct mc_wire_hello *hello)
{
    mc_wire_hello_sign(hello);
    if (!is_old[sim_process()->place])
        return;
    hello->features = 0;
    hello->build = mc_span_string("");
}

void sim_wire_hello_reply_sign(struct mc_wire_hello_reply *reply);
void sim_wire_hello_reply_sign(struct mc_wire_hello_reply *reply)
{
    mc_wire_hello_reply_sign(reply);
    if (!is_old[sim_process()->place])
        return;
    reply->features = 0;
    reply->layout = 0;
    reply->build = mc_span_string("");
}
