/* Get: ask where, copy, check, try the next replica. docs/ordering.md, G1 to G3. Whole objects and ranges
 * are one thing here. While no master can be reached, what is known of the places of objects is tried first. */
#include "base/checksum.h"
#include "env/clock.h"
#include "env/spans.h"
#include "store/client/get_inside.h"
#include "store/client/avoid.h"
#include "store/client/calls.h"
#include "store/client/endpoints.h"
#include "store/client/hot.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/move.h"
#include "store/client/owners.h"
#include "store/client/stripes.h"
#include "store/client/threads.h"

#include <stdlib.h>
#include <unistd.h>

#define PENDING MC_GET_PENDING
#define LEARN_MS 50u      /* to learn the way to replicas that were not needed now */
#define LEARN_SEGMENTS 8u /* of a batch that are looked up only once */
#define ASK_AGAIN_MAX 2u  /* times a batch is asked for again because the master changed while it was read */
/* To wait for a value that comes from a disk, or whose predecessor is being cleared: a quarter of what has passed, so
 * that little of it is waited in vain, and no less than what asking for it costs. */
#define REPLACED_FIRST_US 100u
#define REPLACED_KEY_US 1u
#define REPLACED_PART 4u
#define REPLACED_MAX_US 5000u
#define TROUBLE_MAX_US 50000u /* the same, for trouble of our own to pass */
#define SLACK_US 50u          /* by so much a sleep is longer than it was to be */

struct get_work {
    struct mc_store *store;
    struct mc_master_link *link; /* NULL: no master, the places are remembered ones */
    uint64_t epoch;              /* of the places */
    uint64_t call_deadline_ns;   /* without what is added for bytes */
    uint64_t deadline_ns;
    uint64_t last_ns; /* to which bytes may extend the deadline */
    struct get_one *ones;
    size_t count;
    struct mc_place *places;
    struct mc_transfer *transfers;
    struct mc_transfer **scratch;
    size_t *owner_of; /* index in ones of each transfer */
    bool *has_others; /* see mc_haste */
    bool stalled;     /* the same */
    mc_allocate *allocate;
    void *context;
    uint64_t renewed_ns;
    bool learnt;                 /* places that were not known before */
    bool failed;                 /* an owner has failed while it was read from */
    uint32_t contact_age_max_ms; /* without a link: see mc_run */
    bool session;                /* what is remembered is read first */
};

static void build_get(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    const struct get_work *work = context;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_GET, request_id);
    size_t list = mc_wire_get_head(out, &(struct mc_wire_get){.flags = 0});
    for (size_t i = 0; i < work->count; i++) {
        mc_wire_key_write(out, &(struct mc_wire_key){.key = mc_span(work->ones[i].key.data, work->ones[i].key.length)});
        mc_locations_expect(&work->store->locations, work->ones[i].hash);
    }
    mc_frame_end_list(out, frame, list, work->count);
}

/* Of a place that was read, or that is to be. False when what was read before is of another version. */
static bool pin_agrees(struct get_one *one, const struct mc_place *place)
{
    struct get_pin *pin = one->pin;
    if (pin == NULL)
        return true;
    pin->torn |= pin->version != 0 && pin->version != mc_place_version(place);
    return !pin->torn;
}

static void pin_to(struct get_one *one, const struct mc_place *place)
{
    if (pin_agrees(one, place) && one->pin != NULL)
        one->pin->version = mc_place_version(place);
}

/* The head is read into memory of ours, and the value afterwards, in pieces. */
static void prepare_head(struct get_one *one)
{
    free(one->head_part.iov_base);
    one->head_part = (struct iovec){NULL, one->object_length};
    bool is_sane = one->object_length <= MC_HEAD_BYTES_MAX && mc_stripes_head_hash(&one->key, &one->head_hash);
    if (is_sane)
        one->head_part.iov_base = malloc(one->object_length);
    if (one->head_part.iov_base == NULL)
        one->code = is_sane ? MC_ERR_NO_MEMORY : MC_ERR_OBJECT_NOT_FOUND;
}

