/* mooncake top: the cluster in a terminal, drawn anew every few seconds; without a terminal once. */
#include "console/console.h"

#include "env/clock.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define SPARKS_MAX 60u
#define EVENTS_SHOWN 5
#define ROWS_LEAST 3

struct screen {
    struct termios before;
    bool is_terminal;
    int columns, rows;
};

static volatile sig_atomic_t is_ended;

static void on_end(int number)
{
    (void)number;
    is_ended = 1;
}

/* ---- the terminal ---- */

static void screen_measure(struct screen *screen, FILE *out)
{
    struct winsize size;
    bool is_known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    screen->columns = is_known ? size.ws_col : 110;
    screen->rows = is_known ? size.ws_row : 60;
}

/* Keys come one by one and are not shown; the picture is on a screen of its own. */
static void screen_enter(struct screen *screen, FILE *out)
{
    struct sigaction end = {.sa_handler = on_end};
    (void)sigaction(SIGINT, &end, NULL);
    (void)sigaction(SIGTERM, &end, NULL);
    (void)sigaction(SIGHUP, &end, NULL);
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &screen->before) == 0) {
        raw = screen->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
        screen->is_terminal = true;
    }
    fprintf(out, "\033[?1049h\033[?25l");
}

static void screen_leave(const struct screen *screen, FILE *out)
{
    fprintf(out, "\033[?25h\033[?1049l");
    (void)fflush(out);
    if (screen->is_terminal)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
}

/* False: somebody wants it to end. */
static bool screen_wait(const struct screen *screen, uint64_t wait_ms)
{
    uint64_t end_ms = mc_clock_ms() + wait_ms;
    for (uint64_t now_ms = mc_clock_ms(); now_ms < end_ms && is_ended == 0; now_ms = mc_clock_ms()) {
        struct pollfd keys = {.fd = screen->is_terminal ? STDIN_FILENO : -1, .events = POLLIN};
        char key = 0;
        if (poll(&keys, 1, (int)(end_ms - now_ms)) <= 0)
            continue;
        if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q' || key == 4)
            return false;
        return true; /* another key: at once */
    }
    return is_ended == 0;
}

/* ---- curves ---- */

struct spark {
    double values[SPARKS_MAX];
    size_t count;
};

static void spark_add(struct spark *spark, double value)
{
    if (spark->count < SPARKS_MAX)
        spark->values[spark->count++] = value;
}

static void print_spark(FILE *out, const char *name, const struct spark *spark, double least_top, const char *now)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double top = least_top;
    for (size_t i = 0; i < spark->count; i++)
        top = spark->values[i] > top ? spark->values[i] : top;
    fprintf(out, "%-9s ", name);
    for (size_t i = 0; i < spark->count; i++) {
        double value = spark->values[i], height = value / top; /* of any answer: also infinite, or no number */
        int step = height >= 1 ? 8 : height > 0 ? (int)(8 * height + 0.5) : 0;
        fprintf(out, "%s", blocks[step == 0 && value > 0 ? 1 : step]);
    }
    fprintf(out, " %s\n", now);
}

/* One series of the answer; its numbers, at most SPARKS_MAX + 1. */
static size_t series_read(struct mc_span json, const char *name, double values[SPARKS_MAX + 1])
{
    char path[64];
    struct mc_span list;
    struct mc_json_cursor cursor;
    size_t count = 0;
    snprintf(path, sizeof(path), "series.%s", name);
    if (mc_json_find(json, path, &list) != 1 || mc_json_open(list, '[', &cursor) < 0)
        return 0;
    while (count <= SPARKS_MAX && mc_json_next(&cursor) == 1)
        if (mc_json_real(&cursor, &values[count]) == 0)
            count++;
    return count;
}

/* Of counters what came between two samples; a counter that fell belongs to another leadership. */
static void spark_growth(struct spark *spark, struct mc_span json, const char *name, const char *of)
{
    double values[SPARKS_MAX + 1], all[SPARKS_MAX + 1];
    size_t count = series_read(json, name, values), of_count = of == NULL ? count : series_read(json, of, all);
    for (size_t i = 1; i < count && i < of_count; i++) {
        double grown = values[i] - values[i - 1], of_all = of == NULL ? 1 : all[i] - all[i - 1];
        spark_add(spark, grown < 0 || of_all <= 0 ? 0 : grown / of_all);
    }
}

static void print_curves(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    struct spark hits = {.count = 0}, puts = {.count = 0}, evictions = {.count = 0}, use = {.count = 0};
    double used[SPARKS_MAX + 1], capacity[SPARKS_MAX + 1];
    char path[64];
    snprintf(path, sizeof(path), "/api/v1/history?points=%u", SPARKS_MAX + 1);
    if (mc_console_ask(console, path, NULL, &reply) == MC_CONSOLE_FINE) {
        struct mc_span json = mc_span(reply.data, reply.length);
        spark_growth(&hits, json, "lookup_hits", "lookups");
        spark_growth(&puts, json, "put_bytes", NULL);
        spark_growth(&evictions, json, "evicted_objects", NULL);
        size_t count = series_read(json, "used", used), of_count = series_read(json, "capacity", capacity);
        for (size_t i = 0; i < count && i < of_count; i++)
            spark_add(&use, capacity[i] > 0 ? used[i] / capacity[i] : 0);
        print_spark(console->out, "hits", &hits, 1, "of lookups, last hour");
        print_spark(console->out, "use", &use, 1, "of memory");
        print_spark(console->out, "put", &puts, 0, "bytes");
        print_spark(console->out, "evicted", &evictions, 0, "objects");
    }
    mc_buffer_free(&reply);
}

