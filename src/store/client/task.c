/* Copies and moves in the background: one thread, started with the first task, that takes them in order; and after
 * these the copies of hot objects that the master has asked for. */
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/client/calls.h"
#include "store/client/threads.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPREAD_MAX 16u /* hot objects that wait; the master asks again */

struct copy_task {
    struct mc_task told;
    uint32_t segment; /* not 0: a hot object, whose full key it is, to that segment; nobody asks what became of it */
    uint64_t epoch;   /* of that number */
    struct copy_task *next;
    const char *source;
    size_t target_count;
    const char *targets[MC_REPLICA_COUNT_MAX];
    size_t key_length;
    char text[]; /* key, source, targets */
};

struct mc_tasks {
    struct mc_sleeper sleeper;
    struct mc_store *store;
    struct copy_task *first, **last; /* ended ones, then the one that runs, then those that wait */
    struct copy_task *next;          /* to run */
    size_t waiting, ended;
    struct copy_task *hot; /* a list of its own, the last one first */
    size_t hot_count;
};

static uint64_t wall_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Lock held. */
static void set_status(struct copy_task *task, enum mc_task_status status)
{
    task->told.status = status;
    task->told.updated_ms = wall_ms();
}

/* Lock held, but not while it works. */
static void spread_one(struct mc_tasks *tasks)
{
    struct copy_task *task = tasks->hot;
    tasks->hot = task->next;
    tasks->hot_count--;
    pthread_mutex_unlock(&tasks->sleeper.lock);
    int rc = mc_store_spread(tasks->store, (struct mc_bytes){task->text, task->key_length}, task->segment, task->epoch);
    if (rc < 0)
        mc_log_limited(INFO, "a value that is read often was not copied to segment %u: %s", task->segment,
                       mc_error_name(rc));
    free(task);
    pthread_mutex_lock(&tasks->sleeper.lock);
}

static void *tasks_main(void *argument)
{
    struct mc_tasks *tasks = argument;
    pthread_mutex_lock(&tasks->sleeper.lock);
    for (;;) {
        while (!tasks->sleeper.stop && tasks->next == NULL && tasks->hot == NULL)
            pthread_cond_wait(&tasks->sleeper.changed, &tasks->sleeper.lock);
        if (tasks->sleeper.stop)
            break;
        if (tasks->next == NULL) {
            spread_one(tasks);
            continue;
        }
        struct copy_task *task = tasks->next;
        tasks->next = task->next;
        tasks->waiting--;
        set_status(task, MC_TASK_PROCESSING);
        pthread_mutex_unlock(&tasks->sleeper.lock);
        /* Without the lock: only ended tasks are freed. */
        struct mc_bytes key = {task->text, task->key_length};
        int rc = mc_store_copy(tasks->store, key, task->source, task->targets, task->target_count);
        pthread_mutex_lock(&tasks->sleeper.lock);
        task->told.code = rc;
        set_status(task, rc == 0 ? MC_TASK_SUCCESS : MC_TASK_FAILED);
        if (++tasks->ended > MC_TASKS_MAX) {
            struct copy_task *oldest = tasks->first;
            tasks->first = oldest->next;
            if (tasks->first == NULL)
                tasks->last = &tasks->first;
            free(oldest);
            tasks->ended--;
        }
    }
    pthread_mutex_unlock(&tasks->sleeper.lock);
    return NULL;
}

static struct mc_tasks *tasks_of(struct mc_store *store)
{
    struct mc_tasks *tasks = atomic_load(&store->tasks), *other = NULL;
    if (tasks != NULL)
        return tasks;
    tasks = calloc(1, sizeof(*tasks));
    if (tasks == NULL)
        return NULL;
    mc_monitor_init(&tasks->sleeper.lock, &tasks->sleeper.changed);
    tasks->store = store;
    tasks->last = &tasks->first;
    if (mc_sleeper_start(&tasks->sleeper, "mc-tasks", tasks_main, tasks) == 0 &&
        atomic_compare_exchange_strong(&store->tasks, &other, tasks))
        return tasks;
    mc_sleeper_end(&tasks->sleeper); /* another thread was faster, perhaps */
    free(tasks);
    return other;
}