/* Settles where the bytes of a found object go. Leaves it PENDING when it is to be read. */
static void prepare_one(struct get_work *work, struct get_one *one)
{
    const struct mc_place *place = work->places + one->first_place;
    uint64_t object_length = one->whole != 0 ? one->whole : one->object_length;
    if (!pin_agrees(one, place)) {
        one->code = MC_ERR_STALE;
        return;
    }
    if (one->whole != 0)
        prepare_head(one);
    if (one->code != PENDING)
        return;
    if (one->is_range) {
        if (one->offset > object_length || one->length > object_length - one->offset)
            one->code = MC_ERR_INVALID_PARAMS;
        else if (one->length == 0)
            one->code = 0;
        if (one->code != PENDING)
            pin_to(one, place);
        return;
    }
    if (one->allocated && one->length == object_length) { /* asked for again */
        one->code = one->own_part.iov_base == NULL ? MC_ERR_NO_MEMORY : PENDING;
        return;
    }
    one->length = object_length;
    if (work->allocate != NULL) {
        one->allocated = true;
        one->own_part = (struct iovec){work->allocate(work->context, one->index, one->length), one->length};
        one->parts = &one->own_part;
        one->part_count = 1;
        if (one->own_part.iov_base == NULL)
            one->code = MC_ERR_NO_MEMORY;
    } else if (mc_parts_length(one->parts, one->part_count) < one->length) {
        one->code = MC_ERR_INVALID_PARAMS;
    }
}

static int places_reserve(struct get_work *work, size_t count)
{
    free(work->places);
    work->places = malloc((count + 1) * sizeof(*work->places));
    return work->places == NULL ? MC_ERR_NO_MEMORY : 0;
}

/* Of what else is to come soon the master says no length. */
static bool is_load(int64_t code, uint64_t length)
{
    return code == MC_ERR_PUT_IN_PROGRESS && length > 0;
}

static int read_found(struct get_work *work, struct mc_reader *reader)
{
    struct mc_wire_none head;
    struct mc_wire_found found;
    struct mc_wire_place place;
    size_t place_count = 0;
    mc_wire_none_read(reader, &head);
    if (mc_list_read(reader) != work->count)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < work->count; i++) {
        struct get_one *one = &work->ones[i];
        mc_wire_found_read(reader, &found);
        if (found.code > 0 || found.replica_count > MC_REPLICA_COUNT_MAX ||
            (found.code == 0 && (found.replica_count == 0 || found.length == 0)))
            return MC_ERR_PROTOCOL;
        one->code = found.code < 0 ? found.code : PENDING;
        one->object_length = found.length;
        one->whole = found.code == 0 ? found.whole : 0;
        if (found.copy_to != 0) { /* what is asked again may have no such answer */
            one->copy_to = found.copy_to;
            one->copy_epoch = work->epoch;
        }
        one->loaded = one->loaded || is_load(found.code, found.length);
        one->first_place = place_count;
        one->place_count = found.code < 0 ? 0 : found.replica_count;
        one->tried = 0;
        one->trouble = 0;
        one->reread = one->patient = false;
        place_count += one->place_count;
    }
    /* Not mc_list_read: replicas may be more than a batch has items. */
    if (mc_reader_u32(reader) != place_count || reader->bad || mc_reader_left(reader) < place_count * 2)
        return MC_ERR_PROTOCOL;
    if (places_reserve(work, place_count) < 0)
        return MC_ERR_NO_MEMORY;
    for (size_t i = 0; i < place_count; i++) {
        mc_wire_place_read(reader, &place);
        work->places[i] = mc_place_of(&place);
    }
    if (reader->bad)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < work->count; i++) {
        const struct get_one *one = &work->ones[i];
        if (one->code == PENDING && one->whole == 0 &&
            mc_locations_put(&work->store->locations, one->hash, work->epoch, one->object_length,
                             work->places + one->first_place, one->place_count))
            work->learnt = true;
    }
    return 0;
}

static bool endpoint_of(struct get_work *work, const struct mc_place *place, struct mc_endpoint *endpoint)
{
    return mc_store_endpoint_known(work->store, work->epoch, place->segment, endpoint) ||
           (work->link != NULL &&
            mc_store_endpoint(work->store, work->epoch, place->segment, work->deadline_ns, endpoint) == 0);
}

/* 0 this process, 1 this machine, 2 elsewhere, 3 failed or was slow a moment ago. */
static int distance(struct get_work *work, const struct mc_place *place)
{
    struct mc_endpoint endpoint;
    if (mc_store_is_slow(work->store, work->epoch, place->segment) || !endpoint_of(work, place, &endpoint))
        return 3;
    if (mc_id_equal(endpoint.node, work->store->node))
        return 0;
    return mc_id_equal(endpoint.host, work->store->host) ? 1 : 2;
}

/* Moves the nearest of the places not tried yet to the front of them. Equal ones keep the master's order, which turns.
 */
static const struct mc_place *next_place(struct get_work *work, struct get_one *one)
{
    struct mc_place *places = work->places + one->first_place;
    if (one->reread)
        return &places[one->tried - 1];
    size_t left = (size_t)one->place_count - one->tried, best = one->tried;
    if (left > 1) {
        int best_distance = distance(work, &places[best]);
        for (size_t i = one->tried + 1u; i < one->place_count && best_distance > 0; i++) {
            int one_distance = distance(work, &places[i]);
            if (one_distance < best_distance) {
                best = i;
                best_distance = one_distance;
            }
        }
    }
    struct mc_place chosen = places[best];
    places[best] = places[one->tried];
    places[one->tried] = chosen;
    return &places[one->tried++];
}

