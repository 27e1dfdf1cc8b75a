/* What the master says to the owner and what it is told: hello, mount, LIVE, CLEAR, CUT. All on the serve thread. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define LOST_MAX MC_BATCH_MAX          /* rotten slots that are kept to be told again; those before are forgotten */
#define LIVE_MAX 65536u                /* commits that the master has not been told of yet */
#define POPULATED_EAGER (256ull << 20) /* up to here every step is told at once */
#define RENEW_WAIT_MS 100u             /* peers wait meanwhile for all that this thread does */
#define NUDGE_MS 5u                    /* between PINGs behind what may be lost */
#define POPULATED_EVERY_MS 100u        /* then so often */

/* ---- news ---- */

static bool news_add(struct mc_news *news, struct slot_news item)
{
    if (news->first + news->count == news->capacity) {
        if (news->first > 0) {
            memmove(news->items, news->items + news->first, news->count * sizeof(*news->items));
            news->first = 0;
        } else {
            size_t capacity = news->capacity == 0 ? 256 : news->capacity * 2;
            struct slot_news *items = realloc(news->items, capacity * sizeof(*items));
            if (items == NULL)
                return false;
            news->items = items;
            news->capacity = capacity;
        }
    }
    news->items[news->first + news->count++] = item;
    return true;
}

void mc_owner_news_drop(struct mc_news *news, size_t count)
{
    news->first += count;
    news->count -= count;
    if (news->count == 0)
        news->first = 0;
}

/* ---- what the master is told ---- */

/* One LIVE frame is under way at a time, so that what a broken link had not taken whole is known and can be told again.
 */
void mc_owner_live_write(struct mc_owner *owner)
{
    if (owner->live.count == 0 || owner->live_framed > 0 || owner->state != LINK_MOUNTED)
        return;
    size_t count = owner->live.count < MC_BATCH_MAX ? owner->live.count : MC_BATCH_MAX;
    struct mc_wire_live head = {.segment = atomic_load(&owner->segment)};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_LIVE, 0);
    size_t list = mc_wire_live_head(&owner->out, &head);
    for (size_t i = 0; i < count; i++) {
        const struct slot_news *item = &owner->live.items[owner->live.first + i];
        struct mc_wire_live_item record = {.slot = item->slot, .code = item->code, .generation = item->generation};
        mc_wire_live_item_write(&owner->out, &record);
    }
    mc_frame_end_list(&owner->out, frame, list, count);
    owner->live_framed = count;
    owner->live_framed_end = owner->out.length;
}

/* A frame of `count` slots of that news, from `first` on. */
static void slots_write(struct mc_owner *owner, enum mc_message type, const struct mc_news *news, size_t first,
                        size_t count)
{
    struct mc_wire_segment head = {.segment = atomic_load(&owner->segment)};
    size_t frame = mc_frame_begin(&owner->out, type, 0);
    size_t list = mc_wire_segment_head(&owner->out, &head);
    for (size_t i = 0; i < count; i++) {
        const struct slot_news *item = &news->items[news->first + first + i];
        struct mc_wire_slot record = {.slot = item->slot, .generation = item->generation};
        mc_wire_slot_write(&owner->out, &record);
    }
    mc_frame_end_list(&owner->out, frame, list, count);
}

/* All of them again over a new connection: nobody knows what of it a broken one took, and twice does no harm. */
void mc_owner_lost_write(struct mc_owner *owner)
{
    if (owner->lost.count == owner->lost_told || owner->state != LINK_MOUNTED)
        return;
    slots_write(owner, MC_MESSAGE_LOST, &owner->lost, owner->lost_told, owner->lost.count - owner->lost_told);
    owner->lost_told = owner->lost.count;
}

static void cut_done_write(struct mc_owner *owner)
{
    while (owner->cut_done.count > 0) {
        size_t count = owner->cut_done.count < MC_BATCH_MAX ? owner->cut_done.count : MC_BATCH_MAX;
        slots_write(owner, MC_MESSAGE_CUT_DONE, &owner->cut_done, 0, count);
        mc_owner_news_drop(&owner->cut_done, count);
    }
}

