/* What lies in one memory segment only, stored on the disks of its owner: all of it, in slices (D6 of the ordering
 * page).
 *
 * When the owner leaves (FLUSH) its memory is looked at again and again until nothing is left, or nobody asks any more.
 * When a disk or a memory has just become trusted, or a disk answers again, and values are stored as they are put, it
 * is looked at until every value has had its turn: they were put while there was no disk. */
#ifndef MC_CORE_OFFLOAD_SWEEP_H
#define MC_CORE_OFFLOAD_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct mc_connection;
struct mc_core;
struct mc_frame;
struct mc_job;
struct mc_segment;

struct mc_sweep_found { /* in one look */
    uint64_t left, left_bytes, moving, moving_units;
    bool has_begun;  /* to store something */
    bool is_held_up; /* something can only begin when other things have ended */
};

struct mc_sweep { /* of a segment of memory */
    bool runs;    /* a job does it */
    bool leaves;  /* its owner does: until nothing is left */
    uint32_t slot, looks;
    uint32_t vain;              /* looks in a row that have begun nothing */
    uint64_t asked_ms, look_ms; /* when this look began */
    uint64_t begun, begun_most; /* units that it has begun to store, and how many it may */
    struct mc_sweep_found now, last;
};

/* FLUSH. */
void mc_sweep_asked(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The segment, a disk or memory, is trusted from now on, or a disk that took nothing for a while does again. */
void mc_sweep_trusted(struct mc_core *core, struct mc_segment *segment);
/* A slice of the job; true when it is over. */
bool mc_sweep_slice(struct mc_core *core, struct mc_job *job);

#endif
