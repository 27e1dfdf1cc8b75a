/* Stream sockets: addresses, connect, listen, and blocking calls with a deadline. All descriptors are non-blocking and
 * close-on-exec. Deadlines are absolute mc_clock_ns() values. Errors: MC_ERR_RPC_TIMEOUT (deadline), MC_ERR_RPC_FAIL
 * (broken, refused), MC_ERR_INVALID_PARAMS (address). A forked child closes the connections that mc_tcp_connect is
 * waiting for; all others are their owners' to close there. */
#ifndef MC_ENV_SOCKET_H
#define MC_ENV_SOCKET_H

#include "base/bytes.h"
#include "env/secure.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MC_ADDRESS_MAX 256 /* bytes of "host:port" with its zero */
#define MC_UNIX_PATH_MAX 108

/* Splits "host", "host:port", "[v6]", "[v6]:port", "v6". port stays as it was when there is none. 0 or
 * MC_ERR_INVALID_PARAMS. */
int mc_address_split(const char *address, char *host, size_t host_size, uint16_t *port);
/* Writes "host:port" or "[v6]:port". */
void mc_address_join(char *address, size_t size, const char *host, uint16_t port);

/* Where a tcp connection goes. */
struct mc_tcp_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t length;
};
/* What failed with that errno, by whose trouble it is. Ours: MC_ERR_BUSY (no descriptor or port is left),
 * MC_ERR_NO_MEMORY, MC_ERR_INVALID_PARAMS (memory that is none), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS (no way leads
 * there from this host). The peer's, as far as can be seen: MC_ERR_RPC_FAIL. */
int mc_socket_code(int error);
/* Does a code of these functions say nothing of the peer? */
bool mc_socket_is_own(int code);
/* The addresses of "host:port", at most `capacity` of them; a name is looked up by the deadline (resolve.h). Their
 * number, or negative: our own trouble. */
int mc_tcp_resolve(const char *address, uint64_t deadline_ns, struct mc_tcp_address *peers, size_t capacity);
/* Nobody answers there: the name may have moved. */
void mc_tcp_doubt(const char *address);
/* Begins a connection. A descriptor, or a code of mc_socket_code. Once it is writable mc_tcp_begun says whether it is
 * connected: 0, or a code of mc_socket_code. */
int mc_tcp_begin(const struct mc_tcp_address *peer);
int mc_tcp_begun(int fd);
/* What the kernel knows of the way of a tcp connection, from the packets that come and do not come. */
struct mc_tcp_way {
    uint32_t lost; /* packets so far that had to be sent again, or of which a later one came first */
    bool arrived;  /* the peer's host has confirmed what was sent, or was just about to: it was heard lately */
};
/* False: nothing is known, as of a unix socket. */
bool mc_tcp_way(int fd, struct mc_tcp_way *way);
/* The other end of a tcp connection. */
bool mc_tcp_peer(int fd, struct mc_tcp_address *peer);

/* To the first of a host's addresses that answers: they are tried one beside the other, each 250 ms after the one
 * before, or when that has refused, or sooner, so that each has its part of a short time. As mc_tcp_connect. */
int mc_tcp_connect_any(const struct mc_tcp_address *peers, uint32_t count, uint64_t deadline_ns);
/* tcp: "host:port"; a name is looked up by the deadline, too (resolve.h). Several connections are tried when the first
 * takes longer than such a thing does (base/pace.h), as a lost packet is sent again only after a second. errno after
 * MC_ERR_RPC_FAIL: ECONNREFUSED only if it is the host of that name that refuses, at all of its addresses, as far as
 * was said within the last second. unix: path, or "@name" for the abstract namespace. Returns a descriptor or negative
 * (unix: a code of mc_socket_code, or MC_ERR_RPC_TIMEOUT). */
