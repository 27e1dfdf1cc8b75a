/* A batch over RDMA: one-sided reads and writes on a borrowed link. Both sides' memory must be registered. */
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/run/run.h"
#include "transfer/serve/memory.h"
#include "transfer/state/engine.h"
#include "transfer/state/region.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <stdlib.h>

#define REQUESTS_INLINE 16u
#define LOOK_AGAIN_MS 100u /* a document is not fetched again before, because of an address that it lacks; doubling */
#define LOOK_AGAIN_MAX_MS 5000u

struct rdma_work {
    struct mc_peer *peer;
    struct mc_sum_check *check;
    struct mc_rdma_remote *remote;
    struct mc_rdma_request *requests;
    struct mc_region **held; /* of ours, each once for each request */
    size_t held_count, count;
    uint32_t incarnation; /* of the peer, whose memory `remote` is */
    struct mc_rdma_request few_requests[REQUESTS_INLINE];
    struct mc_region *few_held[REQUESTS_INLINE];
};

static void work_free(struct rdma_work *work)
{
    for (size_t i = 0; i < work->held_count; i++)
        mc_transfer_release(work->peer->engine, work->held[i]);
    mc_rdma_remote_release(work->remote);
    if (work->requests != work->few_requests)
        free(work->requests);
    if (work->held != work->few_held)
        free(work->held);
}

/* Our side: every item must lie in a region that is registered at a device. False: another path is taken. */
static bool hold_ours(struct rdma_work *work, const struct mc_transfer_item *items)
{
    struct mc_transfer_engine *engine = work->peer->engine;
    bool is_fine = true;
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; is_fine && i < work->count; i++) {
        struct mc_region *region = mc_region_find(&engine->regions, (uintptr_t)items[i].local, items[i].length);
        is_fine = region != NULL && region->rdma != NULL;
        if (!is_fine)
            break;
        region->in_flight++;
        work->held[work->held_count++] = region;
        work->requests[i].local_chunks = mc_rdma_memory_local(region->rdma);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!is_fine) {
        engine->count.fallbacks++;
        mc_log_limited(WARNING, "memory that is not registered here cannot go by RDMA: tcp is used");
    }
    return is_fine;
}

bool mc_run_is_registered(struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count)
{
    bool is_fine = engine->rdma != NULL;
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; is_fine && i < count; i++) {
        const struct mc_region *region = mc_region_find(&engine->regions, (uintptr_t)items[i].local, items[i].length);
        is_fine = region != NULL && region->rdma != NULL;
    }
    pthread_mutex_unlock(&engine->lock);
    return is_fine;
}

static bool find_theirs(struct rdma_work *work, const struct mc_transfer_item *items)
{
    for (size_t i = 0; i < work->count; i++)
        if (!mc_rdma_remote_find(work->remote, items[i].remote, items[i].length, &work->requests[i].remote_chunks))
            return false;
    return true;
}

/* Is it time to fetch it again? */
static bool take_remote(struct rdma_work *work)
{
    struct mc_peer *peer = work->peer;
    mc_rdma_remote_release(work->remote);
    pthread_mutex_lock(&peer->lock);
    work->remote = mc_rdma_remote_hold(peer->remote);
    work->incarnation = peer->incarnation;
    bool is_due = mc_clock_ms() - peer->remote_ms >= peer->remote_wait_ms;
    pthread_mutex_unlock(&peer->lock);
    return is_due;
}

/* Memory that the peer's devices have not taken has no keys, and will hardly get some: whoever writes there again and
 * again must not fetch the document, which names all of the peer's memory, each time. */
static bool note_found(struct rdma_work *work, bool is_found)
{
    struct mc_peer *peer = work->peer;
    pthread_mutex_lock(&peer->lock);
    uint32_t wait_ms = is_found || peer->remote_wait_ms == 0 ? LOOK_AGAIN_MS : peer->remote_wait_ms * 2;
    peer->remote_wait_ms = wait_ms < LOOK_AGAIN_MAX_MS ? wait_ms : LOOK_AGAIN_MAX_MS;
    pthread_mutex_unlock(&peer->lock);
    return is_found;
}

