/* The protocol of a data connection at the owner: hello, ATTACH, COMMIT, WRITE, READ, PING. */
#include "store/segment/serve_lane.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "rdma/link.h"
#include "rdma/remote.h"
#include "store/segment/serve_trace.h"

#include <inttypes.h>
#include <stdlib.h>

#define IN_KEEP_BYTES (64u << 10) /* a larger input buffer is given back when empty */
/* For a place among those who announce what they store; as many threads of this process as there are copy just now */
#define ANNOUNCE_WAIT_MS 10u
#define QUEUE_FIRST 4u /* requests that the queue begins with room for */

void mc_lane_init(struct mc_serve_lane *lane, struct mc_lane_server *server, bool is_unix, bool is_same_user)
{
    *lane = (struct mc_serve_lane){.server = server, .is_unix = is_unix, .is_same_user = is_same_user};
    lane->in.may_fail = lane->out.may_fail = true;
}

void mc_lane_free(struct mc_serve_lane *lane)
{
    if (lane->attached != NULL)
        mc_segment_memory_writer_remove(lane->attached, lane->writer);
    if (lane->served != NULL)
        mc_rdma_link_close(lane->served);
    lane->attached = NULL;
    lane->served = NULL;
    if (lane->traced != NULL)
        mc_lane_trace_free(lane);
    free(lane->gate);
    lane->gate = NULL;
    mc_buffer_free(&lane->in);
    mc_buffer_free(&lane->out);
    free(lane->queue);
    lane->queue = NULL;
    lane->queue_count = lane->queue_capacity = 0;
}

/* ---- tickets ---- */

void mc_lane_keys_draw(struct mc_lane_server *server)
{
    uint8_t drawn[MC_KEY_SECRET_BYTES];
    server->key_mark ^= 1;
    server->key_number++;
    struct mc_lane_keys *keys = &server->keys[server->key_mark];
    mc_key_draw(keys->ticket);
    mc_key_draw(drawn);
    memcpy(keys->tag, drawn, sizeof(keys->tag));
    explicit_bzero(drawn, sizeof(drawn));
}

/* NULL: there are none of that mark yet. */
static const struct mc_lane_keys *keys_of(const struct mc_lane_server *server, unsigned mark)
{
    return mark == server->key_mark || server->key_number > 1 ? &server->keys[mark & 1] : NULL;
}

bool mc_lane_has_expired(const struct mc_serve_lane *lane)
{
    return lane->key_number != 0 && lane->key_number + 1 < lane->server->key_number;
}

/* A ticket is the name of a key that nobody keeps: its secret follows from ours. */
static bool ticket_find(void *context, struct mc_span ticket, struct mc_key *key)
{
    const struct mc_lane_server *server = context;
    struct mc_id node;
    unsigned mark = 0;
    const struct mc_lane_keys *keys = mc_ticket_read(ticket, &node, &key->rights, &mark) ? keys_of(server, mark) : NULL;
    if (keys != NULL)
        mc_ticket_secret(keys->ticket, ticket, key->secret);
    return keys != NULL;
}

static void where(const struct mc_serve_lane *lane, char text[MC_ADDRESS_MAX])
{
    snprintf(text, MC_ADDRESS_MAX, "?");
    if (lane->server->where != NULL)
        lane->server->where(lane, text);
}

/* What has been shown that was refused. */
static const char *fault_of(const struct mc_frame *frame, int rc)
{
    return frame->type == MC_MESSAGE_HELLO                                 ? "it has shown no ticket"
           : frame->type == MC_MESSAGE_AUTH && rc == MC_ERR_NOT_PERMITTED  ? "its ticket is none of this node's"
           : frame->type == MC_MESSAGE_PROOF && rc == MC_ERR_NOT_PERMITTED ? "it does not have its ticket's secret"
           : frame->type == MC_MESSAGE_AUTH && rc != MC_ERR_PROTOCOL ? "it wants a proof, and there are no keys here"
                                                                     : "it began otherwise than with a ticket";
}

