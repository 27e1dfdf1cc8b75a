/* Connections to the master: whom to believe, the idle stack, hello, request and reply in the calling thread. */
#include "store/link.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/keeper.h"
#include "store/store.h"
#include "wire/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_FIRST_MS 10u /* between tries of one call, doubling, half of it random */
#define RETRY_LAST_MS 200u
#define LOOK_MS 200u /* a call that waits for its answer looks so often whether the master is away */

/* ---- what is known of the master ---- */

bool mc_master_is_gone(int code)
{
    return code == MC_ERR_RPC_FAIL || code == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
}

uint64_t mc_master_silent_ms(const struct mc_store *store)
{
    /* Read before the clock, and still another thread's clock may have been a little ahead of ours. */
    uint64_t heard_ns = atomic_load(&store->heard_ns), now_ns = mc_clock_ns();
    return heard_ns == 0 ? UINT64_MAX : now_ns > heard_ns ? (now_ns - heard_ns) / 1000000 : 0;
}

bool mc_master_is_away(const struct mc_store *store)
{
    /* The keeper's word too: a process that was stopped for a while has heard nothing and misses nobody. */
    return store->keeper != NULL && !mc_keeper_healthy(store->keeper) && mc_master_silent_ms(store) > MC_AWAY_MS;
}

