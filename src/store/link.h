/* A link: one call connection to the master, borrowed by one calling thread for one operation, which does its own send
 * and receive. */
#ifndef MC_STORE_LINK_H
#define MC_STORE_LINK_H

#include "env/socket.h"
#include "wire/wire.h"

#define MC_LINKS_IDLE_MAX 64u /* more are closed on return */

struct mc_store;

struct mc_link {
    int fd;
    uint64_t epoch; /* of the master that answered the hello */
    uint64_t request_id;
    struct mc_buffer in, out;
    size_t used; /* bytes of `in` that the last frame occupies; dropped by the next receive */
    struct mc_spin spin;
    bool reused; /* came from the idle stack: its first failure may only mean that the master was restarted */
    bool broken;
    struct mc_link *next;
    struct mc_link *next_borrowed, **borrowed_at;
};

/* Connects and says hello with that role. Fills what the reply says. */
int mc_hello(struct mc_store *store, int fd, enum mc_role role, uint64_t deadline_ns, struct mc_wire_hello_reply *reply,
             char *text, size_t text_size);

/* Remembers what a master said of itself. */
void mc_store_met_master(struct mc_store *store, const struct mc_wire_hello_reply *reply);

/* An idle link or a new one. */
int mc_link_borrow(struct mc_store *store, uint64_t deadline_ns, struct mc_link **link);
/* Gives it back; a broken one is closed. */
void mc_link_return(struct mc_store *store, struct mc_link *link);
void mc_link_free(struct mc_link *link);

/* Sends link->out and empties it. */
int mc_link_send(struct mc_link *link, uint64_t deadline_ns);
/* The next frame, which must be of that type and request (FAILED: its code is returned). The reader is over its body
 * and valid until the next receive. */
int mc_link_receive(struct mc_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                    struct mc_reader *reader);

/* Builds one request. `context` is what the caller needs to build it again for a second try. */
typedef void mc_link_build(struct mc_buffer *out, uint64_t request_id, const void *context);
/* Borrow, build, send, receive; once more on a new connection when a reused one turned out dead. On success the caller
 * has the link (return it). */
int mc_link_call(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                 enum mc_message reply, struct mc_link **link, struct mc_reader *reader);

#endif