void mc_owner_hello_send(struct mc_owner *owner)
{
    struct mc_wire_hello hello = {.role = MC_ROLE_OWNER,
                                  .node = owner->node,
                                  .incarnation = owner->incarnation,
                                  .host = owner->host,
                                  .name = mc_span_string(owner->name)};
    owner->held = mc_owner_holds(owner, &hello.cluster);
    hello.holds = owner->held;
    hello.seen_epoch = mc_owner_seen(owner, &hello.seen_age_ms);
    struct mc_epoch_proof proof = mc_owner_proof(owner, hello.seen_epoch);
    hello.epoch_proof = mc_epoch_proof_of(&proof, hello.seen_epoch);
    owner->master_epoch = 0;
    owner->hello_ms = mc_clock_boot_ms();
    mc_wire_hello_sign(&hello);
    mc_wire_hello_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_HELLO, ++owner->request_id), &hello);
    mc_owner_link_send(owner);
}

void mc_owner_mount_send(struct mc_owner *owner)
{
    struct mc_segment_memory *memory = owner->memory;
    uint64_t epoch = mc_segment_memory_epoch(memory);
    if (owner->state != LINK_MOUNTED)
        owner->slot_top = mc_segment_memory_slot_top(memory);
    struct mc_wire_mount mount = {.segment_id = mc_segment_memory_id(memory),
                                  .capacity = mc_segment_memory_capacity(memory),
                                  .populated = mc_segment_memory_populated(memory),
                                  .slot_count = mc_segment_memory_slot_count(memory),
                                  .nonce = mc_segment_memory_nonce(memory),
                                  .epoch = epoch,
                                  .contact_age_ms = mc_owner_contact_age_ms(owner),
                                  .contact_at_ms = mc_segment_memory_contact_at_ms(memory),
                                  .slot_top = owner->slot_top,
                                  .host = owner->host,
                                  .name = mc_span_string(owner->name),
                                  .tcp_address = mc_span_string(owner->name),
                                  .unix_path = mc_span_string(mc_serve_unix_path(owner->serve))};
    struct mc_epoch_proof proof = mc_owner_proof(owner, epoch);
    mount.epoch_proof = mc_epoch_proof_of(&proof, epoch);
    mc_serve_keys_tell(owner->serve, &mount);
    mount.key_ms = owner->key_ms;
    owner->mount_id = ++owner->request_id;
    owner->populated_told = mount.populated;
    owner->populated_told_ms = mc_clock_ms();
    owner->mount_sent_ms = mc_clock_boot_ms();
    mc_wire_mount_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_MOUNT, owner->mount_id), &mount);
    if (owner->state != LINK_MOUNTED) {
        owner->state = LINK_MOUNTING;
        mc_owner_timer_set(owner->timer, ANSWER_MS);
    }
    mc_owner_link_send(owner);
}

/* Tells the master how far populating is, by mounting the same once more. */
void mc_owner_populated_tell(struct mc_owner *owner)
{
    if (owner->state != LINK_MOUNTED || owner->mount_id != 0 || owner->inventory.is_active)
        return; /* looked at again when the answer comes, or the inventory is through */
    uint64_t populated = mc_segment_memory_populated(owner->memory),
             passed_ms = mc_clock_ms() - owner->populated_told_ms;
    if (populated == owner->populated_told)
        return;
    if (populated > POPULATED_EAGER && passed_ms < POPULATED_EVERY_MS)
        mc_owner_timer_set(owner->populated_timer, POPULATED_EVERY_MS - passed_ms);
    else
        mc_owner_mount_send(owner);
}

static void on_populated(void *argument)
{
    struct mc_owner *owner = argument;
    atomic_store(&owner->populated_posted, false);
    mc_owner_populated_tell(owner);
}

void mc_owner_on_populated_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    mc_owner_populated_tell(argument);
}

