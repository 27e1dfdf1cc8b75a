/* Registration of memory at every device in use, in pieces that all of them take. */
#include "rdma/device.h"

#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARALLEL_MIN ((uint64_t)64 << 20) /* less is registered faster than a thread starts */
#define PIECE_UNIT ((uint64_t)2 << 20)    /* pieces end at borders of huge pages, where limits allow */
#define OF_NODE 1ul                       /* MPOL_F_NODE and MPOL_F_ADDR of get_mempolicy(2): where an address lies */
#define OF_ADDRESS 2ul

/* Of a GPU: as an exported descriptor, or by address, if the kernel has a module for it. Of the host: by address. */
enum register_kind { BY_ADDRESS, BY_DMABUF };

struct mc_rdma_memory {
    struct mc_rdma *rdma;
    struct mc_rdma_range range;
    uint32_t chunk_count;
    struct mc_rdma_chunk *local, *remote; /* chunk_count each */
    struct ibv_mr **regions;              /* device_count times chunk_count; NULL: none */
};

struct registering { /* at one device, perhaps on a thread of its own */
    struct mc_rdma_memory *memory;
    struct mc_rdma_device *device;
    enum register_kind kind;
    int error; /* an errno; 0: all pieces are registered */
    pthread_t thread;
    bool has_thread;
};

/* ---- pieces ---- */

static uint64_t piece_bytes(const struct mc_rdma *rdma)
{
    uint64_t most = (uint64_t)rdma->settings.mr_bytes;
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        uint64_t limit = rdma->devices[i].attributes.max_mr_size;
        if (limit != 0 && limit < most)
            most = limit;
    }
    return most > PIECE_UNIT ? most - most % PIECE_UNIT : most;
}

/* The NUMA node of a page that is there; -1: unknown. */
static int node_of(uintptr_t address)
{
    int node = -1;
    return syscall(SYS_get_mempolicy, &node, NULL, 0ul, (void *)address, OF_NODE | OF_ADDRESS) == 0 ? node : -1;
}

/* The devices near each piece of the range; once it is registered, so that its pages are there. */
static void find_near(struct mc_rdma_memory *memory, const struct mc_rdma_range *range)
{
    struct mc_rdma_range piece = *range;
    for (uint32_t i = 0; i < memory->chunk_count; i++) {
        struct mc_rdma_chunk *chunk = &memory->local[i];
        if (range->numa_node == MC_RDMA_NODE_SOUGHT)
            piece.numa_node = mc_rdma_near_node((uintptr_t)chunk->address, chunk->length, node_of);
        chunk->preferred = memory->remote[i].preferred = mc_rdma_near(memory->rdma, &piece);
    }
}

static struct mc_rdma_memory *memory_make(struct mc_rdma *rdma, const struct mc_rdma_range *range)
{
    uint64_t piece = piece_bytes(rdma), count = range->length / piece + (range->length % piece != 0);
    if (count > MC_RDMA_CHUNKS_MAX)
        return NULL;
    struct mc_rdma_memory *memory = calloc(1, sizeof(*memory));
    struct mc_rdma_chunk *chunks = calloc((size_t)count * 2, sizeof(*chunks));
    struct ibv_mr **regions = calloc((size_t)count * rdma->device_count, sizeof(struct ibv_mr *));
    if (memory == NULL || chunks == NULL || regions == NULL) {
        free(memory);
        free(chunks);
        free(regions);
        return NULL;
    }
    *memory = (struct mc_rdma_memory){.rdma = rdma,
                                      .range = *range,
                                      .chunk_count = (uint32_t)count,
                                      .local = chunks,
                                      .remote = chunks + count,
                                      .regions = regions};
    memory->range.location = memory->range.bus_id = NULL; /* the caller's */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t offset = i * piece, left = range->length - offset;
        chunks[i] = (struct mc_rdma_chunk){.address = (uintptr_t)range->address + offset,
                                           .length = left < piece ? left : piece,
                                           .is_gpu = range->is_gpu};
        chunks[count + i] = chunks[i];
    }
    return memory;
}

