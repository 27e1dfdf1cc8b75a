/* Small services for transports, and references of paths. */
#include "store/path/path.h"

#include "base/build.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/wire/stream.h"

#include <inttypes.h>

void mc_path_init(struct mc_path *path, const struct mc_transport *transport, struct mc_paths *paths,
                  const struct mc_endpoint *endpoint)
{
    path->transport = transport;
    path->paths = paths;
    path->endpoint = *endpoint;
    atomic_init(&path->references, 1);
    atomic_init(&path->broken, false);
}

void mc_path_fail_all(struct mc_transfer **transfers, size_t count, int code)
{
    for (size_t i = 0; i < count; i++)
        transfers[i]->result = code;
}

void mc_path_account(struct mc_path *path, struct mc_transfer *const *transfers, size_t count)
{
    uint64_t bytes = 0, mismatches = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += transfers[i]->result == 0 ? transfers[i]->length : 0;
        mismatches += transfers[i]->result == MC_ERR_CHECKSUM_MISMATCH;
    }
    atomic_fetch_add_explicit(&path->paths->counters.path_bytes[path->transport->counter], bytes, memory_order_relaxed);
    if (mismatches > 0)
        atomic_fetch_add_explicit(&path->paths->counters.checksum_errors, mismatches, memory_order_relaxed);
}

void mc_path_hello_write(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_buffer *out)
{
    struct mc_wire_hello hello = {
        .role = MC_ROLE_DATA, .node = paths->node, .incarnation = paths->incarnation, .nonce = endpoint->nonce};
    pthread_mutex_lock(&paths->lock);
    hello.cluster = paths->cluster;
    pthread_mutex_unlock(&paths->lock);
    mc_wire_hello_sign(&hello);
    mc_wire_hello_frame(out, mc_frame_begin(out, MC_MESSAGE_HELLO, 0), &hello);
}

/* Each build that is met is told once in a while: a rolling upgrade shows in the logs of both sides. */
static void build_note(const struct mc_endpoint *endpoint, const struct mc_wire_hello_reply *reply)
{
    char build[MC_BUILD_TEXT_MAX];
    if (!mc_span_equal(reply->build, mc_span_string(mc_build())))
        mc_log_limited(INFO, "store node %s is of another build: %s; this is %s", endpoint->name,
                       mc_wire_build(build, reply->build), mc_build());
}

int mc_path_hello_check(const struct mc_endpoint *endpoint, const struct mc_frame *frame, struct mc_owner_said *said)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_hello_reply reply;
    if (frame->type != MC_MESSAGE_HELLO_REPLY)
        return MC_ERR_PROTOCOL;
    mc_wire_hello_reply_read(&reader, &reply);
    if (reader.bad)
        return MC_ERR_PROTOCOL;
    if (!mc_id_equal(reply.node, endpoint->node) || reply.incarnation != endpoint->incarnation)
        return MC_ERR_STALE;
    build_note(endpoint, &reply);
    int rc = reply.code == 0 ? mc_wire_agree(&said->agreed, reply.version_min, reply.version_max, reply.features)
                             : reply.code;
    if (rc == MC_ERR_OTHER_CLUSTER) { /* it has moved there: not the one that was meant */
        mc_log_limited(WARNING, "store node %s belongs to another cluster now", endpoint->name);
        return MC_ERR_STALE;
    }
    if (rc == MC_ERR_INVALID_VERSION)
        mc_log_limited(ERROR, "store node %s speaks protocol versions %u to %u, we speak %u to %u", endpoint->name,
                       (unsigned)reply.version_min, (unsigned)reply.version_max, MC_WIRE_VERSION_MIN,
                       MC_WIRE_VERSION_MAX);
    said->layout = reply.layout == 0 ? MC_INDEX_VERSION_UNSAID : reply.layout;
    return rc <= 0 ? rc : MC_ERR_PROTOCOL;
}

struct mc_patience mc_patience_until(uint64_t deadline_ns)
{
    uint64_t soon_ns = mc_clock_ns() + MC_CONNECT_NS;
    return (struct mc_patience){soon_ns < deadline_ns ? soon_ns : deadline_ns, deadline_ns};
}

int mc_path_wait(int fd, const struct mc_patience *patience)
{
    for (uint64_t until_ns = patience->soon_ns;; until_ns += MC_CONNECT_NS) {
        until_ns = until_ns < patience->deadline_ns ? until_ns : patience->deadline_ns;
        int rc = mc_socket_wait_read(fd, until_ns, NULL);
        if (rc != MC_ERR_RPC_TIMEOUT || until_ns == patience->deadline_ns || !mc_unix_peer_runs(fd))
            return rc;
    }
}

