/* Tenants with quotas (--quotas). The oracle has its own idea of what each may have, and counts anew what each has: a
 * put beyond its quota is never admitted, and what is guaranteed to one does not go for others. */
#include "quotas.h"

#include "members.h"
#include "worker.h"

#include "store/core/account.h"
#include "store/core/blank.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <string.h>

static uint32_t putting = SIM_TENANTS_MAX; /* for whom room is made; SIM_TENANTS_MAX: nobody */

/* ---- what is drawn ---- */

static struct sim_quota quota_draw(const struct sim_plan *made)
{
    uint64_t value = made->value_max * (uint64_t)made->replicas_max;
    struct sim_quota quota = {.is_given = !sim_once_in(SIM_QUOTA, 8)};
    quota.bytes = 1 + value * sim_below(SIM_QUOTA, 6) + sim_below(SIM_QUOTA, (uint32_t)value);
    quota.objects = sim_once_in(SIM_QUOTA, 2) ? 0 : 1 + sim_below(SIM_QUOTA, 5);
    if (sim_once_in(SIM_QUOTA, 2))
        quota.guaranteed_bytes = 1 + sim_below(SIM_QUOTA, (uint32_t)quota.bytes);
    if (sim_once_in(SIM_QUOTA, 3))
        quota.guaranteed_objects = 1 + sim_below(SIM_QUOTA, quota.objects > 0 ? (uint32_t)quota.objects : 3);
    return quota;
}

void sim_quotas_draw(struct sim_plan *made)
{
    made->tenants = 1 + sim_below(SIM_QUOTA, SIM_TENANTS_MAX);
    if (sim_once_in(SIM_QUOTA, 2)) { /* too little room for all of them */
        made->capacity = 64u << 10;
        made->value_max = made->value_max < 9000 ? 9000 : made->value_max;
    }
    for (uint32_t i = 0; i < SIM_TENANTS_MAX; i++)
        made->quotas[i] = quota_draw(made);
    made->tenants = made->tenants < made->keys ? made->tenants : made->keys;
    made->has_quotas = true;
    made->is_roomy = false; /* what is put may go for its tenant's next */
    made->has_foreign = made->is_told = made->has_old = false;
}

/* ---- what each may have ---- */

static struct mc_core_quota quota_of(uint32_t tenant)
{
    const struct sim_quota *quota = &sim_plan->quotas[tenant];
    return (struct mc_core_quota){.bytes = quota->bytes,
                                  .objects = quota->objects,
                                  .guaranteed_bytes = quota->guaranteed_bytes,
                                  .guaranteed_objects = quota->guaranteed_objects};
}

void sim_quotas_give(struct mc_core *core)
{
    putting = SIM_TENANTS_MAX;
    for (uint32_t i = 0; i < sim_plan->tenants; i++) {
        struct mc_core_quota quota = quota_of(i);
        if (sim_plan->quotas[i].is_given && mc_core_quota(core, mc_span_string(sim_tenant(i)), &quota) != 0 &&
            !sim_has_wanted(sim_process()->place)) /* else it had no memory */
            sim_fail("quota: a master does not take one of %s", sim_tenant(i));
    }
}

static uint32_t tenant_of(struct mc_span key)
{
    for (uint32_t i = 0; i < sim_plan->tenants; i++) {
        struct mc_scope scope;
        if (mc_scope_make(&scope, mc_span_string(sim_tenant(i))) && mc_scope_has(&scope, key))
            return i;
    }
    return SIM_TENANTS_MAX;
}

static uint64_t lent(const struct mc_core *core)
{
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        if (segment != NULL && segment->state != MC_SEGMENT_GONE && segment->kind == MC_SEGMENT_MEMORY)
            bytes += segment->capacity;
    }
    return bytes;
}

/* Of `bytes`, when those that are alike are together more than there is. */
static uint64_t part_of(const struct mc_core *core, uint64_t bytes, bool is_guaranteed)
{
    double sum = 0, capacity = (double)lent(core);
    for (uint32_t i = 0; i < sim_plan->tenants; i++) {
        const struct sim_quota *quota = &sim_plan->quotas[i];
        if (quota->is_given && is_guaranteed)
            sum += (double)quota->guaranteed_bytes;
        else if (quota->is_given && quota->guaranteed_bytes == 0)
            sum += (double)quota->bytes;
    }
    return sum <= capacity ? bytes : (uint64_t)((double)bytes * (capacity / sum));
}

static uint32_t in_memory(const struct mc_core *core, const struct mc_object *object)
{
    uint32_t count = 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        count += at.segment->kind == MC_SEGMENT_MEMORY;
    return count;
}

/* ---- puts ---- */

