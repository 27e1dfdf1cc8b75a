#include "store/master/quotas_etcd.h"

#include "base/error.h"
#include "env/etcd.h"
#include "env/json.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>

struct mc_quota_place {
    struct mc_etcd *etcd;
    char key[MC_ETCD_KEY_MAX];
    struct mc_buffer body, reply;
};

int mc_quota_place_create(const char *endpoints, const char *cluster_id, struct mc_quota_place **made, char *error,
                          size_t error_size)
{
    struct mc_quota_place *place = calloc(1, sizeof(*place));
    if (place == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_etcd_create(endpoints, &place->etcd, error, error_size);
    if (rc < 0) {
        free(place);
        return rc;
    }
    mc_etcd_view_key(place->key, sizeof(place->key), cluster_id, "tenant_quota_policy");
    *made = place;
    return 0;
}

void mc_quota_place_destroy(struct mc_quota_place *place)
{
    if (place == NULL)
        return;
    mc_etcd_destroy(place->etcd);
    mc_buffer_free(&place->body);
    mc_buffer_free(&place->reply);
    free(place);
}

static struct mc_span reply_of(const struct mc_quota_place *place)
{
    return mc_span(place->reply.data, place->reply.length);
}

static int call(struct mc_quota_place *place, const char *path, uint64_t deadline_ns)
{
    int rc = mc_etcd_call(place->etcd, path, mc_span(place->body.data, place->body.length), deadline_ns, &place->reply);
    if (rc == MC_ERR_ETCD_OPERATION_ERROR)
        mc_log_limited(WARNING, "etcd refuses %s of the quotas of tenants: %.*s", path,
                       (int)(place->reply.length < 200 ? place->reply.length : 200),
                       place->reply.length == 0 ? "" : (const char *)place->reply.data);
    else if (rc < 0)
        mc_log_limited(WARNING, "etcd does not answer, which keeps the quotas of tenants: %s", mc_error_text(rc));
    return rc;
}

int mc_quota_place_read(struct mc_quota_place *place, uint64_t deadline_ns, struct mc_buffer *text, uint64_t *revision)
{
    static const char zero = 0;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{");
    mc_etcd_field(&place->body, "key", mc_span_string(place->key));
    mc_buffer_printf(&place->body, "}");
    text->length = 0;
    *revision = 0;
    int rc = call(place, "/v3/kv/range", deadline_ns);
    if (rc == 0)
        rc = mc_json_find_number(reply_of(place), "kvs.0.mod_revision", revision);
    if (rc == 1)
        rc = mc_etcd_bytes(reply_of(place), "kvs.0.value", text); /* 0: it is empty, and not told */
    mc_buffer_append(text, &zero, 1);
    text->length--;
    return rc < 0 ? rc : 0;
}

int mc_quota_place_swap(struct mc_quota_place *place, uint64_t deadline_ns, struct mc_span text, uint64_t *revision)
{
    struct mc_span word;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"compare\":[");
    mc_etcd_compare_revision(&place->body, place->key, *revision);
    mc_buffer_printf(&place->body, "],\"success\":[");
    mc_etcd_request_put(&place->body, place->key, text, 0);
    mc_buffer_printf(&place->body, "]}");
    int rc = call(place, "/v3/kv/txn", deadline_ns);
    if (rc < 0)
        return rc;
    rc = mc_json_find(reply_of(place), "succeeded", &word);
    if (rc >= 0 && (rc == 0 || !mc_span_equal(word, mc_span_string("true"))))
        return MC_ERR_ETCD_TRANSACTION_FAIL;
    return rc < 0 || mc_json_find_number(reply_of(place), "header.revision", revision) != 1 ? MC_ERR_PROTOCOL : 0;
}
