/* The order in which devices are tried for a piece of memory, from sysfs or from a file. */
#include "rdma/topology.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/json.h"
#include "env/log.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FAR UINT_MAX
#define ROOTED_PATH_MAX (PATH_MAX + 512) /* what is below root, with root before it */

/* Is the name in the list? is_empty: a list of blanks and commas names nothing. */
static bool is_listed(const char *list, const char *name, bool *is_empty)
{
    size_t length = strlen(name);
    *is_empty = true;
    for (const char *at = list == NULL ? "" : list; *at != 0;) {
        at += strspn(at, ", \t");
        size_t part = strcspn(at, ", \t");
        if (part == length && strncmp(at, name, length) == 0)
            return true;
        *is_empty &= part == 0;
        at += part;
    }
    return false;
}

bool mc_topology_allows(const char *filter, const char *name)
{
    bool is_empty;
    return !is_listed(mc_variable(MC_TE_FILTERS_EXCLUDE), name, &is_empty) &&
           (is_listed(filter, name, &is_empty) || is_empty);
}

/* ---- sysfs ---- */

/* The first line; false: no such file. */
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    bool is_there = file != NULL && fgets(line, (int)size, file) != NULL;
    if (file != NULL)
        fclose(file);
    return is_there;
}

static int read_node(const char *root, const char *path)
{
    char name[ROOTED_PATH_MAX], line[32];
    snprintf(name, sizeof(name), "%s%s/numa_node", root, path);
    if (!read_line(name, line, sizeof(line)))
        return -1;
    long node = strtol(line, NULL, 10);
    return node >= 0 && node < MC_TOPOLOGY_NODES_MAX ? (int)node : -1;
}

/* Where a link leads, below root; "" when it leads nowhere or is too long. */
static void resolve(const char *root, const char *link, char *path, size_t size)
{
    char full[ROOTED_PATH_MAX], real[PATH_MAX], real_root[PATH_MAX];
    path[0] = 0;
    snprintf(full, sizeof(full), "%s%s", root, link);
    if (realpath(full, real) == NULL || realpath(root, real_root) == NULL)
        return;
    size_t skip = strcmp(real_root, "/") == 0 ? 0 : strlen(real_root);
    if (strncmp(real, real_root, skip) == 0 && strlen(real + skip) < size)
        memcpy(path, real + skip, strlen(real + skip) + 1);
}

/* False when it has ports, and none of them is active. */
static bool is_active(const char *root, const char *name)
{
    char path[ROOTED_PATH_MAX], line[32];
    bool has_port = false, is_up = false;
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports", root, name);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (isdigit((unsigned char)entry->d_name[0]) == 0 || strlen(entry->d_name) > 3)
            continue;
        snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%.3s/state", root, name, entry->d_name);
        bool is_said = read_line(path, line, sizeof(line));
        has_port |= is_said;
        is_up |= is_said && strtol(line, NULL, 10) == 4; /* "4: ACTIVE" */
    }
    if (folder != NULL)
        closedir(folder);
    return !has_port || is_up;
}

static int by_name(const void *left, const void *right)
{
    const char *a = ((const struct mc_topology_device *)left)->name;
    const char *b = ((const struct mc_topology_device *)right)->name;
    return strverscmp(a, b); /* mlx5_2 before mlx5_10 */
}

static void add_device(struct mc_topology *topology, const char *root, const char *name)
{
    char link[MC_TOPOLOGY_PATH_MAX];
    struct mc_topology_device *device = &topology->devices[topology->device_count++];
    snprintf(device->name, sizeof(device->name), "%.63s", name);
    snprintf(link, sizeof(link), "/class/infiniband/%.63s/device", name);
    resolve(root, link, device->path, sizeof(device->path));
    device->node = read_node(root, link);
}

static void find_devices(struct mc_topology *topology, const char *root, const char *filter, const char *other_filter)
{
    char path[ROOTED_PATH_MAX];
    snprintf(path, sizeof(path), "%s/class/infiniband", root);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        if (name[0] == '.' || strlen(name) >= MC_TOPOLOGY_NAME_MAX || !mc_topology_allows(filter, name) ||
            !mc_topology_allows(other_filter, name) || !is_active(root, name))
            continue;
        if (topology->device_count == MC_TOPOLOGY_DEVICES_MAX) {
            mc_log(WARNING, "more than %u RDMA devices: the rest is not used", MC_TOPOLOGY_DEVICES_MAX);
            break;
        }
        add_device(topology, root, name);
    }
    closedir(folder);
    qsort(topology->devices, topology->device_count, sizeof(topology->devices[0]), by_name);
}

