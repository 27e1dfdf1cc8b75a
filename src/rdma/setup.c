/* Set-up of pairs on threads of its own. A driver asks for the link address of the other side when a queue pair learns
 * of it, and sleeps for a second in the kernel when nobody answers; so no thread that serves others, and none that has
 * a deadline, does it. Every device has a queue of its own: one whose neighbours do not answer holds up no other. */
#include "rdma/setup.h"

#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define IDLE_NS 5000000000ull
#define SLOW_NS 100000000ull        /* who takes longer has slept in the kernel */
#define SLOW_LIFE_NS 10000000000ull /* a device that had one such gets more threads for so long */
#define SLOW_THREADS 4u
#define THREADS_MAX 64u
#define CONNECT_NS 3000000000ull /* for rdma_cm */
#define SILENT_FIRST_NS 1000000000ull

/* ---- addresses that do not answer ---- */

/* rdma->lock is held. */
static struct mc_rdma_silent *silent_find(struct mc_rdma_device *device, int gid_index, const uint8_t *gid)
{
    for (uint32_t i = 0; i < MC_RDMA_SILENT_MAX; i++)
        if (device->silent[i].failures != 0 && device->silent[i].gid_index == gid_index &&
            memcmp(device->silent[i].gid, gid, MC_GID_BYTES) == 0)
            return &device->silent[i];
    return NULL;
}

/* Has that address, asked for from that row of ours, kept a thread waiting for nothing a moment ago? */
static bool is_silent(struct mc_rdma_device *device, int gid_index, const uint8_t *gid)
{
    pthread_mutex_lock(&device->rdma->lock);
    const struct mc_rdma_silent *silent = silent_find(device, gid_index, gid);
    bool is_silent = silent != NULL && mc_clock_ns() < silent->until_ns;
    pthread_mutex_unlock(&device->rdma->lock);
    return is_silent;
}

static void note_silence(struct mc_rdma_device *device, int gid_index, const uint8_t *gid, bool is_silent)
{
    uint64_t most_ns = (uint64_t)device->rdma->settings.pause_s * 1000000000u;
    pthread_mutex_lock(&device->rdma->lock);
    struct mc_rdma_silent *silent = silent_find(device, gid_index, gid);
    if (silent == NULL && is_silent) {
        silent = &device->silent[device->silent_turn++ % MC_RDMA_SILENT_MAX];
        *silent = (struct mc_rdma_silent){.gid_index = gid_index};
        memcpy(silent->gid, gid, MC_GID_BYTES);
    }
    if (is_silent) {
        uint64_t pause_ns = SILENT_FIRST_NS << (silent->failures < 10 ? silent->failures : 10);
        silent->until_ns = mc_clock_ns() + (pause_ns < most_ns ? pause_ns : most_ns);
        silent->failures++;
    } else if (silent != NULL) {
        silent->failures = 0;
    }
    pthread_mutex_unlock(&device->rdma->lock);
}

/* ---- one pair ---- */

static int connect_oob(struct mc_rdma_pair *pair, struct mc_rdma_half *half, const struct mc_rdma_tell *peer,
                       char *reason, size_t size)
{
    struct mc_rdma_device *device = pair->device;
    if (is_silent(device, half->gid_index, peer->gid)) {
        snprintf(reason, size, "%.50s: the address of %.50s did not answer a moment ago", device->name, peer->device);
        return MC_ERR_RPC_TIMEOUT;
    }
    int gid_index = half->gid_index;
    uint64_t start_ns = mc_clock_ns();
    int rc = mc_rdma_half_connect(pair->link, pair, half, peer, reason, size);
    uint64_t now_ns = mc_clock_ns();
    bool is_slow = now_ns - start_ns >= SLOW_NS;
    if (is_slow)
        device->slow_until_ns = now_ns + SLOW_LIFE_NS;
    if (rc == 0 || is_slow)
        note_silence(device, gid_index, peer->gid, rc != 0);
    return rc;
}

