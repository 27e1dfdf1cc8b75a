/* Segments: who has one, how much of it is used, whether it can be trusted. */
#ifndef MC_CORE_SEGMENT_H
#define MC_CORE_SEGMENT_H

#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/hint_kept.h"
#include "store/core/member.h"
#include "store/core/offload_sweep.h"
#include "store/core/recover.h"
#include "store/core/space.h"
#include "store/wire/proof.h"
#include "store/wire/tag.h"

struct mc_job;

enum { MC_SEGMENT_OK = 0, MC_SEGMENT_SUSPECT = 1, MC_SEGMENT_GONE = 2 };

/* What segments are found by, beside their id and number; those of the same name or machine are a chain. */
enum { MC_ALIAS_NAME, MC_ALIAS_HOST, MC_ALIASES };
struct mc_alias {
    struct mc_segment *next, *before; /* before: NULL of the one that the map knows */
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

/* What is mounted from one address. Freed with its last segment. */
struct mc_lender {
    uint64_t address, slots;
    uint32_t segments;
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
    uint8_t kind;        /* enum mc_segment_kind. A disk: its owner alone reads and writes it (offload.h) */
    uint8_t health;      /* of a disk: enum mc_told_health */
    bool full;           /* it was above its watermark, and has not become much emptier since than evictions make it */
    bool drain;          /* its owner is told to move its objects away; also leaving */
    bool leaving;        /* its owner will unmount it: nothing new is placed there */
    bool detached;       /* a disk that its owner has unmounted and that may come back; no owner has it now */
    bool is_at_loopback; /* its address; every client that asks for the list has all of them looked at */
    bool unreachable;    /* for other hosts, and there are some: it is at a loopback address */
    struct mc_id id, host, owner_id;
    uint64_t change;               /* the count of changes when it was mounted or taken over */
    uint64_t depart_ms, forget_ms; /* of one that is detached: when it has departed, when it is gone; */
    uint64_t gone_at_ms;           /* of one that was given up: its last contact, by our age and 1; 0: it left */
    uint64_t incarnation, nonce, id_hash;
    struct mc_member *member;    /* NULL when GONE */
    struct mc_connection *owner; /* NULL: CLEAR and CUT are held back */
    struct mc_link of_member;
    struct mc_lender *lender; /* where it was mounted from first; NULL: from this machine */
    struct mc_alias aliases[MC_ALIASES];
    char name[MC_SEGMENT_TEXT_MAX + 1], tcp_address[MC_SEGMENT_TEXT_MAX + 1], unix_path[MC_SEGMENT_TEXT_MAX + 1];
    char directory[MC_SEGMENT_TEXT_MAX + 1]; /* of a disk, at its owner; may be cut */
    uint8_t ticket_key[MC_KEY_SECRET_BYTES]; /* by which its owner knows tickets; has_ticket_key: it wants them */
    bool has_ticket_key;
    uint8_t tag_key[MC_TAG_KEY_BYTES]; /* by which it knows the tags of places; has_tag_key: it wants them */
    bool has_tag_key;
    uint8_t key_mark;             /* of both */
    uint32_t key_ms;              /* for how long it knows them, at least */
    uint64_t capacity, populated; /* bytes */
    uint64_t populated_ms;        /* when it last grew */
    uint64_t mounted_ms;          /* here */
    uint32_t slot_count;
    uint32_t places[MC_SETS]; /* in core->ok and core->roomy, or MC_SET_NOWHERE */

    struct mc_space space;
    uint64_t used, clearing, quarantine; /* units; used = granted and live */
    uint64_t blank;                      /* units of what is granted without a key; not in `used` */
    struct mc_link blanks;               /* their puts, by `of_segment`, oldest first */
    uint64_t hard;                       /* units of those that are never evicted */
    uint64_t firm_bytes;                 /* see firm.h */
    uint32_t granted, live;              /* nodes */
    struct mc_node_list normal, proven;  /* live replicas that are not pinned, as the policy orders them */
    struct mc_node_list soft;            /* those that are pinned softly, by age of their last use */
    struct mc_node_list first;           /* those that go before all others, as their users say: see hint.h */
    uint64_t fetched, fetching;          /* units that hints have had loaded, and of them that are under way; */
    uint32_t fetches;                    /* how many these are */
    struct mc_hint_notes hint_notes;     /* what its owner is to keep of hints */
    struct mc_node_list clears, cuts;    /* what the owner has been or will be told */
    uint32_t clear_unsent, cut_unsent;   /* first node of the list that was not sent yet, MC_NODE_NONE = all were */
    uint32_t late; /* nodes of `clears` (MC_CLEARING_LATE) that something was acknowledged over while it was departed */
    struct mc_node_list moves; /* MOVING: what the owner is to store on this disk, or to load into this memory */
    uint32_t move_unsent;      /* as clear_unsent */
    uint32_t moves_sent;       /* of them, not answered yet */
    uint64_t rest_until_ms;    /* of a disk that has failed to read: until then that is not loaded from it */
    uint32_t rest_slot;        /* of that; after several failures in a row all rests */
    uint32_t reads_failed;     /* in a row, of one value and then another */
    struct mc_sweep flush;     /* of memory: what of it is stored on disks, see offload_sweep.h */
    uint32_t release;          /* next node of `clears` that is not to hold its key any longer */
    struct mc_link dirty;      /* in core->dirty while something is unsent and can be sent */
    struct mc_link busy;       /* in core->busy while ticks have work here: release, debt */

