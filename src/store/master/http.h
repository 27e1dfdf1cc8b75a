/* The HTTP thread: one event loop that serves the admin port and, if wanted, the metadata port. Handlers run on it;
 * they may ask the core through mc_server_ask and nothing else of it.
 *
 * Invariant: memory that strangers can claim is bounded: connections, header and body sizes are limited, and when there
 * are too many connections those that were silent longest are closed.
 */
#ifndef MC_MASTER_HTTP_H
#define MC_MASTER_HTTP_H

#include "store/master/server.h"

#include <event2/http.h>

#define MC_HTTP_CONNECTIONS_MAX 256
#define MC_HTTP_HEADER_MAX 32768 /* bytes of a request without its body */
/* 1 MiB of value and something, so that a value a little too long gets a clear answer */
#define MC_HTTP_BODY_MAX (1088u << 10)
#define MC_HTTP_TIMEOUT_S 10 /* without progress */
#define MC_HTTP_ASK_MS 5000  /* wait for the core; then 503 */

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

/* ---- for the handlers ---- */

typedef void mc_http_handler(void *context, struct evhttp_request *request);
struct mc_http_route {
    enum evhttp_cmd_type method; /* GET also serves HEAD */
    const char *path;
    mc_http_handler *handler;
};
/* Finds the route; else answers 404 or 405. */
void mc_http_dispatch(const struct mc_http_route *routes, size_t count, void *context, struct evhttp_request *request);

/* Appends the decoded value of a parameter of the query; false when it is not there. */
bool mc_http_parameter(const struct evhttp_request *request, const char *name, struct mc_buffer *value);
/* Answers; the body is freed. */
void mc_http_reply(struct evhttp_request *request, int code, const char *type, struct mc_buffer *body);
void mc_http_reply_text(struct evhttp_request *request, int code, const char *type, const char *text);
/* {"success":false,"error_code":-704,"error_message":"OBJECT_NOT_FOUND"} with the HTTP code that belongs to it. */
void mc_http_reply_error(struct evhttp_request *request, int error);
/* Appends a JSON string with its quotes; what is not UTF-8 becomes U+FFFD. */
void mc_http_json_string(struct mc_buffer *out, const void *text, size_t length);

#define MC_HTTP_TEXT "text/plain; charset=utf-8"
#define MC_HTTP_JSON "application/json"

/* ---- the two servers ---- */

struct mc_admin;
/* metadata_port: where this process serves metadata, 0 when it does not. */
struct mc_admin *mc_admin_create(struct mc_server *server, const struct mc_master_config *config,
                                 uint16_t metadata_port);
void mc_admin_destroy(struct mc_admin *admin);
void mc_admin_handle(struct evhttp_request *request, void *admin);

/* The drain jobs of the admin port (admin_drain.c); each handler answers. */
struct mc_drain_jobs;
struct mc_drain_jobs *mc_drain_jobs_create(struct mc_server *server);
void mc_drain_jobs_destroy(struct mc_drain_jobs *jobs);
void mc_drain_job_create(struct mc_drain_jobs *jobs, struct evhttp_request *request);
void mc_drain_job_query(struct mc_drain_jobs *jobs, struct evhttp_request *request);
void mc_drain_job_cancel(struct mc_drain_jobs *jobs, struct evhttp_request *request);
void mc_drain_segment_status(struct mc_drain_jobs *jobs, struct evhttp_request *request);

struct mc_metadata_store;
/* most: bytes of all entries. base outlives it. */
struct mc_metadata_store *mc_metadata_create(struct event_base *base, size_t most);
void mc_metadata_destroy(struct mc_metadata_store *metadata);
void mc_metadata_handle(struct evhttp_request *request, void *metadata);

#endif
