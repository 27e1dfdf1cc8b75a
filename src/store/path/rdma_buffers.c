/* Memory of the caller's that is registered at the RDMA devices, in the order of its addresses. */
#include "store/path/rdma_buffers.h"

#include "base/error.h"
#include "env/log.h"
#include "env/thread.h"
#include "gpu/gpu.h"
#include "store/path/path.h"
#include "store/path/paths.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mc_rdma_buffers {
    struct mc_rdma *rdma;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t given; /* one that is leaving has no user any more */
    struct mc_rdma_buffer **list;
    size_t count, capacity;
    _Atomic size_t gpu_count; /* of them a GPU's; read without the lock */
};

struct mc_rdma_buffers *mc_rdma_buffers_create(struct mc_rdma *rdma)
{
    struct mc_rdma_buffers *buffers = calloc(1, sizeof(*buffers));
    if (buffers == NULL)
        return NULL;
    buffers->rdma = rdma;
    mc_monitor_init(&buffers->lock, &buffers->given);
    return buffers;
}

static void buffer_free(struct mc_rdma_buffer *buffer)
{
    (void)mc_rdma_memory_unregister(buffer->memory);
    free(buffer);
}

void mc_rdma_buffers_free(struct mc_rdma_buffers *buffers)
{
    if (buffers == NULL)
        return;
    for (size_t i = 0; i < buffers->count; i++)
        buffer_free(buffers->list[i]);
    mc_monitor_destroy(&buffers->lock, &buffers->given);
    free(buffers->list);
    free(buffers);
}

