/* What the product takes from the C library for one process: memory, threads, locks, time. */
#include "plan.h"
#include "sim.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "env/clock.h"
#include "env/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct sim_fiber *sim_thread_start(void *(*function)(void *argument), void *argument);
void *sim_thread_join(struct sim_fiber *fiber);
void sim_thread_detach(struct sim_fiber *fiber);

/* ---- malloc ----
 *
 * Small blocks: classes of sizes (two for each power of two) with free lists. Big ones: close together, in pages that
 * are given back to the host when the process is gone, so that the large tables of a fresh process need no clearing;
 * those that were freed are used again when no others are left (a process may open and close its store for minutes). */

#define ARENA_BYTES (256ull << 20)
#define ARENA_BIG_AT (128ull << 20)
#define ARENAS_BASE 0x200000000000ull /* the same addresses in every run */
#define HEADER_BYTES 16u
#define BIG_BYTES (64u << 10)
#define CLASSES 32u

struct arena_block { /* before each */
    uint64_t size;
    uint32_t class, magic;
};
#define MAGIC 0x5eed5eedu

struct sim_arena {
    uint8_t *base;
    uint64_t used, big_used;
    struct arena_block *free[CLASSES], *big_free;
    uint64_t in_use;
};
static struct sim_arena arenas[SIM_PROCESSES_MAX];

static uint64_t class_size(uint32_t class)
{
    uint64_t size = 32ull << (class / 2);
    return class % 2 == 0 ? size : size + size / 2;
}

static uint32_t class_of(uint64_t size)
{
    uint32_t power = size <= 32 ? 0 : 59 - (uint32_t)__builtin_clzll(size - 1);
    uint32_t class = power * 2;
    if (class > 0 && class_size(class - 1) >= size)
        class --;
    return class;
}

