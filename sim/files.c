/* Simulated memory files: memfds and named files, their maps, seals and locks. The bytes are plain memory of the
 * simulator, at one address for all: a map that was taken away can still be reached, which a test of the product would
 * see as bytes that change. */
#include "file.h"

#include "disk.h"
#include "held.h"
#include "members.h"
#include "pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LOCKS_MAX 64u
#define DISK_MAX 4096u /* larger files are memory: nobody syncs them */
#define SECTOR 512u

struct byte_lock {
    uint64_t start, length; /* 0: to the end */
    uint32_t owner;
    bool is_write;
};

struct sim_memory {
    uint8_t *bytes;
    uint64_t size, capacity;
    char name[160];
    bool is_named, is_unlinked, is_directory;
    uint32_t machine, opens, maps, mode;
    int seals;
    uint32_t flock_owner;
    uint64_t changed_ns, serial;
    uint8_t *disk;           /* of a file that was synced: what is on the disk, DISK_MAX bytes */
    struct sim_pages *pages; /* of a file on a node's disk: instead of that */
    struct sim_process *made_by;
    uint32_t made_life;
    struct byte_lock locks[LOCKS_MAX];
    uint32_t lock_count;
    struct sim_memory *next;
};

void *sim_calloc(size_t count, size_t size);
void *sim_aligned_alloc(size_t alignment, size_t size);
void sim_free(void *pointer);

static struct sim_memory *memories;
static uint32_t owner_next;
static uint64_t serial_next;
static struct spare_bytes { /* bytes that were given back; by the logarithm of their capacity */
    struct spare_bytes *next;
} * spares[48];

static uint32_t class_of(uint64_t size)
{
    return size <= 4096 ? 12 : 64 - (uint32_t)__builtin_clzll(size - 1);
}

static uint8_t *bytes_take(uint64_t size, uint64_t *capacity)
{
    uint32_t class = class_of(size);
    *capacity = 1ull << class;
    void *bytes = spares[class];
    if (bytes != NULL)
        spares[class] = spares[class]->next;
    else if (posix_memalign(&bytes, 4096, *capacity) != 0)
        abort();
    memset(bytes, 0, size);
    return bytes;
}

static void bytes_give(uint8_t *bytes, uint64_t capacity)
{
    struct spare_bytes *spare = (struct spare_bytes *)(void *)bytes;
    if (spare == NULL)
        return;
    spare->next = spares[class_of(capacity)];
    spares[class_of(capacity)] = spare;
}

void sim_files_reset(void)
{
    for (struct sim_memory *memory = memories; memory != NULL; memory = memory->next)
        bytes_give(memory->bytes, memory->capacity);
    memories = NULL;
    sim_pages_reset();
    owner_next = 0;
    serial_next = 0;
}

static struct sim_memory *memory_make(const char *name)
{
    struct sim_memory *memory = sim_allocate(sizeof(*memory));
    snprintf(memory->name, sizeof(memory->name), "%s", name);
    memory->machine = sim_process()->machine;
    memory->made_by = sim_process();
    memory->made_life = sim_process()->life;
    memory->mode = 0600;
    memory->changed_ns = sim_now_ns;
    memory->serial = ++serial_next;
    memory->next = memories;
    memories = memory;
    return memory;
}

static void memory_settle(struct sim_memory *memory)
{
    if (memory->opens > 0 || memory->maps > 0 || (memory->is_named && !memory->is_unlinked))
        return;
    /* Killed processes never unmap: what they had is counted in maps and stays until the run's end. */
    bytes_give(memory->bytes, memory->capacity);
    memory->bytes = NULL;
    memory->capacity = memory->size = 0;
}

static void memory_release(struct sim_file *file)
{
    struct sim_memory *memory = file->memory;
    memory->opens--;
    if (memory->flock_owner == file->lock_owner)
        memory->flock_owner = 0;
    for (uint32_t i = 0; i < memory->lock_count;) {
        if (memory->locks[i].owner == file->lock_owner)
            memory->locks[i] = memory->locks[--memory->lock_count];
        else
            i++;
    }
    memory_settle(memory);
}

