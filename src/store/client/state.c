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

void mc_call_times_add(struct mc_call_times *times, uint64_t since_ns)
{
    static const uint32_t bounds_us[MC_STORE_CALL_BOUND_COUNT] = {MC_STORE_CALL_BOUNDS_US};
    uint64_t took_ns = mc_clock_ns() - since_ns;
    unsigned at = 0;
    while (at < MC_STORE_CALL_BOUND_COUNT && took_ns > bounds_us[at] * UINT64_C(1000))
        at++;
    atomic_fetch_add_explicit(&times->counts[at], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&times->sum_ns, took_ns, memory_order_relaxed);
}

struct mc_store_call_times mc_call_times_seen(const struct mc_call_times *times)
{
    struct mc_store_call_times seen = {.sum_us = atomic_load_explicit(&times->sum_ns, memory_order_relaxed) / 1000};
    for (unsigned i = 0; i <= MC_STORE_CALL_BOUND_COUNT; i++)
        seen.counts[i] = atomic_load_explicit(&times->counts[i], memory_order_relaxed);
    return seen;
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
