/* For the handlers of HTTP requests (http_server.h), which run on threads of their own, many at a time: they may ask
 * the core through mc_server_ask and nothing else of it. */
#ifndef MC_MASTER_HTTP_H
#define MC_MASTER_HTTP_H

#include "env/json.h"
#include "env/keys.h"
#include "store/master/server.h"
#include "store/master/standbys.h"
#include "store/wire/tenant.h"
#include "web/web.h"

#include <pthread.h>

#define MC_HTTP_ASK_MS 5000 /* wait for the core; then 503 */

typedef void mc_http_handler(void *context, struct mc_web_request *request);
struct mc_http_route {
    const char *method; /* GET also serves HEAD */
    const char *path;
    mc_http_handler *handler;
    unsigned right; /* of enum mc_right, that who asks has to have where there are keys; 0: anybody may */
    bool is_own;    /* a tenant's key is told of that tenant: mc_http_scope; else it is let nowhere */
};
/* Finds the route; else answers 404 or 405. */
void mc_http_dispatch(const struct mc_http_route *routes, size_t count, void *context, struct mc_web_request *request);
/* The body, for mc_web_bytes_free. False after an answer: it is too long, or has not come. */
bool mc_http_body(struct mc_web_request *request, struct mc_web_bytes *body);

/* Appends the decoded value of a parameter of the query; false when it is not there. */
bool mc_http_parameter(const struct mc_web_request *request, const char *name, struct mc_buffer *value);
/* Of the tenant that the request is about: that of its key, else the one of its parameter tenant_id, else the default
 * one; with the stamp of its parameter stamp (a text), or none. False after an answer: that is no name, or no stamp, or
 * not for its key to say. is_said (may be NULL): one of these says it, or its key is kept to one tenant. */
bool mc_http_scope(struct mc_web_request *request, struct mc_scope *scope, bool *is_said);
/* Answers; the body is freed. */
void mc_http_reply(struct mc_web_request *request, int code, const char *type, struct mc_buffer *body);
void mc_http_reply_text(struct mc_web_request *request, int code, const char *type, const char *text);
/* {"success":false,"error_code":-704,"error_message":"OBJECT_NOT_FOUND"} with the HTTP code that belongs to it. */
void mc_http_reply_error(struct mc_web_request *request, int error);
/* "stamp": what is left of it, 32 hex digits; nothing of a key without one. */
void mc_http_json_stamp(struct mc_json_writer *writer, struct mc_span key);
/* Appends a JSON string with its quotes; what is not UTF-8 becomes U+FFFD. */
void mc_http_json_string(struct mc_buffer *out, const void *text, size_t length);
/* The same as a member or element. */
void mc_http_json_add(struct mc_json_writer *writer, const char *name, const void *text, size_t length);
/* The number that a parameter says, or `otherwise` when it is not there. False: it is none, or more than `most`. */
bool mc_http_number(const struct mc_web_request *request, const char *name, uint64_t otherwise, uint64_t most,
                    uint64_t *number);

#define MC_HTTP_TEXT MC_WEB_TEXT
#define MC_HTTP_JSON "application/json"

/* ---- the two servers ---- */

struct mc_admin;
/* metadata_port: where this process serves metadata, 0 when it does not. */
struct mc_admin *mc_admin_create(struct mc_server *server, const struct mc_master_config *config,
                                 uint16_t metadata_port);
void mc_admin_destroy(struct mc_admin *admin);
mc_web_handler mc_admin_handle;
mc_web_question mc_admin_is_quick;

/* The drain jobs of the admin port (admin_drain.c); each handler answers. */
struct mc_drain_jobs;
struct mc_drain_jobs *mc_drain_jobs_create(struct mc_server *server);
void mc_drain_jobs_destroy(struct mc_drain_jobs *jobs);
void mc_drain_job_create(struct mc_drain_jobs *jobs, struct mc_web_request *request);
void mc_drain_job_query(struct mc_drain_jobs *jobs, struct mc_web_request *request);
void mc_drain_job_cancel(struct mc_drain_jobs *jobs, struct mc_web_request *request);
void mc_drain_segment_status(struct mc_drain_jobs *jobs, struct mc_web_request *request);
void mc_drain_list(struct mc_drain_jobs *jobs, struct mc_web_request *request);
void mc_drain_undo(struct mc_drain_jobs *jobs, struct mc_web_request *request);
/* Adds the jobs as a list of that name, the latest first. */
void mc_drain_jobs_write(struct mc_drain_jobs *jobs, struct mc_json_writer *writer, const char *name);

