#include "env/own_address.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"

#include <errno.h>

void mc_own_address_look(struct mc_own_address *own, const char *host, const char *told)
{
    uint64_t now_ns = mc_clock_ns();
    uint16_t port = 0;
    if (now_ns - own->looked_ns < MC_OWN_ADDRESS_LOOK_MS * 1000000ull)
        return;
    own->looked_ns = now_ns;
    if (mc_tcp_listen_host(host) != host)
        return;
    int fd = mc_tcp_bind(host, &port);
    bool is_gone = fd < 0;
    if (is_gone && errno != EADDRNOTAVAIL)
        return; /* it could not be found out */
    mc_fd_close(fd);
    if (is_gone && own->was_here && !own->is_gone)
        mc_log(ERROR,
               "this host has no address %s any more, where others are told %s: they do not reach it. Give the host "
               "that address again, or restart this process; where addresses change, let local_hostname be a name",
               host, told);
    else if (!is_gone && own->is_gone && own->was_here)
        mc_log(INFO, "this host has the address %s again", host);
    own->was_here |= !is_gone; /* one that never was is somebody's who passes on what comes there */
    own->is_gone = is_gone;
}
