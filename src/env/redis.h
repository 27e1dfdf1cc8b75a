/* A blocking client of one Redis server. The connection and its deadlines are ours, the protocol's reader is hiredis's.
 *
 * Every call has its own connection: they are rare, and so a server that was restarted is met at once. Replies with
 * parts (arrays) are no answer to what is asked here and cost no memory. */
#ifndef MC_ENV_REDIS_H
#define MC_ENV_REDIS_H

#include "base/bytes.h"
#include "env/socket.h"

#define MC_REDIS_PORT 6379
#define MC_REDIS_REPLY_MAX (64u << 20)

struct mc_redis_login { /* borrowed texts; "" or NULL: none */
    const char *address, *user, *password;
    unsigned database;
    const struct mc_tls_settings *tls; /* NULL: without */
};

/* Sends a command of these words. 1: reply holds the answer's bytes (none for a number). 0: the answer is nil.
 * MC_ERR_INVALID_PARAMS: the server refuses the login or the command; reply is its line. MC_ERR_RPC_FAIL,
 * MC_ERR_RPC_TIMEOUT, MC_ERR_PROTOCOL. */
int mc_redis_call(const struct mc_redis_login *login, const struct mc_span *words, size_t count, uint64_t deadline_ns,
                  struct mc_buffer *reply);

#endif
