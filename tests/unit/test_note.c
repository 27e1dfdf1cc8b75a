/* master/note: what a master leaves for the next one of its machine, and what that one makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "store/master/note.h"
#include "store/master/server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PORT 5
#define EPOCH 7 /* of the master that keeps it */

static char folder[64], path[128], error[2048]; /* path: of the note */

static atomic_bool disk_hangs, file_hangs, end_hangs;
static atomic_uint writes, records;              /* that have begun */
static atomic_uint write_ms;                     /* so long each takes */
static atomic_bool disk_refuses, record_refused; /* what comes to the disk; the record */

/* Instead of the C library's. */
int fdatasync(int fd)
{
    while (atomic_load(&disk_hangs))
        usleep(1000);
    errno = EIO;
    return atomic_load(&disk_refuses) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    atomic_fetch_add(&writes, 1);
    atomic_fetch_add(&records, offset == 0);
    while (atomic_load(&file_hangs))
        usleep(1000);
    usleep(1000 * atomic_load(&write_ms));
    errno = ENOSPC;
    if (offset == 0 && atomic_load(&record_refused))
        return -1;
    return (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset);
}

int flock(int fd, int operation)
{
    while ((operation & LOCK_UN) != 0 && atomic_load(&end_hangs))
        usleep(1000);
    return (int)syscall(SYS_flock, fd, operation);
}

int close(int fd)
{
    char name[64], link[256];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, link, sizeof(link) - 1);
    link[length < 0 ? 0 : length] = 0;
    while (strstr(link, ".note") != NULL && atomic_load(&end_hangs))
        usleep(1000);
    return (int)syscall(SYS_close, fd);
}

static int folder_make(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/mc-note-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof(path), "%s/master-%u.note", folder, PORT);
    return 0;
}

static int folder_remove(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static struct mc_note opened(void)
{
    struct mc_note note;
    assert_int_equal(mc_note_open(&note, folder, PORT, error, sizeof(error)), 0);
    return note;
}

/* Reads what stands there: the epoch that was taken last and the one that last acted; until when it did. */
static uint64_t assert_stands(uint64_t taken, uint64_t epoch)
{
    struct mc_note note = opened();
    assert_int_equal(note.taken, taken);
    assert_int_equal(note.epoch, epoch);
    uint64_t until_ms = note.until_ms;
    mc_note_close(&note);
    return until_ms;
}

/* As the master's loop does: asks until it is done. */
static int take(struct mc_note *note, uint64_t epoch)
{
    int rc = mc_note_take(note, epoch);
    for (unsigned i = 0; rc == 1 && i < 10000; i++) {
        usleep(1000);
        rc = mc_note_take(note, epoch);
    }
    return rc;
}

static int keep(struct mc_note *note, uint64_t epoch, bool is_whole, uint64_t boot_ms)
{
    int rc = mc_note_keep(note, epoch, is_whole, boot_ms, boot_ms);
    for (unsigned i = 0; rc == 1 && i < 10000; i++) {
        usleep(1000);
        rc = mc_note_keep(note, epoch, is_whole, boot_ms, boot_ms);
    }
    return rc;
}

static struct mc_note taken(uint64_t epoch)
{
    struct mc_note note = opened();
    assert_int_equal(take(&note, epoch), 0);
    return note;
}

static void test_what_one_wrote_the_next_one_reads(void **state)
{
    (void)state;
    struct mc_note note = opened();
    uint64_t start_ms = mc_clock_boot_ms();
    assert_int_equal(note.taken, 0);
    assert_int_equal(note.epoch, 0);
    assert_int_equal(take(&note, 7), 0);
    mc_note_close(&note);
    note = opened();
    assert_int_equal(note.taken, 7);
    assert_int_equal(note.epoch, 0); /* it has not acted */
    assert_int_equal(keep(&note, 8, true, start_ms - 5000), 0);
    uint64_t until_ms = note.until_ms;
    assert_true(until_ms > start_ms - 5000 && until_ms < start_ms);
    assert_int_equal(keep(&note, 8, true, start_ms - 4999), 0); /* said already */
    assert_int_equal(note.until_ms, until_ms);
    assert_int_equal(keep(&note, 8, true, until_ms), 0); /* not any more */
    assert_true(note.until_ms > until_ms);
    until_ms = note.until_ms;
    mc_note_close(&note);
    note = opened();
    assert_int_equal(note.epoch, 8);
    assert_int_equal(note.until_ms, until_ms);
    /* It was written ahead; who reads it knows that its writer has ended. */
    assert_int_equal(keep(&note, 9, true, mc_clock_boot_ms() + 100000), 0);
    mc_note_close(&note);
    note = opened();
    assert_true(note.until_ms <= mc_clock_boot_ms());
    mc_note_close(&note);
}

static void assert_aged(uint64_t epoch)
{
    struct mc_note note = opened();
    assert_int_equal(note.aged, epoch);
    mc_note_close(&note);
}

/* What was written is of another boot from now on. */
static void boot_again(void)
{
    unsigned char bytes[56];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && read(fd, bytes, sizeof(bytes)) == sizeof(bytes));
    bytes[8]++; /* of the boot's id */
    uint32_t crc = mc_crc32c(0, bytes, 48);
    memcpy(bytes + 48, &crc, sizeof(crc));
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    close(fd);
}

