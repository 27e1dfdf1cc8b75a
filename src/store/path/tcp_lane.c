/* One connection of transport `tcp` while a batch runs on it: what goes out and what comes in. */
#include "store/path/tcp_lane.h"

#include "base/error.h"
#include "env/clock.h"
#include "store/wire/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

uint64_t mc_tcp_part_bytes = MC_TCP_PART_BYTES;

#define HEAD_ROOM 320u /* bytes of heads that the frames of one step need at most */
#define PART_ROOM 6u   /* parts that one step needs at most */

/* parts_fill ends a call's parts with the step that reaches a chunk, and a step queues at most a chunk of data. */
_Static_assert(2 * MC_TCP_CHUNK_BYTES <= MC_SOURCE_HELD_BYTES, "a source would overwrite what is not sent yet");

void mc_tcp_job_end(struct mc_tcp_run *run, struct mc_tcp_job *job, int result)
{
    if (job->done)
        return;
    job->done = true;
    job->transfer->result = result;
    run->open--;
    if (run->reading == job)
        run->reading = NULL;
    if (run->cutting == job)
        run->cutting = NULL;
}

/* ---- out ---- */

static void part_queue(struct mc_tcp_lane *lane, const void *data, size_t length)
{
    if (length == 0)
        return;
    struct iovec *last = lane->part_count > 0 ? &lane->parts[lane->part_count - 1] : NULL;
    lane->queued_bytes += length;
    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == data) { /* frames that follow one another */
        last->iov_len += length;
        return;
    }
    mc_assert(lane->part_count < MC_TCP_PARTS_MAX);
    lane->parts[lane->part_count++] = (struct iovec){(void *)(uintptr_t)data, length};
}

/* Frames are made behind each other in lane->heads, which is large enough for what one step makes. */
static struct mc_buffer head_begin(struct mc_tcp_lane *lane)
{
    return (struct mc_buffer){.data = lane->heads, .length = lane->heads_length, .capacity = sizeof(lane->heads)};
}

static void head_end(struct mc_tcp_lane *lane, const struct mc_buffer *out)
{
    mc_assert(out->data == lane->heads);
    part_queue(lane, lane->heads + lane->heads_length, out->length - lane->heads_length);
    lane->heads_length = out->length;
}

/* Of what the next request is a part. */
static void trace_head(const struct mc_tcp_run *run, struct mc_tcp_lane *lane, uint64_t request_id)
{
    const struct mc_trace_context *trace = run->motion->run->trace;
    if (trace == NULL || !lane->takes_traces)
        return;
    struct mc_buffer out = head_begin(lane);
    mc_wire_trace_say(&out, request_id, trace);
    head_end(lane, &out);
}

/* [start, end) of the extent comes next; a part, or to its end. */
static void write_head(struct mc_tcp_lane *lane, const struct mc_tcp_job *job, uint64_t start, uint64_t end,
                       bool is_part)
{
    const struct mc_transfer *transfer = job->transfer;
    struct mc_wire_write head = {.slot = transfer->place.slot,
                                 .generation = transfer->place.generation,
                                 .offset = transfer->place.offset,
                                 .payload_length = end - start,
                                 .length = transfer->object_length,
                                 .hash_low = transfer->hash_low,
                                 .hash_high = transfer->hash_high,
                                 .key_length = (uint16_t)transfer->key.length,
                                 .tag = transfer->place.tag,
                                 .skip = start,
                                 .is_part = is_part};
    struct mc_buffer out = head_begin(lane);
    size_t frame = mc_frame_begin(&out, MC_MESSAGE_WRITE, ++lane->request_id);
    mc_wire_write_write(&out, &head);
    mc_frame_end(&out, frame);
    head_end(lane, &out);
}

static uint64_t extent_end(const struct mc_tcp_job *job)
{
    return mc_key_offset(job->transfer->object_length) + job->transfer->key.length;
}

static void write_begin(const struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct mc_tcp_job *job)
{
    trace_head(run, lane, lane->request_id + 1);
    write_head(lane, job, 0, extent_end(job), false);
    lane->writing = job;
}

static void block_end(struct mc_tcp_job *job)
{
    if (job->table == NULL)
        return;
    job->table[(job->next - 1) >> job->shift] = job->crc;
    job->table_crc = mc_crc32c(job->table_crc, &job->crc, 4);
    job->crc = 0;
}

