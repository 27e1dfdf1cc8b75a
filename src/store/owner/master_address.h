/* Where the master is: "host:port", or "etcd://..." for whoever leads now. One place for the two ways, used by the
 * calls and the heartbeat thread (with memory: struct mc_master_address) and by the owner's connector (without).
 *
 * A name server or an election may take as long as it likes: mc_master_open gives up at its deadline all the same,
 * because whatever cannot be bounded runs on a thread of its own that nobody waits for (names: env/resolve.h). */
#ifndef MC_OWNER_MASTER_ADDRESS_H
#define MC_OWNER_MASTER_ADDRESS_H

#include "env/socket.h"

#include <pthread.h>

#define MC_MASTER_ADDRESS_MAX 1024 /* bytes of what is configured: an election has several endpoints */

/* Remembered places are read so long after the last word of a master, or of its machine. */
#define MC_LOCATIONS_TRUST_MS 2000u

struct mc_master_address {
    pthread_mutex_t lock;
    char configured[MC_MASTER_ADDRESS_MAX];
    /* When the only master's machine last said that nobody listens there, and since when it says so without a break of
     * MC_LOCATIONS_TRUST_MS; 0 = never. */
    _Atomic uint64_t refused_ns, refusing_ns;
    /* From there the heartbeat's connection was ended, as those of a process are that ends, and nobody was met since.
     * Without that a refusal does not count. */
    _Atomic bool has_ended;
    bool is_election;
    char leader[MC_ADDRESS_MAX]; /* as the election said last; empty: ask it */
    bool looking;                /* one thread asks, the others wait for what it finds */
    uint64_t failed_ns;          /* when the election was last asked in vain, */
    int failed_code;             /* and its answer */
};

/* Checks what the user gave; NULL or "" = "127.0.0.1:50051". 0 or MC_ERR_INVALID_PARAMS. Afterwards free it. */
int mc_master_address_init(struct mc_master_address *master, const char *configured);
void mc_master_address_free(struct mc_master_address *master);

/* A connection to the master that is configured, or that leads as far as is known. `used` gets its "host:port" (empty
 * when none was found). A descriptor, or MC_ERR_RPC_FAIL, MC_ERR_RPC_TIMEOUT, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
 * (nobody leads now), MC_ERR_INVALID_PARAMS, MC_ERR_NOT_SUPPORTED. */
int mc_master_open(struct mc_master_address *master, uint64_t deadline_ns, char used[MC_ADDRESS_MAX]);
/* The same for a plain "host:port" that a standby named. */
int mc_master_open_hint(const char *address, uint64_t deadline_ns);
/* That one (NULL: whoever it is) does not answer, or leads no more: ask the election again. */
void mc_master_forget(struct mc_master_address *master, const char *used);
/* That one answered and leads. */
void mc_master_remember(struct mc_master_address *master, const char *used);

/* Another cluster's master answers where ours was, and this process holds nothing that would tie it to ours: may it
 * follow? An address that a name had once, or that of a dead holder of a Lease, may be another's by now: so not until
 * the name was looked up anew, or the Lease was seen renewed, and whoever answers was connected to by that; by the next
 * try, or the one after it. A number, and who is elected by etcd, are as they were meant. `move` begins zeroed, and is
 * the caller's to guard. */
struct mc_master_move {
    struct mc_id cluster;
    uint64_t since_ms; /* when it was first met */
};
bool mc_master_may_move(struct mc_master_move *move, const char *configured, struct mc_id cluster);

/* For a thread that may wait for the election: asks, resolves, connects. `configured` as above. `used` may be NULL. */
int mc_master_connect(const char *configured, uint64_t deadline_ns, char used[MC_ADDRESS_MAX]);

#endif
