/* The oracle. */
#include "oracle.h"

#include "members.h"
#include "held.h"
#include "placed.h"
#include "worker.h"

#include "base/checksum.h"
#include "store/core/core.h"
#include "store/core/replica.h"
#include "store/core/state.h"
#include "store/wire/stripe.h"
#include "mooncake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUTS_MAX 8192u
#define POOL_BYTES (96u << 10)
#define POOL_STEP 7u
#define SLACK_NS (20 * SIM_MS)    /* for being preempted on the way out */
#define GIVEN_UP_NS (60 * SIM_MS) /* no request is given up sooner */
#define AMBIGUOUS_BYTES 8u        /* shorter values may be equal by chance */

#define HEARD_NS (2500 * SIM_MS) /* a master sends nothing for 1.5 s while its note hangs; then it is on its way */
#define PROOFS_MAX 8u

struct proof { /* that a value is gone: a call that began then has read that other value of the key */
    uint64_t start_ns, end_ns;
    uint32_t read; /* UINT32_MAX: none, a removal was acknowledged, which is final */
};

struct oracle_put {
    uint32_t key, length, crc;
    uint64_t start_ns, end_ns;        /* end: of the call; SIM_NEVER while it runs */
    uint64_t seen_ns;                 /* end of the first get that returned it; SIM_NEVER */
    uint64_t gone_ns;                 /* from then on it is known to be gone; SIM_NEVER */
    uint64_t absent_ns, absent_epoch; /* a removal did not find it; under that master it must not appear any more */
    const struct sim_process *process;
    bool succeeded, decided, is_upsert, is_hard, was_granted;
    uint64_t pin_ms;
    bool is_firm;                    /* that pin; or it is not put */
    struct proof proofs[PROOFS_MAX]; /* of other values; the last of each */
    uint32_t proof_count;
};

static struct oracle_put all_puts[PUTS_MAX];
static uint32_t put_count;
static uint8_t pool[POOL_BYTES];
static struct key_state {
    struct mc_hash hash, head_hash; /* of the key, and of that of a head */
    uint64_t sure_ns;               /* a put had succeeded by then, and nothing may have removed it since; SIM_NEVER */
    uint32_t removing;
    uint8_t removing_by[SIM_PROCESSES_MAX], jobs_by[SIM_PROCESSES_MAX]; /* jobs: of all, or by pattern */
    uint64_t removed_ns; /* end of the last call that might have removed it */
    uint64_t doubt_ns;   /* a removal ended then that may still arrive at the master of that life; 0: none */
    uint32_t doubt_life;
    bool is_job_in_doubt;   /* it may have arrived, and wait there */
    bool is_dropped;        /* a call has said that it is not needed any more */
    uint32_t pins, pinning; /* calls that give what is there another pin: begun, and under way */
    uint32_t firm_put;      /* once there was one: of which it is promised that it is kept, */
    uint64_t firm_until_ns; /* and so long */
} key_states[SIM_KEY_NAMES_MAX];
static bool may_rot;          /* bits flip */
static uint64_t note_lost_ns; /* when the last note of a master was lost; 0: none was */
static uint64_t told_ns;      /* when the last was lost of which a master has said so */
static bool is_named;         /* memory outlives its process */

void oracle_reset(const struct sim_plan *plan)
{
    if (pool[0] == 0) {
        uint64_t value = 88172645463325252ull;
        for (size_t i = 0; i < POOL_BYTES; i++) {
            value ^= value << 13, value ^= value >> 7, value ^= value << 17;
            pool[i] = (uint8_t)((value >> 24) | (i == 0));
        }
    }
    put_count = 0;
    note_lost_ns = told_ns = 0;
    is_named = plan->is_named;
    may_rot = (plan->faults >> SIM_FAULT_flip & 1u) != 0;
    for (uint32_t i = 0; i < SIM_KEY_NAMES_MAX; i++) {
        struct mc_span name = sim_key_full(i);
        uint8_t head[MC_MARK_LENGTH + 64] = MC_HEAD_MARK;
        mc_assert(name.length <= sizeof(head) - MC_MARK_LENGTH);
        memcpy(head + MC_MARK_LENGTH, name.data, name.length);
        key_states[i] = (struct key_state){.sure_ns = SIM_NEVER,
                                           .hash = mc_hash(name.data, name.length),
                                           .head_hash = mc_hash(head, MC_MARK_LENGTH + name.length)};
    }
}

