/* What fake_verbs.c and fake_cm.c share. */
#ifndef MC_TESTS_FAKE_INSIDE_H
#define MC_TESTS_FAKE_INSIDE_H

#include "fake_verbs.h"

#include <pthread.h>

#define FAKE_CONTEXTS_MAX 64
#define FAKE_EVENTS_MAX 64
#define FAKE_REGIONS_MAX 4096
#define FAKE_INLINE_MAX 256
#define FAKE_QP_BUCKETS 16384

struct fake_device {
    struct ibv_device device; /* first */
    struct fake_device_config config;
    bool is_port_up, is_held, is_failing, is_post_failing, is_flipping;
    uint64_t hold_at; /* bytes; 0: it goes on */
    uint32_t fail_after, post_fail_after, failing_registrations, failing_deregistrations;
    int qp_error;
    enum ibv_wc_status fail_status;
    int registration_error, deregistration_error, rtr_error, rtr_gid;
};

struct fake_context {
    struct ibv_context context; /* first */
    uint32_t device;
    enum ibv_event_type events[FAKE_EVENTS_MAX];
    uint32_t event_count;
};

struct fake_region {
    struct ibv_mr mr; /* first */
    bool is_there;
    unsigned access;
};

struct fake_cq {
    struct ibv_cq cq; /* first */
    struct ibv_wc *completions;
    uint32_t count, pending, events, acknowledged; /* events: pending in the channel; taken out of it; given back */
    bool is_armed;
    struct fake_cq *next; /* in its channel */
};

struct fake_channel {
    struct ibv_comp_channel channel; /* first */
    struct fake_cq *first;
};

struct fake_work {
    uint64_t id, local, remote;
    uint32_t length, lkey, rkey;
    enum ibv_wr_opcode opcode;
    bool is_signaled, is_inline;
    uint8_t inlined[FAKE_INLINE_MAX];
};

struct fake_qp {
    struct ibv_qp qp;       /* first */
    struct fake_qp *next;   /* in its bucket */
    struct fake_work *work; /* under way, oldest first */
    uint32_t count, capacity, max_inline;
    unsigned access;
    struct ibv_ah_attr path;
    uint32_t peer, rq_psn, sq_psn;
    enum ibv_mtu mtu;
    bool is_cm;
};

struct fake {
    pthread_mutex_t lock;
    struct fake_device devices[FAKE_DEVICES_MAX];
    uint32_t device_count, next_key, next_qpn;
    struct fake_context *contexts[FAKE_CONTEXTS_MAX];
    struct fake_region regions[FAKE_REGIONS_MAX];
    struct fake_qp *qps[FAKE_QP_BUCKETS]; /* by number */
    bool holds_registrations, holds_deregistrations;
    uint32_t slow_post_us;
    bool is_cut[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX];
    uint32_t slow_ms[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX];
    int slow_error[FAKE_DEVICES_MAX][FAKE_DEVICES_MAX];
    char *gpu;
    size_t gpu_length;
    void *(*gpu_reach)(uint64_t address);
    struct fake_counts counts;
};
extern struct fake fake;

void fake_signal(int fd);
/* The lock is held. */
struct ibv_context *fake_context_open(uint32_t device);
uint32_t fake_device_of(const struct ibv_context *context);
struct fake_qp *fake_qp_find(uint32_t number);
void fake_cm_fill(struct mc_verbs *verbs);

#endif
