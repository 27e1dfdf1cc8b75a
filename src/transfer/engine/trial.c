/* Each path to a peer by itself, with the reason where it fails. */
#include "transfer/engine/trial.h"

#include "transfer/engine/open.h"
#include "transfer/peer/ask.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/peer.h"
#include "transfer/run/run.h"
#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/metadata.h"

#include "base/error.h"
#include "env/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SMALL_BYTES ((uint64_t)4096)
#define LARGE_BYTES ((uint64_t)64 << 20)
#define LARGE_LEAST ((uint64_t)1 << 20) /* less tells nothing of a rate */
#define LARGE_READS 4u
#define TRIAL_MS 10000u
#define PROBE_MS 3000u /* a probe is answered at once */

struct mc_trial_session {
    struct mc_transfer_engine *engine;
    char target[MC_DOCUMENT_NAME_MAX];
    struct mc_peer *peer;
    void *memory; /* registered; NULL: no RDMA here */
    struct mc_buffer text;
    struct mc_document document; /* the same, read */
};

static uint64_t deadline_of(void)
{
    return mc_clock_ns() + TRIAL_MS * 1000000ull;
}

int mc_trial_open(const char *metadata_server, const char *device_name, struct mc_trial_session **out)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "", ""};
    struct mc_trial_session *session = calloc(1, sizeof(*session));
    if (session == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    int rc = mc_transfer_open(&config, &session->engine);
    if (rc == 0) {
        /* Peers are looked up there, but we are not to be found. */
        session->engine->is_published = false;
        if (mc_transfer_start_rdma(session->engine, device_name, NULL) == 0)
            session->memory = mc_transfer_allocate(session->engine, LARGE_BYTES);
        rc = mc_metadata_init(&session->engine->metadata, metadata_server);
    }
    if (rc < 0) {
        mc_transfer_close(session->engine);
        free(session);
        return rc;
    }
    *out = session;
    return 0;
}

void mc_trial_close(struct mc_trial_session *session)
{
    if (session == NULL)
        return;
    if (session->peer != NULL)
        mc_peer_release(session->peer);
    mc_document_free(&session->document);
    mc_buffer_free(&session->text);
    mc_transfer_close(session->engine);
    free(session);
}

/* ---- looking ---- */

static int failed(struct mc_trial_peer *peer, const char *step, int code, int error)
{
    peer->step = step;
    peer->code = code;
    peer->error = error;
    return code;
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static int look_at_door(struct mc_trial_session *session, struct mc_trial_peer *peer)
{
    struct mc_buffer reply = {0};
    int rc = mc_ask_address(session->engine, session->target, UINT64_MAX, peer->handshake_address,
                            sizeof(peer->handshake_address));
    if (rc < 0)
        return failed(peer, "its address", rc, 0);
    uint64_t connect_ns = mc_clock_ns() + session->engine->settings.handshake_connect_ms * 1000000ull;
    errno = 0;
    int fd = mc_tcp_connect(peer->handshake_address, connect_ns);
    if (fd < 0)
        return failed(peer, "connecting to its handshake port", MC_TRANSFER_ERR_SOCKET,
                      fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : errno);
    close(fd);
    rc = mc_ask(session->engine, peer->handshake_address, MC_HANDSHAKE_PROBE, mc_span("{}", 2),
                mc_clock_ns() + PROBE_MS * 1000000ull, &reply);
    mc_buffer_free(&reply);
    return rc < 0 ? failed(peer, "its answer to a probe", rc, 0) : 0;
}

struct mc_span mc_trial_document(const struct mc_trial_session *session)
{
    return mc_span(session->text.data, session->text.length);
}

static int fetch(struct mc_trial_session *session, const struct mc_trial_peer *peer)
{
    struct mc_transfer_engine *engine = session->engine;
    char key[MC_TRANSFER_KEY_MAX];
    int rc;
    if (engine->metadata.is_p2p) {
        rc = mc_ask(engine, peer->handshake_address, MC_HANDSHAKE_METADATA, mc_span("{}", 2), deadline_of(),
                    &session->text);
    } else {
        mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, session->target + (session->target[0] == '/'));
        rc = mc_metadata_get(&engine->metadata, key, &session->text);
    }
    return rc < 0 ? rc : mc_document_read(mc_trial_document(session), &session->document);
}

