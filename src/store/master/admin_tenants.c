/* Quotas of tenants on the admin port, and what /metrics says of tenants. */
#include "base/error.h"
#include "env/json.h"
#include "env/log.h"
#include "store/master/http.h"
#include "store/master/metrics.h"
#include "store/master/quotas.h"

#include <stdio.h>
#include <stdlib.h>

#define SLICE 64u
#define BODY_MAX (64u << 10)

struct tenants_question {
    uint64_t cursor, capacity;
    size_t count;
    struct mc_core_tenant list[SLICE];
};

static void ask_tenants(struct mc_core *core, void *argument)
{
    struct tenants_question *question = argument;
    question->count = mc_core_tenants(core, &question->cursor, question->list, SLICE);
    question->capacity = mc_core_tenant_capacity(core);
}

static int compare_tenants(const void *a, const void *b)
{
    return strcmp(((const struct mc_core_tenant *)a)->name, ((const struct mc_core_tenant *)b)->name);
}

/* All of them by name; the list is the caller's to free. Count, or negative. */
static int64_t collect_tenants(struct mc_server *server, struct mc_core_tenant **list, uint64_t *capacity)
{
    struct tenants_question *question = calloc(1, sizeof(*question));
    struct mc_buffer all = {0};
    int rc = question == NULL ? MC_ERR_NO_MEMORY : 0;
    do {
        if (rc == 0)
            rc = mc_server_ask(server, ask_tenants, question, MC_HTTP_ASK_MS);
        if (rc == 0)
            mc_buffer_append(&all, question->list, question->count * sizeof(question->list[0]));
    } while (rc == 0 && question->cursor != 0);
    *capacity = rc == 0 ? question->capacity : 0;
    free(question);
    if (rc < 0) {
        mc_buffer_free(&all);
        return rc;
    }
    size_t count = all.length / sizeof(struct mc_core_tenant);
    if (count > 0)
        qsort(all.data, count, sizeof(struct mc_core_tenant), compare_tenants);
    *list = (struct mc_core_tenant *)(void *)all.data; /* realloc's memory: aligned for everything */
    return (int64_t)count;
}

void mc_tenants_metrics(struct mc_server *server, const struct mc_core_statistics *statistics, bool has_quotas,
                        struct mc_buffer *out)
{
    struct mc_core_tenant *list = NULL;
    uint64_t capacity;
    int64_t count = collect_tenants(server, &list, &capacity);
    if (count >= 0) /* else the page is worth more than these */
        mc_metrics_tenants(out, list, (size_t)count, capacity, has_quotas, statistics);
    free(list);
}

/* ---- requests ---- */

static void write_tenant(struct mc_buffer *text, const struct mc_core_tenant *tenant, bool has_quotas)
{
    mc_buffer_printf(text, "{\"tenant_id\":");
    mc_http_json_string(text, tenant->name, strlen(tenant->name));
    mc_buffer_printf(text,
                     ",\"requested_quota_bytes\":%llu,\"effective_quota_bytes\":%llu,\"charged_bytes\":%llu,"
                     "\"admission_closed\":%s,\"over_quota\":%s,\"has_explicit_policy\":%s,"
                     "\"requested_quota_objects\":%llu,\"charged_objects\":%llu,\"guaranteed_bytes\":%llu,"
                     "\"guaranteed_objects\":%llu,\"firm_pin_quota_bytes\":%llu,\"firm_pin_bytes\":%llu}",
                     (unsigned long long)tenant->quota.bytes, (unsigned long long)tenant->effective_bytes,
                     (unsigned long long)tenant->bytes, has_quotas && !tenant->has_quota ? "true" : "false",
                     tenant->has_quota && tenant->bytes > tenant->effective_bytes ? "true" : "false",
                     tenant->has_quota ? "true" : "false", (unsigned long long)tenant->quota.objects,
                     (unsigned long long)tenant->objects, (unsigned long long)tenant->quota.guaranteed_bytes,
                     (unsigned long long)tenant->quota.guaranteed_objects, (unsigned long long)tenant->quota.firm_bytes,
                     (unsigned long long)tenant->firm_bytes);
}

