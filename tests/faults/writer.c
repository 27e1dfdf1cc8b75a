/* A writer that dies or stops in the middle of a put: the tests' tool.
 *
 *   writer MASTER kill COUNT BYTES FIRST    COUNT processes after one another, each killed while the library
 *                                           reads the object it puts; keys "torn-FIRST" on; prints each key's
 *                                           number when its writer is dead
 *   writer MASTER random COUNT BYTES FIRST  the same, killed at some moment between the start of a put and a
 *                                           little after its usual end
 *   writer MASTER stop BYTES NUMBER         stops itself (SIGSTOP) while the library reads; after SIGCONT
 *                                           prints what the put returned
 *
 * The moment is certain because one page of the object cannot be read: the fault's handler runs where the copy has
 * come to. */
#include <mooncake.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, KEY_TEXT = 64 };

static uint8_t *trap;
static int trap_signal;

static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    uint8_t *at = info->si_addr;
    if (trap == NULL || at < trap || at >= trap + PAGE)
        _exit(99);
    /* The whole process, at this instruction; with SIGSTOP the access is made again afterwards, and then succeeds. */
    if (mprotect(trap, PAGE, PROT_READ | PROT_WRITE) != 0)
        _exit(98);
    kill(getpid(), trap_signal);
}

static uint8_t *object_make(uint64_t number, size_t size)
{
    uint8_t *object = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (object == MAP_FAILED)
        exit(97);
    for (size_t at = 0; at + sizeof(number) <= size; at += sizeof(number))
        memcpy(object + at, &number, sizeof(number));
    return object;
}

static void trap_set(uint8_t *object, size_t size, uint64_t number, int trap_number)
{
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    uint64_t place = number * UINT64_C(0x9E3779B97F4A7C15) >> 20;
    trap_signal = trap_number;
    trap = object + place % (size / PAGE) * PAGE;
    if (sigaction(SIGSEGV, &action, NULL) != 0 || mprotect(trap, PAGE, PROT_NONE) != 0)
        exit(96);
}

static int put(const char *master, uint64_t number, uint8_t *object, size_t size, int ready)
{
    struct mc_store *store = NULL;
    struct mc_store_config config = {
        .local_hostname = "127.0.0.1", .master_server_addr = master, .local_buffer_size = 1 << 20};
    int rc = mc_store_open(&config, &store);
    if (rc != 0)
        return rc;
    char key[KEY_TEXT];
    int length = snprintf(key, sizeof(key), "torn-%llu", (unsigned long long)number);
    struct iovec part = {.iov_base = object, .iov_len = size};
    struct mc_put_item item = {.key = {.data = key, .length = (size_t)length}, .parts = &part, .part_count = 1};
    if (ready >= 0 && write(ready, "r", 1) != 1)
        exit(95);
    rc = mc_store_put(store, &item, 1, NULL);
    mc_store_close(store);
    return rc;
}

static void child_run(const char *master, uint64_t number, size_t size, bool is_random, int ready)
{
    uint8_t *object = object_make(number, size);
    if (!is_random)
        trap_set(object, size, number, SIGKILL);
    int rc = put(master, number, object, size, ready);
    _exit(rc == 0 ? 0 : 90);
}

/* Waits for the child to be in its put, and kills it at a drawn moment. */
static void kill_somewhere(pid_t child, int ready)
{
    char byte = 0;
    if (read(ready, &byte, 1) != 1)
        return;
    struct timespec pause = {.tv_nsec = rand() % 1500 * 1000L};
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
}

static int run_many(const char *master, bool is_random, uint64_t count, size_t size, uint64_t first)
{
    for (uint64_t number = first; number < first + count; number++) {
        int ends[2];
        if (pipe(ends) != 0)
            return 1;
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0)
            child_run(master, number, size, is_random, ends[1]);
        close(ends[1]);
        if (is_random)
            kill_somewhere(child, ends[0]);
        close(ends[0]);
        int status = 0;
        if (waitpid(child, &status, 0) != child)
            return 1;
        const char *end = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? "killed" : "ended";
        printf("%llu %s %d\n", (unsigned long long)number, end, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && (strcmp(argv[2], "kill") == 0 || strcmp(argv[2], "random") == 0))
        return run_many(argv[1], argv[2][0] == 'r', strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
                        strtoull(argv[5], NULL, 10));
    if (argc == 5 && strcmp(argv[2], "stop") == 0) {
        size_t size = strtoull(argv[3], NULL, 10);
        uint64_t number = strtoull(argv[4], NULL, 10);
        uint8_t *object = object_make(number, size);
        trap_set(object, size, number, SIGSTOP);
        printf("put %d\n", put(argv[1], number, object, size, -1));
        return 0;
    }
    fprintf(stderr, "usage: writer MASTER kill|random COUNT BYTES FIRST, or writer MASTER stop BYTES NUMBER\n");
    return 2;
}
