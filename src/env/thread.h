/* Threads of the library, and what they wait on. They are named and have every signal blocked, so that handlers of the
 * host program run on the host's own threads; but for those of a fault, which are the faulting thread's alone: the
 * program may know what to do about its memory, and a blocked one would end the process without asking it. */
#ifndef MC_ENV_THREAD_H
#define MC_ENV_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* 0 or an errno value. name: at most 15 bytes. Who passes NULL for thread does not join it. */
static inline int mc_thread_start(pthread_t *thread, const char *name, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    pthread_t detached;
    sigfillset(&all);
    const int of_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof(of_faults) / sizeof(of_faults[0]); i++)
        sigdelset(&all, of_faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread == NULL ? &detached : thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(thread == NULL ? detached : *thread, name);
    if (rc == 0 && thread == NULL)
        pthread_detach(detached);
    return rc;
}

/* A condition whose timed waits go by CLOCK_MONOTONIC, and a lock with one. None of it takes memory or can fail on
 * Linux. */
static inline void mc_condition_init(pthread_cond_t *changed)
{
    pthread_condattr_t attributes;
    int rc = pthread_condattr_init(&attributes);
    rc |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    rc |= pthread_cond_init(changed, &attributes);
    rc |= pthread_condattr_destroy(&attributes);
    mc_assert(rc == 0);
}
static inline void mc_monitor_init(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_mutex_init(lock, NULL);
    mc_condition_init(changed);
}
static inline void mc_monitor_destroy(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_cond_destroy(changed);
    pthread_mutex_destroy(lock);
}
/* Until it is woken, 0, or mc_clock_ns() has come there, ETIMEDOUT. */
static inline int mc_monitor_wait(pthread_mutex_t *lock, pthread_cond_t *changed, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    return pthread_cond_timedwait(changed, lock, &until);
}

/* A thread with a lock of its own, under which it sleeps until there is work, or it is to stop. */
struct mc_sleeper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, stop;
};
/* 0 or an errno value. Its lock is there already: mc_monitor_init. */
static inline int mc_sleeper_start(struct mc_sleeper *self, const char *name, void *(*function)(void *), void *argument)
{
    int rc = mc_thread_start(&self->thread, name, function, argument);
    self->has_thread = rc == 0;
    return rc;
}
/* Returns when the thread, if there is one, has seen that it is to stop. */
static inline void mc_sleeper_end(struct mc_sleeper *self)
{
    pthread_mutex_lock(&self->lock);
    self->stop = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    if (self->has_thread)
        pthread_join(self->thread, NULL);
    mc_monitor_destroy(&self->lock, &self->changed);
}

#endif
