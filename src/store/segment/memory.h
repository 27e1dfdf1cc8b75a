/* The memory of one own segment: data, index and table of writers (file.h), populated in the background, and
 * the owner's operations on its index. Invariants: layout.h, writers.h. Index writes are serialised by a mutex inside.
 * Reference counted; mapped MADV_DONTFORK, descriptors close-on-exec. */
#ifndef MC_SEGMENT_MEMORY_H
#define MC_SEGMENT_MEMORY_H

#include "base/bytes.h"
#include "store/segment/layout.h"
#include "store/wire/wire.h"

struct mc_segment_memory;
struct mc_numa_nodes;

/* What limits the size of a segment; read from the machine by mc_memory_limits_read, given by hand in tests. 0 = no
 * such limit. */
struct mc_memory_limits {
    uint64_t cgroup_limit, cgroup_used; /* bytes; the tightest of this process's cgroup (v2 and v1) */
    uint64_t machine_available;         /* MemAvailable */
};
void mc_memory_limits_read(struct mc_memory_limits *limits);
/* The same from other files: a cgroup membership file, a cgroup mount point, a meminfo file. */
void mc_memory_limits_read_from(const char *membership, const char *mount, const char *meminfo,
                                struct mc_memory_limits *limits);
/* The capacity to use for a wish: rounded down to 4 KiB, at most 90 % of what the tightest limit leaves. *reason:
 * static text of what limited it, or NULL. */
uint64_t mc_memory_capacity(uint64_t wanted, const struct mc_memory_limits *limits, const char **reason);
/* The same for a segment in a data directory (NULL: none): what a dead process left there is room for who takes it up,
 * and its capacity is kept where that is possible, since another one could not be taken up. 0, or
 * MC_ERR_FILE_OPEN_FAIL: this process is out of something, and cannot see what lies there. */
int mc_memory_capacity_in(const char *directory, uint64_t wanted, const struct mc_memory_limits *limits,
                          uint64_t until_ns, uint64_t *capacity, const char **reason);

/* Makes the memory; nothing is populated yet. 0, MC_ERR_INVALID_PARAMS, MC_ERR_NO_MEMORY. */
int mc_segment_memory_create(uint64_t capacity, struct mc_segment_memory **memory);
void mc_segment_memory_retain(struct mc_segment_memory *memory);
void mc_segment_memory_release(struct mc_segment_memory *memory);
/* The same, of a thread that must not wait: what the last one has to do is done beside it (let_go.h). */
void mc_segment_memory_drop(struct mc_segment_memory *memory);
/* Its owner's last word: populating ends, and his reference is dropped; both beside the caller, who does not wait. What
 * its `progress` uses has to be there until mc_let_go_await. */
void mc_segment_memory_retire(struct mc_segment_memory *memory);
/* It takes the place of `before`, which its owner will retire next: there may not be room for both, so populating waits
 * for the end of that, a minute at most; without memory for it, it does not. Once for each of them. */
void mc_segment_memory_follow(struct mc_segment_memory *memory, struct mc_segment_memory *before);
/* Starts the thread that populates (MADV_POPULATE_WRITE in steps of 16 MiB, else touching), with helpers where the
 * segment is large (MC_POPULATE_THREADS); ENOMEM stops it with one log line and the rest is never offered. It begins
 * when what it follows is gone. Stopped and joined by the last release. progress (may be NULL) is called from that
 * thread after each step. */
#define MC_POPULATE_THREADS_MAX 16u
typedef void mc_populate_progress(void *context, struct mc_segment_memory *memory, uint64_t populated);
int mc_segment_memory_populate(struct mc_segment_memory *memory, mc_populate_progress *progress, void *context);

/* Stops that thread; afterwards progress is not called any more. Not from progress itself. */
void mc_segment_memory_populate_stop(struct mc_segment_memory *memory);
/* Nobody uses it any more: gives up maps and descriptors, unless there is another holder, who does it with the last
 * release. A child may be forked until the release. */
void mc_segment_memory_end(struct mc_segment_memory *memory);
/* In a forked child: closes the descriptors, nothing else. The maps do not exist there (MADV_DONTFORK). */
void mc_segment_memory_forked(struct mc_segment_memory *memory);

