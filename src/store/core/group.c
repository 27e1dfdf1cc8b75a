/* Linear hashing with chained groups; a split visits one chain. */
#include "store/core/group.h"

#include "base/error.h"
#include "store/wire/stripe.h"
#include "store/wire/tenant.h"

#include <stdlib.h>
#include <xxhash.h>

/* With the tenant: who may say any tenant's keys puts no long chain into one bucket. */
static uint64_t hash_of(const struct mc_groups *groups, uint64_t id, struct mc_span tenant)
{
    return XXH3_64bits_withSeed(tenant.data, tenant.length, XXH3_64bits_withSeed(&id, sizeof(id), groups->seed));
}

static struct mc_group **bucket_at(const struct mc_groups *groups, uint64_t index)
{
    return &groups->chunks[index / MC_GROUP_CHUNK][index % MC_GROUP_CHUNK];
}

static struct mc_group **bucket_of(const struct mc_groups *groups, uint64_t hash)
{
    uint64_t index = hash & groups->mask;
    if (index < groups->split)
        index = hash & (groups->mask << 1 | 1);
    return bucket_at(groups, index);
}

static bool chunk_add(struct mc_groups *groups, uint64_t index)
{
    struct mc_group ***chunk = &groups->chunks[index / MC_GROUP_CHUNK];
    if (*chunk == NULL)
        *chunk = calloc(MC_GROUP_CHUNK, sizeof(struct mc_group *));
    return *chunk != NULL;
}

bool mc_groups_init(struct mc_groups *groups, uint64_t seed)
{
    *groups = (struct mc_groups){.seed = seed, .bucket_count = MC_GROUP_BUCKETS_MIN, .mask = MC_GROUP_BUCKETS_MIN - 1};
    mc_slab_init(&groups->slab, sizeof(struct mc_group));
    mc_link_init(&groups->stripes);
    mc_link_init(&groups->stripes_turn);
    groups->chunks = calloc(MC_GROUP_CHUNKS, sizeof(struct mc_group **));
    if (groups->chunks == NULL)
        return false;
    if (chunk_add(groups, 0))
        return true;
    free(groups->chunks);
    groups->chunks = NULL;
    return false;
}

void mc_groups_destroy(struct mc_groups *groups)
{
    for (uint64_t i = 0; groups->chunks != NULL && i < MC_GROUP_CHUNKS && groups->chunks[i] != NULL; i++)
        free(groups->chunks[i]);
    free(groups->chunks);
    mc_slab_destroy(&groups->slab);
}

/* Moves about half of the groups of bucket `split` to a new last bucket. */
static void split_one(struct mc_groups *groups)
{
    uint64_t target = groups->bucket_count, next_mask = groups->mask << 1 | 1;
    if (target >= (uint64_t)MC_GROUP_CHUNK * MC_GROUP_CHUNKS || !chunk_add(groups, target))
        return; /* longer chains are the price, nothing breaks */
    struct mc_group **here = bucket_at(groups, groups->split), **there = bucket_at(groups, target), *group = *here;
    *here = NULL;
    groups->bucket_count++;
    groups->split++;
    while (group != NULL) {
        struct mc_group *next = group->next;
        struct mc_group **to = (group->hash & next_mask) == target ? there : here;
        group->next = *to;
        *to = group;
        group = next;
    }
    if (groups->split > groups->mask) {
        groups->mask = next_mask;
        groups->split = 0;
    }
}

/* A slot says its group by a number that its writer may have chosen. So members of two tenants are in two groups even
 * if the numbers are one. */
static bool is_of_tenant(const struct mc_group *group, struct mc_span tenant)
{
    return group->first != NULL && mc_span_equal(mc_key_scope(mc_object_key(group->first)), tenant);
}

struct mc_group *mc_group_find(const struct mc_groups *groups, uint64_t id, struct mc_span key)
{
    struct mc_span tenant = mc_key_scope(key);
    uint64_t hash = hash_of(groups, id, tenant);
    for (struct mc_group *group = *bucket_of(groups, hash); group != NULL; group = group->next)
        if (group->hash == hash && group->id == id && is_of_tenant(group, tenant))
            return group;
    return NULL;
}

/* The group of that id of the object's tenant, made if need be; NULL when memory is out. */
static struct mc_group *group_of(struct mc_groups *groups, uint64_t id, const struct mc_object *object)
{
    struct mc_group *group = mc_group_find(groups, id, mc_object_key(object));
    if (group != NULL)
        return group;
    uint64_t hash = hash_of(groups, id, mc_key_scope(mc_object_key(object)));
    struct mc_group **bucket = bucket_of(groups, hash);
    group = mc_slab_allocate(&groups->slab);
    if (group == NULL)
        return NULL;
    *group = (struct mc_group){.next = *bucket, .id = id, .hash = hash};
    mc_link_init(&group->open);
    *bucket = group;
    groups->count++;
    if (groups->count > groups->bucket_count)
        split_one(groups);
    return group;
}

static void group_free(struct mc_groups *groups, struct mc_group *group)
{
    struct mc_group **at = bucket_of(groups, group->hash);
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    groups->count--;
    mc_link_remove(&group->open);
    mc_slab_release(&groups->slab, group);
}

static void append(struct mc_group *group, struct mc_object *object)
{
    struct mc_membership *membership = mc_object_membership(object);
    membership->previous = group->last;
    membership->next = NULL;
    if (group->last == NULL)
        group->first = object;
    else
        mc_object_membership(group->last)->next = object;
    group->last = object;
}

