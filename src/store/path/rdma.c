/* Transport `rdma`: one-sided reads and writes of an owner's segment. The owner's processor takes no part: a get reads
 * the bytes and then the slot, which says whether they are still those of the wanted generation; a put writes the whole
 * extent and says COMMIT on the connection over which the link was set up. The owner cannot refuse what a device
 * writes; so it closes that connection, and the link with it, when a grant of this node is cut (serve_lane.c).
 *
 * A link and its connection are used by one batch at a time. Objects pass through registered memory of our own, where
 * their checksums are taken. */
#include "store/path/rdma_stage.h"
#include "store/path/tcp_lane.h"
#include "rdma/link.h"
#include "rdma/remote.h"

#include "env/clock.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#define IDLE_MAX 8u
#define GROUP_BYTES (4u << 20) /* of objects that are moved together */
#define GROUP_MAX 128u
#define SETUP_NS 2000000000ull /* for a link to be made */
#define SETUP_LOOK_MS 2
#define SETUP_WAIT_MS 20u     /* for the answer: the thread that gives it serves others, too */
#define REPAIR_WAIT_MS 1u     /* at once: the owner goes on by itself, and says later what came of it */
#define REPAIR_NS 50000000ull /* for pairs of a link that works without them */
#define CUT_NS 50000000ull    /* for the owner to say that nothing arrives any more */
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

