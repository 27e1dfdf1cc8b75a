#include "store/wire/tenant.h"

#include "store/wire/stripe.h"

#include <string.h>
#include <xxhash.h>

bool mc_tenant_is_name(struct mc_span name)
{
    const uint8_t *bytes = name.data;
    if (name.length == 0 || name.length > MC_TENANT_NAME_MAX || bytes[0] == '_')
        return false;
    for (size_t i = 0; i < name.length; i++)
        if (bytes[i] < 0x20 || bytes[i] == 0x7f)
            return false;
    return true;
}

bool mc_scope_make(struct mc_scope *scope, struct mc_span name)
{
    *scope = (struct mc_scope){.length = 0};
    if (name.length == 0 || mc_span_equal(name, mc_span_string(MC_TENANT_DEFAULT)))
        return true;
    if (!mc_tenant_is_name(name))
        return false;
    memcpy(scope->bytes + 1, name.data, name.length);
    scope->length = scope->tenant = (uint8_t)(name.length + 2);
    return true;
}

struct mc_id mc_stamp_of(struct mc_span text)
{
    if (text.length == 0)
        return (struct mc_id){0, 0};
    XXH128_hash_t hash = XXH3_128bits(text.data, text.length);
    return (struct mc_id){hash.low64, hash.high64 == 0 && hash.low64 == 0 ? 1 : hash.high64};
}

void mc_scope_stamp(struct mc_scope *scope, struct mc_id stamp)
{
    uint8_t *at = scope->bytes + scope->tenant;
    memset(at, 0, MC_STAMP_LENGTH);
    scope->length = scope->tenant;
    if (mc_id_is_zero(stamp))
        return;
    at[1] = 1;
    memcpy(at + 2, &stamp, sizeof(stamp));
    scope->length = (uint8_t)(scope->tenant + MC_STAMP_LENGTH);
}

struct mc_span mc_scope_name(const struct mc_scope *scope)
{
    return scope->tenant == 0 ? mc_span("", 0) : mc_span(scope->bytes + 1, scope->tenant - 2u);
}

struct mc_span mc_key_scope(struct mc_span key)
{
    key = mc_key_unmarked(key);
    const uint8_t *bytes = key.data;
    size_t most = key.length < MC_TENANT_NAME_MAX + 2 ? key.length : MC_TENANT_NAME_MAX + 2;
    if (most < 3 || bytes[0] != 0)
        return mc_span(bytes, 0);
    const uint8_t *end = memchr(bytes + 1, 0, most - 1);
    if (end == NULL || !mc_tenant_is_name(mc_span(bytes + 1, (size_t)(end - bytes) - 1)))
        return mc_span(bytes, 0);
    return mc_span(bytes, (size_t)(end - bytes) + 1);
}

struct mc_span mc_key_tenant(struct mc_span key)
{
    struct mc_span scope = mc_key_scope(key); /* 0, name, 0 */
    return scope.length == 0 ? mc_span_string(MC_TENANT_DEFAULT)
                             : mc_span((const uint8_t *)scope.data + 1, scope.length - 2);
}

/* Behind its tenant. */
static struct mc_span behind_tenant(struct mc_span key)
{
    key = mc_key_unmarked(key);
    size_t tenant = mc_key_scope(key).length;
    return mc_span((const uint8_t *)key.data + tenant, key.length - tenant);
}

static bool begins_with_stamp(struct mc_span rest)
{
    const uint8_t *bytes = rest.data;
    return rest.length > MC_STAMP_LENGTH && bytes[0] == 0 && bytes[1] == 1;
}

bool mc_key_stamp(struct mc_span key, struct mc_id *stamp)
{
    struct mc_span rest = behind_tenant(key);
    if (!begins_with_stamp(rest))
        return false;
    memcpy(stamp, (const uint8_t *)rest.data + 2, sizeof(*stamp));
    return true;
}

bool mc_scope_has(const struct mc_scope *scope, struct mc_span key)
{
    key = mc_key_unmarked(key);
    if (scope->length == 0) /* a key that begins as those of others do is left to nobody */
        return key.length == 0 || *(const uint8_t *)key.data != 0 || begins_with_stamp(key);
    return key.length > scope->length && memcmp(key.data, scope->bytes, scope->length) == 0;
}

struct mc_span mc_key_local(struct mc_span key)
{
    struct mc_span rest = behind_tenant(key);
    size_t stamp = begins_with_stamp(rest) ? MC_STAMP_LENGTH : 0;
    return mc_span((const uint8_t *)rest.data + stamp, rest.length - stamp);
}

uint64_t mc_scope_group(const struct mc_scope *scope, uint64_t group)
{
    if (scope->length == 0 || group == 0)
        return group;
    uint64_t number = XXH3_64bits_withSeed(scope->bytes, scope->length, group);
    return number == 0 ? 1 : number;
}
