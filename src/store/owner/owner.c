/* The life of an owner and what other threads ask of it. inside.h says where the rest is. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/setting.h"
#include "env/thread.h"
#include "store/segment/let_go.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNMOUNT_MS 500u
#define PORT_TRIES 20u
#define MASTER_ADDRESS_MAX 1024u /* an election has several addresses */

static void on_start(void *argument)
{
    struct mc_owner *owner = argument;
    if (!owner->is_closing)
        mc_owner_link_start(owner);
}

/* ---- from other threads ---- */

static uint16_t port_of_environment(enum mc_variable variable)
{
    const char *text = mc_variable_value(variable);
    char *end;
    if (text == NULL || text[0] == 0)
        return 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*end == 0 && text[0] != '-' && value > 0 && value <= UINT16_MAX)
        return (uint16_t)value;
    mc_log(WARNING, "%s=%.40s is not a port and ignored", mc_variable_name(variable), text);
    return 0;
}

/* The ports that the original takes, and people open in firewalls. */
struct ports {
    uint16_t first, last;
    unsigned drawn;
};

static struct ports ports_read(void)
{
    const unsigned width = MC_OWNER_PORT_LAST - MC_OWNER_PORT_FIRST;
    uint16_t first = port_of_environment(MC_VARIABLE_MC_STORE_CLIENT_MIN_PORT);
    uint16_t last = port_of_environment(MC_VARIABLE_MC_STORE_CLIENT_MAX_PORT);
    if (first == 0)
        first = last == 0 || last >= MC_OWNER_PORT_FIRST ? MC_OWNER_PORT_FIRST
                                                         : (uint16_t)(last > width ? last - width : 1);
    if (last == 0)
        last = (uint16_t)(first + width > UINT16_MAX ? UINT16_MAX : first + width);
    if (last < first)
        mc_log(WARNING, "MC_STORE_CLIENT_MIN_PORT %u is above MC_STORE_CLIENT_MAX_PORT %u: the kernel chooses ports",
               (unsigned)first, (unsigned)last);
    return (struct ports){first, last, 0};
}

/* The next port, another one for each node first; 0: enough of them were in use, the kernel chooses. */
static uint16_t port_draw(struct ports *ports, uint64_t seed)
{
    unsigned count = ports->last < ports->first ? 0 : ports->last - ports->first + 1u;
    if (count == 0)
        return 0;
    if (ports->drawn >= PORT_TRIES || ports->drawn >= count) {
        mc_log(WARNING,
               "no free port for this store node was found from %u to %u (MC_STORE_CLIENT_MIN_PORT and "
               "_MAX_PORT): the kernel chooses one",
               (unsigned)ports->first, (unsigned)ports->last);
        return 0;
    }
    unsigned step = count > PORT_TRIES ? count / PORT_TRIES : 1; /* not once around in all tries: none is tried twice */
    return (uint16_t)(ports->first + (seed % count + ports->drawn++ * step) % count);
}

/* An address or port that cannot be had is no reason to lend nothing: the master is told where we really are. */
static int serve_make(struct mc_owner *owner, const struct mc_owner_config *config)
{
    struct mc_serve_hooks hooks = {
        .context = owner, .committed = mc_owner_on_committed, .flush = mc_owner_on_flush, .missed = mc_owner_on_missed};
    const char *host = mc_tcp_listen_host(config->advertise_host);
    struct ports ports = ports_read();
    uint16_t port = config->port != 0 ? config->port : port_draw(&ports, config->node.low);
    for (unsigned tries = 0; tries < PORT_TRIES + 3; tries++) {
        int rc =
            mc_serve_create(config->node, config->incarnation, host, port, config->unix_allowed, &hooks, &owner->serve);
        if (rc == 0) {
            mc_serve_set_rdma(owner->serve, config->rdma);
            mc_serve_threads(owner->serve, mc_serve_threads_wanted());
            return 0;
        }
        if ((errno == EADDRINUSE || errno == EACCES) && port != 0) {
            if (ports.drawn == 0)
                mc_log(WARNING, "port %u cannot be had (%s); this store node takes another", (unsigned)port,
                       strerror(errno));
            port = port_draw(&ports, config->node.low);
        } else if (errno == EADDRNOTAVAIL && host[0] != 0) {
            mc_log(INFO, "%s is not an address of this machine; listening on every interface", host);
            host = "";
        } else {
            mc_log(ERROR, "cannot listen on %s port %u: %s", host[0] == 0 ? "every interface" : host, (unsigned)port,
                   strerror(errno));
            return rc;
        }
    }
    return MC_ERR_RPC_FAIL;
}

