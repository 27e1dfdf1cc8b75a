/* TLS of our own ports: which connections have it, by their descriptors. A connection that is called or accepted gets
 * it here once; from then on mc_socket_send, mc_socket_receive and the others of socket.h, which take its descriptor,
 * encrypt and decrypt. What looks at the descriptor itself (poll, epoll) sees records: after a receive that was filled,
 * what is left may be here already, and no poll tells of it (mc_socket_hold).
 *
 * The environment says who has TLS. MC_TLS_CERT and MC_TLS_KEY: own ports take nothing else. MC_TLS_CLIENT_CA_CERT:
 * and nobody without a certificate which that authority has signed. MC_TLS_CA_CERT or MC_TLS_CERT: other nodes are
 * called by TLS, and must prove the name or address by which they are called, or MC_TLS_SERVER_NAME. What stays within
 * the machine (unix sockets, shared memory) is as it was, and so is RDMA. Without any of them nothing is opened,
 * allocated or asked for: each call of socket.h tests one pointer.
 *
 * What goes wrong is said here, once for each connection: one line at each end. */
#ifndef MC_ENV_SECURE_H
#define MC_ENV_SECURE_H

#include "env/tls.h"

#include <stdatomic.h>

#define MC_SECURE_FDS_MAX (1u << 20) /* above it no connection can have TLS: it is refused */

typedef struct mc_tls *_Atomic mc_secure_entry;
extern mc_secure_entry *_Atomic mc_secure_table; /* NULL: no connection of this process has had TLS yet */

/* NULL: that connection has none. */
static inline struct mc_tls *mc_secure_of(int fd)
{
    mc_secure_entry *table = atomic_load_explicit(&mc_secure_table, memory_order_acquire);
    return table == NULL || (unsigned)fd >= MC_SECURE_FDS_MAX ? NULL
                                                              : atomic_load_explicit(&table[fd], memory_order_relaxed);
}

/* As the environment says: of those who are called, and of own ports. Both may be given to mc_tls_begin. */
struct mc_tls_settings mc_secure_calls(void);
struct mc_tls_settings mc_secure_serves(void);
struct mc_tls_settings mc_secure_serves_http(void); /* see mc_secure_accept_http */
/* Are others called by TLS? Do own ports demand it? */
bool mc_secure_is_called(void);
bool mc_secure_is_served(void);
/* At the start of a process; serves: it has ports that others reach. 0, or MC_ERR_INVALID_PARAMS with a line. */
int mc_secure_check(bool serves, char *error, size_t error_size);

/* A connection to "host:port" stands; nothing of it is read or written yet. Does nothing where others are called
 * without TLS. 0 or negative. */
int mc_secure_call(int fd, const char *address);
/* To whom `other` goes. */
int mc_secure_call_like(int fd, int other);
/* A connection was accepted. The handshake goes on with what is received. */
int mc_secure_accept(int fd);
/* The same of a port of HTTP: who shows no certificate comes in too, though one is asked for, and mc_secure_is_known
 * says so: a probe of health has none. */
int mc_secure_accept_http(int fd);
bool mc_secure_is_known(int fd);
#define MC_SECURE_UNKNOWN "this port wants a certificate of its callers (MC_TLS_CLIENT_CA_CERT)"
/* Goes on with a handshake: 1: done, or there is none; 0: to be called again when fd is readable; negative. */
int mc_secure_shake(int fd);
/* mc_secure_call and the whole handshake. */
int mc_secure_connect(int fd, const char *address, uint64_t deadline_ns);
/* The same by other settings, for a server that is none of ours. */
int mc_secure_connect_by(const struct mc_tls_settings *settings, int fd, const char *address, uint64_t deadline_ns);
/* Before it is closed, and when its number is new. */
void mc_secure_forget_entry(int fd);
static inline void mc_secure_forget(int fd)
{
    if (mc_secure_of(fd) != NULL)
        mc_secure_forget_entry(fd);
}

/* What came on a connection without TLS is not our protocol: is it TLS? Then says who must change what, here or at the
 * other end, which of the two `serves` tells. */
void mc_secure_note(int fd, const void *data, size_t length, bool serves);

/* For socket.h: as the calls of the system, without waiting, with errno. */
ssize_t mc_secure_recv(struct mc_tls *tls, const struct iovec *parts, size_t part_count);
ssize_t mc_secure_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count);

#endif
