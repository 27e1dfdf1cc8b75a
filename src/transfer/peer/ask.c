/* The asking half of the handshake: one connection for each question. */
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/metadata.h"
#include "transfer/wire/preface.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/secure.h"

#include <stdlib.h>

#define PORT_DEFAULT 12001
#define RECEIVE_BYTES 65536u
#define ANSWER_MS 10000u
#define WATCH_MS 1000u

/* P2P: the target's name is its address. */
static int name_as_address(const char *target, char *address, size_t size)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = PORT_DEFAULT;
    if (mc_address_split(target, host, sizeof(host) - 8, &port) < 0 || port == 0)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    mc_address_join(address, size, host, port);
    return 0;
}

static const char *plain(const char *target)
{
    return target[0] == '/' ? target + 1 : target;
}

int mc_ask_failed(const char *target, int rc)
{
    if (rc < 0 && rc != MC_TRANSFER_ERR_METADATA && rc != MC_TRANSFER_ERR_MALFORMED_JSON &&
        rc != MC_TRANSFER_ERR_NOT_IMPLEMENTED)
        mc_log_limited(ERROR, "%s cannot be reached: %s", target, mc_transfer_error_text(rc));
    return rc;
}

int mc_ask_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                   size_t size)
{
    char key[MC_TRANSFER_KEY_MAX], host[MC_ADDRESS_MAX - 8];
    struct mc_buffer value = {0};
    uint16_t port = 0;
    if (engine->metadata.is_p2p)
        return name_as_address(plain(target), address, size);
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, plain(target));
    int rc = mc_metadata_ask(&engine->metadata, key, deadline_ns, &value) == 1 ? 0 : MC_TRANSFER_ERR_METADATA;
    if (rc == 0)
        rc = mc_rpc_meta_read(mc_span(value.data, value.length), host, sizeof(host), &port);
    if (rc == 0)
        mc_address_join(address, size, host, port);
    else if (rc == MC_TRANSFER_ERR_MALFORMED_JSON)
        mc_log_limited(ERROR, "what the metadata server says of %s makes no sense", target);
    mc_buffer_free(&value);
    return rc;
}

/* Does it say that an answer is of no use any more? It is asked now and then. */
static bool is_useless(struct mc_ask_watch *watch)
{
    if (watch == NULL || mc_clock_ns() < watch->next_ns)
        return false;
    bool is_useless = watch->is_useless(watch->context);
    watch->next_ns = mc_clock_ns() + WATCH_MS * 1000000ull;
    return is_useless;
}

struct wait {
    const _Atomic bool *is_closing;
    struct mc_ask_watch *watch;
};

static bool is_given_up(void *context)
{
    const struct wait *wait = context;
    return *wait->is_closing || is_useless(wait->watch);
}

/* Looks now and then whether the engine is being closed. */
static int64_t receive_some(int fd, struct mc_buffer *in, uint64_t deadline_ns, const _Atomic bool *is_closing,
                            struct mc_ask_watch *watch)
{
    if (!mc_buffer_reserve(in, RECEIVE_BYTES))
        return MC_ERR_NO_MEMORY;
    for (;;) {
        uint64_t until_ns = mc_clock_ns() + MC_TRANSFER_LOOK_MS * 1000000ull;
        bool is_last = deadline_ns <= until_ns || *is_closing || is_useless(watch);
        int64_t got = mc_socket_receive(fd, in->data + in->length, RECEIVE_BYTES,
                                        deadline_ns < until_ns ? deadline_ns : until_ns, NULL);
        if (got != MC_ERR_RPC_TIMEOUT || is_last)
            return got;
    }
}

static int receive_frame(int fd, uint64_t deadline_ns, const _Atomic bool *is_closing, struct mc_ask_watch *watch,
                         struct mc_buffer *in, struct mc_handshake *frame)
{
    for (;;) {
        int rc = mc_handshake_read(mc_span(in->data, in->length), MC_HANDSHAKE_LENGTH_MAX, frame);
        if (rc != 0)
            return rc;
        int64_t got = receive_some(fd, in, deadline_ns, is_closing, watch);
        if (got < 0)
            return (int)got;
        in->length += (size_t)got;
    }
}

static int code_of(int rc)
{
    bool is_refused = rc == MC_ERR_PROTOCOL || rc == MC_ERR_NOT_PERMITTED;
    return is_refused ? MC_TRANSFER_ERR_REJECT_HANDSHAKE : MC_TRANSFER_ERR_SOCKET;
}

static int ask_on(struct mc_transfer_engine *engine, int fd, enum mc_handshake_type type, struct mc_span json,
                  uint64_t deadline_ns, struct mc_ask_watch *watch, struct mc_buffer *reply)
{
    struct mc_buffer out = {0}, in = {.may_fail = true};
    struct mc_handshake frame = {0};
    mc_handshake_write(&out, type, false, json);
    struct iovec part = {out.data, out.length};
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    if (rc == 0)
        rc = receive_frame(fd, deadline_ns, &engine->is_closing, watch, &in, &frame);
    reply->may_fail = true; /* the peer chooses how much it says */
    if (rc == 1)
        mc_buffer_append(reply, frame.json.data, frame.json.length);
    if (reply->failed)
        rc = MC_ERR_NO_MEMORY;
    else if (rc == MC_ERR_PROTOCOL && mc_preface_is_refusal(mc_span(in.data, in.length)))
        mc_log_limited(ERROR, "a peer asks for a key that it knows: set MC_AUTH_FILE or MC_AUTH_TOKEN here");
    else if (rc < 0)
        mc_secure_note(fd, in.data, in.length, false);
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    return rc == 1 ? 0 : code_of(rc);
}

