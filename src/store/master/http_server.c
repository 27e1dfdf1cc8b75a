/* The HTTP ports of a master, or of a metadata server alone. */
#include "store/master/http_server.h"

#include "base/error.h"
#include "env/exposed.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/master/http.h"

#include <stdio.h>
#include <stdlib.h>

struct mc_http_server {
    struct mc_web *web;
    struct mc_admin *admin;
    struct mc_metadata_store *metadata;
    int admin_fd, metadata_fd; /* -1: there is none */
    uint16_t metrics_port, metadata_port;
    char metadata_host[256];
};

int mc_http_create(struct mc_server *server, const struct mc_master_config *config, struct mc_http_server **out,
                   char *error, size_t error_size)
{
    int rc = 0;
    struct mc_http_server *http = calloc(1, sizeof(*http));
    if (http == NULL)
        return MC_ERR_NO_MEMORY;
    *http = (struct mc_http_server){.admin_fd = -1, .metadata_fd = -1};
    http->metrics_port = config->metrics_port;
    http->metadata_port = config->metadata_port;
    snprintf(http->metadata_host, sizeof(http->metadata_host), "%s", config->metadata_host);
    if (server != NULL)
        rc = http->admin_fd =
            mc_server_listen(config->metrics_host, &http->metrics_port, "metrics_port", error, error_size);
    if (rc >= 0 && config->metadata_enabled)
        rc = http->metadata_fd =
            mc_server_listen(config->metadata_host, &http->metadata_port,
                             server == NULL ? "port" : "http_metadata_server_port", error, error_size);
    if (rc >= 0) {
        http->web = mc_web_create(MC_HTTP_HEADER_MAX);
        http->metadata = mc_metadata_create(config->metadata_max_bytes);
        http->admin =
            server == NULL ? NULL : mc_admin_create(server, config, http->metadata_fd < 0 ? 0 : http->metadata_port);
        bool is_made = http->web != NULL && http->metadata != NULL && (http->admin == NULL) == (server == NULL);
        rc = is_made ? 0 : MC_ERR_NO_MEMORY;
        if (rc < 0)
            snprintf(error, error_size, "the HTTP servers cannot be set up: %s", mc_error_text(rc));
    }
    if (rc < 0) {
        mc_http_destroy(http);
        return rc;
    }
    *out = http;
    return 0;
}

int mc_http_start(struct mc_http_server *http)
{
    int rc = 0;
    if (http->admin_fd >= 0)
        rc = mc_web_serve(http->web, http->admin_fd, mc_admin_handle, mc_admin_is_quick, http->admin);
    if (rc == 0 && http->metadata_fd >= 0)
        rc = mc_web_serve(http->web, http->metadata_fd, mc_metadata_handle, mc_metadata_is_quick, http->metadata);
    if (rc < 0)
        return rc;
    if (http->admin_fd >= 0) {
        mc_log(INFO, "HTTP metrics server started on port %u", (unsigned)http->metrics_port);
        mc_log(INFO, "Master admin server started on port %u", (unsigned)http->metrics_port);
        mc_exposed_say(MC_EXPOSED_ADMIN, http->admin_fd);
    }
    if (http->metadata_fd >= 0) {
        mc_log(INFO, "HTTP metadata server started on %s:%u", http->metadata_host, (unsigned)http->metadata_port);
        mc_exposed_say(MC_EXPOSED_METADATA, http->metadata_fd);
    }
    return 0;
}

void mc_http_destroy(struct mc_http_server *http)
{
    if (http == NULL)
        return;
    while (http->web != NULL && !mc_web_stop(http->web, MC_HTTP_STOP_MS))
        mc_log(WARNING, "requests are still under way: waiting for them");
    mc_web_destroy(http->web);
    mc_metadata_destroy(http->metadata);
    mc_admin_destroy(http->admin);
    mc_fd_close(http->admin_fd);
    mc_fd_close(http->metadata_fd);
    free(http);
}
