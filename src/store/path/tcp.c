/* Transport `tcp`: a pool of connections ("lanes") to one owner; a batch borrows one or a few of them and runs in the
 * calling thread.
 *
 * A packet that is lost holds up its connection for 200 ms and more, so a READ without an answer is asked for on
 * another lane as soon as it is late for that owner (base/pace.h), and again: a lane that was passed over keeps its
 * chance, and the one that was asked last watches. Only an owner that gave no sign of life on any lane for MC_STALL_NS
 * has failed. A lane whose answers nobody waits for any more is owed them: it rests until they have come. */
#include "store/path/tcp_open.h"

#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_MAX 8u               /* lanes kept per path */
#define IDLE_TRUST_NS 10000000ull /* a lane that rested longer is looked at before it is used */
#define ONE_LANE_BYTES (1u << 20) /* batches below use one lane */
#define RUN_LANES_MAX 8u
#define OWING_MAX 4u           /* lanes kept per path that are owed answers */
#define OWING_NS 3000000000ull /* so long */
#define WAIT_NS 100000000ull
#define AWAY_NS 50000000ull /* a wait that ends so much too late: it was us who did not run */
/* So often a question is asked again out of the owner's credit, which keeps the work of a slow one from growing (a
 * longer wait each time would only make the loss of two packets dear), */
#define TURNS_PAID 2u
#define TURNS_MAX 4u /* and so often at all */
#define TURN_LATER_NS 250000000ull
#define REFUSALS 2u    /* by each address of an owner that is silent: it has ended */
#define RESCUES_MAX 2u /* of lanes that broke, in a batch */
#define JOBS_ON_STACK 16u
#define BUSY_WAIT_NS 500000000ull /* a batch waits so long for a lane, then others may know a better place */
#define BUSY_FIRST_NS 5000000ull  /* between tries to open one, doubling, half of it random */
#define BUSY_LAST_NS 100000000ull

struct waiter { /* one who waits for a lane: on its thread's stack, in its path's list */
    struct mc_tcp_lane *lane;
    struct waiter *next;
};

struct tcp_path {
    struct mc_path path;
    struct mc_tcp_address peers[MC_TCP_PEERS_MAX]; /* of the owner, found when the path was opened */
    size_t peer_count;
    struct mc_pace pace;
    pthread_mutex_t lock;             /* guards the lists */
    pthread_cond_t given;             /* a waiter got a lane */
    struct waiter *waiting;           /* who came first is first, and gets the next lane that is given back */
    struct mc_tcp_lane *idle, *owing; /* the one used last comes first */
    struct mc_tcp_rest *resting;      /* idle for longer, the same order */
    uint32_t idle_count, owing_count; /* idle_count: with those that rest */
};

struct tcp_batch { /* one mc_path_run */
    struct tcp_path *tcp;
    struct mc_tcp_run run;
    struct mc_motion motion;
    struct mc_tcp_opener opener;
    uint32_t *tables; /* of all jobs, or NULL */
    int error;        /* of the last lane that failed */
    uint32_t rescues;
    uint64_t busy_until_ns, busy_wait_ns; /* waits for a lane until then, 0: need not; for the next try */
    bool reopened;
    bool doubted;
    bool was_reset; /* a lane was ended by the peer or its host */
    bool was_worse; /* a lane was silent, or what came was not our protocol */
};

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- the pool ---- */

static bool is_usable(const struct mc_tcp_lane *lane)
{
    return mc_clock_ns() - lane->idle_since_ns < IDLE_TRUST_NS || mc_socket_is_silent(lane->fd);
}

/* Lock held. The idle lane that was used last; NULL: none, or no memory for it. */
static struct mc_tcp_lane *idle_pop(struct tcp_path *tcp)
{
    struct mc_tcp_lane *lane = tcp->idle;
    struct mc_tcp_rest *rest = tcp->resting;
    if (lane != NULL) {
        tcp->idle = lane->next;
    } else if (rest != NULL) {
        struct mc_tcp_rest *next = rest->next;
        lane = mc_tcp_lane_wake(rest);
        tcp->resting = lane != NULL ? next : rest;
    }
    tcp->idle_count -= lane != NULL;
    return lane;
}

static void idle_give(struct tcp_path *tcp, struct mc_tcp_lane *lane)
{
    lane->idle_since_ns = mc_clock_ns();
    pthread_mutex_lock(&tcp->lock);
    struct waiter *first = tcp->waiting;
    bool keep = first != NULL || tcp->idle_count < IDLE_MAX;
    if (first != NULL) { /* not into the list: who gave it back would have it again before the other is awake */
        tcp->waiting = first->next;
        first->lane = lane;
        pthread_cond_broadcast(&tcp->given);
    } else if (keep) {
        lane->next = tcp->idle;
        tcp->idle = lane;
        tcp->idle_count++;
    }
    pthread_mutex_unlock(&tcp->lock);
    if (!keep)
        mc_tcp_lane_close(tcp->path.paths, lane, false);
}

