/* master/leadership: tables of what happens in which order, and a random walk of several masters over one place with
 * clocks, lost answers and late ones: two of them never may serve at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/segment/layout.h"
#include "store/master/election.h"
#include "store/master/leadership.h"
#include "random.h"

#include <string.h>

#define TTL 2000u
#define MARGIN 100u
#define RENEW 400u
#define START_MS 1000u                       /* the clock when it begins */
#define PREDECESSOR 7u                       /* epoch of the leader that resigns */
#define LEAST 5u                             /* by the clock: no epoch of ours is below it */
#define FIRST (PREDECESSOR + MC_EPOCH_CARRY) /* epoch of the one that lead() makes */

static struct mc_leadership begin(uint64_t now_ms)
{
    struct mc_leadership leadership;
    mc_leadership_init(&leadership, mc_leadership_config(TTL), now_ms);
    return leadership;
}

static enum mc_leadership_action action(struct mc_leadership *leadership, uint64_t now_ms)
{
    struct mc_leadership_step step = mc_leadership_next(leadership, now_ms);
    assert_true(step.action == MC_LEADERSHIP_END || step.deadline_ms > now_ms);
    return step.action;
}

/* A look that takes no time. */
static void observed(struct mc_leadership *leadership, uint64_t now_ms, const struct mc_leadership_view *view,
                     uint64_t least_epoch)
{
    mc_leadership_observed(leadership, now_ms, now_ms, view, least_epoch);
}

/* It stood there at the look before, and now its leader has resigned. */
static void resigns(struct mc_leadership *leadership, uint64_t now_ms, uint64_t epoch, uint64_t least_epoch)
{
    struct mc_leadership_view view = {.is_present = true, .revision = 1, .ttl_ms = TTL, .epoch = epoch};
    observed(leadership, now_ms - 100, &view, least_epoch);
    assert_int_equal(leadership->phase, MC_LEADERSHIP_STANDBY);
    view = (struct mc_leadership_view){.ttl_ms = TTL, .epoch = epoch, .has_resigned = true};
    observed(leadership, now_ms, &view, least_epoch);
    assert_int_equal(leadership->phase, MC_LEADERSHIP_CANDIDATE);
}

static struct mc_leadership lead(uint64_t now_ms)
{
    struct mc_leadership leadership = begin(now_ms);
    resigns(&leadership, now_ms, PREDECESSOR, LEAST);
    assert_int_equal(action(&leadership, now_ms), MC_LEADERSHIP_CLAIM);
    mc_leadership_claimed(&leadership, now_ms, now_ms, MC_LEADERSHIP_DONE);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_LEADER);
    assert_int_equal(leadership.epoch, FIRST);
    return leadership;
}

/* ---- epochs ---- */

static void epochs(void **state)
{
    static const struct {
        uint64_t stored, least, wanted, expected;
    } rows[] = {{0, 1, 0, 1},
                {0, 100, 0, 100},
                {100, 50, 0, 100 + MC_EPOCH_CARRY},
                {100, 100, 0, 100 + MC_EPOCH_CARRY},
                {100, 9000, 0, 9000},
                {100, 50, 9000, 9000},
                {300, 50, 200, 300 + MC_EPOCH_CARRY}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        mc_leadership_yield(&leadership, START_MS, 1, rows[i].wanted);
        resigns(&leadership, START_MS, rows[i].stored, rows[i].least);
        struct mc_leadership_step step = mc_leadership_next(&leadership, START_MS);
        assert_int_equal(step.action, MC_LEADERSHIP_CLAIM);
        assert_int_equal(step.epoch, rows[i].expected);
    }
}

/* Of a claim, by that process. */
static uint64_t epoch_of(uint64_t odd, uint64_t followed, uint64_t wanted)
{
    struct mc_leadership_config config = mc_leadership_config(TTL);
    struct mc_leadership leadership;
    config.odd = odd;
    mc_leadership_init(&leadership, config, 900);
    mc_leadership_yield(&leadership, 900, 1, wanted);
    resigns(&leadership, START_MS, followed, 50);
    return mc_leadership_next(&leadership, START_MS).epoch;
}

/* A copy of the claim that somebody has followed is brought back, and followed again by one who does not know that. */
static void who_follows_a_copy_has_an_epoch_of_its_own(void **state)
{
    (void)state;
    assert_int_equal(epoch_of(0, 100, 0), 100 + MC_EPOCH_CARRY);
    assert_int_equal(epoch_of(MC_LEADERSHIP_ODDS - 1, 100, 0), 100 + MC_EPOCH_CARRY + MC_LEADERSHIP_ODDS - 1);
}

/* Two who were told the same by nodes, of whom one was forgotten: neither has the other's epoch. */
static void nor_do_two_share_one_that_nodes_demand(void **state)
{
    (void)state;
    assert_int_equal(epoch_of(0, 100, 9 * MC_EPOCH_CARRY), 9 * MC_EPOCH_CARRY);
    assert_int_equal(epoch_of(17, 100, 9 * MC_EPOCH_CARRY), 9 * MC_EPOCH_CARRY + 17);
    assert_int_equal(epoch_of(17, 100, 0), 100 + MC_EPOCH_CARRY + 17);
}

/* Whoever follows the last claim that can be followed, or the last word of nodes, leads under an epoch that can be. */
static void epochs_end(void **state)
{
    static const uint64_t odds[] = {0, MC_LEADERSHIP_ODDS - 1};
    uint64_t followed = MC_EPOCH_MAX, wanted = MC_EPOCH_MAX;
    (void)state;
    while (!mc_leadership_can_follow(followed))
        followed--;
    while (!mc_leadership_can_want(wanted))
        wanted--;
    assert_true(followed >= MC_EPOCH_MAX - 3 * MC_EPOCH_CARRY && wanted >= MC_EPOCH_MAX - 2 * MC_EPOCH_CARRY);
    for (size_t i = 0; i < 2; i++) {
        assert_true(mc_epoch_can_be(epoch_of(odds[i], followed, 0)));
        assert_true(mc_epoch_can_be(epoch_of(odds[i], 100, wanted)));
    }
}

