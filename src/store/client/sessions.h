/* Sessions of a store: objects that are read in many pieces over time, and objects that are put together from pieces.
 *
 * Get session: one question to the master, whose link is kept, so that the master counts a reader for each object until
 * the session ends; its heartbeat thread renews the lease. The pieces are read at the places that were told, and
 * verified as always, so a session can end (or be lost) at any moment and costs a miss at worst.
 * Put session: the pieces are copied into memory of our own; the object is put, whole, when the session ends. */
#ifndef MC_STORE_SESSIONS_H
#define MC_STORE_SESSIONS_H

#include "base/checksum.h"
#include "mooncake.h"

#include <pthread.h>
#include <stdint.h>

#define MC_SESSION_BUCKETS 1024u
#define MC_SESSION_KEYS_MAX 65536u /* of each kind; more: MC_ERR_BUSY */

struct mc_store;
struct mc_get_session;
struct mc_put_session;
struct mc_session_hold;

struct mc_sessions { /* zeroed and with its locks made = empty */
    pthread_mutex_t lock;
    pthread_cond_t quiet;         /* a put session has one user less */
    struct mc_get_session **gets; /* MC_SESSION_BUCKETS lists; NULL: there was none yet */
    struct mc_put_session **puts;
    size_t get_count, put_count, hold_count;
    uint64_t put_bytes;
    struct mc_session_hold *holds;
};

/* Renews leases, ends what was left alone. Does not wait: on the heartbeat thread. Returns in how many milliseconds it
 * is to be called again at the latest. */
uint64_t mc_sessions_tick(struct mc_store *store);
/* No call runs any more. */
void mc_get_sessions_free(struct mc_store *store);
void mc_put_sessions_free(struct mc_sessions *sessions);

static inline bool mc_session_is_of(struct mc_hash session, struct mc_hash key)
{
    return session.low == key.low && session.high == key.high;
}

#endif
