/* RDMA: libraries, device nodes, devices with their ports and GIDs, what is near what, and GPUs: from sysfs. Then each
 * device as an engine would see it, opened and closed again. */
#include "doctor/doctor.h"

#include "base/variables.h"
#include "env/json.h"
#include "rdma/gid.h"
#include "rdma/rdma.h"
#include "rdma/topology.h"

#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"
#define PORTS_MAX 8u

void mc_check_libraries(struct mc_doctor *doctor)
{
    static const struct {
        const char *name, *fix;
        bool is_needed;
    } rows[] = {{"libibverbs.so.1", "RDMA needs it: install rdma-core (Debian: libibverbs1 ibverbs-providers)", true},
                {"librdmacm.so.1", "iWARP (eRDMA, siw) needs it: install librdmacm1", false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        void *library = dlopen(rows[i].name, RTLD_NOW | RTLD_LOCAL);
        bool is_there = library != NULL;
        enum mc_verdict verdict = is_there            ? MC_VERDICT_FINE
                                  : rows[i].is_needed ? mc_doctor_if_rdma(doctor, MC_VERDICT_NOTE)
                                                      : MC_VERDICT_NOTE;
        mc_doctor_say(doctor, verdict, rows[i].name, 0, is_there ? NULL : rows[i].fix,
                      is_there ? "found" : "not found");
        if (is_there)
            dlclose(library);
    }
}

/* ---- a port ---- */

struct port {
    const char *device;
    unsigned number;
    enum mc_rdma_fabric fabric;
    char title[96];
};

static bool port_line(const struct mc_doctor *doctor, const struct port *port, const char *file,
                      char line[MC_DOCTOR_LINE_MAX])
{
    return mc_doctor_linef(doctor, line, CLASS "/%s/ports/%u/%s", port->device, port->number, file);
}

/* "fe80:0000:...": as sysfs writes a GID. */
static bool parse_gid(const char *text, uint8_t gid[MC_GID_BYTES])
{
    if (strlen(text) != 39)
        return false;
    for (size_t i = 0; i < MC_GID_BYTES; i++) {
        char digits[3] = {text[i / 2 * 5 + i % 2 * 2], text[i / 2 * 5 + i % 2 * 2 + 1], 0};
        gid[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return true;
}

/* Has an interface here this address, and is it up? */
static void find_interface(const struct ifaddrs *all, struct mc_gid_row *row)
{
    bool is_v4 = mc_gid_is_v4(row->gid);
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        const struct sockaddr *address = one->ifa_addr;
        if (address == NULL || address->sa_family != (is_v4 ? AF_INET : AF_INET6))
            continue;
        const void *bytes = is_v4 ? (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
                                  : (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (memcmp(bytes, row->gid + (is_v4 ? 12 : 0), is_v4 ? 4 : 16) != 0)
            continue;
        row->is_here = true;
        row->is_netdev_down = (one->ifa_flags & IFF_UP) == 0;
        return;
    }
}

static bool read_row(const struct mc_doctor *doctor, const struct port *port, const char *index, struct mc_gid_row *row)
{
    char line[MC_DOCTOR_LINE_MAX];
    *row = (struct mc_gid_row){.index = (uint32_t)strtoul(index, NULL, 10)};
    if (!mc_doctor_linef(doctor, line, CLASS "/%s/ports/%u/gids/%s", port->device, port->number, index) ||
        !parse_gid(line, row->gid) || mc_gid_is_null(row->gid))
        return false;
    row->type = port->fabric == MC_RDMA_INFINIBAND ? MC_GID_INFINIBAND : MC_GID_ROCE_V1;
    if (row->type != MC_GID_INFINIBAND &&
        mc_doctor_linef(doctor, line, CLASS "/%s/ports/%u/gid_attrs/types/%s", port->device, port->number, index) &&
        strstr(line, "v2") != NULL)
        row->type = MC_GID_ROCE_V2;
    if (mc_doctor_linef(doctor, line, CLASS "/%s/ports/%u/gid_attrs/ndevs/%s", port->device, port->number, index))
        snprintf(row->netdev, sizeof(row->netdev), "%.31s", line);
    return true;
}

static size_t read_rows(const struct mc_doctor *doctor, const struct port *port, struct mc_gid_row *rows)
{
    char folder[256], **names;
    struct ifaddrs *all = NULL;
    size_t used = 0;
    snprintf(folder, sizeof(folder), CLASS "/%.63s/ports/%u/gids", port->device, port->number);
    size_t count = mc_doctor_folder(doctor, folder, &names);
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (size_t i = 0; i < count && used < MC_GID_ROWS_MAX; i++) {
        if (!read_row(doctor, port, names[i], &rows[used]))
            continue;
        find_interface(all, &rows[used]);
        used++;
    }
    if (all != NULL)
        freeifaddrs(all);
    mc_doctor_free_names(names, count);
    return used;
}

static void say_choice(struct mc_doctor *doctor, const struct port *port, const struct mc_gid_row *rows, size_t count)
{
    char reason[MC_RDMA_REASON_MAX], name[128];
    struct mc_rdma_settings settings;
    mc_rdma_settings_read(&settings);
    int chosen = mc_gid_choose(rows, count, port->fabric, settings.gid_index, NULL, 0, reason, sizeof(reason));
    bool is_link_local = chosen >= 0 && port->fabric == MC_RDMA_ROCE && mc_gid_is_link_local(rows[chosen].gid);
    bool is_hidden = chosen >= 0 && port->fabric == MC_RDMA_ROCE && rows[chosen].netdev[0] == 0;
    snprintf(name, sizeof(name), "%s GID chosen", port->title);
    mc_doctor_say(
        doctor,
        chosen < 0 || is_hidden ? mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING)
        : is_link_local         ? MC_VERDICT_WARNING
                                : MC_VERDICT_FINE,
        name, 0,
        chosen < 0
            ? "give its network interface an address (ip address add); MC_GID_INDEX must name a row that is not empty"
        : is_hidden ? "the interface of that GID is not in this network namespace: docker --network host, hostNetwork, "
                      "or give the "
                      "container that interface"
        : is_link_local ? "reaches one layer-2 network only: give the interface a routable address; MC_GID_INDEX "
                          "chooses a row by hand"
                        : NULL,
        "%s; with a peer, one of its address family", reason);
}

static void say_gids(struct mc_doctor *doctor, const struct port *port, bool is_up)
{
    char gid[MC_GID_TEXT_MAX], name[128];
    struct mc_gid_row *rows = calloc(MC_GID_ROWS_MAX, sizeof(*rows));
    size_t count = rows == NULL ? 0 : read_rows(doctor, port, rows);
    for (size_t i = 0; i < count; i++) {
        mc_gid_address(rows[i].gid, gid, sizeof(gid));
        snprintf(name, sizeof(name), "%s GID %u", port->title, (unsigned)rows[i].index);
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "%s, %s, %s%s%s", gid, mc_gid_type_text(rows[i].type),
                      rows[i].netdev[0] == 0 ? "no interface here" : rows[i].netdev,
                      rows[i].is_here ? ", has this address" : "", rows[i].is_netdev_down ? ", down" : "");
    }
    if (rows != NULL && is_up && port->fabric != MC_RDMA_IWARP)
        say_choice(doctor, port, rows, count);
    free(rows);
}

static enum mc_rdma_fabric fabric_of(const struct mc_doctor *doctor, const struct port *port, bool is_infiniband)
{
    bool is_iwarp = mc_doctor_number(doctor, CLASS "/%s/node_type", port->device) == 4; /* "4: RNIC" */
    return is_iwarp ? MC_RDMA_IWARP : is_infiniband ? MC_RDMA_INFINIBAND : MC_RDMA_ROCE;
}

static bool say_port(struct mc_doctor *doctor, struct port *port)
{
    char state[MC_DOCTOR_LINE_MAX], rate[MC_DOCTOR_LINE_MAX], layer[MC_DOCTOR_LINE_MAX], lid[MC_DOCTOR_LINE_MAX];
    if (!port_line(doctor, port, "state", state))
        snprintf(state, sizeof(state), "state unknown");
    if (!port_line(doctor, port, "rate", rate))
        snprintf(rate, sizeof(rate), "rate unknown");
    if (!port_line(doctor, port, "link_layer", layer))
        snprintf(layer, sizeof(layer), "link layer unknown");
    if (!port_line(doctor, port, "lid", lid))
        snprintf(lid, sizeof(lid), "?");
    bool is_up = strtol(state, NULL, 10) == 4, is_infiniband = strcmp(layer, "InfiniBand") == 0;
    port->fabric = fabric_of(doctor, port, is_infiniband);
    mc_doctor_say(doctor, is_up ? MC_VERDICT_FINE : MC_VERDICT_WARNING, port->title, 0,
                  is_up ? NULL
                        : "the cable, the switch, or the interface: ip link set ... up; an InfiniBand port also needs "
                          "a subnet manager",
                  "%.64s, %.64s, %.32s, LID %.16s", state, rate, layer, lid);
    if (is_up && is_infiniband && strtol(lid, NULL, 0) == 0)
        mc_doctor_say(doctor, MC_VERDICT_WARNING, port->title, 0, "start a subnet manager (opensm) in this fabric",
                      "no LID");
    say_gids(doctor, port, is_up);
    return is_up;
}

/* ---- a device ---- */

/* The node by which programs open the device: some uverbsN says that it is this device's. */
static void say_node(struct mc_doctor *doctor, const char *device)
{
    char **names, line[MC_DOCTOR_LINE_MAX], path[MC_DOCTOR_LINE_MAX], node[128];
    size_t count = mc_doctor_folder(doctor, "/sys/class/infiniband_verbs", &names);
    bool is_found = false;
    for (size_t i = 0; i < count && !is_found; i++) {
        if (!mc_doctor_linef(doctor, line, "/sys/class/infiniband_verbs/%s/ibdev", names[i]) ||
            strcmp(line, device) != 0)
            continue;
        is_found = true;
        snprintf(node, sizeof(node), "/dev/infiniband/%.100s", names[i]);
        bool may_open = mc_doctor_path(doctor, path, node) && access(path, R_OK | W_OK) == 0;
        if (!may_open)
            mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING), device, errno,
                          "docker --device /dev/infiniband; a device plugin in Kubernetes; or the rights of that file",
                          "%s cannot be opened", node);
    }
    if (!is_found)
        mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING), device, 0, "modprobe ib_uverbs",
                      "has no /dev/infiniband/uverbs*");
    mc_doctor_free_names(names, count);
}

