/* The disks of an owner: their life, what the master says to them and what it is told. Inventories: disk_inventory.c.
 * The copies: disk_move.c. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_LOOK_MS 100u /* so often whoever waits for disks to leave looks whether there is a master */

/* ---- marks: what the directory keeps for the next process ---- */

static void on_marked(void *context, int code)
{
    const struct mc_owner_disk *disk = context;
    if (code < 0)
        mc_log_limited(WARNING, "disk %s cannot write down its contact with the master: %s", disk->path,
                       mc_error_name(code));
}

/* Lock held. Hands it to the disk, unless only the contact is newer and was handed over a moment ago. */
static void keep_mark(struct mc_owner_disk *disk)
{
    uint64_t now_ms = mc_clock_ms();
    bool is_contact = disk->kept.epoch == disk->mark.epoch && disk->kept.floor == disk->mark.floor &&
                      mc_id_equal(disk->kept.cluster, disk->mark.cluster);
    if (is_contact && disk->mark.epoch != 0 && now_ms < disk->kept_ms + MC_DISK_MARK_MS)
        return;
    if (mc_disk_set_mark(disk->disk, &disk->mark, on_marked, disk) < 0)
        return; /* with the next contact */
    disk->kept = disk->mark;
    disk->kept_ms = now_ms;
}

/* Lock held. */
static void set_contact(struct mc_owner_disk *disk, uint64_t boot_ms, uint64_t at_ms)
{
    uint64_t age_ms = mc_clock_boot_ms() - boot_ms, wall_ms = mc_clock_wall_ms();
    disk->mark.contact_boot = mc_host_id();
    disk->mark.contact_boot_ms = boot_ms;
    disk->mark.contact_wall_ms = boot_ms == 0 ? 0 : wall_ms - age_ms;
    disk->mark.contact_at_ms = at_ms;
    disk->mark.proof = disk->owner->seen_proof;
}

/* Since the last contact; UINT32_MAX: never, or it cannot be told. Another boot, or another machine, knows the wall
 * clock only. */
static uint32_t contact_age_ms(struct mc_owner_disk *disk)
{
    pthread_mutex_lock(&disk->owner->lock);
    struct mc_disk_mark mark = disk->mark;
    pthread_mutex_unlock(&disk->owner->lock);
    bool is_same = mc_id_equal(mark.contact_boot, mc_host_id());
    uint64_t then_ms = is_same ? mark.contact_boot_ms : mark.contact_wall_ms;
    uint64_t now_ms = is_same ? mc_clock_boot_ms() : mc_clock_wall_ms();
    if (then_ms == 0 || now_ms < then_ms || now_ms - then_ms >= UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)(now_ms - then_ms);
}

/* Its contents are of this epoch now. */
static void set_epoch(struct mc_owner_disk *disk, uint64_t epoch)
{
    struct mc_owner *owner = disk->owner;
    pthread_mutex_lock(&owner->lock);
    if (disk->mark.epoch != epoch && !disk->gives_up) {
        disk->mark.epoch = epoch;
        set_contact(disk,
                    owner->answered_epoch == epoch && owner->answered_ms > owner->hello_ms ? owner->answered_ms
                                                                                           : owner->hello_ms,
                    1); /* until a heartbeat says that it has nothing left to confirm */
        keep_mark(disk);
    }
    pthread_mutex_unlock(&owner->lock);
}

/* ---- life ---- */

static void leave_if_wanted(struct mc_owner_disk *disk);

static void on_ready(void *argument)
{
    struct mc_owner_disk *disk = argument;
    if (disk->state == MC_OWNER_DISK_RECOVERING)
        disk->state = MC_OWNER_DISK_IDLE;
    leave_if_wanted(disk);
    mc_owner_disks_mount(disk->owner);
}

static void on_useless(void *argument)
{
    struct mc_owner_disk *disk = argument;
    disk->state = MC_OWNER_DISK_OFF;
    leave_if_wanted(disk);
    mc_owner_disks_mount(disk->owner);
}

/* On the disk's thread. */
static void on_recovered(void *context, int code, uint32_t objects)
{
    struct mc_owner_disk *disk = context;
    if (code < 0)
        mc_log(ERROR, "disk %s cannot be used: %s", disk->path, mc_error_name(code));
    else
        mc_log(INFO, "disk %s is ready, with %" PRIu32 " objects", disk->path, objects);
    mc_serve_post(disk->owner->serve, code < 0 ? on_useless : on_ready, disk);
}

static void tell_lost(struct mc_owner_disk *disk, const struct mc_disk_place *places, size_t count)
{
    struct mc_owner *owner = disk->owner;
    struct mc_wire_segment head = {.segment = disk->segment};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_LOST, 0);
    size_t list = mc_wire_segment_head(&owner->out, &head);
    for (size_t i = 0; i < count; i++) {
        struct mc_wire_slot slot = {.slot = places[i].slot, .generation = places[i].generation};
        mc_wire_slot_write(&owner->out, &slot);
    }
    mc_frame_end_list(&owner->out, frame, list, count);
}

