/* env/spans: what is made, what is written, and what a collector that does not answer costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/spans.h"
#include "env/spans_otlp.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static char path[64], setting[80];

static void begin(const char *traces)
{
    snprintf(path, sizeof(path), "/tmp/mc-spans-%d", (int)getpid());
    snprintf(setting, sizeof(setting), "file:%s", path);
    (void)unlink(path);
    setenv("MC_TRACES", traces != NULL ? traces : setting, 1);
    mc_spans_start("a test");
}

static char *contents(void)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
    if (file != NULL)
        fclose(file);
    text[length] = 0;
    return text;
}

static int reset(void **state)
{
    (void)state;
    unsetenv("MC_TRACES");
    unsetenv("MC_TRACES_KEYS");
    unsetenv("MC_TRACES_RATE");
    unsetenv("TRACEPARENT");
    unsetenv("OTEL_SDK_DISABLED");
    unsetenv("OTEL_TRACES_EXPORTER");
    unsetenv("OTEL_SERVICE_NAME");
    unsetenv("OTEL_RESOURCE_ATTRIBUTES");
    unsetenv("OTEL_EXPORTER_OTLP_ENDPOINT");
    unsetenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    unsetenv("OTEL_EXPORTER_OTLP_HEADERS");
    unsetenv("OTEL_EXPORTER_OTLP_CERTIFICATE");
    unsetenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE");
    mc_trace_enter(NULL);
    (void)unlink(path);
    return 0;
}

static void nothing_is_made_unless_it_is_asked_for(void **state)
{
    (void)state;
    mc_trace_enter_text(PARENT);
    setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1", 1); /* what an engine has for itself */
    setenv("TRACEPARENT", PARENT, 1);
    mc_spans_start("a test");
    assert_false(mc_traces_are_on());
    assert_null(mc_traced_call("call"));
    mc_spans_end();
    static const char *const off[][2] = {
        {"OTEL_SDK_DISABLED", "true"}, {"OTEL_TRACES_EXPORTER", "none"}, {"MC_TRACES", "none"}, {"MC_TRACES", "what"}};
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        setenv("MC_TRACES", "otlp", 1);
        setenv(off[i][0], off[i][1], 1);
        mc_spans_start("a test");
        assert_false(mc_traces_are_on());
        mc_spans_end();
        unsetenv(off[i][0]);
    }
}

static void a_file_gets_spans_with_their_parents(void **state)
{
    struct mc_span id;
    char trace[40];
    (void)state;
    setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,a=first,a=b%2Cc,process.pid=7,bad,=x", 1);
    setenv("OTEL_SERVICE_NAME", "mine", 1);
    setenv("MC_TRACES_KEYS", "key", 1);
    begin(NULL);
    assert_true(mc_traces_are_on());
    mc_trace_enter_text(PARENT);
    struct mc_traced *call = mc_traced_call("call");
    assert_non_null(call);
    assert_int_equal(mc_trace_now().span, call->self.span);
    mc_traced_key(call, "a\"key\n", 6);
    call->bytes = 5;
    struct mc_traced *part = mc_traced_begin("part");
    assert_int_equal(part->parent, call->self.span);
    mc_traced_end(part, MC_ERR_TRANSFER_FAIL);
    mc_traced_end(call, 0);
    assert_int_equal(mc_trace_now().span, 0xb7ad6b7169203331);
    assert_int_equal(mc_trace_inside().span, 0); /* in no call */
    mc_spans_end();
    const char *text = contents();
    size_t length = strcspn(text, "\n");
    assert_int_equal(length, strlen(text) - 1);
    struct mc_span line = mc_span(text, length);
    assert_int_equal(mc_json_find(line, "resourceSpans.0.scopeSpans.0.spans.1.traceId", &id), 1);
    snprintf(trace, sizeof(trace), "%.*s", (int)id.length, (const char *)id.data);
    assert_string_equal(trace, "0af7651916cd43dd8448eb211c80319c");
    static const char *const wanted[] = {"\"parentSpanId\":\"b7ad6b7169203331\",\"name\":\"call\",\"kind\":1,",
                                         "\"name\":\"part\",\"kind\":3,",
                                         "{\"key\":\"service.name\",\"value\":{\"stringValue\":\"mine\"}}",
                                         "{\"key\":\"a\",\"value\":{\"stringValue\":\"b,c\"}}",
                                         "{\"key\":\"mooncake.key\",\"value\":{\"stringValue\":\"a\\\"key?\"}}",
                                         "{\"key\":\"mooncake.bytes\",\"value\":{\"intValue\":\"5\"}}",
                                         "\"status\":{\"code\":2,\"message\":\"TRANSFER_FAIL\"}",
                                         "\"status\":{}"};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (strstr(text, wanted[i]) == NULL)
            fail_msg("%s is not in %s", wanted[i], text);
    assert_null(strstr(text, "\"no\""));
    assert_null(strstr(text, "\"first\""));
    assert_null(strstr(text, "\"stringValue\":\"7\""));
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}

