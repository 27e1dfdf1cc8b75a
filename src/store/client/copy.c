/* Replicas that are added, moved and cleared, and pins of what is there: the value is read, and put in place of itself
 * on the segments that are wanted. The put names the version that was read, so a value that others store meanwhile is
 * never overwritten. */
#include "store/client/calls.h"
#include "store/client/owners.h"
#include "store/client/scope.h"
#include "store/wire/wire.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_MAX 8u            /* times that the value was replaced under our hands */
#define LARGE_BYTES (64u << 20) /* of such values one at a time is moved: meanwhile it lies in this process once more */

struct layout { /* of one value */
    struct mc_described described;
    struct mc_replica_description replicas[MC_REPLICA_COUNT_MAX];
    size_t count;
};

static int describe_layout(struct mc_store *store, struct mc_bytes key, struct layout *layout)
{
    int rc = mc_call_describe(store, &key, false, mc_store_deadline(store, 0), layout->replicas, MC_REPLICA_COUNT_MAX,
                              &layout->described);
    layout->count = rc < 0 ? 0 : (size_t)rc;
    return rc < 0 ? rc : rc == 0 ? MC_ERR_OBJECT_NOT_FOUND : 0;
}

static bool is_on(const struct layout *layout, const char *segment)
{
    for (size_t i = 0; i < layout->count; i++)
        if (strcmp(layout->replicas[i].segment_name, segment) == 0)
            return true;
    return false;
}

static void *allocate(void *context, size_t index, uint64_t length)
{
    (void)index;
    struct iovec *part = context;
    free(part->iov_base); /* of a value of another length that was there a moment ago */
    *part = (struct iovec){malloc(length), length};
    return part->iov_base;
}

/* The value in place of the one that was looked at. */
static int rewrite_as(struct mc_store *store, struct mc_bytes key, const struct layout *layout,
                      const struct mc_replicate_config *config)
{
    struct iovec part = {NULL, 0};
    struct mc_get_item got = {.key = key};
    int rc = mc_get_full(store, &got, allocate, &part);
    if (rc == 0) {
        struct mc_put_item put = {.key = key, .parts = &part, .part_count = 1};
        rc = mc_put_expected(store, &put, config, layout->described.version);
    }
    free(part.iov_base);
    return rc;
}

/* The same on the segments of these names, and others if there shall be more replicas. */
static int rewrite(struct mc_store *store, struct mc_bytes key, const struct layout *layout, const char *const *names,
                   size_t count, size_t replica_count)
{
    struct mc_replicate_config config = {.replica_count = (uint32_t)replica_count,
                                         .preferred_segment_count = (uint32_t)count,
                                         .preferred_segments = names,
                                         .with_hard_pin = (layout->described.pins & MC_PUT_HARD_PIN) != 0,
                                         .with_soft_pin = (layout->described.pins & MC_PUT_SOFT_PIN) != 0};
    return rewrite_as(store, key, layout, &config);
}

/* Names of the segments that are to hold the value; returns how many. copy: those that it is on, and the targets; move:
 * the target in place of the source. */
static size_t wanted(const struct layout *layout, const char *source, const char *const *targets, size_t target_count,
                     const char *names[MC_REPLICA_COUNT_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < layout->count; i++)
        if (source == NULL || strcmp(layout->replicas[i].segment_name, source) != 0)
            names[count++] = layout->replicas[i].segment_name;
    for (size_t i = 0; i < target_count && count < MC_REPLICA_COUNT_MAX; i++) {
        bool known = false;
        for (size_t k = 0; k < count && !known; k++)
            known = strcmp(names[k], targets[i]) == 0;
        if (!known)
            names[count++] = targets[i];
    }
    return count;
}