/* On the thread that populates. */
void mc_owner_on_progress(void *context, struct mc_segment_memory *memory, uint64_t populated)
{
    struct mc_owner *owner = context;
    if (populated == mc_segment_memory_capacity(memory) && !mc_segment_memory_is_given_up(memory))
        mc_serve_pin(owner->serve, memory);
    if (!atomic_exchange(&owner->populated_posted, true))
        mc_serve_post(owner->serve, on_populated, owner);
}

/* ---- what peers do; on the serve thread ---- */

void mc_owner_on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation,
                           int code)
{
    struct mc_owner *owner = context;
    if (memory != owner->memory)
        return;
    if (owner->live.count >= LIVE_MAX || !news_add(&owner->live, (struct slot_news){slot, code, generation}))
        mc_log_limited(WARNING, "too many commits wait for the master; their writers will place again");
}

void mc_owner_on_flush(void *context)
{
    struct mc_owner *owner = context;
    if (owner->state == LINK_MOUNTED)
        cut_done_write(owner);
    mc_owner_link_send(owner);
}

/* Nothing is answered to what the master was told: who misses it says so to us. */
void mc_owner_on_missed(void *context)
{
    struct mc_owner *owner = context;
    uint64_t now_ms = mc_clock_ms();
    if (owner->state != LINK_MOUNTED || now_ms < owner->nudged_ms + NUDGE_MS ||
        !mc_tcp_is_unconfirmed(atomic_load(&owner->fd)))
        return;
    owner->nudged_ms = now_ms;
    mc_frame_bare(&owner->out, MC_MESSAGE_PING, 0);
    mc_owner_link_send(owner);
}

static void on_cut_done(void *context, uint32_t slot, uint64_t generation)
{
    struct mc_owner *owner = context;
    /* Without a mount the master asks again after the next one. */
    if (owner->state == LINK_MOUNTED && !news_add(&owner->cut_done, (struct slot_news){slot, 0, generation}))
        abort(); /* as the buffers do: the extent would never be free again */
}

static void lost_add(struct mc_owner *owner, uint32_t slot, uint64_t generation)
{
    if (owner->lost.count >= LOST_MAX) {
        mc_owner_news_drop(&owner->lost, 1);
        owner->lost_told -= owner->lost_told > 0;
    }
    if (!news_add(&owner->lost, (struct slot_news){slot, 0, generation}))
        mc_log_limited(ERROR, "out of memory: the master is not told of a rotten slot; its readers will find out");
    mc_owner_link_send(owner);
}

struct rotten {
    struct mc_owner *owner;
    struct mc_segment_memory *memory; /* with a reference */
    uint32_t slot;
    uint64_t generation;
};

static void on_rotten(void *argument)
{
    struct rotten *rotten = argument;
    if (rotten->memory == rotten->owner->memory) /* else it was given up meanwhile */
        lost_add(rotten->owner, rotten->slot, rotten->generation);
    mc_segment_memory_drop(rotten->memory);
    free(rotten);
}

/* On the scrubber's thread. */
void mc_owner_on_rotten(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    struct mc_owner *owner = context;
    struct rotten *rotten = malloc(sizeof(*rotten));
    if (rotten == NULL) {
        mc_log_limited(ERROR, "out of memory: the master is not told of a rotten slot; its readers will find out");
        return;
    }
    *rotten = (struct rotten){owner, memory, slot, generation};
    mc_segment_memory_retain(memory);
    mc_serve_post(owner->serve, on_rotten, rotten);
}

/* ---- what the master says ---- */