static void fields_free(struct mc_owner *owner)
{
    mc_scrub_free(owner->scrub);
    free(owner->lost.items);
    free(owner->master_address);
    free(owner->data_dir);
    free(owner->live.items);
    free(owner->cut_done.items);
    mc_buffer_free(&owner->in);
    mc_buffer_free(&owner->out);
    pthread_mutex_destroy(&owner->seen_lock);
    mc_monitor_destroy(&owner->lock, &owner->changed);
    free(owner);
}

static uint64_t scrub_bytes_per_s(void)
{
    return mc_setting_number(MC_SCRUB_MB_PER_S, "", 0, 1u << 20, MC_SCRUB_MB_PER_S) << 20;
}

static void timers_free(struct mc_owner *owner)
{
    if (owner->timer != NULL)
        event_free(owner->timer);
    if (owner->populated_timer != NULL)
        event_free(owner->populated_timer);
    if (owner->key_timer != NULL)
        event_free(owner->key_timer);
    owner->timer = owner->populated_timer = owner->key_timer = NULL;
}

static int timers_make(struct mc_owner *owner)
{
    struct event_base *base = mc_serve_base(owner->serve);
    struct mc_scrub_config scrub = {.bytes_per_s = scrub_bytes_per_s(),
                                    .pass_ms = MC_SCRUB_PASS_MS,
                                    .context = owner,
                                    .rotten = mc_owner_on_rotten};
    owner->timer = evtimer_new(base, mc_owner_on_timer, owner);
    owner->populated_timer = evtimer_new(base, mc_owner_on_populated_timer, owner);
    owner->scrub = mc_scrub_create(&scrub);
    owner->key_timer = evtimer_new(base, mc_owner_on_key_timer, owner);
    owner->key_ms = mc_owner_key_ms();
    if (owner->timer == NULL || owner->populated_timer == NULL || owner->key_timer == NULL || owner->scrub == NULL)
        return MC_ERR_NO_MEMORY;
    if (owner->key_ms > 0)
        mc_owner_timer_set(owner->key_timer, owner->key_ms);
    return 0;
}

/* Nothing runs yet. */
static int owner_make(const struct mc_owner_config *config, struct mc_owner **result)
{
    if (strlen(config->master_address) >= MASTER_ADDRESS_MAX ||
        strlen(config->advertise_host) + sizeof(":65535") + 2 > MC_ADDRESS_MAX)
        return MC_ERR_INVALID_PARAMS;
    struct mc_owner *owner = calloc(1, sizeof(*owner));
    if (owner == NULL)
        return MC_ERR_NO_MEMORY;
    mc_monitor_init(&owner->lock, &owner->changed);
    pthread_mutex_init(&owner->seen_lock, NULL);
    owner->in.may_fail = owner->out.may_fail = true;
    bool has_dir = config->data_dir != NULL && config->data_dir[0] != 0;
    owner->master_address = strdup(config->master_address);
    owner->data_dir = has_dir ? strdup(config->data_dir) : NULL;
    owner->drop_on_close = config->drop_on_close;
    owner->has_nodes = config->nodes != NULL;
    if (config->nodes != NULL)
        owner->nodes = *config->nodes;
    owner->paths = config->paths;
    owner->node = config->node;
    owner->master_node = config->master_node;
    owner->host = mc_host_id();
    owner->incarnation = config->incarnation;
    owner->backoff_ms = BACKOFF_MIN_MS;
    atomic_init(&owner->fd, -1);
    if (owner->master_address == NULL || (has_dir && owner->data_dir == NULL)) {
        fields_free(owner);
        return MC_ERR_NO_MEMORY;
    }
    *result = owner;
    return 0;
}

