/* The API server of Kubernetes over HTTPS. */
#include "env/k8s.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/json.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>

#define FOLDER "/var/run/secrets/kubernetes.io/serviceaccount"
#define PATIENCE_MS 1000u
#define PAUSE_NS 100000000u /* an API server that cannot now is not asked sooner again */
#define BEARER "Bearer "

struct mc_k8s {
    struct mc_asker asker;
    struct mc_tls_settings tls;
    char authority[PATH_MAX], token[PATH_MAX];
};

/* ---- names ---- */

static bool is_name(const char *text)
{
    size_t length = strlen(text);
    for (const char *at = text; *at != 0; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '-' || *at == '.'))
            return false;
    return length > 0 && length < MC_K8S_NAME_MAX && text[0] != '-' && text[0] != '.' && text[length - 1] != '-' &&
           text[length - 1] != '.';
}

int mc_k8s_lease_parse(const char *text, struct mc_k8s_lease *lease)
{
    const char *slash = strchr(text, '/');
    const char *name = slash == NULL ? text : slash + 1;
    size_t length = slash == NULL ? 0 : (size_t)(slash - text);
    if (length >= sizeof(lease->space) || strlen(name) >= sizeof(lease->name))
        return MC_ERR_INVALID_PARAMS;
    snprintf(lease->name, sizeof(lease->name), "%s", name);
    if (slash == NULL)
        snprintf(lease->space, sizeof(lease->space), "default");
    else
        snprintf(lease->space, sizeof(lease->space), "%.*s", (int)length, text);
    return is_name(lease->space) && is_name(lease->name) ? 0 : MC_ERR_INVALID_PARAMS;
}

/* ---- life ---- */

static int set_server(struct mc_k8s *k8s, char *error, size_t error_size)
{
    const char *host = mc_variable(KUBERNETES_SERVICE_HOST), *port = mc_variable(KUBERNETES_SERVICE_PORT);
    struct mc_asker_server *server = &k8s->asker.servers[0];
    char *end = NULL;
    unsigned long number = port == NULL ? 0 : strtoul(port, &end, 10);
    if (host == NULL || host[0] == 0 || strlen(host) >= MC_ADDRESS_MAX - 8 || number == 0 || number > 65535 ||
        *end != 0) {
        snprintf(error, error_size,
                 "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server: they are set in every pod of "
                 "Kubernetes, and nowhere else unless you do it");
        return MC_ERR_INVALID_PARAMS;
    }
    server->is_tls = true;
    mc_address_join(server->address, sizeof(server->address), host, (uint16_t)number);
    k8s->asker.count = 1;
    return 0;
}

static int set_files(struct mc_k8s *k8s, char *error, size_t error_size)
{
    const char *folder = mc_variable(MC_K8S_SERVICE_ACCOUNT_DIR);
    if (folder == NULL || folder[0] == 0)
        folder = FOLDER;
    if (strlen(folder) + sizeof("/ca.crt") > PATH_MAX) {
        snprintf(error, error_size, "MC_K8S_SERVICE_ACCOUNT_DIR is too long");
        return MC_ERR_INVALID_PARAMS;
    }
    snprintf(k8s->authority, PATH_MAX, "%s/ca.crt", folder);
    snprintf(k8s->token, PATH_MAX, "%s/token", folder);
    k8s->tls = (struct mc_tls_settings){.authority = k8s->authority, .authority_is = "ca.crt"};
    return mc_tls_check(&k8s->tls, error, error_size);
}

/* "Bearer ..." appended, with a zero. */
static int read_token(const struct mc_k8s *k8s, struct mc_buffer *secret, char *error, size_t error_size)
{
    char why[128] = "holds no token";
    size_t length = 0;
    char *text = mc_file_read(NULL, k8s->token, &length, why, sizeof(why));
    size_t used = text == NULL ? 0 : length;
    while (used > 0 && strchr("\r\n\t ", text[used - 1]) != NULL)
        used--;
    bool is_good = used > 0 && memchr(text, '\n', used) == NULL && memchr(text, '\r', used) == NULL;
    if (is_good) {
        mc_buffer_append(secret, BEARER, sizeof(BEARER) - 1);
        mc_buffer_append(secret, text, used);
        mc_buffer_append(secret, "", 1);
    } else {
        snprintf(error, error_size, "the token of this pod, %.300s, %s: give the pod a service account", k8s->token,
                 why);
    }
    if (text != NULL)
        explicit_bzero(text, length);
    free(text);
    return is_good ? 0 : MC_ERR_INVALID_PARAMS;
}

