/* What nodes know of other masters.
 *
 * Of those before us: for how long they lived, when they may have acted. By that the contents of earlier epochs are
 * judged, once when they are told and once when they are offered; afterwards they are ours. No master before us can
 * have acted on the absence of who obeys us, so nothing that is said of it is later than our own start, or than its end
 * where the election knows that. A hello alone is no evidence: the connection must go on to speak. The note that a
 * master of this machine has left (note.h) says the same, also when all who heard of it have ended. A core before us in
 * this process that has placed and removed nothing counts as if it had not been.
 *
 * Of one of a later epoch: then it is we who are late, and begin again above it. That costs all connections and another
 * recovery, so one packet is never enough. As long as nothing of ours lives anywhere two words are. Once we have
 * offered a segment it takes nodes that stand by their word: one that lends memory, or two. A client alone does not
 * move us: it is answered no more than one of another cluster would be. Where there are keys the words of who has no
 * right to lend memory do not count, and of masters before us only those of who may write or lend memory do; where
 * epochs are proved (member.c) it is the proof that counts. */
#include "base/checksum.h"
#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/recover.h"
#include "store/core/state.h"

/* ---- masters before us ---- */

/* Whoever that speaks against, the other does as well. */
static bool covers(const struct mc_evidence *wide, const struct mc_evidence *narrow)
{
    return (mc_id_is_zero(wide->cluster) || mc_id_equal(wide->cluster, narrow->cluster)) &&
           wide->epoch >= narrow->epoch && wide->alive_ms >= narrow->alive_ms;
}

/* A core of ours was met by who met us, and did nothing. Who was let in there had met nobody of a later epoch. */
static void bound_by_idle(const struct mc_core *core, struct mc_evidence *said)
{
    int64_t idle_ms = (int64_t)(core->config.idle_since_ms - core->base_ms);
    if (core->config.idle_since_ms == 0 || said->alive_ms <= idle_ms)
        return;
    said->alive_ms = idle_ms;
    if (said->epoch > core->config.idle_epoch)
        said->epoch = core->config.idle_epoch;
}

/* Keeps only what says more than any other: a later epoch or a later time, or of another cluster. */
static void evidence_add(struct mc_core *core, struct mc_evidence said)
{
    struct mc_evidence *list = core->evidence;
    uint32_t kept = 0, at = 0;
    for (uint32_t i = 0; i < core->evidence_count; i++)
        if (covers(&list[i], &said))
            return;
    for (uint32_t i = 0; i < core->evidence_count; i++)
        if (!covers(&said, &list[i]))
            list[kept++] = list[i];
    if (kept == MC_EVIDENCE_MAX) { /* the first two become one that says at least as much */
        list[1].alive_ms = list[0].alive_ms > list[1].alive_ms ? list[0].alive_ms : list[1].alive_ms;
        if (!mc_id_equal(list[0].cluster, list[1].cluster))
            list[1].cluster = (struct mc_id){0, 0};
        for (uint32_t i = 1; i < kept; i++)
            list[i - 1] = list[i];
        kept--;
    }
    while (at < kept && list[at].epoch < said.epoch)
        at++;
    for (uint32_t i = kept; i > at; i--)
        list[i] = list[i - 1];
    list[at] = said;
    core->evidence_count = kept + 1;
}

void mc_evidence_said(const struct mc_core *core, struct mc_connection *connection, const struct mc_wire_hello *hello)
{
    uint64_t epoch = hello->seen_epoch;
    int64_t alive_ms = (int64_t)core->now_ms - (int64_t)hello->seen_age_ms;
    if (epoch < core->epoch && epoch > connection->member->met_epoch)
        connection->member->met_epoch = epoch;
    connection->said_of = epoch < core->epoch ? epoch : connection->member->met_epoch;
    if (epoch == core->epoch && alive_ms < 0)
        epoch--; /* it has met us, but who had acted then was a master before us */
    if (epoch < core->epoch)
        connection->said = (struct mc_evidence){epoch, alive_ms < 0 ? alive_ms : 0, hello->cluster};
}

/* Of the master whose note says that it gave nobody up, or of one before it: by the epoch, and no later than that note
 * was kept, or else that was not the last word. */
static bool is_of_noted(const struct mc_core *core, const struct mc_connection *connection)
{
    return connection->said_of != 0 && connection->said_of <= core->config.known_epoch &&
           connection->said.alive_ms <= (int64_t)(MC_NOTE_LATE_MS + core->gap_ms) - (int64_t)core->config.known_age_ms;
}

