/* A disk without a thread over a stand-in for the kernel's part: real files, in front of them what was written and not
 * synced, page by page. It can end as a killed process does (what was under way is there or not, each page for itself)
 * and as a power failure does (so is all that was not synced), fail, fill up, and be late. Reproducible by seed. */
#ifndef MC_TEST_DISK_RIG_H
#define MC_TEST_DISK_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "random.h"
#include "store/disk/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define RIG_REGION (1u << 20)
#define RIG_UNSYNCED_BUCKETS 4096u

struct unsynced { /* a page that is in no file yet */
    struct unsynced *next;
    uint64_t file, page, written; /* inode; number; by the count of operations */
    uint8_t bytes[MC_DISK_PAGE];
};
struct queued {
    struct mc_disk_request *request;
    uint64_t at; /* count of operations when it was submitted */
};
struct mc_disk_io {
    struct queued queue[4096];
    unsigned count;
};
/* What the stand-in does; zeroed = all goes well, at once and in order. */
struct rig {
    struct unsynced *pages[RIG_UNSYNCED_BUCKETS];
    uint64_t operations, seed, now_ns;
    bool is_random;    /* what is under way ends in any order, some of it later */
    bool is_dead;      /* nothing reaches a file any more */
    bool is_held;      /* nothing ends */
    bool holds_reads;  /* only reads do not */
    bool holds_growth; /* only what makes a file longer does not */
    uint64_t fail_write_file, fail_read_file, fail_sync_file; /* inode; UINT64_MAX: any */
    uint64_t fail_from, fail_to;                              /* of what is written or read there: offsets */
    int error;                                                /* with which it fails */
    int64_t shift;                                            /* writes land so many bytes beside their place */
};
static struct rig rig;

static inline uint64_t rig_inode(int fd)
{
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    return status.st_ino;
}

static inline struct unsynced **rig_bucket(uint64_t file, uint64_t page)
{
    return &rig.pages[(file * 31 + page) % RIG_UNSYNCED_BUCKETS];
}

static inline struct unsynced *rig_page(uint64_t file, uint64_t page)
{
    struct unsynced *one = *rig_bucket(file, page);
    while (one != NULL && (one->file != file || one->page != page))
        one = one->next;
    return one;
}

static inline void rig_page_write(int fd, uint64_t page, const uint8_t *bytes)
{
    uint64_t file = rig_inode(fd);
    struct unsynced *one = rig_page(file, page);
    if (one == NULL) {
        one = malloc(sizeof(*one));
        assert_non_null(one);
        struct unsynced **bucket = rig_bucket(file, page);
        *one = (struct unsynced){.next = *bucket, .file = file, .page = page};
        *bucket = one;
    }
    memcpy(one->bytes, bytes, MC_DISK_PAGE);
    one->written = rig.operations;
}

/* Into the file, or nowhere. file 0: of all; only what was written before that operation. */
static inline void rig_pages_end(const int *fds, unsigned count, uint64_t before, unsigned kept_of_256)
{
    for (unsigned i = 0; i < RIG_UNSYNCED_BUCKETS; i++) {
        for (struct unsynced **link = &rig.pages[i]; *link != NULL;) {
            struct unsynced *one = *link;
            int fd = -1;
            for (unsigned j = 0; j < count; j++)
                fd = rig_inode(fds[j]) == one->file ? fds[j] : fd;
            if (fd < 0 || one->written > before) {
                link = &one->next;
                continue;
            }
            if (kept_of_256 == 256 || random_below(&rig.seed, 256) < kept_of_256)
                assert_int_equal(pwrite(fd, one->bytes, MC_DISK_PAGE, (off_t)(one->page * MC_DISK_PAGE)), MC_DISK_PAGE);
            *link = one->next;
            free(one);
        }
    }
}

