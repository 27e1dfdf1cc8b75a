/* What a segment looks like in memory: shared by owner, reader and writer. docs/ordering.md, "Memory layout of
 * a segment". Invariant: only the owner's process writes header and slots; the generation of a slot and the floor never
 * fall. A writer's entry is written by that writer while it holds the lock on the entry's byte, else by the owner. */
#ifndef MC_SEGMENT_LAYOUT_H
#define MC_SEGMENT_LAYOUT_H

#include "base/bytes.h"
#include "mooncake.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What lends the space: memory, which peers read and write, or a disk, which its owner alone touches. */
enum mc_segment_kind { MC_SEGMENT_MEMORY = 0, MC_SEGMENT_DISK = 1 };

#define MC_EXTENT_UNIT 64u
#define MC_BLOCK_SHIFT_MIN 16u
#define MC_BLOCK_COUNT_MAX 16384u
/* Behind the capacity of the data memory: room for the largest block table and key, so that one object may be as large
 * as the segment. */
#define MC_EXTENT_SLACK (128u << 10)
#define MC_SLOT_BYTES_PER_OBJECT 2048u /* one slot for so many bytes of capacity */
#define MC_SLOT_COUNT_MIN 4096u

/* generation = (epoch << MC_EPOCH_SHIFT) + counter. Without an election the epoch is the time of the master's start in
 * hundredths of a second: nobody places 2^28 objects in that time, so the carry of a long life never reaches the epoch
 * of a later start. Who counts from an epoch and not from the clock (which may be late) leaves room for that carry. */
#define MC_EPOCH_SHIFT 28
/* Of the placements under one epoch: then its master begins again under a later one */
#define MC_COUNTER_END (1ull << 40)
#define MC_EPOCH_CARRY (MC_COUNTER_END >> MC_EPOCH_SHIFT) /* an epoch so much later has no generation in common */
/* No generation can hold a later one. */
#define MC_EPOCH_MAX ((1ull << (64 - MC_EPOCH_SHIFT)) - 2)
/* What a master says of itself: its generations must fit, too. */
static inline bool mc_epoch_can_be(uint64_t epoch)
{
    return epoch != 0 && epoch <= MC_EPOCH_MAX - MC_EPOCH_CARRY;
}

/* The number of a replica that was loaded from a disk: its version is that of its placement, of which no put knows. */
#define MC_REPLICA_LOADED MC_REPLICA_COUNT_MAX

enum mc_slot_state { MC_SLOT_EMPTY = 0, MC_SLOT_LIVE = 1 };

struct mc_slot {
    _Atomic uint64_t generation;  /* of the live replica; when EMPTY: everything up to it is refused */
    _Atomic uint32_t state;       /* enum mc_slot_state */
    uint32_t crc;                 /* CRC32C of the only block, or of the block table */
    uint64_t offset;              /* of the extent in the data memory, bytes, multiple of MC_EXTENT_UNIT */
    uint64_t length;              /* of the object, bytes */
    uint64_t hash_low, hash_high; /* XXH3-128 of the key */
    uint16_t key_length;
    uint8_t block_shift;
    uint8_t flags;   /* enum mc_put_flags, and more of pin.h: so that pins survive the master */
    uint8_t replica; /* generation - replica = version of the object, the same in all its replicas */
    uint8_t pin[3];  /* when its soft pin ends: pin.h */
    uint64_t group;  /* of the object, 0 = none: so that groups survive the master. Zero in slots of before it */
};
_Static_assert(sizeof(struct mc_slot) == 64, "a slot is one cache line");

/* The index memory: this page, then the slots. */
#define MC_INDEX_SLOTS_AT 4096u
#define MC_INDEX_MAGIC 0x58444e49454e4f4dull /* "MONEINDX" */
#define MC_INDEX_VERSION 2u /* of header, slots and the table of writers; another is neither mapped nor taken up */
#define MC_INDEX_VERSION_UNSAID 2u /* of owners whose hello does not say it */

