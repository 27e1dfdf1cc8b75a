/* What lies in the memory, told to a master that does not know it: one of a later epoch, or the same after this process
 * took up a dead one's memory. A large segment holds up neither the loop, for a thread of its own collects what lies
 * there, nor the output buffer, for frames are made as the answers come. All but that thread on the serve thread. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/segment/let_go.h"
#include "store/segment/pin.h"

#include <inttypes.h>
#include <stdlib.h>

#define FRAME_ITEMS 128u           /* the master takes a frame in one piece: a tenth of a millisecond */
#define WINDOW_FRAMES 32u          /* not yet acknowledged */
#define OUT_BYTES_MAX (512u << 10) /* with so much unsent no further frame is made */
#define TURN_FRAMES 8u             /* at a time: what else the loop has to do comes between */

/* ---- collecting ---- */

struct mc_collector { /* freed by the posted function, or by the thread when it was abandoned before it posted */
    pthread_mutex_t lock;
    struct mc_owner *owner; /* NULL: abandoned */
    struct mc_serve *serve;
    struct mc_segment_memory *memory; /* held until the thread has collected */
    atomic_bool stop;
    int64_t count;
    struct mc_content *items;
};

/* Of a large segment they are hundreds of megabytes. */
struct items {
    struct mc_let_go leaving;
    struct mc_content *list;
};

static void items_run(struct mc_let_go *leaving)
{
    free(((struct items *)(void *)leaving)->list);
}

static void items_after(struct mc_let_go *leaving)
{
    free(leaving);
}

static void items_drop(struct mc_content *list)
{
    struct items *items = list == NULL ? NULL : malloc(sizeof(*items));
    if (items == NULL) {
        free(list);
        return;
    }
    *items = (struct items){{.run = items_run, .after = items_after}, list};
    mc_let_go(&items->leaving);
}

static void collector_free(struct mc_collector *collector)
{
    pthread_mutex_destroy(&collector->lock);
    items_drop(collector->items);
    free(collector);
}

static void on_collected(void *argument)
{
    struct mc_collector *collector = argument;
    pthread_mutex_lock(&collector->lock); /* the thread that posted holds it until it is done with the collector */
    struct mc_owner *owner = collector->owner;
    pthread_mutex_unlock(&collector->lock);
    int64_t count = collector->count;
    if (owner != NULL) {
        owner->inventory.collector = NULL;
        owner->inventory.items = collector->items;
        owner->inventory.count = count < 0 ? 0 : (size_t)count;
        collector->items = NULL;
    }
    collector_free(collector);
    if (owner == NULL)
        return;
    if (count < 0) {
        mc_owner_link_break(owner, mc_error_name((int)count));
        return;
    }
    mc_owner_timer_set(owner->timer, ANSWER_MS);
    mc_owner_link_send(owner);
}

static void *collector_run(void *argument)
{
    struct mc_collector *collector = argument;
    collector->count = mc_segment_memory_contents(collector->memory, &collector->stop, &collector->items);
    mc_segment_memory_release(collector->memory);
    pthread_mutex_lock(&collector->lock);
    bool abandoned = collector->owner == NULL;
    if (!abandoned)
        mc_serve_post(collector->serve, on_collected, collector);
    pthread_mutex_unlock(&collector->lock);
    if (abandoned)
        collector_free(collector);
    return NULL;
}

static struct mc_collector *collector_start(struct mc_owner *owner)
{
    struct mc_collector *collector = calloc(1, sizeof(*collector));
    if (collector == NULL)
        return NULL;
    collector->owner = owner;
    collector->serve = owner->serve;
    collector->memory = owner->memory;
    pthread_mutex_init(&collector->lock, NULL);
    mc_segment_memory_retain(collector->memory);
    if (mc_thread_start(NULL, "mc-inventory", collector_run, collector) != 0) {
        mc_segment_memory_drop(collector->memory);
        collector_free(collector);
        return NULL;
    }
    return collector;
}

static void collector_abandon(struct mc_collector *collector)
{
    atomic_store(&collector->stop, true);
    pthread_mutex_lock(&collector->lock);
    collector->owner = NULL;
    pthread_mutex_unlock(&collector->lock);
}

void mc_owner_inventory_stop(struct mc_owner *owner)
{
    if (owner->inventory.collector != NULL)
        collector_abandon(owner->inventory.collector);
    items_drop(owner->inventory.items);
    owner->inventory = (struct mc_owner_inventory){0};
}

