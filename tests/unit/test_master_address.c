/* A store whose master is elected; the election is this test. */
#include "env/leader.h"
#include "store/client/state.h"

#include "fake_master.h"

#include <errno.h>
#include <signal.h>

#define ELECTION "etcd://127.0.0.1:1,127.0.0.1:2"
#define SECOND_NS 1000000000ull

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 4ull
#else
#define SLOW 1ull
#endif

/* ---- the election, in the place of env/leader.c ---- */

static pthread_mutex_t election_lock = PTHREAD_MUTEX_INITIALIZER;
static char elected[MC_ADDRESS_MAX];
static int election_code;
static unsigned election_ms; /* so long it takes */
static _Atomic unsigned asked;

bool mc_leader_is_election(const char *address)
{
    return strncmp(address, "etcd://", 7) == 0;
}

uint64_t mc_leader_age_ms(const char *address, uint64_t since_ms)
{
    (void)address, (void)since_ms;
    return UINT64_MAX;
}

int mc_leader_find(const char *address, uint64_t deadline_ns, char *text, size_t text_size)
{
    (void)deadline_ns; /* it does not keep it */
    mc_assert(strcmp(address, ELECTION) == 0);
    atomic_fetch_add(&asked, 1);
    pthread_mutex_lock(&election_lock);
    unsigned wait_ms = election_ms;
    pthread_mutex_unlock(&election_lock);
    usleep(wait_ms * 1000);
    pthread_mutex_lock(&election_lock);
    int rc = election_code;
    snprintf(text, text_size, "%s", rc < 0 ? "" : elected);
    pthread_mutex_unlock(&election_lock);
    return rc;
}

static void elect(const char *leader, int code, unsigned takes_ms)
{
    pthread_mutex_lock(&election_lock);
    snprintf(elected, sizeof(elected), "%s", leader);
    election_code = code;
    election_ms = takes_ms;
    pthread_mutex_unlock(&election_lock);
}

/* ---- masters and the store ---- */

static struct fake_master first, second;
static struct mc_store *store;

static void start(uint32_t timeout_ms)
{
    first = (struct fake_master){.key_exists = true};
    second = (struct fake_master){.key_exists = true};
    fake_start(&first, 10);
    fake_start(&second, 9); /* does not lead: it would be of the past if it did */
    elect(first.address, 0, 0);
    atomic_store(&asked, 0);
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = ELECTION,
                                     .local_buffer_size = 1,
                                     .call_timeout_ms = timeout_ms};
    assert_int_equal(mc_store_open(&config, &store), 0);
}

static void finish(void)
{
    mc_store_close(store);
    fake_stop(&first);
    fake_stop(&second);
}

static int exist(void)
{
    struct mc_bytes key = {"key", 3};
    int result = 7;
    mc_store_exist(store, &key, 1, &result);
    return result;
}

static void the_leader_is_remembered_and_looked_up_again(void **state)
{
    (void)state;
    start(3000);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(exist(), 1);
    assert_int_equal(atomic_load(&asked), 1);
    /* It dies; the next one leads. */
    FAKE_SET(&second, epoch, 11);
    elect(second.address, 0, 0);
    fake_stop(&first);
    unsigned calls = FAKE_GET(&second, calls);
    assert_int_equal(exist(), 1);
    assert_int_equal(FAKE_GET(&second, calls), calls + 1);
    assert_int_equal(atomic_load(&store->epoch), 11);
    fake_start(&first, 10);
    assert_int_equal(exist(), 1);
    finish();
}

/* It is of an earlier release, and would end the connection at a message that it does not know. */
static void who_takes_no_hints_hears_none(void **state)
{
    const struct mc_bytes keys[] = {{"a", 1}, {"b", 1}};
    int results[2] = {7, 7};
    (void)state;
    start(3000);
    assert_int_equal(exist(), 1);
    unsigned calls = FAKE_GET(&first, calls), hellos = FAKE_GET(&first, hellos);
    for (enum mc_hint hint = MC_HINT_DROP; hint <= MC_HINT_PREFETCH; hint++)
        assert_int_equal(mc_store_hint(store, keys, 2, hint, 0, results), MC_ERR_NOT_SUPPORTED);
    assert_true(results[0] == MC_ERR_NOT_SUPPORTED && results[1] == MC_ERR_NOT_SUPPORTED);
    assert_int_equal(FAKE_GET(&first, calls), calls);
    assert_int_equal(mc_store_hint(store, keys, 2, (enum mc_hint)9, 0, results), MC_ERR_INVALID_PARAMS);
    assert_true(results[0] == MC_ERR_INVALID_PARAMS && results[1] == MC_ERR_INVALID_PARAMS);
    assert_int_equal(exist(), 1);
    /* One hello a hint, and none for the one that is wrong: a link that was kept may be to a master that is no more. */
    assert_int_equal(FAKE_GET(&first, hellos), hellos + 4);
    finish();
}

