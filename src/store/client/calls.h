/* Calls that files of the client make of each other, beside those of mooncake.h. */
#ifndef MC_STORE_CALLS_H
#define MC_STORE_CALLS_H

#include "base/checksum.h"
#include "store/client/state.h"

struct mc_master_link;

/* mc_store_describe, and what else the master says of the value. with_disks: replicas on disks too, at the end. */
struct mc_described {
    uint64_t version;
    uint8_t pins; /* enum mc_put_flags, and MC_FOUND_LEASED */
};
int mc_call_describe(struct mc_store *store, const struct mc_bytes *key, bool with_disks, uint64_t deadline_ns,
                     struct mc_replica_description *descriptions, size_t capacity, struct mc_described *described);
/* mc_store_remove of one key without force; 0 or its code. Keys in this file are full (scope.h). */
int mc_call_remove(struct mc_store *store, struct mc_bytes key);
/* What there is of keys: below 0, or one of these. Nothing of them is read. */
enum mc_look { MC_LOOK_WHOLE = 1, MC_LOOK_IN_PIECES };
void mc_call_look(struct mc_store *store, const struct mc_bytes *keys, size_t count, uint64_t deadline_ns,
                  int *results);
/* Pieces that nobody needs, at most MC_BATCH_MAX; if there is time, and the master has it. */
void mc_call_remove_parts(struct mc_store *store, const struct mc_bytes *keys, size_t count, uint64_t deadline_ns);
/* Puts items of one value in pieces (stripes.h), at most MC_BATCH_MAX good ones, in these groups; their results are
 * set. They are not counted as objects. was_granted[i]: bytes of it may have been written; else nothing of that item is
 * or will be there, also where its result is 0, as another value is there. */
void mc_put_parts(struct mc_store *store, struct mc_put_item *items, const uint64_t *groups, size_t count,
                  const struct mc_replicate_config *config, bool replace, uint64_t deadline_ns, bool *was_granted);
/* 0 when there is a segment of that name, else MC_ERR_SEGMENT_NOT_FOUND. */
int mc_call_segment_named(struct mc_store *store, const char *name, uint64_t deadline_ns);
/* Replaces the value of that version, and no other: MC_ERR_STALE when the key has another value by then, or none. */
int mc_put_expected(struct mc_store *store, struct mc_put_item *item, const struct mc_replicate_config *config,
                    uint64_t version);
/* Puts the value, if it has a replica in the segment of that name, in place of itself on others. `large` is held while
 * the bytes of a large one are in memory: those who share it do so one after the other. */
int mc_store_move_away(struct mc_store *store, struct mc_bytes key, const char *segment, pthread_mutex_t *large);
/* A copy more of the value, on that segment, if there is none. MC_ERR_STALE: another master leads than the one of that
 * epoch, which has numbered it. */
int mc_store_spread(struct mc_store *store, struct mc_bytes key, uint32_t segment, uint64_t epoch);
/* mc_store_get of one key. */
int mc_get_full(struct mc_store *store, struct mc_get_item *item, mc_allocate *allocate, void *context);
/* mc_store_get_ranges, that looks first where the objects were when the master last told. */
int mc_get_ranges_remembered(struct mc_store *store, struct mc_range_item *items, size_t count);
/* Asks for at most MC_BATCH_MAX good keys and remembers their places. 0: the caller has the link, on which the master
 * counts a read of what was found; results are 0 or the key's code. */
int mc_get_hold(struct mc_store *store, const struct mc_bytes *keys, const struct mc_hash *hashes, size_t count,
                uint64_t deadline_ns, int *results, struct mc_master_link **link);

#endif