static void forget(struct mc_buffer *secret)
{
    if (secret->length > 0)
        explicit_bzero(secret->data, secret->length);
    mc_buffer_free(secret);
}

int mc_k8s_create(struct mc_k8s **out, char *error, size_t error_size)
{
    struct mc_buffer secret = {0};
    struct mc_k8s *k8s = calloc(1, sizeof(*k8s));
    if (k8s == NULL) {
        snprintf(error, error_size, "no memory for a client of Kubernetes");
        return MC_ERR_NO_MEMORY;
    }
    k8s->asker.http.fd = -1;
    k8s->asker.tls = &k8s->tls;
    k8s->asker.pause_ns = PAUSE_NS;
    mc_k8s_patience(k8s, PATIENCE_MS);
    int rc = set_server(k8s, error, error_size);
    if (rc == 0)
        rc = set_files(k8s, error, error_size);
    if (rc == 0)
        rc = read_token(k8s, &secret, error, error_size);
    forget(&secret);
    if (rc < 0)
        free(k8s);
    else
        *out = k8s;
    return rc;
}

void mc_k8s_destroy(struct mc_k8s *k8s)
{
    if (k8s == NULL)
        return;
    mc_asker_free(&k8s->asker);
    free(k8s);
}

void mc_k8s_patience(struct mc_k8s *k8s, uint64_t patience_ms)
{
    k8s->asker.patience_ns = patience_ms * 1000000;
}

/* ---- a call ---- */

static void explain(int status, const char *method, const char *path)
{
    if (status == 401)
        mc_log_limited(ERROR, "the API server does not know the token of this pod's service account (401): is it of "
                              "another cluster, or has the account been deleted?");
    else if (status == 403)
        mc_log_limited(ERROR,
                       "the API server refuses %s %s (403): bind the pod's service account to a Role with the "
                       "verb%s in that namespace",
                       method, path,
                       strcmp(method, "PATCH") == 0 ? " patch for pods"
                                                    : "s get, create and update for leases of coordination.k8s.io");
    else if (status >= 400 && status != 404 && status != 409)
        mc_log_limited(WARNING, "the API server refuses %s %s (%d)", method, path, status);
}

static int call(struct mc_k8s *k8s, const char *method, const char *path, const char *type, struct mc_span body,
                uint64_t deadline_ns, struct mc_buffer *reply)
{
    char why[512];
    struct mc_buffer secret = {0};
    reply->length = 0;
    if (read_token(k8s, &secret, why, sizeof(why)) < 0) {
        mc_log_limited(ERROR, "%s", why);
        forget(&secret);
        return MC_ERR_RPC_FAIL;
    }
    const struct mc_http_question question = {
        .method = method, .path = path, .secret = (const char *)secret.data, .body = body, .type = type};
    int rc = mc_asker_call(&k8s->asker, &question, deadline_ns, reply);
    forget(&secret);
    explain(rc, method, path);
    return rc;
}

int mc_k8s_call(struct mc_k8s *k8s, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                struct mc_buffer *reply)
{
    return call(k8s, method, path, NULL, body, deadline_ns, reply);
}

int mc_k8s_patch(struct mc_k8s *k8s, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply)
{
    return call(k8s, "PATCH", path, "application/merge-patch+json", body, deadline_ns, reply);
}

/* ---- answers ---- */

int mc_k8s_text(struct mc_span object, const char *path, const char *name, char *text, size_t size)
{
    struct mc_span inner;
    struct mc_json_cursor member;
    text[0] = 0;
    int rc = mc_json_find(object, path, &inner);
    if (rc != 1 || inner.length == 0 || *(const char *)inner.data != '{')
        return rc < 0 ? rc : 0;
    rc = mc_json_member(inner, name, &member);
    if (rc != 1 || member.kind == 'n')
        return rc < 0 ? rc : 0;
    return mc_json_text(&member, text, size) == 0 ? 0 : MC_ERR_PROTOCOL;
}