static void say_device(struct mc_doctor *doctor, const char *name)
{
    char firmware[MC_DOCTOR_LINE_MAX], folder[256], **ports;
    int64_t node = mc_doctor_number(doctor, CLASS "/%s/device/numa_node", name);
    if (!mc_doctor_linef(doctor, firmware, CLASS "/%s/fw_ver", name))
        snprintf(firmware, sizeof(firmware), "unknown");
    bool is_wanted =
        mc_topology_allows(doctor->config.device_name, name) && mc_topology_allows(mc_variable(MC_TE_FILTERS), name);
    mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "firmware %.64s, NUMA node %" PRId64 "%s", firmware, node,
                  is_wanted ? "" : ", left out by device_name or MC_TE_FILTERS");
    say_node(doctor, name);
    snprintf(folder, sizeof(folder), CLASS "/%.63s/ports", name);
    size_t count = mc_doctor_folder(doctor, folder, &ports);
    bool is_up = false;
    for (size_t i = 0; i < count && i < PORTS_MAX; i++) {
        struct port port = {.device = name, .number = (unsigned)strtoul(ports[i], NULL, 10)};
        snprintf(port.title, sizeof(port.title), "%.63s port %u", name, port.number);
        is_up |= say_port(doctor, &port);
    }
    mc_doctor_free_names(ports, count);
    doctor->device_count += is_up && is_wanted;
}

