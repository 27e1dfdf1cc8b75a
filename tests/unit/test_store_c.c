/* The original store's C names, used as its users use them: libmooncake_store.so, a real master, a real node. */
#include "store_c.h"

#include "store_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#define MIB (1ull << 20)
#define ABSENT MC_ERR_OBJECT_NOT_FOUND

_Static_assert(sizeof(struct mooncake_replicate_config) == 32 &&
                   offsetof(struct mooncake_replicate_config, with_soft_pin) == 8 &&
                   offsetof(struct mooncake_replicate_config, with_hard_pin) == 12 &&
                   offsetof(struct mooncake_replicate_config, preferred_segments) == 16 &&
                   offsetof(struct mooncake_replicate_config, preferred_segments_count) == 24,
               "the original's layout");

static struct process node;
static mooncake_store_t store;

static mooncake_store_t set_up(uint64_t segment_bytes)
{
    char address[64];
    mooncake_store_t made = mooncake_store_create();
    assert_non_null(made);
    snprintf(address, sizeof(address), "127.0.0.1:%d", master_port);
    assert_int_equal(
        mooncake_store_setup(made, "127.0.0.1", "P2PHANDSHAKE", segment_bytes, 16 * MIB, "tcp", "", address), 0);
    return made;
}

static int open_cluster(void **state)
{
    (void)state;
    start_master(0);
    node = start_node(64 * MIB);
    store = set_up(0);
    return 0;
}

static int close_cluster(void **state)
{
    (void)state;
    mooncake_store_destroy(store);
    stop(&node, SIGTERM);
    stop(&master, SIGTERM);
    return 0;
}

/* ---- what is no store, and what is none yet ---- */

static void null_is_refused(void **state)
{
    const char *keys[2] = {"a", NULL};
    char byte = 1, text[8];
    void *buffers[2] = {&byte, NULL};
    size_t sizes[2] = {1, 1};
    int results[2] = {7, 7};
    int64_t long_results[2] = {7, 7};
    const struct mc_store_config config = {.local_hostname = "127.0.0.1"};
    (void)state;
    mooncake_store_destroy(NULL);
    assert_int_equal(mooncake_store_setup(NULL, "h", "", 0, 1, "tcp", "", ""), -1);
    assert_int_equal(mooncake_store_init_all(NULL, "tcp", "", 0), -1);
    assert_int_equal(mooncake_store_health_check(NULL), -1);
    assert_int_equal(mooncake_store_put(NULL, "a", &byte, 1, NULL), -1);
    assert_int_equal(mooncake_store_put_from(NULL, "a", &byte, 1, NULL), -1);
    assert_int_equal(mooncake_store_batch_put_from(NULL, keys, buffers, sizes, 1, NULL, results), -1);
    assert_int_equal(mooncake_store_get_into(NULL, "a", &byte, 1), -1);
    assert_int_equal(mooncake_store_batch_get_into(NULL, keys, buffers, sizes, 1, long_results), -1);
    assert_int_equal(mooncake_store_is_exist(NULL, "a"), -1);
    assert_int_equal(mooncake_store_batch_is_exist(NULL, keys, 1, results), -1);
    assert_int_equal(mooncake_store_get_size(NULL, "a"), -1);
    assert_int_equal(mooncake_store_get_hostname(NULL, text, sizeof(text)), -1);
    assert_int_equal(mooncake_store_remove(NULL, "a", 0), -1);
    assert_int_equal(mooncake_store_remove_by_regex(NULL, "a", 0), -1);
    assert_int_equal(mooncake_store_remove_all(NULL, 0), -1);
    assert_int_equal(mooncake_store_register_buffer(NULL, &byte, 1), -1);
    assert_int_equal(mooncake_store_unregister_buffer(NULL, &byte), -1);
    assert_int_equal(mc_store_c_open(NULL, &config), -1);
    assert_int_equal(mc_store_c_open(store, NULL), -1);
    assert_int_equal(mc_store_c_close(NULL), -1);
    assert_int_equal(mc_store_c_batch_remove(NULL, keys, 1, 0, results), -1);
    /* Of a store that is set up. */
    assert_int_equal(mooncake_store_put(store, NULL, &byte, 1, NULL), -1);
    assert_int_equal(mooncake_store_put(store, "a", NULL, 1, NULL), -1);
    assert_int_equal(mooncake_store_put_from(store, "a", NULL, 1, NULL), -1);
    assert_int_equal(mooncake_store_batch_put_from(store, keys, buffers, sizes, 2, NULL, results), -1);
    keys[1] = "b"; /* its buffer is missing still */
    assert_int_equal(mooncake_store_batch_put_from(store, keys, buffers, sizes, 2, NULL, results), -1);
    assert_int_equal(mooncake_store_batch_put_from(store, NULL, buffers, sizes, 2, NULL, results), -1);
    assert_int_equal(mooncake_store_batch_put_from(store, keys, NULL, sizes, 2, NULL, results), -1);
    assert_int_equal(mooncake_store_batch_put_from(store, keys, buffers, NULL, 2, NULL, results), -1);
    assert_int_equal(mooncake_store_batch_put_from(store, keys, buffers, sizes, 1, NULL, NULL), -1);
    assert_int_equal(mooncake_store_get_into(store, NULL, &byte, 1), -1);
    assert_int_equal(mooncake_store_get_into(store, "a", NULL, 1), -1);
    assert_int_equal(mooncake_store_batch_get_into(store, keys, buffers, sizes, 2, long_results), -1);
    assert_int_equal(mooncake_store_batch_get_into(store, keys, buffers, sizes, 1, NULL), -1);
    assert_int_equal(mooncake_store_is_exist(store, NULL), -1);
    keys[1] = NULL;
    assert_int_equal(mooncake_store_batch_is_exist(store, keys, 2, results), -1);
    assert_int_equal(mooncake_store_batch_is_exist(store, NULL, 1, results), -1);
    assert_int_equal(mooncake_store_batch_is_exist(store, keys, 1, NULL), -1);
    assert_int_equal(mooncake_store_get_size(store, NULL), -1);
    assert_int_equal(mooncake_store_get_hostname(store, NULL, 8), -1);
    assert_int_equal(mooncake_store_get_hostname(store, text, 0), -1);
    assert_int_equal(mooncake_store_remove(store, NULL, 0), -1);
    assert_int_equal(mooncake_store_remove_by_regex(store, NULL, 0), -1);
    assert_int_equal(mooncake_store_register_buffer(store, NULL, 1), -1);
    assert_int_equal(mooncake_store_register_buffer(store, &byte, 0), -1);
    assert_int_equal(mc_store_c_batch_remove(store, keys, 2, 0, results), -1);
    /* Nothing was done, nothing was answered. */
    assert_true(results[0] == 7 && results[1] == 7 && long_results[0] == 7 && long_results[1] == 7);
    assert_int_equal(mooncake_store_is_exist(store, "a"), 0);
}

