/* Which cluster this is: 128 random bits, made once, by which a node of another cluster is told from one of ours. Its
 * contents, and what it has met, are then none of our business, and stay as they are.
 *
 * A master that is told the id (by a note, an election, its operator) knows it from its start: it is settled. One that
 * is not told must not believe whoever comes first: a stray node would make strangers of all the others. So until the
 * end of the recovery window the id is open, and only members that bring contents count. The first of them leads:
 * contents of that id are taken in and offered at once, as all are when a master is restarted. Once contents of a
 * second id are brought the matter is torn: whoever brings others than the leading ones waits, untouched; and unless
 * more than half of all that are here bring the leading ones, nothing is offered at all (veiled). At the end of the
 * window more than half decide. Without that the matter stays open, aloud, until the operator takes a node away. Where
 * nobody has contents by then, those that were here before decide, if they were of one id. */
#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/recover.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <stdlib.h>

#define WORDS_MAX 448u     /* of a refusal */
#define LATER_MS 60000u    /* between two words about what stays torn */
#define REFUSED_MS 5000u   /* between two words about refusals */
#define LOOK_EVERY_MS 100u /* at what was brought, while that is open */

struct tally {
    struct mc_id ids[MC_CLUSTERS_MET_MAX];
    uint32_t counts[MC_CLUSTERS_MET_MAX], known, all;
    uint32_t let_in; /* of those that are known, the first: their contents are here; the others only wait */
};

static const char *const ways[] = {
    [MC_CLUSTER_OPEN] = "not settled",
    [MC_CLUSTER_TOLD] = "by --cluster_uuid",
    [MC_CLUSTER_NOTED] = "by the note that its last master left",
    [MC_CLUSTER_ELECTED] = "by what stands beside the election",
    [MC_CLUSTER_BROUGHT] = "by the contents that most store nodes brought",
    [MC_CLUSTER_LEFT] = "by contents that were here and have left",
    [MC_CLUSTER_MADE] = "made by this master, to which nobody brought contents",
};

static bool is_open(const struct mc_core *core)
{
    return mc_id_is_zero(core->cluster);
}

bool mc_cluster_is_other(const struct mc_core *core, struct mc_id cluster)
{
    return !is_open(core) && !mc_id_is_zero(cluster) && !mc_id_equal(cluster, core->cluster);
}

/* ---- who brings what ---- */

static void tally_add(struct tally *tally, struct mc_id cluster)
{
    uint32_t at = 0;
    tally->all++;
    while (at < tally->known && !mc_id_equal(tally->ids[at], cluster))
        at++;
    if (at == MC_CLUSTERS_MET_MAX) /* counted as one of the others */
        return;
    if (at == tally->known) {
        tally->ids[tally->known++] = cluster;
        tally->counts[at] = 0;
    }
    tally->counts[at]++;
}

static uint32_t tally_of(const struct tally *tally, struct mc_id cluster)
{
    for (uint32_t i = 0; i < tally->known; i++)
        if (mc_id_equal(tally->ids[i], cluster))
            return tally->counts[i];
    return 0;
}

/* Brought by more than half of all; zero: nothing is. */
static struct mc_id most(const struct tally *tally)
{
    for (uint32_t i = 0; i < tally->known; i++)
        if (tally->counts[i] > tally->all - tally->counts[i])
            return tally->ids[i];
    return (struct mc_id){0, 0};
}

/* Those whose contents are here, and those who wait and ask again. */
static void count(struct mc_core *core, struct tally *tally)
{
    uint32_t kept = 0;
    *tally = (struct tally){.all = 0};
    for (uint32_t i = 1; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        if (segment != NULL && segment->state != MC_SEGMENT_GONE && !mc_id_is_zero(segment->past.cluster))
            tally_add(tally, segment->past.cluster);
    }
    tally->let_in = tally->known;
    for (uint32_t i = 0; i < core->waiter_count; i++) {
        struct mc_cluster_waiter waiter = core->waiters[i];
        if (core->now_ms - waiter.said_ms >= MC_CLUSTER_WAITER_MS)
            continue;
        tally_add(tally, waiter.cluster);
        core->waiters[kept++] = waiter;
    }
    core->waiter_count = kept;
}

