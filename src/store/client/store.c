/* The life of a store client: open, close, fork; what the calls share: deadlines, endpoints, paths, registered buffers.
 */
#include "store/client/store.h"

#include "base/address.h"
#include "store/segment/memory.h"
#include "env/clock.h"
#include "env/limits.h"
#include "env/log.h"
#include "rdma/rdma.h"
#include "store/client/preconnect.h"
#include "store/client/heartbeat.h"
#include "store/owner/owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define DATA_DIR_WAIT_NS 2000000000ull
#define CLOSE_POLL_US 200 /* between looks at the calls in progress */

/* ---- fork: the child's stores are dead and harmless ---- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mc_store *registry;

static void before_fork(void)
{
    pthread_mutex_lock(&registry_lock);
}
static void after_fork_parent(void)
{
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

/* ---- the frame of every call ---- */

int mc_store_enter(struct mc_store *store)
{
    if (store == NULL)
        return MC_ERR_INVALID_PARAMS;
    if (atomic_load(&store->forked))
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    atomic_fetch_add(&store->calls, 1);
    if (!atomic_load(&store->closing))
        return 0;
    mc_store_leave(store);
    return MC_ERR_INVALID_PARAMS;
}

/* Nothing after the decrement: a closing thread may free the store the moment it sees zero. */
void mc_store_leave(struct mc_store *store)
{
    atomic_fetch_sub(&store->calls, 1);
}

uint64_t mc_store_deadline(const struct mc_store *store, uint64_t bytes)
{
    return mc_clock_ns() + store->call_timeout_ms * 1000000ull + bytes / MC_BYTES_PER_SECOND_ASSUMED * 1000000000ull;
}

int mc_key_check(struct mc_bytes key)
{
    return key.data == NULL || key.length == 0 || key.length > MC_KEY_LENGTH_MAX ? MC_ERR_INVALID_KEY : 0;
}

uint64_t mc_parts_length(const struct iovec *parts, size_t part_count)
{
    uint64_t length = 0;
    for (size_t i = 0; i < part_count; i++)
        length = length + parts[i].iov_len < length ? UINT64_MAX : length + parts[i].iov_len;
    return length;
}

/* ---- endpoints ---- */

static size_t endpoint_home(const struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return (size_t)((epoch * 0x9e3779b97f4a7c15ull ^ segment * 0xc2b2ae3d27d4eb4full) >> 20) &
           (store->endpoint_capacity - 1);
}

/* The place of (epoch, segment) in the table, or of the free entry where it would go. Lock held, table not full. */
static struct mc_cached_endpoint **endpoint_find(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    for (size_t at = endpoint_home(store, epoch, segment);; at = (at + 1) & (store->endpoint_capacity - 1)) {
        struct mc_cached_endpoint *entry = store->endpoints[at];
        if (entry == NULL || (entry->epoch == epoch && entry->endpoint.segment == segment))
            return &store->endpoints[at];
    }
}

void mc_store_endpoints_clear(struct mc_store *store)
{
    for (size_t i = 0; i < store->endpoint_capacity; i++)
        free(store->endpoints[i]);
    free(store->endpoints);
    store->endpoints = NULL;
    store->endpoint_count = store->endpoint_capacity = 0;
}

/* Lock held. Grows to stay at most half full; a table at its limit starts over (entries can be asked for again). */
static int endpoints_make_room(struct mc_store *store)
{
    if (store->endpoint_count >= MC_ENDPOINTS_MAX)
        mc_store_endpoints_clear(store);
    if ((store->endpoint_count + 1) * 2 <= store->endpoint_capacity)
        return 0;
    size_t old_capacity = store->endpoint_capacity, capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    struct mc_cached_endpoint **old = store->endpoints, **endpoints = calloc(capacity, sizeof(*endpoints));
    if (endpoints == NULL)
        return MC_ERR_NO_MEMORY;
    store->endpoints = endpoints;
    store->endpoint_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != NULL)
            *endpoint_find(store, old[i]->epoch, old[i]->endpoint.segment) = old[i];
    }
    free(old);
    return 0;
}

