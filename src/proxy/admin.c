/* The proxy's own paths: one table of routes. What is in none of them and looks like an engine's path goes to a decode
 * instance. */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/keys.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define JSON_TYPE "application/json"
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

static const char *const role_names[] = {"prefill", "decode"};

/* Answers with it, and frees it. */
static void reply_json(struct mc_client *client, int status, struct mc_buffer *answer)
{
    mc_client_reply(client, status, JSON_TYPE, mc_span(answer->data, answer->length));
    mc_buffer_free(answer);
}

/* FastAPI's form of an error, which users of the original's admin calls know. */
static void reply_detail(struct mc_client *client, int status, const char *member, const char *text)
{
    struct mc_buffer answer = {0};
    struct mc_json_writer writer = {.out = &answer};
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_text(&writer, member, text);
    mc_json_end(&writer, '}');
    reply_json(client, status, &answer);
}

/* ---- what is there ---- */

static size_t count_usable(const struct mc_proxy *proxy, enum mc_proxy_role role)
{
    size_t count = 0;
    for (const struct mc_instance *at = proxy->instances.list[role]; at != NULL; at = at->next)
        count += at->state == MC_INSTANCE_UP && mc_instance_is_usable(at);
    return count;
}

static void describe(const struct mc_instance *at, struct mc_json_writer *out)
{
    enum mc_proxy_mode mode = at->address.mode;
    mc_json_begin(out, NULL, '{');
    mc_json_add_text(out, "type", role_names[at->role]);
    mc_json_add_text(out, "instance", at->address.name);
    mc_json_add_text(out, "state", mc_instance_state_name(at));
    mc_json_add_bool(out, "usable", mc_instance_is_usable(at));
    mc_json_add_text(out, "problem", at->problem);
    mc_json_add_number(out, "running", at->requests);
    mc_json_add_number(out, "requests", at->started);
    mc_json_add_number(out, "failed", at->failed);
    mc_json_add_number(out, "cancelled", at->cancelled);
    if (at->role == MC_PROXY_PREFILL) {
        mc_json_add_text(out, "mode", mc_proxy_mode_name(mode));
        if (mode == MC_PROXY_CONCURRENT || mode == MC_PROXY_ROOM)
            mc_json_add_number(out, "bootstrap_port", at->address.bootstrap_port);
        if (mode == MC_PROXY_CONCURRENT)
            mc_json_add_number(out, "data_parallel_size", at->rank_count);
    }
    mc_json_end(out, '}');
}

static void get_status(struct mc_client *client)
{
    static const char *const lists[] = {"prefill_nodes", "decode_nodes"};
    const struct mc_proxy *proxy = mc_client_proxy(client);
    const struct mc_instances *set = &proxy->instances;
    struct mc_buffer answer = {0};
    struct mc_json_writer out = {.out = &answer};
    mc_json_begin(&out, NULL, '{');
    mc_json_add_number(&out, "prefill_node_count", set->count[MC_PROXY_PREFILL]);
    mc_json_add_number(&out, "decode_node_count", set->count[MC_PROXY_DECODE]);
    for (int role = 0; role < 2; role++) {
        mc_json_begin(&out, lists[role], '[');
        for (const struct mc_instance *at = set->list[role]; at != NULL; at = at->next)
            mc_json_add_text(&out, NULL, at->address.name);
        mc_json_end(&out, ']');
    }
    mc_json_add_text(&out, "scheduling", proxy->config->policy->name);
    mc_json_add_text(&out, "model", proxy->config->model);
    mc_json_add_number(&out, "running", proxy->request_count);
    mc_json_begin(&out, "instances", '[');
    for (int role = 0; role < 2; role++)
        for (const struct mc_instance *at = set->list[role]; at != NULL; at = at->next)
            describe(at, &out);
    mc_json_end(&out, ']');
    mc_json_end(&out, '}');
    reply_json(client, 200, &answer);
}

static void reply_counts(struct mc_client *client, int status, const char *word, size_t prefill, size_t decode)
{
    struct mc_buffer answer = {0};
    struct mc_json_writer out = {.out = &answer};
    mc_json_begin(&out, NULL, '{');
    mc_json_add_text(&out, "status", word);
    mc_json_add_number(&out, "prefill_instances", prefill);
    mc_json_add_number(&out, "decode_instances", decode);
    mc_json_end(&out, '}');
    reply_json(client, status, &answer);
}

