/* Transfers whose parts lie in a device's memory, over any path: through pinned memory of ours, in waves, while the
 * device copies the wave before or the one after.
 *
 * A READ is cut at its blocks into pieces that the transport verifies one by one in our memory; only what was found
 * right goes to the device. A WRITE that fits into a unit is copied from the device as a whole; a longer one is a
 * source that the transport reads from. Invariant: when mc_staged_run returns, no copy is under way. */
#include "store/path/device_stream.h"
#include "store/path/path.h"

#include "base/error.h"

#include <stdlib.h>

#define WAVE_PIECES 64u
#define STREAMS_MAX 4u /* long writes at a time: each holds two units */
#define FEW 16u
#define ALIGN 64u
#define REFUSED MC_DEVICE_REFUSED

struct staged_run { /* one mc_staged_run */
    struct mc_path *path;
    const struct mc_run *run;
    struct mc_transfer **transfers; /* those of devices */
    size_t count;
    struct mc_gpu_finder finder;
    int device;
    struct mc_gpu_lane *lane;
    int stop; /* the path has failed: what is left has too */
    /* where the next piece begins */
    size_t index;
    uint64_t at;
    struct mc_cursor cursor;
};

struct unit_wave {
    unsigned unit;
    size_t count, used; /* used: bytes of the unit */
    int refused;
    struct mc_transfer moves[WAVE_PIECES], *list[WAVE_PIECES], *owners[WAVE_PIECES];
    struct iovec parts[WAVE_PIECES];
    struct mc_cursor cursors[WAVE_PIECES]; /* of the owner's parts, where the piece begins */
};

/* Whose memory the first part is in that no processor can touch; -1: all of it is the host's. */
static int device_of(struct mc_gpu_finder *finder, const struct mc_transfer *transfer)
{
    for (size_t i = 0; i < transfer->part_count; i++) {
        if (transfer->parts[i].iov_len == 0)
            continue;
        struct mc_gpu_place place = mc_gpu_find(finder, transfer->parts[i].iov_base);
        if (place.kind != MC_GPU_HOST)
            return place.number;
    }
    return -1;
}

static void transfer_fail(struct mc_transfer *transfer, int code)
{
    if (transfer->result == 0)
        transfer->result = code;
}

/* ---- waves ---- */

static void wave_begin(struct unit_wave *wave, unsigned unit)
{
    wave->unit = unit;
    wave->count = wave->used = 0;
    wave->refused = 0;
}

/* Adds [at, at + length) of the transfer. */
static void wave_add(struct staged_run *staging, struct unit_wave *wave, struct mc_transfer *owner, uint64_t at,
                     uint64_t length)
{
    size_t i = wave->count++;
    wave->owners[i] = owner;
    wave->cursors[i] = staging->cursor;
    wave->parts[i] = (struct iovec){staging->lane->units[wave->unit] + wave->used, (size_t)length};
    wave->moves[i] = *owner;
    wave->moves[i].offset = owner->offset + at;
    wave->moves[i].length = length;
    wave->moves[i].parts = &wave->parts[i];
    wave->moves[i].part_count = 1;
    wave->moves[i].result = 0;
    wave->list[i] = &wave->moves[i];
    wave->used += (size_t)((length + ALIGN - 1) & ~(uint64_t)(ALIGN - 1));
}

/* Runs what is in the wave. */
static void wave_run(struct staged_run *staging, struct unit_wave *wave)
{
    if (wave->count == 0)
        return;
    if (staging->stop < 0 || wave->refused < 0)
        mc_path_fail_all(wave->list, wave->count, wave->refused < 0 ? wave->refused : staging->stop);
    else
        staging->path->transport->run(staging->path, wave->list, wave->count, staging->run);
    for (size_t i = 0; i < wave->count; i++) {
        int rc = wave->moves[i].result;
        if (rc == MC_ERR_TRANSFER_FAIL || rc == MC_ERR_RPC_TIMEOUT)
            staging->stop = rc;
        wave->owners[i]->is_unsure |= wave->moves[i].is_unsure;
        if (rc < 0)
            transfer_fail(wave->owners[i], rc);
    }
}

static void next_transfer(struct staged_run *staging)
{
    staging->at = 0;
    staging->index++;
    if (staging->index < staging->count)
        staging->cursor =
            mc_cursor(staging->transfers[staging->index]->parts, staging->transfers[staging->index]->part_count);
}

