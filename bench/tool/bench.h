/* What the subcommands of mooncake_bench share: sizes, JSON output, the list of commands. */
#ifndef MC_TOOL_BENCH_H
#define MC_TOOL_BENCH_H

#include "base/option_rows.h"
#include "env/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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
int mc_bench_disk(int argc, char **argv);
int mc_bench_policy(int argc, char **argv); /* in a room of its own: it sees the master's core */

/* "4096", "64K", "64KiB", "1.5gb": powers of 1024. false when it is no size or above 2^60. */
bool mc_size_parse(const char *text, uint64_t *bytes);
/* "64 KiB", "1.50 GiB"; returns `text`. */
char *mc_size_format(uint64_t bytes, char *text, size_t size);
/* "4.2 us", "13 ms", "1.3 s"; returns `text`. */
char *mc_time_format(uint64_t ns, char *text, size_t size);

/* A line on stderr; the result. */
int mc_bench_fail(int result, const char *form, ...) __attribute__((format(printf, 2, 3)));

/* Of at least one value; sorts them. */
double mc_bench_median(double *values, unsigned count);

/* Private memory whose pages are all there, or NULL; munmap frees it. */
void *mc_bench_memory(uint64_t size);

/* Parses argv with the table; prints help or the error itself. usage: how it goes on behind the command's name. true:
 * go on, and free the options later; false: end with *rc. */
bool mc_bench_options(struct mc_options *options, const struct mc_option *table, size_t count, const char *command,
                      const char *usage, int argc, char **argv, int *rc);
/* Rows of the tables of what reaches a cluster or an engine. mc_bench_options takes them over into the environment,
 * where the library, and what is started from here, look for keys and certificates. */
#define MC_BENCH_SECRETS                                                                                               \
    VARIABLE("auth_file", MC_AUTH_FILE,                                                                                \
             "file of keys; what is started here wants one of them, and the first is shown"),                          \
        TLS_OF_ALL, TLS_OF_PORTS, TLS_OF_CALLS
/* The text of an option, or NULL when it is empty. */
const char *mc_bench_text(const struct mc_options *options, const char *name);
/* Reads a size option; prints the error itself. */
bool mc_bench_size(const struct mc_options *options, const char *name, uint64_t minimum, uint64_t *bytes);

/* Where what people read goes: stdout, unless --json has that for itself. */
FILE *mc_bench_out(const struct mc_options *options);
/* Begins a document, for mc_bench_write_json: an object ('{') or a list ('['). */
struct mc_json_writer mc_bench_json(struct mc_buffer *document, char bracket);
/* Ends it, writes it to the file that --json names, if it names one, and frees it; "-" is stdout. The exit code of a
 * run that ended with rc. */
int mc_bench_write_json(const struct mc_options *options, struct mc_json_writer *writer, int rc);

/* Calls of one kind, members of an object: count, p50, p99, p999, max and mean in microseconds. */
struct mc_histogram;
void mc_histogram_json(const struct mc_histogram *histogram, struct mc_json_writer *writer);
/* The same as an object of that name. */
void mc_histogram_member(const struct mc_histogram *histogram, const char *name, struct mc_json_writer *writer);

#endif
