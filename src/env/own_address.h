/* Is the address that others are told still this host's? A lease that was not renewed, or a network that was made anew,
 * takes it away, and nobody else can say why nothing comes. */
#ifndef MC_ENV_OWN_ADDRESS_H
#define MC_ENV_OWN_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

#define MC_OWN_ADDRESS_LOOK_MS 5000u

struct mc_own_address { /* zeroed = ready */
    uint64_t looked_ns;
    bool was_here, is_gone;
};
/* Looks, at most once in MC_OWN_ADDRESS_LOOK_MS. When that address is gone a line of the log says so, and what is
 * to be done; told: what others are told to be there. A name is not looked at, as others look it up. */
void mc_own_address_look(struct mc_own_address *own, const char *host, const char *told);

#endif
