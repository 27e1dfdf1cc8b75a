/* The ports under the product's disk room (store/disk/io.h): operations of files that take a drawn time, end in any
 * order, and fail, are late or torn when the run wants it. Nothing of a process runs while they are under way: it is
 * the driver that ends them, as a kernel would, whether the process stands still or not. */
#include "disk.h"

#include "pages.h"

#include "store/disk/io.h"

#include <string.h>

#define PAGE 4096u
#define MACHINES_MAX SIM_PROCESSES_MAX

struct operation {
    struct operation *next;
    struct mc_disk_io *io; /* NULL: its process has ended */
    struct mc_disk_request *request;
    struct sim_memory *memory;
    struct sim_sync sync;
    int64_t result;
};
struct mc_disk_io { /* of one process, as long as that lives */
    struct mc_disk_io *next;
    struct sim_process *process;
    uint32_t life;
    struct sim_fiber *waiter;
    bool is_woken;
    struct operation *under_way, *ended, **ended_end;
};

static struct mc_disk_io *ios;
static struct operation *spares;
static struct state {
    uint64_t slow_until_ns, fails_until_ns;
    uint32_t slow_ms, in;
    int error;
    enum sim_disk_part part;
} states[MACHINES_MAX];

void sim_disks_reset(void)
{
    ios = NULL;
    spares = NULL;
    sim_disks_well();
}

/* ---- what happens to them ---- */

void sim_disk_slow(uint32_t machine, uint32_t most_ms, uint64_t until_ns)
{
    sim_say("the disk of machine %u answers after up to %u ms", machine, most_ms);
    states[machine].slow_ms = most_ms;
    states[machine].slow_until_ns = until_ns;
}

void sim_disk_fail(uint32_t machine, int error, uint32_t in, enum sim_disk_part part, uint64_t until_ns)
{
    static const char *const names[] = {"operations of the disk", "operations of the journals", "writes to the disk"};
    sim_say("one of %u %s of machine %u %s", in, names[part], machine, error == ENOSPC ? "finds no room" : "fails");
    states[machine].error = error;
    states[machine].part = part;
    states[machine].in = in;
    states[machine].fails_until_ns = until_ns;
}

bool sim_disk_fails(uint32_t machine, int error)
{
    const struct state *state = &states[machine];
    return sim_now_ns < state->fails_until_ns && state->error == error && sim_once_in(SIM_DISKS, state->in);
}

void sim_disks_well(void)
{
    memset(states, 0, sizeof(states));
}

static uint64_t delay_draw(uint32_t machine)
{
    static const uint32_t most_us[] = {60, 200, 1000, 6000};
    const struct state *state = &states[machine];
    uint64_t us = 10 + sim_below(SIM_DISKS, most_us[sim_below(SIM_DISKS, 4)]);
    if (sim_now_ns < state->slow_until_ns && sim_once_in(SIM_DISKS, 3))
        us += sim_below(SIM_DISKS, state->slow_ms * 1000);
    return us * 1000;
}

/* ---- one operation ---- */

/* It has not come to its end. */
static void sync_drop(const struct operation *operation)
{
    uint64_t size;
    if (operation->request->operation == MC_DISK_SYNC)
        sim_pages_sync_drop(sim_memory_pages(operation->memory, &size));
}

static bool is_of(const struct operation *operation, enum sim_disk_part part)
{
    if (part == SIM_DISK_ALL)
        return true;
    return operation->request->operation != MC_DISK_READ &&
           (part == SIM_DISK_WRITES || strstr(sim_memory_name(operation->memory), "/clears.") != NULL);
}

/* All that asks for room finds none, and the journal had none ahead. */
static bool is_full(uint32_t machine)
{
    const struct state *state = &states[machine];
    return sim_now_ns < state->fails_until_ns && state->error == ENOSPC && state->in == 1;
}

static int64_t operation_do(struct operation *operation)
{
    const struct mc_disk_request *request = operation->request;
    uint32_t machine = operation->io->process->machine;
    uint64_t size;
    if (is_of(operation, states[machine].part) && sim_disk_fails(machine, EIO)) {
        sync_drop(operation);
        return -EIO;
    }
    switch (request->operation) {
    case MC_DISK_READ:
        return sim_memory_read_at(operation->memory, request->buffer, request->length, request->offset);
    case MC_DISK_WRITE: {
        if (is_full(machine) && is_of(operation, SIM_DISK_JOURNALS))
            return -ENOSPC;
        int rc = sim_memory_write_at(operation->memory, request->buffer, request->length, request->offset);
        return rc != 0 ? -rc : (int64_t)request->length;
    }
    case MC_DISK_CALL: /* of the process: when that hears of it */
        return 0;
    default:
        sim_pages_sync_end(sim_memory_pages(operation->memory, &size), operation->sync);
        return 0;
    }
}