void mc_check_devices(struct mc_doctor *doctor)
{
    char **names;
    size_t count = mc_doctor_folder(doctor, CLASS, &names);
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) < MC_TOPOLOGY_NAME_MAX)
            say_device(doctor, names[i]);
    mc_doctor_free_names(names, count);
    if (count == 0)
        mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_FINE), "devices", 0,
                      mc_doctor_if_rdma(doctor, MC_VERDICT_FINE) == MC_VERDICT_FINE
                          ? NULL
                          : "is the driver loaded (rdma link, modprobe mlx5_ib, erdma, rdma_rxe), and is "
                            "/sys/class/infiniband of the container's?",
                      "none: " CLASS " is empty");
    else if (doctor->device_count == 0)
        mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING), "devices", 0, "the facts above say why",
                      "%zu are there, none can be used", count);
}

/* ---- with a peer ---- */

static void say_pair(struct mc_doctor *doctor, const struct port *port, const struct mc_gid_row *rows, size_t count,
                     const struct mc_rdma_peer_device *device)
{
    char reason[MC_RDMA_REASON_MAX] = "", address[MC_GID_TEXT_MAX], name[256];
    struct mc_rdma_settings settings;
    mc_rdma_settings_read(&settings);
    mc_gid_address(device->gid, address, sizeof(address));
    snprintf(name, sizeof(name), "%.120s to %.100s", port->title, device->name);
    if (port->fabric != device->fabric) {
        mc_doctor_say(doctor, MC_VERDICT_NOTE, name, 0, NULL,
                      "do not fit: one is InfiniBand, RoCE or iWARP, the other is not");
        return;
    }
    int chosen = port->fabric == MC_RDMA_IWARP ? 0
                                               : mc_gid_choose(rows, count, port->fabric, settings.gid_index,
                                                               device->gid, 0, reason, sizeof(reason));
    mc_doctor_say(doctor, chosen < 0 ? MC_VERDICT_WARNING : MC_VERDICT_FINE, name, 0,
                  chosen < 0 ? "give both interfaces addresses of one family, or MC_GID_INDEX a row that has one"
                             : NULL,
                  "%s%s%s", address, reason[0] == 0 ? "" : ", from here ", reason);
}