/* What the peer has registered since we last asked is asked for once. */
static bool look_up(struct rdma_work *work, const struct mc_transfer_item *items, bool is_stale, uint64_t deadline_ns)
{
    bool is_due = take_remote(work);
    if (work->remote == NULL || work->remote->device_count == 0)
        return false;
    if (!is_stale && find_theirs(work, items))
        return true;
    if ((!is_stale && !is_due) || mc_peer_refresh(work->peer, deadline_ns) < 0)
        return false;
    (void)take_remote(work);
    return note_found(work, work->remote != NULL && work->remote->device_count > 0 && find_theirs(work, items));
}

static bool prepare(struct rdma_work *work, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items)
{
    bool is_small = work->count <= REQUESTS_INLINE;
    work->requests = is_small ? work->few_requests : malloc(work->count * sizeof(*work->requests));
    work->held = is_small ? work->few_held : malloc(work->count * sizeof(struct mc_region *));
    if (work->requests == NULL || work->held == NULL)
        return false;
    for (size_t i = 0; i < work->count; i++)
        work->requests[i] =
            (struct mc_rdma_request){.opcode = opcode == MC_TRANSFER_WRITE ? MC_RDMA_WRITE : MC_RDMA_READ,
                                     .local = items[i].local,
                                     .remote = items[i].remote,
                                     .length = items[i].length};
    return hold_ours(work, items);
}

struct watch {
    struct mc_rdma_lane *lane;
    const struct mc_transfer_engine *engine;
    _Atomic bool stop;
};

static void lane_watch(void *context)
{
    struct watch *watch = context;
    if (watch->engine->is_closing || mc_rdma_lane_has_ended(watch->lane))
        atomic_store(&watch->stop, true);
}

static int compare_sums(const struct rdma_work *work, const struct mc_transfer_item *items, uint64_t deadline_ns)
{
    return work->check == NULL
               ? 0
               : mc_run_sums(work->peer, work->incarnation, items, work->count, work->check, deadline_ns);
}

/* 0; 1: not by this path, and nothing of it is under way; 2: the peer refused an address; TIMEOUT, or what mc_run_sums
 * says. */
static int run_once(struct rdma_work *work, const struct mc_transfer_item *items, uint64_t deadline_ns)
{
    struct mc_peer *peer = work->peer;
    struct mc_rdma_lane *lane;
    if (mc_rdma_lane_take(peer, work->remote, deadline_ns, &lane) != 0)
        return 1;
    if (lane->incarnation != work->incarnation) { /* another process has the name since: these are not its keys */
        mc_rdma_lane_give(peer, lane);
        return 1;
    }
    struct watch watch = {.lane = lane, .engine = peer->engine};
    struct mc_rdma_run run = {.deadline_ns = deadline_ns, .tick = lane_watch, .context = &watch, .stop = &watch.stop};
    int rc = mc_rdma_link_run(lane->link, work->requests, work->count, &run);
    bool is_late = mc_clock_ns() >= deadline_ns;
    if (rc == 0 && !run.is_unsure) {
        rc = compare_sums(work, items, deadline_ns); /* a peer that is leaving waits until its links have ended */
        mc_rdma_lane_give(peer, lane);
        return rc;
    }
    mc_rdma_lane_end(peer, lane, run.is_unsure);
    /* By the deadline there is no time to wait: the next batch to that peer does. */
    bool is_settled = !run.is_unsure || (!is_late && mc_rdma_settle(peer, deadline_ns) == 0);
    if (rc == 0 && is_settled)
        return compare_sums(work, items, deadline_ns); /* what was cut off were the same bytes */
    /* All has arrived, but may arrive once more: the peer must not be told that it may use its memory. */
    is_late |= !is_settled;
    if (peer->engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (is_late)
        return MC_TRANSFER_ERR_TIMEOUT;
    if (rc == MC_ERR_INVALID_PARAMS)
        return 2;
    mc_rdma_pause(peer, mc_error_name(rc));
    return 1;
}

int mc_run_rdma(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, struct mc_sum_check *check, uint64_t deadline_ns)
{
    if (peer->engine->rdma == NULL)
        return 1;
    struct rdma_work work = {.peer = peer, .check = check, .count = count};
    int rc = 1;
    if (prepare(&work, opcode, items) && look_up(&work, items, false, deadline_ns)) {
        rc = run_once(&work, items, deadline_ns);
        if (rc == 2) /* registered anew meanwhile: the keys are others */
            rc = look_up(&work, items, true, deadline_ns) ? run_once(&work, items, deadline_ns) : 1;
    }
    work_free(&work);
    return rc == 2 ? 1 : rc; /* tcp says what is wrong with it */
}
