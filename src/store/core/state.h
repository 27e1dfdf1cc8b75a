/* The state of the master's core, and what its files offer each other. Only files of the core, their tests and the
 * fuzzer include this.
 *
 * Who owns what: the core owns members, connections, segments, puts, waits, jobs. A member owns its connections and
 * segments (lists). An object is reached by the table and by the nodes of its replicas; whoever wants to remember one
 * longer than a call keeps (pointer, serial).
 *
 * Invariants (proved by mc_core_check): an object is in the table from its first grant until its last replica leaves;
 * `visible` exactly when nothing granted is left, something is live and it does not wait; a live node is in its
 * segment's `normal` or `soft` list exactly when its object is visible and not pinned hard; used, clearing and
 * quarantine of a segment are the sums over its nodes; the live replicas of an object have one version; a segment that
 * is recovering is not OK; a tombstone has no replica and no group; `clearing` of an object counts the CLEARING nodes
 * that hold its key; a successor is not in the table and never visible; an object waits (whole, not visible) exactly
 * while something of the value before it remains. */
#ifndef MC_CORE_STATE_H
#define MC_CORE_STATE_H

#include "base/error.h"
#include "base/regex.h"
#include "store/segment/layout.h"
#include "store/core/core.h"
#include "store/core/group.h"
#include "store/core/map.h"
#include "store/core/object.h"
#include "store/core/space.h"

#define MC_SEGMENTS_TOLD_NEAR 16u /* in one answer, of the client's machine */
#define MC_SEGMENTS_TOLD_FAR 8u   /* and of others */
#define MC_SEGMENTS_MAX 65536u    /* mounted at the same time; number 0 is never used */
#define MC_SEGMENT_CAPACITY_MAX (1ull << 44)
#define MC_SEGMENT_TEXT_MAX 255u /* bytes of a segment's name and addresses */
#define MC_MEMBERS_MAX 65536u
#define MC_MEMBER_NAME_MAX 63u /* bytes that are kept of it, for the log */
#define MC_CONNECTIONS_MAX 131072u
#define MC_PUTS_MAX (1u << 20)         /* put starts with an open grant */
#define MC_GRANTS_PER_CONNECTION 8192u /* open ones; so the end of a connection is a bounded amount of work */
#define MC_WAITS_MAX (1u << 20)        /* removals that wait for their CLEARED */
#define MC_WAITS_PER_CONNECTION 64u    /* whoever has so many unanswered asks again later */
#define MC_REPLACE_HOPE_MS 1000u /* readers of a key that waits are told for so long to ask again, then: not ready */
#define MC_JOBS_MAX 64u          /* removals of all or by pattern at the same time */
#define MC_WALK_MAX 100u         /* segments looked at for one replica */
#define MC_PREFERRED_MAX 64u     /* segments that preferred names stand for */

/* What one slice may cost: all well under 1 ms together. */
#define MC_SLICE_SLOTS 2048u
#define MC_SLICE_STEPS 6000u /* of a removal, one = what a step of a regex costs, about 40 ns */
#define MC_STEPS_VISIT 5u    /* of looking at an object and taking it away */
#define MC_STEPS_SEARCH 8u   /* of a search beside those it counts */
#define MC_SLICE_GRANTS 512u
#define MC_SLICE_EVICTIONS 1024u
#define MC_SLICE_FRAMES 4u
#define MC_SLICE_CHUNKS 16u
#define MC_SLICE_WAITS 1024u     /* removals answered for one message; the rest is answered by ticks */
#define MC_EVICT_ITEM_MAX 256u   /* evictions that one item of a put may cause */
#define MC_EVICT_INPUT_MAX 2048u /* that one message may cause; the rest is done by ticks */
#define MC_EVICT_SKIPS_MAX 64u   /* objects in use that one eviction step passes over */
#define MC_EVICT_TURNS_MAX 2048u /* members of groups that were used since, passed over for one message */

#define MC_TICK_IDLE_MS 1000u
#define MC_TICK_BUSY_MS 100u
#define MC_JOB_REST_MS 50u /* of a removal over all, before it looks again at what could not go */
#define MC_GAP_MS 1000u    /* a call later than expected by more than this is a gap of our own process */
/* A segment that grew within this time is waited for instead of evicted from; a few heartbeats */
#define MC_POPULATING_MS 3000u
#define MC_PROBE_PINGS 4u         /* evenly over the time in which one of them is to be answered, */
#define MC_PROBE_LEAST_MS 100u    /* which is at least so long, */
#define MC_PROBE_MOST_MS 650u     /* and at most, however slowly the owner has answered, and whatever the way loses */
#define MC_LOSSY_MS 5000u         /* after the last sign of a lost packet */
#define MC_PROBE_EVERY_MS 200u    /* of a suspect */
#define MC_ROUND_TRIP_MAX_MS 500u /* who answers later was not slow, but stopped */
#define MC_SLOW_DECAY 64u         /* the slowest answer is forgotten by this part with each that comes */
#define MC_REPORTERS_MAX 4u       /* machines that are remembered while a segment is probed */
#define MC_ACCUSERS_MAX 64u       /* machines whose reports were refuted */
#define MC_ACCUSED_MAX 8u         /* segments that are remembered of each */
#define MC_ACCUSED_MANY 3u        /* who is wrong about so many is in trouble himself */
#define MC_ACCUSED_WINDOW_MS 60000u
#define MC_CHECKS_MAX 16u    /* CHECKs to one segment whose outcome is open */
#define MC_CHECK_MS 10000u   /* without LOST for so long the replica is taken for sound */
#define MC_BUSY_RETRY_MS 50u /* after that, and as much again by chance, a request that was too much comes again */