void mc_tasks_end(struct mc_store *store)
{
    struct mc_tasks *tasks = atomic_exchange(&store->tasks, NULL);
    if (tasks == NULL)
        return;
    mc_sleeper_end(&tasks->sleeper); /* after the copy under way, which has a deadline */
    *tasks->last = tasks->hot;
    for (struct copy_task *next; tasks->first != NULL; tasks->first = next) {
        next = tasks->first->next;
        free(tasks->first);
    }
    free(tasks);
}

static const char *keep(char **at, const char *text)
{
    size_t length = strlen(text) + 1;
    char *kept = memcpy(*at, text, length);
    *at += length;
    return kept;
}

static struct copy_task *task_make(struct mc_bytes key, const char *source, const char *const *targets,
                                   size_t target_count)
{
    size_t bytes = key.length + (source == NULL ? 0 : strlen(source) + 1);
    for (size_t i = 0; i < target_count; i++)
        bytes += strlen(targets[i]) + 1;
    struct copy_task *task = calloc(1, sizeof(*task) + bytes);
    if (task == NULL)
        return NULL;
    memcpy(task->text, key.data, key.length);
    task->key_length = key.length;
    char *at = task->text + key.length;
    task->source = source == NULL ? NULL : keep(&at, source);
    for (size_t i = 0; i < target_count; i++)
        task->targets[task->target_count++] = keep(&at, targets[i]);
    struct mc_id id = mc_random_id();
    task->told = (struct mc_task){.id = {id.high, id.low}, .is_move = source != NULL, .created_ms = wall_ms()};
    task->told.updated_ms = task->told.created_ms;
    return task;
}

int mc_store_task_create(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                         size_t target_count, uint64_t id[2])
{
    int rc = mc_store_copy_check(store, key, source, targets, target_count);
    if (rc < 0)
        return rc;
    rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct mc_tasks *tasks = tasks_of(store);
    struct copy_task *task = tasks == NULL ? NULL : task_make(key, source, targets, target_count);
    rc = task == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0) {
        pthread_mutex_lock(&tasks->sleeper.lock);
        if (tasks->waiting >= MC_TASKS_MAX) {
            rc = MC_ERR_BUSY;
            free(task);
        } else {
            memcpy(id, task->told.id, sizeof(task->told.id));
            *tasks->last = task;
            tasks->last = &task->next;
            tasks->waiting++;
            if (tasks->next == NULL)
                tasks->next = task;
            pthread_cond_signal(&tasks->sleeper.changed);
        }
        pthread_mutex_unlock(&tasks->sleeper.lock);
    }
    mc_store_leave(store);
    return rc;
}

int mc_store_task_query(struct mc_store *store, const uint64_t id[2], struct mc_task *told)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct mc_tasks *tasks = atomic_load(&store->tasks);
    rc = MC_ERR_TASK_NOT_FOUND;
    if (tasks != NULL) {
        pthread_mutex_lock(&tasks->sleeper.lock);
        for (const struct copy_task *task = tasks->first; task != NULL && rc < 0; task = task->next) {
            if (task->told.id[0] != id[0] || task->told.id[1] != id[1])
                continue;
            *told = task->told;
            rc = 0;
        }
        pthread_mutex_unlock(&tasks->sleeper.lock);
    }
    mc_store_leave(store);
    return rc;
}

void mc_tasks_spread(struct mc_store *store, struct mc_bytes key, uint32_t segment, uint64_t epoch)
{
    struct mc_tasks *tasks = tasks_of(store);
    struct copy_task *task = tasks == NULL ? NULL : task_make(key, NULL, NULL, 0);
    if (task == NULL)
        return;
    task->segment = segment;
    task->epoch = epoch;
    pthread_mutex_lock(&tasks->sleeper.lock);
    if (tasks->hot_count < SPREAD_MAX) {
        task->next = tasks->hot;
        tasks->hot = task;
        tasks->hot_count++;
        task = NULL;
        pthread_cond_signal(&tasks->sleeper.changed);
    }
    pthread_mutex_unlock(&tasks->sleeper.lock);
    free(task);
}
