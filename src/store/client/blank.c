/* Places that the master has granted a link ahead. */
#include "store/client/blank.h"

#include "base/variables.h"
#include "env/clock.h"
#include "store/client/state.h"
#include "store/segment/layout.h"

#include <string.h>

bool mc_blanks_are_wanted(void)
{
    const char *text = mc_variable(MC_STORE_BLANK_PLACES);
    return text != NULL && text[0] != 0 && strcmp(text, "0") != 0;
}

void mc_blank_take(struct mc_master_link *link, struct mc_span body)
{
    struct mc_reader reader = mc_reader(body.data, body.length);
    struct mc_wire_none none;
    struct mc_wire_blank blank;
    mc_wire_none_read(&reader, &none);
    link->blank = (struct mc_blank){0};
    if (mc_list_read(&reader) != 1)
        return;
    mc_wire_blank_read(&reader, &blank);
    if (!reader.bad)
        link->blank = (struct mc_blank){.segment = blank.segment,
                                        .slot = blank.slot,
                                        .generation = blank.generation,
                                        .offset = blank.offset,
                                        .size = blank.size,
                                        .since_ns = mc_clock_ns()};
}

static bool fits(const struct mc_blank *blank, uint64_t need, const uint32_t *avoid, size_t avoid_count)
{
    if (blank->generation == 0 || need > blank->size || blank->size - need > need / 8 + MC_EXTENT_UNIT ||
        mc_clock_ns() - blank->since_ns >= MC_BLANK_FRESH_MS * 1000000ull)
        return false;
    for (size_t i = 0; i < avoid_count; i++)
        if (avoid[i] == blank->segment)
            return false;
    return true;
}

struct mc_master_link *mc_blank_borrow(struct mc_store *store, uint64_t length, size_t key_length,
                                       const uint32_t *avoid, size_t avoid_count)
{
    pthread_mutex_lock(&store->lock);
    const struct mc_master_link *first = store->idle;
    bool has_one = first != NULL && first->epoch == atomic_load(&store->epoch) &&
                   fits(&first->blank, mc_extent_size(length, key_length), avoid, avoid_count);
    struct mc_master_link *link = has_one ? mc_link_pop(store) : NULL;
    pthread_mutex_unlock(&store->lock);
    if (link != NULL && link == first && mc_socket_has_ended(link->fd)) {
        link->broken = true;
        mc_link_return(store, link);
        return NULL;
    }
    if (link != NULL && link != first) { /* that one was of no use: what has taken its place may have no blank */
        mc_link_return(store, link);
        return NULL;
    }
    return link;
}

void mc_blank_refused(struct mc_store *store)
{
    atomic_store_explicit(&store->blank_rest, MC_BLANK_REST, memory_order_relaxed);
}

bool mc_blank_may_ask(struct mc_store *store)
{
    uint32_t rest = atomic_load_explicit(&store->blank_rest, memory_order_relaxed);
    if (rest == 0)
        return true;
    atomic_compare_exchange_strong_explicit(&store->blank_rest, &rest, rest - 1, memory_order_relaxed,
                                            memory_order_relaxed);
    return false;
}