/* recovery */
/* Each item may be the first to touch a page: about 0.5 us, twenty times that when the machine has to find memory. */
#define MC_INVENTORY_ITEMS_MAX 128u
#define MC_BASES_MAX 254u
#define MC_BASE_RAW 255u /* of CLEARING only: the upper bits of the generation are in node->pointer */
#define MC_EVIDENCE_MAX 64u
#define MC_RECOVERING_SLICE 1024u       /* segments that are looked at in a tick */
#define MC_INVENTORY_PATIENCE_MS 30000u /* without an INVENTORY for so long the contents are given up */
#define MC_CLUSTERS_MET_MAX 8u
#define MC_CLUSTER_WAITERS_MAX 4096u
#define MC_CLUSTER_WAITER_MS 10000u /* who waits and does not ask again for so long is forgotten */
#define MC_WITNESSES_MAX 32u
#define MC_WITNESS_KEEP_MS 10000u /* who says nothing for so long is forgotten */
#define MC_WITNESS_WORDS 3u       /* and over so long: then a witness stands by its word */
#define MC_WITNESS_STANDS_MS 2000u
/* Later than any clock that a master serves by (2040), with room for 60,000 leaps over what nodes have met. */
#define MC_EPOCH_LATEST (3ull << 34)
#define MC_TOMBSTONES_MAX (4u << 20)
#define MC_GONE_BITS (1ull << 27)    /* beyond that: 16 MiB */
#define MC_ENDED_WELL_MAX (1u << 23) /* placements back of which it is known whether their put ended well */
_Static_assert(MC_COUNTER_END == 1ull << 40, "a node has so many bits of a generation's counter");
#define MC_SLICE_TOMBSTONES 2048u

/* Share of placement: what was placed counts half as much every second. */
#define MC_SHARE_SLACK (64ull << 20) /* bytes */
#define MC_SHARE_SLACK_PART 64u      /* or this part of the capacity, if that is more */

enum { MC_CORE_LOG_DEBUG = 1, MC_CORE_LOG_INFO = 2, MC_CORE_LOG_WARNING = 3 }; /* as enum mc_log_level */
enum { MC_SEGMENT_OK = 0, MC_SEGMENT_SUSPECT = 1, MC_SEGMENT_GONE = 2 };

struct mc_link { /* of an intrusive list; a list is a link too */
    struct mc_link *previous, *next;
};
static inline void mc_link_init(struct mc_link *link)
{
    link->previous = link->next = link;
}
static inline bool mc_link_alone(const struct mc_link *link)
{
    return link->next == link;
}
static inline void mc_link_remove(struct mc_link *link)
{
    link->previous->next = link->next;
    link->next->previous = link->previous;
    mc_link_init(link);
}
/* The link must be alone. */
static inline void mc_link_append(struct mc_link *list, struct mc_link *link)
{
    link->previous = list->previous;
    link->next = list;
    list->previous->next = link;
    list->previous = link;
}
#define mc_link_of(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

struct mc_node_list { /* through list_previous and list_next of nodes; head = oldest */
    uint32_t head, tail, count;
};

struct mc_writer { /* who may still write into a quarantined extent; counted, outlives its member */
    struct mc_id id;
    uint64_t references;
};

struct mc_member {
    struct mc_id id, host; /* host: as its hello says; 0 = it does not */
    char name[MC_MEMBER_NAME_MAX + 1];
    uint64_t incarnation;
    uint64_t hash; /* key in the map */
    struct mc_writer *writer;
    struct mc_connection *keeper, *owner; /* the newest of each role, or NULL */
    struct mc_link connections, segments;
    struct mc_link by_seen; /* in core->members, ordered by seen_ms */
    uint64_t seen_ms;       /* life time (core->life_ms) of its last sign of life */
    uint64_t beat_ms;       /* and of its last heartbeat; that is no sign of life of what serves its segments */
    bool had_keeper;        /* from then on it is mortal */
    bool keeper_lost, silent;
    bool departed; /* silent for depart_ms: its segments may be acted upon, if the core may do so at all */
    char build[MC_BUILD_TEXT_MAX];
};

/* A master of that epoch, or an earlier one, that may have acted was alive then: of that cluster, zero = of any. */
struct mc_evidence {
    uint64_t epoch;
    int64_t alive_ms;
    struct mc_id cluster;
};

/* An owner that brings contents of another cluster than those that are here, while it is not known which this is. */
struct mc_cluster_waiter {
    struct mc_id node, cluster;
    uint64_t said_ms;
};

/* A node that has met a master of an epoch above ours. */
struct mc_witness {
    struct mc_id node;
    uint64_t epoch;             /* that it has named last */
    uint64_t first_ms, last_ms; /* of its words */
    uint32_t words;
    bool is_owner;
};

struct mc_reading {
    struct mc_object *object;
    uint32_t serial;
};

struct mc_connection {
    uint64_t number;
    struct mc_member *member; /* NULL before the hello */
    struct mc_link of_member;
    struct mc_link puts;
    uint32_t grants; /* open ones of its puts */
    struct mc_link waits;
    uint32_t wait_count;
    struct mc_wire_peer peer; /* what may be said to it, once it has said hello */
    uint64_t heard_ms;        /* life time of its last frame */
    uint64_t asked_ms;        /* of an owner: when the PING of a heartbeat was sent that has no answer yet; 0 = none */
    struct mc_answering {
        uint32_t smoothed8_ms; /* eight times the smoothed time from PING to PONG */
        uint32_t slow_ms;      /* the longest of late */
    } answering;               /* of an owner */
    uint32_t lost;             /* signs of lost packets on its way, when it was last looked at; of an owner */
    uint64_t lossy_until_ms;   /* life time; so long they count */
    uint8_t role;
    struct mc_id cluster;    /* of the contents that its hello speaks of; zero = there are none, or it does not say */
    struct mc_evidence said; /* in its hello; counts from its next frame on. epoch 0: nothing */
    bool closing;            /* nothing of it is listened to any more */
    uint32_t reading_count, reading_capacity;
    struct mc_reading *reading;
};

