/* Opens libibverbs.so.1 and librdmacm.so.1, and reads of devices what the libraries do not tell. */
#include "rdma/verbs.h"

#include "env/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what headers do inline ---- */

static int real_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
    return cq->context->ops.poll_cq(cq, count, completions);
}

static int real_req_notify_cq(struct ibv_cq *cq)
{
    return cq->context->ops.req_notify_cq(cq, 0);
}

static int real_post_send(struct ibv_qp *qp, struct ibv_send_wr *work, struct ibv_send_wr **bad)
{
    return qp->context->ops.post_send(qp, work, bad);
}

static int real_query_port(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port,
                           struct ibv_port_attr *attributes)
{
    memset(attributes, 0, sizeof(*attributes));
    const struct verbs_context *extended = verbs_get_ctx(context);
    bool has_it = extended != NULL && extended->sz >= sizeof(*extended) - offsetof(struct verbs_context, query_port);
    if (has_it && extended->query_port != NULL)
        return extended->query_port(context, port, attributes, sizeof(*attributes));
    return verbs->query_port_plain(context, port, (struct _compat_ibv_port_attr *)(void *)attributes);
}

static struct ibv_mr *real_reg_mr(const struct mc_verbs *verbs, struct ibv_pd *pd, void *address, size_t length,
                                  unsigned access)
{
    if ((access & (unsigned)IBV_ACCESS_OPTIONAL_RANGE) != 0 && verbs->reg_mr_iova2 != NULL)
        return verbs->reg_mr_iova2(pd, address, length, (uintptr_t)address, access);
    return verbs->reg_mr_plain(pd, address, length, (int)(access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE));
}

/* ---- sysfs ---- */

/* First line of a file of the device. False: not there. */
static bool read_line(const char *device, const char *name, char *text, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/%s", device, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool is_read = fgets(text, (int)size, file) != NULL;
    fclose(file);
    if (is_read)
        text[strcspn(text, "\n")] = 0;
    return is_read;
}

static void real_locate(struct ibv_device *device, int *numa_node, char *pci, size_t size)
{
    char text[64], path[PATH_MAX], target[PATH_MAX];
    *numa_node = -1;
    if (read_line(device->name, "gpu/numa_node", text, sizeof(text)))
        *numa_node = atoi(text);
    pci[0] = 0;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device", device->name);
    ssize_t length = readlink(path, target, sizeof(target) - 1);
    if (length <= 0)
        return;
    target[length] = 0;
    const char *last = strrchr(target, '/');
    if (last != NULL && strchr(last, ':') != NULL)
        snprintf(pci, size, "%.31s", last + 1);
}

static void real_find_netdev(struct ibv_device *device, char *name, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/net", device->name);
    DIR *folder = opendir(path);
    name[0] = 0;
    if (folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL && name[0] == 0;)
        if (entry->d_name[0] != '.')
            snprintf(name, size, "%s", entry->d_name);
    closedir(folder);
}

/* ---- GID table ---- */

static unsigned count_bits(const uint8_t *bytes, size_t count)
{
    unsigned bits = 0;
    for (size_t i = 0; i < count; i++)
        bits += (unsigned)__builtin_popcount(bytes[i]);
    return bits;
}