int mc_trial_look(struct mc_trial_session *session, const char *target, struct mc_trial_peer *peer)
{
    *peer = (struct mc_trial_peer){0};
    snprintf(session->target, sizeof(session->target), "%s", target);
    int rc = look_at_door(session, peer);
    if (rc < 0)
        return rc;
    rc = fetch(session, peer);
    if (rc < 0)
        return failed(peer, "its document", rc, 0);
    const struct mc_document *document = &session->document;
    peer->is_ours = !mc_id_is_zero(document->id);
    peer->is_same_machine = peer->is_ours && mc_id_equal(document->host, session->engine->host_id);
    peer->is_tcp = document->is_tcp && document->data_port != 0;
    peer->buffer_count = document->buffer_count;
    snprintf(peer->data_host, sizeof(peer->data_host), "%s", document->data_host);
    peer->is_loopback = is_loopback(document->data_host);
    if (!peer->is_tcp)
        return 0; /* nothing of ours reaches it */
    rc = mc_peer_get(session->engine, target, deadline_of(), &session->peer);
    if (rc < 0)
        return failed(peer, "where its data goes", rc, 0);
    snprintf(peer->data_address, sizeof(peer->data_address), "%s", session->peer->data_address);
    return 0;
}

/* ---- reading ---- */

/* The longest range, which tells most of a rate. */
static struct mc_transfer_range longest(const struct mc_document *document)
{
    struct mc_transfer_range found = {0, 0};
    for (size_t i = 0; i < document->buffer_count; i++)
        if (document->buffers[i].length > found.length)
            found = document->buffers[i];
    return found;
}

static int read_once(struct mc_trial_session *session, int path, const struct mc_transfer_item *item)
{
    if (path == MC_TRANSFER_PATH_HOST)
        return mc_run_host(session->peer, MC_TRANSFER_READ, item, 1, NULL, deadline_of());
    if (path == MC_TRANSFER_PATH_RDMA)
        return mc_run_rdma(session->peer, MC_TRANSFER_READ, item, 1, NULL, deadline_of());
    return mc_run_tcp(session->peer, MC_TRANSFER_READ, item, 1, NULL, deadline_of(), NULL);
}

