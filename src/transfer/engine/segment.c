/* What peers have registered: their segments. */
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"

#include "base/error.h"
#include "env/clock.h"

int mc_transfer_open_segment(struct mc_transfer_engine *engine, const char *target)
{
    struct mc_peer *peer;
    if (!mc_transfer_alive(engine))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_peer_get(engine, target, mc_clock_ns() + engine->settings.timeout_ns, &peer);
    if (rc == 0)
        mc_peer_release(peer);
    return rc;
}

int mc_transfer_close_segment(struct mc_transfer_engine *engine, const char *target)
{
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    mc_peer_forget(engine, target);
    return 0;
}

int64_t mc_transfer_segment_ranges(struct mc_transfer_engine *engine, const char *target,
                                   struct mc_transfer_range *ranges, size_t capacity)
{
    char address[MC_ADDRESS_MAX];
    struct mc_document document;
    if (!mc_transfer_alive(engine) || !mc_peer_is_name(target) || (ranges == NULL && capacity > 0))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    uint64_t deadline_ns = mc_clock_ns() + engine->settings.timeout_ns;
    int rc = mc_ask_document(engine, target, deadline_ns, &document, address, sizeof(address));
    size_t count = rc == 0 ? document.buffer_count : 0;
    for (size_t i = 0; i < count && i < capacity; i++)
        ranges[i] = document.buffers[i];
    mc_document_free(&document);
    return rc < 0 ? mc_ask_failed(target, rc) : (int64_t)count;
}

uint64_t mc_transfer_first_address(struct mc_transfer_engine *engine, const char *target)
{
    struct mc_transfer_range first = {0, 0};
    return mc_transfer_segment_ranges(engine, target, &first, 1) > 0 ? first.address : 0;
}
