/* Choice of a GID: every row gets a number whose digits are the steps of preference. */
#include "rdma/gid.h"

#include <arpa/inet.h>
#include <stdio.h>

bool mc_gid_is_null(const uint8_t *gid)
{
    /* A port without address publishes its prefix with zeros behind it. */
    for (size_t i = 8; i < MC_GID_BYTES; i++)
        if (gid[i] != 0)
            return false;
    return true;
}

bool mc_gid_is_v4(const uint8_t *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

bool mc_gid_is_link_local(const uint8_t *gid)
{
    if (mc_gid_is_v4(gid))
        return gid[12] == 169 && gid[13] == 254;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* Never the address of another machine. */
static bool is_of_no_use(const uint8_t *gid)
{
    static const uint8_t loopback[MC_GID_BYTES] = {[15] = 1};
    if (mc_gid_is_null(gid) || memcmp(gid, loopback, MC_GID_BYTES) == 0)
        return true;
    return mc_gid_is_v4(gid) && (gid[12] == 127 || memcmp(gid + 12, "\0\0\0\0", 4) == 0);
}

bool mc_gid_same_subnet(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    if (mc_gid_is_v4(a) != mc_gid_is_v4(b))
        return false;
    bits = mc_gid_is_v4(a) ? bits + 96 : bits;
    bits = bits > 128 ? 128 : bits;
    if (memcmp(a, b, bits / 8) != 0)
        return false;
    return bits % 8 == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8)) == 0;
}

void mc_gid_address(const uint8_t *gid, char *text, size_t size)
{
    bool is_v4 = mc_gid_is_v4(gid);
    if (inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? gid + 12 : gid, text, (socklen_t)size) == NULL)
        snprintf(text, size, "?");
}

void mc_gid_format(const uint8_t *gid, char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < MC_GID_BYTES && used + 3 < size; i++)
        used += (size_t)snprintf(text + used, size - used, i == 0 ? "%02x" : ":%02x", gid[i]);
}

int mc_gid_parse(const char *text, uint8_t *gid)
{
    if (strlen(text) != MC_GID_BYTES * 3 - 1)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < MC_GID_BYTES; i++, text += 3) {
        int high = mc_hex_digit(text[0]), low = mc_hex_digit(text[1]);
        if (high < 0 || low < 0 || (i + 1 < MC_GID_BYTES && text[2] != ':'))
            return MC_ERR_PROTOCOL;
        gid[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

const char *mc_gid_type_text(enum mc_gid_type type)
{
    return type == MC_GID_ROCE_V2 ? "RoCE v2" : type == MC_GID_ROCE_V1 ? "RoCE v1" : "InfiniBand";
}

static bool is_container_network(const char *netdev)
{
    static const char *const prefixes[] = {"docker", "cni", "flannel", "cali",   "tunl",  "vxlan", "veth",
                                           "virbr",  "br-", "kube-",   "cilium", "weave", "lxc",   "dummy"};
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(netdev, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* -1: cannot be used. Greater is better; two rows never have the same number, because the index is in it. */
static int64_t worth(const struct mc_gid_row *row, enum mc_rdma_fabric fabric, const uint8_t *peer)
{
    if (is_of_no_use(row->gid) || (fabric == MC_RDMA_INFINIBAND) != (row->type == MC_GID_INFINIBAND))
        return -1;
    bool is_v4 = mc_gid_is_v4(row->gid), is_local = mc_gid_is_link_local(row->gid);
    if (fabric == MC_RDMA_ROCE && peer != NULL && is_v4 != mc_gid_is_v4(peer))
        return -1; /* the two would not understand each other's packets */
    int64_t steps[] = {
        row->type == MC_GID_ROCE_V2,
        peer == NULL || is_local == mc_gid_is_link_local(peer),
        !is_local,
        row->is_here ? 2 : row->netdev[0] != 0,
        !row->is_netdev_down,
        !is_container_network(row->netdev),
        peer != NULL && row->prefix_length > 0 && mc_gid_same_subnet(row->gid, peer, row->prefix_length),
        is_v4,
        (int64_t)(MC_GID_ROWS_MAX - 1 - row->index % MC_GID_ROWS_MAX),
    };
    int64_t number = 0;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        number = number * (i + 1 < sizeof(steps) / sizeof(steps[0]) ? 4 : (int64_t)MC_GID_ROWS_MAX) + steps[i];
    return number;
}

static void explain(const struct mc_gid_row *row, const char *why, char *reason, size_t size)
{
    char address[MC_GID_TEXT_MAX];
    mc_gid_address(row->gid, address, sizeof(address));
    snprintf(reason, size, "%s: row %u, %s, %s%s%s%s", why, (unsigned)row->index, mc_gid_type_text(row->type), address,
             row->netdev[0] != 0 ? " on " : ", no interface here", row->netdev,
             mc_gid_is_link_local(row->gid) && row->type != MC_GID_INFINIBAND
                 ? " (link-local: reaches one layer-2 network only)"
                 : "");
}

static int choose_wanted(const struct mc_gid_row *rows, size_t count, int64_t wanted, unsigned rank, char *reason,
                         size_t size)
{
    for (size_t i = 0; i < count && rank == 0; i++) {
        if (rows[i].index != wanted)
            continue;
        if (mc_gid_is_null(rows[i].gid))
            break;
        explain(&rows[i], "as MC_GID_INDEX says", reason, size);
        return (int)i;
    }
    snprintf(reason, size, "row %lld of the GID table is empty; unset MC_GID_INDEX to have one chosen",
             (long long)wanted);
    return -1;
}

int mc_gid_choose(const struct mc_gid_row *rows, size_t count, enum mc_rdma_fabric fabric, int64_t wanted,
                  const uint8_t *peer, unsigned rank, char *reason, size_t size)
{
    if (wanted >= 0)
        return choose_wanted(rows, count, wanted, rank, reason, size);
    int best = -1;
    int64_t below = INT64_MAX; /* the number of the row before in rank */
    for (unsigned i = 0; i <= rank; i++) {
        int64_t best_worth = -1;
        best = -1;
        for (size_t j = 0; j < count; j++) {
            int64_t number = worth(&rows[j], fabric, peer);
            if (number > best_worth && number < below) {
                best = (int)j;
                best_worth = number;
            }
        }
        if (best < 0)
            break;
        below = best_worth;
    }
    if (best >= 0)
        explain(&rows[best], rank == 0 ? "best of the table" : "next best of the table", reason, size);
    else if (rank > 0)
        snprintf(reason, size, "no further row to try");
    else
        snprintf(reason, size,
                 peer == NULL ? "no row of the GID table has an address: give the interface one"
                              : "no row of the address family of the peer's GID");
    return best;
}
