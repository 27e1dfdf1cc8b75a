/* The thread that keeps or seeks leadership. */
#include "store/master/election.h"

#include "base/error.h"
#include "store/segment/layout.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MAX_MS 200u /* the wait's clock stands still while the machine sleeps */
#define NOTE_RETRY_MS 50u
/* The server's loop is asked for a sign of life so often. One that gives none for the time to live stands still: a
 * process that is stopped for so long has lost the leadership, too. */
#define ASK_MS 500u
#define TIDY_LOOK_MS 60000u /* a leader looks so often whether it is time to tidy up */
#define NOTE_PART 4u        /* of the time to live: a note that takes longer must not hold up the renewal */

struct word {
    _Atomic uint64_t said_epoch, said_at_ms; /* under which it was written; up to which age. Read without the mutex */
    uint64_t asked_epoch, asked_at_ms;       /* of ours, which is to write it */
    uint64_t tried_at_ms;                    /* the last age that may stand there */
    uint64_t due_ms;                         /* when that is to be done, again perhaps */
};

/* What a leader has said goes on only: the numbers rise, and the text, of numbers of one width, grows. */
struct standing {
    uint64_t epoch, departed, aged;
    char horizon[MC_ELECTION_WORD_MAX];
};

struct mc_election {
    struct mc_election_backend backend;
    char address[MC_ADDRESS_MAX];
    uint64_t ttl_ms, tidy_ms, nonce;
    int fd;
    pthread_t thread;
    bool is_running;
    /* Read without the mutex by may_serve. until_ms is written after the epoch that it belongs to, and is 0 before that
     * one changes: who reads until_ms first and then its own epoch has not mixed two leaderships. */
    _Atomic uint64_t until_ms, epoch;
    pthread_mutex_t mutex; /* everything below */
    pthread_cond_t changed;
    struct mc_leadership leadership;
    struct mc_election_view view;
    char claim[MC_ELECTION_CLAIM_MAX]; /* our last */
    uint64_t departed_epoch; /* of the last leader before us that may have acted on a departure; 0: none did */
    uint64_t aged_epoch;     /* of the last leader before us that may have come of age; 0: none did */
    bool aged_is_known;      /* it did */
    bool departed_is_known;  /* the note says so */
    struct mc_horizon horizons[MC_HORIZONS_MAX]; /* of leaders before us, latest first */
    struct standing stood;                       /* beside the latest claim that we have met */
    bool has_gone_back;
    struct word words[MC_ELECTION_WORDS];
    char cluster[MC_ELECTION_WORD_MAX]; /* that is to be written */
    uint64_t loop_asked_ms; /* since when the server's loop has not taken its role, though it was asked to; 0: it has */
    uint64_t loop_taken_ms, looked_ms;
    uint64_t tidy_due_ms;
    bool has_contact, is_stuck;
};

uint64_t mc_election_epoch_of(const struct timespec *now)
{
    const int64_t least_s = 1577836800 /* 2020-01-01 */, start_s = 1735689600 /* 2025 */, end_s = 2208988800 /* 2040 */;
    if (now->tv_sec < least_s || now->tv_sec >= end_s)
        return 0;
    int64_t since_s = now->tv_sec > start_s ? now->tv_sec - start_s : 0;
    return 1 + (uint64_t)since_s * 100 + (uint64_t)now->tv_nsec / 10000000;
}

uint64_t mc_election_epoch_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return mc_election_epoch_of(&now);
}

void mc_election_clock_words(char *text, size_t size)
{
    char date[32] = "?";
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) == NULL || strftime(date, sizeof(date), "%Y-%m-%d", &parts) == 0)
        snprintf(date, sizeof(date), "a time that is no date");
    snprintf(text, size, "the clock of this machine says %s, which is wrong; set it, then this master may lead", date);
}

uint64_t mc_election_epoch_start(void)
{
    const struct timespec step = {0, 10000000};
    uint64_t epoch = mc_election_epoch_now();
    (void)nanosleep(&step, NULL); /* cut short by a signal: that ends us anyway */
    return epoch;
}

/* ---- claims: "epoch ttl nonce notes ages", and a word more when that leader has resigned ---- */

static const char resigned_word[] = " resigned";

