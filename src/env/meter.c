/* The line of a terminal that says how far long work is. */
#include "env/meter.h"

#include "base/size.h"
#include "env/clock.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_MS 200u
#define BAR 24
#define BAR_LEAST 6
#define COLUMNS 80u /* of a terminal that does not say */
#define LINE_SIZE 512u

/* ---- the line ---- */

struct text {
    char *at, *end;
};

static void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at, (size_t)(text->end - text->at), format, arguments);
    va_end(arguments);
    text->at += length < 0 ? 0 : length < text->end - text->at ? length : text->end - text->at - 1;
}

static void number_add(struct text *text, uint64_t number, bool is_size)
{
    char size[32];
    mc_size_text(size, sizeof(size), number);
    if (is_size)
        text_add(text, "%s", size);
    else
        text_add(text, "%" PRIu64, number);
}

/* Of 1, from the count and from the time, whichever is further. Negative: not known. */
static double part_of(const struct mc_meter *meter, uint64_t done, double seconds)
{
    double part = meter->all > 0 ? (double)done / (double)meter->all : -1;
    double by_time = meter->seconds > 0 ? seconds / meter->seconds : -1;
    part = by_time > part ? by_time : part;
    return part > 1 ? 1 : part;
}

/* Negative: not known. */
static double seconds_left(const struct mc_meter *meter, uint64_t done, double rate, double seconds)
{
    double by_count = meter->all > done && rate > 0 ? (double)(meter->all - done) / rate : -1;
    double by_time = meter->seconds > 0 ? meter->seconds - seconds : -1;
    if (by_count < 0 || (by_time >= 0 && by_time < by_count))
        return by_time;
    return by_count;
}

/* "100 of 400 objects, 10/s, 30 s left". */
static void figures_add(struct text *text, const struct mc_meter *meter, uint64_t done, double seconds)
{
    bool is_size = strcmp(meter->unit, "B") == 0;
    uint64_t moved = done > meter->first ? done - meter->first : 0;
    double rate = seconds > 0 ? (double)moved / seconds : 0, left = seconds_left(meter, done, rate, seconds);
    char time[32];
    if (meter->unit[0] != 0) {
        number_add(text, done, is_size);
        if (meter->all > 0) {
            text_add(text, " of ");
            number_add(text, meter->all, is_size);
        }
        text_add(text, is_size ? ", " : " %s, ", meter->unit);
        if (is_size || rate >= 10)
            number_add(text, (uint64_t)rate, is_size);
        else
            text_add(text, "%.1f", rate);
        text_add(text, "/s, ");
    }
    mc_seconds_text(time, sizeof(time), (uint64_t)(left < 0 ? seconds : left + 0.5));
    text_add(text, left < 0 ? "%s so far" : "%s left", time);
}

/* The figures are what is wanted: the bar takes what they leave, and a note what is left then. */
void mc_meter_line(const struct mc_meter *meter, uint64_t done, double seconds, unsigned columns, char *line,
                   size_t size)
{
    char figures[LINE_SIZE] = "";
    struct text text = {line, line + (size < columns + 1u ? size : columns + 1u)};
    struct text behind = {figures, figures + sizeof(figures)};
    double part = part_of(meter, done, seconds);
    size_t length = strlen(meter->what), room = columns / 4; /* of a long one, as a path, the end says most */
    figures_add(&behind, meter, done, seconds);
    *line = 0;
    if (length > room && room > 3)
        text_add(&text, "...%s  ", meter->what + length - room + 3);
    else if (length > 0 && length <= room)
        text_add(&text, "%s  ", meter->what);
    long bar = text.end - text.at - (long)strlen(figures) - (long)sizeof("[] 100 %  ");
    bar = bar > BAR ? BAR : bar;
    int filled = (int)(part * (double)bar);
    if (part >= 0 && bar >= BAR_LEAST)
        text_add(&text, "[%.*s%.*s] ", filled, "########################", (int)bar - filled,
                 "........................");
    if (part >= 0)
        text_add(&text, "%3.0f %%  ", 100 * part);
    text_add(&text, "%s", figures);
    if (meter->note[0] != 0)
        text_add(&text, "  %s", meter->note);
}

/* ---- the thread ---- */

static void terminal_put(const char *text)
{
    ssize_t written = write(STDERR_FILENO, text, strlen(text)); /* whole, so that nobody's lines come between */
    (void)written;                                              /* a terminal that has gone is not told */
}

/* A shell's job in the background: where the line would stand, or has stood, is the prompt now. */
static bool is_in_background(void)
{
    pid_t front = tcgetpgrp(STDERR_FILENO);
    return front >= 0 && front != getpgrp(); /* negative: it is no job of that terminal */
}

