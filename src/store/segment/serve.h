/* The owner's side of the data connections: loops that serve peers (unix socket: ATTACH, COMMIT, PING; tcp: READ,
 * WRITE, COMMIT, PING) for one own segment. One of them, on "the serve thread", also has the owner's link to the master
 * (store/owner/owner.c) and is the only one that makes slots live and clears them. It has the unix sockets, so a commit
 * of a writer in shared memory becomes LIVE without a hop between threads, and connections with RDMA. Those by tcp are
 * served by data threads, if there are any: nothing that they copy delays it. */
#ifndef MC_SEGMENT_SERVE_H
#define MC_SEGMENT_SERVE_H

#include "base/bytes.h"
#include "store/segment/memory.h"
#include "env/socket.h"
#include "store/wire/tag.h"

/* At most so many, and three quarters of the descriptors that the process may have. One more gets the place of one that
 * rests (serve_shares.h), or MC_ERR_BUSY as the answer to its hello. */
#define MC_SERVE_CONNECTIONS_MAX 65536u
/* Beside them, that have not said hello or were refused: two thirds as many, and fewer while guests have many places,
 * but no fewer than the first of these and no more than the second; the oldest makes room. Who has no place comes again
 * at once, which costs more than a place. */
#define MC_SERVE_GREETERS_LEAST 1024u
#define MC_SERVE_GREETERS_MAX 16384u
#define MC_SERVE_HELLO_MS 5000u  /* a connection without a HELLO after so long is closed */
#define MC_SERVE_SETTLE_MS 1000u /* one that rests for so long gives its buffers back */
/* Whose half frame, or whose answer, has not moved for this part of MC_SERVE_IDLE_MS is closed, and for a twelfth of
 * that when its place is needed. */
#define MC_SERVE_STALL_PART 5u
/* Who has sent or taken too little for this part of it (base/tempo.h) is closed when its place is needed, if it is of a
 * host that has more than its share. */
#define MC_SERVE_SLOW_PART 30u
/* Beyond the window of a payload: what is payload of it is copied once more */
#define MC_SERVE_RECEIVE_BYTES (16u << 10)
#define MC_SERVE_HELD_MAX ((size_t)256 << 20) /* bytes of all half frames; beyond it the one that stands longest goes */
#define MC_SERVE_THREADS_MAX 16u              /* data threads */
#define MC_SERVE_IDLE_MS 300000u              /* and so long: it is closed. Clients let go earlier (MC_LANE_IDLE_MS) */
#define MC_SERVE_TAGS_ALWAYS false /* of places: with keys only, without them nobody knows whom they are for */
#define MC_TICKET_PERIOD_S 3600u   /* by default: the keys of tickets and tags are others from time to time */

struct event_base;
struct mc_rdma;
struct mc_serve;

struct mc_serve_hooks { /* all called on the serve thread */
    void *context;
    /* A commit was applied (code 0) or refused. Called per slot; flush is called once after a burst of them. */
    void (*committed)(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, int code);
    void (*flush)(void *context);
    /* A writer misses the master's word of a commit that was applied: the packet may be lost that tells the master. */
    void (*missed)(void *context);
};

/* Listens: tcp on `host` (port 0: kernel chooses) and, unless unix_allowed is false, a unix socket (abstract
 * "@mooncake-<node>", or a file in MC_SHM_DIR). 0 or negative. The thread is not started yet. */
int mc_serve_create(struct mc_id node, uint64_t incarnation, const char *host, uint16_t port, bool unix_allowed,
                    const struct mc_serve_hooks *hooks, struct mc_serve **serve);
/* Data threads beside it; before any memory is set and before start. By default there are none. */
void mc_serve_threads(struct mc_serve *serve, uint32_t count);
/* How many there are; fewer than were wanted where some could not be had. */
uint32_t mc_serve_thread_count(const struct mc_serve *serve);
/* As the environment says (MC_SERVE_THREADS), or by the number of processors. */
uint32_t mc_serve_threads_wanted(void);
/* The keys of the tickets and tags that it wants, as a MOUNT tells them; what it fills in borrows. */
void mc_serve_keys_tell(const struct mc_serve *serve, struct mc_wire_mount *mount);
/* Draws others, which are to be told at once; and ends the connections that have a ticket of those before the ones
 * before. Serve thread only. False: it wants neither tickets nor tags. */
bool mc_serve_keys_renew(struct mc_serve *serve);
/* How often a tag was not that of what was asked for. */
uint64_t mc_serve_tags_refused(const struct mc_serve *serve);
uint16_t mc_serve_tcp_port(const struct mc_serve *serve);
const char *mc_serve_unix_path(const struct mc_serve *serve); /* "" when none */
struct event_base *mc_serve_base(struct mc_serve *serve);
int mc_serve_start(struct mc_serve *serve);
/* Runs function(argument) on the serve thread soon; from any thread. What is still waiting at destroy runs there, so
 * arguments can be owned. */
void mc_serve_post(struct mc_serve *serve, void (*function)(void *argument), void *argument);
/* The segment that is served; replaced when new memory is mounted: all data connections are closed first (those of data
 * threads soon; what was served before is to be given up, which ends their reads and writes at once), and CUTs that
 * still wait are forgotten (the master forgot that segment). Takes a reference. Serve thread only, or before start. */
void mc_serve_set_memory(struct mc_serve *serve, struct mc_segment_memory *memory);
/* The devices by which peers may read and write the memory; before start. They outlive the server. NULL: none. */
void mc_serve_set_rdma(struct mc_serve *serve, struct mc_rdma *rdma);
/* Registers the memory there, which blocks for as long as its pages are pinned, and then tells the serve thread. Any
 * thread but that one; mc_serve_set_memory takes it back. */
void mc_serve_pin(struct mc_serve *serve, struct mc_segment_memory *memory);
/* Ends the links of that writer, or of all (zero): nothing of theirs arrives any more, which a generation could not
 * refuse. Serve thread only. */
void mc_serve_cut_links(struct mc_serve *serve, struct mc_id writer);
/* CUT: from now on nothing of `generation` or older is accepted for `slot`; what is left of a write in progress for it
 * is drained, and all links of the writer are dropped. done is called on the serve thread once no living process (this
 * one included) has announced a copy to there that it has not ended (at once when that is so). Serve thread only. */
void mc_serve_cut(struct mc_serve *serve, uint32_t slot, uint64_t generation, struct mc_id writer,
                  void (*done)(void *context, uint32_t slot, uint64_t generation), void *context);
/* A slot was cleared: does nobody in this process store there any more, over a data connection or by a copy? True: so
 * it is. False: done is called on the serve thread when it is. */
bool mc_serve_has_settled(struct mc_serve *serve, uint32_t slot, uint64_t generation,
                          void (*done)(void *context, uint32_t slot, uint64_t generation), void *context);
/* Other limits than MC_SERVE_CONNECTIONS_MAX, MC_SERVE_HELLO_MS and MC_SERVE_IDLE_MS; before start. */
void mc_serve_set_limits(struct mc_serve *serve, uint32_t connections, uint32_t hello_ms, uint32_t idle_ms);
/* Open data connections. Serve thread only, or after a test has synchronised with it. */
uint32_t mc_serve_connections(const struct mc_serve *serve);
/* Stops the thread and closes everything. A child may be forked until it is freed. */
void mc_serve_end(struct mc_serve *serve);
void mc_serve_free(struct mc_serve *serve);
/* Both. */
void mc_serve_destroy(struct mc_serve *serve);
/* In a forked child: closes descriptors, joins nothing. */
void mc_serve_forked(struct mc_serve *serve);

#endif