static void rise_to(_Atomic uint64_t *value, uint64_t least)
{
    uint64_t now = atomic_load_explicit(value, memory_order_relaxed);
    while (now < least &&
           !atomic_compare_exchange_weak_explicit(value, &now, least, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void mc_master_heard(struct mc_store *store, uint64_t epoch, bool acts, uint16_t frame_time)
{
    if (atomic_load_explicit(&store->epoch, memory_order_relaxed) != epoch)
        return;
    uint64_t sent_ns = mc_master_time_of(&store->master_time, epoch, frame_time, mc_clock_ms()) * 1000000u;
    rise_to(&store->heard_ns, sent_ns);
    if (atomic_load_explicit(&store->master.refused_ns, memory_order_relaxed) != 0)
        atomic_store(&store->master.refused_ns, 0);
    if (acts)
        atomic_store_explicit(&store->acting_epoch, epoch, memory_order_relaxed);
    if (atomic_load_explicit(&store->acting_epoch, memory_order_relaxed) == epoch)
        rise_to(&store->acted_ns, sent_ns);
}

void mc_master_age_told(struct mc_store *store, uint64_t epoch, uint64_t age_ms, uint64_t asked_ns)
{
    pthread_mutex_lock(&store->lock);
    if (atomic_load(&store->epoch) == epoch)
        mc_master_time_learn(&store->master_time, epoch, age_ms, asked_ns / 1000000u, mc_clock_ms());
    pthread_mutex_unlock(&store->lock);
}

/* Since the last word of a master that may have acted. */
static uint32_t seen_age_ms(const struct mc_store *store)
{
    uint64_t acted_ns = atomic_load(&store->acted_ns), now_ns = mc_clock_ns();
    uint64_t age_ms = acted_ns == 0 ? UINT32_MAX : now_ns > acted_ns ? (now_ns - acted_ns) / 1000000 : 0;
    return age_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)age_ms;
}

struct said { /* with a HELLO_REPLY; text and leader by a master that refuses */
    char text[256], leader[MC_ADDRESS_MAX];
    uint64_t asked_ns;
    uint16_t frame_time;
};

/* Remembers what a master said of itself. MC_ERR_RPC_FAIL: it is one of the past. */
static int met_master(struct mc_store *store, const struct mc_wire_hello_reply *reply, const struct said *said)
{
    struct mc_link *old = NULL;
    pthread_mutex_lock(&store->lock);
    uint64_t before = atomic_load(&store->epoch);
    if (reply->epoch < before) {
        bool told = store->refused_epoch == reply->epoch;
        store->refused_epoch = reply->epoch;
        pthread_mutex_unlock(&store->lock);
        if (!told)
            mc_log(WARNING, "a master of epoch %llu answers, but epoch %llu was met already: it is not believed",
                   (unsigned long long)reply->epoch, (unsigned long long)before);
        return MC_ERR_RPC_FAIL;
    }
    store->master_node = reply->node;
    if (reply->epoch > before) {
        atomic_store(&store->epoch, reply->epoch);
        old = store->idle;
        store->idle = NULL;
        store->idle_count = 0;
        /* Who waits there for an answer of the old master need not wait for his deadline. */
        for (struct mc_link *link = store->borrowed; link != NULL; link = link->next_borrowed) {
            if (link->epoch < reply->epoch)
                (void)shutdown(link->fd, SHUT_RDWR);
        }
        mc_store_endpoints_clear(store);
    }
    pthread_mutex_unlock(&store->lock);
    for (struct mc_link *next; old != NULL; old = next) {
        next = old->next;
        mc_link_free(old);
    }
    atomic_store(&store->lease_ttl_ms, reply->lease_ttl_ms);
    mc_master_age_told(store, reply->epoch, reply->age_ms, said->asked_ns);
    mc_master_heard(store, reply->epoch, reply->quiet == 0, said->frame_time);
    return 0;
}

/* ---- hello ---- */

static void copy_said(char *target, size_t size, struct mc_span text)
{
    snprintf(target, size, "%.*s", (int)text.length, text.length == 0 ? "" : (const char *)text.data);
}

/* Says hello with that role. 0 or the master's code, or how it failed. */
static int hello(struct mc_store *store, int fd, enum mc_role role, uint64_t deadline_ns,
                 struct mc_wire_hello_reply *reply, struct said *said)
{
    struct mc_buffer out = {0}, in = {0};
    /* The age first: read the other way round, a young age could be paired with an older master's epoch. */
    uint32_t age_ms = seen_age_ms(store);
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = (uint8_t)role,
                                  .node = store->node,
                                  .incarnation = store->incarnation,
                                  .name = mc_span_string(store->hostname),
                                  .token = mc_span(NULL, 0),
                                  .seen_epoch = atomic_load(&store->epoch),
                                  .seen_age_ms = age_ms};
    size_t frame_start = mc_frame_begin(&out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&out, &hello);
    mc_frame_end(&out, frame_start);
    struct iovec part = {out.data, out.length};
    struct mc_frame frame;
    said->asked_ns = mc_clock_ns();
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    if (rc < 0)
        goto done;
    int64_t used = mc_socket_receive_frame(fd, &in, &frame, deadline_ns, NULL);
    if (used < 0) {
        rc = (int)used;
        goto done;
    }
    said->frame_time = frame.time;
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    mc_wire_hello_reply_read(&reader, reply);
    if (reader.bad || frame.type != MC_MESSAGE_HELLO_REPLY) {
        rc = MC_ERR_PROTOCOL;
        goto done;
    }
    rc = reply->code < 0 ? reply->code : 0;
    copy_said(said->text, sizeof(said->text), reply->text);
    copy_said(said->leader, sizeof(said->leader), reply->leader);
    reply->text = reply->leader = mc_span(NULL, 0); /* they borrowed from `in` */
done:
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    return rc;
}

/* Takes fd, which may be an error. Gives it back when a master of today answered on it. */
static int greet(struct mc_store *store, int fd, const char *address, enum mc_role role, uint64_t deadline_ns,
                 struct mc_wire_hello_reply *reply, struct said *said)
{
    said->text[0] = said->leader[0] = 0;
    if (fd < 0) {
        mc_log_limited(WARNING, "cannot reach the master at %s: %s; check the address and that mooncake_master runs",
                       address, fd == MC_ERR_RPC_FAIL ? strerror(errno) : mc_error_name(fd));
        return fd;
    }
    int rc = hello(store, fd, role, deadline_ns, reply, said);
    if (rc == 0)
        rc = met_master(store, reply, said);
    else if (rc != MC_ERR_RPC_FAIL && rc != MC_ERR_RPC_TIMEOUT)
        mc_log_limited(WARNING, "the master at %s refused this client: %s %s", address, mc_error_name(rc), said->text);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

/* The master of this machine that we have met, over its unix socket; negative when it is elsewhere or gone. */
static int greet_near(struct mc_store *store, enum mc_role role, uint64_t deadline_ns,
                      struct mc_wire_hello_reply *reply)
{
    struct said said;
    char name[MC_MASTER_UNIX_MAX];
    pthread_mutex_lock(&store->lock);
    struct mc_id node = store->master_node;
    pthread_mutex_unlock(&store->lock);
    if (mc_id_is_zero(node))
        return MC_ERR_RPC_FAIL;
    mc_master_unix_name(name, sizeof(name), node);
    int fd = mc_unix_connect(name, deadline_ns);
    if (fd >= 0)
        fd = greet(store, fd, name, role, deadline_ns, reply, &said);
    if (fd >= 0)
        return fd;
    pthread_mutex_lock(&store->lock);
    if (mc_id_equal(store->master_node, node))
        store->master_node = (struct mc_id){0, 0};
    pthread_mutex_unlock(&store->lock);
    return fd;
}

int mc_master_greet(struct mc_store *store, enum mc_role role, bool near, uint64_t deadline_ns,
                    struct mc_wire_hello_reply *reply)
{
    struct said said, second;
    char used[MC_ADDRESS_MAX];
    uint64_t try_ns = mc_clock_ns() + MC_HELLO_TRY_MS * 1000000ull;
    if (try_ns < deadline_ns)
        deadline_ns = try_ns;
    int fd = near ? greet_near(store, role, deadline_ns, reply) : MC_ERR_RPC_FAIL;
    if (fd >= 0)
        return fd;
    fd = mc_master_open(&store->master, deadline_ns, used);
    fd = greet(store, fd, used[0] != 0 ? used : store->master.configured, role, deadline_ns, reply, &said);
    if (fd < 0)
        mc_master_forget(&store->master, used);
    if (fd == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS && said.leader[0] != 0 && strcmp(said.leader, used) != 0) {
        /* Once: two standbys that name each other must not send us to and fro. */
        fd = mc_master_open_hint(said.leader, deadline_ns);
        fd = greet(store, fd, said.leader, role, deadline_ns, reply, &second);
        if (fd >= 0)
            mc_master_remember(&store->master, said.leader);
    }
    return fd == MC_ERR_RPC_TIMEOUT ? MC_ERR_RPC_FAIL : fd;
}

/* ---- links ---- */

static int link_connect(struct mc_store *store, uint64_t deadline_ns, struct mc_link **made)
{
    struct mc_wire_hello_reply reply;
    int fd = mc_master_greet(store, MC_ROLE_CALL, true, deadline_ns, &reply);
    if (fd < 0)
        return fd;
    struct mc_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        close(fd);
        return MC_ERR_NO_MEMORY;
    }
    link->store = store;
    link->fd = fd;
    link->epoch = reply.epoch;
    *made = link;
    return 0;
}

void mc_link_free(struct mc_link *link)
{
    close(link->fd);
    mc_buffer_free(&link->in);
    mc_buffer_free(&link->out);
    free(link);
}

/* Lock held. */
static void borrowed_add(struct mc_store *store, struct mc_link *link)
{
    link->next_borrowed = store->borrowed;
    link->borrowed_at = &store->borrowed;
    if (store->borrowed != NULL)
        store->borrowed->borrowed_at = &link->next_borrowed;
    store->borrowed = link;
}

static void borrowed_remove(struct mc_link *link)
{
    *link->borrowed_at = link->next_borrowed;
    if (link->next_borrowed != NULL)
        link->next_borrowed->borrowed_at = link->borrowed_at;
}

/* Lock held. An idle link, or NULL; there are none of an older epoch, met_master sees to it. */
static struct mc_link *idle_take(struct mc_store *store)
{
    struct mc_link *link = store->idle;
    if (link != NULL) {
        store->idle = link->next;
        store->idle_count--;
        borrowed_add(store, link);
    }
    return link;
}

int mc_link_borrow(struct mc_store *store, uint64_t deadline_ns, struct mc_link **link)
{
    pthread_mutex_lock(&store->lock);
    *link = idle_take(store);
    pthread_mutex_unlock(&store->lock);
    if (*link != NULL) {
        (*link)->reused = true;
        return 0;
    }
    int rc = link_connect(store, deadline_ns, link);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    bool current = (*link)->epoch == atomic_load(&store->epoch);
    if (current)
        borrowed_add(store, *link);
    pthread_mutex_unlock(&store->lock);
    if (current)
        return 0;
    mc_link_free(*link); /* another thread has met a newer master meanwhile */
    *link = NULL;
    return MC_ERR_RPC_FAIL;
}

void mc_link_return(struct mc_store *store, struct mc_link *link)
{
    link->out.length = 0;
    pthread_mutex_lock(&store->lock);
    borrowed_remove(link);
    bool keep = !link->broken && link->epoch == atomic_load(&store->epoch) && store->idle_count < MC_LINKS_IDLE_MAX &&
                !atomic_load(&store->closing);
    if (keep) {
        link->next = store->idle;
        store->idle = link;
        store->idle_count++;
    }
    pthread_mutex_unlock(&store->lock);
    if (!keep)
        mc_link_free(link);
}

int mc_link_send(struct mc_link *link, uint64_t deadline_ns)
{
    struct iovec part = {link->out.data, link->out.length};
    int rc = link->out.length == 0 ? 0 : mc_socket_send(link->fd, &part, 1, deadline_ns);
    link->out.length = 0;
    if (rc < 0)
        link->broken = true;
    return rc;
}

/* Waits no longer for a master that is away, whatever the deadline. */
static int64_t receive_frame(struct mc_link *link, struct mc_frame *frame, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t look_ns = mc_clock_ns() + LOOK_MS * 1000000ull;
        bool last = look_ns >= deadline_ns;
        int64_t used = mc_socket_receive_frame(link->fd, &link->in, frame, last ? deadline_ns : look_ns, &link->spin);
        if (used != MC_ERR_RPC_TIMEOUT || last)
            return used;
        if (mc_master_is_away(link->store))
            return MC_ERR_RPC_FAIL;
    }
}

