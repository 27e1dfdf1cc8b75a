/* The disks of an owner: segments that its process alone reads and writes. The master says what is to be stored there
 * and what is to be loaded from there (STORE, LOAD); a thread of their own, the mover, copies between the memory
 * segment and the buffers of the disk, so that neither the serve thread nor the disk's own thread copies anything.
 *
 * Who may touch what: a struct mc_owner_disk is the serve thread's, but for what is under the owner's lock (`mark`,
 * `told_segment`). A move is with one of serve thread, mover and disk at a time, and comes back to the serve thread by
 * a post.
 *
 * Why nothing comes back that was removed: a CLEAR of what is still being stored is answered after that has ended and
 * been cleared; a disk is mounted at another master only when everything that the one before it has told has ended
 * (docs/ordering.md, D1 and D3). */
#ifndef MC_OWNER_DISK_H
#define MC_OWNER_DISK_H

#include "store/disk/disk.h"
#include "store/owner/owner.h"
#include "store/segment/memory.h"
#include "store/wire/wire.h"

#include <pthread.h>
#include <stdatomic.h>

struct mc_mover;

#define MC_LOAD_MS                                                                                                     \
    5000u /* so long what a reader waits for may wait in turn; a disk that does not answer is slow sooner */
#define MC_DISK_GRACE_MS 5000u /* at the close, for what was begun */
#define MC_DISK_MARK_MS 1000u  /* between two contacts that are written down */
#define MC_DISK_GIVE_UP_MAX                                                                                            \
    3u /* so often the identity is tried, with each heartbeat, before the disk leaves as it is */

enum mc_owner_disk_state {
    MC_OWNER_DISK_RECOVERING, /* it reads its files, or is being made anew */
    MC_OWNER_DISK_IDLE,       /* waits for the link, and for moves to end */
    MC_OWNER_DISK_MOUNTING,
    MC_OWNER_DISK_MOUNTED,
    MC_OWNER_DISK_LEAVING, /* it is to be unmounted, and what lies there to stay: when nothing is under way any more */
    MC_OWNER_DISK_OFF,     /* it cannot be used: said in the log */
};

struct clearing;
struct mc_disk_chunk;
struct mc_owner_disk_inventory {
    bool is_active, is_asked, is_last_sent;
    uint64_t cursor;             /* MC_DISK_CURSOR_END: the last chunk has come */
    struct mc_disk_chunk *chunk; /* what is being told; NULL: none */
    size_t sent;                 /* items of it */
    uint32_t next, acknowledged; /* frames */
    uint64_t *told; /* a bit for each slot that was told: an entry that moves meanwhile may be listed twice */
    uint64_t count, start_ms;
};

struct mc_owner_disk {
    struct mc_owner *owner;
    struct mc_disk *disk;
    char *path;
    uint64_t capacity;
    uint32_t number; /* of the owner's disks */
    enum mc_owner_disk_state state;
    uint32_t segment, slot_count;
    uint64_t segment_epoch; /* of the master whose number that is */
    uint64_t mount_id;      /* of the MOUNT, or UNMOUNT, that has no answer yet */
    uint64_t session;       /* counts mounts: what belongs to an earlier one is not told */
    uint32_t under_way;     /* moves and clears that have not come back */
    int refused;            /* by the master, and said */
    bool wants_to_leave;    /* as soon as it can; then it is LEAVING */
    bool has_left;
    bool is_emptying;  /* what lies there is being cleared, since no master wants it */
    bool cannot_clear; /* the journal does not have what was to be cleared: the next process finds it; */
    bool gives_up, is_giving_up, is_given_up; /* so nothing of it is to be anybody's: the identity has that */
    int give_up_code;                         /* of the disk's thread, which posts it */
    unsigned give_up_failures;                /* in a row: after so many it leaves as it is */
    bool has_contents;                        /* it was mounted, or something lies there */
    struct mc_move *stores;                   /* under way, for CLEARs */
    struct clearing *waiting;                 /* CLEARs that the disk was too busy for */
    struct mc_disk_mark mark, kept;           /* under the lock; kept: what was handed to the disk last */
    uint64_t kept_ms;
    uint64_t busy_until_ns; /* the mover's */
    uint32_t told_segment;  /* under the lock: its number for heartbeats, 0: none; */
    bool wants_beat;        /* and its listing waits for one */
    struct mc_owner_disk_inventory inventory;
};

/* Opens one more disk of an owner that does not run yet. 0; MC_ERR_INVALID_PARAMS, MC_ERR_FILE_OPEN_FAIL,
 * MC_ERR_NO_MEMORY: said in the log, the owner goes on without it. */
int mc_owner_disk_add(struct mc_owner *owner, const struct mc_owner_disk_config *config);
/* Ends what is under way and closes all of them. Any thread but serve thread and the disks'; the serve thread still
 * turns. */
void mc_owner_disks_close(struct mc_owner *owner);
void mc_owner_disks_free(struct mc_owner *owner);
void mc_owner_disks_forked(struct mc_owner *owner);

/* ---- on the serve thread ---- */

