/* A store that is going to be closed: what lies in its memory only comes to its disks before, or to other nodes; and
 * disks that leave alone. */
#include "env/clock.h"
#include "env/log.h"
#include "env/setting.h"
#include "store/client/calls.h"
#include "store/client/retire.h"
#include "store/client/threads.h"
#include "store/owner/owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_MS 50u
#define SAY_MS 1000u
#define GRACE_S_MAX 86400

struct mc_retiring { /* how far it is */
    bool is_over, is_known;
    int code; /* why it is over, though something is left */
    uint64_t left, left_bytes;
};

uint64_t mc_retire_grace_ms(void)
{
    return 1000 * mc_setting_number(MC_EXIT_GRACE_S, " of seconds", 0, GRACE_S_MAX, MC_EXIT_GRACE_S);
}

/* Those whose segment leaves: the store, and others that lend parts of its memory. */
struct leaver {
    struct mc_store *store;
    bool drains; /* its objects are moved; else stored on its disks */
};

static void look_how_far(const struct leaver *leaver, uint64_t since_ms, struct mc_retiring *now)
{
    struct mc_owner_flushed flushed;
    *now = (struct mc_retiring){0};
    if (leaver->drains) {
        now->is_over = mc_drain_look(leaver->store, since_ms, &now->is_known, &now->left);
        now->code = now->is_over && (!now->is_known || now->left > 0) ? MC_ERR_NO_AVAILABLE_HANDLE : 0;
        return;
    }
    mc_owner_flush(atomic_load(&leaver->store->owner), &flushed);
    *now = (struct mc_retiring){flushed.is_over, flushed.is_known, flushed.code, flushed.left, flushed.left_bytes};
}

static void look_how_far_all(const struct leaver *leavers, size_t count, uint64_t since_ms, struct mc_retiring *now)
{
    *now = (struct mc_retiring){.is_over = true, .is_known = true};
    for (size_t i = 0; i < count; i++) {
        struct mc_retiring one;
        look_how_far(&leavers[i], since_ms, &one);
        now->is_over &= one.is_over;
        now->is_known &= one.is_known;
        now->code = now->code == 0 ? one.code : now->code;
        now->left += one.left;
        now->left_bytes += one.left_bytes;
    }
}

static size_t leavers_find(struct mc_store *store, unsigned flags, struct leaver leavers[1 + MC_MOUNTS_MAX])
{
    struct mc_owner *owner = atomic_load(&store->owner);
    struct mc_store *parts[MC_MOUNTS_MAX];
    size_t part_count = mc_mounts_parts(store, parts), count = 0;
    bool has_disks = owner != NULL && mc_owner_has_disks(owner), drains = (flags & MC_RETIRE_DRAIN) != 0;
    if (owner != NULL && (has_disks || drains))
        leavers[count++] = (struct leaver){store, !has_disks};
    for (size_t i = 0; i < part_count && drains; i++)
        leavers[count++] = (struct leaver){parts[i], true};
    return count;
}

/* Does what is left in memory stay in files, of each of them? */
static bool all_keep(const struct leaver *leavers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct mc_owner *owner = atomic_load(&leavers[i].store->owner);
        if (owner == NULL || !mc_owner_keeps_memory(owner))
            return false;
    }
    return true;
}

/* "12 objects (34 bytes)"; of what is moved to others nobody counts the bytes. */
static void count_text(const struct mc_retiring *now, bool drains, char text[80])
{
    if (!now->is_known)
        snprintf(text, 80, "what lies there");
    else if (drains)
        snprintf(text, 80, "%" PRIu64 " objects", now->left);
    else
        snprintf(text, 80, "%" PRIu64 " objects (%" PRIu64 " bytes)", now->left, now->left_bytes);
}

static const char *reason(const struct mc_retiring *now, bool is_stopped)
{
    return is_stopped                                        ? "it was told to end at once"
           : now->code == 0                                  ? "its time is over"
           : now->code == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "the master does not store on disks (--enable_offload)"
           : now->code == MC_ERR_NOT_SUPPORTED               ? "the master is of an older release"
           : now->code == MC_ERR_RPC_FAIL                    ? "no master answers"
           : now->code == MC_ERR_NO_AVAILABLE_HANDLE         ? "no other node takes it"
                                                             : "the disk takes no more";
}

static int say_end(const struct mc_retiring *now, bool drains, bool is_stopped, bool keeps)
{
    char text[80];
    if (now->is_known && now->left == 0) {
        mc_log(INFO, "leaving: all that lay in memory is %s", drains ? "at other nodes" : "on the disk");
        return 0;
    }
    count_text(now, drains, text);
    mc_log(WARNING, "leaving: %s was left in memory and %s: %s", text,
           keeps ? "stays in the files of the data directory, for the next process there" : "is lost",
           reason(now, is_stopped));
    return 1;
}

int mc_store_retire(struct mc_store *store, unsigned flags, uint64_t grace_ms, bool (*stops)(void *context),
                    void *context)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct leaver leavers[1 + MC_MOUNTS_MAX];
    size_t count = leavers_find(store, flags, leavers);
    bool drains = false;
    atomic_store(&store->retired, true);
    if (count == 0 || grace_ms == 0) {
        mc_store_leave(store);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        drains |= leavers[i].drains;
        atomic_store(&leavers[i].store->leaving, true);
        atomic_store(&leavers[i].store->drains, leavers[i].drains);
        mc_store_wake(leavers[i].store); /* the master is told at once */
    }
    mc_log(INFO, "leaving: what lies in memory only is %s, for at most %" PRIu64 " s",
           drains ? "moved to other nodes" : "stored on the disk", (grace_ms + 999) / 1000);
    struct mc_retiring now;
    uint64_t start_ms = mc_clock_ms(), said_ms = start_ms;
    bool is_stopped = false;
    for (look_how_far_all(leavers, count, start_ms, &now);
         !now.is_over && !is_stopped && mc_clock_ms() - start_ms < grace_ms;
         look_how_far_all(leavers, count, start_ms, &now)) {
        usleep(LOOK_MS * 1000);
        is_stopped = stops != NULL && stops(context);
        if (now.is_known && mc_clock_ms() - said_ms >= SAY_MS) {
            char text[80];
            count_text(&now, drains, text);
            mc_log(INFO, "leaving: %s left", text);
            said_ms = mc_clock_ms();
        }
    }
    rc = say_end(&now, drains, is_stopped, all_keep(leavers, count));
    for (size_t i = 0; i < count; i++)
        atomic_store(&leavers[i].store->drains, false);
    mc_store_leave(store);
    return rc;
}

int mc_store_unmount_disks(struct mc_store *store, uint64_t grace_ms)
{
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    struct mc_owner *owner = atomic_load(&store->owner);
    rc = owner == NULL ? 0 : mc_owner_disks_leave(owner, grace_ms);
    mc_store_leave(store);
    return rc;
}
