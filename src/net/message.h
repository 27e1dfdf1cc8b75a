/* HTTP/1 messages: heads are parsed and checked strictly, the bytes of a body are found piece by piece. Pure: no
 * socket.
 *
 * Strict where leniency would let two programs see two different messages: no folded lines, no space before a colon,
 * never both Content-Length and Transfer-Encoding, nor two lengths. What is refused is refused before anything is
 * passed on.
 *
 * Invariant: a head that was read holds only text of its own; every name and value ends with a zero and has no
 * control characters inside, so it can be written into another message as it is.
 */
#ifndef MC_NET_MESSAGE_H
#define MC_NET_MESSAGE_H

#include "base/bytes.h"

#define MC_MESSAGE_HEADERS_MAX 128   /* lines of a head */
#define MC_MESSAGE_LINE_MAX 4096     /* bytes of a line before a chunk */
#define MC_MESSAGE_TRAILER_MAX 16384 /* bytes behind the last chunk */

struct mc_message_rules {
    size_t head_max, headers_max; /* bytes of a head, its lines: MC_MESSAGE_HEADERS_MAX at most */
    /* Who is no other program's way to a third may take a line feed for a line end, and a target that names a host (of
     * which the path is kept) or is "*". */
    bool is_lenient;
};

struct mc_header {
    const char *name, *value;
};

enum mc_framing {
    MC_FRAMING_NONE,
    MC_FRAMING_LENGTH,
    MC_FRAMING_CHUNKED,
    MC_FRAMING_CLOSE /* until the connection ends; responses only */
};

struct mc_head { /* zeroed = empty and valid */
    char *text;  /* owned */
    struct mc_header headers[MC_MESSAGE_HEADERS_MAX];
    size_t header_count;
    const char *method, *target; /* of a request */
    int status;                  /* of a response */
    enum mc_framing framing;
    uint64_t length; /* with MC_FRAMING_LENGTH */
    bool is_http_1_0, keeps_alive, expects_continue, is_lenient;
};

/* Copies a complete head out of `in`. Positive: its bytes. 0: more are needed. Negative: -(HTTP status to answer with),
 * and the connection is of no more use. Either way what the head held before is freed. */
int mc_head_read_request(struct mc_head *head, const struct mc_message_rules *rules, const char *in, size_t length);
/* The same for a response; negative: it is not HTTP. is_head: the answer to HEAD, which has no body. */
int mc_head_read_response(struct mc_head *head, const struct mc_message_rules *rules, const char *in, size_t length,
                          bool is_head);
void mc_head_free(struct mc_head *head);
/* First value of that name (any case), or NULL. */
const char *mc_head_find(const struct mc_head *head, const char *name);
/* Has a header of that name, whose values are lists, this word among them? */
bool mc_head_lists(const struct mc_head *head, const char *name, const char *word);

struct mc_body { /* state of a body on its way in; zeroed = there is none, or no more of it */
    enum mc_framing framing;
    enum mc_body_state { MC_BODY_DONE, MC_BODY_DATA, MC_BODY_CHUNK_LINE, MC_BODY_CHUNK_END, MC_BODY_TRAILER } state;
    uint64_t left; /* of the body or of the chunk */
    size_t trailer_bytes;
    bool is_lenient;
};
void mc_body_begin(struct mc_body *body, const struct mc_head *head);
/* In MC_BODY_DATA: so many of the `left` bytes that come next were taken. */
void mc_body_took(struct mc_body *body, uint64_t bytes);
/* In the states of chunks: reads one line at the beginning of `in`. Positive: its bytes. 0: more are needed. -1: it is
 * not a body. */
int mc_body_line(struct mc_body *body, const char *in, size_t length);

/* What a status line says beside the number; "Status" for one that has no word here. */
const char *mc_http_reason(int status);

/* Decodes %41; out holds at least in.length bytes. Bytes written, or negative for a broken one. */
int64_t mc_uri_decode(struct mc_span in, char *out);

#endif
