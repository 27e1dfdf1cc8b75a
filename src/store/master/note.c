/* The note in its file. */
#include "store/master/note.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x65746f6e2d636d01ull
#define AHEAD_MS 20u /* how far it is written ahead; the next master takes us for alive so much too long at most */

struct record {
    uint64_t magic;
    struct mc_id boot;
    uint64_t taken, epoch, until_ms;
    uint32_t crc, whole; /* whole: another checksum of the same, or, as before there was one, 0 */
};
#define WHOLE_SEED 0x776d636du

/* Behind the record, where masters of before it write nothing. */
#define NAME_AT 64u
#define NAME_MAGIC 0x656d616e2d636d01ull

struct cluster_name {
    uint64_t magic;
    struct mc_id cluster;
    uint32_t crc, zero;
};
_Static_assert(sizeof(struct record) <= NAME_AT, "the name lies behind the record");

/* Behind both, twice, in sectors of their own: what is torn while it is written is not the one that was there. */
#define AGED_AT 512u
#define AGED_MAGIC 0x646567612d636d01ull

struct aged {
    uint64_t magic, epoch;
    uint32_t crc, zero;
};

/* Likewise. */
#define HORIZONS_AT 1536u
#define HORIZONS_MAGIC 0x7a69726f682d6d01ull

struct horizons {
    uint64_t magic;
    struct mc_horizon list[MC_HORIZONS_MAX];
    uint32_t crc, zero;
};
_Static_assert(sizeof(struct horizons) <= 512, "one sector, which is never torn");

static uint32_t name_crc(const struct cluster_name *name)
{
    return mc_crc32c(0, name, offsetof(struct cluster_name, crc));
}

static uint32_t record_crc(const struct record *record)
{
    return mc_crc32c(0, record, offsetof(struct record, crc));
}

static uint32_t whole_crc(const struct record *record)
{
    uint32_t crc = mc_crc32c(WHOLE_SEED, record, offsetof(struct record, crc));
    return crc != 0 ? crc : 1;
}

static uint32_t aged_crc(const struct aged *aged)
{
    return mc_crc32c(0, aged, offsetof(struct aged, crc));
}

static uint32_t horizons_crc(const struct horizons *horizons)
{
    return mc_crc32c(0, horizons, offsetof(struct horizons, crc));
}

static bool is_later(struct mc_horizon one, struct mc_horizon other)
{
    return one.epoch > other.epoch || (one.epoch == other.epoch && one.at_ms > other.at_ms);
}

static void read_horizons(struct mc_note *note)
{
    for (unsigned place = 0; place < 2; place++) {
        struct horizons horizons;
        if (pread(note->fd, &horizons, sizeof(horizons), HORIZONS_AT + 512 * place) == (ssize_t)sizeof(horizons) &&
            horizons.magic == HORIZONS_MAGIC && horizons.crc == horizons_crc(&horizons) &&
            is_later(horizons.list[0], note->horizons[0])) {
            memcpy(note->horizons, horizons.list, sizeof(note->horizons));
            note->horizons_place = place;
        }
    }
}

static void read_aged(struct mc_note *note)
{
    for (unsigned place = 0; place < 2; place++) {
        struct aged aged;
        if (pread(note->fd, &aged, sizeof(aged), AGED_AT * (1 + place)) == (ssize_t)sizeof(aged) &&
            aged.magic == AGED_MAGIC && aged.crc == aged_crc(&aged) && aged.epoch > note->aged) {
            note->aged = aged.epoch;
            note->aged_place = place;
        }
    }
}

/* What another process has left; nothing of it is believed before it was checked. An epoch that was taken stays taken,
 * whatever the machine did since; who acted last, and until when, is not known of another boot, whose last words may be
 * missing and whose clock was another. Which one came of age last, and their horizons, are true of any boot. */
static void read_back(struct mc_note *note)
{
    struct record record;
    struct cluster_name name;
    read_aged(note);
    read_horizons(note);
    if (pread(note->fd, &name, sizeof(name), NAME_AT) == (ssize_t)sizeof(name) && name.magic == NAME_MAGIC &&
        name.crc == name_crc(&name))
        note->cluster = name.cluster;
    if (pread(note->fd, &record, sizeof(record), 0) != (ssize_t)sizeof(record) || record.magic != MAGIC ||
        record.crc != record_crc(&record))
        return;
    uint64_t now_ms = mc_clock_boot_ms();
    note->taken = record.taken;
    if (!mc_id_equal(record.boot, mc_host_id()) || record.epoch == 0)
        return;
    note->epoch = record.epoch;
    note->until_ms = record.until_ms < now_ms ? record.until_ms : now_ms; /* it has ended: we have its lock */
    note->is_whole = record.whole == whole_crc(&record);
}

