/* Jobs and hints of clients, and segments that are to be drained. */
#ifndef SIM_JOBS_H
#define SIM_JOBS_H

#include "worker.h"

void sim_job_do(struct sim_worker *worker);
void sim_hint_do(struct sim_worker *worker);

struct mc_core;
void sim_drains_start(void);
/* The master hears of it. */
void sim_drains_apply(struct mc_core *core);
/* All is well: those that are to be drained become empty, then none is any more. */
void sim_drains_end(void);

/* Nothing is placed in a segment that is being drained. */
void oracle_check_drains(const struct mc_core *core);

#endif
