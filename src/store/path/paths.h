/* What one process has of paths: who it is, which segments it owns, and the paths to those of others.
 * Threads: all functions may be called from any thread unless said otherwise. */
#ifndef MC_PATH_PATHS_H
#define MC_PATH_PATHS_H

#include "gpu/gpu.h"
#include "store/path/transport.h"

struct mc_segment_memory; /* memory.h: an own segment */

enum { MC_PATH_LOCAL = 1, MC_PATH_SHM = 2, MC_PATH_TCP = 4, MC_PATH_RDMA = 8, MC_PATH_ALL = 15 };

struct mc_rdma;

struct mc_paths *mc_paths_create(struct mc_id node, uint64_t incarnation, unsigned allowed_paths);
/* Closes all paths: none may be in use, and none is opened any more. A child may be forked until it is freed. */
void mc_paths_end(struct mc_paths *paths);
void mc_paths_free(struct mc_paths *paths);
/* Both. */
void mc_paths_destroy(struct mc_paths *paths);
/* The devices that path rdma uses; before the first path. They outlive its paths. */
void mc_paths_set_rdma(struct mc_paths *paths, struct mc_rdma *rdma);
/* Has the memory of our own registered that bytes pass through, in the background: no call registers any. */
void mc_paths_prepare_rdma(struct mc_paths *paths);
/* Memory of the caller's that path rdma reads and writes in place; without devices nothing is done. What cannot be
 * registered is copied, and the log says so: 0, MC_ERR_NO_MEMORY, MC_ERR_TRANSFER_FAIL, MC_ERR_NOT_SUPPORTED (a GPU's,
 * which no device reaches). unregister waits for device
 * requests that use it; calls that do may go on, and copy. MC_ERR_TRANSFER_FAIL of it: a device does not let go. */
int mc_paths_register(struct mc_paths *paths, void *base, uint64_t size);
int mc_paths_unregister(struct mc_paths *paths, const void *base);
/* In which cluster we are told of places: owners of another one refuse us. */
void mc_paths_set_cluster(struct mc_paths *paths, struct mc_id cluster);
/* Descriptors of others that a forked child closes, too. add: its place, or MC_ERR_BUSY. */
int mc_paths_fd_add(struct mc_paths *paths, int fd);
void mc_paths_fd_forget(struct mc_paths *paths, int fd);
void mc_paths_fd_leave(struct mc_paths *paths, int place);
struct mc_paths_counters *mc_paths_counters(struct mc_paths *paths);

/* Own segments, so that the local transport finds them. memory must outlive its registration. */
void mc_paths_add_segment(struct mc_paths *paths, struct mc_segment_memory *memory);
void mc_paths_remove_segment(struct mc_paths *paths, struct mc_segment_memory *memory);
/* With a reference (mc_segment_memory_release), or NULL. */
struct mc_segment_memory *mc_paths_find_segment(struct mc_paths *paths, struct mc_id segment_id);

/* The best working path to a segment: cached; opened on first use in the order local, shm, rdma, tcp as far as allowed;
 * a faster one that failed is tried again after 1 s, doubling to 60 s, and waited for 20 ms (160 at most) while another
 * works. Returns 0 and a reference in *path (mc_path_release), or the last error. One thread opens, others that want
 * the same segment wait. An owner that does not answer has MC_STALL_NS (by shm MC_CONNECT_NS; one that is seen to run,
 * until the deadline). Our own trouble is told apart: mc_socket_is_own. */
int mc_path_get(struct mc_paths *paths, const struct mc_endpoint *endpoint, uint64_t deadline_ns,
                struct mc_path **path);
/* Opens the path before it is needed, so that a first use need not wait for the owner. Holds up nobody: who needs it
 * meanwhile opens it himself. The peer has until the deadline to answer. 0 when there is one now, or an error. */
int mc_path_prepare(struct mc_paths *paths, const struct mc_endpoint *endpoint, uint64_t deadline_ns);
/* Lets go of paths whose owner's process has ended: they hold its memory. */
void mc_paths_sweep(struct mc_paths *paths);
/* What was committed there is not confirmed in time: a packet may be lost, of the commit or of the owner's word to the
 * master. gives_up: and nobody waits for it any longer; what comes next goes over another connection. Never waits. */
void mc_paths_nudge(struct mc_paths *paths, uint32_t segment, bool gives_up);
/* Lets go of what paths keep for a next use that has not come for long; called every second or so. Closes at most
 * connections, and waits for nobody. */
void mc_paths_rest(struct mc_paths *paths, uint64_t now_ns);
/* Moves the batch over the path, in this thread. */
static inline void mc_path_run(struct mc_path *path, struct mc_transfer **transfers, size_t count,
                               const struct mc_run *run)
{
    if (mc_gpu_is_there())
        mc_staged_run(path, transfers, count, run);
    else
        path->transport->run(path, transfers, count, run);
}
/* Can the batch be a group of mc_path_run_all? */
static inline bool mc_path_runs_with_others(const struct mc_path *path, struct mc_transfer *const *transfers,
                                            size_t count)
{
    return path->transport->run_all != NULL && (!mc_gpu_is_there() || !mc_staged_is_needed(transfers, count));
}
/* Moves groups of one transport at once, in this thread; at most MC_PATH_BATCHES_MAX. */
static inline void mc_path_run_all(struct mc_path_batch **groups, size_t count)
{
    groups[0]->path->transport->run_all(groups, count);
}
/* Marks it broken and forgets it in the cache; open runs go on to their end. */
void mc_path_drop(struct mc_path *path);
/* Forgets every path to that segment (it was unmounted). */
void mc_paths_forget(struct mc_paths *paths, uint32_t segment);
/* In a forked child: closes every descriptor, makes all further calls fail. Async-signal-safe enough for
 * pthread_atfork. */
void mc_paths_forked(struct mc_paths *paths);

#endif
