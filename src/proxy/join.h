/* One answer made of two. Engines split a request: prefill knows the log probabilities of the prompt's tokens, decode
 * those of the tokens that it made. For `return_logprob` the client gets decode's answer with prefill's
 * meta_info.input_token_logprobs before decode's own: of the whole answer, or of each event of a stream. Everything
 * else is passed on byte by byte. What has no such list, a batch's list of answers among it, stays as it is.
 */
#ifndef MC_PROXY_JOIN_H
#define MC_PROXY_JOIN_H

#include "proxy/edit.h"

/* Bytes of the first event of a stream, with the empty line behind it; 0: it is not whole yet. */
size_t mc_join_event(struct mc_span text);
/* What is between the brackets of the list, inside `text`: an answer, or an event of a stream. data NULL: none. */
struct mc_span mc_join_list(struct mc_members *members, struct mc_span text);
/* Appends `text`, decode's answer or an event of it, with `before` as the first elements of its list. */
void mc_join_write(struct mc_members *members, struct mc_span text, struct mc_span before, struct mc_buffer *out);

#endif
