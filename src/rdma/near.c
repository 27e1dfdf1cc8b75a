/* Which of the devices in use are near a piece of memory: by the priority matrix that was given, else by sysfs. */
#include "rdma/device.h"

#include "base/variables.h"
#include "env/log.h"
#include "rdma/topology.h"

#include <stdio.h>
#include <stdlib.h>

#define PAGE_BYTES ((uintptr_t)4096) /* of the smallest */
#define SAMPLES 16u                  /* pages whose node is asked for */
#define GOLDEN_RATIO 0x9e3779b97f4a7c15u

static const char *root_of(const struct mc_rdma *rdma)
{
    return rdma->options.sysfs != NULL ? rdma->options.sysfs : "/sys";
}

int mc_rdma_near_open(struct mc_rdma *rdma, const char *filter, const char *matrix)
{
    rdma->topology = malloc(sizeof(*rdma->topology));
    if (rdma->topology == NULL)
        return MC_ERR_NO_MEMORY;
    if (matrix == NULL) {
        rdma->has_matrix = mc_topology_given(rdma->topology, filter);
        return 0;
    }
    rdma->has_matrix = true;
    if (mc_topology_parse(rdma->topology, mc_span_string(matrix), filter, mc_variable(MC_TE_FILTERS)) == 0)
        return 0;
    mc_log(ERROR, "a priority matrix of RDMA devices is expected, {\"cpu:0\": [[preferred], [others]]}, not %.80s",
           matrix);
    return MC_ERR_INVALID_PARAMS;
}

bool mc_rdma_near_allows(const struct mc_rdma *rdma, const char *name)
{
    bool is_named = !rdma->has_matrix;
    for (size_t i = 0; !is_named && i < rdma->topology->device_count; i++)
        is_named = strcmp(rdma->topology->devices[i].name, name) == 0;
    return is_named && mc_topology_allows(mc_variable(MC_TE_FILTERS), name);
}

int mc_rdma_near_node(uintptr_t address, uint64_t length, int (*node_of)(uintptr_t address))
{
    const uintptr_t first = address / PAGE_BYTES;
    const uint64_t pages = (address + (length - 1)) / PAGE_BYTES - first + 1;
    const uint64_t count = pages < SAMPLES ? pages : SAMPLES;
    const int node = node_of(first * PAGE_BYTES);
    for (uint64_t i = 1; i < count && node >= 0; i++) {
        /* Without a period: memory is interleaved by small pages, or by huge ones. */
        uint64_t page = count == pages ? i : ((i * GOLDEN_RATIO) >> 32) * pages >> 32;
        if (node_of((first + page) * PAGE_BYTES) != node)
            return -1;
    }
    return node;
}

/* The devices that are preferred there, by our numbers. */
static uint32_t preferred_at(const struct mc_rdma *rdma, const char *location)
{
    const struct mc_topology *topology = rdma->topology;
    const struct mc_topology_location *chosen = mc_topology_choose(topology, location);
    uint32_t near = 0;
    if (chosen == &topology->any)
        return 0; /* nothing is known of it */
    for (size_t i = 0; i < chosen->preferred; i++)
        for (uint32_t device = 0; device < rdma->device_count; device++)
            if (strcmp(rdma->devices[device].name, topology->devices[chosen->order[i]].name) == 0)
                near |= 1u << device;
    return near;
}

static int node_of_device(const struct mc_rdma *rdma, uint32_t device)
{
    int node;
    for (size_t i = 0; i < rdma->topology->location_count; i++) {
        const char *location = rdma->topology->locations[i].name;
        if (sscanf(location, "cpu:%d", &node) == 1 && node >= 0 && (preferred_at(rdma, location) >> device & 1) != 0)
            return node;
    }
    return -1;
}

void mc_rdma_near_find(struct mc_rdma *rdma)
{
    struct mc_topology_known known[MC_RDMA_DEVICES_MAX];
    for (uint32_t i = 0; i < rdma->device_count && !rdma->has_matrix; i++)
        known[i] = (struct mc_topology_known){rdma->devices[i].name, rdma->devices[i].numa_node};
    if (!rdma->has_matrix)
        mc_topology_of(rdma->topology, root_of(rdma), known, rdma->device_count);
    for (uint32_t i = 0; i < rdma->device_count; i++)
        rdma->devices[i].near_node = node_of_device(rdma, i);
}

int mc_rdma_device_node(const struct mc_rdma *rdma, uint32_t device)
{
    return rdma->devices[device].near_node;
}

uint32_t mc_rdma_near(struct mc_rdma *rdma, const struct mc_rdma_range *range)
{
    char node[16] = "*";
    const char *location = range->location;
    if (range->numa_node >= 0)
        snprintf(node, sizeof(node), "cpu:%d", range->numa_node);
    if (location == NULL || location[0] == 0 || strcmp(location, "*") == 0)
        location = node;
    pthread_mutex_lock(&rdma->lock);
    if (range->bus_id != NULL && !rdma->has_matrix) {
        struct mc_topology_gpu gpu;
        snprintf(gpu.location, sizeof(gpu.location), "%s", location);
        snprintf(gpu.pci_bus_id, sizeof(gpu.pci_bus_id), "%s", range->bus_id);
        mc_topology_add_gpu(rdma->topology, root_of(rdma), &gpu);
    }
    uint32_t near = preferred_at(rdma, location);
    pthread_mutex_unlock(&rdma->lock);
    return near == (1u << rdma->device_count) - 1 ? 0 : near;
}
