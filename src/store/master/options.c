/* The master's flag table, its config files (YAML, JSON), and what is derived from both. */
#include "store/master/options.h"

#include "base/build.h"
#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/file.h"
#include "env/flags.h"
#include "env/harden.h"
#include "env/json.h"
#include "env/log.h"
#include "env/unread.h"
#include "store/core/policy.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <yaml.h>

#define SECOND ((int64_t)1000)
#define DAY (86400 * SECOND)
#define YEAR (365 * DAY)
#define KEY_MAX_BYTES 256

#define INTO(member) TO(mc_master_config, member)

/* What to do instead, and why nothing is lost. */
#define STRATEGY                                                                                                       \
    "segments are drawn by their free space; a put chooses by preferred_segments and prefer_alloc_in_same_node"
#define TASKS "there is no queue: the store that asks for a copy or a move carries it out"
#define OPLOG "no log is shipped: store nodes tell a new leader what they hold"
#define SNAPSHOT "no snapshot is needed: store nodes tell a new master what they hold, and MC_DATA_DIR keeps theirs"
#define NOF                                                                                                            \
    "give store nodes a file system on the device: --enable_offload, and MOONCAKE_OFFLOAD_FILE_STORAGE_PATH there"
#define CXL "lend memory of the host, under numactl where CXL is a node of it"
#define EVENTS "a consumer is told of it by who sets it up: the store does not know"

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text", SECTION("General"), FLAG_ONLY),
    ALIAS("h", "help"),
    ROW("helpfull", BOOL, "false", "shows, too, the flags that are accepted and change nothing", FLAG_ONLY),
    ALIAS("helpshort", "help"),
    VERSION(FLAG_ONLY),
    ROW("print_config", BOOL, "false", "shows every setting as it would be used, as a config file, and where it comes from", FLAG_ONLY),
    ROW("check_config", BOOL, "false", "looks whether all settings are known and right, says what is not, and ends", FLAG_ONLY),
    ROW("config_path", TEXT, "", "settings from this .yaml, .yml or .json file: the same names, nested names joined by a dot; flags override it", FLAG_ONLY),
    ROW("flagfile", TEXT, "", "flags from this file, one a line, # for comments", FLAG_ONLY),

    ROW("rpc_port", INT, "50051", "port of the master's service; 0: the kernel chooses, the log names it", SECTION("Service"), PORT, INTO(rpc_port)),
    ROW("port", INT, "50051", "older name of rpc_port, which wins when both are given", PORT),
    ROW("rpc_address", TEXT, "0.0.0.0", "address of the master's service", INTO(rpc_address)),
    ROW("max_connections_per_address", INT, "0", "connections of one address; 0: three quarters of all places", LIMITS(0, 1 << 20)),
    ROW("rpc_interface", TEXT, "", "network interface whose address is used when rpc_address is not given"),
    NEEDLESS("max_threads", INT, "16", "the master's core is one thread", LIMITS(0, 65536)),
    NEEDLESS("rpc_thread_num", INT, "0", "the master's core is one thread", LIMITS(0, 65536)),
    NEEDLESS("rpc_conn_timeout_seconds", S, "0", "idle connections cost nothing; dead peers are found by client_ttl", LIMITS(0, YEAR)),
    NEEDLESS("rpc_enable_tcp_no_delay", BOOL, "true", "always on"),

    ROW("enable_metric_reporting", BOOL, "true", "writes the line 'Master Metrics: ...' every ten seconds", SECTION("Metrics and admin HTTP"), INTO(report_metrics)),
    ROW("metrics_port", INT, "9003", "port of /metrics, /metrics/summary, /health, the admin calls and the page", PORT, INTO(metrics_port)),
    ROW("metrics_host", TEXT, "0.0.0.0", "address of the same", INTO(metrics_host)),

    ROW("enable_http_metadata_server", BOOL, "false", "serves /metadata; on by itself when its host or port is given", SECTION("HTTP metadata server"), INTO(metadata_enabled)),
    ROW("http_metadata_server_port", INT, "8080", "its port", PORT, INTO(metadata_port)),
    ROW("http_metadata_server_host", TEXT, "0.0.0.0", "its address", INTO(metadata_host)),
    ROW("http_metadata_server_max_mib", INT, "1024", "it keeps so much in memory (MiB)", LIMITS(1, 1 << 20)),
    NEEDLESS("enable_metadata_cleanup_on_timeout", BOOL, "false", "store nodes leave nothing at the metadata server, and an engine takes the place of a killed one of its name"),

    ROW("default_kv_lease_ttl", MS, "10000", "a get protects an object from remove and eviction for so long", SECTION("Objects"), LIMITS(0, DAY), INTO(core.lease_ttl_ms)),
    ROW("default_kv_soft_pin_ttl", MS, "1800000", "a soft pin of which the put does not say more lasts so long, however it is used", LIMITS(0, YEAR), INTO(core.soft_pin_ttl_ms)),
    ROW("max_kv_soft_pin_ttl", MS, "86400000", "longest soft pin that a put may ask for; at least default_kv_soft_pin_ttl", LIMITS(0, YEAR), INTO(core.soft_pin_max_ms)),
    ROW("max_firm_pin_ratio", REAL, "0.25", "part of all memory, and of a tenant's quota, that puts may pin firmly, so that it is not evicted before its time; 0: none", LIMITS(0, 1), INTO(core.firm_pin_ratio)),
    ROW("max_hard_pin_ratio", REAL, "1", "part of all memory that puts may pin for ever; what is beyond that is refused; 1: any", LIMITS(0, 1), INTO(core.hard_pin_ratio)),
    ROW("allow_evict_soft_pinned_objects", BOOL, "true", "evicts soft-pinned objects when nothing else can be evicted", INTO(core.allow_evict_soft_pinned)),
    ROW("eviction_policy", TEXT, "s3fifo", "what is evicted first", CHOICES("s3fifo|clock|lru")),
    ROW("eviction_ratio", REAL, "0", "part of the capacity that is evicted ahead above the high watermark; at least a reserve", LIMITS(0, 1), INTO(core.eviction_ratio)),
    ROW("eviction_high_watermark_ratio", REAL, "1", "used part of the capacity above which it evicts ahead; a reserve stays free", LIMITS(0, 1), INTO(core.eviction_high_watermark)),
    ROW("put_start_discard_timeout_sec", S, "30", "a put that was begun and not ended is cut after this", LIMITS(SECOND, YEAR), INTO(core.put_discard_ms)),
    NEEDLESS("put_start_release_timeout_sec", S, "600", "space comes back when its owner confirms that nobody can write it, not by time", LIMITS(SECOND, YEAR)),
    ROW("client_ttl", S, "10", "a member that was silent for so long is gone", LIMITS(100, DAY), .file_name = "client_live_ttl_sec", INTO(core.client_ttl_ms)),
    NEEDLESS("mmap_arena_pool_size", INT, "8589934592", "there is no arena", LIMITS(0, INT64_MAX)),
    NEEDLESS("use_mmap_arena_allocator", BOOL, "false", "there is no arena"),
    NEEDLESS("memory_allocator", TEXT, "offset", "there is one allocator, the offset kind", CHOICES("offset|cachelib")),
    ABSENT(STRATEGY, "allocation_strategy", TEXT, "random", "how segments are chosen; now: by free space, at random among equals", CHOICES("random|free_ratio_first|ssd_free_ratio_first|local_first|cxl")),
    ROW("auth_file", TEXT, "", "file of keys: who calls, on every port, has to prove one (mooncake_key new FILE makes it); empty: $MC_AUTH_FILE, else $MC_AUTH_TOKEN, else everybody is let in", INTO(auth_file)),
    TLS_OF_ALL, TLS_OF_PORTS, TLS_OF_CALLS,
    ROW("harden", BOOL, "false", "runs as user mooncake if root starts it, without a way to gain rights, and with a filter of system calls", INTO(harden)),
    ROW("state_dir", TEXT, "", "directory that outlives the process, where the master leaves a note for the next one of its port: who acted last, and until when; empty: $STATE_DIRECTORY, else /tmp/mooncake-UID; none: no note; not used with enable_ha"),
    ROW("cluster_id", TEXT, "mooncake_cluster", "name of the cluster in the place of the election; equal for all its masters"),
    ROW("cluster_uuid", TEXT, "", "which cluster this is, 32 hex digits: nodes that hold contents of another one are refused; empty: as the master before knew it, or as the contents say"),

    ROW("root_fs_dir", TEXT, "", "store nodes without a disk of their own have one in this directory, under cluster_id; switches enable_offload on", SECTION("Disk tier")),
    ROW("global_file_segment_size", INT, "9223372036854775807", "bytes of each such disk at most", LIMITS(0, INT64_MAX)),
    ROW("enable_disk_eviction", BOOL, "true", "false: what lies on such a disk stays, and when it is full nothing more is stored there"),
    ROW("quota_bytes", INT, "0", "bytes of each such disk at most; 0: 90 % of what is free there", LIMITS(0, INT64_MAX)),
    ROW("enable_offload", BOOL, "false", "store nodes that have a disk of their own store objects there, when they are put"),
    ROW("offload_on_evict", BOOL, "false", "with enable_offload: stores them shortly before they are evicted instead"),
    ROW("offload_force_evict", BOOL, "false", "evicts strictly in order; else what is on its way to the disk goes after what is not, if there is anything", INTO(core.offload_force_evict)),
    ROW("offloading_queue_limit", INT, "50000", "objects that wait for one disk; beyond that none is stored", LIMITS(1, 100000000), INTO(core.offload_queue_limit)),
    ROW("offload_cap_ratio", REAL, "0.5", "part of that queue that eviction may fill", LIMITS(0, 1), INTO(core.offload_cap_ratio)),
    ROW("promotion_on_hit", BOOL, "false", "what is read from disk stays in memory like what is put; else it is evicted again first", INTO(core.promotion_on_hit)),
    ROW("promotion_admission_threshold", INT, "2", "reads from disk that are needed for that", LIMITS(1, 255), INTO(core.promotion_threshold)),
    ROW("promotion_queue_limit", INT, "50000", "it is not done while so many objects are being read from disks", LIMITS(1, 100000000), INTO(core.promotion_queue_limit)),
    ROW("promotion_max_per_heartbeat", INT, "1", "objects of one node for which it is done, from one heartbeat to the next", LIMITS(1, 65536), INTO(core.promotion_per_heartbeat)),

    ROW("dynamic_replication_mode", TEXT, "off", "enforce: what is read often from other hosts is copied to where it is read; observe: such copies are only counted", SECTION("Dynamic replication and tasks"), CHOICES("off|observe|enforce")),
    ROW("dynamic_replication_heat_window_seconds", S, "10", "time over which reads are counted", LIMITS(SECOND, DAY), INTO(core.spread_window_ms)),
    ROW("dynamic_replication_admission_qps_threshold", REAL, "0.8", "reads a second in the mean over it from which on an object is hot", LIMITS(0, 1000000000), INTO(core.spread_reads_per_s)),
    ROW("dynamic_replication_max_memory_replicas", INT, "2", "replicas in memory up to which a hot object is copied", LIMITS(1, 16), INTO(core.spread_replicas_max)),
    NEEDLESS("max_total_finished_tasks", INT, "10000", TASKS, LIMITS(0, 100000000)),
    NEEDLESS("max_total_pending_tasks", INT, "10000", TASKS, LIMITS(0, 100000000)),
    NEEDLESS("max_total_processing_tasks", INT, "10000", TASKS, LIMITS(0, 100000000)),
    NEEDLESS("pending_task_timeout_sec", S, "300", TASKS, LIMITS(0, YEAR)),
    NEEDLESS("processing_task_timeout_sec", S, "300", TASKS, LIMITS(0, YEAR)),
    NEEDLESS("max_retry_attempts", INT, "10", TASKS, LIMITS(0, 65536)),

    ROW("enable_ha", BOOL, "false", "several masters, one of which is elected; needs etcd_endpoints or a Lease, and rpc_address or rpc_interface: the address that clients are told", SECTION("High availability"), INTO(ha_enabled)),
    ROW("ha_backend_type", TEXT, "etcd", "where the election is held: etcd, or k8s, a Lease of Kubernetes; redis is refused", CHOICES("etcd|redis|k8s")),
    ROW("ha_backend_connstring", TEXT, "", "k8s: the Lease, namespace/name; etcd: its addresses, when etcd_endpoints is not given"),
    ROW("etcd_endpoints", TEXT, "", "host:port of the members of etcd, separated by ; or , with or without http:// or https://"),
    ROW("ha_lease_ttl", MS, "2000", "a leader that cannot renew stops serving after this, and another may follow; equal for all masters", LIMITS(500, 60000), INTO(ha_lease_ttl_ms)),
    ROW("etcd_compaction_interval", S, "1800", "the leader throws away etcd's history (all of it, also other users') of before the last such time, since each renewal adds to it; 0: never, for an etcd that compacts by itself", LIMITS(0, DAY), INTO(etcd_compaction_ms)),
    NEEDLESS("enable_oplog", BOOL, "false", OPLOG),
    NEEDLESS("oplog_poll_interval_ms", MS, "1000", OPLOG, LIMITS(1, DAY)),
    NEEDLESS("oplog_batch_max_entries", INT, "1024", OPLOG, LIMITS(1, 1000000)),
    NEEDLESS("batch_oplog_retry_timeout_sec", S, "180", OPLOG, LIMITS(0, YEAR)),
    ROW("pod_name", TEXT, "", "the pod of this master, which has the label mooncake.io/store-role=leader while this master leads by a Lease: a Service can choose it; needs the right to patch pods. Empty: what POD_NAME says"),
    ROW("pod_namespace", TEXT, "", "the namespace of pod_name. Empty: what POD_NAMESPACE says"),

    NEEDLESS("enable_snapshot", BOOL, "false", SNAPSHOT, SECTION("Snapshots")),
    NEEDLESS("enable_snapshot_restore", BOOL, "false", SNAPSHOT),
    NEEDLESS("snapshot_interval_seconds", S, "600", SNAPSHOT, LIMITS(SECOND, YEAR)),
    NEEDLESS("snapshot_child_timeout_seconds", S, "300", SNAPSHOT, LIMITS(SECOND, YEAR)),
    NEEDLESS("snapshot_retention_count", INT, "2", SNAPSHOT, LIMITS(1, 65536)),
    NEEDLESS("snapshot_backup_dir", TEXT, "", SNAPSHOT),
    NEEDLESS("snapshot_object_store_type", TEXT, "", SNAPSHOT, CHOICES("|local|s3")),
    ALIAS("snapshot_payload_store_type", "snapshot_object_store_type"),
    ALIAS("snapshot_payload_backend_type", "snapshot_object_store_type"),
    NEEDLESS("snapshot_catalog_store_type", TEXT, "", SNAPSHOT, CHOICES("|embedded|redis|payload")),
    ALIAS("snapshot_catalog_backend_type", "snapshot_catalog_store_type"),
    NEEDLESS("snapshot_catalog_store_connstring", TEXT, "", SNAPSHOT),
    ALIAS("snapshot_catalog_backend_connstring", "snapshot_catalog_store_connstring"),

    ROW("enable_multi_tenants", BOOL, "false", "clients without a key are of the tenant that they name (tenant_id), each with objects of its own; keys that have a tenant are of that one in any case", SECTION("Tenants"), INTO(core.tenants)),
    ROW("enable_tenant_quota", BOOL, "false", "and who has no quota puts nothing; on by itself with a file of quotas", INTO(core.quotas)),
    ROW("tenant_quota_connector_type", TEXT, "file", "where quotas are kept: in a file, or in etcd, under the cluster_id", CHOICES("file|etcd")),
    ROW("tenant_quota_connector_uri", TEXT, "", "file of quotas, which the admin port's calls change, or etcd's host:port, ...; empty: they last as long as this process, or stand at etcd_endpoints"),

    ABSENT(NOF, "nof_eviction_ratio", REAL, "0.05", "as eviction_ratio, for NVMe-oF segments", SECTION("NVMe-oF and CXL segments"), LIMITS(0, 1)),
    ABSENT(NOF, "nof_eviction_high_watermark_ratio", REAL, "0.90", "as eviction_high_watermark_ratio", LIMITS(0, 1)),
    ABSENT(NOF, "nof_heartbeat_interval_sec", S, "10", "time between two probes", LIMITS(SECOND, DAY)),
    ABSENT(NOF, "nof_heartbeat_probe_timeout_ms", MS, "1000", "longest time of a probe", LIMITS(1, DAY)),
    ABSENT(NOF, "nof_heartbeat_failures_threshold", INT, "3", "failed probes that end a segment", LIMITS(1, 65536)),
    ABSENT(CXL, "enable_cxl", BOOL, "false", "lends CXL memory"),
    ABSENT(CXL, "cxl_path", TEXT, "/dev/dax0.0", "its device"),
    ABSENT(CXL, "cxl_size", INT, "8589934592", "its bytes", LIMITS(0, INT64_MAX)),

    ROW("enable_kv_events", BOOL, "false", "tells over HTTP which keys become readable, and which are so no more: /api/v1/kv_events", SECTION("KV events"), INTO(has_kv_events)),
    ROW("kv_events_backend_id", TEXT, "", "name of this store in what is told", INTO(kv_events_backend)),
    ROW("kv_events_queue_capacity", INT, "65536", "events that are kept for who reads them later, 112 bytes each", LIMITS(1, 100000000), INTO(kv_events_capacity)),
    ROW("kv_events_bind_endpoint", TEXT, "", "they are published by ZMQ, too, at tcp://HOST:PORT; empty: they are not", INTO(kv_events_endpoint)),
    ROW("kv_events_emit_legacy_compat", BOOL, "true", "there with the names that engines give to events, too", INTO(kv_events_legacy)),
    ROW("kv_events_emit_object_key", BOOL, "true", "there with the keys; else keys that are no numbers are not published", INTO(kv_events_object_key)),
    ROW("kv_events_format", TEXT, "mooncake", "of these events: the original's form, or the one that inference engines give to theirs", CHOICES("mooncake|engine"), INTO(kv_events_format)),
    ROW("kv_events_replay_endpoint", TEXT, "", "who has missed some is told them again by ZMQ, at tcp://HOST:PORT; empty: is not", INTO(kv_events_replay)),
    ABSENT(EVENTS, "kv_events_model_name", TEXT, "", "deprecated"),
    ABSENT(EVENTS, "kv_events_tenant_id", TEXT, "", "deprecated"),
    ABSENT(EVENTS, "kv_events_additional_salt", TEXT, "", "deprecated"),
    ABSENT(EVENTS, "kv_events_lora_name", TEXT, "", "deprecated"),
    ABSENT(EVENTS, "kv_events_block_size", INT, "0", "deprecated", LIMITS(0, INT64_MAX)),
    ABSENT(EVENTS, "kv_events_dp_rank", INT, "0", "deprecated", LIMITS(INT32_MIN, INT32_MAX)),

    ROW("v", INT, "0", "detail of the log: 1 debug, 2 every message; MC_LOG_LEVEL=DEBUG or TRACE does the same", SECTION("Log"), LIMITS(0, 9)),
    ROW("minloglevel", INT, "0", "0 info, 1 warnings and errors, 2 errors", LIMITS(0, 3)),
    NEEDLESS("logtostderr", BOOL, "true", "the log goes to stderr"),
    NEEDLESS("alsologtostderr", BOOL, "true", "the log goes to stderr"),
    NEEDLESS("stderrthreshold", INT, "0", "use minloglevel", LIMITS(0, 3)),
    ROW("log_dir", TEXT, "", "the log goes also to a file in this directory, mooncake_master.PID.log; MC_LOG_DIR does the same"),
    FLAGS_OF_ITS_LOG,
};
/* clang-format on */

