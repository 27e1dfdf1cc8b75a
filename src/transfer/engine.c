/* The life of an engine: opened, found by others of its process, forked, closed. */
#include "transfer/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "rdma/topology.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GPUS_MAX 32

/* ---- all engines of this process ---- */

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
    close(fd);
}

void mc_transfer_reset_fd(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
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

static void start_once(void)
{
    (void)pthread_atfork(NULL, NULL, on_fork_in_child);
}

bool mc_transfer_alive(const struct mc_transfer_engine *engine)
{
    if (engine == NULL)
        return false;
    if (engine->fork_count == atomic_load_explicit(&forks, memory_order_relaxed))
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

static void list_add(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    engine->next = list;
    list = engine;
    pthread_mutex_unlock(&list_lock);
}

static void list_remove(struct mc_transfer_engine *engine)
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
    pthread_mutex_lock(&list_lock);
    for (struct mc_transfer_engine *one = list; one != NULL; one = one->next)
        function(one, context);
    pthread_mutex_unlock(&list_lock);
}

void mc_transfer_withdraw_all(void)
{
    pthread_mutex_lock(&list_lock);
    for (struct mc_transfer_engine *one = list; one != NULL; one = one->next)
        mc_transfer_withdraw(one);
    pthread_mutex_unlock(&list_lock);
}

/* ---- opening ---- */

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    return strcmp(host, "::1") == 0 || (inet_pton(AF_INET, host, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127);
}

/* Who we are to others, and where to listen for them. */
static int choose_names(struct mc_transfer_engine *engine, const char *local_name, const char **listen_host)
{
    uint16_t port = 0;
    bool is_fine = mc_address_split(local_name, engine->host, sizeof(engine->host) - 8, &port) == 0;
    if (engine->metadata.is_p2p && !is_fine) {
        mc_log(ERROR, "local_hostname '%.100s': a host, IPv4 or IPv6 address is expected", local_name);
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (!engine->metadata.is_p2p) {
        if (local_name[0] == 0 || strlen(local_name) >= sizeof(engine->name)) {
            mc_log(ERROR, "local_hostname: a name of 1 to %zu bytes is expected", sizeof(engine->name) - 1);
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        }
        mc_network_address(engine->settings.use_ipv6, engine->host, sizeof(engine->host));
    }
    if (engine->settings.bind_address[0] != 0)
        snprintf(engine->host, sizeof(engine->host), "%s", engine->settings.bind_address);
    /* Who says that he is only to be reached from this machine, is. */
    bool is_v6 = engine->settings.use_ipv6 || strchr(engine->host, ':') != NULL;
    *listen_host = is_loopback(engine->host) ? engine->host : is_v6 ? "::" : "0.0.0.0";
    return 0;
}

static int open_unix(struct mc_transfer_engine *engine)
{
    if (!engine->settings.allow_host || mc_host_table_create(engine) < 0)
        return -1;
    snprintf(engine->unix_name, sizeof(engine->unix_name), "@mooncake-transfer-%016llx%016llx",
             (unsigned long long)engine->id.high, (unsigned long long)engine->id.low);
    int fd = mc_unix_listen(engine->unix_name);
    if (fd < 0)
        engine->unix_name[0] = 0;
    return fd;
}

static int open_sockets(struct mc_transfer_engine *engine, const char *local_name)
{
    const char *listen_host;
    int rc = choose_names(engine, local_name, &listen_host);
    if (rc < 0)
        return rc;
    int rpc = mc_network_listen(&engine->settings, listen_host, &engine->rpc_port);
    int data = rpc < 0 ? -1 : mc_network_listen(&engine->settings, listen_host, &engine->data_port);
    if (data < 0) {
        if (rpc >= 0)
            close(rpc);
        return MC_TRANSFER_ERR_SOCKET;
    }
    if (engine->metadata.is_p2p)
        mc_address_join(engine->name, sizeof(engine->name), engine->host, engine->rpc_port);
    else
        snprintf(engine->name, sizeof(engine->name), "%s", local_name);
    return mc_service_start(engine, rpc, data, open_unix(engine));
}

void mc_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static struct mc_transfer_engine *allocate(void)
{
    struct mc_transfer_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return NULL;
    engine->fork_count = atomic_load(&forks);
    engine->id = mc_random_id();
    engine->host_id = mc_host_id();
    engine->host_table_fd = -1;
    engine->notes_end = &engine->notes;
    engine->ready_end = &engine->ready;
    engine->threads_max = MC_TRANSFER_THREADS_MAX;
    engine->silent_threads_max = MC_SILENT_THREADS_MAX;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->publish_lock, NULL);
    mc_condition_init(&engine->changed);
    mc_condition_init(&engine->work_came);
    mc_condition_init(&engine->names_changed);
    mc_settings_read(&engine->settings);
    mc_metrics_report_init(&engine->metrics);
    mc_gpu_look();
    return engine;
}

static const char *text_of(const char *text)
{
    return text == NULL ? "" : text;
}

int mc_transfer_start_rdma(struct mc_transfer_engine *engine, const char *device_name, const char *matrix)
{
    struct mc_rdma *rdma = NULL, *none = NULL;
    if (engine->rdma != NULL)
        return 0;
    int rc = mc_rdma_start(device_name, matrix, &rdma);
    if (rc < 0)
        return rc;
    if (!atomic_compare_exchange_strong(&engine->rdma, &none, rdma)) {
        mc_rdma_close(rdma); /* another call was faster */
        return 0;
    }
    return mc_memory_pin_all(engine) == 0 ? 0 : MC_ERR_NO_MEMORY;
}

/* Where there is no device tcp does it. */
static void start_rdma(struct mc_transfer_engine *engine, const char *device_name)
{
    int rc = mc_transfer_start_rdma(engine, device_name, NULL);
    if (rc < 0)
        mc_log(WARNING, "protocol rdma: %s; tcp is used",
               rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "no usable RDMA device here (mooncake_doctor says why)"
               : rc == MC_ERR_INVALID_PARAMS            ? "device_name names a device that is not there"
                                                        : mc_error_name(rc));
}

int mc_transfer_open(const struct mc_transfer_config *config, struct mc_transfer_engine **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_once);
    if (config == NULL || out == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    const char *protocol = text_of(config->protocol);
    if (protocol[0] != 0 && strcmp(protocol, "tcp") != 0 && strcmp(protocol, "rdma") != 0) {
        mc_log(ERROR, "protocol '%.40s': tcp or rdma is expected", protocol);
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    struct mc_transfer_engine *engine = allocate();
    if (engine == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    if (strcmp(protocol, "rdma") == 0 && getenv("MC_FORCE_TCP") == NULL)
        start_rdma(engine, text_of(config->device_name));
    int rc = mc_metadata_init(&engine->metadata, text_of(config->metadata_server));
    if (rc == 0)
        rc = open_sockets(engine, text_of(config->local_name));
    if (rc == 0)
        rc = mc_transfer_publish(engine);
    if (rc == 0)
        rc = mc_transfer_names_start(engine);
    list_add(engine);
    if (rc < 0) {
        mc_transfer_close(engine);
        return rc;
    }
    mc_log(INFO, "transfer engine %s: handshakes on port %u, data on port %u", engine->name, (unsigned)engine->rpc_port,
           (unsigned)engine->data_port);
    *out = engine;
    return 0;
}

/* ---- closing ---- */

static void free_notes(struct mc_transfer_engine *engine)
{
    while (engine->notes != NULL) {
        struct mc_notification *next = engine->notes->next;
        free(engine->notes->name);
        free(engine->notes->message);
        free(engine->notes);
        engine->notes = next;
    }
}

void mc_transfer_close(struct mc_transfer_engine *engine)
{
    if (engine == NULL || engine->fork_count != atomic_load(&forks))
        return; /* in a child it is left behind: locks may be held by threads that are not there */
    engine->is_closing = true;
    mc_transfer_names_stop(engine);
    mc_transfer_withdraw(engine);
    list_remove(engine);
    mc_background_stop(engine);
    if (engine->service != NULL)
        mc_memory_leave_all(engine);
    mc_service_stop(engine);
    mc_peers_free(engine);
    mc_metrics_free(&engine->metrics);
    mc_memory_free(engine);
    mc_host_table_destroy(engine);
    mc_rdma_close(engine->rdma);
    free_notes(engine);
    mc_buffer_free(&engine->document);
    pthread_cond_destroy(&engine->names_changed);
    pthread_cond_destroy(&engine->work_came);
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->publish_lock);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* ---- looking ---- */

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

char *mc_transfer_topology(const char *filter)
{
    struct mc_topology_gpu gpus[GPUS_MAX];
    int count = 0;
    struct mc_topology *topology = malloc(sizeof(*topology));
    struct mc_buffer out = {0};
    if (topology == NULL)
        return NULL;
    mc_gpu_look();
    while (count < GPUS_MAX && mc_gpu_pci_address(count, gpus[count].pci_bus_id, sizeof(gpus[count].pci_bus_id)) == 0) {
        snprintf(gpus[count].location, sizeof(gpus[count].location), "cuda:%d", count);
        count++;
    }
    mc_topology_local(topology, filter, gpus, (size_t)count);
    mc_topology_write(topology, &out);
    mc_buffer_append(&out, "", 1);
    free(topology);
    return (char *)out.data;
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
