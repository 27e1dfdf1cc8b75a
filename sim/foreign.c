/* A node of another cluster comes to this one's masters again and again, with values under the same keys: none of them
 * may ever be read here, nothing of ours may be lost by it, and what it holds stays as it is. */
#include "members.h"

#include "base/checksum.h"
#include "store/path/gather.h"
#include "store/segment/memory.h"
#include "store/core/state.h"
#include "mooncake.h"

#include <stdio.h>
#include <string.h>

#define LENGTH 100u
#define FOLDER "/shm"

static const struct mc_id elsewhere = {0xf0f0f0f0, 0xe1e1e1e1};

/* As a writer of that cluster left it. */
static void value_leave(struct mc_segment_memory *memory, uint32_t key, uint64_t generation)
{
    char name[16];
    size_t name_length = (size_t)snprintf(name, sizeof(name), SIM_KEY_FORMAT, key);
    struct mc_hash hash = mc_hash(name, name_length);
    struct mc_transfer transfer = {.place = {.slot = key, .generation = generation, .offset = key * 4096ull},
                                   .object_length = LENGTH,
                                   .hash_low = hash.low,
                                   .hash_high = hash.high,
                                   .key = mc_span(name, name_length)};
    uint8_t *data = mc_segment_memory_data(memory) + transfer.place.offset;
    struct mc_wire_commit_item commit;
    memset(data, 0xf0, LENGTH);
    memcpy(data + mc_key_offset(LENGTH), name, name_length);
    mc_commit_fill(&commit, &transfer, mc_crc32c(0, data, LENGTH));
    if (mc_segment_memory_commit(memory, &commit) != 0)
        sim_fail("foreign: its own value is refused");
}

static struct mc_segment_memory *memory_open(const char *host, bool expected)
{
    struct mc_segment_memory *memory;
    bool has_contents;
    if (mc_segment_memory_open(FOLDER, host, sim_plan->capacity, 0, false, &memory, &has_contents) < 0 ||
        has_contents != expected)
        sim_fail("foreign: its memory is %s", expected ? "not what it was" : "there before it was made");
    return memory;
}

/* epoch: of its own master; maybe later than any of ours. */
static void contents_leave(const char *host, uint64_t epoch)
{
    struct mc_segment_memory *memory = memory_open(host, false);
    (void)mc_segment_memory_populate(memory, NULL, NULL);
    while (mc_segment_memory_populated(memory) < mc_segment_memory_capacity(memory))
        sim_sleep_ns(SIM_MS);
    mc_segment_memory_populate_stop(memory);
    mc_segment_memory_set_epoch(memory, epoch);
    mc_segment_memory_set_cluster(memory, elsewhere);
    mc_segment_memory_set_contact_ms(memory, sim_boot_ns(sim_process()) / SIM_MS);
    for (uint32_t key = 0; key < sim_plan->keys; key++)
        value_leave(memory, key, (epoch << MC_EPOCH_SHIFT) + key + 1);
    mc_segment_memory_release(memory);
}

/* The master that knows which cluster it is; NULL: there is none now. */
static const struct mc_core *settled(void)
{
    const struct sim_process *master = sim_master();
    const struct mc_core *core = master->alive ? master->core : NULL;
    return core != NULL && !mc_id_is_zero(mc_core_cluster(core)) ? core : NULL;
}

void sim_foreign_main(struct sim_process *process)
{
    char host[32];
    struct mc_store *store = NULL;
    for (unsigned i = 0; i < 8; i++) /* the plan has drawn from the same stream */
        (void)sim_random(SIM_FOREIGN);
    /* A master that does not know yet which cluster it is may believe who comes alone. */
    while (settled() == NULL && !sim_cluster.is_calm)
        sim_sleep_ns(50 * SIM_MS);
    if (sim_cluster.is_calm)
        return;
    snprintf(host, sizeof(host), "10.0.0.%u:7000", process->address);
    uint64_t epoch = settled()->epoch;
    contents_leave(host, sim_once_in(SIM_FOREIGN, 2) ? epoch + 1 + sim_below(SIM_FOREIGN, 1000000) : 1 + epoch / 2);
    struct mc_store_config config = {.local_hostname = host,
                                     .master_server_addr = sim_master_address(),
                                     .protocol = "tcp",
                                     .paths = sim_plan->paths,
                                     .global_segment_size = sim_plan->capacity,
                                     .local_buffer_size = 1 << 20,
                                     .data_dir = FOLDER,
                                     .call_timeout_ms = sim_plan->timeout_ms};
    while (!sim_cluster.is_calm && store == NULL) {
        int rc = mc_store_open(&config, &store);
        sim_say("a node of another cluster comes: %s", mc_error_name(rc));
        sim_sleep_ns(sim_below(SIM_FOREIGN, 3000) * SIM_MS);
    }
    while (!sim_cluster.is_calm) /* it was let in */
        sim_sleep_ns(50 * SIM_MS);
    if (store != NULL) /* if none of its values was read, by luck */
        sim_fail("foreign: a node with contents of another cluster was let in");
    struct mc_segment_memory *memory = memory_open(host, true);
    if (mc_segment_memory_live(memory) != sim_plan->keys ||
        mc_segment_memory_met(memory) != mc_segment_memory_epoch(memory))
        sim_fail("foreign: of its %u values %u are there, and it has met a master of epoch %llu", sim_plan->keys,
                 mc_segment_memory_live(memory), (unsigned long long)mc_segment_memory_met(memory));
    mc_segment_memory_release(memory);
}
