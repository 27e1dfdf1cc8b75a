/* Segments with a name: three files in a directory that outlive the process. Everything that makes, takes up or removes
 * files there happens under a lock of the directory. Nothing that a file says is believed before it was checked: it may
 * be cut short, damaged, of another boot, or of another version. */
#include "store/segment/name.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES (MC_SEGMENT_STEM_MAX + 16u)
#define INDEX_END ".index"
#define ANY_CAPACITY UINT64_MAX

static const char *const endings[] = {".data", ".writers", INDEX_END}; /* the index last: it is what others look for */

static int file_open(const char *stem, const char *ending, int flags)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s%s", stem, ending);
    return open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void files_unlink(const char *stem)
{
    char path[PATH_BYTES];
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", stem, endings[i]);
        if (unlink(path) != 0 && errno != ENOENT)
            mc_log_limited(WARNING, "cannot remove %s: %s", path, strerror(errno));
    }
}

void mc_segment_file_unlink(struct mc_segment_file *file)
{
    if (file->is_named && file->lock_fd >= 0)
        files_unlink(file->stem);
    file->is_named = false;
}

/* ---- locks ---- */

/* A child that was forked meanwhile has the same description: closing alone would leave it locked. */
static void lock_close(int fd)
{
    (void)flock(fd, LOCK_UN);
    close(fd);
}

/* EWOULDBLOCK: another process is at work there, perhaps stopped. Who does not know which boot this is judges nothing:
 * files of another one are of no use, and he would remove those of this one. */
static int directory_lock(const char *directory, uint64_t until_ns)
{
    char path[PATH_BYTES];
    struct mc_id host;
    if (!mc_host_id_read(&host)) /* once known it stays so */
        return -1;
    snprintf(path, sizeof(path), "%s/.lock", directory);
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        struct timespec pause = {.tv_nsec = 5000000};
        if ((error == EWOULDBLOCK || error == EINTR) && mc_clock_ns() < until_ns) {
            nanosleep(&pause, NULL);
            continue;
        }
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* ---- judging what is there ---- */

enum verdict { IN_USE, USELESS, OTHER_LAYOUT, OTHER_SIZE, GOOD };

bool mc_segment_is_shortage(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOLCK || error == EINTR;
}

/* A regular file of ours, not linked elsewhere, still there, at least (exact: exactly) so large. */
static bool file_is_ours(int fd, uint64_t size, bool exact, uint64_t *allocated)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_nlink != 1 ||
        status.st_size < 0)
        return false;
    *allocated = (uint64_t)status.st_blocks * 512;
    return exact ? (uint64_t)status.st_size == size : (uint64_t)status.st_size >= size;
}

/* When was it last used, on CLOCK_BOOTTIME? */
static bool is_too_old(int fd, const struct mc_index_header *header)
{
    struct stat status;
    struct timespec now;
    uint64_t boot_ms = mc_clock_boot_ms(), contact_ms = atomic_load(&header->contact_ms);
    if (contact_ms > boot_ms)
        return true; /* damaged */
    if (boot_ms - contact_ms < MC_SEGMENT_DEAD_MS)
        return false;
    if (fstat(fd, &status) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0)
        return true;
    return (now.tv_sec - status.st_mtim.tv_sec) * 1000 > (time_t)MC_SEGMENT_DEAD_MS;
}

static bool header_is_good(const struct mc_index_header *header)
{
    uint64_t epoch = atomic_load(&header->epoch), populated = atomic_load(&header->populated);
    uint64_t floor = atomic_load(&header->floor);
    struct mc_segment_file sizes;
    return header->magic == MC_INDEX_MAGIC && header->version == MC_INDEX_VERSION &&
           header->checksum == mc_index_header_checksum(header) && mc_id_equal(header->boot, mc_host_id()) &&
           mc_segment_file_init(&sizes, header->capacity) == 0 && sizes.capacity == header->capacity &&
           sizes.data_size == header->data_size && sizes.slot_count == header->slot_count && header->nonce != 0 &&
           !mc_id_is_zero(header->segment_id) && epoch <= UINT64_MAX >> MC_EPOCH_SHIFT &&
           floor >= epoch << MC_EPOCH_SHIFT && atomic_load(&header->ages) == (epoch ^ floor) &&
           populated <= header->capacity && populated % MC_PAGE_BYTES == 0;
}