static void refusal_note(struct mc_owner *owner, int code)
{
    pthread_mutex_lock(&owner->lock);
    owner->refusal = code;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static void memory_set(struct mc_owner *owner, struct mc_segment_memory *memory)
{
    pthread_mutex_lock(&owner->lock);
    owner->memory = memory;
    pthread_mutex_unlock(&owner->lock);
}

/* The master took the space for lost: what still maps the old memory may write into it for ever, so it is given up, not
 * cleaned. */
static int memory_renew(struct mc_owner *owner)
{
    struct mc_segment_memory *old = owner->memory, *fresh;
    bool has_contents;
    mc_segment_memory_discard(old);
    int rc = mc_segment_memory_open_on(owner->has_nodes ? &owner->nodes : NULL, owner->data_dir, owner->name,
                                       owner->capacity, mc_clock_ns() + RENEW_WAIT_MS * 1000000ull, true, &fresh,
                                       &has_contents);
    if (rc < 0)
        return rc;
    if (has_contents)
        mc_log(INFO, "segment %s takes up the memory of another that has died", owner->name);
    mc_owner_inventory_stop(owner);
    mc_scrub_set_memory(owner->scrub, fresh);
    mc_paths_remove_segment(owner->paths, old);
    mc_segment_memory_give_up(old); /* before a master is told of the new one */
    mc_serve_set_memory(owner->serve, fresh);
    memory_set(owner, fresh);
    mc_paths_add_segment(owner->paths, fresh);
    mc_segment_memory_follow(fresh, old);
    mc_segment_memory_retire(old);
    mc_owner_news_drop(&owner->live, owner->live.count);
    mc_owner_news_drop(&owner->cut_done, owner->cut_done.count);
    mc_owner_news_drop(&owner->lost, owner->lost.count);
    owner->live_framed = owner->lost_told = 0;
    (void)mc_segment_memory_populate(fresh, mc_owner_on_progress,
                                     owner); /* its failure is logged; the segment is then offered empty */
    return 0;
}

static bool wants_to_drop(void)
{
    const char *wish = mc_variable(MC_FOREIGN_CONTENTS);
    return wish != NULL && strcmp(wish, "drop") == 0;
}

/* New memory, for a cluster to which nothing of the old one means anything. */
static int memory_begin_anew(struct mc_owner *owner)
{
    int rc = memory_renew(owner);
    if (rc == 0)
        mc_owner_forget(owner);
    return rc;
}

/* The master is of another cluster, and does not want what we hold. It stays as it is, and we ask again, slowly: the
 * master may be the wrong one, or think itself of the wrong cluster. */
static int foreign_handle(struct mc_owner *owner, const struct mc_wire_hello_reply *reply)
{
    owner->master_node = (struct mc_id){0, 0}; /* by its address the right one may be found */
    mc_log_limited(ERROR, "master %s refuses segment %s: %.*s", owner->master_address, owner->name,
                   (int)reply->text.length, reply->text.data == NULL ? "" : (const char *)reply->text.data);
    mc_owner_disks_foreign(owner, reply->cluster);
    if (wants_to_drop()) {
        mc_log(WARNING, "the contents of segment %s are given up, as MC_FOREIGN_CONTENTS=drop says", owner->name);
        return memory_begin_anew(owner) < 0 ? MC_ERR_NO_MEMORY : MC_ERR_OTHER_CLUSTER;
    }
    owner->backoff_ms = BACKOFF_FOREIGN_MS;
    refusal_note(owner, reply->code);
    return reply->code;
}

/* A master that may have us. Memory that holds nothing brings nothing with it, but what it has met elsewhere. */
static int cluster_check(struct mc_owner *owner, const struct mc_wire_hello_reply *reply)
{
    struct mc_id ours;
    bool holds = mc_owner_holds(owner, &ours);
    owner->master_cluster = reply->cluster;
    if (mc_id_is_zero(reply->cluster) || mc_id_is_zero(ours) || mc_id_equal(reply->cluster, ours)) {
        owner->move = (struct mc_master_move){.since_ms = 0};
        return 0;
    }
    if (holds) { /* since the hello; or the master has become another's meanwhile */
        owner->backoff_ms = BACKOFF_FOREIGN_MS;
        return MC_ERR_OTHER_CLUSTER;
    }
    if (!mc_master_may_move(&owner->move, owner->master_address, reply->cluster)) {
        mc_log_limited(WARNING,
                       "master %s is of another cluster than segment %s: whether it is meant is known when its name is "
                       "looked up anew, or its Lease is renewed",
                       owner->master_address, owner->name);
        owner->backoff_ms = BACKOFF_FOREIGN_MS;
        return MC_ERR_OTHER_CLUSTER;
    }
    mc_log(INFO, "segment %s holds nothing and leaves its cluster for that of master %s", owner->name,
           owner->master_address);
    int rc = memory_begin_anew(owner);
    return rc < 0 ? rc : MC_ERR_STALE; /* a new link, and a hello that speaks of the new memory */
}

/* A standby: whom it names is tried next, and it itself not by the short way. One that was named itself names nobody:
 * the election is asked again, so that standbys which hear nothing of it do not send us to and fro. */
static void leader_follow(struct mc_owner *owner, const struct mc_wire_hello_reply *reply)
{
    owner->master_node = (struct mc_id){0, 0};
    if (!owner->is_hinted && reply->leader.length > 0 && reply->leader.length < sizeof(owner->leader) &&
        memchr(reply->leader.data, 0, reply->leader.length) == NULL)
        snprintf(owner->leader, sizeof(owner->leader), "%.*s", (int)reply->leader.length,
                 (const char *)reply->leader.data);
    mc_log(DEBUG, "master %s is a standby; %s%s", owner->master_address,
           owner->leader[0] == 0 ? "it names no leader" : "leader is ", owner->leader);
}

/* What a master says that was overtaken by another is not listened to, also not when it comes late. */
static int epoch_check(struct mc_owner *owner, uint64_t epoch)
{
    uint32_t age_ms;
    uint64_t seen = mc_owner_seen(owner, &age_ms);
    if (!mc_epoch_can_be(epoch)) {
        mc_log_limited(ERROR, "master %s says that its epoch is %" PRIu64 ", which cannot be; is its clock right?",
                       owner->master_address, epoch);
        return MC_ERR_PROTOCOL;
    }
    if (epoch >= seen)
        return 0;
    if (!owner->is_past_told)
        mc_log(WARNING,
               "master %s is of the past (epoch %" PRIu64 ", but %" PRIu64 " was met): segment %s stays away from it",
               owner->master_address, epoch, seen, owner->name);
    owner->is_past_told = true;
    owner->master_node = (struct mc_id){0, 0};
    return MC_ERR_STALE;
}

static int hello_reply_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_hello_reply reply;
    mc_wire_hello_reply_read(reader, &reply);
    if (owner->state != LINK_HELLO || reader->bad)
        return MC_ERR_PROTOCOL;
    if (reply.code == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS) {
        leader_follow(owner, &reply);
        return reply.code;
    }
    if (reply.code == MC_ERR_OTHER_CLUSTER)
        return foreign_handle(owner, &reply);
    int rc = reply.code < 0 ? reply.code
                            : mc_wire_agree(&owner->agreed, reply.version_min, reply.version_max, reply.features);
    if (rc < 0) {
        mc_log_limited(ERROR, "master %s refuses this store node: %s (%.*s)", owner->master_address, mc_error_name(rc),
                       (int)reply.text.length, reply.text.data == NULL ? "" : (const char *)reply.text.data);
        refusal_note(owner, rc);
        return rc;
    }
    rc = cluster_check(owner, &reply);
    if (rc == 0)
        rc = epoch_check(owner, reply.epoch);
    if (rc < 0)
        return rc;
    owner->master_node = reply.node;
    owner->master_epoch = reply.epoch;
    owner->hello_at_ms = reply.age_ms;
    (void)mc_owner_age_told(owner, reply.epoch, reply.age_ms, owner->hello_ms);
    mc_owner_proof_told(owner, reply.epoch, reply.epoch_proof); /* before the epoch: it is never seen without it */
    mc_owner_heard(owner, reply.epoch, reply.quiet == 0, frame->time);
    mc_owner_mount_send(owner);
    return 0;
}

