/* A link: one call connection to the master, borrowed by one calling thread for one operation, which does its own send
 * and receive.
 *
 * A master of a lower epoch than one that was met is no master any more: its hello is refused, its links are closed, so
 * no call ever mixes answers of two epochs on one link.
 *
 * What only reads is asked for on another link when its answer is late (base/pace.h): a packet may have been lost. The
 * first answer is taken; a link that is owed one rests until it has come. What changes something is asked for once;
 * while its answer is late, PINGs behind the question show the kernels at both ends what was lost: Linux sends a lone
 * lost packet again after 200 ms and more, one that something has arrived behind of after a round trip. */
#ifndef MC_STORE_LINK_H
#define MC_STORE_LINK_H

#include "base/pace.h"
#include "env/socket.h"
#include "store/wire/version.h"

#define MC_LINKS_IDLE_MAX 64u   /* more are closed on return */
#define MC_LINK_SETTLE_MS 1000u /* one that was not used for so long gives its buffers back, */
#define MC_LINK_IDLE_MS 60000u  /* and is closed after so long */

struct mc_store;

struct mc_blank { /* a place that was granted ahead, see blank.h; generation 0 = none */
    uint32_t segment, slot;
    uint64_t generation, offset, size; /* bytes */
    uint64_t since_ns;
};

struct mc_master_link {
    struct mc_store *store;
    int fd;
    uint64_t epoch;             /* of the master that answered the hello */
    struct mc_wire_peer agreed; /* with it: what may be said to it */
    uint64_t request_id;
    struct mc_buffer in, out;
    size_t used; /* bytes of `in` that the last frame occupies; dropped by the next receive */
    struct mc_spin spin;
    uint64_t idle_since_ns;
    bool reused; /* came from the idle stack: its first failure may only mean that the master was restarted */
    bool broken;
    struct mc_tcp_address peer;         /* of a tcp connection to the master; length 0: it is a unix socket */
    uint64_t owed;                      /* answers up to that request are nobody's any more; 0 = none is owed */
    bool connecting, shaking, greeting; /* a link that is still on its way, see link.c */
    struct mc_prover *prover;           /* while greeting, until the master has proved itself; NULL: it need not */
    uint64_t asked_ms;                  /* the hello, while greeting; by the clock of the boot */
    bool repeated;           /* an earlier try of this request may have reached the master, its answer was lost */
    uint32_t retry_after_ms; /* the master's wish in the FAILED just received */
    struct mc_blank blank;
    struct mc_master_link *next;
    struct mc_master_link *next_borrowed, **borrowed_at;
};

/* A connection to the master that leads, greeted with that role; *reply holds what it said of itself (text and leader
 * are empty). near: its unix socket may be tried first. A descriptor or negative; what was learnt is remembered. */
int mc_master_greet(struct mc_store *store, enum mc_role role, bool near, uint64_t deadline_ns,
                    struct mc_wire_hello_reply *reply);

/* An idle link or a new one. */
int mc_link_borrow(struct mc_store *store, uint64_t deadline_ns, struct mc_master_link **link);
/* An idle one, or NULL; store->lock held. */
struct mc_master_link *mc_link_pop(struct mc_store *store);
/* Gives it back; a broken one is closed. */
void mc_link_return(struct mc_store *store, struct mc_master_link *link);
void mc_link_free(struct mc_master_link *link);
/* Lets go of what was not used for long; called every second or so. */
void mc_links_rest(struct mc_store *store, uint64_t now_ns);

/* Sends link->out and empties it. */
int mc_link_send(struct mc_master_link *link, uint64_t deadline_ns);
/* How long the answer to what changes something takes, and who else may be shown a loss while it is late. */
struct mc_link_wait {
    struct mc_pace *pace;
    uint64_t late_ns;             /* after which it is late */
    void (*nudge)(void *context); /* may be NULL */
    void *context;
};
/* The next frame, which must be of that type and request (FAILED: its code is returned). The reader is over its body
 * and valid until the next receive. After MC_ERR_RPC_TIMEOUT the link can be listened to again: only PUT_DONE can be
 * told from what comes late. */
int mc_link_await(struct mc_master_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                  const struct mc_link_wait *wait, struct mc_reader *reader);

/* Builds one request. `context` is what the caller needs to build it again for a second try. */
typedef void mc_link_build(struct mc_buffer *out, uint64_t request_id, const void *context);
/* Borrow, build, send, receive; once more on a new connection when a reused one turned out dead. On success the caller
 * has the link (return it). */
int mc_link_try(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader);
/* The same, and again while the master cannot be reached or is busy: until the deadline, or until it is away. */
int mc_link_call(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                 enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader);
/* The same, if the master has that feature (enum mc_feature; negative: whatever it has). Else it is asked nothing:
 * MC_ERR_NOT_SUPPORTED. */
int mc_link_call_if(struct mc_store *store, int feature, uint64_t deadline_ns, mc_link_build *build,
                    const void *context, enum mc_message reply, struct mc_master_link **link, struct mc_reader *reader);

#endif
