/* Lists through the things themselves, and small numbers for them. */
#ifndef MC_CORE_LIST_H
#define MC_CORE_LIST_H

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

struct mc_link { /* of an intrusive list; a list is a link too */
    struct mc_link *previous, *next;
};
static inline void mc_link_init(struct mc_link *link)
{
    link->previous = link->next = link;
}
static inline bool mc_link_alone(const struct mc_link *link)
{
    return link->next == link;
}
static inline void mc_link_remove(struct mc_link *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    mc_link_init(link);
}
/* The link must be alone. */
static inline void mc_link_append(struct mc_link *list, struct mc_link *link)
{
    link->previous = list->previous;
    link->next = list;
    list->previous->next = link;
    list->previous = link;
}
#define mc_link_of(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

struct mc_node_list { /* through list_previous and list_next of nodes; head = oldest */
    uint32_t head, tail, count;
    uint32_t mark;  /* the first node that is not `ahead`; MC_NODE_NONE = all are */
    uint64_t ahead; /* units of those before it */
};

struct mc_table { /* small numbers for things that nodes refer to */
    void **items;
    uint32_t count, capacity, limit; /* count: of numbers ever used */
    uint32_t *free;
    uint32_t free_count;
};
/* A number for the item, or UINT32_MAX when the table is full or memory is out. */
uint32_t mc_table_add(struct mc_table *table, void *item);
void mc_table_remove(struct mc_table *table, uint32_t index);
static inline void *mc_table_get(const struct mc_table *table, uint32_t index)
{
    return table->items[index];
}

#endif
