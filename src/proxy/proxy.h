/* What the proxy's parts share: one event loop, one thread, no lock.
 *
 *   client.c    a connection of a client: reads a request, writes its answer, tells when the client is gone or
 *               takes more
 *   relay.c     one request: prefill, then (or at the same time) decode, whose answer goes to the client piece by piece
 *   join.c      one answer made of prefill's and decode's
 *   upstream.c  one request to an instance, on a connection of its own
 *   check.c     asks instances whether they live, what they serve, and prefill's bootstrap server who they are
 *   schedule.c  which instance has the next request
 *   admin.c     the proxy's own paths
 *   server.c    listens, starts, drains, ends
 *
 * Each calls those above it in this list; what a client and a relay have to tell those below, they tell by the
 * functions that the server has put into struct mc_proxy.
 *
 * Back pressure: what an instance sends is read only while the client's unsent bytes are below MC_PROXY_OUTPUT_MAX.
 * A client that is gone cancels its relay, which cancels its upstreams: their connections are closed, and the engine
 * stops.
 */
#ifndef MC_PROXY_PROXY_H
#define MC_PROXY_PROXY_H

#include "proxy/edit.h"
#include "proxy/instance.h"
#include "proxy/message.h"

#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/listener.h>

#define MC_PROXY_OUTPUT_MAX ((size_t)256 << 10) /* unsent bytes of one answer at which its source is not read */
#define MC_PROXY_OUTPUT_LOW ((size_t)64 << 10)  /* at which it is read again */
#define MC_PROXY_INPUT_MAX ((size_t)128 << 10)  /* bytes read at once; and of requests behind the one under way */
#define MC_PROXY_ANSWER_MAX ((size_t)16 << 20)  /* bytes of an answer to a check that are kept */
#define MC_PROXY_LEFT_MAX 256                   /* instances' answers that nobody waits for any more */
#define MC_PROXY_LINGER_MS 3000                 /* what a client still sends is read so long after a refusal */

struct mc_client;
struct mc_relay;

#define MC_PROXY_SHARES 1024u /* in which clients are counted by their address */

struct mc_proxy_totals {
    uint64_t connections, requests, cancelled, broken, retried, refused; /* refused: by a limit */
    uint64_t by_class[6]; /* answers by the first digit of their status */
};

struct mc_proxy {
    /* Before anything behind the head is read: 0, or a status. is_known: as far as TLS goes (env/channel.h). */
    int (*refusal)(const struct mc_head *head, bool is_known);
    void (*dispatch)(struct mc_client *client); /* finds who answers a request that has arrived */
    void (*ended)(struct mc_proxy *proxy);      /* a client or a request: there may be room, or nothing to wait for */
    struct event_base *base;
    struct evdns_base *dns;
    struct evconnlistener *listener;
    struct event *terminate, *interrupt, *hangup, *tick, *pulse, *turn, *drain_timer;
    const struct mc_proxy_config *config;
    struct mc_instances instances;
    struct mc_client *clients; /* all of them */
    struct {                   /* of them, those that have to say something: who did so longest ago first */
        struct mc_client *oldest, *newest;
    } waiting;
    struct mc_relay *relays;  /* all of them */
    struct mc_upstream *left; /* whose answers nobody waits for any more */
    size_t client_count, request_count, left_count, buffered;
    uint32_t shares[MC_PROXY_SHARES]; /* clients of an address, or of several */
    unsigned accepted;                /* in this turn */
    uint64_t start_ms, pulse_ms;      /* pulse: when it last beat */
    uint64_t woken_ms;                /* when this process last went on after it had stood still */
    bool is_draining, accepts;
    struct mc_proxy_totals totals;
    struct mc_members members; /* of whatever JSON is being looked at; nothing keeps it */
};

static inline struct timeval mc_proxy_time(uint64_t ms)
{
    return (struct timeval){(time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000)};
}

/* ---- upstream.c ---- */

enum mc_upstream_end {
    MC_UPSTREAM_DONE,       /* the whole answer was handed over */
    MC_UPSTREAM_NO_CONNECT, /* it has seen nothing of the request */
    /* Neither, and that says nothing of the instance: no descriptor, no memory, no name server. */
    MC_UPSTREAM_OWN_TROUBLE,
    MC_UPSTREAM_BROKEN,  /* closed too early */
    MC_UPSTREAM_GARBAGE, /* what it sent is not HTTP */
    MC_UPSTREAM_TIMEOUT
};

struct mc_upstream_events {
    void (*head)(void *context, struct mc_head *head); /* may take it over: move it and zero the original */
    void (*part)(void *context, struct evbuffer *data);
    /* The last call; the upstream is gone behind it. problem says what went wrong. */
    void (*ended)(void *context, enum mc_upstream_end end, const char *problem);
};

struct mc_upstream;
/* head: the whole head of the request. body: what follows it, emptied. Nothing is called before this returns. NULL: no
 * memory. */
struct mc_upstream *mc_upstream_start(struct mc_proxy *proxy, const struct mc_proxy_address *address,
                                      const struct mc_buffer *head, struct evbuffer *body, bool is_head,
                                      uint64_t longest_ms, const struct mc_upstream_events *events, void *context);