static int memory_open(struct mc_owner *owner, uint64_t capacity, uint64_t data_dir_until_ns)
{
    bool has_contents;
    int rc = mc_segment_memory_open_on(owner->has_nodes ? &owner->nodes : NULL, owner->data_dir, owner->name, capacity,
                                       data_dir_until_ns, false, &owner->memory, &has_contents);
    if (rc < 0)
        return rc;
    owner->capacity = mc_segment_memory_capacity(owner->memory);
    if (has_contents)
        mc_log(INFO, "segment %s takes up what an earlier process left in %s", owner->name, owner->data_dir);
    mc_serve_set_memory(owner->serve, owner->memory);
    mc_scrub_set_memory(owner->scrub, owner->memory);
    return 0;
}

static void serving_end(struct mc_owner *owner)
{
    if (owner->scrub != NULL)
        mc_scrub_stop(owner->scrub);
    mc_let_go_await(); /* memory that was retired populates no more, and says nothing */
    atomic_store(&owner->left, owner->memory);
    mc_serve_end(owner->serve);
}

static void memory_end(struct mc_owner *owner)
{
    mc_let_go_await(); /* registrations, which hold it */
    if (owner->memory != NULL)
        mc_segment_memory_end(owner->memory);
    owner->has_ended = true;
}

int mc_owner_create(const struct mc_owner_config *config, struct mc_owner **result)
{
    struct mc_owner *owner;
    int rc = owner_make(config, &owner);
    if (rc < 0)
        return rc;
    rc = serve_make(owner, config);
    if (rc < 0)
        goto fail_serve;
    if (config->coming != NULL)
        atomic_store(config->coming, owner);
    mc_address_join(owner->name, sizeof(owner->name), config->advertise_host, mc_serve_tcp_port(owner->serve));
    rc = timers_make(owner);
    if (rc < 0)
        goto fail_timers;
    rc = memory_open(owner, config->capacity, config->data_dir_until_ns);
    if (rc < 0)
        goto fail_timers;
    mc_paths_add_segment(owner->paths, owner->memory);
    for (uint32_t i = 0; i < config->disk_count; i++) /* without it goes on, as the log says */
        if (config->disks[i].is_silent)
            mc_owner_disk_pass_over(owner, config->disks[i].path);
        else
            (void)mc_owner_disk_add(owner, &config->disks[i]);
    mc_serve_post(owner->serve, on_start, owner);
    rc = mc_segment_memory_populate(owner->memory, mc_owner_on_progress, owner);
    if (rc < 0)
        goto fail_populate;
    rc = mc_serve_start(owner->serve);
    if (rc < 0)
        goto fail_start;
    *result = owner;
    return 0;
fail_start:
    mc_segment_memory_populate_stop(owner->memory);
fail_populate:
    mc_owner_disks_close(owner);
    mc_paths_remove_segment(owner->paths, owner->memory);
fail_timers:
    owner->is_closing = true; /* what was posted is still run, and then does nothing */
    timers_free(owner);
    serving_end(owner);
    memory_end(owner);
    if (config->coming == NULL)
        mc_owner_free(owner);
    return rc;
fail_serve:
    fields_free(owner);
    return rc;
}

/* Trying again would not change it. */
static bool is_final(int refusal)
{
    return refusal == MC_ERR_OTHER_CLUSTER || refusal == MC_ERR_INVALID_VERSION || refusal == MC_ERR_INVALID_PARAMS ||
           refusal == MC_ERR_NOT_SUPPORTED;
}

