/* The master's flags and config file: one table (options.c), resolved into struct mc_master_config.
 * Flags override the config file, the file overrides the defaults. */
#ifndef MC_MASTER_OPTIONS_H
#define MC_MASTER_OPTIONS_H

#include "base/options.h"
#include "store/core/core.h"
#include "store/master/pod.h"

struct mc_events;
struct mc_history;
struct mc_quotas;
struct mc_slow;
struct mc_standbys;

#define MC_CONFIG_KEYS_MAX 1024 /* settings in a config file */
#define MC_CONFIG_DEPTH_MAX 16  /* nested maps in a config file */

struct mc_master_config {
    char rpc_address[256], metrics_host[256], metadata_host[256];
    uint32_t connections_per_address;               /* 0: three quarters of all places */
    uint16_t rpc_port, metrics_port, metadata_port; /* 0: the kernel chooses */
    bool metadata_enabled;
    size_t metadata_max_bytes;
    bool report_metrics; /* the line every ten seconds */
    int log_level;       /* enum mc_log_level, or -1: as the environment says; already in effect */
    struct mc_core_config core;
    bool ha_enabled;
    bool ha_is_lease;                                           /* of Kubernetes; else a key in etcd */
    char ha_place[4096], cluster_id[256];                       /* the election's: "namespace/name"; endpoints */
    char pod_name[MC_POD_NAME_MAX], pod_space[MC_POD_NAME_MAX]; /* whose label says that we lead; "": none */
    char start[1024];           /* what it is and where its settings are from, for its log once it serves */
    char auth_file[512];        /* of keys; empty: as the environment says */
    bool harden;                /* with no more rights than it needs (env/harden.h) */
    char quota_file[512];       /* of tenants; empty: there is none */
    bool quotas_in_etcd;        /* then those are its endpoints */
    struct mc_quotas *quotas;   /* of tenants, whose each new core is told; NULL: there are none. The caller's */
    struct mc_history *history; /* of samples, and of events; NULL: nothing is remembered. The caller's */
    struct mc_events *events;
    struct mc_slow *slow;         /* calls that were; NULL: none are kept. The caller's */
    struct mc_standbys *standbys; /* who waits to lead; NULL: that is not known. The caller's */
    bool has_kv_events;
    uint32_t kv_events_capacity;
    char kv_events_backend[256];
    char kv_events_endpoint[512]; /* where they are published by ZMQ; empty: nowhere */
    char kv_events_replay[512];   /* where those of the past are told; empty: nowhere */
    char kv_events_format[16];
    bool kv_events_legacy, kv_events_object_key;
    struct mc_kv_events *kv_events;                        /* NULL: nobody wants to know. The caller's */
    void (*core_made)(void *quotas, struct mc_core *core); /* called with each; NULL: need not be */
    struct mc_pod *pod;                                    /* which is told when we lead; NULL: none. The caller's */
    void (*pod_lead)(struct mc_pod *pod, bool leads);
    char state_dir[512]; /* without HA: of the note for the next master; empty: none is kept */
    uint64_t ha_lease_ttl_ms;
    uint64_t etcd_compaction_ms; /* 0: never */
};

enum mc_config_format { MC_CONFIG_YAML, MC_CONFIG_JSON };

/* The table with its defaults. */
void mc_master_options_init(struct mc_options *options);
/* Applies a config file's text; name words messages. Unknown names are logged and ignored. 0 or MC_ERR_INVALID_PARAMS
 * with a line in error. */
int mc_master_options_apply(struct mc_options *options, enum mc_config_format format, const char *text, size_t length,
                            const char *name, char *error, size_t error_size);
/* Flags, the file that config_path names, and what follows from them. 0: run with *config. 1: print `text` and exit
 * with 0 (--help, --version,
 * --print_config). Negative: error holds one line. The caller frees text. */
int mc_master_config_load(int argc, char *const *argv, struct mc_master_config *config, struct mc_buffer *text,
                          char *error, size_t error_size);

#endif
