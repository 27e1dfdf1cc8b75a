/* A small HTTP/1.1 server for handlers that block, of the store service, the master and the metadata server: a thread
 * serves a request once it is there, as far as it fits into a buffer; until then its connection waits with all others
 * in one loop, which serves nobody.
 *
 * Why not libevent's: calls of the store and questions to a master's core block, its server keeps whole bodies in
 * memory without counting them, and a request whose connection ends while another thread works on it is a trap there.
 *
 * Invariant: memory that strangers can claim is bounded: by the number of connections and of threads, by one sum for
 * what is not whole, and for bodies and values by one budget that all share; who holds a part of any and makes no
 * progress is cut off, sooner when others want it. Of threads and of the budget few addresses cannot keep so much that
 * one of another has nothing, however they go on.
 */
#ifndef MC_WEB_H
#define MC_WEB_H

#include "env/keys.h"
#include "net/message.h"

#define MC_WEB_PLACES 16384u  /* connections; half as many as there are descriptors when those are fewer */
#define MC_WEB_SHARE_PARTS 4u /* an address may have all of these parts of the places but one */
#define MC_WEB_HELD_BYTES ((size_t)64 << 20) /* of requests that are not whole; beyond it the oldest goes */
#define MC_WEB_THREADS_MAX 256
#define MC_WEB_LOOKS_MAX 32    /* threads beside them, which say how we are */
#define MC_WEB_QUEUE_MS 3000u  /* a request that finds no thread for so long is refused */
#define MC_WEB_SILENT_MS 1000u /* whose peer says nothing for so long loses its thread to one that waits */
#define MC_WEB_TURN_MS 200u    /* who waits so long for a thread gets one of an address that has far more of them, */
#define MC_WEB_TURN_PARTS 16u  /* until his own has this part of all, */
#define MC_WEB_KEPT_MS 5000u   /* and so long afterwards this part is kept for addresses that have no more */
#define MC_WEB_BUDGET_BYTES (UINT64_C(512) << 20) /* bodies and values in memory at a time; one alone may be larger */
#define MC_WEB_SMALL_BYTES 65536u                 /* not counted */
#define MC_WEB_IDLE_MS 75000u                     /* between two requests */
#define MC_WEB_PROGRESS_MS 30000u                 /* for a head; for a body or an answer, and more by its length: */
#define MC_WEB_BYTES_PER_MS 256u                  /* the slowest peer that is served */
#define MC_WEB_BUDGET_WAIT_MS 3000u /* for a part of the budget; then 503; less than a call of the store may take */
#define MC_WEB_BUDGET_TURN_MS 2000u /* who waits so long for one gets it of an address that keeps more than his */
#define MC_WEB_LINGER_MS 5000u      /* what a refused sender still sends is taken, so that it sees the answer */
#define MC_WEB_STOP_MS 5000u        /* until requests whose connections were closed must have ended */

#define MC_WEB_TEXT "text/plain; charset=utf-8"
#define MC_WEB_JSON "application/json; charset=utf-8"
#define MC_WEB_BYTES "application/octet-stream"

struct mc_web;
struct mc_web_connection;

struct mc_web_request {
    struct mc_head head;
    struct mc_span path; /* as it was sent, without the query; borrowed from the head */
    struct mc_web_connection *connection;
    bool is_head; /* HEAD: head.method says GET, and no body is sent */
    bool is_answered;
    char tenant[MC_KEY_ID_MAX]; /* of the key by which mc_web_is_permitted has let it in */
    unsigned rights;            /* of that key, enum mc_right; all where nobody is asked for one */
};

/* Must answer, once. Runs on a thread of its own. */
typedef void mc_web_handler(void *context, struct mc_web_request *request);

/* Is a request without a body, by its path, one that takes no time and needs no place among the others? */
typedef bool mc_web_question(void *context, struct mc_span path);

struct mc_web *mc_web_create(size_t head_max); /* bytes of a head with its empty line; a power of two */
/* Binds; nobody can connect yet. A descriptor, or negative with a line in error. port 0: the kernel chooses. */
int mc_web_bind(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size);
/* Listens at what mc_web_bind gave, and serves who comes, until mc_web_stop. The descriptor stays the caller's, until
 * then. 0, or negative with errno. */
int mc_web_serve(struct mc_web *web, int listener, mc_web_handler *handler, mc_web_question *is_quick, void *context);
/* Its own descriptors, which a forked child closes; -1: none. */
void mc_web_descriptors(const struct mc_web *web, int fds[2]);
/* Idle connections are closed at once, the others when they are answered, or have had patience_ms. False when some are
 * still under way: then what they use must stay. */
bool mc_web_stop(struct mc_web *web, unsigned patience_ms);
void mc_web_destroy(struct mc_web *web); /* after mc_web_stop said true; NULL is allowed */

/* ---- for the handlers ---- */

struct mc_web_bytes { /* memory with its part of the budget; zeroed = none */
    uint8_t *data;
    uint64_t length, charged;
};
/* NULL without memory, or when the budget is used up for too long. */
void *mc_web_bytes_make(struct mc_web_request *request, struct mc_web_bytes *bytes, uint64_t length);
void mc_web_bytes_free(struct mc_web_request *request, struct mc_web_bytes *bytes);
/* The whole body. False: it could not be read or is too long, and an answer has been given. */
bool mc_web_read_body(struct mc_web_request *request, uint64_t limit, struct mc_web_bytes *body);

void mc_web_reply(struct mc_web_request *request, int status, const char *type, const void *body, uint64_t length);
void mc_web_reply_text(struct mc_web_request *request, int status, const char *type, const char *text);
/* lines: further ones of the head, each with its end. */
void mc_web_reply_with(struct mc_web_request *request, int status, const char *type, const char *lines,
                       const void *body, uint64_t length);
/* An answer whose length is not known at its beginning: parts follow until the end. False: nobody takes any more of it,
 * and the end must be told all the same. is_whole false: what was sent does not look as if it were. */
bool mc_web_reply_begin(struct mc_web_request *request, int status, const char *type);
bool mc_web_reply_part(struct mc_web_request *request, const void *data, size_t length);
void mc_web_reply_end(struct mc_web_request *request, bool is_whole);
/* For one that takes long: is its answer still waited for? */
bool mc_web_is_awaited(const struct mc_web_request *request);
/* Of its connection: who is at the other end? Not to be read or written. */
int mc_web_descriptor(const struct mc_web_request *request);
/* Has who asks that right (of enum mc_right; 0: nobody needs any)? is_own: a tenant's key is enough, as what is told is
 * that tenant's (request->tenant). False after an answer. */
bool mc_web_is_permitted(struct mc_web_request *request, unsigned right, bool is_own);
/* May who asks do what is done without keys for neighbours alone (mc_keys_stranger_status)? False after an answer. */
bool mc_web_is_no_stranger(struct mc_web_request *request);
/* 405 with the methods that are allowed. */
void mc_web_reply_not_allowed(struct mc_web_request *request, const char *allowed);

#endif