/* Called while bytes move: a read that is longer than its lease keeps it. */
static void renew_lease(void *context)
{
    struct get_work *work = context;
    uint64_t now_ns = mc_clock_ns();
    if (work->link == NULL || now_ns - work->renewed_ns < atomic_load(&work->store->lease_ttl_ms) * 1000000ull / 3)
        return;
    work->renewed_ns = now_ns;
    mc_frame_bare(&work->link->out, MC_MESSAGE_RENEW, 0);
    (void)mc_link_send(work->link, now_ns + 1000000ull); /* only a courtesy: the slot check protects the bytes */
}

static void write_rotten(struct mc_master_link *link, const struct mc_place *place)
{
    size_t frame = mc_frame_begin(&link->out, MC_MESSAGE_ROTTEN, 0);
    size_t list = mc_wire_segment_head(&link->out, &(struct mc_wire_segment){.segment = place->segment});
    mc_wire_slot_write(&link->out, &(struct mc_wire_slot){.slot = place->slot, .generation = place->generation});
    mc_frame_end_list(&link->out, frame, list, 1);
}

/* Trouble of our own that may pass. */
static bool is_trouble(int code)
{
    return code != MC_ERR_INVALID_PARAMS && (mc_socket_is_own(code) || mc_master_is_gone(code));
}

/* What the try of one replica has come to. Leaves it PENDING when there is another try. */
static void judge(struct get_work *work, struct get_one *one, const struct mc_place *place, int rc)
{
    if (rc == 0) {
        one->code = (int64_t)one->length;
        one->head_version = mc_place_version(place);
        pin_to(one, place);
        return;
    }
    bool late = mc_clock_ns() >= work->deadline_ns;
    if (rc == MC_ERR_CHECKSUM_MISMATCH && !one->reread && !late) {
        one->reread = true; /* a bit may have flipped on the way */
        return;
    }
    if (rc == MC_ERR_CHECKSUM_MISMATCH) {
        one->rotten = true;
        if (work->link != NULL)
            write_rotten(work->link, place);
    }
    one->reread = false;
    if (rc == MC_ERR_RPC_TIMEOUT && !late) {
        if (one->tried == one->place_count && !one->patient) {
            one->patient = true;
            one->tried = 0;
            return;
        }
        rc = MC_ERR_TRANSFER_FAIL; /* it had its time; we have more */
    }
    one->trouble = is_trouble(rc) ? rc : 0;
    if (one->tried == one->place_count || late)
        one->code = one->rotten && rc != MC_ERR_REPLICA_IS_GONE ? MC_ERR_CHECKSUM_MISMATCH
                    : one->trouble != 0                         ? MC_ERR_TRANSFER_FAIL
                                                                : rc;
}

/* No copy of ours is as cheap as memory of this machine that can be mapped. */
static bool is_far(struct get_work *work, const struct mc_place *place)
{
    struct mc_endpoint endpoint;
    const struct mc_store *store = work->store;
    return endpoint_of(work, place, &endpoint) && !mc_id_equal(endpoint.node, store->node) &&
           (!store->maps_memory || !mc_id_equal(endpoint.host, store->host));
}

/* The read of a value that we have a copy of asks its owner for a byte, which proves that it is still that value; that
 * of one which is worth a copy brings all of it there. Memory of a device is left to the paths. */
static void hot_start(struct get_work *work, struct get_one *one, struct mc_transfer *transfer)
{
    struct mc_hot *hot = work->store->hot;
    const uint64_t length = transfer->object_length;
    if (hot == NULL || one->reread || mc_block_count(length, mc_block_shift(length)) < 2 ||
        !is_far(work, &transfer->place) || (mc_gpu_is_there() && mc_staged_is_needed(&transfer, 1)))
        return;
    uint64_t version = mc_place_version(&transfer->place);
    one->hot = mc_hot_find(hot, one->hash, version, length);
    one->hot_begun = one->hot == NULL;
    if (one->hot_begun && transfer->length == length)
        one->hot = mc_hot_begin(hot, one->hash, version, length);
    if (one->hot == NULL)
        return;
    one->proof_part = (struct iovec){&one->proof, 1};
    transfer->parts = one->hot_begun ? mc_hot_part(one->hot) : &one->proof_part;
    transfer->part_count = 1;
    if (!one->hot_begun) {
        transfer->offset = 0;
        transfer->length = 1;
    }
}

/* What the try has come to, with the bytes where they are wanted. A copy that has rotted is like wrong bytes that came:
 * the owner's are read then. */
