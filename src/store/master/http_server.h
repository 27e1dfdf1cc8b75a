/* The HTTP thread: one event loop that serves the admin port and, if wanted, the metadata port.
 *
 * Invariant: memory that strangers can claim is bounded: connections, header and body sizes are limited, and when there
 * are too many connections those that were silent longest are closed.
 */
#ifndef MC_MASTER_HTTP_SERVER_H
#define MC_MASTER_HTTP_SERVER_H

#include "store/master/server.h"

#define MC_HTTP_CONNECTIONS_MAX 1024
#define MC_HTTP_HEADER_MAX 32768 /* bytes of a request without its body */
/* 1 MiB of value and something, so that a value a little too long gets a clear answer */
#define MC_HTTP_BODY_MAX (1088u << 10)
#define MC_HTTP_TIMEOUT_S 10 /* without progress */

struct mc_http_server;

/* Listens on the ports of config and prepares everything. server NULL: a metadata server alone, without a master. 0, or
 * negative with a line in error. */
int mc_http_create(struct mc_server *server, const struct mc_master_config *config, struct mc_http_server **http,
                   char *error, size_t error_size);
/* Starts the thread, and says so in the log. 0 or negative. */
int mc_http_start(struct mc_http_server *http);
/* Stops and joins the thread if it runs. The server must answer or refuse questions until this returns. NULL is
 * allowed. */
void mc_http_destroy(struct mc_http_server *http);

#endif