/* That it has given somebody up stands there at once, however fresh its note is; it is never taken back under that
 * epoch, and says nothing of the next one. Whoever takes an epoch leaves the word as it was. */
static void test_who_gave_up_nobody(void **state)
{
    (void)state;
    uint64_t now_ms = mc_clock_boot_ms();
    struct mc_note note = opened();
    assert_false(note.is_whole);
    mc_note_close(&note);
    for (uint64_t epoch = 7; epoch <= 8; epoch++) {
        note = taken(epoch);
        assert_int_equal(keep(&note, epoch, true, now_ms), 0);
        mc_note_close(&note);
        note = opened();
        assert_true(note.is_whole);
        assert_int_equal(take(&note, epoch), 0);
        mc_note_close(&note);
        note = opened();
        assert_true(note.is_whole);
        note.until_ms = now_ms + 20; /* as its writer knows it, whose clock has not moved on */
        assert_int_equal(keep(&note, epoch, false, now_ms), 0);
        mc_note_close(&note);
        note = opened();
        assert_int_equal(note.epoch, epoch);
        assert_false(note.is_whole);
        mc_note_close(&note);
    }
    /* A release that does not know the word writes 0 there, and its checksum is right. */
    note = opened();
    assert_int_equal(keep(&note, 8, true, now_ms + 100), 0);
    mc_note_close(&note);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    const uint32_t none = 0;
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &none, sizeof(none), 52), sizeof(none));
    close(fd);
    note = opened();
    assert_int_equal(note.epoch, 8);
    assert_false(note.is_whole);
    /* A record of another boot is not believed, word and all. */
    assert_int_equal(keep(&note, 8, true, now_ms + 200), 0);
    mc_note_close(&note);
    boot_again();
    note = opened();
    assert_int_equal(note.epoch, 0);
    assert_false(note.is_whole);
    mc_note_close(&note);
}

static void test_one_heartbeat_at_a_time(void **state)
{
    struct mc_note first = opened(), second;
    (void)state;
    assert_true(mc_note_open(&second, folder, PORT, error, sizeof(error)) < 0);
    assert_non_null(strstr(error, "another master"));
    assert_int_equal(second.fd, -1);
    assert_int_equal(keep(&second, 1, true, 1), 0); /* keeps nothing, and says nothing */
    mc_note_close(&first);
    second = opened();
    mc_note_close(&second);
    assert_int_equal(mc_note_open(&second, "", PORT, error, sizeof(error)), 0);
    assert_int_equal(second.fd, -1);
    assert_true(mc_note_open(&second, "/proc/nowhere", PORT, error, sizeof(error)) < 0);
}

