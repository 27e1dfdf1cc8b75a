/* What a segment costs beside its memory: bench_segment GIB... Each is made, as a store node makes it, but not
 * populated: only 1 GiB of it is touched. Huge pages of hugetlb are used as far as the machine lends them
 * (nr_hugepages, nr_overcommit_hugepages); what it does not is said and left out.
 *
 * made: until it can be used. index: reserved for the slots; of it lies in memory what is used, 64 bytes an object.
 * tables: of the page tables of this process, for each GiB that it has touched; another process that maps the segment
 * has as many of its own, unless it reads only a part. */
#include "base/size.h"
#include "env/clock.h"
#include "store/segment/memory_inside.h"

#include "tool/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ull << 30)
#define ROUNDS 5u
#define OBJECT (1ull << 20)

/* Bytes, of a line of /proc/self/status. */
static uint64_t of_process(const char *name)
{
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoull(line + strlen(name) + 1, NULL, 10);
    if (file != NULL)
        fclose(file);
    return kib << 10;
}

struct cost {
    double made_ms, touched_s;
    uint64_t index, resident, tables;
    bool is_huge;
};

static bool measure(uint64_t capacity, struct cost *cost)
{
    struct mc_segment_memory *memory;
    uint64_t resident = of_process("VmRSS:"), start_ns = mc_clock_ns();
    if (mc_segment_memory_create(capacity, &memory) < 0)
        return false;
    cost->made_ms = (double)(mc_clock_ns() - start_ns) / 1e6;
    cost->index = memory->file.index_size;
    cost->resident = of_process("VmRSS:") - resident;
    cost->is_huge = memory->file.page_bytes > 4096;
    uint64_t touch = capacity < GIB ? capacity : GIB, tables = of_process("VmPTE:");
    start_ns = mc_clock_ns();
    for (uint64_t at = 0; at < touch; at += 4096)
        mc_segment_memory_data(memory)[at] = 1;
    cost->touched_s = (double)(mc_clock_ns() - start_ns) / 1e9;
    cost->tables = of_process("VmPTE:") - tables;
    mc_segment_memory_release(memory);
    return true;
}

static void show(uint64_t capacity, bool huge)
{
    double made[ROUNDS], touched[ROUNDS];
    struct cost cost = {0};
    char index[32], resident[32], tables[32];
    (void)setenv("MC_STORE_USE_HUGEPAGE", huge ? "1" : "0", 1);
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (!measure(capacity, &cost) || cost.is_huge != huge) {
            printf("%6llu GiB  %-10s not to be had\n", (unsigned long long)(capacity / GIB), huge ? "huge" : "4 KiB");
            return;
        }
        made[i] = cost.made_ms;
        touched[i] = cost.touched_s;
    }
    mc_size_text(index, sizeof(index), cost.index);
    mc_size_text(resident, sizeof(resident), cost.resident);
    mc_size_text(tables, sizeof(tables), cost.tables);
    double made_median = mc_bench_median(made, ROUNDS), touched_median = mc_bench_median(touched, ROUNDS);
    printf("%6llu GiB  %-10s %7.2f (%.2f-%.2f) %10s %10s %10s %7.2f (%.2f-%.2f)\n",
           (unsigned long long)(capacity / GIB), huge ? "huge" : "4 KiB", made_median, made[0], made[ROUNDS - 1], index,
           resident, tables, touched_median, touched[0], touched[ROUNDS - 1]);
}

int main(int argument_count, char **arguments)
{
    static char *usual[] = {"", "1", "64", "2048"};
    char **list = argument_count > 1 ? arguments : usual;
    int count = argument_count > 1 ? argument_count : 4;
    printf("%10s  %-10s %s %12s %10s %10s %s\n", "segment", "pages", "made, ms (min-max)", "index", "resident",
           "tables", "1 GiB touched, s (min-max)");
    for (int i = 1; i < count; i++)
        for (unsigned huge = 0; huge < 2; huge++)
            show(strtoull(list[i], NULL, 10) * GIB, huge == 1);
    return 0;
}