static int request_check(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                         size_t target_count, struct layout *layout)
{
    int rc = mc_key_check(key);
    if (rc == 0 && (target_count == 0 || target_count > MC_REPLICA_COUNT_MAX || (source != NULL && target_count != 1)))
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0 && source != NULL && strcmp(source, targets[0]) == 0)
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0)
        rc = describe_layout(store, key, layout);
    if (rc == 0 && source != NULL && !is_on(layout, source))
        rc = MC_ERR_REPLICA_NOT_FOUND;
    for (size_t i = 0; rc == 0 && i < target_count; i++)
        rc = mc_call_segment_named(store, targets[i], mc_store_deadline(store, 0));
    return rc == MC_ERR_SEGMENT_NOT_FOUND ? MC_ERR_INVALID_PARAMS : rc;
}

int mc_store_copy_check(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                        size_t target_count)
{
    struct layout layout;
    const struct mc_bytes *full = &key;
    struct mc_bytes *made = NULL;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = mc_scope_keys(store, &full, 1, &made);
    if (rc == 0)
        rc = request_check(store, *full, source, targets, target_count, &layout);
    free(made);
    mc_store_leave(store);
    return rc;
}

static bool is_done(const struct layout *layout, const char *source, const char *const *targets, size_t target_count)
{
    bool done = source == NULL || !is_on(layout, source);
    for (size_t i = 0; done && i < target_count; i++)
        done = is_on(layout, targets[i]);
    return done;
}

static int copy(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                size_t target_count)
{
    struct layout layout;
    const char *names[MC_REPLICA_COUNT_MAX];
    int rc = request_check(store, key, source, targets, target_count, &layout);
    for (unsigned again = 0; rc == 0 && !is_done(&layout, source, targets, target_count); again++) {
        size_t count = wanted(&layout, source, targets, target_count, names);
        rc = again == AGAIN_MAX ? MC_ERR_STALE : rewrite(store, key, &layout, names, count, count);
        bool replaced = rc == MC_ERR_STALE && again < AGAIN_MAX;
        if (rc == 0 || replaced) {
            int looked = describe_layout(store, key, &layout);
            if (looked == 0 && rc == 0 && !is_done(&layout, source, targets, target_count))
                return MC_ERR_NO_AVAILABLE_HANDLE;
            rc = looked;
        }
    }
    return rc;
}

int mc_store_copy(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                  size_t target_count)
{
    const struct mc_bytes *full = &key;
    struct mc_bytes *made = NULL;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = mc_scope_keys(store, &full, 1, &made);
    if (rc == 0)
        rc = copy(store, *full, source, targets, target_count);
    free(made);
    mc_store_leave(store);
    return rc;
}

int mc_store_spread(struct mc_store *store, struct mc_bytes key, uint32_t segment, uint64_t epoch)
{
    struct mc_endpoint endpoint;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = atomic_load(&store->epoch) != epoch ? MC_ERR_STALE : 0;
    if (rc == 0)
        rc = mc_store_endpoint(store, epoch, segment, mc_store_deadline(store, 0), &endpoint);
    const char *target = endpoint.name;
    if (rc == 0)
        rc = copy(store, key, NULL, &target, 1);
    mc_store_leave(store);
    return rc;
}

int mc_store_move_away(struct mc_store *store, struct mc_bytes key, const char *segment, pthread_mutex_t *large)
{
    struct layout layout;
    const char *names[MC_REPLICA_COUNT_MAX];
    for (unsigned again = 0; again < AGAIN_MAX; again++) {
        int rc = describe_layout(store, key, &layout);
        if (rc == MC_ERR_OBJECT_NOT_FOUND || (rc == 0 && !is_on(&layout, segment)))
            return 0;
        bool is_large = rc == 0 && layout.replicas[0].size >= LARGE_BYTES;
        if (is_large)
            pthread_mutex_lock(large);
        if (rc == 0)
            rc = rewrite(store, key, &layout, names, wanted(&layout, segment, NULL, 0, names), layout.count);
        if (is_large)
            pthread_mutex_unlock(large);
        if (rc != MC_ERR_STALE)
            return rc;
    }
    return MC_ERR_STALE;
}

/* ---- clear ---- */

