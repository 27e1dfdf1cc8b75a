/* The keys of a run: their names, lengths, pins and groups. */
#include "worker.h"

#include "store/core/object.h"
#include "store/wire/tenant.h"

#include <stdio.h>
#include <string.h>

struct mc_bytes sim_key_name(uint32_t key)
{
    static char names[SIM_KEY_NAMES_MAX][16];
    static int lengths[SIM_KEY_NAMES_MAX];
    if (lengths[key] == 0)
        lengths[key] = snprintf(names[key], sizeof(names[key]), SIM_KEY_FORMAT, key);
    return (struct mc_bytes){names[key], (size_t)lengths[key]};
}

const char *sim_tenant(uint32_t tenant)
{
    static const char *const names[SIM_TENANTS_MAX] = {"blue", "red", ""};
    return sim_plan->has_quotas ? names[tenant] : sim_plan->has_tenants ? names[0] : "";
}

uint32_t sim_tenant_of(const struct sim_process *process)
{
    bool is_client = process->place >= SIM_PLACE_CLIENT && process->place < SIM_PLACE_STANDBY;
    return sim_plan->has_quotas && is_client ? (process->place - SIM_PLACE_CLIENT) % sim_plan->tenants : 0;
}

uint32_t sim_key_tenant(uint32_t key)
{
    return sim_plan->has_quotas ? key % sim_plan->tenants : 0;
}

uint32_t sim_key_draw(enum sim_stream stream, uint32_t tenant)
{
    uint32_t every = sim_plan->has_quotas ? sim_plan->tenants : 1;
    return tenant + every * sim_below(stream, (sim_plan->keys - tenant + every - 1) / every);
}

static struct mc_scope scope_made(uint32_t key)
{
    struct mc_scope scope;
    bool is_name = mc_scope_make(&scope, mc_span_string(sim_tenant(sim_key_tenant(key))));
    mc_assert(is_name);
    return scope;
}

struct mc_span sim_key_full(uint32_t key)
{
    static uint8_t names[SIM_KEY_NAMES_MAX][16 + 16];
    struct mc_bytes name = sim_key_name(key);
    struct mc_scope scope = scope_made(key);
    mc_assert(scope.length + name.length <= sizeof(names[key]));
    memcpy(names[key], scope.bytes, scope.length);
    memcpy(names[key] + scope.length, name.data, name.length);
    return mc_span(names[key], scope.length + name.length);
}

bool sim_key_find(struct mc_span full, uint32_t *key)
{
    for (*key = 0; *key < SIM_KEY_NAMES_MAX; (*key)++) {
        struct mc_span name = sim_key_full(*key);
        if (name.length == full.length && memcmp(name.data, full.data, name.length) == 0)
            return true;
    }
    return false;
}

bool sim_key_of(const struct mc_object *object, uint32_t *key)
{
    return sim_key_find(mc_object_key(object), key);
}

uint32_t sim_length_draw(enum sim_stream stream)
{
    uint32_t kind = sim_below(stream, 8);
    if (sim_plan->blanks && kind < 7) /* one, that fits where the one before it did */
        return 1 + sim_plan->value_max / 2;
    if (kind < 5) /* few lengths: what lies in the place of another may then pass for it */
        return 1 + sim_plan->value_max / (1 + sim_below(stream, 3));
    return kind == 5 ? 1 + sim_below(stream, 16) : 1 + sim_below(stream, sim_plan->value_max);
}

uint64_t sim_group(uint32_t key)
{
    char name[16];
    int length = snprintf(name, sizeof(name), "group-%u", key % 3);
    return sim_plan->has_groups && key % 4 != 3 ? mc_group(name, (size_t)length) : 0;
}

uint64_t sim_group_full(uint32_t key)
{
    struct mc_scope scope = scope_made(key);
    return mc_scope_group(&scope, sim_group(key));
}

void sim_wishes_draw(struct mc_replicate_config *config, const uint32_t *keys, uint32_t count,
                     uint64_t groups[SIM_BATCH_MAX])
{
    if (sim_plan->has_pins) {
        uint32_t pin = sim_below(SIM_PIN, 8);
        config->with_hard_pin = pin == 0;
        config->with_soft_pin = pin == 1 || pin == 2;
        config->soft_pin_ttl_ms = pin == 2 ? 1000u << keys[0] % 4 : 0;
        if (sim_plan->has_firm && pin > 3) {
            config->firm_pin_ms = 1000u << keys[0] % 4;
            config->firm_pin_or_not = pin > 5;
        }
    }
    for (uint32_t i = 0; i < count && sim_plan->has_groups; i++)
        groups[i] = sim_group(keys[i]);
    config->groups = sim_plan->has_groups ? groups : NULL;
}