static void endpoint_store(struct mc_store *store, uint64_t epoch, const struct mc_endpoint *endpoint)
{
    struct mc_cached_endpoint *entry = malloc(sizeof(*entry));
    if (entry == NULL)
        return; /* only a cache */
    *entry = (struct mc_cached_endpoint){.epoch = epoch, .endpoint = *endpoint};
    pthread_mutex_lock(&store->lock);
    /* Of an older epoch: what is told there is of no use any more. */
    struct mc_cached_endpoint **at = epoch != atomic_load(&store->epoch) || endpoints_make_room(store) < 0
                                         ? NULL
                                         : endpoint_find(store, epoch, endpoint->segment);
    if (at != NULL) {
        struct mc_cached_endpoint *before = *at;
        *at = entry;
        store->endpoint_count += before == NULL;
        entry = before;
    }
    pthread_mutex_unlock(&store->lock);
    free(entry);
}

static void build_segment(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_segment_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENT, request_id), context);
}

static bool copy_text(char *target, size_t size, struct mc_span text)
{
    if (text.length >= size || (text.length > 0 && memchr(text.data, 0, text.length) != NULL))
        return false;
    if (text.length > 0)
        memcpy(target, text.data, text.length);
    target[text.length] = 0;
    return true;
}

int mc_store_endpoint_told(struct mc_store *store, uint64_t epoch, const struct mc_wire_segment_reply *reply,
                           struct mc_endpoint *endpoint)
{
    if (reply->code < 0)
        return reply->code;
    *endpoint = (struct mc_endpoint){.segment = reply->segment,
                                     .node = reply->node,
                                     .incarnation = reply->incarnation,
                                     .segment_id = reply->segment_id,
                                     .capacity = reply->capacity,
                                     .slot_count = reply->slot_count,
                                     .nonce = reply->nonce,
                                     .host = reply->host};
    if (!copy_text(endpoint->name, sizeof(endpoint->name), reply->name) ||
        !copy_text(endpoint->tcp_address, sizeof(endpoint->tcp_address), reply->tcp_address) ||
        !copy_text(endpoint->unix_path, sizeof(endpoint->unix_path), reply->unix_path))
        return MC_ERR_PROTOCOL;
    endpoint_store(store, epoch, endpoint);
    return 0;
}

static bool endpoint_look(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint,
                          bool *doubtful)
{
    pthread_mutex_lock(&store->lock);
    struct mc_cached_endpoint *cached = store->endpoint_capacity == 0 ? NULL : *endpoint_find(store, epoch, segment);
    if (cached != NULL) {
        *endpoint = cached->endpoint;
        *doubtful = cached->doubtful;
    }
    pthread_mutex_unlock(&store->lock);
    return cached != NULL;
}

bool mc_store_endpoint_known(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint)
{
    bool doubtful;
    return endpoint_look(store, epoch, segment, endpoint, &doubtful);
}

/* The owner may have come back elsewhere: what was told of it is asked for again, and used while nobody answers. */
static void endpoint_doubt(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    pthread_mutex_lock(&store->lock);
    struct mc_cached_endpoint *cached = store->endpoint_capacity == 0 ? NULL : *endpoint_find(store, epoch, segment);
    if (cached != NULL)
        cached->doubtful = true;
    pthread_mutex_unlock(&store->lock);
}

int mc_store_endpoint(struct mc_store *store, uint64_t epoch, uint32_t segment, uint64_t deadline_ns,
                      struct mc_endpoint *endpoint)
{
    bool doubtful = false;
    if (endpoint_look(store, epoch, segment, endpoint, &doubtful) && !doubtful)
        return 0;

    /* Not on the caller's link: a request there would end the reads it has open. */
    struct mc_wire_segment request = {.segment = segment};
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc = (doubtful ? mc_link_try : mc_link_call)(store, deadline_ns, build_segment, &request,
                                                     MC_MESSAGE_SEGMENT_REPLY, &link, &reader);
    if (doubtful && mc_master_is_gone(rc))
        return 0;
    if (rc < 0)
        return rc;
    /* Numbers mean something only within an epoch. */
    struct mc_wire_segment_reply reply;
    mc_wire_segment_reply_read(&reader, &reply);
    rc = link->epoch != epoch                                          ? MC_ERR_STALE
         : reader.bad || (reply.code >= 0 && reply.segment != segment) ? MC_ERR_PROTOCOL
                                                                       : 0;
    if (rc == 0)
        rc = mc_store_endpoint_told(store, epoch, &reply, endpoint);
    mc_link_return(store, link);
    return rc;
}

/* ---- paths ---- */