static int hot_end(struct get_work *work, struct get_one *one, struct mc_transfer *transfer, const struct mc_run *run)
{
    struct mc_hot *hot = work->store->hot;
    int rc = transfer->result;
    if (one->hot == NULL)
        return rc;
    transfer->offset = one->offset;
    transfer->length = one->length;
    transfer->parts = one->parts;
    transfer->part_count = one->part_count;
    if (rc == 0 && one->hot_begun)
        mc_hot_keep(hot, one->hot);
    if (rc == 0)
        rc = mc_hot_read(hot, one->hot, transfer, run);
    if (rc == MC_ERR_CHECKSUM_MISMATCH && transfer->result == 0 && mc_clock_ns() >= work->deadline_ns)
        rc = MC_ERR_RPC_TIMEOUT; /* it was ours, and there is no time to read the owner's */
    if (rc == 0 && !one->hot_begun)
        atomic_fetch_add_explicit(&work->store->hot_hits, 1, memory_order_relaxed);
    mc_hot_leave(hot, one->hot);
    one->hot = NULL;
    return rc;
}

/* Is nothing left but what was silent, at all its replicas? */
static bool are_all_patient(const struct get_work *work)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->ones[i].code == PENDING && !work->ones[i].patient)
            return false;
    return true;
}

static void read_head(struct get_one *one, struct mc_transfer *transfer)
{
    transfer->hash_low = one->head_hash.low;
    transfer->hash_high = one->head_hash.high;
    transfer->offset = 0;
    transfer->length = one->object_length;
    transfer->parts = &one->head_part;
    transfer->part_count = 1;
}

/* One try of everything pending, each at its next replica; what was silent comes last. Returns how many were tried. */
static size_t read_round(struct get_work *work)
{
    size_t transfer_count = 0;
    bool patient = are_all_patient(work);
    for (size_t i = 0; i < work->count; i++) {
        struct get_one *one = &work->ones[i];
        if (one->code != PENDING || one->patient != patient)
            continue;
        const struct mc_place *place = next_place(work, one);
        work->owner_of[transfer_count] = i;
        work->has_others[transfer_count] = one->place_count > 1;
        work->transfers[transfer_count] = (struct mc_transfer){.kind = MC_TRANSFER_READ,
                                                               .place = *place,
                                                               .object_length = one->object_length,
                                                               .hash_low = one->hash.low,
                                                               .hash_high = one->hash.high,
                                                               .offset = one->offset,
                                                               .length = one->length,
                                                               .parts = one->parts,
                                                               .part_count = one->part_count};
        if (one->whole != 0)
            read_head(one, &work->transfers[transfer_count]);
        hot_start(work, one, &work->transfers[transfer_count++]);
    }
    struct mc_run run = {.deadline_ns = work->deadline_ns,
                         .tick = renew_lease,
                         .context = work,
                         .contact_age_max_ms = work->link == NULL ? work->contact_age_max_ms : 0};
    struct mc_haste haste = {work->has_others, work->stalled};
    work->failed |= mc_store_move(work->store, work->link, work->epoch, work->transfers, transfer_count, &run,
                                  patient ? NULL : &haste, work->scratch, NULL);
    work->stalled = haste.stalled;
    for (size_t i = 0; i < transfer_count; i++) {
        struct get_one *one = &work->ones[work->owner_of[i]];
        judge(work, one, &work->transfers[i].place, hot_end(work, one, &work->transfers[i], &run));
    }
    return transfer_count;
}

/* Reads everything pending, replica by replica. */
static void read_all(struct get_work *work)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < work->count; i++) {
        if (work->ones[i].code == PENDING)
            prepare_one(work, &work->ones[i]);
        bytes += work->ones[i].code == PENDING ? work->ones[i].length : 0;
    }
    work->deadline_ns =
        work->call_deadline_ns + mc_store_deadline(work->store, bytes) - mc_store_deadline(work->store, 0);
    if (work->deadline_ns > work->last_ns)
        work->deadline_ns = work->last_ns;
    work->renewed_ns = mc_clock_ns();
    /* Each round uses up one replica of each pending object or looks at it for the second time, and all of them may be
     * tried with more patience, so there are at most four times MC_REPLICA_COUNT_MAX. */
    while (bytes > 0 && read_round(work) > 0)
        continue;
    if (work->link != NULL && work->link->out.length > 0)
        (void)mc_link_send(work->link, work->deadline_ns); /* reports of suspects and of rotten bytes */
}

static void swap(struct get_one *a, struct get_one *b)
{
    struct get_one before = *a;
    bool a_own = a->parts == &a->own_part, b_own = b->parts == &b->own_part;
    *a = *b;
    *b = before;
    if (b_own)
        a->parts = &a->own_part;
    if (a_own)
        b->parts = &b->own_part;
}

