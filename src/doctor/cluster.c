/* The master and the metadata server: do they answer, what do they hold, and do they belong together? */
#include "doctor/doctor.h"

#include "base/error.h"
#include "base/size.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/json.h"
#include "env/leader.h"
#include "env/secure.h"
#include "mooncake_engine.h"
#include "transfer/wire/metadata.h"
#include "store/wire/proof.h"
#include "store/wire/stream.h"
#include "store/wire/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ADMIN_PORT 9003
#define MASTER_PORT 50051
#define CLOCK_APART_MS 1000u
#define STANDBYS_MAX 32u

static uint64_t deadline_of(void)
{
    return mc_clock_ns() + MC_DOCTOR_WAIT_MS * 1000000ull;
}

/* ---- the master's service ---- */

struct master_said {
    int code; /* how asking failed, or the master's own */
    struct mc_wire_hello_reply reply;
    char text[256], leader[MC_ADDRESS_MAX], build[MC_BUILD_TEXT_MAX];
};

static void copy_text(char *to, size_t size, struct mc_span text)
{
    snprintf(to, size, "%.*s", (int)text.length, text.length == 0 ? "" : (const char *)text.data);
}

static void say_hello(int fd, struct master_said *said)
{
    struct mc_buffer out = {0}, in = {0};
    struct mc_wire_hello hello = {.role = MC_ROLE_CALL,
                                  .node = mc_random_id(),
                                  .incarnation = 1,
                                  .name = mc_span_string("mooncake_doctor"),
                                  .seen_age_ms = UINT32_MAX};
    struct mc_frame frame;
    mc_wire_hello_sign(&hello);
    mc_wire_hello_frame(&out, mc_frame_begin(&out, MC_MESSAGE_HELLO, 1), &hello);
    struct iovec part = {out.data, out.length};
    said->code = mc_prove_own(fd, deadline_of(), said->text);
    if (said->code == 0)
        said->code = mc_socket_send(fd, &part, 1, deadline_of());
    int64_t used = said->code < 0 ? said->code : mc_socket_receive_frame(fd, &in, &frame, deadline_of(), NULL);
    said->code = used < 0 ? (int)used : 0;
    if (said->code == 0) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        mc_wire_hello_reply_read(&reader, &said->reply);
        said->code = reader.bad || frame.type != MC_MESSAGE_HELLO_REPLY ? MC_ERR_PROTOCOL : said->reply.code;
    }
    if (said->code != MC_ERR_PROTOCOL && used >= 0) {
        copy_text(said->text, sizeof(said->text), said->reply.text);
        copy_text(said->leader, sizeof(said->leader), said->reply.leader);
        (void)mc_wire_build(said->build, said->reply.build);
    }
    mc_buffer_free(&out);
    mc_buffer_free(&in);
}

/* The address of who should lead. False: a fact says why not. */
static bool find_leader(struct mc_doctor *doctor, char address[MC_ADDRESS_MAX])
{
    char host[MC_ADDRESS_MAX - 8];
    uint16_t port = MASTER_PORT;
    const char *given = doctor->config.master;
    if (mc_leader_is_election(given)) {
        int rc = mc_leader_find(given, deadline_of(), address, MC_ADDRESS_MAX);
        mc_doctor_say(doctor, rc < 0 ? MC_VERDICT_BROKEN : MC_VERDICT_FINE, "election", 0,
                      rc == 0 ? NULL
                      : rc == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
                          ? "nobody leads that cluster: start a master with --enable_ha, and compare "
                            "its cluster_id with MC_STORE_CLUSTER_ID"
                      : strncmp(given, "k8s://", 6) == 0
                          ? "the lines above say why, or ask it yourself: kubectl get lease"
                          : "is etcd running there? (etcdctl endpoint health); the lines above may say why not",
                      "%s: %s", given, rc < 0 ? mc_error_name(rc) : address);
        return rc == 0;
    }
    if (mc_address_split(given, host, sizeof(host), &port) < 0 || port == 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "master", 0,
                      "--master host:port, etcd://host:port or k8s://namespace/lease", "'%s' is no address", given);
        return false;
    }
    mc_address_join(address, MC_ADDRESS_MAX, host, port);
    return true;
}