struct lost { /* what a disk has dropped, on its way to the serve thread */
    struct mc_owner_disk *disk;
    size_t count;
    struct mc_disk_place places[];
};

static void on_lost_here(void *argument)
{
    struct lost *lost = argument;
    if (lost->disk->state == MC_OWNER_DISK_MOUNTED) {
        tell_lost(lost->disk, lost->places, lost->count);
        mc_owner_link_send(lost->disk->owner);
    }
    free(lost);
}

/* On the disk's thread. Without memory the master hears of it when it wants to have it loaded. */
static void on_lost(void *context, const struct mc_disk_place *places, size_t count)
{
    struct mc_owner_disk *disk = context;
    struct lost *lost = malloc(sizeof(*lost) + count * sizeof(lost->places[0]));
    if (lost == NULL)
        return;
    lost->disk = disk;
    lost->count = count;
    memcpy(lost->places, places, count * sizeof(lost->places[0]));
    mc_serve_post(disk->owner->serve, on_lost_here, lost);
}

int mc_owner_disk_add(struct mc_owner *owner, const struct mc_owner_disk_config *config)
{
    struct mc_owner_disk *disk = &owner->disks[owner->disk_count];
    char why[MC_DISK_ERROR_MAX];
    if (owner->disk_count == MC_OWNER_DISKS_MAX)
        return MC_ERR_INVALID_PARAMS;
    *disk = (struct mc_owner_disk){.owner = owner, .number = owner->disk_count, .capacity = config->capacity};
    disk->path = strdup(config->path);
    if (disk->path == NULL)
        return MC_ERR_NO_MEMORY;
    struct mc_disk_config files = {.path = config->path,
                                   .capacity = config->capacity,
                                   .objects_max = config->objects_max,
                                   .budget_bytes = config->budget_bytes,
                                   .policy = config->policy,
                                   .io_kind = config->io_kind,
                                   .ports = &mc_disk_ports_system,
                                   .context = disk,
                                   .ready = on_recovered,
                                   .lost = on_lost};
    int rc = mc_disk_open(&files, &disk->disk, why, sizeof(why));
    if (rc == 0 && owner->mover == NULL)
        rc = mc_mover_start(owner, &owner->mover);
    if (rc < 0) {
        mc_log(ERROR, "%s; this node goes on without that disk", disk->disk == NULL ? why : mc_error_name(rc));
        if (disk->disk != NULL)
            mc_disk_close(disk->disk, 0);
        disk->disk = NULL;
        free(disk->path);
        mc_owner_disk_off(owner, config->path);
        return rc;
    }
    disk->mark = disk->kept = mc_disk_marked(disk->disk);
    disk->has_contents = disk->mark.epoch != 0;
    owner->disk_count++;
    return 0;
}

static void told_segment_set(struct mc_owner_disk *disk, uint32_t segment)
{
    pthread_mutex_lock(&disk->owner->lock);
    disk->told_segment = segment;
    pthread_mutex_unlock(&disk->owner->lock);
}

/* Nothing more is asked of the disks: what comes from them later, and from the master, finds them out of use. */
static void on_close(void *argument)
{
    struct mc_owner *owner = argument;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_owner_disk *disk = &owner->disks[i];
        disk->state = MC_OWNER_DISK_OFF;
        disk->session++;
        disk->is_emptying = false;
        mc_owner_disk_inventory_stop(disk);
        told_segment_set(disk, 0);
    }
    pthread_mutex_lock(&owner->lock);
    owner->disks_under_way--;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

/* All at the same time: several that hang take no longer than one. A child that is forked from here on has nothing of
 * them to close. */
static void files_close(struct mc_owner *owner)
{
    struct mc_disk *files[MC_OWNER_DISKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        files[count] = mc_owner_disk_unseen(&owner->disks[i]);
        if (files[count] != NULL) /* else it has left before */
            mc_disk_stop(files[count++], MC_DISK_GRACE_MS);
    }
    while (count > 0)
        mc_disk_close(files[--count], MC_DISK_GRACE_MS);
}

/* What was begun comes back by itself: reads by their deadline, stores by the disk's. */
void mc_owner_disks_close(struct mc_owner *owner)
{
    if (owner->disk_count == 0)
        return;
    uint64_t deadline_ns = mc_clock_ns() + MC_DISK_GRACE_MS * 1000000ull;
    pthread_mutex_lock(&owner->lock);
    owner->disks_under_way++;
    pthread_mutex_unlock(&owner->lock);
    mc_serve_post(owner->serve, on_close, owner);
    pthread_mutex_lock(&owner->lock);
    while (owner->disks_under_way > 0 && mc_monitor_wait(&owner->lock, &owner->changed, deadline_ns) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&owner->lock);
    mc_mover_stop(owner->mover);
    files_close(owner);
}

void mc_owner_disks_forked(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < owner->disk_count; i++)
        if (owner->disks[i].disk != NULL)
            mc_disk_forked(owner->disks[i].disk);
}

void mc_owner_disks_free(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < owner->disk_count; i++)
        free(owner->disks[i].path);
    if (owner->mover != NULL)
        mc_mover_free(owner->mover);
    owner->disk_count = 0;
    mc_owner_disks_unseen_free(owner);
}

