/* proxy/options: the command lines of three proxies, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "proxy/options.h"

#include <stdio.h>
#include <stdlib.h>

static struct mc_proxy_config config;
static char error[MC_OPTION_ERROR_MAX];

static int load(const char *const *arguments)
{
    char *argv[32] = {(char *)(uintptr_t) "program"};
    struct mc_buffer text = {0};
    int argc = 1;
    for (; arguments[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    error[0] = 0;
    int rc = mc_proxy_config_load(argc, argv, &config, &text, error, sizeof(error));
    assert_true((rc == 1) == (text.length > 0));
    assert_true((rc < 0) == (error[0] != 0));
    mc_buffer_free(&text);
    return rc;
}
#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

static void lists(void **state)
{
    (void)state;
    /* As the documents of vLLM with a store write it. */
    assert_int_equal(LOAD("--model", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "--prefill", "localhost:8100",
                          "localhost:8101", "--decode", "localhost:8200", "localhost:8201", "--port", "8000",
                          "--scheduling", "round_robin"),
                     0);
    assert_int_equal(config.prefill_count, 2);
    assert_int_equal(config.decode_count, 2);
    assert_string_equal(config.prefill[1].name, "localhost:8101");
    assert_int_equal(config.prefill[0].mode, MC_PROXY_STORE);
    assert_string_equal(config.policy->name, "round_robin");
    assert_int_equal(config.port, 8000);
    assert_string_equal(config.model, "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4");
    assert_int_equal(LOAD("-m", "x", "-p", "a:1", "b:2", "-d", "c:3", "--roundrobin", "--generator_on_p_node"), 0);
    assert_int_equal(config.prefill_count, 2);
    assert_string_equal(config.host, "0.0.0.0");
    assert_int_equal(LOAD("--prefill=a:1,b:2", "--decode=c:3", "--scheduling=least_loaded"), 0);
    assert_int_equal(config.prefill_count, 2);
    assert_string_equal(config.policy->name, "least_loaded");
    assert_int_equal(LOAD("--decode", "c:3"), 0);
    assert_int_equal(config.prefill_count, 0);
}

static void urls(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--prefill", "http://192.168.0.2:8010", "--decode", "http://192.168.0.3:8020"), 0);
    assert_int_equal(config.prefill[0].mode, MC_PROXY_CONCURRENT);
    assert_int_equal(config.prefill[0].bootstrap_port, 8998);
    assert_string_equal(config.prefill[0].name, "192.168.0.2:8010");
    assert_int_equal(LOAD("--prefill", "http://a:1/", "9000", "--prefill", "HTTP://b", "none", "--prefill", "c:3", "7",
                          "--decode", "http://[::1]:5"),
                     0);
    assert_int_equal(config.prefill_count, 3);
    assert_int_equal(config.prefill[0].bootstrap_port, 9000);
    assert_int_equal(config.prefill[1].bootstrap_port, 8998);
    assert_int_equal(config.prefill[1].port, 80);
    assert_int_equal(config.prefill[2].bootstrap_port, 7);
    assert_int_equal(config.prefill[2].mode, MC_PROXY_CONCURRENT);
    assert_string_equal(config.decode[0].host, "::1");
    assert_string_equal(config.decode[0].name, "[::1]:5");
    assert_int_equal(LOAD("--prefill", "HTTPS://a/", "7", "--decode", "https://[::1]:5", "c:3"), 0);
    assert_string_equal(config.prefill[0].name, "a:443");
    assert_int_equal(config.prefill[0].mode, MC_PROXY_CONCURRENT);
    assert_true(config.prefill[0].is_tls && config.decode[0].is_tls && !config.decode[1].is_tls);
    assert_int_equal(LOAD("--mode", "sequential", "--prefill", "http://a:1", "b:1", "--decode", "c:1"), 0);
    assert_int_equal(config.prefill[0].mode, MC_PROXY_SEQUENTIAL);
    assert_int_equal(config.prefill[1].mode, MC_PROXY_SEQUENTIAL);
}