void mc_master_options_init(struct mc_options *options)
{
    mc_options_init(options, table, sizeof(table) / sizeof(table[0]));
}

/* ---- config files ---- */

struct config_file {
    struct mc_options *options;
    const char *name;
    char *error;
    size_t error_size;
    size_t keys;
};

static int file_fail(struct config_file *file, long line, const char *text)
{
    if (line > 0)
        snprintf(file->error, file->error_size, "%.200s:%ld: %.250s", file->name, line, text);
    else
        snprintf(file->error, file->error_size, "%.200s: %.250s", file->name, text);
    return MC_ERR_INVALID_PARAMS;
}

/* One setting. line 0: not known. */
static int file_set(struct config_file *file, const char *key, const char *value, long line)
{
    char prefix[256], place[24] = "";
    if (line > 0)
        snprintf(place, sizeof(place), ":%ld", line);
    if (++file->keys > MC_CONFIG_KEYS_MAX)
        return file_fail(file, line, "more settings than there can be");
    int index = mc_options_find(file->options, key);
    if (index < 0) {
        const char *nearest = mc_options_nearest(file->options, key);
        char hint[MC_OPTION_ERROR_MAX];
        snprintf(hint, sizeof(hint), "unknown setting '%.100s'%s%s%s%s", key,
                 mc_options_bool(file->options, "check_config") ? "" : " is ignored",
                 nearest == NULL ? "" : "; did you mean ", nearest == NULL ? "" : nearest, nearest == NULL ? "" : "?");
        if (mc_options_bool(file->options, "check_config"))
            return file_fail(file, line, hint);
        mc_log(WARNING, "%s%s: %s", file->name, place, hint);
        return 0;
    }
    if (table[index].is_flag_only) {
        mc_log(WARNING, "%s%s: '%s' is a flag only and is ignored in a file", file->name, place, table[index].name);
        return 0;
    }
    snprintf(prefix, sizeof(prefix), "%.200s%s: ", file->name, place);
    return mc_options_set(file->options, (size_t)index, value, MC_OPTION_FROM_FILE, prefix, file->error,
                          file->error_size);
}

