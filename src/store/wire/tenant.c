#include "store/wire/tenant.h"

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
    scope->length = (uint8_t)(name.length + 2);
    return true;
}

struct mc_span mc_scope_name(const struct mc_scope *scope)
{
    return scope->length == 0 ? mc_span("", 0) : mc_span(scope->bytes + 1, scope->length - 2u);
}

struct mc_span mc_key_scope(struct mc_span key)
{
    const uint8_t *bytes = key.data;
    size_t most = key.length < MC_TENANT_NAME_MAX + 2 ? key.length : MC_TENANT_NAME_MAX + 2;
    if (most < 3 || bytes[0] != 0)
        return mc_span(bytes, 0);
    const uint8_t *end = memchr(bytes + 1, 0, most - 1);
    if (end == NULL || !mc_tenant_is_name(mc_span(bytes + 1, (size_t)(end - bytes) - 1)))
        return mc_span(bytes, 0);
    return mc_span(bytes, (size_t)(end - bytes) + 1);
}

bool mc_scope_has(const struct mc_scope *scope, struct mc_span key)
{
    if (scope->length == 0) /* a key that begins as those of others do is left to nobody */
        return key.length == 0 || *(const uint8_t *)key.data != 0;
    return key.length > scope->length && memcmp(key.data, scope->bytes, scope->length) == 0;
}

struct mc_span mc_key_local(struct mc_span key)
{
    size_t scope = mc_key_scope(key).length;
    return mc_span((const uint8_t *)key.data + scope, key.length - scope);
}

uint64_t mc_scope_group(const struct mc_scope *scope, uint64_t group)
{
    if (scope->length == 0 || group == 0)
        return group;
    uint64_t number = XXH3_64bits_withSeed(scope->bytes, scope->length, group);
    return number == 0 ? 1 : number;
}
