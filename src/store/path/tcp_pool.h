/* A path of transport `tcp`: the lanes that rest, and those that are owed answers. */
#ifndef MC_PATH_TCP_POOL_H
#define MC_PATH_TCP_POOL_H

#include "store/path/tcp_open.h"

struct mc_tcp_waiter { /* one who waits for a lane: on its thread's stack, in its path's list */
    struct mc_tcp_lane *lane;
    struct mc_tcp_waiter *next;
};

struct mc_tcp_path {
    struct mc_path path;
    struct mc_tcp_address peers[MC_TCP_PEERS_MAX]; /* of the owner, found when the path was opened */
    size_t peer_count;
    struct mc_pace pace;
    pthread_mutex_t lock;             /* guards the lists */
    pthread_cond_t given;             /* a waiter got a lane */
    struct mc_tcp_waiter *waiting;    /* who came first is first, and gets the next lane that is given back */
    struct mc_tcp_lane *idle, *owing; /* the one used last comes first */
    struct mc_tcp_rest *resting;      /* idle for longer, the same order */
    _Atomic bool takes_parts;         /* its owner does, as its last hello said */
    uint32_t idle_count, owing_count; /* idle_count: with those that rest */
};

/* An idle lane, the one that was used last; NULL: there is none. */
struct mc_tcp_lane *mc_tcp_idle_take(struct mc_tcp_path *tcp);
/* Waits so long for a lane that another thread gives back. */
struct mc_tcp_lane *mc_tcp_idle_wait(struct mc_tcp_path *tcp, uint64_t until_ns);
void mc_tcp_idle_give(struct mc_tcp_path *tcp, struct mc_tcp_lane *lane);
/* Looks what has come for lanes that are owed answers; `more` is one more of them, or NULL. */
void mc_tcp_owing_settle(struct mc_tcp_path *tcp, struct mc_tcp_lane *more);

/* For the table of the transport; see there. */
int mc_tcp_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                struct mc_path **path);
void mc_tcp_close(struct mc_path *path);
bool mc_tcp_is_ended(struct mc_path *path);
void mc_tcp_rest_lanes(struct mc_path *path, uint64_t now_ns);
void mc_tcp_nudge(struct mc_path *path, bool gives_up);

#endif
