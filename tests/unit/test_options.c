/* base/options: every form of a flag, every kind of value at and beyond its limits, flag files, and messages that help.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct mc_option table[] = {
    {.section = "General",
     .name = "help",
     .type = MC_OPTION_BOOL,
     .initial = "false",
     .help = "help",
     .is_flag_only = true},
    {.name = "h", .type = MC_OPTION_TEXT, .initial = "", .help = "", .alias_of = "help"},
    {.name = "flagfile", .type = MC_OPTION_TEXT, .initial = "", .help = "file", .is_flag_only = true},
    {.name = "rpc_port", .type = MC_OPTION_INT, .initial = "50051", .help = "port", .minimum = 0, .maximum = 65535},
    {.name = "rpc_address", .type = MC_OPTION_TEXT, .initial = "0.0.0.0", .help = "address"},
    {.name = "big",
     .type = MC_OPTION_INT,
     .initial = "0",
     .help = "any",
     .status = MC_OPTION_ABSENT,
     .instead = "use small"},
    {.name = "ratio", .type = MC_OPTION_REAL, .initial = "0.05", .help = "ratio", .minimum = 0, .maximum = 1},
    {.name = "lease", .type = MC_OPTION_MS, .initial = "10000", .help = "lease", .minimum = 0, .maximum = 86400000},
    {.name = "ttl",
     .type = MC_OPTION_S,
     .initial = "10",
     .help = "ttl",
     .minimum = 100,
     .maximum = 86400000,
     .file_name = "live_ttl_sec"},
    {.name = "mode", .type = MC_OPTION_TEXT, .initial = "off", .help = "mode", .choices = "off|observe|enforce"},
    {.name = "store", .type = MC_OPTION_TEXT, .initial = "", .help = "store", .choices = "|local"},
    {.name = "fast", .type = MC_OPTION_BOOL, .initial = "true", .help = "fast", .status = MC_OPTION_NEEDLESS},
    {.name = "v", .type = MC_OPTION_INT, .initial = "0", .help = "detail", .minimum = 0, .maximum = 9},
};

struct file {
    const char *path, *text;
};
static const struct file files[] = {
    {"plain", "# comment\n\n  --rpc_port=7  \r\n-fast\n--rpc_address 1.2.3.4\n--nofast"},
    {"nested", "--flagfile=plain\n--rpc_port=8\n"},
    {"loop", "--flagfile=loop\n"},
    {"bad", "--rpc_port=1\n\n--rpc_port=x\n"},
    {"text", "rpc_port=1\n"},
    {"behind", "--fast=true and more\n"},
    {"trailing", "--fast junk\n"},
    {"empty", ""},
};

static char *read_stored(void *context, const char *path, size_t *length, char *error, size_t error_size)
{
    assert_ptr_equal(context, files);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (strcmp(files[i].path, path) == 0) {
            *length = strlen(files[i].text);
            char *text = malloc(*length + 1);
            assert_non_null(text);
            memcpy(text, files[i].text, *length);
            return text;
        }
    }
    snprintf(error, error_size, "no such file");
    return NULL;
}

static struct mc_options options;
static char error[MC_OPTION_ERROR_MAX];

/* Parses a NULL-terminated list. */
static int parse(const char *const *arguments)
{
    char *argv[16] = {(char *)(uintptr_t) "program"};
    int argc = 1;
    mc_options_free(&options);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    for (; arguments[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    error[0] = 0;
    return mc_options_parse(&options, argc, argv, read_stored, (void *)(uintptr_t)files, error, sizeof(error));
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})
#define REFUSED(text, ...)                                                                                             \
    do {                                                                                                               \
        assert_int_equal(PARSE(__VA_ARGS__), MC_ERR_INVALID_PARAMS);                                                   \
        assert_string_equal(error, text);                                                                              \
    } while (0)

static void defaults_without_arguments(void **state)
{
    (void)state;
    assert_int_equal(parse((const char *const[]){NULL}), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 50051);
    assert_string_equal(mc_options_text(&options, "rpc_address"), "0.0.0.0");
    assert_int_equal(mc_options_int(&options, "ttl"), 10000);
    assert_true(mc_options_bool(&options, "fast"));
    assert_int_equal(mc_options_source(&options, "fast"), MC_OPTION_FROM_DEFAULT);
    for (size_t i = 0; i < options.count; i++)
        assert_false(mc_options_changed(&options, i));
}

static void every_form_of_a_flag(void **state)
{
    (void)state;
    static const char *const forms[][3] = {{"--rpc_port=9", NULL},   {"--rpc_port", "9", NULL},
                                           {"-rpc_port=9", NULL},    {"-rpc_port", "9", NULL},
                                           {"--rpc-port=0x9", NULL}, {"--rpc-port", "+9", NULL}};
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        assert_int_equal(parse(forms[i]), 0);
        assert_int_equal(mc_options_int(&options, "rpc_port"), 9);
        assert_int_equal(mc_options_source(&options, "rpc_port"), MC_OPTION_FROM_FLAG);
    }
    assert_int_equal(PARSE("-v=1"), 0);
    assert_int_equal(mc_options_int(&options, "v"), 1);
    assert_int_equal(PARSE("--rpc_port=1", "--rpc_port=2", "--"), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 2);
    assert_int_equal(PARSE("--rpc_address="), 0);
    assert_string_equal(mc_options_text(&options, "rpc_address"), "");
    assert_int_equal(PARSE("--rpc_address=a=b", "-h"), 0);
    assert_string_equal(mc_options_text(&options, "rpc_address"), "a=b");
    assert_true(mc_options_bool(&options, "help"));
}

