/* Copies to and from the memory of accelerators: streams, events and pinned memory, kept between calls. */
#ifndef MC_GPU_LANE_H
#define MC_GPU_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_GPUS_MAX 64                      /* devices of one process */
#define MC_GPU_UNIT_BYTES ((size_t)4 << 20) /* of pinned memory; a lane has two */
#define MC_GPU_LANES_MAX 32u                /* with pinned memory, so 256 MiB; one more gets pageable memory */
#define MC_GPU_UNIT_SMALL ((size_t)512 << 10)

extern _Atomic int mc_gpu_state; /* 1: there is a driver that can be used */
static inline bool mc_gpu_is_there(void)
{
    return atomic_load_explicit(&mc_gpu_state, memory_order_relaxed) > 0;
}
/* mc_gpu_is_there, after which the table may be read. */
static inline bool mc_gpu_is_ready(void)
{
    return atomic_load_explicit(&mc_gpu_state, memory_order_acquire) > 0;
}

/* One stream of one device and two units of host memory, of one caller at a time. Of any thread. */
struct mc_gpu_lane {
    int device;
    size_t unit_bytes;
    uint8_t *units[2];
    void *context, *stream, *events[2];
    void *apart; /* a stream that waits for no other; NULL: nobody has needed it */
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
/* Would mc_gpu_wait return at once? 1, 0; negative as above. */
int mc_gpu_has_ended(struct mc_gpu_lane *lane, unsigned unit);
int mc_gpu_finish(struct mc_gpu_lane *lane);
/* For who must not wait for what the process does on its default stream: copies that wait for no other work, and how
 * they are ended. To have a copy behind that work all the same, mark a unit and begin when the mark has ended. */
int mc_gpu_start_apart(struct mc_gpu_lane *lane, void *to, const void *from, size_t length);
int mc_gpu_finish_apart(struct mc_gpu_lane *lane);

/* Copies now, by a lane of that device. */
int mc_gpu_copy_now(int device, void *to, const void *from, size_t length);

/* For network cards. The device's "domain:bus:device.function". 0 or negative. */
int mc_gpu_pci_address(int device, char *text, size_t size);
/* What network cards have written to these devices (a bit each) is seen by whatever is begun there after the return.
 * Most drivers need no such word, and then it costs nothing. 0 or negative. */
int mc_gpu_flush(uint64_t devices);
/* mc_gpu_dmabuf (gpu.h), of memory that is that device's. */
int mc_gpu_device_dmabuf(int device, const void *address, size_t length);

/* In a forked child: what the lanes hold is the parent's. */
void mc_gpu_lanes_forget(void);

#endif
