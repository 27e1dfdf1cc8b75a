/* Who leads: where "etcd://host:port[,host:port...]" stands in the place of a master's address, the leader's address is
 * the value of a key there; where it is "k8s://namespace/name", the holder of that Lease. Blocking, with a deadline. */
#ifndef MC_ENV_LEADER_H
#define MC_ENV_LEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_LEADER_CLUSTER_MAX 255 /* bytes of a cluster's name */

/* "etcd://host:port,host:port", with "/cluster" behind it where MC_STORE_CLUSTER_ID does not name the cluster, or
 * "k8s://namespace/name". */
bool mc_leader_is_election(const char *address);
/* The leader's "host:port" into text. 0; MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS: there is no leader now; MC_ERR_RPC_FAIL,
 * MC_ERR_RPC_TIMEOUT: no endpoint answers; MC_ERR_INVALID_PARAMS. */
int mc_leader_find(const char *address, uint64_t deadline_ns, char *text, size_t text_size);
/* For how long it is known that the Lease is renewed, if that was read after since_ms (mc_clock_ms); else 0. Of etcd,
 * where a dead leader's key goes by itself: UINT64_MAX. */
uint64_t mc_leader_age_ms(const char *address, uint64_t since_ms);

#endif