static void what_is_not_sampled_or_of_nothing_is_not_made(void **state)
{
    (void)state;
    begin(NULL);
    assert_null(mc_traced_call("call"));
    mc_trace_enter_text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    assert_null(mc_traced_call("call"));
    mc_trace_enter_text("nonsense");
    assert_null(mc_traced_call("call"));
    assert_null(mc_traced_asked("asked", &(struct mc_trace_context){.flags = 1}));
    mc_spans_end();
    setenv("TRACEPARENT", PARENT, 1);
    begin(NULL);
    assert_null(mc_traced_begin("part")); /* of no call: what a thread does for nobody */
    mc_trace_enter_text(PARENT);
    assert_null(mc_traced_begin("part"));
    mc_trace_enter(NULL);
    mc_traced_end(mc_traced_call("call"), 0);
    mc_trace_enter_text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    assert_null(mc_traced_call("call")); /* the thread's own word is above that of the process */
    mc_spans_end();
    assert_non_null(strstr(contents(), "\"name\":\"call\""));
}

static void so_many_a_second_are_made_whoever_asks(void **state)
{
    const struct mc_trace_context parent = {{1, 2}, 3, MC_TRACE_SAMPLED};
    unsigned made = 0;
    (void)state;
    setenv("MC_TRACES_RATE", "20", 1);
    begin(NULL);
    struct mc_spans_counts before = mc_spans_counts();
    uint64_t since_ns = mc_clock_ns();
    for (unsigned i = 0; i < 1000; i++) {
        struct mc_traced *span = mc_traced_asked("asked", &parent);
        made += span != NULL;
        mc_traced_end(span, 0);
    }
    uint64_t took_ms = (mc_clock_ns() - since_ns) / 1000000;
    assert_in_range(made, 20, 21 + took_ms / 50);
    mc_spans_end();
    struct mc_spans_counts after = mc_spans_counts();
    assert_int_equal(after.sent - before.sent, made);
    assert_int_equal(after.dropped - before.dropped, 1000 - made);
}

struct asker {
    pthread_t thread;
    unsigned made;
};

static void *ask_often(void *context)
{
    const struct mc_trace_context parent = {{1, 2}, 3, MC_TRACE_SAMPLED};
    struct asker *asker = context;
    for (unsigned i = 0; i < 20000; i++) {
        struct mc_traced *span = mc_traced_asked("asked", &parent);
        asker->made += span != NULL;
        mc_traced_end(span, 0);
    }
    return NULL;
}

static void so_many_a_second_are_made_by_several_threads(void **state)
{
    struct asker askers[4] = {{.made = 0}};
    unsigned made = 0;
    (void)state;
    setenv("MC_TRACES_RATE", "20", 1);
    begin(NULL);
    uint64_t since_ns = mc_clock_ns();
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(askers[i].thread, NULL);
        made += askers[i].made;
    }
    uint64_t took_ms = (mc_clock_ns() - since_ns) / 1000000;
    assert_in_range(made, 20, 21 + took_ms / 50);
    mc_spans_end();
}

static void a_call_of_which_no_span_is_made_has_no_parts(void **state)
{
    (void)state;
    setenv("MC_TRACES_RATE", "1", 1);
    begin(NULL);
    mc_trace_enter_text(PARENT);
    mc_traced_end(mc_traced_call("call"), 0);
    assert_null(mc_traced_call("call"));
    assert_int_equal(mc_trace_inside().span, 0);
    usleep(1100000); /* there is room for a span again */
    assert_null(mc_traced_begin("part"));
    mc_spans_end();
    assert_null(strstr(contents(), "part"));
}

