/* What a hostile etcd, or a hostile API server of Kubernetes, answers to a master (elections, quotas of tenants, a
 * login) and to whoever asks who leads. The first byte chooses: 0 an election in etcd, 1 one by a Lease, 2 quotas in
 * etcd, 3 their text, 4 who leads by etcd, 5 by a Lease, else the file of a login. The second: has etcd a login? Then
 * come calls, and how each answer differs from an honest one: an input of zeros, or none, is an honest server.
 *
 * Answers come without sockets: mc_asker_call is ours. fuzz_answers has what comes before: HTTP. */
#include "base/error.h"
#include "base/variables.h"
#include "env/asker.h"
#include "env/etcd_login.h"
#include "env/json.h"
#include "env/k8s.h"
#include "env/leader.h"
#include "env/log.h"
#include "store/master/election.h"
#include "store/master/quotas.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define INPUT_MAX 65536u
#define CALLS_MAX 24u
#define TTL_MS 5000u
#define LONG_NS 3600000000000ull
#define GROWTH_MAX 16384u /* of what we write, beyond what stands there: our texts, each byte of them escaped */
#define CLAIM "17 5000 00000000000000aa notes ages"
#define ADDRESS "127.0.0.1:50051"
#define ANNOTATIONS "metadata.annotations"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char folder[64], token[80], authority[80], login[80];
    int memory; /* the login file of an input: in memory, as each has one */
} files;

static struct {
    struct mc_reader in;
    bool is_guarded;         /* the call that is under way may only change what is ours */
    struct mc_buffer told;   /* the Lease, as it was told last; empty: there is none */
    struct mc_buffer stands; /* the same as an honest server has it */
    int rc;                  /* what was answered last, as far as it matters */
} server;

/* ---- answers ---- */

static struct mc_span some_bytes(void)
{
    size_t length = mc_reader_u8(&server.in), left = mc_reader_left(&server.in);
    length = length < 0xf0 ? length : 0xf0 + (length - 0xf0) * 256;
    length = length < left ? length : left;
    return mc_span(mc_reader_take(&server.in, length), length);
}

/* A value as etcd has them, base64, or as the other does. */
static void put_value(struct mc_buffer *out, struct mc_span bytes, bool is_base64)
{
    struct mc_buffer text = {0};
    if (is_base64) {
        mc_buffer_put_u8(out, '"');
        mc_base64_encode(out, bytes);
        mc_buffer_put_u8(out, '"');
        return;
    }
    mc_buffer_append(&text, bytes.data, bytes.length);
    mc_buffer_put_u8(&text, 0);
    mc_json_put_text(out, (const char *)text.data);
    mc_buffer_free(&text);
}

static void add_text(struct mc_json_writer *writer, const char *name, const char *honest, bool is_base64)
{
    static const char *const other[] = {"",
                                        CLAIM " resigned",
                                        "99999999999999999999 1 x",
                                        "18 5000 00000000000000bb notes ages",
                                        "0000000000018 0000000000001 0000000000017 9999999999999",
                                        "17 perhaps",
                                        "10.0.0.9:1",
                                        "version: 1\ntenants:\n  - name: b\n    quota: 1TB\n"};
    struct mc_buffer value = {0};
    uint8_t how = mc_reader_u8(&server.in);
    if (how == 1) /* it is not there */
        return;
    if (how >= 2 && how < 5) /* not so much as a text */
        mc_buffer_printf(&value, how == 2 ? "null" : how == 3 ? "{\"a\":[1]}" : "17");
    else if (how == 5) {
        struct mc_span raw = some_bytes();
        mc_buffer_append(&value, raw.data, raw.length);
    } else if (how >= 6 && how < 14)
        put_value(&value, mc_span_string(other[how - 6]), is_base64);
    else
        put_value(&value, how == 0 ? mc_span_string(honest) : some_bytes(), is_base64);
    mc_json_add_value(writer, name, mc_span(value.data, value.length));
    mc_buffer_free(&value);
}

