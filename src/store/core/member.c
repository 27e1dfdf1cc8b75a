/* Members: who they are, and whether they live. A member is (node id, incarnation); its first connection makes it. A
 * heartbeat connection makes it mortal: from then on it must send heartbeats, and the end of the heartbeat thread is
 * taken for the end of its process until another heartbeat thread comes. A heartbeat says that the process lives.
 * Whoever lends memory must also have said something over its owner's connection since the heartbeat before: that is
 * the thread which serves the data.
 */
#include "base/build.h"
#include "base/checksum.h"
#include "store/core/hint.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/miss.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <stdlib.h>

void mc_writer_release(struct mc_writer *writer)
{
    if (--writer->references == 0)
        free(writer);
}

void mc_member_seen(struct mc_core *core, struct mc_member *member)
{
    member->seen_ms = mc_core_life_ms(core);
    member->seen_at_ms = core->now_ms + 1;
    member->departed = false;
    mc_link_remove(&member->by_seen);
    mc_link_append(&core->members, &member->by_seen);
}

static void refresh_segments(struct mc_core *core, struct mc_member *member)
{
    for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next)
        mc_segment_refresh(core, mc_link_of(link, struct mc_segment, of_member));
}

static struct mc_member *member_create(struct mc_core *core, const struct mc_wire_hello *hello, uint64_t hash)
{
    struct mc_member *member = NULL;
    struct mc_writer *writer = NULL;
    if (core->members_by_id.count >= MC_MEMBERS_MAX)
        return NULL;
    member = calloc(1, sizeof(*member));
    writer = calloc(1, sizeof(*writer));
    if (member == NULL || writer == NULL || !mc_map_put(&core->members_by_id, hash, member))
        goto fail;
    *writer = (struct mc_writer){hello->node, 1};
    *member = (struct mc_member){
        .id = hello->node, .host = hello->host, .incarnation = hello->incarnation, .hash = hash, .writer = writer};
    if (hello->name.length > 0)
        (void)snprintf(member->name, sizeof(member->name), "%.*s", (int)(hello->name.length & UINT16_MAX),
                       (const char *)hello->name.data);
    mc_link_init(&member->connections);
    mc_link_init(&member->segments);
    mc_link_init(&member->by_seen);
    mc_member_seen(core, member);
    return member;
fail:
    free(writer);
    free(member);
    return NULL;
}

void mc_member_destroy(struct mc_core *core, struct mc_member *member)
{
    mc_link_remove(&member->by_seen);
    void *known = mc_map_remove(&core->members_by_id, member->hash);
    mc_assert(known == member);
    mc_writer_release(member->writer);
    free(member);
}

void mc_reading_end(struct mc_core *core, struct mc_connection *connection)
{
    for (uint32_t i = 0; i < connection->reading_count; i++) {
        struct mc_object *object = connection->reading[i].object;
        if (object->serial != connection->reading[i].serial)
            continue; /* it died; its memory is still that of some object, or free */
        struct mc_group *group = mc_object_group(object);
        object->readers--;
        if (group != NULL)
            group->readers--;
        if (!mc_hint_holds(core, object)) /* what was said since is newer */
            mc_object_touch(core, object);
    }
    connection->reading_count = 0;
}

static void drop_connections(struct mc_core *core, struct mc_member *member)
{
    while (!mc_link_alone(&member->connections)) {
        struct mc_connection *connection = mc_link_of(member->connections.next, struct mc_connection, of_member);
        mc_reading_end(core, connection);
        mc_puts_abandon(core, connection, false);
        mc_link_remove(&connection->of_member);
        connection->member = NULL;
        mc_core_close(core, connection);
    }
}

/* Takes them off the list; how many disks there are. */
static uint32_t drop_segments(struct mc_core *core, struct mc_member *member, bool keep_disks)
{
    uint32_t disks = 0;
    for (struct mc_link *link = member->segments.next, *next; link != &member->segments; link = next) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        next = link->next;
        disks += segment->kind == MC_SEGMENT_DISK;
        if (segment->kind == MC_SEGMENT_MEMORY || !keep_disks)
            mc_segment_give_up(core, segment);
    }
    return disks;
}

#define SILENT "no sign of life within client_ttl"

