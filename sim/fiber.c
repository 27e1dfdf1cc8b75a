/* Fibers, processes, the queue of what comes next, chance. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES (256u << 10)
#define FIBERS_MAX 512u
#define RUN_BYTES (256u << 20) /* address space for what lives as long as a run */

uint64_t sim_now_ns, sim_messages, sim_hash, sim_events;
struct sim_process sim_processes[SIM_PROCESSES_MAX];
struct sim_fiber *sim_fiber;
bool sim_tracing, sim_failed;
char sim_failure[512];
uint32_t sim_delay_us_max, sim_preempt_in;

/* ---- chance ---- */

uint64_t sim_streams_at[SIM_STREAMS];

void sim_random_start(uint64_t seed)
{
    for (unsigned i = 0; i < SIM_STREAMS; i++)
        sim_streams_at[i] = sim_mix(seed * 0x9e3779b97f4a7c15ull + i + 1);
}

/* ---- memory of a run ---- */

static uint8_t *run_memory;
static size_t run_used, run_dirty;

void *sim_allocate(size_t size)
{
    if (run_memory == NULL) {
        run_memory = mmap(NULL, RUN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (run_memory == MAP_FAILED)
            abort();
    }
    size = (size + 63) & ~(size_t)63;
    if (size > RUN_BYTES - run_used) {
        fprintf(stderr, "the simulator is out of memory\n");
        abort();
    }
    uint8_t *memory = run_memory + run_used;
    run_used += size;
    if (run_used > run_dirty) {
        size_t clean = run_used - run_dirty < size ? run_used - run_dirty : size;
        memset(memory, 0, size - clean);
        run_dirty = run_used;
    } else {
        memset(memory, 0, size);
    }
    return memory;
}

/* ---- the queue ----
 *
 * A heap in which every fiber stands at most once: what it is queued for anew takes the place of what it was queued for
 * before. (A call's deadline is seconds away when the answer wakes its fiber; such entries were most of the queue.) */

struct entry {
    uint64_t time_ns, order;
    void (*function)(void *argument); /* NULL: a fiber */
    void *argument;
};

static struct sim_fiber fibers[FIBERS_MAX];
static uint32_t queued_at[FIBERS_MAX]; /* the place of each in the queue + 1; 0: not in it */
static struct entry *heap;
static uint32_t heap_count, heap_capacity;
static uint64_t order_next;

static bool is_before(const struct entry *a, const struct entry *b)
{
    return a->time_ns < b->time_ns || (a->time_ns == b->time_ns && a->order < b->order);
}

static void heap_place(uint32_t at, const struct entry *entry)
{
    heap[at] = *entry;
    if (entry->function == NULL)
        queued_at[(struct sim_fiber *)entry->argument - fibers] = at + 1;
}

/* The place is free: the entry goes there, or further up. */
static void heap_rise(uint32_t at, const struct entry *entry)
{
    for (; at > 0 && is_before(entry, &heap[(at - 1) / 4]); at = (at - 1) / 4)
        heap_place(at, &heap[(at - 1) / 4]);
    heap_place(at, entry);
}

/* The same, there or further down. */
static void heap_sink(uint32_t at, const struct entry *entry)
{
    for (;;) {
        uint32_t child = at * 4 + 1, end = child + 4 < heap_count ? child + 4 : heap_count;
        if (child >= heap_count)
            break;
        for (uint32_t other = child + 1; other < end; other++) {
            if (is_before(&heap[other], &heap[child]))
                child = other;
        }
        if (!is_before(&heap[child], entry))
            break;
        heap_place(at, &heap[child]);
        at = child;
    }
    heap_place(at, entry);
}

static void heap_take(uint32_t at)
{
    struct entry last = heap[--heap_count];
    if (heap[at].function == NULL)
        queued_at[(struct sim_fiber *)heap[at].argument - fibers] = 0;
    if (at == heap_count)
        return;
    if (at > 0 && is_before(&last, &heap[(at - 1) / 4]))
        heap_rise(at, &last);
    else
        heap_sink(at, &last);
}

static void heap_push(struct entry entry)
{
    entry.order = order_next++;
    if (heap_count == heap_capacity) {
        heap_capacity = heap_capacity == 0 ? 1024 : heap_capacity * 2;
        heap = realloc(heap, heap_capacity * sizeof(*heap));
        if (heap == NULL)
            abort();
    }
    heap_rise(heap_count++, &entry);
}

static void fiber_unqueue(struct sim_fiber *fiber)
{
    if (queued_at[fiber - fibers] != 0)
        heap_take(queued_at[fiber - fibers] - 1);
}

static void fiber_queue(struct sim_fiber *fiber, uint64_t time_ns)
{
    fiber_unqueue(fiber);
    heap_push((struct entry){.time_ns = time_ns, .argument = fiber});
}

void sim_at(uint64_t time_ns, void (*function)(void *argument), void *argument)
{
    heap_push((struct entry){.time_ns = time_ns, .function = function, .argument = argument});
}

/* ---- switching ---- */

static void *driver_context;
static uint32_t calls_without_time;
static struct sim_process *image_of; /* whose variables are in place */

extern uint8_t __start_mc_vars[] __attribute__((weak)), __stop_mc_vars[] __attribute__((weak));
static uint8_t *image_pristine;

static size_t image_size(void)
{
    return (size_t)(__stop_mc_vars - __start_mc_vars);
}

static void image_use(struct sim_process *process)
{
    if (image_of == process)
        return;
    if (image_of != NULL)
        memcpy(image_of->image, __start_mc_vars, image_size());
    memcpy(__start_mc_vars, process->image, image_size());
    image_of = process;
}

/* Saves the registers that a call must keep on the old stack, and takes up the new one's. */
__attribute__((naked, noinline)) static void context_switch(void **save __attribute__((unused)),
                                                            void *load __attribute__((unused)))
{
    __asm__("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
            "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
            "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}

static void to_driver(void)
{
    struct sim_fiber *self = sim_fiber;
    self->saved_errno = errno;
    context_switch(&self->context, driver_context);
    errno = self->saved_errno;
}

static void to_fiber(struct sim_fiber *fiber)
{
    image_use(fiber->process);
    sim_fiber = fiber;
    calls_without_time = 0;
    context_switch(&driver_context, fiber->context);
    sim_fiber = NULL;
}

static void fiber_unlink(struct sim_fiber *fiber)
{
    struct sim_fiber **at = &fiber->process->fibers;
    while (*at != fiber)
        at = &(*at)->next;
    *at = fiber->next;
    fiber->used = false;
    fiber_unqueue(fiber);
}

static void fiber_main(void)
{
    struct sim_fiber *self = sim_fiber;
    self->result = self->function(self->argument);
    struct sim_process *process = self->process;
    for (uint32_t i = 0; i < process->key_count; i++) {
        void *value = self->keys[i];
        self->keys[i] = NULL;
        if (value != NULL && process->key_destructors[i] != NULL)
            process->key_destructors[i](value);
    }
    self->finished = true;
    if (self->joiner != NULL)
        sim_wake(self->joiner);
    if (self->detached)
        fiber_unlink(self);
    to_driver();
    abort(); /* nobody runs a finished fiber */
}

static struct sim_fiber *fiber_make(struct sim_process *process, void *(*function)(void *argument), void *argument)
{
    uint32_t index = 0;
    while (index < FIBERS_MAX && fibers[index].used)
        index++;
    if (index == FIBERS_MAX)
        return NULL;
    struct sim_fiber *fiber = &fibers[index];
    void *stack = fiber->stack;
    if (stack == NULL) {
        stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE) != 0)
            abort();
    }
    *fiber = (struct sim_fiber){.process = process,
                                .stack = stack,
                                .function = function,
                                .argument = argument,
                                .used = true,
                                .next = process->fibers};
    process->fibers = fiber;
    void **top = (void **)((uint8_t *)stack + STACK_BYTES - 64);
    *--top = NULL; /* fiber_main never returns; keeps the stack aligned as after a call */
    *--top = (void *)(uintptr_t)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof(*top));
    fiber->context = top;
    fiber_queue(fiber, sim_now_ns + 1000 + sim_below(SIM_SCHEDULE, 20000));
    return fiber;
}

