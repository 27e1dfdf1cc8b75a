/* Which policies there are, and what they share. */
#include "store/core/policy.h"

#include "store/core/hint.h"
#include "store/core/replica.h"

#include <string.h>

static const struct mc_eviction_policy *const policies[] = {&mc_eviction_s3fifo, &mc_eviction_clock, &mc_eviction_lru};

const struct mc_eviction_policy *mc_eviction_find(const char *name)
{
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
        if (strcmp(policies[i]->name, name) == 0)
            return policies[i];
    return NULL;
}

const struct mc_eviction_policy *mc_eviction_default(void)
{
    return &mc_eviction_s3fifo;
}

struct mc_node_list *mc_eviction_list(struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    return mc_node_goes_first(node) ? &segment->first : node->proven ? &segment->proven : &segment->normal;
}

void mc_eviction_append(struct mc_segment *segment, uint32_t slot, bool proven)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->proven = proven;
    mc_list_append(segment, proven ? &segment->proven : &segment->normal, slot);
}

void mc_eviction_enter_first(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->uses = 0;
    node->proven = 0;
    mc_list_insert_ahead(segment, &segment->normal, slot);
}

void mc_eviction_turn(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node_list *list = mc_eviction_list(segment, slot);
    if (list->tail == slot)
        return;
    mc_list_remove(segment, list, slot);
    mc_list_append(segment, list, slot);
}

void mc_eviction_leave(struct mc_segment *segment, uint32_t slot)
{
    mc_list_remove(segment, mc_eviction_list(segment, slot), slot);
}
