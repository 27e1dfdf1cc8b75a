/* What tests of whole engines share: memory of theirs, and peers that nobody has used for long. */
#ifndef MC_TESTS_ENGINES_H
#define MC_TESTS_ENGINES_H

#include "env/clock.h"
#include "transfer/peer/peer.h"
#include "transfer/state/engine.h"

#include <sys/mman.h>

#define MS_NS 1000000ull
#define SECOND_NS (1000 * MS_NS)

static inline uint8_t *memory_map(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static inline int add(struct mc_transfer_engine *engine, const void *memory, uint64_t size)
{
    return mc_transfer_register(engine, &(struct mc_transfer_range){(uintptr_t)memory, size}, 1);
}

/* Two engines, each with one memory of that size that is mapped once. */
static inline void pair_close(struct mc_transfer_engine *near, uint8_t *near_memory, struct mc_transfer_engine *far,
                              uint8_t *far_memory, size_t size)
{
    mc_transfer_close(near);
    mc_transfer_close(far);
    munmap(near_memory, size);
    munmap(far_memory, size);
}

/* Makes the engine's tidying thread see peers that were used so long ago. */
static inline void peers_age(struct mc_transfer_engine *engine, uint64_t unused_ms)
{
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < MC_PEER_BUCKETS; i++)
        for (struct mc_peer *peer = engine->peers[i]; peer != NULL; peer = peer->next)
            peer->used_ms = mc_clock_ms() - unused_ms;
    pthread_mutex_unlock(&engine->lock);
    for (uint32_t i = 0; i < 2 * MC_PEER_BUCKETS / 64; i++)
        mc_peers_tidy(engine);
}

#endif
