/* The original store's C names over ours: handles that may be set up, and arrays of keys and buffers. It stands on
 * mooncake.h alone, and is all that libmooncake_store.so holds. */
#include "store_c.h"

#include "mooncake.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INVALID (-1) /* the original's word for NULL where something is needed */
#define HEALTH_UNSET 1
#define PREFERRED_MAX UINT32_MAX
#define TRY_BUFFER_BYTES (16u << 20)
#define IDLE_WAIT_NS 1000000
#define UNSET INT32_MIN /* a result that the library did not write: the call failed before it looked at the keys */

/* In a forked child the calls of the parent's threads never end: nobody waits for them there. */
struct original_store {
    _Atomic(struct mc_store *) store; /* NULL: not set up */
    _Atomic unsigned users;           /* calls in progress */
    _Atomic bool opening;
    pid_t process;
};

/* NULL: the store is not set up, or of a parent, and *rc says so. */
static struct mc_store *enter(struct original_store *original, int *rc)
{
    *rc = original->process == getpid() ? MC_ERR_INVALID_PARAMS : MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    if (original->process != getpid())
        return NULL;
    /* Both in one order for all threads: close takes the store away and then looks for users. */
    atomic_fetch_add(&original->users, 1);
    struct mc_store *store = atomic_load(&original->store);
    if (store == NULL)
        atomic_fetch_sub(&original->users, 1);
    return store;
}

static void leave(struct original_store *original)
{
    atomic_fetch_sub(&original->users, 1);
}

static int64_t result_of(int64_t result, int rc)
{
    return result != UNSET ? result : rc;
}

static struct mc_bytes key_of(const char *key)
{
    return (struct mc_bytes){key, strlen(key)};
}

/* ---- life ---- */

mooncake_store_t mooncake_store_create(void)
{
    struct original_store *original = calloc(1, sizeof(*original));
    if (original != NULL)
        original->process = getpid();
    return original;
}

int mc_store_c_close(mooncake_store_t store)
{
    struct original_store *original = store;
    if (original == NULL)
        return INVALID;
    if (original->process != getpid())
        return 0;
    struct mc_store *taken = atomic_exchange(&original->store, NULL);
    while (taken != NULL && atomic_load(&original->users) > 0) /* calls have deadlines */
        nanosleep(&(struct timespec){0, IDLE_WAIT_NS}, NULL);
    return mc_store_close(taken);
}

void mooncake_store_destroy(mooncake_store_t store)
{
    if (store == NULL)
        return;
    (void)mc_store_c_close(store); /* nothing that could be done about it */
    free(store);
}

int mc_store_c_open(mooncake_store_t store, const struct mc_store_config *config)
{
    struct original_store *original = store;
    struct mc_store *opened = NULL;
    if (original == NULL || config == NULL)
        return INVALID;
    if (original->process != getpid())
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    if (atomic_exchange(&original->opening, true))
        return MC_ERR_INVALID_PARAMS;
    int rc = atomic_load(&original->store) != NULL ? MC_ERR_INVALID_PARAMS : mc_store_open(config, &opened);
    if (rc == 0)
        atomic_store(&original->store, opened);
    atomic_store(&original->opening, false);
    return rc;
}

int mooncake_store_setup(mooncake_store_t store, const char *local_hostname, const char *metadata_server,
                         uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                         const char *device_name, const char *master_server_addr)
{
    const struct mc_store_config config = {.local_hostname = local_hostname == NULL ? "" : local_hostname,
                                           .metadata_server = metadata_server,
                                           .protocol = protocol,
                                           .rdma_devices = device_name,
                                           .master_server_addr = master_server_addr,
                                           .global_segment_size = global_segment_size,
                                           .local_buffer_size = local_buffer_size};
    return mc_store_c_open(store, &config);
}

int mooncake_store_init_all(mooncake_store_t store, const char *protocol, const char *device_name,
                            uint64_t mount_segment_size)
{
    return mooncake_store_setup(store, "127.0.0.1", NULL, mount_segment_size, TRY_BUFFER_BYTES, protocol, device_name,
                                NULL);
}