/* Looks what has come for lanes that are owed answers; `more` is one more of them, or NULL. */
static void owing_settle(struct tcp_path *tcp, struct mc_tcp_lane *more)
{
    pthread_mutex_lock(&tcp->lock);
    struct mc_tcp_lane *list = tcp->owing;
    tcp->owing = NULL;
    tcp->owing_count = 0;
    pthread_mutex_unlock(&tcp->lock);
    if (more != NULL) {
        more->next = list;
        list = more;
    }
    for (struct mc_tcp_lane *lane = list, *next; lane != NULL; lane = next) {
        next = lane->next;
        int rc = mc_tcp_lane_drain(lane);
        if (rc > 0) {
            idle_give(tcp, lane);
            continue;
        }
        pthread_mutex_lock(&tcp->lock);
        bool keep = rc == 0 && tcp->owing_count < OWING_MAX && mc_clock_ns() < lane->idle_since_ns + OWING_NS;
        if (keep) {
            lane->next = tcp->owing;
            tcp->owing = lane;
            tcp->owing_count++;
        }
        pthread_mutex_unlock(&tcp->lock);
        if (!keep)
            mc_tcp_lane_close(tcp->path.paths, lane, true);
    }
}

static struct mc_tcp_lane *idle_take(struct tcp_path *tcp)
{
    for (bool settled = false;;) {
        pthread_mutex_lock(&tcp->lock);
        struct mc_tcp_lane *lane = idle_pop(tcp);
        bool is_owed = tcp->owing != NULL;
        pthread_mutex_unlock(&tcp->lock);
        if (lane == NULL && is_owed && !settled) {
            settled = true;
            owing_settle(tcp, NULL);
            continue;
        }
        if (lane == NULL || is_usable(lane))
            return lane;
        mc_tcp_lane_close(tcp->path.paths, lane, false);
    }
}

/* Waits so long for a lane that another thread gives back. */
static struct mc_tcp_lane *idle_wait(struct tcp_path *tcp, uint64_t until_ns)
{
    struct waiter self = {.lane = NULL}, **at = &tcp->waiting;
    pthread_mutex_lock(&tcp->lock);
    bool waits = tcp->idle_count == 0;
    if (waits) {
        while (*at != NULL)
            at = &(*at)->next;
        *at = &self;
        while (self.lane == NULL && mc_monitor_wait(&tcp->lock, &tcp->given, until_ns) == 0)
            continue;
    }
    if (waits && self.lane == NULL) {
        for (at = &tcp->waiting; *at != &self;)
            at = &(*at)->next;
        *at = self.next;
    }
    pthread_mutex_unlock(&tcp->lock);
    return self.lane != NULL ? self.lane : idle_take(tcp);
}

static void lane_join(struct tcp_batch *batch, struct mc_tcp_lane *lane)
{
    lane->progress_ns = mc_clock_ns();
    lane->asked_ns = 0;
    lane->turn = 0;
    lane->readable = lane->is_passed = lane->is_due = false;
    batch->run.lanes[batch->run.lane_count++] = lane;
}

static struct mc_tcp_lane *lane_leave(struct tcp_batch *batch, size_t index)
{
    struct mc_tcp_lane *lane = batch->run.lanes[index];
    batch->run.lanes[index] = batch->run.lanes[--batch->run.lane_count];
    return lane;
}

static void lane_end(struct tcp_batch *batch, size_t index, int code)
{
    struct mc_tcp_lane *lane = lane_leave(batch, index);
    mc_tcp_lane_fail(&batch->run, lane, code);
    mc_tcp_lane_close(batch->tcp->path.paths, lane, true);
}

/* A lane broke. What is wanted from it alone may be asked for elsewhere: the owner may have closed a connection that
 * rested. */
static void lane_drop(struct tcp_batch *batch, size_t index, int code)
{
    struct mc_tcp_lane *lane = batch->run.lanes[index];
    batch->error = code == MC_ERR_RPC_TIMEOUT || mc_socket_is_own(code) ? code : MC_ERR_TRANSFER_FAIL;
    if (code == MC_ERR_TRANSFER_FAIL && batch->rescues < RESCUES_MAX &&
        mc_tcp_lane_bury(&batch->run, lane, batch->tcp->path.paths)) {
        batch->rescues++;
        return;
    }
    lane_end(batch, index, code);
}

/* ---- path ---- */

