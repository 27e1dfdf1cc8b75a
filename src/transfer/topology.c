/* Which RDMA devices are near which NUMA node, from sysfs, in the form of the original's priority matrix. */
#include "transfer/topology.h"

#include "base/bytes.h"
#include "env/json.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define DEVICES_MAX 64u
#define NODES_MAX 64

struct device {
    char name[64];
    int node; /* -1: not near any */
};

static bool is_wanted(const char *filter, const char *name)
{
    size_t length = strlen(name);
    if (filter == NULL || filter[0] == 0)
        return true;
    for (const char *at = filter; *at != 0; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        while (*at == ' ')
            at++;
        size_t part = strcspn(at, ", ");
        if (part == length && strncmp(at, name, length) == 0)
            return true;
    }
    return false;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const struct device *)left)->name, ((const struct device *)right)->name);
}

static size_t find_devices(const char *root, const char *filter, struct device *devices)
{
    char path[1024];
    size_t count = 0;
    snprintf(path, sizeof(path), "%s/class/infiniband", root);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry; count < DEVICES_MAX && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(devices->name) ||
            !is_wanted(filter, entry->d_name))
            continue;
        struct device *device = &devices[count++];
        snprintf(device->name, sizeof(device->name), "%.63s", entry->d_name);
        snprintf(path, sizeof(path), "%s/class/infiniband/%s/device/numa_node", root, device->name);
        FILE *file = fopen(path, "re");
        device->node = -1;
        if (file != NULL && fscanf(file, "%d", &device->node) != 1)
            device->node = -1;
        if (file != NULL)
            fclose(file);
    }
    closedir(folder);
    qsort(devices, count, sizeof(*devices), by_name);
    return count;
}

static bool has_node(const char *root, int node)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/devices/system/node/node%d", root, node);
    DIR *folder = opendir(path);
    if (folder != NULL)
        closedir(folder);
    return folder != NULL;
}

static void put_list(struct mc_buffer *out, const struct device *devices, size_t count, int node, bool near)
{
    bool is_first = true;
    mc_buffer_append(out, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if ((devices[i].node == node) != near)
            continue;
        if (!is_first)
            mc_buffer_append(out, ",", 1);
        is_first = false;
        mc_json_put_text(out, devices[i].name);
    }
    mc_buffer_append(out, "]", 1);
}

char *mc_topology_read(const char *root, const char *filter)
{
    struct device devices[DEVICES_MAX];
    struct mc_buffer out = {0};
    size_t count = find_devices(root, filter, devices);
    bool is_first = true;
    mc_buffer_append(&out, "{", 1);
    for (int node = 0; count > 0 && node < NODES_MAX; node++) {
        if (!has_node(root, node) && !(node == 0 && is_first))
            continue;
        mc_buffer_printf(&out, "%s\"cpu:%d\":[", is_first ? "" : ",", node);
        is_first = false;
        put_list(&out, devices, count, node, true);
        mc_buffer_append(&out, ",", 1);
        put_list(&out, devices, count, node, false);
        mc_buffer_append(&out, "]", 1);
    }
    mc_buffer_append(&out, "}\n", 3); /* with its zero */
    return (char *)out.data;
}

char *mc_transfer_topology(const char *filter)
{
    return mc_topology_read("/sys", filter);
}
