/* What the files of a disk hold, and what is made of bytes that are not that. */
#include "disk_rig.h"

static struct mc_disk_record record_make(const char *key, uint64_t length, uint32_t page)
{
    struct mc_hash hash = mc_hash(key, strlen(key));
    return (struct mc_disk_record){.entry = {.generation = 77,
                                             .version = 55,
                                             .length = (uint32_t)length,
                                             .group = 5,
                                             .hash = hash,
                                             .crc = 99,
                                             .key_length = (uint16_t)strlen(key),
                                             .block_shift = mc_block_shift(length),
                                             .flags = 3,
                                             .pin = {7, 8, 9}},
                                   .slot = 11,
                                   .page = page,
                                   .is_copy = true,
                                   .key = (const uint8_t *)key};
}

static void test_record(void **state)
{
    (void)state;
    uint8_t table[256];
    struct mc_disk_record record = record_make("a key", 5000, 3), back;
    uint32_t bytes = mc_disk_record_bytes(record.entry.key_length);
    mc_disk_record_put(table, &record);
    struct mc_reader reader = mc_reader(table, bytes);
    assert_true(mc_disk_record_next(&reader, RIG_REGION, &back));
    assert_memory_equal(&back.entry, &record.entry, offsetof(struct mc_disk_entry, pin) + sizeof(back.entry.pin));
    assert_memory_equal(back.key, "a key", 5);
    assert_true(back.page == 3 && back.slot == 11 && back.is_copy);
    assert_false(mc_disk_record_next(&reader, RIG_REGION, &back));
    assert_false(reader.bad);
    for (uint32_t cut = 1; cut < bytes; cut++) { /* cut short anywhere */
        uint8_t *copy = malloc(cut);
        assert_non_null(copy);
        memcpy(copy, table, cut);
        reader = mc_reader(copy, cut);
        assert_false(mc_disk_record_next(&reader, RIG_REGION, &back));
        assert_true(reader.bad);
        free(copy);
    }
}

/* What no honest disk writes: each is refused. */
static void test_record_that_cannot_be(void **state)
{
    (void)state;
    uint8_t table[256];
    struct mc_disk_record back;
    struct mc_disk_record wrong[] = {
        record_make("key", 0, 3),           record_make("key", RIG_REGION, 3), record_make("key", UINT64_MAX, 3),
        record_make("key", 5000, 0),        record_make("key", 5000, 255),     record_make("key", 5000, UINT32_MAX),
        record_make("", 5000, 3),           record_make("key", 5000, 3),       record_make("key", 5000, 3),
        record_make("key", 1000000000, 10),
    };
    wrong[7].entry.block_shift++;
    wrong[8].entry.hash.low++;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        mc_disk_record_put(table, &wrong[i]);
        struct mc_reader reader = mc_reader(table, mc_disk_record_bytes(wrong[i].entry.key_length));
        assert_false(mc_disk_record_next(&reader, RIG_REGION, &back));
        assert_true(reader.bad);
    }
}

static void test_every_bit_of_a_head(void **state)
{
    (void)state;
    struct mc_id id = {1, 2}, other = {1, 3};
    struct mc_disk_head head, back;
    uint8_t bytes[sizeof(head)];
    mc_disk_head_fill(&head, MC_DISK_HEAD_GROUP, id);
    head.sequence = 9;
    head.bytes = 100;
    mc_disk_head_seal(&head);
    memcpy(bytes, &head, sizeof(head));
    assert_int_equal(mc_disk_head_read(bytes, MC_DISK_HEAD_GROUP, id, &back), MC_DISK_GOOD);
    assert_int_equal(mc_disk_head_read(bytes, MC_DISK_HEAD_GROUP, other, &back), MC_DISK_FOREIGN);
    assert_int_equal(mc_disk_head_read(bytes, MC_DISK_HEAD_FOOTER, id, &back), MC_DISK_DAMAGED);
    for (size_t bit = 0; bit < sizeof(head) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(mc_disk_head_read(bytes, MC_DISK_HEAD_GROUP, id, &back), MC_DISK_GOOD);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(mc_disk_head_read(bytes, MC_DISK_HEAD_GROUP, id, &back), MC_DISK_BLANK);
}

static void test_every_bit_of_a_superblock(void **state)
{
    (void)state;
    uint8_t page[MC_DISK_PAGE];
    const struct mc_disk_mark mark = {8, 9, {10, 11}, {12, 13}, 14, 15, 16 + (17ull << 32), {18, {19, [31] = 20}}};
    struct mc_disk_super super = {{4, 5}, 6, RIG_REGION, 7, mark}, back;
    mc_disk_super_put(page, &super);
    assert_int_equal(mc_disk_super_read(page, &back), MC_DISK_GOOD);
    assert_memory_equal(&back, &super, sizeof(super));
    for (size_t bit = 0; bit < MC_DISK_SUPER_BYTES * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(mc_disk_super_read(page, &back), MC_DISK_GOOD);
        page[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* A release before proofs leaves none, and what is damaged is none: the rest counts. */
    for (size_t bit = 0; bit < (MC_DISK_SUPER_PROOF_BYTES - 4) * 8; bit++) {
        uint8_t *byte = page + MC_DISK_SUPER_BYTES + bit / 8;
        *byte ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(mc_disk_super_read(page, &back), MC_DISK_GOOD);
        assert_int_equal(back.mark.proof.epoch, 0);
        assert_int_equal(back.mark.contact_at_ms, mark.contact_at_ms);
        *byte ^= (uint8_t)(1 << bit % 8);
    }
    memset(page + MC_DISK_SUPER_BYTES, 0, MC_DISK_SUPER_PROOF_BYTES);
    assert_int_equal(mc_disk_super_read(page, &back), MC_DISK_GOOD);
    assert_int_equal(back.mark.proof.epoch, 0);
}

static void test_extent(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 3, 4, 4095, 65536, 65537, 300001};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t bytes = mc_disk_extent_bytes(lengths[i], MC_KEY_LENGTH_MAX);
        uint8_t *extent = malloc(bytes);
        assert_non_null(extent);
        memset(extent, 0xee, bytes);
        struct mc_disk_entry entry = rig_extent(extent, 8, 13, lengths[i]), other = entry;
        bytes = mc_disk_extent_bytes(lengths[i], entry.key_length);
        mc_disk_extent_stamp(extent, &entry);
        assert_int_equal(mc_disk_extent_check(extent, &entry), 0);
        other.generation++; /* the same bytes and sums, another generation */
        assert_int_equal(mc_disk_extent_check(extent, &other), MC_ERR_CHECKSUM_MISMATCH);
        other = entry;
        other.hash.low++;
        assert_int_equal(mc_disk_extent_check(extent, &other), MC_ERR_CHECKSUM_MISMATCH);
        for (uint64_t at = 0; at < lengths[i]; at += 1 + lengths[i] / 50) {
            extent[at] ^= 1;
            assert_int_equal(mc_disk_extent_check(extent, &entry), MC_ERR_CHECKSUM_MISMATCH);
            extent[at] ^= 1;
        }
        free(extent);
    }
}

static void test_what_an_object_costs(void **state)
{
    (void)state;
    print_message("%zu bytes of memory for an object\n", sizeof(struct mc_disk_item));
    assert_true(sizeof(struct mc_disk_item) <= 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_record_that_cannot_be),
        cmocka_unit_test(test_every_bit_of_a_head),
        cmocka_unit_test(test_every_bit_of_a_superblock),
        cmocka_unit_test(test_extent),
        cmocka_unit_test(test_what_an_object_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
