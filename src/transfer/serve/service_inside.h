/* What the files of the service thread share. Everything here belongs to that thread, but for what says otherwise. */
#ifndef MC_TRANSFER_SERVICE_INSIDE_H
#define MC_TRANSFER_SERVICE_INSIDE_H

#include "base/tempo.h"
#include "env/own_address.h"
#include "transfer/serve/inbound.h"
#include "transfer/state/engine.h"
#include "transfer/state/host_table.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/preface.h"

/* Three quarters of the descriptors, if those are fewer; of one address all of these parts but one. For one more
 * another leaves (places.c); without such a one it is closed at once. */
#define MC_SERVICE_CONNECTIONS_MAX 16384u
#define MC_SERVICE_SHARE_PARTS 4u
#define MC_SERVICE_SHARES 4096u         /* counters of addresses; those that meet in one are counted together */
#define MC_SERVICE_REST_MS 100u         /* one that rests for less is in use */
#define MC_SERVICE_GRACE_MS 10000u      /* who has moved too little for so long (base/tempo.h) is slow */
#define MC_SERVICE_RECEIVE_BYTES 16384u /* of a question, at once */
#define MC_SERVICE_HANDSHAKE_MS 5000u   /* a question has so long to come, and its answer to be taken */
#define MC_SERVICE_DRAIN_MS 2000u
#define MC_SERVICE_KEPT_BYTES (256u << 20) /* of questions that are not whole, of all connections, */
#define MC_SERVICE_KEPT_EACH (64u << 10)   /* but for so much of each */
#define MC_SERVICE_CUTS_MAX 16384u         /* numbers of connections that were cut, and may still come */
#define MC_SERVICE_CUT_MS 600000u /* for so long: no packet lives for two minutes, and what has come is taken soon */

enum mc_connection_kind {
    MC_CONNECTION_WAKE,
    MC_CONNECTION_STRANGERS, /* all of those that have not asked anything yet */
    MC_LISTENER_RPC,
    MC_LISTENER_DATA,
    MC_LISTENER_HOST,
    MC_CONNECTION_SHUT, /* its key is not proved yet */
    MC_CONNECTION_RPC,
    MC_CONNECTION_DATA,
    MC_CONNECTION_HOST
};

struct mc_service_connection {
    struct mc_service *service;
    enum mc_connection_kind kind;
    int fd;
    uint32_t events;
    bool is_dead;
    bool is_strange;      /* watched among those that have not asked anything yet */
    bool is_shut_tls;     /* it may have to begin with TLS, which it has not ended beginning */
    bool is_draining;     /* answered; input is thrown away until the peer's end */
    unsigned rights;      /* of its key, enum mc_right; all, where nobody is asked for one */
    uint64_t deadline_ms; /* 0: none */
    struct mc_service_connection *previous, *next;
    uint32_t share;                                /* of which counter */
    bool has_asked;                                /* a whole question, or the head of one, has come */
    struct mc_service_line *line;                  /* in which it is; NULL: none */
    struct mc_service_connection *before, *behind; /* there */
    struct mc_tempo tempo;
    uint64_t idle_ms;                  /* it has not been in the middle of anything since */
    struct mc_preface *preface;        /* SHUT */
    struct mc_key_proved *proved;      /* where keys are wanted, from then on */
    struct mc_buffer in, out;          /* RPC */
    struct mc_inbound *data;           /* DATA */
    struct mc_rdma_link *served;       /* RPC: the serving half that was set up over it; NULL */
    uint64_t lane;                     /* RPC: the number of that link; 0: not said. Of data: in `data` */
    bool is_answering, is_new, is_old; /* RPC: an offer is being answered, the first one, in the old framing */
    bool is_heard;                     /* RPC: it has a link, and its other end hears that we are leaving */
    _Atomic bool has_news;             /* of the link: its answer may be due */
    uint64_t answer_ns;                /* not before, but for news */
    enum mc_handshake_type answer_type;
    struct mc_service_connection *next_answering;
    const struct mc_host_intents *intents; /* HOST: mapped; NULL until it has said hello */
    struct mc_service_connection *next_initiator;
};

/* May an address that has so much of what all have have more? Three times as much as is left: so three quarters where
 * nobody else has any, and however many take theirs there is some left for others. */
static inline bool mc_service_has_share(uint64_t own, uint64_t all, uint64_t most)
{
    return all < most && own < (MC_SERVICE_SHARE_PARTS - 1) * (most - all);
}

struct mc_service_line {
    struct mc_service_connection *first, *last;
};

struct mc_cut {
    uint64_t lane, at_ms;
    uint32_t share; /* of who has asked for it */
};

