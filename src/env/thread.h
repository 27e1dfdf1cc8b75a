/* Starts threads of the library: named, and with every signal blocked, so that handlers of the host program run on the
 * host's own threads. */
#ifndef MC_ENV_THREAD_H
#define MC_ENV_THREAD_H

#include <pthread.h>
#include <signal.h>

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

#endif
