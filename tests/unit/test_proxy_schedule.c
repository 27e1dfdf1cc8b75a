/* proxy/schedule and the choice in proxy/instance: turns, loads, what is dead or was tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "env/log.h"
#include "proxy/instance.h"

#include <stdio.h>
#include <stdlib.h>

static size_t choose(const char *name, struct mc_turns *turns, const struct mc_candidate *candidates, size_t count)
{
    const struct mc_policy *policy = mc_policy_find(name);
    assert_non_null(policy);
    size_t chosen = policy->choose(turns, candidates, count);
    assert_true(chosen < count);
    return chosen;
}

static void round_robin(void **state)
{
    struct mc_turns turns = {0};
    struct mc_candidate all[] = {{.turn = 10}, {.turn = 20}, {.turn = 30}};
    (void)state;
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(choose("round_robin", &turns, all, 3), i % 3);
    /* The last turn was 10. The one that is next is not there for a while. */
    struct mc_candidate less[] = {{.turn = 10}, {.turn = 30}};
    assert_int_equal(choose("round_robin", &turns, less, 2), 1);
    assert_int_equal(choose("round_robin", &turns, all, 3), 0);
    assert_int_equal(choose("round_robin", &turns, &all[2], 1), 0);
    assert_int_equal(choose("round_robin", &turns, &all[2], 1), 0);
}

static void least_loaded(void **state)
{
    struct mc_turns turns = {0};
    struct mc_candidate all[] = {{10, 5, 100}, {20, 1, 100}, {30, 1, 200}};
    (void)state;
    assert_int_equal(choose("least_loaded", &turns, all, 3), 1);
    assert_int_equal(choose("load_balanced", &turns, all, 3), 1);
    all[2].work = 0;
    assert_int_equal(choose("least_loaded", &turns, all, 3), 2);
    struct mc_candidate idle[] = {{.turn = 10}, {.turn = 20}};
    assert_int_equal(choose("least_loaded", &turns, idle, 2), 0);
    assert_int_equal(choose("least_loaded", &turns, idle, 2), 1);
    assert_int_equal(choose("least_loaded", &turns, idle, 2), 0);
}

static void any(void **state)
{
    struct mc_turns turns = {.random = 7};
    struct mc_candidate all[] = {{.turn = 1}, {.turn = 2}, {.turn = 3}, {.turn = 4}};
    size_t seen[4] = {0};
    (void)state;
    for (size_t i = 0; i < 4000; i++)
        seen[choose("random", &turns, all, 4)]++;
    for (size_t i = 0; i < 4; i++)
        assert_in_range(seen[i], 800, 1200);
    assert_null(mc_policy_find("best"));
    assert_null(mc_policy_find(""));
}

static struct mc_instance *add(struct mc_instances *set, enum mc_proxy_role role, const char *name)
{
    struct mc_proxy_address address;
    char error[MC_OPTION_ERROR_MAX];
    const char *problem = "";
    assert_int_equal(mc_proxy_address_parse(&address, name, error, sizeof(error)), 0);
    return mc_instances_add(set, role, &address, &problem);
}