/* GOOD: *lock_fd is its index, locked. Else nothing is open, and errno says of IN_USE whether that is for a shortage.
 * capacity: ANY_CAPACITY, or the one that is good. */
static enum verdict stem_judge(const char *stem, uint64_t capacity, int *lock_fd)
{
    union {
        struct mc_index_header header;
        uint8_t bytes[MC_INDEX_SLOTS_AT];
    } page;
    enum verdict verdict = USELESS;
    uint64_t allocated;
    int fd = file_open(stem, INDEX_END, O_RDWR);
    if (fd < 0) /* a name that leads elsewhere, or another user's */
        return errno == ENOENT ? USELESS : IN_USE;
    bool is_locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    ssize_t length = is_locked ? pread(fd, page.bytes, sizeof(page.bytes), 0) : -1;
    if (length < 0) { /* somebody's, or it cannot be read now */
        int error = errno;
        if (is_locked)
            lock_close(fd);
        else
            close(fd);
        errno = error;
        return IN_USE;
    }
    if (length == (ssize_t)sizeof(page.bytes) && file_is_ours(fd, MC_INDEX_SLOTS_AT, false, &allocated)) {
        if (page.header.magic == MC_INDEX_MAGIC && page.header.version != MC_INDEX_VERSION)
            verdict = OTHER_LAYOUT;
        else if (header_is_good(&page.header) && !is_too_old(fd, &page.header))
            verdict = page.header.capacity == capacity || capacity == ANY_CAPACITY ? GOOD : OTHER_SIZE;
    }
    if (verdict == GOOD)
        *lock_fd = fd;
    else
        lock_close(fd);
    return verdict;
}

/* ---- taking up and making ---- */

/* Every byte that is going to be touched must be there already: a hole that cannot be filled would be a SIGBUS. */
static bool is_backed(int fd, uint64_t size, uint64_t allocated, uint64_t end)
{
    return allocated >= size || end == 0 || mc_file_allocate(fd, 0, end) == 0;
}

static bool files_open(struct mc_segment_file *file)
{
    uint64_t allocated;
    file->data_fd = file_open(file->stem, ".data", O_RDWR);
    file->writers_fd = file_open(file->stem, ".writers", O_RDWR);
    file->index_fd = file_open(file->stem, INDEX_END, O_RDONLY);
    return file->data_fd >= 0 && file->writers_fd >= 0 && file->index_fd >= 0 &&
           file_is_ours(file->writers_fd, MC_WRITERS_BYTES, true, &allocated) &&
           is_backed(file->writers_fd, MC_WRITERS_BYTES, allocated, MC_WRITERS_BYTES) &&
           file_is_ours(file->lock_fd, file->index_size, true, &allocated) &&
           is_backed(file->lock_fd, file->index_size, allocated, file->index_size);
}

/* The index of stem is locked. False: it is of no use, and gone; or it stays, as this process is out of something:
 * then *shortage is what errno was. */
static bool stem_take_up(struct mc_segment_file *file, const char *stem, int lock_fd, int *shortage)
{
    uint64_t allocated = 0;
    file->lock_fd = lock_fd;
    snprintf(file->stem, sizeof(file->stem), "%s", stem);
    errno = 0;
    if (files_open(file) && file_is_ours(file->data_fd, file->data_size, true, &allocated) &&
        mc_segment_file_map(file, file->lock_fd) == 0 && header_is_good(file->header) &&
        is_backed(file->data_fd, file->data_size, allocated,
                  mc_populated_end(file, atomic_load(&file->header->populated)))) {
        file->is_named = true;
        return true;
    }
    if (mc_segment_is_shortage(errno)) {
        *shortage = errno;
        mc_log(WARNING, "the segment left in %s.* cannot be taken up now: %s; it stays", stem, strerror(errno));
    } else {
        mc_log(WARNING, "the segment left in %s.* is damaged; removed", stem);
        files_unlink(stem);
    }
    mc_segment_file_free(file);
    return false;
}

static int part_make(const char *stem, const char *ending, uint64_t size, bool backed)
{
    int fd = file_open(stem, ending, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0)
        return -1;
    int error = ftruncate(fd, (off_t)size) == 0 ? 0 : errno;
    if (error == 0) /* the data is backed when it is populated; a byte of it shows whether this file system can */
        error = mc_file_allocate(fd, 0, backed ? size : MC_PAGE_BYTES);
    if (error == 0)
        return fd;
    close(fd);
    errno = error;
    return -1;
}

