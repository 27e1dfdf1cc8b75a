/* Inside of the owner's server: what serve.c (listeners, posts, cuts, the loop), serve_connection.c and serve_data.c
 * (the threads beside it) share. Each of those threads has a struct mc_serve of its own, without listeners; all in it
 * but what is marked belongs to its thread alone. */
#ifndef MC_SEGMENT_SERVE_INSIDE_H
#define MC_SEGMENT_SERVE_INSIDE_H

#include "base/tempo.h"
#include "store/segment/serve_lane.h"
#include "store/segment/serve_shares.h"

#include <event2/event.h>
#include <pthread.h>

struct mc_serve_post {
    void (*function)(void *argument);
    void *argument;
    struct mc_serve_post *next;
};

struct mc_serve_cut { /* waits until the writer can store no more */
    uint32_t slot;
    uint64_t generation;
    struct mc_id writer;
    bool is_clear; /* waits for the threads of this process alone */
    void (*done)(void *context, uint32_t slot, uint64_t generation);
    void *context;
    struct mc_serve_cut *next;
};

struct mc_serve_connection {
    struct mc_serve *serve;
    int fd;
    uint32_t place; /* in serve->connection_fds */
    struct event *readable, *writable, *hello_timer;
    bool is_reading, is_writing; /* events are added */
    bool is_at_end;              /* the peer has closed its side */
    bool holds;                  /* TLS has bytes here that the lane did not want yet */
    bool is_draining;            /* we have closed ours: input is thrown away until the peer's end */
    uint64_t moved_ms;           /* of a guest: bytes came or went last */
    struct mc_tempo tempo;       /* of a guest */
    size_t held;                 /* bytes of lane.in that are in serve->held */
    bool is_guest;               /* its hello was accepted: among serve->guests, else among serve->greeters */
    struct mc_serve_lane lane;
    struct mc_guest guest;
    struct mc_serve_connection *previous, *next;
    bool is_streaming;    /* much of it is under way: it is among serve->streams, */
    uint64_t streamed_ms; /* and came there then; 0: it never was */
    struct mc_serve_connection *stream_previous, *stream_next;
};

struct mc_connections { /* in the order in which they came there, or were looked at for one that has to go */
    struct mc_serve_connection *first, *last;
    uint32_t count;
};

struct mc_serve_commit { /* that came by a data thread */
    struct mc_wire_commit_item item;
    bool is_lost;
};

struct mc_listener {
    struct mc_serve *serve;
    int fd; /* -1: none */
    bool is_unix;
    struct event *acceptable, *pause;
};

struct mc_serve {
    struct event_base *base;
    struct mc_lane_server server;
    struct mc_listener tcp, local;
    uint16_t tcp_port;
    char unix_path[MC_UNIX_PATH_MAX];
    uint32_t hello_ms, idle_ms;
    struct mc_connections guests, greeters;
    struct { /* in the order of their turns */
        struct mc_serve_connection *first, *last;
    } streams;
    const struct mc_serve_connection *small; /* the last that asked for something small, and then; NULL: none */
    uint64_t small_ms;
    struct mc_shares shares;     /* of the guests; its limit is what all threads together leave to this one */
    uint32_t guests_max;         /* of all threads together */
    struct event *rest_timer;    /* runs while a connection rests */
    struct event *stall_timer;   /* runs while there are guests */
    size_t held;                 /* bytes of all frames that are not whole */
    _Atomic int *connection_fds; /* descriptor + 1, 0 = free; a forked child closes them */
    uint32_t *free_places, free_count, places_used, place_count;
    uint32_t greeters_max;
    struct mc_serve_cut *cuts;
    struct event *cut_timer; /* runs while a cut waits */
    struct pinned *pinned;   /* the registrations that are in `server`; NULL: none */

    int post_fd; /* eventfd */
    struct event *posted;
    pthread_mutex_t post_lock; /* guards posts */
    struct mc_serve_post *posts, **posts_end;

    struct mc_serve *control; /* of a data thread: whose it is. NULL: this one is nobody's */
    struct mc_serve *data[MC_SERVE_THREADS_MAX];
    uint32_t data_count;
    _Atomic uint32_t taken;   /* places of guests, of all threads together. Theirs: in control */
    _Atomic uint32_t present; /* connections of this data thread, with those on their way to it. Control's, too */
    _Atomic uint32_t on_way;  /* of these, those on their way. Control's, too */
    struct mc_serve_commit *commits; /* of a data thread: that control has not been given yet */
    size_t commit_count, commit_capacity;

    pthread_t thread;
    bool started, stopping;
    uint64_t activity; /* counts what happened; the spin of the loop looks at it */
    struct mc_spin spin;
    uint8_t scratch[MC_SERVE_RECEIVE_BYTES];
};

/* serve_connection.c */

/* Room for so many guests. 0 or MC_ERR_NO_MEMORY: as it was. */
int mc_connections_limit(struct mc_serve *serve, uint32_t limit);
void mc_connections_on_stall_timer(evutil_socket_t fd, short what, void *argument);
/* Takes the accepted descriptor, whatever comes of it. */
void mc_connection_open(struct mc_serve *serve, bool is_unix, int fd);
/* Takes a connection off that is another thread's from now on: its descriptor and its lane, nothing else, are left. */
struct mc_serve_connection *mc_connection_release(struct mc_serve_connection *connection);
/* Goes on with one that was released elsewhere, whatever comes of it. */
void mc_connection_adopt(struct mc_serve *serve, struct mc_serve_connection *connection);
/* The next of those that stream has its turn. False: there is none. */
bool mc_connections_stream(struct mc_serve *serve);
/* Whether one more of that peer may come in: 0 or MC_ERR_BUSY (mc_lane_server.admit). */
int mc_connection_admit(struct mc_serve_lane *lane, struct mc_id peer);
void mc_connection_where(const struct mc_serve_lane *lane, char text[MC_ADDRESS_MAX]);
void mc_connection_close(struct mc_serve_connection *connection);
void mc_connections_close(struct mc_serve *serve);
/* Gives up the longest-resting one, because descriptors are out. False: none rests. */
bool mc_connections_give_one(struct mc_serve *serve);
void mc_connections_on_rest_timer(evutil_socket_t fd, short what, void *argument);

/* serve.c: a connection that had an entry in the table of writers is gone. */
void mc_serve_cuts_look(struct mc_serve *serve);
/* All but listeners. 0 or MC_ERR_NO_MEMORY. */
int mc_serve_make(const struct mc_lane_server *server, struct mc_serve **serve);
/* What its thread runs, until it is to stop. */
void *mc_serve_run(void *serve);
/* How many connections had a ticket that is too old. */
unsigned mc_serve_close_expired(struct mc_serve *serve);

/* serve_data.c; on control's thread, or where only one of them runs */

/* A connection that was accepted goes to a data thread. False: there is none. */
bool mc_serve_hand_out(struct mc_serve *serve, int fd);
void mc_serve_data_memory(struct mc_serve *serve, struct mc_segment_memory *memory);
void mc_serve_data_keys(struct mc_serve *serve);
void mc_serve_data_give_one(struct mc_serve *serve);
/* Those that cannot start are given up, with one line in the log. */
void mc_serve_data_start(struct mc_serve *serve);
void mc_serve_data_end(struct mc_serve *serve);
/* On a data thread: control goes on with that connection. */
void mc_serve_hand_back(struct mc_serve_connection *connection);

#endif