/* The page (admin_page.c). */
mc_http_handler mc_page_index, mc_page_script;

/* What the page and `mooncake` ask (admin_view.c, admin_nodes.c, admin_keys.c, admin_history.c); each handler answers.
 */
struct mc_view {
    struct mc_server *server;
    struct mc_drain_jobs *drains;
    struct mc_history *history;   /* NULL: there is none */
    struct mc_events *events;     /* NULL: likewise */
    struct mc_slow *slow;         /* NULL: likewise */
    struct mc_standbys *standbys; /* NULL: likewise */
    uint64_t started_ms;
    bool is_ha, has_tenants;
};
void mc_view_overview(const struct mc_view *view, struct mc_web_request *request);
void mc_view_nodes(const struct mc_view *view, struct mc_web_request *request);
void mc_view_keys(const struct mc_view *view, struct mc_web_request *request);
void mc_view_key(const struct mc_view *view, struct mc_web_request *request);
void mc_view_history(const struct mc_view *view, struct mc_web_request *request);
void mc_view_slow(const struct mc_view *view, struct mc_web_request *request);
void mc_view_events(const struct mc_view *view, struct mc_web_request *request);
/* Of a role, as /role and /ha_status say it. */
const char *mc_view_role(const struct mc_election_role *role);
const char *mc_view_state(const struct mc_election_role *role);
/* "OK", "SUSPECT", "DRAINING"...; "ok", "slow"... */
const char *mc_view_segment_state(const struct mc_core_segment *segment);
const char *mc_view_disk_health(const struct mc_core_segment *disk);
/* All segments of memory, or all disks; *segments is the caller's to free. How many, or negative. */
int64_t mc_view_collect(struct mc_server *server, bool is_disks, struct mc_core_segment **segments);

/* Removal of everything, or of a tenant's (admin_remove.c); answers when it is done. */
void mc_remove_all(struct mc_server *server, struct mc_web_request *request);

/* Tenants on the admin port (admin_tenants.c); each handler answers. */
struct mc_quotas;
struct mc_tenant_admin {
    struct mc_server *server;
    struct mc_quotas *quotas; /* NULL: nothing is counted */
    bool has_quotas;          /* who has none puts nothing */
    pthread_mutex_t *change;  /* held by who changes one */
};
void mc_tenants_get(const struct mc_tenant_admin *admin, struct mc_web_request *request);
void mc_tenants_put(const struct mc_tenant_admin *admin, struct mc_web_request *request);
void mc_tenants_delete(const struct mc_tenant_admin *admin, struct mc_web_request *request);
/* Appends what /metrics says of them. */
void mc_tenants_metrics(struct mc_server *server, const struct mc_core_statistics *statistics, bool has_quotas,
                        struct mc_buffer *out);

/* KV events on the admin port (admin_kv.c); each answers. events NULL: there are none. */
struct mc_kv_events;
void mc_kv_status(struct mc_kv_events *events, struct mc_web_request *request);
void mc_kv_get(struct mc_kv_events *events, struct mc_web_request *request);
void mc_kv_snapshot(struct mc_server *server, struct mc_kv_events *events, struct mc_web_request *request);

/* The longest stored prefix of a list of keys (admin_prefix.c); answers. */
void mc_prefix_post(struct mc_server *server, struct mc_web_request *request);

/* Misses on the admin port (admin_misses.c); both answer. */
void mc_misses_get(struct mc_server *server, struct mc_web_request *request);
void mc_misses_why(struct mc_server *server, struct mc_web_request *request);
/* Appends what /metrics says of them. */
void mc_misses_metrics(struct mc_server *server, struct mc_buffer *out);

struct mc_metadata_store;
struct mc_metadata_store *mc_metadata_create(size_t most); /* bytes of all entries */
void mc_metadata_destroy(struct mc_metadata_store *metadata);
mc_web_handler mc_metadata_handle;
mc_web_question mc_metadata_is_quick;

#endif
