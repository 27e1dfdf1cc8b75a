/* The pipeline: the bytes of a READ come before its slot, those of a WRITE before its COMMIT. */
#include "store/path/rdma_flow.h"

#include "env/clock.h"
#include "rdma/remote.h"
#include "store/path/path.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

#define CUT_NS 50000000ull /* for the owner to say that nothing arrives any more */

/* ---- the wire ---- */

/* What the group has asked for is on its way. 0, or negative: it is not. */
static int launch(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    const struct mc_run *run = flow->route.motion->run;
    mc_assert(flow->aloft == NULL);
    (void)mc_motion_look(flow->route.motion); /* a flight ticks once it is long: many short ones would never */
    flow->move = (struct mc_rdma_run){
        .deadline_ns = run->deadline_ns, .stall_ns = MC_STALL_NS, .tick = run->tick, .context = run->context};
    group->result = mc_rdma_flight_begin(&flow->flight, flow->link, group->requests, group->request_count, &flow->move);
    if (group->result == 0)
        flow->aloft = group;
    else
        group->request_count = 0;
    return group->result;
}

/* Waits for what is on its way: group->result. 0, or negative: then nothing is known of any of it. */
static void land(struct mc_rdma_flow *flow)
{
    struct mc_rdma_group *group = flow->aloft;
    if (group == NULL)
        return;
    int rc = mc_rdma_flight_end(&flow->flight);
    flow->is_unsure |= flow->move.is_unsure;
    flow->aloft = NULL;
    group->request_count = 0;
    group->result = rc == 0 || rc == MC_ERR_RPC_TIMEOUT ? rc : MC_ERR_TRANSFER_FAIL;
}

/* Goes there and back. Another group that is on the wire arrives first. */
static int move(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    land(flow);
    if (launch(flow, group) == 0)
        land(flow);
    return group->result;
}

/* Called while bytes are copied or summed. */
static void meanwhile(void *context)
{
    struct mc_rdma_flow *flow = context;
    if (flow->aloft != NULL)
        mc_rdma_flight_advance(&flow->flight);
}

/* So many bytes are copied or summed now: is the wire at work at the same time? */
static void note_overlap(struct mc_rdma_flow *flow, uint64_t bytes)
{
    if (flow->aloft != NULL)
        atomic_fetch_add_explicit(&flow->route.counters->rdma_overlapped_bytes, bytes, memory_order_relaxed);
}

/* ---- what becomes of a group ---- */

/* What says that the path has failed. */
static int path_failure(const struct mc_rdma_flow *flow, const struct mc_rdma_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        int result = group->pieces[i].transfer->result;
        if (result == MC_ERR_TRANSFER_FAIL || result == MC_ERR_RPC_TIMEOUT)
            return result;
    }
    return flow->is_unsure ? MC_ERR_TRANSFER_FAIL : 0;
}

/* The next group, of the same kind; NULL: there is none now. */
static struct mc_rdma_group *fill(struct mc_rdma_group *group, struct mc_rdma_walk *walk, enum mc_transfer_kind kind)
{
    if (group == NULL)
        return NULL;
    mc_rdma_group_fill(group, walk, kind);
    if (group->count > 0)
        return group;
    mc_rdma_group_leave(group);
    return NULL;
}

static void group_close(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    if (group == NULL)
        return;
    mc_rdma_stage_give(flow->stages, group->stage);
    free(group);
}

/* This group rests, another one is at work. Its stage goes to who has none at all; NULL then. */
static struct mc_rdma_group *keep_or_give(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    if (!mc_rdma_stages_are_awaited(flow->stages))
        return group;
    if (flow->groups[0] == group)
        flow->groups[0] = flow->groups[1];
    flow->groups[1] = NULL;
    group_close(flow, group);
    return NULL;
}

static void group_end(struct mc_rdma_group *group, int code)
{
    if (group == NULL)
        return;
    mc_rdma_group_fail(group, code);
    mc_rdma_group_leave(group);
}

/* ---- READ ---- */

/* The bytes of the group set out. */
static void read_launch(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    int rc = 0;
    if (group == NULL)
        return;
    for (size_t i = 0; i < group->count && rc == 0; i++)
        rc = mc_rdma_ask_bytes(group, &group->pieces[i]) ? 0 : MC_ERR_INVALID_PARAMS;
    group->result = rc == 0 ? launch(flow, group) : rc;
}

