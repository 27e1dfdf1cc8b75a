/* Groups of pieces: what is moved at a time, where it lies in the stage, what is asked of the devices. */
#include "store/path/rdma_group.h"

#include "rdma/remote.h"

#define DIRECT_BYTES_MIN                                                                                               \
    4096u /* a part of the caller's is at least so long, on average: a copy costs less than one more                   \
             request for a shorter one */
#define REST_BYTES (1u << MC_BLOCK_SHIFT_MIN) /* so little is no piece of its own: a few bytes would be copied */
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
        group->held_count == MC_RDMA_SPANS_MAX ? NULL : mc_rdma_buffers_hold(group->route->buffers, data, length);
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
    return group->route->buffers != NULL && transfer->source == NULL && transfer->length >= DIRECT_BYTES_MIN;
}

/* The first part that the cursor is at, as far as it may be read in place. */
static bool is_registered(struct mc_rdma_group *group, struct mc_cursor cursor)
{
    size_t length;
    const uint8_t *data = mc_cursor_take(&cursor, 1, &length);
    return length > 0 && hold(group, data, length) != NULL;
}

/* ---- filling it ---- */

/* Where the piece that begins at `start` ends: at the end of a block, or at `end`. A little of a long block is a piece
 * of its own unless the object ends there: all of that block is read for it, and a stage has no room for two. */
static uint64_t window(uint64_t start, uint64_t end, uint64_t block, uint64_t object_length)
{
    uint64_t last = (start + (block > MC_RDMA_PIECE_BYTES ? block : MC_RDMA_PIECE_BYTES)) & ~(block - 1);
    bool may_be_longer = end == object_length || block <= MC_RDMA_PIECE_BYTES;
    return last >= end || (end - last < REST_BYTES && may_be_longer) ? end : last;
}

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
static uint64_t cut_read(struct mc_rdma_group *group, struct mc_rdma_piece *piece, uint64_t start)
{
    struct mc_transfer *transfer = piece->transfer;
    bool verify = group->route->motion->verify;
    uint64_t block = verify ? 1ull << mc_block_shift(transfer->object_length) : 1;
    uint64_t end = transfer->offset + transfer->length;
    uint64_t first = (start + block - 1) & ~(block - 1); /* whole block, and the end of them */
    uint64_t last = end == transfer->object_length ? end : end & ~(block - 1);
    piece->start = start;
    piece->end = window(start, end, block, transfer->object_length);
    if (!may_be_direct(group, transfer) || first >= last)
        return place_read(piece, verify);
    if (start == first) {
        uint64_t direct_end = window(start, last, block, transfer->object_length);
        piece->is_direct = lay_spans(group, piece, piece->cursor, direct_end - start);
        piece->end = piece->is_direct ? direct_end : piece->end;
    } else if (is_registered(group, piece->cursor)) {
        piece->end = first;
    }
    return place_read(piece, verify);
}

/* What of the WRITE comes next. What lies behind the object goes with its last piece. */
static uint64_t cut_write(struct mc_rdma_group *group, struct mc_rdma_piece *piece, uint64_t start)
{
    struct mc_transfer *transfer = piece->transfer;
    uint64_t length = transfer->object_length;
    piece->start = piece->from = start;
    piece->end = piece->to = window(start, length, 1ull << mc_block_shift(length), length);
    if (piece->end == length)
        piece->to = mc_extent_size(length, transfer->key.length);
    piece->is_direct =
        may_be_direct(group, transfer) && lay_spans(group, piece, piece->cursor, piece->end - piece->start);
    return piece->to - (piece->is_direct ? piece->end : piece->start);
}