static void write_end(struct mc_tcp_lane *lane, struct mc_tcp_job *job)
{
    static const uint8_t zeros[4];
    const struct mc_transfer *transfer = job->transfer;
    struct mc_wire_none none = {0};
    struct mc_wire_commit_item item;
    mc_commit_fill(&item, transfer, job->table != NULL ? job->table_crc : job->crc);
    part_queue(lane, zeros, (size_t)(mc_table_offset(transfer->object_length) - transfer->object_length));
    part_queue(lane, job->table, mc_table_length(transfer->object_length, job->shift));
    part_queue(lane, transfer->key.data, transfer->key.length);
    lane->writing = NULL;
    job->next_queued = lane->queued;
    lane->queued = job;
    if (mc_source_result(transfer) < 0) /* what was announced has been sent, and stays without a commit */
        return;
    struct mc_buffer out = head_begin(lane);
    size_t start = mc_frame_begin(&out, MC_MESSAGE_COMMIT, ++lane->request_id);
    mc_wire_none_write(&out, &none);
    size_t list = mc_list_begin(&out);
    mc_wire_commit_item_write(&out, &item);
    mc_list_end(&out, list, 1);
    mc_frame_end(&out, start);
    head_end(lane, &out);
}

/* All parts are there: what is left of the extent, and the commit. */
static void write_tail(const struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct mc_tcp_job *job)
{
    uint64_t length = job->transfer->object_length;
    job->table_crc = mc_crc32c(0, job->table, mc_table_length(length, job->shift));
    trace_head(run, lane, lane->request_id + 1);
    write_head(lane, job, length, extent_end(job), false);
    write_end(lane, job);
}

/* Whole blocks. */
static uint64_t part_bytes(const struct mc_tcp_job *job)
{
    uint64_t blocks = mc_tcp_part_bytes >> job->shift;
    return (blocks > 0 ? blocks : 1) << job->shift;
}

uint64_t mc_tcp_job_parts(const struct mc_tcp_run *run, const struct mc_tcp_job *job)
{
    const struct mc_transfer *transfer = job->transfer;
    bool can = run->takes_parts && transfer->kind == MC_TRANSFER_WRITE && transfer->source == NULL;
    return can && transfer->object_length / 2 >= part_bytes(job)
               ? (transfer->object_length + part_bytes(job) - 1) / part_bytes(job)
               : 1;
}

/* Begins the next part of the write that is being cut. False: too many are not answered. */
static bool part_begin(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    struct mc_tcp_job *job = run->cutting;
    uint64_t start = job->next, end = job->end - start < part_bytes(job) ? job->end : start + part_bytes(job);
    if (lane->piece_count == MC_TCP_PIECES_MAX)
        return false;
    trace_head(run, lane, lane->request_id + 1);
    write_head(lane, job, start, end, true);
    lane->pieces[(lane->piece_first + lane->piece_count++) % MC_TCP_PIECES_MAX] =
        (struct mc_tcp_piece){.job = job,
                              .start = start,
                              .end = start,
                              .part_bytes = end - start,
                              .request_id = lane->request_id,
                              .is_part = true};
    lane->part_answers++;
    lane->unanswered += end - start;
    lane->part.job = job;
    lane->part.cursor = job->cursor;
    lane->part.next = start;
    lane->part.end = end;
    lane->part.crc = 0;
    mc_cursor_skip(&job->cursor, end - start);
    job->pieces++;
    job->next = end;
    if (end == job->end)
        run->cutting = NULL;
    return true;
}

/* Queues its next bytes, at most to the end of a block. */
static void part_step(struct mc_tcp_lane *lane)
{
    struct mc_tcp_job *job = lane->part.job;
    uint64_t block_left = (1ull << job->shift) - (lane->part.next & ((1ull << job->shift) - 1));
    uint64_t want = lane->part.end - lane->part.next;
    size_t length;
    want = want < block_left ? want : block_left;
    want = want < MC_TCP_CHUNK_BYTES ? want : MC_TCP_CHUNK_BYTES;
    const uint8_t *data = mc_cursor_take(&lane->part.cursor, want, &length);
    lane->part.crc = mc_crc32c(lane->part.crc, data, length);
    part_queue(lane, data, length);
    lane->part.next += length;
    if (lane->part.next == lane->part.end || length == block_left) {
        job->table[(lane->part.next - 1) >> job->shift] = lane->part.crc;
        lane->part.crc = 0;
    }
    if (lane->part.next == lane->part.end)
        lane->part.job = NULL;
}

void mc_tcp_lane_ping(struct mc_tcp_lane *lane)
{
    mc_assert(!mc_tcp_lane_is_sending(lane));
    lane->is_pinged = true;
    if (lane->piece_count == MC_TCP_PIECES_MAX)
        return;
    lane->part_first = lane->heads_length = 0;
    struct mc_buffer out = head_begin(lane);
    mc_frame_bare(&out, MC_MESSAGE_PING, ++lane->request_id);
    head_end(lane, &out);
    lane->pieces[(lane->piece_first + lane->piece_count++) % MC_TCP_PIECES_MAX] =
        (struct mc_tcp_piece){.request_id = lane->request_id, .is_part = true, .is_ping = true};
    lane->orphan_count++;
    lane->pings++;
}