struct sim_fiber *sim_thread_start(void *(*function)(void *argument), void *argument)
{
    return fiber_make(sim_process(), function, argument);
}

void *sim_thread_join(struct sim_fiber *fiber)
{
    while (!fiber->finished) {
        fiber->joiner = sim_fiber;
        (void)sim_wait(SIM_NEVER);
    }
    void *result = fiber->result;
    fiber_unlink(fiber);
    return result;
}

void sim_thread_detach(struct sim_fiber *fiber)
{
    fiber->detached = true;
    if (fiber->finished)
        fiber_unlink(fiber);
}

bool sim_wait(uint64_t deadline_ns)
{
    struct sim_fiber *self = sim_fiber;
    self->is_waiting = true;
    self->timed_out = false;
    if (deadline_ns != SIM_NEVER)
        fiber_queue(self, deadline_ns > sim_now_ns ? deadline_ns : sim_now_ns + 1);
    to_driver();
    return !self->timed_out;
}

void sim_wake(struct sim_fiber *fiber)
{
    if (!fiber->is_waiting)
        return;
    fiber->is_waiting = false;
    /* Most are run soon, some wait for a processor. */
    uint64_t delay_ns = 500 + sim_below(SIM_SCHEDULE, sim_once_in(SIM_SCHEDULE, 64) ? 2000000 : 10000);
    fiber_queue(fiber, sim_now_ns + delay_ns);
}

