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
/* Nobody may see it before it is shown: it is only being put together. */
void oracle_put_hide(uint32_t put);
void oracle_put_show(uint32_t put);
void oracle_put_wishes(uint32_t put, bool is_hard);
bool oracle_put_is_hard(uint32_t put);
uint32_t oracle_put_length(uint32_t put);
/* An owner has made it live: may it be, at that time? */
void oracle_put_live(uint32_t put);
/* The process died: what it was putting will not be placed again. */
void oracle_process_killed(const struct sim_process *process);
void oracle_got(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, int64_t rc);
void oracle_got_range(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, uint64_t offset,
                      uint64_t size);
/* Ranges of one key that one call has read; those of size 0 were not. Are they of one value? */
struct oracle_piece {
    const uint8_t *bytes;
    uint64_t offset, size;
};
void oracle_got_pieces(const struct oracle_call *call, uint32_t key, const struct oracle_piece *pieces, uint32_t count);
void oracle_length(const struct oracle_call *call, uint32_t key, int64_t length);
/* is_all: it is one of all keys, or by pattern, which the master works off by and by. */
void oracle_remove_begin(uint32_t key, bool is_all);
/* removed: it was there and is not any more. is_certain: so or so, it is over. */
void oracle_remove_end(const struct oracle_call *call, uint32_t key, bool removed, bool is_certain, bool is_all);
/* A removal has found nothing: as long as that master lives, what was there before must not appear. */
void oracle_not_there(const struct oracle_call *call, uint32_t key);
/* Epoch of the master that serves now, 0: none. */
uint64_t oracle_epoch(void);
/* From now on nothing is certain to be there. */
void oracle_fault(bool loses_objects);
/* Has nothing happened so far, and there is room for all? */
bool oracle_is_strict(void);
/* Must the key be readable now? */
bool oracle_is_sure(uint32_t key);
void oracle_exists(const struct oracle_call *call, uint32_t key, int result);

/* The whole state of a master's core and of the owners' indexes. */
void oracle_check_masters(void);
void oracle_check_indexes(void);
/* watch.c: what the master offers is live at its owner. */
void oracle_check_offers(void);
void oracle_watch_reset(void);

/* placed.c: a replica became live, or was cleared; a master began, left word that it comes of age (or need not), or
 * ended; the owner knows that one offers it. */
void oracle_placed_reset(const struct sim_plan *plan);
void oracle_placed(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put);
void oracle_cleared(struct mc_id segment, uint32_t slot, uint64_t generation);
void oracle_met(struct mc_id segment, uint64_t epoch);
void oracle_master_begins(uint64_t epoch);
void oracle_master_may_age(uint64_t epoch);
void oracle_master_ends(uint64_t epoch); /* 0: the last, if there is no election */
/* By that time, was it open which of the two values the key has? newer_was_read: and the newer one has just been read,
 * so that a later master, too, may have ended it by living long enough. */
bool oracle_both_live(uint32_t newer, uint32_t older, uint64_t by_ns, bool newer_was_read);
uint32_t oracle_put_key(uint32_t put);
/* Is a put of the key under way, other than that one? */
bool oracle_is_being_put(uint32_t key, uint32_t other);
/* The put that has these bytes; UINT32_MAX: none. */
uint32_t oracle_put_of(uint64_t hash_low, uint64_t hash_high, uint64_t length, uint32_t crc);

/* Did a master that may have acted live at any time between the two? */
bool oracle_master_acts(uint64_t from_ns, uint64_t until_ns);
uint32_t oracle_life(void); /* masters so far */
/* Placements of an owner may be lost; how many of them were offered. */
uint32_t oracle_placements_lose(uint32_t place);
void oracle_placements_evict(uint32_t key, uint64_t generation); /* 0: all */
/* What the master offers of the key, and nothing else, must be there from now on. */
void oracle_placements_offer(uint32_t key);
bool oracle_placements_hold(uint32_t key);
/* The put of that generation; UINT32_MAX: unknown. */
uint32_t oracle_placed_put(uint64_t generation);

/* jobs.c */
struct mc_core;
void oracle_check_drains(const struct mc_core *core);

/* held.c: what must be there after faults */
void oracle_held_reset(const struct sim_plan *plan);
/* A process began, ended, stopped or went on; two hear each other, or not any more. */
void oracle_changed(void);
void oracle_connections_break(void);
void oracle_stalled(uint32_t place, uint64_t until_ns);
/* What that owner holds may be lost. */
void oracle_owner_lost(uint32_t place);
/* The master's machine has lost the directory of its note: what was removed until now may come back (sim/README.md),
 * but only once a master has told its operator, which oracle_told says. */
void oracle_note_lost(void);
void oracle_told(void);
void oracle_evictions_begin(void);
uint32_t oracle_offered(uint32_t key, uint64_t *generations, uint32_t capacity);
bool oracle_is_held(uint32_t key);
/* Has all been well for so long before a call that began then that nothing may be missing? */
bool oracle_was_well(uint64_t start_ns);
/* Is nobody dead, stopped or cut off, and was nobody since then? */
bool oracle_is_well_since(uint64_t start_ns);
/* Has the master heard all clients for long enough since then that no request of before is still under way? */
bool oracle_was_open_after(uint64_t since_ns);

/* kept.c: what a master must keep */
#define ORACLE_KEPT_MAX 4u
struct oracle_kept { /* what is offered of a key */
    uint64_t generations[ORACLE_KEPT_MAX];
    uint32_t count;
};
struct mc_object;
struct mc_segment;
void oracle_kept_reset(void);
struct oracle_kept oracle_kept_now(uint32_t key);
/* The client in that place has, or has no more, a session of the key, which was as `before` when the call began. */
void oracle_session_begins(const struct oracle_call *call, uint32_t place, uint32_t key,
                           const struct oracle_kept *before);
void oracle_session_ends(uint32_t place, uint32_t key);
/* Before and after it reads up to that byte: what must be there. */
struct oracle_kept oracle_session_before(uint32_t place, uint32_t key);
void oracle_session_read(uint32_t place, uint32_t key, const struct oracle_kept *before, uint64_t end, int64_t result);
/* The object, or with a segment one replica of it, is about to be evicted. */
void oracle_evicted(const struct mc_core *core, const struct mc_object *object, struct mc_segment *segment,
                    uint32_t slot);
/* The core has done what it was asked for. */
void oracle_core_rests(const struct mc_core *core);
void oracle_check_wishes(const struct mc_core *core);

#endif
