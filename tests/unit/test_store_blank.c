/* Places that are granted ahead, as a store asks for them: where they are off, or the master is of an earlier release,
 * what it sends is what it always sent. */
#include "store/wire/version.h"

#include "fake_master.h"

#define EPOCH 50ull
#define SIZE 5000u
#define PLAIN_ITEM_BYTES (2u + 8u + 2u + 3u + 8u + 8u) /* size, length, key, unsure, group */
#define NAMING_ITEM_BYTES (PLAIN_ITEM_BYTES + 4u + 4u) /* and the blank's segment and slot */
#define HAS_BLANKS (UINT64_C(1) << MC_FEATURE_BLANKS)

static struct fake_master master = {.key_exists = true, .blank_segment = FAKE_PLACES};
static struct mc_store *store;
static uint8_t content[SIZE];

static void open_with(const char *setting, uint64_t features, const char *paths)
{
    const struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                           .master_server_addr = master.address,
                                           .local_buffer_size = 1,
                                           .paths = paths,
                                           .call_timeout_ms = 3000};
    assert_int_equal(setting == NULL ? unsetenv("MC_STORE_BLANK_PLACES") : setenv("MC_STORE_BLANK_PLACES", setting, 1),
                     0);
    master.features = features;
    master.binds = 0;
    fake_start(&master, EPOCH);
    assert_int_equal(mc_store_open(&config, &store), 0);
}

static void open_store(const char *setting, uint64_t features)
{
    open_with(setting, features, "local");
}

static void close_store(void)
{
    mc_store_close(store);
    fake_stop(&master);
}

static void put(void)
{
    struct iovec part = {content, SIZE};
    struct mc_put_item item = {.key = {"key", 3}, .parts = &part, .part_count = 1};
    assert_int_equal(mc_store_put(store, &item, 1, NULL), 0);
    assert_int_equal(item.result, 0);
}

static void gives_one(bool gives)
{
    pthread_mutex_lock(&master.lock);
    master.gives_blank = gives;
    pthread_mutex_unlock(&master.lock);
}

/* Puts go as they always went. */
static void assert_plain(void)
{
    for (unsigned i = 0; i < 3; i++) { /* over a new link, and over one that was used */
        put();
        assert_int_equal(FAKE_GET(&master, put_flags) & MC_PUT_BLANK, 0);
        assert_int_equal(FAKE_GET(&master, put_item_bytes), PLAIN_ITEM_BYTES);
    }
    assert_int_equal(FAKE_GET(&master, binds), 0);
}

static void test_off(void **state)
{
    const char *const settings[] = {NULL, "", "0"};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        open_store(settings[i], HAS_BLANKS);
        gives_one(true); /* which it would have no business to do */
        assert_plain();
        close_store();
    }
}

static void test_older_master(void **state)
{
    (void)state;
    open_store("1", 0);
    assert_plain();
    close_store();
}

static void test_on(void **state)
{
    (void)state;
    open_store("1", HAS_BLANKS);
    put();
    assert_true((FAKE_GET(&master, put_flags) & MC_PUT_BLANK) != 0);
    assert_int_equal(FAKE_GET(&master, put_item_bytes), PLAIN_ITEM_BYTES);
    gives_one(true);
    put();
    assert_int_equal(FAKE_GET(&master, binds), 0);
    put(); /* which is bound, refused, and asked for by the blank's name */
    assert_int_equal(FAKE_GET(&master, binds), 1);
    assert_int_equal(FAKE_GET(&master, put_flags) & MC_PUT_BLANK, 0);
    assert_int_equal(FAKE_GET(&master, put_item_bytes), NAMING_ITEM_BYTES);
    assert_int_equal(FAKE_GET(&master, unsure), 9);
    put();
    assert_int_equal(FAKE_GET(&master, put_item_bytes), PLAIN_ITEM_BYTES);
    close_store();
}

/* It has a place of the master before. */
static void test_an_older_master_follows(void **state)
{
    (void)state;
    open_store("1", HAS_BLANKS);
    gives_one(true);
    put();
    fake_stop(&master);
    master.features = 0;
    fake_start(&master, EPOCH + 1);
    assert_plain();
    close_store();
}

/* What is said of an owner while the bytes are on their way does not take the key along: the master, which might refuse
 * it, would give the place to another while they still come. */
static void test_the_key_is_named_when_the_write_has_ended(void **state)
{
    (void)state;
    open_with("1", HAS_BLANKS, "tcp");
    pthread_mutex_lock(&master.lock);
    master.segments[1] = (struct mc_wire_segment_reply){
        .segment = 1, .capacity = 1 << 20, .tcp_address = mc_span_string("255.255.255.255:1")}; /* nobody's */
    master.blank_segment = 1;
    master.gives_blank = true;
    pthread_mutex_unlock(&master.lock);
    put();
    unsigned suspects = FAKE_GET(&master, suspects);
    put();
    assert_int_equal(FAKE_GET(&master, binds), 1);
    assert_true(FAKE_GET(&master, doubts_before_bind) > suspects);
    close_store();
    master.blank_segment = FAKE_PLACES;
    master.segments[1] = (struct mc_wire_segment_reply){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_older_master),
        cmocka_unit_test(test_on),
        cmocka_unit_test(test_an_older_master_follows),
        cmocka_unit_test(test_the_key_is_named_when_the_write_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