/* A queue pair of the serving half, at work with what the peer has told. The GIDs that fit are tried in turn. */
static int serve(struct mc_rdma_pair *pair, const struct mc_rdma_tell *asked, struct mc_rdma_half *half, char *reason,
                 size_t size)
{
    int rc = MC_ERR_TRANSFER_FAIL, first = -1;
    int64_t ranks = pair->link->rdma->settings.gid_retry_max + 1;
    bool is_over = false; /* the address did not answer, and no row is left to ask for it from */
    for (int64_t rank = 0; rc != 0 && !is_over && rank < ranks && !pair->link->is_closed; rank++) {
        bool is_silent = rc == MC_ERR_RPC_TIMEOUT;
        rc = mc_rdma_half_create(pair->link, pair, half, reason, size);
        if (rc == 0)
            rc = mc_rdma_half_choose_gid(pair, half, asked->gid, (unsigned)rank, reason, size);
        first = rank == 0 ? half->gid_index : first;
        is_over = is_silent && half->gid_index == first; /* where no further row is, the first comes again */
        if (rc == 0)
            rc = is_over ? MC_ERR_RPC_TIMEOUT : connect_oob(pair, half, asked, reason, size);
        if (rc != 0)
            mc_rdma_half_destroy(pair->link->rdma, half);
    }
    return rc;
}

static int set_up(struct mc_rdma_pair *pair, const struct mc_rdma_tell *told, struct mc_rdma_half *half, char *reason,
                  size_t size)
{
    struct mc_rdma_link *link = pair->link;
    if (link->is_serving)
        return serve(pair, told, half, reason, size);
    if (told->is_cm)
        return mc_rdma_cm_connect(link, (uint32_t)(pair - link->pairs), half, told, mc_clock_ns() + CONNECT_NS, reason,
                                  size);
    return connect_oob(pair, half, told, reason, size);
}

/* ---- queues; setup.lock is held ---- */

static void push(struct mc_rdma_pair *pair)
{
    struct mc_rdma_device *device = pair->device;
    pair->stage = MC_RDMA_STAGE_QUEUED;
    pair->next_queued = NULL;
    *device->queue_end = pair;
    device->queue_end = &pair->next_queued;
}

static void unqueue(struct mc_rdma_pair *pair)
{
    struct mc_rdma_device *device = pair->device;
    struct mc_rdma_pair **at = &device->queue;
    while (*at != pair)
        at = &(*at)->next_queued;
    *at = pair->next_queued;
    if (device->queue_end == &pair->next_queued)
        device->queue_end = at;
    pair->stage = MC_RDMA_STAGE_IDLE;
}

/* What can be begun now. */
static struct mc_rdma_pair *next_pair(const struct mc_rdma *rdma)
{
    uint64_t now_ns = mc_clock_ns();
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        const struct mc_rdma_device *device = &rdma->devices[i];
        if (device->queue != NULL && device->running < (now_ns < device->slow_until_ns ? SLOW_THREADS : 1))
            return device->queue;
    }
    return NULL;
}

static void *setup_main(void *argument);

/* A thread for what can be begun, if none is free. False: there is none, and none can be had. */
static bool staff(struct mc_rdma *rdma)
{
    struct mc_rdma_workshop *setup = &rdma->setup;
    if (setup->idle > 0)
        pthread_cond_signal(&setup->work);
    else if (setup->threads < THREADS_MAX && mc_thread_start(NULL, "mc-rdma-setup", setup_main, rdma) == 0)
        setup->threads++;
    return setup->threads > 0;
}

/* ---- the threads ---- */

