/* A pair of a link: when it may be set up again, which of the peer's devices it tries, what becomes of a set-up. */
#include "rdma/pair.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define PAUSE_FIRST_NS 100000000ull
#define FRUITLESS_MAX 2u /* set-ups after which nothing arrived, until another device of the peer is tried */

/* ---- pauses ---- */

/* When a pause ends that begins now, doubled so often. */
static uint64_t after(const struct mc_rdma_link *link, uint32_t doublings)
{
    uint64_t most_ns = (uint64_t)link->rdma->settings.pause_s * 1000000000u;
    uint64_t pause_ns = PAUSE_FIRST_NS << (doublings < 20 ? doublings : 20);
    return mc_clock_ns() + (pause_ns < most_ns ? pause_ns : most_ns);
}

void mc_rdma_pair_pause(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    uint32_t failures = pair->failures++, at_once = (uint32_t)link->rdma->settings.gid_retry_max;
    /* The first ones at once: another GID, another device of the peer is tried each time. */
    pair->due_ns = failures >= at_once ? after(link, failures - at_once) : mc_clock_ns();
}

void mc_rdma_pair_was_fruitless(struct mc_rdma_pair *pair)
{
    /* Where it was moved from worked: back to that. */
    pair->fruitless += pair->is_moved ? FRUITLESS_MAX : 1;
    pair->moves += pair->is_moved;
}

/* ---- the peer's device ---- */

static int choose_among(struct mc_rdma_link *link, struct mc_rdma_device *device,
                        const struct mc_rdma_peer_device *peers, uint32_t rank)
{
    struct mc_rdma *rdma = link->rdma;
    pthread_mutex_lock(&rdma->lock);
    struct mc_rdma_local_device local = {device->name, device->number,    device->fabric,
                                         device->rows, device->row_count, rdma->settings.gid_index};
    int chosen = mc_rdma_choose_peer(&local, peers, link->peer_count, link->remote_mask, rank);
    pthread_mutex_unlock(&rdma->lock);
    return chosen;
}

int mc_rdma_pair_choose_remote(struct mc_rdma_link *link, struct mc_rdma_device *device, uint32_t rank)
{
    return choose_among(link, device, link->peer_devices, rank);
}

/* The one that fits best of all that the peer has, whether it was up when the peer told of it or not. */
static int choose_home(struct mc_rdma_link *link, struct mc_rdma_device *device)
{
    struct mc_rdma_peer_device peers[MC_RDMA_DEVICES_MAX];
    for (uint32_t i = 0; i < link->peer_count; i++) {
        peers[i] = link->peer_devices[i];
        peers[i].is_up = true;
    }
    return choose_among(link, device, peers, 0);
}

int mc_rdma_pair_choose_next(struct mc_rdma_link *link, const struct mc_rdma_pair *pair, uint32_t *gid_rank)
{
    uint32_t gids = (uint32_t)link->rdma->settings.gid_retry_max + 1, failures = pair->setup_failures;
    *gid_rank = (pair->is_move ? pair->moves : failures) % gids;
    /* The peer's next device when all GIDs of ours were tried with this one, or it does not work. */
    return pair->is_move
               ? choose_home(link, pair->device)
               : mc_rdma_pair_choose_remote(link, pair->device, failures / gids + pair->fruitless / FRUITLESS_MAX);
}

/* ---- near ---- */

/* link->lock is held. The peer's device of a pair that stands, or does so from the next run on; -1: it does not. */
static int remote_of(const struct mc_rdma_pair *pair)
{
    if (pair->fresh_state == MC_RDMA_FRESH_READY)
        return (int)pair->fresh.remote;
    return pair->is_up ? (int)pair->current.remote : -1;
}

int mc_rdma_link_node(struct mc_rdma_link *link, const struct mc_rdma_chunk *remote, int here)
{
    uint32_t ways[2] = {0, 0}; /* devices of ours that lead to one near that memory, and to any other */
    int found = -1;
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->pair_count; i++) {
        int peer = remote_of(&link->pairs[i]);
        if (peer < 0 || (remote->valid >> peer & 1) == 0)
            continue;
        bool is_near = remote->preferred == 0 || (remote->preferred >> peer & 1) != 0;
        ways[is_near ? 0 : 1] |= 1u << link->pairs[i].device->number;
    }
    pthread_mutex_unlock(&link->lock);
    uint32_t best = ways[0] != 0 ? ways[0] : ways[1];
    for (uint32_t i = 0; i < link->rdma->device_count; i++) {
        int node = (best >> i & 1) == 0 ? -1 : mc_rdma_device_node(link->rdma, i);
        if (node >= 0 && (found < 0 || node == here))
            found = node;
    }
    return found;
}

/* ---- the end of a set-up ---- */

void mc_rdma_pair_setup_failed(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    pair->fresh_state = MC_RDMA_FRESH_NONE;
    if (pair->is_move) {
        pair->move_ns = after(link, ++pair->moves);
        return;
    }
    pair->setup_failures++;
    mc_rdma_pair_pause(link, pair);
}

static void take_asking(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, int rc)
{
    if (rc != 0) {
        mc_rdma_pair_setup_failed(link, pair);
        return;
    }
    int home = choose_home(link, pair->device);
    pair->fresh = *half;
    pair->fresh_state = MC_RDMA_FRESH_READY;
    pair->setup_failures = 0;
    if (home >= 0 && (uint32_t)home != pair->fresh.remote)
        pair->move_ns = after(link, pair->moves);
    link->rdma->count.pairs_made++;
    /* With the state: a run that takes the pair clears its bit, which must not come after that. */
    atomic_fetch_or(&link->fresh_mask, 1u << (uint32_t)(pair - link->pairs));
}

void mc_rdma_pair_take(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, int rc,
                       const char *reason)
{
    snprintf(pair->error, sizeof(pair->error), "%s", rc == 0 ? "" : reason);
    if (!link->is_serving) {
        take_asking(link, pair, half, rc);
    } else if (rc == 0) {
        pair->current = *half;
        pair->is_up = true;
        link->rdma->count.pairs_served++;
    }
    if (rc == 0)
        *half = (struct mc_rdma_half){.gid_index = -1};
}

/* ---- the end of a link ---- */

/* Waits until whoever holds an event of them has handed it out. False: one is still there. */
static bool queues_close(struct mc_rdma_link *link)
{
    const struct mc_verbs *verbs = link->rdma->verbs;
    bool is_closed = true;
    while (link->queue_count > 0) {
        struct mc_rdma_queue *queue = &link->queues[--link->queue_count];
        int code = verbs->destroy_cq(queue->cq);
        if (code != 0)
            mc_log_limited(WARNING, "%s: a completion queue cannot be destroyed (error %d)", queue->device->name, code);
        is_closed &= code == 0;
    }
    return is_closed;
}

void mc_rdma_link_free(struct mc_rdma_link *link)
{
    for (uint32_t i = 0; i < MC_RDMA_PAIRS_MAX; i++)
        free(link->pairs[i].told);
    bool is_closed = queues_close(link);
    mc_slices_free(&link->slices);
    free(link->peer_devices);
    if (!is_closed)
        return; /* an event may come that names the link */
    mc_monitor_destroy(&link->lock, &link->woken);
    free(link);
}
