/* mooncake misses: why keys were not there, what memory of other sizes would have found, how soon keys are used again.
 */
#include "console/console.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX 32u  /* more are of no master */
#define PARTS_SHOWN 3u /* in one line */

struct counted {
    char name[40];
    uint64_t count;
};

/* Names are printed: nothing but what ours have. */
static void counted_name(struct counted *one, struct mc_span name)
{
    const uint8_t *at = name.data;
    size_t length = name.length < sizeof(one->name) - 1 ? name.length : sizeof(one->name) - 1;
    for (size_t i = 0; i < length; i++)
        one->name[i] = (char)(isalnum(at[i]) || at[i] == '_' || at[i] == '+' ? at[i] : '?');
    one->name[length] = 0;
}

/* An object of numbers; those that are not 0. is_sorted: the largest first. */
static size_t parts_read(struct mc_span data, const char *path, bool is_sorted, struct counted list[PARTS_MAX],
                         uint64_t *all)
{
    struct mc_span value;
    struct mc_json_cursor cursor;
    size_t count = 0;
    *all = 0;
    if (mc_json_find(data, path, &value) != 1 || mc_json_open(value, '{', &cursor) < 0)
        return 0;
    while (count < PARTS_MAX && mc_json_next(&cursor) == 1) {
        struct counted one = {.count = 0};
        size_t at = count;
        if (mc_json_number(&cursor, &one.count) < 0 || one.count == 0)
            continue;
        counted_name(&one, cursor.name);
        for (; is_sorted && at > 0 && list[at - 1].count < one.count; at--)
            list[at] = list[at - 1];
        list[at] = one;
        *all += one.count;
        count++;
    }
    return count;
}

void mc_console_print_parts(FILE *out, struct mc_span data, const char *path)
{
    struct counted list[PARTS_MAX];
    uint64_t all;
    size_t count = parts_read(data, path, true, list, &all);
    for (size_t i = 0; i < count && i < PARTS_SHOWN; i++)
        fprintf(out, "%s%s %.1f %%", i == 0 ? "" : ", ", list[i].name, 100 * (double)list[i].count / (double)all);
    if (count == 0)
        fprintf(out, "none");
}

static void print_advice(FILE *out, struct mc_span data)
{
    struct mc_span list;
    struct mc_json_cursor cursor;
    char text[100];
    unsigned count = 0;
    fprintf(out, "advice    ");
    if (mc_json_find(data, "advice", &list) == 1 && mc_json_open(list, '[', &cursor) == 0)
        for (; count < 4 && mc_json_next(&cursor) == 1; count++)
            fprintf(out, "%s%s", count == 0 ? "" : "; ", mc_console_text(cursor.value, "text", text, sizeof(text)));
    fprintf(out, "%s\n", count == 0 ? "nothing was looked for yet" : "");
}

void mc_console_print_misses_short(FILE *out, struct mc_span data)
{
    fprintf(out, "missed    ");
    mc_console_print_parts(out, data, "misses");
    fprintf(out, "\n");
    print_advice(out, data);
}

/* ---- all of it ---- */

static void print_found(FILE *out, struct mc_span data)
{
    char count[32];
    struct mc_span lately;
    uint64_t lookups = mc_console_number(data, "lookups"), hits = mc_console_number(data, "hits");
    fprintf(out, "found     %.1f %% of %s lookups", lookups == 0 ? 0 : 100 * (double)hits / (double)lookups,
            mc_console_count(count, lookups));
    if (mc_json_find(data, "curve.hit_ratio", &lately) == 1 && !mc_span_equal(lately, mc_span_string("null")))
        fprintf(out, "; %.1f %% lately", 100 * mc_console_real(data, "curve.hit_ratio"));
    fprintf(out, "\n");
}

static void print_reasons(FILE *out, struct mc_span data)
{
    struct counted list[PARTS_MAX];
    char text[32];
    uint64_t all;
    size_t count = parts_read(data, "misses", true, list, &all);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s%-16s %12s %5.1f %%\n", i == 0 ? "missed    " : "          ", list[i].name,
                mc_console_count(text, list[i].count), 100 * (double)list[i].count / (double)all);
}