static void get_health(struct mc_client *client)
{
    struct mc_proxy *proxy = mc_client_proxy(client);
    size_t prefill = count_usable(proxy, MC_PROXY_PREFILL), decode = count_usable(proxy, MC_PROXY_DECODE);
    bool is_good = decode > 0 && (prefill > 0 || proxy->instances.count[MC_PROXY_PREFILL] == 0) && !proxy->is_draining;
    const char *word = is_good ? "ok" : proxy->is_draining ? "draining" : "unavailable";
    reply_counts(client, is_good ? 200 : 503, word, prefill, decode);
}

/* Answers 200 whatever the instances do: is the proxy itself alive? */
static void get_healthcheck(struct mc_client *client)
{
    const struct mc_instances *set = &mc_client_proxy(client)->instances;
    reply_counts(client, 200, "ok", set->count[MC_PROXY_PREFILL], set->count[MC_PROXY_DECODE]);
}

/* ---- metrics ---- */

static void write_histogram(struct mc_buffer *out, const char *name, const struct mc_instance *at,
                            const struct mc_proxy_histogram *histogram)
{
    char labels[MC_ADDRESS_MAX + 64];
    uint64_t sum = 0;
    (void)snprintf(labels, sizeof(labels), "role=\"%s\",instance=\"%s\"", role_names[at->role], at->address.name);
    for (size_t i = 0; i < MC_PROXY_BUCKETS; i++) {
        sum += histogram->buckets[i];
        mc_buffer_printf(out, "%s_bucket{%s,le=\"%g\"} %llu\n", name, labels, mc_histogram_bounds_ms[i] / 1000.0,
                         (unsigned long long)sum);
    }
    mc_buffer_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.3f\n%s_count{%s} %llu\n", name, labels,
                     (unsigned long long)histogram->count, name, labels, (double)histogram->sum_ms / 1000.0, name,
                     labels, (unsigned long long)histogram->count);
}

static uint64_t get_started(const struct mc_instance *at)
{
    return at->started;
}
static uint64_t get_failed(const struct mc_instance *at)
{
    return at->failed;
}
static uint64_t get_cancelled(const struct mc_instance *at)
{
    return at->cancelled;
}
static uint64_t get_running(const struct mc_instance *at)
{
    return at->requests;
}
static uint64_t get_up(const struct mc_instance *at)
{
    return at->state == MC_INSTANCE_UP && mc_instance_is_usable(at);
}

static const struct {
    const char *name, *type, *help;
    uint64_t (*get)(const struct mc_instance *at);
} instance_metrics[] = {
    {"mooncake_proxy_instance_requests_total", "counter", "Requests sent to the instance", get_started},
    {"mooncake_proxy_instance_errors_total", "counter", "Requests that the instance failed", get_failed},
    {"mooncake_proxy_instance_cancelled_total", "counter", "Requests taken back from the instance", get_cancelled},
    {"mooncake_proxy_instance_running", "gauge", "Requests under way at the instance", get_running},
    {"mooncake_proxy_instance_up", "gauge", "1: the instance gets requests", get_up},
};

static void write_instances(const struct mc_proxy *proxy, struct mc_buffer *out, const char *name,
                            uint64_t (*get)(const struct mc_instance *at), size_t histogram)
{
    for (int role = 0; role < 2; role++) {
        for (const struct mc_instance *at = proxy->instances.list[role]; at != NULL; at = at->next) {
            if (get != NULL)
                mc_buffer_printf(out, "%s{role=\"%s\",instance=\"%s\"} %llu\n", name, role_names[role],
                                 at->address.name, (unsigned long long)get(at));
            else
                write_histogram(out, name, at, histogram == 0 ? &at->whole : &at->first_byte);
        }
    }
}

