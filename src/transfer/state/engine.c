/* The engines of this process: found by each other, left alone after a fork. */
#include "transfer/state/metrics.h"
#include "transfer/state/engine.h"

#include "env/log.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t list_changed = PTHREAD_COND_INITIALIZER;
static struct mc_transfer_engine *list; /* also in a forked child, where nothing of it is touched */
static _Atomic uint32_t forks;

#define FDS_MAX 65536u
static _Atomic uint64_t open_fds[FDS_MAX / 64]; /* a bit each */

void mc_transfer_note_fd(int fd)
{
    if (fd >= 0 && (uint32_t)fd < FDS_MAX)
        atomic_fetch_or(&open_fds[fd / 64], 1ull << (fd % 64));
}

void mc_transfer_forget_fd(int fd)
{
    if (fd >= 0 && (uint32_t)fd < FDS_MAX)
        atomic_fetch_and(&open_fds[fd / 64], ~(1ull << (fd % 64)));
}

void mc_transfer_close_fd(int fd)
{
    mc_transfer_forget_fd(fd); /* first: the number may be somebody else's right after */
    mc_fd_close(fd);
}

void mc_transfer_reset_fd(int fd)
{
    (void)mc_socket_reset_at_close(fd);
    mc_transfer_close_fd(fd);
}

/* A child that kept our sockets would hide our end from our peers. */
static void on_fork_in_child(void)
{
    for (uint32_t i = 0; i < FDS_MAX / 64; i++) {
        uint64_t bits = atomic_exchange(&open_fds[i], 0);
        for (uint32_t bit = 0; bits != 0; bit++, bits >>= 1)
            if ((bits & 1) != 0)
                close((int)(i * 64 + bit));
    }
    atomic_fetch_add(&forks, 1);
    pthread_mutex_init(&list_lock, NULL);
    pthread_cond_init(&list_changed, NULL);
    list = NULL;
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, on_fork_in_child);
}

uint32_t mc_transfer_fork_count(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

bool mc_transfer_alive(const struct mc_transfer_engine *engine)
{
    if (engine == NULL)
        return false;
    if (engine->fork_count == mc_transfer_fork_count())
        return !engine->is_closing;
    mc_log_limited(ERROR, "a transfer engine was used after fork(): open a new one in the child process");
    return false;
}

struct mc_transfer_engine *mc_transfer_enter(struct mc_id id)
{
    pthread_mutex_lock(&list_lock);
    struct mc_transfer_engine *one = list;
    while (one != NULL && !mc_id_equal(one->id, id))
        one = one->next;
    if (one != NULL)
        one->users++;
    pthread_mutex_unlock(&list_lock);
    return one;
}

void mc_transfer_leave(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    if (--engine->users == 0)
        pthread_cond_broadcast(&list_changed);
    pthread_mutex_unlock(&list_lock);
}

struct mc_transfer_engine *mc_transfer_enter_drained(void)
{
    struct mc_transfer_engine *drained = NULL;
    pthread_mutex_lock(&list_lock);
    for (struct mc_transfer_engine *one = list; one != NULL; one = one->next) {
        if (!one->drains_on_signals)
            continue;
        one->users++;
        one->next_drained = drained;
        drained = one;
    }
    pthread_mutex_unlock(&list_lock);
    return drained;
}

void mc_transfer_list_add(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    engine->next = list;
    list = engine;
    pthread_mutex_unlock(&list_lock);
}

void mc_transfer_list_remove(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    for (struct mc_transfer_engine **at = &list; *at != NULL; at = &(*at)->next) {
        if (*at == engine) {
            *at = engine->next;
            break;
        }
    }
    while (engine->users > 0)
        pthread_cond_wait(&list_changed, &list_lock);
    pthread_mutex_unlock(&list_lock);
}

void mc_transfer_each(void (*function)(struct mc_transfer_engine *engine, void *context), void *context)
{
    size_t count = 0, used = 0;
    pthread_mutex_lock(&list_lock);
    for (const struct mc_transfer_engine *one = list; one != NULL; one = one->next)
        count++;
    struct mc_transfer_engine **all = malloc((count + 1) * sizeof(struct mc_transfer_engine *));
    for (struct mc_transfer_engine *one = list; all != NULL && one != NULL; one = one->next) {
        one->users++;
        all[used++] = one;
    }
    pthread_mutex_unlock(&list_lock);
    if (used < count)
        mc_log(ERROR, "out of memory: %zu transfer engines were left out", count);
    for (size_t i = 0; i < used; i++) {
        function(all[i], context);
        mc_transfer_leave(all[i]);
    }
    free(all);
}

/* ---- what an engine says of itself ---- */

uint16_t mc_transfer_rpc_port(const struct mc_transfer_engine *engine)
{
    return engine == NULL ? 0 : engine->rpc_port;
}

const char *mc_transfer_name(const struct mc_transfer_engine *engine)
{
    return engine == NULL ? "" : engine->name;
}

const char *mc_transfer_host(const struct mc_transfer_engine *engine)
{
    return engine == NULL ? "" : engine->host;
}

void mc_transfer_counters(struct mc_transfer_engine *engine, struct mc_transfer_counters *counters)
{
    if (counters == NULL)
        return;
    if (engine == NULL) {
        *counters = (struct mc_transfer_counters){0};
        return;
    }
    *counters = (struct mc_transfer_counters){.failed = engine->count.failed,
                                              .timed_out = engine->count.timed_out,
                                              .fallbacks = engine->count.fallbacks,
                                              .served_bytes = engine->count.served_bytes,
                                              .refused = engine->count.refused};
    struct mc_tally sum;
    pthread_mutex_lock(&engine->lock);
    mc_metrics_sum(&engine->metrics, &sum);
    pthread_mutex_unlock(&engine->lock);
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        counters->bytes[path] = sum.bytes[path][MC_TRANSFER_READ] + sum.bytes[path][MC_TRANSFER_WRITE];
        counters->items[path] = sum.items[path][MC_TRANSFER_READ] + sum.items[path][MC_TRANSFER_WRITE];
    }
}

const char *mc_transfer_error_text(int code)
{
    switch (code) {
#define ROW(name, value, text)                                                                                         \
    case MC_TRANSFER_ERR_##name:                                                                                       \
        return text;
        MC_TRANSFER_ERROR_MAP(ROW)
#undef ROW
    default:
        return code >= 0 ? "fine" : "unknown";
    }
}
