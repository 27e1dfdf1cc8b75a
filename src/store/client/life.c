/* The life of a store: what it is made of begins and ends here; fork. */
#include "store/client/blank.h"
#include "store/client/life.h"

#include "base/address.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/reach.h"
#include "env/thread.h"
#include "env/unread.h"
#include "rdma/rdma.h"
#include "store/client/disks.h"
#include "store/client/endpoints.h"
#include "store/client/heartbeat.h"
#include "store/client/hot.h"
#include "store/client/link.h"
#include "store/client/preconnect.h"
#include "store/client/sessions.h"
#include "store/client/state.h"
#include "store/client/stripes.h"
#include "store/client/threads.h"
#include "store/owner/owner.h"
#include "store/wire/proof.h"
#include "store/segment/let_go.h"
#include "store/segment/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define DATA_DIR_WAIT_NS 2000000000ull
#define REACH_NS 5000000000ull /* a file system that has not answered by then hangs */
#define CLOSE_POLL_US 200      /* between looks at the calls in progress */
#define CALL_TIMEOUT_MS_DEFAULT 5000u

/* ---- fork: the child's stores are dead and harmless ---- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mc_store *registry;

static void before_fork(void)
{
    pthread_mutex_lock(&registry_lock);
    mc_let_go_before_fork();
}
static void after_fork_parent(void)
{
    mc_let_go_after_fork_parent();
    pthread_mutex_unlock(&registry_lock);
}

static struct mc_owner *owner_of(struct mc_store *store)
{
    struct mc_owner *owner = atomic_load(&store->owner);
    return owner != NULL ? owner : atomic_load(&store->owner_coming);
}

static void after_fork_child(void)
{
    /* Only closes descriptors and sets flags: locks of the store may be held by threads that do not exist here. */
    for (struct mc_store *store = registry; store != NULL; store = store->next) {
        atomic_store(&store->forked, true);
        for (struct mc_master_link *link = store->idle; link != NULL; link = link->next)
            close(link->fd);
        for (struct mc_master_link *link = store->borrowed; link != NULL; link = link->next_borrowed)
            close(link->fd);
        if (store->heartbeat != NULL)
            mc_heartbeat_forked(store->heartbeat);
        struct mc_owner *owner = owner_of(store);
        if (owner != NULL)
            mc_owner_forked(owner);
        mc_paths_forked(store->paths);
    }
    mc_let_go_after_fork_child();
    registry = NULL; /* a child of this child must not close these numbers again: they may be somebody else's */
    pthread_mutex_init(&registry_lock, NULL);
}

static void install_fork_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void registry_add(struct mc_store *store)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
    pthread_mutex_lock(&registry_lock);
    store->next = registry;
    registry = store;
    pthread_mutex_unlock(&registry_lock);
}

static void registry_remove(struct mc_store *store)
{
    pthread_mutex_lock(&registry_lock);
    for (struct mc_store **at = &registry; *at != NULL; at = &(*at)->next) {
        if (*at == store) {
            *at = store->next;
            break;
        }
    }
    pthread_mutex_unlock(&registry_lock);
}

/* ---- begin ---- */

static int parse_paths(const char *text, unsigned *allowed)
{
    static const struct {
        const char *name;
        unsigned path;
    } names[] = {{"local", MC_PATH_LOCAL},
                 {"shm", MC_PATH_SHM},
                 {"rdma", MC_PATH_RDMA},
                 {"tcp", MC_PATH_TCP},
                 {"all", MC_PATH_ALL}};
    *allowed = 0;
    while (*text != 0) {
        size_t length = strcspn(text, ", "), i;
        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            if (strlen(names[i].name) == length && strncasecmp(names[i].name, text, length) == 0)
                break;
        }
        if (length > 0 && i == sizeof(names) / sizeof(names[0])) {
            mc_log(ERROR, "unknown path \"%.*s\" in MC_PATHS or paths; known: local, shm, rdma, tcp", (int)length,
                   text);
            return MC_ERR_INVALID_PARAMS;
        }
        *allowed |= length > 0 ? names[i].path : 0;
        text += length;
        text += strspn(text, ", ");
    }
    if (*allowed == 0)
        *allowed = MC_PATH_ALL;
    return 0;
}

