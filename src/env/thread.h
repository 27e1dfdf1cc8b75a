/* Threads of the library, and what they wait on. They are named and have every signal blocked, so that handlers of the
 * host program run on the host's own threads. */
#ifndef MC_ENV_THREAD_H
#define MC_ENV_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

/* 0 or an errno value. name: at most 15 bytes. */
static inline int mc_thread_start(pthread_t *thread, const char *name, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        pthread_setname_np(*thread, name);
    return rc;
}

/* A lock, and a condition under it whose timed waits go by CLOCK_MONOTONIC. None of it takes memory or can fail on
 * Linux. */
static inline void mc_monitor_init(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_condattr_t attributes;
    int rc = pthread_mutex_init(lock, NULL);
    rc |= pthread_condattr_init(&attributes);
    rc |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    rc |= pthread_cond_init(changed, &attributes);
    rc |= pthread_condattr_destroy(&attributes);
    mc_assert(rc == 0);
}

#endif
