/* The loop of the owner's side: listeners, posts from other threads, waiting CUTs. */
#include "store/segment/serve.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/thread.h"
#include "rdma/rdma.h"
#include "store/segment/let_go.h"
#include "store/segment/serve_inside.h"

#include <errno.h>
#include <event2/event.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 8u
#define CUT_LOOK_MS 20u      /* how often a CUT that waits looks for the end of the writer's copy */
#define CLEAR_LOOK_MS 1u     /* a CLEAR: for the end of one receive, as a rule */
#define ACCEPT_PAUSE_MS 100u /* after running out of descriptors */
#define SPIN_PROBE_EVERY 64u

/* ---- waiting cuts ---- */

/* Can nothing of that generation arrive in that slot's extent any more? Over tcp: the raised generation refuses. Who
 * copies by himself has said so in the table of writers before (writers.h); the generation was raised before we look.
 */
static bool cut_is_done(const struct mc_serve *serve, const struct mc_serve_cut *cut)
{
    return serve->server.memory == NULL ||
           !(cut->is_clear ? mc_segment_memory_is_written_here
                           : mc_segment_memory_is_written)(serve->server.memory, cut->slot, cut->generation);
}

static void cuts_look_later(struct mc_serve *serve)
{
    struct timeval later = {.tv_usec = CUT_LOOK_MS * 1000};
    for (const struct mc_serve_cut *cut = serve->cuts; cut != NULL; cut = cut->next)
        later.tv_usec = cut->is_clear ? CLEAR_LOOK_MS * 1000 : later.tv_usec;
    if (serve->cuts != NULL && !evtimer_pending(serve->cut_timer, NULL))
        mc_assert(evtimer_add(serve->cut_timer, &later) == 0);
}

/* Something may have changed: a connection has ended, time has passed. */
void mc_serve_cuts_look(struct mc_serve *serve)
{
    struct mc_serve_cut *done = NULL, **done_end = &done;
    for (struct mc_serve_cut **at = &serve->cuts; *at != NULL;) {
        struct mc_serve_cut *cut = *at;
        if (!cut_is_done(serve, cut)) {
            at = &cut->next;
            continue;
        }
        *at = cut->next;
        cut->next = NULL;
        *done_end = cut;
        done_end = &cut->next;
    }
    cuts_look_later(serve);
    bool any = done != NULL;
    while (done != NULL) { /* in a list of their own: a callback may cut again */
        struct mc_serve_cut *cut = done;
        done = cut->next;
        cut->done(cut->context, cut->slot, cut->generation);
        free(cut);
    }
    if (any && serve->server.hooks.flush != NULL)
        serve->server.hooks.flush(serve->server.hooks.context);
}

static void on_cut_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    mc_serve_cuts_look(argument);
}

static void cuts_forget(struct mc_serve *serve)
{
    while (serve->cuts != NULL) {
        struct mc_serve_cut *cut = serve->cuts;
        serve->cuts = cut->next;
        free(cut);
    }
}

/* ---- listeners ---- */

static void on_pause_over(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct mc_listener *listener = argument;
    mc_assert(event_add(listener->acceptable, NULL) == 0);
}

static void on_acceptable(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct mc_listener *listener = argument;
    struct mc_serve *serve = listener->serve;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int accepted = mc_socket_accept((int)fd);
        if (accepted < 0) {
            bool is_out = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            if (is_out && mc_connections_give_one(serve))
                continue;
            if (is_out) {
                mc_serve_data_give_one(serve);
                /* The waiting connection stays readable for the loop: without a pause it would turn without end. */
                struct timeval pause = {.tv_usec = ACCEPT_PAUSE_MS * 1000};
                mc_log_limited(ERROR, "cannot accept a data connection: %s; raise the limit of open files (ulimit -n)",
                               strerror(errno));
                (void)event_del(listener->acceptable);
                (void)evtimer_add(listener->pause, &pause);
            }
            return;
        }
        serve->activity++;
        if (listener->is_unix || !mc_serve_hand_out(serve, accepted))
            mc_connection_open(serve, listener->is_unix, accepted);
    }
    sched_yield(); /* while many come, this thread never rests: others of its processor have theirs all the same */
}