struct mc_id mc_segment_memory_id(const struct mc_segment_memory *memory); /* random, fresh at create */
uint64_t mc_segment_memory_capacity(const struct mc_segment_memory *memory);
/* Capacity + MC_EXTENT_SLACK, in whole pages. */
uint64_t mc_segment_memory_data_size(const struct mc_segment_memory *memory);
uint64_t mc_segment_memory_populated(const struct mc_segment_memory *memory);
uint32_t mc_segment_memory_slot_count(const struct mc_segment_memory *memory);
/* MC_INDEX_VERSION, as its header says. */
uint32_t mc_segment_memory_layout(const struct mc_segment_memory *memory);
uint64_t mc_segment_memory_nonce(const struct mc_segment_memory *memory);
int mc_segment_memory_data_fd(const struct mc_segment_memory *memory);
int mc_segment_memory_index_fd(const struct mc_segment_memory *memory); /* read-only descriptor to hand out */
int mc_segment_memory_writers_fd(const struct mc_segment_memory *memory);
uint8_t *mc_segment_memory_data(const struct mc_segment_memory *memory);
const struct mc_slot *mc_segment_memory_slots(const struct mc_segment_memory *memory);

/* Makes the slot live. 0; MC_ERR_STALE when the slot has seen that generation or a later one, or it is none that the
 * master can have granted that the segment belongs to; MC_ERR_INVALID_PARAMS
 * when slot, offset or length are outside. */
int mc_segment_memory_commit(struct mc_segment_memory *memory, const struct mc_wire_commit_item *commit);
/* May bytes still be written for this generation to this slot, to [offset, offset + length)? 0, MC_ERR_STALE or
 * MC_ERR_INVALID_PARAMS. */
int mc_segment_memory_may_write(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                uint64_t length);
/* mc_slot_read of a slot of the own index, by any number. Of one that was never used the index has no page, and gets
 * none by being looked at. */
bool mc_segment_memory_slot_read(const struct mc_segment_memory *memory, uint32_t slot, uint64_t generation,
                                 struct mc_slot *copy);
/* Clears the slot if it holds this generation or an older one, and refuses everything up to this generation from now
 * on. */
int mc_segment_memory_clear(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation);
/* Writes beside the live value of that generation what a hint has said of it, MC_HINT_DROP or MC_HINT_PAUSE; 0: nothing
 * any more. Its soft pin ends with that. 0; MC_ERR_REPLICA_IS_GONE; MC_ERR_INVALID_PARAMS: no such slot, or hint. */
int mc_segment_memory_hint(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint8_t hint);
/* A writer in this process (path `local`) frames its copy by these, so that a CUT can wait for it; it has entry 0 of
 * the table of writers. begin: 0, MC_ERR_STALE / MC_ERR_INVALID_PARAMS as may_write, or MC_ERR_RPC_TIMEOUT when more
 * threads copy than the entry has intents (then no end). The commit may come before or after end. */
struct mc_local_write {
    int intent;
};
int mc_segment_memory_write_begin(struct mc_segment_memory *memory, struct mc_local_write *write, uint32_t slot,
                                  uint64_t generation, uint64_t offset, uint64_t length, uint64_t deadline_ns);
void mc_segment_memory_write_end(struct mc_segment_memory *memory, struct mc_local_write *write);
/* May a writer that still lives be storing for that slot and generation or an older one? After a clear with that
 * generation "no" stays "no". */
bool mc_segment_memory_is_written(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation);
/* The same of the threads of this process alone: those that copy, and those that serve data connections. */
bool mc_segment_memory_is_written_here(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation);
/* A peer is going to map the memory: its entry in the table of writers (1 or more), or MC_ERR_BUSY. remove: its
 * connection has ended; the entry stays its own while it holds the lock. */
int mc_segment_memory_writer_add(struct mc_segment_memory *memory, struct mc_id node, uint64_t incarnation);
void mc_segment_memory_writer_remove(struct mc_segment_memory *memory, uint32_t entry);
/* Who the owner is: the writer of entry 0. */
void mc_segment_memory_set_owner(struct mc_segment_memory *memory, struct mc_id node, uint64_t incarnation);
/* How many slots are live (walks; for tests and logs). */
uint32_t mc_segment_memory_live(struct mc_segment_memory *memory);

/* ---- epochs, contents and restarts ---- */

/* Takes up the memory that a dead process of this machine left in data_dir for a segment of that name and capacity, or
 * makes it there; *contents: it holds something. Where that cannot be (no room, not writable, another process at
 * work there until until_ns) it is a memfd, with one log line. But where this process has no descriptors or memory to
 * look at what may be left, it fails, unless may_pass_over: else that would be left unserved for as long as it lives.
 * Dead files of others in data_dir are removed. data_dir NULL or "": as mc_segment_memory_create. */
int mc_segment_memory_open(const char *data_dir, const char *name, uint64_t capacity, uint64_t until_ns,
                           bool may_pass_over, struct mc_segment_memory **memory, bool *contents);
/* The same, on those NUMA nodes (NULL: as the environment says), whoever touches a page first. */
int mc_segment_memory_open_on(const struct mc_numa_nodes *nodes, const char *data_dir, const char *name,
                              uint64_t capacity, uint64_t until_ns, bool may_pass_over,
                              struct mc_segment_memory **memory, bool *contents);
