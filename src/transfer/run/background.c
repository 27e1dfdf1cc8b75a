/* Batches in the background: threads that run the same code as the synchronous calls.
 *
 * A peer that does not answer holds each thread that works for it until the deadline, so nobody else may depend on
 * that thread. Each peer with work has one of its own; up to MC_PEER_WORKERS_MAX at a time come from a number that all
 * share, and a peer is *silent* that has ended nothing for SILENT_NS, or whose last batch could not be brought to it:
 * what it holds is not counted against the others any more, and it gets nothing beyond its own thread until it moves.
 * Peers take turns. Threads are started as they are needed, and end when they are not.
 *
 * However many peers fall silent at once, MC_SILENT_THREADS_MAX threads are all that they keep: a batch over tcp of
 * which nothing moves is parked, with its connections, when there are more, or when it has had its turn and others of
 * silent peers wait for theirs. It goes on where it was. */
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/run/run.h"
#include "transfer/state/batch.h"
#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_TURN_NS 1000000000ull /* of a batch to a silent peer, when others wait */
#define IDLE_S 5                     /* then a thread ends that is beyond the first MC_TRANSFER_WORKERS_MAX */

/* ---- whose turn it is: engine->lock is held ---- */

static void ready_add(struct mc_transfer_engine *engine, struct mc_peer *peer)
{
    if (peer->is_ready || peer->queue == NULL)
        return;
    peer->is_ready = true;
    peer->next_ready = NULL;
    *engine->ready_end = peer;
    engine->ready_end = &peer->next_ready;
}

static void ready_remove(struct mc_transfer_engine *engine, struct mc_peer **at)
{
    struct mc_peer *peer = *at;
    *at = peer->next_ready;
    if (*at == NULL)
        engine->ready_end = at;
    peer->is_ready = false;
}

/* Counts the peer's threads beyond its own again. */
static void lend(struct mc_transfer_engine *engine, struct mc_peer *peer)
{
    uint32_t beyond = peer->running > 1 && !peer->is_silent ? peer->running - 1 : 0;
    engine->lent = engine->lent - peer->lent + beyond;
    if (peer->lent == 0 && beyond > 0) {
        peer->previous_borrower = NULL;
        peer->next_borrower = engine->borrowers;
        if (engine->borrowers != NULL)
            engine->borrowers->previous_borrower = peer;
        engine->borrowers = peer;
    } else if (peer->lent > 0 && beyond == 0) {
        *(peer->previous_borrower == NULL ? &engine->borrowers : &peer->previous_borrower->next_borrower) =
            peer->next_borrower;
        if (peer->next_borrower != NULL)
            peer->next_borrower->previous_borrower = peer->previous_borrower;
    }
    peer->lent = beyond;
}

static void set_silent(struct mc_transfer_engine *engine, struct mc_peer *peer, bool is_silent)
{
    if (peer->is_silent == is_silent)
        return;
    peer->is_silent = is_silent;
    engine->silent_running += is_silent ? peer->running : 0;
    engine->silent_running -= is_silent ? 0 : peer->running;
    lend(engine, peer);
}

static bool looks_silent(const struct mc_peer *peer, uint64_t now_ns)
{
    return peer->is_silent || (peer->running > 0 && now_ns - peer->moved_ns >= MC_SILENT_NS);
}

/* What silent peers hold is given to the others. */
static void call_back(struct mc_transfer_engine *engine, uint64_t now_ns)
{
    for (struct mc_peer *peer = engine->borrowers, *next; peer != NULL; peer = next) {
        next = peer->next_borrower;
        if (looks_silent(peer, now_ns))
            set_silent(engine, peer, true);
    }
}

enum turn { BEGIN, LATER, AT_ITS_LIMIT };

static enum turn turn_of(struct mc_transfer_engine *engine, struct mc_peer *peer, uint64_t now_ns)
{
    if (engine->is_closing)
        return BEGIN; /* each ends at once */
    if (looks_silent(peer, now_ns))
        set_silent(engine, peer, true);
    if (peer->running == 0)
        return peer->is_silent && engine->silent_running >= engine->silent_threads_max ? LATER : BEGIN;
    if (peer->is_silent || peer->running >= MC_PEER_WORKERS_MAX)
        return AT_ITS_LIMIT;
    if (engine->lent >= MC_TRANSFER_WORKERS_MAX)
        call_back(engine, now_ns);
    return engine->lent >= MC_TRANSFER_WORKERS_MAX ? LATER : BEGIN;
}

