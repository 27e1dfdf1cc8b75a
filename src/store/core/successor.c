/* Successors by key. */
#include "store/core/successor.h"
#include "base/error.h"
#include "store/core/state.h"

static struct mc_object **bucket_of(struct mc_core *core, const struct mc_object *object)
{
    return &core->successors[mc_object_hash(&core->objects, object) % MC_SUCCESSOR_BUCKETS];
}

void mc_successors_add(struct mc_core *core, struct mc_object *successor)
{
    mc_assert(successor->roomy && mc_object_group(successor) == NULL);
    struct mc_object **first = bucket_of(core, successor);
    struct mc_membership *membership = mc_object_membership(successor);
    membership->wished = 0;
    membership->next_successor = *first;
    *first = successor;
}

void mc_successors_remove(struct mc_core *core, struct mc_object *successor)
{
    struct mc_object **at = bucket_of(core, successor);
    while (*at != successor) {
        mc_assert(*at != NULL);
        at = &mc_object_membership(*at)->next_successor;
    }
    *at = mc_object_membership(successor)->next_successor;
}

/* The first of the object's key, from `at` on, in one bucket. */
static struct mc_object *of_key(struct mc_object *at, const struct mc_object *object)
{
    while (at != NULL && !mc_span_equal(mc_object_key(at), mc_object_key(object)))
        at = mc_object_membership(at)->next_successor;
    return at;
}

struct mc_object *mc_successor_first(const struct mc_core *core, const struct mc_object *object)
{
    return of_key(core->successors[mc_object_hash(&core->objects, object) % MC_SUCCESSOR_BUCKETS], object);
}

struct mc_object *mc_successor_next(const struct mc_object *successor)
{
    return of_key(mc_object_membership(successor)->next_successor, successor);
}
