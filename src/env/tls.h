/* TLS over a connected socket, with deadlines, by the machine's OpenSSL (openssl.h): both halves. TLS 1.3; towards
 * others' servers 1.2 where the peer has no more. A server's certificate is always verified, and so is its name; a
 * caller's where an authority for callers is set, and then none comes in without one. A process that asks for no TLS
 * opens nothing.
 *
 * OpenSSL never touches the socket: it reads and writes by two functions, which are ours or the caller's. So a peer
 * that has gone raises no SIGPIPE in a process that is not ours, and no call waits past its deadline.
 *
 * Certificates and keys are read at their first use, and by a thread of their own again within two seconds of a change
 * (tls_context.h): who renews them restarts nothing, and no connection waits for a file. A set of files that cannot be
 * read does not replace one that could.
 *
 * Between our own ports (not those of HTTP, and not others' servers) a caller that was let in before comes in again by
 * a ticket, as long as the files stay what they are (resume.h).
 *
 * Codes are those of sockets. After MC_ERR_RPC_FAIL mc_tls_problem may say whose fault it was and what to change.
 * A connection is used by one thread at a time. */
#ifndef MC_ENV_TLS_H
#define MC_ENV_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define MC_TLS_HELD_MAX (5u * 16640u) /* bytes that were received and not read, at most: records of 16 KiB */
#define MC_TLS_PROBLEM_MAX 1024       /* bytes of a line that says what is wrong, with its zero */

/* What a side is to believe and to show. Files are PEM; NULL or "": the machine's own authorities (OpenSSL's, which
 * SSL_CERT_FILE and SSL_CERT_DIR name), no certificate, the name that the address has. A server must have a
 * certificate, and asks its callers for one that `authority` has signed; NULL: for none. */
struct mc_tls_settings {
    const char *authority, *certificate, *key; /* key NULL: it lies beside the certificate, in one file */
    const char *name;
    bool trusts_machine; /* the machine's own authorities, too, where `authority` names one */
    bool is_server;      /* takes connections */
    bool lets_unknown;   /* of a server: who shows no certificate comes in, and mc_tls_is_known says so */
    bool is_strict;      /* TLS 1.3 and nothing before; servers are */
    const char *authority_is, *certificate_is, *key_is, *name_is; /* the settings they come from, for errors; or NULL */
    const char *peer_is; /* what turns TLS on at the other end, for errors of a server; or NULL */
    const char *off;     /* what to do about a server that has none, in words; or NULL */
};

/* What carries records when it is not a socket: as recv and send without waiting, with errno. 0 of take: the end. */
struct mc_tls_carrier {
    void *context;
    ssize_t (*take)(void *context, void *data, size_t size);
    ssize_t (*give)(void *context, const void *data, size_t size);
};

struct mc_tls;

/* Is there an OpenSSL, and can those files be used, or could they be before? 0, or MC_ERR_INVALID_PARAMS with a line in
 * error. */
int mc_tls_check(const struct mc_tls_settings *settings, char *error, size_t error_size);
/* Until when the certificate that those settings show holds; 0: they show none, or none can tell. As mc_tls_check. */
int mc_tls_certificate_until(const struct mc_tls_settings *settings, time_t *until, char *error, size_t error_size);
/* Begins TLS over a connected socket, which stays the caller's. address: "host:port", of which a server must prove the
 * host; a server is told its caller's, for errors. As mc_tls_check. */
int mc_tls_begin(const struct mc_tls_settings *settings, const char *address, int fd, struct mc_tls **tls, char *error,
                 size_t error_size);
/* The same over something else. No call waits: what would says MC_ERR_RPC_TIMEOUT. */
int mc_tls_begin_over(const struct mc_tls_settings *settings, const char *address, const struct mc_tls_carrier *carrier,
                      struct mc_tls **tls, char *error, size_t error_size);
/* Nothing more will be written: says so if that can be done without waiting. */
void mc_tls_finish(struct mc_tls *tls);
/* The same, and it is freed. NULL is allowed. */
void mc_tls_end(struct mc_tls *tls);
/* The same without a word: the socket is gone already. */
void mc_tls_drop(struct mc_tls *tls);

/* Goes on with the handshake as far as what has arrived allows: 1: it is done; 0: more must arrive. */
int mc_tls_shake(struct mc_tls *tls, uint64_t deadline_ns);
/* The whole of it. 0 or negative. */
int mc_tls_handshake(struct mc_tls *tls, uint64_t deadline_ns);

/* Without waiting; the handshake goes on first if it is not done. Bytes read or taken, 0: none now, or negative. A read
 * that does not fill `size` has read all that came: the socket says when more does. After one that does, ask
 * mc_tls_holds: what is here no socket tells of. A write that was not taken whole is repeated with the same bytes (that
 * many at least), once the socket is writable. */
int64_t mc_tls_read(struct mc_tls *tls, void *data, size_t size);
int64_t mc_tls_write(struct mc_tls *tls, const struct iovec *parts, size_t part_count);
bool mc_tls_holds(struct mc_tls *tls);
/* From now on a read takes what is here, at most MC_TLS_HELD_MAX bytes, and asks for nothing more; false: as ever. */
void mc_tls_hold(struct mc_tls *tls, bool only_held);
/* After a negative one, as of a socket: errno of what carries it; ECONNRESET: the peer has ended it; EPROTO: it has
 * not, but nothing more can be understood. */
int mc_tls_error(const struct mc_tls *tls);
/* As mc_socket_send and mc_socket_receive; the handshake must be done. */
int mc_tls_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count, uint64_t deadline_ns);
int64_t mc_tls_receive(struct mc_tls *tls, void *data, size_t size, uint64_t deadline_ns);
/* The socket is readable: would mc_tls_receive return at once? It may have been a part of a record, or nothing that is
 * for the caller. */
bool mc_tls_is_ready(struct mc_tls *tls);

/* Has the peer said that nothing more comes? Without that what came may have been cut. */
bool mc_tls_has_finished(const struct mc_tls *tls);
/* Has a server refused our certificate, or that there was none? Then it has heard nothing of what was written. */
bool mc_tls_is_refused(const struct mc_tls *tls);

/* Handshakes of this process that were done, where there are tickets: as a server, and as a caller of our own ports.
 * Resumed: by a ticket (resume.h). */
struct mc_tls_counts {
    uint64_t served, served_resumed, called, called_resumed;
};
struct mc_tls_counts mc_tls_counts(void);

/* Of a server, once a byte has been read: has the caller shown a certificate, or is none asked for? */
bool mc_tls_is_known(struct mc_tls *tls);

/* Does a stream that should have no TLS begin with an alert: the peer speaks nothing else? With a hello: so does the
 * caller? */
bool mc_tls_is_alert(const void *data, size_t length);
bool mc_tls_is_hello(const void *data, size_t length);

/* The other end, as it was told. */
const char *mc_tls_address(const struct mc_tls *tls);
/* One line, without a secret; "" when there is nothing to say beyond the code. */
const char *mc_tls_problem(const struct mc_tls *tls);

#endif
