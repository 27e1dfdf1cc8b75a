/* What is live: an array of items by slot, each in the list of its region. Slots never used cost no memory. */
#ifndef MC_DISK_INDEX_H
#define MC_DISK_INDEX_H

#include "store/disk/format.h"

#define MC_DISK_NO_SLOT UINT32_MAX

struct mc_disk_item {
    struct mc_disk_entry entry; /* generation 0: the slot is free, or its bytes are being written */
    uint32_t region, page;
    uint32_t next, previous; /* in its region */
    bool is_taken;           /* it is live, or its bytes are being written */
    bool was_hit;            /* since it was written */
    bool is_copy;            /* an older copy of it may lie in an older region */
    bool is_moving;          /* it is being written once more */
    bool has_later;          /* of such a try something may lie in a later region */
};
_Static_assert(sizeof(struct mc_disk_item) <= 80, "what an object costs in memory");

struct mc_disk_index {
    struct mc_disk_item *items;
    uint32_t capacity, top, count; /* top: no slot from it on was ever taken; count: taken */
};

/* 0 or MC_ERR_NO_MEMORY. */
int mc_disk_index_init(struct mc_disk_index *index, uint32_t capacity);
/* Room for that slot, with twice as much at a time. Items move. False when memory is out. */
bool mc_disk_index_grow(struct mc_disk_index *index, uint32_t slot);
void mc_disk_index_free(struct mc_disk_index *index);
/* False: somebody has it, or there is no such slot. */
bool mc_disk_index_take(struct mc_disk_index *index, uint32_t slot);
void mc_disk_index_release(struct mc_disk_index *index, uint32_t slot);
/* The item, if the slot holds that generation; else NULL. */
struct mc_disk_item *mc_disk_index_find(struct mc_disk_index *index, uint32_t slot, uint64_t generation);

#endif
