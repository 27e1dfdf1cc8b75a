/* Which RDMA devices are near which memory: read from sysfs, or from a file in the original's form, the priority matrix
 * {"cpu:0": [[preferred], [others]], "cuda:1": ...}.
 *
 * A device is near a NUMA node when it hangs on it; near a GPU when it hangs on the GPU's node and no other that does
 * has less of the PCI tree between them. A device with ports of which none is active is left out, as by the original.
 *
 * Invariant: devices are in the order of their names, or of their first mention in the file; every location's order
 * names each device at most once. */
#ifndef MC_RDMA_TOPOLOGY_H
#define MC_RDMA_TOPOLOGY_H

#include "base/bytes.h"

#define MC_TOPOLOGY_DEVICES_MAX 64u
#define MC_TOPOLOGY_LOCATIONS_MAX 128u /* nodes and GPUs */
#define MC_TOPOLOGY_NODES_MAX 64
#define MC_TOPOLOGY_NAME_MAX 64u
#define MC_TOPOLOGY_PATH_MAX 256u
#define MC_TOPOLOGY_FILE_MAX (1u << 20)

struct mc_topology_device {
    char name[MC_TOPOLOGY_NAME_MAX];
    int node;                        /* -1: not known */
    char path[MC_TOPOLOGY_PATH_MAX]; /* of the PCI device, below sysfs's root; "": none */
};

struct mc_topology_location {
    char name[MC_TOPOLOGY_NAME_MAX];
    uint8_t order[MC_TOPOLOGY_DEVICES_MAX]; /* numbers of devices: the preferred ones, then the others */
    uint8_t preferred, count;
};

struct mc_topology {
    struct mc_topology_device devices[MC_TOPOLOGY_DEVICES_MAX];
    size_t device_count;
    struct mc_topology_location locations[MC_TOPOLOGY_LOCATIONS_MAX];
    size_t location_count;
    struct mc_topology_location any; /* of all devices, each preferred by somebody first */
};

struct mc_topology_gpu {                 /* as the driver tells it */
    char location[MC_TOPOLOGY_NAME_MAX]; /* "cuda:0" */
    char pci_bus_id[32];                 /* "0000:3b:00.0" in any case; a domain of eight digits is fine too */
};

struct mc_topology_known { /* a device that is in use */
    const char *name;
    int node; /* as its driver says; -1: not known */
};

/* Does a list of names separated by commas ("" or NULL: all) hold this one, and MC_TE_FILTERS_EXCLUDE does not? */
bool mc_topology_allows(const char *filter, const char *name);

/* Fills it from sysfs at root ("/sys"). Names that both filters allow are taken. */
void mc_topology_discover(struct mc_topology *topology, const char *root, const char *filter, const char *other_filter,
                          const struct mc_topology_gpu *gpus, size_t gpu_count);
/* The same of the devices that are given, whatever their ports do now. */
void mc_topology_of(struct mc_topology *topology, const char *root, const struct mc_topology_known *known,
                    size_t count);
/* A GPU that was met later; one whose location is there already changes nothing. */
void mc_topology_add_gpu(struct mc_topology *topology, const char *root, const struct mc_topology_gpu *gpu);
/* Fills it from a priority matrix. 0; MC_ERR_PROTOCOL: not one, or more than fits: then it is empty. */
int mc_topology_parse(struct mc_topology *topology, struct mc_span json, const char *filter, const char *other_filter);
/* Fills it from the file that MC_CUSTOM_TOPO_JSON names, with MC_TE_FILTERS as the other filter. False: there is none;
 * one of no use gets a warning. */
bool mc_topology_given(struct mc_topology *topology, const char *filter);
/* This machine's: the one given, else what sysfs says. */
void mc_topology_local(struct mc_topology *topology, const char *filter, const struct mc_topology_gpu *gpus,
                       size_t gpu_count);
/* Appends the priority matrix. */
void mc_topology_write(const struct mc_topology *topology, struct mc_buffer *out);
/* The devices for memory at that location ("cpu:0", "cuda:1"), preferred ones first. What is not known is answered with
 * what a matrix says of "*", else with all of them (&topology->any). Lives as long as the topology. */
const struct mc_topology_location *mc_topology_choose(const struct mc_topology *topology, const char *location);

#endif