static void check_unset(mooncake_store_t unset, int code, int health)
{
    const char *keys[2] = {"a", "b"};
    char byte = 1, text[8] = "?";
    void *buffers[2] = {&byte, &byte};
    size_t sizes[2] = {1, 1};
    int results[2] = {7, 7};
    int64_t long_results[2] = {7, 7};
    assert_int_equal(mooncake_store_health_check(unset), health);
    assert_int_equal(mooncake_store_put(unset, "a", &byte, 1, NULL), code);
    assert_int_equal(mooncake_store_put_from(unset, "a", &byte, 1, NULL), code);
    assert_int_equal(mooncake_store_batch_put_from(unset, keys, buffers, sizes, 2, NULL, results), 0);
    assert_true(results[0] == code && results[1] == code);
    assert_int_equal(mooncake_store_get_into(unset, "a", &byte, 1), code);
    assert_int_equal(mooncake_store_batch_get_into(unset, keys, buffers, sizes, 2, long_results), 0);
    assert_true(long_results[0] == code && long_results[1] == code);
    assert_int_equal(mooncake_store_is_exist(unset, "a"), code);
    results[0] = results[1] = 7;
    assert_int_equal(mooncake_store_batch_is_exist(unset, keys, 2, results), 0);
    assert_true(results[0] == code && results[1] == code);
    assert_int_equal(mooncake_store_get_size(unset, "a"), code);
    assert_int_equal(mooncake_store_get_hostname(unset, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(mooncake_store_remove(unset, "a", 1), code);
    assert_int_equal(mooncake_store_remove_by_regex(unset, "a", 1), code);
    assert_int_equal(mooncake_store_remove_all(unset, 1), code);
    assert_int_equal(mooncake_store_register_buffer(unset, &byte, 1), code);
    assert_int_equal(mooncake_store_unregister_buffer(unset, &byte), code);
    results[0] = results[1] = 7;
    assert_int_equal(mc_store_c_batch_remove(unset, keys, 2, 1, results), 0);
    assert_true(results[0] == code && results[1] == code);
}

static void a_store_that_is_not_set_up_says_so(void **state)
{
    mooncake_store_t unset = mooncake_store_create();
    (void)state;
    assert_non_null(unset);
    check_unset(unset, MC_ERR_INVALID_PARAMS, 1);
    assert_int_equal(mc_store_c_close(unset), 0);
    mooncake_store_destroy(unset);
}

static void a_setup_that_fails_can_be_tried_again(void **state)
{
    char address[64];
    mooncake_store_t tried = mooncake_store_create();
    (void)state;
    snprintf(address, sizeof(address), "127.0.0.1:%d", master_port);
    assert_int_equal(mooncake_store_setup(tried, NULL, NULL, 0, 1, NULL, NULL, address), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_setup(tried, "127.0.0.1", NULL, 0, 1, "pigeon", NULL, address),
                     MC_ERR_INVALID_PARAMS);
    setenv("MC_RPC_TIMEOUT_MS", "300", 1);
    assert_int_equal(mooncake_store_setup(tried, "127.0.0.1", NULL, 0, 1, NULL, NULL, "127.0.0.1:1"), MC_ERR_RPC_FAIL);
    unsetenv("MC_RPC_TIMEOUT_MS");
    check_unset(tried, MC_ERR_INVALID_PARAMS, 1);
    assert_int_equal(mooncake_store_setup(tried, "127.0.0.1", NULL, 0, 1, NULL, NULL, address), 0);
    assert_int_equal(mooncake_store_setup(tried, "127.0.0.1", NULL, 0, 1, NULL, NULL, address), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_init_all(tried, "tcp", "", 0), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_health_check(tried), 0);
    /* Closed, it can be set up once more. */
    assert_int_equal(mc_store_c_close(tried), 0);
    check_unset(tried, MC_ERR_INVALID_PARAMS, 1);
    const struct mc_store_config config = {.local_hostname = "127.0.0.1", .master_server_addr = address};
    assert_int_equal(mc_store_c_open(tried, &config), 0);
    assert_int_equal(mooncake_store_health_check(tried), 0);
    mooncake_store_destroy(tried);
}

/* ---- bytes ---- */

static void an_object_goes_round(void **state)
{
    static uint8_t data[300000], back[300001];
    (void)state;
    fill(data, sizeof(data), 1);
    assert_int_equal(mooncake_store_register_buffer(store, back, sizeof(back)), 0);
    assert_int_equal(mooncake_store_register_buffer(store, back, sizeof(back)), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_put(store, "round", data, sizeof(data), NULL), 0);
    assert_int_equal(mooncake_store_put(store, "round", "other", 5, NULL), 0); /* the old value stays */
    assert_int_equal(mooncake_store_is_exist(store, "round"), 1);
    assert_int_equal(mooncake_store_get_size(store, "round"), sizeof(data));
    assert_int_equal(mooncake_store_get_into(store, "round", back, sizeof(back)), sizeof(data));
    assert_memory_equal(back, data, sizeof(data));
    assert_int_equal(mooncake_store_get_into(store, "round", back, sizeof(data) - 1), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_remove(store, "round", 0), MC_ERR_OBJECT_HAS_LEASE);
    assert_int_equal(mooncake_store_remove(store, "round", 1), 0);
    assert_int_equal(mooncake_store_remove(store, "round", 1), ABSENT);
    assert_int_equal(mooncake_store_is_exist(store, "round"), 0);
    assert_int_equal(mooncake_store_get_size(store, "round"), ABSENT);
    assert_int_equal(mooncake_store_get_into(store, "round", back, sizeof(back)), ABSENT);
    assert_int_equal(mooncake_store_unregister_buffer(store, back), 0);
    assert_int_equal(mooncake_store_unregister_buffer(store, back), MC_ERR_INVALID_PARAMS);
}

static void bad_keys_and_sizes_are_errors(void **state)
{
    char key[MC_KEY_LENGTH_MAX + 2];
    (void)state;
    memset(key, 'k', sizeof(key));
    key[MC_KEY_LENGTH_MAX + 1] = 0;
    assert_int_equal(mooncake_store_put(store, key, "v", 1, NULL), MC_ERR_INVALID_KEY);
    assert_int_equal(mooncake_store_put(store, "", "v", 1, NULL), MC_ERR_INVALID_KEY);
    assert_int_equal(mooncake_store_is_exist(store, key), MC_ERR_INVALID_KEY);
    assert_int_equal(mooncake_store_put(store, "empty", "", 0, NULL), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_put(store, "empty", NULL, 0, NULL), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mooncake_store_is_exist(store, "empty"), 0);
    key[MC_KEY_LENGTH_MAX] = 0;
    assert_int_equal(mooncake_store_put(store, key, "v", 1, NULL), 0);
    assert_int_equal(mooncake_store_is_exist(store, key), 1);
    assert_int_equal(mooncake_store_remove_by_regex(store, "(", 0), MC_ERR_INVALID_PARAMS);
}

static void a_batch_answers_for_each(void **state)
{
    enum { COUNT = 5 };
    const char *keys[COUNT] = {"batch-0", "", "batch-2", "batch-3", "batch-4"};
    char values[COUNT][8], back[COUNT][8];
    void *from[COUNT], *into[COUNT];
    size_t sizes[COUNT] = {8, 8, 8, 0, 8};
    int results[COUNT];
    int64_t lengths[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        memset(values[i], 'a' + i, sizeof(values[i]));
        from[i] = values[i];
        into[i] = back[i];
    }
    assert_int_equal(mooncake_store_batch_put_from(store, keys, from, sizes, COUNT, NULL, results), 0);
    static const int wanted[COUNT] = {0, MC_ERR_INVALID_KEY, 0, MC_ERR_INVALID_PARAMS, 0};
    assert_memory_equal(results, wanted, sizeof(wanted));
    keys[1] = "batch-1"; /* never put, as batch-3 */
    sizes[3] = 8;
    sizes[4] = 7;
    assert_int_equal(mooncake_store_batch_get_into(store, keys, into, sizes, COUNT, lengths), 0);
    static const int64_t wanted_lengths[COUNT] = {8, ABSENT, 8, ABSENT, MC_ERR_INVALID_PARAMS};
    assert_memory_equal(lengths, wanted_lengths, sizeof(wanted_lengths));
    assert_true(memcmp(back[0], "aaaaaaaa", 8) == 0 && memcmp(back[2], "cccccccc", 8) == 0);
    assert_int_equal(mooncake_store_batch_is_exist(store, keys, COUNT, results), 0);
    static const int there[COUNT] = {1, 0, 1, 0, 1};
    assert_memory_equal(results, there, sizeof(there));
    assert_int_equal(mc_store_c_batch_remove(store, keys, COUNT, 1, results), 0);
    static const int removed[COUNT] = {0, ABSENT, 0, ABSENT, 0};
    assert_memory_equal(results, removed, sizeof(removed));
    /* None. */
    assert_int_equal(mooncake_store_batch_put_from(store, keys, from, sizes, 0, NULL, results), 0);
    assert_int_equal(mooncake_store_batch_get_into(store, keys, into, sizes, 0, lengths), 0);
    assert_int_equal(mooncake_store_batch_is_exist(store, keys, 0, results), 0);
    assert_int_equal(mc_store_c_batch_remove(store, keys, 0, 1, results), 0);
}

static void removals_count(void **state)
{
    char key[32];
    (void)state;
    assert_true(mooncake_store_remove_all(store, 1) >= 0);
    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "%s-%d", i < 4 ? "count" : "other", i);
        assert_int_equal(mooncake_store_put(store, key, key, sizeof(key), NULL), 0);
    }
    assert_int_equal(mooncake_store_remove_by_regex(store, "^count-[0-2]$", 0), 3);
    assert_int_equal(mooncake_store_remove_by_regex(store, "^count-[0-2]$", 0), 0);
    assert_int_equal(mooncake_store_get_into(store, "other-4", key, sizeof(key)), sizeof(key));
    assert_int_equal(mooncake_store_remove_all(store, 0), 2); /* not what was read just now */
    assert_int_equal(mooncake_store_remove_all(store, 1), 1);
}

