/* Routes of the store service, one function each. */
#include "store/service/rest.h"

#include "env/clock.h"
#include "env/json.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/spans.h"
#include "store/service/disks.h"
#include "store/service/put_body.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- answers ---- */

static void succeed(struct mc_web_request *request)
{
    mc_web_reply_text(request, 200, MC_WEB_JSON, "{\"status\": \"success\"}");
}

static void reply_error(struct mc_web_request *request, int status, const char *text)
{
    struct mc_buffer body = {0};
    mc_buffer_printf(&body, "{\"error\": ");
    mc_json_put_text(&body, text);
    mc_buffer_printf(&body, "}");
    mc_web_reply(request, status, MC_WEB_JSON, body.data, body.length);
    mc_buffer_free(&body);
}

/* What the store refused, with its code and what it means. */
static void fail_code(struct mc_web_request *request, const char *text, int64_t code)
{
    char body[512];
    snprintf(body, sizeof(body), "{\"error\": \"%s\", \"code\": %d, \"reason\": \"%s\"}", text, (int)code,
             mc_error_text((int)code));
    mc_web_reply_text(request, 500, MC_WEB_JSON, body);
}

static void not_found(struct mc_web_request *request)
{
    mc_web_reply_text(request, 404, MC_WEB_TEXT, "404: Not Found");
}

static struct mc_span object_of(const struct mc_web_bytes *body)
{
    return mc_span(body->data, (size_t)body->length);
}

/* The JSON object of a small body, for mc_web_bytes_free; false after an answer. */
static bool read_object(struct mc_web_request *request, struct mc_web_bytes *body)
{
    struct mc_json_cursor any;
    struct mc_span unused;
    char text[256];
    int line, column;
    *body = (struct mc_web_bytes){NULL, 0, 0};
    if (!mc_web_read_body(request, MC_REST_BODY_MAX, body))
        return false;
    if (mc_json_member(object_of(body), "", &any) >= 0)
        return true;
    if (mc_json_find(object_of(body), "", &unused) >= 0) {
        reply_error(request, 400, "Request body must be a JSON object");
    } else {
        mc_json_where(object_of(body), &any, &line, &column);
        snprintf(text, sizeof(text), "Malformed JSON body: line %d column %d: %s", line, column, any.problem);
        reply_error(request, 400, text);
    }
    mc_web_bytes_free(request, body);
    return false;
}

/* The member as a text without zeros, in size bytes. 1; 0: it is not there, or null; negative: it is something else. */
static int take_text(struct mc_span object, const char *name, char *text, size_t size)
{
    struct mc_json_cursor member;
    if (mc_json_member(object, name, &member) != 1)
        return 0;
    return mc_json_text(&member, text, size) == 0 ? 1 : MC_ERR_INVALID_PARAMS;
}

/* Is it there, and not null? */
static bool has_member(struct mc_span object, const char *name)
{
    struct mc_json_cursor member;
    return mc_json_member(object, name, &member) == 1 && member.kind != 'n';
}

#define BAD_GRACE "Invalid grace_period_seconds, must be a non-negative integer no greater than 3600"

/* Seconds to wait for readers, from 0; absent: 0. False: not possible. */
static bool take_grace(struct mc_span object, int64_t *seconds)
{
    struct mc_json_cursor member;
    *seconds = 0;
    if (mc_json_member(object, "grace_period_seconds", &member) != 1)
        return true;
    return mc_json_integer(&member, seconds) == 0 && *seconds >= 0 && *seconds <= MC_REST_GRACE_MAX_S;
}

/* ---- objects ---- */

/* The key behind the route's path, decoded; false after an answer. */
static bool take_key(struct mc_web_request *request, size_t prefix, char key[MC_KEY_LENGTH_MAX], size_t *length)
{
    struct mc_span raw = mc_span((const char *)request->path.data + prefix, request->path.length - prefix);
    char decoded[MC_REST_HEAD_MAX];
    if (raw.length == 0 || memchr(raw.data, '/', raw.length) != NULL) {
        not_found(request); /* a slash of a key is written %2F */
        return false;
    }
    int64_t size = mc_uri_decode(raw, decoded);
    if (size < 0 || size > MC_KEY_LENGTH_MAX) {
        reply_error(request, 400,
                    size < 0 ? "The key holds a % that begins no %XX" : "The key is longer than 1024 bytes");
        return false;
    }
    memcpy(key, decoded, (size_t)size);
    *length = (size_t)size;
    return true;
}

