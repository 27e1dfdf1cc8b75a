/* The calls on sockets and eventfds. */
#include "file.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int sim_close(int fd);
int sim_close(int fd)
{
    sim_preempt();
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL) {
        sim_fail("close(%d) of what is not open", fd);
        return -1;
    }
    sim_process()->fds[fd] = NULL;
    sim_file_release(file);
    return 0;
}

int sim_eventfd(unsigned count, int flags);
int sim_eventfd(unsigned count, int flags)
{
    (void)flags;
    struct sim_file *file = sim_file_make(SIM_EVENT);
    file->count = count;
    return sim_fd_give(file);
}

int sim_signalfd(int fd, const void *set, int flags);
int sim_signalfd(int fd, const void *set, int flags)
{
    (void)fd, (void)set, (void)flags;
    return sim_fd_give(sim_file_make(SIM_NOTHING));
}

ssize_t sim_read(int fd, void *data, size_t size);
ssize_t sim_read(int fd, void *data, size_t size)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    if (file->kind == SIM_MEMORY)
        return (ssize_t)sim_memory_read(file, data, size);
    if (file->kind != SIM_EVENT || file->count == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(data, &file->count, 8);
    file->count = 0;
    return 8;
}

ssize_t sim_write(int fd, const void *data, size_t size);
ssize_t sim_write(int fd, const void *data, size_t size)
{
    struct sim_file *file = sim_fd_file(fd);
    uint64_t more;
    if (file == NULL)
        return -1;
    if (file->kind == SIM_MEMORY)
        return (ssize_t)sim_memory_write(file, data, size);
    if (file->kind != SIM_EVENT || size != 8) {
        errno = EINVAL;
        return -1;
    }
    memcpy(&more, data, 8);
    file->count += more;
    sim_file_changed(file);
    sim_preempt();
    return 8;
}

int sim_socket(int domain, int type, int protocol);
int sim_socket(int domain, int type, int protocol)
{
    (void)type, (void)protocol;
    struct sim_file *file = sim_file_make(SIM_SOCKET);
    file->is_unix = domain == AF_UNIX;
    return sim_fd_give(file);
}

static bool listener_matches(const struct sim_file *listener, const struct sockaddr *address, socklen_t length,
                             const struct sim_process *from)
{
    if (listener->is_unix != (address->sa_family == AF_UNIX))
        return false;
    if (listener->is_unix) {
        const struct sockaddr_un *unix_address = (const void *)address;
        size_t name_length = length - offsetof(struct sockaddr_un, sun_path);
        return listener->process->machine == from->machine &&
               memcmp(listener->name, unix_address->sun_path, name_length) == 0 &&
               (name_length == sizeof(listener->name) || listener->name[name_length] == 0);
    }
    const struct sockaddr_in *v4 = (const void *)address;
    return (ntohl(v4->sin_addr.s_addr) & 0xff) == listener->process->address && ntohs(v4->sin_port) == listener->port;
}

static struct sim_file *listener_find(const struct sockaddr *address, socklen_t length, const struct sim_process *from)
{
    struct sim_file *listener = sim_listeners;
    while (listener != NULL && !listener_matches(listener, address, length, from))
        listener = listener->next;
    return listener;
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t length);
int sim_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct sim_file *file = sim_fd_file(fd);
    struct sim_process *process = sim_process();
    if (file == NULL)
        return -1;
    if (address->sa_family == AF_UNIX) {
        const struct sockaddr_un *unix_address = (const void *)address;
        memset(file->name, 0, sizeof(file->name));
        memcpy(file->name, unix_address->sun_path, length - offsetof(struct sockaddr_un, sun_path));
        if (listener_find(address, length, process) != NULL)
            errno = EADDRINUSE;
        else
            return 0;
        return -1;
    }
    const struct sockaddr_in *v4 = (const void *)address;
    uint32_t ip = ntohl(v4->sin_addr.s_addr);
    if (ip != 0 && (ip & 0xff) != process->address) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    file->port = ntohs(v4->sin_port) != 0 ? ntohs(v4->sin_port) : ++process->port_next;
    for (const struct sim_file *one = sim_listeners; one != NULL; one = one->next) {
        if (!one->is_unix && one->process == process && one->port == file->port) {
            errno = EADDRINUSE;
            return -1;
        }
    }
    return 0;
}

