/* Stream sockets with deadlines. */
#include "env/socket.h"

#include "base/address.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/pace.h"
#include "env/clock.h"
#include "env/resolve.h"
#include "env/setting.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/tcp.h> /* its struct tcp_info is longer than that of netinet/tcp.h */
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SPIN_NS 50000u
#define SPIN_ALONE_NS 20000u /* with one processor */
#define SPIN_HITS_MAX 16u
#define SPIN_PROBE_EVERY 64u /* a waiter that does not spin tries again this often: load may have come back */
#define FDS_MAX 4
#define CONNECTS_MAX 4u               /* on their way to one address */
#define CONNECT_LATER_NS 100000000ull /* between the third and the fourth */
#define CONNECT_OTHER_NS 250000000ull /* at most, until the next address of the host is tried beside those before */
#define ON_THEIR_WAY_MAX 256u         /* connections of all threads that a forked child closes */
#define ACK_LATE_MS 80u               /* a host confirms within 40 ms what it does not answer */
#define SMALL_NS 1000000u             /* for the rest of a small frame of which a part was taken */
#define BACKLOG 4096                  /* after a failover everybody comes at once; the kernel may allow fewer */

int mc_address_split(const char *address, char *host, size_t host_size, uint16_t *port)
{
    const char *end = NULL, *port_text = NULL;
    if (address[0] == '[') {
        address++;
        end = strchr(address, ']');
        if (end == NULL || (end[1] != 0 && end[1] != ':'))
            return MC_ERR_INVALID_PARAMS;
        port_text = end[1] == ':' ? end + 2 : NULL;
    } else {
        const char *colon = strchr(address, ':');
        bool is_v6 = colon != NULL && strchr(colon + 1, ':') != NULL;
        end = colon == NULL || is_v6 ? address + strlen(address) : colon;
        port_text = colon == NULL || is_v6 ? NULL : colon + 1;
    }
    if (end == address || (size_t)(end - address) >= host_size)
        return MC_ERR_INVALID_PARAMS;
    if (port_text != NULL) {
        char *rest;
        unsigned long value = strtoul(port_text, &rest, 10);
        if (port_text[0] < '0' || port_text[0] > '9' || *rest != 0 || value > UINT16_MAX)
            return MC_ERR_INVALID_PARAMS;
        *port = (uint16_t)value;
    }
    memcpy(host, address, (size_t)(end - address));
    host[end - address] = 0;
    return 0;
}

void mc_address_join(char *address, size_t size, const char *host, uint16_t port)
{
    snprintf(address, size, strchr(host, ':') == NULL ? "%s:%u" : "[%s]:%u", host, (unsigned)port);
}

static int poll_until(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = mc_clock_ns();
        if (now_ns >= deadline_ns)
            return MC_ERR_RPC_TIMEOUT;
        uint64_t left_ns = deadline_ns - now_ns;
        struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
        struct pollfd waited = {.fd = fd, .events = events};
        int rc = ppoll(&waited, 1, &left, NULL);
        if (rc > 0)
            return (waited.revents & POLLNVAL) != 0 ? MC_ERR_RPC_FAIL : 0;
        if (rc < 0 && errno != EINTR)
            return MC_ERR_RPC_FAIL;
    }
}

static int connect_until(int fd, const struct sockaddr *address, socklen_t length, uint64_t deadline_ns)
{
    if (connect(fd, address, length) == 0)
        return 0;
    if (errno != EINPROGRESS) /* EAGAIN: a unix listener with a full backlog */
        return mc_socket_code(errno);
    int rc = poll_until(fd, POLLOUT, deadline_ns);
    if (rc < 0)
        return rc;
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        errno = error;
        return mc_socket_code(error);
    }
    return 0;
}

/* Questions and answers that are waited for: sent at once; and a lone packet that is lost again and again is sent again
 * at even intervals, not at doubled ones. Both fail on a unix socket, which needs neither. */
static void set_no_delay(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
}

void mc_socket_keep_alive(int fd, int idle_s, int interval_s, int count)
{
    const int options[][3] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                              {IPPROTO_TCP, TCP_KEEPIDLE, idle_s},
                              {IPPROTO_TCP, TCP_KEEPINTVL, interval_s},
                              {IPPROTO_TCP, TCP_KEEPCNT, count}};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        if (options[i][2] > 0)
            (void)setsockopt(fd, options[i][0], options[i][1], &options[i][2], sizeof(int));
    }
}

