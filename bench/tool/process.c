/* Starts, watches and ends child processes. */
#include "tool/process.h"

#include "env/clock.h"
#include "tool/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG_LOOK_BYTES (256 * 1024) /* how far into a log mc_process_await looks */
#define LOG_SHOW_BYTES 2000

volatile int mc_interrupted;

static void on_signal(int number)
{
    if (mc_interrupted)
        _exit(128 + number);
    mc_interrupted = 1;
}

void mc_interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&action.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

char *mc_self_path(void)
{
    static char path[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length > 0 && (size_t)length < sizeof(path) - 1 ? length : 0] = '\0';
    return path;
}

uint64_t mc_process_resident(pid_t pid)
{
    char path[64];
    unsigned long long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_log(const char *directory, const char *name)
{
    if (directory == NULL)
        return memfd_create(name, MFD_CLOEXEC);
    char path[512];
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return -1;
    snprintf(path, sizeof(path), "%s/%s.log", directory, name);
    return open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
}

/* Between fork and exec of a process with one thread: everything is allowed, nothing returns. */
static _Noreturn void become(char *const *argv, int log, int keep_fd, pid_t parent)
{
    static const int defaults[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++)
        sigaction(defaults[i], &action, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before the line above */
        _exit(127);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    if (keep_fd >= 0)
        fcntl(keep_fd, F_SETFD, 0);
    execvp(argv[0], argv);
    dprintf(2, "%s: cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
}

int mc_process_start(struct mc_process *process, const char *name, char *const *argv, const char *log_directory,
                     int keep_fd)
{
    *process = (struct mc_process){.log = -1};
    snprintf(process->name, sizeof(process->name), "%s", name);
    process->log = open_log(log_directory, name);
    if (process->log < 0)
        return mc_bench_fail(-1, "no log for %s: %s", name, strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        fprintf(stderr, "%s: fork: %s\n", name, strerror(errno));
        close(process->log);
        process->log = -1;
        return -1;
    }
    if (pid == 0)
        become(argv, process->log, keep_fd, parent);
    process->pid = pid;
    return 0;
}

bool mc_process_running(struct mc_process *process)
{
    if (process->pid == 0 || process->ended)
        return false;
    int status = 0;
    pid_t rc = waitpid(process->pid, &status, WNOHANG);
    if (rc == 0 || (rc < 0 && errno == EINTR))
        return true;
    process->ended = true;
    process->status = status;
    return false;
}

void mc_process_ask_to_end(struct mc_process *process)
{
    if (mc_process_running(process))
        kill(process->pid, SIGTERM);
}

void mc_process_reap(struct mc_process *process, uint64_t grace_ms)
{
    if (process->pid == 0)
        return;
    uint64_t deadline = mc_clock_ms() + grace_ms;
    while (mc_process_running(process) && mc_clock_ms() < deadline)
        usleep(2000);
    if (mc_process_running(process)) {
        kill(process->pid, SIGKILL);
        while (waitpid(process->pid, &process->status, 0) < 0 && errno == EINTR)
            continue;
        process->ended = true;
    }
    close(process->log);
    *process = (struct mc_process){.log = -1};
}

static bool find_in_log(const struct mc_process *process, const char *mark, char *text, size_t size)
{
    char *log = malloc(LOG_LOOK_BYTES + 1);
    if (log == NULL)
        return false;
    ssize_t length = pread(process->log, log, LOG_LOOK_BYTES, 0);
    log[length > 0 ? length : 0] = '\0';
    const char *at = strstr(log, mark);
    const char *end = at != NULL ? strchr(at, '\n') : NULL;
    if (end != NULL) {
        at += strlen(mark);
        size_t count = (size_t)(end - at);
        snprintf(text, size, "%.*s", (int)(count < size ? count : size - 1), at);
    }
    free(log);
    return end != NULL;
}

bool mc_process_await(struct mc_process *process, const char *mark, char *text, size_t size, uint64_t deadline_ms)
{
    for (;;) {
        bool running = mc_process_running(process);
        if (find_in_log(process, mark, text, size))
            return true;
        if (!running || mc_interrupted || mc_clock_ms() > deadline_ms)
            return false;
        usleep(2000);
    }
}

void mc_process_log_show(const struct mc_process *process)
{
    char tail[LOG_SHOW_BYTES];
    struct stat stat;
    if (process->log < 0 || fstat(process->log, &stat) != 0)
        return;
    off_t from = stat.st_size > LOG_SHOW_BYTES ? stat.st_size - LOG_SHOW_BYTES : 0;
    ssize_t length = pread(process->log, tail, sizeof(tail), from);
    if (length > 0)
        fprintf(stderr, "--- log of %s ---\n%.*s---\n", process->name, (int)length, tail);
}