/* Which boot it is of is known from the start: a master that has no descriptor left still writes what the next one
 * takes for its word. */
static void test_without_descriptors(void **state)
{
    struct mc_note note = opened();
    struct rlimit limit;
    int held[64], count = 0;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    struct rlimit few = {.rlim_cur = 32, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (count < 64 && (held[count] = dup(note.fd)) >= 0)
        count++;
    assert_true(count < 64);
    int rc = keep(&note, 7, true, 1000);
    struct mc_note next;
    int next_rc = mc_note_open(&next, folder, PORT, error, sizeof(error));
    while (count > 0)
        close(held[--count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(next_rc, MC_ERR_NO_MEMORY); /* which is not "there is none" */
    assert_int_equal(next.fd, -1);
    mc_note_close(&note);
    note = opened();
    assert_int_equal(note.epoch, 7);
    mc_note_close(&note);
}

/* Nothing of a note that is cut short, damaged or somebody's trap is believed. */
static void test_bad_notes(void **state)
{
    char text[64];
    (void)state;
    for (off_t at = -1; at < 56; at += 4) {
        struct mc_note note = opened();
        assert_int_equal(keep(&note, 8, true, 1000), 0);
        mc_note_close(&note);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && read(fd, text, sizeof(text)) == 56);
        if (at < 0) {
            assert_int_equal(ftruncate(fd, 40), 0);
        } else {
            text[at] ^= 1;
            assert_int_equal(pwrite(fd, text, 56, 0), 56);
        }
        close(fd);
        note = opened();
        assert_int_equal(note.epoch, at < 52 ? 0 : 8);
        assert_false(note.is_whole); /* the word behind the checksum has one of its own */
        mc_note_close(&note);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    struct mc_note note;
    assert_true(mc_note_open(&note, folder, PORT, error, sizeof(error)) < 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(mc_note_open(&note, folder, PORT, error, sizeof(error)) < 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(folder, path), 0);
    assert_true(mc_note_open(&note, folder, PORT, error, sizeof(error)) < 0);
}

/* The machine went down: what its master did last may be missing, but no later one takes its epoch, if the wall clock
 * comes back late. */
static void test_another_boot(void **state)
{
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(keep(&note, 7, true, mc_clock_boot_ms()), 0);
    mc_note_close(&note);
    boot_again();
    assert_int_equal(assert_stands(7, 0), 0);
}

static int name_to_the_end(struct mc_note *note, struct mc_id cluster)
{
    int rc = mc_note_name(note, cluster);
    for (unsigned i = 0; rc > 0 && i < 10000; i++) {
        usleep(1000);
        rc = mc_note_name(note, cluster);
    }
    return rc;
}

static int come_of_age(struct mc_note *note, uint64_t epoch)
{
    int rc = mc_note_age(note, epoch);
    for (unsigned i = 0; rc == 1 && i < 10000; i++) {
        usleep(1000);
        rc = mc_note_age(note, epoch);
    }
    return rc;
}

/* Who came of age may have acted on the absence of all whom it had not met; that is on the disk, and true of any boot.
 */
static void test_who_came_of_age(void **state)
{
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(mc_note_age(&note, 7), 1); /* the disk is not waited for */
    assert_int_equal(come_of_age(&note, 7), 0);
    assert_int_equal(mc_note_age(&note, 7), 0); /* said already */
    assert_int_equal(keep(&note, 7, true, mc_clock_boot_ms()), 0);
    mc_note_close(&note);
    assert_true(assert_stands(7, 7) > 0);
    assert_aged(7);
    boot_again();
    assert_int_equal(assert_stands(7, 0), 0);
    assert_aged(7);
    note = opened();
    /* One that takes an epoch and does nothing changes nothing of it, whatever becomes of it. */
    assert_int_equal(take(&note, 9), 0);
    mc_note_close(&note);
    assert_int_equal(assert_stands(9, 0), 0);
    boot_again();
    assert_aged(7);
    note = opened();
    /* One that ends while it is written: the note is closed when the disk has it. */
    assert_int_equal(mc_note_age(&note, 9), 1);
    mc_note_close(&note);
    boot_again();
    assert_aged(9);
}

/* What was torn while it was written is not believed, and the one before it is. */
static void test_age_that_is_torn(void **state)
{
    uint8_t byte;
    (void)state;
    struct mc_note note = opened();
    for (uint64_t epoch = 7; epoch <= 9; epoch++) {
        assert_int_equal(take(&note, epoch), 0);
        assert_int_equal(come_of_age(&note, epoch), 0);
    }
    mc_note_close(&note);
    boot_again();
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t at = 0; at < 20; at++) {
        const off_t places[] = {512 + at, 1024 + at};
        for (unsigned torn = 0; torn < 4; torn++) {
            for (unsigned place = 0; place < 2; place++) {
                assert_int_equal(pread(fd, &byte, 1, places[place]), 1);
                byte ^= (uint8_t)(torn >> place & 1);
                assert_int_equal(pwrite(fd, &byte, 1, places[place]), 1);
            }
            note = opened();
            /* 9 stands behind 7, in the second place */
            assert_int_equal(note.aged, torn == 0 ? 9 : torn == 1 ? 9 : torn == 2 ? 8 : 0);
            mc_note_close(&note);
            for (unsigned place = 0; place < 2; place++) {
                assert_int_equal(pread(fd, &byte, 1, places[place]), 1);
                byte ^= (uint8_t)(torn >> place & 1);
                assert_int_equal(pwrite(fd, &byte, 1, places[place]), 1);
            }
        }
    }
    close(fd);
}

/* No room on the disk: the master hears of it, and nothing is believed. Without a note there is nothing to wait for. */
static void test_age_without_room(void **state)
{
    struct rlimit before, small = {256, 256};
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = come_of_age(&note, 7), why = errno;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(rc < 0);
    assert_int_equal(why, EFBIG);
    mc_note_close(&note);
    note = opened();
    assert_int_equal(note.aged, 0);
    mc_note_close(&note);
    assert_int_equal(mc_note_age(&note, 7), 0);
}

static int depart(struct mc_note *note, uint64_t epoch, uint64_t at_ms)
{
    int rc = mc_note_depart(note, epoch, at_ms);
    for (unsigned i = 0; rc == 1 && i < 10000; i++) {
        usleep(1000);
        rc = mc_note_depart(note, epoch, at_ms);
    }
    return rc;
}

static void assert_horizons(const struct mc_horizon *wanted)
{
    struct mc_note note = opened();
    assert_memory_equal(note.horizons, wanted, sizeof(note.horizons));
    mc_note_close(&note);
}

/* How far a master went in acting on silences: it only goes on; those of the masters before it stay, as far as none has
 * come of age since. True of any boot. */
static void test_horizons(void **state)
{
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(mc_note_depart(&note, 7, 4000), 1); /* the disk is not waited for */
    assert_int_equal(depart(&note, 7, 4000), 0);
    assert_int_equal(mc_note_depart(&note, 7, 4000), 0); /* said already, */
    assert_int_equal(mc_note_depart(&note, 7, 1), 0);    /* and more than that */
    mc_note_close(&note);
    boot_again();
    assert_horizons((struct mc_horizon[MC_HORIZONS_MAX]){{7, 4000}});
    note = taken(8);
    assert_int_equal(depart(&note, 8, 500), 0);
    assert_int_equal(depart(&note, 8, 501), 0);
    mc_note_close(&note);
    assert_horizons((struct mc_horizon[MC_HORIZONS_MAX]){{8, 501}, {7, 4000}});
    note = taken(9);
    assert_int_equal(come_of_age(&note, 8), 0);
    assert_int_equal(depart(&note, 9, 3), 0);
    mc_note_close(&note);
    assert_horizons((struct mc_horizon[MC_HORIZONS_MAX]){{9, 3}, {8, 501}});
    for (uint64_t epoch = 10; epoch < 14; epoch++) {
        note = taken(epoch);
        assert_int_equal(depart(&note, epoch, epoch), 0);
        mc_note_close(&note);
    }
    assert_horizons((struct mc_horizon[MC_HORIZONS_MAX]){{13, 13}, {12, 12}, {11, 11}, {10, 10}});
}

/* What was torn is not believed, and what stood there before is; a disk that hangs is waited for, one without room is
 * told, and no note at all is nothing to wait for. */
static void test_horizons_and_a_bad_disk(void **state)
{
    const struct mc_horizon earlier[MC_HORIZONS_MAX] = {{7, 10}}, later[MC_HORIZONS_MAX] = {{7, 20}};
    struct rlimit before, small = {256, 256};
    uint8_t byte;
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(depart(&note, 7, 10), 0); /* in the second place, */
    assert_int_equal(depart(&note, 7, 20), 0); /* in the first */
    mc_note_close(&note);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t at = 1536; at < 1536 + 76; at++) {
        assert_horizons(later);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        assert_horizons(earlier);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    note = opened();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = depart(&note, 7, 30), why = errno;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(rc < 0);
    assert_int_equal(why, EFBIG);
    atomic_store(&disk_hangs, true);
    assert_int_equal(mc_note_depart(&note, 7, 30), 1);
    assert_int_equal(mc_note_age(&note, 7), 1); /* behind what the disk was asked for */
    usleep(20000);
    assert_int_equal(mc_note_depart(&note, 7, 30), 1);
    atomic_store(&disk_hangs, false);
    assert_int_equal(depart(&note, 7, 30), 0);
    assert_int_equal(come_of_age(&note, 7), 0);
    mc_note_close(&note);
    assert_horizons((struct mc_horizon[MC_HORIZONS_MAX]){{7, 30}});
    assert_int_equal(mc_note_depart(&note, 7, 40), 0);
}

/* Which cluster it is stands behind the rest, is kept with a checksum of its own, and is true of any boot. */
static void test_the_name_of_the_cluster(void **state)
{
    const struct mc_id cluster = {0x123456789abcdef0, 77};
    uint8_t byte;
    (void)state;
    struct mc_note note = opened();
    assert_true(mc_id_is_zero(note.cluster));
    assert_int_equal(name_to_the_end(&note, cluster), 0);
    assert_int_equal(take(&note, 7), 0);
    mc_note_close(&note);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, 10), 1); /* the rest is damaged */
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 10), 1);
    note = opened();
    assert_int_equal(note.taken, 0);
    assert_true(mc_id_equal(note.cluster, cluster));
    assert_int_equal(name_to_the_end(&note, (struct mc_id){1, 2}), 0);
    mc_note_close(&note);
    for (off_t at = 64; at < 92; at += 4) {
        note = opened();
        assert_true(mc_id_equal(note.cluster, (struct mc_id){1, 2}));
        mc_note_close(&note);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        note = opened();
        assert_true(mc_id_is_zero(note.cluster));
        mc_note_close(&note);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* Nobody waits for a disk that hangs: neither who writes the name or comes of age, nor who ends. */
static void test_a_disk_that_hangs(void **state)
{
    const struct mc_id cluster = {3, 4};
    (void)state;
    struct mc_note note = taken(EPOCH);
    atomic_store(&disk_hangs, true);
    assert_true(mc_note_name(&note, cluster) > 0);
    assert_int_equal(mc_note_age(&note, 7), 1);
    for (unsigned i = 0; mc_note_name(&note, cluster) != MC_NOTE_STANDS && i < 5000; i++)
        usleep(1000);
    assert_int_equal(mc_note_name(&note, cluster), MC_NOTE_STANDS); /* for the next process */
    assert_true(mc_id_is_zero(note.cluster));
    assert_int_equal(keep(&note, 7, true, mc_clock_boot_ms()), 0);
    mc_note_close(&note);
    note = opened();
    assert_int_equal(note.epoch, 7);
    assert_int_equal(mc_note_age(&note, 9), 1);
    assert_true(mc_note_name(&note, (struct mc_id){5, 6}) > 0); /* behind what the disk was asked for */
    usleep(20000);
    assert_int_equal(mc_note_age(&note, 9), 1);
    atomic_store(&disk_hangs, false);
    assert_int_equal(come_of_age(&note, 9), 0);
    assert_int_equal(name_to_the_end(&note, (struct mc_id){5, 6}), 0);
    assert_true(mc_id_equal(note.cluster, (struct mc_id){5, 6}));
    assert_int_equal(note.aged, 9);
    mc_note_close(&note);
}

/* While it writes that it takes that epoch. */
static void hang(struct mc_note *note, uint64_t epoch)
{
    unsigned before = atomic_load(&writes);
    atomic_store(&file_hangs, true);
    assert_int_equal(mc_note_take(note, epoch), 1);
    while (atomic_load(&writes) == before)
        usleep(1000);
}

/* Nobody waits for a file that hangs. Nothing stands there meanwhile; of several records the last one is written. */
static void test_a_file_that_hangs(void **state)
{
    const struct mc_id cluster = {3, 4};
    uint64_t now_ms = mc_clock_boot_ms();
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(keep(&note, EPOCH, true, now_ms), 0);
    hang(&note, 8);
    assert_int_equal(mc_note_name(&note, cluster), 1);
    assert_int_equal(mc_note_age(&note, 8), 1);
    assert_int_equal(mc_note_depart(&note, 8, 5), 1);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(mc_note_keep(&note, 8, i < 500, now_ms + 10 * i, now_ms + 10 * i), 1);
    assert_int_equal(mc_note_take(&note, 8), 1);
    struct mc_note next;
    assert_true(mc_note_open(&next, folder, PORT, error, sizeof(error)) < 0);
    unsigned before = atomic_load(&writes);
    atomic_store(&file_hangs, false);
    assert_int_equal(keep(&note, 8, false, now_ms + 9990), 0);
    assert_int_equal(take(&note, 8), 0);
    assert_int_equal(name_to_the_end(&note, cluster), 0);
    assert_int_equal(come_of_age(&note, 8), 0);
    assert_int_equal(depart(&note, 8, 5), 0);
    assert_int_equal(atomic_load(&writes) - before, 4); /* one record, and three other places */
    assert_true(mc_note_close(&note));
    note = opened();
    assert_int_equal(note.epoch, 8);
    assert_false(note.is_whole);
    assert_int_equal(note.aged, 8);
    assert_true(mc_id_equal(note.cluster, cluster));
    mc_note_close(&note);
}

/* Every write takes 150 ms, and the record is told anew all the time: each other place has its turn. */
static void test_a_file_that_is_slow(void **state)
{
    const struct mc_id cluster = {3, 4};
    uint64_t now_ms = mc_clock_boot_ms();
    bool is_named = false, is_aged = false, has_departed = false;
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(keep(&note, EPOCH, true, now_ms), 0);
    atomic_store(&write_ms, 150);
    uint64_t start_ns = mc_clock_ns();
    for (unsigned i = 1; !(is_named && is_aged && has_departed) && mc_clock_ns() - start_ns < 5000000000; i++) {
        (void)mc_note_keep(&note, EPOCH, true, now_ms + 1000 * i, 0);
        is_named = mc_note_name(&note, cluster) == 0;
        is_aged = mc_note_age(&note, EPOCH) == 0;
        has_departed = mc_note_depart(&note, EPOCH, 5) == 0;
        usleep(5000);
    }
    atomic_store(&write_ms, 0);
    assert_true(is_named && is_aged && has_departed);
    mc_note_close(&note);
}

/* Where the record could not be written the note is gone: what another master makes in its place is left alone. */
static void test_a_record_that_fails_late(void **state)
{
    (void)state;
    struct mc_note note = taken(EPOCH);
    uint64_t now_ms = mc_clock_boot_ms();
    atomic_store(&records, 0);
    atomic_store(&file_hangs, true);
    assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms, now_ms), 1);
    while (atomic_load(&records) == 0)
        usleep(1000);
    assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 1000, now_ms + 1000), 1);
    atomic_store(&record_refused, true);
    atomic_store(&file_hangs, false);
    usleep(200000);
    atomic_store(&record_refused, false);
    assert_int_equal(atomic_load(&records), 1);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(keep(&note, EPOCH, true, now_ms + 2000) < 0);
    assert_int_equal(note.fd, -1);
}