static void mounted_note(struct mc_owner *owner, uint32_t segment)
{
    pthread_mutex_lock(&owner->lock);
    atomic_store(&owner->segment, segment);
    atomic_store(&owner->is_mounted, true);
    owner->was_mounted = true;
    owner->refusal = 0;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static int memory_mounted(struct mc_owner *owner, const struct mc_wire_mount_reply *reply, uint16_t frame_time)
{
    uint64_t met = mc_segment_memory_met(owner->memory);
    bool is_known =
        owner->state == LINK_MOUNTED && atomic_load(&owner->segment) == reply->segment && met == reply->epoch;
    if (reply->epoch < met || reply->epoch < owner->master_epoch || !mc_epoch_can_be(reply->epoch))
        return MC_ERR_PROTOCOL;
    if (is_known && (reply->inventory != 1 || owner->inventory.is_active))
        return 0; /* only how far populating is */
    if (reply->epoch != met) {
        /* Of a leadership that is over; but what peers commit to memory that was never mounted is of this one: they may
         * hear of its mount before we do. */
        if (met != 0) {
            mc_owner_news_drop(&owner->live, owner->live.count);
            owner->live_framed = 0;
        }
        mc_owner_news_drop(&owner->lost, owner->lost.count); /* what is cleared is not in the inventory */
        owner->lost_told = 0;
        mc_segment_memory_meet(owner->memory, reply->epoch);
        mc_owner_proof_told(owner, reply->epoch, mc_span(NULL, 0)); /* that of its hello is of the memory, too */
        mc_serve_cut_links(owner->serve,
                           (struct mc_id){0}); /* their grants are of an earlier epoch; no floor stops them */
    }
    if (reply->inventory == 0 && mc_segment_memory_epoch(owner->memory) != reply->epoch)
        mc_owner_epoch_set(owner, reply->epoch);
    /* Before the first heartbeat is answered: masters that end one soon after the other would cost the contents. */
    mc_owner_contact(owner, reply->epoch, false, reply->behind != 0 ? 0 : owner->mount_sent_ms, owner->hello_at_ms,
                     frame_time);
    /* What holds nothing belongs where it is mounted, contents that do not say so where they were taken. */
    if (!is_known && (!owner->held || mc_id_is_zero(mc_segment_memory_cluster(owner->memory))))
        mc_segment_memory_set_cluster(owner->memory, owner->master_cluster);
    owner->state = LINK_MOUNTED;
    owner->is_past_told = false;
    owner->backoff_ms = BACKOFF_MIN_MS;
    evtimer_del(owner->timer);
    mc_log(INFO, "segment %s of %" PRIu64 " bytes is mounted as number %" PRIu32 " at master %s%s", owner->name,
           owner->capacity, reply->segment, owner->master_address,
           reply->inventory != 1 ? "" : ", which is told what lies in it");
    mounted_note(owner, reply->segment);
    return reply->inventory != 1 ? 0 : mc_owner_inventory_start(owner);
}

static int mount_stale(struct mc_owner *owner)
{
    bool was_mounted = mc_segment_memory_met(owner->memory) != 0;
    mc_log_limited(WARNING, "the master does not want the contents of segment %s back; it starts again empty",
                   owner->name);
    atomic_store(&owner->is_mounted, false);
    owner->state = LINK_MOUNTING;
    int rc = memory_renew(owner);
    struct mc_id cluster;
    if (rc == 0 &&
        (!was_mounted || mc_owner_holds(owner, &cluster))) /* what a dead one left: the hello must say whose */
        rc = MC_ERR_STALE; /* a first mount whose answer was lost, long ago; should it be anything else, the backoff of
                              a new link keeps the peace */
    if (rc == 0)
        mc_owner_mount_send(owner);
    return rc;
}

static int mount_reply_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_mount_reply reply;
    mc_wire_mount_reply_read(reader, &reply);
    struct mc_owner_disk *disk = reader->bad ? NULL : mc_owner_disk_asked(owner, frame->request_id);
    if (disk != NULL && owner->state == LINK_MOUNTED)
        return mc_owner_disk_mounted(disk, &reply);
    if (reader->bad || (frame->request_id != owner->mount_id && owner->state != LINK_UNMOUNTING))
        return MC_ERR_PROTOCOL;
    owner->mount_id = 0;
    if (owner->state == LINK_UNMOUNTING)
        return 0;
    if (reply.code == MC_ERR_STALE)
        return mount_stale(owner);
    if (reply.code < 0) {
        mc_log_limited(ERROR, "master %s does not mount segment %s: %s: %s", owner->master_address, owner->name,
                       mc_error_name(reply.code), mc_error_text(reply.code));
        refusal_note(owner, reply.code);
        return reply.code;
    }
    int rc = memory_mounted(owner, &reply, frame->time);
    if (rc == 0)
        mc_owner_populated_tell(owner);
    if (rc == 0)
        mc_owner_disks_mount(owner);
    return rc;
}