static void say_answer(struct mc_doctor *doctor, const char *address, const struct master_said *said)
{
    if (said->code == 0) {
        doctor->master_epoch = said->reply.epoch;
        mc_doctor_say(doctor, MC_VERDICT_FINE, "master", 0, NULL,
                      "%s leads; %s, protocol %u to %u, epoch %" PRIu64 ", lease %u ms, client ttl %u ms", address,
                      said->build, said->reply.version_min, said->reply.version_max, said->reply.epoch,
                      said->reply.lease_ttl_ms, said->reply.client_ttl_ms);
        return;
    }
    bool is_standby = said->leader[0] != 0;
    mc_doctor_say(doctor, is_standby ? MC_VERDICT_WARNING : MC_VERDICT_BROKEN, "master", 0,
                  is_standby ? "a standby; clients should be given etcd://..., which finds who leads"
                  : said->code == MC_ERR_PROTOCOL || said->code == MC_ERR_RPC_FAIL
                      ? "what answers is no master of this build: is it the rpc_port (50051), not that of metrics or "
                        "metadata? The original's "
                        "master speaks another protocol"
                  : said->code == MC_ERR_RPC_TIMEOUT
                      ? "it is stopped (look at its process and log), or that port is another one than rpc_port (50051)"
                      : "client and master are of versions that do not fit: upgrade the older one",
                  "%s: %s %s%s", address, mc_error_name(said->code), said->text, is_standby ? said->leader : "");
}

/* The log has said what was wrong, for the one that it was. */
static void say_no_tls(struct mc_doctor *doctor, const char *address)
{
    const struct mc_tls_settings settings = mc_secure_calls();
    char fix[1024];
    bool has_name = settings.name != NULL && settings.name[0] != 0;
    snprintf(fix, sizeof(fix),
             "the line on stderr says which end refuses; openssl s_client -connect %s shows the certificate there: it "
             "must be signed by what MC_TLS_CA_CERT names here, and be for %s%s; ours must be signed by what "
             "MC_TLS_CLIENT_CA_CERT names there",
             address, has_name ? "MC_TLS_SERVER_NAME, " : "that name or address, or for MC_TLS_SERVER_NAME",
             has_name ? settings.name : "");
    mc_doctor_say(doctor, MC_VERDICT_BROKEN, "master", 0, fix, "%s: no TLS with it", address);
}

void mc_check_master(struct mc_doctor *doctor)
{
    char address[MC_ADDRESS_MAX];
    uint16_t port = 0;
    struct master_said said = {0};
    if (doctor->config.master[0] == 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "master", 0, NULL, "not asked for (--master host:port)");
        return;
    }
    if (!find_leader(doctor, address))
        return;
    (void)mc_address_split(address, doctor->master_host, sizeof(doctor->master_host), &port);
    errno = 0;
    uint64_t start_ns = mc_clock_ns();
    int fd = mc_tcp_connect(address, deadline_of());
    if (fd >= 0 && mc_secure_connect(fd, address, deadline_of()) < 0) { /* the log says why */
        mc_fd_close(fd);
        say_no_tls(doctor, address);
        return;
    }
    if (fd < 0) {
        int error = fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : errno;
        doctor->master_host[0] = 0;
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "master", error, mc_doctor_fix_of_connect(error),
                      "%s cannot be reached", address);
        return;
    }
    say_hello(fd, &said);
    mc_fd_close(fd);
    say_answer(doctor, address, &said);
    if (said.code == 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "its answer", 0, NULL, "after %.1f ms, with connecting",
                      (double)(mc_clock_ns() - start_ns) / 1e6);
}

/* ---- its admin port ---- */

static int ask_http(const char *address, const char *path, struct mc_buffer *reply, int *error)
{
    char bearer[MC_KEYS_BEARER_MAX];
    const struct mc_http_question question = {.method = "GET", .path = path, .secret = mc_keys_bearer(bearer)};
    const struct mc_tls_settings tls = mc_secure_calls();
    return mc_http_once(address, mc_secure_is_called() ? &tls : NULL, &question, deadline_of(), reply, error);
}

