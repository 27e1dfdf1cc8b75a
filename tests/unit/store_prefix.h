/* The longest stored prefix of a list of keys, with a key missing at each place where a frame ends or begins. */
#ifndef MC_TEST_STORE_PREFIX_H
#define MC_TEST_STORE_PREFIX_H

#include "store_rig.h"

static void expect_prefixes(struct mc_store *client)
{
    enum { COUNT = 2500 }; /* more than two frames */
    static char keys[COUNT][32];
    static struct mc_put_item puts[COUNT];
    static struct mc_bytes names[COUNT];
    static struct iovec part;
    static uint32_t value = 5;
    part = (struct iovec){&value, sizeof(value)};
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof(keys[i]), "prefix-%zu", i);
        names[i] = key_of(keys[i]);
        puts[i] = (struct mc_put_item){.key = names[i], .parts = &part, .part_count = 1};
    }
    assert_int_equal(mc_store_longest_prefix(client, names, 0), 0);
    assert_int_equal(mc_store_longest_prefix(client, names, COUNT), 0);
    assert_int_equal(mc_store_put(client, puts, COUNT, NULL), 0);
    assert_int_equal(mc_store_longest_prefix(client, names, COUNT), COUNT);
    assert_int_equal(mc_store_longest_prefix(client, names, 1024), 1024);
    static const size_t missing[] = {2499, 1024, 1023, 1, 0};
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        int removed;
        assert_int_equal(mc_store_remove(client, &names[missing[i]], 1, true, &removed), 0);
        assert_int_equal(mc_store_longest_prefix(client, names, COUNT), missing[i]);
    }
    /* A key that cannot be is an error where the prefix comes to it, and nothing behind a gap. */
    names[2] = (struct mc_bytes){"", 0};
    assert_int_equal(mc_store_longest_prefix(client, names, COUNT), 0);
    assert_int_equal(mc_store_longest_prefix(client, names + 2, 2), MC_ERR_INVALID_KEY);
}

#endif
