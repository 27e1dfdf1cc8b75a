/* The settings of the store service: one table of settings, one of flags for each command. */
#include "store/service/config.h"

#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/flags.h"
#include "env/json.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/reach.h"
#include "env/unread.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DEFINES_MAX 64 /* -Dkey=value */

enum setting_kind { TEXT, SIZE, BOOL, PORT_NUMBER };

static const struct setting {
    const char *name;
    enum setting_kind kind;
    size_t offset;        /* in struct mc_service_config */
    const char *initial;  /* NULL: must be given */
    bool is_null_initial; /* null in a file means the same as not given */
    const char *spellings[2];
    enum mc_variable variables[2]; /* the first that is set counts */
} settings[] = {
#define AT(member) offsetof(struct mc_service_config, member)
#define V(name) MC_VARIABLE_##name
    /* clang-format off */
    {"local_hostname", TEXT, AT(local_hostname), NULL, false, {0}, {V(MOONCAKE_LOCAL_HOSTNAME), V(LOCAL_HOSTNAME)}},
    {"metadata_server", TEXT, AT(metadata_server), NULL, false, {0}, {V(MOONCAKE_TE_META_DATA_SERVER), V(MOONCAKE_METADATA_SERVER)}},
    {"global_segment_size", SIZE, AT(global_segment_size), "3355443200", false, {0}, {V(MOONCAKE_GLOBAL_SEGMENT_SIZE)}},
    {"local_buffer_size", SIZE, AT(local_buffer_size), "1073741824", false, {0}, {V(MOONCAKE_LOCAL_BUFFER_SIZE)}},
    {"protocol", TEXT, AT(protocol), "tcp", false, {0}, {V(MOONCAKE_PROTOCOL)}},
    {"device_name", TEXT, AT(device_name), "", true, {"rdma_devices", "device_names"}, {V(MOONCAKE_DEVICE), V(MOONCAKE_RDMA_DEVICES)}},
    {"master_server_address", TEXT, AT(master_server_address), NULL, false, {"master_server_addr"}, {V(MOONCAKE_MASTER), V(MOONCAKE_MASTER_SERVER_ADDR)}},
    {"enable_ssd_offload", BOOL, AT(enable_ssd_offload), "false", true, {"enable_offload"}, {V(MOONCAKE_OFFLOAD_ENABLED), V(MOONCAKE_ENABLE_SSD_OFFLOAD)}},
    {"ssd_offload_path", TEXT, AT(ssd_offload_path), "", true, {0}, {V(MOONCAKE_OFFLOAD_FILE_STORAGE_PATH)}},
    {"tenant_id", TEXT, AT(tenant_id), "default", true, {0}, {V(MOONCAKE_TENANT_ID)}},
    {"stamp", TEXT, AT(stamp), "", true, {0}, {V(MC_STORE_STAMP)}},
    {"enable_client_http_server", BOOL, AT(enable_client_http_server), "false", true, {0}, {V(MOONCAKE_ENABLE_CLIENT_HTTP_SERVER)}},
    {"client_http_port", PORT_NUMBER, AT(client_http_port), "9300", false, {0}, {V(MOONCAKE_CLIENT_HTTP_PORT)}},
    {"auth_file", TEXT, AT(auth_file), "", true, {0}, {V(MC_AUTH_FILE)}},
/* clang-format on */
#undef AT
#undef V
};

/* What only other clients understand. */
static const char *const of_others[] = {
    /* vLLM */ "mode",
    "preferred_segment",
    "enable_group_semantics",
    /* SGLang */ "client_server_address",
    "master_metrics_port",
    "check_server",
    "standalone_storage",
    "extra_backend_tag",
    "engine",
    /* LMCache */ "transfer_timeout",
    "storage_root_dir",
    "prefer_local_alloc",
    "save_chunk_meta",
    "use_exists_sync",
};