static struct sim_arena *arena_of(struct sim_process *process)
{
    struct sim_arena *arena = &arenas[process->place];
    if (arena->base == NULL) {
        void *wanted = (void *)(uintptr_t)(ARENAS_BASE + process->place * ARENA_BYTES);
        arena->base = mmap(wanted, ARENA_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (arena->base != wanted)
            abort();
    }
    return arena;
}

void sim_arena_reset(struct sim_process *process)
{
    struct sim_arena *arena = &arenas[process->place];
    if (arena->big_used > 0)
        (void)madvise(arena->base + ARENA_BIG_AT, arena->big_used, MADV_DONTNEED);
    *arena = (struct sim_arena){.base = arena->base};
}

static uint64_t big_whole(uint64_t size)
{
    return (size + HEADER_BYTES + 63) & ~63ull;
}

/* Of those that were freed, as empty as a new one. */
static void *big_again(struct sim_arena *arena, uint64_t size)
{
    struct arena_block **link = &arena->big_free, *block;
    while ((block = *link) != NULL && big_whole(block->size) != big_whole(size))
        link = (struct arena_block **)(void *)(block + 1);
    if (block == NULL)
        return NULL;
    memcpy(link, (void *)(block + 1), sizeof(*link));
    memset(block + 1, 0, size);
    *block = (struct arena_block){size, UINT32_MAX, MAGIC};
    return block + 1;
}

/* One lies behind the other, header and all: of most only the beginning is ever touched, and shares its page so. */
static void *big_allocate(struct sim_arena *arena, uint64_t size)
{
    uint64_t whole = big_whole(size);
    if (whole > ARENA_BYTES - ARENA_BIG_AT - arena->big_used)
        return big_again(arena, size);
    struct arena_block *block = (struct arena_block *)(void *)(arena->base + ARENA_BIG_AT + arena->big_used);
    arena->big_used += whole;
    *block = (struct arena_block){size, UINT32_MAX, MAGIC};
    return block + 1;
}

static void *allocate(uint64_t size, bool zero)
{
    struct sim_process *process = sim_process();
    if (process == NULL)
        return zero ? calloc(1, size) : malloc(size);
    if (sim_is_short(SIM_SHORT_MEMORY)) {
        errno = ENOMEM;
        return NULL;
    }
    struct sim_arena *arena = arena_of(process);
    if (size >= BIG_BYTES)
        return big_allocate(arena, size);
    uint32_t class = class_of(size);
    struct arena_block *block = arena->free[class];
    if (block != NULL) {
        memcpy(&arena->free[class], block + 1, sizeof(void *));
    } else {
        uint64_t whole = class_size(class) + HEADER_BYTES;
        if (whole > ARENA_BIG_AT - arena->used)
            return NULL;
        block = (struct arena_block *)(void *)(arena->base + arena->used);
        arena->used += whole;
    }
    *block = (struct arena_block){size, class, MAGIC};
    if (zero)
        memset(block + 1, 0, size);
    return block + 1;
}

static bool is_arena(const void *pointer)
{
    uint64_t address = (uintptr_t)pointer;
    return address >= ARENAS_BASE && address < ARENAS_BASE + SIM_PROCESSES_MAX * ARENA_BYTES;
}

bool sim_arena_has(const void *pointer)
{
    return is_arena(pointer);
}

void *sim_malloc(size_t size);
void *sim_calloc(size_t count, size_t size);
void *sim_realloc(void *old, size_t size);
void sim_free(void *pointer);
void *sim_aligned_alloc(size_t alignment, size_t size);

void *sim_malloc(size_t size)
{
    return allocate(size, false);
}

void *sim_calloc(size_t count, size_t size)
{
    return allocate(count * size, true);
}

void sim_free(void *pointer)
{
    if (pointer == NULL)
        return;
    if (!is_arena(pointer)) {
        free(pointer);
        return;
    }
    struct arena_block *block = (struct arena_block *)pointer - 1;
    if (block->class == UINT32_MAX - 1) /* aligned: the real one is named before it */
        block = (struct arena_block *)(uintptr_t)block->size;
    if (block->magic != MAGIC) {
        sim_fail("free() of what is not allocated");
        return;
    }
    block->magic = 0;
    struct sim_arena *arena = &arenas[((uintptr_t)pointer - ARENAS_BASE) / ARENA_BYTES];
    struct arena_block **list = block->class == UINT32_MAX ? &arena->big_free : &arena->free[block->class];
    memcpy((void *)(block + 1), list, sizeof(*list));
    *list = block;
}

void *sim_realloc(void *old, size_t size)
{
    void *fresh = allocate(size, false);
    if (old != NULL && fresh != NULL) {
        uint64_t before = ((struct arena_block *)old - 1)->size;
        memcpy(fresh, old, before < size ? before : size);
        sim_free(old);
    }
    return fresh;
}

void *sim_aligned_alloc(size_t alignment, size_t size)
{
    uint8_t *memory = allocate(size + alignment + sizeof(struct arena_block), false);
    if (memory == NULL || sim_process() == NULL)
        return memory == NULL ? NULL : (void *)(((uintptr_t)memory + alignment - 1) & ~(uintptr_t)(alignment - 1));
    uintptr_t at = ((uintptr_t)memory + sizeof(struct arena_block) + alignment - 1) & ~(uintptr_t)(alignment - 1);
    struct arena_block *block = (struct arena_block *)at - 1, *real = (struct arena_block *)(void *)memory - 1;
    block->class = UINT32_MAX - 1;
    block->size = (uintptr_t)real;
    return (void *)at;
}

char *sim_strndup(const char *text, size_t most);
char *sim_strndup(const char *text, size_t most)
{
    size_t length = strnlen(text, most);
    char *copy = allocate(length + 1, false);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

char *sim_strdup(const char *text);
char *sim_strdup(const char *text)
{
    return sim_strndup(text, strlen(text));
}

/* ---- threads and locks; the product's objects hold ours ---- */

struct lock {
    struct sim_fiber *owner, *first;
};
struct sim_condition {
    struct sim_fiber *first;
};
_Static_assert(sizeof(struct lock) <= sizeof(pthread_mutex_t) && sizeof(struct sim_condition) <= sizeof(pthread_cond_t),
               "fits");

static void list_append(struct sim_fiber **list, struct sim_fiber *fiber)
{
    fiber->next_waiter = NULL;
    while (*list != NULL)
        list = &(*list)->next_waiter;
    *list = fiber;
}

static void list_remove(struct sim_fiber **list, struct sim_fiber *fiber)
{
    while (*list != NULL && *list != fiber)
        list = &(*list)->next_waiter;
    if (*list != NULL)
        *list = fiber->next_waiter;
}

static struct sim_fiber *list_take(struct sim_fiber **list)
{
    struct sim_fiber *fiber = *list;
    if (fiber != NULL)
        *list = fiber->next_waiter;
    return fiber;
}

int sim_pthread_mutex_init(struct lock *lock, const void *attributes);
int sim_pthread_mutex_init(struct lock *lock, const void *attributes)
{
    (void)attributes;
    *lock = (struct lock){0};
    return 0;
}

int sim_pthread_mutex_destroy(struct lock *lock);
int sim_pthread_mutex_destroy(struct lock *lock)
{
    if (lock->owner != NULL)
        sim_fail("a mutex is destroyed while it is held");
    return 0;
}

int sim_pthread_mutex_trylock(struct lock *lock);
int sim_pthread_mutex_trylock(struct lock *lock)
{
    if (lock->owner != NULL)
        return EBUSY;
    lock->owner = sim_fiber;
    return 0;
}

int sim_pthread_mutex_lock(struct lock *lock);
int sim_pthread_mutex_lock(struct lock *lock)
{
    sim_preempt();
    if (lock->owner == sim_fiber && sim_fiber != NULL)
        sim_fail("a mutex is locked twice by one thread");
    while (lock->owner != NULL) {
        list_append(&lock->first, sim_fiber);
        (void)sim_wait(SIM_NEVER);
    }
    lock->owner = sim_fiber;
    return 0;
}

int sim_pthread_mutex_unlock(struct lock *lock);
int sim_pthread_mutex_unlock(struct lock *lock)
{
    if (lock->owner != sim_fiber)
        sim_fail("a mutex is unlocked by another thread");
    lock->owner = NULL;
    struct sim_fiber *next = list_take(&lock->first);
    if (next != NULL)
        sim_wake(next);
    sim_preempt();
    return 0;
}

int sim_pthread_cond_init(struct sim_condition *condition, const void *attributes);
int sim_pthread_cond_init(struct sim_condition *condition, const void *attributes)
{
    (void)attributes;
    *condition = (struct sim_condition){0};
    return 0;
}

int sim_pthread_cond_destroy(struct sim_condition *condition);
int sim_pthread_cond_destroy(struct sim_condition *condition)
{
    if (condition->first != NULL)
        sim_fail("a condition is destroyed while somebody waits for it");
    return 0;
}

static int condition_wait(struct sim_condition *condition, struct lock *lock, uint64_t deadline_ns)
{
    list_append(&condition->first, sim_fiber);
    lock->owner = NULL;
    struct sim_fiber *next = list_take(&lock->first);
    if (next != NULL)
        sim_wake(next);
    bool woken = sim_wait(deadline_ns);
    if (!woken)
        list_remove(&condition->first, sim_fiber);
    while (lock->owner != NULL) {
        list_append(&lock->first, sim_fiber);
        (void)sim_wait(SIM_NEVER);
    }
    lock->owner = sim_fiber;
    return woken ? 0 : ETIMEDOUT;
}

int sim_pthread_cond_wait(struct sim_condition *condition, struct lock *lock);
int sim_pthread_cond_wait(struct sim_condition *condition, struct lock *lock)
{
    return condition_wait(condition, lock, SIM_NEVER);
}

int sim_pthread_cond_timedwait(struct sim_condition *condition, struct lock *lock, const struct timespec *until);
int sim_pthread_cond_timedwait(struct sim_condition *condition, struct lock *lock, const struct timespec *until)
{
    uint64_t until_ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    int rc = ETIMEDOUT;
    while (rc == ETIMEDOUT && sim_monotonic_ns(sim_process()) < until_ns) /* the machine may have slept */
        rc = condition_wait(condition, lock, sim_world_ns(sim_process(), until_ns));
    return rc;
}

int sim_pthread_cond_signal(struct sim_condition *condition);
int sim_pthread_cond_signal(struct sim_condition *condition)
{
    struct sim_fiber *one = list_take(&condition->first);
    if (one != NULL)
        sim_wake(one);
    return 0;
}

int sim_pthread_cond_broadcast(struct sim_condition *condition);
int sim_pthread_cond_broadcast(struct sim_condition *condition)
{
    while (condition->first != NULL)
        (void)sim_pthread_cond_signal(condition);
    return 0;
}

int sim_pthread_create(pthread_t *thread, const void *attributes, void *(*function)(void *), void *argument);
int sim_pthread_create(pthread_t *thread, const void *attributes, void *(*function)(void *), void *argument)
{
    (void)attributes;
    struct sim_fiber *fiber = sim_thread_start(function, argument);
    *thread = (pthread_t)(uintptr_t)fiber;
    return fiber == NULL ? EAGAIN : 0;
}

int sim_pthread_join(pthread_t thread, void **result);
int sim_pthread_join(pthread_t thread, void **result)
{
    void *value = sim_thread_join((struct sim_fiber *)(uintptr_t)thread);
    if (result != NULL)
        *result = value;
    return 0;
}

int sim_pthread_detach(pthread_t thread);
int sim_pthread_detach(pthread_t thread)
{
    sim_thread_detach((struct sim_fiber *)(uintptr_t)thread);
    return 0;
}

pthread_t sim_pthread_self(void);
pthread_t sim_pthread_self(void)
{
    return (pthread_t)(uintptr_t)sim_fiber;
}

int sim_pthread_setname_np(pthread_t thread, const char *name);
int sim_pthread_setname_np(pthread_t thread, const char *name)
{
    struct sim_fiber *fiber = (struct sim_fiber *)(uintptr_t)thread;
    snprintf(fiber->name, sizeof(fiber->name), "%s", name);
    return 0;
}

int sim_pthread_sigmask(int how, const void *set, void *before);
int sim_pthread_sigmask(int how, const void *set, void *before)
{
    (void)how, (void)set, (void)before;
    return 0;
}

int sim_sigaction(int number, const void *wanted, void *before);
int sim_sigaction(int number, const void *wanted, void *before)
{
    (void)number, (void)wanted, (void)before;
    return 0;
}

int sim_pthread_once(int *once, void (*function)(void));
int sim_pthread_once(int *once, void (*function)(void))
{
    if (*once == 0) {
        *once = 1; /* what runs once makes no simulated call that could yield before it is done */
        function();
    }
    return 0;
}

int sim_pthread_key_create(unsigned *key, void (*destructor)(void *));
int sim_pthread_key_create(unsigned *key, void (*destructor)(void *))
{
    struct sim_process *process = sim_process();
    if (process->key_count == SIM_KEYS_MAX)
        return EAGAIN;
    *key = process->key_count;
    process->key_destructors[process->key_count++] = destructor;
    return 0;
}

int sim_pthread_setspecific(unsigned key, const void *value);
int sim_pthread_setspecific(unsigned key, const void *value)
{
    sim_fiber->keys[key] = (void *)(uintptr_t)value;
    return 0;
}

void *sim_pthread_getspecific(unsigned key);
void *sim_pthread_getspecific(unsigned key)
{
    return sim_fiber->keys[key];
}

int sim_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void));
int sim_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    (void)before, (void)parent, (void)child;
    return 0;
}

