/* The initiator's half of the path within one machine: proving that the peer is the process that it seems, and copying
 * to and from its memory. */
#include "transfer/state/host_wire.h"
#include "transfer/peer/check.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/peer.h"
#include "transfer/state/engine.h"
#include "transfer/state/host_table.h"
#include "transfer/wire/preface.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/crew.h"
#include "env/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define HELLO_MS 1000u
#define RETRY_MS 30000u
#define COPY_BYTES ((uint64_t)4 << 20) /* of one system call: between two looks at the clock and the region */
#define COPY_PARTS 256u
#define SUM_BYTES ((size_t)16 << 10) /* of another process, on the stack */
#define COPY_ROUNDS 4u               /* of so many calls, where several threads make them */
#define COPY_SHARED_PARTS 8u         /* no helper is asked for smaller ones */

/* ---- opening ---- */

static void path_free(struct mc_host_path *path)
{
    mc_host_maps_free(path);
    if (path->table != NULL)
        (void)munmap((void *)(uintptr_t)path->table, sizeof(*path->table));
    if (path->intents != NULL)
        (void)munmap(path->intents, sizeof(*path->intents));
    /* Last: the end of file says that no copy can begin any more. */
    if (path->fd >= 0)
        mc_transfer_close_fd(path->fd);
    free(path->view.known);
    pthread_mutex_destroy(&path->lock);
    free(path);
}

/* Ends when there is nothing to be freed. */
static void *unmap_main(void *argument)
{
    struct mc_transfer_engine *engine = argument;
    pthread_mutex_lock(&engine->ended_lock);
    while (engine->ended_paths != NULL) {
        struct mc_host_path *path = engine->ended_paths;
        engine->ended_paths = path->next;
        pthread_mutex_unlock(&engine->ended_lock);
        path_free(path);
        pthread_mutex_lock(&engine->ended_lock);
    }
    engine->is_unmapping = false;
    pthread_mutex_unlock(&engine->ended_lock);
    return NULL;
}

/* Of a peer that has ended the kernel gives back what was mapped, which takes long where it is much, and who lets go of
 * the path may hold the locks of the peer and of the engine: so a thread does it. */
static void path_end(struct mc_host_path *path)
{
    struct mc_transfer_engine *engine = path->engine;
    pthread_mutex_lock(&engine->ended_lock);
    path->next = engine->ended_paths;
    engine->ended_paths = path;
    if (!engine->is_unmapping) {
        if (engine->has_unmap_thread)
            pthread_join(engine->unmap_thread, NULL); /* it has ended */
        engine->has_unmap_thread = mc_thread_start(&engine->unmap_thread, "mc-unmap", unmap_main, engine) == 0;
        engine->is_unmapping = engine->has_unmap_thread;
    }
    bool is_own = !engine->is_unmapping;
    if (is_own)
        engine->ended_paths = path->next;
    pthread_mutex_unlock(&engine->ended_lock);
    if (is_own)
        path_free(path);
}

void mc_host_path_release(struct mc_host_path *path)
{
    if (atomic_fetch_sub(&path->references, 1) != 1)
        return;
    if (path->engine == NULL)
        path_free(path);
    else
        path_end(path);
}

void mc_host_paths_end(struct mc_transfer_engine *engine)
{
    if (engine->has_unmap_thread)
        pthread_join(engine->unmap_thread, NULL);
}

void mc_host_path_drop(struct mc_peer *peer)
{
    if (peer->host == NULL)
        return;
    atomic_store(&peer->host->is_broken, true);
    mc_host_path_release(peer->host);
    peer->host = NULL;
}

bool mc_host_path_tidy(struct mc_peer *peer)
{
    if (peer->host == NULL || !(peer->host->is_broken || mc_host_has_ended(peer->host)))
        return false;
    mc_host_path_drop(peer);
    return true;
}

