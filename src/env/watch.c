/* The threads that look at files again. */
#include "env/watch.h"

#include "base/error.h"
#include "env/log.h"
#include "env/thread.h"

#include <poll.h>
#include <stdatomic.h>

#define LOOK_MS 1000   /* between two looks whether a file has changed */
#define WATCHES_MAX 2u /* keys and certificates */

/* No lock: a process may be forked at any moment. */
static struct file_watch {
    void (*_Atomic look)(void); /* NULL: this place is free */
    atomic_bool has_thread;
} watches[WATCHES_MAX];

static void on_forked(void)
{
    for (size_t i = 0; i < WATCHES_MAX; i++)
        atomic_store(&watches[i].has_thread, false);
}

__attribute__((constructor)) static void fork_handler_install(void)
{
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

static void *look_again(void *argument)
{
    struct file_watch *watch = argument;
    for (;;) {
        (void)poll(NULL, 0, LOOK_MS);
        atomic_load (&watch->look)();
    }
    return NULL;
}

static struct file_watch *watch_of(void (*look)(void))
{
    for (size_t i = 0; i < WATCHES_MAX; i++) {
        void (*there)(void) = NULL;
        if (atomic_compare_exchange_strong(&watches[i].look, &there, look) || there == look)
            return &watches[i];
    }
    return NULL;
}

void mc_watch(const char *name, void (*look)(void))
{
    struct file_watch *watch = watch_of(look);
    mc_assert(watch != NULL);
    if (atomic_load(&watch->has_thread) || atomic_exchange(&watch->has_thread, true))
        return;
    if (mc_thread_start(NULL, name, look_again, watch) == 0)
        return;
    atomic_store(&watch->has_thread, false);
    mc_log_limited(ERROR, "no thread %s can be started: its files are not looked at again", name);
}
