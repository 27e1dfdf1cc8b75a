/* The owner's link to the master: connect, hello, mount, and what follows from the master's CLEAR and CUT and from
 * peers' commits.
 *
 * Everything below "on the serve thread" runs there and needs no lock. `lock` guards what other threads look at. */
#include "store/owner.h"

#include "base/error.h"
#include "engine/memory.h"
#include "engine/serve.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/connector.h"
#include "wire/wire.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BACKOFF_MIN_MS 50u
#define BACKOFF_MAX_MS 1000u
#define CONNECT_MS 2000u /* for one try */
#define ANSWER_MS 5000u  /* for a HELLO_REPLY or MOUNT_REPLY */
#define UNMOUNT_MS 500u
#define SILENCE_MS 10000u       /* unanswered data or keepalives for so long break the link */
#define LIVE_MAX 65536u         /* commits that the master has not been told of yet */
#define LINK_OUT_MAX (4u << 20) /* unsent bytes; beyond, the master is not read from */
#define RECEIVE_BYTES (64u << 10)
#define TURN_BYTES (1u << 20)
#define POPULATED_EAGER (256ull << 20) /* up to here every step is told at once */
#define POPULATED_EVERY_MS 100u        /* then so often */

enum link_state {
    LINK_IDLE,       /* timer runs: connect again */
    LINK_CONNECTING, /* a helper thread resolves and connects */
    LINK_HELLO,      /* timer runs: the answer is late */
    LINK_MOUNTING,   /* the same */
    LINK_MOUNTED,
    LINK_UNMOUNTING,
    LINK_CLOSED,
};

struct slot_news {
    uint32_t slot;
    int32_t code;
    uint64_t generation;
};

struct news { /* first in, first out; grows up to a limit of its user's */
    struct slot_news *items;
    size_t first, count, capacity;
};

enum closing { OPEN, UNMOUNTED, ENDED }; /* how far mc_owner_close is */

struct mc_owner {
    struct mc_engine *engine;
    struct mc_serve *serve;
    struct mc_id node, host;
    uint64_t incarnation, capacity;
    char master_address[MC_ADDRESS_MAX], name[MC_ADDRESS_MAX];
    struct mc_id master_node; /* who answered the last hello; zero = nobody yet */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mc_segment_memory *memory; /* changed on the serve thread under the lock */
    bool was_mounted;
    enum closing closing;
    int refusal; /* the last, 0 = none */
    _Atomic bool is_mounted;
    _Atomic uint32_t segment;

    /* on the serve thread */
    enum link_state state;
    struct mc_connector *connector; /* while CONNECTING */
    _Atomic int fd;                 /* a forked child closes it */
    struct event *readable, *writable, *timer, *populated_timer;
    bool is_reading, is_writing, is_closing;
    struct mc_buffer in, out;
    size_t out_sent;
    uint32_t backoff_ms;
    uint64_t request_id, mount_id; /* mount_id: of the MOUNT that has no answer yet, 0 = none */
    uint64_t epoch;                /* of the last MOUNT_REPLY; 0 = this memory was never mounted */
    struct news live;
    size_t live_framed, live_framed_end; /* the first so many items are in `out`, whose frame ends there */
    struct news cut_done;
    uint64_t populated_told, populated_told_ms;
    _Atomic bool populated_posted;
};

static void link_start(struct mc_owner *owner);
static void link_break(struct mc_owner *owner, const char *why);
static void link_send(struct mc_owner *owner);

/* ---- news ---- */

static bool news_add(struct news *news, struct slot_news item)
{
    if (news->first + news->count == news->capacity) {
        if (news->first > 0) {
            memmove(news->items, news->items + news->first, news->count * sizeof(*news->items));
            news->first = 0;
        } else {
            size_t capacity = news->capacity == 0 ? 256 : news->capacity * 2;
            struct slot_news *items = realloc(news->items, capacity * sizeof(*items));
            if (items == NULL)
                return false;
            news->items = items;
            news->capacity = capacity;
        }
    }
    news->items[news->first + news->count++] = item;
    return true;
}

