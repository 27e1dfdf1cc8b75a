/* What the environment says. */
#include "base/variables.h"

#include "base/error.h"
#include "base/nearest.h"

#include <stdlib.h>
#include <string.h>

#define SAY_LINKS                                                                                                      \
    "links, completion queues and threads of RDMA are made as they are needed; MC_NUM_QP_PER_EP bounds them"
#define SAY_ARENA "there is no arena: each segment is mapped as it is"
#define SAY_KNOWN "what is known of a peer is asked for again when the peer is another one or does not answer"
#define SAY_SHOWN "mooncake.engine's get_nic_load_stats and metrics say what moved where; MC_LOG_LEVEL=DEBUG why"
#define SAY_NOTES "notes to peers go by tcp"
#define SAY_CALLS "each thread makes its calls by itself; the master needs no threads for them"
#define SAY_ENDS "MC_TRANSFER_TIMEOUT ends a transfer as a whole"
#define SAY_COUNTED "counters are always kept; /metrics of a store service has them"
#define SAY_PINNED "what is pinned for copies to and from GPUs is 256 MiB at most"
#define SAY_ENGINE                                                                                                     \
    "there is one transfer engine here: it uses several devices at once, the near ones first, and tcp where they fail"
#define SAY_ROOM "room on a disk is made when it is needed, region by region"
#define SAY_BUCKET "no object waits for a bucket to fill"
#define SAY_BUFFERS "readers are given no buffers of a disk"
#define SAY_REGIONS "a start reads the regions of a disk, whatever lies in them"
#define SAY_FORMAT "there is one format on a disk: each block has its checksum, and a start finds what lies there"
#define SAY_SNAPSHOT "no snapshot is needed: store nodes tell a new master what they hold, and MC_DATA_DIR keeps theirs"
#define SAY_CHOICE                                                                                                     \
    "a device is paired with one of the peer by fabric, subnet and name; MC_CUSTOM_TOPO_JSON says which is near what"
#define SAY_MLX5 "ports of queue pairs are left to the driver; MC_NUM_QP_PER_EP makes more of them"
#define SAY_HOT "each process keeps copies of its own; for one store of a machine let a node of it lend memory"
#define SAY_FILES                                                                                                      \
    "each node has disks of its own: MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, or the master's --root_fs_dir for all"
#define SAY_NVME "NVMe-oF is not here: give nodes a file system on the device (MOONCAKE_OFFLOAD_FILE_STORAGE_PATH)"
#define SAY_CXL "CXL is not here: lend memory of the host, under numactl where CXL is a node of it"
#define SAY_NVLINK "NVLink is not used: memory of GPUs goes by RDMA, tcp and shared memory, so no setting is needed"
#define SAY_EXPERTS "expert parallelism is not here: keep the original for it"
#define SAY_VENDOR                                                                                                     \
    "memory of the host and of CUDA's GPUs only, by RDMA, tcp and shared memory: keep the original for this hardware"

static const char *const prefixes[] = {"MC_", "MOONCAKE_"};

static const struct mc_variable_row rows[] = {
#define X(name, use, text) {#name, MC_VARIABLE_##use, text, false},
#define F(prefix, use, text) {#prefix, MC_VARIABLE_##use, text, true},
#include "base/variables.def"
#undef X
#undef F
};

static const char *const names[] = {
    "",
#define X(name, use, text) #name,
#define F(prefix, use, text)
#include "base/variables.def"
#undef X
#undef F
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const char *mc_variable_name(enum mc_variable variable)
{
    mc_assert((size_t)variable < COUNT(names));
    return names[variable];
}

const char *mc_variable_value(enum mc_variable variable)
{
    return variable == MC_VARIABLE_NONE ? NULL : getenv(mc_variable_name(variable));
}

const struct mc_variable_row *mc_variable_row(size_t index)
{
    return index < COUNT(rows) ? &rows[index] : NULL;
}

const struct mc_variable_row *mc_variable_find(const char *name)
{
    const struct mc_variable_row *family = NULL;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (!rows[i].is_family && strcmp(rows[i].name, name) == 0)
            return &rows[i];
        if (rows[i].is_family && strncmp(rows[i].name, name, strlen(rows[i].name)) == 0)
            family = &rows[i];
    }
    return family;
}

/* What follows MC_ or MOONCAKE_, which people confuse; NULL: it begins otherwise. */
static const char *behind_prefix(const char *name)
{
    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return NULL;
}

const char *mc_variable_nearest(const char *name)
{
    const char *rest = behind_prefix(name);
    struct mc_nearest nearest;
    mc_nearest_begin(&nearest, rest != NULL ? rest : name);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *known = behind_prefix(rows[i].name);
        if (known != NULL && !rows[i].is_family)
            mc_nearest_offer(&nearest, known, rows[i].name);
    }
    return nearest.found;
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* A service that is called mooncake-master gives every pod of its namespace MOONCAKE_MASTER_SERVICE_HOST,
 * MOONCAKE_MASTER_PORT=tcp://10.0.0.1:50051, MOONCAKE_MASTER_PORT_50051_TCP_ADDR and more. */
static bool is_of_a_service(const char *name, const char *value)
{
    const char *port = strstr(name, "_PORT_");
    if (ends_with(name, "_SERVICE_HOST") || ends_with(name, "_SERVICE_PORT") || strstr(name, "_SERVICE_PORT_") != NULL)
        return true;
    return (port != NULL && port[6] >= '0' && port[6] <= '9') ||
           (ends_with(name, "_PORT") && strstr(value, "://") != NULL);
}

bool mc_variable_is_setting(const char *name, const char *value)
{
    return (behind_prefix(name) != NULL || mc_variable_find(name) != NULL) && !is_of_a_service(name, value);
}
