/* TLS, the client's half: over a connected socket, with deadlines, by the machine's OpenSSL (openssl.h). TLS 1.3, or
 * 1.2 where the peer has no more. The peer's certificate is always verified, and so is its name. A process that asks
 * for no TLS opens nothing.
 *
 * OpenSSL never touches the socket: it works on memory, and what it has to send goes through mc_socket_send. So a peer
 * that has gone raises no SIGPIPE in a process that is not ours, and no call waits past its deadline.
 *
 * Certificates and keys are read once and again when a file has changed: who renews them restarts nothing. A set of
 * files that cannot be read does not replace one that could.
 *
 * Codes are those of sockets. After MC_ERR_RPC_FAIL mc_tls_problem may say whose fault it was and what to change. */
#ifndef MC_ENV_TLS_H
#define MC_ENV_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define MC_TLS_PROBLEM_MAX 1024 /* bytes of a line that says what is wrong, with its zero */

/* What a side is to believe and to show. Files are PEM; NULL or "": the machine's own authorities (OpenSSL's, which
 * SSL_CERT_FILE and SSL_CERT_DIR name), no certificate, the name that the address has. */
struct mc_tls_settings {
    const char *authority, *certificate, *key; /* key NULL: it lies beside the certificate, in one file */
    const char *name;
    const char *authority_is, *certificate_is, *key_is, *name_is; /* the settings they come from, for errors; or NULL */
};

struct mc_tls;

/* Is there an OpenSSL, and can those files be used? 0, or MC_ERR_INVALID_PARAMS with a line in error. */
int mc_tls_check(const struct mc_tls_settings *settings, char *error, size_t error_size);
/* Begins TLS over a connected socket, which stays the caller's. address: "host:port", of which the peer must prove the
 * host. As mc_tls_check. */
int mc_tls_begin(const struct mc_tls_settings *settings, const char *address, int fd, struct mc_tls **tls, char *error,
                 size_t error_size);
/* Says goodbye if that can be done without waiting. NULL is allowed. */
void mc_tls_end(struct mc_tls *tls);

/* Goes on with the handshake as far as what has arrived allows: 1: it is done; 0: more must arrive. */
int mc_tls_shake(struct mc_tls *tls, uint64_t deadline_ns);
/* The whole of it. 0 or negative. */
int mc_tls_handshake(struct mc_tls *tls, uint64_t deadline_ns);

/* As mc_socket_send and mc_socket_receive; the handshake must be done. */
int mc_tls_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count, uint64_t deadline_ns);
int64_t mc_tls_receive(struct mc_tls *tls, void *data, size_t size, uint64_t deadline_ns);
/* The socket is readable: would mc_tls_receive return at once? It may have been a part of a record, or nothing that is
 * for the caller. */
bool mc_tls_is_ready(struct mc_tls *tls);

/* One line, without a secret; "" when there is nothing to say beyond the code. */
const char *mc_tls_problem(const struct mc_tls *tls);

#endif