/* In a forked child none of the threads is there that wait for a connection. */
static _Atomic int on_their_way[ON_THEIR_WAY_MAX]; /* descriptor + 1; 0 = free */

static void on_forked(void)
{
    for (size_t i = 0; i < ON_THEIR_WAY_MAX; i++) {
        int fd = atomic_exchange(&on_their_way[i], 0) - 1;
        mc_fd_close(fd);
    }
}

static void install_fork_handler(void)
{
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

/* One for which there is no place stays open in a child. */
void mc_socket_way_begin(int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    bool has_place = false;
    (void)pthread_once(&once, install_fork_handler);
    for (size_t i = 0; i < ON_THEIR_WAY_MAX && !has_place; i++) {
        int is_free = 0;
        has_place = atomic_compare_exchange_strong(&on_their_way[i], &is_free, fd + 1);
    }
}

/* Before it is closed: a child that is forked in between keeps it, which is better than closing a stranger. */
void mc_socket_way_end(int fd)
{
    bool was_there = false;
    for (size_t i = 0; i < ON_THEIR_WAY_MAX && !was_there; i++) {
        int wanted = fd + 1;
        was_there = atomic_compare_exchange_strong(&on_their_way[i], &wanted, 0);
    }
}

/* Connections to one address that are on their way, for one that is wanted. */
struct connecting {
    const struct mc_tcp_address *peer;
    struct mc_pace *pace;
    int fds[CONNECTS_MAX];
    uint64_t begun_ns[CONNECTS_MAX], due_ns; /* due_ns: the next is begun */
    nfds_t count;                            /* 0: none yet, or the address has refused */
};

/* A descriptor, or -1 with errno. Its number may be that of one which was closed elsewhere than by mc_fd_close. */
static int socket_new(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mc_secure_forget(fd);
    return fd;
}

/* Begins one; or, if it may not, only thinks of when to ask again. 0 or MC_ERR_RPC_FAIL with errno. */
static int connecting_begin(struct connecting *all)
{
    uint64_t now_ns = mc_clock_ns(), late_ns = mc_pace_late_ns(all->pace);
    nfds_t turn = all->count + 1;
    if (turn > 1 && !mc_pace_pay(all->pace)) {
        all->due_ns = now_ns + CONNECT_LATER_NS;
        return 0;
    }
    all->due_ns =
        turn == CONNECTS_MAX ? UINT64_MAX : now_ns + (turn <= 2 ? turn * late_ns : CONNECT_LATER_NS + late_ns);
    int fd = socket_new(all->peer->address.any.sa_family);
    if (fd < 0)
        return MC_ERR_RPC_FAIL;
    set_no_delay(fd);
    if (connect(fd, &all->peer->address.any, all->peer->length) != 0 && errno != EINPROGRESS) {
        int error = errno;
        close(fd);
        errno = error;
        return MC_ERR_RPC_FAIL;
    }
    mc_socket_way_begin(fd);
    all->fds[all->count] = fd;
    all->begun_ns[all->count++] = now_ns;
    return 0;
}

static void connecting_end(struct connecting *all)
{
    int error = errno;
    while (all->count > 0) {
        int fd = all->fds[--all->count];
        mc_socket_way_end(fd);
        close(fd);
    }
    errno = error;
}

/* One of them is decided. Its descriptor, which is the caller's; or MC_ERR_RPC_FAIL with errno: the address has
 * refused. */
static int connecting_take(struct connecting *all, nfds_t at)
{
    int error = 0, fd = all->fds[at];
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        errno = error;
        connecting_end(all);
        return MC_ERR_RPC_FAIL;
    }
    mc_socket_way_end(fd);
    mc_pace_sample(all->pace, mc_clock_ns() - all->begun_ns[at]);
    all->fds[at] = all->fds[--all->count];
    return fd;
}

