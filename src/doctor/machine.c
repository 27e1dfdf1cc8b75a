/* The machine: what its memory, processors and clock are like, as far as it matters for a pool of memory. */
#include "doctor/doctor.h"

#include "base/build.h"
#include "base/checksum.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#define KIB 1024

static int64_t meminfo(const struct mc_doctor *doctor, const char *key)
{
    int64_t kilobytes = mc_doctor_member(doctor, "/proc/meminfo", key, 10);
    return kilobytes < 0 ? -1 : kilobytes * KIB;
}

void mc_check_system(struct mc_doctor *doctor)
{
    struct utsname names;
    char line[MC_DOCTOR_LINE_MAX];
    if (uname(&names) == 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "kernel", 0, NULL, "%s %s %s", names.sysname, names.release,
                      names.machine);
    mc_doctor_say(doctor, MC_VERDICT_FINE, "version", 0, NULL, "mooncake %s", mc_build());
    if (mc_doctor_line(doctor, line, "/proc/sys/kernel/random/boot_id"))
        mc_doctor_say(doctor, MC_VERDICT_FINE, "boot id", 0, NULL, "%s", line);
}

void mc_check_processors(struct mc_doctor *doctor)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int usable = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int)online;
    mc_doctor_say(doctor, usable == 1 ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "processors", 0,
                  usable == 1
                      ? "with one processor sender and receiver take turns; give the process two (taskset, cpuset)"
                      : NULL,
                  "%d usable of %ld online", usable, online);
    bool has_crc = strcmp(mc_crc32c_way(), "table") != 0;
    mc_doctor_say(doctor, has_crc ? MC_VERDICT_FINE : MC_VERDICT_WARNING, "CRC32C", 0,
                  has_crc ? NULL : "checksums are slow on this processor: MC_CHECKSUM=slot leaves them out",
                  has_crc ? "by the processor (%s)"
                          : "by a %s: the processor has no instruction for it, or MC_CHECKSUM_BY leaves it out",
                  mc_crc32c_way());
}

void mc_check_memory(struct mc_doctor *doctor)
{
    char total[32], available[32];
    int64_t all = meminfo(doctor, "MemTotal"), left = meminfo(doctor, "MemAvailable");
    if (all < 0 || left < 0)
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "memory", 0, NULL, "/proc/meminfo cannot be read");
    else
        mc_doctor_say(doctor, left < all / 20 ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "memory", 0,
                      left < all / 20 ? "less than 5 % is left: lend a smaller segment" : NULL, "%s, %s available",
                      mc_doctor_size(total, (uint64_t)all), mc_doctor_size(available, (uint64_t)left));
}

/* ---- control groups ---- */

/* The least value of that file from the process's group up to the root; INT64_MAX: no limit; -1: no such file. */
static int64_t least_of_groups(const struct mc_doctor *doctor, const char *group, const char *file)
{
    char path[MC_DOCTOR_LINE_MAX];
    int64_t least = -1;
    snprintf(path, sizeof(path), "%s", group);
    for (;;) {
        int64_t number = mc_doctor_number(doctor, "/sys/fs/cgroup%s/%s", strcmp(path, "/") == 0 ? "" : path, file);
        if (number >= 0 && (least < 0 || number < least))
            least = number;
        char *slash = strrchr(path, '/');
        if (slash == NULL || path[0] == 0 || strcmp(path, "/") == 0)
            return least;
        *slash = 0;
    }
}

static void find_group(const struct mc_doctor *doctor, char group[MC_DOCTOR_LINE_MAX])
{
    char line[MC_DOCTOR_LINE_MAX];
    bool is_second = mc_doctor_line(doctor, line, "/proc/self/cgroup") && strncmp(line, "0::/", 4) == 0;
    snprintf(group, MC_DOCTOR_LINE_MAX, "%s", is_second ? line + 3 : "/");
}

