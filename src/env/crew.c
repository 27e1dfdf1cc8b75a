#include "env/crew.h"

#include "env/log.h"
#include "env/setting.h"
#include "env/thread.h"

#include <stdatomic.h>
#include <stdlib.h>

#define THREADS_BY_DEFAULT 4u

struct crew_run { /* one run, on the stack of its caller */
    void (*piece)(void *context, uint32_t index, bool is_own);
    void *context;
    uint32_t count;
    _Atomic uint32_t next;
    unsigned inside; /* helpers that may take pieces; under crew->lock */
};

struct mc_crew {
    pthread_mutex_t lock;
    pthread_cond_t came, left; /* work; the last helper of a run: callers of several runs may wait for theirs */
    struct crew_run *run;      /* NULL: none, or nobody else may enter it */
    uint64_t number;           /* of runs */
    bool is_ending;
    unsigned wanted, count; /* helpers */
    pthread_t threads[MC_CREW_THREADS_MAX - 1];
};

static void pieces_take(struct crew_run *run, bool is_own)
{
    uint32_t index;
    while ((index = atomic_fetch_add_explicit(&run->next, 1, memory_order_relaxed)) < run->count)
        run->piece(run->context, index, is_own);
}

static void *helper_run(void *argument)
{
    struct mc_crew *crew = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (!crew->is_ending && (crew->run == NULL || crew->number == seen))
            pthread_cond_wait(&crew->came, &crew->lock);
        if (crew->is_ending)
            break;
        struct crew_run *run = crew->run;
        seen = crew->number;
        run->inside++;
        pthread_mutex_unlock(&crew->lock);
        pieces_take(run, false);
        pthread_mutex_lock(&crew->lock);
        if (--run->inside == 0)
            pthread_cond_broadcast(&crew->left);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* With the lock. Those that cannot be started are not tried again. */
static void helpers_start(struct mc_crew *crew)
{
    while (crew->count < crew->wanted) {
        if (mc_thread_start(&crew->threads[crew->count], "mc-copy", helper_run, crew) != 0) {
            mc_log(WARNING, "%u of %u threads help with large copies: no more can be started", crew->count,
                   crew->wanted);
            crew->wanted = crew->count;
            return;
        }
        crew->count++;
    }
}

/* False: another run is under way, or there are no helpers. */
static bool run_offer(struct mc_crew *crew, struct crew_run *run)
{
    pthread_mutex_lock(&crew->lock);
    helpers_start(crew);
    bool is_offered = crew->run == NULL && crew->count > 0;
    if (is_offered) {
        crew->run = run;
        crew->number++;
        pthread_cond_broadcast(&crew->came);
    }
    pthread_mutex_unlock(&crew->lock);
    return is_offered;
}

/* All pieces were taken: nobody else comes in, and those who are in finish theirs. */
static void run_end(struct mc_crew *crew, struct crew_run *run)
{
    pthread_mutex_lock(&crew->lock);
    crew->run = NULL;
    while (run->inside > 0)
        pthread_cond_wait(&crew->left, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

void mc_crew_run(struct mc_crew *crew, uint32_t count, void (*piece)(void *context, uint32_t index, bool is_own),
                 void *context)
{
    struct crew_run run = {.piece = piece, .context = context, .count = count};
    bool is_offered = crew != NULL && count > 1 && run_offer(crew, &run);
    pieces_take(&run, true);
    if (is_offered)
        run_end(crew, &run);
}

unsigned mc_crew_threads(void)
{
    uint32_t by_default = mc_threads_by_processors(1, THREADS_BY_DEFAULT);
    return (unsigned)mc_setting_number(MC_COPY_THREADS, "", 1, MC_CREW_THREADS_MAX, by_default);
}

struct mc_crew *mc_crew_create(unsigned threads)
{
    struct mc_crew *crew = threads < 2 ? NULL : calloc(1, sizeof(*crew));
    if (crew == NULL)
        return NULL;
    crew->wanted = (threads < MC_CREW_THREADS_MAX ? threads : MC_CREW_THREADS_MAX) - 1;
    mc_monitor_init(&crew->lock, &crew->came);
    mc_condition_init(&crew->left);
    return crew;
}

void mc_crew_free(struct mc_crew *crew, bool is_forked)
{
    if (crew == NULL)
        return;
    if (!is_forked) {
        pthread_mutex_lock(&crew->lock);
        crew->is_ending = true;
        pthread_cond_broadcast(&crew->came);
        pthread_mutex_unlock(&crew->lock);
        for (unsigned i = 0; i < crew->count; i++)
            pthread_join(crew->threads[i], NULL);
        pthread_cond_destroy(&crew->left);
        mc_monitor_destroy(&crew->lock, &crew->came);
    }
    free(crew);
}