/* Waits for the owner's end of the connection: it closes its half of the link before that. */
static bool is_cut(const struct rdma_lane *lane)
{
    char thrown_away[64];
    uint64_t until_ns = mc_clock_ns() + CUT_NS;
    (void)shutdown(lane->control->fd, SHUT_WR);
    for (;;) {
        ssize_t got = recv(lane->control->fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return true;
        if (got > 0 || errno == EINTR)
            continue;
        if (errno != EAGAIN || mc_clock_ns() >= until_ns)
            return false;
        struct pollfd looked = {.fd = lane->control->fd, .events = POLLIN};
        (void)poll(&looked, 1, 5);
    }
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

/* ---- a group of transfers ---- */

struct stage_piece { /* of one transfer, on its way through the stage */
    struct mc_transfer *transfer;
    uint64_t offset;          /* of the extent in the segment */
    uint64_t start, end;      /* READ: of the object, wanted */
    uint64_t from, to;        /* READ: whole blocks around that; WRITE: the extent */
    uint64_t at, table, slot; /* in the stage */
    struct mc_cursor cursor;  /* READ: where it goes */
    bool is_split;            /* READ: the table does not lie right behind the blocks */
};

struct move_group {
    struct rdma_path *rdma;
    struct rdma_lane *lane;
    struct mc_rdma_stage *stage;
    struct mc_motion *motion;
    struct stage_piece pieces[GROUP_MAX];
    size_t count;
    uint64_t bytes;
    struct mc_rdma_request requests[2 * GROUP_MAX];
    size_t request_count;
    bool is_unsure;
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* Places it in the stage. Returns how much it takes there. */
static uint64_t place_read(struct stage_piece *piece, bool verify)
{
    uint64_t length = piece->transfer->object_length, block = 1ull << mc_block_shift(length);
    piece->from = verify ? piece->start & ~(block - 1) : piece->start;
    piece->to = verify ? (piece->end + block - 1) & ~(block - 1) : piece->end;
    piece->to = piece->to < length ? piece->to : length;
    piece->is_split = piece->to != length;
    /* The bytes up to the table are read along when the blocks end there. */
    piece->table =
        piece->at + (piece->is_split ? aligned(piece->to - piece->from) : mc_table_offset(length) - piece->from);
    piece->slot = aligned(piece->table + mc_table_length(length, mc_block_shift(length)));
    return piece->slot + SLOT_BYTES - piece->at;
}

/* Adds what comes next of the transfer: of a large READ at most about GROUP_BYTES, from *start on. False: the group is
 * full. */
static bool group_add(struct move_group *group, struct mc_transfer *transfer, struct mc_cursor *cursor, uint64_t *start)
{
    struct stage_piece piece = {.transfer = transfer, .at = group->bytes, .offset = transfer->place.offset};
    uint64_t need, end = transfer->offset + transfer->length;
    if (transfer->kind == MC_TRANSFER_WRITE) {
        piece.to = need = mc_extent_size(transfer->object_length, transfer->key.length);
        piece.end = end;
    } else {
        uint64_t window_end = (*start + GROUP_BYTES) & ~((1ull << mc_block_shift(transfer->object_length)) - 1);
        piece.start = *start;
        piece.end = window_end > *start && window_end < end ? window_end : end;
        piece.cursor = *cursor;
        need = place_read(&piece, group->motion->verify);
    }
    if (group->count > 0 && (group->count == GROUP_MAX || group->bytes + need > 2 * GROUP_BYTES))
        return false;
    if (transfer->kind == MC_TRANSFER_READ)
        mc_cursor_skip(cursor, piece.end - piece.start);
    *start = piece.end;
    group->pieces[group->count++] = piece;
    group->bytes += aligned(need);
    return true;
}

static bool ask_for(struct move_group *group, enum mc_rdma_opcode opcode, uint64_t at, uint64_t remote, uint64_t length)
{
    struct mc_rdma_request request = {.opcode = opcode,
                                      .local = group->stage->bytes + at,
                                      .remote = remote,
                                      .length = length,
                                      .local_chunks = mc_rdma_memory_local(group->stage->memory)};
    if (length > 0 && !mc_rdma_remote_find(group->rdma->remote, remote, length, &request.remote_chunks))
        return false;
    group->requests[group->request_count++] = request;
    return true;
}

/* Moves what was asked for. 0 or negative: then nothing is known of any of it. */
static int group_move(struct move_group *group)
{
    const struct mc_run *run = group->motion->run;
    struct mc_rdma_run move = {
        .deadline_ns = run->deadline_ns, .stall_ns = MC_STALL_NS, .tick = run->tick, .context = run->context};
    int rc = mc_rdma_link_run(group->lane->link, group->requests, group->request_count, &move);
    group->is_unsure |= move.is_unsure;
    group->request_count = 0;
    if (rc == 0 || rc == MC_ERR_RPC_TIMEOUT)
        return rc;
    return MC_ERR_TRANSFER_FAIL;
}

static void piece_end(struct stage_piece *piece, int code)
{
    if (piece->transfer->result == 0)
        piece->transfer->result = code;
}

static void group_fail(struct move_group *group, int code)
{
    for (size_t i = 0; i < group->count; i++)
        piece_end(&group->pieces[i], code);
}

static bool ask_bytes(struct move_group *group, const struct stage_piece *piece)
{
    uint64_t length = piece->transfer->object_length, object = group->rdma->data + piece->offset;
    uint32_t table = group->motion->verify ? mc_table_length(length, mc_block_shift(length)) : 0;
    uint64_t end = piece->is_split || table == 0 ? piece->to : mc_table_offset(length) + table;
    return ask_for(group, MC_RDMA_READ, piece->at, object + piece->from, end - piece->from) &&
           (!piece->is_split || table == 0 ||
            ask_for(group, MC_RDMA_READ, piece->table, object + mc_table_offset(length), table));
}

static bool ask_slot(struct move_group *group, const struct stage_piece *piece)
{
    uint64_t slot = group->rdma->index + piece->transfer->place.slot * SLOT_BYTES;
    return ask_for(group, MC_RDMA_READ, piece->slot, slot, SLOT_BYTES);
}

/* The bytes of all, then the slots of all. */
static int group_fetch(struct move_group *group)
{
    int rc = 0;
    for (size_t i = 0; i < group->count && rc == 0; i++)
        rc = ask_bytes(group, &group->pieces[i]) ? 0 : MC_ERR_INVALID_PARAMS;
    if (rc == 0)
        rc = group_move(group);
    for (size_t i = 0; i < group->count && rc == 0; i++)
        rc = ask_slot(group, &group->pieces[i]) ? 0 : MC_ERR_INVALID_PARAMS;
    return rc == 0 ? group_move(group) : rc;
}

/* Is the slot that was read that of the wanted replica? */
static int slot_code(const struct stage_piece *piece, const struct mc_slot *slot)
{
    const struct mc_transfer *transfer = piece->transfer;
    if (slot->state != MC_SLOT_LIVE || slot->generation != transfer->place.generation ||
        slot->length != transfer->object_length || slot->hash_low != transfer->hash_low ||
        slot->hash_high != transfer->hash_high)
        return MC_ERR_REPLICA_IS_GONE;
    return slot->block_shift != mc_block_shift(slot->length) ? MC_ERR_CHECKSUM_MISMATCH : 0;
}

static int piece_read(struct move_group *group, struct stage_piece *piece)
{
    struct mc_slot slot;
    memcpy(&slot, group->stage->bytes + piece->slot, SLOT_BYTES);
    int rc = slot_code(piece, &slot);
    if (rc < 0)
        return rc;
    /* Only the blocks between from and to are looked at. */
    const uint8_t *data = (const uint8_t *)((uintptr_t)group->stage->bytes + piece->at - piece->from);
    return mc_extent_read(&slot, data, group->stage->bytes + piece->table, piece->start, piece->end, &piece->cursor,
                          group->motion);
}

/* The slot says that the extent lies elsewhere than the reader was told: read again there, once. */
static int group_correct(struct move_group *group)
{
    struct mc_slot slot;
    bool is_any = false;
    for (size_t i = 0; i < group->count; i++) {
        struct stage_piece *piece = &group->pieces[i];
        memcpy(&slot, group->stage->bytes + piece->slot, SLOT_BYTES);
        if (slot_code(piece, &slot) != 0 || slot.offset == piece->offset)
            continue;
        piece->offset = slot.offset;
        is_any = true;
    }
    return is_any ? group_fetch(group) : 0;
}

static bool slot_has_changed(struct move_group *group, const struct stage_piece *piece)
{
    uint8_t seen[SLOT_BYTES];
    memcpy(seen, group->stage->bytes + piece->slot, SLOT_BYTES);
    return ask_slot(group, piece) && group_move(group) == 0 &&
           memcmp(seen, group->stage->bytes + piece->slot, SLOT_BYTES) != 0;
}

/* The slot is read after the bytes: live with that generation, it was so all the time since the master named it. */
static void group_read(struct move_group *group)
{
    int rc = group_fetch(group);
    if (rc == 0)
        rc = group_correct(group);
    if (rc < 0) {
        group_fail(group, rc);
        return;
    }
    for (size_t i = 0; i < group->count; i++) {
        struct stage_piece *piece = &group->pieces[i];
        int code = piece_read(group, piece);
        /* The slot may have been read in two halves, while it was taken by another object. */
        if (code == MC_ERR_CHECKSUM_MISMATCH && slot_has_changed(group, piece))
            code = MC_ERR_REPLICA_IS_GONE;
        piece_end(piece, code);
    }
}

static int commits_send(struct move_group *group, const struct mc_wire_commit_item *commits, size_t count)
{
    struct mc_scratch *scratch = mc_scratch_get();
    if (scratch == NULL)
        return MC_ERR_NO_MEMORY;
    scratch->out.length = 0;
    size_t frame = mc_frame_begin(&scratch->out, MC_MESSAGE_COMMIT, 0);
    mc_wire_none_write(&scratch->out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(&scratch->out);
    for (size_t i = 0; i < count; i++)
        mc_wire_commit_item_write(&scratch->out, &commits[i]);
    mc_list_end(&scratch->out, list, count);
    mc_frame_end(&scratch->out, frame);
    struct iovec part = {scratch->out.data, scratch->out.length};
    return mc_socket_send(group->lane->control->fd, &part, 1, group->motion->run->deadline_ns);
}

/* Copies the objects into the stage. What a source refuses fails alone: nothing of it is sent. Negative: all fail. */
static int group_gather(struct move_group *group, struct mc_wire_commit_item *commits, size_t *count)
{
    for (size_t i = 0; i < group->count; i++) {
        struct stage_piece *piece = &group->pieces[i];
        uint64_t offset = piece->offset;
        int rc = mc_memory_write((uint8_t *)((uintptr_t)group->stage->bytes + piece->at - offset), piece->transfer,
                                 group->motion, &commits[*count]);
        if (rc == MC_ERR_RPC_TIMEOUT)
            return rc;
        if (rc < 0)
            piece_end(piece, rc);
        else if (!ask_for(group, MC_RDMA_WRITE, piece->at, group->rdma->data + offset, piece->to))
            return MC_ERR_INVALID_PARAMS;
        else
            (*count)++;
    }
    return 0;
}

static void group_write(struct move_group *group)
{
    struct mc_wire_commit_item commits[GROUP_MAX];
    size_t count = 0;
    /* What a commit is made with is there before anything is written. */
    int rc = mc_scratch_get() == NULL ? MC_ERR_NO_MEMORY : group_gather(group, commits, &count);
    if (rc == 0 && count > 0)
        rc = group_move(group);
    /* What was cut off and came again by another pair may still arrive a first time: nothing may go live before. */
    if (group->is_unsure && is_cut(group->lane)) {
        group->is_unsure = false;
        rc = rc == 0 ? MC_ERR_TRANSFER_FAIL : rc; /* the connection for the commit is gone with the link */
    } else if (group->is_unsure) {
        rc = rc == 0 ? MC_ERR_TRANSFER_FAIL : rc;
    }
    if (rc == 0 && count > 0)
        rc = commits_send(group, commits, count) == 0 ? 0 : MC_ERR_TRANSFER_FAIL;
    for (size_t i = 0; i < group->count; i++) {
        piece_end(&group->pieces[i], rc);
        group->pieces[i].transfer->is_unsure = group->is_unsure;
    }
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
 * can be had for. */
static void run_by_tcp(struct rdma_path *rdma, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct mc_path *made = NULL, *tcp = tcp_of(rdma);
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

static void group_run(struct move_group *group, enum mc_transfer_kind kind)
{
    struct mc_rdma_stages *stages = group->rdma->path.paths->stages;
    int code = mc_motion_look(group->motion);
    group->stage = code < 0 ? NULL : mc_rdma_stage_take(stages, group->bytes);
    if (group->stage == NULL) {
        group_fail(group, code < 0 ? code : MC_ERR_NO_MEMORY);
    } else {
        if (kind == MC_TRANSFER_WRITE)
            group_write(group);
        else
            group_read(group);
        mc_rdma_stage_give(stages, group->stage);
    }
}

/* TRANSFER_FAIL, RPC_TIMEOUT; 0: the link can be used for more. */
static int path_failure(const struct move_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        int result = group->pieces[i].transfer->result;
        if (result == MC_ERR_TRANSFER_FAIL || result == MC_ERR_RPC_TIMEOUT)
            return result;
    }
    return group->is_unsure ? MC_ERR_TRANSFER_FAIL : 0;
}

struct walk { /* through the transfers of a batch */
    struct mc_transfer **transfers;
    size_t count, next;
    struct mc_cursor cursor; /* in the parts of the next one */
    uint64_t start;          /* of it */
};

static void walk_to(struct walk *walk, size_t next)
{
    walk->next = next;
    if (next == walk->count)
        return;
    const struct mc_transfer *transfer = walk->transfers[next];
    walk->cursor = mc_cursor(transfer->parts, transfer->part_count);
    walk->start = transfer->offset;
}

/* Fills a group with transfers of one kind; what of a large READ does not fit goes on in the next one. */
static void group_fill(struct move_group *group, struct walk *walk, enum mc_transfer_kind kind)
{
    group->count = group->request_count = 0;
    group->bytes = 0;
    while (walk->next < walk->count && walk->transfers[walk->next]->kind == kind) {
        struct mc_transfer *transfer = walk->transfers[walk->next];
        if (transfer->result < 0 || walk->start == transfer->offset + transfer->length)
            walk_to(walk, walk->next + 1);
        else if (!group_add(group, transfer, &walk->cursor, &walk->start))
            return;
    }
}

/* False: the link cannot be used for more. */
static bool run_groups(struct move_group *group, struct mc_transfer **transfers, size_t count)
{
    const struct mc_endpoint *endpoint = &group->rdma->path.endpoint;
    struct walk walk = {.transfers = transfers, .count = count};
    for (size_t i = 0; i < count; i++)
        transfers[i]->result =
            mc_transfer_check(transfers[i], endpoint->capacity + MC_EXTENT_SLACK, endpoint->slot_count);
    walk_to(&walk, 0);
    while (walk.next < count) {
        enum mc_transfer_kind kind = transfers[walk.next]->kind;
        group_fill(group, &walk, kind);
        if (group->count == 0)
            continue;
        group_run(group, kind);
        int code = path_failure(group);
        if (code == 0)
            continue;
        for (size_t i = walk.next; i < count; i++)
            if (transfers[i]->result == 0)
                transfers[i]->result = code;
        return false;
    }
    return true;
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
    struct mc_motion motion;
    struct rdma_lane *lane;
    if (mc_paths_is_forked(path->paths)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    if (run->contact_age_max_ms != 0) {
        run_by_tcp(rdma, transfers, count, run);
        return;
    }
    struct move_group *group = malloc(sizeof(*group));
    int rc = group == NULL ? MC_ERR_NO_MEMORY : lane_take(rdma, run->deadline_ns, &lane);
    if (rc != 0) {
        free(group);
        run_without_link(rdma, rc, transfers, count, run);
        return;
    }
    mc_motion_start(&motion, run, path->paths->verify);
    *group = (struct move_group){.rdma = rdma, .lane = lane, .motion = &motion};
    if (run_groups(group, transfers, count))
        lane_give(rdma, lane);
    else
        lane_close(rdma, lane);
    free(group);
    mc_path_account(path, transfers, count);
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
                                               rdma_is_ended, rdma_nudge, rdma_rest, false,     NULL};