int mc_ask_on(struct mc_transfer_engine *engine, int fd, enum mc_handshake_type type, struct mc_span json,
              uint64_t deadline_ns, struct mc_buffer *reply)
{
    return ask_on(engine, fd, type, json, deadline_ns, NULL, reply);
}

/* Before anything else, where others are called by TLS. */
static int begin_tls(int fd, const char *address, uint64_t deadline_ns, struct wait *wait)
{
    int rc = mc_secure_call(fd, address);
    if (rc < 0)
        return rc;
    while ((rc = mc_secure_shake(fd)) == 0) {
        uint64_t until_ns = mc_clock_ns() + MC_TRANSFER_LOOK_MS * 1000000ull;
        bool is_last = deadline_ns <= until_ns || is_given_up(wait);
        rc = mc_socket_wait_read(fd, deadline_ns < until_ns ? deadline_ns : until_ns, NULL);
        if (rc < 0 && (rc != MC_ERR_RPC_TIMEOUT || is_last))
            return rc;
    }
    return rc < 0 ? rc : 0;
}

static int prove(struct mc_transfer_engine *engine, int fd, enum mc_preface_port port, const char *address,
                 uint64_t deadline_ns, struct mc_ask_watch *watch)
{
    struct wait wait = {&engine->is_closing, watch};
    int rc = begin_tls(fd, address, deadline_ns, &wait);
    if (rc == 0)
        rc = mc_preface_prove(fd, port, address, deadline_ns, is_given_up, &wait);
    return rc < 0 ? code_of(rc) : 0;
}

int mc_ask_prove(struct mc_transfer_engine *engine, int fd, enum mc_preface_port port, const char *address,
                 uint64_t deadline_ns)
{
    return prove(engine, fd, port, address, deadline_ns, NULL);
}

/* While it is watched a try ends when the watch is due; what a lost packet costs is the same. */
static int connect_to(const struct mc_transfer_engine *engine, const char *address, uint64_t deadline_ns,
                      struct mc_ask_watch *watch)
{
    for (;;) {
        bool is_last = watch == NULL || deadline_ns <= watch->next_ns;
        int fd = mc_tcp_connect(address, is_last ? deadline_ns : watch->next_ns);
        if (is_last || fd != MC_ERR_RPC_TIMEOUT || engine->is_closing || is_useless(watch))
            return fd;
    }
}

int mc_ask_watched(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type,
                   struct mc_span json, uint64_t deadline_ns, struct mc_ask_watch *watch, struct mc_buffer *reply)
{
    uint64_t now_ns = mc_clock_ns(), connect_ns = now_ns + engine->settings.handshake_connect_ms * 1000000ull;
    uint64_t answer_ns = connect_ns + ANSWER_MS * 1000000ull;
    if (watch != NULL)
        watch->next_ns = now_ns + WATCH_MS * 1000000ull;
    int fd = connect_to(engine, address, connect_ns < deadline_ns ? connect_ns : deadline_ns, watch);
    if (fd < 0)
        return MC_TRANSFER_ERR_SOCKET;
    mc_transfer_note_fd(fd);
    answer_ns = answer_ns < deadline_ns ? answer_ns : deadline_ns;
    int rc = prove(engine, fd, MC_PREFACE_HANDSHAKE, address, answer_ns, watch);
    if (rc == 0)
        rc = ask_on(engine, fd, type, json, answer_ns, watch, reply);
    mc_transfer_close_fd(fd);
    return rc;
}

int mc_ask(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type, struct mc_span json,
           uint64_t deadline_ns, struct mc_buffer *reply)
{
    return mc_ask_watched(engine, address, type, json, deadline_ns, NULL, reply);
}

/* ---- a metadata server that is away ---- */

/* Asks a peer that we know who it is, where its handshakes went when that server last told us. 0: it has the name
 * still; and, is_same, is the engine that we know. Free the document in every case. */
static int ask_remembered(struct mc_transfer_engine *engine, const char *target, bool is_same, uint64_t deadline_ns,
                          struct mc_document *document, char *address, size_t size)
{
    struct mc_buffer value = {0};
    struct mc_id id;
    *document = (struct mc_document){0};
    int rc = mc_peer_remembered(engine, target, address, size, &id) ? 0 : MC_TRANSFER_ERR_METADATA;
    if (rc == 0)
        rc = mc_ask(engine, address, MC_HANDSHAKE_METADATA, mc_span("{}", 2), deadline_ns, &value);
    if (rc == 0)
        rc = mc_document_read(mc_span(value.data, value.length), document);
    if (rc == 0 && (strcmp(document->name, plain(target)) != 0 || (is_same && !mc_id_equal(document->id, id))))
        rc = MC_TRANSFER_ERR_METADATA;
    mc_buffer_free(&value);
    return rc;
}

