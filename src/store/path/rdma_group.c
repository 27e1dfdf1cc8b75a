/* A group of transfers over one link: the bytes of a READ come before its slot, those of a WRITE before its COMMIT. */
#include "store/path/rdma_group.h"

#include "env/clock.h"
#include "rdma/link.h"
#include "rdma/remote.h"
#include "store/path/path.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#define GROUP_BYTES (4u << 20) /* of objects that are moved together: about twice that */
#define DIRECT_BYTES_MIN                                                                                               \
    4096u                  /* a part of the caller's is at least so long, on average: a copy costs less than one more
                                  request for a shorter one */
#define CUT_NS 50000000ull /* for the owner to say that nothing arrives any more */
#define SLOT_BYTES sizeof(struct mc_slot)

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* ---- what is moved in place ---- */

/* The last one that is held, or another one. NULL: the range is not registered. */
static struct mc_rdma_buffer *hold(struct mc_rdma_group *group, const uint8_t *data, size_t length)
{
    struct mc_rdma_buffer *last = group->held_count == 0 ? NULL : group->held[group->held_count - 1];
    uintptr_t start = (uintptr_t)data;
    if (last != NULL && start >= last->start && start <= last->end && length <= last->end - start)
        return last;
    struct mc_rdma_buffer *found =
        group->held_count == MC_RDMA_SPANS_MAX ? NULL : mc_rdma_buffers_hold(group->buffers, data, length);
    if (found != NULL)
        group->held[group->held_count++] = found;
    return found;
}

/* Notes the parts of the next `length` bytes. False: they are not registered, too many, or too short. */
static bool lay_spans(struct mc_rdma_group *group, struct mc_rdma_piece *piece, struct mc_cursor cursor,
                      uint64_t length)
{
    piece->span = group->span_count;
    for (uint64_t left = length; left > 0;) {
        struct mc_rdma_span *span = &group->spans[group->span_count];
        if (group->span_count == MC_RDMA_SPANS_MAX)
            break;
        span->data = mc_cursor_take(&cursor, left, &span->length);
        span->buffer = span->length == 0 ? NULL : hold(group, span->data, span->length);
        if (span->buffer == NULL)
            break;
        left -= span->length;
        group->span_count++;
        piece->span_count = group->span_count - piece->span;
        if (length / piece->span_count < DIRECT_BYTES_MIN)
            break;
        if (left == 0)
            return true;
    }
    group->span_count = piece->span;
    piece->span_count = 0;
    return false;
}

static bool may_be_direct(const struct mc_rdma_group *group, const struct mc_transfer *transfer)
{
    return group->buffers != NULL && transfer->source == NULL && transfer->length >= DIRECT_BYTES_MIN;
}

/* The first part that the cursor is at, as far as it may be read in place. */
static bool is_registered(struct mc_rdma_group *group, struct mc_cursor cursor)
{
    size_t length;
    const uint8_t *data = mc_cursor_take(&cursor, 1, &length);
    return length > 0 && hold(group, data, length) != NULL;
}

/* ---- filling it ---- */

/* Places it in the stage. Returns how much it takes there. */
static uint64_t place_read(struct mc_rdma_piece *piece, bool verify)
{
    uint64_t length = piece->transfer->object_length, block = 1ull << mc_block_shift(length);
    piece->from = verify ? piece->start & ~(block - 1) : piece->start;
    piece->to = verify ? (piece->end + block - 1) & ~(block - 1) : piece->end;
    piece->to = piece->to < length ? piece->to : length;
    piece->is_split = piece->is_direct || piece->to != length;
    /* The bytes up to the table are read along when the blocks end there. */
    piece->table = piece->at + (piece->is_direct  ? 0
                                : piece->is_split ? aligned(piece->to - piece->from)
                                                  : mc_table_offset(length) - piece->from);
    piece->slot = aligned(piece->table + mc_table_length(length, mc_block_shift(length)));
    return piece->slot + SLOT_BYTES - piece->at;
}

