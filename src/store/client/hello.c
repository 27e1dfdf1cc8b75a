/* The hello of a client and its master: whom to believe, whose keys these are, who leads. */
#include "store/client/hello.h"

#include "base/build.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/client/endpoints.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/state.h"
#include "store/segment/layout.h"
#include "store/wire/proof.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define HELLO_TRY_MS 1000u /* one try to reach the master; twice that and more for one that is slow to answer */

/* Lock held. The first master that answers says whose keys this store's are, and that stays so: other masters, and
 * other keys, that say otherwise are none of ours. */
static bool take_scope(struct mc_store *store, const struct mc_scope *tenant)
{
    struct mc_scope scope = *tenant, *said = &scope;
    mc_scope_stamp(said, store->stamp);
    bool is_same = mc_span_equal(mc_scope_span(&store->scope), mc_scope_span(said));
    if (store->is_scope_settled && !is_same) {
        mc_log_limited(ERROR, "the master takes this process for tenant \"%.*s\", and it began as another: restart it",
                       (int)mc_scope_name(said).length, (const char *)mc_scope_name(said).data);
        return false;
    }
    if (!is_same && said->tenant == 0)
        mc_log(WARNING, "tenant_id changes nothing here: this master has no tenants (--enable_multi_tenants)");
    if (!is_same) /* calls read it without the lock, once it is settled */
        store->scope = *said;
    store->is_scope_settled = true;
    return true;
}

int mc_hello_met(struct mc_store *store, const char *address, const struct mc_wire_hello_reply *reply,
                 const struct mc_hello_said *said)
{
    struct mc_master_link *old = NULL;
    if (!mc_epoch_can_be(reply->epoch)) {
        mc_log_limited(ERROR, "a master says that its epoch is %llu, which cannot be; is its clock right?",
                       (unsigned long long)reply->epoch);
        return MC_ERR_RPC_FAIL;
    }
    int rc = mc_master_cluster_told(store, reply->epoch, reply->cluster);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    uint64_t before = atomic_load(&store->epoch);
    if (reply->epoch < before) {
        bool told = store->refused_epoch == reply->epoch;
        store->refused_epoch = reply->epoch;
        pthread_mutex_unlock(&store->lock);
        if (!told)
            mc_log(WARNING, "a master of epoch %llu answers, but epoch %llu was met already: it is not believed",
                   (unsigned long long)reply->epoch, (unsigned long long)before);
        return MC_ERR_RPC_FAIL;
    }
    if (!take_scope(store, &said->scope)) {
        pthread_mutex_unlock(&store->lock);
        return MC_ERR_NOT_PERMITTED;
    }
    atomic_store(&store->master.has_ended, false);
    store->master_node = reply->node;
    store->disks_told = said->disks;
    mc_epoch_proof_keep(&store->epoch_proof, reply->epoch, mc_epoch_proof_of(&said->proof, reply->epoch));
    if (reply->epoch > before) {
        atomic_store(&store->epoch, reply->epoch);
        old = mc_links_take_idle(store);
        /* Who waits there for an answer of the old master need not wait for his deadline. */
        for (struct mc_master_link *link = store->borrowed; link != NULL; link = link->next_borrowed) {
            if (link->epoch < reply->epoch)
                (void)shutdown(link->fd, SHUT_RDWR);
        }
        mc_store_endpoints_clear(store);
    }
    pthread_mutex_unlock(&store->lock);
    if (reply->epoch > before)
        mc_log(INFO, "the master at %s (epoch %llu) is %s; this is %s", address, (unsigned long long)reply->epoch,
               said->build, mc_build());
    mc_links_free(old);
    atomic_store(&store->lease_ttl_ms, reply->lease_ttl_ms);
    atomic_store(&store->is_stamp_unknown, (reply->features >> MC_FEATURE_STAMPS & 1) == 0);
    mc_master_age_told(store, reply->epoch, reply->age_ms, said->asked_ms);
    mc_master_heard(store, reply->epoch, reply->quiet == 0, said->frame_time);
    return 0;
}

static void copy_said(char *target, size_t size, struct mc_span text)
{
    snprintf(target, size, "%.*s", (int)text.length, text.length == 0 ? "" : (const char *)text.data);
}