int mooncake_store_health_check(mooncake_store_t store)
{
    int rc;
    if (store == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return HEALTH_UNSET;
    rc = mc_store_health(entered);
    leave(store);
    return rc;
}

/* ---- putting and getting ---- */

/* Ours of the original's; names is the array for the preferred segments, to be freed. false: no memory. */
static bool config_of(const mooncake_replicate_config_t *original, struct mc_replicate_config *config,
                      const char ***names)
{
    *names = NULL;
    *config = (struct mc_replicate_config){.replica_count = 1};
    if (original == NULL)
        return true;
    /* More than there may be, as what does not fit is, counts as that many. */
    config->replica_count = original->replica_num > UINT32_MAX ? UINT32_MAX : (uint32_t)original->replica_num;
    config->with_soft_pin = original->with_soft_pin != 0;
    config->with_hard_pin = original->with_hard_pin != 0;
    size_t count = original->preferred_segments == NULL ? 0 : original->preferred_segments_count;
    if (count == 0)
        return true;
    *names = count > PREFERRED_MAX ? NULL : calloc(count, sizeof(**names));
    if (*names == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        if (original->preferred_segments[i] != NULL)
            (*names)[config->preferred_segment_count++] = original->preferred_segments[i];
    config->preferred_segments = *names;
    return true;
}

static bool are_there(const char **keys, void **buffers, const size_t *sizes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (keys[i] == NULL || (buffers != NULL && buffers[i] == NULL && sizes[i] > 0))
            return false;
    return true;
}

int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, const mooncake_replicate_config_t *config, int *results_out)
{
    struct mc_replicate_config ours;
    const char **names = NULL;
    int rc = 0;
    if (store == NULL || keys == NULL || buffers == NULL || sizes == NULL || results_out == NULL ||
        !are_there(keys, buffers, sizes, count))
        return INVALID;
    struct mc_put_item *items = calloc(count + 1, sizeof(*items));
    struct iovec *parts = calloc(count + 1, sizeof(*parts));
    bool is_ready = items != NULL && parts != NULL && config_of(config, &ours, &names);
    struct mc_store *entered = is_ready ? enter(store, &rc) : NULL;
    for (size_t i = 0; is_ready && i < count; i++) {
        parts[i] = (struct iovec){buffers[i], sizes[i]};
        items[i] = (struct mc_put_item){.key = key_of(keys[i]), .parts = &parts[i], .part_count = 1, .result = UNSET};
    }
    if (entered != NULL) {
        rc = mc_store_put(entered, items, count, &ours);
        leave(store);
    }
    for (size_t i = 0; is_ready && i < count; i++)
        results_out[i] = (int)result_of(items[i].result, rc);
    free(names);
    free(parts);
    free(items);
    return is_ready ? 0 : INVALID;
}

int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer, size_t size,
                            const mooncake_replicate_config_t *config)
{
    int result = 0;
    int rc = mooncake_store_batch_put_from(store, &key, &buffer, &size, 1, config, &result);
    return rc != 0 ? rc : result;
}

int mooncake_store_put(mooncake_store_t store, const char *key, const void *value, size_t size,
                       const mooncake_replicate_config_t *config)
{
    return mooncake_store_put_from(store, key, (void *)(uintptr_t)value, size, config);
}

int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results_out)
{
    int rc = 0;
    if (store == NULL || keys == NULL || buffers == NULL || sizes == NULL || results_out == NULL ||
        !are_there(keys, buffers, sizes, count))
        return INVALID;
    struct mc_get_item *items = calloc(count + 1, sizeof(*items));
    struct iovec *parts = calloc(count + 1, sizeof(*parts));
    bool is_ready = items != NULL && parts != NULL;
    struct mc_store *entered = is_ready ? enter(store, &rc) : NULL;
    for (size_t i = 0; is_ready && i < count; i++) {
        parts[i] = (struct iovec){buffers[i], sizes[i]};
        items[i] = (struct mc_get_item){.key = key_of(keys[i]), .parts = &parts[i], .part_count = 1, .result = UNSET};
    }
    if (entered != NULL) {
        rc = mc_store_get(entered, items, count, NULL, NULL);
        leave(store);
    }
    for (size_t i = 0; is_ready && i < count; i++)
        results_out[i] = result_of(items[i].result, rc);
    free(parts);
    free(items);
    return is_ready ? 0 : INVALID;
}

