/* An owner that is going to leave: it asks the master to have what lies in its memory only stored on its disks, and
 * hears how much is left (D6 of docs/ordering.md). Whoever waits for that asks again and again, and each time the
 * master is. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"

#define STALLED_MS 5000u  /* nothing more has come to a disk for so long: nothing more will */
#define UNLINKED_MS 3000u /* so long a master is waited for */

/* What lies in memory or on a disk is not known yet, or the disk is not mounted, and may come to be: the master may not
 * have it in mind. */
static bool is_unsettled(const struct mc_owner *owner)
{
    if (owner->inventory.is_active)
        return true;
    for (uint32_t i = 0; i < owner->disk_count; i++) {
        const struct mc_owner_disk *disk = &owner->disks[i];
        if (disk->state != MC_OWNER_DISK_OFF && !disk->gives_up &&
            (disk->state != MC_OWNER_DISK_MOUNTED || disk->inventory.is_active))
            return true;
    }
    return false;
}

/* On the serve thread. */
static void on_flush(void *argument)
{
    struct mc_owner *owner = argument;
    bool is_linked = owner->state == LINK_MOUNTED && !owner->is_closing;
    bool can = is_linked && mc_wire_can(&owner->agreed, MC_FEATURE_FLUSH), is_known = false;
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&owner->lock);
    struct mc_owner_flush *flush = &owner->flush;
    is_known = flush->is_known;
    if (is_linked && !can)
        flush->code = MC_ERR_NOT_SUPPORTED;
    if (is_unsettled(owner))
        flush->moved_ms = now_ms;
    pthread_mutex_unlock(&owner->lock);
    if (!can)
        return;
    struct mc_wire_flush head = {.segment = atomic_load(&owner->segment), .begin = !is_known};
    mc_wire_flush_frame(&owner->out, mc_frame_begin(&owner->out, MC_MESSAGE_FLUSH, ++owner->request_id), &head);
    mc_owner_link_send(owner);
}

void mc_owner_flush_told(struct mc_owner *owner, const struct mc_wire_flushed *told)
{
    pthread_mutex_lock(&owner->lock);
    struct mc_owner_flush *flush = &owner->flush;
    flush->linked_ms = mc_clock_ms(); /* not when there is a link: a master that stands still has one */
    flush->code = told->code == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? told->code : 0;
    if (told->code == 0 && told->looks > 0 && (!flush->is_looked || told->left < flush->left))
        flush->moved_ms = mc_clock_ms();
    flush->is_known |= told->code == 0;
    if (told->code == 0 && told->looks > 0) {
        flush->is_looked = true;
        flush->left = told->left;
        flush->left_bytes = told->left_bytes;
    }
    pthread_mutex_unlock(&owner->lock);
}

bool mc_owner_has_disks(struct mc_owner *owner)
{
    pthread_mutex_lock(&owner->lock);
    bool has_disks = owner->disk_count > owner->disks_left;
    pthread_mutex_unlock(&owner->lock);
    return has_disks;
}

bool mc_owner_keeps_memory(struct mc_owner *owner)
{
    pthread_mutex_lock(&owner->lock);
    bool keeps = mc_segment_memory_is_named(owner->memory) && !owner->drop_on_close;
    pthread_mutex_unlock(&owner->lock);
    return keeps;
}

void mc_owner_flush(struct mc_owner *owner, struct mc_owner_flushed *flushed)
{
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&owner->lock);
    struct mc_owner_flush *flush = &owner->flush;
    if (flush->linked_ms == 0)
        flush->linked_ms = flush->moved_ms = now_ms;
    *flushed = (struct mc_owner_flushed){
        .is_known = flush->is_looked, .left = flush->left, .left_bytes = flush->left_bytes, .code = flush->code};
    if (flush->code == 0 && now_ms - flush->linked_ms > UNLINKED_MS)
        flushed->code = MC_ERR_RPC_FAIL;
    else if (flush->code == 0 && now_ms - flush->moved_ms > STALLED_MS)
        flushed->code = MC_ERR_FILE_WRITE_FAIL;
    flushed->is_over = flushed->code < 0 || (flush->is_looked && flush->left == 0);
    pthread_mutex_unlock(&owner->lock);
    if (!flushed->is_over)
        mc_serve_post(owner->serve, on_flush, owner);
}
