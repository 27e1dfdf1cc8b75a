/* An owner's process with a memory and a disk, as the core sees it: it holds slots, does what it is told, and answers
 * late: what it says waits in a queue for its turn, what it is to store or to load is done by somebody else in between.
 * For the model of test_core_offload_random.c. */
#ifndef MC_TEST_CORE_DISK_OWNER_H
#define MC_TEST_CORE_DISK_OWNER_H

#include "core_owner.h"

#include "store/core/replica.h"

enum { MEMORY, DISK, MEDIA };
#define KEPT_MAX 64u
#define TASKS_MAX 128u
#define ANSWERS_MAX 1024u

struct kept { /* a slot. generation: of what is live, else all up to it is refused */
    uint64_t generation, version, offset, length;
    uint32_t value;
    uint8_t key, replica;
    bool live;
};
struct medium {
    uint64_t id, epoch, contact_ms, heard_ms; /* heard_ms: contact with a master that has not offered it yet */
    uint32_t number;
    bool mounted;
    struct kept slots[KEPT_MAX];
};
struct task { /* a STORE or a LOAD that was told and is not done */
    bool is_load;
    uint32_t slot, from_slot;
    uint64_t generation, version, from_generation, offset;
};
struct answer {
    unsigned type; /* LIVE, CLEARED, CUT_DONE, LOST, PONG, INVENTORY */
    uint8_t medium;
    uint32_t slot; /* of an INVENTORY: its next sequence */
    int32_t code;
    uint64_t id;         /* of the medium, as it was then */
    uint64_t generation; /* of a PONG: its number; of an INVENTORY: where it goes on */
};
struct process {
    uint64_t node, incarnation, epoch; /* epoch: its floor */
    uint64_t heartbeat, owner, beat_ms;
    bool alive, joined, mute;
    struct medium media[MEDIA];
    struct task tasks[TASKS_MAX];
    struct answer answers[ANSWERS_MAX];
    unsigned task_count, answer_count;
    struct mc_wire_mount_reply reply;
};