void sim_sleep_ns(uint64_t ns)
{
    fiber_queue(sim_fiber, sim_now_ns + ns);
    to_driver();
}

void sim_sleep_till(const bool *is_set, uint64_t ns)
{
    struct sim_fiber *self = sim_fiber;
    self->awaited = is_set;
    self->look_ns = ns;
    while (!*is_set)
        sim_sleep_ns(ns);
    self->awaited = NULL;
}

void sim_preempt(void)
{
    if (sim_fiber == NULL)
        return;
    if (++calls_without_time > 256 || sim_once_in(SIM_SCHEDULE, sim_preempt_in))
        sim_sleep_ns(500 + sim_below(SIM_SCHEDULE, sim_once_in(SIM_SCHEDULE, 16) ? 500000 : 5000));
}

void (*sim_on_change)(void);
void (*sim_on_end)(struct sim_process *process);

static void process_end(struct sim_process *process);

void sim_run(uint64_t until_ns)
{
    while (heap_count > 0 && !sim_failed && heap[0].time_ns <= until_ns) {
        struct entry entry = heap[0];
        heap_take(0);
        sim_now_ns = entry.time_ns;
        sim_events++;
        if (entry.function != NULL) {
            entry.function(entry.argument);
            continue;
        }
        struct sim_fiber *fiber = entry.argument;
        if (fiber->process->stopped || fiber->process->asleep || fiber->is_halted) {
            fiber->next_parked = fiber->process->parked;
            fiber->process->parked = fiber;
            if (fiber->is_waiting)
                fiber->timed_out = true;
            fiber->is_waiting = false;
            continue;
        }
        if (fiber->is_waiting)
            fiber->timed_out = true;
        fiber->is_waiting = false;
        sim_note((uint64_t)(fiber - fibers) << 8 | 1);
        if (fiber->awaited != NULL && !*fiber->awaited) { /* what it would do, without a switch */
            fiber_queue(fiber, sim_now_ns + fiber->look_ns);
            continue;
        }
        to_fiber(fiber);
        if (fiber->process->closing && fiber->process->alive)
            process_end(fiber->process);
    }
    if (!sim_failed && until_ns != SIM_NEVER && sim_now_ns < until_ns)
        sim_now_ns = until_ns;
}

/* ---- processes ---- */

static void *process_main(void *argument)
{
    struct sim_process *process = argument;
    process->run(process);
    process->closing = true; /* the rest is the driver's: a stack cannot take itself away */
    return NULL;
}

static void process_end(struct sim_process *process)
{
    process->alive = false;
    process->core = NULL;
    process->parked = NULL;
    while (process->fibers != NULL)
        fiber_unlink(process->fibers);
    if (sim_on_end != NULL)
        sim_on_end(process);
    if (image_of == process)
        image_of = NULL;
    if (sim_on_change != NULL)
        sim_on_change();
}

struct sim_process *sim_process_start(uint32_t place, const char *name, uint32_t machine,
                                      void (*run)(struct sim_process *process))
{
    struct sim_process *process = &sim_processes[place];
    if (process->alive)
        process_end(process);
    process->place = place;
    process->life++;
    snprintf(process->name, sizeof(process->name), "%s", name);
    process->alive = true;
    process->stopped = process->asleep = process->closing = false;
    process->halted = 0;
    process->stopped_at_ns = sim_now_ns;
    process->stopped_ns = 0;
    process->had_no_room = false;
    process->wall_s = 0;
    process->address = place + 1;
    process->machine = machine;
    process->port_next = (uint16_t)(40000 + process->life * 100);
    process->key_count = 0;
    process->fd_top = 3;
    process->run = run;
    process->core = NULL;
    if (image_pristine == NULL) {
        image_pristine = malloc(image_size() + 1);
        if (image_pristine == NULL)
            abort();
        memcpy(image_pristine, __start_mc_vars, image_size());
    }
    if (process->image == NULL)
        process->image = malloc(image_size() + 1);
    if (process->image == NULL)
        abort();
    memcpy(process->image, image_pristine, image_size());
    sim_say("%s starts (life %u)", name, process->life);
    if (fiber_make(process, process_main, process) == NULL)
        abort();
    if (sim_on_change != NULL)
        sim_on_change();
    return process;
}

