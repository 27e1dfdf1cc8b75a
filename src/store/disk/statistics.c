/* What a disk tells of itself. Its thread puts it down at each turn; whoever looks waits for nobody who works, and
 * nobody who works waits for whoever looks, but once, when it is ready. */
#include "store/disk/inside.h"

void mc_disk_not_stored(struct mc_disk *disk, enum mc_store_disk_reason reason)
{
    atomic_fetch_add_explicit(&disk->not_stored[reason], 1, memory_order_relaxed);
}

void mc_disk_latency_add(struct mc_store_disk_latency *latency, uint64_t since_ns, uint64_t now_ns)
{
    static const uint32_t bounds[MC_STORE_DISK_BOUND_COUNT] = {MC_STORE_DISK_BOUNDS_US};
    uint64_t us = now_ns > since_ns ? (now_ns - since_ns) / 1000 : 0;
    unsigned at = 0;
    while (at < MC_STORE_DISK_BOUND_COUNT && us > bounds[at])
        at++;
    latency->counts[at]++;
    latency->sum_us += us;
}

void mc_disk_statistics_show(struct mc_disk *disk, bool waits)
{
    struct mc_disk_statistics *counts = &disk->counts;
    uint32_t empty = disk->region_count - disk->regions_there + disk->regions_free;
    counts->health = disk->health;
    counts->objects = disk->index.count;
    counts->objects_max = disk->objects_max;
    counts->regions = disk->regions_there;
    counts->regions_max = disk->region_count;
    counts->regions_free = disk->regions_free;
    counts->capacity = disk->region_count * disk->region_bytes;
    counts->free_bytes = empty * disk->region_bytes;
    counts->under_way = disk->flights;
    counts->journal_bytes = disk->journal.pages * MC_DISK_PAGE;
    pthread_mutex_lock(&disk->lock);
    disk->told = disk->health;
    counts->waiting = MC_DISK_TASKS_MAX - disk->free_tasks.count;
    pthread_mutex_unlock(&disk->lock);
    if (waits)
        pthread_mutex_lock(&disk->shown_lock);
    else if (pthread_mutex_trylock(&disk->shown_lock) != 0)
        return; /* somebody looks: at the next turn */
    disk->shown = *counts;
    disk->shown_oldest_ns = disk->oldest == NULL ? 0 : disk->oldest->begun_ns;
    pthread_mutex_unlock(&disk->shown_lock);
}

void mc_disk_statistics_read(struct mc_disk *disk, struct mc_disk_statistics *statistics)
{
    pthread_mutex_lock(&disk->shown_lock);
    *statistics = disk->shown;
    uint64_t oldest_ns = disk->shown_oldest_ns, now_ns = mc_disk_now(disk);
    pthread_mutex_unlock(&disk->shown_lock);
    statistics->oldest_ns = oldest_ns != 0 && now_ns > oldest_ns ? now_ns - oldest_ns : 0;
    statistics->refused = atomic_load_explicit(&disk->refused, memory_order_relaxed);
    for (unsigned i = 0; i < MC_STORE_DISK_REASON_COUNT; i++)
        statistics->not_stored[i] = atomic_load_explicit(&disk->not_stored[i], memory_order_relaxed);
    statistics->buffer_bytes_lent = mc_disk_buffers_lent(&disk->buffers);
}