/* The code of a FAILED. */
static int read_failed(struct mc_link *link, struct mc_reader *reader)
{
    struct mc_wire_failed failed;
    mc_wire_failed_read(reader, &failed);
    link->retry_after_ms = failed.retry_after_ms;
    if (reader->bad || failed.code >= 0)
        return MC_ERR_PROTOCOL;
    if (failed.code == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS)
        link->broken = true; /* it leads no more */
    return failed.code;
}

int mc_link_receive(struct mc_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                    struct mc_reader *reader)
{
    struct mc_frame frame;
    mc_buffer_consume(&link->in, link->used);
    link->used = 0;
    int64_t used = receive_frame(link, &frame, deadline_ns);
    if (used < 0) {
        /* A writer that waits for PUT_DONE may ask again; nobody else can tell a late answer from his own. */
        link->broken = used != MC_ERR_RPC_TIMEOUT || type != MC_MESSAGE_PUT_DONE;
        return (int)used;
    }
    /* What was removed or put is an act. */
    bool acts = frame.type == MC_MESSAGE_PUT_DONE || frame.type == MC_MESSAGE_REMOVE_REPLY ||
                frame.type == MC_MESSAGE_COUNT_REPLY;
    mc_master_heard(link->store, link->epoch, acts, frame.time);
    link->used = (size_t)used;
    *reader = mc_reader(frame.body.data, frame.body.length);
    if (frame.request_id != request_id || (frame.type != type && frame.type != MC_MESSAGE_FAILED)) {
        mc_log_limited(WARNING, "master answered %s to request %llu where %s to %llu was due",
                       mc_message_name(frame.type), (unsigned long long)frame.request_id, mc_message_name(type),
                       (unsigned long long)request_id);
        link->broken = true;
        return MC_ERR_PROTOCOL;
    }
    return frame.type == MC_MESSAGE_FAILED ? read_failed(link, reader) : 0;
}

