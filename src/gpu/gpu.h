/* Memory of accelerators: which addresses are theirs, and copies to and from them. The processor never touches such an
 * address (nor hands it to the kernel): bytes go through pinned host memory of ours.
 *
 * A process in which nobody has loaded the CUDA driver has no such memory, and pays one relaxed load for each question.
 * That the driver was loaded is noticed when memory is registered, when a store or an engine is opened, and by their
 * threads within a second.
 *
 * Copies are ordered after what the process has queued on its default stream, as the original's are (but those "apart",
 * whose caller sees to that itself). Invariants: after
 * mc_gpu_finish, and after mc_gpu_copy, no copy is under way; a copy counts as done only after mc_gpu_wait or
 * mc_gpu_finish of its lane has returned 0. */
#ifndef MC_GPU_DEVICE_H
#define MC_GPU_DEVICE_H

#include "gpu/lane.h"

#define MC_GPU_CHUNK_BYTES ((size_t)64 << 20) /* mc_gpu_copy: between two looks at the clock */

enum mc_gpu_kind { MC_GPU_HOST, MC_GPU_MEMORY, MC_GPU_MANAGED }; /* managed: the driver moves it about */

struct mc_gpu_place {
    enum mc_gpu_kind kind;
    int number; /* of the device; 0 for host memory */
};

/* Looks whether the driver has been loaded meanwhile. Costs nothing while no library at all was. When it seems so, the
 * loader is asked, which makes the caller wait for an import that another thread is at, as long as that takes. */
void mc_gpu_look(void);
/* The same for threads that must not wait: then a thread of its own looks. */
void mc_gpu_notice(void);

/* Addresses that are looked up one after the other often lie in one range. Zeroed = ready; of one call: what it
 * remembers may be wrong later. */
struct mc_gpu_finder {
    uint64_t from, to;
    struct mc_gpu_place place;
};
/* What lies there. */
struct mc_gpu_place mc_gpu_find(struct mc_gpu_finder *finder, const void *address);
/* Remembers registered memory, so that the driver is not asked for every address in it. */
struct mc_gpu_place mc_gpu_note(const void *base, size_t length);
void mc_gpu_forget(const void *base);

/* A number of the allocation there that no other one of this process has had or will have; 0: not to be had. Asks the
 * driver each time. */
uint64_t mc_gpu_allocation(const void *address);

/* Copies now; either side may be of any kind. */
int mc_gpu_copy(void *to, const void *from, size_t length);

/* A descriptor by which a kernel driver reaches that memory (dma-buf), the caller's; negative: not to be had. It is of
 * the whole pages around the range, which begins at *offset of it. */
int mc_gpu_dmabuf(const void *address, uint64_t length, uint64_t *offset);
/* Those pages, of a power of two bytes. False: they end beyond the address space. */
bool mc_gpu_whole_pages(uint64_t address, uint64_t length, uint64_t page, uint64_t *from, uint64_t *size);

#endif