static void booleans(void **state)
{
    (void)state;
    static const char *const yes[][3] = {
        {"--fast", NULL}, {"-fast", NULL}, {"--fast=1", NULL}, {"--fast=Yes", NULL}, {"--fast", "true", NULL}};
    static const char *const no[][3] = {
        {"--nofast", NULL}, {"-nofast", NULL}, {"--fast=0", NULL}, {"--fast=FALSE", NULL}, {"--fast", "false", NULL}};
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        assert_int_equal(parse(yes[i]), 0);
        assert_true(mc_options_bool(&options, "fast"));
        assert_int_equal(parse(no[i]), 0);
        assert_false(mc_options_bool(&options, "fast"));
    }
    REFUSED("--fast: bad value 'maybe'; allowed: true or false", "--fast=maybe");
    REFUSED("unexpected argument 'maybe'; every option is a flag such as --name=value", "--fast", "maybe");
    REFUSED("unknown flag --nofast; did you mean --fast?", "--nofast=true");
    assert_int_equal(PARSE("--norpc_port"), MC_ERR_INVALID_PARAMS);
}

static void values_at_their_limits(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        int64_t value; /* -1: refused */
    } cases[] = {
        {"--rpc_port=0", 0},
        {"--rpc_port=65535", 65535},
        {"--rpc_port=65536", -1},
        {"--rpc_port=-1", -1},
        {"--rpc_port=", -1},
        {"--rpc_port=1x", -1},
        {"--rpc_port= 1", -1},
        {"--rpc_port=0x", -1},
        {"--rpc_port=--1", -1},
        {"--rpc_port=1.0", -1},
        {"--big=9223372036854775807", INT64_MAX},
        {"--big=9223372036854775808", -1},
        {"--rpc_port=99999999999999999999999", -1},
        {"--lease=0", 0},
        {"--lease=500", 500},
        {"--lease=500ms", 500},
        {"--lease=5s", 5000},
        {"--lease=30m", 1800000},
        {"--lease=1h", 3600000},
        {"--lease=24h", 86400000},
        {"--lease=25h", -1},
        {"--lease=5 s", -1},
        {"--lease=5d", -1},
        {"--lease=s", -1},
        {"--lease=-5s", -1},
        {"--lease=9223372036854775807h", -1},
        {"--lease=1.5s", -1},
        {"--ttl=1", 1000},
        {"--ttl=100ms", 100},
        {"--ttl=99ms", -1},
        {"--ttl=0", -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[32];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(cases[i].flag + 2, "="), cases[i].flag + 2);
        assert_int_equal(PARSE(cases[i].flag), cases[i].value == -1 ? MC_ERR_INVALID_PARAMS : 0);
        if (cases[i].value != -1)
            assert_int_equal(mc_options_int(&options, name), cases[i].value);
    }
    static const char *const reals[] = {"--ratio=0", "--ratio=1", "--ratio=.5", "--ratio=1e-3"};
    static const char *const bad_reals[] = {"--ratio=1.01", "--ratio=-0.1", "--ratio=nan", "--ratio=inf",
                                            "--ratio=",     "--ratio=0.5x", "--ratio= 1"};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
        assert_int_equal(PARSE(reals[i]), 0);
    assert_true(mc_options_real(&options, "ratio") > 0.0009 && mc_options_real(&options, "ratio") < 0.0011);
    for (size_t i = 0; i < sizeof(bad_reals) / sizeof(bad_reals[0]); i++)
        assert_int_equal(PARSE(bad_reals[i]), MC_ERR_INVALID_PARAMS);
    assert_int_equal(PARSE("--mode=enforce", "--store="), 0);
    assert_int_equal(PARSE("--mode="), MC_ERR_INVALID_PARAMS);
    assert_int_equal(PARSE("--mode=off|observe"), MC_ERR_INVALID_PARAMS);
    assert_int_equal(PARSE("--mode=of"), MC_ERR_INVALID_PARAMS);
}