#define INTO(member) TO(mc_service_config, member)
#define GENERAL                                                                                                        \
    ROW("help", BOOL, "false", "shows this text", SECTION("General")), ALIAS("h", "help"),                             \
        ROW("helpfull", BOOL, "false", "shows, too, the flags that are accepted and change nothing"),                  \
        ALIAS("helpshort", "help"), VERSION(),                                                                         \
        ROW("print_config", BOOL, "false", "shows the settings of the store as they would be used, as a config file"), \
        ROW("flagfile", TEXT, "", "flags from this file, one a line, # for comments"),                                 \
        ROW("max_wait_time", REAL, "60", "seconds to keep trying while there is no master yet; then it exits with 1",  \
            LIMITS(0, 86400), INTO(max_wait_s)),                                                                       \
        ROW("exit_grace_s", INT, "20",                                                                                 \
            "seconds that SIGTERM and SIGINT give to what lies in memory only, to be stored on disks or moved; 0: "    \
            "none",                                                                                                    \
            LIMITS(0, 86400), INTO(exit_grace_s)),                                                                     \
        ROW("drain_on_exit", BOOL, "false",                                                                            \
            "on SIGTERM and SIGINT a node without disks moves its objects to other nodes", INTO(drain_on_exit)),       \
        VARIABLE("serve_threads", MC_SERVE_THREADS,                                                                    \
                 "threads that serve data connections by tcp, 0 to 16; empty: one for each four processors"),          \
        VARIABLE("populate_threads", MC_POPULATE_THREADS,                                                              \
                 "threads that back its memory by pages at the start, 1 to 16; empty: one for each eight processors"), \
        VARIABLE("numa_nodes", MC_STORE_NUMA_NODES,                                                                    \
                 "NUMA nodes on which its memory lies, as 0, 0,1, 0-3 or all; empty: the kernel chooses"),             \
        ROW("auth_file", TEXT, "",                                                                                     \
            "file of keys: this node shows the first, and wants one of them from who comes by HTTP; empty: auth_file " \
            "of the JSON file, where there is one, else $MC_AUTH_FILE, else $MC_AUTH_TOKEN"),                          \
        TLS_OF_ALL, TLS_OF_PORTS, TLS_OF_CALLS
#define LOG                                                                                                            \
    ROW("v", INT, "0", "detail of the log: 1 debug, 2 every message", SECTION("Log"), LIMITS(0, 9)),                   \
        ROW("minloglevel", INT, "0", "0 info, 1 warnings and errors, 2 errors", LIMITS(0, 3)),                         \
        NEEDLESS("logtostderr", BOOL, "true", "the log goes to stderr"),                                               \
        NEEDLESS("alsologtostderr", BOOL, "true", "the log goes to stderr"),                                           \
        NEEDLESS("stderrthreshold", INT, "0", "use minloglevel", LIMITS(0, 3)), FLAGS_OF_ITS_LOG,                      \
        ROW("log_dir", TEXT, "",                                                                                       \
            "the log goes also to a file in this directory, PROGRAM.PID.log; MC_LOG_DIR does the same")

