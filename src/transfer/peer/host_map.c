/* An initiator's maps of memory that a peer of this machine has allocated with its engine: a copy needs no system call.
 *
 * The descriptor is the owner's, and is opened through /proc. Why it is the right one: the owner clears the region's
 * generation before it closes the descriptor, so a generation that is unchanged after the opening means that it was
 * open; and a connection that has not ended after the opening means that the process number was still the owner's.
 * A map never faults: the memory is sealed against shrinking. Who copies announces it as for every other region. */
#include "transfer/peer/host_path.h"
#include "transfer/state/host_table.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mc_host_map {
    struct mc_host_map *next; /* in its bucket */
    uint64_t generation, length;
    uint32_t slot, users;
    bool is_gone;   /* in no bucket any more; freed with its last user */
    uint8_t *bytes; /* NULL: cannot be mapped, which is not tried again */
};

bool mc_host_has_ended(const struct mc_host_path *path)
{
    struct pollfd looked = {.fd = path->fd, .events = POLLIN};
    return poll(&looked, 1, 0) != 0; /* nothing is ever said there but the end */
}

static uint8_t *map_memory(const struct mc_host_path *path, const struct mc_host_known *known)
{
    char name[64];
    struct stat status;
    void *map = MAP_FAILED;
    snprintf(name, sizeof(name), "/proc/%d/fd/%llu", (int)path->pid, (unsigned long long)(known->memory - 1));
    int fd = open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    bool is_right =
        atomic_load(&path->table->entries[known->slot].generation) == known->generation && !mc_host_has_ended(path);
    int seals = fcntl(fd, F_GET_SEALS);
    if (is_right && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &status) == 0 &&
        (uint64_t)status.st_size >= known->length)
        map = mmap(NULL, (size_t)known->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return NULL;
    (void)madvise(map, (size_t)known->length, MADV_DONTFORK);
    return map;
}

void mc_host_maps_unmap(struct mc_host_map *ended)
{
    for (struct mc_host_map *map = ended, *next; map != NULL; map = next) {
        next = map->next;
        if (map->bytes != NULL)
            (void)munmap(map->bytes, (size_t)map->length);
        free(map);
    }
}

struct mc_host_map *mc_host_map_hold(struct mc_host_path *path, const struct mc_host_known *known, uint8_t **bytes)
{
    struct mc_host_map **bucket = &path->maps[known->slot % MC_HOST_MAP_BUCKETS], *map = *bucket;
    if (known->memory == 0)
        return NULL;
    while (map != NULL && (map->slot != known->slot || map->generation != known->generation))
        map = map->next;
    if (map == NULL) {
        map = calloc(1, sizeof(*map));
        if (map == NULL)
            return NULL;
        *map = (struct mc_host_map){.next = *bucket,
                                    .generation = known->generation,
                                    .length = known->length,
                                    .slot = known->slot,
                                    .bytes = map_memory(path, known)};
        *bucket = map;
    }
    if (map->bytes == NULL)
        return NULL;
    map->users++;
    *bytes = map->bytes;
    return map;
}

static void end_unused(struct mc_host_map *map, struct mc_host_map **ended)
{
    if (map->users > 0 || !map->is_gone)
        return;
    map->next = *ended;
    *ended = map;
}

void mc_host_map_release(struct mc_host_map *map, struct mc_host_map **ended)
{
    map->users--;
    end_unused(map, ended);
}

static void take_out(struct mc_host_map **at, struct mc_host_map **ended)
{
    struct mc_host_map *map = *at;
    *at = map->next;
    map->is_gone = true;
    end_unused(map, ended);
}

void mc_host_maps_tidy(struct mc_host_path *path, struct mc_host_map **ended)
{
    for (uint32_t i = 0; i < MC_HOST_MAP_BUCKETS; i++) {
        for (struct mc_host_map **at = &path->maps[i]; *at != NULL;) {
            if (atomic_load(&path->table->entries[(*at)->slot].generation) != (*at)->generation)
                take_out(at, ended);
            else
                at = &(*at)->next;
        }
    }
}

void mc_host_maps_free(struct mc_host_path *path)
{
    struct mc_host_map *ended = NULL;
    for (uint32_t i = 0; i < MC_HOST_MAP_BUCKETS; i++)
        while (path->maps[i] != NULL)
            take_out(&path->maps[i], &ended);
    mc_host_maps_unmap(ended);
}
