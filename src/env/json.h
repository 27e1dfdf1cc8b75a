/* JSON, read in place without memory of its own and written into buffers, and base64. Strict: the whole text is
 * checked, so that a cut answer is not taken for a short one; strings may hold any bytes but control characters. */
#ifndef MC_ENV_JSON_H
#define MC_ENV_JSON_H

#include "base/bytes.h"

#define MC_JSON_DEPTH_MAX 1024 /* objects and lists inside each other */

/* path: names of members and indices of elements joined by dots, "kvs.0.value"; of several of one name the last counts.
 * 1: *value borrows from the text: of a string what is between the quotes, escapes as they are; of anything else its
 * text. 0: not there. MC_ERR_PROTOCOL: not JSON. */
int mc_json_find(struct mc_span text, const char *path, struct mc_span *value);
/* Digits, with or without quotes, of at most 64 bits. 1, 0, MC_ERR_PROTOCOL as above. */
int mc_json_find_number(struct mc_span text, const char *path, uint64_t *number);

/* Goes through the members of an object or the elements of an array, each looked at once. Set up by mc_json_open;
 * borrows from the text. */
struct mc_json_cursor {
    const char *start, *at, *end;
    bool is_object, is_started;
    struct mc_span name;  /* of the member, escapes as they are; empty in an array */
    struct mc_span value; /* as mc_json_find gives it */
    char kind;            /* of the value: its first character: '{', '[', '"', 't', 'f', 'n', '-' or a digit */
    const char *from;     /* where the member or element begins; it ends at `at` */
    const char *problem;  /* after MC_ERR_PROTOCOL: what is wrong at `at`. Static storage */
};
/* text: a whole JSON value. 0, or MC_ERR_PROTOCOL: not an object (kind '{') or array ('['). */
int mc_json_open(struct mc_span text, char kind, struct mc_json_cursor *cursor);
/* 1: the next one is there. 0: that was the last. MC_ERR_PROTOCOL: not JSON, also for what follows the last. */
int mc_json_next(struct mc_json_cursor *cursor);
/* The last member of that name; the whole object is checked. 1; 0: none; MC_ERR_PROTOCOL: *member says what is bad. */
int mc_json_member(struct mc_span object, const char *name, struct mc_json_cursor *member);
/* One of that name stands before it in the object. Looks at all that stands before. */
bool mc_json_is_again(struct mc_span object, const struct mc_json_cursor *member);
/* Line and column of cursor->at, both from 1. */
void mc_json_where(struct mc_span text, const struct mc_json_cursor *cursor, int *line, int *column);
bool mc_json_is(struct mc_span name, const char *text);
/* Digits of at most 64 bits. 0 or MC_ERR_PROTOCOL. */
int mc_json_number(const struct mc_json_cursor *cursor, uint64_t *number);
/* A whole number of 64 bits, without fraction or exponent. 0 or MC_ERR_PROTOCOL. */
int mc_json_integer(const struct mc_json_cursor *cursor, int64_t *number);
/* Any number. 0 or MC_ERR_PROTOCOL: no number, or none that a double holds. */
int mc_json_real(const struct mc_json_cursor *cursor, double *number);
/* The text of a string value, its escapes resolved, with a zero behind it. 0; MC_ERR_PROTOCOL: no string, a zero in it,
 * bad escapes; MC_ERR_BUFFER_OVERFLOW. */
int mc_json_text(const struct mc_json_cursor *cursor, char *text, size_t size);
/* What stands behind a backslash of a string, as UTF-8 in four; steps *at over it. Bytes, or MC_ERR_PROTOCOL. */
int mc_json_unescape(const char **at, const char *end, char *four);
/* Appends text as a JSON string with its quotes. */
void mc_json_put_text(struct mc_buffer *out, const char *text);

/* Writes one document; {.out = &buffer} writes it in one line, .indent as many spaces a level. name: of the member;
 * NULL in a list and for the document itself. */
struct mc_json_writer {
    struct mc_buffer *out;
    unsigned indent, depth;
    bool has_items;
};
void mc_json_begin(struct mc_json_writer *writer, const char *name, char bracket); /* '{' or '[' */
void mc_json_end(struct mc_json_writer *writer, char bracket);                     /* '}' or ']' */
void mc_json_add_text(struct mc_json_writer *writer, const char *name, const char *text);
void mc_json_add_number(struct mc_json_writer *writer, const char *name, uint64_t number);
/* value: one whole JSON value. */
void mc_json_add_value(struct mc_json_writer *writer, const char *name, struct mc_span value);
void mc_json_add_bool(struct mc_json_writer *writer, const char *name, bool value);
/* Six digits, with a point or an exponent; what is not finite is null. */
void mc_json_add_real(struct mc_json_writer *writer, const char *name, double number);

void mc_base64_encode(struct mc_buffer *out, struct mc_span bytes);
/* 0 or MC_ERR_PROTOCOL; padding is needed. */
int mc_base64_decode(struct mc_buffer *out, struct mc_span text);

#endif