/* The addresses of one host that are tried: the first of them that answers is taken. */
struct trying {
    struct connecting each[MC_RESOLVE_ADDRESSES_MAX];
    uint32_t count, begun;
    uint64_t next_ns;  /* another one is begun, whatever those before do */
    uint64_t pause_ns; /* between two of them: each has its turn before the deadline */
    int error;         /* errno of the first that failed otherwise than by a refusal, else ECONNREFUSED; that this host
                          has no IPv6, only if there was nothing else */
    bool is_without_v6;
};

/* A host without IPv6 is not kept from its peer by an address of that which the peer's name has, too. */
static bool is_no_v6(const struct mc_tcp_address *peer, int error)
{
    return peer->address.any.sa_family == AF_INET6 &&
           (error == ENETUNREACH || error == EAFNOSUPPORT || error == EADDRNOTAVAIL);
}

static void trying_failed(struct trying *trying, const struct mc_tcp_address *peer)
{
    int error = errno;
    bool is_without_v6 = is_no_v6(peer, error);
    if (trying->error != 0 && is_without_v6)
        return;
    if (trying->error == 0 || trying->error == ECONNREFUSED || trying->is_without_v6)
        trying->error = error;
    trying->is_without_v6 = is_without_v6;
}

/* Begins what is due. When to look again. */
static uint64_t trying_begin(struct trying *trying)
{
    uint64_t now_ns = mc_clock_ns(), look_ns = UINT64_MAX, alive = 0;
    for (uint32_t i = 0; i < trying->begun; i++) {
        struct connecting *all = &trying->each[i];
        if (all->count > 0 && now_ns >= all->due_ns)
            (void)connecting_begin(all); /* no descriptor for one more: there are others */
        alive += all->count;
    }
    while (trying->begun < trying->count && (alive == 0 || now_ns >= trying->next_ns)) {
        struct connecting *all = &trying->each[trying->begun++];
        if (connecting_begin(all) < 0)
            trying_failed(trying, all->peer);
        alive += all->count;
        trying->next_ns = now_ns + trying->pause_ns;
    }
    for (uint32_t i = 0; i < trying->begun; i++)
        if (trying->each[i].count > 0 && trying->each[i].due_ns < look_ns)
            look_ns = trying->each[i].due_ns;
    return trying->begun < trying->count && trying->next_ns < look_ns ? trying->next_ns : look_ns;
}

/* Waits until one is decided, or so long. A descriptor; MC_ERR_RPC_TIMEOUT: none yet; MC_ERR_RPC_FAIL: all have
 * refused. */
static int trying_wait(struct trying *trying, uint64_t until_ns)
{
    struct pollfd waits[MC_RESOLVE_ADDRESSES_MAX * CONNECTS_MAX];
    nfds_t count = 0;
    for (uint32_t i = 0; i < trying->begun; i++)
        for (nfds_t j = 0; j < trying->each[i].count; j++)
            waits[count++] = (struct pollfd){.fd = trying->each[i].fds[j], .events = POLLOUT};
    if (count == 0)
        return MC_ERR_RPC_FAIL;
    uint64_t now_ns = mc_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    if (ppoll(waits, count, &left, NULL) <= 0)
        return MC_ERR_RPC_TIMEOUT;
    for (uint32_t i = 0, at = 0; i < trying->begun; i++) {
        struct connecting *all = &trying->each[i];
        for (nfds_t j = 0, had = all->count; j < had; j++, at++) {
            if (waits[at].revents == 0 || j >= all->count)
                continue;
            int fd = connecting_take(all, j);
            if (fd >= 0)
                return fd;
            trying_failed(trying, all->peer); /* its others are gone, too */
        }
    }
    return MC_ERR_RPC_TIMEOUT;
}

/* A SYN that is lost is sent again only after a second: a connection that is slow to come gets company. And one of a
 * host's addresses may lead nowhere: the next is tried beside it, a little later (RFC 8305). */