static void add_number(struct mc_json_writer *writer, const char *name, uint64_t honest)
{
    static const char *const other[] = {
        "0", "\"1\"", "3601", "18446744073709551615", "99999999999999999999", "-1", "1.5", "1e9", "null", "\"\""};
    uint8_t how = mc_reader_u8(&server.in);
    char text[24];
    if (how == 1)
        return;
    if (how < 2 || how >= 12)
        snprintf(text, sizeof(text), "\"%llu\"", (unsigned long long)honest + how);
    mc_json_add_value(writer, name, mc_span_string(how < 2 || how >= 12 ? text : other[how - 2]));
}

static void lease(struct mc_json_writer *writer)
{
    static const char *const words[] = {"departed", "cluster", "aged", "horizon"};
    static const char *const honest[] = {"17", "0000000000000001000000000000000a", "17", "0000000000017 0000000000100"};
    char name[64];
    add_text(writer, "kind", "Lease", false);
    mc_json_begin(writer, "metadata", '{');
    add_text(writer, "name", "mooncake", false);
    add_text(writer, "resourceVersion", "41", false);
    mc_json_add_value(writer, "managedFields", mc_span_string("[{\"manager\":\"x\"}]"));
    mc_json_begin(writer, "annotations", '{');
    add_text(writer, "example.org/ours", "kept", false);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof(name), "mooncake.io/%s", words[i]);
        add_text(writer, name, honest[i], false);
    }
    add_text(writer, "mooncake.io/claim", CLAIM, false);
    add_text(writer, "mooncake.io/holder", ADDRESS, false);
    mc_json_end(writer, '}');
    mc_json_end(writer, '}');
    mc_json_begin(writer, "spec", '{');
    add_text(writer, "holderIdentity", ADDRESS, false);
    add_text(writer, "renewTime", "2026-01-01T00:00:00.000000Z", false);
    add_text(writer, "acquireTime", "2026-01-01T00:00:00.000000Z", false);
    add_number(writer, "leaseDurationSeconds", 5);
    add_number(writer, "leaseTransitions", 3);
    mc_json_end(writer, '}');
}

static void add_key(struct mc_json_writer *writer, const char *honest)
{
    mc_json_begin(writer, NULL, '{');
    mc_json_begin(writer, "response_range", '{');
    mc_json_begin(writer, "kvs", '[');
    mc_json_begin(writer, NULL, '{');
    add_number(writer, "mod_revision", 41);
    add_text(writer, "value", honest, true);
    mc_json_end(writer, '}');
    mc_json_end(writer, ']');
    mc_json_end(writer, '}');
    mc_json_end(writer, '}');
}

static void transaction(struct mc_json_writer *writer)
{
    static const char *const honest[] = {
        ADDRESS, CLAIM, "17", "0000000000000001000000000000000a", "17", "0000000000017 0000000000100"};
    uint8_t holds = mc_reader_u8(&server.in);
    mc_json_begin(writer, "header", '{');
    add_number(writer, "revision", 42);
    mc_json_end(writer, '}');
    if (holds != 2)
        mc_json_add_bool(writer, "succeeded", holds != 1);
    mc_json_begin(writer, "responses", '[');
    for (size_t i = 0; i < sizeof(honest) / sizeof(honest[0]); i++)
        add_key(writer, honest[i]);
    mc_json_end(writer, ']');
}

static bool ends(const char *text, const char *with)
{
    size_t length = strlen(text), part = strlen(with);
    return length >= part && strcmp(text + length - part, with) == 0;
}