/* ---- time, chance, the machine ---- */

uint64_t mc_clock_ns(void)
{
    return sim_monotonic_ns(sim_process());
}

uint64_t mc_clock_boot_ns(void)
{
    return sim_boot_ns(sim_process());
}

uint64_t mc_clock_wall_ms(void)
{
    return (uint64_t)sim_wall_ns(sim_process()) / 1000000;
}

uint64_t mc_random_u64(void)
{
    return sim_random(SIM_PRODUCT);
}

struct mc_id mc_random_id(void)
{
    uint64_t low = sim_random(SIM_PRODUCT);
    return (struct mc_id){low, sim_random(SIM_PRODUCT)};
}

bool mc_host_id_read(struct mc_id *id)
{
    *id = mc_host_id();
    return true;
}

struct mc_id mc_host_id(void)
{
    return (struct mc_id){0x686f7374 + ((uint64_t)sim_boots(sim_process()) << 32), sim_process()->machine + 1};
}

int sim_clock_gettime(int clock, struct timespec *now);
int sim_clock_gettime(int clock, struct timespec *now)
{
    const struct sim_process *process = sim_process();
    uint64_t now_ns = clock == CLOCK_REALTIME   ? (uint64_t)sim_wall_ns(process)
                      : clock == CLOCK_BOOTTIME ? sim_boot_ns(process)
                                                : sim_monotonic_ns(process);
    *now = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000u), .tv_nsec = (long)(now_ns % 1000000000u)};
    return 0;
}