/* Asks for what `ask` says of each of these, there and back. */
static int fetch(struct mc_rdma_flow *flow, struct mc_rdma_group *group, const struct mc_rdma_piece *pieces,
                 size_t count, bool (*ask)(struct mc_rdma_group *group, const struct mc_rdma_piece *piece))
{
    group->request_count = 0;
    for (size_t i = 0; i < count; i++)
        if (!ask(group, &pieces[i]))
            return MC_ERR_INVALID_PARAMS;
    return move(flow, group);
}

/* The bytes of these, then their slots. */
static int pieces_fetch(struct mc_rdma_flow *flow, struct mc_rdma_group *group, const struct mc_rdma_piece *pieces,
                        size_t count)
{
    int rc = fetch(flow, group, pieces, count, mc_rdma_ask_bytes);
    return rc == 0 ? fetch(flow, group, pieces, count, mc_rdma_ask_slot) : rc;
}

/* The slots of pieces whose bytes are here. Where one says that the extent lies elsewhere than the reader was told:
 * read again there, once. */
static int pieces_prove(struct mc_rdma_flow *flow, struct mc_rdma_group *group, struct mc_rdma_piece *pieces,
                        size_t count)
{
    struct mc_slot slot;
    bool is_any = false;
    int rc = fetch(flow, group, pieces, count, mc_rdma_ask_slot);
    for (size_t i = 0; i < count && rc == 0; i++) {
        if (mc_rdma_piece_slot(group, &pieces[i], &slot) != 0 || slot.offset == pieces[i].offset)
            continue;
        pieces[i].offset = slot.offset;
        is_any = true;
    }
    return is_any ? pieces_fetch(flow, group, pieces, count) : rc;
}

/* Bytes do not match. The slot may have been read in two halves, while it was taken by another object: is it the same
 * when it is read once more? MC_ERR_CHECKSUM_MISMATCH: it is; MC_ERR_REPLICA_IS_GONE; or why nobody knows. */
static int slot_judge(struct mc_rdma_flow *flow, struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint8_t seen[sizeof(struct mc_slot)];
    memcpy(seen, group->stage->bytes + piece->slot, sizeof(seen));
    int rc = fetch(flow, group, piece, 1, mc_rdma_ask_slot);
    if (rc < 0)
        return rc;
    bool is_same = memcmp(seen, group->stage->bytes + piece->slot, sizeof(seen)) == 0;
    return is_same ? MC_ERR_CHECKSUM_MISMATCH : MC_ERR_REPLICA_IS_GONE;
}

/* The slot was read after the bytes: live with that generation, it was so all the time since the master named it. */
static int piece_judge(struct mc_rdma_flow *flow, struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    note_overlap(flow, piece->end - piece->start);
    int code = mc_rdma_piece_take(group, piece);
    return code == MC_ERR_CHECKSUM_MISMATCH ? slot_judge(flow, group, piece) : code;
}

/* Bytes in the caller's memory may be wrong by what was done there: two reads that end at one place, memory that was
 * freed and is another's now. Only what is wrong in the stage, too, is the owner's fault. */
static int piece_read_staged(struct mc_rdma_flow *flow, struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    if (!mc_rdma_piece_unplace(group, piece)) { /* nothing else in the stage is needed any more */
        flow->is_unstaged = true;
        return MC_ERR_NO_MEMORY;
    }
    int rc = fetch(flow, group, piece, 1, mc_rdma_ask_bytes);
    if (rc == 0)
        rc = pieces_prove(flow, group, piece, 1);
    return rc < 0 ? rc : piece_judge(flow, group, piece);
}

/* Bytes and slots of all pieces are here. */
static void read_judge(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    struct mc_rdma_piece *suspects[MC_RDMA_GROUP_MAX];
    size_t suspect_count = 0;
    for (size_t i = 0; i < group->count; i++) {
        struct mc_rdma_piece *piece = &group->pieces[i];
        const struct mc_cursor cursor = piece->cursor;
        int code = piece_judge(flow, group, piece);
        if (code == MC_ERR_CHECKSUM_MISMATCH && piece->transfer->view != NULL) {
            mc_rdma_piece_end(piece, MC_ERR_NOT_SUPPORTED); /* its caller looks at it apart */
        } else if (code == MC_ERR_CHECKSUM_MISMATCH && piece->is_direct) {
            piece->cursor = cursor;
            suspects[suspect_count++] = piece;
        } else {
            mc_rdma_piece_end(piece, code);
        }
    }
    for (size_t i = 0; i < suspect_count; i++)
        mc_rdma_piece_end(suspects[i], piece_read_staged(flow, group, suspects[i]));
}

