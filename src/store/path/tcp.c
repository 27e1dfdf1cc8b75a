/* Transport `tcp`: a pool of connections ("lanes") to one owner; a batch borrows one or a few of them and runs in the
 * calling thread.
 *
 * A packet that is lost holds up its connection for 200 ms and more, so a READ without an answer is asked for on
 * another lane as soon as it is late for that owner (base/pace.h), and again: a lane that was passed over keeps its
 * chance, and the one that was asked last watches. Only an owner that gave no sign of life on any lane for MC_STALL_NS
 * has failed. A lane whose answers nobody waits for any more is owed them: it rests until they have come. */
#include "store/path/tcp_pool.h"

#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ONE_LANE_BYTES (1u << 20) /* batches below use one lane */
#define RUN_LANES_MAX 8u
#define WAIT_NS 100000000ull
#define PART_BYTES_PER_MS (64u << 10) /* slower than that no owner takes in what its kernel has */
#define AWAY_NS 50000000ull           /* a wait that ends so much too late: it was us who did not run */
/* So often a question is asked again out of the owner's credit, which keeps the work of a slow one from growing (a
 * longer wait each time would only make the loss of two packets dear), */
#define TURNS_PAID 2u /* then on a new lane: those that rest may all be dead while their owner lives */
#define TURNS_MAX 4u  /* and so often at all */
#define TURN_LATER_NS 250000000ull
#define REFUSALS 2u    /* by each address of an owner that is silent: it has ended */
#define RESCUES_MAX 2u /* of lanes that broke, in a batch */
#define JOBS_ON_STACK 16u
#define POLLED_MAX (MC_TCP_LANES_MAX + MC_TCP_OPENINGS_MAX)
#define BUSY_WAIT_NS 500000000ull /* a batch waits so long for a lane, then others may know a better place */
#define BUSY_FIRST_NS 5000000ull  /* between tries to open one, doubling, half of it random */
#define BUSY_LAST_NS 100000000ull

struct tcp_batch { /* one mc_path_run, or a group of mc_path_run_all */
    struct mc_tcp_path *tcp;
    struct mc_transfer **transfers;
    size_t count;
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
    bool is_beside; /* others run in the same thread: it must not wait for itself alone, and is put aside instead */
    bool is_aside;
    struct mc_tcp_job few[JOBS_ON_STACK], *many; /* `many` if they are more */
};

static uint64_t earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void lane_join(struct tcp_batch *batch, struct mc_tcp_lane *lane)
{
    lane->progress_ns = mc_clock_ns();
    lane->asked_ns = 0;
    lane->turn = 0;
    lane->readable = lane->is_passed = lane->is_due = lane->is_pinged = false;
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
        units += job->transfer->kind == MC_TRANSFER_WRITE ? (size_t)mc_tcp_job_parts(&batch->run, job)
                                                          : (size_t)((job->end - job->next) / MC_TCP_WINDOW_BYTES) + 1;
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
    while (batch->run.lane_count < wanted && (lane = mc_tcp_idle_take(batch->tcp)) != NULL)
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
        mc_tcp_lane_is_sending(lane) || mc_tcp_lane_askable(lane) == 0)
        return UINT64_MAX;
    uint64_t late_ns = mc_pace_late_ns(batch->run.pace);
    return lane->progress_ns + (lane->turn < TURNS_PAID ? late_ns : later(TURN_LATER_NS, late_ns * 2));
}

/* When the answer to a part is late; UINT64_MAX: none is wanted, or the lane was pinged. */
static uint64_t part_due_ns(const struct tcp_batch *batch, const struct mc_tcp_lane *lane)
{
    if (lane->state != MC_TCP_READY || lane->part_answers == 0 || lane->is_pinged || mc_tcp_lane_is_sending(lane))
        return UINT64_MAX;
    return lane->progress_ns + mc_pace_late_ns(batch->run.pace);
}

