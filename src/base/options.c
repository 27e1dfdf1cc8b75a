/* Command line options: one table, one parser, help and config out of the same rows. */
#include "base/options.h"

#include "base/build.h"
#include "base/error.h"
#include "base/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define NAME_MAX_BYTES MC_NEAREST_NAME_MAX /* longer names are unknown without a look */

static const char *const true_words[] = {"true", "1", "t", "yes", "y", "on"};
static const char *const false_words[] = {"false", "0", "f", "no", "n", "off"};

struct unit {
    const char *name;
    int64_t ms;
};
static const struct unit units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

__attribute__((format(printf, 3, 4))) static int fail(char *error, size_t error_size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
    /* Values come from the user: one line stays one line. */
    for (char *at = error; *at != 0; at++) {
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    }
    return MC_ERR_INVALID_PARAMS;
}

/* ---- names ---- */

/* Copies a name with dashes made underscores; false when it is too long to be one. */
static bool normalize(const char *name, size_t length, char *normal)
{
    if (length >= NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i < length; i++)
        normal[i] = name[i] == '-' ? '_' : name[i];
    normal[length] = 0;
    return true;
}

static int find_normal(const struct mc_options *options, const char *name)
{
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        if (strcmp(row->name, name) == 0 || (row->file_name != NULL && strcmp(row->file_name, name) == 0))
            return row->alias_of == NULL ? (int)i : find_normal(options, row->alias_of);
    }
    return -1;
}

int mc_options_find(const struct mc_options *options, const char *name)
{
    char normal[NAME_MAX_BYTES];
    return normalize(name, strlen(name), normal) ? find_normal(options, normal) : -1;
}

const char *mc_options_nearest(const struct mc_options *options, const char *name)
{
    char normal[NAME_MAX_BYTES] = "";
    struct mc_nearest nearest;
    if (!normalize(name, strlen(name), normal))
        return NULL;
    mc_nearest_begin(&nearest, normal);
    for (size_t i = 0; i < options->count; i++)
        mc_nearest_offer(&nearest, options->table[i].name, options->table[i].name);
    return nearest.found;
}

/* ---- values ---- */

static bool parse_bool(const char *text, int64_t *value)
{
    for (size_t i = 0; i < LENGTH(true_words); i++) {
        if (strcasecmp(text, true_words[i]) == 0 || strcasecmp(text, false_words[i]) == 0) {
            *value = strcasecmp(text, true_words[i]) == 0;
            return true;
        }
    }
    return false;
}

/* A whole number, decimal or 0x..., up to *end. */
static bool parse_number(const char *text, int64_t *value, char **end)
{
    bool is_negative = text[0] == '-';
    const char *digits = text + (is_negative || text[0] == '+');
    bool is_hex = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    if (!isdigit((unsigned char)digits[0]) || (is_hex && !isxdigit((unsigned char)digits[2])))
        return false;
    errno = 0;
    long long number = strtoll(text, end, is_hex ? 16 : 10);
    *value = number;
    return errno == 0;
}

static bool parse_duration(const char *text, int64_t plain_ms, int64_t *value)
{
    char *end;
    int64_t number, unit_ms = plain_ms;
    if (!parse_number(text, &number, &end))
        return false;
    if (*end != 0) {
        unit_ms = 0;
        for (size_t i = 0; i < LENGTH(units); i++) {
            if (strcmp(end, units[i].name) == 0)
                unit_ms = units[i].ms;
        }
    }
    return unit_ms != 0 && !__builtin_mul_overflow(number, unit_ms, value);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices;; at++) {
        size_t choice_length = strcspn(at, "|");
        if (choice_length == length && memcmp(at, text, length) == 0)
            return true;
        at += choice_length;
        if (*at == 0)
            return false;
    }
}

