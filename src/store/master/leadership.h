/* Who may serve, and until when: what a master does to become and stay the leader, as a state machine without a clock,
 * a thread or a network. Times are milliseconds of one clock that also runs while the machine sleeps.
 *
 * The place of the election holds one *view*: who leads, under which epoch, with a revision that changes with every
 * renewal, and the time to live (ttl) that its leader has promised. A leader serves only before (sending of its last
 * successful renewal) + ttl - margin. Somebody else claims the view only after it has seen the same revision for ttl
 * since it first saw it. That there is none is waited out as well: somebody may have deleted it, or etcd lost it, under
 * a leader that has not noticed yet. Only a leader that says that it resigned is followed at once, and so is one's own
 * claim. A claim is guarded: it succeeds only upon the view that was judged.
 *
 * What stands there may be a copy of long ago, brought back under a leader that nobody here has met. So who has just
 * come, or was without an answer for ttl, waits for ttl whatever it finds, unless that word comes under its eyes, from
 * a leader that it has seen.
 *
 * Invariant: when a claim succeeds, every earlier leader has stopped by its own clock, or stops before its next look at
 * it. Nothing depends on when the place itself notices that a leader is gone. */
#ifndef MC_MASTER_LEADERSHIP_H
#define MC_MASTER_LEADERSHIP_H

#include "store/segment/layout.h"

#include <stdbool.h>
#include <stdint.h>

struct mc_leadership_config {
    uint64_t ttl_ms;
    uint64_t renew_ms;  /* between two renewals */
    uint64_t poll_ms;   /* between two looks of a standby */
    uint64_t margin_ms; /* clocks that run at other rates, and the length of a turn */
    uint64_t odd;       /* of each process another: two that follow the same claim, as it was brought back from a copy
                         * in between, or the same word of nodes, do not lead under one epoch. 0 to
                         * MC_LEADERSHIP_ODDS - 1 */
};
#define MC_LEADERSHIP_ODDS 1024u
/* With what follows from a time to live. */
struct mc_leadership_config mc_leadership_config(uint64_t ttl_ms);

enum mc_leadership_action {
    MC_LEADERSHIP_OBSERVE,
    MC_LEADERSHIP_CLAIM, /* the view of the last observation, under step.epoch */
    MC_LEADERSHIP_RENEW,
    MC_LEADERSHIP_RESIGN,
    MC_LEADERSHIP_END /* nothing more, ever */
};
struct mc_leadership_step {
    enum mc_leadership_action action;
    uint64_t at_ms;       /* do it then; <= now: at once. Ask again after any input. */
    uint64_t deadline_ms; /* the operation's */
    uint64_t epoch;
};

enum mc_leadership_outcome { MC_LEADERSHIP_DONE, MC_LEADERSHIP_REFUSED, MC_LEADERSHIP_UNKNOWN };

struct mc_leadership_view {
    bool is_present;
    bool is_ours;       /* the last claim that this process made, whether or not it heard of its success */
    bool has_resigned;  /* the leader under that epoch has said that it serves no more */
    bool has_gone_back; /* what stands beside it says less than it did: the place was brought back from a copy */
    uint64_t revision, ttl_ms;
    uint64_t epoch; /* the highest ever, also when nobody leads; 0: none */
};

enum mc_leadership_phase {
    MC_LEADERSHIP_STANDBY,
    MC_LEADERSHIP_CANDIDATE, /* claims now */
    MC_LEADERSHIP_LEADER,
    MC_LEADERSHIP_RESIGNING,
    MC_LEADERSHIP_ENDED
};

struct mc_leadership {
    struct mc_leadership_config config;
    enum mc_leadership_phase phase;
    uint64_t due_ms;         /* of the next operation */
    uint64_t serve_until_ms; /* 0 unless we lead */
    uint64_t epoch;          /* that we hold or have last tried */
    uint64_t met_epoch;      /* the highest that stood there, as far as we know */
    uint64_t least_epoch;    /* somebody has seen one as high as the one below it */
    uint64_t predecessor_end_ms;
    uint64_t predecessor_epoch; /* of the last leadership that may have served; 0: there was none, or it is forgotten */
    uint64_t predecessor_claim_ms;  /* whoever led before that one has stopped by then; 0: that is not known */
    uint64_t claim_epoch;           /* of the claim that stood there last, but for one of ours that came to nothing */
    uint64_t before_end_ms;         /* whoever led before that claim has stopped by then; 0: we did not see it come */
    struct mc_leadership_view seen; /* that somebody leads */
    uint64_t seen_ms;               /* when its revision was seen first */
    struct mc_leadership_view gone; /* if is_gone: what stood there when nobody was seen to lead for the first time, */
    uint64_t gone_ms;               /* and when that was; */
    uint64_t over_ms;               /* its leader had ended by then, before it went; 0: that is not known */
    uint64_t looked_ms;             /* the sending of the last look that was answered */
    uint64_t contact_ms;            /* the sending of the last look, claim or renewal that succeeded */
    uint64_t patient_until_ms;      /* no claim before, as a leader whom we have not met may serve so long */
    uint64_t last_epoch;            /* of the last look, */
    bool last_resigned;             /* and whether that leader had said that it serves no more */
    bool has_contact;               /* had any */
    bool is_gone;
    bool is_forgetful;    /* the last look found an epoch below one that we have met, or its words gone back */
    bool has_seen;        /* any view */
    bool has_seen_change; /* so seen_ms is close to the renewal itself */
    uint64_t own_end_ms;  /* when we stopped to serve under `epoch`; 0: we never did serve under it */
};

void mc_leadership_init(struct mc_leadership *leadership, struct mc_leadership_config config, uint64_t now_ms);

/* Also ends a leadership whose time is over. */
struct mc_leadership_step mc_leadership_next(struct mc_leadership *leadership, uint64_t now_ms);

/* Results of the step. sent_ms: before the operation began. view: NULL when the look failed. least_epoch: of an epoch
 * that a claim may use now. */
void mc_leadership_observed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                            const struct mc_leadership_view *view, uint64_t least_epoch);
void mc_leadership_claimed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                           enum mc_leadership_outcome outcome);
void mc_leadership_renewed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                           enum mc_leadership_outcome outcome);
void mc_leadership_resigned(struct mc_leadership *leadership);

/* We have stopped to serve under that epoch, and would lead again with at least `wanted` (0: any). */
void mc_leadership_yield(struct mc_leadership *leadership, uint64_t now_ms, uint64_t epoch, uint64_t wanted);
/* We have stopped to serve and want nothing more. */
void mc_leadership_stop(struct mc_leadership *leadership, uint64_t now_ms);

/* Is there an epoch left for who follows that claim, whoever it is, or for who leads with at least that one? */
static inline bool mc_leadership_can_follow(uint64_t epoch)
{
    return epoch <= MC_EPOCH_MAX - 2 * MC_EPOCH_CARRY - MC_LEADERSHIP_ODDS;
}
static inline bool mc_leadership_can_want(uint64_t epoch)
{
    return epoch <= MC_EPOCH_MAX - MC_EPOCH_CARRY - MC_LEADERSHIP_ODDS;
}

static inline bool mc_leadership_may_serve(const struct mc_leadership *leadership, uint64_t now_ms)
{
    return now_ms < leadership->serve_until_ms;
}

#endif
