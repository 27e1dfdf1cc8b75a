/* What server.c (life, leadership, the loop) and connections.c (input, output, turns) share. Not for others.
 *
 * Invariant: the loop's thread alone touches any of it, but for what is atomic.
 */
#ifndef MC_MASTER_CONNECTIONS_H
#define MC_MASTER_CONNECTIONS_H

#include "env/crowd.h"
#include "env/socket.h"
#include "store/core/list.h"
#include "store/master/election.h"
#include "store/master/mailbox.h"
#include "store/master/metrics.h"
#include "store/master/note.h"
#include "store/master/sampler.h"
#include "store/master/share.h"
#include "store/master/slow.h"
#include "store/wire/proof.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>

#define MC_SERVER_CONNECTIONS_MAX 65536u
/* That have not said hello; half as many as there are descriptors when those are fewer. The oldest makes room. Who has
 * no place comes again at once, which costs more than a place. */
#define MC_SERVER_GREETERS_MAX 16384u
#define MC_SERVER_GREETERS_CROWDED 16u       /* when descriptors or places are out */
#define MC_SERVER_SHARE_PARTS 4u             /* an address may have all of these parts of the places but one */
#define MC_SERVER_FRAMES_PER_TURN 64         /* of one connection, then the others have their turn */
#define MC_SERVER_BYTES_PER_TURN (64u << 10) /* of one connection: so much, and the frame that passes it */
#define MC_SERVER_BACKLOG_PAUSE (8u << 20)   /* bytes not sent, above which a connection is not read */
#define MC_SERVER_BACKLOG_MAX (64u << 20)    /* bytes not sent, above which it is closed */
#define MC_SERVER_BACKLOG_ALL (256u << 20)   /* bytes not sent to all, above which less may wait for each: */
#define MC_SERVER_BACKLOG_LOW (64u << 10)
/* Bytes of frames that are not whole, of all: the oldest one's sender goes. Of whole ones that wait for their turn: no
 * more is read. */
#define MC_SERVER_INPUT_ALL (1u << 30)
#define MC_SERVER_STUCK_MS 30000 /* a connection that takes none of what waits for it is closed */
#define MC_SERVER_HELLO_MS 10000 /* a connection without a whole frame after this is closed */
#define MC_SERVER_FRAME_MS 60000 /* so is one whose frame takes longer to arrive */
#define MC_SERVER_CLOSE_MS 5000  /* and one that does not take its last answer */
#define MC_SERVER_RECEIVE_BYTES (64u << 10)
#define MC_SERVER_INDEX_BITS 16

struct connection {
    uint64_t number;
    struct mc_server *server;
    int fd;
    struct event read_event, write_event;
    struct mc_buffer in;  /* what was received and is not a whole frame, or had no turn yet */
    struct mc_buffer out; /* from out_sent on: not sent */
    size_t out_sent;
    size_t stored;     /* bytes of `in` when the last turn ended */
    size_t backlog;    /* bytes of `out` that were not sent when the last turn ended */
    uint64_t taken_ms; /* when the peer last took some of `out`, or all */
    uint64_t since_ms; /* accepted, then: when the pending frame began, or closing began */
    struct connection *next_dirty, *next_ready;
    struct mc_link held;                /* in the server's list of those whose output may not be sent */
    struct connection *older, *newer;   /* while it has not spoken: of those that have not */
    struct connection *before, *behind; /* while is_part: of the parts */
    struct mc_share *share;             /* of its address; NULL: a unix socket */
    bool is_part;                       /* what is in `in` waits for the peer */
    bool is_dirty;                      /* on the dirty list: has output, or shall be closed */
    bool is_ready;                      /* on the ready or the bulk list: a whole frame waits in `in` */
    bool is_paused;                     /* not read: too much is not sent */
    bool is_closing;                    /* nothing more is read; closed once sent */
    bool is_dead;                       /* closed at the end of this turn */
    bool is_waiting;                    /* write_event is set */
    bool has_spoken;                    /* a whole frame came */
    bool is_greeting;                   /* in the list of those that have not */
    bool is_in_crowd;                   /* it is read as one of them, not by read_event */
    bool has_frames;                    /* whole frames wait in `in` until enough output is sent */
    bool is_open;                       /* nothing is to be proved any more, or there are no keys */
    unsigned rights;                    /* of enum mc_right, once it is open */
    struct mc_master_traced *traced;    /* traced.h; NULL: nothing that it asked for is a part of a trace */
    struct mc_gate *gate;               /* while something is being proved */
    struct mc_key_proved *proved;       /* once it is; NULL: nobody is asked for a key */
};

struct connection_list {
    struct connection *first, **last;
};

