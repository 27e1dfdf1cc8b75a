/* Registering memory and taking it back; memory of our own; the document that names it. */
#include "transfer/peer/rdma_lane.h"
#include "transfer/serve/memory.h"
#include "transfer/serve/publish.h"
#include "transfer/serve/service.h"
#include "transfer/state/engine.h"
#include "transfer/state/host_table.h"
#include "transfer/state/region.h"
#include "transfer/wire/document.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u

/* ---- holding ---- */

static struct mc_region *hold(struct mc_transfer_engine *engine, uint64_t address, uint64_t length, bool is_to_sum)
{
    pthread_mutex_lock(&engine->lock);
    struct mc_region *region = is_to_sum && engine->is_leaving ? mc_region_find_any(&engine->regions, address, length)
                                                               : mc_region_find(&engine->regions, address, length);
    if (region != NULL)
        region->in_flight++;
    pthread_mutex_unlock(&engine->lock);
    return region;
}

struct mc_region *mc_transfer_hold(struct mc_transfer_engine *engine, uint64_t address, uint64_t length)
{
    return hold(engine, address, length, false);
}

struct mc_region *mc_transfer_hold_to_sum(struct mc_transfer_engine *engine, uint64_t address, uint64_t length)
{
    return hold(engine, address, length, true);
}

/* Without the lock, as peers' speed depends on it; who waits looks again and again. After the count has fallen the
 * region may be gone. */
void mc_transfer_release(struct mc_transfer_engine *engine, struct mc_region *region)
{
    (void)engine;
    mc_assert(atomic_fetch_sub(&region->in_flight, 1) > 0);
}

bool mc_transfer_contains(struct mc_transfer_engine *engine, uint64_t address, uint64_t length)
{
    if (!mc_transfer_alive(engine))
        return false;
    pthread_mutex_lock(&engine->lock);
    bool contains = mc_region_find(&engine->regions, address, length) != NULL;
    pthread_mutex_unlock(&engine->lock);
    return contains;
}

/* ---- the document ---- */

static void render_rdma(const struct mc_transfer_engine *engine, struct mc_buffer *out)
{
    struct mc_buffer devices = {0};
    mc_rdma_put_devices(engine->rdma, &devices);
    mc_rdma_remote_begin(out, mc_span(devices.data, devices.length));
    for (const struct mc_region *one = engine->regions.first; one != NULL; one = one->next)
        if (one->rdma != NULL && !one->is_leaving)
            mc_rdma_remote_region(out, mc_rdma_memory_remote(one->rdma));
    mc_rdma_remote_end(out);
    mc_buffer_free(&devices);
}

/* Changes with the regions, and with the devices' addresses. */
static uint64_t version_of(const struct mc_transfer_engine *engine)
{
    return engine->regions.version + 1 + (engine->rdma == NULL ? 0 : mc_rdma_version(engine->rdma));
}

/* Sums are made of what the kernel copies: memory that is registered and was freed must not end this process. Some
 * systems forbid that to their containers. */
static bool can_sum(void)
{
    char from = 1, to = 0;
    struct iovec near = {&to, 1}, far = {&from, 1};
    return process_vm_readv(getpid(), &near, 1, &far, 1, 0) == 1 && to == from;
}

static void render(struct mc_transfer_engine *engine)
{
    struct mc_buffer rdma = {0};
    uint64_t version = version_of(engine); /* before what it is about: a change meanwhile renders again */
    struct mc_document document = {.is_tcp = true,
                                   .data_port = engine->data_port,
                                   .data_version = 2,
                                   .host = engine->host_id,
                                   .id = engine->id,
                                   .can_cut = true,
                                   .can_mean = true,
                                   .can_sum = can_sum(),
                                   .rpc_port = engine->rpc_port,
                                   .buffer_count = 0};
    char timestamp[64] = "";
    struct timespec now;
    struct tm parts;
    snprintf(document.name, sizeof(document.name), "%s", engine->name);
    snprintf(document.data_host, sizeof(document.data_host), "%s", engine->host);
    snprintf(document.unix_name, sizeof(document.unix_name), "%s", engine->unix_name);
    document.buffers = calloc(engine->regions.count + 1, sizeof(*document.buffers));
    struct mc_gpu_place *places = calloc(engine->regions.count + 1, sizeof(*places));
    document.places = places;
    for (const struct mc_region *one = engine->regions.first; one != NULL && document.buffers != NULL;
         one = one->next) {
        if (places != NULL)
            places[document.buffer_count] = one->place;
        document.buffers[document.buffer_count++] = (struct mc_transfer_range){one->address, one->length};
    }
    clock_gettime(CLOCK_REALTIME, &now);
    if (localtime_r(&now.tv_sec, &parts) != NULL)
        (void)strftime(timestamp, sizeof(timestamp), "%Y-%m-%d %H:%M:%S", &parts);
    if (engine->rdma != NULL)
        render_rdma(engine, &rdma);
    document.rdma = mc_span(rdma.data, rdma.length);
    engine->document.length = 0;
    mc_document_write(&engine->document, &document, timestamp);
    engine->document_version = version;
    mc_document_free(&document);
    mc_buffer_free(&rdma);
    free(places);
}

