/* Segments that are mounted and unmounted while a service runs. */
#include "service/mounts.h"

#include "env/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mount {
    struct mc_store *store; /* NULL: free */
    bool is_taken;          /* also while its store is opened */
    uint64_t close_at_ms;   /* 0: it stays */
    char id[MC_MOUNT_ID_MAX];
};

struct mc_mounts {
    pthread_mutex_t lock;
    struct mount mounts[MC_MOUNTS_MAX];
};

struct mc_mounts *mc_mounts_create(void)
{
    struct mc_mounts *mounts = calloc(1, sizeof(*mounts));
    if (mounts != NULL)
        pthread_mutex_init(&mounts->lock, NULL);
    return mounts;
}

/* Takes the store out, so that it can be closed without the lock. */
static struct mc_store *take(struct mount *mount)
{
    struct mc_store *store = mount->store;
    *mount = (struct mount){.store = NULL};
    return store;
}

void mc_mounts_destroy(struct mc_mounts *mounts)
{
    if (mounts == NULL)
        return;
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++)
        (void)mc_store_close(take(&mounts->mounts[i])); /* always 0 */
    pthread_mutex_destroy(&mounts->lock);
    free(mounts);
}

int mc_mounts_add(struct mc_mounts *mounts, const struct mc_store_config *config, char id[MC_MOUNT_ID_MAX],
                  uint64_t *size)
{
    struct mount *mount = NULL;
    struct mc_store *store = NULL;
    struct mc_store_statistics statistics;
    pthread_mutex_lock(&mounts->lock);
    for (size_t i = 0; i < MC_MOUNTS_MAX && mount == NULL; i++)
        if (!mounts->mounts[i].is_taken)
            mount = &mounts->mounts[i];
    if (mount != NULL)
        mount->is_taken = true;
    pthread_mutex_unlock(&mounts->lock);
    if (mount == NULL)
        return MC_ERR_NO_AVAILABLE_HANDLE;
    int rc = mc_store_open(config, &store); /* may take seconds */
    pthread_mutex_lock(&mounts->lock);
    if (rc < 0) {
        mount->is_taken = false;
    } else {
        struct mc_id random = mc_random_id();
        mount->store = store;
        snprintf(mount->id, sizeof(mount->id), "%" PRIu64 "-%" PRIu64, random.high, random.low);
        memcpy(id, mount->id, sizeof(mount->id));
        mc_store_statistics(store, &statistics);
        *size = statistics.segment_capacity;
    }
    pthread_mutex_unlock(&mounts->lock);
    return rc;
}

static bool is_id(const char *id)
{
    const char *dash = strchr(id, '-');
    size_t length = strlen(id);
    return dash != NULL && dash != id && dash[1] != 0 && length < MC_MOUNT_ID_MAX &&
           strspn(id, "0123456789-") == length && strchr(dash + 1, '-') == NULL;
}

int mc_mounts_remove(struct mc_mounts *mounts, const char *id, uint64_t grace_s)
{
    struct mc_store *store = NULL;
    int rc = is_id(id) ? MC_ERR_INVALID_PARAMS : MC_ERR_INTERNAL_ERROR;
    pthread_mutex_lock(&mounts->lock);
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++) {
        struct mount *mount = &mounts->mounts[i];
        if (mount->store == NULL || mount->close_at_ms != 0 || strcmp(mount->id, id) != 0)
            continue;
        if (grace_s > 0)
            mount->close_at_ms = mc_clock_ms() + grace_s * 1000;
        else
            store = take(mount);
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&mounts->lock);
    (void)mc_store_close(store); /* always 0 */
    return rc;
}

void mc_mounts_tick(struct mc_mounts *mounts)
{
    uint64_t now_ms = mc_clock_ms();
    for (size_t i = 0; i < MC_MOUNTS_MAX; i++) {
        struct mc_store *store = NULL;
        pthread_mutex_lock(&mounts->lock);
        if (mounts->mounts[i].close_at_ms != 0 && mounts->mounts[i].close_at_ms <= now_ms)
            store = take(&mounts->mounts[i]);
        pthread_mutex_unlock(&mounts->lock);
        (void)mc_store_close(store); /* always 0 */
    }
}