static bool is_protocol(const struct mc_store_config *config, const char *name)
{
    return config->protocol != NULL && strcasecmp(config->protocol, name) == 0;
}

/* 0: known. One that only asks has no memory, of its own or of others, to move bytes to. */
static int take_protocol(struct mc_store *store, const struct mc_store_config *config)
{
    bool is_asker = is_protocol(config, "rpc_only");
    if (is_asker && (config->global_segment_size > 0 || config->local_buffer_size > 0))
        mc_log(WARNING, "protocol rpc_only: this store only asks what there is; it lends no memory, and puts and gets "
                        "are refused, whatever global_segment_size and local_buffer_size say");
    if (is_protocol(config, "efa"))
        mc_log(WARNING, "protocol efa: there is no EFA in this build; shared memory and tcp are used");
    store->only_asks = is_asker;
    store->segment_size = is_asker ? 0 : config->global_segment_size;
    store->local_buffer_size = is_asker ? 0 : config->local_buffer_size;
    if (is_asker || config->protocol == NULL || config->protocol[0] == 0 || is_protocol(config, "tcp") ||
        is_protocol(config, "rdma") || is_protocol(config, "efa"))
        return 0;
    mc_log(ERROR,
           "unknown protocol \"%s\"; use \"tcp\" or \"rdma\" (same-host peers use shared memory by themselves), "
           "or \"rpc_only\"",
           config->protocol);
    return MC_ERR_INVALID_PARAMS;
}

static uint32_t timeout_from_environment(void)
{
    const char *text = mc_variable(MC_RPC_TIMEOUT_MS);
    if (text == NULL || text[0] == 0)
        return CALL_TIMEOUT_MS_DEFAULT;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != 0 || value == 0 || value > 86400000) {
        mc_log(WARNING, "MC_RPC_TIMEOUT_MS=%s is not a number of milliseconds from 1 to 86400000; %u is used", text,
               CALL_TIMEOUT_MS_DEFAULT);
        return CALL_TIMEOUT_MS_DEFAULT;
    }
    return value < 0 ? 86400000u : (uint32_t)value; /* the original: negative = no limit */
}

static bool take_stamp(struct mc_store *store, const char *stamp)
{
    const char *text = stamp != NULL && stamp[0] != 0 ? stamp : mc_variable(MC_STORE_STAMP);
    size_t length = text == NULL ? 0 : strlen(text);
    if (length > MC_STAMP_TEXT_MAX) {
        mc_log(ERROR, "the stamp has %zu bytes; %u are the most", length, MC_STAMP_TEXT_MAX);
        return false;
    }
    store->stamp = mc_stamp_of(mc_span(text, length));
    mc_scope_stamp(&store->scope, store->stamp);
    if (length > 0)
        mc_log(INFO, "only objects with the stamp \"%s\" are seen", text);
    return true;
}