static int listener_start(struct mc_serve *serve, struct mc_listener *listener, int fd, bool is_unix)
{
    listener->serve = serve;
    listener->fd = fd;
    listener->is_unix = is_unix;
    listener->acceptable = event_new(serve->base, fd, EV_READ | EV_PERSIST, on_acceptable, listener);
    listener->pause = evtimer_new(serve->base, on_pause_over, listener);
    if (listener->acceptable == NULL || listener->pause == NULL || event_add(listener->acceptable, NULL) != 0)
        return MC_ERR_NO_MEMORY;
    return 0;
}

static void listener_stop(struct mc_listener *listener)
{
    if (listener->acceptable != NULL)
        event_free(listener->acceptable);
    if (listener->pause != NULL)
        event_free(listener->pause);
    int fd = listener->fd;
    *listener = (struct mc_listener){.fd = -1}; /* first: a child forked in between must not close a stranger */
    mc_fd_close(fd);
}

/* The unix socket is only a faster path: without it peers come by tcp. */
static int local_start(struct mc_serve *serve)
{
    const char *directory = mc_variable(MC_SHM_DIR);
    bool is_file = directory != NULL && directory[0] != 0;
    int length =
        snprintf(serve->unix_path, sizeof(serve->unix_path), "%s%smooncake-%016" PRIx64 "%016" PRIx64,
                 is_file ? directory : "@", is_file ? "/" : "", serve->server.node.high, serve->server.node.low);
    if ((size_t)length >= sizeof(serve->unix_path)) {
        mc_log(WARNING,
               "the path in MC_SHM_DIR is too long for a unix socket (at most %d bytes with our file name); peers on "
               "this host will use tcp",
               MC_UNIX_PATH_MAX - 1);
        serve->unix_path[0] = 0;
        return 0;
    }
    int fd = mc_unix_listen(serve->unix_path);
    if (fd < 0 || (is_file && chmod(serve->unix_path, 0600) != 0)) {
        mc_log(WARNING, "cannot listen on unix socket %s: %s; peers on this host will use tcp", serve->unix_path,
               strerror(errno));
        mc_fd_close(fd);
        serve->unix_path[0] = 0;
        return 0;
    }
    return listener_start(serve, &serve->local, fd, true);
}

/* ---- posts ---- */

static struct mc_serve_post *posts_take(struct mc_serve *serve)
{
    pthread_mutex_lock(&serve->post_lock);
    struct mc_serve_post *first = serve->posts;
    serve->posts = NULL;
    serve->posts_end = &serve->posts;
    pthread_mutex_unlock(&serve->post_lock);
    return first;
}

static void posts_run(struct mc_serve *serve)
{
    for (struct mc_serve_post *post = posts_take(serve); post != NULL;) {
        struct mc_serve_post *next = post->next;
        post->function(post->argument);
        free(post);
        post = next;
    }
}