static void memory_free(struct mc_rdma_memory *memory)
{
    free(memory->regions);
    free(memory->local);
    free(memory);
}

/* ---- at one device ---- */

static struct ibv_mr **region_of(const struct mc_rdma_memory *memory, const struct mc_rdma_device *device,
                                 uint32_t chunk)
{
    return &memory->regions[(size_t)device->number * memory->chunk_count + chunk];
}

/* False: some of it is still there, and may be tried again. A device that is lost reaches no memory. */
static bool deregister_at(const struct mc_rdma_memory *memory, const struct mc_rdma_device *device)
{
    bool is_gone = true;
    for (uint32_t i = 0; i < memory->chunk_count; i++) {
        struct ibv_mr **region = region_of(memory, device, i);
        int rc = *region == NULL ? 0 : memory->rdma->verbs->dereg_mr(*region);
        if (rc != 0) /* the peers' access has not ended: nobody must think that it has */
            mc_log(ERROR, "RDMA device %s does not let go of memory: %s", device->name, strerror(rc));
        if (rc == 0 || device->is_lost)
            *region = NULL;
        else
            is_gone = false;
    }
    return is_gone;
}

static struct ibv_mr *register_piece(const struct registering *job, const struct mc_rdma_chunk *chunk, unsigned access)
{
    const struct mc_verbs *verbs = job->memory->rdma->verbs;
    const struct mc_rdma_range *range = &job->memory->range;
    uint64_t offset = chunk->address - (uintptr_t)range->address;
    if (job->kind == BY_DMABUF)
        return verbs->reg_dmabuf_mr(job->device->pd, range->dmabuf_offset + offset, (size_t)chunk->length,
                                    chunk->address, range->dmabuf_fd, (int)access);
    if (job->device->has_relaxed_ordering)
        access |= IBV_ACCESS_RELAXED_ORDERING;
    return verbs->reg_mr(verbs, job->device->pd, (char *)range->address + offset, (size_t)chunk->length, access);
}

static void *register_at(void *argument)
{
    struct registering *job = argument;
    const struct mc_rdma_range *range = &job->memory->range;
    unsigned access = IBV_ACCESS_LOCAL_WRITE; /* READs of ours land here */
    if (range->is_remote_readable)
        access |= IBV_ACCESS_REMOTE_READ;
    /* With iWARP the answer to a READ of ours is a write of the peer's, so all memory takes such. */
    if (range->is_remote_writable || job->device->fabric == MC_RDMA_IWARP)
        access |= IBV_ACCESS_REMOTE_WRITE;
    job->error = 0;
    for (uint32_t i = 0; i < job->memory->chunk_count && job->error == 0; i++) {
        errno = 0;
        struct ibv_mr *region = register_piece(job, &job->memory->local[i], access);
        *region_of(job->memory, job->device, i) = region;
        if (region == NULL)
            job->error = errno != 0 ? errno : EIO;
    }
    if (job->error != 0)
        (void)deregister_at(job->memory, job->device);
    return NULL;
}

/* ---- at all ---- */

static void complain(const struct registering *job)
{
    const struct mc_rdma_range *range = &job->memory->range;
    struct rlimit limit = {0, 0};
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    char hint[96] = "";
    if (range->is_gpu)
        snprintf(hint, sizeof(hint), "; GPU memory needs dma-buf or the peer memory module");
    else if ((job->error == ENOMEM || job->error == EAGAIN) && limit.rlim_cur != RLIM_INFINITY)
        snprintf(hint, sizeof(hint), "; RLIMIT_MEMLOCK is %llu KiB (ulimit -l), unlimited is wanted",
                 (unsigned long long)limit.rlim_cur / 1024);
    mc_log(WARNING, "RDMA device %s does not register %llu bytes%s: %s%s", job->device->name,
           (unsigned long long)range->length, job->kind == BY_DMABUF ? " by dma-buf" : "", strerror(job->error), hint);
}

