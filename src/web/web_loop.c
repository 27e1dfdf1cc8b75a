/* The connections of the HTTP server: those that wait for a request, in a loop, and the threads that serve the rest. */
#include "web/web_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 4096 /* silent ones are taken one after the other, and let go again */
#define EVENTS 256
#define ACCEPTS_PER_TURN 16 /* then those that are there have theirs; and no more than this part of the places, */
#define ACCEPTS_PART 16     /* so that those that were not heard yet are not the oldest */
#define SWEEP_MS 1000
#define SWEEP_SOON_MS 100        /* when somebody waits for it */
#define ROOM_LOOKS 64            /* connections that are looked at for one that has to go */
#define ROOM_JUST_NS 1000000000u /* who has come since then may be about to speak, */
#define ROOM_FAR_MORE 4          /* and is spared where another address has more than so many times as many */
#define STAY_MS 2                /* a thread waits so long for the next request of a connection, when others are free */
#define IDLE_MS 10000u           /* one that has nothing to do ends after this */

/* ---- lists; with the lock ---- */

static void list_add(struct mc_web_list *list, struct mc_web_connection *one, enum mc_web_place place)
{
    one->place = place;
    one->older = list->newest;
    one->newer = NULL;
    *(one->older != NULL ? &one->older->newer : &list->oldest) = one;
    list->newest = one;
    list->count++;
}

static void list_remove(struct mc_web_list *list, struct mc_web_connection *one)
{
    mc_assert((one->older == NULL) == (list->oldest == one));
    *(one->older != NULL ? &one->older->newer : &list->oldest) = one->newer;
    *(one->newer != NULL ? &one->newer->older : &list->newest) = one->older;
    list->count--;
    one->place = MC_WEB_NOWHERE;
}

static void wait_for_peer(struct mc_web_connection *one)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    one->since_ns = mc_clock_ns();
    list_add(&one->web->waiting, one, MC_WEB_WAITS);
    if (epoll_ctl(one->web->epoll_fd, EPOLL_CTL_ADD, one->fd, &event) != 0)
        one->begun_ns = 1; /* no memory: the next sweep ends it */
}

static void stop_waiting(struct mc_web_connection *one)
{
    (void)epoll_ctl(one->web->epoll_fd, EPOLL_CTL_DEL, one->fd, NULL); /* a forked child may have a copy of it */
    list_remove(&one->web->waiting, one);
}

/* It is in no list. Whose it is frees it. */
static void hang_up(struct mc_web_connection *one)
{
    struct mc_web *web = one->web;
    (void)shutdown(one->fd, SHUT_RDWR); /* a forked child may have a copy, and nobody reads there */
    if (!one->was_served)               /* what is closed in order is remembered for a minute: not of many */
        (void)mc_socket_reset_at_close(one->fd);
    mc_fd_close(one->fd);
    mc_web_buffer_free(one);
    web->count--;
    web->shares[one->share]--;
}

/* One that waits ends; events at hand may still name it. */
static void end_waiting(struct mc_web_connection *one)
{
    struct mc_web *web = one->web;
    stop_waiting(one);
    hang_up(one);
    one->is_dead = true;
    one->newer = web->dead;
    web->dead = one;
}

static void free_dead(struct mc_web *web)
{
    pthread_mutex_lock(&web->lock);
    struct mc_web_connection *one = web->dead;
    web->dead = NULL;
    pthread_mutex_unlock(&web->lock);
    while (one != NULL) {
        struct mc_web_connection *next = one->newer;
        free(one);
        one = next;
    }
}

/* Is one of `most`'s address to leave rather than one of that? */
static bool is_far_less(const struct mc_web *web, uint32_t share, const struct mc_web_connection *most)
{
    return share != MC_WEB_SHARES && web->shares[share] < web->shares[most->share] / ROOM_FAR_MORE;
}

/* Of those that waited longest one leaves, so that another has room: one that says nothing, and of these the one whose
 * address has most, so that few addresses, however many come from them, do not press out who comes from another. Where
 * all of a crowd speak at once, the only silent one may have come this moment, and its request be on its way, or it is
 * the newcomer: then one of the crowd leaves. */
