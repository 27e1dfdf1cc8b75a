/* The admin port: metrics, health, and questions about objects and segments. Each request runs on a thread of its own
 * and asks the core in slices of well under 1 ms. */
#include "base/error.h"
#include "env/clock.h"
#include "env/socket.h"
#include "env/spans.h"
#include "env/tls.h"
#include "store/master/http.h"
#include "store/master/metrics.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEYS_PER_SLICE 1024u /* slots that the core looks at for one question */
#define QUERIES_PER_SLICE 64u
#define QUERY_KEYS_MAX 1024u    /* keys of one /batch_query_keys */
#define CHUNK_BYTES (64u << 10) /* of a long listing on its way */
#define SUMMARY_WINDOW_MS 1000u /* rates are computed over at least this */
#define HEALTH_ASK_MS 1000u     /* a probe should not hang */

extern const unsigned char mc_web_openapi[]; /* docs/openapi-master.json */
extern const size_t mc_web_openapi_size;

struct mc_admin {
    struct mc_server *server;
    uint64_t started_ms;
    pthread_mutex_t lock; /* of the next; a question is asked under it */
    struct mc_metrics_window window;
    pthread_mutex_t quota_change;
    struct mc_drain_jobs *drains;
    struct mc_kv_events *kv_events;
    struct mc_tenant_admin tenants;
    struct mc_view view;
    bool is_ha;
    uint16_t metadata_port;
};

struct mc_admin *mc_admin_create(struct mc_server *server, const struct mc_master_config *config,
                                 uint16_t metadata_port)
{
    struct mc_admin *admin = calloc(1, sizeof(*admin));
    if (admin == NULL)
        return NULL;
    admin->drains = mc_drain_jobs_create(server);
    if (admin->drains == NULL) {
        free(admin);
        return NULL;
    }
    admin->server = server;
    pthread_mutex_init(&admin->lock, NULL);
    pthread_mutex_init(&admin->quota_change, NULL);
    admin->tenants = (struct mc_tenant_admin){server, config->quotas, config->core.quotas, &admin->quota_change};
    admin->started_ms = mc_clock_ms();
    admin->is_ha = config->ha_enabled;
    admin->view = (struct mc_view){.server = server,
                                   .drains = admin->drains,
                                   .history = config->history,
                                   .events = config->events,
                                   .slow = config->slow,
                                   .standbys = config->standbys,
                                   .started_ms = admin->started_ms,
                                   .is_ha = config->ha_enabled,
                                   .has_tenants = config->quotas != NULL};
    admin->metadata_port = metadata_port;
    admin->kv_events = config->kv_events;
    return admin;
}

void mc_admin_destroy(struct mc_admin *admin)
{
    if (admin == NULL)
        return;
    mc_drain_jobs_destroy(admin->drains);
    pthread_mutex_destroy(&admin->quota_change);
    pthread_mutex_destroy(&admin->lock);
    free(admin);
}

static int ask(const struct mc_admin *admin, mc_question *function, void *argument)
{
    return mc_server_ask(admin->server, function, argument, MC_HTTP_ASK_MS);
}

/* ---- what is asked of the core ---- */

static void ask_statistics(struct mc_core *core, void *argument)
{
    mc_core_statistics(core, argument);
}

#define ACCUSERS_MAX 64u
struct accusers {
    struct mc_core_accuser list[ACCUSERS_MAX];
    size_t count;
};

static void ask_accusers(struct mc_core *core, void *argument)
{
    struct accusers *accusers = argument;
    accusers->count = mc_core_accusers(core, accusers->list, ACCUSERS_MAX);
}

#define OFF_MAX 64u
struct disks_off {
    struct mc_core_disks_off list[OFF_MAX];
    size_t count;
};

static void ask_disks_off(struct mc_core *core, void *argument)
{
    struct disks_off *off = argument;
    off->count = mc_core_disks_off(core, off->list, OFF_MAX);
}

/* As mc_view_collect; negative: answered. */
static int64_t collect(const struct mc_admin *admin, struct mc_web_request *request, bool is_disks,
                       struct mc_core_segment **segments)
{
    int64_t count = mc_view_collect(admin->server, is_disks, segments);
    if (count < 0)
        mc_http_reply_error(request, (int)count);
    return count;
}

static int64_t collect_segments(const struct mc_admin *admin, struct mc_web_request *request,
                                struct mc_core_segment **segments)
{
    return collect(admin, request, false, segments);
}

struct key_slice {
    uint64_t cursor;
    bool has_more, is_scoped;
    struct mc_scope scope;
    struct mc_buffer *text;
};

