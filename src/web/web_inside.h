/* What web.c (reading a request, answering it) and web_loop.c (who waits, who is served) share. Not for others.
 *
 * Invariant: a connection belongs to the loop while it waits, to one thread while it is served, and to nobody while it
 * is in a queue between both; web->lock guards the lists and everything that is marked so.
 */
#ifndef MC_WEB_INSIDE_H
#define MC_WEB_INSIDE_H

#include "web/web.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_WEB_MILLION 1000000u
#define MC_WEB_LISTENERS_MAX 2
#define MC_WEB_SHARES 4096u /* counters of addresses; those that meet in one are counted together */

struct mc_web_listener {
    int fd;
    mc_web_handler *handler;
    mc_web_question *is_quick;
    void *context;
};

enum mc_web_place { /* with the lock: in which list it is */
                    MC_WEB_WAITS,
                    MC_WEB_QUEUES,
                    MC_WEB_IS_SERVED,
                    MC_WEB_NOWHERE
};

struct mc_web_connection {
    struct mc_web *web;
    const struct mc_web_listener *listener;
    int fd;
    uint32_t share;          /* of which counter */
    enum mc_web_place place; /* with the lock */
    bool is_dead;            /* of the loop: it is freed when the events at hand are seen */
    /* With the lock: in its list, where since_ns is its last byte, when it came into the queue, or since when its
     * thread waits for the peer, or for budget (0: for neither). The first two are in order. */
    struct mc_web_connection *older, *newer;
    uint64_t since_ns;
    struct mc_web_connection *behind; /* with the lock: the next one of its address in the queue */
    struct mc_web_pool *pool;         /* with the lock: whose thread it has */
    uint64_t wants, charged;          /* with the lock: of the budget: what it waits for, what it has */
    uint64_t late_ns;                 /* with the lock: fair_ns, when its thread began to wait */
    bool is_going;                    /* with the lock: it was told to leave what others wait for */
    bool is_sending;                  /* with the lock: its thread waits for the peer to take something */
    uint64_t lingers_ns;              /* it was answered, and what still comes is dropped until then; 0: it was not */
    uint64_t begun_ns;                /* of a request that is not whole, its first byte; 0: none has come */
    uint64_t pace_ns;                 /* of its thread: the last bytes worth mentioning */
    uint64_t fair_ns;    /* of its thread: until then what has come of the body is enough, though others have less */
    size_t fresh;        /* bytes since then */
    bool is_heard;       /* something has come, at least once */
    bool is_broken;      /* nothing more can be read or sent */
    bool was_served;     /* at least once */
    struct mc_body body; /* of the request, as far as it was not read yet */
    bool is_continue_due;
    size_t length; /* of what lies in buffer from `begin` on */
    size_t begin, capacity;
    char *buffer; /* NULL while it rests */
};

struct mc_web_list {
    struct mc_web_connection *oldest, *newest;
    size_t count;
};

struct mc_web_pool { /* all with the lock */
    struct mc_web *web;
    /* Whole requests for which there is no thread yet: a row for each address, and of each row the oldest in a list. */
    struct mc_web_list turns;
    struct mc_web_connection *last[MC_WEB_SHARES]; /* of each row */
    uint16_t busy[MC_WEB_SHARES];                  /* threads that serve each address */
    size_t queued;                                 /* in all rows */
    size_t threads, idle, serving, most;
    uint64_t kept_ns; /* until then some threads are kept for addresses that have few */
    pthread_cond_t changed;
};

struct mc_web {
    size_t head_max; /* constant */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* budget given back, a thread has ended */
    struct mc_web_list waiting, served;
    struct mc_web_pool calls, looks;
    struct mc_web_listener listeners[MC_WEB_LISTENERS_MAX];
    size_t listener_count;
    size_t count, places; /* of connections, in all lists; at most */
    uint16_t shares[MC_WEB_SHARES];
    uint64_t budget_used, charged[MC_WEB_SHARES]; /* by all; by each address */
    atomic_size_t buffered;                       /* bytes of all connections' buffers */
    atomic_bool is_stopping;
    int epoll_fd, wake_fd; /* -1: none */
    bool is_running, is_paused;
    pthread_t thread;
    struct mc_web_connection *dead;
};

/* Reads what has come, without waiting. False at the end of the connection, or without memory. */
bool mc_web_take(struct mc_web_connection *connection);
/* Is there a whole request, as far as it fits into the buffer, or something to refuse? is_quick: may threads for quick
 * ones have it? */
bool mc_web_has_request(struct mc_web_connection *connection, bool *is_quick);
/* The first request of the buffer. False: the connection ends. */
bool mc_web_serve_one(struct mc_web_connection *connection);
/* It waits for the peer from now on, or does not any more: it may be ended when others want its thread, from
 * MC_WEB_SILENT_MS after since_ns on. */
void mc_web_wait_begin(struct mc_web_connection *connection, uint64_t since_ns, bool is_sending);
void mc_web_wait_end(struct mc_web_connection *connection);
/* With the lock, for one that waits for budget since begun_ns: ends those that have to leave it theirs. */
void mc_web_make_budget(struct mc_web_connection *waits, uint64_t begun_ns);
/* What comes after the answer is dropped. False: it ends. */
bool mc_web_drop(struct mc_web_connection *connection);
void mc_web_buffer_free(struct mc_web_connection *connection);
/* With the lock: ends one that waits, so that another has its place. share: one of that counter; MC_WEB_SHARES: of any.
 * newcomer: for whom, likewise; MC_WEB_SHARES: that is not known. False: there is none to spare. */
bool mc_web_make_room(struct mc_web *web, uint32_t share, uint32_t newcomer);

#endif
