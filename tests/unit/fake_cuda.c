/* The stand-in. With FAKE_CUDA_OLD it lacks what an old driver lacks. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define ALLOCATIONS 4096u
#define COPIES 8192u
#define DEPTH 16u
#define FILLS 16u
#define UNIT 4096u

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_READY = 600
};

struct allocation {
    uint64_t from, size, id;
    bool is_live, is_managed;
    int device;
};
struct stream {
    int device;
    bool is_apart;          /* waits for no default stream */
    uint64_t started, made; /* copies */
    struct stream *next;
};
struct event {
    int device;
    struct stream *stream;
    uint64_t until;
};
struct copy {
    struct stream *stream;
    uint64_t to, from;
    size_t size;
};

struct fill { /* of a default stream */
    int device, value;
    uint64_t to;
    size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint8_t *arena, *alias;
static uint64_t used[FAKE_CUDA_DEVICES];
static struct allocation allocations[ALLOCATIONS];
static size_t allocation_count;
static uint64_t last_id;
static struct copy copies[COPIES];
static size_t copy_count;
static struct fill fills[FILLS];
static size_t fill_count;
static int contexts[FAKE_CUDA_DEVICES]; /* their addresses are the handles */
static struct {
    unsigned after, times;
    int code;
} failures[FAKE_CUDA_CALLS];
static int write_ordering = 100;
static uint64_t numbers[FAKE_CUDA_LONGEST + 1];
static __thread void *stack[DEPTH];
static __thread unsigned depth;

#define DECLARE(type, name, arguments) API type name arguments;
FAKE_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE

static void start(void)
{
    size_t size = FAKE_CUDA_ARENA * FAKE_CUDA_DEVICES;
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        abort();
    arena = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
    alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (arena == MAP_FAILED || alias == MAP_FAILED)
        abort();
    close(fd);
}

static void enter(void)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
}

static int leave(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static _Atomic bool is_held;

static int mistake(int code)
{
    numbers[FAKE_CUDA_MISTAKES]++;
    return code;
}

/* Locked. What was ordered for this call. */
static int injected(enum fake_cuda_call call)
{
    if (failures[call].times == 0)
        return SUCCESS;
    if (failures[call].after > 0) {
        failures[call].after--;
        return SUCCESS;
    }
    failures[call].times--;
    return failures[call].code;
}

static struct allocation *find(uint64_t address)
{
    for (size_t i = allocation_count; i > 0; i--)
        if (address >= allocations[i - 1].from && address - allocations[i - 1].from < allocations[i - 1].size)
            return &allocations[i - 1];
    return NULL;
}

static bool is_ours(uint64_t address)
{
    return address >= (uintptr_t)arena && address - (uintptr_t)arena < FAKE_CUDA_ARENA * FAKE_CUDA_DEVICES;
}

static bool is_whole(uint64_t address, size_t size)
{
    const struct allocation *there = find(address);
    return !is_ours(address) || (there != NULL && there->is_live && size <= there->size - (address - there->from));
}

static uint8_t *reach(uint64_t address)
{
    return is_ours(address) ? alias + (address - (uintptr_t)arena) : (uint8_t *)(uintptr_t)address;
}

/* Locked. Makes the copies of the stream up to that one; before them what its device's default stream has to do. */
static void make(struct stream *stream, uint64_t until)
{
    size_t kept = 0;
    for (size_t i = 0; i < fill_count; i++) {
        if (fills[i].device == stream->device && !stream->is_apart)
            memset(reach(fills[i].to), fills[i].value, fills[i].size);
        else
            fills[kept++] = fills[i];
    }
    fill_count = kept;
    kept = 0;
    for (size_t i = 0; i < copy_count; i++) {
        struct copy *copy = &copies[i];
        if (copy->stream != stream || stream->made >= until) {
            copies[kept++] = *copy;
            continue;
        }
        stream->made++;
        memmove(reach(copy->to), reach(copy->from), copy->size);
        numbers[FAKE_CUDA_COPIES]++;
    }
    copy_count = kept;
}

/* ---- for tests ---- */

void fake_cuda_fill_later(uint64_t address, size_t size, int value)
{
    enter();
    const struct allocation *there = find(address);
    if (fill_count == FILLS || there == NULL || !is_whole(address, size))
        abort();
    fills[fill_count++] = (struct fill){there->device, value, address, size};
    leave(SUCCESS);
}

uint64_t fake_cuda_allocate(size_t size, int device, int is_managed)
{
    uint64_t address = 0, whole = (size + UNIT - 1) & ~(uint64_t)(UNIT - 1);
    enter();
    if (allocation_count < ALLOCATIONS && whole <= FAKE_CUDA_ARENA - used[device]) {
        address = (uintptr_t)arena + (uint64_t)device * FAKE_CUDA_ARENA + used[device];
        used[device] += whole;
        allocations[allocation_count++] = (struct allocation){address, size, ++last_id, true, is_managed != 0, device};
    }
    leave(0);
    return address;
}

void fake_cuda_free(uint64_t address)
{
    enter();
    struct allocation *there = find(address);
    if (there != NULL)
        there->is_live = false;
    leave(0);
}

void fake_cuda_renew(uint64_t address)
{
    enter();
    struct allocation *there = find(address);
    if (there != NULL)
        there->id = ++last_id;
    leave(0);
}

void *fake_cuda_seen(uint64_t address)
{
    return reach(address);
}

void fake_cuda_fail(int call, unsigned after, unsigned times, int code)
{
    enter();
    failures[call].after = after;
    failures[call].times = times;
    failures[call].code = code;
    leave(0);
}

void fake_cuda_ordering(int ordering)
{
    enter();
    write_ordering = ordering;
    leave(0);
}

void fake_cuda_hold(int shall_hold)
{
    is_held = shall_hold != 0;
}

uint64_t fake_cuda_number(int number)
{
    enter();
    uint64_t value = number == FAKE_CUDA_PENDING ? copy_count : number == FAKE_CUDA_DEPTH ? depth : numbers[number];
    leave(0);
    return value;
}

/* ---- the driver's functions ---- */

API int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uint64_t address);
int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uint64_t address)
{
    enter();
    numbers[FAKE_CUDA_ASKED]++;
    int code = injected(FAKE_CUDA_ATTRIBUTES);
    const struct allocation *there = is_ours(address) ? find(address) : NULL;
    bool is_there = there != NULL && there->is_live;
    for (unsigned i = 0; code == SUCCESS && i < count; i++) {
        switch (attributes[i]) {
        case 2:
            *(unsigned *)data[i] = is_there ? 2 : 0;
            break;
        case 7:
            *(uint64_t *)data[i] = is_there ? there->id : 0;
            break;
        case 8:
            *(bool *)data[i] = is_there && there->is_managed;
            break;
        case 9:
            *(int *)data[i] = is_there ? there->device : -2;
            break;
        case 11:
            *(uint64_t *)data[i] = is_there ? there->from : 0;
            break;
        case 12:
            *(size_t *)data[i] = is_there ? there->size : 0;
            break;
        default:
            code = INVALID_VALUE;
        }
    }
    return leave(code);
}