int mc_owner_first_mount(struct mc_owner *owner, uint64_t deadline_ns)
{
    pthread_mutex_lock(&owner->lock);
    while (!owner->was_mounted && !is_final(owner->refusal) &&
           mc_monitor_wait(&owner->lock, &owner->changed, deadline_ns) != ETIMEDOUT)
        continue;
    int rc = owner->was_mounted ? 0 : owner->refusal < 0 ? owner->refusal : MC_ERR_RPC_TIMEOUT;
    pthread_mutex_unlock(&owner->lock);
    return rc;
}

uint16_t mc_owner_port(const struct mc_owner *owner)
{
    return mc_serve_tcp_port(owner->serve);
}
uint64_t mc_owner_capacity(const struct mc_owner *owner)
{
    return owner->capacity;
}

uint64_t mc_owner_populated(const struct mc_owner *owner)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&owner->lock; /* looking does not change the owner */
    pthread_mutex_lock(lock);
    uint64_t populated = mc_segment_memory_populated(owner->memory);
    pthread_mutex_unlock(lock);
    return populated;
}

void mc_owner_scrubbed(const struct mc_owner *owner, uint64_t *bytes, uint64_t *rotten)
{
    mc_scrub_counters(owner->scrub, bytes, rotten);
}

uint64_t mc_owner_tags_refused(const struct mc_owner *owner)
{
    return mc_serve_tags_refused(owner->serve);
}

bool mc_owner_segment(const struct mc_owner *owner, uint32_t *segment)
{
    *segment = atomic_load(&owner->segment);
    return atomic_load(&owner->is_mounted);
}

static void on_remount(void *argument)
{
    struct mc_owner *owner = argument;
    /* During an inventory the master's word was of an earlier mount; if not, its answers stay out. */
    if (owner->state == LINK_MOUNTED && owner->mount_id == 0 && !owner->inventory.is_active)
        mc_owner_mount_send(owner);
}

void mc_owner_remount(struct mc_owner *owner)
{
    mc_serve_post(owner->serve, on_remount, owner);
}

static void on_cluster_told(void *argument)
{
    struct mc_owner *owner = argument;
    pthread_mutex_lock(&owner->lock);
    struct mc_cluster_word word = owner->cluster_word;
    pthread_mutex_unlock(&owner->lock);
    /* Contents that say whose they are were taken as such, or refused. */
    if (owner->state != LINK_MOUNTED || owner->master_epoch != word.epoch)
        return;
    if (mc_id_is_zero(mc_segment_memory_cluster(owner->memory)))
        mc_segment_memory_set_cluster(owner->memory, word.cluster);
    owner->master_cluster = word.cluster; /* for disks that are mounted from now on */
    mc_owner_disks_cluster_told(owner, word.epoch, word.cluster);
}

/* Lock held. Some of its contents do not say whose they are. */
static bool has_nameless(const struct mc_owner *owner)
{
    bool is_any = mc_id_is_zero(mc_segment_memory_cluster(owner->memory));
    for (uint32_t i = 0; i < owner->disk_count; i++)
        is_any = is_any || mc_id_is_zero(owner->disks[i].mark.cluster);
    return is_any;
}

void mc_owner_cluster_told(struct mc_owner *owner, uint64_t epoch, struct mc_id cluster)
{
    pthread_mutex_lock(&owner->lock);
    bool is_news = !mc_id_is_zero(cluster) && has_nameless(owner);
    owner->cluster_word = (struct mc_cluster_word){epoch, cluster};
    pthread_mutex_unlock(&owner->lock);
    if (is_news)
        mc_serve_post(owner->serve, on_cluster_told, owner);
}

bool mc_owner_holds(struct mc_owner *owner, struct mc_id *cluster)
{
    pthread_mutex_lock(&owner->lock);
    *cluster = mc_segment_memory_cluster(owner->memory);
    bool holds = mc_segment_memory_slot_top(owner->memory) > 0;
    if (!holds || mc_id_is_zero(*cluster)) /* what was put before the master knew does not hide whose the disks are */
        holds = mc_owner_disks_hold(owner, cluster) || holds;
    pthread_mutex_unlock(&owner->lock);
    return holds;
}