/* Checks the configuration and copies it; nothing else is touched but the limit of open files. */
static int configure(struct mc_store *store, const struct mc_store_config *config, char *host, size_t host_size,
                     uint16_t *port, unsigned *allowed)
{
    const char *paths = mc_variable(MC_PATHS);
    mc_unread_tell();
    if (config->local_hostname == NULL || mc_address_split(config->local_hostname, host, host_size, port) < 0) {
        mc_log(ERROR, "local_hostname \"%s\" is not host or host:port",
               config->local_hostname == NULL ? "" : config->local_hostname);
        return MC_ERR_INVALID_PARAMS;
    }
    if (!mc_scope_make(&store->scope, mc_span_string(config->tenant == NULL ? "" : config->tenant))) {
        mc_log(ERROR, "tenant_id is no name: 1 to %u characters that can be printed, the first not \"_\"",
               MC_TENANT_NAME_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    if (!take_stamp(store, config->stamp))
        return MC_ERR_INVALID_PARAMS;
    mc_file_limit_raise();
    int rc = take_protocol(store, config);
    if (rc == 0)
        rc = parse_paths(paths != NULL ? paths : config->paths != NULL ? config->paths : "", allowed);
    store->call_timeout_ms = config->call_timeout_ms != 0 ? config->call_timeout_ms : timeout_from_environment();
    return rc;
}

static void fd_opened(void *context, int fd)
{
    (void)mc_paths_fd_add(context, fd); /* none is left: a forked child keeps one open */
}
static void fd_closing(void *context, int fd)
{
    mc_paths_fd_forget(context, fd);
}

/* Where there is no device tcp does it. */
static void start_rdma(struct mc_store *store, const struct mc_store_config *config)
{
    bool is_named = config->rdma_devices != NULL && config->rdma_devices[0] != 0;
    struct mc_rdma_options options = {.filter = is_named ? config->rdma_devices : mc_variable(MC_MS_FILTERS),
                                      .fd_opened = fd_opened,
                                      .fd_closing = fd_closing,
                                      .context = store->paths};
    bool is_asked = is_protocol(config, "rdma");
    if ((!is_asked && mc_variable(MC_FORCE_HCA) == NULL) || mc_variable(MC_FORCE_TCP) != NULL)
        return;
    int rc = mc_rdma_open(&options, &store->rdma);
    if (rc == 0) {
        mc_paths_set_rdma(store->paths, store->rdma);
        mc_paths_prepare_rdma(store->paths);
    } else {
        mc_log(WARNING, "protocol rdma: %s; shared memory and tcp are used",
               rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "no usable RDMA device here (mooncake_doctor says why)"
               : rc == MC_ERR_INVALID_PARAMS            ? "rdma_devices names a device that is not there"
                                                        : mc_error_name(rc));
    }
}

static int capacity_of(const struct mc_store *store, const char *data_dir, uint64_t until_ns, uint64_t *capacity)
{
    struct mc_memory_limits limits;
    const char *reason;
    mc_memory_limits_read(&limits);
    int rc = mc_memory_capacity_in(data_dir, store->segment_size, &limits, until_ns, capacity, &reason);
    if (rc < 0)
        return rc;
    if (reason != NULL)
        mc_log(WARNING, "global_segment_size %" PRIu64 " is limited to %" PRIu64 " bytes by %s", store->segment_size,
               *capacity, reason);
    return *capacity == 0 ? MC_ERR_NO_MEMORY : 0;
}

/* Half of what is left of the call, or so long. */
static uint64_t part_until_ns(uint64_t deadline_ns, uint64_t most_ns)
{
    uint64_t now_ns = mc_clock_ns(), half_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / 2 : 0;
    return now_ns + (half_ns < most_ns ? half_ns : most_ns);
}

/* Without its data directory it would come as a new node, and the master would give up what lies there. */
static int data_dir_refuse(const char *data_dir)
{
    mc_log(
        ERROR,
        "the data directory %s does not answer: its file system hangs, as one of NFS does whose server is away. "
        "What an earlier process left there cannot be looked at, and this one does not begin without. See to it that "
        "it answers; or give another directory (MC_DATA_DIR; best on tmpfs, as /dev/shm) or none, and start this "
        "process again: then what lies there is lost",
        data_dir);
    return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
}

/* All that the segment lies on is touched for the first time, at once: none has less time since another hangs. */
static int disks_of(struct mc_store *store, const struct mc_store_config *asked, const char *data_dir,
                    uint64_t until_ns, struct mc_disks *disks)
{
    const char *paths[1 + MC_OWNER_DISKS_MAX] = {data_dir == NULL ? "" : data_dir};
    bool answers[1 + MC_OWNER_DISKS_MAX];
    pthread_mutex_lock(&store->lock);
    struct mc_disks_told told = store->disks_told;
    pthread_mutex_unlock(&store->lock);
    int rc = mc_disks_of(asked, &told, disks);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < disks->count; i++)
        paths[1 + i] = disks->list[i].path;
    mc_path_answers_each(paths, 1 + disks->count, until_ns, answers);
    if (!answers[0]) {
        mc_disks_free(disks);
        return data_dir_refuse(data_dir);
    }
    mc_disks_settle(asked, &told, answers + 1, disks);
    return 0;
}

static int start_owner(struct mc_store *store, const struct mc_store_config *asked, const struct mc_numa_nodes *nodes,
                       const char *host, uint16_t port, unsigned allowed, uint64_t deadline_ns)
{
    struct mc_owner *owner;
    uint64_t capacity;
    const char *seen_host = mc_heartbeat_local_host(store->heartbeat);
    const char *advertise = host;
    if (mc_address_is_loopback(host) && seen_host[0] != 0 && !mc_address_is_loopback(seen_host)) {
        mc_log(WARNING, "local_hostname is %s but the master is on another machine; others are told %s", host,
               seen_host);
        advertise = seen_host;
    }
    const char *data_dir = asked->data_dir != NULL ? asked->data_dir : mc_variable(MC_DATA_DIR);
    struct mc_disks disks;
    int rc = disks_of(store, asked, data_dir, part_until_ns(deadline_ns, REACH_NS), &disks);
    if (rc < 0)
        return rc;
    /* Whoever works there may have been stopped. */
    uint64_t data_dir_until_ns = part_until_ns(deadline_ns, DATA_DIR_WAIT_NS);
    rc = capacity_of(store, data_dir, data_dir_until_ns, &capacity);
    if (rc < 0) {
        mc_disks_free(&disks);
        return rc;
    }
    struct mc_owner_config config = {.paths = store->paths,
                                     .disks = disks.list,
                                     .disk_count = disks.count,
                                     .rdma = store->rdma,
                                     .master_address = store->master.configured,
                                     .master_node = store->master_node,
                                     .node = store->node,
                                     .incarnation = store->incarnation,
                                     .advertise_host = advertise,
                                     .port = port,
                                     .unix_allowed = (allowed & MC_PATH_SHM) != 0,
                                     .capacity = capacity,
                                     .nodes = nodes,
                                     .data_dir = data_dir,
                                     .data_dir_until_ns = data_dir_until_ns,
                                     .drop_on_close = asked->drop_on_close,
                                     .coming = &store->owner_coming};
    rc = mc_owner_create(&config, &owner);
    mc_disks_free(&disks);
    if (rc < 0)
        return rc;
    rc = mc_owner_first_mount(owner, deadline_ns);
    if (rc < 0) {
        mc_log(ERROR, "the master at %s did not mount the segment: %s", store->master.configured, mc_error_name(rc));
        return rc; /* it is ended with the store */
    }
    mc_address_join(store->hostname, sizeof(store->hostname), advertise, mc_owner_port(owner));
    mc_log(INFO, "client_id=" MC_ID_LOG ", action=mount_segment, segment_name=%s, size=%" PRIu64,
           MC_ID_LOG_ARGS(store->node), store->hostname, capacity);
    atomic_store(&store->owner, owner);
    atomic_store(&store->owner_coming, NULL);
    mc_store_wake(store);
    return 0;
}

/* Ends the threads and closes the descriptors. It takes seconds, in which a child may be forked: what the fork handler
 * looks at stays where it is. */
static void store_end(struct mc_store *store)
{
    struct mc_owner *owner = owner_of(store);
    atomic_store(&store->closing, true);
    if (store->heartbeat != NULL)
        mc_heartbeat_stop(
            store->heartbeat); /* it tells the threads that end below, and these ask it: freed after them */
    mc_preconnect_end(atomic_load(&store->preconnect));
    mc_drain_end(store);
    mc_paths_end(store->paths);
    if (owner != NULL)
        mc_owner_end(owner);
    mc_rdma_close(store->rdma);
    mc_get_sessions_free(store);
    mc_put_sessions_free(&store->sessions);
    mc_monitor_destroy(&store->sessions.lock, &store->sessions.quiet);
    for (struct mc_master_link *link; (link = store->idle) != NULL;) {
        store->idle = link->next;
        mc_link_free(link);
    }
}

/* What is left. */
static void store_free(struct mc_store *store)
{
    struct mc_owner *owner = owner_of(store);
    if (owner != NULL)
        mc_owner_free(owner);
    if (store->heartbeat != NULL)
        mc_heartbeat_free(store->heartbeat);
    if (store->paths != NULL)
        mc_paths_free(store->paths);
    mc_store_endpoints_clear(store);
    mc_locations_free(&store->locations);
    mc_hot_free(store->hot);
    mc_master_address_free(&store->master);
    for (size_t i = 0; i < store->registered_count; i++)
        mc_gpu_forget(store->registered[i].base);
    free(store->registered);
    mc_monitor_destroy(&store->beat_lock, &store->beat_changed);
    mc_monitor_destroy(&store->lock, &store->registered_changed);
    free(store);
}

static int keys_look(void)
{
    char error[MC_PROOF_TEXT_MAX * 4];
    int rc = mc_keys_check(error, sizeof(error));
    if (rc < 0)
        mc_log(ERROR, "%s", error);
    return rc;
}

static int tls_look(const struct mc_store *store)
{
    char error[MC_TLS_PROBLEM_MAX];
    int rc = mc_secure_check(store->segment_size > 0, error, sizeof(error));
    if (rc < 0)
        mc_log(ERROR, "%s", error);
    return rc;
}

int mc_life_begin(const struct mc_store_config *config, const struct mc_numa_nodes *nodes, struct mc_store **made)
{
    char host[MC_ADDRESS_MAX] = "";
    uint16_t port = 0;
    unsigned allowed = MC_PATH_ALL;
    if (config == NULL || made == NULL)
        return MC_ERR_INVALID_PARAMS;
    struct mc_store *store = calloc(1, sizeof(*store));
    if (store == NULL)
        return MC_ERR_NO_MEMORY;
    mc_monitor_init(&store->lock, &store->registered_changed);
    mc_monitor_init(&store->beat_lock, &store->beat_changed);
    mc_gpu_look();
    int rc = keys_look();
    if (rc == 0)
        rc = mc_master_address_init(&store->master, config->master_server_addr);
    if (rc == 0)
        rc = configure(store, config, host, sizeof(host), &port, &allowed);
    if (rc == 0)
        rc = tls_look(store);
    if (rc < 0)
        goto fail_free;
    uint64_t deadline_ns = mc_store_deadline(store, 0);
    store->node = mc_random_id();
    store->host = mc_host_id();
    store->incarnation = mc_random_u64() >> 1;
    mc_address_join(store->hostname, sizeof(store->hostname), host, port);
    store->paths = mc_paths_create(store->node, store->incarnation, allowed);
    store->maps_memory = (allowed & MC_PATH_SHM) != 0;
    const struct mc_hot_limits limits = mc_hot_limits_set();
    store->stripe_bytes = mc_stripe_bytes_set();
    store->has_blanks = mc_blanks_are_wanted();
    store->hot = limits.bytes == 0 ? NULL : mc_hot_create(&limits);
    rc = store->paths == NULL || (limits.bytes > 0 && store->hot == NULL) ? MC_ERR_NO_MEMORY : 0;
    if (rc < 0)
        goto fail_free;
    mc_monitor_init(&store->sessions.lock, &store->sessions.quiet);
    registry_add(store); /* from here on there are descriptors that a forked child must close */
    start_rdma(store, config);
    rc = mc_heartbeat_start(store, deadline_ns, &store->heartbeat);
    if (rc < 0) {
        mc_log(ERROR, "no master answers at %s within %u ms: %s: %s", store->master.configured, store->call_timeout_ms,
               mc_error_name(rc), store->unmet); /* no other thread is there yet */
        goto fail;
    }
    mc_address_join(store->hostname, sizeof(store->hostname), host,
                    port != 0 ? port : mc_heartbeat_local_port(store->heartbeat));
    if (store->segment_size > 0) {
        rc = start_owner(store, config, nodes, host, port, allowed, deadline_ns);
        if (rc < 0)
            goto fail;
    }
    if (store->local_buffer_size > 0) {
        atomic_store(&store->preconnect,
                     mc_preconnect_create(store)); /* without it paths are opened when they are needed */
        mc_store_wake(store);
    }
    mc_heartbeat_settle(store->heartbeat);
    *made = store;
    return 0;

fail:
    store_end(store);
    registry_remove(store);
fail_free:
    store_free(store);
    return rc == MC_ERR_RPC_TIMEOUT ? MC_ERR_RPC_FAIL : rc;
}

bool mc_life_quiet(struct mc_store *store)
{
    if (store == NULL || atomic_load(&store->forked))
        return false;
    atomic_store(&store->closing, true);
    while (atomic_load(&store->calls) > 0)
        usleep(CLOSE_POLL_US);
    return true;
}

void mc_life_end(struct mc_store *store)
{
    store_end(store);
    registry_remove(store);
    store_free(store);
}
