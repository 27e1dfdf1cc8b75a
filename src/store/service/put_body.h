/* The body of a PUT: {"key": "...", "value": "..."}. A value may be 100 MiB, so it is decoded where it lies. */
#ifndef MC_SERVICE_PUT_BODY_H
#define MC_SERVICE_PUT_BODY_H

#include "base/bytes.h"

struct mc_put_body { /* borrows from the text; data NULL: not there, or null */
    struct mc_span key, value;
};

/* Changes the text. NULL, or why not (in reason or static). */
const char *mc_put_body_parse(char *text, size_t length, struct mc_put_body *body, char *reason, size_t reason_size);

#endif
