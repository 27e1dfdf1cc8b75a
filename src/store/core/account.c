#include "store/core/account.h"

#include "base/error.h"
#include "store/core/limits.h"
#include "store/core/place.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BUCKETS 1024u

struct mc_accounts {
    uint64_t seed; /* names come from others */
    struct mc_account *list[MC_TENANTS_MAX], *buckets[BUCKETS];
    uint32_t count, in_use;               /* in the list; of these, those that have something or may */
    double quota_bytes, guaranteed_bytes; /* sums: of quotas that guarantee nothing, and of what others do */
    uint64_t capacity, changes;           /* of all memory that is lent, when so much had changed there */
    const struct mc_account *putting;     /* while room is made for it: NULL between two messages */
};

static bool is_in_use(const struct mc_account *account)
{
    return account->cells > 0 || account->has_quota;
}

/* ---- the table ---- */

struct mc_accounts *mc_accounts_create(uint64_t seed)
{
    struct mc_accounts *accounts = calloc(1, sizeof(*accounts));
    if (accounts != NULL)
        accounts->seed = seed;
    return accounts;
}

void mc_accounts_destroy(struct mc_accounts *accounts)
{
    for (uint32_t i = 0; accounts != NULL && i < accounts->count; i++)
        free(accounts->list[i]);
    free(accounts);
}

static struct mc_account *const *bucket_of(const struct mc_accounts *accounts, struct mc_span scope)
{
    return &accounts->buckets[XXH3_64bits_withSeed(scope.data, scope.length, accounts->seed) % BUCKETS];
}

static struct mc_account *account_find(const struct mc_accounts *accounts, struct mc_span scope)
{
    struct mc_account *account = *bucket_of(accounts, scope);
    while (account != NULL && !mc_span_equal(mc_scope_span(&account->scope), scope))
        account = account->next;
    return account;
}

/* The place in the list for one more; NULL: all are in use. */
static struct mc_account **place_for_one(struct mc_accounts *accounts)
{
    if (accounts->count < MC_TENANTS_MAX)
        return &accounts->list[accounts->count++];
    for (uint32_t i = 0; i < MC_TENANTS_MAX; i++) {
        struct mc_account *idle = accounts->list[i];
        if (is_in_use(idle))
            continue;
        struct mc_account **at = (struct mc_account **)(uintptr_t)bucket_of(accounts, mc_scope_span(&idle->scope));
        while (*at != idle)
            at = &(*at)->next;
        *at = idle->next;
        accounts->putting = accounts->putting == idle ? NULL : accounts->putting;
        free(idle);
        return &accounts->list[i];
    }
    return NULL;
}

static struct mc_account *account_take(struct mc_accounts *accounts, struct mc_span scope)
{
    struct mc_account *account = account_find(accounts, scope);
    if (account != NULL)
        return account;
    account = calloc(1, sizeof(*account));
    struct mc_account **place = account == NULL ? NULL : place_for_one(accounts);
    if (place == NULL) {
        free(account);
        return NULL;
    }
    account->scope.length = account->scope.tenant = (uint8_t)scope.length;
    if (scope.length > 0)
        memcpy(account->scope.bytes, scope.data, scope.length);
    struct mc_account **bucket = (struct mc_account **)(uintptr_t)bucket_of(accounts, scope);
    account->next = *bucket;
    *bucket = *place = account;
    return account;
}

struct mc_account *mc_account_find(const struct mc_accounts *accounts, struct mc_span key)
{
    return account_find(accounts, mc_key_scope(key));
}

struct mc_account *mc_account_take(struct mc_accounts *accounts, struct mc_span key)
{
    return account_take(accounts, mc_key_scope(key));
}

const struct mc_account *mc_account_at(const struct mc_accounts *accounts, uint32_t index)
{
    return index < accounts->count ? accounts->list[index] : NULL;
}

bool mc_account_has_others(const struct mc_accounts *accounts, const struct mc_account *account)
{
    return accounts->in_use > (account != NULL && is_in_use(account));
}

void mc_account_cell_made(struct mc_accounts *accounts, struct mc_account *account)
{
    accounts->in_use += !is_in_use(account);
    account->cells++;
}

void mc_account_cell_freed(struct mc_accounts *accounts, struct mc_account *account)
{
    mc_assert(account->cells > 0);
    account->cells--;
    accounts->in_use -= !is_in_use(account);
}

const char *mc_accounts_check(const struct mc_accounts *accounts)
{
    uint32_t in_use = 0;
    for (uint32_t i = 0; i < accounts->count; i++)
        in_use += is_in_use(accounts->list[i]);
    if (in_use != accounts->in_use)
        return "how many tenants have something";
    return accounts->putting == NULL ? NULL : "a tenant for whom room is made still";
}

/* ---- what each has ---- */