static void on_follow(void *argument)
{
    mc_owner_link_follow(argument);
}

void mc_owner_follow(struct mc_owner *owner, uint64_t epoch)
{
    if (epoch <= atomic_load_explicit(&owner->led_epoch, memory_order_relaxed))
        return;
    atomic_store(&owner->led_epoch, epoch);
    mc_serve_post(owner->serve, on_follow, owner);
}

static void on_close(void *argument)
{
    struct mc_owner *owner = argument;
    owner->is_closing = true;
    evtimer_del(owner->timer);
    /* A named memory waits for its next owner, who finds it known only if the master was not told that it is gone. */
    bool is_left = mc_segment_memory_is_named(owner->memory) && !owner->drop_on_close;
    if (owner->state != LINK_MOUNTED || is_left) {
        owner->state = LINK_CLOSED;
        mc_owner_link_close(owner);
        mc_owner_closing_note(owner, UNMOUNTED);
        return;
    }
    /* Once the master has heard it, what lies here may be stored elsewhere, and otherwise. We may be stopped meanwhile,
     * and that master may end: who asks nobody for his places must not find them here. */
    mc_owner_contact_end(owner);
    struct mc_wire_unmount head = {.segment = atomic_load(&owner->segment)};
    mc_wire_unmount_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_UNMOUNT, ++owner->request_id), &head);
    owner->state = LINK_UNMOUNTING;
    mc_owner_link_send(owner);
}

/* The last thing of ours that runs on the loop. */
static void on_end(void *argument)
{
    struct mc_owner *owner = argument;
    owner->is_closing = true;
    owner->state = LINK_CLOSED;
    mc_owner_link_close(owner);
    timers_free(owner);
    mc_owner_closing_note(owner, ENDED);
}

static void closing_wait(struct mc_owner *owner, enum closing closing, uint64_t deadline_ns)
{
    pthread_mutex_lock(&owner->lock);
    while (owner->closing < closing && mc_monitor_wait(&owner->lock, &owner->changed, deadline_ns) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&owner->lock);
}

void mc_owner_end(struct mc_owner *owner)
{
    if (owner->has_ended)
        return;
    mc_serve_post(owner->serve, on_close, owner);
    closing_wait(owner, UNMOUNTED, mc_clock_ns() + UNMOUNT_MS * 1000000ull);
    mc_serve_post(owner->serve, on_end, owner);
    closing_wait(owner, ENDED, UINT64_MAX / 2); /* the loop turns: it ends */
    mc_owner_disks_close(owner);
    /* From here on the serve thread does nothing for us but serve peers. */
    mc_segment_memory_populate_stop(owner->memory);
    mc_paths_remove_segment(owner->paths, owner->memory);
    serving_end(owner);
    if (owner->drop_on_close && owner->refusal != MC_ERR_OTHER_CLUSTER)
        mc_segment_memory_discard(owner->memory);
    memory_end(owner);
}

void mc_owner_free(struct mc_owner *owner)
{
    mc_serve_free(owner->serve); /* runs what is still posted */
    mc_owner_disks_free(owner);
    mc_segment_memory_release(owner->memory);
    fields_free(owner);
}

void mc_owner_close(struct mc_owner *owner)
{
    if (owner == NULL)
        return;
    mc_owner_end(owner);
    mc_owner_free(owner);
}

void mc_owner_forked(struct mc_owner *owner)
{
    mc_fd_close(atomic_exchange(&owner->fd, -1));
    mc_serve_forked(owner->serve);
    mc_owner_disks_forked(owner);
    struct mc_segment_memory *left = atomic_load(&owner->left);
    if (left != NULL)
        mc_segment_memory_forked(left);
}
