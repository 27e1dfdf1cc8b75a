/* The prefill and decode instances: which are there, which answer, how much each has to do, and the choice between
 * them.
 *
 * An instance lives as long as somebody holds it: the set and each request that uses it. One that is removed gets no
 * more requests and is found by no name; the set keeps it aside, so that it is still looked after, until those that it
 * had have ended.
 * Invariant: of the instances in a set's lists no two have the same role and name; turns ascend along each list.
 */
#ifndef MC_PROXY_INSTANCE_H
#define MC_PROXY_INSTANCE_H

#include "proxy/options.h"

#include <stdbool.h>

#define MC_PROXY_RANKS_MAX 256     /* data-parallel ranks of one prefill instance */
#define MC_PROXY_ENGINE_ID_MAX 256 /* bytes of an engine id with its zero */
#define MC_PROXY_PROBLEM_MAX 512
#define MC_PROXY_STRIKES_MAX 3 /* checks in a row that come to nothing, after which an instance counts as dead */
#define MC_PROXY_BUCKETS 14

enum mc_proxy_role { MC_PROXY_PREFILL, MC_PROXY_DECODE };
enum mc_instance_state {
    MC_INSTANCE_NEW, /* not heard of yet */
    MC_INSTANCE_UP,
    MC_INSTANCE_DOWN,
    MC_INSTANCE_WRONG_MODEL
};

struct mc_proxy_histogram {
    uint64_t buckets[MC_PROXY_BUCKETS + 1]; /* each alone; the last one: above all bounds */
    uint64_t count, sum_ms;
};

struct mc_instance {
    struct mc_instance *next;
    struct mc_proxy_address address;
    enum mc_proxy_role role;
    enum mc_instance_state state;
    bool is_removed, model_is_checked;
    bool is_silent; /* down because it answers nothing at all */
    bool is_late;   /* it has not answered /health for a while: it gets requests only if there is no other */
    unsigned holders, strikes, bootstrap_strikes;
    uint64_t heard_ms; /* its last byte on any connection */
    uint64_t owes_ms;  /* since when it has requests under way */
    uint64_t again_ms; /* when it is to be asked besides the rounds; 0: it is not */
    uint64_t turn;
    char problem[MC_PROXY_PROBLEM_MAX]; /* why it is not up */
    char (*engine_ids)[MC_PROXY_ENGINE_ID_MAX];
    unsigned rank_count; /* of engine_ids; 0: its bootstrap server has not told yet */
    uint64_t requests, work;
    uint64_t started, failed, cancelled;
    struct mc_proxy_histogram whole, first_byte; /* of requests that ended well; until the first byte of any */
    struct mc_instance_check *check;             /* under way, or NULL */
};

struct mc_instances {
    struct mc_instance *list[2]; /* by role */
    struct mc_instance *removed; /* of both roles */
    size_t count[2];
    struct mc_turns turns[2];
    uint64_t next_turn;
};

extern const uint32_t mc_histogram_bounds_ms[MC_PROXY_BUCKETS];
void mc_proxy_histogram_add(struct mc_proxy_histogram *histogram, uint64_t ms);

/* The new instance, or NULL: there is one of that name, too many, or no memory; *problem says which. */
struct mc_instance *mc_instances_add(struct mc_instances *set, enum mc_proxy_role role,
                                     const struct mc_proxy_address *address, const char **problem);
struct mc_instance *mc_instances_find(const struct mc_instances *set, enum mc_proxy_role role, const char *name);
/* Takes it out of its list, and keeps it among the removed. */
void mc_instances_remove(struct mc_instances *set, struct mc_instance *instance);
/* Lets go of one that was removed; it goes when its last holder does. */
void mc_instances_forget(struct mc_instances *set, struct mc_instance *instance);
void mc_instances_free(struct mc_instances *set);

void mc_instance_hold(struct mc_instance *instance);
void mc_instance_release(struct mc_instance *instance);
const char *mc_instance_state_name(const struct mc_instance *instance);
bool mc_instance_is_usable(const struct mc_instance *instance);
/* How long nothing has come of it though it owes answers; 0 when it owes none. */
uint64_t mc_instance_silent_ms(const struct mc_instance *instance, uint64_t now);
/* Soon, once: it takes no connection, and a pod that was replaced has its name and another address. */
void mc_instance_ask_again(struct mc_instance *instance);
void mc_instance_set_down(struct mc_instance *instance, const char *problem);

/* The next one by the policy among those that are usable and not in `tried` (turns of instances); NULL: none. *rank:
 * which data-parallel rank of it. */
struct mc_instance *mc_instances_choose(struct mc_instances *set, enum mc_proxy_role role,
                                        const struct mc_policy *policy, const uint64_t *tried, size_t tried_count,
                                        unsigned *rank);

/* The instance of that turn, if it is still there and usable. */
struct mc_instance *mc_instances_again(const struct mc_instances *set, enum mc_proxy_role role, uint64_t turn);

/* Is there one that is usable and was not tried? */
bool mc_instances_has_other(const struct mc_instances *set, enum mc_proxy_role role, const uint64_t *tried,
                            size_t tried_count);

#endif
