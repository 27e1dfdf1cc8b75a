/* The HTTP ports: the admin port and, if wanted, the metadata port, of one server (web/web.h), which bounds what
 * strangers can claim. Each request runs on a thread of its own. */
#ifndef MC_MASTER_HTTP_SERVER_H
#define MC_MASTER_HTTP_SERVER_H

#include "store/master/server.h"

#define MC_HTTP_STOP_MS 500      /* for requests under way at the end: another master waits to lead */
#define MC_HTTP_HEADER_MAX 32768 /* bytes of a request without its body */
/* 1 MiB of value and something, so that a value a little too long gets a clear answer */
#define MC_HTTP_BODY_MAX (1088u << 10)

struct mc_http_server;

/* Listens on the ports of config and prepares everything. server NULL: a metadata server alone, without a master. 0, or
 * negative with a line in error. */
int mc_http_create(struct mc_server *server, const struct mc_master_config *config, struct mc_http_server **http,
                   char *error, size_t error_size);
/* Lets people in, and says so in the log. 0 or negative. */
int mc_http_start(struct mc_http_server *http);
/* Returns when all that were let in are gone. The server must answer or refuse questions until this returns. NULL is
 * allowed. */
void mc_http_destroy(struct mc_http_server *http);

#endif