/* Adds what comes next of the transfer, from *start on. False: the group is full. */
static bool group_add(struct mc_rdma_group *group, struct mc_transfer *transfer, struct mc_cursor *cursor,
                      uint64_t *start)
{
    struct mc_rdma_piece piece = {
        .transfer = transfer, .at = group->bytes, .offset = transfer->place.offset, .cursor = *cursor};
    const size_t span = group->span_count;
    const uint64_t need =
        transfer->kind == MC_TRANSFER_WRITE ? cut_write(group, &piece, *start) : cut_read(group, &piece, *start);
    const uint64_t moved = piece.end - *start;
    const bool has_room = group->bytes + need <= MC_RDMA_STAGE_BYTES;
    const bool is_full = group->count == MC_RDMA_GROUP_MAX || group->moved + moved > 2 * MC_RDMA_PIECE_BYTES ||
                         !has_room || (!piece.is_direct && group->span_count > MC_RDMA_SPANS_MAX / 2);
    if (group->count > 0 && is_full) {
        group->span_count = span;
        return false; /* the last: its parts may find room in the next one */
    }
    const bool is_forbidden = transfer->view != NULL && !piece.is_direct;
    if (is_forbidden || !has_room) { /* ... or its blocks are longer than a stage */
        transfer->result = is_forbidden ? MC_ERR_NOT_SUPPORTED : MC_ERR_NO_MEMORY;
        group->route->is_staged_out |= !is_forbidden;
        group->span_count = span;
        return true;
    }
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
    group->count = group->request_count = group->span_count = group->commit_count = 0;
    group->bytes = group->moved = 0;
    group->result = 0;
    while (walk->next < walk->count && walk->transfers[walk->next]->kind == kind) {
        struct mc_transfer *transfer = walk->transfers[walk->next];
        if (transfer->result < 0 || walk->start == transfer->offset + transfer->length)
            mc_rdma_walk_to(walk, walk->next + 1);
        else if (!group_add(group, transfer, &walk->cursor, &walk->start))
            return;
    }
}

void mc_rdma_group_leave(struct mc_rdma_group *group)
{
    if (group->held_count > 0)
        mc_rdma_buffers_give(group->route->buffers, group->held, group->held_count);
    group->held_count = 0;
    group->count = 0;
}

void mc_rdma_piece_end(struct mc_rdma_piece *piece, int code)
{
    if (piece->transfer->result == 0)
        piece->transfer->result = code;
}