static int tcp_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                    struct mc_path **path)
{
    if (endpoint->tcp_address[0] == 0)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct tcp_path *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return MC_ERR_NO_MEMORY;
    mc_path_init(&tcp->path, &mc_transport_tcp, paths, endpoint);
    struct mc_tcp_lane *lane = NULL;
    struct mc_tcp_opener opener = {
        .paths = paths, .endpoint = &tcp->path.endpoint, .peers = tcp->peers, .pace = &tcp->pace};
    int rc = mc_tcp_resolve(endpoint->tcp_address, mc_tcp_open_until(patience), tcp->peers, MC_TCP_PEERS_MAX);
    if (rc > 0) {
        opener.peer_count = (size_t)rc;
        rc = mc_tcp_opener_wait(&opener, mc_tcp_open_until(patience), &lane);
        mc_tcp_opener_end(&opener);
        tcp->peer_count = opener.peer_count;
    }
    if (rc < 0 &&
        (rc != MC_ERR_BUSY || tcp->peer_count == 0)) { /* busy: runs wait for their turn, each by its deadline */
        if (!mc_socket_is_own(rc))
            mc_tcp_doubt(endpoint->tcp_address);
        free(tcp);
        return rc;
    }
    if (lane != NULL && mc_tcp_peer(lane->fd, &tcp->peers[0])) /* the address that works */
        tcp->peer_count = 1;
    mc_monitor_init(&tcp->lock, &tcp->given);
    if (lane != NULL)
        idle_give(tcp, lane);
    *path = &tcp->path;
    return 0;
}

static void lanes_close(struct mc_paths *paths, struct mc_tcp_lane *list)
{
    for (struct mc_tcp_lane *lane = list, *next; lane != NULL; lane = next) {
        next = lane->next;
        mc_tcp_lane_close(paths, lane, false);
    }
}

static void rests_close(struct mc_paths *paths, struct mc_tcp_rest *rest)
{
    for (struct mc_tcp_rest *next; rest != NULL; rest = next) {
        next = rest->next;
        mc_paths_fd_close(paths, rest->fd_place);
        free(rest);
    }
}

static void tcp_close(struct mc_path *path)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    lanes_close(path->paths, tcp->idle);
    lanes_close(path->paths, tcp->owing);
    rests_close(path->paths, tcp->resting);
    pthread_cond_destroy(&tcp->given);
    pthread_mutex_destroy(&tcp->lock);
    free(tcp);
}

/* Its resting lanes have all been closed by the peer. One that runs has no part in it. */
static bool tcp_is_ended(struct mc_path *path)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    bool any_open = false;
    pthread_mutex_lock(&tcp->lock);
    for (struct mc_tcp_lane *lane = tcp->idle; lane != NULL && !any_open; lane = lane->next)
        any_open = is_usable(lane);
    for (struct mc_tcp_rest *rest = tcp->resting; rest != NULL && !any_open; rest = rest->next)
        any_open = mc_socket_is_silent(rest->fd);
    bool is_ended = tcp->idle_count > 0 && !any_open;
    pthread_mutex_unlock(&tcp->lock);
    return is_ended;
}

/* Lock held. Lanes that were not used for MC_LANE_SETTLE_MS give their buffers back. */
static void idle_settle(struct tcp_path *tcp, uint64_t now_ns)
{
    struct mc_tcp_lane **at = &tcp->idle;
    struct mc_tcp_rest *rests = NULL, **last = &rests;
    while (*at != NULL && now_ns - (*at)->idle_since_ns < MC_LANE_SETTLE_MS * 1000000ull)
        at = &(*at)->next;
    while (*at != NULL) { /* all behind it have rested longer still */
        struct mc_tcp_lane *next = (*at)->next;
        struct mc_tcp_rest *rest = mc_tcp_lane_settle(*at);
        if (rest == NULL)
            break;
        *at = next;
        *last = rest;
        last = &rest->next;
    }
    *last = tcp->resting;
    tcp->resting = rests;
}

static void tcp_rest(struct mc_path *path, uint64_t now_ns)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    owing_settle(tcp, NULL);
    pthread_mutex_lock(&tcp->lock);
    idle_settle(tcp, now_ns);
    struct mc_tcp_rest **at = &tcp->resting;
    while (*at != NULL && now_ns - (*at)->idle_since_ns < MC_LANE_IDLE_MS * 1000000ull)
        at = &(*at)->next;
    struct mc_tcp_rest *old = *at;
    *at = NULL;
    for (const struct mc_tcp_rest *rest = old; rest != NULL; rest = rest->next)
        tcp->idle_count--;
    pthread_mutex_unlock(&tcp->lock);
    rests_close(path->paths, old);
}

/* One that a small frame could not be sent on is found broken by whoever takes it. */
static void fd_nudge(int fd, const struct mc_buffer *frame)
{
    if (mc_socket_send_small(fd, frame->data, frame->length) < 0)
        (void)shutdown(fd, SHUT_RDWR);
}

/* The lane that the commit went over rests, or another thread sends on it. */
static void tcp_nudge(struct mc_path *path)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    uint8_t bytes[MC_PATH_NUDGE_BYTES];
    struct mc_buffer out = {.data = bytes, .capacity = sizeof(bytes)};
    bool any = false;
    mc_path_nudge_write(&out);
    pthread_mutex_lock(&tcp->lock);
    for (struct mc_tcp_lane *lane = tcp->idle; lane != NULL; lane = lane->next) {
        if (!mc_tcp_is_unconfirmed(lane->fd))
            continue;
        fd_nudge(lane->fd, &out);
        any = true;
    }
    if (!any && tcp->idle != NULL) /* the owner has it; what it told the master may be lost */
        fd_nudge(tcp->idle->fd, &out);
    pthread_mutex_unlock(&tcp->lock);
}

