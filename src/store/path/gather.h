/* The caller's parts as one stream, and copies between them and an extent in mapped memory with the CRC32C of each
 * block. Invariant: a read returns 0 only when the slot was live with the wanted generation before and after the copy
 * and (unless that is switched off) every byte in the parts was covered by a block checksum that the slot vouches for.
 */
#ifndef MC_PATH_GATHER_H
#define MC_PATH_GATHER_H

#include "base/checksum.h"
#include "store/segment/memory.h"
#include "env/crew.h"
#include "store/path/transport.h"

#define MC_LOOK_BYTES (1u << 20)                   /* a copy looks at the clock so often */
#define MC_TICK_NS 50000000ull                     /* run->tick at least twice within its 100 ms */
#define MC_STREAM_BYTES (64u << 10)                /* copies of at least so much go past the caches */
#define MC_SCRATCH_BYTES (MC_BLOCK_COUNT_MAX * 4u) /* the longest block table; unwanted ends of blocks */

struct mc_cursor { /* a place in the caller's parts */
    const struct iovec *parts;
    size_t count, index, offset;
};
static inline struct mc_cursor mc_cursor(const struct iovec *parts, size_t count)
{
    return (struct mc_cursor){parts, count, 0, 0};
}
/* The bytes at the cursor that lie together, at most `want`, and moves over them. *length is 0 only at the end. */
uint8_t *mc_cursor_take(struct mc_cursor *cursor, uint64_t want, size_t *length);
void mc_cursor_skip(struct mc_cursor *cursor, uint64_t length);
/* The next bytes of a WRITE, wherever they come from. */
static inline const uint8_t *mc_cursor_read(struct mc_cursor *cursor, const struct mc_transfer *transfer, uint64_t want,
                                            size_t *length)
{
    return transfer->source == NULL ? mc_cursor_take(cursor, want, length)
                                    : transfer->source->take(transfer->source, want, length);
}
/* Did its source fail? Then nothing of it may be committed. */
static inline int mc_source_result(const struct mc_transfer *transfer)
{
    return transfer->source == NULL ? 0 : transfer->source->result;
}

/* Two areas of MC_SCRATCH_BYTES and a buffer for frames, of the calling thread. NULL: out of memory. */
struct mc_scratch {
    uint8_t *first, *second;
    struct mc_buffer out;
};
struct mc_scratch *mc_scratch_get(void);

/* Can this transfer be run at all on such a segment? 0 or MC_ERR_INVALID_PARAMS. */
int mc_transfer_check(const struct mc_transfer *transfer, uint64_t data_size, uint32_t slot_count);

struct mc_motion { /* one mc_path_run */
    const struct mc_run *run;
    uint64_t next_tick_ns;
    uint64_t unseen; /* bytes since the last look at the clock */
    bool verify;
    struct mc_crew *crew; /* who helps with large copies; NULL: nobody */
    /* Called with each look at the clock: what goes on beside the copies (rdma_flow.c). NULL: nothing. */
    void (*meanwhile)(void *context);
    void *meanwhile_context;
};
void mc_motion_start(struct mc_motion *motion, const struct mc_run *run, bool verify);
/* Looks at the clock. 0 or MC_ERR_RPC_TIMEOUT. */
int mc_motion_look(struct mc_motion *motion);
/* So many bytes were moved; looks at the clock now and then. */
static inline int mc_motion_moved(struct mc_motion *motion, uint64_t bytes)
{
    motion->unseen += bytes;
    return motion->unseen < MC_LOOK_BYTES ? 0 : mc_motion_look(motion);
}

/* How many transfers, from the first on, are moved at a time: as many as several threads share, or one. */
#define MC_WINDOW_MAX 64u
#define MC_WINDOW_BYTES (16u << 20)
size_t mc_motion_window(const struct mc_motion *motion, struct mc_transfer *const *transfers, size_t count);
/* Calls move(context, i, ...) for each of them whose result is 0, which becomes what it returns; from several threads
 * at once if that is worth it. Behind one that was too late all others are, too: *late. */
void mc_motion_move(struct mc_motion *motion, struct mc_transfer **transfers, size_t count, int *late,
                    int (*move)(void *context, size_t index, struct mc_motion *motion), void *context);

/* Copies an object (or a range) out of mapped memory. The result for transfer->result. */
int mc_memory_read(const struct mc_slot *slots, const uint8_t *data, uint64_t data_size,
                   const struct mc_transfer *transfer, struct mc_motion *motion);
/* Copies [start, end) of an object to the cursor from an extent whose parts lie apart: data: where the object's first
 * byte would lie (only the blocks that are touched are read); table: its block table, if it has one. */
int mc_extent_read(const struct mc_slot *slot, const uint8_t *data, const uint8_t *table, uint64_t start, uint64_t end,
                   struct mc_cursor *cursor, struct mc_motion *motion);
/* The same of bytes that are in the parts already: nothing is copied. Of whole blocks, but for the object's last.
 * source: of these bytes, where the parts cannot be read; NULL: they can. */
int mc_extent_check(const struct mc_slot *slot, const uint8_t *table, uint64_t start, uint64_t end,
                    struct mc_cursor *cursor, struct mc_source *source, struct mc_motion *motion);
/* Copies an object with block table and key into its extent and fills *commit. 0, MC_ERR_RPC_TIMEOUT,
 * or what its source says. */
int mc_memory_write(uint8_t *data, const struct mc_transfer *transfer, struct mc_motion *motion,
                    struct mc_wire_commit_item *commit);
/* The same of an object in pieces, for who has no mapped extent: [from, to) of it, from the beginning of a block on, to
 * the end of one, or of the object. The pieces come in their order, each with a cursor at its first byte. The sum of
 * each block is put at its place in sums, which has room for MC_BLOCK_COUNT_MAX. target: where the object's first byte
 * would lie; NULL: only the sums are taken. */
int mc_extent_write_blocks(const struct mc_transfer *transfer, uint8_t *target, uint64_t from, uint64_t to,
                           struct mc_cursor *cursor, struct mc_motion *motion, uint32_t *sums);
/* Behind all of them: what lies behind the object in its extent, table and key, is put at `behind`. 0, or what its
 * source says. */
int mc_extent_write_end(uint8_t *behind, const struct mc_transfer *transfer, const uint32_t *sums,
                        struct mc_wire_commit_item *commit);
void mc_commit_fill(struct mc_wire_commit_item *commit, const struct mc_transfer *transfer, uint32_t crc);

#endif