static void a_leader_that_leads_no_more_is_left(void **state)
{
    (void)state;
    start(3000);
    assert_int_equal(exist(), 1);
    FAKE_SET(&first, hello_code, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    FAKE_SET(&second, epoch, 11);
    elect(second.address, 0, 0);
    fake_hang_up(&first, MC_ROLE_CALL);
    fake_hang_up(&first, MC_ROLE_HEARTBEAT);
    assert_int_equal(exist(), 1);
    assert_int_equal(atomic_load(&store->epoch), 11);
    finish();
}

static void a_stopped_leader_is_left_before_the_deadline(void **state)
{
    (void)state;
    start(20000);
    assert_int_equal(exist(), 1);
    fake_mute(&first, true, true);
    FAKE_SET(&second, epoch, 11);
    elect(second.address, 0, 0);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), 1);
    assert_true(mc_clock_ns() - start_ns < 3 * SECOND_NS * SLOW);
    assert_int_equal(atomic_load(&store->epoch), 11);
    finish();
}

static void what_a_standby_says_is_remembered(void **state)
{
    (void)state;
    start(2000);
    assert_int_equal(exist(), 1);
    /* The election is late: it still says the old one, who knows better. */
    pthread_mutex_lock(&first.lock);
    first.hello_code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    snprintf(first.leader, sizeof(first.leader), "%s", second.address);
    pthread_mutex_unlock(&first.lock);
    FAKE_SET(&second, epoch, 11);
    fake_hang_up(&first, MC_ROLE_CALL);
    fake_hang_up(&first, MC_ROLE_HEARTBEAT);
    assert_int_equal(exist(), 1);
    assert_int_equal(atomic_load(&store->epoch), 11);
    unsigned hellos = FAKE_GET(&first, hellos);
    fake_hang_up(&second, MC_ROLE_CALL);
    assert_int_equal(exist(), 1);
    assert_true(FAKE_GET(&first, hellos) <= hellos + 1); /* the heartbeat thread's at most */
    finish();
}

static void *call_exist(void *result)
{
    *(int *)result = exist();
    return NULL;
}

static void without_a_leader_calls_end_and_the_election_is_spared(void **state)
{
    enum { THREADS = 16 };
    pthread_t threads[THREADS];
    int results[THREADS];
    (void)state;
    start(1000);
    assert_int_equal(exist(), 1);
    elect("", MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, 20);
    fake_stop(&first);
    atomic_store(&asked, 0);
    uint64_t start_ns = mc_clock_ns();
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_exist, &results[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(results[i], MC_ERR_RPC_FAIL);
    }
    assert_true(mc_clock_ns() - start_ns < SECOND_NS + 160000000ull * SLOW);
    assert_true(atomic_load(&asked) > 1);
    assert_true(atomic_load(&asked) <= 60 * SLOW); /* not THREADS times as often */
    fake_start(&first, 12);
    elect(first.address, 0, 0);
    assert_int_equal(exist(), 1);
    finish();
}

static void a_slow_election_holds_nobody_beyond_the_deadline(void **state)
{
    (void)state;
    start(400);
    assert_int_equal(exist(), 1);
    elect(first.address, 0, 1500);
    fake_stop(&first);
    fake_start(&first, 12);
    mc_master_forget(&store->master, NULL);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(mc_clock_ns() - start_ns < 400000000ull + 160000000ull * SLOW);
    elect(first.address, 0, 0);
    int rc = -1;
    for (unsigned i = 0; i < 20 && rc < 0; i++)
        rc = exist();
    assert_int_equal(rc, 1);
    usleep(1600000); /* who was left waiting for the election ends before the next test changes it */
    finish();
}

static void no_leader_at_the_start_is_an_error_in_time(void **state)
{
    struct mc_store *none = NULL;
    struct mc_store_config config = {
        .local_hostname = "127.0.0.1", .master_server_addr = ELECTION, .call_timeout_ms = 300};
    (void)state;
    elect("", MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, 0);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(mc_store_open(&config, &none), MC_ERR_RPC_FAIL);
    assert_null(none);
    assert_true(mc_clock_ns() - start_ns < 300000000ull + 160000000ull * SLOW);
    elect("", MC_ERR_INVALID_PARAMS, 0); /* what no waiting mends */
    assert_int_equal(mc_store_open(&config, &none), MC_ERR_INVALID_PARAMS);
}