/* ---- a batch ---- */

/* Words of tables that a transfer needs. */
static size_t job_words(const struct mc_transfer *transfer, bool verify)
{
    size_t words = mc_table_length(transfer->object_length, mc_block_shift(transfer->object_length)) / 4;
    return transfer->kind == MC_TRANSFER_WRITE ? words : verify ? 2 * words : 0;
}

static void job_start(struct mc_tcp_job *job, struct mc_transfer *transfer, bool verify, uint32_t **tables)
{
    size_t words = job_words(transfer, verify);
    uint64_t block;
    *job = (struct mc_tcp_job){.transfer = transfer,
                               .cursor = mc_cursor(transfer->parts, transfer->part_count),
                               .shift = mc_block_shift(transfer->object_length),
                               .next = transfer->offset,
                               .end = transfer->offset + transfer->length};
    if (words > 0) {
        job->table = *tables;
        job->sums = transfer->kind == MC_TRANSFER_READ ? *tables + words / 2 : NULL;
        *tables += words;
    }
    if (transfer->kind == MC_TRANSFER_WRITE || !verify)
        return;
    block = 1ull << job->shift;
    job->next &= ~(block - 1);
    job->end = (job->end + block - 1) & ~(block - 1);
    if (job->end > transfer->object_length)
        job->end = transfer->object_length;
}

/* Results of transfers that cannot be run are set. 0 or MC_ERR_NO_MEMORY. */
static int jobs_start(struct tcp_batch *batch, struct mc_transfer **transfers, size_t count)
{
    const struct mc_endpoint *endpoint = &batch->tcp->path.endpoint;
    bool verify = batch->motion.verify;
    size_t words = 0;
    for (size_t i = 0; i < count; i++) {
        transfers[i]->result =
            mc_transfer_check(transfers[i], endpoint->capacity + MC_EXTENT_SLACK, endpoint->slot_count);
        words += transfers[i]->result < 0 ? 0 : job_words(transfers[i], verify);
    }
    batch->tables = words == 0 ? NULL : malloc(words * 4);
    if (words > 0 && batch->tables == NULL)
        return MC_ERR_NO_MEMORY;
    uint32_t *tables = batch->tables;
    for (size_t i = 0; i < count; i++) {
        if (transfers[i]->result == 0)
            job_start(&batch->run.jobs[batch->run.count++], transfers[i], verify, &tables);
    }
    batch->run.open = batch->run.count;
    return 0;
}

/* How many lanes does this pay for? */
static size_t lanes_wanted(const struct tcp_batch *batch)
{
    uint64_t bytes = 0;
    size_t units = 0;
    for (size_t i = 0; i < batch->run.count && units < RUN_LANES_MAX; i++) {
        const struct mc_tcp_job *job = &batch->run.jobs[i];
        bytes += job->end - job->next;
        units +=
            job->transfer->kind == MC_TRANSFER_WRITE ? 1 : (size_t)((job->end - job->next) / MC_TCP_WINDOW_BYTES) + 1;
    }
    size_t limit = batch->tcp->path.paths->lanes_max;
    limit = limit < RUN_LANES_MAX ? limit : RUN_LANES_MAX;
    return bytes < ONE_LANE_BYTES ? 1 : units < limit ? units : limit;
}

static void lanes_start(struct tcp_batch *batch)
{
    size_t wanted = lanes_wanted(batch);
    struct mc_tcp_lane *lane;
    batch->run.heard_ns = mc_clock_ns();
    while (batch->run.lane_count < wanted && (lane = idle_take(batch->tcp)) != NULL)
        lane_join(batch, lane);
    for (size_t count = batch->run.lane_count; count < wanted; count++) {
        if (mc_tcp_opener_begin(&batch->opener) < 0)
            return;
    }
}

static bool is_any_ready(const struct tcp_batch *batch)
{
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        if (batch->run.lanes[i]->state == MC_TCP_READY)
            return true;
    }
    return false;
}

