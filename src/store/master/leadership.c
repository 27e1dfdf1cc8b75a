/* Leadership as a state machine. */
#include "store/master/leadership.h"

#include "store/segment/layout.h"

#include <stddef.h>

#define POLL_MS 100u
#define RETRY_MS 50u
#define PAUSE_PART 4u
#define KNOWN_TTLS 2u
#define MISSED_PART 4u       /* of ttl: nobody leads, and is forgotten by the place, in less */
#define OBSERVE_MS 1000u     /* a look, a claim, an end may take so long, or half the time to live if that is longer, */
#define OBSERVE_MAX_MS 5000u /* but not longer than this: who ends this process waits for what is under way */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct mc_leadership_config mc_leadership_config(uint64_t ttl_ms)
{
    return (struct mc_leadership_config){
        .ttl_ms = ttl_ms, .renew_ms = ttl_ms / 5, .poll_ms = least(POLL_MS, ttl_ms / 10), .margin_ms = ttl_ms / 20};
}

void mc_leadership_init(struct mc_leadership *leadership, struct mc_leadership_config config, uint64_t now_ms)
{
    *leadership = (struct mc_leadership){.config = config, .phase = MC_LEADERSHIP_STANDBY, .due_ms = now_ms};
}

/* From now on we do not serve. The next look finds our own claim, or a successor's. */
static void leave(struct mc_leadership *leadership, uint64_t now_ms)
{
    leadership->own_end_ms = least(leadership->serve_until_ms, now_ms);
    leadership->serve_until_ms = 0;
    leadership->phase = MC_LEADERSHIP_STANDBY;
    leadership->due_ms = now_ms;
}

struct mc_leadership_step mc_leadership_next(struct mc_leadership *leadership, uint64_t now_ms)
{
    if (leadership->phase == MC_LEADERSHIP_LEADER && now_ms >= leadership->serve_until_ms)
        leave(leadership, now_ms);
    static const enum mc_leadership_action actions[] = {
        [MC_LEADERSHIP_STANDBY] = MC_LEADERSHIP_OBSERVE, [MC_LEADERSHIP_CANDIDATE] = MC_LEADERSHIP_CLAIM,
        [MC_LEADERSHIP_LEADER] = MC_LEADERSHIP_RENEW,    [MC_LEADERSHIP_RESIGNING] = MC_LEADERSHIP_RESIGN,
        [MC_LEADERSHIP_ENDED] = MC_LEADERSHIP_END,
    };
    struct mc_leadership_step step = {
        .action = actions[leadership->phase], .at_ms = leadership->due_ms, .epoch = leadership->epoch};
    uint64_t start_ms = most(now_ms, step.at_ms);
    uint64_t half_ms = least(leadership->config.ttl_ms / 2, OBSERVE_MAX_MS);
    if (step.action == MC_LEADERSHIP_RENEW) {
        step.at_ms = least(step.at_ms, leadership->serve_until_ms);
        step.deadline_ms = leadership->serve_until_ms;
    } else if (step.action == MC_LEADERSHIP_END) {
        step.deadline_ms = UINT64_MAX;
    } else {
        step.deadline_ms = start_ms + (step.action == MC_LEADERSHIP_CLAIM ? half_ms : most(half_ms, OBSERVE_MS));
    }
    return step;
}

/* Keeps what is seen, and since when. */
static void note_view(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                      const struct mc_leadership_view *view)
{
    uint64_t before_ms = leadership->looked_ms;
    leadership->looked_ms = sent_ms;
    if (view->is_present) {
        if (!leadership->has_seen || leadership->is_gone || view->revision != leadership->seen.revision) {
            leadership->has_seen_change = leadership->has_seen;
            leadership->has_seen = true;
            leadership->seen = *view;
            leadership->seen_ms = now_ms;
        }
        leadership->is_gone = false;
        return;
    }
    /* And etcd may have forgotten what it had promised. */
    uint64_t ttl_ms = leadership->has_seen ? most(view->ttl_ms, leadership->seen.ttl_ms) : view->ttl_ms;
    bool is_gap = now_ms - before_ms > ttl_ms; /* for so long that somebody may have come and gone meanwhile */
    /* That it has resigned may come later: it has served until about then, though its view was gone. */
    if (leadership->is_gone && leadership->gone.epoch == view->epoch && !is_gap &&
        leadership->gone.has_resigned == view->has_resigned)
        return;
    leadership->has_seen_change = leadership->has_seen_change && !is_gap;
    /* It had stood still for so long that its leader had ended, and nobody can have come and be forgotten since. */
    bool was_over = leadership->has_seen && !leadership->is_gone && leadership->seen.epoch == view->epoch &&
                    before_ms >= leadership->seen_ms + leadership->seen.ttl_ms &&
                    now_ms - before_ms <= leadership->config.ttl_ms / MISSED_PART;
    leadership->over_ms = was_over ? leadership->seen_ms + leadership->seen.ttl_ms : 0;
    leadership->is_gone = true;
    leadership->gone = *view;
    leadership->gone_ms = now_ms;
    leadership->gone.ttl_ms = ttl_ms;
}