static void addresses_are_checked(void **state)
{
    struct mc_master_address address;
    char long_one[MC_MASTER_ADDRESS_MAX + 8];
    (void)state;
    static const struct {
        const char *given, *configured; /* NULL: refused */
    } cases[] = {{NULL, "127.0.0.1:50051"}, {"", "127.0.0.1:50051"},
                 {"host", "host:50051"},    {"host:1", "host:1"},
                 {"[::1]:7", "[::1]:7"},    {"host:0", NULL},
                 {"host:port", NULL},       {"etcd://a:1,b:2", "etcd://a:1,b:2"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = mc_master_address_init(&address, cases[i].given);
        assert_int_equal(rc, cases[i].configured == NULL ? MC_ERR_INVALID_PARAMS : 0);
        if (rc == 0)
            assert_string_equal(address.configured, cases[i].configured);
        mc_master_address_free(&address);
    }
    memset(long_one, 'a', sizeof(long_one) - 1);
    memcpy(long_one, "etcd://", 7);
    long_one[MC_MASTER_ADDRESS_MAX] = 0;
    assert_int_equal(mc_master_address_init(&address, long_one), MC_ERR_INVALID_PARAMS);
    mc_master_address_free(&address);
    long_one[MC_MASTER_ADDRESS_MAX - 1] = 0;
    assert_int_equal(mc_master_address_init(&address, long_one), 0);
    mc_master_address_free(&address);
}

/* Who is refused may believe that no master runs; who has waited in vain may not, whatever failed before. */
static void no_answer_in_time_is_no_refusal(void **state)
{
    (void)state;
    struct mc_master_address master;
    char used[MC_ADDRESS_MAX], address[MC_ADDRESS_MAX];
    uint16_t port = 0;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    mc_address_join(address, sizeof(address), "localhost", port);
    assert_int_equal(mc_master_address_init(&master, address), 0);
    for (unsigned i = 0; i < 20; i++) {
        errno = ECONNREFUSED;
        int fd = mc_master_open(&master, mc_clock_ns() - 1, used);
        if (fd >= 0)
            close(fd);
        assert_int_equal(atomic_load(&master.refused_ns), 0);
    }
    close(listener);
    errno = 0;
    assert_int_equal(mc_master_open(&master, mc_clock_ns() + 5 * SECOND_NS, used), MC_ERR_RPC_FAIL);
    assert_int_equal(atomic_load(&master.refused_ns), 0); /* no connection of ours was ended from there */
    atomic_store(&master.has_ended, true);
    assert_int_equal(mc_master_open(&master, mc_clock_ns() + 5 * SECOND_NS, used), MC_ERR_RPC_FAIL);
    assert_true(atomic_load(&master.refused_ns) > 0);
}

static void a_thread_that_may_wait_finds_it_too(void **state)
{
    char used[MC_ADDRESS_MAX];
    (void)state;
    start(1000);
    int fd = mc_master_connect(ELECTION, soon(), used);
    assert_true(fd >= 0);
    assert_string_equal(used, first.address);
    close(fd);
    fd = mc_master_connect(first.address, soon(), NULL);
    assert_true(fd >= 0);
    close(fd);
    elect("", MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, 0);
    assert_int_equal(mc_master_connect(ELECTION, soon(), used), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_string_equal(used, "");
    elect("not an address:", 0, 0);
    assert_true(mc_master_connect(ELECTION, soon(), NULL) < 0);
    elect("etcd://again", 0, 0); /* an election that names an election is no answer */
    assert_true(mc_master_connect(ELECTION, soon(), NULL) < 0);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_leader_is_remembered_and_looked_up_again),
        cmocka_unit_test(who_takes_no_hints_hears_none),
        cmocka_unit_test(a_leader_that_leads_no_more_is_left),
        cmocka_unit_test(a_stopped_leader_is_left_before_the_deadline),
        cmocka_unit_test(what_a_standby_says_is_remembered),
        cmocka_unit_test(without_a_leader_calls_end_and_the_election_is_spared),
        cmocka_unit_test(a_slow_election_holds_nobody_beyond_the_deadline),
        cmocka_unit_test(no_leader_at_the_start_is_an_error_in_time),
        cmocka_unit_test(addresses_are_checked),
        cmocka_unit_test(no_answer_in_time_is_no_refusal),
        cmocka_unit_test(a_thread_that_may_wait_finds_it_too),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