/* What of the READ comes next: whole blocks go in place if they may, what is wanted of others through the stage. */
static void cut_read(struct mc_rdma_group *group, struct mc_rdma_piece *piece, uint64_t start)
{
    struct mc_transfer *transfer = piece->transfer;
    uint64_t block = group->motion->verify ? 1ull << mc_block_shift(transfer->object_length) : 1;
    uint64_t end = transfer->offset + transfer->length, window_end = (start + GROUP_BYTES) & ~(block - 1);
    uint64_t first = (start + block - 1) & ~(block - 1); /* whole block, and the end of them */
    uint64_t last = end == transfer->object_length ? end : end & ~(block - 1);
    piece->start = start;
    piece->end = window_end > start && window_end < end ? window_end : end;
    if (!may_be_direct(group, transfer) || first >= last)
        return;
    if (start == first) {
        uint64_t direct_end = window_end > start && window_end < last ? window_end : last;
        piece->is_direct = lay_spans(group, piece, piece->cursor, direct_end - start);
        piece->end = piece->is_direct ? direct_end : piece->end;
    } else if (is_registered(group, piece->cursor)) {
        piece->end = first;
    }
}

/* Adds what comes next of the transfer: of a large READ at most about GROUP_BYTES, from *start on. False: the group is
 * full. */
static bool group_add(struct mc_rdma_group *group, struct mc_transfer *transfer, struct mc_cursor *cursor,
                      uint64_t *start)
{
    struct mc_rdma_piece piece = {
        .transfer = transfer, .at = group->bytes, .offset = transfer->place.offset, .cursor = *cursor};
    uint64_t need, span = group->span_count;
    if (transfer->kind == MC_TRANSFER_WRITE) {
        uint64_t length = transfer->object_length;
        piece.is_direct = may_be_direct(group, transfer) && lay_spans(group, &piece, *cursor, length);
        piece.to = mc_extent_size(length, transfer->key.length);
        piece.end = transfer->offset + transfer->length;
        need = piece.is_direct ? piece.to - length : piece.to;
    } else {
        cut_read(group, &piece, *start);
        need = place_read(&piece, group->motion->verify);
    }
    uint64_t moved = piece.is_direct ? piece.end - *start : need;
    if (group->count > 0 && (group->count == MC_RDMA_GROUP_MAX || group->moved + moved > 2 * GROUP_BYTES ||
                             (!piece.is_direct && group->span_count > MC_RDMA_SPANS_MAX / 2))) {
        group->span_count = span;
        return false; /* the last: its parts may find room in the next one */
    }
    if (transfer->kind == MC_TRANSFER_READ)
        mc_cursor_skip(cursor, piece.end - piece.start);
    *start = piece.end;
    group->pieces[group->count++] = piece;
    group->bytes += aligned(need);
    group->moved += moved;
    return true;
}

void mc_rdma_walk_to(struct mc_rdma_walk *walk, size_t next)
{
    walk->next = next;
    if (next == walk->count)
        return;
    const struct mc_transfer *transfer = walk->transfers[next];
    walk->cursor = mc_cursor(transfer->parts, transfer->part_count);
    walk->start = transfer->offset;
}

void mc_rdma_group_fill(struct mc_rdma_group *group, struct mc_rdma_walk *walk, enum mc_transfer_kind kind)
{
    group->count = group->request_count = group->span_count = 0;
    group->bytes = group->moved = 0;
    while (walk->next < walk->count && walk->transfers[walk->next]->kind == kind) {
        struct mc_transfer *transfer = walk->transfers[walk->next];
        if (transfer->result < 0 || walk->start == transfer->offset + transfer->length)
            mc_rdma_walk_to(walk, walk->next + 1);
        else if (!group_add(group, transfer, &walk->cursor, &walk->start))
            return;
    }
}

/* ---- requests ---- */

