/* Transport `rdma`: one-sided reads and writes of an owner's segment. The owner's processor takes no part: a get reads
 * the bytes and then the slot, which says whether they are still those of the wanted generation; a put writes the whole
 * extent and says COMMIT on the connection over which the link was set up. The owner cannot refuse what a device
 * writes; so it closes that connection, and the link with it, when a grant of this node is cut (serve_lane.c).
 *
 * A link and its connection are used by one batch at a time. How its bytes move: rdma_flow.h. */
#include "store/path/rdma_flow.h"
#include "store/path/tcp_lane.h"
#include "rdma/remote.h"

#include "env/clock.h"
#include "store/wire/stream.h"

#include <poll.h>
#include <stdlib.h>

#define IDLE_MAX 8u
#define SETUP_NS 2000000000ull /* for a link to be made */
#define SETUP_LOOK_MS 2
#define SETUP_WAIT_MS 20u     /* for the answer: the thread that gives it serves others, too */
#define REPAIR_WAIT_MS 1u     /* at once: the owner goes on by itself, and says later what came of it */
#define REPAIR_NS 50000000ull /* for pairs of a link that works without them */
#define SLOT_BYTES sizeof(struct mc_slot)

struct rdma_lane {
    struct mc_tcp_lane *control;
    struct mc_rdma_link *link;
    struct rdma_lane *next;
};

struct rdma_path {
    struct mc_path path;
    struct mc_path *tcp; /* for what must be asked of the owner, or has no link; NULL until then. Guarded by the lock */
    struct mc_rdma_remote *remote;
    uint64_t data, index; /* where these begin in the owner's memory */
    pthread_mutex_t lock; /* guards the list */
    struct rdma_lane *idle;
    uint32_t idle_count;
};

enum { REGION_DATA, REGION_INDEX, REGIONS };

/* ---- asking the owner ---- */

/* 0 and what it says, or negative. */
static int ask(const struct mc_tcp_lane *control, struct mc_span text, uint64_t deadline_ns, struct mc_buffer *answer)
{
    struct mc_buffer out = {0}, in = {0};
    struct mc_frame frame;
    struct mc_wire_rdma_text head = {.code = 0, .text = text};
    size_t start = mc_frame_begin(&out, MC_MESSAGE_RDMA_OFFER, 1);
    mc_wire_rdma_text_write(&out, &head);
    mc_frame_end(&out, start);
    struct iovec part = {out.data, out.length};
    int rc = mc_socket_send(control->fd, &part, 1, deadline_ns);
    if (rc == 0) {
        int64_t used = mc_socket_receive_frame(control->fd, &in, &frame, deadline_ns, NULL);
        rc = used < 0 ? (int)used : MC_ERR_PROTOCOL;
        if (used > 0 && frame.type == MC_MESSAGE_RDMA_ANSWER && (size_t)used == in.length) {
            struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
            mc_wire_rdma_text_read(&reader, &head);
            rc = reader.bad || head.code > 0 ? MC_ERR_PROTOCOL : head.code;
            if (rc == 0)
                mc_buffer_append(answer, head.text.data, head.text.length);
        }
    }
    mc_buffer_free(&out);
    mc_buffer_free(&in);
    return rc;
}

/* A round of offer and answer, for which the owner may take so long. Pairs that are ready, or negative. */
static int negotiate(const struct rdma_lane *lane, uint64_t wait_ms, uint64_t deadline_ns, int *asked)
{
    struct mc_buffer offer = {0}, answer = {0};
    *asked = 0;
    int rc = mc_rdma_link_offer(lane->link, wait_ms, &offer);
    if (rc == 1) {
        *asked = ask(lane->control, mc_span(offer.data, offer.length), deadline_ns, &answer);
        rc = mc_rdma_link_complete(lane->link, mc_span(answer.data, answer.length), deadline_ns);
        rc = *asked < 0 ? *asked : rc;
    } else if (rc == 0) {
        rc = (int)mc_rdma_link_ready(lane->link);
    }
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    return rc;
}

/* Where a region begins; 0: it is not there, or not whole. */
static uint64_t region_start(const struct mc_rdma_remote *remote, uint32_t region, uint64_t size)
{
    struct mc_rdma_chunks chunks;
    for (uint32_t i = 0; i < remote->chunk_count; i++)
        if (remote->regions[i] == region)
            return mc_rdma_remote_find(remote, remote->chunks[i].address, size, &chunks) ? remote->chunks[i].address
                                                                                         : 0;
    return 0;
}

