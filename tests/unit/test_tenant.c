/* Keys with their tenant before them. */
#include "store/wire/tenant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static struct mc_span of(const char *text, size_t length)
{
    return mc_span(text, length);
}
#define BYTES(text) of(text, sizeof(text) - 1)

static void names(void **state)
{
    char long_name[MC_TENANT_NAME_MAX + 2];
    (void)state;
    memset(long_name, 'a', sizeof(long_name));
    assert_true(mc_tenant_is_name(BYTES("a")));
    assert_true(mc_tenant_is_name(BYTES("team/a b.c-\xc3\xa4")));
    assert_true(mc_tenant_is_name(mc_span(long_name, MC_TENANT_NAME_MAX)));
    assert_false(mc_tenant_is_name(mc_span(long_name, MC_TENANT_NAME_MAX + 1)));
    assert_false(mc_tenant_is_name(BYTES("")));
    assert_false(mc_tenant_is_name(BYTES("_a")));
    assert_false(mc_tenant_is_name(BYTES("a\0b")));
    assert_false(mc_tenant_is_name(BYTES("a\nb")));
    assert_false(mc_tenant_is_name(BYTES("a\x7f")));
}

static void scopes(void **state)
{
    struct mc_scope blue, none;
    (void)state;
    assert_true(mc_scope_make(&blue, BYTES("blue")));
    assert_true(mc_span_equal(mc_scope_span(&blue), BYTES("\0blue\0")));
    assert_true(mc_span_equal(mc_scope_name(&blue), BYTES("blue")));
    assert_true(mc_scope_make(&none, BYTES("default")));
    assert_int_equal(none.length, 0);
    assert_int_equal(mc_scope_name(&none).length, 0);
    assert_false(mc_scope_make(&none, BYTES("_x")));
    assert_int_equal(none.length, 0);
    assert_true(mc_scope_has(&blue, BYTES("\0blue\0k")));
    assert_false(mc_scope_has(&blue, BYTES("\0blue\0"))); /* no key is left */
    assert_false(mc_scope_has(&blue, BYTES("\0blues\0k")));
    assert_false(mc_scope_has(&blue, BYTES("k")));
    assert_true(mc_scope_has(&none, BYTES("blue")));
    assert_false(mc_scope_has(&none, BYTES("\0blue\0k")));
    assert_false(mc_scope_has(&none, BYTES("\0")));
}

static void keys_say_whose_they_are(void **state)
{
    (void)state;
    assert_int_equal(mc_key_scope(BYTES("\0a\0k")).length, 3);
    assert_true(mc_span_equal(mc_key_local(BYTES("\0a\0k")), BYTES("k")));
    assert_true(mc_span_equal(mc_key_local(BYTES("\0a\0")), BYTES("")));
    static const char *const plain[] = {"k", "ab", "abcdef"};
    for (size_t i = 0; i < 3; i++)
        assert_true(mc_span_equal(mc_key_local(mc_span_string(plain[i])), mc_span_string(plain[i])));
    assert_int_equal(mc_key_scope(BYTES("\0")).length, 0);
    assert_int_equal(mc_key_scope(BYTES("\0\0k")).length, 0);
    assert_int_equal(mc_key_scope(BYTES("\0_a\0k")).length, 0);
    assert_int_equal(mc_key_scope(BYTES("\0abc")).length, 0);
    assert_int_equal(mc_key_scope(mc_span(NULL, 0)).length, 0);
}

static void stamps(void **state)
{
    struct mc_scope scope;
    struct mc_id stamp = mc_stamp_of(BYTES("llama, fp8")), found;
    uint8_t key[MC_TENANT_NAME_MAX + 2 + MC_STAMP_LENGTH + 1];
    (void)state;
    assert_true(mc_id_is_zero(mc_stamp_of(mc_span(NULL, 0))));
    assert_false(mc_id_is_zero(stamp));
    assert_true(mc_id_equal(stamp, mc_stamp_of(BYTES("llama, fp8"))));
    assert_false(mc_id_equal(stamp, mc_stamp_of(BYTES("llama, fp16"))));
    static const char *const tenants[] = {"", "blue",
                                          "a23456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < 3; i++) {
        struct mc_span name = mc_span_string(tenants[i]);
        assert_true(mc_scope_make(&scope, name));
        struct mc_scope tenant = scope;
        mc_scope_stamp(&scope, stamp);
        assert_int_equal(scope.length, tenant.length + MC_STAMP_LENGTH);
        assert_true(mc_span_equal(mc_scope_name(&scope), name));
        memcpy(key, scope.bytes, scope.length);
        key[scope.length] = 'k';
        struct mc_span full = mc_span(key, scope.length + 1u);
        assert_true(mc_key_stamp(full, &found) && mc_id_equal(found, stamp));
        assert_true(mc_span_equal(mc_key_scope(full), mc_scope_span(&tenant)));
        assert_true(mc_span_equal(mc_key_tenant(full), i == 0 ? BYTES("default") : name));
        assert_true(mc_span_equal(mc_key_local(full), BYTES("k")));
        assert_true(mc_scope_has(&scope, full) && mc_scope_has(&tenant, full));
        assert_false(mc_key_stamp(mc_span(key, scope.length), &found)); /* no key is left */
        assert_false(mc_scope_has(&scope, mc_span(key, scope.length)));
        mc_scope_stamp(&scope, mc_stamp_of(BYTES("another")));
        assert_int_equal(scope.length, tenant.length + MC_STAMP_LENGTH);
        assert_false(mc_scope_has(&scope, full));
        mc_scope_stamp(&scope, (struct mc_id){0, 0});
        assert_true(mc_span_equal(mc_scope_span(&scope), mc_scope_span(&tenant)));
    }
    assert_false(mc_key_stamp(BYTES("\0\1short"), &found));
    assert_false(mc_key_stamp(BYTES("a key of more than eighteen bytes"), &found));
}

static void groups_of_tenants_are_others(void **state)
{
    struct mc_scope a, b, none = {.length = 0};
    (void)state;
    assert_true(mc_scope_make(&a, BYTES("a")) && mc_scope_make(&b, BYTES("b")));
    assert_int_equal(mc_scope_group(&none, 7), 7);
    assert_int_equal(mc_scope_group(&a, 0), 0);
    assert_true(mc_scope_group(&a, 7) != 7 && mc_scope_group(&a, 7) != mc_scope_group(&b, 7));
    assert_true(mc_scope_group(&a, 7) == mc_scope_group(&a, 7) && mc_scope_group(&a, 7) != mc_scope_group(&a, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(scopes),
        cmocka_unit_test(keys_say_whose_they_are),
        cmocka_unit_test(stamps),
        cmocka_unit_test(groups_of_tenants_are_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
