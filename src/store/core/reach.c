/* Segments that other hosts cannot reach: their owner tells an address that means its own machine. On one machine that
 * is right, so it is said only when another host is there, once, here and in the owner's log. */
#include "base/address.h"
#include "store/core/segment.h"
#include "store/core/state.h"

static void cannot_be_reached(struct mc_core *core, struct mc_segment *segment, const char *from)
{
    segment->unreachable = true;
    mc_core_tell(core, MC_TOPIC_NETWORK, MC_CORE_LOG_WARNING,
                 "segment %u (%s) is at %s, which only its own host reaches, and %s is on another: its node needs a "
                 "local_hostname that others can reach",
                 segment->number, segment->name, segment->tcp_address, from);
}

static bool is_for_own_host(const struct mc_segment *segment)
{
    return segment->kind == MC_SEGMENT_MEMORY && !segment->unreachable && segment->state != MC_SEGMENT_GONE &&
           segment->is_at_loopback;
}

void mc_reach_mounted(struct mc_core *core, struct mc_segment *segment)
{
    segment->unreachable = false; /* it may have been mounted again with another address */
    segment->is_at_loopback = mc_address_is_loopback(segment->tcp_address);
    for (uint32_t index = 1; index < core->segment_top; index++) {
        struct mc_segment *other = core->segments[index];
        if (other == NULL || other->state == MC_SEGMENT_GONE || mc_id_equal(other->host, segment->host))
            continue;
        if (is_for_own_host(other))
            cannot_be_reached(core, other, segment->name);
        if (is_for_own_host(segment))
            cannot_be_reached(core, segment, other->name);
    }
}

void mc_reach_asked(struct mc_core *core, struct mc_id host)
{
    for (uint32_t index = 1; index < core->segment_top; index++) {
        struct mc_segment *segment = core->segments[index];
        if (segment != NULL && is_for_own_host(segment) && !mc_id_equal(segment->host, host))
            cannot_be_reached(core, segment, "a client");
    }
}