/* Reads the head of a CLEAR, CUT or CHECK. One for a segment that we do not have (any more) is passed over: the master
 * dropped that segment with our old mount. */
static bool is_our_segment(const struct mc_owner *owner, struct mc_reader *reader, struct mc_wire_segment *head)
{
    mc_wire_segment_read(reader, head);
    if ((owner->state == LINK_MOUNTED || owner->state == LINK_UNMOUNTING) &&
        head->segment == atomic_load(&owner->segment))
        return true;
    mc_log_limited(WARNING, "the master speaks of segment %" PRIu32 ", which is not ours", head->segment);
    return false;
}

/* The disk that the frame is about; its head is read then. */
static struct mc_owner_disk *disk_of(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_reader look = *reader;
    struct mc_wire_segment head;
    mc_wire_segment_read(&look, &head);
    struct mc_owner_disk *disk = owner->state == LINK_MOUNTED ? mc_owner_disk_find(owner, head.segment) : NULL;
    if (disk != NULL)
        *reader = look;
    return disk;
}

/* A slot that was cleared while bytes for it were being stored, which are there now. */
static void on_settled(void *context, uint32_t slot, uint64_t generation)
{
    struct mc_owner *owner = context;
    if (owner->state != LINK_MOUNTED) /* the master asks again after the next mount */
        return;
    struct mc_wire_segment head = {.segment = atomic_load(&owner->segment)};
    struct mc_wire_slot item = {.slot = slot, .generation = generation};
    size_t answer = mc_frame_begin(&owner->out, MC_MESSAGE_CLEARED, 0);
    size_t list = mc_wire_segment_head(&owner->out, &head);
    mc_wire_slot_write(&owner->out, &item);
    mc_frame_end_list(&owner->out, answer, list, 1);
}