static int stem_make(struct mc_segment_file *file, const char *stem)
{
    int error;
    snprintf(file->stem, sizeof(file->stem), "%s", stem);
    files_unlink(stem); /* parts without an index */
    file->lock_fd = part_make(stem, INDEX_END, file->index_size, true);
    file->data_fd = file->lock_fd < 0 ? -1 : part_make(stem, ".data", file->data_size, false);
    file->writers_fd = file->data_fd < 0 ? -1 : part_make(stem, ".writers", MC_WRITERS_BYTES, true);
    file->index_fd = file->writers_fd < 0 ? -1 : file_open(stem, INDEX_END, O_RDONLY);
    if (file->index_fd < 0 || flock(file->lock_fd, LOCK_EX | LOCK_NB) != 0 ||
        mc_segment_file_map(file, file->lock_fd) < 0)
        goto fail;
    mc_index_header_fill(file);
    file->is_named = true;
    return 0;
fail:
    error = errno;
    files_unlink(stem);
    mc_segment_file_free(file);
    errno = error;
    return MC_ERR_FILE_OPEN_FAIL;
}

/* ---- the directory ---- */

/* directory/name with what does not belong into a file name replaced; number > 0: one more of that name. */
static bool stem_name(char *stem, const char *directory, const char *name, unsigned number)
{
    char clean[MC_SEGMENT_NAME_MAX + 1];
    size_t length = 0;
    for (; name[length] != 0 && length < MC_SEGMENT_NAME_MAX; length++) {
        char c = name[length];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                     (c == '.' && length > 0);
        clean[length] = plain ? c : '_';
    }
    clean[length] = 0;
    int written = number == 0 ? snprintf(stem, MC_SEGMENT_STEM_MAX, "%s/%s", directory, length == 0 ? "_" : clean)
                              : snprintf(stem, MC_SEGMENT_STEM_MAX, "%s/%s.%u", directory, clean, number);
    return written > 0 && (size_t)written < MC_SEGMENT_STEM_MAX;
}

/* The stem of a directory's entry; false: it is none of an index. */
static bool entry_stem(char *stem, const char *directory, const struct dirent *entry)
{
    size_t length = strlen(entry->d_name), end = strlen(INDEX_END);
    if (length <= end || strcmp(entry->d_name + length - end, INDEX_END) != 0)
        return false;
    int written = snprintf(stem, MC_SEGMENT_STEM_MAX, "%s/%.*s", directory, (int)(length - end), entry->d_name);
    return written > 0 && (size_t)written < MC_SEGMENT_STEM_MAX;
}

/* Looks at every segment of the directory: removes what is dead and useless, takes up the first that fits. *shortage:
 * errno of what kept it from looking at one; untouched: nothing did. */
static bool directory_search(struct mc_segment_file *file, const char *directory, int *shortage)
{
    bool found = false;
    DIR *folder = opendir(directory);
    if (folder == NULL) {
        if (mc_segment_is_shortage(errno))
            *shortage = errno;
        return false;
    }
    const struct dirent *entry;
    for (unsigned i = 0; i < MC_SEGMENT_DIRECTORY_MAX && (entry = readdir(folder)) != NULL; i++) {
        char stem[MC_SEGMENT_STEM_MAX];
        int lock_fd = -1;
        if (!entry_stem(stem, directory, entry))
            continue;
        enum verdict verdict = stem_judge(stem, file->capacity, &lock_fd);
        if (verdict == USELESS || verdict == OTHER_LAYOUT) {
            if (verdict == OTHER_LAYOUT)
                mc_log(WARNING,
                       "the segment left in %s.* is of a build with another layout (this one's is %u): removed", stem,
                       MC_INDEX_VERSION);
            else
                mc_log(INFO, "removing the dead segment %s.*", stem);
            files_unlink(stem);
        } else if (verdict == GOOD && found) {
            lock_close(lock_fd);
        } else if (verdict == GOOD) {
            found = stem_take_up(file, stem, lock_fd, shortage);
        } else if (verdict == IN_USE && mc_segment_is_shortage(errno)) {
            *shortage = errno;
        }
    }
    closedir(folder);
    return found;
}

