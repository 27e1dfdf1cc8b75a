/* The PUB socket of KV events. */
#include "store/master/kv_zmq.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"
#include "store/master/server.h"
#include "store/master/zmtp.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define RING_BYTES (UINT64_C(16) << 20) /* of messages, for all subscribers */
#define SUBSCRIBERS_MAX 4096u
#define SHARES 1024u                        /* in which they are counted by their address */
#define SHARE_MAX (SUBSCRIBERS_MAX / 4 * 3) /* of one */
#define OUT_MAX 256u                        /* of what is no message: greeting, READY, PONG */
#define LOOK_MS 5                           /* for new events, while somebody wants them */
#define IDLE_MS 200                         /* else, for the end */
#define SHAKE_NS UINT64_C(10000000000)      /* so long one may be there without a subscription */
#define TURN_EVENTS 64

struct subscriber {
    struct subscriber *next;
    int fd;
    bool is_greeted, is_ready, is_blocked, is_over;
    unsigned wants;    /* how often it has subscribed to all topics */
    uint64_t at;       /* where it is in the ring */
    uint64_t since_ns; /* it has come, or has a subscription, or none any more */
    uint32_t share;    /* which it is in */
    size_t in_length, out_length, out_at;
    uint8_t in[MC_ZMTP_IN_MAX], out[OUT_MAX];
};

struct mc_kv_zmq {
    struct mc_kv_events *events;
    struct mc_kv_form form;
    int listener, epoll;
    pthread_t thread;
    atomic_bool is_stopping;
    struct subscriber *first;
    size_t count, wanting;
    uint16_t shares[SHARES]; /* subscribers of an address, or of several */
    uint8_t *ring;
    uint64_t end;         /* of its bytes, counted from its beginning */
    uint64_t number;      /* of the last message */
    uint64_t epoch, last; /* of the last event that was published */
    struct mc_kv_page page;
    char backend_id[256];
};

/* ---- what goes out ---- */

static void watch(const struct mc_kv_zmq *zmq, struct subscriber *one, int how)
{
    struct epoll_event event = {.events = one->is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = one};
    if (epoll_ctl(zmq->epoll, how, one->fd, &event) < 0)
        one->is_over = true;
}

static void block(const struct mc_kv_zmq *zmq, struct subscriber *one, bool is_blocked)
{
    if (one->is_blocked == is_blocked)
        return;
    one->is_blocked = is_blocked;
    watch(zmq, one, EPOLL_CTL_MOD);
}

/* Sends what it takes. What it has not taken of the ring when that is written anew is lost to it. */
static void flush(const struct mc_kv_zmq *zmq, struct subscriber *one)
{
    if (one->wants > 0 && zmq->end - one->at > RING_BYTES)
        one->is_over = true;
    while (!one->is_over && (one->out_at < one->out_length || (one->wants > 0 && one->at < zmq->end))) {
        uint64_t from = one->at % RING_BYTES, left = one->wants > 0 ? zmq->end - one->at : 0;
        uint64_t first = left < RING_BYTES - from ? left : RING_BYTES - from;
        struct iovec parts[2] = {{zmq->ring + from, first}, {zmq->ring, left - first}};
        bool is_own = one->out_at < one->out_length;
        if (is_own)
            parts[0] = (struct iovec){one->out + one->out_at, one->out_length - one->out_at};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = is_own ? 1 : 2};
        ssize_t sent = sendmsg(one->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            one->is_over = errno != EAGAIN;
            break;
        }
        if (is_own)
            one->out_at += (size_t)sent;
        else
            one->at += (uint64_t)sent;
    }
    if (one->out_at == one->out_length)
        one->out_at = one->out_length = 0;
    if (!one->is_over)
        block(zmq, one, one->out_length > 0 || (one->wants > 0 && one->at < zmq->end));
}

static void say(struct subscriber *one, const void *bytes, size_t length)
{
    if (one->out_length + length > sizeof(one->out)) {
        one->is_over = true;
        return;
    }
    memcpy(one->out + one->out_length, bytes, length);
    one->out_length += length;
}