/* ---- what is under way ---- */

static void count_under_way(struct mc_owner_disk *disk, int more)
{
    struct mc_owner *owner = disk->owner;
    disk->under_way += (uint32_t)more;
    pthread_mutex_lock(&owner->lock);
    owner->disks_under_way += (uint32_t)more;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static bool may_tell(const struct mc_owner_disk *disk, uint64_t session)
{
    return disk->state == MC_OWNER_DISK_MOUNTED && disk->session == session;
}

/* ---- mounting ---- */

static void send_mount(struct mc_owner_disk *disk)
{
    struct mc_owner *owner = disk->owner;
    struct mc_disk_statistics statistics;
    mc_disk_statistics_read(disk->disk, &statistics);
    disk->slot_count = mc_disk_slot_count(disk->disk); /* nothing is under way, and what it found is known */
    struct mc_wire_mount mount = {.segment_id = mc_disk_id(disk->disk),
                                  .capacity = disk->capacity,
                                  .populated = disk->capacity,
                                  .slot_count = disk->slot_count,
                                  .nonce = mc_disk_id(disk->disk).low,
                                  .epoch = disk->mark.epoch,
                                  .contact_age_ms = contact_age_ms(disk),
                                  .contact_at_ms = disk->mark.contact_at_ms,
                                  .slot_top = statistics.objects > 0 ? disk->slot_count : 0,
                                  .host = owner->host,
                                  .name = mc_span_string(owner->name),
                                  .tcp_address = mc_span_string(owner->name),
                                  .kind = MC_SEGMENT_DISK,
                                  .directory = mc_span_string(mc_disk_directory(disk->disk)),
                                  .epoch_proof = mc_epoch_proof_of(&disk->mark.proof, disk->mark.epoch)};
    disk->mount_id = ++owner->request_id;
    disk->state = MC_OWNER_DISK_MOUNTING;
    pthread_mutex_lock(&owner->lock);
    disk->has_contents = statistics.objects > 0;
    pthread_mutex_unlock(&owner->lock);
    mc_wire_mount_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_MOUNT, disk->mount_id), &mount);
}

/* Nothing of it is of concern here any more. */
static void note_left(struct mc_owner_disk *disk)
{
    struct mc_owner *owner = disk->owner;
    disk->state = MC_OWNER_DISK_OFF;
    disk->has_left = true;
    pthread_mutex_lock(&owner->lock);
    disk->told_segment = 0;
    disk->has_contents = false;
    owner->disks_left++;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
    mc_log(INFO, "disk %s is unmounted; what lies there %s", disk->path, disk->is_given_up ? "is given up" : "stays");
}

static void send_unmount(struct mc_owner_disk *disk)
{
    struct mc_owner *owner = disk->owner;
    bool is_known = disk->segment != 0 && disk->segment_epoch == owner->master_epoch;
    if (!is_known || (!disk->is_given_up && !mc_wire_can(&owner->agreed, MC_FEATURE_FLUSH))) {
        note_left(disk); /* it was never mounted, or its master is another one now, where that number is another's */
        return;
    }
    struct mc_wire_unmount head = {.segment = disk->segment, .keep = !disk->is_given_up};
    disk->mount_id = ++owner->request_id;
    mc_wire_unmount_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_UNMOUNT, disk->mount_id), &head);
}

bool mc_owner_disk_unmounted(struct mc_owner *owner, uint64_t unmount_id)
{
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_owner_disk *disk = &owner->disks[i];
        if (disk->state != MC_OWNER_DISK_LEAVING || disk->mount_id != unmount_id)
            continue;
        disk->mount_id = 0;
        note_left(disk); /* whatever the answer: this master does not offer it */
        return true;
    }
    return false;
}

/* Not while it is being recovered, emptied or mounted: with the end of that. From now on the master is told nothing of
 * it, as if the process had ended; what is under way there ends. */
static void leave_if_wanted(struct mc_owner_disk *disk)
{
    bool may = disk->state == MC_OWNER_DISK_IDLE || disk->state == MC_OWNER_DISK_MOUNTED ||
               (disk->state == MC_OWNER_DISK_OFF && !disk->has_left);
    if (!disk->wants_to_leave || !may)
        return;
    disk->wants_to_leave = false;
    disk->session++;
    mc_owner_disk_inventory_stop(disk);
    disk->state = MC_OWNER_DISK_LEAVING;
    told_segment_set(disk, 0);
}

void mc_owner_disk_put_out(struct mc_owner_disk *disk)
{
    disk->wants_to_leave = true;
    leave_if_wanted(disk);
    mc_owner_disks_mount(disk->owner);
}

/* ---- giving up ---- */

