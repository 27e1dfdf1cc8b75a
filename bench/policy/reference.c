/* Two policies by themselves, without a core. */
#include "policy/reference.h"

#include <stdbool.h>
#include <stdlib.h>

#define NEVER UINT32_MAX

/* ---- Belady ---- */

struct future {
    uint32_t next, block; /* next: the reference at which it is used again */
};

struct heap { /* what is used last comes first; some are of what is no longer kept */
    struct future *items;
    uint32_t count;
};

static void heap_push(struct heap *heap, struct future item)
{
    uint32_t at = heap->count++;
    for (; at > 0 && heap->items[(at - 1) / 2].next < item.next; at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

static struct future heap_pop(struct heap *heap)
{
    struct future top = heap->items[0], last = heap->items[--heap->count];
    uint32_t at = 0;
    for (uint32_t child = 1; child < heap->count; child = at * 2 + 1) {
        child += child + 1 < heap->count && heap->items[child + 1].next > heap->items[child].next;
        if (heap->items[child].next <= last.next)
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

/* next[i]: where the block of reference i is used again. kept: by block, as it is left to be used for now. */
static void look_ahead(const struct mc_references *references, uint32_t *next, uint32_t *kept)
{
    for (uint32_t block = 0; block < references->block_count; block++)
        kept[block] = NEVER;
    for (uint32_t i = references->count; i-- > 0;) {
        next[i] = kept[references->blocks[i]];
        kept[references->blocks[i]] = i;
    }
    for (uint32_t block = 0; block < references->block_count; block++)
        kept[block] = NEVER;
}

int64_t mc_reference_belady(const struct mc_references *references, uint32_t capacity)
{
    uint32_t *next = calloc(references->count + 1u, sizeof(*next)), used = 0;
    uint32_t *kept = calloc(references->block_count + 1u, sizeof(*kept)); /* until when; NEVER = it is not kept */
    struct heap heap = {.items = calloc(references->count + 1u, sizeof(*heap.items))};
    int64_t hits = next != NULL && kept != NULL && heap.items != NULL ? 0 : -1;
    if (hits == 0)
        look_ahead(references, next, kept);
    for (uint32_t i = 0; hits >= 0 && i < references->count; i++) {
        uint32_t block = references->blocks[i];
        hits += kept[block] != NEVER;
        used -= kept[block] != NEVER;
        kept[block] = next[i];
        if (next[i] == NEVER)
            continue;
        used++;
        heap_push(&heap, (struct future){next[i], block});
        while (used > capacity) {
            struct future last = heap_pop(&heap);
            if (kept[last.block] != last.next)
                continue;
            kept[last.block] = NEVER;
            used--;
        }
    }
    free(heap.items);
    free(kept);
    free(next);
    return hits;
}

/* ---- the original ---- */

struct ring { /* by block; the place behind the last block is both ends */
    uint32_t *previous, *next;
    uint32_t end, used;
};

static void ring_remove(struct ring *ring, uint32_t block)
{
    ring->next[ring->previous[block]] = ring->next[block];
    ring->previous[ring->next[block]] = ring->previous[block];
    ring->next[block] = NEVER;
    ring->used--;
}

static void ring_append(struct ring *ring, uint32_t block)
{
    ring->previous[block] = ring->previous[ring->end];
    ring->next[block] = ring->end;
    ring->next[ring->previous[block]] = block;
    ring->previous[ring->end] = block;
    ring->used++;
}

static void evict_batch(struct ring *ring, uint32_t capacity)
{
    double high = 0.90, ratio = 0.05, used = (double)ring->used / capacity;
    if (used <= high)
        return;
    double target = used - high + ratio; /* at least ratio */
    for (uint32_t left = (uint32_t)(target * ring->used) + 1; left > 0 && ring->used > 0; left--)
        ring_remove(ring, ring->next[ring->end]);
}

int64_t mc_reference_original(const struct mc_references *references, uint32_t capacity)
{
    struct ring ring = {.previous = calloc(references->block_count + 1u, sizeof(uint32_t)),
                        .next = calloc(references->block_count + 1u, sizeof(uint32_t)),
                        .end = references->block_count};
    int64_t hits = ring.previous != NULL && ring.next != NULL ? 0 : -1;
    for (uint32_t block = 0; hits == 0 && block < references->block_count; block++)
        ring.next[block] = NEVER;
    if (hits == 0)
        ring.next[ring.end] = ring.previous[ring.end] = ring.end;
    for (uint32_t i = 0; hits >= 0 && i < references->count; i++) {
        uint32_t block = references->blocks[i];
        evict_batch(&ring, capacity);
        bool hit = ring.next[block] != NEVER;
        hits += hit;
        if (hit)
            ring_remove(&ring, block);
        if (ring.used < capacity)
            ring_append(&ring, block);
    }
    free(ring.previous);
    free(ring.next);
    return hits;
}
