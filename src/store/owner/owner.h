/* The owner's link to the master: mounts this node's segment, makes commits LIVE, clears and cuts on the master's word.
 * Runs on the serve thread (store/segment/serve.h). Contract between store.c and owner.c; functions may be called from
 * any thread. */
#ifndef MC_OWNER_OWNER_H
#define MC_OWNER_OWNER_H

#include "store/disk/disk.h"
#include "store/path/paths.h"

struct mc_owner;

#define MC_OWNER_DISKS_MAX 8u
struct mc_owner_disk_config {
    const char *path;      /* of a directory that may be shared with other processes; see store/disk/disk.h */
    bool is_silent;        /* its file system does not answer: it is not touched, and the node goes on without it */
    uint64_t capacity;     /* bytes */
    uint32_t objects_max;  /* 0: by the capacity */
    uint64_t budget_bytes; /* a day, as in store/disk/disk.h; 0: any */
    enum mc_disk_policy policy;
    enum mc_disk_io_kind io_kind;
};

/* Unless the environment says MC_STORE_CLIENT_MIN_PORT or MC_STORE_CLIENT_MAX_PORT. */
#define MC_OWNER_PORT_FIRST 12300u
#define MC_OWNER_PORT_LAST 14300u

struct mc_owner_config {
    struct mc_paths *paths;     /* borrowed; outlives the owner */
    struct mc_rdma *rdma;       /* the same; NULL: none */
    const char *master_address; /* as mc_connector_start takes it */
    struct mc_id master_node;   /* of the one that the heartbeat thread has met: tried over its unix socket first */
    struct mc_id node;
    uint64_t incarnation;
    const char *advertise_host; /* others reach us here; the segment's name is advertise_host:port */
    uint16_t port;              /* 0: one of MC_OWNER_PORT_*; one that is taken: the same, with one log line */
    bool unix_allowed;
    uint64_t capacity;                  /* bytes, already limited */
    const struct mc_numa_nodes *nodes;  /* on which its memory lies; NULL: as the environment says */
    const char *data_dir;               /* memory that outlives the process lies there; NULL or "" = none does */
    uint64_t data_dir_until_ns;         /* so long another process that is at work there is waited for (mc_clock_ns) */
    _Atomic(struct mc_owner *) *coming; /* NULL, or where it stands as soon as it has descriptors. One that fails then
                                           has ended and stays there: it is the caller's to free */
    const struct mc_owner_disk_config *disks;
    uint32_t disk_count;
    bool drop_on_close; /* with data_dir: close unmounts and drops the contents, as without */
};

/* Makes memory and listeners, starts serving, populating and connecting. 0, MC_ERR_NO_MEMORY, MC_ERR_RPC_FAIL (cannot
 * listen). */
int mc_owner_create(const struct mc_owner_config *config, struct mc_owner **owner);
/* Waits for the first successful mount. 0, the master's refusal, or MC_ERR_RPC_TIMEOUT. */
int mc_owner_first_mount(struct mc_owner *owner, uint64_t deadline_ns);
uint16_t mc_owner_port(const struct mc_owner *owner);
uint64_t mc_owner_capacity(const struct mc_owner *owner);
uint64_t mc_owner_populated(const struct mc_owner *owner);
/* Number of the segment at the master; false while it is not mounted. */
bool mc_owner_segment(const struct mc_owner *owner, uint32_t *segment);
/* The master does not know the segment (its word to a heartbeat): mount again. */
void mc_owner_remount(struct mc_owner *owner);
/* The heartbeat thread has met the master of that epoch: the owner leaves an earlier one, which may be stopped or cut
 * off and then breaks no link. Heartbeat thread's thread only. */
void mc_owner_follow(struct mc_owner *owner, uint64_t epoch);
/* The master of that epoch has answered a heartbeat at answered_ms (mc_clock_boot_ms), not before, and holds our
 * segment: from then on it counts our silence. 0: it has answered, but holds nothing of ours, or has acted on our
 * absence: that is no contact. at_ms: its own age then, or before, as it said (0: it did not). */
void mc_owner_contact(struct mc_owner *owner, uint64_t epoch, bool acts, uint64_t answered_ms, uint64_t at_ms,
                      uint16_t frame_time);