int mc_tcp_connect_any(const struct mc_tcp_address *peers, uint32_t count, uint64_t deadline_ns)
{
    static struct mc_pace pace; /* of all hosts that this process connects to: their kernels answer a SYN */
    struct trying trying = {.count = count < MC_RESOLVE_ADDRESSES_MAX ? count : MC_RESOLVE_ADDRESSES_MAX};
    for (uint32_t i = 0; i < trying.count; i++)
        trying.each[i] = (struct connecting){.peer = &peers[i], .pace = &pace};
    uint64_t now_ns = mc_clock_ns(), share_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / (count + 1) : 0;
    trying.pause_ns = share_ns < CONNECT_OTHER_NS ? share_ns : CONNECT_OTHER_NS;
    int rc = MC_ERR_RPC_TIMEOUT;
    do {
        uint64_t look_ns = trying_begin(&trying);
        rc = trying_wait(&trying, look_ns < deadline_ns ? look_ns : deadline_ns);
    } while (rc == MC_ERR_RPC_TIMEOUT && mc_clock_ns() < deadline_ns);
    for (uint32_t i = 0; i < trying.begun; i++)
        connecting_end(&trying.each[i]);
    if (rc < 0)
        errno = trying.error;
    return rc;
}

int mc_tcp_connect(const char *address, uint64_t deadline_ns)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = 0;
    struct mc_resolved resolved;
    int rc = mc_address_split(address, host, sizeof(host), &port);
    if (rc < 0 || port == 0)
        return MC_ERR_INVALID_PARAMS;
    rc = mc_resolve(host, port, deadline_ns, &resolved);
    if (rc < 0)
        return rc;
    int fd = mc_tcp_connect_any(resolved.addresses, resolved.count, deadline_ns), error = errno;
    if (fd < 0)
        mc_resolve_doubt(host);
    errno = error == ECONNREFUSED && resolved.is_old ? EHOSTDOWN : error;
    return fd;
}

int mc_socket_code(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
    case EADDRNOTAVAIL: /* all ports are in use */
        return MC_ERR_BUSY;
    case ENOMEM:
    case ENOBUFS:
        return MC_ERR_NO_MEMORY;
    case EFAULT:
        return MC_ERR_INVALID_PARAMS;
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTUNREACH:
    case EACCES:
    case EPERM: /* a filter of this host */
    case EAFNOSUPPORT:
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    default:
        return MC_ERR_RPC_FAIL;
    }
}

bool mc_socket_is_own(int code)
{
    return code == MC_ERR_BUSY || code == MC_ERR_NO_MEMORY || code == MC_ERR_INVALID_PARAMS ||
           code == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
}

int mc_tcp_resolve(const char *address, uint64_t deadline_ns, struct mc_tcp_address *peers, size_t capacity)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = 0;
    struct mc_resolved resolved;
    if (mc_address_split(address, host, sizeof(host), &port) < 0 || port == 0)
        return MC_ERR_INVALID_PARAMS;
    int rc = mc_resolve(host, port, deadline_ns, &resolved);
    if (rc < 0) /* ours, or our name server's trouble */
        return rc == MC_ERR_NO_MEMORY ? rc : MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    size_t count = resolved.count < capacity ? resolved.count : capacity;
    memcpy(peers, resolved.addresses, count * sizeof(*peers));
    return (int)count;
}

void mc_tcp_doubt(const char *address)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = 0;
    if (mc_address_split(address, host, sizeof(host), &port) == 0)
        mc_resolve_doubt(host);
}

int mc_tcp_begin(const struct mc_tcp_address *peer)
{
    int fd = socket_new(peer->address.any.sa_family);
    if (fd < 0)
        return mc_socket_code(errno);
    set_no_delay(fd);
    if (connect(fd, &peer->address.any, peer->length) == 0 || errno == EINPROGRESS)
        return fd;
    int code = mc_socket_code(errno);
    close(fd);
    return code;
}

int mc_tcp_begun(int fd)
{
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return MC_ERR_RPC_FAIL;
    return error == 0 ? 0 : mc_socket_code(error);
}

bool mc_tcp_way(int fd, struct mc_tcp_way *way)
{
    struct tcp_info info = {.tcpi_state = 0}; /* what an older kernel does not know stays zero */
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    bool is_calm = info.tcpi_ca_state == TCP_CA_Open && info.tcpi_retransmits == 0;
    way->lost = info.tcpi_total_retrans - info.tcpi_dsack_dups + info.tcpi_rcv_ooopack;
    way->arrived = info.tcpi_unacked == 0 || (is_calm && info.tcpi_last_ack_recv < ACK_LATE_MS);
    return true;
}