static void rooms(void **state)
{
    (void)state;
    /* As SGLang's documents write it for its router. */
    assert_int_equal(LOAD("--pd-disaggregation", "--prefill", "http://127.0.0.1:30000", "9001", "--prefill",
                          "http://127.0.0.1:30002", "none", "--decode", "http://127.0.0.1:30001", "--host", "0.0.0.0",
                          "--port", "8000", "--mini-lb"),
                     0);
    assert_int_equal(config.mode, MC_PROXY_ROOM);
    assert_int_equal(config.prefill_count, 2);
    assert_int_equal(config.prefill[0].mode, MC_PROXY_ROOM);
    assert_int_equal(config.prefill[0].bootstrap_port, 9001);
    assert_int_equal(config.prefill[1].bootstrap_port, 8998);
    assert_int_equal(LOAD("--mode=room", "--prefill", "a:1", "--decode", "b:1"), 0);
    assert_int_equal(config.prefill[0].mode, MC_PROXY_ROOM);
    assert_string_equal(mc_proxy_mode_name(MC_PROXY_ROOM), "room");
}

static void pairs(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--prefiller-hosts", "a", "::1", "--prefiller-ports", "1", "2", "--decoder-host", "c",
                          "--decoder-port", "3"),
                     0);
    assert_int_equal(config.prefill_count, 2);
    assert_string_equal(config.prefill[1].name, "[::1]:2");
    assert_int_equal(config.prefill[1].mode, MC_PROXY_SEQUENTIAL);
    assert_true(LOAD("--prefiller-hosts", "a", "b", "--prefiller-ports", "1", "--decode", "c:1") < 0);
    assert_true(LOAD("--prefiller-ports", "1", "--decode", "c:1") < 0);
}

static void wrong(void **state)
{
    static const char *const words[] = {"x",       "x:0",           "x:65536",  "x:-1",  ":1",
                                        "http://", "http://:1",     "https://", "a b:1", "x:1y",
                                        "9000",    "http://x:1/v1", "x\r\ny:1", "none"};
    char many[MC_PROXY_INSTANCES_MAX * 16] = "", name[300];
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        assert_true(LOAD("--decode", words[i]) < 0);
    assert_true(LOAD("--port", "1") < 0);
    assert_true(LOAD("--decode") < 0);
    assert_true(LOAD("--decode", "--port", "1") < 0);
    assert_true(LOAD("--decode", "a:1", "a:1") < 0);
    assert_true(LOAD("--decode", "a:1", "--prefill", "a:1", "0") < 0);
    assert_true(LOAD("--decode", "a:1", "--prefill", "a:1", "65536") < 0);
    assert_true(LOAD("--decode", "a:1", "--scheduling", "x") < 0);
    assert_true(LOAD("--decode", "a:1", "--nothing") < 0);
    memset(name, 'a', sizeof(name));
    memcpy(name + sizeof(name) - 3, ":1", 3);
    assert_true(LOAD("--decode", name) < 0);
    memset(many, 'm', sizeof(config.model));
    many[sizeof(config.model)] = 0;
    assert_true(LOAD("--decode", "a:1", "--model", many) < 0);
    assert_int_equal(LOAD("--decode", "a:1", "--model", many + 1), 0);
    many[0] = 0;
    for (int i = 0; i <= MC_PROXY_INSTANCES_MAX; i++)
        sprintf(many + strlen(many), "h:%d,", i + 1);
    assert_true(LOAD("--decode", many) < 0);
}

static void shown(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--help"), 1);
    assert_int_equal(LOAD("--version"), 1);
    assert_int_equal(LOAD("--decode", "a:1", "--print_config"), 1);
}

static void keys(void **state)
{
    char long_key[MC_PROXY_KEY_MAX + 1];
    (void)state;
    assert_int_equal(setenv("ADMIN_API_KEY", "k", 1), 0);
    assert_int_equal(LOAD("--decode", "a:1"), 0);
    assert_string_equal(config.admin_key, "k");
    assert_int_equal(setenv("ADMIN_API_KEY", "k\nX: y", 1), 0);
    assert_true(LOAD("--decode", "a:1") < 0);
    memset(long_key, 'k', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = 0;
    assert_int_equal(setenv("ADMIN_API_KEY", long_key, 1), 0);
    assert_true(LOAD("--decode", "a:1") < 0);
    assert_int_equal(unsetenv("ADMIN_API_KEY"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists), cmocka_unit_test(urls),  cmocka_unit_test(rooms), cmocka_unit_test(pairs),
        cmocka_unit_test(wrong), cmocka_unit_test(shown), cmocka_unit_test(keys),
    };
    (void)unsetenv("ADMIN_API_KEY");
    (void)unsetenv("OPENAI_API_KEY");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
