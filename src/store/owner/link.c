/* The owner's connection to the master: connecting, sending, taking frames apart, breaking. All on the serve thread. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKOFF_MAX_MS 1000u
#define CONNECT_MS 2000u        /* for one try, */
#define CONNECT_SLOW_MAX 2u     /* with TLS so often twice as long when that was not enough */
#define SILENCE_MS 10000u       /* unanswered data or keepalives for so long break the link */
#define LINK_OUT_MAX (4u << 20) /* unsent bytes; beyond, the master is not read from */
#define RECEIVE_BYTES (64u << 10)
#define TURN_BYTES (1u << 20)

/* ---- sending; on the serve thread ---- */

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted)
        return;
    *is_added = wanted;
    mc_assert((wanted ? event_add(event, NULL) : event_del(event)) == 0);
}

void mc_owner_timer_set(struct event *timer, uint64_t ms)
{
    struct timeval in = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    mc_assert(evtimer_add(timer, &in) == 0);
}

static void out_consume(struct mc_owner *owner, size_t count)
{
    owner->out_sent += count;
    if (owner->live_framed > 0 && owner->out_sent >= owner->live_framed_end) {
        mc_owner_news_drop(&owner->live, owner->live_framed);
        owner->live_framed = 0;
    }
    if (owner->out_sent == owner->out.length) {
        owner->out.length = owner->out_sent = 0;
    } else if (owner->out_sent > LINK_OUT_MAX) { /* a master that is always a little behind */
        mc_buffer_consume(&owner->out, owner->out_sent);
        owner->live_framed_end -= owner->live_framed > 0 ? owner->out_sent : 0;
        owner->out_sent = 0;
    }
}

void mc_owner_link_send(struct mc_owner *owner)
{
    int fd = atomic_load(&owner->fd);
    if (fd < 0)
        return;
    for (bool is_first = true;; is_first = false) {
        mc_owner_live_write(owner);
        mc_owner_lost_write(owner);
        if (is_first) /* the loop has other things to do */
            mc_owner_inventory_write(owner);
        mc_owner_disks_write(owner);
        if (owner->out.failed) {
            mc_owner_link_break(owner, mc_error_name(MC_ERR_NO_MEMORY));
            return;
        }
        if (owner->out.length == owner->out_sent)
            break;
        ssize_t sent = mc_socket_sends(fd, owner->out.data + owner->out_sent, owner->out.length - owner->out_sent);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            mc_owner_link_break(owner, strerror(errno));
            return;
        }
        out_consume(owner, (size_t)sent);
    }
    size_t unsent = owner->out.length - owner->out_sent;
    set_event(owner->writable, &owner->is_writing, unsent > 0 || mc_owner_inventory_is_due(owner));
    set_event(owner->readable, &owner->is_reading, unsent < LINK_OUT_MAX);
}

static int frames_handle(struct mc_owner *owner)
{
    size_t at = 0;
    int rc = 0;
    while (rc == 0) {
        struct mc_frame frame;
        size_t used;
        int found = mc_frame_parse(owner->in.data + at, owner->in.length - at, &frame, &used);
        if (found < 0)
            return MC_ERR_PROTOCOL;
        if (found == 0)
            break;
        rc = mc_owner_frame_handle(owner, &frame);
        if (atomic_load(&owner->fd) < 0) /* sending an answer broke the link, and with it the buffer */
            return 0;
        at += used;
    }
    mc_buffer_consume(&owner->in, at);
    return rc;
}

/* ---- the link; on the serve thread ---- */

static void on_link_readable(evutil_socket_t fd, short what, void *argument)
{
    struct mc_owner *owner = argument;
    (void)what;
    for (size_t moved = 0; moved < TURN_BYTES || mc_socket_hold((int)fd, true);) {
        if (!mc_buffer_reserve(&owner->in, RECEIVE_BYTES)) {
            mc_owner_link_break(owner, mc_error_name(MC_ERR_NO_MEMORY));
            return;
        }
        ssize_t received = mc_socket_recv((int)fd, owner->in.data + owner->in.length, RECEIVE_BYTES);
        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0 && errno == EAGAIN)
            break;
        if (received <= 0) {
            mc_owner_link_break(owner, received == 0 ? "closed by the master" : strerror(errno));
            return;
        }
        owner->in.length += (size_t)received;
        moved += (size_t)received;
        int rc = frames_handle(owner);
        if (atomic_load(&owner->fd) < 0)
            return;
        if (rc < 0) {
            mc_owner_link_break(owner, mc_error_name(rc));
            return;
        }
        if ((size_t)received < RECEIVE_BYTES)
            break;
    }
    mc_socket_hold((int)fd, false);
    mc_owner_link_send(owner);
}

static void on_link_writable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    mc_owner_link_send(argument);
}

void mc_owner_link_close(struct mc_owner *owner)
{
    int fd = atomic_exchange(&owner->fd, -1);
    if (owner->readable != NULL)
        event_free(owner->readable);
    if (owner->writable != NULL)
        event_free(owner->writable);
    owner->readable = owner->writable = NULL;
    owner->is_reading = owner->is_writing = false;
    mc_fd_close(fd);
    mc_buffer_free(&owner->in);
    mc_buffer_free(&owner->out); /* they may have failed */
    owner->out_sent = 0;
    owner->live_framed = 0; /* was not taken whole: told again */
    owner->lost_told = 0;
    owner->mount_id = owner->master_epoch = 0;
    mc_owner_disks_unlink(owner);
    mc_owner_inventory_stop(owner);                              /* begins again */
    mc_owner_news_drop(&owner->cut_done, owner->cut_done.count); /* asked again */
    evtimer_del(owner->timer);
    evtimer_del(owner->populated_timer);
    atomic_store(&owner->is_mounted, false);
    if (owner->connector != NULL)
        mc_connector_abandon(owner->connector);
    owner->connector = NULL;
}