static void news_drop(struct news *news, size_t count)
{
    news->first += count;
    news->count -= count;
    if (news->count == 0)
        news->first = 0;
}

/* ---- sending; on the serve thread ---- */

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted)
        return;
    *is_added = wanted;
    mc_assert((wanted ? event_add(event, NULL) : event_del(event)) == 0);
}

static void timer_set(struct event *timer, uint64_t ms)
{
    struct timeval in = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    mc_assert(evtimer_add(timer, &in) == 0);
}

/* One LIVE frame is under way at a time, so that what a broken link had not taken whole is known and can be told again.
 */
static void live_write(struct mc_owner *owner)
{
    if (owner->live.count == 0 || owner->live_framed > 0 || owner->state != LINK_MOUNTED)
        return;
    size_t count = owner->live.count < MC_BATCH_MAX ? owner->live.count : MC_BATCH_MAX;
    struct mc_wire_live head = {.segment = atomic_load(&owner->segment)};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_LIVE, 0);
    mc_wire_live_write(&owner->out, &head);
    size_t list = mc_list_begin(&owner->out);
    for (size_t i = 0; i < count; i++) {
        const struct slot_news *item = &owner->live.items[owner->live.first + i];
        struct mc_wire_live_item record = {.slot = item->slot, .code = item->code, .generation = item->generation};
        mc_wire_live_item_write(&owner->out, &record);
    }
    mc_list_end(&owner->out, list, count);
    mc_frame_end(&owner->out, frame);
    owner->live_framed = count;
    owner->live_framed_end = owner->out.length;
}

static void cut_done_write(struct mc_owner *owner)
{
    while (owner->cut_done.count > 0) {
        size_t count = owner->cut_done.count < MC_BATCH_MAX ? owner->cut_done.count : MC_BATCH_MAX;
        struct mc_wire_segment head = {.segment = atomic_load(&owner->segment)};
        size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_CUT_DONE, 0);
        mc_wire_segment_write(&owner->out, &head);
        size_t list = mc_list_begin(&owner->out);
        for (size_t i = 0; i < count; i++) {
            const struct slot_news *item = &owner->cut_done.items[owner->cut_done.first + i];
            struct mc_wire_slot record = {.slot = item->slot, .generation = item->generation};
            mc_wire_slot_write(&owner->out, &record);
        }
        mc_list_end(&owner->out, list, count);
        mc_frame_end(&owner->out, frame);
        news_drop(&owner->cut_done, count);
    }
}

static void out_consume(struct mc_owner *owner, size_t count)
{
    owner->out_sent += count;
    if (owner->live_framed > 0 && owner->out_sent >= owner->live_framed_end) {
        news_drop(&owner->live, owner->live_framed);
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

static void link_send(struct mc_owner *owner)
{
    int fd = atomic_load(&owner->fd);
    if (fd < 0)
        return;
    for (;;) {
        live_write(owner);
        if (owner->out.length == owner->out_sent)
            break;
        ssize_t sent = send(fd, owner->out.data + owner->out_sent, owner->out.length - owner->out_sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            link_break(owner, strerror(errno));
            return;
        }
        out_consume(owner, (size_t)sent);
    }
    size_t unsent = owner->out.length - owner->out_sent;
    set_event(owner->writable, &owner->is_writing, unsent > 0);
    set_event(owner->readable, &owner->is_reading, unsent < LINK_OUT_MAX);
}

static void hello_send(struct mc_owner *owner)
{
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = MC_ROLE_OWNER,
                                  .node = owner->node,
                                  .incarnation = owner->incarnation,
                                  .name = mc_span_string(owner->name)};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_HELLO, ++owner->request_id);
    mc_wire_hello_write(&owner->out, &hello);
    mc_frame_end(&owner->out, frame);
    link_send(owner);
}