/* By the clock of the machine, which stands still while it sleeps. */
static void sleep_monotonic(uint64_t ns)
{
    uint64_t until_ns = sim_monotonic_ns(sim_process()) + ns;
    do {
        sim_sleep_ns(sim_world_ns(sim_process(), until_ns) - sim_now_ns);
    } while (sim_monotonic_ns(sim_process()) < until_ns);
}

int sim_usleep(unsigned us);
int sim_usleep(unsigned us)
{
    sleep_monotonic(us * 1000ull + sim_below(SIM_SCHEDULE, 10000));
    return 0;
}

int sim_nanosleep(const struct timespec *wanted, struct timespec *left);
int sim_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    sleep_monotonic((uint64_t)wanted->tv_sec * 1000000000u + (uint64_t)wanted->tv_nsec + 1000);
    return 0;
}

/* A spin is cut to one turn: the time in which it would have ended. */
int sim_sched_yield(void);
int sim_sched_yield(void)
{
    sim_sleep_ns(25000);
    return 0;
}

int sim_sched_setaffinity(int process, size_t size, const void *set);
int sim_sched_setaffinity(int process, size_t size, const void *set)
{
    (void)process, (void)size, (void)set;
    return -1;
}

int sim_sched_getaffinity(int process, size_t size, void *set);
int sim_sched_getaffinity(int process, size_t size, void *set)
{
    (void)process, (void)size, (void)set;
    return -1;
}

