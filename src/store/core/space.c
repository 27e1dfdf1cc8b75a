/* Two-level segregated fit with external nodes. A request is rounded up to the next bin so that the head of any bin
 * that is found fits; only when no such bin has a block are a few blocks of the request's own bin looked at, so that an
 * exact fit is found too. */
#include "store/core/space.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define UNITS_MASK ((1ull << 40) - 1)
#define OFFSET_MASK ((1ull << 39) - 1)

/* Stands for every chunk none of whose numbers is in use: all UNUSED. Never written: numbers get into use by node_take
 * and rebuild_place only, which give the chunk memory first. */
static struct mc_node hole[MC_NODE_CHUNK];

struct bin {
    unsigned level, index;
};

static struct bin bin_of(uint64_t units)
{
    if (units < MC_SPACE_BINS)
        return (struct bin){0, (unsigned)units};
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    return (struct bin){top - 3, (unsigned)(units >> (top - 4)) & (MC_SPACE_BINS - 1)};
}

bool mc_space_init(struct mc_space *space, uint32_t node_limit)
{
    *space = (struct mc_space){.node_limit = node_limit, .node_free = MC_NODE_NONE, .last = MC_NODE_NONE};
    memset(space->heads, 0xff, sizeof(space->heads));
    space->chunks = calloc(((size_t)node_limit + MC_NODE_CHUNK - 1) / MC_NODE_CHUNK, sizeof(struct mc_node *));
    return space->chunks != NULL;
}

bool mc_space_destroy_slice(struct mc_space *space, size_t count)
{
    while (count-- > 0 && space->node_fresh > 0) {
        uint32_t chunk = (space->node_fresh - 1) / MC_NODE_CHUNK;
        if (space->chunks[chunk] != hole)
            free(space->chunks[chunk]);
        space->chunks[chunk] = NULL;
        space->node_fresh = chunk * MC_NODE_CHUNK;
    }
    return space->node_fresh == 0;
}

void mc_space_destroy(struct mc_space *space)
{
    if (space->chunks == NULL)
        return;
    (void)mc_space_destroy_slice(space, SIZE_MAX);
    free(space->chunks);
    space->chunks = NULL;
}

/* Memory for the chunk of that number. A limit that may rise ends in no short one. */
static bool chunk_make(struct mc_space *space, uint32_t number)
{
    struct mc_node **chunk = &space->chunks[number / MC_NODE_CHUNK];
    if (*chunk != NULL && *chunk != hole)
        return true;
    uint32_t left = space->is_bare ? MC_NODE_CHUNK : space->node_limit - number / MC_NODE_CHUNK * MC_NODE_CHUNK;
    struct mc_node *made = calloc(left < MC_NODE_CHUNK ? left : MC_NODE_CHUNK, sizeof(struct mc_node));
    if (made == NULL)
        return false;
    *chunk = made;
    return true;
}

static void list_number(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    node->state = MC_NODE_UNUSED;
    node->listed = 1;
    node->list_next = space->node_free;
    space->node_free = number;
}

/* In a bare space reclaiming comes by it yet: until then it is in no list, whatever its `listed` says. */
static bool is_pending(const struct mc_space *space, uint32_t number)
{
    return space->is_bare && number >= space->reclaim && number < space->reclaim_end;
}

/* The numbers of one hole join the list. */
static void hole_fill(struct mc_space *space)
{
    while (space->hole_count > 0 && space->hole_top > 0) {
        uint32_t chunk = --space->hole_top;
        if (space->chunks[chunk] != hole)
            continue;
        if (!chunk_make(space, chunk * MC_NODE_CHUNK)) {
            space->hole_top++;
            return;
        }
        space->hole_count--;
        uint32_t end = (chunk + 1) * MC_NODE_CHUNK;
        for (uint32_t number = end < space->node_limit ? end : space->node_limit; number > chunk * MC_NODE_CHUNK;
             number--)
            list_number(space, number - 1);
        return;
    }
}

