/* Where in a segment's memory the extents lie: a two-level segregated-fit allocator in units of MC_EXTENT_UNIT. Its
 * nodes live outside the memory that they describe (which is another process's); every node is one extent or one free
 * block, and its number is the slot of the segment's index.
 *
 * Invariants: the nodes in physical order tile [0, end) without gap or overlap; no two neighbours are both free; a free
 * block is in exactly the bin of its size; never more than node_limit nodes exist. Numbers that are given back are used
 * again first, so the index stays dense. Every operation is O(1), but that the first use of a hole after a rebuild
 * costs one chunk. */
#ifndef MC_CORE_SPACE_H
#define MC_CORE_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_NODE_NONE UINT32_MAX
#define MC_NODE_CHUNK 4096u             /* nodes that are allocated together */
#define MC_SPACE_UNITS_MAX (1ull << 39) /* 32 TiB of units of 64 bytes */
#define MC_SPACE_LEVELS 37u             /* sizes of up to 15 units, then one level for each power of two */
#define MC_SPACE_BINS 16u               /* of a level */
#define MC_SPACE_OWN_BIN_LOOKS 16u

enum mc_node_state {
    MC_NODE_UNUSED,     /* the number is not in use */
    MC_NODE_FREE,       /* a free block */
    MC_NODE_GRANTED,    /* a writer may be writing */
    MC_NODE_LIVE,       /* a replica */
    MC_NODE_CLEARING,   /* invisible; the owner has been or will be told to clear the slot */
    MC_NODE_QUARANTINE, /* a writer may still write; the owner has been or will be told to cut it off */
    MC_NODE_DEAD,       /* belongs to nobody, in a segment that is being swept */
    MC_NODE_MOVING,     /* its owner is to fill it from another segment of its own: see offload.h */
};

struct mc_node {
    /* of the space */
    uint64_t offset : 39; /* units, of the 2^39 that there can be */
    uint64_t state : 3;   /* enum mc_node_state */
    uint64_t generation_high : 8;
    uint64_t base : 8;             /* of the core: what the generation counts from */
    uint64_t listed : 1;           /* UNUSED: the number has been in use and is in the list of those given back; of the
                                      core, while LIVE or MOVING: a hint concerns it, see hint.h */
    uint64_t uses : 2, proven : 1; /* of the core, while LIVE and not pinned: see policy.h; of MOVING: see offload.c;
                                      proven of what cannot be read yet: see mc_object_replace */
    uint64_t ahead : 1;            /* of the core, while in a list: it is before the list's mark */
    uint64_t awaited : 1;          /* of the core, while LIVE: whoever had it loaded has not come for it yet */
    uint64_t size : 40;            /* units */
    uint64_t replica : 8;          /* of the core: generation - replica = version */
    uint64_t seen : 16; /* of the core: the inventory that this node was last met in; of CLEARING: flags; of MOVING: its
                           owner was told */
    /* of the core: object of GRANTED and LIVE, object whose key a CLEARING holds, writer of QUARANTINE */
    uint64_t pointer : 48;
    uint64_t replica_next_segment : 16; /* of the core; of CLEARING both halves are the writer that is cut off next */
    uint32_t physical_previous, physical_next; /* of the space; of a disk's node the two halves of its version */
    uint32_t list_previous, list_next;         /* of the space while FREE or UNUSED, else of the core */
    uint32_t replica_next_slot;                /* MC_NODE_NONE ends the chain */
    uint32_t generation_low;
};
_Static_assert(sizeof(struct mc_node) == 48, "one per object: counted in the bytes per object");

