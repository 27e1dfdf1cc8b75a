/* What an engine is connected by: its ports, RDMA devices, the peers it knows and the path to each; as JSON for
 * programs, and as text for who looks for what is wrong. */
#include "transfer/peer/peer.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"

#include "base/error.h"
#include "env/json.h"
#include "rdma/gid.h"
#include "rdma/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const path_names[MC_TRANSFER_PATHS] = {[MC_TRANSFER_PATH_LOCAL] = "local",
                                                          [MC_TRANSFER_PATH_HOST] = "host",
                                                          [MC_TRANSFER_PATH_TCP] = "tcp",
                                                          [MC_TRANSFER_PATH_RDMA] = "rdma"};

struct peer_line { /* a copy, so that no lock is held while the text is made */
    struct mc_peer *peer;
    char name[MC_DOCUMENT_NAME_MAX], address[MC_ADDRESS_MAX + 8];
    const char *path;
    uint32_t idle_count;
};

struct picture {
    struct mc_transfer_counters counters;
    struct mc_topology *topology;
    struct peer_line *peers;
    uint32_t peer_count;
};

static void take_peer(struct peer_line *line)
{
    struct mc_peer *peer = line->peer;
    pthread_mutex_lock(&peer->lock);
    int path = peer->last_path;
    memcpy(line->name, peer->name, sizeof(line->name));
    snprintf(line->address, sizeof(line->address), "%s", peer->is_known ? peer->data_address : "");
    line->path = path == 0 ? "" : path_names[path - 1];
    line->idle_count = peer->idle_count;
    pthread_mutex_unlock(&peer->lock);
}

/* engine->lock is held, but not while waiting for the peer's. */
static void hold_peer(struct mc_peer *peer, struct peer_line *line)
{
    peer->references++;
    line->peer = peer;
}

static void picture_free(struct picture *picture)
{
    free(picture->topology);
    free(picture->peers);
}