struct oracle_call oracle_begin(void)
{
    struct sim_process *process = sim_process();
    return (struct oracle_call){sim_now_ns, sim_process_stopped_ns(process), sim_master_epoch(), process};
}

void oracle_end(const struct oracle_call *call, uint64_t limit_ms, const char *what)
{
    uint64_t passed_ns = sim_now_ns - call->start_ns - (sim_process_stopped_ns(call->process) - call->stopped_ns);
    if (passed_ns > limit_ms * SIM_MS + SLACK_NS)
        sim_fail("deadline: %s took %llu ms, its limit is %llu ms", what, (unsigned long long)(passed_ns / SIM_MS),
                 (unsigned long long)limit_ms);
}

static const uint8_t *bytes_of(uint32_t put)
{
    return pool + put * POOL_STEP % (POOL_BYTES - 40000u);
}

uint32_t oracle_put_begin(uint32_t key, uint32_t length, bool is_upsert, const uint8_t **bytes)
{
    if (put_count == PUTS_MAX) {
        fprintf(stderr, "too many puts for the oracle\n");
        abort();
    }
    all_puts[put_count] = (struct oracle_put){.key = key,
                                              .length = length,
                                              .is_upsert = is_upsert,
                                              .start_ns = sim_now_ns,
                                              .end_ns = SIM_NEVER,
                                              .seen_ns = SIM_NEVER,
                                              .gone_ns = SIM_NEVER,
                                              .process = sim_process()};
    *bytes = bytes_of(put_count);
    all_puts[put_count].crc = mc_crc32c(0, *bytes, length);
    return put_count++;
}

uint32_t oracle_put_of(uint64_t hash_low, uint64_t hash_high, uint64_t length, uint32_t crc)
{
    for (uint32_t i = put_count; i > 0; i--) {
        const struct oracle_put *put = &all_puts[i - 1];
        const struct mc_hash *hash = &key_states[put->key].hash;
        if (put->crc == crc && put->length == length && hash->low == hash_low && hash->high == hash_high)
            return i - 1;
    }
    return UINT32_MAX;
}

uint32_t oracle_put_of_head(const struct mc_hash *head, uint64_t length, uint32_t crc)
{
    for (uint32_t i = put_count; i > 0; i--) {
        const struct oracle_put *put = &all_puts[i - 1];
        const struct mc_hash *hash = &key_states[put->key].head_hash;
        if (hash->low == head->low && hash->high == head->high && put->length > length &&
            mc_crc32c(0, bytes_of(i - 1), length) == crc)
            return i - 1;
    }
    return UINT32_MAX;
}

/* May a removal that nobody waits for any more still arrive? */
static bool is_in_doubt(const struct key_state *key)
{
    return key->doubt_ns != 0 && key->doubt_life == oracle_life() &&
           (key->is_job_in_doubt || !oracle_was_open_after(key->doubt_ns));
}

static void doubt(struct key_state *key, bool is_job)
{
    key->is_job_in_doubt = is_job || (is_in_doubt(key) && key->is_job_in_doubt);
    key->doubt_ns = sim_now_ns;
    key->doubt_life = oracle_life();
}

/* A call that began then has found the key, or put it: what the master offers now must be there from now on. */
static void become_sure(uint32_t key, uint64_t start_ns)
{
    if (key_states[key].removing > 0 || key_states[key].removed_ns >= start_ns || is_in_doubt(&key_states[key]))
        return;
    if (key_states[key].sure_ns == SIM_NEVER || !oracle_placements_hold(key)) /* what was there before was evicted */
        key_states[key].sure_ns = sim_now_ns;
    oracle_placements_offer(key);
}

/* A writer in trouble of its own may hold the key for as long as its call lasts; who comes meanwhile waits for it. */
static bool is_held_in_want(uint32_t number)
{
    for (uint32_t i = 0; i < put_count; i++) {
        const struct oracle_put *other = &all_puts[i];
        if (i != number && other->key == all_puts[number].key && other->end_ns > all_puts[number].start_ns &&
            sim_has_wanted(other->process->place))
            return true;
    }
    return false;
}