/* Steps in the PCI tree from one to the other; FAR: they have nothing in common. */
static unsigned distance(const char *a, const char *b)
{
    size_t same = 0; /* behind the last slash up to which both are equal */
    unsigned steps = 0;
    if (a[0] == 0 || b[0] == 0)
        return FAR;
    for (size_t i = 0;; i++) {
        if ((a[i] == 0 || a[i] == '/') && (b[i] == 0 || b[i] == '/'))
            same = i;
        if (a[i] != b[i] || a[i] == 0)
            break;
    }
    for (const char *at = a + same; *at != 0; at++)
        steps += *at == '/';
    for (const char *at = b + same; *at != 0; at++)
        steps += *at == '/';
    return steps;
}

static struct mc_topology_location *add_location(struct mc_topology *topology, const char *name)
{
    if (topology->location_count == MC_TOPOLOGY_LOCATIONS_MAX)
        return NULL;
    struct mc_topology_location *location = &topology->locations[topology->location_count++];
    snprintf(location->name, sizeof(location->name), "%s", name);
    return location;
}

/* near: a bit for each device. */
static void fill_location(const struct mc_topology *topology, struct mc_topology_location *location, uint64_t near)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < topology->device_count; i++)
            if ((near >> i & 1) == (pass == 0))
                location->order[location->count++] = (uint8_t)i;
        if (pass == 0)
            location->preferred = location->count;
    }
}
_Static_assert(MC_TOPOLOGY_DEVICES_MAX == 64, "a bit each");

static void add_node(struct mc_topology *topology, int node)
{
    char name[16];
    uint64_t near = 0;
    snprintf(name, sizeof(name), "cpu:%d", node);
    struct mc_topology_location *location = add_location(topology, name);
    if (location == NULL)
        return;
    for (size_t i = 0; i < topology->device_count; i++)
        near |= (uint64_t)(topology->devices[i].node == node) << i;
    fill_location(topology, location, near);
}

/* sysfs writes "0000:3b:00.0"; drivers also say "00000000:3B:00.0". */
static void bus_id_of(const char *given, char *name, size_t size)
{
    const char *colon = strchr(given, ':');
    if (colon != NULL && colon - given == 8)
        given += 4;
    snprintf(name, size, "%s", given);
    for (char *at = name; *at != 0; at++)
        *at = (char)tolower((unsigned char)*at);
}

static void place_gpu(struct mc_topology *topology, const char *root, const struct mc_topology_gpu *gpu)
{
    char bus_id[sizeof(gpu->pci_bus_id)], link[64], path[MC_TOPOLOGY_PATH_MAX];
    unsigned steps[MC_TOPOLOGY_DEVICES_MAX], least = FAR;
    uint64_t same_node = 0, near = 0;
    struct mc_topology_location *location = add_location(topology, gpu->location);
    if (location == NULL)
        return;
    bus_id_of(gpu->pci_bus_id, bus_id, sizeof(bus_id));
    snprintf(link, sizeof(link), "/bus/pci/devices/%s", bus_id);
    resolve(root, link, path, sizeof(path));
    int node = read_node(root, link);
    for (size_t i = 0; i < topology->device_count; i++)
        same_node |= (uint64_t)(node >= 0 && topology->devices[i].node == node) << i;
    for (size_t i = 0; i < topology->device_count; i++) {
        bool is_candidate = same_node == 0 || (same_node >> i & 1) != 0;
        steps[i] = is_candidate ? distance(path, topology->devices[i].path) : FAR;
        least = steps[i] < least ? steps[i] : least;
    }
    for (size_t i = 0; i < topology->device_count; i++)
        near |= (uint64_t)(least != FAR && steps[i] == least) << i;
    fill_location(topology, location, near != 0 ? near : same_node);
}

static void fill_any(struct mc_topology *topology)
{
    uint64_t near = 0;
    for (size_t i = 0; i < topology->location_count; i++)
        for (size_t k = 0; k < topology->locations[i].preferred; k++)
            near |= 1ull << topology->locations[i].order[k];
    topology->any = (struct mc_topology_location){.name = "*"};
    fill_location(topology, &topology->any, near);
}