/* Moves what is settled to the front; what is left is asked for. */
static void drop_settled(struct get_work *work, bool (*is_settled)(const struct get_work *, const struct get_one *))
{
    size_t settled = 0;
    for (size_t i = 0; i < work->count; i++) {
        if (!is_settled(work, &work->ones[i]))
            continue;
        if (i != settled)
            swap(&work->ones[i], &work->ones[settled]);
        settled++;
    }
    work->ones += settled;
    work->count -= settled;
    for (size_t i = 0; i < work->count; i++)
        work->ones[i].code = PENDING;
}

static bool is_read(const struct get_work *work, const struct get_one *one)
{
    (void)work;
    return one->code != PENDING && one->code >= 0;
}

/* A master that we cannot reach may act on the departure of an owner that it cannot reach either, depart_ms after their
 * last contact; then what we know is of the past. How long ago that contact may be so that nothing was done, 0 when
 * there is no such time: we must have heard of the master a moment ago, or it is the only one, has ended its connection
 * to us, and its machine says that it does not run; then it acted before it was refused for the first time. */
static uint32_t contact_age_max_ms(struct mc_store *store)
{
    uint64_t refused_ns = atomic_load(&store->master.refused_ns), since_ns = atomic_load(&store->master.refusing_ns);
    uint64_t now_ns = mc_clock_boot_ns(), age_ms = 0;
    if (refused_ns != 0 && now_ns < refused_ns + MC_LOCATIONS_TRUST_MS * 1000000ull &&
        since_ns >= atomic_load(&store->heard_ns))
        age_ms = MC_DEPART_MS + (now_ns > since_ns ? (now_ns - since_ns) / 1000000 : 0);
    else if (mc_master_silent_ms(store) < MC_LOCATIONS_TRUST_MS)
        age_ms = MC_DEPART_MS;
    return age_ms < UINT32_MAX ? (uint32_t)age_ms : UINT32_MAX;
}

/* The places just learnt are of use without a master only if the way to their segments is known too, and places that a
 * session holds only with a ticket that has not expired. Segments are few: nearly always there is nothing to ask. */
static void learn_endpoints(struct get_work *work)
{
    struct mc_endpoint endpoint;
    uint32_t looked_at[LEARN_SEGMENTS];
    size_t place_count = 0, looked = 0;
    uint64_t until_ns = mc_clock_ns() + LEARN_MS * 1000000ull;
    until_ns = until_ns < work->deadline_ns ? until_ns : work->deadline_ns;
    for (size_t i = 0; i < work->count; i++)
        place_count += work->ones[i].place_count;
    for (size_t i = 0; i < place_count; i++) {
        uint32_t segment = work->places[i].segment;
        size_t at = 0;
        while (at < looked && looked_at[at] != segment)
            at++;
        if (at < looked)
            continue;
        if (looked < LEARN_SEGMENTS)
            looked_at[looked++] = segment;
        if (mc_store_endpoint(work->store, work->epoch, segment, until_ns, &endpoint) < 0)
            return;
    }
}

/* No master can be reached: reads what is known. An object that is not where it was may be elsewhere now, so only what
 * was read is settled, the rest stays to be asked for. */
static void read_known(struct get_work *work)
{
    struct mc_known known;
    size_t place_count = 0;
    work->contact_age_max_ms = contact_age_max_ms(work->store);
    if (work->contact_age_max_ms == 0) {
        for (size_t i = 0; i < work->count; i++)
            work->ones[i].code = MC_ERR_RPC_FAIL;
        return;
    }
    work->link = NULL;
    work->epoch = atomic_load(&work->store->epoch);
    if (places_reserve(work, work->count * MC_LOCATIONS_REPLICAS) < 0)
        return;
    for (size_t i = 0; i < work->count; i++) {
        struct get_one *one = &work->ones[i];
        bool found = mc_locations_get(&work->store->locations, one->hash, work->epoch, &known);
        one->code = found ? PENDING : MC_ERR_RPC_FAIL;
        one->whole = 0;
        one->place_count = 0;
        if (!found)
            continue;
        one->object_length = known.length;
        one->first_place = place_count;
        one->place_count = (uint8_t)known.count;
        one->tried = 0;
        one->reread = one->patient = false;
        memcpy(work->places + place_count, known.places, known.count * sizeof(*known.places));
        place_count += known.count;
    }
    uint64_t deadline_ns = work->deadline_ns;
    if (work->session && !mc_master_is_away(work->store))
        learn_endpoints(work);
    read_all(work);
    for (size_t i = 0; i < work->count; i++) {
        struct get_one *one = &work->ones[i];
        if (one->code == MC_ERR_REPLICA_IS_GONE || one->code == MC_ERR_CHECKSUM_MISMATCH)
            mc_locations_drop(&work->store->locations, one->hash);
        one->rotten = false;
        if (is_read(work, one) && !work->session)
            atomic_fetch_add_explicit(&work->store->places_hits, 1, memory_order_relaxed);
    }
    drop_settled(work, is_read);
    if (work->count > 0)
        work->deadline_ns = deadline_ns; /* what was added for bytes is spent */
}