static int memory_open(struct sim_memory *memory, int flags)
{
    struct sim_file *file = sim_file_make(SIM_MEMORY);
    file->on_release = memory_release;
    file->memory = memory;
    file->lock_owner = ++owner_next;
    file->is_read_only = (flags & O_ACCMODE) == O_RDONLY;
    memory->opens++;
    return sim_fd_give(file);
}

static bool is_on_disk(const char *path)
{
    size_t length = strlen(SIM_DISK_PATH);
    return strncmp(path, SIM_DISK_PATH, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* What lies on a disk stays. */
void sim_files_lose(uint32_t machine)
{
    for (struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (memory->is_named && memory->machine == machine && !is_on_disk(memory->name))
            memory->is_unlinked = true;
    }
}

void sim_files_boot(uint32_t machine)
{
    for (struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (memory->pages != NULL && memory->machine == machine && !memory->is_unlinked)
            memory->size = sim_pages_lose(memory->pages, memory->name, memory->bytes, memory->size);
        if (memory->disk == NULL || memory->is_unlinked || memory->machine != machine)
            continue;
        for (uint64_t at = 0; at < memory->size; at += SECTOR) {
            uint64_t length = memory->size - at < SECTOR ? memory->size - at : SECTOR;
            if (memcmp(memory->bytes + at, memory->disk + at, length) == 0 || sim_once_in(SIM_DISK, 4))
                continue;
            sim_say("what was written last to %s at %llu is lost", memory->name, (unsigned long long)at);
            memcpy(memory->bytes + at, memory->disk + at, length);
        }
    }
}

bool sim_flip_bit(void)
{
    uint32_t count = 0;
    struct sim_memory *chosen = NULL;
    for (struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (memory->bytes != NULL && strstr(memory->name, "data") != NULL && sim_below(SIM_FAULTS, ++count) == 0)
            chosen = memory;
    }
    if (chosen == NULL)
        return false;
    uint64_t at = sim_random(SIM_FAULTS) % (chosen->size / 2);
    chosen->bytes[at] ^= (uint8_t)(1u << sim_below(SIM_FAULTS, 8));
    sim_say("a bit of %s flips at %llu", chosen->name, (unsigned long long)at);
    return true;
}

static bool is_living(const struct sim_memory *memory)
{
    return memory->bytes != NULL && memory->made_by->alive && memory->made_by->life == memory->made_life;
}

/* The data that belongs to an index: of the same name, or the newest that its process has made, unless that is gone:
 * then the one before it, of which somebody may still have a map, is not it. */
static const struct sim_memory *data_of(const struct sim_memory *index)
{
    char name[sizeof(index->name)];
    int stem = (int)(strstr(index->name, "index") - index->name);
    snprintf(name, sizeof(name), "%.*sdata", stem, index->name);
    for (const struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (strcmp(memory->name, name) != 0 || memory->is_named != index->is_named || memory->is_unlinked ||
            memory->machine != index->machine ||
            (memory->is_named ? memory->bytes == NULL : memory->made_by != index->made_by))
            continue;
        return memory->bytes == NULL ? NULL : memory;
    }
    return NULL;
}

void sim_each_segment(void (*visit)(const char *owner, const uint8_t *index, uint64_t index_size, const uint8_t *data,
                                    uint64_t data_size))
{
    uint32_t seen = 0; /* processes whose newest memfd was visited */
    for (const struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (memory->bytes == NULL || strstr(memory->name, "index") == NULL)
            continue;
        if (memory->is_named) {
            if (memory->is_unlinked || memory->flock_owner == 0)
                continue;
        } else {
            if (!is_living(memory) || (seen >> memory->made_by->place & 1u) != 0)
                continue;
            seen |= 1u << memory->made_by->place;
        }
        const struct sim_memory *data = data_of(memory);
        if (data != NULL)
            visit(memory->is_named ? memory->name : memory->made_by->name, memory->bytes, memory->size, data->bytes,
                  data->size);
    }
}

/* ---- calls ---- */

int sim_memfd_create(const char *name, unsigned flags);
int sim_memfd_create(const char *name, unsigned flags)
{
    (void)flags;
    sim_preempt();
    return memory_open(memory_make(name), O_RDWR);
}

static int memory_resize(struct sim_memory *memory, uint64_t size)
{
    if ((size < memory->size && (memory->seals & F_SEAL_SHRINK) != 0) ||
        (size > memory->size && (memory->seals & F_SEAL_GROW) != 0)) {
        errno = EPERM;
        return -1;
    }
    if (size > memory->size && sim_is_short(SIM_SHORT_ROOM)) {
        sim_process()->had_no_room = true;
        errno = ENOSPC;
        return -1;
    }
    if (size < memory->size && memory->pages != NULL)
        sim_pages_cut(memory->pages, size);
    if (size > memory->capacity) {
        uint64_t capacity;
        uint8_t *bytes = bytes_take(size, &capacity);
        if (memory->maps > 0)
            sim_fail("a mapped memory file grows; the simulator cannot move it");
        if (memory->bytes != NULL)
            memcpy(bytes, memory->bytes, memory->size);
        bytes_give(memory->bytes, memory->capacity);
        memory->bytes = bytes;
        memory->capacity = capacity;
    } else if (size > memory->size) {
        memset(memory->bytes + memory->size, 0, size - memory->size);
    }
    memory->size = size;
    memory->changed_ns = sim_now_ns;
    return 0;
}

int sim_ftruncate64(int fd, off_t size);
int sim_ftruncate64(int fd, off_t size)
{
    struct sim_file *file = sim_fd_file(fd);
    return file == NULL || file->kind != SIM_MEMORY ? -1 : memory_resize(file->memory, (uint64_t)size);
}

/* All is allocated from the start, but what the disk refuses. */
static int memory_allocate(struct sim_memory *memory, uint64_t end)
{
    if (memory->pages != NULL && sim_disk_fails(memory->machine, ENOSPC))
        return ENOSPC;
    return end > memory->size && memory_resize(memory, end) != 0 ? errno : 0;
}

int sim_fallocate64(int fd, int mode, off_t offset, off_t length);
int sim_fallocate64(int fd, int mode, off_t offset, off_t length)
{
    struct sim_file *file = sim_fd_file(fd);
    sim_preempt();
    if (file == NULL || file->kind != SIM_MEMORY)
        return -1;
    if ((mode & FALLOC_FL_KEEP_SIZE) != 0)
        return 0;
    int error = memory_allocate(file->memory, (uint64_t)(offset + length));
    if (error != 0)
        errno = error;
    return error == 0 ? 0 : -1;
}

int sim_fchmod(int fd, unsigned mode);
int sim_fchmod(int fd, unsigned mode)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    if (file->kind == SIM_MEMORY)
        file->memory->mode = mode;
    return 0;
}

static void stat_fill(const struct sim_memory *memory, struct stat *status)
{
    *status = (struct stat){.st_size = (off_t)memory->size,
                            .st_mode = S_IFREG | memory->mode,
                            .st_uid = 1000,
                            .st_nlink = memory->is_unlinked ? 0 : 1,
                            .st_ino = (ino_t)memory->serial,
                            .st_blocks = (blkcnt_t)((memory->size + 511) / 512),
                            .st_mtim = {.tv_sec = (time_t)(1800000000u + memory->changed_ns / 1000000000u)}};
}

int sim_fstat64(int fd, struct stat *status);
int sim_fstat64(int fd, struct stat *status)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL)
        return -1;
    if (file->kind == SIM_MEMORY)
        stat_fill(file->memory, status);
    else
        *status = (struct stat){.st_mode = file->kind == SIM_DIRECTORY ? S_IFDIR | 0700 : S_IFSOCK, .st_uid = 1000};
    return 0;
}

