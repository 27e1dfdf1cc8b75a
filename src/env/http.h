/* A blocking HTTP/1.1 client of one server: one connection, kept open between requests. Every call has a deadline. One
 * thread at a time uses a client. */
#ifndef MC_ENV_HTTP_H
#define MC_ENV_HTTP_H

#include "base/bytes.h"
#include "env/socket.h"

#define MC_HTTP_REPLY_MAX (64u << 20)

struct mc_http { /* set fd to -1 and address before the first use */
    char address[MC_ADDRESS_MAX];
    int fd;
    struct mc_buffer in;
};

/* A question on an open connection, and its answer: the status (200..599), and reply holds the body; or
 * MC_ERR_RPC_FAIL (a kept connection may have ended: free it, connect, once more), MC_ERR_RPC_TIMEOUT, MC_ERR_PROTOCOL.
 * path must hold no blanks or line ends. */
int mc_http_ask(struct mc_http *http, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns);
int mc_http_answer(struct mc_http *http, uint64_t deadline_ns, struct mc_buffer *reply);
void mc_http_free(struct mc_http *http);
/* Both on a connection of its own. *error: why there is none, an errno; 0 when there was one. */
int mc_http_once(const char *address, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply, int *error);

#endif