/* While paused it is not read. */
void mc_upstream_pause(struct mc_upstream *upstream, bool is_paused);
/* Milliseconds since its last byte, or since the connection; 0 while it is not read. */
uint64_t mc_upstream_silent_ms(const struct mc_upstream *upstream, uint64_t now);
/* Ends it now, with a timeout or, before the connection, as what has seen nothing. Not out of its own calls. */
void mc_upstream_give_up(struct mc_upstream *upstream, const char *problem);
/* Nothing is called from now on, and its answer is read to its end, for so long at most: it does not notice. Where
 * there are MC_PROXY_LEFT_MAX of them, the connection is closed. Not out of its own calls. */
void mc_upstream_leave(struct mc_upstream *upstream, uint64_t longest_ms);
/* Ends those that were left. */
void mc_upstreams_end_left(struct mc_proxy *proxy);
/* Nothing is called from now on; the connection is closed. */
void mc_upstream_cancel(struct mc_upstream *upstream);

/* ---- client.c ---- */

struct mc_client_events {
    void (*gone)(void *context);     /* the client has left; the context must not touch it any more */
    void (*has_room)(void *context); /* there is room for more of the answer */
};

/* Owns fd from now on. */
void mc_client_accept(struct mc_proxy *proxy, int fd);
/* Of the clients that have to say something and did so longest ago one leaves, so that another has room; never the
 * newest. False: there is none, or what they said waits to be read. */
bool mc_client_make_room(struct mc_proxy *proxy);
/* Closes it whatever it does. */
void mc_client_close(struct mc_client *client);
/* Closes it when what it does now is done; at once when that is nothing. */
void mc_client_finish(struct mc_client *client);
struct mc_client *mc_client_next(const struct mc_client *client);

struct mc_proxy *mc_client_proxy(const struct mc_client *client);
const struct mc_head *mc_client_head(const struct mc_client *client);
struct evbuffer *mc_client_body(struct mc_client *client);
/* Who is told; context NULL: nobody. */
void mc_client_watch(struct mc_client *client, const struct mc_client_events *events, void *context);

/* An answer in one piece. */
void mc_client_reply(struct mc_client *client, int status, const char *type, struct mc_span body);
/* As OpenAI's API words errors: {"error":{"message","type","param","code"}}. */
void mc_client_reply_error(struct mc_client *client, int status, const char *type, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* An answer in pieces: begin once, send any number of times (takes all of data), then end or break off. length: with
 * MC_FRAMING_LENGTH. */
void mc_client_begin(struct mc_client *client, const struct mc_head *head, const char *request_id);
void mc_client_send(struct mc_client *client, struct evbuffer *data);
void mc_client_end(struct mc_client *client);
/* So that nobody takes what was sent for the whole answer. */
void mc_client_break(struct mc_client *client);
bool mc_client_is_full(const struct mc_client *client);

/* ---- relay.c ---- */

/* A POST of a completion. */
void mc_relay_completion(struct mc_client *client);
/* The same in the words of engines that meet in rooms; there in their mode only. */
void mc_relay_generate(struct mc_client *client);
/* Any other request, as it is, to a decode instance. */
void mc_relay_other(struct mc_client *client);
/* A head up to the instance's own lines: request line, Host, what is passed on of the client's, Authorization. */
void mc_relay_write_head(struct mc_proxy *proxy, const struct mc_proxy_address *address, const struct mc_head *from,
                         const char *method, const char *target, struct mc_buffer *out);

/* Ends what an instance that is down has under way, if nothing came of it for so long. */
void mc_relay_end_silent(struct mc_proxy *proxy, const struct mc_instance *instance, uint64_t silent_ms);

/* ---- check.c ---- */

/* Starts a check of every instance that has none under way, also of those that were removed and have requests. */
void mc_check_all(struct mc_proxy *proxy);
/* Several times a second: asks an instance that owes answers and is silent, ends the requests of one that is dead, and
 * forgets who was removed and has none. */
void mc_check_pulse(struct mc_proxy *proxy);
void mc_check_cancel_all(struct mc_proxy *proxy);
/* Asks whether an address may become an instance. done is called once, later, with NULL or what speaks against it;
 * unless it is cancelled before. */
struct mc_candidate_check;
typedef void mc_candidate_done(void *context, const char *problem);
struct mc_candidate_check *mc_check_candidate(struct mc_proxy *proxy, const struct mc_proxy_address *address,
                                              mc_candidate_done *done, void *context);
void mc_check_candidate_cancel(struct mc_candidate_check *check);

/* ---- admin.c ---- */

/* Is a request that begins so to be refused, as it shows no key with the right to it? 401, 403, or 0. */
int mc_proxy_refusal(const struct mc_head *head, bool is_known);
/* Finds who answers a request that has arrived. */
void mc_proxy_dispatch(struct mc_client *client);

/* ---- server.c ---- */

/* Runs until a signal has ended it. */
int mc_proxy_run(const struct mc_proxy_config *config, char *error, size_t error_size);

#endif