void mc_evidence_confirm(struct mc_core *core, struct mc_connection *connection)
{
    struct mc_evidence said = connection->said;
    connection->said.epoch = 0;
    if (said.epoch == 0 || core->disks_over)
        return;
    bound_by_idle(core, &said);
    if (said.alive_ms > core->others_alive_ms && !is_of_noted(core, connection))
        core->others_alive_ms = said.alive_ms;
    evidence_add(core, said);
}

void mc_evidence_noted(struct mc_core *core, uint64_t epoch, uint64_t age_ms)
{
    if (epoch == 0 || epoch >= core->epoch)
        return;
    /* Where the time itself is known it speaks against contents of a later epoch, too: their master came before that
     * one, whose clock was late. */
    if (core->config.known_is_timed)
        epoch = core->epoch - 1;
    struct mc_evidence noted = {epoch, (int64_t)core->now_ms - (int64_t)age_ms, {0, 0}};
    bound_by_idle(core, &noted);
    evidence_add(core, noted);
}

static bool is_of_whole(const struct mc_core *core, uint64_t epoch)
{
    const struct mc_core_config *config = &core->config;
    uint64_t since = config->whole_since != 0 ? config->whole_since : config->whole_epoch;
    return epoch != 0 && epoch >= since && epoch <= config->whole_epoch;
}

/* A master of age has answered for all that it had not met, and these are not of its epoch: it has not offered them. No
 * clock is asked: the contact of another boot is known by the wall clock only, which may have been set back. */
static bool was_absent(const struct mc_core_config *config, uint64_t epoch)
{
    return epoch < config->aged_epoch || (epoch > config->aged_epoch && epoch < config->aged_next);
}

/* Up to which of its ages the master of these contents acted on the silence of who had the last contact then; 0: not
 * known. It noted that before it did so, and none that followed it came of age. */
static uint64_t horizon_of(const struct mc_core *core, const struct mc_past *past)
{
    for (unsigned i = 0; i < MC_HORIZONS_MAX; i++)
        if (core->config.horizons[i].epoch == past->epoch)
            return past->contact_at_ms == 0 ? 0 : core->config.horizons[i].at_ms;
    return 0;
}

bool mc_evidence_is_whole(const struct mc_core *core, const struct mc_past *past)
{
    uint64_t horizon_ms = horizon_of(core, past);
    return is_of_whole(core, past->epoch) || (horizon_ms != 0 && past->contact_at_ms > horizon_ms);
}

/* The last master that may have acted on a departure is the one of these contents, and it did not act on that of their
 * owner: it wrote how far it would go before it went there. */
static bool is_above(const struct mc_core *core, const struct mc_past *past)
{
    uint64_t horizon_ms = horizon_of(core, past);
    return past->epoch == core->config.departed_epoch && horizon_ms != 0 && past->contact_at_ms > horizon_ms;
}

static bool is_witnessed(const struct mc_core *core, const struct mc_past *past, int64_t acted_ms)
{
    /* A master of a later epoch, which never knew these contents, counts as much as the one that did. */
    struct mc_evidence wanted = {past->epoch, acted_ms, past->cluster};
    for (uint32_t i = 0; i < core->evidence_count; i++) {
        struct mc_evidence one = core->evidence[i];
        if (mc_id_is_zero(past->cluster)) /* contents that do not say whose they are: any master may have been theirs */
            one.cluster = past->cluster;
        if (covers(&one, &wanted))
            return true;
    }
    return false;
}

const char *mc_evidence_against(const struct mc_core *core, const struct mc_past *past)
{
    uint64_t epoch = past->epoch;
    int64_t acted_ms = past->contact_ms + (int64_t)core->config.depart_ms;
    /* No master since then has acted on the departure of their owner, and none that followed it came of age: whatever
     * was said about these contents waited for the owner. That a master lived long proves nothing, and for how long we
     * know by late looks only. */
    if (is_of_whole(core, epoch) || is_above(core, past))
        return NULL;
    if (was_absent(&core->config, epoch))
        return "a master of age came since, to which they never were offered";
    /* It may have acted on that silence, whenever it ended, and whoever has heard of it. */
    if (past->contact_at_ms <= horizon_of(core, past) && past->contact_at_ms != 0)
        return "their master went so far with those that were silent";
    /* The latest moment for all of them; what members say is no later. */
    if (core->config.predecessor_end_ms != 0)
        return (int64_t)(core->config.predecessor_end_ms - core->base_ms) >= acted_ms
                   ? "the leader before us may have lived until their owner had been silent for too long"
                   : NULL;
    /* It let nobody of its own go, whenever it ended; another one may have. */
    if (core->config.known_is_whole && epoch == core->config.known_epoch)
        return core->others_alive_ms >= acted_ms ? "members have met another master since" : NULL;
    return is_witnessed(core, past, acted_ms)
               ? "a master before us was met when their owner had been silent for too long"
               : NULL;
}

