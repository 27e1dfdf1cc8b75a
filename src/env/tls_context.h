/* Contexts of OpenSSL: what a process has read of sets of files for TLS. The first use of a set reads it; from then on
 * its users get what lies in memory and never wait for a file, and the thread of watch.h reads it again within two
 * seconds of a change. What cannot be read does not replace what could. Nobody calls these but tls.c. */
#ifndef MC_ENV_TLS_CONTEXT_H
#define MC_ENV_TLS_CONTEXT_H

#include "env/resume.h"
#include "env/tls.h"

struct mc_tls_context {
    struct ssl_ctx_st *ctx;   /* connections that are made of it keep it */
    struct mc_resume *resume; /* of a caller: tickets */
};

/* That of those settings. Until it is released nobody else has one and nobody forks, so it is for what takes moments.
 * NULL with a line in error: there is none, and none is held. */
struct mc_tls_context *mc_tls_context_hold(const struct mc_openssl *ssl, const struct mc_tls_settings *settings,
                                           char *error, size_t error_size);
/* That of a connection. NULL, and none is held: its files have changed, or its place was needed. */
struct mc_tls_context *mc_tls_context_hold_of(const struct ssl_ctx_st *ctx);
void mc_tls_context_release(void);

/* Of tls.c: a server has sent what another connection may be resumed by. 1: it is ours. */
int mc_tls_on_ticket(struct ssl_st *connection, struct ssl_session_st *session);

static inline const char *mc_tls_text(const char *text)
{
    return text == NULL ? "" : text;
}

#endif
