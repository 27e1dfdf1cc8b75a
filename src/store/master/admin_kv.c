/* What became readable and what is not any more, on the admin port: the ring's events, by number; and a snapshot of all
 * keys with the number after which events have to be applied to it. */
#include "base/error.h"
#include "env/clock.h"
#include "store/master/http.h"
#include "store/master/kv_snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WAIT_MS_MAX 60000u
#define WAIT_SLICE_MS 500u /* then it is looked whether the answer is still waited for */
#define SLICES_MAX 256u    /* for one page: a table may be nearly empty */
#define KEYS_PER_PAGE 1000u
#define KEYS_PER_PAGE_MAX 10000u
#define PAGE_BYTES_MAX (1u << 20) /* keys may be long */

static const char *medium_name(enum mc_core_medium medium)
{
    return medium == MC_MEDIUM_DISK ? "disk" : "cpu"; /* as the original says it */
}

static void write_key(struct mc_json_writer *writer, struct mc_span key)
{
    struct mc_span name = mc_key_tenant(key), local = mc_key_local(key);
    mc_http_json_add(writer, "tenant_id", name.data, name.length);
    mc_http_json_add(writer, "object_key", local.data, local.length);
    mc_http_json_stamp(writer, key);
}

/* ---- the status ---- */

void mc_kv_status(struct mc_kv_events *events, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct mc_kv_counts counts = {.pages = 0};
    if (events != NULL)
        mc_kv_events_counts(events, &counts);
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "enabled", events != NULL);
    mc_json_add_number(&writer, "published_batches", counts.pages);
    mc_json_add_number(&writer, "published_events", counts.events);
    mc_json_add_number(&writer, "dropped_events", counts.missed);
    mc_json_add_number(&writer, "skipped_unparsed_keys", counts.unparsed);
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* ---- events ---- */

static void write_event(struct mc_json_writer *writer, const struct mc_kv_event *event)
{
    mc_json_begin(writer, NULL, '{');
    mc_json_add_number(writer, "event_id", event->number);
    mc_json_add_number(writer, "timestamp", event->wall_ms);
    mc_json_add_text(writer, "event_type", event->is_there ? "stored" : "removed");
    mc_json_add_text(writer, "medium", medium_name(event->medium));
    write_key(writer, event->key);
    mc_json_end(writer, '}');
}

/* NULL: it is everybody's. */
static bool is_told(const struct mc_scope *scope, struct mc_span key)
{
    return scope == NULL || mc_scope_has(scope, key);
}

/* Past pages of events that are all of others, so that who goes on after the last one that he was told gets further.
 * The number of the last one that was looked at. */
static uint64_t read_own(struct mc_kv_events *events, const struct mc_scope *scope, uint64_t epoch, uint64_t after,
                         size_t limit, struct mc_kv_page *page)
{
    size_t own = 0;
    do {
        mc_kv_events_read(events, epoch, after, limit, page);
        for (size_t i = 0; i < page->count; i++)
            own += is_told(scope, page->events[i].key);
        after = page->count == 0 ? after : page->events[page->count - 1].number;
    } while (own == 0 && page->count > 0 && after < page->mark.last && !page->is_gap);
    return after;
}

static void write_page(struct mc_buffer *text, const char *backend_id, const struct mc_scope *scope, uint64_t next,
                       const struct mc_kv_page *page)
{
    struct mc_json_writer writer = {.out = text};
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_http_json_add(&writer, "backend_id", backend_id, strlen(backend_id));
    mc_json_add_number(&writer, "epoch", page->mark.epoch);
    mc_json_add_number(&writer, "first", page->mark.first);
    mc_json_add_number(&writer, "last", page->mark.last);
    mc_json_add_number(&writer, "next", next);
    mc_json_add_bool(&writer, "is_gap", page->is_gap);
    mc_json_begin(&writer, "events", '[');
    for (size_t i = 0; i < page->count; i++)
        if (is_told(scope, page->events[i].key))
            write_event(&writer, &page->events[i]);
    mc_json_end(&writer, ']');
    mc_json_end(&writer, '}');
}

/* Until there is something to tell, that time is over, or nobody waits for the answer. */
static void await(struct mc_kv_events *events, struct mc_web_request *request, uint64_t epoch, uint64_t after,
                  uint64_t wait_ms)
{
    uint64_t now_ms = mc_clock_ms(), until_ms = now_ms + wait_ms;
    struct mc_kv_mark mark;
    bool is_waiting = wait_ms > 0;
    while (is_waiting) {
        uint64_t slice_ms = until_ms - now_ms < WAIT_SLICE_MS ? until_ms - now_ms : WAIT_SLICE_MS;
        bool may_wait = mc_kv_events_wait(events, epoch, after, mc_clock_ns() + slice_ms * 1000000);
        mc_kv_events_mark(events, &mark);
        now_ms = mc_clock_ms();
        is_waiting =
            may_wait && mark.epoch == epoch && mark.last == after && now_ms < until_ms && mc_web_is_awaited(request);
    }
}

