/* From a u64 to a pointer: connections, members, segments by hash. Open addressing without tombstones; keys are spread
 * by the map itself. Small by intent (the largest has as many entries as there are connections): it grows in one step.
 */
#ifndef MC_CORE_MAP_H
#define MC_CORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mc_map_entry {
    uint64_t key;
    void *value; /* NULL = free */
};
struct mc_map { /* zeroed = empty and valid */
    struct mc_map_entry *entries;
    size_t count, mask;
};

void mc_map_destroy(struct mc_map *map);
void *mc_map_get(const struct mc_map *map, uint64_t key);
/* Value must not be NULL, the key must be absent. False when memory is out. */
bool mc_map_put(struct mc_map *map, uint64_t key, void *value);
/* The value that was there, or NULL. */
void *mc_map_remove(struct mc_map *map, uint64_t key);

#endif