static void serve_put(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes text = {NULL, 0, 0};
    struct mc_put_body body;
    char reason[256];
    (void)prefix;
    if (!mc_web_read_body(request, MC_REST_PUT_MAX, &text))
        return;
    text.data[text.length] = 0; /* there is a byte more than asked for */
    const char *problem = mc_put_body_parse((char *)text.data, (size_t)text.length, &body, reason, sizeof(reason));
    if (problem == NULL && (body.key.length == 0 || body.value.data == NULL))
        problem = "Missing key or value";
    if (problem != NULL) {
        reply_error(request, 400, problem);
    } else {
        struct iovec part = {.iov_base = (void *)(uintptr_t)body.value.data, .iov_len = body.value.length};
        struct mc_put_item item = {.key = {body.key.data, body.key.length}, .parts = &part, .part_count = 1};
        int rc = mc_store_put(rest->store, &item, 1, NULL);
        if (rc == 0)
            succeed(request);
        else
            fail_code(request, "PUT operation failed", rc);
    }
    mc_web_bytes_free(request, &text);
}

struct value {
    struct mc_web_request *request;
    struct mc_web_bytes bytes;
};

static void *allocate(void *context, size_t index, uint64_t length)
{
    struct value *value = context;
    (void)index;
    mc_web_bytes_free(value->request, &value->bytes); /* of a try on another replica */
    return mc_web_bytes_make(value->request, &value->bytes, length);
}

static void reply_missing(struct mc_web_request *request, const char *text, int64_t code)
{
    if (code == MC_ERR_OBJECT_NOT_FOUND || code == MC_ERR_REPLICA_IS_GONE || code == MC_ERR_REPLICA_IS_NOT_READY)
        reply_error(request, 404, "Key not found");
    else if (code == MC_ERR_NO_MEMORY)
        reply_error(request, 503, "Too many bytes under way; try again");
    else
        fail_code(request, code == MC_ERR_RPC_FAIL || code == MC_ERR_RPC_TIMEOUT ? "Exist check failed" : text, code);
}

static void serve_get(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    char key[MC_KEY_LENGTH_MAX];
    struct value value = {.request = request};
    struct mc_get_item item = {.key = {key, 0}};
    if (!take_key(request, prefix, key, &item.key.length))
        return;
    if (request->is_head) {
        int rc = mc_store_size(rest->store, &item.key, 1, &item.result);
        item.result = rc < 0 ? rc : item.result;
    } else {
        (void)mc_store_get(rest->store, &item, 1, allocate, &value); /* also in item.result */
    }
    if (item.result > 0)
        mc_web_reply(request, 200, MC_WEB_BYTES, value.bytes.data, (uint64_t)item.result);
    else
        reply_missing(request, "GET operation failed", item.result);
    mc_web_bytes_free(request, &value.bytes);
}

static void exist(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    char key[MC_KEY_LENGTH_MAX];
    struct mc_bytes name = {key, 0};
    int found = 0;
    if (!take_key(request, prefix, key, &name.length))
        return;
    int rc = mc_store_exist(rest->store, &name, 1, &found);
    rc = rc < 0 ? rc : found;
    if (rc < 0)
        fail_code(request, "Exist check failed", rc);
    else
        mc_web_reply_text(request, 200, MC_WEB_JSON, rc > 0 ? "{\"exists\": true}" : "{\"exists\": false}");
}

static void remove_one(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    char key[MC_KEY_LENGTH_MAX];
    struct mc_bytes name = {key, 0};
    int result = 0;
    if (!take_key(request, prefix, key, &name.length))
        return;
    int rc = mc_store_remove(rest->store, &name, 1, false, &result);
    rc = rc < 0 ? rc : result;
    if (rc == 0)
        succeed(request);
    else
        fail_code(request, "Remove operation failed", rc);
}