/* The disk has refused the name of the cluster: nothing is said of it, and the next boot asks who is here. */
static void test_a_name_that_the_disk_refuses(void **state)
{
    const struct mc_id cluster = {3, 4};
    (void)state;
    struct mc_note note = taken(EPOCH);
    atomic_store(&disk_refuses, true);
    int rc = name_to_the_end(&note, cluster);
    atomic_store(&disk_refuses, false);
    assert_int_equal(rc, 0);
    assert_true(mc_id_equal(note.cluster, cluster));
    mc_note_close(&note);
}

/* What stands there is enough as long as it says so: whose time need not be said any more goes on. */
static void test_what_stands_there_is_enough(void **state)
{
    (void)state;
    uint64_t now_ms = mc_clock_boot_ms();
    struct mc_note note = taken(EPOCH);
    assert_int_equal(keep(&note, EPOCH, true, now_ms), 0);
    atomic_store(&file_hangs, true);
    assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 50, now_ms + 50), 0);
    assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 5000, now_ms + 5000), 1);
    assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 5000, 0), 0);
    assert_int_equal(mc_note_keep(&note, EPOCH, false, now_ms + 5000, 0), 1); /* it has given somebody up */
    atomic_store(&file_hangs, false);
    assert_int_equal(keep(&note, EPOCH, false, now_ms + 5000), 0);
    mc_note_close(&note);
}

