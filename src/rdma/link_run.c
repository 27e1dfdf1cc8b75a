/* A run: the state machine of slices.c over the queue pairs of a link, on the calling thread. */
#include "rdma/link.h"
#include "rdma/pair.h"

#include "env/clock.h"
#include "env/log.h"

#include <sched.h>
#include <stdio.h>

#define COMPLETIONS 32
#define LOOK_NS 100000000ull /* ticks, and looks at what may have changed */
#define DRAIN_NS 5000000ull  /* a queue pair in error has given back its requests long before */
#define TURNS_BETWEEN_LOOKS 64

/* ---- ids of work requests ---- */

static uint64_t work_id(uint32_t pair, uint32_t generation, uint32_t sequence)
{
    return (uint64_t)pair << 56 | (uint64_t)(generation & 0xffffff) << 32 | sequence;
}

/* ---- pairs that come and go ---- */

/* link->lock is held. What the fresh half takes the place of, to be destroyed without the lock. */
static struct mc_rdma_half take_one(struct mc_rdma_link *link, uint32_t number)
{
    struct mc_rdma_pair *pair = &link->pairs[number];
    struct mc_rdma_half before = pair->current;
    if (before.qp != NULL)
        mc_slices_pair_down(&link->slices, number); /* it rests: nothing is under way */
    pair->current = pair->fresh;
    pair->fresh = (struct mc_rdma_half){.gid_index = -1};
    pair->fresh_state = MC_RDMA_FRESH_NONE;
    pair->wire = pair->current.wire;
    pair->due_ns = UINT64_MAX;
    pair->is_moved = pair->is_move;
    pair->has_worked = false;
    pair->generation++;
    link->slices.pairs[number].config.inline_max = pair->current.inline_max;
    link->slices.pairs[number].config.remote_device = pair->current.remote;
    mc_slices_pair_up(&link->slices, number);
    pair->is_up = true;
    atomic_fetch_and(&link->fresh_mask, ~(1u << number));
    return before;
}

/* Takes what a set-up has made ready meanwhile. */
static void take_fresh(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    struct mc_rdma_half before[MC_RDMA_ASKING_MAX];
    uint32_t count = 0;
    if (atomic_load_explicit(&link->fresh_mask, memory_order_acquire) == 0)
        return;
    uint32_t busy = mc_slices_busy(&link->slices) | job->broken;
    bool is_any_up = false;
    for (uint32_t i = 0; i < link->pair_count; i++)
        is_any_up |= link->pairs[i].is_up;
    if (!is_any_up)
        pthread_mutex_lock(&link->lock);
    else if (pthread_mutex_trylock(&link->lock) != 0)
        return; /* a set-up is at work; the next look finds it */
    for (uint32_t i = 0; i < link->pair_count; i++)
        if (link->pairs[i].fresh_state == MC_RDMA_FRESH_READY && (busy >> i & 1) == 0)
            before[count++] = take_one(link, i);
    pthread_mutex_unlock(&link->lock);
    while (count > 0)
        mc_rdma_half_destroy(link->rdma, &before[--count]);
}

/* The pair takes no more work; what it has comes back in error. It is destroyed by bury. */
static void pair_break(struct mc_rdma_flight *job, uint32_t number, const char *error)
{
    struct mc_rdma_link *link = job->link;
    struct mc_rdma_pair *pair = &link->pairs[number];
    if (!pair->is_up)
        return;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    pair->is_up = false;
    link->slices.pairs[number].is_up = false;
    (void)link->rdma->verbs->modify_qp(pair->current.qp, &attributes, IBV_QP_STATE); /* or it is in error already */
    job->broken |= 1u << number;
    job->errors[number] = error;
}

/* ---- completions ---- */