static inline bool rig_fails(uint64_t file, const struct mc_disk_request *request)
{
    uint64_t which = request->operation == MC_DISK_READ    ? rig.fail_read_file
                     : request->operation == MC_DISK_WRITE ? rig.fail_write_file
                                                           : rig.fail_sync_file;
    uint64_t end = rig.fail_to == 0 ? UINT64_MAX : rig.fail_to;
    bool is_there = request->operation == MC_DISK_SYNC ||
                    (request->offset + request->length > rig.fail_from && request->offset < end);
    return (which == UINT64_MAX || which == file) && is_there;
}

static inline int64_t rig_read(const struct mc_disk_request *request, uint64_t file)
{
    uint8_t *buffer = request->buffer;
    ssize_t got = pread(request->fd, buffer, request->length, (off_t)request->offset);
    assert_true(got >= 0);
    int64_t end = got;
    for (uint32_t at = 0; at < request->length; at += MC_DISK_PAGE) {
        const struct unsynced *one = rig_page(file, (request->offset + at) / MC_DISK_PAGE);
        if (one == NULL)
            continue;
        if ((int64_t)at > end) /* a hole before it */
            memset(buffer + end, 0, (size_t)(at - (uint64_t)end));
        memcpy(buffer + at, one->bytes, MC_DISK_PAGE);
        end = end > (int64_t)(at + MC_DISK_PAGE) ? end : (int64_t)(at + MC_DISK_PAGE);
    }
    return end;
}

static inline int64_t rig_run(const struct queued *queued)
{
    struct mc_disk_request *request = queued->request;
    uint64_t file = rig_inode(request->fd);
    rig.operations++;
    if (rig.is_dead)
        return -EIO;
    if (request->operation == MC_DISK_CALL)
        return request->call(request);
    if (rig_fails(file, request))
        return -rig.error;
    if (request->operation == MC_DISK_READ)
        return rig_read(request, file);
    if (request->operation == MC_DISK_SYNC) {
        rig_pages_end(&request->fd, 1, queued->at, 256);
        return 0;
    }
    for (uint32_t at = 0; at < request->length; at += MC_DISK_PAGE)
        rig_page_write(request->fd, (request->offset + at + (uint64_t)rig.shift) / MC_DISK_PAGE,
                       (const uint8_t *)request->buffer + at);
    return request->length;
}

static int rig_open(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **io)
{
    (void)kind, (void)depth;
    *io = calloc(1, sizeof(**io));
    assert_non_null(*io);
    return 0;
}

static void rig_submit(struct mc_disk_io *io, struct mc_disk_request *request)
{
    mc_assert(io->count < sizeof(io->queue) / sizeof(io->queue[0]));
    mc_assert(request->offset % MC_DISK_IO_ALIGNMENT == 0 && request->length % MC_DISK_IO_ALIGNMENT == 0 &&
              (uintptr_t)request->buffer % MC_DISK_IO_ALIGNMENT == 0);
    io->queue[io->count++] = (struct queued){request, ++rig.operations};
}

static unsigned rig_collect(struct mc_disk_io *io, int timeout_ms)
{
    unsigned ended = 0, at = 0, todo = io->count;
    rig.now_ns += timeout_ms > 0 && io->count == 0 ? 100000 : 10000;
    if (rig.is_held && !rig.is_dead) {
        rig.now_ns += (uint64_t)(timeout_ms < 0 ? 1000 : timeout_ms) * 1000000;
        return 0;
    }
    if (rig.is_random && todo > 0 && !rig.is_dead)
        todo = (unsigned)random_below(&rig.seed, todo + 1);
    while (todo-- > 0 && at < io->count) {
        unsigned which = rig.is_random ? at + (unsigned)random_below(&rig.seed, io->count - at) : at;
        struct queued one = io->queue[which];
        if ((rig.holds_reads && one.request->operation == MC_DISK_READ) ||
            (rig.holds_growth && one.request->operation == MC_DISK_CALL)) {
            at++;
            continue;
        }
        memmove(&io->queue[which], &io->queue[which + 1], (io->count - which - 1) * sizeof(io->queue[0]));
        io->count--;
        int64_t result = rig_run(&one);
        one.request->done(one.request, result);
        ended++;
    }
    if (rig.holds_reads && ended == 0)
        rig.now_ns += (uint64_t)(timeout_ms < 0 ? 1000 : timeout_ms) * 1000000;
    return ended;
}