/* Whose write hangs keeps the lock until it has ended, and does not begin another: nothing is written into a note that
 * the next master has read. */
static void test_the_end_of_one_whose_file_hangs(void **state)
{
    (void)state;
    struct mc_note note = taken(EPOCH), next;
    hang(&note, 8);
    assert_int_equal(mc_note_age(&note, 8), 1);
    assert_false(mc_note_close(&note));
    assert_true(mc_note_open(&next, folder, PORT, error, sizeof(error)) < 0);
    assert_non_null(strstr(error, "another master"));
    unsigned before = atomic_load(&writes);
    atomic_store(&file_hangs, false);
    int rc = MC_ERR_INTERNAL_ERROR;
    for (unsigned i = 0; rc != 0 && i < 10000; i++) {
        rc = mc_note_open(&next, folder, PORT, error, sizeof(error));
        usleep(1000);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(next.taken, 8);
    assert_int_equal(next.aged, 0);
    assert_int_equal(atomic_load(&writes), before);
    mc_note_close(&next);
}

/* In one turn one thing stands there and another does not: the thread is waited for once until it has caught up. */
static void test_needs_that_differ(void **state)
{
    (void)state;
    uint64_t now_ms = mc_clock_boot_ms();
    struct mc_note note = taken(EPOCH);
    assert_int_equal(keep(&note, EPOCH, true, now_ms), 0);
    atomic_store(&file_hangs, true);
    uint64_t start_ns = mc_clock_ns();
    for (unsigned i = 0; i < 400; i++) {
        assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 5000, now_ms + 5000), 1);
        assert_int_equal(mc_note_keep(&note, EPOCH, true, now_ms + 5000, 0), 0);
    }
    assert_true(mc_clock_ns() - start_ns < 400000000);
    atomic_store(&file_hangs, false);
    assert_int_equal(keep(&note, EPOCH, true, now_ms + 5000), 0);
    mc_note_close(&note);
}

