/* The objects by key: a hash table that grows by one bucket at a time (linear hashing), so that no insertion ever pays
 * for a big rehash, and the slab the objects live in.
 *
 * Invariants: an object is in the table exactly once or not at all; the entries of a bucket's chain are packed to the
 * front. The memory of an object is type-stable: (pointer, serial) may be kept by anyone and compared later, the serial
 * changes when the object dies. */
#ifndef MC_CORE_OBJECT_H
#define MC_CORE_OBJECT_H

#include "base/bytes.h"
#include "store/core/slab.h"
#include "mooncake.h"

#include <stdbool.h>
#include <stdint.h>

#define MC_OBJECT_LENGTH_MAX (1ull << 45) /* bytes */
#define MC_OBJECT_READERS_MAX 1023u
#define MC_OBJECT_CLEARING_MAX 31u
#define MC_OBJECT_BATCH 1024u /* keys */

struct mc_account;
struct mc_accounts;
struct mc_group;
struct mc_object;

struct mc_membership {     /* behind the key of an object that is `roomy` */
    uint64_t group : 48;   /* the struct mc_group; 0 = none */
    uint64_t touched : 16; /* see group.h */
    union {
        struct {
            struct mc_object *previous, *next; /* in the group; NULL ends the list */
        };
        struct {                              /* of a successor, which is in no group; see successor.h */
            uint64_t wished;                  /* that of the head that it is, or 0; see stripe.h */
            struct mc_object *next_successor; /* NULL ends the list */
        };
    };
};
_Static_assert(sizeof(struct mc_membership) == 24, "what a group costs each of its objects");

struct mc_holding { /* behind that, where tenants are counted: see account.h */
    struct mc_account *account;
    struct mc_object *previous, *next; /* among its tenant's that lie in memory */
};
_Static_assert(sizeof(struct mc_holding) == 24, "what counting tenants costs each object");

/* Slabs, one for every 8 bytes. */
#define MC_OBJECT_SIZES ((32 + MC_KEY_LENGTH_MAX + sizeof(struct mc_membership) + sizeof(struct mc_holding)) / 8 + 1)

struct mc_object {
    uint64_t length : 48;
    uint64_t readers : 10;        /* gets in progress */
    uint64_t successor : 1;       /* not in the table: takes the place of the key's value when it is whole */
    uint64_t clearing : 5;        /* replicas of this key whose CLEARED is awaited */
    uint64_t lease_until_ms : 40; /* 0: its value was not read since it was put. Until it is visible: see pin.h */
    uint64_t key_length : 11;
    uint64_t live : 5;           /* replicas that are live */
    uint64_t granted : 5;        /* replicas that are being written */
    uint64_t hard : 1, soft : 1; /* soft: evicted only when nothing else can be */
    uint64_t visible : 1;        /* readers may find it: nothing granted is left, at least one is live */
    uint32_t first_slot;         /* the first replica; the chain goes on in the nodes; MC_NODE_NONE = none */
    uint16_t first_segment;
    uint8_t tombstone;   /* 0 = none, see tombstone.c, which uses length, lease, hard and first_* in its own way */
    uint8_t remains : 5; /* of `clearing`, those whose value somebody may have read; as that, see tombstone.c */
    uint8_t roomy : 1;   /* of this memory, not of the value: it has a membership */
    uint8_t moving : 1;  /* it is being stored on a disk, or loaded from one: core->moves knows where */
    uint8_t met : 1;     /* its value may have been read somewhere else than where it lies now, or was one before it */
    uint32_t serial;     /* of this life of the memory */
    uint32_t soft_until; /* when it is `soft`, in ticks of pin.h; of a successor: serial of the object that it is to
                            replace; of one that is being put: not 0 when the key may not get an earlier value if this
                            one fails; of one that waits: since when, ms */
    uint8_t key[];
};
_Static_assert(sizeof(struct mc_object) == 32, "counted in the bytes per object");

#define MC_BUCKET_ENTRIES 7u
struct mc_bucket {
    struct mc_bucket *next;
    uint64_t entries[MC_BUCKET_ENTRIES]; /* pointer in 48 bits, tag of the hash in 16; 0 = free */
};
_Static_assert(sizeof(struct mc_bucket) == 64, "a bucket is one cache line");

