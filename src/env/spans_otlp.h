/* OTLP over HTTP in JSON: what the environment's OTEL_ variables say of it, and spans as its text. For spans.c. */
#ifndef MC_ENV_SPANS_OTLP_H
#define MC_ENV_SPANS_OTLP_H

#include "env/socket.h"
#include "env/spans.h"

#include <limits.h>

#define MC_OTLP_PATH_MAX 512u

struct mc_otlp { /* zeroed: none */
    char address[MC_ADDRESS_MAX];
    char path[MC_OTLP_PATH_MAX];
    bool is_tls;
    char authority[PATH_MAX];  /* a file of certificates; empty: the machine's */
    const char *authority_is;  /* the variable that names it */
    struct mc_buffer headers;  /* lines of a request, each with its end; text */
    struct mc_buffer resource; /* the value of "resource" */
};

/* Is it said that there is nothing to be sent at all? */
bool mc_otlp_is_off(void);
/* Who we are. */
void mc_otlp_name(struct mc_otlp *otlp, const char *service);
/* Where to. 0, or MC_ERR_INVALID_PARAMS with a line. */
int mc_otlp_target(struct mc_otlp *otlp, char *error, size_t error_size);
void mc_otlp_free(struct mc_otlp *otlp);
/* One request, in one line and without the line's end. */
void mc_otlp_write(struct mc_buffer *out, const struct mc_otlp *otlp, struct mc_traced *const *spans, size_t count);

#endif
