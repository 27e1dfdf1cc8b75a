/* The keys that users name, and the same as all below the calls of mooncake.h knows them: with the store's tenant
 * before them (store/wire/tenant.h). A store of the default tenant has nothing to do here. */
#ifndef MC_STORE_SCOPE_H
#define MC_STORE_SCOPE_H

#include "store/client/state.h"

/* *keys is what is to be used, until *made (may be NULL) is freed. Keys that are none, or are too long with the tenant,
 * are none. 0 or MC_ERR_NO_MEMORY. */
int mc_scope_keys(const struct mc_store *store, const struct mc_bytes **keys, size_t count, struct mc_bytes **made);
/* The same of keys that stand in items, `stride` bytes apart: they are replaced there until mc_scope_leave. */
int mc_scope_enter(const struct mc_store *store, struct mc_bytes *first, size_t stride, size_t count,
                   struct mc_bytes **made);
void mc_scope_leave(struct mc_bytes *first, size_t stride, size_t count, struct mc_bytes *made);

#endif