enum mc_inventory {
    MC_INVENTORY_NONE,
    MC_INVENTORY_EARLIER, /* of memory that was mounted under an earlier epoch: the space is being rebuilt from it */
    MC_INVENTORY_TAKEOVER /* of memory of this epoch that another process has taken up: it is compared */
};

/* What segments are found by, beside their id and number; those of the same name or machine are a chain. */
enum { MC_ALIAS_NAME, MC_ALIAS_HOST, MC_ALIASES };
struct mc_alias {
    struct mc_segment *next;
    uint64_t hash;
    bool known;
};

enum mc_set { MC_SET_OK, MC_SET_ROOMY, MC_SETS };
#define MC_SET_NOWHERE UINT32_MAX
struct mc_segment_set { /* what placement draws from: those that are trusted, and those of them below their watermark */
    enum mc_set which;
    struct mc_segment **items;
    uint64_t *sums; /* see set.c */
    uint64_t capacity;
    uint32_t count;
};

struct mc_check {
    uint64_t generation, sent_ms;
    uint32_t slot;
    bool open;
};

struct mc_segment {
    uint32_t number; /* reuse count of the index << 16 | index */
    uint16_t index;
    uint8_t state;
    bool full;        /* it was above its watermark, and has not become much emptier since than evictions make it */
    bool drain;       /* its owner is told to move its objects away; also leaving */
    bool leaving;     /* its owner will unmount it: nothing new is placed there */
    bool unreachable; /* for other hosts, and there are some: it is at a loopback address */
    struct mc_id id, host, owner_id;
    uint64_t change; /* the count of changes when it was mounted or taken over */
    uint64_t incarnation, nonce, id_hash;
    struct mc_member *member;    /* NULL when GONE */
    struct mc_connection *owner; /* NULL: CLEAR and CUT are held back */
    struct mc_link of_member;
    struct mc_alias aliases[MC_ALIASES];
    char name[MC_SEGMENT_TEXT_MAX + 1], tcp_address[MC_SEGMENT_TEXT_MAX + 1], unix_path[MC_SEGMENT_TEXT_MAX + 1];
    uint64_t capacity, populated; /* bytes */
    uint64_t populated_ms;        /* when it last grew */
    uint32_t slot_count;
    uint32_t places[MC_SETS]; /* in core->ok and core->roomy, or MC_SET_NOWHERE */

    struct mc_space space;
    uint64_t used, clearing, quarantine; /* units; used = granted and live */
    uint64_t hard;                       /* units of those that are never evicted */
    uint32_t granted, live;              /* nodes */
    struct mc_node_list normal, soft;    /* live replicas by age of their last use */
    struct mc_node_list clears, cuts;    /* what the owner has been or will be told */
    uint32_t clear_unsent, cut_unsent;   /* first node of the list that was not sent yet, MC_NODE_NONE = all were */
    uint32_t late; /* nodes of `clears` (MC_CLEARING_LATE) that something was acknowledged over while it was departed */
    uint32_t release;     /* next node of `clears` that is not to hold its key any longer */
    struct mc_link dirty; /* in core->dirty while something is unsent and can be sent */
    struct mc_link busy;  /* in core->busy while ticks have work here: release, debt */

    /* Recovery. recovering: not offered, nothing is placed there. inventory: what its next INVENTORY is taken for, NONE
     * when the last was merged. */
    bool recovering, sequence_known;
    uint8_t inventory;
    uint16_t round;       /* of inventories of this segment; nodes that were met carry it */
    uint32_t sequence;    /* wanted next */
    uint32_t drop_cursor; /* while recovering after a takeover: nodes before this one were looked at */
    bool dropping;
    struct mc_id cluster; /* to which they belong that it was mounted with; zero = there were none, or it did not say */
    uint64_t earlier_epoch;  /* under which its contents were mounted before, 0 = none */
    int64_t contact_ms;      /* and when its owner last had a sign of that master */
    bool is_earlier;         /* they were not offered under this epoch yet: what earlier masters did counts */
    bool is_unmet;           /* gone, and they never were */
    uint64_t told_ms;        /* when the inventory began, or its last frame came; by life time */
    struct mc_link recovery; /* in core->recovering while recovering */

    uint64_t demand_ms, demand; /* units that allocations missed within this millisecond */
    uint64_t want, want_size;   /* units evicted for the last failure, doubled each time; for requests of that size */
    uint64_t debt;              /* units still to be evicted by ticks */

    bool distrusted;           /* a probe failed: only a PONG helps */
    bool probing;              /* a PONG is awaited; also while distrusted */
    uint32_t first_ping, ping; /* numbers of the first PING that an answer is wanted to, and of the last */
    uint64_t probe_ms;         /* when the probe began */
    uint64_t pinged_ms;        /* when its last PING was sent */
    struct mc_link watched;    /* in core->watched while probing */
    struct mc_reporter {
        struct mc_id host;
        char name[MC_MEMBER_NAME_MAX + 1];
    } reporters[MC_REPORTERS_MAX]; /* of what the probe is to find out */
    uint32_t reporter_count;

    struct mc_check checks[MC_CHECKS_MAX];

    uint64_t recent, recent_s; /* units placed, halved every second; second in which that was last done */

    uint32_t avoid_stamp, pick_stamp; /* of the put start, of the item that is being placed */
    bool said_index_full;

    struct mc_job *sweep; /* made with it, so that its end needs no memory; NULL once that has begun */
};