bool mc_web_make_room(struct mc_web *web, uint32_t share, uint32_t newcomer)
{
    struct mc_web_connection *one = web->waiting.oldest, *silent = NULL, *most = NULL;
    uint64_t now_ns = mc_clock_ns();
    for (unsigned looks = 0; one != NULL && looks < ROOM_LOOKS; one = one->newer, looks++) {
        uint32_t count = web->shares[one->share];
        if (share != MC_WEB_SHARES && one->share != share)
            continue;
        if (most == NULL || count > web->shares[most->share])
            most = one;
        if ((silent == NULL || count > web->shares[silent->share]) && mc_socket_is_silent(one->fd))
            silent = one;
    }
    struct mc_web_connection *leaves = silent;
    bool has_just_come = silent != NULL && now_ns - silent->since_ns < ROOM_JUST_NS;
    if (most != NULL &&
        (silent == NULL ? is_far_less(web, newcomer, most) : has_just_come && is_far_less(web, silent->share, most)))
        leaves = most;
    if (leaves != NULL)
        end_waiting(leaves);
    return leaves != NULL;
}

/* ---- threads ---- */

void mc_web_wait_begin(struct mc_web_connection *connection, uint64_t since_ns, bool is_sending)
{
    pthread_mutex_lock(&connection->web->lock);
    connection->since_ns = since_ns;
    connection->is_sending = is_sending;
    connection->late_ns = is_sending ? UINT64_MAX : connection->fair_ns;
    pthread_mutex_unlock(&connection->web->lock);
}

void mc_web_wait_end(struct mc_web_connection *connection)
{
    pthread_mutex_lock(&connection->web->lock);
    connection->since_ns = 0;
    pthread_mutex_unlock(&connection->web->lock);
}

/* One that is served ends, or gives up what it waits for: what it has is for others. */
static void leave(struct mc_web_connection *one)
{
    if (one->wants > 0)
        pthread_cond_broadcast(&one->web->changed);
    else
        (void)shutdown(one->fd, SHUT_RDWR);
    one->since_ns = 0;
    one->is_going = true;
}