int mc_owner_inventory_start(struct mc_owner *owner)
{
    mc_owner_inventory_stop(owner);
    struct mc_collector *collector = collector_start(owner);
    if (collector == NULL)
        return MC_ERR_NO_MEMORY;
    owner->inventory =
        (struct mc_owner_inventory){.collector = collector, .is_active = true, .start_ms = mc_clock_ms()};
    return 0;
}

/* ---- telling ---- */

/* Is it still there? What was cleared since the inventory was taken has an extent, and a key, that may be another's. */
static bool is_there(const struct mc_owner *owner, const struct mc_content *item)
{
    struct mc_slot copy;
    return item->state != 1 ||
           mc_slot_read(&mc_segment_memory_slots(owner->memory)[item->slot], item->generation, &copy);
}

static void frame_write(struct mc_owner *owner)
{
    struct mc_owner_inventory *inventory = &owner->inventory;
    size_t left = inventory->count - inventory->sent, count = left < FRAME_ITEMS ? left : FRAME_ITEMS, written = 0;
    struct mc_wire_inventory head = {
        .segment = atomic_load(&owner->segment), .sequence = inventory->next++, .last = count == left};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_INVENTORY, 0);
    size_t list = mc_wire_inventory_head(&owner->out, &head);
    for (size_t i = 0; i < count; i++) {
        const struct mc_content *item = &inventory->items[inventory->sent + i];
        if (!is_there(owner, item))
            continue;
        if (item->state == 1 && item->replica == MC_REPLICA_LOADED && !mc_wire_can(&owner->agreed, MC_FEATURE_DISKS)) {
            /* A master that knows of no disks would take such a number for a lie, and nothing for true. */
            (void)mc_segment_memory_clear(owner->memory, item->slot, item->generation);
            continue;
        }
        uint64_t pin_ms, now_ms = (item->flags & MC_PIN_SAID) == 0 ? 0 : mc_clock_boot_ms();
        struct mc_wire_inventory_item record = {.slot = item->slot,
                                                .state = item->state,
                                                .flags = mc_pin_read(item->flags, item->pin, now_ms, &pin_ms),
                                                .replica = item->replica,
                                                .generation = item->generation,
                                                .offset = item->offset,
                                                .length = item->length,
                                                .writer = item->writer,
                                                .group = item->group,
                                                .key = mc_span(item->key, item->state == 1 ? item->key_length : 0)};
        record.pin_ms = pin_ms;
        record.hint = mc_pin_hint(item->flags);
        mc_wire_inventory_item_write(&owner->out, &record);
        written++;
    }
    mc_frame_end_list(&owner->out, frame, list, written);
    inventory->sent += count;
    inventory->is_last_sent = head.last != 0;
}

bool mc_owner_inventory_is_due(const struct mc_owner *owner)
{
    const struct mc_owner_inventory *inventory = &owner->inventory;
    return inventory->is_active && inventory->collector == NULL && !inventory->is_last_sent &&
           inventory->next - inventory->acknowledged < WINDOW_FRAMES &&
           owner->out.length - owner->out_sent < OUT_BYTES_MAX;
}

void mc_owner_inventory_write(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < TURN_FRAMES && mc_owner_inventory_is_due(owner); i++)
        frame_write(owner);
}

int mc_owner_inventory_acknowledged(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_owner_inventory *inventory = &owner->inventory;
    struct mc_wire_inventory_ack ack;
    mc_wire_inventory_ack_read(reader, &ack);
    if (owner->state != LINK_MOUNTED)
        return 0; /* of an earlier mount: what it speaks of is given up already */
    if (ack.segment == atomic_load(&owner->segment) && ack.code < 0) { /* also later: it has thought better of it */
        mc_owner_inventory_stop(owner);
        evtimer_del(owner->timer);
        return MC_ERR_STALE;
    }
    if (!inventory->is_active || ack.segment != atomic_load(&owner->segment) ||
        ack.sequence != inventory->acknowledged || inventory->next == inventory->acknowledged)
        return MC_ERR_PROTOCOL;
    inventory->acknowledged++;
    mc_owner_timer_set(owner->timer, ANSWER_MS);
    if (inventory->is_last_sent && inventory->acknowledged == inventory->next) {
        mc_log(INFO, "the master knows what lies in segment %s: %zu entries, told in %" PRIu64 " ms", owner->name,
               inventory->count, mc_clock_ms() - inventory->start_ms);
        mc_owner_inventory_stop(owner);
        evtimer_del(owner->timer);
        mc_owner_populated_tell(owner);
    }
    return 0;
}
