/* Files as their disk has them: see pages.h. Of a page that was written since the last sync there is a copy of what it
 * was before; when a sync is under way meanwhile, also of what that will have made durable. */
#include "pages.h"

#include "sim.h"

#include <string.h>

#define PAGE 4096u
#define PAGES_MAX 256u

struct copy {
    struct copy *next;
    uint8_t bytes[PAGE];
};
struct sim_pages {
    struct page {
        struct copy *before, *between; /* before: NULL: nothing was written since the last sync */
        uint64_t serial;               /* of the last write */
    } pages[PAGES_MAX];
    uint64_t serial, sync_serial, size; /* size: when it was synced last */
    uint32_t syncs;                     /* under way */
};
static struct copy *spares;

void sim_pages_reset(void)
{
    spares = NULL;
}

struct sim_pages *sim_pages_make(void)
{
    return sim_allocate(sizeof(struct sim_pages));
}

static struct copy *copy_take(const uint8_t *bytes, uint64_t size, uint64_t at)
{
    struct copy *copy = spares;
    if (copy == NULL)
        copy = sim_allocate(sizeof(*copy));
    else
        spares = copy->next;
    uint64_t length = at >= size ? 0 : size - at < PAGE ? size - at : PAGE;
    if (length > 0)
        memcpy(copy->bytes, bytes + at, length);
    memset(copy->bytes + length, 0, PAGE - length);
    return copy;
}

static void copy_give(struct copy **copy)
{
    if (*copy == NULL)
        return;
    (*copy)->next = spares;
    spares = *copy;
    *copy = NULL;
}

void sim_pages_write(struct sim_pages *pages, const uint8_t *bytes, uint64_t size, uint64_t offset, uint64_t length)
{
    if (length == 0 || offset + length > PAGES_MAX * PAGE) {
        if (length > 0)
            sim_fail("a file of a disk is too large for the simulator");
        return;
    }
    pages->serial++;
    for (uint64_t number = offset / PAGE; number <= (offset + length - 1) / PAGE; number++) {
        struct page *page = &pages->pages[number];
        bool is_covered = pages->syncs > 0 && page->serial <= pages->sync_serial;
        if (page->before == NULL)
            page->before = copy_take(bytes, size, number * PAGE);
        else if (is_covered && page->between == NULL)
            page->between = copy_take(bytes, size, number * PAGE);
        page->serial = pages->serial;
    }
}

void sim_pages_cut(struct sim_pages *pages, uint64_t size)
{
    for (uint64_t number = (size + PAGE - 1) / PAGE; number < PAGES_MAX; number++) {
        copy_give(&pages->pages[number].before);
        copy_give(&pages->pages[number].between);
    }
    pages->size = pages->size < size ? pages->size : size;
}

struct sim_sync sim_pages_sync_begin(struct sim_pages *pages, uint64_t size)
{
    pages->syncs++;
    pages->sync_serial = pages->serial;
    return (struct sim_sync){pages->serial, size};
}

void sim_pages_sync_end(struct sim_pages *pages, struct sim_sync sync)
{
    pages->syncs--;
    pages->size = pages->size > sync.size ? pages->size : sync.size;
    for (uint32_t number = 0; number < PAGES_MAX; number++) {
        struct page *page = &pages->pages[number];
        if (page->before == NULL)
            continue;
        if (page->between != NULL) {
            copy_give(&page->before);
            page->before = page->between;
            page->between = NULL;
        } else if (page->serial <= sync.serial) {
            copy_give(&page->before);
        }
    }
}

void sim_pages_sync_drop(struct sim_pages *pages)
{
    pages->syncs--;
    for (uint32_t number = 0; number < PAGES_MAX; number++)
        copy_give(&pages->pages[number].between);
}

uint64_t sim_pages_lose(struct sim_pages *pages, const char *name, uint8_t *bytes, uint64_t size)
{
    uint32_t lost = 0, kept = 0, in = 2u + sim_below(SIM_DISKS, 3); /* of so many pages one is there */
    bool is_cut = size > pages->size && sim_once_in(SIM_DISKS, 2);
    for (uint64_t number = 0; number < PAGES_MAX; number++) {
        struct page *page = &pages->pages[number];
        uint64_t at = number * PAGE;
        bool is_lost = page->before != NULL && at < size && !sim_once_in(SIM_DISKS, in);
        kept += page->before != NULL && !is_lost;
        lost += is_lost;
        if (is_lost)
            memcpy(bytes + at, page->before->bytes, size - at < PAGE ? size - at : PAGE);
        copy_give(&page->before);
        copy_give(&page->between);
    }
    pages->syncs = 0;
    if (lost > 0 || is_cut)
        sim_say("of %s %u pages that were not synced are lost, %u are there%s", name, lost, kept,
                is_cut ? ", and it is as long as it was" : "");
    size = is_cut ? pages->size : size;
    pages->size = size;
    return size;
}