/* A silence that long is worth a look by others, and one that long is the end. */
static uint64_t doubt_after_ns(const struct tcp_batch *batch)
{
    return later(MC_DOUBT_NS, 2 * mc_pace_late_ns(batch->run.pace));
}
static uint64_t stall_after_ns(const struct tcp_batch *batch)
{
    uint64_t unanswered = 0; /* an owner that lives may have it all, and many others to take from first */
    for (size_t i = 0; i < batch->run.lane_count; i++)
        unanswered += mc_tcp_lane_is_sending(batch->run.lanes[i]) ? 0 : batch->run.lanes[i]->unanswered;
    return later(MC_STALL_NS, 4 * mc_pace_late_ns(batch->run.pace)) + unanswered / PART_BYTES_PER_MS * 1000000u;
}

static uint64_t wait_until_ns(const struct tcp_batch *batch, uint64_t now_ns)
{
    uint64_t until_ns = earliest(now_ns + WAIT_NS, batch->motion.run->deadline_ns);
    if (batch->motion.run->tick != NULL)
        until_ns = earliest(until_ns, batch->motion.next_tick_ns);
    for (size_t i = 0; i < batch->run.lane_count; i++)
        until_ns = earliest(until_ns,
                            earliest(lane_due_ns(batch, batch->run.lanes[i]), part_due_ns(batch, batch->run.lanes[i])));
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

static bool is_polled(const struct mc_tcp_lane *lane)
{
    return lane->state == MC_TCP_READY;
}

/* Fills one entry for each lane that can move and each that is on its way; how many. */
static size_t lanes_poll(const struct tcp_batch *batch, struct pollfd *fds)
{
    size_t count = 0;
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        struct mc_tcp_lane *lane = batch->run.lanes[i];
        if (is_polled(lane))
            fds[count++] = (struct pollfd){.fd = lane->fd,
                                           .events = (short)(POLLIN | (mc_tcp_lane_is_sending(lane) ? POLLOUT : 0))};
    }
    mc_tcp_opener_poll(&batch->opener, fds + count);
    return count + batch->opener.count;
}

/* After a poll of these entries. */
static void lanes_polled(struct tcp_batch *batch, const struct pollfd *fds)
{
    struct mc_tcp_lane *ready;
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        if (is_polled(batch->run.lanes[i]) && fds++->revents != 0)
            lane_woken(batch, batch->run.lanes[i]);
    }
    if (batch->opener.count == 0 || (ready = mc_tcp_opener_step(&batch->opener, fds)) == NULL)
        return;
    if (!is_any_ready(batch)) /* to connect has its time, and so has what follows */
        batch->run.heard_ns = mc_clock_ns();
    if (batch->run.lane_count < MC_TCP_LANES_MAX)
        lane_join(batch, ready);
    else
        mc_tcp_idle_give(batch->tcp, ready);
}

