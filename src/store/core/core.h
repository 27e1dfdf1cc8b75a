/* The master's core: a deterministic state machine. State + (now, connection, frame) -> state + frames. No socket,
 * clock, thread, file or environment in here; `now_ms` only ever grows. One thread calls it.
 *
 * No call takes longer than 1 ms: batches are limited by MC_BATCH_MAX, everything longer (sweep of a segment, remove
 * all, regex, listings) is a job or a cursor that goes on in slices.
 */
#ifndef MC_CORE_CORE_H
#define MC_CORE_CORE_H

#include "base/bytes.h"
#include "store/core/gone.h"
#include "store/wire/tenant.h"
#include "store/wire/version.h"

#include <stdbool.h>
#include <stdint.h>

struct mc_core;
struct mc_eviction_policy;

enum mc_cluster_way { /* how a master knows which cluster it is */
                      MC_CLUSTER_OPEN,
                      MC_CLUSTER_TOLD,    /* by its operator */
                      MC_CLUSTER_NOTED,   /* by the note of the master before it */
                      MC_CLUSTER_ELECTED, /* by what stands beside the election */
                      MC_CLUSTER_BROUGHT, /* by more than half of the contents brought */
                      MC_CLUSTER_LEFT,    /* by those that were here, where nobody has any now */
                      MC_CLUSTER_MADE
};

enum mc_offload { /* when values are stored on the disks of their owners */
                  MC_OFFLOAD_NEVER,
                  MC_OFFLOAD_ON_PUT,
                  MC_OFFLOAD_ON_EVICT /* ahead of that: when their turn comes near */
};

#define MC_CORE_DISK_PATH_MAX 768u /* with its end */

/* What a master before us has noted: it acted on the departure only of who had the last contact with it at that age of
 * its own (as age_ms of HEARTBEAT_REPLY tells it), or earlier. */
struct mc_horizon {
    uint64_t epoch, at_ms;
};
#define MC_HORIZONS_MAX 4u

/* How masters know epochs of theirs from those that somebody made up (env/keys.h has the product's). */
struct mc_epoch_proofs {
    /* Of that epoch; false: epochs are not proved here, and `holds` is not asked. */
    bool (*make)(uint64_t epoch, uint8_t proof[MC_EPOCH_PROOF_BYTES]);
    bool (*holds)(uint64_t epoch, struct mc_span proof);
};

