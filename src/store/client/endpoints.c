/* Endpoints of segments, as masters have told them: a hash table in open addressing. */
#include "store/client/endpoints.h"

#include "env/clock.h"
#include "store/client/state.h"

#include <stdlib.h>
#include <string.h>

#define ENDPOINTS_MAX 65536u /* cached segments */

struct mc_cached_endpoint { /* key: (epoch, endpoint.segment) */
    uint64_t epoch;
    bool doubtful;     /* could not be reached there: the master is asked again when it can be */
    uint64_t renew_ns; /* likewise from then on, as half the life of its ticket is over; CLOCK_BOOTTIME, 0: it lasts */
    struct mc_endpoint endpoint;
};

static size_t endpoint_home(const struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    return (size_t)((epoch * 0x9e3779b97f4a7c15ull ^ segment * 0xc2b2ae3d27d4eb4full) >> 20) &
           (store->endpoint_capacity - 1);
}

/* The place of (epoch, segment) in the table, or of the free entry where it would go. Lock held, table not full. */
static struct mc_cached_endpoint **endpoint_find(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    for (size_t at = endpoint_home(store, epoch, segment);; at = (at + 1) & (store->endpoint_capacity - 1)) {
        struct mc_cached_endpoint *entry = store->endpoints[at];
        if (entry == NULL || (entry->epoch == epoch && entry->endpoint.segment == segment))
            return &store->endpoints[at];
    }
}

void mc_store_endpoints_clear(struct mc_store *store)
{
    for (size_t i = 0; i < store->endpoint_capacity; i++)
        free(store->endpoints[i]);
    free(store->endpoints);
    store->endpoints = NULL;
    store->endpoint_count = store->endpoint_capacity = 0;
}

/* Lock held. Grows to stay at most half full; a table at its limit starts over (entries can be asked for again). */
static int endpoints_make_room(struct mc_store *store)
{
    if (store->endpoint_count >= ENDPOINTS_MAX)
        mc_store_endpoints_clear(store);
    if ((store->endpoint_count + 1) * 2 <= store->endpoint_capacity)
        return 0;
    size_t old_capacity = store->endpoint_capacity, capacity = old_capacity == 0 ? 64 : old_capacity * 2;
    struct mc_cached_endpoint **old = store->endpoints, **endpoints = calloc(capacity, sizeof(*endpoints));
    if (endpoints == NULL)
        return MC_ERR_NO_MEMORY;
    store->endpoints = endpoints;
    store->endpoint_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != NULL)
            *endpoint_find(store, old[i]->epoch, old[i]->endpoint.segment) = old[i];
    }
    free(old);
    return 0;
}

static void endpoint_store(struct mc_store *store, uint64_t epoch, const struct mc_endpoint *endpoint,
                           uint32_t ticket_ms)
{
    struct mc_cached_endpoint *entry = malloc(sizeof(*entry));
    if (entry == NULL)
        return; /* only a cache */
    *entry = (struct mc_cached_endpoint){.epoch = epoch, .endpoint = *endpoint};
    if (endpoint->has_ticket && ticket_ms > 0)
        entry->renew_ns = mc_clock_boot_ns() + ticket_ms * 500000ull;
    pthread_mutex_lock(&store->lock);
    /* Of an older epoch: what is told there is of no use any more. */
    struct mc_cached_endpoint **at = epoch != atomic_load(&store->epoch) || endpoints_make_room(store) < 0
                                         ? NULL
                                         : endpoint_find(store, epoch, endpoint->segment);
    if (at != NULL) {
        struct mc_cached_endpoint *before = *at;
        *at = entry;
        store->endpoint_count += before == NULL;
        entry = before;
    }
    pthread_mutex_unlock(&store->lock);
    free(entry);
}

static bool copy_text(char *target, size_t size, struct mc_span text)
{
    if (text.length >= size || (text.length > 0 && memchr(text.data, 0, text.length) != NULL))
        return false;
    if (text.length > 0)
        memcpy(target, text.data, text.length);
    target[text.length] = 0;
    return true;
}

int mc_store_endpoint_told(struct mc_store *store, uint64_t epoch, const struct mc_wire_segment_reply *reply,
                           struct mc_endpoint *endpoint)
{
    if (reply->code < 0)
        return reply->code;
    *endpoint = (struct mc_endpoint){.segment = reply->segment,
                                     .node = reply->node,
                                     .incarnation = reply->incarnation,
                                     .segment_id = reply->segment_id,
                                     .capacity = reply->capacity,
                                     .slot_count = reply->slot_count,
                                     .nonce = reply->nonce,
                                     .host = reply->host};
    if (!copy_text(endpoint->name, sizeof(endpoint->name), reply->name) ||
        !copy_text(endpoint->tcp_address, sizeof(endpoint->tcp_address), reply->tcp_address) ||
        !copy_text(endpoint->unix_path, sizeof(endpoint->unix_path), reply->unix_path))
        return MC_ERR_PROTOCOL;
    endpoint->has_ticket = reply->ticket.length > 0 && mc_keys_are_wanted(); /* who wants none believes none */
    if (endpoint->has_ticket && (reply->ticket.length != sizeof(endpoint->ticket) ||
                                 reply->ticket_secret.length != sizeof(endpoint->ticket_secret)))
        return MC_ERR_PROTOCOL;
    if (endpoint->has_ticket) {
        memcpy(endpoint->ticket, reply->ticket.data, sizeof(endpoint->ticket));
        memcpy(endpoint->ticket_secret, reply->ticket_secret.data, sizeof(endpoint->ticket_secret));
    }
    endpoint_store(store, epoch, endpoint, reply->ticket_ms);
    return 0;
}

bool mc_store_endpoint_look(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint,
                            bool *doubtful)
{
    pthread_mutex_lock(&store->lock);
    struct mc_cached_endpoint *cached = store->endpoint_capacity == 0 ? NULL : *endpoint_find(store, epoch, segment);
    if (cached != NULL) {
        *endpoint = cached->endpoint;
        *doubtful = cached->doubtful || (cached->renew_ns != 0 && mc_clock_boot_ns() >= cached->renew_ns);
    }
    pthread_mutex_unlock(&store->lock);
    return cached != NULL;
}

bool mc_store_endpoint_known(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint)
{
    bool doubtful;
    return mc_store_endpoint_look(store, epoch, segment, endpoint, &doubtful);
}

void mc_store_endpoint_doubt(struct mc_store *store, uint64_t epoch, uint32_t segment)
{
    pthread_mutex_lock(&store->lock);
    struct mc_cached_endpoint *cached = store->endpoint_capacity == 0 ? NULL : *endpoint_find(store, epoch, segment);
    if (cached != NULL)
        cached->doubtful = true;
    pthread_mutex_unlock(&store->lock);
}