/* A line a size, and which of them is the memory that there is. */
static void print_curve(FILE *out, struct mc_span data)
{
    struct mc_span list, ratio;
    struct mc_json_cursor cursor;
    char size[32];
    uint64_t now = mc_console_number(data, "curve.capacity_bytes");
    bool is_first = true;
    if (mc_json_find(data, "curve.points", &list) != 1 || mc_json_open(list, '[', &cursor) < 0)
        return;
    while (mc_json_next(&cursor) == 1) {
        uint64_t bytes = mc_console_number(cursor.value, "bytes");
        if (mc_json_find(cursor.value, "hit_ratio", &ratio) != 1 || mc_span_equal(ratio, mc_span_string("null")))
            continue;
        fprintf(out, "%s%12s %15.1f %%%s\n", is_first ? "memory    " : "          ", mc_console_size(size, bytes),
                100 * mc_console_real(cursor.value, "hit_ratio"), bytes == now ? "  (as it is)" : "");
        is_first = false;
    }
}

static void print_reuse(FILE *out, struct mc_span data)
{
    struct counted list[PARTS_MAX];
    char text[32];
    uint64_t all, so_far = 0;
    size_t count = parts_read(data, "reuse_seconds", false, list, &all);
    for (size_t i = 0; i < count; i++) {
        so_far += list[i].count;
        bool is_last = strcmp(list[i].name, "+Inf") == 0;
        fprintf(out, "%s%16s %11.1f %%\n", i == 0 ? "used again" : "          ",
                is_last ? "later" : mc_console_time(text, strtoull(list[i].name, NULL, 10)),
                100 * (double)(is_last ? list[i].count : so_far) / (double)all);
    }
}

static void print_all(FILE *out, struct mc_span data)
{
    print_found(out, data);
    print_reasons(out, data);
    print_curve(out, data);
    print_advice(out, data);
    print_reuse(out, data);
}

/* ---- one key ---- */

static void print_why(FILE *out, struct mc_span data)
{
    char key[4096], reason[64], least[32], most[32];
    (void)mc_console_text(data, "reason", reason, sizeof(reason));
    (void)mc_console_text(data, "key", key, sizeof(key));
    fprintf(out, "%s", key[0] == 0 ? "it" : key); /* a master of a release before does not say it */
    if (mc_console_bool(data, "is_there")) {
        fprintf(out, " is there\n");
        return;
    }
    fprintf(out, " is not there: %s", reason);
    if (mc_console_real(data, "seconds_ago.1") > 0)
        fprintf(out, ", %s to %s ago", mc_console_time(least, mc_console_whole(data, "seconds_ago.0")),
                mc_console_time(most, mc_console_whole(data, "seconds_ago.1")));
    if (mc_console_bool(data, "was_used_again"))
        fprintf(out, "; it had been used again");
    fprintf(out, "\n");
}

static int ask_misses(struct mc_console *console, const char *path, struct mc_buffer *reply, struct mc_span *data)
{
    int code = mc_console_ask(console, path, NULL, reply);
    if (code == MC_CONSOLE_FINE && mc_json_find(mc_span(reply->data, reply->length), "data", data) != 1)
        code = mc_console_strange(console);
    if (code == MC_CONSOLE_FINE && console->is_json) {
        mc_console_put_json(console->out, *data);
        fprintf(console->out, "\n");
    }
    return code;
}

int mc_console_misses(struct mc_console *console)
{
    struct mc_buffer reply = {0}, path = {0};
    struct mc_span data;
    bool is_one = console->word_count > 0;
    mc_buffer_printf(&path, is_one ? "/api/v1/misses/why?key=" : "/api/v1/misses");
    if (is_one)
        mc_console_escape(&path, mc_span_string(console->words[0]));
    mc_buffer_put_u8(&path, 0);
    int code = ask_misses(console, (const char *)path.data, &reply, &data);
    if (code == MC_CONSOLE_FINE && !console->is_json) {
        if (is_one)
            print_why(console->out, data);
        else
            print_all(console->out, data);
    }
    if (code == MC_CONSOLE_FINE && is_one && !mc_console_bool(data, "is_there"))
        code = MC_CONSOLE_FAILED; /* for scripts, as with keys */
    mc_buffer_free(&reply);
    mc_buffer_free(&path);
    return code;
}