static enum mc_slice_end end_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return MC_SLICE_DONE;
    case IBV_WC_WR_FLUSH_ERR:
        return MC_SLICE_FLUSHED;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
        return MC_SLICE_REFUSED;
    default: /* REM_INV_REQ_ERR also: soft RoCE says it of good requests after packets were lost */
        return MC_SLICE_LOST;
    }
}

static const char *error_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair went into error";
    case IBV_WC_REM_ACCESS_ERR:
        return "the peer's device refused address or key";
    case IBV_WC_REM_INV_REQ_ERR:
        return "the peer's device refused the request (a path MTU other than the peer's?)";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_LEN_ERR:
        return "our own device refused address or key";
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer does not answer";
    default:
        return "the device reports an error";
    }
}

/* For the first time since it was set up. */
static void note_worked(struct mc_rdma_pair *pair)
{
    pair->has_worked = true;
    pair->failures = 0;
    pair->fruitless = 0;
    if (pair->move_ns == UINT64_MAX) /* elsewhere it says nothing of where it should be */
        pair->moves = 0;
}

static void complete(struct mc_rdma_flight *job, const struct ibv_wc *completion, uint64_t now_ns)
{
    struct mc_rdma_link *link = job->link;
    uint32_t number = (uint32_t)(completion->wr_id >> 56);
    struct mc_rdma_pair *pair = number < link->pair_count ? &link->pairs[number] : NULL;
    if (pair == NULL || (completion->wr_id >> 32 & 0xffffff) != (pair->generation & 0xffffff))
        return; /* of a queue pair that is no more */
    uint64_t bytes = link->slices.pairs[number].bytes;
    enum mc_slice_end end = end_of(completion->status);
    bool is_good = mc_slices_end(&link->slices, number, (uint32_t)completion->wr_id, end, now_ns);
    bytes -= link->slices.pairs[number].bytes;
    pair->bytes += bytes;
    pair->device->under_way_bytes -= bytes;
    pair->device->moved_bytes += bytes;
    if (end == MC_SLICE_DONE) {
        job->good_devices |= 1u << pair->device->number;
        if (!pair->has_worked)
            note_worked(pair);
    }
    if (is_good)
        return;
    if (end == MC_SLICE_REFUSED)
        link->rdma->count.refusals++;
    else if (end == MC_SLICE_LOST)
        job->bad_devices |= 1u << pair->device->number;
    if (end != MC_SLICE_FLUSHED || pair->is_up)
        pair_break(job, number, error_of(completion->status));
}

/* Completions of all queues with work under way. How many there were. */
static int poll_queues(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    struct ibv_wc completions[COMPLETIONS];
    int all = 0;
    for (uint32_t i = 0; i < link->queue_count; i++) {
        int count = link->rdma->verbs->poll_cq(link->queues[i].cq, COMPLETIONS, completions);
        uint64_t now_ns = count > 0 ? mc_clock_ns() : 0;
        for (int j = 0; j < count; j++)
            complete(job, &completions[j], now_ns);
        all += count > 0 ? count : 0;
    }
    return all;
}

/* Destroys what is broken, after a last look at what it had done. Then nothing of it moves any more, and its slices can
 * be given to others. */
