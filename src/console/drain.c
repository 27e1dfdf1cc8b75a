/* mooncake drain and undrain. */
#include "console/console.h"

#include "env/clock.h"
#include "env/meter.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define LOOK_MS 500
#define STUCK_MS 30000u /* without progress: then it says why that may be */

/* {"segments": [...]} of the words. */
static void write_names(const struct mc_console *console, struct mc_buffer *body)
{
    struct mc_json_writer writer = {.out = body};
    mc_json_begin(&writer, NULL, '{');
    mc_json_begin(&writer, "segments", '[');
    for (size_t i = 0; i < console->word_count; i++)
        mc_json_add_text(&writer, NULL, console->words[i]);
    mc_json_end(&writer, ']');
    mc_json_end(&writer, '}');
    mc_buffer_put_u8(body, 0);
}

static void print_job(FILE *out, struct mc_span job)
{
    char name[300], status[32], bytes[32];
    fprintf(out, "%-9s %s: %" PRIu64 " of %" PRIu64 " objects, %s moved\n",
            mc_console_text(job, "status", status, sizeof(status)),
            mc_console_text(job, "segments.0", name, sizeof(name)), mc_console_number(job, "succeeded_units"),
            mc_console_number(job, "total_units"), mc_console_size(bytes, mc_console_number(job, "migrated_bytes")));
}

static int list_jobs(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    struct mc_span list;
    struct mc_json_cursor cursor;
    bool is_begun = false;
    int code = mc_console_ask(console, "/api/v1/drain_jobs", NULL, &reply);
    if (code == MC_CONSOLE_FINE &&
        (mc_json_find(mc_span(reply.data, reply.length), "jobs", &list) != 1 || mc_json_open(list, '[', &cursor) < 0))
        code = mc_console_strange(console);
    while (code == MC_CONSOLE_FINE && mc_json_next(&cursor) == 1) {
        if (console->is_json)
            mc_console_list_add(console, &is_begun, cursor.value);
        else
            print_job(console->out, cursor.value);
    }
    if (console->is_json && code == MC_CONSOLE_FINE)
        mc_console_list_end(console, is_begun);
    mc_buffer_free(&reply);
    return code;
}

static void put_line(FILE *out, struct mc_span json)
{
    mc_console_put_json(out, json);
    fprintf(out, "\n");
}

static int say_end(const struct mc_console *console, struct mc_span job)
{
    char status[32];
    bool is_done = strcmp(mc_console_text(job, "status_name", status, sizeof(status)), "SUCCEEDED") == 0;
    if (console->is_json)
        put_line(console->out, job);
    else if (is_done)
        fprintf(console->out, "drained: the node can be ended; mooncake undrain takes that back\n");
    if (!is_done)
        fprintf(stderr, "mooncake: the drain has ended without success: %s%s\n", status,
                strcmp(status, "FAILED") == 0
                    ? "; the segment is gone, or another master leads by now: mooncake nodes tells which are there"
                    : "; somebody took it back: mooncake undrain, or on the page of the master");
    return is_done ? MC_CONSOLE_FINE : MC_CONSOLE_FAILED;
}

/* Until it ends, which is said: its last answer is in reply then. */
static int await_end(struct mc_console *console, const char *path, struct mc_meter *meter, struct mc_buffer *reply)
{
    uint64_t before = UINT64_MAX, moved_ms = mc_clock_ms();
    for (;;) {
        mc_meter_hold(meter); /* it may say what is wrong */
        int code = mc_console_ask(console, path, NULL, reply);
        mc_meter_go_on(meter);
        struct mc_span job = mc_span(reply->data, reply->length);
        uint64_t done = mc_console_number(job, "succeeded_units");
        if (code != MC_CONSOLE_FINE || mc_console_number(job, "status") > 2) /* SUCCEEDED, FAILED, CANCELED */
            return code;
        if (before == UINT64_MAX) {
            mc_meter_step(meter, "drain", "objects", mc_console_number(job, "total_units"), 0);
            mc_meter_from(meter, done);
        }
        mc_meter_at(meter, done);
        if (done != before)
            moved_ms = mc_clock_ms();
        before = done;
        if (mc_clock_ms() - moved_ms > STUCK_MS) {
            mc_meter_hold(meter);
            fprintf(stderr, "mooncake: nothing was moved for %u s: have the others room (mooncake status)?\n",
                    STUCK_MS / 1000);
            mc_meter_go_on(meter);
            moved_ms = mc_clock_ms();
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
}

static int follow_job(struct mc_console *console, const char *id)
{
    struct mc_buffer reply = {0};
    struct mc_meter meter;
    char path[160];
    snprintf(path, sizeof(path), "/api/v1/drain_jobs/query?job_id=%s", id);
    mc_meter_begin(&meter);
    int code = await_end(console, path, &meter, &reply);
    mc_meter_end(&meter);
    if (code == MC_CONSOLE_FINE)
        code = say_end(console, mc_span(reply.data, reply.length));
    mc_buffer_free(&reply);
    return code;
}

int mc_console_drain(struct mc_console *console)
{
    struct mc_buffer body = {0}, reply = {0};
    char id[64];
    if (console->word_count == 0)
        return list_jobs(console);
    write_names(console, &body);
    int code = mc_console_ask(console, "/api/v1/drain_jobs", (const char *)body.data, &reply);
    struct mc_span job = mc_span(reply.data, reply.length);
    if (code == MC_CONSOLE_FINE && mc_console_text(job, "job_id", id, sizeof(id))[0] == 0)
        code = mc_console_strange(console);
    if (code == MC_CONSOLE_FINE && console->waits)
        code = follow_job(console, id);
    else if (code == MC_CONSOLE_FINE && console->is_json)
        put_line(console->out, job);
    else if (code == MC_CONSOLE_FINE)
        fprintf(console->out, "being drained: mooncake drain shows how far it is\n");
    mc_buffer_free(&reply);
    mc_buffer_free(&body);
    return code;
}

int mc_console_undrain(struct mc_console *console)
{
    struct mc_buffer body = {0}, reply = {0};
    if (console->word_count == 0) {
        fprintf(stderr, "mooncake: undrain NODE...; mooncake nodes names them\n");
        return MC_CONSOLE_MISUSED;
    }
    write_names(console, &body);
    int code = mc_console_ask(console, "/api/v1/undrain", (const char *)body.data, &reply);
    struct mc_span said = mc_span(reply.data, reply.length), nothing;
    if (code == MC_CONSOLE_FINE && console->is_json && mc_json_find(said, "nothing", &nothing) < 0)
        code = mc_console_strange(console);
    else if (code == MC_CONSOLE_FINE && console->is_json)
        put_line(console->out, said);
    else if (code == MC_CONSOLE_FINE)
        fprintf(console->out, "takes objects again\n");
    mc_buffer_free(&reply);
    mc_buffer_free(&body);
    return code;
}
