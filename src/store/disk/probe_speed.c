/* The probe of a folder: how fast a file there is written and read, and whether what is read is what was written. */
#include "store/disk/probe.h"

#include "env/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define MEMORY ((size_t)MC_DISK_PROBE_DEPTH * MC_DISK_PROBE_BLOCK)
#define READ_LEAST 200000000u /* bytes a second, below which a hit hardly pays */
#define WRITE_LEAST 100000000u

struct speed_run {
    struct mc_disk_io *io;
    uint64_t next, end, until_ns; /* bytes of the file; when no more is begun */
    uint64_t moved;
    int error;
    bool is_wrong;
    struct speed_lane {
        struct mc_disk_request request;
        struct speed_run *run;
    } lanes[MC_DISK_PROBE_DEPTH];
};

/* Each page begins with its place in the file. */
static void stamp_block(const struct mc_disk_request *request)
{
    for (uint64_t at = 0; at < request->length; at += MC_DISK_IO_ALIGNMENT)
        *(uint64_t *)(void *)((char *)request->buffer + at) = request->offset + at;
}
static bool has_stamps(const struct mc_disk_request *request)
{
    for (uint64_t at = 0; at < request->length; at += MC_DISK_IO_ALIGNMENT)
        if (*(const uint64_t *)(const void *)((const char *)request->buffer + at) != request->offset + at)
            return false;
    return true;
}

static void begin_block(struct speed_lane *lane)
{
    struct speed_run *run = lane->run;
    struct mc_disk_request *request = &lane->request;
    if (run->next == run->end || run->error != 0 || mc_clock_ns() >= run->until_ns)
        return;
    request->offset = run->next;
    run->next += request->length;
    if (request->operation == MC_DISK_WRITE)
        stamp_block(request);
    mc_disk_io_submit(run->io, request);
}

static void end_block(struct mc_disk_request *request, int64_t result)
{
    struct speed_lane *lane = (struct speed_lane *)(void *)request;
    struct speed_run *run = lane->run;
    if (result < 0)
        run->error = (int)-result;
    else
        run->moved += (uint64_t)result;
    if (result >= 0 && request->operation == MC_DISK_READ)
        run->is_wrong = run->is_wrong || result != request->length || !has_stamps(request);
    begin_block(lane);
}

static void end_sync(struct mc_disk_request *request, int64_t result)
{
    struct speed_lane *lane = (struct speed_lane *)(void *)request;
    if (result < 0)
        lane->run->error = (int)-result;
}

static void collect_all(struct mc_disk_io *io)
{
    while (mc_disk_io_oldest_ns(io) != 0)
        (void)mc_disk_io_collect(io, -1);
}

/* One way through the file; bytes a second, those of a last fdatasync among them. */
static uint64_t run_once(struct speed_run *run, enum mc_disk_operation operation, int fd, uint8_t *memory, uint64_t end)
{
    uint64_t start_ns = mc_clock_ns();
    *run = (struct speed_run){.io = run->io, .end = end, .until_ns = start_ns + MC_DISK_PROBE_NS};
    for (unsigned i = 0; i < MC_DISK_PROBE_DEPTH; i++) {
        run->lanes[i] = (struct speed_lane){.run = run,
                                            .request = {.operation = operation,
                                                        .fd = fd,
                                                        .buffer = memory + (size_t)i * MC_DISK_PROBE_BLOCK,
                                                        .length = MC_DISK_PROBE_BLOCK,
                                                        .done = end_block}};
        begin_block(&run->lanes[i]);
    }
    collect_all(run->io);
    if (operation == MC_DISK_WRITE) {
        run->lanes[0].request.operation = MC_DISK_SYNC;
        run->lanes[0].request.done = end_sync;
        mc_disk_io_submit(run->io, &run->lanes[0].request);
        collect_all(run->io);
    }
    uint64_t took_ns = mc_clock_ns() - start_ns;
    return (uint64_t)((double)run->moved * 1e9 / (double)(took_ns + 1));
}

static void say_speed(struct mc_disk_probe *probe, const char *name, uint64_t rate, uint64_t least)
{
    bool is_slow = rate < least;
    mc_disk_probe_say(probe, is_slow ? MC_DISK_WARNED : MC_DISK_FIT, name, 0,
                      is_slow
                          ? "computing anew may be faster than such a disk: is it busy, or throttled? Choose a local "
                            "SSD, or leave the disk tier off here"
                          : NULL,
                      "%llu MB/s (blocks of 1 MiB, %u at a time%s)", (unsigned long long)rate / 1000000,
                      MC_DISK_PROBE_DEPTH, probe->alignment != 0 ? ", O_DIRECT" : ", through the kernel's cache");
}

void mc_disk_probe_speed(struct mc_disk_probe *probe, int fd, uint64_t size)
{
    struct speed_run run = {.io = NULL};
    /* Shared: a fork meanwhile takes no page away from under a DMA. */
    uint8_t *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int rc = memory == MAP_FAILED ? -ENOMEM : mc_disk_io_open(MC_DISK_IO_AUTO, MC_DISK_PROBE_DEPTH, &run.io);
    if (rc < 0) {
        mc_disk_probe_say(probe, MC_DISK_NOTED, "speed", -rc, NULL, "cannot be tried");
        goto out;
    }
    for (size_t i = 0; i < MEMORY / sizeof(uint64_t); i++) /* nothing that a file system could make small */
        ((uint64_t *)(void *)memory)[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    uint64_t rate = run_once(&run, MC_DISK_WRITE, fd, memory, size);
    if (run.error == 0) {
        probe->write_per_second = rate;
        say_speed(probe, "write", rate, WRITE_LEAST);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* what it can, where the cache is in between */
        memset(memory, 0, MEMORY);
        rate = run_once(&run, MC_DISK_READ, fd, memory, run.moved);
    }
    if (run.error != 0)
        mc_disk_probe_say(probe, MC_DISK_UNFIT, probe->write_per_second == 0 ? "write" : "read", run.error,
                          "look in the kernel's log (dmesg) for what the device says; choose another disk",
                          "fails after %llu MiB", (unsigned long long)(run.moved >> 20));
    else if (run.is_wrong)
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "read", 0, "do not use this disk for anything",
                          "what was read is not what was written");
    else {
        probe->read_per_second = rate;
        say_speed(probe, "read", rate, READ_LEAST);
    }
    mc_disk_io_close(run.io);
out:
    if (memory != MAP_FAILED)
        munmap(memory, MEMORY);
}
