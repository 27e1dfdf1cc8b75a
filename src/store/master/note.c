/* The note in its file. */
#include "store/master/note.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x65746f6e2d636d01ull
#define AHEAD_MS 200u     /* how far it is written ahead; the next master takes us for alive so much too long at most */
#define QUICK_NS 2000000u /* a write takes less, unless the file hangs: so long it is waited for, once */
#define CLOSE_NS 1000000000u
#define HANGS_NS 2000000000u
#define PLACE_MAX 128u

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
_Static_assert(sizeof(struct horizons) <= PLACE_MAX && sizeof(struct record) <= PLACE_MAX, "each fits a place");

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

/* ---- the file, which can take seconds, or for ever: the master's loop goes on meanwhile ---- */

enum { RECORD, NAME, AGED, HORIZONS, PLACES };

/* What is to stand somewhere in the file, and how far that has come, in numbers of what was asked for there. */
struct note_spot {
    uint8_t bytes[PLACE_MAX];
    size_t length;
    off_t at;
    uint64_t asked, begun, written, synced, failed;
    uint64_t syncing; /* as is_syncing began */
    uint64_t turn;    /* more than that of whatever waited already when something was asked for here */
    int why;          /* it failed: an errno */
};

/* What the note shares with its threads, all of it under the lock. */
struct mc_note_pen {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    unsigned held; /* by the note and by the threads */
    int fd;
    bool is_running, is_writing, is_syncing, is_closed; /* the first two: the thread that writes */
    uint64_t begun_ns;                                  /* is_writing */
    int gone;                                           /* the record could not be written: an errno */
    uint64_t turn;                                      /* the last that was given */
    struct note_spot places[PLACES];
    struct note_word {
        uint64_t taken, epoch, until_ms;
        bool is_whole;
    } stands; /* in the record */
    char path[MC_NOTE_PATH_MAX];
};

/* With the lock, which it gives back. */
static void pen_release(struct mc_note_pen *pen)
{
    bool is_last = --pen->held == 0;
    pthread_mutex_unlock(&pen->lock);
    if (!is_last)
        return;
    pthread_cond_destroy(&pen->work);
    mc_monitor_destroy(&pen->lock, &pen->done);
    free(pen);
}

static bool is_waiting(const struct note_spot *place)
{
    return place->begun < place->asked;
}

/* With the lock. What waits longest: where each write takes its time, the record is always asked for again meanwhile.
 * That one is left alone when it is gone: another master may have made a note in its place. */
static struct note_spot *next_asked(struct mc_note_pen *pen)
{
    struct note_spot *next = NULL;
    for (struct note_spot *place = pen->places; place < pen->places + PLACES; place++)
        if (is_waiting(place) && (next == NULL || place->turn < next->turn) &&
            (place != &pen->places[RECORD] || pen->gone == 0))
            next = place;
    return next;
}

/* With the lock, but for the write. */
static void write_one(struct mc_note_pen *pen, struct note_spot *place)
{
    const struct note_spot copy = *place;
    struct record record;
    place->begun = copy.asked;
    bool is_record = place == &pen->places[RECORD];
    pen->is_writing = true;
    pen->begun_ns = mc_clock_ns();
    pthread_mutex_unlock(&pen->lock);
    errno = EIO; /* of a write that is short */
    int why = pwrite(pen->fd, copy.bytes, copy.length, copy.at) == (ssize_t)copy.length ? 0 : errno;
    if (why != 0 && is_record)
        (void)unlink(pen->path); /* what stands there would be taken for the last word by the next one */
    pthread_mutex_lock(&pen->lock);
    pen->is_writing = false;
    if (why != 0) {
        place->failed = copy.asked;
        place->why = why;
        pen->gone = is_record ? why : pen->gone;
    } else {
        place->written = copy.asked;
    }
    if (why == 0 && is_record) {
        memcpy(&record, copy.bytes, sizeof(record));
        pen->stands = (struct note_word){record.taken, record.epoch, record.until_ms, record.whole != 0};
    }
    pthread_cond_broadcast(&pen->done);
}