/* clang-format off */
static const struct mc_option rest_flags[] = {
    GENERAL,
    ROW("config", TEXT, "", "JSON file with the settings of the store; without it the environment: MOONCAKE_CONFIG_PATH, or MOONCAKE_MASTER and others"),
    ROW("define", TEXT, "", "key=value, also -Dkey=value: overrides one setting of the store; may be given many times"),
    ROW("port", INT, "8080", "port of the REST API; 0: the kernel chooses, the log names it", SECTION("REST API"), PORT, INTO(rest_port)),
    ROW("host", TEXT, "0.0.0.0", "its address", INTO(rest_host)),
    ROW("local_hostname", TEXT, "localhost", "host or host:port under which others reach this node's memory", SECTION("Store: keys of the file; flags win")),
    NEEDLESS("metadata_server", TEXT, "P2PHANDSHAKE", "the store asks nothing there"),
    ROW("global_segment_size", TEXT, "3355443200", "memory lent to the pool: bytes, or 512mb, 50gb, ... (powers of 1024); 0: none"),
    ROW("local_buffer_size", TEXT, "1073741824", "0: a pure server, whose own puts and gets are refused; otherwise memory is taken as needed"),
    ROW("protocol", TEXT, "tcp", "tcp, or rdma: tcp too, and RDMA wherever both sides have it; same-host peers use shared memory by themselves"),
    ROW("device_name", TEXT, "", "RDMA devices to use, separated by commas; empty: all"),
    ALIAS("rdma_devices", "device_name"), ALIAS("device_names", "device_name"),
    ROW("master_server_address", TEXT, "", "host:port of mooncake_master, or etcd://host:port,... or k8s://namespace/lease for whoever leads"),
    ALIAS("master_server_addr", "master_server_address"),
    ROW("enable_ssd_offload", BOOL, "false", "objects are stored on disks of this node too, when the master says so (--enable_offload)"),
    ROW("ssd_offload_path", TEXT, "", "directories on these disks, separated by commas"),
    ROW("tenant_id", TEXT, "default", "whose objects its own puts and gets are about, of a master with tenants"),
    ROW("stamp", TEXT, "", "model, weights and format of the values that its own puts and gets are about: with another stamp a key is not there"),
    ROW("enable_client_http_server", BOOL, "false", "also serves /health and /metrics on client_http_port"),
    ROW("client_http_port", INT, "9300", "see there; 0: the kernel chooses", PORT),
    LOG,
};
static const struct mc_option client_flags[] = {
    GENERAL,
    ROW("host", TEXT, "0.0.0.0", "host or host:port under which others reach this node's memory; 0.0.0.0: the address that the master sees", SECTION("Store")),
    NEEDLESS("metadata_server", TEXT, "http://127.0.0.1:8080/metadata", "the store asks nothing there"),
    ROW("master_server_address", TEXT, "127.0.0.1:50051", "host:port of mooncake_master, or etcd://host:port,... or k8s://namespace/lease for whoever leads"),
    ROW("global_segment_size", TEXT, "4 GB", "memory lent to the pool: bytes, or 512mb, 50gb, ... (powers of 1024)"),
    ROW("local_buffer_size", TEXT, "0", "memory is taken as needed"),
    ROW("protocol", TEXT, "tcp", "tcp, or rdma: tcp too, and RDMA wherever both sides have it; same-host peers use shared memory by themselves"),
    ROW("device_names", TEXT, "", "RDMA devices to use, separated by commas; empty: all"),
    ROW("tenant_id", TEXT, "default", "whose objects its own puts and gets are about, of a master with tenants"),
    ROW("port", INT, "50052", "tells processes without a pool of their own (setup_dummy) which master to use; 0: the kernel chooses", PORT, INTO(dummy_port)),
    NEEDLESS("threads", INT, "1", "a thread for each request, up to a limit", LIMITS(0, 65536)),
    ROW("enable_offload", BOOL, "false", "objects are stored on the disks of MOONCAKE_OFFLOAD_FILE_STORAGE_PATH too, when the master says so"),
    NEEDLESS("start_offload_rpc_server", BOOL, "true", "what lies on disks is read as everything else"),
    NEEDLESS("mmap_arena_pool_size", INT, "8589934592", "there is no arena", LIMITS(0, INT64_MAX)),
    NEEDLESS("use_mmap_arena_allocator", BOOL, "false", "there is no arena"),
    ROW("enable_http_server", BOOL, "false", "serves /health and /metrics on http_port", SECTION("HTTP")),
    ROW("http_port", INT, "9300", "see there; 0: the kernel chooses", PORT),
    LOG,
};
/* clang-format on */

/* Flags of mooncake_client that have another name than their setting. */
static const struct {
    const char *flag, *setting;
} client_names[] = {
    {"host", "local_hostname"},
    {"device_names", "device_name"},
    {"enable_offload", "enable_ssd_offload"},
    {"enable_http_server", "enable_client_http_server"},
    {"http_port", "client_http_port"},
};

/* ---- values ---- */

