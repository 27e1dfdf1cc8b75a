/* Keys a page at a time, by how they begin; and one of them: where it lies, or why it is not there. */
#include "base/error.h"
#include "store/master/http.h"
#include "store/master/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS_PER_SLICE 1024u /* that the core looks at for one question */
#define SLICES_MAX 64u        /* for one page: of fifty million keys few may begin so */
#define KEYS_PER_PAGE 100u
#define KEYS_PER_PAGE_MAX 1000u
#define PAGE_BYTES_MAX (256u << 10) /* keys may be long */

/* ---- a page ---- */

struct keys_slice {
    uint64_t cursor;
    size_t slots;
    bool has_more, is_scoped, is_full;
    struct mc_scope scope;
    struct mc_span prefix;
    uint64_t left; /* that may still be written */
    struct mc_json_writer *writer;
};

static void write_one_key(void *context, struct mc_span key, uint64_t length)
{
    struct keys_slice *slice = context;
    if (slice->is_scoped && !mc_scope_has(&slice->scope, key))
        return;
    struct mc_span full = key;
    if (slice->is_scoped || mc_key_scope(key).length == 0)
        key = mc_key_local(key);
    if (key.length < slice->prefix.length ||
        (slice->prefix.length > 0 && memcmp(key.data, slice->prefix.data, slice->prefix.length) != 0))
        return;
    mc_json_begin(slice->writer, NULL, '{');
    mc_http_json_add(slice->writer, "key", key.data, key.length);
    mc_json_add_number(slice->writer, "bytes", length);
    mc_http_json_stamp(slice->writer, full);
    mc_json_end(slice->writer, '}');
    slice->left--;
}

/* As many slots at a time as keys are wanted, so that the cursor never passes one that had no place. */
static void ask_some_keys(struct mc_core *core, void *argument)
{
    struct keys_slice *slice = argument;
    size_t slots = 0;
    while (slots < SLOTS_PER_SLICE && slice->left > 0 && slice->has_more &&
           slice->writer->out->length < PAGE_BYTES_MAX) {
        size_t step = slice->left < SLOTS_PER_SLICE - slots ? (size_t)slice->left : SLOTS_PER_SLICE - slots;
        slice->has_more = mc_core_keys(core, &slice->cursor, step, write_one_key, slice);
        slots += step;
    }
    slice->is_full = slice->left == 0 || slice->writer->out->length >= PAGE_BYTES_MAX;
}

static int fill_page(const struct mc_view *view, struct keys_slice *slice)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < SLICES_MAX && slice->has_more && !slice->is_full; i++)
        rc = mc_server_ask(view->server, ask_some_keys, slice, MC_HTTP_ASK_MS);
    return rc;
}

void mc_view_keys(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true}, prefix = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct keys_slice slice = {.has_more = true, .writer = &writer};
    char cursor[24];
    if (!mc_http_scope(request, &slice.scope, &slice.is_scoped))
        return;
    (void)mc_http_parameter(request, "prefix", &prefix);
    slice.prefix = mc_span(prefix.data, prefix.length);
    bool is_good = mc_http_number(request, "limit", KEYS_PER_PAGE, KEYS_PER_PAGE_MAX, &slice.left) &&
                   mc_http_number(request, "cursor", 0, UINT64_MAX, &slice.cursor) && !prefix.failed && slice.left > 0;
    int rc = is_good ? 0 : MC_ERR_INVALID_PARAMS;
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_begin(&writer, "keys", '[');
    if (rc == 0)
        rc = fill_page(view, &slice);
    mc_json_end(&writer, ']');
    snprintf(cursor, sizeof(cursor), "%" PRIu64, slice.cursor);
    if (slice.has_more) /* text: JavaScript's numbers have 53 bits */
        mc_json_add_text(&writer, "cursor", cursor);
    mc_json_end(&writer, '}');
    mc_buffer_free(&prefix);
    if (rc < 0) {
        mc_buffer_free(&text);
        mc_http_reply_error(request, rc);
        return;
    }
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* ---- one ---- */