void mc_rdma_group_fail(struct mc_rdma_group *group, int code)
{
    for (size_t i = 0; i < group->count; i++)
        mc_rdma_piece_end(&group->pieces[i], code);
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
    if (length == 0)
        return true;
    if (!mc_rdma_remote_find(group->route->remote, remote, length, &request.remote_chunks))
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

bool mc_rdma_ask_bytes(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t length = piece->transfer->object_length, object = group->route->data + piece->offset;
    uint32_t table = group->route->motion->verify ? mc_table_length(length, mc_block_shift(length)) : 0;
    uint64_t end = piece->is_split || table == 0 ? piece->to : mc_table_offset(length) + table;
    bool is_asked = piece->is_direct
                        ? ask_spans(group, MC_RDMA_READ, piece, object + piece->from)
                        : ask_stage(group, MC_RDMA_READ, piece->at, object + piece->from, end - piece->from);
    return is_asked && (!piece->is_split || table == 0 ||
                        ask_stage(group, MC_RDMA_READ, piece->table, object + mc_table_offset(length), table));
}

bool mc_rdma_ask_slot(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t slot = group->route->index + piece->transfer->place.slot * SLOT_BYTES;
    return ask_stage(group, MC_RDMA_READ, piece->slot, slot, SLOT_BYTES);
}

static bool ask_write(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    uint64_t extent = group->route->data + piece->offset;
    if (!piece->is_direct)
        return ask_stage(group, MC_RDMA_WRITE, piece->at, extent + piece->from, piece->to - piece->from);
    return ask_spans(group, MC_RDMA_WRITE, piece, extent + piece->from) &&
           ask_stage(group, MC_RDMA_WRITE, piece->at, extent + piece->end, piece->to - piece->end);
}

/* ---- READ ---- */

int mc_rdma_piece_slot(const struct mc_rdma_group *group, const struct mc_rdma_piece *piece, struct mc_slot *slot)
{
    const struct mc_transfer *transfer = piece->transfer;
    memcpy(slot, group->stage->bytes + piece->slot, SLOT_BYTES);
    if (slot->state != MC_SLOT_LIVE || slot->generation != transfer->place.generation ||
        slot->length != transfer->object_length || slot->hash_low != transfer->hash_low ||
        slot->hash_high != transfer->hash_high)
        return MC_ERR_REPLICA_IS_GONE;
    return slot->block_shift != mc_block_shift(slot->length) ? MC_ERR_CHECKSUM_MISMATCH : 0;
}

/* In the caller's memory. */
static int piece_check(struct mc_rdma_piece *piece, const struct mc_slot *slot, const uint8_t *table,
                       struct mc_motion *motion)
{
    struct mc_device_view *view = motion->verify ? piece->transfer->view : NULL;
    struct mc_source *source = view == NULL ? NULL : view->open(view, &piece->cursor, piece->end - piece->start);
    int rc = mc_extent_check(slot, table, piece->start, piece->end, &piece->cursor, source, motion);
    if (view != NULL)
        view->close(view);
    return rc;
}

int mc_rdma_piece_take(struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    struct mc_motion *motion = group->route->motion;
    struct mc_slot slot;
    int rc = mc_rdma_piece_slot(group, piece, &slot);
    if (rc < 0)
        return rc;
    if (slot.offset != piece->offset) /* it has gone there since the bytes were read */
        return MC_ERR_REPLICA_IS_GONE;
    const uint8_t *table = group->stage->bytes + piece->table;
    if (piece->is_direct)
        return piece_check(piece, &slot, table, motion);
    atomic_fetch_add_explicit(&group->route->counters->rdma_copied_bytes, piece->end - piece->start,
                              memory_order_relaxed);
    /* Only the blocks between from and to are looked at. */
    const uint8_t *data = (const uint8_t *)((uintptr_t)group->stage->bytes + piece->at - piece->from);
    return mc_extent_read(&slot, data, table, piece->start, piece->end, &piece->cursor, motion);
}

bool mc_rdma_piece_unplace(struct mc_rdma_group *group, struct mc_rdma_piece *piece)
{
    piece->is_direct = false;
    piece->at = 0;
    return place_read(piece, group->route->motion->verify) <= MC_RDMA_STAGE_BYTES;
}

/* ---- WRITE ---- */

/* target NULL: where the bytes lie, or as they are seen there. */
static int blocks_sum(const struct mc_rdma_piece *piece, uint8_t *target, struct mc_rdma_route *route)
{
    struct mc_transfer *transfer = piece->transfer;
    struct mc_device_view *view = transfer->view;
    if (view != NULL)
        transfer->source = view->open(view, &piece->cursor, piece->end - piece->start);
    struct mc_cursor cursor = piece->cursor;
    int rc = mc_extent_write_blocks(transfer, target, piece->start, piece->end, &cursor, route->motion, route->sums);
    rc = rc == 0 ? mc_source_result(transfer) : rc;
    if (view != NULL) {
        view->close(view);
        transfer->source = NULL;
    }
    return rc;
}

/* The checksums of the piece are taken, and what does not lie in the caller's memory is put into the stage. */
static int piece_prepare(struct mc_rdma_group *group, const struct mc_rdma_piece *piece)
{
    struct mc_rdma_route *route = group->route;
    struct mc_transfer *transfer = piece->transfer;
    uint8_t *at = group->stage->bytes + piece->at, *target = NULL;
    if (!piece->is_direct) {
        target = (uint8_t *)((uintptr_t)at - piece->start);
        atomic_fetch_add_explicit(&route->counters->rdma_copied_bytes, piece->end - piece->start, memory_order_relaxed);
    }
    int rc = blocks_sum(piece, target, route);
    if (rc < 0 || piece->end != transfer->object_length)
        return rc;
    uint8_t *behind = piece->is_direct ? at : at + (piece->end - piece->start);
    rc = mc_extent_write_end(behind, transfer, route->sums, &group->commits[group->commit_count]);
    group->commit_count += rc == 0;
    return rc;
}

int mc_rdma_group_gather(struct mc_rdma_group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct mc_rdma_piece *piece = &group->pieces[i];
        if (piece->transfer->result < 0) /* of a piece before */
            continue;
        int rc = piece_prepare(group, piece);
        if (rc == MC_ERR_RPC_TIMEOUT)
            return rc;
        if (rc < 0)
            mc_rdma_piece_end(piece, rc);
        else if (!ask_write(group, piece))
            return MC_ERR_INVALID_PARAMS;
    }
    return 0;
}