struct mc_space {
    struct mc_node **chunks;
    uint32_t node_limit; /* numbers below it are given out */
    uint32_t node_fresh; /* from here on none was ever used; a resize may leave it above the limit */
    /* After a rebuild or a resize: numbers of [reclaim, reclaim_end) that are not in use may be missing in the list of
     * those given back. A chunk of numbers none of which is in use is a hole: it has no memory, and joins the list when
     * it is needed. */
    uint32_t reclaim, reclaim_end;
    uint32_t hole_count, hole_top;  /* holes that are to join; those lie below chunk hole_top */
    uint32_t node_free;             /* first of the list of numbers given back */
    uint32_t node_count;            /* in use, free blocks included */
    bool is_bare;                   /* numbers alone: their places are another's business */
    uint32_t last;                  /* physically */
    uint64_t end, free;             /* units */
    uint64_t levels;                /* bit = level has a free block */
    uint16_t bins[MC_SPACE_LEVELS]; /* bit = bin has a free block */
    uint32_t heads[MC_SPACE_LEVELS][MC_SPACE_BINS];
};

/* False when memory is out. */
bool mc_space_init(struct mc_space *space, uint32_t node_limit);
void mc_space_destroy(struct mc_space *space);
/* Of numbers alone: from now on only those below the limit are given out; those that are in use stay. What is to be
 * given out again, or no more, is looked at by mc_space_reclaim. False when memory is out, nothing is changed then. */
bool mc_space_resize(struct mc_space *space, uint32_t node_limit);
/* Frees at most `count` chunks of nodes from the end; true when none are left. Nothing but destroy is allowed
 * afterwards. */
bool mc_space_destroy_slice(struct mc_space *space, size_t count);

/* Appends free units at the end. False when that needs a node and there is none (try again later). */
bool mc_space_grow(struct mc_space *space, uint64_t units);
/* The number of a node in state GRANTED, or MC_NODE_NONE. When nodes have run out it may be up to twice as large as
 * asked. */
uint32_t mc_space_allocate(struct mc_space *space, uint64_t units);
void mc_space_release(struct mc_space *space, uint32_t number);
/* Units of a free block; none is larger by more than a sixteenth. 0: nothing is free. */
uint64_t mc_space_largest(const struct mc_space *space);

/* ---- numbers alone, in a space that is_bare: no extents, each a node in state GRANTED until it is given back ---- */

/* MC_NODE_NONE when there is none left. */
uint32_t mc_space_number_take(struct mc_space *space);
void mc_space_number_give(struct mc_space *space, uint32_t number);

/* ---- rebuilding from extents whose numbers and places were chosen by another ---- */

/* The space must be new. Numbers below slot_top may be given to extents; false when it is above the limit. */
bool mc_space_rebuild_begin(struct mc_space *space, uint32_t slot_top);
enum mc_space_placed { MC_SPACE_PLACED, MC_SPACE_REFUSED, MC_SPACE_NO_MEMORY };
/* The next extent, in state GRANTED; each lies behind the one before it. What lies between becomes free, in a block
 * whose number is not below slot_top; or a part of the extent before it where there are no such numbers. REFUSED: the
 * extent overlaps another, lies beyond `limit` units or before the last one, or its number is in use or not below
 * slot_top. Extents may be released meanwhile, nothing may be allocated. */
enum mc_space_placed mc_space_rebuild_place(struct mc_space *space, uint32_t number, uint64_t offset, uint64_t units,
                                            uint64_t limit);
/* The same for a number alone; in any order. */
enum mc_space_placed mc_space_rebuild_number(struct mc_space *space, uint32_t number);
/* The end; afterwards mc_space_grow and all else is allowed. */
void mc_space_rebuild_end(struct mc_space *space);
/* Makes numbers below slot_top that are not in use available, looking at `count` of them; true when more are left. */
bool mc_space_reclaim(struct mc_space *space, uint32_t count);

static inline struct mc_node *mc_space_node(const struct mc_space *space, uint32_t number)
{
    return &space->chunks[number / MC_NODE_CHUNK][number % MC_NODE_CHUNK];
}
/* For numbers that a peer has sent: NULL when it was never in use. */
static inline struct mc_node *mc_space_node_checked(const struct mc_space *space, uint32_t number)
{
    return number < space->node_fresh ? mc_space_node(space, number) : NULL;
}

/* Walks everything and proves the invariants; for tests. NULL or what is wrong. */
const char *mc_space_check(const struct mc_space *space);

#endif