static void bury(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    if (job->broken == 0)
        return;
    uint64_t end_ns = mc_clock_ns() + DRAIN_NS;
    for (;;) {
        uint32_t waited_for = 0;
        int count = poll_queues(job);
        for (uint32_t i = 0; i < link->pair_count; i++)
            waited_for |= (job->broken >> i & 1) != 0 ? mc_slices_busy(&link->slices) & 1u << i : 0;
        /* Flushed requests stay in the ring, so there is no telling the last one from here: until nothing comes. */
        if (waited_for == 0 || count == 0 || mc_clock_ns() >= end_ns)
            break;
    }
    for (uint32_t i = 0; i < link->pair_count; i++) {
        struct mc_rdma_pair *pair = &link->pairs[i];
        if ((job->broken >> i & 1) == 0)
            continue;
        pthread_mutex_lock(&link->lock); /* for those who describe the link */
        struct mc_rdma_half half = pair->current;
        pair->current = (struct mc_rdma_half){.gid_index = -1, .remote = half.remote};
        snprintf(pair->error, sizeof(pair->error), "%s", job->errors[i]);
        pthread_mutex_unlock(&link->lock);
        mc_rdma_half_destroy(link->rdma, &half);
        pair->device->under_way_bytes -= link->slices.pairs[i].bytes;
        mc_slices_pair_down(&link->slices, i);
        if (!pair->has_worked)
            mc_rdma_pair_was_fruitless(pair);
        mc_rdma_pair_pause(link, pair);
        link->rdma->count.pairs_failed++;
        job->run->failed_pairs++;
        mc_log_limited(WARNING, "a queue pair of %s broke: %s", pair->device->name, job->errors[i]);
    }
    job->broken = 0;
}

/* ---- posting ---- */

static int post_burst(struct mc_rdma_flight *job, uint32_t number, const struct mc_slice_post *posts, uint32_t count)
{
    struct mc_rdma_pair *pair = &job->link->pairs[number];
    struct ibv_send_wr work[MC_SLICES_BURST_MAX], *bad = NULL;
    struct ibv_sge parts[MC_SLICES_BURST_MAX];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct mc_slice_post *post = &posts[i];
        bytes += post->length;
        parts[i] = (struct ibv_sge){.addr = post->local, .length = post->length, .lkey = post->local_key};
        work[i] = (struct ibv_send_wr){
            .wr_id = work_id(number, pair->generation, post->sequence),
            .next = i + 1 < count ? &work[i + 1] : NULL,
            .sg_list = &parts[i],
            .num_sge = 1,
            .opcode = post->opcode == MC_RDMA_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
            .send_flags = (post->is_signaled ? (unsigned)IBV_SEND_SIGNALED : 0u) |
                          (post->is_inline ? (unsigned)IBV_SEND_INLINE : 0u),
            .wr.rdma = {.remote_addr = post->remote, .rkey = post->remote_key},
        };
    }
    pair->device->under_way_bytes += bytes;
    int rc = job->link->rdma->verbs->post_send(pair->current.qp, work, &bad);
    if (rc == 0)
        return 0;
    uint32_t posted = bad != NULL ? (uint32_t)(bad - work) : 0;
    for (uint32_t i = posted; i < count; i++)
        pair->device->under_way_bytes -= posts[i].length;
    mc_slices_unpost(&job->link->slices, number, count - posted);
    pair_break(job, number, "the device takes no request");
    return MC_ERR_TRANSFER_FAIL;
}

/* Posts what can be posted now. True: something was. */
static bool post_all(struct mc_rdma_flight *job)
{
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    uint64_t now_ns = mc_clock_ns();
    bool is_any = false;
    while (mc_slices_next(&job->link->slices, now_ns, &pair, posts, &count)) {
        is_any = true;
        if (post_burst(job, pair, posts, count) < 0)
            bury(job);
    }
    return is_any;
}

/* ---- looking around ---- */

/* A pair whose port went down, whose device was lost, or whose GID is not what it was, is broken at once: waiting for
 * its requests to fail would take seconds. */
static void check_devices(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    link->checked_version = link->rdma->version;
    for (uint32_t i = 0; i < link->pair_count; i++) {
        struct mc_rdma_pair *pair = &link->pairs[i];
        if (!pair->is_up)
            continue;
        struct mc_rdma_device *device = pair->device;
        bool is_gid_there = device->fabric != MC_RDMA_ROCE;
        pthread_mutex_lock(&link->rdma->lock);
        for (uint32_t j = 0; j < device->row_count && !is_gid_there; j++)
            is_gid_there = (int)device->rows[j].index == pair->current.gid_index &&
                           memcmp(device->rows[j].gid, pair->current.gid, MC_GID_BYTES) == 0;
        pthread_mutex_unlock(&link->rdma->lock);
        if (device->is_lost || !device->is_active)
            pair_break(job, i, "the port is down");
        else if (!is_gid_there && pair->current.id == NULL)
            pair_break(job, i, "its GID is gone");
    }
}