/* Queues the next bytes of the write under way, at most to the end of a block. */
static void write_step(struct mc_tcp_lane *lane)
{
    struct mc_tcp_job *job = lane->writing;
    if (job->next == job->end) {
        write_end(lane, job);
        return;
    }
    uint64_t block_left = (1ull << job->shift) - (job->next & ((1ull << job->shift) - 1));
    uint64_t want = job->end - job->next < block_left ? job->end - job->next : block_left;
    size_t length;
    want = want < MC_TCP_CHUNK_BYTES ? want : MC_TCP_CHUNK_BYTES;
    const uint8_t *data = mc_cursor_read(&job->cursor, job->transfer, want, &length);
    job->crc = mc_crc32c(job->crc, data, length);
    part_queue(lane, data, length);
    job->next += length;
    if (job->next == job->end || length == block_left)
        block_end(job);
}

static void read_ask(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_tcp_piece *piece)
{
    const struct mc_place *place = &piece->job->transfer->place;
    struct mc_wire_read head = {.slot = place->slot,
                                .table = piece->with_table,
                                .generation = place->generation,
                                .offset = piece->start,
                                .length = piece->end - piece->start,
                                .contact_age_max_ms = run->motion->run->contact_age_max_ms,
                                .tag = place->tag};
    trace_head(run, lane, piece->request_id);
    struct mc_buffer out = head_begin(lane);
    size_t frame = mc_frame_begin(&out, MC_MESSAGE_READ, piece->request_id);
    mc_wire_read_write(&out, &head);
    mc_frame_end(&out, frame);
    head_end(lane, &out);
    lane->piece_bytes += piece->end - piece->start;
    lane->is_asking = lane->is_asking || lane->piece_count == 1;
}

/* Asks for the next piece of the read under way. False when the window is full. */
static bool read_step(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    struct mc_tcp_job *job = run->reading;
    const struct mc_transfer *transfer = job->transfer;
    uint64_t block = 1ull << job->shift, step = block > MC_TCP_PIECE_BYTES ? block : MC_TCP_PIECE_BYTES;
    uint64_t start = job->next, end = job->end - start < step ? job->end : start + step;
    if (lane->piece_count == MC_TCP_PIECES_MAX ||
        (lane->piece_count > 0 && lane->piece_bytes + (end - start) > MC_TCP_WINDOW_BYTES))
        return false;
    struct mc_tcp_piece *piece = &lane->pieces[(lane->piece_first + lane->piece_count++) % MC_TCP_PIECES_MAX];
    uint64_t want_end = transfer->offset + transfer->length;
    *piece = (struct mc_tcp_piece){.job = job,
                                   .start = start,
                                   .end = end,
                                   .want_start = start > transfer->offset ? start : transfer->offset,
                                   .want_end = end < want_end ? end : want_end,
                                   .request_id = ++lane->request_id,
                                   .cursor = job->cursor,
                                   .cursor_start = job->cursor,
                                   .with_table =
                                       job->table != NULL && job->sums != NULL && !job->has_reply && job->pieces == 0};
    read_ask(run, lane, piece);
    mc_cursor_skip(&job->cursor, piece->want_end - piece->want_start);
    job->pieces++;
    job->next = end;
    if (end == job->end)
        run->reading = NULL;
    return true;
}

/* Queues what one system call should carry. */
static void parts_fill(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    lane->part_first = lane->part_count = 0;
    lane->heads_length = 0;
    lane->queued_bytes = 0;
    while (lane->queued_bytes < MC_TCP_CHUNK_BYTES && lane->part_count + PART_ROOM <= MC_TCP_PARTS_MAX &&
           lane->heads_length + HEAD_ROOM <= sizeof(lane->heads)) {
        if (lane->writing != NULL) {
            write_step(lane);
        } else if (lane->part.job != NULL) {
            part_step(lane);
        } else if (lane->is_passed) {
            return;                                          /* it is stuck, as far as we know */
        } else if (run->whole != NULL && lane->pings == 0) { /* what follows a PING would be owed its answer */
            struct mc_tcp_job *job = run->whole;
            run->whole = job->next_whole;
            write_tail(run, lane, job);
        } else if (run->reading != NULL) {
            if (!read_step(run, lane))
                return;
        } else if (run->cutting != NULL) {
            if (!part_begin(run, lane))
                return;
        } else {
            while (run->next < run->count && run->jobs[run->next].done)
                run->next++;
            if (run->next == run->count)
                return;
            struct mc_tcp_job *job = &run->jobs[run->next];
            if (job->transfer->kind == MC_TRANSFER_READ) {
                if (lane->piece_count == MC_TCP_PIECES_MAX)
                    return;
                run->reading = job;
            } else if (mc_tcp_job_parts(run, job) > 1) {
                job->in_parts = true;
                run->cutting = job;
            } else {
                write_begin(run, lane, job);
            }
            run->next++;
        }
    }
}

static void parts_sent(struct mc_tcp_lane *lane, size_t sent)
{
    while (sent > 0) {
        struct iovec *part = &lane->parts[lane->part_first];
        size_t taken = sent < part->iov_len ? sent : part->iov_len;
        part->iov_base = (uint8_t *)part->iov_base + taken;
        part->iov_len -= taken;
        sent -= taken;
        if (part->iov_len == 0)
            lane->part_first++;
    }
}