static void drawn_set(struct mc_meter *meter, bool is_drawn)
{
    meter->is_drawn = is_drawn;
    atomic_store(&mc_log_wipes, is_drawn);
}

static void wipe(struct mc_meter *meter)
{
    if (meter->is_drawn && !is_in_background())
        terminal_put(MC_LOG_WIPE);
    drawn_set(meter, false);
}

static void draw(struct mc_meter *meter)
{
    struct winsize window = {0};
    char line[LINE_SIZE], whole[LINE_SIZE + 8];
    if (is_in_background()) {
        drawn_set(meter, false);
        return;
    }
    bool is_told = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
    double seconds = (double)(mc_clock_ms() - meter->step_ms) / 1e3;
    mc_meter_line(meter, atomic_load_explicit(&meter->done, memory_order_relaxed), seconds,
                  is_told ? window.ws_col - 1u : COLUMNS - 1u, line, sizeof(line));
    (void)snprintf(whole, sizeof(whole), "\r%s\033[K", line);
    drawn_set(meter, true); /* before it is: a line of the log that comes between wipes nothing, and stands above */
    terminal_put(whole);
    meter->drawn_ms = mc_clock_ms();
}

static void *drawer(void *argument)
{
    struct mc_meter *meter = argument;
    uint64_t next_ns = mc_clock_ns() + MC_METER_AFTER_MS * 1000000ull;
    pthread_mutex_lock(&meter->drawer.lock);
    while (!meter->drawer.stop) {
        if (mc_monitor_wait(&meter->drawer.lock, &meter->drawer.changed, next_ns) == 0)
            continue;
        if (!meter->is_held)
            draw(meter);
        next_ns = mc_clock_ns() + REDRAW_MS * 1000000ull;
    }
    wipe(meter);
    pthread_mutex_unlock(&meter->drawer.lock);
    return NULL;
}

/* ---- for who works ---- */

void mc_meter_begin(struct mc_meter *meter)
{
    *meter = (struct mc_meter){.unit = ""};
    meter->step_ms = mc_clock_ms();
    if (isatty(STDERR_FILENO) != 1)
        return;
    mc_monitor_init(&meter->drawer.lock, &meter->drawer.changed);
    meter->is_shown = mc_sleeper_start(&meter->drawer, "mc-meter", drawer, meter) == 0;
    if (!meter->is_shown)
        mc_monitor_destroy(&meter->drawer.lock, &meter->drawer.changed);
}

void mc_meter_step(struct mc_meter *meter, const char *what, const char *unit, uint64_t all, double seconds)
{
    if (!meter->is_shown)
        return;
    pthread_mutex_lock(&meter->drawer.lock);
    (void)snprintf(meter->what, sizeof(meter->what), "%s", what);
    meter->note[0] = 0;
    meter->unit = unit;
    meter->all = all;
    meter->first = 0;
    meter->seconds = seconds;
    meter->step_ms = mc_clock_ms();
    mc_meter_at(meter, 0);
    pthread_mutex_unlock(&meter->drawer.lock);
}

void mc_meter_from(struct mc_meter *meter, uint64_t done)
{
    if (!meter->is_shown)
        return;
    pthread_mutex_lock(&meter->drawer.lock);
    meter->first = done;
    mc_meter_at(meter, done);
    pthread_mutex_unlock(&meter->drawer.lock);
}

void mc_meter_note(struct mc_meter *meter, const char *format, ...)
{
    va_list arguments;
    if (!meter->is_shown)
        return;
    pthread_mutex_lock(&meter->drawer.lock);
    va_start(arguments, format);
    (void)vsnprintf(meter->note, sizeof(meter->note), format, arguments);
    va_end(arguments);
    pthread_mutex_unlock(&meter->drawer.lock);
}

void mc_meter_hold(struct mc_meter *meter)
{
    if (!meter->is_shown)
        return;
    pthread_mutex_lock(&meter->drawer.lock);
    meter->is_held = true;
    wipe(meter);
    pthread_mutex_unlock(&meter->drawer.lock);
}

void mc_meter_go_on(struct mc_meter *meter)
{
    if (!meter->is_shown)
        return;
    pthread_mutex_lock(&meter->drawer.lock);
    meter->is_held = false;
    if (meter->drawn_ms != 0 && mc_clock_ms() - meter->drawn_ms >= REDRAW_MS)
        draw(meter);
    pthread_mutex_unlock(&meter->drawer.lock);
}

void mc_meter_end(struct mc_meter *meter)
{
    if (meter->is_shown)
        mc_sleeper_end(&meter->drawer);
    meter->is_shown = false;
}