/* Neither lock is held. */
static void run_pair(struct mc_rdma_pair *pair)
{
    struct mc_rdma_link *link = pair->link;
    struct mc_rdma_workshop *setup = &link->rdma->setup;
    struct mc_rdma_half half = {.gid_index = -1};
    char reason[MC_RDMA_REASON_MAX] = "";
    pthread_mutex_lock(&link->lock);
    struct mc_rdma_tell told = *pair->told;
    /* Told anew before this thread got here, and for another device: that is begun when this one ends. */
    bool is_other = link->is_serving && strcmp(told.peer, pair->device->name) != 0;
    uint32_t round = pair->round - is_other;
    bool is_wanted = pair->is_wanted && !is_other && !link->is_closed && mc_clock_ns() < link->wanted_until_ns;
    if (!link->is_serving && !link->is_closed) {
        half = pair->fresh;
        pair->fresh = (struct mc_rdma_half){.gid_index = -1, .remote = half.remote, .wire = half.wire};
    }
    pthread_mutex_unlock(&link->lock);
    int rc = MC_ERR_RPC_TIMEOUT;
    if (is_wanted)
        rc = set_up(pair, &told, &half, reason, sizeof(reason));
    else
        snprintf(reason, sizeof(reason), "nobody has asked for it any more");
    pthread_mutex_lock(&link->lock);
    bool is_stale = link->is_closed || pair->round != round;
    if (!is_stale)
        mc_rdma_pair_take(link, pair, &half, rc, reason);
    pthread_mutex_lock(&setup->lock);
    pair->stage = MC_RDMA_STAGE_IDLE; /* after it was taken: whoever waits for this looks then */
    if (pair->round != round && pair->is_wanted && !link->is_closed) { /* asked for anew meanwhile */
        pair->device = mc_rdma_device_named(link->rdma, pair->told->peer);
        push(pair);
    }
    pthread_mutex_unlock(&setup->lock);
    if (!is_stale && link->notify != NULL)
        link->notify(link->notify_context);
    pthread_mutex_unlock(&link->lock);
    mc_rdma_half_destroy(link->rdma, &half); /* unless it was taken */
}

static void *setup_main(void *argument)
{
    struct mc_rdma *rdma = argument;
    struct mc_rdma_workshop *setup = &rdma->setup;
    pthread_mutex_lock(&setup->lock);
    for (;;) {
        struct mc_rdma_pair *pair = next_pair(rdma);
        if (pair == NULL) {
            if (setup->is_stopping)
                break;
            setup->idle++;
            int rc = mc_monitor_wait(&setup->lock, &setup->work, mc_clock_ns() + IDLE_NS);
            setup->idle--;
            if (rc == ETIMEDOUT && next_pair(rdma) == NULL)
                break;
            continue;
        }
        struct mc_rdma_link *link = pair->link;
        struct mc_rdma_device *device = pair->device;
        unqueue(pair);
        pair->stage = MC_RDMA_STAGE_RUNNING;
        device->running++;
        link->users++;
        if (next_pair(rdma) != NULL)
            (void)staff(rdma);
        pthread_mutex_unlock(&setup->lock);
        run_pair(pair);
        pthread_mutex_lock(&setup->lock);
        device->running--;
        bool is_last = --link->users == 0 && link->is_closed;
        pthread_cond_broadcast(&setup->done);
        if (is_last) {
            pthread_mutex_unlock(&setup->lock);
            mc_rdma_link_free(link);
            pthread_mutex_lock(&setup->lock);
        }
    }
    setup->threads--;
    pthread_cond_broadcast(&setup->done);
    pthread_mutex_unlock(&setup->lock);
    return NULL;
}

/* ---- what others call ---- */

void mc_rdma_setup_open(struct mc_rdma *rdma)
{
    mc_monitor_init(&rdma->setup.lock, &rdma->setup.work);
    mc_condition_init(&rdma->setup.done);
}

void mc_rdma_setup_stop(struct mc_rdma *rdma)
{
    struct mc_rdma_workshop *setup = &rdma->setup;
    pthread_mutex_lock(&setup->lock);
    setup->is_stopping = true;
    pthread_cond_broadcast(&setup->work);
    while (setup->threads > 0)
        pthread_cond_wait(&setup->done, &setup->lock);
    pthread_mutex_unlock(&setup->lock);
}