static int make_intents(struct mc_host_path *path)
{
    int fd = memfd_create("mooncake-transfer-intents", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    void *map = MAP_FAILED;
    if (fchmod(fd, 0600) == 0 && ftruncate(fd, sizeof(struct mc_host_intents)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        map = mmap(NULL, sizeof(struct mc_host_intents), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return -1;
    }
    (void)madvise(map, sizeof(struct mc_host_intents), MADV_DONTFORK);
    path->intents = map;
    return fd;
}

static bool map_table(struct mc_host_path *path, int fd)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) != 0 ||
        status.st_size < (off_t)sizeof(struct mc_host_table))
        return false;
    void *map = mmap(NULL, sizeof(struct mc_host_table), PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return false;
    (void)madvise(map, sizeof(struct mc_host_table), MADV_DONTFORK);
    path->table = map;
    return path->table->magic == MC_HOST_MAGIC;
}

static bool is_troubled(struct mc_host_trouble *trouble, const char *step, int error)
{
    *trouble = (struct mc_host_trouble){step, error};
    return false;
}

/* Has that process the table open? Looking at its descriptors needs less than reaching into its memory. */
static bool has_open(pid_t pid, int table_fd)
{
    char name[64];
    struct stat table, one;
    struct dirent *entry;
    bool is_found = false;
    snprintf(name, sizeof(name), "/proc/%d/fd", (int)pid);
    DIR *all = fstat(table_fd, &table) == 0 ? opendir(name) : NULL;
    while (all != NULL && !is_found && (entry = readdir(all)) != NULL)
        is_found = entry->d_name[0] != '.' && fstatat(dirfd(all), entry->d_name, &one, 0) == 0 &&
                   one.st_dev == table.st_dev && one.st_ino == table.st_ino;
    if (all != NULL)
        (void)closedir(all);
    return is_found;
}

/* Is the process with the socket's credentials the one whose memory holds the proof, or, where that may not be read,
 * the one that has made the table? */
static bool prove(struct mc_host_path *path, const struct mc_host_welcome *welcome, int table_fd,
                  struct mc_host_trouble *trouble)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    struct mc_id proof = {0};
    if (getsockopt(path->fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0)
        return is_troubled(trouble, "seeing its process", ESRCH);
    if (credentials.uid != geteuid())
        return is_troubled(trouble, "being its user", EACCES);
    path->pid = credentials.pid;
    struct iovec near = {&proof, sizeof(proof)}, far = {(void *)(uintptr_t)welcome->proof_address, sizeof(proof)};
    ssize_t length_read = process_vm_readv(path->pid, &near, 1, &far, 1, 0);
    bool is_forbidden = length_read < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS);
    int error = errno;
    path->is_map_only = is_forbidden && has_open(path->pid, table_fd);
    if (path->is_map_only)
        return true;
    errno = error;
    if (length_read != (ssize_t)sizeof(proof))
        return is_troubled(trouble, "reading its memory", length_read < 0 ? errno : EFAULT);
    if (!mc_id_equal(proof, welcome->proof) || mc_id_is_zero(proof))
        return is_troubled(trouble, "its proof", ESRCH); /* the number is another process's here */
    return true;
}

static bool is_proved(const struct mc_host_path *path, const char *unix_name, struct mc_host_trouble *trouble)
{
    uint64_t until_ns = mc_clock_ns() + HELLO_MS * 1000000ull;
    if (mc_preface_prove(path->fd, MC_PREFACE_HOST, unix_name, until_ns, NULL, NULL) == 0)
        return true;
    return is_troubled(trouble, "proving our key to it", EACCES);
}

static bool greet(struct mc_host_path *path, struct mc_id owner, struct mc_host_trouble *trouble)
{
    struct mc_host_hello hello = {MC_HOST_MAGIC, owner};
    struct mc_host_welcome welcome;
    uint64_t until_ns = mc_clock_ns() + HELLO_MS * 1000000ull;
    int intents_fd = make_intents(path), table_fd = -1;
    size_t fd_count = 0;
    if (intents_fd < 0)
        return is_troubled(trouble, "making the memory of intents", errno);
    is_troubled(trouble, "its greeting", 0);
    bool is_fine = mc_unix_send_fds(path->fd, &hello, sizeof(hello), &intents_fd, 1, until_ns) == 0;
    close(intents_fd);
    if (is_fine) {
        int64_t received = mc_unix_receive_fds(path->fd, &welcome, sizeof(welcome), &table_fd, 1, &fd_count, until_ns);
        is_fine = received == (int64_t)sizeof(welcome) && fd_count == 1 && welcome.magic == MC_HOST_MAGIC &&
                  mc_id_equal(welcome.owner, owner) && map_table(path, table_fd) &&
                  prove(path, &welcome, table_fd, trouble);
    }
    if (fd_count == 1)
        close(table_fd);
    return is_fine;
}