/* ---- calls ---- */

struct attempt {
    bool repeated;           /* the request may have been carried out though its answer was lost */
    uint32_t retry_after_ms; /* the master's wish */
};

static int attempt(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                   enum mc_message reply, struct mc_link **link, struct mc_reader *reader, struct attempt *attempt)
{
    for (;;) {
        attempt->retry_after_ms = 0;
        int rc = mc_link_borrow(store, deadline_ns, link);
        if (rc < 0)
            return rc;
        uint64_t request_id = ++(*link)->request_id;
        build(&(*link)->out, request_id, context);
        rc = mc_link_send(*link, deadline_ns);
        if (rc == 0) {
            (*link)->retry_after_ms = 0;
            rc = mc_link_receive(*link, reply, request_id, deadline_ns, reader);
            attempt->repeated = attempt->repeated || (rc < 0 && (*link)->broken);
        }
        (*link)->repeated = attempt->repeated;
        if (rc == 0)
            return 0;
        bool again = rc == MC_ERR_RPC_FAIL && (*link)->reused && (*link)->broken && !mc_master_is_away(store);
        attempt->retry_after_ms = (*link)->retry_after_ms;
        mc_link_return(store, *link);
        *link = NULL;
        if (!again)
            return rc;
    }
}

int mc_link_try(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                enum mc_message reply, struct mc_link **link, struct mc_reader *reader)
{
    struct attempt one = {.repeated = false};
    return attempt(store, deadline_ns, build, context, reply, link, reader, &one);
}

