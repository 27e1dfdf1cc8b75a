/* The owners of segments, as a call sees them: where they are, and what happens when one fails. */
#include "store/client/owners.h"

#include "env/clock.h"
#include "env/log.h"
#include "store/client/avoid.h"
#include "store/client/endpoints.h"
#include "store/client/link.h"
#include "store/client/master.h"

#define PATH_OPEN_MS 1000u /* to reach a store node that is seen to run (else MC_CONNECT_NS, MC_STALL_NS) */

static void build_segment(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_segment_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENT, request_id), context);
}

int mc_store_endpoint(struct mc_store *store, uint64_t epoch, uint32_t segment, uint64_t deadline_ns,
                      struct mc_endpoint *endpoint)
{
    bool doubtful = false;
    if (mc_store_endpoint_look(store, epoch, segment, endpoint, &doubtful) && !doubtful)
        return 0;

    /* Not on the caller's link: a request there would end the reads it has open. */
    struct mc_wire_segment request = {.segment = segment};
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc = (doubtful ? mc_link_try : mc_link_call)(store, deadline_ns, build_segment, &request,
                                                     MC_MESSAGE_SEGMENT_REPLY, &link, &reader);
    if (doubtful && mc_master_is_gone(rc))
        return 0;
    if (rc < 0)
        return rc;
    /* Numbers mean something only within an epoch. */
    struct mc_wire_segment_reply reply;
    mc_wire_segment_reply_read(&reader, &reply);
    rc = link->epoch != epoch                                          ? MC_ERR_STALE
         : reader.bad || (reply.code >= 0 && reply.segment != segment) ? MC_ERR_PROTOCOL
                                                                       : 0;
    if (rc == 0)
        rc = mc_store_endpoint_told(store, epoch, &reply, endpoint);
    mc_link_return(store, link);
    return rc;
}

bool mc_store_ticket_renew(struct mc_store *store, uint64_t epoch, uint64_t deadline_ns, struct mc_endpoint *endpoint)
{
    struct mc_endpoint told;
    if (!endpoint->has_ticket)
        return false;
    mc_store_endpoint_doubt(store, epoch, endpoint->segment);
    if (mc_store_endpoint(store, epoch, endpoint->segment, deadline_ns, &told) < 0 || mc_endpoint_same(&told, endpoint))
        return false;
    *endpoint = told;
    return true;
}

void mc_store_report(struct mc_store *store, bool tell, uint64_t epoch, const struct mc_endpoint *owner,
                     struct mc_path *path, int code)
{
    uint32_t segment = owner->segment;
    mc_store_avoid(store, epoch, segment, MC_AVOID_FAILED, tell ? code : 0);
    mc_store_endpoint_doubt(store, epoch, segment);
    atomic_fetch_add(&store->retries, 1);
    mc_log_limited(WARNING, "segment %u (%s, at %s) cannot be reached over %s: %s; other replicas are used", segment,
                   owner->name, owner->tcp_address[0] == 0 ? "no address" : owner->tcp_address,
                   path != NULL ? path->transport->name : "any path", mc_error_name(code));
    if (path != NULL)
        mc_path_drop(path); /* last: the endpoint may be the path's */
}

int mc_store_path(struct mc_store *store, const struct mc_endpoint *endpoint, uint64_t deadline_ns,
                  struct mc_path **path)
{
    uint64_t open_ns = mc_clock_ns() + PATH_OPEN_MS * 1000000ull;
    return mc_path_get(store->paths, endpoint, open_ns < deadline_ns ? open_ns : deadline_ns, path);
}