int64_t sim_memory_read(struct sim_file *file, void *data, size_t size)
{
    uint64_t left = file->position < file->memory->size ? file->memory->size - file->position : 0;
    size_t length = size < left ? size : (size_t)left;
    memcpy(data, file->memory->bytes + file->position, length);
    file->position += length;
    return (int64_t)length;
}

int64_t sim_memory_write(struct sim_file *file, const void *data, size_t size)
{
    if (file->memory->pages != NULL)
        sim_pages_write(file->memory->pages, file->memory->bytes, file->memory->size, file->position, size);
    if (file->position + size > file->memory->size && memory_resize(file->memory, file->position + size) != 0)
        return -1;
    memcpy(file->memory->bytes + file->position, data, size);
    file->position += size;
    file->memory->changed_ns = sim_now_ns;
    return (int64_t)size;
}

/* One call at a place: the position of the file stays. from or to is NULL. */
static int64_t memory_at(int fd, void *to, const void *from, size_t size, off_t offset)
{
    struct sim_file *file = sim_fd_file(fd);
    if (file == NULL || file->kind != SIM_MEMORY)
        return -1;
    uint64_t before = file->position;
    file->position = (uint64_t)offset;
    int64_t moved = to != NULL ? sim_memory_read(file, to, size) : sim_memory_write(file, from, size);
    file->position = before;
    return moved;
}