/* Its thread has what belongs to it: only the kernel is asked. */
static bool is_quiet(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Its thread waits for the peer, who does nothing, or too little. */
static bool is_slow(const struct mc_web_connection *one, uint64_t now_ns)
{
    return one->since_ns != 0 && one->wants == 0 && !one->is_going &&
           now_ns >= one->since_ns + MC_WEB_SILENT_MS * (uint64_t)MC_WEB_MILLION &&
           (one->is_sending || is_quiet(one->fd));
}

/* With the lock. Of what has budget and waits for its peer the slowest: of all whose peers do nothing, and, when one
 * has waited for long, of those whose address keeps without it no less than that one's would have, or with it if it is
 * not even fast. */
static struct mc_web_connection *find_budget(const struct mc_web_connection *waits, bool is_long)
{
    const struct mc_web *web = waits->web;
    struct mc_web_connection *found = NULL;
    uint64_t now_ns = mc_clock_ns(), would_have = web->charged[waits->share] + waits->wants;
    for (struct mc_web_connection *one = web->served.oldest; one != NULL; one = one->newer) {
        if (one->charged == 0 || one->since_ns == 0 || one->wants > 0 || one->is_going)
            continue;
        uint64_t kept = web->charged[one->share] - (now_ns > one->late_ns ? 0 : one->charged);
        bool has_more = is_long && kept >= would_have;
        if ((has_more || is_slow(one, now_ns)) && (found == NULL || one->since_ns < found->since_ns))
            found = one;
    }
    return found;
}

void mc_web_make_budget(struct mc_web_connection *waits, uint64_t begun_ns)
{
    struct mc_web *web = waits->web;
    uint64_t allowed = waits->wants > MC_WEB_BUDGET_BYTES ? 0 : MC_WEB_BUDGET_BYTES - waits->wants, going = 0;
    bool is_long = mc_clock_ns() >= begun_ns + MC_WEB_BUDGET_TURN_MS * (uint64_t)MC_WEB_MILLION;
    for (struct mc_web_connection *one = web->served.oldest; one != NULL; one = one->newer)
        going += one->is_going ? one->charged : 0;
    while (web->budget_used - going > allowed) {
        struct mc_web_connection *one = find_budget(waits, is_long);
        if (one == NULL)
            return;
        going += one->charged;
        leave(one);
    }
}

/* With the lock. How many of them have been told to leave, and have not yet. */
static size_t count_going(const struct mc_web_pool *pool)
{
    size_t count = 0;
    for (const struct mc_web_connection *one = pool->web->served.oldest; one != NULL; one = one->newer)
        count += one->pool == pool && one->is_going;
    return count;
}

/* Whose address has fewest threads, of those whose turn it has not been for longest. NULL: nobody waits, or only those
 * of addresses that have many, when the last threads are kept for others. */
static struct mc_web_connection *queue_next(const struct mc_web_pool *pool)
{
    struct mc_web_connection *one = pool->turns.oldest, *next = one;
    size_t few = pool->most / MC_WEB_TURN_PARTS;
    for (size_t looks = 0; one != NULL && looks < ROOM_LOOKS; one = one->newer, looks++)
        if (pool->busy[one->share] < pool->busy[next->share])
            next = one;
    bool is_kept = next != NULL && pool->busy[next->share] >= few && pool->serving + few >= pool->most &&
                   mc_clock_ns() < pool->kept_ns;
    return is_kept ? NULL : next;
}

/* Does who waits find no thread? */
static bool is_full(const struct mc_web_pool *pool)
{
    return pool->queued > 0 && pool->threads >= pool->most && (pool->idle == 0 || queue_next(pool) == NULL);
}

/* With the lock. The threads whose peers say nothing end their connections, as many as others wait for. */
static void take_threads(struct mc_web_pool *pool)
{
    uint64_t now_ns = mc_clock_ns();
    size_t going = is_full(pool) ? count_going(pool) : 0;
    struct mc_web_connection *one = is_full(pool) ? pool->web->served.oldest : NULL;
    for (; one != NULL && going < pool->queued; one = one->newer) {
        if (one->pool != pool || !is_slow(one, now_ns))
            continue;
        leave(one);
        going++;
    }
}

/* Of the addresses that have more than twice as many threads as `few` would have, of the one that has most: who waits
 * for budget, or else whose peer is slowest. */
static struct mc_web_connection *find_thread(const struct mc_web_pool *pool, uint32_t few)
{
    struct mc_web_connection *found = NULL;
    for (struct mc_web_connection *one = pool->web->served.oldest; one != NULL; one = one->newer) {
        uint16_t busy = pool->busy[one->share], most = found == NULL ? 0 : pool->busy[found->share];
        if (one->pool != pool || one->since_ns == 0 || one->is_going || busy <= 2 * (pool->busy[few] + 1) ||
            busy < most)
            continue;
        if (found == NULL || busy > most || (one->wants > 0) > (found->wants > 0) ||
            ((one->wants > 0) == (found->wants > 0) && one->since_ns < found->since_ns))
            found = one;
    }
    return found;
}

/* With the lock. Where all threads serve few addresses, and go on, however slowly, another one has some all the same:
 * who has waited for long, of an address that has few threads, or none, takes one of an address that has many, and for
 * a while such an address finds some free. */
static void take_turns(struct mc_web_pool *pool)
{
    uint64_t now_ns = mc_clock_ns();
    bool has_none = is_full(pool) && pool->idle == 0;
    size_t going = has_none ? count_going(pool) : 0, looks = 0;
    struct mc_web_connection *waits = has_none ? pool->turns.oldest : NULL;
    for (; waits != NULL && looks < ROOM_LOOKS; waits = waits->newer, looks++) {
        if (now_ns < waits->since_ns + MC_WEB_TURN_MS * (uint64_t)MC_WEB_MILLION ||
            pool->busy[waits->share] >= pool->most / MC_WEB_TURN_PARTS)
            continue;
        pool->kept_ns = now_ns + MC_WEB_KEPT_MS * (uint64_t)MC_WEB_MILLION;
        struct mc_web_connection *one = going > 0 ? NULL : find_thread(pool, waits->share);
        if (one != NULL)
            leave(one);
        going -= going > 0;
    }
}

/* ---- the queue; with the lock ---- */

static void queue_add(struct mc_web_pool *pool, struct mc_web_connection *one)
{
    struct mc_web_connection **last = &pool->last[one->share];
    one->since_ns = mc_clock_ns();
    one->behind = NULL;
    one->place = MC_WEB_QUEUES;
    if (*last != NULL)
        (*last)->behind = one;
    else
        list_add(&pool->turns, one, MC_WEB_QUEUES);
    *last = one;
    pool->queued++;
}

/* The oldest of a row; the next one of its address comes behind those of others. */
static void queue_remove(struct mc_web_pool *pool, struct mc_web_connection *one)
{
    list_remove(&pool->turns, one);
    if (one->behind != NULL)
        list_add(&pool->turns, one->behind, MC_WEB_QUEUES);
    else
        pool->last[one->share] = NULL;
    one->behind = NULL;
    pool->queued--;
}

/* A request more of the same peer, for the same threads, within a moment. */
static bool has_more(const struct mc_web_pool *pool, struct mc_web_connection *one, bool may_stay)
{
    bool is_quick = false;
    struct pollfd readable = {.fd = one->fd, .events = POLLIN};
    bool is_there = mc_web_has_request(one, &is_quick) || (may_stay && poll(&readable, 1, STAY_MS) > 0 &&
                                                           mc_web_take(one) && mc_web_has_request(one, &is_quick));
    return is_there && is_quick == (pool == &pool->web->looks);
}

/* Serves it until it ends (false), or waits for the peer, or others want the thread. */
static bool serve(struct mc_web_pool *pool, struct mc_web_connection *one)
{
    struct mc_web *web = pool->web;
    for (;;) {
        bool is_quick;
        if (!mc_web_serve_one(one))
            return false;
        if (mc_socket_holds(one->fd) && !mc_web_has_request(one, &is_quick) && !mc_web_take(one))
            return false;
        pthread_mutex_lock(&web->lock);
        bool is_wanted = pool->queued > 0, may_stay = !is_wanted && pool->threads - pool->idle < pool->most / 2;
        pthread_mutex_unlock(&web->lock);
        if (atomic_load(&web->is_stopping))
            return false;
        if (is_wanted || !has_more(pool, one, may_stay))
            return true;
    }
}

static void *work(void *argument);

/* With the lock. A whole request has come. */
static void enqueue(struct mc_web_connection *one, bool is_quick)
{
    struct mc_web *web = one->web;
    struct mc_web_pool *pool = is_quick ? &web->looks : &web->calls;
    queue_add(pool, one);
    if (pool->idle > 0) /* others that wait may not have it */
        pthread_cond_signal(&pool->changed);
    if (pool->idle >= pool->queued)
        return;
    if (pool->threads < pool->most && mc_thread_start(NULL, "mc-rest", work, pool) == 0)
        pool->threads++;
    else
        take_threads(pool);
}

static void give_back(struct mc_web_connection *one)
{
    bool is_quick;
    if (mc_web_has_request(one, &is_quick)) {
        enqueue(one, is_quick);
        return;
    }
    one->begun_ns = one->length > 0 ? mc_clock_ns() : 0;
    if (one->length == 0)
        mc_web_buffer_free(one);
    wait_for_peer(one);
}

/* With the lock. */
static void serve_begin(struct mc_web_pool *pool, struct mc_web_connection *one)
{
    queue_remove(pool, one);
    one->since_ns = one->begun_ns = 0;
    one->was_served = true;
    one->is_going = false;
    one->pool = pool;
    pool->busy[one->share]++;
    pool->serving++;
    list_add(&pool->web->served, one, MC_WEB_IS_SERVED);
}

/* With the lock. Back to the loop, or behind others, or it is gone. */
static void serve_end(struct mc_web_pool *pool, struct mc_web_connection *one, bool goes_on)
{
    bool is_stopping = atomic_load(&pool->web->is_stopping);
    list_remove(&pool->web->served, one);
    pool->busy[one->share]--;
    pool->serving--;
    one->pool = NULL;
    if (goes_on && !is_stopping) {
        give_back(one);
    } else if (one->lingers_ns != 0 && !is_stopping) {
        mc_web_buffer_free(one);
        wait_for_peer(one);
    } else {
        hang_up(one); /* under the lock: nobody shuts down what is somebody else's by now */
        free(one);
    }
}

static void *work(void *argument)
{
    struct mc_web_pool *pool = argument;
    struct mc_web *web = pool->web;
    pthread_mutex_lock(&web->lock);
    for (;;) {
        uint64_t until_ns = mc_clock_ns() + IDLE_MS * (uint64_t)MC_WEB_MILLION;
        while (queue_next(pool) == NULL && !atomic_load(&web->is_stopping)) {
            pool->idle++;
            int rc = mc_monitor_wait(&web->lock, &pool->changed, until_ns);
            pool->idle--;
            if (rc == ETIMEDOUT)
                break;
        }
        struct mc_web_connection *one = queue_next(pool);
        if (one == NULL)
            break;
        serve_begin(pool, one);
        pthread_mutex_unlock(&web->lock);
        bool goes_on = serve(pool, one);
        pthread_mutex_lock(&web->lock);
        serve_end(pool, one, goes_on);
    }
    pool->threads--;
    pthread_cond_broadcast(&web->changed);
    pthread_mutex_unlock(&web->lock); /* the last use of web by this thread */
    return NULL;
}

/* ---- the loop ---- */

static void on_readable(struct mc_web_connection *one)
{
    struct mc_web *web = one->web;
    bool is_quick = false, is_whole = false, lingers = one->lingers_ns != 0;
    bool is_open = lingers ? mc_web_drop(one) : mc_web_take(one);
    if (is_open && !lingers && one->length > 0)
        is_whole = mc_web_has_request(one, &is_quick);
    pthread_mutex_lock(&web->lock);
    if (!is_open) {
        end_waiting(one);
    } else if (is_whole) {
        stop_waiting(one);
        enqueue(one, is_quick);
    } else {
        list_remove(&web->waiting, one);
        one->since_ns = mc_clock_ns();
        one->begun_ns = one->begun_ns == 0 ? one->since_ns : one->begun_ns;
        list_add(&web->waiting, one, MC_WEB_WAITS);
        /* The oldest may rest, and hold nothing: few do not. */
        while (atomic_load(&web->buffered) > MC_WEB_HELD_BYTES && web->waiting.oldest != one)
            end_waiting(web->waiting.oldest);
    }
    pthread_mutex_unlock(&web->lock);
}

/* With the lock. NULL: there is no room for it. */
static struct mc_web_connection *admit(struct mc_web *web, const struct mc_web_listener *listener, int fd)
{
    uint32_t share = (uint32_t)(mc_socket_peer_key(fd) % MC_WEB_SHARES);
    size_t most = web->places - web->places / MC_WEB_SHARE_PARTS;
    if (web->shares[share] >= most && !mc_web_make_room(web, share, share))
        return NULL;
    if (web->count >= web->places && !mc_web_make_room(web, MC_WEB_SHARES, share))
        return NULL;
    struct mc_web_connection *one = calloc(1, sizeof(*one));
    if (one == NULL)
        return NULL;
    *one = (struct mc_web_connection){.web = web, .listener = listener, .fd = fd, .share = share};
    web->count++;
    web->shares[share]++;
    wait_for_peer(one);
    return one;
}

/* Out of descriptors the listeners stay readable: they rest until the next sweep. */
static void listen_to(struct mc_web *web, bool wants)
{
    for (size_t i = 0; i < web->listener_count; i++) {
        struct epoll_event event = {.events = wants ? EPOLLIN : 0, .data.ptr = &web->listeners[i]};
        (void)epoll_ctl(web->epoll_fd, EPOLL_CTL_MOD, web->listeners[i].fd, &event);
    }
    web->is_paused = !wants;
}

/* True: more of them wait. */
static bool on_connections(struct mc_web *web, const struct mc_web_listener *listener)
{
    pthread_mutex_lock(&web->lock);
    size_t part = web->places / ACCEPTS_PART + 1, most = part < ACCEPTS_PER_TURN ? part : ACCEPTS_PER_TURN;
    size_t i = 0;
    for (; i < most; i++) {
        int fd = mc_socket_accept(listener->fd);
        bool is_out = fd < 0 && (errno == EMFILE || errno == ENFILE);
        if (is_out && mc_web_make_room(web, MC_WEB_SHARES, MC_WEB_SHARES))
            continue;
        if (is_out)
            listen_to(web, false);
        if (fd < 0)
            break;
        if (admit(web, listener, fd) != NULL)
            continue;
        mc_log_limited(WARNING, "there are %zu connections: one is refused", web->count);
        (void)mc_socket_reset_at_close(fd);
        close(fd);
    }
    pthread_mutex_unlock(&web->lock);
    return i == most;
}

static void refuse(struct mc_web_connection *one)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
                               "Retry-After: 1\r\nContent-Length: 42\r\nConnection: close\r\n\r\n"
                               "{\"error\": \"Too many requests; try again\"}\n";
    (void)mc_socket_sends(one->fd, full, sizeof(full) - 1);
    one->was_served = true;
    hang_up(one);
    free(one);
}