static void clear_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    struct mc_owner_disk *disk = disk_of(owner, reader);
    if (disk != NULL) {
        mc_owner_disk_clear(disk, reader);
        return;
    }
    if (!is_our_segment(owner, reader, &head))
        return;
    size_t answer = mc_frame_begin(&owner->out, MC_MESSAGE_CLEARED, frame->request_id);
    size_t list = mc_wire_segment_head(&owner->out, &head), cleared = 0;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_slot slot;
        mc_wire_slot_read(reader, &slot);
        if (mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {
            mc_log_limited(ERROR, "the master clears slot %" PRIu32 ", which the segment does not have", slot.slot);
            continue;
        }
        if (!mc_serve_has_settled(owner->serve, slot.slot, slot.generation, on_settled, owner))
            continue;
        mc_wire_slot_write(&owner->out, &slot);
        cleared++;
    }
    mc_frame_end_list(&owner->out, answer, list, cleared);
}

static void cut_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    if (!is_our_segment(owner, reader, &head))
        return;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_cut_item item;
        mc_wire_cut_item_read(reader, &item);
        mc_serve_cut(owner->serve, item.slot, item.generation, item.writer, on_cut_done, owner);
    }
    cut_done_write(owner);
}

void mc_owner_closing_note(struct mc_owner *owner, enum closing closing)
{
    pthread_mutex_lock(&owner->lock);
    owner->closing = closing;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static void check_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    if (!is_our_segment(owner, reader, &head))
        return;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_slot slot;
        mc_wire_slot_read(reader, &slot);
        if (!mc_scrub_check(owner->scrub, slot.slot, slot.generation))
            mc_log_limited(WARNING, "slot %" PRIu32 " is not checked: it does not exist, or too many wait", slot.slot);
    }
}

static void store_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_owner_disk *disk = disk_of(owner, reader);
    if (disk != NULL)
        mc_owner_disk_store(disk, reader);
}

