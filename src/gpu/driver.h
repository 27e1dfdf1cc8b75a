/* The CUDA driver (libcuda.so.1), as far as the project uses it: its functions by name, and the facts of its ABI.
 *
 * Nothing here links with it. The library is only ever found, never loaded: a process in which nobody has loaded it has
 * no device memory. Invariant: once mc_driver_find has found it, mc_driver holds every function that is not marked
 * optional, and stays valid until the process ends (the library is held). */
#ifndef MC_GPU_DRIVER_H
#define MC_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* CUresult, of which only these matter here. */
enum { MC_CU_SUCCESS = 0, MC_CU_INVALID_VALUE = 1, MC_CU_NOT_READY = 600 };
/* CUpointer_attribute. */
enum {
    MC_CU_POINTER_MEMORY_TYPE = 2,
    MC_CU_POINTER_BUFFER_ID = 7,
    MC_CU_POINTER_IS_MANAGED = 8,
    MC_CU_POINTER_DEVICE_ORDINAL = 9,
    MC_CU_POINTER_RANGE_START = 11,
    MC_CU_POINTER_RANGE_SIZE = 12
};
enum { MC_CU_MEMORY_DEVICE = 2 }; /* CUmemorytype; 1: the host's; 0: memory that the driver does not know */
enum { MC_CU_HOST_PORTABLE = 1 }; /* pinned memory for every context */
enum { MC_CU_EVENT_NO_TIMING = 2 };
enum { MC_CU_STREAM_NON_BLOCKING = 1 }; /* waits for no default stream */
enum { MC_CU_HANDLE_DMABUF = 1 };       /* CUmemRangeHandleType */
/* CUdevice_attribute: GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, of which the first bit is "by a call of the host", and
 * GPU_DIRECT_RDMA_WRITES_ORDERING: from 100 on the device sees such writes in order by itself. The same number says
 * "for the device itself" in a flush. */
enum { MC_CU_DEVICE_FLUSH_OPTIONS = 117, MC_CU_DEVICE_WRITES_ORDERING = 118 };
enum { MC_CU_FLUSH_BY_HOST = 1, MC_CU_FLUSH_CURRENT_CONTEXT = 0, MC_CU_ORDERING_OWNER = 100 };

/* Function, name in the library, arguments; all return a CUresult. Pointers of the device are 64-bit numbers
 * (CUdeviceptr), contexts, streams and events are opaque, devices are numbers. */
#define MC_DRIVER_NEEDED(X)                                                                                            \
    X(pointer_attributes, "cuPointerGetAttributes", (unsigned, int *, void **, uint64_t))                              \
    X(device_get, "cuDeviceGet", (int *, int))                                                                         \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **, int))                                                      \
    X(context_push, "cuCtxPushCurrent_v2", (void *))                                                                   \
    X(context_pop, "cuCtxPopCurrent_v2", (void **))                                                                    \
    X(stream_create, "cuStreamCreate", (void **, unsigned))                                                            \
    X(stream_destroy, "cuStreamDestroy_v2", (void *))                                                                  \
    X(stream_wait, "cuStreamSynchronize", (void *))                                                                    \
    X(event_create, "cuEventCreate", (void **, unsigned))                                                              \
    X(event_destroy, "cuEventDestroy_v2", (void *))                                                                    \
    X(event_record, "cuEventRecord", (void *, void *))                                                                 \
    X(event_wait, "cuEventSynchronize", (void *))                                                                      \
    X(event_query, "cuEventQuery", (void *))                                                                           \
    X(copy, "cuMemcpyAsync", (uint64_t, uint64_t, size_t, void *))                                                     \
    X(host_allocate, "cuMemHostAlloc", (void **, size_t, unsigned))                                                    \
    X(host_free, "cuMemFreeHost", (void *))
/* Not of every driver; NULL where it is not there. For network cards that reach the device's memory themselves. */
#define MC_DRIVER_OPTIONAL(X)                                                                                          \
    X(pci_bus_id, "cuDeviceGetPCIBusId", (char *, int, int))                                                           \
    X(address_range, "cuMemGetAddressRange_v2", (uint64_t *, size_t *, uint64_t))                                      \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, int))                                                     \
    X(flush_writes, "cuFlushGPUDirectRDMAWrites", (int, int))                                                          \
    X(range_handle, "cuMemGetHandleForAddressRange", (void *, uint64_t, size_t, int, unsigned long long))

struct mc_gpu_table {
#define MC_DRIVER_MEMBER(name, symbol, arguments) int(*name) arguments;
    MC_DRIVER_NEEDED(MC_DRIVER_MEMBER)
    MC_DRIVER_OPTIONAL(MC_DRIVER_MEMBER)
#undef MC_DRIVER_MEMBER
};

extern struct mc_gpu_table mc_driver; /* may be read once mc_gpu_is_ready (lane.h) */

#define MC_DRIVER_NAME_MAX 256
/* How the name of its file begins. */
void mc_driver_name(char name[MC_DRIVER_NAME_MAX]);
/* The driver that is loaded in this process: MC_CUDA_LIBRARY (tests), else libcuda.so.1. 1: mc_driver is filled in;
 * 0: nobody has loaded it; negative: it is there, and *missing is the name of what it lacks. */
int mc_driver_find(const char **missing);

#endif
