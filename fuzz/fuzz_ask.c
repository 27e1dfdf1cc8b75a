/* An engine whose peers and metadata server are hostile (transfer/peer/ask.c, peer.c, settle.c), and its lanes. First
 * byte: whether names are asked for at a metadata server; then calls, a byte each; the rest is what whoever is called
 * says, a connection or a question of the server's after the other: a kind (enum kind), a length, and so many bytes.
 * All of it lies there before the question: nobody waits. No connection leaves this process. */
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "mooncake_engine.h"
#include "transfer/peer/ask.h"
#include "transfer/peer/settle.h"
#include "transfer/state/engine.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/metadata.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS 6u
#define CONNECTIONS 32u
#define MEMORY 4096u
#define REMOTE ((uint64_t)1 << 20)
#define WAIT_NS 20000000ull
#define LATE_NS 8000000000ull /* so long after its deadline a call hangs */

/* Of what is said: a document, honest but for pairs of place and byte; that a question to cut was obeyed, likewise;
 * a frame of any type around the bytes; the bytes; nothing, and the connection is refused; the bytes, and the
 * connection of a write does not end; a document as the first one, of the original, whose connections cannot be cut. */
enum kind { KIND_DOCUMENT, KIND_CUT, KIND_FRAME, KIND_BYTES, KIND_REFUSED, KIND_OPEN, KIND_ORIGINAL, KINDS };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __wrap_mc_tcp_connect(const char *address, uint64_t deadline_ns); /* fuzz/meson.build: instead of the true one */

static struct {
    pthread_mutex_t lock; /* over what follows: lanes have threads */
    struct mc_reader in;
    bool is_writing;
    int ends[CONNECTIONS]; /* of whoever was called: kept, so that what he is told goes somewhere */
    size_t end_count;
    struct mc_transfer_engine *engine;
    uint8_t *memory;
    struct mc_buffer document, original;
    uint64_t number; /* of the input: names are its own, so that none knows what another one did */
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct mc_id peer_id = {0x0123456789abcdefu, 0xfedcba9876543210u};

/* ---- what is said ---- */

static void spoil(struct mc_buffer *text, struct mc_span with)
{
    const uint8_t *at = with.data;
    for (size_t i = 0; i + 2 < with.length; i += 3)
        text->data[(size_t)(at[i] | at[i + 1] << 8) % text->length] = at[i + 2];
}

/* Appends what is said next. */
static enum kind say(struct mc_buffer *out, bool is_framed)
{
    uint8_t kind = mc_reader_u8(&world.in) % KINDS;
    size_t length = mc_reader_u16(&world.in), left = mc_reader_left(&world.in);
    if (world.in.bad)
        return KIND_REFUSED;
    length = length < left ? length : left;
    struct mc_span with = mc_span(mc_reader_take(&world.in, length), length);
    struct mc_buffer text = {0};
    bool is_document = kind == KIND_DOCUMENT || kind == KIND_ORIGINAL;
    const struct mc_buffer *document = kind == KIND_ORIGINAL ? &world.original : &world.document;
    if (is_document || kind == KIND_CUT) {
        if (is_document)
            mc_buffer_append(&text, document->data, document->length);
        else
            mc_buffer_printf(&text, "{\"mooncake_c\":{\"cut\":\"%016" PRIx64 "%016" PRIx64 "\"}}", peer_id.high,
                             peer_id.low);
        spoil(&text, with);
    } else {
        mc_buffer_append(&text, with.data, with.length);
    }
    if (is_framed && (is_document || kind < KIND_BYTES))
        mc_handshake_write(out, length % MC_HANDSHAKE_TYPES, false, mc_span(text.data, text.length));
    else
        mc_buffer_append(out, text.data, text.length);
    mc_buffer_free(&text);
    return kind;
}

int __wrap_mc_tcp_connect(const char *address, uint64_t deadline_ns)
{
    int ends[2] = {-1, -1};
    struct mc_buffer out = {0};
    (void)deadline_ns;
    mc_assert(strnlen(address, MC_ADDRESS_MAX + 8) < MC_ADDRESS_MAX + 8);
    pthread_mutex_lock(&world.lock);
    enum kind kind = world.end_count < CONNECTIONS ? say(&out, true) : KIND_REFUSED;
    if (kind != KIND_REFUSED) {
        mc_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
        (void)send(ends[1], out.data, out.length, MSG_NOSIGNAL);
        if (kind != KIND_OPEN || !world.is_writing) /* questions are waited for long */
            (void)shutdown(ends[1], SHUT_WR);
        world.ends[world.end_count++] = ends[1];
    }
    pthread_mutex_unlock(&world.lock);
    mc_buffer_free(&out);
    return ends[0] < 0 ? MC_ERR_RPC_FAIL : ends[0];
}

static int server_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    (void)metadata;
    (void)deadline_ns;
    mc_assert(strlen(key) < MC_TRANSFER_KEY_MAX);
    pthread_mutex_lock(&world.lock);
    int rc = say(reply, false) != KIND_REFUSED ? 1 : world.in.bad ? MC_ERR_RPC_FAIL : 0;
    pthread_mutex_unlock(&world.lock);
    return rc;
}

static const struct mc_metadata_kind server = {.scheme = "hostile://", .get = server_get};