/* Mounts what can be mounted now. */
void mc_owner_disks_mount(struct mc_owner *owner);
/* The connection is no more. */
void mc_owner_disks_unlink(struct mc_owner *owner);
/* The disk of that number at the master, or of the MOUNT of that id; NULL. */
struct mc_owner_disk *mc_owner_disk_find(struct mc_owner *owner, uint32_t segment);
struct mc_owner_disk *mc_owner_disk_asked(struct mc_owner *owner, uint64_t mount_id);
/* 0, or negative: the link is of no use. */
int mc_owner_disk_mounted(struct mc_owner_disk *disk, const struct mc_wire_mount_reply *reply);
/* The answer to the UNMOUNT of a disk that is leaving; false: it is not. */
bool mc_owner_disk_unmounted(struct mc_owner *owner, uint64_t unmount_id);
/* An INVENTORY_ACK for it. 0 or MC_ERR_PROTOCOL. */
int mc_owner_disk_acknowledged(struct mc_owner_disk *disk, const struct mc_wire_inventory_ack *ack);
void mc_owner_disk_offered(struct mc_owner_disk *disk);
void mc_owner_disk_clear(struct mc_owner_disk *disk, struct mc_reader *reader);
void mc_owner_disk_store(struct mc_owner_disk *disk, struct mc_reader *reader);
void mc_owner_disks_load(struct mc_owner *owner, struct mc_reader *reader);
/* Of one whose journal is broken: nothing of what lies there is anybody's any more; or it leaves, if that cannot be
 * written down either. */
void mc_owner_disk_give_up(struct mc_owner_disk *disk);
/* It leaves alone, and what lies there stays. */
void mc_owner_disk_put_out(struct mc_owner_disk *disk);
/* Frames of inventories, as far as window and output buffer allow. */
void mc_owner_disks_write(struct mc_owner *owner);

/* Clears them; the master hears of it, if it has told us to and hears us still. */
void mc_owner_disk_clear_places(struct mc_owner_disk *disk, const struct mc_disk_place *places, size_t count);
/* Nothing lies there any more, and nothing is left of what masters have said of it. */
void mc_owner_disk_emptied(struct mc_owner_disk *disk);

/* ---- disk_inventory.c ---- */
/* What it could not do now is tried again with the next heartbeat, if not before. */
void mc_owner_disk_want_beat(struct mc_owner_disk *disk);
/* Clears all that lies there, and says mc_owner_disk_emptied at the end. */
void mc_owner_disk_empty(struct mc_owner_disk *disk);
/* Goes on with it, if the disk was too busy, or when what it has waited for has ended. */
void mc_owner_disk_empty_again(struct mc_owner_disk *disk);
int mc_owner_disk_inventory_start(struct mc_owner_disk *disk);
void mc_owner_disk_inventory_stop(struct mc_owner_disk *disk);
int mc_owner_disk_inventory_acknowledged(struct mc_owner_disk *disk, const struct mc_wire_inventory_ack *ack);
void mc_owner_disk_inventory_write(struct mc_owner_disk *disk);

/* ---- disk_seen.c ---- */
/* This one cannot be opened. */
void mc_owner_disk_off(struct mc_owner *owner, const char *path);
/* This one was not: its file system does not answer. */
void mc_owner_disk_pass_over(struct mc_owner *owner, const char *path);
/* Nobody looks at it any more; what it was. */
struct mc_disk *mc_owner_disk_unseen(struct mc_owner_disk *disk);
void mc_owner_disks_unseen_free(struct mc_owner *owner);

/* The master, which is of that cluster (zero: it does not say), refuses the node for what it holds: says which
 * directories are why. */
void mc_owner_disks_foreign(struct mc_owner *owner, struct mc_id cluster);
/* Lock held. Something lies on a disk: of which cluster? */
bool mc_owner_disks_hold(struct mc_owner *owner, struct mc_id *cluster);
/* The master of that epoch did not know it when they were mounted: contents that do not say whose they are say it
 * now. */
void mc_owner_disks_cluster_told(struct mc_owner *owner, uint64_t epoch, struct mc_id cluster);

/* ---- the mover (disk_move.c) ---- */

enum mc_move_kind { MC_MOVE_STORE, MC_MOVE_LOAD };
struct mc_move {
    enum mc_move_kind kind;
    struct mc_owner_disk *disk;
    struct mc_disk *files;            /* which lent the buffer; open for as long as mover or disk have the move */
    struct mc_segment_memory *memory; /* held */
    struct mc_move *next;             /* in the mover's queue */
    struct mc_move *next_store;       /* of those that are being stored on that disk */
    uint64_t session;                 /* of the disk when it was told */
    /* STORE: from memory to the slot of the disk. LOAD: the other way round. */
    uint32_t memory_slot, disk_slot;
    uint64_t memory_generation, disk_generation, version, offset;
    uint8_t replica;
    bool was_hit;     /* STORE: the value was read since it was put */
    bool is_unpinned; /* LOAD: its soft pin has ended */
    struct mc_disk_entry entry;
    uint8_t *buffer; /* lent by the disk */
    int code;
    atomic_bool is_cleared; /* the master has told so meanwhile: it is cleared when it has ended, and then answered */
};
/* It is what the master says. */
void mc_owner_move_load(struct mc_move *move, const struct mc_wire_load_item *item);
/* 0 or MC_ERR_NO_MEMORY. */
int mc_mover_start(struct mc_owner *owner, struct mc_mover **mover);
void mc_mover_stop(struct mc_mover *mover);
void mc_mover_free(struct mc_mover *mover);
/* The move is the mover's from now on; `mc_owner_move_ended` is called on the serve thread at its end, which comes at
 * once if the mover has stopped. */
void mc_mover_add(struct mc_mover *mover, struct mc_move *move);
void mc_owner_move_ended(struct mc_move *move);
/* On the serve thread: if memory did not match its checksum it is looked at, and what is rotten there is told as lost.
 * Else the master would tell us to store it again, for ever. */
void mc_owner_move_check(const struct mc_move *move);

#endif