static void a_name_must_fit(void **state)
{
    char name[64], same[64];
    (void)state;
    assert_int_equal(mooncake_store_get_hostname(store, name, sizeof(name)), 0);
    assert_memory_equal(name, "127.0.0.1:", 10);
    assert_int_equal(mooncake_store_get_hostname(store, same, strlen(name)), -1);
    assert_int_equal(mooncake_store_get_hostname(store, same, strlen(name) + 1), 0);
    assert_string_equal(same, name);
}

/* ---- replicas ---- */

static void a_config_says_where(void **state)
{
    char name[64];
    mooncake_store_t owner = set_up(32 * MIB);
    struct mc_store *reader = open_client(NULL, 0);
    struct mc_replica_description places[4];
    (void)state;
    assert_int_equal(mooncake_store_get_hostname(owner, name, sizeof(name)), 0);
    const char *preferred[] = {NULL, name};
    mooncake_replicate_config_t config = {.preferred_segments = preferred, .preferred_segments_count = 2};
    /* Its memory is populated in the background: until then objects go elsewhere. */
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(mooncake_store_put(owner, "placed", "v", 1, &config), 0);
        assert_int_equal(mc_store_describe(reader, key_of("placed"), places, 4), 1);
        if (strcmp(places[0].segment_name, name) == 0)
            break;
        assert_int_equal(mooncake_store_remove(owner, "placed", 1), 0);
        usleep(10000);
    }
    assert_string_equal(places[0].segment_name, name);
    config = (mooncake_replicate_config_t){.replica_num = 2, .with_soft_pin = 1, .with_hard_pin = 1};
    assert_int_equal(mooncake_store_put(owner, "twice", "v", 1, &config), 0);
    assert_int_equal(mc_store_describe(reader, key_of("twice"), places, 4), 2);
    assert_string_not_equal(places[0].segment_name, places[1].segment_name);
    config = (mooncake_replicate_config_t){.replica_num = 5}; /* as many as there are segments */
    assert_int_equal(mooncake_store_put(owner, "best effort", "v", 1, &config), 0);
    assert_int_equal(mc_store_describe(reader, key_of("best effort"), places, 4), 2);
    config = (mooncake_replicate_config_t){.replica_num = (size_t)UINT32_MAX + 2}; /* not 1 */
    assert_int_equal(mooncake_store_put(owner, "very many", "v", 1, &config), 0);
    assert_int_equal(mc_store_describe(reader, key_of("very many"), places, 4), 2);
    config = (mooncake_replicate_config_t){.preferred_segments = preferred, .preferred_segments_count = SIZE_MAX};
    assert_int_equal(mooncake_store_put(owner, "no array", "v", 1, &config), -1);
    mc_store_close(reader);
    mooncake_store_destroy(owner);
}

