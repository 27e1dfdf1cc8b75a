/* What is given back beside those who must not wait: unmapping a large segment, or ending its registration, takes the
 * kernel seconds. One thread of the process does it, in the order in which it was given, and ends when nothing is left.
 * No memory is needed to give something: the caller's object has the room. Any thread. */
#ifndef MC_SEGMENT_LET_GO_H
#define MC_SEGMENT_LET_GO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MC_LET_GO_MAX 64u /* that wait; with so many whoever comes does it himself */

struct mc_let_go {
    struct mc_let_go *next;
    void (*run)(struct mc_let_go *self);    /* what takes long */
    void (*after)(struct mc_let_go *self);  /* may free what `self` is part of, or give it again. NULL: nothing */
    void (*forked)(struct mc_let_go *self); /* in a forked child, instead of both: closes descriptors. NULL: nothing */
};

/* run and after will be called; by the caller himself where there are too many, or no thread can be started. */
void mc_let_go(struct mc_let_go *self);
/* Until all that was given is given back, by whomever in this process. */
void mc_let_go_await(void);
/* Until one of these words is true, which whoever sets it tells by mc_let_go_wake, or mc_clock_ns came to until_ns. */
void mc_let_go_await_word(const atomic_bool *word, const atomic_bool *other, uint64_t until_ns);
void mc_let_go_wake(void);

/* Around a fork. */
void mc_let_go_before_fork(void);
void mc_let_go_after_fork_parent(void);
void mc_let_go_after_fork_child(void);

#endif
