/* Copies: streams, events and pinned memory, kept between calls. Every call of the driver is made with the primary
 * context of the lane's device current, and leaves the thread's own as it was. */
#include "gpu/lane.h"
#include "gpu/driver.h"

#include "base/error.h"
#include "env/log.h"

#include <pthread.h>
#include <stdlib.h>

#define PAGE ((size_t)4096)

_Atomic int mc_gpu_state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mc_gpu_lane *idle;
static uint32_t pinned_count;       /* lanes with pinned memory, idle and in use */
static void *contexts[MC_GPUS_MAX]; /* primary ones, retained once for the life of the process */

void mc_gpu_lanes_forget(void)
{
    (void)pthread_mutex_init(&lock, NULL);
    idle = NULL;
    pinned_count = 0;
    for (int i = 0; i < MC_GPUS_MAX; i++)
        contexts[i] = NULL;
}

/* 0, or -1 with a log line. */
static int driver_check(int code, const char *what)
{
    if (code == MC_CU_SUCCESS)
        return 0;
    mc_log_limited(ERROR, "the CUDA driver refused to %s: error %d", what, code);
    return -1;
}

static int enter(void *context)
{
    return driver_check(mc_driver.context_push(context), "make its context current");
}

static void leave(void)
{
    void *popped;
    (void)driver_check(mc_driver.context_pop(&popped), "give its context back");
}

/* ---- lanes ---- */

static void *context_of(int device)
{
    int handle;
    pthread_mutex_lock(&lock);
    void *context = contexts[device];
    if (context == NULL && driver_check(mc_driver.device_get(&handle, device), "name a device") == 0 &&
        driver_check(mc_driver.context_retain(&context, handle), "open a device") == 0)
        contexts[device] = context;
    else if (contexts[device] == NULL)
        context = NULL;
    pthread_mutex_unlock(&lock);
    return context;
}

/* The context is current. */
static void units_free(struct mc_gpu_lane *lane)
{
    if (lane->is_pinned)
        (void)driver_check(mc_driver.host_free(lane->units[0]), "free pinned memory");
    else
        free(lane->units[0]);
    lane->units[0] = lane->units[1] = NULL;
}

/* Pinned, or when there is none to be had (or enough in use), plain memory: the driver copies that too, only slower.
 * The context is current. */
static int units_make(struct mc_gpu_lane *lane, bool wants_pinned)
{
    void *memory = NULL;
    lane->unit_bytes = MC_GPU_UNIT_BYTES;
    lane->is_pinned =
        wants_pinned && mc_driver.host_allocate(&memory, 2 * lane->unit_bytes, MC_CU_HOST_PORTABLE) == MC_CU_SUCCESS;
    if (!lane->is_pinned) {
        if (wants_pinned)
            mc_log_limited(WARNING, "no pinned memory for copies to and from a GPU: they go through plain memory");
        lane->unit_bytes = MC_GPU_UNIT_SMALL;
        memory = aligned_alloc(PAGE, 2 * lane->unit_bytes);
    }
    if (memory == NULL)
        return -1;
    lane->units[0] = memory;
    lane->units[1] = lane->units[0] + lane->unit_bytes;
    return 0;
}

static void destroy(struct mc_gpu_lane *lane)
{
    if (enter(lane->context) == 0) {
        for (int i = 0; i < 2; i++)
            if (lane->events[i] != NULL)
                (void)driver_check(mc_driver.event_destroy(lane->events[i]), "end an event");
        if (lane->stream != NULL)
            (void)driver_check(mc_driver.stream_destroy(lane->stream), "end a stream");
        if (lane->apart != NULL)
            (void)driver_check(mc_driver.stream_destroy(lane->apart), "end a stream");
        if (lane->units[0] != NULL)
            units_free(lane);
        leave();
    }
    free(lane);
}