/* 0, or why the path has failed. */
static int run_reads(struct mc_rdma_flow *flow, struct mc_rdma_walk *walk)
{
    struct mc_rdma_group *now = fill(flow->groups[0], walk, MC_TRANSFER_READ), *other = flow->groups[1];
    int code = 0;
    read_launch(flow, now);
    while (now != NULL) {
        land(flow);
        if (now->result == 0)
            now->result = pieces_prove(flow, now, now->pieces, now->count);
        struct mc_rdma_group *next = now->result == 0 ? fill(other, walk, MC_TRANSFER_READ) : NULL;
        read_launch(flow, next);
        if (now->result == 0)
            read_judge(flow, now);
        else
            mc_rdma_group_fail(now, now->result);
        code = path_failure(flow, now);
        mc_rdma_group_leave(now);
        if (code < 0) {
            land(flow);
            group_end(next, code);
            break;
        }
        if (next == NULL) {
            next = fill(now, walk, MC_TRANSFER_READ);
            read_launch(flow, next);
        } else {
            other = keep_or_give(flow, now);
        }
        now = next;
    }
    return code;
}

/* ---- WRITE ---- */

static int commits_send(struct mc_rdma_flow *flow, const struct mc_wire_commit_item *commits, size_t count)
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
    return mc_socket_send(flow->control_fd, &part, 1, flow->route.motion->run->deadline_ns);
}

/* Waits for the owner's end of the connection: it closes its half of the link before that. */
static bool is_cut(int control_fd)
{
    char thrown_away[64];
    uint64_t until_ns = mc_clock_ns() + CUT_NS;
    (void)shutdown(control_fd, SHUT_WR);
    for (;;) {
        ssize_t got = recv(control_fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return true;
        if (got > 0 || errno == EINTR)
            continue;
        if (errno != EAGAIN || mc_clock_ns() >= until_ns)
            return false;
        struct pollfd looked = {.fd = control_fd, .events = POLLIN};
        (void)poll(&looked, 1, 5);
    }
}

/* Copies and sums what is to be written, while what is on the wire goes on. */
static void write_gather(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    uint64_t bytes = 0;
    if (group == NULL)
        return;
    for (size_t i = 0; i < group->count; i++)
        bytes += group->pieces[i].end - group->pieces[i].start;
    note_overlap(flow, bytes);
    group->result = mc_rdma_group_gather(group);
}

/* Waits until all of it has arrived, and commits the objects that end in it. 0, or why the path has failed. */
static int write_land(struct mc_rdma_flow *flow, struct mc_rdma_group *group)
{
    bool was_cut = false;
    land(flow);
    int rc = group->result;
    /* What was cut off and came again by another pair may still arrive a first time: nothing may go live before. */
    if (flow->is_unsure && is_cut(flow->control_fd)) {
        flow->is_unsure = false;
        was_cut = true; /* the connection for the commit is gone with the link */
    }
    if (flow->is_unsure || was_cut)
        rc = rc == 0 ? MC_ERR_TRANSFER_FAIL : rc;
    if (rc == 0 && group->commit_count > 0)
        rc = commits_send(flow, group->commits, group->commit_count) == 0 ? 0 : MC_ERR_TRANSFER_FAIL;
    for (size_t i = 0; i < group->count; i++) {
        mc_rdma_piece_end(&group->pieces[i], rc);
        group->pieces[i].transfer->is_unsure |= flow->is_unsure;
    }
    return was_cut ? MC_ERR_TRANSFER_FAIL : path_failure(flow, group);
}

/* 0, or why the path has failed. */
static int run_writes(struct mc_rdma_flow *flow, struct mc_rdma_walk *walk)
{
    struct mc_rdma_group *now = fill(flow->groups[0], walk, MC_TRANSFER_WRITE), *other = flow->groups[1];
    int code = 0;
    write_gather(flow, now);
    while (now != NULL) {
        if (now->result == 0)
            (void)launch(flow, now);
        struct mc_rdma_group *next = now->result == 0 ? fill(other, walk, MC_TRANSFER_WRITE) : NULL;
        write_gather(flow, next);
        code = write_land(flow, now);
        mc_rdma_group_leave(now);
        if (code < 0) {
            group_end(next, code);
            break;
        }
        if (next == NULL) {
            next = fill(now, walk, MC_TRANSFER_WRITE);
            write_gather(flow, next);
        } else {
            other = keep_or_give(flow, now);
        }
        now = next;
    }
    return code;
}

/* ---- a batch ---- */

static struct mc_rdma_group *group_open(struct mc_rdma_flow *flow, struct mc_rdma_stage *stage)
{
    struct mc_rdma_group *group = stage == NULL ? NULL : malloc(sizeof(*group)); /* large, and not cleared each time */
    if (group != NULL) {
        group->route = &flow->route;
        group->stage = stage;
        group->held_count = 0;
    } else if (stage != NULL) {
        mc_rdma_stage_give(flow->stages, stage);
    }
    return group;
}

/* Is there more than one group's worth? Then two of them take turns. */
static bool is_long(struct mc_transfer *const *transfers, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count && bytes <= 2 * MC_RDMA_PIECE_BYTES; i++)
        bytes += transfers[i]->length;
    return bytes > 2 * MC_RDMA_PIECE_BYTES || count > MC_RDMA_GROUP_MAX;
}

