/* What the environment says of transfer engines, and where they may listen. */
#ifndef MC_TRANSFER_STATE_SETTINGS_H
#define MC_TRANSFER_STATE_SETTINGS_H

#include "base/variables.h"
#include "env/socket.h"

struct ifaddrs;

#define MC_PEER_LANES_MAX 16u /* of one call to one peer, and kept open idle */

struct mc_settings { /* from the environment */
    uint64_t timeout_ns;
    uint32_t handshake_connect_ms;
    uint64_t handshake_length_max;
    uint16_t port_first, port_last;
    uint16_t handshake_port;    /* for a name without a port, when names say it; 0: ports are drawn */
    unsigned lanes, lanes_near; /* of one call; near: to peers of this machine, where more gain nothing */
    unsigned tcp_version;       /* 1: never speak version 2 */
    uint32_t checksum_every;    /* one batch of so many is checked; 0: none, 1: all */
    bool use_ipv6, allow_local, allow_host;
    bool allow_tracers; /* processes of this user may reach into ours where the kernel asks for our word */
    char bind_address[MC_ADDRESS_MAX];
};

void mc_settings_read(struct mc_settings *settings);
/* A number from the environment within [least, most]; anything else is a warning and the default. */
uint64_t mc_settings_number(enum mc_variable variable, uint64_t initial, uint64_t least, uint64_t most);
/* The address that other machines can reach: of the first interface that is up, has a carrier and is not loopback; if
 * none has one, of the first that is up. */
void mc_network_address(bool use_ipv6, char *address, size_t size);
/* The same of a list of addresses; NULL: an empty one. */
void mc_network_pick(const struct ifaddrs *all, bool use_ipv6, char *address, size_t size);
/* Listens on a random free port of the range. host "": every address. Descriptor or negative. */
int mc_network_listen(const struct mc_settings *settings, const char *host, uint16_t *port);

#endif
