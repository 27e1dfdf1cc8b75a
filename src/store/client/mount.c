/* Memory lent besides the store's own segment: each mount is a store of its own that only lends, and leaves when it is
 * closed. A thread, started with the first grace, closes those whose time is over. */
#include "env/clock.h"
#include "env/thread.h"
#include "store/client/life.h"
#include "store/client/threads.h"
#include "store/owner/owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MAX_MS (UINT64_C(366) * 24 * 3600 * 1000)

struct segment_mount {
    struct mc_store *store; /* NULL: free, or being opened */
    bool taken;
    bool is_part;      /* of what setup was asked for: it has no id, and leaves with the store */
    uint64_t leave_ns; /* 0: it stays */
    char id[MC_MOUNT_ID_MAX];
};

struct mc_mounts {
    struct mc_sleeper sleeper;
    struct segment_mount mounts[MC_MOUNTS_MAX];
};

static struct mc_mounts *mounts_of(struct mc_store *store)
{
    struct mc_mounts *mounts = atomic_load(&store->mounts), *other = NULL;
    if (mounts != NULL)
        return mounts;
    mounts = calloc(1, sizeof(*mounts));
    if (mounts == NULL)
        return NULL;
    mc_monitor_init(&mounts->sleeper.lock, &mounts->sleeper.changed);
    if (atomic_compare_exchange_strong(&store->mounts, &other, mounts))
        return mounts;
    mc_monitor_destroy(&mounts->sleeper.lock, &mounts->sleeper.changed);
    free(mounts);
    return other;
}

/* The store of one whose time is over, and when the next one's is (0: never). Lock held. */
static struct mc_store *take_due(struct mc_mounts *mounts, uint64_t *next_ns)
{
    uint64_t now_ns = mc_clock_ns();
    *next_ns = 0;
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++) {
        struct segment_mount *mount = &mounts->mounts[i];
        if (mount->leave_ns != 0 && mount->leave_ns <= now_ns) {
            struct mc_store *store = mount->store;
            *mount = (struct segment_mount){.store = NULL};
            return store;
        }
        if (mount->leave_ns != 0 && (*next_ns == 0 || mount->leave_ns < *next_ns))
            *next_ns = mount->leave_ns;
    }
    return NULL;
}

/* NULL is allowed. Nobody mounts anything in a lender. */
static void lender_close(struct mc_store *lender)
{
    if (mc_life_quiet(lender))
        mc_life_end(lender);
}

static void *mounts_main(void *argument)
{
    struct mc_mounts *mounts = argument;
    pthread_mutex_lock(&mounts->sleeper.lock);
    while (!mounts->sleeper.stop) {
        uint64_t next_ns;
        struct mc_store *due = take_due(mounts, &next_ns);
        if (due != NULL) {
            pthread_mutex_unlock(&mounts->sleeper.lock);
            lender_close(due);
            pthread_mutex_lock(&mounts->sleeper.lock);
        } else if (next_ns == 0) {
            pthread_cond_wait(&mounts->sleeper.changed, &mounts->sleeper.lock);
        } else {
            (void)mc_monitor_wait(&mounts->sleeper.lock, &mounts->sleeper.changed,
                                  next_ns); /* looks at the clock again */
        }
    }
    pthread_mutex_unlock(&mounts->sleeper.lock);
    return NULL;
}

void mc_mounts_end(struct mc_store *store)
{
    struct mc_mounts *mounts = atomic_exchange(&store->mounts, NULL);
    if (mounts == NULL)
        return;
    mc_sleeper_end(&mounts->sleeper);
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++)
        lender_close(mounts->mounts[i].store);
    free(mounts);
}

/* A store that lends so many bytes under our host's name, on a port of its own. */
static int open_lender(struct mc_store *store, uint64_t size, struct mc_store **lender)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port;
    int rc = mc_address_split(store->hostname, host, sizeof(host), &port);
    if (rc < 0)
        return rc;
    struct mc_store_config config = {.local_hostname = host,
                                     .master_server_addr = store->master.configured,
                                     .global_segment_size = size,
                                     .call_timeout_ms = store->call_timeout_ms,
                                     .data_dir = "",
                                     .disk_paths = ""};
    return mc_life_begin(&config, NULL, lender);
}

/* One that is free, which is taken then; NULL: there is none. */
static struct segment_mount *mount_take(struct mc_mounts *mounts)
{
    struct segment_mount *mount = NULL;
    pthread_mutex_lock(&mounts->sleeper.lock);
    for (size_t i = 0; i < MC_MOUNTS_MAX && mount == NULL; i++)
        mount = mounts->mounts[i].taken ? NULL : &mounts->mounts[i];
    if (mount != NULL)
        mount->taken = true;
    pthread_mutex_unlock(&mounts->sleeper.lock);
    return mount;
}

