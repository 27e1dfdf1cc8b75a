/* What a hardened process may still ask of the kernel. */
#include "env/harden.h"

#include "base/error.h"
#include "env/log.h"

#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#define NAMESPACES                                                                                                     \
    (CLONE_NEWTIME | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |      \
     CLONE_NEWNET)

/* The ones of each request first: the filter goes through the list. Where two do the same, libraries use either; some
 * of the older ones are not there on aarch64. clone3 is left out, since its flags cannot be looked at: clone is taken
 * instead. */
static const uint16_t allowed[] = {
    __NR_epoll_pwait,
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_recvfrom,
    __NR_recvmsg,
    __NR_sendto,
    __NR_sendmsg,
    __NR_futex,
    __NR_epoll_ctl,
    __NR_accept4,
    __NR_close,
    __NR_clock_gettime,
    __NR_timerfd_settime,
    /* files */
    __NR_openat,
    __NR_fstat,
    __NR_newfstatat,
    __NR_statx,
    __NR_statfs,
    __NR_fstatfs,
    __NR_lseek,
    __NR_pread64,
    __NR_pwrite64,
    __NR_preadv,
    __NR_pwritev,
    __NR_faccessat,
    __NR_readlinkat,
    __NR_getdents64,
    __NR_mkdirat,
    __NR_unlinkat,
#ifdef __NR_renameat
    __NR_renameat,
#endif
    __NR_renameat2,
    __NR_ftruncate,
    __NR_fallocate,
    __NR_fsync,
    __NR_fdatasync,
    __NR_flock,
    __NR_fcntl,
    __NR_ioctl,
    __NR_fchmod,
    __NR_umask,
    __NR_dup,
    __NR_dup3,
    __NR_pipe2,
    __NR_getcwd,
    /* memory */
    __NR_brk,
    __NR_mmap,
    __NR_munmap,
    __NR_mprotect,
    __NR_mremap,
    __NR_madvise,
    __NR_msync,
    __NR_mincore,
    __NR_membarrier,
    /* sockets, and what is waited for */
    __NR_socket,
    __NR_socketpair,
    __NR_bind,
    __NR_connect,
    __NR_listen,
    __NR_accept,
    __NR_shutdown,
    __NR_getsockname,
    __NR_getpeername,
    __NR_setsockopt,
    __NR_getsockopt,
    __NR_sendmmsg,
    __NR_recvmmsg,
    __NR_ppoll,
    __NR_pselect6,
    __NR_epoll_create1,
    __NR_eventfd2,
    __NR_signalfd4,
    __NR_timerfd_create,
    __NR_timerfd_gettime,
    /* threads, time, signals */
    __NR_set_robust_list,
    __NR_set_tid_address,
    __NR_exit,
    __NR_exit_group,
    __NR_gettid,
    __NR_getpid,
    __NR_getppid,
    __NR_tgkill,
    __NR_tkill,
    __NR_sched_yield,
    __NR_sched_getaffinity,
    __NR_sched_setaffinity,
    __NR_sched_getparam,
    __NR_sched_getscheduler,
    __NR_prctl,
    __NR_nanosleep,
    __NR_clock_nanosleep,
    __NR_clock_getres,
    __NR_gettimeofday,
    __NR_rt_sigaction,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_rt_sigtimedwait,
    __NR_sigaltstack,
    __NR_restart_syscall,
    __NR_getcpu,
    /* about itself */
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_getrlimit,
    __NR_prlimit64,
    __NR_getrusage,
    __NR_times,
    __NR_sysinfo,
    __NR_uname,
    __NR_getrandom,
    __NR_get_mempolicy,
#ifdef __NR_rseq
    __NR_rseq,
#endif
#ifdef __NR_faccessat2
    __NR_faccessat2,
#endif
#ifdef __x86_64__
    __NR_epoll_wait,
    __NR_open,
    __NR_stat,
    __NR_lstat,
    __NR_access,
    __NR_readlink,
    __NR_mkdir,
    __NR_unlink,
    __NR_rename,
    __NR_dup2,
    __NR_pipe,
    __NR_poll,
    __NR_select,
    __NR_epoll_create,
    __NR_eventfd,
    __NR_signalfd,
    __NR_arch_prctl,
    __NR_time,
#endif
};
#define ALLOWED_COUNT (sizeof(allowed) / sizeof(allowed[0]))
_Static_assert(2 * ALLOWED_COUNT + 16 <= BPF_MAXINSNS, "one program");

