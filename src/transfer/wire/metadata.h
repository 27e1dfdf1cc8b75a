/* The metadata server: texts by key, in one of several kinds of server, or none (P2PHANDSHAKE). Keys and documents are
 * the original's, so both kinds of engine find each other there.
 *
 * Every question has its own connection and a deadline of MC_METADATA_MS: a server that was restarted is met at once,
 * and one that hangs holds nobody up for longer. Nothing here is cached; any thread may ask. */
#ifndef MC_TRANSFER_METADATA_H
#define MC_TRANSFER_METADATA_H

#include "base/bytes.h"
#include "env/socket.h"

#include <stdatomic.h>

#define MC_METADATA_MS 3000u
#define MC_METADATA_LOOK_S 5         /* how often an engine looks whether its name still stands there */
#define MC_METADATA_FAIR_MS 500u     /* who had less time and no answer, knows nothing of the server */
#define MC_METADATA_AWAY_S 15        /* after a question without an answer; each answer ends it */
#define MC_METADATA_SERVER_MAX 1024u /* bytes of what names it, with its zero */

struct mc_metadata {
    bool is_p2p;
    const struct mc_metadata_kind *kind; /* unless is_p2p */
    char cluster_id[128];
    char server[MC_METADATA_SERVER_MAX]; /* "host:port"; etcd: its endpoints, as they were given */
    char path[512];                      /* http */
    bool is_tls;                         /* https, rediss */
    _Atomic size_t preferred;            /* etcd: the endpoint that answered last */
    char user[256], password[512];       /* redis */
    unsigned database;
    _Atomic uint64_t away_until_ns; /* it has not answered lately: what is known is used before it is asked again */
};

/* One kind of server. Negative results are enum mc_error: no answer; MC_ERR_INVALID_PARAMS: refused, and reply may hold
 * the server's words. */
struct mc_metadata_kind {
    const char *scheme;
    const char *form; /* of an address */
    /* rest: what follows the scheme. 0 or negative. */
    int (*parse)(struct mc_metadata *metadata, const char *rest);
    /* 1: reply is the value. 0: it is not there. */
    int (*get)(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply);
    /* 0. 1: the server does not overwrite what stands there, or does not take this. */
    int (*put)(struct mc_metadata *metadata, const char *key, struct mc_span value, uint64_t deadline_ns,
               struct mc_buffer *reply);
    /* 0: nothing stands there now. */
    int (*remove)(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply);
};

/* The kind of that server, and what follows its scheme; without a scheme it is etcd. NULL: there is no such kind. */
const struct mc_metadata_kind *mc_metadata_kind_of(const char *server, const char **rest);

/* Codes are enum mc_transfer_error; failures say why in one line of the log. */
/* 0, or INVALID_ARGUMENT, NOT_IMPLEMENTED. */
int mc_metadata_init(struct mc_metadata *metadata, const char *server);
/* 1; 0: not there; negative enum mc_error: no answer, and no line in the log. No answer to a question that its caller's
 * deadline has cut short says nothing of the server. */
int mc_metadata_try(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *value);
/* 1; 0: not there; METADATA: no answer within MC_METADATA_MS, or by the deadline. */
int mc_metadata_ask(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *value);
/* Has the last question been left without an answer, a short time ago? */
bool mc_metadata_is_away(const struct mc_metadata *metadata);
/* 0; METADATA: not there, or no answer. */
int mc_metadata_get(struct mc_metadata *metadata, const char *key, struct mc_buffer *value);
/* 0; METADATA; REJECT_HANDSHAKE: the server does not take it. */
int mc_metadata_put(struct mc_metadata *metadata, const char *key, struct mc_span value);
int mc_metadata_remove(struct mc_metadata *metadata, const char *key);

#endif
