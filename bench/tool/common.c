/* Sizes, times, options and JSON of mooncake_bench. */
#include "tool/bench.h"

#include "env/file.h"
#include "env/flags.h"
#include "env/keys.h"
#include "tool/histogram.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

int mc_bench_fail(int result, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    vfprintf(stderr, form, list);
    va_end(list);
    fputc('\n', stderr);
    return result;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double mc_bench_median(double *values, unsigned count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void *mc_bench_memory(uint64_t size)
{
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

bool mc_size_parse(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
                 {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
    if (text == NULL || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.'))
        return false;
    char *end = NULL;
    double number = strtod(text, &end);
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].name) != 0)
            continue;
        double value = number * (double)(UINT64_C(1) << units[i].shift);
        if (!(value >= 0 && value <= (double)(UINT64_C(1) << 60)))
            return false;
        *bytes = (uint64_t)value;
        return true;
    }
    return false;
}

char *mc_size_format(uint64_t bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        unit++;
    }
    bool whole = value == (double)(uint64_t)value;
    snprintf(text, size, "%.*f %s", whole ? 0 : 2, value, units[unit]);
    return text;
}

char *mc_time_format(uint64_t ns, char *text, size_t size)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    size_t unit = ns < 1000000 ? 0 : ns < 1000000000 ? 1 : 2;
    double value = (double)ns / units[unit].ns;
    snprintf(text, size, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit].name);
    return text;
}

static int take_secrets(const struct mc_options *options, char *error, size_t error_size)
{
    int rc = mc_flags_use(options, error, error_size);
    return rc > 0 ? mc_keys_check(error, error_size) : rc;
}

bool mc_bench_options(struct mc_options *options, const struct mc_option *table, size_t count, const char *command,
                      const char *usage, int argc, char **argv, int *rc)
{
    char error[MC_OPTION_ERROR_MAX];
    static char help_word[] = "--help";
    for (int i = 1; i < argc; i++)
        argv[i] = strcmp(argv[i], "-h") == 0 ? help_word : argv[i];
    mc_options_init(options, table, count);
    if (mc_options_parse(options, argc, argv, NULL, NULL, error, sizeof(error)) != 0 ||
        take_secrets(options, error, sizeof(error)) < 0) {
        fprintf(stderr, "%s: %s\n", command, error);
        *rc = MC_BENCH_USAGE;
    } else if (mc_options_bool(options, "help")) {
        struct mc_buffer help = {0};
        mc_options_help(options, true, &help);
        printf("usage: %s%s\n%.*s", command, usage, (int)help.length, (const char *)help.data);
        mc_buffer_free(&help);
        *rc = MC_BENCH_OK;
    } else {
        return true;
    }
    mc_options_free(options);
    return false;
}

const char *mc_bench_text(const struct mc_options *options, const char *name)
{
    const char *text = mc_options_text(options, name);
    return text[0] != '\0' ? text : NULL;
}

bool mc_bench_size(const struct mc_options *options, const char *name, uint64_t minimum, uint64_t *bytes)
{
    const char *text = mc_options_text(options, name);
    char least[32];
    if (mc_size_parse(text, bytes) && *bytes >= minimum)
        return true;
    return mc_bench_fail(false, "--%s=%s: not a size of %s or more (examples: 65536, 64K, 1.5GiB)", name, text,
                         mc_size_format(minimum, least, sizeof(least)));
}

FILE *mc_bench_out(const struct mc_options *options)
{
    return strcmp(mc_options_text(options, "json"), "-") == 0 ? stderr : stdout;
}

static bool write_text(const char *path, const struct mc_buffer *text)
{
    FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    if (file == NULL)
        return mc_bench_fail(false, "%s: cannot be written: %s", path, mc_file_problem(errno));
    bool good = fwrite(text->data, 1, text->length, file) == text->length;
    good = (file == stdout ? fflush(file) : fclose(file)) == 0 && good;
    if (!good)
        fprintf(stderr, "%s: could not be written whole\n", path);
    return good;
}

struct mc_json_writer mc_bench_json(struct mc_buffer *document, char bracket)
{
    struct mc_json_writer writer = {.out = document, .indent = 2};
    mc_json_begin(&writer, NULL, bracket);
    return writer;
}

int mc_bench_write_json(const struct mc_options *options, struct mc_json_writer *writer, int rc)
{
    const char *path = mc_bench_text(options, "json");
    mc_json_end(writer, ((const char *)writer->out->data)[0] == '{' ? '}' : ']');
    mc_buffer_put_u8(writer->out, '\n');
    bool good = path == NULL || write_text(path, writer->out);
    mc_buffer_free(writer->out);
    return good || rc != MC_BENCH_OK ? rc : MC_BENCH_TROUBLE;
}

void mc_histogram_json(const struct mc_histogram *histogram, struct mc_json_writer *writer)
{
    static const struct {
        const char *name;
        double quantile;
    } rows[] = {{"p50_us", 0.5}, {"p99_us", 0.99}, {"p999_us", 0.999}};
    uint64_t count = histogram->count;
    double mean = count > 0 ? (double)histogram->sum / (double)count : 0;
    mc_json_add_number(writer, "count", count);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        mc_json_add_real(writer, rows[i].name, (double)mc_histogram_quantile(histogram, rows[i].quantile) / 1e3);
    mc_json_add_real(writer, "max_us", (double)histogram->max / 1e3);
    mc_json_add_real(writer, "mean_us", mean / 1e3);
}

void mc_histogram_member(const struct mc_histogram *histogram, const char *name, struct mc_json_writer *writer)
{
    mc_json_begin(writer, name, '{');
    mc_histogram_json(histogram, writer);
    mc_json_end(writer, '}');
}
