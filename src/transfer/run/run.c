/* A batch on the calling thread, by the shortest path there is. */
#include "transfer/peer/ask.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/settle.h"
#include "transfer/run/run.h"
#include "transfer/serve/memory.h"
#include "transfer/state/batch.h"
#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"
#include "transfer/state/region.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <stdlib.h>
#include <string.h>

#define LOCAL_CHUNK ((uint64_t)1 << 20) /* between two looks at the clock */
#define ITEMS_INLINE 16u

int mc_run_check(const struct mc_transfer_item *items, size_t count)
{
    if (count > MC_TRANSFER_ITEMS_MAX || (items == NULL && count > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        const struct mc_transfer_item *item = &items[i];
        uint64_t local = (uintptr_t)item->local, length = item->length;
        if (length == 0)
            continue;
        if (local == 0 || length > INT64_MAX || length - 1 > UINT64_MAX - local ||
            length - 1 > UINT64_MAX - item->remote)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    return 0;
}

uint64_t mc_run_deadline(const struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count)
{
    uint64_t bytes = 0, now_ns = mc_clock_ns();
    for (size_t i = 0; i < count; i++)
        bytes += items[i].length <= UINT64_MAX / 4 - bytes ? items[i].length : 0;
    return now_ns + engine->settings.timeout_ns + bytes;
}

/* ---- within one process ---- */

/* 0, or what mc_check_wrong says. */
static int copy_piece(enum mc_transfer_opcode opcode, char *near, char *far, size_t size, struct mc_sum_check *check)
{
    bool is_write = opcode == MC_TRANSFER_WRITE;
    uint32_t near_sum, far_sum;
    if (check == NULL)
        memmove(is_write ? far : near, is_write ? near : far, size); /* the two may be the same memory */
    else if (!(is_write ? mc_check_copy(far, near, size, &near_sum, &far_sum)
                        : mc_check_copy(near, far, size, &far_sum, &near_sum)))
        return mc_check_wrong(check, (uintptr_t)far, size, near_sum, far_sum);
    return 0;
}

static int copy_local(struct mc_transfer_engine *owner, enum mc_transfer_opcode opcode,
                      const struct mc_transfer_item *item, struct mc_sum_check *check, uint64_t deadline_ns)
{
    struct mc_region *region = mc_transfer_hold(owner, item->remote, item->length);
    int rc = region == NULL ? MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED : 0;
    char *near = item->local, *far = (char *)(uintptr_t)item->remote;
    for (uint64_t at = 0, size; rc == 0 && at < item->length; at += size) {
        size = item->length - at < LOCAL_CHUNK ? item->length - at : LOCAL_CHUNK;
        if (at > 0 && mc_clock_ns() >= deadline_ns)
            rc = MC_TRANSFER_ERR_TIMEOUT;
        else
            rc = copy_piece(opcode, near + at, far + at, (size_t)size, check);
    }
    if (region != NULL)
        mc_transfer_release(owner, region);
    return rc;
}

/* 1: the peer is not an engine of this process. */
static int run_local(struct mc_peer *peer, struct mc_id id, enum mc_transfer_opcode opcode,
                     const struct mc_transfer_item *items, size_t count, struct mc_sum_check *check,
                     uint64_t deadline_ns)
{
    struct mc_transfer_engine *owner =
        peer->engine->settings.allow_local && !mc_id_is_zero(id) ? mc_transfer_enter(id) : NULL;
    if (owner == NULL)
        return 1;
    int rc = 0;
    if (mc_gpu_is_there()) {
        rc = mc_run_local_devices(owner, opcode, items, count, deadline_ns);
        count = 0;
        if (check != NULL)
            check->is_blind = true;
    }
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = copy_local(owner, opcode, &items[i], check, deadline_ns);
    mc_transfer_leave(owner);
    return rc;
}

static int run_paths(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                     size_t count, struct mc_sum_check *check, uint64_t deadline_ns, struct mc_parking *parking,
                     int *path)
{
    if (parking != NULL && parking->parked != NULL) {
        *path = MC_TRANSFER_PATH_TCP;
        return mc_run_tcp(peer, opcode, items, count, check, deadline_ns, parking);
    }
    pthread_mutex_lock(&peer->lock);
    struct mc_id id = peer->document.id;
    pthread_mutex_unlock(&peer->lock);
    *path = peer->engine->rdma == NULL ? MC_TRANSFER_PATH_TCP : MC_TRANSFER_PATH_RDMA;
    int rc = mc_settle(peer, deadline_ns);
    if (rc < 0)
        return rc;
    *path = MC_TRANSFER_PATH_LOCAL;
    rc = run_local(peer, id, opcode, items, count, check, deadline_ns);
    if (rc != 1)
        return rc;
    int device;
    if (mc_gpu_is_there() && mc_run_has_devices(items, count, &device))
        return mc_run_staged(peer, opcode, items, count, device, check, deadline_ns, path);
    return mc_run_far(peer, opcode, items, count, false, check, deadline_ns, parking, path);
}

static void count_failure(struct mc_peer *peer, int rc, int path)
{
    mc_tally_fail(peer->tally, path, rc);
    if (rc == MC_TRANSFER_ERR_TIMEOUT)
        peer->engine->count.timed_out++;
    else
        peer->engine->count.failed++;
}

int mc_run(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
           uint64_t deadline_ns, struct mc_parking *parking)
{
    struct mc_transfer_item few[ITEMS_INLINE], *kept = NULL;
    bool is_parked = parking != NULL && parking->parked != NULL;
    uint64_t bytes = 0, start_ns = is_parked ? parking->start_ns : mc_clock_ns();
    size_t empty = 0;
    struct mc_sum_check found = {0}, *check = NULL;
    int rc = 0, path = MC_METRICS_PATH_NONE;
    for (size_t i = 0; i < count; i++) {
        bytes += items[i].length;
        empty += items[i].length == 0;
    }
    if (empty > 0) { /* nothing to do for these; the paths want none of them */
        size_t used = 0;
        kept = count - empty <= ITEMS_INLINE ? few : malloc((count - empty) * sizeof(*kept));
        if (kept == NULL) {
            count_failure(peer, MC_TRANSFER_ERR_MEMORY, path);
            return MC_TRANSFER_ERR_MEMORY;
        }
        for (size_t i = 0; i < count; i++)
            if (items[i].length > 0)
                kept[used++] = items[i];
        items = kept;
        count = used;
    }
    if (is_parked ? parking->is_checked : count > 0 && mc_check_wanted(peer, bytes))
        check = &found;
    if (start_ns >= deadline_ns) /* it has waited for its thread too long */
        rc = MC_TRANSFER_ERR_TIMEOUT;
    else if (count > 0)
        rc = run_paths(peer, opcode, items, count, check, deadline_ns, parking, &path);
    if (rc == MC_RUN_PARKED && parking != NULL) {
        parking->start_ns = start_ns;
        parking->is_checked = check != NULL;
    }
    if (found.is_wrong || (check != NULL && rc == 0 && !found.is_blind))
        mc_check_tell(peer, opcode, path, &found);
    if (rc == 0 && count > 0)
        peer->last_path = path + 1;
    if (rc == 0 && count > 0)
        mc_tally_add(peer->tally, path, opcode, bytes, count, mc_clock_ns() - start_ns);
    if (rc < 0) {
        count_failure(peer, rc, path);
        if (!found.is_wrong)
            mc_log_limited(ERROR, "%s of %zu item(s), %llu bytes, %s %s failed: %s",
                           opcode == MC_TRANSFER_WRITE ? "write" : "read", count, (unsigned long long)bytes,
                           opcode == MC_TRANSFER_WRITE ? "to" : "from", peer->name, mc_transfer_error_text(rc));
    }
    if (kept != few)
        free(kept);
    return rc;
}

int mc_transfer_run(struct mc_transfer_engine *engine, const char *target, enum mc_transfer_opcode opcode,
                    const struct mc_transfer_item *items, size_t count, const struct mc_transfer_note *note)
{
    struct mc_peer *peer;
    if (!mc_transfer_alive(engine) || mc_run_check(items, count) < 0 || !mc_ask_is_note(note))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t deadline_ns = mc_run_deadline(engine, items, count);
    int rc = mc_peer_get(engine, target, deadline_ns, &peer);
    if (rc < 0)
        return rc;
    rc = mc_run(peer, opcode, items, count, deadline_ns, NULL);
    mc_peer_release(peer);
    if (rc == 0 && note != NULL && mc_transfer_notify(engine, target, note) < 0)
        mc_log_limited(WARNING, "a note to %s was not taken; the bytes have been moved", target);
    return rc;
}
