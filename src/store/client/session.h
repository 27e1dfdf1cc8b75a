/* Sessions of a store: objects that are read in many pieces over time, and objects that are put together from pieces.
 *
 * Get session: one question to the master, whose link is kept, so that the master counts a reader for each object until
 * the session ends; its heartbeat thread renews the lease. The pieces are read at the places that were told, and verified as
 * always, so a session can end (or be lost) at any moment and costs a miss at worst.
 * Put session: the pieces are copied into memory of our own; the object is put, whole, when the session ends. */
#ifndef MC_STORE_SESSION_H
#define MC_STORE_SESSION_H

#include "base/checksum.h"
#include "mooncake.h"

#include <pthread.h>
#include <stdint.h>

#define MC_SESSION_BUCKETS 1024u
#define MC_SESSION_KEYS_MAX 65536u     /* of each kind; more: MC_ERR_BUSY */
#define MC_SESSION_HOLDS_MAX 1024u     /* links that wait for the end of get sessions; more: MC_ERR_BUSY */
#define MC_SESSION_IDLE_MS 30000u      /* a get session that nobody uses for so long is over */
#define MC_SESSION_PUT_IDLE_MS 600000u /* a put session too, when its memory is wanted */
#define MC_SESSION_PUT_BYTES_MAX (UINT64_C(16) << 30) /* of all put sessions of a store together */

struct mc_store;
struct mc_master_link;
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

void mc_sessions_init(struct mc_sessions *sessions);
/* No call runs any more. */
void mc_sessions_free(struct mc_store *store);
/* Renews leases, ends what was left alone. Does not wait: on the heartbeat thread. Returns in how many milliseconds it is to be
 * called again at the latest. */
uint64_t mc_sessions_tick(struct mc_store *store);

/* ---- get.c ---- */

/* mc_store_get_ranges, that looks first where the objects were when the master last told. */
int mc_get_ranges_remembered(struct mc_store *store, struct mc_range_item *items, size_t count);
/* Asks for at most MC_BATCH_MAX good keys and remembers their places. 0: the caller has the link, on which the master
 * counts a read of what was found; results are 0 or the key's code. */
int mc_get_hold(struct mc_store *store, const struct mc_bytes *keys, const struct mc_hash *hashes, size_t count,
                uint64_t deadline_ns, int *results, struct mc_master_link **link);

#endif
