/* base/trace: contexts of W3C as text, store/wire/trace: the same as a frame. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/trace.h"
#include "store/wire/trace.h"

#define GOOD "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static void a_context_is_read_and_written_as_it_stands(void **state)
{
    struct mc_trace_context trace;
    char text[MC_TRACE_TEXT_MAX];
    (void)state;
    assert_true(mc_trace_parse(GOOD, &trace));
    assert_int_equal(trace.id.high, 0x0af7651916cd43dd);
    assert_int_equal(trace.id.low, 0x8448eb211c80319c);
    assert_int_equal(trace.span, 0xb7ad6b7169203331);
    assert_int_equal(trace.flags, 1);
    assert_true(mc_trace_is_sampled(&trace));
    mc_trace_format(text, &trace);
    assert_string_equal(text, GOOD);
}

static void flags_say_whether_it_is_sampled(void **state)
{
    struct mc_trace_context trace;
    (void)state;
    assert_true(mc_trace_parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", &trace));
    assert_false(mc_trace_is_sampled(&trace));
    assert_true(mc_trace_parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", &trace));
    assert_true(mc_trace_is_sampled(&trace));
    assert_false(mc_trace_is_sampled(&(struct mc_trace_context){.span = 1, .flags = 1}));
    assert_false(mc_trace_is_sampled(&(struct mc_trace_context){.id = {1, 0}, .flags = 1}));
}

/* https://www.w3.org/TR/trace-context/#versioning-of-traceparent */
static void a_later_version_may_have_more_behind(void **state)
{
    struct mc_trace_context trace;
    (void)state;
    assert_true(mc_trace_parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", &trace));
    assert_true(mc_trace_parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what", &trace));
    assert_int_equal(trace.span, 0xb7ad6b7169203331);
}

static void what_is_no_context_is_nothing(void **state)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-",
        "-",
        "nonsense",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",         /* no flags */
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",       /* half of them */
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", /* version 0 has no more */
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 ",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01what",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319cc-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
        "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mc_trace_context trace = {.flags = 7};
        if (mc_trace_parse(bad[i], &trace))
            fail_msg("'%s' was taken", bad[i]);
        assert_true(mc_id_is_zero(trace.id) && trace.span == 0 && trace.flags == 0);
    }
    for (size_t length = 0; length < sizeof(GOOD) - 1;
         length++) { /* none of its beginnings, and nothing is read behind */
        char text[MC_TRACE_TEXT_MAX] = GOOD;
        struct mc_trace_context trace;
        text[length] = 0;
        assert_false(mc_trace_parse(text, &trace));
    }
}

static void a_frame_carries_what_is_sampled(void **state)
{
    struct mc_trace_context trace, heard = {.flags = 0};
    struct mc_buffer out = {.length = 0};
    struct mc_frame frame = {.type = 0};
    size_t used;
    (void)state;
    assert_true(mc_trace_parse(GOOD, &trace));
    mc_wire_trace_say(&out, 77, &trace);
    assert_int_equal(out.length, MC_WIRE_TRACE_BYTES);
    assert_int_equal(mc_frame_parse(out.data, out.length, &frame, &used), 1);
    assert_int_equal(frame.type, MC_MESSAGE_TRACE);
    assert_int_equal(frame.request_id, 77);
    assert_int_equal(mc_wire_check(frame.type, frame.body), 0);
    assert_int_equal(mc_wire_trace_hear(&frame, &heard), 0);
    assert_true(mc_trace_equal(&trace, &heard));
    frame.body.length--;
    assert_int_equal(mc_wire_trace_hear(&frame, &heard), MC_ERR_PROTOCOL);
    out.length = 0;
    trace.flags = 0;
    mc_wire_trace_say(&out, 78, &trace);
    assert_int_equal(out.length, 0);
    mc_buffer_free(&out);
}

/* Whoever makes no spans asks nobody for contexts, and sends none. */
static void only_who_makes_spans_says_so(void **state)
{
    const struct mc_wire_peer all = {.version = 1, .features = MC_FEATURES_OURS};
    const struct mc_trace_context trace = {{1, 2}, 3, MC_TRACE_SAMPLED};
    struct mc_buffer out = {.length = 0};
    struct mc_wire_peer agreed;
    struct mc_wire_hello hello = {.features = 0};
    (void)state;
    mc_wire_hello_sign(&hello);
    assert_int_equal(hello.features >> MC_FEATURE_TRACES & 1, 0);
    assert_int_equal(mc_wire_agree(&agreed, 1, 1, MC_FEATURES_OURS), 0);
    assert_false(mc_wire_can(&agreed, MC_FEATURE_TRACES));
    assert_true(mc_wire_can(&agreed, MC_FEATURE_PARTS));
    mc_trace_enter(&trace);
    mc_wire_trace_tell(&out, 1, &all);
    assert_int_equal(out.length, 0);
    atomic_store(&mc_traces_wanted, true);
    mc_wire_hello_sign(&hello);
    assert_int_equal(hello.features, MC_FEATURES_OURS);
    assert_int_equal(mc_wire_agree(&agreed, 1, 1, MC_FEATURES_OURS), 0);
    assert_true(mc_wire_can(&agreed, MC_FEATURE_TRACES));
    mc_wire_trace_tell(&out, 1,
                       &(struct mc_wire_peer){.version = 1}); /* a peer of the last release, or that makes none */
    assert_int_equal(out.length, 0);
    mc_wire_trace_tell(&out, 1, &agreed);
    assert_int_equal(out.length, MC_WIRE_TRACE_BYTES);
    atomic_store(&mc_traces_wanted, false);
    mc_trace_enter(NULL);
    mc_buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_is_read_and_written_as_it_stands),
        cmocka_unit_test(flags_say_whether_it_is_sampled),
        cmocka_unit_test(a_later_version_may_have_more_behind),
        cmocka_unit_test(what_is_no_context_is_nothing),
        cmocka_unit_test(a_frame_carries_what_is_sampled),
        cmocka_unit_test(only_who_makes_spans_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