static bool is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid least)
{
    uint64_t until_ms = atomic_load(&store->avoided_until_ms), now_ms = until_ms == 0 ? 0 : mc_clock_ms();
    bool found = false;
    if (until_ms <= now_ms)
        return false;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < MC_AVOIDED_MAX && !found; i++) {
        const struct mc_avoided *one = &store->avoided[i];
        found = one->until_ms > now_ms && one->epoch == epoch && one->segment == segment && one->how >= least;
    }
    pthread_mutex_unlock(&store->lock);
    return found;
}

bool mc_store_is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return is_avoided(store, epoch, segment, MC_AVOID_FAILED);
}

bool mc_store_is_slow(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return is_avoided(store, epoch, segment, MC_AVOID_SLOW);
}

size_t mc_store_avoided(struct mc_store *store, uint32_t *segments, size_t capacity)
{
    uint64_t until_ms = atomic_load(&store->avoided_until_ms), epoch = atomic_load(&store->epoch);
    uint64_t now_ms = until_ms == 0 ? 0 : mc_clock_ms();
    size_t count = 0;
    if (until_ms <= now_ms)
        return 0;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < MC_AVOIDED_MAX && count < capacity; i++) {
        if (store->avoided[i].until_ms > now_ms && store->avoided[i].epoch == epoch)
            segments[count++] = store->avoided[i].segment;
    }
    pthread_mutex_unlock(&store->lock);
    return count;
}

static void avoid(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid how, int code)
{
    uint64_t until_ms = mc_clock_ms() + MC_AVOID_MS;
    pthread_mutex_lock(&store->lock);
    struct mc_avoided *oldest = &store->avoided[0];
    for (size_t i = 0; i < MC_AVOIDED_MAX; i++) {
        struct mc_avoided *one = &store->avoided[i];
        if (one->epoch == epoch && one->segment == segment && one->until_ms > 0) {
            oldest = one;
            if (one->until_ms > mc_clock_ms() && one->how > how)
                how = one->how;
            if (one->until_ms > mc_clock_ms() && code == 0)
                code = one->code;
            break;
        }
        if (one->until_ms < oldest->until_ms)
            oldest = one;
    }
    *oldest = (struct mc_avoided){epoch, until_ms, segment, how, code};
    if (code != 0)
        atomic_store(&store->has_untold, true);
    atomic_store(&store->avoided_until_ms, until_ms);
    pthread_mutex_unlock(&store->lock);
}

void mc_store_avoid(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid how)
{
    avoid(store, epoch, segment, how, 0);
}

void mc_store_suspect(struct mc_master_link *link, uint32_t segment, int code)
{
    mc_wire_suspect_frame(&link->out, mc_frame_begin(&link->out, MC_MESSAGE_SUSPECT, 0),
                          &(struct mc_wire_suspect){.segment = segment, .code = code});
}

void mc_store_tell(struct mc_store *store, struct mc_master_link *link)
{
    if (!atomic_load_explicit(&store->has_untold, memory_order_relaxed))
        return;
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&store->lock);
    atomic_store(&store->has_untold, false);
    for (size_t i = 0; i < MC_AVOIDED_MAX; i++) {
        struct mc_avoided *one = &store->avoided[i];
        if (one->code != 0 && one->until_ms > now_ms + MC_AVOID_MS - MC_TELL_MS && one->epoch == link->epoch)
            mc_store_suspect(link, one->segment, one->code);
        one->code = 0;
    }
    pthread_mutex_unlock(&store->lock);
    (void)mc_link_send(link, mc_clock_ns() + 1000000ull); /* not worth any wait */
}

void mc_store_report(struct mc_store *store, bool tell, uint64_t epoch, const struct mc_endpoint *owner,
                     struct mc_path *path, int code)
{
    uint32_t segment = owner->segment;
    avoid(store, epoch, segment, MC_AVOID_FAILED, tell ? code : 0);
    endpoint_doubt(store, epoch, segment);
    atomic_fetch_add(&store->retries, 1);
    mc_log_limited(WARNING, "segment %u (%s, at %s) cannot be reached over %s: %s; other replicas are used", segment,
                   owner->name, owner->tcp_address[0] == 0 ? "no address" : owner->tcp_address,
                   path != NULL ? path->transport->name : "any path", mc_error_name(code));
    if (path != NULL)
        mc_path_drop(path); /* last: the endpoint may be the path's */
}

