/* Threads beside the serve thread, each with a loop of its own for data connections by tcp, which the serve thread
 * accepts and deals out. What they copy delays nothing that the serve thread does, which alone writes the index:
 *
 *   - a COMMIT goes to it by a post, with all that came in one receive
 *   - a connection over which a link is to be set up goes to it as a whole
 *   - bytes of a WRITE are stored in moments that are announced like any writer's copy (writers.h): a CUT, and a CLEAR
 *     (mc_serve_has_settled), are answered when no such moment of before lasts, and an inventory names it
 *   - READ_END is made after the last byte was taken from the segment
 *   - memory that is given up says so itself; a data thread that is late sends and stores nothing of it */
#include "base/error.h"
#include "env/log.h"
#include "env/setting.h"
#include "env/thread.h"
#include "store/segment/serve_inside.h"

#include <stdlib.h>
#include <string.h>

#define PROCESSORS_FOR_ONE 4u /* by default a data thread for so many, */
#define BY_DEFAULT_MAX 4u     /* at most so many, and at least one */

static struct mc_serve *serve_with(struct mc_lane_server *server)
{
    return (struct mc_serve *)(void *)((char *)server - offsetof(struct mc_serve, server));
}

static void *allocate(size_t size)
{
    void *made = calloc(1, size);
    if (made == NULL)
        abort(); /* as the buffers do: a lost post would be a lost answer */
    return made;
}

/* ---- how many ---- */

uint32_t mc_serve_threads_wanted(void)
{
    uint32_t by_default = mc_threads_by_processors(PROCESSORS_FOR_ONE, BY_DEFAULT_MAX);
    return (uint32_t)mc_setting_number(MC_SERVE_THREADS, "", 0, MC_SERVE_THREADS_MAX, by_default);
}

uint32_t mc_serve_thread_count(const struct mc_serve *serve)
{
    return serve->data_count;
}

/* ---- commits: data thread to serve thread ---- */

struct commit_batch {
    struct mc_serve *control;
    struct mc_segment_memory *memory; /* with a reference */
    struct mc_serve_commit *items;
    size_t count;
};

static void on_commits(void *argument)
{
    struct commit_batch *commits = argument;
    struct mc_lane_server *server = &commits->control->server;
    for (size_t i = 0; i < commits->count && commits->memory == server->memory; i++)
        mc_lane_commit(server, &commits->items[i].item, commits->items[i].is_lost);
    if (server->hooks.flush != NULL)
        server->hooks.flush(server->hooks.context);
    mc_segment_memory_drop(commits->memory);
    free(commits->items);
    free(commits);
}

static int commit_add(struct mc_lane_server *server, const struct mc_wire_commit_item *item, bool is_lost)
{
    struct mc_serve *serve = serve_with(server);
    if (serve->commit_count == serve->commit_capacity) {
        size_t capacity = serve->commit_capacity == 0 ? 8 : serve->commit_capacity * 2;
        struct mc_serve_commit *commits = realloc(serve->commits, capacity * sizeof(*commits));
        if (commits == NULL)
            return MC_ERR_NO_MEMORY;
        serve->commits = commits;
        serve->commit_capacity = capacity;
    }
    serve->commits[serve->commit_count++] = (struct mc_serve_commit){*item, is_lost};
    return 0;
}

static void commits_post(void *context)
{
    struct mc_serve *serve = context;
    if (serve->commit_count == 0)
        return;
    struct commit_batch *commits = allocate(sizeof(*commits));
    *commits = (struct commit_batch){serve->control, serve->server.memory, serve->commits, serve->commit_count};
    mc_segment_memory_retain(commits->memory);
    serve->commits = NULL;
    serve->commit_count = serve->commit_capacity = 0;
    mc_serve_post(serve->control, on_commits, commits);
}

static void on_missed(void *argument)
{
    struct mc_serve *control = argument;
    if (control->server.hooks.missed != NULL)
        control->server.hooks.missed(control->server.hooks.context);
}

static void missed_post(void *context)
{
    const struct mc_serve *serve = context;
    mc_serve_post(serve->control, on_missed, serve->control);
}

/* ---- connections ---- */

struct handed {
    struct mc_serve *serve;
    int fd;
};

static void on_handed(void *argument)
{
    struct handed *handed = argument;
    struct mc_serve *serve = handed->serve;
    atomic_fetch_sub(&serve->on_way, 1);
    atomic_fetch_sub(&serve->present, 1);
    mc_socket_way_end(handed->fd);
    mc_connection_open(serve, false, handed->fd);
    free(handed);
}

/* The one with the fewest, of those that have taken all that they were given: one that stands still gets no more. */
bool mc_serve_hand_out(struct mc_serve *serve, int fd)
{
    struct mc_serve *least = NULL;
    uint64_t least_load = UINT64_MAX;
    for (uint32_t i = 0; i < serve->data_count; i++) {
        struct mc_serve *one = serve->data[i];
        uint64_t load = (uint64_t)atomic_load(&one->on_way) << 32 | atomic_load(&one->present);
        if (load < least_load) {
            least = one;
            least_load = load;
        }
    }
    if (least == NULL)
        return false;
    struct handed *handed = allocate(sizeof(*handed));
    *handed = (struct handed){least, fd};
    atomic_fetch_add(&least->on_way, 1);
    atomic_fetch_add(&least->present, 1);
    mc_socket_way_begin(fd);
    mc_serve_post(least, on_handed, handed);
    return true;
}