/* Fills in value->number, ->real or ->text (text borrowed from the argument). */
static bool parse_value(const struct mc_option *row, const char *text, struct mc_option_value *value)
{
    char *end;
    bool ok = false;
    switch (row->type) {
    case MC_OPTION_BOOL:
        return parse_bool(text, &value->number);
    case MC_OPTION_INT:
        ok = parse_number(text, &value->number, &end) && *end == 0;
        break;
    case MC_OPTION_MS:
        ok = parse_duration(text, 1, &value->number);
        break;
    case MC_OPTION_S:
        ok = parse_duration(text, 1000, &value->number);
        break;
    case MC_OPTION_REAL:
        value->real = strtod(text, &end);
        return end != text && *end == 0 && isfinite(value->real) && !isspace((unsigned char)text[0]) &&
               ((row->minimum == 0 && row->maximum == 0) ||
                (value->real >= (double)row->minimum && value->real <= (double)row->maximum));
    case MC_OPTION_TEXT:
        value->text = (char *)(uintptr_t)text;
        return strlen(text) < MC_OPTION_TEXT_MAX && (row->choices == NULL || is_choice(row->choices, text));
    }
    return ok && ((row->minimum == 0 && row->maximum == 0) ||
                  (value->number >= row->minimum && value->number <= row->maximum));
}

static void describe_duration(char *text, size_t size, int64_t ms)
{
    size_t unit = 0;
    while (unit + 1 < LENGTH(units) && ms != 0 && ms % units[unit + 1].ms == 0)
        unit++;
    snprintf(text, size, "%lld%s", (long long)(ms / units[unit].ms), units[unit].name);
}

/* "a whole number from 0 to 65535" */
static void describe_allowed(const struct mc_option *row, char *text, size_t size)
{
    char low[32], high[32];
    bool is_limited = row->minimum != 0 || row->maximum != 0;
    bool is_duration = row->type == MC_OPTION_MS || row->type == MC_OPTION_S;
    const char *what = "a whole number";
    switch (row->type) {
    case MC_OPTION_BOOL:
        snprintf(text, size, "true or false");
        return;
    case MC_OPTION_TEXT:
        if (row->choices == NULL)
            snprintf(text, size, "text of up to %d bytes", MC_OPTION_TEXT_MAX - 1);
        else
            snprintf(text, size, "one of %s", row->choices);
        return;
    case MC_OPTION_INT:
        break;
    case MC_OPTION_REAL:
        what = "a number";
        break;
    case MC_OPTION_MS:
        what = "a duration such as 500 (ms), 500ms, 5s, 30m, 1h";
        break;
    case MC_OPTION_S:
        what = "a duration such as 10 (s), 500ms, 5s, 30m, 1h";
        break;
    }
    if (!is_limited) {
        snprintf(text, size, "%s", what);
        return;
    }
    if (is_duration) {
        describe_duration(low, sizeof(low), row->minimum);
        describe_duration(high, sizeof(high), row->maximum);
    } else {
        snprintf(low, sizeof(low), "%lld", (long long)row->minimum);
        snprintf(high, sizeof(high), "%lld", (long long)row->maximum);
    }
    snprintf(text, size, "%s%s from %s to %s", what, is_duration ? "," : "", low, high);
}

int mc_options_set(struct mc_options *options, size_t index, const char *text, enum mc_option_source source,
                   const char *prefix, char *error, size_t error_size)
{
    const struct mc_option *row = &options->table[index];
    struct mc_option_value *old = &options->values[index];
    struct mc_option_value value = {.source = source};
    if (!parse_value(row, text, &value)) {
        char allowed[256];
        describe_allowed(row, allowed, sizeof(allowed));
        return fail(error, error_size, "%s%s: bad value '%.100s'; allowed: %s", prefix, row->name, text, allowed);
    }
    if (old->source > source)
        return 0;
    if (row->type == MC_OPTION_TEXT) {
        value.text = strdup(text);
        if (value.text == NULL)
            return MC_ERR_NO_MEMORY;
        free(old->text);
    }
    *old = value;
    return 0;
}

void mc_options_init(struct mc_options *options, const struct mc_option *table, size_t count)
{
    char error[MC_OPTION_ERROR_MAX];
    mc_assert(count <= MC_OPTIONS_MAX);
    memset(options, 0, sizeof(*options));
    options->table = table;
    options->count = count;
    for (size_t i = 0; i < count; i++)
        mc_assert(mc_options_set(options, i, table[i].initial, MC_OPTION_FROM_DEFAULT, "", error, sizeof(error)) == 0);
}

