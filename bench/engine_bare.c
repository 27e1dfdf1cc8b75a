/* What the machine can do at all, over the very buffers of a measurement: plain loops over process_vm_*, TCP and
 * memcpy; and the same loop around the C API of the transfer engine, so that both are called in the same way. A shared
 * object for bench/engine_worker.py. Every loop runs for so long, at least twice, and notes the time of each call. */
#include "tool/plain.h"

#include "mooncake_engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BARE __attribute__((visibility("default")))
#define VM_CALL_MAX ((uint64_t)0x7ffff000) /* the kernel moves no more in one call */

struct loop { /* as engine_worker.py has it */
    uint64_t near, far, size, slots, length_ns;
    uint64_t *ns;
    uint64_t ns_max;
    int32_t is_write;
};

struct ask { /* of the bare TCP loop */
    uint64_t is_write, offset, size;
};

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Calls `one` with the offset of each slot in turn. The number of calls, or -1. */
static int64_t repeat(const struct loop *loop, int (*one)(void *, const struct loop *, uint64_t), void *context)
{
    uint64_t count = 0, start_ns = clock_ns(), before_ns = start_ns, now_ns;
    do {
        if (one(context, loop, count % loop->slots * loop->size) != 0)
            return -1;
        now_ns = clock_ns();
        loop->ns[count++] = now_ns - before_ns;
        before_ns = now_ns;
    } while (count < loop->ns_max && (count < 2 || now_ns - start_ns < loop->length_ns));
    return (int64_t)count;
}

/* ---- memcpy: between two buffers of this process ---- */

static int copy_one(void *context, const struct loop *loop, uint64_t offset)
{
    (void)context;
    uint8_t *near = (uint8_t *)(uintptr_t)loop->near, *far = (uint8_t *)(uintptr_t)loop->far;
    memcpy((loop->is_write ? far : near) + offset, (loop->is_write ? near : far) + offset, loop->size);
    __asm__ volatile("" ::: "memory");
    return 0;
}

BARE int64_t bare_copy(const struct loop *loop)
{
    return repeat(loop, copy_one, NULL);
}

/* ---- process_vm ---- */

static int vm_one(void *context, const struct loop *loop, uint64_t offset)
{
    pid_t pid = *(const int32_t *)context;
    for (uint64_t at = 0; at < loop->size;) {
        uint64_t part = loop->size - at < VM_CALL_MAX ? loop->size - at : VM_CALL_MAX;
        struct iovec near = {(void *)(uintptr_t)(loop->near + offset + at), part};
        struct iovec far = {(void *)(uintptr_t)(loop->far + offset + at), part};
        ssize_t moved =
            loop->is_write ? process_vm_writev(pid, &near, 1, &far, 1, 0) : process_vm_readv(pid, &near, 1, &far, 1, 0);
        if (moved <= 0)
            return -1;
        at += (uint64_t)moved;
    }
    return 0;
}

BARE int64_t bare_vm(const struct loop *loop, int32_t pid)
{
    return repeat(loop, vm_one, &pid);
}

/* ---- TCP ---- */

struct server {
    int listener;
    uint8_t *memory;
    uint64_t size;
};

static void serve_one(const struct server *server, int fd)
{
    struct ask ask;
    uint64_t done = 0;
    while (mc_plain_receive(fd, &ask, sizeof(ask)) && ask.offset <= server->size &&
           ask.size <= server->size - ask.offset) {
        bool good = ask.is_write ? mc_plain_receive(fd, server->memory + ask.offset, ask.size)
                                 : mc_plain_send(fd, server->memory + ask.offset, ask.size);
        if (!good || (ask.is_write && !mc_plain_send(fd, &done, sizeof(done))))
            break;
    }
}

static void *serve(void *context)
{
    const struct server *server = context;
    for (;;) {
        int fd = mc_plain_accept(server->listener);
        if (fd < 0)
            return NULL;
        serve_one(server, fd);
        close(fd);
    }
}

/* A thread of this process answers for that memory until the process ends. The port, or -1. */
BARE int32_t bare_tcp_serve(uint64_t memory, uint64_t size)
{
    pthread_t thread;
    uint16_t port;
    struct server *server = malloc(sizeof(*server));
    if (server == NULL)
        return -1;
    *server = (struct server){mc_plain_listen(&port), (uint8_t *)(uintptr_t)memory, size};
    if (server->listener < 0 || pthread_create(&thread, NULL, serve, server) != 0)
        return -1;
    (void)pthread_detach(thread);
    return port;
}

BARE int32_t bare_tcp_connect(uint16_t port)
{
    return mc_plain_connect(port);
}

/* A write ends with the other side's word that it has the bytes, as the engine's do. */
static int tcp_one(void *context, const struct loop *loop, uint64_t offset)
{
    int fd = *(const int32_t *)context;
    uint8_t *near = (uint8_t *)(uintptr_t)loop->near + offset;
    struct ask ask = {(uint64_t)loop->is_write, offset, loop->size};
    uint64_t done;
    if (!loop->is_write)
        return mc_plain_send(fd, &ask, sizeof(ask)) && mc_plain_receive(fd, near, loop->size) ? 0 : -1;
    struct iovec parts[2] = {{&ask, sizeof(ask)}, {near, loop->size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < (ssize_t)sizeof(ask)) /* so little is never cut */
        return -1;
    uint64_t at = (uint64_t)sent - sizeof(ask);
    return mc_plain_send(fd, near + at, loop->size - at) && mc_plain_receive(fd, &done, sizeof(done)) ? 0 : -1;
}

BARE int64_t bare_tcp(const struct loop *loop, int32_t fd)
{
    return repeat(loop, tcp_one, &fd);
}

/* ---- the engine, in the same loop ---- */

typedef int transfer_run(struct mc_transfer_engine *engine, const char *target, enum mc_transfer_opcode opcode,
                         const struct mc_transfer_item *items, size_t count, const struct mc_transfer_note *note);

struct engine_call {
    transfer_run *run;
    struct mc_transfer_engine *engine;
    const char *target;
    uint32_t batch;
    struct mc_transfer_item *items;
};

static int engine_one(void *context, const struct loop *loop, uint64_t offset)
{
    const struct engine_call *call = context;
    uint64_t part = loop->size / call->batch;
    for (uint32_t i = 0; i < call->batch; i++)
        call->items[i] = (struct mc_transfer_item){(void *)(uintptr_t)(loop->near + offset + i * part),
                                                   loop->far + offset + i * part, part};
    return call->run(call->engine, call->target, loop->is_write ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, call->items,
                     call->batch, NULL);
}

/* loop->size is of the whole batch. */
BARE int64_t bare_engine(const struct loop *loop, transfer_run *run, struct mc_transfer_engine *engine,
                         const char *target, uint32_t batch)
{
    struct engine_call call = {run, engine, target, batch, calloc(batch, sizeof(*call.items))};
    int64_t count = call.items == NULL ? -1 : repeat(loop, engine_one, &call);
    free(call.items);
    return count;
}