/* Of a call on a lane: MC_ERR_TRANSFER_FAIL, or our own trouble. */
static int failure(int error)
{
    int code = mc_socket_code(error);
    return mc_socket_is_own(code) ? code : MC_ERR_TRANSFER_FAIL;
}

int mc_tcp_lane_send(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    for (uint64_t moved = 0; moved < MC_TCP_TURN_BYTES;) {
        if (lane->part_first == lane->part_count)
            parts_fill(run, lane);
        if (lane->part_count == 0)
            return 0;
        struct msghdr message = {.msg_iov = lane->parts + lane->part_first,
                                 .msg_iovlen = lane->part_count - lane->part_first};
        ssize_t sent = mc_socket_sendmsg(lane->fd, &message);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN ? 0 : failure(errno);
        }
        moved += (uint64_t)sent;
        lane->progress_ns = mc_clock_ns();
        if (lane->writing != NULL || lane->part.job != NULL || lane->queued != NULL) /* the owner makes room */
            run->heard_ns = lane->progress_ns;
        if (lane->is_asking)
            lane->asked_ns = lane->progress_ns;
        lane->is_asking = false;
        parts_sent(lane, (size_t)sent);
        if (lane->part_first < lane->part_count)
            continue;
        lane->part_first = lane->part_count = 0;
        for (; lane->queued != NULL; lane->queued = lane->queued->next_queued)
            mc_tcp_job_end(run, lane->queued, mc_source_result(lane->queued->transfer));
    }
    return 1;
}

/* ---- in ---- */

static struct mc_tcp_piece *first_piece(struct mc_tcp_lane *lane)
{
    return &lane->pieces[lane->piece_first];
}

static int job_verdict(const struct mc_tcp_job *job)
{
    const struct mc_transfer *transfer = job->transfer;
    if (job->code < 0)
        return job->code;
    if (job->sums == NULL)
        return job->sum == job->crc ? 0 : MC_ERR_CHECKSUM_MISMATCH;
    if (mc_crc32c(0, job->table, mc_table_length(transfer->object_length, job->shift)) != job->crc)
        return MC_ERR_CHECKSUM_MISMATCH;
    uint64_t first = transfer->offset >> job->shift, last = (transfer->offset + transfer->length - 1) >> job->shift;
    return memcmp(job->table + first, job->sums + first, (size_t)(last - first + 1) * 4) == 0
               ? 0
               : MC_ERR_CHECKSUM_MISMATCH;
}

static void job_fail(struct mc_tcp_run *run, struct mc_tcp_job *job, int code)
{
    if (job->code == 0)
        job->code = code;
    job->next = job->end; /* ask for no more of it */
    if (run->reading == job)
        run->reading = NULL;
    if (run->cutting == job)
        run->cutting = NULL;
}

/* A piece of that job will not come any more, or has come. */
static void piece_settle(struct mc_tcp_run *run, struct mc_tcp_job *job)
{
    job->pieces--;
    if (job->pieces > 0 || job->next != job->end)
        return;
    if (job->in_parts && job->code == 0) {
        job->next_whole = run->whole;
        run->whole = job;
        return;
    }
    bool is_judged = !job->in_parts && (run->motion->verify || job->code < 0);
    mc_tcp_job_end(run, job, is_judged ? job_verdict(job) : job->code);
}

static void piece_pop(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    struct mc_tcp_job *job = piece->job;
    lane->piece_bytes -= piece->end - piece->start;
    lane->unanswered -= piece->part_bytes;
    lane->pings -= piece->is_ping;
    lane->piece_first = (lane->piece_first + 1) % MC_TCP_PIECES_MAX;
    lane->piece_count--;
    lane->expect = MC_TCP_EXPECT_REPLY;
    if (job == NULL) {
        lane->orphan_count--;
        return;
    }
    lane->part_answers -= piece->is_part;
    piece_settle(run, job);
}

static struct mc_tcp_piece *nth_piece(struct mc_tcp_lane *lane, uint32_t n)
{
    return &lane->pieces[(lane->piece_first + n) % MC_TCP_PIECES_MAX];
}

/* Nobody wants the piece from this lane any more; what comes of it goes to the scratch. */
static void piece_orphan(struct mc_tcp_lane *lane, struct mc_tcp_piece *piece)
{
    piece->job = NULL;
    piece->want_start = piece->want_end = piece->end;
    lane->orphan_count++;
    lane->part_answers -= piece->is_part;
    if (piece == first_piece(lane))
        lane->table_kept = false;
}