static void say_pairs_of(struct mc_doctor *doctor, struct port *port, const struct mc_rdma_peer_device *devices,
                         int count)
{
    char line[MC_DOCTOR_LINE_MAX];
    struct mc_gid_row *rows = calloc(MC_GID_ROWS_MAX, sizeof(*rows));
    bool is_infiniband = port_line(doctor, port, "link_layer", line) && strcmp(line, "InfiniBand") == 0;
    bool is_up = port_line(doctor, port, "state", line) && strtol(line, NULL, 10) == 4;
    port->fabric = fabric_of(doctor, port, is_infiniband);
    size_t row_count = rows == NULL || !is_up ? 0 : read_rows(doctor, port, rows);
    for (int i = 0; i < count && is_up; i++)
        say_pair(doctor, port, rows, row_count, &devices[i]);
    free(rows);
}

void mc_doctor_pairs(struct mc_doctor *doctor, struct mc_span document)
{
    struct mc_rdma_peer_device devices[MC_RDMA_DEVICES_MAX];
    struct mc_span list;
    struct mc_rdma_settings settings;
    char **names;
    int count =
        mc_json_find(document, "devices", &list) == 1 ? mc_rdma_parse_devices(list, devices, MC_RDMA_DEVICES_MAX) : 0;
    if (count <= 0) {
        mc_doctor_say(doctor, count < 0 ? MC_VERDICT_WARNING : mc_doctor_if_rdma(doctor, MC_VERDICT_FINE),
                      "devices there", 0,
                      count < 0 ? "its engine is of a version that does not fit"
                      : mc_doctor_if_rdma(doctor, MC_VERDICT_FINE) == MC_VERDICT_FINE
                          ? NULL
                          : "run mooncake_doctor --protocol=rdma there",
                      count < 0 ? "its list of RDMA devices makes no sense" : "it tells of no RDMA device");
        return;
    }
    mc_rdma_settings_read(&settings);
    size_t here = mc_doctor_folder(doctor, CLASS, &names);
    for (size_t i = 0; i < here; i++) {
        struct port port = {.device = names[i], .number = (unsigned)settings.ib_port};
        snprintf(port.title, sizeof(port.title), "%.63s port %u", names[i], port.number);
        if (strlen(names[i]) < MC_TOPOLOGY_NAME_MAX && mc_topology_allows(doctor->config.device_name, names[i]))
            say_pairs_of(doctor, &port, devices, count);
    }
    mc_doctor_free_names(names, here);
    if (here == 0)
        mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_NOTE), "devices there", 0,
                      "the part on RDMA says why there is none here", "%d, but none here", count);
}