/* Where the first stands whose turn it is; NULL: none. One that is at its limit comes again when a batch of it ends. */
static struct mc_peer **find_next(struct mc_transfer_engine *engine)
{
    uint64_t now_ns = engine->ready == NULL ? 0 : mc_clock_ns();
    struct mc_peer **at = &engine->ready;
    engine->are_silent_waiting = false;
    while (*at != NULL) {
        enum turn turn = turn_of(engine, *at, now_ns);
        engine->are_silent_waiting |= turn == LATER && (*at)->is_silent;
        if (turn == BEGIN)
            return at;
        if (turn == AT_ITS_LIMIT)
            ready_remove(engine, at);
        else
            at = &(*at)->next_ready;
    }
    return NULL;
}

static struct mc_batch *take_next(struct mc_transfer_engine *engine)
{
    struct mc_peer **at = find_next(engine), *peer = at == NULL ? NULL : *at;
    if (peer == NULL)
        return NULL;
    struct mc_batch *batch = peer->queue;
    peer->queue = batch->next;
    batch->next = NULL;
    ready_remove(engine, at);
    ready_add(engine, peer); /* behind the others */
    /* The time in the queue is the batch's own only where its peer is to blame for it. */
    uint64_t now_ns = mc_clock_ns();
    if (!peer->is_silent && batch->parking.parked == NULL)
        batch->deadline_ns = now_ns + batch->allowed_ns;
    batch->taken_ns = now_ns;
    if (peer->running == 0)
        peer->moved_ns = now_ns;
    peer->running++;
    engine->silent_running += peer->is_silent;
    lend(engine, peer);
    batch->state = MC_BATCH_RUNNING;
    return batch;
}

static void put_back(struct mc_transfer_engine *engine, struct mc_peer *peer, int rc)
{
    bool is_unreached = rc == MC_TRANSFER_ERR_TIMEOUT || rc == MC_TRANSFER_ERR_SOCKET ||
                        rc == MC_TRANSFER_ERR_METADATA || rc == MC_TRANSFER_ERR_DNS;
    peer->running--;
    engine->silent_running -= peer->is_silent;
    lend(engine, peer);
    set_silent(engine, peer, is_unreached);
    if (!is_unreached)
        peer->moved_ns = mc_clock_ns();
    ready_add(engine, peer);
}

/* It comes first when it is the turn of its peer, and that is last. */
static void put_aside(struct mc_transfer_engine *engine, struct mc_batch *batch)
{
    struct mc_peer *peer = batch->peer;
    peer->running--;
    engine->silent_running -= peer->is_silent;
    lend(engine, peer);
    set_silent(engine, peer, true);
    batch->state = MC_BATCH_QUEUED;
    batch->next = peer->queue;
    if (peer->queue == NULL)
        peer->queue_end = &batch->next;
    peer->queue = batch;
    ready_add(engine, peer);
}

static void enqueue(struct mc_transfer_engine *engine, struct mc_batch *batch)
{
    struct mc_peer *peer = batch->peer;
    if (peer->queue == NULL)
        peer->queue_end = &peer->queue;
    *peer->queue_end = batch;
    peer->queue_end = &batch->next;
    /* One at its limit comes by itself. */
    if (peer->running == 0 || (!peer->is_silent && peer->running < MC_PEER_WORKERS_MAX))
        ready_add(engine, peer);
}

/* ---- threads ---- */

static bool is_short(void *context)
{
    struct mc_transfer_engine *engine = ((struct mc_batch *)context)->peer->engine;
    pthread_mutex_lock(&engine->lock);
    bool is_short = engine->worker_count >= engine->silent_threads_max / 2;
    pthread_mutex_unlock(&engine->lock);
    return is_short;
}

static bool shall_park(void *context)
{
    struct mc_batch *batch = context;
    struct mc_peer *peer = batch->peer;
    struct mc_transfer_engine *engine = peer->engine;
    pthread_mutex_lock(&engine->lock);
    bool shall_park = false;
    uint64_t now_ns = mc_clock_ns();
    if (engine->worker_count >= engine->silent_threads_max && looks_silent(peer, now_ns)) {
        set_silent(engine, peer, true);
        shall_park = engine->silent_running > engine->silent_threads_max ||
                     (engine->are_silent_waiting && now_ns - batch->taken_ns >= SILENT_TURN_NS);
    }
    pthread_mutex_unlock(&engine->lock);
    return shall_park;
}