enum mc_spread { MC_SPREAD_OFF, MC_SPREAD_OBSERVE, MC_SPREAD_ENFORCE };
struct mc_core_config {             /* a zeroed field is not a default: use mc_core_config_default */
    uint64_t lease_ttl_ms;          /* 10000: remove without force answers -706 so long after a get; bound on a reader's
                                       protection from eviction */
    uint64_t client_ttl_ms;         /* 10000; a member is gone after it, but not before depart_ms */
    uint64_t soft_pin_ttl_ms;       /* 1800000: of soft pins that do not say for how long; 0: these are none */
    uint64_t soft_pin_max_ms;       /* 86400000: who wants a longer one is refused */
    double firm_pin_ratio;          /* 0.25: part of all memory, and of a tenant's quota, that may be pinned firmly */
    double eviction_high_watermark; /* 1: part of a segment's capacity that may be used and being cleared; but a small
                                       reserve stays free (MC_RESERVE) */
    double eviction_ratio; /* 0: once above the watermark, evict down to watermark - ratio, in steps bounded by what the
                              puts allocate; at least by the reserve */
    const struct mc_eviction_policy *policy; /* see policy.h */
    bool allow_evict_soft_pinned;            /* true */
    double hard_pin_ratio;                   /* 1: part of all memory that may be pinned for ever; 1: any */
    enum mc_offload offload;                 /* never */
    char disk_path[MC_CORE_DISK_PATH_MAX];   /* who has no disk is told to have one there; empty: nowhere */
    uint64_t disk_bytes;                     /* of each of these at most; 0: it is not said */
    bool disk_keeps;                         /* nothing is evicted there */
    uint64_t disk_ttl_ms; /* 3600000: for so long after its owner was heard last, or after our start where values go to
                             disks, a disk may come back as it was */
    uint32_t offload_queue_limit; /* 50000: values that wait for one disk; what comes beyond that is not stored */
    double offload_cap_ratio;     /* 0.5: part of it that may be taken by those that are soon evicted */
    bool offload_force_evict;     /* false: what is on its way to a disk is evicted later, if something else can be */
    bool promotion_on_hit; /* false: what was loaded from a disk is evicted first. True: like what was put, if it was
                              read often enough, and so many are not loaded already */
    uint32_t promotion_threshold;     /* 2: loads from its disk, this one included */
    uint32_t promotion_queue_limit;   /* 50000: values that are being loaded */
    uint32_t promotion_per_heartbeat; /* 1: of one member, from one heartbeat to the next */
    enum mc_spread spread;            /* off; observe: copies of hot objects are counted, enforce: and asked for */
    uint64_t spread_window_ms;        /* 10000: in which reads are counted */
    double spread_reads_per_s;        /* 0.8: from so many in the mean over it on an object is hot */
    uint32_t spread_replicas_max;     /* 2: in memory, which no copy is asked for beyond */
    uint64_t put_discard_ms;          /* 30000: a grant older than this is cut */
    uint32_t blank_part;              /* 16: at most this part of a segment is granted ahead; 0: nothing is */
    bool blanks_anywhere;             /* false: on the client's machine only, where a wait less is a part that counts */
    uint64_t depart_ms; /* 3000: a segment that was silent so long may be acted upon: until then a remove of what lies
                           there waits, and no new value takes the key */
    uint64_t recovery_grace_ms;  /* 1000: contents of an earlier epoch are offered only so long after the start, unless
                                    predecessor_end_ms is known */
    uint64_t recovery_window_ms; /* 60000: whoever comes with contents of an earlier epoch so long after the start, or
                                    while such contents are being told, may tell them, however long that takes */
    /* The time (as now_ms) after which the master before us cannot have acted; 0 = unknown. */
    uint64_t predecessor_end_ms;
    uint64_t whole_epoch; /* of the master before us, if it is known to have acted on no departure: what it has offered
                              is whole, however long the owner was silent; 0 = that is not known */
    uint64_t whole_since; /* and so is what was offered by masters from this epoch up to that one: none since then has
                              acted on a departure, or on the absence of who never came to it; 0 = not known */
    struct mc_horizon horizons[MC_HORIZONS_MAX]; /* of masters that none followed which came of age; epoch 0: none */
    uint64_t departed_epoch; /* of the last master that may have acted on a departure, if none of age has followed: what
                                it has offered is whole above its horizon; 0 = not known */
    uint64_t known_epoch;    /* of the last master that may have acted, as a note of its own says; 0 = there is none */
    uint64_t known_age_ms;   /* since it can last have acted */
    bool known_is_timed;     /* that is when it ended, not only a time before which it did */
    bool known_is_whole;     /* it gave up nobody of those that it had met: what it has offered is whole, as far as no
                              member has met another master since */
    uint64_t aged_epoch;    /* of the last master of this note that came of age, and so may have acted on the absence of
                               all whom it had not met: contents of epochs before it are refused, whatever the clocks
                               say of their contact; 0 = there is none */
    uint64_t aged_next;     /* of the one that followed it, if that is known: where it was late, contents of epochs
                               between the two are of a master that had ended when it began, and are refused as well */
    uint64_t idle_since_ms; /* from then on (as now_ms) only cores of this process were here, which have changed nothing
                               (mc_core_has_changed); 0 = that is not so */
    uint64_t idle_epoch;    /* of the last of them */
    uint64_t clock_epoch;   /* what the clock of this machine would have for an epoch; 0: it is not known */
    bool asks_to_depart;    /* departures are acted upon only after mc_core_let_depart */
    bool asks_to_age;       /* nobody's absence is acted upon before mc_core_let_age, however long it has lived */
    struct mc_id cluster;   /* which one this is; zero = that is not known yet */
    enum mc_cluster_way cluster_way; /* how it is known */
    bool asks_to_keep_cluster;       /* nobody is told of the cluster before mc_core_cluster_is_kept */
    bool tenants; /* false; who shows no key is of the tenant that it names, and what each has is counted */
    bool quotas;  /* false; and bounded: who has no quota puts nothing */
    const struct mc_epoch_proofs *proofs; /* NULL: epochs are not proved */
    bool (*has_key)(uint64_t key);        /* does a key of that number (mc_core_permitted) hold? NULL: all do */
};
struct mc_core_config mc_core_config_default(void);