API int cuDeviceGet(int *device, int number);
int cuDeviceGet(int *device, int number)
{
    enter();
    int code = injected(FAKE_CUDA_DEVICE);
    *device = number;
    return leave(code != SUCCESS ? code : number < FAKE_CUDA_DEVICES ? SUCCESS : INVALID_DEVICE);
}

API int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts[device];
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
    if (depth == DEPTH)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

API int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
    if (depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}

/* Locked. The device whose context is current; -1: none. */
static int current(void)
{
    return depth == 0 ? -1 : (int)((int *)stack[depth - 1] - contexts);
}

API int cuStreamCreate(void **made, unsigned flags);
int cuStreamCreate(void **made, unsigned flags)
{
    enter();
    int code = injected(FAKE_CUDA_STREAM);
    if (current() < 0 || flags > 1)
        code = mistake(INVALID_CONTEXT);
    struct stream *stream = code == SUCCESS ? calloc(1, sizeof(*stream)) : NULL;
    if (stream != NULL)
        *stream = (struct stream){.device = current(), .is_apart = flags == 1};
    *made = stream;
    return leave(code);
}

API int cuStreamSynchronize(void *handle);
int cuStreamSynchronize(void *handle)
{
    struct stream *stream = handle;
    while (is_held && !stream->is_apart)
        usleep(1000);
    enter();
    int code = injected(FAKE_CUDA_WAIT);
    if (current() < 0)
        code = mistake(INVALID_CONTEXT);
    make(stream, stream->started);
    return leave(code);
}

API int cuStreamDestroy_v2(void *handle);
int cuStreamDestroy_v2(void *handle)
{
    struct stream *stream = handle;
    enter();
    if (stream->made < stream->started)
        (void)mistake(0);
    make(stream, stream->started);
    free(stream);
    return leave(SUCCESS);
}

API int cuEventCreate(void **made, unsigned flags);
int cuEventCreate(void **made, unsigned flags)
{
    (void)flags;
    struct event *event = calloc(1, sizeof(*event));
    if (event != NULL)
        event->device = current();
    *made = event;
    return event == NULL ? OUT_OF_MEMORY : current() < 0 ? mistake(INVALID_CONTEXT) : SUCCESS;
}