static void mount_send(struct mc_owner *owner)
{
    const struct mc_segment_memory *memory = owner->memory;
    struct mc_wire_mount mount = {.segment_id = mc_segment_memory_id(memory),
                                  .capacity = mc_segment_memory_capacity(memory),
                                  .populated = mc_segment_memory_populated(memory),
                                  .slot_count = mc_segment_memory_slot_count(memory),
                                  .nonce = mc_segment_memory_nonce(memory),
                                  .epoch = owner->epoch,
                                  .host = owner->host,
                                  .name = mc_span_string(owner->name),
                                  .tcp_address = mc_span_string(owner->name),
                                  .unix_path = mc_span_string(mc_serve_unix_path(owner->serve))};
    owner->mount_id = ++owner->request_id;
    owner->populated_told = mount.populated;
    owner->populated_told_ms = mc_clock_ms();
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_MOUNT, owner->mount_id);
    mc_wire_mount_write(&owner->out, &mount);
    mc_frame_end(&owner->out, frame);
    if (owner->state != LINK_MOUNTED) {
        owner->state = LINK_MOUNTING;
        timer_set(owner->timer, ANSWER_MS);
    }
    link_send(owner);
}

/* Tells the master how far populating is, by mounting the same once more. */
static void populated_tell(struct mc_owner *owner)
{
    if (owner->state != LINK_MOUNTED || owner->mount_id != 0)
        return; /* looked at again when the answer comes */
    uint64_t populated = mc_segment_memory_populated(owner->memory),
             passed_ms = mc_clock_ms() - owner->populated_told_ms;
    if (populated == owner->populated_told)
        return;
    if (populated > POPULATED_EAGER && passed_ms < POPULATED_EVERY_MS)
        timer_set(owner->populated_timer, POPULATED_EVERY_MS - passed_ms);
    else
        mount_send(owner);
}

static void on_populated(void *argument)
{
    struct mc_owner *owner = argument;
    atomic_store(&owner->populated_posted, false);
    populated_tell(owner);
}

static void on_populated_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    populated_tell(argument);
}

/* On the thread that populates. */
static void progress(void *context, uint64_t populated)
{
    struct mc_owner *owner = context;
    (void)populated;
    if (!atomic_exchange(&owner->populated_posted, true))
        mc_serve_post(owner->serve, on_populated, owner);
}

/* ---- what peers do; on the serve thread ---- */

static void on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, int code)
{
    struct mc_owner *owner = context;
    if (memory != owner->memory)
        return;
    if (owner->live.count >= LIVE_MAX || !news_add(&owner->live, (struct slot_news){slot, code, generation}))
        mc_log_limited(WARNING, "too many commits wait for the master; their writers will place again");
}

static void on_flush(void *context)
{
    struct mc_owner *owner = context;
    if (owner->state == LINK_MOUNTED)
        cut_done_write(owner);
    link_send(owner);
}

static void on_cut_done(void *context, uint32_t slot, uint64_t generation)
{
    struct mc_owner *owner = context;
    /* Without a mount the master asks again after the next one. */
    if (owner->state == LINK_MOUNTED && !news_add(&owner->cut_done, (struct slot_news){slot, 0, generation}))
        abort(); /* as the buffers do: the extent would never be free again */
}

/* ---- what the master says; on the serve thread ---- */

