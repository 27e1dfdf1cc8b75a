/* One disk: a directory of this process in which objects lie as they lie in a memory segment, found again after any end
 * of the process or the machine. docs/disk.md says how it lies there and what each crash costs.
 *
 * Calls come from any thread; each is answered exactly once, on the disk's own thread, by a function that must not
 * block. A call that returns a negative code was not taken: it has no answer, and what was handed over is the caller's
 * still. Nobody but the disk's thread touches a file once it is open.
 *
 * Invariants: a read gives the bytes of exactly the generation that was asked for, or an error. A removal that was
 * answered never comes back. What is lost is told when the journal has it, before a byte of it is overwritten. */
#ifndef MC_DISK_DISK_H
#define MC_DISK_DISK_H

#include "base/checksum.h"
#include "base/epoch_proof.h"
#include "base/error.h"
#include "store/disk/io.h"
#include "store/segment/layout.h"

#define MC_DISK_PATH_MAX 1024u
#define MC_DISK_ERROR_MAX 512u           /* bytes of the line that says why it cannot be opened */
#define MC_DISK_DIRECTORIES_MAX 256u     /* disks in one path, which may be shared by many nodes */
#define MC_DISK_REGION_BYTES (64u << 20) /* of a disk that is small, and of one with REGIONS_GOOD of the larger ones */
#define MC_DISK_REGION_BYTES_GOOD (256u << 20)
#define MC_DISK_REGIONS_GOOD 64u
#define MC_DISK_REGION_BYTES_MIN (1u << 20)
#define MC_DISK_REGION_BYTES_MAX (1u << 30)
#define MC_DISK_VOLUME_REGIONS 256u /* regions of one file, which grows by regions */
#define MC_DISK_REGIONS_MIN 4u
#define MC_DISK_REGIONS_MAX (1u << 20)
#define MC_DISK_OBJECTS_MAX (16u << 20)
#define MC_DISK_OBJECT_BYTES (16u << 10) /* one object for so many bytes of capacity, unless it is said otherwise */
#define MC_DISK_TASKS_MAX 4096u          /* calls that are not answered yet; more are MC_ERR_BUSY */
#define MC_DISK_BUFFER_BYTES (256ull << 20)
#define MC_DISK_LINGER_MS 2u
#define MC_DISK_SLOW_MS 1000u
#define MC_DISK_LOST_MAX 256u /* places in one call of `lost` */

struct mc_disk;

/* What is stored, as a slot of a segment has it (store/segment/layout.h). */
struct mc_disk_entry {
    uint64_t generation; /* of this placement; not 0 */
    uint64_t version;    /* of the value, for masters; any */
    uint64_t group;
    struct mc_hash hash; /* of the key */
    uint32_t length;     /* bytes, not 0: no region is larger */
    uint32_t crc;        /* of the only block, or of the block table */
    uint16_t key_length;
    uint8_t block_shift;   /* mc_block_shift(length) */
    uint8_t flags, pin[3]; /* as in a slot, but for the clock: store/segment/pin.h */
};
struct mc_disk_place {
    uint32_t slot;
    uint64_t generation;
};
/* What the directory keeps for its owner: who may write, and when there was last word from a master. */
struct mc_disk_mark {
    uint64_t epoch, floor; /* a store of a generation below the floor is MC_ERR_STALE */
    struct mc_id cluster;  /* zero: not known */
    struct mc_id contact_boot;
    uint64_t contact_boot_ms, contact_wall_ms;
    uint64_t contact_at_ms;      /* how old that master was then, as it said; 0: not known */
    struct mc_epoch_proof proof; /* that its master gave for the epoch; zeroed: none */
};

enum mc_disk_policy {
    MC_DISK_FIFO, /* what is oldest goes */
    MC_DISK_LRU,  /* what was read since it was written is written once more instead */
    MC_DISK_KEEP  /* nothing goes: when it is full nothing is stored until something was removed */
};
enum mc_disk_health {
    MC_DISK_RECOVERING,
    MC_DISK_WELL,
    MC_DISK_SLOW,      /* an operation has lasted longer than slow_ms: stores and reads are refused until it ends */
    MC_DISK_READ_ONLY, /* regions that failed, or the journal: nothing is stored any more */
    MC_DISK_CLOSED
};

