/* The array of items. */
#include "store/disk/index.h"

#include <sys/mman.h>

int mc_disk_index_init(struct mc_disk_index *index, uint32_t capacity)
{
    void *items = mmap(NULL, (size_t)capacity * sizeof(struct mc_disk_item), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *index = (struct mc_disk_index){.capacity = capacity};
    if (items == MAP_FAILED)
        return MC_ERR_NO_MEMORY;
    index->items = items;
    return 0;
}

bool mc_disk_index_grow(struct mc_disk_index *index, uint32_t slot)
{
    uint64_t capacity = index->capacity;
    while (capacity <= slot)
        capacity *= 2;
    if (capacity == index->capacity)
        return true;
    struct mc_disk_index larger;
    if (capacity > UINT32_MAX / 2 || mc_disk_index_init(&larger, (uint32_t)capacity) < 0)
        return false;
    for (uint32_t i = 0; i < index->top; i++) { /* what was never used goes on costing nothing */
        if (index->items[i].is_taken)
            larger.items[i] = index->items[i];
    }
    larger.top = index->top;
    larger.count = index->count;
    mc_disk_index_free(index);
    *index = larger;
    return true;
}

void mc_disk_index_free(struct mc_disk_index *index)
{
    if (index->items != NULL)
        munmap(index->items, (size_t)index->capacity * sizeof(struct mc_disk_item));
    index->items = NULL;
}

bool mc_disk_index_take(struct mc_disk_index *index, uint32_t slot)
{
    if (slot >= index->capacity || index->items[slot].is_taken)
        return false;
    index->items[slot] = (struct mc_disk_item){.next = MC_DISK_NO_SLOT, .previous = MC_DISK_NO_SLOT, .is_taken = true};
    index->top = slot >= index->top ? slot + 1 : index->top;
    index->count++;
    return true;
}

void mc_disk_index_release(struct mc_disk_index *index, uint32_t slot)
{
    index->items[slot] = (struct mc_disk_item){.next = MC_DISK_NO_SLOT};
    index->count--;
}

struct mc_disk_item *mc_disk_index_find(struct mc_disk_index *index, uint32_t slot, uint64_t generation)
{
    if (slot >= index->top || generation == 0 || index->items[slot].entry.generation != generation)
        return NULL;
    return &index->items[slot];
}
