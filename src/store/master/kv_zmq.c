/* The PUB socket of KV events, and the ROUTER socket for those of the past. */
#include "store/master/kv_zmq.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"
#include "store/master/server.h"
#include "store/master/zmtp.h"
#include "store/segment/layout.h"

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
/* Of the past one is sent so much, and in so many calls, while others wait: as many messages as a turn makes at most,
 * so that who reads at once is not overtaken. */
#define FLUSH_BYTES (UINT64_C(2) << 20)
#define FLUSH_CALLS (PAGES_PER_TURN * (MC_KV_EVENTS_PAGE / MC_KV_BATCH_MAX + 1))
#define PLACE_BYTES (UINT64_C(64) << 10) /* of the ring, of which is known where a message begins */
#define PLACES (RING_BYTES / PLACE_BYTES)
#define OUT_MAX 256u    /* of what is no message: greeting, READY, PONG, the end of a replay */
#define HEAD_BYTES 21u  /* of a message, before its batch */
#define HEAD_NUMBER 4u  /* where its number is, */
#define HEAD_LENGTH 13u /* and how long the batch is */
#define PAGES_PER_TURN 4u
#define LOOK_MS 5                      /* for new events, while somebody wants them */
#define IDLE_MS 200                    /* else, for the end */
#define SHAKE_NS UINT64_C(10000000000) /* so long one may be there without a subscription */
#define TURN_EVENTS 64

struct subscriber {
    struct subscriber *next;
    int fd;
    bool is_greeted, is_ready, is_blocked, is_over;
    bool is_asker;     /* it has come for what was: it asks, and is sent from the ring until `goal` */
    bool is_asked;     /* it waits for the end of an answer */
    bool is_again;     /* meanwhile it has asked again, from message `again` on: what it asked last is answered next */
    bool is_delimited; /* the frame before the next one was the first of its message, and empty */
    bool is_inside;    /* of a message of several frames */
    unsigned wants;    /* how often it has subscribed to all topics */
    uint64_t at;       /* where it is in the ring */
    uint64_t until;    /* the end of the message that an asker is at */
    uint64_t goal;     /* the end of the last one that it is sent */
    uint64_t again;
    uint64_t since_ns; /* it has come, or has a subscription, or none any more */
    uint32_t share;    /* which it is in */
    size_t in_length, out_length, out_at;
    uint8_t in[MC_ZMTP_IN_MAX], out[OUT_MAX];
};