/* Of etcd, or the Lease, by the tables. */
static void put_document(const char *path, struct mc_buffer *out)
{
    struct mc_json_writer writer = {.out = out};
    mc_json_begin(&writer, NULL, '{');
    if (strncmp(path, "/apis/", 6) == 0) {
        lease(&writer);
    } else if (ends(path, "/authenticate")) {
        add_text(&writer, "token", "abc.1", false);
    } else if (ends(path, "/range")) {
        mc_json_begin(&writer, "kvs", '[');
        mc_json_begin(&writer, NULL, '{');
        add_number(&writer, "mod_revision", 41);
        add_text(&writer, "value", "version: 1\ntenants:\n  - name: a\n    quota: 1GB\n", true);
        mc_json_end(&writer, '}');
        mc_json_end(&writer, ']');
    } else if (ends(path, "/txn")) {
        transaction(&writer);
    } else if (ends(path, "/grant")) {
        add_number(&writer, "ID", 7);
    } else if (ends(path, "/keepalive")) {
        mc_json_begin(&writer, "result", '{');
        add_number(&writer, "TTL", 5);
        mc_json_end(&writer, '}');
    }
    mc_json_end(&writer, '}');
}

static int refuse(struct mc_buffer *out)
{
    static const char *const words[] = {"",
                                        "invalid auth token",
                                        "auth: revision in header is old",
                                        "user name is empty",
                                        "permission denied",
                                        "database space exceeded",
                                        "authentication is not enabled",
                                        "authentication failed",
                                        "has been compacted"};
    static const int statuses[] = {404, 409, 400, 401, 403, 412, 422, 499, 201, 204};
    uint8_t which = mc_reader_u8(&server.in), status = mc_reader_u8(&server.in);
    struct mc_span bytes = which < 9 ? mc_span_string(words[which]) : some_bytes();
    mc_buffer_append(out, bytes.data, bytes.length);
    return statuses[status % (sizeof(statuses) / sizeof(statuses[0]))];
}

/* An API server that keeps what it is given, and says so. */
static int keep(const struct mc_http_question *question, struct mc_buffer *out)
{
    if (question->body.length > 0) {
        server.stands.length = 0;
        mc_buffer_append(&server.stands, question->body.data, question->body.length);
    }
    mc_buffer_append(out, server.stands.data, server.stands.length);
    return server.stands.length == 0 ? 404 : strcmp(question->method, "POST") == 0 ? 201 : 200;
}

static int answer(const struct mc_http_question *question, struct mc_buffer *out)
{
    bool is_lease = strncmp(question->path, "/apis/", 6) == 0;
    uint8_t how = mc_reader_u8(&server.in);
    struct mc_span bytes;
    if (how == 0 && is_lease)
        return keep(question, out);
    if (how == 3)
        return refuse(out);
    if (how >= 4 && how < 7)
        return how == 4 ? MC_ERR_RPC_FAIL : how == 5 ? MC_ERR_RPC_TIMEOUT : MC_ERR_PROTOCOL;
    if (how == 2) {
        bytes = some_bytes();
        mc_buffer_append(out, bytes.data, bytes.length);
        return 200;
    }
    if (how == 7 && is_lease)
        (void)keep(question, out);
    else
        put_document(question->path, out);
    if (how < 7)
        return 200;
    size_t at = mc_reader_u16(&server.in), cut = how == 8 ? mc_reader_u16(&server.in) : 1;
    bytes = some_bytes(); /* in place of some of it */
    if (out->length == 0)
        return 200;
    at %= out->length;
    cut = cut < out->length - at ? cut : out->length - at;
    struct mc_buffer rest = {0};
    mc_buffer_append(&rest, out->data + at + cut, out->length - at - cut);
    out->length = at;
    mc_buffer_append(out, bytes.data, bytes.length);
    mc_buffer_append(out, rest.data, rest.length);
    mc_buffer_free(&rest);
    return 200;
}

/* ---- questions: what is asked and written stays as it must be, whatever was answered before ---- */

static void check_json(struct mc_span body)
{
    struct mc_json_cursor cursor;
    int rc = mc_json_open(body, '{', &cursor);
    while (rc == 0 && (rc = mc_json_next(&cursor)) == 1)
        rc = 0;
    mc_assert(rc == 0);
}

