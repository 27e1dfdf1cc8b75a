/* Calls that were answered late, as the shell is told of them, and puts that are open for long. Nothing here changes
 * anything of the core. */
#ifndef MC_CORE_SLOW_H
#define MC_CORE_SLOW_H

#include "store/core/state.h"

/* What is known of a call before its end may free it. */
struct mc_slow_note {
    bool is_slow, is_own;
    uint32_t length; /* of the key, which may be cut */
    uint8_t key[MC_CORE_SLOW_KEY_MAX];
};
/* Does a call that began then, by life time, count as slow? */
static inline bool mc_slow_is(const struct mc_core *core, uint64_t started_ms)
{
    return core->output.slow != NULL && mc_core_life_ms(core) - started_ms >= MC_CORE_SLOW_MS;
}
void mc_slow_note(struct mc_slow_note *note, struct mc_span key);
/* connection NULL: its caller has gone. */
void mc_slow_tell(const struct mc_core *core, enum mc_slow_kind kind, const struct mc_connection *connection,
                  const struct mc_slow_note *note, uint64_t started_ms, int32_t code);

#endif
