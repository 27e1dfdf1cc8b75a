/* How long a large disk takes to be found again, and what an object costs in memory. */
#include "disk_rig.h"

#include "env/clock.h"
#include "env/log.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

/* A sealed region with as many small objects as fit, written straight into the file: extents are not read. */
static uint32_t region_make(int fd, uint32_t region, struct mc_id id, uint64_t bytes, uint64_t *generation,
                            uint32_t most)
{
    struct mc_disk_head head;
    uint8_t *page = calloc(1, MC_DISK_PAGE), *footer = calloc(1, mc_disk_walk_bytes(bytes));
    uint64_t at = (uint64_t)region * bytes;
    uint32_t used = 0, count = 0;
    assert_true(page != NULL && footer != NULL);
    mc_disk_head_fill(&head, MC_DISK_HEAD_REGION, id);
    head.sequence = region + 1;
    head.salt = 5;
    head.region = region;
    mc_disk_head_seal(&head);
    memcpy(page, &head, sizeof(head));
    assert_int_equal(pwrite(fd, page, MC_DISK_PAGE, (off_t)at), MC_DISK_PAGE);
    for (; count < most && count < bytes / MC_DISK_PAGE - 1024; count++) {
        char key[32];
        struct mc_disk_record record = {.page = 2 + count, .slot = (uint32_t)*generation, .key = (const uint8_t *)key};
        record.entry =
            (struct mc_disk_entry){.generation = ++*generation, .length = 100, .block_shift = mc_block_shift(100)};
        record.entry.key_length = (uint16_t)snprintf(key, sizeof(key), "%016llx", (unsigned long long)*generation);
        record.entry.hash = mc_hash(key, record.entry.key_length);
        mc_disk_record_put(footer + used, &record);
        used += mc_disk_record_bytes(record.entry.key_length);
    }
    mc_disk_head_fill(&head, MC_DISK_HEAD_FOOTER, id);
    head.sequence = region + 1;
    head.salt = 5;
    head.region = region;
    head.count = count;
    head.bytes = used;
    head.crc = mc_crc32c(0, footer, used);
    mc_disk_head_seal(&head);
    uint32_t table = (uint32_t)mc_disk_page_up(used);
    memcpy(footer + table, &head, sizeof(head));
    assert_int_equal(pwrite(fd, footer, table + MC_DISK_PAGE, (off_t)(at + bytes - MC_DISK_PAGE - table)),
                     table + MC_DISK_PAGE);
    free(footer);
    free(page);
    return count;
}

static uint64_t processor_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void test_a_million(void **state)
{
    (void)state;
    const uint64_t bytes = MC_DISK_REGION_BYTES, wanted = 1000000;
    char *path = rig_directory(), name[128];
    rig_reset(1);
    struct mc_disk_config config = rig_config(path);
    config.region_bytes = bytes;
    config.capacity = 80 * bytes;
    config.buffer_bytes = 2 * bytes;
    rig_stop(rig_start(&config));
    struct mc_disk *disk = rig_start(&config);
    struct mc_id id = mc_disk_id(disk);
    rig_stop(disk);
    snprintf(name, sizeof(name), "%s/mooncake-c.0/volume.0", path);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    uint64_t generation = 0;
    uint32_t regions = 0;
    while (generation < wanted) {
        (void)region_make(fd, regions, id, bytes, &generation, (uint32_t)(wanted - generation));
        regions++;
    }
    assert_int_equal(ftruncate(fd, (off_t)(regions * bytes)), 0);
    close(fd);
    uint64_t begun_ms = mc_clock_ms(), used_ms = processor_ms();
    disk = rig_start(&config);
    begun_ms = mc_clock_ms() - begun_ms;
    used_ms = processor_ms() - used_ms;
    assert_int_equal(disk->index.count, wanted);
    print_message("%llu objects in %u regions: %llu ms, %llu ms of the processor; %zu bytes an object\n",
                  (unsigned long long)wanted, regions, (unsigned long long)begun_ms, (unsigned long long)used_ms,
                  sizeof(struct mc_disk_item));
    rig_stop(disk);
    rig_remove(path);
}

static size_t map_refused; /* so many bytes at a time are not given */

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (size == map_refused) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset); /* NOLINT(performance-no-int-to-ptr) */
}

static int ready_code;

static void on_ready(void *context, int code, uint32_t objects)
{
    (void)context, (void)objects;
    ready_code = code;
}

/* What was found and cannot be kept would come back to a process that has more memory: a disk that lists only a part
 * is not used. */
static void test_no_memory(void **state)
{
    (void)state;
    char *path = rig_directory();
    uint32_t slot = 0, most = 0;
    rig_reset(1);
    struct mc_disk_config config = rig_config(path);
    config.ready = on_ready;
    struct mc_disk *disk = rig_start(&config);
    most = disk->index.capacity;
    rig_store_many(disk, 1, 40, 60000);    /* in several regions */
    for (uint64_t i = 100; i < 110; i++) { /* as from one that could take more */
        char key[MC_KEY_LENGTH_MAX + 1];
        struct answer answer = {0};
        slot = 3 * most + (uint32_t)i;
        assert_true(mc_disk_index_grow(&disk->index, slot));
        disk->slot_count = slot + 1;
        uint8_t *buffer = mc_disk_lend(disk, 60000, rig_key(i, key));
        assert_non_null(buffer);
        struct mc_disk_entry entry = rig_extent(buffer, i, i, 60000);
        assert_int_equal(mc_disk_store(disk, slot, &entry, buffer, false, on_stored, &answer), 0);
        rig_wait(disk, &answer);
        assert_int_equal(answer.code, 0);
    }
    rig_stop(disk);
    map_refused = 4 * most * sizeof(struct mc_disk_item);
    disk = rig_start(&config);
    map_refused = 0;
    assert_int_equal(ready_code, MC_ERR_NO_MEMORY);
    assert_int_equal(disk->health, MC_DISK_CLOSED);
    rig_stop(disk);
    disk = rig_start(&config); /* nothing was changed there */
    assert_int_equal(ready_code, 0);
    assert_int_equal(disk->index.count, 50);
    assert_int_equal(rig_read_object(disk, slot, 109, 109, 60000), 0);
    rig_stop(disk);
    rig_remove(path);
}

/* Slots that were never used go on costing nothing. */
static void test_index_grows(void **state)
{
    (void)state;
    const uint32_t capacity = 1u << 18;
    struct mc_disk_index index;
    assert_int_equal(mc_disk_index_init(&index, capacity), 0);
    assert_true(mc_disk_index_take(&index, 5) && mc_disk_index_take(&index, capacity - 1));
    index.items[5].entry.generation = 7;
    assert_true(mc_disk_index_grow(&index, capacity));
    assert_true(index.capacity == 2 * capacity && index.top == capacity && index.count == 2);
    assert_non_null(mc_disk_index_find(&index, 5, 7));
    assert_false(mc_disk_index_take(&index, capacity - 1));
    size_t pages = (size_t)index.capacity * sizeof(struct mc_disk_item) / MC_DISK_PAGE, there = 0;
    uint8_t *resident = calloc(1, pages);
    assert_non_null(resident);
    assert_int_equal(mincore(index.items, pages * MC_DISK_PAGE, resident), 0);
    for (size_t i = 0; i < pages; i++)
        there += resident[i] & 1u;
    assert_true(there < pages / 4); /* some more than two, where the kernel gives large pages */
    free(resident);
    mc_disk_index_free(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_million), cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_index_grows)};
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