static void remove_all(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    char text[64];
    (void)prefix;
    int64_t count = mc_store_remove_all(rest->store, false);
    if (count < 0) {
        fail_code(request, "RemoveAll operation failed", count);
        return;
    }
    snprintf(text, sizeof(text), "{\"status\": \"success removed %" PRId64 " keys\"}", count);
    mc_web_reply_text(request, 200, MC_WEB_JSON, text);
}

/* ---- mounts ---- */

static void mount(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    char id[MC_MOUNT_ID_MAX], text[192], protocol[64] = "tcp";
    struct mc_web_bytes body;
    struct mc_json_cursor size, location;
    int64_t asked;
    uint64_t bytes = 0;
    (void)prefix;
    if (!read_object(request, &body))
        return;
    struct mc_span object = object_of(&body);
    if (mc_json_member(object, "size", &size) != 1 || mc_json_integer(&size, &asked) < 0 || asked <= 0) {
        reply_error(request, 400, "Invalid size, must be a positive integer");
    } else if (take_text(object, "protocol", protocol, sizeof(protocol)) < 0 ||
               (mc_json_member(object, "location", &location) == 1 && location.kind != '"')) {
        reply_error(request, 400, "Invalid protocol or location, must be a string");
    } else {
        if (strcasecmp(protocol, "tcp") != 0 || mc_json_member(object, "location", &location) == 1)
            mc_log_once(INFO, "protocol and location of a mount change nothing here: setup's protocol is that of all "
                              "memory, which lies where the kernel puts it (numactl)");
        /* As the original does: whole steps, so that a small size is not one that holds nothing. */
        uint64_t wanted = ((uint64_t)asked + MC_REST_MOUNT_STEP - 1) / MC_REST_MOUNT_STEP * MC_REST_MOUNT_STEP;
        bool is_known = strcasecmp(protocol, "tcp") == 0 || strcasecmp(protocol, "rdma") == 0;
        int rc = is_known ? mc_store_mount(rest->store, wanted, id, &bytes) : MC_ERR_INVALID_PARAMS;
        snprintf(text, sizeof(text), "Allocate and mount failed, ret=%d", rc);
        if (rc < 0) {
            fail_code(request, text, rc);
        } else {
            snprintf(text, sizeof(text),
                     "{\"status\": \"success\", \"segment_ids\": [\"%s\"], \"allocated_size\": %" PRIu64 "}", id,
                     bytes);
            mc_web_reply_text(request, 200, MC_WEB_JSON, text);
        }
    }
    mc_web_bytes_free(request, &body);
}

/* segment_ids of an unmount, one text or a list of them. False after an answer. */
static bool take_ids(struct mc_web_request *request, struct mc_span object, struct mc_json_cursor *ids,
                     int64_t *grace_s)
{
    struct mc_json_cursor id;
    bool are_texts = true, is_there = mc_json_member(object, "segment_ids", ids) == 1;
    size_t count = is_there && ids->kind == '"' && ids->value.length > 0;
    if (is_there && ids->kind == '[' && mc_json_open(ids->value, '[', &id) == 0)
        for (; mc_json_next(&id) == 1; count++)
            are_texts = are_texts && id.kind == '"';
    if (count == 0) {
        reply_error(request, 400, "Missing segment_ids");
        return false;
    }
    bool is_grace = take_grace(object, grace_s);
    if (!are_texts || !is_grace)
        reply_error(request, 400, are_texts ? BAD_GRACE : "Invalid segment_ids, must be strings");
    return are_texts && is_grace;
}

static bool is_mount_id(const char *id)
{
    const char *dash = strchr(id, '-');
    size_t length = strlen(id);
    return dash != NULL && dash != id && dash[1] != 0 && length < MC_MOUNT_ID_MAX &&
           strspn(id, "0123456789-") == length && strchr(dash + 1, '-') == NULL;
}

