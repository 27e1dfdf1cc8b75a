/* A store service: one process that lends memory to the pool, with HTTP beside it. mooncake_client and
 * mc_store_rest_server are it; they differ in their flags only.
 *
 * Order of its life: bind the ports (so that one in use is an error at once), join the cluster, listen (so that an open
 * port means ready), serve until SIGTERM or SIGINT, answer what is under way, leave the cluster.
 */
#ifndef MC_SERVICE_SERVICE_H
#define MC_SERVICE_SERVICE_H

#include "store/service/config.h"

/* A command's whole life; its exit code. */
int mc_service_main(enum mc_service_command command, int argc, char **argv);

#endif
