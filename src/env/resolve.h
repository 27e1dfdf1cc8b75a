/* Names of hosts, looked up by a deadline whatever the name server does.
 *
 * An address that is numeric is taken apart on the spot. A name is looked up by a thread of its own, and what was found
 * is remembered: from then on no call waits for a name server. An answer that is older than MC_RESOLVE_FRESH_MS is
 * asked for again in the background when it is used. It is as old as its lookup, from that one's beginning: who was
 * asked may have answered at once, and the answer have hung. Calls that want the same name share one lookup. No thread
 * stays when there is nothing to look up.
 *
 * What is remembered may be of the past: whoever connects must find out who answers there. */
#ifndef MC_ENV_RESOLVE_H
#define MC_ENV_RESOLVE_H

#include "env/socket.h"

#define MC_RESOLVE_ADDRESSES_MAX 8u /* of one name */
#define MC_RESOLVE_NAMES_MAX 16384u /* that are remembered; the one that was not used for longest makes room */
#define MC_RESOLVE_BUCKETS 1024u    /* in which they lie */
#define MC_RESOLVE_THREADS_MAX 16u  /* names that are looked up at the same time; others wait for their turn */
#define MC_RESOLVE_FRESH_MS 10000u
#define MC_RESOLVE_TRUST_MS 1000u
#define MC_RESOLVE_AGAIN_MS 500u /* a name is asked for once in so long, whatever was said */

struct mc_resolved {
    struct mc_tcp_address addresses[MC_RESOLVE_ADDRESSES_MAX];
    uint32_t count;
    bool is_denied; /* none: the name server says that there is no such name, or no address of it */
    bool is_old;    /* of a lookup that began more than MC_RESOLVE_TRUST_MS ago: the name may have moved since */
};

/* The addresses of that host, with that port. 0; MC_ERR_RPC_FAIL: there is no such name, or nobody can say (the log
 * says which in words, and errno is ENONET); MC_ERR_RPC_TIMEOUT: nobody said by the deadline; MC_ERR_NO_MEMORY. */
int mc_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct mc_resolved *resolved);
/* For how long what is remembered of the name is known, if that was asked for after since_ms (mc_clock_ms); else 0, and
 * it is asked for in the background. Of a number: UINT64_MAX. */
uint64_t mc_resolve_age_ms(const char *host, uint64_t since_ms);
/* Nobody answers there: has the name moved? Asked in the background; a later call has the answer. */
void mc_resolve_doubt(const char *host);

#endif