struct model; /* of the test */
static const char *model_key(unsigned key);
static uint64_t model_random(struct model *model, uint64_t below);
static bool chance(struct model *model, unsigned of);
static void model_wrong(struct model *model, const char *what);
static void model_trace(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
static struct world *model_world(struct model *model);
static void model_lossy(struct model *model);
static uint64_t model_next_id(struct model *model);
static bool model_is_calm(const struct model *model);
static uint64_t model_seen(const struct model *model, uint64_t *age_ms);

/* ---- what it says ---- */

static void say(struct process *process, struct answer answer)
{
    assert_true(process->answer_count < ANSWERS_MAX);
    answer.id = process->media[answer.medium].id;
    process->answers[process->answer_count++] = answer;
}
static void say_slot(struct process *process, unsigned type, unsigned medium, uint32_t slot, uint64_t generation,
                     int32_t code)
{
    say(process,
        (struct answer){.type = type, .medium = (uint8_t)medium, .slot = slot, .generation = generation, .code = code});
}

/* What is to be told next of it: the first from `from` on; memory goes by offsets, a disk by slots. NULL: that was
 * all. */
static const struct kept *kept_next(const struct medium *medium, unsigned which, uint64_t from)
{
    const struct kept *next = NULL;
    for (uint32_t i = 0; i < KEPT_MAX; i++) {
        const struct kept *kept = &medium->slots[i];
        if (!kept->live || (which == MEMORY ? kept->offset : i) < from)
            continue;
        if (which == DISK)
            return kept;
        if (next == NULL || kept->offset < next->offset)
            next = kept;
    }
    return next;
}

static void say_inventory(struct model *model, struct process *process, struct answer answer)
{
    struct medium *medium = &process->media[answer.medium];
    struct mc_wire_inventory_item items[2];
    uint32_t count = 0;
    const struct kept *kept = kept_next(medium, answer.medium, answer.generation);
    for (; kept != NULL && count < 2; count++) {
        uint32_t slot = (uint32_t)(kept - medium->slots);
        items[count] = (struct mc_wire_inventory_item){
            .slot = slot,
            .state = 1,
            .replica = answer.medium == DISK ? 0 : kept->replica,
            .generation = kept->generation,
            .offset = answer.medium == DISK ? 0 : kept->offset,
            .length = kept->length,
            .key = mc_span_string(model_key(kept->key)),
            .version = answer.medium == DISK ? kept->version : 0,
        };
        answer.generation = (answer.medium == MEMORY ? kept->offset : slot) + 1;
        kept = kept_next(medium, answer.medium, answer.generation);
    }
    uint32_t sequence = answer.slot++;
    if (kept != NULL)
        say(process, answer);
    send_inventory(model_world(model), process->owner, medium->number, sequence, kept == NULL, items, count);
}

/* The first of what it has to say reaches the master. */
static void process_says(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    struct answer answer = process->answers[0];
    memmove(&process->answers[0], &process->answers[1], --process->answer_count * sizeof(process->answers[0]));
    const struct medium *medium = &process->media[answer.medium];
    if (answer.type != MC_MESSAGE_PONG && answer.id != medium->id)
        return; /* that was wiped since */
    struct mc_wire_place place = {.segment = medium->number, .slot = answer.slot, .generation = answer.generation};
    static struct world_told told;
    told = (struct world_told){.segment = medium->number, .count = 1};
    told.slots[0] = (struct mc_wire_slot){.slot = answer.slot, .generation = answer.generation};
    model_trace(model, "node %u says %u of %s %u, generation %llx, code %d", (unsigned)process->node, answer.type,
                answer.medium == DISK ? "disk" : "memory", answer.slot, (unsigned long long)answer.generation,
                answer.code);
    if (answer.type == MC_MESSAGE_LIVE) {
        world_live_code(world, process->owner, &place, answer.code);
    } else if (answer.type == MC_MESSAGE_PONG) {
        size_t frame = world_begin(world, MC_MESSAGE_PONG, answer.generation);
        mc_wire_none_write(&world->frame, &(struct mc_wire_none){0});
        world_send(world, process->owner, frame);
    } else if (answer.type == MC_MESSAGE_INVENTORY) {
        if (medium->mounted)
            say_inventory(model, process, answer);
    } else {
        if (answer.type == MC_MESSAGE_LOST)
            model_lossy(model);
        world_owner_says(world, process->owner, (enum mc_message)answer.type, &told);
    }
}

/* ---- what it does ---- */

static void clear_slot(struct medium *medium, uint32_t slot, uint64_t generation)
{
    struct kept *kept = &medium->slots[slot];
    if (kept->generation > generation)
        return;
    kept->generation = generation;
    kept->live = false;
}

static struct task *task_of(struct process *process, bool is_load, uint32_t slot, uint64_t generation)
{
    for (unsigned i = 0; i < process->task_count; i++) {
        struct task *task = &process->tasks[i];
        if (task->is_load == is_load && task->slot == slot && task->generation == generation)
            return task;
    }
    return NULL;
}

/* The bytes come to that place: nobody else may have been given it meanwhile. */
static void expect_own_place(struct model *model, const struct process *process, const struct task *task)
{
    const struct mc_core *core = model_world(model)->core;
    const struct medium *medium = &process->media[MEMORY];
    if (core == NULL)
        return; /* between two masters nobody gives places away */
    const struct mc_segment *segment = mc_segment_find(core, medium->number);
    const struct mc_node *node = segment == NULL ? NULL : mc_space_node_checked(&segment->space, task->slot);
    if (!process->joined || process->epoch != core->epoch || segment == NULL || segment->member == NULL)
        return; /* it was given up, or this master does not know it yet */
    if (node == NULL || node->state == MC_NODE_FREE || node->state == MC_NODE_UNUSED ||
        mc_node_generation(core, node) != task->generation)
        model_wrong(model, "a load writes where it may not any more");
}

static int32_t do_store(struct process *process, const struct task *task)
{
    struct kept *to = &process->media[DISK].slots[task->slot];
    const struct kept *from = &process->media[MEMORY].slots[task->from_slot];
    if (to->live && to->generation == task->generation)
        return 0;
    if (to->generation >= task->generation || !from->live || from->generation != task->from_generation)
        return MC_ERR_TRANSFER_FAIL;
    *to = *from;
    to->generation = task->generation;
    to->version = task->version;
    return 0;
}

static int32_t do_load(struct model *model, struct process *process, const struct task *task)
{
    struct kept *to = &process->media[MEMORY].slots[task->slot];
    const struct kept *from = &process->media[DISK].slots[task->from_slot];
    if (to->live && to->generation == task->generation)
        return 0;
    if (!from->live || from->generation != task->from_generation) {
        if (from->generation <= task->from_generation)
            say_slot(process, MC_MESSAGE_LOST, DISK, task->from_slot, task->from_generation, 0);
        return MC_ERR_TRANSFER_FAIL;
    }
    expect_own_place(model, process, task); /* it writes before it looks whether it may commit */
    if (to->generation >= task->generation)
        return MC_ERR_TRANSFER_FAIL;
    *to = *from;
    to->generation = task->generation;
    to->replica = MC_REPLICA_LOADED;
    to->version = task->generation - MC_REPLICA_LOADED;
    to->offset = task->offset;
    return 0;
}

/* Any of what it was told is done, or fails. */
static void process_works(struct model *model, struct process *process)
{
    unsigned at = (unsigned)model_random(model, process->task_count);
    struct task task = process->tasks[at];
    bool fails = !model_is_calm(model) && model_random(model, 8) == 0;
    int32_t code = fails          ? MC_ERR_TRANSFER_FAIL
                   : task.is_load ? do_load(model, process, &task)
                                  : do_store(process, &task);
    model_trace(model, "node %u %s slot %u, generation %llx from slot %u: %d", (unsigned)process->node,
                task.is_load ? "loads" : "stores", task.slot, (unsigned long long)task.generation, task.from_slot,
                code);
    process->tasks[at] = process->tasks[--process->task_count];
    say_slot(process, MC_MESSAGE_LIVE, task.is_load ? MEMORY : DISK, task.slot, task.generation, code);
}

/* The disk makes room by itself. */
static void disk_drops(struct model *model, struct process *process)
{
    struct medium *disk = &process->media[DISK];
    struct kept *oldest = NULL;
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        if (disk->slots[i].live && (oldest == NULL || disk->slots[i].generation < oldest->generation))
            oldest = &disk->slots[i];
    if (oldest == NULL)
        return;
    oldest->live = false;
    model_trace(model, "node %u drops disk slot %u", (unsigned)process->node, (unsigned)(oldest - disk->slots));
    model_lossy(model);
    say_slot(process, MC_MESSAGE_LOST, DISK, (uint32_t)(oldest - disk->slots), oldest->generation, 0);
}

/* ---- what it hears ---- */

/* What was on it is no more. */
static void wipe(struct model *model, struct process *process, unsigned which)
{
    process->media[which] = (struct medium){.id = model_next_id(model)};
    for (unsigned i = 0; i < process->task_count; i++) {
        const struct task *task = &process->tasks[i];
        if (task->is_load == (which == DISK))
            say_slot(process, MC_MESSAGE_LIVE, 1 - which, task->slot, task->generation, MC_ERR_TRANSFER_FAIL);
    }
    process->task_count = 0;
    model_lossy(model);
}

/* From now on its contents are of this master, and so is the contact. */
static void is_offered(const struct world *world, struct medium *medium)
{
    medium->epoch = world->core->epoch;
    medium->contact_ms = medium->heard_ms > medium->contact_ms ? medium->heard_ms : medium->contact_ms;
}

static void hear_slots(struct process *process, unsigned type, unsigned which, struct mc_reader *reader)
{
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_slot slot; /* a cut_item begins as a slot does */
        mc_wire_slot_read(reader, &slot);
        clear_slot(&process->media[which], slot.slot, slot.generation);
        if (type == MC_MESSAGE_CUT) { /* it does no more after that */
            struct task *task = task_of(process, true, slot.slot, slot.generation);
            if (task != NULL)
                *task = process->tasks[--process->task_count];
        }
        say_slot(process, type == MC_MESSAGE_CLEAR ? MC_MESSAGE_CLEARED : MC_MESSAGE_CUT_DONE, which, slot.slot,
                 slot.generation, 0);
    }
}

