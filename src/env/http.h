/* A blocking HTTP/1.1 client of one server: one connection, kept open between requests, with TLS or without. Every call
 * has a deadline. One thread at a time uses a client. */
#ifndef MC_ENV_HTTP_H
#define MC_ENV_HTTP_H

#include "base/bytes.h"
#include "env/socket.h"
#include "env/tls.h"

#define MC_HTTP_REPLY_MAX (64u << 20)

struct mc_http { /* set fd to -1 and address before the first use */
    char address[MC_ADDRESS_MAX];
    int fd;
    bool is_on_way;     /* a child that is forked closes it: mc_socket_way_begin */
    struct mc_tls *tls; /* NULL: without; its handshake must be done before it is asked */
    bool has_answered;  /* on this connection */
    uint64_t
        retry_s; /* in so many seconds it may be asked again, as its last answer says (Retry-After); 0: it does not */
    struct mc_buffer in;
};

struct mc_http_question {
    const char *method, *path; /* path must hold no blanks or line ends */
    const char *secret;        /* of a line "Authorization: ...", without line ends; NULL: none */
    const char *headers;       /* whole lines besides, each with its end; NULL: none */
    struct mc_span body;       /* JSON */
    const char *type;          /* of the body; NULL: application/json */
    uint64_t *retry_s;         /* of mc_http_once: set as mc_http.retry_s is; NULL: nobody asks */
};

/* A question on an open connection, and its answer: the status (200..599), and reply holds the body; or
 * MC_ERR_RPC_FAIL (a kept connection may have ended: free it, connect, once more), MC_ERR_RPC_TIMEOUT, MC_ERR_PROTOCOL.
 */
int mc_http_ask(struct mc_http *http, const struct mc_http_question *question, uint64_t deadline_ns);
int mc_http_answer(struct mc_http *http, uint64_t deadline_ns, struct mc_buffer *reply);
/* The connection is readable: does an answer begin, or has it ended? */
bool mc_http_is_ready(struct mc_http *http);
void mc_http_free(struct mc_http *http);
/* Both on a connection of its own. tls: NULL for none. *error: why there is none, an errno; 0 when there was one. What
 * is wrong with TLS is said in the log. */
int mc_http_once(const char *address, const struct mc_tls_settings *tls, const struct mc_http_question *question,
                 uint64_t deadline_ns, struct mc_buffer *reply, int *error);

#endif
