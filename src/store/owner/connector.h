/* Connecting without holding up a loop: a thread of its own resolves and connects (a name server may take seconds), the
 * result comes as a post. The thread shares nothing with its starter but the connector, so a starter may give up at any
 * time. */
#ifndef MC_OWNER_CONNECTOR_H
#define MC_OWNER_CONNECTOR_H

#include "store/segment/serve.h"

struct mc_connector;

/* near: the unix socket of a master of this machine, which is tried first, for a quarter of the time; NULL: none.
 * address: as mc_master_connect takes it, an election too. Tries to connect for timeout_ms after the name is resolved.
 * done gets a descriptor or a negative error, on the serve thread; the connector is gone then. errno is EPROTO if the
 * master had taken the connection, but neither TLS nor keys were done with in time. NULL: no memory, no thread. */
struct mc_connector *mc_connector_start(struct mc_serve *serve, const char *near, const char *address,
                                        uint32_t timeout_ms, void (*done)(void *context, int fd), void *context);
/* done is not called any more. Serve thread only, and not after done. */
void mc_connector_abandon(struct mc_connector *connector);

#endif
