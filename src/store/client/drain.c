/* Draining of the own segment: a thread, started with the master's first wish, that moves its objects to others until
 * the wish ends; some at a time, as that many clients would. */
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/client/calls.h"
#include "store/client/link.h"
#include "store/client/threads.h"

#include <stdlib.h>

#define ASK_MS 2000u
#define MOVERS 4u        /* objects that are moved at a time: most of a small one's time is waiting */
#define AGAIN_MS 100u    /* from a pass that moved all that it met to the next, which is to meet nothing */
#define PASS_MS 1000u    /* from one to the next while something could not be moved */
#define STALLED_MS 5000u /* nothing could be moved for so long: nothing can */
#define IDLE_MS 10000u   /* and when there is not: a put that was under way may still end there */

struct keys { /* of one answer */
    uint32_t next_slot;
    size_t count;
    struct mc_buffer text;
    struct mc_bytes keys[MC_BATCH_MAX];
};

struct mc_drain {
    struct mc_store *store;
    struct keys keys;          /* the thread's; here, so that a thread that runs has them */
    struct mc_sleeper sleeper; /* its lock guards what follows; held for no longer than it takes to look */
    bool wanted;
    uint32_t segment;
    uint64_t moved_ms; /* when the last object was moved, or it was wanted */
    uint32_t passes;   /* since it is wanted, whole ones */
    bool is_empty;     /* the last has met nothing */
    size_t left;       /* after it */
};

struct moves { /* of the keys of one answer; those who move take one after the other */
    struct mc_drain *drain;
    _Atomic size_t next, met, failed;
    _Atomic int last; /* why one was not moved */
    pthread_mutex_t large;
};

static void build_keys(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_segment_keys_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENT_KEYS, request_id), context);
}

/* Copies: the link is given back before the keys are moved. */
static int read_keys(struct mc_reader *reader, struct keys *keys)
{
    struct mc_wire_segment_keys_reply head;
    struct mc_wire_key key;
    mc_wire_segment_keys_reply_read(reader, &head);
    uint32_t count = mc_list_read(reader);
    keys->count = 0;
    keys->text.length = 0;
    keys->next_slot = head.slot;
    if (reader->bad || head.code < 0)
        return reader->bad ? MC_ERR_PROTOCOL : head.code;
    mc_buffer_reserve(&keys->text, mc_reader_left(reader)); /* so that it does not move below */
    for (; count > 0 && !reader->bad && keys->count < MC_BATCH_MAX; count--) {
        mc_wire_key_read(reader, &key);
        if (reader->bad)
            return MC_ERR_PROTOCOL;
        keys->keys[keys->count++] = (struct mc_bytes){keys->text.data + keys->text.length, key.key.length};
        mc_buffer_append(&keys->text, key.key.data, key.key.length);
    }
    return 0;
}

static int ask_keys(struct mc_store *store, uint32_t segment, struct keys *keys)
{
    struct mc_wire_segment_keys request = {.segment = segment, .slot = keys->next_slot};
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc = mc_link_call(store, mc_clock_ns() + ASK_MS * 1000000ull, build_keys, &request,
                          MC_MESSAGE_SEGMENT_KEYS_REPLY, &link, &reader);
    if (rc < 0)
        return rc;
    rc = read_keys(&reader, keys);
    mc_link_return(store, link);
    return rc;
}

static bool is_wanted(struct mc_drain *drain)
{
    pthread_mutex_lock(&drain->sleeper.lock);
    bool wanted = drain->wanted && !drain->sleeper.stop;
    pthread_mutex_unlock(&drain->sleeper.lock);
    return wanted;
}

static void note_moved(struct mc_drain *drain)
{
    pthread_mutex_lock(&drain->sleeper.lock);
    drain->moved_ms = mc_clock_ms();
    pthread_mutex_unlock(&drain->sleeper.lock);
}

static void *move_main(void *argument)
{
    struct moves *moves = argument;
    struct mc_drain *drain = moves->drain;
    size_t i;
    while (is_wanted(drain) && (i = atomic_fetch_add(&moves->next, 1)) < drain->keys.count) {
        int rc = mc_store_move_away(drain->store, drain->keys.keys[i], drain->store->hostname, &moves->large);
        atomic_fetch_add(&moves->met, 1);
        if (rc >= 0) {
            note_moved(drain);
        } else {
            atomic_fetch_add(&moves->failed, 1);
            atomic_store(&moves->last, rc);
        }
    }
    return NULL;
}

/* By this thread and others, which have ended when it returns. Where none can be had this one does it alone. */
static void move_all(struct moves *moves)
{
    pthread_t others[MOVERS - 1];
    size_t count = 0;
    while (count < MOVERS - 1 && count + 1 < moves->drain->keys.count &&
           mc_thread_start(&others[count], "mc-move", move_main, moves) == 0)
        count++;
    (void)move_main(moves);
    while (count > 0)
        pthread_join(others[--count], NULL);
}