struct mc_grant {
    uint32_t slot; /* MC_NODE_NONE = no longer open */
    uint16_t segment, item;
};
enum { MC_PUT_OPEN = 1, MC_PUT_WAITS = 2 }; /* codes of items that are not decided; those on the wire are not above 0 */
struct mc_put {                             /* one PUT_START with at least one grant */
    uint32_t index;
    struct mc_connection *connection; /* NULL: nobody wants to hear the end */
    struct mc_writer *writer;
    uint64_t request_id, started_ms, expected; /* version that is to be replaced, 0 = any */
    struct mc_link of_connection, by_age;      /* by_age: in core->puts_by_age or core->puts_dying */
    struct mc_link copying;                    /* in core->copies, when it names the version that it replaces */
    bool dying;
    uint32_t open, grant_count, item_count;
    uint32_t waiting; /* items that are whole and wait for the value before them to be cleared */
    uint32_t cursor;  /* of the dying: grants before this one are closed */
    struct mc_grant *grants;
    int32_t codes[]; /* of the items */
};

enum mc_wait_kind { MC_WAIT_REMOVE, MC_WAIT_COUNT, MC_WAIT_BOTH };
struct mc_wait { /* an answer that waits for CLEARED; BOTH: one more that waits for the same as others */
    uint32_t index;
    enum mc_wait_kind kind;
    struct mc_connection *connection; /* NULL: nobody wants to hear the answer; always of BOTH */
    struct mc_link of_connection;
    uint64_t request_id;
    uint64_t outstanding;         /* held keys and BOTHs, plus one while the request itself is still at work */
    struct mc_wait *before, *own; /* of BOTH: those who waited already, maybe a BOTH too; and the one more */
    struct mc_wait *next_due;     /* in core->waits_due */
    int32_t code;
    uint64_t removed;
    uint32_t code_count;
    int32_t codes[];
};

enum mc_job_kind { MC_JOB_SWEEP, MC_JOB_REMOVE };
struct mc_job {
    struct mc_link link;
    enum mc_job_kind kind;
    struct mc_segment *segment;    /* SWEEP */
    struct mc_wait *wait;          /* REMOVE */
    struct mc_regex *regex;        /* REMOVE; NULL = all */
    bool force, too_costly, again; /* again: something could not go yet */
    uint32_t index, slot;          /* of the segment, where to go on */
    uint64_t rest_until_ms;        /* before it looks again at what could not go */
};

struct mc_table { /* small numbers for things that nodes refer to */
    void **items;
    uint32_t count, capacity, limit; /* count: of numbers ever used */
    uint32_t *free;
    uint32_t free_count;
};
/* A number for the item, or UINT32_MAX when the table is full or memory is out. */
uint32_t mc_table_add(struct mc_table *table, void *item);
void mc_table_remove(struct mc_table *table, uint32_t index);
static inline void *mc_table_get(const struct mc_table *table, uint32_t index)
{
    return table->items[index];
}

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
    uint64_t *ended_well; /* a bit for each of the last placements: the put of that version was answered 0 */
    uint64_t base_ms,
        now_ms; /* now_ms: since base_ms, which is when the core was made; every other time in here is of this kind */
    uint64_t wake_ms; /* when the last tick asked to be called */
    uint64_t gap_ms;  /* sum of our own gaps */
    uint64_t random;

    struct mc_map connections, members_by_id, segments_by_id, segments_by_alias[MC_ALIASES];
    struct mc_link members; /* by seen_ms, oldest first */
    struct mc_link puts_by_age, puts_dying, copies, jobs, dirty, busy, watched, recovering;
    uint32_t job_count; /* REMOVE jobs */
    struct mc_table puts, waits;
    struct mc_wait *waits_due; /* one of what they wait for is done, and ticks are to say so */
    uint32_t waits_left;       /* of this input */

    struct mc_segment **segments; /* by index */
    uint16_t *segment_uses;       /* by index: how often it was given out */
    uint64_t segment_changes;     /* segments mounted, taken over and gone, counted */
    struct mc_accuser accusers[MC_ACCUSERS_MAX];
    bool may_depart, wants_to_depart;                    /* departures may be acted upon; one would be */
    bool may_age;                                        /* it is not young for ever */
    uint32_t segment_cursor, segment_count, segment_top; /* top: one more than the highest index ever used */
    struct mc_segment_set ok, roomy;
    uint64_t recent, recent_s; /* units placed anywhere, as in a segment */
    uint32_t stamp;
    uint32_t rotation;                   /* of replicas over gets */
    uint32_t evictions_left, turns_left; /* of this input */

    struct mc_objects objects;
    uint64_t visible_count, soft_count;
    struct mc_groups groups;

    /* Recovery: see recover.c. */
    uint64_t wanted_epoch;
    struct mc_witness witnesses[MC_WITNESSES_MAX];
    uint32_t witness_count;
    bool recovery_over;     /* no contents of earlier epochs are taken any more: its time is over and none is coming */
    uint32_t earlier_count; /* segments that are_earlier */
    uint64_t *gone_bits;    /* keys that vanished when there were too many tombstones, by a hash; NULL = none did */
    uint64_t bases[MC_BASES_MAX]; /* from which nodes of earlier epochs count generations; 1 stands for the first */
    uint32_t base_count, base_last;
    struct mc_evidence evidence[MC_EVIDENCE_MAX]; /* by ascending epoch and descending time */
    uint32_t evidence_count;
    bool has_offered;             /* a segment was offered under this epoch */
    bool has_changed;             /* a place was granted, or a removal was begun */
    bool has_acted;               /* the same, or removals may have been acknowledged */
    bool refuse_earlier;          /* something was removed that cannot be named: no further entry of an earlier epoch */
    struct mc_object *tombstones; /* the newest; the rest hangs on it */
    uint64_t tombstone_count, tombstone_limit, held_count;
    struct mc_map held_more; /* by object: how many nodes hold its key beyond those that it can count itself */
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