struct mc_server {
    struct event_base *base;
    struct mc_core *core; /* NULL: a standby */
    struct mc_core_config core_config;
    struct mc_quotas *quotas; /* as mc_master_config's */
    void (*core_made)(void *quotas, struct mc_core *core);
    struct mc_pod *pod; /* as mc_master_config's */
    void (*pod_lead)(struct mc_pod *pod, bool leads);
    struct mc_id cluster; /* as the last core knew it; zero: none did */
    bool is_naming;       /* the election was asked to write it down */
    struct mc_core_output output;
    struct mc_kv_events *kv_events; /* NULL: nobody wants to know */
    struct mc_election *election;   /* NULL without HA */
    struct mc_note note;            /* without HA: of what the one after us has to know; fd -1: there is none */
    struct mc_mailbox *mailbox;
    struct event listen_event, unix_event, resume_event, tick_event, report_event, signal_event, mail_event,
        election_event, crowd_event;
    int listener, unix_listener, signal_fd; /* unix_listener: -1 when there is none */
    bool is_crowded;                        /* those of the crowd have had all of their part of this turn */
    int crowd;                              /* of those that have not said hello; -1: each is watched by itself */
    struct mc_id node;
    bool wants_keys;              /* who calls has to prove one */
    char address[MC_ADDRESS_MAX]; /* under which we are found */
    uint16_t port;
    bool is_stopping, report_metrics, is_role_due;
    uint64_t depart_at_ms;  /* up to which age the election was asked to note that the core acts on departures */
    bool is_aging;          /* and that it came of age */
    bool has_activity;      /* a callback has run in this turn, and not only for what nobody waits for */
    _Atomic uint64_t epoch; /* of the core, or of the last one; written by the server's thread only */
    uint64_t now_ms, tick_due_ms, active_ms;
    /* Without HA. The core began; the cores since then have changed nothing (as mc_core_config's, 0: that is not so),
     * and what the note said before them. */
    uint64_t core_since_ms, idle_since_ms, noted_epoch, noted_until_ms;
    uint64_t aged_epoch, aged_next; /* as mc_core_config's */
    bool noted_is_whole;
    bool is_taking;                      /* our epoch is being written into the note, and to the disk */
    uint64_t taking_since_ms;            /* 0: it is not */
    uint64_t keeping_since_ms;           /* since then its record does not say what it has to say; 0: it does */
    bool is_held;                        /* nothing is sent for the one or the other, */
    uint64_t held_since_ms;              /* since then */
    uint64_t patience_ms;                /* the last look at how long */
    uint64_t aging_since_ms;             /* the note is being written to the disk; 0: it is not */
    uint64_t naming_since_ms;            /* the same, of the cluster in it */
    uint64_t departing_since_ms;         /* and of its horizon, */
    uint64_t departing_at_ms;            /* which is the age that was asked for last, */
    uint64_t departed_ms;                /* for the first time then */
    uint64_t turn_ns;                    /* this turn began, with the first callback; 0: it has not */
    _Atomic uint64_t longest_turn_ns[2]; /* since the last report, and between the two before it */
    uint64_t sweeps;                     /* so far */
    uint64_t serial;                     /* last number given, without its index */
    struct connection **connections;     /* by index; NULL = free */
    uint16_t *free_indices;
    size_t free_count, indices_used;
    size_t stored;     /* bytes in all connections' `in` */
    size_t stored_max; /* of those that are parts, and of the others before one more is read */
    struct {
        struct connection *oldest, *newest; /* by since_ms */
        size_t bytes;
    } parts; /* those that wait for their peers: see stored.c */
    struct connection_list dirty, ready, bulk;
    struct mc_link held;  /* connections: is_held, and there is something for them, or there was */
    struct mc_map shares; /* of addresses: struct mc_share */
    uint32_t share_max;   /* connections of one address */
    struct {
        struct connection *oldest, *newest;
        uint32_t count;
    } greeters;
    size_t backlog;      /* of all connections */
    uint64_t crowded_ms; /* when nothing rested that could have made room; 0: that is not so */
    struct mc_spin spin;
    uint64_t wait_ns; /* length of the last blocking wait */
    struct mc_metrics_window window;
    struct mc_sampler sampler;
    struct mc_slow *slow; /* as mc_master_config's */
    uint64_t log_second_ms;
    uint32_t log_lines, log_held;
    uint8_t received[MC_SERVER_RECEIVE_BYTES];
};

/* Who leads; from any thread. Without an election it is always us. */
void mc_server_role(struct mc_server *server, struct mc_election_role *role);
/* To be asked before every turn's input and before every flush: a leader whose time is over takes and says nothing. */
bool mc_server_may_serve(const struct mc_server *server);
/* The first thing that each callback of the loop does: the turn begins, and the time is looked at. */
void mc_server_turn_enter(struct mc_server *server);
void mc_server_turn_end(struct mc_server *server);
/* Frames that were left over have their turn. */
void mc_server_run_ready(struct mc_server *server);
/* Sends what turns have made, and ends what shall end, within its share of the turn: the rest stays for the next. */
void mc_server_flush(struct mc_server *server);
/* Or, while nothing may be sent, only counts what waits, and ends what is dead. */
void mc_server_hold(struct mc_server *server);
/* Closes connections that do not get on, so that nobody collects memory and descriptors by sitting still. */
void mc_server_sweep(struct mc_server *server);
/* Ends all connections; the core is not told. */
void mc_server_drop_connections(struct mc_server *server);
/* It is closed at the end of this turn. */
void mc_connection_die(struct connection *connection);
/* To be called when `in` or is_ready has changed. has_begun: what is there came after something that was taken. */
void mc_stored_count(struct connection *connection, bool has_begun);
/* Gives back what is stored of one that ends. */
void mc_stored_drop(struct connection *connection);
/* So much waits for its turn that nothing more is read. */
bool mc_stored_is_full(const struct mc_server *server);
/* Callbacks of the listeners. */
void mc_server_on_accept(evutil_socket_t fd, short events, void *argument);
void mc_server_on_resume(evutil_socket_t fd, short events, void *argument);
void mc_server_on_crowd(evutil_socket_t fd, short events, void *argument);
/* mc_core_output */
struct mc_buffer *mc_server_core_buffer(void *context, uint64_t number);
void mc_server_core_close(void *context, uint64_t number);
void mc_server_core_slow(void *context, const struct mc_core_slow *call);
bool mc_server_core_way(void *context, uint64_t number, struct mc_core_way *way);

#endif