static void rewind_to_start(struct staged_run *staging)
{
    staging->index = SIZE_MAX;
    next_transfer(staging);
}

/* How much of the transfer goes into what is left of the unit: to the end, or to the end of a block, so that no block
 * is read and summed twice (unless one alone is longer than a unit). 0: nothing more. */
static uint64_t piece_length(const struct staged_run *staging, const struct unit_wave *wave,
                             const struct mc_transfer *transfer)
{
    uint64_t left = transfer->length - staging->at, room = staging->lane->unit_bytes - wave->used;
    if (left <= room)
        return left;
    uint64_t block = 1ull << mc_block_shift(transfer->object_length), start = transfer->offset + staging->at;
    uint64_t end = (start + room) & ~(block - 1);
    return end > start ? end - start : wave->used == 0 ? room : 0;
}

static void read_fill(struct staged_run *staging, struct unit_wave *wave)
{
    while (staging->index < staging->count && wave->count < WAVE_PIECES) {
        struct mc_transfer *transfer = staging->transfers[staging->index];
        if (transfer->kind != MC_TRANSFER_READ || transfer->result < 0 || staging->at == transfer->length) {
            next_transfer(staging);
            continue;
        }
        uint64_t length = piece_length(staging, wave, transfer);
        if (length == 0)
            return;
        wave_add(staging, wave, transfer, staging->at, length);
        mc_cursor_skip(&staging->cursor, length);
        staging->at += length;
    }
}

/* What was read and verified goes to the device. */
static void read_deliver(struct staged_run *staging, struct unit_wave *wave)
{
    struct mc_gpu_lane *lane = staging->lane;
    for (size_t i = 0; i < wave->count; i++) {
        if (wave->moves[i].result < 0 || wave->owners[i]->result < 0)
            continue;
        int rc = mc_device_copy_parts(&staging->finder, lane, &wave->cursors[i], wave->parts[i].iov_base,
                                      wave->parts[i].iov_len, true);
        if (rc < 0)
            transfer_fail(wave->owners[i], rc);
    }
    wave->refused = mc_gpu_mark(lane, wave->unit) < 0 ? REFUSED : 0;
}

static int run_reads(struct staged_run *staging, struct unit_wave *wave)
{
    int rc = 0;
    rewind_to_start(staging);
    for (unsigned turn = 0; rc == 0; turn++) {
        unsigned unit = turn & 1;
        if (turn >= 2 && mc_gpu_wait(staging->lane, unit) < 0)
            return REFUSED;
        wave_begin(wave, unit);
        read_fill(staging, wave);
        if (wave->count == 0)
            break;
        wave_run(staging, wave);
        read_deliver(staging, wave);
        rc = wave->refused;
    }
    return rc;
}

static bool is_short_write(const struct staged_run *staging, const struct mc_transfer *transfer)
{
    return transfer->kind == MC_TRANSFER_WRITE && transfer->result == 0 &&
           transfer->length <= staging->lane->unit_bytes;
}

/* Starts the copies of the next wave. */
static void write_fill(struct staged_run *staging, struct unit_wave *wave)
{
    for (; staging->index < staging->count && wave->count < WAVE_PIECES; next_transfer(staging)) {
        struct mc_transfer *transfer = staging->transfers[staging->index];
        if (!is_short_write(staging, transfer))
            continue;
        if (transfer->length > staging->lane->unit_bytes - wave->used)
            break;
        struct mc_cursor cursor = staging->cursor;
        size_t used = wave->used;
        wave_add(staging, wave, transfer, 0, transfer->length);
        int rc = mc_device_copy_parts(&staging->finder, staging->lane, &cursor, wave->parts[wave->count - 1].iov_base,
                                      transfer->length, false);
        if (rc < 0) { /* its place is given to the next, so what was started for it must have ended */
            (void)mc_gpu_finish(staging->lane);
            transfer_fail(transfer, rc);
            wave->count--;
            wave->used = used;
        }
    }
    if (wave->count > 0 && mc_gpu_mark(staging->lane, wave->unit) < 0)
        wave->refused = REFUSED;
}