/* What the identity says is what it said, or that it is of no epoch: either is safe once the disk is absent. */
static void not_given_up(struct mc_owner_disk *disk)
{
    const char *why = mc_error_name(disk->give_up_code);
    if (disk->give_up_code == MC_ERR_FILE_WRITE_FAIL) /* and not that the disk had too much else to do */
        disk->give_up_failures++;
    if (disk->give_up_failures < MC_DISK_GIVE_UP_MAX) {
        mc_log_limited(ERROR, "disk %s cannot be given up: %s; removals wait for it", disk->path, why);
        mc_owner_disk_want_beat(disk);
        return;
    }
    mc_log(ERROR, "disk %s can neither be written nor given up: %s; it leaves, with what lies there", disk->path, why);
    if (disk->state != MC_OWNER_DISK_OFF)
        mc_owner_disk_put_out(disk);
}

static void on_given_up_here(void *argument)
{
    struct mc_owner_disk *disk = argument;
    count_under_way(disk, -1);
    disk->is_giving_up = false;
    mc_owner_disk_empty_again(disk);
    if (disk->give_up_code < 0) {
        not_given_up(disk);
    } else {
        mc_log(ERROR, "disk %s is given up: its journal is broken, so the next process empties it", disk->path);
        disk->is_given_up = true;
        disk->wants_to_leave = disk->state != MC_OWNER_DISK_OFF && disk->state != MC_OWNER_DISK_LEAVING;
        leave_if_wanted(disk);
    }
    mc_owner_disks_mount(disk->owner);
}

/* On the disk's thread. */
static void on_given_up(void *context, int code)
{
    struct mc_owner_disk *disk = context;
    disk->give_up_code = code;
    mc_serve_post(disk->owner->serve, on_given_up_here, disk);
}

/* What was to be removed may be there again for the next process, so this one can confirm no removal any more. The
 * identity, which is another file, says that nothing of what lies there is of any epoch: whoever mounts it next is told
 * to empty it. When the disk has that, the master is told that this segment is gone, and waits for no removal there.
 * Where the disk does not take that either, it is tried with each heartbeat, and they wait; after some of those it
 * leaves as any disk does, and they wait no longer than for an owner that is silent. */
void mc_owner_disk_give_up(struct mc_owner_disk *disk)
{
    if (!disk->cannot_clear || disk->is_giving_up || disk->is_given_up || disk->state == MC_OWNER_DISK_OFF ||
        disk->state == MC_OWNER_DISK_LEAVING || disk->give_up_failures == MC_DISK_GIVE_UP_MAX)
        return;
    struct mc_disk_mark mark = {.floor = disk->mark.floor}; /* which no other thread changes */
    pthread_mutex_lock(&disk->owner->lock);
    disk->gives_up = disk->is_giving_up = true;
    disk->mark = disk->kept = mark;
    pthread_mutex_unlock(&disk->owner->lock);
    count_under_way(disk, 1);
    int rc = mc_disk_set_mark(disk->disk, &mark, on_given_up, disk);
    if (rc < 0)
        on_given_up(disk, rc);
}

static void on_leave(void *argument)
{
    struct mc_owner *owner = argument;
    bool is_old = owner->state == LINK_MOUNTED && !mc_wire_can(&owner->agreed, MC_FEATURE_FLUSH);
    pthread_mutex_lock(&owner->lock);
    owner->leave_code = is_old ? MC_ERR_NOT_SUPPORTED : 0;
    pthread_cond_broadcast(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
    for (uint32_t i = 0; i < owner->disk_count && !is_old; i++) {
        owner->disks[i].wants_to_leave = owner->disks[i].state != MC_OWNER_DISK_LEAVING && !owner->disks[i].has_left;
        leave_if_wanted(&owner->disks[i]);
    }
    mc_owner_disks_mount(owner);
}

int mc_owner_disks_leave(struct mc_owner *owner, uint64_t grace_ms)
{
    uint64_t wait_ms = grace_ms > MC_DISK_GRACE_MS ? grace_ms : MC_DISK_GRACE_MS;
    uint64_t now_ns = mc_clock_ns(), linked_ns = now_ns, deadline_ns = now_ns + wait_ms * 1000000ull;
    pthread_mutex_lock(&owner->lock);
    owner->leave_code = 0;
    pthread_mutex_unlock(&owner->lock);
    mc_serve_post(owner->serve, on_leave, owner);
    pthread_mutex_lock(&owner->lock);
    while (owner->disks_left < owner->disk_count && owner->leave_code == 0 && now_ns < deadline_ns &&
           now_ns - linked_ns < MC_DISK_GRACE_MS * 1000000ull) {
        uint64_t look_ns = now_ns + LEAVE_LOOK_MS * 1000000ull;
        (void)mc_monitor_wait(&owner->lock, &owner->changed, look_ns < deadline_ns ? look_ns : deadline_ns);
        now_ns = mc_clock_ns();
        if (atomic_load(&owner->is_mounted)) /* nobody waits long for a master that is gone */
            linked_ns = now_ns;
    }
    int refusal = owner->leave_code;
    bool are_left = owner->disks_left == owner->disk_count;
    pthread_mutex_unlock(&owner->lock);
    if (are_left)
        files_close(owner); /* whoever comes next finds the directory free */
    return are_left ? 0 : refusal < 0 ? refusal : MC_ERR_RPC_TIMEOUT;
}

void mc_owner_disks_mount(struct mc_owner *owner)
{
    if (owner->state != LINK_MOUNTED || owner->is_closing || !mc_wire_can(&owner->agreed, MC_FEATURE_DISKS))
        return;
    for (uint32_t i = 0; i < owner->disk_count; i++)
        if (owner->disks[i].state == MC_OWNER_DISK_IDLE && owner->disks[i].under_way == 0 && !owner->disks[i].gives_up)
            send_mount(&owner->disks[i]);
        else if (owner->disks[i].state == MC_OWNER_DISK_LEAVING && owner->disks[i].under_way == 0 &&
                 owner->disks[i].mount_id == 0)
            send_unmount(&owner->disks[i]);
    mc_owner_link_send(owner);
}

void mc_owner_disks_write(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < owner->disk_count; i++)
        if (owner->disks[i].state == MC_OWNER_DISK_MOUNTED)
            mc_owner_disk_inventory_write(&owner->disks[i]);
}