/* On which NUMA node the stages should lie: near our devices that lead to those near the owner's memory. */
static int node_for(struct mc_rdma_flow *flow, struct mc_transfer *const *transfers, size_t count)
{
    struct mc_rdma_chunks chunks;
    unsigned cpu, here;
    uint64_t at = flow->route.data + (count == 0 ? 0 : transfers[0]->place.offset);
    if (!mc_rdma_remote_find(flow->route.remote, at, 1, &chunks))
        return -1;
    return mc_rdma_link_node(flow->link, chunks.list, getcpu(&cpu, &here) == 0 ? (int)here : -1);
}

/* The stage that nothing goes without. All may be in use: who can go another way waits for one no longer than for an
 * owner. 0; MC_ERR_NO_MEMORY: there is none, or that time is over; MC_ERR_RPC_TIMEOUT. */
static int stage_await(struct mc_rdma_flow *flow, int node, struct mc_rdma_stage **stage)
{
    struct mc_motion *motion = flow->route.motion;
    uint64_t now_ns = mc_clock_ns(), until_ns = motion->run->deadline_ns;
    if (flow->has_other_way && now_ns + MC_STALL_NS < until_ns)
        until_ns = now_ns + MC_STALL_NS;
    for (;;) {
        uint64_t look_ns = now_ns + MC_TICK_NS < until_ns ? now_ns + MC_TICK_NS : until_ns;
        *stage = mc_rdma_stage_take(flow->stages, node, look_ns);
        if (*stage != NULL)
            return 0;
        now_ns = mc_clock_ns();
        int rc = mc_motion_look(motion);
        if (rc < 0)
            return rc;
        if (now_ns < look_ns || now_ns >= until_ns) /* before its time: none will come */
            return MC_ERR_NO_MEMORY;
    }
}

static int flow_begin(struct mc_rdma_flow *flow, struct mc_transfer *const *transfers, size_t count)
{
    struct mc_rdma_stage *stage = NULL;
    struct mc_scratch *scratch = mc_scratch_get(); /* what a commit is made with is there before anything is written */
    int rc = scratch == NULL ? MC_ERR_NO_MEMORY : mc_motion_look(flow->route.motion);
    if (rc < 0)
        return rc;
    flow->route.sums = (uint32_t *)(void *)scratch->first;
    int node = node_for(flow, transfers, count);
    rc = stage_await(flow, node, &stage);
    flow->groups[0] = group_open(flow, stage);
    if (flow->groups[0] == NULL) {
        flow->is_unstaged = rc != MC_ERR_RPC_TIMEOUT;
        return flow->is_unstaged ? MC_ERR_NO_MEMORY : rc;
    }
    if (is_long(transfers, count))
        flow->groups[1] = group_open(flow, mc_rdma_stage_take_idle(flow->stages, node));
    flow->route.motion->meanwhile = meanwhile;
    flow->route.motion->meanwhile_context = flow;
    return 0;
}

bool mc_rdma_flow_run(struct mc_rdma_flow *flow, struct mc_transfer **transfers, size_t count)
{
    struct mc_rdma_walk walk = {.transfers = transfers, .count = count};
    flow->aloft = flow->groups[0] = flow->groups[1] = NULL;
    flow->route.is_staged_out = flow->is_unstaged = false;
    int code = flow_begin(flow, transfers, count);
    const bool has_begun = code == 0;
    mc_rdma_walk_to(&walk, 0);
    while (code == 0 && walk.next < count)
        code = transfers[walk.next]->kind == MC_TRANSFER_WRITE ? run_writes(flow, &walk) : run_reads(flow, &walk);
    flow->route.motion->meanwhile = NULL;
    group_close(flow, flow->groups[0]);
    group_close(flow, flow->groups[1]);
    flow->is_unstaged |= flow->route.is_staged_out;
    for (size_t i = walk.next; i < count && code < 0; i++)
        if (transfers[i]->result == 0)
            transfers[i]->result = code;
    return code == 0 || !has_begun;
}
