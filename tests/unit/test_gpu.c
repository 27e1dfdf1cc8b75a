/* Memory of devices, against a stand-in of the driver: what is whose, copies, lanes, and all that can go wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu/gpu.h"
#include "fake_cuda_load.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct fake_cuda fake;

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static int setup(void **state)
{
    (void)state;
    if (fake_cuda_load(&fake) != 0)
        return -1;
    mc_gpu_look();
    return mc_gpu_is_there() ? 0 : -1;
}

static void fill(void *memory, size_t size, unsigned seed)
{
    uint8_t *bytes = memory;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 251 + seed);
}

static void expect_clean(void)
{
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_DEPTH), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_MISTAKES), 0);
}

/* ---- before a driver is loaded, and with one that is no use ---- */

static int in_child(int (*test)(void))
{
    int status = -1;
    pid_t child = fork();
    if (child == 0)
        _exit(test());
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int without_driver(void)
{
    char byte = 0, other = 1;
    uint64_t offset;
    struct mc_gpu_finder finder = {0};
    mc_gpu_look();
    if (mc_gpu_is_there() || mc_gpu_find(&finder, &byte).kind != MC_GPU_HOST || mc_gpu_take(0) != NULL)
        return 1;
    if (mc_gpu_copy(&byte, &other, 1) != 0 || byte != 1 || mc_gpu_dmabuf(&byte, 4096, &offset) >= 0)
        return 2;
    return mc_gpu_note(&byte, 1).kind == MC_GPU_HOST && mc_gpu_pci_address(0, &byte, 1) < 0 ? 0 : 3;
}

static int not_yet_loaded(void)
{
    setenv("MC_CUDA_LIBRARY", fake_cuda_path("fake_cuda"), 1); /* there, but nobody has loaded it */
    return without_driver();
}

static int too_old(void)
{
    setenv("MC_CUDA_LIBRARY", fake_cuda_path("fake_cuda_old"), 1);
    if (dlopen(fake_cuda_path("fake_cuda_old"), RTLD_NOW | RTLD_LOCAL) == NULL)
        return 9;
    return without_driver();
}

static int noticed_later(void)
{
    if (without_driver() != 0 || fake_cuda_load(&fake) != 0)
        return 1;
    if (mc_gpu_is_there())
        return 2;
    uint64_t address = fake.fake_cuda_allocate(100, 0, 0);
    return mc_gpu_note(pointer(address), 100).kind == MC_GPU_MEMORY && mc_gpu_is_there() ? 0 : 3;
}

/* While one thread imports something that takes long, the loader answers nobody. */
static void *import_slowly(void *argument)
{
    return dlopen(fake_cuda_path("slow_import"), RTLD_NOW | RTLD_LOCAL) == NULL ? NULL : argument;
}

static void *look_twice(void *argument)
{
    mc_gpu_notice();
    if (argument == NULL) /* nothing that is loaded can be the driver */
        mc_gpu_look();
    return NULL;
}

static int during_an_import(bool has_driver)
{
    int says[2], waits[2];
    char number[2][16], byte = 0;
    pthread_t importing, looking;
    struct timespec until;
    if (pipe(says) != 0 || pipe(waits) != 0 || (has_driver && fake_cuda_load(&fake) != 0))
        return 1;
    snprintf(number[0], sizeof(number[0]), "%d", says[1]);
    snprintf(number[1], sizeof(number[1]), "%d", waits[0]);
    setenv("MC_TEST_IMPORT_SAYS", number[0], 1);
    setenv("MC_TEST_IMPORT_WAITS", number[1], 1);
    if (pthread_create(&importing, NULL, import_slowly, &byte) != 0 || read(says[0], &byte, 1) != 1)
        return 2;
    if (pthread_create(&looking, NULL, look_twice, has_driver ? &byte : NULL) != 0)
        return 3;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_timedjoin_np(looking, NULL, &until) != 0)
        return 4; /* it waits for the import */
    if (mc_gpu_is_there() || write(waits[1], &byte, 1) != 1 || pthread_join(importing, NULL) != 0)
        return 5;
    for (unsigned tries = 0; has_driver && !mc_gpu_is_there() && tries < 2000; tries++)
        usleep(10000);
    return mc_gpu_is_there() == has_driver ? 0 : 6;
}

static int an_import_without_driver(void)
{
    return during_an_import(false);
}

static int an_import_behind_the_driver(void)
{
    return during_an_import(true);
}

static void imports(void **state)
{
    (void)state;
    assert_int_equal(in_child(an_import_without_driver), 0);
    assert_int_equal(in_child(an_import_behind_the_driver), 0);
}