static void hear_tasks(struct process *process, bool is_load, struct mc_reader *reader)
{
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_store_item store = {0};
        struct mc_wire_load_item load = {0};
        struct task task = {.is_load = is_load};
        if (is_load) {
            mc_wire_load_item_read(reader, &load);
            task.slot = load.slot;
            task.generation = load.generation;
            task.offset = load.offset;
            task.from_slot = load.disk_slot;
            task.from_generation = load.disk_generation;
        } else {
            mc_wire_store_item_read(reader, &store);
            task.slot = store.slot;
            task.generation = store.generation;
            task.version = store.version;
            task.from_slot = store.source_slot;
            task.from_generation = store.source_generation;
        }
        bool is_known = (is_load ? load.disk : store.source) == process->media[is_load ? DISK : MEMORY].number;
        assert_true(process->task_count < TASKS_MAX);
        if (!is_known)
            say_slot(process, MC_MESSAGE_LIVE, is_load ? MEMORY : DISK, task.slot, task.generation,
                     MC_ERR_TRANSFER_FAIL);
        else if (task_of(process, is_load, task.slot, task.generation) == NULL)
            process->tasks[process->task_count++] = task;
    }
}

/* Reads one frame; its type, 0 = there is none. */
static unsigned process_hears(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    struct mc_frame frame = world_receive(world, process->owner);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_segment head = {0};
    struct mc_wire_inventory_ack ack = {0};
    if (frame.type == 0)
        return 0;
    model_trace(model, "node %u hears %u", (unsigned)process->node, frame.type);
    if (frame.type == MC_MESSAGE_MOUNT_REPLY) {
        mc_wire_mount_reply_read(&reader, &process->reply);
        return frame.type;
    }
    if (frame.type == MC_MESSAGE_PING) {
        say_slot(process, MC_MESSAGE_PONG, 0, 0, frame.request_id, 0);
        return frame.type;
    }
    if (frame.type == MC_MESSAGE_UNMOUNT_REPLY)
        return frame.type;
    if (frame.type == MC_MESSAGE_INVENTORY_ACK) {
        mc_wire_inventory_ack_read(&reader, &ack);
        head.segment = ack.segment;
    } else {
        mc_wire_segment_read(&reader, &head);
    }
    unsigned which = head.segment == process->media[DISK].number ? DISK : MEMORY;
    struct medium *medium = &process->media[which];
    if (head.segment != medium->number || !medium->mounted)
        return frame.type;
    if (frame.type == MC_MESSAGE_CLEAR || frame.type == MC_MESSAGE_CUT)
        hear_slots(process, frame.type, which, &reader);
    else if (frame.type == MC_MESSAGE_STORE || frame.type == MC_MESSAGE_LOAD)
        hear_tasks(process, frame.type == MC_MESSAGE_LOAD, &reader);
    else if (frame.type == MC_MESSAGE_OFFERED)
        is_offered(world, medium);
    else if (ack.code < 0) /* not wanted; it is mounted anew with the next heartbeat */
        wipe(model, process, which);
    return frame.type;
}

