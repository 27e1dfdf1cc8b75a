/* Transport `shm`: the owner runs on this host and handed us its memory. Reads involve nobody else; writes tell the
 * owner by one COMMIT.
 *
 * The owner must know where we may be storing (writers.h). Therefore: our entry in its table of writers is locked
 * before the data is mapped and until after it is unmapped; each copy is announced there before and taken back after
 * it. */
#include "base/error.h"
#include "store/path/gather.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/segment/writers.h"
#include "env/clock.h"
#include "env/thread.h"
#include "store/wire/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define STRIPE_BYTES (2u << 20) /* page tables are filled in such steps, at the first touch */
/* Copies that long are committed before the next one starts, so that the owner works meanwhile */
#define COMMIT_BYTES (4u << 20)

struct shm_path {
    struct mc_path path;
    int fd, fd_place;
    struct mc_owner_said owner;
    uint8_t *data;
    uint64_t data_size;
    const struct mc_index_header *header; /* start of the index */
    const struct mc_slot *slots;
    uint64_t index_size;
    int writers_place;                    /* of the descriptor that holds our lock */
    struct mc_writer_entry *table, *mine; /* the table of writers, our entry */
    uint32_t slot_count;
    _Atomic uint64_t *touched; /* a bit per stripe whose page tables were filled */
    pthread_mutex_t lock;      /* guards is_sending */
    pthread_cond_t sent;       /* it is somebody else's turn to send */
    bool is_sending;           /* somebody has the turn: one frame at a time on fd */
    bool was_silent;           /* by who has the turn: it is broken because the owner took nothing */
};

/* ---- opening ---- */

#define ATTACH_FDS 3u

struct attachment {
    int fds[ATTACH_FDS]; /* data, index, writers */
    size_t fd_count;
    struct mc_wire_attach_reply reply;
};

static int attach_receive(int fd, struct attachment *attachment, const struct mc_patience *patience)
{
    int waited = mc_path_wait(fd, patience);
    if (waited < 0)
        return waited;
    uint64_t deadline_ns = mc_patience_until(patience->deadline_ns).soon_ns;
    struct mc_buffer in = {0};
    struct mc_frame frame;
    mc_buffer_reserve(&in, 4096);
    int64_t rc =
        mc_unix_receive_fds(fd, in.data, in.capacity, attachment->fds, ATTACH_FDS, &attachment->fd_count, deadline_ns);
    if (rc > 0) {
        in.length = (size_t)rc;
        rc = mc_socket_receive_frame(fd, &in, &frame, deadline_ns, NULL);
    }
    if (rc > 0) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        mc_wire_attach_reply_read(&reader, &attachment->reply);
        rc = frame.type != MC_MESSAGE_ATTACH_REPLY || reader.bad ? MC_ERR_PROTOCOL : attachment->reply.code;
        if (rc == 0 && attachment->fd_count != ATTACH_FDS)
            rc = MC_ERR_PROTOCOL;
    }
    mc_buffer_free(&in);
    return rc > 0 ? MC_ERR_PROTOCOL : (int)rc;
}

static int attach(int fd, struct attachment *attachment, const struct mc_patience *patience)
{
    struct mc_buffer out = {0};
    mc_frame_bare(&out, MC_MESSAGE_ATTACH, 1);
    struct iovec part = {out.data, out.length};
    int rc = mc_socket_send(fd, &part, 1, mc_patience_until(patience->deadline_ns).soon_ns);
    mc_buffer_free(&out);
    return rc < 0 ? rc : attach_receive(fd, attachment, patience);
}

/* Memory that its owner could still shrink would be a SIGBUS in waiting: a memfd must be sealed. A file with a name
 * cannot be; it is one of our own user's. */
static bool is_lasting(int fd, uint64_t size_min)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    bool is_sealed = seals >= 0 && (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW);
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size >= 0 &&
           (uint64_t)status.st_size >= size_min && (is_sealed || (status.st_nlink > 0 && status.st_uid == geteuid()));
}

