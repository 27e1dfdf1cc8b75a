/* Transport `tcp`: a pool of connections ("lanes") to one owner; a batch borrows one or a few of them and runs in the
 * calling thread. */
#include "engine/tcp_lane.h"

#include "env/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_MAX 8u               /* lanes kept per path */
#define IDLE_TRUST_NS 10000000ull /* a lane that rested longer is looked at before it is used */
#define ONE_LANE_BYTES (1u << 20) /* batches below use one lane */
#define RUN_LANES_MAX 8u
#define WAIT_NS 100000000ull
#define JOBS_ON_STACK 16u

struct tcp_path {
    struct mc_path path;
    pthread_mutex_t lock; /* guards the list */
    struct mc_tcp_lane *idle;
    uint32_t idle_count;
};

struct batch { /* one mc_path_run */
    struct tcp_path *tcp;
    struct mc_tcp_run run;
    struct mc_motion motion;
    struct mc_tcp_lane *lanes[RUN_LANES_MAX];
    size_t lane_count;
    uint32_t *tables; /* of all jobs, or NULL */
    int error;        /* of the last lane that failed */
    bool reopened;
    bool doubted;
};

/* ---- the pool ---- */

static bool is_usable(const struct mc_tcp_lane *lane)
{
    char byte;
    if (mc_clock_ns() - lane->idle_since_ns < IDLE_TRUST_NS)
        return true;
    return recv(lane->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

static struct mc_tcp_lane *idle_take(struct tcp_path *tcp)
{
    for (;;) {
        pthread_mutex_lock(&tcp->lock);
        struct mc_tcp_lane *lane = tcp->idle;
        if (lane != NULL) {
            tcp->idle = lane->next;
            tcp->idle_count--;
        }
        pthread_mutex_unlock(&tcp->lock);
        if (lane == NULL || is_usable(lane))
            return lane;
        mc_tcp_lane_close(tcp->path.engine, lane, false);
    }
}

static void idle_give(struct tcp_path *tcp, struct mc_tcp_lane *lane)
{
    lane->idle_since_ns = mc_clock_ns();
    pthread_mutex_lock(&tcp->lock);
    bool keep = tcp->idle_count < IDLE_MAX;
    if (keep) {
        lane->next = tcp->idle;
        tcp->idle = lane;
        tcp->idle_count++;
    }
    pthread_mutex_unlock(&tcp->lock);
    if (!keep)
        mc_tcp_lane_close(tcp->path.engine, lane, false);
}

/* Borrows or opens one. 0 or negative. */
static int lane_borrow(struct batch *batch, bool fresh)
{
    struct tcp_path *tcp = batch->tcp;
    struct mc_tcp_lane *lane = fresh ? NULL : idle_take(tcp);
    if (lane == NULL) {
        struct mc_patience patience = mc_patience_until(batch->motion.run->deadline_ns);
        int rc = mc_tcp_lane_open(tcp->path.engine, &tcp->path.endpoint, &patience, &lane);
        if (rc < 0)
            return rc;
    }
    lane->progress_ns = mc_clock_ns();
    lane->readable = false;
    batch->lanes[batch->lane_count++] = lane;
    return 0;
}

static void lane_drop(struct batch *batch, size_t index, int code)
{
    struct mc_tcp_lane *lane = batch->lanes[index];
    mc_tcp_lane_fail(&batch->run, lane, code);
    mc_tcp_lane_close(batch->tcp->path.engine, lane, true);
    batch->lanes[index] = batch->lanes[--batch->lane_count];
    batch->error = code == MC_ERR_RPC_TIMEOUT ? code : MC_ERR_TRANSFER_FAIL;
}

/* ---- path ---- */

static int tcp_open(struct mc_engine *engine, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                    struct mc_path **path)
{
    if (endpoint->tcp_address[0] == 0)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct tcp_path *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return MC_ERR_NO_MEMORY;
    struct mc_tcp_lane *lane;
    int rc = mc_tcp_lane_open(engine, endpoint, patience, &lane);
    if (rc < 0) {
        free(tcp);
        return rc;
    }
    mc_path_init(&tcp->path, &mc_transport_tcp, engine, endpoint);
    pthread_mutex_init(&tcp->lock, NULL);
    idle_give(tcp, lane);
    *path = &tcp->path;
    return 0;
}

static void tcp_close(struct mc_path *path)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    while (tcp->idle != NULL) {
        struct mc_tcp_lane *lane = tcp->idle;
        tcp->idle = lane->next;
        mc_tcp_lane_close(path->engine, lane, false);
    }
    pthread_mutex_destroy(&tcp->lock);
    free(tcp);
}

/* Its resting lanes have all been closed by the peer. One that runs has no part in it. */
static bool tcp_is_ended(struct mc_path *path)
{
    struct tcp_path *tcp = (struct tcp_path *)path;
    bool is_open = false;
    pthread_mutex_lock(&tcp->lock);
    for (struct mc_tcp_lane *lane = tcp->idle; lane != NULL && !is_open; lane = lane->next)
        is_open = is_usable(lane);
    bool is_ended = tcp->idle != NULL && !is_open;
    pthread_mutex_unlock(&tcp->lock);
    return is_ended;
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
static int jobs_start(struct batch *batch, struct mc_transfer **transfers, size_t count)
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
static size_t lanes_wanted(const struct batch *batch)
{
    uint64_t bytes = 0;
    size_t units = 0;
    for (size_t i = 0; i < batch->run.count && units < RUN_LANES_MAX; i++) {
        const struct mc_tcp_job *job = &batch->run.jobs[i];
        bytes += job->end - job->next;
        units +=
            job->transfer->kind == MC_TRANSFER_WRITE ? 1 : (size_t)((job->end - job->next) / MC_TCP_WINDOW_BYTES) + 1;
    }
    size_t limit = batch->tcp->path.engine->lanes_max;
    limit = limit < RUN_LANES_MAX ? limit : RUN_LANES_MAX;
    return bytes < ONE_LANE_BYTES ? 1 : units < limit ? units : limit;
}

static void lanes_start(struct batch *batch)
{
    size_t wanted = lanes_wanted(batch);
    int rc = 0;
    while (batch->lane_count < wanted && rc == 0)
        rc = lane_borrow(batch, false);
    if (batch->lane_count > 0)
        return;
    /* Nobody answers there, or somebody else. */
    batch->error = rc == MC_ERR_RPC_TIMEOUT ? rc : MC_ERR_TRANSFER_FAIL;
    batch->reopened = true;
    atomic_store_explicit(&batch->tcp->path.broken, true, memory_order_release);
}

/* Every lane moves what it can. True when one of them wants to go on at once. */
static bool lanes_move(struct batch *batch)
{
    bool busy = false;
    for (size_t i = 0; i < batch->lane_count;) {
        struct mc_tcp_lane *lane = batch->lanes[i];
        int sent = mc_tcp_lane_send(&batch->run, lane);
        int received = sent < 0 || !lane->readable ? 0 : mc_tcp_lane_receive(&batch->run, lane);
        if (sent < 0 || received < 0) {
            lane_drop(batch, i, sent < 0 ? sent : received);
            continue;
        }
        lane->readable = received > 0;
        busy = busy || sent > 0 || received > 0;
        i++;
    }
    return busy;
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The peer has done something. That counts as progress now: it may be us who were away for long. */
static void lane_woken(struct mc_tcp_lane *lane)
{
    lane->readable = true;
    lane->progress_ns = mc_clock_ns();
}

/* Waits until a lane can go on, for at most 100 ms; not at all when one is busy, but the others are looked at then too.
 */
static void lanes_wait(struct batch *batch, bool busy)
{
    struct pollfd fds[RUN_LANES_MAX];
    struct mc_tcp_lane *only = batch->lane_count == 1 ? batch->lanes[0] : NULL;
    uint64_t now_ns = mc_clock_ns(), until_ns = earliest(now_ns + WAIT_NS, batch->motion.run->deadline_ns);
    if (batch->motion.run->tick != NULL)
        until_ns = earliest(until_ns, batch->motion.next_tick_ns);
    for (size_t i = 0; i < batch->lane_count; i++) {
        struct mc_tcp_lane *lane = batch->lanes[i];
        if (!mc_tcp_lane_is_idle(lane))
            until_ns = earliest(until_ns, lane->progress_ns + (batch->doubted ? MC_STALL_NS : MC_DOUBT_NS));
        fds[i] =
            (struct pollfd){.fd = lane->fd, .events = (short)(POLLIN | (mc_tcp_lane_is_sending(lane) ? POLLOUT : 0))};
    }
    if (busy || until_ns < now_ns)
        until_ns = now_ns;
    if (only != NULL && busy)
        return;
    if (only != NULL && !mc_tcp_lane_is_sending(only)) {
        /* A failure other than the time shows at the next receive. */
        if (mc_socket_wait_read(only->fd, until_ns > now_ns ? until_ns : now_ns + 1000, &only->spin) !=
            MC_ERR_RPC_TIMEOUT)
            lane_woken(only);
        return;
    }
    uint64_t left_ns = until_ns - now_ns;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    int ready = ppoll(fds, (nfds_t)batch->lane_count, &left, NULL);
    for (size_t i = 0; i < batch->lane_count && ready > 0; i++) {
        if (fds[i].revents != 0)
            lane_woken(batch->lanes[i]);
    }
}

/* Somebody who can ask the owner whether it lives may do so while we still wait. */
static void batch_doubt(struct batch *batch)
{
    const struct mc_run *run = batch->motion.run;
    if (!batch->doubted && run->doubt != NULL)
        run->doubt(run->doubt_context);
    batch->doubted = true;
}

/* Lanes on which nothing has moved for too long. */
static void lanes_check(struct batch *batch)
{
    uint64_t now_ns = mc_clock_ns();
    for (size_t i = batch->lane_count; i > 0; i--) {
        struct mc_tcp_lane *lane = batch->lanes[i - 1];
        if (mc_tcp_lane_is_idle(lane))
            lane->progress_ns = now_ns;
        else if (now_ns > lane->progress_ns + MC_STALL_NS)
            lane_drop(batch, i - 1, MC_ERR_RPC_TIMEOUT);
        else if (now_ns > lane->progress_ns + MC_DOUBT_NS)
            batch_doubt(batch);
    }
}

/* Gives back the lanes that can be used again. */
static void lanes_end(struct batch *batch, int code)
{
    while (batch->lane_count > 0) {
        if (!mc_tcp_lane_is_idle(batch->lanes[0])) {
            lane_drop(batch, 0, code);
            continue;
        }
        idle_give(batch->tcp, batch->lanes[0]);
        batch->lanes[0] = batch->lanes[--batch->lane_count];
    }
}

static void batch_fail(struct batch *batch, int code)
{
    lanes_end(batch, code);
    for (size_t i = 0; i < batch->run.count; i++)
        mc_tcp_job_end(&batch->run, &batch->run.jobs[i], code);
}

/* No lane is left. What was not begun may go over a fresh one, once: the owner closes a connection for one of its
 * transfers, not for all. */
static bool batch_reopen(struct batch *batch)
{
    if (batch->reopened || batch->error == MC_ERR_RPC_TIMEOUT)
        return false;
    batch->reopened = true;
    if (lane_borrow(batch, true) == 0)
        return true;
    atomic_store_explicit(&batch->tcp->path.broken, true, memory_order_release);
    return false;
}

static void batch_run(struct batch *batch)
{
    lanes_start(batch);
    while (batch->run.open > 0) {
        if (batch->lane_count == 0 && !batch_reopen(batch)) {
            batch_fail(batch, batch->error);
            return;
        }
        bool busy = lanes_move(batch);
        if (batch->run.open == 0)
            return;
        if (batch->lane_count > 0)
            lanes_wait(batch, busy);
        lanes_check(batch);
        if (mc_motion_look(&batch->motion) < 0) {
            batch_fail(batch, MC_ERR_RPC_TIMEOUT);
            return;
        }
    }
}

static void tcp_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct mc_tcp_job few[JOBS_ON_STACK], *many = NULL;
    struct mc_scratch *scratch;
    struct batch batch = {.tcp = (struct tcp_path *)path, .run = {.engine = path->engine}};
    int code = 0;
    if (mc_engine_is_forked(path->engine)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    mc_motion_start(&batch.motion, run, path->engine->verify);
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
    }
    free(batch.tables);
    free(many);
    mc_path_account(path, transfers, count);
}

const struct mc_transport mc_transport_tcp = {"tcp", false, tcp_open, tcp_run, tcp_close, tcp_is_ended};