/* A file that takes a part of a line only: what comes later is readable. */
static void a_line_that_is_cut_off_spoils_no_other(void **state)
{
    struct rlimit before, few;
    (void)state;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    few = (struct rlimit){100, before.rlim_max};
    begin(NULL);
    mc_trace_enter_text(PARENT);
    struct mc_spans_counts counts = mc_spans_counts();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
    mc_traced_end(mc_traced_call("first"), 0);
    uint64_t end_ns = mc_clock_ns() + 20000000000u;
    while (mc_spans_counts().failed_sends == counts.failed_sends && mc_clock_ns() < end_ns)
        usleep(10000);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(mc_spans_counts().failed_sends, counts.failed_sends + 1);
    mc_traced_end(mc_traced_call("second"), 0);
    while (mc_spans_counts().sent == counts.sent && mc_clock_ns() < end_ns)
        usleep(10000);
    mc_spans_end();
    (void)signal(SIGXFSZ, handler);
    const char *second = strchr(contents(), '\n');
    assert_non_null(second);
    assert_int_equal(second - contents(), 100);
    assert_int_equal(strncmp(second + 1, "{\"resourceSpans\":", 17), 0);
    assert_non_null(strstr(second, "\"second\""));
}

/* Nobody listens there; and at the other, nobody ever answers. */
static void a_collector_that_is_away_costs_spans_and_no_time(void **state)
{
    (void)state;
    uint16_t port = 0;
    int silent = mc_tcp_listen("127.0.0.1", &port);
    char endpoint[64];
    assert_true(silent >= 0);
    for (int i = 0; i < 2; i++) {
        snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", i == 0 ? 1u : (unsigned)port);
        setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, 1);
        setenv("MC_TRACES_RATE", "1000000", 1);
        begin("otlp");
        mc_trace_enter_text(PARENT);
        struct mc_spans_counts before = mc_spans_counts();
        uint64_t since_ns = mc_clock_ns();
        for (unsigned k = 0; k < 20000; k++)
            mc_traced_end(mc_traced_call("call"), 0);
        assert_true(mc_clock_ns() - since_ns < 1500000000u); /* well below the time of one request */
        since_ns = mc_clock_ns();
        mc_spans_end();
        assert_true(mc_clock_ns() - since_ns < 6000000000u);
        struct mc_spans_counts after = mc_spans_counts();
        assert_int_equal(after.sent, before.sent);
        assert_int_equal(after.dropped - before.dropped, 20000);
    }
    close(silent);
}