/* The codes are the original's: -1 for what is no id, -600 for one that is not mounted. */
static int unmount_one(struct mc_rest *rest, const struct mc_json_cursor *id, int64_t grace_s)
{
    char text[MC_MOUNT_ID_MAX];
    if (mc_json_text(id, text, sizeof(text)) < 0 || !is_mount_id(text))
        return MC_ERR_INTERNAL_ERROR;
    int rc = mc_store_unmount(rest->store, text, (uint64_t)grace_s * 1000);
    return rc == MC_ERR_SEGMENT_NOT_FOUND ? MC_ERR_INVALID_PARAMS : rc;
}

static void unmount(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes body;
    struct mc_json_cursor ids, id;
    int64_t grace_s;
    char text[64];
    (void)prefix;
    if (!read_object(request, &body))
        return;
    if (take_ids(request, object_of(&body), &ids, &grace_s)) {
        bool is_list = ids.kind == '[' && mc_json_open(ids.value, '[', &id) == 0;
        int first = is_list ? 0 : unmount_one(rest, &ids, grace_s);
        while (is_list && mc_json_next(&id) == 1) {
            int rc = unmount_one(rest, &id, grace_s);
            first = first == 0 ? rc : first;
        }
        snprintf(text, sizeof(text), "Unmount and free failed, ret=%d", first);
        if (first == 0)
            succeed(request);
        else
            fail_code(request, text, first);
    }
    mc_web_bytes_free(request, &body);
}