/* Nobody will take it up again: its files lose their names. For memory that a master does not want back, or that was
 * unmounted. */
void mc_segment_memory_discard(struct mc_segment_memory *memory);
/* What lies there is given up: from now on nothing is written or read there over a data connection that is still open.
 * Any thread. */
void mc_segment_memory_give_up(struct mc_segment_memory *memory);
bool mc_segment_memory_is_given_up(const struct mc_segment_memory *memory);
/* One more than the highest slot that was ever live or is being written: MOUNT.slot_top. */
uint32_t mc_segment_memory_slot_top(struct mc_segment_memory *memory);
/* One more than the highest slot that was ever live or cleared: those above have nothing in the index. */
uint32_t mc_segment_memory_slots_used(const struct mc_segment_memory *memory);
/* True for a named file, which outlives the process. */
bool mc_segment_memory_is_named(const struct mc_segment_memory *memory);
/* The highest epoch of a master that took these contents for its own, knowing all that others remember; 0 = never. */
uint64_t mc_segment_memory_epoch(const struct mc_segment_memory *memory);
/* The highest epoch of a master that this memory was mounted under, so not below the epoch; 0 = never. */
uint64_t mc_segment_memory_met(const struct mc_segment_memory *memory);
/* It is mounted under a master of that (higher) epoch: from now on no commit and no write of a generation below epoch
 * << MC_EPOCH_SHIFT is accepted, also not by peers that copy by themselves. */
void mc_segment_memory_meet(struct mc_segment_memory *memory, uint64_t epoch);
/* What was given for the epoch that it has met, for who takes this memory up; of any other epoch it is not kept. */
void mc_segment_memory_keep_proof(struct mc_segment_memory *memory, const struct mc_epoch_proof *proof);
/* Zeroed: there is none. */
struct mc_epoch_proof mc_segment_memory_proof(const struct mc_segment_memory *memory);
/* The same, and the contents are of that epoch. */
void mc_segment_memory_set_epoch(struct mc_segment_memory *memory, uint64_t epoch);
/* The cluster to which the contents belong; zero = that is not known. Set on the thread that sets the epoch. */
struct mc_id mc_segment_memory_cluster(const struct mc_segment_memory *memory);
void mc_segment_memory_set_cluster(struct mc_segment_memory *memory, struct mc_id cluster);
/* CLOCK_BOOTTIME, ms, of the last contact with the master of that epoch; kept across restarts. 0 = never. */
uint64_t mc_segment_memory_contact_ms(const struct mc_segment_memory *memory);
/* See mc_index_contact_within. */
bool mc_segment_memory_contact_within(const struct mc_segment_memory *memory, uint32_t age_ms);
void mc_segment_memory_set_contact_ms(struct mc_segment_memory *memory, uint64_t contact_ms);
/* How old that master was then, as it said; 0 = not known. Set after the epoch and the contact. */
uint64_t mc_segment_memory_contact_at_ms(const struct mc_segment_memory *memory);
void mc_segment_memory_set_contact_at_ms(struct mc_segment_memory *memory, uint64_t at_ms);

struct mc_content { /* one thing that lies in the data */
    uint64_t generation, offset;
    uint64_t length; /* live: of the object; being written: of the whole extent */
    uint64_t group;
    struct mc_id writer; /* of WRITING */
    uint32_t slot;
    uint8_t state;                  /* 1 live, 2 somebody may still be writing there */
    uint8_t flags, replica, pin[3]; /* flags, pin: as in the slot, see pin.h */
    uint16_t key_length;
    const uint8_t *key; /* in the data memory; valid while the slot is not cleared */
};
/* Everything in it by ascending offset; slots whose key does not match its hash, or that lie outside or overlap, are
 * cleared and left out. *contents is malloced. A count, MC_ERR_NO_MEMORY, or
 * MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS soon after *stop (which may be NULL). Any thread: it takes seconds where much
 * lies, and what ends meanwhile is left out. */
int64_t mc_segment_memory_contents(struct mc_segment_memory *memory, const atomic_bool *stop,
                                   struct mc_content **contents);
/* Does the slot still hold what its checksums say? 0, MC_ERR_REPLICA_IS_GONE (no longer that generation) or
 * MC_ERR_CHECKSUM_MISMATCH. Reads about `budget` bytes from *at on (0 = start), whole blocks and at least one, and
 * moves *at; 1 = not finished. */
int mc_segment_memory_verify(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t *at,
                             uint64_t budget);

/* Lock-free look at a slot. True when it is live with this generation; *copy then holds its fields as they were. */
bool mc_slot_read(const struct mc_slot *slot, uint64_t generation, struct mc_slot *copy);
/* After mc_slot_read said true and the bytes were copied: is it still the same? */
bool mc_slot_unchanged(const struct mc_slot *slot, uint64_t generation);

#endif
