/* A filter of libevent's, between a connection's user and its socket. Records are received by the socket's bufferevent,
 * and sent here: so bytes leave the user's buffer only when the socket has taken them. */
#include "env/channel.h"

#include "base/error.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTS_MAX 8 /* of what is to be sent, at once */

struct mc_channel {
    struct bufferevent *user, *socket;
    struct event *writable; /* NULL: it has not been waited for yet */
    struct mc_tls *tls;     /* NULL: nothing has come yet */
    struct timeval stall;   /* 0: none */
    size_t place;           /* in `channels`, and one; 0: none */
    bool is_blocked;        /* the socket takes nothing more just now */
    bool is_over;           /* it has failed: nothing is read or sent any more */
    bool is_finished;       /* the other end has said that nothing more comes; what is written still goes */
    /* Of one that calls. */
    bool is_call, is_shaken; /* shaken: the handshake is done, and the user was told so */
    bool has_ended;          /* nothing more comes of the socket */
    struct mc_tls_settings settings;
    char address[MC_ADDRESS_MAX];
};

/* By descriptor, which libevent can be asked for. */
static struct mc_channel **channels;
static size_t channels_length;

static bool channel_enter(struct mc_channel *channel)
{
    size_t at = (size_t)bufferevent_getfd(channel->socket), wanted = at + 64;
    if (at >= channels_length) {
        struct mc_channel **grown = realloc(channels, wanted * sizeof(struct mc_channel *));
        if (grown == NULL)
            return false;
        memset(grown + channels_length, 0, (wanted - channels_length) * sizeof(struct mc_channel *));
        channels = grown;
        channels_length = wanted;
    }
    channels[at] = channel;
    channel->place = at + 1;
    return true;
}

static struct mc_channel *channel_of(struct bufferevent *user)
{
    size_t at = (size_t)bufferevent_getfd(user);
    struct mc_channel *channel = at < channels_length ? channels[at] : NULL;
    return channel != NULL && channel->user == user ? channel : NULL;
}

static void on_freed(void *context)
{
    struct mc_channel *channel = context;
    if (channel->place != 0)
        channels[channel->place - 1] = NULL;
    if (channel->writable != NULL)
        event_free(channel->writable);
    if (channel->tls != NULL)
        mc_tls_drop(channel->tls); /* a broken answer must not look like a whole one */
    free(channel);
}

/* ---- between TLS and the socket ---- */

static ssize_t take_record(void *context, void *data, size_t size)
{
    struct mc_channel *channel = context;
    int got = evbuffer_remove(bufferevent_get_input(channel->socket), data, size);
    errno = EAGAIN;
    return got > 0 ? got : channel->has_ended ? 0 : -1;
}