static void refusal_note(struct mc_owner *owner, int code)
{
    pthread_mutex_lock(&owner->lock);
    owner->refusal = code;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static void memory_set(struct mc_owner *owner, struct mc_segment_memory *memory)
{
    pthread_mutex_lock(&owner->lock);
    owner->memory = memory;
    pthread_mutex_unlock(&owner->lock);
}

/* The master took the space for lost: what still maps the old memory may write into it for ever, so it is given up, not
 * cleaned. */
static int memory_renew(struct mc_owner *owner)
{
    struct mc_segment_memory *old = owner->memory, *fresh;
    mc_segment_memory_populate_stop(old);
    int rc = mc_segment_memory_create(owner->capacity, &fresh);
    if (rc < 0)
        return rc;
    mc_engine_remove_segment(owner->engine, old);
    mc_serve_set_memory(owner->serve, fresh);
    memory_set(owner, fresh);
    mc_engine_add_segment(owner->engine, fresh);
    mc_segment_memory_release(old);
    news_drop(&owner->live, owner->live.count);
    news_drop(&owner->cut_done, owner->cut_done.count);
    owner->live_framed = 0;
    owner->epoch = 0;
    (void)mc_segment_memory_populate(fresh, progress,
                                     owner); /* its failure is logged; the segment is then offered empty */
    return 0;
}

static int hello_reply_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_wire_hello_reply reply;
    mc_wire_hello_reply_read(reader, &reply);
    if (owner->state != LINK_HELLO || reader->bad)
        return MC_ERR_PROTOCOL;
    if (reply.code < 0) {
        mc_log_limited(ERROR, "master %s refuses this store node: %s (%.*s)", owner->master_address,
                       mc_error_name(reply.code), (int)reply.text.length,
                       reply.text.data == NULL ? "" : (const char *)reply.text.data);
        refusal_note(owner, reply.code);
        return reply.code;
    }
    owner->master_node = reply.node;
    mount_send(owner);
    return 0;
}

static void mounted(struct mc_owner *owner, const struct mc_wire_mount_reply *reply)
{
    if (owner->state == LINK_MOUNTED && atomic_load(&owner->segment) == reply->segment && owner->epoch == reply->epoch)
        return; /* only how far populating is */
    if (reply->epoch != owner->epoch) {
        news_drop(&owner->live, owner->live.count); /* of a leadership that is over */
        owner->live_framed = 0;
    }
    owner->epoch = reply->epoch;
    owner->state = LINK_MOUNTED;
    owner->backoff_ms = BACKOFF_MIN_MS;
    evtimer_del(owner->timer);
    mc_log(INFO, "segment %s of %" PRIu64 " bytes is mounted as number %" PRIu32 " at master %s", owner->name,
           owner->capacity, reply->segment, owner->master_address);
    pthread_mutex_lock(&owner->lock);
    atomic_store(&owner->segment, reply->segment);
    atomic_store(&owner->is_mounted, true);
    owner->was_mounted = true;
    owner->refusal = 0;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static int mount_stale(struct mc_owner *owner)
{
    bool was_mounted = owner->epoch != 0;
    mc_log_limited(WARNING, "the master does not want the contents of segment %s back; it starts again empty",
                   owner->name);
    atomic_store(&owner->is_mounted, false);
    owner->state = LINK_MOUNTING;
    int rc = memory_renew(owner);
    if (rc == 0 && !was_mounted)
        rc = MC_ERR_STALE; /* a first mount whose answer was lost, long ago; should it be anything else, the backoff of
                              a new link keeps the peace */
    if (rc == 0)
        mount_send(owner);
    return rc;
}

static int mount_reply_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_mount_reply reply;
    mc_wire_mount_reply_read(reader, &reply);
    if (reader->bad || (frame->request_id != owner->mount_id && owner->state != LINK_UNMOUNTING))
        return MC_ERR_PROTOCOL;
    owner->mount_id = 0;
    if (owner->state == LINK_UNMOUNTING)
        return 0;
    if (reply.code == MC_ERR_STALE)
        return mount_stale(owner);
    if (reply.code < 0) {
        mc_log_limited(ERROR, "master %s does not mount segment %s: %s: %s", owner->master_address, owner->name,
                       mc_error_name(reply.code), mc_error_text(reply.code));
        refusal_note(owner, reply.code);
        return reply.code;
    }
    mounted(owner, &reply);
    populated_tell(owner);
    return 0;
}

/* A CLEAR or CUT for a segment that we do not have (any more) is passed over: the master dropped that segment with our
 * old mount. */