static void on_posted(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct mc_serve *serve = argument;
    uint64_t count;
    if (read((int)fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        mc_log_limited(ERROR, "eventfd: %s", strerror(errno));
    serve->activity++;
    posts_run(serve);
}

void mc_serve_post(struct mc_serve *serve, void (*function)(void *argument), void *argument)
{
    struct mc_serve_post *post = malloc(sizeof(*post));
    if (post == NULL)
        abort(); /* as the buffers do: a lost post would be a lost answer */
    *post = (struct mc_serve_post){function, argument, NULL};
    pthread_mutex_lock(&serve->post_lock);
    bool was_empty = serve->posts == NULL;
    *serve->posts_end = post;
    serve->posts_end = &post->next;
    pthread_mutex_unlock(&serve->post_lock);
    uint64_t one = 1;
    if (was_empty && write(serve->post_fd, &one, sizeof(one)) < 0)
        mc_log(ERROR, "eventfd: %s", strerror(errno));
}

/* ---- the loop ---- */

static void loop_once(struct mc_serve *serve, int flags)
{
    if (event_base_loop(serve->base, EVLOOP_ONCE | flags) < 0)
        mc_log_limited(ERROR, "event loop: %s", strerror(errno));
}

/* Waits for events and handles them. Spins (yielding) for a moment first, as long as recent waits ended within one. */
static void loop_turn(struct mc_serve *serve)
{
    uint64_t before = serve->activity, start_ns = mc_clock_ns();
    bool probe = ++serve->spin.probe % SPIN_PROBE_EVERY == 0;
    if (serve->spin.hits > 0 || probe) {
        do {
            sched_yield(); /* first: on one processor nothing can have come before others ran */
            loop_once(serve, EVLOOP_NONBLOCK);
            if (serve->activity != before) {
                mc_spin_hit(&serve->spin);
                return;
            }
        } while (mc_clock_ns() - start_ns < mc_spin_ns() && !serve->stopping);
        mc_spin_miss(&serve->spin);
    }
    if (serve->stopping)
        return;
    start_ns = mc_clock_ns();
    loop_once(serve, 0);
    /* A blocked wait costs a wake-up of its own, so one a little longer than the spin counts. */
    if (serve->activity != before && mc_clock_ns() - start_ns < 3 * mc_spin_ns())
        mc_spin_hit(&serve->spin);
}

void *mc_serve_run(void *argument)
{
    struct mc_serve *serve = argument;
    while (!serve->stopping) {
        if (serve->streams.first == NULL)
            loop_turn(serve);
        else /* between two turns of streams whatever else has come */
            loop_once(serve, EVLOOP_NONBLOCK);
        (void)mc_connections_stream(serve);
    }
    return NULL;
}

static void serve_stop(void *argument)
{
    struct mc_serve *serve = argument;
    serve->stopping = true;
}

/* ---- life ---- */

static struct event_base *base_make(void)
{
    struct event_base *base = NULL;
    struct event_config *config = event_config_new();
    /* One thread uses it; other threads come through the eventfd. */
    if (config != NULL && event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0)
        base = event_base_new_with_config(config);
    if (config != NULL)
        event_config_free(config);
    return base;
}

/* Descriptors that this process may have open are for its other needs, too. */
static uint32_t default_limit(void)
{
    uint64_t limit = mc_file_limit() / 4 * 3;
    return limit < MC_SERVE_CONNECTIONS_MAX ? (uint32_t)limit : MC_SERVE_CONNECTIONS_MAX;
}

void mc_serve_keys_tell(const struct mc_serve *serve, struct mc_wire_mount *mount)
{
    const struct mc_lane_server *server = &serve->server;
    const struct mc_lane_keys *keys = &server->keys[server->key_mark];
    mount->ticket_key = mc_span(keys->ticket, server->wants_tickets ? sizeof(keys->ticket) : 0);
    mount->tag_key = mc_span(keys->tag, server->wants_tags ? sizeof(keys->tag) : 0);
    mount->key_mark = server->key_mark;
}

static unsigned expired_close(const struct mc_connections *list)
{
    unsigned count = 0;
    for (struct mc_serve_connection *one = list->first, *next; one != NULL; one = next) {
        next = one->next; /* closing one may only finish cuts, which close none */
        if (mc_lane_has_expired(&one->lane)) {
            mc_connection_close(one);
            count++;
        }
    }
    return count;
}

unsigned mc_serve_close_expired(struct mc_serve *serve)
{
    return expired_close(&serve->guests) + expired_close(&serve->greeters);
}

bool mc_serve_keys_renew(struct mc_serve *serve)
{
    if (!serve->server.wants_tags)
        return false;
    mc_lane_keys_draw(&serve->server);
    unsigned count = mc_serve_close_expired(serve);
    if (count > 0)
        mc_log(INFO, "%u data connections were closed, as their tickets have expired", count);
    mc_serve_data_keys(serve);
    return true;
}

uint64_t mc_serve_tags_refused(const struct mc_serve *serve)
{
    uint64_t refused = atomic_load_explicit(&serve->server.tags_refused, memory_order_relaxed);
    for (uint32_t i = 0; i < serve->data_count; i++)
        refused += atomic_load_explicit(&serve->data[i]->server.tags_refused, memory_order_relaxed);
    return refused;
}

int mc_serve_make(const struct mc_lane_server *server, struct mc_serve **result)
{
    struct mc_serve *serve = calloc(1, sizeof(*serve));
    if (serve == NULL)
        return MC_ERR_NO_MEMORY;
    serve->server = *server;
    serve->tcp.fd = serve->local.fd = -1;
    serve->hello_ms = MC_SERVE_HELLO_MS;
    serve->idle_ms = MC_SERVE_IDLE_MS;
    serve->posts_end = &serve->posts;
    pthread_mutex_init(&serve->post_lock, NULL);
    serve->post_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    serve->base = base_make();
    if (serve->post_fd < 0 || serve->base == NULL || mc_connections_limit(serve, default_limit()) < 0)
        goto fail;
    serve->posted = event_new(serve->base, serve->post_fd, EV_READ | EV_PERSIST, on_posted, serve);
    serve->cut_timer = evtimer_new(serve->base, on_cut_timer, serve);
    serve->rest_timer = evtimer_new(serve->base, mc_connections_on_rest_timer, serve);
    serve->stall_timer = evtimer_new(serve->base, mc_connections_on_stall_timer, serve);
    if (serve->posted == NULL || serve->cut_timer == NULL || serve->rest_timer == NULL || serve->stall_timer == NULL ||
        event_add(serve->posted, NULL) != 0)
        goto fail;
    *result = serve;
    return 0;
fail:
    mc_serve_destroy(serve);
    return MC_ERR_NO_MEMORY;
}

static bool tenants_map(void)
{
    const char *text = mc_variable(MC_TENANTS_MAP);
    return text != NULL && (strcmp(text, "yes") == 0 || strcmp(text, "1") == 0 || strcmp(text, "true") == 0);
}

int mc_serve_create(struct mc_id node, uint64_t incarnation, const char *host, uint16_t port, bool unix_allowed,
                    const struct mc_serve_hooks *hooks, struct mc_serve **result)
{
    struct mc_lane_server server = {.node = node,
                                    .incarnation = incarnation,
                                    .admit = mc_connection_admit,
                                    .where = mc_connection_where,
                                    .hooks = hooks == NULL ? (struct mc_serve_hooks){0} : *hooks};
    server.wants_tickets = mc_keys_are_wanted();
    server.wants_tags = server.wants_tickets || MC_SERVE_TAGS_ALWAYS;
    server.tenants_map = tenants_map();
    mc_lane_keys_draw(&server);
    struct mc_serve *serve;
    int rc = mc_serve_make(&server, &serve), error = 0;
    if (rc < 0)
        return rc;
    serve->tcp_port = port;
    int fd = mc_tcp_listen(host, &serve->tcp_port);
    if (fd < 0) {
        rc = fd;
        error = errno;
        goto fail;
    }
    rc = listener_start(serve, &serve->tcp, fd, false);
    if (rc == 0 && unix_allowed)
        rc = local_start(serve);
    if (rc < 0)
        goto fail;
    mc_exposed_say(MC_EXPOSED_NODE, fd);
    *result = serve;
    return 0;
fail:
    mc_serve_destroy(serve);
    errno = error; /* of the listener: "address in use" is the caller's to handle */
    return rc;
}

uint16_t mc_serve_tcp_port(const struct mc_serve *serve)
{
    return serve->tcp_port;
}
const char *mc_serve_unix_path(const struct mc_serve *serve)
{
    return serve->unix_path;
}
struct event_base *mc_serve_base(struct mc_serve *serve)
{
    return serve->base;
}

uint32_t mc_serve_connections(const struct mc_serve *serve)
{
    uint32_t count = serve->guests.count + serve->greeters.count;
    for (uint32_t i = 0; i < serve->data_count; i++)
        count += atomic_load(&serve->data[i]->present);
    return count;
}

void mc_serve_set_limits(struct mc_serve *serve, uint32_t connections, uint32_t hello_ms, uint32_t idle_ms)
{
    mc_assert(!serve->started && mc_serve_connections(serve) == 0 && connections > 0);
    serve->hello_ms = hello_ms;
    serve->idle_ms = idle_ms;
    if (mc_connections_limit(serve, connections) < 0)
        mc_log(WARNING, "limit of data connections stays %" PRIu32, serve->guests_max);
}

int mc_serve_start(struct mc_serve *serve)
{
    mc_assert(!serve->started);
    mc_serve_data_start(serve);
    serve->started = mc_thread_start(&serve->thread, "mc-serve", mc_serve_run, serve) == 0;
    return serve->started ? 0 : MC_ERR_NO_MEMORY;
}

struct pinned { /* of memory that is served, or on its way to the serve thread or to its end */
    struct mc_let_go leaving;
    struct mc_serve *serve;
    struct mc_segment_memory *memory; /* with a reference */
    struct mc_rdma_memory *data, *index;
};

static void unpin_run(struct mc_let_go *leaving)
{
    struct pinned *pinned = (struct pinned *)(void *)leaving;
    (void)mc_rdma_memory_unregister(pinned->data);
    (void)mc_rdma_memory_unregister(pinned->index);
}

static void unpin_after(struct mc_let_go *leaving)
{
    struct pinned *pinned = (struct pinned *)(void *)leaving;
    mc_segment_memory_drop(pinned->memory);
    free(pinned);
}

static void unpin_forked(struct mc_let_go *leaving)
{
    struct pinned *pinned = (struct pinned *)(void *)leaving;
    mc_segment_memory_forked(pinned->memory);
}

/* The kernel unpins all of its pages. Peers' links to it have ended: nothing of theirs arrives there. */
static void unpin(struct pinned *pinned)
{
    pinned->leaving = (struct mc_let_go){.run = unpin_run, .after = unpin_after, .forked = unpin_forked};
    mc_let_go(&pinned->leaving);
}

static void pinned_drop(struct mc_serve *serve)
{
    if (serve->pinned != NULL)
        unpin(serve->pinned);
    serve->pinned = NULL;
    serve->server.rdma_data = serve->server.rdma_index = NULL;
}

static void on_pinned(void *argument)
{
    struct pinned *pinned = argument;
    struct mc_serve *serve = pinned->serve;
    if (serve->server.memory != pinned->memory || serve->pinned != NULL) { /* other memory is served meanwhile */
        unpin(pinned);
        return;
    }
    serve->pinned = pinned;
    serve->server.rdma_data = pinned->data;
    serve->server.rdma_index = pinned->index;
}

void mc_serve_set_rdma(struct mc_serve *serve, struct mc_rdma *rdma)
{
    mc_assert(!serve->started);
    serve->server.rdma = rdma;
}

void mc_serve_pin(struct mc_serve *serve, struct mc_segment_memory *memory)
{
    struct mc_rdma_range data = {.address = mc_segment_memory_data(memory),
                                 .length = mc_segment_memory_data_size(memory),
                                 .dmabuf_fd = -1,
                                 .is_remote_readable = true,
                                 .is_remote_writable = true,
                                 .numa_node = MC_RDMA_NODE_SOUGHT};
    struct mc_rdma_range index = {.address = (void *)(uintptr_t)mc_segment_memory_slots(memory),
                                  .length = mc_segment_memory_slot_count(memory) * sizeof(struct mc_slot),
                                  .dmabuf_fd = -1,
                                  .is_remote_readable = true,
                                  .numa_node = MC_RDMA_NODE_SOUGHT};
    struct pinned *pinned = calloc(1, sizeof(*pinned));
    if (serve->server.rdma == NULL || pinned == NULL) {
        free(pinned);
        return;
    }
    int rc = mc_rdma_memory_register(serve->server.rdma, &data, &pinned->data);
    if (rc == 0) {
        rc = mc_rdma_memory_register(serve->server.rdma, &index, &pinned->index);
        if (rc < 0)
            (void)mc_rdma_memory_unregister(pinned->data);
    }
    if (rc < 0) {
        mc_log(WARNING, "the segment cannot be registered for RDMA (%s): peers reach it by tcp", mc_error_name(rc));
        free(pinned);
        return;
    }
    mc_segment_memory_retain(memory);
    pinned->serve = serve;
    pinned->memory = memory;
    mc_serve_post(serve, on_pinned, pinned);
}

static bool has_links_of(const struct mc_serve_connection *connection, struct mc_id writer)
{
    return connection->lane.served != NULL && (mc_id_is_zero(writer) || mc_id_equal(connection->lane.peer, writer));
}

void mc_serve_cut_links(struct mc_serve *serve, struct mc_id writer)
{
    for (struct mc_serve_connection *one = serve->guests.first, *next; one != NULL; one = next) {
        next = one->next; /* closing one may only finish cuts, which close none */
        if (has_links_of(one, writer))
            mc_connection_close(one);
    }
}

void mc_serve_set_memory(struct mc_serve *serve, struct mc_segment_memory *memory)
{
    cuts_forget(serve);
    mc_connections_close(serve);
    pinned_drop(serve);
    if (memory != NULL) {
        mc_segment_memory_retain(memory);
        mc_segment_memory_set_owner(memory, serve->server.node, serve->server.incarnation);
    }
    struct mc_segment_memory *old = serve->server.memory;
    serve->server.memory = memory;
    mc_serve_data_memory(serve, memory);
    mc_segment_memory_drop(old);
}

static void cut_wait(struct mc_serve *serve, const struct mc_serve_cut *new_cut)
{
    struct mc_serve_cut *cut = serve->cuts;
    while (cut != NULL && (cut->slot != new_cut->slot || !mc_id_equal(cut->writer, new_cut->writer) ||
                           cut->is_clear != new_cut->is_clear))
        cut = cut->next;
    struct mc_serve_cut *next = cut == NULL ? serve->cuts : cut->next;
    if (cut == NULL) { /* else the master asks again after a broken connection: at most one per slot and writer waits */
        cut = calloc(1, sizeof(*cut));
        if (cut == NULL)
            abort();
        serve->cuts = cut;
    }
    *cut = *new_cut;
    cut->next = next;
    cuts_look_later(serve);
}

bool mc_serve_has_settled(struct mc_serve *serve, uint32_t slot, uint64_t generation,
                          void (*done)(void *context, uint32_t slot, uint64_t generation), void *context)
{
    struct mc_serve_cut clear = {
        .slot = slot, .generation = generation, .is_clear = true, .done = done, .context = context};
    if (serve->data_count == 0 || cut_is_done(serve, &clear))
        return true;
    cut_wait(serve, &clear);
    return false;
}

void mc_serve_cut(struct mc_serve *serve, uint32_t slot, uint64_t generation, struct mc_id writer,
                  void (*done)(void *context, uint32_t slot, uint64_t generation), void *context)
{
    if (serve->server.memory != NULL && mc_segment_memory_clear(serve->server.memory, slot, generation) < 0)
        mc_log_limited(ERROR, "the master cuts slot %" PRIu32 ", which the segment does not have", slot);
    mc_serve_cut_links(serve, writer);
    struct mc_serve_cut new_cut = {
        .slot = slot, .generation = generation, .writer = writer, .done = done, .context = context};
    if (cut_is_done(serve, &new_cut)) {
        done(context, slot, generation);
        return;
    }
    cut_wait(serve, &new_cut);
}

void mc_serve_end(struct mc_serve *serve)
{
    if (serve->started) {
        mc_serve_post(serve, serve_stop, serve);
        pthread_join(serve->thread, NULL);
    }
    mc_serve_data_end(serve);
    while (serve->posts != NULL)
        posts_run(serve);
    mc_serve_set_memory(serve, NULL);
    mc_let_go_await(); /* whose devices may be closed now */
    listener_stop(&serve->tcp);
    listener_stop(&serve->local);
    if (serve->unix_path[0] != 0 && serve->unix_path[0] != '@')
        (void)unlink(serve->unix_path);
    if (serve->posted != NULL)
        event_free(serve->posted);
    if (serve->cut_timer != NULL)
        event_free(serve->cut_timer);
    if (serve->rest_timer != NULL)
        event_free(serve->rest_timer);
    if (serve->stall_timer != NULL)
        event_free(serve->stall_timer);
    if (serve->base != NULL)
        event_base_free(serve->base);
    int fd = serve->post_fd;
    serve->post_fd = -1;
    mc_fd_close(fd);
}

void mc_serve_free(struct mc_serve *serve)
{
    for (uint32_t i = 0; i < serve->data_count; i++)
        mc_serve_free(serve->data[i]);
    free(serve->commits);
    free((void *)serve->connection_fds);
    free(serve->free_places);
    pthread_mutex_destroy(&serve->post_lock);
    free(serve);
}

void mc_serve_destroy(struct mc_serve *serve)
{
    if (serve == NULL)
        return;
    mc_serve_end(serve);
    mc_serve_free(serve);
}

void mc_serve_forked(struct mc_serve *serve)
{
    /* The descriptors that libevent made are left. Its epoll is shared with the parent: taking events out of it here
     * would take them from the parent. It is close-on-exec and watches nothing that this child keeps. */
    mc_fd_close(serve->tcp.fd);
    mc_fd_close(serve->local.fd);
    mc_fd_close(serve->post_fd);
    for (uint32_t i = 0; i < serve->places_used; i++) {
        int fd = atomic_exchange(&serve->connection_fds[i], 0) - 1;
        mc_fd_close(fd);
    }
    for (uint32_t i = 0; i < serve->data_count; i++)
        mc_serve_forked(serve->data[i]);
    if (serve->server.memory != NULL && serve->control == NULL)
        mc_segment_memory_forked(serve->server.memory);
}
