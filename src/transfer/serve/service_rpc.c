/* The answering half of the handshake. */
#include "transfer/peer/settle.h"
#include "transfer/serve/memory.h"
#include "transfer/serve/service_inside.h"
#include "rdma/link.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/secure.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define NO_RDMA                                                                                                        \
    "{\"local_gid\":\"\",\"local_lid\":0,\"local_nic_path\":\"\",\"payload\":\"\",\"peer_nic_path\":\"\",\"qp_num\":[" \
    "],"                                                                                                               \
    "\"reply_msg\":\"this engine has no RDMA\"}"
#define NOTE_TAKEN "{\"name\":\"\",\"notify_msg\":\"success\"}"
#define LEAVING "{\"mooncake_c\":{\"leaving\":true},\"qp_num\":[],\"reply_msg\":\"\"}" /* said unasked */
#define ALIVE "{\"status\":\"success\"}"

static int take_note(const struct mc_service_connection *connection, struct mc_span json)
{
    struct mc_transfer_engine *engine = connection->service->engine;
    struct mc_notification *note = calloc(1, sizeof(*note));
    int rc = note == NULL ? MC_ERR_NO_MEMORY : mc_handshake_read_note(json, &note->name, &note->message);
    if (rc < 0) {
        free(note);
        return rc;
    }
    /* A note says that something was written; what it was must be seen by who reads the note. */
    if (mc_gpu_flush(engine->direct_devices) < 0)
        mc_log_limited(ERROR, "what a peer has written to a GPU may not be seen there yet");
    pthread_mutex_lock(&engine->lock);
    note->share = connection->share % MC_NOTE_SHARES;
    size_t bytes = mc_note_bytes(note), *share = &engine->note_shares[note->share];
    bool is_full = !mc_service_has_share(*share + bytes, engine->note_bytes + bytes, MC_TRANSFER_NOTES_BYTES);
    if (!is_full) {
        engine->note_bytes += bytes;
        *share += bytes;
        *engine->notes_end = note;
        engine->notes_end = &note->next;
        engine->note_count++;
    }
    pthread_mutex_unlock(&engine->lock);
    if (!is_full)
        return 0;
    mc_log_limited(ERROR, "a note of a peer is refused: nobody takes those that are here, of its address too many");
    free(note->name);
    free(note->message);
    free(note);
    return MC_ERR_BUSY;
}

/* How many numbers, all of which are some of a connection's; 0: more than anybody of ours names, or something else. */
static size_t read_numbers(struct mc_span list, uint64_t numbers[MC_SETTLE_NUMBERS_MAX])
{
    struct mc_json_cursor element;
    size_t count = 0;
    bool is_fine = mc_json_open(list, '[', &element) == 0;
    for (; is_fine && mc_json_next(&element) == 1; count++)
        is_fine =
            count < MC_SETTLE_NUMBERS_MAX && mc_json_number(&element, &numbers[count]) == 0 && numbers[count] != 0;
    return is_fine ? count : 0;
}

/* Connections that their other end has given up: they are cut, or are when they come. False: it is another question, or
 * they cannot be. */
static bool answer_cut(struct mc_service_connection *connection, struct mc_span json, struct mc_buffer *out)
{
    struct mc_id id = connection->service->engine->id;
    uint64_t lanes[MC_SETTLE_NUMBERS_MAX];
    struct mc_span list;
    size_t count = mc_json_find(json, "mooncake_c.cut", &list) == 1 ? read_numbers(list, lanes) : 0;
    bool is_cut = count > 0 && mc_service_cut_lanes(connection, lanes, count);
    if (is_cut)
        mc_buffer_printf(out,
                         "{\"mooncake_c\":{\"cut\":\"%016" PRIx64 "%016" PRIx64 "\"},\"qp_num\":[],\"reply_msg\":\"\"}",
                         id.high, id.low);
    return is_cut;
}

static void send_answer(struct mc_service_connection *connection)
{
    ssize_t sent = mc_socket_sends(connection->fd, connection->out.data, connection->out.length);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR)
            mc_connection_drop(connection);
        return;
    }
    mc_buffer_consume(&connection->out, (size_t)sent);
    if (connection->out.length > 0)
        return;
    if (connection->served != NULL) { /* lives as long as the link, and takes further offers */
        connection->deadline_ms = 0;
        return;
    }
    /* The peer hangs up first, so that the port in TIME_WAIT is its own. */
    (void)shutdown(connection->fd, SHUT_WR);
    connection->is_draining = true;
    mc_places_turn(connection, true);
}