static void break_mask(struct mc_rdma_flight *job, uint32_t mask, const char *error)
{
    for (uint32_t i = 0; i < job->link->pair_count; i++)
        if ((mask >> i & 1) != 0)
            pair_break(job, i, error);
}

/* What time and others have changed. 0, or MC_ERR_RPC_TIMEOUT. */
static int job_refresh(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    struct mc_rdma_run *run = job->run;
    uint64_t now_ns = mc_clock_ns();
    if (now_ns >= run->deadline_ns)
        return MC_ERR_RPC_TIMEOUT;
    take_fresh(job);
    if (link->checked_version != link->rdma->version)
        check_devices(job);
    uint32_t stalled = mc_slices_stalled(&link->slices, now_ns, job->stall_ns);
    if (stalled != 0) {
        link->rdma->count.stalls += (uint64_t)__builtin_popcount(stalled);
        for (uint32_t i = 0; i < link->pair_count; i++)
            job->bad_devices |= (stalled >> i & 1) != 0 ? 1u << link->pairs[i].device->number : 0;
        break_mask(job, stalled, "it moved nothing for too long");
    }
    bury(job);
    if (now_ns < job->look_ns)
        return 0;
    job->look_ns = now_ns + LOOK_NS;
    if (run->tick != NULL)
        run->tick(run->context);
    return run->stop != NULL && *run->stop ? MC_ERR_RPC_TIMEOUT : 0;
}

/* ---- waiting ---- */

/* Completions within the spin. */
static bool spin(struct mc_rdma_flight *job)
{
    uint64_t end_ns = mc_clock_ns() + mc_spin_ns();
    do {
        if (poll_queues(job) > 0) {
            mc_spin_hit(&job->link->spin);
            return true;
        }
        sched_yield(); /* on one core the peer must run before there can be anything */
    } while (mc_clock_ns() < end_ns);
    mc_spin_miss(&job->link->spin);
    return false;
}

/* Asks every queue for an event at its next completion; then one more look, for what came before the asking. */
static bool arm(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    for (uint32_t i = 0; i < link->queue_count; i++)
        if (link->rdma->verbs->req_notify_cq(link->queues[i].cq) != 0)
            return true; /* no events: then by looking */
    return poll_queues(job) > 0;
}

static void wait_for_completions(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    bool may_count = true;
    if (mc_spin_wanted(&link->spin)) {
        if (spin(job))
            return;
        may_count = false; /* judged already */
    }
    if (arm(job))
        return;
    uint64_t start_ns = mc_clock_ns(), until_ns = start_ns + (job->stall_ns < LOOK_NS ? job->stall_ns : LOOK_NS);
    until_ns = job->run->deadline_ns < until_ns ? job->run->deadline_ns : until_ns;
    if (mc_rdma_wait(link, until_ns) && may_count)
        mc_spin_slept(&link->spin, mc_clock_ns() - start_ns);
}

/* ---- the run ---- */

static int drive(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    for (unsigned turns = 1;; turns++) {
        (void)post_all(job);
        if (mc_slices_is_over(&link->slices))
            return 0;
        int count = poll_queues(job);
        bury(job);
        if (mc_slices_is_over(&link->slices))
            return 0;
        if (count == 0) {
            wait_for_completions(job);
            bury(job);
        }
        int rc = count == 0 || turns % TURNS_BETWEEN_LOOKS == 0 ? job_refresh(job) : 0;
        if (rc < 0)
            return rc;
    }
}