static void ring_add(struct mc_kv_zmq *zmq, const void *bytes, size_t length)
{
    uint64_t from = zmq->end % RING_BYTES, room = RING_BYTES - from;
    size_t first = length < room ? length : (size_t)room;
    memcpy(zmq->ring + from, bytes, first);
    memcpy(zmq->ring, (const uint8_t *)bytes + first, length - first);
    zmq->end += length;
}

/* ---- what subscribers say ---- */

static void subscribe(struct mc_kv_zmq *zmq, struct subscriber *one, bool is_wanted)
{
    if (is_wanted && one->wants++ == 0) {
        one->at = zmq->end;
        one->since_ns = mc_clock_ns();
        zmq->wanting++;
    } else if (!is_wanted && one->wants > 0 && one->at == zmq->end && --one->wants == 0) {
        one->since_ns = mc_clock_ns();
        zmq->wanting--;
    }
}

/* One word at the beginning of what came; how many bytes it has, 0: it is not whole, or the last one. */
static size_t take_word(struct mc_kv_zmq *zmq, struct subscriber *one)
{
    static const uint8_t ready[] = "\4\31\5READY\13Socket-Type\0\0\0\3PUB";
    uint8_t pong[MC_ZMTP_PONG_MAX];
    enum mc_zmtp_word word;
    struct mc_span argument;
    size_t used = mc_zmtp_take(one->in, one->in_length, one->is_greeted, &word, &argument);
    switch (word) {
    case MC_ZMTP_GREETED:
        one->is_greeted = true;
        say(one, ready, sizeof(ready) - 1);
        break;
    case MC_ZMTP_READY:
        one->is_ready = true;
        break;
    case MC_ZMTP_SUBSCRIBE:
    case MC_ZMTP_CANCEL:
        if (one->is_ready && argument.length == 0) /* the topic; ours is empty */
            subscribe(zmq, one, word == MC_ZMTP_SUBSCRIBE);
        break;
    case MC_ZMTP_PING:
        /* While messages are under way they say that we are there. */
        if (one->wants == 0 || one->at == zmq->end)
            say(one, pong, mc_zmtp_pong(pong, argument));
        break;
    case MC_ZMTP_WRONG:
    case MC_ZMTP_ERROR:
        one->is_over = true;
        break;
    case MC_ZMTP_OTHER:
        break;
    }
    return used;
}

static void receive(struct mc_kv_zmq *zmq, struct subscriber *one)
{
    ssize_t got = recv(one->fd, one->in + one->in_length, sizeof(one->in) - one->in_length, MSG_DONTWAIT);
    if (got <= 0) {
        one->is_over |= got == 0 || (errno != EAGAIN && errno != EINTR);
        return;
    }
    one->in_length += (size_t)got;
    for (size_t used = 1; used > 0 && !one->is_over;) {
        used = take_word(zmq, one);
        one->in_length -= used;
        memmove(one->in, one->in + used, one->in_length);
    }
}

/* ---- subscribers ---- */

static uint32_t greediest(const struct mc_kv_zmq *zmq)
{
    uint32_t most = 0;
    for (uint32_t i = 1; i < SHARES; i++)
        most = zmq->shares[i] > zmq->shares[most] ? i : most;
    return most;
}

/* Who has no subscription goes before who has one, and of these who has had it for longest stays. */
static bool goes_before(const struct subscriber *one, const struct subscriber *other)
{
    if ((one->wants > 0) != (other->wants > 0))
        return one->wants == 0;
    return one->wants > 0 ? one->since_ns > other->since_ns : one->since_ns < other->since_ns;
}

/* Is there room for one more of that share? When all places are taken it has that of one of the greediest address, if
 * that has more than both would have then. It goes at the end of the turn, as an event of this turn may still name it;
 * so there is one too many until then. */
static bool make_room(struct mc_kv_zmq *zmq, uint32_t share)
{
    uint32_t most = greediest(zmq);
    struct subscriber *victim = NULL;
    if (zmq->count < SUBSCRIBERS_MAX)
        return zmq->shares[share] < SHARE_MAX;
    if (zmq->shares[most] <= zmq->shares[share] + 1u)
        return false;
    for (struct subscriber *one = zmq->first; one != NULL; one = one->next) {
        if (one->is_over)
            return true; /* its place is free in a moment, whoever's it is */
        if (one->share == most && (victim == NULL || goes_before(one, victim)))
            victim = one;
    }
    mc_assert(victim != NULL);
    victim->is_over = true;
    return true;
}