/* The value of a metric without labels; -1: none. */
static double metric(const struct mc_buffer *text, const char *name)
{
    size_t length = strlen(name);
    const char *at = (const char *)text->data; /* NULL: there is none */
    for (const char *end = text->length == 0 ? at : at + text->length; at < end;) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL)
            break;
        if ((size_t)(line_end - at) > length && strncmp(at, name, length) == 0 && at[length] == ' ')
            return strtod(at + length, NULL); /* ends at the line's end at the latest */
        at = line_end + 1;
    }
    return -1;
}

static void say_capacity(struct mc_doctor *doctor, const char *address)
{
    struct mc_buffer text = {0};
    char total[32], used[32];
    int error = 0, rc = ask_http(address, "/metrics", &text, &error);
    double capacity = metric(&text, "master_total_capacity_bytes"), taken = metric(&text, "master_allocated_bytes");
    if (rc == 200 && capacity >= 0 && taken >= 0) {
        double clients = metric(&text, "master_active_clients");
        mc_doctor_say(
            doctor, capacity < 1 ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "capacity", 0,
            capacity < 1
                ? "no store node has lent memory: puts fail; start one (mc_store_rest_server, mooncake_client, setup)"
                : NULL,
            "%s lent, %s used, %.0f objects", mc_doctor_size(total, mc_size_of_real(capacity)),
            mc_doctor_size(used, mc_size_of_real(taken)), metric(&text, "master_key_count"));
        mc_doctor_say(doctor, MC_VERDICT_FINE, "clients", 0, NULL, "%.0f", clients);
    } else {
        mc_doctor_say(doctor, MC_VERDICT_WARNING, "capacity", 0, NULL, "%s/metrics answers %d", address, rc);
    }
    mc_buffer_free(&text);
}

static void say_clock(struct mc_doctor *doctor, struct mc_span json, uint64_t before_ms, uint64_t after_ms)
{
    uint64_t there_ms = 0;
    if (mc_json_find_number(json, "time_ms", &there_ms) != 1)
        return;
    uint64_t here_ms = before_ms + (after_ms - before_ms) / 2;
    bool is_ahead = here_ms > there_ms;
    uint64_t apart_ms = is_ahead ? here_ms - there_ms : there_ms - here_ms;
    uint64_t unsure_ms = (after_ms - before_ms + 1) / 2;
    bool is_much = apart_ms > CLOCK_APART_MS + unsure_ms; /* else a slow answer is all that is known of */
    mc_doctor_say(
        doctor, is_much ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "clocks", 0,
        is_much ? "let NTP set both (timedatectl, chronyc tracking): lines of logs, certificates, and how long "
                  "pins and disks outlive a boot go by it"
                : NULL,
        "this machine's is %" PRIu64 ".%03u s %s the master's (half of the round trip, %" PRIu64 " ms, may be wrong)",
        apart_ms / 1000, (unsigned)(apart_ms % 1000), is_ahead ? "ahead of" : "behind", unsure_ms);
}

const char *mc_doctor_other_build(const struct mc_doctor *doctor, const char *build, char *text, size_t size)
{
    bool is_other = build[0] != 0 && doctor->master_build[0] != 0 && strcmp(build, doctor->master_build) != 0;
    text[0] = 0;
    if (is_other)
        snprintf(text, size, ", of build %s (the master's is %s)", build, doctor->master_build);
    return text;
}

static void say_standby(struct mc_doctor *doctor, struct mc_span json)
{
    char address[MC_ADDRESS_MAX] = "?", title[MC_ADDRESS_MAX + 16];
    char build[MC_DOCTOR_BUILD_MAX] = "", other[2 * MC_DOCTOR_BUILD_MAX + 64];
    struct mc_json_cursor member;
    int rc = mc_json_open(json, '{', &member);
    while (rc == 0 && mc_json_next(&member) == 1) { /* what is not as expected stays unknown */
        if (mc_json_is(member.name, "address"))
            (void)mc_json_text(&member, address, sizeof(address));
        else if (mc_json_is(member.name, "build"))
            (void)mc_json_text(&member, build, sizeof(build));
    }
    bool is_other = mc_doctor_other_build(doctor, build, other, sizeof(other))[0] != 0;
    snprintf(title, sizeof(title), "standby %s", address);
    mc_doctor_say(doctor, is_other ? MC_VERDICT_NOTE : MC_VERDICT_FINE, title, 0, is_other ? MC_DOCTOR_FIX_BUILD : NULL,
                  "%s",
                  is_other        ? other + 2
                  : build[0] == 0 ? "its build is not known"
                                  : build);
}