/* ---- its life ---- */

static struct mc_wire_mount mount_of(const struct world *world, const struct medium *medium, unsigned which)
{
    struct mc_wire_mount mount =
        world_mount_of(medium->id, which == DISK ? MIB : 16u << 10, which == DISK ? "disk" : "memory");
    mount.kind = which == DISK ? MC_SEGMENT_DISK : MC_SEGMENT_MEMORY;
    mount.slot_count = which == DISK ? 8 : KEPT_MAX;
    mount.epoch = medium->epoch;
    mount.contact_age_ms = (uint32_t)(world->now - medium->contact_ms);
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        if (medium->slots[i].live)
            mount.slot_top = i + 1;
    return mount;
}

static int32_t mount_once(struct model *model, struct process *process, unsigned which)
{
    struct world *world = model_world(model);
    struct medium *medium = &process->media[which];
    struct mc_wire_mount mount = mount_of(world, medium, which);
    size_t frame = world_begin(world, MC_MESSAGE_MOUNT, 2);
    mc_wire_mount_write(&world->frame, &mount);
    world_send(world, process->owner, frame);
    unsigned type = process_hears(model, process);
    while (type != MC_MESSAGE_MOUNT_REPLY && type != 0)
        type = process_hears(model, process);
    if (type == 0)
        model_wrong(model, "a mount without an answer");
    model_trace(model, "node %u mounts %s: %d, inventory %u, behind %u", (unsigned)process->node,
                which == DISK ? "disk" : "memory", process->reply.code, process->reply.inventory,
                process->reply.behind);
    if (process->reply.code != 0)
        return process->reply.code;
    medium->mounted = true;
    medium->number = process->reply.segment;
    if (!process->reply.behind)
        medium->heard_ms = world->now;
    if (process->reply.inventory == 0)
        is_offered(world, medium);
    unsigned kept = 0; /* what was begun to be told is not gone on with */
    for (unsigned i = 0; i < process->answer_count; i++)
        if (process->answers[i].type != MC_MESSAGE_INVENTORY || process->answers[i].medium != which)
            process->answers[kept++] = process->answers[i];
    process->answer_count = kept;
    if (process->reply.inventory == 1)
        say(process, (struct answer){.type = MC_MESSAGE_INVENTORY, .medium = (uint8_t)which});
    return 0;
}