static void wait_note(struct mc_core *core, struct mc_id node, struct mc_id cluster)
{
    uint32_t at = 0;
    while (at < core->waiter_count && !mc_id_equal(core->waiters[at].node, node))
        at++;
    if (at == MC_CLUSTER_WAITERS_MAX)
        return;
    if (core->waiters == NULL)
        core->waiters = malloc(MC_CLUSTER_WAITERS_MAX * sizeof(*core->waiters));
    if (core->waiters == NULL)
        return; /* it asks again */
    core->waiter_count += at == core->waiter_count;
    core->waiters[at] = (struct mc_cluster_waiter){node, cluster, core->now_ms};
}

/* ---- settling ---- */

static void veil(struct mc_core *core, bool veiled)
{
    if (core->veiled == veiled)
        return;
    core->veiled = veiled;
    for (uint32_t i = 1; i < core->segment_top; i++)
        if (core->segments[i] != NULL)
            mc_segment_refresh(core, core->segments[i]);
}

static void settle(struct mc_core *core, struct mc_id cluster, enum mc_cluster_way way)
{
    core->cluster = cluster;
    core->cluster_way = way;
    core->cluster_kept = !core->config.asks_to_keep_cluster;
    /* Who waited asks again within seconds, and must still find the window open. */
    if (core->torn)
        core->join_until_ms = core->now_ms + MC_CLUSTER_WAITER_MS;
    core->torn = false;
    free(core->waiters);
    core->waiters = NULL;
    core->waiter_count = 0;
    bool is_guess = way == MC_CLUSTER_LEFT;
    mc_core_tell(core, MC_TOPIC_CLUSTER, is_guess ? MC_CORE_LOG_WARNING : MC_CORE_LOG_INFO,
                 "this is cluster %016llx%016llx, %s%s", (unsigned long long)cluster.high,
                 (unsigned long long)cluster.low, ways[way],
                 is_guess ? "; if it is another one, start the master with --cluster_uuid" : "");
    for (uint32_t i = 1; i < core->segment_top; i++) {
        struct mc_segment *segment = core->segments[i];
        if (segment != NULL && segment->member != NULL && mc_cluster_is_other(core, segment->past.cluster))
            mc_member_drop(core, segment->member, "its contents are of another cluster; it keeps them");
    }
    veil(core, false);
}

void mc_cluster_begin(struct mc_core *core)
{
    if (mc_id_is_zero(core->config.cluster))
        return;
    settle(core, core->config.cluster, core->config.cluster_way);
}

static void say_torn(struct mc_core *core, const struct tally *tally)
{
    if (core->torn_said_ms != 0 && core->now_ms - core->torn_said_ms < LATER_MS)
        return;
    core->torn_said_ms = core->now_ms;
    mc_core_tell(
        core, MC_TOPIC_CLUSTER, MC_CORE_LOG_WARNING,
        "store nodes bring contents of %u clusters, and no note says which this is: %s; more than half of them "
        "decide %s. Take away the nodes that do not belong here, or start the master with --cluster_uuid",
        tally->known, core->veiled ? "nothing is offered" : "those of the fewer wait",
        mc_recover_waits(core) ? "at the end of the recovery window" : "as soon as they are more than half");
}

/* Who waited, and was never let in, does not say which cluster this is, only that it is not certain. */
static void note_brought(struct mc_core *core, const struct tally *tally)
{
    if (mc_id_is_zero(core->brought) && tally->let_in > 0)
        core->brought = tally->ids[0];
    for (uint32_t i = 0; i < tally->known && !mc_id_is_zero(core->brought); i++)
        core->brought_several |= !mc_id_equal(core->brought, tally->ids[i]);
}

/* Nobody has contents now. Those of one cluster may have been here and offered, and their node starts again, or its
 * machine does: under a new id it would be a stranger for ever, with what lies on its disks. */
static void settle_without_contents(struct mc_core *core)
{
    if (!mc_id_is_zero(core->brought) && !core->brought_several)
        settle(core, core->brought, MC_CLUSTER_LEFT);
    else
        core->is_new = true;
}

void mc_cluster_tick(struct mc_core *core)
{
    struct tally tally;
    if (!is_open(core) || (core->cluster_looked_ms != 0 && core->now_ms - core->cluster_looked_ms < LOOK_EVERY_MS))
        return;
    core->cluster_looked_ms = core->now_ms;
    count(core, &tally);
    note_brought(core, &tally);
    /* Who led and has left leads no more. */
    if (tally_of(&tally, core->leading) == 0 && core->now_ms - core->leading_ms >= MC_CLUSTER_WAITER_MS)
        core->leading = (struct mc_id){0, 0};
    core->torn = tally.known > 1;
    veil(core, core->torn && !mc_id_equal(most(&tally), core->leading));
    if (core->torn)
        say_torn(core, &tally);
    if (mc_recover_waits(core))
        return;
    core->is_new = false;
    if (!mc_id_is_zero(most(&tally)))
        settle(core, most(&tally), MC_CLUSTER_BROUGHT);
    else if (tally.all == 0 && core->recovery_over && core->segment_count > 0)
        settle_without_contents(core); /* not while nobody is here: contents that are cut off would find a stranger */
}

