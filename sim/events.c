/* libevent's functions as far as the product uses them, on simulated descriptors and the virtual clock. */
#include "file.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

void *sim_calloc(size_t count, size_t size);
void sim_free(void *pointer);

struct one_event { /* lies in a struct event */
    struct event_base *base;
    struct one_event *next, *previous; /* of those added */
    struct one_event *next_active;
    struct sim_file *file;
    struct sim_watch watch;
    event_callback_fn callback;
    void *argument;
    uint64_t due_ns, period_ns;
    short what, result;
    int fd;
    bool is_added, is_active;
};
_Static_assert(sizeof(struct one_event) <= sizeof(struct event), "an event of ours fits into one of libevent's");

struct event_base {
    struct one_event added; /* ring */
    struct one_event *active, **active_end;
    struct sim_fiber *waiting;
    bool stop;
};

struct event_base *sim_event_base_new(void);
struct event_base *sim_event_base_new(void)
{
    struct event_base *base = sim_calloc(1, sizeof(*base));
    if (base == NULL)
        return NULL;
    base->added.next = base->added.previous = &base->added;
    base->active_end = &base->active;
    return base;
}

struct event_config *sim_event_config_new(void);
struct event_config *sim_event_config_new(void)
{
    return sim_calloc(1, 8);
}

int sim_event_config_set_flag(struct event_config *config, int flag);
int sim_event_config_set_flag(struct event_config *config, int flag)
{
    (void)config, (void)flag;
    return 0;
}

void sim_event_config_free(struct event_config *config);
void sim_event_config_free(struct event_config *config)
{
    sim_free(config);
}

struct event_base *sim_event_base_new_with_config(const struct event_config *config);
struct event_base *sim_event_base_new_with_config(const struct event_config *config)
{
    (void)config;
    return sim_event_base_new();
}

void sim_event_base_free(struct event_base *base);
void sim_event_base_free(struct event_base *base)
{
    sim_free(base);
}

int sim_event_base_loopbreak(struct event_base *base);
int sim_event_base_loopbreak(struct event_base *base)
{
    base->stop = true;
    return 0;
}

int sim_event_assign(struct one_event *event, struct event_base *base, evutil_socket_t fd, short what,
                     event_callback_fn callback, void *argument);
int sim_event_assign(struct one_event *event, struct event_base *base, evutil_socket_t fd, short what,
                     event_callback_fn callback, void *argument)
{
    *event = (struct one_event){.base = base,
                                .file = fd < 0 ? NULL : sim_fd_file((int)fd),
                                .callback = callback,
                                .argument = argument,
                                .due_ns = SIM_NEVER,
                                .fd = (int)fd,
                                .what = what};
    return 0;
}

struct one_event *sim_event_new(struct event_base *base, evutil_socket_t fd, short what, event_callback_fn callback,
                                void *argument);
struct one_event *sim_event_new(struct event_base *base, evutil_socket_t fd, short what, event_callback_fn callback,
                                void *argument)
{
    struct one_event *event = sim_calloc(1, sizeof(struct event));
    if (event != NULL)
        (void)sim_event_assign(event, base, fd, what, callback, argument);
    return event;
}

static void active_remove(struct one_event *event)
{
    struct event_base *base = event->base;
    struct one_event **at = &base->active;
    if (!event->is_active)
        return;
    while (*at != event)
        at = &(*at)->next_active;
    *at = event->next_active;
    if (*at == NULL)
        base->active_end = at;
    event->is_active = false;
}

int sim_event_del(struct one_event *event);
int sim_event_del(struct one_event *event)
{
    active_remove(event);
    event->due_ns = SIM_NEVER;
    if (!event->is_added)
        return 0;
    event->is_added = false;
    event->next->previous = event->previous;
    event->previous->next = event->next;
    if (event->file != NULL)
        sim_watch_remove(event->file, &event->watch);
    return 0;
}

int sim_event_add(struct one_event *event, const struct timeval *after);
int sim_event_add(struct one_event *event, const struct timeval *after)
{
    struct event_base *base = event->base;
    if (after != NULL) {
        event->period_ns = (uint64_t)after->tv_sec * 1000000000u + (uint64_t)after->tv_usec * 1000u;
        event->due_ns = sim_monotonic_ns(sim_process()) + event->period_ns;
    }
    if (event->is_added)
        return 0;
    event->is_added = true;
    event->next = &base->added;
    event->previous = base->added.previous;
    event->previous->next = event->next->previous = event;
    event->watch.fiber = &base->waiting;
    if (event->file != NULL)
        sim_watch_add(event->file, &event->watch);
    return 0;
}

void sim_event_active(struct one_event *event, int result, short calls);
void sim_event_active(struct one_event *event, int result, short calls)
{
    (void)calls;
    if (event->is_active)
        return;
    event->is_active = true;
    event->result = (short)result;
    event->next_active = NULL;
    *event->base->active_end = event;
    event->base->active_end = &event->next_active;
}

void sim_event_free(struct one_event *event);
void sim_event_free(struct one_event *event)
{
    if (event == NULL)
        return;
    (void)sim_event_del(event);
    sim_free(event);
}

int sim_event_pending(const struct one_event *event, short what, struct timeval *due);
int sim_event_pending(const struct one_event *event, short what, struct timeval *due)
{
    (void)due;
    return event->is_added ? event->what & what : 0;
}

/* Puts what is ready into the active list; returns when the next timer is due. */
static uint64_t collect(struct event_base *base)
{
    uint64_t next_ns = SIM_NEVER, now_ns = sim_monotonic_ns(sim_process());
    for (struct one_event *event = base->added.next; event != &base->added; event = event->next) {
        short result = 0;
        if (event->file != NULL && (event->what & EV_READ) != 0 && sim_file_readable(event->file))
            result |= EV_READ;
        if (event->file != NULL && (event->what & EV_WRITE) != 0 && sim_file_writable(event->file))
            result |= EV_WRITE;
        if (event->due_ns <= now_ns)
            result |= EV_TIMEOUT;
        else if (event->due_ns < next_ns)
            next_ns = event->due_ns;
        if (result != 0)
            sim_event_active(event, result, 0);
    }
    return next_ns;
}

/* The lowest descriptor of it, which hardly ever is another than it was made with. */
static int fd_of(const struct one_event *event)
{
    struct sim_file *const *fds = sim_process()->fds;
    if (event->file == NULL || fds[event->fd] == event->file)
        return event->file == NULL ? -1 : event->fd;
    for (int fd = 3; fd < sim_process()->fd_top; fd++) {
        if (fds[fd] == event->file)
            return fd;
    }
    return -1;
}

int sim_event_base_loop(struct event_base *base, int flags);
int sim_event_base_loop(struct event_base *base, int flags)
{
    base->stop = false;
    do {
        uint64_t next_ns = collect(base);
        while (base->active == NULL && (flags & EVLOOP_NONBLOCK) == 0) {
            base->waiting = sim_fiber;
            (void)sim_wait(sim_world_ns(sim_process(), next_ns));
            base->waiting = NULL;
            next_ns = collect(base);
        }
        while (base->active != NULL) {
            struct one_event *event = base->active;
            short result = event->result;
            active_remove(event);
            if ((event->what & EV_PERSIST) == 0)
                (void)sim_event_del(event);
            else if (event->due_ns != SIM_NEVER && (result & EV_TIMEOUT) != 0)
                event->due_ns = sim_monotonic_ns(sim_process()) + event->period_ns;
            event->callback(fd_of(event), result, event->argument);
        }
    } while ((flags & EVLOOP_ONCE) == 0 && !base->stop && base->added.next != &base->added);
    return 0;
}
