/* The pools of huge pages, and what the environment asks of them. */
#include "store/segment/pages.h"

#include "base/size.h"
#include "base/variables.h"
#include "env/log.h"
#include "store/segment/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004u
#endif
#define HUGE_SHIFT 26 /* where the logarithm of a page's bytes stands in the flags */
#define HUGEPAGES "/sys/kernel/mm/hugepages"
#define WASTE_PART 16u /* of the data may be lost to the last page, unless that size was asked for */

static const struct {
    const char *name; /* "GB" and "GiB" may follow */
    uint64_t bytes;
} sizes[MC_PAGES_SIZES] = {{"1G", UINT64_C(1) << 30}, {"2M", UINT64_C(2) << 20}};

static bool is_no(const char *text)
{
    static const char *const words[] = {"", "0", "false", "no", "off"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

/* Which of the sizes a text names; MC_PAGES_SIZES: none of them. */
static size_t size_named(const char *text)
{
    for (size_t i = 0; i < MC_PAGES_SIZES; i++) {
        const char *unit = text + 2;
        if (strncasecmp(text, sizes[i].name, 2) == 0 &&
            (*unit == 0 || strcasecmp(unit, "B") == 0 || strcasecmp(unit, "iB") == 0))
            return i;
        char *end;
        if (strtoull(text, &end, 10) == sizes[i].bytes && *end == 0)
            return i;
    }
    return MC_PAGES_SIZES;
}

size_t mc_pages_wanted(const char *use, const char *size, uint64_t data_size, uint64_t bytes[MC_PAGES_SIZES],
                       bool *wrong)
{
    size_t count = 0;
    bool is_named = size != NULL && size[0] != 0;
    size_t first = is_named ? size_named(size) : 0;
    *wrong = first == MC_PAGES_SIZES;
    if (use == NULL || is_no(use))
        return 0;
    for (size_t i = *wrong ? 0 : first; i < MC_PAGES_SIZES; i++) {
        bool is_asked_for = is_named && i == first;
        uint64_t lost = mc_pages_round(data_size, sizes[i].bytes) - data_size;
        if (is_asked_for || sizes[i].bytes == UINT64_C(2) << 20 || lost <= data_size / WASTE_PART)
            bytes[count++] = sizes[i].bytes;
    }
    return count;
}

size_t mc_pages_wanted_here(uint64_t data_size, uint64_t bytes[MC_PAGES_SIZES])
{
    const char *size = mc_variable(MC_STORE_HUGEPAGE_SIZE);
    bool is_wrong;
    size_t count = mc_pages_wanted(mc_variable(MC_STORE_USE_HUGEPAGE), size, data_size, bytes, &is_wrong);
    if (is_wrong && count > 0)
        mc_log_limited(WARNING, "MC_STORE_HUGEPAGE_SIZE=%.40s is neither 1GB nor 2MB; both are tried", size);
    return count;
}

static uint64_t number_of(const char *root, uint64_t bytes, const char *name)
{
    char path[256], text[32] = "";
    snprintf(path, sizeof(path), "%.100s/hugepages-%" PRIu64 "kB/%s", root, bytes >> 10, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    return length > 0 ? strtoull(text, NULL, 10) : 0;
}

struct mc_pages_pool mc_pages_pool(const char *root, uint64_t bytes)
{
    uint64_t unused = number_of(root, bytes, "free_hugepages"), promised = number_of(root, bytes, "resv_hugepages");
    uint64_t more = number_of(root, bytes, "nr_overcommit_hugepages"),
             made = number_of(root, bytes, "surplus_hugepages");
    return (struct mc_pages_pool){
        .bytes = bytes, .free = (unused > promised ? unused - promised : 0) + (more > made ? more - made : 0)};
}

bool mc_pages_have_room(uint64_t capacity)
{
    uint64_t bytes[MC_PAGES_SIZES];
    if (capacity > MC_CAPACITY_MAX)
        return false;
    uint64_t data_size = capacity + MC_EXTENT_SLACK;
    size_t count = mc_pages_wanted_here(data_size, bytes);
    for (size_t i = 0; i < count; i++)
        if (mc_pages_round(data_size, bytes[i]) / bytes[i] <= mc_pages_pool(HUGEPAGES, bytes[i]).free)
            return true;
    return false;
}

int mc_pages_memfd(const char *name, uint64_t bytes)
{
    unsigned log = (unsigned)__builtin_ctzll(bytes);
    return memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | log << HUGE_SHIFT);
}

void mc_pages_say_missing(uint64_t bytes, uint64_t data_size, int error)
{
    struct mc_pages_pool pool = mc_pages_pool(HUGEPAGES, bytes);
    char size[32];
    uint64_t wanted = mc_pages_round(data_size, bytes) / bytes;
    mc_size_text(size, sizeof(size), bytes);
    if (error == ENOMEM)
        mc_log(WARNING,
               "no huge pages of %s for the segment: it needs %" PRIu64 ", %" PRIu64
               " can be had. To reserve them: echo N > " HUGEPAGES "/hugepages-%" PRIu64 "kB/nr_hugepages",
               size, wanted, pool.free, bytes >> 10);
    else
        mc_log(WARNING, "no huge pages of %s for the segment: %s", size, strerror(error));
}