static bool is_our_segment(const struct mc_owner *owner, uint32_t segment)
{
    if ((owner->state == LINK_MOUNTED || owner->state == LINK_UNMOUNTING) && segment == atomic_load(&owner->segment))
        return true;
    mc_log_limited(WARNING, "the master speaks of segment %" PRIu32 ", which is not ours", segment);
    return false;
}

static void clear_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    mc_wire_segment_read(reader, &head);
    if (!is_our_segment(owner, head.segment))
        return;
    size_t answer = mc_frame_begin(&owner->out, MC_MESSAGE_CLEARED, frame->request_id);
    mc_wire_segment_write(&owner->out, &head);
    size_t list = mc_list_begin(&owner->out), cleared = 0;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_slot slot;
        mc_wire_slot_read(reader, &slot);
        if (mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {
            mc_log_limited(ERROR, "the master clears slot %" PRIu32 ", which the segment does not have", slot.slot);
            continue;
        }
        mc_wire_slot_write(&owner->out, &slot);
        cleared++;
    }
    mc_list_end(&owner->out, list, cleared);
    mc_frame_end(&owner->out, answer);
}

static void cut_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    mc_wire_segment_read(reader, &head);
    if (!is_our_segment(owner, head.segment))
        return;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_cut_item item;
        mc_wire_cut_item_read(reader, &item);
        mc_serve_cut(owner->serve, item.slot, item.generation, item.writer, on_cut_done, owner);
    }
    cut_done_write(owner);
}

static void closing_note(struct mc_owner *owner, enum closing closing)
{
    pthread_mutex_lock(&owner->lock);
    owner->closing = closing;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

/* 0, or negative: the link is of no use. */
static int frame_handle(struct mc_owner *owner, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_code head;
    if (mc_wire_check(frame->type, frame->body) < 0)
        return MC_ERR_PROTOCOL;
    switch (frame->type) {
    case MC_MESSAGE_HELLO_REPLY:
        return hello_reply_handle(owner, &reader);
    case MC_MESSAGE_MOUNT_REPLY:
        return mount_reply_handle(owner, frame, &reader);
    case MC_MESSAGE_CLEAR:
        clear_handle(owner, frame, &reader);
        return 0;
    case MC_MESSAGE_CUT:
        cut_handle(owner, &reader);
        return 0;
    case MC_MESSAGE_UNMOUNT_REPLY:
        if (owner->state == LINK_UNMOUNTING)
            closing_note(owner, UNMOUNTED);
        return 0;
    case MC_MESSAGE_FAILED:
        mc_wire_code_read(&reader, &head);
        mc_log_limited(ERROR, "master %s answers: %s: %s", owner->master_address, mc_error_name(head.code),
                       mc_error_text(head.code));
        refusal_note(owner, head.code);
        return MC_ERR_RPC_FAIL;
    default:
        return MC_ERR_PROTOCOL;
    }
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
        rc = frame_handle(owner, &frame);
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
    for (size_t moved = 0; moved < TURN_BYTES;) {
        mc_buffer_reserve(&owner->in, RECEIVE_BYTES);
        ssize_t received = recv((int)fd, owner->in.data + owner->in.length, RECEIVE_BYTES, MSG_DONTWAIT);
        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0 && errno == EAGAIN)
            break;
        if (received <= 0) {
            link_break(owner, received == 0 ? "closed by the master" : strerror(errno));
            return;
        }
        owner->in.length += (size_t)received;
        moved += (size_t)received;
        int rc = frames_handle(owner);
        if (atomic_load(&owner->fd) < 0)
            return;
        if (rc < 0) {
            link_break(owner, mc_error_name(rc));
            return;
        }
        if ((size_t)received < RECEIVE_BYTES)
            break;
    }
    link_send(owner);
}

static void on_link_writable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    link_send(argument);
}

