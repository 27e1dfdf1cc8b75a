/* The set of instances; see instance.h. */
#include "proxy/instance.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/resolve.h"

#include <stdio.h>
#include <stdlib.h>

#define AGAIN_MS (MC_RESOLVE_AGAIN_MS + 200) /* its name has been looked up anew by then */

const uint32_t mc_histogram_bounds_ms[MC_PROXY_BUCKETS] = {5,    10,   25,   50,    100,   250,    500,
                                                           1000, 2500, 5000, 10000, 30000, 120000, 600000};

void mc_proxy_histogram_add(struct mc_proxy_histogram *histogram, uint64_t ms)
{
    size_t i = 0;
    while (i < MC_PROXY_BUCKETS && ms > mc_histogram_bounds_ms[i])
        i++;
    histogram->buckets[i]++;
    histogram->count++;
    histogram->sum_ms += ms;
}

struct mc_instance *mc_instances_find(const struct mc_instances *set, enum mc_proxy_role role, const char *name)
{
    struct mc_instance *at = set->list[role];
    while (at != NULL && strcmp(at->address.name, name) != 0)
        at = at->next;
    return at;
}

struct mc_instance *mc_instances_add(struct mc_instances *set, enum mc_proxy_role role,
                                     const struct mc_proxy_address *address, const char **problem)
{
    struct mc_instance **end = &set->list[role];
    *problem = "Instance already exists.";
    if (mc_instances_find(set, role, address->name) != NULL)
        return NULL;
    *problem = "Too many instances.";
    if (set->count[0] + set->count[1] >= MC_PROXY_INSTANCES_MAX)
        return NULL;
    struct mc_instance *instance = calloc(1, sizeof(*instance));
    *problem = "No memory.";
    if (instance == NULL)
        return NULL;
    instance->address = *address;
    instance->role = role;
    instance->holders = 1;
    instance->turn = ++set->next_turn * MC_PROXY_RANKS_MAX;
    (void)snprintf(instance->problem, sizeof(instance->problem), "it has not answered yet");
    while (*end != NULL)
        end = &(*end)->next;
    *end = instance;
    set->count[role]++;
    *problem = NULL;
    return instance;
}

static void unlink_from(struct mc_instance **at, struct mc_instance *instance)
{
    while (*at != instance) {
        mc_assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = instance->next;
    instance->next = NULL;
}

void mc_instances_remove(struct mc_instances *set, struct mc_instance *instance)
{
    unlink_from(&set->list[instance->role], instance);
    set->count[instance->role]--;
    instance->is_removed = true;
    instance->next = set->removed;
    set->removed = instance;
}

void mc_instances_forget(struct mc_instances *set, struct mc_instance *instance)
{
    unlink_from(&set->removed, instance);
    mc_instance_release(instance);
}

void mc_instances_free(struct mc_instances *set)
{
    for (int role = 0; role < 2; role++) {
        while (set->list[role] != NULL)
            mc_instances_remove(set, set->list[role]);
    }
    while (set->removed != NULL)
        mc_instances_forget(set, set->removed);
}

void mc_instance_hold(struct mc_instance *instance)
{
    instance->holders++;
}

void mc_instance_release(struct mc_instance *instance)
{
    mc_assert(instance->holders > 0);
    if (--instance->holders > 0)
        return;
    free(instance->engine_ids);
    free(instance);
}

const char *mc_instance_state_name(const struct mc_instance *instance)
{
    static const char *const names[] = {"new", "up", "down", "wrong_model"};
    return names[instance->state];
}

bool mc_instance_is_usable(const struct mc_instance *instance)
{
    if (instance->state != MC_INSTANCE_UP && instance->state != MC_INSTANCE_NEW)
        return false;
    return instance->role != MC_PROXY_PREFILL || instance->address.mode != MC_PROXY_CONCURRENT ||
           instance->rank_count > 0;
}

uint64_t mc_instance_silent_ms(const struct mc_instance *instance, uint64_t now)
{
    uint64_t since = instance->heard_ms > instance->owes_ms ? instance->heard_ms : instance->owes_ms;
    return instance->requests == 0 ? 0 : now - since;
}

void mc_instance_ask_again(struct mc_instance *instance)
{
    instance->again_ms = mc_clock_ms() + AGAIN_MS;
}

void mc_instance_set_down(struct mc_instance *instance, const char *problem)
{
    if (instance->state != MC_INSTANCE_DOWN) {
        mc_log(WARNING, "%s instance %s is down: %s", instance->role == MC_PROXY_PREFILL ? "prefill" : "decode",
               instance->address.name, problem);
        mc_instance_ask_again(instance);
    }
    instance->state = MC_INSTANCE_DOWN;
    instance->model_is_checked = false;
    (void)snprintf(instance->problem, sizeof(instance->problem), "%s", problem);
}

static bool is_in(const uint64_t *turns, size_t count, uint64_t turn)
{
    for (size_t i = 0; i < count; i++) {
        if (turns[i] == turn)
            return true;
    }
    return false;
}

bool mc_instances_has_other(const struct mc_instances *set, enum mc_proxy_role role, const uint64_t *tried,
                            size_t tried_count)
{
    for (const struct mc_instance *at = set->list[role]; at != NULL; at = at->next) {
        if (mc_instance_is_usable(at) && !is_in(tried, tried_count, at->turn))
            return true;
    }
    return false;
}

struct mc_instance *mc_instances_again(const struct mc_instances *set, enum mc_proxy_role role, uint64_t turn)
{
    struct mc_instance *at = set->list[role];
    while (at != NULL && at->turn != turn)
        at = at->next;
    return at != NULL && mc_instance_is_usable(at) ? at : NULL;
}

/* Ranks of an instance are told apart by turns only; what it has to do is known for all of them together. */
struct mc_instance *mc_instances_choose(struct mc_instances *set, enum mc_proxy_role role,
                                        const struct mc_policy *policy, const uint64_t *tried, size_t tried_count,
                                        unsigned *rank)
{
    static struct mc_candidate candidates[MC_PROXY_INSTANCES_MAX * 4]; /* one thread; too large for a stack */
    const size_t most = sizeof(candidates) / sizeof(candidates[0]);
    size_t count = 0;
    bool has_timely = false; /* one that is not late */
    for (const struct mc_instance *at = set->list[role]; at != NULL; at = at->next)
        has_timely = has_timely || (mc_instance_is_usable(at) && !at->is_late && !is_in(tried, tried_count, at->turn));
    for (struct mc_instance *at = set->list[role]; at != NULL; at = at->next) {
        if (!mc_instance_is_usable(at) || is_in(tried, tried_count, at->turn) || (at->is_late && has_timely))
            continue;
        unsigned ranks = at->rank_count > 0 ? at->rank_count : 1;
        for (unsigned i = 0; i < ranks && count < most; i++)
            candidates[count++] = (struct mc_candidate){at->turn + i, at->requests, at->work};
    }
    if (count == 0)
        return NULL;
    size_t chosen = policy->choose(&set->turns[role], candidates, count);
    mc_assert(chosen < count);
    *rank = (unsigned)(candidates[chosen].turn % MC_PROXY_RANKS_MAX);
    struct mc_instance *at = set->list[role];
    while (at->turn != candidates[chosen].turn - *rank)
        at = at->next;
    return at;
}