static void check_etcd(struct mc_span body)
{
    struct mc_span guard;
    if (memmem(body.data, body.length, "request_put", 11) != NULL) /* nothing is put without a guard */
        mc_assert(mc_json_find(body, "compare.0.target", &guard) == 1);
}

/* A Lease is only written upon what was told, and, but for a claim, only if what was told is ours. */
static void check_lease(const struct mc_http_question *question)
{
    char text[MC_ADDRESS_MAX];
    struct mc_span told = mc_span(server.told.data, server.told.length), was, is;
    if (question->body.length == 0)
        return;
    mc_assert(question->body.length < server.told.length + GROWTH_MAX);
    mc_assert((strcmp(question->method, "POST") == 0) == (server.told.length == 0));
    if (server.told.length == 0)
        return;
    int before = mc_json_find(told, "metadata.resourceVersion", &was);
    mc_assert(before >= 0 && mc_json_find(question->body, "metadata.resourceVersion", &is) == before);
    mc_assert(before == 0 || mc_span_equal(was, is));
    if (server.is_guarded)
        mc_assert(mc_k8s_text(told, ANNOTATIONS, "mooncake.io/claim", text, sizeof(text)) == 0 &&
                  strcmp(text, CLAIM) == 0);
}

int mc_asker_call(struct mc_asker *asker, const struct mc_http_question *question, uint64_t deadline_ns,
                  struct mc_buffer *reply)
{
    mc_assert(asker->count > 0 && deadline_ns > 0);
    mc_assert(question->path[0] == '/' && strpbrk(question->path, " \r\n") == NULL);
    mc_assert(question->secret == NULL || strpbrk(question->secret, "\r\n") == NULL);
    if (question->body.length > 0)
        check_json(question->body);
    bool is_lease = strncmp(question->path, "/apis/", 6) == 0;
    if (is_lease)
        check_lease(question);
    else if (question->body.length > 0)
        check_etcd(question->body);
    reply->length = 0;
    int rc = answer(question, reply);
    if (!ends(question->path, "/revoke")) /* what nobody relies on */
        server.rc = rc;
    if (is_lease && (server.rc == 200 || server.rc == 201 || server.rc == 404)) {
        bool is_read = question->body.length == 0, is_there = server.rc == 200 || (server.rc == 201 && !is_read);
        if (is_there || (is_read && server.rc == 404))
            server.told.length = 0;
        if (is_there)
            mc_buffer_append(&server.told, reply->data, reply->length);
    }
    return rc;
}

void mc_asker_prefer(struct mc_asker *asker, size_t current)
{
    asker->current = current;
}

void mc_asker_free(struct mc_asker *asker)
{
    mc_assert(asker->http.fd < 0);
}

/* ---- what asks ---- */

static void write_file(const char *path, struct mc_span text)
{
    FILE *file = fopen(path, "wb");
    mc_assert(file != NULL && fwrite(text.data, 1, text.length, file) == text.length);
    mc_assert(fclose(file) == 0);
}

/* Any certificate: no connection is made. */
static const char authority[] = "-----BEGIN CERTIFICATE-----\n"
                                "MIIBcDCCARegAwIBAgIUduKHd10tKSx1VKIKooF/02mOONgwCgYIKoZIzj0EAwIw\n"
                                "DTELMAkGA1UEAwwCY2EwIBcNMjYxMTI3MjEzNDE0WhgPMjEyNjExMDMyMTM0MTRa\n"
                                "MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEsH9swp55\n"
                                "rinEAO+s2BggfJ88FOOfRqB5LL82Jeq7mXT1DiDv0dL2SHAVE9cIlCkAeo8n+5aW\n"
                                "FA0bkoB/r7WeMqNTMFEwHQYDVR0OBBYEFP6VEYIGWiJ+iRcO5A7l2DaQHZT9MB8G\n"
                                "A1UdIwQYMBaAFP6VEYIGWiJ+iRcO5A7l2DaQHZT9MA8GA1UdEwEB/wQFMAMBAf8w\n"
                                "CgYIKoZIzj0EAwIDRwAwRAIgOVtahYwzoa0IfxHTlRNyNfqx5NeeM7OcWspjE0g2\n"
                                "FjkCIBg8+THMyaLaN1poen67ETtz4PmUj2aSfTcxvWtEwD/p\n"
                                "-----END CERTIFICATE-----\n";