static void say_group_memory(struct mc_doctor *doctor, int64_t limit, int64_t used)
{
    char most[32], now[32];
    if (limit < 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "cgroup memory", 0, NULL, "no limit that can be seen");
        return;
    }
    bool is_unlimited = limit > INT64_MAX / 2;
    bool is_tight = !is_unlimited && used >= 0 && used > limit / 20 * 19;
    snprintf(now, sizeof(now), "?");
    if (used >= 0)
        mc_doctor_size(now, (uint64_t)used);
    mc_doctor_say(
        doctor, is_tight ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "cgroup memory", 0,
        is_tight
            ? "a segment and its pages count towards this limit: raise it (docker --memory, resources.limits.memory) "
              "or lend less"
            : NULL,
        "%s%s, %s used", is_unlimited ? "no limit" : "limit ",
        is_unlimited ? "" : mc_doctor_size(most, (uint64_t)limit), now);
}

void mc_check_cgroup(struct mc_doctor *doctor)
{
    char group[MC_DOCTOR_LINE_MAX], line[MC_DOCTOR_LINE_MAX];
    long long quota = 0, period = 0;
    find_group(doctor, group);
    int64_t limit = least_of_groups(doctor, group, "memory.max");
    int64_t used = mc_doctor_number(doctor, "/sys/fs/cgroup%s/memory.current", strcmp(group, "/") == 0 ? "" : group);
    if (limit < 0) { /* the first version */
        limit = mc_doctor_number(doctor, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
        used = mc_doctor_number(doctor, "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    }
    say_group_memory(doctor, limit, used);
    if (mc_doctor_linef(doctor, line, "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") == 0 ? "" : group) &&
        sscanf(line, "%lld %lld", &quota, &period) == 2 && period > 0)
        mc_doctor_say(
            doctor, MC_VERDICT_NOTE, "cgroup processors", 0,
            "a process that has used its share stands still for tens of milliseconds: p99 suffers; raise cpu.max "
            "(docker --cpus, resources.limits.cpu) or drop it",
            "%.2f processors", (double)quota / (double)period);
}

/* ---- how memory is given out ---- */

void mc_check_overcommit(struct mc_doctor *doctor)
{
    char limit[32], used[32];
    int64_t mode = mc_doctor_number(doctor, "/proc/sys/vm/overcommit_memory");
    int64_t most = meminfo(doctor, "CommitLimit"), now = meminfo(doctor, "Committed_AS");
    static const char *const meanings[] = {"0: by estimate", "1: always granted", "2: strictly accounted"};
    if (mode < 0 || mode > 2) {
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "overcommit", 0, NULL, "vm.overcommit_memory cannot be read");
        return;
    }
    if (mode != 2 || most < 0 || now < 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "overcommit", 0, NULL, "vm.overcommit_memory %s", meanings[mode]);
        return;
    }
    mc_doctor_say(
        doctor, MC_VERDICT_WARNING, "overcommit", 0,
        "a segment above what is left is refused: sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        "vm.overcommit_memory %s: %s of %s committed", meanings[mode], mc_doctor_size(used, (uint64_t)now),
        mc_doctor_size(limit, (uint64_t)most));
}

