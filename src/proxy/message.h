/* HTTP/1 messages in libevent's buffers, by the proxy's limits; and what of a head is passed on. */
#ifndef MC_PROXY_MESSAGE_H
#define MC_PROXY_MESSAGE_H

#include "net/message.h"

#include <event2/buffer.h>

#define MC_PROXY_HEAD_MAX 65536 /* bytes of a head */

/* Moves a complete head out of `in`. 1: done. 0: more bytes are needed. Negative: -(HTTP status to answer with). */
int mc_head_take_request(struct mc_head *head, struct evbuffer *in);
/* The same for a response; negative: it is not HTTP. is_head: the answer to HEAD, which has no body. */
int mc_head_take_response(struct mc_head *head, struct evbuffer *in, bool is_head);
/* Does it concern one connection only, or is it written anew for each (framing, Host)? */
bool mc_header_is_hop(const struct mc_head *head, const char *name);
/* Moves what is there from `in` to `out`. 1: that was all. 0: more is needed. -1: it is not a body. */
int mc_body_decode(struct mc_body *body, struct evbuffer *in, struct evbuffer *out);

#endif