/* Unreadable, and not because the places mean nothing any more. */
static bool is_final(const struct get_work *work, const struct get_one *one)
{
    (void)work;
    return one->code != MC_ERR_REPLICA_IS_GONE && one->code != MC_ERR_TRANSFER_FAIL && one->code != MC_ERR_STALE &&
           one->code != MC_ERR_PUT_IN_PROGRESS;
}

static bool any_troubled(const struct get_work *work)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->ones[i].code == MC_ERR_TRANSFER_FAIL && work->ones[i].trouble != 0)
            return true;
    return false;
}

static bool any_is(const struct get_work *work, int64_t code)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->ones[i].code == code)
            return true;
    return false;
}

/* What a call has waited so far. */
struct get_wait {
    bool is_one; /* value that the call is about */
    uint64_t waited_us;
    uint64_t since_ns, length; /* of that value, while it comes from a disk */
    unsigned looks;            /* at it */
};

/* Between two questions for so many keys: the master says PUT_IN_PROGRESS only as long as that will soon be over. False
 * when the deadline comes first. */
static bool wait_replaced(struct get_wait *wait, uint64_t most_us, size_t count, uint64_t deadline_ns)
{
    uint64_t least_us = REPLACED_FIRST_US + count * REPLACED_KEY_US, wait_us = wait->waited_us / REPLACED_PART;
    wait_us = wait_us < least_us ? least_us : wait_us;
    wait_us = wait_us < most_us ? wait_us : most_us;
    if (mc_clock_ns() + wait_us * 1000 >= deadline_ns)
        return false;
    usleep((useconds_t)wait_us);
    wait->waited_us += wait_us;
    return true;
}

/* The same, for what is known to take about so long. Only for a reader that is alone: beside others the disk is kept
 * busy anyhow, and looking often takes the processors away from it. */
static bool wait_load(struct mc_store *store, struct get_wait *wait, const struct get_one *one, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns();
    bool is_alone = atomic_fetch_add(&store->loads.waiting, 1) == 0;
    if (wait->length != one->object_length)
        *wait = (struct get_wait){true, wait->waited_us, now_ns, one->object_length, 0};
    uint64_t passed_us = (now_ns - wait->since_ns) / 1000;
    uint64_t wait_us = is_alone ? mc_loads_wait_us(&store->loads, wait->length, passed_us) : 0;
    wait->is_one = is_alone; /* else the call waits as for many, and what it waited says nothing */
    wait->looks = is_alone ? wait->looks + 1 : 0;
    bool goes_on = true;
    if (wait_us == 0 || now_ns + wait_us * 1000 >= deadline_ns) {
        goes_on = wait_replaced(wait, REPLACED_MAX_US, 1, deadline_ns);
    } else {
        usleep((useconds_t)(wait_us > SLACK_US ? wait_us - SLACK_US : 1));
        wait->waited_us += wait_us;
    }
    atomic_fetch_sub(&store->loads.waiting, 1);
    return goes_on;
}

/* Some of these are not there yet. */
static bool wait_coming(struct mc_store *store, struct get_wait *wait, const struct get_one *ones, size_t count,
                        uint64_t deadline_ns)
{
    if (wait->is_one && ones->object_length > 0)
        return wait_load(store, wait, ones, deadline_ns);
    return wait_replaced(wait, REPLACED_MAX_US, count, deadline_ns);
}

/* What was waited for may be there. */
static void wait_ended(struct mc_store *store, struct get_wait *wait, const struct get_one *one)
{
    if (wait->looks == 0 || one->code != PENDING)
        return;
    mc_loads_sample(&store->loads, wait->length, (mc_clock_ns() - wait->since_ns) / 1000, wait->looks == 1);
    wait->length = wait->looks = 0;
}

