/* The state of the master's core, and what all its files use.
 *
 * Who owns what: the core owns members, connections, segments, puts, waits, jobs. A member owns its connections and
 * segments (lists). An object is reached by the table and by the nodes of its replicas; whoever wants to remember one
 * longer than a call keeps (pointer, serial).
 *
 * Invariants (proved by tests/core_check.c): an object is in the table from its first grant until its last replica
 * leaves; `visible` exactly when nothing granted is left, something is live and it does not wait; a live node is in its
 * segment's `normal`, `proven`, `soft` or `first` list exactly when its object is visible and not pinned hard; used,
 * clearing and quarantine of a segment are the sums over its nodes; the live replicas of an object have one version; a
 * segment that is recovering is not OK; a tombstone has no replica and no group; `clearing` of an object counts the
 * CLEARING nodes that hold its key; a successor is not in the table and never visible; an object waits (whole, not
 * visible) exactly while something of the value before it remains. */
#ifndef MC_CORE_STATE_H
#define MC_CORE_STATE_H

#include "base/error.h"
#include "store/core/core.h"
#include "store/core/firm.h"
#include "store/core/ghost.h"
#include "store/core/group.h"
#include "store/core/heat.h"
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/map.h"
#include "store/core/object.h"
#include "store/core/pin.h"
#include "store/core/policy.h"
#include "store/core/recover.h"
#include "store/core/reuse.h"
#include "store/core/segment.h"

struct mc_regex;

enum { MC_CORE_LOG_DEBUG = 1, MC_CORE_LOG_INFO = 2, MC_CORE_LOG_WARNING = 3 }; /* as enum mc_log_level */

struct mc_accuser { /* a machine whose reports were refuted */
    struct mc_id host;
    char name[MC_MEMBER_NAME_MAX + 1];
    uint64_t first_ms, last_ms;
    uint32_t segments[MC_ACCUSED_MAX], count; /* that it was wrong about since first_ms */
    bool said;
};

struct mc_core {
    struct mc_core_config config;
    struct mc_core_output output;
    struct mc_id node;
    uint64_t epoch, counter, counter_end; /* counter: of generations, below its end */
    uint64_t *keys_left;                  /* see blank.c; NULL until there is a blank */
    uint64_t *ended_well; /* a bit for each of the last placements: the put of that version was answered 0 */
    uint64_t base_ms,
        now_ms; /* now_ms: since base_ms, which is when the core was made; every other time in here is of this kind */
    uint64_t wake_ms; /* when the last tick asked to be called */
    uint64_t held_ms; /* is_held: since then, */
    uint64_t sent_ms; /* and all that was said before that was sent */
    bool is_held;     /* nothing of what we say is sent */
    uint64_t gap_ms;  /* sum of our own gaps */
    uint64_t random;

    struct mc_map connections, members_by_id, segments_by_id, segments_by_alias[MC_ALIASES];
    struct mc_link members;                             /* by seen_ms, oldest first */
    uint64_t members_ticked_ms;                         /* the last look at them, by mc_core_life_ms */
    struct mc_object *successors[MC_SUCCESSOR_BUCKETS]; /* see successor.h */
    struct mc_link puts_by_age, puts_dying, blanks, jobs, dirty, busy, watched, recovering;
    uint32_t job_count; /* REMOVE jobs */
    struct mc_removal removals[MC_REMOVALS_MAX];
    uint64_t removal_count; /* ever begun */
    struct mc_table puts, waits;
    struct mc_wait *waits_due; /* one of what they wait for is done, and ticks are to say so */
    uint32_t waits_left;       /* of this input */

    struct mc_segment **segments; /* by index */
    uint16_t *segment_uses;       /* by index: how often it was given out */
    uint64_t segment_changes;     /* segments mounted, taken over and gone, counted */
    struct mc_accuser accusers[MC_ACCUSERS_MAX];
    /* Departures of who had the last contact at that age (and 1) or earlier may be acted upon; would be. */
    uint64_t depart_let_ms, depart_wanted_ms;
    bool has_given_up;  /* an owner that it had met, or contents that it had taken up */
    bool has_unmounted; /* an owner took its memory along: if it is killed before it drops that, it brings it back */
    bool may_age;       /* it is not young for ever */
    uint64_t slots, slot_limit;                          /* of all segments */
    struct mc_map lenders;                               /* by address */
    uint32_t lender_segments;                            /* that one of them may have */
    uint32_t segment_cursor, segment_count, segment_top; /* top: one more than the highest index ever used */
    struct mc_segment_set ok, roomy;
    uint64_t recent, recent_s; /* units placed anywhere, as in a segment */
    uint32_t stamp;
    uint32_t rotation;                   /* of replicas over gets */
    uint32_t evictions_left, turns_left; /* of this input */
    bool spares_soft;                    /* room is made for what a hint has loaded: soft pins stay */
    enum mc_core_eviction evicting;      /* what for; groups and quotas are told apart by `leaving` */
    uint32_t pausing;                    /* values that are being moved, and are then to go first: see offload.h */
    uint32_t fetches;                    /* values that are being loaded for hints */

    struct mc_objects objects;
    uint64_t visible_count, soft_count;
    uint64_t piece_count; /* of those that are visible, pieces */
    struct mc_pins pins;
    struct mc_firm firm;
    struct mc_groups groups;
    struct mc_ghosts ghosts;
    double fresh_part;                        /* of all objects, see policy_s3fifo.c */
    enum mc_gone leaving;                     /* why what vanishes now does; LOST, but where somebody else sees to it */
    uint64_t misses_left, misses_ms;          /* see miss.h */
    struct mc_id known_stamps[MC_STAMPS_MAX]; /* of members, the last that said hello first; see miss.h */
    uint32_t known_stamp_count;
    struct mc_reuse reuse;
    struct mc_heat heat;
    uint64_t reuse_capacity, reuse_changes; /* units of memory, when so much had changed there; 0: not known */