/* Another lane that was asked for the same piece and may still answer. */
static struct mc_tcp_piece *copy_find(struct mc_tcp_run *run, const struct mc_tcp_lane *lane,
                                      const struct mc_tcp_piece *piece, struct mc_tcp_lane **on)
{
    for (size_t i = 0; i < run->lane_count && run->copied; i++) {
        *on = run->lanes[i];
        for (uint32_t n = 0; n < (*on)->piece_count && *on != lane; n++) {
            struct mc_tcp_piece *copy = nth_piece(*on, n);
            if (copy->job == piece->job && copy->start == piece->start)
                return copy;
        }
    }
    return NULL;
}

/* The answer has come here: no other lane's will be taken. */
static void piece_claim(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_tcp_piece *piece)
{
    struct mc_tcp_lane *on;
    struct mc_tcp_piece *copy;
    while ((copy = copy_find(run, lane, piece, &on)) != NULL)
        piece_orphan(on, copy);
}

void mc_tcp_lane_copy(struct mc_tcp_run *run, struct mc_tcp_lane *from, struct mc_tcp_lane *to)
{
    to->part_first = to->part_count = 0;
    to->heads_length = 0;
    to->queued_bytes = 0;
    run->copied = true;
    for (uint32_t n = 0;
         n < from->piece_count && to->piece_count < MC_TCP_PIECES_MAX &&
         to->part_count + PART_ROOM <= MC_TCP_PARTS_MAX && to->heads_length + HEAD_ROOM <= sizeof(to->heads);
         n++) {
        struct mc_tcp_piece *piece = nth_piece(from, n), *copy = nth_piece(to, to->piece_count);
        if (piece->job == NULL || piece->is_part)
            continue;
        if (piece->job->code < 0) { /* nothing depends on it any more */
            struct mc_tcp_job *job = piece->job;
            piece_claim(run, from, piece);
            piece_orphan(from, piece);
            piece_settle(run, job);
            continue;
        }
        *copy = *piece;
        copy->cursor = copy->cursor_start;
        copy->request_id = ++to->request_id;
        to->piece_count++;
        read_ask(run, to, copy);
        if (n == 0 && from->expect != MC_TCP_EXPECT_REPLY) /* it stopped within its answer */
            piece_orphan(from, piece);
    }
    from->is_passed = true;
    from->is_due = false;
    to->turn = from->turn + 1;
    to->progress_ns = mc_clock_ns();
}

/* What the slot says of the object. */
static void job_answered(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_tcp_piece *piece,
                         const struct mc_wire_read_reply *reply)
{
    struct mc_tcp_job *job = piece->job;
    const struct mc_transfer *transfer = job->transfer;
    if (reply->length != transfer->object_length || reply->hash_low != transfer->hash_low ||
        reply->hash_high != transfer->hash_high)
        job_fail(run, job, MC_ERR_REPLICA_IS_GONE);
    else if (reply->block_shift != job->shift || (job->has_reply && reply->crc != job->crc))
        job_fail(run, job, MC_ERR_CHECKSUM_MISMATCH);
    job->crc = reply->crc;
    job->has_reply = true;
    lane->table_kept = piece->with_table && reply->table_length == mc_table_length(transfer->object_length, job->shift);
    if (piece->with_table && !lane->table_kept)
        job_fail(run, job, MC_ERR_CHECKSUM_MISMATCH);
}

bool mc_tcp_lane_bury(struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct mc_paths *paths)
{
    struct mc_tcp_lane *on;
    for (uint32_t n = 0; n < lane->piece_count; n++) {
        struct mc_tcp_piece *piece = nth_piece(lane, n);
        struct mc_tcp_job *job = piece->job;
        bool has_copy = job != NULL && copy_find(run, lane, piece, &on) != NULL;
        if (job != NULL && piece->is_part)
            job_fail(run, job, MC_ERR_TRANSFER_FAIL);
        if (job == NULL || (!has_copy && job->code == 0))
            continue;
        piece_orphan(lane, piece);
        if (!has_copy)
            piece_settle(run, job);
    }
    if (mc_tcp_lane_wanted(lane) == 0)
        return false;
    for (; lane->queued != NULL; lane->queued = lane->queued->next_queued)
        mc_tcp_job_end(run, lane->queued, MC_ERR_TRANSFER_FAIL);
    if (lane->writing != NULL)
        mc_tcp_job_end(run, lane->writing, MC_ERR_TRANSFER_FAIL);
    lane->writing = lane->part.job = NULL;
    (void)mc_socket_reset_at_close(lane->fd);
    mc_paths_fd_close(paths, lane->fd_place);
    lane->state = MC_TCP_DEAD;
    return true;
}

/* The answer to a part, or to a PING behind it. */
static int part_handle(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_frame *frame)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_code head;
    mc_wire_code_read(&reader, &head);
    bool is_sent = lane->part.job == NULL || lane->piece_count > 1;
    if (piece->is_ping && frame->type == MC_MESSAGE_PONG && frame->request_id == piece->request_id) {
        piece_pop(run, lane);
        return 0;
    }
    if (frame->type != MC_MESSAGE_WRITE_END || reader.bad || frame->request_id != piece->request_id || !is_sent)
        return MC_ERR_PROTOCOL;
    if (head.code < 0 && piece->job != NULL)
        job_fail(run, piece->job, head.code == MC_ERR_STALE ? MC_ERR_STALE : MC_ERR_TRANSFER_FAIL);
    piece_pop(run, lane);
    return 0;
}

