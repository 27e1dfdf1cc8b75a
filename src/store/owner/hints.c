/* What hints have said of values in our memory is kept in their slots, so that the next master hears of it. */
#include "store/owner/inside.h"

#include "env/log.h"

#include <inttypes.h>

/* What is gone by now has nothing to keep, and that is said as well: the master is not to tell it again. */
void mc_owner_hints_handle(struct mc_owner *owner, uint64_t request_id, struct mc_reader *reader)
{
    struct mc_wire_segment head = {.segment = atomic_load(&owner->segment)};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_HINTED, request_id), count = 0;
    size_t list = mc_wire_segment_head(&owner->out, &head);
    for (uint32_t left = mc_list_read(reader); left > 0; left--) {
        struct mc_wire_hinted_item item;
        mc_wire_hinted_item_read(reader, &item);
        if (mc_segment_memory_hint(owner->memory, item.slot, item.generation, item.hint) == MC_ERR_INVALID_PARAMS)
            mc_log_limited(WARNING,
                           "slot %" PRIu32 " keeps no hint: it does not exist, or the hint is of a later release",
                           item.slot);
        mc_wire_hinted_item_write(&owner->out, &item);
        count++;
    }
    mc_frame_end_list(&owner->out, frame, list, count);
}