static int clear_one(struct mc_store *store, struct mc_bytes key, const char *segment)
{
    struct layout layout;
    const char *names[MC_REPLICA_COUNT_MAX];
    int rc = mc_key_check(key);
    for (unsigned again = 0; rc == 0 && again < AGAIN_MAX; again++) {
        rc = describe_layout(store, key, &layout);
        if (rc == 0 && !is_on(&layout, segment))
            rc = MC_ERR_REPLICA_NOT_FOUND;
        bool is_read = (layout.described.pins & MC_FOUND_LEASED) != 0 && again == 0; /* later it may be by us */
        if (rc == 0 && is_read)
            rc = MC_ERR_OBJECT_HAS_LEASE;
        if (rc < 0)
            return rc;
        size_t count = wanted(&layout, segment, NULL, 0, names);
        if (count == 0)
            return mc_call_remove(store, key);
        rc = rewrite(store, key, &layout, names, count, count);
        if (rc != MC_ERR_STALE)
            return rc;
        rc = 0;
    }
    return rc < 0 ? rc : MC_ERR_STALE;
}

int mc_store_replica_clear(struct mc_store *store, const struct mc_bytes *keys, size_t count, const char *segment_name,
                           int *results)
{
    if (segment_name == NULL || segment_name[0] == 0)
        return mc_store_remove(store, keys, count, false, results);
    struct mc_bytes *made = NULL;
    int entered = mc_store_enter(store), rc = entered, first = 0;
    if (rc == 0)
        rc = mc_scope_keys(store, &keys, count, &made);
    for (size_t i = 0; i < count; i++) {
        results[i] = rc < 0 ? rc : clear_one(store, keys[i], segment_name);
        first = first < 0 ? first : results[i];
    }
    free(made);
    if (entered == 0)
        mc_store_leave(store);
    return first;
}

/* ---- pins ---- */

/* Into memory of its owner, if it lies on a disk alone. */
static int load(struct mc_store *store, struct mc_bytes key)
{
    struct iovec part = {NULL, 0};
    struct mc_get_item got = {.key = key};
    int rc = mc_get_full(store, &got, allocate, &part);
    free(part.iov_base);
    return rc;
}

static int pin_one(struct mc_store *store, struct mc_bytes key, struct mc_replicate_config config)
{
    struct layout layout;
    const char *names[MC_REPLICA_COUNT_MAX];
    int rc = mc_key_check(key);
    for (unsigned again = 0; rc == 0 && again < AGAIN_MAX; again++) {
        rc = describe_layout(store, key, &layout);
        if (rc == MC_ERR_OBJECT_NOT_FOUND && again == 0) {
            rc = load(store, key);
            continue;
        }
        if (rc < 0)
            return rc;
        config.preferred_segments = names;
        config.preferred_segment_count = (uint32_t)wanted(&layout, NULL, NULL, 0, names);
        config.replica_count = config.preferred_segment_count;
        rc = rewrite_as(store, key, &layout, &config);
        if (rc != MC_ERR_STALE)
            return rc;
        rc = 0;
    }
    return rc < 0 ? rc : MC_ERR_STALE;
}

int mc_store_pin(struct mc_store *store, const struct mc_bytes *keys, size_t count,
                 const struct mc_replicate_config *config, int *results)
{
    struct mc_bytes *made = NULL;
    struct mc_replicate_config wish = {.drop_soft_pin = true}; /* for what is wished here */
    int entered = mc_store_enter(store), rc = entered, first = 0;
    if (rc == 0)
        rc = mc_scope_keys(store, &keys, count, &made);
    if (config != NULL) {
        wish.with_hard_pin = config->with_hard_pin;
        wish.with_soft_pin = config->with_soft_pin;
        wish.soft_pin_ttl_ms = config->soft_pin_ttl_ms;
        wish.firm_pin_ms = config->firm_pin_ms;
        wish.firm_pin_or_not = config->firm_pin_or_not;
    }
    for (size_t i = 0; i < count; i++) {
        results[i] = rc < 0 ? rc : pin_one(store, keys[i], wish);
        first = first < 0 ? first : results[i];
        if (results[i] == MC_ERR_NOT_SUPPORTED)
            rc = results[i]; /* for none of them, and each is read first */
    }
    free(made);
    if (entered == 0)
        mc_store_leave(store);
    return first;
}