void oracle_put_end(uint32_t number, int rc)
{
    struct oracle_put *put = &all_puts[number];
    put->end_ns = sim_now_ns;
    put->succeeded = rc == 0;
    put->decided = true;
    bool is_excused = (rc == MC_ERR_REPLICA_IS_NOT_READY && is_held_in_want(number)) ||
                      (put->is_firm && (rc == MC_ERR_FIRM_PIN_REFUSED || rc == MC_ERR_OBJECT_ALREADY_EXISTS ||
                                        (rc == MC_ERR_NOT_SUPPORTED && sim_plan->has_old)));
    if (oracle_is_strict() && rc != 0 && !sim_has_wanted(put->process->place) && !is_excused)
        sim_fail("failed: put %u of key %u: %s, though nothing happened and there is room", number, put->key,
                 mc_error_name(rc));
    if (rc == 0)
        become_sure(put->key, put->start_ns);
}

void oracle_put_hide(uint32_t put)
{
    all_puts[put].gone_ns = 0;
}

void oracle_put_show(uint32_t put)
{
    all_puts[put].start_ns = sim_now_ns;
    all_puts[put].gone_ns = SIM_NEVER;
}

void oracle_put_wishes(uint32_t put, const struct mc_replicate_config *config)
{
    uint64_t ttl_ms = config->soft_pin_ttl_ms != 0 ? config->soft_pin_ttl_ms : mc_core_config_default().soft_pin_ttl_ms;
    all_puts[put].is_hard = config->with_hard_pin;
    all_puts[put].pin_ms = config->with_soft_pin && !config->with_hard_pin ? ttl_ms : 0;
    if (config->firm_pin_ms > 0 && !config->with_hard_pin) {
        all_puts[put].pin_ms = config->firm_pin_ms;
        all_puts[put].is_firm = config->firm_pin_or_not;
    }
}

uint64_t oracle_put_firm_until_ns(uint32_t put)
{
    const struct oracle_put *of = &all_puts[put];
    const struct key_state *state = &key_states[of->key];
    if (state->pins > 0)
        return state->firm_put == put && of->length >= AMBIGUOUS_BYTES ? state->firm_until_ns : 0;
    bool is_promised = of->is_firm && of->succeeded && of->length >= AMBIGUOUS_BYTES;
    return is_promised ? of->start_ns + of->pin_ms * SIM_MS : 0;
}

bool oracle_put_pin(uint32_t put, struct oracle_pin *pin)
{
    const struct oracle_put *of = &all_puts[put];
    *pin = (struct oracle_pin){of->pin_ms, of->start_ns, of->succeeded ? of->end_ns : SIM_NEVER, of->is_upsert};
    return of->length >= AMBIGUOUS_BYTES && key_states[of->key].pins == 0 && !key_states[of->key].is_dropped;
}

void oracle_dropped(uint32_t key)
{
    key_states[key].is_dropped = true;
}

/* Of a short value it is not known: another put of the same bytes may be meant. */
bool oracle_put_is_hard(uint32_t put)
{
    return all_puts[put].is_hard && all_puts[put].length >= AMBIGUOUS_BYTES && key_states[all_puts[put].key].pins == 0;
}

uint32_t oracle_pin_begin(uint32_t key)
{
    struct key_state *state = &key_states[key];
    state->pins++;
    state->firm_put = UINT32_MAX;
    return state->pinning++ == 0 ? state->pins : 0;
}

/* May a value of the key have come since? */
static bool is_put_since(uint32_t key, uint64_t since_ns)
{
    for (uint32_t i = 0; i < put_count; i++) {
        const struct oracle_put *put = &all_puts[i];
        bool is_over = put->decided && put->end_ns < since_ns && (put->succeeded || !put->is_upsert);
        if (put->key == key && !is_over)
            return true;
    }
    return false;
}

void oracle_pin_end(const struct oracle_call *call, uint32_t key, uint32_t number, uint32_t put, uint64_t firm_ms)
{
    struct key_state *state = &key_states[key];
    state->pinning--;
    if (number != state->pins || firm_ms == 0 || put == UINT32_MAX || is_put_since(key, call->start_ns))
        return;
    state->firm_put = put;
    state->firm_until_ns = call->start_ns + firm_ms * SIM_MS;
}