uint64_t mc_transfer_document(struct mc_transfer_engine *engine, struct mc_buffer *out)
{
    pthread_mutex_lock(&engine->lock);
    if (engine->document_version != version_of(engine))
        render(engine);
    mc_buffer_append(out, engine->document.data, engine->document.length);
    uint64_t version = engine->document_version;
    pthread_mutex_unlock(&engine->lock);
    return version;
}

uint64_t mc_transfer_document_version(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t version = version_of(engine);
    pthread_mutex_unlock(&engine->lock);
    return version;
}

/* ---- registering ---- */

struct fresh { /* what is being registered */
    const struct mc_transfer_range *ranges;
    size_t count;
    const char *location; /* "": to be found out */
    bool is_managed;
    int memory_fd; /* the engine's from now on when all went well; -1: none */
};

static void show(struct mc_transfer_engine *engine, struct mc_region *const *regions, const struct mc_gpu_place *places,
                 const struct fresh *fresh)
{
    for (size_t i = 0; i < fresh->count; i++) {
        regions[i]->is_managed = fresh->is_managed;
        regions[i]->memory_fd = fresh->memory_fd;
        if (strlen(fresh->location) < sizeof(regions[i]->location)) /* no longer one is known */
            snprintf(regions[i]->location, sizeof(regions[i]->location), "%s", fresh->location);
        if (places != NULL)
            regions[i]->place = places[i];
        /* The kernel cannot copy a device's memory for another process: peers use rdma, or ask us over tcp. */
        if (regions[i]->place.kind != MC_GPU_HOST)
            mc_region_hide(&engine->regions, regions[i]);
        if (engine->host_table != NULL && regions[i]->slot != MC_REGION_NO_SLOT)
            mc_host_entry_set(engine->host_table, regions[i]);
    }
}

static const char *why(int rc)
{
    return rc == MC_TRANSFER_ERR_ADDRESS_OVERLAPPED ? "memory overlaps with what is registered already"
           : rc == MC_TRANSFER_ERR_MEMORY           ? "out of memory, or too many ranges"
                                                    : "a length of zero, or a range that no address space holds";
}

/* Pins the regions' pages, without the lock; then peers are told. A region that no RDMA device takes, as a GPU's may
 * be, is reached by tcp. */
static void pin(struct mc_transfer_engine *engine, const struct mc_transfer_range *ranges, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct mc_region *region = mc_transfer_hold(engine, ranges[i].address, ranges[i].length);
        if (region == NULL)
            continue; /* unregistered meanwhile, by another thread */
        if (region->place.kind == MC_GPU_MEMORY)
            atomic_fetch_or(&engine->direct_devices, 1ull << region->place.number);
        struct mc_rdma_memory *memory =
            mc_rdma_take_in(engine->rdma, ranges[i].address, ranges[i].length, region->place, region->location);
        pthread_mutex_lock(&engine->lock);
        bool is_first = region->rdma == NULL;
        if (is_first)
            region->rdma = memory;
        engine->regions.version++;
        pthread_mutex_unlock(&engine->lock);
        if (!is_first && memory != NULL)
            (void)mc_rdma_memory_unregister(memory); /* another thread's registering met the coming of the devices */
        mc_transfer_release(engine, region);
    }
}