API int cuEventDestroy_v2(void *event);
int cuEventDestroy_v2(void *event)
{
    free(event);
    return SUCCESS;
}

#ifndef FAKE_CUDA_OLD
API int cuEventRecord(void *handle, void *stream);
int cuEventRecord(void *handle, void *stream)
{
    struct event *event = handle;
    enter();
    if (current() < 0 || event->device != ((struct stream *)stream)->device)
        return leave(mistake(INVALID_CONTEXT));
    event->stream = stream;
    event->until = event->stream->started;
    return leave(SUCCESS);
}
#endif

API int cuEventSynchronize(void *handle);
int cuEventSynchronize(void *handle)
{
    struct event *event = handle;
    enter();
    int code = injected(FAKE_CUDA_WAIT);
    if (current() < 0)
        code = mistake(INVALID_CONTEXT);
    if (event->stream != NULL) /* of one that was never recorded there is nothing to wait for */
        make(event->stream, event->until);
    return leave(code);
}

API int cuEventQuery(void *handle);
int cuEventQuery(void *handle)
{
    struct event *event = handle;
    enter();
    int code = current() < 0 ? mistake(INVALID_CONTEXT) : is_held && event->stream != NULL ? NOT_READY : SUCCESS;
    if (code == SUCCESS && event->stream != NULL)
        make(event->stream, event->until);
    return leave(code);
}

API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *handle);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *handle)
{
    struct stream *stream = handle;
    enter();
    int code = injected(FAKE_CUDA_COPY);
    if (current() < 0)
        code = mistake(INVALID_CONTEXT);
    else if (code == SUCCESS && (!is_whole(to, size) || !is_whole(from, size)))
        code = INVALID_VALUE;
    if (code != SUCCESS)
        return leave(code);
    if (copy_count == COPIES)
        make(stream, stream->started);
    if (copy_count == COPIES)
        return leave(mistake(OUT_OF_MEMORY));
    copies[copy_count++] = (struct copy){stream, to, from, size};
    stream->started++;
    if (size > numbers[FAKE_CUDA_LONGEST])
        numbers[FAKE_CUDA_LONGEST] = size;
    return leave(SUCCESS);
}

API int cuMemHostAlloc(void **made, size_t size, unsigned flags);
int cuMemHostAlloc(void **made, size_t size, unsigned flags)
{
    enter();
    int code = injected(FAKE_CUDA_HOST_ALLOCATE);
    if (current() < 0 || flags != 1) /* of one context only */
        code = mistake(INVALID_CONTEXT);
    size_t *memory = code == SUCCESS ? aligned_alloc(UNIT, size + UNIT) : NULL;
    if (memory == NULL)
        return leave(code != SUCCESS ? code : OUT_OF_MEMORY);
    memory[0] = size;
    *made = (uint8_t *)memory + UNIT;
    numbers[FAKE_CUDA_PINNED] += size;
    return leave(SUCCESS);
}

API int cuMemFreeHost(void *memory);
int cuMemFreeHost(void *memory)
{
    size_t *start_of = (size_t *)(void *)((uint8_t *)memory - UNIT);
    enter();
    numbers[FAKE_CUDA_PINNED] -= start_of[0];
    free(start_of);
    return leave(SUCCESS);
}

/* ---- those that not every driver has ---- */

API int cuDeviceGetPCIBusId(char *text, int size, int device);
int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    static const char *const addresses[] = {"0000:17:00.0", "0000:65:00.0"};
    if (size < 13 || device >= FAKE_CUDA_DEVICES)
        return INVALID_VALUE;
    memcpy(text, addresses[device], 13);
    return SUCCESS;
}

API int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type, unsigned long long flags);
int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type, unsigned long long flags)
{
    enter();
    int code = type != 1 || flags != 0 || current() < 0 || !is_whole(address, size) ? INVALID_VALUE : SUCCESS;
    leave(code);
    if (code == SUCCESS)
        *(int *)handle = memfd_create("fake-dmabuf", MFD_CLOEXEC);
    return code;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (device >= FAKE_CUDA_DEVICES || (attribute != 117 && attribute != 118))
        return INVALID_VALUE;
    *value = attribute == 117 ? 1 : write_ordering;
    return SUCCESS;
}

API int cuFlushGPUDirectRDMAWrites(int target, int scope);
int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    enter();
    int code = current() < 0 ? mistake(INVALID_CONTEXT) : target != 0 || scope != 100 ? INVALID_VALUE : SUCCESS;
    numbers[FAKE_CUDA_FLUSHES] += code == SUCCESS;
    return leave(code);
}