void mc_owner_disks_unlink(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_owner_disk *disk = &owner->disks[i];
        if (disk->state == MC_OWNER_DISK_LEAVING)
            disk->mount_id = 0; /* said again over the next */
        if (disk->state != MC_OWNER_DISK_MOUNTING && disk->state != MC_OWNER_DISK_MOUNTED)
            continue;
        disk->state = MC_OWNER_DISK_IDLE;
        disk->session++;
        disk->mount_id = 0;
        mc_owner_disk_inventory_stop(disk);
        told_segment_set(disk, 0);
    }
}

struct mc_owner_disk *mc_owner_disk_find(struct mc_owner *owner, uint32_t segment)
{
    for (uint32_t i = 0; i < owner->disk_count; i++)
        if (owner->disks[i].state == MC_OWNER_DISK_MOUNTED && owner->disks[i].segment == segment)
            return &owner->disks[i];
    return NULL;
}

struct mc_owner_disk *mc_owner_disk_asked(struct mc_owner *owner, uint64_t mount_id)
{
    for (uint32_t i = 0; i < owner->disk_count; i++)
        if (owner->disks[i].state == MC_OWNER_DISK_MOUNTING && owner->disks[i].mount_id == mount_id)
            return &owner->disks[i];
    return NULL;
}

/* The master does not want what lies there: all of it goes, and the disk comes back empty. That it is of no epoch any
 * more is written down first: a process that ends in between leaves it to one that is told the same, whatever the
 * master of then knows. */
static void begin_anew(struct mc_owner_disk *disk)
{
    mc_log(WARNING, "the master does not want the contents of disk %s back; it starts again empty", disk->path);
    pthread_mutex_lock(&disk->owner->lock);
    disk->mark = (struct mc_disk_mark){.floor = disk->mark.floor};
    keep_mark(disk);
    pthread_mutex_unlock(&disk->owner->lock);
    disk->state = MC_OWNER_DISK_RECOVERING;
    mc_owner_disk_empty(disk);
}

void mc_owner_disk_emptied(struct mc_owner_disk *disk)
{
    disk->state = MC_OWNER_DISK_IDLE;
    leave_if_wanted(disk);
    mc_owner_disks_mount(disk->owner);
}

/* The master of that epoch has it: no store that another one has told of is under way. */
static void master_meet(struct mc_owner_disk *disk, uint64_t epoch)
{
    struct mc_owner *owner = disk->owner;
    pthread_mutex_lock(&owner->lock);
    disk->mark.floor = epoch << MC_EPOCH_SHIFT;
    if (!disk->has_contents || mc_id_is_zero(disk->mark.cluster))
        disk->mark.cluster = owner->master_cluster;
    keep_mark(disk);
    pthread_mutex_unlock(&owner->lock);
}

static int mount_answered(struct mc_owner_disk *disk, const struct mc_wire_mount_reply *reply)
{
    disk->mount_id = 0;
    if (reply->code == MC_ERR_STALE && (disk->has_contents || disk->mark.epoch != 0)) { /* else it is refused, empty */
        begin_anew(disk);
        return 0;
    }
    if (reply->code < 0) {
        if (reply->code != disk->refused) /* it is tried each second */
            mc_log(ERROR, "the master does not mount disk %s: %s%s", disk->path, mc_error_name(reply->code),
                   reply->code == MC_ERR_SEGMENT_ALREADY_EXISTS ? "; another node has it, or a copy of it" : "");
        disk->refused = reply->code;
        disk->state = MC_OWNER_DISK_IDLE; /* tried again with the next link, or when a move ends */
        return 0;
    }
    if (reply->epoch != disk->owner->master_epoch || mc_owner_disk_find(disk->owner, reply->segment) != NULL)
        return MC_ERR_PROTOCOL;
    disk->state = MC_OWNER_DISK_MOUNTED;
    disk->refused = 0;
    disk->segment = reply->segment;
    disk->segment_epoch = reply->epoch;
    disk->session++;
    master_meet(disk, reply->epoch);
    if (reply->inventory == 0)
        set_epoch(disk, reply->epoch);
    told_segment_set(disk, reply->segment);
    mc_log(INFO, "disk %s is mounted as number %" PRIu32 "%s", disk->path, reply->segment,
           reply->inventory != 1 ? "" : "; the master is told what lies there");
    return reply->inventory == 1 ? mc_owner_disk_inventory_start(disk) : 0;
}

