/* The quotas that administrators have given: a list that outlives the cores of this process, and, where it has a file
 * or stands in etcd, the process. The text there is YAML, as the original's:
 *
 *   version: 1
 *   tenants:
 *     - name: "team-a"
 *       quota: 10GB              # B, KB, MB, GB, TB: powers of 1024; what follows is ours and may be missing
 *       objects: 100000
 *       guaranteed: 2GB
 *       guaranteed_objects: 1000
 *       firm_pins: 1GB
 *
 * All threads may call. */
#ifndef MC_MASTER_QUOTAS_H
#define MC_MASTER_QUOTAS_H

#include "store/core/core.h"

struct mc_quotas;
struct mc_server;

/* path: of a file; "": there is none. cluster_id: NULL, or path names members of etcd, where it is that cluster's; what
 * others change there is seen soon after mc_quotas_start. 0, or negative with one line in error. */
int mc_quotas_create(const char *path, const char *cluster_id, struct mc_quotas **made, char *error, size_t error_size);
/* The server's core is told of what others change. 0, or negative: there is no thread to look. quotas may be NULL. */
int mc_quotas_start(struct mc_quotas *quotas, struct mc_server *server);
/* The server is asked nothing more. quotas may be NULL. */
void mc_quotas_stop(struct mc_quotas *quotas);
void mc_quotas_destroy(struct mc_quotas *quotas);
/* The core knows all of them from now on; has the form of mc_master_config.core_made. */
void mc_quotas_apply(void *quotas, struct mc_core *core);
/* Gives the tenant that quota, or takes it away (NULL), in the list and in the file; the core is the caller's business.
 * 0, or negative, and nothing has changed; but where etcd has not answered it may have, and is seen later. One thread
 * calls this. */
int mc_quotas_change(struct mc_quotas *quotas, const char *name, const struct mc_core_quota *quota);

/* ---- the text of the file ---- */

#define MC_QUOTA_BYTES_MAX ((1ull << 63) - 1)
struct mc_quota_entry {
    char name[64];
    struct mc_core_quota quota;
};
/* How many there are, at most `capacity`; or negative with one line in error. */
int mc_quotas_parse(const char *text, size_t length, struct mc_quota_entry *list, size_t capacity, char *error,
                    size_t error_size);
void mc_quotas_format(struct mc_buffer *out, const struct mc_quota_entry *list, size_t count);
/* NULL, or what is wrong with it. */
const char *mc_quota_wrong(const struct mc_core_quota *quota);

#endif
