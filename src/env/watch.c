/* The thread that looks at files again. */
#include "env/watch.h"

#include "base/error.h"
#include "env/log.h"
#include "env/thread.h"

#include <poll.h>
#include <stdatomic.h>

#define LOOK_MS 1000 /* between two looks whether a file has changed */
#define LOOKS_MAX 2u /* keys and certificates */

/* No lock: a process may be forked at any moment. */
static void (*_Atomic looks[LOOKS_MAX])(void);
static atomic_bool has_thread;

static void on_forked(void)
{
    atomic_store(&has_thread, false);
}

__attribute__((constructor)) static void fork_handler_install(void)
{
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

static void *look_again(void *unused)
{
    for (;;) {
        (void)poll(NULL, 0, LOOK_MS);
        for (size_t i = 0; i < LOOKS_MAX; i++) {
            void (*look)(void) = atomic_load(&looks[i]);
            if (look != NULL)
                look();
        }
    }
    return unused;
}

void mc_watch(void (*look)(void))
{
    bool is_known = false;
    for (size_t i = 0; i < LOOKS_MAX && !is_known; i++) {
        void (*there)(void) = NULL;
        is_known = atomic_compare_exchange_strong(&looks[i], &there, look) || there == look;
    }
    mc_assert(is_known);
    if (atomic_load(&has_thread) || atomic_exchange(&has_thread, true))
        return;
    if (mc_thread_start(NULL, "mc-files", look_again, NULL) == 0)
        return;
    atomic_store(&has_thread, false);
    mc_log_limited(ERROR, "no thread can be started: files of keys and certificates are not looked at again");
}