static int run_batch(struct mc_batch *batch)
{
    struct mc_peer *peer = batch->peer;
    struct mc_transfer_engine *engine = peer->engine;
    if (batch->parking.parked != NULL)
        return mc_run(peer, batch->opcode, batch->items, batch->count, batch->deadline_ns, &batch->parking);
    if (engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    /* One that is late asks nobody: else many would end one after the other, each when its question has no answer. */
    bool is_late = mc_clock_ns() >= batch->deadline_ns;
    int rc = is_late ? 0 : mc_peer_be_sure(peer, batch->deadline_ns);
    engine->count.failed += rc < 0;
    if (rc == 0)
        rc = mc_run(peer, batch->opcode, batch->items, batch->count, batch->deadline_ns, &batch->parking);
    return rc;
}

static void send_note(const struct mc_batch *batch, struct mc_peer *peer)
{
    struct mc_transfer_note note = {batch->note_name, batch->note_message};
    if (note.name != NULL && mc_transfer_notify(peer->engine, peer->name, &note) < 0)
        mc_log_limited(WARNING, "a note to %s was not taken; the bytes have been moved", peer->name);
}

static int call_worker(struct mc_transfer_engine *engine);

/* engine->lock is held, and let go while waiting. False: nothing to do for long, and others are there. */
static bool wait_for_work(struct mc_transfer_engine *engine)
{
    engine->idle_workers++;
    int rc = mc_monitor_wait(&engine->lock, &engine->work_came, mc_clock_ns() + IDLE_S * 1000000000ull);
    engine->idle_workers--;
    return rc != ETIMEDOUT || engine->worker_count <= MC_TRANSFER_WORKERS_MAX || find_next(engine) != NULL;
}

static void *worker_main(void *argument)
{
    struct mc_worker *worker = argument;
    struct mc_transfer_engine *engine = worker->engine;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        struct mc_batch *batch = take_next(engine);
        if (batch == NULL) {
            if (engine->is_closing || !wait_for_work(engine))
                break;
            continue;
        }
        struct mc_peer *peer = batch->peer;
        /* Who came before this thread woke up has relied on it, too. */
        if (!engine->is_closing && find_next(engine) != NULL)
            (void)call_worker(engine); /* else they wait for one that is at work */
        pthread_mutex_unlock(&engine->lock);
        int rc = run_batch(batch);
        if (rc == 0)
            send_note(batch, peer);
        pthread_mutex_lock(&engine->lock);
        if (rc == MC_RUN_PARKED) {
            put_aside(engine, batch);
            continue;
        }
        put_back(engine, peer, rc);
        batch->result = rc;
        batch->state = MC_BATCH_ENDED;
        batch->peer = NULL;
        pthread_cond_broadcast(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
        mc_peer_release(peer);
        pthread_mutex_lock(&engine->lock);
    }
    worker->has_ended = true;
    engine->worker_count--;
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* Wakes one up, or starts one. engine->lock is held. */
static int call_worker(struct mc_transfer_engine *engine)
{
    struct mc_worker *worker = engine->workers;
    if (engine->idle_workers > 0) {
        pthread_cond_signal(&engine->work_came);
        return 0;
    }
    if (engine->worker_count == engine->threads_max)
        return 0;
    while (worker->engine != NULL && !worker->has_ended)
        worker++;
    if (worker->engine != NULL)
        pthread_join(worker->thread, NULL); /* it does nothing more */
    *worker = (struct mc_worker){.engine = engine};
    if (mc_thread_start(&worker->thread, "mc-batch", worker_main, worker) != 0) {
        worker->engine = NULL;
        return engine->worker_count > 0 ? 0 : MC_TRANSFER_ERR_MEMORY;
    }
    engine->worker_count++;
    return 0;
}

static int fill(struct mc_batch *batch, const struct mc_transfer_item *items, size_t count,
                const struct mc_transfer_note *note)
{
    batch->items = malloc((count + 1) * sizeof(*items));
    if (batch->items == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (items[i].length > 0) /* nothing to do for the others */
            batch->items[batch->count++] = items[i];
    if (note == NULL)
        return 0;
    batch->note_name = strdup(note->name);
    batch->note_message = strdup(note->message);
    return batch->note_name == NULL || batch->note_message == NULL ? MC_TRANSFER_ERR_MEMORY : 0;
}

int64_t mc_transfer_submit(struct mc_transfer_engine *engine, const char *target, enum mc_transfer_opcode opcode,
                           const struct mc_transfer_item *items, size_t count, const struct mc_transfer_note *note)
{
    struct mc_peer *peer;
    int64_t id = 0;
    if (!mc_transfer_alive(engine) || mc_run_check(items, count) < 0 || !mc_ask_is_note(note))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t now_ns = mc_clock_ns(), deadline_ns = mc_run_deadline(engine, items, count);
    int rc = mc_peer_get_known(engine, target, deadline_ns, &peer);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&engine->lock);
    struct mc_batch *batch = engine->is_closing ? NULL : mc_batch_add(&engine->batches, &id);
    rc = batch == NULL ? MC_TRANSFER_ERR_MEMORY : fill(batch, items, count, note);
    if (rc == 0 && engine->worker_count == 0)
        rc = call_worker(engine);
    if (rc == 0) {
        batch->peer = peer;
        batch->opcode = opcode;
        batch->deadline_ns = deadline_ns;
        batch->allowed_ns = deadline_ns - now_ns;
        batch->parking = (struct mc_parking){.shall_park = shall_park, .is_short = is_short, .context = batch};
        enqueue(engine, batch);
        if (find_next(engine) != NULL)
            (void)call_worker(engine); /* else it waits for one that is at work */
    } else if (batch != NULL) {
        mc_batch_remove(&engine->batches, id);
    }
    pthread_mutex_unlock(&engine->lock);
    if (rc == 0)
        return id;
    mc_tally_fail(peer->tally, MC_METRICS_PATH_NONE, rc);
    mc_peer_release(peer);
    mc_log_limited(ERROR, "a batch cannot be begun: %s", mc_transfer_error_text(rc));
    return rc;
}

int mc_transfer_status(struct mc_transfer_engine *engine, int64_t id)
{
    if (!mc_transfer_alive(engine))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&engine->lock);
    struct mc_batch *batch = mc_batch_find(&engine->batches, id);
    int rc = batch == NULL || batch->waiters > 0 ? MC_TRANSFER_ERR_INVALID_ARGUMENT : 0;
    if (rc == 0 && batch->state == MC_BATCH_ENDED) {
        rc = batch->result == 0                         ? 1
             : batch->result == MC_TRANSFER_ERR_TIMEOUT ? MC_TRANSFER_ERR_TIMEOUT
                                                        : MC_TRANSFER_ERR_INVALID_ARGUMENT;
        mc_batch_remove(&engine->batches, id);
    }
    pthread_mutex_unlock(&engine->lock);
    return rc;
}

/* engine->lock is held. */
static int wait_for(struct mc_transfer_engine *engine, int64_t id)
{
    struct mc_batch *batch = mc_batch_find(&engine->batches, id);
    if (batch == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    batch->waiters++;
    while (batch->state != MC_BATCH_ENDED) /* it has a deadline */
        pthread_cond_wait(&engine->changed, &engine->lock);
    int rc = batch->result;
    if (--batch->waiters == 0)
        mc_batch_remove(&engine->batches, id);
    return rc;
}

int mc_transfer_wait(struct mc_transfer_engine *engine, const int64_t *ids, size_t count)
{
    int first = 0;
    if (!mc_transfer_alive(engine) || (ids == NULL && count > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < count; i++) {
        int rc = wait_for(engine, ids[i]);
        first = first == 0 ? rc : first;
    }
    pthread_mutex_unlock(&engine->lock);
    return first;
}

/* Batches that nobody has begun with end as failed: the workers take them and see that the engine closes. */
void mc_background_stop(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    pthread_cond_broadcast(&engine->work_came);
    pthread_mutex_unlock(&engine->lock); /* nobody starts one any more */
    for (uint32_t i = 0; i < MC_TRANSFER_THREADS_MAX; i++)
        if (engine->workers[i].engine != NULL)
            pthread_join(engine->workers[i].thread, NULL);
    pthread_mutex_lock(&engine->lock);
    mc_batch_table_free(&engine->batches);
    pthread_mutex_unlock(&engine->lock);
}
