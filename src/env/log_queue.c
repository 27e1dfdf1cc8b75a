/* The ring of lines for files, and the thread that writes them. */
#include "env/log_queue.h"

#include "env/clock.h"
#include "env/thread.h"

#include <string.h>

#define WAIT_NS 5000000u

struct label {
    uint16_t length;
    uint16_t target;
};

static struct {
    pthread_mutex_t lock; /* held for a few instructions, and while the thread is started */
    pthread_cond_t came, went;
    pthread_t thread;
    bool has_thread, is_ending;
    bool is_late;          /* somebody has waited in vain, and the thread is behind since */
    uint64_t put, written; /* lines */
    size_t first, used;    /* bytes */
    mc_log_queue_write *write;
    char bytes[MC_LOG_QUEUE_BYTES];
} queue;

/* ---- forks ---- */

/* Whoever holds this lock waits for no other of ours, and any other may be held where a line is written: so it is taken
 * last of all before a fork, and its handlers are the first to be registered. */
static void before_fork(void)
{
    pthread_mutex_lock(&queue.lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&queue.lock);
}

/* The parent writes what there is. The child has no thread, and starts its own when it has a line. */
static void after_fork_child(void)
{
    mc_condition_init(&queue.came); /* whoever waited is not there */
    mc_condition_init(&queue.went);
    queue.has_thread = queue.is_ending = queue.is_late = false;
    queue.first = queue.used = 0;
    queue.written = queue.put;
    pthread_mutex_unlock(&queue.lock);
}

__attribute__((constructor(101))) static void queue_init(void)
{
    mc_monitor_init(&queue.lock, &queue.came);
    mc_condition_init(&queue.went);
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child); /* fails for want of memory only */
}

/* ---- the ring; the lock is held ---- */

static void bytes_add(const void *from, size_t length)
{
    size_t at = (queue.first + queue.used) % MC_LOG_QUEUE_BYTES;
    size_t here = length < MC_LOG_QUEUE_BYTES - at ? length : MC_LOG_QUEUE_BYTES - at;
    memcpy(queue.bytes + at, from, here);
    memcpy(queue.bytes, (const char *)from + here, length - here);
    queue.used += length;
}

static void bytes_take(void *to, size_t length)
{
    size_t here = length < MC_LOG_QUEUE_BYTES - queue.first ? length : MC_LOG_QUEUE_BYTES - queue.first;
    memcpy(to, queue.bytes + queue.first, here);
    memcpy((char *)to + here, queue.bytes, length - here);
    queue.first = (queue.first + length) % MC_LOG_QUEUE_BYTES;
    queue.used -= length;
}

static void one_write(void)
{
    char text[MC_LOG_LINE_MAX];
    struct label label;
    bytes_take(&label, sizeof(label));
    bytes_take(text, label.length);
    pthread_mutex_unlock(&queue.lock);
    queue.write((enum mc_log_target)label.target, text, label.length);
    pthread_mutex_lock(&queue.lock);
    queue.written++;
    queue.is_late = queue.is_late && queue.used > 0;
    pthread_cond_broadcast(&queue.went);
}

static void *run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&queue.lock);
    while (queue.used > 0 || !queue.is_ending) {
        if (queue.used > 0)
            one_write();
        else
            pthread_cond_wait(&queue.came, &queue.lock);
    }
    queue.has_thread = false;
    pthread_cond_broadcast(&queue.went);
    pthread_mutex_unlock(&queue.lock);
    return NULL;
}

/* False: the time is over. */
static bool wait_for(uint64_t number, uint64_t until_ns)
{
    while (queue.written < number && mc_monitor_wait(&queue.lock, &queue.went, until_ns) == 0)
        continue;
    return queue.written >= number;
}

/* ---- calls ---- */

enum mc_log_put mc_log_queue_put(enum mc_log_target target, const char *text, size_t length, mc_log_queue_write *write)
{
    struct label label = {(uint16_t)length, (uint16_t)target};
    enum mc_log_put result = MC_LOG_PUT;
    pthread_mutex_lock(&queue.lock);
    if (!queue.has_thread && !queue.is_ending) { /* who ends it joins one thread */
        queue.write = write;
        queue.has_thread = mc_thread_start(&queue.thread, "mc-log", run, NULL) == 0;
    }
    if (!queue.has_thread) {
        result = MC_LOG_NO_THREAD;
    } else if (MC_LOG_QUEUE_BYTES - queue.used < sizeof(label) + length) {
        result = MC_LOG_FULL;
    } else {
        bytes_add(&label, sizeof(label));
        bytes_add(text, length);
        queue.put++;
        pthread_cond_signal(&queue.came);
        if (!queue.is_late)
            queue.is_late = !wait_for(queue.put, mc_clock_ns() + WAIT_NS);
    }
    pthread_mutex_unlock(&queue.lock);
    return result;
}

bool mc_log_queue_flush(uint32_t ms)
{
    pthread_mutex_lock(&queue.lock);
    bool is_written = wait_for(queue.put, mc_clock_ns() + ms * 1000000ull);
    pthread_mutex_unlock(&queue.lock);
    return is_written;
}

bool mc_log_queue_end(uint32_t ms)
{
    uint64_t until_ns = mc_clock_ns() + ms * 1000000ull;
    pthread_mutex_lock(&queue.lock);
    bool had_thread = queue.has_thread;
    pthread_t thread = queue.thread;
    queue.is_ending = true;
    pthread_cond_signal(&queue.came);
    while (queue.has_thread && mc_monitor_wait(&queue.lock, &queue.went, until_ns) == 0)
        continue;
    bool has_ended = !queue.has_thread;
    queue.is_ending = false;
    pthread_mutex_unlock(&queue.lock);
    if (had_thread && has_ended)
        pthread_join(thread, NULL);
    return has_ended;
}
