/* mooncake_master: parse, build, run. */
#include "base/error.h"
#include "env/harden.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/spans.h"
#include "store/master/events.h"
#include "store/master/history.h"
#include "store/master/http_server.h"
#include "store/master/kv_events.h"
#include "store/master/kv_zmq.h"
#include "store/master/options.h"
#include "store/master/quotas.h"
#include "store/master/server.h"
#include "store/master/slow.h"
#include "store/master/standbys.h"

#include <signal.h>
#include <stdio.h>

/* What a master remembers of itself is not worth its life: without memory for it, it serves. */
static void remember(struct mc_master_config *config)
{
    config->history = mc_history_create();
    config->events = mc_events_create();
    config->slow = mc_slow_create();
    if (config->history == NULL || config->events == NULL || config->slow == NULL)
        mc_log(WARNING, "out of memory: there will be no history of this master, or no account of its events");
    if (config->has_kv_events)
        config->kv_events = mc_kv_events_create(config->kv_events_capacity, config->kv_events_backend);
    if (config->has_kv_events && config->kv_events == NULL)
        mc_log(WARNING, "out of memory: there will be no KV events; choose a smaller kv_events_queue_capacity");
}

/* As the original: without a place to publish at, it serves. */
static struct mc_kv_zmq *publish(const struct mc_master_config *config)
{
    struct mc_kv_zmq *zmq = NULL;
    struct mc_kv_form form = {config->kv_events_legacy, config->kv_events_object_key,
                              strcmp(config->kv_events_format, "engine") == 0, config->kv_events_backend};
    char error[MC_OPTION_ERROR_MAX] = "";
    if (config->kv_events == NULL || config->kv_events_endpoint[0] == 0)
        return NULL;
    if (mc_keys_are_wanted() || mc_secure_is_served())
        mc_log(WARNING, "KV events are not published by ZMQ: it knows neither keys nor TLS; they are read over HTTP");
    else if (mc_kv_zmq_start(config->kv_events, &form, config->kv_events_endpoint, config->kv_events_replay, &zmq,
                             error, sizeof(error)) < 0)
        mc_log(WARNING, "KV events are not published by ZMQ: %s", error[0] != 0 ? error : "out of memory");
    return zmq;
}

static int serve(struct mc_master_config *config, char *error, size_t error_size)
{
    struct mc_server *server = NULL;
    struct mc_http_server *http = NULL;
    int rc = config->harden ? mc_harden(error, error_size) : 0;
    mc_keys_use(config->auth_file);
    if (rc == 0)
        rc = mc_keys_check(error, error_size);
    if (rc == 0)
        rc = mc_secure_check(true, error, error_size);
    if (rc == 0 && config->pod_name[0] != 0)
        rc = mc_pod_create(config->pod_space, config->pod_name, &config->pod, error, error_size);
    config->pod_lead = config->pod == NULL ? NULL : mc_pod_lead;
    if (rc == 0)
        mc_spans_start("mooncake_master");
    if (rc == 0)
        rc = mc_server_create(config, &server, error, error_size);
    if (rc < 0) {
        mc_spans_end();
        mc_pod_destroy(config->pod);
        return rc;
    }
    config->standbys = mc_standbys_start(config, server);
    rc = mc_http_create(server, config, &http, error, error_size);
    if (rc == 0) {
        mc_log(INFO, "%s", config->start);
        mc_log(INFO, "Master service started on port %u", (unsigned)mc_server_port(server));
        rc = mc_http_start(http);
        if (rc == 0)
            rc = mc_quotas_start(config->quotas, server);
        if (rc < 0)
            snprintf(error, error_size, "a thread cannot be started");
    }
    struct mc_kv_zmq *zmq = rc == 0 ? publish(config) : NULL;
    if (rc == 0)
        rc = mc_server_run(server);
    mc_kv_zmq_stop(zmq);
    mc_pod_lead(config->pod, false); /* while the leadership is given back */
    mc_quotas_stop(config->quotas);
    mc_http_destroy(http);
    mc_standbys_stop(config->standbys); /* waited for when the leadership is given back */
    mc_server_destroy(server);
    mc_standbys_destroy(config->standbys);
    mc_spans_end();
    mc_pod_destroy(config->pod);
    return rc;
}

int main(int argc, char **argv)
{
    struct mc_master_config config;
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = mc_master_config_load(argc, argv, &config, &text, error, sizeof(error));
    if (rc > 0) {
        bool is_written = fwrite(text.data, 1, text.length, stdout) == text.length && fflush(stdout) == 0;
        mc_buffer_free(&text);
        return is_written ? 0 : 1;
    }
    if (rc == 0 && config.core.tenants)
        rc = mc_quotas_create(config.quota_file, config.quotas_in_etcd ? config.cluster_id : NULL, &config.quotas,
                              error, sizeof(error));
    config.core_made = rc == 0 && config.quotas != NULL ? mc_quotas_apply : NULL;
    if (rc == 0) {
        remember(&config);
        rc = serve(&config, error, sizeof(error));
        mc_history_destroy(config.history);
        mc_events_destroy(config.events);
        mc_slow_destroy(config.slow);
        mc_kv_events_destroy(config.kv_events);
    }
    if (rc <= 0)
        mc_quotas_destroy(config.quotas);
    if (rc < 0)
        fprintf(stderr, "mooncake_master: %s\n", error[0] != 0 ? error : mc_error_text(rc));
    mc_buffer_free(&text);
    return rc < 0 ? 1 : 0;
}