static void end(void)
{
    (void)unlink(files.token);
    (void)unlink(files.authority);
    (void)unlink(files.login);
    (void)rmdir(files.folder);
}

static void begin(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    snprintf(files.folder, sizeof(files.folder), "/tmp/mc-fuzz-election-XXXXXX");
    mc_assert(mkdtemp(files.folder) != NULL);
    snprintf(files.token, sizeof(files.token), "%s/token", files.folder);
    snprintf(files.authority, sizeof(files.authority), "%s/ca.crt", files.folder);
    snprintf(files.login, sizeof(files.login), "%s/login", files.folder);
    mc_assert(atexit(end) == 0);
    write_file(files.token, mc_span_string("token\n"));
    write_file(files.authority, mc_span_string(authority));
    write_file(files.login, mc_span_string("username=me\npassword=secret\n"));
    files.memory = memfd_create("login", MFD_CLOEXEC);
    mc_assert(files.memory >= 0);
    mc_assert(setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1", 1) == 0 &&
              setenv("KUBERNETES_SERVICE_PORT", "443", 1) == 0 &&
              setenv("MC_K8S_SERVICE_ACCOUNT_DIR", files.folder, 1) == 0);
}

static int call(struct mc_election_backend *backend, struct mc_election_view *view)
{
    static const char *const words[] = {"17", NULL, "17 perhaps", "0000000000017 0000000000100"};
    uint8_t which = mc_reader_u8(&server.in);
    server.is_guarded = which % 6 >= 2 && which % 6 < 5;
    switch (which % 6) {
    case 1:
        return backend->claim(backend->context, LONG_NS, view, CLAIM, ADDRESS, words);
    case 2:
        return backend->renew(backend->context, LONG_NS, CLAIM, ADDRESS);
    case 3:
        return backend->write(backend->context, LONG_NS, CLAIM, which / 6 % MC_ELECTION_WORDS, "17");
    case 4:
        return backend->resign(backend->context, LONG_NS, CLAIM, CLAIM " resigned");
    case 5:
        return backend->tidy(backend->context, LONG_NS, CLAIM, 100, which / 6);
    default:
        return backend->observe(backend->context, LONG_NS, view);
    }
}

static void elect(bool is_lease)
{
    static unsigned many;
    char error[512] = "", endpoint[32];
    struct mc_election_backend backend;
    struct mc_election_view view = {0};
    snprintf(endpoint, sizeof(endpoint), "h%u:1", many++); /* tokens are kept by it */
    mc_assert((is_lease ? mc_election_k8s_create("space/mooncake", TTL_MS, &backend, error, sizeof(error))
                        : mc_election_etcd_create(endpoint, "c", TTL_MS, &backend, error, sizeof(error))) == 0);
    for (unsigned i = 0; i < CALLS_MAX && mc_reader_left(&server.in) > 0; i++) {
        server.rc = 0;
        int rc = call(&backend, &view);
        mc_assert(rc <= 1);
        mc_assert(rc < 0 || server.rc == 0 || (server.rc >= 200 && server.rc < 500));
        mc_assert(memchr(view.leader, 0, sizeof(view.leader)) != NULL && memchr(view.claim, 0, sizeof(view.claim)));
        for (unsigned word = 0; word < MC_ELECTION_WORDS; word++)
            mc_assert(memchr(view.words[word], 0, sizeof(view.words[word])) != NULL);
    }
    backend.destroy(backend.context);
}

/* ---- quotas ---- */

