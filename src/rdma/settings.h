/* Settings of RDMA: one table, from which struct, reading, limits and documentation come. Names and defaults are the
 * original's where it has them. */
#ifndef MC_RDMA_SETTINGS_H
#define MC_RDMA_SETTINGS_H

#include <stdint.h>

/* field, variable, variable that is asked when that one is not set, default, least, most, meaning */
#define MC_RDMA_SETTINGS_MAP(X)                                                                                        \
    X(ib_port, MC_IB_PORT, NONE, 1, 1, 255, "port of each device")                                                     \
    X(gid_index, MC_GID_INDEX, NCCL_IB_GID_INDEX, -1, -1, 255, "row of the GID table; -1: chosen")                     \
    X(pkey_index, MC_PKEY_INDEX, NONE, 0, 0, 65535, "row of the table of partition keys")                              \
    X(traffic_class, MC_IB_TC, NONE, -1, -1, 255, "traffic class (RoCE: DSCP x 4); -1: 0")                             \
    X(service_level, MC_IB_SL, NONE, -1, -1, 15, "service level; -1: 0")                                               \
    X(relaxed_ordering, MC_IB_PCI_RELAXED_ORDERING, NONE, 1, 0, 2,                                                     \
      "PCI relaxed ordering: 0 never, 1 or 2 where device and driver have it")                                         \
    X(mtu_bytes, MC_MTU, NONE, 4096, 256, 4096, "path MTU at most; a power of two")                                    \
    X(pairs_per_device, MC_NUM_QP_PER_EP, NONE, 2, 1, 16, "queue pairs of a link for each local device")               \
    X(wr_max, MC_MAX_WR, NONE, 256, 1, 32768, "work requests under way on one queue pair")                             \
    X(sge_max, MC_MAX_SGE, NONE, 4, 1, 32, "scatter entries of a work request; one is used")                           \
    X(inline_max, MC_MAX_INLINE, NONE, 64, 0, 4096, "WRITEs of at most so many bytes travel inside the work request")  \
    X(cqe_max, MC_MAX_CQE_PER_CTX, NONE, 4096, 1, 4194304, "entries of one completion queue at most")                  \
    X(slice_bytes, MC_SLICE_SIZE, NONE, 65536, 4096, 1073741824, "a request is cut into slices of so many bytes")      \
    X(window_bytes, MC_RDMA_WINDOW, NONE, 2097152, 65536, 1073741824, "bytes under way on one queue pair at most")     \
    X(fragment_ratio, MC_FRAGMENT_RATIO, NONE, 4, 1, 1000,                                                             \
      "a rest of at most slice size / this stays with the slice before it")                                            \
    X(retry_max, MC_RETRY_CNT, NONE, 9, 0, 128, "times a slice is tried again on another pair")                        \
    X(mr_bytes, MC_MAX_MR_SIZE, NONE, 1099511627776, 4096, 1099511627776, "bytes of one memory registration at most")  \
    X(parallel_registration, MC_ENABLE_PARALLEL_REG_MR, NONE, -1, -1, 1,                                               \
      "register at all devices at once: 0 never, 1 always, -1 large ranges")                                           \
    X(gid_retry_max, MC_AUTO_GID_MAX_RETRIES, NONE, 2, 0, 16, "other rows of the GID table tried in a set-up")         \
    X(pause_s, MC_RDMA_RAIL_PAUSE_SECONDS, NONE, 30, 0, 3600, "longest pause before a failed pair is tried again")     \
    X(ack_timeout, MC_RDMA_ACK_TIMEOUT, NONE, 14, 1, 31, "4.096 us x 2^this until a packet is sent again")             \
    X(resend_max, MC_RDMA_RESEND_MAX, NONE, 7, 0, 7, "times a packet is sent again")                                   \
    X(stall_ms, MC_RDMA_STALL_MS, NONE, 2000, 10, 600000, "a pair with work but no completion for so long has failed")

struct mc_rdma_settings {
#define MC_RDMA_SETTING_FIELD(field, variable, second, initial, least, most, text) int64_t field;
    MC_RDMA_SETTINGS_MAP(MC_RDMA_SETTING_FIELD)
#undef MC_RDMA_SETTING_FIELD
    int64_t setup; /* enum mc_rdma_setup */
};

/* How queue pairs find each other: MC_RDMA_SETUP = auto, oob (the faces' own messages), cm (rdma_cm). auto: rdma_cm for
 * iWARP, else oob. */
enum mc_rdma_setup { MC_RDMA_SETUP_AUTO, MC_RDMA_SETUP_OOB, MC_RDMA_SETUP_CM };

/* From the environment. A value that is not valid is one WARNING and the default. */
void mc_rdma_settings_read(struct mc_rdma_settings *settings);
/* How long a device may take until a packet that was lost twice has arrived: it waits up to four times the timeout that
 * it was given. A pair that moves nothing for less has not stalled. */
uint64_t mc_rdma_patience_ns(const struct mc_rdma_settings *settings);

#endif
