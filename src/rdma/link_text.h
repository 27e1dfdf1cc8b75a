/* The texts by which two halves of a link find each other, and the choice of who is paired with whom. Pure.
 *
 * Offer and answer are JSON: {"version":1,"link":ID,"pairs":[{"pair":0,"device":"mlx5_0","peer":"mlx5_1","lid":0,
 * "gid":"..","qpn":1,"psn":2,"mtu":4096,"reads":16},..]}. "grh":true where a LID is not enough. "cm" instead of qpn and
 * psn: rdma_cm at that address, with "token". "error": no such pair, and why; with "pending" it is being set up still,
 * and the same half may be offered again. "wait" beside "link": milliseconds until the asker gives up. What a reader
 * does not know it skips. */
#ifndef MC_RDMA_LINK_TEXT_H
#define MC_RDMA_LINK_TEXT_H

#include "rdma/gid.h"

#define MC_RDMA_CM_ADDRESS_MAX 64u

struct mc_rdma_tell { /* what one side says of one pair */
    uint32_t pair;
    char device[MC_RDMA_NAME_MAX]; /* of who speaks */
    char peer[MC_RDMA_NAME_MAX];   /* offer: which of the other's is wanted */
    uint16_t lid;
    uint8_t gid[MC_GID_BYTES];
    uint32_t qpn, psn, mtu_bytes, reads;
    bool needs_grh; /* the LID alone does not lead there */
    bool is_cm;
    char cm_address[MC_RDMA_CM_ADDRESS_MAX]; /* answer with rdma_cm */
    uint64_t token;
    char error[MC_RDMA_REASON_MAX]; /* "" : none */
    bool is_pending; /* answer, with an error for who does not know the word: it is not decided yet, ask again */
};

struct mc_rdma_message {
    uint64_t link, wait_ms; /* offer: for so long the answer is waited for; 0: not said */
    uint32_t count;
    struct mc_rdma_tell pairs[MC_RDMA_PAIRS_MAX];
};

void mc_rdma_message_put(const struct mc_rdma_message *message, struct mc_buffer *out);
/* 0 or MC_ERR_PROTOCOL: not JSON, wrong types, a pair twice or out of range, another version. */
int mc_rdma_message_parse(struct mc_span text, struct mc_rdma_message *message);

void mc_rdma_put_peer_device(const struct mc_rdma_peer_device *device, uint32_t mtu_bytes, struct mc_buffer *out);

struct mc_rdma_local_device { /* what the choice looks at */
    const char *name;
    uint32_t number;
    enum mc_rdma_fabric fabric;
    const struct mc_gid_row *rows;
    uint32_t row_count;
    int64_t gid_index; /* MC_GID_INDEX */
};
/* The peer's device that fits a local one best (rank 0), next best, ...; ranks beyond the last begin again. -1: none.
 */
int mc_rdma_choose_peer(const struct mc_rdma_local_device *local, const struct mc_rdma_peer_device *peers,
                        uint32_t count, uint32_t mask, uint32_t rank);

#endif