/* A key is bytes: one with a line break in it must not look like two. */
static void write_key(void *context, struct mc_span key, uint64_t length)
{
    const struct key_slice *slice = context;
    struct mc_buffer *text = slice->text;
    (void)length;
    if (slice->is_scoped && !mc_scope_has(&slice->scope, key))
        return;
    if (slice->is_scoped || mc_key_scope(key).length == 0)
        key = mc_key_local(key);
    const char *at = key.data;
    bool is_plain = memchr(at, '\n', key.length) == NULL && memchr(at, '\r', key.length) == NULL;
    if (is_plain && memchr(at, 0, key.length) == NULL) {
        mc_buffer_append(text, at, key.length);
    } else {
        for (size_t i = 0; i < key.length; i++) {
            if (at[i] == '\n' || at[i] == '\r' || at[i] == 0)
                mc_buffer_printf(text, "%%%02X", (unsigned)at[i]);
            else
                mc_buffer_put_u8(text, (uint8_t)at[i]);
        }
    }
    mc_buffer_put_u8(text, '\n');
}

static void ask_keys(struct mc_core *core, void *argument)
{
    struct key_slice *slice = argument;
    slice->has_more = mc_core_keys(core, &slice->cursor, KEYS_PER_SLICE, write_key, slice);
}

struct query {
    struct mc_span key; /* as the tenant names it */
    struct mc_scope scope;
    int count; /* of replicas, or an error */
    struct mc_core_replica replicas[MC_REPLICA_COUNT_MAX];
    char endpoints[MC_REPLICA_COUNT_MAX][MC_ADDRESS_MAX];
    struct mc_id owners[MC_REPLICA_COUNT_MAX];
};
struct query_slice {
    struct query *queries;
    size_t count;
};

static int query_full(const struct mc_core *core, struct query *query)
{
    uint8_t key[MC_KEY_LENGTH_MAX];
    size_t length = query->scope.length + query->key.length;
    if (query->key.length == 0 || length > MC_KEY_LENGTH_MAX)
        return MC_ERR_OBJECT_NOT_FOUND;
    memcpy(key, query->scope.bytes, query->scope.length);
    memcpy(key + query->scope.length, query->key.data, query->key.length);
    return mc_core_query(core, mc_span(key, length), query->replicas, MC_REPLICA_COUNT_MAX);
}

static void ask_queries(struct mc_core *core, void *argument)
{
    struct query_slice *slice = argument;
    for (size_t i = 0; i < slice->count; i++) {
        struct query *query = &slice->queries[i];
        query->count = query_full(core, query);
        if (query->count > MC_REPLICA_COUNT_MAX)
            query->count = MC_REPLICA_COUNT_MAX;
        for (int j = 0; j < query->count; j++) {
            struct mc_core_segment segment;
            bool is_there = mc_core_segment(core, query->replicas[j].segment, &segment);
            const char *endpoint = !is_there ? "" : segment.tcp_address[0] != 0 ? segment.tcp_address : segment.name;
            snprintf(query->endpoints[j], sizeof(query->endpoints[j]), "%s", endpoint);
            query->owners[j] = is_there ? segment.owner : (struct mc_id){0, 0};
        }
    }
}

/* ---- metrics and health ---- */

static uint64_t resident_bytes(void)
{
    char text[128];
    unsigned long long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    mc_fd_close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    if (sscanf(text, "%*u %llu", &pages) != 1)
        return 0;
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void get_metrics(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_core_statistics statistics;
    struct mc_core_segment *segments = NULL;
    struct mc_buffer text = {.may_fail = true};
    struct accusers accusers = {.count = 0};
    int rc = ask(admin, ask_statistics, &statistics);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
        return;
    }
    int64_t count = collect_segments(admin, request, &segments);
    if (count < 0)
        return;
    if (ask(admin, ask_accusers, &accusers) < 0)
        accusers.count = 0; /* the page is worth more than that line */
    const struct mc_tls_counts tls = mc_tls_counts();
    struct mc_standby standbys[MC_STANDBYS_MAX];
    bool is_known;
    size_t standby_count = mc_standbys_read(admin->view.standbys, standbys, &is_known);
    const struct mc_spans_counts spans = mc_spans_counts();
    struct mc_metrics_extra extra = {resident_bytes(),
                                     (mc_clock_ms() - admin->started_ms) / 1000,
                                     mc_server_epoch(admin->server),
                                     mc_server_longest_turn_ns(admin->server),
                                     accusers.list,
                                     accusers.count,
                                     tls.served,
                                     tls.served_resumed,
                                     standby_count,
                                     is_known,
                                     spans.sent,
                                     spans.dropped};
    mc_metrics_text(&text, &statistics, segments, (size_t)count, &extra);
    free(segments);
    mc_misses_metrics(admin->server, &text);
    if (admin->tenants.quotas != NULL)
        mc_tenants_metrics(admin->server, &statistics, admin->tenants.has_quotas, &text);
    mc_http_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
}

