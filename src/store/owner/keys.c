/* The keys by which tickets and tags are known: others each period, told to the master by another MOUNT. Those before
 * stay good for one more period, so that what was handed out under them can be used meanwhile. While there is no master
 * to tell there are no others: what clients remember of the last one goes on to be good. */
#include "store/owner/inside.h"

#include "env/setting.h"

#define PERIOD_S_MAX 2592000u /* thirty days, in a field of milliseconds */
#define LATER_MS 500u

uint32_t mc_owner_key_ms(void)
{
    return 1000 * (uint32_t)mc_setting_number(MC_TICKET_PERIOD_S, " of seconds", 0, PERIOD_S_MAX, MC_TICKET_PERIOD_S);
}

void mc_owner_on_key_timer(evutil_socket_t fd, short what, void *argument)
{
    struct mc_owner *owner = argument;
    (void)fd, (void)what;
    bool can_tell = owner->state == LINK_MOUNTED && owner->mount_id == 0 && !owner->inventory.is_active;
    if (can_tell && !mc_serve_keys_renew(owner->serve))
        return;
    if (can_tell)
        mc_owner_mount_send(owner);
    mc_owner_timer_set(owner->key_timer, can_tell ? owner->key_ms : LATER_MS);
}
