/* Which batches are checked, and what is said of those that differ. */
#include "transfer/peer/check.h"
#include "transfer/state/metrics.h"

#include "base/checksum.h"
#include "env/log.h"

#include <string.h>

void (*mc_check_disturb)(void *bytes, size_t length);

/* Which of so many in a row: another one each time, since transfers come in rounds of peers and of layers, and one in a
 * hundred would always be the same one's of four. Of the first so many it is the first. */
static uint64_t place_in(uint64_t window, uint32_t every)
{
    uint64_t mixed = window * 0x9e3779b97f4a7c15ull; /* splitmix64 */
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return (mixed ^ (mixed >> 31)) % every;
}

/* One in so many of each size, rounded down to a power of two: the few that are large are covered as the many that are
 * small. The first of each is. */
static bool is_drawn(struct mc_transfer_engine *engine, uint64_t bytes)
{
    const uint32_t every = engine->settings.checksum_every;
    unsigned size = bytes == 0 ? 0 : 63 - (unsigned)__builtin_clzll(bytes);
    uint64_t number = atomic_fetch_add_explicit(&engine->checks[size], 1, memory_order_relaxed);
    return number % every == place_in(number / every, every);
}

bool mc_check_wanted(struct mc_peer *peer, uint64_t bytes)
{
    struct mc_transfer_engine *engine = peer->engine;
    if (engine->settings.checksum_every == 0)
        return false;
    pthread_mutex_lock(&peer->lock);
    bool is_able = peer->document.can_sum && engine->settings.tcp_version >= 2;
    bool is_new = !is_able && !peer->is_unchecked;
    peer->is_unchecked = !is_able;
    pthread_mutex_unlock(&peer->lock);
    if (is_new)
        mc_log(INFO, "%s cannot compare checksums: transfers with it are not checked", peer->name);
    return is_able && is_drawn(engine, bytes);
}

int mc_check_wrong(struct mc_sum_check *check, uint64_t address, uint64_t length, uint32_t ours, uint32_t theirs)
{
    *check =
        (struct mc_sum_check){.is_wrong = true, .address = address, .length = length, .ours = ours, .theirs = theirs};
    return MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

void mc_check_tell(struct mc_peer *peer, enum mc_transfer_opcode opcode, int path, const struct mc_sum_check *check)
{
    mc_tally_check(peer->tally, path, check->is_wrong);
    if (check->is_wrong)
        mc_log_limited(
            ERROR,
            "checksums differ after a %s %s, %llu bytes at its 0x%llx: %08x here, %08x there; the bytes were "
            "changed on their way, or one side's memory was written meanwhile",
            opcode == MC_TRANSFER_WRITE ? "write to" : "read from", peer->name, (unsigned long long)check->length,
            (unsigned long long)check->address, (unsigned)check->ours, (unsigned)check->theirs);
}

bool mc_check_copy(void *to, const void *from, size_t length, uint32_t *from_sum, uint32_t *to_sum)
{
    const uint8_t *source = from;
    uint8_t *target = to;
    if (target + length <= source || source + length <= target) {
        *from_sum = mc_copy_crc32c(to, from, length, 0);
    } else {
        *from_sum = mc_crc32c(0, from, length); /* the copy changes it */
        memmove(to, from, length);
    }
    if (mc_check_disturb != NULL)
        mc_check_disturb(to, length);
    *to_sum = mc_crc32c(0, to, length);
    return *from_sum == *to_sum;
}