static int learn(struct rdma_path *rdma, const struct mc_tcp_lane *control, uint64_t deadline_ns)
{
    const struct mc_endpoint *endpoint = &rdma->path.endpoint;
    struct mc_buffer text = {0};
    int rc = ask(control, mc_span(NULL, 0), deadline_ns, &text);
    if (rc == 0)
        rc = mc_rdma_remote_read(mc_span(text.data, text.length), &rdma->remote);
    mc_buffer_free(&text);
    if (rc != 0)
        return rc;
    rdma->data = region_start(rdma->remote, REGION_DATA, endpoint->capacity + MC_EXTENT_SLACK);
    rdma->index = region_start(rdma->remote, REGION_INDEX, endpoint->slot_count * SLOT_BYTES);
    return rdma->data == 0 || rdma->index == 0 ? MC_ERR_PROTOCOL : 0;
}

/* ---- links ---- */

/* Asks until some pairs stand: the owner may be at work on them still. */
static int negotiate_all(const struct rdma_lane *lane, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns(), until_ns = now_ns + SETUP_NS < deadline_ns ? now_ns + SETUP_NS : deadline_ns;
    int rc, asked;
    while ((rc = negotiate(lane, SETUP_WAIT_MS, until_ns, &asked)) == 0 && mc_clock_ns() < until_ns)
        (void)poll(NULL, 0, SETUP_LOOK_MS);
    return rc > 0 ? 0 : rc < 0 ? rc : until_ns == deadline_ns ? MC_ERR_RPC_TIMEOUT : MC_ERR_TRANSFER_FAIL;
}

static void lane_close(struct rdma_path *rdma, struct rdma_lane *lane)
{
    if (lane->link != NULL)
        mc_rdma_link_close(lane->link);
    if (lane->control != NULL)
        mc_tcp_lane_close(rdma->path.paths, lane->control, false);
    free(lane);
}

static int lane_open(struct rdma_path *rdma, const struct mc_patience *patience, struct rdma_lane **out)
{
    uint64_t deadline_ns = patience->deadline_ns;
    struct mc_paths *paths = rdma->path.paths;
    struct rdma_lane *lane = calloc(1, sizeof(*lane));
    if (lane == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_tcp_lane_open(paths, &rdma->path.endpoint, patience, &lane->control);
    if (rc == 0 &&
        !mc_path_layout_known(&rdma->path.endpoint, lane->control->owner.layout)) /* slots are read as they lie */
        rc = MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    if (rc == 0 && rdma->remote == NULL) /* while the path is being opened: nobody else has it yet */
        rc = learn(rdma, lane->control, deadline_ns);
    if (rc == 0) {
        struct mc_rdma_link_options options = {.devices = rdma->remote->devices,
                                               .device_count = rdma->remote->device_count};
        rc = mc_rdma_link_open(paths->rdma, &options, &lane->link);
    }
    if (rc == 0)
        rc = negotiate_all(lane, deadline_ns);
    if (rc == 0)
        *out = lane;
    else
        lane_close(rdma, lane);
    return rc == MC_ERR_NOT_SUPPORTED ? MC_ERR_UNAVAILABLE_IN_CURRENT_MODE : rc;
}

static bool has_ended(const struct rdma_lane *lane)
{
    struct pollfd looked = {.fd = lane->control->fd, .events = POLLIN};
    return poll(&looked, 1, 0) != 0; /* the owner says nothing there unasked */
}

static bool is_fit(const struct rdma_lane *lane, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns();
    int asked = 0;
    if (has_ended(lane))
        return false;
    if (mc_rdma_link_due_ns(lane->link) <= now_ns)
        (void)negotiate(lane, REPAIR_WAIT_MS, now_ns + REPAIR_NS < deadline_ns ? now_ns + REPAIR_NS : deadline_ns,
                        &asked);
    return asked == 0 && mc_rdma_link_ready(lane->link) > 0; /* a late answer would be taken for the next one's */
}

static int lane_take(struct rdma_path *rdma, uint64_t deadline_ns, struct rdma_lane **out)
{
    for (;;) {
        pthread_mutex_lock(&rdma->lock);
        struct rdma_lane *lane = rdma->idle;
        if (lane != NULL) {
            rdma->idle = lane->next;
            rdma->idle_count--;
        }
        pthread_mutex_unlock(&rdma->lock);
        if (lane == NULL) {
            struct mc_patience patience = mc_patience_until(deadline_ns);
            return lane_open(rdma, &patience, out);
        }
        if (is_fit(lane, deadline_ns)) {
            *out = lane;
            return 0;
        }
        lane_close(rdma, lane);
    }
}

static void lane_give(struct rdma_path *rdma, struct rdma_lane *lane)
{
    pthread_mutex_lock(&rdma->lock);
    bool is_kept = rdma->idle_count < IDLE_MAX;
    if (is_kept) {
        lane->next = rdma->idle;
        rdma->idle = lane;
        rdma->idle_count++;
    }
    pthread_mutex_unlock(&rdma->lock);
    if (!is_kept)
        lane_close(rdma, lane);
}

/* ---- a path ---- */

static void rdma_close(struct mc_path *path)
{
    struct rdma_path *rdma = (struct rdma_path *)path;
    for (struct rdma_lane *lane = rdma->idle, *next; lane != NULL; lane = next) {
        next = lane->next;
        lane_close(rdma, lane);
    }
    mc_path_release(rdma->tcp);
    mc_rdma_remote_release(rdma->remote);
    pthread_mutex_destroy(&rdma->lock);
    free(rdma);
}

static int rdma_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                     struct mc_path **path)
{
    if (paths->rdma == NULL || endpoint->tcp_address[0] == 0)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct rdma_path *rdma = calloc(1, sizeof(*rdma));
    struct rdma_lane *lane;
    if (rdma == NULL)
        return MC_ERR_NO_MEMORY;
    mc_path_init(&rdma->path, &mc_transport_rdma, paths, endpoint);
    pthread_mutex_init(&rdma->lock, NULL);
    int rc = lane_open(rdma, patience, &lane);
    if (rc != 0) {
        rdma_close(&rdma->path);
        return rc;
    }
    lane_give(rdma, lane);
    *path = &rdma->path;
    return 0;
}