/* The next try is so far away that a thousand nodes do not come back in one moment. */
static void link_later(struct mc_owner *owner)
{
    uint32_t half_ms = owner->backoff_ms / 2;
    owner->state = LINK_IDLE;
    mc_owner_timer_set(owner->timer, half_ms + mc_random_u64() % (half_ms + 1));
    owner->backoff_ms = owner->backoff_ms * 2 < BACKOFF_MAX_MS ? owner->backoff_ms * 2 : BACKOFF_MAX_MS;
}

void mc_owner_link_break(struct mc_owner *owner, const char *why)
{
    if (owner->state == LINK_MOUNTED)
        mc_log(WARNING, "the link of segment %s to master %s broke: %s; connecting again", owner->name,
               owner->master_address, why);
    else
        mc_log(DEBUG, "link to master %s: %s", owner->master_address, why);
    mc_owner_link_close(owner);
    if (owner->is_closing) {
        owner->state = LINK_CLOSED;
        mc_owner_closing_note(owner, UNMOUNTED);
    } else {
        link_later(owner);
    }
}

void mc_owner_link_follow(struct mc_owner *owner)
{
    bool is_ending = owner->is_closing || owner->state == LINK_UNMOUNTING || owner->state == LINK_CLOSED;
    if (is_ending || owner->master_epoch >= atomic_load(&owner->led_epoch))
        return;
    if (owner->state == LINK_MOUNTED)
        mc_log(INFO, "another master leads: segment %s leaves the one at which it is mounted", owner->name);
    mc_owner_link_close(owner);
    owner->master_node = (struct mc_id){0, 0}; /* not back to it by the short way */
    owner->backoff_ms = BACKOFF_MIN_MS;
    mc_owner_link_start(owner);
}

void mc_owner_on_timer(evutil_socket_t fd, short what, void *argument)
{
    struct mc_owner *owner = argument;
    (void)fd, (void)what;
    if (owner->state == LINK_IDLE)
        mc_owner_link_start(owner);
    else if (owner->state == LINK_HELLO || owner->state == LINK_MOUNTING || owner->inventory.is_active)
        mc_owner_link_break(owner, "no answer");
}

static void link_options(int fd)
{
    /* A master's host that vanished without a word must not leave us mounted in our own eyes only. Best effort. */
    int silence_ms = SILENCE_MS;
    mc_socket_keep_alive(fd, SILENCE_MS / 2000, 2, 2);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
}

static void link_connected(struct mc_owner *owner, int fd)
{
    struct event_base *base = mc_serve_base(owner->serve);
    atomic_store(&owner->fd, fd);
    link_options(fd);
    owner->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_link_readable, owner);
    owner->writable = event_new(base, fd, EV_WRITE | EV_PERSIST, on_link_writable, owner);
    if (owner->readable == NULL || owner->writable == NULL) {
        mc_owner_link_break(owner, "out of memory");
        return;
    }
    set_event(owner->readable, &owner->is_reading, true);
    owner->state = LINK_HELLO;
    mc_owner_timer_set(owner->timer, ANSWER_MS);
    mc_owner_hello_send(owner);
}

static void on_connected(void *context, int fd)
{
    struct mc_owner *owner = context;
    owner->connector = NULL;
    bool is_slow = fd == MC_ERR_RPC_TIMEOUT && errno == EPROTO && mc_secure_is_called(); /* it was reached */
    owner->connect_slow = fd >= 0 ? 0 : owner->connect_slow + (is_slow && owner->connect_slow < CONNECT_SLOW_MAX);
    if (fd < 0) {
        mc_log_limited(WARNING, "cannot connect to master %s: %s; check the address and that mooncake_master runs",
                       owner->master_address, mc_error_name(fd));
        link_later(owner);
        return;
    }
    link_connected(owner, fd);
}

void mc_owner_link_start(struct mc_owner *owner)
{
    owner->state = LINK_CONNECTING;
    /* Once: a standby may name one that is no leader either, or itself, as it was before its restart. */
    char address[MC_ADDRESS_MAX], near_name[MC_MASTER_UNIX_MAX];
    memcpy(address, owner->leader, sizeof(address));
    owner->leader[0] = 0;
    /* The abstract namespace answers at once or not at all. */
    mc_master_unix_name(near_name, sizeof(near_name), owner->master_node);
    bool is_near = !mc_id_is_zero(owner->master_node), proves = mc_keys_are_wanted();
    int fd = !is_near || proves ? MC_ERR_RPC_FAIL : mc_unix_connect(near_name, mc_clock_ns() + 1000000);
    owner->is_hinted = fd < 0 && address[0] != 0;
    if (fd >= 0) {
        link_connected(owner, fd);
        return;
    }
    /* Where something is to be proved, the thread that connects does it, there too. */
    owner->connector = mc_connector_start(owner->serve, is_near && proves ? near_name : NULL,
                                          address[0] != 0 ? address : owner->master_address,
                                          CONNECT_MS << owner->connect_slow, on_connected, owner);
    if (owner->connector == NULL)
        link_later(owner);
}