static void process_mounts(struct model *model, struct process *process, unsigned which)
{
    int32_t code = mount_once(model, process, which);
    if (code == MC_ERR_STALE) {
        wipe(model, process, which);
        code = mount_once(model, process, which);
    }
    if (code != 0 && code != MC_ERR_SEGMENT_ALREADY_EXISTS)
        model_wrong(model, "a mount is refused");
}

/* What it had still to say, but for what its disk has dropped: that is said again. */
static void forget_answers(struct process *process)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < process->answer_count; i++)
        if (process->answers[i].type == MC_MESSAGE_LOST)
            process->answers[kept++] = process->answers[i];
    process->answer_count = kept;
}

static void process_breaks(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    if (!process->joined)
        return;
    process->joined = false;
    model_trace(model, "node %u breaks", (unsigned)process->node);
    world_disconnect(world, process->owner);
    world_disconnect(world, process->heartbeat);
    process->media[MEMORY].mounted = process->media[DISK].mounted = false;
    forget_answers(process);
}

static void process_joins(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    uint64_t age_ms = 0, seen = model_seen(model, &age_ms);
    if (!process->alive || process->joined || world->next_connection > WORLD_CONNECTIONS - 8)
        return;
    model_trace(model, "node %u joins", (unsigned)process->node);
    process->heartbeat = join_seen(world, MC_ROLE_HEARTBEAT, process->node, process->incarnation, seen, age_ms);
    process->owner = join_seen(world, MC_ROLE_OWNER, process->node, process->incarnation, seen, age_ms);
    process->joined = true;
    if (process->epoch != world->core->epoch) { /* the floor is raised: nothing that is late comes live, or is said */
        process->task_count = 0;
        forget_answers(process);
    }
    process->epoch = world->core->epoch;
    process->beat_ms = world->now;
    unsigned first = (unsigned)model_random(model, MEDIA);
    process_mounts(model, process, first);
    process_mounts(model, process, 1 - first);
}

