/* Tables of small numbers; the lists are in the header. */
#include "store/core/list.h"

#include "base/error.h"

#include <stdlib.h>

uint32_t mc_table_add(struct mc_table *table, void *item)
{
    uint32_t index;
    if (table->free_count > 0) {
        index = table->free[--table->free_count];
    } else {
        if (table->count == table->capacity) {
            uint32_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
            if (capacity > table->limit)
                return UINT32_MAX;
            void **items = realloc(table->items, capacity * sizeof(*items));
            if (items == NULL)
                return UINT32_MAX;
            table->items = items;
            uint32_t *numbers = realloc(table->free, capacity * sizeof(*numbers));
            if (numbers == NULL)
                return UINT32_MAX;
            table->free = numbers;
            table->capacity = capacity;
        }
        index = table->count++;
    }
    table->items[index] = item;
    return index;
}

void mc_table_remove(struct mc_table *table, uint32_t index)
{
    mc_assert(index < table->count && table->items[index] != NULL);
    table->items[index] = NULL;
    table->free[table->free_count++] = index;
}