void mc_kv_get(struct mc_kv_events *events, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    uint64_t epoch, after, limit, wait_ms;
    struct mc_scope scope;
    bool is_scoped;
    if (!mc_http_scope(request, &scope, &is_scoped))
        return;
    bool is_good = mc_http_number(request, "epoch", 0, UINT64_MAX, &epoch) &&
                   mc_http_number(request, "after", 0, UINT64_MAX - 1, &after) &&
                   mc_http_number(request, "limit", MC_KV_EVENTS_PAGE, MC_KV_EVENTS_PAGE, &limit) && limit > 0 &&
                   mc_http_number(request, "wait_ms", 0, WAIT_MS_MAX, &wait_ms);
    struct mc_kv_page *page = is_good && events != NULL ? malloc(sizeof(*page)) : NULL;
    if (events == NULL || !is_good || page == NULL) {
        mc_http_reply_error(request, events == NULL ? MC_ERR_UNAVAILABLE_IN_CURRENT_MODE
                                     : !is_good     ? MC_ERR_INVALID_PARAMS
                                                    : MC_ERR_NO_MEMORY);
        return;
    }
    await(events, request, epoch, after, wait_ms);
    after = read_own(events, is_scoped ? &scope : NULL, epoch, after, (size_t)limit, page);
    if (page->mark.epoch == 0) {
        mc_http_reply_error(request, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    } else {
        write_page(&text, mc_kv_events_backend(events), is_scoped ? &scope : NULL, after, page);
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    free(page);
}

/* ---- a snapshot, a page at a time ---- */

struct keys_page {
    size_t left;                  /* keys that it still takes */
    const struct mc_scope *scope; /* NULL: of all */
    struct mc_json_writer *writer;
};

static bool write_object(void *context, struct mc_span key, unsigned media)
{
    struct keys_page *page = context;
    if (!is_told(page->scope, key))
        return true;
    page->left -= page->left > 0;
    mc_json_begin(page->writer, NULL, '{');
    write_key(page->writer, key);
    mc_json_begin(page->writer, "media", '[');
    for (unsigned medium = MC_MEDIUM_MEMORY; medium <= MC_MEDIUM_DISK; medium++)
        if ((media & 1u << medium) != 0)
            mc_json_add_text(page->writer, NULL, medium_name(medium));
    mc_json_end(page->writer, ']');
    mc_json_end(page->writer, '}');
    return page->left > 0 && page->writer->out->length < PAGE_BYTES_MAX;
}

/* "EPOCH.AFTER.AT". False: that is none. Nothing: a snapshot begins. */
static bool cursor_read(const struct mc_web_request *request, struct mc_kv_cursor *cursor)
{
    struct mc_buffer text = {.may_fail = true};
    char end;
    *cursor = (struct mc_kv_cursor){.epoch = 0};
    if (!mc_http_parameter(request, "cursor", &text) && !text.failed)
        return true;
    mc_buffer_put_u8(&text, 0);
    bool is_good = !text.failed && text.length < 64 && text.data[0] >= '0' && text.data[0] <= '9' &&
                   sscanf((const char *)text.data, "%20" SCNu64 ".%20" SCNu64 ".%20" SCNu64 "%c", &cursor->epoch,
                          &cursor->after, &cursor->at, &end) == 3 &&
                   cursor->epoch != 0;
    mc_buffer_free(&text);
    return is_good;
}

/* 0, or negative: also where the cursor is of another epoch. */
static int fill_page(struct mc_server *server, struct mc_kv_slice *slice)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < SLICES_MAX && !slice->is_last && !slice->is_full; i++) {
        rc = mc_server_ask(server, mc_kv_slice_read, slice, MC_HTTP_ASK_MS);
        if (rc == 0 && slice->is_stale)
            rc = MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    }
    return rc;
}

void mc_kv_snapshot(struct mc_server *server, struct mc_kv_events *events, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct mc_scope scope;
    bool is_scoped;
    if (!mc_http_scope(request, &scope, &is_scoped))
        return;
    struct keys_page page = {.scope = is_scoped ? &scope : NULL, .writer = &writer};
    struct mc_kv_slice slice = {.events = events, .visit = write_object, .context = &page};
    char next[64];
    uint64_t limit;
    bool is_good = cursor_read(request, &slice.cursor) &&
                   mc_http_number(request, "limit", KEYS_PER_PAGE, KEYS_PER_PAGE_MAX, &limit) && limit > 0;
    int rc = events == NULL ? MC_ERR_UNAVAILABLE_IN_CURRENT_MODE : is_good ? 0 : MC_ERR_INVALID_PARAMS;
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_begin(&writer, "keys", '[');
    if (rc == 0) {
        page.left = (size_t)limit;
        rc = fill_page(server, &slice);
    }
    mc_json_end(&writer, ']');
    if (rc < 0) {
        mc_buffer_free(&text);
        mc_http_reply_error(request, rc);
        return;
    }
    mc_json_add_number(&writer, "epoch", slice.cursor.epoch);
    mc_json_add_number(&writer, "after", slice.cursor.after);
    snprintf(next, sizeof(next), "%" PRIu64 ".%" PRIu64 ".%" PRIu64, slice.cursor.epoch, slice.cursor.after,
             slice.cursor.at);
    if (!slice.is_last)
        mc_json_add_text(&writer, "cursor", next);
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}