static uint32_t node_take(struct mc_space *space)
{
    if (space->node_free == MC_NODE_NONE && space->hole_count > 0 && space->reclaim == space->reclaim_end)
        hole_fill(space);
    uint32_t number = space->node_free;
    if (number != MC_NODE_NONE) {
        struct mc_node *node = mc_space_node(space, number);
        space->node_free = node->list_next;
        node->listed = 0;
        space->node_count++;
        return number;
    }
    number = space->node_fresh;
    if (number >= space->node_limit || !chunk_make(space, number))
        return MC_NODE_NONE;
    space->node_fresh++;
    space->node_count++;
    return number;
}

static void node_give(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    node->state = MC_NODE_UNUSED;
    node->listed = is_pending(space, number);
    if (!node->listed && number < space->node_limit)
        list_number(space, number);
    space->node_count--;
}

static void bin_insert(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    struct bin bin = bin_of(node->size);
    uint32_t *head = &space->heads[bin.level][bin.index];
    node->state = MC_NODE_FREE;
    node->list_previous = MC_NODE_NONE;
    node->list_next = *head;
    if (*head != MC_NODE_NONE)
        mc_space_node(space, *head)->list_previous = number;
    *head = number;
    space->bins[bin.level] = (uint16_t)(space->bins[bin.level] | 1u << bin.index);
    space->levels |= 1ull << bin.level;
}

static void bin_remove(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    struct bin bin = bin_of(node->size);
    if (node->list_next != MC_NODE_NONE)
        mc_space_node(space, node->list_next)->list_previous = node->list_previous;
    if (node->list_previous != MC_NODE_NONE) {
        mc_space_node(space, node->list_previous)->list_next = node->list_next;
        return;
    }
    space->heads[bin.level][bin.index] = node->list_next;
    if (node->list_next != MC_NODE_NONE)
        return;
    space->bins[bin.level] = (uint16_t)(space->bins[bin.level] & ~(1u << bin.index));
    if (space->bins[bin.level] == 0)
        space->levels &= ~(1ull << bin.level);
}

bool mc_space_grow(struct mc_space *space, uint64_t units)
{
    mc_assert(units <= MC_SPACE_UNITS_MAX && space->end + units <= MC_SPACE_UNITS_MAX);
    if (units == 0)
        return true;
    struct mc_node *last = space->last == MC_NODE_NONE ? NULL : mc_space_node(space, space->last);
    if (last != NULL && last->state == MC_NODE_FREE) {
        bin_remove(space, space->last);
        last->size = (last->size + units) & UNITS_MASK;
        bin_insert(space, space->last);
    } else {
        uint32_t number = node_take(space);
        if (number == MC_NODE_NONE)
            return false;
        struct mc_node *node = mc_space_node(space, number);
        node->offset = space->end & OFFSET_MASK;
        node->size = units & UNITS_MASK;
        node->physical_previous = space->last;
        node->physical_next = MC_NODE_NONE;
        if (last != NULL)
            last->physical_next = number;
        space->last = number;
        bin_insert(space, number);
    }
    space->end += units;
    space->free += units;
    return true;
}

static uint32_t find_in_own_bin(const struct mc_space *space, uint64_t units)
{
    struct bin own = bin_of(units);
    uint32_t number = space->heads[own.level][own.index];
    for (unsigned look = 0; look < MC_SPACE_OWN_BIN_LOOKS && number != MC_NODE_NONE; look++) {
        const struct mc_node *node = mc_space_node(space, number);
        if (node->size >= units)
            return number;
        number = node->list_next;
    }
    return MC_NODE_NONE;
}

/* A free block of at least `units`, or MC_NODE_NONE. */
static uint32_t free_block_find(const struct mc_space *space, uint64_t units)
{
    uint64_t rounded = units;
    if (units >= MC_SPACE_BINS)
        rounded += (1ull << (63 - __builtin_clzll(units) - 4)) - 1;
    struct bin bin = bin_of(rounded);
    unsigned in_level = space->bins[bin.level] & (UINT32_MAX << bin.index);
    if (in_level != 0)
        return space->heads[bin.level][__builtin_ctz(in_level)];
    uint64_t above = space->levels & (UINT64_MAX << bin.level << 1);
    if (above != 0) {
        unsigned level = (unsigned)__builtin_ctzll(above);
        return space->heads[level][__builtin_ctz(space->bins[level])];
    }
    return find_in_own_bin(space, units);
}

