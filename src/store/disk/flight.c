/* Operations of files that are under way, and what they say of the disk's health. */
#include "store/disk/inside.h"

#include "env/log.h"

#include <errno.h>

static void flight_unlink(struct mc_disk *disk, struct mc_disk_flight *flight)
{
    struct mc_disk_flight **before = flight->previous != NULL ? &flight->previous->next : &disk->oldest;
    struct mc_disk_flight **behind = flight->next != NULL ? &flight->next->previous : &disk->newest;
    *before = flight->next;
    *behind = flight->previous;
    disk->flights--;
}

static void flight_done(struct mc_disk_request *request, int64_t result)
{
    struct mc_disk_flight *flight = (struct mc_disk_flight *)request; /* its first member */
    struct mc_disk *disk = flight->disk;
    flight_unlink(disk, flight);
    disk->flight_bytes -= request->length;
    if (request->operation == MC_DISK_WRITE && result >= 0 && result != (int64_t)request->length)
        result = -EIO;
    if (result < 0 && request->operation == MC_DISK_READ)
        disk->counts.read_errors++;
    else if (result < 0 && request->operation != MC_DISK_CALL) /* that there is no room is no error */
        disk->counts.write_errors++;
    else if (request->operation == MC_DISK_READ)
        disk->counts.bytes_read += (uint64_t)result;
    else if (request->operation == MC_DISK_WRITE)
        disk->counts.bytes_written += request->length;
    if (!disk->is_dead) /* then nothing follows from it any more */
        flight->ended(flight, result);
}

static void flight_begin(struct mc_disk *disk, struct mc_disk_flight *flight)
{
    enum mc_disk_operation operation = flight->request.operation;
    flight->request.done = flight_done;
    flight->disk = disk;
    flight->previous = disk->newest;
    flight->begun_ns = mc_disk_now(disk);
    *(disk->newest != NULL ? &disk->newest->next : &disk->oldest) = flight;
    disk->newest = flight;
    disk->flights++;
    disk->flight_bytes += flight->request.length;
    flight->bytes_then = disk->flight_bytes;
    if (operation == MC_DISK_READ)
        disk->counts.reads++;
    else if (operation == MC_DISK_WRITE)
        disk->counts.writes++;
    else if (operation == MC_DISK_SYNC)
        disk->counts.syncs++;
    disk->config.ports->submit(disk->io, &flight->request);
}

void mc_disk_flight_start(struct mc_disk *disk, struct mc_disk_flight *flight, enum mc_disk_operation operation, int fd,
                          void *buffer, uint32_t length, uint64_t offset,
                          void (*ended)(struct mc_disk_flight *flight, int64_t result))
{
    *flight = (struct mc_disk_flight){
        .request = {.operation = operation, .fd = fd, .buffer = buffer, .length = length, .offset = offset},
        .ended = ended};
    flight_begin(disk, flight);
}

void mc_disk_flight_call(struct mc_disk *disk, struct mc_disk_flight *flight,
                         int64_t (*call)(struct mc_disk_request *request),
                         void (*ended)(struct mc_disk_flight *flight, int64_t result))
{
    *flight = (struct mc_disk_flight){
        .request = {.operation = MC_DISK_CALL, .fd = disk->directory.identity_fd, .call = call}, .ended = ended};
    flight_begin(disk, flight);
}

void mc_disk_read_only_set(struct mc_disk *disk, const char *why)
{
    if (disk->health == MC_DISK_READ_ONLY)
        return;
    disk->health = MC_DISK_READ_ONLY;
    mc_disk_pending_refuse(disk, MC_ERR_FILE_WRITE_FAIL);
    mc_log(ERROR, "the disk %s takes nothing more until it is opened again: %s", disk->directory.path, why);
}

/* Much at a time takes its time on a disk that is merely not fast: by what the oldest began behind, however much of
 * that has ended meanwhile. How long a file system is in giving bytes says nothing of the device. */
uint64_t mc_disk_slow_at_ns(const struct mc_disk *disk)
{
    const struct mc_disk_flight *oldest = disk->oldest;
    while (oldest != NULL && oldest->request.operation == MC_DISK_CALL)
        oldest = oldest->next;
    return oldest == NULL
               ? UINT64_MAX
               : oldest->begun_ns + disk->config.slow_ms * 1000000ull * (1 + oldest->bytes_then / MC_DISK_SLOW_BYTES);
}

void mc_disk_health_turn(struct mc_disk *disk, uint64_t now_ns)
{
    bool is_slow = now_ns > mc_disk_slow_at_ns(disk);
    if (disk->health == MC_DISK_WELL && is_slow) {
        disk->health = MC_DISK_SLOW;
        mc_disk_pending_refuse(disk, MC_ERR_BUSY);
        mc_disk_reads_refuse(disk);
        mc_disk_statistics_show(disk, false); /* whoever reads the log may stand still, too */
        mc_log(WARNING, "the disk %s has not answered for %u ms; until it does nothing is read or stored there",
               disk->directory.path, disk->config.slow_ms);
    } else if (disk->health == MC_DISK_SLOW && !is_slow) {
        disk->health = MC_DISK_WELL;
        mc_log(INFO, "the disk %s answers again", disk->directory.path);
    }
}
