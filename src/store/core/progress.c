/* How far recovery is: since when, of how many objects, at which rate. What is taken in together is one episode: it
 * goes on while less than EPISODE_GAP_MS lie between one segment that is offered and the next that comes. */
#include "store/core/progress.h"

#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/segment.h"

#include <stdio.h>

#define EPISODE_GAP_MS 5000u
#define SAY_MS 5000u    /* a recovery that takes longer is told of, so often */
#define SILENT_MS 1000u /* an owner that has told nothing for so long is awaited */

void mc_progress_begin(struct mc_core *core, struct mc_segment *segment, uint32_t slot_top)
{
    struct mc_episode *episode = &core->episode;
    uint64_t now = mc_core_life_ms(core);
    bool is_disk = segment->kind == MC_SEGMENT_DISK, is_earlier = segment->inventory == MC_INVENTORY_EARLIER;
    if (mc_link_alone(&core->recovering) && (episode->began_ms == 0 || now - episode->ended_ms >= EPISODE_GAP_MS))
        *episode = (struct mc_episode){.began_ms = now == 0 ? 1 : now, .said_ms = now};
    segment->told = 0;
    segment->is_unannounced = is_earlier && is_disk;
    segment->announced = !is_earlier ? segment->live + segment->granted : is_disk ? 0 : slot_top;
}

void mc_progress_done(struct mc_core *core, const struct mc_segment *segment)
{
    core->episode.done++;
    core->episode.objects += segment->told;
    mc_progress_left(core);
}

void mc_progress_left(struct mc_core *core)
{
    if (!mc_link_alone(&core->recovering))
        return;
    core->episode.ended_ms = mc_core_life_ms(core);
    if (core->episode.said_ms > core->episode.began_ms)
        mc_core_log(core, MC_CORE_LOG_INFO,
                    "recovery: the contents of %llu segments are taken in, %llu objects in %.1f s",
                    (unsigned long long)core->episode.done, (unsigned long long)core->episode.objects,
                    (double)(core->episode.ended_ms - core->episode.began_ms) / 1000);
}

static const char *stage_of(const struct mc_core *core, const struct mc_segment *segment)
{
    bool is_telling = segment->inventory != MC_INVENTORY_NONE;
    if (segment->owner == NULL || (is_telling && mc_core_life_ms(core) - segment->told_ms >= SILENT_MS))
        return "awaited";
    return is_telling ? "told" : segment->dropping ? "compared" : segment->refused > 0 ? "cleared" : "judged";
}

void mc_core_recovery(const struct mc_core *core, struct mc_core_recovery *recovery)
{
    const struct mc_episode *episode = &core->episode;
    uint64_t now = mc_core_life_ms(core);
    *recovery =
        (struct mc_core_recovery){.done = episode->done, .told = episode->objects, .announced = episode->objects};
    recovery->open_ms =
        core->recovery_over || now >= core->config.recovery_window_ms ? 0 : core->config.recovery_window_ms - now;
    for (const struct mc_link *link = core->recovering.next; link != &core->recovering; link = link->next) {
        const struct mc_segment *segment = mc_link_of(link, struct mc_segment, recovery);
        const char *stage = stage_of(core, segment);
        bool is_telling = segment->inventory != MC_INVENTORY_NONE;
        uint64_t announced = !is_telling || segment->announced < segment->told ? segment->told : segment->announced;
        recovery->segments++;
        recovery->told += segment->told;
        recovery->announced += announced;
        recovery->unknown += is_telling && segment->is_unannounced;
        recovery->awaited += stage[0] == 'a';
        recovery->untold += is_telling;
        if (recovery->count == MC_CORE_RECOVERY_LIST)
            continue;
        struct mc_core_recovering *one = &recovery->list[recovery->count++];
        *one = (struct mc_core_recovering){.told = segment->told, .announced = announced, .stage = stage};
        snprintf(one->name, sizeof(one->name), "%s", segment->name);
    }
    recovery->since_ms = recovery->segments == 0 || episode->began_ms > now ? 0 : now - episode->began_ms;
    if (recovery->segments == 0)
        recovery->done = recovery->told = recovery->announced = 0;
    double per_ms = recovery->since_ms == 0 ? 0 : (double)recovery->told / (double)recovery->since_ms;
    recovery->per_second = (uint64_t)(per_ms * 1000);
    bool is_known = recovery->untold > 0 && recovery->unknown == 0 && per_ms > 0;
    recovery->left_ms = is_known ? (uint64_t)((double)(recovery->announced - recovery->told) / per_ms) : 0;
}

void mc_progress_tick(struct mc_core *core)
{
    struct mc_core_recovery at;
    char left[64] = "";
    uint64_t now = mc_core_life_ms(core);
    if (mc_link_alone(&core->recovering) || now - core->episode.said_ms < SAY_MS)
        return;
    core->episode.said_ms = now;
    mc_core_recovery(core, &at);
    if (at.left_ms > 0)
        snprintf(left, sizeof(left), ", about %.0f s left", (double)at.left_ms / 1000);
    mc_core_log(
        core, MC_CORE_LOG_INFO,
        "recovery: %llu segments are being taken in, %llu are back; %llu of at most %llu objects, %llu/s%s; the "
        "owners of %llu are awaited",
        (unsigned long long)at.segments, (unsigned long long)at.done, (unsigned long long)at.told,
        (unsigned long long)at.announced, (unsigned long long)at.per_second, left, (unsigned long long)at.awaited);
}
