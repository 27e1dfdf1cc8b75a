/* Inside of the owner: what its files share.
 *   owner.c      life; what other threads ask
 *   link.c       the connection to the master: connecting, sending, taking frames apart, breaking
 *   master.c     what the master says and what it is told
 *   scrub.c      reads what lies in the memory, on a thread of its own
 *   inventory.c  what a master is told that does not know what lies in our memory
 *   disk.c, disk_inventory.c, disk_move.c, disk_seen.c   the disks
 *   flush.c      memory that is stored on disks before it leaves
 *   hints.c      what hints say of values in our memory
 *   epoch.c      which masters were met, and when something was last heard of them
 * Everything "on the serve thread" runs there and needs no lock. `lock` guards what other threads look at. */
#ifndef MC_OWNER_INSIDE_H
#define MC_OWNER_INSIDE_H

#include "store/segment/memory.h"
#include "store/segment/numa.h"
#include "store/segment/serve.h"
#include "store/owner/connector.h"
#include "store/owner/disk.h"
#include "store/owner/master_address.h"
#include "store/owner/master_time.h"
#include "store/owner/owner.h"
#include "store/owner/scrub.h"
#include "store/wire/version.h"

#include <event2/event.h>
#include <pthread.h>

#define BACKOFF_MIN_MS 50u
#define ANSWER_MS 5000u          /* for a HELLO_REPLY or MOUNT_REPLY */
#define BACKOFF_FOREIGN_MS 5000u /* after a master of another cluster */

enum link_state {
    LINK_IDLE,       /* timer runs: connect again */
    LINK_CONNECTING, /* a helper thread resolves and connects */
    LINK_HELLO,      /* timer runs: the answer is late */
    LINK_MOUNTING,   /* the same */
    LINK_MOUNTED,
    LINK_UNMOUNTING,
    LINK_CLOSED,
};

struct slot_news {
    uint32_t slot;
    int32_t code;
    uint64_t generation;
};

struct mc_news { /* first in, first out; grows up to a limit of its user's */
    struct slot_news *items;
    size_t first, count, capacity;
};

struct mc_owner_inventory {         /* what lies in the memory, while the master is being told */
    struct mc_collector *collector; /* a thread of its own still looks; NULL: all is in items */
    struct mc_content *items;
    size_t count, sent;
    uint32_t next, acknowledged; /* frames: number of the next one, how many have their answer */
    bool is_active, is_last_sent;
    uint64_t start_ms;
};

enum closing { OPEN, UNMOUNTED, ENDED }; /* how far mc_owner_end is */

struct mc_owner {
    struct mc_paths *paths;
    struct mc_serve *serve;
    struct mc_id node, host;
    uint64_t incarnation, capacity;
    char *master_address, *data_dir; /* as configured; data_dir may be NULL */
    bool drop_on_close;
    bool has_nodes; /* its memory lies on these */
    struct mc_numa_nodes nodes;
    char name[MC_ADDRESS_MAX];
    char leader[MC_ADDRESS_MAX]; /* whom a standby named; tried once. Empty: none */
    bool is_hinted;              /* the link is to whom a standby named */
    struct mc_id master_node;    /* who answered the last hello; zero = nobody yet */
    struct mc_scrub *scrub;
    struct mc_owner_disk disks[MC_OWNER_DISKS_MAX];
    uint32_t disk_count;
    struct mc_mover *mover;              /* NULL: there are no disks */
    char *off_paths[MC_OWNER_DISKS_MAX]; /* of disks that could not be opened; does not change once the owner runs */
    uint32_t off_count;
    pthread_mutex_t seen_lock; /* disks[].disk, for those who only look at it */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mc_segment_memory *memory;         /* changed on the serve thread under the lock */
    _Atomic(struct mc_segment_memory *) left; /* that is served no more: a forked child closes its descriptors */
    uint32_t disks_left;                      /* of disks: unmounted for good */
    int leave_code;                           /* why they are not */
    uint32_t disks_under_way;                 /* moves and clears of all disks */
    bool has_ended;                           /* nothing is left but to free it */
    bool was_mounted;
    struct mc_owner_flush {       /* before it leaves */
        bool is_known, is_looked; /* it was begun; and the master has looked at all of the memory */
        int code;
        uint64_t left, left_bytes;
        uint64_t linked_ms,
            moved_ms; /* when a master answered last, and when something came to a disk; 0 = it is not asked */
    } flush;
    enum closing closing;
    int refusal; /* the last, 0 = none */
    /* The highest epoch of a master that was met; the highest of one that may have acted, and when such a one
     * sent the last that came from it; the last heartbeat that was answered: by the master of which epoch, and when it
     * was sent. CLOCK_BOOTTIME. */
    uint64_t seen_epoch, acting_epoch, seen_ms, answered_epoch, answered_ms, answered_at_ms;
    bool has_left;                    /* no contact counts for the memory any more */
    struct mc_epoch_proof seen_proof; /* what such a master gave for its epoch */
    struct mc_master_time master_time;
    _Atomic uint64_t led_epoch; /* whose leadership the heartbeat thread has met; written by its thread only */
    _Atomic bool is_mounted;
    _Atomic uint32_t segment;