static void absence(void **state)
{
    (void)state;
    assert_false(mc_gpu_is_there());
    assert_int_equal(in_child(without_driver), 0);
    assert_int_equal(in_child(not_yet_loaded), 0);
    assert_int_equal(in_child(too_old), 0);
    assert_int_equal(in_child(noticed_later), 0);
}

/* ---- what is whose ---- */

static struct mc_gpu_place find(const void *address)
{
    struct mc_gpu_finder finder = {0};
    return mc_gpu_find(&finder, address);
}

static void kinds(void **state)
{
    (void)state;
    char local = 0;
    uint64_t zero = fake.fake_cuda_allocate(3 * MIB, 0, 0), one = fake.fake_cuda_allocate(100, 1, 0),
             managed = fake.fake_cuda_allocate(4096, 1, 1);
    assert_int_equal(find(&local).kind, MC_GPU_HOST);
    assert_int_equal(find(NULL).kind, MC_GPU_HOST);
    assert_int_equal(find(pointer(zero)).kind, MC_GPU_MEMORY);
    assert_int_equal(find(pointer(zero + 3 * MIB - 1)).number, 0);
    assert_int_equal(find(pointer(one + 99)).number, 1);
    assert_int_equal(find(pointer(managed)).kind, MC_GPU_MANAGED);
    struct mc_gpu_finder finder = {0};
    uint64_t asked = fake.fake_cuda_number(FAKE_CUDA_ASKED);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(mc_gpu_find(&finder, pointer(zero + i * 1024)).kind, MC_GPU_MEMORY);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_ASKED), asked + 1);
    assert_int_equal(mc_gpu_find(&finder, &local).kind, MC_GPU_HOST);
    assert_int_equal(mc_gpu_find(&finder, pointer(one)).kind, MC_GPU_MEMORY);
    fake.fake_cuda_free(one);
    assert_int_equal(find(pointer(one)).kind, MC_GPU_HOST);
}

static void an_old_driver_knows_no_ranges(void **state)
{
    (void)state;
    uint64_t address = fake.fake_cuda_allocate(100, 1, 0);
    fake.fake_cuda_fail(FAKE_CUDA_ATTRIBUTES, 0, 1, 1);
    assert_int_equal(find(pointer(address)).kind, MC_GPU_MEMORY);
    fake.fake_cuda_fail(FAKE_CUDA_ATTRIBUTES, 0, 1, 3); /* nobody has initialised it */
    assert_int_equal(find(pointer(address)).kind, MC_GPU_HOST);
}

static void registered_memory_is_remembered(void **state)
{
    (void)state;
    static char host[8192];
    uint64_t device = fake.fake_cuda_allocate(MIB, 1, 0);
    assert_int_equal(mc_gpu_note(host, sizeof(host)).kind, MC_GPU_HOST);
    assert_int_equal(mc_gpu_note(host, sizeof(host)).kind, MC_GPU_HOST); /* twice */
    assert_int_equal(mc_gpu_note(host + 5, 10).kind, MC_GPU_HOST);       /* and in between */
    assert_int_equal(mc_gpu_note(pointer(device), MIB).number, 1);
    assert_int_equal(mc_gpu_note(NULL, 5).kind, MC_GPU_HOST);
    assert_int_equal(mc_gpu_note(host, 0).kind, MC_GPU_HOST);
    uint64_t asked = fake.fake_cuda_number(FAKE_CUDA_ASKED);
    assert_int_equal(find(host).kind, MC_GPU_HOST);
    assert_int_equal(find(host + sizeof(host) - 1).kind, MC_GPU_HOST);
    assert_int_equal(find(pointer(device + MIB - 1)).number, 1);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_ASKED), asked);
    mc_gpu_forget(host + 5);
    mc_gpu_forget(host);
    assert_int_equal(find(host).kind, MC_GPU_HOST);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_ASKED), asked); /* once more registered than given back */
    mc_gpu_forget(host);
    mc_gpu_forget(host); /* once too often */
    assert_int_equal(find(host).kind, MC_GPU_HOST);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_ASKED), asked + 1);
    mc_gpu_forget(pointer(device));
    assert_int_equal(find(pointer(device)).number, 1);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_ASKED), asked + 2);
}

/* ---- copies ---- */

static void copies(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 4095, 65537, 5 * MIB + 1};
    uint64_t left = fake.fake_cuda_allocate(6 * MIB, 0, 0), right = fake.fake_cuda_allocate(6 * MIB, 1, 1);
    uint8_t *from = malloc(6 * MIB), *to = malloc(6 * MIB);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        fill(from, sizes[i], (unsigned)i);
        memset(to, 0xee, 6 * MIB);
        assert_int_equal(mc_gpu_copy(pointer(left + 3), from, sizes[i]), 0);
        assert_int_equal(mc_gpu_copy(pointer(right + 1), pointer(left + 3), sizes[i]), 0);
        assert_int_equal(mc_gpu_copy(to, pointer(right + 1), sizes[i]), 0);
        assert_memory_equal(to, from, sizes[i]);
        assert_int_equal(to[sizes[i]], 0xee);
        expect_clean();
    }
    assert_int_equal(mc_gpu_copy(to, from, 100), 0); /* both the host's */
    free(from);
    free(to);
}