static void run_short_writes(struct staged_run *staging, struct unit_wave *waves)
{
    rewind_to_start(staging);
    wave_begin(&waves[0], 0);
    write_fill(staging, &waves[0]);
    for (unsigned turn = 0; waves[turn & 1].count > 0; turn++) {
        struct unit_wave *wave = &waves[turn & 1], *after = &waves[(turn + 1) & 1];
        wave_begin(after, (turn + 1) & 1);
        write_fill(staging, after);
        if (wave->refused == 0 && mc_gpu_wait(staging->lane, wave->unit) < 0)
            wave->refused = REFUSED;
        wave_run(staging, wave);
    }
}

/* ---- long writes ---- */

static void run_streams(struct staged_run *staging, struct mc_device_stream *streams, struct mc_transfer **list,
                        size_t count)
{
    staging->path->transport->run(staging->path, list, count, staging->run);
    for (size_t i = 0; i < count; i++) {
        if (list[i]->result == MC_ERR_TRANSFER_FAIL || list[i]->result == MC_ERR_RPC_TIMEOUT)
            staging->stop = list[i]->result;
        list[i]->source = NULL;
        mc_device_stream_end(&streams[i], true);
    }
}

static void run_long_writes(struct staged_run *staging)
{
    struct mc_device_stream streams[STREAMS_MAX];
    struct mc_transfer *list[STREAMS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < staging->count; i++) {
        struct mc_transfer *transfer = staging->transfers[i];
        if (transfer->kind == MC_TRANSFER_WRITE && transfer->result == 0 &&
            transfer->length > staging->lane->unit_bytes) {
            if (staging->stop < 0) {
                transfer->result = staging->stop;
                continue;
            }
            streams[count] = mc_device_stream(&staging->finder, staging->device, NULL,
                                              mc_cursor(transfer->parts, transfer->part_count), transfer->length);
            transfer->source = &streams[count].source;
            list[count++] = transfer;
        }
        if (count == STREAMS_MAX) {
            run_streams(staging, streams, list, count);
            count = 0;
        }
    }
    if (count > 0)
        run_streams(staging, streams, list, count);
}

/* ---- in place: GPUDirect ---- */

struct direct_view {            /* of all transfers of a device, one after the other */
    struct mc_device_view view; /* first */
    struct staged_run *staging;
    struct mc_device_stream stream;
};

/* Through the lane's units: copied by the device, summed once by the processor. */
static struct mc_source *direct_open(struct mc_device_view *view, const struct mc_cursor *cursor, uint64_t length)
{
    struct direct_view *own = (struct direct_view *)view;
    struct staged_run *staging = own->staging;
    own->stream = mc_device_stream(&staging->finder, staging->device, staging->lane, *cursor, length);
    if (mc_gpu_flush(1ull << staging->device) < 0)
        own->stream.source.result = REFUSED;
    return &own->stream.source;
}

static void direct_close(struct mc_device_view *view)
{
    mc_device_stream_end(&((struct direct_view *)view)->stream, false);
}

/* All of it in this device's memory, where the path reaches it? */
static bool is_all_there(struct staged_run *staging, const struct mc_transfer *transfer)
{
    bool is_any = false;
    for (size_t i = 0; i < transfer->part_count; i++) {
        if (transfer->parts[i].iov_len == 0)
            continue;
        struct mc_gpu_place place = mc_gpu_find(&staging->finder, transfer->parts[i].iov_base);
        if (place.kind != MC_GPU_MEMORY || place.number != staging->device)
            return false;
        is_any = true;
    }
    return is_any && staging->path->transport->reaches(staging->path, transfer);
}

/* Is it over, or is it to be tried the other way? What says something of the path or the object is over. */
static bool is_over(const struct mc_transfer *transfer)
{
    int rc = transfer->result;
    return rc == 0 || transfer->is_unsure ||
           (rc != MC_ERR_NOT_SUPPORTED && rc != MC_ERR_NO_MEMORY && rc != REFUSED && rc != MC_ERR_CHECKSUM_MISMATCH);
}

/* RDMA devices read and write the memory themselves, after what its default stream has been given, as a copy would. The
 * transfers that are over then come last; how many are left: nothing of them is under way. */
