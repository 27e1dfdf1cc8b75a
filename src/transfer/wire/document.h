/* The documents by which engines find each other, in the original's form: "ram" (a segment: protocol, data port, what
 * is registered) and "rpc_meta" (where its handshakes go). Members that are not known are skipped. A member of our own,
 * "mooncake_c", says what engines of ours need for the path within one machine; the original skips it.
 *
 * Invariant: what mc_document_read accepts is whole: a name, a protocol, and ranges of at least one byte that end
 * within the address space. */
#ifndef MC_TRANSFER_DOCUMENT_H
#define MC_TRANSFER_DOCUMENT_H

#include "base/bytes.h"
#include "gpu/gpu.h"
#include "env/socket.h"
#include "mooncake_engine.h"
#include "rdma/remote.h"

#define MC_DOCUMENT_NAME_MAX 512
#define MC_DOCUMENT_BUFFERS_MAX MC_TRANSFER_ITEMS_MAX

struct mc_document {
    char name[MC_DOCUMENT_NAME_MAX];
    bool is_tcp;                    /* "protocol" is, or holds, "tcp" */
    char data_host[MC_ADDRESS_MAX]; /* "": where the handshake was answered */
    uint16_t data_port;             /* 0: none */
    unsigned data_version;          /* of the tcp protocol: 1 or 2 */
    struct mc_transfer_range *buffers;
    size_t buffer_count;
    const struct mc_gpu_place *places; /* writing only: where each buffer lies; NULL: all in the host's memory */
    struct mc_id host, id;             /* ours only: machine and boot, this engine; zero: not one of ours */
    char unix_name[MC_UNIX_PATH_MAX];  /* ours only: "@name" of the socket for peers of the same machine */
    bool can_cut;                      /* ours only: knows numbers of connections, and the question to cut them */
    bool can_mean;                     /* ours only: knows MC_TCP_WHO */
    bool can_sum;                      /* ours only: knows MC_TCP_SUM */
    uint16_t rpc_port;                 /* ours only: of its handshakes, at data_host; 0: not said */
    struct mc_rdma_remote *remote;     /* ours only: what can be reached by RDMA; NULL. The document's */
    struct mc_span rdma;               /* for writing: the text of that */
};

/* 0, MC_TRANSFER_ERR_MALFORMED_JSON, MC_TRANSFER_ERR_MEMORY. Free in every case; the buffers are the document's. */
int mc_document_read(struct mc_span text, struct mc_document *document);
/* timestamp: any text. */
void mc_document_write(struct mc_buffer *out, const struct mc_document *document, const char *timestamp);
void mc_document_free(struct mc_document *document);

int mc_rpc_meta_read(struct mc_span text, char *host, size_t host_size, uint16_t *port);
void mc_rpc_meta_write(struct mc_buffer *out, const char *host, uint16_t port);

/* "mooncake/[cluster/]ram/name"; a name that holds a slash stands right behind "mooncake/". */
void mc_segment_key(char *key, size_t size, const char *cluster_id, const char *name);
void mc_rpc_meta_key(char *key, size_t size, const char *cluster_id, const char *name);
#define MC_TRANSFER_KEY_MAX 1024

#endif