/* What the shell knows of the way of a connection, beside the frames. */
struct mc_core_way {
    uint32_t lost; /* packets so far that may have been lost */
    bool arrived;  /* the peer's host has confirmed what was sent */
    bool unread;   /* something has come from there that we have not looked at yet */
};

/* What people look for in what a master tells of itself: of these lines an account is kept. */
#define MC_CORE_TOPICS(X)                                                                                              \
    X(NODE, "node")         /* one that lends memory is lost */                                                        \
    X(SEGMENT, "segment")   /* it is mounted, or gone */                                                               \
    X(TRUST, "trust")       /* it is suspect, or trusted again */                                                      \
    X(DRAIN, "drain")       /* it is being drained, is drained, or is not any more */                                  \
    X(RECOVERY, "recovery") /* what it held was taken in */                                                            \
    X(DISK, "disk")         /* one ails, is well again, or left to be found */                                         \
    X(NETWORK, "network")   /* one host is wrong about others, or cannot be reached by them */                         \
    X(CLUSTER, "cluster")   /* which one this is, or that it is mixed with another */
enum mc_core_topic {
#define MC_CORE_TOPIC(name, text) MC_TOPIC_##name,
    MC_CORE_TOPICS(MC_CORE_TOPIC)
#undef MC_CORE_TOPIC
        MC_TOPIC_COUNT
};

enum mc_core_medium { MC_MEDIUM_MEMORY, MC_MEDIUM_DISK };

/* A call that was answered late, as far as the master sees it: a put from its grant until its last value was there or
 * had failed, a removal until all owners had cleared. Everything else is answered in the turn in which it comes. */
enum mc_slow_kind { MC_SLOW_PUT, MC_SLOW_REMOVE, MC_SLOW_REMOVE_MANY /* by pattern, or all */, MC_SLOW_KINDS };
#define MC_CORE_SLOW_MS 10u       /* what took less is not told */
#define MC_CORE_SLOW_KEY_MAX 160u /* bytes of a key that are told */
struct mc_core_slow {
    enum mc_slow_kind kind;
    uint64_t connection; /* 0: it has ended, or there was none: */
    bool is_own;         /* the shell has asked for it (mc_core_remove_all) */
    char client[64];     /* the caller's name, as its hello said */
    uint8_t key[MC_CORE_SLOW_KEY_MAX];
    uint32_t key_length; /* of all of it; of many keys that are put the one that was last, of many that are removed
                          * the first. REMOVE_MANY: a star, in its scope */
    uint64_t took_ms;
    int32_t code; /* the result; of many keys, of that one */
};

struct mc_core_output { /* how the core speaks, and asks; these must not call back into the core */
    void *context;
    /* The connection's output buffer, to append a whole frame to; NULL when it is gone. */
    struct mc_buffer *(*buffer)(void *context, uint64_t connection);
    /* Close it once its output is flushed; mc_core_disconnected must follow, later. Frames that arrive until then are
     * ignored. */
    void (*close)(void *context, uint64_t connection);
    /* A line for the log (joins, losses, evictions...). level as enum mc_log_level. */
    void (*log)(void *context, int level, const char *text);
    /* False: nothing is known of that connection's way. May be NULL. */
    bool (*way)(void *context, uint64_t connection, struct mc_core_way *way);
    /* Such a line is one to keep. May be NULL. */
    void (*event)(void *context, enum mc_core_topic topic, int level, const char *text);
    /* The key's value is on that medium from now on, or no more: where readers are offered it, while its owners answer.
     * Of a (key, medium) these alternate. May be NULL. */
    void (*medium)(void *context, struct mc_span key, enum mc_core_medium medium, bool is_there);
    /* May be NULL. */
    void (*slow)(void *context, const struct mc_core_slow *call);
};

/* seed: for the choice of segments. epoch: of this leadership, >= 1. */
struct mc_core *mc_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                               struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms);
void mc_core_destroy(struct mc_core *core);

/* The latest epoch that a master with that clock begins under because others say that there was a later one. Half-way
 * from its clock to MC_EPOCH_LATEST: who makes such words up leaves as much as that to those who follow, whose clocks
 * have gone on meanwhile, and a master whose clock stands years behind still follows those of before it. */