static void rig_wake(struct mc_disk_io *io)
{
    (void)io;
}

static void rig_close(struct mc_disk_io *io)
{
    free(io);
}

static const struct mc_disk_ports rig_ports = {rig_open, rig_submit, rig_collect, rig_wake, rig_close};

static uint64_t rig_now(void)
{
    return rig.now_ns;
}

/* ---- ends ---- */

/* All files of a disk's directory. */
static inline unsigned rig_files(const char *directory, int *fds, unsigned most)
{
    unsigned count = 0;
    char path[2048];
    DIR *folder = opendir(directory);
    assert_non_null(folder);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] == '.')
            continue;
        assert_true(count < most);
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        fds[count] = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fds[count] >= 0);
        count++;
    }
    closedir(folder);
    return count;
}

/* The process is gone; so is the machine, if power. kept_of_256: of the pages that it is left to chance. */
static inline void rig_end(struct mc_disk *disk, bool power, unsigned kept_of_256)
{
    int fds[64];
    struct mc_disk_io *io = disk->io;
    unsigned count = rig_files(mc_disk_directory(disk), fds, 64);
    if (!power)
        rig_pages_end(fds, count, UINT64_MAX, 256);
    for (unsigned i = 0; i < io->count; i++) {
        const struct mc_disk_request *request = io->queue[i].request;
        for (uint32_t at = 0; request->operation == MC_DISK_WRITE && at < request->length; at += MC_DISK_PAGE) {
            if (random_below(&rig.seed, 2) == 0)
                rig_page_write(request->fd, (request->offset + at) / MC_DISK_PAGE,
                               (const uint8_t *)request->buffer + at);
        }
    }
    rig_pages_end(fds, count, UINT64_MAX, power ? kept_of_256 : 256);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    rig.is_dead = true;
    mc_disk_close(disk, 0);
    rig.is_dead = false;
}

/* As a process that ends well; the pages reach the files. */
static inline void rig_stop(struct mc_disk *disk)
{
    char directory[MC_DISK_PATH_MAX + 64];
    int fds[64];
    snprintf(directory, sizeof(directory), "%s", mc_disk_directory(disk));
    mc_disk_close(disk, 60000);
    unsigned count = rig_files(directory, fds, 64);
    rig_pages_end(fds, count, UINT64_MAX, 256);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}

/* ---- objects ---- */

static inline uint32_t rig_key(uint64_t number, char *key)
{
    /* Now and then a long one. */
    int length = snprintf(key, MC_KEY_LENGTH_MAX + 1, "key-%llu", (unsigned long long)number);
    uint32_t wanted = number % 13 == 0 ? MC_KEY_LENGTH_MAX : number % 7 == 0 ? 333 : (uint32_t)length;
    memset(key + length, 'x', wanted - (uint32_t)length);
    return wanted;
}

static inline void rig_fill(uint8_t *data, uint64_t length, uint64_t seed)
{
    for (uint64_t at = 0; at < length; at += 8) {
        uint64_t word = random_next(&seed);
        memcpy(data + at, &word, length - at < 8 ? length - at : 8);
    }
}

/* An extent as a segment has it, in a buffer that is large enough. */
static inline struct mc_disk_entry rig_extent(uint8_t *extent, uint64_t generation, uint64_t number, uint64_t length)
{
    char key[MC_KEY_LENGTH_MAX + 1];
    uint32_t key_length = rig_key(number, key);
    struct mc_disk_entry entry = {.generation = generation,
                                  .version = generation / 2,
                                  .length = (uint32_t)length,
                                  .group = number,
                                  .hash = mc_hash(key, key_length),
                                  .key_length = (uint16_t)key_length,
                                  .block_shift = mc_block_shift(length),
                                  .flags = 1};
    rig_fill(extent, length, generation);
    memset(extent + length, 0, mc_table_offset(length) - length);
    uint32_t table = mc_table_length(length, entry.block_shift);
    for (uint64_t at = 0, i = 0; at < length; at += 1ull << entry.block_shift, i++) {
        uint64_t left = length - at, block = 1ull << entry.block_shift;
        uint32_t crc = mc_crc32c(0, extent + at, left < block ? left : block);
        if (table > 0)
            memcpy(extent + mc_table_offset(length) + i * 4, &crc, 4);
        entry.crc = crc;
    }
    if (table > 0)
        entry.crc = mc_crc32c(0, extent + mc_table_offset(length), table);
    memcpy(extent + mc_key_offset(length), key, key_length);
    return entry;
}