#ifndef __SANITIZE_THREAD__
static void a_forked_child_makes_none_until_it_asks_itself(void **state)
{
    int status;
    (void)state;
    begin(NULL);
    mc_trace_enter_text(PARENT);
    mc_traced_end(mc_traced_call("parents"), 0);
    pid_t child = fork();
    if (child == 0) {
        bool was_on = mc_traces_are_on() || mc_traced_call("dead") != NULL;
        mc_spans_start("a child");
        mc_trace_enter_text(PARENT);
        mc_traced_end(mc_traced_call("childs"), 0);
        mc_spans_end();
        _exit(was_on ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    mc_spans_end();
    const char *text = contents(), *mine = strstr(text, "parents");
    assert_non_null(mine);
    assert_null(strstr(mine + 1, "parents")); /* the child has not sent the parent's */
    assert_non_null(strstr(text, "childs"));
    assert_null(strstr(text, "dead"));
}

#endif

static void the_environment_says_where_to(void **state)
{
    static const struct {
        const char *variable, *value, *address, *path;
    } good[] = {
        {"OTEL_EXPORTER_OTLP_ENDPOINT", "", "localhost:4318", "/v1/traces"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://host:4318", "host:4318", "/v1/traces"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT", "https://host/base/", "host:443", "/base/v1/traces"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1]:99/", "[::1]:99", "/v1/traces"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://host:1/here", "host:1", "/here"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTP://host", "host:80", "/"},
    };
    static const char *const bad[] = {"host:4318",
                                      "grpc://host:4317",
                                      "http://",
                                      "http://user:word@host",
                                      "http://host:0",
                                      "http://host/a b",
                                      "http://host/a\r\nX: y",
                                      "http://host/?token=a",
                                      "http://host#a"};
    struct mc_otlp otlp = {.is_tls = false};
    char error[320], agent[80];
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        setenv(good[i].variable, good[i].value, 1);
        assert_int_equal(mc_otlp_target(&otlp, error, sizeof(error)), 0);
        assert_string_equal(otlp.address, good[i].address);
        assert_string_equal(otlp.path, good[i].path);
        mc_otlp_free(&otlp);
    }
    unsetenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("OTEL_EXPORTER_OTLP_ENDPOINT", bad[i], 1);
        assert_int_equal(mc_otlp_target(&otlp, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
        assert_null(strstr(error, "word"));
        mc_otlp_free(&otlp);
    }
    setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://host", 1);
    setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x = y ,host=z,no,bad%0d%0aline=1,c=d%0d%0ae: f", 1);
    assert_int_equal(mc_otlp_target(&otlp, error, sizeof(error)), 0);
    snprintf(agent, sizeof(agent), "User-Agent: mooncake/%s\r\n", mc_version());
    assert_int_equal(strncmp((const char *)otlp.headers.data, agent, strlen(agent)), 0);
    assert_string_equal((const char *)otlp.headers.data + strlen(agent), "api-key: a b\r\nx: y\r\n");
    assert_string_equal(otlp.authority, "");
    mc_otlp_free(&otlp);
    static char token[6000], headers[sizeof(token) + 64]; /* as long as some are */
    memset(token, 't', sizeof(token) - 1);
    snprintf(headers, sizeof(headers), "authorization=Bearer%%20%s", token);
    setenv("OTEL_EXPORTER_OTLP_HEADERS", headers, 1);
    setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all.pem", 1);
    assert_int_equal(mc_otlp_target(&otlp, error, sizeof(error)), 0);
    assert_int_equal(otlp.headers.length - strlen(agent),
                     strlen("authorization: Bearer ") + sizeof(token) - 1 + strlen("\r\n") + 1);
    assert_string_equal(otlp.authority, "/all.pem");
    mc_otlp_free(&otlp);
    setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/traces.pem", 1);
    assert_int_equal(mc_otlp_target(&otlp, error, sizeof(error)), 0);
    assert_string_equal(otlp.authority, "/traces.pem");
    assert_string_equal(otlp.authority_is, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE");
    mc_otlp_free(&otlp);
}

static void what_is_no_utf_8_in_the_environment_spoils_no_line(void **state)
{
    (void)state;
    setenv("OTEL_RESOURCE_ATTRIBUTES", "a=%FFb,k8s.io/%C3=c,d=\xc3\xa9", 1);
    begin(NULL);
    mc_trace_enter_text(PARENT);
    mc_traced_end(mc_traced_call("call"), 0);
    mc_spans_end();
    assert_non_null(strstr(contents(), "{\"key\":\"a\",\"value\":{\"stringValue\":\"" MC_UTF8_UNKNOWN "b\"}}"));
    assert_non_null(strstr(contents(), "{\"key\":\"k8s.io/" MC_UTF8_UNKNOWN "\",\"value\":{\"stringValue\":\"c\"}}"));
    assert_non_null(strstr(contents(), "\xc3\xa9"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, reset, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(nothing_is_made_unless_it_is_asked_for),
        CASE(a_file_gets_spans_with_their_parents),
        CASE(what_is_not_sampled_or_of_nothing_is_not_made),
        CASE(so_many_a_second_are_made_whoever_asks),
        CASE(so_many_a_second_are_made_by_several_threads),
        CASE(a_call_of_which_no_span_is_made_has_no_parts),
        CASE(a_line_that_is_cut_off_spoils_no_other),
        CASE(a_collector_that_is_away_costs_spans_and_no_time),
#ifndef __SANITIZE_THREAD__ /* which ends a child that starts threads */
        CASE(a_forked_child_makes_none_until_it_asks_itself),
#endif
        CASE(the_environment_says_where_to),
        CASE(what_is_no_utf_8_in_the_environment_spoils_no_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