uint64_t mc_core_epoch_latest(uint64_t clock_epoch);
/* 0, or the least epoch that would not be refused: an owner or client has seen a higher one than ours. The shell then
 * starts a new core with at least that. */
uint64_t mc_core_wanted_epoch(const struct mc_core *core);

/* The core would act on the departure of segments, and waits for mc_core_let_depart: of those whose last contact was at
 * the age that this returns (and 1), or earlier. 0: of none, or it was not made to ask. Later departures ask again. */
uint64_t mc_core_asks_to_depart(const struct mc_core *core);
/* A later master will know that we may have acted on departures of who had the last contact at that age or earlier. */
void mc_core_let_depart(struct mc_core *core, uint64_t now_ms, uint64_t at_ms);

/* Which cluster this is; zero: it is not settled yet. */
struct mc_id mc_core_cluster(const struct mc_core *core);
/* Nobody has brought contents: it is a new one, and its id is to be made. */
bool mc_core_asks_for_cluster(const struct mc_core *core);
void mc_core_make_cluster(struct mc_core *core, struct mc_id cluster);
/* It was settled, and is to be kept for the masters after this one before members are told. */
bool mc_core_asks_to_keep_cluster(const struct mc_core *core);
void mc_core_cluster_is_kept(struct mc_core *core);

/* Nothing of what it says is sent, until it is told that it is: whoever is asked meanwhile does not owe an answer. To
 * be told at the end of each turn, before what it has said is sent. */
void mc_core_hold(struct mc_core *core, uint64_t now_ms, bool is_held);
/* Nothing that it has said waits for a turn that has time to send it. */
void mc_core_sent(struct mc_core *core);

/* May it have done anything that a later master must know of? Before it may, nothing that it says depends on that. */
bool mc_core_acts(const struct mc_core *core);
/* Has it given up an owner that it had met, or contents that it had taken up? */
bool mc_core_has_given_up(const struct mc_core *core);
/* Has it placed or removed anything? If not, one after it in this process need not ask what became of that. */
bool mc_core_has_changed(const struct mc_core *core);

/* It has lived for so long that it could act on the absence of owners that it has not met, but for asks_to_age. */
bool mc_core_asks_to_age(const struct mc_core *core);
/* It acts on the absence of owners that it has not met. */
bool mc_core_is_of_age(const struct mc_core *core);
void mc_core_let_age(struct mc_core *core);

/* A connection was accepted / has ended. Numbers are chosen by the shell, never reused. */
void mc_core_connected(struct mc_core *core, uint64_t now_ms, uint64_t connection);
/* A number for the address that it comes from, not 0: none has all segments. Said before its hello; of one of this
 * machine: never. */
void mc_core_comes_from(struct mc_core *core, uint64_t connection, uint64_t address);
/* What the key that it has proved permits (store/wire/proof.h), a number that tells keys apart, not 0, and its tenant,
 * "" the default one; said once, before its hello. Where there are no keys: never. */
void mc_core_permitted(struct mc_core *core, uint64_t now_ms, uint64_t connection, unsigned rights, uint64_t key,
                       const char *tenant);
void mc_core_disconnected(struct mc_core *core, uint64_t now_ms, uint64_t connection);
/* For how long has a caller's connection, which waits for nothing, said nothing, or one of role OWNER lent nothing? 0:
 * it is in use. After MC_CALL_IDLE_MS it may be closed. */
#define MC_CALL_IDLE_MS 300000u /* callers let go earlier (MC_LINK_IDLE_MS), and renew what they read for long */
/* Until then the MOUNT of an owner may be on the way: it comes as soon as the hello is answered, or once fresh memory
 * is there in place of what was not wanted, and after 5 s without an answer owners begin anew. */
#define MC_OWNER_MOUNT_MS 15000u
uint64_t mc_core_rest_ms(struct mc_core *core, uint64_t now_ms, uint64_t connection);
/* Is it of role OWNER, and nothing is lent over it? So nothing is lost that it has begun to say. */
bool mc_core_lends_nothing(const struct mc_core *core, uint64_t connection);
/* One frame of that connection. Malformed or unexpected: the core logs (limited by the shell) and closes the
 * connection. */