static void *map(int fd, uint64_t size, int protection)
{
    void *memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return NULL;
    /* A child has no business with it; and were it to keep the map, the owner's proof that we write no more would be
     * worth nothing. */
    if (madvise(memory, size, MADV_DONTFORK) != 0) {
        munmap(memory, size);
        return NULL;
    }
    return memory;
}

/* Locks and maps our entry in the table of writers. */
static int writer_open(struct shm_path *shm, int passed_fd, uint32_t entry)
{
    int fd = mc_writers_reopen(passed_fd);
    int code = fd < 0 ? mc_socket_code(errno) : 0;
    if (code == MC_ERR_BUSY || code == MC_ERR_NO_MEMORY)
        return code;
    if (code < 0) /* no /proc here: the owner could not tell our death from our life */
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    shm->writers_place = mc_paths_fd_add(shm->path.paths, fd);
    if (shm->writers_place < 0) {
        close(fd);
        return MC_ERR_BUSY;
    }
    if (!mc_writer_lock(fd, entry)) /* the owner gave us up meanwhile and the entry to somebody else */
        return MC_ERR_BUSY;
    shm->table = map(fd, MC_WRITERS_BYTES, PROT_READ | PROT_WRITE);
    if (shm->table == NULL)
        return MC_ERR_NO_MEMORY;
    shm->mine = shm->table + entry;
    return 0;
}

static int index_open(struct shm_path *shm, int fd)
{
    void *index = map(fd, shm->index_size, PROT_READ);
    if (index == NULL)
        return MC_ERR_NO_MEMORY;
    shm->header = index;
    shm->slots = (const struct mc_slot *)(const void *)((const uint8_t *)index + MC_INDEX_SLOTS_AT);
    if (shm->header->magic != MC_INDEX_MAGIC)
        return MC_ERR_PROTOCOL;
    if (!mc_path_layout_known(&shm->path.endpoint, shm->header->version))
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    return shm->header->slot_count == shm->slot_count ? 0 : MC_ERR_PROTOCOL;
}

static int shm_map(struct shm_path *shm, const struct attachment *attachment)
{
    const struct mc_wire_attach_reply *reply = &attachment->reply;
    const struct mc_endpoint *endpoint = &shm->path.endpoint;
    if (!mc_id_equal(reply->segment_id, endpoint->segment_id))
        return MC_ERR_STALE;
    shm->index_size = MC_INDEX_SLOTS_AT + (uint64_t)reply->slot_count * sizeof(struct mc_slot);
    if (reply->slot_count != endpoint->slot_count || reply->slot_count == 0 || reply->capacity != endpoint->capacity ||
        reply->data_size < reply->capacity || reply->writer == 0 || reply->writer >= MC_WRITERS_MAX ||
        !is_lasting(attachment->fds[0], reply->data_size) || !is_lasting(attachment->fds[1], shm->index_size) ||
        !is_lasting(attachment->fds[2], MC_WRITERS_BYTES))
        return MC_ERR_PROTOCOL;
    uint64_t stripes = reply->data_size / STRIPE_BYTES + 1;
    shm->touched = calloc((size_t)(stripes / 64 + 1), sizeof(*shm->touched));
    if (shm->touched == NULL)
        return MC_ERR_NO_MEMORY;
    shm->slot_count = reply->slot_count;
    int rc = index_open(shm, attachment->fds[1]);
    if (rc == 0)
        rc = writer_open(shm, attachment->fds[2], reply->writer);
    if (rc < 0)
        return rc;
    shm->data_size = reply->data_size;
    shm->data = map(attachment->fds[0], reply->data_size, PROT_READ | PROT_WRITE);
    return shm->data == NULL ? MC_ERR_NO_MEMORY : 0;
}

static void shm_free(struct shm_path *shm)
{
    if (shm->data != NULL)
        munmap(shm->data, shm->data_size);
    if (shm->header != NULL)
        munmap((void *)(uintptr_t)shm->header, shm->index_size);
    if (shm->table != NULL)
        munmap(shm->table, MC_WRITERS_BYTES);
    if (shm->writers_place >= 0) /* only now: see the top */
        mc_paths_fd_close(shm->path.paths, shm->writers_place);
    if (shm->fd_place >= 0)
        mc_paths_fd_close(shm->path.paths, shm->fd_place);
    free((void *)shm->touched);
    mc_monitor_destroy(&shm->lock, &shm->sent);
    free(shm);
}