bool mc_tcp_peer(int fd, struct mc_tcp_address *peer)
{
    peer->length = sizeof(peer->address);
    return getpeername(fd, &peer->address.any, &peer->length) == 0 && peer->length <= sizeof(peer->address) &&
           (peer->address.any.sa_family == AF_INET || peer->address.any.sa_family == AF_INET6);
}

/* A socket for that path, and the path as an address. */
static int unix_socket(const char *path, struct sockaddr_un *address, socklen_t *length)
{
    size_t path_length = strlen(path);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (path_length == 0 || path_length >= sizeof(address->sun_path))
        return MC_ERR_INVALID_PARAMS;
    memcpy(address->sun_path, path, path_length);
    if (path[0] == '@')
        address->sun_path[0] = 0;
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_length + (path[0] == '@' ? 0 : 1));
    int fd = socket_new(AF_UNIX);
    return fd < 0 ? mc_socket_code(errno) : fd;
}

int mc_unix_connect(const char *path, uint64_t deadline_ns)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd = unix_socket(path, &address, &length);
    if (fd < 0)
        return fd;
    int rc = connect_until(fd, (struct sockaddr *)&address, length, deadline_ns);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

const char *mc_tcp_listen_host(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found = NULL;
    if (getaddrinfo(host, "1", &hints, &found) != 0)
        return mc_address_is_loopback(host) ? "127.0.0.1" : "";
    freeaddrinfo(found);
    return host;
}

/* is_both: of IPv4, too. */
static int open_listener_at(const char *host, bool is_both, uint16_t *port, bool listens)
{
    char port_text[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *found = NULL;
    snprintf(port_text, sizeof(port_text), "%u", (unsigned)*port);
    if (getaddrinfo(host, port_text, &hints, &found) != 0) {
        errno = EADDRNOTAVAIL;
        return MC_ERR_INVALID_PARAMS;
    }
    int on = 1, off = 0, error = EADDRNOTAVAIL, fd = -1;
    for (struct addrinfo *one = found; one != NULL && fd < 0; one = one->ai_next) {
        fd = socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            error = errno;
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if ((is_both && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) ||
            bind(fd, one->ai_addr, one->ai_addrlen) != 0 || (listens && listen(fd, BACKLOG) != 0)) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0) {
        errno = error;
        return MC_ERR_RPC_FAIL;
    }
    char name[INET6_ADDRSTRLEN];
    (void)mc_socket_name(fd, MC_SOCKET_OURS, name, sizeof(name), port); /* a bound socket has a name */
    return fd;
}

/* A host without IPv6 listens to IPv4 alone. */
static int open_listener(const char *host, uint16_t *port, bool listens)
{
    if (host[0] != 0)
        return open_listener_at(host, false, port, listens);
    int fd = open_listener_at("::", true, port, listens);
    bool is_settled = fd >= 0 || errno == EADDRINUSE || errno == EACCES;
    return is_settled ? fd : open_listener_at("0.0.0.0", false, port, listens);
}

int mc_tcp_bind(const char *host, uint16_t *port)
{
    return open_listener(host, port, false);
}

int mc_tcp_listen(const char *host, uint16_t *port)
{
    int fd = open_listener(host, port, true);
    return fd < 0 ? MC_ERR_RPC_FAIL : fd;
}

int mc_unix_listen(const char *path)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd = unix_socket(path, &address, &length);
    if (fd < 0)
        return fd;
    if (path[0] != '@')
        (void)unlink(path); /* names hold a random node id: an old file of that name has no owner */
    if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, BACKLOG) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return MC_ERR_RPC_FAIL;
    }
    return fd;
}

int mc_socket_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return MC_ERR_RPC_FAIL;
    mc_secure_forget(fd);
    set_no_delay(fd);
    return fd;
}

uint64_t mc_socket_peer_key(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {.v6 = {0}};
    socklen_t length = sizeof(name);
    if (getpeername(fd, &name.any, &length) != 0)
        return 0;
    uint64_t key = 0;
    if (name.any.sa_family == AF_INET)
        key = mc_hash(&name.v4.sin_addr, sizeof(name.v4.sin_addr)).low;
    else if (name.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&name.v6.sin6_addr))
        key = mc_hash(&name.v6.sin6_addr.s6_addr[12], 4).low;
    else if (name.any.sa_family == AF_INET6)
        key = mc_hash(&name.v6.sin6_addr, 8).low;
    else
        return 0;
    return key == 0 ? 1 : key;
}

