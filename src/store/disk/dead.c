/* Tables of recovery. */
#include "store/disk/dead.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 1024u

static uint64_t place_of(uint64_t generation, uint64_t capacity)
{
    return (generation * 0x9e3779b97f4a7c15ull >> 20) & (capacity - 1);
}

static void dead_put(struct mc_disk_dead *dead, uint64_t generation)
{
    uint64_t at = place_of(generation, dead->capacity);
    while (dead->generations[at] != 0 && dead->generations[at] != generation)
        at = (at + 1) & (dead->capacity - 1);
    dead->count += dead->generations[at] == 0 ? 1 : 0;
    dead->generations[at] = generation;
}

int mc_disk_dead_add(struct mc_disk_dead *dead, uint64_t generation)
{
    if (dead->count * 2 >= dead->capacity) {
        struct mc_disk_dead larger = {.capacity = dead->capacity == 0 ? CAPACITY_MIN : dead->capacity * 2};
        larger.generations = calloc(larger.capacity, sizeof(*larger.generations));
        if (larger.generations == NULL)
            return MC_ERR_NO_MEMORY;
        for (uint64_t i = 0; i < dead->capacity; i++) {
            if (dead->generations[i] != 0)
                dead_put(&larger, dead->generations[i]);
        }
        free(dead->generations);
        *dead = larger;
    }
    dead_put(dead, generation);
    return 0;
}

bool mc_disk_dead_has(const struct mc_disk_dead *dead, uint64_t generation)
{
    if (dead->capacity == 0)
        return false;
    uint64_t at = place_of(generation, dead->capacity);
    while (dead->generations[at] != 0 && dead->generations[at] != generation)
        at = (at + 1) & (dead->capacity - 1);
    return dead->generations[at] == generation;
}

void mc_disk_dead_free(struct mc_disk_dead *dead)
{
    free(dead->generations);
    *dead = (struct mc_disk_dead){0};
}