static void link_close(struct mc_owner *owner)
{
    int fd = atomic_exchange(&owner->fd, -1);
    if (owner->readable != NULL)
        event_free(owner->readable);
    if (owner->writable != NULL)
        event_free(owner->writable);
    owner->readable = owner->writable = NULL;
    owner->is_reading = owner->is_writing = false;
    if (fd >= 0)
        close(fd);
    owner->in.length = 0;
    owner->out.length = owner->out_sent = 0;
    owner->live_framed = 0; /* was not taken whole: told again */
    owner->mount_id = 0;
    news_drop(&owner->cut_done, owner->cut_done.count); /* asked again */
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
    timer_set(owner->timer, half_ms + mc_random_u64() % (half_ms + 1));
    owner->backoff_ms = owner->backoff_ms * 2 < BACKOFF_MAX_MS ? owner->backoff_ms * 2 : BACKOFF_MAX_MS;
}

static void link_break(struct mc_owner *owner, const char *why)
{
    if (owner->state == LINK_MOUNTED)
        mc_log(WARNING, "the link of segment %s to master %s broke: %s; connecting again", owner->name,
               owner->master_address, why);
    else
        mc_log(DEBUG, "link to master %s: %s", owner->master_address, why);
    link_close(owner);
    if (owner->is_closing) {
        owner->state = LINK_CLOSED;
        closing_note(owner, UNMOUNTED);
    } else {
        link_later(owner);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *argument)
{
    struct mc_owner *owner = argument;
    (void)fd;
    (void)what;
    if (owner->state == LINK_IDLE)
        link_start(owner);
    else if (owner->state == LINK_HELLO || owner->state == LINK_MOUNTING)
        link_break(owner, "no answer");
}

static void link_options(int fd)
{
    /* A master's host that vanished without a word must not leave us mounted in our own eyes only. Best effort. */
    int on = 1, idle_s = SILENCE_MS / 2000, interval_s = 2, count = 2, silence_ms = SILENCE_MS;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
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
        link_break(owner, "out of memory");
        return;
    }
    set_event(owner->readable, &owner->is_reading, true);
    owner->state = LINK_HELLO;
    timer_set(owner->timer, ANSWER_MS);
    hello_send(owner);
}

static void on_connected(void *context, int fd)
{
    struct mc_owner *owner = context;
    owner->connector = NULL;
    if (fd < 0) {
        mc_log_limited(WARNING, "cannot connect to master %s: %s; check the address and that mooncake_master runs",
                       owner->master_address, mc_error_name(fd));
        link_later(owner);
        return;
    }
    link_connected(owner, fd);
}

static void link_start(struct mc_owner *owner)
{
    owner->state = LINK_CONNECTING;
    /* The abstract namespace answers at once or not at all. */
    char near_name[MC_MASTER_UNIX_MAX];
    mc_master_unix_name(near_name, sizeof(near_name), owner->master_node);
    int fd = mc_id_is_zero(owner->master_node) ? MC_ERR_RPC_FAIL : mc_unix_connect(near_name, mc_clock_ns() + 1000000);
    if (fd >= 0) {
        link_connected(owner, fd);
        return;
    }
    owner->connector = mc_connector_start(owner->serve, owner->master_address, CONNECT_MS, on_connected, owner);
    if (owner->connector == NULL)
        link_later(owner);
}

static void on_start(void *argument)
{
    struct mc_owner *owner = argument;
    if (!owner->is_closing)
        link_start(owner);
}

/* ---- from other threads ---- */

/* An address or port that cannot be had is no reason to lend nothing: the master is told where we really are. */
static int serve_make(struct mc_owner *owner, const struct mc_owner_config *config)
{
    struct mc_serve_hooks hooks = {.context = owner, .committed = on_committed, .flush = on_flush};
    const char *host = config->bind_host;
    uint16_t port = config->port;
    for (unsigned tries = 0; tries < 3; tries++) {
        int rc =
            mc_serve_create(config->node, config->incarnation, host, port, config->unix_allowed, &hooks, &owner->serve);
        if (rc == 0)
            return 0;
        if (errno == EADDRINUSE && port != 0) {
            mc_log(WARNING, "port %u is in use; the kernel chooses another for this store node", (unsigned)port);
            port = 0;
        } else if (errno == EADDRNOTAVAIL && host[0] != 0) {
            mc_log(INFO, "%s is not an address of this machine; listening on every interface", host);
            host = "";
        } else {
            mc_log(ERROR, "cannot listen on %s port %u: %s", host[0] == 0 ? "every interface" : host, (unsigned)port,
                   strerror(errno));
            return rc;
        }
    }
    return MC_ERR_RPC_FAIL;
}

