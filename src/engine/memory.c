/* The memory of an own segment: two sealed memfds, the thread that populates them, and the owner's writes to the index.
 */
#include "engine/memory.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE_BYTES 4096u
#define CAPACITY_MAX (1ull << 46)
#define POPULATE_STEP (16ull << 20)        /* between two calls of progress */
#define POPULATE_BITE (2ull << 20)         /* between two looks at the stop flag */
#define POPULATE_CHECK_EVERY (64ull << 20) /* between two looks at the machine's limits */
#define CGROUP_DEPTH_MAX 64u
#define PATH_BYTES 4096u

struct mc_segment_memory {
    struct mc_id id;
    uint64_t capacity, data_size, index_size, nonce;
    uint32_t slot_count;
    int data_fd, index_fd;
    uint8_t *data;
    struct mc_slot *slots;
    pthread_mutex_t lock; /* serialises writes to the index; guards local_writes */
    struct mc_local_write *local_writes;
    _Atomic uint32_t references;
    _Atomic uint64_t populated; /* at most capacity */
    _Atomic bool stop;
    bool populating; /* thread is to be joined */
    pthread_t thread;
    void (*progress)(void *context, uint64_t populated);
    void *progress_context;
};

/* ---- limits of the machine ---- */

/* The number in a file, or after `label` in it; 0 when there is none ("max"). */
static uint64_t number_read(const char *path, const char *label)
{
    char text[PATH_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *at = text;
    if (label != NULL) {
        size_t label_length = strlen(label);
        while (at != NULL &&
               (strncmp(at, label, label_length) != 0 || (at[label_length] != ' ' && at[label_length] != ':'))) {
            at = strchr(at, '\n');
            at = at == NULL ? NULL : at + 1;
        }
        if (at == NULL)
            return 0;
        at += label_length + 1;
    }
    return strtoull(at, NULL, 10);
}

static uint64_t sub_to_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

struct cgroup_files { /* of one version of the interface */
    const char *limit, *used, *reclaimable;
};
static const struct cgroup_files cgroup_v2 = {"memory.max", "memory.current", "inactive_file"};
static const struct cgroup_files cgroup_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

static uint64_t cgroup_number(const char *directory, const char *name, const char *label)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return number_read(path, label);
}

/* From the group itself up to the mount point; a level that cannot be seen from inside a container is passed over. */
static void cgroup_walk(const char *root, const char *group, const struct cgroup_files *files,
                        struct mc_memory_limits *limits)
{
    char directory[PATH_BYTES];
    int length = snprintf(directory, sizeof(directory), "%s%s", root, strcmp(group, "/") == 0 ? "" : group);
    if (length < 0 || (size_t)length >= sizeof(directory))
        return;
    for (unsigned depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
        uint64_t limit = cgroup_number(directory, files->limit, NULL);
        if (limit > 0 && limit < CAPACITY_MAX) { /* v1 says "none" with a number near 2^63 */
            /* Cache of files that nobody uses makes room when memory is asked for. */
            uint64_t used = sub_to_zero(cgroup_number(directory, files->used, NULL),
                                        cgroup_number(directory, "memory.stat", files->reclaimable));
            if (limits->cgroup_limit == 0 ||
                sub_to_zero(limit, used) < sub_to_zero(limits->cgroup_limit, limits->cgroup_used)) {
                limits->cgroup_limit = limit;
                limits->cgroup_used = used;
            }
        }
        char *slash = strrchr(directory, '/');
        if (strlen(directory) <= strlen(root) || slash == NULL)
            return;
        *slash = 0;
    }
}

/* True when the comma separated list has `memory` in it. */
static bool has_memory_controller(const char *list)
{
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        size_t length = strcspn(at, ",");
        if (length == 6 && strncmp(at, "memory", 6) == 0)
            return true;
    }
    return false;
}

void mc_memory_limits_read_from(const char *membership, const char *mount, const char *meminfo,
                                struct mc_memory_limits *limits)
{
    char line[PATH_BYTES], root[PATH_BYTES];
    *limits = (struct mc_memory_limits){0};
    limits->machine_available = number_read(meminfo, "MemAvailable") << 10;
    FILE *file = fopen(membership, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) { /* "number:controllers:group" */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL || group[1] != '/')
            continue;
        *controllers++ = 0;
        *group++ = 0;
        if (controllers[0] == 0) {
            cgroup_walk(mount, group, &cgroup_v2, limits);
            snprintf(root, sizeof(root), "%.2000s/unified",
                     mount); /* where systems with both versions have the second */
            cgroup_walk(root, group, &cgroup_v2, limits);
        } else if (has_memory_controller(controllers)) {
            snprintf(root, sizeof(root), "%.2000s/memory", mount);
            cgroup_walk(root, group, &cgroup_v1, limits);
        }
    }
    if (file != NULL)
        fclose(file);
}

