/* Huge pages of a segment: which are tried, how many there are, and a segment with them and without. */
#include "base/error.h"
#include "env/log.h"
#include "store/segment/memory_inside.h"
#include "store/segment/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define TWO_MIB (2 * MIB)
#define OVERCOMMIT "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"

static void which_are_tried(void **state)
{
    static const struct {
        const char *use, *size;
        uint64_t data_size, first, second;
        bool is_wrong;
    } rows[] = {
        {NULL, NULL, 64 * GIB, 0, 0, false},
        {NULL, "1GB", 64 * GIB, 0, 0, false},
        {"0", NULL, 64 * GIB, 0, 0, false},
        {"False", NULL, 64 * GIB, 0, 0, false},
        {"", NULL, 64 * GIB, 0, 0, false},
        {"1", NULL, 64 * GIB, GIB, TWO_MIB, false},
        {"1", NULL, 64 * GIB + 4096, GIB, TWO_MIB, false},
        {"1", NULL, 16 * GIB + 4096, GIB, TWO_MIB, false}, /* loses less than a sixteenth */
        {"1", NULL, 15 * GIB + 4096, TWO_MIB, 0, false},   /* a little more */
        {"1", NULL, 4096, TWO_MIB, 0, false},              /* the smaller ones cost less than a page that is small */
        {"yes", "1GB", 4096, GIB, TWO_MIB, false},         /* as asked for */
        {"yes", "1gib", 64 * GIB, GIB, TWO_MIB, false},
        {"yes", "1073741824", 64 * GIB, GIB, TWO_MIB, false},
        {"yes", "2MB", 64 * GIB, TWO_MIB, 0, false},
        {"yes", "2m", 64 * GIB, TWO_MIB, 0, false},
        {"yes", "", 64 * GIB, GIB, TWO_MIB, false},
        {"yes", "2", 64 * GIB, GIB, TWO_MIB, true},
        {"yes", "2MBs", 64 * GIB, GIB, TWO_MIB, true},
        {"yes", "512MB", 64 * GIB, GIB, TWO_MIB, true},
        {"no", "512MB", 64 * GIB, 0, 0, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t bytes[MC_PAGES_SIZES] = {0, 0};
        bool is_wrong;
        size_t count = mc_pages_wanted(rows[i].use, rows[i].size, rows[i].data_size, bytes, &is_wrong);
        assert_int_equal(count, (rows[i].first != 0) + (rows[i].second != 0));
        assert_int_equal(bytes[0], rows[i].first);
        assert_int_equal(bytes[1], rows[i].second);
        assert_int_equal(is_wrong, rows[i].is_wrong);
    }
}

static void number_write(const char *path, unsigned long number)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fprintf(file, "%lu\n", number) > 0);
    assert_int_equal(fclose(file), 0);
}

static void what_is_there(void **state)
{
    char root[] = "/tmp/mooncake-pages-XXXXXX", folder[64], path[128];
    static const struct {
        const char *name;
        unsigned long number;
    } files[] = {
        {"free_hugepages", 100}, {"resv_hugepages", 40}, {"nr_overcommit_hugepages", 7}, {"surplus_hugepages", 2}};
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(mc_pages_pool(root, TWO_MIB).free, 0);
    (void)snprintf(folder, sizeof(folder), "%s/hugepages-2048kB", root);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, files[i].name);
        number_write(path, files[i].number);
    }
    assert_int_equal(mc_pages_pool(root, TWO_MIB).free, 60 + 5);
    assert_int_equal(mc_pages_pool(root, GIB).free, 0);
    (void)snprintf(path, sizeof(path), "%s/resv_hugepages", folder);
    number_write(path, 200);
    assert_int_equal(mc_pages_pool(root, TWO_MIB).free, 5);
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, files[i].name);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rmdir(root), 0);
}

