/* Which row of a port's GID table a connection uses. Pure: a table of facts in, a row out, with the reason in words.
 *
 * The order of preference, each step deciding only among rows equal in the steps before:
 *   RoCE version 2 before 1; with a peer: its address family, then its scope (link-local talks to link-local);
 *   routable before link-local, always; an address of an interface of this network namespace before one that only has
 * an interface's name, before one without; physical interfaces before those of container networks; with a peer: its
 *   subnet; IPv4 before IPv6; the lower index. Private IPv4 ranges are as good as any: fabrics live in them. */
#ifndef MC_RDMA_GID_H
#define MC_RDMA_GID_H

#include "rdma/rdma.h"

#define MC_GID_ROWS_MAX 1024u
#define MC_GID_BYTES 16u
#define MC_GID_TEXT_MAX 48u

enum mc_gid_type { MC_GID_INFINIBAND, MC_GID_ROCE_V1, MC_GID_ROCE_V2 };

struct mc_gid_row {
    uint32_t index;
    uint8_t gid[MC_GID_BYTES];
    enum mc_gid_type type;
    char netdev[32];       /* "" : none, or one of another network namespace */
    bool is_here;          /* an interface of this network namespace has this address */
    bool is_netdev_down;   /* the interface is there and down */
    uint8_t prefix_length; /* of that address at that interface; 0: unknown */
};

/* rank 0: the best row, 1: the next best, ...: a set-up that failed tries another. wanted: MC_GID_INDEX, -1: none; then
 * there is only rank 0. peer: the GID it told, NULL: not known yet. Returns a position in rows, or -1. reason: always
 * set. */
int mc_gid_choose(const struct mc_gid_row *rows, size_t count, enum mc_rdma_fabric fabric, int64_t wanted,
                  const uint8_t *peer, unsigned rank, char *reason, size_t size);

bool mc_gid_is_null(const uint8_t *gid);
bool mc_gid_is_v4(const uint8_t *gid); /* ::ffff:a.b.c.d */
bool mc_gid_is_link_local(const uint8_t *gid);
/* The first bits of both are the same. v4: bits counts those of the IPv4 address. */
bool mc_gid_same_subnet(const uint8_t *a, const uint8_t *b, unsigned bits);
/* As an address: "10.0.0.1", "fe80::1". size: MC_GID_TEXT_MAX. */
void mc_gid_address(const uint8_t *gid, char *text, size_t size);
/* As the original writes it: "fe:80:00:...". size: MC_GID_TEXT_MAX. */
void mc_gid_format(const uint8_t *gid, char *text, size_t size);
/* That form. 0 or MC_ERR_PROTOCOL. */
int mc_gid_parse(const char *text, uint8_t *gid);
const char *mc_gid_type_text(enum mc_gid_type type);

#endif