/* Who looks for the loss of a node looks for its name and for what went with it. False: it lends no memory. */
static bool tell_loss(struct mc_core *core, const struct mc_member *member, const char *why)
{
    const struct mc_segment *memory = NULL;
    unsigned long long objects = 0;
    for (const struct mc_link *link = member->segments.next; link != &member->segments; link = link->next) {
        const struct mc_segment *segment = mc_link_of(link, const struct mc_segment, of_member);
        if (segment->kind != MC_SEGMENT_MEMORY)
            continue;
        memory = segment;
        objects += segment->live;
    }
    if (memory != NULL)
        mc_core_tell(core, MC_TOPIC_NODE, MC_CORE_LOG_WARNING,
                     "store node %s (member " MC_ID_LOG "/%llu) is lost, with replicas of %llu objects: %s",
                     memory->name, MC_ID_LOG_ARGS(member->id), (unsigned long long)member->incarnation, objects, why);
    return memory != NULL;
}

void mc_member_drop(struct mc_core *core, struct mc_member *member, const char *why)
{
    if (!tell_loss(core, member, why))
        mc_core_log(core, MC_CORE_LOG_INFO, "member " MC_ID_LOG "/%llu leaves: %s", MC_ID_LOG_ARGS(member->id),
                    (unsigned long long)member->incarnation, why);
    drop_connections(core, member);
    (void)drop_segments(core, member, false);
    mc_member_destroy(core, member);
}

/* Its process is taken for ended; what is on its disks may come back with another one. False: it had none. */
static bool become_absent(struct mc_core *core, struct mc_member *member)
{
    (void)tell_loss(core, member, SILENT);
    core->has_given_up |= !mc_link_alone(&member->segments);
    drop_connections(core, member);
    member->heartbeat = member->owner = NULL;
    uint32_t disks = drop_segments(core, member, true);
    if (disks == 0)
        return false;
    member->absent = member->silent = member->departed = true;
    for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        mc_segment_owner_lost(segment);
        mc_segment_refresh(core, segment);
        mc_segment_release(core, segment);
    }
    mc_core_tell(core, MC_TOPIC_DISK, MC_CORE_LOG_WARNING,
                 "member " MC_ID_LOG
                 "/%llu has given no sign of life within client_ttl: its memory is given up; its disks "
                 "(%u) may come back within %llu s",
                 MC_ID_LOG_ARGS(member->id), (unsigned long long)member->incarnation, disks,
                 (unsigned long long)core->config.disk_ttl_ms / 1000);
    return true;
}

bool mc_member_lends(const struct mc_connection *connection)
{
    const struct mc_link *all = &connection->member->segments, *link = all->next;
    while (link != all && mc_link_of(link, struct mc_segment, of_member)->owner != connection)
        link = link->next;
    return link != all;
}

void mc_member_connection_ended(struct mc_core *core, struct mc_connection *connection)
{
    struct mc_member *member = connection->member;
    if (member == NULL)
        return;
    mc_link_remove(&connection->of_member);
    connection->member = NULL;
    if (member->owner == connection) {
        member->owner = NULL;
        for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next) {
            struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
            if (segment->owner == connection)
                mc_segment_owner_lost(segment);
        }
        refresh_segments(core, member);
    }
    if (member->heartbeat == connection) {
        /* P1 of the ordering page: its process has ended, or is about to be treated so. What it may still write is cut
         * off. */
        member->heartbeat = NULL;
        member->heartbeat_lost = true;
        member->disks_off = 0; /* until it says so again */
        mc_member_seen(core, member);
        for (struct mc_link *link = member->connections.next; link != &member->connections; link = link->next)
            mc_puts_abandon(core, mc_link_of(link, struct mc_connection, of_member), true);
        refresh_segments(core, member);
    }
    if (mc_link_alone(&member->connections) && mc_link_alone(&member->segments))
        mc_member_destroy(core, member);
}

/* Are epochs proved here? Then proof is ours, else it is empty. `bytes` must outlive it. */
static bool own_proof(const struct mc_core *core, uint8_t bytes[MC_EPOCH_PROOF_BYTES], struct mc_span *proof)
{
    bool is_made = core->config.proofs != NULL && core->config.proofs->make(core->epoch, bytes);
    *proof = mc_span(bytes, is_made ? MC_EPOCH_PROOF_BYTES : 0);
    return is_made;
}