/* Has its leader taken that view away itself, when it had stopped to serve? */
static bool has_resigned(const struct mc_leadership_view *view)
{
    return !view->is_present && view->has_resigned;
}

/* When may somebody else claim that view? */
static uint64_t over_at(const struct mc_leadership *leadership, const struct mc_leadership_view *view, uint64_t now_ms)
{
    if (view->is_ours || has_resigned(view))
        return now_ms;
    if (view->is_present)
        return leadership->seen_ms + view->ttl_ms;
    return leadership->gone_ms + leadership->gone.ttl_ms;
}

/* Until when can the leader of the view that was judged have acted, as far as we know it closely? 0: we do not. A loose
 * answer would do harm: who was in touch with that leader would be taken for one that it had given up. */
static uint64_t predecessor_end(const struct mc_leadership *leadership, const struct mc_leadership_view *view,
                                uint64_t now_ms)
{
    if (view->is_ours) /* and one that we never served under left the one before it the last */
        return leadership->own_end_ms != 0 ? leadership->own_end_ms : leadership->predecessor_end_ms;
    if (!leadership->has_seen_change)
        return 0;
    if (has_resigned(view)) /* in the poll before the first look that found nobody */
        return leadership->gone_ms;
    if (!view->is_present && leadership->over_ms != 0)
        return leadership->over_ms;
    return least(over_at(leadership, view, now_ms), now_ms);
}

/* Somebody may have led since the last answer, and be forgotten by a place that was brought back from a copy: whatever
 * stands there, it has ended after this. Who sees a leader that it has met resign knows better. And another's view that
 * we know must first have stood still for ttl, then have been followed, and then have come back: elections within etcd,
 * which take one to two seconds, are not waited out twice. Our own has stood still since our last contact: who followed
 * it may lead, and be forgotten, from one ttl after that on. */
static void be_patient(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                       const struct mc_leadership_view *view)
{
    uint64_t limit_ms = leadership->config.ttl_ms * (view->is_present && !view->is_ours ? KNOWN_TTLS : 1);
    bool is_gap = !leadership->has_contact || now_ms - leadership->contact_ms > limit_ms;
    bool sees_it = leadership->last_epoch == view->epoch && !leadership->last_resigned && has_resigned(view);
    if (is_gap)
        leadership->patient_until_ms = now_ms + most(leadership->config.ttl_ms, view->ttl_ms);
    else if (sees_it)
        leadership->patient_until_ms = 0;
    leadership->has_contact = true;
    leadership->contact_ms = sent_ms; /* what stood there is no younger, though we may have stood still since */
    leadership->last_epoch = view->epoch;
    leadership->last_resigned = view->has_resigned;
}

void mc_leadership_observed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                            const struct mc_leadership_view *view, uint64_t least_epoch)
{
    if (leadership->phase != MC_LEADERSHIP_STANDBY)
        return; /* stopped meanwhile */
    leadership->due_ms = now_ms + leadership->config.poll_ms;
    if (view == NULL)
        return;
    /* A place that is what it was before a leader that we have met says nothing of that one. */
    struct mc_leadership_view believed = *view;
    bool is_forgetful = view->epoch < leadership->met_epoch || view->has_gone_back;
    if (is_forgetful)
        believed.is_ours = believed.has_resigned = false;
    leadership->is_forgetful = is_forgetful;
    leadership->met_epoch = most(leadership->met_epoch, view->epoch);
    view = &believed;
    be_patient(leadership, sent_ms, now_ms, view);
    note_view(leadership, sent_ms, now_ms, view);
    bool is_void = view->is_ours && leadership->own_end_ms == 0;
    if (view->epoch != leadership->claim_epoch && !is_void) {
        leadership->before_end_ms = leadership->claim_epoch == 0 || is_forgetful ? 0 : now_ms;
        leadership->claim_epoch = view->epoch;
    }
    uint64_t over_ms = most(over_at(leadership, view, now_ms), leadership->patient_until_ms);
    if (now_ms < over_ms) {
        leadership->due_ms = least(leadership->due_ms, over_ms);
        return;
    }
    leadership->predecessor_end_ms = predecessor_end(leadership, view, now_ms);
    if (!view->is_ours || leadership->own_end_ms != 0) {
        leadership->predecessor_epoch = is_forgetful ? 0 : view->epoch;
        leadership->predecessor_claim_ms = is_forgetful ? 0 : leadership->before_end_ms;
    }
    /* Our clock may be late: the one before us may have placed so much that its generations reach into later epochs. */
    uint64_t above = leadership->met_epoch == 0 ? 1 : leadership->met_epoch + MC_EPOCH_CARRY + leadership->config.odd;
    uint64_t wanted = leadership->least_epoch == 0 ? 0 : leadership->least_epoch + leadership->config.odd;
    leadership->epoch = most(most(above, least_epoch), wanted);
    leadership->own_end_ms = 0;
    leadership->phase = MC_LEADERSHIP_CANDIDATE;
    leadership->due_ms = now_ms;
}