/* Every lane moves what it can. True when one of them wants to go on at once. */
static bool lanes_move(struct tcp_batch *batch)
{
    bool busy = false;
    for (size_t i = 0; i < batch->run.lane_count;) {
        struct mc_tcp_lane *lane = batch->run.lanes[i];
        if (lane->state != MC_TCP_READY) {
            i++;
            continue;
        }
        int sent = mc_tcp_lane_send(&batch->run, lane);
        int received = sent < 0 || !lane->readable ? 0 : mc_tcp_lane_receive(&batch->run, lane);
        if (sent < 0 || received < 0) {
            batch->was_reset = batch->was_reset || sent == MC_ERR_TRANSFER_FAIL || received == MC_ERR_TRANSFER_FAIL;
            batch->was_worse = batch->was_worse || received == MC_ERR_PROTOCOL;
            lane_drop(batch, i, sent < 0 ? sent : received);
            continue;
        }
        lane->readable = received > 0;
        busy = busy || sent > 0 || received > 0;
        i++;
    }
    return busy;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When another lane is to be asked for what is wanted from this one; UINT64_MAX: never, or that is being done. */
static uint64_t lane_due_ns(const struct tcp_batch *batch, const struct mc_tcp_lane *lane)
{
    if (lane->state != MC_TCP_READY || lane->is_passed || lane->is_due || lane->turn >= TURNS_MAX ||
        mc_tcp_lane_is_sending(lane) || mc_tcp_lane_wanted(lane) == 0)
        return UINT64_MAX;
    uint64_t late_ns = mc_pace_late_ns(batch->run.pace);
    return lane->progress_ns + (lane->turn < TURNS_PAID ? late_ns : later(TURN_LATER_NS, late_ns * 2));
}

/* A silence that long is worth a look by others, and one that long is the end. */
static uint64_t doubt_after_ns(const struct tcp_batch *batch)
{
    return later(MC_DOUBT_NS, 2 * mc_pace_late_ns(batch->run.pace));
}
static uint64_t stall_after_ns(const struct tcp_batch *batch)
{
    return later(MC_STALL_NS, 4 * mc_pace_late_ns(batch->run.pace));
}

static uint64_t wait_until_ns(const struct tcp_batch *batch, uint64_t now_ns)
{
    uint64_t until_ns = earliest(now_ns + WAIT_NS, batch->motion.run->deadline_ns);
    if (batch->motion.run->tick != NULL)
        until_ns = earliest(until_ns, batch->motion.next_tick_ns);
    for (size_t i = 0; i < batch->run.lane_count; i++)
        until_ns = earliest(until_ns, lane_due_ns(batch, batch->run.lanes[i]));
    until_ns = earliest(until_ns, mc_tcp_opener_due_ns(&batch->opener));
    uint64_t silence_ns = batch->doubted ? stall_after_ns(batch) : doubt_after_ns(batch);
    if (batch->doubted && batch->motion.run->patience_ns != 0)
        silence_ns = earliest(silence_ns, later(batch->motion.run->patience_ns, doubt_after_ns(batch)));
    return earliest(until_ns, batch->run.heard_ns + silence_ns);
}

/* The peer has done something. That counts as progress now: it may be us who were away for long. */
static void lane_woken(struct tcp_batch *batch, struct mc_tcp_lane *lane)
{
    lane->readable = true;
    lane->progress_ns = batch->run.heard_ns = mc_clock_ns();
}

static void lanes_poll(struct tcp_batch *batch, uint64_t left_ns)
{
    struct pollfd fds[MC_TCP_LANES_MAX + MC_TCP_OPENINGS_MAX];
    struct mc_tcp_lane *polled[MC_TCP_LANES_MAX], *ready;
    size_t count = 0;
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        struct mc_tcp_lane *lane = batch->run.lanes[i];
        if (lane->state != MC_TCP_READY)
            continue;
        fds[count] =
            (struct pollfd){.fd = lane->fd, .events = (short)(POLLIN | (mc_tcp_lane_is_sending(lane) ? POLLOUT : 0))};
        polled[count++] = lane;
    }
    mc_tcp_opener_poll(&batch->opener, fds + count);
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    if (ppoll(fds, (nfds_t)(count + batch->opener.count), &left, NULL) <= 0)
        return;
    for (size_t i = 0; i < count; i++) {
        if (fds[i].revents != 0)
            lane_woken(batch, polled[i]);
    }
    if (batch->opener.count == 0 || (ready = mc_tcp_opener_step(&batch->opener, fds + count)) == NULL)
        return;
    if (!is_any_ready(batch)) /* to connect has its time, and so has what follows */
        batch->run.heard_ns = mc_clock_ns();
    if (batch->run.lane_count < MC_TCP_LANES_MAX)
        lane_join(batch, ready);
    else
        idle_give(batch->tcp, ready);
}

/* The clock went on without us: nobody was silent meanwhile. */
static void lanes_excuse(struct tcp_batch *batch, uint64_t until_ns, uint64_t now_ns)
{
    uint64_t away_ns = now_ns > until_ns ? now_ns - until_ns : 0;
    if (away_ns < AWAY_NS)
        return;
    batch->run.heard_ns = earliest(batch->run.heard_ns + away_ns, now_ns);
    for (size_t i = 0; i < batch->run.lane_count; i++)
        batch->run.lanes[i]->progress_ns = earliest(batch->run.lanes[i]->progress_ns + away_ns, now_ns);
}