struct mc_disk_config {
    const char *path;      /* of a directory; absolute, no "..", no link. Several processes may share it */
    uint64_t capacity;     /* bytes of all volumes; at least MC_DISK_REGIONS_MIN regions */
    uint64_t region_bytes; /* of a new one: a power of two; 0: by the capacity */
    uint32_t objects_max;  /* live at a time; 0: one for MC_DISK_OBJECT_BYTES of capacity */
    uint64_t buffer_bytes; /* that it lends: at least two regions; 0: MC_DISK_BUFFER_BYTES, or that if it is more */
    uint64_t budget_bytes; /* of extents that are written within 24 hours of its being open, also once more; beyond it
                              only what was hit before is stored. 0: any */
    uint32_t linger_ms;    /* a store waits at most so long for others; 0: MC_DISK_LINGER_MS */
    uint32_t slow_ms;      /* 0: MC_DISK_SLOW_MS */
    enum mc_disk_policy policy;
    struct mc_id cluster;              /* takes no directory of another one; zero: any */
    bool is_buffered;                  /* no O_DIRECT even where it works */
    const struct mc_disk_ports *ports; /* &mc_disk_ports_system but in tests */
    enum mc_disk_io_kind io_kind;
    uint64_t (*clock_ns)(void); /* NULL: mc_clock_ns */
    bool has_no_thread;         /* mc_disk_turn is called instead: tests and simulators */
    /* On the disk's thread. */
    void *context;
    void (*ready)(void *context, int code, uint32_t objects); /* recovered; before it every call is refused */
    void (*lost)(void *context, const struct mc_disk_place *places, size_t count);
};

/* Takes a directory, or makes one, and begins to recover it. 0; MC_ERR_INVALID_PARAMS, MC_ERR_FILE_OPEN_FAIL,
 * MC_ERR_NO_MEMORY with one line in error. */
int mc_disk_open(const struct mc_disk_config *config, struct mc_disk **disk, char *error, size_t error_size);
/* Bytes that the disks in that path have taken of its file system; without those that somebody has open. */
uint64_t mc_disk_bytes_there(const char *path);
/* Ends what was begun, for at most grace_ms; what is not answered by then is MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS. All
 * calls are answered when it returns; lent buffers have been given back before. Operations of the kernel that do not
 * end keep a thread, their buffers and the lock of the directory until they do. */
void mc_disk_close(struct mc_disk *disk, uint32_t grace_ms);
/* Begins that, so that several end at the same time; the close that must follow waits for no longer than this says. */
void mc_disk_stop(struct mc_disk *disk, uint32_t grace_ms);
/* Of one without a thread: what there is to do, and waits for at most so long for more. */
void mc_disk_turn(struct mc_disk *disk, int timeout_ms);

/* In a forked child: gives back the descriptors, with the queue of operations, and nothing else; the lock of the
 * directory stays its parent's alone. */
void mc_disk_forked(struct mc_disk *disk);

/* Slots are below it, from the end of the recovery on: perhaps more than there may be objects, as one that could take
 * more has given them out. */
uint32_t mc_disk_slot_count(const struct mc_disk *disk);
struct mc_id mc_disk_id(const struct mc_disk *disk); /* random, drawn when the directory was made */
const char *mc_disk_directory(const struct mc_disk *disk);
/* As it was opened, or by the last mark that was kept. */
struct mc_disk_mark mc_disk_marked(const struct mc_disk *disk);
/* Bytes of the largest object with that key. */
uint64_t mc_disk_object_max(const struct mc_disk *disk, uint32_t key_length);

/* A buffer for an extent of that object, aligned to MC_DISK_IO_ALIGNMENT; NULL: none is free. */
uint8_t *mc_disk_lend(struct mc_disk *disk, uint64_t length, uint32_t key_length);
void mc_disk_give_back(struct mc_disk *disk, uint8_t *buffer);

/* The extent lies in a lent buffer as in a segment: data, block table, key; it is the disk's from then on. The slot is
 * the caller's choice, and must be free; it is kept with the object. was_hit: the object was read before. Answered when
 * it is written (not synced: a power failure may take it): 0; MC_ERR_BUSY, MC_ERR_NO_AVAILABLE_HANDLE (the slot is
 * taken, or there is no region), MC_ERR_FILE_WRITE_FAIL. At once: these,
 * MC_ERR_INVALID_PARAMS, MC_ERR_STALE, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS (also: the day's budget is spent). */
