/* env/harden: what a hardened process still can, and what it cannot any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/harden.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

/* In a process of its own; 0, or the number of the first thing that is not as it should be. */
static int in_child(int (*function)(void))
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(function());
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int hardened(void)
{
    char error[256] = "";
    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return -1;
    int rc = mc_harden(error, sizeof(error));
    if (rc < 0)
        fprintf(stderr, "%s\n", error);
    return rc;
}

#define REFUSED(call) (errno = 0, (call) < 0 && (errno == ENOSYS || errno == EPERM))
#define EXPECT(number, what)                                                                                           \
    if (!(what))                                                                                                       \
    return number

static int cannot(void)
{
    char *const nothing[] = {(char *)"true", NULL};
    EXPECT(1, hardened() == 0);
    EXPECT(2, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    EXPECT(3, prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2);
    EXPECT(4, REFUSED(execve("/bin/true", nothing, nothing)) && errno == ENOSYS);
    EXPECT(5, REFUSED(ptrace(PTRACE_TRACEME, 0, NULL, NULL)) && errno == ENOSYS);
    EXPECT(6, REFUSED(unshare(CLONE_NEWUSER)) && errno == ENOSYS);
    EXPECT(7, REFUSED(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL)) && errno == ENOSYS);
    EXPECT(8, REFUSED(syscall(SYS_clone3, NULL, 0)) && errno == ENOSYS);
    EXPECT(9, REFUSED(mount("none", "/tmp", "tmpfs", 0, NULL)) && errno == ENOSYS);
    EXPECT(10, REFUSED(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0)) && errno == ENOSYS);
    EXPECT(11, REFUSED(syscall(SYS_bpf, 0, NULL, 0)) && errno == ENOSYS);
    EXPECT(12, REFUSED(setuid(0)));
    EXPECT(13, REFUSED(kill(getppid(), 0)) && errno == ENOSYS);
    return 0;
}

static void *set(void *argument)
{
    *(int *)argument = 1;
    return NULL;
}

static int can(void)
{
    int value = 0, pair[2];
    char byte = 5;
    pthread_t thread;
    EXPECT(1, hardened() == 0);
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    EXPECT(2, fd >= 0 && read(fd, &byte, 1) == 1 && close(fd) == 0);
    EXPECT(3, pthread_create(&thread, NULL, set, &value) == 0 && pthread_join(thread, NULL) == 0 && value == 1);
    EXPECT(4, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    EXPECT(5, write(pair[0], &byte, 1) == 1 && read(pair[1], &byte, 1) == 1);
    EXPECT(6, geteuid() != 0);
    return 0;
}

/* By the calls of the C library, which chooses what it asks the kernel for: on aarch64 another call than on x86-64. */
static int can_by_library(void)
{
    int fds[2];
    char text[8];
    struct stat status;
    struct timeval none = {0};
    EXPECT(1, hardened() == 0);
    EXPECT(2, rename("/nonexistent/a", "/nonexistent/b") < 0 && errno == ENOENT);
    EXPECT(3, unlink("/nonexistent/a") < 0 && errno == ENOENT);
    EXPECT(4, mkdir("/nonexistent/a", 0700) < 0 && errno == ENOENT);
    EXPECT(5, access("/", R_OK) == 0 && stat("/", &status) == 0 && lstat("/", &status) == 0);
    EXPECT(6, readlink("/", text, sizeof(text)) < 0 && errno == EINVAL);
    EXPECT(7, pipe(fds) == 0 && dup2(fds[0], fds[1]) == fds[1] && fstat(fds[0], &status) == 0);
    EXPECT(8, poll(NULL, 0, 0) == 0 && select(0, NULL, NULL, NULL, &none) == 0);
    EXPECT(9, eventfd(0, EFD_CLOEXEC) >= 0);
    return 0;
}

/* What can be asked for under several names: a C library takes any that the architecture has. */
#ifdef __x86_64__
#define OLD(name) __NR_##name
#else
#define OLD(name) (-1) /* later architectures began without */
#endif
#ifdef __NR_renameat
#define RENAMEAT __NR_renameat
#else
#define RENAMEAT (-1)
#endif

static void test_all_names_of_what_it_can(void **state)
{
    (void)state;
    static const long names[][3] = {
        {OLD(rename), RENAMEAT, __NR_renameat2},
        {OLD(unlink), __NR_unlinkat, -1},
        {OLD(mkdir), __NR_mkdirat, -1},
        {OLD(open), __NR_openat, -1},
        {OLD(access), __NR_faccessat, -1},
        {OLD(readlink), __NR_readlinkat, -1},
        {OLD(stat), __NR_newfstatat, __NR_statx},
        {OLD(lstat), __NR_fstat, -1},
        {OLD(dup2), __NR_dup3, __NR_dup},
        {OLD(pipe), __NR_pipe2, -1},
        {OLD(poll), __NR_ppoll, -1},
        {OLD(select), __NR_pselect6, -1},
        {OLD(epoll_create), __NR_epoll_create1, -1},
        {OLD(epoll_wait), __NR_epoll_pwait, -1},
        {OLD(eventfd), __NR_eventfd2, -1},
        {OLD(signalfd), __NR_signalfd4, -1},
        {OLD(time), __NR_gettimeofday, __NR_clock_gettime},
        {__NR_accept, __NR_accept4, -1},
        {__NR_getrlimit, __NR_prlimit64, -1},
        {__NR_nanosleep, __NR_clock_nanosleep, -1},
        {__NR_tkill, __NR_tgkill, -1}, /* of abort: musl's and glibc's */
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t j = 0; j < 3; j++)
            if (names[i][j] >= 0 && !mc_harden_allows((unsigned)names[i][j]))
                fail_msg("call %ld is not allowed, row %zu", names[i][j], i);
    assert_false(mc_harden_allows(__NR_execve));
    assert_false(mc_harden_allows(__NR_mount));
}

static void test_what_it_cannot(void **state)
{
    (void)state;
    assert_int_equal(in_child(cannot), 0);
}

static void test_what_it_can(void **state)
{
    (void)state;
    assert_int_equal(in_child(can), 0);
}

static void test_what_it_can_by_the_library(void **state)
{
    (void)state;
    assert_int_equal(in_child(can_by_library), 0);
}

static int user_of_nobody(void)
{
    uid_t user;
    gid_t group;
    char error[256];
    EXPECT(1, geteuid() != 0 || setresuid(NOBODY, NOBODY, NOBODY) == 0);
    EXPECT(2, mc_harden_user(&user, &group, error, sizeof(error)) == 0);
    EXPECT(3, user == geteuid() && group == getegid());
    return 0;
}

static void test_who_is_not_root_stays_who_it_is(void **state)
{
    (void)state;
    assert_int_equal(in_child(user_of_nobody), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_it_cannot),
        cmocka_unit_test(test_what_it_can),
        cmocka_unit_test(test_what_it_can_by_the_library),
        cmocka_unit_test(test_all_names_of_what_it_can),
        cmocka_unit_test(test_who_is_not_root_stays_who_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