/* What an older master does not tell is left out. */
static void say_overview(struct mc_doctor *doctor, const char *address)
{
    struct mc_buffer text = {0};
    struct mc_span list, build;
    struct mc_json_cursor element;
    int error = 0;
    uint64_t before_ms = mc_clock_wall_ms();
    int rc = ask_http(address, "/api/v1/overview", &text, &error);
    uint64_t after_ms = mc_clock_wall_ms();
    struct mc_span json = mc_span(text.data, text.length);
    if (rc == 200 && after_ms >= before_ms)
        say_clock(doctor, json, before_ms, after_ms);
    if (rc == 200 && mc_json_find(json, "build", &build) == 1)
        copy_text(doctor->master_build, sizeof(doctor->master_build), build);
    if (rc == 200 && mc_json_find(json, "standbys", &list) == 1 && mc_json_open(list, '[', &element) == 0)
        for (unsigned left = STANDBYS_MAX; left > 0 && mc_json_next(&element) == 1; left--)
            say_standby(doctor, element.value);
    mc_buffer_free(&text);
}

void mc_check_admin(struct mc_doctor *doctor)
{
    char address[MC_ADDRESS_MAX];
    struct mc_buffer text = {0};
    uint64_t number = 0, epoch = 0;
    int error = 0;
    if (doctor->config.admin[0] == 0 && doctor->master_host[0] == 0)
        return;
    if (doctor->config.admin[0] != 0)
        snprintf(address, sizeof(address), "%s", doctor->config.admin);
    else
        mc_address_join(address, sizeof(address), doctor->master_host, ADMIN_PORT);
    int rc = ask_http(address, "/health", &text, &error);
    if (rc != 200) {
        mc_doctor_say(doctor, doctor->config.admin[0] != 0 ? MC_VERDICT_BROKEN : MC_VERDICT_WARNING, "admin port",
                      error, "without it capacity, clients and metrics are not seen: --admin host:metrics_port",
                      "%s does not answer", address);
        mc_buffer_free(&text);
        return;
    }
    struct mc_span json = mc_span(text.data, text.length);
    bool has_epoch = mc_json_find_number(json, "view_version", &epoch) == 1;
    bool is_other = has_epoch && doctor->master_epoch != 0 && epoch != doctor->master_epoch;
    mc_doctor_say(
        doctor, is_other ? MC_VERDICT_BROKEN : MC_VERDICT_FINE, "admin port", 0,
        is_other ? "the master and the admin port are of different clusters: --admin host:metrics_port of that master"
                 : NULL,
        "%s, epoch %" PRIu64, address, epoch);
    if (mc_json_find_number(json, "metadata_port", &number) == 1 && number <= UINT16_MAX)
        doctor->metadata_port = (unsigned)number;
    mc_buffer_free(&text);
    say_overview(doctor, address);
    say_capacity(doctor, address);
    rc = ask_http(address, "/get_segments_detail", &text, &error);
    if (rc == 200) {
        mc_doctor_segments(doctor, mc_span(text.data, text.length));
        mc_doctor_disks(doctor, mc_span(text.data, text.length));
    }
    mc_buffer_free(&text);
}

/* ---- the metadata server ---- */

static void make_key(char *key, size_t size)
{
    snprintf(key, size, "mooncake/doctor/%016" PRIx64, mc_random_u64());
}

/* Writes a key, reads it, lets somebody else look for it, removes it. */
static int write_and_read(struct mc_metadata *metadata, const char *key)
{
    struct mc_buffer value = {0};
    struct mc_span text = mc_span_string("{\"name\":\"mooncake_doctor\"}");
    int rc = mc_metadata_put(metadata, key, text);
    if (rc == 0)
        rc = mc_metadata_get(metadata, key, &value);
    if (rc == 0 && !mc_span_equal(mc_span(value.data, value.length), text))
        rc = MC_TRANSFER_ERR_MALFORMED_JSON;
    mc_buffer_free(&value);
    return rc;
}