static void hello_reply(struct mc_core *core, struct mc_connection *connection, uint64_t request_id, int32_t code,
                        const char *text)
{
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    uint8_t bytes[MC_EPOCH_PROOF_BYTES];
    struct mc_span proof = mc_span(bytes, 0);
    if (code == 0) /* who is refused learns none */
        (void)own_proof(core, bytes, &proof);
    struct mc_wire_hello_reply head = {
        .code = code,
        .node = core->node,
        .epoch = core->epoch,
        .lease_ttl_ms = (uint32_t)(core->config.lease_ttl_ms < UINT32_MAX ? core->config.lease_ttl_ms : UINT32_MAX),
        .client_ttl_ms = (uint32_t)(core->config.client_ttl_ms < UINT32_MAX ? core->config.client_ttl_ms : UINT32_MAX),
        .text = mc_span_string(text),
        .quiet = !mc_recover_acts(core),
        .age_ms = core->now_ms + 1,
        .cluster = mc_cluster_told(core),
        .disk_path = mc_span_string(core->config.disk_path),
        .disk_bytes = core->config.disk_bytes,
        .disk_keeps = core->config.disk_keeps,
        .tenant = mc_scope_name(&connection->scope),
        .epoch_proof = proof,
    };
    mc_wire_hello_reply_sign(&head);
    mc_wire_hello_reply_frame(out, mc_core_frame(core, out, MC_MESSAGE_HELLO_REPLY, request_id), &head);
}

static void hello_refuse(struct mc_core *core, struct mc_connection *connection, uint64_t request_id, int32_t code,
                         const char *text)
{
    mc_core_log(core, MC_CORE_LOG_WARNING, "connection %llu is refused: %s", (unsigned long long)connection->number,
                text);
    hello_reply(core, connection, request_id, code, text);
    mc_core_close(core, connection);
}

/* One of these; where there are no keys everybody has all. */
static bool has_right(const struct mc_connection *connection, unsigned rights)
{
    return connection->key == 0 || (connection->rights & rights) != 0;
}

static uint64_t tenant_of(const struct mc_connection *connection)
{
    struct mc_span name = mc_scope_name(&connection->scope);
    return mc_hash(name.data, name.length).low;
}

static void key_take(struct mc_member *member, const struct mc_connection *connection)
{
    member->key = connection->key;
    member->tenant = tenant_of(connection);
    member->rights = connection->key == 0 ? MC_RIGHTS_ALL : connection->rights;
}

/* The key that it joined with is none any more: its process may come back with another one, of the same tenant, that
 * permits no less. */
static bool may_follow(const struct mc_core *core, const struct mc_member *member,
                       const struct mc_connection *connection)
{
    return core->config.has_key != NULL && !core->config.has_key(member->key) &&
           member->tenant == tenant_of(connection) && (connection->rights & member->rights) == member->rights;
}

/* Has another process that id, or another key? Each draws its own, so whoever says so has heard of it, and would end
 * it. */
static bool is_taken(const struct mc_core *core, const struct mc_connection *connection,
                     const struct mc_wire_hello *hello)
{
    const struct mc_member *member = mc_map_get(&core->members_by_id, mc_core_hash_id(core, hello->node));
    if (member == NULL)
        return false;
    return member->incarnation != hello->incarnation || !mc_id_equal(member->id, hello->node) ||
           (member->key != connection->key && !may_follow(core, member, connection));
}

/* Who may lend memory does not wait for who may not: a master that has taken over knows nobody's id yet, and all have
 * heard those of nodes. */
static void id_take_back(struct mc_core *core, const struct mc_connection *connection,
                         const struct mc_wire_hello *hello)
{
    struct mc_member *member = mc_map_get(&core->members_by_id, mc_core_hash_id(core, hello->node));
    if (member == NULL || (member->rights & MC_RIGHT_NODE) != 0 || !has_right(connection, MC_RIGHT_NODE))
        return;
    mc_core_log(core, MC_CORE_LOG_WARNING,
                "node id " MC_ID_LOG " is taken from a member without the right to lend memory",
                MC_ID_LOG_ARGS(member->id));
    mc_member_drop(core, member, "it had the id of a node that lends memory, and no right to");
}