static void come(struct mc_kv_zmq *zmq)
{
    static const uint8_t greeting[MC_ZMTP_GREETING_BYTES] = {
        [0] = 0xff, [8] = 1, [9] = 0x7f, [10] = 3, [12] = 'N', [13] = 'U', [14] = 'L', [15] = 'L'};
    int fd = accept4(zmq->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) /* who waits there would wake this thread again at once */
        (void)poll(NULL, 0, LOOK_MS);
    if (fd < 0)
        return;
    uint32_t share = (uint32_t)(mc_socket_peer_key(fd) % SHARES);
    struct subscriber *one = make_room(zmq, share) ? calloc(1, sizeof(*one)) : NULL;
    if (one == NULL) {
        mc_fd_close(fd);
        return;
    }
    one->fd = fd;
    one->since_ns = mc_clock_ns();
    one->share = share;
    zmq->shares[share]++;
    one->next = zmq->first;
    zmq->first = one;
    zmq->count++;
    watch(zmq, one, EPOLL_CTL_ADD);
    say(one, greeting, sizeof(greeting));
    flush(zmq, one);
}

/* Those that are over, or have not said in time that they speak our protocol and what they want to hear: their
 * descriptors are the master's. */
static void let_go(struct mc_kv_zmq *zmq, bool all)
{
    uint64_t now_ns = mc_clock_ns();
    for (struct subscriber **link = &zmq->first; *link != NULL;) {
        struct subscriber *one = *link;
        bool is_late = one->wants == 0 && now_ns - one->since_ns > SHAKE_NS;
        if (!one->is_over && !is_late && !all) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        zmq->count--;
        zmq->shares[one->share]--;
        zmq->wanting -= one->wants > 0;
        mc_fd_close(one->fd);
        free(one);
    }
}

/* ---- messages ---- */

static void publish(struct mc_kv_zmq *zmq, const struct mc_kv_event *events, size_t count)
{
    struct mc_buffer payload = {.may_fail = true};
    uint64_t number = htobe64(++zmq->number);
    size_t unparsed = mc_kv_batch_write(&payload, &zmq->form, events, count);
    uint8_t head[21] = {MC_ZMTP_MORE, 0, MC_ZMTP_MORE, 8};
    memcpy(head + 4, &number, 8);
    uint64_t length = htobe64(payload.length);
    head[12] = MC_ZMTP_LONG;
    memcpy(head + 13, &length, 8);
    if (!payload.failed && payload.length < RING_BYTES / 4) { /* else the number leaps */
        ring_add(zmq, head, sizeof(head));
        ring_add(zmq, payload.data, payload.length);
    }
    mc_kv_events_published(zmq->events, unparsed);
    mc_buffer_free(&payload);
}

/* What has come since, or only where that ends, where nobody wants it. */
static void publish_new(struct mc_kv_zmq *zmq)
{
    struct mc_kv_mark mark;
    mc_kv_events_mark(zmq->events, &mark);
    if (mark.epoch == 0 || (mark.epoch == zmq->epoch && mark.last == zmq->last))
        return;
    if (zmq->wanting == 0 || mark.epoch != zmq->epoch) {
        /* Some events get no message, or what an index has of the master before is not so: the number leaps. */
        zmq->number++;
        zmq->last = zmq->wanting == 0 ? mark.last : mark.first - 1;
        zmq->epoch = mark.epoch;
    }
    for (unsigned pages = 0; zmq->wanting > 0 && pages < 4; pages++) {
        mc_kv_events_read(zmq->events, zmq->epoch, zmq->last, MC_KV_EVENTS_PAGE, &zmq->page);
        if (zmq->page.is_gap) {
            zmq->number++;
            zmq->last = zmq->page.mark.first - 1;
            zmq->epoch = zmq->page.mark.epoch;
            continue;
        }
        for (size_t i = 0; i < zmq->page.count; i += MC_KV_BATCH_MAX)
            publish(zmq, &zmq->page.events[i],
                    zmq->page.count - i < MC_KV_BATCH_MAX ? zmq->page.count - i : MC_KV_BATCH_MAX);
        zmq->last += zmq->page.count;
    }
    for (struct subscriber *one = zmq->first; one != NULL; one = one->next)
        if (!one->is_blocked || zmq->end - one->at > RING_BYTES)
            flush(zmq, one);
}