/* Registers as one kind at every device. Mask of those that did; *error: of one that did not. */
static uint32_t register_as(struct mc_rdma_memory *memory, enum register_kind kind, int *error)
{
    struct mc_rdma *rdma = memory->rdma;
    struct registering jobs[MC_RDMA_DEVICES_MAX];
    int64_t wish = rdma->settings.parallel_registration;
    bool is_parallel = rdma->device_count > 1 && (wish == 1 || (wish < 0 && memory->range.length >= PARALLEL_MIN));
    uint32_t mask = 0;
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        jobs[i] = (struct registering){.memory = memory, .device = &rdma->devices[i], .kind = kind};
        jobs[i].has_thread = is_parallel && mc_thread_start(&jobs[i].thread, "mc-rdma-reg", register_at, &jobs[i]) == 0;
        if (!jobs[i].has_thread)
            (void)register_at(&jobs[i]);
    }
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        if (jobs[i].has_thread)
            (void)pthread_join(jobs[i].thread, NULL);
        if (jobs[i].error == 0) {
            mask |= 1u << i;
        } else {
            *error = jobs[i].error;
            complain(&jobs[i]);
        }
    }
    return mask;
}

static void take_keys(struct mc_rdma_memory *memory, uint32_t mask)
{
    for (uint32_t i = 0; i < memory->chunk_count; i++) {
        memory->local[i].valid = memory->remote[i].valid = mask;
        for (uint32_t j = 0; j < memory->rdma->device_count; j++) {
            struct ibv_mr *region = *region_of(memory, &memory->rdma->devices[j], i);
            memory->local[i].keys[j] = region != NULL ? region->lkey : 0;
            memory->remote[i].keys[j] = region != NULL ? region->rkey : 0;
        }
    }
}

int mc_rdma_memory_register(struct mc_rdma *rdma, const struct mc_rdma_range *range, struct mc_rdma_memory **memory)
{
    if (range->length == 0 || range->length - 1 > UINTPTR_MAX - (uintptr_t)range->address)
        return MC_ERR_INVALID_PARAMS;
    struct mc_rdma_memory *made = memory_make(rdma, range);
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    int error = 0;
    uint32_t mask = 0;
    if (range->is_gpu && range->dmabuf_fd >= 0 && rdma->verbs->reg_dmabuf_mr != NULL)
        mask = register_as(made, BY_DMABUF, &error);
    if (mask == 0)
        mask = register_as(made, BY_ADDRESS, &error);
    if (mask == 0) {
        memory_free(made);
        return range->is_gpu                        ? MC_ERR_NOT_SUPPORTED
               : error == ENOMEM || error == EAGAIN ? MC_ERR_NO_MEMORY
                                                    : MC_ERR_TRANSFER_FAIL;
    }
    find_near(made, range);
    take_keys(made, mask);
    *memory = made;
    return 0;
}

int mc_rdma_memory_unregister(struct mc_rdma_memory *memory)
{
    bool is_gone = true;
    for (uint32_t i = 0; i < memory->rdma->device_count; i++)
        is_gone &= deregister_at(memory, &memory->rdma->devices[i]);
    if (!is_gone)
        return MC_ERR_TRANSFER_FAIL;
    memory_free(memory);
    return 0;
}

bool mc_rdma_memory_is_everywhere(const struct mc_rdma_memory *memory)
{
    const struct mc_rdma *rdma = memory->rdma;
    for (uint32_t i = 0; i < rdma->device_count; i++)
        if ((memory->local[0].valid >> i & 1) == 0 && !rdma->devices[i].is_lost)
            return false;
    return true;
}

struct mc_rdma_chunks mc_rdma_memory_local(const struct mc_rdma_memory *memory)
{
    return (struct mc_rdma_chunks){memory->local, memory->chunk_count};
}

struct mc_rdma_chunks mc_rdma_memory_remote(const struct mc_rdma_memory *memory)
{
    return (struct mc_rdma_chunks){memory->remote, memory->chunk_count};
}