/* ---- threads and processes ---- */

static _Atomic int calls_made;

static void *call_until_closed(void *busy)
{
    char byte;
    int64_t rc;
    do {
        rc = mooncake_store_get_into(busy, "shared", &byte, 1);
        atomic_fetch_add(&calls_made, 1);
    } while (rc == 1);
    return (void *)(intptr_t)rc;
}

static void a_close_waits_for_calls(void **state)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    mooncake_store_t busy = set_up(0);
    (void)state;
    assert_int_equal(mooncake_store_put(store, "shared", "x", 1, NULL), 0);
    atomic_store(&calls_made, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_until_closed, busy), 0);
    while (atomic_load(&calls_made) < 100)
        usleep(1000);
    assert_int_equal(mc_store_c_close(busy), 0);
    for (int i = 0; i < THREADS; i++) {
        void *rc = NULL;
        assert_int_equal(pthread_join(threads[i], &rc), 0);
        assert_int_equal((intptr_t)rc, MC_ERR_INVALID_PARAMS);
    }
    mooncake_store_destroy(busy);
}

static void a_child_gets_errors(void **state)
{
    int status;
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        bool is_dead = mooncake_store_get_into(store, "a", &byte, 1) == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS &&
                       mooncake_store_put(store, "a", "v", 1, NULL) == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS &&
                       mooncake_store_health_check(store) == 1 &&
                       mooncake_store_setup(store, "127.0.0.1", NULL, 0, 1, NULL, NULL, NULL) ==
                           MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
        mooncake_store_destroy(store);
        _exit(is_dead ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(mooncake_store_health_check(store), 0); /* the parent's is as it was */
}

int main(int argument_count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused),
        cmocka_unit_test(a_store_that_is_not_set_up_says_so),
        cmocka_unit_test(a_setup_that_fails_can_be_tried_again),
        cmocka_unit_test(an_object_goes_round),
        cmocka_unit_test(bad_keys_and_sizes_are_errors),
        cmocka_unit_test(a_batch_answers_for_each),
        cmocka_unit_test(removals_count),
        cmocka_unit_test(a_name_must_fit),
        cmocka_unit_test(a_config_says_where),
        cmocka_unit_test(a_close_waits_for_calls),
        cmocka_unit_test(a_child_gets_errors),
    };
    if (argument_count == 4 && strcmp(arguments[1], "node") == 0)
        return node_main(arguments[2], arguments[3]);
    signal(SIGPIPE, SIG_IGN);
    if (realpath(arguments[0], self_path) == NULL)
        return 1;
    int failed = cmocka_run_group_tests(tests, open_cluster, close_cluster);
    stop(&master, SIGKILL); /* of a test that failed: it would keep our output open */
    return failed;
}
