/* KV events by ZMQ, as the original publishes them: a PUB socket (ZMTP 3.0 by tcp, without security). Each message has
 * an empty topic, a number of 8 bytes, the first of them the highest, which rises by one, and a batch (kv_batch.h).
 * Where events were lost the number leaps, and who needs them reads a snapshot by HTTP. Under a later master numbers
 * are above those of the ones before it.
 *
 * The past, as engines tell it: a ROUTER socket. It is asked by an empty frame and the number of the first
 * message that is wanted, and answers those that are kept from it on, each as above behind an empty frame; then one
 * with the number -1 and no batch.
 *
 * One thread serves all subscribers and waits for none: they share one ring of messages, and who falls out of it is let
 * go, comes again, and sees the leap. */
#ifndef MC_MASTER_KV_ZMQ_H
#define MC_MASTER_KV_ZMQ_H

#include "store/master/kv_batch.h"

struct mc_kv_zmq;
/* endpoint: "tcp://HOST:PORT", HOST * for all addresses; port 0: the kernel chooses, the log names it. replay: the
 * same, for the past, of which messages are then kept also while nobody listens; empty: not told. Where only that one
 * cannot be opened, a warning says so, and the rest goes on. 0, or negative with a line in error. */
int mc_kv_zmq_start(struct mc_kv_events *events, const struct mc_kv_form *form, const char *endpoint,
                    const char *replay, struct mc_kv_zmq **out, char *error, size_t error_size);
void mc_kv_zmq_stop(struct mc_kv_zmq *zmq); /* NULL is allowed */

#endif
