/* What the files of one run share: cluster.c (processes, what they do, the end) and faults.c (what happens to them). */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "plan.h"

extern const struct sim_plan *sim_plan; /* of this run */

extern struct sim_cluster {
    bool is_calm, is_ended;   /* no faults any more; all is at rest */
    uint64_t absent_until_ns; /* one story of absence after the other */
    uint64_t first_story_ns;  /* some begin when there is something to lose */
    /* by place: it is to leave; it is stopped once more before its next commit */
    bool leaving[SIM_PROCESSES_MAX], is_slow[SIM_PROCESSES_MAX];
} sim_cluster;

/* cluster.c */
bool sim_has_fault(enum sim_fault fault);
/* Is there such a process in this plan? */
bool sim_is_member(uint32_t place);
void sim_place_start(uint32_t place);

/* faults.c */
void sim_faults_start(void);

#endif
