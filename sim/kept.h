/* What a master must keep. */
#ifndef SIM_KEPT_H
#define SIM_KEPT_H

#include "oracle.h"

#define ORACLE_KEPT_MAX 4u
struct oracle_kept { /* what is offered of a key */
    uint64_t generations[ORACLE_KEPT_MAX];
    uint32_t count;
};
struct mc_core;
void oracle_kept_reset(void);
struct oracle_kept oracle_kept_now(uint32_t key);
/* The client in that place has, or has no more, a session of the key, which was as `before` when the call began. */
void oracle_session_begins(const struct oracle_call *call, uint32_t place, uint32_t key,
                           const struct oracle_kept *before);
void oracle_session_ends(uint32_t place, uint32_t key);
/* Before and after it reads up to that byte: what must be there. */
struct oracle_kept oracle_session_before(uint32_t place, uint32_t key);
void oracle_session_read(uint32_t place, uint32_t key, const struct oracle_kept *before, uint64_t end, int64_t result);
/* A master begins: it has evicted nothing yet. */
void oracle_evictions_begin(void);
/* The core has done what it was asked for. */
void oracle_core_rests(const struct mc_core *core);
void oracle_check_wishes(const struct mc_core *core);

#endif