static void get_metrics(struct mc_client *client)
{
    static const struct {
        const char *name, *help;
    } histograms[] = {
        {"mooncake_proxy_instance_request_seconds", "Time until the instance had answered whole"},
        {"mooncake_proxy_instance_first_byte_seconds", "Time until the first byte of the instance's answer"},
    };
    const struct mc_proxy *proxy = mc_client_proxy(client);
    const struct mc_proxy_totals *totals = &proxy->totals;
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } plain[] = {
        {"mooncake_proxy_connections_total", "counter", "Connections of clients", totals->connections},
        {"mooncake_proxy_connections", "gauge", "Connections of clients now", proxy->client_count},
        {"mooncake_proxy_requests_total", "counter", "Requests of clients", totals->requests},
        {"mooncake_proxy_requests_running", "gauge", "Requests under way", proxy->request_count},
        {"mooncake_proxy_requests_cancelled_total", "counter", "Clients that left before the end of their answer",
         totals->cancelled},
        {"mooncake_proxy_answers_broken_total", "counter", "Answers that ended in the middle", totals->broken},
        {"mooncake_proxy_requests_retried_total", "counter",
         "Requests sent to another instance after one that had not begun with them", totals->retried},
        {"mooncake_proxy_requests_refused_total", "counter", "Requests refused by a limit", totals->refused},
        {"mooncake_proxy_buffered_bytes", "gauge", "Bytes of requests under way", proxy->buffered},
        {"mooncake_proxy_uptime_seconds", "gauge", "Seconds since the start", (mc_clock_ms() - proxy->start_ms) / 1000},
    };
    struct mc_buffer out = {0};
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        mc_buffer_printf(&out, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", plain[i].name, plain[i].help, plain[i].name,
                         plain[i].type, plain[i].name, (unsigned long long)plain[i].value);
    mc_buffer_printf(&out, "# HELP mooncake_proxy_answers_total Answers by the class of their status\n"
                           "# TYPE mooncake_proxy_answers_total counter\n");
    for (int i = 2; i < 6; i++)
        mc_buffer_printf(&out, "mooncake_proxy_answers_total{class=\"%dxx\"} %llu\n", i,
                         (unsigned long long)totals->by_class[i]);
    for (size_t i = 0; i < sizeof(instance_metrics) / sizeof(instance_metrics[0]); i++) {
        mc_buffer_printf(&out, "# HELP %s %s\n# TYPE %s %s\n", instance_metrics[i].name, instance_metrics[i].help,
                         instance_metrics[i].name, instance_metrics[i].type);
        write_instances(proxy, &out, instance_metrics[i].name, instance_metrics[i].get, 0);
    }
    for (size_t i = 0; i < 2; i++) {
        mc_buffer_printf(&out, "# HELP %s %s\n# TYPE %s histogram\n", histograms[i].name, histograms[i].help,
                         histograms[i].name);
        write_instances(proxy, &out, histograms[i].name, NULL, i);
    }
    mc_client_reply(client, 200, METRICS_TYPE, mc_span(out.data, out.length));
    mc_buffer_free(&out);
}

/* ---- changes ---- */

struct change { /* an instance that is being looked at before it is added */
    struct mc_client *client;
    struct mc_candidate_check *check;
    struct mc_proxy_address address;
    enum mc_proxy_role role;
};

static bool is_key(const char *given, const char *wanted)
{
    size_t length = strlen(wanted);
    return strlen(given) == length && mc_key_equal(given, wanted, length);
}

static bool is_allowed(struct mc_client *client)
{
    const char *wanted = mc_client_proxy(client)->config->admin_key;
    if (mc_keys_are_wanted()) /* mc_proxy_refusal has looked at its right */
        return true;
    const char *given = mc_head_find(mc_client_head(client), "x-api-key");
    if (given == NULL)
        mc_client_reply(client, 422, JSON_TYPE,
                        mc_span_string("{\"detail\":[{\"type\":\"missing\",\"loc\":[\"header\",\"x-api-key\"],"
                                       "\"msg\":\"Field required\",\"input\":null}]}"));
    else if (wanted[0] == 0) {
        mc_log_limited(ERROR, "ADMIN_API_KEY is not set in the environment, so instances cannot be changed");
        reply_detail(client, 500, "detail", "Server configuration error.");
    } else if (!is_key(given, wanted)) {
        mc_log_limited(WARNING, "a change of instances with a wrong X-API-Key was refused");
        reply_detail(client, 403, "detail", "Forbidden: Invalid API Key.");
    } else {
        return true;
    }
    return false;
}