/* ---- the picture ---- */

static void print_nodes(struct mc_console *console, int rows)
{
    struct mc_buffer reply = {0};
    struct mc_span list;
    struct mc_json_cursor cursor;
    char path[96];
    int shown = 0;
    snprintf(path, sizeof(path), "/api/v1/nodes?limit=%d&sort=%s", rows < 1000 ? rows : 1000, console->sort);
    if (mc_console_ask(console, path, NULL, &reply) == MC_CONSOLE_FINE &&
        mc_json_find(mc_span(reply.data, reply.length), "nodes", &list) == 1 && mc_json_open(list, '[', &cursor) == 0) {
        mc_console_print_nodes_head(console->out);
        for (; mc_json_next(&cursor) == 1; shown++)
            mc_console_print_node(console->out, cursor.value);
        uint64_t found = mc_console_number(mc_span(reply.data, reply.length), "found");
        if (found > (uint64_t)shown)
            fprintf(console->out, "... %" PRIu64 " more\n", found - (uint64_t)shown);
    }
    mc_buffer_free(&reply);
}

static void print_events(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    struct mc_span list;
    struct mc_json_cursor cursor;
    char path[64];
    snprintf(path, sizeof(path), "/api/v1/events?limit=%d", EVENTS_SHOWN);
    if (mc_console_ask(console, path, NULL, &reply) == MC_CONSOLE_FINE &&
        mc_json_find(mc_span(reply.data, reply.length), "events", &list) == 1 && mc_json_open(list, '[', &cursor) == 0)
        while (mc_json_next(&cursor) == 1)
            mc_console_print_event(console->out, cursor.value);
    mc_buffer_free(&reply);
}

/* A master of a release before has no such answer, or a key no right to it: that is said, and the rest is shown. */
static void print_misses(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    struct mc_span data;
    console->complaints = console->out; /* in its place: on stderr it would stand across the picture */
    if (mc_console_ask(console, "/api/v1/misses", NULL, &reply) == MC_CONSOLE_FINE &&
        mc_json_find(mc_span(reply.data, reply.length), "data", &data) == 1)
        mc_console_print_misses_short(console->out, data);
    console->complaints = NULL;
    mc_buffer_free(&reply);
}

/* Everything, as text of as many lines as it takes. */
static int picture(struct mc_console *console, int rows)
{
    struct mc_buffer reply = {0};
    struct mc_span data;
    int code = mc_console_ask(console, "/api/v1/overview", NULL, &reply);
    if (code == MC_CONSOLE_FINE && mc_json_find(mc_span(reply.data, reply.length), "data", &data) != 1)
        code = mc_console_strange(console);
    if (code == MC_CONSOLE_FINE) {
        mc_console_print_status(console, data);
        if (mc_console_bool(data, "is_ready"))
            print_misses(console);
        fprintf(console->out, "\n");
        print_curves(console);
        fprintf(console->out, "\n");
        if (mc_console_bool(data, "is_ready"))
            print_nodes(console, rows > ROWS_LEAST ? rows : ROWS_LEAST);
        fprintf(console->out, "\n");
        print_events(console);
    }
    mc_buffer_free(&reply);
    return code;
}

/* Bytes of the first `columns` characters of a line. */
static size_t line_fit(const char *line, size_t length, int columns)
{
    size_t at = 0;
    for (int seen = 0; at < length; at++)
        if (((uint8_t)line[at] & 0xc0) != 0x80 && seen++ == columns)
            break;
    return at;
}

static void draw(FILE *out, const struct screen *screen, const char *text, size_t length)
{
    int row = 0;
    fprintf(out, "\033[H");
    for (const char *at = text, *end = text + length; at < end && row < screen->rows - 1; row++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        size_t line = next == NULL ? (size_t)(end - at) : (size_t)(next - at);
        (void)fwrite(at, 1, line_fit(at, line, screen->columns), out); /* the next picture shows what was not written */
        fprintf(out, "\033[K\n");
        at += line + 1;
    }
    fprintf(out, "\033[J\033[7m q: ends \033[0m");
}

static int draw_until_ended(struct mc_console *console)
{
    struct screen screen = {.is_terminal = false};
    FILE *out = console->out;
    int code = MC_CONSOLE_FINE;
    screen_enter(&screen, out);
    do {
        char *text = NULL;
        size_t length = 0;
        console->out = open_memstream(&text, &length);
        if (console->out == NULL) {
            code = MC_CONSOLE_FAILED;
            break;
        }
        screen_measure(&screen, out);
        code = picture(console, screen.rows - 26);
        fclose(console->out);
        if (code == MC_CONSOLE_FINE)
            draw(out, &screen, text, length);
        free(text);
    } while (fflush(out) == 0 && screen_wait(&screen, console->interval_ms));
    console->out = out;
    screen_leave(&screen, out);
    return code;
}

int mc_console_top(struct mc_console *console)
{
    if (console->is_json) {
        fprintf(stderr, "mooncake: top draws; status --json, nodes --json and events --json are for scripts\n");
        return MC_CONSOLE_MISUSED;
    }
    if (console->is_once || !isatty(fileno(console->out)))
        return picture(console, console->limit != 0 ? (int)console->limit : 20);
    return draw_until_ended(console);
}