static void get_summary(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_core_statistics statistics;
    struct mc_buffer text = {.may_fail = true};
    struct mc_election_role role;
    pthread_mutex_lock(&admin->lock); /* each move is later than the one before */
    int rc = ask(admin, ask_statistics, &statistics);
    uint64_t now_ms = mc_clock_ms();
    if (rc == 0 && now_ms - admin->window.last_ms >= SUMMARY_WINDOW_MS)
        mc_metrics_window_move(&admin->window, &statistics, now_ms);
    struct mc_metrics_window window = admin->window;
    pthread_mutex_unlock(&admin->lock);
    if (rc < 0 && rc != MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS) {
        mc_http_reply_error(request, rc);
        return;
    }
    mc_server_describe(admin->server, &role);
    mc_buffer_printf(&text, "role=%s, state=%s, service_ready=%s, master={", mc_view_role(&role), mc_view_state(&role),
                     rc == 0 ? "true" : "false");
    if (rc == 0)
        mc_metrics_summary(&text, &statistics, &window);
    mc_buffer_printf(&text, "}, ha={%s}, leader=%s, view_version=%llu\n", admin->is_ha ? "enabled" : "disabled",
                     role.leader, (unsigned long long)role.leader_epoch);
    mc_http_reply(request, 200, MC_HTTP_TEXT, &text);
}

/* Answers with the JSON object begun in `text`, and in it who leads. */
static void reply_leader(struct mc_web_request *request, const struct mc_election_role *role, struct mc_buffer *text)
{
    mc_buffer_printf(text, ",\"leader_address\":");
    mc_http_json_string(text, role->leader, strlen(role->leader));
    mc_buffer_printf(text, ",\"view_version\":%llu}", (unsigned long long)role->leader_epoch);
    mc_http_reply(request, 200, MC_HTTP_JSON, text);
}

static void get_health(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_buffer text = {.may_fail = true};
    struct mc_election_role role;
    struct mc_core_statistics statistics;
    int rc = mc_server_ask_first(admin->server, ask_statistics, &statistics, HEALTH_ASK_MS);
    mc_server_describe(admin->server, &role);
    /* A standby is well when it can see who leads, or that nobody does. */
    bool is_ready = rc == 0, is_well = is_ready || (role.epoch == 0 && role.has_contact);
    mc_buffer_printf(&text,
                     "{\"status\":\"%s\",\"role\":\"%s\",\"ha_state\":\"%s\",\"service_ready\":%s,\"metadata_port\":%u",
                     is_well ? "ok" : "busy", mc_view_role(&role), mc_view_state(&role), is_ready ? "true" : "false",
                     (unsigned)admin->metadata_port);
    if (is_ready) /* a disk that ails is no reason to restart a master: it is only said */
        mc_buffer_printf(&text,
                         ",\"disks\":{\"mounted\":%llu,\"absent\":%llu,\"slow\":%llu,\"read_only\":%llu,\"off\":%llu}",
                         (unsigned long long)statistics.disks, (unsigned long long)statistics.disks_absent,
                         (unsigned long long)statistics.disks_slow, (unsigned long long)statistics.disks_read_only,
                         (unsigned long long)statistics.disks_off);
    reply_leader(request, &role, &text);
}

static void get_role(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_election_role role;
    mc_server_describe(admin->server, &role);
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, mc_view_role(&role));
}

static void get_ha_status(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_election_role role;
    mc_server_describe(admin->server, &role);
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, mc_view_state(&role));
}

static void get_leader(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_buffer text = {.may_fail = true};
    struct mc_election_role role;
    mc_server_describe(admin->server, &role);
    mc_buffer_printf(&text, "{\"present\":%s", role.leader[0] != 0 ? "true" : "false");
    reply_leader(request, &role, &text);
}