static void add_nodes(struct mc_topology *topology, const char *root)
{
    char path[ROOTED_PATH_MAX];
    for (int node = 0; node < MC_TOPOLOGY_NODES_MAX; node++) {
        snprintf(path, sizeof(path), "%s/devices/system/node/node%d", root, node);
        if (node == 0 || access(path, F_OK) == 0)
            add_node(topology, node);
    }
}

void mc_topology_discover(struct mc_topology *topology, const char *root, const char *filter, const char *other_filter,
                          const struct mc_topology_gpu *gpus, size_t gpu_count)
{
    memset(topology, 0, sizeof(*topology));
    find_devices(topology, root, filter, other_filter);
    add_nodes(topology, root);
    for (size_t i = 0; i < gpu_count; i++)
        place_gpu(topology, root, &gpus[i]);
    fill_any(topology);
}

void mc_topology_of(struct mc_topology *topology, const char *root, const struct mc_topology_known *known, size_t count)
{
    memset(topology, 0, sizeof(*topology));
    for (size_t i = 0; i < count && i < MC_TOPOLOGY_DEVICES_MAX; i++) {
        add_device(topology, root, known[i].name);
        if (topology->devices[i].node < 0)
            topology->devices[i].node = known[i].node;
    }
    add_nodes(topology, root);
    for (size_t i = 0; i < topology->device_count; i++) { /* a node that sysfs does not show */
        char name[16];
        snprintf(name, sizeof(name), "cpu:%d", topology->devices[i].node);
        if (topology->devices[i].node >= 0 && mc_topology_choose(topology, name) == &topology->any)
            add_node(topology, topology->devices[i].node);
    }
    fill_any(topology);
}

void mc_topology_add_gpu(struct mc_topology *topology, const char *root, const struct mc_topology_gpu *gpu)
{
    for (size_t i = 0; i < topology->location_count; i++)
        if (strcmp(topology->locations[i].name, gpu->location) == 0)
            return;
    place_gpu(topology, root, gpu);
    fill_any(topology);
}

/* ---- the priority matrix ---- */

/* The number of the device of that name, added if it is new; -1: more than fit. */
static int device_number(struct mc_topology *topology, const char *name)
{
    for (size_t i = 0; i < topology->device_count; i++)
        if (strcmp(topology->devices[i].name, name) == 0)
            return (int)i;
    if (topology->device_count == MC_TOPOLOGY_DEVICES_MAX)
        return -1;
    struct mc_topology_device *device = &topology->devices[topology->device_count];
    snprintf(device->name, sizeof(device->name), "%s", name);
    device->node = -1;
    return (int)topology->device_count++;
}

static bool has_device(const struct mc_topology_location *location, int number)
{
    for (size_t i = 0; i < location->count; i++)
        if (location->order[i] == number)
            return true;
    return false;
}

struct filters {
    const char *one, *other;
};

static int parse_list(struct mc_topology *topology, struct mc_topology_location *location, struct mc_span text,
                      const struct filters *filters)
{
    struct mc_json_cursor element;
    char name[MC_TOPOLOGY_NAME_MAX];
    int rc = mc_json_open(text, '[', &element);
    while (rc == 0 && (rc = mc_json_next(&element)) == 1) {
        rc = mc_json_text(&element, name, sizeof(name));
        if (rc < 0 || name[0] == 0)
            return MC_ERR_PROTOCOL;
        if (!mc_topology_allows(filters->one, name) || !mc_topology_allows(filters->other, name))
            continue;
        int number = device_number(topology, name);
        if (number < 0)
            return MC_ERR_PROTOCOL;
        if (!has_device(location, number))
            location->order[location->count++] = (uint8_t)number;
    }
    return rc;
}

