/* The three shared memories of a segment as memfds: made, sealed, mapped. Named files: segment_name.c. */
#include "store/segment/file.h"

#include "base/checksum.h"
#include "base/size.h"
#include "store/segment/name.h"
#include "store/segment/pages.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

int mc_file_allocate(int fd, uint64_t offset, uint64_t length)
{
    for (unsigned tries = 0; tries < 1000; tries++) {
        if (fallocate(fd, 0, (off_t)offset, (off_t)length) == 0)
            return 0;
        if (errno != EINTR)
            return errno;
    }
    return EINTR;
}

static uint64_t page_round(uint64_t bytes)
{
    return (bytes + MC_PAGE_BYTES - 1) & ~(uint64_t)(MC_PAGE_BYTES - 1);
}

int mc_segment_file_init(struct mc_segment_file *file, uint64_t capacity)
{
    capacity &= ~(uint64_t)(MC_PAGE_BYTES - 1);
    *file = (struct mc_segment_file){.data_fd = -1, .index_fd = -1, .writers_fd = -1, .lock_fd = -1};
    if (capacity == 0 || capacity > MC_CAPACITY_MAX)
        return MC_ERR_INVALID_PARAMS;
    file->capacity = capacity;
    file->page_bytes = MC_PAGE_BYTES;
    file->data_size = page_round(capacity + MC_EXTENT_SLACK);
    file->slot_count = mc_slot_count(capacity);
    file->index_size = page_round(MC_INDEX_SLOTS_AT + (uint64_t)file->slot_count * sizeof(struct mc_slot));
    return 0;
}

/* ---- header ---- */

uint64_t mc_index_header_checksum(const struct mc_index_header *header)
{
    return mc_hash(header, offsetof(struct mc_index_header, checksum)).low;
}

void mc_index_header_fill(struct mc_segment_file *file)
{
    struct mc_index_header *header = file->header;
    header->magic = MC_INDEX_MAGIC;
    header->version = MC_INDEX_VERSION;
    header->slot_count = file->slot_count;
    header->boot = mc_host_id();
    header->segment_id = mc_random_id();
    header->nonce = mc_random_u64() | 1; /* never 0, which is what a hello without a nonce says */
    header->capacity = file->capacity;
    header->data_size = file->data_size;
    header->checksum = mc_index_header_checksum(header);
    atomic_store(&header->slot_top, mc_slot_top_pack(0));
    atomic_store(&header->writer_top, 1);
}

/* ---- mapping ---- */

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

int mc_segment_file_map(struct mc_segment_file *file, int index_fd)
{
    if (file->data == NULL)
        file->data = map_private_to_process(file->data_fd, file->data_size);
    file->header = map_private_to_process(index_fd, file->index_size);
    file->writers = map_private_to_process(file->writers_fd, MC_WRITERS_BYTES);
    if (file->data == NULL || file->header == NULL || file->writers == NULL)
        return MC_ERR_NO_MEMORY;
    (void)madvise(file->data, file->data_size, MADV_HUGEPAGE); /* where shmem_enabled says advise; else in vain */
    file->slots = (struct mc_slot *)(void *)((uint8_t *)file->header + MC_INDEX_SLOTS_AT);
    return 0;
}

void mc_segment_file_free(struct mc_segment_file *file)
{
    if (file->data != NULL)
        munmap(file->data, file->data_size);
    if (file->header != NULL)
        munmap(file->header, file->index_size);
    if (file->writers != NULL)
        munmap(file->writers, MC_WRITERS_BYTES);
    file->data = NULL;
    file->header = NULL;
    file->slots = NULL;
    file->writers = NULL;
    /* The lock last: whoever gets it finds nobody else at the memory. A child that was forked may still have the
     * descriptor, but no map. */
    if (file->lock_fd >= 0)
        (void)flock(file->lock_fd, LOCK_UN);
    mc_segment_file_forked(file);
}

static void fd_close(int *at)
{
    int fd = *at;
    *at = -1; /* first: a child forked in between must not close a stranger */
    if (fd >= 0)
        close(fd);
}

void mc_segment_file_forked(struct mc_segment_file *file)
{
    fd_close(&file->data_fd);
    fd_close(&file->index_fd);
    fd_close(&file->writers_fd);
    fd_close(&file->lock_fd);
}

/* ---- memfds ---- */

/* Born with mode 0777, and the way through /proc to a passed descriptor obeys the mode: other users must stay out. */
static int memfd_finish(int fd, uint64_t size)
{
    if (fd >= 0 && (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)size) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int memfd_make(const char *name, uint64_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* the kernel is older than that flag */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return memfd_finish(fd, size);
}

/* Mapped, which is when the kernel promises all of its huge pages or none. */
static bool data_make_huge(struct mc_segment_file *file, uint64_t page_bytes)
{
    uint64_t size = mc_pages_round(file->data_size, page_bytes);
    int fd = memfd_finish(mc_pages_memfd("mooncake-data", page_bytes), size);
    void *map = fd < 0 ? NULL : map_private_to_process(fd, size);
    if (map == NULL) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        return false;
    }
    file->data_fd = fd;
    file->data = map;
    file->data_size = size;
    file->page_bytes = page_bytes;
    return true;
}

static void data_make(struct mc_segment_file *file)
{
    uint64_t sizes[MC_PAGES_SIZES];
    char text[32];
    size_t count = mc_pages_wanted_here(file->data_size, sizes);
    for (size_t i = 0; i < count; i++) {
        if (data_make_huge(file, sizes[i])) {
            mc_size_text(text, sizeof(text), sizes[i]);
            mc_log(INFO, "the segment lies on %" PRIu64 " huge pages of %s", file->data_size / sizes[i], text);
            return;
        }
        mc_pages_say_missing(sizes[i], file->data_size, errno);
    }
    file->data_fd = memfd_make("mooncake-data", file->data_size);
}

/* SEAL_SEAL: a peer that holds the descriptor could otherwise add a seal that keeps other peers from mapping it. */
static int size_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

/* Our map was made before the seal and goes on writing; nobody can make another such map. */
static int index_seal(struct mc_segment_file *file, int fd)
{
    char path[64];
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
        if (errno != EINVAL || size_seal(fd) != 0)
            return -1;
        mc_log(WARNING, "this kernel has no F_SEAL_FUTURE_WRITE (Linux 5.1): processes of this user could write to the "
                        "segment's index");
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    file->index_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file->index_fd < 0)
        mc_log(WARNING,
               "cannot reopen the index read-only (is /proc mounted?); it is handed out protected by its seals only");
    return 0;
}

int mc_segment_file_make(struct mc_segment_file *file, uint64_t capacity)
{
    int rc = mc_segment_file_init(file, capacity);
    if (rc < 0)
        return rc;
    int index = memfd_make("mooncake-index", file->index_size);
    data_make(file);
    file->writers_fd = memfd_make("mooncake-writers", MC_WRITERS_BYTES);
    if (index < 0 || file->data_fd < 0 || file->writers_fd < 0 || size_seal(file->data_fd) != 0 ||
        size_seal(file->writers_fd) != 0 || mc_segment_file_map(file, index) < 0)
        goto fail;
    mc_index_header_fill(file);
    if (index_seal(file, index) != 0)
        goto fail;
    if (file->index_fd >= 0)
        close(index);
    else
        file->index_fd = index;
    return 0;
fail:
    rc = errno;
    if (index >= 0)
        close(index);
    mc_segment_file_free(file);
    errno = rc;
    return MC_ERR_NO_MEMORY;
}
