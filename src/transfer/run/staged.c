/* Items whose local memory is a device's. Within the process the driver copies between any two kinds of memory. Where
 * both sides' memory is registered at RDMA devices, these reach it. On every other path bytes go through pinned memory
 * of ours, in waves: while one is on its way, the device copies the next one out, or the one before in.
 *
 * Invariant: when these functions return, no copy of the device is under way, also when they return at the deadline. */
#include "transfer/peer/peer.h"
#include "transfer/run/run.h"
#include "transfer/serve/memory.h"
#include "transfer/state/engine.h"
#include "transfer/state/region.h"

#include "env/clock.h"

#include <stdlib.h>

#define WAVE_ITEMS 256u

/* ---- within one process ---- */

struct local {
    struct mc_transfer_engine *owner;
    struct mc_gpu_finder near, far;
    struct mc_gpu_lane *lane;
    struct mc_region *region; /* held */
    uint64_t started;         /* bytes since the last finish */
};

/* 0, or INVALID_ARGUMENT: the device cannot copy this. */
static int local_finish(struct local *local)
{
    local->started = 0;
    return local->lane == NULL || mc_gpu_finish(local->lane) == 0 ? 0 : MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

static int local_release(struct local *local)
{
    int rc = local_finish(local);
    if (local->region != NULL)
        mc_transfer_release(local->owner, local->region);
    local->region = NULL;
    return rc;
}

/* Holds the region of the item; the one held is kept while the items lie in it. */
static int local_hold(struct local *local, const struct mc_transfer_item *item)
{
    const struct mc_region *held = local->region;
    if (held != NULL && !held->is_leaving && item->remote >= held->address &&
        item->remote - held->address <= held->length && item->length <= held->length - (item->remote - held->address))
        return 0;
    int rc = local_release(local);
    if (rc < 0)
        return rc;
    local->region = mc_transfer_hold(local->owner, item->remote, item->length);
    return local->region == NULL ? MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED : 0;
}

static int local_copy(struct local *local, void *to, const void *from, size_t size)
{
    struct mc_gpu_place place = mc_gpu_find(&local->near, to);
    if (place.kind == MC_GPU_HOST)
        place = mc_gpu_find(&local->far, from);
    if (place.kind == MC_GPU_HOST) {
        memmove(to, from, size); /* the two may be the same memory */
        return 0;
    }
    if (local->lane == NULL)
        local->lane = mc_gpu_take(place.number);
    if (local->lane == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    local->started += size;
    return mc_gpu_start_any(local->lane, place.number, to, from, size) == 0 ? 0 : MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

int mc_run_local_devices(struct mc_transfer_engine *owner, enum mc_transfer_opcode opcode,
                         const struct mc_transfer_item *items, size_t count, uint64_t deadline_ns)
{
    struct local local = {.owner = owner};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        char *near = items[i].local, *far = (char *)(uintptr_t)items[i].remote;
        rc = local_hold(&local, &items[i]);
        for (uint64_t at = 0, size; rc == 0 && at < items[i].length; at += size) {
            uint64_t left = items[i].length - at;
            size = left < MC_GPU_CHUNK_BYTES ? left : MC_GPU_CHUNK_BYTES;
            if (opcode == MC_TRANSFER_WRITE)
                rc = local_copy(&local, far + at, near + at, (size_t)size);
            else
                rc = local_copy(&local, near + at, far + at, (size_t)size);
            if (rc == 0 && local.started >= MC_GPU_CHUNK_BYTES)
                rc = local_finish(&local);
            if (rc == 0 && at + size < items[i].length && mc_clock_ns() >= deadline_ns)
                rc = MC_TRANSFER_ERR_TIMEOUT;
        }
    }
    int released = local_release(&local);
    mc_gpu_give(local.lane);
    return rc < 0 ? rc : released;
}

/* ---- to other processes ---- */

struct item_wave {
    unsigned unit;
    size_t count, used;
    struct mc_transfer_item items[WAVE_ITEMS]; /* as the path sees them */
    void *places[WAVE_ITEMS];                  /* where the bytes really lie; NULL: there */
    int devices[WAVE_ITEMS];                   /* whose that memory is */
};

struct staged_batch { /* one batch */
    struct mc_peer *peer;
    enum mc_transfer_opcode opcode;
    const struct mc_transfer_item *items;
    size_t count, index; /* index, at: where the next wave begins */
    uint64_t at;
    size_t wave_count;
    struct mc_sum_check *check;
    uint64_t deadline_ns;
    struct mc_gpu_finder finder;
    struct mc_gpu_lane *lane;
    int *path;
};

bool mc_run_has_devices(const struct mc_transfer_item *items, size_t count, int *device)
{
    struct mc_gpu_finder finder = {0};
    for (size_t i = 0; i < count; i++) {
        struct mc_gpu_place place = mc_gpu_find(&finder, items[i].local);
        *device = place.number;
        if (place.kind != MC_GPU_HOST)
            return true;
    }
    return false;
}

/* Takes what fits; for a write the copies out of the device are started. */
static int fill(struct staged_batch *staging, struct item_wave *wave, unsigned unit)
{
    struct mc_gpu_lane *lane = staging->lane;
    wave->unit = unit;
    wave->count = wave->used = 0;
    while (staging->index < staging->count && wave->count < WAVE_ITEMS) {
        const struct mc_transfer_item *item = &staging->items[staging->index];
        char *place = (char *)item->local + staging->at;
        uint64_t length = item->length - staging->at, room = lane->unit_bytes - wave->used;
        struct mc_gpu_place found = mc_gpu_find(&staging->finder, place);
        bool is_device = found.kind != MC_GPU_HOST;
        if (is_device && room == 0)
            break;
        if (is_device && length > room)
            length = room;
        void *staged = is_device ? lane->units[unit] + wave->used : (void *)place;
        wave->places[wave->count] = is_device ? place : NULL;
        wave->devices[wave->count] = found.number;
        wave->items[wave->count++] = (struct mc_transfer_item){staged, item->remote + staging->at, length};
        wave->used += is_device ? (size_t)length : 0;
        staging->at += length;
        if (staging->at == item->length) {
            staging->at = 0;
            staging->index++;
        }
        if (is_device && staging->opcode == MC_TRANSFER_WRITE &&
            mc_gpu_start_any(lane, found.number, staged, place, (size_t)length) < 0)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (staging->opcode == MC_TRANSFER_WRITE && mc_gpu_mark(lane, unit) < 0)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    return 0;
}

static int run_wave(struct staged_batch *staging, const struct item_wave *wave)
{
    staging->wave_count++;
    return mc_run_far(staging->peer, staging->opcode, wave->items, wave->count, true, staging->check,
                      staging->deadline_ns, NULL, staging->path);
}

static int wait_unit(struct staged_batch *staging, unsigned unit)
{
    return mc_gpu_wait(staging->lane, unit) == 0 ? 0 : MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

static int write_all(struct staged_batch *staging, struct item_wave *waves)
{
    int rc = fill(staging, &waves[0], 0);
    for (unsigned turn = 0; rc == 0 && waves[turn & 1].count > 0; turn++) {
        unsigned unit = turn & 1;
        rc = fill(staging, &waves[unit ^ 1], unit ^ 1);
        if (rc == 0)
            rc = wait_unit(staging, unit);
        if (rc == 0)
            rc = run_wave(staging, &waves[unit]);
    }
    return rc;
}

static int read_all(struct staged_batch *staging, struct item_wave *wave)
{
    int rc = 0;
    for (unsigned turn = 0; rc == 0; turn++) {
        unsigned unit = turn & 1;
        if (turn >= 2)
            rc = wait_unit(staging, unit);
        if (rc == 0)
            rc = fill(staging, wave, unit);
        if (rc < 0 || wave->count == 0)
            break;
        rc = run_wave(staging, wave);
        for (size_t i = 0; rc == 0 && i < wave->count; i++)
            if (wave->places[i] != NULL && mc_gpu_start_any(staging->lane, wave->devices[i], wave->places[i],
                                                            wave->items[i].local, (size_t)wave->items[i].length) < 0)
                rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
        if (rc == 0 && mc_gpu_mark(staging->lane, unit) < 0)
            rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    return rc;
}

static uint64_t devices_of(struct staged_batch *staging)
{
    uint64_t devices = 0;
    for (size_t i = 0; i < staging->count; i++) {
        struct mc_gpu_place place = mc_gpu_find(&staging->finder, staging->items[i].local);
        if (place.kind != MC_GPU_HOST)
            devices |= 1ull << place.number;
    }
    return devices;
}

/* The default streams of all devices whose memory the items name have done what they were given. */
static int wait_default_streams(struct staged_batch *staging)
{
    uint64_t waited = 0; /* a bit for each device */
    for (size_t i = 0; i < staging->count; i++) {
        struct mc_gpu_place place = mc_gpu_find(&staging->finder, staging->items[i].local);
        if (place.kind == MC_GPU_HOST || (waited >> place.number & 1) != 0)
            continue;
        struct mc_gpu_lane *lane = place.number == staging->lane->device ? staging->lane : mc_gpu_take(place.number);
        int rc = lane == NULL || mc_gpu_mark(lane, 0) < 0 || mc_gpu_wait(lane, 0) < 0 ? -1 : 0;
        if (lane != staging->lane)
            mc_gpu_give(lane);
        if (rc < 0)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        waited |= 1ull << place.number;
    }
    return 0;
}

/* GPUDirect: RDMA devices read and write the device's memory themselves, after what its default stream has been given,
 * as a copy would. 1: not this way, and nothing of it is under way. */
static int run_direct(struct staged_batch *staging)
{
    struct mc_peer *peer = staging->peer;
    if (!mc_run_is_registered(peer->engine, staging->items, staging->count))
        return 1;
    int rc = wait_default_streams(staging);
    if (rc < 0)
        return rc;
    *staging->path = MC_TRANSFER_PATH_RDMA;
    rc = mc_run_rdma(peer, staging->opcode, staging->items, staging->count, NULL, staging->deadline_ns);
    if (rc == 0 && staging->check != NULL) /* no processor sees both ends of it */
        staging->check->is_blind = true;
    if (rc == 0 && staging->opcode == MC_TRANSFER_READ && mc_gpu_flush(devices_of(staging)) < 0)
        rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
    return rc;
}

static uint32_t incarnation_of(struct mc_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    uint32_t incarnation = peer->incarnation;
    pthread_mutex_unlock(&peer->lock);
    return incarnation;
}

/* Has another process got the peer's name since? What is doubtful is asked. */
static bool has_changed(struct staged_batch *staging, uint32_t incarnation)
{
    struct mc_peer *peer = staging->peer;
    pthread_mutex_lock(&peer->lock);
    bool is_doubtful = peer->is_doubtful;
    pthread_mutex_unlock(&peer->lock);
    return (is_doubtful && mc_peer_refresh(peer, staging->deadline_ns) < 0) || incarnation_of(peer) != incarnation;
}

/* Through memory of ours. Each wave is moved to one process, but the next may be moved to another: then the batch
 * begins anew, so that all of it is with one. */
static int run_waves(struct staged_batch *staging, struct item_wave *waves)
{
    int rc = MC_TRANSFER_ERR_SOCKET;
    for (unsigned tries = 0; rc == MC_TRANSFER_ERR_SOCKET && tries < MC_TRANSFER_ATTEMPTS; tries++) {
        uint32_t incarnation = incarnation_of(staging->peer);
        staging->index = 0;
        staging->at = 0;
        staging->wave_count = 0;
        rc = staging->opcode == MC_TRANSFER_WRITE ? write_all(staging, waves) : read_all(staging, waves);
        if (mc_gpu_finish(staging->lane) < 0 && rc == 0)
            rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
        if (rc < 0 || staging->wave_count <= 1 || !has_changed(staging, incarnation))
            return rc;
        rc = mc_clock_ns() < staging->deadline_ns ? MC_TRANSFER_ERR_SOCKET : MC_TRANSFER_ERR_TIMEOUT;
    }
    return rc;
}

int mc_run_staged(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                  size_t count, int device, struct mc_sum_check *check, uint64_t deadline_ns, int *path)
{
    struct staged_batch staging = {.peer = peer,
                                   .opcode = opcode,
                                   .items = items,
                                   .count = count,
                                   .check = check,
                                   .deadline_ns = deadline_ns,
                                   .path = path};
    struct item_wave *waves = malloc(2 * sizeof(*waves));
    staging.lane = waves == NULL ? NULL : mc_gpu_take(device);
    int rc = MC_TRANSFER_ERR_MEMORY;
    if (staging.lane != NULL) {
        rc = run_direct(&staging);
        if (rc == 1)
            rc = run_waves(&staging, waves);
        else if (mc_gpu_finish(staging.lane) < 0 && rc == 0)
            rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    mc_gpu_give(staging.lane);
    free(waves);
    return rc;
}