/* The member this hello is of, made if need be. NULL when there are too many. */
static struct mc_member *member_of(struct mc_core *core, const struct mc_wire_hello *hello)
{
    uint64_t hash = mc_core_hash_id(core, hello->node);
    struct mc_member *member = mc_map_get(&core->members_by_id, hash);
    if (member != NULL && member->absent) { /* it was only silent; from now on it is as mortal as any */
        member->absent = false;
        mc_member_seen(core, member);
    }
    if (member != NULL)
        return member;
    member = member_create(core, hello, hash);
    if (member == NULL)
        return NULL;
    mc_core_log(core, MC_CORE_LOG_INFO, "member " MC_ID_LOG "/%llu (%.*s) joins: %s", MC_ID_LOG_ARGS(hello->node),
                (unsigned long long)hello->incarnation, (int)(hello->name.length < 256 ? hello->name.length : 256),
                hello->name.length == 0 ? "" : (const char *)hello->name.data,
                mc_wire_build(member->build, hello->build));
    return member;
}

/* Whose keys it names: its key says so, never a stranger. Only without keys whoever says a name has it. NULL, or why it
 * is refused. */
static const char *take_scope(struct mc_core *core, struct mc_connection *connection, const struct mc_wire_hello *hello)
{
    struct mc_scope said;
    if (!mc_scope_make(&said, hello->tenant))
        return "what it says to be its tenant is no name";
    bool is_same = mc_span_equal(mc_scope_span(&said), mc_scope_span(&connection->scope));
    bool means_nothing = !core->config.tenants && connection->scope.length == 0;
    if (connection->key == 0 && core->config.tenants)
        connection->scope = said;
    else if (said.length > 0 && !is_same && !means_nothing)
        return "it says another tenant than its key does";
    unsigned rights = connection->key == 0 ? MC_RIGHTS_ALL : connection->rights;
    connection->is_kept = (rights & MC_RIGHT_NODE) == 0; /* a node moves the objects of all */
    mc_scope_stamp(&connection->scope, hello->stamp);
    mc_miss_stamp(core, hello->stamp);
    bool removes_all = (rights & MC_RIGHT_ADMIN) != 0 && !core->config.tenants;
    connection->is_scoped = !removes_all || connection->scope.length > 0 || connection->is_kept;
    return NULL;
}

void mc_connection_keep(const struct mc_connection *connection, struct mc_span *keys, uint32_t count)
{
    if (!connection->is_kept)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (!mc_scope_has(&connection->scope, keys[i]))
            keys[i].length = 0; /* which is no key */
}

/* The newest connection of a role counts; the one before it is of a past of the same process. */
static void take_role(struct mc_core *core, struct mc_member *member, struct mc_connection *connection)
{
    if (connection->role == MC_ROLE_OWNER) {
        struct mc_connection *before = member->owner;
        member->owner = connection;
        for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next)
            mc_segment_owner_lost(mc_link_of(link, struct mc_segment, of_member));
        refresh_segments(core, member);
        if (before != NULL)
            mc_core_close(core, before);
    } else if (connection->role == MC_ROLE_HEARTBEAT) {
        struct mc_connection *before = member->heartbeat;
        member->heartbeat = connection;
        member->had_heartbeat = true;
        member->heartbeat_lost = member->silent = false;
        mc_member_seen(core, member);
        refresh_segments(core, member);
        if (before != NULL)
            mc_core_close(core, before);
    }
}

/* What is said of another master's epoch counts if that can be proved, or, where nothing is proved, of who has one of
 * these rights. NULL, or why it does not. */
static const char *unbelieved(const struct mc_core *core, const struct mc_connection *connection, uint64_t epoch,
                              struct mc_span proof, unsigned rights)
{
    uint8_t bytes[MC_EPOCH_PROOF_BYTES];
    struct mc_span own;
    if (!own_proof(core, bytes, &own))
        return has_right(connection, rights) ? NULL : "its key has no right to lend memory";
    return core->config.proofs->holds(epoch, proof) ? NULL : "it has no proof of that";
}

/* Who moves us costs everybody a recovery. Who is not believed is left outside until he is started again, if it is we
 * who are right. */
void mc_member_met_later(struct mc_core *core, struct mc_connection *connection, const struct mc_later *later)
{
    uint8_t bytes[MC_EPOCH_PROOF_BYTES];
    struct mc_span own;
    const char *why = unbelieved(core, connection, later->epoch, later->proof, MC_RIGHT_NODE);
    if (why == NULL)
        mc_evidence_contradicts(core, later, own_proof(core, bytes, &own));
    else if (core->statistics.epochs_doubted++ == 0)
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "member " MC_ID_LOG " says that it has met a master of epoch %llu, ours is %llu: %s, so its word "
                    "does not count, and it stays outside. Is this machine's clock right?",
                    MC_ID_LOG_ARGS(later->node), (unsigned long long)later->epoch, (unsigned long long)core->epoch,
                    why);
    mc_core_close(core, connection);
}

