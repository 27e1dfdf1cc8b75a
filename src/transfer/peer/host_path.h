/* The path within one machine: maps and copies of what a peer of this machine has registered. */
#ifndef MC_TRANSFER_PEER_HOST_PATH_H
#define MC_TRANSFER_PEER_HOST_PATH_H

#include "transfer/peer/peer.h"
#include "transfer/state/host_table.h"

#define MC_HOST_MAP_BUCKETS 64u

struct mc_sum_check;
struct mc_host_map;

struct mc_host_path {                  /* to a peer of this machine; reference counted */
    struct mc_transfer_engine *engine; /* whose thread frees it; NULL: who lets go of it last does */
    struct mc_host_path *next;         /* of those to be freed */
    _Atomic uint32_t references;
    _Atomic bool is_broken;
    int fd;           /* its end of file ends the path */
    pid_t pid;        /* proved to be the peer's */
    bool is_map_only; /* the kernel lets us map what the peer has allocated, but not reach into its process */
    const struct mc_host_table *table;
    struct mc_host_intents *intents;
    _Atomic uint64_t taken; /* intents in use, a bit each */
    pthread_mutex_t lock;   /* of the view */
    struct mc_host_view view;
    struct mc_host_map *maps[MC_HOST_MAP_BUCKETS]; /* of the peer's memory, by slot; the lock */
};

struct mc_host_trouble { /* where opening failed, and errno; 0: the peer did not answer as it should */
    const char *step;
    int error;
};
/* With a reference; NULL: not possible. */
struct mc_host_path *mc_host_path_open(const char *unix_name, struct mc_id owner, struct mc_host_trouble *trouble);
struct mc_host_path *mc_host_path_get(struct mc_peer *peer); /* with a reference; NULL: not now */
void mc_host_path_release(struct mc_host_path *path);
/* Until all that were let go of are freed; nobody lets go of one any more. */
void mc_host_paths_end(struct mc_transfer_engine *engine);
/* The peer's lock is held. */
void mc_host_path_drop(struct mc_peer *peer);
/* Drops it if the peer's process has ended; true: it has. The peer's lock is held. */
bool mc_host_path_tidy(struct mc_peer *peer);

/* Has the peer's process ended, or hung up? */
bool mc_host_has_ended(const struct mc_host_path *path);

/* ---- host_map.c: maps of memory that peers of this machine have allocated with their engine. path->lock is
 * held ---- */
/* The bytes of a region's memory, in use until released. NULL: it cannot be mapped. */
struct mc_host_map *mc_host_map_hold(struct mc_host_path *path, const struct mc_host_known *known, uint8_t **bytes);
void mc_host_map_release(struct mc_host_map *map, struct mc_host_map **ended);
/* Lets go of those whose region is gone. What nobody uses any more goes to `ended`. */
void mc_host_maps_tidy(struct mc_host_path *path, struct mc_host_map **ended);
/* Without the lock, as the kernel frees the pages of those that the peer has given up, too. */
void mc_host_maps_unmap(struct mc_host_map *ended);
/* Nobody uses the path any more. */
void mc_host_maps_free(struct mc_host_path *path);

/* 1: this path cannot be used; nothing is being copied. 2: the same, because the peer's process has ended. check: NULL,
 * or peer/check.h. */
int mc_run_host(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, struct mc_sum_check *check, uint64_t deadline_ns);

#endif