bool mc_harden_allows(unsigned number)
{
    for (size_t i = 0; i < ALLOWED_COUNT; i++)
        if (allowed[i] == number)
            return true;
    return false;
}

int mc_harden_user(uid_t *user, gid_t *group, char *error, size_t error_size)
{
    *user = geteuid();
    *group = getegid();
    if (*user != 0)
        return 0;
    const struct passwd *entry = getpwnam(MC_HARDEN_USER);
    if (entry == NULL || entry->pw_uid == 0) {
        snprintf(error, error_size,
                 "--harden does not run as root, and there is no user %s: make one (useradd --system %s), or start "
                 "this process as another user",
                 MC_HARDEN_USER, MC_HARDEN_USER);
        return MC_ERR_INVALID_PARAMS;
    }
    *user = entry->pw_uid;
    *group = entry->pw_gid;
    return 0;
}

/* So that no program that is run could have them again. Who may not drop them could not use them either: it gains no
 * privileges any more. */
static int drop_bounds(void)
{
    for (unsigned long capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EPERM)
            return -errno;
    return 0;
}

/* Of whoever was given them without being root, too, and what root has inherited. */
static int drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL)
        return -errno;
    return syscall(__NR_capset, &header, none) != 0 ? -errno : 0;
}

static int become(uid_t user, gid_t group)
{
    int rc = drop_bounds(); /* which takes a capability */
    if (rc < 0)
        return rc;
    if (geteuid() == 0 &&
        (setgroups(0, NULL) != 0 || setresgid(group, group, group) != 0 || setresuid(user, user, user) != 0))
        return -errno;
    rc = drop_capabilities();
    if (rc < 0)
        return rc;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ? -errno : 0;
}

static int filter_calls(void)
{
    struct sock_filter filter[2 * ALLOWED_COUNT + 16];
    uint16_t count = 0;
    const uint32_t number_at = offsetof(struct seccomp_data, nr), arch_at = offsetof(struct seccomp_data, arch);
    const uint32_t first_at = offsetof(struct seccomp_data, args);
#ifdef ARCHITECTURE
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, arch_at);
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
#endif
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number_at);
    for (size_t i = 0; i < ALLOWED_COUNT; i++) { /* a jump reaches 255 steps at most: each has its own end */
        filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 3);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, first_at);
    filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 1, 0);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog program = {count, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ? -errno : 0;
}

int mc_harden(char *error, size_t error_size)
{
    uid_t user;
    gid_t group;
    int rc = mc_harden_user(&user, &group, error, error_size);
    if (rc < 0)
        return rc;
    if (!mc_log_thread_end()) { /* a thread that is there would keep its rights */
        snprintf(error, error_size, "the log's file does not take its lines, so this process cannot be hardened");
        return MC_ERR_INTERNAL_ERROR;
    }
    rc = become(user, group);
    if (rc < 0) {
        snprintf(error, error_size, "this process cannot give its rights up (--harden): %s", strerror(-rc));
        return MC_ERR_INTERNAL_ERROR;
    }
    rc = filter_calls();
    if (rc < 0) {
        snprintf(error, error_size,
                 "this kernel takes no filter of system calls (--harden): %s; without the flag a service manager or a "
                 "container can set one",
                 strerror(-rc));
        return MC_ERR_INTERNAL_ERROR;
    }
    mc_log(INFO, "hardened: user %u, no new privileges, a filter of system calls", (unsigned)user);
    return 0;
}