/* With the lock, but for the close. */
static void file_close(struct mc_note_pen *pen)
{
    pthread_mutex_unlock(&pen->lock);
    close(pen->fd);
    pthread_mutex_lock(&pen->lock);
}

static void *pen_run(void *argument)
{
    struct mc_note_pen *pen = argument;
    pthread_mutex_lock(&pen->lock);
    while (!pen->is_closed) {
        struct note_spot *place = next_asked(pen);
        if (place == NULL) {
            pthread_cond_wait(&pen->work, &pen->lock);
            continue;
        }
        write_one(pen, place);
    }
    /* Not before: the next master reads what we have written last. A child that was forked meanwhile has the same
     * description, as has a sync. Both may wait for the file system: without the lock, for which main waits. */
    pthread_mutex_unlock(&pen->lock);
    (void)flock(pen->fd, LOCK_UN);
    pthread_mutex_lock(&pen->lock);
    if (!pen->is_syncing) /* else the sync does */
        file_close(pen);
    pen->is_running = false;
    pthread_cond_broadcast(&pen->done);
    pen_release(pen);
    return NULL;
}

static int pen_open(struct mc_note *note)
{
    struct mc_note_pen *pen = calloc(1, sizeof(*pen));
    if (pen == NULL)
        return -1;
    mc_monitor_init(&pen->lock, &pen->done);
    mc_condition_init(&pen->work);
    pen->held = 2;
    pen->is_running = true;
    pen->fd = note->fd;
    pen->stands = (struct note_word){note->taken, note->epoch, note->until_ms, note->is_whole};
    memcpy(pen->path, note->path, sizeof(pen->path));
    if (mc_thread_start(NULL, "mc-note", pen_run, pen) != 0) {
        pthread_cond_destroy(&pen->work);
        mc_monitor_destroy(&pen->lock, &pen->done);
        free(pen);
        errno = ENOMEM;
        return -1;
    }
    note->pen = pen;
    return 0;
}

/* To be written there, in place of what was asked for before and is not written yet. Its number. */
static uint64_t ask(struct mc_note *note, unsigned at, const void *bytes, size_t length, off_t offset)
{
    struct note_spot *place = &note->pen->places[at];
    pthread_mutex_lock(&note->pen->lock);
    memcpy(place->bytes, bytes, length);
    place->length = length;
    place->at = offset;
    if (!is_waiting(place))
        place->turn = ++note->pen->turn;
    uint64_t number = ++place->asked;
    pthread_cond_signal(&note->pen->work);
    pthread_mutex_unlock(&note->pen->lock);
    return number;
}

static void *sync_run(void *argument)
{
    struct mc_note_pen *pen = argument;
    int why = fdatasync(pen->fd) == 0 ? 0 : errno;
    pthread_mutex_lock(&pen->lock);
    pen->is_syncing = false;
    for (struct note_spot *place = pen->places; place < pen->places + PLACES; place++) {
        uint64_t *moved = why == 0 ? &place->synced : &place->failed;
        if (place->syncing <= place->synced)
            continue;
        *moved = place->syncing > *moved ? place->syncing : *moved;
        place->why = why != 0 ? why : place->why;
    }
    if (!pen->is_running)
        file_close(pen);
    pen_release(pen);
    return NULL;
}

/* With the lock. */
static int sync_start(struct mc_note_pen *pen)
{
    for (struct note_spot *place = pen->places; place < pen->places + PLACES; place++)
        place->syncing = place->written;
    if (mc_thread_start(NULL, "mc-note-disk", sync_run, pen) != 0) {
        errno = EAGAIN;
        return MC_ERR_INTERNAL_ERROR;
    }
    pen->held++;
    pen->is_syncing = true;
    return 1;
}