    /* on the serve thread */
    enum link_state state;
    struct mc_connector *connector; /* while CONNECTING */
    _Atomic int fd;                 /* a forked child closes it */
    struct event *readable, *writable, *timer, *populated_timer, *key_timer;
    uint32_t key_ms; /* the keys of tickets and tags are renewed so often; 0: never */
    bool is_reading, is_writing, is_closing;
    struct mc_buffer in, out;
    size_t out_sent;
    uint32_t backoff_ms;
    unsigned connect_slow;         /* a try to connect may take twice as long, so many times */
    uint64_t request_id, mount_id; /* mount_id: of the MOUNT that has no answer yet, 0 = none */
    uint64_t hello_ms;             /* when the last HELLO was sent, CLOCK_BOOTTIME */
    uint64_t hello_at_ms;          /* how old the master was when it answered that, and 1; 0: it did not say */
    uint64_t master_epoch;         /* of the master at the other end; 0 = no hello yet */
    struct mc_wire_peer agreed;    /* with it: what may be said to it */
    bool held;                     /* the last HELLO said that the memory holds something */
    struct mc_id master_cluster;   /* which one that master is; zero = it did not say */
    struct mc_master_move move;    /* to another cluster's, by memory that holds nothing */
    struct mc_cluster_word {       /* of the heartbeat thread, under the lock */
        uint64_t epoch;
        struct mc_id cluster;
    } cluster_word;
    bool is_past_told; /* the log has it that a master of the past answers */
    uint32_t slot_top; /* as the last full MOUNT said */
    struct mc_owner_inventory inventory;
    struct mc_news lost; /* rotten slots of this memory under this epoch; */
    size_t lost_told;    /* the first so many were told over this connection */
    struct mc_news live;
    size_t live_framed, live_framed_end; /* the first so many items are in `out`, whose frame ends there */
    struct mc_news cut_done;
    uint64_t populated_told, populated_told_ms;
    uint64_t nudged_ms;     /* when the master was last sent a PING behind what may be lost */
    uint64_t mount_sent_ms; /* CLOCK_BOOTTIME, of the last MOUNT */
    _Atomic bool populated_posted;
};

/* link.c; on the serve thread */
void mc_owner_link_start(struct mc_owner *owner);
/* Sends what there is; what is left goes when the socket has room. */
void mc_owner_link_send(struct mc_owner *owner);
/* The link is of no use: another one is made, unless the owner is closing. */
void mc_owner_link_break(struct mc_owner *owner, const char *why);
/* Ends the connection and all that belonged to it. */
void mc_owner_link_close(struct mc_owner *owner);
/* Leaves a master of an earlier epoch, or one that has not answered yet, and looks for the leader of now. */
void mc_owner_link_follow(struct mc_owner *owner);
void mc_owner_on_timer(evutil_socket_t fd, short what, void *argument);
void mc_owner_timer_set(struct event *timer, uint64_t ms);

