/* In bench_core_bare: a core that neither remembers why keys went nor samples their uses. The calls are bound to these
 * when it is linked, so what is measured beside it is the core as it is. */
#include "store/core/miss.h"

bool __wrap_mc_reuse_init(struct mc_reuse *reuse);
void __wrap_mc_reuse_look(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, bool is_check, bool is_found);
void __wrap_mc_reuse_tick(struct mc_reuse *reuse, uint64_t now_ms);
void __wrap_mc_miss_evicted(struct mc_core *core, const struct mc_object *object, bool was_proven);
void __wrap_mc_miss_vanished(struct mc_core *core, const struct mc_object *object);
void __wrap_mc_miss_refused(struct mc_core *core, struct mc_span key, int32_t code);
void __wrap_mc_miss_put(struct mc_core *core, uint64_t hash, uint64_t units);
bool __wrap_mc_misses_may_look(struct mc_core *core);
void __wrap_mc_miss_count(struct mc_core *core, struct mc_span key);

bool __wrap_mc_reuse_init(struct mc_reuse *reuse)
{
    *reuse = (struct mc_reuse){0}; /* no key is in the sample */
    return true;
}

void __wrap_mc_reuse_look(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, bool is_check, bool is_found)
{
    (void)reuse, (void)now_ms, (void)hash, (void)is_check, (void)is_found;
}

void __wrap_mc_reuse_tick(struct mc_reuse *reuse, uint64_t now_ms)
{
    (void)reuse, (void)now_ms;
}

void __wrap_mc_miss_evicted(struct mc_core *core, const struct mc_object *object, bool was_proven)
{
    (void)core, (void)object, (void)was_proven;
}

void __wrap_mc_miss_vanished(struct mc_core *core, const struct mc_object *object)
{
    (void)core, (void)object;
}

void __wrap_mc_miss_refused(struct mc_core *core, struct mc_span key, int32_t code)
{
    (void)core, (void)key, (void)code;
}

void __wrap_mc_miss_put(struct mc_core *core, uint64_t hash, uint64_t units)
{
    (void)core, (void)hash, (void)units;
}

bool __wrap_mc_misses_may_look(struct mc_core *core)
{
    (void)core;
    return false;
}

void __wrap_mc_miss_count(struct mc_core *core, struct mc_span key)
{
    (void)core, (void)key;
}