/* ---- hellos ---- */

static void refused(struct mc_core *core, const struct mc_wire_hello *hello, char words[WORDS_MAX])
{
    (void)snprintf(words, WORDS_MAX,
                   "it belongs to cluster %016llx%016llx, and this is %016llx%016llx (%s). What it holds stays as it "
                   "is. Start it at a master of its own cluster; or give its contents up, so that it joins here empty: "
                   "remove its data directory, or set MC_FOREIGN_CONTENTS=drop there",
                   (unsigned long long)hello->cluster.high, (unsigned long long)hello->cluster.low,
                   (unsigned long long)core->cluster.high, (unsigned long long)core->cluster.low,
                   ways[core->cluster_way]);
    core->statistics.foreign_refused++;
}

static int32_t judge_open(struct mc_core *core, const struct mc_wire_hello *hello, char words[WORDS_MAX])
{
    if (mc_id_is_zero(core->leading) && hello->role == MC_ROLE_OWNER)
        core->leading = hello->cluster;
    if (mc_id_equal(core->leading, hello->cluster) && hello->role == MC_ROLE_OWNER)
        core->leading_ms = core->now_ms;
    if (mc_id_is_zero(core->leading) || mc_id_equal(core->leading, hello->cluster))
        return 0;
    if (hello->role == MC_ROLE_OWNER) {
        wait_note(core, hello->node, hello->cluster);
        core->cluster_looked_ms = 0;
        mc_cluster_tick(core);
        if (!is_open(core))
            return mc_cluster_is_other(core, hello->cluster) ? MC_ERR_OTHER_CLUSTER : 0;
    }
    (void)snprintf(words, WORDS_MAX,
                   "it holds contents of cluster %016llx%016llx, others have brought those of another one, and this "
                   "master does not know yet which it is: come again. Nothing of yours is touched",
                   (unsigned long long)hello->cluster.high, (unsigned long long)hello->cluster.low);
    return MC_ERR_BUSY;
}

int32_t mc_cluster_judge(struct mc_core *core, const struct mc_wire_hello *hello, char *words)
{
    words[0] = 0;
    if (mc_id_is_zero(hello->cluster))
        return 0; /* it does not say */
    int32_t code = is_open(core) && hello->holds != 0 ? judge_open(core, hello, words) : 0;
    bool is_other = mc_cluster_is_other(core, hello->cluster);
    /* One that holds nothing may come, unless it has met a later epoch: it would not believe us. */
    if (is_other && (hello->holds != 0 || hello->seen_epoch > core->epoch)) {
        refused(core, hello, words);
        code = MC_ERR_OTHER_CLUSTER;
    }
    if (code != 0 && (core->cluster_said_ms == 0 || core->now_ms - core->cluster_said_ms >= REFUSED_MS)) {
        core->cluster_said_ms = core->now_ms;
        mc_core_tell(core, MC_TOPIC_CLUSTER, MC_CORE_LOG_WARNING, "member " MC_ID_LOG " (%.*s) is refused: %s",
                     MC_ID_LOG_ARGS(hello->node),
                     (int)(hello->name.length < MC_MEMBER_NAME_MAX ? hello->name.length : MC_MEMBER_NAME_MAX),
                     hello->name.length == 0 ? "" : (const char *)hello->name.data, words);
    }
    return code;
}

struct mc_id mc_cluster_told(const struct mc_core *core)
{
    return core->cluster_kept ? core->cluster : (struct mc_id){0, 0};
}

struct mc_id mc_core_cluster(const struct mc_core *core)
{
    return core->cluster;
}

bool mc_core_asks_for_cluster(const struct mc_core *core)
{
    return is_open(core) && core->is_new;
}

void mc_core_make_cluster(struct mc_core *core, struct mc_id cluster)
{
    if (mc_core_asks_for_cluster(core) && !mc_id_is_zero(cluster))
        settle(core, cluster, MC_CLUSTER_MADE);
}

bool mc_core_asks_to_keep_cluster(const struct mc_core *core)
{
    return !is_open(core) && !core->cluster_kept;
}

void mc_core_cluster_is_kept(struct mc_core *core)
{
    core->cluster_kept = true;
}
