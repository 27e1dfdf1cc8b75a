/* All keys with the media that they are on, and the number after which events have to be applied to that.
 *
 * It is read while everything changes. It is right all the same: a key whose media do not change meanwhile is in it as
 * it is (the core's table is walked, where an object never gets behind the cursor), and each change after it began is
 * an event after its number, which says what holds from then on. */
#ifndef MC_MASTER_KV_SNAPSHOT_H
#define MC_MASTER_KV_SNAPSHOT_H

#include "store/master/kv_events.h"

struct mc_kv_cursor {
    uint64_t epoch; /* 0: it begins */
    uint64_t after; /* the number */
    uint64_t at;
};
struct mc_kv_slice {
    struct mc_kv_events *events;
    struct mc_kv_cursor cursor;
    /* False: that is enough for now. Others may come all the same, which lie beside that key. */
    bool (*visit)(void *context, struct mc_span key, unsigned media);
    void *context;
    bool is_full;  /* it was enough */
    bool is_last;  /* there are no more keys */
    bool is_stale; /* another master leads since it began, and nothing was read */
    size_t found;  /* keys, by one question */
};
/* A question to the core: on its thread, which alone adds events, so that the number is that of what the core says
 * then. argument: a slice; it goes on from its cursor, but no further than the core has time for. */
void mc_kv_slice_read(struct mc_core *core, void *argument);

#endif