/* A pair of that connection's link has been set up, or not. On a thread of the link. */
static void link_has_news(void *context)
{
    struct mc_service_connection *connection = context;
    atomic_store(&connection->has_news, true);
    mc_service_wake(connection->service);
}

/* An offer of a link: true, and what it asks for is being set up, by other threads: a driver may sleep for seconds.
 * Anything else, or no RDMA here: says so. */
static bool take_offer(struct mc_service_connection *connection, struct mc_span json, struct mc_buffer *out)
{
    struct mc_service *service = connection->service;
    struct mc_span offer, hears;
    if (answer_cut(connection, json, out))
        return false;
    (void)mc_json_find_number(json, "mooncake_c.lane", &connection->lane);
    bool is_late = connection->lane != 0 && mc_service_is_cut(service, connection->lane);
    connection->is_new = connection->served == NULL;
    if (service->engine->rdma == NULL || is_late || service->engine->is_leaving ||
        mc_json_find(json, "mooncake_c.rdma", &offer) != 1 ||
        mc_rdma_link_serve(service->engine->rdma, &connection->served, offer, link_has_news, connection) < 0) {
        mc_buffer_printf(out, NO_RDMA);
        return false;
    }
    if (!connection->is_heard && mc_json_find(json, "mooncake_c.hears", &hears) == 1) {
        connection->is_heard = true;
        service->engine->heard_links++;
    }
    connection->has_news = true;
    connection->is_answering = true;
    connection->next_answering = service->answering;
    service->answering = connection;
    return true;
}

void mc_rpc_tell_leaving(struct mc_service_connection *connection)
{
    mc_handshake_write(&connection->out, MC_HANDSHAKE_CONNECTION, false, mc_span_string(LEAVING));
    send_answer(connection);
}

bool mc_rpc_answer(struct mc_service_connection *connection)
{
    struct mc_transfer_engine *engine = connection->service->engine;
    struct mc_buffer text = {0}, json = {0};
    uint64_t now_ns = mc_clock_ns();
    bool has_news = atomic_exchange(&connection->has_news, false);
    if (!has_news && now_ns < connection->answer_ns)
        return false;
    connection->answer_ns = mc_rdma_link_answer_due_ns(connection->served);
    if (now_ns < connection->answer_ns)
        return false;
    int rc = mc_rdma_link_put_answer(connection->served, &text);
    if (rc < 0 && connection->is_new) {
        mc_rdma_link_close(connection->served);
        connection->served = NULL;
    }
    if (text.length == 0)
        mc_buffer_printf(&json, NO_RDMA);
    else
        mc_buffer_printf(&json,
                         "{\"mooncake_c\":{\"rdma\":%.*s,\"id\":\"%016" PRIx64 "%016" PRIx64
                         "\"},\"qp_num\":[],\"reply_msg\":\"%s\"}",
                         (int)text.length, text.data, engine->id.high, engine->id.low,
                         rc == 0 || connection->served != NULL ? "" : mc_error_name(rc));
    mc_handshake_write(&connection->out, connection->answer_type, connection->is_old, mc_span(json.data, json.length));
    mc_buffer_free(&json);
    mc_buffer_free(&text);
    connection->deadline_ms = mc_clock_ms() + MC_SERVICE_HANDSHAKE_MS;
    send_answer(connection);
    return true;
}

/* A link of RDMA reads and writes by itself, whatever is asked of it; what else such a question may be (to cut a
 * connection, whose number only its other end knows) needs no right. */
static unsigned right_of(const struct mc_handshake *frame)
{
    struct mc_span offer;
    switch (frame->type) {
    case MC_HANDSHAKE_METADATA:
        return MC_RIGHT_READ;
    case MC_HANDSHAKE_NOTIFY:
        return MC_RIGHT_WRITE;
    case MC_HANDSHAKE_CONNECTION:
    case MC_HANDSHAKE_TYPES:
        return mc_json_find(frame->json, "mooncake_c.rdma", &offer) == 1 ? MC_RIGHT_READ | MC_RIGHT_WRITE : 0;
    case MC_HANDSHAKE_PROBE:
        break;
    }
    return 0;
}