/* With the lock. Requests that found no thread are refused. */
static void sweep_pool(struct mc_web_pool *pool, uint64_t now_ns)
{
    take_threads(pool);
    take_turns(pool);
    if (pool->idle > 0 && pool->queued > 0) /* what was kept for others may be theirs by now */
        pthread_cond_broadcast(&pool->changed);
    for (struct mc_web_connection *one = pool->turns.oldest, *next, *behind; one != NULL; one = next) {
        next = one->newer;
        for (; one != NULL && now_ns > one->since_ns + MC_WEB_QUEUE_MS * (uint64_t)MC_WEB_MILLION; one = behind) {
            mc_log_limited(WARNING, "a request found no thread within %u ms: it is refused", MC_WEB_QUEUE_MS);
            behind = one->behind;
            queue_remove(pool, one);
            refuse(one);
        }
    }
}

/* In how many milliseconds the next one is due; -1: when something happens. */
static int sweep(struct mc_web *web)
{
    uint64_t now_ns = mc_clock_ns();
    pthread_mutex_lock(&web->lock);
    if (web->is_paused)
        listen_to(web, true);
    sweep_pool(&web->calls, now_ns);
    sweep_pool(&web->looks, now_ns);
    for (struct mc_web_connection *one = web->waiting.oldest, *next; one != NULL; one = next) {
        next = one->newer;
        if (now_ns > one->since_ns + MC_WEB_IDLE_MS * (uint64_t)MC_WEB_MILLION ||
            (one->lingers_ns != 0 && now_ns > one->lingers_ns) ||
            (one->begun_ns != 0 && now_ns > one->begun_ns + MC_WEB_PROGRESS_MS * (uint64_t)MC_WEB_MILLION))
            end_waiting(one);
    }
    bool is_soon = web->is_paused || web->calls.queued + web->looks.queued > 0;
    int due_ms = is_soon ? SWEEP_SOON_MS : web->count > 0 ? SWEEP_MS : -1;
    pthread_mutex_unlock(&web->lock);
    return due_ms;
}

