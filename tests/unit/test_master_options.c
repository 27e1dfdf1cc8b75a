/* master/options: config files in both forms, what overrides what, and what follows from the values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/file.h"
#include "env/log.h"
#include "store/core/policy.h"
#include "store/master/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct mc_options options;
static struct mc_master_config config;
static char error[MC_OPTION_ERROR_MAX];

static int apply(enum mc_config_format format, const char *text)
{
    mc_options_free(&options);
    mc_master_options_init(&options);
    error[0] = 0;
    return mc_master_options_apply(&options, format, text, strlen(text), "f", error, sizeof(error));
}

static int load(const char *const *arguments)
{
    char *argv[16] = {(char *)(uintptr_t) "program"};
    struct mc_buffer text = {0};
    int argc = 1;
    for (; arguments[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    error[0] = 0;
    int rc = mc_master_config_load(argc, argv, &config, &text, error, sizeof(error));
    assert_true((rc == 1) == (text.length > 0));
    mc_buffer_free(&text);
    return rc;
}
#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

static void yaml_files(void **state)
{
    (void)state;
    assert_int_equal(apply(MC_CONFIG_YAML, ""), 0);
    assert_int_equal(apply(MC_CONFIG_YAML, "# nothing\n"), 0);
    assert_int_equal(apply(MC_CONFIG_YAML,
                           "rpc_port: 123\nrpc_address: '::1'\neviction_ratio: 0.25\nenable_ha: no\n"
                           "client_live_ttl_sec: 20\ndefault_kv_lease_ttl: 5s\ncluster_id:\nrpc_interface: ~\n"),
                     0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 123);
    assert_string_equal(mc_options_text(&options, "rpc_address"), "::1");
    assert_int_equal(mc_options_int(&options, "client_ttl"), 20000);
    assert_int_equal(mc_options_int(&options, "default_kv_lease_ttl"), 5000);
    assert_string_equal(mc_options_text(&options, "cluster_id"), "mooncake_cluster");
    assert_int_equal(mc_options_source(&options, "rpc_port"), MC_OPTION_FROM_FILE);
}

static void yaml_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"rpc_port: 1\nmetrics_port: x\n", "f:2: metrics_port: bad value 'x'; allowed: a whole number from 0 to 65535"},
        {"- rpc_port\n", "f:1: a list is not a possible value here"},
        {"just text\n", "f:1: a list of 'name: value' lines is expected"},
        {"rpc_port: [1]\n", "f:1: a list is not a possible value here"},
        {"a: &x 1\nrpc_port: *x\n", "f:2: aliases are not supported"},
        {"rpc_port: 1\n---\nrpc_port: 2\n", "f:2: a second document in one file"},
        {"? {a: b}\n: c\n", "f:1: a map cannot be a name"},
        {"rpc_address: \"a\\0b\"\n", "f:1: a value holds a zero byte"},
        {"{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{", NULL},
        {"a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}}}}}}}}}}\n",
         "f:1: nested too deep"},
        {"rpc_port: \"1\n", NULL},
        {"\xff\xfe\xff", NULL},
        {"\"\": 1\n", "f:1: this name is not possible"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(apply(MC_CONFIG_YAML, cases[i].text), MC_ERR_INVALID_PARAMS);
        if (cases[i].error != NULL)
            assert_string_equal(error, cases[i].error);
        assert_true(strncmp(error, "f:", 2) == 0);
    }
    /* Unknown names, nested or not, are only warned about. */
    assert_int_equal(
        apply(MC_CONFIG_YAML, "rcp_port: 1\nrpc:\n  port: 5\n  deeper: {x: 1}\nmetrics_port: 4\nhelp: true\n"), 0);
    assert_int_equal(mc_options_int(&options, "metrics_port"), 4);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 50051);
    assert_false(mc_options_bool(&options, "help"));
}

static void json_files(void **state)
{
    (void)state;
    assert_int_equal(apply(MC_CONFIG_JSON,
                           "{\"rpc_port\": 123, \"enable_ha\": false, \"eviction_ratio\": 0.25, \"cluster_id\": null,"
                           "\"metrics_port\": \"77\", \"default_kv_lease_ttl\": \"5s\", \"group\": {\"x\": 1}}"),
                     0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 123);
    assert_int_equal(mc_options_int(&options, "metrics_port"), 77);
    assert_int_equal(mc_options_int(&options, "default_kv_lease_ttl"), 5000);
    assert_true(mc_options_real(&options, "eviction_ratio") > 0.2499 &&
                mc_options_real(&options, "eviction_ratio") < 0.2501);
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", NULL},
        {"[]", "f:1: an object { \"name\": value } is expected"},
        {"{\n\"rpc_port\": }", NULL},
        {"{\"rpc_port\": 1, \"rpc_port\": 2}", NULL},
        {"{\"rpc_port\": [1]}", "f: 'rpc_port': a list is not possible"},
        {"{\"rpc_port\": -1}", "f: rpc_port: bad value '-1'; allowed: a whole number from 0 to 65535"},
        {"{\"rpc_port\": 1.5}", "f: rpc_port: bad value '1.5'; allowed: a whole number from 0 to 65535"},
        {"{\"\": 1}", "f: a name is not possible"},
        {"{\"rpc_address\": \"a\\u0000b\"}", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(apply(MC_CONFIG_JSON, cases[i].text), MC_ERR_INVALID_PARAMS);
        if (cases[i].error != NULL)
            assert_string_equal(error, cases[i].error);
    }
    assert_int_equal(apply(MC_CONFIG_JSON, "{\n\n\"rpc_port\" 5}"), MC_ERR_INVALID_PARAMS);
    assert_true(strncmp(error, "f:3: ", 5) == 0);
}