/* The member's text; nothing where it is not there, is no text, or too long for any that is right. */
static void take_text(struct mc_span object, const char *name, char *text, size_t size)
{
    struct mc_json_cursor member;
    if (mc_json_member(object, name, &member) != 1 || mc_json_text(&member, text, size) < 0)
        text[0] = 0;
}

/* {"type": "prefill", "instance": "host:port"[, "bootstrap_port": 8998][, "mode": "..."]}. NULL, or what is wrong. */
static const char *read_change(struct mc_client *client, struct change *change)
{
    struct evbuffer *content = mc_client_body(client);
    const struct mc_proxy *proxy = mc_client_proxy(client);
    struct mc_span body = mc_span(evbuffer_pullup(content, -1), evbuffer_get_length(content));
    struct mc_json_cursor member;
    char type[16] = "", name[MC_ADDRESS_MAX] = "", mode[16] = "", text[MC_OPTION_ERROR_MAX];
    int64_t port = 0;
    if (mc_json_member(body, "", &member) < 0)
        return "The body is not a JSON object.";
    take_text(body, "type", type, sizeof(type));
    take_text(body, "instance", name, sizeof(name));
    take_text(body, "mode", mode, sizeof(mode));
    if (strcmp(type, "prefill") != 0 && strcmp(type, "decode") != 0)
        return "Invalid instance type.";
    if (strchr(name, ':') == NULL)
        return "Invalid instance format.";
    if (mc_proxy_address_parse(&change->address, name, text, sizeof(text)) < 0)
        return "Invalid instance address.";
    bool has_port = mc_json_member(body, "bootstrap_port", &member) == 1;
    if (has_port && (mc_json_integer(&member, &port) < 0 || port < 1 || port > 65535))
        return "Invalid bootstrap port.";
    const struct mc_instance *first = proxy->instances.list[MC_PROXY_PREFILL];
    change->role = strcmp(type, "prefill") == 0 ? MC_PROXY_PREFILL : MC_PROXY_DECODE;
    if (has_port) {
        change->address.mode = MC_PROXY_CONCURRENT;
        change->address.bootstrap_port = (uint16_t)port;
    } else if (first != NULL) {
        change->address.mode = first->address.mode; /* instances of one cluster work the same way */
    }
    if (proxy->config->mode != MC_PROXY_AUTO)
        change->address.mode = proxy->config->mode;
    for (enum mc_proxy_mode i = MC_PROXY_STORE; i <= MC_PROXY_ROOM; i++)
        if (strcmp(mc_proxy_mode_name(i), mode) == 0)
            change->address.mode = i;
    return NULL;
}

static void on_change_gone(void *context)
{
    struct change *change = context;
    mc_check_candidate_cancel(change->check);
    free(change);
}

static void on_change_has_room(void *context)
{
    (void)context; /* the answer is in one piece */
}

static const struct mc_client_events change_events = {on_change_gone, on_change_has_room};

static void on_candidate(void *context, const char *problem)
{
    struct change *change = context;
    struct mc_client *client = change->client;
    struct mc_proxy *proxy = mc_client_proxy(client);
    char text[MC_ADDRESS_MAX + 64];
    mc_client_watch(client, NULL, NULL);
    if (problem == NULL && mc_instances_add(&proxy->instances, change->role, &change->address, &problem) != NULL) {
        mc_log(INFO, "added %s to the %s instances", change->address.name, role_names[change->role]);
        mc_check_all(proxy);
        (void)snprintf(text, sizeof(text), "Added %s to %s_instances.", change->address.name, role_names[change->role]);
        reply_detail(client, 200, "message", text);
    } else {
        reply_detail(client, 400, "detail", problem);
    }
    free(change);
}

static void post_add(struct mc_client *client)
{
    struct mc_proxy *proxy = mc_client_proxy(client);
    if (!is_allowed(client))
        return;
    struct change *change = calloc(1, sizeof(*change));
    const char *problem = change == NULL ? "No memory." : read_change(client, change);
    if (problem == NULL && mc_instances_find(&proxy->instances, change->role, change->address.name) != NULL)
        problem = "Instance already exists.";
    if (problem == NULL) {
        change->client = client;
        change->check = mc_check_candidate(proxy, &change->address, on_candidate, change);
        if (change->check == NULL)
            problem = "No memory.";
    }
    if (problem != NULL) {
        free(change);
        reply_detail(client, 400, "detail", problem);
        return;
    }
    mc_client_watch(client, &change_events, change);
}