static void owner_free(struct mc_owner *owner)
{
    free(owner->live.items);
    free(owner->cut_done.items);
    mc_buffer_free(&owner->in);
    mc_buffer_free(&owner->out);
    pthread_cond_destroy(&owner->changed);
    pthread_mutex_destroy(&owner->lock);
    free(owner);
}

static void timers_free(struct mc_owner *owner)
{
    if (owner->timer != NULL)
        event_free(owner->timer);
    if (owner->populated_timer != NULL)
        event_free(owner->populated_timer);
    owner->timer = owner->populated_timer = NULL;
}

static void locks_make(struct mc_owner *owner)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&owner->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&owner->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

int mc_owner_create(const struct mc_owner_config *config, struct mc_owner **result)
{
    if (strlen(config->master_address) >= MC_ADDRESS_MAX ||
        strlen(config->advertise_host) + sizeof(":65535") + 2 > MC_ADDRESS_MAX)
        return MC_ERR_INVALID_PARAMS;
    struct mc_owner *owner = calloc(1, sizeof(*owner));
    if (owner == NULL)
        return MC_ERR_NO_MEMORY;
    locks_make(owner);
    owner->engine = config->engine;
    owner->node = config->node;
    owner->master_node = config->master_node;
    owner->host = mc_host_id();
    owner->incarnation = config->incarnation;
    owner->backoff_ms = BACKOFF_MIN_MS;
    atomic_init(&owner->fd, -1);
    snprintf(owner->master_address, sizeof(owner->master_address), "%s", config->master_address);
    int rc = mc_segment_memory_create(config->capacity, &owner->memory);
    if (rc < 0)
        goto fail_memory;
    owner->capacity = mc_segment_memory_capacity(owner->memory);
    rc = serve_make(owner, config);
    if (rc < 0)
        goto fail_serve;
    mc_address_join(owner->name, sizeof(owner->name), config->advertise_host, mc_serve_tcp_port(owner->serve));
    rc = MC_ERR_NO_MEMORY;
    owner->timer = evtimer_new(mc_serve_base(owner->serve), on_timer, owner);
    owner->populated_timer = evtimer_new(mc_serve_base(owner->serve), on_populated_timer, owner);
    if (owner->timer == NULL || owner->populated_timer == NULL)
        goto fail_timers;
    mc_serve_set_memory(owner->serve, owner->memory);
    mc_engine_add_segment(owner->engine, owner->memory);
    mc_serve_post(owner->serve, on_start, owner);
    rc = mc_segment_memory_populate(owner->memory, progress, owner);
    if (rc < 0)
        goto fail_populate;
    rc = mc_serve_start(owner->serve);
    if (rc < 0)
        goto fail_start;
    *result = owner;
    return 0;
fail_start:
    mc_segment_memory_populate_stop(owner->memory);
fail_populate:
    mc_engine_remove_segment(owner->engine, owner->memory);
fail_timers:
    owner->is_closing = true; /* what was posted is still run, and then does nothing */
    timers_free(owner);
    mc_serve_destroy(owner->serve);
fail_serve:
    mc_segment_memory_release(owner->memory);
fail_memory:
    owner_free(owner);
    return rc;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Trying again would not change it. */
static bool is_final(int refusal)
{
    return refusal == MC_ERR_INVALID_VERSION || refusal == MC_ERR_INVALID_PARAMS || refusal == MC_ERR_NOT_SUPPORTED;
}

int mc_owner_first_mount(struct mc_owner *owner, uint64_t deadline_ns)
{
    struct timespec deadline = timespec_of(deadline_ns);
    int rc = 0;
    pthread_mutex_lock(&owner->lock);
    while (!owner->was_mounted && !is_final(owner->refusal) && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&owner->changed, &owner->lock, &deadline);
    if (owner->was_mounted)
        rc = 0;
    else
        rc = owner->refusal < 0 ? owner->refusal : MC_ERR_RPC_TIMEOUT;
    pthread_mutex_unlock(&owner->lock);
    return rc;
}

uint16_t mc_owner_port(const struct mc_owner *owner)
{
    return mc_serve_tcp_port(owner->serve);
}
uint64_t mc_owner_capacity(const struct mc_owner *owner)
{
    return owner->capacity;
}

uint64_t mc_owner_populated(const struct mc_owner *owner)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&owner->lock; /* looking does not change the owner */
    pthread_mutex_lock(lock);
    uint64_t populated = mc_segment_memory_populated(owner->memory);
    pthread_mutex_unlock(lock);
    return populated;
}