struct one_key {
    uint8_t key[MC_KEY_LENGTH_MAX];
    size_t length;
    int count; /* of replicas, or an error */
    struct mc_core_replica replicas[MC_REPLICA_COUNT_MAX];
    struct mc_core_segment segments[MC_REPLICA_COUNT_MAX];
    bool is_there[MC_REPLICA_COUNT_MAX];
    struct mc_core_why why;
    uint64_t firm_ms;
};

static void ask_one_key(struct mc_core *core, void *argument)
{
    struct one_key *one = argument;
    struct mc_span key = mc_span(one->key, one->length);
    one->count = mc_core_query(core, key, one->replicas, MC_REPLICA_COUNT_MAX);
    one->count = one->count > (int)MC_REPLICA_COUNT_MAX ? (int)MC_REPLICA_COUNT_MAX : one->count;
    for (int i = 0; i < one->count; i++)
        one->is_there[i] = mc_core_segment(core, one->replicas[i].segment, &one->segments[i]);
    one->firm_ms = one->count < 0 ? 0 : mc_core_firm_left_ms(core, key);
    mc_core_why(core, key, &one->why);
}

static void write_replica(struct mc_json_writer *writer, const struct one_key *one, int i)
{
    const struct mc_core_segment *segment = &one->segments[i];
    char id[48];
    snprintf(id, sizeof(id), MC_ID_LOG, MC_ID_LOG_ARGS(segment->owner));
    mc_json_begin(writer, NULL, '{');
    mc_http_json_add(writer, "node", segment->name, strlen(segment->name));
    mc_json_add_text(writer, "id", id);
    mc_http_json_add(writer, "address", segment->tcp_address, strlen(segment->tcp_address));
    mc_json_add_bool(writer, "is_on_disk", one->replicas[i].is_on_disk);
    mc_json_add_text(writer, "state", mc_view_segment_state(segment));
    mc_json_end(writer, '}');
}

static void write_found(struct mc_json_writer *writer, const struct one_key *one)
{
    bool is_there = one->count >= 0;
    mc_json_add_bool(writer, "is_there", is_there);
    if (is_there)
        mc_json_add_number(writer, "bytes", one->count > 0 ? one->replicas[0].length : 0);
    if (one->firm_ms > 0)
        mc_json_add_number(writer, "firm_pin_ms", one->firm_ms);
    mc_json_begin(writer, "replicas", '[');
    for (int i = 0; i < one->count; i++)
        if (one->is_there[i])
            write_replica(writer, one, i);
    mc_json_end(writer, ']');
    if (is_there)
        return;
    mc_json_add_text(writer, "reason", mc_metrics_reason(one->why.why));
    if (one->why.most_ms > 0) {
        mc_json_add_real(writer, "least_seconds_ago", (double)one->why.least_ms / 1000);
        mc_json_add_real(writer, "most_seconds_ago", (double)one->why.most_ms / 1000);
    }
    mc_json_add_real(writer, "remembered_seconds", (double)one->why.known_ms / 1000);
}

/* 0, or negative. */
static int key_read(struct mc_web_request *request, const struct mc_scope *scope, struct one_key *one,
                    struct mc_buffer *said)
{
    if (!mc_http_parameter(request, "key", said) || said->length == 0 || said->failed)
        return said->failed ? MC_ERR_NO_MEMORY : MC_ERR_INVALID_PARAMS;
    one->length = scope->length + said->length;
    if (one->length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_PARAMS;
    memcpy(one->key, scope->bytes, scope->length);
    memcpy(one->key + scope->length, said->data, said->length);
    return 0;
}

void mc_view_key(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true}, said = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct mc_scope scope;
    if (!mc_http_scope(request, &scope, NULL))
        return;
    struct one_key *one = calloc(1, sizeof(*one));
    int rc = one == NULL ? MC_ERR_NO_MEMORY : key_read(request, &scope, one, &said);
    if (rc == 0)
        rc = mc_server_ask(view->server, ask_one_key, one, MC_HTTP_ASK_MS);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
    } else {
        mc_json_begin(&writer, NULL, '{');
        mc_json_add_bool(&writer, "success", true);
        mc_json_begin(&writer, "data", '{');
        mc_http_json_add(&writer, "key", said.data, said.length);
        write_found(&writer, one);
        mc_json_end(&writer, '}');
        mc_json_end(&writer, '}');
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    mc_buffer_free(&said);
    free(one);
}