static int shm_connect(struct shm_path *shm, const struct mc_patience *patience)
{
    const struct mc_endpoint *endpoint = &shm->path.endpoint;
    struct mc_paths *paths = shm->path.paths;
    int fd = mc_unix_connect(endpoint->unix_path, patience->soon_ns);
    if (fd < 0) /* another network namespace or another file system looks like this too */
        return fd;
    shm->fd_place = mc_paths_fd_add(paths, fd);
    if (shm->fd_place < 0) {
        close(fd);
        return MC_ERR_BUSY;
    }
    shm->fd = fd;
    if (mc_unix_peer_uid(fd) != (int64_t)geteuid())
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    int rc = mc_path_hello(paths, endpoint, fd, patience, &shm->owner);
    if (rc == 0 && !mc_path_layout_known(endpoint, shm->owner.layout))
        rc = MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    return rc;
}

static int shm_open_path(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                         struct mc_path **path)
{
    if (!mc_id_equal(endpoint->host, paths->host) || endpoint->unix_path[0] == 0)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct attachment attachment = {.fds = {-1, -1, -1}};
    struct shm_path *shm = calloc(1, sizeof(*shm));
    if (shm == NULL)
        return MC_ERR_NO_MEMORY;
    mc_path_init(&shm->path, &mc_transport_shm, paths, endpoint);
    mc_monitor_init(&shm->lock, &shm->sent);
    shm->fd = shm->fd_place = shm->writers_place = -1;
    int rc = shm_connect(shm, patience);
    if (rc == 0)
        rc = attach(shm->fd, &attachment, patience);
    if (rc == 0)
        rc = shm_map(shm, &attachment);
    for (size_t i = 0; i < attachment.fd_count; i++)
        close(attachment.fds[i]);
    if (rc < 0) {
        shm_free(shm);
        return rc;
    }
    *path = &shm->path;
    return 0;
}

/* ---- running ---- */

/* Fills the page tables of the stripes that [offset, offset + length) lies in, once, for writing: a store into a fresh
 * mapping faults page by page, which costs four fifths of the copy; POPULATE_READ maps around in large steps and, the
 * memory being shared, for stores as well. (Loads do that by themselves.) The owner has populated what was placed, in
 * steps that are whole stripes, so nothing is allocated by it. */
static void stripes_touch(struct shm_path *shm, uint64_t offset, uint64_t length)
{
    uint64_t last = (offset + length - 1) / STRIPE_BYTES;
    for (uint64_t stripe = offset / STRIPE_BYTES; stripe <= last; stripe++) {
        uint64_t bit = 1ull << stripe % 64, start = stripe * STRIPE_BYTES;
        if ((atomic_load_explicit(&shm->touched[stripe / 64], memory_order_relaxed) & bit) != 0)
            continue;
        uint64_t size = shm->data_size - start < STRIPE_BYTES ? shm->data_size - start : STRIPE_BYTES;
        /* Help only: without it (Linux before 5.14) each page faults by itself. */
        (void)madvise(shm->data + start, size, MADV_POPULATE_READ);
        atomic_fetch_or_explicit(&shm->touched[stripe / 64], bit, memory_order_relaxed);
    }
}

struct commits { /* those copied and not yet told to the owner */
    struct mc_buffer *frame;
    size_t start, list;
    uint32_t count;
    uint64_t bytes;
    size_t first; /* index of the first transfer that they may belong to */
};

static void commit_add(struct commits *commits, const struct mc_wire_commit_item *commit)
{
    if (commits->count == 0) {
        struct mc_wire_none none = {0};
        commits->frame->length = 0;
        commits->start = mc_frame_begin(commits->frame, MC_MESSAGE_COMMIT, 0);
        mc_wire_none_write(commits->frame, &none);
        commits->list = mc_list_begin(commits->frame);
    }
    mc_wire_commit_item_write(commits->frame, commit);
    commits->count++;
    commits->bytes += commit->length;
}