/* Free in every case. */
static int picture_take(struct mc_transfer_engine *engine, struct picture *picture)
{
    *picture = (struct picture){.topology = malloc(sizeof(*picture->topology))};
    if (picture->topology == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    mc_topology_local(picture->topology, NULL, NULL, 0);
    mc_transfer_counters(engine, &picture->counters);
    pthread_mutex_lock(&engine->lock);
    picture->peers = malloc((engine->peer_count + 1) * sizeof(*picture->peers));
    for (uint32_t i = 0; i < MC_PEER_BUCKETS && picture->peers != NULL; i++)
        for (struct mc_peer *peer = engine->peers[i]; peer != NULL; peer = peer->next)
            hold_peer(peer, &picture->peers[picture->peer_count++]);
    pthread_mutex_unlock(&engine->lock);
    if (picture->peers == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    for (uint32_t i = 0; i < picture->peer_count; i++)
        take_peer(&picture->peers[i]);
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < picture->peer_count; i++)
        picture->peers[i].peer->references--; /* looking at it is no use of it: it is tidied as before */
    pthread_mutex_unlock(&engine->lock);
    return 0;
}

_Static_assert(sizeof(((struct mc_transfer_nic_load *)NULL)->device) == MC_RDMA_NAME_MAX &&
                   MC_TRANSFER_NICS_MAX == MC_RDMA_DEVICES_MAX,
               "as mooncake_engine.h says");

int mc_transfer_nic_loads(struct mc_transfer_engine *engine, struct mc_transfer_nic_load *loads, size_t capacity)
{
    if (!mc_transfer_alive(engine) || (loads == NULL && capacity > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint32_t count = engine->rdma == NULL ? 0 : mc_rdma_device_count(engine->rdma);
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        struct mc_rdma_device_info info;
        mc_rdma_device_info(engine->rdma, i, &info);
        memcpy(loads[i].device, info.name, sizeof(loads[i].device));
        mc_rdma_device_load(engine->rdma, i, &loads[i].inflight_bytes, &loads[i].moved_bytes);
    }
    return (int)count;
}

/* ---- JSON ---- */

static void put_paths(struct mc_buffer *out, const struct mc_transfer_counters *counters)
{
    mc_buffer_printf(out, "\"paths\":{");
    for (int path = 0; path < MC_TRANSFER_PATHS; path++)
        mc_buffer_printf(out, "%s\"%s\":{\"bytes\":%" PRIu64 ",\"items\":%" PRIu64 "}", path == 0 ? "" : ",",
                         path_names[path], counters->bytes[path], counters->items[path]);
    mc_buffer_printf(out,
                     "},\"failed\":%" PRIu64 ",\"timed_out\":%" PRIu64 ",\"fallbacks\":%" PRIu64
                     ",\"served_bytes\":%" PRIu64 ",\"refused\":%" PRIu64,
                     counters->failed, counters->timed_out, counters->fallbacks, counters->served_bytes,
                     counters->refused);
}

static void put_peer(struct mc_buffer *out, const struct peer_line *line)
{
    mc_buffer_printf(out, "{\"name\":");
    mc_json_put_text(out, line->name);
    mc_buffer_printf(out, ",\"address\":");
    mc_json_put_text(out, line->address);
    mc_buffer_printf(out, ",\"path\":\"%s\",\"idle_connections\":%u}", line->path, line->idle_count);
}

/* The original's members, and whether the port is up. */
static void put_nic(struct mc_buffer *out, const struct mc_rdma_device_info *info)
{
    char gid[MC_GID_TEXT_MAX];
    mc_gid_format(info->gid, gid, sizeof(gid));
    mc_buffer_printf(out, "{\"device\":");
    mc_json_put_text(out, info->name);
    mc_buffer_printf(out,
                     ",\"numa\":%d,\"gid\":\"%s\",\"gid_index\":%d,\"port\":%u,\"speed_gbps\":%u,\"up\":%s,"
                     "\"source\":\"rdma_transport\"}",
                     info->numa_node, info->gid_index < 0 ? "" : gid, info->gid_index, (unsigned)info->port,
                     (unsigned)(info->speed_mbps / 1000), info->is_up ? "true" : "false");
}

/* Devices of the machine that this engine has not opened: only that they are there is known. */
static void put_seen_nics(struct mc_buffer *out, const struct mc_topology *topology)
{
    for (size_t i = 0; i < topology->device_count; i++) {
        mc_buffer_printf(out, "%s{\"device\":", i == 0 ? "" : ",");
        mc_json_put_text(out, topology->devices[i].name);
        mc_buffer_printf(out,
                         ",\"numa\":%d,\"gid\":\"\",\"gid_index\":-1,\"port\":0,\"speed_gbps\":0,"
                         "\"source\":\"topology\"}",
                         topology->devices[i].node);
    }
}

static void put_nics(struct mc_buffer *out, const struct mc_transfer_engine *engine, const struct mc_topology *topology)
{
    uint32_t count = engine->rdma == NULL ? 0 : mc_rdma_device_count(engine->rdma);
    mc_buffer_printf(out, "\"local_nics\":[");
    for (uint32_t i = 0; i < count; i++) {
        struct mc_rdma_device_info info;
        mc_rdma_device_info(engine->rdma, i, &info);
        if (i > 0)
            mc_buffer_printf(out, ",");
        put_nic(out, &info);
    }
    if (count == 0)
        put_seen_nics(out, topology);
    mc_buffer_printf(out, "],\"topology\":");
    mc_topology_write(topology, out);
}

char *mc_transfer_links(struct mc_transfer_engine *engine)
{
    struct picture picture;
    struct mc_buffer out = {0};
    if (!mc_transfer_alive(engine))
        return NULL;
    if (picture_take(engine, &picture) == 0) {
        mc_buffer_printf(&out, "{\"name\":");
        mc_json_put_text(&out, engine->name);
        mc_buffer_printf(&out, ",\"host\":");
        mc_json_put_text(&out, engine->host);
        mc_buffer_printf(&out, ",\"rpc_port\":%u,\"data_port\":%u,", (unsigned)engine->rpc_port,
                         (unsigned)engine->data_port);
        put_paths(&out, &picture.counters);
        mc_buffer_printf(&out, ",");
        put_nics(&out, engine, picture.topology);
        mc_buffer_printf(&out, ",\"peers\":[");
        for (uint32_t i = 0; i < picture.peer_count; i++) {
            if (i > 0)
                mc_buffer_printf(&out, ",");
            put_peer(&out, &picture.peers[i]);
        }
        mc_buffer_append(&out, "]}", 3); /* with its zero */
    }
    picture_free(&picture);
    return (char *)out.data;
}

/* ---- text ---- */

static void say_nics(struct mc_buffer *out, const struct mc_transfer_engine *engine, const struct mc_topology *topology)
{
    char gid[MC_GID_TEXT_MAX];
    uint32_t count = engine->rdma == NULL ? 0 : mc_rdma_device_count(engine->rdma);
    mc_buffer_printf(out, "RDMA devices:\n");
    for (uint32_t i = 0; i < count; i++) {
        struct mc_rdma_device_info info;
        mc_rdma_device_info(engine->rdma, i, &info);
        mc_gid_address(info.gid, gid, sizeof(gid));
        mc_buffer_printf(out, "  %s port %u: %s, %u Gb/s, NUMA node %d, ", info.name, (unsigned)info.port,
                         info.is_up ? "up" : "down", (unsigned)(info.speed_mbps / 1000), info.numa_node);
        if (info.gid_index < 0)
            mc_buffer_printf(out, "no GID\n");
        else
            mc_buffer_printf(out, "GID %d %s\n", info.gid_index, gid);
    }
    for (size_t i = 0; i < topology->device_count && count == 0; i++)
        mc_buffer_printf(out, "  %s: there, but not used by this engine\n", topology->devices[i].name);
    if (count == 0 && topology->device_count == 0)
        mc_buffer_printf(out, "  none\n");
}

static void say_order(struct mc_buffer *out, const struct mc_topology *topology,
                      const struct mc_topology_location *location)
{
    mc_buffer_printf(out, "  %s:", location->name);
    for (uint8_t i = 0; i < location->count; i++)
        mc_buffer_printf(out, "%s %s",
                         i == 0                     ? ""
                         : i == location->preferred ? "; then"
                                                    : ",",
                         topology->devices[location->order[i]].name);
    mc_buffer_printf(out, "%s\n", location->count == 0 ? " none" : "");
}

static void say_peers(struct mc_buffer *out, const struct picture *picture)
{
    mc_buffer_printf(out, "peers:\n");
    for (uint32_t i = 0; i < picture->peer_count; i++) {
        const struct peer_line *line = &picture->peers[i];
        mc_buffer_printf(out, "  %s at %s: %s%s, %u idle connection(s)\n", line->name,
                         line->address[0] == 0 ? "?" : line->address, line->path[0] == 0 ? "not used yet" : "path ",
                         line->path, (unsigned)line->idle_count);
    }
    if (picture->peer_count == 0)
        mc_buffer_printf(out, "  none\n");
}

char *mc_transfer_links_text(struct mc_transfer_engine *engine)
{
    struct picture picture;
    struct mc_buffer out = {0};
    if (!mc_transfer_alive(engine))
        return NULL;
    if (picture_take(engine, &picture) == 0) {
        mc_buffer_printf(&out, "engine %s: host %s, handshakes on port %u, data on port %u\n", engine->name,
                         engine->host, (unsigned)engine->rpc_port, (unsigned)engine->data_port);
        say_nics(&out, engine, picture.topology);
        mc_buffer_printf(&out, "devices for memory at:\n");
        for (size_t i = 0; i < picture.topology->location_count; i++)
            say_order(&out, picture.topology, &picture.topology->locations[i]);
        say_peers(&out, &picture);
        mc_buffer_append(&out, "", 1);
    }
    picture_free(&picture);
    return (char *)out.data;
}