static void refusals(void **state)
{
    (void)state;
    char byte = 7;
    uint64_t address = fake.fake_cuda_allocate(100, 0, 0);
    for (int call = FAKE_CUDA_COPY; call <= FAKE_CUDA_WAIT; call++) {
        fake.fake_cuda_fail(call, 0, 1, 700);
        assert_true(mc_gpu_copy(pointer(address), &byte, 1) < 0);
        expect_clean();
    }
    assert_true(mc_gpu_copy(pointer(address), &byte, 101) < 0); /* beyond its end */
    assert_int_equal(mc_gpu_copy(pointer(address), &byte, 1), 0);
    mc_gpu_note(pointer(address), 100);
    fake.fake_cuda_free(address); /* while it is registered */
    assert_true(mc_gpu_copy(pointer(address), &byte, 1) < 0);
    mc_gpu_forget(pointer(address));
    expect_clean();
}

/* ---- lanes ---- */

static void lanes_are_bounded(void **state)
{
    (void)state;
    struct mc_gpu_lane *lanes[MC_GPU_LANES_MAX + 2];
    for (size_t i = 0; i < MC_GPU_LANES_MAX + 2; i++) {
        lanes[i] = mc_gpu_take(0);
        assert_non_null(lanes[i]);
        assert_int_equal(lanes[i]->is_pinned, i < MC_GPU_LANES_MAX);
        memset(lanes[i]->units[0], 1, 2 * lanes[i]->unit_bytes); /* both are there */
    }
    assert_true(fake.fake_cuda_number(FAKE_CUDA_PINNED) <= 2 * MC_GPU_LANES_MAX * MC_GPU_UNIT_BYTES);
    for (size_t i = 0; i < MC_GPU_LANES_MAX + 2; i++)
        mc_gpu_give(lanes[i]);
    struct mc_gpu_lane *other = mc_gpu_take(1); /* an idle one of the first device makes room */
    assert_non_null(other);
    assert_true(other->is_pinned);
    assert_int_equal(other->device, 1);
    mc_gpu_give(other);
    mc_gpu_give(NULL);
    assert_null(mc_gpu_take(-1));
    assert_null(mc_gpu_take(MC_GPUS_MAX));
    assert_null(mc_gpu_take(FAKE_CUDA_DEVICES)); /* no such device */
    expect_clean();
}

static void without_pinned_memory(void **state)
{
    (void)state;
    struct mc_gpu_lane *all[MC_GPU_LANES_MAX];
    for (size_t i = 0; i < MC_GPU_LANES_MAX; i++)
        all[i] = mc_gpu_take(0);
    fake.fake_cuda_fail(FAKE_CUDA_HOST_ALLOCATE, 0, 1, 2);
    struct mc_gpu_lane *last = all[MC_GPU_LANES_MAX - 1], *plain;
    mc_gpu_give(last);
    last = mc_gpu_take(1); /* which the first device's makes room for: with no memory for it */
    assert_non_null(last);
    assert_false(last->is_pinned);
    uint64_t address = fake.fake_cuda_allocate(100, 1, 0);
    last->units[1][0] = 'x';
    assert_int_equal(mc_gpu_start(last, pointer(address), last->units[1], 1), 0);
    assert_int_equal(mc_gpu_mark(last, 1), 0);
    assert_int_equal(mc_gpu_wait(last, 1), 0);
    assert_int_equal(*(char *)fake.fake_cuda_seen(address), 'x');
    mc_gpu_give(last);
    for (size_t i = 0; i + 1 < MC_GPU_LANES_MAX; i++)
        mc_gpu_give(all[i]);
    fake.fake_cuda_fail(FAKE_CUDA_STREAM, 0, 1, 2);
    plain = mc_gpu_take(1);
    assert_null(plain);
    plain = mc_gpu_take(1); /* what failed is not counted */
    assert_non_null(plain);
    assert_true(plain->is_pinned);
    mc_gpu_give(plain);
    expect_clean();
}