int mc_store_path(struct mc_store *store, const struct mc_endpoint *endpoint, uint64_t deadline_ns,
                  struct mc_path **path)
{
    uint64_t open_ns = mc_clock_ns() + MC_PATH_OPEN_MS * 1000000ull;
    return mc_path_get(store->paths, endpoint, open_ns < deadline_ns ? open_ns : deadline_ns, path);
}

/* ---- registered buffers ---- */

int mc_store_register_buffer(struct mc_store *store, void *base, size_t size)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    rc = base == NULL || size == 0 || store->registered_count >= MC_REGISTERED_MAX ? MC_ERR_INVALID_PARAMS : 0;
    for (size_t i = 0; rc == 0 && i < store->registered_count; i++)
        rc = store->registered[i].base == base ? MC_ERR_INVALID_PARAMS : 0;
    if (rc == 0 && store->registered_count == store->registered_capacity) {
        size_t capacity = store->registered_capacity == 0 ? 64 : store->registered_capacity * 2;
        struct mc_registered *grown = realloc(store->registered, capacity * sizeof(*grown));
        if (grown == NULL) {
            rc = MC_ERR_NO_MEMORY;
        } else {
            store->registered = grown;
            store->registered_capacity = capacity;
        }
    }
    if (rc == 0)
        store->registered[store->registered_count++] = (struct mc_registered){base, size};
    pthread_mutex_unlock(&store->lock);
    if (rc == 0)
        (void)mc_gpu_note(base, size);
    mc_store_leave(store);
    return rc;
}

int mc_store_unregister_buffer(struct mc_store *store, void *base)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = MC_ERR_INVALID_PARAMS;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->registered_count; i++) {
        if (store->registered[i].base == base) {
            store->registered[i] = store->registered[--store->registered_count];
            rc = 0;
            break;
        }
    }
    pthread_mutex_unlock(&store->lock);
    if (rc == 0)
        mc_gpu_forget(base);
    mc_store_leave(store);
    return rc;
}

/* ---- open and close ---- */

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

static int check_protocol(const char *protocol)
{
    if (protocol == NULL || protocol[0] == 0 || strcasecmp(protocol, "tcp") == 0)
        return 0;
    if (strcasecmp(protocol, "rdma") == 0)
        return 0;
    mc_log(ERROR, "unknown protocol \"%s\"; use \"tcp\" or \"rdma\" (same-host peers use shared memory by themselves)",
           protocol);
    return MC_ERR_INVALID_PARAMS;
}

static uint32_t timeout_from_environment(void)
{
    const char *text = getenv("MC_RPC_TIMEOUT_MS");
    if (text == NULL || text[0] == 0)
        return MC_CALL_TIMEOUT_MS_DEFAULT;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != 0 || value == 0 || value > 86400000) {
        mc_log(WARNING, "MC_RPC_TIMEOUT_MS=%s is not a number of milliseconds from 1 to 86400000; %u is used", text,
               MC_CALL_TIMEOUT_MS_DEFAULT);
        return MC_CALL_TIMEOUT_MS_DEFAULT;
    }
    return value < 0 ? 86400000u : (uint32_t)value; /* the original: negative = no limit */
}

/* Checks the configuration and copies it; nothing else is touched but the limit of open files. */
static int configure(struct mc_store *store, const struct mc_store_config *config, char *host, size_t host_size,
                     uint16_t *port, unsigned *allowed)
{
    const char *paths = getenv("MC_PATHS");
    if (config->local_hostname == NULL || mc_address_split(config->local_hostname, host, host_size, port) < 0) {
        mc_log(ERROR, "local_hostname \"%s\" is not host or host:port",
               config->local_hostname == NULL ? "" : config->local_hostname);
        return MC_ERR_INVALID_PARAMS;
    }
    mc_file_limit_raise();
    int rc = check_protocol(config->protocol);
    if (rc == 0)
        rc = parse_paths(paths != NULL ? paths : config->paths != NULL ? config->paths : "", allowed);
    store->segment_size = config->global_segment_size;
    store->local_buffer_size = config->local_buffer_size;
    store->call_timeout_ms = config->call_timeout_ms != 0 ? config->call_timeout_ms : timeout_from_environment();
    return rc;
}

