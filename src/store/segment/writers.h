/* The table of writers: each process that maps a segment's data says before a copy where it is going to store, and
 * takes that back after it. So the owner knows which extents somebody may still be storing into, also when a writer was
 * stopped in mid copy, and after a restart of its own.
 *
 * Invariant (why a CUT may trust it): a writer stores its intent and then looks at floor and slot; the owner raises
 * floor or slot and then looks at the intents; all of that is sequentially consistent (a slot's number is raised once
 * more, by nothing, right before the look). So either the writer sees the raised number and does not copy, or the owner
 * sees the intent. An entry's byte is locked (open file description lock) from before its process maps the data until
 * after it has unmapped it, or has died, which unmaps first.
 */
#ifndef MC_SEGMENT_WRITERS_H
#define MC_SEGMENT_WRITERS_H

#include "store/segment/layout.h"

struct mc_writing { /* what an intent says */
    uint64_t generation, offset, length;
    uint32_t slot;
};

/* Announces a copy. The number of the intent, to be released after the copy; MC_ERR_STALE when that generation is no
 * longer wanted; MC_ERR_RPC_TIMEOUT when no intent was free until the deadline (as many threads copy as there are
 * intents). The slot must exist. */
int mc_writer_claim(struct mc_writer_entry *writer, const struct mc_index_header *header, const struct mc_slot *slots,
                    const struct mc_writing *writing, uint64_t deadline_ns);
void mc_writer_intent_end(struct mc_writer_entry *writer, int intent);

/* What an intent says at one moment; false when it says nothing. */
bool mc_intent_read(const struct mc_intent *intent, struct mc_writing *writing);
/* Is something of that slot with this generation or an older one announced? */
bool mc_writer_has(const struct mc_writer_entry *writer, uint32_t slot, uint64_t generation);
void mc_writer_reset(struct mc_writer_entry *writer);

/* A descriptor of that table with an open file description of its own, so that its locks are its own too. Negative: no
 * /proc. */
int mc_writers_reopen(int fd);
/* Locks the byte of an entry for as long as the description of fd lives. False: somebody else has it. */
bool mc_writer_lock(int fd, uint32_t entry);
void mc_writer_unlock(int fd, uint32_t entry);
/* Does another description hold a lock on one of the entries [first, first + count)? True also when that cannot be
 * found out. */
bool mc_writers_locked(int fd, uint32_t first, uint32_t count);

#endif
