/* Reads single values out of a JSON text, and base64: what etcd's gateway speaks. In place, without memory of its own;
 * the whole text is checked, so that a cut answer is not taken for a short one. */
#ifndef MC_ENV_JSON_H
#define MC_ENV_JSON_H

#include "base/bytes.h"

#define MC_JSON_DEPTH_MAX 32

/* path: names of members and indices of elements joined by dots, "kvs.0.value". 1: *value borrows from the text: of a
 * string what is between the quotes, escapes as they are; of anything else its text. 0: not there. MC_ERR_PROTOCOL: not
 * JSON. */
int mc_json_find(struct mc_span text, const char *path, struct mc_span *value);
/* Digits, with or without quotes, of at most 64 bits. 1, 0, MC_ERR_PROTOCOL as above. */
int mc_json_find_number(struct mc_span text, const char *path, uint64_t *number);

void mc_base64_encode(struct mc_buffer *out, struct mc_span bytes);
/* 0 or MC_ERR_PROTOCOL; padding is needed. */
int mc_base64_decode(struct mc_buffer *out, struct mc_span text);

#endif