static void messages_say_what_to_do(void **state)
{
    (void)state;
    REFUSED("unknown flag --rcp_port; did you mean --rpc_port?", "--rcp_port=1");
    REFUSED("unknown flag --rpc-prot; did you mean --rpc_port?", "--rpc-prot", "1");
    REFUSED("unknown flag --zzzzzz; --help lists all", "--zzzzzz");
    REFUSED("unknown flag --; --help lists all", "--=");
    REFUSED("--rpc_port: bad value '70000'; allowed: a whole number from 0 to 65535", "--rpc_port=70000");
    REFUSED("--mode: bad value 'on'; allowed: one of off|observe|enforce", "--mode=on");
    REFUSED("--ttl: bad value 'x'; allowed: a duration such as 10 (s), 500ms, 5s, 30m, 1h, from 100ms to 24h",
            "--ttl=x");
    REFUSED("flag --rpc_port needs a value; allowed: a whole number from 0 to 65535", "--rpc_port");
    REFUSED("flag --rpc_address needs a value; allowed: text of up to 4095 bytes", "--rpc_address", "--fast");
    REFUSED("unexpected argument 'start'; every option is a flag such as --name=value", "start");
    REFUSED("unexpected argument '-'; every option is a flag such as --name=value", "-");
    REFUSED("unexpected argument '--fast'; every option is a flag such as --name=value", "--", "--fast");
    REFUSED("--rpc_port: bad value '1?2?'; allowed: a whole number from 0 to 65535", "--rpc_port=1\n2\x1b");
}

static void long_words_do_no_harm(void **state)
{
    (void)state;
    static char name[9000], value[9000];
    memset(name, 'a', sizeof(name) - 1);
    memcpy(name, "--", 2);
    assert_int_equal(PARSE(name), MC_ERR_INVALID_PARAMS);
    assert_true(strlen(error) < 200);
    memset(value, 'b', sizeof(value) - 1);
    memcpy(value, "--rpc_address=", 14);
    assert_int_equal(PARSE(value), MC_ERR_INVALID_PARAMS);
    value[14 + 4095] = 0;
    assert_int_equal(PARSE(value), 0);
    assert_int_equal(strlen(mc_options_text(&options, "rpc_address")), 4095);
}