void mc_hello_write(struct mc_store *store, struct mc_buffer *out, enum mc_role role)
{
    /* The age first: read the other way round, a young age could be paired with an older master's epoch. */
    uint32_t age_ms = mc_master_seen_age_ms(store);
    struct mc_id cluster;
    bool holds = mc_master_own_cluster(store, &cluster);
    pthread_mutex_lock(&store->lock);
    uint64_t epoch = atomic_load(&store->epoch);
    struct mc_epoch_proof proof = store->epoch_proof;
    pthread_mutex_unlock(&store->lock);
    struct mc_wire_hello hello = {.role = (uint8_t)role,
                                  .node = store->node,
                                  .incarnation = store->incarnation,
                                  .name = mc_span_string(store->hostname),
                                  .token = mc_span(NULL, 0),
                                  .seen_epoch = epoch,
                                  .epoch_proof = mc_epoch_proof_of(&proof, epoch),
                                  .seen_age_ms = age_ms,
                                  .host = store->host,
                                  .cluster = cluster,
                                  .holds = holds,
                                  .tenant = mc_scope_name(&store->scope),
                                  .stamp = store->stamp};
    mc_wire_hello_sign(&hello);
    mc_wire_hello_frame(out, mc_frame_begin(out, MC_MESSAGE_HELLO, 1), &hello);
}

int mc_hello_read(const struct mc_frame *frame, struct mc_wire_hello_reply *reply, struct mc_hello_said *said)
{
    said->frame_time = frame->time;
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    mc_wire_hello_reply_read(&reader, reply);
    if (reader.bad || frame->type != MC_MESSAGE_HELLO_REPLY)
        return MC_ERR_PROTOCOL;
    struct mc_wire_peer agreed;
    int rc =
        reply->code < 0 ? reply->code : mc_wire_agree(&agreed, reply->version_min, reply->version_max, reply->features);
    (void)mc_wire_build(said->build, reply->build);
    copy_said(said->text, sizeof(said->text), reply->text);
    copy_said(said->leader, sizeof(said->leader), reply->leader);
    said->disks = (struct mc_disks_told){.bytes = reply->disk_bytes, .keeps = reply->disk_keeps != 0};
    if (reply->disk_path.length < sizeof(said->disks.path)) /* else it is none of ours */
        copy_said(said->disks.path, sizeof(said->disks.path), reply->disk_path);
    if (!mc_scope_make(&said->scope, reply->tenant))
        return MC_ERR_PROTOCOL;
    said->proof = (struct mc_epoch_proof){0};
    mc_epoch_proof_keep(&said->proof, reply->epoch, reply->epoch_proof);
    reply->text = reply->leader = reply->build = reply->disk_path = reply->tenant = reply->epoch_proof =
        mc_span(NULL, 0); /* they borrowed from the frame */
    return rc;
}

/* Says hello with that role. 0 or the master's code, or how it failed. */
static int hello(struct mc_store *store, int fd, enum mc_role role, uint64_t deadline_ns,
                 struct mc_wire_hello_reply *reply, struct mc_hello_said *said)
{
    struct mc_buffer out = {0}, in = {0};
    struct mc_frame frame;
    mc_hello_write(store, &out, role);
    struct iovec part = {out.data, out.length};
    said->asked_ms = mc_clock_boot_ms();
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    if (rc == 0) {
        int64_t used = mc_socket_receive_frame(fd, &in, &frame, deadline_ns, NULL);
        rc = used < 0 ? (int)used : mc_hello_read(&frame, reply, said);
    }
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    return rc;
}

/* Keeps why no master was met. `error` is errno when a connection could not be had. The words are
 * for the log, too: kept here, since what a log line asks for is not computed when it is not written. */
static void keep_unmet(struct mc_store *store, const char *address, int rc, int error, char why[256])
{
    bool is_election = store->master.is_election && strcmp(address, store->master.configured) == 0;
    if (is_election && rc == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS)
        snprintf(why, 256, "nobody leads there: do masters run, of that cluster's name?");
    else if (is_election)
        snprintf(why, 256, "it does not say who leads: is it up, and is that its address? (%s)", mc_error_name(rc));
    else if (rc == MC_ERR_RPC_FAIL && error == ENONET)
        snprintf(why, 256, "there is no host of that name");
    else if (rc == MC_ERR_RPC_FAIL)
        snprintf(why, 256, "%s; check the address and that mooncake_master runs", strerror(error));
    else if (rc == MC_ERR_RPC_TIMEOUT)
        snprintf(why, 256, "nothing answers: a firewall, or a host that is down");
    else
        snprintf(why, 256, "%s", mc_error_name(rc));
    pthread_mutex_lock(&store->lock);
    snprintf(store->unmet, sizeof(store->unmet), "%s", why);
    pthread_mutex_unlock(&store->lock);
}