static void too_much_is_refused(void **state)
{
    (void)state;
    struct mc_buffer text = {0};
    for (int i = 0; i <= (int)MC_CONFIG_KEYS_MAX; i++)
        mc_buffer_printf(&text, "rpc_port: %d\n", i);
    mc_buffer_put_u8(&text, 0);
    assert_int_equal(apply(MC_CONFIG_YAML, (const char *)text.data), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "more settings"));
    text.length = 0;
    for (int i = 0; i < 3000; i++)
        mc_buffer_printf(&text, "{\"a\":");
    mc_buffer_put_u8(&text, 0);
    assert_int_equal(apply(MC_CONFIG_JSON, (const char *)text.data), MC_ERR_INVALID_PARAMS);
    mc_buffer_free(&text);
}

static void which_port_is_used(void **state)
{
    (void)state;
    assert_int_equal(load((const char *const[]){NULL}), 0);
    assert_int_equal(config.rpc_port, 50051);
    assert_int_equal(config.metrics_port, 9003);
    assert_string_equal(config.rpc_address, "0.0.0.0");
    assert_int_equal(LOAD("--port", "50001"), 0);
    assert_int_equal(config.rpc_port, 50001);
    assert_int_equal(LOAD("--port=1", "--rpc_port=2"), 0);
    assert_int_equal(config.rpc_port, 2);
    assert_int_equal(LOAD("--rpc_port=0"), 0);
    assert_int_equal(config.rpc_port, 0);
    assert_int_equal(LOAD("--rpc_interface=lo"), 0);
    assert_string_equal(config.rpc_address, "127.0.0.1");
    assert_int_equal(LOAD("--rpc_interface=lo", "--rpc_address=0.0.0.0"), 0);
    assert_string_equal(config.rpc_address, "0.0.0.0");
    assert_int_equal(LOAD("--rpc_interface=none9"), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "no interface 'none9'"));
}

static void when_the_metadata_server_runs(void **state)
{
    (void)state;
    assert_int_equal(load((const char *const[]){NULL}), 0);
    assert_false(config.metadata_enabled);
    assert_int_equal(LOAD("--enable_http_metadata_server=true"), 0);
    assert_true(config.metadata_enabled);
    assert_int_equal(LOAD("--http_metadata_server_port=8080"), 0);
    assert_true(config.metadata_enabled);
    assert_int_equal(LOAD("--http_metadata_server_host", "127.0.0.1"), 0);
    assert_true(config.metadata_enabled);
    assert_int_equal(LOAD("--http_metadata_server_host", "127.0.0.1", "--noenable_http_metadata_server"), 0);
    assert_false(config.metadata_enabled);
}

static void what_the_core_gets(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--default_kv_lease_ttl=5s", "--client_ttl=3", "--eviction_ratio=0.5",
                          "--eviction_high_watermark_ratio=1", "--noallow_evict_soft_pinned_objects",
                          "--put_start_discard_timeout_sec=7", "--default_kv_soft_pin_ttl=1h",
                          "--max_kv_soft_pin_ttl=2h"),
                     0);
    assert_int_equal(config.core.lease_ttl_ms, 5000);
    assert_int_equal(config.core.client_ttl_ms, 3000);
    assert_int_equal(config.core.put_discard_ms, 7000);
    assert_int_equal(config.core.soft_pin_ttl_ms, 3600000);
    assert_int_equal(config.core.soft_pin_max_ms, 7200000);
    assert_false(config.core.allow_evict_soft_pinned);
    assert_true(config.core.eviction_high_watermark == 1 && config.core.eviction_ratio == 0.5);
    assert_ptr_equal(config.core.policy, mc_eviction_default());
    for (unsigned i = 0; i < 3; i++) {
        static const char *const flags[] = {"--eviction_policy=lru", "--eviction_policy=clock",
                                            "--eviction_policy=s3fifo"};
        assert_int_equal(LOAD(flags[i]), 0);
        assert_string_equal(config.core.policy->name, strchr(flags[i], '=') + 1);
        assert_true(config.core.eviction_high_watermark == 1 && config.core.eviction_ratio == 0);
    }
    assert_int_equal(LOAD("--eviction_policy=fifo"), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "s3fifo|clock|lru"));
    assert_int_equal(LOAD("--put_start_discard_timeout_sec=600"), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "must be less than"));
    assert_int_equal(LOAD("--default_kv_soft_pin_ttl=2h", "--max_kv_soft_pin_ttl=1h"), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "must not be more than"));
    assert_int_equal(LOAD("-v=1", "--minloglevel=2"), 0);
    assert_int_equal(config.log_level, MC_LOG_DEBUG);
    mc_log_set_level(MC_LOG_ERROR);
}