/* Is that on the disk? 0, 1: asked again, or negative: it cannot be said, errno says why. */
static int on_disk(const struct mc_note *note, unsigned at, uint64_t number)
{
    struct mc_note_pen *pen = note->pen;
    int rc = 1;
    pthread_mutex_lock(&pen->lock);
    const struct note_spot *place = &pen->places[at];
    if (place->synced >= number) {
        rc = 0;
    } else if (place->failed >= number) {
        errno = place->why;
        rc = MC_ERR_INTERNAL_ERROR;
    } else if (place->written >= number && !pen->is_syncing) {
        rc = sync_start(pen);
    }
    pthread_mutex_unlock(&pen->lock);
    return rc;
}

static bool is_written(const struct mc_note *note, unsigned at, uint64_t number)
{
    pthread_mutex_lock(&note->pen->lock);
    bool is_there = note->pen->places[at].written >= number;
    pthread_mutex_unlock(&note->pen->lock);
    return is_there;
}

/* ---- the note ---- */

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
    if (pen_open(note) != 0)
        goto fail;
    return 0;
fail:
    rc = reason == NULL && (errno == EMFILE || errno == ENFILE || errno == ENOMEM) ? MC_ERR_NO_MEMORY
                                                                                   : MC_ERR_INTERNAL_ERROR;
    snprintf(error, error_size, "no note can be kept in %s: %s", note->path, reason != NULL ? reason : strerror(errno));
    (void)mc_note_close(note);
    return rc;
}

bool mc_note_close(struct mc_note *note)
{
    struct mc_note_pen *pen = note->pen;
    int fd = note->fd;
    note->fd = -1;
    note->pen = NULL;
    if (pen == NULL) {
        if (fd >= 0)
            close(fd);
        return true;
    }
    uint64_t until_ns = mc_clock_ns() + CLOSE_NS;
    pthread_mutex_lock(&pen->lock);
    while ((pen->is_writing || next_asked(pen) != NULL) && mc_monitor_wait(&pen->lock, &pen->done, until_ns) == 0)
        ;
    pen->is_closed = true;
    pthread_cond_signal(&pen->work);
    while (pen->is_running && mc_monitor_wait(&pen->lock, &pen->done, until_ns) == 0)
        ;
    bool is_done = !pen->is_running;
    pen_release(pen);
    return is_done;
}

static uint64_t tell(struct mc_note *note, uint64_t taken, uint64_t epoch, uint64_t until_ms, bool is_whole)
{
    struct record record = {.magic = MAGIC, .boot = mc_host_id(), .taken = taken, .epoch = epoch, .until_ms = until_ms};
    record.crc = record_crc(&record);
    record.whole = is_whole ? whole_crc(&record) : 0;
    note->taken = taken;
    note->epoch = epoch;
    note->until_ms = until_ms;
    note->is_whole = is_whole;
    return ask(note, RECORD, &record, sizeof(record), 0);
}

static bool says(const struct note_word *stands, const struct note_word *needed)
{
    return stands->taken == needed->taken && stands->epoch == needed->epoch && stands->until_ms >= needed->until_ms &&
           (needed->is_whole || !stands->is_whole);
}

/* Does the record say that, at least? 0, 1: asked again, or negative: it cannot be written, and the note is closed. */
static int standing(struct mc_note *note, struct note_word needed)
{
    struct mc_note_pen *pen = note->pen;
    uint64_t until_ns = 0;
    pthread_mutex_lock(&pen->lock);
    while (!says(&pen->stands, &needed) && pen->gone == 0 && !note->is_late) {
        until_ns = until_ns != 0 ? until_ns : mc_clock_ns() + QUICK_NS;
        note->is_late = mc_monitor_wait(&pen->lock, &pen->done, until_ns) != 0;
    }
    bool is_there = says(&pen->stands, &needed);
    if (pen->places[RECORD].written == pen->places[RECORD].asked) /* not where this need was met, and another is not */
        note->is_late = false;
    int why = pen->gone;
    if (why == 0) {
        pthread_mutex_unlock(&pen->lock);
        return is_there ? 0 : 1;
    }
    note->fd = -1;
    note->pen = NULL;
    pen->is_closed = true; /* its thread does the rest */
    pthread_cond_signal(&pen->work);
    pen_release(pen);
    errno = why;
    return MC_ERR_INTERNAL_ERROR;
}

