/* Which memory is a device's: the driver's word, remembered for what is registered. */
#include "gpu/gpu.h"
#include "gpu/driver.h"

#include "env/log.h"
#include "env/thread.h"

#include <link.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WITHOUT_RANGE 3u /* attributes that every driver knows */

static pthread_mutex_t look_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t libraries_seen; /* libraries that were loaded by the last look that has ended, ever */
static _Atomic bool is_looking;         /* a thread that was started for that */

/* ---- the driver ---- */

static int count_libraries(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)size;
    *(uint64_t *)count = info->dlpi_adds;
    return 1; /* it is the same for all */
}

static int is_driver(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/'), *file = slash == NULL ? info->dlpi_name : slash + 1;
    return strncmp(file, name, strlen(name)) == 0; /* which ends the walk */
}

static void on_fork_in_child(void);

static bool has_fork_handler;

static void set_fork_handler(void)
{
    has_fork_handler = pthread_atfork(NULL, NULL, on_fork_in_child) == 0;
}

static bool can_fork(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, set_fork_handler);
    return has_fork_handler;
}

/* Have libraries been loaded since the last look, and may the driver be one of them? By the list of what is loaded: the
 * loader itself is not asked, since it answers nobody while another thread's import goes on, however long. */
static bool may_be_new(uint64_t *count)
{
    char name[MC_DRIVER_NAME_MAX];
    *count = 0;
    if (mc_gpu_is_there())
        return false;
    (void)dl_iterate_phdr(count_libraries, count);
    if (atomic_load_explicit(&libraries_seen, memory_order_acquire) == *count)
        return false;
    mc_driver_name(name);
    if (dl_iterate_phdr(is_driver, name) != 0)
        return true;
    atomic_store_explicit(&libraries_seen, *count, memory_order_release);
    return false;
}

void mc_gpu_look(void)
{
    uint64_t count;
    const char *missing = "";
    if (!may_be_new(&count) || !can_fork())
        return;
    pthread_mutex_lock(&look_lock); /* who comes while another looks waits, and then sees what it has found */
    int rc = atomic_load(&mc_gpu_state) != 0 ? 0 : mc_driver_find(&missing);
    if (rc > 0)
        atomic_store_explicit(&mc_gpu_state, 1, memory_order_release);
    if (rc < 0) {
        atomic_store(&mc_gpu_state, -1);
        mc_log(WARNING, "the CUDA driver is too old (it has no %s): memory of GPUs must not be passed", missing);
    }
    atomic_store_explicit(&libraries_seen, count, memory_order_release);
    pthread_mutex_unlock(&look_lock);
}

static void *look_for_driver(void *argument)
{
    mc_gpu_look();
    atomic_store(&is_looking, false);
    return argument;
}

void mc_gpu_notice(void)
{
    uint64_t count;
    if (!may_be_new(&count) || !can_fork() || atomic_exchange(&is_looking, true))
        return;
    if (mc_thread_start(NULL, "mc-gpu", look_for_driver, NULL) != 0)
        atomic_store(&is_looking, false); /* the next time, perhaps */
}

/* ---- registered memory ---- */

struct range {
    uint64_t from, length; /* first: ranges that overlap compare as equal, which is an order as stored ones never do */
    struct mc_gpu_place place;
    uint32_t users;
};

static pthread_rwlock_t ranges_lock = PTHREAD_RWLOCK_INITIALIZER;
static void *ranges;

/* Contexts and memory of the driver are the parent's, and the locks may be held by threads that are not there. The
 * library itself is still loaded; a child that may use it (nothing was initialised before the fork) can. */
static void on_fork_in_child(void)
{
    (void)pthread_rwlock_init(&ranges_lock, NULL);
    (void)pthread_mutex_init(&look_lock, NULL);
    atomic_store(&is_looking, false);
    ranges = NULL;
    mc_gpu_lanes_forget();
}

static int compare(const void *left, const void *right)
{
    const struct range *a = left, *b = right;
    if (a->from < b->from)
        return b->from - a->from >= a->length ? -1 : 0;
    return a->from - b->from >= b->length ? 1 : 0;
}

/* *from and *length: the allocation around it; a length of zero when it is not known. */
static struct mc_gpu_place ask_driver(uint64_t address, uint64_t *from, uint64_t *length)
{
    static const int what[] = {MC_CU_POINTER_MEMORY_TYPE, MC_CU_POINTER_IS_MANAGED, MC_CU_POINTER_DEVICE_ORDINAL,
                               MC_CU_POINTER_RANGE_START, MC_CU_POINTER_RANGE_SIZE};
    unsigned type = 0, is_managed = 0; /* a bool, or an int: the driver says only where it goes */
    int number = -1;
    uint64_t start = 0;
    size_t size = 0;
    void *where[] = {&type, &is_managed, &number, &start, &size};
    int attributes[sizeof(what) / sizeof(what[0])];
    struct mc_gpu_place place = {.kind = MC_GPU_HOST};
    *length = 0;
    for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++)
        attributes[i] = what[i];
    int code = mc_driver.pointer_attributes(sizeof(what) / sizeof(what[0]), attributes, where, address);
    if (code == MC_CU_INVALID_VALUE) /* an older driver, which does not know the ranges */
        code = mc_driver.pointer_attributes(WITHOUT_RANGE, attributes, where, address);
    /* The host's memory is no error; where it is one (not initialised, unknown) it is the host's as well. */
    if (code != MC_CU_SUCCESS)
        return place;
    if ((is_managed & 0xff) != 0)
        place.kind = MC_GPU_MANAGED;
    else if (type == MC_CU_MEMORY_DEVICE)
        place.kind = MC_GPU_MEMORY;
    if (place.kind == MC_GPU_HOST)
        return place;
    place.number = number >= 0 && number < MC_GPUS_MAX ? number : 0;
    if (size > 0 && start <= address && address - start < size) {
        *from = start;
        *length = size;
    }
    return place;
}