static int complain(char *error, size_t error_size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int complain(char *error, size_t error_size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
    return MC_ERR_INVALID_PARAMS;
}

bool mc_service_parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "kmgt";
    char number[64];
    size_t length = strlen(text), shift = 0;
    while (length > 0 && isspace((unsigned char)text[0]))
        text++, length--;
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    if (length > 0 && tolower((unsigned char)text[length - 1]) == 'b')
        length--;
    const char *unit = length == 0 ? NULL : memchr(units, tolower((unsigned char)text[length - 1]), sizeof(units) - 1);
    if (unit != NULL)
        shift = 10 * (size_t)(unit - units + 1), length--;
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    if (length == 0 || length >= sizeof(number))
        return false;
    memcpy(number, text, length);
    number[length] = 0;
    char *end;
    if (strspn(number, "0123456789") == length) { /* exact: a double has 53 bits only */
        errno = 0;
        unsigned long long value = strtoull(number, &end, 10);
        *bytes = (uint64_t)value << shift;
        return errno == 0 && value <= (UINT64_C(1) << 63 >> shift) && *bytes < UINT64_C(1) << 63;
    }
    if (strspn(number, "0123456789+-.eE") != length)
        return false;
    double value = strtod(number, &end) * (double)(UINT64_C(1) << shift);
    if (*end != 0 || !isfinite(value) || value < 0 || value >= 0x1p63)
        return false;
    *bytes = (uint64_t)value;
    return true;
}

static bool parse_bool(const char *text, bool *value)
{
    static const char *const words[2][6] = {{"false", "0", "no", "off", "disable", ""},
                                            {"true", "1", "yes", "on", "enable", "true"}};
    for (size_t i = 0; i < 12; i++) {
        if (strcasecmp(text, words[i / 6][i % 6]) == 0) {
            *value = i >= 6;
            return true;
        }
    }
    return false;
}

/* Sets one from text. where and key word the error. */
static int set_text(struct mc_service_config *config, const struct setting *row, const char *text, const char *where,
                    const char *key, char *error, size_t error_size)
{
    void *at = (char *)config + row->offset;
    char *end;
    switch (row->kind) {
    case TEXT:
        if (strlen(text) >= MC_SERVICE_TEXT_MAX)
            return complain(error, error_size, "%.200s%s: longer than %d bytes", where, key, MC_SERVICE_TEXT_MAX - 1);
        memcpy(at, text, strlen(text) + 1);
        return 0;
    case SIZE:
        if (mc_service_parse_size(text, at))
            return 0;
        return complain(error, error_size,
                        "%.200s%s: '%.60s' is not possible; bytes are expected, as a number or as text like \"512mb\", "
                        "\"50gb\" (powers of 1024)",
                        where, key, text);
    case BOOL:
        if (parse_bool(text, at))
            return 0;
        return complain(error, error_size, "%.200s%s: '%.60s' is not possible; true or false is expected", where, key,
                        text);
    case PORT_NUMBER:
        break;
    }
    long port = strtol(text, &end, 10);
    if (end == text || *end != 0 || port < 0 || port > 65535)
        return complain(error, error_size, "%.200s%s: '%.60s' is not possible; a port from 0 to 65535 is expected",
                        where, key, text);
    *(uint16_t *)at = (uint16_t)port;
    return 0;
}

static void set_initial(struct mc_service_config *config)
{
    char error[8];
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < COUNT(settings); i++)
        mc_assert(settings[i].initial == NULL ||
                  set_text(config, &settings[i], settings[i].initial, "", "", error, sizeof(error)) == 0);
}

static const struct setting *find_setting(const char *key)
{
    if (strncmp(key, "mooncake_", 9) == 0) /* LMCache hands on keys with its own prefix */
        key += 9;
    for (size_t i = 0; i < COUNT(settings); i++) {
        if (strcmp(settings[i].name, key) == 0)
            return &settings[i];
        for (size_t j = 0; j < 2 && settings[i].spellings[j] != NULL; j++)
            if (strcmp(settings[i].spellings[j], key) == 0)
                return &settings[i];
    }
    return NULL;
}

static bool is_of_others(const char *key)
{
    if (strncmp(key, "mooncake_", 9) == 0)
        key += 9;
    for (size_t i = 0; i < COUNT(of_others); i++)
        if (strcmp(of_others[i], key) == 0)
            return true;
    return false;
}

/* ": did you mean x?" or nothing. */
static void suggest(const char *key, char *text, size_t size)
{
    struct mc_options options;
    mc_options_init(&options, rest_flags, COUNT(rest_flags));
    const char *nearest = mc_options_nearest(&options, key);
    text[0] = 0;
    if (nearest != NULL && find_setting(nearest) != NULL)
        snprintf(text, size, "; did you mean '%s'?", nearest);
    mc_options_free(&options);
}