/* ---- the disk, which can take seconds, or for ever: the master's loop goes on meanwhile ---- */

struct mc_note_sync {
    atomic_int rc;   /* 1 as long as it runs, else 0 or an errno, negative */
    atomic_int held; /* by the note and by the thread */
    int fd;
    bool closes; /* the note was closed first: whoever is last closes the file */
    uint64_t writes;
};

static void sync_release(struct mc_note_sync *sync)
{
    if (atomic_fetch_sub(&sync->held, 1) != 1)
        return;
    if (sync->closes)
        close(sync->fd);
    free(sync);
}

static void *sync_run(void *argument)
{
    struct mc_note_sync *sync = argument;
    atomic_store(&sync->rc, fdatasync(sync->fd) == 0 ? 0 : -errno);
    sync_release(sync);
    return NULL;
}

static int sync_start(struct mc_note *note)
{
    struct mc_note_sync *sync = calloc(1, sizeof(*sync));
    if (sync == NULL)
        return MC_ERR_INTERNAL_ERROR;
    sync->fd = note->fd;
    sync->writes = note->writes;
    atomic_store(&sync->rc, 1);
    atomic_store(&sync->held, 2);
    if (mc_thread_start(NULL, "mc-note", sync_run, sync) != 0) {
        free(sync);
        errno = EAGAIN;
        return MC_ERR_INTERNAL_ERROR;
    }
    note->sync = sync;
    return 1;
}

/* Is that write on the disk? 0, 1: asked again, or negative: it cannot be said, errno says why. */
static int synced(struct mc_note *note, uint64_t write)
{
    int rc = note->sync == NULL ? 0 : atomic_load(&note->sync->rc);
    if (rc == 1)
        return 1;
    if (note->sync != NULL) {
        if (rc == 0) {
            note->synced = note->sync->writes;
        } else {
            note->failed = note->sync->writes;
            note->why = -rc;
        }
        sync_release(note->sync);
        note->sync = NULL;
    }
    if (write <= note->failed) {
        errno = note->why;
        return MC_ERR_INTERNAL_ERROR;
    }
    return write <= note->synced ? 0 : sync_start(note);
}

int mc_note_open(struct mc_note *note, const char *directory, uint16_t port, char *error, size_t error_size)
{
    struct stat status;
    int rc;
    *note = (struct mc_note){.fd = -1};
    if (directory[0] == 0)
        return 0;
    (void)mc_host_id(); /* each record says it, and later there may be no descriptor to read it by */
    const char *reason = NULL;
    int length = snprintf(note->path, sizeof(note->path), "%s/master-%u.note", directory, port);
    if (length >= (int)sizeof(note->path)) {
        reason = "its path is too long";
        goto fail;
    }
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        goto fail;
    note->fd = open(note->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (note->fd < 0 || fstat(note->fd, &status) != 0)
        goto fail;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
        reason = "it is not a file of this user";
        goto fail;
    }
    if (flock(note->fd, LOCK_EX | LOCK_NB) != 0) {
        reason = errno == EWOULDBLOCK ? "another master keeps it" : NULL;
        goto fail;
    }
    read_back(note);
    return 0;
fail:
    rc = reason == NULL && (errno == EMFILE || errno == ENFILE || errno == ENOMEM) ? MC_ERR_NO_MEMORY
                                                                                   : MC_ERR_INTERNAL_ERROR;
    snprintf(error, error_size, "no note can be kept in %s: %s", note->path, reason != NULL ? reason : strerror(errno));
    mc_note_close(note);
    return rc;
}

void mc_note_close(struct mc_note *note)
{
    if (note->fd < 0)
        return;
    (void)flock(note->fd, LOCK_UN); /* a child that was forked meanwhile has the same description, as has a sync */
    if (note->sync != NULL) {
        note->sync->closes = true;
        sync_release(note->sync);
        note->sync = NULL;
    } else {
        close(note->fd);
    }
    note->fd = -1;
}