static struct mc_gpu_lane *create(int device, bool wants_pinned)
{
    void *context = context_of(device);
    struct mc_gpu_lane *lane = context == NULL ? NULL : calloc(1, sizeof(*lane));
    if (lane == NULL)
        return NULL;
    lane->device = device;
    lane->context = context;
    if (enter(context) < 0) {
        free(lane);
        return NULL;
    }
    /* A stream that waits for the default one, as a plain copy would: callers of the original rely on that. */
    int rc = driver_check(mc_driver.stream_create(&lane->stream, 0), "make a stream");
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = driver_check(mc_driver.event_create(&lane->events[i], MC_CU_EVENT_NO_TIMING), "make an event");
    if (rc == 0)
        rc = units_make(lane, wants_pinned);
    leave();
    if (rc == 0)
        return lane;
    destroy(lane);
    return NULL;
}

/* Locked. An idle lane of that device; -1: of any. */
static struct mc_gpu_lane *take_idle(int device)
{
    for (struct mc_gpu_lane **at = &idle; *at != NULL; at = &(*at)->next) {
        struct mc_gpu_lane *lane = *at;
        if (device >= 0 && lane->device != device)
            continue;
        *at = lane->next;
        lane->next = NULL;
        return lane;
    }
    return NULL;
}

struct mc_gpu_lane *mc_gpu_take(int device)
{
    struct mc_gpu_lane *other = NULL;
    if (device < 0 || device >= MC_GPUS_MAX || !mc_gpu_is_ready())
        return NULL;
    pthread_mutex_lock(&lock);
    struct mc_gpu_lane *lane = take_idle(device);
    bool wants_pinned = false;
    if (lane == NULL) {
        if (pinned_count >= MC_GPU_LANES_MAX)
            other = take_idle(-1); /* another device's makes room */
        wants_pinned = other != NULL || pinned_count < MC_GPU_LANES_MAX;
        if (other == NULL && wants_pinned)
            pinned_count++;
    }
    pthread_mutex_unlock(&lock);
    if (other != NULL)
        destroy(other);
    if (lane != NULL)
        return lane;
    lane = create(device, wants_pinned);
    if (wants_pinned && (lane == NULL || !lane->is_pinned)) {
        pthread_mutex_lock(&lock);
        pinned_count--;
        pthread_mutex_unlock(&lock);
    }
    return lane;
}

void mc_gpu_give(struct mc_gpu_lane *lane)
{
    if (lane == NULL)
        return;
    if (!lane->is_pinned) {
        destroy(lane);
        return;
    }
    pthread_mutex_lock(&lock);
    lane->next = idle;
    idle = lane;
    pthread_mutex_unlock(&lock);
}

/* ---- copies ---- */

static int start(struct mc_gpu_lane *lane, void **stream, void *to, const void *from, size_t length)
{
    int rc = 0;
    if (length == 0)
        return 0;
    if (enter(lane->context) < 0)
        return -1;
    if (*stream == NULL)
        rc = driver_check(mc_driver.stream_create(stream, MC_CU_STREAM_NON_BLOCKING), "make a stream");
    if (rc == 0)
        rc = driver_check(mc_driver.copy((uintptr_t)to, (uintptr_t)from, length, *stream), "copy");
    leave();
    return rc;
}

int mc_gpu_start(struct mc_gpu_lane *lane, void *to, const void *from, size_t length)
{
    return start(lane, &lane->stream, to, from, length);
}

int mc_gpu_start_apart(struct mc_gpu_lane *lane, void *to, const void *from, size_t length)
{
    return start(lane, &lane->apart, to, from, length);
}

int mc_gpu_mark(struct mc_gpu_lane *lane, unsigned unit)
{
    if (enter(lane->context) < 0)
        return -1;
    int rc = driver_check(mc_driver.event_record(lane->events[unit], lane->stream), "mark a copy");
    leave();
    return rc;
}

int mc_gpu_wait(struct mc_gpu_lane *lane, unsigned unit)
{
    if (enter(lane->context) < 0)
        return -1;
    int rc = driver_check(mc_driver.event_wait(lane->events[unit]), "end a copy");
    leave();
    return rc;
}

int mc_gpu_has_ended(struct mc_gpu_lane *lane, unsigned unit)
{
    if (enter(lane->context) < 0)
        return -1;
    int code = mc_driver.event_query(lane->events[unit]);
    leave();
    return code == MC_CU_NOT_READY ? 0 : driver_check(code, "say whether a copy has ended") < 0 ? -1 : 1;
}

