/* The names and documents of engines at the metadata server. */
#include "transfer/wire/metadata.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/log.h"
#include "mooncake_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A password does not belong there, and must not stand in the log. */
static const char *shown(const char *server)
{
    return strchr(server, '@') == NULL ? server : "(not shown, as it has a name or password before an @)";
}

int mc_metadata_init(struct mc_metadata *metadata, const char *server)
{
    const char *rest, *cluster_id = mc_variable(MC_METADATA_CLUSTER_ID);
    metadata->is_p2p = strcmp(server, "P2PHANDSHAKE") == 0;
    snprintf(metadata->cluster_id, sizeof(metadata->cluster_id), "%s", cluster_id == NULL ? "" : cluster_id);
    if (metadata->is_p2p)
        return 0;
    metadata->kind = mc_metadata_kind_of(server, &rest);
    if (metadata->kind == NULL) {
        mc_log(ERROR,
               "metadata server '%.200s': P2PHANDSHAKE, http://, https://, etcd://, redis:// or rediss:// is expected",
               shown(server));
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    }
    if (metadata->kind->parse(metadata, rest) == 0)
        return 0;
    mc_log(ERROR, "metadata server '%.200s': P2PHANDSHAKE or %s is expected", shown(server), metadata->kind->form);
    return MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

static uint64_t deadline(void)
{
    return mc_clock_ns() + MC_METADATA_MS * 1000000ull;
}

static int no_answer(const struct mc_metadata *metadata, const char *what, const char *key, int rc,
                     const struct mc_buffer *reply)
{
    int length = rc == MC_ERR_INVALID_PARAMS ? (int)(reply->length < 200 ? reply->length : 200) : 0;
    const char *why = rc == MC_ERR_RPC_TIMEOUT      ? "no answer in time"
                      : rc == MC_ERR_PROTOCOL       ? "its answer makes no sense"
                      : length > 0                  ? "it refuses: "
                      : rc == MC_ERR_INVALID_PARAMS ? "it refuses, and does not say why"
                                                    : "no connection";
    mc_log_limited(ERROR,
                   "the metadata server at %s%s does not %s %s: %s%.*s; is it running there? mooncake_doctor "
                   "--metadata tries it",
                   metadata->kind->scheme, metadata->server, what, key, why, length,
                   length > 0 ? (const char *)reply->data : "");
    return MC_TRANSFER_ERR_METADATA;
}

int mc_metadata_try(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *value)
{
    uint64_t now_ns = mc_clock_ns(), until_ns = deadline();
    bool is_fair = deadline_ns >= now_ns + MC_METADATA_FAIR_MS * 1000000ull;
    int rc = metadata->kind->get(metadata, key, deadline_ns < until_ns ? deadline_ns : until_ns, value);
    if (rc >= 0 || is_fair)
        atomic_store(&metadata->away_until_ns, rc < 0 ? mc_clock_ns() + MC_METADATA_AWAY_S * 1000000000ull : 0);
    return rc;
}

int mc_metadata_ask(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *value)
{
    int rc = mc_metadata_try(metadata, key, deadline_ns, value);
    if (rc < 0)
        return no_answer(metadata, "tell", key, rc, value);
    if (rc == 0)
        mc_log_limited(ERROR, "the metadata server at %s%s does not know %s", metadata->kind->scheme, metadata->server,
                       key);
    return rc;
}

bool mc_metadata_is_away(const struct mc_metadata *metadata)
{
    return mc_clock_ns() < atomic_load(&metadata->away_until_ns);
}

int mc_metadata_get(struct mc_metadata *metadata, const char *key, struct mc_buffer *value)
{
    return mc_metadata_ask(metadata, key, UINT64_MAX, value) == 1 ? 0 : MC_TRANSFER_ERR_METADATA;
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