/* A name of /dev/shm, with or without a slash before it. */
static bool is_shm_name(const char *name)
{
    if (name[0] == '/')
        name++;
    return name[0] != 0 && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* To lend a file of somebody else is not done: whoever can truncate it kills every process that maps it. */
static void mount_shm(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes body;
    char name[256];
    (void)rest, (void)prefix;
    if (!read_object(request, &body))
        return;
    if (take_text(object_of(&body), "name", name, sizeof(name)) != 1 || !is_shm_name(name) ||
        !has_member(object_of(&body), "size"))
        reply_error(request, 400, "Missing or invalid name or size");
    else
        fail_code(request, "Mount failed, ret=-1012", MC_ERR_NOT_SUPPORTED);
    mc_web_bytes_free(request, &body);
}

static void unmount_shm(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes body;
    struct mc_json_cursor ids;
    struct mc_buffer answer = {0};
    int64_t grace_s;
    (void)rest, (void)prefix;
    if (!read_object(request, &body))
        return;
    if (take_ids(request, object_of(&body), &ids, &grace_s)) {
        mc_buffer_printf(&answer, "{\"error\": \"Unmount failed for one or more segments\", \"failed_segment_ids\": ");
        mc_buffer_printf(&answer, ids.kind == '[' ? "%.*s}" : "[\"%.*s\"]}", (int)ids.value.length,
                         (const char *)ids.value.data);
        mc_web_reply(request, 500, MC_WEB_JSON, answer.data, answer.length);
        mc_buffer_free(&answer);
    }
    mc_web_bytes_free(request, &body);
}

/* An engine between decoding and prefilling lends its own shared memory: see mount_shm. So the mode is always prefill.
 */
static void reconfigure(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes body;
    char mode[16] = "";
    (void)rest, (void)prefix;
    if (!read_object(request, &body))
        return;
    struct mc_span object = object_of(&body);
    struct mc_json_cursor path;
    (void)take_text(object, "mode", mode, sizeof(mode));
    bool has_path = mc_json_member(object, "path", &path) == 1 && path.kind == '"' && path.value.length > 0;
    if (strcasecmp(mode, "prefill") == 0)
        mc_web_reply_text(request, 200, MC_WEB_JSON, "{\"status\": \"success\", \"mode\": \"prefill\"}");
    else if (strcasecmp(mode, "decode") != 0)
        reply_error(request, 400, "Invalid mode. Use 'decode' or 'prefill'");
    else if (!has_path || !has_member(object, "size"))
        reply_error(request, 400, "Missing path or size for decode mode");
    else
        mc_web_reply_text(request, 500, MC_WEB_JSON,
                          "{\"error\": \"Mount failed, ret=-1012; rolled back to prefill\", \"mode\": \"prefill\"}");
    mc_web_bytes_free(request, &body);
}

static void unmount_local_disk(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_web_bytes body;
    int64_t seconds;
    (void)prefix;
    if (!read_object(request, &body))
        return;
    if (!take_grace(object_of(&body), &seconds)) {
        reply_error(request, 400, BAD_GRACE);
    } else {
        char text[64];
        int rc = mc_store_unmount_disks(rest->store, (uint64_t)seconds * 1000);
        snprintf(text, sizeof(text), "Unmount local disk failed, ret=%d", rc);
        if (rc == 0)
            succeed(request);
        else
            fail_code(request, text, rc);
    }
    mc_web_bytes_free(request, &body);
}

/* ---- health ---- */

static void health(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    (void)prefix;
    if (mc_store_health(rest->store) == 0)
        mc_web_reply_text(request, 200, MC_WEB_JSON, "{\"status\":\"healthy\",\"code\":0}");
    else
        mc_web_reply_text(request, 503, MC_WEB_JSON, "{\"status\":\"master_unreachable\",\"code\":2}");
}

static size_t disks_of(struct mc_rest *rest, struct mc_store_disk disks[MC_SERVICE_DISKS_MAX])
{
    int count = mc_store_disks(rest->store, disks, MC_SERVICE_DISKS_MAX);
    return count > (int)MC_SERVICE_DISKS_MAX ? MC_SERVICE_DISKS_MAX : (size_t)count;
}

static const uint32_t call_bounds_us[MC_STORE_CALL_BOUND_COUNT] = {MC_STORE_CALL_BOUNDS_US};

static void put_times(struct mc_buffer *out, const char *what, const char *help,
                      const struct mc_store_call_times *times)
{
    uint64_t total = 0;
    mc_buffer_printf(out, "# HELP mooncake_client_%s_seconds %s\n# TYPE mooncake_client_%s_seconds histogram\n", what,
                     help, what);
    for (unsigned i = 0; i < MC_STORE_CALL_BOUND_COUNT; i++) {
        total += times->counts[i];
        mc_buffer_printf(out, "mooncake_client_%s_seconds_bucket{le=\"%.9g\"} %" PRIu64 "\n", what,
                         (double)call_bounds_us[i] / 1e6, total);
    }
    total += times->counts[MC_STORE_CALL_BOUND_COUNT];
    mc_buffer_printf(out,
                     "mooncake_client_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\nmooncake_client_%s_seconds_sum %.6f\n"
                     "mooncake_client_%s_seconds_count %" PRIu64 "\n",
                     what, total, what, (double)times->sum_us / 1e6, what, total);
}

/* "5 calls, half within 50 us, 99 % within 2000 us"; a bound, so no less than it was. */
static void times_text(struct mc_buffer *out, const char *what, const struct mc_store_call_times *times)
{
    static const double parts[] = {0.5, 0.99};
    static const char *const words[] = {"half", "99 %"};
    uint64_t total = 0;
    for (unsigned i = 0; i <= MC_STORE_CALL_BOUND_COUNT; i++)
        total += times->counts[i];
    mc_buffer_printf(out, "%s: %" PRIu64 " calls", what, total);
    for (size_t part = 0; part < 2 && total > 0; part++) {
        uint64_t below = 0;
        unsigned at = 0;
        while (at < MC_STORE_CALL_BOUND_COUNT && (double)(below += times->counts[at]) < parts[part] * (double)total)
            at++;
        if (at < MC_STORE_CALL_BOUND_COUNT)
            mc_buffer_printf(out, ", %s within %" PRIu32 " us", words[part], call_bounds_us[at]);
        else
            mc_buffer_printf(out, ", %s not within %" PRIu32 " us", words[part], call_bounds_us[at - 1]);
    }
    mc_buffer_printf(out, "\n");
}

static void metrics(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_store_statistics now;
    struct mc_store_disk disks[MC_SERVICE_DISKS_MAX];
    struct mc_buffer text = {0};
    (void)prefix;
    mc_store_statistics(rest->store, &now);
    const struct mc_spans_counts spans = mc_spans_counts();
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } rows[] = {
        {"put_objects_total", "counter", "Objects put by this process", now.put_objects},
        {"put_bytes_total", "counter", "Their bytes", now.put_bytes},
        {"get_objects_total", "counter", "Objects read by this process", now.get_objects},
        {"get_bytes_total", "counter", "Their bytes", now.get_bytes},
        {"get_misses_total", "counter", "Objects asked for that were not there", now.get_misses},
        {"get_loads_total", "counter", "Objects read that had to come from a disk first", now.get_loads},
        {"hot_hits_total", "counter", "Objects read from a copy in this process", now.hot_hits},
        {"hot_bytes", "gauge", "Of the copies that are kept of what lies elsewhere", now.hot_bytes},
        {"path_local_bytes_total", "counter", "Bytes moved within this process", now.path_bytes[0]},
        {"path_shm_bytes_total", "counter", "Bytes moved by shared memory", now.path_bytes[1]},
        {"path_tcp_bytes_total", "counter", "Bytes moved by tcp", now.path_bytes[2]},
        {"path_rdma_bytes_total", "counter", "Bytes moved by RDMA", now.path_bytes[3]},
        {"rdma_copied_bytes_total", "counter", "Of them, through memory of the store's own", now.rdma_copied_bytes},
        {"checksum_errors_total", "counter", "Blocks that did not match their checksum", now.checksum_errors},
        {"retries_total", "counter", "Calls that were tried again", now.retries},
        {"fallbacks_total", "counter", "Faster paths that failed", now.fallbacks},
        {"segment_capacity_bytes", "gauge", "Memory lent to the pool", now.segment_capacity},
        {"segment_populated_bytes", "gauge", "Of it, ready for objects", now.segment_populated},
        {"scrubbed_bytes_total", "counter", "Bytes read and compared in the background", now.scrubbed_bytes},
        {"rotten_slots_total", "counter", "Objects dropped because their bytes had changed", now.rotten_slots},
        {"tags_refused_total", "counter", "Asked for by peers that had not been granted it", now.tags_refused},
        {"trace_spans_sent_total", "counter", "Spans of traces that a collector, or a file, has taken", spans.sent},
        {"trace_spans_dropped_total", "counter", "Spans that were too many, or that nobody has taken", spans.dropped},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        mc_buffer_printf(&text,
                         "# HELP mooncake_client_%s %s\n# TYPE mooncake_client_%s %s\nmooncake_client_%s %" PRIu64 "\n",
                         rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name, rows[i].value);
    put_times(&text, "put", "Time of a put or upsert, or of a batch of them", &now.put_times);
    put_times(&text, "get", "Time of a get, or of a batch of them", &now.get_times);
    put_times(&text, "exist", "Time of an existence check, or of a batch of them", &now.exist_times);
    mc_disks_metrics(&text, disks, disks_of(rest, disks));
    mc_web_reply(request, 200, MC_WEB_TEXT, text.data, text.length);
    mc_buffer_free(&text);
}

static void summary(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    struct mc_store_statistics now;
    struct mc_store_disk disks[MC_SERVICE_DISKS_MAX];
    struct mc_buffer text = {0};
    (void)prefix;
    mc_store_statistics(rest->store, &now);
    mc_buffer_printf(&text,
                     "Client Metrics Summary\nSegment: %" PRIu64 " B, ready %" PRIu64 " B\nTotal Read: %" PRIu64
                     " B in %" PRIu64 " objects, %" PRIu64 " misses\nTotal Write: %" PRIu64 " B in %" PRIu64
                     " objects\n",
                     now.segment_capacity, now.segment_populated, now.get_bytes, now.get_objects, now.get_misses,
                     now.put_bytes, now.put_objects);
    times_text(&text, "Put", &now.put_times);
    times_text(&text, "Get", &now.get_times);
    times_text(&text, "Exist", &now.exist_times);
    mc_disks_summary(&text, disks, disks_of(rest, disks));
    mc_web_reply(request, 200, MC_WEB_TEXT, text.data, text.length);
    mc_buffer_free(&text);
}

extern const unsigned char mc_rest_openapi[]; /* docs/openapi-store.json */
extern const size_t mc_rest_openapi_size;

static void openapi(struct mc_rest *rest, struct mc_web_request *request, size_t prefix)
{
    (void)rest, (void)prefix;
    mc_web_reply(request, 200, MC_WEB_JSON, mc_rest_openapi, mc_rest_openapi_size);
}

/* ---- routes ---- */

typedef void route_handler(struct mc_rest *rest, struct mc_web_request *request, size_t prefix);

static const struct rest_route {
    const char *method, *path; /* a path that ends with a slash goes on with a key */
    route_handler *handler;
    bool is_health;
    unsigned right;   /* of enum mc_right, where there are keys; 0: anybody may */
    bool is_sweeping; /* it takes what is everybody's: without keys neighbours alone may */
} routes[] = {
    {"PUT", "/api/put", serve_put, false, MC_RIGHT_WRITE, false},
    {"GET", "/api/get/", serve_get, false, MC_RIGHT_READ, false},
    {"GET", "/api/exist/", exist, false, MC_RIGHT_READ, false},
    {"DELETE", "/api/remove/", remove_one, false, MC_RIGHT_WRITE, false},
    {"DELETE", "/api/remove_all", remove_all, false, MC_RIGHT_WRITE, true},
    {"POST", "/api/mount", mount, false, MC_RIGHT_ADMIN, false},
    {"POST", "/api/unmount", unmount, false, MC_RIGHT_ADMIN, false},
    {"POST", "/api/mount_shm", mount_shm, false, MC_RIGHT_ADMIN, false},
    {"POST", "/api/unmount_shm", unmount_shm, false, MC_RIGHT_ADMIN, false},
    {"POST", "/api/reconfigure", reconfigure, false, MC_RIGHT_ADMIN, false},
    {"POST", "/api/unmount_local_disk", unmount_local_disk, false, MC_RIGHT_ADMIN, false},
    {"GET", "/health", health, true, 0, false},
    {"GET", "/metrics", metrics, true, MC_RIGHT_READ, false},
    {"GET", "/metrics/summary", summary, true, MC_RIGHT_READ, false},
    {"GET", "/openapi.json", openapi, false, MC_RIGHT_READ, false},
};

static bool is_path(const struct rest_route *route, struct mc_span path)
{
    size_t length = strlen(route->path);
    bool goes_on = route->path[length - 1] == '/';
    return path.length >= length && memcmp(path.data, route->path, length) == 0 && (goes_on || path.length == length);
}

static void dispatch(struct mc_rest *rest, struct mc_web_request *request, bool health_only)
{
    const char *allowed = NULL;
    uint64_t start_ns = mc_clock_ns();
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const struct rest_route *route = &routes[i];
        if ((health_only && !route->is_health) || !is_path(route, request->path))
            continue;
        if (strcmp(request->head.method, route->method) == 0) {
            if (!mc_web_is_permitted(request, route->right, false) ||
                (route->is_sweeping && !mc_web_is_no_stranger(request)))
                return;
            route->handler(rest, request, strlen(route->path));
            mc_log(DEBUG, "%s %s took %.2f ms", route->method, route->path,
                   (double)(mc_clock_ns() - start_ns) / 1000000);
            return;
        }
        allowed = strcmp(route->method, "GET") == 0 ? "GET, HEAD" : route->method;
    }
    if (allowed != NULL)
        mc_web_reply_not_allowed(request, allowed);
    else
        not_found(request);
}

void mc_rest_handle(void *rest, struct mc_web_request *request)
{
    dispatch(rest, request, false);
}

void mc_rest_handle_health(void *rest, struct mc_web_request *request)
{
    dispatch(rest, request, true);
}

bool mc_rest_is_quick(void *rest, struct mc_span path)
{
    (void)rest;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (routes[i].is_health && is_path(&routes[i], path))
            return true;
    return false;
}