/* Is the GID an address of an interface here, and of which? */
static void find_interface(const struct ifaddrs *all, struct mc_gid_row *row)
{
    bool is_v4 = mc_gid_is_v4(row->gid);
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != (is_v4 ? AF_INET : AF_INET6))
            continue;
        const struct sockaddr *address = one->ifa_addr, *mask = one->ifa_netmask;
        size_t size = is_v4 ? 4 : 16;
        const uint8_t *bytes = is_v4 ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
                                     : ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr.s6_addr;
        if (memcmp(bytes, row->gid + (is_v4 ? 12 : 0), size) != 0)
            continue;
        row->is_here = true;
        row->is_netdev_down = (one->ifa_flags & IFF_UP) == 0;
        snprintf(row->netdev, sizeof(row->netdev), "%s", one->ifa_name);
        if (mask != NULL)
            row->prefix_length =
                (uint8_t)count_bits(is_v4 ? (const uint8_t *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr
                                          : ((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr.s6_addr,
                                    size);
        return;
    }
}

/* The table by the library: all rows in one call. -1: too old a library or kernel. */
static int gids_by_library(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port,
                           struct mc_gid_row *rows, size_t capacity)
{
    static const uint32_t size = sizeof(struct ibv_gid_entry);
    if (verbs->query_gid_table == NULL)
        return -1;
    struct ibv_gid_entry *entries = calloc(MC_GID_ROWS_MAX, size);
    if (entries == NULL)
        return -1;
    ssize_t found = verbs->query_gid_table(context, entries, MC_GID_ROWS_MAX, 0, size);
    size_t count = 0;
    for (ssize_t i = 0; i < found && count < capacity; i++) {
        char name[IF_NAMESIZE];
        if (entries[i].port_num != port)
            continue;
        struct mc_gid_row *row = &rows[count++];
        *row = (struct mc_gid_row){.index = entries[i].gid_index};
        memcpy(row->gid, entries[i].gid.raw, MC_GID_BYTES);
        row->type = entries[i].gid_type == IBV_GID_TYPE_ROCE_V2   ? MC_GID_ROCE_V2
                    : entries[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? MC_GID_ROCE_V1
                                                                  : MC_GID_INFINIBAND;
        if (entries[i].ndev_ifindex != 0 && if_indextoname(entries[i].ndev_ifindex, name) != NULL)
            snprintf(row->netdev, sizeof(row->netdev), "%s", name);
    }
    free(entries);
    return found < 0 ? -1 : (int)count;
}

/* The table by sysfs, which every kernel has. */
static int gids_by_sysfs(struct ibv_context *context, uint8_t port, int length, bool is_infiniband,
                         struct mc_gid_row *rows, size_t capacity)
{
    const char *device = context->device->name;
    size_t count = 0;
    for (int i = 0; i < length && count < capacity; i++) {
        char name[64], text[64];
        struct mc_gid_row row = {.index = (uint32_t)i, .type = is_infiniband ? MC_GID_INFINIBAND : MC_GID_ROCE_V1};
        snprintf(name, sizeof(name), "ports/%u/gids/%d", port, i);
        if (!read_line(device, name, text, sizeof(text)))
            continue;
        for (size_t j = 0; j < MC_GID_BYTES && strlen(text) == 39; j++) {
            char digits[3] = {text[j / 2 * 5 + j % 2 * 2], text[j / 2 * 5 + j % 2 * 2 + 1], 0};
            row.gid[j] = (uint8_t)strtoul(digits, NULL, 16);
        }
        if (mc_gid_is_null(row.gid))
            continue;
        snprintf(name, sizeof(name), "ports/%u/gid_attrs/types/%d", port, i);
        if (!is_infiniband && read_line(device, name, text, sizeof(text)) && strstr(text, "v2") != NULL)
            row.type = MC_GID_ROCE_V2;
        snprintf(name, sizeof(name), "ports/%u/gid_attrs/ndevs/%d", port, i);
        if (read_line(device, name, text, sizeof(text)))
            snprintf(row.netdev, sizeof(row.netdev), "%.31s", text);
        rows[count++] = row;
    }
    return (int)count;
}

static int real_read_gids(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port,
                          struct mc_gid_row *rows, size_t capacity)
{
    struct ibv_port_attr attributes;
    if (verbs->query_port(verbs, context, port, &attributes) != 0)
        return MC_ERR_TRANSFER_FAIL;
    int count = gids_by_library(verbs, context, port, rows, capacity);
    if (count < 0)
        count = gids_by_sysfs(context, port, attributes.gid_tbl_len, attributes.link_layer != IBV_LINK_LAYER_ETHERNET,
                              rows, capacity);
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return count;
    for (int i = 0; i < count; i++) {
        /* The interface's number may be that of another network namespace: a name without its address proves nothing.
         */
        rows[i].is_netdev_down = false;
        find_interface(all, &rows[i]);
    }
    freeifaddrs(all);
    return count;
}

/* ---- opening ---- */

static bool find_symbol(void *library, const char *symbol, void *field)
{
    void *found = dlsym(library, symbol);
    memcpy(field, &found, sizeof(found)); /* a function's address; POSIX says that this works */
    return found != NULL;
}

static struct mc_verbs the_verbs;
static bool is_open;

static void open_cm(void)
{
    void *library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    bool is_whole = library != NULL;
    if (library == NULL)
        return;
#define FIND(type, field, symbol, parameters) is_whole &= find_symbol(library, symbol, &the_verbs.field);
    MC_VERBS_CM_MAP(FIND)
#undef FIND
    the_verbs.has_cm = is_whole;
}

static void open_libraries(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        mc_log(DEBUG, "no RDMA: %s", dlerror());
        return;
    }
    bool is_whole = true;
#define FIND(type, field, symbol, parameters) is_whole &= find_symbol(library, symbol, &the_verbs.field);
    MC_VERBS_MAP(FIND)
#undef FIND
#define FIND(type, field, symbol, parameters) (void)find_symbol(library, symbol, &the_verbs.field);
    MC_VERBS_OPTIONAL_MAP(FIND)
#undef FIND
    if (!is_whole || the_verbs.reg_mr_plain == NULL || the_verbs.query_port_plain == NULL) {
        mc_log(WARNING, "libibverbs.so.1 is too old or not whole; no RDMA");
        return;
    }
    the_verbs.poll_cq = real_poll_cq;
    the_verbs.req_notify_cq = real_req_notify_cq;
    the_verbs.post_send = real_post_send;
    the_verbs.query_port = real_query_port;
    the_verbs.reg_mr = real_reg_mr;
    the_verbs.read_gids = real_read_gids;
    the_verbs.locate = real_locate;
    the_verbs.find_netdev = real_find_netdev;
    /* Kernels before 5.12 give a forking parent copies of its registered pages, while the device goes on with the old
     * ones: wrong bytes. This keeps registered pages out of children there, and does nothing on later ones. */
    if (the_verbs.fork_init != NULL && the_verbs.fork_init() != 0)
        mc_log(DEBUG, "ibv_fork_init: %s", strerror(errno));
    open_cm();
    is_open = true;
}

const struct mc_verbs *mc_verbs_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_libraries);
    return is_open ? &the_verbs : NULL;
}
