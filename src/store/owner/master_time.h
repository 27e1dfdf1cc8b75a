/* When a master sent what this node reads: perhaps long ago, if the node was stopped in between. A later master judges
 * by it for how long that one lived.
 *
 * No two clocks are compared. The master says its age, by its own clock, with the answers to some requests (hello,
 * heartbeat), and every frame the lower bits of it. It had that age after we asked and before we read the answer: so
 * our clock at its age 0 lies between two bounds, which every such answer narrows and the drift of clocks widens.
 * Invariant: a time that is told is not before the frame was sent, as far as that master's clock runs like ours (0.1
 * %), and not after now. One answer that was read in time is enough to date all that are read late, and all that are
 * given late. A master takes its time after it has read a request, so its age in the answer is not of before.
 *
 * Bounds are changed by one thread at a time; read by any. */
#ifndef MC_OWNER_MASTER_TIME_H
#define MC_OWNER_MASTER_TIME_H

#include <stdatomic.h>
#include <stdint.h>

struct mc_master_time {                /* all zero: nothing is known */
    _Atomic uint64_t epoch;            /* of whom */
    _Atomic int64_t least_ms, most_ms; /* our clock at its age 0 */
    _Atomic uint64_t learned_ms;
};

/* The master of that epoch has answered at now_ms what was asked at asked_ms, at its age of age_ms (0: it did not say).
 */
void mc_master_time_learn(struct mc_master_time *time, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms,
                          uint64_t now_ms);
/* When, at the earliest, it answered at that age what was asked at asked_ms; asked once that age was learned. An answer
 * that came late is not as old as its question, if the master was late, and one before it has dated its age. */
uint64_t mc_master_time_answered(const struct mc_master_time *time, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms);
/* When it sent a frame of that time (mc_frame.time), which is read at now_ms. */
uint64_t mc_master_time_of(const struct mc_master_time *time, uint64_t epoch, uint16_t frame_time, uint64_t now_ms);

#endif