void mc_check_huge_pages(struct mc_doctor *doctor)
{
    char **names, line[MC_DOCTOR_LINE_MAX], size[32], name[96];
    size_t count = mc_doctor_folder(doctor, "/sys/kernel/mm/hugepages", &names);
    for (size_t i = 0; i < count; i++) {
        unsigned long long kilobytes = 0;
        if (sscanf(names[i], "hugepages-%llukB", &kilobytes) != 1)
            continue;
        int64_t all = mc_doctor_number(doctor, "/sys/kernel/mm/hugepages/%s/nr_hugepages", names[i]);
        int64_t left = mc_doctor_number(doctor, "/sys/kernel/mm/hugepages/%s/free_hugepages", names[i]);
        snprintf(name, sizeof(name), "huge pages of %s", mc_doctor_size(size, kilobytes * KIB));
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "%" PRId64 " reserved, %" PRId64 " free", all, left);
    }
    mc_doctor_free_names(names, count);
    if (mc_doctor_line(doctor, line, "/sys/kernel/mm/transparent_hugepage/enabled")) {
        bool is_off = strstr(line, "[never]") != NULL;
        mc_doctor_say(doctor, is_off ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "transparent huge pages", 0,
                      is_off ? "large buffers are copied and registered faster with them: echo madvise > "
                               "/sys/kernel/mm/transparent_hugepage/enabled"
                             : NULL,
                      "%s", line);
    }
    if (mc_doctor_line(doctor, line, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
        mc_doctor_say(doctor, MC_VERDICT_FINE, "the same for shared memory", 0, NULL, "%s", line);
}

void mc_check_numa(struct mc_doctor *doctor)
{
    char **names, line[MC_DOCTOR_LINE_MAX], path[256], total[32];
    size_t count = mc_doctor_folder(doctor, "/sys/devices/system/node", &names), nodes = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned node;
        char key[32];
        if (sscanf(names[i], "node%u", &node) != 1)
            continue;
        nodes++;
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/meminfo", node);
        snprintf(key, sizeof(key), "Node %u MemTotal", node);
        int64_t kilobytes = mc_doctor_member(doctor, path, key, 10);
        if (!mc_doctor_linef(doctor, line, "/sys/devices/system/node/node%u/cpulist", node))
            snprintf(line, sizeof(line), "?");
        snprintf(key, sizeof(key), "NUMA node %u", node);
        mc_doctor_say(doctor, MC_VERDICT_FINE, key, 0, NULL, "processors %s, %s", line,
                      kilobytes < 0 ? "memory ?" : mc_doctor_size(total, (uint64_t)kilobytes * KIB));
    }
    mc_doctor_free_names(names, count);
    if (nodes == 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "NUMA", 0, NULL, "one node");
    if (nodes > 1 && mc_doctor_number(doctor, "/proc/sys/kernel/numa_balancing") > 0)
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "NUMA balancing", 0,
                      "pages move while they are copied from: sysctl kernel.numa_balancing=0", "on");
}

void mc_check_shared_memory(struct mc_doctor *doctor)
{
    char path[MC_DOCTOR_LINE_MAX], size[32], left[32];
    struct statvfs status;
    if (!mc_doctor_path(doctor, path, "/dev/shm") || statvfs(path, &status) != 0) {
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "/dev/shm", errno, NULL,
                      "not there; only MC_DATA_DIR=/dev/shm/... needs it");
        return;
    }
    uint64_t block = status.f_frsize, total = block * status.f_blocks, available = block * status.f_bavail;
    bool is_small = total <= 64u << 20;
    mc_doctor_say(
        doctor, is_small ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "/dev/shm", 0,
        is_small
            ? "a data directory (MC_DATA_DIR) there holds no more than this: docker --shm-size, an emptyDir of medium "
              "Memory, or another tmpfs"
            : NULL,
        "%s, %s free", mc_doctor_size(size, total), mc_doctor_size(left, available));
}

void mc_check_clock(struct mc_doctor *doctor)
{
    char line[MC_DOCTOR_LINE_MAX];
    struct timex status = {0};
    if (mc_doctor_line(doctor, line, "/sys/devices/system/clocksource/clocksource0/current_clocksource")) {
        bool is_slow = strcmp(line, "hpet") == 0 || strcmp(line, "acpi_pm") == 0 || strcmp(line, "xen") == 0;
        mc_doctor_say(doctor, is_slow ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "clock source", 0,
                      is_slow ? "each look at the clock is a system call: choose another in "
                                "/sys/devices/system/clocksource/clocksource0 (tsc, kvm-clock, arch_sys_counter)"
                              : NULL,
                      "%s", line);
    }
    if (adjtimex(&status) < 0)
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "time", errno, NULL, "whether it is synchronised cannot be seen");
    else
        mc_doctor_say(doctor, (status.status & STA_UNSYNC) != 0 ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "time", 0,
                      (status.status & STA_UNSYNC) != 0 ? "only epochs of masters and lines of logs depend on it: run "
                                                          "chrony or another NTP client where masters run"
                                                        : NULL,
                      (status.status & STA_UNSYNC) != 0 ? "not synchronised with others" : "synchronised");
}
