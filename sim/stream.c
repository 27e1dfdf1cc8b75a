/* Descriptors, and the bytes between sockets: streams of segments that arrive after a drawn delay, in order within a
 * connection; partitions, breaks, and ways that are slow for a while. */
#include "file.h"

#include <stdlib.h>
#include <string.h>

#define SEGMENT_SMALL 1008u

struct sim_file *sim_listeners, *sim_streams;
static struct sim_segment *spare;
static uint32_t partitions[SIM_PROCESSES_MAX];
static struct slow_way { /* one at a time */
    uint32_t from, to;
    uint64_t until_ns;
} slow_way;

void sim_net_reset(void)
{
    /* The files lie in the run's memory; the segments of streams are taken back. */
    for (struct sim_file *file = sim_streams; file != NULL; file = file->next) {
        while (file->in.first != NULL) {
            struct sim_segment *segment = file->in.first;
            file->in.first = segment->next;
            free(segment);
        }
    }
    sim_listeners = sim_streams = NULL;
    memset(partitions, 0, sizeof(partitions));
    slow_way = (struct slow_way){0};
}

void sim_partitions_end(void)
{
    memset(partitions, 0, sizeof(partitions));
    if (sim_on_change != NULL)
        sim_on_change();
}

void sim_partition(uint32_t a, uint32_t b, bool is_cut)
{
    if (is_cut) {
        partitions[a] |= 1u << b;
        partitions[b] |= 1u << a;
    } else {
        partitions[a] &= ~(1u << b);
        partitions[b] &= ~(1u << a);
    }
    if (sim_on_change != NULL)
        sim_on_change();
}

void sim_way_cut(uint32_t from, uint32_t to, bool is_cut)
{
    partitions[from] = is_cut ? partitions[from] | 1u << to : partitions[from] & ~(1u << to);
    if (sim_on_change != NULL)
        sim_on_change();
}

bool sim_is_way_cut(uint32_t from, uint32_t to)
{
    return (partitions[from] >> to & 1u) != 0;
}

void sim_slow_way(uint32_t from, uint32_t to, uint64_t until_ns)
{
    slow_way = (struct slow_way){from, to, until_ns};
}

bool sim_is_partitioned(uint32_t a, uint32_t b)
{
    return sim_is_way_cut(a, b) || sim_is_way_cut(b, a);
}

/* ---- files ---- */

struct sim_file *sim_file_make(enum sim_file_kind kind)
{
    struct sim_file *file = sim_allocate(sizeof(*file));
    file->kind = kind;
    file->references = 1;
    file->process = sim_process();
    file->process_life = file->process == NULL ? 0 : file->process->life;
    return file;
}

int sim_fd_give(struct sim_file *file)
{
    if (!sim_is_short(SIM_SHORT_FILES))
        return sim_fd_put(file);
    sim_file_release(file);
    errno = EMFILE;
    return -1;
}

int sim_fd_put(struct sim_file *file)
{
    struct sim_process *process = sim_process();
    for (int fd = 3; fd < (int)SIM_FDS_MAX; fd++) {
        if (process->fds[fd] == NULL) {
            process->fds[fd] = file;
            if (fd >= process->fd_top)
                process->fd_top = fd + 1;
            return fd;
        }
    }
    sim_file_release(file);
    errno = EMFILE;
    return -1;
}

struct sim_file *sim_fd_file(int fd)
{
    struct sim_file *file = fd < 0 || fd >= (int)SIM_FDS_MAX ? NULL : sim_process()->fds[fd];
    if (file == NULL)
        errno = EBADF;
    return file;
}

void sim_watch_add(struct sim_file *file, struct sim_watch *watch)
{
    watch->next = file->watches;
    file->watches = watch;
}

void sim_watch_remove(struct sim_file *file, struct sim_watch *watch)
{
    struct sim_watch **at = &file->watches;
    while (*at != NULL && *at != watch)
        at = &(*at)->next;
    if (*at != NULL)
        *at = watch->next;
}

void sim_file_changed(struct sim_file *file)
{
    for (struct sim_watch *watch = file->watches; watch != NULL; watch = watch->next)
        if (watch->fiber != NULL && *watch->fiber != NULL)
            sim_wake(*watch->fiber);
}

