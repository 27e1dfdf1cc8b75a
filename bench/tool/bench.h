/* What the subcommands of mooncake_bench share: sizes, JSON output, the list of commands. */
#ifndef MC_TOOL_BENCH_H
#define MC_TOOL_BENCH_H

#include "base/options.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes. */
#define MC_BENCH_OK 0
#define MC_BENCH_WRONG 1   /* wrong bytes, or an operation that may not fail did */
#define MC_BENCH_USAGE 2   /* bad option or input */
#define MC_BENCH_TROUBLE 3 /* the cluster or a worker could not run */
#define MC_BENCH_INTERRUPTED 130

/* Each takes the arguments after its own name and returns an exit code. */
int mc_bench_replay(int argc, char **argv);
int mc_bench_worker(int argc, char **argv); /* started by replay */
int mc_bench_node(int argc, char **argv);
int mc_bench_raw(int argc, char **argv);
int mc_bench_work(int argc, char **argv);
int mc_bench_engine(int argc, char **argv);

/* "4096", "64K", "64KiB", "1.5gb": powers of 1024. false when it is no size or above 2^60. */
bool mc_size_parse(const char *text, uint64_t *bytes);
/* "64 KiB", "1.50 GiB"; returns `text`. */
char *mc_size_format(uint64_t bytes, char *text, size_t size);
/* "4.2 us", "13 ms", "1.3 s"; returns `text`. */
char *mc_time_format(uint64_t ns, char *text, size_t size);

/* Parses argv with the table; prints help or the error itself. true: go on; false: end with *rc. */
bool mc_bench_options(struct mc_options *options, const struct mc_option *table, size_t count, const char *usage,
                      int argc, char **argv, int *rc);
/* Reads a size option; prints the error itself. */
bool mc_bench_size(const struct mc_options *options, const char *name, uint64_t minimum, uint64_t *bytes);

/* Writes the document to a file, or to stdout for "-". 0 or -1 with a line on stderr. */
int mc_bench_write_json(const char *path, const json_t *document);

/* Calls of one kind: count, p50, p99, p999, max and mean in microseconds. A new reference. */
struct mc_histogram;
json_t *mc_histogram_json(const struct mc_histogram *histogram);

#endif