/* Asks and reads. 0, or why nobody answered: then the codes of what is left mean nothing. */
static int get_known_or_asked(struct get_work *work)
{
    struct mc_reader reader;
    struct mc_store *store = work->store;
    struct get_wait wait = {.is_one = work->count == 1};
    if (work->session)
        read_known(work);
    bool asked_failed = false, asked_stale = false;
    for (unsigned asked = 0; work->count > 0; asked++) {
        struct mc_traced *span = mc_traced_begin("mooncake.get.ask");
        int rc = mc_master_is_away(store) ? MC_ERR_RPC_FAIL
                                          : mc_link_try(store, work->deadline_ns, build_get, work, MC_MESSAGE_GET_FOUND,
                                                        &work->link, &reader);
        bool is_gone = mc_master_is_gone(rc);
        if (is_gone) {
            mc_traced_end(span, rc);
            read_known(work);
            if (work->count == 0)
                return 0;
            span = mc_traced_begin("mooncake.get.ask");
        }
        if (is_gone || rc == MC_ERR_BUSY)
            rc = mc_link_call(store, work->deadline_ns, build_get, work, MC_MESSAGE_GET_FOUND, &work->link, &reader);
        mc_traced_end(span, rc);
        if (rc < 0)
            return rc;
        work->epoch = work->link->epoch;
        rc = read_found(work, &reader);
        if (rc == 0) {
            wait_ended(store, &wait, work->ones);
            read_all(work);
        } else {
            work->link->broken = true;
        }
        mc_link_return(store, work->link);
        if (rc < 0)
            return rc;
        if (work->learnt && mc_clock_ns() + LEARN_MS * 1000000ull < work->deadline_ns)
            learn_endpoints(work);
        work->learnt = false;
        bool changed = atomic_load(&store->epoch) != work->epoch && asked < ASK_AGAIN_MAX;
        bool is_late = mc_clock_ns() >= work->deadline_ns, is_replaced = any_is(work, MC_ERR_PUT_IN_PROGRESS);
        /* Its slot is in other use: the key has left, or has another value. */
        bool is_gone_there = any_is(work, MC_ERR_REPLICA_IS_GONE);
        /* Its owner has failed: what the master says now may be of other replicas. Once. */
        bool is_failed = work->failed && !asked_failed && any_is(work, MC_ERR_TRANSFER_FAIL);
        /* Its owner does not take the tag: what the master says now has another. Once. */
        bool is_stale = !asked_stale && any_is(work, MC_ERR_STALE);
        bool is_troubled = any_troubled(work);
        asked_failed = asked_failed || is_failed;
        asked_stale = asked_stale || is_stale;
        if (is_late || (!changed && !is_gone_there && !is_replaced && !is_failed && !is_stale && !is_troubled))
            return 0;
        if (is_replaced && !wait_coming(store, &wait, work->ones, work->count, work->deadline_ns))
            return 0;
        if (!is_replaced && is_troubled && !wait_replaced(&wait, TROUBLE_MAX_US, work->count, work->deadline_ns))
            return 0;
        drop_settled(work, is_final);
    }
    return 0;
}

/* What the caller is told: a cache that cannot reach an object, or whose disk did not bring it in time, has missed it;
 * trouble of our own has its name. */
static int64_t final_code(const struct get_one *one, int trouble)
{
    int64_t code = one->code;
    if (is_load(code, one->object_length))
        return MC_ERR_OBJECT_NOT_FOUND;
    if (code == MC_ERR_TRANSFER_FAIL && trouble != 0)
        return trouble == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS ? MC_ERR_TRANSFER_FAIL : trouble;
    bool is_missed = code == MC_ERR_REPLICA_IS_GONE || code == MC_ERR_TRANSFER_FAIL || code == MC_ERR_STALE;
    return is_missed ? MC_ERR_OBJECT_NOT_FOUND : code == MC_ERR_PUT_IN_PROGRESS ? MC_ERR_REPLICA_IS_NOT_READY : code;
}

static void read_slice(struct get_call *call, struct get_one *ones, size_t count, uint64_t last_ns)
{
    struct mc_store *store = call->store;
    uint64_t deadline_ns = mc_store_deadline(store, 0);
    struct get_work work = {.store = store,
                            .deadline_ns = deadline_ns < last_ns ? deadline_ns : last_ns,
                            .last_ns = last_ns,
                            .ones = ones,
                            .count = count,
                            .allocate = call->allocate,
                            .context = call->context,
                            .session = call->session};
    int rc = MC_ERR_NO_MEMORY;
    work.call_deadline_ns = work.deadline_ns;
    work.transfers = malloc(count * sizeof(*work.transfers));
    work.scratch = malloc(count * sizeof(struct mc_transfer *));
    work.owner_of = malloc(count * sizeof(*work.owner_of));
    work.has_others = malloc(count * sizeof(*work.has_others));
    if (work.transfers != NULL && work.scratch != NULL && work.owner_of != NULL && work.has_others != NULL)
        rc = get_known_or_asked(&work);
    for (size_t i = 0; rc < 0 && i < work.count; i++) {
        work.ones[i].code = rc;
        work.ones[i].trouble = 0;
    }
    for (size_t i = 0; i < count; i++)
        ones[i].code = final_code(&ones[i], ones[i].trouble);
    free(work.places);
    free(work.has_others);
    free(work.owner_of);
    free(work.scratch);
    free(work.transfers);
}

static bool is_miss(int64_t code)
{
    return code == MC_ERR_OBJECT_NOT_FOUND || code == MC_ERR_REPLICA_IS_NOT_READY;
}

