/* Heartbeats. */
#include "store/client/heartbeat.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/own_address.h"
#include "env/thread.h"
#include "store/client/preconnect.h"
#include "store/owner/owner.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/sessions.h"
#include "store/client/state.h"
#include "store/client/threads.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#define HEARTBEAT_MS 1000u
#define BEATS_PER_TTL 6u       /* at half of client_ttl the master thinks us silent: one or two may be late or lost */
#define HEARTBEAT_LEAST_MS 10u /* however short client_ttl is */
#define PATIENCE_LEAST_MS 100u
#define SILENT_MS 2000u       /* a heartbeat that is not answered by then: not healthy, though it may still be */
#define SILENT_LAST_MS 3000u  /* nor then: a new connection is tried */
#define ELECTION_BEAT_MS 500u /* where another may lead at once, a stopped leader is noticed sooner */
#define ELECTION_SILENT_MS 700u
#define RETRY_FIRST_MS 50u /* doubling to RETRY_LAST_MS */
#define RETRY_LAST_MS 500u
#define RETRY_FOREIGN_MS 5000u /* after a master of another cluster */
#define TIDY_MS 1000u          /* at most so often */

struct mc_heartbeat {
    struct mc_store *store;
    pthread_t thread;
    _Atomic uint64_t until_ns; /* tries to connect end by then: the deadline of the open, until it has succeeded */
    bool stop;                 /* under the lock of the store's beat */
    bool is_unreachable;       /* our segment, for other hosts, as the master said */
    _Atomic int fd;
    uint64_t epoch, request_id, tidied_ns;
    struct mc_wire_peer agreed; /* with the master: what may be said to it */
    uint32_t client_ttl_ms;
    char local_host[INET6_ADDRSTRLEN];
    uint16_t local_port;
    struct mc_own_address own_address;
};

/* Others are told an address that only this host reaches. */
static void unreachable_told(struct mc_heartbeat *heartbeat, bool is_unreachable)
{
    if (is_unreachable && !heartbeat->is_unreachable)
        mc_log(WARNING,
               "other hosts are in the cluster, and they are told %s, where only this one reaches our memory: "
               "local_hostname must be a name or address of this host that they can reach",
               heartbeat->store->hostname);
    heartbeat->is_unreachable = is_unreachable;
}

static int heartbeat_connect(struct mc_heartbeat *heartbeat, uint64_t deadline_ns)
{
    struct mc_store *store = heartbeat->store;
    struct mc_wire_hello_reply reply;
    /* Not over the unix socket: the local address that others are told is the one of the route to the master. */
    int fd = mc_master_greet(store, MC_ROLE_HEARTBEAT, false, deadline_ns, &reply);
    if (fd < 0)
        return fd;
    if (heartbeat->local_port == 0)
        (void)mc_socket_name(fd, MC_SOCKET_OURS, heartbeat->local_host, sizeof(heartbeat->local_host),
                             &heartbeat->local_port);
    if (heartbeat->epoch != 0 && heartbeat->epoch != reply.epoch)
        mc_log(INFO, "the master at %s is a new one (epoch %llu)", store->master.configured,
               (unsigned long long)reply.epoch);
    heartbeat->epoch = reply.epoch;
    heartbeat->client_ttl_ms = reply.client_ttl_ms;
    (void)mc_wire_agree(&heartbeat->agreed, reply.version_min, reply.version_max,
                        reply.features); /* greet has looked */
    atomic_store(&heartbeat->fd, fd);
    return 0;
}

static void heartbeat_disconnect(struct mc_heartbeat *heartbeat)
{
    /* Under the lock, so that mc_heartbeat_stop shuts down no number that was closed and given to somebody else. */
    pthread_mutex_lock(&heartbeat->store->beat_lock);
    mc_fd_close(atomic_exchange(&heartbeat->fd, -1));
    pthread_mutex_unlock(&heartbeat->store->beat_lock);
}