uint32_t oracle_put_length(uint32_t put)
{
    return all_puts[put].length;
}

uint32_t oracle_put_key(uint32_t put)
{
    return all_puts[put].key;
}

uint64_t oracle_put_runs_since(uint32_t put)
{
    return all_puts[put].end_ns == SIM_NEVER ? all_puts[put].start_ns : SIM_NEVER;
}

void oracle_puts_granted(const struct mc_core *core)
{
    for (uint32_t i = 0; i < put_count; i++) {
        struct oracle_put *put = &all_puts[i];
        if (put->decided || put->was_granted)
            continue;
        const struct mc_object *object = mc_object_find(core, sim_key_full(put->key));
        put->was_granted = object != NULL && object->granted > 0;
    }
}

/* Is it, or was it when the master decided what is heard of it only now? A grant that was open then has won over what
 * an owner brought from before, also where its put has failed since (C5 in docs/ordering.md). */
bool oracle_is_being_put(uint32_t key, uint32_t other, bool is_earlier)
{
    for (uint32_t i = 0; i < put_count; i++) {
        const struct oracle_put *put = &all_puts[i];
        bool was_open =
            is_earlier && put->was_granted && !put->succeeded && put->decided && sim_now_ns - put->end_ns < HEARD_NS;
        bool is_open = !put->decided || was_open;
        if (put->key == key && i != other && is_open)
            return true;
    }
    return false;
}

void (*oracle_on_live)(const struct sim_process *process);

/* The call has read that value. Is the other one gone? Not while a young master has put the newer of them over an older
 * one in a segment that it has not met. */
static bool is_open(uint64_t start_ns, uint32_t read, uint32_t other)
{
    return read != UINT32_MAX &&
           (oracle_both_live(read, other, start_ns, true) || oracle_both_live(other, read, start_ns, false));
}

static void prove(struct oracle_put *put, const struct oracle_call *call, uint32_t read)
{
    uint32_t at = 0;
    while (at < put->proof_count && put->proofs[at].read != read)
        at++;
    if (at == PROOFS_MAX)
        return;
    put->proof_count += at == put->proof_count;
    if (read != UINT32_MAX || put->proofs[at].end_ns == 0) /* the first removal, else the last */
        put->proofs[at] = (struct proof){call->start_ns, sim_now_ns, read};
}

/* It is live only now, as its owner has slept over the commit: it was granted before the calls that have proved it to
 * be gone, and what they have read may have been one of two values of a young master. */
static void judge_again(uint32_t number)
{
    struct oracle_put *put = &all_puts[number];
    if (put->gone_ns == SIM_NEVER || put->proof_count == 0)
        return;
    put->gone_ns = SIM_NEVER;
    for (uint32_t i = 0; i < put->proof_count; i++) {
        const struct proof *proof = &put->proofs[i];
        if (proof->end_ns < put->gone_ns && !is_open(proof->start_ns, proof->read, number))
            put->gone_ns = proof->end_ns;
    }
}

/* A put of a key that is there succeeds and changes nothing. In a place that was granted ahead it is live before the
 * master says no; then it is cleared, and never offered. */
void oracle_put_live(uint32_t number, bool is_ahead)
{
    const struct oracle_put *put = &all_puts[number];
    judge_again(number);
    if (oracle_is_strict() && !is_ahead && !put->is_upsert && put->length >= AMBIGUOUS_BYTES &&
        oracle_is_sure(put->key) && key_states[put->key].sure_ns < put->start_ns)
        sim_fail("replaced: put %u of key %u was stored, and the key was there before it began", number, put->key);
    if (oracle_on_live != NULL)
        oracle_on_live(put->process);
}

void oracle_process_killed(const struct sim_process *process)
{
    if (sim_is_master(process->place))
        oracle_master_ends(process->core == NULL ? 0 : ((const struct mc_core *)process->core)->epoch);
    else if (process->place < SIM_PLACE_CLIENT && (!is_named || process->had_no_room))
        oracle_owner_lost(process->place);
    for (uint32_t i = 0; i < put_count; i++) {
        if (all_puts[i].process == process && !all_puts[i].decided) {
            all_puts[i].decided = true;
            all_puts[i].end_ns = sim_now_ns;
        }
    }
    for (uint32_t i = 0; i < SIM_KEY_NAMES_MAX; i++) {
        if (key_states[i].removing_by[process->place] == 0)
            continue;
        key_states[i].removing -= key_states[i].removing_by[process->place];
        key_states[i].removed_ns = sim_now_ns;
        doubt(&key_states[i], key_states[i].jobs_by[process->place] > 0);
        key_states[i].removing_by[process->place] = key_states[i].jobs_by[process->place] = 0;
    }
}