static void get_openapi(void *context, struct mc_web_request *request)
{
    struct mc_buffer text = {0};
    (void)context;
    mc_buffer_append(&text, mc_web_openapi, mc_web_openapi_size);
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* ---- objects ---- */

static void write_replicas(struct mc_buffer *text, const struct query *query)
{
    const char *comma = "";
    mc_buffer_printf(text, "[");
    for (int i = 0; i < query->count; i++) {
        if (query->replicas[i].is_on_disk)
            continue;
        mc_buffer_printf(
            text, "%s{\"size_\":%llu,\"buffer_address_\":%llu,\"protocol_\":\"tcp\",\"transport_endpoint_\":", comma,
            (unsigned long long)query->replicas[i].length, (unsigned long long)query->replicas[i].offset);
        mc_http_json_string(text, query->endpoints[i], strlen(query->endpoints[i]));
        mc_buffer_printf(text, "}");
        comma = ",";
    }
    mc_buffer_printf(text, "]");
}

static void write_disk_replicas(struct mc_buffer *text, const struct query *query)
{
    const char *comma = "";
    mc_buffer_printf(text, "[");
    for (int i = 0; i < query->count; i++) {
        if (!query->replicas[i].is_on_disk)
            continue;
        mc_buffer_printf(text, "%s{\"client_id\":\"%llu-%llu\",\"object_size\":%llu,\"transport_endpoint\":", comma,
                         (unsigned long long)query->owners[i].high, (unsigned long long)query->owners[i].low,
                         (unsigned long long)query->replicas[i].length);
        mc_http_json_string(text, query->endpoints[i], strlen(query->endpoints[i]));
        mc_buffer_printf(text, "}");
        comma = ",";
    }
    mc_buffer_printf(text, "]");
}

static void query_key(void *context, struct mc_web_request *request)
{
    struct mc_admin *admin = context;
    struct mc_buffer key = {.may_fail = true}, text = {.may_fail = true};
    struct query query = {0};
    struct query_slice slice = {&query, 1};
    if (!mc_http_scope(request, &query.scope, NULL))
        return;
    int rc = mc_http_parameter(request, "key", &key) && key.length > 0 ? 0
             : key.failed                                              ? MC_ERR_NO_MEMORY
                                                                       : MC_ERR_INVALID_PARAMS;
    query.key = mc_span(key.data, key.length);
    if (rc == 0)
        rc = ask(admin, ask_queries, &slice);
    mc_buffer_free(&key);
    if (rc < 0 || query.count < 0) {
        mc_http_reply_error(request, rc < 0 ? rc : query.count);
        return;
    }
    mc_buffer_printf(&text, "{\"success\":true,\"data\":");
    write_replicas(&text, &query);
    mc_buffer_printf(&text, "}");
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

static void write_answer(struct mc_buffer *text, const struct query *query, bool is_first)
{
    bool is_found = query->count >= 0;
    mc_buffer_printf(text, is_first ? "" : ",");
    mc_http_json_string(text, query->key.data, query->key.length);
    mc_buffer_printf(
        text, is_found ? ":{\"ok\":true,\"error\":null,\"values\":" : ":{\"ok\":false,\"error\":\"%s\",\"values\":",
        mc_error_name(query->count));
    write_replicas(text, query); /* none of what was not found */
    mc_buffer_printf(text, ",\"disk_values\":[],\"local_disk_values\":");
    write_disk_replicas(text, query);
    mc_buffer_printf(text, ",\"nof_values\":[]}");
}

static int compare_keys(const void *a, const void *b)
{
    const struct mc_span *x = a, *y = b;
    size_t length = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->data, y->data, length);
    return order != 0 ? order : (x->length > y->length) - (x->length < y->length);
}

/* Splits at commas; sorted and without the second of two equal ones, because a JSON object has each name once.
 * Negative: too many. */
static int64_t split_keys(const struct mc_buffer *list, struct mc_span *keys)
{
    size_t count = 0, unique = 0;
    for (size_t from = 0; from < list->length;) { /* an empty list may lie nowhere */
        const uint8_t *at = list->data + from, *comma = memchr(at, ',', list->length - from);
        size_t length = comma == NULL ? list->length - from : (size_t)(comma - at);
        if (length > 0) {
            if (count == QUERY_KEYS_MAX)
                return MC_ERR_INVALID_PARAMS;
            keys[count++] = mc_span(at, length);
        }
        from += length + 1;
    }
    qsort(keys, count, sizeof(keys[0]), compare_keys);
    for (size_t i = 0; i < count; i++) {
        if (unique == 0 || !mc_span_equal(keys[unique - 1], keys[i]))
            keys[unique++] = keys[i];
    }
    return (int64_t)unique;
}

static int answer_keys(const struct mc_admin *admin, const struct mc_scope *scope, const struct mc_span *keys,
                       size_t count, struct mc_buffer *text)
{
    struct query *queries = calloc(QUERIES_PER_SLICE, sizeof(*queries));
    int rc = queries == NULL ? MC_ERR_NO_MEMORY : 0;
    for (size_t from = 0; rc == 0 && from < count; from += QUERIES_PER_SLICE) {
        struct query_slice slice = {queries, count - from < QUERIES_PER_SLICE ? count - from : QUERIES_PER_SLICE};
        for (size_t i = 0; i < slice.count; i++) {
            queries[i].key = keys[from + i];
            queries[i].scope = *scope;
        }
        rc = ask(admin, ask_queries, &slice);
        for (size_t i = 0; rc == 0 && i < slice.count; i++)
            write_answer(text, &queries[i], from + i == 0);
    }
    free(queries);
    return rc;
}

static void query_keys(void *context, struct mc_web_request *request)
{
    struct mc_buffer list = {.may_fail = true}, text = {.may_fail = true};
    struct mc_scope scope;
    if (!mc_http_scope(request, &scope, NULL))
        return;
    struct mc_span *keys = calloc(QUERY_KEYS_MAX, sizeof(*keys));
    bool is_given = mc_http_parameter(request, "keys", &list);
    int64_t count = keys == NULL ? MC_ERR_NO_MEMORY : split_keys(&list, keys);
    if (list.failed) {
        mc_http_reply_error(request, MC_ERR_NO_MEMORY);
    } else if (!is_given || count == 0) {
        mc_http_reply_text(request, 400, MC_HTTP_JSON,
                           "{\"success\":false,\"error\":\"No keys provided. Use ?keys=key1,key2,...\"}");
    } else if (count < 0) {
        mc_http_reply_text(request, 400, MC_HTTP_JSON,
                           "{\"success\":false,\"error\":\"Too many keys; at most 1024 at once.\"}");
    } else {
        mc_buffer_printf(&text, "{\"success\":true,\"data\":{");
        int rc = answer_keys(context, &scope, keys, (size_t)count, &text);
        mc_buffer_printf(&text, "}}");
        if (rc < 0)
            mc_http_reply_error(request, rc);
        else
            mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    mc_buffer_free(&text);
    mc_buffer_free(&list);
    free(keys);
}

/* ---- the listing of all keys, which may be longer than memory ---- */

/* Appends about a chunk's keys. */
static int listing_fill(const struct mc_admin *admin, struct key_slice *slice)
{
    int rc = 0;
    while (rc == 0 && slice->has_more && slice->text->length < CHUNK_BYTES) {
        rc = ask(admin, ask_keys, slice);
        if (slice->text->failed)
            rc = MC_ERR_NO_MEMORY;
    }
    return rc;
}

/* The rest of it, of which no more than one chunk is in memory. */
static int listing_go_on(const struct mc_admin *admin, struct mc_web_request *request, struct key_slice *slice)
{
    int rc = 0;
    while (rc == 0 && slice->text->length > 0) {
        if (!mc_web_reply_part(request, slice->text->data, slice->text->length))
            return MC_ERR_RPC_FAIL;
        slice->text->length = 0;
        rc = listing_fill(admin, slice);
    }
    return rc;
}

static void get_all_keys(void *context, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct key_slice slice = {.has_more = true, .text = &text};
    if (!mc_http_scope(request, &slice.scope, &slice.is_scoped))
        return;
    int rc = listing_fill(context, &slice);
    if (rc < 0) {
        mc_buffer_free(&text);
        mc_http_reply_error(request, rc);
    } else if (!slice.has_more) {
        mc_http_reply(request, 200, MC_HTTP_TEXT, &text);
    } else {
        if (mc_web_reply_begin(request, 200, MC_HTTP_TEXT) && !request->is_head)
            rc = listing_go_on(context, request, &slice);
        mc_web_reply_end(request, rc == 0); /* half a list must not look like a whole one */
        mc_buffer_free(&text);
    }
}

/* ---- segments ---- */

static void get_all_segments(void *context, struct mc_web_request *request)
{
    struct mc_core_segment *segments = NULL;
    struct mc_buffer text = {.may_fail = true};
    int64_t count = collect_segments(context, request, &segments);
    if (count < 0)
        return;
    for (int64_t i = 0; i < count; i++) {
        if (segments[i].state != 2)
            mc_buffer_printf(&text, "%s\n", segments[i].name);
    }
    free(segments);
    mc_http_reply(request, 200, MC_HTTP_TEXT, &text);
}

static void write_human(struct mc_buffer *text, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    mc_buffer_printf(text, unit == 0 ? "\"%.0f %s\"" : "\"%.3f %s\"", value, units[unit]);
}

static void write_segment(struct mc_buffer *text, const struct mc_core_segment *segment)
{
    double percent = segment->capacity == 0 ? 0 : 100 * (double)segment->used / (double)segment->capacity;
    mc_buffer_printf(text, "{\"segment_name\":");
    mc_http_json_string(text, segment->name, strlen(segment->name));
    mc_buffer_printf(text,
                     ",\"segment_id\":\"%llu-%llu\",\"client_id\":\"%llu-%llu\",\"base_address\":\"0x0\",\"size_"
                     "bytes\":%llu,\"size_human\":",
                     (unsigned long long)segment->segment_id.high, (unsigned long long)segment->segment_id.low,
                     (unsigned long long)segment->owner.high, (unsigned long long)segment->owner.low,
                     (unsigned long long)segment->capacity);
    write_human(text, segment->capacity);
    mc_buffer_printf(text, ",\"te_endpoint\":");
    mc_http_json_string(text, segment->tcp_address, strlen(segment->tcp_address));
    mc_buffer_printf(
        text,
        ",\"protocol\":\"tcp\",\"status\":\"%s\",\"allocator_used_bytes\":%llu,\"allocator_capacity_bytes\":%llu,"
        "\"allocator_usage_percent\":%.2f,\"populated_bytes\":%llu,\"objects\":%u,\"slots\":%u,\"build\":\"%s\"}",
        mc_view_segment_state(segment), (unsigned long long)segment->used, (unsigned long long)segment->capacity,
        percent, (unsigned long long)segment->populated, segment->objects, segment->slot_count, segment->build);
}

static void write_disk(struct mc_buffer *text, const struct mc_core_segment *disk)
{
    double percent = disk->capacity == 0 ? 0 : 100 * (double)disk->used / (double)disk->capacity;
    mc_buffer_printf(text, "{\"segment_name\":");
    mc_http_json_string(text, disk->name, strlen(disk->name));
    mc_buffer_printf(text, ",\"directory\":");
    mc_http_json_string(text, disk->directory, strlen(disk->directory));
    mc_buffer_printf(text,
                     ",\"segment_id\":\"%llu-%llu\",\"client_id\":\"%llu-%llu\",\"status\":\"%s\",\"health\":\"%s\","
                     "\"size_bytes\":%llu,\"used_bytes\":%llu,\"usage_percent\":%.2f,\"objects\":%u,\"slots\":%u}",
                     (unsigned long long)disk->segment_id.high, (unsigned long long)disk->segment_id.low,
                     (unsigned long long)disk->owner.high, (unsigned long long)disk->owner.low,
                     mc_view_segment_state(disk), mc_view_disk_health(disk), (unsigned long long)disk->capacity,
                     (unsigned long long)disk->used, percent, disk->objects, disk->slot_count);
}

/* After the segments of memory: the disks that are mounted, and who has others that cannot be used. */
static void write_disks(struct mc_buffer *text, const struct mc_core_segment *disks, int64_t count,
                        const struct disks_off *off)
{
    mc_buffer_printf(text, "],\"total_disks\":%lld,\"disks\":[", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        mc_buffer_printf(text, i == 0 ? "" : ",");
        write_disk(text, &disks[i]);
    }
    mc_buffer_printf(text, "],\"disks_off\":[");
    for (size_t i = 0; i < off->count; i++) {
        mc_buffer_printf(text, i == 0 ? "{\"node\":" : ",{\"node\":");
        mc_http_json_string(text, off->list[i].name, strlen(off->list[i].name));
        mc_buffer_printf(text, ",\"disks\":%u}", off->list[i].disks);
    }
    mc_buffer_printf(text, "]");
}

static void get_segments_detail(void *context, struct mc_web_request *request)
{
    struct mc_core_segment *segments = NULL, *disks = NULL;
    struct disks_off off = {.count = 0};
    struct mc_buffer text = {.may_fail = true};
    int64_t count = collect_segments(context, request, &segments), disk_count;
    if (count < 0)
        return;
    disk_count = collect(context, request, true, &disks);
    if (disk_count < 0) {
        free(segments);
        return;
    }
    if (ask(context, ask_disks_off, &off) < 0)
        off.count = 0; /* the rest is worth more */
    mc_buffer_printf(&text, "{\"total_segments\":%lld,\"segments\":[", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        mc_buffer_printf(&text, i == 0 ? "" : ",");
        write_segment(&text, &segments[i]);
    }
    write_disks(&text, disks, disk_count, &off);
    mc_buffer_printf(&text, "}");
    free(disks);
    free(segments);
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

static void query_segment(void *context, struct mc_web_request *request)
{
    struct mc_core_segment *segments = NULL;
    struct mc_buffer name = {0}, text = {0};
    uint64_t used = 0, capacity = 0;
    bool is_found = false;
    if (!mc_http_parameter(request, "segment", &name)) {
        mc_http_reply_error(request, MC_ERR_INVALID_PARAMS);
        return;
    }
    int64_t count = collect_segments(context, request, &segments);
    for (int64_t i = 0; i < count; i++) {
        if (segments[i].state == 2 || !mc_span_equal(mc_span_string(segments[i].name), mc_span(name.data, name.length)))
            continue;
        is_found = true;
        used += segments[i].used;
        capacity += segments[i].capacity;
    }
    free(segments);
    if (count >= 0 && !is_found) {
        mc_http_reply_text(request, 500, MC_HTTP_TEXT, "Failed to query segment");
    } else if (count >= 0) {
        mc_buffer_append(&text, name.data, name.length);
        mc_buffer_printf(&text, "\nUsed(bytes): %llu\nCapacity(bytes) : %llu\n", (unsigned long long)used,
                         (unsigned long long)capacity);
        mc_http_reply(request, 200, MC_HTTP_TEXT, &text);
    }
    mc_buffer_free(&name);
}

static void post_drain(void *context, struct mc_web_request *request)
{
    mc_drain_job_create(((struct mc_admin *)context)->drains, request);
}

static void get_drain(void *context, struct mc_web_request *request)
{
    mc_drain_job_query(((struct mc_admin *)context)->drains, request);
}

static void cancel_drain(void *context, struct mc_web_request *request)
{
    mc_drain_job_cancel(((struct mc_admin *)context)->drains, request);
}

static void get_segment_status(void *context, struct mc_web_request *request)
{
    mc_drain_segment_status(((struct mc_admin *)context)->drains, request);
}

static void get_quotas(void *context, struct mc_web_request *request)
{
    mc_tenants_get(&((struct mc_admin *)context)->tenants, request);
}

static void put_quota(void *context, struct mc_web_request *request)
{
    mc_tenants_put(&((struct mc_admin *)context)->tenants, request);
}

static void delete_quota(void *context, struct mc_web_request *request)
{
    mc_tenants_delete(&((struct mc_admin *)context)->tenants, request);
}

static void post_remove_all(void *context, struct mc_web_request *request)
{
    mc_remove_all(((struct mc_admin *)context)->server, request);
}

static void get_misses(void *context, struct mc_web_request *request)
{
    mc_misses_get(((struct mc_admin *)context)->server, request);
}

static void get_why(void *context, struct mc_web_request *request)
{
    mc_misses_why(((struct mc_admin *)context)->server, request);
}

static void get_overview(void *context, struct mc_web_request *request)
{
    mc_view_overview(&((struct mc_admin *)context)->view, request);
}

static void get_nodes(void *context, struct mc_web_request *request)
{
    mc_view_nodes(&((struct mc_admin *)context)->view, request);
}

static void get_keys(void *context, struct mc_web_request *request)
{
    mc_view_keys(&((struct mc_admin *)context)->view, request);
}

static void get_key(void *context, struct mc_web_request *request)
{
    mc_view_key(&((struct mc_admin *)context)->view, request);
}

static void get_history(void *context, struct mc_web_request *request)
{
    mc_view_history(&((struct mc_admin *)context)->view, request);
}

static void get_events(void *context, struct mc_web_request *request)
{
    mc_view_events(&((struct mc_admin *)context)->view, request);
}

static void get_slow(void *context, struct mc_web_request *request)
{
    mc_view_slow(&((struct mc_admin *)context)->view, request);
}

static void list_drains(void *context, struct mc_web_request *request)
{
    mc_drain_list(((struct mc_admin *)context)->drains, request);
}

static void post_undrain(void *context, struct mc_web_request *request)
{
    mc_drain_undo(((struct mc_admin *)context)->drains, request);
}

static void get_kv_status(void *context, struct mc_web_request *request)
{
    mc_kv_status(((struct mc_admin *)context)->kv_events, request);
}

static void get_kv_events(void *context, struct mc_web_request *request)
{
    mc_kv_get(((struct mc_admin *)context)->kv_events, request);
}

static void get_kv_snapshot(void *context, struct mc_web_request *request)
{
    const struct mc_admin *admin = context;
    mc_kv_snapshot(admin->server, admin->kv_events, request);
}

static void post_prefix(void *context, struct mc_web_request *request)
{
    mc_prefix_post(((struct mc_admin *)context)->server, request);
}

static const struct mc_http_route routes[] = {
    {"GET", "/", mc_page_index, MC_RIGHT_READ, false},
    {"GET", "/app.js", mc_page_script, MC_RIGHT_READ, false},
    {"GET", "/metrics", get_metrics, MC_RIGHT_READ, false},
    {"GET", "/metrics/summary", get_summary, MC_RIGHT_READ, false},
    {"GET", "/health", get_health, 0, false},
    {"GET", "/role", get_role, MC_RIGHT_READ, true},
    {"GET", "/ha_status", get_ha_status, MC_RIGHT_READ, true},
    {"GET", "/leader", get_leader, MC_RIGHT_READ, true},
    {"GET", "/query_key", query_key, MC_RIGHT_READ, true},
    {"GET", "/batch_query_keys", query_keys, MC_RIGHT_READ, true},
    {"GET", "/get_all_keys", get_all_keys, MC_RIGHT_READ, true},
    {"GET", "/get_all_segments", get_all_segments, MC_RIGHT_READ, false},
    {"GET", "/get_segments_detail", get_segments_detail, MC_RIGHT_READ, false},
    {"GET", "/query_segment", query_segment, MC_RIGHT_READ, false},
    {"GET", "/api/v1/overview", get_overview, MC_RIGHT_READ, false},
    {"GET", "/api/v1/nodes", get_nodes, MC_RIGHT_READ, false},
    {"GET", "/api/v1/keys", get_keys, MC_RIGHT_READ, true},
    {"GET", "/api/v1/key", get_key, MC_RIGHT_READ, true},
    {"GET", "/kv_events/status", get_kv_status, MC_RIGHT_READ, false},
    {"GET", "/api/v1/kv_events", get_kv_events, MC_RIGHT_READ, true},
    {"GET", "/api/v1/kv_events/snapshot", get_kv_snapshot, MC_RIGHT_READ, true},
    {"POST", "/api/v1/longest_prefix", post_prefix, MC_RIGHT_READ, true},
    {"GET", "/api/v1/history", get_history, MC_RIGHT_READ, false},
    {"GET", "/api/v1/events", get_events, MC_RIGHT_READ, false},
    {"GET", "/api/v1/slow", get_slow, MC_RIGHT_READ, true},
    {"GET", "/api/v1/misses", get_misses, MC_RIGHT_READ, false},
    {"GET", "/api/v1/misses/why", get_why, MC_RIGHT_READ, true},
    {"POST", "/api/v1/drain_jobs", post_drain, MC_RIGHT_ADMIN, false},
    {"GET", "/api/v1/drain_jobs", list_drains, MC_RIGHT_READ, false},
    {"POST", "/api/v1/undrain", post_undrain, MC_RIGHT_ADMIN, false},
    {"GET", "/api/v1/drain_jobs/query", get_drain, MC_RIGHT_READ, false},
    {"POST", "/api/v1/drain_jobs/cancel", cancel_drain, MC_RIGHT_ADMIN, false},
    {"GET", "/api/v1/segments/status", get_segment_status, MC_RIGHT_READ, false},
    {"GET", "/api/v1/tenant_quotas", get_quotas, MC_RIGHT_READ, true},
    {"PUT", "/api/v1/tenant_quotas", put_quota, MC_RIGHT_ADMIN, false},
    {"DELETE", "/api/v1/tenant_quotas", delete_quota, MC_RIGHT_ADMIN, false},
    {"POST", "/api/v1/remove_all", post_remove_all, MC_RIGHT_ADMIN, false},
    {"GET", "/openapi.json", get_openapi, MC_RIGHT_READ, false},
};

void mc_admin_handle(void *admin, struct mc_web_request *request)
{
    mc_http_dispatch(routes, sizeof(routes) / sizeof(routes[0]), admin, request);
}

/* What probes ask, also while all else waits. */
bool mc_admin_is_quick(void *admin, struct mc_span path)
{
    static const char *const quick[] = {"/health", "/role", "/ha_status", "/leader"};
    (void)admin;
    for (size_t i = 0; i < sizeof(quick) / sizeof(quick[0]); i++) {
        if (mc_span_equal(path, mc_span_string(quick[i])))
            return true;
    }
    return false;
}
