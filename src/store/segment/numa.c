/* NUMA nodes of a segment's memory. By the system calls: no library is needed for two of them. */
#include "store/segment/numa.h"

#include "base/variables.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ONLINE "/sys/devices/system/node/online"
#define WITH_MEMORY "/sys/devices/system/node/has_memory"
#define CPULIST "/sys/devices/system/node/node%u/cpulist"
#define POLICY_PREFERRED 1ul /* of linux/mempolicy.h */
#define POLICY_INTERLEAVE 3ul

unsigned mc_numa_count(const struct mc_numa_nodes *nodes)
{
    unsigned count = 0;
    for (size_t i = 0; i < MC_NUMA_NODES_MAX / 64; i++)
        count += (unsigned)__builtin_popcountll(nodes->bits[i]);
    return count;
}

/* A number below MC_NUMA_NODES_MAX at *text, which is moved behind it. */
static bool number_take(const char **text, unsigned *number)
{
    *number = 0;
    if (**text < '0' || **text > '9')
        return false;
    for (; **text >= '0' && **text <= '9' && *number < MC_NUMA_NODES_MAX; ++*text)
        *number = *number * 10 + (unsigned)(**text - '0');
    return *number < MC_NUMA_NODES_MAX;
}

bool mc_numa_parse(const char *text, struct mc_numa_nodes *nodes)
{
    *nodes = (struct mc_numa_nodes){{0}};
    for (;; text++) {
        unsigned first, last;
        if (!number_take(&text, &first))
            return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!number_take(&text, &last) || last < first)
                return false;
        }
        for (unsigned node = first; node <= last; node++)
            nodes->bits[node / 64] |= UINT64_C(1) << node % 64;
        if (*text != ',')
            return *text == 0 || *text == '\n';
    }
}

void mc_numa_text(const struct mc_numa_nodes *nodes, char *text, size_t size)
{
    size_t length = 0;
    if (size > 0)
        text[0] = 0;
    for (unsigned first = 0; first < MC_NUMA_NODES_MAX && length < size; first++) {
        unsigned last = first;
        if (!mc_numa_has(nodes, first))
            continue;
        while (mc_numa_has(nodes, last + 1))
            last++;
        int rc = last == first ? snprintf(text + length, size - length, "%s%u", length == 0 ? "" : ",", first)
                               : snprintf(text + length, size - length, "%s%u-%u", length == 0 ? "" : ",", first, last);
        length += (size_t)rc;
        first = last;
    }
}

struct mc_numa_nodes mc_numa_online(const char *path)
{
    struct mc_numa_nodes nodes = {{0}};
    char text[512];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return nodes;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return mc_numa_parse(text, &nodes) ? nodes : (struct mc_numa_nodes){{0}};
}

int mc_numa_bind(void *data, uint64_t size, const struct mc_numa_nodes *nodes)
{
    unsigned long policy = mc_numa_count(nodes) == 1 ? POLICY_PREFERRED : POLICY_INTERLEAVE;
    /* The kernel takes one bit less than it is told. */
    return syscall(SYS_mbind, data, size, policy, nodes->bits, (unsigned long)MC_NUMA_NODES_MAX + 1, 0u) == 0 ? 0
                                                                                                              : errno;
}

/* What of the wish there is; none: nothing. */
static struct mc_numa_nodes wanted(const char *text)
{
    struct mc_numa_nodes nodes, online = mc_numa_online(ONLINE), missing = {{0}};
    char there[256], gone[256];
    if (strcasecmp(text, "all") == 0)
        return online;
    if (!mc_numa_parse(text, &nodes)) {
        mc_log(WARNING, "MC_STORE_NUMA_NODES=%.100s names no NUMA nodes (as 0, 0,1, 0-3 or all): the kernel chooses",
               text);
        return (struct mc_numa_nodes){{0}};
    }
    for (size_t i = 0; i < MC_NUMA_NODES_MAX / 64; i++) {
        missing.bits[i] = nodes.bits[i] & ~online.bits[i];
        nodes.bits[i] &= online.bits[i];
    }
    if (mc_numa_count(&missing) == 0)
        return nodes;
    mc_numa_text(&online, there, sizeof(there));
    mc_numa_text(&missing, gone, sizeof(gone));
    mc_log(WARNING, "MC_STORE_NUMA_NODES: this machine has no NUMA node %s, but %s: %s", gone, there,
           mc_numa_count(&nodes) > 0 ? "the others are used" : "the kernel chooses");
    return nodes;
}

/* Those that MC_STORE_NUMA_NODES names and there are; none: it names none. */
static struct mc_numa_nodes wanted_here(void)
{
    const char *text = mc_variable(MC_STORE_NUMA_NODES);
    return text == NULL || text[0] == 0 ? (struct mc_numa_nodes){{0}} : wanted(text);
}