void mc_leadership_claimed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                           enum mc_leadership_outcome outcome)
{
    if (leadership->phase != MC_LEADERSHIP_CANDIDATE)
        return; /* stopped meanwhile: RESIGN undoes it */
    leadership->phase = MC_LEADERSHIP_STANDBY;
    leadership->due_ms = now_ms + (outcome == MC_LEADERSHIP_DONE ? 0 : RETRY_MS);
    uint64_t until_ms = sent_ms + leadership->config.ttl_ms - leadership->config.margin_ms;
    if (outcome != MC_LEADERSHIP_DONE || now_ms >= until_ms)
        return; /* the next look tells whether it is ours */
    leadership->phase = MC_LEADERSHIP_LEADER;
    leadership->serve_until_ms = until_ms;
    leadership->met_epoch = leadership->epoch;
    leadership->due_ms = sent_ms + leadership->config.renew_ms;
    leadership->claim_epoch = leadership->epoch;
    leadership->before_end_ms = now_ms;
    leadership->contact_ms = sent_ms;
    leadership->patient_until_ms = 0;
    leadership->last_epoch = leadership->epoch;
    leadership->last_resigned = false;
    /* Of our own past nothing is to be concluded when somebody else has led after us. */
    leadership->has_seen = leadership->has_seen_change = leadership->is_gone = false;
}

void mc_leadership_renewed(struct mc_leadership *leadership, uint64_t sent_ms, uint64_t now_ms,
                           enum mc_leadership_outcome outcome)
{
    if (leadership->phase != MC_LEADERSHIP_LEADER)
        return;
    /* Once it was over, others may have seen it over: it does not come back, whatever this answer says. */
    if (now_ms >= leadership->serve_until_ms || outcome == MC_LEADERSHIP_REFUSED) {
        leave(leadership, now_ms);
    } else if (outcome == MC_LEADERSHIP_DONE) {
        leadership->serve_until_ms =
            most(leadership->serve_until_ms, sent_ms + leadership->config.ttl_ms - leadership->config.margin_ms);
        leadership->contact_ms = sent_ms;
        /* Slow answers, too, leave a moment in which something else may be written there: a note, a name. */
        leadership->due_ms =
            most(sent_ms + leadership->config.renew_ms, now_ms + leadership->config.renew_ms / PAUSE_PART);
    } else {
        leadership->due_ms = now_ms + RETRY_MS;
    }
}

void mc_leadership_resigned(struct mc_leadership *leadership)
{
    leadership->phase = MC_LEADERSHIP_ENDED;
}

void mc_leadership_yield(struct mc_leadership *leadership, uint64_t now_ms, uint64_t epoch, uint64_t wanted)
{
    leadership->least_epoch = most(leadership->least_epoch, wanted);
    if (leadership->phase == MC_LEADERSHIP_LEADER && leadership->epoch == epoch)
        leave(leadership, now_ms);
}

void mc_leadership_stop(struct mc_leadership *leadership, uint64_t now_ms)
{
    if (leadership->phase == MC_LEADERSHIP_RESIGNING || leadership->phase == MC_LEADERSHIP_ENDED)
        return;
    /* Also a claim that is under way, or whose outcome was never heard, is taken back. One that others have followed,
     * or may have followed since we were cut off, can stand there only when the place was brought back from a copy: its
     * word would be about somebody else. */
    bool is_last = leadership->epoch != 0 && leadership->epoch >= leadership->met_epoch;
    bool is_near = leadership->phase == MC_LEADERSHIP_CANDIDATE || mc_leadership_may_serve(leadership, now_ms) ||
                   now_ms <= leadership->contact_ms + leadership->config.ttl_ms;
    leadership->phase = is_last && is_near ? MC_LEADERSHIP_RESIGNING : MC_LEADERSHIP_ENDED;
    leadership->serve_until_ms = 0;
    leadership->due_ms = now_ms;
}