static void *serve(void *argument)
{
    struct mc_kv_zmq *zmq = argument;
    struct epoll_event events[TURN_EVENTS];
    while (!atomic_load(&zmq->is_stopping)) {
        int count = epoll_wait(zmq->epoll, events, TURN_EVENTS, zmq->wanting > 0 ? LOOK_MS : IDLE_MS);
        for (int i = 0; i < count; i++) {
            struct subscriber *one = events[i].data.ptr;
            if (one == NULL) {
                come(zmq);
                continue;
            }
            if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0)
                receive(zmq, one);
            flush(zmq, one);
        }
        publish_new(zmq);
        let_go(zmq, false);
    }
    return NULL;
}

/* ---- life ---- */

static int listen_at(const char *endpoint, char *error, size_t error_size)
{
    char host[256];
    unsigned port;
    char more;
    if (sscanf(endpoint, "tcp://%255[^:/]:%5u%c", host, &port, &more) != 2 || port > 65535) {
        snprintf(error, error_size, "kv_events_bind_endpoint is not tcp://HOST:PORT: %.200s", endpoint);
        return MC_ERR_INVALID_PARAMS;
    }
    uint16_t number = (uint16_t)port;
    int fd = mc_server_listen(strcmp(host, "*") == 0 ? "0.0.0.0" : host, &number, "kv_events_bind_endpoint", error,
                              error_size);
    if (fd < 0)
        return fd;
    mc_log(INFO, "KV events are published on tcp://%s:%u", host, (unsigned)number);
    mc_exposed_say(MC_EXPOSED_KV_EVENTS, fd);
    return fd;
}

int mc_kv_zmq_start(struct mc_kv_events *events, const struct mc_kv_form *form, const char *endpoint,
                    struct mc_kv_zmq **out, char *error, size_t error_size)
{
    struct mc_kv_zmq *zmq = calloc(1, sizeof(*zmq));
    if (zmq == NULL)
        return MC_ERR_NO_MEMORY;
    *out = zmq;
    zmq->listener = zmq->epoll = -1;
    zmq->events = events;
    zmq->form = *form;
    snprintf(zmq->backend_id, sizeof(zmq->backend_id), "%s", form->backend_id);
    zmq->form.backend_id = zmq->backend_id;
    int rc = zmq->listener = listen_at(endpoint, error, error_size);
    if (rc >= 0) {
        struct epoll_event event = {.events = EPOLLIN};
        zmq->epoll = epoll_create1(EPOLL_CLOEXEC);
        zmq->ring = malloc(RING_BYTES);
        bool is_made = zmq->ring != NULL && zmq->epoll >= 0 && listen(zmq->listener, 1024) == 0 &&
                       epoll_ctl(zmq->epoll, EPOLL_CTL_ADD, zmq->listener, &event) == 0 &&
                       mc_thread_start(&zmq->thread, "mc-kv-zmq", serve, zmq) == 0;
        rc = is_made ? 0 : MC_ERR_NO_MEMORY;
    }
    if (rc == 0)
        return 0;
    *out = NULL;
    mc_fd_close(zmq->epoll);
    mc_fd_close(zmq->listener);
    free(zmq->ring);
    free(zmq);
    return rc;
}

void mc_kv_zmq_stop(struct mc_kv_zmq *zmq)
{
    if (zmq == NULL)
        return;
    atomic_store(&zmq->is_stopping, true);
    pthread_join(zmq->thread, NULL);
    let_go(zmq, true);
    mc_fd_close(zmq->epoll);
    mc_fd_close(zmq->listener);
    free(zmq->ring);
    free(zmq);
}