static int finish(struct mc_gpu_lane *lane, void *stream)
{
    if (stream == NULL) /* none was ever started there */
        return 0;
    if (enter(lane->context) < 0)
        return -1;
    int rc = driver_check(mc_driver.stream_wait(stream), "end its copies");
    leave();
    return rc;
}

int mc_gpu_finish(struct mc_gpu_lane *lane)
{
    return finish(lane, lane->stream);
}

int mc_gpu_finish_apart(struct mc_gpu_lane *lane)
{
    return finish(lane, lane->apart);
}

int mc_gpu_copy_now(int device, void *to, const void *from, size_t length)
{
    struct mc_gpu_lane *lane = mc_gpu_take(device);
    if (lane == NULL)
        return -1;
    int rc = mc_gpu_start(lane, to, from, length);
    int finished = mc_gpu_finish(lane);
    mc_gpu_give(lane);
    return rc < 0 ? rc : finished;
}

int mc_gpu_start_any(struct mc_gpu_lane *lane, int device, void *to, const void *from, size_t length)
{
    return device == lane->device ? mc_gpu_start(lane, to, from, length) : mc_gpu_copy_now(device, to, from, length);
}

/* ---- for network cards ---- */

int mc_gpu_pci_address(int device, char *text, size_t size)
{
    int handle;
    if (!mc_gpu_is_ready() || mc_driver.pci_bus_id == NULL || size > INT32_MAX ||
        mc_driver.device_get(&handle, device) != MC_CU_SUCCESS)
        return -1;
    return driver_check(mc_driver.pci_bus_id(text, (int)size, handle), "say where a device is");
}

/* Does the driver want to be told, before the device reads what a network card has written? */
static bool wants_flush(int device)
{
    static _Atomic uint64_t asked, wanted; /* a bit for each device */
    uint64_t bit = 1ull << device;
    int handle, ordering = 0, options = 0;
    if ((atomic_load(&asked) & bit) != 0)
        return (atomic_load(&wanted) & bit) != 0;
    bool is_known = mc_driver.device_get(&handle, device) == MC_CU_SUCCESS &&
                    mc_driver.device_attribute(&ordering, MC_CU_DEVICE_WRITES_ORDERING, handle) == MC_CU_SUCCESS &&
                    mc_driver.device_attribute(&options, MC_CU_DEVICE_FLUSH_OPTIONS, handle) == MC_CU_SUCCESS;
    bool is_wanted = is_known && ordering < MC_CU_ORDERING_OWNER && (options & MC_CU_FLUSH_BY_HOST) != 0;
    if (is_wanted)
        atomic_fetch_or(&wanted, bit);
    atomic_fetch_or(&asked, bit);
    return is_wanted;
}

int mc_gpu_flush(uint64_t devices)
{
    int rc = 0;
    if (devices == 0 || !mc_gpu_is_ready() || mc_driver.flush_writes == NULL || mc_driver.device_attribute == NULL)
        return 0;
    for (int device = 0; device < MC_GPUS_MAX; device++) {
        if ((devices >> device & 1) == 0 || !wants_flush(device))
            continue;
        void *context = context_of(device);
        if (context == NULL || enter(context) < 0) {
            rc = -1;
            continue;
        }
        if (driver_check(mc_driver.flush_writes(MC_CU_FLUSH_CURRENT_CONTEXT, MC_CU_ORDERING_OWNER), "flush") < 0)
            rc = -1;
        leave();
    }
    return rc;
}

int mc_gpu_device_dmabuf(int device, const void *address, size_t length)
{
    int fd = -1;
    void *context = mc_driver.range_handle == NULL ? NULL : context_of(device);
    if (context == NULL || enter(context) < 0)
        return -1;
    /* Not of every GPU and kernel: no error, the caller goes another way. */
    int code = mc_driver.range_handle(&fd, (uintptr_t)address, length, MC_CU_HANDLE_DMABUF, 0);
    leave();
    return code == MC_CU_SUCCESS && fd >= 0 ? fd : -1;
}