/* ---- masters after us ---- */

uint64_t mc_core_epoch_latest(uint64_t clock_epoch)
{
    return clock_epoch < MC_EPOCH_LATEST ? clock_epoch + (MC_EPOCH_LATEST - clock_epoch) / 2 : MC_EPOCH_LATEST;
}

static bool stands(const struct mc_witness *witness)
{
    return witness->words >= MC_WITNESS_WORDS && witness->last_ms - witness->first_ms >= MC_WITNESS_STANDS_MS;
}

/* Forgets who has said nothing for long. */
static void witnesses_age(struct mc_core *core)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->witness_count; i++)
        if (core->now_ms - core->witnesses[i].last_ms < MC_WITNESS_KEEP_MS)
            core->witnesses[kept++] = core->witnesses[i];
    core->witness_count = kept;
}

/* That of the node, made if need be, in the place of whoever has been silent for the longest time. */
static struct mc_witness *witness_of(struct mc_core *core, struct mc_id node)
{
    struct mc_witness *place = &core->witnesses[0];
    for (uint32_t i = 0; i < core->witness_count; i++) {
        if (mc_id_equal(core->witnesses[i].node, node))
            return &core->witnesses[i];
        if (core->witnesses[i].last_ms < place->last_ms)
            place = &core->witnesses[i];
    }
    if (core->witness_count < MC_WITNESSES_MAX)
        place = &core->witnesses[core->witness_count++];
    *place = (struct mc_witness){.node = node, .first_ms = core->now_ms};
    return place;
}

/* The highest epoch that the witnesses prove; 0: none. */
static uint64_t proven(const struct mc_core *core)
{
    uint64_t quick = 0, firm = 0;
    uint32_t words = 0, standing = 0;
    bool has_owner = false;
    for (uint32_t i = 0; i < core->witness_count; i++) {
        const struct mc_witness *witness = &core->witnesses[i];
        if (witness->epoch == 0)
            continue;
        words += witness->words;
        quick = witness->epoch > quick ? witness->epoch : quick;
        if (stands(witness)) {
            standing++;
            has_owner |= witness->is_owner;
            firm = witness->epoch > firm ? witness->epoch : firm;
        }
    }
    if (standing >= 2 || has_owner)
        return firm;
    return words >= 2 && !core->has_offered ? quick : 0;
}

/* Who lends memory is known by its name, which stays when its process is started again: a process that gives up before
 * its word has stood for long enough is followed by another one with another id, which says the same. */
static struct mc_id witness_id(struct mc_id node, struct mc_span name, bool is_owner)
{
    if (!is_owner || name.length == 0)
        return node;
    struct mc_hash hash = mc_hash(name.data, name.length < MC_MEMBER_NAME_MAX ? name.length : MC_MEMBER_NAME_MAX);
    return (struct mc_id){hash.high, hash.low};
}

/* The latest epoch that we believe in, so that what we begin under after it (server.c) is no later than it may be. */
static uint64_t latest_believed(const struct mc_core *core, bool has_proof)
{
    return has_proof ? MC_EPOCH_LATEST
                     : mc_core_epoch_latest(core->config.clock_epoch + core->now_ms / 10) - 2 * MC_EPOCH_CARRY;
}

void mc_evidence_contradicts(struct mc_core *core, const struct mc_later *later, bool has_proof)
{
    bool can_be = later->epoch <= latest_believed(core, has_proof);
    witnesses_age(core);
    struct mc_witness *witness = witness_of(core, witness_id(later->node, later->name, later->is_owner));
    witness->last_ms = core->now_ms;
    witness->is_owner |= later->is_owner;
    witness->epoch = can_be ? later->epoch : 0;
    if (witness->words++ == 0)
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "member " MC_ID_LOG " says that it has met a master of epoch %llu, ours is %llu: %s",
                    MC_ID_LOG_ARGS(later->node), (unsigned long long)later->epoch, (unsigned long long)core->epoch,
                    can_be ? "one word is not believed"
                           : "so late a one is not believed of anybody. Is this machine's clock right?");
    core->statistics.epochs_doubted++;
    uint64_t wish = proven(core);
    if (wish == 0 || wish + MC_EPOCH_CARRY <= core->wanted_epoch)
        return;
    core->wanted_epoch = wish + MC_EPOCH_CARRY; /* it may have placed much under that epoch */
    mc_core_log(core, MC_CORE_LOG_WARNING, "a master of epoch %llu was met by nodes, ours is %llu: we are late",
                (unsigned long long)wish, (unsigned long long)core->epoch);
}

uint64_t mc_core_wanted_epoch(const struct mc_core *core)
{
    return core->wanted_epoch;
}
