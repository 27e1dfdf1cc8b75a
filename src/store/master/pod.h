/* A label of this master's pod in Kubernetes: mooncake.io/store-role=leader while it leads, none otherwise, so that a
 * Service whose selector names it reaches the leader. A thread of its own ("mc-pod") brings it to what was said last,
 * as often as it takes. It is a sign for whoever routes: a master that does not lead refuses calls, whatever its label
 * says, and a leader whose label is late serves all the same. */
#ifndef MC_MASTER_POD_H
#define MC_MASTER_POD_H

#include <stdbool.h>
#include <stddef.h>

#define MC_POD_NAME_MAX 254 /* bytes of a name of Kubernetes with its zero */

struct mc_pod;

/* Begins without the label: who is started again in the same pod may have left it there. 0, or negative with a line in
 * error. */
int mc_pod_create(const char *space, const char *name, struct mc_pod **pod, char *error, size_t error_size);
/* Returns at once. NULL is allowed. */
void mc_pod_lead(struct mc_pod *pod, bool leads);
/* Takes the label away if it may be there: once, in a second, after the call of two that may be under way. Joins the
 * thread. NULL is allowed. */
void mc_pod_destroy(struct mc_pod *pod);

/* Is that a name that a pod or a namespace can have? */
bool mc_pod_is_name(const char *text);

#endif