void mc_member_hello(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_hello hello;
    char text[448];
    mc_wire_hello_read(&reader, &hello);
    if (hello.magic != MC_WIRE_MAGIC) {
        mc_core_malformed(core, connection, "its hello is not of our protocol");
        return;
    }
    if (mc_wire_agree(&connection->peer, hello.version_min, hello.version_max, hello.features) < 0) {
        char build[MC_BUILD_TEXT_MAX];
        (void)snprintf(text, sizeof(text),
                       "the client (%s) speaks protocol version %u to %u, this master (%s) %u to %u; releases next to "
                       "each other understand each other",
                       mc_wire_build(build, hello.build), hello.version_min, hello.version_max, mc_build(),
                       MC_WIRE_VERSION_MIN, MC_WIRE_VERSION_MAX);
        hello_refuse(core, connection, frame->request_id, MC_ERR_INVALID_VERSION, text);
        return;
    }
    if (hello.role > MC_ROLE_OWNER) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_INVALID_PARAMS, "a master serves no data connections");
        return;
    }
    if (mc_id_is_zero(hello.node)) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_INVALID_PARAMS, "the node id is zero");
        return;
    }
    if (hello.seen_epoch > MC_EPOCH_MAX) {
        mc_core_malformed(core, connection, "it has met an epoch that cannot be");
        return;
    }
    if (hello.role == MC_ROLE_OWNER && !has_right(connection, MC_RIGHT_NODE)) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_NOT_PERMITTED, "its key has no right to lend memory");
        return;
    }
    const char *no_tenant = take_scope(core, connection, &hello);
    if (no_tenant != NULL) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_NOT_PERMITTED, no_tenant);
        return;
    }
    int32_t code = mc_cluster_judge(core, &hello, text);
    if (code != 0) {
        hello_reply(core, connection, frame->request_id, code, text);
        mc_core_close(core, connection);
        return;
    }
    /* What a node of another cluster has met says nothing of ours. */
    bool is_other = mc_cluster_is_other(core, hello.cluster);
    if (hello.seen_epoch > core->epoch) { /* no answer: it would be that of a master of the past */
        mc_member_met_later(core, connection,
                            &(struct mc_later){hello.node, hello.name, hello.role == MC_ROLE_OWNER, hello.seen_epoch,
                                               hello.epoch_proof});
        return;
    }
    id_take_back(core, connection, &hello);
    if (is_taken(core, connection, &hello)) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_ILLEGAL_CLIENT, "another process has this node id");
        return;
    }
    if (hello.holds != 0)
        connection->cluster = hello.cluster;
    struct mc_member *member = member_of(core, &hello);
    if (member == NULL) {
        hello_refuse(core, connection, frame->request_id, MC_ERR_BUSY, "this master has too many members");
        return;
    }
    key_take(member, connection);
    connection->member = member;
    connection->role = hello.role;
    connection->lent_ms = mc_core_life_ms(core);
    /* Who lends memory may have met its masters before they proved anything. */
    if (!is_other && (has_right(connection, MC_RIGHT_NODE) ||
                      (has_right(connection, MC_RIGHT_WRITE) &&
                       unbelieved(core, connection, hello.seen_epoch, hello.epoch_proof, MC_RIGHT_WRITE) == NULL)))
        mc_evidence_said(core, connection, &hello);
    mc_link_append(&member->connections, &connection->of_member);
    hello_reply(core, connection, frame->request_id, 0, "");
    take_role(core, member, connection);
}

static const char *health_text(uint8_t health)
{
    return health == MC_TOLD_WELL   ? "well again"
           : health == MC_TOLD_SLOW ? "slow: until it answers nothing is stored or loaded there"
                                    : "read-only: what is there can be loaded, nothing is stored there any more";
}

static void disk_told(struct mc_core *core, struct mc_segment *disk, uint8_t health)
{
    health = health > MC_TOLD_READ_ONLY ? MC_TOLD_READ_ONLY : health;
    if (disk->health == health)
        return;
    mc_core_tell(core, MC_TOPIC_DISK, health == MC_TOLD_WELL ? MC_CORE_LOG_INFO : MC_CORE_LOG_WARNING,
                 "disk %u (%s, %s) is %s", disk->number, disk->name, disk->directory, health_text(health));
    disk->health = health;
}