uint32_t mc_space_allocate(struct mc_space *space, uint64_t units)
{
    if (units == 0 || units > space->free)
        return MC_NODE_NONE;
    uint32_t block = free_block_find(space, units);
    if (block == MC_NODE_NONE)
        return MC_NODE_NONE;
    struct mc_node *from = mc_space_node(space, block);
    uint64_t rest = from->size - units;
    uint32_t number = rest == 0 ? MC_NODE_NONE : node_take(space);
    if (number == MC_NODE_NONE) {
        if (rest > units) { /* no node for the rest, and too much to waste */
            block = find_in_own_bin(space, units);
            if (block == MC_NODE_NONE)
                return MC_NODE_NONE;
            from = mc_space_node(space, block);
        }
        bin_remove(space, block);
        from->state = MC_NODE_GRANTED;
        space->free -= from->size;
        return block;
    }
    bin_remove(space, block);
    struct mc_node *node = mc_space_node(space, number);
    node->offset = from->offset;
    node->size = units & UNITS_MASK;
    node->state = MC_NODE_GRANTED;
    node->physical_previous = from->physical_previous;
    node->physical_next = block;
    if (from->physical_previous != MC_NODE_NONE)
        mc_space_node(space, from->physical_previous)->physical_next = number;
    from->physical_previous = number;
    from->offset = (from->offset + units) & OFFSET_MASK;
    from->size = rest & UNITS_MASK;
    bin_insert(space, block);
    space->free -= units;
    return number;
}

/* Joins `number` with its physical successor, whose node is given back. */
static void absorb_next(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    uint32_t gone = node->physical_next;
    const struct mc_node *next = mc_space_node(space, gone);
    node->size = (node->size + next->size) & UNITS_MASK;
    node->physical_next = next->physical_next;
    if (next->physical_next != MC_NODE_NONE)
        mc_space_node(space, next->physical_next)->physical_previous = number;
    else
        space->last = number;
    node_give(space, gone);
}

uint64_t mc_space_largest(const struct mc_space *space)
{
    if (space->levels == 0)
        return 0;
    unsigned level = 63u - (unsigned)__builtin_clzll(space->levels);
    unsigned bin = 31u - (unsigned)__builtin_clz(space->bins[level]);
    return mc_space_node(space, space->heads[level][bin])->size;
}

void mc_space_release(struct mc_space *space, uint32_t number)
{
    struct mc_node *node = mc_space_node(space, number);
    mc_assert(node->state != MC_NODE_FREE && node->state != MC_NODE_UNUSED);
    space->free += node->size;
    if (node->physical_next != MC_NODE_NONE && mc_space_node(space, node->physical_next)->state == MC_NODE_FREE) {
        bin_remove(space, node->physical_next);
        absorb_next(space, number);
    }
    uint32_t previous = node->physical_previous;
    if (previous != MC_NODE_NONE && mc_space_node(space, previous)->state == MC_NODE_FREE) {
        bin_remove(space, previous);
        absorb_next(space, previous);
        number = previous;
    }
    bin_insert(space, number);
}

/* ---- numbers alone ---- */

/* From the first number on: those below reclaim_end that are not in use join the list. */
static void reclaim_begin(struct mc_space *space)
{
    uint32_t end = space->reclaim_end < space->node_limit ? space->reclaim_end : space->node_limit;
    space->reclaim = space->hole_count = 0;
    space->hole_top = (end + MC_NODE_CHUNK - 1) / MC_NODE_CHUNK;
}

bool mc_space_resize(struct mc_space *space, uint32_t node_limit)
{
    mc_assert(space->is_bare);
    uint32_t before_limit = space->node_limit, fresh = space->node_fresh;
    size_t before = ((size_t)(before_limit > fresh ? before_limit : fresh) + MC_NODE_CHUNK - 1) / MC_NODE_CHUNK;
    size_t after = ((size_t)node_limit + MC_NODE_CHUNK - 1) / MC_NODE_CHUNK;
    if (after > before) {
        struct mc_node **chunks = realloc(space->chunks, after * sizeof(*chunks));
        if (chunks == NULL)
            return false;
        memset(chunks + before, 0, (after - before) * sizeof(*chunks));
        space->chunks = chunks;
    }
    space->node_limit = node_limit;
    if (node_limit != before_limit &&
        (node_limit < fresh || before_limit < fresh)) { /* some are given out no more, or again */
        space->node_free = MC_NODE_NONE;
        space->reclaim_end = fresh;
        reclaim_begin(space);
    }
    return true;
}