bool sim_file_readable(const struct sim_file *file)
{
    switch (file->kind) {
    case SIM_LISTENER:
        return file->backlog_count > 0;
    case SIM_STREAM:
        return file->in.first != file->in.coming || file->is_reset || file->read_shut;
    case SIM_EVENT:
        return file->count > 0;
    default:
        return false;
    }
}

bool sim_file_writable(const struct sim_file *file)
{
    if (file->kind == SIM_EVENT)
        return true;
    if (file->kind == SIM_SOCKET)
        return !file->is_connecting && file->connect_error != 0;
    return file->kind == SIM_STREAM &&
           (file->is_reset || file->peer_gone || file->peer == NULL || file->peer->in.held < SIM_FLOW_BYTES_MAX);
}

/* ---- bytes on their way ---- */

struct sim_segment *sim_segment_make(size_t length)
{
    struct sim_segment *segment;
    if (length <= SEGMENT_SMALL && spare != NULL) {
        segment = spare;
        spare = segment->next;
    } else {
        size_t capacity = length <= SEGMENT_SMALL ? SEGMENT_SMALL : length;
        segment = malloc(sizeof(*segment) + capacity);
        if (segment == NULL)
            abort();
        segment->capacity = (uint32_t)capacity;
    }
    segment->next = NULL;
    segment->length = length;
    segment->read = 0;
    segment->fd_count = 0;
    segment->is_end = false;
    return segment;
}

void sim_segment_free(struct sim_segment *segment)
{
    for (uint32_t i = 0; i < segment->fd_count; i++)
        sim_file_release(segment->fds[i]);
    if (segment->capacity != SEGMENT_SMALL) {
        free(segment);
        return;
    }
    segment->next = spare;
    spare = segment;
}

uint64_t sim_delay_ns(const struct sim_file *from)
{
    if (from->is_unix)
        return 500 + sim_below(SIM_NET, 5000);
    uint64_t most_us = sim_once_in(SIM_NET, 32) ? sim_delay_us_max * 16ull : sim_delay_us_max;
    return 5000 + sim_below(SIM_NET, (uint32_t)most_us * 1000u + 1);
}

static void flow_drop(struct sim_flow *flow)
{
    while (flow->first != NULL) {
        struct sim_segment *segment = flow->first;
        flow->first = segment->next;
        sim_segment_free(segment);
    }
    *flow = (struct sim_flow){0};
}

static void stream_reset(void *argument)
{
    struct sim_file *file = argument;
    if (file->is_closed || file->is_reset)
        return;
    file->is_reset = true;
    flow_drop(&file->in);
    sim_file_changed(file);
}

/* The next segment of the flow towards `file` is there. */
static void on_arrival(void *argument)
{
    struct sim_file *file = argument;
    struct sim_segment *segment = file->in.coming;
    if (segment == NULL)
        return; /* the connection was reset meanwhile */
    if (!file->is_unix && sim_is_way_cut(file->peer->process->place, file->process->place)) {
        file->peer->resent++;
        sim_at(sim_now_ns + SIM_RETRY_NS + sim_below(SIM_NET, 1000000), on_arrival, file);
        return;
    }
    if (sim_now_ns < file->stalled_until_ns) {
        sim_at(file->stalled_until_ns, on_arrival, file);
        return;
    }
    if (file->peer != NULL && !sim_is_way_cut(file->process->place, file->peer->process->place)) {
        file->peer->confirmed_ns = sim_now_ns;
        file->peer->confirmed_bytes += segment->length;
    }
    sim_messages++;
    sim_note(segment->length << 8 | 3);
    file->in.coming = segment->next;
    if (file->is_closed) {
        bool is_end = segment->is_end;
        flow_drop(&file->in);
        if (!is_end && file->peer != NULL)
            sim_at(sim_now_ns + sim_delay_ns(file), stream_reset, file->peer);
        return;
    }
    sim_file_changed(file);
}

