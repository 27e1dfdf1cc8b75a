/* What one seed does: cluster, workload, faults; and what is left out of it when a failure is being shrunk. */
#ifndef SIM_PLAN_H
#define SIM_PLAN_H

#include "sim.h"

#define SIM_OWNERS_MAX 5u
#define SIM_CLIENTS_MAX 4u
#define SIM_BATCH_MAX 4u
#define SIM_PLACE_MASTER 0u
#define SIM_PLACE_OWNER 1u
#define SIM_PLACE_CLIENT (SIM_PLACE_OWNER + SIM_OWNERS_MAX)
#define SIM_PLACE_STANDBY (SIM_PLACE_CLIENT + SIM_CLIENTS_MAX) /* the masters beside the first */
#define SIM_STANDBYS_MAX 2u
#define SIM_PLACE_FOREIGN 13u /* a node of another cluster, on a machine of its own */
#define SIM_PLACE_ETCD 14u    /* no process of ours: only cut off from others */
#define SIM_KEY_NAMES_MAX 16u
#define SIM_KEY_FORMAT "key-%u"
#define SIM_TENANTS_MAX 3u

#define SIM_FAULTS_MAP(X)                                                                                              \
    X(kill_master)                                                                                                     \
    X(stop_master)                                                                                                     \
    X(kill_owner)                                                                                                      \
    X(stop_owner)                                                                                                      \
    X(leave_owner)                                                                                                     \
    X(kill_client)                                                                                                     \
    X(stop_client)                                                                                                     \
    X(partition)                                                                                                       \
    X(broken)                                                                                                          \
    X(flip)                                                                                                            \
    X(past_writer)                                                                                                     \
    X(absent_owner)                                                                                                    \
    X(late_owner)                                                                                                      \
    X(slow_writer)                                                                                                     \
    X(clock)                                                                                                           \
    X(stop_thread)                                                                                                     \
    X(one_way)                                                                                                         \
    X(reboot)                                                                                                          \
    X(quick_master)                                                                                                    \
    X(suspend)                                                                                                         \
    X(wall_step)                                                                                                       \
    X(skew)

enum sim_fault {
#define SIM_FAULT_ENUM(name) SIM_FAULT_##name,
    SIM_FAULTS_MAP(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
        SIM_FAULTS_COUNT
};
/* Those before are drawn one by one. The others are whole stories that meet only by rare chance otherwise; a third of
 * the seeds has some of them. */
#define SIM_FAULTS_PLAIN SIM_FAULT_past_writer
/* Hard faults: of machines and threads. A quarter of the seeds has some of them on top of what it draws else. */
#define SIM_FAULTS_HARD SIM_FAULT_stop_thread
extern const char *const sim_fault_names[SIM_FAULTS_COUNT];

struct sim_quota { /* of a tenant; objects 0: as many as it likes */
    uint64_t bytes, objects, guaranteed_bytes, guaranteed_objects;
    bool is_given; /* else it has none, and puts nothing */
};

struct sim_plan {
    uint64_t seed;
    uint32_t owners, clients, threads, keys, operations;
    uint32_t faults; /* bits by enum sim_fault */
    /* drawn, not shrunk */
    uint32_t machines, replicas_max, value_max, batch_max, timeout_ms, fault_gap_ms, think_us_max;
    uint64_t capacity;
    uint64_t lease_ms, client_ttl_ms, put_discard_ms, depart_ms, window_ms;
    const char *paths;
    bool is_roomy, is_durable, is_named, has_upserts; /* named: segments lie in files that outlive their process */
    bool holds_keys, quiet_masters, unmet_keys, restarts_owner; /* variants of stories */
    bool early_mounts, heard_alone, returning_owner, is_given_up, loses_answers;
    bool all_forget;    /* of unmet_keys: all who heard of that master end with it */
    bool has_tenants;   /* all is put by a tenant that has a name */
    bool proves_epochs; /* what is said of other masters' epochs counts only with their proof */
    bool has_quotas;    /* or by several, which have quotas */
    uint32_t tenants;   /* then: of the first so many; keys and clients are dealt out */
    struct sim_quota quotas[SIM_TENANTS_MAX];
    bool has_lease;                                  /* elections are by a Lease of Kubernetes, not in etcd */
    bool is_noteless;                                /* masters have no directory to leave a note in */
    bool is_rewritten;                               /* one key is replaced all the time, and read in pieces */
    bool has_pieces;                                 /* several ranges of one key in one call */
    uint32_t hard_gap_ms, standbys, election_gap_ms; /* standbys: masters beside the first, with an election */
    bool has_foreign;                                /* a node of another cluster comes here */
    bool is_told;                                    /* which cluster they are, masters know from their operator */
    bool has_notes; /* departures are noted in a place that outlives masters, as with an election */
    /* wide: what clients ask beyond puts, gets and removals */
    bool has_sessions, has_pins, has_groups, has_jobs, has_drains;
    bool has_firm;  /* pins */
    bool has_hints; /* of what will become of values */
    bool only_clients_want;
    bool has_old;                         /* half of the processes are of an earlier build */
    bool few_tombstones, few_generations; /* soon there are no more */
    uint32_t few_clearing;                /* replicas that an object counts while they are cleared; 0: all */
    uint32_t disks;                       /* of each owner; 0: none */
    bool blanks;                          /* clients use places that are granted ahead, */
    bool blanks_near;                     /* on their own machine only */
    uint32_t data_threads;                /* of each owner; 0: one thread serves all */
    bool has_stripes;                     /* values of more than 512 bytes are put in pieces */
    bool dozes;                           /* masters stand still for seconds just before they are killed */
    bool is_stored_ahead; /* values go to disks shortly before they are evicted, and not when they are put */
    bool is_resized;      /* a disk may take more or less at each start of its owner */
    bool has_budget;      /* a disk soon takes only what was read before */
    uint64_t disk_bytes, disk_ttl_ms;
    uint32_t disk_gap_ms; /* something happens to disks so often; 0: never */
    uint32_t want_gap_ms; /* something runs out so often; 0: never */
};

extern const struct sim_plan *sim_plan; /* of this run */

struct sim_result {
    bool failed;
    char failure[512];
    uint64_t hash, messages, events, operations, now_ns;
};

/* Draws everything from the seed. plain: without stories, and without hard faults. hard_in: once in so many seeds there
 * are hard faults; 0: never. wide_in: the same for what clients ask beyond puts, gets and removals; disks_in: for
 * owners that have disks. */
void sim_plan_draw(struct sim_plan *plan, uint64_t seed, uint32_t operations, bool is_plain, uint32_t hard_in,
                   uint32_t wide_in, uint32_t disks_in);
void sim_plan_run(const struct sim_plan *plan, struct sim_result *result);

#endif