#define MC_BUCKET_CHUNK 1024u /* buckets that are allocated together: 64 KiB */
#define MC_BUCKET_CHUNKS 65536u
#define MC_BUCKETS_MIN 64u
#define MC_BUCKET_LOAD_TENTHS 48u /* entries per bucket, times ten, above which the table grows */

struct mc_objects {
    uint64_t seed; /* keys come from others: the hash is not theirs to choose */
    struct mc_bucket **chunks;
    uint64_t bucket_count;        /* = mask + 1 + split */
    uint64_t mask, split;         /* buckets below split have been split already in this round */
    uint64_t count;               /* entries */
    struct mc_accounts *accounts; /* of tenants; NULL: nothing is counted */
    struct mc_slab overflow;
    struct mc_slab sizes[MC_OBJECT_SIZES];
};

bool mc_objects_init(struct mc_objects *objects, uint64_t seed);
void mc_objects_destroy(struct mc_objects *objects);

/* An object of that key, not in the table, all other fields zero but the serial. NULL when memory is out, or there are
 * too many tenants. */
struct mc_object *mc_object_create(struct mc_objects *objects, struct mc_span key);
/* The same with a membership, in no group. */
struct mc_object *mc_object_create_roomy(struct mc_objects *objects, struct mc_span key);
/* It must not be in the table. */
void mc_object_free(struct mc_objects *objects, struct mc_object *object);

struct mc_object *mc_objects_find(const struct mc_objects *objects, struct mc_span key);
struct mc_picks { /* keys whose hash is below a bound */
    uint64_t below;
    uint32_t count;
    struct mc_pick {
        uint64_t hash;
        uint32_t index;
    } list[MC_OBJECT_BATCH];
};
/* The same for many keys at once, their cache misses overlapped. picks, which may be NULL, are filled; then there are
 * no more than MC_OBJECT_BATCH keys. */
void mc_objects_find_batch(const struct mc_objects *objects, const struct mc_span *keys, size_t count,
                           struct mc_object **found, struct mc_picks *picks);
/* Of any key. */
uint64_t mc_objects_hash(const struct mc_objects *objects, struct mc_span key);
/* The key must be absent. False when memory is out. */
bool mc_objects_insert(struct mc_objects *objects, struct mc_object *object);
/* It must be there. */
void mc_objects_remove(struct mc_objects *objects, const struct mc_object *object);

/* Of its key. */
uint64_t mc_object_hash(const struct mc_objects *objects, const struct mc_object *object);

/* Brings what mc_objects_remove of it will touch into the cache. */
void mc_object_prefetch(const struct mc_objects *objects, const struct mc_object *object);

static inline struct mc_span mc_object_key(const struct mc_object *object)
{
    return mc_span(object->key, object->key_length);
}

/* NULL when it has none. */
static inline struct mc_membership *mc_object_membership(const struct mc_object *object)
{
    uintptr_t key = (uintptr_t)object->key; /* a multiple of 8 */
    return object->roomy ? (struct mc_membership *)(key + ((object->key_length + 7u) & ~7u)) : NULL;
}
/* Where tenants are counted. */
static inline struct mc_holding *mc_object_holding(const struct mc_object *object)
{
    uintptr_t key = (uintptr_t)object->key;
    size_t membership = object->roomy ? sizeof(struct mc_membership) : 0;
    return (struct mc_holding *)(key + ((object->key_length + 7u) & ~7u) + membership);
}
/* The group it belongs to, or NULL. */
static inline struct mc_group *mc_object_group(const struct mc_object *object)
{
    const struct mc_membership *membership = mc_object_membership(object);
    return membership == NULL ? NULL : (struct mc_group *)(uintptr_t)membership->group;
}

/* Calls it for every object; the table must not change meanwhile. */
void mc_objects_visit(const struct mc_objects *objects, void (*visit)(const struct mc_object *object, void *context),
                      void *context);

/* The same for the next bucket, a number that begins at 0. False: it was the last. The table may change between two
 * calls: what was in it all the time is met. */
bool mc_objects_walk(const struct mc_objects *objects, uint64_t *bucket,
                     void (*visit)(const struct mc_object *object, void *context), void *context);

/* Proves the invariants; for tests. NULL or what is wrong. */
const char *mc_objects_check(const struct mc_objects *objects);

#endif