struct mc_host_path *mc_host_path_open(const char *unix_name, struct mc_id owner, struct mc_host_trouble *trouble)
{
    struct mc_host_path *path = calloc(1, sizeof(*path));
    *trouble = (struct mc_host_trouble){"memory", ENOMEM};
    if (path == NULL)
        return NULL;
    pthread_mutex_init(&path->lock, NULL);
    path->references = 1;
    path->fd = mc_unix_connect(unix_name, mc_clock_ns() + HELLO_MS * 1000000ull);
    *trouble = (struct mc_host_trouble){"connecting to its socket", errno};
    if (path->fd >= 0)
        mc_transfer_note_fd(path->fd);
    if (path->fd >= 0 && is_proved(path, unix_name, trouble) && greet(path, owner, trouble))
        return path;
    path_free(path);
    return NULL;
}

struct mc_host_path *mc_host_path_get(struct mc_peer *peer)
{
    struct mc_transfer_engine *engine = peer->engine;
    struct mc_host_trouble trouble;
    pthread_mutex_lock(&peer->lock);
    if (peer->host != NULL && peer->host->is_broken)
        mc_host_path_drop(peer);
    struct mc_host_path *path = peer->host;
    bool is_possible = engine->settings.allow_host && peer->document.unix_name[0] == '@' &&
                       mc_id_equal(peer->document.host, engine->host_id);
    /* Under the lock: another thread would only do the same, and it is bounded by HELLO_MS. */
    if (path == NULL && is_possible && mc_clock_ms() >= peer->host_retry_ms) {
        path = peer->host = mc_host_path_open(peer->document.unix_name, peer->document.id, &trouble);
        if (path != NULL)
            path->engine = engine;
        if (path != NULL && path->is_map_only)
            mc_log(DEBUG,
                   "%s is on this machine: what it has allocated is mapped, but its other memory cannot be "
                   "reached from here, and goes by tcp",
                   peer->name);
        if (path == NULL) {
            peer->host_retry_ms = mc_clock_ms() + RETRY_MS;
            engine->count.fallbacks++;
            mc_log(DEBUG, "%s is on this machine, but its memory cannot be reached from here (%s: %s); tcp is used",
                   peer->name, trouble.step, strerror(trouble.error));
        }
    }
    if (path != NULL)
        atomic_fetch_add(&path->references, 1);
    pthread_mutex_unlock(&peer->lock);
    return path;
}

/* ---- copying ---- */

struct copy { /* one system call; or, into and out of memory that is mapped here, none */
    struct iovec near[COPY_PARTS], far[COPY_PARTS];
    size_t parts;
    uint64_t bytes;
    bool is_mapped; /* far is in our address space */
    const struct mc_host_known *regions[MC_HOST_INTENT_REGIONS];
    struct mc_host_map *maps[MC_HOST_INTENT_REGIONS]; /* NULL: by system call */
    uint8_t *bytes_of[MC_HOST_INTENT_REGIONS];
    size_t region_count;
    struct mc_host_known known[MC_HOST_INTENT_REGIONS];
};

struct progress {
    size_t item;
    uint64_t offset; /* in that item */
};

/* Its number in the copy; -1: that one is full, or is of the other kind. */
static int add_region(struct mc_host_path *path, struct copy *copy, const struct mc_host_known *known)
{
    for (size_t i = 0; i < copy->region_count; i++)
        if (copy->known[i].slot == known->slot)
            return (int)i;
    if (copy->region_count == MC_HOST_INTENT_REGIONS)
        return -1;
    size_t number = copy->region_count;
    struct mc_host_map *map = mc_host_map_hold(path, known, &copy->bytes_of[number]);
    if (number > 0 && copy->is_mapped != (map != NULL)) {
        struct mc_host_map *none = NULL;
        if (map != NULL)
            mc_host_map_release(map, &none); /* it is in its bucket still */
        return -1;
    }
    copy->is_mapped = map != NULL;
    copy->maps[number] = map;
    copy->known[number] = *known;
    copy->regions[number] = &copy->known[number];
    copy->region_count++;
    return (int)number;
}

static void release_maps(struct mc_host_path *path, const struct copy *copy)
{
    struct mc_host_map *ended = NULL;
    if (!copy->is_mapped)
        return;
    pthread_mutex_lock(&path->lock);
    for (size_t i = 0; i < copy->region_count; i++)
        mc_host_map_release(copy->maps[i], &ended);
    pthread_mutex_unlock(&path->lock);
    mc_host_maps_unmap(ended);
}