void mc_memory_limits_read(struct mc_memory_limits *limits)
{
    mc_memory_limits_read_from("/proc/self/cgroup", "/sys/fs/cgroup", "/proc/meminfo", limits);
}

/* What the tightest limit leaves, UINT64_MAX when there is none. */
static uint64_t limits_left(const struct mc_memory_limits *limits, const char **reason)
{
    uint64_t left = UINT64_MAX;
    *reason = NULL;
    if (limits->cgroup_limit > 0) {
        left = sub_to_zero(limits->cgroup_limit, limits->cgroup_used);
        *reason = "the memory limit of this container or service (cgroup)";
    }
    if (limits->machine_available > 0 && limits->machine_available < left) {
        left = limits->machine_available;
        *reason = "the memory that is available on this machine";
    }
    return left;
}

uint64_t mc_memory_capacity(uint64_t wanted, const struct mc_memory_limits *limits, const char **reason)
{
    const char *limited_by;
    uint64_t left = limits_left(limits, &limited_by);
    uint64_t usable = left == UINT64_MAX ? UINT64_MAX : left / 10 * 9;
    *reason = wanted > usable ? limited_by : NULL;
    return (wanted > usable ? usable : wanted) & ~(uint64_t)(PAGE_BYTES - 1);
}

/* ---- making and freeing ---- */

