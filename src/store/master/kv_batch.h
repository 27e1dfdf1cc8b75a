/* A batch of KV events as the original publishes it, in msgpack: [time, [event, ...], rank]. Each event is a map with
 * the names of the original's proposal and, if that is asked for, those of inference engines beside them. */
#ifndef MC_MASTER_KV_BATCH_H
#define MC_MASTER_KV_BATCH_H

#include "store/master/kv_events.h"

struct mc_kv_form {
    bool has_legacy;     /* type, block_hashes and parent_block_hash, too */
    bool has_object_key; /* the key as it is; else only events whose key is a number are told */
    const char *backend_id;
};
#define MC_KV_BATCH_MAX 64u /* events */
/* Appends the batch of those events. How many of them have a key that is no number. */
size_t mc_kv_batch_write(struct mc_buffer *out, const struct mc_kv_form *form, const struct mc_kv_event *events,
                         size_t count);

#endif
