/* Owners of segments, as a call sees them: where they are, how they are reached, what happens when one fails. */
#ifndef MC_STORE_OWNERS_H
#define MC_STORE_OWNERS_H

#include "store/client/state.h"
#include "store/path/path.h"

/* Endpoint of a segment of that epoch, from the cache or the master. Copies. */
int mc_store_endpoint(struct mc_store *store, uint64_t epoch, uint32_t segment, uint64_t deadline_ns,
                      struct mc_endpoint *endpoint);
/* The owner does not take the ticket: asks the master whether there is another, or another owner. True: *endpoint is
 * what it says. */
bool mc_store_ticket_renew(struct mc_store *store, uint64_t epoch, uint64_t deadline_ns, struct mc_endpoint *endpoint);
/* A referenced path to that segment. */
int mc_store_path(struct mc_store *store, const struct mc_endpoint *endpoint, uint64_t deadline_ns,
                  struct mc_path **path);
/* The owner failed: drop the path (NULL: there was none), hide the segment from this client for a while, and tell the
 * master, if there is one to tell, once it has answered something soon after: whoever hears nobody has a trouble of his
 * own. */
void mc_store_report(struct mc_store *store, bool tell, uint64_t epoch, const struct mc_endpoint *owner,
                     struct mc_path *path, int code);

#endif
