/* HTTP/1 messages: heads are parsed and checked strictly, bodies are decoded piece by piece.
 *
 * Strict where leniency would let two programs see two different messages: line ends are CRLF, no folded lines, no
 * space before a colon, never both Content-Length and Transfer-Encoding. What is refused is refused before anything is
 * passed on.
 *
 * Invariant: a head that was parsed holds only text of its own; every name and value ends with a zero and has no
 * control characters inside, so it can be written into another message as it is.
 */
#ifndef MC_PROXY_MESSAGE_H
#define MC_PROXY_MESSAGE_H

#include <event2/buffer.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_MESSAGE_HEAD_MAX 65536   /* bytes of a head */
#define MC_MESSAGE_HEADERS_MAX 128  /* lines of a head */
#define MC_MESSAGE_LINE_MAX 4096    /* bytes of a line before a chunk */
#define MC_MESSAGE_TRAILER_MAX 8192 /* bytes behind the last chunk */

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
    bool is_http_1_0, keeps_alive, expects_continue;
};

/* Moves a complete head out of `in`. 1: done. 0: more bytes are needed. Negative: -(HTTP status to answer with). */
int mc_head_take_request(struct mc_head *head, struct evbuffer *in);
/* The same for a response; negative: it is not HTTP. is_head: the answer to HEAD, which has no body. */
int mc_head_take_response(struct mc_head *head, struct evbuffer *in, bool is_head);
void mc_head_free(struct mc_head *head);
/* First value of that name (any case), or NULL. */
const char *mc_head_find(const struct mc_head *head, const char *name);
/* Does it concern one connection only, or is it written anew for each (framing, Host)? */
bool mc_header_is_hop(const struct mc_head *head, const char *name);

struct mc_body { /* state of a body on its way in */
    enum mc_framing framing;
    enum mc_body_state { MC_BODY_DATA, MC_BODY_CHUNK_LINE, MC_BODY_CHUNK_END, MC_BODY_TRAILER, MC_BODY_DONE } state;
    uint64_t left; /* of the body or of the chunk */
    size_t trailer_bytes;
};
void mc_body_begin(struct mc_body *body, const struct mc_head *head);
/* Moves what is there from `in` to `out`. 1: that was all. 0: more is needed. -1: it is not a body. */
int mc_body_decode(struct mc_body *body, struct evbuffer *in, struct evbuffer *out);

#endif
