/* What a port offers to whoever reaches it. */
#include "env/exposed.h"

#include "base/address.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"

#include <netinet/in.h>
#include <stdatomic.h>

/* What whoever reaches the port may do, in a process without keys. */
static const char *const offers[MC_EXPOSED_COUNT] = {
    [MC_EXPOSED_MASTER] = "read, write and remove everything, and lend memory to this master",
    [MC_EXPOSED_ADMIN] = "read the names of all keys, where nodes are and what this master counts",
    [MC_EXPOSED_METADATA] = "read where transfer engines are, and tell others where new ones are",
    [MC_EXPOSED_KV_EVENTS] = "read the names of all keys as they come and go",
    [MC_EXPOSED_NODE] = "read and write the values that this process keeps for others",
    [MC_EXPOSED_REST] = "put, get and remove values",
    [MC_EXPOSED_HEALTH] = "read how this store does and what it counts",
    [MC_EXPOSED_DUMMY] = "learn which master this store uses",
    [MC_EXPOSED_HANDSHAKES] = "learn where this transfer engine's memory is, and leave it notes",
    [MC_EXPOSED_ENGINE] = "read and write all memory that is registered with this transfer engine",
    [MC_EXPOSED_CONNECTOR] = "have the KV cache of requests whose ids he knows written to engines that he names",
    [MC_EXPOSED_PROXY] = "have the engines behind this proxy work for him",
};

static atomic_uint said; /* a bit for each kind */

void mc_exposed_say(enum mc_exposed what, int listener)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    if (mc_socket_name(listener, MC_SOCKET_OURS, host, sizeof(host), &port))
        mc_exposed_say_at(what, host, port);
}

void mc_exposed_say_at(enum mc_exposed what, const char *host, uint16_t port)
{
    const char *authority = mc_secure_is_served() && what != MC_EXPOSED_CONNECTOR ? mc_secure_serves().authority : NULL;
    bool is_open = mc_keys_stranger_status(MC_RIGHT_ADMIN, false) != 0 && (authority == NULL || authority[0] == 0);
    if (!is_open || mc_address_is_loopback(host) || (atomic_fetch_or(&said, 1u << what) & 1u << what) != 0)
        return;
    mc_log(WARNING,
           "this process has no keys: whoever reaches its port %u may %s. --auth_file or MC_AUTH_FILE lets in only who "
           "has a key; MC_PROTECTED_MODE=no if everybody may (docs/security.md)",
           (unsigned)port, offers[what]);
}
