/* Segments that are avoided for a while, and what the master is told of them. */
#include "store/client/avoid.h"

#include "env/clock.h"

#define AVOID_MS 1000u /* so long a segment is hidden after a failed transfer */
#define TELL_MS 300u   /* a failure is told if the master answers so soon after it */

static bool is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid least)
{
    uint64_t until_ms = atomic_load(&store->avoided_until_ms), now_ms = until_ms == 0 ? 0 : mc_clock_ms();
    bool found = false;
    if (until_ms <= now_ms)
        return false;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < MC_AVOIDED_MAX && !found; i++) {
        const struct mc_avoided *one = &store->avoided[i];
        found = one->until_ms > now_ms && one->epoch == epoch && one->segment == segment && one->how >= least;
    }
    pthread_mutex_unlock(&store->lock);
    return found;
}

bool mc_store_is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return is_avoided(store, epoch, segment, MC_AVOID_FAILED);
}

bool mc_store_is_slow(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return is_avoided(store, epoch, segment, MC_AVOID_SLOW);
}

size_t mc_store_avoided(struct mc_store *store, uint32_t *segments, size_t capacity)
{
    uint64_t until_ms = atomic_load(&store->avoided_until_ms), epoch = atomic_load(&store->epoch);
    uint64_t now_ms = until_ms == 0 ? 0 : mc_clock_ms();
    size_t count = 0;
    if (until_ms <= now_ms)
        return 0;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < MC_AVOIDED_MAX && count < capacity; i++) {
        if (store->avoided[i].until_ms > now_ms && store->avoided[i].epoch == epoch)
            segments[count++] = store->avoided[i].segment;
    }
    pthread_mutex_unlock(&store->lock);
    return count;
}

void mc_store_avoid(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid how, int code)
{
    uint64_t until_ms = mc_clock_ms() + AVOID_MS;
    pthread_mutex_lock(&store->lock);
    struct mc_avoided *oldest = &store->avoided[0];
    for (size_t i = 0; i < MC_AVOIDED_MAX; i++) {
        struct mc_avoided *one = &store->avoided[i];
        if (one->epoch == epoch && one->segment == segment && one->until_ms > 0) {
            oldest = one;
            if (one->until_ms > mc_clock_ms() && one->how > how)
                how = one->how;
            if (one->until_ms > mc_clock_ms() && code == 0)
                code = one->code;
            break;
        }
        if (one->until_ms < oldest->until_ms)
            oldest = one;
    }
    *oldest = (struct mc_avoided){epoch, until_ms, segment, how, code};
    if (code != 0)
        atomic_store(&store->has_untold, true);
    atomic_store(&store->avoided_until_ms, until_ms);
    pthread_mutex_unlock(&store->lock);
}

void mc_store_suspect(struct mc_buffer *out, uint32_t segment, int code)
{
    mc_wire_suspect_frame(out, mc_frame_begin(out, MC_MESSAGE_SUSPECT, 0),
                          &(struct mc_wire_suspect){.segment = segment, .code = code});
}

bool mc_store_tell(struct mc_store *store, uint64_t epoch, struct mc_buffer *out)
{
    if (!atomic_load_explicit(&store->has_untold, memory_order_relaxed))
        return false;
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&store->lock);
    atomic_store(&store->has_untold, false);
    for (size_t i = 0; i < MC_AVOIDED_MAX; i++) {
        struct mc_avoided *one = &store->avoided[i];
        if (one->code != 0 && one->until_ms > now_ms + AVOID_MS - TELL_MS && one->epoch == epoch)
            mc_store_suspect(out, one->segment, one->code);
        one->code = 0;
    }
    pthread_mutex_unlock(&store->lock);
    return true;
}
