/* A cluster on this machine: a master and store nodes as child processes. */
#include "tool/process.h"

#include "base/bytes.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define START_MASTER_MS 10000
#define START_NODE_MS 30000
#define POPULATE_MS_PER_MIB 20 /* slowest first touch seen is 0.29 GB/s, 3.5 ms for a MiB; several nodes share it */
#define END_GRACE_MS 3000
#define PAGE_MS 2000

static void find_master(const struct mc_cluster_config *config, char *path, size_t size)
{
    if (config->master_binary != NULL) {
        snprintf(path, size, "%s", config->master_binary);
        return;
    }
    const char *self = mc_self_path(), *slash = strrchr(self, '/');
    int length = snprintf(path, size, "%.*smooncake_master", slash != NULL ? (int)(slash + 1 - self) : 0, self);
    if (length >= (int)size || access(path, X_OK) != 0)
        snprintf(path, size, "mooncake_master");
}

static int start_master(struct mc_cluster *cluster, const struct mc_cluster_config *config)
{
    char path[1024], lease[64], service[32], metrics[32];
    char *argv[MC_PROCESS_ARGUMENTS_MAX] = {path, "--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0"};
    find_master(config, path, sizeof(path));
    if (config->lease_ttl != NULL) {
        snprintf(lease, sizeof(lease), "--default_kv_lease_ttl=%s", config->lease_ttl);
        argv[4] = lease;
    }
    if (mc_process_start(&cluster->master, "master", argv, config->log_directory, -1) != 0)
        return -1;
    uint64_t deadline = mc_clock_ms() + START_MASTER_MS;
    if (!mc_process_await(&cluster->master, "Master service started on port ", service, sizeof(service), deadline) ||
        !mc_process_await(&cluster->master, "HTTP metrics server started on port ", metrics, sizeof(metrics),
                          deadline)) {
        if (!mc_interrupted)
            fprintf(stderr, "%s did not start\n", path);
        mc_process_log_show(&cluster->master);
        return -1;
    }
    mc_address_join(cluster->master_address, sizeof(cluster->master_address), "127.0.0.1",
                    (uint16_t)strtoul(service, NULL, 10));
    mc_address_join(cluster->metrics_address, sizeof(cluster->metrics_address), "127.0.0.1",
                    (uint16_t)strtoul(metrics, NULL, 10));
    return 0;
}

static int start_node(struct mc_cluster *cluster, const struct mc_cluster_config *config, uint64_t segment)
{
    char size[32], name[32];
    char *argv[MC_PROCESS_ARGUMENTS_MAX] = {mc_self_path(),          "node",      "--master",
                                            cluster->master_address, "--segment", size};
    snprintf(size, sizeof(size), "%llu", (unsigned long long)segment);
    snprintf(name, sizeof(name), "node-%u", cluster->node_count + 1);
    if (config->paths != NULL) {
        argv[6] = "--paths";
        argv[7] = (char *)(uintptr_t)config->paths;
    }
    if (mc_process_start(&cluster->nodes[cluster->node_count], name, argv, config->log_directory, -1) != 0)
        return -1;
    cluster->node_count++;
    return 0;
}

int mc_cluster_start(struct mc_cluster *cluster, const struct mc_cluster_config *config)
{
    char text[64];
    if (start_master(cluster, config) != 0)
        return -1;
    for (unsigned i = 0; i < config->node_count; i++) {
        uint64_t segment = config->parts != NULL ? config->parts[i] : config->capacity / config->node_count;
        if (start_node(cluster, config, segment) != 0)
            return -1;
    }
    uint64_t deadline = mc_clock_ms() + START_NODE_MS + (config->capacity >> 20) * POPULATE_MS_PER_MIB;
    for (unsigned i = 0; i < config->node_count; i++) {
        struct mc_process *node = &cluster->nodes[i];
        if (!mc_process_await(node, "node populated ", text, sizeof(text), deadline)) {
            if (!mc_interrupted)
                fprintf(stderr, "store node %u did not come up\n", i + 1);
            mc_process_log_show(node);
            return -1;
        }
    }
    return 0;
}

const char *mc_cluster_lost(struct mc_cluster *cluster)
{
    if (cluster->master.pid != 0 && !mc_process_running(&cluster->master))
        return cluster->master.name;
    for (unsigned i = 0; i < cluster->node_count; i++)
        if (!mc_process_running(&cluster->nodes[i]))
            return cluster->nodes[i].name;
    return NULL;
}

void mc_cluster_stop(struct mc_cluster *cluster)
{
    for (unsigned i = 0; i < cluster->node_count; i++)
        mc_process_ask_to_end(&cluster->nodes[i]);
    for (unsigned i = 0; i < cluster->node_count; i++)
        mc_process_reap(&cluster->nodes[i], END_GRACE_MS);
    mc_process_ask_to_end(&cluster->master);
    mc_process_reap(&cluster->master, END_GRACE_MS);
    *cluster = (struct mc_cluster){0};
}

bool mc_cluster_metric(const char *metrics_address, const char *name, double *value)
{
    struct mc_buffer page = {0};
    uint64_t deadline_ns = mc_clock_ns() + UINT64_C(1000000) * PAGE_MS;
    size_t length = strlen(name);
    bool found = false;
    int error;
    if (metrics_address == NULL || metrics_address[0] == '\0')
        return false;
    char bearer[MC_KEYS_BEARER_MAX];
    const struct mc_http_question question = {.method = "GET", .path = "/metrics", .secret = mc_keys_bearer(bearer)};
    bool is_read = mc_http_once(metrics_address, NULL, &question, deadline_ns, &page, &error) == 200;
    mc_buffer_put_u8(&page, 0);
    for (const char *line = is_read ? (char *)page.data : NULL; line != NULL && !found; line = strchr(line, '\n')) {
        line += line[0] == '\n';
        if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == '{')) {
            const char *number = strchr(line + length, ' ');
            found = number != NULL;
            if (found)
                *value = strtod(number, NULL);
        }
    }
    mc_buffer_free(&page);
    return found;
}