static bool ask(struct mc_rdma_group *group, enum mc_rdma_opcode opcode, const struct mc_rdma_memory *memory,
                uint8_t *local, uint64_t remote, uint64_t length)
{
    struct mc_rdma_request request = {.opcode = opcode,
                                      .local = local,
                                      .remote = remote,
                                      .length = length,
                                      .local_chunks = mc_rdma_memory_local(memory)};
    if (length > 0 && !mc_rdma_remote_find(group->remote, remote, length, &request.remote_chunks))
        return false;
    group->requests[group->request_count++] = request;
    return true;
}

static bool ask_stage(struct mc_rdma_group *group, enum mc_rdma_opcode opcode, uint64_t at, uint64_t remote,
                      uint64_t length)
{
    return ask(group, opcode, group->stage->memory, group->stage->bytes + at, remote, length);
}

/* All its parts, between the caller's memory and what begins at that address. */
static bool ask_spans(struct mc_rdma_group *group, enum mc_rdma_opcode opcode, const struct mc_rdma_piece *piece,
                      uint64_t remote)
{
    for (size_t i = 0; i < piece->span_count; i++) {
        const struct mc_rdma_span *span = &group->spans[piece->span + i];
        if (!ask(group, opcode, span->buffer->memory, span->data, remote, span->length))
            return false;
        remote += span->length;
    }
    return true;
}

/* Moves what was asked for. 0 or negative: then nothing is known of any of it. */
static int group_move(struct mc_rdma_group *group)
{
    const struct mc_run *run = group->motion->run;
    struct mc_rdma_run move = {
        .deadline_ns = run->deadline_ns, .stall_ns = MC_STALL_NS, .tick = run->tick, .context = run->context};
    int rc = mc_rdma_link_run(group->link, group->requests, group->request_count, &move);
    group->is_unsure |= move.is_unsure;
    group->request_count = 0;
    if (rc == 0 || rc == MC_ERR_RPC_TIMEOUT)
        return rc;
    return MC_ERR_TRANSFER_FAIL;
}

static void piece_end(struct mc_rdma_piece *piece, int code)
{
    if (piece->transfer->result == 0)
        piece->transfer->result = code;
}

static void group_fail(struct mc_rdma_group *group, int code)
{
    for (size_t i = 0; i < group->count; i++)
        piece_end(&group->pieces[i], code);
}

/* ---- READ ---- */

static bool ask_bytes(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t length = piece->transfer->object_length, object = group->data + piece->offset;
    uint32_t table = group->motion->verify ? mc_table_length(length, mc_block_shift(length)) : 0;
    uint64_t end = piece->is_split || table == 0 ? piece->to : mc_table_offset(length) + table;
    bool is_asked = piece->is_direct
                        ? ask_spans(group, MC_RDMA_READ, piece, object + piece->from)
                        : ask_stage(group, MC_RDMA_READ, piece->at, object + piece->from, end - piece->from);
    return is_asked && (!piece->is_split || table == 0 ||
                        ask_stage(group, MC_RDMA_READ, piece->table, object + mc_table_offset(length), table));
}

static bool ask_slot(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t slot = group->index + piece->transfer->place.slot * SLOT_BYTES;
    return ask_stage(group, MC_RDMA_READ, piece->slot, slot, SLOT_BYTES);
}

/* The bytes of these, then their slots. */
static int pieces_fetch(struct mc_rdma_group *group, const struct mc_rdma_piece *pieces, size_t count)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = ask_bytes(group, &pieces[i]) ? 0 : MC_ERR_INVALID_PARAMS;
    if (rc == 0)
        rc = group_move(group);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = ask_slot(group, &pieces[i]) ? 0 : MC_ERR_INVALID_PARAMS;
    return rc == 0 ? group_move(group) : rc;
}

/* Is the slot that was read that of the wanted replica? */
static int slot_code(const struct mc_rdma_piece *piece, const struct mc_slot *slot)
{
    const struct mc_transfer *transfer = piece->transfer;
    if (slot->state != MC_SLOT_LIVE || slot->generation != transfer->place.generation ||
        slot->length != transfer->object_length || slot->hash_low != transfer->hash_low ||
        slot->hash_high != transfer->hash_high)
        return MC_ERR_REPLICA_IS_GONE;
    return slot->block_shift != mc_block_shift(slot->length) ? MC_ERR_CHECKSUM_MISMATCH : 0;
}