int sim_listen(int fd, int backlog);
int sim_listen(int fd, int backlog)
{
    (void)backlog;
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    file->kind = SIM_LISTENER;
    file->next = sim_listeners;
    sim_listeners = file;
    return 0;
}

static void stream_make(struct sim_file *file)
{
    file->kind = SIM_STREAM;
    file->next = sim_streams;
    sim_streams = file;
}

/* Joins the two; the listener's side waits in the backlog. False when that is full. */
static bool connection_make(struct sim_file *file, struct sim_file *listener)
{
    if (listener->backlog_count == 64)
        return false;
    struct sim_file *other = sim_file_make(SIM_STREAM);
    other->process = listener->process;
    other->process_life = listener->process->life;
    other->is_unix = file->is_unix;
    other->peer = file;
    other->port = listener->port;
    other->peer_port = file->port;
    other->peer_address = file->process->address;
    file->peer = other;
    file->peer_port = listener->port;
    file->peer_address = listener->process->address;
    stream_make(other);
    listener->backlog[listener->backlog_count++] = other;
    sim_file_changed(listener);
    return true;
}

struct attempt {
    struct sim_file *file;
    struct sockaddr_in address;
};

static void on_connected(void *argument)
{
    struct sim_file *file = argument;
    file->is_connecting = false;
    if (file->is_closed) /* given up meanwhile */
        return;
    if (file->connect_error == 0)
        stream_make(file);
    sim_file_changed(file);
}

static void on_attempt(void *argument)
{
    struct attempt *attempt = argument;
    struct sim_file *file = attempt->file;
    uint32_t place = (ntohl(attempt->address.sin_addr.s_addr) & 0xff) - 1;
    if (file->is_closed || file->process->life != file->process_life || !file->process->alive)
        return;
    if (place < SIM_PROCESSES_MAX &&
        (sim_is_partitioned(file->process->place, place) || sim_machine_sleeps(sim_processes[place].machine))) {
        sim_at(sim_now_ns + 4 * SIM_RETRY_NS, on_attempt, attempt);
        return;
    }
    struct sim_file *listener =
        listener_find((const struct sockaddr *)&attempt->address, sizeof(attempt->address), file->process);
    if (listener == NULL || !connection_make(file, listener))
        file->connect_error = ECONNREFUSED;
    sim_messages++;
    uint64_t back_ns = sim_delay_ns(file);
    if (file->peer != NULL) /* nothing arrives before the connection is known to be one */
        file->in.due_ns = sim_now_ns + back_ns;
    sim_at(sim_now_ns + back_ns, on_connected, file);
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t length);
int sim_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct sim_file *file = sim_fd_file(fd);
    sim_preempt();
    if (file == NULL)
        return -1;
    if (file->is_unix) {
        struct sim_file *listener = listener_find(address, length, sim_process());
        if (listener == NULL || !connection_make(file, listener)) {
            errno = listener == NULL ? ECONNREFUSED : EAGAIN;
            return -1;
        }
        stream_make(file);
        return 0;
    }
    struct attempt *attempt = sim_allocate(sizeof(*attempt));
    attempt->file = file;
    memcpy(&attempt->address, address, sizeof(attempt->address));
    file->is_connecting = true;
    file->port = ++sim_process()->port_next;
    sim_at(sim_now_ns + sim_delay_ns(file), on_attempt, attempt);
    errno = EINPROGRESS;
    return -1;
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    (void)address, (void)length, (void)flags;
    struct sim_file *file = sim_fd_file(fd);
    sim_preempt();
    if (file == NULL || file->kind != SIM_LISTENER || file->backlog_count == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (sim_is_short(SIM_SHORT_FILES)) { /* it waits on */
        errno = EMFILE;
        return -1;
    }
    struct sim_file *stream = file->backlog[0];
    memmove(file->backlog, file->backlog + 1, --file->backlog_count * sizeof(file->backlog[0]));
    return sim_fd_put(stream);
}