/* The head is there: so the pieces are read. Where one is missing, the value has been replaced, or has gone: the head
 * says which. One that is missing from the same head is a miss of all. */
static void read_pieces(struct get_call *call, struct get_one *one, uint64_t last_ns)
{
    while (one->code >= 0 && one->whole != 0 && one->length > 0) {
        uint64_t version = one->head_version;
        int64_t code = mc_stripes_read(call->store, one, last_ns);
        if (!is_miss(code) || mc_clock_ns() >= last_ns) {
            one->code = code;
            break;
        }
        one->code = PENDING;
        read_slice(call, one, 1, last_ns);
        if (one->code >= 0 && one->whole != 0 && one->head_version == version)
            one->code = MC_ERR_OBJECT_NOT_FOUND;
    }
}

/* By when all pieces are to be there, as long as the whole value takes. */
static uint64_t pieces_until_ns(const struct get_call *call, const struct get_one *one, uint64_t until_ns,
                                uint64_t last_ns)
{
    uint64_t most_ns = until_ns + mc_store_deadline(call->store, one->whole) - mc_store_deadline(call->store, 0);
    return most_ns < last_ns ? most_ns : last_ns;
}

void mc_get_slice(struct get_call *call, size_t count, uint64_t last_ns)
{
    struct mc_store *store = call->store;
    struct get_one *ones = call->ones;
    uint64_t until_ns = mc_store_deadline(store, 0);
    read_slice(call, ones, count, last_ns);
    for (size_t i = 0; i < count; i++) {
        if (ones[i].whole != 0 && call->is_of_pieces) {
            ones[i].code = MC_ERR_OBJECT_NOT_FOUND; /* no put makes a piece of pieces */
        } else if (ones[i].whole != 0) {
            until_ns = pieces_until_ns(call, &ones[i], until_ns, last_ns);
            read_pieces(call, &ones[i], until_ns);
        }
        free(ones[i].head_part.iov_base); /* there may be one of an answer before the last, too */
        ones[i].head_part.iov_base = NULL;
    }
    for (size_t i = 0; i < count && !call->is_of_pieces; i++) {
        bool hit = ones[i].code >= 0;
        atomic_fetch_add_explicit(hit ? &store->get_objects : &store->get_misses, 1, memory_order_relaxed);
        if (hit)
            atomic_fetch_add_explicit(&store->get_bytes, (uint64_t)ones[i].code, memory_order_relaxed);
        if (hit && ones[i].copy_to != 0 && call->keys != NULL) /* not for a copy, or a mover */
            mc_tasks_spread(store, ones[i].key, ones[i].copy_to, ones[i].copy_epoch);
        if (hit && ones[i].loaded)
            atomic_fetch_add_explicit(&store->get_loads, 1, memory_order_relaxed);
    }
}

/* ---- for sessions ---- */

int mc_get_hold(struct mc_store *store, const struct mc_bytes *keys, const struct mc_hash *hashes, size_t count,
                uint64_t deadline_ns, int *results, struct mc_master_link **link)
{
    struct mc_reader reader;
    struct get_work work = {.store = store, .count = count, .deadline_ns = deadline_ns};
    struct get_wait wait = {.is_one = count == 1};
    work.ones = calloc(count, sizeof(*work.ones));
    int rc = work.ones == NULL ? MC_ERR_NO_MEMORY : 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        work.ones[i].key = keys[i];
        work.ones[i].hash = hashes[i];
    }
    for (bool again = true; rc == 0 && again;) {
        rc = mc_link_call(store, deadline_ns, build_get, &work, MC_MESSAGE_GET_FOUND, link, &reader);
        if (rc < 0)
            break;
        work.epoch = (*link)->epoch;
        rc = read_found(&work, &reader);
        (*link)->broken = (*link)->broken || rc < 0;
        if (rc == 0)
            wait_ended(store, &wait, work.ones);
        again = rc == 0 && any_is(&work, MC_ERR_PUT_IN_PROGRESS) &&
                wait_coming(store, &wait, work.ones, count, deadline_ns);
        if (rc < 0 || again)
            mc_link_return(store, *link);
    }
    if (rc == 0 && work.learnt)
        learn_endpoints(&work);
    for (size_t i = 0; i < count && rc == 0; i++)
        if (work.ones[i].code == PENDING && work.ones[i].copy_to != 0)
            mc_tasks_spread(store, keys[i], work.ones[i].copy_to, work.ones[i].copy_epoch);
    for (size_t i = 0; i < count; i++)
        results[i] = rc < 0 ? rc : work.ones[i].code == PENDING ? 0 : (int)final_code(&work.ones[i], 0);
    free(work.places);
    free(work.ones);
    return rc;
}