    /* Recovery. recovering: not offered, nothing is placed there. inventory: what its next INVENTORY is taken for, NONE
     * when the last was merged. */
    bool recovering, sequence_known;
    uint8_t inventory;
    uint16_t round;       /* of inventories of this segment; nodes that were met carry it */
    uint32_t sequence;    /* wanted next */
    uint32_t refused;     /* nodes of `clears` (MC_CLEARING_REFUSED) that must be no more when it is offered */
    bool is_untold;       /* a takeover was broken off for good: who mounts it next tells it all, whoever that is */
    bool is_unnamed;      /* of what was refused, something whose key is not held */
    uint32_t drop_cursor; /* while recovering after a takeover: nodes before this one were looked at */
    bool dropping;
    struct mc_past past;      /* the contents that it was mounted with */
    bool is_earlier;          /* they were not offered under this epoch yet: what earlier masters did counts */
    bool is_unmet;            /* gone, and they never were */
    uint64_t told_ms;         /* when the inventory began, or its last frame or CLEARED came; by life time */
    struct mc_link recovery;  /* in core->recovering while recovering */
    uint32_t told, announced; /* objects of the inventory so far, and at most in all */
    bool is_unannounced;      /* that is not known: a disk's */

    uint64_t demand_ms, demand; /* units that allocations missed within this millisecond */
    uint64_t want, want_size;   /* units evicted for the last failure, doubled each time; for requests of that size */
    uint64_t debt;              /* units still to be evicted by ticks */
    uint8_t debt_for;           /* enum mc_core_eviction */

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
    uint32_t spread_stamp,
        spread_count; /* so many pieces of a value that the put start of that stamp has placed here */
    bool said_index_full;

    struct mc_job *job; /* made with it, so that its end needs no memory */
};

/* Something there can be evicted, and is not pinned softly. */
static inline bool mc_segment_ages(const struct mc_segment *segment)
{
    return segment->first.count + segment->normal.count + segment->proven.count > 0;
}

void mc_segment_mount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_unmount(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_tell_keys(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segments_tell(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_segment_describe(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The tag of a place there, for that node: to read it, or to write that object, as a head (stripe.h) or not. 0 where
 * the owner wants none. */
uint64_t mc_segment_tag_read(const struct mc_segment *segment, struct mc_id holder, const struct mc_wire_place *place);
uint64_t mc_segment_tag_write(const struct mc_segment *segment, struct mc_id holder, const struct mc_wire_place *place,
                              const struct mc_object *object, bool is_head);
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
/* The same; when only the note is missing that is asked for. */
bool mc_segment_ask_departed(struct mc_core *core, const struct mc_segment *segment);
/* What is held until CLEARED of a segment that is departed need not be. */
void mc_segment_release(struct mc_core *core, struct mc_segment *segment);
void mc_segment_pong(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The time of the next probe or of the end of one; UINT64_MAX = none. */
uint64_t mc_segments_due(const struct mc_core *core);
/* Derives OK or SUSPECT from what is known of the owner. */
void mc_segment_refresh(struct mc_core *core, struct mc_segment *segment);
/* There is something that its owner is to be told. */
void mc_segment_mark_dirty(struct mc_core *core, struct mc_segment *segment);
/* A disk that was unmounted to come back has departed; or its time is over, and it is gone. */
void mc_segment_forget(struct mc_core *core, struct mc_segment *segment);
/* The connection its CLEARs went to is no more. */
void mc_segment_owner_lost(struct mc_segment *segment);
void mc_segment_gone(struct mc_core *core, struct mc_segment *segment);
/* The same, and not because its owner said so: what it does, with an election, waits until that is noted there. */
void mc_segment_give_up(struct mc_core *core, struct mc_segment *segment);
void mc_segment_set_populated(struct mc_core *core, struct mc_segment *segment, uint64_t populated);
/* The owner is still taking memory for it: space comes without eviction. A segment that stays smaller than it wants to
 * be is full at what it has. */
bool mc_segment_is_populating(const struct mc_core *core, const struct mc_segment *segment);
/* Bytes of memory that is lent. */
uint64_t mc_segments_capacity(const struct mc_core *core);
/* What is used and being cleared: above `high` a segment is full, and evictions bring what is used down to `low`. */
struct mc_marks {
    uint64_t high, low; /* units */
};
struct mc_marks mc_segment_marks(const struct mc_core *core, const struct mc_segment *segment);
/* Puts it among those with room, or not. After every change of what is used. */
void mc_segment_update_room(struct mc_core *core, struct mc_segment *segment);
void mc_segments_tick(struct mc_core *core);
/* What was held is sent now. */
void mc_segments_sent(struct mc_core *core);
/* Frees it; its nodes must be of no consequence any more. */
void mc_segment_destroy(struct mc_core *core, struct mc_segment *segment);

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

#endif