/* Waits until a lane can go on, for at most 100 ms; not at all when one is busy, but the others are looked at then too.
 * Returns the time. */
static uint64_t lanes_wait(struct tcp_batch *batch, bool busy)
{
    struct mc_tcp_lane *only =
        batch->run.lane_count == 1 && batch->opener.count == 0 && batch->run.lanes[0]->state == MC_TCP_READY
            ? batch->run.lanes[0]
            : NULL;
    uint64_t now_ns = mc_clock_ns();
    if ((only != NULL && busy) || (batch->run.lane_count == 0 && batch->opener.count == 0))
        return now_ns;
    uint64_t until_ns = busy ? now_ns : later(now_ns, wait_until_ns(batch, now_ns));
    if (only != NULL && !mc_tcp_lane_is_sending(only)) {
        /* A failure other than the time shows at the next receive. */
        if (mc_socket_wait_read(only->fd, until_ns > now_ns ? until_ns : now_ns + 1000, &only->spin) !=
            MC_ERR_RPC_TIMEOUT)
            lane_woken(batch, only);
    } else {
        lanes_poll(batch, until_ns - now_ns);
    }
    now_ns = mc_clock_ns();
    lanes_excuse(batch, until_ns, now_ns);
    return now_ns;
}

/* A lane that has no work, to ask for what is late elsewhere; NULL: there is none, or it is on its way. */
static struct mc_tcp_lane *spare_find(struct tcp_batch *batch, bool fresh)
{
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        struct mc_tcp_lane *lane = batch->run.lanes[i];
        if (lane->state == MC_TCP_READY && mc_tcp_lane_is_idle(lane) && lane->queued == NULL)
            return lane;
    }
    if (batch->run.lane_count == MC_TCP_LANES_MAX)
        return NULL;
    struct mc_tcp_lane *lane = fresh ? NULL : idle_take(batch->tcp);
    if (lane != NULL)
        lane_join(batch, lane);
    else if (batch->opener.count == 0)
        (void)mc_tcp_opener_begin(&batch->opener);
    return lane;
}

/* What is late on a lane, or was lost with it, is asked for on another one. */
static void lanes_pass(struct tcp_batch *batch, uint64_t now_ns)
{
    for (size_t i = 0; i < batch->run.lane_count;) {
        struct mc_tcp_lane *lane = batch->run.lanes[i++];
        bool dead = lane->state == MC_TCP_DEAD;
        if (!dead && !lane->is_due) {
            if (now_ns < lane_due_ns(batch, lane))
                continue;
            if (lane->turn < TURNS_PAID && !mc_pace_pay(batch->run.pace)) {
                lane->turn = TURNS_PAID;
                continue;
            }
            lane->is_due = true;
        }
        if (lane->is_due && (lane->is_passed || mc_tcp_lane_wanted(lane) == 0)) {
            lane->is_due = false;
            continue;
        }
        struct mc_tcp_lane *spare = spare_find(batch, dead);
        if (spare != NULL) {
            mc_tcp_lane_copy(&batch->run, lane, spare);
            if (dead) {
                lane_end(batch, --i, MC_ERR_TRANSFER_FAIL);
                continue;
            }
        } else if (!dead && batch->opener.count == 0) {
            lane->is_due = false; /* there will be none: this one has its time */
            lane->turn = TURNS_MAX;
        }
    }
}

/* Somebody who can ask the owner whether it lives may do so while we still wait. */
static void batch_doubt(struct tcp_batch *batch)
{
    const struct mc_run *run = batch->motion.run;
    if (!batch->doubted && run->doubt != NULL)
        run->doubt(run->doubt_context);
    batch->doubted = true;
}

/* Answers are owed, nothing comes, and who wants another lane is refused again and again: the owner has ended, and the
 * packets that said so on its lanes were lost. */
static bool is_ended(const struct tcp_batch *batch, uint64_t now_ns)
{
    bool is_owed = false;
    for (size_t i = 0; i < batch->run.lane_count; i++)
        is_owed = is_owed || mc_tcp_lane_wanted(batch->run.lanes[i]) > 0;
    return is_owed && batch->opener.refused >= REFUSALS * batch->opener.peer_count &&
           now_ns >= batch->run.heard_ns + doubt_after_ns(batch);
}

/* Lanes on which nothing has moved for too long. 0; MC_ERR_TRANSFER_FAIL: so long that the owner has failed;
 * MC_ERR_RPC_TIMEOUT: so long that this run goes elsewhere. */