static void *copy_often(void *argument)
{
    uint64_t base = (uintptr_t)argument;
    uint8_t out[257], in[257];
    for (unsigned i = 0; i < 200; i++) {
        fill(out, sizeof(out), i);
        if (mc_gpu_copy(pointer(base), out, sizeof(out)) != 0 || mc_gpu_copy(in, pointer(base), sizeof(in)) != 0 ||
            memcmp(in, out, sizeof(in)) != 0)
            return argument;
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    pthread_t threads[6];
    uint64_t base = fake.fake_cuda_allocate(6 * 4096, 0, 0);
    void *failed = NULL;
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, copy_often, pointer(base + i * 4096)), 0);
    for (unsigned i = 0; i < 6; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    expect_clean();
}

static int fork_test(void)
{
    char byte = 1;
    struct mc_gpu_finder finder = {0};
    /* The child of a process that uses the driver cannot: it says so of every address. */
    fake.fake_cuda_fail(FAKE_CUDA_ATTRIBUTES, 0, 100, 3);
    return mc_gpu_find(&finder, &byte).kind == MC_GPU_HOST && mc_gpu_note(&byte, 1).kind == MC_GPU_HOST ? 0 : 1;
}

static void forked(void **state)
{
    (void)state;
    assert_int_equal(in_child(fork_test), 0);
    assert_true(mc_gpu_is_there());
}

static void for_network_cards(void **state)
{
    (void)state;
    char text[32];
    uint64_t address = fake.fake_cuda_allocate(8192, 1, 0), offset;
    assert_int_equal(mc_gpu_pci_address(1, text, sizeof(text)), 0);
    assert_string_equal(text, "0000:65:00.0");
    assert_true(mc_gpu_pci_address(FAKE_CUDA_DEVICES, text, sizeof(text)) < 0);
    assert_true(mc_gpu_pci_address(0, text, 3) < 0);
    static const struct {
        uint64_t at, length;
        bool is_there;
    } ranges[] = {{0, 8192, true},   {0, 100, true},      {4097, 100, true},
                  {4000, 200, true}, {0, 1 << 20, false}, {0, 0, false}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) { /* whole pages, which are all allocated */
        int fd = mc_gpu_dmabuf(pointer(address + ranges[i].at), ranges[i].length, &offset);
        assert_int_equal(fd >= 0, ranges[i].is_there);
        assert_true(fd < 0 || offset == ranges[i].at % 4096);
        if (fd >= 0)
            close(fd);
    }
    assert_true(mc_gpu_dmabuf(pointer(4096), 4096, &offset) < 0); /* not a device's */
    expect_clean();
}

static void whole_pages(void **state)
{
    static const struct {
        uint64_t address, length, page, from, size;
    } cases[] = {
        {0x12345, 10, 4096, 0x12000, 4096},         {0x12345, 10, 65536, 0x10000, 65536},
        {0x12000, 4096, 4096, 0x12000, 4096},       {0x12000, 4096, 65536, 0x10000, 65536},
        {0x1fff0, 0x20, 65536, 0x10000, 2 * 65536}, {0x20000, 65536, 65536, 0x20000, 65536},
    };
    uint64_t from, size;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(mc_gpu_whole_pages(cases[i].address, cases[i].length, cases[i].page, &from, &size));
        assert_int_equal(from, cases[i].from);
        assert_int_equal(size, cases[i].size);
    }
    assert_false(mc_gpu_whole_pages(UINT64_MAX - 10, 5, 65536, &from, &size));
    assert_false(mc_gpu_whole_pages(UINT64_MAX - 10, 50, 4096, &from, &size));
}

/* Only of a device whose driver wants it; who says so is asked once. */
static void flushes(void **state)
{
    (void)state;
    uint64_t before = fake.fake_cuda_number(FAKE_CUDA_FLUSHES);
    assert_int_equal(mc_gpu_flush(0), 0);
    assert_int_equal(mc_gpu_flush(1), 0); /* device 0 sees all in order */
    fake.fake_cuda_ordering(0);
    assert_int_equal(mc_gpu_flush(1), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_FLUSHES), before);
    assert_int_equal(mc_gpu_flush(3), 0); /* device 1 does not */
    assert_int_equal(mc_gpu_flush(2), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_FLUSHES), before + 2);
    fake.fake_cuda_ordering(100);
    expect_clean();
}

int main(void)
{
    const struct CMUnitTest before[] = {cmocka_unit_test(absence), cmocka_unit_test(imports)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds),
        cmocka_unit_test(an_old_driver_knows_no_ranges),
        cmocka_unit_test(registered_memory_is_remembered),
        cmocka_unit_test(copies),
        cmocka_unit_test(refusals),
        cmocka_unit_test(lanes_are_bounded),
        cmocka_unit_test(without_pinned_memory),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(forked),
        cmocka_unit_test(for_network_cards),
        cmocka_unit_test(flushes),
        cmocka_unit_test(whole_pages),
    };
    int failed = cmocka_run_group_tests(before, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, setup, NULL);
}