void mc_options_free(struct mc_options *options)
{
    for (size_t i = 0; i < options->count; i++) {
        free(options->values[i].text);
        options->values[i].text = NULL;
    }
}

/* ---- parsing ---- */

struct parse {
    struct mc_options *options;
    mc_options_read *read;
    void *context;
    char *error;
    size_t error_size;
    int depth;
};

static int parse_file(struct parse *parse, const char *path);

/* Sets a flag that was found; the flag file is followed at once, so that order decides. */
static int apply(struct parse *parse, int index, const char *value)
{
    int rc = mc_options_set(parse->options, (size_t)index, value, MC_OPTION_FROM_FLAG, "--", parse->error,
                            parse->error_size);
    if (rc == 0 && strcmp(parse->options->table[index].name, "flagfile") == 0 && value[0] != 0)
        return parse_file(parse, value);
    return rc;
}

/* One argument; next is what follows it or NULL. Returns how many were used (1 or 2) or negative. */
static int parse_argument(struct parse *parse, const char *argument, const char *next)
{
    const char *name = argument + 1 + (argument[1] == '-');
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    char normal[NAME_MAX_BYTES] = "";
    bool is_known = normalize(name, length, normal);
    int index = is_known ? find_normal(parse->options, normal) : -1;
    int64_t word;
    if (index < 0 && is_known && value == NULL && strncmp(normal, "no", 2) == 0) {
        index = find_normal(parse->options, normal + 2);
        if (index >= 0 && parse->options->table[index].type == MC_OPTION_BOOL)
            value = "false";
        else
            index = -1;
    }
    if (index < 0) {
        const char *nearest = is_known ? mc_options_nearest(parse->options, normal) : NULL;
        if (nearest == NULL)
            return fail(parse->error, parse->error_size, "unknown flag --%.*s; --help lists all",
                        length < 100 ? (int)length : 100, name);
        return fail(parse->error, parse->error_size, "unknown flag --%.*s; did you mean --%s?", (int)length, name,
                    nearest);
    }
    if (value != NULL) {
        int rc = apply(parse, index, value);
        return rc < 0 ? rc : 1;
    }
    if (parse->options->table[index].type == MC_OPTION_BOOL && (next == NULL || !parse_bool(next, &word))) {
        int rc = apply(parse, index, "true");
        return rc < 0 ? rc : 1;
    }
    if (next == NULL || strncmp(next, "--", 2) == 0) {
        char allowed[256];
        describe_allowed(&parse->options->table[index], allowed, sizeof(allowed));
        return fail(parse->error, parse->error_size, "flag --%s needs a value; allowed: %s", normal, allowed);
    }
    int rc = apply(parse, index, next);
    return rc < 0 ? rc : 2;
}

/* A line of a flag file: empty, a comment, --f=v or --f v. */
static int parse_line(struct parse *parse, char *line, const char *path, int number)
{
    line += strspn(line, " \t\r");
    size_t length = strlen(line);
    while (length > 0 && isspace((unsigned char)line[length - 1]))
        line[--length] = 0;
    if (length == 0 || line[0] == '#')
        return 0;
    if (line[0] != '-' || line[1] == 0)
        return fail(parse->error, parse->error_size,
                    "%s:%d: a line must be a flag such as --rpc_port=50051 or a # comment", path, number);
    char *next = NULL;
    size_t name_length = strcspn(line, "= \t");
    if (line[name_length] == ' ' || line[name_length] == '\t') {
        line[name_length] = 0;
        next = line + name_length + 1 + strspn(line + name_length + 1, " \t");
    }
    int used = parse_argument(parse, line, next);
    if (used < 0) {
        char text[MC_OPTION_ERROR_MAX];
        snprintf(text, sizeof(text), "%s", parse->error);
        return fail(parse->error, parse->error_size, "%.200s:%d: %.250s", path, number, text);
    }
    if (next != NULL && used == 1)
        return fail(parse->error, parse->error_size, "%s:%d: unexpected '%.100s' behind the flag", path, number, next);
    return 0;
}

