/* Regions in the C library's balanced tree, ordered by address; ranges that overlap compare as equal, which is a
 * consistent order because stored ranges never do. */
#include "transfer/state/region.h"

#include "base/error.h"

#include <search.h>
#include <stdlib.h>

static int compare(const void *left, const void *right)
{
    const struct mc_transfer_range *a = left, *b = right;
    /* By differences: the end of a range that touches the end of the address space would be zero. */
    if (a->address < b->address)
        return b->address - a->address >= a->length ? -1 : 0;
    return a->address - b->address >= b->length ? 1 : 0;
}

static uint32_t take_slot(struct mc_region_table *table)
{
    if (table->free_count > 0)
        return table->free_slots[--table->free_count];
    return table->slots_used < MC_REGION_SLOTS ? table->slots_used++ : MC_REGION_NO_SLOT;
}

static void give_slot(struct mc_region_table *table, uint32_t slot)
{
    if (slot == MC_REGION_NO_SLOT)
        return;
    if (table->free_count == table->free_capacity) {
        size_t capacity = table->free_capacity == 0 ? 64 : table->free_capacity * 2;
        uint32_t *more = realloc(table->free_slots, capacity * sizeof(*more));
        if (more == NULL)
            return; /* the slot is lost, and its entry dead: as good as a region less */
        table->free_slots = more;
        table->free_capacity = capacity;
    }
    table->free_slots[table->free_count++] = slot;
}

static int add_one(struct mc_region_table *table, struct mc_transfer_range range, struct mc_region **added)
{
    if (range.length == 0 || range.address == 0 || range.length - 1 > UINT64_MAX - range.address)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    struct mc_region *region = calloc(1, sizeof(*region));
    if (region == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    region->address = range.address;
    region->length = range.length;
    region->memory_fd = -1;
    struct mc_region **node = tsearch(region, &table->tree, compare);
    if (node == NULL || *node != region) {
        free(region);
        return node == NULL ? MC_TRANSFER_ERR_MEMORY : MC_TRANSFER_ERR_ADDRESS_OVERLAPPED;
    }
    region->generation = ++table->generation;
    region->slot = take_slot(table);
    region->previous = table->last;
    *(table->last == NULL ? &table->first : &table->last->next) = region;
    table->last = region;
    table->count++;
    table->version++;
    *added = region;
    return 0;
}

int mc_region_add(struct mc_region_table *table, const struct mc_transfer_range *ranges, size_t count,
                  struct mc_region **regions)
{
    struct mc_region *before = table->last, *added;
    int rc = count > MC_TRANSFER_ITEMS_MAX ? MC_TRANSFER_ERR_MEMORY : 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = add_one(table, ranges[i], &added);
        if (rc == 0 && regions != NULL)
            regions[i] = added;
    }
    while (rc < 0 && table->last != before)
        mc_region_remove(table, table->last);
    return rc;
}

struct mc_region *mc_region_at(const struct mc_region_table *table, uint64_t address)
{
    struct mc_transfer_range range = {address, 1};
    struct mc_region **node = tfind(&range, &table->tree, compare);
    return node != NULL && (*node)->address == address ? *node : NULL;
}

struct mc_region *mc_region_find(const struct mc_region_table *table, uint64_t address, uint64_t length)
{
    struct mc_region *region = mc_region_find_any(table, address, length);
    return region == NULL || region->is_leaving ? NULL : region;
}

struct mc_region *mc_region_find_any(const struct mc_region_table *table, uint64_t address, uint64_t length)
{
    struct mc_transfer_range range = {address, 1};
    if (length == 0)
        return NULL;
    struct mc_region **node = tfind(&range, &table->tree, compare);
    if (node == NULL || length > (*node)->length - (address - (*node)->address))
        return NULL;
    return *node;
}

void mc_region_hide(struct mc_region_table *table, struct mc_region *region)
{
    give_slot(table, region->slot);
    region->slot = MC_REGION_NO_SLOT;
}

void mc_region_remove(struct mc_region_table *table, struct mc_region *region)
{
    mc_assert(region->in_flight == 0);
    (void)tdelete(region, &table->tree, compare);
    *(region->previous == NULL ? &table->first : &region->previous->next) = region->next;
    *(region->next == NULL ? &table->last : &region->next->previous) = region->previous;
    give_slot(table, region->slot);
    table->count--;
    table->version++;
    free(region);
}

void mc_region_table_free(struct mc_region_table *table)
{
    while (table->last != NULL)
        mc_region_remove(table, table->last);
    free(table->free_slots);
    *table = (struct mc_region_table){0};
}