int mc_owner_disk_mounted(struct mc_owner_disk *disk, const struct mc_wire_mount_reply *reply)
{
    int rc = mount_answered(disk, reply);
    leave_if_wanted(disk);
    if (rc == 0 && disk->state == MC_OWNER_DISK_LEAVING) /* not one that was refused: at once it would be again */
        mc_owner_disks_mount(disk->owner);
    return rc;
}

int mc_owner_disk_acknowledged(struct mc_owner_disk *disk, const struct mc_wire_inventory_ack *ack)
{
    int rc = mc_owner_disk_inventory_acknowledged(disk, ack);
    if (rc != MC_ERR_STALE)
        return rc;
    disk->session++;
    mc_owner_disk_inventory_stop(disk);
    told_segment_set(disk, 0);
    begin_anew(disk);
    return 0;
}

void mc_owner_disk_offered(struct mc_owner_disk *disk)
{
    set_epoch(disk, disk->owner->master_epoch);
}

struct remount {
    struct mc_owner *owner;
    uint32_t segment;
};

static void on_remount(void *argument)
{
    struct remount *remount = argument;
    struct mc_owner_disk *disk = mc_owner_disk_find(remount->owner, remount->segment);
    if (disk != NULL && !disk->inventory.is_active) {
        disk->state = MC_OWNER_DISK_IDLE;
        disk->session++;
        told_segment_set(disk, 0);
        mc_owner_disks_mount(remount->owner);
    }
    free(remount);
}

void mc_owner_disk_remount(struct mc_owner *owner, uint32_t segment)
{
    struct remount *remount = malloc(sizeof(*remount));
    if (remount == NULL)
        return; /* with the next heartbeat */
    *remount = (struct remount){owner, segment};
    mc_serve_post(owner->serve, on_remount, remount);
}

/* ---- STORE and LOAD ---- */

static struct mc_move *move_new(struct mc_owner_disk *disk, enum mc_move_kind kind)
{
    struct mc_move *move = calloc(1, sizeof(*move));
    if (move == NULL)
        return NULL;
    move->kind = kind;
    move->disk = disk;
    move->files = disk->disk;
    move->session = disk->session;
    move->memory = disk->owner->memory;
    mc_segment_memory_retain(move->memory);
    count_under_way(disk, 1);
    return move;
}

static void move_free(struct mc_move *move)
{
    mc_segment_memory_drop(move->memory);
    count_under_way(move->disk, -1);
    free(move);
}

/* An item of LIVE for a disk. */
static void tell_stored(struct mc_owner_disk *disk, uint32_t slot, uint64_t generation, int code)
{
    struct mc_owner *owner = disk->owner;
    struct mc_wire_live head = {.segment = disk->segment};
    struct mc_wire_live_item item = {.slot = slot, .code = code, .generation = generation};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_LIVE, 0);
    size_t list = mc_wire_live_head(&owner->out, &head);
    mc_wire_live_item_write(&owner->out, &item);
    mc_frame_end_list(&owner->out, frame, list, 1);
}

static bool is_being_stored(const struct mc_owner_disk *disk, uint32_t slot, uint64_t generation)
{
    for (const struct mc_move *move = disk->stores; move != NULL; move = move->next_store)
        if (move->disk_slot == slot && move->disk_generation == generation)
            return true;
    return false;
}

static void store_begin(struct mc_owner_disk *disk, const struct mc_wire_store_item *item)
{
    struct mc_owner *owner = disk->owner;
    if (is_being_stored(disk, item->slot, item->generation))
        return;                           /* told again */
    if (item->slot >= disk->slot_count) { /* what lies there could not be told again */
        tell_stored(disk, item->slot, item->generation, MC_ERR_INVALID_PARAMS);
        return;
    }
    struct mc_move *move = item->source == atomic_load(&owner->segment) ? move_new(disk, MC_MOVE_STORE) : NULL;
    if (move == NULL) {
        tell_stored(disk, item->slot, item->generation, MC_ERR_BUSY);
        return;
    }
    move->disk_slot = item->slot;
    move->disk_generation = item->generation;
    move->version = item->version;
    move->was_hit = (item->flags & MC_STORE_WAS_READ) != 0;
    move->memory_slot = item->source_slot;
    move->memory_generation = item->source_generation;
    move->next_store = disk->stores;
    disk->stores = move;
    mc_mover_add(owner->mover, move);
}

void mc_owner_disk_store(struct mc_owner_disk *disk, struct mc_reader *reader)
{
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_store_item item;
        mc_wire_store_item_read(reader, &item);
        store_begin(disk, &item);
    }
}

/* On the disk's thread. */
static void on_read(void *context, int code, const struct mc_disk_entry *entry, uint8_t *buffer)
{
    struct mc_move *move = context;
    move->code = code;
    move->buffer = buffer;
    if (code == 0)
        move->entry = *entry;
    mc_mover_add(move->disk->owner->mover, move); /* which ends it at once if it could not be read */
}