static void *loop(void *argument)
{
    struct mc_web *web = argument;
    struct epoll_event events[EVENTS];
    uint64_t sweep_ns = 0;
    int due_ms = -1;
    while (!atomic_load(&web->is_stopping)) {
        int count = epoll_wait(web->epoll_fd, events, EVENTS, due_ms);
        bool is_crowded = count == EVENTS;
        for (int i = 0; i < count; i++) {
            const struct mc_web_listener *listener = events[i].data.ptr;
            if (events[i].data.ptr == web)
                continue; /* it was woken */
            if (listener >= web->listeners && listener < web->listeners + MC_WEB_LISTENERS_MAX)
                is_crowded |= on_connections(web, listener);
            else if (!((struct mc_web_connection *)events[i].data.ptr)->is_dead)
                on_readable(events[i].data.ptr);
        }
        if (mc_clock_ns() > sweep_ns) {
            sweep_ns = mc_clock_ns() + SWEEP_SOON_MS * (uint64_t)MC_WEB_MILLION;
            due_ms = sweep(web);
        } else {
            due_ms = SWEEP_SOON_MS; /* what has come may wait for it */
        }
        free_dead(web);
        if (is_crowded)
            sched_yield(); /* this thread never rests then: others of its processor have theirs all the same */
    }
    return NULL;
}

