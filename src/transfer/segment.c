/* What is known of peers: their segments, and how each is reached. */
#include "transfer/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"

#include <inttypes.h>
#include <stdlib.h>

int mc_transfer_open_segment(struct mc_transfer_engine *engine, const char *target)
{
    struct mc_peer *peer;
    if (!mc_transfer_alive(engine))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_peer_get(engine, target, mc_clock_ns() + engine->settings.timeout_ns, &peer);
    if (rc == 0)
        mc_peer_release(peer);
    return rc;
}

int mc_transfer_close_segment(struct mc_transfer_engine *engine, const char *target)
{
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    mc_peer_forget(engine, target);
    return 0;
}

int64_t mc_transfer_segment_ranges(struct mc_transfer_engine *engine, const char *target,
                                   struct mc_transfer_range *ranges, size_t capacity)
{
    char address[MC_ADDRESS_MAX];
    struct mc_document document;
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target) || (ranges == NULL && capacity > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t deadline_ns = mc_clock_ns() + engine->settings.timeout_ns;
    int rc = mc_ask_document(engine, target, deadline_ns, &document, address, sizeof(address));
    size_t count = rc == 0 ? document.buffer_count : 0;
    for (size_t i = 0; i < count && i < capacity; i++)
        ranges[i] = document.buffers[i];
    mc_document_free(&document);
    return rc < 0 ? mc_ask_failed(target, rc) : (int64_t)count;
}

uint64_t mc_transfer_first_address(struct mc_transfer_engine *engine, const char *target)
{
    struct mc_transfer_range first = {0, 0};
    return mc_transfer_segment_ranges(engine, target, &first, 1) > 0 ? first.address : 0;
}

/* ---- links ---- */

static const char *const path_names[MC_TRANSFER_PATHS] = {[MC_TRANSFER_PATH_LOCAL] = "local",
                                                          [MC_TRANSFER_PATH_HOST] = "host",
                                                          [MC_TRANSFER_PATH_TCP] = "tcp",
                                                          [MC_TRANSFER_PATH_RDMA] = "rdma"};

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

/* engine->lock is held. */
static void put_peer(struct mc_buffer *out, struct mc_peer *peer, bool is_first)
{
    pthread_mutex_lock(&peer->lock);
    int path = peer->last_path;
    mc_buffer_printf(out, "%s{\"name\":", is_first ? "" : ",");
    mc_json_put_text(out, peer->name);
    mc_buffer_printf(out, ",\"address\":");
    mc_json_put_text(out, peer->is_known ? peer->data_address : "");
    mc_buffer_printf(out, ",\"path\":\"%s\",\"idle_connections\":%u}", path == 0 ? "" : path_names[path - 1],
                     peer->idle_count);
    pthread_mutex_unlock(&peer->lock);
}

char *mc_transfer_links(struct mc_transfer_engine *engine)
{
    struct mc_transfer_counters counters;
    struct mc_buffer out = {0};
    bool is_first = true;
    if (!mc_transfer_alive(engine))
        return NULL;
    mc_transfer_counters(engine, &counters);
    mc_buffer_printf(&out, "{\"name\":");
    mc_json_put_text(&out, engine->name);
    mc_buffer_printf(&out, ",\"host\":");
    mc_json_put_text(&out, engine->host);
    mc_buffer_printf(&out, ",\"rpc_port\":%u,\"data_port\":%u,", (unsigned)engine->rpc_port,
                     (unsigned)engine->data_port);
    put_paths(&out, &counters);
    mc_buffer_printf(&out, ",\"peers\":[");
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < MC_PEER_BUCKETS; i++) {
        for (struct mc_peer *peer = engine->peers[i]; peer != NULL; peer = peer->next) {
            put_peer(&out, peer, is_first);
            is_first = false;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    mc_buffer_append(&out, "]}", 3); /* with its zero */
    return (char *)out.data;
}
