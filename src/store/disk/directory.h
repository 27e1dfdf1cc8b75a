/* The directory of a disk: which one is taken, its lock, its identity, its files. */
#ifndef MC_DISK_DIRECTORY_H
#define MC_DISK_DIRECTORY_H

#include "store/disk/format.h"

#define MC_DISK_CLEARS_FILES 2u
#define MC_DISK_NAME_FORMAT "mooncake-c.%u"
#define MC_DISK_NAME_MAX 32u

struct mc_disk_directory {
    char path[MC_DISK_PATH_MAX + MC_DISK_NAME_MAX];
    int fd, lock_fd, identity_fd;
    int clears_fd[MC_DISK_CLEARS_FILES];
    bool is_direct; /* its files are opened with O_DIRECT */
    bool is_new;
    struct mc_disk_super super;
};

/* Takes the first directory of the path that is ours and that nobody has, else makes one. 0, MC_ERR_INVALID_PARAMS,
 * MC_ERR_FILE_OPEN_FAIL, MC_ERR_NO_MEMORY with one line in error. */
int mc_disk_directory_open(struct mc_disk_directory *directory, const struct mc_disk_config *config, char *error,
                           size_t error_size);
/* Lets the lock go, also if a child that was forked meanwhile still holds its descriptor, and closes. */
void mc_disk_directory_release(struct mc_disk_directory *directory);
/* Only closes, as a forked child does: the lock stays its parent's. */
void mc_disk_directory_close(struct mc_disk_directory *directory);
/* Of its file `lock`: has another process, or another part of this one, the directory? Whoever wants it just then tries
 * again in a moment. */
bool mc_disk_lock_is_held(int fd);
/* Before anything is read there: an operation of a process that was killed may go on in the kernel when its lock is
 * free already, and what it writes would come behind what was read. */
void mc_disk_file_settle(int fd);
/* Bytes that its file system has left; UINT64_MAX: it does not say. */
uint64_t mc_disk_directory_room(const struct mc_disk_directory *directory);
/* volume.<number>, made if need be (may_make); a descriptor, or -1 with errno. */
int mc_disk_directory_volume(const struct mc_disk_directory *directory, uint32_t number, bool may_make);
/* Reads both superblocks of a descriptor; the later one that is good. Else the verdict of the worst that is known.
 * page: MC_DISK_PAGE bytes, aligned. */
enum mc_disk_verdict mc_disk_identity_read(int fd, uint8_t *page, struct mc_disk_super *super);

#endif
