/* What session.c and session_put.c share. */
#ifndef MC_STORE_SESSION_INSIDE_H
#define MC_STORE_SESSION_INSIDE_H

#include "store/client/session.h"

#include <stdbool.h>

bool mc_hash_equal(struct mc_hash a, struct mc_hash b);
void mc_put_sessions_free(struct mc_sessions *sessions);

#endif
