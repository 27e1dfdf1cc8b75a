/* Trying each path to a peer on its own, for mooncake_doctor: which works, and what stops the others. Nothing is ever
 * written into the peer's memory. */
#ifndef MC_TRANSFER_TRIAL_H
#define MC_TRANSFER_TRIAL_H

#include "env/socket.h"
#include "mooncake_engine.h"

#define MC_TRIAL_READS 32u

enum mc_trial_result {
    MC_TRIAL_WORKS,
    MC_TRIAL_FAILS,
    MC_TRIAL_NOT_HERE /* cannot be: another machine, another process, not an engine of ours */
};

struct mc_trial {
    enum mc_trial_result result;
    char step[96];         /* what failed, or why it cannot be */
    int error;             /* errno; 0: none */
    bool has_read;         /* false: the peer has registered no memory, so only the way there was tried */
    uint64_t median_ns;    /* of MC_TRIAL_READS reads of small_bytes */
    uint64_t small_bytes;  /* at most 4 KiB */
    double large_gb_per_s; /* of reads of large_bytes; 0: the memory is too small to tell */
    uint64_t large_bytes;
};

struct mc_trial_peer { /* what is known of it before any path is tried */
    char handshake_address[MC_ADDRESS_MAX];
    char data_address[MC_ADDRESS_MAX + 8];
    char data_host[MC_ADDRESS_MAX];             /* as it tells; "": none */
    bool is_ours, is_same_machine, is_loopback; /* is_loopback: it tells an address that only its machine can reach */
    bool is_tcp;
    size_t buffer_count;
    const char *step; /* the first that failed; NULL: none */
    int error, code;  /* errno or 0; enum mc_transfer_error */
};

struct mc_trial_session;

/* metadata_server, device_name: as for mc_transfer_open; nothing is published there. 0 or a negative enum
 * mc_transfer_error. */
int mc_trial_open(const char *metadata_server, const char *device_name, struct mc_trial_session **session);
void mc_trial_close(struct mc_trial_session *session);
/* Looks the peer up and asks it for its document. 0, or negative and peer->step says where it ended. */
int mc_trial_look(struct mc_trial_session *session, const char *target, struct mc_trial_peer *peer);
/* The peer's document as it came; empty before a look that went well. Lives until the session is closed. */
struct mc_span mc_trial_document(const struct mc_trial_session *session);
/* After a look that went well. path: MC_TRANSFER_PATH_...  */
void mc_trial_path(struct mc_trial_session *session, int path, struct mc_trial *trial);
/* The path that a transfer takes by itself: 0 or more, or negative. */
int mc_trial_used(struct mc_trial_session *session);

#endif