int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer, size_t size)
{
    int64_t result = 0;
    int rc = mooncake_store_batch_get_into(store, &key, &buffer, &size, 1, &result);
    return rc != 0 ? rc : result;
}

/* ---- what is there ---- */

enum many_keys_call { CALL_EXIST, CALL_REMOVE, CALL_FORCED_REMOVE };

static int many_keys(enum many_keys_call call, mooncake_store_t store, const char **keys, size_t count, int *results)
{
    int rc;
    if (store == NULL || keys == NULL || results == NULL || !are_there(keys, NULL, NULL, count))
        return INVALID;
    struct mc_bytes *bytes = calloc(count + 1, sizeof(*bytes));
    if (bytes == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    for (size_t i = 0; i < count; i++) {
        bytes[i] = key_of(keys[i]);
        results[i] = UNSET;
    }
    if (entered != NULL) {
        rc = call == CALL_EXIST ? mc_store_exist(entered, bytes, count, results)
                                : mc_store_remove(entered, bytes, count, call == CALL_FORCED_REMOVE, results);
        leave(store);
    }
    for (size_t i = 0; i < count; i++)
        results[i] = (int)result_of(results[i], rc);
    free(bytes);
    return 0;
}

int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count, int *results_out)
{
    return many_keys(CALL_EXIST, store, keys, count, results_out);
}

int mooncake_store_is_exist(mooncake_store_t store, const char *key)
{
    int result = 0;
    int rc = many_keys(CALL_EXIST, store, &key, 1, &result);
    return rc != 0 ? rc : result;
}

int mc_store_c_batch_remove(mooncake_store_t store, const char **keys, size_t count, int force, int *results_out)
{
    return many_keys(force != 0 ? CALL_FORCED_REMOVE : CALL_REMOVE, store, keys, count, results_out);
}

int mooncake_store_remove(mooncake_store_t store, const char *key, int force)
{
    int result = 0;
    int rc = mc_store_c_batch_remove(store, &key, 1, force, &result);
    return rc != 0 ? rc : result;
}

int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern, int force)
{
    int rc;
    if (store == NULL || pattern == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return rc;
    int64_t removed = mc_store_remove_by_regex(entered, key_of(pattern), force != 0);
    leave(store);
    return removed;
}

int64_t mooncake_store_remove_all(mooncake_store_t store, int force)
{
    int rc;
    if (store == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return rc;
    int64_t removed = mc_store_remove_all(entered, force != 0);
    leave(store);
    return removed;
}

int64_t mooncake_store_get_size(mooncake_store_t store, const char *key)
{
    int64_t size = UNSET;
    int rc;
    if (store == NULL || key == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return rc;
    const struct mc_bytes bytes = key_of(key);
    rc = mc_store_size(entered, &bytes, 1, &size);
    leave(store);
    return result_of(size, rc);
}

int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len)
{
    int rc;
    if (store == NULL || buf_out == NULL || buf_len == 0)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    const char *name = entered == NULL ? "" : mc_store_hostname(entered);
    const size_t length = strlen(name);
    if (length < buf_len)
        memcpy(buf_out, name, length + 1);
    if (entered != NULL)
        leave(store);
    return length < buf_len ? 0 : INVALID;
}

/* ---- registered memory ---- */

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size)
{
    int rc;
    if (store == NULL || buffer == NULL || size == 0)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return rc;
    rc = mc_store_register_buffer(entered, buffer, size);
    leave(store);
    return rc;
}

int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer)
{
    int rc;
    if (store == NULL)
        return INVALID;
    struct mc_store *entered = enter(store, &rc);
    if (entered == NULL)
        return rc;
    rc = mc_store_unregister_buffer(entered, buffer);
    leave(store);
    return rc;
}
