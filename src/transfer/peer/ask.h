/* The asking half of the handshake. */
#ifndef MC_TRANSFER_PEER_ASK_H
#define MC_TRANSFER_PEER_ASK_H

#include "transfer/state/engine.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/preface.h"

/* The one line of the log about a target that was not reached, unless that is written already: then the code is
 * METADATA, MALFORMED_JSON or NOT_IMPLEMENTED. Returns rc. */
int mc_ask_failed(const char *target, int rc);
/* Where the handshakes of a target go, "host:port". */
int mc_ask_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                   size_t size);
/* The same of a peer; when the metadata server does not say, what it said before, if the peer itself says that it is
 * the engine that we know. */
int mc_ask_peer_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                        size_t size);
int mc_ask(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type, struct mc_span json,
           uint64_t deadline_ns, struct mc_buffer *reply);
/* Asked once a second while no answer comes; true: one is of no use any more, and the question ends. */
struct mc_ask_watch {
    bool (*is_useless)(void *context);
    void *context;
    uint64_t next_ns; /* of ask.c */
};
int mc_ask_watched(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type,
                   struct mc_span json, uint64_t deadline_ns, struct mc_ask_watch *watch, struct mc_buffer *reply);
/* Proves our key on a connection that was just made, where this process has keys (wire/preface.h). address: for the
 * log. 0; REJECT_HANDSHAKE: it is refused, or the other end is; SOCKET. */
int mc_ask_prove(struct mc_transfer_engine *engine, int fd, enum mc_preface_port port, const char *address,
                 uint64_t deadline_ns);
/* The same question on a connection that stays, after such a proof. All end early when the engine is being closed. */
int mc_ask_on(struct mc_transfer_engine *engine, int fd, enum mc_handshake_type type, struct mc_span json,
              uint64_t deadline_ns, struct mc_buffer *reply);
/* The target's document; *address is where it was asked ("" when it came from the metadata server). While that server
 * does not answer, a peer that is known is asked itself. */
int mc_ask_document(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                    struct mc_document *document, char *address, size_t size);
bool mc_ask_is_note(const struct mc_transfer_note *note); /* NULL is one */

#endif
