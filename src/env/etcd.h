/* A blocking client of etcd's v3 API through its JSON gateway: HTTP/1.1, one connection, to whichever endpoint answers
 * (asker.h says what that means: every call has a deadline, and may be carried out more than once). With TLS and with a
 * login where the environment says so (etcd_login.h); a token that etcd does not take any more is replaced. One thread
 * at a time uses a client. */
#ifndef MC_ENV_ETCD_H
#define MC_ENV_ETCD_H

#include "base/bytes.h"
#include "env/asker.h"

#define MC_ETCD_ENDPOINTS_MAX MC_ASKER_SERVERS_MAX
#define MC_ETCD_PORT 2379
#define MC_ETCD_PATIENCE_MS 400

struct mc_etcd;

/* endpoints: "host[:port]", several separated by ; or , each with or without "http://" or "https://"; without, it is
 * TLS if MC_ETCD_TLS_CA_CERT is set. 0, or negative with a line in error: what was given, OpenSSL, a certificate or the
 * file of the login is of no use. */
int mc_etcd_create(const char *endpoints, struct mc_etcd **etcd, char *error, size_t error_size);
void mc_etcd_destroy(struct mc_etcd *etcd);
/* MC_ETCD_PATIENCE_MS unless it is said here. */
void mc_etcd_patience(struct mc_etcd *etcd, uint64_t patience_ms);

/* POSTs a JSON body to a path ("/v3/kv/range"). 0: reply holds the answer's body. MC_ERR_ETCD_OPERATION_ERROR: etcd
 * refuses (reply says why). MC_ERR_RPC_FAIL, MC_ERR_RPC_TIMEOUT: no endpoint has answered. */
int mc_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply);

/* Appends  "name":"base64 of the value"  for a body. */
void mc_etcd_field(struct mc_buffer *body, const char *name, struct mc_span value);
/* Parts of a transaction's body: the key was written last at that revision (0: it is not there); a put, which goes with
 * a lease (0: none). */
void mc_etcd_compare_revision(struct mc_buffer *body, const char *key, uint64_t revision);
void mc_etcd_request_put(struct mc_buffer *body, const char *key, struct mc_span value, uint64_t lease);
/* Decodes the base64 value at path into text, which always ends with a zero. 1; 0 not there; MC_ERR_PROTOCOL, also when
 * it is too long or holds a zero. */
int mc_etcd_text(struct mc_span reply, const char *path, char *text, size_t size);
/* The same for bytes of any length, appended. */
int mc_etcd_bytes(struct mc_span reply, const char *path, struct mc_buffer *bytes);

/* Which endpoint is asked first: that of another client's last answer. */
size_t mc_etcd_current(const struct mc_etcd *etcd);
void mc_etcd_prefer(struct mc_etcd *etcd, size_t current);

/* The key under which the leader of a cluster stands. */
void mc_etcd_view_key(char *key, size_t size, const char *cluster_id, const char *name);
#define MC_ETCD_KEY_MAX 512

#endif