/* Ours is late: the leader before us has placed as much as one can, and its generations are below ours all the same. */
static void generations_do_not_meet(void **state)
{
    struct mc_leadership leadership = begin(START_MS);
    (void)state;
    resigns(&leadership, START_MS, PREDECESSOR, LEAST);
    uint64_t last = ((uint64_t)PREDECESSOR << MC_EPOCH_SHIFT) + MC_COUNTER_END - 1;
    assert_true(last < (mc_leadership_next(&leadership, START_MS).epoch << MC_EPOCH_SHIFT) + 1);
    assert_true(mc_epoch_can_be(leadership.epoch));
}

/* By which clocks is led: 2019, 2020, before epochs, today, 2039, 2040, after 2046, beyond anything. */
static void clocks(void **state)
{
    static const struct {
        time_t now;
        uint64_t epoch;
    } rows[] = {{0, 0},
                {-1, 0},
                {1577836799, 0},
                {1577836800, 1},
                {1735689600, 1},
                {1735689601, 101},
                {1800000000, 6431040001},
                {2208988799, 47329919901},
                {2208988800, 0},
                {2500000000, 0},
                {INT64_MAX, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct timespec now = {.tv_sec = rows[i].now};
        assert_int_equal(mc_election_epoch_of(&now), rows[i].epoch);
    }
    struct timespec now = {1735689600, 999999999};
    assert_int_equal(mc_election_epoch_of(&now), 100);
    assert_true(mc_election_epoch_now() > 1000);
}

/* ---- a standby ---- */

/* Looks at times with revisions; after which of them is it a candidate, and what does it know of its predecessor's end?
 */
enum { GONE = 0, RESIGNED = -1 /* nobody there: somehow, or because that leader said so */ };
static void standby(void **state)
{
    enum { LOOKS = 4 };
    static const struct {
        struct {
            uint64_t at;
            int revision;
        } looks[LOOKS];
        int claims_after; /* LOOKS: never */
        uint64_t predecessor_end;
    } rows[] = {
        {{{1000, RESIGNED}, {2999, RESIGNED}, {3000, RESIGNED}}, 2, 0},   /* who came after that one? */
        {{{1000, GONE}, {1100, GONE}, {2999, GONE}, {3000, GONE}}, 3, 0}, /* who was it, and since when? */
        {{{1000, 5}, {1100, 5}, {2999, 5}, {3000, 5}}, 3, 0},             /* a whole ttl since it was seen first */
        {{{1000, 5}, {2900, 6}, {3000, 6}, {4899, 6}}, LOOKS, 0},         /* it was renewed */
        {{{1000, 5}, {1400, 6}, {3399, 6}, {3400, 6}}, 3, 3400},          /* seen to change: its end is known closely */
        {{{1000, 5}, {1400, 6}, {3399, 6}, {5000, 6}}, 3, 3400},          /* and does not move with a late look, */
        {{{1000, 5}, {1400, 6}, {5400, 6}}, 2, 3400},                     /* of an election within etcd, */
        {{{1000, 5}, {1400, 6}, {9000, 6}, {11000, 6}}, 3, 3400},         /* nor with one after which it waits */
        {{{1000, 5}, {1400, 6}, {9000, 6}, {10999, 6}}, LOOKS, 0},        /* as others may have come and be forgotten */
        {{{1000, 5}, {1400, 6}, {1500, RESIGNED}}, 2, 1500},              /* gone by itself */
        {{{1000, 5}, {1100, RESIGNED}}, 1, 0},                            /* the same, but never seen to change */
        {{{1000, 5}, {9000, RESIGNED}, {9100, RESIGNED}, {10999, RESIGNED}}, LOOKS, 0}, /* the same, but when? */
        {{{1400, 6}, {9000, RESIGNED}, {9100, RESIGNED}, {11000, RESIGNED}}, 3, 0},
        {{{1000, 5}, {1400, 6}, {1500, GONE}, {3499, GONE}}, LOOKS, 0}, /* it may have renewed just before */
        {{{1000, 5}, {1400, 6}, {1500, GONE}, {3500, GONE}}, 3, 3500},
        {{{1000, 5}, {1400, 6}, {1500, GONE}, {1800, RESIGNED}}, 3, 1800}, /* it has served on until it ended */
        {{{1400, 6}, {1500, GONE}, {3400, 7}, {3600, GONE}}, LOOKS, 0},    /* it was written again */
        {{{1000, GONE}, {1400, 6}, {1500, GONE}, {3100, GONE}}, LOOKS, 0},
        {{{1000, 5}, {3000, 6}, {3100, 4}, {5099, 4}}, LOOKS, 0}, /* any other revision is a sign of life */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        int claims_after = LOOKS;
        for (int j = 0; j < LOOKS && claims_after == LOOKS && rows[i].looks[j].at != 0; j++) {
            uint64_t at = rows[i].looks[j].at;
            int revision = rows[i].looks[j].revision;
            struct mc_leadership_view view = {.is_present = revision > 0,
                                              .revision = revision > 0 ? (uint64_t)revision : 0,
                                              .has_resigned = revision == RESIGNED,
                                              .ttl_ms = TTL,
                                              .epoch = 9};
            observed(&leadership, at, &view, 1);
            if (leadership.phase == MC_LEADERSHIP_CANDIDATE)
                claims_after = j;
            else
                assert_int_equal(action(&leadership, at), MC_LEADERSHIP_OBSERVE);
        }
        assert_int_equal(claims_after, rows[i].claims_after);
        assert_int_equal(leadership.predecessor_end_ms, rows[i].predecessor_end);
    }
}

/* A full etcd answers looks and refuses claims until the lease has taken the claim away: that leader had ended
 * before. */
static void the_end_of_a_leader_that_nobody_could_follow(void **state)
{
    static const struct {
        uint64_t last_look, gone, epoch, end;
    } rows[] = {{5300, 5400, 9, 3400},
                {3450, 5000, 9, 7000},   /* somebody may have claimed between these looks, and be forgotten */
                {5300, 5400, 12, 7400}}; /* somebody has */
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        struct mc_leadership_view view = {.is_present = true, .revision = 5, .ttl_ms = TTL, .epoch = 9};
        struct mc_leadership_view gone = {.ttl_ms = TTL, .epoch = rows[i].epoch};
        observed(&leadership, 1000, &view, 1);
        view.revision = 6;
        for (uint64_t now_ms = 1400; now_ms <= rows[i].last_look; now_ms += 50) {
            observed(&leadership, now_ms, &view, 1);
            mc_leadership_claimed(&leadership, now_ms, now_ms + 2, MC_LEADERSHIP_UNKNOWN);
        }
        uint64_t claims = rows[i].gone + TTL; /* the place may have forgotten who came since */
        for (uint64_t now_ms = rows[i].gone; now_ms <= claims; now_ms += 50) {
            assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
            observed(&leadership, now_ms, &gone, 1);
        }
        assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
        assert_int_equal(leadership.predecessor_end_ms, rows[i].end);
    }
}