uint32_t mc_space_number_take(struct mc_space *space)
{
    mc_assert(space->is_bare);
    uint32_t number = node_take(space);
    if (number != MC_NODE_NONE)
        mc_space_node(space, number)->state = MC_NODE_GRANTED;
    return number;
}

void mc_space_number_give(struct mc_space *space, uint32_t number)
{
    mc_assert(space->is_bare && mc_space_node(space, number)->state != MC_NODE_UNUSED);
    node_give(space, number);
}

/* ---- rebuilding ---- */

bool mc_space_rebuild_begin(struct mc_space *space, uint32_t slot_top)
{
    mc_assert(space->node_fresh == 0 && space->end == 0);
    if (slot_top > space->node_limit)
        return false;
    for (uint32_t chunk = 0; chunk < slot_top / MC_NODE_CHUNK; chunk++)
        space->chunks[chunk] = hole;
    if (slot_top % MC_NODE_CHUNK != 0 && !chunk_make(space, slot_top)) /* fresh numbers share it: it is no hole */
        return false;
    space->node_fresh = space->reclaim_end = slot_top;
    return true;
}

/* The units before `offset` that nothing was said of are free. */
static bool rebuild_gap(struct mc_space *space, uint64_t offset)
{
    uint64_t units = offset - space->end;
    if (mc_space_grow(space, units))
        return true;
    if (space->last == MC_NODE_NONE)
        return false;
    struct mc_node *last = mc_space_node(space, space->last);
    last->size = (last->size + units) & UNITS_MASK;
    space->end += units;
    return true;
}

/* Nobody has the number, and whoever rebuilds may say who has it. */
static bool may_claim(const struct mc_space *space, uint32_t number)
{
    if (number >= space->reclaim_end)
        return false;
    const struct mc_node *there = mc_space_node(space, number);
    return there->state == MC_NODE_UNUSED && !there->listed;
}

enum mc_space_placed mc_space_rebuild_number(struct mc_space *space, uint32_t number)
{
    mc_assert(space->is_bare);
    if (!may_claim(space, number))
        return MC_SPACE_REFUSED;
    if (!chunk_make(space, number))
        return MC_SPACE_NO_MEMORY;
    mc_space_node(space, number)->state = MC_NODE_GRANTED;
    space->node_count++;
    return MC_SPACE_PLACED;
}

enum mc_space_placed mc_space_rebuild_place(struct mc_space *space, uint32_t number, uint64_t offset, uint64_t units,
                                            uint64_t limit)
{
    if (units == 0 || limit > MC_SPACE_UNITS_MAX || units > limit || offset > limit - units || offset < space->end ||
        !may_claim(space, number))
        return MC_SPACE_REFUSED;
    if (!chunk_make(space, number) || !rebuild_gap(space, offset))
        return MC_SPACE_NO_MEMORY;
    struct mc_node *node = mc_space_node(space, number);
    node->offset = offset & OFFSET_MASK;
    node->size = units & UNITS_MASK;
    node->state = MC_NODE_GRANTED;
    node->physical_previous = space->last;
    node->physical_next = MC_NODE_NONE;
    if (space->last != MC_NODE_NONE)
        mc_space_node(space, space->last)->physical_next = number;
    space->last = number;
    space->end += units;
    space->node_count++;
    return MC_SPACE_PLACED;
}

void mc_space_rebuild_end(struct mc_space *space)
{
    reclaim_begin(space);
}