ssize_t sim_pread64(int fd, void *data, size_t size, off_t offset);
ssize_t sim_pread64(int fd, void *data, size_t size, off_t offset)
{
    return (ssize_t)memory_at(fd, data, NULL, size, offset);
}

static bool is_note(int fd)
{
    const struct sim_file *file = sim_fd_file(fd);
    return file != NULL && file->kind == SIM_MEMORY && strstr(file->memory->name, ".note") != NULL;
}

/* A write into the page cache waits for a journal now and then; a thread of its own makes it. */
static void note_delay(void)
{
    static const uint32_t most_ms[] = {5, 300, 3000, 20000};
    sim_sleep_ns(sim_below(SIM_WRITE, 50) * 1000ull);
    if (!sim_once_in(SIM_WRITE, 50) || oracle_is_strict())
        return;
    uint64_t until_ns = sim_now_ns + sim_below(SIM_WRITE, most_ms[sim_below(SIM_WRITE, 4)]) * SIM_MS;
    while (!sim_cluster.is_calm && sim_now_ns < until_ns)
        sim_sleep_ns(10 * SIM_MS);
}

ssize_t sim_pwrite64(int fd, const void *data, size_t size, off_t offset);
ssize_t sim_pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    if (is_note(fd))
        note_delay();
    return (ssize_t)memory_at(fd, NULL, data, size, offset);
}

/* ---- for disk.c ---- */

struct sim_memory *sim_memory_of(int fd)
{
    struct sim_file *file = sim_fd_file(fd);
    return file == NULL || file->kind != SIM_MEMORY || file->memory->pages == NULL ? NULL : file->memory;
}

uint32_t sim_memory_read_at(const struct sim_memory *memory, uint8_t *bytes, uint32_t length, uint64_t offset)
{
    uint64_t left = offset < memory->size ? memory->size - offset : 0;
    length = left < length ? (uint32_t)left : length;
    if (length > 0)
        memcpy(bytes, memory->bytes + offset, length);
    return length;
}

int sim_memory_write_at(struct sim_memory *memory, const uint8_t *bytes, uint32_t length, uint64_t offset)
{
    if (memory->is_unlinked)
        return 0;
    sim_pages_write(memory->pages, memory->bytes, memory->size, offset, length);
    if (offset + length > memory->size && memory_resize(memory, offset + length) != 0)
        return errno;
    memcpy(memory->bytes + offset, bytes, length);
    return 0;
}

const char *sim_memory_name(const struct sim_memory *memory)
{
    return memory->name;
}

struct sim_pages *sim_memory_pages(struct sim_memory *memory, uint64_t *size)
{
    *size = memory->size;
    return memory->pages;
}

/* ---- paths ---- */

