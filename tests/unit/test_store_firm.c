/* Firm pins at a master of an earlier release: a store does not ask it for them, for it would grant the put, and evict
 * for that. */
#include "store/client/owners.h"
#include "store/segment/memory.h"

#include "fake_master.h"
#include "object_make.h"

#define EPOCH 50ull
#define OFFSET 4096u
#define SIZE 5000u

static struct fake_master master = {.key_exists = false};
static struct mc_store *store;
static uint8_t content[SIZE];
static const struct mc_bytes keys[] = {{"key", 3}, {"key", 3}, {"key", 3}};

static void open_store(void)
{
    const struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                           .master_server_addr = master.address,
                                           .local_buffer_size = 1,
                                           .paths = "local",
                                           .call_timeout_ms = 3000};
    fake_start(&master, EPOCH);
    assert_int_equal(mc_store_open(&config, &store), 0);
}

static void close_store(void)
{
    mc_store_close(store);
    fake_stop(&master);
}

static void test_put(void **state)
{
    const struct mc_replicate_config config = {.firm_pin_ms = 1000, .firm_pin_or_not = true};
    struct iovec part = {content, SIZE};
    struct mc_put_item item = {.key = keys[0], .parts = &part, .part_count = 1};
    (void)state;
    open_store();
    for (unsigned i = 0; i < 2; i++) { /* over a new link, and over one that was used */
        assert_int_equal(mc_store_put(store, &item, 1, &config), MC_ERR_NOT_SUPPORTED);
        assert_int_equal(item.result, MC_ERR_NOT_SUPPORTED);
    }
    assert_int_equal(FAKE_GET(&master, puts), 0);
    close_store();
}

/* The first key says it for all: the others are not even read. */
static void test_pin(void **state)
{
    struct mc_segment_memory *memory;
    int results[3];
    (void)state;
    open_store();
    assert_int_equal(mc_segment_memory_create(4u << 20, &memory), 0);
    mc_segment_memory_set_contact_ms(memory, mc_clock_boot_ms());
    mc_paths_add_segment(store->paths, memory);
    struct mc_wire_place place = {.slot = 3, .generation = (EPOCH << MC_EPOCH_SHIFT) + 10, .offset = OFFSET};
    memcpy(mc_segment_memory_data(memory) + OFFSET, content, SIZE);
    assert_int_equal(object_finish(memory, place.slot, place.generation, OFFSET, SIZE, "key", 0, 0), 0);
    pthread_mutex_lock(&master.lock);
    master.segments[0] = (struct mc_wire_segment_reply){.node = store->node,
                                                        .incarnation = store->incarnation,
                                                        .segment_id = mc_segment_memory_id(memory),
                                                        .capacity = mc_segment_memory_capacity(memory),
                                                        .slot_count = mc_segment_memory_slot_count(memory),
                                                        .host = store->host,
                                                        .name = mc_span_string("segment")};
    master.places[0] = place;
    master.place_count = 1;
    master.length = SIZE;
    master.key_exists = true;
    unsigned calls = master.calls;
    pthread_mutex_unlock(&master.lock);
    assert_int_equal(mc_store_pin(store, keys, 3, NULL, results), MC_ERR_NOT_SUPPORTED);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(results[i], MC_ERR_NOT_SUPPORTED);
    assert_in_range(FAKE_GET(&master, calls), calls + 1, calls + 3); /* where it is, and what; where its owner is */
    assert_int_equal(FAKE_GET(&master, puts), 0);
    mc_paths_remove_segment(store->paths, memory);
    mc_segment_memory_release(memory);
    close_store();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_pin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
