/* How the disks of an owner are, for those who only look: heartbeats, which tell the master, and whoever exports
 * metrics. They wait for no disk, no link and no move. */
#include "store/owner/inside.h"

#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mc_owner_disk_off(struct mc_owner *owner, const char *path)
{
    char *copy = owner->off_count < MC_OWNER_DISKS_MAX ? strdup(path) : NULL;
    if (copy != NULL)
        owner->off_paths[owner->off_count++] = copy;
}

void mc_owner_disk_pass_over(struct mc_owner *owner, const char *path)
{
    mc_log(ERROR,
           "the disk %s does not answer: its file system hangs, as one of NFS does whose server is away. Mount it anew "
           "and start this node again, or give it another directory; this node goes on without that disk",
           path);
    mc_owner_disk_off(owner, path);
}

struct mc_disk *mc_owner_disk_unseen(struct mc_owner_disk *disk)
{
    pthread_mutex_lock(&disk->owner->seen_lock);
    struct mc_disk *was = disk->disk;
    disk->disk = NULL;
    pthread_mutex_unlock(&disk->owner->seen_lock);
    return was;
}

void mc_owner_disks_unseen_free(struct mc_owner *owner)
{
    for (uint32_t i = 0; i < owner->off_count; i++)
        free(owner->off_paths[i]);
    owner->off_count = 0;
}

/* False: it is closed. path: NULL, or for its directory. */
static bool disk_look(struct mc_owner *owner, uint32_t number, struct mc_disk_statistics *statistics, char *path,
                      size_t size)
{
    *statistics = (struct mc_disk_statistics){.health = MC_DISK_CLOSED};
    pthread_mutex_lock(&owner->seen_lock);
    struct mc_disk *disk = owner->disks[number].disk;
    if (disk != NULL)
        mc_disk_statistics_read(disk, statistics);
    if (path != NULL)
        (void)snprintf(path, size, "%s", disk != NULL ? mc_disk_directory(disk) : owner->disks[number].path);
    pthread_mutex_unlock(&owner->seen_lock);
    return disk != NULL;
}

void mc_owner_disks_foreign(struct mc_owner *owner, struct mc_id cluster)
{
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        char path[MC_DISK_PATH_MAX + 32], text[MC_ID_TEXT_MAX];
        struct mc_disk_statistics statistics;
        pthread_mutex_lock(&owner->lock);
        struct mc_id theirs = owner->disks[i].has_contents ? owner->disks[i].mark.cluster : (struct mc_id){0, 0};
        pthread_mutex_unlock(&owner->lock);
        if (mc_id_is_zero(theirs) || mc_id_equal(theirs, cluster))
            continue;
        (void)disk_look(owner, i, &statistics, path, sizeof(path));
        mc_id_format(text, theirs);
        mc_log_limited(
            WARNING,
            "disk %s holds objects of cluster %s and is left alone; when that cluster is no more, end this node and "
            "delete that directory by hand",
            path, text);
    }
}

/* ---- for heartbeats ---- */

/* What else wakes a disk that waits for its mount, or for the end of an earlier listing, may have come too early, or
 * the master was too busy for it. */
static void on_beat(void *argument)
{
    struct mc_owner *owner = argument;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        mc_owner_disk_empty_again(&owner->disks[i]);
        mc_owner_disk_give_up(&owner->disks[i]);
    }
    mc_owner_disks_mount(owner);
}

static uint8_t health_told(enum mc_disk_health health)
{
    return health == MC_DISK_WELL ? MC_TOLD_WELL : health == MC_DISK_SLOW ? MC_TOLD_SLOW : MC_TOLD_READ_ONLY;
}