void mc_core_input(struct mc_core *core, uint64_t now_ms, uint64_t connection, const struct mc_frame *frame);
/* A connection that spoke another protocol was closed: only counted. */
void mc_core_note_foreign(struct mc_core *core);
/* Runs due timers and one slice of jobs. Returns the time (ms) at which it wants to be called again; <= now_ms: at
 * once, there is more work. */
uint64_t mc_core_tick(struct mc_core *core, uint64_t now_ms);

/* ---- questions of the admin shell; no lease, no effect on order or hit counters ---- */

/* clang-format off */
#define MC_CORE_COUNTERS(X)                                                                                            \
    X(put_start_requests) X(put_start_items) X(put_start_failures) X(put_start_partial) X(put_end_items)               \
    X(put_revokes) X(get_requests) X(get_items) X(get_misses) X(get_hits) X(get_waits) X(exist_requests)                 \
    X(exist_items) X(exist_hits) X(remove_requests) X(remove_items) X(remove_failures) X(remove_regex_requests) X(remove_all_requests)              \
    X(mount_requests) X(mount_failures) X(unmount_requests) X(heartbeats) X(evicted_objects) X(evicted_bytes)          \
    X(eviction_attempts) X(eviction_successes) X(allocation_failures) X(cuts) X(clears) X(suspects) X(members_lost)    \
    X(protocol_errors) X(foreign_connections) X(put_bytes) X(stale_refused) X(recovered_objects) X(recovered_replicas)                         \
    X(recovery_refused) X(recovery_in_doubt) X(recovery_dropped) X(segments_recovered) X(tombstones_made) X(probes) X(probes_failed)        \
    X(rotten_reports) X(rotten_replicas) X(epochs_doubted) X(owners_stuck) X(reports_refuted) X(foreign_refused)        \
    X(offload_begun) X(offload_done) X(offload_failed) X(offload_skipped) X(promotion_begun) X(promotion_done)         \
    X(promotion_failed) X(promotion_admitted) X(promotion_rare) X(promotion_capped) X(offload_ahead) X(offload_late)     \
    X(disk_lost) X(soft_pins_expired) X(firm_pins_expired) X(firm_pins_refused)   \
    X(hot_objects) X(hot_copies_wanted) X(hot_copies) X(get_hit_bytes) X(get_none) X(get_some)                         \
    X(put_start_none) X(put_start_some) X(put_answers) X(put_end_failures) X(put_revoke_requests)                      \
    X(put_revoke_failures) X(copy_starts) X(copy_start_failures) X(copy_ends) X(copy_end_failures) X(copy_revokes)     \
    X(cuts_done) X(remove_regex_failures) X(remove_all_failures) X(remounts) X(remount_failures) X(unmount_failures)   \
    X(promotion_bytes) X(promotion_cancelled) X(promotion_no_room) X(hints_kept) X(hints_not_kept) X(hints_recovered)           \
    X(blanks_granted) X(blanks_bound) X(blanks_refused)
/* clang-format on */
/* For what objects left memory; the names are those of metrics and answers. */
#define MC_CORE_EVICTIONS(X)                                                                                           \
    X(PUT, "put")             /* a value that was put found no room */                                                 \
    X(LOAD, "load")           /* one that was loaded from a disk for a reader found none */                            \
    X(HINT, "hint")           /* one that was loaded for a hint found none */                                          \
    X(WATERMARK, "watermark") /* ahead of all those, once memory was that full */                                      \
    X(GROUP, "group")         /* with another of their group */                                                        \
    X(QUOTA, "quota")         /* another of their tenant, which is at its quota */
