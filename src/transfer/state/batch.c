/* The table of batches. */
#include "transfer/state/batch.h"

#include "base/error.h"

#include <stdlib.h>

#define PLACE_BITS 16u
_Static_assert(MC_TRANSFER_BATCHES_MAX == 1u << PLACE_BITS, "a place fits its bits");

static int grow(struct mc_batch_table *table)
{
    uint32_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
    if (capacity > MC_TRANSFER_BATCHES_MAX)
        return -1;
    struct mc_batch **places = realloc(table->places, capacity * sizeof(struct mc_batch *));
    if (places == NULL)
        return -1;
    table->places = places;
    uint32_t *free_places = realloc(table->free_places, capacity * sizeof(uint32_t));
    if (free_places == NULL)
        return -1;
    table->free_places = free_places;
    table->capacity = capacity;
    return 0;
}

struct mc_batch *mc_batch_add(struct mc_batch_table *table, int64_t *id)
{
    if (table->free_count == 0 && table->used == table->capacity && grow(table) < 0)
        return NULL;
    struct mc_batch *batch = calloc(1, sizeof(*batch));
    if (batch == NULL)
        return NULL;
    uint32_t place = table->free_count > 0 ? table->free_places[--table->free_count] : table->used++;
    /* 47 bits of generation: a million batches a second would take four years to use them up. */
    uint64_t generation = ++table->generation & (UINT64_MAX >> (PLACE_BITS + 2));
    batch->state = MC_BATCH_QUEUED;
    batch->id = (int64_t)(generation << PLACE_BITS | place) + 1;
    table->places[place] = batch;
    *id = batch->id;
    return batch;
}

static uint32_t place_of(int64_t id)
{
    return (uint32_t)((uint64_t)(id - 1) & (MC_TRANSFER_BATCHES_MAX - 1));
}

struct mc_batch *mc_batch_find(const struct mc_batch_table *table, int64_t id)
{
    if (id <= 0 || place_of(id) >= table->used)
        return NULL;
    struct mc_batch *batch = table->places[place_of(id)];
    return batch != NULL && batch->id == id ? batch : NULL;
}

void mc_batch_remove(struct mc_batch_table *table, int64_t id)
{
    struct mc_batch *batch = mc_batch_find(table, id);
    mc_assert(batch != NULL);
    table->places[place_of(id)] = NULL;
    table->free_places[table->free_count++] = place_of(id);
    free(batch->items);
    free(batch->note_name);
    free(batch->note_message);
    free(batch);
}

void mc_batch_table_free(struct mc_batch_table *table)
{
    for (uint32_t i = 0; i < table->used; i++)
        if (table->places[i] != NULL)
            mc_batch_remove(table, table->places[i]->id);
    free(table->places);
    free(table->free_places);
    *table = (struct mc_batch_table){0};
}