struct mc_gpu_place mc_gpu_find(struct mc_gpu_finder *finder, const void *address)
{
    uint64_t at = (uintptr_t)address, from = 0, length = 0;
    if (!mc_gpu_is_ready() || address == NULL)
        return (struct mc_gpu_place){.kind = MC_GPU_HOST};
    if (at >= finder->from && at < finder->to)
        return finder->place;
    struct range key = {.from = at, .length = 1};
    pthread_rwlock_rdlock(&ranges_lock);
    struct range *const *node = tfind(&key, &ranges, compare);
    if (node != NULL) {
        finder->place = (*node)->place;
        from = (*node)->from;
        length = (*node)->length;
    }
    pthread_rwlock_unlock(&ranges_lock);
    struct mc_gpu_place place = node != NULL ? finder->place : ask_driver(at, &from, &length);
    if (length > 0)
        *finder = (struct mc_gpu_finder){from, from + length, place};
    return place;
}

struct mc_gpu_place mc_gpu_note(const void *base, size_t length)
{
    struct mc_gpu_place place = {.kind = MC_GPU_HOST};
    mc_gpu_look();
    if (!mc_gpu_is_ready() || base == NULL || length == 0 || length - 1 >= UINTPTR_MAX - (uintptr_t)base)
        return place;
    uint64_t from, size;
    place = ask_driver((uintptr_t)base, &from, &size);
    struct range *added = calloc(1, sizeof(*added));
    if (added == NULL)
        return place; /* the driver will be asked each time */
    *added = (struct range){.from = (uintptr_t)base, .length = length, .place = place, .users = 1};
    pthread_rwlock_wrlock(&ranges_lock);
    struct range **node = tsearch(added, &ranges, compare);
    bool is_kept = node != NULL && *node == added;
    if (node != NULL && !is_kept && (*node)->from == added->from)
        (*node)->users++;
    pthread_rwlock_unlock(&ranges_lock);
    if (!is_kept)
        free(added);
    return place;
}

void mc_gpu_forget(const void *base)
{
    struct range key = {.from = (uintptr_t)base, .length = 1}, *gone = NULL;
    if (!mc_gpu_is_ready())
        return;
    pthread_rwlock_wrlock(&ranges_lock);
    struct range **node = tfind(&key, &ranges, compare);
    if (node != NULL && (*node)->from == key.from && --(*node)->users == 0) {
        gone = *node;
        (void)tdelete(gone, &ranges, compare);
    }
    pthread_rwlock_unlock(&ranges_lock);
    free(gone);
}

uint64_t mc_gpu_allocation(const void *address)
{
    int attribute = MC_CU_POINTER_BUFFER_ID;
    uint64_t id = 0;
    void *where = &id;
    if (!mc_gpu_is_ready() || mc_driver.pointer_attributes(1, &attribute, &where, (uintptr_t)address) != MC_CU_SUCCESS)
        return 0;
    return id;
}

/* ---- what goes by the place of an address ---- */

int mc_gpu_copy(void *to, const void *from, size_t length)
{
    struct mc_gpu_finder finder = {0};
    struct mc_gpu_place place = mc_gpu_find(&finder, to);
    if (place.kind == MC_GPU_HOST)
        place = mc_gpu_find(&finder, from);
    if (place.kind == MC_GPU_HOST) {
        memmove(to, from, length);
        return 0;
    }
    return mc_gpu_copy_now(place.number, to, from, length);
}

bool mc_gpu_whole_pages(uint64_t address, uint64_t length, uint64_t page, uint64_t *from, uint64_t *size)
{
    uint64_t rest = (page - (address + length) % page) % page;
    *from = address - address % page;
    *size = address - *from + length + rest;
    return length <= UINT64_MAX - address && rest <= UINT64_MAX - address - length;
}

int mc_gpu_dmabuf(const void *address, uint64_t length, uint64_t *offset)
{
    struct mc_gpu_finder finder = {0};
    uint64_t from, size;
    *offset = 0;
    if (length == 0 || !mc_gpu_whole_pages((uintptr_t)address, length, (uint64_t)sysconf(_SC_PAGESIZE), &from, &size))
        return -1;
    struct mc_gpu_place place = mc_gpu_find(&finder, address);
    *offset = (uintptr_t)address - from;
    return place.kind == MC_GPU_MEMORY ? mc_gpu_device_dmabuf(place.number, (const void *)(uintptr_t)from, (size_t)size)
                                       : -1;
}
