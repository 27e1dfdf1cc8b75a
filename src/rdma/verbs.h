/* libibverbs and librdmacm as one table of function pointers, opened at run time. The headers of rdma-core are needed
 * to build, its libraries are not needed to run. What those headers do in inline functions (through context->ops) and
 * what differs between versions stands behind functions of the table too, so that tests can put a fake in the place of
 * all. */
#ifndef MC_RDMA_VERBS_H
#define MC_RDMA_VERBS_H

#include "rdma/gid.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* return type, field, symbol, parameters */
#define MC_VERBS_MAP(X)                                                                                                \
    X(struct ibv_device **, get_device_list, "ibv_get_device_list", (int *))                                           \
    X(void, free_device_list, "ibv_free_device_list", (struct ibv_device **))                                          \
    X(const char *, get_device_name, "ibv_get_device_name", (struct ibv_device *))                                     \
    X(struct ibv_context *, open_device, "ibv_open_device", (struct ibv_device *))                                     \
    X(int, close_device, "ibv_close_device", (struct ibv_context *))                                                   \
    X(int, query_device, "ibv_query_device", (struct ibv_context *, struct ibv_device_attr *))                         \
    X(struct ibv_pd *, alloc_pd, "ibv_alloc_pd", (struct ibv_context *))                                               \
    X(int, dealloc_pd, "ibv_dealloc_pd", (struct ibv_pd *))                                                            \
    X(int, dereg_mr, "ibv_dereg_mr", (struct ibv_mr *))                                                                \
    X(struct ibv_comp_channel *, create_comp_channel, "ibv_create_comp_channel", (struct ibv_context *))               \
    X(int, destroy_comp_channel, "ibv_destroy_comp_channel", (struct ibv_comp_channel *))                              \
    X(struct ibv_cq *, create_cq, "ibv_create_cq",                                                                     \
      (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                                             \
    X(int, destroy_cq, "ibv_destroy_cq", (struct ibv_cq *))                                                            \
    X(int, get_cq_event, "ibv_get_cq_event", (struct ibv_comp_channel *, struct ibv_cq **, void **))                   \
    X(void, ack_cq_events, "ibv_ack_cq_events", (struct ibv_cq *, unsigned))                                           \
    X(struct ibv_qp *, create_qp, "ibv_create_qp", (struct ibv_pd *, struct ibv_qp_init_attr *))                       \
    X(int, modify_qp, "ibv_modify_qp", (struct ibv_qp *, struct ibv_qp_attr *, int))                                   \
    X(int, destroy_qp, "ibv_destroy_qp", (struct ibv_qp *))                                                            \
    X(int, get_async_event, "ibv_get_async_event", (struct ibv_context *, struct ibv_async_event *))                   \
    X(void, ack_async_event, "ibv_ack_async_event", (struct ibv_async_event *))

/* Absent with old versions of rdma-core: then what they are for is not there. */
#define MC_VERBS_OPTIONAL_MAP(X)                                                                                       \
    X(int, fork_init, "ibv_fork_init", (void))                                                                         \
    X(struct ibv_mr *, reg_mr_plain, "ibv_reg_mr", (struct ibv_pd *, void *, size_t, int))                             \
    X(struct ibv_mr *, reg_mr_iova2, "ibv_reg_mr_iova2", (struct ibv_pd *, void *, size_t, uint64_t, unsigned))        \
    X(struct ibv_mr *, reg_dmabuf_mr, "ibv_reg_dmabuf_mr", (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))    \
    X(ssize_t, query_gid_table, "_ibv_query_gid_table",                                                                \
      (struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t))                                        \
    X(int, query_port_plain, "ibv_query_port", (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *))

#define MC_VERBS_CM_MAP(X)                                                                                             \
    X(struct rdma_event_channel *, cm_create_channel, "rdma_create_event_channel", (void))                             \
    X(void, cm_destroy_channel, "rdma_destroy_event_channel", (struct rdma_event_channel *))                           \
    X(int, cm_create_id, "rdma_create_id",                                                                             \
      (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space))                               \
    X(int, cm_destroy_id, "rdma_destroy_id", (struct rdma_cm_id *))                                                    \
    X(int, cm_bind_addr, "rdma_bind_addr", (struct rdma_cm_id *, struct sockaddr *))                                   \
    X(int, cm_listen, "rdma_listen", (struct rdma_cm_id *, int))                                                       \
    X(__be16, cm_get_src_port, "rdma_get_src_port", (struct rdma_cm_id *))                                             \
    X(int, cm_resolve_addr, "rdma_resolve_addr", (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int))     \
    X(int, cm_resolve_route, "rdma_resolve_route", (struct rdma_cm_id *, int))                                         \
    X(int, cm_init_qp_attr, "rdma_init_qp_attr", (struct rdma_cm_id *, struct ibv_qp_attr *, int *))                   \
    X(int, cm_connect, "rdma_connect", (struct rdma_cm_id *, struct rdma_conn_param *))                                \
    X(int, cm_accept, "rdma_accept", (struct rdma_cm_id *, struct rdma_conn_param *))                                  \
    X(int, cm_reject, "rdma_reject", (struct rdma_cm_id *, const void *, uint8_t))                                     \
    X(int, cm_disconnect, "rdma_disconnect", (struct rdma_cm_id *))                                                    \
    X(int, cm_migrate_id, "rdma_migrate_id", (struct rdma_cm_id *, struct rdma_event_channel *))                       \
    X(int, cm_get_event, "rdma_get_cm_event", (struct rdma_event_channel *, struct rdma_cm_event **))                  \
    X(int, cm_ack_event, "rdma_ack_cm_event", (struct rdma_cm_event *))

struct mc_verbs {
    bool has_cm; /* librdmacm is there, whole */
#define MC_VERBS_FIELD(type, field, symbol, parameters) type(*field) parameters;
    MC_VERBS_MAP(MC_VERBS_FIELD)
    MC_VERBS_OPTIONAL_MAP(MC_VERBS_FIELD)
    MC_VERBS_CM_MAP(MC_VERBS_FIELD)
    /* Not symbols of the libraries. */
    int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *completions);
    int (*req_notify_cq)(struct ibv_cq *cq);
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *work, struct ibv_send_wr **bad);
    int (*query_port)(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port,
                      struct ibv_port_attr *attributes);
    struct ibv_mr *(*reg_mr)(const struct mc_verbs *verbs, struct ibv_pd *pd, void *address, size_t length,
                             unsigned access);
    /* Rows of the GID table that hold something. Count or negative. */
    int (*read_gids)(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port, struct mc_gid_row *rows,
                     size_t capacity);
    /* NUMA node (-1: unknown) and PCI address ("": none) of a device. */
    void (*locate)(struct ibv_device *device, int *numa_node, char *pci, size_t size);
    /* The interface of a device whose GID table names none (iWARP); "" : unknown. */
    void (*find_netdev)(struct ibv_device *device, char *name, size_t size);
};

/* The real one, opened at the first call, once per process and never closed: drivers do not survive that. NULL: no
 * libibverbs here (one DEBUG line). Any thread. */
const struct mc_verbs *mc_verbs_open(void);

#endif
