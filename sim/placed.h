/* Where each value lies, and which master put it there. */
#ifndef SIM_PLACED_H
#define SIM_PLACED_H

#include "plan.h"

#include "base/bytes.h"

/* A replica became live, or was cleared; a master began, left word that it comes of age (or need not), or ended;
 * the owner knows that one offers it. */
void oracle_placed_reset(const struct sim_plan *plan);
/* since_ns: the put runs since then; SIM_NEVER: it is over, as with a copy. */
void oracle_placed(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                   uint64_t since_ns);
/* By its owner, from a disk or to one (is_disk: it is never certain to be there). */
void oracle_placed_move(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                        bool is_disk);
/* The head of a value in pieces, which is judged as that value is, but for whether it must be there. */
void oracle_placed_head(struct mc_id segment, uint32_t slot, uint64_t generation, uint32_t put, uint32_t key,
                        bool is_move);
void oracle_placed_flip(void); /* a bit has flipped: also of what is written, and not live yet */
/* is_being_put: as oracle_is_being_put. */
void oracle_cleared(struct mc_id segment, uint32_t slot, uint64_t generation,
                    bool (*is_being_put)(uint32_t key, uint32_t other, bool is_earlier));
void oracle_met(struct mc_id segment, uint64_t epoch);
void oracle_master_begins(uint64_t epoch);
void oracle_master_may_age(uint64_t epoch);
void oracle_master_ends(uint64_t epoch); /* 0: the last, if there is no election */
/* What the masters that had ended by then have left word of is not known any more. */
void oracle_words_lost(uint64_t until_ns);
/* By that time, was it open which of the two values the key has? newer_was_read: and the newer one has just been read,
 * so that a later master, too, may have ended it by living long enough. */
bool oracle_both_live(uint32_t newer, uint32_t older, uint64_t by_ns, bool newer_was_read);

/* Did a master that may have acted live at any time between the two? */
bool oracle_master_acts(uint64_t from_ns, uint64_t until_ns);
uint32_t oracle_life(void); /* masters so far */
/* Placements of an owner may be lost; how many of them were offered. */
uint32_t oracle_placements_lose(uint32_t place);
void oracle_placements_evict(uint32_t key, uint64_t generation); /* 0: all */
/* What the master offers of the key. */
uint32_t oracle_offered(uint32_t key, uint64_t *generations, uint32_t capacity);
/* What the master offers of the key, and nothing else, must be there from now on. */
void oracle_placements_offer(uint32_t key);
bool oracle_placements_hold(uint32_t key);
/* The put of that generation; UINT32_MAX: unknown, or in pieces. */
uint32_t oracle_placed_put(uint64_t generation);

#endif
