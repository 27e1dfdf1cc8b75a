/* What a store client does with values in pieces that no put has made: of a master and an owner that lie. */
#include "store/segment/memory.h"
#include "store/client/link.h"
#include "store/client/stripes.h"
#include "store/wire/stripe.h"

#include "fake_master.h"
#include "object_make.h"

#define MIB (1ull << 20)
#define EPOCH 50ull
#define NUMBER 0x0102030405060708ull /* no byte of it is zero, as keys of object_make end with one */
#define WHOLE (3u << 20)
#define FIRST_SLOT 3u

static struct fake_master master;
static struct mc_store *store;
static struct mc_segment_memory *memory;

static void start(void)
{
    master = (struct fake_master){.key_exists = true};
    fake_start(&master, EPOCH);
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = master.address,
                                     .local_buffer_size = 1,
                                     .paths = "local",
                                     .call_timeout_ms = 2000};
    assert_int_equal(mc_store_open(&config, &store), 0);
    assert_int_equal(mc_segment_memory_create(4 * MIB, &memory), 0);
    mc_segment_memory_set_contact_ms(memory, mc_clock_boot_ms());
    mc_paths_add_segment(store->paths, memory);
    pthread_mutex_lock(&master.lock);
    master.segments[0] = (struct mc_wire_segment_reply){.segment = 0,
                                                        .node = store->node,
                                                        .incarnation = store->incarnation,
                                                        .segment_id = mc_segment_memory_id(memory),
                                                        .capacity = mc_segment_memory_capacity(memory),
                                                        .slot_count = mc_segment_memory_slot_count(memory),
                                                        .host = store->host,
                                                        .name = mc_span_string("segment")};
    pthread_mutex_unlock(&master.lock);
}

static void finish(void)
{
    mc_paths_remove_segment(store->paths, memory);
    mc_segment_memory_release(memory);
    mc_store_close(store);
    fake_stop(&master);
}

/* What a head of three pieces says, under the marked key: one place more of whatever is asked for. */
static void add_head(struct mc_span key)
{
    struct {
        uint8_t magic[8];
        uint64_t length, stripe, number;
        uint32_t count, unused;
    } head = {"MCSTRIP1", WHOLE, 1u << 20, NUMBER, 3, 0};
    memcpy(head.magic, "MCSTRIP1", sizeof(head.magic));
    uint32_t at = (uint32_t)master.place_count, slot = FIRST_SLOT + at;
    uint64_t generation = (EPOCH << MC_EPOCH_SHIFT) + 10 + at, offset = 4096 * (at + 1);
    uint8_t marked[MC_KEY_LENGTH_MAX];
    memcpy(marked, MC_HEAD_MARK, MC_MARK_LENGTH);
    memcpy(marked + MC_MARK_LENGTH, key.data, key.length);
    struct mc_hash hash = mc_hash(marked, MC_MARK_LENGTH + key.length);
    uint8_t *data = mc_segment_memory_data(memory) + offset;
    memcpy(data, &head, sizeof(head));
    memcpy(data + mc_key_offset(sizeof(head)), marked, MC_MARK_LENGTH + key.length);
    struct mc_wire_commit_item commit = {.slot = slot,
                                         .crc = mc_crc32c(0, data, sizeof(head)),
                                         .generation = generation,
                                         .offset = offset,
                                         .length = sizeof(head),
                                         .hash_low = hash.low,
                                         .hash_high = hash.high,
                                         .key_length = (uint16_t)(MC_MARK_LENGTH + key.length),
                                         .block_shift = mc_block_shift(sizeof(head))};
    assert_int_equal(mc_segment_memory_commit(memory, &commit), 0);
    pthread_mutex_lock(&master.lock);
    master.places[at] = (struct mc_wire_place){.slot = slot, .generation = generation, .offset = offset};
    master.place_count++;
    master.length = sizeof(head);
    master.whole = WHOLE;
    pthread_mutex_unlock(&master.lock);
}

static void hear_of_heads(unsigned count)
{
    pthread_mutex_lock(&master.lock);
    master.wholes = count;
    pthread_mutex_unlock(&master.lock);
}

/* Of the first piece: 10 bytes. */
static int64_t get_range(void)
{
    uint8_t target[10];
    struct mc_range_item item = {.key = {"key", 3}, .source_offset = 5, .size = sizeof(target), .target = target};
    (void)mc_store_get_ranges(store, &item, 1);
    return item.result;
}

/* A piece that says to be a head names itself as its first piece: whoever follows never ends. */
static void test_a_piece_is_no_head(void **state)
{
    uint8_t piece[MC_MARK_LENGTH + MC_PIECE_NAME_LENGTH];
    uint64_t number = NUMBER;
    uint32_t index = 0;
    (void)state;
    start();
    memcpy(piece, MC_PIECE_MARK, MC_MARK_LENGTH);
    piece[MC_MARK_LENGTH] = 'p';
    memcpy(piece + MC_MARK_LENGTH + 1, &number, sizeof(number));
    memcpy(piece + MC_MARK_LENGTH + 1 + sizeof(number), &index, sizeof(index));
    add_head(mc_span_string("key"));
    add_head(mc_span(piece, sizeof(piece)));
    hear_of_heads(1000000);
    assert_int_equal(get_range(), MC_ERR_OBJECT_NOT_FOUND);
    assert_in_range(master.gets, 2, 20);
    finish();
}

/* The key has a value in pieces when it is asked for first, of which nothing can be read, and another one then. */
static void test_a_head_of_before_is_given_back(void **state)
{
    (void)state;
    start();
    add_head(mc_span_string("another"));
    hear_of_heads(1);
    assert_in_range(-get_range(), 1, INT32_MAX);
    assert_in_range(master.gets, 2, INT32_MAX); /* a sanitizer says what was not given back */
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_piece_is_no_head),
        cmocka_unit_test(test_a_head_of_before_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
