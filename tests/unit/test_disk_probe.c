/* What the probe says of a folder: of paths that cannot be, of file systems without room, rights or O_DIRECT, of a
 * kernel that forbids io_uring. File systems of its own are mounted where the machine allows it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "directory.h"
#include "env/clock.h"
#include "forbidden.h"
#include "store/disk/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define CANNOT_BE_TRIED 77
#define CALL_SETUP 425

static char folder[256], path[600]; /* a folder of the test's own; a path in it */
static struct mc_disk_probe probe;

static int set_up(void **state)
{
    const char *build = getenv("MC_BUILD");
    (void)state;
    snprintf(folder, sizeof(folder), "%s/test_disk_probe_XXXXXX", build != NULL ? build : "/tmp");
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    char command[512];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const struct mc_disk_finding *finding(const char *name)
{
    for (unsigned i = 0; i < probe.count; i++)
        if (strcmp(probe.findings[i].name, name) == 0)
            return &probe.findings[i];
    return NULL;
}

/* It is there, is as good, holds that text, and says what to do if anything is wrong. For a child: no assertion. */
static bool says(const char *name, enum mc_disk_fitness fitness, const char *part, int error)
{
    const struct mc_disk_finding *found = finding(name);
    bool is_so = found != NULL && found->fitness == fitness && strstr(found->value, part) != NULL &&
                 found->error == error && (fitness < MC_DISK_WARNED || found->fix != NULL);
    if (!is_so)
        print_message("%s: %s, fitness %d, error %d\n", name, found == NULL ? "(nothing)" : found->value,
                      found == NULL ? -1 : (int)found->fitness, found == NULL ? 0 : found->error);
    return is_so;
}

static void assert_unfit(const char *where, const char *part, int error)
{
    mc_disk_probe(where, true, &probe);
    assert_true(says("path", MC_DISK_UNFIT, part, error));
    assert_int_equal(probe.count, 1); /* nothing else is tried there */
    assert_ptr_equal(mc_disk_probe_unfit(&probe), &probe.findings[0]);
}

static void paths_that_cannot_be(void **state)
{
    static char long_path[PATH_MAX + 100];
    (void)state;
    assert_unfit("", "not absolute", 0);
    assert_unfit("data", "not absolute", 0);
    assert_unfit("/tmp/../tmp", "\"..\"", 0);
    assert_unfit("/tmp/..", "\"..\"", 0);
    assert_unfit(in_folder("missing"), "missing", ENOENT);
    assert_unfit(in_folder("..missing..x"), "missing", ENOENT); /* no word of its own */
    memset(long_path, 'x', sizeof(long_path) - 1);
    long_path[0] = '/';
    assert_unfit(long_path, "bytes", ENAMETOOLONG);
    int fd = open(in_folder("file"), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_unfit(path, "not a folder", 0);
    assert_unfit(in_folder("file/below"), "below", ENOTDIR);
    assert_int_equal(symlink(folder, in_folder("link")), 0);
    assert_unfit(path, "symbolic link", 0);
    assert_unfit(in_folder("link///"), "symbolic link", 0); /* behind a slash it would be followed */
    assert_int_equal(symlink("nowhere", in_folder("dead")), 0);
    assert_unfit(path, "symbolic link", 0);
}

static void a_folder_that_is_fit(void **state)
{
    (void)state;
    unsigned names = count_of(folder), files = count_of("/proc/self/fd");
    uint64_t start_ns = mc_clock_ns();
    mc_disk_probe(folder, true, &probe);
    for (unsigned i = 0; i < probe.count; i++)
        print_message("  %d %s: %s\n", (int)probe.findings[i].fitness, probe.findings[i].name, probe.findings[i].value);
    assert_null(mc_disk_probe_unfit(&probe));
    assert_true(says("path", MC_DISK_FIT, folder, 0) && says("locks", MC_DISK_FIT, "works", 0));
    assert_true(finding("file system") != NULL && finding("O_DIRECT") != NULL && finding("io_uring") != NULL &&
                finding("free space") != NULL && finding("preallocation") != NULL);
    assert_true(probe.free_bytes > 0 && (probe.alignment & (probe.alignment - 1)) == 0);
    if (probe.free_bytes > 4u << 20)
        assert_true(probe.read_per_second > 0 && probe.write_per_second > 0);
    assert_true(mc_clock_ns() - start_ns < UINT64_C(60000000000)); /* a busy disk's last fdatasync among it */
    assert_int_equal(count_of(folder), names);                     /* nothing stays */
    assert_int_equal(count_of("/proc/self/fd"), files);
    snprintf(path, sizeof(path), "%s//", folder);
    mc_disk_probe(path, false, &probe);
    assert_true(mc_disk_probe_unfit(&probe) == NULL && probe.read_per_second == 0 && finding("write") == NULL);
}

static void memory_is_no_disk(void **state)
{
    struct statfs status;
    (void)state;
    if (statfs("/dev/shm", &status) != 0 || status.f_type != 0x01021994)
        skip();
    mc_disk_probe("/dev/shm", false, &probe);
    assert_true(says("file system", MC_DISK_WARNED, "tmpfs", 0));
    assert_true(strstr(finding("file system")->fix, "SSD") != NULL);
    assert_null(mc_disk_probe_unfit(&probe));
}

/* ---- in a child that may do less, or sees other mounts ---- */

static void assert_child(int (*function)(void))
{
    int status = 0;
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int code = function();
        (void)fflush(NULL);
        _exit(code);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT_BE_TRIED) {
        print_message("this machine does not allow it\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int probe_as_nobody(void)
{
    if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return CANNOT_BE_TRIED;
    mc_disk_probe("/", true, &probe);
    return !says("writing", MC_DISK_UNFIT, "no file", EACCES) || mc_disk_probe_unfit(&probe) == NULL;
}
static void without_rights(void **state)
{
    (void)state;
    assert_child(probe_as_nobody);
}

static int probe_with_small_files(void)
{
    struct rlimit limit = {3u << 20, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return CANNOT_BE_TRIED;
    mc_disk_probe(folder, true, &probe); /* the signal for too large a file would end this process */
    if (!says("file size limit", MC_DISK_WARNED, "0.003", 0) || mc_disk_probe_unfit(&probe) != NULL)
        return 1;
    limit.rlim_cur = 1000;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 2;
    mc_disk_probe(folder, true, &probe);
    return says("file size limit", MC_DISK_UNFIT, "0.000", 0) ? 0 : 3;
}
static void files_must_be_small(void **state)
{
    (void)state;
    assert_child(probe_with_small_files);
}

static int probe_without_uring(void)
{
    if (!forbid_call(CALL_SETUP, EPERM))
        return CANNOT_BE_TRIED;
    mc_disk_probe(folder, true, &probe);
    if (!says("io_uring", MC_DISK_NOTED, "not allowed", EPERM) || finding("io_uring")->fix == NULL)
        return 1;
    return mc_disk_probe_unfit(&probe) != NULL; /* and its speed is that of the threads */
}
static void io_uring_is_forbidden(void **state)
{
    (void)state;
    assert_child(probe_without_uring);
}

/* Mounts of this process's own from now on. */
static bool has_own_mounts(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static int probe_read_only(void)
{
    if (!has_own_mounts() || mount("test", folder, "tmpfs", MS_RDONLY, "size=64m") != 0)
        return CANNOT_BE_TRIED;
    mc_disk_probe(folder, true, &probe);
    return !says("writing", MC_DISK_UNFIT, "no file", EROFS) || strstr(finding("writing")->fix, "read-only") == NULL ||
           !says("file system", MC_DISK_WARNED, "tmpfs on test", 0);
}
static void a_read_only_mount(void **state)
{
    (void)state;
    assert_child(probe_read_only);
}

static int probe_small(void)
{
    if (!has_own_mounts() || mkdir(in_folder("a b\\c"), 0700) != 0 || mount("test", path, "tmpfs", 0, "size=8m") != 0)
        return CANNOT_BE_TRIED;
    mc_disk_probe(path, true, &probe);
    return !says("free space", MC_DISK_WARNED, "0.0 of 0.0 GiB", 0) || mc_disk_probe_unfit(&probe) != NULL ||
           probe.write_per_second == 0 || !says("file system", MC_DISK_WARNED, "a b\\c", 0);
}
static void little_room(void **state)
{
    (void)state;
    assert_child(probe_small);
}

static int probe_loop(bool is_full)
{
    char command[2000], image[300];
    snprintf(image, sizeof(image), "%s.image", folder);
    snprintf(command, sizeof(command),
             "truncate -s 160M '%s' && mkfs.ext4 -q -F '%s' && mount -o loop '%s' '%s' && rm '%s'", image, image, image,
             folder, image);
    if (!has_own_mounts() || system(command) != 0) {
        (void)unlink(image);
        return CANNOT_BE_TRIED;
    }
    int fd = is_full ? open(in_folder("all"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    static const char zeros[65536];
    for (size_t length = sizeof(zeros); is_full && length > 0;)
        if (write(fd, zeros, length) <= 0)
            length /= 2;
    mc_disk_probe(folder, true, &probe);
    if (!says("file system", MC_DISK_FIT, "ext4 on /dev/loop", 0))
        return 1;
    if (!is_full)
        return probe.alignment == 0 || probe.read_per_second == 0 || mc_disk_probe_unfit(&probe) != NULL ? 2 : 0;
    if (mc_disk_probe_unfit(&probe) == NULL || !says("writing", MC_DISK_UNFIT, "", ENOSPC))
        return 3;
    return says("free space", MC_DISK_WARNED, "0.0 of 0.1", 0) && strstr(finding("writing")->fix, "make room") != NULL
               ? 0
               : 4;
}
static int probe_empty_loop(void)
{
    return probe_loop(false);
}
static int probe_full_loop(void)
{
    return probe_loop(true);
}
static void a_disk_of_its_own(void **state)
{
    (void)state;
    assert_child(probe_empty_loop);
}
static void a_full_disk(void **state)
{
    (void)state;
    assert_child(probe_full_loop);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(paths_that_cannot_be), TEST(a_folder_that_is_fit),  TEST(memory_is_no_disk), TEST(without_rights),
        TEST(files_must_be_small),  TEST(io_uring_is_forbidden), TEST(a_read_only_mount), TEST(little_room),
        TEST(a_disk_of_its_own),    TEST(a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