struct mc_service {
    struct mc_transfer_engine *engine;
    struct mc_inbound_hooks inbound_hooks;
    int epoll_fd, wake_fd;
    int strangers_fd; /* an epoll in the other one: however many of them are ready, few have their turn at a time */
    pid_t process;
    struct mc_service_connection listeners[5];
    size_t listener_count;
    struct mc_service_connection *connections, *dead; /* the newest first */
    uint16_t shares[MC_SERVICE_SHARES];
    struct mc_service_line strangers; /* that have not asked yet, as they came */
    /* Those that have, in the middle of nothing, since when; and in the middle of something. */
    struct mc_service_line idle[MC_SERVICE_SHARES], busy[MC_SERVICE_SHARES];
    size_t kept_bytes;                       /* of all `in` */
    struct mc_service_connection *answering; /* whose offers are being answered; in `connections`, too */
    uint32_t connection_count;
    uint64_t tick_ms, pause_until_ms;
    struct mc_own_address own_address;
    unsigned keys_version; /* of the keys that connections were last looked at by */
    struct mc_spin spin;
    pthread_t thread;
    bool is_started;
    _Atomic bool is_stopping, cut_wanted;
    pthread_mutex_t initiators_lock; /* of the list, and of the maps in it */
    struct mc_service_connection *initiators;
    struct mc_cut *cuts; /* a ring, by time; NULL: none was ever */
    uint32_t cut_first, cut_count;
    uint16_t cut_shares[MC_SERVICE_SHARES]; /* of these */
    struct mc_gpu_lane *lanes[MC_GPUS_MAX]; /* for regions of devices: unit 0 to receive, unit 1 to send */
    struct mc_service_gate {
        uint64_t marked_ns, passed_ns; /* when the mark was made, and that which ended last */
        bool is_marked;
    } gates[MC_GPUS_MAX];
    unsigned marks;   /* of all; while there is one somebody may be held */
    bool has_news;    /* one has ended */
    size_t staged;    /* bytes of unit 1 that this turn's sending uses */
    uint64_t copying; /* devices whose copies into it have not been waited for */
    bool has_staging_failed;
    uint8_t received[MC_SERVICE_RECEIVE_BYTES]; /* of a question, before it is kept */
    uint8_t *careful;                           /* what goes out by TLS; NULL: nothing has yet */
    bool has_told;                              /* peers that we are leaving */
    bool is_crowded;                            /* strangers have had all of their part of this turn */
};

/* Hangs up; may be called at any time on the service thread. */
void mc_connection_drop(struct mc_service_connection *connection);
/* And nothing that is under way arrives. */
void mc_connection_abort(struct mc_service_connection *connection);
/* places.c: it comes, goes; has asked; has had a turn, after which it is in the middle of something or not; bytes of it
 * have come or gone. */
void mc_places_enter(struct mc_service_connection *connection, uint32_t share);
void mc_places_leave(struct mc_service_connection *connection);
void mc_places_asked(struct mc_service_connection *connection);
void mc_places_turn(struct mc_service_connection *connection, bool rests);
void mc_places_moved(struct mc_service_connection *connection, uint64_t bytes);
/* Is there one more for that counter? Another may have to go for it. */
bool mc_places_has_one(struct mc_service *service, uint32_t share);
/* Somebody goes, as descriptors are out. False: nobody can. */
bool mc_places_make_room(struct mc_service *service);
/* A whole question, or the head of one, has come: it is no stranger any more. */
void mc_connection_asked(struct mc_service_connection *connection);
/* What the port is for begins now: `then` is its kind. False: out of memory. */
bool mc_connection_begin(struct mc_service_connection *connection, enum mc_connection_kind then);
/* Cuts the connections of those numbers, which it sorts, whether they are there or are still to come, for who asks so;
 * MC_SETTLE_NUMBERS_MAX at most. False: not all can be noted, and some may come; who asks has to wait. */
bool mc_service_cut_lanes(const struct mc_service_connection *asker, uint64_t *lanes, size_t count);
/* Has it been cut? */
bool mc_service_is_cut(const struct mc_service *service, uint64_t lane);
/* device.c: hooks of inbound.h. */
bool mc_device_may_touch(void *context, const struct mc_region *region, uint64_t since_ns);
uint8_t *mc_device_receive_at(void *context, const struct mc_region *region, size_t *size);
const uint8_t *mc_device_send_from(void *context, const struct mc_region *region, uint64_t address, size_t *size);
/* Those that are held may go on, perhaps. */
bool mc_device_has_news(struct mc_service *service);
/* Waits for what send_from has started. False: some of it is not there. */
bool mc_device_staged(struct mc_service *service);
bool mc_device_sum(struct mc_service *service, const struct mc_region *region, uint64_t address, size_t size,
                   uint32_t *sum);
/* False when it is not a device's, or (*is_copied) when the device has refused. */
bool mc_device_copy(struct mc_service *service, uint64_t address, const void *from, size_t size, bool *is_copied);
/* preface_serve.c */
void mc_preface_serve(struct mc_service_connection *connection);
/* Ends what was proved by a key that holds no more; called now and then. */
void mc_preface_revoke(struct mc_service *service);
/* service_rpc.c */
void mc_rpc_serve(struct mc_service_connection *connection, uint32_t events);
void mc_rpc_tell_leaving(struct mc_service_connection *connection);
/* Answers an offer if that is due. False: it is not. */
bool mc_rpc_answer(struct mc_service_connection *connection);
/* The thread looks around at once. Any thread. */
void mc_service_wake(struct mc_service *service);
/* host_serve.c */
void mc_host_serve(struct mc_service_connection *connection);
void mc_host_serve_end(struct mc_service_connection *connection);

#endif
