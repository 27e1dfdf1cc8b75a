/* What can be told of a host or host:port by its text alone. */
#ifndef MC_BASE_ADDRESS_H
#define MC_BASE_ADDRESS_H

#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* Whether it names the machine that asks, whichever that is: nobody else is reached by it. */
static inline bool mc_address_is_loopback(const char *address)
{
    static const char local[] = "localhost";
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 || strncmp(address, "[::1]", 5) == 0 ||
           (strncasecmp(address, local, sizeof(local) - 1) == 0 &&
            (address[sizeof(local) - 1] == '\0' || address[sizeof(local) - 1] == ':'));
}

#endif
