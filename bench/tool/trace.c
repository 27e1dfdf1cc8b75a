/* Reads traces. Lines come from a file that somebody else wrote: nothing in them is trusted. */
#include "tool/trace.h"

#include <errno.h>
#include "env/file.h"
#include "env/json.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

struct loader {
    struct mc_trace *trace;
    uint64_t request_capacity, block_capacity;
    uint64_t *ids; /* of one line */
    char *line;
    char *why;
    size_t why_size;
};

/* -1, and why. */
static int complain(char *why, size_t size, const char *form, ...) __attribute__((format(printf, 3, 4)));
static int complain(char *why, size_t size, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    vsnprintf(why, size, form, list);
    va_end(list);
    return -1;
}

static int take_number(struct mc_span object, const char *name, bool required, uint64_t max, uint64_t *value, char *why,
                       size_t why_size)
{
    struct mc_json_cursor field;
    int64_t whole;
    double number = -1;
    *value = 0;
    int found = mc_json_member(object, name, &field);
    if (found == 0 && !required)
        return 0;
    if (found != 1 || mc_json_real(&field, &number) < 0 || number < 0 || number > (double)max)
        return complain(why, why_size, "\"%s\" is not a number from 0 to %llu", name, (unsigned long long)max);
    *value = mc_json_integer(&field, &whole) == 0 ? (uint64_t)whole : (uint64_t)number;
    return 0;
}

static int take_ids(struct mc_span object, struct mc_trace_request *request, uint64_t *ids, char *why, size_t why_size)
{
    struct mc_json_cursor list, id;
    int64_t whole;
    if (mc_json_member(object, "hash_ids", &list) != 1 || list.kind != '[' || mc_json_open(list.value, '[', &id) < 0)
        return complain(why, why_size, "\"hash_ids\" is not a list");
    uint32_t count = 0;
    for (; mc_json_next(&id) == 1; count++) {
        if (count == MC_TRACE_REQUEST_BLOCKS_MAX)
            return complain(why, why_size, "more than %u blocks in one request", MC_TRACE_REQUEST_BLOCKS_MAX);
        if (mc_json_integer(&id, &whole) < 0 || whole < 0)
            return complain(why, why_size, "\"hash_ids\"[%u] is not a whole number of 0 or more", count);
        ids[count] = (uint64_t)whole;
    }
    request->block_count = count;
    return 0;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n')
            return false;
    return true;
}

int mc_trace_parse_line(const char *line, size_t length, struct mc_trace_request *request, uint64_t *ids, char *why,
                        size_t why_size)
{
    if (is_blank(line, length))
        return 1;
    struct mc_span object = mc_span(line, length);
    struct mc_json_cursor any;
    uint64_t input = 0, output = 0;
    *request = (struct mc_trace_request){0};
    if (mc_json_member(object, "", &any) < 0)
        return complain(why, why_size, "not a JSON object: %s", any.problem);
    (void)mc_json_open(object, '{', &any);
    while (mc_json_next(&any) == 1)
        if (mc_json_is_again(object, &any))
            return complain(why, why_size, "not JSON: a name stands twice in the object");
    if (take_number(object, "timestamp", true, UINT64_C(1) << 52, &request->timestamp_ms, why, why_size) < 0 ||
        take_number(object, "input_length", true, UINT32_MAX, &input, why, why_size) < 0 ||
        take_number(object, "output_length", false, UINT32_MAX, &output, why, why_size) < 0 ||
        take_ids(object, request, ids, why, why_size) < 0)
        return -1;
    request->input_tokens = (uint32_t)input;
    request->output_tokens = (uint32_t)output;
    return 0;
}

/* Room for `more` behind `used` elements; doubles. */
static void *grow(void *list, uint64_t used, uint64_t more, uint64_t *capacity, size_t element)
{
    if (used + more <= *capacity)
        return list;
    uint64_t wanted = *capacity * 2 > used + more ? *capacity * 2 : used + more + 1024;
    void *bigger = realloc(list, (size_t)wanted * element);
    if (bigger != NULL)
        *capacity = wanted;
    return bigger;
}