/* One, or all of them. */
static void reply_tenants(struct mc_server *server, struct mc_web_request *request, const char *only, bool has_quotas)
{
    struct mc_core_tenant *list = NULL;
    struct mc_buffer text = {0};
    uint64_t capacity;
    int64_t count = collect_tenants(server, &list, &capacity);
    const char *comma = "";
    if (count < 0) {
        mc_http_reply_error(request, (int)count);
        return;
    }
    mc_buffer_printf(&text, "{\"success\":true,\"data\":%s", only == NULL ? "[" : "");
    for (int64_t i = 0; i < count; i++) {
        if (only != NULL && strcmp(only, list[i].name) != 0)
            continue;
        mc_buffer_printf(&text, "%s", comma);
        write_tenant(&text, &list[i], has_quotas);
        comma = ",";
    }
    mc_buffer_printf(&text, only == NULL ? "]}" : "}");
    free(list);
    if (only != NULL && comma[0] == 0) {
        mc_buffer_free(&text);
        mc_http_reply_error(request, MC_ERR_TENANT_NOT_REGISTERED);
        return;
    }
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

struct quota_question {
    const char *name;
    const struct mc_core_quota *quota;
    bool had;
    struct mc_core_quota before;
    int rc;
};

static void ask_quota(struct mc_core *core, void *argument)
{
    struct quota_question *question = argument;
    question->had = mc_core_quota_of(core, mc_span_string(question->name), &question->before);
    question->rc = mc_core_quota(core, mc_span_string(question->name), question->quota);
}

/* With the lock of changes. */
static int change_both(const struct mc_tenant_admin *admin, const char *name, const struct mc_core_quota *quota)
{
    struct quota_question question = {.name = name, .quota = quota};
    int rc = mc_server_ask(admin->server, ask_quota, &question, MC_HTTP_ASK_MS);
    rc = rc == 0 ? question.rc : rc;
    if (rc == 0)
        rc = mc_quotas_change(admin->quotas, name, quota);
    if (rc < 0 && question.rc == 0 && (question.had || quota != NULL)) { /* what was not kept does not count either */
        struct quota_question back = {.name = name, .quota = question.had ? &question.before : NULL};
        (void)mc_server_ask(admin->server, ask_quota, &back, MC_HTTP_ASK_MS);
    }
    return rc;
}

static int change(const struct mc_tenant_admin *admin, const char *name, const struct mc_core_quota *quota)
{
    if (admin->quotas == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    pthread_mutex_lock(admin->change);
    int rc = change_both(admin, name, quota);
    pthread_mutex_unlock(admin->change);
    return rc;
}

/* The tenant that is named, as the master calls it. False: answered. */
static bool tenant_named(struct mc_web_request *request, char name[64], bool *is_said)
{
    struct mc_scope scope;
    if (!mc_http_scope(request, &scope, is_said))
        return false;
    struct mc_span text = scope.tenant == 0 ? mc_span_string(MC_TENANT_DEFAULT) : mc_scope_name(&scope);
    snprintf(name, 64, "%.*s", (int)text.length, (const char *)text.data);
    return true;
}

void mc_tenants_get(const struct mc_tenant_admin *admin, struct mc_web_request *request)
{
    char name[64];
    bool is_said;
    if (!tenant_named(request, name, &is_said))
        return;
    if (admin->quotas == NULL)
        mc_http_reply_error(request, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    else
        reply_tenants(admin->server, request, is_said ? name : NULL, admin->has_quotas);
}

static int read_quota(struct mc_span text, struct mc_core_quota *quota)
{
    struct mc_json_cursor member;
    int more,
        rc = text.length == 0 || text.length > BODY_MAX ? MC_ERR_INVALID_PARAMS : mc_json_open(text, '{', &member);
    *quota = (struct mc_core_quota){.bytes = 0};
    while (rc == 0 && (more = mc_json_next(&member)) != 0) {
        uint64_t *to = more < 0                                             ? NULL
                       : mc_json_is(member.name, "requested_quota_bytes")   ? &quota->bytes
                       : mc_json_is(member.name, "requested_quota_objects") ? &quota->objects
                       : mc_json_is(member.name, "guaranteed_bytes")        ? &quota->guaranteed_bytes
                       : mc_json_is(member.name, "guaranteed_objects")      ? &quota->guaranteed_objects
                       : mc_json_is(member.name, "firm_pin_quota_bytes")    ? &quota->firm_bytes
                                                                            : NULL;
        rc = to == NULL || mc_json_number(&member, to) < 0 ? MC_ERR_INVALID_PARAMS : 0;
    }
    return rc == 0 && mc_quota_wrong(quota) == NULL ? 0 : MC_ERR_INVALID_PARAMS;
}

void mc_tenants_put(const struct mc_tenant_admin *admin, struct mc_web_request *request)
{
    char name[64];
    bool is_said;
    struct mc_core_quota quota;
    struct mc_web_bytes body;
    if (!tenant_named(request, name, &is_said) || !mc_http_body(request, &body))
        return;
    int rc = is_said ? read_quota(mc_span(body.data, (size_t)body.length), &quota) : MC_ERR_INVALID_PARAMS;
    mc_web_bytes_free(request, &body);
    if (rc == 0)
        rc = change(admin, name, &quota);
    if (rc < 0)
        mc_http_reply_error(request, rc);
    else
        reply_tenants(admin->server, request, name, admin->has_quotas);
}

void mc_tenants_delete(const struct mc_tenant_admin *admin, struct mc_web_request *request)
{
    char name[64];
    bool is_said;
    if (!tenant_named(request, name, &is_said))
        return;
    int rc = is_said ? change(admin, name, NULL) : MC_ERR_INVALID_PARAMS;
    if (rc < 0)
        mc_http_reply_error(request, rc);
    else
        mc_http_reply_text(request, 200, MC_HTTP_JSON, "{\"success\":true,\"data\":null}");
}