/* etcd has lost all, or has what it had long ago: the leader that was seen may not know it yet. */
static void a_place_that_forgot(void **state)
{
    static const struct mc_leadership_view after[] = {
        {.ttl_ms = TTL}, {.epoch = 5, .ttl_ms = TTL}, {.epoch = 5, .ttl_ms = TTL, .has_resigned = true}};
    (void)state;
    for (size_t i = 0; i < sizeof(after) / sizeof(after[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        struct mc_leadership_view view = {.is_present = true, .revision = 50, .ttl_ms = 3 * TTL, .epoch = 9};
        observed(&leadership, 1000, &view, 1);
        observed(&leadership, 1100, &after[i], 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
        for (uint64_t now_ms = 1200; now_ms < 1099 + 3 * TTL; now_ms += 100)
            observed(&leadership, now_ms, &after[i], 1);
        observed(&leadership, 1099 + 3 * TTL, &after[i], 1); /* what that one had promised */
        assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
        assert_int_equal(mc_leadership_next(&leadership, 1099 + 3 * TTL).at_ms, 1100 + 3 * TTL);
        observed(&leadership, 1100 + 3 * TTL, &after[i], 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    }
    struct mc_leadership leadership = begin(START_MS);
    struct mc_leadership_view one = {.epoch = 9, .ttl_ms = TTL}, other = {.epoch = 12, .ttl_ms = TTL};
    observed(&leadership, 1000, &one, 1);
    observed(&leadership, 2900, &other, 1); /* somebody has led meanwhile, and is gone, too */
    observed(&leadership, 3100, &other, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
}

/* Whoever was the leader itself need not wait for itself. */
static void a_leader_whose_view_is_gone_claims_anew(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    mc_leadership_renewed(&leadership, 1400, 1410, MC_LEADERSHIP_REFUSED);
    assert_false(mc_leadership_may_serve(&leadership, 1410));
    struct mc_leadership_view view = {.is_ours = true, .ttl_ms = TTL, .epoch = FIRST};
    observed(&leadership, 1420, &view, 5);
    assert_int_equal(action(&leadership, 1420), MC_LEADERSHIP_CLAIM);
    assert_int_equal(leadership.predecessor_end_ms, 1410);
}

/* A copy of when somebody had resigned is brought back under a leader that this process, which has just been started,
 * has never met: that one goes on until its next renewal is refused. */
static void a_copy_is_not_believed_by_who_comes(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(START_MS);
    struct mc_leadership_view view = {.epoch = 9, .ttl_ms = TTL, .has_resigned = true};
    for (uint64_t now_ms = 1000; now_ms < 1000 + TTL; now_ms += 100) {
        observed(&leadership, now_ms, &view, 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    }
    observed(&leadership, 1000 + TTL, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    /* A claim of that one that comes to nothing does not begin it anew. */
    mc_leadership_claimed(&leadership, 1000 + TTL, 1010 + TTL, MC_LEADERSHIP_UNKNOWN);
    observed(&leadership, 1060 + TTL, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
}

/* A copy of when that very leader had not yet said all that it said later: what stands there is of long ago. It has not
 * resigned, and who leads next knows of nobody before it. */
static void a_copy_under_the_same_claim(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(START_MS);
    struct mc_leadership_view view = {.is_present = true, .revision = 1, .epoch = 9, .ttl_ms = TTL};
    observed(&leadership, 1100, &view, 1);
    view = (struct mc_leadership_view){.epoch = 9, .ttl_ms = TTL, .has_resigned = true, .has_gone_back = true};
    observed(&leadership, 1200, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    for (uint64_t now_ms = 1300; now_ms <= 1200 + 2 * TTL; now_ms += 100)
        observed(&leadership, now_ms, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    assert_int_equal(leadership.predecessor_epoch, 0);
    assert_true(leadership.epoch > 9);
}

/* Nor of one whom it has never seen lead: the copy of when another resigned may follow upon that of a first. */
static void nor_one_of_somebody_else(void **state)
{
    static const struct {
        struct mc_leadership_view first, then;
        bool claims;
    } rows[] = {{{.epoch = 9, .ttl_ms = TTL, .has_resigned = true}, {.epoch = 12, .ttl_ms = TTL}, false},
                {{.epoch = 9, .ttl_ms = TTL, .is_present = true}, {.epoch = 12, .ttl_ms = TTL}, false},
                {{.epoch = 9, .ttl_ms = TTL}, {.epoch = 12, .ttl_ms = TTL}, false},
                {{.epoch = 9, .ttl_ms = TTL, .has_resigned = true}, {.epoch = 9, .ttl_ms = TTL}, false},
                {{.epoch = 9, .ttl_ms = TTL, .is_present = true}, {.epoch = 9, .ttl_ms = TTL}, true},
                {{.epoch = 9, .ttl_ms = TTL}, {.epoch = 9, .ttl_ms = TTL}, true}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        struct mc_leadership_view then = rows[i].then;
        then.has_resigned = true;
        observed(&leadership, 1000, &rows[i].first, 1);
        observed(&leadership, 1100, &then, 1);
        assert_int_equal(leadership.phase, rows[i].claims ? MC_LEADERSHIP_CANDIDATE : MC_LEADERSHIP_STANDBY);
        if (rows[i].claims)
            continue;
        observed(&leadership, 1000 + TTL, &then, 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    }
}

/* The same of one's own claim: who was cut off for so long that others may have come, and be forgotten. That is after
 * one ttl: who saw the last renewal follows it then, and a copy of before that may be there soon after. */
static void nor_by_who_was_away(void **state)
{
    (void)state;
    static const struct {
        uint64_t back_ms, claims_ms;
    } rows[] = {
        {1400 + TTL, 1400 + TTL}, {1401 + TTL, 1401 + 2 * TTL}, {1400 + 2 * TTL, 1400 + 3 * TTL}, {60000, 60000 + TTL}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = lead(1000);
        mc_leadership_renewed(&leadership, 1400, 1410, MC_LEADERSHIP_DONE);
        assert_int_equal(action(&leadership, 1400 + TTL - MARGIN), MC_LEADERSHIP_OBSERVE);
        struct mc_leadership_view view = {
            .is_present = true, .is_ours = true, .revision = 3, .ttl_ms = TTL, .epoch = FIRST};
        for (uint64_t now_ms = rows[i].back_ms; now_ms < rows[i].claims_ms; now_ms += 100) {
            observed(&leadership, now_ms, &view, 1);
            assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
        }
        assert_true(rows[i].back_ms == rows[i].claims_ms ||
                    mc_leadership_next(&leadership, rows[i].claims_ms - 1).at_ms <= rows[i].claims_ms);
        observed(&leadership, rows[i].claims_ms, &view, 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
        assert_int_equal(leadership.predecessor_end_ms, 1400 + TTL - MARGIN);
    }
}

/* And who stood still between an answer and what it made of it: what it saw is as old as its question. */
static void nor_by_who_stood_still(void **state)
{
    (void)state;
    static const struct {
        uint64_t heard_ms, again_ms;
        bool is_present, claims;
    } rows[] = {{1900, 1300 + TTL, false, true},
                {1900, 1301 + TTL, false, false},
                {1900, 1300 + 2 * TTL, true, true},
                {1900, 1301 + 2 * TTL, true, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = begin(START_MS);
        struct mc_leadership_view view = {.is_present = true, .revision = 5, .ttl_ms = TTL, .epoch = 9};
        observed(&leadership, 1000, &view, 1);
        view.revision = 6;
        mc_leadership_observed(&leadership, 1300, rows[i].heard_ms, &view, 1);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
        view.is_present = rows[i].is_present;
        view.has_resigned = !rows[i].is_present;
        observed(&leadership, rows[i].again_ms, &view, 1);
        assert_int_equal(leadership.phase, rows[i].claims ? MC_LEADERSHIP_CANDIDATE : MC_LEADERSHIP_STANDBY);
    }
}

/* Nor does who ends say of a copy that it has resigned, when it was followed. */
static void who_was_followed_has_nothing_to_resign(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    mc_leadership_renewed(&leadership, 1400, 1410, MC_LEADERSHIP_REFUSED);
    struct mc_leadership_view view = {
        .is_present = true, .revision = 9, .ttl_ms = TTL, .epoch = FIRST + MC_EPOCH_CARRY};
    observed(&leadership, 1420, &view, 1);
    mc_leadership_stop(&leadership, 1430);
    assert_int_equal(action(&leadership, 1430), MC_LEADERSHIP_END);
}

/* Nor who was cut off for so long that it may have been followed. */
static void nor_has_who_was_cut_off(void **state)
{
    static const struct {
        uint64_t at_ms;
        enum mc_leadership_action action;
    } rows[] = {{1400 + TTL - MARGIN - 1, MC_LEADERSHIP_RESIGN},
                {1400 + TTL, MC_LEADERSHIP_RESIGN},
                {1401 + TTL, MC_LEADERSHIP_END},
                {60000, MC_LEADERSHIP_END}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        bool looks = i % 2 == 1; /* in vain */
        uint64_t at_ms = rows[i / 2].at_ms;
        struct mc_leadership leadership = lead(1000);
        mc_leadership_renewed(&leadership, 1400, 1410, MC_LEADERSHIP_DONE);
        if (looks && action(&leadership, at_ms) == MC_LEADERSHIP_OBSERVE)
            mc_leadership_observed(&leadership, at_ms - 10, at_ms, NULL, 5);
        mc_leadership_stop(&leadership, at_ms);
        assert_int_equal(action(&leadership, at_ms), rows[i / 2].action);
    }
    /* A look counts, and a claim that is under way, however long. */
    struct mc_leadership leadership = lead(1000);
    struct mc_leadership_view view = {.is_present = true, .revision = 9, .ttl_ms = TTL, .epoch = FIRST};
    assert_int_equal(action(&leadership, 1000 + TTL), MC_LEADERSHIP_OBSERVE);
    observed(&leadership, 1000 + TTL, &view, 5);
    mc_leadership_stop(&leadership, 1000 + 2 * TTL);
    assert_int_equal(action(&leadership, 1000 + 2 * TTL), MC_LEADERSHIP_RESIGN);
    leadership = begin(START_MS);
    resigns(&leadership, START_MS, PREDECESSOR, LEAST);
    mc_leadership_stop(&leadership, 60000);
    assert_int_equal(action(&leadership, 60000), MC_LEADERSHIP_RESIGN);
}

/* An etcd that takes its time: half of ttl, though not for ever, as who is to end waits for what is under way. */
static void patience_follows_the_ttl(void **state)
{
    static const struct {
        uint64_t ttl, observe, claim;
    } rows[] = {{500, 1000, 250}, {2000, 1000, 1000}, {10000, 5000, 5000}, {60000, 5000, 5000}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership;
        mc_leadership_init(&leadership, mc_leadership_config(rows[i].ttl), 1000);
        assert_int_equal(mc_leadership_next(&leadership, START_MS).deadline_ms, 1000 + rows[i].observe);
        resigns(&leadership, START_MS, PREDECESSOR, LEAST);
        assert_int_equal(mc_leadership_next(&leadership, START_MS).deadline_ms, 1000 + rows[i].claim);
        mc_leadership_stop(&leadership, START_MS);
        assert_int_equal(mc_leadership_next(&leadership, START_MS).deadline_ms, 1000 + rows[i].observe);
    }
}

/* Whose contents come to us: those of the last that may have served, which is not a claim of ours that came to nothing.
 */
static void predecessors(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(START_MS);
    resigns(&leadership, START_MS, PREDECESSOR, LEAST);
    assert_int_equal(leadership.predecessor_epoch, PREDECESSOR);
    mc_leadership_claimed(&leadership, 1000, 1010, MC_LEADERSHIP_UNKNOWN);
    struct mc_leadership_view view = {
        .is_present = true, .is_ours = true, .revision = 3, .ttl_ms = TTL, .epoch = FIRST};
    observed(&leadership, 1060, &view, 5);
    assert_int_equal(leadership.predecessor_epoch, PREDECESSOR);
    mc_leadership_claimed(&leadership, 1060, 1070, MC_LEADERSHIP_DONE);
    mc_leadership_yield(&leadership, 1100, FIRST + MC_EPOCH_CARRY, 0);
    view.epoch = FIRST + MC_EPOCH_CARRY;
    observed(&leadership, 1110, &view, 5);
    assert_int_equal(leadership.predecessor_epoch, FIRST + MC_EPOCH_CARRY);
    assert_int_equal(leadership.predecessor_end_ms, 1100);
    mc_leadership_claimed(&leadership, 1110, 1120, MC_LEADERSHIP_REFUSED);
    view = (struct mc_leadership_view){.epoch = 9 * MC_EPOCH_CARRY, .has_resigned = true};
    observed(&leadership, 1200, &view, 5);
    assert_int_equal(leadership.predecessor_epoch, 9 * MC_EPOCH_CARRY);
}

/* Until when those before the last claim can have led: it stood there no later than when it was seen. */
static void leaders_before_the_last(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(START_MS);
    struct mc_leadership_view view = {.is_present = true, .revision = 3, .ttl_ms = TTL, .epoch = 7};
    observed(&leadership, 1000, &view, 5);
    assert_int_equal(leadership.before_end_ms, 0); /* it may stand there since long ago, or just now */
    view.revision = 4;
    observed(&leadership, 1100, &view, 5);
    assert_int_equal(leadership.before_end_ms, 0);
    view = (struct mc_leadership_view){.is_present = true, .revision = 5, .ttl_ms = TTL, .epoch = 9};
    observed(&leadership, 1200, &view, 5);
    view.revision = 6;
    observed(&leadership, 1300, &view, 5);
    assert_int_equal(leadership.before_end_ms, 1200);
    observed(&leadership, 1300 + TTL, &view, 5);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    assert_int_equal(leadership.predecessor_end_ms, 1300 + TTL);
    /* A claim of ours that came to nothing was no leadership. */
    mc_leadership_claimed(&leadership, 3310, 3320, MC_LEADERSHIP_UNKNOWN);
    view = (struct mc_leadership_view){.is_present = true, .is_ours = true, .revision = 7, .ttl_ms = TTL, .epoch = 12};
    observed(&leadership, 3400, &view, 5);
    assert_int_equal(leadership.before_end_ms, 1200);
    /* One under which we led was one. */
    mc_leadership_claimed(&leadership, 3410, 3420, MC_LEADERSHIP_DONE);
    assert_int_equal(leadership.before_end_ms, 3420);
    assert_int_equal(leadership.predecessor_claim_ms, 1200); /* of the one before us, for as long as we lead */
}

static void standby_waits_by_the_leaders_ttl(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(0);
    struct mc_leadership_view view = {.is_present = true, .revision = 1, .ttl_ms = 5000, .epoch = 1};
    for (uint64_t now_ms = 1; now_ms < 5000; now_ms += 100)
        observed(&leadership, now_ms, &view, 1);
    observed(&leadership, 5000, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    assert_int_equal(mc_leadership_next(&leadership, 5000).at_ms, 5001); /* not a whole poll later */
    observed(&leadership, 5001, &view, 1);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
}

static void blind_standby_claims_nothing(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(0);
    for (uint64_t now_ms = 0; now_ms < 20000; now_ms += 100) {
        assert_int_equal(action(&leadership, now_ms), MC_LEADERSHIP_OBSERVE);
        observed(&leadership, now_ms, NULL, 1);
        assert_true(mc_leadership_next(&leadership, now_ms).at_ms > now_ms); /* no busy loop */
    }
}

static void refused_or_unheard_claims(void **state)
{
    (void)state;
    for (int outcome = MC_LEADERSHIP_REFUSED; outcome <= MC_LEADERSHIP_UNKNOWN; outcome++) {
        struct mc_leadership leadership = begin(START_MS);
        resigns(&leadership, START_MS, PREDECESSOR, LEAST);
        mc_leadership_claimed(&leadership, 1000, 1010, (enum mc_leadership_outcome)outcome);
        assert_false(mc_leadership_may_serve(&leadership, 1010));
        struct mc_leadership_step step = mc_leadership_next(&leadership, 1010);
        assert_int_equal(step.action, MC_LEADERSHIP_OBSERVE);
        assert_true(step.at_ms > 1010 && step.at_ms <= 1110);
        /* It had succeeded after all: at once again, under a later epoch, and nothing is known of an end. */
        struct mc_leadership_view view = {
            .is_present = true, .is_ours = true, .revision = 3, .ttl_ms = TTL, .epoch = FIRST};
        observed(&leadership, 1060, &view, 5);
        step = mc_leadership_next(&leadership, 1060);
        assert_int_equal(step.action, MC_LEADERSHIP_CLAIM);
        assert_int_equal(step.epoch, FIRST + MC_EPOCH_CARRY);
        assert_int_equal(leadership.predecessor_end_ms, 0);
    }
}

static void late_answer_to_a_claim_is_no_leadership(void **state)
{
    (void)state;
    struct mc_leadership leadership = begin(START_MS);
    resigns(&leadership, START_MS, PREDECESSOR, LEAST);
    mc_leadership_claimed(&leadership, 1000, 1000 + TTL - MARGIN, MC_LEADERSHIP_DONE);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    assert_false(mc_leadership_may_serve(&leadership, 1000 + TTL - MARGIN));
}

/* ---- a leader ---- */

static void renewals(void **state)
{
    static const struct {
        uint64_t sent, heard;
        enum mc_leadership_outcome outcome;
        uint64_t until; /* 0: leads no more */
    } rows[] = {
        {1400, 1410, MC_LEADERSHIP_DONE, 1400 + TTL - MARGIN}, /* from the sending */
        {1400, 2800, MC_LEADERSHIP_DONE, 1400 + TTL - MARGIN},
        {1400, 1410, MC_LEADERSHIP_UNKNOWN, 1000 + TTL - MARGIN}, /* as before */
        {1400, 1410, MC_LEADERSHIP_REFUSED, 0},
        {1400, 2899, MC_LEADERSHIP_DONE, 1400 + TTL - MARGIN},
        {1400, 2900, MC_LEADERSHIP_DONE, 0}, /* over is over */
        {2899, 2900, MC_LEADERSHIP_UNKNOWN, 0},
        {1400, 90000, MC_LEADERSHIP_DONE, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_leadership leadership = lead(1000);
        assert_int_equal(mc_leadership_next(&leadership, START_MS).at_ms, 1000 + RENEW);
        mc_leadership_renewed(&leadership, rows[i].sent, rows[i].heard, rows[i].outcome);
        assert_int_equal(leadership.serve_until_ms, rows[i].until);
        assert_int_equal(leadership.phase, rows[i].until != 0 ? MC_LEADERSHIP_LEADER : MC_LEADERSHIP_STANDBY);
        if (rows[i].until != 0) {
            assert_true(mc_leadership_may_serve(&leadership, rows[i].until - 1));
            assert_false(mc_leadership_may_serve(&leadership, rows[i].until));
        }
    }
}

/* A place whose answers take longer than the time between two renewals: there is time for something else all the same.
 */
static void slow_renewals_leave_room(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    mc_leadership_renewed(&leadership, 1400, 1900, MC_LEADERSHIP_DONE);
    assert_int_equal(mc_leadership_next(&leadership, 1900).at_ms, 1900 + RENEW / 4);
    mc_leadership_renewed(&leadership, 2000, 2010, MC_LEADERSHIP_DONE);
    assert_int_equal(mc_leadership_next(&leadership, 2010).at_ms, 2000 + RENEW);
}

static void leader_without_answers_ends_in_time(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    uint64_t now_ms = 1400;
    while (action(&leadership, now_ms) == MC_LEADERSHIP_RENEW) {
        struct mc_leadership_step step = mc_leadership_next(&leadership, now_ms);
        assert_true(step.at_ms <= 1000 + TTL - MARGIN && step.deadline_ms <= 1000 + TTL - MARGIN);
        mc_leadership_renewed(&leadership, now_ms, now_ms + 10, MC_LEADERSHIP_UNKNOWN);
        now_ms = mc_leadership_next(&leadership, now_ms + 10).at_ms;
        assert_true(now_ms < 5000);
    }
    assert_int_equal(now_ms, 1000 + TTL - MARGIN);
    /* Nobody came meanwhile, or somebody who is forgotten: it waits, follows itself, and knows when it ended. */
    struct mc_leadership_view view = {
        .is_present = true, .is_ours = true, .revision = 3, .ttl_ms = TTL, .epoch = FIRST};
    for (now_ms = 9000; now_ms < 9000 + TTL; now_ms += 100) {
        observed(&leadership, now_ms, &view, 5);
        assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    }
    observed(&leadership, 9000 + TTL, &view, 5);
    struct mc_leadership_step step = mc_leadership_next(&leadership, 9000 + TTL);
    assert_int_equal(step.action, MC_LEADERSHIP_CLAIM);
    assert_int_equal(step.epoch, FIRST + MC_EPOCH_CARRY);
    assert_int_equal(leadership.predecessor_end_ms, 1000 + TTL - MARGIN);
}

static void paused_leader_is_none(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    assert_int_equal(action(&leadership, 60000), MC_LEADERSHIP_OBSERVE);
    assert_false(mc_leadership_may_serve(&leadership, 60000));
    /* Another leads: it must wait for that one's whole ttl. */
    struct mc_leadership_view view = {.is_present = true, .revision = 44, .ttl_ms = TTL, .epoch = 2 * FIRST};
    observed(&leadership, 60000, &view, 5);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    observed(&leadership, 61999, &view, 5);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_STANDBY);
    observed(&leadership, 62000, &view, 5);
    assert_int_equal(leadership.phase, MC_LEADERSHIP_CANDIDATE);
    assert_int_equal(leadership.epoch, 2 * FIRST + MC_EPOCH_CARRY);
}

static void yields(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    mc_leadership_yield(&leadership, 1100, 7, 0); /* of an earlier one: too late to matter */
    assert_int_equal(leadership.phase, MC_LEADERSHIP_LEADER);
    mc_leadership_yield(&leadership, 1100, FIRST, 50000);
    assert_false(mc_leadership_may_serve(&leadership, 1100));
    assert_int_equal(action(&leadership, 1100), MC_LEADERSHIP_OBSERVE);
    struct mc_leadership_view view = {
        .is_present = true, .is_ours = true, .revision = 3, .ttl_ms = TTL, .epoch = FIRST};
    observed(&leadership, 1110, &view, 5);
    assert_int_equal(mc_leadership_next(&leadership, 1110).epoch, 50000);
    assert_int_equal(leadership.predecessor_end_ms, 1100);
}

static void stops(void **state)
{
    (void)state;
    struct mc_leadership leadership = lead(1000);
    mc_leadership_stop(&leadership, 1100);
    assert_false(mc_leadership_may_serve(&leadership, 1100));
    assert_int_equal(action(&leadership, 1100), MC_LEADERSHIP_RESIGN);
    mc_leadership_renewed(&leadership, 1050, 1101, MC_LEADERSHIP_DONE); /* was under way */
    assert_false(mc_leadership_may_serve(&leadership, 1101));
    mc_leadership_resigned(&leadership);
    assert_int_equal(action(&leadership, 1102), MC_LEADERSHIP_END);
    mc_leadership_stop(&leadership, 1103);
    assert_int_equal(action(&leadership, 1103), MC_LEADERSHIP_END);

    leadership = begin(START_MS); /* never tried: nothing to give back */
    mc_leadership_stop(&leadership, START_MS);
    assert_int_equal(action(&leadership, 1000), MC_LEADERSHIP_END);

    leadership = begin(START_MS); /* a claim under way */
    resigns(&leadership, START_MS, PREDECESSOR, LEAST);
    mc_leadership_stop(&leadership, 1001);
    mc_leadership_claimed(&leadership, 1000, 1002, MC_LEADERSHIP_DONE);
    assert_false(mc_leadership_may_serve(&leadership, 1002));
    assert_int_equal(action(&leadership, 1002), MC_LEADERSHIP_RESIGN);
}

/* ---- many masters ---- */

#define MASTERS 3
#define EPOCHS_A_MS (MC_EPOCH_CARRY) /* no two leaderships begin within one */

struct place {
    bool is_present, has_resigned;
    int holder; /* of the last claim */
    uint64_t revision, epoch;
};
struct master {
    struct mc_leadership leadership;
    uint64_t clock_offset, busy_until, applies_at, sent; /* of an operation under way */
    bool is_busy, is_applied;
    enum mc_leadership_action action;
    uint64_t epoch, expected_revision, last_claim;
    bool expected_present;
    enum mc_leadership_outcome outcome;
    struct mc_leadership_view view;
};

static void apply(struct place *place, struct master *master, int number)
{
    bool holds = place->holder == number && place->epoch == master->last_claim;
    master->is_applied = true;
    master->outcome = MC_LEADERSHIP_REFUSED;
    if (master->action == MC_LEADERSHIP_OBSERVE) {
        master->view = (struct mc_leadership_view){.is_present = place->is_present,
                                                   .is_ours = holds && master->last_claim != 0,
                                                   .has_resigned = place->has_resigned,
                                                   .revision = place->revision,
                                                   .ttl_ms = TTL,
                                                   .epoch = place->epoch};
        master->expected_revision = place->revision;
        master->expected_present = place->is_present;
        master->outcome = MC_LEADERSHIP_DONE;
    } else if (master->action == MC_LEADERSHIP_CLAIM) {
        if (place->is_present != master->expected_present || place->revision != master->expected_revision)
            return;
        assert_true(master->epoch > place->epoch);
        *place = (struct place){
            .is_present = true, .holder = number, .revision = place->revision + 1, .epoch = master->epoch};
        master->outcome = MC_LEADERSHIP_DONE;
    } else if (holds && (master->action == MC_LEADERSHIP_RESIGN || (place->is_present && !place->has_resigned))) {
        place->is_present = master->action == MC_LEADERSHIP_RENEW;
        place->has_resigned = !place->is_present;
        place->revision++;
        master->outcome = MC_LEADERSHIP_DONE;
    }
}

static void report(struct master *master, uint64_t now_ms, uint64_t true_ms, bool is_heard)
{
    enum mc_leadership_outcome outcome = is_heard ? master->outcome : MC_LEADERSHIP_UNKNOWN;
    if (master->action == MC_LEADERSHIP_OBSERVE)
        mc_leadership_observed(&master->leadership, master->sent, now_ms, is_heard ? &master->view : NULL,
                               1 + true_ms * EPOCHS_A_MS);
    else if (master->action == MC_LEADERSHIP_CLAIM)
        mc_leadership_claimed(&master->leadership, master->sent, now_ms, outcome);
    else if (master->action == MC_LEADERSHIP_RENEW)
        mc_leadership_renewed(&master->leadership, master->sent, now_ms, outcome);
}

static void turn(struct place *place, struct master *master, int number, uint64_t true_ms, uint64_t *random)
{
    uint64_t now_ms = true_ms + master->clock_offset;
    if (master->is_busy && !master->is_applied && now_ms >= master->applies_at)
        apply(place, master, number);
    if (master->is_busy && now_ms >= master->busy_until) {
        /* An operation may come to its place after its sender has given it up. */
        bool is_heard = master->is_applied && random_below(random, 10) != 0;
        if (master->is_applied || random_below(random, 2) == 0) {
            report(master, now_ms, true_ms, is_heard);
            master->is_busy = false;
        }
    }
    if (master->is_busy)
        return;
    struct mc_leadership_step step = mc_leadership_next(&master->leadership, now_ms);
    if (step.at_ms > now_ms || step.action == MC_LEADERSHIP_END)
        return;
    master->is_busy = true;
    master->is_applied = false;
    master->action = step.action;
    master->epoch = step.epoch;
    if (step.action == MC_LEADERSHIP_CLAIM)
        master->last_claim = step.epoch;
    master->sent = now_ms;
    uint64_t slow = random_below(random, 20) == 0 ? 3000 : 30;
    master->applies_at = now_ms + random_below(random, slow);
    master->busy_until = now_ms + random_below(random, slow);
}

/* What becomes of a place: its key is deleted, all is lost, what it was some time ago comes back. Not the one so soon
 * after the other that nobody looks between. */
static void harm(struct place *place, struct place *copy, uint64_t true_ms, uint64_t *random)
{
    uint64_t revision = place->revision;
    if (random_below(random, 2000) == 0)
        *copy = *place;
    if (true_ms % 7000 != 0)
        return;
    switch (random_below(random, 3)) {
    case 0:
        place->is_present = false;
        break;
    case 1:
        *place = (struct place){.holder = -1};
        break;
    default:
        *place = *copy;
        break;
    }
    place->revision = revision + 1; /* the guard of a real place is its texts, too */
}

/* Killed, or ended as it should: then a copy is taken. */
static void start_again(struct place *place, struct place *copy, struct master *master, int number, uint64_t true_ms,
                        bool is_clean)
{
    if (is_clean && place->holder == number && place->epoch == master->last_claim && master->last_claim != 0) {
        place->is_present = false;
        place->has_resigned = true;
        place->revision++;
        *copy = *place;
    }
    *master = (struct master){.clock_offset = master->clock_offset};
    master->leadership = begin(true_ms + master->clock_offset);
}

static void walk(bool is_harmed)
{
    uint64_t leaderships = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        struct place place = {.holder = -1}, copy = place;
        struct master masters[MASTERS] = {0};
        uint64_t paused_until[MASTERS] = {0}, last_epoch = 0;
        for (int i = 0; i < MASTERS; i++) {
            masters[i].clock_offset = random_below(&random, 1000000);
            masters[i].leadership = begin(masters[i].clock_offset);
        }
        for (uint64_t true_ms = 0; true_ms < 60000; true_ms += 5) {
            int serving = 0;
            if (is_harmed)
                harm(&place, &copy, true_ms, &random);
            for (int i = 0; i < MASTERS; i++) {
                if (random_below(&random, 2000) == 0)
                    paused_until[i] = true_ms + random_below(&random, 6000);
                if (is_harmed && random_below(&random, 3000) == 0)
                    start_again(&place, &copy, &masters[i], i, true_ms, random_below(&random, 2) == 0);
                if (is_harmed && true_ms % 7000 == 0 && random_below(&random, 3) == 0)
                    start_again(&place, &copy, &masters[i], i, true_ms, false);
                if (true_ms >= paused_until[i])
                    turn(&place, &masters[i], i, true_ms, &random);
                if (!mc_leadership_may_serve(&masters[i].leadership, true_ms + masters[i].clock_offset))
                    continue;
                serving++;
                if (masters[i].leadership.epoch != last_epoch) {
                    assert_true(masters[i].leadership.epoch > last_epoch);
                    last_epoch = masters[i].leadership.epoch;
                    leaderships++;
                }
            }
            assert_true(serving <= 1);
        }
    }
    assert_true(leaderships > 100); /* else the walk shows nothing */
}

static void never_two_at_once(void **state)
{
    (void)state;
    walk(false);
}

static void nor_in_a_place_that_is_harmed(void **state)
{
    (void)state;
    walk(true);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs),
        cmocka_unit_test(who_follows_a_copy_has_an_epoch_of_its_own),
        cmocka_unit_test(nor_do_two_share_one_that_nodes_demand),
        cmocka_unit_test(epochs_end),
        cmocka_unit_test(generations_do_not_meet),
        cmocka_unit_test(clocks),
        cmocka_unit_test(standby),
        cmocka_unit_test(a_place_that_forgot),
        cmocka_unit_test(a_leader_whose_view_is_gone_claims_anew),
        cmocka_unit_test(the_end_of_a_leader_that_nobody_could_follow),
        cmocka_unit_test(a_copy_is_not_believed_by_who_comes),
        cmocka_unit_test(a_copy_under_the_same_claim),
        cmocka_unit_test(nor_one_of_somebody_else),
        cmocka_unit_test(nor_by_who_was_away),
        cmocka_unit_test(nor_by_who_stood_still),
        cmocka_unit_test(who_was_followed_has_nothing_to_resign),
        cmocka_unit_test(nor_has_who_was_cut_off),
        cmocka_unit_test(patience_follows_the_ttl),
        cmocka_unit_test(predecessors),
        cmocka_unit_test(leaders_before_the_last),
        cmocka_unit_test(standby_waits_by_the_leaders_ttl),
        cmocka_unit_test(blind_standby_claims_nothing),
        cmocka_unit_test(refused_or_unheard_claims),
        cmocka_unit_test(late_answer_to_a_claim_is_no_leadership),
        cmocka_unit_test(renewals),
        cmocka_unit_test(slow_renewals_leave_room),
        cmocka_unit_test(leader_without_answers_ends_in_time),
        cmocka_unit_test(paused_leader_is_none),
        cmocka_unit_test(yields),
        cmocka_unit_test(stops),
        cmocka_unit_test(never_two_at_once),
        cmocka_unit_test(nor_in_a_place_that_is_harmed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