static int append(struct loader *loader, struct mc_trace_request *request)
{
    struct mc_trace *trace = loader->trace;
    if (trace->request_count >= MC_TRACE_REQUESTS_MAX ||
        trace->block_count + request->block_count > MC_TRACE_BLOCKS_MAX)
        return complain(loader->why, loader->why_size, "too long: at most %u requests and %u blocks",
                        MC_TRACE_REQUESTS_MAX, MC_TRACE_BLOCKS_MAX);
    void *requests = grow(trace->requests, trace->request_count, 1, &loader->request_capacity, sizeof(*request));
    if (requests != NULL)
        trace->requests = requests;
    void *ids =
        grow(trace->block_ids, trace->block_count, request->block_count + 1, &loader->block_capacity, sizeof(uint64_t));
    if (ids != NULL)
        trace->block_ids = ids;
    if (requests == NULL || ids == NULL)
        return complain(loader->why, loader->why_size, "out of memory");
    request->first_block = trace->block_count;
    if (trace->request_count > 0 && request->timestamp_ms < trace->requests[trace->request_count - 1].timestamp_ms)
        request->timestamp_ms = trace->requests[trace->request_count - 1].timestamp_ms;
    memcpy(trace->block_ids + trace->block_count, loader->ids, request->block_count * sizeof(uint64_t));
    trace->block_count += request->block_count;
    trace->requests[trace->request_count++] = *request;
    return 0;
}

static int read_lines(struct loader *loader, gzFile file, uint64_t limit)
{
    struct mc_trace_request request = {0};
    char inner[160] = "";
    for (uint64_t number = 1; limit == 0 || loader->trace->request_count < limit; number++) {
        if (gzgets(file, loader->line, (int)MC_TRACE_LINE_MAX) == NULL)
            break;
        size_t length = strlen(loader->line);
        int rc;
        if (length + 1 >= MC_TRACE_LINE_MAX) {
            rc = -1;
            snprintf(inner, sizeof(inner), "longer than %u bytes", MC_TRACE_LINE_MAX);
        } else {
            rc = mc_trace_parse_line(loader->line, length, &request, loader->ids, inner, sizeof(inner));
        }
        if (rc < 0)
            return complain(loader->why, loader->why_size, "line %llu: %s", (unsigned long long)number, inner);
        if (rc == 0 && append(loader, &request) != 0)
            return -1;
    }
    int code = Z_OK;
    const char *text = gzerror(file, &code);
    if (code != Z_OK && code != Z_STREAM_END)
        return complain(loader->why, loader->why_size, "damaged or cut short: %s; fetch it again", text);
    return 0;
}

int mc_trace_load(const char *path, uint64_t limit, struct mc_trace *trace, char *why, size_t why_size)
{
    struct loader loader = {.trace = trace, .why = why, .why_size = why_size};
    int rc = -1;
    *trace = (struct mc_trace){0};
    gzFile file = gzopen(path, "rbe");
    if (file == NULL)
        return complain(why, why_size, "cannot be opened: %s", mc_file_problem(errno != 0 ? errno : ENOMEM));
    loader.line = malloc(MC_TRACE_LINE_MAX);
    loader.ids = malloc(MC_TRACE_REQUEST_BLOCKS_MAX * sizeof(uint64_t));
    if (loader.line == NULL || loader.ids == NULL)
        snprintf(why, why_size, "out of memory");
    else
        rc = read_lines(&loader, file, limit);
    if (rc == 0 && trace->request_count == 0) {
        snprintf(why, why_size, "holds no request");
        rc = -1;
    }
    free(loader.ids);
    free(loader.line);
    gzclose_r(file);
    if (rc != 0)
        mc_trace_free(trace);
    return rc;
}

void mc_trace_free(struct mc_trace *trace)
{
    free(trace->requests);
    free(trace->block_ids);
    *trace = (struct mc_trace){0};
}

uint32_t mc_trace_block_tokens(const struct mc_trace_request *request, uint32_t index)
{
    if (index + 1 < request->block_count)
        return MC_TRACE_BLOCK_TOKENS;
    uint64_t before = (uint64_t)index * MC_TRACE_BLOCK_TOKENS;
    if (request->input_tokens <= before)
        return 1;
    uint64_t left = request->input_tokens - before;
    return left < MC_TRACE_BLOCK_TOKENS ? (uint32_t)left : MC_TRACE_BLOCK_TOKENS;
}