static void operation_forget(struct operation *operation)
{
    operation->next = spares;
    spares = operation;
}

static void on_due(void *argument)
{
    struct operation *operation = argument;
    struct mc_disk_io *io = operation->io;
    if (io == NULL) {
        operation_forget(operation);
        return;
    }
    struct operation **at = &io->under_way;
    while (*at != operation)
        at = &(*at)->next;
    *at = operation->next;
    operation->result = operation_do(operation);
    operation->next = NULL;
    *io->ended_end = operation;
    io->ended_end = &operation->next;
    if (io->waiter != NULL)
        sim_wake(io->waiter);
}

/* Of a write that its process does not see the end of each page is there or not. */
static void operation_tear(const struct operation *operation)
{
    const struct mc_disk_request *request = operation->request;
    uint32_t in = 1 + sim_below(SIM_DISKS, 3);
    for (uint32_t at = 0; request->operation == MC_DISK_WRITE && at < request->length; at += PAGE) {
        uint32_t length = request->length - at < PAGE ? request->length - at : PAGE;
        if (sim_once_in(SIM_DISKS, in))
            (void)sim_memory_write_at(operation->memory, (const uint8_t *)request->buffer + at, length,
                                      request->offset + at);
    }
}

void sim_disks_end(struct sim_process *process)
{
    struct mc_disk_io **link = &ios;
    while (*link != NULL) {
        struct mc_disk_io *io = *link;
        if (io->process != process || io->life != process->life) {
            link = &io->next;
            continue;
        }
        for (struct operation *one = io->under_way, *next; one != NULL; one = next) {
            next = one->next;
            operation_tear(one);
            sync_drop(one);
            one->io = NULL;
        }
        *link = io->next;
    }
}

/* ---- the table of ports ---- */

static int io_open(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **opened)
{
    struct mc_disk_io *io = sim_allocate(sizeof(*io));
    (void)kind, (void)depth;
    *io = (struct mc_disk_io){.next = ios, .process = sim_process(), .life = sim_process()->life};
    io->ended_end = &io->ended;
    ios = io;
    *opened = io;
    return 0;
}

static void io_submit(struct mc_disk_io *io, struct mc_disk_request *request)
{
    struct operation *operation = spares;
    uint64_t size;
    if (operation == NULL)
        operation = sim_allocate(sizeof(*operation));
    else
        spares = operation->next;
    request->begun_ns = sim_monotonic_ns(io->process);
    *operation = (struct operation){.io = io, .request = request, .memory = sim_memory_of(request->fd)};
    if (operation->memory == NULL) {
        sim_fail("an operation of a descriptor that is no file of a disk");
        return;
    }
    if (request->operation == MC_DISK_SYNC) {
        struct sim_pages *pages = sim_memory_pages(operation->memory, &size);
        operation->sync = sim_pages_sync_begin(pages, size);
    }
    operation->next = io->under_way;
    io->under_way = operation;
    sim_at(sim_now_ns + delay_draw(io->process->machine), on_due, operation);
}

static unsigned ended_take(struct mc_disk_io *io)
{
    unsigned count = 0;
    for (struct operation *one; (one = io->ended) != NULL; count++) {
        struct mc_disk_request *request = one->request;
        int64_t result = one->result;
        io->ended = one->next;
        if (io->ended == NULL)
            io->ended_end = &io->ended;
        operation_forget(one);
        if (request->operation == MC_DISK_CALL && result == 0)
            result = request->call(request);
        request->done(request, result); /* may begin others, and wait for a lock meanwhile */
    }
    return count;
}

static unsigned io_collect(struct mc_disk_io *io, int timeout_ms)
{
    uint64_t until_ns = timeout_ms < 0 ? SIM_NEVER : sim_now_ns + (uint32_t)timeout_ms * SIM_MS;
    for (;;) {
        unsigned count = ended_take(io);
        bool is_woken = io->is_woken;
        io->is_woken = false;
        if (count > 0 || is_woken || sim_now_ns >= until_ns)
            return count;
        io->waiter = sim_fiber;
        (void)sim_wait(until_ns);
        io->waiter = NULL;
    }
}

static void io_wake(struct mc_disk_io *io)
{
    io->is_woken = true;
    if (io->waiter != NULL)
        sim_wake(io->waiter);
}

static void io_close(struct mc_disk_io *io)
{
    while (io->under_way != NULL || io->ended != NULL)
        (void)io_collect(io, -1);
    struct mc_disk_io **link = &ios;
    while (*link != io)
        link = &(*link)->next;
    *link = io->next;
}

const struct mc_disk_ports sim_disk_ports = {
    .open = io_open, .submit = io_submit, .collect = io_collect, .wake = io_wake, .close = io_close};