/* Writes "prefix.name" over key, whose first `prefix` bytes stay. Negative when it does not fit. */
static int join_key(char *key, size_t prefix, const char *name, size_t length)
{
    if (length == 0 || memchr(name, 0, length) != NULL || prefix + length + 2 > KEY_MAX_BYTES)
        return MC_ERR_INVALID_PARAMS;
    if (prefix > 0)
        key[prefix++] = '.';
    memcpy(key + prefix, name, length);
    key[prefix + length] = 0;
    return 0;
}

struct yaml_state {
    struct config_file *file;
    char key[KEY_MAX_BYTES];
    size_t prefixes[MC_CONFIG_DEPTH_MAX]; /* length of the key that leads to each open map */
    int depth, documents;
    bool has_key;
};

static int yaml_scalar(struct yaml_state *state, const yaml_event_t *event, long line)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (state->depth == 0)
        return file_fail(state->file, line, "a list of 'name: value' lines is expected");
    if (!state->has_key) {
        state->has_key = true;
        return join_key(state->key, state->prefixes[state->depth - 1], text, length) < 0
                   ? file_fail(state->file, line, "this name is not possible")
                   : 0;
    }
    state->has_key = false;
    if (memchr(text, 0, length) != NULL)
        return file_fail(state->file, line, "a value holds a zero byte");
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
        (length == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
        return 0; /* named without a value: stays as it is */
    return file_set(state->file, state->key, text, line);
}

