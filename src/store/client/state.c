/* The frame of every call: in and out of a store, its deadline, its keys. */
#include "store/client/state.h"

#include "env/clock.h"

#define BYTES_PER_SECOND_ASSUMED (64u << 20) /* a call's deadline grows by a second for so many bytes */

int mc_store_enter(struct mc_store *store)
{
    if (store == NULL)
        return MC_ERR_INVALID_PARAMS;
    if (atomic_load(&store->forked))
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    atomic_fetch_add(&store->calls, 1);
    if (!atomic_load(&store->closing))
        return 0;
    mc_store_leave(store);
    return MC_ERR_INVALID_PARAMS;
}

/* Nothing after the decrement: a closing thread may free the store the moment it sees zero. */
void mc_store_leave(struct mc_store *store)
{
    atomic_fetch_sub(&store->calls, 1);
}

uint64_t mc_store_deadline(const struct mc_store *store, uint64_t bytes)
{
    return mc_clock_ns() + store->call_timeout_ms * 1000000ull + bytes / BYTES_PER_SECOND_ASSUMED * 1000000000ull;
}

int mc_key_check(struct mc_bytes key)
{
    return key.data == NULL || key.length == 0 || key.length > MC_KEY_LENGTH_MAX ? MC_ERR_INVALID_KEY : 0;
}

uint64_t mc_parts_length(const struct iovec *parts, size_t part_count)
{
    uint64_t length = 0;
    for (size_t i = 0; i < part_count; i++)
        length = length + parts[i].iov_len < length ? UINT64_MAX : length + parts[i].iov_len;
    return length;
}

void mc_store_wake(struct mc_store *store)
{
    pthread_mutex_lock(&store->beat_lock);
    store->is_beat_due = true;
    pthread_cond_signal(&store->beat_changed);
    pthread_mutex_unlock(&store->beat_lock);
}