static int reply_handle(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_frame *frame)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    if (piece->is_part)
        return part_handle(run, lane, frame);
    struct mc_tcp_job *job = piece->job;
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_read_reply reply = {0};
    if (frame->type == MC_MESSAGE_FAILED) {
        struct mc_wire_code failed;
        mc_wire_code_read(&reader, &failed);
        reply.code = failed.code;
    } else {
        mc_wire_read_reply_read(&reader, &reply);
    }
    if (reader.bad || frame->request_id != piece->request_id || (frame->type == MC_MESSAGE_FAILED && reply.code >= 0))
        return MC_ERR_PROTOCOL;
    if (job != NULL)
        piece_claim(run, lane, piece);
    if (reply.code < 0) { /* out of its bounds: the slot holds something else too */
        bool is_gone =
            reply.code == MC_ERR_REPLICA_IS_GONE || reply.code == MC_ERR_STALE || reply.code == MC_ERR_INVALID_PARAMS;
        int code = is_gone                              ? MC_ERR_REPLICA_IS_GONE
                   : reply.code == MC_ERR_NOT_PERMITTED ? MC_ERR_STALE /* the tag is not one of its key any more */
                                                        : MC_ERR_TRANSFER_FAIL;
        if (job != NULL)
            job_fail(run, job, code);
        piece_pop(run, lane);
        return 0;
    }
    if (frame->type != MC_MESSAGE_READ_REPLY || reply.payload_length != piece->end - piece->start)
        return MC_ERR_PROTOCOL;
    lane->at = piece->start;
    lane->crc = 0;
    lane->table_at = 0;
    lane->table_length = reply.table_length;
    lane->table_kept = false;
    lane->expect = lane->table_length > 0 ? MC_TCP_EXPECT_TABLE : MC_TCP_EXPECT_PAYLOAD;
    if (job != NULL)
        job_answered(run, lane, piece, &reply);
    return lane->table_length <= MC_SCRATCH_BYTES ? 0 : MC_ERR_PROTOCOL;
}

static int end_handle(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_code head;
    mc_wire_code_read(&reader, &head);
    if (frame->type != MC_MESSAGE_READ_END || reader.bad || frame->request_id != first_piece(lane)->request_id)
        return MC_ERR_PROTOCOL;
    if (head.code < 0 && first_piece(lane)->job != NULL) {
        first_piece(lane)->job->code = 0; /* whatever was found wrong before may come of this */
        job_fail(run, first_piece(lane)->job, MC_ERR_REPLICA_IS_GONE);
    }
    piece_pop(run, lane);
    return 0;
}

/* Bytes of payload that are where they belong (or are not wanted) go into the sums of their blocks. */
static void payload_sum(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const uint8_t *data, size_t length)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    struct mc_tcp_job *job = piece->job;
    if (!run->motion->verify || job == NULL) {
        lane->at += length;
        return;
    }
    uint64_t block = 1ull << job->shift;
    while (length > 0) {
        uint64_t left = block - (lane->at & (block - 1));
        size_t step = length < left ? length : (size_t)left;
        lane->crc = mc_crc32c(lane->crc, data, step);
        lane->at += step;
        data += step;
        length -= step;
        if (step < left && lane->at < piece->end)
            continue;
        if (job->sums != NULL)
            job->sums[(lane->at - 1) >> job->shift] = lane->crc;
        else
            job->sum = lane->crc;
        lane->crc = 0;
    }
}

/* Parts for the next payload, at most a chunk. What is not wanted goes to the scratch. */
static size_t payload_parts(struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct iovec *parts, size_t capacity,
                            uint64_t *total)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    struct mc_cursor cursor = piece->cursor;
    uint64_t at = lane->at;
    size_t count = 0;
    *total = 0;
    while (at < piece->end && *total < MC_TCP_CHUNK_BYTES && count < capacity) {
        uint64_t left = MC_TCP_CHUNK_BYTES - *total;
        size_t length;
        uint8_t *target;
        if (at < piece->want_start || at >= piece->want_end) {
            bool before = at < piece->want_start;
            uint64_t want = (before ? piece->want_start : piece->end) - at;
            want = want < left ? want : left;
            length = want < MC_SCRATCH_BYTES ? (size_t)want : MC_SCRATCH_BYTES;
            target = before ? run->scratch->first : run->scratch->second;
        } else {
            target = mc_cursor_take(&cursor, piece->want_end - at < left ? piece->want_end - at : left, &length);
        }
        parts[count++] = (struct iovec){target, length};
        at += length;
        *total += length;
        if (target == run->scratch->first || target == run->scratch->second) {
            bool is_full = length == MC_SCRATCH_BYTES;
            if (is_full) /* the area must not be used twice in one system call */
                break;
        }
    }
    return count;
}