/* ---- JSON ---- */

static int set_json(struct mc_service_config *config, const struct setting *row, const struct mc_json_cursor *value,
                    const char *name, const char *key, char *error, size_t error_size)
{
    char where[256], text[MC_SERVICE_TEXT_MAX * 2];
    int64_t whole;
    double number;
    snprintf(where, sizeof(where), "%.240s: ", name);
    bool is_word = value->kind == 't' || value->kind == 'f';
    bool is_number = mc_json_real(value, &number) == 0, is_whole = is_number && mc_json_integer(value, &whole) == 0;
    int rc = value->kind == '"' ? mc_json_text(value, text, sizeof(text)) : MC_ERR_PROTOCOL;
    if (rc == 0)
        return set_text(config, row, text, where, key, error, error_size);
    if (rc == MC_ERR_BUFFER_OVERFLOW)
        return complain(error, error_size, "%s%s: longer than %d bytes", where, key, MC_SERVICE_TEXT_MAX - 1);
    if (is_word && row->kind == BOOL)
        return set_text(config, row, value->kind == 't' ? "1" : "0", where, key, error, error_size);
    if (is_number && row->kind == BOOL)
        return set_text(config, row, number != 0 ? "1" : "0", where, key, error, error_size);
    /* A name may be a number, but not one that is written in several ways. */
    bool is_name = row->kind == TEXT && row->is_null_initial;
    if ((is_whole && (row->kind != TEXT || is_name)) || (is_number && row->kind == SIZE)) {
        snprintf(text, sizeof(text), "%.*s", (int)value->value.length, (const char *)value->value.data);
        return set_text(config, row, text, where, key, error, error_size);
    }
    return complain(error, error_size, "%s%s: %s is expected", where, key,
                    row->kind == TEXT   ? "a text in quotes"
                    : row->kind == SIZE ? "bytes, as a number or as text like \"50gb\","
                    : row->kind == BOOL ? "true or false"
                                        : "a port from 0 to 65535");
}

/* A key that is none of ours. True: it is one of another client's. */
static bool pass_over(const char *key, const char *name)
{
    char hint[128];
    if (is_of_others(key))
        return true;
    suggest(key, hint, sizeof(hint));
    mc_log(WARNING, "%s: unknown key '%.100s' is ignored%s", name, key, hint);
    return false;
}

