/* The shell around the core: one thread with one event loop that owns the core, its listener and its connections; and
 * the mailbox by which the HTTP thread asks the core.
 *
 * Invariant: the core is touched by the server's thread only. Every connection that the core was told of is reported as
 * ended exactly once, or goes with the core. With HA there is a core only while this master leads; the end of a
 * leadership closes all connections, and the next one begins with a new core. Nothing is taken in or sent after the
 * time that the election has granted.
 */
#ifndef MC_MASTER_SERVER_H
#define MC_MASTER_SERVER_H

#include "store/master/election.h"
#include "store/master/mailbox.h"
#include "store/master/options.h"

struct mc_server;

/* Listens and creates the core; nothing runs yet. 0, or negative with one line in error. */
int mc_server_create(const struct mc_master_config *config, struct mc_server **server, char *error, size_t error_size);
/* The port that is listened on. */
uint16_t mc_server_port(const struct mc_server *server);
/* Serves until SIGTERM or SIGINT (blocked in all threads by mc_server_create). 0 or negative. */
int mc_server_run(struct mc_server *server);
/* No asker may be left. */
void mc_server_destroy(struct mc_server *server);

/* From any other thread: runs function(core, argument) on the server's thread and waits. As
 * mc_mailbox_ask; MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS of a standby. */
int mc_server_ask(struct mc_server *server, mc_question *function, void *argument, uint64_t timeout_ms);
/* The same before all others that wait. */
int mc_server_ask_first(struct mc_server *server, mc_question *function, void *argument, uint64_t timeout_ms);
/* Listens; *port becomes the real one. A descriptor, or negative with a line in error that names address, flag, reason
 * and what to do. */
int mc_server_listen(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size);
/* Of this leadership, or of the last one. */
uint64_t mc_server_epoch(const struct mc_server *server);
/* The longest turn of the loop in the last 10 to 20 seconds: for so long nobody was answered. From any thread. */
uint64_t mc_server_longest_turn_ns(const struct mc_server *server);
/* Who leads; from any thread. Without HA it is always us. */
void mc_server_describe(struct mc_server *server, struct mc_election_role *role);

#endif
