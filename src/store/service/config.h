/* Settings of a store service: from flags, and a JSON file or the environment. The files and variables are those of
 * mooncake.mooncake_config, by the same rules; the spellings of other clients are understood, and their own keys passed
 * over, because one file may serve several clients. */
#ifndef MC_SERVICE_CONFIG_H
#define MC_SERVICE_CONFIG_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_SERVICE_TEXT_MAX 1024 /* bytes of a text setting with its zero */

struct mc_service_config {
    char local_hostname[MC_SERVICE_TEXT_MAX], metadata_server[MC_SERVICE_TEXT_MAX], protocol[MC_SERVICE_TEXT_MAX],
        device_name[MC_SERVICE_TEXT_MAX], master_server_address[MC_SERVICE_TEXT_MAX],
        ssd_offload_path[MC_SERVICE_TEXT_MAX], tenant_id[MC_SERVICE_TEXT_MAX], stamp[MC_SERVICE_TEXT_MAX],
        auth_file[MC_SERVICE_TEXT_MAX];
    uint64_t global_segment_size, local_buffer_size;
    bool enable_ssd_offload;
    bool enable_client_http_server; /* /health and /metrics on client_http_port */
    uint16_t client_http_port;
    /* Of the command alone: */
    bool has_rest; /* the REST API on rest_host:rest_port; port 0: the kernel chooses */
    char rest_host[MC_SERVICE_TEXT_MAX];
    uint16_t rest_port;
    uint16_t dummy_port;  /* of mooncake_client: where clients without a pool of their own (setup_dummy) ask */
    double max_wait_s;    /* for a first master */
    int64_t exit_grace_s; /* for what lies in memory only */
    bool drain_on_exit;   /* without disks it is moved to other nodes */
};

enum mc_service_command {
    MC_SERVICE_REST,  /* mc_store_rest_server, and mooncake.mooncake_store_service */
    MC_SERVICE_CLIENT /* mooncake_client */
};

/* 0: run with *config. 1: print `text` and exit with 0 (--help, --version). Negative: error holds one line. The caller
 * frees text. */
int mc_service_config_load(enum mc_service_command command, int argc, char **argv, struct mc_service_config *config,
                           struct mc_buffer *text, char *error, size_t error_size);
/* Applies a JSON file's text; name words messages. Unknown keys are logged. 0 or negative with a line in error. */
int mc_service_config_apply(struct mc_service_config *config, const char *text, size_t length, const char *name,
                            char *error, size_t error_size);
/* "50gb", "1.5 GB", "4096": powers of 1024. False when it is none, negative, or 2^63 and more. */
bool mc_service_parse_size(const char *text, uint64_t *bytes);

#endif
