/* Connections to the master: whom to believe, the idle stack, hello, request and reply in the calling thread. */
#include "store/client/link.h"

#include "base/build.h"
#include "base/error.h"
#include "store/segment/layout.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/client/avoid.h"
#include "store/client/blank.h"
#include "store/client/endpoints.h"
#include "store/client/hello.h"
#include "store/client/master.h"
#include "store/client/state.h"
#include "store/wire/proof.h"
#include "store/wire/stream.h"
#include "store/wire/trace.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_FIRST_MS 10u /* between tries of one call, doubling, half of it random */
#define RETRY_LAST_MS 200u
#define RACE_LINKS_MAX 4u /* on which one question is asked */
#define RACE_PAID 2u      /* of those after the first, so many come out of the master's credit */
#define RACE_LATER_MS 250u
#define NUDGES_MAX 5u      /* of one wait, each after twice the time of the one before */
#define SEND_NS 1000000ull /* for what a fresh or idle link takes at once */
#define DEAD_MS 700u       /* a link on which nothing is confirmed for so long is of no use */
#define LOOK_MS 200u       /* a call that waits for its answer looks so often whether the master is away */
/* ---- links ---- */

void mc_links_free(struct mc_master_link *list)
{
    for (struct mc_master_link *next; list != NULL; list = next) {
        next = list->next;
        mc_link_free(list);
    }
}

struct mc_master_link *mc_links_take_idle(struct mc_store *store)
{
    struct mc_master_link *old = store->idle;
    store->idle = NULL;
    store->idle_count = 0;
    return old;
}

/* Takes fd. NULL: no memory, and fd stays the caller's. */
static struct mc_master_link *link_new(struct mc_store *store, int fd)
{
    struct mc_master_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    link->store = store;
    link->in.may_fail = link->out.may_fail = true;
    link->fd = fd;
    return link;
}

static void agree(struct mc_master_link *link, const struct mc_wire_hello_reply *reply)
{
    (void)mc_wire_agree(&link->agreed, reply->version_min, reply->version_max, reply->features);
    atomic_store_explicit(&link->store->master_has_blanks, mc_wire_can(&link->agreed, MC_FEATURE_BLANKS),
                          memory_order_relaxed);
}

static int link_connect(struct mc_store *store, uint64_t deadline_ns, struct mc_master_link **made)
{
    struct mc_wire_hello_reply reply = {0};
    int fd = mc_master_greet(store, MC_ROLE_CALL, true, deadline_ns, &reply);
    if (fd < 0)
        return fd;
    struct mc_master_link *link = link_new(store, fd);
    if (link == NULL) {
        mc_fd_close(fd);
        return MC_ERR_NO_MEMORY;
    }
    link->epoch = reply.epoch;
    if (!mc_tcp_peer(fd, &link->peer))
        link->peer.length = 0;
    agree(link, &reply); /* greet has looked */
    *made = link;
    return 0;
}

void mc_link_free(struct mc_master_link *link)
{
    mc_fd_close(link->fd);
    free(link->prover);
    mc_buffer_free(&link->in);
    mc_buffer_free(&link->out);
    free(link);
}

/* Lock held. */
static void borrowed_add(struct mc_store *store, struct mc_master_link *link)
{
    link->next_borrowed = store->borrowed;
    link->borrowed_at = &store->borrowed;
    if (store->borrowed != NULL)
        store->borrowed->borrowed_at = &link->next_borrowed;
    store->borrowed = link;
}

static void borrowed_remove(struct mc_master_link *link)
{
    *link->borrowed_at = link->next_borrowed;
    if (link->next_borrowed != NULL)
        link->next_borrowed->borrowed_at = link->borrowed_at;
}

/* Is it still owed an answer of which nothing has come? Then its packets may be on their way for long. */
static bool is_stuck(const struct mc_master_link *link)
{
    return link->owed != 0 && mc_socket_is_silent(link->fd);
}