/* Moves the cursor over payload that lies at lane->at. */
static void payload_passed(struct mc_tcp_lane *lane, size_t length)
{
    struct mc_tcp_piece *piece = first_piece(lane);
    uint64_t from = lane->at > piece->want_start ? lane->at : piece->want_start, to = lane->at + length;
    to = to < piece->want_end ? to : piece->want_end;
    if (from < to)
        mc_cursor_skip(&piece->cursor, to - from);
}

/* Payload that came in with frames. Returns how much was taken. */
static size_t payload_copy(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const uint8_t *data, size_t length)
{
    struct iovec parts[16];
    uint64_t total;
    size_t count = payload_parts(run, lane, parts, 16, &total), taken = 0;
    for (size_t i = 0; i < count && taken < length; i++) {
        size_t step = parts[i].iov_len < length - taken ? parts[i].iov_len : length - taken;
        memcpy(parts[i].iov_base, data + taken, step);
        payload_passed(lane, step);
        payload_sum(run, lane, parts[i].iov_base, step);
        taken += step;
    }
    return taken;
}

static void in_consume(struct mc_tcp_lane *lane, size_t length)
{
    lane->in_start += length;
    lane->in_length -= length;
    if (lane->in_length == 0)
        lane->in_start = 0;
}

/* After table or payload bytes: what comes next? */
static void expect_next(struct mc_tcp_lane *lane)
{
    if (lane->expect == MC_TCP_EXPECT_TABLE && lane->table_at == lane->table_length)
        lane->expect = MC_TCP_EXPECT_PAYLOAD;
    if (lane->expect == MC_TCP_EXPECT_PAYLOAD && lane->at == first_piece(lane)->end)
        lane->expect = MC_TCP_EXPECT_END;
}

/* Handles one thing at the start of `in`. 1: go on; 0: more bytes are needed; negative: broken. */
static int in_step(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    const uint8_t *data = lane->in + lane->in_start;
    if (lane->in_length == 0)
        return 0;
    if (lane->piece_count == 0) /* nothing was asked for */
        return MC_ERR_PROTOCOL;
    if (lane->expect == MC_TCP_EXPECT_TABLE || lane->expect == MC_TCP_EXPECT_PAYLOAD) {
        size_t taken;
        if (lane->expect == MC_TCP_EXPECT_TABLE) {
            size_t left = lane->table_length - lane->table_at;
            taken = lane->in_length < left ? lane->in_length : left;
            if (lane->table_kept)
                memcpy((uint8_t *)first_piece(lane)->job->table + lane->table_at, data, taken);
            lane->table_at += (uint32_t)taken;
        } else {
            taken = payload_copy(run, lane, data, lane->in_length);
        }
        in_consume(lane, taken);
        expect_next(lane);
        return 1;
    }
    struct mc_frame frame;
    size_t used;
    int found = mc_frame_parse(data, lane->in_length, &frame, &used);
    if (found < 0 || used > sizeof(lane->in))
        return MC_ERR_PROTOCOL;
    if (found == 0)
        return 0;
    int rc = lane->expect == MC_TCP_EXPECT_REPLY ? reply_handle(run, lane, &frame) : end_handle(run, lane, &frame);
    if (rc < 0)
        return rc;
    in_consume(lane, used);
    return 1;
}

/* Sizes of frames as we would write them: how far to receive so that a large payload behind is not touched. A peer that
 * writes longer ones costs us one more system call. */
#define REPLY_BYTES (MC_FRAME_HEADER_SIZE + 2u + 47u)
#define END_BYTES (MC_FRAME_HEADER_SIZE + 2u + 4u)

/* How much to receive into `in` when frames of piece `ahead` (0 = first) come next. */
static size_t in_wanted(struct mc_tcp_lane *lane, uint32_t ahead)
{
    if (ahead >= lane->piece_count)
        return 0;
    const struct mc_tcp_piece *piece = nth_piece(lane, ahead);
    if (piece->end - piece->start < MC_TCP_DIRECT_BYTES || piece->job == NULL) /* parts, too */
        return sizeof(lane->in);
    return REPLY_BYTES +
           (piece->with_table ? mc_table_length(piece->job->transfer->object_length, piece->job->shift) : 0);
}