static bool poll_until(struct pollfd *fds, size_t count, uint64_t left_ns)
{
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    return ppoll(fds, (nfds_t)count, &left, NULL) > 0;
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
        struct pollfd fds[POLLED_MAX];
        if (poll_until(fds, lanes_poll(batch, fds), until_ns - now_ns))
            lanes_polled(batch, fds);
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
    struct mc_tcp_lane *lane = fresh ? NULL : mc_tcp_idle_take(batch->tcp);
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
        if (lane->is_due && (lane->is_passed || mc_tcp_lane_askable(lane) == 0)) {
            lane->is_due = false;
            continue;
        }
        struct mc_tcp_lane *spare = spare_find(batch, dead || lane->turn >= TURNS_PAID);
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

/* Parts that are sent, as far as the socket took them, may be on their way for long over a slow one: as long as the
 * other kernel confirms more of them, nobody is silent. */
static void parts_watch(struct tcp_batch *batch, uint64_t now_ns)
{
    for (size_t i = 0; i < batch->run.lane_count; i++) {
        struct mc_tcp_lane *lane = batch->run.lanes[i];
        bool waits = lane->state == MC_TCP_READY && lane->part_answers > 0 && !mc_tcp_lane_is_sending(lane);
        if (!waits || now_ns < lane->progress_ns + mc_pace_late_ns(batch->run.pace))
            continue;
        uint64_t confirmed = mc_tcp_confirmed(lane->fd);
        if (confirmed != lane->confirmed)
            lane->progress_ns = batch->run.heard_ns = now_ns;
        lane->confirmed = confirmed;
        if (now_ns >= part_due_ns(batch, lane))
            mc_tcp_lane_ping(lane);
    }
}

/* Lanes on which nothing has moved for too long. 0; MC_ERR_TRANSFER_FAIL: so long that the owner has failed;
 * MC_ERR_RPC_TIMEOUT: so long that this run goes elsewhere. */
static int lanes_check(struct tcp_batch *batch, uint64_t now_ns)
{
    parts_watch(batch, now_ns);
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
            mc_tcp_idle_give(batch->tcp, lane);
            continue;
        }
        lane->idle_since_ns = mc_clock_ns();
        mc_tcp_owing_settle(batch->tcp, lane);
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
        struct mc_tcp_lane *lane = mc_tcp_idle_wait(batch->tcp, earliest(now_ns + wait_ns, batch->busy_until_ns));
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
    if (batch->opener.error == MC_ERR_BUSY && batch->is_beside) {
        batch->is_aside = true;
        return true;
    }
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

/* Moves what can be moved. False when it is over. */
static bool batch_move(struct tcp_batch *batch, bool *busy)
{
    bool can_open = batch->opener.count > 0 && !mc_tcp_opener_is_refused(&batch->opener);
    if (batch->run.open > 0 && !is_any_ready(batch) && !can_open && !batch_reopen(batch))
        batch_fail(batch, batch->error);
    *busy = lanes_move(batch);
    return batch->run.open > 0;
}

/* After a wait. False when it is over. */
static bool batch_check(struct tcp_batch *batch, uint64_t now_ns)
{
    int rc = lanes_check(batch, now_ns);
    if (rc == 0)
        rc = mc_motion_look(&batch->motion);
    if (rc == MC_ERR_RPC_TIMEOUT && batch->busy_until_ns != 0 && batch->run.lane_count == 0)
        rc = MC_ERR_BUSY; /* its time went by in the queue */
    if (rc < 0)
        batch_fail(batch, rc);
    return rc == 0;
}

static void batch_run(struct tcp_batch *batch)
{
    bool busy;
    while (batch_move(batch, &busy) && batch_check(batch, lanes_wait(batch, busy)))
        continue;
}

static bool is_lost_write(const struct mc_transfer *transfer)
{
    return transfer->kind == MC_TRANSFER_WRITE && transfer->result == MC_ERR_TRANSFER_FAIL;
}

static bool has_lost_writes(const struct tcp_batch *batch)
{
    bool lost = false;
    for (size_t i = 0; i < batch->run.count; i++)
        lost = lost || is_lost_write(batch->run.jobs[i].transfer);
    return lost && batch->was_reset && !batch->was_worse &&
           !atomic_load_explicit(&batch->tcp->path.broken, memory_order_acquire);
}

/* A connection that is reset under a WRITE says less than a failed READ, which was asked for again: an owner may give
 * the place of one that rested away just then, and lives. Nobody else can finish the WRITE, but the owner can be asked
 * whether it is there; who answers has not failed, only this grant is spent. */
static void writes_judge(struct tcp_batch *batch)
{
    if (!has_lost_writes(batch))
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
        mc_tcp_idle_give(batch->tcp, lane);
    if (rc == 0 || rc == MC_ERR_BUSY)
        rc = MC_ERR_STALE;
    else if (!mc_socket_is_own(rc) && (rc != MC_ERR_RPC_TIMEOUT || stall_ns <= deadline_ns))
        return;
    for (size_t i = 0; i < batch->run.count; i++)
        if (is_lost_write(batch->run.jobs[i].transfer))
            batch->run.jobs[i].transfer->result = rc;
}

static bool goes_in_parts(struct mc_tcp_path *tcp)
{
    bool is_near = mc_id_equal(tcp->path.endpoint.host, tcp->path.paths->host);
    return atomic_load_explicit(&tcp->takes_parts, memory_order_relaxed) &&
           (!is_near || mc_tcp_part_bytes < MC_TCP_PART_BYTES);
}

/* False when it is over. */
static bool batch_begin(struct tcp_batch *batch, struct mc_path *path, struct mc_transfer **transfers, size_t count,
                        const struct mc_run *run)
{
    struct mc_tcp_path *tcp = (struct mc_tcp_path *)path;
    *batch = (struct tcp_batch){
        .tcp = tcp,
        .transfers = transfers,
        .count = count,
        .run = {.paths = path->paths, .motion = &batch->motion, .pace = &tcp->pace, .takes_parts = goes_in_parts(tcp)},
        .opener = {.paths = path->paths,
                   .endpoint = &path->endpoint,
                   .peers = tcp->peers,
                   .peer_count = tcp->peer_count,
                   .pace = &tcp->pace}};
    int code = 0;
    if (mc_paths_is_forked(path->paths)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return false;
    }
    mc_motion_start(&batch->motion, run, path->paths->verify);
    batch->run.scratch = mc_scratch_get();
    batch->run.jobs = count <= JOBS_ON_STACK ? batch->few : (batch->many = malloc(count * sizeof(*batch->many)));
    if (batch->run.scratch == NULL || batch->run.jobs == NULL)
        code = MC_ERR_NO_MEMORY;
    if (code == 0)
        code = jobs_start(batch, transfers, count);
    if (code < 0) {
        mc_path_fail_all(transfers, count, code);
        return false;
    }
    if (mc_motion_look(&batch->motion) < 0)
        batch_fail(batch, MC_ERR_RPC_TIMEOUT);
    else
        lanes_start(batch);
    return batch->run.open > 0;
}

/* Nothing is under way any more. */
static void batch_end(struct tcp_batch *batch)
{
    struct mc_path *path = &batch->tcp->path;
    free(batch->tables);
    free(batch->many);
    if (mc_paths_is_forked(path->paths))
        return;
    mc_path_account(path, batch->transfers, batch->count);
    if (batch->count > 0 && batch->transfers[0]->kind == MC_TRANSFER_READ && batch->transfers[0]->result == 0)
        atomic_store_explicit(&path->paths->counters.read_ns, batch->run.heard_ns, memory_order_relaxed);
}

static void tcp_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct tcp_batch batch;
    if (batch_begin(&batch, path, transfers, count, run))
        batch_run(&batch);
    lanes_end(&batch, MC_ERR_TRANSFER_FAIL);
    writes_judge(&batch);
    batch_end(&batch);
}

