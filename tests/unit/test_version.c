/* What two builds agree on. */
#include "store/wire/version.h"

#include "base/build.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void the_highest_version_that_both_know(void **state)
{
    struct mc_wire_peer peer;
    (void)state;
    assert_int_equal(mc_wire_agree(&peer, MC_WIRE_VERSION_MIN, MC_WIRE_VERSION_MAX, 0), 0);
    assert_int_equal(peer.version, MC_WIRE_VERSION_MAX);
    assert_int_equal(mc_wire_agree(&peer, MC_WIRE_VERSION_MIN, UINT16_MAX, 0), 0);
    assert_int_equal(peer.version, MC_WIRE_VERSION_MAX);
    assert_int_equal(mc_wire_agree(&peer, 0, MC_WIRE_VERSION_MIN, 0), 0);
    assert_int_equal(peer.version, MC_WIRE_VERSION_MIN);
    assert_int_equal(mc_wire_agree(&peer, 0, MC_WIRE_VERSION_MIN - 1, UINT64_MAX), MC_ERR_INVALID_VERSION);
    assert_int_equal(peer.features, 0); /* who is refused can nothing */
    assert_int_equal(mc_wire_agree(&peer, MC_WIRE_VERSION_MAX + 1, UINT16_MAX, 0), MC_ERR_INVALID_VERSION);
    assert_int_equal(mc_wire_agree(&peer, MC_WIRE_VERSION_MAX, MC_WIRE_VERSION_MIN - 1, 0), MC_ERR_INVALID_VERSION);
}

static void features_are_those_that_both_have(void **state)
{
    struct mc_wire_peer peer = {0};
    (void)state;
    assert_false(mc_wire_can(&peer, MC_FEATURE_NAMED_BUILD)); /* before the hello */
    assert_int_equal(mc_wire_agree(&peer, 1, 1, 0), 0);
    assert_false(mc_wire_can(&peer, MC_FEATURE_NAMED_BUILD));
    assert_int_equal(mc_wire_agree(&peer, 1, 1, UINT64_MAX), 0);
    assert_true(mc_wire_can(&peer, MC_FEATURE_NAMED_BUILD));
    assert_int_equal(peer.features, mc_wire_features()); /* all but TRACES, as this process makes no spans */
}

/* No bit stands for two things. */
static void every_feature_has_a_bit_of_its_own(void **state)
{
    int count = 0;
    (void)state;
#define COUNT(name, bit, what) count += (bit) < 64 && (what)[0] != 0;
    MC_FEATURES(COUNT)
#undef COUNT
    assert_true(count > 0);
    assert_int_equal(__builtin_popcountll(MC_FEATURES_OURS), count);
}

static void a_hello_is_signed_and_read_by_an_older_one(void **state)
{
    struct mc_buffer out = {0};
    struct mc_wire_hello hello = {.role = MC_ROLE_CALL, .node = {1, 2}, .seen_age_ms = 5}, back;
    char text[MC_BUILD_TEXT_MAX];
    (void)state;
    mc_wire_hello_sign(&hello);
    mc_wire_hello_write(&out, &hello);
    struct mc_reader reader = mc_reader(out.data, out.length);
    mc_wire_hello_read(&reader, &back);
    assert_false(reader.bad);
    assert_string_equal(mc_wire_build(text, back.build), mc_build());
    assert_int_equal(back.features, mc_wire_features());
    /* One that ends before the build: of a release that had none. */
    uint16_t size;
    memcpy(&size, out.data, sizeof(size));
    size_t no_tenant = sizeof(size), no_proof = sizeof(size); /* what stands behind the build goes, too */
    size_t behind =
        sizeof(hello.host) + sizeof(hello.cluster) + sizeof(hello.holds) + no_tenant + sizeof(hello.stamp) + no_proof;
    size = (uint16_t)(size - 2 - strlen(mc_build()) - behind);
    memcpy(out.data, &size, sizeof(size));
    reader = mc_reader(out.data, size + sizeof(size));
    mc_wire_hello_read(&reader, &back);
    assert_false(reader.bad);
    assert_int_equal(back.seen_age_ms, 5);
    assert_string_equal(mc_wire_build(text, back.build), "an earlier build");
    mc_buffer_free(&out);
}

static void names_of_builds_are_cut_and_printable(void **state)
{
    char text[MC_BUILD_TEXT_MAX], longer[300];
    int major, minor, patch, end = 0;
    (void)state;
    memset(longer, 'x', sizeof(longer));
    assert_int_equal(strlen(mc_wire_build(text, mc_span(longer, sizeof(longer)))), MC_BUILD_TEXT_MAX - 1);
    assert_string_equal(mc_wire_build(text, mc_span("a\n\"\\\0z", 6)), "a????z");
    assert_int_equal(sscanf(mc_build(), "%d.%d.%d+c%n", &major, &minor, &patch, &end), 3);
    assert_true(end > 0 && strlen(mc_build()) < MC_BUILD_TEXT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_highest_version_that_both_know),
        cmocka_unit_test(features_are_those_that_both_have),
        cmocka_unit_test(every_feature_has_a_bit_of_its_own),
        cmocka_unit_test(a_hello_is_signed_and_read_by_an_older_one),
        cmocka_unit_test(names_of_builds_are_cut_and_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
