/* The list of what is to be given back, and the thread that does it. */
#include "store/segment/let_go.h"

#include "env/thread.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* made once: its waits go by CLOCK_MONOTONIC */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct mc_let_go *first, **end = &first, *current;
static unsigned count;
static bool has_thread;

static void changed_make(void)
{
    mc_condition_init(&changed);
}

static void *let_go_run(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&lock);
    while (first != NULL) {
        current = first;
        first = current->next;
        end = first == NULL ? &first : end;
        count--;
        struct mc_let_go *self = current;
        pthread_mutex_unlock(&lock);
        self->run(self);
        pthread_mutex_lock(&lock);
        current = NULL; /* nobody looks at it any more: it may be freed */
        pthread_mutex_unlock(&lock);
        if (self->after != NULL)
            self->after(self);
        pthread_mutex_lock(&lock);
    }
    has_thread = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

void mc_let_go(struct mc_let_go *self)
{
    pthread_once(&once, changed_make);
    self->next = NULL;
    pthread_mutex_lock(&lock);
    bool is_full = count >= MC_LET_GO_MAX, begins = !is_full && !has_thread;
    if (!is_full) {
        *end = self;
        end = &self->next;
        count++;
        has_thread = true;
    }
    pthread_mutex_unlock(&lock);
    if (is_full) {
        self->run(self);
        if (self->after != NULL)
            self->after(self);
    } else if (begins && mc_thread_start(NULL, "mc-let-go", let_go_run, NULL) != 0) {
        (void)let_go_run(NULL);
    }
}

void mc_let_go_await(void)
{
    pthread_once(&once, changed_make);
    pthread_mutex_lock(&lock);
    while (has_thread)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void mc_let_go_await_word(const atomic_bool *word, const atomic_bool *other, uint64_t until_ns)
{
    int rc = 0;
    pthread_once(&once, changed_make);
    pthread_mutex_lock(&lock);
    while (!atomic_load(word) && !atomic_load(other) && rc == 0)
        rc = mc_monitor_wait(&lock, &changed, until_ns);
    pthread_mutex_unlock(&lock);
}

void mc_let_go_wake(void)
{
    pthread_once(&once, changed_make);
    pthread_mutex_lock(&lock); /* who looks at its word is before that, or sleeps */
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void mc_let_go_before_fork(void)
{
    pthread_once(&once, changed_make);
    pthread_mutex_lock(&lock);
}

void mc_let_go_after_fork_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The thread is none of the child's. */
void mc_let_go_after_fork_child(void)
{
    if (current != NULL && current->forked != NULL)
        current->forked(current);
    for (struct mc_let_go *self = first; self != NULL; self = self->next) {
        if (self->forked != NULL)
            self->forked(self);
    }
    first = current = NULL;
    end = &first;
    count = 0;
    has_thread = false;
    mc_condition_init(&changed);
    pthread_mutex_unlock(&lock);
}