static uint64_t clamp_ms(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* How long a heartbeat may wait for its answer. */
static uint64_t patience_ms(const struct mc_heartbeat *heartbeat)
{
    uint64_t most_ms = heartbeat->store->master.is_election ? ELECTION_SILENT_MS : SILENT_LAST_MS;
    return clamp_ms(heartbeat->client_ttl_ms / 2, PATIENCE_LEAST_MS, most_ms);
}

/* From one heartbeat to the next, as the master of the moment needs it. */
static uint64_t beat_ms(const struct mc_heartbeat *heartbeat)
{
    uint64_t most_ms = heartbeat->store->master.is_election ? ELECTION_BEAT_MS : HEARTBEAT_MS;
    return clamp_ms(heartbeat->client_ttl_ms / BEATS_PER_TTL, HEARTBEAT_LEAST_MS, most_ms);
}

/* One heartbeat: who it speaks for. */
struct beat {
    struct mc_owner *owner; /* NULL: there is none */
    bool has_segment;
    uint32_t segment; /* the memory's */
    uint64_t sent_ms;
};

/* Of the disks that it names, those that have nothing left to confirm. */
struct held_disks {
    uint32_t segments[MC_OWNER_DISKS_MAX], count;
};

static struct beat write_heartbeat(struct mc_heartbeat *heartbeat, struct mc_buffer *out)
{
    struct mc_owner *owner = atomic_load(&heartbeat->store->owner);
    struct mc_wire_heartbeat_segment own = {0};
    struct mc_told_disk disks[MC_OWNER_DISKS_MAX];
    uint8_t disks_off = 0;
    uint32_t disk_count = owner == NULL ? 0 : mc_owner_disks_told(owner, disks, &disks_off);
    bool has_segment = owner != NULL && mc_owner_segment(owner, &own.segment);
    out->length = 0;
    size_t frame_start = mc_frame_begin(out, MC_MESSAGE_HEARTBEAT, ++heartbeat->request_id);
    size_t list =
        mc_wire_heartbeat_head(out, &(struct mc_wire_heartbeat){.epoch = heartbeat->epoch, .disks_off = disks_off});
    if (has_segment) {
        own.populated = mc_owner_populated(owner);
        own.leaving = atomic_load(&heartbeat->store->leaving);
        mc_wire_heartbeat_segment_write(out, &own);
    }
    for (uint32_t i = 0; i < disk_count; i++)
        mc_wire_heartbeat_segment_write(out, &(struct mc_wire_heartbeat_segment){.segment = disks[i].segment,
                                                                                 .leaving = disks[i].is_leaving,
                                                                                 .health = disks[i].health});
    mc_frame_end_list(out, frame_start, list, has_segment + disk_count);
    return (struct beat){.owner = owner, .has_segment = has_segment, .segment = own.segment};
}

/* The connection is of no use any more. With that errno the master's machine has ended it, and did not just fall
 * silent. */
static int beat_failed(struct mc_heartbeat *heartbeat, int rc)
{
    if (rc == MC_ERR_RPC_FAIL && (errno == ECONNRESET || errno == EPIPE))
        mc_master_ended(heartbeat->store, heartbeat->epoch);
    return rc;
}

/* Sends what was written and waits for a frame, which lies in `in`. */
static int exchange_heartbeat(struct mc_heartbeat *heartbeat, struct beat *beat, const struct mc_buffer *out,
                              struct mc_buffer *in, struct mc_frame *frame)
{
    int fd = atomic_load(&heartbeat->fd);
    uint64_t now_ns = mc_clock_ns(), deadline_ns = now_ns + patience_ms(heartbeat) * 1000000ull;
    uint64_t silent_ns = now_ns + SILENT_MS * 1000000ull;
    struct iovec part = {out->data, out->length};
    beat->sent_ms = mc_clock_boot_ms();
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    if (rc < 0)
        return beat_failed(heartbeat, rc);
    in->length = 0;
    if (silent_ns < deadline_ns && mc_socket_wait_read(fd, silent_ns, NULL) == MC_ERR_RPC_TIMEOUT &&
        !atomic_exchange(&heartbeat->store->is_beat_missed, true))
        mc_log(WARNING, "the master at %s is silent", heartbeat->store->master.configured);
    int64_t used = mc_socket_receive_frame(fd, in, frame, deadline_ns, NULL);
    return used < 0 ? beat_failed(heartbeat, (int)used) : 0;
}

/* What the master says of each segment. False: it does not hold our memory's; one that has given it up says nothing of
 * what it did meanwhile. */
static bool segments_told(struct mc_heartbeat *heartbeat, const struct beat *beat, struct mc_reader *reader,
                          struct held_disks *held)
{
    bool is_held = false;
    for (uint32_t count = mc_list_read(reader); count > 0 && !reader->bad; count--) {
        struct mc_wire_segment_code code;
        mc_wire_segment_code_read(reader, &code);
        if (!beat->has_segment || code.segment != beat->segment) { /* a disk; 1: it has something to confirm first */
            if (!reader->bad && code.code == 0 && held->count < MC_OWNER_DISKS_MAX)
                held->segments[held->count++] = code.segment;
            else if (!reader->bad && code.code < 0 && beat->owner != NULL)
                mc_owner_disk_remount(beat->owner, code.segment);
            continue;
        }
        is_held = code.code == 0;
        bool drains = code.drain != 0 || atomic_load(&heartbeat->store->drains);
        mc_drain_told(heartbeat->store, code.segment, drains && code.code >= 0 && !reader->bad);
        unreachable_told(heartbeat, code.unreachable != 0 && code.code >= 0 && !reader->bad);
        if (code.code < 0 && beat->owner != NULL)
            mc_owner_remount(beat->owner);
    }
    return is_held;
}

static int heartbeat_answered(struct mc_heartbeat *heartbeat, const struct beat *beat, struct mc_frame frame)
{
    struct mc_owner *owner = beat->owner;
    uint64_t sent_ms = beat->sent_ms;
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_heartbeat_reply reply;
    mc_wire_heartbeat_reply_read(&reader, &reply);
    if (frame.type != MC_MESSAGE_HEARTBEAT_REPLY || reader.bad || reply.code < 0)
        return frame.type == MC_MESSAGE_HEARTBEAT_REPLY && !reader.bad ? reply.code : MC_ERR_PROTOCOL;
    int rc = mc_master_cluster_told(heartbeat->store, heartbeat->epoch, reply.cluster);
    if (rc < 0)
        return rc;
    mc_master_age_told(heartbeat->store, heartbeat->epoch, reply.age_ms, sent_ms);
    mc_master_heard(heartbeat->store, heartbeat->epoch, reply.quiet == 0, frame.time);
    mc_master_proof_told(heartbeat->store, heartbeat->epoch, reply.epoch_proof);
    mc_preconnect_told(atomic_load(&heartbeat->store->preconnect), heartbeat->epoch, reply.changes);
    if (owner != NULL)
        mc_owner_follow(owner, heartbeat->epoch);
    struct held_disks held = {.count = 0};
    bool is_held = segments_told(heartbeat, beat, &reader, &held);
    if (owner != NULL) {
        mc_owner_cluster_told(owner, heartbeat->epoch, reply.cluster);
        uint64_t answered_ms = mc_owner_age_told(owner, heartbeat->epoch, reply.age_ms, sent_ms);
        mc_owner_proof_told(owner, heartbeat->epoch, reply.epoch_proof);
        mc_owner_contact(owner, heartbeat->epoch, reply.quiet == 0, is_held ? answered_ms : 0, reply.age_ms,
                         frame.time);
        for (uint32_t i = 0; i < held.count; i++)
            mc_owner_disk_contact(owner, held.segments[i], heartbeat->epoch, answered_ms, reply.age_ms);
    }
    return 0;
}

/* One heartbeat and its answer. */
static int send_heartbeat(struct mc_heartbeat *heartbeat, struct mc_buffer *out, struct mc_buffer *in)
{
    struct mc_frame frame;
    struct beat beat = write_heartbeat(heartbeat, out);
    int rc = exchange_heartbeat(heartbeat, &beat, out, in, &frame);
    return rc < 0 ? rc : heartbeat_answered(heartbeat, &beat, frame);
}

/* Sleeps; true when the heartbeat thread is to stop. */
static bool heartbeat_sleep(struct mc_heartbeat *heartbeat, uint64_t sleep_ms)
{
    uint64_t until_ns = mc_clock_ns() + sleep_ms * 1000000ull;
    pthread_mutex_lock(&heartbeat->store->beat_lock);
    while (!heartbeat->stop && !heartbeat->store->is_beat_due &&
           mc_monitor_wait(&heartbeat->store->beat_lock, &heartbeat->store->beat_changed, until_ns) == 0)
        continue;
    heartbeat->store->is_beat_due = false;
    bool stop = heartbeat->stop;
    pthread_mutex_unlock(&heartbeat->store->beat_lock);
    return stop;
}

/* What callers keep open for a next use. It waits for nobody: locks that are held for a look, and closes. */
static void heartbeat_tidy(struct mc_heartbeat *heartbeat)
{
    uint64_t now_ns = mc_clock_ns();
    if (now_ns - heartbeat->tidied_ns < TIDY_MS * 1000000ull)
        return;
    heartbeat->tidied_ns = now_ns;
    mc_links_rest(heartbeat->store, now_ns);
    mc_paths_rest(heartbeat->store->paths, now_ns);
}

/* It stays what it was: the segment goes by it at the master, and its listener has it. */
static void address_look(struct mc_heartbeat *heartbeat)
{
    const struct mc_store *store = heartbeat->store;
    char host[MC_ADDRESS_MAX];
    uint16_t port;
    if (atomic_load(&store->owner) != NULL && mc_address_split(store->hostname, host, sizeof(host), &port) == 0)
        mc_own_address_look(&heartbeat->own_address, host, "to find its memory");
}

static void *heartbeat_main(void *argument)
{
    struct mc_heartbeat *heartbeat = argument;
    struct mc_buffer out = {0}, in = {0};
    uint64_t retry_ms = RETRY_FIRST_MS;
    for (bool stop = false; !stop;) {
        int rc = 0;
        if (atomic_load(&heartbeat->fd) < 0)
            rc = heartbeat_connect(heartbeat, atomic_load(&heartbeat->until_ns));
        if (rc == 0)
            rc = send_heartbeat(heartbeat, &out, &in);
        bool was_missed = atomic_exchange(&heartbeat->store->is_beat_missed, rc < 0);
        if (rc < 0) {
            heartbeat_disconnect(heartbeat);
            if (heartbeat->epoch == atomic_load(&heartbeat->store->epoch)) /* nobody has met a newer one meanwhile */
                mc_master_forget(&heartbeat->store->master, NULL);
            if (!was_missed)
                mc_log(WARNING, "lost the master at %s: %s; trying again until it answers",
                       heartbeat->store->master.configured, mc_error_name(rc));
        } else if (was_missed) {
            mc_log(INFO, "the master at %s answers again", heartbeat->store->master.configured);
        }
        retry_ms = rc == 0 ? RETRY_FIRST_MS : retry_ms * 2 > RETRY_LAST_MS ? RETRY_LAST_MS : retry_ms * 2;
        if (rc == MC_ERR_OTHER_CLUSTER)
            retry_ms = RETRY_FOREIGN_MS;
        mc_gpu_notice();
        heartbeat_tidy(heartbeat);
        address_look(heartbeat);
        uint64_t sessions_ms = mc_sessions_tick(heartbeat->store);
        uint64_t rest_ms = beat_ms(heartbeat);
        rest_ms = sessions_ms < rest_ms ? sessions_ms : rest_ms;
        /* Half of the wait is random, so that thousands of clients do not come back in step. */
        stop = heartbeat_sleep(heartbeat, rc == 0 ? rest_ms : retry_ms / 2 + mc_random_u64() % (retry_ms / 2 + 1));
    }
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    return NULL;
}

int mc_heartbeat_start(struct mc_store *store, uint64_t deadline_ns, struct mc_heartbeat **made)
{
    struct mc_heartbeat *heartbeat = calloc(1, sizeof(*heartbeat));
    if (heartbeat == NULL)
        return MC_ERR_NO_MEMORY;
    heartbeat->store = store;
    atomic_store(&heartbeat->until_ns, deadline_ns);
    atomic_store(&heartbeat->fd, -1);

    int rc;
    uint64_t retry_ms = RETRY_FIRST_MS;
    while ((rc = heartbeat_connect(heartbeat, deadline_ns)) < 0) {
        bool hopeless = !mc_master_is_gone(rc) && rc != MC_ERR_BUSY;
        if (hopeless)
            goto fail;
        if (mc_clock_ns() + retry_ms * 1000000ull >= deadline_ns) {
            rc = MC_ERR_RPC_FAIL; /* a standby or a busy one was not there in time either */
            goto fail;
        }
        heartbeat_sleep(heartbeat, retry_ms);
        retry_ms = retry_ms * 2 > RETRY_LAST_MS ? RETRY_LAST_MS : retry_ms * 2;
    }
    if (mc_thread_start(&heartbeat->thread, "mc-heartbeat", heartbeat_main, heartbeat) != 0) {
        rc = MC_ERR_NO_MEMORY;
        goto fail;
    }
    *made = heartbeat;
    return 0;

fail:
    heartbeat_disconnect(heartbeat);
    mc_heartbeat_free(heartbeat);
    return rc;
}

const char *mc_heartbeat_local_host(const struct mc_heartbeat *heartbeat)
{
    return heartbeat->local_host;
}
uint16_t mc_heartbeat_local_port(const struct mc_heartbeat *heartbeat)
{
    return heartbeat->local_port;
}

void mc_heartbeat_settle(struct mc_heartbeat *heartbeat)
{
    atomic_store(&heartbeat->until_ns, UINT64_MAX);
}

void mc_heartbeat_stop(struct mc_heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->store->beat_lock);
    heartbeat->stop = true;
    pthread_cond_signal(&heartbeat->store->beat_changed);
    /* A heartbeat that waits for a stopped master must not hold up the close: its connection ends here, its descriptor
     * below. */
    int fd = atomic_load(&heartbeat->fd);
    if (fd >= 0)
        (void)shutdown(fd, SHUT_RDWR);
    pthread_mutex_unlock(&heartbeat->store->beat_lock);
    pthread_join(heartbeat->thread, NULL);
    heartbeat_disconnect(heartbeat);
}

void mc_heartbeat_free(struct mc_heartbeat *heartbeat)
{
    free(heartbeat);
}

void mc_heartbeat_forked(struct mc_heartbeat *heartbeat)
{
    /* The lock may be held by a thread that does not exist here. */
    mc_fd_close(atomic_exchange(&heartbeat->fd, -1));
}