/* ---- life ---- */

int mc_web_bind(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size)
{
    uint16_t wanted = *port;
    int fd = mc_tcp_bind(host, port);
    if (fd == MC_ERR_INVALID_PARAMS)
        snprintf(error, error_size, "cannot listen on '%.200s': that is no address of this machine", host);
    else if (fd < 0)
        snprintf(error, error_size,
                 "cannot listen on %.200s port %u (%s): %s; stop the process that has it, or choose "
                 "another with --%s",
                 host, (unsigned)wanted, flag, strerror(errno), flag);
    return fd;
}

static void pool_init(struct mc_web *web, struct mc_web_pool *pool, size_t most)
{
    *pool = (struct mc_web_pool){.web = web, .most = most};
    mc_condition_init(&pool->changed);
}

struct mc_web *mc_web_create(size_t head_max)
{
    struct mc_web *web = calloc(1, sizeof(*web));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = web};
    if (web == NULL)
        return NULL;
    web->head_max = head_max;
    mc_monitor_init(&web->lock, &web->changed);
    pool_init(web, &web->calls, MC_WEB_THREADS_MAX);
    pool_init(web, &web->looks, MC_WEB_LOOKS_MAX);
    web->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    web->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (web->epoll_fd < 0 || web->wake_fd < 0 || epoll_ctl(web->epoll_fd, EPOLL_CTL_ADD, web->wake_fd, &event) != 0) {
        mc_web_destroy(web);
        return NULL;
    }
    return web;
}