/* ---- several batches in one thread, each with another owner ---- */

struct tcp_all { /* one mc_path_run_all */
    struct mc_path_batch **groups;
    struct tcp_batch *batches; /* one each */
    size_t count, open;
    uint16_t under_way[MC_PATH_BATCHES_MAX]; /* the first `open` of them: which */
    uint64_t aside_ns[MC_PATH_BATCHES_MAX];  /* since when it is put aside; 0: it is not */
};

/* It is over, or put aside: what waits for that owner alone comes when nobody else has to wait with it. */
static void all_leave(struct tcp_all *all, size_t at)
{
    size_t index = all->under_way[at];
    struct tcp_batch *batch = &all->batches[index];
    all->under_way[at] = all->under_way[--all->open];
    if (!batch->is_aside) {
        lanes_end(batch, MC_ERR_TRANSFER_FAIL);
        batch->is_aside = has_lost_writes(batch);
    }
    if (batch->is_aside) {
        all->aside_ns[index] = mc_clock_ns();
        return;
    }
    batch_end(batch);
    all->groups[index]->ended(all->groups[index]);
}

/* What was put aside, one after the other. */
static void all_aside(struct tcp_all *all)
{
    for (size_t i = 0; i < all->count; i++) {
        struct tcp_batch *batch = &all->batches[i];
        if (all->aside_ns[i] == 0)
            continue;
        batch->is_beside = false;
        all->groups[i]->start_ns += mc_clock_ns() - all->aside_ns[i];
        batch_run(batch);
        lanes_end(batch, MC_ERR_TRANSFER_FAIL);
        writes_judge(batch);
        batch_end(batch);
        all->groups[i]->ended(all->groups[i]);
    }
}