int mc_memory_pin_all(struct mc_transfer_engine *engine)
{
    size_t count = 0;
    pthread_mutex_lock(&engine->lock);
    struct mc_transfer_range *ranges = malloc((engine->regions.count + 1) * sizeof(*ranges));
    for (const struct mc_region *one = engine->regions.first; ranges != NULL && one != NULL; one = one->next)
        if (one->rdma == NULL)
            ranges[count++] = (struct mc_transfer_range){one->address, one->length};
    engine->regions.version++; /* with no region, too: peers are told of the devices */
    pthread_mutex_unlock(&engine->lock);
    if (ranges == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    pin(engine, ranges, count);
    free(ranges);
    return 0;
}

/* Whose memory the ranges are; NULL: the host's, as there is no device (or no memory to say so: *rc). */
static struct mc_gpu_place *find_places(const struct mc_transfer_range *ranges, size_t count, int *rc)
{
    mc_gpu_look();
    if (!mc_gpu_is_there())
        return NULL;
    struct mc_gpu_place *places = malloc((count + 1) * sizeof(*places));
    *rc = places == NULL ? MC_TRANSFER_ERR_MEMORY : 0;
    for (size_t i = 0; places != NULL && i < count; i++)
        places[i] = mc_gpu_note((const void *)(uintptr_t)ranges[i].address, (size_t)ranges[i].length);
    return places;
}

static int regions_add(struct mc_transfer_engine *engine, const struct fresh *fresh)
{
    const struct mc_transfer_range *ranges = fresh->ranges;
    size_t count = fresh->count;
    int rc = 0;
    struct mc_gpu_place *places = find_places(ranges, count, &rc);
    struct mc_region *one, **regions = count == 1 ? &one : malloc((count + 1) * sizeof(struct mc_region *));
    if (regions == NULL || rc < 0) {
        rc = MC_TRANSFER_ERR_MEMORY;
        goto done;
    }
    pthread_mutex_lock(&engine->lock);
    rc = mc_region_add(&engine->regions, ranges, count, regions);
    if (rc == 0)
        show(engine, regions, places, fresh);
    pthread_mutex_unlock(&engine->lock);
done:
    for (size_t i = 0; rc < 0 && places != NULL && i < count; i++)
        mc_gpu_forget((const void *)(uintptr_t)ranges[i].address);
    free(places);
    if (regions != &one)
        free(regions);
    if (rc == 0 && engine->rdma != NULL)
        pin(engine, ranges, count);
    if (rc < 0)
        mc_log_limited(ERROR, "registering %zu range(s): %s", count, why(rc));
    return rc;
}

static int leave(struct mc_transfer_engine *engine, uint64_t address);

/* The first address is all that engines of the original ask of a document whose bytes go by tcp, and they ask once: it
 * must stand there before anybody can have heard of it. */
static int publish_added(struct mc_transfer_engine *engine, uint64_t address)
{
    pthread_mutex_lock(&engine->lock);
    bool is_first = engine->regions.first == NULL || engine->regions.first->address == address;
    pthread_mutex_unlock(&engine->lock);
    return mc_transfer_publish_document(engine, !is_first);
}

int mc_transfer_register_at(struct mc_transfer_engine *engine, const struct mc_transfer_range *ranges, size_t count,
                            const char *location)
{
    if (!mc_transfer_alive(engine) || (ranges == NULL && count > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (count == 0)
        return 0;
    struct fresh fresh = {ranges, count, location == NULL ? "" : location, false, -1};
    int rc = regions_add(engine, &fresh);
    if (rc < 0)
        return rc;
    rc = publish_added(engine, ranges[0].address);
    for (size_t i = 0; rc < 0 && i < count; i++)
        (void)leave(engine, ranges[i].address); /* nobody knows of it, so nobody holds it for long */
    return rc;
}

int mc_transfer_register(struct mc_transfer_engine *engine, const struct mc_transfer_range *ranges, size_t count)
{
    return mc_transfer_register_at(engine, ranges, count, NULL);
}

/* ---- taking back ---- */

static void wait_a_little(struct mc_transfer_engine *engine, unsigned ms)
{
    (void)mc_monitor_wait(&engine->lock, &engine->changed, mc_clock_ns() + ms * 1000000ull);
}

/* Can nobody touch the region any more? Its entry in the table is dead already, so no copy begins. */
static bool is_alone(struct mc_transfer_engine *engine, const struct mc_region *region)
{
    return region->in_flight == 0 &&
           (region->slot == MC_REGION_NO_SLOT || !mc_service_is_intended(engine, region->slot));
}

/* With engine->lock held, which is let go while waiting: the region may be gone after each wait, by another thread's
 * unregister. */
static int wait_and_remove(struct mc_transfer_engine *engine, uint64_t address)
{
    uint64_t start_ms = mc_clock_ms(), generation = mc_region_at(&engine->regions, address)->generation;
    for (unsigned pause_ms = 1;; pause_ms = pause_ms < 20 ? pause_ms * 2 : 20) {
        struct mc_region *region = mc_region_at(&engine->regions, address);
        uint64_t waited_ms = mc_clock_ms() - start_ms;
        if (region == NULL || region->generation != generation)
            return MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED;
        if (is_alone(engine, region) && region->rdma != NULL) {
            struct mc_rdma_memory *memory = region->rdma;
            region->rdma = NULL;
            region->in_flight++; /* it stays until we are back */
            pthread_mutex_unlock(&engine->lock);
            /* Peers' requests fail from now on, those under way, too. */
            bool is_kept = mc_rdma_memory_unregister(memory) < 0;
            pthread_mutex_lock(&engine->lock);
            region->in_flight--;
            region->rdma = is_kept ? memory : NULL;
            engine->regions.version += is_kept; /* peers are not told its keys any more */
            if (is_kept)
                return MC_TRANSFER_ERR_BATCH_BUSY;
        }
        if (is_alone(engine, region)) {
            if (region->memory_fd >= 0)
                mc_transfer_close_fd(region->memory_fd); /* who maps it still does */
            mc_region_remove(&engine->regions, region);
            return 0;
        }
        if (waited_ms >= MC_UNREGISTER_WAIT_MS)
            return MC_TRANSFER_ERR_BATCH_BUSY;
        if (region->in_flight > 0 && (waited_ms >= MC_UNREGISTER_GRACE_MS || engine->is_closing))
            mc_service_cut(engine);
        wait_a_little(engine, pause_ms);
    }
}

static int leave(struct mc_transfer_engine *engine, uint64_t address)
{
    int rc = MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED;
    pthread_mutex_lock(&engine->lock);
    struct mc_region *region = mc_region_at(&engine->regions, address);
    if (region != NULL) {
        region->is_leaving = true;
        if (engine->host_table != NULL && region->slot != MC_REGION_NO_SLOT)
            mc_host_entry_clear(engine->host_table, region->slot);
        rc = wait_and_remove(engine, address);
    }
    pthread_mutex_unlock(&engine->lock);
    if (rc == 0)
        mc_gpu_forget((const void *)(uintptr_t)address);
    if (rc == MC_TRANSFER_ERR_BATCH_BUSY)
        mc_log(ERROR,
               "memory at 0x%llx cannot be unregistered: a stopped process of this machine was copying there, or a "
               "device does not let go of it; it must not be freed yet",
               (unsigned long long)address);
    return rc;
}

int mc_transfer_unregister(struct mc_transfer_engine *engine, const uint64_t *addresses, size_t count)
{
    int first = 0;
    if (!mc_transfer_alive(engine) || (addresses == NULL && count > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        int rc = leave(engine, addresses[i]);
        if (rc == MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED)
            mc_log_limited(ERROR, "no registered memory begins at 0x%llx", (unsigned long long)addresses[i]);
        first = first == 0 ? rc : first;
    }
    if (count > 0 && mc_transfer_publish_document(engine, true) < 0 && first == 0)
        first = MC_TRANSFER_ERR_METADATA;
    return first;
}

/* ---- memory of our own ---- */

/* Memory that peers of this machine can map, so that their copies need no system call; or, with *fd -1, private. */
static void *map_memory(const struct mc_transfer_engine *engine, size_t size, int *fd)
{
    void *memory = MAP_FAILED;
    *fd = engine->host_table == NULL ? -1 : memfd_create("mooncake-transfer-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd >= 0) {
        /* It never shrinks: whoever maps it can touch all of it for as long as he likes. */
        if (fchmod(*fd, 0600) == 0 && ftruncate(*fd, (off_t)size) == 0 &&
            fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
            memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        if (memory != MAP_FAILED)
            return memory;
        close(*fd);
        *fd = -1;
    }
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Gives the pages back also where a peer has not let go of its map yet. */
static int unmap_memory(void *memory, size_t size, bool is_shared)
{
    if (is_shared)
        (void)madvise(memory, size, MADV_REMOVE);
    return munmap(memory, size);
}

void *mc_transfer_allocate(struct mc_transfer_engine *engine, size_t length)
{
    int fd;
    if (!mc_transfer_alive(engine) || length == 0 || length > SIZE_MAX / 2)
        return NULL;
    size_t size = (length + PAGE - 1) & ~(size_t)(PAGE - 1);
    void *memory = map_memory(engine, size, &fd);
    if (memory == MAP_FAILED)
        return NULL;
    bool is_shared = fd >= 0;
    mc_transfer_note_fd(fd);
    struct mc_transfer_range range = {(uintptr_t)memory, size};
    int rc = regions_add(engine, &(struct fresh){&range, 1, "", true, fd});
    if (rc < 0 && fd >= 0)
        mc_transfer_close_fd(fd);
    if (rc == 0) {
        rc = publish_added(engine, (uintptr_t)memory);
        if (rc < 0)
            (void)leave(engine, (uintptr_t)memory);
    }
    if (rc == 0)
        return memory;
    (void)unmap_memory(memory, size, is_shared);
    return NULL;
}

int mc_transfer_free(struct mc_transfer_engine *engine, void *memory)
{
    if (!mc_transfer_alive(engine))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t address = (uintptr_t)memory, length = 0;
    pthread_mutex_lock(&engine->lock);
    struct mc_region *region = mc_region_at(&engine->regions, address);
    bool is_managed = region != NULL && region->is_managed, is_shared = is_managed && region->memory_fd >= 0;
    if (is_managed)
        length = region->length;
    pthread_mutex_unlock(&engine->lock);
    if (!is_managed)
        return MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED;
    int rc = mc_transfer_unregister(engine, &address, 1);
    /* METADATA: it is unregistered all the same. */
    return (rc == 0 || rc == MC_TRANSFER_ERR_METADATA) && unmap_memory(memory, (size_t)length, is_shared) == 0
               ? 0
               : MC_TRANSFER_ERR_BATCH_BUSY;
}

/* ---- the end ---- */

void mc_memory_refuse(struct mc_transfer_engine *engine)
{
    for (struct mc_region *one = engine->regions.first; one != NULL; one = one->next) {
        one->is_leaving = true;
        if (engine->host_table != NULL && one->slot != MC_REGION_NO_SLOT)
            mc_host_entry_clear(engine->host_table, one->slot);
    }
}

bool mc_memory_is_quiet(struct mc_transfer_engine *engine)
{
    const struct mc_region *one = engine->regions.first;
    while (one != NULL && is_alone(engine, one))
        one = one->next;
    return one == NULL;
}

void mc_memory_leave_all(struct mc_transfer_engine *engine)
{
    uint64_t until_ms = mc_clock_ms() + MC_UNREGISTER_WAIT_MS;
    pthread_mutex_lock(&engine->lock);
    mc_memory_refuse(engine);
    for (struct mc_region *one = engine->regions.first; one != NULL && mc_clock_ms() < until_ms;) {
        if (is_alone(engine, one)) {
            one = one->next;
            continue;
        }
        mc_service_cut(engine);
        wait_a_little(engine, 1);
    }
    pthread_mutex_unlock(&engine->lock);
}

void mc_memory_free(struct mc_transfer_engine *engine)
{
    for (struct mc_region *one = engine->regions.first; one != NULL; one = one->next) {
        mc_gpu_forget((const void *)(uintptr_t)one->address);
        if (one->rdma != NULL)
            (void)mc_rdma_memory_unregister(one->rdma);
        if (!one->is_managed)
            continue;
        (void)unmap_memory((void *)(uintptr_t)one->address, (size_t)one->length, one->memory_fd >= 0);
        if (one->memory_fd >= 0)
            mc_transfer_close_fd(one->memory_fd);
    }
    mc_region_table_free(&engine->regions);
}