/* How many begin at that address or before it. */
static size_t count_up_to(const struct mc_rdma_buffers *buffers, uintptr_t address)
{
    size_t low = 0, high = buffers->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (buffers->list[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void reach_again(struct mc_rdma_buffers *buffers, size_t from)
{
    for (size_t i = from; i < buffers->count; i++) {
        uintptr_t before = i == 0 ? 0 : buffers->list[i - 1]->reach, end = buffers->list[i]->end;
        buffers->list[i]->reach = end > before ? end : before;
    }
}

static bool has_room(struct mc_rdma_buffers *buffers)
{
    if (buffers->count < buffers->capacity)
        return true;
    size_t capacity = buffers->capacity == 0 ? 64 : buffers->capacity * 2;
    struct mc_rdma_buffer **grown = realloc(buffers->list, capacity * sizeof(struct mc_rdma_buffer *));
    if (grown == NULL)
        return false;
    buffers->list = grown;
    buffers->capacity = capacity;
    return true;
}

static int buffers_take_in(struct mc_rdma_buffers *buffers, const struct mc_rdma_range *range)
{
    struct mc_rdma_buffer *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_rdma_memory_register(buffers->rdma, range, &made->memory);
    if (rc < 0) {
        free(made);
        return rc;
    }
    if (!mc_rdma_memory_is_everywhere(made->memory)) { /* else all depended on the devices that took it */
        buffer_free(made);
        return MC_ERR_TRANSFER_FAIL;
    }
    made->start = (uintptr_t)range->address;
    made->end = made->start + range->length;
    made->is_gpu = range->is_gpu;
    made->gpu_allocation = range->is_gpu ? mc_gpu_allocation(range->address) : 0;
    pthread_mutex_lock(&buffers->lock);
    bool is_there = has_room(buffers);
    if (is_there) {
        size_t at = count_up_to(buffers, made->start);
        memmove(buffers->list + at + 1, buffers->list + at, (buffers->count - at) * sizeof(struct mc_rdma_buffer *));
        buffers->list[at] = made;
        buffers->count++;
        buffers->gpu_count += made->is_gpu;
        reach_again(buffers, at);
    }
    pthread_mutex_unlock(&buffers->lock);
    if (!is_there)
        buffer_free(made);
    return is_there ? 0 : MC_ERR_NO_MEMORY;
}

/* A GPU's: as the dma-buf that its driver exports, or by its address, where the kernel has a module for that. */
static int buffers_take_in_gpu(struct mc_rdma_buffers *buffers, struct mc_paths *paths, struct mc_rdma_range *range,
                               int device)
{
    char location[16], bus_id[32];
    snprintf(location, sizeof(location), "cuda:%d", device);
    range->is_gpu = true;
    range->numa_node = -1;
    range->location = location;
    range->bus_id = mc_gpu_pci_address(device, bus_id, sizeof(bus_id)) == 0 ? bus_id : NULL;
    range->dmabuf_fd = mc_gpu_dmabuf(range->address, range->length, &range->dmabuf_offset);
    int place = range->dmabuf_fd < 0 ? -1 : mc_paths_fd_add(paths, range->dmabuf_fd);
    int rc = buffers_take_in(buffers, range);
    if (place >= 0)
        mc_paths_fd_close(paths, place);
    else
        mc_fd_close(range->dmabuf_fd);
    if (rc < 0)
        mc_log(WARNING,
               "%llu bytes of GPU %d at %p are not read and written in place by RDMA devices (%s): they pass "
               "through host memory",
               (unsigned long long)range->length, device, range->address, mc_error_name(rc));
    return rc;
}

int mc_rdma_buffers_add(struct mc_rdma_buffers *buffers, struct mc_paths *paths, void *base, uint64_t size)
{
    struct mc_gpu_finder finder = {0};
    struct mc_gpu_place place = mc_gpu_find(&finder, base);
    struct mc_rdma_range range = {.address = base, .length = size, .dmabuf_fd = -1, .numa_node = MC_RDMA_NODE_SOUGHT};
    switch (place.kind) {
    case MC_GPU_HOST:
        return buffers_take_in(buffers, &range);
    case MC_GPU_MEMORY:
        return buffers_take_in_gpu(buffers, paths, &range, place.number);
    default:
        return 0; /* the driver moves it about */
    }
}

int mc_rdma_buffers_remove(struct mc_rdma_buffers *buffers, const void *base)
{
    pthread_mutex_lock(&buffers->lock);
    size_t at = count_up_to(buffers, (uintptr_t)base);
    struct mc_rdma_buffer *gone = at > 0 ? buffers->list[at - 1] : NULL;
    if (gone == NULL || gone->start != (uintptr_t)base) {
        pthread_mutex_unlock(&buffers->lock);
        return 0;
    }
    gone->is_leaving = true;
    while (gone->users > 0)
        pthread_cond_wait(&buffers->given, &buffers->lock);
    pthread_mutex_unlock(&buffers->lock);
    int rc = mc_rdma_memory_unregister(gone->memory);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&buffers->lock);
    at = count_up_to(buffers, (uintptr_t)base); /* others may have come before it */
    mc_assert(at > 0 && buffers->list[at - 1] == gone);
    buffers->count--;
    buffers->gpu_count -= gone->is_gpu;
    memmove(buffers->list + at - 1, buffers->list + at, (buffers->count - at + 1) * sizeof(struct mc_rdma_buffer *));
    reach_again(buffers, at - 1);
    pthread_mutex_unlock(&buffers->lock);
    free(gone);
    return 0;
}

struct mc_rdma_buffer *mc_rdma_buffers_hold(struct mc_rdma_buffers *buffers, const void *address, uint64_t length)
{
    struct mc_rdma_buffer *found = NULL;
    uintptr_t start = (uintptr_t)address, end = start + length;
    if (end < start)
        return NULL;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = count_up_to(buffers, start); found == NULL && i > 0 && buffers->list[i - 1]->reach >= end; i--)
        if (buffers->list[i - 1]->end >= end && !buffers->list[i - 1]->is_leaving)
            found = buffers->list[i - 1];
    if (found != NULL)
        found->users++;
    pthread_mutex_unlock(&buffers->lock);
    return found;
}

void mc_rdma_buffers_give(struct mc_rdma_buffers *buffers, struct mc_rdma_buffer **held, size_t count)
{
    if (count == 0)
        return;
    bool is_last = false;
    pthread_mutex_lock(&buffers->lock);
    for (size_t i = 0; i < count; i++)
        is_last |= --held[i]->users == 0;
    if (is_last)
        pthread_cond_broadcast(&buffers->given);
    pthread_mutex_unlock(&buffers->lock);
}

/* Of the start alone, which is what was asked when it was registered: an id of 0 says nothing. */
static bool is_what_it_was(const struct mc_rdma_buffer *buffer)
{
    return buffer->gpu_allocation == 0 || mc_gpu_allocation((const void *)buffer->start) == buffer->gpu_allocation;
}

bool mc_rdma_buffers_reach(struct mc_rdma_buffers *buffers, const struct iovec *parts, size_t count)
{
    struct mc_rdma_buffer *held = NULL;
    bool is_reached = buffers != NULL && atomic_load_explicit(&buffers->gpu_count, memory_order_relaxed) > 0;
    for (size_t i = 0; i < count && is_reached; i++) {
        uintptr_t start = (uintptr_t)parts[i].iov_base;
        size_t length = parts[i].iov_len;
        if (length == 0 || (held != NULL && start >= held->start && start < held->end && length <= held->end - start))
            continue;
        if (held != NULL)
            mc_rdma_buffers_give(buffers, &held, 1);
        held = mc_rdma_buffers_hold(buffers, parts[i].iov_base, length);
        is_reached = held != NULL && held->is_gpu && is_what_it_was(held);
    }
    if (held != NULL)
        mc_rdma_buffers_give(buffers, &held, 1);
    return is_reached;
}