static void list_add(struct mc_object *object)
{
    struct mc_holding *holding = mc_object_holding(object);
    struct mc_account *account = holding->account;
    holding->previous = account->youngest;
    holding->next = NULL;
    if (account->youngest == NULL)
        account->oldest = object;
    else
        mc_object_holding(account->youngest)->next = object;
    account->youngest = object;
}

static void list_remove(struct mc_object *object)
{
    struct mc_holding *holding = mc_object_holding(object);
    struct mc_account *account = holding->account;
    if (holding->previous == NULL)
        account->oldest = holding->next;
    else
        mc_object_holding(holding->previous)->next = holding->next;
    if (holding->next == NULL)
        account->youngest = holding->previous;
    else
        mc_object_holding(holding->next)->previous = holding->previous;
    holding->previous = holding->next = NULL;
}

void mc_account_turn(struct mc_object *object)
{
    list_remove(object);
    list_add(object);
}

void mc_account_goes_first(struct mc_object *object)
{
    struct mc_holding *holding = mc_object_holding(object);
    struct mc_account *account = holding->account;
    if (holding->previous == NULL) /* it is, or is not listed */
        return;
    list_remove(object);
    holding->next = account->oldest;
    mc_object_holding(account->oldest)->previous = object; /* there is another one: it was not the oldest */
    account->oldest = object;
}

static uint32_t in_memory(const struct mc_core *core, const struct mc_object *object)
{
    uint32_t count = 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        count += at.segment->kind == MC_SEGMENT_MEMORY;
    return count;
}

void mc_account_linked(const struct mc_core *core, struct mc_object *object, const struct mc_segment *segment)
{
    if (core->objects.accounts == NULL || segment->kind != MC_SEGMENT_MEMORY)
        return;
    struct mc_account *account = mc_object_holding(object)->account;
    account->bytes += object->length;
    if (in_memory(core, object) > 1)
        return;
    account->objects++;
    list_add(object);
}

void mc_account_unlinked(const struct mc_core *core, struct mc_object *object, const struct mc_segment *segment)
{
    if (core->objects.accounts == NULL || segment->kind != MC_SEGMENT_MEMORY)
        return;
    struct mc_account *account = mc_object_holding(object)->account;
    mc_assert(account->bytes >= object->length);
    account->bytes -= object->length;
    if (in_memory(core, object) > 0)
        return;
    account->objects--;
    list_remove(object);
}

void mc_account_succeeded(const struct mc_core *core, struct mc_object *object, struct mc_object *successor)
{
    if (core->objects.accounts == NULL)
        return;
    list_remove(successor);
    list_add(object);
}

void mc_account_used(const struct mc_core *core, struct mc_object *object)
{
    if (core->objects.accounts == NULL)
        return;
    const struct mc_holding *holding = mc_object_holding(object);
    if (holding->next != NULL) /* listed, and not the youngest */
        mc_account_turn(object);
}

/* ---- what each may have ---- */

static void sum_quotas(struct mc_accounts *accounts)
{
    accounts->quota_bytes = accounts->guaranteed_bytes = 0;
    for (uint32_t i = 0; i < accounts->count; i++) {
        const struct mc_core_quota *quota = &accounts->list[i]->quota;
        accounts->guaranteed_bytes += (double)quota->guaranteed_bytes;
        accounts->quota_bytes += quota->guaranteed_bytes > 0 ? 0 : (double)quota->bytes;
    }
}

uint64_t mc_core_tenant_capacity(const struct mc_core *core)
{
    struct mc_accounts *accounts = core->objects.accounts;
    if (accounts == NULL)
        return 0;
    if (accounts->changes == core->segment_changes)
        return accounts->capacity;
    accounts->capacity = mc_segments_capacity(core);
    accounts->changes = core->segment_changes;
    return accounts->capacity;
}

/* So much of `bytes` as there is when everybody's are `sum`. */
static uint64_t share(const struct mc_core *core, uint64_t bytes, double sum)
{
    double capacity = (double)mc_core_tenant_capacity(core);
    return sum <= capacity ? bytes : (uint64_t)((double)bytes * (capacity / sum));
}

/* Quotas that guarantee nothing are shares: together they are no more than there is. Where something is guaranteed, the
 * quota is how far its tenant may go beyond that while there is room. */
uint64_t mc_account_most_bytes(const struct mc_core *core, const struct mc_account *account)
{
    const struct mc_core_quota *quota = &account->quota;
    return quota->guaranteed_bytes > 0 ? quota->bytes : share(core, quota->bytes, core->objects.accounts->quota_bytes);
}

