/* Memory of accelerators: which addresses are theirs, and copies to and from them. The processor never touches such an
 * address (nor hands it to the kernel): bytes go through pinned host memory of ours.
 *
 * A process in which nobody has loaded the CUDA driver has no such memory, and pays one relaxed load for each question.
 * That the driver was loaded is noticed when memory is registered, when a store or an engine is opened, and by their
 * threads within a second.
 *
 * Copies are ordered after what the process has queued on its default stream, as the original's are. Invariants: after
 * mc_gpu_finish, and after mc_gpu_copy, no copy is under way; a copy counts as done only after mc_gpu_wait or
 * mc_gpu_finish of its lane has returned 0. */
#ifndef MC_GPU_DEVICE_H
#define MC_GPU_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_GPUS_MAX 64                      /* devices of one process */
#define MC_GPU_UNIT_BYTES ((size_t)4 << 20) /* of pinned memory; a lane has two */
#define MC_GPU_LANES_MAX 32u                /* with pinned memory, so 256 MiB; one more gets pageable memory */
#define MC_GPU_UNIT_SMALL ((size_t)512 << 10)
#define MC_GPU_CHUNK_BYTES ((size_t)64 << 20) /* mc_gpu_copy: between two looks at the clock */

enum mc_gpu_kind { MC_GPU_HOST, MC_GPU_MEMORY, MC_GPU_MANAGED }; /* managed: the driver moves it about */

struct mc_gpu_place {
    enum mc_gpu_kind kind;
    int number; /* of the device; 0 for host memory */
};

extern _Atomic int mc_gpu_state; /* 1: there is a driver that can be used */
static inline bool mc_gpu_is_there(void)
{
    return atomic_load_explicit(&mc_gpu_state, memory_order_relaxed) > 0;
}
/* Looks whether the driver has been loaded meanwhile. Costs nothing while no library at all was. */
void mc_gpu_look(void);

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

/* One stream of one device and two units of host memory, of one caller at a time. Of any thread. */
struct mc_gpu_lane {
    int device;
    size_t unit_bytes;
    uint8_t *units[2];
    void *context, *stream, *events[2];
    bool is_pinned;
    struct mc_gpu_lane *next;
};
/* NULL: no memory, or a device that cannot be used. */
struct mc_gpu_lane *mc_gpu_take(int device);
/* Nothing may be under way on it. NULL is allowed. */
void mc_gpu_give(struct mc_gpu_lane *lane);

/* All: 0, or a negative number when the driver refused; the log says why. Copies run in their order. */
int mc_gpu_start(struct mc_gpu_lane *lane, void *to, const void *from, size_t length);
/* The same for memory of any device, which may be another than the lane's: then the copy is made before this returns,
 * by a stream of that one, so that it waits for the work on that device's default stream. */
int mc_gpu_start_any(struct mc_gpu_lane *lane, int device, void *to, const void *from, size_t length);
/* What was started until now is of that unit (0 or 1); mc_gpu_wait waits for it. */
int mc_gpu_mark(struct mc_gpu_lane *lane, unsigned unit);
int mc_gpu_wait(struct mc_gpu_lane *lane, unsigned unit);
int mc_gpu_finish(struct mc_gpu_lane *lane);

/* Copies now; either side may be of any kind. */
int mc_gpu_copy(void *to, const void *from, size_t length);

/* For network cards. The device's "domain:bus:device.function". 0 or negative. */
int mc_gpu_pci_address(int device, char *text, size_t size);
/* What network cards have written to these devices (a bit each) is seen by whatever is begun there after the return.
 * Most drivers need no such word, and then it costs nothing. 0 or negative. */
int mc_gpu_flush(uint64_t devices);
/* A descriptor by which a kernel driver reaches that memory (dma-buf), the caller's; negative: not to be had. The
 * range begins and ends at a page. */
int mc_gpu_dmabuf(const void *address, size_t length);

#endif