static struct sim_memory *named_find(const char *path)
{
    struct sim_memory *memory = memories;
    while (memory != NULL && (!memory->is_named || memory->is_unlinked || memory->machine != sim_process()->machine ||
                              strcmp(memory->name, path) != 0))
        memory = memory->next;
    return memory;
}

/* Where named files may be. */
static bool is_in_directory(const char *path)
{
    return strncmp(path, "/shm/", 5) == 0 || is_on_disk(path);
}

static bool is_directory(const char *path)
{
    if (!is_on_disk(path) || strcmp(path, SIM_DISK_PATH) == 0)
        return strncmp(path, "/shm", 4) == 0 || is_on_disk(path);
    const struct sim_memory *memory = named_find(path);
    return memory != NULL && memory->is_directory;
}

static int path_open(const char *path, int flags)
{
    sim_preempt();
    if (strncmp(path, "/proc/self/fd/", 14) == 0) {
        struct sim_file *file = sim_fd_file(atoi(path + 14));
        return file == NULL || file->kind != SIM_MEMORY ? -1 : memory_open(file->memory, flags);
    }
    if ((flags & O_DIRECTORY) != 0 || strcmp(path, "/shm") == 0) {
        if (!is_directory(path)) {
            errno = ENOENT;
            return -1;
        }
        struct sim_file *directory = sim_file_make(SIM_DIRECTORY);
        snprintf(directory->name, sizeof(directory->name), "%s", path);
        return sim_fd_give(directory);
    }
    struct sim_memory *memory = is_in_directory(path) ? named_find(path) : NULL;
    if (memory == NULL && ((flags & O_CREAT) == 0 || !is_in_directory(path))) {
        errno = ENOENT;
        return -1;
    }
    if (memory != NULL && (flags & O_EXCL) != 0) {
        errno = EEXIST;
        return -1;
    }
    if (memory == NULL) {
        memory = memory_make(path);
        memory->is_named = true;
        memory->pages = is_on_disk(path) ? sim_pages_make() : NULL;
    }
    if ((flags & O_TRUNC) != 0 && memory_resize(memory, 0) != 0)
        return -1;
    memory->made_by = sim_process();
    memory->made_life = sim_process()->life;
    return memory_open(memory, flags);
}

/* Who has no descriptor for the directory of its data, or for a file there, keeps its memory elsewhere. */
static int open_path(const char *path, int flags)
{
    int fd = path_open(path, flags);
    if (fd < 0 && errno == EMFILE && !is_on_disk(path))
        sim_process()->had_no_room = true;
    return fd;
}

int sim_open64(const char *path, int flags, ...);
int sim_open64(const char *path, int flags, ...)
{
    return open_path(path, flags);
}

int sim_openat64(int directory, const char *path, int flags, ...);
int sim_openat64(int directory, const char *path, int flags, ...)
{
    char whole[300];
    struct sim_file *file = sim_fd_file(directory);
    snprintf(whole, sizeof(whole), "%s/%s", file == NULL ? "" : file->name, path);
    return open_path(path[0] == '/' ? path : whole, flags);
}

int sim_unlink(const char *path);
int sim_unlink(const char *path)
{
    struct sim_memory *memory = named_find(path);
    if (memory == NULL) {
        errno = ENOENT;
        return -1;
    }
    memory->is_unlinked = true;
    memory_settle(memory);
    return 0;
}

int sim_unlinkat(int directory, const char *path, int flags);
int sim_unlinkat(int directory, const char *path, int flags)
{
    char whole[300];
    struct sim_file *file = sim_fd_file(directory);
    (void)flags;
    snprintf(whole, sizeof(whole), "%s/%s", file == NULL ? "" : file->name, path);
    return sim_unlink(whole);
}

int sim_rename(const char *from, const char *to);
int sim_rename(const char *from, const char *to)
{
    struct sim_memory *memory = named_find(from), *old = named_find(to);
    if (memory == NULL) {
        errno = ENOENT;
        return -1;
    }
    if (old != NULL && old != memory)
        (void)sim_unlink(to);
    snprintf(memory->name, sizeof(memory->name), "%s", to);
    return 0;
}