extern char **sim_environ;
char **sim_environ; /* of a simulated process nothing is set */

char *sim_getenv(const char *name);
char *sim_getenv(const char *name)
{
    static char host[] = "10.0.0.15", port[] = "443"; /* of an API server */
    static char threads[2], stripe[] = "1";           /* the least there is */
    static char blanks_on[] = "1", blanks_off[] = "0";
    if (strcmp(name, "MC_SERVE_THREADS") == 0) {
        threads[0] = (char)('0' + sim_plan->data_threads);
        return threads;
    }
    if (sim_plan->has_stripes && strcmp(name, "MC_STORE_STRIPE_SIZE") == 0)
        return stripe;
    if (strcmp(name, "MC_STORE_BLANK_PLACES") == 0)
        return sim_plan->blanks ? blanks_on : blanks_off;
    return strcmp(name, "KUBERNETES_SERVICE_HOST") == 0   ? host
           : strcmp(name, "KUBERNETES_SERVICE_PORT") == 0 ? port
                                                          : NULL;
}

long sim_sysconf(int name);
long sim_sysconf(int name)
{
    (void)name;
    return 4;
}

unsigned sim_geteuid(void);
unsigned sim_geteuid(void)
{
    return 1000;
}

int sim_getrlimit64(int what, void *limit);
int sim_getrlimit64(int what, void *limit)
{
    (void)what, (void)limit;
    return -1;
}

