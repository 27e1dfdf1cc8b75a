/* Copies that a client keeps of values which it reads often from other machines (MC_STORE_LOCAL_HOT_CACHE_SIZE): the
 * same value is moved over the network once, not again and again.
 *
 * Invariant: a copy is as good as what its owner has. It is given only when the owner's slot says, after the call
 * began, that this version is live there (get.c reads a byte of it): so what was replaced or removed, and acknowledged,
 * is never given, whichever master answered. Its checksums are of bytes that came verified into memory which nobody
 * else has, and are compared each time that it is given.
 *
 * Threads: any at once, with a reference to what they use. */
#ifndef MC_STORE_HOT_H
#define MC_STORE_HOT_H

#include "base/checksum.h"
#include "store/path/transport.h"

#include <stdatomic.h>

struct mc_hot;
struct mc_hot_value;

struct mc_hot_limits {
    uint64_t bytes;       /* of all copies; 0: none is kept */
    uint64_t value_bytes; /* of one at most */
    uint32_t reads;       /* of a value, from this one on it is kept */
};
/* As the environment says it. */
struct mc_hot_limits mc_hot_limits_set(void);
/* NULL: memory is out. */
struct mc_hot *mc_hot_create(const struct mc_hot_limits *limits);
/* Nobody uses any of it. NULL is nothing. */
void mc_hot_free(struct mc_hot *hot);

/* The copy of that version of the key, with a reference (mc_hot_leave), or NULL. */
struct mc_hot_value *mc_hot_find(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length);
/* What the transfer reads, out of the copy into its parts. 0; MC_ERR_CHECKSUM_MISMATCH: our memory has changed it, and
 * it is forgotten; MC_ERR_RPC_TIMEOUT, MC_ERR_NO_MEMORY. */
int mc_hot_read(struct mc_hot *hot, struct mc_hot_value *value, const struct mc_transfer *transfer,
                const struct mc_run *run);

/* One more read of a value of which there is no copy. Room for one, with a reference, if it has been read often enough;
 * else NULL. Nobody finds it before it is kept. */
struct mc_hot_value *mc_hot_begin(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length);
/* All of its bytes; for who has begun it. */
struct iovec *mc_hot_part(struct mc_hot_value *value);
/* They are there, verified. */
void mc_hot_keep(struct mc_hot *hot, struct mc_hot_value *value);

/* A reference less; one that was begun and not kept is gone. */
void mc_hot_leave(struct mc_hot *hot, struct mc_hot_value *value);

/* Bytes of the copies, with those that are being made. */
uint64_t mc_hot_bytes(struct mc_hot *hot);

#endif