int sim_stat64(const char *path, struct stat *status);
int sim_stat64(const char *path, struct stat *status)
{
    struct sim_memory *memory = named_find(path);
    bool is_top = strcmp(path, "/shm") == 0 || strcmp(path, SIM_DISK_PATH) == 0;
    if (is_top || (memory != NULL && memory->is_directory)) {
        *status = (struct stat){.st_mode = S_IFDIR | 0700, .st_uid = 1000};
        return 0;
    }
    if (memory == NULL) {
        errno = ENOENT;
        return -1;
    }
    stat_fill(memory, status);
    return 0;
}

int sim_lstat64(const char *path, struct stat *status);
int sim_lstat64(const char *path, struct stat *status)
{
    return sim_stat64(path, status);
}

int sim_fstatat64(int directory, const char *path, struct stat *status, int flags);
int sim_fstatat64(int directory, const char *path, struct stat *status, int flags)
{
    char whole[300];
    struct sim_file *file = sim_fd_file(directory);
    (void)flags;
    snprintf(whole, sizeof(whole), "%s/%s", file == NULL ? "" : file->name, path);
    return sim_stat64(whole, status);
}

struct listing {
    struct sim_memory *at;
    char name[108];
    struct dirent entry;
};

/* Named memory lies in a tmpfs. */
int sim_statfs64(const char *path, struct statfs *status);
int sim_statfs64(const char *path, struct statfs *status)
{
    if (strncmp(path, "/shm", 4) != 0) {
        errno = ENOENT;
        return -1;
    }
    *status = (struct statfs){.f_type = 0x01021994};
    return 0;
}

/* Each disk is told how much it may take. */
int sim_statvfs64(const char *path, void *status);
int sim_statvfs64(const char *path, void *status)
{
    (void)path, (void)status;
    errno = ENOSYS;
    return -1;
}

/* A full file system has something left now and then, as memory_allocate() has it. */
int sim_fstatvfs64(int fd, struct statvfs *status);
int sim_fstatvfs64(int fd, struct statvfs *status)
{
    (void)fd;
    *status = (struct statvfs){.f_frsize = 4096, .f_blocks = 1u << 30};
    status->f_bavail = sim_disk_fails(sim_process()->machine, ENOSPC) ? 0 : status->f_blocks;
    return 0;
}

struct listing *sim_opendir(const char *path);
struct listing *sim_opendir(const char *path)
{
    if (strncmp(path, "/shm", 4) != 0) { /* nobody lists a disk */
        errno = ENOENT;
        return NULL;
    }
    struct listing *listing = sim_calloc(1, sizeof(*listing));
    if (listing == NULL)
        return NULL;
    listing->at = memories;
    snprintf(listing->name, sizeof(listing->name), "%s", path);
    return listing;
}

struct dirent *sim_readdir64(struct listing *listing);
struct dirent *sim_readdir64(struct listing *listing)
{
    size_t length = strlen(listing->name);
    while (listing->at != NULL) {
        struct sim_memory *memory = listing->at;
        listing->at = memory->next;
        if (memory->is_named && !memory->is_unlinked && memory->machine == sim_process()->machine &&
            strncmp(memory->name, listing->name, length) == 0 && memory->name[length] == '/') {
            snprintf(listing->entry.d_name, sizeof(listing->entry.d_name), "%s", memory->name + length + 1);
            listing->entry.d_type = DT_REG;
            return &listing->entry;
        }
    }
    return NULL;
}

int sim_closedir(struct listing *listing);
int sim_closedir(struct listing *listing)
{
    sim_free(listing);
    return 0;
}

int sim_mkdir(const char *path, unsigned mode);
int sim_mkdir(const char *path, unsigned mode)
{
    (void)mode;
    if (!is_on_disk(path) || is_directory(path)) {
        errno = is_directory(path) ? EEXIST : EACCES;
        return -1;
    }
    struct sim_memory *directory = memory_make(path);
    directory->is_named = directory->is_directory = true;
    return 0;
}