/* Read, written and read again: the same. */
static void quotas_text(struct mc_span text)
{
    enum { MOST = 16 };
    struct mc_quota_entry first[MOST], second[MOST];
    struct mc_buffer written = {0};
    char error[256] = "";
    int count = mc_quotas_parse(text.data, text.length, first, MOST, error, sizeof(error));
    mc_assert(count <= MOST && (count < 0) == (error[0] != 0) && strchr(error, '\n') == NULL);
    if (count < 0)
        return;
    mc_quotas_format(&written, first, (size_t)count);
    mc_assert(mc_quotas_parse((const char *)written.data, written.length, second, MOST, error, sizeof(error)) == count);
    for (int i = 0; i < count; i++)
        mc_assert(mc_quota_wrong(&first[i].quota) == NULL && strcmp(first[i].name, second[i].name) == 0 &&
                  memcmp(&first[i].quota, &second[i].quota, sizeof(first[i].quota)) == 0);
    mc_buffer_free(&written);
}

static void quotas_in_etcd(void)
{
    static const char *const names[] = {"a", "b", "team \"c\\", "d"};
    static unsigned many;
    char error[512] = "", endpoint[32];
    struct mc_quotas *quotas = NULL;
    snprintf(endpoint, sizeof(endpoint), "q%u:1", many++);
    if (mc_quotas_create(endpoint, "c", &quotas, error, sizeof(error)) < 0) {
        mc_assert(error[0] != 0 && quotas == NULL);
        return;
    }
    for (unsigned i = 0; i < CALLS_MAX && mc_reader_left(&server.in) > 0; i++) {
        uint8_t which = mc_reader_u8(&server.in);
        const struct mc_core_quota quota = {.bytes = 1u + which, .objects = which & 1};
        mc_assert(mc_quotas_change(quotas, names[which % 4], which & 4 ? NULL : &quota) <= 0);
    }
    mc_quotas_destroy(quotas);
}

static void who_leads(bool is_lease)
{
    static unsigned many;
    char address[64], text[MC_ADDRESS_MAX];
    snprintf(address, sizeof(address), is_lease ? "k8s://space/mooncake" : "etcd://l%u:1/c", many++);
    memset(text, 'x', sizeof(text));
    int rc = mc_leader_find(address, LONG_NS, text, sizeof(text));
    mc_assert(rc <= 0 && (rc < 0 || (text[0] != 0 && memchr(text, 0, sizeof(text)) != NULL)));
}

static void login_file(struct mc_span text)
{
    char error[512] = "", user[MC_ETCD_USER_MAX] = "";
    struct mc_buffer body = {0};
    char name[32];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", files.memory);
    mc_assert(setenv("MC_ETCD_CONF_FILE", name, 1) == 0 && ftruncate(files.memory, 0) == 0);
    mc_assert(pwrite(files.memory, text.data, text.length, 0) == (ssize_t)text.length);
    if (mc_etcd_login_body(&body, user, error, sizeof(error)) == 0)
        check_json(mc_span(body.data, body.length));
    else
        mc_assert(error[0] != 0 && strchr(error, '\n') == NULL);
    mc_buffer_free(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > INPUT_MAX)
        return 0;
    if (files.folder[0] == 0)
        begin();
    struct mc_span rest = mc_span(data + 2, size - 2);
    server.in = mc_reader(rest.data, rest.length);
    server.told.length = server.stands.length = 0;
    server.is_guarded = false;
    mc_assert((data[1] % 2 == 0 ? unsetenv("MC_ETCD_CONF_FILE") : setenv("MC_ETCD_CONF_FILE", files.login, 1)) == 0);
    if (data[0] < 2)
        elect(data[0] == 1);
    else if (data[0] == 2)
        quotas_in_etcd();
    else if (data[0] == 3)
        quotas_text(rest);
    else if (data[0] < 6)
        who_leads(data[0] == 5);
    else
        login_file(rest);
    return 0;
}