static inline struct mc_node *mc_segment_node(const struct mc_segment *segment, uint32_t slot)
{
    return mc_space_node(&segment->space, slot);
}
static inline struct mc_object *mc_node_object(const struct mc_node *node)
{
    return (struct mc_object *)(uintptr_t)node->pointer;
}
enum { /* `seen` of a CLEARING node */
       MC_CLEARING_LATE = 1,
       MC_CLEARING_REMAINS = 2 /* it counts among what remains of its key */
};
/* Who may still write into the extent of a CLEARING node, and is cut off once that is cleared; NULL = nobody. */
static inline struct mc_writer *mc_node_clearing_writer(const struct mc_node *node)
{
    return (struct mc_writer *)(uintptr_t)((uint64_t)node->replica_next_segment << 32 | node->replica_next_slot);
}
static inline void mc_node_set_clearing_writer(struct mc_node *node, const struct mc_writer *writer)
{
    node->replica_next_slot = (uint32_t)(uintptr_t)writer;
    node->replica_next_segment = (uint16_t)((uint64_t)(uintptr_t)writer >> 32);
}
/* Whose key the CLEARING node holds; NULL = nobody's. */
static inline struct mc_object *mc_node_held(const struct mc_node *node)
{
    return node->base == MC_BASE_RAW ? NULL : mc_node_object(node);
}
static inline uint64_t mc_base(const struct mc_core *core, unsigned base)
{
    return base == 0 ? core->epoch << MC_EPOCH_SHIFT : core->bases[base - 1];
}
static inline uint64_t mc_node_generation(const struct mc_core *core, const struct mc_node *node)
{
    uint64_t counter = (uint64_t)node->generation_high << 32 | node->generation_low;
    return node->base == MC_BASE_RAW ? (uint64_t)node->pointer << 40 | counter : mc_base(core, node->base) + counter;
}
/* It has replaced a value that some owner may still have: readers get neither. Its nodes are in no list and name put
 * and grant, as they did when they were granted; put MC_NODE_NONE: nobody wants to hear the end. */
static inline bool mc_object_waits(const struct mc_object *object)
{
    return object->tombstone == 0 && !object->successor && !object->visible && object->granted == 0 && object->live > 0;
}
/* What all replicas of one put share, and what grows with every put of a key. */
static inline uint64_t mc_node_version(const struct mc_core *core, const struct mc_node *node)
{
    return mc_node_generation(core, node) - node->replica;
}
static inline uint64_t mc_extent_units(uint64_t length, size_t key_length)
{
    return mc_extent_size(length, key_length) / MC_EXTENT_UNIT;
}

static inline bool mc_is_earlier(const struct mc_core *core, uint64_t generation)
{
    return generation < core->epoch << MC_EPOCH_SHIFT;
}

struct mc_replica {
    struct mc_segment *segment; /* NULL = none */
    uint32_t slot;
};
static inline struct mc_replica mc_replica_at(const struct mc_core *core, uint64_t index, uint32_t slot)
{
    return (struct mc_replica){slot == MC_NODE_NONE ? NULL : core->segments[index], slot};
}
/* The replicas of an object, one after the other; the chain must not change meanwhile. */
static inline struct mc_replica mc_replica_first(const struct mc_core *core, const struct mc_object *object)
{
    return mc_replica_at(core, object->first_segment, object->first_slot);
}
static inline struct mc_replica mc_replica_next(const struct mc_core *core, struct mc_replica replica)
{
    const struct mc_node *node = mc_segment_node(replica.segment, replica.slot);
    return mc_replica_at(core, node->replica_next_segment, node->replica_next_slot);
}

/* A segment has departed or is gone, and nothing may be concluded from that yet. */
static inline bool mc_core_is_departing(const struct mc_core *core)
{
    return core->wants_to_depart && !core->may_depart;
}