/* *shortage: as in directory_search. */
static struct mc_segment_left stem_left(const char *stem, int *shortage)
{
    struct mc_segment_left left = {0, 0};
    struct mc_index_header header;
    struct stat status;
    int lock_fd;
    enum verdict verdict = stem_judge(stem, ANY_CAPACITY, &lock_fd);
    if (verdict == IN_USE && mc_segment_is_shortage(errno))
        *shortage = errno;
    if (verdict != GOOD)
        return left;
    int data_fd = file_open(stem, ".data", O_RDONLY);
    if (data_fd < 0 && mc_segment_is_shortage(errno))
        *shortage = errno;
    if (data_fd >= 0 && fstat(data_fd, &status) == 0 &&
        pread(lock_fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header))
        left = (struct mc_segment_left){header.capacity, (uint64_t)status.st_blocks * 512};
    if (data_fd >= 0)
        close(data_fd);
    lock_close(lock_fd);
    return left;
}

int mc_segment_left_behind(const char *directory, uint64_t capacity_max, uint64_t until_ns,
                           struct mc_segment_left *best)
{
    char stem[MC_SEGMENT_STEM_MAX];
    const struct dirent *entry;
    int shortage = 0;
    *best = (struct mc_segment_left){0, 0};
    errno = 0;
    DIR *folder = strlen(directory) < MC_SEGMENT_STEM_MAX ? opendir(directory) : NULL;
    int lock = folder == NULL ? -1 : directory_lock(directory, until_ns);
    if (lock < 0 && mc_segment_is_shortage(errno))
        shortage = errno;
    for (unsigned i = 0; lock >= 0 && i < MC_SEGMENT_DIRECTORY_MAX && (entry = readdir(folder)) != NULL; i++) {
        if (!entry_stem(stem, directory, entry))
            continue;
        struct mc_segment_left left = stem_left(stem, &shortage);
        if (left.capacity <= capacity_max && left.capacity > best->capacity)
            *best = left;
    }
    if (lock >= 0)
        lock_close(lock);
    if (folder != NULL)
        closedir(folder);
    errno = shortage;
    return shortage == 0 ? 0 : MC_ERR_FILE_OPEN_FAIL;
}

static int directory_use(struct mc_segment_file *file, const char *directory, const char *name, bool *taken_up)
{
    char stem[MC_SEGMENT_STEM_MAX];
    int lock_fd, shortage = 0;
    if (!stem_name(stem, directory, name, MC_SEGMENT_SAME_NAME_MAX)) {
        errno = ENAMETOOLONG;
        return MC_ERR_FILE_OPEN_FAIL;
    }
    *taken_up = stem_name(stem, directory, name, 0) && stem_judge(stem, file->capacity, &lock_fd) == GOOD &&
                stem_take_up(file, stem, lock_fd, &shortage);
    if (*taken_up) {
        struct mc_segment_file none = {.capacity = 0}; /* no segment has that: only removes */
        (void)directory_search(&none, directory, &shortage);
        return 0;
    }
    *taken_up = directory_search(file, directory, &shortage);
    if (*taken_up)
        return 0;
    if (shortage != 0) { /* what may be left is not passed over */
        errno = shortage;
        return MC_ERR_FILE_OPEN_FAIL;
    }
    for (unsigned i = 0; i < MC_SEGMENT_SAME_NAME_MAX; i++) {
        (void)stem_name(stem, directory, name, i);
        int fd = file_open(stem, INDEX_END, O_RDONLY);
        if (fd < 0 && errno == ENOENT)
            return stem_make(file, stem);
        if (fd >= 0)
            close(fd); /* somebody's, or of another size and not too old */
    }
    errno = EEXIST;
    return MC_ERR_FILE_OPEN_FAIL;
}

int mc_segment_file_open(struct mc_segment_file *file, const char *directory, const char *name, uint64_t capacity,
                         uint64_t until_ns, bool *taken_up)
{
    int rc = mc_segment_file_init(file, capacity);
    *taken_up = false;
    if (rc < 0)
        return rc;
    if (strlen(directory) + MC_SEGMENT_NAME_MAX + 16 > MC_SEGMENT_STEM_MAX) {
        errno = ENAMETOOLONG;
        return MC_ERR_FILE_OPEN_FAIL;
    }
    int lock = directory_lock(directory, until_ns);
    if (lock < 0)
        return MC_ERR_FILE_OPEN_FAIL;
    rc = directory_use(file, directory, name, taken_up);
    int error = errno;
    lock_close(lock);
    errno = error;
    return rc;
}