/* To the caller, or compares it there. */
static int piece_take(struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    struct mc_slot slot;
    memcpy(&slot, group->stage->bytes + piece->slot, SLOT_BYTES);
    int rc = slot_code(piece, &slot);
    if (rc < 0)
        return rc;
    const uint8_t *table = group->stage->bytes + piece->table;
    if (piece->is_direct)
        return mc_extent_check(&slot, table, piece->start, piece->end, &piece->cursor, group->motion);
    atomic_fetch_add_explicit(&group->counters->rdma_copied_bytes, piece->end - piece->start, memory_order_relaxed);
    /* Only the blocks between from and to are looked at. */
    const uint8_t *data = (const uint8_t *)((uintptr_t)group->stage->bytes + piece->at - piece->from);
    return mc_extent_read(&slot, data, table, piece->start, piece->end, &piece->cursor, group->motion);
}

/* The slot says that the extent lies elsewhere than the reader was told: read again there, once. */
static int pieces_read(struct mc_rdma_group *group, struct mc_rdma_piece *pieces, size_t count)
{
    struct mc_slot slot;
    bool is_any = false;
    int rc = pieces_fetch(group, pieces, count);
    for (size_t i = 0; i < count && rc == 0; i++) {
        memcpy(&slot, group->stage->bytes + pieces[i].slot, SLOT_BYTES);
        if (slot_code(&pieces[i], &slot) != 0 || slot.offset == pieces[i].offset)
            continue;
        pieces[i].offset = slot.offset;
        is_any = true;
    }
    return is_any ? pieces_fetch(group, pieces, count) : rc;
}

static bool slot_has_changed(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint8_t seen[SLOT_BYTES];
    memcpy(seen, group->stage->bytes + piece->slot, SLOT_BYTES);
    return ask_slot(group, piece) && group_move(group) == 0 &&
           memcmp(seen, group->stage->bytes + piece->slot, SLOT_BYTES) != 0;
}

/* The slot is read after the bytes: live with that generation, it was so all the time since the master named it. */
static int piece_judge(struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    int code = piece_take(group, piece);
    /* The slot may have been read in two halves, while it was taken by another object. */
    return code == MC_ERR_CHECKSUM_MISMATCH && slot_has_changed(group, piece) ? MC_ERR_REPLICA_IS_GONE : code;
}

/* Bytes in the caller's memory may be wrong by what was done there: two reads that end at one place, memory that was
 * freed and is another's now. Only what is wrong in the stage, too, is the owner's fault. */
static int piece_read_staged(struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    piece->is_direct = false;
    piece->at = 0; /* nothing else in the stage is needed any more */
    const uint64_t need = place_read(piece, group->motion->verify);
    if (need > group->stage->size) {
        struct mc_rdma_stage *larger = mc_rdma_stage_take(group->stages, need);
        if (larger == NULL)
            return MC_ERR_NO_MEMORY;
        mc_rdma_stage_give(group->stages, group->stage);
        group->stage = larger;
    }
    int rc = pieces_read(group, piece, 1);
    return rc < 0 ? rc : piece_judge(group, piece);
}

static void group_read(struct mc_rdma_group *group)
{
    struct mc_rdma_piece *suspects[MC_RDMA_GROUP_MAX];
    size_t suspect_count = 0;
    int rc = pieces_read(group, group->pieces, group->count);
    if (rc < 0) {
        group_fail(group, rc);
        return;
    }
    for (size_t i = 0; i < group->count; i++) {
        struct mc_rdma_piece *piece = &group->pieces[i];
        const struct mc_cursor cursor = piece->cursor;
        int code = piece_judge(group, piece);
        if (code == MC_ERR_CHECKSUM_MISMATCH && piece->is_direct) {
            piece->cursor = cursor;
            suspects[suspect_count++] = piece;
        } else {
            piece_end(piece, code);
        }
    }
    for (size_t i = 0; i < suspect_count; i++)
        piece_end(suspects[i], piece_read_staged(group, suspects[i]));
}