int mc_note_name(struct mc_note *note, struct mc_id cluster)
{
    struct cluster_name name = {.magic = NAME_MAGIC, .cluster = cluster};
    name.crc = name_crc(&name);
    if (note->fd < 0 || mc_id_equal(note->cluster, cluster))
        return 0;
    if (!mc_id_equal(note->naming, cluster)) {
        note->naming = cluster;
        note->naming_write = ask(note, NAME, &name, sizeof(name), NAME_AT);
    }
    int rc = on_disk(note, NAME, note->naming_write);
    if (rc != 0 && is_written(note, NAME, note->naming_write))
        rc = rc > 0 ? MC_NOTE_STANDS : 0; /* the disk refused it: the next boot asks who is here, as without a note */
    if (rc < 0)
        note->naming = (struct mc_id){0, 0}; /* the half of it has no checksum */
    if (rc == 0)
        note->cluster = cluster;
    return rc;
}

int mc_note_take(struct mc_note *note, uint64_t epoch)
{
    if (note->fd < 0)
        return 0;
    if (note->taken != epoch)
        note->taking_write = tell(note, epoch, note->epoch, note->until_ms, note->is_whole);
    int rc = standing(note, (struct note_word){epoch, note->epoch, 0, true});
    return rc != 0 ? rc : on_disk(note, RECORD, note->taking_write);
}

int mc_note_keep(struct mc_note *note, uint64_t epoch, bool is_whole, uint64_t boot_ms, uint64_t needed_ms)
{
    if (note->fd < 0)
        return 0;
    if (note->epoch != epoch || note->is_whole != is_whole || boot_ms + AHEAD_MS / 2 > note->until_ms)
        (void)tell(note, note->taken, epoch, boot_ms + AHEAD_MS, is_whole);
    return standing(note, (struct note_word){note->taken, epoch, needed_ms, is_whole});
}

bool mc_note_hangs(const struct mc_note *note)
{
    if (note->fd < 0)
        return false;
    pthread_mutex_lock(&note->pen->lock);
    bool hangs = note->pen->is_writing && mc_clock_ns() - note->pen->begun_ns > HANGS_NS;
    pthread_mutex_unlock(&note->pen->lock);
    return hangs;
}

int mc_note_age(struct mc_note *note, uint64_t epoch)
{
    if (note->fd < 0 || note->aged >= epoch)
        return 0;
    if (note->aging != epoch) { /* one of a core before this one is as good as never written */
        struct aged aged = {.magic = AGED_MAGIC, .epoch = epoch};
        aged.crc = aged_crc(&aged);
        note->aging = epoch;
        note->aging_write = ask(note, AGED, &aged, sizeof(aged), (off_t)AGED_AT * (1 + (1 - (off_t)note->aged_place)));
    }
    int rc = on_disk(note, AGED, note->aging_write);
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
        memcpy(note->going, horizons.list, sizeof(note->going));
        note->going_write =
            ask(note, HORIZONS, &horizons, sizeof(horizons), (off_t)(HORIZONS_AT + 512 * (1 - note->horizons_place)));
    }
    int rc = on_disk(note, HORIZONS, note->going_write);
    if (rc < 0)
        note->going[0].epoch = 0;
    if (rc != 0)
        return rc;
    memcpy(note->horizons, note->going, sizeof(note->horizons));
    note->horizons_place = 1 - note->horizons_place;
    return 0;
}