/* The same of one that took the connection, and then said nothing of ours. */
static void keep_silent(struct mc_store *store, const char *text)
{
    pthread_mutex_lock(&store->lock);
    snprintf(store->unmet, sizeof(store->unmet), "%.250s",
             text[0] != 0 ? text
                          : "what listens there does not answer as a master: is it the rpc_port (50051), not that of "
                            "metrics or metadata?");
    pthread_mutex_unlock(&store->lock);
}

/* Takes fd, which may be an error. Gives it back when a master of today answered on it. */
static int greet(struct mc_store *store, int fd, const char *address, enum mc_role role, uint64_t deadline_ns,
                 struct mc_wire_hello_reply *reply, struct mc_hello_said *said)
{
    char why[256];
    int error = errno;
    said->text[0] = said->leader[0] = 0;
    if (fd < 0) {
        keep_unmet(store, address, fd, error, why);
        mc_log_limited(WARNING, "cannot reach the master at %s: %s", address, why);
        return fd;
    }
    int place = mc_paths_fd_add(store->paths, fd); /* a child that is forked while we wait must not hold it */
    int rc = mc_prove_own(fd, deadline_ns, said->text);
    if (rc == 0)
        rc = hello(store, fd, role, deadline_ns, reply, said);
    if (place >= 0)
        mc_paths_fd_leave(store->paths, place);
    if (rc == 0)
        rc = mc_hello_met(store, address, reply, said);
    else if ((rc != MC_ERR_RPC_FAIL && rc != MC_ERR_RPC_TIMEOUT) || said->text[0] != 0)
        mc_log_limited(WARNING, "the master at %s and this client do not agree: %s %s", address, mc_error_name(rc),
                       said->text);
    if (rc == 0)
        return fd;
    keep_silent(store, said->text);
    mc_fd_close(fd);
    return rc;
}

/* The master of this machine that we have met, over its unix socket; negative when it is elsewhere or gone. */
static int greet_near(struct mc_store *store, enum mc_role role, uint64_t deadline_ns,
                      struct mc_wire_hello_reply *reply)
{
    struct mc_hello_said said;
    char name[MC_MASTER_UNIX_MAX];
    pthread_mutex_lock(&store->lock);
    struct mc_id node = store->master_node;
    pthread_mutex_unlock(&store->lock);
    if (mc_id_is_zero(node))
        return MC_ERR_RPC_FAIL;
    mc_master_unix_name(name, sizeof(name), node);
    int fd = mc_unix_connect(name, deadline_ns);
    if (fd >= 0)
        fd = greet(store, fd, name, role, deadline_ns, reply, &said);
    if (fd >= 0)
        return fd;
    pthread_mutex_lock(&store->lock);
    if (mc_id_equal(store->master_node, node))
        store->master_node = (struct mc_id){0, 0};
    pthread_mutex_unlock(&store->lock);
    return fd;
}

int mc_master_greet(struct mc_store *store, enum mc_role role, bool near, uint64_t deadline_ns,
                    struct mc_wire_hello_reply *reply)
{
    struct mc_hello_said said, second;
    char used[MC_ADDRESS_MAX];
    unsigned slow = atomic_load(&store->hello_slow);
    uint64_t try_ns = mc_clock_ns() + ((uint64_t)HELLO_TRY_MS << slow) * 1000000u;
    bool is_short = try_ns < deadline_ns;
    if (is_short)
        deadline_ns = try_ns;
    int fd = near ? greet_near(store, role, deadline_ns, reply) : MC_ERR_RPC_FAIL;
    if (fd >= 0)
        return fd;
    errno = 0;
    fd = mc_master_open(&store->master, deadline_ns, used);
    bool is_reached = fd >= 0 || errno == EPROTO;
    fd = greet(store, fd, used[0] != 0 ? used : store->master.configured, role, deadline_ns, reply, &said);
    if (fd < 0)
        mc_master_forget(&store->master, used);
    if (fd == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS && said.leader[0] != 0 && strcmp(said.leader, used) != 0) {
        /* Once: two standbys that name each other must not send us to and fro. */
        fd = mc_master_open_hint(said.leader, deadline_ns);
        fd = greet(store, fd, said.leader, role, deadline_ns, reply, &second);
        if (fd >= 0)
            mc_master_remember(&store->master, said.leader);
    }
    mc_master_tried(store, slow, is_short && is_reached, fd);
    return fd == MC_ERR_RPC_TIMEOUT ? MC_ERR_RPC_FAIL : fd;
}
