/* The table of slow calls. */
#include "store/master/slow.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct slow_span {
    size_t count, fastest; /* fastest: which is, once the span is full */
    struct mc_slow_call calls[MC_SLOW_KEPT];
};

struct mc_slow {
    pthread_mutex_t mutex;
    uint64_t began_ms;         /* of the span that is written */
    unsigned now;              /* which that is */
    struct slow_span spans[2]; /* it, and the one before */
};

const char *mc_slow_name(enum mc_slow_kind kind)
{
    static const char *const names[MC_SLOW_KINDS] = {"put", "remove", "remove_many"};
    return kind < MC_SLOW_KINDS ? names[kind] : "?";
}

struct mc_slow *mc_slow_create(void)
{
    struct mc_slow *slow = calloc(1, sizeof(*slow));
    if (slow != NULL && pthread_mutex_init(&slow->mutex, NULL) != 0) {
        free(slow);
        return NULL;
    }
    return slow;
}

void mc_slow_destroy(struct mc_slow *slow)
{
    if (slow == NULL)
        return;
    pthread_mutex_destroy(&slow->mutex);
    free(slow);
}

/* Under the mutex. */
static void move_on(struct mc_slow *slow, uint64_t now_ms)
{
    if (now_ms < slow->began_ms + MC_SLOW_SPAN_MS)
        return; /* maybe even of before it: who read the clock first comes second */
    uint64_t gone_ms = now_ms - slow->began_ms;
    slow->began_ms = now_ms;
    slow->now = 1 - slow->now;
    slow->spans[slow->now].count = 0;
    if (gone_ms >= 2 * MC_SLOW_SPAN_MS)
        slow->spans[1 - slow->now].count = 0; /* of long ago, too */
}

static size_t fastest_of(const struct slow_span *span)
{
    size_t at = 0;
    for (size_t i = 1; i < span->count; i++)
        if (span->calls[i].call.took_ms < span->calls[at].call.took_ms)
            at = i;
    return at;
}

bool mc_slow_wants(struct mc_slow *slow, uint64_t now_ms, uint64_t took_ms)
{
    if (slow == NULL)
        return false;
    pthread_mutex_lock(&slow->mutex);
    move_on(slow, now_ms);
    const struct slow_span *span = &slow->spans[slow->now];
    bool wants = span->count < MC_SLOW_KEPT || span->calls[span->fastest].call.took_ms < took_ms;
    pthread_mutex_unlock(&slow->mutex);
    return wants;
}

void mc_slow_add(struct mc_slow *slow, uint64_t now_ms, const struct mc_slow_call *call)
{
    if (!mc_slow_wants(slow, now_ms, call->call.took_ms))
        return;
    pthread_mutex_lock(&slow->mutex);
    struct slow_span *span = &slow->spans[slow->now];
    span->calls[span->count < MC_SLOW_KEPT ? span->count++ : span->fastest] = *call;
    span->fastest = fastest_of(span);
    pthread_mutex_unlock(&slow->mutex);
}

static int compare(const void *a, const void *b)
{
    const struct mc_slow_call *x = a, *y = b;
    if (x->call.took_ms != y->call.took_ms)
        return x->call.took_ms < y->call.took_ms ? 1 : -1;
    return (x->wall_ms < y->wall_ms) - (x->wall_ms > y->wall_ms);
}

size_t mc_slow_read(struct mc_slow *slow, uint64_t now_ms, struct mc_slow_call list[MC_SLOW_MAX])
{
    size_t count = 0;
    pthread_mutex_lock(&slow->mutex);
    move_on(slow, now_ms);
    for (unsigned i = 0; i < 2; i++) {
        memcpy(list + count, slow->spans[i].calls, slow->spans[i].count * sizeof(list[0]));
        count += slow->spans[i].count;
    }
    pthread_mutex_unlock(&slow->mutex);
    qsort(list, count, sizeof(list[0]), compare);
    return count;
}