static void begin(void)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_range range = {REMOTE, MEMORY};
    struct mc_document document = {.name = "peer",
                                   .is_tcp = true,
                                   .data_host = "127.0.0.1",
                                   .data_port = 1,
                                   .data_version = 2,
                                   .buffers = &range,
                                   .buffer_count = 1,
                                   .host = {1, 1},
                                   .id = peer_id,
                                   .can_cut = true,
                                   .rpc_port = 1};
    (void)signal(SIGPIPE, SIG_IGN);
    (void)setenv("MC_FORCE_TCP", "1", 1); /* fuzz_host has the other way */
    mc_log_set_level(MC_LOG_ERROR);
    mc_assert(mc_transfer_open(&config, &world.engine) == 0);
    world.engine->settings.timeout_ns = WAIT_NS;
    world.memory = malloc(MEMORY);
    mc_assert(world.memory != NULL);
    memset(world.memory, 7, MEMORY);
    mc_document_write(&world.document, &document, "");
    document.id = document.host = (struct mc_id){0, 0};
    document.can_cut = false;
    document.data_version = 1;
    mc_document_write(&world.original, &document, "");
    snprintf(world.engine->metadata.server, sizeof(world.engine->metadata.server), "hostile");
    world.engine->metadata.kind = &server;
}

/* ---- the calls ---- */

static void set_writing(bool is_writing)
{
    pthread_mutex_lock(&world.lock);
    world.is_writing = is_writing;
    pthread_mutex_unlock(&world.lock);
}

static void move(const char *name, enum mc_transfer_opcode opcode)
{
    const struct mc_transfer_item items[2] = {{world.memory, REMOTE, 1024}, {world.memory + 1024, REMOTE + 1024, 3072}};
    struct mc_peer *peer; /* of which nobody has to be asked any more */
    if (mc_peer_get(world.engine, name, mc_clock_ns() + WAIT_NS, &peer) < 0)
        return;
    set_writing(opcode == MC_TRANSFER_WRITE);
    int64_t id = mc_transfer_submit(world.engine, name, opcode, items, 2, NULL);
    if (id > 0)
        (void)mc_transfer_wait(world.engine, &id, 1);
    set_writing(false);
    mc_peer_release(peer);
}

static void settle(const char *name)
{
    struct mc_peer *peer;
    uint64_t deadline_ns = mc_clock_ns() + WAIT_NS;
    if (mc_peer_get(world.engine, name, deadline_ns, &peer) < 0)
        return;
    mc_settle_note(peer, mc_settle_number(), peer->incarnation);
    int rc = mc_settle(peer, deadline_ns);
    mc_assert(rc <= 0 && (rc < 0 || peer->uncut_count == 0));
    (void)mc_peer_refresh(peer, deadline_ns);
    pthread_mutex_lock(&peer->lock);
    mc_settle_forget(peer);
    pthread_mutex_unlock(&peer->lock);
    mc_peer_release(peer);
}

static void ask(const char *name)
{
    struct mc_document document;
    char address[MC_ADDRESS_MAX];
    int rc = mc_ask_document(world.engine, name, mc_clock_ns() + WAIT_NS, &document, address, sizeof(address));
    mc_assert(rc < 0 || document.name[0] != 0);
    mc_document_free(&document);
    (void)mc_ask_peer_address(world.engine, name, mc_clock_ns() + WAIT_NS, address, sizeof(address));
    mc_assert(strlen(address) < sizeof(address));
}

static void call(const char *name, uint8_t what)
{
    const struct mc_transfer_note note = {"fuzz", "a note"};
    uint64_t start_ns = mc_clock_ns();
    switch (what % 7) {
    case 0:
        move(name, MC_TRANSFER_WRITE);
        break;
    case 1:
        move(name, MC_TRANSFER_READ);
        break;
    case 2:
        settle(name);
        break;
    case 3:
        (void)mc_transfer_probe(world.engine, name);
        break;
    case 4:
        (void)mc_transfer_notify(world.engine, name, &note);
        break;
    case 5:
        ask(name);
        break;
    default:
        mc_peer_forget(world.engine, name);
    }
    mc_assert(mc_clock_ns() - start_ns < LATE_NS);
}

/* Nothing of this input is there for the next one. */
static void end(const char *name)
{
    struct mc_peer *peer;
    world.in = mc_reader(NULL, 0); /* it borrows from data */
    if (mc_peer_get_known(world.engine, name, mc_clock_ns(), &peer) == 0) {
        pthread_mutex_lock(&peer->lock);
        mc_settle_forget(peer);
        pthread_mutex_unlock(&peer->lock);
        mc_peer_release(peer);
    }
    mc_peer_forget(world.engine, name);
    while (world.end_count > 0)
        close(world.ends[--world.end_count]);
    atomic_store(&world.engine->metadata.away_until_ns, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char name[64];
    if (size < 1 + CALLS)
        return 0;
    if (world.engine == NULL)
        begin();
    world.engine->metadata.is_p2p = data[0] % 2 == 0;
    snprintf(name, sizeof(name), "10.%u.%u.%u:1", (unsigned)(world.number >> 16 & 255),
             (unsigned)(world.number >> 8 & 255), (unsigned)(world.number & 255));
    world.number++;
    world.in = mc_reader(data + 1 + CALLS, size - 1 - CALLS);
    for (unsigned i = 0; i < CALLS && data[1 + i] != 255; i++)
        call(name, data[1 + i]);
    end(name);
    return 0;
}