int mc_tcp_connect(const char *address, uint64_t deadline_ns);
int mc_unix_connect(const char *path, uint64_t deadline_ns);
/* Where to listen, for who tells others this host: an address itself; "localhost", that of this machine alone; any
 * other name, everywhere. What a name is here, as /etc/hosts may say, it need not be for others; and no name server is
 * asked. */
const char *mc_tcp_listen_host(const char *host);
/* host "": every address of this machine. port 0: the kernel chooses; *port is the one bound. SO_REUSEADDR is set.
 * Error -EADDRINUSE etc. as MC_ERR_RPC_FAIL with errno kept. */
int mc_tcp_listen(const char *host, uint16_t *port);
/* The same, but nobody can connect yet; MC_ERR_INVALID_PARAMS: no such host. */
int mc_tcp_bind(const char *host, uint16_t *port);
int mc_unix_listen(const char *path);
/* The connection of a host that vanished without a word ends: it is probed after so many seconds of silence, again
 * after interval_s, and is given up after `count` probes. 0: the kernel's number. Best effort: fails for what is no
 * tcp. */
void mc_socket_keep_alive(int fd, int idle_s, int interval_s, int count);
/* Until the latter is called, a forked child closes it: of a connection that is made, and nobody's yet. */
void mc_socket_way_begin(int fd);
void mc_socket_way_end(int fd);
/* A connected or accepted descriptor, or negative when there is none. Sets TCP_NODELAY. */
int mc_socket_accept(int listener);
/* Closes it unless it is negative: none. */
static inline void mc_fd_close(int fd)
{
    if (fd < 0)
        return;
    mc_secure_forget(fd);
    (void)close(fd);
}
/* By which the other end's address is counted, a host of IPv6 by its /64; 0: a unix socket's. */
uint64_t mc_socket_peer_key(int fd);
/* Closing it resets the connection: nothing of it stays with the kernel. False: that cannot be set. */
bool mc_socket_reset_at_close(int fd);
/* It is open, and nothing of the peer's waits to be read. */
bool mc_socket_is_silent(int fd);
/* The peer has ended it, and nothing is left to be read. */
bool mc_socket_has_ended(int fd);
/* The numeric host (IPv4 as such, also on a socket of IPv6) and the port of one end of a tcp connection. False: it is
 * none, or not connected. */
enum mc_socket_end { MC_SOCKET_OURS, MC_SOCKET_PEERS };
bool mc_socket_name(int fd, enum mc_socket_end end, char *host, size_t host_size, uint16_t *port);
/* The other end, for a log: "host:port", or that it is a process of this machine. */
void mc_socket_peer_text(int fd, char text[MC_ADDRESS_MAX]);
/* Is who asks of this machine, or of a private network: loopback, link-local, RFC 1918, RFC 6598, RFC 4193? True of a
 * unix socket; false when it cannot be told. */
bool mc_socket_peer_is_near(int fd);
/* The same of an address in numbers. */
bool mc_address_is_near(const char *host);
/* uid of the process at the other end of a unix socket; -1 when unknown. */
int64_t mc_unix_peer_uid(int fd);
/* Is that process alive and not stopped? False when it cannot be seen: another machine, another namespace. */
bool mc_unix_peer_runs(int fd);

/* How long a spin may last: 50 us; 20 us when this process has one processor only, where a spin takes time from whom it
 * waits for. Looked up at most once a second, so a later taskset is seen. */
uint64_t mc_spin_ns(void);

/* State of the adaptive spin of one waiter: spins (recv + sched_yield) for mc_spin_ns() only while recent waits ended
 * within the spin. */
struct mc_spin {
    uint32_t hits; /* 0..16; spins while > 0 */
    uint32_t probe;
};

/* For waiters on other things than sockets. Should this wait begin with a spin? If so, tell how it ended: hit or miss.
 * If the waiter has slept instead, or after it: mc_spin_slept. */
