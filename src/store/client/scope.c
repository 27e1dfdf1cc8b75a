#include "store/client/scope.h"

#include <stdlib.h>
#include <string.h>

static struct mc_bytes *key_at(struct mc_bytes *first, size_t stride, size_t index)
{
    return (struct mc_bytes *)(void *)((char *)first + index * stride);
}

static size_t full_length(const struct mc_scope *scope, struct mc_bytes key)
{
    return mc_key_check(key) == 0 ? scope->length + key.length : 0;
}

/* The keys with their tenant, and their text behind them. NULL: no memory. */
static struct mc_bytes *make(const struct mc_scope *scope, struct mc_bytes *first, size_t stride, size_t count)
{
    size_t bytes = count * sizeof(struct mc_bytes);
    for (size_t i = 0; i < count; i++)
        bytes += full_length(scope, *key_at(first, stride, i));
    struct mc_bytes *made = malloc(bytes);
    uint8_t *text = made == NULL ? NULL : (uint8_t *)(made + count);
    for (size_t i = 0; made != NULL && i < count; i++) {
        struct mc_bytes key = *key_at(first, stride, i);
        size_t length = full_length(scope, key);
        made[i] = length == 0 ? key : (struct mc_bytes){text, length};
        if (i > 0 && key.data == key_at(first, stride, i - 1)->data &&
            key.length == key_at(first, stride, i - 1)->length) {
            made[i] = made[i - 1]; /* as some see that it is the same */
            continue;
        }
        if (length > 0) {
            memcpy(text, scope->bytes, scope->length);
            memcpy(text + scope->length, key.data, key.length);
        }
        text += length;
    }
    return made;
}

int mc_scope_keys(const struct mc_store *store, const struct mc_bytes **keys, size_t count, struct mc_bytes **made)
{
    *made = NULL;
    if (store->scope.length == 0 || count == 0)
        return 0;
    *made = make(&store->scope, (struct mc_bytes *)(uintptr_t)*keys, sizeof(**keys), count);
    if (*made == NULL)
        return MC_ERR_NO_MEMORY;
    *keys = *made;
    return 0;
}

static void swap(struct mc_bytes *first, size_t stride, size_t count, struct mc_bytes *others)
{
    for (size_t i = 0; i < count; i++) {
        struct mc_bytes *key = key_at(first, stride, i), was = *key;
        *key = others[i];
        others[i] = was;
    }
}

int mc_scope_enter(const struct mc_store *store, struct mc_bytes *first, size_t stride, size_t count,
                   struct mc_bytes **made)
{
    *made = NULL;
    if (store->scope.length == 0 || count == 0)
        return 0;
    *made = make(&store->scope, first, stride, count);
    if (*made == NULL)
        return MC_ERR_NO_MEMORY;
    swap(first, stride, count, *made);
    return 0;
}

void mc_scope_leave(struct mc_bytes *first, size_t stride, size_t count, struct mc_bytes *made)
{
    if (made != NULL)
        swap(first, stride, count, made);
    free(made);
}
