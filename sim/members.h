/* What the files of one run share: who takes part (members.c), and what happens to them. */
#ifndef SIM_MEMBERS_H
#define SIM_MEMBERS_H

#include "plan.h"

#define SIM_PUT_LATE_MS 100u /* a put waits so long for the fate of its grants, whatever its deadline is */

extern struct sim_cluster {
    bool is_calm, is_ended; /* no faults any more; all is at rest */
    uint32_t operations_left, operations_done;
    uint64_t latest_epoch;      /* of the masters that have begun */
    uint64_t absent_until_ns;   /* one story of absence after the other */
    uint64_t first_story_ns;    /* some begin when there is something to lose */
    uint64_t removing_until_ns; /* clients remove, and put nothing, until then */
    bool has_broken_disks;      /* some may have failed, which their processes do not use again */
    bool ends_on_heartbeat;     /* the master's machine, soon after it has heard an owner */
    /* by place: it is to leave; it is stopped once more before its next commit */
    bool leaving[SIM_PROCESSES_MAX], is_slow[SIM_PROCESSES_MAX];
} sim_cluster;

bool sim_has_fault(enum sim_fault fault);
/* What stores are given as the address of the master. */
const char *sim_master_address(void);
/* The master. With an election the one of the latest epoch; if it has ended, one that is not alive. */
struct sim_process *sim_master(void);
bool sim_is_master(uint32_t place);
/* Its epoch; 0: there is none now. */
uint64_t sim_master_epoch(void);
/* Is there such a process in this plan? */
bool sim_is_member(uint32_t place);

/* etcd.c: states of the simulated etcd, until then */
void sim_etcd_reset(void);
void sim_etcd_slow(uint64_t until_ns);
void sim_etcd_away(uint64_t until_ns); /* neither requests nor answers arrive */
void sim_etcd_full(uint64_t until_ns); /* it takes no writes */
void sim_etcd_forget(void);            /* who leads */
/* lease.c: the same by a Lease of Kubernetes */
void sim_lease_reset(void);
void sim_lease_forget(void);
struct json_t *sim_lease_answer(const char *method, const struct json_t *body, bool is_full, int *status);

/* foreign.c */
void sim_foreign_main(struct sim_process *process);

/* hard.c: what happens to machines and threads */
void sim_hard_start(void);
void sim_place_end(uint32_t place);        /* it is killed, if it runs; nobody starts it again */
void sim_machine_reboot(uint32_t machine); /* with all that is on it */

/* disk_faults.c: what happens to disks */
void sim_disk_faults_start(void);
void sim_disk_stores(void); /* an owner begins to store something */

/* limits.c: counters near their end, small tables, peers of an earlier build */
void sim_limits_start(void);
struct mc_core;
void sim_limits_core(struct mc_core *core);

/* want.c: what has run out on a process: of `in` calls that need it one fails, until then */
void sim_want_reset(void);
void sim_want_begin(uint32_t place, enum sim_shortage what, uint32_t in, uint64_t until_ns);
bool sim_is_wanting(uint32_t place);
bool sim_has_wanted(uint32_t place); /* ever */

/* faults.c */
/* argument: the place. */
void sim_place_restart(void *argument);
void sim_faults_start(void);
void sim_want_start(void);

#endif