static int gate_handle(struct mc_serve_lane *lane, const struct mc_frame *frame)
{
    struct mc_lane_server *server = lane->server;
    if (lane->gate == NULL)
        lane->gate = calloc(1, sizeof(*lane->gate));
    if (lane->gate == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_gate_take(lane->gate, frame, server->wants_tickets ? ticket_find : NULL, server, &lane->out);
    struct mc_span ticket = mc_span(lane->gate->name, lane->gate->name_length);
    unsigned rights = 0, mark = 0;
    struct mc_id node;
    if (rc == 0 && mc_ticket_read(ticket, &node, &rights, &mark)) /* now: the keys may be others when the proof comes */
        lane->key_number = server->key_number - (mark != server->key_mark);
    if (rc == 1) {
        (void)mc_ticket_read(ticket, &lane->peer, &rights, &mark);
        lane->rights = (uint8_t)rights;
        lane->is_proved = true;
        free(lane->gate);
        lane->gate = NULL;
    }
    if (rc >= 0)
        return 0;
    char address[MC_ADDRESS_MAX];
    where(lane, address);
    mc_log_limited(WARNING, "a data connection of %s was refused: %s: %s (masters give tickets, to who has a key)",
                   address, mc_error_name(rc), fault_of(frame, rc));
    lane->is_ending = true;
    return 0;
}

/* All of the memory, mapped or by RDMA, where nothing looks at tags: not for who is of one tenant. */
static bool is_kept_apart(const struct mc_serve_lane *lane, unsigned type)
{
    return (type == MC_MESSAGE_ATTACH || type == MC_MESSAGE_RDMA_OFFER) && (lane->rights & MC_TICKET_OF_TENANT) != 0 &&
           !lane->server->tenants_map;
}

static bool may(const struct mc_serve_lane *lane, unsigned type)
{
    char address[MC_ADDRESS_MAX];
    bool is_apart = is_kept_apart(lane, type);
    if (!lane->server->wants_tickets || (mc_right_suffices(lane->rights, type) && !is_apart))
        return true;
    where(lane, address);
    mc_log_limited(INFO, "a data connection of %s is refused a %s: %s", address, mc_message_name(type),
                   is_apart ? "its key is a tenant's, whose ways are tcp and tags (MC_TENANTS_MAP)"
                            : "its ticket has no right to that");
    return false;
}

/* ---- tags ---- */

/* Is it the tag that the master gave the peer for that? The holder is filled in here. */
static bool tag_fits(struct mc_serve_lane *lane, uint64_t tag, unsigned type, struct mc_tagged *what)
{
    struct mc_lane_server *server = lane->server;
    char address[MC_ADDRESS_MAX];
    if (!server->wants_tags)
        return true;
    what->holder = lane->peer;
    unsigned mark = mc_tag_mark(tag);
    const struct mc_lane_keys *keys = keys_of(server, mark);
    if (keys != NULL) {
        uint64_t ours = (type == MC_MESSAGE_READ ? mc_tag_read : mc_tag_write)(keys->tag, what);
        if (mc_tag_equal(mc_tag_marked(ours, mark), tag))
            return true;
    }
    atomic_fetch_add_explicit(&server->tags_refused, 1, memory_order_relaxed);
    where(lane, address);
    mc_log_limited(WARNING, "a data connection of %s is refused a %s: it does not have the tag of that place", address,
                   mc_message_name(type));
    return false;
}

/* ---- hello ---- */

static int hello_code(struct mc_serve_lane *lane, const struct mc_wire_hello *hello)
{
    const struct mc_lane_server *server = lane->server;
    if (mc_wire_agree(&lane->agreed, hello->version_min, hello->version_max, hello->features) < 0)
        return MC_ERR_INVALID_VERSION;
    if (hello->role != MC_ROLE_DATA || mc_id_is_zero(hello->node) || (lane->is_unix && !lane->is_same_user))
        return MC_ERR_ILLEGAL_CLIENT;
    if (lane->is_proved && !mc_id_equal(lane->peer, hello->node)) /* the ticket is another's */
        return MC_ERR_NOT_PERMITTED;
    if (server->wants_tickets && server->wants_tags && !mc_wire_can(&lane->agreed, MC_FEATURE_TAGS))
        return MC_ERR_NOT_PERMITTED; /* it is of a release that could ask for nothing */
    if (server->memory == NULL || hello->nonce != mc_segment_memory_nonce(server->memory))
        return MC_ERR_STALE;
    struct mc_id ours = mc_segment_memory_cluster(server->memory);
    if (!mc_id_is_zero(ours) && !mc_id_is_zero(hello->cluster) && !mc_id_equal(ours, hello->cluster))
        return MC_ERR_OTHER_CLUSTER;
    return server->admit == NULL ? 0 : server->admit(lane, hello->node);
}

static uint32_t layout_of(const struct mc_lane_server *server)
{
    return server->memory == NULL ? MC_INDEX_VERSION : mc_segment_memory_layout(server->memory);
}

static int hello_handle(struct mc_serve_lane *lane, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_hello hello;
    mc_wire_hello_read(&reader, &hello);
    if (frame->type != MC_MESSAGE_HELLO || reader.bad || mc_reader_left(&reader) != 0 || hello.magic != MC_WIRE_MAGIC)
        return MC_ERR_PROTOCOL;
    int code = hello_code(lane, &hello);
    struct mc_wire_hello_reply reply = {.code = code,
                                        .node = lane->server->node,
                                        .incarnation = lane->server->incarnation,
                                        .layout = layout_of(lane->server),
                                        .text = mc_span_string(code == 0 ? "" : mc_error_text(code))};
    mc_wire_hello_reply_sign(&reply);
    mc_wire_hello_reply_frame(&lane->out, mc_frame_begin(&lane->out, MC_MESSAGE_HELLO_REPLY, frame->request_id),
                              &reply);
    lane->is_open = code == 0;
    lane->is_ending = code != 0;
    lane->peer = hello.node;
    lane->peer_incarnation = hello.incarnation;
    char build[MC_BUILD_TEXT_MAX], address[MC_ADDRESS_MAX];
    if (code != 0)
        where(lane, address);
    if (code != 0 && code != MC_ERR_BUSY) /* who has no place for it says that himself */
        mc_log_limited(WARNING,
                       "a data connection of %s was refused: %s (it, %s, speaks versions %u to %u, we %u to %u)",
                       address, mc_error_name(code), mc_wire_build(build, hello.build), (unsigned)hello.version_min,
                       (unsigned)hello.version_max, MC_WIRE_VERSION_MIN, MC_WIRE_VERSION_MAX);
    return 0;
}

/* ---- requests ---- */

static int queue_grow(struct mc_serve_lane *lane)
{
    uint32_t capacity = lane->queue_capacity == 0 ? QUEUE_FIRST : lane->queue_capacity * 2;
    struct mc_lane_request *grown = malloc(capacity * sizeof(*grown));
    if (grown == NULL)
        return MC_ERR_NO_MEMORY;
    mc_assert(lane->queue_count <= lane->queue_capacity);
    for (uint32_t i = 0; i < lane->queue_count; i++)
        grown[i] = lane->queue[(lane->queue_first + i) % lane->queue_capacity];
    free(lane->queue);
    lane->queue = grown;
    lane->queue_first = 0;
    lane->queue_capacity = capacity;
    return 0;
}

static int queue_push(struct mc_serve_lane *lane, struct mc_lane_request request)
{
    mc_assert(lane->queue_count < MC_LANE_QUEUE_MAX); /* the parser stops before */
    int rc = lane->queue_count == lane->queue_capacity ? queue_grow(lane) : 0;
    if (rc < 0)
        return rc;
    lane->queue[(lane->queue_first + lane->queue_count) % lane->queue_capacity] = request;
    lane->queue_count++;
    return 0;
}

void mc_lane_commit(struct mc_lane_server *server, const struct mc_wire_commit_item *commit, bool is_lost)
{
    int code = is_lost ? MC_ERR_STALE : mc_segment_memory_commit(server->memory, commit);
    if (code < 0)
        mc_log_limited(WARNING, "commit of slot %" PRIu32 " generation %" PRIu64 " refused: %s", commit->slot,
                       commit->generation, mc_error_name(code));
    if (server->hooks.committed != NULL)
        server->hooks.committed(server->hooks.context, server->memory, commit->slot, commit->generation, code);
}

static int commit_handle(struct mc_serve_lane *lane, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_lane_server *server = lane->server;
    struct mc_wire_none head;
    bool has_lost = false;
    int rc = mc_wire_check(frame->type, frame->body);
    if (rc < 0) /* a malformed batch is not applied in part */
        return rc;
    mc_wire_none_read(reader, &head);
    uint32_t count = mc_list_read(reader);
    if (count == 0 && server->hooks.missed != NULL)
        server->hooks.missed(server->hooks.context);
    for (; count > 0; count--) {
        struct mc_wire_commit_item item;
        mc_wire_commit_item_read(reader, &item);
        struct mc_tagged what = {.slot = item.slot,
                                 .key_length = item.key_length,
                                 .generation = item.generation,
                                 .offset = item.offset,
                                 .length = item.length,
                                 .hash_low = item.hash_low,
                                 .hash_high = item.hash_high};
        if (!tag_fits(lane, item.tag, frame->type,
                      &what)) /* the master hears nothing of it: it may be another's grant */
            return MC_ERR_NOT_PERMITTED;
        bool is_lost = item.generation <= lane->refused_generation; /* its bytes, or those of one after it */
        has_lost = has_lost || is_lost;
        rc = server->hand_over != NULL ? server->hand_over(server, &item, is_lost) : 0;
        if (rc < 0)
            return rc;
        if (server->hand_over == NULL)
            mc_lane_commit(server, &item, is_lost);
        server->committed = true;
    }
    if (lane->traced != NULL)
        mc_lane_trace_commit(lane, has_lost ? MC_ERR_STALE : 0);
    return 0;
}

/* What a WRITE brought was thrown away. By the time of its COMMIT the generation may be one that can be granted: where
 * the owner has met the master's epoch in between. The writer of a part is told, and sends no COMMIT. */
static void note_refused(struct mc_serve_lane *lane)
{
    if (lane->write.refused && !lane->write.is_part && lane->write.generation > lane->refused_generation)
        lane->refused_generation = lane->write.generation;
    if (lane->traced != NULL && lane->write.refused)
        mc_lane_trace_code(lane, MC_ERR_STALE);
}

static int write_handle(struct mc_serve_lane *lane, uint64_t request_id, struct mc_reader *reader)
{
    struct mc_wire_write head;
    mc_wire_write_read(reader, &head);
    if (reader->bad || mc_reader_left(reader) != 0)
        return MC_ERR_PROTOCOL;
    struct mc_tagged what = {.slot = head.slot,
                             .key_length = head.key_length,
                             .generation = head.generation,
                             .offset = head.offset,
                             .length = head.length,
                             .hash_low = head.hash_low,
                             .hash_high = head.hash_high};
    if (!tag_fits(lane, head.tag, MC_MESSAGE_WRITE, &what))
        return MC_ERR_NOT_PERMITTED;
    const uint64_t size = mc_key_offset(head.length) + head.key_length;
    const bool is_cut = head.skip > 0 || head.is_part != 0;
    if ((lane->server->wants_tags || is_cut) && (head.skip > size || head.payload_length > size - head.skip))
        return MC_ERR_INVALID_PARAMS; /* more than was granted */
    /* Of a part the whole extent is announced: that is what its writer may be storing into. */
    const uint64_t length = is_cut ? size : head.payload_length;
    int code = mc_segment_memory_may_write(lane->server->memory, head.slot, head.generation, head.offset, length);
    if (code == MC_ERR_INVALID_PARAMS) /* outside of the segment: no honest writer has a grant for that */
        return code;
    lane->write.left = head.payload_length;
    lane->write.generation = head.generation;
    lane->write.offset = head.offset + head.skip;
    lane->write.start = head.offset;
    lane->write.length = length;
    lane->write.slot = head.slot;
    lane->write.refused = code < 0;
    lane->write.is_part = head.is_part != 0;
    if (lane->traced != NULL)
        mc_lane_trace_ask(lane, MC_MESSAGE_WRITE, head.payload_length);
    note_refused(lane);
    return !lane->write.is_part ? 0
                                : queue_push(lane, (struct mc_lane_request){.request_id = request_id,
                                                                            .type = MC_MESSAGE_WRITE,
                                                                            .is_refused = lane->write.refused});
}

static int read_handle(struct mc_serve_lane *lane, uint64_t request_id, struct mc_reader *reader)
{
    struct mc_wire_read head;
    mc_wire_read_read(reader, &head);
    if (reader->bad || mc_reader_left(reader) != 0)
        return MC_ERR_PROTOCOL;
    struct mc_tagged what = {.slot = head.slot, .generation = head.generation};
    if (lane->traced != NULL)
        mc_lane_trace_ask(lane, MC_MESSAGE_READ, 0);
    return queue_push(lane, (struct mc_lane_request){.request_id = request_id,
                                                     .is_refused = !tag_fits(lane, head.tag, MC_MESSAGE_READ, &what),
                                                     .type = MC_MESSAGE_READ,
                                                     .slot = head.slot,
                                                     .generation = head.generation,
                                                     .offset = head.offset,
                                                     .length = head.length,
                                                     .contact_age_max_ms = head.contact_age_max_ms,
                                                     .table = head.table != 0});
}

static int rdma_answer(struct mc_serve_lane *lane, struct mc_span offer, struct mc_buffer *text)
{
    struct mc_lane_server *server = lane->server;
    if (!may(lane, MC_MESSAGE_RDMA_OFFER))
        return MC_ERR_NOT_PERMITTED;
    if (server->rdma == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    if (server->rdma_data == NULL)
        return MC_ERR_BUSY; /* still being populated and registered */
    if (offer.length > 0)
        return mc_rdma_link_answer(server->rdma, &lane->served, offer, text);
    struct mc_buffer devices = {0};
    mc_rdma_put_devices(server->rdma, &devices);
    mc_rdma_remote_begin(text, mc_span(devices.data, devices.length));
    mc_rdma_remote_region(text, mc_rdma_memory_remote(server->rdma_data));
    mc_rdma_remote_region(text, mc_rdma_memory_remote(server->rdma_index));
    mc_rdma_remote_end(text);
    mc_buffer_free(&devices);
    return 0;
}

/* Answered at once: on such a connection nothing else is asked meanwhile. */
static int rdma_handle(struct mc_serve_lane *lane, uint64_t request_id, struct mc_reader *reader)
{
    struct mc_wire_rdma_text offer;
    struct mc_buffer text = {0};
    mc_wire_rdma_text_read(reader, &offer);
    if (reader->bad || mc_reader_left(reader) != 0 || lane->is_unix || lane->queue_count > 0 || lane->read.active ||
        lane->out.length >= MC_LANE_OUT_MAX)
        return MC_ERR_PROTOCOL;
    int code = rdma_answer(lane, offer.text, &text);
    struct mc_wire_rdma_text answer = {.code = code, .text = mc_span(text.data, text.length)};
    mc_wire_rdma_text_frame(&lane->out, mc_frame_begin(&lane->out, MC_MESSAGE_RDMA_ANSWER, request_id), &answer);
    mc_buffer_free(&text);
    return 0;
}

static int frame_handle(struct mc_serve_lane *lane, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    if (!lane->is_open && !lane->is_proved && (lane->server->wants_tickets || frame->type == MC_MESSAGE_AUTH))
        return gate_handle(lane, frame);
    if (!lane->is_open)
        return hello_handle(lane, frame);
    switch (frame->type) {
    case MC_MESSAGE_COMMIT: /* what needs a right that it has not is asked for by nobody who was granted a place */
        return may(lane, frame->type) ? commit_handle(lane, frame, &reader) : MC_ERR_NOT_PERMITTED;
    case MC_MESSAGE_WRITE:
        return may(lane, frame->type) ? write_handle(lane, frame->request_id, &reader) : MC_ERR_NOT_PERMITTED;
    case MC_MESSAGE_READ:
        return !may(lane, frame->type) ? MC_ERR_NOT_PERMITTED : read_handle(lane, frame->request_id, &reader);
    case MC_MESSAGE_TRACE:
        return mc_lane_trace_hear(lane, frame);
    case MC_MESSAGE_RDMA_OFFER:
        return rdma_handle(lane, frame->request_id, &reader);
    case MC_MESSAGE_ATTACH:
        if (!lane->is_unix)
            return MC_ERR_PROTOCOL;
        /* fallthrough */
    case MC_MESSAGE_PING:
        if (mc_wire_check(frame->type, frame->body) < 0)
            return MC_ERR_PROTOCOL;
        return queue_push(lane, (struct mc_lane_request){.request_id = frame->request_id, .type = frame->type});
    default:
        return MC_ERR_PROTOCOL;
    }
}

/* Links are ended with the grants of their writers, by the thread that ends these. */
static bool is_for_other(const struct mc_serve_lane *lane, const struct mc_frame *frame)
{
    return lane->is_open && frame->type == MC_MESSAGE_RDMA_OFFER && lane->server->hand_over != NULL;
}

/* ---- input ---- */

bool mc_lane_wants_input(const struct mc_serve_lane *lane)
{
    return lane->queue_count < MC_LANE_QUEUE_MAX && !lane->is_ending && !lane->is_leaving;
}

bool mc_lane_takes_much(const struct mc_serve_lane *lane)
{
    return lane->write.left > MC_LANE_COPY_MAX;
}
bool mc_lane_gives_much(const struct mc_serve_lane *lane)
{
    return lane->read.active;
}

/* While a data thread stores, the thread that clears may say that nobody stores there any more: so it is announced, as
 * by any writer, for the moment in which bytes that are here are stored. */
static int store_begin(struct mc_serve_lane *lane, uint64_t length)
{
    struct mc_segment_memory *memory = lane->server->memory;
    int rc = mc_segment_memory_may_write(memory, lane->write.slot, lane->write.generation, lane->write.offset, length);
    if (rc < 0 || lane->server->hand_over == NULL)
        return rc;
    rc = mc_segment_memory_write_begin(memory, &lane->write.store, lane->write.slot, lane->write.generation,
                                       lane->write.start, lane->write.length,
                                       mc_clock_ns() + ANNOUNCE_WAIT_MS * 1000000ull);
    lane->write.is_announced = rc == 0;
    return rc;
}

static void store_end(struct mc_serve_lane *lane)
{
    if (lane->write.is_announced)
        mc_segment_memory_write_end(lane->server->memory, &lane->write.store);
    lane->write.is_announced = false;
}

/* May so many of the next bytes still be stored? A grant that has ended meanwhile is no fault of the peer's, and an end
 * of the connection with bytes unread would look to it like ours: what is left is drained. */
static int payload_look(struct mc_serve_lane *lane, uint64_t length)
{
    int rc = store_begin(lane, length);
    lane->write.refused = rc == MC_ERR_STALE;
    note_refused(lane);
    return lane->write.refused ? 0 : rc;
}

int64_t mc_lane_window(struct mc_serve_lane *lane, uint8_t **target)
{
    *target = NULL;
    /* What is held in `in` comes first; while payload is outstanding there is nothing in it. */
    if (lane->write.left == 0 || lane->write.refused || lane->in.length > 0)
        return 0;
    int rc = payload_look(lane, lane->write.left);
    if (rc < 0 || lane->write.refused)
        return rc;
    *target = mc_segment_memory_data(lane->server->memory) + lane->write.offset;
    return (int64_t)lane->write.left;
}

void mc_lane_window_filled(struct mc_serve_lane *lane, uint64_t length)
{
    store_end(lane);
    mc_assert(length <= lane->write.left);
    lane->write.left -= length;
    lane->write.offset += length;
    if (lane->write.left == 0 && lane->write.is_part) /* nothing else was taken in meanwhile: it is the last one */
        lane->queue[(lane->queue_first + lane->queue_count - 1) % lane->queue_capacity].is_refused =
            lane->write.refused;
}

/* Takes payload that came in with frames. Returns how many bytes, or negative. */
static int64_t payload_take(struct mc_serve_lane *lane, const uint8_t *data, size_t length)
{
    uint64_t count = length < lane->write.left ? length : lane->write.left;
    int rc = lane->write.refused ? 0 : payload_look(lane, count);
    if (rc < 0)
        return rc;
    if (!lane->write.refused)
        memcpy(mc_segment_memory_data(lane->server->memory) + lane->write.offset, data, count);
    mc_lane_window_filled(lane, count);
    return (int64_t)count;
}

/* Handles what is whole in data. Returns how many bytes are done with, or negative. */
static int64_t input_parse(struct mc_serve_lane *lane, const uint8_t *data, size_t length)
{
    size_t at = 0;
    while (at < length && mc_lane_wants_input(lane)) {
        if (lane->write.left > 0) {
            int64_t taken = payload_take(lane, data + at, length - at);
            if (taken < 0)
                return taken;
            at += (size_t)taken;
            continue;
        }
        struct mc_frame frame;
        size_t used;
        int found = lane->is_open ? mc_frame_parse(data + at, length - at, &frame, &used)
                                  : mc_frame_parse_hello(data + at, length - at, &frame, &used);
        if (found < 0 || used > MC_FRAME_HEADER_SIZE + MC_LANE_BODY_MAX)
            return MC_ERR_PROTOCOL;
        if (found == 0)
            break;
        lane->is_leaving = is_for_other(lane, &frame);
        if (lane->is_leaving)
            break;
        int rc = frame_handle(lane, &frame);
        if (rc < 0)
            return rc;
        at += used;
    }
    return (int64_t)at;
}

static int input_resume(struct mc_serve_lane *lane)
{
    int64_t used = input_parse(lane, lane->in.data, lane->in.length);
    if (used < 0)
        return (int)used;
    if (lane->traced != NULL)
        mc_lane_trace_look(lane);
    mc_buffer_consume(&lane->in, (size_t)used);
    if (lane->in.length == 0 && lane->in.capacity > IN_KEEP_BYTES)
        mc_buffer_free(&lane->in);
    return 0;
}

int mc_lane_input(struct mc_serve_lane *lane, const uint8_t *data, size_t length)
{
    if (lane->is_ending) /* refused: what follows is not looked at */
        return 0;
    if (lane->in.length > 0) {
        mc_buffer_append(&lane->in, data, length);
        return lane->in.failed ? MC_ERR_NO_MEMORY : input_resume(lane);
    }
    int64_t used = input_parse(lane, data, length);
    if (used < 0)
        return (int)used;
    if (lane->traced != NULL)
        mc_lane_trace_look(lane);
    mc_buffer_append(&lane->in, data + used, length - (size_t)used);
    return lane->in.failed ? MC_ERR_NO_MEMORY : 0;
}

/* ---- output ---- */

static size_t code_frame_write(struct mc_buffer *out, enum mc_message type, uint64_t request_id, int code)
{
    struct mc_wire_code head = {.code = code};
    size_t start = mc_frame_begin(out, type, request_id);
    mc_wire_code_frame(out, start, &head);
    return out->length - start;
}

static const struct mc_slot *request_slot(const struct mc_serve_lane *lane, const struct mc_lane_request *request)
{
    return &mc_segment_memory_slots(lane->server->memory)[request->slot];
}

static int end_code(const struct mc_serve_lane *lane, const struct mc_lane_request *request)
{
    return mc_slot_unchanged(request_slot(lane, request), request->generation) &&
                   !mc_segment_memory_is_given_up(lane->server->memory)
               ? 0
               : MC_ERR_REPLICA_IS_GONE;
}

static int read_find(const struct mc_serve_lane *lane, const struct mc_lane_request *request, struct mc_slot *slot)
{
    if (request->is_refused)
        return MC_ERR_NOT_PERMITTED;
    if (request->slot >= mc_segment_memory_slot_count(lane->server->memory))
        return MC_ERR_INVALID_PARAMS;
    if (mc_segment_memory_is_given_up(lane->server->memory) ||
        !mc_segment_memory_slot_read(lane->server->memory, request->slot, request->generation, slot) ||
        !mc_segment_memory_contact_within(lane->server->memory, request->contact_age_max_ms))
        return MC_ERR_REPLICA_IS_GONE;
    if (request->offset > slot->length || request->length > slot->length - request->offset)
        return MC_ERR_INVALID_PARAMS;
    return 0;
}

static void read_start(struct mc_serve_lane *lane, const struct mc_lane_request *request)
{
    struct mc_slot slot;
    struct mc_wire_read_reply reply = {.code = read_find(lane, request, &slot)};
    if (reply.code == 0) {
        reply.crc = slot.crc;
        reply.length = slot.length;
        reply.hash_low = slot.hash_low;
        reply.hash_high = slot.hash_high;
        reply.block_shift = slot.block_shift;
        reply.table_length = request->table ? mc_table_length(slot.length, slot.block_shift) : 0;
        reply.payload_length = request->length;
    }
    mc_wire_read_reply_frame(&lane->out, mc_frame_begin(&lane->out, MC_MESSAGE_READ_REPLY, request->request_id),
                             &reply);
    if (lane->traced != NULL)
        mc_lane_trace_answer(lane, reply.code, reply.payload_length);
    if (reply.code < 0)
        return;
    const uint8_t *extent = mc_segment_memory_data(lane->server->memory) + slot.offset;
    const uint8_t *table = extent + mc_table_offset(slot.length);
    if (reply.table_length + reply.payload_length <= MC_LANE_COPY_MAX) {
        mc_buffer_append(&lane->out, table, reply.table_length);
        mc_buffer_append(&lane->out, extent + request->offset, reply.payload_length);
        code_frame_write(&lane->out, MC_MESSAGE_READ_END, request->request_id, end_code(lane, request));
        return;
    }
    lane->read.active = true;
    lane->read.request = *request;
    lane->read.table = table;
    lane->read.table_left = reply.table_length;
    lane->read.payload = extent + request->offset;
    lane->read.payload_left = reply.payload_length;
}

/* An entry in the table of writers for the life of the connection. 0 or MC_ERR_BUSY. */
static int writer_start(struct mc_serve_lane *lane)
{
    if (lane->attached != NULL)
        return 0;
    int entry = mc_segment_memory_writer_add(lane->server->memory, lane->peer, lane->peer_incarnation);
    if (entry < 0) {
        mc_log_limited(WARNING, "more than %u processes of this host are attached: one more has to use tcp",
                       MC_WRITERS_MAX - 1);
        return entry;
    }
    lane->attached = lane->server->memory;
    lane->writer = (uint32_t)entry;
    return 0;
}

static void attach_start(struct mc_serve_lane *lane, const struct mc_lane_request *request)
{
    struct mc_segment_memory *memory = lane->server->memory;
    int code = may(lane, MC_MESSAGE_ATTACH) ? writer_start(lane) : MC_ERR_NOT_PERMITTED;
    struct mc_wire_attach_reply reply = {.code = code,
                                         .segment_id = mc_segment_memory_id(memory),
                                         .data_size = mc_segment_memory_data_size(memory),
                                         .capacity = mc_segment_memory_capacity(memory),
                                         .slot_count = mc_segment_memory_slot_count(memory),
                                         .writer = lane->writer};
    mc_wire_attach_reply_frame(&lane->out, mc_frame_begin(&lane->out, MC_MESSAGE_ATTACH_REPLY, request->request_id),
                               &reply);
    lane->out_has_fds = code == 0;
}

/* Makes answers until enough is there to send. */
static void output_fill(struct mc_serve_lane *lane)
{
    while (lane->queue_count > 0 && !lane->read.active && lane->out.length < MC_LANE_OUT_MAX && !lane->out_has_fds) {
        const struct mc_lane_request *request = &lane->queue[lane->queue_first];
        if (request->type == MC_MESSAGE_WRITE) {
            if (lane->write.is_part && lane->queue_count == 1 && lane->write.left > 0) /* more of it is to come */
                return;
            code_frame_write(&lane->out, MC_MESSAGE_WRITE_END, request->request_id,
                             request->is_refused ? MC_ERR_STALE : 0);
        } else if (request->type == MC_MESSAGE_ATTACH) {
            if (lane->out.length >
                0) /* descriptors go with the first byte of their answer: send what is before it first */
                return;
            attach_start(lane, request);
        } else if (request->type == MC_MESSAGE_PING) {
            mc_frame_bare(&lane->out, MC_MESSAGE_PONG, request->request_id);
        } else {
            read_start(lane, request);
        }
        lane->queue_first = (lane->queue_first + 1) % lane->queue_capacity;
        lane->queue_count--;
    }
}

/* The last of the payload goes as a copy, and READ_END behind it: so the slot is looked at when the last byte was taken
 * from the segment, whatever clears it meanwhile. */
static void read_finish(struct mc_serve_lane *lane)
{
    mc_buffer_append(&lane->out, lane->read.payload, lane->read.payload_left);
    code_frame_write(&lane->out, MC_MESSAGE_READ_END, lane->read.request.request_id,
                     end_code(lane, &lane->read.request));
    lane->read.active = false;
    output_fill(lane);
}

static void part_add(struct iovec *parts, size_t *count, const void *data, uint64_t length)
{
    if (length > 0)
        parts[(*count)++] = (struct iovec){(void *)(uintptr_t)data, (size_t)length};
}

size_t mc_lane_output(struct mc_serve_lane *lane, struct iovec *parts, uint64_t budget, bool *with_fds)
{
    size_t count = 0;
    output_fill(lane);
    while (lane->read.active && lane->read.table_left == 0 && lane->read.payload_left <= MC_LANE_COPY_MAX &&
           lane->out.length < MC_LANE_OUT_MAX)
        read_finish(lane);
    if (lane->out.failed) { /* answers are missing: nothing more is sent */
        lane->is_ending = true;
        lane->read.active = false;
        lane->out.length = lane->out_sent = 0;
    }
    *with_fds = lane->out_has_fds;
    if (lane->out.length > 0)
        part_add(parts, &count, lane->out.data + lane->out_sent, lane->out.length - lane->out_sent);
    if (lane->read.active) {
        uint64_t left = lane->read.payload_left > MC_LANE_COPY_MAX ? lane->read.payload_left - MC_LANE_COPY_MAX : 0;
        part_add(parts, &count, lane->read.table, lane->read.table_left);
        part_add(parts, &count, lane->read.payload, left < budget ? left : budget);
    }
    return count;
}

/* Takes what it can of *length off *left. */
static uint64_t sent_take(uint64_t *length, uint64_t *left)
{
    uint64_t count = *length < *left ? *length : *left;
    *length -= count;
    *left -= count;
    return count;
}

int mc_lane_sent(struct mc_serve_lane *lane, uint64_t length)
{
    uint64_t out_left = lane->out.length - lane->out_sent;
    if (length > 0)
        lane->out_has_fds = false;
    lane->out_sent += sent_take(&length, &out_left);
    if (out_left == 0)
        lane->out.length = lane->out_sent = 0;
    if (lane->read.active) {
        lane->read.table += sent_take(&length, &lane->read.table_left);
        lane->read.payload += sent_take(&length, &lane->read.payload_left);
    }
    if (lane->traced != NULL)
        mc_lane_trace_look(lane);
    return lane->in.length > 0 && mc_lane_wants_input(lane) ? input_resume(lane) : 0;
}

bool mc_lane_has_ended(const struct mc_serve_lane *lane)
{
    return lane->is_ending && lane->out.length == 0;
}

bool mc_lane_is_resting(const struct mc_serve_lane *lane)
{
    return lane->is_open && lane->attached == NULL && lane->served == NULL && lane->in.length == 0 &&
           lane->write.left == 0 && lane->queue_count == 0 && !lane->read.active && lane->out.length == 0;
}

bool mc_lane_is_owed(const struct mc_serve_lane *lane)
{
    return lane->attached == NULL && lane->served == NULL &&
           (lane->write.left > 0 || (lane->in.length > 0 && mc_lane_wants_input(lane)));
}

void mc_lane_settle(struct mc_serve_lane *lane)
{
    mc_assert(mc_lane_is_resting(lane));
    if (lane->traced != NULL)
        mc_lane_trace_free(lane);
    mc_buffer_free(&lane->in);
    mc_buffer_free(&lane->out);
    free(lane->queue);
    lane->queue = NULL;
    lane->queue_first = lane->queue_capacity = 0;
}
