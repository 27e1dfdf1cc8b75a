/* How the memory of one store is cut into segments. */
#include "store/client/parts.h"

#include "base/address.h"
#include "base/variables.h"
#include "env/log.h"
#include "store/client/life.h"
#include "store/client/threads.h"
#include "store/segment/memory.h"
#include "store/segment/numa.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PART_UNIT (UINT64_C(2) << 20)
#define PATH_BYTES 4096u

static const char *data_dir_of(const struct mc_store_config *config)
{
    const char *data_dir = config->data_dir != NULL ? config->data_dir : mc_variable(MC_DATA_DIR);
    return data_dir == NULL ? "" : data_dir;
}

/* Of each part. What lies in a data directory has its size already, and each part is limited by itself there. */
static uint64_t part_size(const struct mc_store_config *config, unsigned count)
{
    struct mc_memory_limits limits;
    const char *reason = NULL;
    uint64_t size = config->global_segment_size;
    if (data_dir_of(config)[0] == 0) {
        mc_memory_limits_read(&limits);
        (void)mc_memory_capacity_in(NULL, size, &limits, 0, &size, &reason);
    }
    if (reason != NULL)
        mc_log(WARNING, "global_segment_size %" PRIu64 " is limited to %" PRIu64 " bytes by %s",
               config->global_segment_size, size, reason);
    return size / count < MC_NUMA_PART_BYTES_MIN ? 0 : size / count / PART_UNIT * PART_UNIT;
}

static unsigned first_node(const struct mc_numa_nodes *nodes)
{
    unsigned node = 0;
    while (node + 1 < MC_NUMA_NODES_MAX && !mc_numa_has(nodes, node))
        node++;
    return node;
}

/* Another part, with a directory of its own below the first one's, by its node: so it is found again. */
static int part_add(struct mc_store *store, const struct mc_store_config *config, uint64_t size,
                    const struct mc_numa_nodes *nodes)
{
    char host[MC_ADDRESS_MAX], directory[PATH_BYTES] = "";
    uint16_t port;
    int length = 0, rc = mc_address_split(mc_store_hostname(store), host, sizeof(host), &port);
    if (rc < 0)
        return rc;
    if (data_dir_of(config)[0] != 0)
        length = snprintf(directory, sizeof(directory), "%s/numa%u", data_dir_of(config), first_node(nodes));
    if (length < 0 || (size_t)length >= sizeof(directory))
        return MC_ERR_INVALID_PARAMS;
    struct mc_store_config part = *config;
    part.local_hostname = host;
    part.global_segment_size = size;
    part.local_buffer_size = 0;
    part.data_dir = directory;
    part.disk_paths = "";
    return mc_mounts_add_part(store, &part, nodes);
}

/* Those that the master names (--root_fs_dir) are not known yet: what lies in other parts is not stored there. */
static bool has_disks(const struct mc_store_config *config)
{
    return config->disk_paths != NULL && config->disk_paths[0] != 0;
}

int mc_parts_begin(const struct mc_store_config *config, struct mc_store **made)
{
    struct mc_numa_nodes nodes[MC_NUMA_PARTS_MAX];
    bool lends = config != NULL && config->global_segment_size > 0 &&
                 (config->protocol == NULL || strcasecmp(config->protocol, "rpc_only") != 0);
    unsigned count = lends ? mc_numa_split(config->global_segment_size, nodes) : 1;
    if (count > 1 && has_disks(config)) {
        mc_log(WARNING, "MC_STORE_NUMA_SEGMENTS is not used beside disks, which belong to one segment; "
                        "MC_STORE_NUMA_NODES spreads that over NUMA nodes");
        count = 1;
    }
    uint64_t size = count > 1 ? part_size(config, count) : 0;
    if (size == 0)
        return mc_life_begin(config, NULL, made);
    struct mc_store_config first = *config;
    first.global_segment_size = size;
    int rc = mc_life_begin(&first, &nodes[0], made);
    for (unsigned i = 1; i < count && rc == 0; i++) {
        char list[256];
        int failed = part_add(*made, config, size, &nodes[i]);
        mc_numa_text(&nodes[i], list, sizeof(list));
        if (failed < 0)
            mc_log(WARNING, "%" PRIu64 " bytes of NUMA node %s are not lent: %s", size, list, mc_error_name(failed));
    }
    return rc;
}