/* What must be given and was not. */
static int complete(struct mc_service_config *config, const bool *given, bool has_other, const char *name, char *error,
                    size_t error_size)
{
    for (size_t i = 0; i < COUNT(settings); i++) {
        if (given[i] || settings[i].initial != NULL)
            continue;
        /* A file that was written for FastDeploy or vLLM names no host; one of ours must. */
        if (!has_other || strcmp(settings[i].name, "local_hostname") != 0)
            return complain(error, error_size, "%.200s: Missing required config field: %s", name, settings[i].name);
        const char *host = mc_variable(MOONCAKE_LOCAL_HOSTNAME);
        int rc = set_text(config, &settings[i], host != NULL ? host : "localhost", "", "MOONCAKE_LOCAL_HOSTNAME", error,
                          error_size);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int mc_service_config_apply(struct mc_service_config *config, const char *text, size_t length, const char *name,
                            char *error, size_t error_size)
{
    bool given[COUNT(settings)] = {false}, has_other = false;
    struct mc_span whole = mc_span(text, length);
    struct mc_json_cursor cursor, own;
    char key[128];
    int rc = mc_json_member(whole, "", &cursor), line, column; /* all of it is JSON, or nothing of it is applied */
    if (rc >= 0)
        rc = mc_json_open(whole, '{', &cursor);
    while (rc == 0 && mc_json_next(&cursor) == 1) {
        struct mc_json_cursor as_text = cursor;
        as_text.value = cursor.name;
        as_text.kind = '"';
        if (mc_json_text(&as_text, key, sizeof(key)) < 0)
            snprintf(key, sizeof(key), "%.*s", (int)(cursor.name.length < 100 ? cursor.name.length : 100),
                     (const char *)cursor.name.data);
        const struct setting *row = find_setting(key);
        if (row == NULL) {
            has_other |= pass_over(key, name);
            continue;
        }
        bool is_own = strcmp(key, row->name) == 0;
        has_other = has_other || !is_own;
        if ((!is_own && mc_json_member(whole, row->name, &own) == 1) || (cursor.kind == 'n' && row->is_null_initial))
            continue; /* the name of ours wins */
        rc = set_json(config, row, &cursor, name, key, error, error_size);
        given[row - settings] = true;
    }
    if (rc == 0)
        return complete(config, given, has_other, name, error, error_size);
    if (rc == MC_ERR_PROTOCOL) {
        mc_json_where(whole, &cursor, &line, &column);
        return complain(error, error_size, "%.200s:%d:%d: %.200s", name, line, column, cursor.problem);
    }
    return rc;
}

static int apply_file(struct mc_service_config *config, const char *path, char *error, size_t error_size)
{
    char reason[300];
    size_t length;
    char *text = mc_file_read(NULL, path, &length, reason, sizeof(reason));
    if (text == NULL)
        return complain(error, error_size, "config file %.200s: %s", path, reason);
    int rc = mc_service_config_apply(config, text, length, path, error, error_size);
    free(text);
    return rc;
}

/* ---- environment ---- */

static int apply_environment(struct mc_service_config *config, char *error, size_t error_size)
{
    int rc = 0;
    snprintf(config->local_hostname, sizeof(config->local_hostname), "localhost");
    snprintf(config->metadata_server, sizeof(config->metadata_server), "P2PHANDSHAKE");
    for (size_t i = 0; i < COUNT(settings) && rc == 0; i++) {
        for (size_t j = 0; j < 2; j++) {
            const char *text = mc_variable_value(settings[i].variables[j]);
            if (text == NULL)
                continue;
            rc = set_text(config, &settings[i], text, "environment: ", mc_variable_name(settings[i].variables[j]),
                          error, error_size);
            break;
        }
    }
    return rc;
}

/* ---- flags ---- */

static const struct setting *setting_of_flag(enum mc_service_command command, const char *flag)
{
    for (size_t i = 0; command == MC_SERVICE_CLIENT && i < COUNT(client_names); i++)
        if (strcmp(client_names[i].flag, flag) == 0)
            return find_setting(client_names[i].setting);
    for (size_t i = 0; i < COUNT(settings); i++)
        if (strcmp(settings[i].name, flag) == 0)
            return &settings[i];
    return NULL;
}

/* Flags that name a setting; of a command that reads no file its defaults too. */
static int apply_flags(enum mc_service_command command, const struct mc_options *options,
                       struct mc_service_config *config, char *error, size_t error_size)
{
    int rc = 0;
    for (size_t i = 0; i < options->count && rc == 0; i++) {
        const struct mc_option *flag = &options->table[i];
        const struct setting *row = setting_of_flag(command, flag->name);
        const struct mc_option_value *value = &options->values[i];
        char number[24];
        if (row == NULL || (command == MC_SERVICE_REST && value->source != MC_OPTION_FROM_FLAG))
            continue;
        snprintf(number, sizeof(number), "%lld", (long long)value->number);
        rc = set_text(config, row, flag->type == MC_OPTION_TEXT ? value->text : number, "--", flag->name, error,
                      error_size);
    }
    return rc;
}

/* Takes -Dkey=value, -D key=value, --define key=value and --define=key=value out of argv; returns how many. */
static int take_defines(int *argc, char **argv, const char *defines[DEFINES_MAX], char *error, size_t error_size)
{
    int count = 0, left = 1;
    for (int i = 1; i < *argc; i++) {
        const char *value = strncmp(argv[i], "--define=", 9) == 0 ? argv[i] + 9
                            : strncmp(argv[i], "-D", 2) == 0      ? argv[i] + 2
                                                                  : NULL;
        if (strcmp(argv[i], "--define") == 0 || strcmp(argv[i], "-D") == 0) {
            if (i + 1 == *argc)
                return complain(error, error_size, "%s needs key=value behind it", argv[i]);
            value = argv[++i];
        }
        if (value == NULL)
            argv[left++] = argv[i];
        else if (count == DEFINES_MAX)
            return complain(error, error_size, "more than %d -D", DEFINES_MAX);
        else
            defines[count++] = value;
    }
    *argc = left;
    argv[left] = NULL;
    return count;
}

static int apply_define(struct mc_service_config *config, const char *define, char *error, size_t error_size)
{
    char key[128], hint[128];
    const char *equals = strchr(define, '=');
    size_t length = equals == NULL ? 0 : (size_t)(equals - define);
    if (length == 0 || length >= sizeof(key)) {
        mc_log(WARNING, "-D%.200s is ignored: key=value is expected", define);
        return 0;
    }
    memcpy(key, define, length);
    key[length] = 0;
    const struct setting *row = find_setting(key);
    if (row != NULL)
        return set_text(config, row, equals + 1, "-D", key, error, error_size);
    suggest(key, hint, sizeof(hint));
    mc_log(WARNING, "-D%.200s is ignored: there is no such key%s", define, hint);
    return 0;
}

#define USUAL_NS 2000000000ull /* within so long its file system answers, or hangs */

/* Where the disk is: as it is said, as the environment says whatever else says the rest, or where the original
 * looks. */
static int settle_disk(struct mc_service_config *config, char *error, size_t error_size)
{
    static const char usual[] = "/data/file_storage";
    const struct setting *row = find_setting("ssd_offload_path");
    const char *variable = mc_variable_name(row->variables[0]), *text = mc_variable_value(row->variables[0]);
    if (!config->enable_ssd_offload || config->ssd_offload_path[0] != 0)
        return 0;
    if (text != NULL && text[0] != 0)
        return set_text(config, row, text, "environment: ", variable, error, error_size);
    /* One that hangs is there, and done without once the store is opened, as the log says then. */
    if (!mc_path_answers(usual, mc_clock_ns() + USUAL_NS) || access(usual, F_OK) == 0)
        return set_text(config, row, usual, "", row->name, error, error_size);
    mc_log(WARNING,
           "a disk is wanted, but nobody says where (ssd_offload_path, %s), and there is no %s: objects stay in "
           "memory only",
           variable, usual);
    return 0;
}

/* What is accepted without doing what it says: never in silence. */
static void warn_ignored(const struct mc_options *options, const struct mc_service_config *config)
{
    mc_flags_tell(options);
    if (strcmp(config->metadata_server, "P2PHANDSHAKE") != 0 &&
        mc_options_source(options, "metadata_server") == MC_OPTION_FROM_DEFAULT && config->has_rest)
        mc_log(INFO, "metadata_server changes nothing here: the store asks nothing there");
}

static int config_check(struct mc_service_config *config, char *error, size_t error_size)
{
    const char *const required[] = {config->local_hostname, config->metadata_server, config->master_server_address,
                                    config->protocol};
    static const char *const names[] = {"local_hostname", "metadata_server", "master_server_address", "protocol"};
    for (size_t i = 0; i < COUNT(required); i++)
        if (required[i][strspn(required[i], " \t")] == 0)
            return complain(error, error_size, "Config field '%s' must be a non-empty string", names[i]);
    /* An address to listen on is none to be reached under: the store finds one itself for a host that is local. */
    if (strcmp(config->local_hostname, "0.0.0.0") == 0 || strcmp(config->local_hostname, "::") == 0)
        snprintf(config->local_hostname, sizeof(config->local_hostname), "localhost");
    return 0;
}

static int load_settings(enum mc_service_command command, const struct mc_options *options,
                         struct mc_service_config *config, char *error, size_t error_size)
{
    set_initial(config);
    if (command == MC_SERVICE_CLIENT)
        return 0;
    const char *path = mc_options_text(options, "config");
    if (path[0] == 0)
        path = mc_variable(MOONCAKE_CONFIG_PATH);
    return path != NULL ? apply_file(config, path, error, error_size) : apply_environment(config, error, error_size);
}

static int take_own(enum mc_service_command command, const struct mc_options *options, struct mc_service_config *config,
                    char *error, size_t error_size)
{
    int rc = mc_options_store(options, config, error, error_size);
    config->has_rest = command == MC_SERVICE_REST;
    if (rc == 0 && config->has_rest && config->master_server_address[0] == 0)
        return complain(
            error, error_size,
            "no master is named: give --config FILE, --master_server_address, or set MOONCAKE_CONFIG_PATH or "
            "MOONCAKE_MASTER");
    return rc;
}

static void print_config(const struct mc_service_config *config, struct mc_buffer *text)
{
    struct mc_json_writer out = {.out = text, .indent = 2};
    mc_json_begin(&out, NULL, '{');
    for (size_t i = 0; i < COUNT(settings); i++) {
        const void *at = (const char *)config + settings[i].offset;
        if (settings[i].kind == TEXT)
            mc_json_add_text(&out, settings[i].name, at);
        else if (settings[i].kind == BOOL)
            mc_json_add_bool(&out, settings[i].name, *(const bool *)at);
        else
            mc_json_add_number(&out, settings[i].name,
                               settings[i].kind == SIZE ? *(const uint64_t *)at : *(const uint16_t *)at);
    }
    mc_json_end(&out, '}');
    mc_buffer_put_u8(text, '\n');
}

#define SYNTAX                                                                                                         \
    "Flags: --flag=value, --flag value, --boolean, --noboolean; dashes are as good as underscores. The log goes to "   \
    "stderr.\n"

static const struct {
    const char *name, *head;
    const struct mc_option *table;
    size_t count;
} commands[] = {
    [MC_SERVICE_REST] = {"mc_store_rest_server",
                         "mc_store_rest_server: lends memory to the pool, and serves put and get over HTTP.\n"
                         "Usage: mc_store_rest_server [--config FILE] [--port 8080] [-Dkey=value ...]\n"
                         "       also: python -m mooncake.mooncake_store_service\n" SYNTAX,
                         rest_flags, COUNT(rest_flags)},
    [MC_SERVICE_CLIENT] = {"mooncake_client",
                           "mooncake_client: lends memory to the pool.\n"
                           "Usage: mooncake_client [--flag=value ...]\n" SYNTAX,
                           client_flags, COUNT(client_flags)},
};

int mc_service_config_load(enum mc_service_command command, int argc, char **argv, struct mc_service_config *config,
                           struct mc_buffer *text, char *error, size_t error_size)
{
    const char *defines[DEFINES_MAX];
    struct mc_options options;
    int define_count = 0, rc = 0;
    if (command == MC_SERVICE_REST) {
        define_count = take_defines(&argc, argv, defines, error, error_size);
        if (define_count < 0)
            return define_count;
    }
    mc_options_init(&options, commands[command].table, commands[command].count);
    rc = mc_options_parse(&options, argc, argv, mc_file_read, NULL, error, error_size);
    if (rc == 0 && mc_options_answer(&options, commands[command].name, commands[command].head, text))
        rc = 1;
    if (rc == 0) {
        (void)mc_log_set_flags(mc_options_int(&options, "v"), mc_options_int(&options, "minloglevel"));
        rc = load_settings(command, &options, config, error, error_size);
    }
    if (rc == 0)
        rc = apply_flags(command, &options, config, error, error_size);
    for (int i = 0; i < define_count && rc == 0; i++)
        rc = apply_define(config, defines[i], error, error_size);
    if (rc == 0)
        rc = take_own(command, &options, config, error, error_size);
    if (rc == 0)
        rc = config_check(config, error, error_size);
    if (rc == 0)
        rc = settle_disk(config, error, error_size);
    if (rc == 0 && mc_flags_use(&options, error, error_size) < 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc == 0 && mc_options_bool(&options, "print_config")) {
        print_config(config, text);
        rc = 1;
    }
    if (rc == 0) {
        if (mc_options_text(&options, "log_dir")[0] != 0)
            mc_log_to_directory(mc_options_text(&options, "log_dir"));
        mc_keys_use(config->auth_file);
        mc_unread_tell();
        warn_ignored(&options, config);
    }
    mc_options_free(&options);
    return rc;
}
