/* Asks an election who leads. */
#include "env/leader.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/etcd.h"
#include "env/k8s.h"
#include "env/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char etcd_scheme[] = "etcd://", lease_scheme[] = "k8s://";

static bool begins(const char *address, const char *scheme)
{
    return strncmp(address, scheme, strlen(scheme)) == 0;
}

bool mc_leader_is_election(const char *address)
{
    return begins(address, etcd_scheme) || begins(address, lease_scheme);
}

/* ---- in etcd ---- */

/* The length of the endpoints: up to the first slash that is none of "https://". */
static size_t endpoints_length(const char *address)
{
    const char *at = address + strcspn(address, "/");
    while (at > address && strncmp(at - 1, "://", 3) == 0)
        at += 2 + strcspn(at + 2, "/");
    return (size_t)(at - address);
}

/* "host:port,host:port[/cluster]". Without a cluster: MC_STORE_CLUSTER_ID of the environment, or the default. */
static int split(const char *address, char *endpoints, size_t endpoints_size, char *key, size_t key_size)
{
    size_t length = endpoints_length(address);
    const char *cluster = address[length] == '/' ? address + length + 1 : "";
    if (*cluster == 0)
        cluster = mc_variable(MC_STORE_CLUSTER_ID);
    if (cluster == NULL || *cluster == 0)
        cluster = "mooncake_cluster";
    if (length == 0 || length >= endpoints_size || strlen(cluster) > MC_LEADER_CLUSTER_MAX)
        return MC_ERR_INVALID_PARAMS;
    memcpy(endpoints, address, length);
    endpoints[length] = 0;
    mc_etcd_view_key(key, key_size, cluster, "master_view");
    return 0;
}

static int find_in_etcd(const char *address, uint64_t deadline_ns, char *text, size_t text_size)
{
    char endpoints[MC_ETCD_ENDPOINTS_MAX * MC_ADDRESS_MAX], key[MC_ETCD_KEY_MAX];
    char error[512] = "the address of an election has no endpoints, or is too long";
    struct mc_etcd *etcd = NULL;
    struct mc_buffer body = {0}, reply = {0};
    int rc = split(address + sizeof(etcd_scheme) - 1, endpoints, sizeof(endpoints), key, sizeof(key));
    if (rc == 0)
        rc = mc_etcd_create(endpoints, &etcd, error, sizeof(error));
    if (rc < 0) {
        mc_log_limited(ERROR, "%s", error);
        return rc;
    }
    mc_buffer_printf(&body, "{");
    mc_etcd_field(&body, "key", mc_span_string(key));
    mc_buffer_printf(&body, "}");
    rc = mc_etcd_call(etcd, "/v3/kv/range", mc_span(body.data, body.length), deadline_ns, &reply);
    if (rc == 0) {
        rc = mc_etcd_text(mc_span(reply.data, reply.length), "kvs.0.value", text, text_size);
        rc = rc == 1 && text[0] != 0 ? 0 : rc >= 0 ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : MC_ERR_RPC_FAIL;
    } else if (rc != MC_ERR_RPC_TIMEOUT) {
        rc = MC_ERR_RPC_FAIL;
    }
    mc_buffer_free(&body);
    mc_buffer_free(&reply);
    mc_etcd_destroy(etcd);
    return rc;
}

/* ---- by a Lease ---- */

/* It names its holder also when that is long dead; only what is renewed is held. */
static struct { /* the one that was read last: a process has one, as a rule, and of several none is believed */
    pthread_mutex_t lock;
    char address[MC_ADDRESS_MAX], renewed[64]; /* "": never */
    uint64_t changed_ms;                       /* when it was first read with another time than before; 0: never */
} lease_seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_renewal(const char *address, struct mc_span object)
{
    char renewed[sizeof(lease_seen.renewed)];
    if (mc_k8s_text(object, "spec", "renewTime", renewed, sizeof(renewed)) != 0 || renewed[0] == 0)
        return;
    pthread_mutex_lock(&lease_seen.lock);
    bool is_same = strcmp(lease_seen.address, address) == 0;
    if (!is_same)
        lease_seen.changed_ms = 0;
    else if (strcmp(lease_seen.renewed, renewed) != 0)
        lease_seen.changed_ms = mc_clock_ms();
    (void)snprintf(lease_seen.address, sizeof(lease_seen.address), "%s", address);
    memcpy(lease_seen.renewed, renewed, sizeof(renewed));
    pthread_mutex_unlock(&lease_seen.lock);
}

uint64_t mc_leader_age_ms(const char *address, uint64_t since_ms)
{
    if (!begins(address, lease_scheme))
        return UINT64_MAX;
    pthread_mutex_lock(&lease_seen.lock);
    bool is_new = strcmp(lease_seen.address, address) == 0 && lease_seen.changed_ms > since_ms;
    uint64_t age_ms = is_new ? mc_clock_ms() - lease_seen.changed_ms : 0;
    pthread_mutex_unlock(&lease_seen.lock);
    return age_ms;
}

static int find_by_lease(const char *address, uint64_t deadline_ns, char *text, size_t text_size)
{
    char path[2 * MC_K8S_PATH_MAX], error[512];
    struct mc_k8s_lease lease;
    struct mc_k8s *k8s = NULL;
    struct mc_buffer reply = {0};
    int rc = mc_k8s_lease_parse(address + sizeof(lease_scheme) - 1, &lease);
    if (rc < 0)
        snprintf(error, sizeof(error), "'%.200s' is no Lease: k8s://namespace/name is expected", address);
    else
        rc = mc_k8s_create(&k8s, error, sizeof(error));
    if (rc < 0) {
        mc_log_limited(ERROR, "%s", error);
        return rc;
    }
    int used = snprintf(path, sizeof(path), MC_K8S_LEASES, lease.space);
    snprintf(path + used, sizeof(path) - (size_t)used, "/%s", lease.name);
    rc = mc_k8s_call(k8s, "GET", path, mc_span(NULL, 0), deadline_ns, &reply);
    if (rc == 200) {
        note_renewal(address, mc_span(reply.data, reply.length));
        rc = mc_k8s_text(mc_span(reply.data, reply.length), "spec", "holderIdentity", text, text_size);
        rc = rc == 0 && text[0] != 0 ? 0 : rc == 0 ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : MC_ERR_RPC_FAIL;
    } else if (rc != MC_ERR_RPC_TIMEOUT) {
        rc = rc == 404 ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : MC_ERR_RPC_FAIL;
    }
    mc_buffer_free(&reply);
    mc_k8s_destroy(k8s);
    return rc;
}

int mc_leader_find(const char *address, uint64_t deadline_ns, char *text, size_t text_size)
{
    return begins(address, etcd_scheme)    ? find_in_etcd(address, deadline_ns, text, text_size)
           : begins(address, lease_scheme) ? find_by_lease(address, deadline_ns, text, text_size)
                                           : MC_ERR_INVALID_PARAMS;
}
