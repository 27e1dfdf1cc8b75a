/* Why a key is not there; the names are those of metrics and answers. */
#ifndef MC_CORE_GONE_H
#define MC_CORE_GONE_H

#include <stdbool.h>

#define MC_GONE_REASONS(X)                                                                                             \
    X(EVICTED, "evicted")             /* for room */                                                                   \
    X(EVICTED_GROUP, "evicted_group") /* with its group */                                                             \
    X(EVICTED_QUOTA, "evicted_quota") /* for another of its tenant */                                                  \
    X(REMOVED, "removed")             /* as somebody asked */                                                          \
    X(LOST, "node_lost")              /* the last node that had it is gone, or came back without it */                 \
    X(ROTTEN, "corrupted")            /* its owner found its bytes changed */                                          \
    X(DISK, "disk_dropped")           /* the disk that alone had it made room, or could not read it */                 \
    X(REFUSED, "put_refused")         /* no room, or no quota for it */                                                \
    X(FAILED, "put_failed")           /* its writer or owner gave up */                                                \
    X(EXPIRED, "put_expired")         /* its writer died, or took too long */                                          \
    X(NEVER, "never_stored")          /* or too long ago */                                                            \
    X(STAMP, "other_stamp")           /* it is there, but with another stamp */                                        \
    X(COMING, "being_put")                                                                                             \
    X(AWAY, "node_away") /* it is there, but nobody that has it answers just now */
enum mc_gone {
    MC_GONE_NONE,
#define MC_GONE_REASON(name, text) MC_GONE_##name,
    MC_GONE_REASONS(MC_GONE_REASON)
#undef MC_GONE_REASON
        MC_GONE_COUNT
};
static inline bool mc_gone_is_evicted(enum mc_gone why)
{
    return why >= MC_GONE_EVICTED && why <= MC_GONE_EVICTED_QUOTA;
}

#endif