/* What a kernel knows of the way: what has not arrived, how often that was tried, when it was last confirmed. */
static void tcp_info_fill(const struct sim_file *file, struct tcp_info *info)
{
    bool is_sending = file->peer != NULL && file->peer->in.coming != NULL;
    bool is_cut = file->peer != NULL && (sim_is_way_cut(file->process->place, file->peer->process->place) ||
                                         sim_is_way_cut(file->peer->process->place, file->process->place));
    *info = (struct tcp_info){.tcpi_ca_state = is_sending && is_cut ? TCP_CA_Loss : TCP_CA_Open,
                              .tcpi_unacked = is_sending,
                              .tcpi_total_retrans = file->resent,
                              .tcpi_bytes_acked = file->confirmed_bytes,
                              .tcpi_last_ack_recv = (uint32_t)((sim_now_ns - file->confirmed_ns) / SIM_MS)};
}

int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    if (level == IPPROTO_TCP && name == TCP_INFO && file->kind == SIM_STREAM && !file->is_unix) {
        struct tcp_info info;
        tcp_info_fill(file, &info);
        *length = *length < sizeof(info) ? *length : (socklen_t)sizeof(info);
        memcpy(value, &info, *length);
        return 0;
    }
    if (name == SO_ERROR) {
        memcpy(value, &file->connect_error, sizeof(int));
        *length = sizeof(int);
        return 0;
    }
    if (name == SO_PEERCRED) {
        struct ucred credentials = {.pid = 1, .uid = 1000, .gid = 1000};
        memcpy(value, &credentials, sizeof(credentials));
        *length = sizeof(credentials);
        return 0;
    }
    if (level == IPPROTO_TCP && name == TCP_INFO) { /* it may always be so */
        ((struct tcp_info *)value)->tcpi_unacked = 1;
        return 0;
    }
    errno = ENOPROTOOPT;
    return -1;
}

int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length);
int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    (void)fd, (void)level, (void)name, (void)value, (void)length;
    return 0;
}

static void address_fill(struct sockaddr *address, socklen_t *length, uint32_t ip, uint16_t port)
{
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x0a000000u | ip)};
    memcpy(address, &v4, sizeof(v4) < *length ? sizeof(v4) : *length);
    *length = sizeof(v4);
}

int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    address_fill(address, length, file->process->address, file->port);
    return 0;
}

int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    address_fill(address, length, file->peer_address, file->peer_port);
    return 0;
}

/* "10.0.0.n", and "master" for the first process. */
int sim_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int sim_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)hints;
    struct {
        struct addrinfo info;
        struct sockaddr_in address;
    } *one = sim_allocate(sizeof(*one));
    one->address.sin_family = AF_INET;
    one->address.sin_port = htons((uint16_t)atoi(port));
    if (host != NULL && strcmp(host, "etcd") == 0)
        host = "10.0.0.15"; /* nobody connects to it: etcd.c answers before */
    if (host != NULL && strcmp(host, "master") == 0)
        host = "10.0.0.1";
    if (host != NULL && strcmp(host, "0.0.0.0") != 0 && inet_pton(AF_INET, host, &one->address.sin_addr) != 1)
        return EAI_NONAME;
    one->info = (struct addrinfo){.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addrlen = sizeof(one->address),
                                  .ai_addr = (struct sockaddr *)&one->address};
    *found = &one->info;
    return 0;
}

void sim_freeaddrinfo(struct addrinfo *found);
void sim_freeaddrinfo(struct addrinfo *found)
{
    (void)found;
}

int sim_shutdown(int fd, int how);
int sim_shutdown(int fd, int how)
{
    struct sim_file *file = sim_fd_file(fd);
    sim_preempt();
    if (file == NULL)
        return -1;
    if (file->kind != SIM_STREAM || file->is_reset) {
        errno = ENOTCONN;
        return -1;
    }
    if (how != SHUT_RD) {
        sim_send_end(file);
        file->write_shut = true;
    }
    if (how != SHUT_WR) {
        file->read_shut = true;
        sim_file_changed(file);
    }
    return 0;
}

