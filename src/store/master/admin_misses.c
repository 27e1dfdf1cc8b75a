/* Misses on the admin port: why keys were not there, and what memory of another size would have found. */
#include "base/error.h"
#include "base/size.h"
#include "store/master/http.h"
#include "store/master/metrics.h"

#define MORE_MAX (1ull << 60)

struct misses_question {
    struct mc_core_statistics statistics;
    struct mc_core_curve curve;
    uint64_t more;
};

static void ask_misses(struct mc_core *core, void *argument)
{
    struct misses_question *question = argument;
    mc_core_statistics(core, &question->statistics);
    mc_core_curve(core, &question->curve); /* how much memory there is */
    question->curve.asked.bytes = question->curve.capacity + question->more;
    mc_core_curve(core, &question->curve);
}

void mc_misses_metrics(struct mc_server *server, struct mc_buffer *out)
{
    struct misses_question question = {.more = 0};
    if (mc_server_ask(server, ask_misses, &question, MC_HTTP_ASK_MS) == 0) /* else the page is worth more than these */
        mc_metrics_misses(out, &question.statistics, &question.curve);
}

/* ---- all of them ---- */

static void write_reasons(struct mc_buffer *text, const struct mc_core_statistics *statistics)
{
    mc_buffer_printf(text, "{\"success\":true,\"data\":{\"lookups\":%llu,\"hits\":%llu,\"misses\":{",
                     (unsigned long long)statistics->lookups, (unsigned long long)statistics->lookup_hits);
    for (unsigned why = 0; why < MC_GONE_COUNT; why++)
        mc_buffer_printf(text, "%s\"%s\":%llu", why == 0 ? "" : ",", mc_metrics_reason((enum mc_gone)why),
                         (unsigned long long)statistics->misses[why]);
    mc_buffer_printf(text, "}");
}

static void write_ratio(struct mc_buffer *text, double ratio)
{
    if (ratio < 0)
        mc_buffer_printf(text, "null");
    else
        mc_buffer_printf(text, "%.4f", ratio);
}

static void write_curve(struct mc_buffer *text, const struct mc_core_curve *curve)
{
    mc_buffer_printf(text, ",\"curve\":{\"capacity_bytes\":%llu,\"known_bytes\":%llu,\"sample\":%.3g,\"hit_ratio\":",
                     (unsigned long long)curve->capacity, (unsigned long long)curve->known, curve->sample);
    write_ratio(text, curve->found);
    mc_buffer_printf(text, ",\"points\":[");
    for (unsigned i = 0; i < MC_CORE_CURVE_POINTS; i++) {
        mc_buffer_printf(text, "%s{\"bytes\":%llu,\"hit_ratio\":", i == 0 ? "" : ",",
                         (unsigned long long)curve->points[i].bytes);
        write_ratio(text, curve->points[i].ratio);
        mc_buffer_printf(text, "}");
    }
    mc_buffer_printf(text, "]},\"reuse_seconds\":{");
    for (unsigned i = 0; i < MC_CORE_SPANS; i++)
        mc_buffer_printf(text, "\"%llu\":%llu,", (unsigned long long)curve->span_s[i],
                         (unsigned long long)curve->spans[i]);
    mc_buffer_printf(text, "\"+Inf\":%llu}", (unsigned long long)curve->spans[MC_CORE_SPANS]);
}

/* "100.00 GB more: +6.0 points", as the curve says it; nothing before it does. */
static void write_step(struct mc_buffer *text, const struct mc_core_curve *curve,
                       const struct mc_core_curve_point *point)
{
    double now = curve->points[MC_CORE_CURVE_NOW].ratio, points = 100 * (point->ratio - now);
    uint64_t more = point->bytes - curve->capacity;
    char size[32];
    if (now < 0 || more == 0)
        return;
    mc_size_text(size, sizeof(size), more);
    mc_buffer_printf(text, "%s{\"more_bytes\":%llu,\"points\":%.2f,\"text\":\"%s more: %+.1f points\"}",
                     text->data[text->length - 1] == '[' ? "" : ",", (unsigned long long)more, points, size, points);
}

static void write_advice(struct mc_buffer *text, const struct mc_core_curve *curve)
{
    static const unsigned steps[] = {8, 9, 11}; /* a quarter, a half more, and as much again */
    mc_buffer_printf(text, ",\"advice\":[");
    if (curve->asked.bytes > curve->capacity) {
        write_step(text, curve, &curve->asked);
    } else {
        for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
            write_step(text, curve, &curve->points[steps[i]]);
    }
    mc_buffer_printf(text, "]}}");
}

void mc_misses_get(struct mc_server *server, struct mc_web_request *request)
{
    struct misses_question question = {.more = 0};
    struct mc_buffer text = {0};
    if (!mc_http_number(request, "more_bytes", 0, MORE_MAX, &question.more)) {
        mc_http_reply_error(request, MC_ERR_INVALID_PARAMS);
        return;
    }
    int rc = mc_server_ask(server, ask_misses, &question, MC_HTTP_ASK_MS);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
        return;
    }
    write_reasons(&text, &question.statistics);
    write_curve(&text, &question.curve);
    write_advice(&text, &question.curve);
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* ---- one key ---- */

struct why_question {
    uint8_t key[MC_KEY_LENGTH_MAX];
    size_t length;
    struct mc_core_why why;
};

static void ask_why(struct mc_core *core, void *argument)
{
    struct why_question *question = argument;
    mc_core_why(core, mc_span(question->key, question->length), &question->why);
}

static void write_why(struct mc_buffer *text, const struct mc_core_why *why, const struct mc_buffer *key)
{
    bool is_there = why->why == MC_GONE_NONE, has_time = why->most_ms > 0;
    mc_buffer_printf(text, "{\"success\":true,\"data\":{\"key\":");
    mc_http_json_string(text, (const char *)key->data, key->length);
    mc_buffer_printf(text, ",\"is_there\":%s,\"reason\":", is_there ? "true" : "false");
    mc_buffer_printf(text, is_there ? "null" : "\"%s\"", mc_metrics_reason(why->why));
    if (has_time)
        mc_buffer_printf(text, ",\"seconds_ago\":[%.1f,%.1f]", (double)why->least_ms / 1000,
                         (double)why->most_ms / 1000);
    if (mc_gone_is_evicted(why->why))
        mc_buffer_printf(text, ",\"was_used_again\":%s", why->is_proven ? "true" : "false");
    mc_buffer_printf(text, ",\"remembered_seconds\":%.1f}}", (double)why->known_ms / 1000);
}

void mc_misses_why(struct mc_server *server, struct mc_web_request *request)
{
    struct why_question question = {.length = 0};
    struct mc_buffer key = {0}, text = {0};
    struct mc_scope scope;
    if (!mc_http_scope(request, &scope, NULL))
        return;
    int rc = mc_http_parameter(request, "key", &key) && key.length > 0 ? 0 : MC_ERR_INVALID_PARAMS;
    question.length = scope.length + key.length;
    if (rc == 0 && question.length > MC_KEY_LENGTH_MAX)
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0) {
        memcpy(question.key, scope.bytes, scope.length);
        memcpy(question.key + scope.length, key.data, key.length);
        rc = mc_server_ask(server, ask_why, &question, MC_HTTP_ASK_MS);
    }
    if (rc < 0) {
        mc_http_reply_error(request, rc);
    } else {
        write_why(&text, &question.why, &key);
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    mc_buffer_free(&key);
}