static int write_out(struct mc_note *note, uint64_t taken, uint64_t epoch, uint64_t until_ms, bool is_whole)
{
    struct record record = {.magic = MAGIC, .boot = mc_host_id(), .taken = taken, .epoch = epoch, .until_ms = until_ms};
    record.crc = record_crc(&record);
    record.whole = is_whole ? whole_crc(&record) : 0;
    if (pwrite(note->fd, &record, sizeof(record), 0) == (ssize_t)sizeof(record)) {
        note->taken = taken;
        note->epoch = epoch;
        note->until_ms = until_ms;
        note->is_whole = is_whole;
        return 0;
    }
    /* What stands there would be taken for the last word by the next one. */
    int reason = errno;
    (void)unlink(note->path);
    mc_note_close(note);
    errno = reason;
    return MC_ERR_INTERNAL_ERROR;
}

int mc_note_name(struct mc_note *note, struct mc_id cluster)
{
    struct cluster_name name = {.magic = NAME_MAGIC, .cluster = cluster};
    name.crc = name_crc(&name);
    if (note->fd < 0 || mc_id_equal(note->cluster, cluster))
        return 0;
    if (!mc_id_equal(note->naming, cluster)) {
        if (pwrite(note->fd, &name, sizeof(name), NAME_AT) != (ssize_t)sizeof(name))
            return MC_ERR_INTERNAL_ERROR; /* the half of it has no checksum */
        note->naming = cluster;
        note->naming_write = ++note->writes;
    }
    if (synced(note, note->naming_write) == 1)
        return 1;
    note->cluster = cluster; /* if the disk refused it, the next boot asks who is here, as without a note */
    return 0;
}

int mc_note_take(struct mc_note *note, uint64_t epoch)
{
    int rc = note->fd < 0 ? 0 : write_out(note, epoch, note->epoch, note->until_ms, note->is_whole);
    if (rc == 0 && note->fd >= 0)
        (void)fsync(note->fd); /* if it cannot: then the next boot does not know, as without a note */
    return rc;
}

int mc_note_keep(struct mc_note *note, uint64_t epoch, bool is_whole, uint64_t boot_ms)
{
    if (note->fd < 0 ||
        (note->epoch == epoch && note->is_whole == is_whole && boot_ms + AHEAD_MS / 2 <= note->until_ms))
        return 0;
    return write_out(note, note->taken, epoch, boot_ms + AHEAD_MS, is_whole);
}

int mc_note_age(struct mc_note *note, uint64_t epoch)
{
    if (note->fd < 0 || note->aged >= epoch)
        return 0;
    if (note->aging != epoch) { /* one of a core before this one is as good as never written */
        struct aged aged = {.magic = AGED_MAGIC, .epoch = epoch};
        aged.crc = aged_crc(&aged);
        errno = EIO; /* of a write that is short */
        if (pwrite(note->fd, &aged, sizeof(aged), (off_t)AGED_AT * (1 + (1 - (off_t)note->aged_place))) !=
            (ssize_t)sizeof(aged))
            return MC_ERR_INTERNAL_ERROR;
        note->aging = epoch;
        note->aging_write = ++note->writes;
    }
    int rc = synced(note, note->aging_write);
    if (rc < 0)
        note->aging = 0;
    if (rc != 0)
        return rc;
    note->aged = epoch;
    note->aged_place = 1 - note->aged_place;
    return 0;
}

int mc_note_depart(struct mc_note *note, uint64_t epoch, uint64_t at_ms)
{
    struct mc_horizon wanted = {epoch, at_ms};
    if (note->fd < 0 || !is_later(wanted, note->horizons[0]))
        return 0;
    if (is_later(wanted, note->going[0])) {
        struct horizons horizons = {.magic = HORIZONS_MAGIC, .list = {wanted}};
        unsigned count = 1;
        /* What is of before the last master of age was judged by that one. */
        for (unsigned i = 0; i < MC_HORIZONS_MAX && count < MC_HORIZONS_MAX; i++)
            if (note->horizons[i].epoch >= note->aged && note->horizons[i].epoch != epoch)
                horizons.list[count++] = note->horizons[i];
        horizons.crc = horizons_crc(&horizons);
        errno = EIO; /* of a write that is short */
        if (pwrite(note->fd, &horizons, sizeof(horizons), (off_t)(HORIZONS_AT + 512 * (1 - note->horizons_place))) !=
            (ssize_t)sizeof(horizons))
            return MC_ERR_INTERNAL_ERROR;
        memcpy(note->going, horizons.list, sizeof(note->going));
        note->going_write = ++note->writes;
    }
    int rc = synced(note, note->going_write);
    if (rc < 0)
        note->going[0].epoch = 0;
    if (rc != 0)
        return rc;
    memcpy(note->horizons, note->going, sizeof(note->horizons));
    note->horizons_place = 1 - note->horizons_place;
    return 0;
}
