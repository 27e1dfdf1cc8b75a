/* Questions over HTTP to any of several servers that know the same: one connection, to whichever answers.
 *
 * Every question has a deadline. A server that takes longer than the asker's patience is not given up: the next is
 * asked beside it (or the same on another connection, as the first may be dead), and the first answer counts. So one
 * that hangs costs that long, and one that is slow has until the deadline. What is asked may therefore be carried out
 * more than once, also though it failed here; callers use only what may happen twice: reads, and changes that are
 * guarded. Names are resolved at every connect, no longer than the patience. One thread at a time uses an asker. */
#ifndef MC_ENV_ASKER_H
#define MC_ENV_ASKER_H

#include "env/http.h"

#define MC_ASKER_SERVERS_MAX 16
#define MC_ASKER_QUESTIONS_MAX 3 /* under way at once */

struct mc_asker { /* zeroed but for http.fd, -1; then servers are added and the patience is set */
    struct mc_asker_server {
        char address[MC_ADDRESS_MAX];
        bool is_tls;
        unsigned turn; /* which address of the name is next */
    } servers[MC_ASKER_SERVERS_MAX];
    size_t count, current; /* current: whom http leads to, and who is asked first */
    uint64_t patience_ns;
    uint64_t pause_ns; /* after a round in which none could answer */
    const struct mc_tls_settings *tls;
    struct mc_http http;
};

/* The status, 200 to 499, and reply holds the answer's body. MC_ERR_RPC_FAIL, MC_ERR_RPC_TIMEOUT, MC_ERR_PROTOCOL: none
 * has answered; a status of 500 or more is no answer, but of one that cannot now. What is wrong with TLS is said in the
 * log. */
int mc_asker_call(struct mc_asker *asker, const struct mc_http_question *question, uint64_t deadline_ns,
                  struct mc_buffer *reply);
/* Who is asked first. */
void mc_asker_prefer(struct mc_asker *asker, size_t current);
void mc_asker_free(struct mc_asker *asker);

#endif