/* flush.c: what a FLUSHED says. Serve thread. */
void mc_owner_flush_told(struct mc_owner *owner, const struct mc_wire_flushed *told);

/* hints.c: a HINTED. Serve thread. */
void mc_owner_hints_handle(struct mc_owner *owner, uint64_t request_id, struct mc_reader *reader);

/* epoch.c */
/* A frame of that time came from the master of that epoch just now; acts: it may have acted. */
void mc_owner_heard(struct mc_owner *owner, uint64_t epoch, bool acts, uint16_t frame_time);
/* The highest epoch of a master that was met, 0 = none; *age_ms ago it, or one before it that may have acted, has
 * sent the last that came.
 */
uint64_t mc_owner_seen(struct mc_owner *owner, uint32_t *age_ms);
/* The proof of that epoch, to be told with it; zeroed: there is none. */
struct mc_epoch_proof mc_owner_proof(struct mc_owner *owner, uint64_t epoch);
/* The contents are of this epoch now. Serve thread. */
void mc_owner_epoch_set(struct mc_owner *owner, uint64_t epoch);
/* Of the memory's contact with the master of its epoch; UINT32_MAX = never. Serve thread. */
uint32_t mc_owner_contact_age_ms(struct mc_owner *owner);
/* From now on nobody reads here whom no master vouches for, whatever is still heard of one. */
void mc_owner_contact_end(struct mc_owner *owner);

/* What was met in another cluster means nothing here. Serve thread. */
void mc_owner_forget(struct mc_owner *owner);

/* inventory.c; on the serve thread */
/* Begins to find out what lies in the memory, for the master that has just mounted it, and tells it then. 0 or
 * negative.
 */
int mc_owner_inventory_start(struct mc_owner *owner);
/* Makes the next frames, a few at a time, as far as the window and the output buffer allow. */
void mc_owner_inventory_write(struct mc_owner *owner);
/* More can be made. */
bool mc_owner_inventory_is_due(const struct mc_owner *owner);
/* An INVENTORY_ACK. 0; MC_ERR_STALE: the contents are not wanted; MC_ERR_PROTOCOL. */
int mc_owner_inventory_acknowledged(struct mc_owner *owner, struct mc_reader *reader);
void mc_owner_inventory_stop(struct mc_owner *owner);

/* master.c; on the serve thread */
void mc_owner_news_drop(struct mc_news *news, size_t count);
void mc_owner_live_write(struct mc_owner *owner);
void mc_owner_lost_write(struct mc_owner *owner);
/* MOUNT once more, if more is populated than was told. */
void mc_owner_populated_tell(struct mc_owner *owner);
void mc_owner_hello_send(struct mc_owner *owner);
void mc_owner_mount_send(struct mc_owner *owner);
void mc_owner_on_populated_timer(evutil_socket_t fd, short what, void *argument);

/* keys.c */
uint32_t mc_owner_key_ms(void);
void mc_owner_on_key_timer(evutil_socket_t fd, short what, void *argument);
/* On the thread that populates, and on the scrubber's. */
void mc_owner_on_progress(void *context, struct mc_segment_memory *memory, uint64_t populated);
void mc_owner_on_rotten(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation);
void mc_owner_on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation,
                           int code);
void mc_owner_on_flush(void *context);
void mc_owner_on_missed(void *context);
/* 0, or negative: the link is of no use. */
int mc_owner_frame_handle(struct mc_owner *owner, const struct mc_frame *frame);
/* How far mc_owner_end is. */
void mc_owner_closing_note(struct mc_owner *owner, enum closing closing);

#endif