static void post_remove(struct mc_client *client)
{
    struct mc_proxy *proxy = mc_client_proxy(client);
    struct change change = {0};
    char text[MC_ADDRESS_MAX + 64];
    if (!is_allowed(client))
        return;
    const char *problem = read_change(client, &change);
    struct mc_instance *instance =
        problem != NULL ? NULL : mc_instances_find(&proxy->instances, change.role, change.address.name);
    if (instance == NULL) {
        reply_detail(client, problem != NULL ? 400 : 404, "detail", problem != NULL ? problem : "No such instance.");
        return;
    }
    mc_instances_remove(&proxy->instances, instance);
    mc_log(INFO, "removed %s from the %s instances", change.address.name, role_names[change.role]);
    (void)snprintf(text, sizeof(text), "Removed %s from %s_instances.", change.address.name, role_names[change.role]);
    reply_detail(client, 200, "message", text);
}

/* ---- routes ---- */

static const struct {
    const char *path, *method;
    void (*handle)(struct mc_client *client);
    unsigned right; /* 0: everybody */
} routes[] = {
    {"/v1/completions", "POST", mc_relay_completion, MC_RIGHT_WRITE},
    {"/v1/chat/completions", "POST", mc_relay_completion, MC_RIGHT_WRITE},
    {"/generate", "POST", mc_relay_generate, MC_RIGHT_WRITE},
    {"/status", "GET", get_status, MC_RIGHT_READ},
    {"/health", "GET", get_health, 0},
    {"/healthcheck", "GET", get_healthcheck, 0},
    {"/metrics", "GET", get_metrics, MC_RIGHT_READ},
    {"/instances/add", "POST", post_add, MC_RIGHT_ADMIN},
    {"/instances/remove", "POST", post_remove, MC_RIGHT_ADMIN},
};
#define ROUTES (sizeof(routes) / sizeof(routes[0]))

/* What a client may ask an engine besides; not its development and administration. */
static const char *const passed[] = {"/v1/",   "/tokenize", "/detokenize", "/version",    "/ping",          "/pooling",
                                     "/score", "/rerank",   "/classify",   "/embeddings", "/get_model_info"};

/* ROUTES: none. */
static size_t route_of(const struct mc_head *head, size_t length)
{
    size_t route = 0;
    while (route < ROUTES &&
           (strlen(routes[route].path) != length || strncmp(routes[route].path, head->target, length) != 0))
        route++;
    return route;
}

int mc_proxy_refusal(const struct mc_head *head, bool is_known)
{
    size_t route = route_of(head, strcspn(head->target, "?"));
    unsigned right = route < ROUTES ? routes[route].right : MC_RIGHT_WRITE; /* what is passed on is work for engines */
    if (right == 0 || (is_known && !mc_keys_are_wanted()))
        return 0;
    if (!is_known)
        return 403;
    int status = mc_keys_origin_status(right, mc_head_find(head, "origin"), mc_head_find(head, "host"));
    return status != 0 ? status : mc_keys_http_status(mc_head_find(head, "authorization"), right);
}

void mc_proxy_dispatch(struct mc_client *client)
{
    const struct mc_head *head = mc_client_head(client);
    size_t length = strcspn(head->target, "?"), route = route_of(head, length);
    const char *method = strcmp(head->method, "HEAD") == 0 ? "GET" : head->method;
    if (route < ROUTES) {
        if (strcmp(routes[route].method, method) == 0)
            routes[route].handle(client);
        else
            mc_client_reply_error(client, 405, "MethodNotAllowedError", "%s wants %s", routes[route].path,
                                  routes[route].method);
        return;
    }
    for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        size_t size = strlen(passed[i]);
        if (strncmp(head->target, passed[i], size) == 0 && (passed[i][size - 1] == '/' || size == length)) {
            mc_relay_other(client);
            return;
        }
    }
    mc_client_reply_error(client, 404, "NotFoundError", "there is nothing at %.*s", length < 200 ? (int)length : 200,
                          head->target);
}