/* core.c: helpers of all */
void mc_core_log(struct mc_core *core, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
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

/* member.c */
void mc_member_hello(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_member_heartbeat(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_member_connection_ended(struct mc_core *core, struct mc_connection *connection);
void mc_members_tick(struct mc_core *core);
void mc_member_destroy(struct mc_core *core, struct mc_member *member);
void mc_writer_release(struct mc_writer *writer);
/* Departures may be acted upon from now on. */
void mc_members_depart(struct mc_core *core);
/* A sign of life: its silence is counted from now on. */
void mc_member_seen(struct mc_core *core, struct mc_member *member);
/* Of this core, for a member that ended: its connections are closed, its grants cut, its segments gone. */
void mc_member_drop(struct mc_core *core, struct mc_member *member, const char *why);

/* segment.c; probe.c: report, pong, segments_tick, segments_due */
void mc_segment_mount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_unmount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_tell_keys(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segments_tell(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_describe(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_describe_named(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_report(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Looks at the way to an owner: whether what is missing may be under way still, as packets were lost there of late, or
 * its host has not confirmed that it has what we sent. */
bool mc_way_loses(struct mc_core *core, struct mc_connection *owner);
/* Has it probed, unless it is being probed. */
void mc_segment_doubt(struct mc_core *core, struct mc_segment *segment);
/* The first of those whose name or machine has that hash; the others follow in their alias. */
struct mc_segment *mc_segment_by_name(const struct mc_core *core, struct mc_span name);
/* After a mount, and when a client of that host asks for segments: whether a segment's address is of use to others. */
void mc_reach_mounted(struct mc_core *core, struct mc_segment *segment);
void mc_reach_asked(struct mc_core *core, struct mc_id host);
struct mc_segment *mc_segment_by_host(const struct mc_core *core, struct mc_id host);
/* By number; NULL when unknown or gone. */
struct mc_segment *mc_segment_find(const struct mc_core *core, uint32_t number);
/* Nothing can bring its contents back before what we do now is known to all: it is gone, or not OK and its owner was
 * silent for depart_ms; and with an election it is noted there that we act on that. */
bool mc_segment_departed(const struct mc_core *core, const struct mc_segment *segment);
/* What is held until CLEARED of a segment that is departed need not be. */
void mc_segment_release(struct mc_core *core, struct mc_segment *segment);
/* A segment of its id: made, or NULL when something is full. */
struct mc_segment *mc_segment_add(struct mc_core *core, struct mc_member *member, const struct mc_wire_mount *mount);
/* The segment belongs to another process now. False when memory is out, nothing is changed then. */
bool mc_segment_take_over(struct mc_core *core, struct mc_segment *segment, struct mc_member *member,
                          const struct mc_wire_mount *mount);
void mc_segment_pong(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The time of the next probe or of the end of one; UINT64_MAX = none. */
uint64_t mc_segments_due(const struct mc_core *core);
/* Derives OK or SUSPECT from what is known of the owner. */
void mc_segment_refresh(struct mc_core *core, struct mc_segment *segment);
/* The connection its CLEARs went to is no more. */
void mc_segment_owner_lost(struct mc_segment *segment);
void mc_segment_gone(struct mc_core *core, struct mc_segment *segment);
void mc_segment_set_populated(struct mc_core *core, struct mc_segment *segment, uint64_t populated);
/* Puts it among those with room, or not. After every change of what is used. */
void mc_segment_update_room(struct mc_core *core, struct mc_segment *segment);
void mc_segments_tick(struct mc_core *core);
/* Frees it; its nodes must be of no consequence any more. */
void mc_segment_destroy(struct mc_core *core, struct mc_segment *segment);

/* recover.c: contents of earlier epochs and of restarted owners */
/* Is memory that was last mounted under that earlier epoch wanted? */
bool mc_recover_wanted(struct mc_core *core, struct mc_id cluster, uint64_t epoch, int64_t contact_ms);
/* It is taken: on what grounds? Says so when there are none but that nobody has told of anything. */
void mc_recover_taken(struct mc_core *core, const struct mc_segment *segment);
/* The segment awaits its inventory. For EARLIER it must be new; false when its slots cannot be as the owner says. */
bool mc_recover_begin(struct mc_core *core, struct mc_segment *segment, enum mc_inventory inventory, uint32_t slot_top);
void mc_recover_inventory(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* A slice of what follows the last INVENTORY; true when more is left. */
bool mc_recover_work(struct mc_core *core, struct mc_segment *segment);
/* Contents of an earlier epoch may still come: nothing is to be acknowledged that they could undo, and there may soon
 * be more room. */
bool mc_recover_unsettled(const struct mc_core *core);
/* A value that is put now may take the key of an older one in a segment that we have not met; the master after us, to
 * which that segment comes, must meet the newer one too. */
bool mc_recover_hides(const struct mc_core *core);
/* False as long as nothing that we did can matter to a later master. */
bool mc_recover_acts(const struct mc_core *core);
/* Young only because it may not come of age. */
bool mc_recover_asks_to_age(const struct mc_core *core);
/* Judges by new evidence, frees tombstones, ends graces; true when there is more to do. */
bool mc_recover_tick(struct mc_core *core);
void mc_recover_lost(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_recover_rotten(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Contents of earlier epochs may still come: what goes must be remembered. */
bool mc_recover_open(const struct mc_core *core);
/* The segment is gone, or offered: nothing that earlier masters did counts for it. */
void mc_recover_judged(struct mc_core *core, struct mc_segment *segment);
/* What is known of all keys is no longer enough to judge further entries of earlier epochs. */
void mc_recover_refuse(struct mc_core *core);
/* The number of a base from which 40 bits reach the generation; 0 when there is none and the table is full. */
unsigned mc_base_of(struct mc_core *core, uint64_t generation);

/* evidence.c: what nodes know of other masters */
/* The connection's hello says that its node has met a master of that epoch, which had acted age_ms ago. It is believed
 * once the connection goes on to speak. */
void mc_evidence_said(const struct mc_core *core, struct mc_connection *connection, const struct mc_wire_hello *hello);
void mc_evidence_confirm(struct mc_core *core, struct mc_connection *connection);
/* A note says that the master of that epoch may have acted until age_ms ago; epoch 0: there is no note. */
void mc_evidence_noted(struct mc_core *core, uint64_t epoch, uint64_t age_ms);
/* No master has acted on the absence of owners of contents of that epoch, as the election knows. */
bool mc_evidence_is_whole(const struct mc_core *core, uint64_t epoch);
/* A master of that cluster between that contact and us may have acted on the absence of whoever had the contact. */
bool mc_evidence_against(const struct mc_core *core, struct mc_id cluster, uint64_t epoch, int64_t contact_ms);
/* A node says that it has met a master of an epoch above ours. */
void mc_evidence_contradicts(struct mc_core *core, struct mc_id node, bool is_owner, uint64_t epoch);

/* cluster.c: which cluster this is */
/* What the configuration knows of it. */
void mc_cluster_begin(struct mc_core *core);
/* 0; MC_ERR_OTHER_CLUSTER, or MC_ERR_BUSY as long as nothing is settled: with words, 448 bytes at most. */
int32_t mc_cluster_judge(struct mc_core *core, const struct mc_wire_hello *hello, char *words);
/* That one is not ours, and is known not to be. */
bool mc_cluster_is_other(const struct mc_core *core, struct mc_id cluster);
/* What members are told. */
struct mc_id mc_cluster_told(const struct mc_core *core);
void mc_cluster_tick(struct mc_core *core);

/* tombstone.c: keys without a value */
/* The object has no replica any more and leaves, unless its key is to be remembered. bound: entries of earlier epochs
 * of at least that version may bring it back; UINT64_MAX = none may. wait: told when nothing holds the key; may be
 * NULL. */
void mc_object_vanish(struct mc_core *core, struct mc_object *object, uint64_t bound, struct mc_wait *wait);
/* A key that has no value was removed. cell: its tombstone, or NULL. */
void mc_tombstone_add(struct mc_core *core, struct mc_span key, struct mc_object *cell);
/* The same tombstone, which nothing holds, with room for a group; NULL when memory is out. */
struct mc_object *mc_tombstone_enlarge(struct mc_core *core, struct mc_object *object);
/* It is an object again, without a replica, not visible. */
void mc_tombstone_revive(struct mc_core *core, struct mc_object *object);
/* May an entry of that version take the key of this tombstone? */
bool mc_tombstone_lets(const struct mc_core *core, const struct mc_object *object, uint64_t version);
/* The key, which the table does not know, may have gone when there were too many tombstones already. */
bool mc_tombstone_may_be(const struct mc_core *core, struct mc_span key);
struct mc_object *mc_tombstone_next(const struct mc_object *object);
/* Frees what is no longer needed, a slice; true when more is left. */
bool mc_tombstones_tick(struct mc_core *core);
/* The node is CLEARING and held nothing: now it holds the key of the object, or of an entry that was refused. */
void mc_key_hold(struct mc_core *core, struct mc_node *node, struct mc_object *object);
void mc_key_hold_entry(struct mc_core *core, struct mc_node *node, struct mc_span key);
/* How many nodes hold it. */
uint64_t mc_key_holders(const struct mc_core *core, const struct mc_object *object);
/* Its CLEARED has come or is no longer needed. */
void mc_key_release(struct mc_core *core, struct mc_node *node);
/* The key is held after a value of it was seen by somebody: no put may take it. */
bool mc_key_takes_no_value(const struct mc_object *object);
/* The object has a value, and below it lies one whose owner cannot be told now to clear it, or has not done so yet. If
 * the value went, and we ended before all of that is done, the master after us would take the one below. Until the
 * owner has cleared it, is back or departed. */
bool mc_key_hides(const struct mc_core *core, const struct mc_object *object);
/* Waits until nothing holds the key, which must be held by something. */
void mc_key_wait(struct mc_core *core, struct mc_object *object, struct mc_wait *wait);

/* set.c: sets of segments */
bool mc_set_init(struct mc_segment_set *set, enum mc_set which);
void mc_set_destroy(struct mc_segment_set *set);
bool mc_set_has(const struct mc_segment_set *set, const struct mc_segment *segment);
/* Does nothing when it is there already. */
void mc_set_add(struct mc_segment_set *set, struct mc_segment *segment);
/* Does nothing when it is not there. */
void mc_set_remove(struct mc_segment_set *set, struct mc_segment *segment);
/* A place of a set that is not empty: each as likely as its segment is large. */
uint32_t mc_set_draw(const struct mc_segment_set *set, uint64_t random);

/* place.c: where to put a replica */
struct mc_placement {
    struct mc_segment *preferred[MC_PREFERRED_MAX];
    uint32_t preferred_count;
    struct mc_segment *near[MC_PREFERRED_MAX]; /* of the writer's machine, when it wants one of these */
    uint32_t near_count;
    bool together;            /* the whole batch goes where its first object is */
    struct mc_segment *first; /* which is here; NULL: not placed yet */
    uint32_t avoid_stamp;
    struct mc_id hosts[MC_REPLICA_COUNT_MAX]; /* where the object that is being placed has replicas already */
    uint32_t host_count, hosts_stamp;         /* hosts_stamp: the pick_stamp of that object */
    bool hopeful;                             /* some segment will have room later */
};
void mc_placement_prefer(struct mc_core *core, struct mc_placement *placement, struct mc_span name);
/* Wants a segment of that machine, after those that are preferred, and one for the whole batch. */
void mc_placement_keep_near(struct mc_core *core, struct mc_placement *placement, struct mc_id host);
/* A granted node in a segment that does not carry pick_stamp; NULL when there is none. */
struct mc_segment *mc_place(struct mc_core *core, struct mc_placement *placement, uint32_t pick_stamp, uint64_t units,
                            uint32_t *slot);

/* evict.c */
/* What the watermark is a part of, units. */
uint64_t mc_segment_budget(const struct mc_core *core, const struct mc_segment *segment);
/* After an allocation: keeps the segment below its watermark. */
void mc_evict_ahead(struct mc_core *core, struct mc_segment *segment, uint64_t units);
/* After an allocation failed: makes room. True when it makes sense to try again later. */
bool mc_evict_for(struct mc_core *core, struct mc_segment *segment, uint64_t units);
/* Works off the debt; true when some is left. */
bool mc_evict_debt(struct mc_core *core, struct mc_segment *segment);
/* Goes on with groups that were too large for one message; true when some are left. */
bool mc_evict_groups(struct mc_core *core);

/* replica.c: nodes, lists and objects */
void mc_list_append(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot);
void mc_list_remove(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot);
/* Gives the extent back. */
void mc_node_free(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* A node that belongs to no object any more: its slot is to be cleared; then the extent is free. object: whose it was,
 * its key is held until then; may be NULL. */
void mc_node_clear(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object);
/* One that is CLEARING and holds a key whose value it may show: nobody may read another value before it is cleared. */
void mc_node_remains(struct mc_node *node);
/* A granted node that belongs to no object any more: its writer is to be cut off, and before, as with mc_node_clear,
 * what may be live there is to be cleared. object NULL: nothing can be. */
void mc_node_cut(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object,
                 struct mc_writer *writer);
void mc_node_cleared(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_node_cut_done(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Sends what is unsent to the owner, at most MC_SLICE_FRAMES frames; true when more is left. */
bool mc_segment_flush(struct mc_core *core, struct mc_segment *segment);
/* Lets go the keys that a departed segment holds, a slice; true when more is left. */
bool mc_segment_release_keys(struct mc_core *core, struct mc_segment *segment);

void mc_object_link(struct mc_object *object, struct mc_segment *segment, uint32_t slot);
void mc_object_unlink(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* The object of that key, or NULL; tombstones do not count. */
struct mc_object *mc_object_find(const struct mc_core *core, struct mc_span key);
/* An object in the table, without a replica: a new one, or the key's cell (what mc_objects_find says of it, NULL or a
 * tombstone). flags: enum mc_put_flags. group: 0 = none; it stays without one when its cell has no room for that and
 * is held. NULL when memory is out. */
struct mc_object *mc_object_begin(struct mc_core *core, struct mc_object *cell, struct mc_span key, uint64_t length,
                                  uint32_t flags, uint64_t group);
/* An object that will replace this visible one: not in the table. NULL when memory is out. */
struct mc_object *mc_object_succeed(struct mc_core *core, const struct mc_object *object, uint64_t length,
                                    uint32_t flags);
/* All of a visible object can be cleared at once: nothing of it waits for that already, and whoever holds it listens.
 */
bool mc_object_clearable(const struct mc_core *core, const struct mc_object *object);
/* A successor is whole: its replicas become those of the key, the ones before are cleared; until that is done the key
 * waits. STALE: the object it was to replace is no longer what it was, or cannot be cleared now; then the successor's
 * replicas are cleared. It is
 * freed either way. */
enum mc_replace { MC_REPLACE_STALE, MC_REPLACE_WAITS, MC_REPLACE_DONE };
enum mc_replace mc_object_replace(struct mc_core *core, struct mc_object *successor, uint64_t expected);
/* Of a visible object's value; 0 = it has none, or object is NULL. */
uint64_t mc_object_version(const struct mc_core *core, const struct mc_object *object);
/* Nothing is granted any more, something is live. */
void mc_object_appear(struct mc_core *core, struct mc_object *object);
/* The same without counting it as a put. */
void mc_object_show(struct mc_core *core, struct mc_object *object);
/* One more live replica of an object that is visible. */
void mc_object_join(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* One live replica goes by itself; the object with it when it was the last, but another replica of an earlier epoch may
 * bring it back. */
void mc_object_lose_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* All of a visible object goes, for good. */
void mc_object_drop(struct mc_core *core, struct mc_object *object, struct mc_wait *wait);
/* All its live replicas leave the object; is_copy: they show the value of another object of the key. */
void mc_object_unlive(struct mc_core *core, struct mc_object *object, bool is_copy);
/* It is used: to the young end, on with the soft pin, and its group is as young. */
void mc_object_touch(struct mc_core *core, struct mc_object *object);
/* The same for a member whose group was used. */
void mc_object_rejuvenate(struct mc_core *core, struct mc_object *object);
/* Protected from removal without force: it, or a member of its group, is or was read a moment ago. */
static inline bool mc_object_is_leased(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    return core->now_ms < object->lease_until_ms || (group != NULL && core->now_ms < group->lease_until_ms);
}
/* Replicas in segments that are OK, at most capacity of them. */
uint32_t mc_object_readable(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                            uint32_t capacity);
/* The same of a value that waits: it will be readable. */
uint32_t mc_object_coming(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                          uint32_t capacity);

/* put.c */
void mc_put_start(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_put_live(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_put_revoke(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Cuts the grants of a connection that ends (keep = false: nobody hears the end) or of a member that is thought dead.
 */
void mc_puts_abandon(struct mc_core *core, struct mc_connection *connection, bool keep);
/* A grant ends without success and without anybody who could be cut off: its segment is gone. */
void mc_grant_fail(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* Cuts old grants and those of the dead, a slice; true when more is left. */
bool mc_puts_tick(struct mc_core *core);
void mc_put_destroy(struct mc_core *core, struct mc_put *put);
/* Nothing remains of the value before that of the object, which waits: it is offered and its writer answered. */
void mc_put_replaced(struct mc_core *core, struct mc_object *object);
/* The put that an object which waits belongs to, and its item; NULL: nobody wants to hear the end. */
struct mc_put *mc_put_waiting(const struct mc_core *core, const struct mc_object *object, uint32_t *item);
/* An item that has waited ends with that code. */
void mc_put_waited(struct mc_core *core, struct mc_put *put, uint32_t item, int32_t code);
/* The object's value is going: so are the copies of it that are being made. */
void mc_put_end_copies(struct mc_core *core, const struct mc_object *object);
/* The owner has the slot live: its LIVE was lost. */
void mc_put_found_live(struct mc_core *core, struct mc_segment *segment, uint32_t slot);

/* request.c */
void mc_request_get(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_renew(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_exist(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_remove(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Ends the reads of the connection's last GET. */
void mc_reading_end(struct mc_core *core, struct mc_connection *connection);

/* job.c */
/* NULL: the connection waits for too much already, or memory is out. */
struct mc_wait *mc_wait_create(struct mc_core *core, enum mc_wait_kind kind, struct mc_connection *connection,
                               uint64_t request_id, uint32_t code_count);
/* One of what it waits for is done; answers when it was the last. */
void mc_wait_done(struct mc_core *core, struct mc_wait *wait);
/* Whoever waited before this BOTH, without the one more, which is not answered any longer. */
struct mc_wait *mc_wait_part(struct mc_core *core, struct mc_wait *both);
/* The connection ends: nobody wants to hear its answers. */
void mc_waits_abandon(struct mc_connection *connection);
/* Answers more of those who waited for the same; true when some are left. */
bool mc_waits_tick(struct mc_core *core);
void mc_job_remove_regex(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_job_remove_all(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_job_sweep(struct mc_core *core, struct mc_segment *segment);
/* A slice of one job; true when there are jobs left. */
bool mc_jobs_tick(struct mc_core *core);
/* A removal of all or by pattern has not come by the visible object yet. A copy of its value that took its place now
 * could lie where the removal has looked already: it would answer, and the value would stay. */
bool mc_jobs_will_meet(const struct mc_core *core, const struct mc_object *object);
void mc_job_destroy(struct mc_core *core, struct mc_job *job);

/* check.c: proves the invariants, for tests and the fuzzer. NULL or what is wrong. */
const char *mc_core_check(const struct mc_core *core);

#endif
