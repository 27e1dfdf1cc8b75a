/* Verbs without a device: a table of functions behind which bytes really move between memories that are registered with
 * it, within this process, at once and in order, with every key, bound, state, address and limit checked. What goes
 * wrong is what a test says. All of it behind one lock; deterministic. */
#ifndef MC_TESTS_FAKE_VERBS_H
#define MC_TESTS_FAKE_VERBS_H

#include "rdma/verbs.h"

#define FAKE_DEVICES_MAX 8

struct fake_device_config {
    const char *name;
    bool is_iwarp, is_infiniband, needs_grh;
    uint16_t lid;
    struct mc_gid_row rows[8];
    uint32_t row_count;
    uint64_t max_mr_size;               /* 0: 2^40 */
    int max_qp_wr, max_cqe, max_inline; /* 0: 1024, 65536, 256; max_inline -1: none */
    uint32_t mtu;                       /* enum ibv_mtu; 0: 4096 */
    bool has_peermem, has_dmabuf;
};

/* Forgets everything of the test before; devices are given in order. */
void fake_reset(const struct fake_device_config *devices, uint32_t count);
/* NULL, which is the libraries that are there, when the environment has MC_TEST_REAL_VERBS. */
const struct mc_verbs *fake_verbs(void);
/* A RoCE v2 device with the address 10.0.0.(number + 1). */
struct fake_device_config fake_roce(uint32_t number);

/* ---- what goes wrong ---- */
/* The work request after `after` others of that device ends with that status. Once. */
void fake_fail_work(uint32_t device, uint32_t after, enum ibv_wc_status status);
/* Work stays under way, and neither succeeds nor fails, until fake_release or the end of its queue pair. */
void fake_hold(uint32_t device);
/* The same once its work has moved so many bytes in all. */
void fake_hold_at(uint32_t device, uint64_t bytes);
void fake_flip(uint32_t device); /* a bit of what its next work brings is another */
void fake_release(uint32_t device);
/* Packets between the two do not arrive (both ways): work fails with RETRY_EXC_ERR. */
void fake_cut(uint32_t a, uint32_t b, bool is_cut);
void fake_port(uint32_t device, bool is_up);                                        /* with its event */
void fake_set_gids(uint32_t device, const struct mc_gid_row *rows, uint32_t count); /* with its event */
void fake_lose_device(uint32_t device);                                             /* IBV_EVENT_DEVICE_FATAL */
void fake_fail_registrations(uint32_t device, uint32_t count, int error);
void fake_fail_deregistrations(uint32_t device, uint32_t count, int error);
void fake_hold_registrations(bool is_held);     /* at all devices, as the kernel does that pins many pages */
void fake_hold_deregistrations(bool is_held);   /* the same, as it unpins them */
void fake_fail_qps(uint32_t device, int error); /* it makes none; 0: no more */
void fake_fail_rtr(uint32_t device, int gid_index, int error); /* 0: no more */
/* Addresses of `peer` do not answer to that device: who tells a queue pair of one sleeps so long, and is given that
 * error; 0: none, it has answered late. ms 0: no more. */
void fake_slow_rtr(uint32_t device, uint32_t peer, uint32_t ms, int error);
void fake_slow_posts(uint32_t us);                    /* each burst of requests takes so long to be posted */
void fake_fail_post(uint32_t device, uint32_t after); /* ENOMEM, once */
/* Addresses in this range are a GPU's: only dma-buf, or a device with peermem, registers them. */
void fake_gpu_memory(void *address, size_t length);
void fake_gpu_reach(void *(*reach)(uint64_t address)); /* where its bytes really are; after fake_gpu_memory */

/* ---- what was seen ---- */
struct fake_counts {
    uint32_t contexts, pds, mrs, cqs, channels, qps, ids; /* alive */
    uint64_t works, signaled, inlined, completions;
    uint64_t under_way;                                            /* posted, and neither done nor failed */
    uint64_t bytes[FAKE_DEVICES_MAX];                              /* moved by work of that device */
    uint32_t send_overflows, cq_overflows, bad_posts, late_events; /* our mistakes: always 0 */
    uint32_t biggest_mr_mib;
    uint32_t registering;     /* calls that fake_hold_registrations holds */
    uint32_t deregistering;   /* and fake_hold_deregistrations */
    uint32_t qps_made, slept; /* in all; calls that slept */
    uint64_t heap; /* bytes that queues of all times have taken from the heap, so that a test can leave them out */
};
struct fake_counts fake_counts(void);

#endif