static int memfd_make(const char *name, uint64_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* the kernel is older than that flag */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    /* Born with mode 0777, and the way through /proc to a passed descriptor obeys the mode: other users must stay out.
     */
    if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void *map_private_to_process(int fd, uint64_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (madvise(map, size, MADV_DONTFORK) != 0) {
        munmap(map, size);
        return NULL;
    }
    (void)madvise(map, size, MADV_DONTDUMP); /* a larger core file is the worst that comes of it */
    return map;
}

static int data_make(struct mc_segment_memory *memory)
{
    memory->data_fd = memfd_make("mooncake-data", memory->data_size);
    if (memory->data_fd < 0)
        return -1;
    /* SEAL_SEAL: a peer that holds the descriptor could otherwise add a seal that keeps other peers from mapping it. */
    if (fcntl(memory->data_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return -1;
    memory->data = map_private_to_process(memory->data_fd, memory->data_size);
    return memory->data == NULL ? -1 : 0;
}

static int index_make(struct mc_segment_memory *memory)
{
    char path[64];
    int fd = memfd_make("mooncake-index", memory->index_size);
    if (fd < 0)
        return -1;
    memory->slots = map_private_to_process(fd, memory->index_size);
    if (memory->slots == NULL)
        goto fail;
    /* Our map was made before the seal and goes on writing; nobody can make another such map. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
        if (errno != EINVAL || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
            goto fail;
        mc_log(WARNING, "this kernel has no F_SEAL_FUTURE_WRITE (Linux 5.1): processes of this user could write to the "
                        "segment's index");
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    memory->index_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (memory->index_fd < 0) {
        mc_log(WARNING,
               "cannot reopen the index read-only (is /proc mounted?); it is handed out protected by its seals only");
        memory->index_fd = fd;
        return 0;
    }
    close(fd);
    return 0;
fail:
    close(fd);
    return -1;
}

static void memory_free(struct mc_segment_memory *memory)
{
    if (memory->slots != NULL)
        munmap(memory->slots, memory->index_size);
    if (memory->data != NULL)
        munmap(memory->data, memory->data_size);
    mc_segment_memory_forked(memory);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

int mc_segment_memory_create(uint64_t capacity, struct mc_segment_memory **result)
{
    capacity &= ~(uint64_t)(PAGE_BYTES - 1);
    if (capacity == 0 || capacity > CAPACITY_MAX)
        return MC_ERR_INVALID_PARAMS;
    struct mc_segment_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        return MC_ERR_NO_MEMORY;
    memory->id = mc_random_id();
    memory->nonce = mc_random_u64() | 1; /* never 0, which is what a hello without a nonce says */
    memory->capacity = capacity;
    memory->data_size = (capacity + MC_EXTENT_SLACK + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    memory->slot_count = mc_slot_count(capacity);
    memory->index_size =
        ((uint64_t)memory->slot_count * sizeof(struct mc_slot) + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    memory->data_fd = memory->index_fd = -1;
    pthread_mutex_init(&memory->lock, NULL);
    atomic_init(&memory->references, 1);
    if (data_make(memory) < 0 || index_make(memory) < 0) {
        mc_log(ERROR, "cannot make a segment of %" PRIu64 " bytes: %s", capacity, strerror(errno));
        memory_free(memory);
        return MC_ERR_NO_MEMORY;
    }
    *result = memory;
    return 0;
}

void mc_segment_memory_retain(struct mc_segment_memory *memory)
{
    atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
}

void mc_segment_memory_release(struct mc_segment_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    mc_segment_memory_populate_stop(memory);
    memory_free(memory);
}

void mc_segment_memory_forked(struct mc_segment_memory *memory)
{
    if (memory->data_fd >= 0)
        close(memory->data_fd);
    if (memory->index_fd >= 0)
        close(memory->index_fd);
    memory->data_fd = memory->index_fd = -1;
}

/* ---- populating ---- */

/* Backs [offset, offset + length) of the data by real pages. 0 or an errno value; never a signal. */
static int populate_bite(struct mc_segment_memory *memory, uint64_t offset, uint64_t length)
{
    for (unsigned tries = 0; tries < 1000; tries++) {
        if (madvise(memory->data + offset, length, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return errno;
        /* Before Linux 5.14. Allocates the pages without a fault; the first touch of each is then cheap. */
        if (fallocate(memory->data_fd, 0, (off_t)offset, (off_t)length) == 0)
            return 0;
        if (errno != EINTR)
            return errno;
    }
    return EAGAIN;
}

/* The kernel kills rather than says no when a cgroup's limit is met by a fault, so look before every so many bytes. */
static bool populate_has_room(void)
{
    struct mc_memory_limits limits;
    const char *reason;
    mc_memory_limits_read(&limits);
    return limits_left(&limits, &reason) > 2 * POPULATE_CHECK_EVERY;
}

/* Small at first, so that a fresh segment takes its first objects within milliseconds. */
static uint64_t progress_due(uint64_t done)
{
    return done < POPULATE_STEP ? (done == 0 ? POPULATE_BITE : done * 2) : done + POPULATE_STEP;
}

static void *populate_run(void *argument)
{
    struct mc_segment_memory *memory = argument;
    uint64_t done = 0, due = progress_due(0), start_ns = mc_clock_ns();
    while (done < memory->data_size && !atomic_load_explicit(&memory->stop, memory_order_relaxed)) {
        uint64_t bite = memory->data_size - done < POPULATE_BITE ? memory->data_size - done : POPULATE_BITE;
        bool has_room = done == 0 || done % POPULATE_CHECK_EVERY != 0 || populate_has_room();
        int error = has_room ? populate_bite(memory, done, bite) : ENOMEM;
        if (error != 0) {
            mc_log(ERROR,
                   "populating the segment stopped at %" PRIu64 " of %" PRIu64
                   " bytes: %s; the rest is not offered to the pool",
                   done, memory->capacity, strerror(error));
            return NULL;
        }
        done += bite;
        /* All of it is only said once the slack behind it is there too. */
        uint64_t usable = done == memory->data_size ? memory->capacity : sub_to_zero(done, MC_EXTENT_SLACK);
        if (usable > memory->capacity)
            usable = memory->capacity;
        atomic_store_explicit(&memory->populated, usable & ~(uint64_t)(PAGE_BYTES - 1), memory_order_release);
        if (done >= due || done == memory->data_size) {
            due = progress_due(done);
            if (memory->progress != NULL)
                memory->progress(memory->progress_context, usable);
        }
    }
    if (done == memory->data_size)
        mc_log(DEBUG, "segment of %" PRIu64 " bytes populated in %" PRIu64 " ms", memory->capacity,
               (mc_clock_ns() - start_ns) / 1000000);
    return NULL;
}

int mc_segment_memory_populate(struct mc_segment_memory *memory, void (*progress)(void *context, uint64_t populated),
                               void *context)
{
    mc_assert(!memory->populating);
    memory->progress = progress;
    memory->progress_context = context;
    if (mc_thread_start(&memory->thread, "mc-populate", populate_run, memory) != 0) {
        mc_log(ERROR, "cannot start the thread that populates the segment; it stays empty");
        return MC_ERR_NO_MEMORY;
    }
    memory->populating = true;
    return 0;
}

void mc_segment_memory_populate_stop(struct mc_segment_memory *memory)
{
    if (!memory->populating)
        return;
    mc_assert(!pthread_equal(pthread_self(), memory->thread));
    atomic_store_explicit(&memory->stop, true, memory_order_relaxed);
    pthread_join(memory->thread, NULL);
    memory->populating = false;
}

/* ---- what it is ---- */

struct mc_id mc_segment_memory_id(const struct mc_segment_memory *memory)
{
    return memory->id;
}
uint64_t mc_segment_memory_capacity(const struct mc_segment_memory *memory)
{
    return memory->capacity;
}
uint64_t mc_segment_memory_data_size(const struct mc_segment_memory *memory)
{
    return memory->data_size;
}
uint32_t mc_segment_memory_slot_count(const struct mc_segment_memory *memory)
{
    return memory->slot_count;
}
uint64_t mc_segment_memory_nonce(const struct mc_segment_memory *memory)
{
    return memory->nonce;
}
int mc_segment_memory_data_fd(const struct mc_segment_memory *memory)
{
    return memory->data_fd;
}
int mc_segment_memory_index_fd(const struct mc_segment_memory *memory)
{
    return memory->index_fd;
}
uint8_t *mc_segment_memory_data(const struct mc_segment_memory *memory)
{
    return memory->data;
}
const struct mc_slot *mc_segment_memory_slots(const struct mc_segment_memory *memory)
{
    return memory->slots;
}
uint64_t mc_segment_memory_populated(const struct mc_segment_memory *memory)
{
    return atomic_load_explicit(&memory->populated, memory_order_acquire);
}

/* ---- the index ----
 *
 * Slots are written under the lock and read without one, also by other processes. Why a reader never takes a mixture:
 *
 * A slot is live with generation g at most once: commit demands g > generation, and generation never falls. The life of
 * g is written W1 state = EMPTY    W2 generation = g    W3 fields    W4 state = LIVE every store a release, so whoever
 * sees one of them with an acquire load sees all before it. A clear is W1, and W2 with its own generation.
 *
 * mc_slot_read(g), every load an acquire: R1 generation, R2 state, R3 fields, R4 state, R5 generation; true when R1 and
 * R5 gave g, R2 and R4 LIVE.
 *   - R1 saw W2 of g (or a clear with g, after which g is never live), so R2 sees its W1 or something later. R2 is
 * LIVE, so it saw W4 of g or of a later life: R3 sees the fields of g or later ones.
 *   - Had R3 seen a later life's field (its W3), then R5 would see that life's W2 or later: more than g. R5 gave g, so
 * every field is g's. mc_slot_unchanged(g) after the bytes were copied: R4 state, R5 generation, with the copy before
 * R4.
 *   - R4 cannot see a life before g, because R2 saw g's. If it sees a later life's W4, R5 sees that life's generation.
 * So R4 saw W4 of g: at R4 the EMPTY of the clear was not there yet.
 *   - The extent is given to another writer only after the owner has said CLEARED, which it does after W1; and that
 * writer's bytes come after its grant. Had the copy taken such a byte, R4 would see that W1 or something later. So
 * every byte copied was g's. R4 comes before R5: the other way round, a clear and a new life between the two would pass
 * (generation still g, state LIVE again). */

static uint32_t state_read(const struct mc_slot *slot)
{
    return atomic_load_explicit(&slot->state, memory_order_acquire);
}
static uint64_t generation_read(const struct mc_slot *slot)
{
    return atomic_load_explicit(&slot->generation, memory_order_acquire);
}

/* Called with the lock. W1 and W2. */
static void slot_clear(struct mc_slot *slot, uint64_t generation)
{
    atomic_store_explicit(&slot->state, (uint32_t)MC_SLOT_EMPTY, memory_order_release);
    if (generation > generation_read(slot)) /* a second store of the same would be a second W2 of g */
        atomic_store_explicit(&slot->generation, generation, memory_order_release);
}

static int commit_check(const struct mc_segment_memory *memory, const struct mc_commit *commit)
{
    if (commit->slot >= memory->slot_count || commit->length == 0 || commit->length > memory->data_size ||
        commit->offset > memory->data_size || commit->offset % MC_EXTENT_UNIT != 0 || commit->key_length == 0 ||
        commit->key_length > MC_KEY_LENGTH_MAX || commit->block_shift != mc_block_shift(commit->length))
        return MC_ERR_INVALID_PARAMS;
    if (mc_extent_size(commit->length, commit->key_length) > memory->data_size - commit->offset)
        return MC_ERR_INVALID_PARAMS;
    return 0;
}

int mc_segment_memory_commit(struct mc_segment_memory *memory, const struct mc_commit *commit)
{
    int rc = commit_check(memory, commit);
    if (rc < 0)
        return rc;
    struct mc_slot *slot = &memory->slots[commit->slot];
    pthread_mutex_lock(&memory->lock);
    if (commit->generation <= generation_read(slot)) {
        rc = MC_ERR_STALE;
    } else {
        slot_clear(slot, commit->generation);
        __atomic_store_n(&slot->crc, commit->crc, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->offset, commit->offset, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->length, commit->length, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->hash_low, commit->hash_low, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->hash_high, commit->hash_high, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->key_length, commit->key_length, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->block_shift, commit->block_shift, __ATOMIC_RELEASE);
        atomic_store_explicit(&slot->state, (uint32_t)MC_SLOT_LIVE, memory_order_release);
    }
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

int mc_segment_memory_may_write(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                uint64_t length)
{
    if (slot >= memory->slot_count || offset > memory->data_size || length > memory->data_size - offset)
        return MC_ERR_INVALID_PARAMS;
    return generation > generation_read(&memory->slots[slot]) ? 0 : MC_ERR_STALE;
}

int mc_segment_memory_clear(struct mc_segment_memory *memory, uint32_t number, uint64_t generation)
{
    if (number >= memory->slot_count)
        return MC_ERR_INVALID_PARAMS;
    struct mc_slot *slot = &memory->slots[number];
    pthread_mutex_lock(&memory->lock);
    if (generation_read(slot) <= generation)
        slot_clear(slot, generation);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

int mc_segment_memory_write_begin(struct mc_segment_memory *memory, struct mc_local_write *write, uint32_t slot,
                                  uint64_t generation, uint64_t offset, uint64_t length)
{
    pthread_mutex_lock(&memory->lock);
    /* Under the lock: a clear with this generation is either before, and refuses, or after, and then sees the write. */
    int rc = mc_segment_memory_may_write(memory, slot, generation, offset, length);
    if (rc == 0) {
        *write = (struct mc_local_write){.slot = slot, .generation = generation, .next = memory->local_writes};
        if (write->next != NULL)
            write->next->previous = write;
        memory->local_writes = write;
    }
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

void mc_segment_memory_write_end(struct mc_segment_memory *memory, struct mc_local_write *write)
{
    pthread_mutex_lock(&memory->lock);
    if (write->previous != NULL)
        write->previous->next = write->next;
    else
        memory->local_writes = write->next;
    if (write->next != NULL)
        write->next->previous = write->previous;
    pthread_mutex_unlock(&memory->lock);
}

bool mc_segment_memory_is_written(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    pthread_mutex_lock(&memory->lock);
    const struct mc_local_write *write = memory->local_writes;
    while (write != NULL && (write->slot != slot || write->generation > generation))
        write = write->next;
    pthread_mutex_unlock(&memory->lock);
    return write != NULL;
}

uint32_t mc_segment_memory_live(struct mc_segment_memory *memory)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < memory->slot_count; i++)
        live += state_read(&memory->slots[i]) == MC_SLOT_LIVE;
    return live;
}

bool mc_slot_read(const struct mc_slot *slot, uint64_t generation, struct mc_slot *copy)
{
    if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)
        return false;
    *copy = (struct mc_slot){.crc = __atomic_load_n(&slot->crc, __ATOMIC_ACQUIRE),
                             .offset = __atomic_load_n(&slot->offset, __ATOMIC_ACQUIRE),
                             .length = __atomic_load_n(&slot->length, __ATOMIC_ACQUIRE),
                             .hash_low = __atomic_load_n(&slot->hash_low, __ATOMIC_ACQUIRE),
                             .hash_high = __atomic_load_n(&slot->hash_high, __ATOMIC_ACQUIRE),
                             .key_length = __atomic_load_n(&slot->key_length, __ATOMIC_ACQUIRE),
                             .block_shift = __atomic_load_n(&slot->block_shift, __ATOMIC_ACQUIRE)};
    atomic_init(&copy->generation, generation);
    atomic_init(&copy->state, (uint32_t)MC_SLOT_LIVE);
    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;
}

/* The bytes of extents are not atomics, so their copy is ordered by a fence. ThreadSanitizer knows no fences; it does
 * not see other processes either. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define UNDER_THREAD_SANITIZER 1
#endif

bool mc_slot_unchanged(const struct mc_slot *slot, uint64_t generation)
{
#ifndef UNDER_THREAD_SANITIZER
    atomic_thread_fence(memory_order_acquire);
#endif
    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;
}
