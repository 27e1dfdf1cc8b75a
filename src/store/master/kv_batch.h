/* A batch of KV events in msgpack: [time, [event, ...], rank]. Each event is a map, of one of two forms: the
 * original's, with the names of its proposal and, if that is asked for, those of inference engines beside them; or that
 * of engines alone, whose readers refuse a batch in which an event lacks a member that they require. */
#ifndef MC_MASTER_KV_BATCH_H
#define MC_MASTER_KV_BATCH_H

#include "store/master/kv_events.h"

struct mc_kv_form {
    bool has_legacy;     /* type, block_hashes and parent_block_hash, too */
    bool has_object_key; /* the key, too; else only events whose key is a number are told */
    bool is_engines;     /* the form of engines alone; has_legacy says nothing then */
    const char *backend_id;
};
#define MC_KV_BATCH_MAX 64u /* events */
/* Appends the batch of those events. is_new: what was told before is not so any more, or some was not told; engines'
 * form has an event for that. How many of them have a key that is no number. */
size_t mc_kv_batch_write(struct mc_buffer *out, const struct mc_kv_form *form, bool is_new,
                         const struct mc_kv_event *events, size_t count);

#endif