static int parse_file(struct parse *parse, const char *path)
{
    char reason[MC_OPTION_ERROR_MAX];
    size_t length = 0;
    if (parse->read == NULL || parse->depth >= MC_OPTION_FILE_DEPTH)
        return fail(parse->error, parse->error_size, "--flagfile %s: %s", path,
                    parse->read == NULL ? "not supported here" : "flag files are nested too deep");
    char *text = parse->read(parse->context, path, &length, reason, sizeof(reason));
    if (text == NULL)
        return fail(parse->error, parse->error_size, "--flagfile %.200s: %.200s", path, reason);
    int rc = 0, number = 1;
    parse->depth++;
    for (size_t at = 0; rc == 0 && at < length; number++) {
        size_t end = at;
        while (end < length && text[end] != '\n')
            end++;
        char *line = strndup(text + at, end - at);
        rc = line == NULL ? MC_ERR_NO_MEMORY : parse_line(parse, line, path, number);
        free(line);
        at = end + 1;
    }
    parse->depth--;
    free(text);
    return rc;
}

int mc_options_parse(struct mc_options *options, int argc, char *const *argv, mc_options_read *read, void *context,
                     char *error, size_t error_size)
{
    struct parse parse = {options, read, context, error, error_size, 0};
    bool is_end = false;
    for (int i = 1; i < argc;) {
        const char *argument = argv[i];
        if (!is_end && strcmp(argument, "--") == 0) {
            is_end = true;
            i++;
            continue;
        }
        if (is_end || argument[0] != '-' || argument[1] == 0)
            return fail(error, error_size, "unexpected argument '%.100s'; every option is a flag such as --name=value",
                        argument);
        int used = parse_argument(&parse, argument, i + 1 < argc ? argv[i + 1] : NULL);
        if (used < 0)
            return used;
        i += used;
    }
    return 0;
}

/* ---- looking ---- */

const struct mc_option_value *mc_options_value(const struct mc_options *options, const char *name)
{
    int index = find_normal(options, name);
    mc_assert(index >= 0);
    return &options->values[index];
}

bool mc_options_bool(const struct mc_options *options, const char *name)
{
    return mc_options_value(options, name)->number != 0;
}
int64_t mc_options_int(const struct mc_options *options, const char *name)
{
    return mc_options_value(options, name)->number;
}
double mc_options_real(const struct mc_options *options, const char *name)
{
    return mc_options_value(options, name)->real;
}

const char *mc_options_text(const struct mc_options *options, const char *name)
{
    const char *text = mc_options_value(options, name)->text;
    mc_assert(text != NULL);
    return text;
}

enum mc_option_source mc_options_source(const struct mc_options *options, const char *name)
{
    return mc_options_value(options, name)->source;
}

bool mc_options_changed(const struct mc_options *options, size_t index)
{
    const struct mc_option *row = &options->table[index];
    const struct mc_option_value *value = &options->values[index];
    struct mc_option_value initial = {0};
    if (value->source == MC_OPTION_FROM_DEFAULT)
        return false;
    mc_assert(parse_value(row, row->initial, &initial));
    if (row->type == MC_OPTION_TEXT)
        return strcmp(value->text, initial.text) != 0;
    return row->type == MC_OPTION_REAL ? value->real > initial.real || value->real < initial.real
                                       : value->number != initial.number;
}

int mc_options_store(const struct mc_options *options, void *config, char *error, size_t error_size)
{
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        const struct mc_option_value *value = &options->values[i];
        char *to = (char *)config + row->offset;
        if (row->size == 0)
            continue;
        if (row->type == MC_OPTION_TEXT && strlen(value->text) >= row->size)
            return fail(error, error_size, "--%s: '%.100s...' is too long", row->name, value->text);
        if (row->type == MC_OPTION_TEXT)
            memcpy(to, value->text, strlen(value->text) + 1);
        else if (row->type == MC_OPTION_REAL) {
            mc_assert(row->size == sizeof(value->real));
            memcpy(to, &value->real, row->size);
        } else {
            mc_assert(row->size <= sizeof(value->number));
            memcpy(to, &value->number, row->size); /* the low bytes: its limits say that the others are zero */
        }
    }
    return 0;
}