bool mc_socket_reset_at_close(int fd)
{
    const struct linger none = {.l_onoff = 1, .l_linger = 0};
    return setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)) == 0;
}

bool mc_socket_is_silent(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR) &&
           !mc_socket_holds(fd);
}

bool mc_socket_has_ended(int fd)
{
    char byte;
    ssize_t length = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR)) && !mc_socket_holds(fd);
}

bool mc_socket_name(int fd, enum mc_socket_end end, char *host, size_t host_size, uint16_t *port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {.v6 = {0}};
    socklen_t length = sizeof(name);
    int rc = end == MC_SOCKET_OURS ? getsockname(fd, &name.any, &length) : getpeername(fd, &name.any, &length);
    if (rc != 0 || (name.any.sa_family != AF_INET && name.any.sa_family != AF_INET6))
        return false;
    bool is_v6 = name.any.sa_family == AF_INET6, is_mapped = is_v6 && IN6_IS_ADDR_V4MAPPED(&name.v6.sin6_addr);
    const void *address = is_mapped ? (const void *)&name.v6.sin6_addr.s6_addr[12]
                          : is_v6   ? (const void *)&name.v6.sin6_addr
                                    : (const void *)&name.v4.sin_addr;
    if (inet_ntop(is_mapped ? AF_INET : name.any.sa_family, address, host, (socklen_t)host_size) == NULL)
        return false;
    *port = ntohs(is_v6 ? name.v6.sin6_port : name.v4.sin_port);
    return true;
}

void mc_socket_peer_text(int fd, char text[MC_ADDRESS_MAX])
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    snprintf(text, MC_ADDRESS_MAX, "a process of this machine");
    if (mc_socket_name(fd, MC_SOCKET_PEERS, host, sizeof(host), &port))
        mc_address_join(text, MC_ADDRESS_MAX, host, port);
}

static bool is_near_4(uint32_t address)
{
    static const struct {
        uint32_t base, bits;
    } near[] = {{0x7f000000u, 8},  {0x0a000000u, 8},  {0xac100000u, 12},
                {0xc0a80000u, 16}, {0xa9fe0000u, 16}, {0x64400000u, 10}};
    for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++)
        if ((address ^ near[i].base) >> (32 - near[i].bits) == 0)
            return true;
    return false;
}

bool mc_address_is_near(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, host, &four) == 1)
        return is_near_4(ntohl(four.s_addr));
    if (inet_pton(AF_INET6, host, &six) != 1)
        return false;
    if (IN6_IS_ADDR_V4MAPPED(&six)) {
        memcpy(&four, &six.s6_addr[12], sizeof(four));
        return is_near_4(ntohl(four.s_addr));
    }
    return IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_LINKLOCAL(&six) || (six.s6_addr[0] & 0xfe) == 0xfc;
}

bool mc_socket_peer_is_near(int fd)
{
    char peer[INET6_ADDRSTRLEN], ours[INET6_ADDRSTRLEN];
    uint16_t port;
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &length) == 0 && address.ss_family == AF_UNIX)
        return true;
    if (!mc_socket_name(fd, MC_SOCKET_PEERS, peer, sizeof(peer), &port) ||
        !mc_socket_name(fd, MC_SOCKET_OURS, ours, sizeof(ours), &port))
        return false;
    peer[strcspn(peer, "%")] = ours[strcspn(ours, "%")] = 0;
    return strcmp(peer, ours) == 0 || mc_address_is_near(peer);
}

int64_t mc_unix_peer_uid(int fd)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
        return -1;
    return (int64_t)credentials.uid;
}

bool mc_unix_peer_runs(int fd)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    char name[64], line[256];
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0)
        return false;
    snprintf(name, sizeof(name), "/proc/%ld/stat", (long)credentials.pid);
    FILE *file = fopen(name, "re");
    if (file == NULL)
        return false;
    const char *text = fgets(line, sizeof(line), file);
    fclose(file);
    const char *behind = text == NULL ? NULL : strrchr(text, ')'); /* the name before it may hold anything */
    return behind != NULL && behind[1] == ' ' && strchr("RSDIPW", behind[2]) != NULL && behind[2] != 0;
}