static int parse_location(struct mc_topology *topology, const struct mc_json_cursor *member,
                          const struct filters *filters)
{
    struct mc_json_cursor list;
    char name[MC_TOPOLOGY_NAME_MAX];
    if (member->name.length == 0 || member->name.length >= sizeof(name))
        return MC_ERR_PROTOCOL;
    memcpy(name, member->name.data, member->name.length);
    name[member->name.length] = 0;
    for (size_t i = 0; i < topology->location_count; i++)
        if (strcmp(topology->locations[i].name, name) == 0)
            return MC_ERR_PROTOCOL;
    struct mc_topology_location *location = add_location(topology, name);
    int rc = location == NULL ? MC_ERR_PROTOCOL : mc_json_open(member->value, '[', &list);
    for (unsigned pass = 0; rc == 0 && pass < 2; pass++) {
        rc = mc_json_next(&list) == 1 ? parse_list(topology, location, list.value, filters) : MC_ERR_PROTOCOL;
        if (pass == 0)
            location->preferred = location->count;
    }
    return rc == 0 && mc_json_next(&list) == 0 ? 0 : MC_ERR_PROTOCOL;
}

int mc_topology_parse(struct mc_topology *topology, struct mc_span json, const char *filter, const char *other_filter)
{
    struct mc_json_cursor member;
    struct filters filters = {filter, other_filter};
    memset(topology, 0, sizeof(*topology));
    int rc = mc_json_open(json, '{', &member);
    while (rc == 0 && (rc = mc_json_next(&member)) == 1)
        rc = parse_location(topology, &member, &filters);
    if (rc < 0) {
        memset(topology, 0, sizeof(*topology));
        return MC_ERR_PROTOCOL;
    }
    fill_any(topology);
    return 0;
}

static int parse_file(struct mc_topology *topology, const char *path, const char *filter, const char *other_filter)
{
    struct mc_buffer text = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return MC_ERR_INVALID_PARAMS;
    mc_buffer_reserve(&text, MC_TOPOLOGY_FILE_MAX + 1);
    text.length = fread(text.data, 1, MC_TOPOLOGY_FILE_MAX + 1, file);
    fclose(file);
    int rc = text.length > MC_TOPOLOGY_FILE_MAX
                 ? MC_ERR_PROTOCOL
                 : mc_topology_parse(topology, mc_span(text.data, text.length), filter, other_filter);
    mc_buffer_free(&text);
    return rc;
}

bool mc_topology_given(struct mc_topology *topology, const char *filter)
{
    const char *path = mc_variable(MC_CUSTOM_TOPO_JSON);
    if (path == NULL || path[0] == 0)
        return false;
    int rc = parse_file(topology, path, filter, mc_variable(MC_TE_FILTERS));
    if (rc < 0)
        mc_log(WARNING, "MC_CUSTOM_TOPO_JSON=%.200s: %s; it is not used", path,
               rc == MC_ERR_PROTOCOL ? "this is no priority matrix" : "it cannot be read");
    return rc == 0;
}

void mc_topology_local(struct mc_topology *topology, const char *filter, const struct mc_topology_gpu *gpus,
                       size_t gpu_count)
{
    if (!mc_topology_given(topology, filter))
        mc_topology_discover(topology, "/sys", filter, mc_variable(MC_TE_FILTERS), gpus, gpu_count);
}

static void write_list(const struct mc_topology *topology, const uint8_t *order, size_t count, struct mc_buffer *out)
{
    mc_buffer_append(out, "[", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            mc_buffer_append(out, ", ", 2);
        mc_json_put_text(out, topology->devices[order[i]].name);
    }
    mc_buffer_append(out, "]", 1);
}

void mc_topology_write(const struct mc_topology *topology, struct mc_buffer *out)
{
    mc_buffer_append(out, "{", 1);
    for (size_t i = 0; i < topology->location_count; i++) {
        const struct mc_topology_location *location = &topology->locations[i];
        mc_buffer_printf(out, "%s\n    ", i == 0 ? "" : ",");
        mc_json_put_text(out, location->name);
        mc_buffer_append(out, ": [", 3);
        write_list(topology, location->order, location->preferred, out);
        mc_buffer_append(out, ", ", 2);
        write_list(topology, location->order + location->preferred, location->count - location->preferred, out);
        mc_buffer_append(out, "]", 1);
    }
    mc_buffer_append(out, "\n}\n", 3);
}

const struct mc_topology_location *mc_topology_choose(const struct mc_topology *topology, const char *location)
{
    const struct mc_topology_location *chosen = &topology->any;
    for (size_t i = 0; i < topology->location_count; i++) {
        if (strcmp(topology->locations[i].name, location) == 0)
            return &topology->locations[i];
        if (strcmp(topology->locations[i].name, "*") == 0)
            chosen = &topology->locations[i];
    }
    return chosen;
}