bool mc_path_layout_known(const struct mc_endpoint *endpoint, uint32_t layout)
{
    if (layout != MC_INDEX_VERSION)
        mc_log_limited(WARNING,
                       "the index of store node %s has layout %" PRIu32
                       ", this build reads %u: its memory is not mapped, bytes go by tcp",
                       endpoint->name, layout, MC_INDEX_VERSION);
    return layout == MC_INDEX_VERSION;
}

/* Sends a question, and waits for the answer, which is all of `in`. 0 or negative. */
static int ask(int fd, const struct mc_buffer *question, const struct mc_patience *patience, struct mc_buffer *in,
               struct mc_frame *frame)
{
    struct iovec part = {question->data, question->length};
    int rc = question->failed ? MC_ERR_NO_MEMORY : mc_socket_send(fd, &part, 1, patience->soon_ns);
    if (rc == 0)
        rc = mc_path_wait(fd, patience);
    if (rc < 0)
        return rc;
    uint64_t whole_ns = mc_patience_until(patience->deadline_ns).soon_ns;
    int64_t used = mc_socket_receive_frame(fd, in, frame, whole_ns, NULL);
    /* The owner speaks only when asked: anything behind the answer is not our protocol. */
    return used < 0 ? (int)used : (size_t)used == in->length ? 0 : MC_ERR_PROTOCOL;
}

/* The last word of the proof is appended to `out`: the hello goes with it. */
static int prove(const struct mc_endpoint *endpoint, int fd, const struct mc_patience *patience, struct mc_buffer *out)
{
    struct mc_buffer question = {.may_fail = true}, in = {.may_fail = true};
    struct mc_prover prover;
    struct mc_frame frame;
    char why[MC_PROOF_TEXT_MAX];
    if (!endpoint->has_ticket)
        return 0;
    mc_prover_begin(&prover, mc_span(endpoint->ticket, sizeof(endpoint->ticket)), endpoint->ticket_secret, &question);
    int rc = ask(fd, &question, patience, &in, &frame);
    if (rc == 0)
        rc = mc_prover_take(&prover, &frame, out, why);
    mc_buffer_free(&question);
    mc_buffer_free(&in);
    return rc == MC_ERR_NOT_PERMITTED ? MC_ERR_STALE : rc; /* another process has its place now, or it has expired */
}

int mc_path_hello(struct mc_paths *paths, const struct mc_endpoint *endpoint, int fd,
                  const struct mc_patience *patience, struct mc_owner_said *said)
{
    struct mc_buffer out = {0}, in = {0};
    struct mc_frame frame;
    int rc = prove(endpoint, fd, patience, &out);
    struct mc_patience again = endpoint->has_ticket ? mc_patience_until(patience->deadline_ns) : *patience;
    mc_path_hello_write(paths, endpoint, &out);
    if (rc == 0)
        rc = ask(fd, &out, &again, &in, &frame);
    if (rc == 0)
        rc = mc_path_hello_check(endpoint, &frame, said);
    mc_buffer_free(&out);
    mc_buffer_free(&in);
    return rc;
}

void mc_path_nudge_write(struct mc_buffer *out)
{
    size_t frame = mc_frame_begin(out, MC_MESSAGE_COMMIT, 0);
    mc_frame_end_list(out, frame, mc_wire_none_head(out, &(struct mc_wire_none){0}), 0);
}

static void *close_slowly(void *argument)
{
    struct mc_paths *paths = argument;
    pthread_mutex_lock(&paths->lock);
    while (paths->closing != NULL) {
        struct mc_path *path = paths->closing;
        paths->closing = path->next_closing;
        pthread_mutex_unlock(&paths->lock);
        path->transport->close(path);
        pthread_mutex_lock(&paths->lock);
    }
    paths->has_closer = false;
    pthread_cond_broadcast(&paths->opened);
    pthread_mutex_unlock(&paths->lock);
    return NULL;
}

/* Not by who let go of it last: that is a call with a deadline, or a thread that has other work. */
static void close_later(struct mc_path *path)
{
    struct mc_paths *paths = path->paths;
    pthread_mutex_lock(&paths->lock);
    path->next_closing = paths->closing;
    paths->closing = path;
    bool begins = !paths->has_closer;
    paths->has_closer = true;
    pthread_mutex_unlock(&paths->lock);
    if (begins && mc_thread_start(NULL, "mc-unmap", close_slowly, paths) != 0)
        (void)close_slowly(paths);
}

void mc_paths_await_closed(struct mc_paths *paths)
{
    pthread_mutex_lock(&paths->lock);
    while (paths->has_closer)
        pthread_cond_wait(&paths->opened, &paths->lock);
    pthread_mutex_unlock(&paths->lock);
}

void mc_path_release(struct mc_path *path)
{
    if (path == NULL || mc_paths_is_forked(path->paths))
        return;
    if (atomic_fetch_sub_explicit(&path->references, 1, memory_order_acq_rel) != 1)
        return;
    if (path->transport->closes_slowly)
        close_later(path);
    else
        path->transport->close(path);
}