static void *end_later(void *argument)
{
    sleep(4);
    atomic_store(&end_hangs, false);
    return argument;
}

/* Unlocking and closing the file may hang as well. Who ends waits a second for it, with a sync or without; whose record
 * could not be written does not wait, in the loop. */
static void test_an_end_that_hangs(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        pthread_t thread;
        struct rlimit before, small = {16, 16};
        struct mc_note note = taken(EPOCH + i);
        if (i == 1) {
            atomic_store(&disk_hangs, true);
            assert_int_equal(mc_note_age(&note, EPOCH + i), 1);
        }
        atomic_store(&end_hangs, true);
        assert_int_equal(pthread_create(&thread, NULL, end_later, NULL), 0);
        uint64_t start_ns = mc_clock_ns();
        if (i < 2) {
            assert_false(mc_note_close(&note));
            assert_true(mc_clock_ns() - start_ns < 3000000000);
        } else {
            assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
            small.rlim_max = before.rlim_max;
            assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
            int rc = keep(&note, EPOCH + i, true, mc_clock_boot_ms());
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
            assert_true(rc < 0);
            assert_int_equal(note.fd, -1);
            assert_true(mc_clock_ns() - start_ns < 800000000);
        }
        assert_int_equal(pthread_join(thread, NULL), 0);
        atomic_store(&disk_hangs, false);
        usleep(100000);
    }
}