static void fill(struct mc_segment_memory *memory)
{
    uint8_t *data = memory->file.data;
    assert_int_equal(mc_segment_memory_populate(memory, NULL, NULL), 0);
    for (unsigned i = 0; i < 10000 && mc_segment_memory_populated(memory) < memory->file.capacity; i++)
        usleep(1000);
    assert_int_equal(mc_segment_memory_populated(memory), memory->file.capacity);
    for (uint64_t at = 0; at < memory->file.data_size; at += 4096)
        data[at] = (uint8_t)(at >> 12);
    for (uint64_t at = 0; at < memory->file.data_size; at += 4096)
        assert_int_equal(data[at], (uint8_t)(at >> 12));
    mc_segment_memory_populate_stop(memory);
}

/* More than could ever be had: ordinary pages, and nothing is missing. */
static void those_that_are_not_there(void **state)
{
    struct mc_segment_memory *memory;
    (void)state;
    uint64_t capacity = (mc_pages_pool("/sys/kernel/mm/hugepages", TWO_MIB).free + 8) * TWO_MIB;
    if (capacity > 256 * MIB)
        skip(); /* a machine with a large pool */
    assert_int_equal(setenv("MC_STORE_USE_HUGEPAGE", "1", 1), 0);
    assert_false(mc_pages_have_room(capacity));
    assert_int_equal(mc_segment_memory_create(capacity, &memory), 0);
    assert_int_equal(memory->file.page_bytes, MC_PAGE_BYTES);
    assert_int_equal(memory->file.capacity, capacity);
    fill(memory);
    mc_segment_memory_release(memory);
    assert_int_equal(unsetenv("MC_STORE_USE_HUGEPAGE"), 0);
}

static void those_that_are_there(void **state)
{
    struct mc_segment_memory *memory, *other;
    const char *reason;
    struct mc_memory_limits limits = {.machine_available = MIB};
    const uint64_t capacity = 9 * MIB, pages = 5; /* with the slack behind it */
    uint64_t found;
    unsigned long before = 0;
    (void)state;
    /* Pages that the kernel makes when they are asked for: of a machine that leaves us that setting. */
    FILE *file = fopen(OVERCOMMIT, "r+e");
    if (file == NULL || fscanf(file, "%lu", &before) != 1)
        skip();
    uint64_t more = mc_pages_pool("/sys/kernel/mm/hugepages", TWO_MIB).free;
    (void)fclose(file);
    if (more < pages)
        number_write(OVERCOMMIT, before + pages - more);
    assert_int_equal(setenv("MC_STORE_USE_HUGEPAGE", "1", 1), 0);
    assert_true(mc_pages_have_room(capacity));
    assert_int_equal(mc_memory_capacity_in(NULL, capacity, &limits, 0, &found, &reason), 0);
    assert_int_equal(found, capacity); /* not the machine's */
    assert_null(reason);
    int rc = mc_segment_memory_create(capacity, &memory);
    int again = more < pages && rc == 0 ? mc_segment_memory_create(capacity, &other) : -1;
    number_write(OVERCOMMIT, before);
    assert_int_equal(rc, 0);
    if (memory->file.page_bytes == MC_PAGE_BYTES) { /* memory is too broken up to make one */
        print_message("  no huge page could be made here\n");
    } else {
        assert_int_equal(memory->file.page_bytes, TWO_MIB);
        assert_int_equal(memory->file.data_size, pages * TWO_MIB);
        assert_int_equal(memory->file.capacity, capacity);
        assert_int_equal(memory->file.header->data_size, memory->file.data_size);
    }
    fill(memory);
    mc_segment_memory_release(memory);
    if (again == 0) { /* there was no room for both */
        assert_int_equal(other->file.page_bytes, MC_PAGE_BYTES);
        mc_segment_memory_release(other);
    }
    assert_int_equal(unsetenv("MC_STORE_USE_HUGEPAGE"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_are_tried),
        cmocka_unit_test(what_is_there),
        cmocka_unit_test(those_that_are_not_there),
        cmocka_unit_test(those_that_are_there),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
