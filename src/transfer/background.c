/* Batches in the background: a queue, and threads that run the same code as the synchronous calls. Threads are started
 * as they are needed. A peer can have MC_PEER_WORKERS_MAX of them at most, so one that does not answer leaves some to
 * others. */
#include "transfer/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <stdlib.h>
#include <string.h>

/* Where the first in the queue stands whose peer may have one more thread; NULL: none. */
static struct mc_batch **find_next(struct mc_transfer_engine *engine)
{
    struct mc_batch **at = &engine->queue;
    while (*at != NULL && (*at)->peer->running >= MC_PEER_WORKERS_MAX)
        at = &(*at)->next;
    return *at == NULL ? NULL : at;
}

static struct mc_batch *take_next(struct mc_transfer_engine *engine)
{
    struct mc_batch **at = find_next(engine), *batch = at == NULL ? NULL : *at;
    if (batch == NULL)
        return NULL;
    *at = batch->next;
    if (batch->next == NULL)
        engine->queue_end = at;
    batch->next = NULL;
    return batch;
}

static int run_batch(struct mc_batch *batch)
{
    struct mc_transfer_engine *engine = batch->peer->engine;
    if (engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_run(batch->peer, batch->opcode, batch->items, batch->count, batch->deadline_ns);
    struct mc_transfer_note note = {batch->note_name, batch->note_message};
    if (rc == 0 && note.name != NULL && mc_transfer_notify(engine, batch->peer->name, &note) < 0)
        mc_log_limited(WARNING, "a note to %s was not taken; the bytes have been moved", batch->peer->name);
    return rc;
}

static int enough_workers(struct mc_transfer_engine *engine);

static void *worker_main(void *argument)
{
    struct mc_transfer_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        struct mc_batch *batch = take_next(engine);
        if (batch == NULL) {
            if (engine->is_closing)
                break;
            engine->idle_workers++;
            pthread_cond_wait(&engine->changed, &engine->lock);
            engine->idle_workers--;
            continue;
        }
        struct mc_peer *peer = batch->peer;
        peer->running++;
        batch->state = MC_BATCH_RUNNING;
        /* Who came before this thread woke up has relied on it, too. */
        if (!engine->is_closing && find_next(engine) != NULL)
            (void)enough_workers(engine); /* else they wait for one that is at work */
        pthread_mutex_unlock(&engine->lock);
        int rc = run_batch(batch);
        pthread_mutex_lock(&engine->lock);
        peer->running--;
        batch->result = rc;
        batch->state = MC_BATCH_ENDED;
        batch->peer = NULL;
        pthread_cond_broadcast(&engine->changed);
        pthread_mutex_unlock(&engine->lock);
        mc_peer_release(peer);
        pthread_mutex_lock(&engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* engine->lock is held. */
static int enough_workers(struct mc_transfer_engine *engine)
{
    if (engine->idle_workers > 0 || engine->worker_count == MC_TRANSFER_WORKERS_MAX)
        return 0;
    if (mc_thread_start(&engine->workers[engine->worker_count], "mc-batch", worker_main, engine) != 0)
        return engine->worker_count > 0 ? 0 : MC_TRANSFER_ERR_MEMORY;
    engine->worker_count++;
    return 0;
}

static int fill(struct mc_batch *batch, const struct mc_transfer_item *items, size_t count,
                const struct mc_transfer_note *note)
{
    batch->items = malloc((count + 1) * sizeof(*items));
    batch->count = count;
    if (batch->items == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    if (count > 0)
        memcpy(batch->items, items, count * sizeof(*items));
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
    if (!mc_transfer_alive(engine) || mc_run_check(items, count) < 0 || !mc_run_is_note(note))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t deadline_ns = mc_run_deadline(engine, items, count);
    int rc = mc_peer_get(engine, target, deadline_ns, &peer);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&engine->lock);
    struct mc_batch *batch = engine->is_closing ? NULL : mc_batch_add(&engine->batches, &id);
    rc = batch == NULL ? MC_TRANSFER_ERR_MEMORY : fill(batch, items, count, note);
    if (rc == 0)
        rc = enough_workers(engine);
    if (rc == 0) {
        batch->peer = peer;
        batch->opcode = opcode;
        batch->deadline_ns = deadline_ns;
        *engine->queue_end = batch;
        engine->queue_end = &batch->next;
        pthread_cond_broadcast(&engine->changed);
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
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    for (uint32_t i = 0; i < engine->worker_count; i++)
        pthread_join(engine->workers[i], NULL);
    pthread_mutex_lock(&engine->lock);
    mc_batch_table_free(&engine->batches);
    pthread_mutex_unlock(&engine->lock);
}
