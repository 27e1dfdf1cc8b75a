/* What integrity costs, and how close the paths come to what the machine can do.
 *   bench_copy copy    memcpy against the copy with CRC32C, memfd to private memory and back, 512 MiB of rotated
 *                      buffers
 *   bench_copy shm     the path `shm` (owner in another process) against memcpy over the same rotated buffers
 *   bench_copy tcp     the path `tcp` against a bare send/receive loop over buffers as large
 *   bench_copy threads an owner that serves tcp with 0, 1, 2, 4 and 8 data threads: four streams of 16 MiB, and beside
 *                      them gets of 4 KiB, one after the other
 *   bench_copy first   first touch of a fresh mapping, by ways to fill its page tables
 * Each line, but of threads: min median max of 5 rounds in GB/s, and the median's ratio to the first line of its
 * group. */
#include "../tests/unit/transport_rig.h"

#include "tool/bench.h"
#include "tool/plain.h"

#include <pthread.h>
#include <sys/mman.h>

#define TOTAL (512ull << 20) /* of rotated buffers: more than any cache */
#define ROUNDS 5
#define HOWS_MAX 5

static double first_median;

static void show(const char *what, uint64_t size, const char *how, double *rates, bool first)
{
    double median = mc_bench_median(rates, ROUNDS);
    first_median = first ? median : first_median;
    printf("%-12s %6llu KiB  %-12s %6.2f %6.2f %6.2f  %4.0f %%\n", what, (unsigned long long)size >> 10, how, rates[0],
           median, rates[ROUNDS - 1], 100 * median / first_median);
    fflush(stdout);
}

static double rate(uint64_t bytes, uint64_t start_ns)
{
    return (double)bytes / (double)(mc_clock_ns() - start_ns);
}

static uint8_t *private_memory(uint64_t size)
{
    uint8_t *memory = mc_bench_memory(size);
    if (memory == NULL)
        abort();
    memset(memory, 1, size);
    return memory;
}

static uint8_t *shared_memory(uint64_t size, int *fd)
{
    *fd = memfd_create("bench", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, (off_t)size) != 0)
        abort();
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (memory == MAP_FAILED)
        abort();
    memset(memory, 2, size);
    return memory;
}

/* ---- copy ---- */

static volatile uint32_t sink;

static void copy_fused(uint8_t *target, const uint8_t *source, uint64_t size, bool stream)
{
    for (uint64_t at = 0; at < size; at += 65536)
        sink = stream ? mc_copy_crc32c_stream(target + at, source + at, 65536, 0)
                      : mc_copy_crc32c(target + at, source + at, 65536, 0);
}

