/* A table that forgets: see the header. An entry is 19 bits of the hash, 4 that say why, one that says that it was
 * proven, and 8 of its age; 0 = free. */
#include "store/core/ghost.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define AGE_BITS 8u
#define AGE_MASK ((1u << AGE_BITS) - 1)
#define PROVEN (1u << AGE_BITS)
#define WHY_SHIFT (AGE_BITS + 1)
#define WHY_MASK 15u
#define PRINT_SHIFT (WHY_SHIFT + 4)
_Static_assert(MC_GONE_COUNT <= WHY_MASK, "a reason has 4 bits");
/* Reasons from NEVER on are of no key that has gone: as they, evictions of what was unwanted are written. */
#define UNWANTED (MC_GONE_NEVER - MC_GONE_EVICTED)
_Static_assert(MC_GONE_EVICTED_QUOTA + UNWANTED < MC_GONE_COUNT, "there are as many");

/* The bucket is chosen by the lower bits of the hash, what is kept of it are the upper ones. */
static uint32_t print_of(uint64_t hash)
{
    uint32_t print = (uint32_t)(hash >> (64 - 32 + PRINT_SHIFT));
    return print == 0 ? 1 : print;
}

static uint32_t *bucket_of(const struct mc_ghosts *ghosts, uint64_t hash)
{
    uint64_t index = hash & (ghosts->bucket_count - 1);
    uint32_t *chunk = ghosts->chunks[index / MC_GHOST_CHUNK];
    return chunk == NULL ? NULL : chunk + index % MC_GHOST_CHUNK * MC_GHOST_ENTRIES;
}

static uint32_t age_of(const struct mc_ghosts *ghosts, uint32_t entry)
{
    return (ghosts->step - entry) & AGE_MASK;
}

/* Room for what is remembered of so many objects. Buckets do not fill evenly: in the fullest the oldest go a little
 * early. False when memory is out. */
static bool widen(struct mc_ghosts *ghosts, uint64_t objects, uint64_t hash)
{
    if (ghosts->chunks == NULL)
        ghosts->chunks = calloc(MC_GHOST_CHUNKS, sizeof(*ghosts->chunks));
    if (ghosts->chunks == NULL)
        return false;
    if (ghosts->bucket_count == 0)
        ghosts->bucket_count = 1;
    while (ghosts->bucket_count * MC_GHOST_ENTRIES < objects * MC_GHOST_STEPS / MC_GHOST_OBJECT_STEPS &&
           ghosts->bucket_count < (uint64_t)MC_GHOST_CHUNK * MC_GHOST_CHUNKS)
        ghosts->bucket_count *= 2;
    uint32_t **chunk = &ghosts->chunks[(hash & (ghosts->bucket_count - 1)) / MC_GHOST_CHUNK];
    size_t size = MC_GHOST_CHUNK * MC_GHOST_ENTRIES * sizeof(**chunk);
    if (*chunk == NULL && (*chunk = aligned_alloc(64, size)) != NULL)
        memset(*chunk, 0, size);
    return *chunk != NULL;
}

void mc_ghosts_destroy(struct mc_ghosts *ghosts)
{
    for (uint32_t i = 0; ghosts->chunks != NULL && i < MC_GHOST_CHUNKS; i++)
        free(ghosts->chunks[i]);
    free(ghosts->chunks);
}

/* Of what is counted of either kind, about as much is forgotten as of the keys. */
static void step(struct mc_ghosts *ghosts, uint64_t now_ms, uint64_t objects)
{
    ghosts->step++;
    ghosts->step_ms[ghosts->step] = now_ms;
    ghosts->until_step = objects / MC_GHOST_OBJECT_STEPS + 1;
    ghosts->fresh -= ghosts->fresh / (MC_GHOST_OBJECT_STEPS * 3 / 2);
    ghosts->proven -= ghosts->proven / (MC_GHOST_OBJECT_STEPS * 3 / 2);
}

void mc_ghosts_add(struct mc_ghosts *ghosts, uint64_t now_ms, uint64_t hash, struct mc_ghost ghost, uint64_t objects)
{
    bool is_evicted = mc_gone_is_evicted(ghost.why), is_choice = is_evicted && !ghost.is_unwanted;
    mc_assert(ghost.why < MC_GONE_NEVER && (is_evicted || !ghost.is_unwanted));
    if (!widen(ghosts, objects, hash))
        return;
    /* Where many go, and nothing comes instead, the first are not to be forgotten for how few are left. */
    if (!is_evicted && objects < ghosts->bucket_count * MC_GHOST_ENTRIES / 2)
        objects = ghosts->bucket_count * MC_GHOST_ENTRIES / 2;
    if (ghosts->until_step == 0)
        step(ghosts, now_ms, objects);
    ghosts->until_step--;
    ghosts->fresh += is_choice && !ghost.is_proven;
    ghosts->proven += is_choice && ghost.is_proven;
    uint32_t *bucket = bucket_of(ghosts, hash), print = print_of(hash), at = 0;
    for (uint32_t i = 0; i < MC_GHOST_ENTRIES; i++) {
        if (bucket[i] == 0 || bucket[i] >> PRINT_SHIFT == print) {
            at = i;
            break;
        }
        if (age_of(ghosts, bucket[i]) > age_of(ghosts, bucket[at]))
            at = i;
    }
    uint32_t why = ghost.why + (ghost.is_unwanted ? UNWANTED : 0);
    bucket[at] = print << PRINT_SHIFT | why << WHY_SHIFT | (ghost.is_proven ? PROVEN : 0) | ghosts->step;
}

static struct mc_ghost read_entry(const struct mc_ghosts *ghosts, uint64_t now_ms, uint32_t entry)
{
    bool is_last = age_of(ghosts, entry) == 0;
    uint32_t why = entry >> WHY_SHIFT & WHY_MASK;
    bool is_unwanted = why >= MC_GONE_NEVER;
    return (struct mc_ghost){.why = (enum mc_gone)(is_unwanted ? why - UNWANTED : why),
                             .is_unwanted = is_unwanted,
                             .is_proven = (entry & PROVEN) != 0,
                             .from_ms = ghosts->step_ms[entry & AGE_MASK],
                             .to_ms = is_last ? now_ms : ghosts->step_ms[(entry + 1) & AGE_MASK]};
}

struct mc_ghost mc_ghosts_find(const struct mc_ghosts *ghosts, uint64_t now_ms, uint64_t hash)
{
    const uint32_t *bucket = ghosts->bucket_count == 0 ? NULL : bucket_of(ghosts, hash);
    uint32_t print = print_of(hash);
    for (uint32_t i = 0; bucket != NULL && i < MC_GHOST_ENTRIES; i++)
        if (bucket[i] >> PRINT_SHIFT == print && age_of(ghosts, bucket[i]) <= MC_GHOST_STEPS)
            return read_entry(ghosts, now_ms, bucket[i]);
    return (struct mc_ghost){.why = MC_GONE_NONE};
}

uint64_t mc_ghosts_since_ms(const struct mc_ghosts *ghosts)
{
    return ghosts->step_ms[(ghosts->step - MC_GHOST_STEPS) & AGE_MASK]; /* 0 before there were so many */
}