/* Is that text this claim, whether it stands or was given back? */
static bool is_claim_of(const char *text, const char *claim)
{
    size_t length = strlen(claim);
    return length > 0 && strncmp(text, claim, length) == 0 &&
           (text[length] == 0 || strcmp(text + length, resigned_word) == 0);
}

static bool is_resigned(const char *text)
{
    size_t length = strlen(text), word = sizeof(resigned_word) - 1;
    return length > word && strcmp(text + length - word, resigned_word) == 0;
}

static bool parse_claim(const char *claim, uint64_t *epoch, uint64_t *ttl_ms)
{
    unsigned long long first, second;
    int used = 0;
    bool is_claim = sscanf(claim, "%19llu %9llu %n", &first, &second, &used) == 2 && used > 0;
    *epoch = is_claim ? first : 0;
    *ttl_ms = is_claim && second <= 999999999 ? second : 0; /* a number below zero is read as a large one */
    return is_claim;
}

/* The note is the epoch of the last leader that may have acted on a departure. Each claim brings it along, and a leader
 * writes its own epoch there before it acts on the first one. A claim that does not say that its leader keeps notes is
 * of a release before they came. */
static uint64_t departed_epoch(const struct mc_election_view *view, uint64_t epoch, bool *is_known)
{
    char word[8] = "";
    unsigned long long noted = 0;
    bool has_notes = sscanf(view->claim, "%*s %*s %*s %7s", word) == 1 && strcmp(word, "notes") == 0;
    *is_known = has_notes && sscanf(view->words[MC_ELECTION_DEPARTED], "%19llu", &noted) == 1 && noted <= epoch;
    return *is_known ? noted : epoch;
}

/* The same of who came of age: only such a leader acts on the absence of those it has never met. A leader of a release
 * that does not say so may have come of age: then, and for those who led before the first claim, a word stands behind
 * the number. */
static uint64_t aged_epoch(const struct mc_election_view *view, uint64_t epoch, bool *is_known)
{
    char word[8] = "", doubt[8];
    unsigned long long noted = 0;
    bool has_ages = sscanf(view->claim, "%*s %*s %*s %*s %7s", word) == 1 && strcmp(word, "ages") == 0;
    int count = has_ages ? sscanf(view->words[MC_ELECTION_AGED], "%19llu %7s", &noted, doubt) : 0;
    *is_known = count == 1 && noted <= epoch;
    return count >= 1 && noted <= epoch ? noted : epoch;
}

/* ---- horizons: pairs of an epoch and an age of its leader, latest first ----
 *
 * Of numbers of one width, so that a text that says more is the greater one. */

static void parse_horizons(const char *text, uint64_t aged_epoch, struct mc_horizon horizons[MC_HORIZONS_MAX])
{
    unsigned count = 0;
    int used = 0;
    unsigned long long epoch, at_ms;
    memset(horizons, 0, MC_HORIZONS_MAX * sizeof(*horizons));
    for (; count < MC_HORIZONS_MAX && sscanf(text, "%13llu %13llu%n", &epoch, &at_ms, &used) == 2; text += used)
        /* What is of before a leader of age is judged by that one. Nobody writes more digits than these. */
        if (epoch >= aged_epoch && epoch != 0 && epoch <= MC_EPOCH_MAX && at_ms < UINT64_C(10000000000000))
            horizons[count++] = (struct mc_horizon){epoch, at_ms};
}

/* Ours, and those before it; at_ms 0: those alone. */
static void format_horizons(char text[MC_ELECTION_WORD_MAX], uint64_t epoch, uint64_t at_ms,
                            const struct mc_horizon horizons[MC_HORIZONS_MAX])
{
    int length = at_ms == 0 ? 0 : snprintf(text, MC_ELECTION_WORD_MAX, "%013" PRIu64 " %013" PRIu64, epoch, at_ms);
    unsigned left = MC_HORIZONS_MAX - (at_ms != 0);
    for (unsigned i = 0; i < left && (horizons[i].epoch != 0 || length == 0); i++)
        length += snprintf(text + length, (size_t)(MC_ELECTION_WORD_MAX - length), "%s%013" PRIu64 " %013" PRIu64,
                           length == 0 ? "" : " ", horizons[i].epoch, horizons[i].at_ms);
}
_Static_assert(MC_EPOCH_MAX < UINT64_C(10000000000000) && MC_HORIZONS_MAX * 28 < MC_ELECTION_WORD_MAX, "it fits");