uint64_t mc_spin_ns(void)
{
    static _Atomic uint64_t looked_ms, spin_ns = SPIN_NS;
    uint64_t now_ms = mc_clock_ms();
    if (now_ms - atomic_load_explicit(&looked_ms, memory_order_relaxed) >= 1000) {
        atomic_store_explicit(&spin_ns, mc_processors() == 1 ? SPIN_ALONE_NS : SPIN_NS, memory_order_relaxed);
        atomic_store_explicit(&looked_ms, now_ms, memory_order_relaxed);
    }
    return atomic_load_explicit(&spin_ns, memory_order_relaxed);
}

void mc_spin_hit(struct mc_spin *spin)
{
    spin->hits = spin->hits < SPIN_HITS_MAX ? spin->hits + 1 : SPIN_HITS_MAX;
}
void mc_spin_miss(struct mc_spin *spin)
{
    spin->hits = spin->hits > 4 ? spin->hits - 4 : 0;
}
bool mc_spin_wanted(struct mc_spin *spin)
{
    return (spin->hits > 0 || ++spin->probe % SPIN_PROBE_EVERY == 0);
}

/* A blocked wait that would have been short, a wake-up included, says that spinning pays. */
void mc_spin_slept(struct mc_spin *spin, uint64_t slept_ns)
{
    if (slept_ns < 3 * SPIN_NS)
        spin->hits++;
}

/* recv() until it has something or the spin is over. Yields first: on one core the peer must run before there can be
 * anything. */
static ssize_t spin_receive(int fd, void *data, size_t size, int flags, struct mc_spin *spin)
{
    uint64_t end_ns = mc_clock_ns() + mc_spin_ns();
    do {
        sched_yield();
        ssize_t received = recv(fd, data, size, flags | MSG_DONTWAIT);
        if (received >= 0 || (errno != EAGAIN && errno != EINTR)) {
            mc_spin_hit(spin);
            return received;
        }
    } while (mc_clock_ns() < end_ns);
    mc_spin_miss(spin);
    errno = EAGAIN;
    return -1;
}

static int block_read(int fd, uint64_t deadline_ns, struct mc_spin *spin)
{
    uint64_t start_ns = mc_clock_ns();
    int rc = poll_until(fd, POLLIN, deadline_ns);
    if (spin != NULL && rc == 0)
        mc_spin_slept(spin, mc_clock_ns() - start_ns);
    return rc;
}

int mc_socket_wait_read(int fd, uint64_t deadline_ns, struct mc_spin *spin)
{
    char byte;
    if (spin != NULL && mc_spin_wanted(spin)) {
        if (spin_receive(fd, &byte, 1, MSG_PEEK, spin) >= 0 || errno != EAGAIN)
            return 0;
        spin = NULL; /* judged already */
    }
    return block_read(fd, deadline_ns, spin);
}

int mc_socket_wait_write(int fd, uint64_t deadline_ns)
{
    return poll_until(fd, POLLOUT, deadline_ns);
}

int mc_socket_send(int fd, struct iovec *parts, size_t part_count, uint64_t deadline_ns)
{
    struct mc_tls *tls = mc_secure_of(fd);
    if (tls != NULL) {
        int rc = mc_tls_send(tls, parts, part_count, deadline_ns);
        errno = rc == MC_ERR_RPC_FAIL ? mc_tls_error(tls) : 0;
        return rc;
    }
    while (part_count > 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = part_count < IOV_MAX ? part_count : IOV_MAX};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                return MC_ERR_RPC_FAIL;
            int rc = poll_until(fd, POLLOUT, deadline_ns);
            if (rc < 0)
                return rc;
            continue;
        }
        size_t done = (size_t)sent;
        while (part_count > 0 && done >= parts->iov_len) {
            done -= parts->iov_len;
            parts++;
            part_count--;
        }
        if (part_count > 0) {
            parts->iov_base = (char *)parts->iov_base + done;
            parts->iov_len -= done;
        }
    }
    return 0;
}