static ssize_t send_message(int fd, const struct msghdr *message)
{
    struct sim_file *file = sim_fd_file(fd);
    size_t wanted = 0;
    if (file == NULL)
        return -1;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        wanted += message->msg_iov[i].iov_len;
    if (file->kind != SIM_STREAM || file->is_reset || file->write_shut || file->peer_gone) {
        errno = file->kind != SIM_STREAM ? ENOTCONN : file->is_reset ? ECONNRESET : EPIPE;
        return -1;
    }
    size_t room = file->peer->in.held >= SIM_FLOW_BYTES_MAX ? 0 : SIM_FLOW_BYTES_MAX - file->peer->in.held;
    size_t length = wanted < room ? wanted : room;
    if (length > 1 && sim_once_in(SIM_NET, 64))
        length = 1 + sim_below(SIM_NET, (uint32_t)length);
    if (length == 0) {
        errno = EAGAIN;
        return -1;
    }
    struct sim_segment *segment = sim_segment_make(length);
    size_t at = 0;
    for (size_t i = 0; at < length; i++) {
        size_t part = message->msg_iov[i].iov_len < length - at ? message->msg_iov[i].iov_len : length - at;
        memcpy(segment->bytes + at, message->msg_iov[i].iov_base, part);
        at += part;
    }
    struct cmsghdr *header = message->msg_controllen > 0 ? CMSG_FIRSTHDR(message) : NULL;
    if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && i < SIM_MESSAGE_FDS_MAX; i++) {
            int sent;
            memcpy(&sent, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            struct sim_file *passed = sim_fd_file(sent);
            if (passed != NULL) {
                passed->references++;
                segment->fds[segment->fd_count++] = passed;
            }
        }
    }
    sim_flow_send(file, segment);
    return (ssize_t)length;
}

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags);
void (*sim_in_unix_send)(struct sim_process *process);
void (*sim_in_send)(struct sim_process *process);

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sim_file *file = sim_fd_file(fd);
    (void)flags;
    if (sim_in_send != NULL)
        sim_in_send(sim_process());
    sim_preempt();
    if (sim_in_unix_send != NULL && file != NULL && file->is_unix) {
        sim_in_unix_send(sim_process());
        if (sim_process()->stopped)
            sim_sleep_ns(500);
    }
    return send_message(fd, message);
}