/* ---- a place that was brought back from a copy under the same claim ---- */

/* Keeps what stands there, unless it says less than it did. The mutex is held. */
static bool has_gone_back(struct mc_election *election, const struct mc_election_view *view, uint64_t epoch)
{
    bool is_known;
    struct standing now = {
        .epoch = epoch, .departed = departed_epoch(view, epoch, &is_known), .aged = aged_epoch(view, epoch, &is_known)};
    const struct standing *stood = &election->stood;
    memcpy(now.horizon, view->words[MC_ELECTION_HORIZON], sizeof(now.horizon));
    bool is_less = epoch == stood->epoch && (now.departed < stood->departed || now.aged < stood->aged ||
                                             strcmp(now.horizon, stood->horizon) < 0);
    if (is_less && !election->has_gone_back)
        mc_log(WARNING,
               "%s says less of the leader of epoch %llu than it did: it was brought back from a copy, or somebody has "
               "deleted a key. Nothing that it says of earlier leaders is believed",
               election->backend.name, (unsigned long long)epoch);
    election->has_gone_back = is_less;
    if (!is_less && epoch >= stood->epoch)
        election->stood = now;
    return is_less;
}

/* ---- what others see; the mutex is held ---- */

static void publish(struct mc_election *election)
{
    const struct mc_leadership *leadership = &election->leadership;
    uint64_t one = 1, before = atomic_load_explicit(&election->epoch, memory_order_relaxed);
    uint64_t epoch = leadership->phase == MC_LEADERSHIP_LEADER ? leadership->epoch : 0;
    if (epoch != before) {
        atomic_store(&election->until_ms, 0);
        atomic_store(&election->epoch, epoch);
        if (epoch == 0)
            election->view.is_present = false; /* we were the leader that we know of */
        if (epoch != 0)
            mc_log(INFO, "leader under epoch %llu", (unsigned long long)epoch);
        else
            mc_log(WARNING, "no longer leader under epoch %llu", (unsigned long long)before);
        /* The counter cannot overflow: it would take 2^64 changes without a reader. */
        mc_assert(write(election->fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
    }
    atomic_store(&election->until_ms, leadership->serve_until_ms);
}

static void note_contact(struct mc_election *election, int rc)
{
    bool has_contact = rc == 0 || rc == MC_ERR_ETCD_TRANSACTION_FAIL;
    if (has_contact != election->has_contact) {
        if (has_contact)
            mc_log(INFO, "%s answers", election->backend.name);
        else
            mc_log(WARNING, "%s does not answer: %s", election->backend.name,
                   rc == MC_ERR_RPC_TIMEOUT ? "not in time"
                   : rc == MC_ERR_RPC_FAIL  ? "no connection"
                                            : mc_error_text(rc));
    }
    election->has_contact = has_contact;
}

static enum mc_leadership_outcome outcome_of(int rc)
{
    return rc == 0                              ? MC_LEADERSHIP_DONE
           : rc == MC_ERR_ETCD_TRANSACTION_FAIL ? MC_LEADERSHIP_REFUSED
                                                : MC_LEADERSHIP_UNKNOWN;
}

/* ---- operations; the mutex is not held while the backend is asked ---- */

static void observe(struct mc_election *election, uint64_t deadline_ns)
{
    struct mc_election_view view = {0};
    uint64_t sent_ms = mc_clock_boot_ms();
    int rc = election->backend.observe(election->backend.context, deadline_ns, &view);
    pthread_mutex_lock(&election->mutex);
    uint64_t now_ms = mc_clock_boot_ms();
    struct mc_leadership_view seen = {.is_present = view.is_present,
                                      .revision = view.revision,
                                      .is_ours = is_claim_of(view.claim, election->claim),
                                      .has_resigned = is_resigned(view.claim)};
    bool is_claim = parse_claim(view.claim, &seen.epoch, &seen.ttl_ms);
    /* One whose promise we cannot read has promised what we would. */
    if (!is_claim || seen.ttl_ms == 0)
        seen.ttl_ms = election->ttl_ms;
    if (rc == 0 && !mc_leadership_can_follow(seen.epoch)) {
        mc_log_limited(ERROR,
                       "the epoch of the claim '%s' that stands in %s cannot be followed: a clock was wrong. Nobody "
                       "leads until it is deleted (%s), and the nodes that have met its leader are restarted",
                       view.claim, election->backend.name, election->backend.forget);
        rc = MC_ERR_PROTOCOL;
    }
    note_contact(election, rc);
    if (rc == 0) {
        election->view = view;
        seen.has_gone_back = has_gone_back(election, &view, seen.epoch);
        election->departed_epoch = departed_epoch(&view, seen.epoch, &election->departed_is_known);
        election->aged_epoch = aged_epoch(&view, seen.epoch, &election->aged_is_known);
        parse_horizons(view.words[MC_ELECTION_HORIZON], election->aged_epoch, election->horizons);
    }
    uint64_t epoch_now = mc_election_epoch_now();
    if (epoch_now == 0) { /* others may lead */
        char words[128];
        mc_election_clock_words(words, sizeof(words));
        mc_log_limited(ERROR, "%s", words);
    }
    mc_leadership_observed(&election->leadership, sent_ms, now_ms, rc == 0 && epoch_now != 0 ? &seen : NULL, epoch_now);
    pthread_mutex_unlock(&election->mutex);
}

static void claim(struct mc_election *election, uint64_t epoch, uint64_t deadline_ns)
{
    struct mc_election_view seen;
    char text[MC_ELECTION_CLAIM_MAX], note[MC_ELECTION_WORD_MAX], aged[MC_ELECTION_WORD_MAX];
    char horizons[MC_ELECTION_WORD_MAX];
    const char *words[MC_ELECTION_WORDS] = {
        [MC_ELECTION_DEPARTED] = note, [MC_ELECTION_AGED] = aged, [MC_ELECTION_HORIZON] = horizons};
    pthread_mutex_lock(&election->mutex);
    seen = election->view;
    snprintf(text, sizeof(text), "%llu %llu %016llx notes ages", (unsigned long long)epoch,
             (unsigned long long)election->ttl_ms, (unsigned long long)election->nonce);
    snprintf(note, sizeof(note), "%llu", (unsigned long long)election->departed_epoch);
    uint64_t claimed, ttl_ms;
    /* Who led before it has left no words here, or they are lost. */
    bool has_none = !parse_claim(election->view.claim, &claimed, &ttl_ms) || election->leadership.is_forgetful;
    snprintf(aged, sizeof(aged), election->aged_is_known && !has_none ? "%llu" : "%llu perhaps",
             (unsigned long long)(has_none ? epoch - 1 : election->aged_epoch));
    format_horizons(horizons, 0, 0, election->horizons);
    memcpy(election->claim, text, sizeof(text));
    pthread_mutex_unlock(&election->mutex);
    uint64_t sent_ms = mc_clock_boot_ms();
    int rc = election->backend.claim(election->backend.context, deadline_ns, &seen, text, election->address, words);
    pthread_mutex_lock(&election->mutex);
    /* Looks tell whether the place answers: one that is full answers them, and refuses this. */
    mc_leadership_claimed(&election->leadership, sent_ms, mc_clock_boot_ms(), outcome_of(rc));
    if (rc == 0) {
        memcpy(election->view.leader, election->address, sizeof(election->address));
        memcpy(election->view.claim, text, sizeof(text));
        for (unsigned i = 0; i < MC_ELECTION_WORDS; i++)
            if (words[i] != NULL)
                snprintf(election->view.words[i], sizeof(election->view.words[i]), "%s", words[i]);
        (void)has_gone_back(election, &election->view, epoch);
    }
    publish(election);
    pthread_mutex_unlock(&election->mutex);
}

static void renew(struct mc_election *election, uint64_t deadline_ns)
{
    uint64_t sent_ms = mc_clock_boot_ms();
    /* claim is written by this thread only */
    int rc = election->backend.renew(election->backend.context, deadline_ns, election->claim, election->address);
    pthread_mutex_lock(&election->mutex);
    note_contact(election, rc);
    mc_leadership_renewed(&election->leadership, sent_ms, mc_clock_boot_ms(), outcome_of(rc));
    publish(election);
    pthread_mutex_unlock(&election->mutex);
}

static void write_word(struct mc_election *election, enum mc_election_word number, uint64_t epoch)
{
    char text[MC_ELECTION_WORD_MAX];
    struct word *word = &election->words[number];
    uint64_t deadline_ns = mc_clock_ns() + election->ttl_ms / NOTE_PART * 1000000;
    snprintf(text, sizeof(text), "%llu", (unsigned long long)epoch);
    pthread_mutex_lock(&election->mutex);
    if (number == MC_ELECTION_CLUSTER)
        memcpy(text, election->cluster, sizeof(text));
    if (number == MC_ELECTION_HORIZON) {
        /* Of a try without an answer it is not known whether it stands there, so the next one says a little more. */
        word->tried_at_ms = word->asked_at_ms > word->tried_at_ms ? word->asked_at_ms : word->tried_at_ms + 1;
        format_horizons(text, epoch, word->tried_at_ms, election->horizons);
    }
    pthread_mutex_unlock(&election->mutex);
    int rc = election->backend.write(election->backend.context, deadline_ns, election->claim, number, text);
    pthread_mutex_lock(&election->mutex);
    note_contact(election, rc);
    word->due_ms = mc_clock_boot_ms() + NOTE_RETRY_MS;
    if (rc == 0) {
        uint64_t one = 1;
        memcpy(election->view.words[number], text, sizeof(text));
        (void)has_gone_back(election, &election->view, epoch);
        atomic_store(&word->said_at_ms, word->tried_at_ms);
        atomic_store(&word->said_epoch, epoch);
        mc_assert(write(election->fd, &one, sizeof(one)) == (ssize_t)sizeof(one)); /* as in publish */
    }
    pthread_mutex_unlock(&election->mutex);
}

/* Somebody else may lead at once. */
static void give_back(struct mc_election *election, uint64_t deadline_ns)
{
    char resigned[MC_ELECTION_CLAIM_MAX + sizeof(resigned_word)];
    snprintf(resigned, sizeof(resigned), "%s%s", election->claim, resigned_word);
    int rc = election->backend.resign(election->backend.context, deadline_ns, election->claim, resigned);
    if (rc < 0 && rc != MC_ERR_ETCD_TRANSACTION_FAIL)
        mc_log(WARNING, "the leadership could not be given back, it ends by itself: %s", mc_error_text(rc));
}

/* What renewals leave behind. Trouble with it is no trouble with the leadership. */
static void tidy(struct mc_election *election)
{
    uint64_t now = mc_election_epoch_now(), deadline_ns = mc_clock_ns() + election->ttl_ms / NOTE_PART * 1000000;
    int rc = now == 0 ? 0
                      : election->backend.tidy(election->backend.context, deadline_ns, election->claim, now,
                                               election->tidy_ms / 10);
    uint64_t pause_ms = election->tidy_ms < TIDY_LOOK_MS ? election->tidy_ms : TIDY_LOOK_MS;
    pthread_mutex_lock(&election->mutex);
    election->tidy_due_ms = mc_clock_boot_ms() + (rc == 1 ? 0 : pause_ms);
    pthread_mutex_unlock(&election->mutex);
}

static void resign(struct mc_election *election, uint64_t deadline_ns)
{
    give_back(election, deadline_ns);
    pthread_mutex_lock(&election->mutex);
    mc_leadership_resigned(&election->leadership);
    pthread_mutex_unlock(&election->mutex);
}

/* Waits until at_ms or a change; the mutex is held. */
static void wait_until(struct mc_election *election, uint64_t now_ms, uint64_t at_ms)
{
    uint64_t wait_ms = at_ms - now_ms < WAIT_MAX_MS ? at_ms - now_ms : WAIT_MAX_MS;
    uint64_t end_ns = mc_clock_ns() + wait_ms * 1000000;
    (void)mc_monitor_wait(&election->mutex, &election->changed, end_ns); /* either way the state is looked at */
}

/* The word that is to be written now, or at *at_ms if that is sooner; MC_ELECTION_WORDS: none. The mutex is held. */
static enum mc_election_word word_due(const struct mc_election *election, uint64_t now_ms, uint64_t *at_ms)
{
    uint64_t epoch = election->leadership.epoch;
    enum mc_election_word number = 0;
    for (; election->leadership.phase == MC_LEADERSHIP_LEADER && number < MC_ELECTION_WORDS; number++) {
        const struct word *word = &election->words[number];
        bool is_said = atomic_load(&word->said_epoch) == epoch && atomic_load(&word->said_at_ms) >= word->asked_at_ms;
        if (word->asked_epoch != epoch || is_said)
            continue;
        if (now_ms >= word->due_ms)
            return number;
        *at_ms = word->due_ms < *at_ms ? word->due_ms : *at_ms;
    }
    return MC_ELECTION_WORDS;
}

/* The server's loop stands still while this thread goes on: who does not serve must not lead. The mutex is held. */
static bool loop_is_stuck(struct mc_election *election, uint64_t now_ms)
{
    uint64_t one = 1, limit_ms = election->ttl_ms;
    if (election->loop_asked_ms != 0 && now_ms - election->looked_ms >= limit_ms / 2)
        election->loop_asked_ms = now_ms; /* this thread stood still, too: the process was stopped, or the machine */
    election->looked_ms = now_ms;
    if (election->loop_asked_ms == 0 && now_ms - election->loop_taken_ms >= ASK_MS) {
        election->loop_asked_ms = now_ms;
        mc_assert(write(election->fd, &one, sizeof(one)) == (ssize_t)sizeof(one)); /* as in publish */
    }
    return election->is_stuck = election->loop_asked_ms != 0 && now_ms - election->loop_asked_ms >= limit_ms;
}

/* Not under the mutex, which the loop takes. since_ms: it has stood still since then; 0: it goes on. */
static void loop_say(uint64_t since_ms, uint64_t now_ms)
{
    if (since_ms != 0)
        mc_log(ERROR, "this master's loop has stood still for %llu ms: it does not lead until it goes on",
               (unsigned long long)(now_ms - since_ms));
    else
        mc_log(INFO, "this master's loop goes on");
}

static bool tidy_due(const struct mc_election *election, uint64_t now_ms, uint64_t *at_ms)
{
    if (election->leadership.phase != MC_LEADERSHIP_LEADER || election->tidy_ms == 0)
        return false;
    if (now_ms >= election->tidy_due_ms)
        return true;
    *at_ms = election->tidy_due_ms < *at_ms ? election->tidy_due_ms : *at_ms;
    return false;
}

static void *run(void *argument)
{
    struct mc_election *election = argument;
    for (;;) {
        pthread_mutex_lock(&election->mutex);
        uint64_t now_ms = mc_clock_boot_ms();
        struct mc_leadership_step step = mc_leadership_next(&election->leadership, now_ms);
        publish(election);
        bool was_stuck = election->is_stuck, is_stuck = loop_is_stuck(election, now_ms);
        uint64_t since_ms = is_stuck ? election->loop_asked_ms : 0;
        if (is_stuck && (step.action == MC_LEADERSHIP_RENEW || step.action == MC_LEADERSHIP_CLAIM)) {
            bool leads = election->leadership.phase == MC_LEADERSHIP_LEADER;
            if (leads) {
                mc_leadership_yield(&election->leadership, now_ms, election->leadership.epoch, 0);
                publish(election);
            } else if (was_stuck) { /* else that is said first */
                wait_until(election, now_ms, now_ms + WAIT_MAX_MS);
            }
            pthread_mutex_unlock(&election->mutex);
            /* So that owners are not without a master for longer than it takes to give them up. What the loop was about
             * to send when it stood still it does not send: it looks whether it may (mc_election_may_serve). */
            if (leads)
                give_back(election, mc_clock_ns() + election->ttl_ms / NOTE_PART * 1000000);
            if (!was_stuck)
                loop_say(since_ms, now_ms);
            continue;
        }
        bool is_due = step.at_ms <= now_ms;
        enum mc_election_word word = is_due ? MC_ELECTION_WORDS : word_due(election, now_ms, &step.at_ms);
        bool is_writing = word != MC_ELECTION_WORDS;
        uint64_t epoch = election->leadership.epoch;
        bool tidies = !is_due && !is_writing && tidy_due(election, now_ms, &step.at_ms);
        if (!is_due && !is_writing && !tidies && was_stuck == is_stuck && step.action != MC_LEADERSHIP_END)
            wait_until(election, now_ms, step.at_ms);
        pthread_mutex_unlock(&election->mutex);
        if (was_stuck != is_stuck)
            loop_say(since_ms, now_ms);
        if (step.action == MC_LEADERSHIP_END)
            return NULL;
        if (is_writing)
            write_word(election, word, epoch);
        if (tidies)
            tidy(election);
        if (!is_due)
            continue;
        uint64_t deadline_ns = mc_clock_ns() + (step.deadline_ms - now_ms) * 1000000;
        if (step.action == MC_LEADERSHIP_OBSERVE)
            observe(election, deadline_ns);
        else if (step.action == MC_LEADERSHIP_CLAIM)
            claim(election, step.epoch, deadline_ns);
        else if (step.action == MC_LEADERSHIP_RENEW)
            renew(election, deadline_ns);
        else
            resign(election, deadline_ns);
    }
}

/* ---- life ---- */

int mc_election_create(const struct mc_election_backend *backend, uint64_t ttl_ms, uint64_t tidy_ms,
                       const char *address, struct mc_election **out)
{
    struct mc_election *election = calloc(1, sizeof(*election));
    int fd = election == NULL ? -1 : eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        backend->destroy(backend->context);
        free(election);
        return MC_ERR_NO_MEMORY;
    }
    mc_monitor_init(&election->mutex, &election->changed);
    election->fd = fd;
    election->backend = *backend;
    election->ttl_ms = ttl_ms;
    election->tidy_ms = tidy_ms;
    election->nonce = mc_random_u64();
    election->has_contact = true; /* so that only trouble is told */
    election->loop_taken_ms = election->looked_ms = mc_clock_boot_ms();
    snprintf(election->address, sizeof(election->address), "%s", address);
    struct mc_leadership_config config = mc_leadership_config(ttl_ms);
    if (config.poll_ms < backend->poll_ms)
        config.poll_ms = backend->poll_ms;
    config.odd = election->nonce % MC_LEADERSHIP_ODDS;
    mc_leadership_init(&election->leadership, config, mc_clock_boot_ms());
    *out = election;
    return 0;
}

int mc_election_start(struct mc_election *election)
{
    if (mc_thread_start(&election->thread, "mc-election", run, election) != 0)
        return MC_ERR_NO_MEMORY;
    election->is_running = true;
    return 0;
}

void mc_election_destroy(struct mc_election *election)
{
    if (election == NULL)
        return;
    pthread_mutex_lock(&election->mutex);
    mc_leadership_stop(&election->leadership, mc_clock_boot_ms());
    atomic_store(&election->until_ms, 0);
    pthread_cond_signal(&election->changed);
    pthread_mutex_unlock(&election->mutex);
    if (election->is_running)
        pthread_join(election->thread, NULL);
    election->backend.destroy(election->backend.context);
    mc_monitor_destroy(&election->mutex, &election->changed);
    close(election->fd);
    free(election);
}

/* ---- the server's side ---- */

int mc_election_fd(const struct mc_election *election)
{
    return election->fd;
}

/* 32 hex digits; zero when it is something else. */
static struct mc_id parse_cluster(const char *text)
{
    struct mc_id cluster = {0, 0};
    (void)mc_id_parse(text, &cluster);
    return cluster;
}

void mc_election_describe(struct mc_election *election, struct mc_election_role *role)
{
    uint64_t ttl_ms;
    pthread_mutex_lock(&election->mutex);
    const struct mc_leadership *leadership = &election->leadership;
    bool is_leader = leadership->phase == MC_LEADERSHIP_LEADER;
    uint64_t departed = election->departed_epoch, aged = election->aged_epoch;
    uint64_t last = leadership->predecessor_epoch, end_ms = leadership->predecessor_end_ms;
    uint64_t claim_ms = leadership->predecessor_claim_ms;
    if (departed < last && aged < last && claim_ms != 0 && (end_ms == 0 || claim_ms < end_ms))
        end_ms = claim_ms; /* it has done nothing: who may have acted ended before it */
    *role = (struct mc_election_role){.phase = leadership->phase, .has_contact = election->has_contact};
    role->epoch = is_leader ? leadership->epoch : 0;
    role->predecessor_end_ms = end_ms <= mc_clock_boot_ms() ? end_ms : 0;
    /* A leader acts on the departure of who came to it only when that is noted, and on the absence of who did not only
     * when it is of age. */
    role->whole_epoch = departed < last ? last : 0;
    role->whole_since = departed < aged ? aged : departed + 1;
    /* Where the last leader is not known, what stands there may be of long ago. */
    role->departed_epoch = !election->departed_is_known || departed < aged || last == 0 ? 0 : departed;
    role->aged_epoch = election->aged_is_known ? aged : 0;
    memcpy(role->horizons, election->horizons, sizeof(role->horizons));
    role->cluster = parse_cluster(election->view.words[MC_ELECTION_CLUSTER]);
    if (is_leader || election->view.is_present)
        memcpy(role->leader, election->view.leader, sizeof(role->leader));
    (void)parse_claim(election->view.claim, &role->leader_epoch, &ttl_ms); /* 0 when it is none */
    pthread_mutex_unlock(&election->mutex);
}

void mc_election_role(struct mc_election *election, struct mc_election_role *role)
{
    uint64_t count;
    /* Before the look: a change that comes after it makes the descriptor readable again. Empty is no failure. */
    if (read(election->fd, &count, sizeof(count)) < 0)
        count = 0;
    pthread_mutex_lock(&election->mutex);
    election->loop_asked_ms = 0;
    election->loop_taken_ms = mc_clock_boot_ms();
    pthread_mutex_unlock(&election->mutex);
    mc_election_describe(election, role);
}

bool mc_election_may_serve(const struct mc_election *election, uint64_t epoch)
{
    uint64_t until_ms = atomic_load(&election->until_ms);
    return epoch != 0 && atomic_load(&election->epoch) == epoch && mc_clock_boot_ms() < until_ms;
}

void mc_election_say(struct mc_election *election, enum mc_election_word word, uint64_t epoch, struct mc_id cluster)
{
    pthread_mutex_lock(&election->mutex);
    if (word == MC_ELECTION_CLUSTER)
        mc_id_format(election->cluster, cluster);
    election->words[word].asked_epoch = epoch;
    election->words[word].due_ms = 0;
    pthread_cond_signal(&election->changed);
    pthread_mutex_unlock(&election->mutex);
}

void mc_election_depart(struct mc_election *election, uint64_t epoch, uint64_t at_ms)
{
    struct word *word = &election->words[MC_ELECTION_HORIZON];
    pthread_mutex_lock(&election->mutex);
    if (word->asked_epoch != epoch) {
        atomic_store(&word->said_at_ms, 0);
        word->tried_at_ms = 0;
    }
    word->asked_at_ms = at_ms;
    pthread_mutex_unlock(&election->mutex);
    mc_election_say(election, MC_ELECTION_DEPARTED, epoch, (struct mc_id){0, 0});
    mc_election_say(election, MC_ELECTION_HORIZON, epoch, (struct mc_id){0, 0});
}

uint64_t mc_election_departed(const struct mc_election *election, uint64_t epoch)
{
    const struct word *word = &election->words[MC_ELECTION_HORIZON];
    if (!mc_election_has_said(election, MC_ELECTION_DEPARTED, epoch) || atomic_load(&word->said_epoch) != epoch)
        return 0;
    return atomic_load(&word->said_at_ms);
}

bool mc_election_has_said(const struct mc_election *election, enum mc_election_word word, uint64_t epoch)
{
    return epoch != 0 && atomic_load(&election->words[word].said_epoch) == epoch;
}

void mc_election_yield(struct mc_election *election, uint64_t epoch, uint64_t wanted)
{
    pthread_mutex_lock(&election->mutex);
    mc_leadership_yield(&election->leadership, mc_clock_boot_ms(), epoch, wanted);
    publish(election);
    pthread_cond_signal(&election->changed);
    pthread_mutex_unlock(&election->mutex);
}
