/* KV events by ZMQ, as the original publishes them: a PUB socket (ZMTP 3.0 by tcp, without security). Each message has
 * an empty topic, a number of 8 bytes, the first of them the highest, which rises by one, and a batch (kv_batch.h).
 * Where events were lost the number leaps, and who needs them reads a snapshot by HTTP.
 *
 * One thread serves all subscribers and waits for none: they share one ring of messages, and who falls out of it is let
 * go, comes again, and sees the leap. */
#ifndef MC_MASTER_KV_ZMQ_H
#define MC_MASTER_KV_ZMQ_H

#include "store/master/kv_batch.h"

struct mc_kv_zmq;
/* endpoint: "tcp://HOST:PORT", HOST * for all addresses; port 0: the kernel chooses, the log names it. 0, or negative
 * with a line in error. */
int mc_kv_zmq_start(struct mc_kv_events *events, const struct mc_kv_form *form, const char *endpoint,
                    struct mc_kv_zmq **out, char *error, size_t error_size);
void mc_kv_zmq_stop(struct mc_kv_zmq *zmq); /* NULL is allowed */

#endif