bool mc_spin_wanted(struct mc_spin *spin);
void mc_spin_hit(struct mc_spin *spin);
void mc_spin_miss(struct mc_spin *spin);
void mc_spin_slept(struct mc_spin *spin, uint64_t slept_ns);

/* recv, send, recvmsg and sendmsg of a connection that may have TLS (secure.h), without waiting, with errno. A send
 * that was not taken whole is repeated with the same bytes. Descriptors travel on unix sockets alone. */
static inline ssize_t mc_socket_recv(int fd, void *data, size_t size)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls == NULL ? recv(fd, data, size, MSG_DONTWAIT) : mc_secure_recv(tls, &(struct iovec){data, size}, 1);
}
static inline ssize_t mc_socket_sends(int fd, const void *data, size_t size)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls == NULL ? send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                       : mc_secure_send(tls, &(struct iovec){(void *)(uintptr_t)data, size}, 1);
}
static inline ssize_t mc_socket_recvmsg(int fd, struct msghdr *message)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls == NULL ? recvmsg(fd, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
                       : mc_secure_recv(tls, message->msg_iov, message->msg_iovlen);
}
static inline ssize_t mc_socket_sendmsg(int fd, const struct msghdr *message)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls == NULL ? sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL)
                       : mc_secure_send(tls, message->msg_iov, message->msg_iovlen);
}
/* After a receive that was filled: may what is left be here, where no poll sees it? */
static inline bool mc_socket_holds(int fd)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls != NULL && mc_tls_holds(tls);
}
/* Receives take only what is here (at most MC_TLS_HELD_MAX bytes), until this is called with false: so who reads until
 * EAGAIN leaves nothing that no poll sees, and takes no more of others' time than that. False: there is no TLS. */
static inline bool mc_socket_hold(int fd, bool only_held)
{
    struct mc_tls *tls = mc_secure_of(fd);
    if (tls != NULL)
        mc_tls_hold(tls, only_held);
    return tls != NULL;
}

/* Waits until fd is readable (or closed). 0 or negative. */
int mc_socket_wait_read(int fd, uint64_t deadline_ns, struct mc_spin *spin);
/* Waits until fd takes bytes (or is closed). 0 or negative. */
int mc_socket_wait_write(int fd, uint64_t deadline_ns);
/* Whole vector or error (MC_ERR_RPC_FAIL with errno). parts is changed. */
int mc_socket_send(int fd, struct iovec *parts, size_t part_count, uint64_t deadline_ns);
/* A small frame, if the socket takes it at once: 1, or 0 when it does not. Negative: the connection is of no use, or a
 * part of the frame is in the stream. */
int mc_socket_send_small(int fd, const void *data, size_t size);
/* Has the kernel at the other end of a tcp connection not yet confirmed all that was sent? */
bool mc_tcp_is_unconfirmed(int fd);
/* And has it confirmed nothing for so long? Its host is gone, or the way there, or a firewall has forgotten it. */
bool mc_tcp_is_dead(int fd, uint32_t silent_ms);
/* How many bytes it has confirmed so far; 0: that is not known. */
uint64_t mc_tcp_confirmed(int fd);
/* Receives at least 1 byte, at most `size`. Returns bytes, or MC_ERR_RPC_FAIL at end of file, errno being ECONNRESET
 * then. spin may be NULL. */
int64_t mc_socket_receive(int fd, void *data, size_t size, uint64_t deadline_ns, struct mc_spin *spin);
/* One message with up to 4 descriptors beside its bytes (unix sockets). Received descriptors are close-on-exec.
 * MC_ERR_BUSY: this process has no room for all that came; fd_count says how many it got. */
int mc_unix_send_fds(int fd, const void *data, size_t size, const int *fds, size_t fd_count, uint64_t deadline_ns);
int64_t mc_unix_receive_fds(int fd, void *data, size_t size, int *fds, size_t fd_capacity, size_t *fd_count,
                            uint64_t deadline_ns);

#endif
