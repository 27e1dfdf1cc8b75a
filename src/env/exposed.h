/* What a port offers to whoever reaches it: said once, aloud, where nothing keeps anybody out. */
#ifndef MC_ENV_EXPOSED_H
#define MC_ENV_EXPOSED_H

#include <stdint.h>

enum mc_exposed {
    MC_EXPOSED_MASTER,
    MC_EXPOSED_ADMIN,
    MC_EXPOSED_METADATA,
    MC_EXPOSED_KV_EVENTS,
    MC_EXPOSED_NODE,
    MC_EXPOSED_REST,
    MC_EXPOSED_HEALTH,
    MC_EXPOSED_DUMMY,
    MC_EXPOSED_HANDSHAKES,
    MC_EXPOSED_ENGINE,
    MC_EXPOSED_PROXY,
    MC_EXPOSED_CONNECTOR, /* of an inference engine: ZMQ, which knows no certificates */
    MC_EXPOSED_COUNT
};

/* That port is bound. A warning, the first time in this process that one of its kind is: other machines may reach it,
 * and there are neither keys nor certificates that callers must show. Nothing where MC_PROTECTED_MODE says no: who set
 * that knows. After mc_keys_use. */
void mc_exposed_say(enum mc_exposed what, int listener);
/* The same of a port that somebody else has bound: host, the address. */
void mc_exposed_say_at(enum mc_exposed what, const char *host, uint16_t port);

#endif