/* A record that cannot be written is no last word of anybody. */
static void test_record_without_room(void **state)
{
    struct rlimit before, small = {16, 16};
    (void)state;
    struct mc_note note = taken(EPOCH);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = keep(&note, EPOCH, true, mc_clock_boot_ms());
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(rc < 0);
    assert_int_equal(note.fd, -1);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(keep(&note, EPOCH, true, mc_clock_boot_ms()), 0); /* there is none */
}

/* A master whose clock is behind that of the one before it does not take an epoch a second time. */
static void test_no_epoch_is_taken_twice(void **state)
{
    struct mc_master_config config = {.rpc_address = "127.0.0.1", .log_level = -1};
    struct mc_server *server;
    uint64_t last = 0;
    (void)state;
    config.core = mc_core_config_default();
    snprintf(config.state_dir, sizeof(config.state_dir), "%s", folder);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(mc_server_create(&config, &server, error, sizeof(error)), 0);
        config.rpc_port = mc_server_port(server);
        snprintf(path, sizeof(path), "%s/master-%u.note", folder, config.rpc_port);
        uint64_t epoch = mc_server_epoch(server);
        assert_true(epoch > last);
        mc_server_destroy(server);
        /* As if its clock had been an hour, or twenty years, ahead. */
        struct mc_note note;
        assert_int_equal(mc_note_open(&note, folder, config.rpc_port, error, sizeof(error)), 0);
        assert_int_equal(note.taken, epoch);
        last = epoch + (i == 0 ? 360000 : 0);
        assert_int_equal(take(&note, i < 2 ? last : UINT64_MAX >> 28), 0);
        mc_note_close(&note);
        if (i >= 2)
            last = 0; /* an epoch that cannot be is not topped */
    }
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_what_one_wrote_the_next_one_reads),
        TEST(test_who_gave_up_nobody),
        TEST(test_one_heartbeat_at_a_time),
        TEST(test_without_descriptors),
        TEST(test_bad_notes),
        TEST(test_another_boot),
        TEST(test_who_came_of_age),
        TEST(test_age_that_is_torn),
        TEST(test_age_without_room),
        TEST(test_horizons),
        TEST(test_horizons_and_a_bad_disk),
        TEST(test_a_disk_that_hangs),
        TEST(test_a_file_that_hangs),
        TEST(test_a_file_that_is_slow),
        TEST(test_a_record_that_fails_late),
        TEST(test_a_name_that_the_disk_refuses),
        TEST(test_what_stands_there_is_enough),
        TEST(test_the_end_of_one_whose_file_hangs),
        TEST(test_an_end_that_hangs),
        TEST(test_needs_that_differ),
        TEST(test_record_without_room),
        TEST(test_no_epoch_is_taken_twice),
        TEST(test_the_name_of_the_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