/* The call found the key without that value: what was settled before it began is over. */
static void mark_gone(const struct oracle_call *call, uint32_t key, uint32_t except)
{
    for (uint32_t i = 0; i < put_count; i++) {
        struct oracle_put *put = &all_puts[i];
        bool had_its_time = put->seen_ns < call->start_ns || (put->end_ns < call->start_ns && put->succeeded);
        if (put->key != key || i == except || !had_its_time || is_open(call->start_ns, except, i))
            continue;
        prove(put, call, except);
        put->gone_ns = put->gone_ns > sim_now_ns ? sim_now_ns : put->gone_ns;
    }
}

static void not_found(const struct oracle_call *call, uint32_t key)
{
    if (sim_has_wanted(call->process->place))
        return; /* its own trouble */
    if ((oracle_is_strict() || oracle_was_well(call->start_ns)) && oracle_is_sure(key) &&
        key_states[key].sure_ns < call->start_ns)
        sim_fail("lost: key %u is not found, though %s", key,
                 oracle_is_strict() ? "nothing happened since it was put" : "all has been well for a while");
}

void oracle_note_lost(void)
{
    note_lost_ns = sim_plan->standbys == 0 ? sim_now_ns : 0;
}

void oracle_told(void)
{
    told_ns = note_lost_ns;
    if (told_ns != 0)
        oracle_words_lost(told_ns);
}

/* Of what was removed before the note was lost nobody may know any more, and the operator has been told. */
static void may_be_back(uint32_t key)
{
    for (uint32_t i = 0; i < put_count && told_ns != 0; i++) {
        if (all_puts[i].key != key || all_puts[i].gone_ns == 0 || all_puts[i].gone_ns >= told_ns)
            continue;
        all_puts[i].gone_ns = SIM_NEVER;
        all_puts[i].proof_count = 0;
    }
}

void oracle_got(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, int64_t rc)
{
    uint32_t found = UINT32_MAX, matches = 0;
    if (rc <= 0) {
        if (rc == 0)
            sim_fail("content: a get of key %u returned 0", key);
        if (rc == MC_ERR_CHECKSUM_MISMATCH && !may_rot)
            sim_fail("changed: key %u is rotten, and no bit has flipped", key);
        if (rc == MC_ERR_OBJECT_NOT_FOUND || rc == MC_ERR_REPLICA_IS_NOT_READY)
            not_found(call, key);
        return;
    }
    for (uint32_t i = 0; i < put_count; i++) {
        if (all_puts[i].key == key && all_puts[i].length == (uint64_t)rc &&
            memcmp(bytes_of(i), bytes, (size_t)rc) == 0) {
            found = i;
            matches++;
        }
    }
    if (matches == 0) {
        sim_fail("content: a get of key %u returned %lld bytes that nobody put", key, (long long)rc);
        return;
    }
    if (matches > 1 || rc < (int64_t)AMBIGUOUS_BYTES)
        return;
    struct oracle_put *put = &all_puts[found];
    sim_say("  key %u holds put %u", key, found);
    may_be_back(key);
    if (call->start_ns > put->gone_ns)
        sim_fail("resurrection: key %u returned put %u, known to be gone since %.6f", key, found,
                 (double)(put->gone_ns - 10000 * SIM_MS) / 1e9);
    if (put->absent_epoch != 0 && call->start_ns > put->absent_ns && call->epoch == put->absent_epoch &&
        sim_master_epoch() == put->absent_epoch)
        sim_fail("resurrection: key %u returned put %u, which the same master had not found at %.6f", key, found,
                 (double)(put->absent_ns - 10000 * SIM_MS) / 1e9);
    if (put->seen_ns == SIM_NEVER)
        put->seen_ns = sim_now_ns;
    mark_gone(call, key, found);
    become_sure(key, call->start_ns);
}