int sim_chmod(const char *path, unsigned mode);
int sim_chmod(const char *path, unsigned mode)
{
    (void)path, (void)mode;
    return 0;
}

int sim_flock(int fd, int operation);
int sim_flock(int fd, int operation)
{
    struct sim_file *file = sim_fd_file(fd);
    sim_preempt();
    if (file == NULL || file->kind != SIM_MEMORY)
        return -1;
    struct sim_memory *memory = file->memory;
    if ((operation & LOCK_UN) != 0) {
        if (memory->flock_owner == file->lock_owner)
            memory->flock_owner = 0;
        return 0;
    }
    if (memory->flock_owner != 0 && memory->flock_owner != file->lock_owner) {
        errno = EWOULDBLOCK;
        return -1;
    }
    memory->flock_owner = file->lock_owner;
    return 0;
}

static const struct byte_lock *lock_conflict(const struct sim_memory *memory, uint32_t owner,
                                             const struct flock *wanted)
{
    uint64_t start = (uint64_t)wanted->l_start, end = wanted->l_len == 0 ? UINT64_MAX : start + (uint64_t)wanted->l_len;
    for (uint32_t i = 0; i < memory->lock_count; i++) {
        const struct byte_lock *lock = &memory->locks[i];
        uint64_t lock_end = lock->length == 0 ? UINT64_MAX : lock->start + lock->length;
        if (lock->owner != owner && lock->start < end && start < lock_end &&
            (lock->is_write || wanted->l_type == F_WRLCK))
            return lock;
    }
    return NULL;
}

static int lock_set(struct sim_file *file, const struct flock *wanted)
{
    struct sim_memory *memory = file->memory;
    if (wanted->l_type != F_UNLCK && lock_conflict(memory, file->lock_owner, wanted) != NULL) {
        errno = EAGAIN;
        return -1;
    }
    for (uint32_t i = 0; i < memory->lock_count; i++) {
        if (memory->locks[i].owner == file->lock_owner && memory->locks[i].start == (uint64_t)wanted->l_start) {
            memory->locks[i] = memory->locks[--memory->lock_count];
            break;
        }
    }
    if (wanted->l_type == F_UNLCK)
        return 0;
    if (memory->lock_count == LOCKS_MAX) {
        errno = ENOLCK;
        return -1;
    }
    memory->locks[memory->lock_count++] = (struct byte_lock){.start = (uint64_t)wanted->l_start,
                                                             .length = (uint64_t)wanted->l_len,
                                                             .owner = file->lock_owner,
                                                             .is_write = wanted->l_type == F_WRLCK};
    return 0;
}

int sim_fcntl64(int fd, int command, ...);
int sim_fcntl64(int fd, int command, ...)
{
    struct sim_file *file = sim_fd_file(fd);
    va_list arguments;
    va_start(arguments, command);
    uintptr_t argument = va_arg(arguments, uintptr_t);
    va_end(arguments);
    sim_preempt();
    if (file == NULL)
        return -1;
    if (file->kind != SIM_MEMORY) {
        if (command == F_DUPFD_CLOEXEC || command == F_DUPFD) {
            file->references++;
            return sim_fd_give(file);
        }
        return 0;
    }
    struct flock *lock = (struct flock *)argument;
    switch (command) {
    case F_ADD_SEALS:
        if ((file->memory->seals & F_SEAL_SEAL) != 0) {
            errno = EPERM;
            return -1;
        }
        file->memory->seals |= (int)argument;
        return 0;
    case F_GET_SEALS:
        if (!file->memory->is_named)
            return file->memory->seals;
        errno = EINVAL;
        return -1;
    case F_OFD_SETLK:
        return lock_set(file, lock);
    case F_OFD_GETLK:
        if (lock_conflict(file->memory, file->lock_owner, lock) == NULL)
            lock->l_type = F_UNLCK;
        else
            lock->l_type = F_WRLCK;
        return 0;
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        file->references++;
        return sim_fd_give(file);
    default:
        return 0;
    }
}