static void load_begin(struct mc_owner *owner, const struct mc_wire_load_item *item)
{
    struct mc_owner_disk *disk = mc_owner_disk_find(owner, item->disk);
    struct mc_move *move = disk == NULL ? NULL : move_new(disk, MC_MOVE_LOAD);
    int rc = MC_ERR_BUSY;
    if (move != NULL) {
        mc_owner_move_load(move, item);
        rc = mc_disk_read(disk->disk, (struct mc_disk_place){item->disk_slot, item->disk_generation},
                          mc_clock_ns() + MC_LOAD_MS * 1000000ull, on_read, move);
        if (rc < 0)
            move_free(move);
    }
    if (rc < 0)
        mc_owner_on_committed(owner, owner->memory, item->slot, item->generation, rc);
}

void mc_owner_disks_load(struct mc_owner *owner, struct mc_reader *reader)
{
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_load_item item;
        mc_wire_load_item_read(reader, &item);
        load_begin(owner, &item);
    }
}

static void unlist_store(struct mc_move *move)
{
    struct mc_move **at = &move->disk->stores;
    while (*at != move)
        at = &(*at)->next_store;
    *at = move->next_store;
}

static void clear_again(struct mc_owner_disk *disk);
static void clear_places(struct mc_owner_disk *disk, const struct mc_disk_place *places, size_t count, bool is_lost);

static void store_ended(struct mc_move *move)
{
    struct mc_owner_disk *disk = move->disk;
    unlist_store(move);
    mc_owner_move_check(move);
    if (move->code < 0 && !atomic_load(&move->is_cleared))
        mc_log_limited(INFO, "disk %s has not stored a value: %s", disk->path, mc_error_name(move->code));
    if (move->is_cleared) /* also what failed may lie there */
        mc_owner_disk_clear_places(disk, &(struct mc_disk_place){move->disk_slot, move->disk_generation}, 1);
    else if (may_tell(disk, move->session))
        tell_stored(disk, move->disk_slot, move->disk_generation, move->code);
}

/* An entry that is not there any more, or is not what it was: whoever told the master may have been overtaken by an
 * inventory, so it is told again; as anything that is lost not before it is gone for good, whatever happens to the disk
 * next. */
static void load_ended(struct mc_move *move)
{
    struct mc_owner_disk *disk = move->disk;
    bool is_gone = move->code == MC_ERR_REPLICA_IS_GONE || move->code == MC_ERR_CHECKSUM_MISMATCH ||
                   move->code == MC_ERR_FILE_READ_FAIL;
    if (is_gone && may_tell(disk, move->session))
        clear_places(disk, &(struct mc_disk_place){move->disk_slot, move->disk_generation}, 1, true);
    if (move->memory == disk->owner->memory)
        mc_owner_on_committed(disk->owner, move->memory, move->memory_slot, move->memory_generation, move->code);
}

void mc_owner_move_ended(struct mc_move *move)
{
    struct mc_owner *owner = move->disk->owner;
    struct mc_owner_disk *disk = move->disk;
    if (move->kind == MC_MOVE_STORE)
        store_ended(move);
    else
        load_ended(move);
    move_free(move);
    clear_again(disk);
    mc_owner_disk_empty_again(disk);
    mc_owner_disks_mount(owner); /* one that has waited for this */
    mc_owner_link_send(owner);
}

/* ---- CLEAR ---- */

struct clearing {
    struct clearing *next; /* of those that wait */
    struct mc_owner_disk *disk;
    uint64_t session;
    int code;
    bool is_lost; /* nobody has asked: it cannot be read, and is told as lost */
    size_t count;
    struct mc_disk_place places[];
};

static void on_cleared_here(void *argument)
{
    struct clearing *clearing = argument;
    struct mc_owner_disk *disk = clearing->disk;
    struct mc_owner *owner = disk->owner;
    if (clearing->code == MC_ERR_BUSY) {
        clearing->next = disk->waiting;
        disk->waiting = clearing;
        return;
    }
    bool is_told = clearing->code == 0 && may_tell(disk, clearing->session);
    if (clearing->code == MC_ERR_FILE_WRITE_FAIL && clearing->count > 1 && may_tell(disk, clearing->session)) {
        for (size_t i = 0; i < clearing->count; i++) /* what never lay there need not wait for the others */
            mc_owner_disk_clear_places(disk, &clearing->places[i], 1);
    }
    if (is_told && clearing->is_lost) {
        tell_lost(disk, clearing->places, clearing->count);
    } else if (is_told) {
        struct mc_wire_segment head = {.segment = disk->segment};
        size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_CLEARED, 0);
        size_t list = mc_wire_segment_head(&owner->out, &head);
        for (size_t i = 0; i < clearing->count; i++) {
            struct mc_wire_slot slot = {.slot = clearing->places[i].slot, .generation = clearing->places[i].generation};
            mc_wire_slot_write(&owner->out, &slot);
        }
        mc_frame_end_list(&owner->out, frame, list, clearing->count);
    }
    if (clearing->code < 0 && clearing->count == 1)
        mc_log_limited(ERROR, "disk %s cannot remove what it is told to: %s", disk->path,
                       mc_error_name(clearing->code));
    /* What is lost, and told to nobody, holds nobody up; but a disk that is being emptied may not keep it. */
    bool is_wanted = !clearing->is_lost || disk->is_emptying;
    if (clearing->code == MC_ERR_FILE_WRITE_FAIL && is_wanted && !disk->cannot_clear &&
        (clearing->count == 1 || !may_tell(disk, clearing->session))) {
        disk->cannot_clear = true;
        mc_owner_disk_give_up(disk);
    }
    count_under_way(disk, -1);
    free(clearing);
    clear_again(disk);
    mc_owner_disk_empty_again(disk);
    mc_owner_disks_mount(owner);
    mc_owner_link_send(owner);
}