/* ---- WRITE ---- */

static int commits_send(struct mc_rdma_group *group, const struct mc_wire_commit_item *commits, size_t count)
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
    return mc_socket_send(group->control_fd, &part, 1, group->motion->run->deadline_ns);
}

/* The object's checksums are taken, and what does not lie in the caller's memory is put into the stage. */
static int piece_prepare(struct mc_rdma_group *group, const struct mc_rdma_piece *piece,
                         struct mc_wire_commit_item *commit)
{
    uint8_t *at = group->stage->bytes + piece->at;
    if (piece->is_direct)
        return mc_extent_describe(at, piece->transfer, group->motion, commit);
    atomic_fetch_add_explicit(&group->counters->rdma_copied_bytes, piece->transfer->length, memory_order_relaxed);
    return mc_memory_write((uint8_t *)((uintptr_t)at - piece->offset), piece->transfer, group->motion, commit);
}

static bool ask_write(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t extent = group->data + piece->offset, length = piece->transfer->object_length;
    if (!piece->is_direct)
        return ask_stage(group, MC_RDMA_WRITE, piece->at, extent, piece->to);
    return ask_spans(group, MC_RDMA_WRITE, piece, extent) &&
           ask_stage(group, MC_RDMA_WRITE, piece->at, extent + length, piece->to - length);
}

/* What a source refuses fails alone: nothing of it is sent. Negative: all fail. */
static int group_gather(struct mc_rdma_group *group, struct mc_wire_commit_item *commits, size_t *count)
{
    for (size_t i = 0; i < group->count; i++) {
        struct mc_rdma_piece *piece = &group->pieces[i];
        int rc = piece_prepare(group, piece, &commits[*count]);
        if (rc == MC_ERR_RPC_TIMEOUT)
            return rc;
        if (rc < 0)
            piece_end(piece, rc);
        else if (!ask_write(group, piece))
            return MC_ERR_INVALID_PARAMS;
        else
            (*count)++;
    }
    return 0;
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

static void group_write(struct mc_rdma_group *group)
{
    struct mc_wire_commit_item commits[MC_RDMA_GROUP_MAX];
    size_t count = 0;
    /* What a commit is made with is there before anything is written. */
    int rc = mc_scratch_get() == NULL ? MC_ERR_NO_MEMORY : group_gather(group, commits, &count);
    if (rc == 0 && count > 0)
        rc = group_move(group);
    /* What was cut off and came again by another pair may still arrive a first time: nothing may go live before. */
    if (group->is_unsure && is_cut(group->control_fd)) {
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

/* ---- a turn ---- */

static int path_failure(const struct mc_rdma_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        int result = group->pieces[i].transfer->result;
        if (result == MC_ERR_TRANSFER_FAIL || result == MC_ERR_RPC_TIMEOUT)
            return result;
    }
    return group->is_unsure ? MC_ERR_TRANSFER_FAIL : 0;
}

int mc_rdma_group_run(struct mc_rdma_group *group, enum mc_transfer_kind kind)
{
    int code = mc_motion_look(group->motion);
    group->stage = code < 0 ? NULL : mc_rdma_stage_take(group->stages, group->bytes);
    code = code == 0 && group->stage == NULL ? MC_ERR_NO_MEMORY : code;
    if (code < 0) {
        group_fail(group, code);
    } else {
        if (kind == MC_TRANSFER_WRITE)
            group_write(group);
        else
            group_read(group);
        mc_rdma_stage_give(group->stages, group->stage);
    }
    if (group->held_count > 0)
        mc_rdma_buffers_give(group->buffers, group->held, group->held_count);
    group->held_count = 0;
    return code < 0 ? code : path_failure(group);
}