int mc_socket_send_small(int fd, const void *data, size_t size)
{
    ssize_t sent;
    if (mc_secure_of(fd) != NULL) { /* a record that is made must go: it cannot be taken back */
        struct iovec all = {(char *)(uintptr_t)data, size};
        int rc = mc_socket_send(fd, &all, 1, mc_clock_ns() + SMALL_NS);
        return rc < 0 ? rc : 1;
    }
    do
        sent = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? 0 : MC_ERR_RPC_FAIL;
    struct iovec rest = {(char *)(uintptr_t)data + sent, size - (size_t)sent};
    if (rest.iov_len == 0)
        return 1;
    int rc = mc_socket_send(fd, &rest, 1, mc_clock_ns() + SMALL_NS); /* a part of a frame must not stay alone */
    return rc < 0 ? rc : 1;
}

bool mc_tcp_is_unconfirmed(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_unacked > 0;
}

bool mc_tcp_is_dead(int fd, uint32_t silent_ms)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_unacked > 0 &&
           info.tcpi_last_ack_recv >= silent_ms;
}

uint64_t mc_tcp_confirmed(int fd)
{
    struct tcp_info info = {0}; /* what an older kernel does not know stays zero */
    socklen_t length = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_bytes_acked : 0;
}

/* As mc_socket_receive: what is here first, then what comes. */
static int64_t receive_secure(struct mc_tls *tls, int fd, void *data, size_t size, uint64_t deadline_ns,
                              struct mc_spin *spin)
{
    for (;;) {
        ssize_t received = mc_secure_recv(tls, &(struct iovec){data, size}, 1);
        if (received > 0)
            return received;
        if (errno != EAGAIN)
            return MC_ERR_RPC_FAIL;
        int rc = mc_socket_wait_read(fd, deadline_ns, spin);
        if (rc < 0)
            return rc;
    }
}

int64_t mc_socket_receive(int fd, void *data, size_t size, uint64_t deadline_ns, struct mc_spin *spin)
{
    struct mc_tls *tls = mc_secure_of(fd);
    if (tls != NULL)
        return receive_secure(tls, fd, data, size, deadline_ns, spin);
    bool spun = spin != NULL && mc_spin_wanted(spin);
    for (;;) {
        ssize_t received =
            spun && spin != NULL ? spin_receive(fd, data, size, 0, spin) : recv(fd, data, size, MSG_DONTWAIT);
        if (received > 0)
            return received;
        if (received == 0)
            errno = ECONNRESET; /* as TLS says it */
        if (received == 0 || (errno != EAGAIN && errno != EINTR))
            return MC_ERR_RPC_FAIL;
        if (spun)
            spin = NULL; /* judged already */
        int rc = block_read(fd, deadline_ns, spin);
        if (rc < 0)
            return rc;
    }
}

int mc_unix_send_fds(int fd, const void *data, size_t size, const int *fds, size_t fd_count, uint64_t deadline_ns)
{
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    mc_assert(fd_count >= 1 && fd_count <= FDS_MAX && size > 0);
    struct iovec part = {(void *)(uintptr_t)data, size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(fd_count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent > 0) { /* the descriptors went with the first byte; the rest, if any, is plain */
            struct iovec rest = {(char *)(uintptr_t)data + sent, size - (size_t)sent};
            return rest.iov_len == 0 ? 0 : mc_socket_send(fd, &rest, 1, deadline_ns);
        }
        if (errno != EAGAIN && errno != EINTR)
            return MC_ERR_RPC_FAIL;
        int rc = poll_until(fd, POLLOUT, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

int64_t mc_unix_receive_fds(int fd, void *data, size_t size, int *fds, size_t fd_capacity, size_t *fd_count,
                            uint64_t deadline_ns)
{
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    *fd_count = 0;
    for (;;) {
        struct iovec part = {data, size};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
        ssize_t received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR))
            return MC_ERR_RPC_FAIL;
        if (received < 0) {
            int rc = poll_until(fd, POLLIN, deadline_ns);
            if (rc < 0)
                return rc;
            continue;
        }
        for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
            if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
                continue;
            size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; i++) {
                int got;
                memcpy(&got, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
                if (*fd_count < fd_capacity)
                    fds[(*fd_count)++] = got;
                else
                    close(got); /* more than asked for: not ours to keep */
            }
        }
        /* Those that this process had no room for are gone, and the answer with them. */
        return (message.msg_flags & MSG_CTRUNC) != 0 && *fd_count < fd_capacity ? MC_ERR_BUSY : received;
    }
}