enum mc_core_eviction {
#define MC_CORE_EVICTION(name, text) MC_CORE_EVICTION_##name,
    MC_CORE_EVICTIONS(MC_CORE_EVICTION)
#undef MC_CORE_EVICTION
        MC_CORE_EVICTION_COUNT
};
#define MC_CORE_PUT_BOUNDS 12u /* of how long puts took, see mc_core_put_ms */
extern const uint64_t mc_core_put_ms[MC_CORE_PUT_BOUNDS];
#define MC_CORE_HINTS 5u /* enum mc_hint; 0 is none */
#define MC_CORE_HINT_OUTCOMES 5u
enum mc_core_hinted {
    MC_CORE_HINT_DONE,
    MC_CORE_HINT_BEGUN,
    MC_CORE_HINT_ABSENT,
    MC_CORE_HINT_NO_ROOM,
    MC_CORE_HINT_REFUSED,
};
struct mc_core_statistics {
#define MC_CORE_COUNTER(name) uint64_t name;
    MC_CORE_COUNTERS(MC_CORE_COUNTER)
#undef MC_CORE_COUNTER
    /* Keys that were looked for and found: an existence check and the get of what it has found are one look. Who checks
     * and who gets without that are told apart by their sums alone, so of the smaller of the two too little is seen. */
    uint64_t lookups, lookup_hits;
    uint64_t misses[MC_GONE_COUNT];             /* by why; of those that were looked into (MC_MISSES_MS) */
    uint64_t evictions[MC_CORE_EVICTION_COUNT]; /* evicted_objects, by enum mc_core_eviction */
    /* Puts by how long they took, from their grant until the last value was there or had failed; last: longer ones. */
    uint64_t put_ms[MC_CORE_PUT_BOUNDS + 1], put_ms_sum;
    uint64_t hints[MC_CORE_HINTS][MC_CORE_HINT_OUTCOMES]; /* keys, by hint and enum mc_core_hinted */
    uint64_t tenants_unknown;                             /* puts that were refused for they have no quota */
    uint64_t firm_pinned, firm_bytes, firm_budget;        /* objects; bytes that are, or are being put to be; may be */
    uint64_t hard_bytes;                                  /* the same of those that are pinned for ever */
    uint64_t objects, soft_pinned, members, segments, connections, recovering, tombstones, clusters_torn;
    uint64_t capacity, populated, used, clearing_bytes, quarantine_bytes,
        blank_bytes; /* used = of live and granted extents, blank: of those without a key; of memory */
    uint64_t disks_absent, promotions;                      /* of disks; objects that are being loaded from them */
    uint64_t disks, disk_capacity, disk_used, disk_objects; /* bytes; used: of what is live or being stored */
    uint64_t suspect, draining, drained;                    /* of the segments */
    uint64_t largest_free;                           /* bytes, as of a segment; of those that take puts the largest */
    uint64_t disks_slow, disks_read_only, disks_off; /* off: not mounted, as they cannot be used */
    uint64_t value_size_histogram[9]; /* objects put of at most 4096, 65536, 262144, 1048576, 4194304, 16777216,
                                         67108864 bytes, more; [8] = sum of bytes */
};
void mc_core_statistics(const struct mc_core *core, struct mc_core_statistics *statistics);

/* Why is that key not there? */
struct mc_core_why {
    enum mc_gone why;           /* NONE: it is */
    bool is_proven;             /* it was used again before it was evicted */
    uint64_t least_ms, most_ms; /* it went so long ago; where that is known */
    uint64_t known_ms;          /* all that went since then is known, but for a few; the time before is forgotten */
};
void mc_core_why(const struct mc_core *core, struct mc_span key, struct mc_core_why *why);

/* What memory of another size would have found, see reuse.h. Ratios are negative before anything was looked for. */
#define MC_CORE_CURVE_POINTS 16u
#define MC_CORE_CURVE_NOW 7u /* which of them is the memory that there is */
#define MC_CORE_SPANS 12u
struct mc_core_curve {
    uint64_t capacity; /* bytes of memory that there is */
    uint64_t known;    /* bytes: beyond them the curve is flat, for nothing is known */
    double found;      /* the part of all looks that was found, lately; also what disks had */
    struct mc_core_curve_point {
        uint64_t bytes;
        double ratio;
    } points[MC_CORE_CURVE_POINTS], asked; /* asked: at as many bytes as were asked for */
    double sample;                         /* the part of all keys by which it is known */
    uint64_t span_s[MC_CORE_SPANS];        /* time since the use before, of looks, since the start; bounds */
    uint64_t spans[MC_CORE_SPANS + 1], span_sum_s;
    struct mc_core_ages { /* of what was evicted, since its last use or its put: of all, estimated by the sample */
        uint64_t counts[MC_CORE_SPANS + 1], sum_s; /* since the start, by the same bounds */
        uint64_t lately;                           /* of so many of the sample, the last that went; 0: none did */
        uint64_t least_ms, median_ms, most_ms;
    } ages;
};
/* curve->asked.bytes is read. */
void mc_core_curve(const struct mc_core *core, struct mc_core_curve *curve);