/* The master of that epoch gave that for its epoch, to be shown to masters after it; empty: nothing. */
void mc_owner_proof_told(struct mc_owner *owner, uint64_t epoch, struct mc_span proof);
/* It said its age, asked at that time (mc_clock_boot_ms). Before what came with it is heard. Returns when it answered,
 * at the earliest. */
uint64_t mc_owner_age_told(struct mc_owner *owner, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms);
/* That master says which cluster it is (zero: it does not): the memory that is mounted there belongs to it from now on.
 * Heartbeat thread's thread only. */
void mc_owner_cluster_told(struct mc_owner *owner, uint64_t epoch, struct mc_id cluster);
/* Its disks at the master, for a heartbeat; how many. *off: how many cannot be used. Disks that are not mounted try
 * again. Heartbeat thread's thread only, like the next two. */
struct mc_told_disk {
    uint32_t segment;
    uint8_t health;  /* enum mc_told_health */
    bool is_leaving; /* nothing new is stored there */
};
uint32_t mc_owner_disks_told(struct mc_owner *owner, struct mc_told_disk told[MC_OWNER_DISKS_MAX], uint8_t *off);
/* The master of that epoch has answered that heartbeat at answered_ms, at its age of at_ms, and the disk has nothing
 * left to confirm. */
void mc_owner_disk_contact(struct mc_owner *owner, uint32_t segment, uint64_t epoch, uint64_t answered_ms,
                           uint64_t at_ms);
/* The master does not know it (any more). */
void mc_owner_disk_remount(struct mc_owner *owner, uint32_t segment);
/* Does its memory, or a disk, hold anything? And to which cluster does that belong (zero: it is not known). */
bool mc_owner_holds(struct mc_owner *owner, struct mc_id *cluster);
/* What the scrubber has read and found rotten so far. */
void mc_owner_scrubbed(const struct mc_owner *owner, uint64_t *bytes, uint64_t *rotten);
/* How often a peer had not the tag of what it asked for (store/wire/tag.h). */
uint64_t mc_owner_tags_refused(const struct mc_owner *owner);
/* How its disks are: fills up to `capacity`, returns how many there are. Any thread; takes no lock that anybody holds
 * for long, or that whoever moves bytes takes. */
int mc_owner_disks_seen(struct mc_owner *owner, struct mc_store_disk *disks, size_t capacity);
/* Its disks leave the cluster: what lies there stays, for who opens them next. What is under way there has grace_ms to
 * end, at least some seconds. 0; MC_ERR_RPC_TIMEOUT: something does not end, or there was no master for some
 * seconds, and it goes on by itself; MC_ERR_NOT_SUPPORTED: the master is of an older release. */
int mc_owner_disks_leave(struct mc_owner *owner, uint64_t grace_ms);
/* It has disks, mounted or not, that have not left. */
bool mc_owner_has_disks(struct mc_owner *owner);
/* What lies in memory stays when it ends, in the files of its data directory. */
bool mc_owner_keeps_memory(struct mc_owner *owner);
/* It is going to leave: has what lies in its memory only stored on its disks, by whoever is master, and says how far
 * that is. To be called again and again until it is over. */
struct mc_owner_flushed {
    bool is_over;
    bool is_known; /* the master has looked: the rest says something */
    int code; /* why it is over although something is left. UNAVAILABLE_IN_CURRENT_MODE, NOT_SUPPORTED: the master does
                      not do that. RPC_FAIL: there is none. FILE_WRITE_FAIL: nothing more comes to a disk */
    uint64_t left, left_bytes; /* values that are on no disk */
};
void mc_owner_flush(struct mc_owner *owner, struct mc_owner_flushed *flushed);
/* Unmounts (waits at most 500 ms for the answer), stops serving, gives the memory back. Memory in a data_dir is left as
 * it is, and the master is not told, so that the next process takes it up where it was; unless drop_on_close. A child
 * may be forked until it is freed. */
void mc_owner_end(struct mc_owner *owner);
void mc_owner_free(struct mc_owner *owner);
/* Both. */
void mc_owner_close(struct mc_owner *owner);
void mc_owner_forked(struct mc_owner *owner);

#endif