/* False: somebody else had the turn all the time. */
static bool turn_take(struct shm_path *shm, uint64_t until_ns)
{
    pthread_mutex_lock(&shm->lock);
    while (shm->is_sending && mc_monitor_wait(&shm->lock, &shm->sent, until_ns) == 0)
        continue;
    bool is_ours = !shm->is_sending;
    shm->is_sending = true;
    pthread_mutex_unlock(&shm->lock);
    return is_ours;
}

static void turn_end(struct shm_path *shm)
{
    pthread_mutex_lock(&shm->lock);
    shm->is_sending = false;
    pthread_cond_signal(&shm->sent);
    pthread_mutex_unlock(&shm->lock);
}

/* In our turn. A deadline of ours that comes before the first byte is nobody else's business; a frame of which a part
 * is in the stream is finished, however late we are. MC_STALL_NS without room: the path is broken. */
static int frame_push(struct shm_path *shm, const struct mc_buffer *frame, uint64_t deadline_ns)
{
    struct iovec part = {frame->data, frame->length};
    uint64_t stall_ns = mc_clock_ns() + MC_STALL_NS;
    bool is_short = deadline_ns < stall_ns;
    int rc = MC_ERR_RPC_FAIL;
    if (mc_socket_is_silent(shm->fd))
        rc = mc_socket_send(shm->fd, &part, 1, is_short ? deadline_ns : stall_ns);
    if (rc == MC_ERR_RPC_TIMEOUT && is_short && part.iov_len == frame->length)
        return rc;
    if (rc == MC_ERR_RPC_TIMEOUT && is_short)
        rc = mc_socket_send(shm->fd, &part, 1, stall_ns);
    shm->was_silent = rc == MC_ERR_RPC_TIMEOUT;
    if (rc < 0) /* a part of a frame may be in the stream */
        atomic_store_explicit(&shm->path.broken, true, memory_order_release);
    return rc == MC_ERR_RPC_TIMEOUT || rc == 0 ? rc : MC_ERR_TRANSFER_FAIL;
}

static int frame_send(struct shm_path *shm, const struct mc_buffer *frame, uint64_t deadline_ns)
{
    if (!turn_take(shm, deadline_ns))
        return MC_ERR_RPC_TIMEOUT;
    int rc;
    if (!atomic_load_explicit(&shm->path.broken, memory_order_relaxed))
        rc = frame_push(shm, frame, deadline_ns);
    else /* of a silence only who waited through it can say for how long it was */
        rc = shm->was_silent ? MC_ERR_BUSY : MC_ERR_TRANSFER_FAIL;
    turn_end(shm);
    return rc;
}

/* Tells the owner of the commits of transfers[commits->first .. end). */
static void commits_flush(struct shm_path *shm, struct commits *commits, struct mc_transfer **transfers, size_t end,
                          const struct mc_run *run)
{
    if (commits->count > 0) {
        mc_list_end(commits->frame, commits->list, commits->count);
        mc_frame_end(commits->frame, commits->start);
        int rc = frame_send(shm, commits->frame, run->deadline_ns);
        for (size_t i = commits->first; i < end && rc < 0; i++) {
            if (transfers[i]->kind == MC_TRANSFER_WRITE && transfers[i]->result == 0)
                transfers[i]->result = rc;
        }
    }
    commits->count = 0;
    commits->bytes = 0;
    commits->first = end;
}

struct shm_window { /* a window of transfers */
    struct shm_path *shm;
    struct mc_transfer **transfers;
    struct mc_wire_commit_item commits[MC_WINDOW_MAX]; /* of those that were written */
};

