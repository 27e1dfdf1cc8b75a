/* I/O by a pool of threads, each of which has one request at a time: where io_uring is forbidden, and for what that has
 * no operation for. */
#include "store/disk/io_inside.h"

#include "base/error.h"
#include "env/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS_MAX 16u      /* more do not make a disk faster, and each has a stack */
#define AGAIN_PAUSE_US 1000u /* before a call that the kernel had no memory for is made again */

struct pool {
    struct mc_disk_io *io;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* there is work, or it is to stop */
    struct mc_disk_list work, ended;
    unsigned working, waiting; /* threads that have a request; requests that no thread has */
    bool stop;
    unsigned count, count_max; /* the owner's */
    pthread_t threads[THREADS_MAX];
};

static int64_t call_once(const struct mc_disk_slot *slot)
{
    struct mc_disk_request *request = slot->request;
    if (request->operation == MC_DISK_CALL)
        return request->call(request);
    off_t offset = (off_t)(request->offset + request->moved);
    ssize_t given =
        request->operation == MC_DISK_READ    ? pread(request->fd, slot->part.iov_base, slot->part.iov_len, offset)
        : request->operation == MC_DISK_WRITE ? pwrite(request->fd, slot->part.iov_base, slot->part.iov_len, offset)
                                              : fdatasync(request->fd);
    return given < 0 ? -errno : given;
}

static void *thread_main(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct mc_disk_slot *slot = mc_disk_list_take(&pool->work);
        if (slot == NULL && pool->stop)
            break;
        if (slot == NULL) {
            pthread_cond_wait(&pool->changed, &pool->lock);
            continue;
        }
        pool->waiting--;
        pool->working++;
        pthread_mutex_unlock(&pool->lock);
        for (int64_t given; given = call_once(slot), mc_disk_slot_goes_on(slot, given);)
            if (given == -EAGAIN)
                usleep(AGAIN_PAUSE_US);
        pthread_mutex_lock(&pool->lock);
        pool->working--;
        bool is_first = pool->ended.first == NULL; /* else the owner was signalled, and has yet to take the list */
        mc_disk_list_append(&pool->ended, slot);
        if (is_first)
            mc_disk_io_signal(pool->io);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_thread(struct pool *pool)
{
    int rc = mc_thread_start(&pool->threads[pool->count], "mc-disk-io", thread_main, pool);
    pool->count += rc == 0;
    return -rc;
}

static int pool_open(struct mc_disk_io *io)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    int rc = -ENOMEM;
    if (pool == NULL)
        return rc;
    pool->io = io;
    pool->count_max = io->depth < THREADS_MAX ? io->depth : THREADS_MAX;
    mc_monitor_init(&pool->lock, &pool->changed);
    /* The first one now: that there is one is what makes `begin` unable to fail. */
    rc = start_thread(pool);
    if (rc < 0)
        goto free_pool;
    io->pool = pool;
    return 0;
free_pool:
    mc_monitor_destroy(&pool->lock, &pool->changed);
    free(pool);
    return rc;
}

static void pool_begin(struct mc_disk_io *io, struct mc_disk_slot *slot)
{
    struct pool *pool = io->pool;
    pthread_mutex_lock(&pool->lock);
    mc_disk_list_append(&pool->work, slot);
    pool->waiting++;
    bool is_short = pool->working + pool->waiting > pool->count;
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    if (is_short && pool->count < pool->count_max)
        (void)start_thread(pool); /* without it the others do the work, later */
}

static bool pool_ended(struct mc_disk_io *io, struct mc_disk_list *list)
{
    struct pool *pool = io->pool;
    pthread_mutex_lock(&pool->lock);
    for (struct mc_disk_slot *slot; (slot = mc_disk_list_take(&pool->ended)) != NULL;)
        mc_disk_list_append(list, slot);
    pthread_mutex_unlock(&pool->lock);
    return false;
}

static void pool_close(struct mc_disk_io *io, bool is_child)
{
    struct pool *pool = io->pool;
    if (!is_child) { /* a child has no such threads, and one of them may have held the lock when it was forked */
        pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->changed);
        pthread_mutex_unlock(&pool->lock);
        for (unsigned i = 0; i < pool->count; i++)
            pthread_join(pool->threads[i], NULL);
        mc_monitor_destroy(&pool->lock, &pool->changed);
    }
    free(pool);
}

const struct mc_disk_way mc_disk_way_threads = {
    .kind = MC_DISK_IO_THREADS,
    .open = pool_open,
    .begin = pool_begin,
    .ended = pool_ended,
    .close = pool_close,
};