    /* Recovery: see recover.c, and of what is taken in together progress.c. */
    struct mc_episode {
        uint64_t began_ms, ended_ms, said_ms; /* life time; began_ms 0: none has */
        uint64_t done, objects;               /* segments that were offered, and what they hold */
    } episode;
    uint64_t wanted_epoch;
    struct mc_witness witnesses[MC_WITNESSES_MAX];
    uint32_t witness_count;
    bool recovery_over;     /* no memory of earlier epochs is taken any more: its time is over and none is coming */
    uint32_t earlier_count; /* segments that are_earlier */
    uint64_t *gone_bits;    /* keys that vanished and have no tombstone, by a hash; NULL = none did */
    uint64_t gone_count;    /* how many of those bits are set */
    uint64_t bases[MC_BASES_MAX]; /* from which nodes of earlier epochs count generations; 1 stands for the first */
    uint32_t base_count, base_last;
    struct mc_evidence evidence[MC_EVIDENCE_MAX]; /* by ascending epoch and descending time */
    uint32_t evidence_count;
    int64_t others_alive_ms;      /* how long any but the one lived whose note says that it gave up nobody */
    bool has_offered;             /* a segment was offered under this epoch */
    bool has_changed;             /* a place was granted, or a removal was begun */
    bool has_acted;               /* the same, or removals may have been acknowledged */
    bool refuse_earlier;          /* something was removed that cannot be named: no further entry of an earlier epoch */
    bool disks_over;              /* nor may disks bring any more; recovery_over comes first */
    struct mc_object *tombstones; /* the newest; the rest hangs on it */
    uint64_t tombstone_count, tombstone_limit, held_count;
    struct mc_map moves;        /* by object that is `moving`: index of the segment << 32 | slot of its MOVING node */
    struct mc_map held_more;    /* by object: how many nodes hold its key beyond those that it can count itself, */
    struct mc_map remains_more; /* and how many of them show a value that somebody may have read */
    struct mc_buffer scratch;

    /* Which cluster: see cluster.c. All but the first four only while that is open. */
    struct mc_id cluster; /* zero = not settled */
    enum mc_cluster_way cluster_way;
    bool cluster_kept;      /* members may be told */
    uint64_t join_until_ms; /* those who had to wait may still bring contents */
    bool is_new;            /* nobody has brought contents */
    bool torn, veiled;      /* contents of several were brought; nothing is offered */
    struct mc_id leading;   /* whose contents are taken in; zero = nobody has brought any */
    uint64_t leading_ms;    /* when one of them last said hello */
    struct mc_id brought;   /* whose contents were let in at any time; zero = nobody's */
    bool brought_several;   /* those of another one, too, or they have waited beside them */
    struct mc_cluster_waiter *waiters;
    uint32_t waiter_count;
    uint64_t cluster_looked_ms, torn_said_ms, cluster_said_ms;
    struct mc_core_statistics statistics;
};

/* Time that does not pass while our own process is stopped: what members live by. */
static inline uint64_t mc_core_life_ms(const struct mc_core *core)
{
    return core->now_ms - core->gap_ms;
}

/* A segment has departed or is gone, and nothing may be concluded from that yet. */
static inline bool mc_core_is_departing(const struct mc_core *core)
{
    return core->depart_wanted_ms > core->depart_let_ms;
}

/* What tenants have is counted. Mostly it is not, and then it is to cost nothing: asked before calls of account.h. */
static inline bool mc_core_counts(const struct mc_core *core)
{
    return __builtin_expect(core->objects.accounts != NULL, 0);
}

void mc_core_log(struct mc_core *core, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same of what is also an event. */
void mc_core_tell(struct mc_core *core, enum mc_core_topic topic, int level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
struct mc_buffer *mc_core_buffer(struct mc_core *core, uint64_t connection);
/* A frame says when it was written: who reads it late knows for how long we lived. */
static inline size_t mc_core_frame(const struct mc_core *core, struct mc_buffer *out, enum mc_message type,
                                   uint64_t request_id)
{
    return mc_frame_begin_at(out, type, request_id, (uint16_t)(core->now_ms / MC_FRAME_TIME_MS));
}
void mc_core_frame_bare(const struct mc_core *core, struct mc_buffer *out, enum mc_message type, uint64_t request_id);
/* Listens to the connection no more and has it closed. */
void mc_core_close(struct mc_core *core, struct mc_connection *connection);
/* The same, counted as an error of the peer. */
void mc_core_malformed(struct mc_core *core, struct mc_connection *connection, const char *what);
void mc_core_reply_code(struct mc_core *core, uint64_t connection, enum mc_message type, uint64_t request_id,
                        int32_t code);
/* FAILED; with BUSY it says when to come again. */
void mc_core_reply_failed(struct mc_core *core, uint64_t connection, uint64_t request_id, int32_t code);
/* A frame of head `segment` and that list of slots, request 0. */
void mc_core_send_slots(struct mc_core *core, const struct mc_connection *to, enum mc_message type, uint32_t segment,
                        const struct mc_wire_slot *slots, uint32_t count);
uint64_t mc_core_random(struct mc_core *core);
uint64_t mc_core_hash_id(const struct mc_core *core, struct mc_id id);

#endif