static size_t receive_parts(struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct iovec *parts, uint64_t *payload)
{
    size_t count = 0, want;
    *payload = 0;
    if (lane->expect == MC_TCP_EXPECT_PAYLOAD) { /* then `in` is empty: see in_step */
        count = payload_parts(run, lane, parts, MC_TCP_PARTS_MAX - 1, payload);
        if (lane->at + *payload < first_piece(lane)->end)
            return count;
        want = END_BYTES + in_wanted(lane, 1);
    } else if (lane->expect == MC_TCP_EXPECT_END) {
        want = END_BYTES + in_wanted(lane, 1);
    } else {
        want = lane->expect == MC_TCP_EXPECT_TABLE ? lane->table_length - lane->table_at : in_wanted(lane, 0);
    }
    /* What is there already counts; but at least something must be asked for. */
    want = want > lane->in_length ? want - lane->in_length : 1;
    if (lane->in_start > 0)
        memmove(lane->in, lane->in + lane->in_start, lane->in_length);
    lane->in_start = 0;
    size_t room = sizeof(lane->in) - lane->in_length;
    parts[count++] = (struct iovec){lane->in + lane->in_length, want < room ? want : room};
    return count;
}

/* Payload that arrived where it belongs. Returns its length. */
static size_t payload_arrived(struct mc_tcp_run *run, struct mc_tcp_lane *lane, const struct iovec *parts,
                              uint64_t payload, size_t received)
{
    size_t length = received < payload ? received : (size_t)payload;
    for (size_t left = length; left > 0; parts++) {
        size_t step = parts->iov_len < left ? parts->iov_len : left;
        payload_passed(lane, step);
        payload_sum(run, lane, parts->iov_base, step);
        left -= step;
    }
    if (length > 0)
        expect_next(lane);
    return length;
}

/* Bytes have come. Those of orphans say that the owner lives, and nothing of how long it takes. */
static void lane_heard(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    uint64_t now_ns = mc_clock_ns();
    if (run->pace != NULL && lane->asked_ns != 0 && lane->piece_count > 0 && first_piece(lane)->job != NULL)
        mc_pace_sample(run->pace, now_ns - lane->asked_ns);
    lane->asked_ns = 0;
    lane->progress_ns = run->heard_ns = now_ns;
    lane->turn = 0;
    lane->is_passed = lane->is_due = lane->is_pinged = false;
}

int mc_tcp_lane_receive(struct mc_tcp_run *run, struct mc_tcp_lane *lane)
{
    struct iovec parts[MC_TCP_PARTS_MAX];
    for (uint64_t moved = 0; moved < MC_TCP_TURN_BYTES;) {
        uint64_t payload = 0, asked = 0;
        size_t count = lane->piece_count > 0 ? receive_parts(run, lane, parts, &payload) : 0;
        if (count == 0) /* only to notice an end */
            parts[count++] = (struct iovec){lane->in, 1};
        for (size_t i = 0; i < count; i++)
            asked += parts[i].iov_len;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t received = mc_socket_recvmsg(lane->fd, &message);
        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0 && errno == EAGAIN)
            return 0;
        if (received < 0 && errno == EFAULT && lane->piece_count > 0 && first_piece(lane)->job != NULL)
            first_piece(lane)->job->code = MC_ERR_INVALID_PARAMS; /* the caller's memory is none: this job's alone */
        if (received <= 0)
            return received < 0 && errno != EFAULT ? failure(errno) : MC_ERR_TRANSFER_FAIL;
        lane_heard(run, lane);
        moved += (uint64_t)received;
        lane->in_length += (size_t)received - payload_arrived(run, lane, parts, payload, (size_t)received);
        int rc = 1;
        while (rc > 0)
            rc = in_step(run, lane);
        if (rc < 0)
            return rc;
        if (run->whole != NULL && lane->pings == 0)
            return 1;
        if (lane->piece_count == 0) /* all came at once: what is left is asked for now */
            return run->reading != NULL || run->cutting != NULL || run->next < run->count;
        if ((uint64_t)received < asked)
            return 0;
        if (run->reading != NULL || run->next < run->count) /* keep the window full */
            return 1;
    }
    return 1;
}

int mc_tcp_lane_drain(struct mc_tcp_lane *lane)
{
    struct mc_run nothing = {0};
    struct mc_motion motion = {.run = &nothing};
    struct mc_tcp_run run = {.motion = &motion, .scratch = mc_scratch_get()};
    if (run.scratch == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_tcp_lane_receive(&run, lane);
    return rc < 0 ? rc : mc_tcp_lane_is_idle(lane);
}

void mc_tcp_lane_fail(struct mc_tcp_run *run, struct mc_tcp_lane *lane, int code)
{
    struct mc_tcp_lane *on;
    if (code != MC_ERR_RPC_TIMEOUT && !mc_socket_is_own(code))
        code = MC_ERR_TRANSFER_FAIL;
    while (lane->piece_count > 0) {
        struct mc_tcp_piece *piece = first_piece(lane);
        if (piece->job != NULL && copy_find(run, lane, piece, &on) != NULL)
            piece_orphan(lane, piece);
        else if (piece->job != NULL)
            job_fail(run, piece->job, code);
        piece_pop(run, lane);
    }
    for (; lane->queued != NULL; lane->queued = lane->queued->next_queued)
        mc_tcp_job_end(run, lane->queued, code);
    if (lane->writing != NULL)
        mc_tcp_job_end(run, lane->writing, code);
    lane->writing = lane->part.job = NULL;
}
