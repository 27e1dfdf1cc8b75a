/* The metadata server: names and documents over HTTP. */
#include "transfer/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define GET_MS 3000u
#define PUT_MS 3000u

int mc_metadata_init(struct mc_metadata *metadata, const char *server)
{
    static const char http[] = "http://";
    metadata->is_p2p = strcmp(server, "P2PHANDSHAKE") == 0;
    const char *cluster_id = getenv("MC_METADATA_CLUSTER_ID");
    snprintf(metadata->cluster_id, sizeof(metadata->cluster_id), "%s", cluster_id == NULL ? "" : cluster_id);
    if (metadata->is_p2p)
        return 0;
    if (strncasecmp(server, http, sizeof(http) - 1) != 0) {
        mc_log(ERROR, "metadata server '%.200s': %s is not built yet; use P2PHANDSHAKE or http://host:port/metadata",
               server,
               strncmp(server, "redis://", 8) == 0   ? "redis"
               : strncmp(server, "https://", 8) == 0 ? "https"
                                                     : "etcd (what has no scheme means etcd)");
        return MC_TRANSFER_ERR_NOT_IMPLEMENTED;
    }
    const char *at = server + sizeof(http) - 1, *slash = strchr(at, '/');
    size_t length = slash == NULL ? strlen(at) : (size_t)(slash - at);
    char address[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX];
    uint16_t port = 80;
    snprintf(address, sizeof(address), "%.*s", (int)length, at);
    int path_length = snprintf(metadata->path, sizeof(metadata->path), "%s", slash == NULL ? "/metadata" : slash);
    bool is_fine = length < sizeof(address) && (size_t)path_length < sizeof(metadata->path) &&
                   strpbrk(metadata->path, " \t\r\n") == NULL &&
                   mc_address_split(address, host, sizeof(host) - 8, &port) == 0 && port != 0;
    if (!is_fine) {
        mc_log(ERROR, "metadata server '%.200s': http://host:port/metadata is expected", server);
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    mc_address_join(metadata->address, sizeof(metadata->address), host, port);
    return 0;
}

static void put_target(struct mc_buffer *out, const struct mc_metadata *metadata, const char *key)
{
    mc_buffer_printf(out, "%s%ckey=", metadata->path, strchr(metadata->path, '?') == NULL ? '?' : '&');
    for (const char *at = key; *at != 0; at++) {
        if (isalnum((unsigned char)*at) != 0 || strchr("-_.~", *at) != NULL)
            mc_buffer_append(out, at, 1);
        else
            mc_buffer_printf(out, "%%%02X", (unsigned)(unsigned char)*at);
    }
    mc_buffer_append(out, "", 1);
}

/* The status, or MC_TRANSFER_ERR_METADATA when there is no answer. A connection for each: they are rare, and a server
 * may have few places. */
static int exchange(struct mc_metadata *metadata, const char *method, const char *key, struct mc_span body,
                    struct mc_buffer *reply)
{
    struct mc_buffer target = {0};
    uint64_t deadline_ns = mc_clock_ns() + (strcmp(method, "GET") == 0 ? GET_MS : PUT_MS) * 1000000ull;
    put_target(&target, metadata, key);
    struct mc_http http = {.fd = -1};
    memcpy(http.address, metadata->address, sizeof(http.address));
    int rc = mc_http_connect(&http, deadline_ns);
    if (rc == 0)
        rc = mc_http_exchange(&http, method, (const char *)target.data, body, deadline_ns, reply);
    mc_http_free(&http);
    mc_buffer_free(&target);
    if (rc >= 0)
        return rc;
    mc_log_limited(ERROR, "the metadata server at %s does not answer %s %s: %s", metadata->address, method, key,
                   rc == MC_ERR_RPC_TIMEOUT ? "no answer in time"
                   : rc == MC_ERR_PROTOCOL  ? "its answer makes no sense"
                                            : "no connection");
    return MC_TRANSFER_ERR_METADATA;
}

int mc_metadata_get(struct mc_metadata *metadata, const char *key, struct mc_buffer *value)
{
    int status = exchange(metadata, "GET", key, mc_span(NULL, 0), value);
    return status == 200 ? 0 : MC_TRANSFER_ERR_METADATA;
}

int mc_metadata_put(struct mc_metadata *metadata, const char *key, struct mc_span value)
{
    struct mc_buffer reply = {0};
    int status = exchange(metadata, "PUT", key, value, &reply);
    mc_buffer_free(&reply);
    return status < 0 ? status : status == 200 ? 0 : MC_TRANSFER_ERR_REJECT_HANDSHAKE;
}

int mc_metadata_remove(struct mc_metadata *metadata, const char *key)
{
    struct mc_buffer reply = {0};
    int status = exchange(metadata, "DELETE", key, mc_span(NULL, 0), &reply);
    mc_buffer_free(&reply);
    return status == 200 || status == 404 ? 0 : MC_TRANSFER_ERR_METADATA;
}

int mc_transfer_publish_name(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    if (engine->metadata.is_p2p)
        return 0;
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    mc_rpc_meta_write(&value, engine->host, engine->rpc_port);
    struct mc_span text = mc_span(value.data, value.length);
    int rc = mc_metadata_put(&engine->metadata, key, text);
    if (rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE) {
        /* A process that ended without taking its entry back: servers refuse to overwrite one. */
        mc_log(INFO, "replacing what an earlier process has left at the metadata server under %s", key);
        rc = mc_metadata_remove(&engine->metadata, key);
        if (rc == 0)
            rc = mc_metadata_put(&engine->metadata, key, text);
    }
    mc_buffer_free(&value);
    if (rc < 0)
        mc_log(ERROR, "the metadata server at %s did not take %s", engine->metadata.address, key);
    return rc < 0 ? MC_TRANSFER_ERR_METADATA : 0;
}

int mc_transfer_publish_document(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    if (engine->metadata.is_p2p)
        return 0;
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock); /* so that an older document cannot overtake a newer one */
    mc_transfer_document(engine, &value);
    int rc = mc_metadata_put(&engine->metadata, key, mc_span(value.data, value.length));
    pthread_mutex_unlock(&engine->publish_lock);
    mc_buffer_free(&value);
    if (rc < 0)
        mc_log(ERROR, "the metadata server at %s did not take %s", engine->metadata.address, key);
    return rc < 0 ? MC_TRANSFER_ERR_METADATA : 0;
}

void mc_transfer_withdraw(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX], host[MC_ADDRESS_MAX];
    struct mc_buffer value = {0};
    uint16_t port = 0;
    if (engine->metadata.is_p2p || !engine->is_published)
        return;
    engine->is_published = false;
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    /* Only what is still ours: somebody else may have taken the name over. */
    bool is_ours = mc_metadata_get(&engine->metadata, key, &value) == 0 &&
                   mc_rpc_meta_read(mc_span(value.data, value.length), host, sizeof(host), &port) == 0 &&
                   port == engine->rpc_port && strcmp(host, engine->host) == 0;
    mc_buffer_free(&value);
    if (!is_ours)
        return;
    int rc = mc_metadata_remove(&engine->metadata, key);
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    if (rc == 0)
        rc = mc_metadata_remove(&engine->metadata, key);
    if (rc < 0)
        mc_log(WARNING, "the metadata server still holds the name %s of this engine", engine->name);
}