static int lanes_check(struct tcp_batch *batch, uint64_t now_ns)
{
    uint64_t heard_ns = batch->run.heard_ns;
    for (size_t i = batch->run.lane_count; i > 0; i--) {
        struct mc_tcp_lane *lane = batch->run.lanes[i - 1];
        if (lane->state == MC_TCP_READY && mc_tcp_lane_is_sending(lane) &&
            now_ns > lane->progress_ns + stall_after_ns(batch)) {
            batch->reopened = batch->was_worse = true;
            lane_drop(batch, i - 1, MC_ERR_TRANSFER_FAIL);
        }
    }
    if (now_ns >= mc_tcp_opener_due_ns(&batch->opener))
        mc_tcp_opener_more(&batch->opener);
    if (is_ended(batch, now_ns)) {
        atomic_store_explicit(&batch->tcp->path.broken, true, memory_order_release);
        return MC_ERR_TRANSFER_FAIL;
    }
    lanes_pass(batch, now_ns);
    if (now_ns < heard_ns + doubt_after_ns(batch))
        return 0;
    batch_doubt(batch);
    uint64_t patience_ns = batch->motion.run->patience_ns;
    if (patience_ns != 0 && now_ns >= heard_ns + later(patience_ns, doubt_after_ns(batch)))
        return MC_ERR_RPC_TIMEOUT;
    /* What another thread has found out need not be found out again. */
    if (now_ns < heard_ns + stall_after_ns(batch) &&
        !atomic_load_explicit(&batch->tcp->path.broken, memory_order_acquire))
        return 0;
    atomic_store_explicit(&batch->tcp->path.broken, true, memory_order_release);
    return MC_ERR_TRANSFER_FAIL;
}

/* Gives back the lanes that can be used again. */
static void lanes_end(struct tcp_batch *batch, int code)
{
    while (batch->run.lane_count > 0) {
        struct mc_tcp_lane *lane = batch->run.lanes[0];
        bool can_rest = lane->state == MC_TCP_READY && !mc_tcp_lane_is_sending(lane) && mc_tcp_lane_wanted(lane) == 0 &&
                        lane->queued == NULL;
        if (!can_rest) {
            lane_end(batch, 0, code);
            continue;
        }
        (void)lane_leave(batch, 0);
        if (mc_tcp_lane_is_idle(lane)) {
            idle_give(batch->tcp, lane);
            continue;
        }
        lane->idle_since_ns = mc_clock_ns();
        owing_settle(batch->tcp, lane);
    }
    mc_tcp_opener_end(&batch->opener);
}

static void batch_fail(struct tcp_batch *batch, int code)
{
    lanes_end(batch, code);
    for (size_t i = 0; i < batch->run.count; i++)
        mc_tcp_job_end(&batch->run, &batch->run.jobs[i], code);
}

/* There is no place at the owner, or no descriptor here, for a lane: waits for one that comes back, or for better
 * times. False when others may know a better place. */
static bool batch_queue(struct tcp_batch *batch)
{
    uint64_t now_ns = mc_clock_ns();
    if (batch->busy_until_ns == 0) {
        batch->busy_until_ns = earliest(now_ns + BUSY_WAIT_NS, batch->motion.run->deadline_ns);
        batch->busy_wait_ns = BUSY_FIRST_NS;
    }
    while (now_ns < batch->busy_until_ns) {
        uint64_t wait_ns = batch->busy_wait_ns / 2 + mc_random_u64() % (batch->busy_wait_ns / 2);
        struct mc_tcp_lane *lane = idle_wait(batch->tcp, earliest(now_ns + wait_ns, batch->busy_until_ns));
        batch->busy_wait_ns = earliest(batch->busy_wait_ns * 2, BUSY_LAST_NS);
        batch->opener.error = 0;
        batch->opener.begun = 0;
        batch->run.heard_ns = now_ns = mc_clock_ns(); /* it was not the owner who was silent */
        if (lane != NULL)
            lane_join(batch, lane);
        if (lane != NULL || mc_tcp_opener_begin(&batch->opener) == 0)
            return true;
        if (batch->opener.error != MC_ERR_BUSY)
            return false;
    }
    batch->opener.error = MC_ERR_BUSY;
    return false;
}

/* No lane is left, and none is on its way. What was not begun may go over a fresh one, once: the owner closes a
 * connection for one of its transfers, not for all. */
static bool batch_reopen(struct tcp_batch *batch)
{
    if (batch->opener.error == MC_ERR_BUSY && batch_queue(batch))
        return true;
    if (batch->opener.error == MC_ERR_RPC_FAIL && batch->was_reset && !batch->reopened) {
        batch->reopened = true; /* it may have been closed with the others, before it was ready: asked for once more */
        batch->opener.error = 0;
        return mc_tcp_opener_begin(&batch->opener) == 0 || batch_reopen(batch);
    }
    if (batch->opener.error != 0) { /* nobody answers there, or somebody else; or we can open nothing */
        bool is_own = mc_socket_is_own(batch->opener.error);
        batch->error = is_own || batch->opener.error == MC_ERR_RPC_TIMEOUT ? batch->opener.error : MC_ERR_TRANSFER_FAIL;
        if (!is_own)
            atomic_store_explicit(&batch->tcp->path.broken, true, memory_order_release);
        return false;
    }
    if (batch->reopened || batch->error == MC_ERR_RPC_TIMEOUT)
        return false;
    batch->reopened = true;
    return mc_tcp_opener_begin(&batch->opener) == 0 || batch_reopen(batch);
}

