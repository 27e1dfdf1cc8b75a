/* The three shared memories of a segment - data, index (header and slots), table of writers - made, taken up again,
 * mapped and let go. Either memfds, which end with their last user, or named files in a directory, which outlive the
 * process. Invariant: what is mapped is as large as it should be and backed (data: as far as it is populated), so that
 * touching it never faults; a named segment belongs to the process that holds the flock on its index. */
#ifndef MC_SEGMENT_FILE_H
#define MC_SEGMENT_FILE_H

#include "store/segment/writers.h"

#define MC_PAGE_BYTES 4096u
#define MC_CAPACITY_MAX (1ull << 46)
#define MC_SEGMENT_NAME_MAX 128u       /* bytes of a name that go into the file names */
#define MC_SEGMENT_STEM_MAX 1024u      /* bytes of directory and name */
#define MC_SEGMENT_DEAD_MS 3600000ull  /* what nobody has used for so long is removed */
#define MC_SEGMENT_SAME_NAME_MAX 64u   /* segments of one name in one directory */
#define MC_SEGMENT_DIRECTORY_MAX 8192u /* entries that are looked at */

struct mc_segment_file {
    uint64_t capacity, data_size, index_size;
    uint64_t page_bytes; /* of the data; more than MC_PAGE_BYTES: all of them were promised when it was mapped */
    uint32_t slot_count;
    bool is_named;
    int data_fd, index_fd, writers_fd; /* to be handed out; index_fd is read-only */
    int lock_fd;                       /* holds the flock of a named one; never handed out */
    uint8_t *data;
    struct mc_index_header *header; /* start of the index */
    struct mc_slot *slots;
    struct mc_writer_entry *writers;
    char stem[MC_SEGMENT_STEM_MAX]; /* path without .data and so on */
};

/* memfds. 0, MC_ERR_INVALID_PARAMS (capacity), MC_ERR_NO_MEMORY with errno. */
int mc_segment_file_make(struct mc_segment_file *file, uint64_t capacity);
/* Another process that is at work in the directory is waited for until until_ns (mc_clock_ns): it may have been
 * stopped. Named files: a dead process's with the same capacity, that name first, else new ones. Dead files of no use
 * are removed. 0 and *taken_up, or MC_ERR_FILE_OPEN_FAIL / MC_ERR_NO_MEMORY with errno. */
int mc_segment_file_open(struct mc_segment_file *file, const char *directory, const char *name, uint64_t capacity,
                         uint64_t until_ns, bool *taken_up);
/* Is that errno of what a process, or its machine, has not got? It says nothing of the files. */
bool mc_segment_is_shortage(int error);
struct mc_segment_left { /* by a process that has ended */
    uint64_t capacity;   /* 0: nothing */
    uint64_t bytes;      /* of the file system that it holds */
};
/* The largest one that a segment of at most that capacity could take up. 0, or MC_ERR_FILE_OPEN_FAIL with errno, a
 * shortage that kept it from looking at what is there. */
int mc_segment_left_behind(const char *directory, uint64_t capacity_max, uint64_t until_ns,
                           struct mc_segment_left *best);
/* Unmaps and closes; names stay. */
void mc_segment_file_free(struct mc_segment_file *file);
/* Takes the names away, so that nobody takes it up again. */
void mc_segment_file_unlink(struct mc_segment_file *file);
/* In a forked child: closes the descriptors only. */
void mc_segment_file_forked(struct mc_segment_file *file);
/* Backs a range of a file by real memory or disk. 0 or an errno value. */
int mc_file_allocate(int fd, uint64_t offset, uint64_t length);

static inline uint64_t mc_slot_top_pack(uint32_t top)
{
    return (uint64_t)~top << 32 | top;
}
/* How far slots were used, by a header that may be damaged. */
static inline uint32_t mc_slot_top_unpack(uint64_t packed, uint32_t slot_count)
{
    uint32_t top = (uint32_t)packed;
    return (uint32_t)(packed >> 32) != ~top || top > slot_count ? slot_count : top;
}
/* The same for the end of what is backed in the data. */
static inline uint64_t mc_populated_end(const struct mc_segment_file *file, uint64_t populated)
{
    return populated == 0 ? 0 : populated >= file->capacity ? file->data_size : populated + MC_EXTENT_SLACK;
}

#endif
