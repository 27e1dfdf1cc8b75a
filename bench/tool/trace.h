/* A recorded hour of requests: one JSON object a line, plain or gzip:
 *   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [prefix blocks of
 * MC_TRACE_BLOCK_TOKENS tokens]} Invariant of a loaded trace: timestamps never fall (a line that steps back is given
 * its predecessor's time), and every block belongs to exactly one request. */
#ifndef MC_TOOL_TRACE_H
#define MC_TOOL_TRACE_H

#include <stddef.h>
#include <stdint.h>

#define MC_TRACE_BLOCK_TOKENS 512
#define MC_TRACE_LINE_MAX (4u << 20)       /* bytes of one line */
#define MC_TRACE_REQUESTS_MAX (16u << 20)  /* lines of one trace */
#define MC_TRACE_REQUEST_BLOCKS_MAX 65536u /* blocks of one request: 32 M tokens */
#define MC_TRACE_BLOCKS_MAX (256u << 20)   /* blocks of all requests */

struct mc_trace_request {
    uint64_t timestamp_ms;
    uint64_t first_block; /* index into the trace's block ids */
    uint32_t block_count;
    uint32_t input_tokens, output_tokens;
};

struct mc_trace { /* zeroed = empty */
    struct mc_trace_request *requests;
    uint64_t *block_ids;
    uint64_t request_count, block_count;
};

/* Parses one line into *request and appends its ids to `ids` (room for MC_TRACE_REQUEST_BLOCKS_MAX). 0, 1 for an empty
 * line, or -1 with a text in `why`. */
int mc_trace_parse_line(const char *line, size_t length, struct mc_trace_request *request, uint64_t *ids, char *why,
                        size_t why_size);
/* Loads at most `limit` requests (0: all). 0, or -1 with a text in `why` that names the line. */
int mc_trace_load(const char *path, uint64_t limit, struct mc_trace *trace, char *why, size_t why_size);
void mc_trace_free(struct mc_trace *trace);

/* Tokens of block `index` of a request: all are full but the last. */
uint32_t mc_trace_block_tokens(const struct mc_trace_request *request, uint32_t index);

#endif