bool mc_space_reclaim(struct mc_space *space, uint32_t count)
{
    while (space->reclaim < space->reclaim_end && count > 0) {
        uint32_t number = space->reclaim, chunk = number / MC_NODE_CHUNK;
        count--;
        if (space->chunks[chunk] == hole) {
            space->hole_count += number < space->node_limit; /* and stays one until the end of the reclaiming */
            space->reclaim = (chunk + 1) * MC_NODE_CHUNK;
            continue;
        }
        struct mc_node *node = mc_space_node(space, number);
        if (node->state == MC_NODE_UNUSED && number >= space->node_limit)
            node->listed = 0;
        else if (node->state == MC_NODE_UNUSED && (space->is_bare || !node->listed))
            list_number(space, number);
        space->reclaim++;
    }
    return space->reclaim < space->reclaim_end;
}

static const char *check_bins(const struct mc_space *space, uint32_t *free_blocks)
{
    for (unsigned level = 0; level < MC_SPACE_LEVELS; level++) {
        if (((space->levels >> level & 1) != 0) != (space->bins[level] != 0))
            return "level bit";
        for (unsigned index = 0; index < MC_SPACE_BINS; index++) {
            uint32_t number = space->heads[level][index], previous = MC_NODE_NONE;
            if (((space->bins[level] >> index & 1) != 0) != (number != MC_NODE_NONE))
                return "bin bit";
            for (; number != MC_NODE_NONE; number = mc_space_node(space, number)->list_next) {
                const struct mc_node *node = mc_space_node(space, number);
                struct bin bin = bin_of(node->size);
                if (node->state != MC_NODE_FREE || bin.level != level || bin.index != index)
                    return "block in the wrong bin";
                if (node->list_previous != previous || ++*free_blocks > space->node_count)
                    return "bin links";
                previous = number;
            }
        }
    }
    return NULL;
}

/* In a bare space nothing tells but the nodes themselves how many are in use. */
static uint32_t numbers_used(const struct mc_space *space)
{
    uint32_t count = 0;
    for (uint32_t number = 0; space->is_bare && number < space->node_fresh; number++)
        count += mc_space_node(space, number)->state != MC_NODE_UNUSED;
    return count;
}

const char *mc_space_check(const struct mc_space *space)
{
    uint64_t end = space->end, free_units = 0;
    uint32_t count = numbers_used(space), free_blocks = 0, binned = 0, after = MC_NODE_NONE;
    bool after_free = false;
    for (uint32_t number = space->last; number != MC_NODE_NONE;
         number = mc_space_node(space, number)->physical_previous) {
        const struct mc_node *node = mc_space_node(space, number);
        bool is_free = node->state == MC_NODE_FREE;
        if (++count > space->node_count || node->state == MC_NODE_UNUSED)
            return "more nodes than counted";
        if (node->physical_next != after || node->size == 0 || node->offset + node->size != end)
            return "physical order";
        if (is_free && after_free)
            return "two free neighbours";
        if (is_free) {
            free_units += node->size;
            free_blocks++;
        }
        end = node->offset;
        after = number;
        after_free = is_free;
    }
    if (end != 0 || count != space->node_count || free_units != space->free)
        return "sums";
    uint32_t unused = 0;
    for (uint32_t number = space->node_free; number != MC_NODE_NONE; number = mc_space_node(space, number)->list_next)
        if (mc_space_node(space, number)->state != MC_NODE_UNUSED || number >= space->node_limit ||
            is_pending(space, number) || ++unused > space->node_fresh)
            return "free numbers";
    /* In no list: to be reclaimed, or at or above the limit. */
    for (uint32_t number = space->reclaim_end; number > 0;) {
        const struct mc_node *node = mc_space_node(space, --number);
        bool in_hole = space->chunks[number / MC_NODE_CHUNK] == hole;
        if (node->state != MC_NODE_UNUSED || (node->listed && !is_pending(space, number)))
            continue;
        if (number < space->reclaim && number < space->node_limit && !in_hole)
            return "a number was not reclaimed";
        unused++;
    }
    if (unused + count != space->node_fresh || (!space->is_bare && space->node_fresh > space->node_limit))
        return "a number was lost";
    const char *wrong = check_bins(space, &binned);
    return wrong != NULL ? wrong : binned != free_blocks ? "a free block in no bin" : NULL;
}
