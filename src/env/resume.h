/* Tickets of TLS 1.3: who was let in comes in again without certificates and signatures, which are much of what a
 * handshake costs. The exchange of keys stays (psk_dhe_ke), and nothing is said before it is done: no early data.
 *
 * A ticket says that a proof was made, so it must not outlive what was proved. It is sealed by keys that are made of
 * the server's files: its key, certificate and authority for callers. Once one of these has changed it is none any
 * more; and who comes to another server with the same files, as to the master that follows one, resumes there. It holds
 * until the first certificate of those that were looked at ends, and for MC_RESUME_S at most after them, however often
 * it was renewed meanwhile. A caller forgets what it has when a file of its own changes, and uses each ticket once.
 * Nobody calls these but tls.c and tls_context.c; what a caller has is guarded by the latter's lock. */
#ifndef MC_ENV_RESUME_H
#define MC_ENV_RESUME_H

#include "env/openssl.h"

#include <time.h>

#define MC_RESUME_S 86400       /* after it certificates are looked at again */
#define MC_RESUME_KEPT_MAX 256u /* tickets of one set of files; the oldest goes */

/* Of a server's context, made of those files ("": none): tickets are given and taken. */
void mc_resume_serve(const struct mc_openssl *ssl, struct ssl_ctx_st *ctx, const char *authority,
                     const char *certificate, const char *key);
/* Of a caller's: each ticket that comes is told once, and its own from then on. */
void mc_resume_call(const struct mc_openssl *ssl, struct ssl_ctx_st *ctx,
                    int (*has_come)(struct ssl_st *connection, struct ssl_session_st *session));
/* Of a connection whose handshake was a whole one: until when what it has looked at holds. */
time_t mc_resume_until(const struct mc_openssl *ssl, const struct ssl_st *connection);

/* What a caller has. */
struct mc_resume;
void mc_resume_free(const struct mc_openssl *ssl, struct mc_resume *resume);
/* Takes the session over. *resume NULL: made. It is of who proved `name`, at `address`. */
void mc_resume_keep(const struct mc_openssl *ssl, struct mc_resume **resume, struct ssl_session_st *session,
                    const char *name, const char *address, time_t until);
/* One for who is to prove that name, rather of that address than of another; the caller's. NULL: none. */
struct ssl_session_st *mc_resume_take(const struct mc_openssl *ssl, struct mc_resume *resume, const char *name,
                                      const char *address, time_t *until);

#endif
