/* What the master remembers: samples and events, and of both what is new to who asks. */
#include "base/error.h"
#include "env/log.h"
#include "store/master/events.h"
#include "store/master/history.h"
#include "store/master/http.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define POINTS 120u
#define EVENTS_PER_PAGE 100u
#define EVENTS_PER_PAGE_MAX 1000u

static void reply_or_fail(struct mc_web_request *request, int rc, struct mc_buffer *text)
{
    if (rc < 0) {
        mc_buffer_free(text);
        mc_http_reply_error(request, rc);
        return;
    }
    mc_http_reply(request, 200, MC_HTTP_JSON, text);
}

/* ---- samples ---- */

struct sample_list {
    struct mc_sample *samples;
    size_t count, step; /* every step-th is told, and the last */
};

static bool is_told(const struct sample_list *list, size_t i)
{
    return (list->count - 1 - i) % list->step == 0;
}

#define MC_HISTORY_WRITE(name)                                                                                         \
    mc_json_begin(writer, #name, '[');                                                                                 \
    for (size_t i = 0; i < list->count; i++)                                                                           \
        if (is_told(list, i))                                                                                          \
            mc_json_add_number(writer, NULL, list->samples[i].name);                                                   \
    mc_json_end(writer, ']');

static void write_series(struct mc_json_writer *writer, const struct sample_list *list)
{
    MC_HISTORY_WRITE(number)
    MC_HISTORY_WRITE(wall_ms)
    MC_HISTORY_WRITE(epoch)
    MC_HISTORY_SERIES(MC_HISTORY_WRITE, MC_HISTORY_WRITE)
    MC_HISTORY_WRITE(longest_turn_us)
    for (unsigned at = 0; at < MC_TURN_BOUNDS; at++) {
        char name[32];
        if (at < MC_TURN_BOUNDS - 1)
            snprintf(name, sizeof(name), "turns_%" PRIu32 "us", mc_turn_bounds_us[at]);
        mc_json_begin(writer, at < MC_TURN_BOUNDS - 1 ? name : "turns_longer", '[');
        for (size_t i = 0; i < list->count; i++)
            if (is_told(list, i))
                mc_json_add_number(writer, NULL, list->samples[i].turns[at]);
        mc_json_end(writer, ']');
    }
}

static void write_samples(struct mc_buffer *text, const struct sample_list *list, bool is_day)
{
    struct mc_json_writer writer = {.out = text};
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_add_number(&writer, "seconds_each", is_day ? 10 * MC_HISTORY_EVERY : 10);
    mc_json_add_number(&writer, "step", list->step);
    mc_json_begin(&writer, "series", '{');
    if (list->count > 0)
        write_series(&writer, list);
    mc_json_end(&writer, '}');
    mc_json_end(&writer, '}');
}

/* false: that is no range. */
static bool range_read(struct mc_web_request *request, bool *is_day)
{
    struct mc_buffer range = {.may_fail = true};
    bool is_said = mc_http_parameter(request, "range", &range);
    struct mc_span word = mc_span(range.data, range.length);
    *is_day = is_said && mc_span_equal(word, mc_span_string("day"));
    bool is_good = !range.failed && (!is_said || *is_day || mc_span_equal(word, mc_span_string("hour")));
    mc_buffer_free(&range);
    return is_good;
}

void mc_view_history(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct sample_list list = {.step = 1};
    uint64_t since, points;
    bool is_day;
    bool is_good = range_read(request, &is_day) && mc_http_number(request, "since", 0, UINT64_MAX, &since) &&
                   mc_http_number(request, "points", POINTS, MC_HISTORY_DAY, &points) && points > 0;
    int rc = is_good ? 0 : MC_ERR_INVALID_PARAMS;
    if (rc == 0) {
        list.samples = calloc(MC_HISTORY_DAY, sizeof(list.samples[0]));
        rc = list.samples == NULL ? MC_ERR_NO_MEMORY : 0;
    }
    if (rc == 0 && view->history != NULL)
        list.count = mc_history_read(view->history, is_day, since, list.samples, MC_HISTORY_DAY);
    if (rc == 0 && list.count > points)
        list.step = (list.count + (size_t)points - 1) / (size_t)points;
    if (rc == 0)
        write_samples(&text, &list, is_day);
    free(list.samples);
    reply_or_fail(request, rc, &text);
}

/* ---- events ---- */

static void write_event(struct mc_json_writer *writer, const struct mc_event *event)
{
    static const char *const levels[] = {"trace", "debug", "info", "warning", "error"};
    mc_json_begin(writer, NULL, '{');
    mc_json_add_number(writer, "number", event->number);
    mc_json_add_number(writer, "time_ms", event->wall_ms);
    mc_json_add_text(writer, "kind", mc_event_name(event->kind));
    mc_json_add_text(writer, "level", levels[event->level <= MC_LOG_ERROR ? event->level : MC_LOG_ERROR]);
    mc_json_add_number(writer, "count", event->count);
    mc_http_json_add(writer, "text", event->text, strlen(event->text));
    mc_json_end(writer, '}');
}

/* With `since` those after it, the oldest first; else the newest. Both in the order in which they came. */
void mc_view_events(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true}, asked = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    uint64_t since = 0, limit = 0, last = 0;
    size_t count = 0, from = 0;
    bool is_since = mc_http_parameter(request, "since", &asked);
    bool is_good = mc_http_number(request, "since", 0, UINT64_MAX, &since) &&
                   mc_http_number(request, "limit", EVENTS_PER_PAGE, EVENTS_PER_PAGE_MAX, &limit);
    mc_buffer_free(&asked);
    struct mc_event *events = is_good ? calloc(MC_EVENTS_MAX, sizeof(*events)) : NULL;
    int rc = !is_good ? MC_ERR_INVALID_PARAMS : events == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0 && view->events != NULL)
        count = mc_events_read(view->events, since, events, is_since ? (size_t)limit : MC_EVENTS_MAX, &last);
    if (!is_since && count > limit)
        from = count - (size_t)limit;
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_add_number(&writer, "last", last);
    mc_json_begin(&writer, "events", '[');
    for (size_t i = from; i < count; i++)
        write_event(&writer, &events[i]);
    mc_json_end(&writer, ']');
    mc_json_end(&writer, '}');
    free(events);
    reply_or_fail(request, rc, &text);
}