static void flag_files(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--rpc_port=1", "--flagfile=plain"), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 7);
    assert_false(mc_options_bool(&options, "fast"));
    assert_string_equal(mc_options_text(&options, "rpc_address"), "1.2.3.4");
    assert_int_equal(PARSE("--flagfile", "plain", "--rpc_port=1"), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 1);
    assert_int_equal(PARSE("--flagfile=nested"), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 8);
    assert_int_equal(PARSE("--flagfile=empty"), 0);
    REFUSED("--flagfile absent: no such file", "--flagfile=absent");
    REFUSED("bad:3: --rpc_port: bad value 'x'; allowed: a whole number from 0 to 65535", "--flagfile=bad");
    REFUSED("text:1: a line must be a flag such as --rpc_port=50051 or a # comment", "--flagfile=text");
    REFUSED("trailing:1: unexpected 'junk' behind the flag", "--flagfile=trailing");
    assert_int_equal(PARSE("--flagfile=behind"), MC_ERR_INVALID_PARAMS);
    assert_int_equal(PARSE("--flagfile=loop"), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "nested too deep"));
}

static void the_stronger_source_wins(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--rpc_port=5", "--rpc_address=flag"), 0);
    size_t port = (size_t)mc_options_find(&options, "rpc_port"),
           address = (size_t)mc_options_find(&options, "rpc_address");
    assert_int_equal(mc_options_set(&options, port, "6", MC_OPTION_FROM_FILE, "f:1: ", error, sizeof(error)), 0);
    assert_int_equal(mc_options_set(&options, address, "file", MC_OPTION_FROM_FILE, "f:1: ", error, sizeof(error)), 0);
    assert_int_equal(mc_options_int(&options, "rpc_port"), 5);
    assert_string_equal(mc_options_text(&options, "rpc_address"), "flag");
    assert_int_equal(mc_options_set(&options, port, "x", MC_OPTION_FROM_FILE, "f:1: ", error, sizeof(error)),
                     MC_ERR_INVALID_PARAMS);
    assert_string_equal(error, "f:1: rpc_port: bad value 'x'; allowed: a whole number from 0 to 65535");
    assert_true(mc_options_changed(&options, port));
    assert_int_equal(mc_options_find(&options, "live_ttl_sec"), mc_options_find(&options, "ttl"));
    assert_int_equal(mc_options_find(&options, "h"), mc_options_find(&options, "help"));
    assert_int_equal(mc_options_find(&options, ""), -1);
}

static void help_and_print(void **state)
{
    (void)state;
    struct mc_buffer text = {0};
    assert_int_equal(PARSE("--rpc_address=a\"b\\c\x01", "--ttl=1500ms"), 0);
    mc_options_help(&options, true, &text);
    mc_buffer_put_u8(&text, 0);
    for (size_t i = 0; i < options.count; i++) {
        char wanted[64];
        snprintf(wanted, sizeof(wanted), "  --%s  ", table[i].name);
        assert_non_null(strstr((const char *)text.data, wanted));
    }
    assert_non_null(strstr((const char *)text.data, "--big  any [not here: use small]"));
    assert_non_null(strstr((const char *)text.data, "--fast  fast [accepted, no effect here]"));
    text.length = 0;
    mc_options_help(&options, false, &text);
    mc_buffer_put_u8(&text, 0);
    assert_null(strstr((const char *)text.data, "--big"));
    assert_null(strstr((const char *)text.data, "--fast"));
    assert_non_null(strstr((const char *)text.data, "--rpc_address  "));
    assert_non_null(strstr((const char *)text.data, " more flags are accepted and change nothing: --helpfull"));
    text.length = 0;
    mc_options_print(&options, &text);
    mc_buffer_put_u8(&text, 0);
    assert_non_null(strstr((const char *)text.data, "rpc_address: \"a\\\"b\\\\c\\x01\" # flag\n"));
    assert_non_null(strstr((const char *)text.data, "ttl: 1500ms # flag\n"));
    assert_non_null(strstr((const char *)text.data, "ratio: 0.05 # default\n"));
    assert_null(strstr((const char *)text.data, "flagfile"));
    mc_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_without_arguments),
        cmocka_unit_test(every_form_of_a_flag),
        cmocka_unit_test(booleans),
        cmocka_unit_test(values_at_their_limits),
        cmocka_unit_test(messages_say_what_to_do),
        cmocka_unit_test(long_words_do_no_harm),
        cmocka_unit_test(flag_files),
        cmocka_unit_test(the_stronger_source_wins),
        cmocka_unit_test(help_and_print),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mc_options_free(&options);
    return failed;
}
