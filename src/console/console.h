/* What `mooncake` does: asks a master's HTTP port, and prints what it says, for people or as JSON. Nothing is kept from
 * one question to the next but in `top`, which draws what is new.
 *
 * Names and keys come from others: what is printed of them holds no bytes that a terminal would take as orders.
 */
#ifndef MC_CONSOLE_CONSOLE_H
#define MC_CONSOLE_CONSOLE_H

#include "base/bytes.h"
#include "env/json.h"
#include "env/socket.h"

#include <stdio.h>

enum mc_console_code { MC_CONSOLE_FINE = 0, MC_CONSOLE_FAILED = 1, MC_CONSOLE_MISUSED = 2 };

struct mc_console {
    const char *master, *admin;   /* as they were given; "": not */
    char address[MC_ADDRESS_MAX]; /* of the HTTP port */
    const char *prefix, *sort;
    uint64_t limit, interval_ms; /* limit 0: it was not given */
    bool is_json, follows, waits, is_once;
    const char *const *words; /* after the command's name */
    size_t word_count;
    FILE *out, *complaints; /* of the latter NULL: stderr */
};

/* Each returns an exit code, and has said on stderr why it is not 0. */
int mc_console_status(struct mc_console *console);
int mc_console_nodes(struct mc_console *console);
int mc_console_keys(struct mc_console *console);
int mc_console_events(struct mc_console *console);
int mc_console_slow(struct mc_console *console);
int mc_console_misses(struct mc_console *console);
int mc_console_drain(struct mc_console *console);
int mc_console_undrain(struct mc_console *console);
int mc_console_top(struct mc_console *console);

/* ---- ask.c ---- */

/* Finds the port to ask. */
int mc_console_find(struct mc_console *console);
/* The answer to a GET, or with a body to a POST; said among the complaints unless it is 200. reply is the caller's to
 * free. */
int mc_console_ask(struct mc_console *console, const char *path, const char *body, struct mc_buffer *reply);
/* Appends a parameter's value, escaped. */
void mc_console_escape(struct mc_buffer *path, struct mc_span text);
/* The answer is none of ours. Returns MC_CONSOLE_FAILED. */
int mc_console_strange(const struct mc_console *console);

/* ---- print.c ---- */

/* A number, a bool or a text by its path; 0, false or "" when it is not there. */
uint64_t mc_console_number(struct mc_span json, const char *path);
double mc_console_real(struct mc_span json, const char *path);
uint64_t mc_console_whole(struct mc_span json, const char *path); /* of such that may have a fraction */
bool mc_console_bool(struct mc_span json, const char *path);
/* Printable: what a terminal would take as an order is '?'. Returns text. */
const char *mc_console_text(struct mc_span json, const char *path, char *text, size_t size);
/* "30.00 GB"; "12,345"; "3 h 12 min". Return text. */
const char *mc_console_size(char text[32], uint64_t bytes);
const char *mc_console_count(char text[32], uint64_t number);
const char *mc_console_time(char text[32], uint64_t seconds);
/* A part of an answer that is JSON; what a terminal would take as an order stands there as an escape. */
void mc_console_put_json(FILE *out, struct mc_span json);
/* A list of JSON values, one a line: begun by the first element, and ended, also without one. */
void mc_console_list_add(struct mc_console *console, bool *is_begun, struct mc_span element);
void mc_console_list_end(struct mc_console *console, bool is_begun);

/* ---- what two commands print ---- */

void mc_console_print_status(const struct mc_console *console, struct mc_span data);
void mc_console_print_nodes_head(FILE *out);
void mc_console_print_node(FILE *out, struct mc_span node);
void mc_console_print_event(FILE *out, struct mc_span event);
/* Of an object of numbers the largest few, as parts of all. */
void mc_console_print_parts(FILE *out, struct mc_span data, const char *path);
void mc_console_print_misses_short(FILE *out, struct mc_span data);

#endif
