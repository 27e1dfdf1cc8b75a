/* On which NUMA nodes the memory of a segment lies (MC_STORE_NUMA_NODES). It is the policy of the memory itself, so it
 * holds whoever touches a page first: a thread that populates, or a peer that has mapped it. */
#ifndef MC_SEGMENT_NUMA_H
#define MC_SEGMENT_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_NUMA_NODES_MAX 1024u

struct mc_numa_nodes { /* a set of them; zeroed = none */
    uint64_t bits[MC_NUMA_NODES_MAX / 64];
};
static inline bool mc_numa_has(const struct mc_numa_nodes *nodes, unsigned node)
{
    return node < MC_NUMA_NODES_MAX && (nodes->bits[node / 64] >> node % 64 & 1) != 0;
}
unsigned mc_numa_count(const struct mc_numa_nodes *nodes);

/* "0,2-3", as the kernel writes it. False: it is no such list, or names a node beyond the last. */
bool mc_numa_parse(const char *text, struct mc_numa_nodes *nodes);
/* The same, back; cut where there is no room. */
void mc_numa_text(const struct mc_numa_nodes *nodes, char *text, size_t size);
/* Those that this machine has; none: it does not say. path: "/sys/devices/system/node/online". */
struct mc_numa_nodes mc_numa_online(const char *path);

/* Pages that are not there yet come from that node, or from those in turn; where they have none left, from others. 0 or
 * an errno value. */
int mc_numa_bind(void *data, uint64_t size, const struct mc_numa_nodes *nodes);

/* On those nodes; NULL: as the environment says. What cannot be had costs a line of the log, and the kernel chooses. */
void mc_numa_place(void *data, uint64_t size, const struct mc_numa_nodes *nodes);

/* ---- several segments of one process (MC_STORE_NUMA_SEGMENTS) ---- */

#define MC_NUMA_PARTS_MAX 16u
#define MC_NUMA_PART_BYTES_MIN (UINT64_C(64) << 20) /* a smaller segment is not worth its threads */

/* How many segments memory of that size is lent as, one or more, and the nodes of each; with one none are filled in,
 * and the segment lies where it would without the setting. What cannot be had costs a line of the log. */
unsigned mc_numa_split(uint64_t size, struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX]);
/* The same, of a setting (NULL: none) and the nodes that there are; no log. *short_of: why there are fewer than were
 * asked for, static text, or NULL. */
unsigned mc_numa_split_of(const char *setting, uint64_t size, const struct mc_numa_nodes *there,
                          struct mc_numa_nodes parts[MC_NUMA_PARTS_MAX], const char **short_of);
/* The calling thread runs on processors of those nodes from now on; where that cannot be, as it did. */
void mc_numa_run_on(const struct mc_numa_nodes *nodes);

#endif
