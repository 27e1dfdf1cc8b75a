/* What a master without an election leaves on its machine for the one after it: which epoch it took, under which one a
 * master may have acted last, and until when. With an election the place of the election knows that.
 *
 * One file for each port in the directory of state, locked by the master that keeps it. It is written before what it
 * speaks of can have been done: `until` lies a little ahead, and nothing is decided after it. A process that is killed
 * loses nothing of it; a machine that goes down may, so of a note of another boot only is believed what is known to be
 * on the disk: which epoch was taken, before the master begins, which one came of age (mc_note_age), before it acts on
 * the absence of who never came to it, and its horizon (mc_note_depart), before it acts on the silence of who did.
 * Which cluster this is stands behind the rest, with a checksum of its own, and is true of any boot.
 */
#ifndef MC_MASTER_NOTE_H
#define MC_MASTER_NOTE_H

#include "base/bytes.h"
#include "store/core/core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_NOTE_PATH_MAX 1024u

struct mc_note {
    int fd;                          /* -1: there is none */
    uint64_t taken, epoch, until_ms; /* as told last, and written soon; epoch 0: nobody has acted yet. CLOCK_BOOTTIME */
    bool is_whole;                   /* that one had given up nobody of those that it had met */
    struct mc_id cluster;            /* as written; zero: none was. Of any boot */
    uint64_t aged;                   /* of the last that came of age, as far as it is on the disk; 0: none */
    unsigned aged_place;             /* where that stands: its successor is written to the other place */
    uint64_t aging;                  /* that comes of age, as written; 0: none */
    struct mc_horizon horizons[MC_HORIZONS_MAX]; /* as on the disk, latest epoch first; none is of before `aged` */
    unsigned horizons_place;                     /* as aged_place */
    struct mc_horizon going[MC_HORIZONS_MAX];    /* as written, but perhaps not on the disk; epoch 0: none was */
    struct mc_id naming;                         /* cluster, as written, but perhaps not on the disk */
    uint64_t aging_write, naming_write, going_write, taking_write; /* the numbers of those three, and of `taken` */
    bool is_late;            /* the thread that writes is behind: no more is it waited for */
    struct mc_note_pen *pen; /* what it shares with its threads; NULL: there is no note */
    char path[MC_NOTE_PATH_MAX];
};

/* Takes the note of that port up, or makes it. 0, or negative with one line in error; then it keeps nothing (fd -1), as
 * it does with an empty directory: MC_ERR_NO_MEMORY for want of memory or descriptors, so that one which is there was
 * not looked at. The directory is made, its parents are not. */
int mc_note_open(struct mc_note *note, const char *directory, uint16_t port, char *error, size_t error_size);
/* The note stays for the next master. What was not begun within a second is not written, and the disk is not waited
 * for: nobody has acted on what that does not have. False: a write hangs. The file stays locked until that ends, or the
 * process, which is to keep its port for so long. */
bool mc_note_close(struct mc_note *note);

/* What follows is written by a thread of its own ("mc-note"), and what has to be on the disk is waited for by another
 * one: each is asked again as long as the answer is above 0. */

/* A master of that epoch begins; no later one is to have it again, also after the machine went down: on the disk. 0, or
 * negative: as mc_note_keep, or (there is still a note) the disk has not taken it. */
int mc_note_take(struct mc_note *note, uint64_t epoch);
/* Which cluster this is, for all masters to come. 0: on the disk, or the disk has refused it. MC_NOTE_STANDS: all of
 * this boot know it, and the disk is waited for. Negative: it could not be written. */
#define MC_NOTE_STANDS 2
int mc_note_name(struct mc_note *note, struct mc_id cluster);
/* The master of that epoch may act from now on, at boot_ms (CLOCK_BOOTTIME), for a moment; is_whole: it has given up
 * nobody of those that it has met. 0: that stands there, with a time that is not before needed_ms. Cheap when it was
 * said already. Negative: it cannot be written, and is gone. */
int mc_note_keep(struct mc_note *note, uint64_t epoch, bool is_whole, uint64_t boot_ms, uint64_t needed_ms);
/* A write has been under way for seconds. */
bool mc_note_hangs(const struct mc_note *note);

/* The master of that epoch has lived so long that it would act on the absence of owners that it has not met: that is
 * written to the disk first. 0: done, or there is no note. Negative: it could not be written, errno says why, and a
 * later boot will not know. */
int mc_note_age(struct mc_note *note, uint64_t epoch);
/* The master of that epoch would act on the departure of who had the last contact at its age at_ms (not 0), or before:
 * that is written to the disk first, in the same way. */
int mc_note_depart(struct mc_note *note, uint64_t epoch, uint64_t at_ms);

#endif
