/* The names and documents of engines at the metadata server. */
#include "transfer/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

int mc_metadata_init(struct mc_metadata *metadata, const char *server)
{
    const char *rest, *cluster_id = getenv("MC_METADATA_CLUSTER_ID");
    metadata->is_p2p = strcmp(server, "P2PHANDSHAKE") == 0;
    snprintf(metadata->cluster_id, sizeof(metadata->cluster_id), "%s", cluster_id == NULL ? "" : cluster_id);
    if (metadata->is_p2p)
        return 0;
    metadata->kind = mc_metadata_kind_of(server, &rest);
    if (metadata->kind == NULL) {
        mc_log(ERROR, "metadata server '%.200s': P2PHANDSHAKE, http://, etcd:// or redis:// is expected", server);
        return strncasecmp(server, "https://", 8) == 0 ? MC_TRANSFER_ERR_NOT_IMPLEMENTED
                                                       : MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (metadata->kind->parse(metadata, rest) == 0)
        return 0;
    mc_log(ERROR, "metadata server '%.200s': P2PHANDSHAKE or %s is expected", server, metadata->kind->form);
    return MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

static uint64_t deadline(void)
{
    return mc_clock_ns() + MC_METADATA_MS * 1000000ull;
}

static int no_answer(const struct mc_metadata *metadata, const char *what, const char *key, int rc,
                     const struct mc_buffer *reply)
{
    const char *why = rc == MC_ERR_RPC_TIMEOUT      ? "no answer in time"
                      : rc == MC_ERR_PROTOCOL       ? "its answer makes no sense"
                      : rc == MC_ERR_INVALID_PARAMS ? "it refuses: "
                                                    : "no connection";
    int length = rc == MC_ERR_INVALID_PARAMS ? (int)(reply->length < 200 ? reply->length : 200) : 0;
    mc_log_limited(ERROR, "the metadata server at %s%s does not %s %s: %s%.*s", metadata->kind->scheme,
                   metadata->server, what, key, why, length, length > 0 ? (const char *)reply->data : "");
    return MC_TRANSFER_ERR_METADATA;
}

int mc_metadata_get(struct mc_metadata *metadata, const char *key, struct mc_buffer *value)
{
    int rc = metadata->kind->get(metadata, key, deadline(), value);
    if (rc < 0)
        return no_answer(metadata, "tell", key, rc, value);
    if (rc == 0)
        mc_log_limited(ERROR, "the metadata server at %s%s does not know %s", metadata->kind->scheme, metadata->server,
                       key);
    return rc == 1 ? 0 : MC_TRANSFER_ERR_METADATA;
}

int mc_metadata_put(struct mc_metadata *metadata, const char *key, struct mc_span value)
{
    struct mc_buffer reply = {0};
    int rc = metadata->kind->put(metadata, key, value, deadline(), &reply);
    rc = rc < 0 ? no_answer(metadata, "take", key, rc, &reply) : rc == 0 ? 0 : MC_TRANSFER_ERR_REJECT_HANDSHAKE;
    mc_buffer_free(&reply);
    return rc;
}

int mc_metadata_remove(struct mc_metadata *metadata, const char *key)
{
    struct mc_buffer reply = {0};
    int rc = metadata->kind->remove(metadata, key, deadline(), &reply);
    rc = rc < 0 ? no_answer(metadata, "remove", key, rc, &reply) : 0;
    mc_buffer_free(&reply);
    return rc;
}

/* What had no answer has its line in the log already. */
static int taken(struct mc_transfer_engine *engine, const char *key, int rc)
{
    if (rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE)
        mc_log(ERROR, "the metadata server at %s%s refuses %s", engine->metadata.kind->scheme, engine->metadata.server,
               key);
    return rc < 0 ? MC_TRANSFER_ERR_METADATA : 0;
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
    return taken(engine, key, rc);
}

/* The publish lock is held, so that an older document cannot overtake a newer one. */
static int publish_document(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    mc_transfer_document(engine, &value);
    int rc = mc_metadata_put(&engine->metadata, key, mc_span(value.data, value.length));
    mc_buffer_free(&value);
    return taken(engine, key, rc);
}

int mc_transfer_publish_document(struct mc_transfer_engine *engine)
{
    if (engine->metadata.is_p2p)
        return 0;
    pthread_mutex_lock(&engine->publish_lock);
    int rc = publish_document(engine);
    pthread_mutex_unlock(&engine->publish_lock);
    return rc;
}

enum holder { NOBODY, US, ANOTHER, UNKNOWN };

/* Under whom our name stands at the server. */
static enum holder holder_of_name(struct mc_transfer_engine *engine, const char *key)
{
    char host[MC_ADDRESS_MAX];
    struct mc_buffer value = {0};
    uint16_t port = 0;
    int rc = engine->metadata.kind->get(&engine->metadata, key, deadline(), &value);
    bool is_ours = rc == 1 && mc_rpc_meta_read(mc_span(value.data, value.length), host, sizeof(host), &port) == 0 &&
                   port == engine->rpc_port && strcmp(host, engine->host) == 0;
    mc_buffer_free(&value);
    return is_ours ? US : rc == 1 ? ANOTHER : rc == 0 ? NOBODY : UNKNOWN;
}

void mc_transfer_withdraw(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    int rc = 0;
    if (engine->metadata.is_p2p)
        return;
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock);
    /* Only what is still ours: somebody else may have taken the name over. */
    bool is_ours = engine->is_published && holder_of_name(engine, key) == US;
    engine->is_published = false;
    if (is_ours) {
        rc = mc_metadata_remove(&engine->metadata, key);
        mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
        if (rc == 0)
            rc = mc_metadata_remove(&engine->metadata, key);
    }
    pthread_mutex_unlock(&engine->publish_lock);
    if (rc < 0)
        mc_log(WARNING, "the metadata server still holds the name %s of this engine", engine->name);
}

/* ---- a server that has forgotten us is told again ---- */

static void look(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock);
    enum holder holder = engine->is_published ? holder_of_name(engine, key) : US;
    if (holder == NOBODY && publish_document(engine) == 0 && mc_transfer_publish_name(engine) == 0)
        mc_log(WARNING, "the metadata server had lost the name %s; it has it again", engine->name);
    if (holder == ANOTHER) {
        mc_log(WARNING, "another engine has taken the name %s over; peers will not find this one", engine->name);
        engine->is_published = false;
    }
    pthread_mutex_unlock(&engine->publish_lock);
}

static void *names_main(void *argument)
{
    struct mc_transfer_engine *engine = argument;
    struct timespec until;
    pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += MC_METADATA_LOOK_S;
        while (!engine->is_closing &&
               pthread_cond_timedwait(&engine->names_changed, &engine->lock, &until) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&engine->lock);
        if (!engine->is_closing)
            look(engine);
        pthread_mutex_lock(&engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

int mc_transfer_names_start(struct mc_transfer_engine *engine)
{
    if (engine->metadata.is_p2p)
        return 0;
    engine->has_names_thread = mc_thread_start(&engine->names_thread, "mc-names", names_main, engine) == 0;
    return engine->has_names_thread ? 0 : MC_TRANSFER_ERR_MEMORY;
}

void mc_transfer_names_stop(struct mc_transfer_engine *engine)
{
    if (!engine->has_names_thread)
        return;
    pthread_mutex_lock(&engine->lock);
    pthread_cond_broadcast(&engine->names_changed);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->names_thread, NULL);
}
