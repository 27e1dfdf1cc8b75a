/* A blocking client of the API server of Kubernetes, as every pod can have one: its address from the environment
 * (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT), whom to trust (ca.crt) and who one is (token) from the files of
 * the pod's service account. The token is read anew for every question: it changes about once an hour.
 *
 * asker.h says what a call means: it ends by its deadline, and may be carried out more than once. One thread at a time
 * uses a client. */
#ifndef MC_ENV_K8S_H
#define MC_ENV_K8S_H

#include "env/asker.h"

#include <limits.h>

#define MC_K8S_NAME_MAX 254                        /* bytes of a name of Kubernetes with its zero */
#define MC_K8S_PATH_MAX (2 * MC_K8S_NAME_MAX + 64) /* of a Lease's path */
#define MC_K8S_LEASES "/apis/coordination.k8s.io/v1/namespaces/%s/leases"

/* Which Lease of which namespace. */
struct mc_k8s_lease {
    char space[MC_K8S_NAME_MAX], name[MC_K8S_NAME_MAX];
};
/* "namespace/name"; "name" alone is in the namespace "default". 0 or MC_ERR_INVALID_PARAMS. */
int mc_k8s_lease_parse(const char *text, struct mc_k8s_lease *lease);

struct mc_k8s;

/* 0, or negative with a line in error: this is no pod, or the files or OpenSSL are of no use. */
int mc_k8s_create(struct mc_k8s **k8s, char *error, size_t error_size);
void mc_k8s_destroy(struct mc_k8s *k8s);
void mc_k8s_patience(struct mc_k8s *k8s, uint64_t patience_ms);

/* The status, 200 to 499, and reply holds the body; or as mc_asker_call. What it refuses for want of a right is said in
 * the log. */
int mc_k8s_call(struct mc_k8s *k8s, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                struct mc_buffer *reply);
/* The same for PATCH; body: a merge patch (RFC 7396). */
int mc_k8s_patch(struct mc_k8s *k8s, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply);

/* A text of a Lease: the member `name` of the object at `path`, "" when it is not there or null. 0 or MC_ERR_PROTOCOL,
 * also when it is too long. */
int mc_k8s_text(struct mc_span object, const char *path, const char *name, char *text, size_t size);

#endif