static int answer(struct mc_service_connection *connection, const struct mc_handshake *frame)
{
    unsigned needed = right_of(frame);
    if ((connection->rights & needed) != needed) {
        mc_log_limited(WARNING, "a peer is refused: its key has no right to what it asks for");
        return MC_ERR_NOT_PERMITTED;
    }
    struct mc_transfer_engine *engine = connection->service->engine;
    struct mc_buffer document = {0};
    struct mc_span text = {NULL, 0};
    bool is_later = false;
    int rc = 0;
    switch (frame->type) {
    case MC_HANDSHAKE_METADATA:
        mc_transfer_document(engine, &document);
        text = mc_span(document.data, document.length);
        break;
    case MC_HANDSHAKE_NOTIFY:
        rc = take_note(connection, frame->json);
        text = mc_span_string(NOTE_TAKEN);
        break;
    case MC_HANDSHAKE_PROBE:
        text = mc_span_string(ALIVE);
        break;
    case MC_HANDSHAKE_CONNECTION:
    case MC_HANDSHAKE_TYPES:
        connection->answer_type = frame->type;
        connection->is_old = frame->is_old;
        is_later = take_offer(connection, frame->json, &document);
        text = mc_span(document.data, document.length);
        break;
    }
    if (rc == 0 && !is_later)
        mc_handshake_write(&connection->out, frame->type, frame->is_old, text);
    mc_buffer_free(&document);
    return rc;
}

/* Memory follows what has come. False: it has to end, as peers have said too much that makes no whole question yet. */
static bool keep(struct mc_service_connection *connection, size_t length)
{
    struct mc_service *service = connection->service;
    struct mc_buffer *in = &connection->in;
    size_t before = in->capacity;
    in->may_fail = true;
    mc_buffer_append(in, service->received, length);
    service->kept_bytes += in->capacity - before;
    return !in->failed && (service->kept_bytes <= MC_SERVICE_KEPT_BYTES || in->capacity <= MC_SERVICE_KEPT_EACH);
}

/* A long question was taken. */
static void give_room(struct mc_service_connection *connection)
{
    struct mc_buffer *in = &connection->in;
    if (in->length > 0 || in->capacity <= MC_SERVICE_KEPT_EACH)
        return;
    connection->service->kept_bytes -= in->capacity;
    mc_buffer_free(in);
}

/* Bytes, 0: nothing more came; negative: it is dropped. */
static ssize_t receive_part(struct mc_service_connection *connection)
{
    struct mc_service *service = connection->service;
    ssize_t received = mc_socket_recv(connection->fd, service->received, sizeof(service->received));
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) {
        mc_connection_drop(connection);
        return -1;
    }
    if (received < 0 || connection->is_draining)
        return received < 0 ? 0 : received;
    if (!keep(connection, (size_t)received)) {
        mc_log_limited(ERROR,
                       "peers have said %u MiB that are no whole questions, or memory is out: a connection is "
                       "closed",
                       MC_SERVICE_KEPT_BYTES >> 20);
        mc_connection_drop(connection);
        return -1;
    }
    return received;
}

/* False: nothing more came. Of TLS's records nothing is left where no poll sees it. */
static bool receive(struct mc_service_connection *connection)
{
    ssize_t part = receive_part(connection), received = part;
    while (part == (ssize_t)MC_SERVICE_RECEIVE_BYTES && mc_socket_hold(connection->fd, true)) {
        part = receive_part(connection);
        received += part;
    }
    if (part < 0)
        return false;
    (void)mc_socket_hold(connection->fd, false);
    return received > 0;
}

void mc_rpc_serve(struct mc_service_connection *connection, uint32_t events)
{
    struct mc_handshake frame;
    if (connection->out.length > 0) {
        if ((events & EPOLLOUT) != 0)
            send_answer(connection);
        else if ((events & (EPOLLERR | EPOLLHUP)) != 0)
            mc_connection_drop(connection);
        return;
    }
    uint64_t limit = connection->service->engine->settings.handshake_length_max;
    if (!receive(connection) || connection->is_draining)
        return;
    if (connection->is_answering) { /* it has nothing to say before, but its end */
        if (connection->in.length > limit)
            mc_connection_drop(connection);
        return;
    }
    int rc = mc_handshake_read(mc_span(connection->in.data, connection->in.length), limit, &frame);
    if (rc == 1) {
        mc_connection_asked(connection);
        int said = answer(connection, &frame);
        rc = said == 0 ? 1 : said;
    }
    if (rc == 1)
        mc_buffer_consume(&connection->in,
                          (size_t)((const uint8_t *)frame.json.data + frame.json.length - connection->in.data));
    if (rc == MC_ERR_PROTOCOL) {
        mc_secure_note(connection->fd, connection->in.data, connection->in.length, true);
        mc_log_limited(WARNING, "a peer sent what is no handshake; its connection is closed");
    }
    if (rc < 0) {
        mc_connection_drop(connection);
    } else if (rc == 1) {
        give_room(connection);
        connection->deadline_ms = mc_clock_ms() + MC_SERVICE_HANDSHAKE_MS;
        if (!connection->is_answering)
            send_answer(connection);
    }
}