const struct mc_verbs *mc_store_verbs;

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
    struct mc_rdma_options options = {.verbs = mc_store_verbs,
                                      .filter = config->rdma_devices,
                                      .fd_opened = fd_opened,
                                      .fd_closing = fd_closing,
                                      .context = store->paths};
    if (config->protocol == NULL || strcasecmp(config->protocol, "rdma") != 0)
        return;
    int rc = mc_rdma_open(&options, &store->rdma);
    if (rc == 0)
        mc_paths_set_rdma(store->paths, store->rdma);
    else
        mc_log(WARNING, "protocol rdma: %s; shared memory and tcp are used",
               rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "no usable RDMA device here (mooncake_doctor says why)"
               : rc == MC_ERR_INVALID_PARAMS            ? "rdma_devices names a device that is not there"
                                                        : mc_error_name(rc));
}

static int start_owner(struct mc_store *store, const struct mc_store_config *asked, const char *host, uint16_t port,
                       unsigned allowed, uint64_t deadline_ns)
{
    struct mc_memory_limits limits;
    struct mc_owner *owner;
    const char *reason;
    const char *seen_host = mc_heartbeat_local_host(store->heartbeat);
    const char *advertise = host;
    if (mc_address_is_loopback(host) && seen_host[0] != 0 && !mc_address_is_loopback(seen_host)) {
        mc_log(WARNING, "local_hostname is %s but the master is on another machine; others are told %s", host,
               seen_host);
        advertise = seen_host;
    }
    mc_memory_limits_read(&limits);
    const char *data_dir = asked->data_dir != NULL ? asked->data_dir : getenv("MC_DATA_DIR");
    /* Whoever works there may have been stopped. Half of the time is left for what follows. */
    uint64_t now_ns = mc_clock_ns(), wait_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / 2 : 0;
    uint64_t data_dir_until_ns = now_ns + (wait_ns < DATA_DIR_WAIT_NS ? wait_ns : DATA_DIR_WAIT_NS);
    uint64_t capacity = mc_memory_capacity_in(data_dir, store->segment_size, &limits, data_dir_until_ns, &reason);
    if (reason != NULL)
        mc_log(WARNING, "global_segment_size %" PRIu64 " is limited to %" PRIu64 " bytes by %s", store->segment_size,
               capacity, reason);
    if (capacity == 0)
        return MC_ERR_NO_MEMORY;
    struct mc_owner_config config = {.paths = store->paths,
                                     .rdma = store->rdma,
                                     .master_address = store->master.configured,
                                     .master_node = store->master_node,
                                     .node = store->node,
                                     .incarnation = store->incarnation,
                                     .advertise_host = advertise,
                                     .bind_host = advertise,
                                     .port = port,
                                     .unix_allowed = (allowed & MC_PATH_SHM) != 0,
                                     .capacity = capacity,
                                     .data_dir = data_dir,
                                     .data_dir_until_ns = data_dir_until_ns,
                                     .drop_on_close = asked->drop_on_close,
                                     .coming = &store->owner_coming};
    int rc = mc_owner_create(&config, &owner);
    if (rc < 0)
        return rc;
    rc = mc_owner_first_mount(owner, deadline_ns);
    if (rc < 0) {
        mc_log(ERROR, "the master at %s did not mount the segment: %s", store->master.configured, mc_error_name(rc));
        return rc; /* it is ended with the store */
    }
    mc_address_join(store->hostname, sizeof(store->hostname), advertise, mc_owner_port(owner));
    mc_log(INFO, "client_id=%016" PRIx64 "%016" PRIx64 ", action=mount_segment, segment_name=%s, size=%" PRIu64,
           store->node.high, store->node.low, store->hostname, capacity);
    atomic_store(&store->owner, owner);
    atomic_store(&store->owner_coming, NULL);
    mc_heartbeat_wake(store->heartbeat);
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
    mc_sessions_free(store);
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
    mc_master_address_free(&store->master);
    for (size_t i = 0; i < store->registered_count; i++)
        mc_gpu_forget(store->registered[i].base);
    free(store->registered);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

int mc_store_open(const struct mc_store_config *config, struct mc_store **made)
{
    char host[MC_ADDRESS_MAX] = "";
    uint16_t port = 0;
    unsigned allowed = MC_PATH_ALL;
    if (config == NULL || made == NULL)
        return MC_ERR_INVALID_PARAMS;
    struct mc_store *store = calloc(1, sizeof(*store));
    if (store == NULL)
        return MC_ERR_NO_MEMORY;
    pthread_mutex_init(&store->lock, NULL);
    mc_gpu_look();
    int rc = mc_master_address_init(&store->master, config->master_server_addr);
    if (rc == 0)
        rc = configure(store, config, host, sizeof(host), &port, &allowed);
    if (rc < 0)
        goto fail_free;
    uint64_t deadline_ns = mc_store_deadline(store, 0);
    store->node = mc_random_id();
    store->host = mc_host_id();
    store->incarnation = mc_random_u64() >> 1;
    mc_address_join(store->hostname, sizeof(store->hostname), host, port);
    store->paths = mc_paths_create(store->node, store->incarnation, allowed);
    rc = store->paths == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc < 0)
        goto fail_free;
    mc_sessions_init(&store->sessions);
    registry_add(store); /* from here on there are descriptors that a forked child must close */
    start_rdma(store, config);
    rc = mc_heartbeat_start(store, deadline_ns, &store->heartbeat);
    if (rc < 0) {
        mc_log(ERROR,
               "no master answers at %s within %u ms: %s; check master_server_addr and that mooncake_master runs",
               store->master.configured, store->call_timeout_ms, mc_error_name(rc));
        goto fail;
    }
    mc_address_join(store->hostname, sizeof(store->hostname), host,
                    port != 0 ? port : mc_heartbeat_local_port(store->heartbeat));
    if (store->segment_size > 0) {
        rc = start_owner(store, config, host, port, allowed, deadline_ns);
        if (rc < 0)
            goto fail;
    }
    if (store->local_buffer_size > 0) {
        atomic_store(&store->preconnect,
                     mc_preconnect_create(store)); /* without it paths are opened when they are needed */
        mc_heartbeat_wake(store->heartbeat);
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

int mc_store_close(struct mc_store *store)
{
    if (store == NULL || atomic_load(&store->forked))
        return 0; /* in a forked child everything belongs to the parent; the little memory is left */
    atomic_store(&store->closing, true);
    while (atomic_load(&store->calls) > 0)
        usleep(CLOSE_POLL_US);
    mc_tasks_end(store); /* from now on its thread's calls are refused */
    mc_mounts_end(store);
    store_end(store);
    registry_remove(store);
    store_free(store);
    return 0;
}

const char *mc_store_hostname(const struct mc_store *store)
{
    return store->hostname;
}

static void build_ping(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    (void)context;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_EXIST, request_id);
    mc_frame_end_list(out, frame, mc_wire_none_head(out, &(struct mc_wire_none){0}), 0);
}

int mc_store_health(struct mc_store *store)
{
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return 1;
    /* One try: what is asked is whether there is a master now. */
    rc = mc_master_is_away(store) ? MC_ERR_RPC_FAIL
                                  : mc_link_try(store, mc_clock_ns() + 1000000000ull, build_ping, NULL,
                                                MC_MESSAGE_EXIST_REPLY, &link, &reader);
    if (rc == 0)
        mc_link_return(store, link);
    mc_store_leave(store);
    return rc == 0 ? 0 : 2;
}

void mc_store_statistics(struct mc_store *store, struct mc_store_statistics *statistics)
{
    const struct mc_paths_counters *counters = mc_paths_counters(store->paths);
    struct mc_owner *owner = atomic_load(&store->owner);
    *statistics = (struct mc_store_statistics){.put_objects = atomic_load(&store->put_objects),
                                               .put_bytes = atomic_load(&store->put_bytes),
                                               .get_objects = atomic_load(&store->get_objects),
                                               .get_bytes = atomic_load(&store->get_bytes),
                                               .get_misses = atomic_load(&store->get_misses),
                                               .retries = atomic_load(&store->retries),
                                               .places_hits = atomic_load(&store->places_hits),
                                               .checksum_errors = atomic_load(&counters->checksum_errors),
                                               .fallbacks = atomic_load(&counters->fallbacks)};
    for (size_t i = 0; i < 4; i++)
        statistics->path_bytes[i] = atomic_load(&counters->path_bytes[i]);
    if (owner != NULL) {
        statistics->segment_capacity = mc_owner_capacity(owner);
        statistics->segment_populated = mc_owner_populated(owner);
        mc_owner_scrubbed(owner, &statistics->scrubbed_bytes, &statistics->rotten_slots);
    }
}