static ssize_t give_record(void *context, const void *data, size_t size)
{
    struct mc_channel *channel = context;
    ssize_t gone = send(bufferevent_getfd(channel->socket), data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    channel->is_blocked |= gone < 0 && errno == EAGAIN;
    return gone;
}

/* The user is told, once, and never as of an end in order: behind one it waits for what is still to be sent. */
static void give_up(struct mc_channel *channel, short what)
{
    if (!channel->is_over)
        bufferevent_trigger_event(channel->user, what, BEV_TRIG_DEFER_CALLBACKS);
    channel->is_over = true;
}

static void tell_failure(struct mc_channel *channel, short direction)
{
    if (channel->tls != NULL && !channel->is_over && !channel->is_call && mc_tls_problem(channel->tls)[0] != 0)
        mc_log_limited(WARNING, "%s", mc_tls_problem(channel->tls));
    give_up(channel, direction | BEV_EVENT_ERROR);
}

static void finish(struct mc_channel *channel)
{
    if (!channel->is_finished && !channel->is_over)
        bufferevent_trigger_event(channel->user, BEV_EVENT_READING | BEV_EVENT_EOF, BEV_TRIG_DEFER_CALLBACKS);
    channel->is_finished = true;
}

static bool begin_tls(struct mc_channel *channel)
{
    const struct mc_tls_settings settings = mc_secure_serves_http();
    const struct mc_tls_carrier carrier = {channel, take_record, give_record};
    char peer[MC_ADDRESS_MAX], error[MC_TLS_PROBLEM_MAX] = "no memory for TLS";
    mc_socket_peer_text(bufferevent_getfd(channel->socket), peer);
    if (channel_enter(channel) &&
        mc_tls_begin_over(&settings, peer, &carrier, &channel->tls, error, sizeof(error)) == 0)
        return true;
    mc_log_limited(ERROR, "%s", error);
    return false;
}

/* ---- what libevent calls ---- */

static void send_more(struct mc_channel *channel)
{
    (void)bufferevent_flush(channel->user, EV_WRITE, BEV_FLUSH);
}

/* Goes on with the handshake; who calls is told when it is done. False: it has failed. */
static bool go_on(struct mc_channel *channel)
{
    int rc = channel->is_shaken ? 1 : mc_tls_shake(channel->tls, 0);
    if (rc > 0 && !channel->is_shaken && channel->is_call)
        bufferevent_trigger_event(channel->user, BEV_EVENT_CONNECTED, BEV_TRIG_DEFER_CALLBACKS);
    channel->is_shaken |= rc > 0;
    return rc >= 0;
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct mc_channel *channel = context;
    (void)fd;
    if ((what & EV_TIMEOUT) != 0) {
        give_up(channel, BEV_EVENT_TIMEOUT | BEV_EVENT_WRITING);
        return;
    }
    if (!channel->is_over && channel->tls != NULL && !go_on(channel))
        tell_failure(channel, BEV_EVENT_WRITING);
    else
        send_more(channel);
}

static bool has_event(struct mc_channel *channel)
{
    if (channel->writable == NULL)
        channel->writable = event_new(bufferevent_get_base(channel->user), bufferevent_getfd(channel->socket), EV_WRITE,
                                      on_writable, channel);
    return channel->writable != NULL;
}

/* libevent's filters do not look at what was written before writing was enabled, as evhttp does it. */
static void on_written(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *context)
{
    struct mc_channel *channel = context;
    (void)buffer;
    if (info->n_added == 0 || (bufferevent_get_enabled(channel->user) & EV_WRITE) != 0)
        return;
    if (has_event(channel))
        event_active(channel->writable, EV_WRITE, 0);
    else
        give_up(channel, BEV_EVENT_WRITING | BEV_EVENT_ERROR);
}

/* After each look at TLS: the socket is waited for if it has taken less than it was given. */
static void wait_for_room(struct mc_channel *channel)
{
    bool is_timed = channel->stall.tv_sec != 0 || channel->stall.tv_usec != 0;
    if (!channel->is_blocked || channel->is_over)
        return;
    channel->is_blocked = false;
    if (!has_event(channel) || event_add(channel->writable, is_timed ? &channel->stall : NULL) != 0)
        give_up(channel, BEV_EVENT_WRITING | BEV_EVENT_ERROR);
}

/* All that is here: a record of which a part was left would wait until something else comes. */
static int64_t read_all(struct mc_channel *channel, struct evbuffer *to)
{
    char plain[16384];
    int64_t got, total = 0;
    do {
        got = mc_tls_read(channel->tls, plain, sizeof(plain));
        if (got > 0 && evbuffer_add(to, plain, (size_t)got) != 0)
            return -1;
        total += got > 0 ? got : 0;
    } while (got == (int64_t)sizeof(plain));
    return total > 0 ? total : got;
}

static enum bufferevent_filter_result decrypt(struct evbuffer *from, struct evbuffer *to, ev_ssize_t limit,
                                              enum bufferevent_flush_mode mode, void *context)
{
    struct mc_channel *channel = context;
    (void)limit, (void)mode;
    if (!channel->is_over && channel->tls == NULL && (channel->is_call || !begin_tls(channel)))
        tell_failure(channel, BEV_EVENT_READING);
    bool is_good = !channel->is_over && (!channel->is_call || go_on(channel));
    int64_t got = is_good ? read_all(channel, to) : -1;
    bool has_finished = is_good && mc_tls_has_finished(channel->tls);
    if (got < 0 && !has_finished) {
        tell_failure(channel, BEV_EVENT_READING);
        (void)evbuffer_drain(from, evbuffer_get_length(from));
        return BEV_ERROR;
    }
    if (evbuffer_get_length(bufferevent_get_output(channel->user)) > 0) /* it may have waited for the handshake */
        send_more(channel);
    wait_for_room(channel);
    if (has_finished) {
        (void)evbuffer_drain(from, evbuffer_get_length(from)); /* whatever comes behind it */
        finish(channel);
    }
    return got > 0 ? BEV_OK : BEV_NEED_MORE;
}

static enum bufferevent_filter_result encrypt(struct evbuffer *from, struct evbuffer *to, ev_ssize_t limit,
                                              enum bufferevent_flush_mode mode, void *context)
{
    struct mc_channel *channel = context;
    struct evbuffer_iovec found[PARTS_MAX];
    struct iovec parts[PARTS_MAX];
    (void)to, (void)limit, (void)mode;
    if (channel->is_over || channel->tls == NULL || evbuffer_get_length(from) == 0)
        return BEV_NEED_MORE;
    if (channel->is_call && !channel->is_shaken) /* not before who answers has proved who it is */
        return BEV_NEED_MORE;
    int count = evbuffer_peek(from, -1, NULL, found, PARTS_MAX);
    count = count < PARTS_MAX ? count : PARTS_MAX;
    for (int i = 0; i < count; i++)
        parts[i] = (struct iovec){found[i].iov_base, found[i].iov_len};
    int64_t gone = mc_tls_write(channel->tls, parts, (size_t)count);
    if (gone < 0 && channel->is_call && mc_tls_error(channel->tls) != EPROTO)
        return BEV_NEED_MORE; /* the socket has ended: why may lie in what came before that */
    if (gone < 0)
        tell_failure(channel, BEV_EVENT_WRITING);
    else
        (void)evbuffer_drain(from, (size_t)gone);
    wait_for_room(channel);
    return gone > 0 ? BEV_OK : BEV_NEED_MORE;
}

/* ---- for users ---- */

struct bufferevent *mc_channel_accept(struct event_base *base, int fd, int options)
{
    if (!mc_secure_is_served())
        return bufferevent_socket_new(base, fd, options);
    struct mc_channel *channel = calloc(1, sizeof(*channel));
    struct bufferevent *socket = channel == NULL ? NULL : bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (socket != NULL) {
        channel->socket = socket;
        channel->user =
            bufferevent_filter_new(socket, decrypt, encrypt, options | BEV_OPT_CLOSE_ON_FREE, on_freed, channel);
    }
    struct bufferevent *user = channel == NULL ? NULL : channel->user;
    if (user != NULL && (fd < 0 || channel_enter(channel)) &&
        evbuffer_add_cb(bufferevent_get_output(user), on_written, channel) != NULL)
        return user;
    if (socket != NULL)
        (void)bufferevent_setfd(socket, -1); /* it stays the caller's */
    if (user == NULL) {
        if (socket != NULL)
            bufferevent_free(socket);
        free(channel);
    } else {
        bufferevent_free(user);
    }
    return NULL;
}

struct bufferevent *mc_channel_call(struct event_base *base, const struct mc_tls_settings *settings,
                                    const char *address, int options, struct mc_channel **out)
{
    struct mc_channel *channel = calloc(1, sizeof(*channel));
    struct bufferevent *socket = channel == NULL ? NULL : bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    struct bufferevent *user = NULL;
    if (socket != NULL) {
        *channel = (struct mc_channel){.socket = socket, .is_call = true, .settings = *settings};
        (void)snprintf(channel->address, sizeof(channel->address), "%s", address);
        user = bufferevent_filter_new(socket, decrypt, encrypt, options | BEV_OPT_CLOSE_ON_FREE, on_freed, channel);
    }
    if (user == NULL) {
        if (socket != NULL)
            bufferevent_free(socket);
        free(channel);
        return NULL;
    }
    channel->user = user;
    *out = channel;
    return user;
}

int mc_channel_begin(struct mc_channel *channel, char *error, size_t error_size)
{
    const struct mc_tls_carrier carrier = {channel, take_record, give_record};
    int rc = mc_tls_begin_over(&channel->settings, channel->address, &carrier, &channel->tls, error, error_size);
    if (rc < 0) {
        if (rc == MC_ERR_NO_MEMORY)
            (void)snprintf(error, error_size, "no memory for TLS");
        return rc;
    }
    if (!go_on(channel)) /* it has told nothing yet: its end comes as one of the socket */
        channel->is_over = true;
    wait_for_room(channel);
    return 0;
}

const char *mc_channel_problem(struct mc_channel *channel)
{
    if (channel->tls == NULL)
        return "";
    channel->has_ended = true;
    if (!channel->is_shaken)
        (void)mc_tls_shake(channel->tls, 0); /* what it ended in the middle of */
    return mc_tls_problem(channel->tls);
}

bool mc_channel_is_whole(const struct mc_channel *channel)
{
    return channel->tls != NULL && mc_tls_has_finished(channel->tls);
}

bool mc_channel_is_refused(const struct mc_channel *channel)
{
    return channel->tls != NULL && mc_tls_is_refused(channel->tls);
}

void mc_channel_set_stall(struct bufferevent *user, const struct timeval *stall)
{
    struct mc_channel *channel = channel_of(user);
    if (channel == NULL)
        (void)bufferevent_set_timeouts(user, NULL, stall);
    else
        channel->stall = *stall;
}

void mc_channel_finish(struct bufferevent *user)
{
    struct mc_channel *channel = channel_of(user);
    if (channel != NULL && channel->tls != NULL)
        mc_tls_finish(channel->tls);
}

bool mc_channel_is_known(struct bufferevent *user)
{
    const struct mc_channel *channel = channel_of(user);
    return channel == NULL || channel->tls == NULL ? !mc_secure_is_served() : mc_tls_is_known(channel->tls);
}