/* The connections of its resting links have all been closed by the owner. One that runs has no part in it. */
static bool rdma_is_ended(struct mc_path *path)
{
    struct rdma_path *rdma = (struct rdma_path *)path;
    bool is_open = false;
    pthread_mutex_lock(&rdma->lock);
    for (const struct rdma_lane *lane = rdma->idle; lane != NULL && !is_open; lane = lane->next)
        is_open = !has_ended(lane);
    bool is_ended = rdma->idle != NULL && !is_open;
    pthread_mutex_unlock(&rdma->lock);
    return is_ended;
}

/* ---- a batch ---- */

static struct mc_path *tcp_of(struct rdma_path *rdma)
{
    pthread_mutex_lock(&rdma->lock);
    struct mc_path *tcp = rdma->tcp;
    pthread_mutex_unlock(&rdma->lock);
    return tcp;
}

/* What a path needs the owner for: who has no master must not read what the owner would not vouch for. And what no link
 * can be had for, or no stage. */
static void run_by_tcp(struct rdma_path *rdma, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct mc_path *made = NULL, *tcp = tcp_of(rdma);
    if (count > 0 &&
        transfers[0]->view != NULL) { /* as all of them: whoever has brought them has another way for them */
        mc_path_fail_all(transfers, count, MC_ERR_NOT_SUPPORTED);
        return;
    }
    if (tcp == NULL) {
        struct mc_patience patience = mc_patience_until(run->deadline_ns);
        int rc = mc_transport_tcp.open(rdma->path.paths, &rdma->path.endpoint, &patience, &made);
        if (rc < 0) {
            bool says_nothing = rc == MC_ERR_RPC_TIMEOUT || mc_socket_is_own(rc); /* of the owner */
            mc_path_fail_all(transfers, count, says_nothing ? rc : MC_ERR_TRANSFER_FAIL);
            return;
        }
        pthread_mutex_lock(&rdma->lock);
        if (rdma->tcp == NULL) {
            rdma->tcp = made;
            made = NULL;
        }
        tcp = rdma->tcp;
        pthread_mutex_unlock(&rdma->lock);
        mc_path_release(made);
    }
    tcp->transport->run(tcp, transfers, count, run);
}

