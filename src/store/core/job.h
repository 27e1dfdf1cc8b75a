/* Long work in slices, and answers that wait for it. */
#ifndef MC_CORE_JOB_H
#define MC_CORE_JOB_H

#include "base/regex.h"
#include "store/core/core.h"
#include "store/core/list.h"
#include "store/wire/tenant.h"
#include "store/wire/wire.h"

struct mc_connection;
struct mc_core;
struct mc_object;
struct mc_segment;

enum mc_wait_kind { MC_WAIT_REMOVE, MC_WAIT_COUNT, MC_WAIT_BOTH };
struct mc_wait { /* an answer that waits for CLEARED; BOTH: one more that waits for the same as others */
    uint32_t index;
    enum mc_wait_kind kind;
    struct mc_connection *connection; /* NULL, and no removal: nobody wants to hear the answer; always of BOTH */
    struct mc_removal *removal;       /* of the shell's own; NULL: it looks no more */
    bool is_own;                      /* the shell's */
    struct mc_link of_connection;
    uint64_t request_id;
    uint64_t started_ms; /* life time */
    uint16_t key_length; /* of the first key, or for a removal of many its scope and a star; its first bytes: */
    uint8_t key[MC_CORE_SLOW_KEY_MAX];
    uint64_t outstanding;         /* held keys and BOTHs, plus one while the request itself is still at work */
    struct mc_wait *before, *own; /* of BOTH: those who waited already, maybe a BOTH too; and the one more */
    struct mc_wait *next_due;     /* in core->waits_due */
    int32_t code;
    uint64_t removed;
    uint32_t code_count;
    int32_t codes[];
};

enum mc_job_kind { MC_JOB_SWEEP, MC_JOB_REMOVE, MC_JOB_STORE, MC_JOB_FORGET };
struct mc_job {
    struct mc_link link;
    enum mc_job_kind kind;
    struct mc_segment *segment; /* SWEEP, FORGET */
    uint32_t number;            /* STORE: of the segment whose values are to come to disks, offload_sweep.h */
    struct mc_wait *wait;       /* REMOVE */
    struct mc_regex *regex;     /* REMOVE; NULL = all */
    bool is_scoped;             /* REMOVE: of that tenant's objects alone */
    struct mc_scope scope;
    bool force, too_costly, again; /* again: something could not go yet */
    uint32_t index, slot;          /* of the segment, where to go on */
    uint64_t rest_until_ms;        /* before it looks again at what could not go, or be stored */
};

struct mc_removal {       /* one that the shell has asked for (mc_core_remove_all) */
    uint64_t id;          /* 0: free */
    struct mc_wait *wait; /* NULL: it is done */
    int32_t code;
    uint64_t count;
};

/* NULL: the connection waits for too much already, or memory is out. */
struct mc_wait *mc_wait_create(struct mc_core *core, enum mc_wait_kind kind, struct mc_connection *connection,
                               uint64_t request_id, uint32_t code_count);
/* What it removes, for people who look: the first key, or a star in its scope. */
void mc_wait_names(struct mc_wait *wait, struct mc_span key);
/* One of what it waits for is done; answers when it was the last. */
void mc_wait_done(struct mc_core *core, struct mc_wait *wait);
/* Whoever waited before this BOTH, without the one more, which is not answered any longer. */
struct mc_wait *mc_wait_part(struct mc_core *core, struct mc_wait *both);
/* The connection ends: nobody wants to hear its answers. */
void mc_waits_abandon(struct mc_connection *connection);
/* Answers more of those who waited for the same; true when some are left. */
bool mc_waits_tick(struct mc_core *core);
void mc_job_remove_regex(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_job_remove_all(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The job that a segment has from the first on, so that neither its end nor its absence needs memory: FORGET while it
 * is detached, then SWEEP. NULL: memory is out. */
struct mc_job *mc_job_create(struct mc_segment *segment);
void mc_job_forget(struct mc_core *core, struct mc_segment *segment, uint64_t at_ms);
/* Not detached any more. */
void mc_job_forget_stop(struct mc_segment *segment);
void mc_job_sweep(struct mc_core *core, struct mc_segment *segment);
/* False when memory is out. */
bool mc_job_store(struct mc_core *core, uint32_t segment);
/* A slice of one job; true when there are jobs left. */
bool mc_jobs_tick(struct mc_core *core);
/* The time of the first that rests; UINT64_MAX: none does. */
uint64_t mc_jobs_due(const struct mc_core *core);
/* A removal of all or by pattern has not come by the visible object yet. A copy of its value that took its place now
 * could lie where the removal has looked already: it would answer, and the value would stay. */
bool mc_jobs_will_meet(const struct mc_core *core, const struct mc_object *object);
void mc_job_destroy(struct mc_core *core, struct mc_job *job);

#endif
