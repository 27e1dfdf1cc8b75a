/* Registered buffers: the RDMA devices read and write them in place. */
#include "store/client/state.h"

#include <stdlib.h>

#define REGISTERED_MAX 65536u

/* `lock` is held. NULL: it is not there. */
static struct mc_registered *registered_at(const struct mc_store *store, const void *base)
{
    for (size_t i = 0; i < store->registered_count; i++)
        if (store->registered[i].base == base)
            return &store->registered[i];
    return NULL;
}

/* The same once no call is at work on it. */
static struct mc_registered *registered_at_rest(struct mc_store *store, const void *base)
{
    struct mc_registered *found;
    while ((found = registered_at(store, base)) != NULL && found->is_busy)
        pthread_cond_wait(&store->registered_changed, &store->lock);
    return found;
}

static bool has_room(struct mc_store *store)
{
    if (store->registered_count < store->registered_capacity)
        return true;
    size_t capacity = store->registered_capacity == 0 ? 64 : store->registered_capacity * 2;
    struct mc_registered *grown = realloc(store->registered, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    store->registered = grown;
    store->registered_capacity = capacity;
    return true;
}

/* `lock` is held. */
static int note(struct mc_store *store, void *base, size_t size)
{
    if (base == NULL || size == 0 || registered_at_rest(store, base) != NULL ||
        store->registered_count >= REGISTERED_MAX)
        return MC_ERR_INVALID_PARAMS;
    if (!has_room(store))
        return MC_ERR_NO_MEMORY;
    store->registered[store->registered_count++] = (struct mc_registered){base, size, true};
    return 0;
}

int mc_store_register_buffer(struct mc_store *store, void *base, size_t size)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    rc = note(store, base, size);
    pthread_mutex_unlock(&store->lock);
    if (rc == 0) {
        (void)mc_gpu_note(base, size);
        (void)mc_paths_register(store->paths, base, size); /* what devices refuse is copied */
        pthread_mutex_lock(&store->lock);
        registered_at(store, base)->is_busy = false;
        pthread_cond_broadcast(&store->registered_changed);
        pthread_mutex_unlock(&store->lock);
    }
    mc_store_leave(store);
    return rc;
}

int mc_store_unregister_buffer(struct mc_store *store, void *base)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    struct mc_registered *found = registered_at_rest(store, base);
    rc = found == NULL ? MC_ERR_INVALID_PARAMS : 0;
    if (rc == 0)
        found->is_busy = true;
    pthread_mutex_unlock(&store->lock);
    if (rc == 0) {
        rc = mc_paths_unregister(store->paths, base);
        if (rc == 0)
            mc_gpu_forget(base);
        pthread_mutex_lock(&store->lock);
        found = registered_at(store, base); /* it may lie elsewhere now */
        found->is_busy = false;
        if (rc == 0)
            *found = store->registered[--store->registered_count];
        pthread_cond_broadcast(&store->registered_changed);
        pthread_mutex_unlock(&store->lock);
    }
    mc_store_leave(store);
    return rc;
}

uint64_t mc_store_registered_bytes(struct mc_store *store, const void *address)
{
    uint64_t most = UINT64_MAX;
    if (mc_store_enter(store) < 0)
        return most;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->registered_count; i++) {
        uintptr_t base = (uintptr_t)store->registered[i].base, at = (uintptr_t)address;
        if (at < base || at - base >= store->registered[i].size)
            continue;
        uint64_t left = store->registered[i].size - (at - base);
        most = most == UINT64_MAX || left > most ? left : most;
    }
    pthread_mutex_unlock(&store->lock);
    mc_store_leave(store);
    return most;
}