/* All move what they can, then all wait for the first that can go on. */
static void all_turn(struct tcp_all *all, struct pollfd *fds)
{
    size_t first[MC_PATH_BATCHES_MAX], count = 0;
    uint64_t now_ns, until_ns = UINT64_MAX;
    bool any_busy = false, busy = false;
    for (size_t i = all->open; i > 0; i--) { /* backwards: one that leaves is replaced by one that had its turn */
        struct tcp_batch *batch = &all->batches[all->under_way[i - 1]];
        bool goes_on = batch_move(batch, &busy);
        if (!goes_on || batch->is_aside)
            all_leave(all, i - 1);
        else /* one whose last lane broke looks for another at once */
            any_busy = any_busy || busy || batch->run.lane_count + batch->opener.count == 0;
    }
    now_ns = mc_clock_ns();
    for (size_t i = 0; i < all->open; i++) {
        struct tcp_batch *batch = &all->batches[all->under_way[i]];
        until_ns = earliest(until_ns, wait_until_ns(batch, now_ns));
        first[i] = count;
        count += lanes_poll(batch, fds + count);
    }
    until_ns = any_busy ? now_ns : later(now_ns, until_ns);
    bool any = all->open > 0 && poll_until(fds, count, until_ns - now_ns);
    for (size_t i = 0; any && i < all->open; i++)
        lanes_polled(&all->batches[all->under_way[i]], fds + first[i]);
    now_ns = mc_clock_ns();
    for (size_t i = all->open; i > 0; i--) {
        struct tcp_batch *batch = &all->batches[all->under_way[i - 1]];
        lanes_excuse(batch, until_ns, now_ns);
        if (!batch_check(batch, now_ns))
            all_leave(all, i - 1);
    }
}

static void tcp_run_all(struct mc_path_batch **groups, size_t count)
{
    struct tcp_all all = {.groups = groups, .count = count};
    struct pollfd *fds = malloc(count * POLLED_MAX * sizeof(*fds));
    all.batches = malloc(count * sizeof(*all.batches));
    mc_assert(count <= MC_PATH_BATCHES_MAX);
    for (size_t i = 0; i < count; i++) {
        struct mc_path_batch *group = groups[i];
        group->start_ns = mc_clock_ns();
        if (fds == NULL || all.batches == NULL) { /* one after the other needs less */
            tcp_run(group->path, group->transfers, group->count, &group->run);
            group->ended(group);
            continue;
        }
        bool goes_on = batch_begin(&all.batches[i], group->path, group->transfers, group->count, &group->run);
        all.batches[i].is_beside = true;
        all.under_way[all.open++] = (uint16_t)i;
        if (!goes_on)
            all_leave(&all, all.open - 1);
    }
    while (all.open > 0)
        all_turn(&all, fds);
    all_aside(&all);
    free(all.batches);
    free(fds);
}

const struct mc_transport mc_transport_tcp = {
    "tcp", 2,     false,       mc_tcp_open, tcp_run, mc_tcp_close, mc_tcp_is_ended, mc_tcp_nudge, mc_tcp_rest_lanes,
    true,  false, tcp_run_all, NULL};