static int yaml_event(struct yaml_state *state, const yaml_event_t *event)
{
    long line = (long)event->start_mark.line + 1;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return ++state->documents > 1 ? file_fail(state->file, line, "a second document in one file") : 0;
    case YAML_MAPPING_START_EVENT:
        if (state->depth > 0 && !state->has_key)
            return file_fail(state->file, line, "a map cannot be a name");
        if (state->depth == MC_CONFIG_DEPTH_MAX)
            return file_fail(state->file, line, "nested too deep");
        state->prefixes[state->depth] = state->depth == 0 ? 0 : strlen(state->key);
        state->depth++;
        state->has_key = false;
        return 0;
    case YAML_MAPPING_END_EVENT:
        state->depth--;
        state->has_key = false;
        return 0;
    case YAML_SCALAR_EVENT:
        return yaml_scalar(state, event, line);
    case YAML_SEQUENCE_START_EVENT:
        return file_fail(state->file, line, "a list is not a possible value here");
    case YAML_ALIAS_EVENT:
        return file_fail(state->file, line, "aliases are not supported");
    default:
        return 0;
    }
}

static int apply_yaml(struct config_file *file, const char *text, size_t length)
{
    struct yaml_state state = {.file = file};
    yaml_parser_t parser;
    bool is_end = false;
    int rc = 0;
    if (yaml_parser_initialize(&parser) == 0)
        return MC_ERR_NO_MEMORY;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    while (rc == 0 && !is_end) {
        yaml_event_t event;
        if (yaml_parser_parse(&parser, &event) == 0) {
            rc = file_fail(file, (long)parser.problem_mark.line + 1,
                           parser.problem == NULL ? "not YAML" : parser.problem);
            break;
        }
        is_end = event.type == YAML_STREAM_END_EVENT;
        rc = yaml_event(&state, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}

static int json_value(struct config_file *file, const char *key, const struct mc_json_cursor *value)
{
    char text[MC_OPTION_TEXT_MAX];
    int64_t whole;
    double number;
    if (value->kind == 'n')
        return 0;
    if (value->kind == '[' || value->kind == '{') {
        snprintf(text, sizeof(text), "'%.30s': a list is not possible", key);
        return file_fail(file, 0, text);
    }
    if (value->kind == '"') {
        if (mc_json_text(value, text, sizeof(text)) < 0)
            return file_fail(file, 0, "a text that is too long, or holds a zero byte");
    } else if (mc_json_real(value, &number) == 0 && mc_json_integer(value, &whole) < 0) {
        snprintf(text, sizeof(text), "%.17g", number);
    } else {
        snprintf(text, sizeof(text), "%.*s", (int)value->value.length, (const char *)value->value.data);
    }
    return file_set(file, key, text, 0);
}

/* Bounded recursion: MC_CONFIG_DEPTH_MAX. */
static int json_map(struct config_file *file, struct mc_span map, char *key, size_t prefix, int depth)
{
    struct mc_json_cursor member;
    char name[KEY_MAX_BYTES];
    if (depth == MC_CONFIG_DEPTH_MAX)
        return file_fail(file, 0, "nested too deep");
    int rc = mc_json_open(map, '{', &member);
    for (int count = 1; rc == 0 && mc_json_next(&member) == 1; count++) {
        struct mc_json_cursor as_text = {.kind = '"', .value = member.name};
        if (count > MC_CONFIG_KEYS_MAX)
            return file_fail(file, 0, "more settings than there can be");
        if (mc_json_is_again(map, &member))
            return file_fail(file, 0, "a name stands twice in one object");
        if (mc_json_text(&as_text, name, sizeof(name)) < 0 || join_key(key, prefix, name, strlen(name)) < 0)
            return file_fail(file, 0, "a name is not possible");
        rc = member.kind == '{' ? json_map(file, member.value, key, strlen(key), depth + 1)
                                : json_value(file, key, &member);
    }
    return rc;
}

static int apply_json(struct config_file *file, const char *text, size_t length)
{
    char key[KEY_MAX_BYTES];
    struct mc_span whole = mc_span(text, length), unused;
    struct mc_json_cursor root;
    int line, column;
    if (mc_json_member(whole, "", &root) >= 0) /* all of it is JSON, or nothing of it is applied */
        return json_map(file, whole, key, 0, 0);
    if (mc_json_find(whole, "", &unused) >= 0)
        return file_fail(file, 1, "an object { \"name\": value } is expected");
    mc_json_where(whole, &root, &line, &column);
    return file_fail(file, line, root.problem);
}

int mc_master_options_apply(struct mc_options *options, enum mc_config_format format, const char *text, size_t length,
                            const char *name, char *error, size_t error_size)
{
    struct config_file file = {options, name, error, error_size, 0};
    return format == MC_CONFIG_JSON ? apply_json(&file, text, length) : apply_yaml(&file, text, length);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static int load_file(struct mc_options *options, const char *path, char *error, size_t error_size)
{
    char reason[MC_OPTION_ERROR_MAX];
    size_t length;
    if (!ends_with(path, ".yaml") && !ends_with(path, ".yml") && !ends_with(path, ".json")) {
        snprintf(error, error_size, "--config_path %.200s: the name must end in .yaml, .yml or .json", path);
        return MC_ERR_INVALID_PARAMS;
    }
    char *text = mc_file_read(NULL, path, &length, reason, sizeof(reason));
    if (text == NULL) {
        snprintf(error, error_size, "--config_path %.200s: %.250s", path, reason);
        return MC_ERR_FILE_OPEN_FAIL;
    }
    enum mc_config_format format = ends_with(path, ".json") ? MC_CONFIG_JSON : MC_CONFIG_YAML;
    int rc = mc_master_options_apply(options, format, text, length, path, error, error_size);
    free(text);
    return rc;
}

/* ---- what follows from the values ---- */

/* The first address of a network interface, IPv4 before IPv6. */
static int interface_address(const char *name, char *address, size_t size, char *error, size_t error_size)
{
    struct ifaddrs *all = NULL;
    int family = 0;
    if (getifaddrs(&all) != 0) {
        snprintf(error, error_size, "--rpc_interface: the interfaces cannot be listed: %s", strerror(errno));
        return MC_ERR_INVALID_PARAMS;
    }
    for (const struct ifaddrs *one = all; one != NULL && family != AF_INET; one = one->ifa_next) {
        int found = one->ifa_addr == NULL || strcmp(one->ifa_name, name) != 0 ? 0 : one->ifa_addr->sa_family;
        if (found != AF_INET && (found != AF_INET6 || family != 0))
            continue;
        socklen_t length = found == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (getnameinfo(one->ifa_addr, length, address, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0)
            family = found;
    }
    freeifaddrs(all);
    if (family != 0)
        return 0;
    snprintf(error, error_size, "--rpc_interface: no interface '%.64s' with an address; `ip address` lists them", name);
    return MC_ERR_INVALID_PARAMS;
}

/* Gives a value that follows from others, so that from here on, and in what --print_config shows, it is as if it had
 * been given. */
static int derive(struct mc_options *options, const char *name, const char *text, char *error, size_t error_size)
{
    return mc_options_set(options, (size_t)mc_options_find(options, name), text, MC_OPTION_FROM_FLAG, "--", error,
                          error_size);
}

static int settle(struct mc_options *options, char *error, size_t error_size)
{
    char text[256];
    int rc = 0;
    /* rpc_port wins over its older name unless only that was given, or was given more explicitly. */
    if (mc_options_source(options, "port") > mc_options_source(options, "rpc_port")) {
        snprintf(text, sizeof(text), "%lld", (long long)mc_options_int(options, "port"));
        rc = derive(options, "rpc_port", text, error, error_size);
    }
    const char *interface = mc_options_text(options, "rpc_interface");
    if (rc == 0 && interface[0] != 0 && mc_options_source(options, "rpc_address") == MC_OPTION_FROM_DEFAULT) {
        rc = interface_address(interface, text, sizeof(text), error, error_size);
        if (rc == 0)
            rc = derive(options, "rpc_address", text, error, error_size);
    }
    bool is_placed = mc_options_source(options, "http_metadata_server_host") != MC_OPTION_FROM_DEFAULT ||
                     mc_options_source(options, "http_metadata_server_port") != MC_OPTION_FROM_DEFAULT;
    if (rc == 0 && is_placed && mc_options_source(options, "enable_http_metadata_server") == MC_OPTION_FROM_DEFAULT)
        rc = derive(options, "enable_http_metadata_server", "true", error, error_size);
    return rc;
}

#define HA_DEPART_SLACK_MS 2000u /* a heartbeat's age and what a failover adds to the ttl */

static bool is_wildcard(const char *host)
{
    return host[0] == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static int choose_election(const struct mc_options *options, struct mc_master_config *config, char *error,
                           size_t error_size)
{
    const char *type = mc_options_text(options, "ha_backend_type"), *cluster = mc_options_text(options, "cluster_id");
    const char *place = mc_options_text(options, "etcd_endpoints");
    if (!config->ha_enabled)
        return 0;
    config->ha_is_lease = strcmp(type, "k8s") == 0;
    if (config->ha_is_lease || place[0] == 0)
        place = mc_options_text(options, "ha_backend_connstring");
    size_t scheme = strlen(type);
    if (strncmp(place, type, scheme) == 0 && strncmp(place + scheme, "://", 3) == 0)
        place += scheme + 3;
    const char *reason =
        strcmp(type, "redis") == 0
            ? "--ha_backend_type=redis: elections are held in etcd (--etcd_endpoints) or by a Lease of Kubernetes "
              "(--ha_backend_type=k8s)"
        : place[0] == 0 && config->ha_is_lease
            ? "--ha_backend_type=k8s needs --ha_backend_connstring: the namespace and name of a Lease, namespace/name"
        : place[0] == 0 ? "--enable_ha needs --etcd_endpoints: host:port of etcd's members, separated by ;"
        : strlen(place) >= sizeof(config->ha_place)     ? "--etcd_endpoints or --ha_backend_connstring is too long"
        : strlen(cluster) >= sizeof(config->cluster_id) ? "--cluster_id is too long"
        : is_wildcard(config->rpc_address)
            ? "--enable_ha needs --rpc_address or --rpc_interface: the address that clients are told"
            : NULL;
    if (reason != NULL) {
        snprintf(error, error_size, "%s", reason);
        return MC_ERR_INVALID_PARAMS;
    }
    memcpy(config->ha_place, place, strlen(place) + 1);
    memcpy(config->cluster_id, cluster, strlen(cluster) + 1);
    /* What a successor knows of our end is late by a ttl: who was in touch with us to the last must not look silent. */
    if (config->core.depart_ms < config->ha_lease_ttl_ms + HA_DEPART_SLACK_MS)
        config->core.depart_ms = config->ha_lease_ttl_ms + HA_DEPART_SLACK_MS;
    return 0;
}

/* Both or neither, and only where Kubernetes elects. */
static int choose_pod(const struct mc_options *options, struct mc_master_config *config, char *error, size_t error_size)
{
    const char *name = mc_options_text(options, "pod_name"), *space = mc_options_text(options, "pod_namespace");
    if (!config->ha_enabled || !config->ha_is_lease)
        return 0;
    if (name[0] == 0)
        name = mc_variable(POD_NAME);
    if (space[0] == 0)
        space = mc_variable(POD_NAMESPACE);
    if (name == NULL || name[0] == 0 || space == NULL || space[0] == 0)
        return 0;
    if (!mc_pod_is_name(name) || !mc_pod_is_name(space)) {
        snprintf(error, error_size, "--pod_name=%.100s, --pod_namespace=%.100s: no names of Kubernetes", name, space);
        return MC_ERR_INVALID_PARAMS;
    }
    snprintf(config->pod_name, sizeof(config->pod_name), "%s", name);
    snprintf(config->pod_space, sizeof(config->pod_space), "%s", space);
    return 0;
}

static int choose_state_dir(const struct mc_options *options, struct mc_master_config *config, char *error,
                            size_t error_size)
{
    const char *wanted = mc_options_text(options, "state_dir"), *given = mc_variable(STATE_DIRECTORY);
    size_t size = sizeof(config->state_dir);
    int length = 0;
    uid_t user = geteuid();
    gid_t group;
    int rc = config->harden ? mc_harden_user(&user, &group, error, error_size) : 0;
    if (rc < 0)
        return rc;
    if (config->ha_enabled || strcmp(wanted, "none") == 0)
        config->state_dir[0] = 0;
    else if (wanted[0] != 0 || (given != NULL && given[0] != 0)) /* systemd may name several, the first is meant */
        length =
            snprintf(config->state_dir, size, "%.*s", wanted[0] != 0 ? (int)strlen(wanted) : (int)strcspn(given, ":"),
                     wanted[0] != 0 ? wanted : given);
    else
        length = snprintf(config->state_dir, size, "/tmp/mooncake-%u", (unsigned)user);
    if (length < (int)size)
        return 0;
    snprintf(error, error_size, "--state_dir is too long");
    return MC_ERR_INVALID_PARAMS;
}

static int refuse(char *error, size_t error_size, const char *text)
{
    snprintf(error, error_size, "%s", text);
    return MC_ERR_INVALID_PARAMS;
}

/* The original's older way to a disk: its clients wrote files in a directory that all of them see. */
static int choose_root(const struct mc_options *options, struct mc_core_config *core, char *error, size_t error_size)
{
    const char *root = mc_options_text(options, "root_fs_dir"), *cluster = mc_options_text(options, "cluster_id");
    int64_t segment = mc_options_int(options, "global_file_segment_size"),
            quota = mc_options_int(options, "quota_bytes");
    size_t length = strlen(root);
    if (length == 0)
        return 0;
    if (root[0] != '/' || strstr(root, "/../") != NULL || (length >= 3 && strcmp(root + length - 3, "/..") == 0))
        return refuse(error, error_size, "--root_fs_dir must be absolute, without ..");
    if (strchr(cluster, '/') != NULL || cluster[0] == 0 || cluster[0] == '.')
        return refuse(error, error_size,
                      "--cluster_id is a directory's name in --root_fs_dir: no slash, no leading dot");
    while (length > 0 && root[length - 1] == '/')
        length--;
    if (snprintf(core->disk_path, sizeof(core->disk_path), "%.*s/%s", (int)length, root, cluster) >=
        (int)sizeof(core->disk_path))
        return refuse(error, error_size, "--root_fs_dir is too long");
    core->disk_bytes = (uint64_t)(quota > 0 && quota < segment ? quota : segment == INT64_MAX ? 0 : segment);
    core->disk_keeps = !mc_options_bool(options, "enable_disk_eviction");
    if (core->offload == MC_OFFLOAD_NEVER)
        core->offload = mc_options_bool(options, "offload_on_evict") ? MC_OFFLOAD_ON_EVICT : MC_OFFLOAD_ON_PUT;
    return 0;
}

/* A place for quotas means quotas, and quotas mean tenants. */
static int choose_tenants(const struct mc_options *options, struct mc_master_config *config, char *error,
                          size_t error_size)
{
    const char *place = mc_options_text(options, "tenant_quota_connector_uri");
    const char *cluster = mc_options_text(options, "cluster_id");
    config->quotas_in_etcd = strcmp(mc_options_text(options, "tenant_quota_connector_type"), "etcd") == 0;
    if (config->quotas_in_etcd && place[0] == 0)
        place = mc_options_text(options, "etcd_endpoints");
    if (config->quotas_in_etcd && place[0] == 0)
        return refuse(error, error_size,
                      "--tenant_quota_connector_type=etcd needs --tenant_quota_connector_uri: host:port of etcd's "
                      "members, separated by ; or --etcd_endpoints");
    if (strlen(place) >= sizeof(config->quota_file))
        return refuse(error, error_size, "--tenant_quota_connector_uri is too long");
    if (place[0] != 0 && !config->core.tenants && !config->core.quotas) {
        mc_log(WARNING, "--tenant_quota_connector_uri and _type change nothing without --enable_multi_tenants");
        return 0;
    }
    if (config->quotas_in_etcd && strlen(cluster) >= sizeof(config->cluster_id))
        return refuse(error, error_size, "--cluster_id is too long");
    if (config->quotas_in_etcd)
        memcpy(config->cluster_id, cluster, strlen(cluster) + 1);
    memcpy(config->quota_file, place, strlen(place) + 1);
    config->core.quotas = config->core.quotas || place[0] != 0;
    config->core.tenants = config->core.tenants || config->core.quotas;
    return 0;
}

static int resolve(struct mc_options *options, struct mc_master_config *config, char *error, size_t error_size)
{
    int rc = settle(options, error, error_size);
    config->core = mc_core_config_default();
    if (rc == 0)
        rc = mc_options_store(options, config, error, error_size);
    if (rc < 0)
        return rc;
    config->connections_per_address = (uint32_t)mc_options_int(options, "max_connections_per_address");
    config->metadata_max_bytes = (size_t)mc_options_int(options, "http_metadata_server_max_mib") << 20;
    if (config->core.put_discard_ms >= (uint64_t)mc_options_int(options, "put_start_release_timeout_sec")) {
        snprintf(error, error_size,
                 "--put_start_discard_timeout_sec must be less than --put_start_release_timeout_sec");
        return MC_ERR_INVALID_PARAMS;
    }
    if (config->core.soft_pin_ttl_ms > config->core.soft_pin_max_ms) {
        snprintf(error, error_size, "--default_kv_soft_pin_ttl must not be more than --max_kv_soft_pin_ttl");
        return MC_ERR_INVALID_PARAMS;
    }
    const char *cluster = mc_options_text(options, "cluster_uuid");
    if (cluster[0] != 0 && (!mc_id_parse(cluster, &config->core.cluster) || mc_id_is_zero(config->core.cluster))) {
        snprintf(error, error_size, "--cluster_uuid must be 32 hex digits, as the master's log says them");
        return MC_ERR_INVALID_PARAMS;
    }
    config->core.cluster_way = MC_CLUSTER_TOLD;
    bool is_on_evict = mc_options_bool(options, "offload_on_evict");
    config->core.offload = !mc_options_bool(options, "enable_offload") ? MC_OFFLOAD_NEVER
                           : is_on_evict                               ? MC_OFFLOAD_ON_EVICT
                                                                       : MC_OFFLOAD_ON_PUT;
    const char *spread = mc_options_text(options, "dynamic_replication_mode");
    config->core.spread = strcmp(spread, "enforce") == 0   ? MC_SPREAD_ENFORCE
                          : strcmp(spread, "observe") == 0 ? MC_SPREAD_OBSERVE
                                                           : MC_SPREAD_OFF;
    config->core.policy = mc_eviction_find(mc_options_text(options, "eviction_policy"));
    mc_assert(config->core.policy != NULL); /* it is one of the choices */
    rc = choose_root(options, &config->core, error, error_size);
    if (rc == 0)
        rc = choose_tenants(options, config, error, error_size);
    if (rc == 0)
        rc = choose_election(options, config, error, error_size);
    if (rc == 0)
        rc = choose_pod(options, config, error, error_size);
    return rc == 0 ? choose_state_dir(options, config, error, error_size) : rc;
}

static void warn_of_events(const struct mc_options *options)
{
    bool is_on = mc_options_bool(options, "enable_kv_events");
    bool is_bound = mc_options_text(options, "kv_events_bind_endpoint")[0] != 0;
    if (is_bound && !is_on)
        mc_log(WARNING, "--kv_events_bind_endpoint changes nothing without --enable_kv_events");
    if (mc_options_text(options, "kv_events_replay_endpoint")[0] != 0 && (!is_on || !is_bound))
        mc_log(WARNING, "--kv_events_replay_endpoint changes nothing without --enable_kv_events and "
                        "--kv_events_bind_endpoint");
}

static void warn_of_disks(const struct mc_options *options)
{
    static const char *const of_root[] = {"global_file_segment_size", "enable_disk_eviction", "quota_bytes"};
    bool has_root = mc_options_text(options, "root_fs_dir")[0] != 0;
    for (size_t i = 0; i < sizeof(of_root) / sizeof(of_root[0]) && !has_root; i++)
        if (mc_options_changed(options, (size_t)mc_options_find(options, of_root[i])))
            mc_log(WARNING, "--%s says something of the disks of --root_fs_dir only: it changes nothing", of_root[i]);
    if (has_root && mc_options_bool(options, "enable_offload"))
        mc_log(WARNING,
               "--root_fs_dir with --enable_offload, which the original forbids: nodes with a disk of their own "
               "use that one, all others have one under root_fs_dir");
}

static void say_start(const struct mc_options *options, struct mc_master_config *config)
{
    const char *path = mc_options_text(options, "config_path");
    unsigned flags = 0;
    for (size_t i = 0; i < options->count; i++)
        flags += options->values[i].source == MC_OPTION_FROM_FLAG;
    snprintf(config->start, sizeof(config->start),
             "mooncake_master %s: RPC on %s:%u, HTTP on %s:%u; settings: %u flags%s%.200s", mc_build(),
             config->rpc_address, (unsigned)config->rpc_port, config->metrics_host, (unsigned)config->metrics_port,
             flags, path[0] == 0 ? "" : ", and ", path);
}

static const char help_head[] =
    "mooncake_master: knows which object of the pool lies where.\n"
    "Usage: mooncake_master [--flag=value ...]      also: --flag value, -flag value, --boolean, --noboolean\n"
    "Durations: 500 or 500ms, 5s, 30m, 1h. The log goes to stderr.\n";

int mc_master_config_load(int argc, char *const *argv, struct mc_master_config *config, struct mc_buffer *text,
                          char *error, size_t error_size)
{
    struct mc_options options;
    memset(config, 0, sizeof(*config));
    mc_master_options_init(&options);
    int rc = mc_options_parse(&options, argc, argv, mc_file_read, NULL, error, error_size);
    if (rc == 0 && mc_options_answer(&options, "mooncake_master", help_head, text))
        rc = 1;
    const char *path = mc_options_text(&options, "config_path");
    if (rc == 0 && path[0] != 0)
        rc = load_file(&options, path, error, error_size);
    if (rc == 0)
        rc = resolve(&options, config, error, error_size);
    if (rc == 0 && mc_options_bool(&options, "print_config")) {
        mc_options_print(&options, text);
        rc = 1;
    }
    if (rc == 0 && mc_options_bool(&options, "check_config")) {
        warn_of_events(&options);
        warn_of_disks(&options);
        mc_buffer_printf(text, "the settings are right\n");
        rc = 1;
    }
    if (rc == 0 && mc_flags_use(&options, error, error_size) < 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc == 0) {
        config->log_level = mc_log_set_flags(mc_options_int(&options, "v"), mc_options_int(&options, "minloglevel"));
        if (mc_options_text(&options, "log_dir")[0] != 0)
            mc_log_to_directory(mc_options_text(&options, "log_dir"));
        mc_unread_tell();
        say_start(&options, config);
        mc_flags_tell(&options);
        warn_of_events(&options);
        warn_of_disks(&options);
    }
    mc_options_free(&options);
    return rc;
}