static void disks_off_told(struct mc_core *core, struct mc_member *member, uint8_t count)
{
    if (member->disks_off == count)
        return;
    mc_core_tell(core, MC_TOPIC_DISK, count == 0 ? MC_CORE_LOG_INFO : MC_CORE_LOG_WARNING,
                 "member " MC_ID_LOG "/%llu (%s) says that %u of its disks cannot be used; its log says why",
                 MC_ID_LOG_ARGS(member->id), (unsigned long long)member->incarnation, member->name, (unsigned)count);
    member->disks_off = count;
}

/* It has a segment, besides disks that it has left to others. */
static bool serves(const struct mc_member *member)
{
    const struct mc_link *link = member->segments.next;
    while (link != &member->segments && mc_link_of(link, struct mc_segment, of_member)->detached)
        link = link->next;
    return link != &member->segments;
}

/* Whoever lends memory is asked over its owner's connection at every heartbeat, and must have spoken there when the
 * next one comes: else the heartbeat is no contact. The reply says so, and the owner counts none, so that a master
 * after us does not think that nothing was missed. */
static bool has_contact(struct mc_core *core, struct mc_member *member)
{
    uint64_t before_ms = member->asked_ms;
    member->beat_ms = mc_core_life_ms(core);
    if (!core->is_held) /* else this PING is sent later, and the one before it is what must have been answered */
        member->asked_ms = member->beat_ms;
    if (!serves(member))
        return true;
    struct mc_connection *owner = member->owner;
    struct mc_buffer *out = owner == NULL ? NULL : mc_core_buffer(core, owner->number);
    if (out != NULL) {
        mc_core_frame_bare(core, out, MC_MESSAGE_PING, 0);
        owner->asked_ms = owner->asked_ms != 0 || core->is_held ? owner->asked_ms : core->now_ms;
        (void)mc_way_loses(core, owner); /* a loss that a later probe has to know of */
    }
    if (owner != NULL && owner->heard_ms >= before_ms)
        return true;
    if (owner == NULL)
        return false;
    for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next)
        if (!mc_link_of(link, struct mc_segment, of_member)->detached)
            mc_segment_doubt(core, mc_link_of(link, struct mc_segment, of_member));
    return false;
}

void mc_member_heartbeat(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_member *member = connection->member;
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_heartbeat head;
    mc_wire_heartbeat_read(&reader, &head);
    core->statistics.heartbeats++;
    disks_off_told(core, member, head.disks_off);
    member->promoted = 0;
    bool contact = has_contact(core, member);
    if (contact)
        mc_member_seen(core, member);
    if (contact && member->silent) {
        member->silent = false;
        refresh_segments(core, member);
    }
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    size_t at = 0, list = 0;
    if (out != NULL) {
        uint8_t bytes[MC_EPOCH_PROOF_BYTES];
        struct mc_span proof;
        (void)own_proof(core, bytes, &proof);
        struct mc_wire_heartbeat_reply reply = {.code = 0,
                                                .epoch = core->epoch,
                                                .quiet = !mc_recover_acts(core),
                                                .changes = core->segment_changes,
                                                .age_ms = core->now_ms + 1,
                                                .cluster = mc_cluster_told(core),
                                                .epoch_proof = proof};
        at = mc_core_frame(core, out, MC_MESSAGE_HEARTBEAT_REPLY, frame->request_id);
        mc_wire_heartbeat_reply_write(out, &reply);
        list = mc_list_begin(out);
    }
    uint32_t count = mc_list_read(&reader);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_heartbeat_segment item;
        mc_wire_heartbeat_segment_read(&reader, &item);
        struct mc_segment *segment = mc_segment_find(core, item.segment);
        bool own = segment != NULL && segment->member == member;
        if (own) {
            bool is_back = segment->kind == MC_SEGMENT_DISK && segment->leaving && item.leaving == 0;
            segment->leaving = item.leaving != 0 || segment->drain;
            if (segment->kind == MC_SEGMENT_DISK)
                disk_told(core, segment, item.health);
            if (is_back && segment->state == MC_SEGMENT_OK)
                mc_sweep_trusted(core, segment); /* what was put meanwhile is on no disk */
            mc_segment_set_populated(core, segment, item.populated);
            mc_segment_update_room(core, segment);
        }
        struct mc_wire_segment_code code = {.segment = item.segment,
                                            .code = own ? segment->late > 0 || !contact : MC_ERR_SEGMENT_NOT_FOUND,
                                            .drain = own && segment->drain,
                                            .unreachable = own && segment->unreachable};
        if (out != NULL)
            mc_wire_segment_code_write(out, &code);
    }
    if (out != NULL) {
        mc_frame_end_list(out, at, list, count);
    }
}