bool mc_options_answer(const struct mc_options *options, const char *command, const char *head, struct mc_buffer *out)
{
    int full = find_normal(options, "helpfull");
    bool wants_full = full >= 0 && options->values[full].number != 0;
    bool wants_help = mc_options_bool(options, "help") || wants_full;
    bool wants_all = mc_options_bool(options, "verbose");
    if (!wants_help && !wants_all && !mc_options_bool(options, "version"))
        return false;
    mc_buffer_printf(out, wants_help ? "%s" : "%s " MC_VERSION "\n", wants_help ? head : command);
    if (wants_help)
        mc_options_help(options, full < 0 || wants_full, out);
    else if (wants_all)
        mc_buffer_printf(out, "built as %s, with these libraries in it:\n%s", mc_build(), mc_build_parts());
    return true;
}

void mc_options_help(const struct mc_options *options, bool all, struct mc_buffer *out)
{
    const char *section = NULL;
    size_t hidden = 0;
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        const struct mc_option *meant = &options->table[find_normal(options, row->name)];
        char allowed[256];
        section = row->section != NULL ? row->section : section;
        if (!all && meant->status != MC_OPTION_WORKS) {
            hidden++;
            continue;
        }
        if (section != NULL) /* one of which nothing works is not named */
            mc_buffer_printf(out, "\n%s\n", section);
        section = NULL;
        if (row->alias_of != NULL) {
            mc_buffer_printf(out, "  --%s  the same as --%s\n", row->name, row->alias_of);
            continue;
        }
        describe_allowed(row, allowed, sizeof(allowed));
        mc_buffer_printf(out, "  --%s  %s%s%s%s\n        %s; default %s%s%s", row->name, row->help,
                         row->status == MC_OPTION_NEEDLESS ? " [accepted, no effect here"
                         : row->status == MC_OPTION_ABSENT ? " [not here: "
                                                           : "",
                         row->instead == NULL ? "" : row->instead, row->status == MC_OPTION_WORKS ? "" : "]", allowed,
                         row->type == MC_OPTION_TEXT ? "\"" : "", row->initial,
                         row->type == MC_OPTION_TEXT ? "\"" : "");
        if (row->file_name != NULL)
            mc_buffer_printf(out, "; in a config file also %s", row->file_name);
        mc_buffer_printf(out, "\n");
    }
    if (hidden > 0)
        mc_buffer_printf(out, "\n%zu more flags are accepted and change nothing: --helpfull says why.\n", hidden);
}

static void print_quoted(struct mc_buffer *out, const char *text)
{
    mc_buffer_printf(out, "\"");
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            mc_buffer_printf(out, "\\%c", *text);
        else if ((unsigned char)*text < ' ' || *text == 0x7f)
            mc_buffer_printf(out, "\\x%02x", (unsigned)(unsigned char)*text);
        else
            mc_buffer_printf(out, "%c", *text);
    }
    mc_buffer_printf(out, "\"");
}

void mc_options_print(const struct mc_options *options, struct mc_buffer *out)
{
    static const char *const sources[] = {"default", "config file", "flag"};
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        const struct mc_option_value *value = &options->values[i];
        char duration[32];
        if (row->alias_of != NULL || row->is_flag_only)
            continue;
        mc_buffer_printf(out, "%s: ", row->name);
        switch (row->type) {
        case MC_OPTION_BOOL:
            mc_buffer_printf(out, "%s", value->number != 0 ? "true" : "false");
            break;
        case MC_OPTION_INT:
            mc_buffer_printf(out, "%lld", (long long)value->number);
            break;
        case MC_OPTION_REAL:
            mc_buffer_printf(out, "%.15g", value->real);
            break;
        case MC_OPTION_TEXT:
            print_quoted(out, value->text);
            break;
        case MC_OPTION_MS:
        case MC_OPTION_S:
            describe_duration(duration, sizeof(duration), value->number);
            mc_buffer_printf(out, "%s", duration);
            break;
        }
        mc_buffer_printf(out, " # %s\n", sources[value->source]);
    }
}