static void detach(struct mc_group *group, const struct mc_object *object)
{
    const struct mc_membership *membership = mc_object_membership(object);
    if (membership->previous == NULL)
        group->first = membership->next;
    else
        mc_object_membership(membership->previous)->next = membership->next;
    if (membership->next == NULL)
        group->last = membership->previous;
    else
        mc_object_membership(membership->next)->previous = membership->previous;
}

/* Ticks are to look at it: what belongs together may not all be there. */
static void stripe_open(struct mc_groups *groups, struct mc_group *group)
{
    group->headless_ms = 0;
    if (mc_link_alone(&group->open))
        mc_link_append(&groups->stripes, &group->open);
}

void mc_group_head(struct mc_groups *groups, struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    mc_assert(group != NULL && group->head == NULL);
    group->head = object;
    group->is_over = false;
    stripe_open(groups, group);
}

static void stripe_joined(struct mc_groups *groups, struct mc_group *group, const struct mc_object *object)
{
    bool is_piece = mc_key_is_piece(mc_object_key(object));
    group->pieces += is_piece;
    if (group->pieces > 0 || group->head != NULL) /* also when something joins that is no part of the value */
        stripe_open(groups, group);
}

static void stripe_left(struct mc_groups *groups, struct mc_group *group, const struct mc_object *object)
{
    bool is_head = group->head == object, is_piece = !is_head && mc_key_is_piece(mc_object_key(object));
    if (is_head) {
        group->head = NULL;
        group->is_over = group->is_shown; /* else it was never there, and may be put again */
    }
    group->pieces -= is_piece;
    if (is_head || is_piece)
        stripe_open(groups, group);
}

bool mc_group_join(struct mc_groups *groups, struct mc_object *object, uint64_t id)
{
    mc_assert(object->roomy && mc_object_group(object) == NULL && object->readers == 0 && id != 0);
    struct mc_group *group = group_of(groups, id, object);
    if (group == NULL)
        return false;
    mc_assert(((uintptr_t)group & ~((1ull << 48) - 1)) == 0);
    struct mc_membership *membership = mc_object_membership(object);
    membership->group = (uint64_t)(uintptr_t)group & ((1ull << 48) - 1);
    membership->touched = group->touched;
    append(group, object);
    group->count++;
    stripe_joined(groups, group, object);
    return true;
}

void mc_group_end_reads(struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    if (group != NULL)
        group->readers -= (uint32_t)object->readers;
    object->readers = 0;
}

void mc_group_leave(struct mc_groups *groups, struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    if (group == NULL)
        return;
    mc_group_end_reads(object);
    detach(group, object);
    mc_object_membership(object)->group = 0;
    group->count--;
    stripe_left(groups, group, object);
    if (group->count == 0 && !group->going)
        group_free(groups, group);
}

void mc_group_turn(struct mc_group *group)
{
    struct mc_object *object = group->first;
    if (object == group->last)
        return;
    detach(group, object);
    append(group, object);
}

void mc_group_go(struct mc_groups *groups, struct mc_group *group)
{
    group->going_left = group->count;
    if (group->going)
        return;
    group->going = true;
    group->going_next = groups->going;
    groups->going = group;
}

void mc_groups_gone(struct mc_groups *groups)
{
    struct mc_group *group = groups->going;
    groups->going = group->going_next;
    group->going = group->going_soft = false;
    group->going_left = 0;
    if (group->count == 0)
        group_free(groups, group);
}

/* ---- check ---- */

static const char *check_group(const struct mc_group *group, uint64_t *members)
{
    const struct mc_object *previous = NULL;
    uint32_t count = 0, readers = 0, pieces = 0;
    bool has_head = group->head == NULL;
    for (const struct mc_object *object = group->first; object != NULL; object = mc_object_membership(object)->next) {
        if (!object->roomy || mc_object_group(object) != group || ++count > group->count)
            return "a member of another group";
        if (mc_object_membership(object)->previous != previous)
            return "the list of a group's members";
        if (object->tombstone != 0 || object->successor)
            return "a member that has no value";
        if (!is_of_tenant(group, mc_key_scope(mc_object_key(object))))
            return "a member of another tenant";
        readers += (uint32_t)object->readers;
        pieces += mc_key_is_piece(mc_object_key(object));
        has_head = has_head || object == group->head;
        previous = object;
    }
    if (group->last != previous || count != group->count || readers != group->readers)
        return "the sums of a group";
    if (pieces != group->pieces || !has_head)
        return "the pieces of a group, or its head";
    if (count == 0 && !group->going)
        return "a group without members";
    *members += count;
    return NULL;
}

static void count_member(const struct mc_object *object, void *context)
{
    uint64_t *members = context;
    *members += mc_object_group(object) != NULL;
}

const char *mc_groups_check(const struct mc_groups *groups, const struct mc_objects *objects)
{
    uint64_t count = 0, listed = 0, members = 0, going = 0, marked = 0;
    if (groups->bucket_count != groups->mask + 1 + groups->split)
        return "the count of buckets of groups";
    for (uint64_t index = 0; index < groups->bucket_count; index++) {
        for (const struct mc_group *group = *bucket_at(groups, index); group != NULL; group = group->next) {
            if (bucket_of(groups, group->hash) != bucket_at(groups, index))
                return "a group in the wrong bucket";
            const char *wrong = check_group(group, &listed);
            if (wrong != NULL)
                return wrong;
            marked += group->going;
            count++;
        }
    }
    for (const struct mc_group *group = groups->going; group != NULL && going <= count; group = group->going_next)
        going++;
    mc_objects_visit(objects, count_member, &members);
    if (going != marked)
        return "the list of groups that are going";
    if (members != listed)
        return "a member that its group does not know";
    return count == groups->count && count == groups->slab.in_use ? NULL : "the count of groups";
}
