/* Tenants with quotas: what each may have, and what is judged of that. */
#ifndef SIM_QUOTAS_H
#define SIM_QUOTAS_H

#include "plan.h"

struct mc_core;
struct mc_object;

/* Whose keys are put, and what each of them may have. After everything else: it shrinks with the keys. */
void sim_quotas_draw(struct sim_plan *made);
/* A master has begun: it is told of all of them. */
void sim_quotas_give(struct mc_core *core);
/* Room is made: so many replicas of the object, all that lie in memory or one, are about to go. */
void oracle_quota_evicts(const struct mc_core *core, const struct mc_object *object, uint32_t replicas);
/* What tenants have, counted anew from the replicas that there are. The core is at rest. */
void oracle_check_usage(const struct mc_core *core);

#endif