/* A part that goes on where the last one ends, on both sides, is one with it: the kernel looks up every part anew. */
static void add_part(struct copy *copy, char *near, uintptr_t far, size_t size)
{
    if (copy->parts > 0) {
        struct iovec *last_near = &copy->near[copy->parts - 1], *last_far = &copy->far[copy->parts - 1];
        if ((char *)last_near->iov_base + last_near->iov_len == near &&
            (uintptr_t)last_far->iov_base + last_far->iov_len == far) {
            last_near->iov_len += size;
            last_far->iov_len += size;
            return;
        }
    }
    copy->near[copy->parts] = (struct iovec){near, size};
    copy->far[copy->parts++] = (struct iovec){(void *)far, size};
}

/* As much as one call takes, from `at` on. False: some address is in no region that we know of. */
static bool plan(struct mc_host_path *path, const struct mc_transfer_item *items, size_t count, struct progress *at,
                 struct copy *copy, uint64_t bytes_max)
{
    bool is_known = true;
    copy->parts = copy->region_count = 0;
    copy->bytes = 0;
    copy->is_mapped = false;
    pthread_mutex_lock(&path->lock);
    while (at->item < count && copy->parts < COPY_PARTS && copy->bytes < bytes_max) {
        const struct mc_transfer_item *item = &items[at->item];
        const struct mc_host_known *known = mc_host_view_find(&path->view, item->remote, item->length);
        is_known = known != NULL;
        int region = is_known ? add_region(path, copy, known) : -1;
        if (region < 0)
            break;
        uint64_t left = item->length - at->offset, room = bytes_max - copy->bytes, size = left < room ? left : room;
        uintptr_t far = item->remote + at->offset;
        if (copy->is_mapped)
            far = (uintptr_t)copy->bytes_of[region] + (far - known->address);
        add_part(copy, (char *)item->local + at->offset, far, (size_t)size);
        copy->bytes += size;
        at->offset += size;
        if (at->offset == item->length)
            *at = (struct progress){at->item + 1, 0};
    }
    pthread_mutex_unlock(&path->lock);
    return copy->parts > 0 || is_known;
}

/* The number of an intent of ours; -1 when none gets free until the deadline. */
static int take_intent(struct mc_host_path *path, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t taken = atomic_load(&path->taken);
        if (taken != UINT64_MAX) {
            int place = __builtin_ctzll(~taken);
            if (atomic_compare_exchange_weak(&path->taken, &taken, taken | 1ull << place))
                return place;
            continue;
        }
        if (mc_clock_ns() >= deadline_ns)
            return -1;
        sched_yield();
    }
}
_Static_assert(MC_HOST_INTENTS == 64, "a bit each");

/* 0, or 1: not by this path. A call may move less than was asked for when the far memory has a hole. */
static int parts_move(const struct mc_host_path *path, bool is_write, bool is_mapped, const struct iovec *near,
                      const struct iovec *far, size_t parts)
{
    size_t bytes = 0;
    for (size_t i = 0; i < parts; i++)
        bytes += near[i].iov_len;
    for (size_t i = 0; is_mapped && i < parts; i++) /* may be the same memory */
        memmove(is_write ? far[i].iov_base : near[i].iov_base, is_write ? near[i].iov_base : far[i].iov_base,
                near[i].iov_len);
    if (is_mapped)
        return 0;
    if (path->is_map_only)
        return 1;
    ssize_t moved = is_write ? process_vm_writev(path->pid, near, parts, far, parts, 0)
                             : process_vm_readv(path->pid, near, parts, far, parts, 0);
    return moved == (ssize_t)bytes ? 0 : 1;
}

/* Of memory in the peer's process. False: it is not there. */
static bool sum_far(const struct mc_host_path *path, const char *address, size_t length, uint32_t *sum)
{
    char copied[SUM_BYTES];
    *sum = 0;
    for (size_t at = 0, part; at < length; at += part) {
        part = length - at < sizeof(copied) ? length - at : sizeof(copied);
        struct iovec near = {copied, part}, far = {(void *)(uintptr_t)(address + at), part};
        if (process_vm_readv(path->pid, &near, 1, &far, 1, 0) != (ssize_t)part)
            return false;
        *sum = mc_crc32c(*sum, copied, part);
    }
    return true;
}

struct sums {        /* of one piece */
    const void *far; /* NULL: none that differed */
    size_t length;
    uint32_t near_sum, far_sum;
};

