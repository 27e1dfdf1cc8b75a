/* Which instance takes the next request: one table of policies, pure functions of what they are shown.
 *
 * Candidates come in ascending order of their turn, a number that stays with an instance (and rank) as long as it is
 * there, so that instances may come and go between two choices.
 */
#ifndef MC_PROXY_SCHEDULE_H
#define MC_PROXY_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

struct mc_candidate {
    uint64_t turn;
    uint64_t requests; /* under way there */
    uint64_t work;     /* bytes of prompts under way there */
};

struct mc_turns { /* what is remembered between two choices; zeroed = new */
    uint64_t last;
    uint64_t random;
};

struct mc_policy {
    const char *name, *help;
    /* The index of one of `count` > 0 candidates. */
    size_t (*choose)(struct mc_turns *turns, const struct mc_candidate *candidates, size_t count);
};

extern const struct mc_policy mc_policies[];
extern const size_t mc_policy_count;

/* NULL: there is none of that name. */
const struct mc_policy *mc_policy_find(const char *name);

#endif
