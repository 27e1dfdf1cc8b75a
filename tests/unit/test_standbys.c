/* The list of masters that wait: who is told, when one is gone, and what strangers write there. */
#include "store/master/standbys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct mc_standby_list list;
static struct mc_standby told[MC_STANDBYS_MAX];

static size_t read_at(uint64_t now_ms)
{
    return mc_standby_list_read(&list, "leader:1", now_ms, told);
}

static void add(const char *id, const char *address, uint64_t beat, uint64_t now_ms)
{
    char word[MC_STANDBY_WORD_MAX];
    struct mc_standby said = {.name = "host", .build = "0.4", .since_ms = 77};
    snprintf(said.address, sizeof(said.address), "%s", address);
    mc_standby_word(word, &said, beat);
    mc_standby_list_add(&list, id, word, now_ms);
}

static void look(uint64_t beat, uint64_t now_ms)
{
    mc_standby_list_begin(&list);
    add("1", "a:1", beat, now_ms);
    mc_standby_list_end(&list, now_ms);
}

static void test_who_waits(void **state)
{
    (void)state;
    memset(&list, 0, sizeof(list));
    assert_int_equal(read_at(1000), 0);
    look(1, 1000);
    assert_int_equal(read_at(1000), 0); /* how old that word is nobody knows */
    look(2, 6000);
    assert_int_equal(read_at(6000), 1);
    assert_string_equal(told[0].address, "a:1");
    assert_string_equal(told[0].name, "host");
    assert_int_equal(told[0].since_ms, 77);
    look(2, 11000);
    assert_int_equal(read_at(11000), 1);
    assert_int_equal(told[0].heard_ms, 5000);
    assert_int_equal(read_at(6000 + MC_STANDBY_GONE_MS + MC_STANDBY_EVERY_MS), 1);
    assert_int_equal(read_at(6001 + MC_STANDBY_GONE_MS + MC_STANDBY_EVERY_MS), 0); /* it died, and its word stays */
    look(3, 40000);
    assert_int_equal(read_at(40000), 1);
    mc_standby_list_begin(&list);
    mc_standby_list_end(&list, 41000);
    assert_int_equal(read_at(41000), 0); /* it took its word back */
}

/* One that came after the first look is known to be new; the leader itself does not wait; one that was started again
 * has left a word behind. */
static void test_new_ones(void **state)
{
    (void)state;
    memset(&list, 0, sizeof(list));
    mc_standby_list_end(&list, 1000);
    mc_standby_list_begin(&list);
    add("1", "a:1", 1, 6000);
    add("2", "leader:1", 1, 6000);
    mc_standby_list_end(&list, 6000);
    assert_int_equal(read_at(6000), 1);
    mc_standby_list_begin(&list);
    add("1", "a:1", 1, 11000);
    add("3", "a:1", 1, 11000);
    mc_standby_list_end(&list, 11000);
    assert_int_equal(read_at(12000), 1);
    assert_int_equal(told[0].heard_ms, 1000);
}

static void test_strangers(void **state)
{
    (void)state;
    static const char *const words[] = {"",
                                        "{",
                                        "[]",
                                        "{\"address\":\"a:1\"}",
                                        "{\"address\":\"\",\"name\":\"\",\"build\":\"\",\"since_ms\":1}",
                                        "{\"address\":7,\"name\":\"\",\"build\":\"\",\"since_ms\":1}",
                                        "{\"address\":\"a\",\"name\":\"\",\"build\":\"\",\"since_ms\":-1}",
                                        "{\"address\":\"a\",\"name\":\"\\u0000\",\"build\":\"\",\"since_ms\":1}"};
    char id[64], address[32], long_word[400];
    memset(&list, 0, sizeof(list));
    mc_standby_list_end(&list, 1000);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        mc_standby_list_add(&list, "1", words[i], 2000);
    assert_int_equal(list.count, 0);
    snprintf(long_word, sizeof(long_word), "{\"address\":\"%0300d\",\"name\":\"\",\"build\":\"\",\"since_ms\":1}", 1);
    mc_standby_list_add(&list, "1", long_word, 2000);
    assert_int_equal(list.count, 0);
    snprintf(id, sizeof(id), "%063d", 1);
    add(id, "b:1", 1, 2000);
    assert_int_equal(list.count, 0);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(id, sizeof(id), "%u", i);
        snprintf(address, sizeof(address), "a%u:1", i);
        add(id, address, 1, 2000);
    }
    mc_standby_list_end(&list, 2000);
    assert_int_equal(list.count, MC_STANDBYS_MAX);
    assert_int_equal(read_at(2000), MC_STANDBYS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_waits),
        cmocka_unit_test(test_new_ones),
        cmocka_unit_test(test_strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