/* 0, or 1: not by this path. 3: the sums differ. */
static int piece_check(const struct mc_host_path *path, bool is_write, bool is_mapped, struct sums *sums, void *near,
                       void *far)
{
    const size_t length = sums->length;
    if (is_mapped) {
        bool is_same = is_write ? mc_check_copy(far, near, length, &sums->near_sum, &sums->far_sum)
                                : mc_check_copy(near, far, length, &sums->far_sum, &sums->near_sum);
        return is_same ? 0 : 3;
    }
    const struct iovec near_part = {near, length}, far_part = {far, length};
    int rc = parts_move(path, is_write, false, &near_part, &far_part, 1);
    if (rc != 0 || !sum_far(path, far, length, &sums->far_sum))
        return 1;
    sums->near_sum = mc_crc32c(0, near, length);
    return sums->near_sum == sums->far_sum ? 0 : 3;
}

/* As parts_move, and compares. One part after the other, as two may be of the same memory. */
static int parts_check(const struct mc_host_path *path, bool is_write, bool is_mapped, const struct iovec *near,
                       const struct iovec *far, size_t parts, struct sums *wrong)
{
    for (size_t i = 0; i < parts; i++) {
        const size_t length = near[i].iov_len;
        const uintptr_t from = (uintptr_t)near[i].iov_base, to = (uintptr_t)far[i].iov_base;
        const bool is_whole = is_mapped && from < to + length && to < from + length; /* they overlap */
        for (size_t at = 0, piece; at < length; at += piece) {
            piece = is_whole || length - at < MC_CHECK_PIECE ? length - at : MC_CHECK_PIECE;
            struct sums sums = {.far = (char *)far[i].iov_base + at, .length = piece};
            int rc = piece_check(path, is_write, is_mapped, &sums, (char *)near[i].iov_base + at,
                                 (char *)far[i].iov_base + at);
            if (rc == 3)
                *wrong = sums;
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* A large copy, in pieces that whoever is free makes. */
struct large_copy {
    const struct mc_host_path *path;
    const struct copy *copy;
    bool is_write, is_checked;
    _Atomic int result;
    _Atomic bool is_told;
    struct sums wrong; /* of whoever was the first to find some */
};

static int some_move(struct large_copy *shared, const struct iovec *near, const struct iovec *far, size_t parts)
{
    struct sums wrong = {0};
    if (!shared->is_checked)
        return parts_move(shared->path, shared->is_write, shared->copy->is_mapped, near, far, parts);
    int rc = parts_check(shared->path, shared->is_write, shared->copy->is_mapped, near, far, parts, &wrong);
    if (rc == 3 && !atomic_exchange(&shared->is_told, true))
        shared->wrong = wrong;
    return rc;
}

static void piece_move(void *context, uint32_t index, bool is_own)
{
    struct large_copy *shared = context;
    size_t part = 0;
    uint64_t before = 0; /* pieces of the parts before */
    (void)is_own;
    for (;; part++) {
        uint64_t pieces = (shared->copy->near[part].iov_len + MC_CREW_PIECE_BYTES - 1) / MC_CREW_PIECE_BYTES;
        if (index < before + pieces)
            break;
        before += pieces;
    }
    const struct iovec *near = &shared->copy->near[part], *far = &shared->copy->far[part];
    size_t offset = (size_t)((index - before) * MC_CREW_PIECE_BYTES), left = near->iov_len - offset;
    size_t length = left < MC_CREW_PIECE_BYTES ? left : MC_CREW_PIECE_BYTES;
    const struct iovec near_piece = {(char *)near->iov_base + offset, length},
                       far_piece = {(char *)far->iov_base + offset, length};
    if (atomic_load(&shared->result) != 0)
        return;
    /* So many pieces take long enough for a process to end and its number to be another's. */
    bool has_ended = !shared->copy->is_mapped && mc_host_has_ended(shared->path);
    int rc = has_ended ? 1 : some_move(shared, &near_piece, &far_piece, 1);
    if (rc != 0)
        atomic_store(&shared->result, rc);
}

static bool may_overlap(const struct copy *copy, size_t part)
{
    uintptr_t near = (uintptr_t)copy->near[part].iov_base, far = (uintptr_t)copy->far[part].iov_base;
    size_t length = copy->near[part].iov_len;
    return copy->is_mapped && near < far + length && far < near + length;
}

/* Where that piece lies in the peer's memory. */
static uint64_t address_of(const struct copy *copy, const void *far)
{
    for (size_t i = 0; i < copy->region_count && copy->is_mapped; i++)
        if ((uintptr_t)far - (uintptr_t)copy->bytes_of[i] < copy->known[i].length)
            return copy->known[i].address + ((uintptr_t)far - (uintptr_t)copy->bytes_of[i]);
    return (uintptr_t)far;
}

/* 0; 1: not by this path; or what mc_check_wrong says. */
static int copy_once(const struct mc_host_path *path, struct mc_crew *crew, enum mc_transfer_opcode opcode,
                     const struct copy *copy, struct mc_sum_check *check)
{
    struct large_copy shared = {
        .path = path, .copy = copy, .is_write = opcode == MC_TRANSFER_WRITE, .is_checked = check != NULL};
    bool is_for_many = crew != NULL && copy->bytes >= MC_CREW_BYTES_MIN && copy->parts <= COPY_SHARED_PARTS;
    uint64_t pieces = 0;
    for (size_t i = 0; i < copy->parts && is_for_many; i++) {
        pieces += (copy->near[i].iov_len + MC_CREW_PIECE_BYTES - 1) / MC_CREW_PIECE_BYTES;
        is_for_many = !may_overlap(copy, i);
    }
    if (is_for_many)
        mc_crew_run(crew, (uint32_t)pieces, piece_move, &shared);
    else
        atomic_store(&shared.result, some_move(&shared, copy->near, copy->far, copy->parts));
    if (check != NULL && shared.is_told)
        return mc_check_wrong(check, address_of(copy, shared.wrong.far), shared.wrong.length, shared.wrong.near_sum,
                              shared.wrong.far_sum);
    return atomic_load(&shared.result);
}

/* One planned copy under its intents. 0; 1: not by this path; 2: a region has gone or changed, look again. */
static int copy_announced(struct mc_host_path *path, struct mc_crew *crew, enum mc_transfer_opcode opcode,
                          const struct copy *copy, struct mc_sum_check *check, uint64_t deadline_ns)
{
    int place = take_intent(path, deadline_ns);
    if (place < 0)
        return MC_TRANSFER_ERR_TIMEOUT;
    struct mc_host_intent *intent = &path->intents->intents[place];
    int rc = 2;
    /* Looked at before every call: a process number means nothing once the process that had it is gone. */
    if (mc_host_has_ended(path))
        rc = 1;
    else if (mc_host_announce(intent, path->table, copy->regions, copy->region_count))
        rc = copy_once(path, crew, opcode, copy, check);
    mc_host_retreat(intent);
    atomic_fetch_and(&path->taken, ~(1ull << place));
    return rc;
}

static bool refresh(struct mc_host_path *path)
{
    struct mc_host_map *ended = NULL;
    pthread_mutex_lock(&path->lock);
    int rc = mc_host_view_refresh(&path->view, path->table);
    mc_host_maps_tidy(path, &ended);
    pthread_mutex_unlock(&path->lock);
    mc_host_maps_unmap(ended);
    return rc == 0;
}

static int copy_all(struct mc_host_path *path, struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode,
                    const struct mc_transfer_item *items, size_t count, struct mc_sum_check *check,
                    uint64_t deadline_ns)
{
    const uint64_t bytes_max = engine->crew == NULL ? COPY_BYTES : COPY_ROUNDS * COPY_BYTES;
    struct progress at = {0, 0};
    struct copy copy;
    bool is_fresh = false;
    while (at.item < count) {
        struct progress before = at;
        int rc = plan(path, items, count, &at, &copy, bytes_max) ? 0 : 2;
        if (rc == 0) {
            rc = copy_announced(path, engine->crew, opcode, &copy, check, deadline_ns);
            release_maps(path, &copy);
        }
        if (rc == 2) { /* what we knew was old: once more, then it is tcp's to say what is wrong */
            if (is_fresh || !refresh(path))
                return 1;
            at = before;
            is_fresh = true;
            continue;
        }
        if (rc != 0)
            return rc;
        is_fresh = false;
        if (at.item == count)
            break;
        if (engine->is_closing)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        if (mc_clock_ns() >= deadline_ns)
            return MC_TRANSFER_ERR_TIMEOUT;
    }
    return 0;
}

int mc_run_host(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, struct mc_sum_check *check, uint64_t deadline_ns)
{
    struct mc_host_path *path = mc_host_path_get(peer);
    if (path == NULL)
        return 1;
    int rc = copy_all(path, peer->engine, opcode, items, count, check, deadline_ns);
    if (rc == 1 && mc_host_has_ended(path)) {
        atomic_store(&path->is_broken, true);
        rc = 2;
    }
    mc_host_path_release(path);
    return rc;
}