ssize_t sim_send(int fd, const void *data, size_t size, int flags);
ssize_t sim_send(int fd, const void *data, size_t size, int flags)
{
    struct iovec part = {(void *)(uintptr_t)data, size};
    return sim_sendmsg(fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

static void give_fds(struct sim_segment *segment, struct msghdr *message)
{
    size_t space = message->msg_control == NULL ? 0 : message->msg_controllen;
    message->msg_controllen = 0;
    if (segment->fd_count == 0)
        return;
    if (space >= CMSG_SPACE(segment->fd_count * sizeof(int)) && !sim_is_short(SIM_SHORT_FILES)) {
        message->msg_controllen = CMSG_SPACE(segment->fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(segment->fd_count * sizeof(int));
        for (uint32_t i = 0; i < segment->fd_count; i++) {
            int fd = sim_fd_put(segment->fds[i]);
            memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
        }
    } else {
        for (uint32_t i = 0; i < segment->fd_count; i++)
            sim_file_release(segment->fds[i]);
        message->msg_flags |= MSG_CTRUNC;
    }
    segment->fd_count = 0;
}

void (*sim_in_receive)(struct sim_process *process, size_t parts);
ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct sim_file *file = sim_fd_file(fd);
    if (sim_in_receive != NULL)
        sim_in_receive(sim_process(), message->msg_iovlen);
    sim_preempt();
    if (file == NULL)
        return -1;
    if (file->kind != SIM_STREAM || file->is_reset) {
        errno = file->kind != SIM_STREAM ? ENOTCONN : ECONNRESET;
        return -1;
    }
    if (file->in.first == file->in.coming) {
        if (file->read_shut)
            return 0;
        errno = EAGAIN;
        return -1;
    }
    if (file->in.first->is_end)
        return 0;
    size_t room = 0, moved = 0, part = 0, part_at = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        room += message->msg_iov[i].iov_len;
    if (room > 1 && (flags & MSG_PEEK) == 0 && sim_once_in(SIM_NET, 64))
        room = 1 + sim_below(SIM_NET, (uint32_t)room);
    if ((flags & MSG_PEEK) == 0)
        give_fds(file->in.first, message);
    bool was_full = file->in.held >= SIM_FLOW_BYTES_MAX;
    for (struct sim_segment *segment = file->in.first; segment != file->in.coming && moved < room;) {
        if (segment->is_end || segment->fd_count > 0)
            break;
        size_t length = segment->length - segment->read;
        length = length < room - moved ? length : room - moved;
        for (size_t done = 0; done < length;) {
            const struct iovec *into = &message->msg_iov[part];
            size_t bite = into->iov_len - part_at < length - done ? into->iov_len - part_at : length - done;
            memcpy((uint8_t *)into->iov_base + part_at, segment->bytes + segment->read + done, bite);
            done += bite;
            part_at += bite;
            if (part_at == into->iov_len) {
                part++;
                part_at = 0;
            }
        }
        moved += length;
        struct sim_segment *next = segment->next;
        if ((flags & MSG_PEEK) == 0) {
            segment->read += length;
            file->in.held -= length;
            if (segment->read == segment->length) {
                file->in.first = next;
                if (next == NULL)
                    file->in.last = NULL;
                sim_segment_free(segment);
            }
        }
        segment = next;
    }
    if (was_full && file->in.held < SIM_FLOW_BYTES_MAX && file->peer != NULL)
        sim_file_changed(file->peer);
    return (ssize_t)moved;
}

ssize_t sim_recv(int fd, void *data, size_t size, int flags);
ssize_t sim_recv(int fd, void *data, size_t size, int flags)
{
    struct iovec part = {data, size};
    return sim_recvmsg(fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

static int poll_look(struct pollfd *fds, size_t count)
{
    int ready = 0;
    for (size_t i = 0; i < count; i++) {
        struct sim_file *file = fds[i].fd < 0 ? NULL : sim_fd_file(fds[i].fd);
        short found = 0;
        if (fds[i].fd >= 0 && file == NULL)
            found = POLLNVAL;
        if (file != NULL && (fds[i].events & POLLIN) != 0 && sim_file_readable(file))
            found |= POLLIN;
        if (file != NULL && (fds[i].events & POLLOUT) != 0 && sim_file_writable(file))
            found |= POLLOUT;
        if (file != NULL && file->is_reset)
            found |= POLLERR | POLLHUP;
        fds[i].revents = found;
        ready += found != 0;
    }
    return ready;
}

int sim_ppoll(struct pollfd *fds, unsigned long count, const struct timespec *limit, const void *signals);
int sim_ppoll(struct pollfd *fds, unsigned long count, const struct timespec *limit, const void *signals)
{
    (void)signals;
    struct sim_watch watches[16];
    struct sim_fiber *const self = sim_fiber;
    uint64_t now_ns = sim_monotonic_ns(sim_process()), until_ns = SIM_NEVER;
    if (limit != NULL)
        until_ns = now_ns + (uint64_t)limit->tv_sec * 1000000000u + (uint64_t)limit->tv_nsec;
    sim_preempt();
    int ready = poll_look(fds, count);
    if (ready > 0 || until_ns <= now_ns)
        return ready;
    for (size_t i = 0; i < count && i < 16; i++) {
        watches[i] = (struct sim_watch){.fiber = &self};
        sim_watch_add(sim_fd_file(fds[i].fd), &watches[i]);
    }
    struct sim_file *files[16];
    for (size_t i = 0; i < count && i < 16; i++)
        files[i] = sim_fd_file(fds[i].fd);
    do {
        if (!sim_wait(sim_world_ns(sim_process(), until_ns)) && sim_monotonic_ns(sim_process()) >= until_ns)
            break;
        ready = poll_look(fds, count);
    } while (ready == 0);
    for (size_t i = 0; i < count && i < 16; i++)
        sim_watch_remove(files[i], &watches[i]);
    return poll_look(fds, count);
}

int sim_poll(struct pollfd *fds, unsigned long count, int timeout_ms);
int sim_poll(struct pollfd *fds, unsigned long count, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000l};
    return sim_ppoll(fds, count, timeout_ms < 0 ? NULL : &limit, NULL);
}