/* errno of connecting to an http server; 0: it can be connected to, or its address is of another kind. */
static int try_connecting(const char *server)
{
    static const char http[] = "http://";
    char address[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX - 8];
    uint16_t port = 80;
    if (strncmp(server, http, sizeof(http) - 1) != 0)
        return 0;
    const char *at = server + sizeof(http) - 1;
    snprintf(address, sizeof(address), "%.*s", (int)strcspn(at, "/"), at);
    if (mc_address_split(address, host, sizeof(host), &port) < 0)
        return 0;
    mc_address_join(address, sizeof(address), host, port);
    errno = 0;
    int fd = mc_tcp_connect(address, deadline_of());
    if (fd < 0)
        return fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : errno == 0 ? ENOENT : errno;
    close(fd);
    return 0;
}

void mc_check_metadata(struct mc_doctor *doctor)
{
    struct mc_metadata metadata = {0};
    const char *server = doctor->config.metadata;
    char key[64];
    if (server[0] == 0 || strcmp(server, "P2PHANDSHAKE") == 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "metadata server", 0, NULL, "%s",
                      server[0] == 0 ? "not asked for (--metadata URL); P2PHANDSHAKE needs none"
                                     : "none: P2PHANDSHAKE");
        return;
    }
    int rc = mc_metadata_init(&metadata, server);
    if (rc < 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "metadata server", 0,
                      "an address as engines are given it, such as http://host:port/metadata", "%s: %s", server,
                      mc_transfer_error_text(rc));
        return;
    }
    int error = try_connecting(server);
    if (error != 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "metadata server", error, mc_doctor_fix_of_connect(error),
                      "%s cannot be reached", server);
        return;
    }
    make_key(key, sizeof(key));
    uint64_t start_ns = mc_clock_ns();
    rc = write_and_read(&metadata, key);
    double passed_ms = (double)(mc_clock_ns() - start_ns) / 1e6;
    int removed = mc_metadata_remove(&metadata, key);
    doctor->is_metadata_reached = rc == 0;
    if (rc < 0)
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "metadata server", 0,
                      "is it running there (mooncake_master --enable_http_metadata_server, "
                      "mooncake_http_metadata_server), and does the path end in "
                      "/metadata?",
                      "%s: %s", server, mc_transfer_error_text(rc));
    else
        mc_doctor_say(doctor, removed < 0 ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "metadata server", 0,
                      removed < 0 ? "names of engines that ended will stay there" : NULL,
                      "%s: a key written and read in %.1f ms%s", server, passed_ms,
                      removed < 0 ? ", but not removed" : "");
    mc_doctor_say(doctor, MC_VERDICT_FINE, "keys", 0, NULL, "begin with mooncake/%s%s", metadata.cluster_id,
                  metadata.cluster_id[0] != 0 ? "/ (MC_METADATA_CLUSTER_ID); only engines with the same meet" : "");
}

/* A master that serves metadata itself should be where engines are told to look. */
void mc_check_same_cluster(struct mc_doctor *doctor)
{
    struct mc_metadata given = {0}, own = {0};
    struct mc_buffer value = {0};
    char key[64], url[MC_ADDRESS_MAX + 32], address[MC_ADDRESS_MAX];
    if (doctor->metadata_port == 0 || !doctor->is_metadata_reached || doctor->master_host[0] == 0)
        return;
    mc_address_join(address, sizeof(address), doctor->master_host, (uint16_t)doctor->metadata_port);
    snprintf(url, sizeof(url), "http%s://%s/metadata", mc_secure_is_called() ? "s" : "", address);
    make_key(key, sizeof(key));
    if (mc_metadata_init(&given, doctor->config.metadata) < 0 || mc_metadata_init(&own, url) < 0)
        return;
    int rc = write_and_read(&given, key);
    bool is_same = rc == 0 && mc_metadata_get(&own, key, &value) == 0;
    mc_buffer_free(&value);
    (void)mc_metadata_remove(&given, key); /* the check before has said whether that works */
    mc_doctor_say(doctor, is_same ? MC_VERDICT_FINE : MC_VERDICT_WARNING, "one cluster", 0,
                  is_same ? NULL
                          : "engines that are told one of the two do not find those that are told the other: use one "
                            "URL everywhere, or give "
                            "the master no --enable_http_metadata_server",
                  is_same ? "the metadata server is the master's own (%s)"
                          : "the master has a metadata service of its own (%s), which does not know "
                            "what was written",
                  url);
}
