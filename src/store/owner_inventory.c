/* What lies in the memory, told to a master that does not know it: one of a later epoch, or the same after this process
 * took up a dead one's memory. Frames are made as the answers come, so that neither the loop nor the output buffer is
 * held up by a large segment. All on the serve thread. */
#include "store/owner_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdlib.h>

#define FRAME_ITEMS 128u           /* the master takes a frame in one piece: a tenth of a millisecond */
#define WINDOW_FRAMES 32u          /* not yet acknowledged */
#define OUT_BYTES_MAX (512u << 10) /* with so much unsent no further frame is made */

void mc_owner_inventory_stop(struct mc_owner *owner)
{
    free(owner->inventory.items);
    owner->inventory = (struct mc_inventory){0};
}

int mc_owner_inventory_start(struct mc_owner *owner)
{
    struct mc_content *items;
    mc_owner_inventory_stop(owner);
    int64_t count = mc_segment_memory_contents(owner->memory, &items);
    if (count < 0)
        return (int)count;
    owner->inventory =
        (struct mc_inventory){.items = items, .count = (size_t)count, .is_active = true, .start_ms = mc_clock_ms()};
    mc_owner_timer_set(owner->timer, ANSWER_MS);
    return 0; /* the first frames are made when the link sends next, at the end of this turn */
}

/* Is it still there? What was cleared since the inventory was taken has an extent, and a key, that may be another's. */
static bool is_there(const struct mc_owner *owner, const struct mc_content *item)
{
    struct mc_slot copy;
    return item->state != 1 ||
           mc_slot_read(&mc_segment_memory_slots(owner->memory)[item->slot], item->generation, &copy);
}

static void frame_write(struct mc_owner *owner)
{
    struct mc_inventory *inventory = &owner->inventory;
    size_t left = inventory->count - inventory->sent, count = left < FRAME_ITEMS ? left : FRAME_ITEMS, written = 0;
    struct mc_wire_inventory head = {
        .segment = atomic_load(&owner->segment), .sequence = inventory->next++, .last = count == left};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_INVENTORY, 0);
    mc_wire_inventory_write(&owner->out, &head);
    size_t list = mc_list_begin(&owner->out);
    for (size_t i = 0; i < count; i++) {
        const struct mc_content *item = &inventory->items[inventory->sent + i];
        if (!is_there(owner, item))
            continue;
        struct mc_wire_inventory_item record = {.slot = item->slot,
                                                .state = item->state,
                                                .flags = item->flags,
                                                .replica = item->replica,
                                                .generation = item->generation,
                                                .offset = item->offset,
                                                .length = item->length,
                                                .writer = item->writer,
                                                .group = item->group,
                                                .key = mc_span(item->key, item->state == 1 ? item->key_length : 0)};
        mc_wire_inventory_item_write(&owner->out, &record);
        written++;
    }
    mc_list_end(&owner->out, list, written);
    mc_frame_end(&owner->out, frame);
    inventory->sent += count;
    inventory->is_last_sent = head.last != 0;
}

void mc_owner_inventory_write(struct mc_owner *owner)
{
    const struct mc_inventory *inventory = &owner->inventory;
    while (inventory->is_active && !inventory->is_last_sent &&
           inventory->next - inventory->acknowledged < WINDOW_FRAMES &&
           owner->out.length - owner->out_sent < OUT_BYTES_MAX)
        frame_write(owner);
}

int mc_owner_inventory_acknowledged(struct mc_owner *owner, struct mc_reader *reader)
{
    struct mc_inventory *inventory = &owner->inventory;
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
