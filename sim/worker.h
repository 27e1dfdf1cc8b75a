/* A thread of a client that asks the store, and what the files share that say what it asks (cluster.c, sessions.c,
 * jobs.c). */
#ifndef SIM_WORKER_H
#define SIM_WORKER_H

#include "plan.h"

#include "mooncake.h"

#define SIM_VALUE_MAX (24u << 10)

struct sim_worker {
    struct mc_store *store;
    struct sim_process *process;
    uint32_t number; /* of its process' threads */
    uint32_t tenant; /* whose keys it names */
    uint8_t *buffers[SIM_BATCH_MAX];
};

struct mc_bytes sim_key_name(uint32_t key);
/* Tenants that put, by number, and whose store a process opens and whose a key is; "": the default one. */
const char *sim_tenant(uint32_t tenant);
uint32_t sim_tenant_of(const struct sim_process *process);
uint32_t sim_key_tenant(uint32_t key);
/* One of that tenant's keys. */
uint32_t sim_key_draw(enum sim_stream stream, uint32_t tenant);
/* The key as masters and owners know it. */
struct mc_span sim_key_full(uint32_t key);
/* False when it is none of ours. */
bool sim_key_find(struct mc_span full, uint32_t *key);
struct mc_object;
bool sim_key_of(const struct mc_object *object, uint32_t *key);
uint32_t sim_length_draw(enum sim_stream stream);
/* Pins and groups of a put of these keys, from a stream of their own; *config points to groups then. */
void sim_wishes_draw(struct mc_replicate_config *config, const uint32_t *keys, uint32_t count,
                     uint64_t groups[SIM_BATCH_MAX]);
/* The group that puts of that key name; 0: none. */
uint64_t sim_group(uint32_t key);
/* The same as masters and owners know it. */
uint64_t sim_group_full(uint32_t key);

/* sessions.c */
void sim_session_do(struct sim_worker *worker);

#endif