static void instances(void **state)
{
    struct mc_instances set = {0};
    const struct mc_policy *policy = mc_policy_find("round_robin");
    unsigned rank = 9;
    (void)state;
    assert_null(mc_instances_choose(&set, MC_PROXY_DECODE, policy, NULL, 0, &rank));
    struct mc_instance *a = add(&set, MC_PROXY_DECODE, "a:1"), *b = add(&set, MC_PROXY_DECODE, "b:1");
    assert_null(add(&set, MC_PROXY_DECODE, "a:1"));
    assert_non_null(add(&set, MC_PROXY_PREFILL, "a:1"));
    assert_int_equal(set.count[MC_PROXY_DECODE], 2);
    assert_ptr_equal(mc_instances_choose(&set, MC_PROXY_DECODE, policy, NULL, 0, &rank), a);
    assert_ptr_equal(mc_instances_choose(&set, MC_PROXY_DECODE, policy, NULL, 0, &rank), b);
    assert_int_equal(rank, 0);
    assert_ptr_equal(mc_instances_choose(&set, MC_PROXY_DECODE, policy, &a->turn, 1, &rank), b);
    assert_true(mc_instances_has_other(&set, MC_PROXY_DECODE, &a->turn, 1));
    mc_instance_set_down(b, "broken");
    assert_string_equal(b->problem, "broken");
    assert_false(mc_instances_has_other(&set, MC_PROXY_DECODE, &a->turn, 1));
    assert_ptr_equal(mc_instances_choose(&set, MC_PROXY_DECODE, policy, NULL, 0, &rank), a);
    assert_null(mc_instances_choose(&set, MC_PROXY_DECODE, policy, &a->turn, 1, &rank));
    mc_instance_hold(a);
    mc_instances_remove(&set, a);
    assert_true(a->is_removed);
    assert_null(mc_instances_find(&set, MC_PROXY_DECODE, "a:1"));
    assert_ptr_equal(set.removed, a);
    assert_int_equal(set.count[MC_PROXY_DECODE], 1);
    mc_instances_forget(&set, a);
    assert_null(set.removed);
    mc_instance_release(a);
    b->state = MC_INSTANCE_WRONG_MODEL;
    assert_null(mc_instances_choose(&set, MC_PROXY_DECODE, policy, NULL, 0, &rank));
    mc_instances_free(&set);
}

static void ranks(void **state)
{
    struct mc_instances set = {0};
    unsigned rank = 9;
    (void)state;
    struct mc_instance *one = add(&set, MC_PROXY_PREFILL, "http://a:1"),
                       *two = add(&set, MC_PROXY_PREFILL, "http://b:1");
    assert_false(mc_instance_is_usable(one));
    one->engine_ids = calloc(2, sizeof(*one->engine_ids));
    two->engine_ids = calloc(1, sizeof(*two->engine_ids));
    assert_true(one->engine_ids != NULL && two->engine_ids != NULL);
    one->rank_count = 2;
    two->rank_count = 1;
    static const unsigned expected[] = {0, 1, 0, 0, 1, 0};
    for (size_t i = 0; i < 6; i++) {
        assert_ptr_equal(mc_instances_choose(&set, MC_PROXY_PREFILL, mc_policy_find("round_robin"), NULL, 0, &rank),
                         i % 3 == 2 ? two : one);
        assert_int_equal(rank, expected[i]);
    }
    mc_instances_free(&set);
}

static void full(void **state)
{
    struct mc_instances set = {0};
    char name[32];
    (void)state;
    for (int i = 0; i < MC_PROXY_INSTANCES_MAX; i++) {
        snprintf(name, sizeof(name), "h:%d", i + 1);
        assert_non_null(add(&set, i % 2 == 0 ? MC_PROXY_PREFILL : MC_PROXY_DECODE, name));
    }
    assert_null(add(&set, MC_PROXY_DECODE, "one:1"));
    mc_instances_free(&set);
    assert_int_equal(set.count[0] + set.count[1], 0);
}

static void histogram(void **state)
{
    struct mc_proxy_histogram one = {0};
    (void)state;
    mc_proxy_histogram_add(&one, 0);
    mc_proxy_histogram_add(&one, 5);
    mc_proxy_histogram_add(&one, 6);
    mc_proxy_histogram_add(&one, UINT32_MAX);
    assert_int_equal(one.buckets[0], 2);
    assert_int_equal(one.buckets[1], 1);
    assert_int_equal(one.buckets[MC_PROXY_BUCKETS], 1);
    assert_int_equal(one.count, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_robin), cmocka_unit_test(least_loaded), cmocka_unit_test(any),
        cmocka_unit_test(instances),   cmocka_unit_test(ranks),        cmocka_unit_test(full),
        cmocka_unit_test(histogram),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