struct mc_index_header {
    /* written once, before anybody else sees it; checksum over what is before it */
    uint64_t magic;
    uint32_t version, slot_count;
    struct mc_id boot; /* which run of which machine: memory of an earlier one is worth nothing */
    struct mc_id segment_id;
    uint64_t nonce, capacity, data_size;
    uint64_t checksum;
    /* change while it is used */
    _Atomic uint64_t epoch, floor; /* floor: nothing below it is taken or written any more; the epoch of the last mount
                                      << MC_EPOCH_SHIFT. epoch: whose the contents are; behind it while a master merges
                                      them */
    _Atomic uint64_t populated;    /* of the capacity */
    _Atomic uint64_t contact_ms;
    _Atomic uint64_t slot_top;      /* low half: one more than the highest slot ever used; high half: its complement */
    _Atomic uint64_t writer_top;    /* one more than the highest entry of the table of writers ever used */
    _Atomic uint64_t ages;          /* epoch ^ floor: what it must be if neither is damaged */
    _Atomic uint64_t cluster[2];    /* to which the contents belong. Zero in headers of before it: that is not known */
    _Atomic uint64_t cluster_check; /* MC_INDEX_MAGIC ^ both halves: else it was not written to its end */
    _Atomic uint64_t contact_at_ms; /* how old the master of that epoch was at contact_ms, as it said; 0: not known */
    _Atomic uint64_t
        contact_check; /* MC_INDEX_MAGIC ^ that ^ epoch ^ contact_ms: else it is of another contact, which an
                                       owner of before this field, or one that was killed, has written */
    _Atomic uint64_t proof_epoch, proof[4]; /* what a master has given for that epoch */
    _Atomic uint64_t proof_check;           /* MC_INDEX_MAGIC ^ all five: else it was not written to its end */
};
_Static_assert(sizeof(struct mc_index_header) <= MC_INDEX_SLOTS_AT, "the header is one page");

/* The owner's last answered heartbeat is at most so long ago; age_ms 0: any time. boot_ms: now, by the clock of the
 * boot. */
static inline bool mc_index_contact_within(const struct mc_index_header *header, uint32_t age_ms, uint64_t boot_ms)
{
    return age_ms == 0 || atomic_load(&header->contact_ms) + age_ms >= boot_ms;
}

/* The table of writers: who may be storing into which extent right now. Entry 0 is the owner's own process. */
#define MC_WRITERS_MAX 1024u
#define MC_WRITER_INTENTS 126u

struct mc_intent {
    _Atomic uint64_t generation; /* 0: nothing is being written */
    _Atomic uint64_t offset, length;
    _Atomic uint32_t slot;
    _Atomic uint32_t taken; /* by a thread of the writer */
};
struct mc_writer_entry {
    struct mc_id node;
    uint64_t incarnation;
    uint64_t reserved[5];
    struct mc_intent intents[MC_WRITER_INTENTS];
};
_Static_assert(sizeof(struct mc_writer_entry) == 4096, "a writer is 4 KiB");
#define MC_WRITERS_BYTES (MC_WRITERS_MAX * sizeof(struct mc_writer_entry))

static inline uint8_t mc_block_shift(uint64_t length)
{
    uint8_t shift = MC_BLOCK_SHIFT_MIN;
    while (((length + (1ull << shift) - 1) >> shift) > MC_BLOCK_COUNT_MAX)
        shift++;
    return shift;
}
static inline uint32_t mc_block_count(uint64_t length, uint8_t shift)
{
    return (uint32_t)((length + (1ull << shift) - 1) >> shift);
}
/* Bytes of the block table; 0 when the object has one block. */
static inline uint32_t mc_table_length(uint64_t length, uint8_t shift)
{
    uint32_t count = mc_block_count(length, shift);
    return count > 1 ? count * 4u : 0;
}
static inline uint64_t mc_table_offset(uint64_t length)
{
    return (length + 3) & ~3ull;
} /* in the extent */
static inline uint64_t mc_key_offset(uint64_t length)
{
    return mc_table_offset(length) + mc_table_length(length, mc_block_shift(length));
}
/* Bytes of the extent: what the master allocates. */
static inline uint64_t mc_extent_size(uint64_t length, size_t key_length)
{
    uint64_t size = mc_key_offset(length) + key_length;
    return (size + MC_EXTENT_UNIT - 1) & ~(uint64_t)(MC_EXTENT_UNIT - 1);
}
/* Slots of a segment of that capacity. */
static inline uint32_t mc_slot_count(uint64_t capacity)
{
    uint64_t count = capacity / MC_SLOT_BYTES_PER_OBJECT;
    if (count < MC_SLOT_COUNT_MIN)
        count = MC_SLOT_COUNT_MIN;
    return count > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)count;
}

#endif