static int by_number(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static int read_some(struct mc_trial_session *session, int path, struct mc_transfer_range range, void *memory,
                     struct mc_trial *trial)
{
    uint64_t times[MC_TRIAL_READS], best_ns = UINT64_MAX;
    struct mc_transfer_item item = {memory, range.address, range.length < SMALL_BYTES ? range.length : SMALL_BYTES};
    trial->small_bytes = item.length;
    for (unsigned i = 0; i < MC_TRIAL_READS; i++) {
        uint64_t start_ns = mc_clock_ns();
        int rc = read_once(session, path, &item);
        if (rc != 0)
            return rc;
        times[i] = mc_clock_ns() - start_ns;
    }
    qsort(times, MC_TRIAL_READS, sizeof(times[0]), by_number);
    trial->median_ns = times[MC_TRIAL_READS / 2];
    if (range.length < LARGE_LEAST)
        return 0;
    item.length = trial->large_bytes = range.length < LARGE_BYTES ? range.length : LARGE_BYTES;
    for (unsigned i = 0; i < LARGE_READS; i++) {
        uint64_t start_ns = mc_clock_ns();
        int rc = read_once(session, path, &item);
        if (rc != 0)
            return rc;
        uint64_t passed_ns = mc_clock_ns() - start_ns;
        best_ns = passed_ns < best_ns ? passed_ns : best_ns;
    }
    trial->large_gb_per_s = (double)trial->large_bytes / (double)(best_ns == 0 ? 1 : best_ns);
    return 0;
}

static void set(struct mc_trial *trial, enum mc_trial_result result, const char *step, int error)
{
    trial->result = result;
    trial->error = error;
    snprintf(trial->step, sizeof(trial->step), "%s", step);
}

static void try_reading(struct mc_trial_session *session, int path, struct mc_trial *trial)
{
    struct mc_transfer_range range = longest(&session->document);
    if (range.length == 0)
        return;
    bool is_rdma = path == MC_TRANSFER_PATH_RDMA;
    void *memory =
        is_rdma ? session->memory : malloc((size_t)(range.length < LARGE_BYTES ? range.length : LARGE_BYTES));
    if (memory == NULL) {
        set(trial, MC_TRIAL_FAILS, "memory", ENOMEM);
        return;
    }
    int rc = read_some(session, path, range, memory, trial);
    if (!is_rdma)
        free(memory);
    trial->has_read = rc == 0;
    if (rc != 0)
        set(trial, MC_TRIAL_FAILS, rc == 1 ? "reading its memory" : mc_transfer_error_text(rc), rc == 1 ? EFAULT : 0);
}

/* ---- paths ---- */

static void try_host(struct mc_trial_session *session, struct mc_trial *trial)
{
    struct mc_peer *peer = session->peer;
    struct mc_host_trouble trouble;
    if (peer == NULL || mc_id_is_zero(peer->document.id)) {
        set(trial, MC_TRIAL_NOT_HERE, "not an engine of this build", 0);
        return;
    }
    if (!mc_id_equal(peer->document.host, session->engine->host_id)) {
        set(trial, MC_TRIAL_NOT_HERE, "another machine", 0);
        return;
    }
    if (peer->document.unix_name[0] != '@') {
        set(trial, MC_TRIAL_FAILS, "the peer does not offer it", 0);
        return;
    }
    struct mc_host_path *path = mc_host_path_open(peer->document.unix_name, peer->document.id, &trouble);
    if (path == NULL) {
        set(trial, MC_TRIAL_FAILS, trouble.step, trouble.error);
        return;
    }
    bool is_map_only = path->is_map_only;
    mc_host_path_release(path);
    bool allowed = session->engine->settings.allow_host;
    session->engine->settings.allow_host = true;
    try_reading(session, MC_TRANSFER_PATH_HOST, trial);
    session->engine->settings.allow_host = allowed;
    if (is_map_only && trial->result == MC_TRIAL_FAILS)
        trial->error = EPERM; /* what it has allocated with its engine is mapped all the same */
}

static void try_tcp(struct mc_trial_session *session, struct mc_trial *trial)
{
    if (session->peer == NULL) {
        set(trial, MC_TRIAL_NOT_HERE, "it speaks no tcp", 0);
        return;
    }
    uint64_t connect_ns = mc_clock_ns() + session->engine->settings.handshake_connect_ms * 1000000ull;
    errno = 0;
    int fd = mc_tcp_connect(session->peer->data_address, connect_ns);
    if (fd < 0) {
        set(trial, MC_TRIAL_FAILS, "connecting to its data port", fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : errno);
        return;
    }
    close(fd);
    try_reading(session, MC_TRANSFER_PATH_TCP, trial);
}

static void try_rdma(struct mc_trial_session *session, struct mc_trial *trial)
{
    const struct mc_rdma_remote *remote = session->peer == NULL ? NULL : session->peer->remote;
    if (session->memory == NULL)
        set(trial, MC_TRIAL_NOT_HERE, "no usable RDMA device here", 0);
    else if (remote == NULL || remote->device_count == 0)
        set(trial, MC_TRIAL_NOT_HERE, "the peer has no RDMA", 0);
    else
        try_reading(session, MC_TRANSFER_PATH_RDMA, trial);
}

void mc_trial_path(struct mc_trial_session *session, int path, struct mc_trial *trial)
{
    *trial = (struct mc_trial){.result = MC_TRIAL_WORKS};
    if (path == MC_TRANSFER_PATH_LOCAL)
        set(trial, MC_TRIAL_NOT_HERE, "another process", 0);
    else if (path == MC_TRANSFER_PATH_HOST)
        try_host(session, trial);
    else if (path == MC_TRANSFER_PATH_RDMA)
        try_rdma(session, trial);
    else
        try_tcp(session, trial);
}

int mc_trial_used(struct mc_trial_session *session)
{
    struct mc_transfer_range range = longest(&session->document);
    struct mc_tally before, after;
    char byte;
    struct mc_transfer_item item = {&byte, range.address, 1};
    if (range.length == 0 || session->peer == NULL)
        return -1;
    mc_metrics_sum(&session->engine->metrics, &before);
    int rc = mc_transfer_run(session->engine, session->target, MC_TRANSFER_READ, &item, 1, NULL);
    mc_metrics_sum(&session->engine->metrics, &after);
    for (int path = 0; rc == 0 && path < MC_TRANSFER_PATHS; path++)
        if (after.items[path][MC_TRANSFER_READ] != before.items[path][MC_TRANSFER_READ])
            return path;
    return rc < 0 ? rc : -1;
}