bool mc_owner_segment(const struct mc_owner *owner, uint32_t *segment)
{
    *segment = atomic_load(&owner->segment);
    return atomic_load(&owner->is_mounted);
}

static void on_remount(void *argument)
{
    struct mc_owner *owner = argument;
    if (owner->state == LINK_MOUNTED && owner->mount_id == 0)
        mount_send(owner);
}

void mc_owner_remount(struct mc_owner *owner)
{
    mc_serve_post(owner->serve, on_remount, owner);
}

static void on_close(void *argument)
{
    struct mc_owner *owner = argument;
    owner->is_closing = true;
    evtimer_del(owner->timer);
    if (owner->state != LINK_MOUNTED) {
        owner->state = LINK_CLOSED;
        link_close(owner);
        closing_note(owner, UNMOUNTED);
        return;
    }
    struct mc_wire_unmount head = {.segment = atomic_load(&owner->segment)};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_UNMOUNT, ++owner->request_id);
    mc_wire_unmount_write(&owner->out, &head);
    mc_frame_end(&owner->out, frame);
    owner->state = LINK_UNMOUNTING;
    link_send(owner);
}

/* The last thing of ours that runs on the loop. */
static void on_end(void *argument)
{
    struct mc_owner *owner = argument;
    owner->is_closing = true;
    owner->state = LINK_CLOSED;
    link_close(owner);
    timers_free(owner);
    closing_note(owner, ENDED);
}

static void closing_wait(struct mc_owner *owner, enum closing closing, uint64_t deadline_ns)
{
    struct timespec deadline = timespec_of(deadline_ns);
    int rc = 0;
    pthread_mutex_lock(&owner->lock);
    while (owner->closing < closing && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&owner->changed, &owner->lock, &deadline);
    pthread_mutex_unlock(&owner->lock);
}

void mc_owner_close(struct mc_owner *owner)
{
    if (owner == NULL)
        return;
    mc_serve_post(owner->serve, on_close, owner);
    closing_wait(owner, UNMOUNTED, mc_clock_ns() + UNMOUNT_MS * 1000000ull);
    mc_serve_post(owner->serve, on_end, owner);
    closing_wait(owner, ENDED, UINT64_MAX / 2); /* the loop turns: it ends */
    /* From here on the serve thread does nothing for us but serve peers. */
    mc_segment_memory_populate_stop(owner->memory);
    mc_engine_remove_segment(owner->engine, owner->memory);
    mc_serve_destroy(owner->serve);
    mc_segment_memory_release(owner->memory);
    owner_free(owner);
}

void mc_owner_forked(struct mc_owner *owner)
{
    int fd = atomic_exchange(&owner->fd, -1);
    if (fd >= 0)
        close(fd);
    mc_serve_forked(owner->serve);
}