void mc_numa_place(void *data, uint64_t size, const struct mc_numa_nodes *on)
{
    char list[256];
    struct mc_numa_nodes nodes = on == NULL ? wanted_here() : *on;
    if (mc_numa_count(&nodes) == 0)
        return;
    int error = mc_numa_bind(data, size, &nodes);
    mc_numa_text(&nodes, list, sizeof(list));
    if (error == EPERM)
        mc_log(WARNING,
               "the segment is not placed on NUMA nodes %s: the container forbids mbind (docker: --cap-add "
               "SYS_NICE); numactl around the process does the same",
               list);
    else if (error != 0)
        mc_log(WARNING, "the segment is not placed on NUMA nodes %s: %s", list, strerror(error));
    else
        mc_log(INFO, "new pages of the segment come from NUMA node%s %s%s", mc_numa_count(&nodes) > 1 ? "s" : "", list,
               mc_numa_count(&nodes) > 1 ? ", page by page in turn" : ", as far as there is room");
}

/* ---- several segments of one process ---- */

unsigned mc_numa_split_of(const char *setting, uint64_t size, const struct mc_numa_nodes *there,
                          struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX], const char **short_of)
{
    unsigned nodes = mc_numa_count(there), count = nodes;
    *short_of = NULL;
    if (setting == NULL || setting[0] == 0 || strcmp(setting, "0") == 0)
        return 1;
    if (strcasecmp(setting, "auto") != 0) {
        char *end;
        unsigned long number = strtoul(setting, &end, 10);
        if (*end != 0 || setting[0] == '-' || number == 0) {
            *short_of = "it is neither a number nor auto";
            return 1;
        }
        count = number < nodes ? (unsigned)number : nodes;
        if (number > nodes)
            *short_of = "there are not so many NUMA nodes with memory";
    }
    if (count > MC_NUMA_PARTS_MAX) {
        count = MC_NUMA_PARTS_MAX;
        *short_of = "more are not made";
    }
    if (count > 1 && size / count < MC_NUMA_PART_BYTES_MIN) {
        count = (unsigned)(size / MC_NUMA_PART_BYTES_MIN);
        *short_of = "each would have less than 64 MiB";
    }
    if (count <= 1)
        return 1;
    unsigned next = 0; /* nodes in turn, so that all are used where there are more of them than segments */
    memset(parts, 0, count * sizeof(parts[0]));
    for (unsigned node = 0; node < MC_NUMA_NODES_MAX; node++)
        if (mc_numa_has(there, node))
            parts[next++ % count].bits[node / 64] |= UINT64_C(1) << node % 64;
    return count;
}

unsigned mc_numa_split(uint64_t size, struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX])
{
    const char *setting = mc_variable(MC_STORE_NUMA_SEGMENTS), *short_of;
    if (setting == NULL || setting[0] == 0)
        return 1;
    struct mc_numa_nodes there = mc_numa_online(WITH_MEMORY), asked = wanted_here();
    if (mc_numa_count(&there) == 0) /* an old kernel */
        there = mc_numa_online(ONLINE);
    for (size_t i = 0; mc_numa_count(&asked) > 0 && i < MC_NUMA_NODES_MAX / 64; i++)
        there.bits[i] &= asked.bits[i];
    unsigned count = mc_numa_split_of(setting, size, &there, parts, &short_of);
    if (short_of != NULL)
        mc_log(WARNING, "MC_STORE_NUMA_SEGMENTS=%.40s: %s; the memory is lent as %u segment%s", setting, short_of,
               count, count > 1 ? "s" : "");
    return count;
}

/* Their processors are lists like those of nodes. */
void mc_numa_run_on(const struct mc_numa_nodes *nodes)
{
    cpu_set_t allowed, set;
    char path[64];
    CPU_ZERO(&set);
    if (mc_numa_count(nodes) == 0 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return;
    for (unsigned node = 0; node < MC_NUMA_NODES_MAX; node++) {
        if (!mc_numa_has(nodes, node))
            continue;
        snprintf(path, sizeof(path), CPULIST, node);
        struct mc_numa_nodes processors = mc_numa_online(path);
        for (unsigned i = 0; i < CPU_SETSIZE && i < MC_NUMA_NODES_MAX; i++)
            if (mc_numa_has(&processors, i) && CPU_ISSET(i, &allowed))
                CPU_SET(i, &set);
    }
    if (CPU_COUNT(&set) > 0)
        (void)sched_setaffinity(0, sizeof(set), &set); /* a wish: it runs where it may anyway */
}