/* A slot that is free, and that nobody was given for as long as can be: tests of several threads take them, too. */
static inline uint32_t rig_slot(struct mc_disk *disk)
{
    static _Atomic uint32_t next;
    for (uint32_t i = 0; i < disk->objects_max; i++) {
        uint32_t slot = atomic_fetch_add(&next, 1) % disk->objects_max;
        if (!disk->index.items[slot].is_taken)
            return slot;
    }
    return 0; /* is refused */
}

/* ---- calls that are waited for ---- */

struct answer {
    int code;
    bool is_there;
    uint32_t slot;
    uint64_t cursor;
    struct mc_disk_entry entry;
    uint8_t *buffer;
};

static inline void on_stored(void *context, int code, uint32_t slot)
{
    struct answer *answer = context;
    *answer = (struct answer){.code = code, .is_there = true, .slot = slot};
}
static inline void on_was_read(void *context, int code, const struct mc_disk_entry *entry, uint8_t *buffer)
{
    struct answer *answer = context;
    *answer = (struct answer){.code = code, .is_there = true, .entry = *entry, .buffer = buffer};
}
static inline void on_done(void *context, int code)
{
    struct answer *answer = context;
    *answer = (struct answer){.code = code, .is_there = true};
}
static inline void on_listed(void *context, int code, uint64_t cursor)
{
    struct answer *answer = context;
    *answer = (struct answer){.code = code, .is_there = true, .cursor = cursor};
}

static inline void rig_wait(struct mc_disk *disk, const struct answer *answer)
{
    for (unsigned i = 0; !answer->is_there; i++) {
        assert_true(i < 1000000);
        mc_disk_turn(disk, 1);
    }
}

static inline int rig_store_as(struct mc_disk *disk, uint64_t generation, uint64_t number, uint64_t length,
                               uint32_t *slot, bool was_hit)
{
    char key[MC_KEY_LENGTH_MAX + 1];
    struct answer answer = {.slot = UINT32_MAX};
    if (slot != NULL)
        *slot = UINT32_MAX;
    uint8_t *buffer = mc_disk_lend(disk, length, rig_key(number, key));
    assert_non_null(buffer);
    struct mc_disk_entry entry = rig_extent(buffer, generation, number, length);
    int rc = mc_disk_store(disk, rig_slot(disk), &entry, buffer, was_hit, on_stored, &answer);
    if (rc < 0) {
        mc_disk_give_back(disk, buffer);
        return rc;
    }
    rig_wait(disk, &answer);
    if (slot != NULL)
        *slot = answer.slot;
    return answer.code;
}
static inline int rig_store(struct mc_disk *disk, uint64_t generation, uint64_t number, uint64_t length, uint32_t *slot)
{
    return rig_store_as(disk, generation, number, length, slot, false);
}

/* The code; bytes that are not those of that object are never right. */
static inline int rig_read_object(struct mc_disk *disk, uint32_t slot, uint64_t generation, uint64_t number,
                                  uint64_t length)
{
    struct answer answer = {0};
    int rc =
        mc_disk_read(disk, (struct mc_disk_place){slot, generation}, rig.now_ns + 1000000000, on_was_read, &answer);
    if (rc < 0)
        return rc;
    rig_wait(disk, &answer);
    if (answer.code == 0) {
        uint8_t *expected = malloc(mc_disk_extent_bytes(length, MC_KEY_LENGTH_MAX));
        assert_non_null(expected);
        struct mc_disk_entry entry = rig_extent(expected, generation, number, length);
        assert_int_equal(answer.entry.length, length);
        assert_int_equal(answer.entry.crc, entry.crc);
        assert_int_equal(answer.entry.group, number);
        assert_memory_equal(answer.buffer, expected, mc_key_offset(length) + entry.key_length);
        free(expected);
        mc_disk_give_back(disk, answer.buffer);
    }
    return answer.code;
}