struct mc_core_accuser {
    char name[64];  /* of a member of that machine */
    uint32_t nodes; /* segments that it has reported lately although they answer */
};
/* Machines that are wrong about so many nodes that the trouble is their own; at most `capacity`. */
size_t mc_core_accusers(const struct mc_core *core, struct mc_core_accuser *list, size_t capacity);

/* How far it is with taking in what owners hold, since the first of them came, and until the last is offered. */
#define MC_CORE_RECOVERY_LIST 16u
struct mc_core_recovery {
    uint64_t segments;          /* that are being taken in, disks too; 0: then all of this is 0, but for open_ms */
    uint64_t done;              /* that are offered since it began */
    uint64_t untold;            /* of `segments`: not all is told yet */
    uint64_t unknown;           /* of these: of how many objects, their owners do not say (disks) */
    uint64_t awaited;           /* of `segments`: their owner has said nothing for a second, or is away */
    uint64_t told, announced;   /* objects, of those that are done too; announced: at most so many come */
    uint64_t since_ms, left_ms; /* left_ms 0: not known, or next to nothing */
    uint64_t per_second;        /* objects, in the mean */
    uint64_t open_ms;           /* so long from now on owners may bring memory of masters before; disks, for longer */
    size_t count;
    struct mc_core_recovering {
        char name[256];
        uint64_t told, announced;
        const char *stage; /* awaited, told, compared, cleared, judged */
    } list[MC_CORE_RECOVERY_LIST];
};
void mc_core_recovery(const struct mc_core *core, struct mc_core_recovery *recovery);

struct mc_core_segment {
    uint32_t number;
    struct mc_id segment_id, owner;
    char name[256], tcp_address[256];
    char build[MC_BUILD_TEXT_MAX]; /* of its owner; empty when that is gone */
    uint64_t capacity, populated, used;
    uint32_t objects, slot_count;
    uint64_t largest_free; /* bytes of a free block than which none is larger by more than a sixteenth; 0 of a disk */
    uint64_t heard_ms;     /* since the last sign of life of its owner */
    uint64_t mounted_ms;   /* since it was mounted at this master */
    int state;             /* 0 ok, 1 suspect, 2 gone (being swept) */
    bool draining;         /* nothing new is placed there, its owner moves its objects away */
    bool leaving;          /* nothing new is placed there */
    bool recovering;       /* suspect because its inventory is not complete */
    /* of a disk */
    uint8_t health;      /* enum mc_told_health */
    bool absent;         /* its owner is gone, and it may come back with another one */
    char directory[256]; /* at its owner; may be cut */
};
/* Segments of memory in order of their number, from *cursor on (0 = start); returns how many were filled, moves
 * *cursor; 0 = end.
 */
size_t mc_core_segments(const struct mc_core *core, uint64_t *cursor, struct mc_core_segment *segments,
                        size_t capacity);

/* The disks, in the same way. */
size_t mc_core_disks(const struct mc_core *core, uint64_t *cursor, struct mc_core_segment *segments, size_t capacity);
struct mc_core_disks_off {
    char name[64]; /* of a member's first memory segment; of the member when it has none */
    uint32_t disks;
};
/* Members that have disks which cannot be used; at most `capacity`. */
size_t mc_core_disks_off(const struct mc_core *core, struct mc_core_disks_off *list, size_t capacity);

/* Draining of all segments of that name begins or ends; returns how many there are. A later master does not know of it.
 */
size_t mc_core_drain(struct mc_core *core, struct mc_span name, bool on);

/* Removes everything (NULL), or all objects of a tenant, or of one stamp of it. 0 and *id, a number that no other core
 * of ours gives; MC_ERR_BUSY: not now. */
int mc_core_remove_all(struct mc_core *core, const struct mc_scope *scope, bool force, uint64_t *id);
/* 1: it is at work; 0: it has removed *count, and is forgotten with that, as with an error; MC_ERR_STALE: there is none
 * of that number. is_given_up: it stops and is forgotten. */
int mc_core_removal(struct mc_core *core, uint64_t id, bool is_given_up, uint64_t *count);