static size_t run_direct(struct staged_run *staging)
{
    struct direct_view direct = {.view = {direct_open, direct_close}, .staging = staging};
    struct mc_transfer **list = staging->transfers;
    size_t count = 0, left = 0;
    for (size_t i = 0; i < staging->count; i++) { /* those that can be, first */
        struct mc_transfer *one = list[i];
        if (one->length == 0 || !is_all_there(staging, one))
            continue;
        list[i] = list[count];
        list[count++] = one;
    }
    if (count == 0 || mc_gpu_mark(staging->lane, 0) < 0 || mc_gpu_wait(staging->lane, 0) < 0)
        return staging->count;
    for (size_t i = 0; i < count; i++)
        list[i]->view = &direct.view;
    staging->path->transport->run(staging->path, list, count, staging->run);
    bool is_seen = mc_gpu_flush(1ull << staging->device) == 0;
    for (size_t i = 0; i < count; i++) {
        int rc = list[i]->result;
        list[i]->view = NULL;
        if (rc == 0 && list[i]->kind == MC_TRANSFER_READ && !is_seen)
            list[i]->result = REFUSED;
        if (rc == MC_ERR_TRANSFER_FAIL || rc == MC_ERR_RPC_TIMEOUT)
            staging->stop = rc;
    }
    for (size_t i = 0; i < staging->count; i++) {
        if (i < count && is_over(list[i]))
            continue;
        struct mc_transfer *one = list[i];
        list[i] = list[left];
        list[left++] = one;
    }
    return left;
}

/* ---- a batch ---- */

static void run_devices(struct staged_run *staging)
{
    struct unit_wave *waves = malloc(2 * sizeof(*waves));
    staging->lane = waves == NULL ? NULL : mc_gpu_take(staging->device);
    if (staging->lane == NULL) {
        free(waves);
        mc_path_fail_all(staging->transfers, staging->count, MC_ERR_NO_MEMORY);
        return;
    }
    const size_t count = staging->count;
    if (staging->path->transport->reaches != NULL)
        staging->count = run_direct(staging);
    for (size_t i = 0; i < staging->count; i++)
        staging->transfers[i]->result = staging->transfers[i]->length > 0 ? 0 : MC_ERR_INVALID_PARAMS;
    int rc = run_reads(staging, waves);
    /* Also after a failure: then nothing touches the caller's memory any more. */
    if (mc_gpu_finish(staging->lane) < 0)
        rc = REFUSED;
    for (size_t i = 0; rc < 0 && i < staging->count; i++)
        if (staging->transfers[i]->kind == MC_TRANSFER_READ)
            transfer_fail(staging->transfers[i], rc);
    /* A long write by the units that it will have: short ones first, as they hold the lane. */
    run_short_writes(staging, waves);
    (void)mc_gpu_finish(staging->lane);
    run_long_writes(staging);
    staging->count = count;
    mc_gpu_give(staging->lane);
    free(waves);
}

bool mc_staged_is_needed(struct mc_transfer *const *transfers, size_t count)
{
    struct mc_gpu_finder finder = {0};
    for (size_t i = 0; i < count; i++) {
        if (device_of(&finder, transfers[i]) >= 0)
            return true;
    }
    return false;
}

void mc_staged_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct staged_run staging = {.path = path, .run = run};
    struct mc_transfer *few[FEW], **sorted = count <= FEW ? few : malloc(count * sizeof(*sorted));
    size_t hosts = 0, devices = 0;
    if (sorted == NULL) {
        mc_path_fail_all(transfers, count, MC_ERR_NO_MEMORY);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (device_of(&staging.finder, transfers[i]) >= 0)
            sorted[count - ++devices] = transfers[i]; /* from the end, the other way round */
        else
            sorted[hosts++] = transfers[i];
    }
    if (hosts > 0)
        path->transport->run(path, sorted, hosts, run);
    /* Each device's by a stream of its own: that is what waits for the work on its default stream. */
    for (size_t first = hosts; first < count; first += staging.count) {
        staging.transfers = sorted + first;
        staging.device = device_of(&staging.finder, sorted[first]);
        staging.count = 0;
        for (size_t i = first; i < count; i++) {
            struct mc_transfer *transfer = sorted[i];
            if (device_of(&staging.finder, transfer) != staging.device)
                continue;
            sorted[i] = staging.transfers[staging.count];
            staging.transfers[staging.count++] = transfer;
        }
        run_devices(&staging);
    }
    if (sorted != few)
        free(sorted);
}
