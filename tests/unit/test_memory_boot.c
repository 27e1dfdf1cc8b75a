/* Segments in named files, where which boot this is cannot be read: nothing is believed then, and nothing removed. */
#undef _FORTIFY_SOURCE /* it has an open() of its own in the header */
#include "store/segment/memory_inside.h"
#include "base/error.h"
#include "env/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define CAPACITY (4 * MIB)

static char directory[64];
static int refusal; /* what opening the boot id fails with */
static unsigned refused;

/* In the place of libc's, for all that is linked into this program. */
static int open_as_said(const char *path, int flags, mode_t mode)
{
    if (refusal != 0 && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
        refused++;
        errno = refusal;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open_as_said(path, flags, mode);
}

static int open_segment(bool may_pass_over, struct mc_segment_memory **memory, bool *contents)
{
    return mc_segment_memory_open(directory, "a", CAPACITY, mc_clock_ns() + 10000000000ull, may_pass_over, memory,
                                  contents);
}

/* By a process that could read it. */
static void make_and_leave(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct mc_segment_memory *memory;
        bool contents;
        if (open_segment(false, &memory, &contents) != 0 || contents || !mc_segment_memory_is_named(memory))
            _exit(1);
        mc_segment_memory_release(memory);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool exists(const char *ending)
{
    char path[80];
    snprintf(path, sizeof(path), "%s/a%s", directory, ending);
    return access(path, F_OK) == 0;
}

static void test_an_unreadable_boot_id_condemns_nothing(void **state)
{
    static const int errors[] = {EMFILE, ENFILE, ENOMEM, ENOENT, EACCES};
    struct mc_segment_memory *memory;
    struct mc_segment_left left;
    struct mc_id host, again;
    bool contents;
    (void)state;
    make_and_leave();
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        bool is_shortage = i < 3;
        refusal = errors[i];
        assert_false(mc_host_id_read(&host));
        assert_int_equal(errno, errors[i]);
        assert_int_equal(mc_segment_left_behind(directory, CAPACITY, mc_clock_ns() + 10000000000ull, &left),
                         is_shortage ? MC_ERR_FILE_OPEN_FAIL : 0);
        assert_int_equal(left.capacity, 0);
        for (int may_pass_over = 0; may_pass_over < 2; may_pass_over++) {
            int rc = open_segment(may_pass_over != 0, &memory, &contents);
            assert_int_equal(rc, is_shortage && may_pass_over == 0 ? MC_ERR_FILE_OPEN_FAIL : 0);
            if (rc != 0)
                continue;
            assert_false(mc_segment_memory_is_named(memory));
            mc_segment_memory_release(memory);
        }
        assert_true(exists(".index") && exists(".data") && exists(".writers"));
        assert_false(exists(".1.index"));
    }
    assert_true(refused >= sizeof(errors) / sizeof(errors[0]) * 4);
    refusal = 0;
    assert_int_equal(mc_segment_left_behind(directory, CAPACITY, mc_clock_ns() + 10000000000ull, &left), 0);
    assert_int_equal(left.capacity, CAPACITY);
    assert_true(mc_host_id_read(&host));
    refusal = EMFILE; /* once it is known it stays so */
    assert_true(mc_host_id_read(&again));
    assert_true(mc_id_equal(host, again) && mc_id_equal(host, mc_host_id()));
    assert_int_equal(open_segment(false, &memory, &contents), 0);
    assert_true(mc_segment_memory_is_named(memory));
    assert_false(exists(".1.index")); /* so it is the one that was left */
    mc_segment_memory_release(memory);
    refusal = 0;
}

static int setup(void **state)
{
    (void)state;
    snprintf(directory, sizeof(directory), "/tmp/mc-boot-XXXXXX");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_unreadable_boot_id_condemns_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
