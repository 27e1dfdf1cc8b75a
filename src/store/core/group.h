/* Groups of objects that age and leave together: by id in a hash table that grows by one bucket at a time (so that no
 * put pays for a big rehash), their members in a list through the objects. An object without a group costs nothing.
 *
 * Members are of one tenant: groups of two tenants are two, even of one id.
 *
 * Invariants: a group is in the table exactly as long as it has a member or is in the list of those that are going;
 * `count` and `readers` are the sums over its members; an object that is a tombstone or a successor is in no group. */
#ifndef MC_CORE_GROUP_H
#define MC_CORE_GROUP_H

#include "store/core/list.h"
#include "store/core/object.h"

#define MC_GROUP_CHUNK 1024u /* buckets that are allocated together: 8 KiB */
#define MC_GROUP_CHUNKS 65536u
#define MC_GROUP_BUCKETS_MIN 64u
/* Uses within about a second are one: so often at most a member is moved for the others */
#define MC_GROUP_AGE_SHIFT 10

struct mc_group {
    struct mc_group *next; /* in its bucket */
    uint64_t id;           /* mc_group() of its name: the name itself is nowhere kept */
    uint64_t hash;         /* of that and its tenant's name */
    struct mc_object *first, *last;
    uint64_t lease_until_ms; /* of any member */
    uint32_t count;          /* members */
    uint32_t readers;        /* gets of members in progress */
    /* Being evicted: so many members are still to be looked at, from the first on. */
    uint32_t going_left;
    bool going, going_soft; /* soft: also those that are pinned softly */
    uint16_t touched;       /* when a member was last used; members that were not moved since have another value */
    struct mc_group *going_next;
    /* Of a value in pieces: see stripe.h. */
    struct mc_object *head; /* a member, or NULL */
    uint32_t pieces;        /* members that are pieces */
    bool is_shown;          /* there was a head of it */
    bool is_over;           /* its head has gone: so are the pieces to */
    uint64_t headless_ms;   /* since when all its pieces are there and no head is; 0: that was not looked at */
    struct mc_link open;    /* among those that ticks look at */
};

struct mc_groups {
    uint64_t seed; /* ids come from others */
    struct mc_group ***chunks;
    uint64_t bucket_count; /* = mask + 1 + split */
    uint64_t mask, split;
    uint64_t count;
    struct mc_group *going;
    struct mc_link stripes, stripes_turn; /* those that ticks look at; and, during a round of these, where it ends */
    struct mc_slab slab;
};

bool mc_groups_init(struct mc_groups *groups, uint64_t seed);
void mc_groups_destroy(struct mc_groups *groups);

/* Adds the object, which must be roomy and in no group, to its tenant's group of that id. False when memory is out. */
bool mc_group_join(struct mc_groups *groups, struct mc_object *object, uint64_t id);
/* With its readers. Nothing happens when it is in none. */
void mc_group_leave(struct mc_groups *groups, struct mc_object *object);
/* The object's readers read in vain: it has none any more. */
void mc_group_end_reads(struct mc_object *object);
/* The tenant's group of that id, or NULL. key: of any object of that tenant's. */
struct mc_group *mc_group_find(const struct mc_groups *groups, uint64_t id, struct mc_span key);
/* The member is a head. */
void mc_group_head(struct mc_groups *groups, struct mc_object *object);
/* Its first member becomes the last. */
void mc_group_turn(struct mc_group *group);
/* Its members are to be looked at for eviction: puts it into the list of those that are going. */
void mc_group_go(struct mc_groups *groups, struct mc_group *group);
/* The first of those that are going is done. */
void mc_groups_gone(struct mc_groups *groups);

/* 0 = it is in none. */
static inline uint64_t mc_object_group_id(const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    return group == NULL ? 0 : group->id;
}
/* A member was used after this one was last moved to the young end. */
static inline bool mc_group_is_younger(const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    return group != NULL && group->touched != mc_object_membership(object)->touched;
}

/* Proves the invariants; for tests. NULL or what is wrong. */
const char *mc_groups_check(const struct mc_groups *groups, const struct mc_objects *objects);

#endif