struct mc_core_quota {       /* of what a tenant has in memory; bytes: of values, once for each replica */
    uint64_t bytes, objects; /* at most; objects 0: as many as it likes */
    uint64_t guaranteed_bytes, guaranteed_objects; /* so much is not evicted to make room for others */
    uint64_t firm_bytes; /* of firm pins at most; 0: the part of `bytes` that all memory has for them */
};
struct mc_core_tenant {
    char name[64]; /* "default": the one without a name */
    bool has_quota;
    struct mc_core_quota quota;
    uint64_t effective_bytes; /* of its quota: those that guarantee nothing share what memory there is */
    uint64_t bytes, objects;
    uint64_t evicted_bytes, evicted_objects, refused; /* because of its quota */
    uint64_t firm_bytes;                              /* that are pinned firmly */
};
/* Tenants that have a quota or objects, from *cursor on, which is moved; 0: the end. */
size_t mc_core_tenants(const struct mc_core *core, uint64_t *cursor, struct mc_core_tenant *list, size_t capacity);
/* Bytes of memory that is lent: what quotas are about. */
uint64_t mc_core_tenant_capacity(const struct mc_core *core);
/* A quota of NULL is taken away: TENANT_NOT_REGISTERED, it has none; TENANT_NOT_EMPTY, it has objects. Else 0;
 * UNAVAILABLE_IN_CURRENT_MODE: nothing is counted; BUSY: there are too many tenants. */
int mc_core_quota(struct mc_core *core, struct mc_span tenant, const struct mc_core_quota *quota);
/* Takes it away also from a tenant that has objects: these stay, and it puts nothing. */
void mc_core_quota_withdraw(struct mc_core *core, struct mc_span tenant);
/* False: it has none. */
bool mc_core_quota_of(const struct mc_core *core, struct mc_span tenant, struct mc_core_quota *quota);

/* Puts that were begun long ago and are not decided, the oldest first, at most `capacity`; scope NULL: of all. */
#define MC_CORE_OPEN_MS 1000u
#define MC_CORE_OPEN_LOOK 1024u /* puts that are looked at */
struct mc_core_open_put {
    struct mc_core_slow call; /* key: of the first value that is missing; took_ms: until now */
    uint64_t bytes;           /* of that value */
    uint32_t open;            /* replicas that are missing, of all its keys */
};
size_t mc_core_open_puts(const struct mc_core *core, const struct mc_scope *scope, struct mc_core_open_put *list,
                         size_t capacity);

/* Keys in slot order: calls visit for at most `limit` slots looked at. False when the end is reached. */
bool mc_core_keys(const struct mc_core *core, uint64_t *cursor, size_t limit,
                  void (*visit)(void *context, struct mc_span key, uint64_t length), void *context);

/* Keys with a bit for each medium that they are on, as output's `medium` tells it, in table order: calls visit for all
 * of the next `buckets` of the table. False when the end is reached. What stays as it is between two calls is met by
 * one of them, by two if the table has grown. */
bool mc_core_media(const struct mc_core *core, uint64_t *cursor, size_t buckets,
                   void (*visit)(void *context, struct mc_span key, unsigned media), void *context);

struct mc_core_replica {
    uint32_t segment;
    uint64_t offset, length, generation;
    bool is_on_disk; /* then offset says nothing */
};
/* Readable replicas of one object: how many there are (at most capacity filled); -704 without one; -703 while it is
 * being put. */
int mc_core_query(const struct mc_core *core, struct mc_span key, struct mc_core_replica *replicas, size_t capacity);
/* For how long it is pinned firmly yet; 0: it is not, or cannot be read from memory. */
uint64_t mc_core_firm_left_ms(const struct mc_core *core, struct mc_span key);
/* How many keys of a list, from its first on, are stored up to the first that is not; of those, in memory and on disks.
 */
struct mc_core_prefix {
    uint64_t matched, memory, disk;
    uint64_t looked; /* keys of the list so far; set to 0s by who begins one */
};
/* Goes on with the next keys of the list, at most MC_CORE_PREFIX_SLICE of them. */
#define MC_CORE_PREFIX_SLICE 256u
void mc_core_prefix(const struct mc_core *core, const struct mc_span *keys, size_t count,
                    struct mc_core_prefix *prefix);
/* The segment of that number; false when there is none. */
bool mc_core_segment(const struct mc_core *core, uint32_t number, struct mc_core_segment *segment);

#endif