/* Each way in turn over all of the memory, there and back. is_fresh: ways but the first get a mapping of their own. */
static void in_turn(const uint64_t *sizes, size_t size_count, const char *const *hows, int how_count, bool is_fresh,
                    void (*move)(int how, uint8_t *target, const uint8_t *source, uint8_t *shared, uint64_t at,
                                 uint64_t size))
{
    int fd;
    uint8_t *shared = shared_memory(TOTAL, &fd), *mine = private_memory(TOTAL);
    for (size_t pass = 0; pass < 2 * size_count; pass++) {
        double rates[HOWS_MAX][ROUNDS];
        bool out = pass >= size_count;
        uint64_t size = sizes[pass % size_count];
        for (int i = 0; i < ROUNDS * how_count; i++) {
            int how = i % how_count;
            bool is_mapped = is_fresh && how > 0;
            uint8_t *far = is_mapped ? mmap(NULL, TOTAL, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : shared;
            uint64_t start_ns = mc_clock_ns();
            for (uint64_t at = 0; at < TOTAL; at += size)
                move(how, (out ? far : mine) + at, (out ? mine : far) + at, far, at, size);
            rates[how][i / how_count] = rate(TOTAL, start_ns);
            if (is_mapped)
                munmap(far, TOTAL);
        }
        for (int how = 0; how < how_count; how++)
            show(out ? "to memfd" : "from memfd", size, hows[how], rates[how], how == 0);
    }
}

static void copy_one(int how, uint8_t *target, const uint8_t *source, uint8_t *shared, uint64_t at, uint64_t size)
{
    (void)shared, (void)at;
    if (how == 0)
        memcpy(target, source, size);
    else
        copy_fused(target, source, size, how == 2);
}

static void bench_copy(void)
{
    static const uint64_t sizes[] = {64u << 10, 1u << 20, 16u << 20, 64u << 20};
    static const char *const hows[] = {"memcpy", "fused", "fused stream"};
    in_turn(sizes, 4, hows, 3, false, copy_one);
}

/* ---- paths ---- */

static double move_all(struct rig *rig, enum mc_transfer_kind kind, uint8_t *mine, uint64_t size, uint64_t generation,
                       uint64_t total)
{
    uint64_t stride = mc_extent_size(size, 5), count = total / stride, start_ns = mc_clock_ns();
    struct mc_run run = {.deadline_ns = rig_deadline(60000)};
    for (uint64_t i = 0; i < count; i++) {
        struct iovec part = {mine + i * size, size};
        struct mc_transfer one = rig_transfer(kind, (uint32_t)i, generation, i * stride, size, "bench", &part, 1),
                           *list = &one;
        rig->path->transport->run(rig->path, &list, 1, &run);
        if (one.result != 0) {
            printf("%s: %d\n", kind == MC_TRANSFER_READ ? "read" : "write", one.result);
            exit(1);
        }
    }
    return rate(count * size, start_ns);
}

static void settle(struct rig *rig, uint8_t *mine, uint64_t size, uint64_t generation, uint64_t total)
{
    uint64_t stride = mc_extent_size(size, 5), last = total / stride - 1;
    for (int i = 0; i < 10000; i++) { /* until the last commit has been applied */
        struct iovec part = {mine + last * size, size};
        struct mc_transfer one =
            rig_transfer(MC_TRANSFER_READ, (uint32_t)last, generation, last * stride, size, "bench", &part, 1);
        if (rig_run_one(rig, &one, 5000) == 0)
            return;
        usleep(1000);
    }
    abort();
}

static void bench_path(unsigned kind, const uint64_t *sizes, size_t count,
                       double (*limit)(uint64_t size, uint8_t *mine, bool out))
{
    struct rig rig = {0};
    if (rig_start(&rig, kind, TOTAL + (64u << 20), true, true) != 0)
        abort();
    uint8_t *mine = private_memory(TOTAL);
    uint64_t generation = rig.generation;
    for (size_t s = 0; s < count; s++) {
        double write[ROUNDS], read[ROUNDS], limit_out[ROUNDS], limit_in[ROUNDS];
        for (int round = -1; round < ROUNDS; round++) { /* the first is not counted */
            int at = round < 0 ? 0 : round;
            write[at] = move_all(&rig, MC_TRANSFER_WRITE, mine, sizes[s], ++generation, TOTAL);
            settle(&rig, mine, sizes[s], generation, TOTAL);
            read[at] = move_all(&rig, MC_TRANSFER_READ, mine, sizes[s], generation, TOTAL);
            limit_out[at] = limit(sizes[s], mine, true);
            limit_in[at] = limit(sizes[s], mine, false);
        }
        show("put", sizes[s], "bare", limit_out, true);
        show("put", sizes[s], rig.path->transport->name, write, false);
        show("get", sizes[s], "bare", limit_in, true);
        show("get", sizes[s], rig.path->transport->name, read, false);
    }
    rig_stop(&rig);
}

static double limit_memcpy(uint64_t size, uint8_t *mine, bool out)
{
    static uint8_t *shared;
    int fd;
    if (shared == NULL)
        shared = shared_memory(TOTAL, &fd);
    uint64_t start_ns = mc_clock_ns();
    for (uint64_t at = 0; at < TOTAL; at += size)
        memcpy((out ? shared : mine) + at, (out ? mine : shared) + at, size);
    return rate(TOTAL, start_ns);
}

struct bare { /* the other end of the bare loop: a process of its own */
    int fd;
    pid_t pid;
};

/* "get" asks for each buffer by 8 bytes, as a client must; "put" only sends, and hears of the end once. */
static void bare_serve(int fd, uint8_t *memory)
{
    uint64_t ask[2];
    for (;;) {
        if (!mc_plain_receive(fd, ask, sizeof(ask)))
            _exit(0);
        uint64_t size = ask[0], total = ask[1] == 0 ? TOTAL : size;
        static uint64_t place;
        uint64_t base = ask[1] == 0 ? 0 : (place = (place + size) % TOTAL);
        bool good = ask[1] == 0 ? mc_plain_receive(fd, memory + base, total) && mc_plain_send(fd, ask, 1)
                                : mc_plain_send(fd, memory + base, total);
        if (!good)
            _exit(1);
    }
}

static struct bare bare_start(void)
{
    uint16_t port = 0;
    int listener = mc_plain_listen(&port);
    struct bare bare = {.fd = mc_plain_connect(port)};
    bare.pid = fork();
    if (bare.pid == 0) {
        close(bare.fd); /* or its end would never show */
        bare_serve(mc_plain_accept(listener), private_memory(TOTAL));
    }
    close(listener);
    return bare;
}

static double limit_tcp(uint64_t size, uint8_t *mine, bool out)
{
    static struct bare bare;
    uint64_t ask[2] = {size, out ? 0 : 1}, count = TOTAL / size;
    if (bare.pid == 0)
        bare = bare_start();
    uint64_t start_ns = mc_clock_ns();
    bool good = !out || mc_plain_send(bare.fd, ask, sizeof(ask));
    for (uint64_t i = 0; i < count && good; i++)
        good = out ? mc_plain_send(bare.fd, mine + i * size, size)
                   : mc_plain_send(bare.fd, ask, sizeof(ask)) && mc_plain_receive(bare.fd, mine + i * size, size);
    if (!good || (out && !mc_plain_receive(bare.fd, ask, 1)))
        abort();
    return rate(TOTAL, start_ns);
}

/* ---- an owner's threads ---- */

#define STREAMS 4
#define STREAM_BYTES (16ull << 20)
#define SMALL_BYTES 4096ull
#define SMALL_SLOT STREAMS
#define LATENCIES_MAX 1000000u
#define MEASURED_MS 3000u

struct reading {
    struct rig *rig;
    uint32_t slot;
    uint64_t size, end_ns, bytes;
    double *us; /* of each read; NULL: nobody asks */
    unsigned count;
    pthread_t thread;
};

static void read_one(struct rig *rig, uint32_t slot, uint64_t size, enum mc_transfer_kind kind, uint8_t *mine)
{
    struct iovec part = {mine, size};
    struct mc_transfer one =
        rig_transfer(kind, slot, 1000, slot * (STREAM_BYTES + (1u << 20)), size, "bench", &part, 1);
    if (rig_run_one(rig, &one, 60000) != 0)
        abort();
}

static void *read_on(void *argument)
{
    struct reading *reading = argument;
    uint8_t *mine = private_memory(reading->size);
    for (uint64_t now_ns = mc_clock_ns(), before_ns; now_ns < reading->end_ns;) {
        before_ns = now_ns;
        read_one(reading->rig, reading->slot, reading->size, MC_TRANSFER_READ, mine);
        now_ns = mc_clock_ns();
        reading->bytes += reading->size;
        if (reading->us != NULL && reading->count < LATENCIES_MAX)
            reading->us[reading->count++] = (double)(now_ns - before_ns) / 1e3;
    }
    munmap(mine, reading->size);
    return NULL;
}

static double processor_s(pid_t process)
{
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    if (file == NULL ||
        fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        abort();
    fclose(file);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void bench_threads_with(uint32_t threads)
{
    static double us[LATENCIES_MAX];
    struct rig rig = {0};
    char text[16];
    snprintf(text, sizeof(text), "%u", (unsigned)threads);
    setenv("RIG_THREADS", text, 1);
    if (rig_start(&rig, MC_PATH_TCP, (STREAMS + 1) * (STREAM_BYTES + (1u << 20)), true, true) != 0)
        abort();
    uint8_t *mine = private_memory(STREAM_BYTES);
    for (uint32_t i = 0; i <= SMALL_SLOT; i++)
        read_one(&rig, i, i == SMALL_SLOT ? SMALL_BYTES : STREAM_BYTES, MC_TRANSFER_WRITE, mine);
    munmap(mine, STREAM_BYTES);
    usleep(300000); /* the commits are applied */
    struct reading readings[STREAMS + 1];
    double before_s = processor_s(rig.peer);
    uint64_t start_ns = mc_clock_ns(), bytes = 0;
    for (uint32_t i = 0; i <= SMALL_SLOT; i++) {
        readings[i] = (struct reading){.rig = &rig,
                                       .slot = i,
                                       .size = i == SMALL_SLOT ? SMALL_BYTES : STREAM_BYTES,
                                       .end_ns = start_ns + MEASURED_MS * 1000000ull,
                                       .us = i == SMALL_SLOT ? us : NULL};
        if (pthread_create(&readings[i].thread, NULL, read_on, &readings[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i <= SMALL_SLOT; i++) {
        pthread_join(readings[i].thread, NULL);
        bytes += readings[i].bytes;
    }
    double used_s = processor_s(rig.peer) - before_s, rated = rate(bytes, start_ns);
    unsigned count = readings[SMALL_SLOT].count;
    double median = mc_bench_median(us, count); /* they are sorted then */
    printf("%2u data threads  %6.2f GB/s  %5.2f CPU s a GB  4 KiB: p50 %7.0f us  p99 %7.0f us  (%u)\n",
           (unsigned)threads, rated, used_s / ((double)bytes / 1e9), median, us[count * 99 / 100], count);
    fflush(stdout);
    rig_stop(&rig);
}

static void bench_threads(void)
{
    static const uint32_t counts[] = {0, 1, 2, 4, 8};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        bench_threads_with(counts[i]);
}

/* ---- first touch ---- */

static void touch_one(int how, uint8_t *target, const uint8_t *source, uint8_t *shared, uint64_t at, uint64_t size)
{
    const uint64_t stripe = 2u << 20;
    if (how == 2 || how == 3)
        madvise(shared + at, size, how == 2 ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
    for (uint64_t from = at; how == 4 && from < at + size; from += stripe)
        if (from % stripe == 0)
            madvise(shared + from, stripe, MADV_POPULATE_READ);
    copy_fused(target, source, size, size >= 4u << 20);
}

static void bench_first(void)
{
    static const char *const hows[HOWS_MAX] = {"warm", "faults", "read extent", "write extent", "read 2 MiB"};
    static const uint64_t sizes[] = {64u << 10, 1u << 20, 16u << 20};
    in_turn(sizes, 3, hows, HOWS_MAX, true, touch_one);
}

int main(int count, char **arguments)
{
    static const uint64_t shm_sizes[] = {64u << 10, 1u << 20, 16u << 20, 64u << 20};
    static const uint64_t tcp_sizes[] = {64u << 10, 1u << 20, 4u << 20, 16u << 20, 64u << 20};
    const char *what = count > 1 ? arguments[1] : "copy";
    if (count == 4 && strcmp(what, "rig-owner") == 0)
        return rig_owner_main(arguments);
    if (strcmp(what, "copy") == 0)
        bench_copy();
    else if (strcmp(what, "shm") == 0)
        bench_path(MC_PATH_SHM, shm_sizes, 4, limit_memcpy);
    else if (strcmp(what, "tcp") == 0)
        bench_path(MC_PATH_TCP, tcp_sizes, 5, limit_tcp);
    else if (strcmp(what, "threads") == 0)
        bench_threads();
    else if (strcmp(what, "first") == 0)
        bench_first();
    else
        return 2;
    return 0;
}
