/* What tenants have, and may have: docs/security.md has who counts what. Counted is what lies in memory: the length of
 * a value for each replica that is live or being written, from its grant until it leaves its object; and objects with
 * at least one such replica. What an owner has still to clear, or a writer may still write to, belongs to nobody. A
 * successor and the value that it replaces count both.
 *
 * Invariant (proved by tests/core_check.c): bytes, objects and the list of a tenant are the sums over the nodes of all
 * segments of memory, whatever put, lost, moved or found them. What hints have being loaded is in none of these: it is
 * counted beside them, and leaves no room for more of that. No put waits for it. */
#ifndef MC_CORE_ACCOUNT_H
#define MC_CORE_ACCOUNT_H

#include "store/core/core.h"
#include "store/core/object.h"
#include "store/wire/tenant.h"

struct mc_segment;

struct mc_account {
    struct mc_scope scope;
    uint64_t cells; /* objects and tombstones of its keys: as long as there are some it stays */
    uint64_t bytes, objects;
    uint64_t fetching_bytes, fetching_objects; /* that are being loaded for hints */
    uint32_t vain_stamp;                       /* of the last message whose hints found no room */
    uint64_t firm_bytes, firm_coming;          /* see firm.h; of these, of what is to take the place of a value */
    uint64_t firm_length;                      /* of their values alone */
    struct mc_object *oldest, *youngest;       /* of `objects`, by their last use */
    bool has_quota;
    struct mc_core_quota quota;
    uint64_t evicted_bytes, evicted_objects, refused;
    struct mc_account *next; /* in its bucket */
};

struct mc_accounts;

struct mc_accounts *mc_accounts_create(uint64_t seed); /* NULL: no memory */
void mc_accounts_destroy(struct mc_accounts *accounts);
/* Whose key that is; NULL: nothing of it is known. */
struct mc_account *mc_account_find(const struct mc_accounts *accounts, struct mc_span key);
/* The same, made if need be; NULL: there are too many. */
struct mc_account *mc_account_take(struct mc_accounts *accounts, struct mc_span key);

/* A replica has joined the object's chain, or left it. */
void mc_account_linked(const struct mc_core *core, struct mc_object *object, const struct mc_segment *segment);
void mc_account_unlinked(const struct mc_core *core, struct mc_object *object, const struct mc_segment *segment);
/* The object, which had none, has the replicas of its successor. */
void mc_account_succeeded(const struct mc_core *core, struct mc_object *object, struct mc_object *successor);
/* It was used. */
void mc_account_used(const struct mc_core *core, struct mc_object *object);
/* As the youngest of its tenant's. */
void mc_account_turn(struct mc_object *object);
/* As the oldest, if it lies in memory. */
void mc_account_goes_first(struct mc_object *object);

/* Is its tenant one that may put? 0, or TENANT_NOT_REGISTERED. */
int32_t mc_account_enter(struct mc_core *core, struct mc_span key);
/* May the value be put, by one that may? 0, and room among the tenant's own was made if need be; TENANT_QUOTA_EXCEEDED;
 * SPACE_SOON: it is to come again. object: of the key, whose value it would replace; or NULL. */
int32_t mc_account_admit(struct mc_core *core, struct mc_span key, const struct mc_object *object, uint64_t length,
                         uint32_t replicas);
/* It is being loaded for a hint; it has come, or failed. */
void mc_account_fetches(struct mc_object *object);
void mc_account_fetched(struct mc_object *object);
/* A value comes from a disk: room is made for it among its tenant's own, as far as that goes. */
void mc_account_make_room(struct mc_core *core, const struct mc_object *object);
/* It had none, or none could be made: for no other hint of this message (core->stamp) it is looked for. */
void mc_account_in_vain(const struct mc_core *core, struct mc_object *object);
bool mc_account_is_in_vain(const struct mc_core *core, const struct mc_object *object);
/* Could it, if nothing that is there was left but what is pinned firmly? */
bool mc_account_could(const struct mc_core *core, const struct mc_object *object);
/* May its tenant have as much more as one replica of it in memory? */
bool mc_account_has_room(const struct mc_core *core, const struct mc_object *object);
/* What its quota is by now. */
uint64_t mc_account_most_bytes(const struct mc_core *core, const struct mc_account *account);
/* Until the next call room is made for a key of that tenant; a key of no length: for nobody's. */
void mc_account_puts(const struct mc_core *core, struct mc_span key);
/* Does what its tenant is guaranteed keep it from making room for whom room is made now? */
bool mc_account_is_owed(const struct mc_core *core, const struct mc_object *object);

/* Has anybody but that tenant (NULL: one that is not known yet) objects or a quota? */
bool mc_account_has_others(const struct mc_accounts *accounts, const struct mc_account *account);

/* An object or tombstone of one of its keys begins, or ends. */
void mc_account_cell_made(struct mc_accounts *accounts, struct mc_account *account);
void mc_account_cell_freed(struct mc_accounts *accounts, struct mc_account *account);

/* For tests: what is wrong with them between two messages, or NULL. */
const char *mc_accounts_check(const struct mc_accounts *accounts);
/* For tests: the accounts, one after the other; NULL: those were all. */
const struct mc_account *mc_account_at(const struct mc_accounts *accounts, uint32_t index);

#endif