void oracle_got_range(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, uint64_t offset,
                      uint64_t size)
{
    struct oracle_piece piece = {bytes, offset, size};
    oracle_got_pieces(call, key, &piece, 1);
}

static bool is_of(uint32_t put, const struct oracle_piece *pieces, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].size > 0 && (pieces[i].offset + pieces[i].size > all_puts[put].length ||
                                   memcmp(bytes_of(put) + pieces[i].offset, pieces[i].bytes, pieces[i].size) != 0))
            return false;
    }
    return true;
}

void oracle_got_pieces(const struct oracle_call *call, uint32_t key, const struct oracle_piece *pieces, uint32_t count)
{
    bool is_read = false, is_known = false;
    may_be_back(key);
    for (uint32_t i = 0; i < count; i++)
        is_read |= pieces[i].size > 0;
    for (uint32_t i = 0; i < put_count; i++) {
        if (all_puts[i].key != key || !is_of(i, pieces, count))
            continue;
        if (all_puts[i].gone_ns >= call->start_ns)
            return;
        is_known = true;
    }
    if (is_read && is_known)
        sim_fail("resurrection: a range of key %u is of values that are known to be gone", key);
    else if (is_read && count == 1)
        sim_fail("content: a range of key %u holds what nobody put", key);
    else if (is_read)
        sim_fail("mixed: %u ranges of key %u in one call are of no one value", count, key);
}

/* A value that is not gone may be said to exist. */
static bool may_exist(const struct oracle_call *call, uint32_t key, int64_t length)
{
    may_be_back(key);
    for (uint32_t i = 0; i < put_count; i++) {
        const struct oracle_put *put = &all_puts[i];
        if (put->key == key && (length < 0 || put->length == (uint64_t)length) && put->gone_ns >= call->start_ns &&
            (put->absent_epoch == 0 || put->absent_ns >= call->start_ns || call->epoch != put->absent_epoch ||
             sim_master_epoch() != put->absent_epoch))
            return true;
    }
    return false;
}

void oracle_exists(const struct oracle_call *call, uint32_t key, int result)
{
    if (result > 1 || (result == 1 && !may_exist(call, key, -1)))
        sim_fail("resurrection: key %u is said to exist, and all its values are known to be gone", key);
    if (result == 0)
        not_found(call, key);
}

void oracle_length(const struct oracle_call *call, uint32_t key, int64_t length)
{
    if (length >= 0 && !may_exist(call, key, length))
        sim_fail("content: key %u is said to have %lld bytes, which nobody put, or which are known to be gone", key,
                 (long long)length);
    if (length == MC_ERR_OBJECT_NOT_FOUND)
        not_found(call, key);
}

void oracle_remove_begin(uint32_t key, bool is_all)
{
    key_states[key].jobs_by[sim_process()->place] += is_all;
    key_states[key].removing++;
    key_states[key].removing_by[sim_process()->place]++;
    key_states[key].sure_ns = SIM_NEVER;
    oracle_placements_evict(key, 0);
}

void oracle_remove_end(const struct oracle_call *call, uint32_t key, bool removed, bool is_certain, bool is_all)
{
    key_states[key].jobs_by[sim_process()->place] -= is_all;
    key_states[key].removing--;
    key_states[key].removing_by[sim_process()->place]--;
    key_states[key].removed_ns = sim_now_ns;
    /* A request that was given up on the way to the answer may still be under way. */
    if (!is_certain || (sim_now_ns - call->start_ns > GIVEN_UP_NS && !oracle_is_well_since(call->start_ns)))
        doubt(&key_states[key], is_all);
    if (removed)
        mark_gone(call, key, UINT32_MAX);
}

void oracle_not_there(const struct oracle_call *call, uint32_t key)
{
    for (uint32_t i = 0; i < put_count && call->epoch != 0 && call->epoch == sim_master_epoch(); i++) {
        struct oracle_put *put = &all_puts[i];
        if (put->key == key && put->end_ns < call->start_ns && put->succeeded) {
            put->absent_ns = sim_now_ns;
            put->absent_epoch = call->epoch;
        }
    }
}

bool oracle_is_sure(uint32_t key)
{
    return key_states[key].sure_ns != SIM_NEVER && oracle_is_held(key);
}