uint32_t mc_owner_disks_told(struct mc_owner *owner, struct mc_told_disk told[MC_OWNER_DISKS_MAX], uint8_t *off)
{
    struct mc_told_disk seen[MC_OWNER_DISKS_MAX];
    uint32_t count = 0, off_count = owner->off_count;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        struct mc_disk_statistics statistics;
        bool is_open = disk_look(owner, i, &statistics, NULL, 0);
        off_count += is_open && statistics.health == MC_DISK_CLOSED;
        seen[i] = (struct mc_told_disk){.health = health_told(statistics.health),
                                        .is_leaving = statistics.health != MC_DISK_WELL};
    }
    *off = (uint8_t)off_count;
    pthread_mutex_lock(&owner->lock);
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        seen[i].segment = owner->disks[i].told_segment;
        if (seen[i].segment != 0)
            told[count++] = seen[i];
    }
    bool wants_beat = count < owner->disk_count;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        wants_beat = wants_beat || owner->disks[i].wants_beat;
        owner->disks[i].wants_beat = false;
    }
    pthread_mutex_unlock(&owner->lock);
    if (wants_beat)
        mc_serve_post(owner->serve, on_beat, owner);
    return count;
}

/* ---- for metrics ---- */

static int health_of(enum mc_disk_health health)
{
    static const int healths[] = {[MC_DISK_RECOVERING] = MC_STORE_DISK_RECOVERING,
                                  [MC_DISK_WELL] = MC_STORE_DISK_WELL,
                                  [MC_DISK_SLOW] = MC_STORE_DISK_IS_SLOW,
                                  [MC_DISK_READ_ONLY] = MC_STORE_DISK_IS_READ_ONLY,
                                  [MC_DISK_CLOSED] = MC_STORE_DISK_OFF};
    return healths[health];
}

static struct mc_store_disk described(const struct mc_disk_statistics *s)
{
    struct mc_store_disk disk = {
        .health = health_of(s->health),
        .capacity = s->capacity,
        .free_bytes = s->free_bytes,
        .live_bytes = s->live_bytes,
        .objects = s->objects,
        .objects_max = s->objects_max,
        .bytes_read = s->bytes_read,
        .bytes_written = s->bytes_written,
        .reads = s->reads,
        .writes = s->writes,
        .syncs = s->syncs,
        .read_errors = s->read_errors,
        .write_errors = s->write_errors,
        .stored = s->stored,
        .bytes_stored = s->bytes_stored,
        .served = s->served,
        .bytes_served = s->bytes_served,
        .bytes_rewritten = s->bytes_rewritten,
        .cleared = s->cleared,
        .lost = s->lost,
        .rotten = s->rotten,
        .late = s->timed_out,
        .refused = s->refused,
        .store_latency = s->store_latency,
        .read_latency = s->read_latency,
        .waiting = s->waiting,
        .under_way = s->under_way,
        .oldest_us = s->oldest_ns / 1000,
        .reused_age_ms = s->oldest_age_ms,
        .journal_bytes = s->journal_bytes,
        .buffer_bytes = s->buffer_bytes_lent,
        .recovery_ms = s->recovery_ns / 1000000,
    };
    memcpy(disk.not_stored, s->not_stored, sizeof(disk.not_stored));
    return disk;
}

int mc_owner_disks_seen(struct mc_owner *owner, struct mc_store_disk *disks, size_t capacity)
{
    size_t count = 0;
    for (uint32_t i = 0; i < owner->disk_count; i++, count++) {
        char path[sizeof(disks->path)];
        struct mc_disk_statistics statistics;
        if (count >= capacity)
            continue;
        (void)disk_look(owner, i, &statistics, path, sizeof(path));
        disks[count] = described(&statistics);
        memcpy(disks[count].path, path, sizeof(path));
    }
    for (uint32_t i = 0; i < owner->off_count; i++, count++) {
        if (count >= capacity)
            continue;
        disks[count] = (struct mc_store_disk){.health = MC_STORE_DISK_OFF};
        (void)snprintf(disks[count].path, sizeof(disks[count].path), "%s", owner->off_paths[i]);
    }
    return (int)count;
}