static void disks_under_a_root(void **state)
{
    (void)state;
    assert_int_equal(LOAD("--rpc_port=1"), 0);
    assert_true(config.core.disk_path[0] == 0 && config.core.offload == MC_OFFLOAD_NEVER);
    assert_int_equal(LOAD("--root_fs_dir=/mnt/shared//"), 0);
    assert_string_equal(config.core.disk_path, "/mnt/shared/mooncake_cluster");
    assert_true(config.core.offload == MC_OFFLOAD_ON_PUT);
    assert_true(config.core.disk_bytes == 0 && !config.core.disk_keeps);
    assert_int_equal(LOAD("--root_fs_dir=/", "--cluster_id=a", "--quota_bytes=5", "--noenable_disk_eviction"), 0);
    assert_string_equal(config.core.disk_path, "/a");
    assert_true(config.core.disk_bytes == 5 && config.core.disk_keeps);
    assert_int_equal(LOAD("--root_fs_dir=/x", "--quota_bytes=5", "--global_file_segment_size=4"), 0);
    assert_int_equal(config.core.disk_bytes, 4);
    assert_int_equal(LOAD("--quota_bytes=5", "--noenable_disk_eviction"), 0); /* a warning: they speak of the root's */
    assert_true(config.core.disk_bytes == 0 && config.core.offload == MC_OFFLOAD_NEVER);
    assert_int_equal(LOAD("--root_fs_dir=/x", "--enable_offload"), 0); /* a warning */
    assert_true(config.core.offload == MC_OFFLOAD_ON_PUT);
    assert_int_equal(LOAD("--root_fs_dir=/x", "--offload_on_evict"), 0);
    assert_true(config.core.offload == MC_OFFLOAD_ON_EVICT);
    assert_int_equal(LOAD("--offload_on_evict"), 0);
    assert_true(config.core.offload == MC_OFFLOAD_NEVER);
    static const char *const wrong[][2] = {{"--root_fs_dir=x", "absolute"},
                                           {"--root_fs_dir=/a/../b", "absolute"},
                                           {"--root_fs_dir=/a/..", "absolute"},
                                           {"--root_fs_dir=moon_x", "absolute"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(LOAD(wrong[i][0]), MC_ERR_INVALID_PARAMS);
        assert_non_null(strstr(error, wrong[i][1]));
    }
    static const char *const clusters[] = {"--cluster_id=a/b", "--cluster_id=..", "--cluster_id="};
    for (size_t i = 0; i < sizeof(clusters) / sizeof(clusters[0]); i++) {
        assert_int_equal(LOAD("--root_fs_dir=/x", clusters[i]), MC_ERR_INVALID_PARAMS);
        assert_non_null(strstr(error, "--cluster_id"));
        assert_int_equal(LOAD(clusters[i]), 0);
    }
    char much[1024] = "--root_fs_dir=/";
    memset(much + strlen(much), 'x', sizeof(much) - strlen(much) - 1);
    much[sizeof(much) - 1] = 0;
    assert_int_equal(LOAD(much), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "too long"));
}

static void files_by_path(void **state)
{
    (void)state;
    char path[] = "/tmp/mc_test_options_XXXXXX.yaml", flag[64];
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "rpc_port: 5\nport: 6\nmetrics_port: 7\n", 36), 36);
    close(fd);
    snprintf(flag, sizeof(flag), "--config_path=%s", path);
    assert_int_equal(LOAD(flag, "--metrics_port=8"), 0);
    assert_int_equal(config.rpc_port, 5);
    assert_int_equal(config.metrics_port, 8);
    assert_int_equal(LOAD(flag, "--port=9"), 0);
    assert_int_equal(config.rpc_port, 9); /* the older name on the command line is still more explicit than the file */
    assert_int_equal(LOAD(flag, "--print_config"), 1);
    assert_int_equal(truncate(path, MC_FILE_TEXT_MAX + 1), 0);
    assert_true(LOAD(flag) < 0);
    assert_non_null(strstr(error, "longer than"));
    unlink(path);
    assert_true(LOAD(flag) < 0);
    assert_non_null(strstr(error, "No such file"));
    assert_true(LOAD("--config_path=/tmp") < 0);
    assert_non_null(strstr(error, ".yaml, .yml or .json"));
    assert_int_equal(LOAD("--help"), 1);
    assert_int_equal(LOAD("--version", "--config_path=/nonexistent.yaml"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_files),         cmocka_unit_test(yaml_mistakes),
        cmocka_unit_test(json_files),         cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(which_port_is_used), cmocka_unit_test(when_the_metadata_server_runs),
        cmocka_unit_test(what_the_core_gets), cmocka_unit_test(files_by_path),
        cmocka_unit_test(disks_under_a_root),
    };
    mc_log_set_level(MC_LOG_ERROR);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mc_options_free(&options);
    return failed;
}
