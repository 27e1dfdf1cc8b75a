/* The head of an HTTP/1.x request, out of bytes that a stranger sent. Pure: no socket, no memory of its own.
 *
 * What is ambiguous is refused, not guessed: two lengths, a length beside chunks, folded lines, blanks before a colon.
 */
#ifndef MC_SERVICE_WEB_HEAD_H
#define MC_SERVICE_WEB_HEAD_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_WEB_HEAD_MAX 16384 /* bytes of a head with its empty line */

struct mc_web_head {             /* borrows from the bytes */
    struct mc_span method, path; /* path as it was sent, without the query */
    uint64_t content_length;     /* 0 without one */
    bool is_chunked, is_continue_expected, is_kept_alive;
};

/* > 0: bytes of the head, the body follows. 0: more bytes are needed. Negative: the status to answer with, negated; the
 * connection is of no more use. */
int mc_web_parse_head(const char *text, size_t length, struct mc_web_head *head);
/* A chunk's size line without its end; false when it is none. */
bool mc_web_parse_chunk(struct mc_span line, uint64_t *size);
/* Decodes %41; out holds at least in.length bytes. Bytes written, or negative for a broken one. */
int64_t mc_web_decode(struct mc_span in, char *out);
bool mc_web_is(struct mc_span text, const char *word);

#endif
