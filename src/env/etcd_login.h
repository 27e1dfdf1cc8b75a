/* What the environment says of etcd's TLS and of who logs in there, the same for all etcds of a process, and the tokens
 * that logins have given. Secrets stand in no log and no error. */
#ifndef MC_ENV_ETCD_LOGIN_H
#define MC_ENV_ETCD_LOGIN_H

#include "base/bytes.h"
#include "env/tls.h"

#define MC_ETCD_USER_MAX 256
#define MC_ETCD_TOKEN_MAX 2048

/* MC_ETCD_TLS_CA_CERT and so on. */
struct mc_tls_settings mc_etcd_tls(void);
/* Is TLS asked for where an address does not say so? */
bool mc_etcd_tls_is_set(void);

/* Is there a login at all? */
bool mc_etcd_has_login(void);
/* Appends the body of a question for a token: the file that MC_ETCD_CONF_FILE names, read anew. 0, or
 * MC_ERR_INVALID_PARAMS with a line in error. user: for what is said. */
int mc_etcd_login_body(struct mc_buffer *body, char user[MC_ETCD_USER_MAX], char *error, size_t error_size);

/* The token of the etcd at those endpoints; "" = none is known. Of a few etcds the last ones are. */
void mc_etcd_token_get(const char *endpoints, char token[MC_ETCD_TOKEN_MAX]);
void mc_etcd_token_set(const char *endpoints, const char *token);

#endif