/* Sleeps; false when the deadline comes first, or the store is being closed. */
static bool wait_for_retry(struct mc_store *store, uint64_t wait_ms, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns(), end_ns = now_ns + wait_ms * 1000000ull;
    if (end_ns >= deadline_ns)
        return false;
    atomic_fetch_add_explicit(&store->retries, 1, memory_order_relaxed);
    for (; now_ns < end_ns && !atomic_load(&store->closing); now_ns = mc_clock_ns()) {
        uint64_t left_us = (end_ns - now_ns) / 1000 + 1, most_us = LOOK_MS * 1000u;
        usleep((useconds_t)(left_us < most_us ? left_us : most_us));
    }
    return !atomic_load(&store->closing);
}

int mc_link_call(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                 enum mc_message reply, struct mc_link **link, struct mc_reader *reader)
{
    struct attempt all = {.repeated = false};
    for (uint64_t backoff_ms = RETRY_FIRST_MS;; backoff_ms *= 2) {
        if (mc_master_is_away(store))
            return MC_ERR_RPC_FAIL;
        int rc = attempt(store, deadline_ns, build, context, reply, link, reader, &all);
        if (rc != MC_ERR_BUSY && !mc_master_is_gone(rc))
            return rc;
        backoff_ms = backoff_ms > RETRY_LAST_MS ? RETRY_LAST_MS : backoff_ms;
        /* Partly random, so that those whom one failure hit do not come back in step. */
        uint64_t wait_ms = all.retry_after_ms > 0 ? all.retry_after_ms : backoff_ms / 2;
        wait_ms += mc_random_u64() % (wait_ms / (all.retry_after_ms > 0 ? 8 : 1) + 1);
        if (!wait_for_retry(store, wait_ms, deadline_ns))
            return rc == MC_ERR_BUSY ? MC_ERR_RPC_TIMEOUT : MC_ERR_RPC_FAIL;
    }
}