static inline int rig_clear(struct mc_disk *disk, uint32_t slot, uint64_t generation, bool is_removal)
{
    struct answer answer = {0};
    struct mc_disk_place place = {slot, generation};
    int rc = mc_disk_clear(disk, &place, 1, is_removal, on_done, &answer);
    if (rc < 0)
        return rc;
    rig_wait(disk, &answer);
    return answer.code;
}

static inline int rig_list(struct mc_disk *disk, mc_disk_each *each, void *context)
{
    /* `each` has the context of the whole call: an answer must be its first member. */
    struct answer *answer = context;
    uint64_t cursor = 0;
    while (cursor != MC_DISK_CURSOR_END) {
        answer->is_there = false;
        int rc = mc_disk_inventory(disk, cursor, each, on_listed, context);
        if (rc < 0)
            return rc;
        rig_wait(disk, answer);
        if (answer->code < 0)
            return answer->code;
        cursor = answer->cursor;
    }
    return 0;
}

static inline struct mc_disk_config rig_config(const char *path)
{
    return (struct mc_disk_config){.path = path,
                                   .capacity = 6 * RIG_REGION,
                                   .region_bytes = RIG_REGION,
                                   .buffer_bytes = 8 * RIG_REGION,
                                   .is_buffered = true,
                                   .ports = &rig_ports,
                                   .clock_ns = rig_now,
                                   .has_no_thread = true};
}

/* Open and recovered. */
static inline struct mc_disk *rig_start(const struct mc_disk_config *config)
{
    struct mc_disk *disk = NULL;
    char error[MC_DISK_ERROR_MAX] = "";
    rig.now_ns = rig.now_ns == 0 ? 1000000000 : rig.now_ns;
    int rc = mc_disk_open(config, &disk, error, sizeof(error));
    if (rc < 0)
        print_error("%s\n", error);
    assert_int_equal(rc, 0);
    for (unsigned i = 0; disk->recovery != NULL; i++) {
        assert_true(i < 1000000);
        mc_disk_turn(disk, 1);
    }
    return disk;
}

static inline void rig_reset(uint64_t seed)
{
    for (unsigned i = 0; i < RIG_UNSYNCED_BUCKETS; i++) {
        while (rig.pages[i] != NULL) {
            struct unsynced *one = rig.pages[i];
            rig.pages[i] = one->next;
            free(one);
        }
    }
    rig = (struct rig){.seed = seed, .error = EIO, .now_ns = 1000000000};
}

/* A directory in memory where there is one such: what is synced is the stand-in's business. */
static inline char *rig_directory(void)
{
    static char path[64];
    bool is_there = access("/dev/shm", W_OK) == 0;
    snprintf(path, sizeof(path), "%s/mooncake-disk-XXXXXX", is_there ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void rig_remove(const char *path)
{
    char inner[PATH_MAX];
    DIR *folder = opendir(path);
    if (folder == NULL)
        return;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        assert_true(snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name) < (int)sizeof(inner));
        if (unlink(inner) != 0)
            rig_remove(inner);
    }
    closedir(folder);
    rmdir(path);
}

static inline struct mc_disk_statistics rig_statistics(struct mc_disk *disk)
{
    struct mc_disk_statistics statistics;
    mc_disk_turn(disk, 0);
    mc_disk_statistics_read(disk, &statistics);
    return statistics;
}

/* Values of that length under those generations. */
static inline void rig_store_many(struct mc_disk *disk, uint64_t first, uint64_t count, uint64_t length)
{
    for (uint64_t i = first; i < first + count; i++)
        assert_int_equal(rig_store(disk, i, i, length, NULL), 0);
}

#endif