static int shm_move(void *context, size_t index, struct mc_motion *motion)
{
    struct shm_window *moved = context;
    struct shm_path *shm = moved->shm;
    const struct mc_transfer *transfer = moved->transfers[index];
    if (transfer->kind == MC_TRANSFER_READ)
        return mc_memory_read(shm->slots, shm->data, shm->data_size, transfer, motion);
    const struct mc_place *place = &transfer->place;
    const struct mc_writing writing = {place->generation, place->offset,
                                       mc_extent_size(transfer->object_length, transfer->key.length), place->slot};
    stripes_touch(shm, writing.offset, writing.length);
    int intent = mc_writer_claim(shm->mine, shm->header, shm->slots, &writing, motion->run->deadline_ns);
    if (intent < 0)
        return intent;
    int rc = mc_memory_write(shm->data, transfer, motion, &moved->commits[index]);
    mc_writer_intent_end(shm->mine, intent);
    return rc;
}

static void shm_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct shm_path *shm = (struct shm_path *)path;
    struct mc_scratch *scratch = mc_paths_is_forked(path->paths) ? NULL : mc_scratch_get();
    struct mc_motion motion;
    if (scratch == NULL) {
        mc_path_fail_all(transfers, count,
                         mc_paths_is_forked(path->paths) ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : MC_ERR_NO_MEMORY);
        return;
    }
    /* Its memory lives as long as we map it, its slots live with it. */
    if (run->contact_age_max_ms != 0 && !mc_socket_is_silent(shm->fd)) {
        atomic_store_explicit(&path->broken, true, memory_order_release);
        mc_path_fail_all(transfers, count, MC_ERR_TRANSFER_FAIL);
        return;
    }
    if (run->contact_age_max_ms != 0 &&
        !mc_index_contact_within(shm->header, run->contact_age_max_ms, mc_clock_boot_ms())) {
        mc_path_fail_all(transfers, count, MC_ERR_REPLICA_IS_GONE);
        return;
    }
    struct commits commits = {.frame = &scratch->out};
    mc_motion_start(&motion, run, path->paths->verify);
    motion.crew = path->paths->crew;
    int late = mc_motion_look(&motion);
    for (size_t i = 0; i < count; i++)
        transfers[i]->result = mc_transfer_check(transfers[i], shm->data_size, shm->slot_count);
    for (size_t first = 0, window; first < count; first += window) {
        struct shm_window moved;
        moved.shm = shm;
        moved.transfers = transfers + first;
        window = mc_motion_window(&motion, transfers + first, count - first);
        mc_motion_move(&motion, transfers + first, window, &late, shm_move, &moved);
        for (size_t i = first; i < first + window; i++) {
            if (transfers[i]->result == 0 && transfers[i]->kind == MC_TRANSFER_WRITE)
                commit_add(&commits, &moved.commits[i - first]);
            if (commits.count == MC_BATCH_MAX || commits.bytes >= COMMIT_BYTES)
                commits_flush(shm, &commits, transfers, i + 1, run);
        }
    }
    commits_flush(shm, &commits, transfers, count, run);
    mc_path_account(path, transfers, count);
}

static bool shm_is_ended(struct mc_path *path)
{
    return !mc_socket_is_silent(((struct shm_path *)path)->fd);
}

static void shm_close(struct mc_path *path)
{
    shm_free((struct shm_path *)path);
}

/* What the owner told the master may be lost. Who has the turn is telling the owner something just now. */
static void shm_nudge(struct mc_path *path, bool gives_up)
{
    if (gives_up)
        return;
    struct shm_path *shm = (struct shm_path *)path;
    uint8_t bytes[MC_PATH_NUDGE_BYTES];
    struct mc_buffer out = {.data = bytes, .capacity = sizeof(bytes)};
    mc_path_nudge_write(&out);
    if (!turn_take(shm, 0))
        return;
    if (!atomic_load_explicit(&path->broken, memory_order_relaxed) &&
        mc_socket_send_small(shm->fd, out.data, out.length) < 0)
        atomic_store_explicit(&path->broken, true, memory_order_release);
    turn_end(shm);
}

const struct mc_transport mc_transport_shm = {"shm",     1,    false, shm_open_path, shm_run, shm_close, shm_is_ended,
                                              shm_nudge, NULL, false, true,          NULL,    NULL};
