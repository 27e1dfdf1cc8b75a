/* First fit over a map of bits: what is used again and again stays small, whatever all of it is. */
#include "store/disk/buffers.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

int mc_disk_buffers_init(struct mc_disk_buffers *buffers, uint64_t bytes)
{
    *buffers = (struct mc_disk_buffers){.units = (uint32_t)(bytes / MC_DISK_BUFFER_UNIT)};
    buffers->taken = calloc(buffers->units / 64 + 1, sizeof(*buffers->taken));
    buffers->lengths = calloc(buffers->units + 1, sizeof(*buffers->lengths));
    void *base = mmap(NULL, (size_t)buffers->units * MC_DISK_BUFFER_UNIT, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || buffers->taken == NULL || buffers->lengths == NULL)
        goto fail;
    buffers->base = base;
    pthread_mutex_init(&buffers->lock, NULL);
    return 0;
fail:
    if (base != MAP_FAILED)
        munmap(base, (size_t)buffers->units * MC_DISK_BUFFER_UNIT);
    free(buffers->lengths);
    free(buffers->taken);
    *buffers = (struct mc_disk_buffers){0};
    return MC_ERR_NO_MEMORY;
}

void mc_disk_buffers_free(struct mc_disk_buffers *buffers)
{
    if (buffers->base == NULL)
        return;
    pthread_mutex_destroy(&buffers->lock);
    munmap(buffers->base, (size_t)buffers->units * MC_DISK_BUFFER_UNIT);
    free(buffers->lengths);
    free(buffers->taken);
    *buffers = (struct mc_disk_buffers){0};
}

static bool is_taken(const struct mc_disk_buffers *buffers, uint32_t unit)
{
    return (buffers->taken[unit / 64] >> (unit % 64) & 1) != 0;
}

static void units_mark(struct mc_disk_buffers *buffers, uint32_t first, uint32_t count, bool taken)
{
    for (uint32_t unit = first; unit < first + count; unit++) {
        uint64_t bit = 1ull << (unit % 64);
        buffers->taken[unit / 64] = taken ? buffers->taken[unit / 64] | bit : buffers->taken[unit / 64] & ~bit;
    }
}

/* The first of `count` free ones in [from, to); UINT32_MAX: there are none. Steps over whole pieces that are lent. */
static uint32_t units_find(const struct mc_disk_buffers *buffers, uint32_t from, uint32_t to, uint32_t count)
{
    uint32_t run = 0;
    for (uint32_t unit = from; unit < to;) {
        if (is_taken(buffers, unit)) {
            run = 0;
            unit += buffers->lengths[unit] > 0 ? buffers->lengths[unit] : 1;
            continue;
        }
        unit++;
        if (++run == count)
            return unit - count;
    }
    return UINT32_MAX;
}

uint8_t *mc_disk_buffers_lend(struct mc_disk_buffers *buffers, uint64_t bytes, uint64_t left)
{
    uint64_t wanted = (bytes + MC_DISK_BUFFER_UNIT - 1) / MC_DISK_BUFFER_UNIT;
    if (wanted == 0 || wanted > buffers->units)
        return NULL;
    uint32_t count = (uint32_t)wanted;
    pthread_mutex_lock(&buffers->lock);
    uint32_t first = UINT32_MAX;
    if (buffers->units - buffers->units_lent >= count &&
        (buffers->units_lent == 0 || buffers->units - buffers->units_lent - count >= left / MC_DISK_BUFFER_UNIT))
        first = units_find(buffers, buffers->lowest, buffers->units, count);
    if (first != UINT32_MAX) {
        units_mark(buffers, first, count, true);
        buffers->lengths[first] = count;
        buffers->units_lent += count;
        if (first == buffers->lowest)
            buffers->lowest += count;
    }
    pthread_mutex_unlock(&buffers->lock);
    return first == UINT32_MAX ? NULL : buffers->base + (uint64_t)first * MC_DISK_BUFFER_UNIT;
}

void mc_disk_buffers_give_back(struct mc_disk_buffers *buffers, uint8_t *buffer)
{
    uint64_t offset = (uint64_t)(buffer - buffers->base);
    uint32_t unit = (uint32_t)(offset / MC_DISK_BUFFER_UNIT);
    pthread_mutex_lock(&buffers->lock);
    mc_assert(offset % MC_DISK_BUFFER_UNIT == 0 && unit < buffers->units && buffers->lengths[unit] > 0);
    units_mark(buffers, unit, buffers->lengths[unit], false);
    buffers->units_lent -= buffers->lengths[unit];
    buffers->lengths[unit] = 0;
    if (unit < buffers->lowest)
        buffers->lowest = unit;
    pthread_mutex_unlock(&buffers->lock);
}

uint64_t mc_disk_buffers_lent(struct mc_disk_buffers *buffers)
{
    return (uint64_t)atomic_load_explicit(&buffers->units_lent, memory_order_relaxed) * MC_DISK_BUFFER_UNIT;
}