void sim_process_kill(struct sim_process *process)
{
    if (!process->alive)
        return;
    sim_say("%s is killed", process->name);
    sim_note(process->place << 8 | 2);
    process_end(process);
}

/* Before one more thing holds it up. */
static void still_begin(struct sim_process *process)
{
    if (sim_is_running(process))
        process->stopped_at_ns = sim_now_ns;
}

/* After one thing less does. What waited to run is looked at again. */
static void still_end(struct sim_process *process)
{
    if (sim_is_running(process))
        process->stopped_ns += sim_now_ns - process->stopped_at_ns;
    struct sim_fiber *parked = process->stopped || process->asleep ? NULL : process->parked;
    if (parked != NULL)
        process->parked = NULL;
    while (parked != NULL) {
        struct sim_fiber *fiber = parked;
        parked = fiber->next_parked;
        fiber_queue(fiber, sim_now_ns + sim_below(SIM_SCHEDULE, 50000));
    }
    if (sim_on_change != NULL)
        sim_on_change();
}

void sim_process_stop(struct sim_process *process)
{
    if (!process->alive || process->stopped)
        return;
    sim_say("%s is stopped", process->name);
    still_begin(process);
    process->stopped = true;
    if (sim_on_change != NULL)
        sim_on_change();
}

void sim_process_continue(struct sim_process *process)
{
    if (!process->alive || !process->stopped)
        return;
    sim_say("%s goes on", process->name);
    process->stopped = false;
    still_end(process);
}

void sim_process_sleep(struct sim_process *process)
{
    if (!process->alive || process->asleep)
        return;
    still_begin(process);
    process->asleep = true;
    if (sim_on_change != NULL)
        sim_on_change();
}

void sim_process_wake(struct sim_process *process)
{
    if (!process->alive || !process->asleep)
        return;
    process->asleep = false;
    still_end(process);
}

bool sim_thread_halt(struct sim_process *process, const char *name)
{
    struct sim_fiber *fiber = name == NULL ? sim_fiber : process->alive ? process->fibers : NULL;
    while (name != NULL && fiber != NULL && (fiber->finished || fiber->is_halted || strcmp(fiber->name, name) != 0))
        fiber = fiber->next;
    if (fiber == NULL)
        return false;
    sim_say("thread %s of %s stands still", fiber->name, process->name);
    still_begin(process);
    process->halted++;
    fiber->is_halted = true;
    if (sim_on_change != NULL)
        sim_on_change();
    return true;
}

void sim_threads_continue(struct sim_process *process)
{
    if (!process->alive || process->halted == 0)
        return;
    sim_say("all threads of %s go on", process->name);
    for (struct sim_fiber *fiber = process->fibers; fiber != NULL; fiber = fiber->next)
        fiber->is_halted = false;
    process->halted = 0;
    still_end(process);
}

uint64_t sim_process_stopped_ns(const struct sim_process *process)
{
    return process->stopped_ns + (sim_is_running(process) ? 0 : sim_now_ns - process->stopped_at_ns);
}

void sim_reset(uint64_t seed)
{
    for (uint32_t i = 0; i < SIM_PROCESSES_MAX; i++) {
        sim_processes[i].alive = false;
        sim_processes[i].fibers = sim_processes[i].parked = NULL;
        sim_processes[i].core = NULL;
        sim_processes[i].life = 0;
        memset(sim_processes[i].fds, 0, sizeof(sim_processes[i].fds));
    }
    for (uint32_t i = 0; i < FIBERS_MAX; i++)
        fibers[i] = (struct sim_fiber){.stack = fibers[i].stack};
    sim_on_change = NULL;
    sim_on_end = NULL;
    image_of = NULL;
    memset(queued_at, 0, sizeof(queued_at));
    heap_count = 0;
    order_next = 0;
    run_used = 0;
    sim_now_ns = 10000 * SIM_MS; /* machines have been up for a while */
    sim_messages = sim_events = 0;
    sim_hash = seed;
    sim_failed = false;
    sim_random_start(seed);
}

/* ---- verdicts ---- */

void sim_trace(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%12.6f %-9s ", (double)(sim_now_ns - 10000 * SIM_MS) / 1e9,
           sim_process() != NULL ? sim_process()->name : "-");
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

void sim_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!sim_failed)
        vsnprintf(sim_failure, sizeof(sim_failure), format, arguments);
    va_end(arguments);
    if (!sim_failed)
        sim_say("FAILURE: %s", sim_failure);
    sim_failed = true;
    if (sim_fiber != NULL)
        to_driver();
}
