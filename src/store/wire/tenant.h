/* Tenants: whose key it is stands before it, so that what knows objects by their keys (the master's table, slots,
 * inventories, disks, what clients remember) tells the objects of two tenants apart without knowing of tenants.
 *
 *   key of the default tenant, whose name is ""   the key itself
 *   key of any other tenant                       0, its name, 0, the key itself */
#ifndef MC_WIRE_TENANT_H
#define MC_WIRE_TENANT_H

#include "base/bytes.h"

#include <stdbool.h>

#define MC_TENANT_NAME_MAX 63u
#define MC_TENANT_DEFAULT "default" /* how users may call the one whose name is "" */

struct mc_scope { /* what stands before the keys of a tenant; zeroed: of the default one, nothing does */
    uint8_t length, bytes[MC_TENANT_NAME_MAX + 2];
};

/* 1 to 63 bytes that can be printed, the first no '_': as the original has it. */
bool mc_tenant_is_name(struct mc_span name);
/* Of that tenant; name "" or "default": of the default one. False: it is no name. */
bool mc_scope_make(struct mc_scope *scope, struct mc_span name);
static inline struct mc_span mc_scope_span(const struct mc_scope *scope)
{
    return mc_span(scope->bytes, scope->length);
}
/* The tenant's name, "" for the default one. */
struct mc_span mc_scope_name(const struct mc_scope *scope);
/* What stands before the key in front of the key itself; nothing: it is the default tenant's. */
struct mc_span mc_key_scope(struct mc_span key);
/* Is it a key of that tenant? */
bool mc_scope_has(const struct mc_scope *scope, struct mc_span key);
/* The key itself. */
struct mc_span mc_key_local(struct mc_span key);
/* A group of that number of that tenant: other tenants have others. */
uint64_t mc_scope_group(const struct mc_scope *scope, uint64_t group);

#endif
