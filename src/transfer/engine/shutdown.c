/* The end of a process by a signal: its engines are drained first.
 *
 * The handler only wakes a thread of ours, which does what blocks. The thread that was interrupted goes on: it may hold
 * any lock, also one that the transfers under way need. */
#include "transfer/peer/peer.h"
#include "transfer/serve/memory.h"
#include "transfer/serve/publish.h"
#include "transfer/serve/service.h"
#include "transfer/state/engine.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 5
#define LOG_MS 1000 /* for lines that their file has not taken yet */

static const int signals[] = {SIGTERM, SIGINT};
#define SIGNALS (sizeof(signals) / sizeof(signals[0]))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before[SIGNALS]; /* what they did; set before ours is installed */
static _Atomic pid_t owner;              /* the process with the thread; 0: none */
static _Atomic int event_fd, seen;

/* ---- draining ---- */

static bool is_idle(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool is_idle = mc_memory_is_quiet(engine) && mc_peers_are_idle(engine) && engine->heard_links == 0;
    pthread_mutex_unlock(&engine->lock);
    return is_idle;
}

/* Each engine leaves its metadata server before it refuses peers, so that they look elsewhere. Peers with RDMA links
 * reach our memory without a word to us: they are told, and end a link when nothing of theirs is under way on it. */
static void drain(void)
{
    struct mc_transfer_engine *engines = mc_transfer_enter_drained(), *one;
    for (one = engines; one != NULL; one = one->next_drained) {
        mc_transfer_withdraw(one);
        pthread_mutex_lock(&one->lock);
        one->is_leaving = true;
        mc_memory_refuse(one);
        pthread_mutex_unlock(&one->lock);
        mc_service_leave(one);
    }
    uint64_t until_ms = mc_clock_ms() + MC_TRANSFER_DRAIN_MS;
    for (one = engines; one != NULL;) {
        bool is_late = mc_clock_ms() >= until_ms, is_still_busy = !is_idle(one);
        if (is_still_busy && !is_late) {
            nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
            continue;
        }
        if (is_still_busy)
            mc_log(WARNING, "transfer engine %s: transfers are still under way after %u ms; they are cut off",
                   one->name, MC_TRANSFER_DRAIN_MS);
        struct mc_transfer_engine *next = one->next_drained;
        mc_transfer_leave(one);
        one = next;
    }
}

/* ---- the signal ---- */

static size_t place_of(int number)
{
    return number == signals[0] ? 0 : 1;
}

/* Of a forked child, which has no thread: the signal does what it did before. A second one ends the process at once. */
static void on_signal(int number)
{
    int error = errno;
    uint64_t value = (uint64_t)number;
    if (getpid() != owner) {
        (void)sigaction(number, &before[place_of(number)], NULL);
        (void)raise(number); /* comes when this returns */
    } else if (atomic_exchange(&seen, 1) != 0 || write(event_fd, &value, sizeof(value)) != (ssize_t)sizeof(value)) {
        _exit(128 + number);
    }
    errno = error;
}

static void give_back_signals(void)
{
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == on_signal)
            (void)sigaction(signals[i], &before[i], NULL);
    }
}

static void *watch_main(void *argument)
{
    uint64_t value = 0;
    ssize_t got;
    (void)argument;
    do
        got = read(event_fd, &value, sizeof(value));
    while (got < 0 && errno == EINTR);
    int number = (int)value;
    mc_log(INFO, "signal %d: transfer engines are drained", number);
    drain();
    if (before[place_of(number)].sa_handler == SIG_DFL) {
        (void)mc_log_flush(LOG_MS);
        _exit(128 + number);
    }
    give_back_signals(); /* the program wants to hear of it, and may go on */
    (void)kill(getpid(), number);
    return NULL;
}

/* The lock is held. */
static int install(void)
{
    struct sigaction ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    int fd = eventfd(0, EFD_CLOEXEC);
    if (fd < 0)
        return MC_TRANSFER_ERR_MEMORY;
    atomic_store(&event_fd, fd);
    atomic_store(&seen, 0);
    if (mc_thread_start(NULL, "mc-signals", watch_main, NULL) != 0) {
        close(fd);
        return MC_TRANSFER_ERR_MEMORY;
    }
    mc_transfer_note_fd(fd);
    atomic_store(&owner, getpid());
    sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < SIGNALS; i++)
        sigaddset(&ours.sa_mask, signals[i]);
    for (size_t i = 0; i < SIGNALS; i++) {
        struct sigaction now;
        bool is_known = sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN;
        if (is_known && now.sa_handler != on_signal) /* a child has ours from its parent */
            before[i] = now;
        if (is_known)
            (void)sigaction(signals[i], &ours, NULL);
    }
    return 0;
}

static void withdraw_one(struct mc_transfer_engine *engine, void *unused)
{
    (void)unused;
    mc_transfer_withdraw(engine);
}

void mc_transfer_withdraw_all(void)
{
    mc_transfer_each(withdraw_one, NULL);
}

int mc_transfer_drain_on_signals(struct mc_transfer_engine *engine)
{
    static bool is_told_of_exit; /* a child inherits that, too */
    int rc = 0;
    if (!mc_transfer_alive(engine))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        rc = install();
    if (rc == 0 && !is_told_of_exit)
        is_told_of_exit = atexit(mc_transfer_withdraw_all) == 0;
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        atomic_store(&engine->drains_on_signals, true);
    return rc;
}