/* The end of the process; its disk stays, and its memory, too, if that is a file. */
static void process_ends(struct model *model, struct process *process)
{
    if (!process->alive)
        return;
    process_breaks(model, process);
    model_trace(model, "node %u ends", (unsigned)process->node);
    process->alive = false;
    if (chance(model, 3))
        model_lossy(model);
    else
        wipe(model, process, MEMORY);
    process->task_count = process->answer_count = 0;
    for (uint32_t i = 0; i < KEPT_MAX; i++) /* nobody of that process is late any more */
        if (!process->media[DISK].slots[i].live)
            process->media[DISK].slots[i].generation = 0;
}

static void process_begins(struct model *model, struct process *process)
{
    if (process->alive)
        return;
    process->alive = true;
    process->mute = false;
    process->node += 10; /* another id, as every process has its own */
    process_joins(model, process);
}

static void process_unmounts_disk(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    struct mc_wire_unmount unmount = {.segment = process->media[DISK].number, .keep = chance(model, 2)};
    if (!process->joined || !process->media[DISK].mounted || world->connections[process->owner].closed)
        return; /* a lost UNMOUNT would have to be said again: the segment stays as long as the member lives */
    model_trace(model, "node %u unmounts its disk", (unsigned)process->node);
    size_t frame = world_begin(world, MC_MESSAGE_UNMOUNT, 5);
    mc_wire_unmount_write(&world->frame, &unmount);
    if (unmount.keep != 0 && process->task_count > 0)
        return; /* not while something is under way */
    world_send(world, process->owner, frame);
    if (unmount.keep == 0) {
        wipe(model, process, DISK);
        return;
    }
    unsigned kept = 0; /* nothing is told of it any more; it is mounted again with a heartbeat */
    for (unsigned i = 0; i < process->answer_count; i++)
        if (process->answers[i].medium != DISK || process->answers[i].type == MC_MESSAGE_LOST)
            process->answers[kept++] = process->answers[i];
    process->answer_count = kept;
    process->media[DISK].mounted = false;
}

static void process_beats(struct model *model, struct process *process)
{
    struct world *world = model_world(model);
    struct mc_wire_heartbeat head = {.epoch = world->core->epoch};
    struct mc_wire_heartbeat_reply reply;
    process->beat_ms = world->now;
    size_t frame = world_begin(world, MC_MESSAGE_HEARTBEAT, 3);
    mc_wire_heartbeat_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    for (unsigned which = 0; which < MEDIA; which++) {
        struct mc_wire_heartbeat_segment item = {.segment = process->media[which].number, .populated = UINT64_MAX};
        mc_wire_heartbeat_segment_write(&world->frame, &item);
    }
    mc_list_end(&world->frame, list, MEDIA);
    world_send(world, process->heartbeat, frame);
    world_answer_contact(world);
    struct mc_frame answer = world_receive(world, process->heartbeat);
    if (answer.type != MC_MESSAGE_HEARTBEAT_REPLY)
        return;
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_heartbeat_reply_read(&reader, &reply);
    uint32_t count = mc_list_read(&reader);
    struct mc_wire_segment_code codes[MEDIA] = {{0}};
    for (uint32_t which = 0; which < count && which < MEDIA; which++)
        mc_wire_segment_code_read(&reader, &codes[which]);
    for (unsigned which = 0; which < MEDIA; which++) {
        struct medium *medium = &process->media[which];
        if (codes[which].code == 0 && medium->mounted)
            medium->heard_ms = world->now;
        if (medium->epoch == world->core->epoch)
            is_offered(world, medium);
        if (codes[which].code < 0 || !process->media[which].mounted) {
            process->media[which].mounted = false;
            process_mounts(model, process, which);
        }
    }
}

#endif