void sim_flow_send(struct sim_file *from, struct sim_segment *segment)
{
    struct sim_file *to = from->peer;
    struct sim_flow *flow = &to->in;
    if (flow->last != NULL && flow->first != NULL)
        flow->last->next = segment;
    else
        flow->first = segment;
    flow->last = segment;
    if (flow->coming == NULL)
        flow->coming = segment;
    flow->held += segment->length;
    uint64_t due_ns = sim_now_ns + sim_delay_ns(from);
    if (sim_now_ns < slow_way.until_ns && !from->is_unix && from->process->place == slow_way.from &&
        to->process->place == slow_way.to)
        due_ns += (5000 + sim_below(SIM_EXTRA, 40000)) * 1000ull;
    flow->due_ns = due_ns > flow->due_ns ? due_ns : flow->due_ns;
    sim_at(flow->due_ns, on_arrival, to);
}

void sim_send_end(struct sim_file *file)
{
    if (file->peer == NULL || file->is_reset || file->write_shut)
        return;
    struct sim_segment *segment = sim_segment_make(0);
    segment->is_end = true;
    sim_flow_send(file, segment);
}

static void stream_close(struct sim_file *file)
{
    bool has_unread = file->in.first != file->in.coming && !(file->in.first->is_end);
    if (file->peer != NULL && has_unread && !file->is_reset)
        sim_at(sim_now_ns + sim_delay_ns(file), stream_reset, file->peer);
    else
        sim_send_end(file);
    file->is_closed = true;
    if (file->peer != NULL)
        file->peer->peer_gone = file->is_unix;
    /* What is still coming is answered by a reset when it arrives. */
    while (file->in.first != file->in.coming) {
        struct sim_segment *segment = file->in.first;
        file->in.first = segment->next;
        sim_segment_free(segment);
    }
    if (file->in.first == NULL)
        file->in.last = NULL;
}

void sim_file_release(struct sim_file *file)
{
    if (--file->references > 0)
        return;
    if (file->kind == SIM_STREAM) {
        stream_close(file);
    } else if (file->kind == SIM_LISTENER) {
        for (struct sim_file **at = &sim_listeners; *at != NULL; at = &(*at)->next) {
            if (*at == file) {
                *at = file->next;
                break;
            }
        }
        for (uint32_t i = 0; i < file->backlog_count; i++)
            sim_file_release(file->backlog[i]);
        file->backlog_count = 0;
    } else if (file->on_release != NULL) {
        file->on_release(file);
    }
    file->is_closed = true;
}

void sim_process_close_files(struct sim_process *process)
{
    for (int fd = 3; fd < process->fd_top; fd++) {
        struct sim_file *file = process->fds[fd];
        process->fds[fd] = NULL;
        if (file == NULL)
            continue;
        file->watches = NULL; /* they were on stacks and in memory that is gone */
        sim_file_release(file);
    }
    process->fd_top = 3;
}

bool sim_break_connection(void)
{
    uint32_t count = 0;
    struct sim_file *chosen = NULL;
    for (struct sim_file *file = sim_streams; file != NULL; file = file->next) {
        if (!file->is_unix && !file->is_closed && !file->is_reset && sim_below(SIM_FAULTS, ++count) == 0)
            chosen = file;
    }
    if (chosen == NULL)
        return false;
    sim_say("the connection between %s and %s breaks", chosen->process->name, chosen->peer->process->name);
    stream_reset(chosen);
    stream_reset(chosen->peer);
    return true;
}

static bool is_between(const struct sim_file *file, uint32_t a, uint32_t b)
{
    if (file->is_unix || file->is_closed || file->is_reset || file->peer == NULL)
        return false;
    uint32_t one = file->process->place, other = file->peer->process->place;
    return (one == a && other == b) || (one == b && other == a);
}

void sim_cut_connections(uint32_t a, uint32_t b)
{
    for (struct sim_file *file = sim_streams; file != NULL; file = file->next) {
        if (is_between(file, a, b))
            stream_reset(file);
    }
}

void sim_stall_connections(uint32_t a, uint32_t b, uint64_t until_ns)
{
    for (struct sim_file *file = sim_streams; file != NULL; file = file->next) {
        if (is_between(file, a, b))
            file->stalled_until_ns = until_ns;
    }
}