/* It was let in. What it replaces goes in the end. */
static void check_admitted(const struct mc_core *core, struct mc_span key, uint64_t length, uint32_t replicas)
{
    uint32_t tenant = tenant_of(key);
    const struct mc_account *account = mc_account_find(core->objects.accounts, key);
    const struct mc_object *object = mc_objects_find(&core->objects, key);
    if (tenant == SIM_TENANTS_MAX || !sim_plan->quotas[tenant].is_given || account == NULL) {
        sim_fail("quota: a put of a tenant that has none is let in");
        return;
    }
    const struct sim_quota *quota = &sim_plan->quotas[tenant];
    uint32_t has = object == NULL || !object->visible ? 0 : in_memory(core, object);
    uint64_t bytes = account->bytes + length * replicas - (has > 0 ? object->length * has : 0);
    uint64_t objects = account->objects + (has == 0);
    uint64_t most = quota->guaranteed_bytes > 0 ? quota->bytes : part_of(core, quota->bytes, false);
    if (bytes > most || (quota->objects > 0 && objects > quota->objects))
        sim_fail("quota: a put is let in by which %s has %llu of %llu bytes, %llu of %llu objects", sim_tenant(tenant),
                 (unsigned long long)bytes, (unsigned long long)most, (unsigned long long)objects,
                 (unsigned long long)quota->objects);
}

int32_t sim_account_admit(struct mc_core *core, struct mc_span key, const struct mc_object *object, uint64_t length,
                          uint32_t replicas);
int32_t sim_account_admit(struct mc_core *core, struct mc_span key, const struct mc_object *object, uint64_t length,
                          uint32_t replicas)
{
    int32_t rc = mc_account_admit(core, key, object, length, replicas);
    if (rc == 0 && sim_plan->has_quotas)
        check_admitted(core, key, length, replicas);
    return rc;
}

/* ---- evictions ---- */

void sim_account_puts(const struct mc_core *core, struct mc_span key);
void sim_account_puts(const struct mc_core *core, struct mc_span key)
{
    mc_account_puts(core, key);
    putting = key.length == 0 ? SIM_TENANTS_MAX : tenant_of(key);
}

void oracle_quota_evicts(const struct mc_core *core, const struct mc_object *object, uint32_t replicas)
{
    uint32_t tenant = tenant_of(mc_object_key(object)), has = in_memory(core, object);
    if (!sim_plan->has_quotas || tenant == putting || tenant == SIM_TENANTS_MAX || !sim_plan->quotas[tenant].is_given)
        return;
    const struct sim_quota *quota = &sim_plan->quotas[tenant];
    const struct mc_account *account = mc_account_find(core->objects.accounts, mc_object_key(object));
    uint64_t owed = part_of(core, quota->guaranteed_bytes, true);
    uint64_t left = account->bytes - object->length * (replicas < has ? replicas : has);
    if (owed > 0 && left < owed)
        sim_fail("quota: %s is left %llu of the %llu bytes that are guaranteed to it", sim_tenant(tenant),
                 (unsigned long long)left, (unsigned long long)owed);
    if (replicas >= has && account->objects - 1 < quota->guaranteed_objects)
        sim_fail("quota: %s is left %llu of the %llu objects that are guaranteed to it", sim_tenant(tenant),
                 (unsigned long long)account->objects - 1, (unsigned long long)quota->guaranteed_objects);
}

/* ---- what each has ---- */

#define OBJECTS_MAX 128u

struct usage {
    uint64_t bytes, objects;
    const struct mc_object *seen[OBJECTS_MAX];
};

static void count(struct usage *usage, const struct mc_object *object)
{
    usage->bytes += object->length;
    for (uint64_t i = 0; i < usage->objects && i < OBJECTS_MAX; i++) {
        if (usage->seen[i] == object)
            return;
    }
    if (usage->objects < OBJECTS_MAX)
        usage->seen[usage->objects] = object;
    usage->objects++;
}

void oracle_check_usage(const struct mc_core *core)
{
    static struct usage usages[SIM_TENANTS_MAX];
    for (uint32_t i = 0; i < SIM_TENANTS_MAX; i++)
        usages[i].bytes = usages[i].objects = 0;
    for (uint32_t index = 1; index < core->segment_top; index++) {
        const struct mc_segment *segment = core->segments[index];
        for (uint32_t i = 0; segment != NULL && segment->kind == MC_SEGMENT_MEMORY && i < segment->space.node_fresh;
             i++) {
            const struct mc_node *node = mc_segment_node(segment, i);
            bool is_counted =
                node->state == MC_NODE_LIVE || (node->state == MC_NODE_GRANTED && !mc_node_is_blank(node));
            uint32_t tenant = is_counted ? tenant_of(mc_object_key(mc_node_object(node))) : SIM_TENANTS_MAX;
            if (tenant < SIM_TENANTS_MAX)
                count(&usages[tenant], mc_node_object(node));
        }
    }
    for (uint32_t i = 0; i < sim_plan->tenants; i++) {
        uint64_t cursor = 0, bytes = 0, objects = 0;
        struct mc_core_tenant told;
        do {
            const char *name = sim_tenant(i)[0] == 0 ? MC_TENANT_DEFAULT : sim_tenant(i);
            if (mc_core_tenants(core, &cursor, &told, 1) == 1 && strcmp(told.name, name) == 0)
                bytes = told.bytes, objects = told.objects;
        } while (cursor != 0);
        if (usages[i].objects < OBJECTS_MAX && (bytes != usages[i].bytes || objects != usages[i].objects))
            sim_fail("quota: %s has %llu bytes and %llu objects, and is said to have %llu and %llu", sim_tenant(i),
                     (unsigned long long)usages[i].bytes, (unsigned long long)usages[i].objects,
                     (unsigned long long)bytes, (unsigned long long)objects);
    }
}
