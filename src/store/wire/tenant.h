/* Tenants and stamps: whose key it is, and what its value was made with, stands before it, so that what knows objects
 * by their keys (the master's table, slots, inventories, disks, what clients remember) tells the objects of two
 * tenants, or of two stamps, apart without knowing of either.
 *
 *   key of the default tenant, whose name is ""   the key itself
 *   key of any other tenant                       0, its name, 0, the key itself
 *
 * A stamp is a text that its users choose: model, weights, format. Who has one sees what was put with the same one, and
 * nothing else. Of the text 16 bytes are left; they stand between the tenant and the key, behind 0 and 1, which no name
 * begins with. */
#ifndef MC_WIRE_TENANT_H
#define MC_WIRE_TENANT_H

#include "base/bytes.h"

#include <stdbool.h>

#define MC_TENANT_NAME_MAX 63u
#define MC_STAMP_LENGTH 18u /* 0, 1, and the 16 bytes */
#define MC_STAMP_TEXT_MAX 1024u
#define MC_TENANT_DEFAULT "default" /* how users may call the one whose name is "" */

struct mc_scope {           /* what stands before keys; zeroed: of the default tenant, without a stamp, nothing does */
    uint8_t length, tenant; /* bytes of it, and those of the tenant, which come first */
    uint8_t bytes[MC_TENANT_NAME_MAX + 2 + MC_STAMP_LENGTH];
};

/* 1 to 63 bytes that can be printed, the first no '_': as the original has it. */
bool mc_tenant_is_name(struct mc_span name);
/* Of that tenant; name "" or "default": of the default one. False: it is no name. */
bool mc_scope_make(struct mc_scope *scope, struct mc_span name);
/* What is left of a stamp's text; zero of none. */
struct mc_id mc_stamp_of(struct mc_span text);
/* With that stamp, in place of the one that it has; zero: without any. */
void mc_scope_stamp(struct mc_scope *scope, struct mc_id stamp);
static inline struct mc_span mc_scope_span(const struct mc_scope *scope)
{
    return mc_span(scope->bytes, scope->length);
}
/* The tenant's name, "" for the default one. */
struct mc_span mc_scope_name(const struct mc_scope *scope);
/* Its tenant as it stands in front of the key itself; nothing: it is the default tenant's. */
struct mc_span mc_key_scope(struct mc_span key);
/* Its tenant's name, also of the default one. */
struct mc_span mc_key_tenant(struct mc_span key);
/* False: it has no stamp. */
bool mc_key_stamp(struct mc_span key, struct mc_id *stamp);
/* Is it a key of that tenant, and, if the scope has a stamp, of that stamp? */
bool mc_scope_has(const struct mc_scope *scope, struct mc_span key);
/* The key itself, as users name it. */
struct mc_span mc_key_local(struct mc_span key);
/* A group of that number of that tenant, and of that stamp: others have others. */
uint64_t mc_scope_group(const struct mc_scope *scope, uint64_t group);

#endif