bool mc_account_is_owed(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_accounts *accounts = core->objects.accounts;
    if (accounts == NULL)
        return false;
    const struct mc_account *account = mc_object_holding(object)->account;
    const struct mc_core_quota *quota = &account->quota;
    if (account == accounts->putting || (quota->guaranteed_bytes == 0 && quota->guaranteed_objects == 0))
        return false;
    uint64_t bytes = share(core, quota->guaranteed_bytes, accounts->guaranteed_bytes);
    return (bytes > 0 && account->bytes < bytes + object->length) || account->objects <= quota->guaranteed_objects;
}

void mc_account_puts(const struct mc_core *core, struct mc_span key)
{
    if (core->objects.accounts != NULL)
        core->objects.accounts->putting = key.length == 0 ? NULL : mc_account_find(core->objects.accounts, key);
}

static uint64_t left_of(uint64_t limit, uint64_t part)
{
    return limit > part ? limit - part : 0;
}

struct room_wanted {                   /* by a put */
    bool can_fit;                      /* it is not more than the quota by itself */
    bool replaces;                     /* a value that lies in memory */
    uint64_t bytes_left, objects_left; /* with no more its tenant has room for it */
};

/* While one value replaces another both lie there: what it adds in the end is what counts. */
static struct room_wanted wanted_of(const struct mc_core *core, const struct mc_account *account,
                                    const struct mc_object *object, uint64_t added)
{
    uint32_t has = object == NULL || !object->visible ? 0 : in_memory(core, object);
    uint64_t most_bytes = mc_account_most_bytes(core, account);
    uint64_t most_objects = account->quota.objects == 0 ? UINT64_MAX : account->quota.objects;
    struct room_wanted wanted = {.can_fit = added <= most_bytes, .replaces = has > 0};
    wanted.bytes_left = left_of(most_bytes, added) + (has == 0 ? 0 : object->length * has);
    wanted.objects_left = left_of(most_objects, has == 0);
    return wanted;
}

static bool fits(const struct mc_account *account, const struct room_wanted *wanted)
{
    return wanted->can_fit && account->bytes <= wanted->bytes_left && account->objects <= wanted->objects_left;
}

int32_t mc_account_enter(struct mc_core *core, struct mc_span key)
{
    struct mc_accounts *accounts = core->objects.accounts;
    if (accounts == NULL)
        return 0;
    /* Who names many tenants makes no account of each: where there are quotas it is told so before. */
    const struct mc_account *account = mc_account_find(accounts, key);
    if (core->config.quotas ? account != NULL && account->has_quota
                            : account != NULL || mc_account_take(accounts, key) != NULL)
        return 0;
    core->statistics.tenants_unknown++;
    return MC_ERR_TENANT_NOT_REGISTERED;
}

int32_t mc_account_admit(struct mc_core *core, struct mc_span key, const struct mc_object *object, uint64_t length,
                         uint32_t replicas)
{
    struct mc_accounts *accounts = core->objects.accounts;
    struct mc_account *account = accounts == NULL ? NULL : mc_account_find(accounts, key);
    if (account == NULL || !account->has_quota)
        return 0;
    struct room_wanted wanted = wanted_of(core, account, object, length * replicas);
    bool is_whole = true;
    while (!fits(account, &wanted) && wanted.can_fit) {
        is_whole = mc_evict_own(core, account, object, wanted.bytes_left, wanted.objects_left);
        object = mc_objects_find(&core->objects, key); /* a value may have gone with its group */
        bool had = wanted.replaces;
        wanted = wanted_of(core, account, object, length * replicas);
        if (had == wanted.replaces)
            break;
    }
    if (fits(account, &wanted))
        return 0;
    if (!is_whole)
        return MC_ERR_SPACE_SOON;
    account->refused++;
    return MC_ERR_TENANT_QUOTA_EXCEEDED;
}

/* What a tenant may have beside what is being loaded for hints. */
static struct mc_core_quota most_of(const struct mc_core *core, const struct mc_account *account)
{
    uint64_t objects = account->quota.objects == 0 ? UINT64_MAX : account->quota.objects;
    return (struct mc_core_quota){.bytes = left_of(mc_account_most_bytes(core, account), account->fetching_bytes),
                                  .objects = left_of(objects, account->fetching_objects)};
}

void mc_account_fetches(struct mc_object *object)
{
    struct mc_account *account = mc_object_holding(object)->account;
    account->fetching_bytes += object->length;
    account->fetching_objects++;
}

void mc_account_fetched(struct mc_object *object)
{
    struct mc_account *account = mc_object_holding(object)->account;
    mc_assert(account->fetching_bytes >= object->length);
    account->fetching_bytes -= object->length;
    account->fetching_objects--;
}

/* NULL: it may have any. */
static struct mc_account *account_with_quota(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_account *account = core->objects.accounts == NULL ? NULL : mc_object_holding(object)->account;
    return account != NULL && account->has_quota ? account : NULL;
}