/* Without a file: memory of the process. */
static void *map_anonymous(size_t size)
{
    void *map = sim_aligned_alloc(4096, size);
    if (map != NULL && size < (64u << 10)) /* larger ones are as empty as the host's are */
        memset(map, 0, size);
    if (map != NULL)
        return map;
    errno = ENOMEM;
    return MAP_FAILED;
}

off_t sim_lseek64(int fd, off_t offset, int whence);
off_t sim_lseek64(int fd, off_t offset, int whence)
{
    struct sim_file *file = sim_fd_file(fd);
    return file == NULL || file->kind != SIM_MEMORY || whence != SEEK_END ? -1 : (off_t)file->memory->size + offset;
}

void *sim_mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *sim_mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    struct sim_file *file = fd < 0 ? NULL : sim_fd_file(fd);
    (void)at;
    sim_preempt();
    if ((flags & MAP_ANONYMOUS) != 0)
        return map_anonymous(size);
    if (file == NULL || file->kind != SIM_MEMORY ||
        (uint64_t)offset + size > ((file->memory->size + 4095) & ~4095ull)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    if ((protection & PROT_WRITE) != 0 &&
        (file->is_read_only || (file->memory->seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)) {
        errno = EACCES;
        return MAP_FAILED;
    }
    file->memory->maps++;
    return file->memory->bytes + offset;
}

int sim_munmap(void *map, size_t size);
int sim_munmap(void *map, size_t size)
{
    (void)size;
    sim_preempt();
    if (sim_arena_has(map)) {
        sim_free(map);
        return 0;
    }
    for (struct sim_memory *memory = memories; memory != NULL; memory = memory->next) {
        if (memory->bytes != NULL && (uint8_t *)map >= memory->bytes &&
            (uint8_t *)map < memory->bytes + memory->capacity) {
            memory->maps--;
            memory_settle(memory);
            return 0;
        }
    }
    sim_fail("munmap of what is not mapped");
    return -1;
}

int sim_madvise(void *map, size_t size, int advice);
int sim_madvise(void *map, size_t size, int advice)
{
    (void)map, (void)size, (void)advice;
    sim_preempt();
    return 0;
}

/* Of NUMA nodes, of which there is one. */
long sim_syscall(long number, ...);
long sim_syscall(long number, ...)
{
    (void)number;
    errno = ENOSYS;
    return -1;
}

int sim_fsync(int fd);
int sim_fsync(int fd)
{
    struct sim_file *file = sim_fd_file(fd);
    struct sim_memory *memory = file == NULL || file->kind != SIM_MEMORY ? NULL : file->memory;
    if (memory != NULL && memory->pages != NULL)
        sim_pages_sync_end(memory->pages, sim_pages_sync_begin(memory->pages, memory->size));
    if (memory == NULL || memory->pages != NULL || memory->size > DISK_MAX)
        return 0;
    if (memory->disk == NULL)
        memory->disk = sim_allocate(DISK_MAX);
    memcpy(memory->disk, memory->bytes, memory->size);
    return 0;
}

/* Who waits for this one does so on a thread of its own. */
int sim_fdatasync(int fd);
int sim_fdatasync(int fd)
{
    static const uint32_t most_us[] = {100, 5000, 50000, 2000000};
    uint32_t drawn_us = sim_below(SIM_DISK, most_us[sim_below(SIM_DISK, 4)]);
    uint32_t took_us = drawn_us % 64 == 0 ? 8000000 + 64 * (drawn_us % 250000) : drawn_us; /* some hang */
    if (oracle_is_strict()) /* nothing happens: no master takes so long to begin that puts are over by then */
        took_us %= 50000;
    sim_sleep_ns(took_us * 1000ull);
    if (sim_is_short(SIM_SHORT_ROOM)) {
        errno = EIO;
        return -1;
    }
    return sim_fsync(fd);
}

void *sim_fopen64(const char *path, const char *mode);
void *sim_fopen64(const char *path, const char *mode)
{
    (void)path, (void)mode;
    errno = ENOENT;
    return NULL;
}