static void say_usable(struct mc_doctor *doctor, const struct mc_rdma_device_info *info)
{
    static const char *const fabrics[] = {"InfiniBand", "RoCE", "iWARP"};
    char name[96], most[32];
    snprintf(name, sizeof(name), "%s opened", info->name);
    if (info->reason[0] != 0)
        mc_doctor_say(doctor, mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING), name, 0, "what the line says",
                      "cannot be used: %s", info->reason);
    else
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL,
                      "%s, port %u, MTU %u, registrations of at most %s, %u work requests, inline %u, dma-buf %s, "
                      "relaxed ordering %s",
                      fabrics[info->fabric], (unsigned)info->port, info->mtu_bytes,
                      mc_doctor_size(most, info->mr_size_max), info->wr_max, info->inline_max,
                      info->has_dmabuf ? "yes" : "no", info->has_relaxed_ordering ? "yes" : "no");
}

void mc_check_opened(struct mc_doctor *doctor)
{
    struct mc_rdma_options options = {.filter = NULL};
    struct mc_rdma_device_info *infos =
        doctor->config.root[0] != 0 ? NULL : calloc(MC_TOPOLOGY_DEVICES_MAX, sizeof(*infos));
    int count = infos == NULL ? 0 : mc_rdma_scan(&options, infos, MC_TOPOLOGY_DEVICES_MAX);
    for (int i = 0; i < count; i++)
        say_usable(doctor, &infos[i]);
    free(infos);
}

void mc_check_topology(struct mc_doctor *doctor)
{
    char root[MC_DOCTOR_LINE_MAX], name[96], line[1024];
    struct mc_topology *topology = calloc(1, sizeof(*topology));
    const char *custom = mc_variable(MC_CUSTOM_TOPO_JSON);
    if (topology == NULL)
        return;
    if (doctor->config.root[0] == 0)
        mc_topology_local(topology, doctor->config.device_name, NULL, 0);
    else if (mc_doctor_path(doctor, root, "/sys"))
        mc_topology_discover(topology, root, doctor->config.device_name, mc_variable(MC_TE_FILTERS), NULL, 0);
    for (size_t i = 0; topology->device_count > 0 && i < topology->location_count; i++) {
        const struct mc_topology_location *location = &topology->locations[i];
        size_t used = 0;
        line[0] = 0;
        for (size_t k = 0; k < location->count && used < sizeof(line); k++)
            used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%s",
                                     k == 0                     ? ""
                                     : k == location->preferred ? " | "
                                                                : " ",
                                     topology->devices[location->order[k]].name);
        snprintf(name, sizeof(name), "near %s", location->name);
        mc_doctor_say(doctor, location->preferred == 0 ? MC_VERDICT_NOTE : MC_VERDICT_FINE, name, 0,
                      location->preferred == 0
                          ? "no device is near this memory: pin the process to a node that has one (numactl)"
                          : NULL,
                      "%s%s", location->preferred == 0 ? "none | " : "", line);
    }
    if (custom != NULL && custom[0] != 0)
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "priority matrix", 0, NULL, "from %s (MC_CUSTOM_TOPO_JSON)", custom);
    free(topology);
}

void mc_check_gpus(struct mc_doctor *doctor)
{
    char **names, line[MC_DOCTOR_LINE_MAX];
    size_t count = mc_doctor_folder(doctor, "/proc/driver/nvidia/gpus", &names);
    mc_doctor_free_names(names, count);
    if (count == 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "GPUs", 0, NULL, "no NVIDIA GPU is seen");
        return;
    }
    mc_doctor_say(doctor, MC_VERDICT_FINE, "GPUs", 0, NULL, "%zu", count);
    bool has_module = mc_doctor_line(doctor, line, "/sys/module/nvidia_peermem/refcnt") ||
                      mc_doctor_line(doctor, line, "/sys/module/nv_peer_mem/refcnt");
    mc_doctor_say(doctor, has_module || doctor->device_count == 0 ? MC_VERDICT_FINE : MC_VERDICT_NOTE, "peer memory", 0,
                  has_module || doctor->device_count == 0
                      ? NULL
                      : "devices that cannot take a GPU's memory as dma-buf need it: modprobe nvidia_peermem; else it "
                        "is staged through host memory",
                  has_module ? "nvidia_peermem is loaded" : "nvidia_peermem is not loaded");
}
