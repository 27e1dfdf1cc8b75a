/* The table of regions and the intents. */
#include "transfer/state/host_table.h"

#include "base/error.h"

#include <stdlib.h>

void mc_host_entry_set(struct mc_host_table *table, const struct mc_region *region)
{
    struct mc_host_entry *entry = &table->entries[region->slot];
    atomic_store_explicit(&entry->address, region->address, memory_order_relaxed);
    atomic_store_explicit(&entry->length, region->length, memory_order_relaxed);
    atomic_store_explicit(&entry->memory, (uint64_t)(region->memory_fd + 1), memory_order_relaxed);
    atomic_store(&entry->generation, region->generation);
    if (atomic_load_explicit(&table->used, memory_order_relaxed) <= region->slot)
        atomic_store(&table->used, region->slot + 1);
    atomic_fetch_add(&table->version, 1);
}

void mc_host_entry_clear(struct mc_host_table *table, uint32_t slot)
{
    atomic_store(&table->entries[slot].generation, 0);
    atomic_fetch_add(&table->version, 1);
}

bool mc_host_is_intended(const struct mc_host_intents *intents, uint32_t slot)
{
    for (size_t i = 0; i < MC_HOST_INTENTS; i++)
        for (size_t j = 0; j < MC_HOST_INTENT_REGIONS; j++)
            if (atomic_load(&intents->intents[i].slots[j]) == (uint64_t)slot + 1)
                return true;
    return false;
}

static int by_address(const void *left, const void *right)
{
    const struct mc_host_known *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

int mc_host_view_refresh(struct mc_host_view *view, const struct mc_host_table *table)
{
    uint64_t version = atomic_load(&table->version);
    uint32_t used = atomic_load(&table->used);
    if (used > MC_REGION_SLOTS)
        used = MC_REGION_SLOTS; /* whatever a peer writes there, we stay within the map */
    if (used > view->capacity) {
        struct mc_host_known *more = realloc(view->known, used * sizeof(*more));
        if (more == NULL)
            return MC_TRANSFER_ERR_MEMORY;
        view->known = more;
        view->capacity = used;
    }
    view->count = 0;
    for (uint32_t slot = 0; slot < used; slot++) {
        const struct mc_host_entry *entry = &table->entries[slot];
        uint64_t generation = atomic_load(&entry->generation);
        struct mc_host_known known = {atomic_load_explicit(&entry->address, memory_order_acquire),
                                      atomic_load_explicit(&entry->length, memory_order_acquire), generation,
                                      atomic_load_explicit(&entry->memory, memory_order_acquire), slot};
        /* Generations are never given twice: unchanged means that the fields in between belong to it. */
        if (generation != 0 && atomic_load(&entry->generation) == generation)
            view->known[view->count++] = known;
    }
    if (view->count > 1) /* none: there may be no array */
        qsort(view->known, view->count, sizeof(*view->known), by_address);
    view->version = version;
    return 0;
}

const struct mc_host_known *mc_host_view_find(const struct mc_host_view *view, uint64_t address, uint64_t length)
{
    size_t low = 0, high = view->count;
    while (low < high) { /* the last that begins at or before the address */
        size_t middle = low + (high - low) / 2;
        if (view->known[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    const struct mc_host_known *known = &view->known[low - 1];
    uint64_t offset = address - known->address;
    return offset < known->length && length <= known->length - offset ? known : NULL;
}

bool mc_host_announce(struct mc_host_intent *intent, const struct mc_host_table *table,
                      const struct mc_host_known *const *known, size_t count)
{
    mc_assert(count <= MC_HOST_INTENT_REGIONS);
    for (size_t i = 0; i < count; i++)
        atomic_store(&intent->slots[i], (uint64_t)known[i]->slot + 1);
    for (size_t i = 0; i < count; i++)
        if (atomic_load(&table->entries[known[i]->slot].generation) != known[i]->generation)
            return false;
    return true;
}

void mc_host_retreat(struct mc_host_intent *intent)
{
    for (size_t i = 0; i < MC_HOST_INTENT_REGIONS; i++)
        if (atomic_load_explicit(&intent->slots[i], memory_order_relaxed) != 0)
            atomic_store_explicit(&intent->slots[i], 0, memory_order_release);
}