/* The address of the very engine that we know. */
static int remembered_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                              char *address, size_t size)
{
    struct mc_document document;
    int rc = ask_remembered(engine, target, true, deadline_ns, &document, address, size);
    mc_document_free(&document);
    return rc;
}

int mc_ask_peer_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                        size_t size)
{
    bool is_away = !engine->metadata.is_p2p && mc_metadata_is_away(&engine->metadata);
    if (is_away && remembered_address(engine, target, deadline_ns, address, size) == 0)
        return 0;
    int rc = mc_ask_address(engine, target, deadline_ns, address, size);
    if (rc == MC_TRANSFER_ERR_METADATA && !is_away &&
        remembered_address(engine, target, deadline_ns, address, size) == 0)
        rc = 0;
    return rc;
}

/* ---- documents ---- */

static int ask_server(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                      struct mc_document *document, char *address, size_t size)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    bool is_away = mc_metadata_is_away(&engine->metadata);
    if (is_away && ask_remembered(engine, target, false, deadline_ns, document, address, size) == 0)
        return 0;
    if (is_away)
        mc_document_free(document);
    address[0] = 0;
    *document = (struct mc_document){0};
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, plain(target));
    int rc = mc_metadata_ask(&engine->metadata, key, deadline_ns, &value);
    if (rc == 1)
        rc = mc_document_read(mc_span(value.data, value.length), document);
    else if (rc < 0 && !is_away)
        rc = ask_remembered(engine, target, false, deadline_ns, document, address, size) == 0 ? 0 : rc;
    else
        rc = MC_TRANSFER_ERR_METADATA;
    mc_buffer_free(&value);
    return rc;
}

static int ask_peer(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                    struct mc_document *document, char *address, size_t size)
{
    struct mc_buffer value = {0};
    int rc = name_as_address(plain(target), address, size);
    if (rc == 0)
        rc = mc_ask(engine, address, MC_HANDSHAKE_METADATA, mc_span("{}", 2), deadline_ns, &value);
    if (rc == 0)
        rc = mc_document_read(mc_span(value.data, value.length), document);
    mc_buffer_free(&value);
    return rc;
}

int mc_ask_document(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                    struct mc_document *document, char *address, size_t size)
{
    address[0] = 0;
    *document = (struct mc_document){0};
    int rc = engine->metadata.is_p2p ? ask_peer(engine, target, deadline_ns, document, address, size)
                                     : ask_server(engine, target, deadline_ns, document, address, size);
    if (rc == MC_TRANSFER_ERR_MALFORMED_JSON)
        mc_log_limited(ERROR, "the document of %s makes no sense", target);
    return rc;
}

/* ---- questions of the API ---- */

int mc_transfer_probe(struct mc_transfer_engine *engine, const char *target)
{
    char address[MC_ADDRESS_MAX];
    struct mc_buffer reply = {0};
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_ask_address(engine, target, UINT64_MAX, address, sizeof(address));
    if (rc == 0)
        rc = mc_ask(engine, address, MC_HANDSHAKE_PROBE, mc_span("{}", 2),
                    mc_clock_ns() + engine->settings.handshake_connect_ms * 1000000ull, &reply);
    mc_buffer_free(&reply);
    return mc_ask_failed(target, rc);
}

bool mc_ask_is_note(const struct mc_transfer_note *note)
{
    return note == NULL || (note->name != NULL && note->message != NULL);
}

int mc_transfer_notify(struct mc_transfer_engine *engine, const char *target, const struct mc_transfer_note *note)
{
    char address[MC_ADDRESS_MAX];
    struct mc_buffer json = {0}, reply = {0};
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target) || !mc_ask_is_note(note) || note == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    mc_handshake_write_note(&json, note->name, note->message);
    uint64_t allowed_ns = engine->settings.handshake_connect_ms * 1000000ull;
    int rc = mc_ask_peer_address(engine, target, mc_clock_ns() + allowed_ns, address, sizeof(address));
    if (rc == 0)
        rc = mc_ask(engine, address, MC_HANDSHAKE_NOTIFY, mc_span(json.data, json.length), mc_clock_ns() + allowed_ns,
                    &reply);
    mc_buffer_free(&json);
    mc_buffer_free(&reply);
    return mc_ask_failed(target, rc);
}

int mc_transfer_take_note(struct mc_transfer_engine *engine, char **name, char **message)
{
    if (!mc_transfer_alive(engine) || name == NULL || message == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&engine->lock);
    struct mc_notification *note = engine->notes;
    if (note != NULL) {
        engine->notes = note->next;
        if (engine->notes == NULL)
            engine->notes_end = &engine->notes;
        engine->note_count--;
        engine->note_bytes -= mc_note_bytes(note);
        engine->note_shares[note->share] -= mc_note_bytes(note);
    }
    pthread_mutex_unlock(&engine->lock);
    if (note == NULL)
        return 0;
    *name = note->name;
    *message = note->message;
    free(note);
    return 1;
}