static void batch_run(struct tcp_batch *batch)
{
    lanes_start(batch);
    while (batch->run.open > 0) {
        bool can_open = batch->opener.count > 0 && !mc_tcp_opener_is_refused(&batch->opener);
        if (!is_any_ready(batch) && !can_open && !batch_reopen(batch)) {
            batch_fail(batch, batch->error);
            return;
        }
        bool busy = lanes_move(batch);
        if (batch->run.open == 0)
            return;
        int rc = lanes_check(batch, lanes_wait(batch, busy));
        if (rc == 0)
            rc = mc_motion_look(&batch->motion);
        if (rc == MC_ERR_RPC_TIMEOUT && batch->busy_until_ns != 0 && batch->run.lane_count == 0)
            rc = MC_ERR_BUSY; /* its time went by in the queue */
        if (rc < 0) {
            batch_fail(batch, rc);
            return;
        }
    }
}

static bool is_lost_write(const struct mc_transfer *transfer)
{
    return transfer->kind == MC_TRANSFER_WRITE && transfer->result == MC_ERR_TRANSFER_FAIL;
}

/* A connection that is reset under a WRITE says less than a failed READ, which was asked for again: an owner may give
 * the place of one that rested away just then, and lives. Nobody else can finish the WRITE, but the owner can be asked
 * whether it is there; who answers has not failed, only this grant is spent. */
static void writes_judge(struct tcp_batch *batch)
{
    size_t lost = 0;
    for (size_t i = 0; i < batch->run.count; i++)
        lost += is_lost_write(batch->run.jobs[i].transfer);
    if (lost == 0 || !batch->was_reset || batch->was_worse ||
        atomic_load_explicit(&batch->tcp->path.broken, memory_order_acquire))
        return;
    struct mc_tcp_lane *lane;
    struct mc_tcp_opener opener = batch->opener; /* has ended: only what it is made of counts */
    opener.count = 0;
    opener.begun = opener.refused = 0;
    opener.error = 0;
    uint64_t deadline_ns = batch->motion.run->deadline_ns, stall_ns = mc_clock_ns() + MC_STALL_NS;
    int rc = mc_tcp_opener_wait(&opener, earliest(deadline_ns, stall_ns), &lane);
    mc_tcp_opener_end(&opener);
    if (rc == 0)
        idle_give(batch->tcp, lane);
    if (rc == 0 || rc == MC_ERR_BUSY)
        rc = MC_ERR_STALE;
    else if (!mc_socket_is_own(rc) && (rc != MC_ERR_RPC_TIMEOUT || stall_ns <= deadline_ns))
        return;
    for (size_t i = 0; i < batch->run.count; i++)
        if (is_lost_write(batch->run.jobs[i].transfer))
            batch->run.jobs[i].transfer->result = rc;
}

static void tcp_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct mc_tcp_job few[JOBS_ON_STACK], *many = NULL;
    struct mc_scratch *scratch;
    struct tcp_path *tcp = (struct tcp_path *)path;
    struct tcp_batch batch = {.tcp = tcp,
                              .run = {.paths = path->paths, .pace = &tcp->pace},
                              .opener = {.paths = path->paths,
                                         .endpoint = &path->endpoint,
                                         .peers = tcp->peers,
                                         .peer_count = tcp->peer_count,
                                         .pace = &tcp->pace}};
    int code = 0;
    if (mc_paths_is_forked(path->paths)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    mc_motion_start(&batch.motion, run, path->paths->verify);
    batch.run.motion = &batch.motion;
    batch.run.scratch = scratch = mc_scratch_get();
    batch.run.jobs = count <= JOBS_ON_STACK ? few : (many = malloc(count * sizeof(*many)));
    if (scratch == NULL || batch.run.jobs == NULL)
        code = MC_ERR_NO_MEMORY;
    if (code == 0)
        code = jobs_start(&batch, transfers, count);
    if (code < 0) {
        mc_path_fail_all(transfers, count, code);
    } else if (mc_motion_look(&batch.motion) < 0) {
        batch_fail(&batch, MC_ERR_RPC_TIMEOUT);
    } else {
        batch_run(&batch);
        lanes_end(&batch, MC_ERR_TRANSFER_FAIL);
        writes_judge(&batch);
    }
    free(batch.tables);
    free(many);
    mc_path_account(path, transfers, count);
    if (count > 0 && transfers[0]->kind == MC_TRANSFER_READ && transfers[0]->result == 0)
        atomic_store_explicit(&path->paths->counters.read_ns, batch.run.heard_ns, memory_order_relaxed);
}

const struct mc_transport mc_transport_tcp = {"tcp",        2,         false,    tcp_open, tcp_run, tcp_close,
                                              tcp_is_ended, tcp_nudge, tcp_rest, true};