int mc_web_serve(struct mc_web *web, int listener, mc_web_handler *handler, mc_web_question *is_quick, void *context)
{
    uint64_t half = mc_file_limit() / 2;
    if (listen(listener, BACKLOG) != 0)
        return MC_ERR_RPC_FAIL;
    if (!web->is_running && (errno = mc_thread_start(&web->thread, "mc-web", loop, web)) != 0)
        return MC_ERR_INTERNAL_ERROR;
    web->is_running = true;
    pthread_mutex_lock(&web->lock);
    struct mc_web_listener *at = &web->listeners[web->listener_count++];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = at};
    mc_assert(web->listener_count <= MC_WEB_LISTENERS_MAX);
    web->places = half < MC_WEB_PLACES ? (size_t)half : MC_WEB_PLACES;
    *at = (struct mc_web_listener){listener, handler, is_quick, context};
    int rc = epoll_ctl(web->epoll_fd, EPOLL_CTL_ADD, listener, &event) == 0 ? 0 : MC_ERR_INTERNAL_ERROR;
    pthread_mutex_unlock(&web->lock);
    return rc;
}

void mc_web_descriptors(const struct mc_web *web, int fds[2])
{
    fds[0] = web->epoll_fd;
    fds[1] = web->wake_fd;
}

static void stop_loop(struct mc_web *web)
{
    uint64_t one = 1;
    atomic_store(&web->is_stopping, true);
    if (!web->is_running)
        return;
    mc_assert(write(web->wake_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
    pthread_join(web->thread, NULL);
    web->is_running = false;
    for (size_t i = 0; i < web->listener_count; i++)
        (void)epoll_ctl(web->epoll_fd, EPOLL_CTL_DEL, web->listeners[i].fd, NULL);
}

/* With the lock. No thread was to be had for these. */
static void refuse_all(struct mc_web_pool *pool)
{
    for (struct mc_web_connection *one; (one = pool->turns.oldest) != NULL;) {
        queue_remove(pool, one);
        refuse(one);
    }
}

bool mc_web_stop(struct mc_web *web, unsigned patience_ms)
{
    stop_loop(web);
    pthread_mutex_lock(&web->lock);
    while (web->waiting.oldest != NULL)
        end_waiting(web->waiting.oldest);
    pthread_cond_broadcast(&web->changed);
    pthread_cond_broadcast(&web->calls.changed);
    pthread_cond_broadcast(&web->looks.changed);
    for (int round = 0; round < 2; round++) {
        uint64_t end_ns = mc_clock_ns() + (round == 0 ? patience_ms : MC_WEB_STOP_MS) * (uint64_t)MC_WEB_MILLION;
        for (struct mc_web_connection *one = web->served.oldest; one != NULL && round == 1; one = one->newer)
            (void)shutdown(one->fd, SHUT_RDWR);
        while (web->calls.threads + web->looks.threads > 0 &&
               mc_monitor_wait(&web->lock, &web->changed, end_ns) != ETIMEDOUT)
            ;
    }
    bool is_empty = web->calls.threads + web->looks.threads == 0;
    if (is_empty) {
        refuse_all(&web->calls);
        refuse_all(&web->looks);
    }
    pthread_mutex_unlock(&web->lock);
    free_dead(web);
    return is_empty;
}

void mc_web_destroy(struct mc_web *web)
{
    if (web == NULL)
        return;
    stop_loop(web);
    mc_fd_close(web->epoll_fd);
    mc_fd_close(web->wake_fd);
    pthread_cond_destroy(&web->calls.changed);
    pthread_cond_destroy(&web->looks.changed);
    mc_monitor_destroy(&web->lock, &web->changed);
    free(web);
}