/* Did the master close it while it rested? A request on it would be lost, and could not be told from one that the
 * master had carried out. */
static bool is_ended(const struct mc_master_link *link, uint64_t now_ns)
{
    return now_ns - link->idle_since_ns >= MC_LINK_SETTLE_MS * 1000000ull && mc_socket_has_ended(link->fd);
}

/* Lock held. An idle link, or NULL; there are none of an older epoch, mc_hello_met sees to it. */
struct mc_master_link *mc_link_pop(struct mc_store *store)
{
    struct mc_master_link **at = &store->idle;
    uint64_t now_ns = mc_clock_ns();
    while (*at != NULL) {
        struct mc_master_link *ended = *at;
        if (is_ended(ended, now_ns)) {
            *at = ended->next;
            store->idle_count--;
            mc_link_free(ended);
        } else if (is_stuck(ended)) {
            at = &ended->next;
        } else {
            break;
        }
    }
    struct mc_master_link *link = *at;
    if (link != NULL) {
        *at = link->next;
        store->idle_count--;
        borrowed_add(store, link);
        link->reused = true;
    }
    return link;
}

int mc_link_borrow(struct mc_store *store, uint64_t deadline_ns, struct mc_master_link **link)
{
    pthread_mutex_lock(&store->lock);
    *link = mc_link_pop(store);
    pthread_mutex_unlock(&store->lock);
    if (*link != NULL)
        return 0;
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

void mc_link_return(struct mc_store *store, struct mc_master_link *link)
{
    link->out.length = 0;
    link->idle_since_ns = mc_clock_ns();
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

void mc_links_rest(struct mc_store *store, uint64_t now_ns)
{
    pthread_mutex_lock(&store->lock);
    struct mc_master_link **at = &store->idle; /* the one used last comes first */
    for (; *at != NULL && now_ns - (*at)->idle_since_ns < MC_LINK_IDLE_MS * 1000000ull; at = &(*at)->next) {
        if (now_ns - (*at)->idle_since_ns < MC_LINK_SETTLE_MS * 1000000ull)
            continue;
        mc_buffer_free(&(*at)->out);
        if ((*at)->in.length > (*at)->used) /* the start of an answer that it is owed: the rest will come */
            continue;
        mc_buffer_free(&(*at)->in); /* what is in it was read: the next receive drops it */
        (*at)->used = 0;
    }
    struct mc_master_link *old = *at;
    *at = NULL;
    for (const struct mc_master_link *link = old; link != NULL; link = link->next)
        store->idle_count--;
    pthread_mutex_unlock(&store->lock);
    mc_links_free(old);
}

int mc_link_send(struct mc_master_link *link, uint64_t deadline_ns)
{
    struct iovec part = {link->out.data, link->out.length};
    int rc = link->out.failed        ? MC_ERR_NO_MEMORY
             : link->out.length == 0 ? 0
                                     : mc_socket_send(link->fd, &part, 1, deadline_ns);
    link->out.length = 0;
    if (rc < 0)
        link->broken = true;
    return rc;
}

/* Waits no longer for a master that is away, whatever the deadline. */
static int64_t receive_frame(struct mc_master_link *link, struct mc_frame *frame, uint64_t deadline_ns)
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
static int read_failed(struct mc_master_link *link, struct mc_reader *reader)
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

/* The answer to a nudge, or to a question that nobody waits for any more. */
static bool is_nobodys(const struct mc_master_link *link, const struct mc_frame *frame)
{
    return ((frame->type == MC_MESSAGE_PONG || frame->type == MC_MESSAGE_PUT_BLANKS) && frame->request_id == 0) ||
           (link->owed != 0 && frame->request_id <= link->owed);
}

/* The next frame, which must be of that type and request (FAILED: its code is returned). The reader is over its body
 * and valid until the next receive. After MC_ERR_RPC_TIMEOUT the link can be listened to again. */
static int receive_one(struct mc_master_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                       struct mc_reader *reader)
{
    struct mc_frame frame;
    do {
        mc_buffer_consume(&link->in, link->used);
        link->used = 0;
        int64_t used = receive_frame(link, &frame, deadline_ns);
        if (used < 0) {
            link->broken = link->broken || used != MC_ERR_RPC_TIMEOUT;
            return (int)used;
        }
        link->used = (size_t)used;
        /* What was removed or put is an act. */
        bool acts = frame.type == MC_MESSAGE_PUT_DONE || frame.type == MC_MESSAGE_REMOVE_REPLY ||
                    frame.type == MC_MESSAGE_COUNT_REPLY;
        mc_master_heard(link->store, link->epoch, acts, frame.time);
        if (frame.type == MC_MESSAGE_PUT_BLANKS)
            mc_blank_take(link, frame.body);
    } while (is_nobodys(link, &frame));
    link->owed = 0;
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

/* A frame that means nothing, behind what may have been lost; its answer comes behind an answer that may have been. */
static void link_nudge(struct mc_master_link *link)
{
    uint8_t bytes[MC_FRAME_HEADER_SIZE + 8];
    struct mc_buffer out = {.data = bytes, .capacity = sizeof(bytes)};
    if (link->peer.length == 0) /* a unix socket loses nothing */
        return;
    mc_frame_bare(&out, MC_MESSAGE_PING, 0);
    if (mc_socket_send_small(link->fd, out.data, out.length) < 0)
        (void)shutdown(link->fd, SHUT_RDWR); /* the receive that goes on will see it */
}

/* Nothing of the question was confirmed: the link is lost, and so may those be that rest, which have the same way. */
static bool is_lost(struct mc_master_link *link, uint64_t asked_ns)
{
    if (mc_clock_ns() - asked_ns < DEAD_MS * 1000000ull || !mc_tcp_is_dead(link->fd, DEAD_MS))
        return false;
    mc_log_limited(
        WARNING, "a connection to the master is dead, nothing on it was confirmed for %u ms: another is made", DEAD_MS);
    link->broken = true;
    pthread_mutex_lock(&link->store->lock);
    struct mc_master_link *old = mc_links_take_idle(link->store);
    pthread_mutex_unlock(&link->store->lock);
    mc_links_free(old);
    return true;
}

int mc_link_await(struct mc_master_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                  const struct mc_link_wait *wait, struct mc_reader *reader)
{
    uint64_t asked_ns = mc_clock_ns(), due_ns = asked_ns + wait->late_ns;
    for (unsigned nudged = 0;;) {
        bool nudges = nudged < NUDGES_MAX && due_ns < deadline_ns;
        uint64_t look_ns = mc_clock_ns() + DEAD_MS * 1000000ull, until_ns = nudges ? due_ns : deadline_ns;
        int rc = receive_one(link, type, request_id, until_ns < look_ns ? until_ns : look_ns, reader);
        if (rc != MC_ERR_RPC_TIMEOUT || mc_clock_ns() >= deadline_ns)
            return rc;
        if (is_lost(link, asked_ns))
            return MC_ERR_RPC_FAIL;
        if (!nudges || mc_clock_ns() < due_ns)
            continue;
        due_ns = mc_clock_ns() + (wait->late_ns << ++nudged);
        if (!mc_pace_pay(wait->pace)) /* it is slow for all, not for a lost packet */
            continue;
        link_nudge(link);
        if (wait->nudge != NULL)
            wait->nudge(wait->context);
    }
}

/* Of what changes something and is answered by the master itself; removals wait for owners. */
static int receive_change(struct mc_master_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                          struct mc_reader *reader)
{
    struct mc_pace *pace = &link->store->change_pace;
    struct mc_link_wait wait = {.pace = pace, .late_ns = mc_pace_late_ns(pace)};
    uint64_t start_ns = mc_clock_ns();
    int rc = mc_link_await(link, type, request_id, deadline_ns, &wait, reader);
    if (rc == MC_ERR_RPC_TIMEOUT) /* the next one cannot tell a late answer from his own */
        link->broken = true;
    uint64_t took_ns = mc_clock_ns() - start_ns;
    if (rc == 0 && type == MC_MESSAGE_PUT_GRANTED) /* a lost packet that was made up for is no pace */
        mc_pace_sample(pace, took_ns < wait.late_ns ? took_ns : wait.late_ns);
    return rc;
}

/* ---- a question that is asked again while its answer is late ---- */

struct race {
    struct mc_store *store;
    mc_link_build *build;
    const void *context;
    enum mc_message reply;
    struct mc_master_link *links[RACE_LINKS_MAX];
    uint64_t ids[RACE_LINKS_MAX], asked_ns[RACE_LINKS_MAX];
    size_t count;
    uint64_t epoch;  /* of the master that was asked first */
    uint64_t due_ns; /* when the next link is to be asked */
    uint32_t turn;
    bool opens; /* one of them or two: store->link_coming is ours until the end */
};

/* Does the master only read for it? Then it may be asked twice. */
static bool is_reading(enum mc_message reply)
{
    return reply == MC_MESSAGE_GET_FOUND || reply == MC_MESSAGE_EXIST_REPLY || reply == MC_MESSAGE_SEGMENT_REPLY ||
           reply == MC_MESSAGE_SEGMENTS_REPLY;
}

static void race_asked(struct race *race, struct mc_master_link *link, uint64_t id)
{
    race->links[race->count] = link;
    race->ids[race->count] = id;
    race->asked_ns[race->count++] = mc_clock_ns();
}

static void race_plan(struct race *race)
{
    uint64_t late_ns = mc_pace_late_ns(&race->store->master_pace);
    uint64_t wait_ns = race->turn < RACE_PAID ? late_ns : RACE_LATER_MS * 1000000ull + late_ns;
    race->due_ns = race->count == RACE_LINKS_MAX ? UINT64_MAX : mc_clock_ns() + wait_ns;
}

/* The link leaves the race; the answer it is owed is nobody's. */
static void race_leave(struct race *race, size_t index)
{
    struct mc_master_link *link = race->links[index];
    if (link->connecting || link->greeting)
        link->broken = true;
    link->owed = race->ids[index];
    race->count--;
    race->links[index] = race->links[race->count];
    race->ids[index] = race->ids[race->count];
    race->asked_ns[index] = race->asked_ns[race->count];
    mc_link_return(race->store, link);
}

/* Begins a link to where the first one goes; hello and question go out as soon as it stands. One call at a time opens
 * links so; it may open the next one when the packets of the first were lost, too. */
static struct mc_master_link *link_begin(struct race *race, uint64_t *id)
{
    struct mc_store *store = race->store;
    bool is_other = false;
    if (!race->opens && !atomic_compare_exchange_strong(&store->link_coming, &is_other, true))
        return NULL;
    race->opens = true;
    struct mc_prover *prover = NULL;
    bool has_key = mc_keys_are_wanted();
    if (has_key)
        prover = calloc(1, sizeof(*prover));
    int fd = has_key && prover == NULL ? MC_ERR_NO_MEMORY : mc_tcp_begin(&race->links[0]->peer);
    bool is_secured = fd >= 0 && mc_secure_call_like(fd, race->links[0]->fd) == 0;
    struct mc_master_link *link = is_secured ? link_new(store, fd) : NULL;
    if (link == NULL) {
        free(prover);
        mc_fd_close(fd);
        return NULL;
    }
    link->epoch = UINT64_MAX; /* of whoever answers: nobody newer shuts it down meanwhile */
    link->request_id = 1;
    link->peer = race->links[0]->peer;
    link->connecting = true;
    link->prover = prover;
    mc_hello_write(store, &link->out, MC_ROLE_CALL);
    *id = ++link->request_id; /* without a TRACE: the peer has not said yet whether it takes any */
    race->build(&link->out, *id, race->context);
    pthread_mutex_lock(&store->lock);
    borrowed_add(store, link);
    pthread_mutex_unlock(&store->lock);
    return link;
}

/* The answer is late: asks on one more link. The last is always a new one: the way of all that rest may be gone. */
static void race_widen(struct race *race)
{
    struct mc_store *store = race->store;
    uint64_t id;
    if (race->turn < RACE_PAID && !mc_pace_pay(&store->master_pace)) {
        race->turn = RACE_PAID;
        race_plan(race);
        return;
    }
    race->turn++;
    pthread_mutex_lock(&store->lock);
    struct mc_master_link *link = race->count + 1 < RACE_LINKS_MAX ? mc_link_pop(store) : NULL;
    pthread_mutex_unlock(&store->lock);
    if (link != NULL) {
        id = ++link->request_id;
        mc_wire_trace_tell(&link->out, id, &link->agreed);
        race->build(&link->out, id, race->context);
        if (mc_link_send(link, mc_clock_ns() + SEND_NS) < 0) {
            mc_link_return(store, link);
            link = NULL;
        }
    } else {
        link = link_begin(race, &id);
    }
    if (link != NULL)
        race_asked(race, link, id);
    race_plan(race);
}

/* Sends a message that is not in link->out, where hello and question wait. */
static int link_say(struct mc_master_link *link, struct mc_buffer *out)
{
    struct iovec part = {out->data, out->length};
    int rc = out->failed ? MC_ERR_NO_MEMORY : mc_socket_send(link->fd, &part, 1, mc_clock_ns() + SEND_NS);
    mc_buffer_free(out);
    return rc;
}

/* It stands: the proof is begun. 0 or negative. */
static int link_prove(struct mc_master_link *link)
{
    struct mc_buffer out = {.may_fail = true};
    struct mc_key key;
    if (!mc_keys_own(&key) || key.id[0] == 0)
        return MC_ERR_NOT_PERMITTED;
    mc_prover_begin(link->prover, mc_span_string(key.id), key.secret, &out);
    explicit_bzero(key.secret, sizeof(key.secret));
    return link_say(link, &out);
}

/* The master's proof has come. */
static int link_proved(struct mc_master_link *link, const struct mc_frame *frame)
{
    struct mc_buffer out = {.may_fail = true};
    char why[MC_PROOF_TEXT_MAX];
    int rc = mc_prover_take(link->prover, frame, &out, why);
    explicit_bzero(link->prover, sizeof(*link->prover));
    free(link->prover);
    link->prover = NULL;
    if (rc < 0)
        mc_buffer_free(&out);
    return rc < 0 ? rc : link_say(link, &out);
}

/* Something has happened on a link that is on its way. 0: it stands; MC_ERR_RPC_TIMEOUT: not yet; or how it failed. */
static int link_step(struct race *race, struct mc_master_link *link)
{
    struct mc_wire_hello_reply reply;
    struct mc_hello_said said = {.asked_ms = link->asked_ms};
    struct mc_frame frame;
    if (link->connecting || link->shaking) {
        int rc = link->shaking ? 0 : mc_tcp_begun(link->fd);
        int shaken = rc == 0 ? mc_secure_shake(link->fd) : rc;
        link->connecting = false;
        link->shaking = shaken == 0;
        link->greeting = true;
        link->asked_ms = mc_clock_boot_ms();
        if (shaken == 1)
            rc = link->prover != NULL ? link_prove(link) : mc_link_send(link, mc_clock_ns() + SEND_NS);
        return rc == 0 && shaken >= 0 ? MC_ERR_RPC_TIMEOUT : MC_ERR_RPC_FAIL;
    }
    int64_t used = mc_socket_receive_frame(link->fd, &link->in, &frame, mc_clock_ns(), NULL);
    if (used < 0)
        return (int)used;
    if (link->prover != NULL) {
        int proved = link_proved(link, &frame);
        mc_buffer_consume(&link->in, (size_t)used);
        link->asked_ms = mc_clock_boot_ms();
        if (proved == 0)
            proved = mc_link_send(link, mc_clock_ns() + SEND_NS);
        return proved == 0 ? MC_ERR_RPC_TIMEOUT : MC_ERR_RPC_FAIL;
    }
    int rc = mc_hello_read(&frame, &reply, &said);
    mc_buffer_consume(&link->in, (size_t)used);
    if (rc == 0)
        rc = mc_hello_met(race->store, race->store->master.configured, &reply, &said);
    if (rc < 0)
        return MC_ERR_RPC_FAIL;
    agree(link, &reply); /* mc_hello_read has looked */
    pthread_mutex_lock(&race->store->lock);
    link->epoch = reply.epoch;
    bool current = link->epoch == atomic_load(&race->store->epoch);
    pthread_mutex_unlock(&race->store->lock);
    link->greeting = false;
    return current ? 0 : MC_ERR_RPC_FAIL;
}

/* Waits for the links; looks what has come on the one at *index. As receive_one. */
static int race_receive(struct race *race, uint64_t until_ns, size_t *index, struct mc_reader *reader)
{
    struct pollfd fds[RACE_LINKS_MAX];
    uint64_t now_ns = mc_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    bool holds = false; /* what no poll sees */
    for (size_t i = 0; i < race->count; i++) {
        fds[i] = (struct pollfd){.fd = race->links[i]->fd, .events = race->links[i]->connecting ? POLLOUT : POLLIN};
        holds = holds || mc_socket_holds(race->links[i]->fd);
    }
    if (ppoll(fds, (nfds_t)race->count, holds ? &(struct timespec){0} : &left, NULL) <= 0 && !holds)
        return MC_ERR_RPC_TIMEOUT;
    for (size_t i = 0; i < race->count; i++) {
        struct mc_master_link *link = race->links[i];
        if (fds[i].revents == 0 && !mc_socket_holds(link->fd))
            continue;
        *index = i;
        int rc = 0;
        if (link->connecting || link->greeting) {
            rc = link_step(race, link);
            link->broken = link->broken || (rc < 0 && rc != MC_ERR_RPC_TIMEOUT);
        }
        if (rc == 0)
            rc = receive_one(link, race->reply, race->ids[i], mc_clock_ns(), reader);
        if (rc != MC_ERR_RPC_TIMEOUT)
            return rc;
    }
    return MC_ERR_RPC_TIMEOUT;
}

/* Another master was met meanwhile, and none of the links is to that one: what is asked there is not answered any more,
 * and who listens at that address may be stopped. */
static bool race_is_over(const struct race *race)
{
    uint64_t epoch = atomic_load(&race->store->epoch);
    for (size_t i = 0; i < race->count; i++)
        if (race->links[i]->epoch == epoch)
            return false;
    return race->epoch != epoch;
}

/* Waits for the answer to what was asked on *link as that request. *link becomes the link that it came on. */
static int receive_first(struct race *race, struct mc_master_link **link, uint64_t request_id, uint64_t deadline_ns,
                         struct mc_reader *reader)
{
    size_t winner = 0;
    int rc;
    race->epoch = (*link)->epoch;
    race_asked(race, *link, request_id);
    for (race_plan(race);;) {
        uint64_t until_ns = race->due_ns < deadline_ns ? race->due_ns : deadline_ns;
        uint64_t look_ns = mc_clock_ns() + LOOK_MS * 1000000ull;
        until_ns = until_ns < look_ns ? until_ns : look_ns;
        rc = race->count == 1 && !race->links[0]->connecting && !race->links[0]->greeting
                 ? receive_one(race->links[0], race->reply, race->ids[0], until_ns, reader)
                 : race_receive(race, until_ns, &winner, reader);
        winner = race->count == 1 ? 0 : winner;
        if (rc < 0 && rc != MC_ERR_RPC_TIMEOUT && race->links[winner]->broken && race->count > 1) {
            race_leave(race, winner); /* the others may do better */
            winner = 0;
            continue;
        }
        uint64_t now_ns = mc_clock_ns();
        if (rc != MC_ERR_RPC_TIMEOUT || now_ns >= deadline_ns)
            break;
        if (mc_master_is_away(race->store) || race_is_over(race)) {
            rc = MC_ERR_RPC_FAIL;
            break;
        }
        if (now_ns >= race->due_ns)
            race_widen(race);
    }
    bool is_silent = rc == MC_ERR_RPC_TIMEOUT || rc == MC_ERR_RPC_FAIL;
    if (!is_silent)
        mc_pace_sample(&race->store->master_pace, mc_clock_ns() - race->asked_ns[winner]);
    *link = race->links[winner];
    (*link)->broken = (*link)->broken || is_silent;
    while (race->count > 1) {
        size_t other = winner == 0 ? 1 : 0;
        race->links[other]->broken = race->links[other]->broken || is_silent;
        winner = winner == race->count - 1 ? other : winner; /* the last takes the place of the one that leaves */
        race_leave(race, other);
    }
    if (race->opens)
        atomic_store(&race->store->link_coming, false);
    return rc;
}

/* ---- calls ---- */

struct attempt {
    bool repeated;           /* the request may have been carried out though its answer was lost */
    uint32_t retry_after_ms; /* the master's wish */
    int feature;             /* that the master must have for it; negative: none */
};

/* May the master be asked? One that was met anew since may know more: only a new link says that it may not. */
static bool may_ask(struct mc_master_link *link, int feature)
{
    bool may = feature < 0 || mc_wire_can(&link->agreed, (enum mc_feature)feature);
    link->broken = link->broken || (!may && link->reused);
    return may;
}

static int attempt(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                   enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader,
                   struct attempt *attempt)
{
    for (;;) {
        attempt->retry_after_ms = 0;
        int rc = mc_link_borrow(store, deadline_ns, link);
        if (rc < 0)
            return rc;
        if (!may_ask(*link, attempt->feature)) {
            bool is_new = !(*link)->reused;
            mc_link_return(store, *link);
            *link = NULL;
            if (is_new)
                return MC_ERR_NOT_SUPPORTED;
            continue;
        }
        uint64_t request_id = ++(*link)->request_id;
        mc_wire_trace_tell(&(*link)->out, request_id, &(*link)->agreed);
        build(&(*link)->out, request_id, context);
        rc = mc_link_send(*link, deadline_ns);
        if (rc == 0) {
            (*link)->retry_after_ms = 0;
            struct race race = {.store = store, .build = build, .context = context, .reply = reply};
            rc = is_reading(reply) && (*link)->peer.length != 0
                     ? receive_first(&race, link, request_id, deadline_ns, reader)
                     : receive_change(*link, reply, request_id, deadline_ns, reader);
            attempt->repeated = attempt->repeated || (rc < 0 && (*link)->broken);
        }
        (*link)->repeated = attempt->repeated;
        if (rc == 0) {
            if (mc_store_tell(store, (*link)->epoch, &(*link)->out))
                (void)mc_link_send(*link, mc_clock_ns() + 1000000ull); /* not worth any wait */
            return 0;
        }
        bool again = rc == MC_ERR_RPC_FAIL && (*link)->reused && (*link)->broken && !mc_master_is_away(store);
        attempt->retry_after_ms = (*link)->retry_after_ms;
        mc_link_return(store, *link);
        *link = NULL;
        if (!again)
            return rc;
    }
}

int mc_link_try(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader)
{
    struct attempt one = {.feature = -1};
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
                 enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader)
{
    return mc_link_call_if(store, -1, deadline_ns, build, context, reply, link, reader);
}

int mc_link_call_if(struct mc_store *store, int feature, uint64_t deadline_ns, mc_link_build *build,
                    const void *context, enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader)
{
    struct attempt all = {.feature = feature};
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