void mc_rdma_setup_close(struct mc_rdma *rdma)
{
    pthread_cond_destroy(&rdma->setup.work);
    mc_monitor_destroy(&rdma->setup.lock, &rdma->setup.done);
}

bool mc_rdma_setup_begin(struct mc_rdma_pair *pair, struct mc_rdma_device *device, const struct mc_rdma_tell *told)
{
    struct mc_rdma_workshop *setup = &pair->link->rdma->setup;
    if (pair->told == NULL)
        pair->told = malloc(sizeof(*pair->told));
    if (pair->told == NULL)
        return false;
    *pair->told = *told;
    pair->round++;
    pair->is_wanted = true;
    bool is_staffed = true;
    pthread_mutex_lock(&setup->lock);
    if (pair->stage == MC_RDMA_STAGE_QUEUED)
        unqueue(pair);
    if (pair->stage == MC_RDMA_STAGE_IDLE) {
        if (pair->device != device) /* an asking half's never changes, and is read without the lock */
            pair->device = device;
        push(pair);
        if (next_pair(pair->link->rdma) != NULL || setup->threads == 0)
            is_staffed = staff(pair->link->rdma);
        if (!is_staffed)
            unqueue(pair);
    }
    pthread_mutex_unlock(&setup->lock);
    pair->is_wanted = is_staffed;
    return is_staffed;
}

bool mc_rdma_setup_recall(struct mc_rdma_pair *pair)
{
    struct mc_rdma_workshop *setup = &pair->link->rdma->setup;
    pair->is_wanted = false;
    pthread_mutex_lock(&setup->lock);
    if (pair->stage == MC_RDMA_STAGE_QUEUED)
        unqueue(pair);
    bool is_idle = pair->stage == MC_RDMA_STAGE_IDLE;
    pthread_mutex_unlock(&setup->lock);
    return is_idle;
}

bool mc_rdma_setup_is_busy(struct mc_rdma_link *link, uint32_t mask)
{
    bool is_busy = false;
    pthread_mutex_lock(&link->rdma->setup.lock);
    for (uint32_t i = 0; i < link->pair_count; i++)
        is_busy |= (mask >> i & 1) != 0 && link->pairs[i].stage != MC_RDMA_STAGE_IDLE;
    pthread_mutex_unlock(&link->rdma->setup.lock);
    return is_busy;
}

void mc_rdma_setup_wait(struct mc_rdma_link *link, uint32_t mask, uint64_t until_ns)
{
    struct mc_rdma_workshop *setup = &link->rdma->setup;
    bool is_busy = true;
    pthread_mutex_lock(&setup->lock);
    for (int rc = 0; is_busy && rc == 0;) {
        is_busy = false;
        for (uint32_t i = 0; i < link->pair_count; i++)
            is_busy |= (mask >> i & 1) != 0 && link->pairs[i].stage != MC_RDMA_STAGE_IDLE;
        if (is_busy)
            rc = mc_monitor_wait(&setup->lock, &setup->done, until_ns);
    }
    pthread_mutex_unlock(&setup->lock);
}

void mc_rdma_setup_leave(struct mc_rdma_link *link)
{
    struct mc_rdma_workshop *setup = &link->rdma->setup;
    pthread_mutex_lock(&link->lock); /* no word of it goes out any more after that */
    pthread_mutex_lock(&setup->lock);
    link->is_closed = true;
    link->notify = NULL;
    for (uint32_t i = 0; i < link->pair_count; i++)
        if (link->pairs[i].stage == MC_RDMA_STAGE_QUEUED)
            unqueue(&link->pairs[i]);
    link->users++;
    pthread_mutex_unlock(&setup->lock);
    pthread_mutex_unlock(&link->lock);
}

void mc_rdma_setup_release(struct mc_rdma_link *link)
{
    struct mc_rdma_workshop *setup = &link->rdma->setup;
    pthread_mutex_lock(&setup->lock);
    bool is_last = --link->users == 0;
    pthread_mutex_unlock(&setup->lock);
    if (is_last)
        mc_rdma_link_free(link);
}