int mc_mounts_add_part(struct mc_store *store, const struct mc_store_config *config, const struct mc_numa_nodes *nodes)
{
    struct mc_store *lender = NULL;
    struct mc_mounts *mounts = mounts_of(store);
    struct segment_mount *mount = mounts == NULL ? NULL : mount_take(mounts);
    int rc = mount == NULL ? MC_ERR_NO_MEMORY : mc_life_begin(config, nodes, &lender);
    if (mount != NULL) {
        pthread_mutex_lock(&mounts->sleeper.lock);
        *mount = (struct segment_mount){.store = lender, .taken = rc == 0, .is_part = rc == 0};
        pthread_mutex_unlock(&mounts->sleeper.lock);
    }
    return rc;
}

size_t mc_mounts_parts(struct mc_store *store, struct mc_store *parts[MC_MOUNTS_MAX])
{
    struct mc_mounts *mounts = atomic_load(&store->mounts);
    size_t count = 0;
    if (mounts == NULL)
        return 0;
    pthread_mutex_lock(&mounts->sleeper.lock);
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++)
        if (mounts->mounts[i].is_part)
            parts[count++] = mounts->mounts[i].store;
    pthread_mutex_unlock(&mounts->sleeper.lock);
    return count;
}

int mc_store_mount(struct mc_store *store, uint64_t size, char id[MC_MOUNT_ID_MAX], uint64_t *bytes)
{
    struct mc_store *lender = NULL;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct mc_mounts *mounts = mounts_of(store);
    struct segment_mount *mount = NULL;
    rc = size == 0 || store->only_asks ? MC_ERR_INVALID_PARAMS : mounts == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0) {
        mount = mount_take(mounts);
        rc = mount == NULL ? MC_ERR_NO_AVAILABLE_HANDLE : open_lender(store, size, &lender); /* may take seconds */
    }
    if (mount != NULL) {
        struct mc_id random = mc_random_id();
        snprintf(id, MC_MOUNT_ID_MAX, "%" PRIu64 "-%" PRIu64, random.high, random.low);
        pthread_mutex_lock(&mounts->sleeper.lock);
        mount->taken = rc == 0;
        mount->store = lender;
        memcpy(mount->id, id, MC_MOUNT_ID_MAX);
        pthread_mutex_unlock(&mounts->sleeper.lock);
    }
    if (rc == 0) {
        *bytes = mc_owner_capacity(atomic_load(&lender->owner));
    }
    mc_store_leave(store);
    return rc;
}

/* Lock held. */
static int leave_later(struct mc_mounts *mounts, struct segment_mount *mount, uint64_t grace_ms)
{
    if (!mounts->sleeper.has_thread && mc_sleeper_start(&mounts->sleeper, "mc-mounts", mounts_main, mounts) != 0)
        return MC_ERR_NO_MEMORY;
    mount->leave_ns = mc_clock_ns() + (grace_ms < GRACE_MAX_MS ? grace_ms : GRACE_MAX_MS) * 1000000ull;
    atomic_store(&mount->store->leaving, true);
    mc_store_wake(mount->store); /* the master is told at once */
    pthread_cond_signal(&mounts->sleeper.changed);
    return 0;
}

int mc_store_unmount(struct mc_store *store, const char *id, uint64_t grace_ms)
{
    struct mc_store *lender = NULL;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct mc_mounts *mounts = atomic_load(&store->mounts);
    rc = MC_ERR_SEGMENT_NOT_FOUND;
    if (mounts != NULL)
        pthread_mutex_lock(&mounts->sleeper.lock);
    for (size_t i = 0; mounts != NULL && i < MC_MOUNTS_MAX; i++) {
        struct segment_mount *mount = &mounts->mounts[i];
        if (mount->store == NULL || mount->is_part || strcmp(mount->id, id) != 0)
            continue;
        rc = mount->leave_ns != 0 ? MC_ERR_INVALID_PARAMS : grace_ms > 0 ? leave_later(mounts, mount, grace_ms) : 0;
        if (rc == 0 && grace_ms == 0) {
            lender = mount->store;
            *mount = (struct segment_mount){.store = NULL};
        }
        break;
    }
    if (mounts != NULL)
        pthread_mutex_unlock(&mounts->sleeper.lock);
    lender_close(lender);
    mc_store_leave(store);
    return rc;
}