static void load_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    if (is_our_segment(owner, reader, &head))
        mc_owner_disks_load(owner, reader);
}

static void hinted_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    if (is_our_segment(owner, reader, &head))
        mc_owner_hints_handle(owner, frame->request_id, reader);
}

static void offered_handle(struct mc_owner *owner, const struct mc_frame *frame, struct mc_reader *reader)
{
    struct mc_wire_segment head;
    struct mc_owner_disk *disk = disk_of(owner, reader);
    if (disk != NULL) {
        mc_owner_heard(owner, owner->master_epoch, true, frame->time);
        mc_owner_disk_offered(disk);
        return;
    }
    if (!is_our_segment(owner, reader, &head))
        return;
    mc_owner_heard(owner, owner->master_epoch, true, frame->time);
    mc_owner_epoch_set(owner, owner->master_epoch);
}

static int inventory_ack_handle(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_reader look = *reader;
    struct mc_wire_inventory_ack ack;
    mc_wire_inventory_ack_read(&look, &ack);
    struct mc_owner_disk *disk = owner->state == LINK_MOUNTED ? mc_owner_disk_find(owner, ack.segment) : NULL;
    if (disk != NULL)
        return mc_owner_disk_acknowledged(disk, &ack);
    int rc = mc_owner_inventory_acknowledged(owner, reader);
    return rc == MC_ERR_STALE ? mount_stale(owner) : rc;
}

/* 0, or negative: the link is of no use. */
int mc_owner_frame_handle(struct mc_owner *owner, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_failed head;
    struct mc_wire_flushed flushed;
    if (mc_wire_check(frame->type, frame->body) < 0)
        return MC_ERR_PROTOCOL;
    if (owner->master_epoch != 0)
        mc_owner_heard(owner, owner->master_epoch, false, frame->time);
    switch (frame->type) {
    case MC_MESSAGE_HELLO_REPLY:
        return hello_reply_handle(owner, frame, &reader);
    case MC_MESSAGE_MOUNT_REPLY:
        return mount_reply_handle(owner, frame, &reader);
    case MC_MESSAGE_CLEAR:
        clear_handle(owner, frame, &reader);
        return 0;
    case MC_MESSAGE_CUT:
        cut_handle(owner, &reader);
        return 0;
    case MC_MESSAGE_INVENTORY_ACK:
        return inventory_ack_handle(owner, &reader);
    case MC_MESSAGE_OFFERED:
        offered_handle(owner, frame, &reader);
        return 0;
    case MC_MESSAGE_STORE:
        store_handle(owner, &reader);
        return 0;
    case MC_MESSAGE_LOAD:
        load_handle(owner, &reader);
        return 0;
    case MC_MESSAGE_HINTED:
        hinted_handle(owner, frame, &reader);
        return 0;
    case MC_MESSAGE_FLUSHED:
        mc_wire_flushed_read(&reader, &flushed);
        mc_owner_flush_told(owner, &flushed);
        return 0;
    case MC_MESSAGE_CHECK:
        check_handle(owner, &reader);
        return 0;
    case MC_MESSAGE_PING:
        mc_frame_bare(&owner->out, MC_MESSAGE_PONG, frame->request_id);
        return 0;
    case MC_MESSAGE_PONG: /* to a nudge */
        return frame->request_id == 0 ? 0 : MC_ERR_PROTOCOL;
    case MC_MESSAGE_UNMOUNT_REPLY:
        if (!mc_owner_disk_unmounted(owner, frame->request_id) && owner->state == LINK_UNMOUNTING)
            mc_owner_closing_note(owner, UNMOUNTED);
        return 0;
    case MC_MESSAGE_FAILED:
        mc_wire_failed_read(&reader, &head);
        mc_log_limited(ERROR, "master %s answers: %s: %s", owner->master_address, mc_error_name(head.code),
                       mc_error_text(head.code));
        refusal_note(owner, head.code);
        return MC_ERR_RPC_FAIL;
    default:
        return MC_ERR_PROTOCOL;
    }
}
