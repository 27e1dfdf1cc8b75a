/* A stand-in for libcuda.so.1, for tests of how device memory is treated.
 *
 * Its device memory is an arena that nobody may touch (PROT_NONE): an access by the processor is a crash, one by the
 * kernel an error. Copies go through a second mapping of the same bytes, and are made as late as the driver's rules
 * allow: when somebody waits for them. So host memory that is used again too early, or a wait that is forgotten, shows
 * as wrong bytes. Every call needs a current context. */
#ifndef MC_TEST_FAKE_CUDA_H
#define MC_TEST_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_DEVICES 2
#define FAKE_CUDA_ARENA ((size_t)256 << 20) /* of each device */

enum fake_cuda_call { /* that can be made to fail */
                      FAKE_CUDA_ATTRIBUTES,
                      FAKE_CUDA_DEVICE,
                      FAKE_CUDA_STREAM,
                      FAKE_CUDA_COPY,
                      FAKE_CUDA_WAIT,
                      FAKE_CUDA_HOST_ALLOCATE,
                      FAKE_CUDA_CALLS
};
enum fake_cuda_number {
    FAKE_CUDA_PENDING,  /* copies that were started and not waited for */
    FAKE_CUDA_COPIES,   /* made */
    FAKE_CUDA_ASKED,    /* questions about pointers */
    FAKE_CUDA_PINNED,   /* bytes of host memory */
    FAKE_CUDA_DEPTH,    /* contexts that the calling thread has pushed and not popped */
    FAKE_CUDA_MISTAKES, /* calls that no right program makes: no context, a copy beyond an allocation, ... */
    FAKE_CUDA_FLUSHES,  /* of what network cards have written */
    FAKE_CUDA_LONGEST   /* copy, in bytes */
};

#define FAKE_CUDA_FUNCTIONS(X)                                                                                         \
    /* Device memory; 0: full. is_managed: what the driver moves about. */                                             \
    X(uint64_t, fake_cuda_allocate, (size_t size, int device, int is_managed))                                         \
    X(void, fake_cuda_free, (uint64_t address))                                                                        \
    /* It was freed, and the next one was given its address. */                                                        \
    X(void, fake_cuda_renew, (uint64_t address))                                                                       \
    /* Work on the default stream of the device that has the memory: fills it, as late as the rules allow: */          \
    /* when a copy of a stream of that device is made. One of another device's does not wait for it. */                \
    X(void, fake_cuda_fill_later, (uint64_t address, size_t size, int value))                                          \
    /* Where the same bytes can be looked at. */                                                                       \
    X(void *, fake_cuda_seen, (uint64_t address))                                                                      \
    /* After so many more calls of that kind, `times` of them answer `code`. */                                        \
    X(void, fake_cuda_fail, (int call, unsigned after, unsigned times, int code))                                      \
    /* Does a device see what network cards write in order by itself? 0: it does not. */                               \
    X(void, fake_cuda_ordering, (int ordering))                                                                        \
    /* Default streams are busy: who waits for a stream that waits for them waits until it is let go. */               \
    X(void, fake_cuda_hold, (int shall_hold))                                                                          \
    X(uint64_t, fake_cuda_number, (int number))

#endif
