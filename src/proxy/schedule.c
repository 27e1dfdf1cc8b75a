/* The scheduling policies; see schedule.h. */
#include "proxy/schedule.h"

#include "base/error.h"

#include <stdbool.h>
#include <string.h>

/* The first whose turn is after the last one that had it, else the first of all. */
static size_t choose_round_robin(struct mc_turns *turns, const struct mc_candidate *candidates, size_t count)
{
    size_t chosen = 0;
    while (chosen < count && candidates[chosen].turn <= turns->last)
        chosen++;
    if (chosen == count)
        chosen = 0;
    turns->last = candidates[chosen].turn;
    return chosen;
}

static bool is_less(const struct mc_candidate *a, const struct mc_candidate *b)
{
    return a->work != b->work ? a->work < b->work : a->requests < b->requests;
}

/* The least bytes of prompts under way, then the least requests; equals take turns, so that idle ones share. */
static size_t choose_least_loaded(struct mc_turns *turns, const struct mc_candidate *candidates, size_t count)
{
    size_t start = 0;
    mc_assert(count > 0);
    while (start < count && candidates[start].turn <= turns->last)
        start++;
    size_t chosen = start % count;
    for (size_t i = 1; i < count; i++) {
        size_t other = (start + i) % count;
        if (is_less(&candidates[other], &candidates[chosen]))
            chosen = other;
    }
    turns->last = candidates[chosen].turn;
    return chosen;
}

/* splitmix64: any sequence that is spread well will do. */
static size_t choose_random(struct mc_turns *turns, const struct mc_candidate *candidates, size_t count)
{
    (void)candidates;
    turns->random += 0x9e3779b97f4a7c15u;
    uint64_t mixed = turns->random;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    return (size_t)(mixed % count);
}

const struct mc_policy mc_policies[] = {
    {"round_robin", "in turn", choose_round_robin},
    {"least_loaded", "the one with the least prompt bytes, then requests, under way", choose_least_loaded},
    {"load_balanced", "another name of least_loaded", choose_least_loaded},
    {"random", "any", choose_random},
};
const size_t mc_policy_count = sizeof(mc_policies) / sizeof(mc_policies[0]);

const struct mc_policy *mc_policy_find(const char *name)
{
    for (size_t i = 0; i < mc_policy_count; i++) {
        if (strcmp(mc_policies[i].name, name) == 0)
            return &mc_policies[i];
    }
    return NULL;
}
