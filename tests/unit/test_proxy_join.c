/* proxy/join: prefill's list goes before decode's, and every other byte stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "proxy/join.h"

static struct mc_members members;

static void joined(const char *decode, const char *before, const char *wanted)
{
    struct mc_buffer out = {0};
    mc_join_write(&members, mc_span_string(decode), mc_span_string(before), &out);
    assert_int_equal(out.length, strlen(wanted));
    assert_memory_equal(out.data, wanted, out.length);
    mc_buffer_free(&out);
}

static void lists(void **state)
{
    static const char text[] = "{\"text\":\"a\",\"meta_info\":{\"id\":\"x\",\"input_token_logprobs\":[[-1.5,7,null]]}}";
    struct mc_span list = mc_join_list(&members, mc_span_string(text));
    (void)state;
    assert_int_equal(list.length, strlen("[-1.5,7,null]"));
    assert_memory_equal(list.data, "[-1.5,7,null]", list.length);
    assert_non_null(mc_join_list(&members, mc_span_string("{\"meta_info\":{\"input_token_logprobs\":[]}}")).data);
    static const char *const without[] = {
        "",
        "data: [DONE]\n\n",
        ": a comment\n\n",
        "[{\"meta_info\":{\"input_token_logprobs\":[1]}}]", /* a batch */
        "{\"meta_info\":{}}",
        "{\"meta_info\":[]}",
        "{\"meta_info\":{\"input_token_logprobs\":null}}",
        "{\"meta_info\":{\"input_token_logprobs\":\"[1]\"}}",
        "{\"meta_info\":{\"input_token_logprobs\":[1]}",
    };
    for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
        assert_null(mc_join_list(&members, mc_span_string(without[i])).data);
        joined(without[i], "1", without[i]);
    }
}

static void answers(void **state)
{
    (void)state;
    joined("{ \"meta_info\" : { \"input_token_logprobs\" : [ ] , \"b\":1.50 } }", " [1,2] ,[3] ",
           "{ \"meta_info\" : { \"input_token_logprobs\" : [[1,2] ,[3] ] , \"b\":1.50 } }");
    joined("{\"meta_info\":{\"input_token_logprobs\":[[4]]}}", "[1]",
           "{\"meta_info\":{\"input_token_logprobs\":[[1],[4]]}}");
    joined("{\"meta_info\":{\"input_token_logprobs\":[[4]]}}", " ", "{\"meta_info\":{\"input_token_logprobs\":[[4]]}}");
    joined("data: {\"text\":\"]\\u00e9\",\"meta_info\":{\"input_token_logprobs\":[4]}}\r\n\r\n", "1",
           "data: {\"text\":\"]\\u00e9\",\"meta_info\":{\"input_token_logprobs\":[1,4]}}\r\n\r\n");
}

static void events(void **state)
{
    static const char text[] = "data: a\n\ndata: [DONE]\r\n\r\nrest";
    (void)state;
    for (size_t length = 0; length < strlen("data: a\n\n"); length++)
        assert_int_equal(mc_join_event(mc_span(text, length)), 0);
    assert_int_equal(mc_join_event(mc_span_string(text)), strlen("data: a\n\n"));
    assert_int_equal(mc_join_event(mc_span_string(text + 9)), strlen("data: [DONE]\r\n\r\n"));
    assert_int_equal(mc_join_event(mc_span_string("rest\n")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(answers),
        cmocka_unit_test(events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
