/* What is known of the master, and whom to believe. */
#include "store/client/master.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/secure.h"
#include "store/client/state.h"
#include "store/owner/owner.h"

/* A master that was silent for as long as a call may wait is away: calls fail at once. The limits of that: */
#define AWAY_LEAST_MS 3000u
#define AWAY_MOST_MS 10000u
#define HELLO_SLOW_MAX 2u

bool mc_master_is_gone(int code)
{
    return code == MC_ERR_RPC_FAIL || code == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
}

uint64_t mc_master_silent_ms(const struct mc_store *store)
{
    /* Read before the clock, and still another thread's clock may have been a little ahead of ours. */
    uint64_t heard_ns = atomic_load(&store->heard_ns), now_ns = mc_clock_boot_ns();
    return heard_ns == 0 ? UINT64_MAX : now_ns > heard_ns ? (now_ns - heard_ns) / 1000000 : 0;
}

bool mc_master_is_away(const struct mc_store *store)
{
    uint32_t limit_ms = store->call_timeout_ms;
    limit_ms = limit_ms < AWAY_LEAST_MS ? AWAY_LEAST_MS : limit_ms > AWAY_MOST_MS ? AWAY_MOST_MS : limit_ms;
    /* The heartbeat thread's word too: a process that was stopped for a while has heard nothing and misses nobody. */
    return atomic_load(&store->is_beat_missed) && mc_master_silent_ms(store) > limit_ms;
}

/* With TLS a connection costs both ends a handshake: a master that has many to make, or a slow machine, takes longer
 * than one try, and what was done would be thrown away with each. One that is not reached at all is left sooner, as
 * another may lead meanwhile. */
void mc_master_tried(struct mc_store *store, unsigned slow, bool was_reached, int code)
{
    if (code >= 0)
        atomic_store(&store->hello_slow, 0);
    else if (code == MC_ERR_RPC_TIMEOUT && was_reached && mc_secure_is_called() && slow < HELLO_SLOW_MAX)
        (void)atomic_compare_exchange_strong(&store->hello_slow, &slow, slow + 1);
}

static void rise_to(_Atomic uint64_t *value, uint64_t least)
{
    uint64_t now = atomic_load_explicit(value, memory_order_relaxed);
    while (now < least &&
           !atomic_compare_exchange_weak_explicit(value, &now, least, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void mc_master_heard(struct mc_store *store, uint64_t epoch, bool acts, uint16_t frame_time)
{
    if (atomic_load_explicit(&store->epoch, memory_order_relaxed) != epoch)
        return;
    uint64_t sent_ns = mc_master_time_of(&store->master_time, epoch, frame_time, mc_clock_boot_ms()) * 1000000u;
    rise_to(&store->heard_ns, sent_ns);
    if (atomic_load_explicit(&store->master.refused_ns, memory_order_relaxed) != 0)
        atomic_store(&store->master.refused_ns, 0);
    if (acts)
        atomic_store_explicit(&store->acting_epoch, epoch, memory_order_relaxed);
    if (atomic_load_explicit(&store->acting_epoch, memory_order_relaxed) == epoch)
        rise_to(&store->acted_ns, sent_ns);
}

void mc_master_ended(struct mc_store *store, uint64_t epoch)
{
    pthread_mutex_lock(&store->lock);
    if (atomic_load(&store->epoch) == epoch)
        atomic_store(&store->master.has_ended, true);
    pthread_mutex_unlock(&store->lock);
}

void mc_master_proof_told(struct mc_store *store, uint64_t epoch, struct mc_span proof)
{
    pthread_mutex_lock(&store->lock);
    mc_epoch_proof_keep(&store->epoch_proof, epoch, proof);
    pthread_mutex_unlock(&store->lock);
}

void mc_master_age_told(struct mc_store *store, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms)
{
    pthread_mutex_lock(&store->lock);
    if (atomic_load(&store->epoch) == epoch)
        mc_master_time_learn(&store->master_time, epoch, age_ms, asked_ms, mc_clock_boot_ms());
    pthread_mutex_unlock(&store->lock);
}

uint32_t mc_master_seen_age_ms(const struct mc_store *store)
{
    uint64_t acted_ns = atomic_load(&store->acted_ns), now_ns = mc_clock_boot_ns();
    uint64_t age_ms = acted_ns == 0 ? UINT32_MAX : now_ns > acted_ns ? (now_ns - acted_ns) / 1000000 : 0;
    return age_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)age_ms;
}

bool mc_master_own_cluster(struct mc_store *store, struct mc_id *cluster)
{
    struct mc_owner *owner = atomic_load(&store->owner);
    bool holds = owner != NULL && mc_owner_holds(owner, cluster);
    if (holds)
        return true;
    pthread_mutex_lock(&store->lock);
    *cluster = store->cluster;
    pthread_mutex_unlock(&store->lock);
    return false;
}

int mc_master_cluster_told(struct mc_store *store, uint64_t epoch, struct mc_id cluster)
{
    struct mc_id ours;
    if (mc_id_is_zero(cluster))
        return 0;
    bool holds = mc_master_own_cluster(store, &ours);
    bool is_other = !mc_id_is_zero(ours) && !mc_id_equal(ours, cluster);
    if (is_other && !holds && epoch >= atomic_load(&store->epoch)) {
        pthread_mutex_lock(&store->lock);
        bool may_move = mc_master_may_move(&store->move, store->master.configured, cluster);
        pthread_mutex_unlock(&store->lock);
        mc_log_limited(WARNING, "the master at %s is of cluster %016llx%016llx, this process was of %016llx%016llx: %s",
                       store->master.configured, (unsigned long long)cluster.high, (unsigned long long)cluster.low,
                       (unsigned long long)ours.high, (unsigned long long)ours.low,
                       may_move
                           ? "it goes there; what was put before is not there"
                           : "whether it is meant is known when its name is looked up anew, or its Lease is renewed");
        if (!may_move)
            return MC_ERR_OTHER_CLUSTER;
    } else if (is_other) {
        mc_log_limited(WARNING,
                       "the master is of cluster %016llx%016llx, this process belongs to %016llx%016llx: it stays away "
                       "from there; to move it, restart it",
                       (unsigned long long)cluster.high, (unsigned long long)cluster.low, (unsigned long long)ours.high,
                       (unsigned long long)ours.low);
        return MC_ERR_OTHER_CLUSTER;
    }
    pthread_mutex_lock(&store->lock);
    store->cluster = cluster;
    store->move = (struct mc_master_move){.since_ms = 0};
    pthread_mutex_unlock(&store->lock);
    mc_paths_set_cluster(store->paths, cluster);
    return 0;
}