void mc_account_make_room(struct mc_core *core, const struct mc_object *object)
{
    struct mc_account *account = account_with_quota(core, object);
    if (account == NULL || mc_account_has_room(core, object))
        return;
    struct mc_core_quota most = most_of(core, account);
    (void)mc_evict_own(core, account, object, left_of(most.bytes, object->length), left_of(most.objects, 1));
    mc_account_puts(core, mc_span(NULL, 0)); /* or what it is guaranteed would be nobody's from here on */
}

void mc_account_in_vain(const struct mc_core *core, struct mc_object *object)
{
    if (mc_core_counts(core))
        mc_object_holding(object)->account->vain_stamp = core->stamp;
}

bool mc_account_is_in_vain(const struct mc_core *core, const struct mc_object *object)
{
    return mc_core_counts(core) && mc_object_holding(object)->account->vain_stamp == core->stamp;
}

bool mc_account_could(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_account *account = account_with_quota(core, object);
    if (account == NULL)
        return true;
    struct mc_core_quota most = most_of(core, account);
    return object->length <= left_of(most.bytes, account->firm_length) && most.objects > 0;
}

bool mc_account_has_room(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_account *account = account_with_quota(core, object);
    if (account == NULL)
        return true;
    struct mc_core_quota most = most_of(core, account);
    return account->bytes + object->length <= most.bytes && account->objects < most.objects;
}

/* ---- for the admin shell ---- */

static void quota_set(struct mc_accounts *accounts, struct mc_account *account, const struct mc_core_quota *quota)
{
    accounts->in_use -= is_in_use(account);
    account->has_quota = quota != NULL;
    accounts->in_use += is_in_use(account);
    account->quota = quota != NULL ? *quota : (struct mc_core_quota){.bytes = 0};
    sum_quotas(accounts);
}

int mc_core_quota(struct mc_core *core, struct mc_span tenant, const struct mc_core_quota *quota)
{
    struct mc_scope scope;
    if (core->objects.accounts == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    if (!mc_scope_make(&scope, tenant))
        return MC_ERR_INVALID_PARAMS;
    struct mc_account *account = quota == NULL ? account_find(core->objects.accounts, mc_scope_span(&scope))
                                               : account_take(core->objects.accounts, mc_scope_span(&scope));
    if (account == NULL)
        return quota == NULL ? MC_ERR_TENANT_NOT_REGISTERED : MC_ERR_BUSY;
    if (quota == NULL && !account->has_quota)
        return MC_ERR_TENANT_NOT_REGISTERED;
    if (quota == NULL && account->objects > 0)
        return MC_ERR_TENANT_NOT_EMPTY;
    quota_set(core->objects.accounts, account, quota);
    return 0;
}

void mc_core_quota_withdraw(struct mc_core *core, struct mc_span tenant)
{
    struct mc_scope scope;
    if (core->objects.accounts == NULL || !mc_scope_make(&scope, tenant))
        return;
    struct mc_account *account = account_find(core->objects.accounts, mc_scope_span(&scope));
    if (account != NULL && account->has_quota)
        quota_set(core->objects.accounts, account, NULL);
}

bool mc_core_quota_of(const struct mc_core *core, struct mc_span tenant, struct mc_core_quota *quota)
{
    struct mc_scope scope;
    if (core->objects.accounts == NULL || !mc_scope_make(&scope, tenant))
        return false;
    const struct mc_account *account = account_find(core->objects.accounts, mc_scope_span(&scope));
    if (account == NULL || !account->has_quota)
        return false;
    *quota = account->quota;
    return true;
}

size_t mc_core_tenants(const struct mc_core *core, uint64_t *cursor, struct mc_core_tenant *list, size_t capacity)
{
    const struct mc_accounts *accounts = core->objects.accounts;
    size_t count = 0;
    for (; accounts != NULL && *cursor < accounts->count && count < capacity; ++*cursor) {
        const struct mc_account *from = accounts->list[*cursor];
        if (!is_in_use(from))
            continue;
        struct mc_core_tenant *to = &list[count++];
        *to = (struct mc_core_tenant){.has_quota = from->has_quota,
                                      .quota = from->quota,
                                      .effective_bytes = mc_account_most_bytes(core, from),
                                      .bytes = from->bytes,
                                      .objects = from->objects,
                                      .evicted_bytes = from->evicted_bytes,
                                      .evicted_objects = from->evicted_objects,
                                      .refused = from->refused,
                                      .firm_bytes = from->firm_bytes};
        struct mc_span name = from->scope.length == 0 ? mc_span_string(MC_TENANT_DEFAULT) : mc_scope_name(&from->scope);
        memcpy(to->name, name.data, name.length);
    }
    if (accounts == NULL || *cursor >= accounts->count)
        *cursor = 0;
    return count;
}
