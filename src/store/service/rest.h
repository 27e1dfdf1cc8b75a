/* The routes of a store service: /api/... for put, get and mounts; /health and /metrics. Bodies and codes are those
 * that clients of the original know; differences stand in docs/commands.md. */
#ifndef MC_SERVICE_REST_H
#define MC_SERVICE_REST_H

#include "mooncake.h"
#include "web/web.h"

#define MC_REST_HEAD_MAX 16384       /* bytes of a request without its body */
#define MC_REST_STOP_MS 5000         /* for requests under way when the server stops */
#define MC_REST_PUT_MAX (100u << 20) /* bytes of a PUT's body */
#define MC_REST_BODY_MAX 65536u      /* of the others */
#define MC_REST_GRACE_MAX_S 3600
#define MC_REST_MOUNT_STEP (16u << 20)

struct mc_rest {
    struct mc_store *store;
};

/* All routes; and only /health and /metrics. context: struct mc_rest. */
void mc_rest_handle(void *rest, struct mc_web_request *request);
void mc_rest_handle_health(void *rest, struct mc_web_request *request);
/* Is it one of those two, which must be answered while all else waits? */
bool mc_rest_is_quick(void *rest, struct mc_span path);

#endif