typedef void mc_disk_stored(void *context, int code, uint32_t slot);
int mc_disk_store(struct mc_disk *disk, uint32_t slot, const struct mc_disk_entry *entry, uint8_t *buffer, bool was_hit,
                  mc_disk_stored *done, void *context);
/* The whole extent, verified. Answered by until_ns at the latest: 0 and a buffer, which is given back afterwards;
 * *entry is there for the call only. MC_ERR_REPLICA_IS_GONE; MC_ERR_RPC_TIMEOUT; MC_ERR_BUSY; MC_ERR_CHECKSUM_MISMATCH
 * or MC_ERR_FILE_READ_FAIL: it is dropped, and will be told as lost. */
typedef void mc_disk_was_read(void *context, int code, const struct mc_disk_entry *entry, uint8_t *buffer);
int mc_disk_read(struct mc_disk *disk, struct mc_disk_place place, uint64_t until_ns, mc_disk_was_read *done,
                 void *context);
/* The places stay the caller's and there until the answer. What is not there is no error. is_removal: answered when the
 * journal is on the disk. Else at once, and what was cleared may come back after a crash. 0; MC_ERR_FILE_WRITE_FAIL: it
 * is out of use, but may come back. */
typedef void mc_disk_done(void *context, int code);
int mc_disk_clear(struct mc_disk *disk, const struct mc_disk_place *places, size_t count, bool is_removal,
                  mc_disk_done *done, void *context);
/* Answered when it is on the disk: 0, MC_ERR_FILE_WRITE_FAIL. */
int mc_disk_set_mark(struct mc_disk *disk, const struct mc_disk_mark *mark, mc_disk_done *done, void *context);
/* The live objects of one region after the other, older regions first, since what moves goes to the youngest: `each`
 * for every object, then `done` with the cursor to go on with. Begin with 0; MC_DISK_CURSOR_END: that was all. One at a
 * time, else MC_ERR_BUSY. An object that moves meanwhile may come twice, and one that is stored or cleared meanwhile
 * may come or not. */
#define MC_DISK_CURSOR_END UINT64_MAX
struct mc_disk_content {
    uint32_t slot;
    struct mc_disk_entry entry;
    const uint8_t *key; /* for the call only */
};
typedef void mc_disk_each(void *context, const struct mc_disk_content *content);
typedef void mc_disk_listed(void *context, int code, uint64_t cursor);
int mc_disk_inventory(struct mc_disk *disk, uint64_t cursor, mc_disk_each *each, mc_disk_listed *done, void *context);

struct mc_disk_statistics {
    enum mc_disk_health health;
    uint32_t objects, objects_max, regions, regions_max, regions_free, regions_retired;
    uint64_t live_bytes;                                      /* on the disk, of live objects */
    uint64_t bytes_read, bytes_written, reads, writes, syncs; /* of files, all kinds */
    uint64_t bytes_stored;    /* of extents that callers stored: bytes_written / bytes_stored is the amplification */
    uint64_t bytes_rewritten; /* of extents that were written once more */
    uint64_t bytes_served;    /* of extents that callers were given */
    uint64_t stored, served, cleared, lost, rotten, timed_out, refused; /* refused: calls, at once */
    uint64_t not_stored[MC_STORE_DISK_REASON_COUNT];                    /* stores, at once or later */
    struct mc_store_disk_latency store_latency, read_latency;
    uint64_t read_errors, write_errors;
    uint64_t oldest_age_ms; /* of the region that was reused last: since its first byte was written */
    uint32_t waiting;       /* calls that are not answered */
    uint32_t under_way;     /* operations of files */
    uint64_t oldest_ns;     /* for how long the oldest of them has lasted */
    uint64_t recovery_ns;
    uint64_t journal_bytes;
    uint64_t buffer_bytes_lent;
    uint64_t capacity, free_bytes; /* bytes; free: of regions in which nothing lies */
};
/* As the disk's thread last said, a second ago at most unless that thread is stuck; but the ages are of now. No call
 * ever waits for whoever reads them. */
void mc_disk_statistics_read(struct mc_disk *disk, struct mc_disk_statistics *statistics);

#endif
