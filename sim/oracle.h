/* What a run is judged by. A key is a register that holds nothing or one value; every value is put by one call only,
 * and may be forgotten at any time, but once it is known to be gone it must not come back. */
#ifndef SIM_ORACLE_H
#define SIM_ORACLE_H

#include "plan.h"

#include "base/bytes.h"

struct oracle_call { /* one call in progress */
    uint64_t start_ns, stopped_ns, epoch;
    struct sim_process *process;
};

void oracle_reset(const struct sim_plan *plan);
struct oracle_call oracle_begin(void);
/* It has ended: by its deadline? */
void oracle_end(const struct oracle_call *call, uint64_t limit_ms, const char *what);

/* A new value for the key; its bytes. The number identifies it. */
uint32_t oracle_put_begin(uint32_t key, uint32_t length, bool is_upsert, const uint8_t **bytes);
void oracle_put_end(uint32_t put, int rc);
/* An owner has made it live: may it be, at that time? */
void oracle_put_live(uint32_t put);
/* The process died: what it was putting will not be placed again. */
void oracle_process_killed(const struct sim_process *process);
void oracle_got(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, int64_t rc);
void oracle_got_range(uint32_t key, const uint8_t *bytes, uint64_t offset, uint64_t size);
void oracle_length(uint32_t key, int64_t length);
void oracle_remove_begin(uint32_t key);
/* removed: it was there and is not any more. */
void oracle_remove_end(const struct oracle_call *call, uint32_t key, bool removed);
/* A removal has found nothing: as long as that master lives, what was there before must not appear. */
void oracle_not_there(const struct oracle_call *call, uint32_t key);
/* Epoch of the master that serves now, 0: none. */
uint64_t oracle_epoch(void);
/* From now on nothing is certain to be there. */
void oracle_fault(bool loses_objects);
/* Must the key be readable now? */
bool oracle_is_sure(uint32_t key);

/* The whole state of a master's core and of the owners' indexes. */
void oracle_check_masters(void);
void oracle_check_indexes(void);
/* watch.c: what the master offers is live at its owner. */
void oracle_check_offers(void);
void oracle_watch_reset(void);

/* placed.c: a replica became live, or was cleared; a master began, or ended; the owner knows that one offers it. */
void oracle_placed_reset(const struct sim_plan *plan);
void oracle_placed(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put);
void oracle_cleared(struct mc_id segment, uint32_t slot, uint64_t generation);
void oracle_met(struct mc_id segment, uint64_t epoch);
void oracle_master_begins(uint64_t epoch);
void oracle_master_ends(void);
/* By that time, was it open which of the two values the key has? newer_was_read: and the newer one has just been read,
 * so that a later master, too, may have ended it by living long enough. */
bool oracle_both_live(uint32_t newer, uint32_t older, uint64_t by_ns, bool newer_was_read);
/* The put that has these bytes; UINT32_MAX: none. */
uint32_t oracle_put_of(uint64_t hash_low, uint64_t hash_high, uint64_t length, uint32_t crc);

#endif
