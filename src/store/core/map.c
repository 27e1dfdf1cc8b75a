/* Linear probing with backward shift on removal, so that no probe is ever longer than the load makes it. */
#include "store/core/map.h"

#include "base/error.h"

#include <stdlib.h>

static size_t home(const struct mc_map *map, uint64_t key)
{
    uint64_t mixed = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed ^ (mixed >> 29)) & map->mask;
}

void mc_map_destroy(struct mc_map *map)
{
    free(map->entries);
    *map = (struct mc_map){0};
}

static struct mc_map_entry *entry_find(const struct mc_map *map, uint64_t key)
{
    if (map->entries == NULL)
        return NULL;
    size_t at = home(map, key);
    while (map->entries[at].value != NULL && map->entries[at].key != key)
        at = (at + 1) & map->mask;
    return &map->entries[at];
}

void *mc_map_get(const struct mc_map *map, uint64_t key)
{
    const struct mc_map_entry *entry = entry_find(map, key);
    return entry == NULL ? NULL : entry->value;
}

static bool grow(struct mc_map *map)
{
    size_t capacity = map->entries == NULL ? 16 : (map->mask + 1) * 2;
    struct mc_map next = {calloc(capacity, sizeof(struct mc_map_entry)), map->count, capacity - 1};
    if (next.entries == NULL)
        return false;
    for (size_t i = 0; map->entries != NULL && i <= map->mask; i++)
        if (map->entries[i].value != NULL)
            *entry_find(&next, map->entries[i].key) = map->entries[i];
    free(map->entries);
    *map = next;
    return true;
}

bool mc_map_put(struct mc_map *map, uint64_t key, void *value)
{
    if (map->entries == NULL || map->count * 4 >= (map->mask + 1) * 3) {
        if (!grow(map))
            return false;
    }
    struct mc_map_entry *entry = entry_find(map, key);
    mc_assert(value != NULL && entry->value == NULL);
    *entry = (struct mc_map_entry){key, value};
    map->count++;
    return true;
}

void *mc_map_remove(struct mc_map *map, uint64_t key)
{
    struct mc_map_entry *entry = entry_find(map, key);
    if (entry == NULL || entry->value == NULL)
        return NULL;
    void *value = entry->value;
    size_t hole = (size_t)(entry - map->entries);
    for (size_t at = (hole + 1) & map->mask; map->entries[at].value != NULL; at = (at + 1) & map->mask) {
        /* An entry may move into the hole unless its home lies behind the hole on the way to where it is now. */
        size_t distance = (at - home(map, map->entries[at].key)) & map->mask;
        if (distance < ((at - hole) & map->mask))
            continue;
        map->entries[hole] = map->entries[at];
        hole = at;
    }
    map->entries[hole].value = NULL;
    map->count--;
    return value;
}