/* Nobody can end a member that never had a heartbeat thread and owns nothing, but the end of its last connection. */
static bool mortal(const struct mc_member *member)
{
    return member->had_heartbeat || !mc_link_alone(&member->segments);
}

static void release_segments(struct mc_core *core, struct mc_member *member)
{
    for (struct mc_link *link = member->segments.next; link != &member->segments; link = link->next)
        mc_segment_release(core, mc_link_of(link, struct mc_segment, of_member));
}

/* Its process lives, but not what serves its segments: they go, and it stays as a client. A disk that it has left is
 * no business of its own any more. */
static void give_up_segments(struct mc_core *core, struct mc_member *member)
{
    core->statistics.owners_stuck++;
    core->has_given_up = true;
    for (struct mc_link *link = member->segments.next; link != &member->segments;) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        link = link->next; /* it goes off the list */
        if (segment->detached)
            continue;
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "segment %u (%s) is given up: its node sends heartbeats, but what serves its data has not answered "
                    "for %llu ms",
                    segment->number, segment->name, (unsigned long long)(mc_core_life_ms(core) - member->seen_ms));
        mc_segment_give_up(core, segment);
    }
    if (member->owner != NULL) /* should it run again, it begins anew */
        mc_core_close(core, member->owner);
    mc_member_seen(core, member);
}

/* From now on what its segments hold may be acted upon. */
static void depart(struct mc_core *core, struct mc_member *member)
{
    member->departed = true;
    core->has_given_up |= !mc_link_alone(&member->segments);
    release_segments(core, member);
}

void mc_members_depart(struct mc_core *core)
{
    for (struct mc_link *link = core->members.next; link != &core->members; link = link->next) {
        release_segments(core, mc_link_of(link, struct mc_member, by_seen)); /* those that have departed */
    }
}

/* Who was asked in this turn does not hear of it now, and owes nothing at the next heartbeat. */
void mc_members_hold(struct mc_core *core)
{
    for (struct mc_link *link = core->members.next; link != &core->members; link = link->next) {
        struct mc_member *member = mc_link_of(link, struct mc_member, by_seen);
        if (member->asked_ms + core->gap_ms >= core->sent_ms)
            member->asked_ms = 0;
        if (member->owner != NULL && member->owner->asked_ms >= core->sent_ms)
            member->owner->asked_ms = 0;
    }
}

void mc_members_tick(struct mc_core *core)
{
    uint64_t now = mc_core_life_ms(core), ttl = core->config.client_ttl_ms, depart_ms = core->config.depart_ms;
    uint64_t least = depart_ms < ttl / 2 ? depart_ms : ttl / 2;
    uint64_t gone_ms = ttl > depart_ms ? ttl : depart_ms; /* to be gone is to have departed */
    if (now == core->members_ticked_ms)
        return; /* a busy master has many turns a millisecond, and those who are absent are passed over in each */
    core->members_ticked_ms = now;
    struct mc_link *link = core->members.next;
    while (link != &core->members) {
        struct mc_member *member = mc_link_of(link, struct mc_member, by_seen);
        link = link->next;
        if (now - member->seen_ms < least)
            break; /* those behind it were seen later */
        if (!mortal(member)) {
            mc_member_seen(core, member);
            continue;
        }
        if (now - member->seen_ms >= gone_ms && member->heartbeat != NULL && now - member->beat_ms < gone_ms) {
            give_up_segments(core, member);
            continue;
        }
        if (member->absent && now - member->seen_ms < core->config.disk_ttl_ms)
            continue;
        if (now - member->seen_ms >= gone_ms) {
            core->statistics.members_lost += !member->absent;
            if (member->absent || core->config.disk_ttl_ms <= gone_ms || !become_absent(core, member))
                mc_member_drop(core, member, SILENT);
            continue;
        }
        if (now - member->seen_ms >= depart_ms && !member->departed)
            depart(core, member);
        if (now - member->seen_ms >= ttl / 2 && !member->silent) {
            member->silent = true;
            refresh_segments(core, member);
        }
    }
}