int sim_setrlimit64(int what, const void *limit);
int sim_setrlimit64(int what, const void *limit)
{
    (void)what, (void)limit;
    return -1;
}

/* There are no devices; what works on them is never called. */
extern int sim_gpu_state;
int sim_gpu_state;
void sim_gpu_look(void);
void sim_gpu_look(void) {}
void sim_gpu_notice(void);
void sim_gpu_notice(void) {}

_Noreturn void sim_abort(void);
#define WITHOUT_DEVICES(name)                                                                                          \
    _Noreturn void name(void);                                                                                         \
    void name(void)                                                                                                    \
    {                                                                                                                  \
        sim_abort();                                                                                                   \
    }
WITHOUT_DEVICES(sim_gpu_note)
WITHOUT_DEVICES(sim_gpu_forget)
WITHOUT_DEVICES(sim_gpu_copy)
WITHOUT_DEVICES(sim_staged_is_needed)
WITHOUT_DEVICES(sim_staged_run)

void (*sim_in_abort)(struct sim_process *process);

_Noreturn void sim_abort(void)
{
    if (sim_in_abort != NULL && sim_process() != NULL)
        sim_in_abort(sim_process());
    sim_fail("abort()");
    abort();
}

_Noreturn void sim__exit(int code);
_Noreturn void sim__exit(int code)
{
    (void)code; /* of what handles a signal, and none comes */
    sim_abort();
}

_Noreturn void sim_assert_failed(const char *file, int line, const char *text);
_Noreturn void sim_assert_failed(const char *file, int line, const char *text)
{
    sim_fail("assertion failed at %s:%d: %s", file, line, text);
    abort(); /* without a fiber there is no way back */
}

/* ---- copies, with a break in the middle ---- */

void (*sim_in_copy)(struct sim_process *process);

uint32_t sim_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc);
uint32_t sim_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc)
{
    if (length > 1 && sim_fiber != NULL && sim_once_in(SIM_SCHEDULE, 4)) {
        size_t first = 1 + sim_below(SIM_SCHEDULE, (uint32_t)length - 1);
        crc = mc_copy_crc32c(target, source, first, crc);
        if (sim_in_copy != NULL)
            sim_in_copy(sim_process());
        sim_sleep_ns(500 + sim_below(SIM_SCHEDULE, sim_once_in(SIM_SCHEDULE, 8) ? 3000000 : 20000));
        target = (uint8_t *)target + first;
        source = (const uint8_t *)source + first;
        length -= first;
    }
    return mc_copy_crc32c(target, source, length, crc);
}

uint32_t sim_copy_crc32c_stream(void *target, const void *source, size_t length, uint32_t crc);
uint32_t sim_copy_crc32c_stream(void *target, const void *source, size_t length, uint32_t crc)
{
    return sim_copy_crc32c(target, source, length, crc);
}

uint32_t sim_crc32c(uint32_t crc, const void *data, size_t length);
uint32_t sim_crc32c(uint32_t crc, const void *data, size_t length)
{
    sim_preempt();
    return mc_crc32c(crc, data, length);
}

/* ---- the log ---- */

_Atomic int mc_log_threshold = MC_LOG_ERROR + 1;
_Atomic bool mc_log_wipes;

void mc_log_set_level(enum mc_log_level level)
{
    (void)level;
}

bool mc_log_parse_level(const char *text, enum mc_log_level *level)
{
    (void)text, (void)level;
    return false;
}

void mc_log_write(enum mc_log_level level, const char *file, int line, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (!sim_tracing)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    const char *slash = strrchr(file, '/');
    sim_trace("%c %s:%d %s", "TDIWE"[level], slash == NULL ? file : slash + 1, line, text);
}

bool mc_log_allowed(struct mc_log_limit *limit, uint64_t *held_back)
{
    (void)limit;
    *held_back = 0;
    return true;
}
