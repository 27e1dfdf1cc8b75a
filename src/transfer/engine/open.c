/* Opening and closing an engine. */
#include "transfer/engine/open.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/run/run.h"
#include "transfer/serve/memory.h"
#include "transfer/serve/publish.h"
#include "transfer/serve/service.h"
#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"
#include "transfer/state/settings.h"
#include "transfer/wire/metadata.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/crew.h"
#include "env/exposed.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/unread.h"
#include "rdma/topology.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define GPUS_MAX 32
#define QUICK_BYTES 65536u

/* ---- opening ---- */

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    return strcmp(host, "::1") == 0 || (inet_pton(AF_INET, host, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127);
}

/* Who we are to others, and where to listen for them. port: as the name says, or 0. */
static int choose_names(struct mc_transfer_engine *engine, const char *local_name, const char **listen_host,
                        uint16_t *port)
{
    bool is_fine = mc_address_split(local_name, engine->host, sizeof(engine->host) - 8, port) == 0;
    if (engine->metadata.is_p2p && !is_fine) {
        mc_log(ERROR, "local_hostname '%.100s': a host, IPv4 or IPv6 address is expected", local_name);
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (!engine->metadata.is_p2p) {
        if (local_name[0] == 0 || strlen(local_name) >= sizeof(engine->name)) {
            mc_log(ERROR, "local_hostname: a name of 1 to %zu bytes is expected", sizeof(engine->name) - 1);
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        }
        mc_network_address(engine->settings.use_ipv6, engine->host, sizeof(engine->host));
    }
    if (engine->settings.bind_address[0] != 0)
        snprintf(engine->host, sizeof(engine->host), "%s", engine->settings.bind_address);
    /* Who says that he is only to be reached from this machine, is. */
    bool is_v6 = engine->settings.use_ipv6 || strchr(engine->host, ':') != NULL;
    *listen_host = is_loopback(engine->host) ? engine->host : is_v6 ? "::" : "0.0.0.0";
    return 0;
}

static int open_unix(struct mc_transfer_engine *engine)
{
    if (!engine->settings.allow_host || mc_host_table_create(engine) < 0)
        return -1;
    snprintf(engine->unix_name, sizeof(engine->unix_name), "@mooncake-transfer-%016llx%016llx",
             (unsigned long long)engine->id.high, (unsigned long long)engine->id.low);
    int fd = mc_unix_listen(engine->unix_name);
    if (fd < 0)
        engine->unix_name[0] = 0;
    return fd;
}

/* A port is drawn, but where MC_LEGACY_RPC_PORT_BINDING says that names mean theirs. */
static int listen_handshakes(struct mc_transfer_engine *engine, const char *host, uint16_t port)
{
    if (engine->settings.handshake_port == 0)
        return mc_network_listen(&engine->settings, host, &engine->rpc_port);
    engine->rpc_port = port != 0 ? port : engine->settings.handshake_port;
    int fd = mc_tcp_listen(host, &engine->rpc_port);
    if (fd < 0)
        mc_log(ERROR, "port %u, which MC_LEGACY_RPC_PORT_BINDING asks for, cannot be had: %s",
               (unsigned)engine->rpc_port, strerror(errno));
    return fd;
}

static int open_sockets(struct mc_transfer_engine *engine, const char *local_name)
{
    const char *listen_host;
    uint16_t port = 0;
    int rc = choose_names(engine, local_name, &listen_host, &port);
    if (rc < 0)
        return rc;
    int rpc = listen_handshakes(engine, listen_host, port);
    int data = rpc < 0 ? -1 : mc_network_listen(&engine->settings, listen_host, &engine->data_port);
    if (data < 0) {
        mc_fd_close(rpc);
        return MC_TRANSFER_ERR_SOCKET;
    }
    if (engine->metadata.is_p2p)
        mc_address_join(engine->name, sizeof(engine->name), engine->host, engine->rpc_port);
    else
        snprintf(engine->name, sizeof(engine->name), "%s", local_name);
    mc_exposed_say(MC_EXPOSED_HANDSHAKES, rpc);
    mc_exposed_say(MC_EXPOSED_ENGINE, data);
    return mc_service_start(engine, rpc, data, open_unix(engine));
}

static struct mc_transfer_engine *allocate(void)
{
    struct mc_transfer_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return NULL;
    engine->fork_count = mc_transfer_fork_count();
    engine->id = mc_random_id();
    engine->host_id = mc_host_id();
    engine->host_table_fd = -1;
    engine->notes_end = &engine->notes;
    engine->ready_end = &engine->ready;
    engine->crew = mc_crew_create(mc_crew_threads());
    engine->threads_max = MC_TRANSFER_THREADS_MAX;
    engine->silent_threads_max = MC_SILENT_THREADS_MAX;
    mc_monitor_init(&engine->lock, &engine->changed);
    pthread_mutex_init(&engine->publish_lock, NULL);
    pthread_mutex_init(&engine->ended_lock, NULL);
    mc_condition_init(&engine->work_came);
    mc_condition_init(&engine->names_changed);
    mc_settings_read(&engine->settings);
    mc_metrics_report_init(&engine->metrics);
    mc_gpu_look();
    return engine;
}

static const char *text_of(const char *text)
{
    return text == NULL ? "" : text;
}

int mc_transfer_start_rdma(struct mc_transfer_engine *engine, const char *device_name, const char *matrix)
{
    struct mc_rdma *rdma = NULL, *none = NULL;
    if (engine->rdma != NULL)
        return 0;
    int rc = mc_rdma_start(device_name, matrix, &rdma);
    if (rc < 0)
        return rc;
    if (!atomic_compare_exchange_strong(&engine->rdma, &none, rdma)) {
        mc_rdma_close(rdma); /* another call was faster */
        return 0;
    }
    return mc_memory_pin_all(engine) == 0 ? 0 : MC_ERR_NO_MEMORY;
}

/* As in the original the protocol does not choose the way: who says tcp, or what there is not in this build, has RDMA,
 * too, where there is some, unless a setting is against it. Who says nothing has none until it is asked for. */
static bool may_use_rdma(const char *protocol, bool is_asked)
{
    const char *with_tcp = mc_variable(MC_RDMA_WITH_TCP);
    bool is_off = with_tcp != NULL && (strcmp(with_tcp, "no") == 0 || strcmp(with_tcp, "0") == 0);
    return mc_variable(MC_FORCE_TCP) == NULL && (is_asked || (protocol[0] != 0 && !is_off));
}

/* The original takes any word, too, but this one. */
static bool is_protocol(const char *protocol)
{
    if (strcasecmp(protocol, "xgmi") == 0) {
        mc_log(ERROR, "protocol '%.40s': tcp or rdma is expected", protocol);
        return false;
    }
    if (protocol[0] != 0 && strcasecmp(protocol, "tcp") != 0 && strcasecmp(protocol, "rdma") != 0)
        mc_log(WARNING, "protocol '%.40s' is not in this build: it is taken for tcp", protocol);
    return true;
}

/* Where there is no device tcp does it, and only who has asked for RDMA is told. */
static void start_rdma(struct mc_transfer_engine *engine, const char *device_name, bool is_asked)
{
    int rc = mc_transfer_start_rdma(engine, device_name, NULL);
    if (rc == 0 && !is_asked)
        mc_log(INFO, "protocol tcp: RDMA is used, too, with peers that have it (MC_RDMA_WITH_TCP=no is against it)");
    else if (rc < 0 && (is_asked || rc != MC_ERR_UNAVAILABLE_IN_CURRENT_MODE))
        mc_log(WARNING, "protocol rdma: %s; tcp is used",
               rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "no usable RDMA device here (mooncake_doctor says why)"
               : rc == MC_ERR_INVALID_PARAMS            ? "device_name names a device that is not there"
                                                        : mc_error_name(rc));
}

int mc_transfer_open(const struct mc_transfer_config *config, struct mc_transfer_engine **out)
{
    if (config == NULL || out == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    const char *protocol = text_of(config->protocol);
    char error[1024];
    mc_unread_tell();
    if (mc_keys_check(error, sizeof(error)) < 0 || mc_secure_check(mc_secure_is_served(), error, sizeof(error)) < 0) {
        mc_log(ERROR, "%s", error);
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (!is_protocol(protocol))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    struct mc_transfer_engine *engine = allocate();
    if (engine == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    bool is_asked = strcasecmp(protocol, "rdma") == 0 || mc_variable(MC_FORCE_HCA) != NULL;
    if (may_use_rdma(protocol, is_asked))
        start_rdma(engine, text_of(config->device_name), is_asked);
    int rc = mc_metadata_init(&engine->metadata, text_of(config->metadata_server));
    if (rc == 0)
        rc = open_sockets(engine, text_of(config->local_name));
    if (rc == 0)
        rc = mc_transfer_publish(engine);
    if (rc == 0)
        rc = mc_transfer_names_start(engine);
    mc_transfer_list_add(engine);
    if (rc < 0) {
        mc_transfer_close(engine);
        return rc;
    }
    mc_log(INFO, "transfer engine %s: handshakes on port %u, data on port %u", engine->name, (unsigned)engine->rpc_port,
           (unsigned)engine->data_port);
    *out = engine;
    return 0;
}

/* ---- closing ---- */

static void free_notes(struct mc_transfer_engine *engine)
{
    while (engine->notes != NULL) {
        struct mc_notification *next = engine->notes->next;
        free(engine->notes->name);
        free(engine->notes->message);
        free(engine->notes);
        engine->notes = next;
    }
}

void mc_transfer_close(struct mc_transfer_engine *engine)
{
    if (engine == NULL || engine->fork_count != mc_transfer_fork_count())
        return; /* in a child it is left behind: locks may be held by threads that are not there */
    engine->is_closing = true;
    mc_transfer_names_stop(engine);
    mc_transfer_withdraw(engine);
    mc_transfer_list_remove(engine);
    mc_background_stop(engine);
    if (engine->service != NULL)
        mc_memory_leave_all(engine);
    mc_service_stop(engine);
    mc_peers_free(engine);
    mc_host_paths_end(engine);
    mc_metrics_free(&engine->metrics);
    mc_memory_free(engine);
    mc_host_table_destroy(engine);
    mc_rdma_close(engine->rdma);
    mc_crew_free(engine->crew, false);
    free_notes(engine);
    mc_buffer_free(&engine->document);
    pthread_cond_destroy(&engine->names_changed);
    pthread_cond_destroy(&engine->work_came);
    pthread_mutex_destroy(&engine->ended_lock);
    pthread_mutex_destroy(&engine->publish_lock);
    mc_monitor_destroy(&engine->lock, &engine->changed);
    free(engine);
}

/* ---- its own memory ---- */

static int copy(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address, void *local,
                uint64_t length, bool may_wait)
{
    void *near = (void *)(uintptr_t)address;
    bool is_write = opcode == MC_TRANSFER_WRITE;
    struct mc_region *region = mc_transfer_alive(engine) ? mc_transfer_hold(engine, address, length) : NULL;
    if (region == NULL)
        return MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED;
    bool is_quick = region->place.kind == MC_GPU_HOST && length <= QUICK_BYTES;
    int rc = may_wait || is_quick ? mc_gpu_copy(is_write ? near : local, is_write ? local : near, (size_t)length) : 1;
    mc_transfer_release(engine, region);
    return rc < 0 ? MC_TRANSFER_ERR_INVALID_ARGUMENT : rc;
}

int mc_transfer_copy(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address, void *local,
                     uint64_t length)
{
    return copy(engine, opcode, address, local, length, true);
}

int mc_transfer_copy_quick(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address,
                           void *local, uint64_t length)
{
    return copy(engine, opcode, address, local, length, false);
}

/* ---- looking ---- */

char *mc_transfer_topology(const char *filter)
{
    struct mc_topology_gpu gpus[GPUS_MAX];
    int count = 0;
    struct mc_topology *topology = malloc(sizeof(*topology));
    struct mc_buffer out = {0};
    if (topology == NULL)
        return NULL;
    mc_gpu_look();
    while (count < GPUS_MAX && mc_gpu_pci_address(count, gpus[count].pci_bus_id, sizeof(gpus[count].pci_bus_id)) == 0) {
        snprintf(gpus[count].location, sizeof(gpus[count].location), "cuda:%d", count);
        count++;
    }
    mc_topology_local(topology, filter, gpus, (size_t)count);
    mc_topology_write(topology, &out);
    mc_buffer_append(&out, "", 1);
    free(topology);
    return (char *)out.data;
}