/* All objects once. Returns how many there were; *left: of them, those that still are; *is_whole: the master has named
 * them all. */
static size_t pass(struct mc_drain *drain, uint32_t segment, size_t *left, bool *is_whole)
{
    struct keys *keys = &drain->keys;
    size_t met = 0, failed = 0;
    int last = 0;
    keys->next_slot = 0;
    do {
        *is_whole = ask_keys(drain->store, segment, keys) == 0;
        if (!*is_whole)
            break;
        struct moves moves = {.drain = drain, .large = PTHREAD_MUTEX_INITIALIZER};
        move_all(&moves);
        met += moves.met;
        failed += moves.failed;
        last = moves.failed > 0 ? moves.last : last;
    } while (keys->next_slot != 0 && is_wanted(drain));
    if (failed > 0)
        mc_log_limited(WARNING, "%zu of %zu objects could not be moved away yet: %s", failed, met, mc_error_name(last));
    *left = failed;
    return met;
}

static void *drain_main(void *argument)
{
    struct mc_drain *drain = argument;
    pthread_mutex_lock(&drain->sleeper.lock);
    while (!drain->sleeper.stop) {
        if (!drain->wanted) {
            pthread_cond_wait(&drain->sleeper.changed, &drain->sleeper.lock);
            continue;
        }
        uint32_t segment = drain->segment;
        pthread_mutex_unlock(&drain->sleeper.lock);
        bool is_whole;
        size_t left, met = pass(drain, segment, &left, &is_whole);
        uint64_t wait_ms = met == 0 ? IDLE_MS : is_whole && left == 0 ? AGAIN_MS : PASS_MS;
        uint64_t next_ns = mc_clock_ns() + wait_ms * 1000000ull;
        pthread_mutex_lock(&drain->sleeper.lock);
        drain->passes += is_whole;
        drain->left = is_whole ? left : drain->left;
        drain->is_empty = is_whole && met == 0;
        while (!drain->sleeper.stop && drain->wanted &&
               mc_monitor_wait(&drain->sleeper.lock, &drain->sleeper.changed, next_ns) == 0)
            continue;
    }
    pthread_mutex_unlock(&drain->sleeper.lock);
    return NULL;
}

static struct mc_drain *drain_start(struct mc_store *store)
{
    struct mc_drain *drain = calloc(1, sizeof(*drain));
    if (drain == NULL)
        return NULL;
    drain->store = store;
    mc_monitor_init(&drain->sleeper.lock, &drain->sleeper.changed);
    if (mc_sleeper_start(&drain->sleeper, "mc-drain", drain_main, drain) == 0)
        return drain;
    mc_sleeper_end(&drain->sleeper);
    free(drain);
    return NULL;
}

void mc_drain_told(struct mc_store *store, uint32_t segment, bool wanted)
{
    struct mc_drain *drain = atomic_load(&store->drain);
    if (drain == NULL && wanted) {
        drain = drain_start(store); /* without memory: the next heartbeat */
        atomic_store(&store->drain, drain);
    }
    if (drain == NULL)
        return;
    atomic_store(&store->draining, wanted);
    pthread_mutex_lock(&drain->sleeper.lock);
    if (drain->wanted != wanted) {
        drain->passes = 0;
        drain->moved_ms = mc_clock_ms();
        drain->is_empty = false;
        pthread_cond_signal(&drain->sleeper.changed);
    }
    drain->wanted = wanted;
    drain->segment = segment;
    pthread_mutex_unlock(&drain->sleeper.lock);
}

bool mc_drain_look(struct mc_store *store, uint64_t since_ms, bool *is_known, uint64_t *left)
{
    struct mc_drain *drain = atomic_load(&store->drain);
    if (drain == NULL)
        return mc_clock_ms() - since_ms > STALLED_MS; /* no heartbeat was answered yet */
    pthread_mutex_lock(&drain->sleeper.lock);
    /* One that was ended before says nothing of now: the master may not have heard yet of what is wanted here. */
    uint64_t from_ms = drain->moved_ms > since_ms ? drain->moved_ms : since_ms;
    *is_known = drain->wanted && drain->passes > 0;
    *left = drain->left;
    bool is_over = (drain->wanted && drain->is_empty) || mc_clock_ms() - from_ms > STALLED_MS;
    pthread_mutex_unlock(&drain->sleeper.lock);
    return is_over;
}

void mc_drain_end(struct mc_store *store)
{
    struct mc_drain *drain = atomic_load(&store->drain);
    if (drain == NULL)
        return;
    mc_sleeper_end(&drain->sleeper); /* after the move under way, which has a deadline */
    mc_buffer_free(&drain->keys.text);
    free(drain);
}