struct moved {
    struct mc_serve *control;
    struct mc_segment_memory *memory; /* with a reference; of its hello */
    struct mc_serve_connection *connection;
};

static void on_moved(void *argument)
{
    struct moved *moved = argument;
    struct mc_serve_connection *connection = moved->connection;
    mc_socket_way_end(connection->fd);
    if (moved->memory == moved->control->server.memory) {
        mc_connection_adopt(moved->control, connection);
    } else { /* it has ended like all that were here */
        mc_lane_free(&connection->lane);
        mc_fd_close(connection->fd);
        free(connection);
    }
    mc_segment_memory_drop(moved->memory);
    free(moved);
}

void mc_serve_hand_back(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    struct moved *moved = allocate(sizeof(*moved));
    mc_socket_way_begin(connection->fd);
    *moved = (struct moved){serve->control, serve->server.memory, mc_connection_release(connection)};
    mc_segment_memory_retain(moved->memory);
    mc_serve_post(serve->control, on_moved, moved);
}

static void on_give_one(void *argument)
{
    (void)mc_connections_give_one(argument);
}

void mc_serve_data_give_one(struct mc_serve *serve)
{
    for (uint32_t i = 0; i < serve->data_count; i++)
        mc_serve_post(serve->data[i], on_give_one, serve->data[i]);
}

/* ---- what all threads have alike ---- */

struct memory_post {
    struct mc_serve *serve;
    struct mc_segment_memory *memory; /* with a reference; may be NULL */
};

static void on_memory(void *argument)
{
    struct memory_post *post = argument;
    mc_serve_set_memory(post->serve, post->memory);
    mc_segment_memory_drop(post->memory);
    free(post);
}

/* Connections that are dealt out later come there later, so they meet the new one. */
void mc_serve_data_memory(struct mc_serve *serve, struct mc_segment_memory *memory)
{
    for (uint32_t i = 0; i < serve->data_count; i++) {
        struct mc_serve *one = serve->data[i];
        if (!one->started) {
            mc_serve_set_memory(one, memory);
        } else if (!one->stopping) {
            struct memory_post *post = allocate(sizeof(*post));
            *post = (struct memory_post){one, memory};
            if (memory != NULL)
                mc_segment_memory_retain(memory);
            mc_serve_post(one, on_memory, post);
        }
    }
}

struct keys_post {
    struct mc_serve *serve;
    struct mc_lane_keys keys[2];
    uint64_t number;
    uint8_t mark;
};

static void on_keys(void *argument)
{
    struct keys_post *post = argument;
    struct mc_lane_server *server = &post->serve->server;
    memcpy(server->keys, post->keys, sizeof(server->keys));
    server->key_number = post->number;
    server->key_mark = post->mark;
    unsigned count = mc_serve_close_expired(post->serve);
    if (count > 0)
        mc_log(INFO, "%u data connections were closed, as their tickets have expired", count);
    explicit_bzero(post, sizeof(*post));
    free(post);
}

void mc_serve_data_keys(struct mc_serve *serve)
{
    for (uint32_t i = 0; i < serve->data_count; i++) {
        struct keys_post *post = allocate(sizeof(*post));
        *post = (struct keys_post){
            .serve = serve->data[i], .number = serve->server.key_number, .mark = serve->server.key_mark};
        memcpy(post->keys, serve->server.keys, sizeof(post->keys));
        mc_serve_post(serve->data[i], on_keys, post);
    }
}

/* ---- life ---- */

void mc_serve_threads(struct mc_serve *serve, uint32_t count)
{
    mc_assert(!serve->started && serve->server.memory == NULL);
    for (uint32_t i = serve->data_count; i < count && i < MC_SERVE_THREADS_MAX; i++) {
        struct mc_lane_server server = serve->server;
        struct mc_serve *one;
        server.hand_over = commit_add;
        server.hooks = (struct mc_serve_hooks){.flush = commits_post, .missed = missed_post};
        if (mc_serve_make(&server, &one) < 0) {
            mc_log(WARNING, "%u of %u threads for data connections: there is no memory for more", (unsigned)i,
                   (unsigned)count);
            return;
        }
        one->server.hooks.context = one;
        one->control = serve;
        serve->data[serve->data_count++] = one;
    }
}

void mc_serve_data_start(struct mc_serve *serve)
{
    uint32_t wanted = serve->data_count;
    for (uint32_t i = 0; i < wanted; i++) {
        struct mc_serve *one = serve->data[i];
        one->hello_ms = serve->hello_ms;
        one->idle_ms = serve->idle_ms;
        one->started = (one->guests_max == serve->guests_max || mc_connections_limit(one, serve->guests_max) == 0) &&
                       mc_thread_start(&one->thread, "mc-data", mc_serve_run, one) == 0;
        if (one->started)
            continue;
        mc_log(WARNING, "only %u of %u threads for data connections could be started%s", (unsigned)i, (unsigned)wanted,
               i == 0 ? ": the thread that talks to the master serves them, too" : "");
        serve->data_count = i;
        for (uint32_t j = i; j < wanted; j++)
            mc_serve_destroy(serve->data[j]);
        return;
    }
}

void mc_serve_data_end(struct mc_serve *serve)
{
    for (uint32_t i = 0; i < serve->data_count; i++)
        mc_serve_end(serve->data[i]);
}