/* On the disk's thread. */
static void on_cleared(void *context, int code)
{
    struct clearing *clearing = context;
    clearing->code = code;
    mc_serve_post(clearing->disk->owner->serve, on_cleared_here, clearing);
}

static int disk_clear(struct clearing *clearing)
{
    struct mc_owner_disk *disk = clearing->disk;
    if (disk->state == MC_OWNER_DISK_OFF) /* it may be closed */
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    return mc_disk_clear(disk->disk, clearing->places, clearing->count, true, on_cleared, clearing);
}

static void clear_places(struct mc_owner_disk *disk, const struct mc_disk_place *places, size_t count, bool is_lost)
{
    struct clearing *clearing = malloc(sizeof(*clearing) + count * sizeof(clearing->places[0]));
    int rc = MC_ERR_NO_MEMORY;
    if (clearing != NULL) {
        clearing->disk = disk;
        clearing->session = disk->session;
        clearing->is_lost = is_lost;
        clearing->count = count;
        memcpy(clearing->places, places, count * sizeof(clearing->places[0]));
        count_under_way(disk, 1);
        rc = disk_clear(clearing);
    }
    if (rc < 0 && clearing != NULL)
        on_cleared(clearing, rc);
    if (clearing == NULL && !is_lost)
        disk->owner->out.failed = true; /* the link breaks, and with the next one the master tells it again */
}

void mc_owner_disk_clear_places(struct mc_owner_disk *disk, const struct mc_disk_place *places, size_t count)
{
    clear_places(disk, places, count, false);
}

/* What the disk was too busy to take; it says something again when it has less to do. */
static void clear_again(struct mc_owner_disk *disk)
{
    struct clearing *waiting = disk->waiting;
    disk->waiting = NULL;
    while (waiting != NULL) {
        struct clearing *clearing = waiting;
        waiting = clearing->next;
        int rc = disk_clear(clearing);
        if (rc < 0)
            on_cleared(clearing, rc);
    }
}

void mc_owner_disk_clear(struct mc_owner_disk *disk, struct mc_reader *reader)
{
    struct mc_disk_place places[MC_BATCH_MAX];
    size_t now = 0;
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_slot slot;
        bool is_later = false;
        mc_wire_slot_read(reader, &slot);
        for (struct mc_move *move = disk->stores; move != NULL; move = move->next_store)
            if (move->disk_slot == slot.slot && move->disk_generation == slot.generation) {
                is_later = true;
                atomic_store(&move->is_cleared, true);
            }
        if (!is_later)
            places[now++] = (struct mc_disk_place){slot.slot, slot.generation};
    }
    if (now > 0)
        mc_owner_disk_clear_places(disk, places, now);
}

/* ---- from the heartbeat thread ---- */

void mc_owner_disk_contact(struct mc_owner *owner, uint32_t segment, uint64_t epoch, uint64_t answered_ms,
                           uint64_t at_ms)
{
    pthread_mutex_lock(&owner->lock);
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_owner_disk *disk = &owner->disks[i];
        if (disk->told_segment != segment || disk->mark.epoch != epoch)
            continue;
        set_contact(disk, answered_ms, at_ms);
        keep_mark(disk);
    }
    pthread_mutex_unlock(&owner->lock);
}

void mc_owner_disks_cluster_told(struct mc_owner *owner, uint64_t epoch, struct mc_id cluster)
{
    pthread_mutex_lock(&owner->lock);
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_owner_disk *disk = &owner->disks[i];
        if (disk->state != MC_OWNER_DISK_MOUNTED || disk->segment_epoch != epoch || !mc_id_is_zero(disk->mark.cluster))
            continue;
        disk->mark.cluster = cluster;
        keep_mark(disk);
    }
    pthread_mutex_unlock(&owner->lock);
}

/* One that is given up, or was emptied, does not say so: then any other does. */
bool mc_owner_disks_hold(struct mc_owner *owner, struct mc_id *cluster)
{
    bool holds = false;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        if (!owner->disks[i].has_contents)
            continue;
        holds = true;
        *cluster = owner->disks[i].mark.cluster;
        if (!mc_id_is_zero(*cluster))
            break;
    }
    return holds;
}