static int sum_up(struct mc_rdma_flight *job, const struct mc_rdma_request *requests, size_t count)
{
    struct mc_rdma *rdma = job->link->rdma;
    uint64_t read = 0, written = 0;
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        if (requests[i].result != 0)
            rc = rc != 0 ? rc : requests[i].result;
        else if (requests[i].opcode == MC_RDMA_READ)
            read += requests[i].length;
        else
            written += requests[i].length;
    }
    rdma->count.read_bytes += read;
    rdma->count.written_bytes += written;
    rdma->count.retries += job->link->slices.retried;
    rdma->count.slices += job->link->slices.posted;
    job->link->slices.posted = 0;
    /* A device is judged only beside others that reached this very peer: a dead peer says nothing of our devices. */
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        if ((job->good_devices >> i & 1) != 0)
            mc_rdma_device_note(&rdma->devices[i], true);
        else if ((job->bad_devices >> i & 1) != 0 && job->good_devices != 0)
            mc_rdma_device_note(&rdma->devices[i], false);
    }
    return rc;
}

/* The deadline has come, or the caller wants no more: what is under way ends now. */
static void give_up(struct mc_rdma_flight *job)
{
    struct mc_rdma_link *link = job->link;
    mc_slices_cancel(&link->slices, MC_ERR_RPC_TIMEOUT);
    if (mc_slices_busy(&link->slices) != 0)
        link->rdma->count.timeouts++;
    break_mask(job, mc_slices_busy(&link->slices), "the deadline came");
    bury(job);
    job->is_over = true;
}

int mc_rdma_flight_begin(struct mc_rdma_flight *flight, struct mc_rdma_link *link, struct mc_rdma_request *requests,
                         size_t count, struct mc_rdma_run *run)
{
    bool was_running = atomic_exchange(&link->is_running, true);
    mc_assert(!was_running && !link->is_serving);
    uint64_t patience_ns = mc_rdma_patience_ns(&link->rdma->settings);
    *flight = (struct mc_rdma_flight){.link = link, .run = run, .requests = requests, .count = count};
    flight->stall_ns = run->stall_ns == 0            ? (uint64_t)link->rdma->settings.stall_ms * 1000000u
                       : run->stall_ns > patience_ns ? run->stall_ns
                                                     : patience_ns;
    flight->look_ns = mc_clock_ns() + LOOK_NS;
    run->is_unsure = false;
    run->failed_pairs = 0;
    run->retried = 0;
    int rc = mc_slices_begin(&link->slices, requests, count);
    if (rc < 0) {
        link->is_running = false;
        return rc;
    }
    if (job_refresh(flight) < 0)
        give_up(flight);
    else
        (void)post_all(flight);
    return 0;
}

void mc_rdma_flight_advance(struct mc_rdma_flight *flight)
{
    if (flight->is_over)
        return;
    /* First what has come: who was away for long must not take it for a stall. */
    while (poll_queues(flight) > 0)
        ;
    bury(flight);
    (void)post_all(flight);
    if (mc_slices_is_over(&flight->link->slices))
        flight->is_over = true;
    else if (job_refresh(flight) < 0)
        give_up(flight);
}

int mc_rdma_flight_end(struct mc_rdma_flight *flight)
{
    struct mc_rdma_link *link = flight->link;
    if (!flight->is_over && drive(flight) < 0)
        give_up(flight);
    mc_assert(mc_slices_is_over(&link->slices));
    flight->run->is_unsure = link->slices.is_unsure;
    flight->run->retried = link->slices.retried;
    int rc = sum_up(flight, flight->requests, flight->count);
    link->is_running = false;
    return rc;
}

int mc_rdma_link_run(struct mc_rdma_link *link, struct mc_rdma_request *requests, size_t count, struct mc_rdma_run *run)
{
    struct mc_rdma_flight flight;
    int rc = mc_rdma_flight_begin(&flight, link, requests, count, run);
    return rc < 0 ? rc : mc_rdma_flight_end(&flight);
}