static bool run_flow(struct rdma_path *rdma, const struct rdma_lane *lane, struct mc_transfer **transfers, size_t count,
                     const struct mc_run *run, bool *is_unstaged)
{
    const struct mc_endpoint *endpoint = &rdma->path.endpoint;
    struct mc_paths *paths = rdma->path.paths;
    struct mc_motion motion;
    struct mc_rdma_flow flow = {.link = lane->link,
                                .control_fd = lane->control->fd,
                                .stages = paths->stages,
                                .has_other_way = (paths->allowed_paths & MC_PATH_TCP) != 0,
                                .route = {.remote = rdma->remote,
                                          .data = rdma->data,
                                          .index = rdma->index,
                                          .buffers = paths->buffers,
                                          .motion = &motion,
                                          .counters = &paths->counters}};
    mc_motion_start(&motion, run, paths->verify);
    for (size_t i = 0; i < count; i++) {
        transfers[i]->result =
            mc_transfer_check(transfers[i], endpoint->capacity + MC_EXTENT_SLACK, endpoint->slot_count);
        transfers[i]->is_unsure = false;
    }
    bool is_good = mc_rdma_flow_run(&flow, transfers, count);
    *is_unstaged = flow.is_unstaged;
    return is_good;
}

/* What callers have registered may leave nothing that can be pinned for a stage. */
static void run_unstaged(struct rdma_path *rdma, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    if ((rdma->path.paths->allowed_paths & MC_PATH_TCP) == 0)
        return;
    for (size_t i = 0, behind; i < count; i = behind + 1) {
        behind = i;
        while (behind < count && transfers[behind]->result == MC_ERR_NO_MEMORY && !transfers[behind]->is_unsure)
            behind++;
        if (behind > i)
            run_by_tcp(rdma, transfers + i, behind - i, run);
    }
}

/* There is no link for the batch. Our own trouble, or an owner that has no place for one more link just now, or devices
 * that are gone: its connections are no worse for that, where tcp may be used. */
static void run_without_link(struct rdma_path *rdma, int code, struct mc_transfer **transfers, size_t count,
                             const struct mc_run *run)
{
    bool is_late = mc_clock_ns() >= run->deadline_ns; /* which says nothing of the path */
    bool is_own = mc_socket_is_own(code), is_useless = code == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    bool may_tcp = (rdma->path.paths->allowed_paths & MC_PATH_TCP) != 0;
    if (!is_late && !is_own)
        atomic_store_explicit(&rdma->path.broken, true, memory_order_release);
    if (is_late || code == MC_ERR_RPC_TIMEOUT)
        mc_path_fail_all(transfers, count, MC_ERR_RPC_TIMEOUT);
    else if (may_tcp && (is_own || is_useless))
        run_by_tcp(rdma, transfers, count, run);
    else
        mc_path_fail_all(transfers, count, is_own ? code : MC_ERR_TRANSFER_FAIL);
}

static void rdma_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct rdma_path *rdma = (struct rdma_path *)path;
    struct rdma_lane *lane;
    if (mc_paths_is_forked(path->paths)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    if (run->contact_age_max_ms != 0) {
        run_by_tcp(rdma, transfers, count, run);
        return;
    }
    int rc = lane_take(rdma, run->deadline_ns, &lane);
    if (rc != 0) {
        run_without_link(rdma, rc, transfers, count, run);
        return;
    }
    bool is_unstaged;
    if (run_flow(rdma, lane, transfers, count, run, &is_unstaged))
        lane_give(rdma, lane);
    else
        lane_close(rdma, lane);
    mc_path_account(path, transfers, count);
    if (is_unstaged)
        run_unstaged(rdma, transfers, count, run);
}

static bool rdma_reaches(struct mc_path *path, const struct mc_transfer *transfer)
{
    return mc_rdma_buffers_reach(path->paths->buffers, transfer->parts, transfer->part_count);
}

/* Commits of the batches that went by tcp. */
static void rdma_nudge(struct mc_path *path, bool gives_up)
{
    struct mc_path *tcp = tcp_of((struct rdma_path *)path);
    if (tcp != NULL)
        tcp->transport->nudge(tcp, gives_up);
}

static void rdma_rest(struct mc_path *path, uint64_t now_ns)
{
    struct mc_path *tcp = tcp_of((struct rdma_path *)path);
    if (tcp != NULL)
        tcp->transport->rest(tcp, now_ns);
}

const struct mc_transport mc_transport_rdma = {"rdma",        3,          false,     rdma_open, rdma_run, rdma_close,
                                               rdma_is_ended, rdma_nudge, rdma_rest, false,     false,    NULL,
                                               rdma_reaches};