struct mc_kv_zmq {
    struct mc_kv_events *events;
    struct mc_kv_form form;
    int listener, replayer, epoll; /* replayer: where the past is asked for; -1: nowhere */
    pthread_t thread;
    atomic_bool is_stopping;
    struct subscriber *first;
    size_t count, wanting;
    uint16_t shares[SHARES]; /* subscribers of an address, or of several */
    uint8_t *ring;
    uint64_t places[PLACES]; /* where the first message begins that begins there, now or when it was written before */
    uint64_t begin, end;     /* of its whole messages, counted from the ring's beginning */
    uint64_t number;         /* of the last message */
    uint64_t epoch, last;    /* of the last event that was published */
    bool has_leapt;          /* the next message is the first after a leap */
    bool is_behind;          /* there are events that this turn had no time for */
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

static void say(struct subscriber *one, const void *bytes, size_t length)
{
    if (one->out_length + length > sizeof(one->out)) {
        one->is_over = true;
        return;
    }
    memcpy(one->out + one->out_length, bytes, length);
    one->out_length += length;
}

static void ring_read(const struct mc_kv_zmq *zmq, uint64_t at, uint8_t *to, size_t length)
{
    uint64_t from = at % RING_BYTES, room = RING_BYTES - from;
    size_t first = length < room ? length : (size_t)room;
    memcpy(to, zmq->ring + from, first);
    memcpy(to + first, zmq->ring, length - first);
}

static uint64_t message_number(const struct mc_kv_zmq *zmq, uint64_t at)
{
    uint64_t number;
    uint8_t bytes[sizeof(number)];
    ring_read(zmq, at + HEAD_NUMBER, bytes, sizeof(bytes));
    memcpy(&number, bytes, sizeof(number));
    return be64toh(number);
}

static uint64_t message_length(const struct mc_kv_zmq *zmq, uint64_t at)
{
    uint64_t length;
    uint8_t bytes[sizeof(length)];
    ring_read(zmq, at + HEAD_LENGTH, bytes, sizeof(bytes));
    memcpy(&length, bytes, sizeof(length));
    return HEAD_BYTES + be64toh(length);
}

/* Where what it is to be sent of the ring now ends. */
static uint64_t goal_of(const struct mc_kv_zmq *zmq, const struct subscriber *one)
{
    return one->is_asker ? one->until : one->wants > 0 ? zmq->end : one->at;
}

/* Of the places that are known the last one before that message, or where the ring begins. */
static uint64_t place_before(const struct mc_kv_zmq *zmq, uint64_t number)
{
    uint64_t found = zmq->begin;
    for (uint64_t i = zmq->begin / PLACE_BYTES; i * PLACE_BYTES < zmq->end; i++) {
        uint64_t at = zmq->places[i % PLACES];
        if (at / PLACE_BYTES != i || at < zmq->begin || at >= zmq->end)
            continue;
        if (message_number(zmq, at) > number)
            break;
        found = at;
    }
    return found;
}

static void answer(const struct mc_kv_zmq *zmq, struct subscriber *one, uint64_t number)
{
    uint64_t at = place_before(zmq, number);
    while (at < zmq->end && message_number(zmq, at) < number)
        at += message_length(zmq, at);
    one->at = one->until = at;
    one->goal = zmq->end;
    one->is_asked = true;
}

/* An asker that has been sent a message gets the next one, behind the empty frame that every answer begins with; and
 * behind the last one what says that it was the last. */
static void go_on(const struct mc_kv_zmq *zmq, struct subscriber *one)
{
    static const uint8_t delimiter[] = {MC_ZMTP_MORE, 0};
    static const uint8_t last[] = {MC_ZMTP_MORE, 0,    MC_ZMTP_MORE, 0,    MC_ZMTP_MORE, 8,    0xff, 0xff,
                                   0xff,         0xff, 0xff,         0xff, 0xff,         0xff, 0,    0};
    if (one->out_length > 0 || one->at < one->until)
        return;
    if (!one->is_asked && one->is_again) {
        one->is_again = false;
        answer(zmq, one, one->again);
    }
    if (!one->is_asked)
        return;
    if (one->at >= one->goal) {
        one->is_asked = false;
        say(one, last, sizeof(last));
    } else if (one->at < zmq->begin) {
        one->is_over = true; /* overwritten meanwhile: a part of the answer is none */
    } else {
        one->until = one->at + message_length(zmq, one->at);
        say(one, delimiter, sizeof(delimiter));
    }
}

/* Has what it is to be sent been written anew? */
static bool is_overtaken(const struct mc_kv_zmq *zmq, const struct subscriber *one)
{
    return one->at < goal_of(zmq, one) && zmq->end - one->at > RING_BYTES;
}

/* Sends what it takes; of the past only so much, as it has been there for long and what is new has not. What it has not
 * taken of the ring when that is written anew is lost to it. */
static void flush(const struct mc_kv_zmq *zmq, struct subscriber *one)
{
    one->is_over |= is_overtaken(zmq, one);
    uint64_t calls = 0, total = 0;
    while (!one->is_over && (!one->is_asker || (calls++ < FLUSH_CALLS && total < FLUSH_BYTES))) {
        go_on(zmq, one);
        uint64_t from = one->at % RING_BYTES, left = goal_of(zmq, one) - one->at;
        uint64_t first = left < RING_BYTES - from ? left : RING_BYTES - from;
        size_t own = one->out_length - one->out_at;
        if (one->is_over || own + left == 0)
            break;
        struct iovec parts[3] = {{one->out + one->out_at, own}, {zmq->ring + from, first}, {zmq->ring, left - first}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
        ssize_t sent = sendmsg(one->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            one->is_over = errno != EAGAIN;
            break;
        }
        total += (uint64_t)sent;
        own = (size_t)sent < own ? (size_t)sent : own;
        one->out_at += own;
        one->at += (uint64_t)sent - own;
        if (one->out_at == one->out_length)
            one->out_at = one->out_length = 0;
    }
    if (!one->is_over)
        block(zmq, one, one->out_length > 0 || one->at < goal_of(zmq, one) || one->is_asked || one->is_again);
}

static void ring_add(struct mc_kv_zmq *zmq, const void *bytes, size_t length)
{
    uint64_t from = zmq->end % RING_BYTES, room = RING_BYTES - from;
    size_t first = length < room ? length : (size_t)room;
    while (zmq->end + length - zmq->begin > RING_BYTES)
        zmq->begin += message_length(zmq, zmq->begin);
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

static void publish_new(struct mc_kv_zmq *zmq);

/* A frame of a question: an empty one, and the number of the first message that is wanted. What is none is passed over,
 * as engines do it. How many bytes it has; 0: it is something else, or not whole. */
static size_t take_question(struct mc_kv_zmq *zmq, struct subscriber *one)
{
    uint8_t flags = 0;
    struct mc_span body = {NULL, 0};
    size_t used = mc_zmtp_frame(one->in, one->in_length, &flags, &body);
    if (used == 0 || used == MC_ZMTP_NO_FRAME || (flags & MC_ZMTP_COMMAND) != 0)
        return 0;
    bool is_last = (flags & MC_ZMTP_MORE) == 0;
    if (is_last && one->is_delimited && body.length == sizeof(one->again)) {
        memcpy(&one->again, body.data, sizeof(one->again));
        one->again = be64toh(one->again);
        one->is_again = true;
        publish_new(zmq); /* what has been there for a moment is of the past */
    }
    one->is_delimited = !one->is_inside && !is_last && body.length == 0;
    one->is_inside = !is_last;
    return used;
}

/* One word at the beginning of what came; how many bytes it has, 0: it is not whole, or the last one. */
static size_t take_word(struct mc_kv_zmq *zmq, struct subscriber *one)
{
    static const uint8_t pub[] = "\4\31\5READY\13Socket-Type\0\0\0\3PUB";
    static const uint8_t router[] = "\4\34\5READY\13Socket-Type\0\0\0\6ROUTER";
    uint8_t pong[MC_ZMTP_PONG_MAX];
    enum mc_zmtp_word word;
    struct mc_span argument;
    size_t used = one->is_asker && one->is_ready ? take_question(zmq, one) : 0;
    if (used > 0)
        return used;
    used = mc_zmtp_take(one->in, one->in_length, one->is_greeted, &word, &argument);
    switch (word) {
    case MC_ZMTP_GREETED:
        one->is_greeted = true;
        say(one, one->is_asker ? router : pub, (one->is_asker ? sizeof(router) : sizeof(pub)) - 1);
        break;
    case MC_ZMTP_READY:
        one->is_ready = true;
        break;
    case MC_ZMTP_SUBSCRIBE:
    case MC_ZMTP_CANCEL:
        if (one->is_ready && !one->is_asker && argument.length == 0) /* the topic; ours is empty */
            subscribe(zmq, one, word == MC_ZMTP_SUBSCRIBE);
        break;
    case MC_ZMTP_PING:
        /* While messages are under way they say that we are there. */
        if (!one->is_asked && one->at == goal_of(zmq, one))
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

static void come(struct mc_kv_zmq *zmq, int listener)
{
    static const uint8_t greeting[MC_ZMTP_GREETING_BYTES] = {
        [0] = 0xff, [8] = 1, [9] = 0x7f, [10] = 3, [12] = 'N', [13] = 'U', [14] = 'L', [15] = 'L'};
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
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
    mc_socket_keep_alive(fd, 30, 10, 3); /* a host that vanished is found out after about a minute */
    one->fd = fd;
    one->since_ns = mc_clock_ns();
    one->share = share;
    one->is_asker = listener == zmq->replayer;
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
        bool is_idle = one->is_asker ? !one->is_ready : one->wants == 0;
        bool is_late = is_idle && now_ns - one->since_ns > SHAKE_NS;
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
    size_t unparsed = mc_kv_batch_write(&payload, &zmq->form, zmq->has_leapt, events, count);
    uint8_t head[HEAD_BYTES] = {MC_ZMTP_MORE, 0, MC_ZMTP_MORE, sizeof(number)};
    memcpy(head + HEAD_NUMBER, &number, sizeof(number));
    uint64_t length = htobe64(payload.length);
    head[HEAD_LENGTH - 1] = MC_ZMTP_LONG;
    memcpy(head + HEAD_LENGTH, &length, sizeof(length));
    zmq->has_leapt = payload.failed || payload.length >= RING_BYTES / 4;
    if (!zmq->has_leapt) {
        if (zmq->places[zmq->end / PLACE_BYTES % PLACES] / PLACE_BYTES != zmq->end / PLACE_BYTES)
            zmq->places[zmq->end / PLACE_BYTES % PLACES] = zmq->end;
        ring_add(zmq, head, sizeof(head));
        ring_add(zmq, payload.data, payload.length);
    }
    mc_kv_events_published(zmq->events, unparsed);
    mc_buffer_free(&payload);
}

static void leap(struct mc_kv_zmq *zmq, uint64_t epoch, uint64_t last)
{
    /* Numbers of a later master are above those of the ones before it, as generations are. */
    zmq->number = zmq->epoch == epoch ? zmq->number + 1 : epoch << MC_EPOCH_SHIFT;
    zmq->epoch = epoch;
    zmq->last = last;
    zmq->has_leapt = true;
}

/* What has come since, or only where that ends, where nobody wants it and nobody can ask for it later. */
static void publish_new(struct mc_kv_zmq *zmq)
{
    struct mc_kv_mark mark;
    bool is_wanted = zmq->wanting > 0 || zmq->replayer >= 0;
    mc_kv_events_mark(zmq->events, &mark);
    zmq->is_behind = false;
    if (mark.epoch == 0 || (mark.epoch == zmq->epoch && mark.last == zmq->last))
        return;
    if (!is_wanted || mark.epoch != zmq->epoch) /* some events get no message, or what was told is not so any more */
        leap(zmq, mark.epoch, is_wanted ? mark.first - 1 : mark.last);
    for (unsigned pages = 0; is_wanted && pages < PAGES_PER_TURN; pages++) {
        mc_kv_events_read(zmq->events, zmq->epoch, zmq->last, MC_KV_EVENTS_PAGE, &zmq->page);
        if (zmq->page.is_gap) {
            leap(zmq, zmq->page.mark.epoch, zmq->page.mark.first - 1);
            continue;
        }
        for (size_t i = 0; i < zmq->page.count; i += MC_KV_BATCH_MAX)
            publish(zmq, &zmq->page.events[i],
                    zmq->page.count - i < MC_KV_BATCH_MAX ? zmq->page.count - i : MC_KV_BATCH_MAX);
        zmq->last += zmq->page.count;
    }
    zmq->is_behind = is_wanted && zmq->last < zmq->page.mark.last;
    for (struct subscriber *one = zmq->first; one != NULL; one = one->next)
        if (one->is_asker ? is_overtaken(zmq, one) : !one->is_blocked || zmq->end - one->at > RING_BYTES)
            flush(zmq, one); /* an asker has his part of a turn when he asks, or takes more */
}

static void *serve(void *argument)
{
    struct mc_kv_zmq *zmq = argument;
    struct epoll_event events[TURN_EVENTS];
    while (!atomic_load(&zmq->is_stopping)) {
        bool is_soon = zmq->wanting > 0 || zmq->is_behind;
        int count = epoll_wait(zmq->epoll, events, TURN_EVENTS, is_soon ? LOOK_MS : IDLE_MS);
        for (int i = 0; i < count; i++) {
            struct subscriber *one = events[i].data.ptr;
            if (events[i].data.ptr == &zmq->listener || events[i].data.ptr == &zmq->replayer) {
                come(zmq, *(int *)events[i].data.ptr);
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

/* *door: a listener that is watched, or -1. */
static int open_door(struct mc_kv_zmq *zmq, int *door, const char *flag, const char *endpoint, const char *what,
                     char *error, size_t error_size)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = door};
    char host[256];
    unsigned port;
    char more;
    if (sscanf(endpoint, "tcp://%255[^:/]:%5u%c", host, &port, &more) != 2 || port > 65535) {
        snprintf(error, error_size, "%s is not tcp://HOST:PORT: %.200s", flag, endpoint);
        return MC_ERR_INVALID_PARAMS;
    }
    uint16_t number = (uint16_t)port;
    *door = mc_server_listen(strcmp(host, "*") == 0 ? "0.0.0.0" : host, &number, flag, error, error_size);
    if (*door < 0)
        return *door;
    if (listen(*door, 1024) != 0 || epoll_ctl(zmq->epoll, EPOLL_CTL_ADD, *door, &event) != 0) {
        snprintf(error, error_size, "%s: %s", flag, strerror(errno));
        mc_fd_close(*door);
        *door = -1;
        return MC_ERR_NO_MEMORY;
    }
    mc_log(INFO, "%s tcp://%s:%u", what, host, (unsigned)number);
    mc_exposed_say(MC_EXPOSED_KV_EVENTS, *door);
    return 0;
}

/* Without the second one they are published all the same: the past is for who was away. */
static int open_doors(struct mc_kv_zmq *zmq, const char *endpoint, const char *replay, char *error, size_t error_size)
{
    int rc = open_door(zmq, &zmq->listener, "kv_events_bind_endpoint", endpoint, "KV events are published on", error,
                       error_size);
    if (rc == 0 && replay[0] != 0 &&
        open_door(zmq, &zmq->replayer, "kv_events_replay_endpoint", replay, "KV events of the past are told on", error,
                  error_size) < 0)
        mc_log(WARNING, "KV events of the past are not told: %s", error);
    return rc;
}

static void forget(struct mc_kv_zmq *zmq)
{
    mc_fd_close(zmq->epoll);
    mc_fd_close(zmq->listener);
    mc_fd_close(zmq->replayer);
    free(zmq->ring);
    free(zmq);
}

int mc_kv_zmq_start(struct mc_kv_events *events, const struct mc_kv_form *form, const char *endpoint,
                    const char *replay, struct mc_kv_zmq **out, char *error, size_t error_size)
{
    struct mc_kv_zmq *zmq = calloc(1, sizeof(*zmq));
    if (zmq == NULL)
        return MC_ERR_NO_MEMORY;
    zmq->listener = zmq->replayer = zmq->epoll = -1;
    zmq->events = events;
    zmq->form = *form;
    snprintf(zmq->backend_id, sizeof(zmq->backend_id), "%s", form->backend_id);
    zmq->form.backend_id = zmq->backend_id;
    zmq->ring = malloc(RING_BYTES);
    zmq->epoll = epoll_create1(EPOLL_CLOEXEC);
    int rc =
        zmq->ring == NULL || zmq->epoll < 0 ? MC_ERR_NO_MEMORY : open_doors(zmq, endpoint, replay, error, error_size);
    if (rc == 0 && mc_thread_start(&zmq->thread, "mc-kv-zmq", serve, zmq) != 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc < 0)
        forget(zmq);
    else
        *out = zmq;
    return rc;
}

void mc_kv_zmq_stop(struct mc_kv_zmq *zmq)
{
    if (zmq == NULL)
        return;
    atomic_store(&zmq->is_stopping, true);
    pthread_join(zmq->thread, NULL);
    let_go(zmq, true);
    forget(zmq);
}
