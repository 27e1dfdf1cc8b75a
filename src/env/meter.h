/* How far long work is, for who waits at a terminal: from two seconds on one line of stderr, which is written over and
 * in the end wiped: a bar, how many of how many, how fast, how much longer. Where stderr is no terminal there is none,
 * and every call returns at once.
 *
 * A thread of its own draws: the line goes on while the work waits for something, and who works stores a number.
 * What is shown may be known by a count, by a time after which the work ends, or by both. */
#ifndef MC_ENV_METER_H
#define MC_ENV_METER_H

#include "env/thread.h"

#include <stdatomic.h>

#define MC_METER_AFTER_MS 2000u
#define MC_METER_TEXT_MAX 160u

struct mc_meter {
    struct mc_sleeper drawer;
    _Atomic uint64_t done;
    /* Under the drawer's lock: */
    char what[MC_METER_TEXT_MAX], note[MC_METER_TEXT_MAX];
    const char *unit;
    uint64_t all, first;        /* first: what was done before */
    uint64_t step_ms, drawn_ms; /* when this step began, and when the line was drawn last */
    double seconds;
    bool is_shown, is_drawn, is_held; /* is_shown: stderr is a terminal, and there is a thread */
};

void mc_meter_begin(struct mc_meter *meter);
/* A part of it begins. what: before the bar, may be ""; unit: "objects", or "B": shown as sizes; all: 0: not known;
 * seconds: it ends then at the latest; 0: not known. */
void mc_meter_step(struct mc_meter *meter, const char *what, const char *unit, uint64_t all, double seconds);
/* So much is done; of the first call after a step: so much was done before, and says nothing of how fast it goes. */
void mc_meter_from(struct mc_meter *meter, uint64_t done);
static inline void mc_meter_at(struct mc_meter *meter, uint64_t done)
{
    atomic_store_explicit(&meter->done, done, memory_order_relaxed);
}
/* Behind all else. */
void mc_meter_note(struct mc_meter *meter, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Something else is to be printed, or may be: the line is wiped, and none drawn until it goes on. */
void mc_meter_hold(struct mc_meter *meter);
void mc_meter_go_on(struct mc_meter *meter);
void mc_meter_end(struct mc_meter *meter);

/* The line, `columns` wide at most; seconds: since the step began. For the thread and its test. */
void mc_meter_line(const struct mc_meter *meter, uint64_t done, double seconds, unsigned columns, char *line,
                   size_t size);

#endif
