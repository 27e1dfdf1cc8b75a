/* The text of the quotas in etcd, under mooncake-store/<cluster>/tenant_quota_policy, where the original has it.
 * Written only in place of what was read. One thread at a time uses a place. */
#ifndef MC_MASTER_QUOTAS_ETCD_H
#define MC_MASTER_QUOTAS_ETCD_H

#include "base/bytes.h"

struct mc_quota_place;

/* 0, or negative with one line in error. Nothing is asked yet. */
int mc_quota_place_create(const char *endpoints, const char *cluster_id, struct mc_quota_place **place, char *error,
                          size_t error_size);
void mc_quota_place_destroy(struct mc_quota_place *place);
/* 0: the text, a zero behind it, and the revision that it was written at; 0 and no text: it is not there. Negative, and
 * the log says why. */
int mc_quota_place_read(struct mc_quota_place *place, uint64_t deadline_ns, struct mc_buffer *text, uint64_t *revision);
/* Writes it if what is there is still of that revision, which is then the new one. MC_ERR_ETCD_TRANSACTION_FAIL: it is
 * not, also where this was carried out twice; other negatives: it may have been written. */
int mc_quota_place_swap(struct mc_quota_place *place, uint64_t deadline_ns, struct mc_span text, uint64_t *revision);

#endif
