/* Registered buffers: the RDMA devices read and write them in place. */
#include "store/client/state.h"

#include <stdlib.h>

#define REGISTERED_MAX 65536u

int mc_store_register_buffer(struct mc_store *store, void *base, size_t size)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    rc = base == NULL || size == 0 || store->registered_count >= REGISTERED_MAX ? MC_ERR_INVALID_PARAMS : 0;
    for (size_t i = 0; rc == 0 && i < store->registered_count; i++)
        rc = store->registered[i].base == base ? MC_ERR_INVALID_PARAMS : 0;
    if (rc == 0 && store->registered_count == store->registered_capacity) {
        size_t capacity = store->registered_capacity == 0 ? 64 : store->registered_capacity * 2;
        struct mc_registered *grown = realloc(store->registered, capacity * sizeof(*grown));
        if (grown == NULL) {
            rc = MC_ERR_NO_MEMORY;
        } else {
            store->registered = grown;
            store->registered_capacity = capacity;
        }
    }
    if (rc == 0)
        store->registered[store->registered_count++] = (struct mc_registered){base, size};
    pthread_mutex_unlock(&store->lock);
    if (rc == 0 && mc_gpu_note(base, size).kind == MC_GPU_HOST)
        (void)mc_paths_register(store->paths, base, size); /* what devices refuse is copied */
    mc_store_leave(store);
    return rc;
}

int mc_store_unregister_buffer(struct mc_store *store, void *base)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = MC_ERR_INVALID_PARAMS;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->registered_count; i++) {
        if (store->registered[i].base == base) {
            store->registered[i] = store->registered[--store->registered_count];
            rc = 0;
            break;
        }
    }
    pthread_mutex_unlock(&store->lock);
    if (rc == 0) {
        mc_paths_unregister(store->paths, base);
        mc_gpu_forget(base);
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
