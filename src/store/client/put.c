/* Put: ask for space, write, let the owners commit, wait for the master's word. docs/ordering.md, P1 to P6.
 *
 * A batch goes in rounds. A round asks for what is still open, moves what was granted and waits until nothing granted
 * is open any more. What met another writer of the same key or space that is being freed is asked for again, holding
 * nothing meanwhile, so that writers cannot wait for each other in a circle. */
#include "base/checksum.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/spans.h"
#include "store/client/avoid.h"
#include "store/client/blank.h"
#include "store/client/calls.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/move.h"
#include "store/client/scope.h"
#include "store/client/stripes.h"
#include "store/wire/trace.h"

#include <stdlib.h>
#include <unistd.h>

#define COMMIT_WAIT_MS 100u  /* at least, for an owner to confirm; then the put is placed again */
#define REVOKED_WAIT_MS 700u /* for the master's word after that; a packet of it may be lost, and sent again */
#define PENDING 1            /* code of an item that is not decided */
#define TWIN 2               /* of one whose key stands earlier in the batch, until that one is decided */
#define TWIN_TABLE (4u * MC_BATCH_MAX)
#define PLACE_AGAIN_MAX 4  /* times an item is placed elsewhere after its transfer failed */
#define WAIT_FIRST_US 100u /* between rounds in which nothing was granted; doubling */
#define WAIT_MAX_US 10000u
#define REVOKED_GRACE_MS 7u
#define AHEAD_BYTES_MAX (60u << 10) /* of what a place is asked for ahead */
#define LATE_MAX 16u
#define LATE_DOUBLE_MAX 6u          /* times that the patience doubles */
#define COMMIT_WAIT_MAX_MS 5000u    /* and so long it is at most */
#define PACE_LONGEST_US 5000000u    /* what takes longer to be confirmed counts as that */
#define COMMIT_BYTES_PER_MS 262144u /* an owner behind a slow path may confirm so much later per byte */

struct put_one {
    struct mc_put_item *item;
    struct mc_hash hash;
    const struct put_one *twin;
    uint64_t length;
    uint64_t group;  /* wished for */
    int code;        /* PENDING, or what the item's result will be */
    int last;        /* why it was not placed in the last round */
    uint32_t again;  /* failed transfers so far */
    uint64_t unsure; /* version of its last grant: it may have happened, or be found by a later master; 0 = none */
    uint32_t blank_segment, blank_slot;    /* where that was, if it was granted ahead; segment 0: it was not */
    size_t first_transfer, transfer_count; /* of this round */
};

struct put_work {
    struct mc_store *store;
    const struct mc_replicate_config *config;
    uint64_t deadline_ns;
    uint8_t replica_count;
    bool replace;      /* a value that is there already */
    uint64_t expected; /* only the value of this version; 0 = any */
    bool is_part;      /* they are pieces of a value, or heads */
    size_t count;
    struct put_one *ones;
    struct put_one **open; /* asked for in this round */
    size_t open_count;
    struct mc_transfer *transfers; /* granted in this round */
    struct mc_transfer **scratch;
    size_t transfer_count, transfer_capacity;
    uint32_t avoid[MC_AVOIDED_MAX]; /* segments that failed a moment ago */
    size_t avoid_count;
    uint32_t late[LATE_MAX]; /* those that did not confirm in the last round: the next goes elsewhere, if it can */
    size_t late_count;
    unsigned late_rounds;          /* in which something was not confirmed in time */
    bool asks_ahead, is_ahead;     /* for a place for the next put; this round went into such a one */
    bool troubled;                 /* the round failed for trouble of our own */
    uint64_t granted_bytes, epoch; /* of this round's link */
};

static uint8_t pins(const struct mc_replicate_config *config)
{
    if (config == NULL)
        return 0;
    bool is_firm = config->firm_pin_ms > 0 && !config->with_hard_pin; /* which is more */
    return (uint8_t)((config->with_hard_pin ? MC_PUT_HARD_PIN : 0) |
                     (config->with_soft_pin || is_firm ? MC_PUT_SOFT_PIN : 0) | (is_firm ? MC_PUT_FIRM_PIN : 0));
}

/* Is it to be pinned firmly, or not to be put? */
static bool is_firm_or_not(const struct put_work *work)
{
    return work->config != NULL && work->config->firm_pin_or_not && (pins(work->config) & MC_PUT_FIRM_PIN) != 0;
}

/* Is what is there to have another pin, and nothing else? */
static bool is_new_pin(const struct put_work *work)
{
    return work->expected != 0 && work->config != NULL && work->config->drop_soft_pin;
}

static void write_item(struct mc_buffer *out, const struct put_one *one)
{
    const struct mc_bytes *key = &one->item->key;
    if (one->blank_segment == 0) {
        struct mc_wire_put_plain_item plain = {
            .length = one->length, .unsure = one->unsure, .key = mc_span(key->data, key->length), .group = one->group};
        mc_wire_put_plain_item_write(out, &plain);
        return;
    }
    struct mc_wire_put_start_item item = {.length = one->length,
                                          .unsure = one->unsure,
                                          .key = mc_span(key->data, key->length),
                                          .group = one->group,
                                          .blank_segment = one->blank_segment,
                                          .blank_slot = one->blank_slot};
    mc_wire_put_start_item_write(out, &item);
}

static void build_put_start(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    const struct put_work *work = context;
    const struct mc_replicate_config *config = work->config;
    bool asks_ahead = work->asks_ahead && atomic_load_explicit(&work->store->master_has_blanks, memory_order_relaxed);
    struct mc_wire_put_start head = {.replica_count = work->replica_count,
                                     .flags = pins(config) | (work->replace ? MC_PUT_REPLACE : 0u) |
                                              (config == NULL || !config->drop_soft_pin ? MC_PUT_KEEP_PIN : 0u) |
                                              (is_firm_or_not(work) ? MC_PUT_OR_NOT : 0u) |
                                              (is_new_pin(work) ? MC_PUT_NEW_PIN : 0u) |
                                              (asks_ahead ? MC_PUT_BLANK : 0u),
                                     .expected = work->expected,
                                     .pin_ms = config == NULL            ? 0
                                               : config->firm_pin_ms > 0 ? config->firm_pin_ms
                                                                         : config->soft_pin_ttl_ms};
    if (config != NULL && config->prefer_same_node)
        head.host = work->store->host;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_PUT_START, request_id);
    size_t list = mc_wire_put_start_head(out, &head);
    for (size_t i = 0; i < work->open_count; i++)
        write_item(out, work->open[i]);
    mc_list_end(out, list, work->open_count);
    list = mc_list_begin(out);
    size_t names = config == NULL                                           ? 0
                   : config->preferred_segment_count < MC_REPLICA_COUNT_MAX ? config->preferred_segment_count
                                                                            : MC_REPLICA_COUNT_MAX;
    for (size_t i = 0; i < names; i++)
        mc_wire_name_write(out, &(struct mc_wire_name){.name = mc_span_string(config->preferred_segments[i])});
    mc_list_end(out, list, names);
    list = mc_list_begin(out);
    for (size_t i = 0; i < work->avoid_count; i++)
        mc_wire_segment_write(out, &(struct mc_wire_segment){.segment = work->avoid[i]});
    mc_frame_end_list(out, frame, list, work->avoid_count);
}

static void add_transfer(struct put_work *work, const struct put_one *one, const struct mc_wire_place *place,
                         const struct mc_wire_granted *granted)
{
    const struct mc_put_item *item = one->item;
    uint8_t flags = (uint8_t)((pins(work->config) & ~MC_PUT_FIRM_PIN) | (granted->is_firm != 0 ? MC_PUT_FIRM_PIN : 0));
    if (granted->pin_ms != 0)
        flags |= MC_PUT_SOFT_PIN; /* it may be kept */
    else if (work->expected != 0)
        flags &= (uint8_t)~MC_PUT_SOFT_PIN; /* that of what is copied has ended since it was read */
    work->transfers[work->transfer_count++] = (struct mc_transfer){.kind = MC_TRANSFER_WRITE,
                                                                   .place = mc_place_of(place),
                                                                   .object_length = one->length,
                                                                   .hash_low = one->hash.low,
                                                                   .hash_high = one->hash.high,
                                                                   .key = mc_span(item->key.data, item->key.length),
                                                                   .flags = flags,
                                                                   .group = granted->group,
                                                                   .pin_ms = granted->pin_ms,
                                                                   .replica = place->replica,
                                                                   .length = one->length,
                                                                   .parts = item->parts,
                                                                   .part_count = item->part_count};
    work->granted_bytes += one->length;
}

/* What an answer of PUT_START means for an item that was not granted. */
static void not_granted(struct put_work *work, struct put_one *one, int code)
{
    if (code == MC_ERR_OBJECT_ALREADY_EXISTS)
        one->code = is_firm_or_not(work) && !work->replace ? code : 0; /* nothing was promised of that value */
    else if (code == MC_ERR_STALE && work->expected != 0)
        one->code = code;
    else if (code == MC_ERR_PUT_IN_PROGRESS || code == MC_ERR_STALE || code == MC_ERR_SPACE_SOON ||
             code == MC_ERR_BUSY || (code == MC_ERR_NO_AVAILABLE_HANDLE && work->avoid_count > 0))
        one->last = code; /* asked for again */
    else
        one->code = code;
}

static int read_granted(struct put_work *work, struct mc_reader *reader)
{
    struct mc_wire_none head;
    struct mc_wire_granted granted[MC_BATCH_MAX];
    struct mc_wire_place place;
    mc_wire_none_read(reader, &head);
    if (mc_list_read(reader) != work->open_count)
        return MC_ERR_PROTOCOL;
    size_t places = 0;
    for (size_t i = 0; i < work->open_count; i++) {
        struct mc_wire_granted *one = &granted[i];
        mc_wire_granted_read(reader, one);
        if (one->code > 0 || (one->code == 0 && (one->replica_count == 0 || one->replica_count > work->replica_count)))
            return MC_ERR_PROTOCOL;
        if (one->code < 0)
            not_granted(work, work->open[i], one->code);
        one->replica_count = one->code == 0 ? one->replica_count : 0;
        places += one->replica_count;
    }
    /* Not mc_list_read: a batch with replicas may have more places than a batch has items. */
    if (mc_reader_u32(reader) != places || reader->bad)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < work->open_count; i++) {
        work->open[i]->first_transfer = work->transfer_count;
        work->open[i]->transfer_count = granted[i].replica_count;
        for (; granted[i].replica_count > 0; granted[i].replica_count--) {
            mc_wire_place_read(reader, &place);
            add_transfer(work, work->open[i], &place, &granted[i]);
            work->open[i]->unsure = place.generation - place.replica;
            work->open[i]->blank_segment = 0;
        }
    }
    return reader->bad ? MC_ERR_PROTOCOL : 0;
}

/* Revokes the grants whose transfer failed, or all of them. */
static void write_revokes(struct put_work *work, struct mc_buffer *out, bool all)
{
    for (size_t at = 0; at < work->transfer_count;) {
        size_t frame = mc_frame_begin(out, MC_MESSAGE_PUT_REVOKE, 0), items = 0;
        size_t list = mc_wire_none_head(out, &(struct mc_wire_none){0});
        for (; at < work->transfer_count && items < MC_BATCH_MAX; at++) {
            const struct mc_transfer *transfer = &work->transfers[at];
            if ((!all && transfer->result >= 0) || transfer->is_unsure)
                continue;
            struct mc_wire_grant grant = {.segment = transfer->place.segment,
                                          .slot = transfer->place.slot,
                                          .generation = transfer->place.generation};
            mc_wire_grant_write(out, &grant);
            items++;
        }
        mc_frame_end_list(out, frame, list, items);
        if (items == 0)
            out->length = frame;
    }
}

static bool is_any_unsure(const struct put_work *work)
{
    for (size_t i = 0; i < work->transfer_count; i++)
        if (work->transfers[i].is_unsure)
            return true;
    return false;
}

/* Bytes were sent and still no replica became live. A packet may have been lost, of which nobody is to blame: this put
 * goes elsewhere, and the master may look for itself. Or the connection is dead, of which its owner knows nothing: what
 * comes next goes over another one. */
static void pass_unconfirmed(struct put_work *work, const struct put_one *one, struct mc_master_link *link)
{
    for (size_t i = 0; i < one->transfer_count; i++) {
        const struct mc_transfer *transfer = &work->transfers[one->first_transfer + i];
        uint32_t segment = transfer->place.segment;
        size_t at = 0;
        while (at < work->late_count && work->late[at] != segment)
            at++;
        if (transfer->result != 0 || at < work->late_count || at == LATE_MAX)
            continue;
        work->late[work->late_count++] = segment;
        mc_store_suspect(&link->out, segment, 0);
        mc_paths_nudge(work->store->paths, segment, true);
    }
}

/* Our own trouble with one of its transfers, or 0. */
static int own_trouble(const struct put_work *work, const struct put_one *one)
{
    for (size_t i = 0; i < one->transfer_count; i++) {
        int result = work->transfers[one->first_transfer + i].result;
        if (mc_socket_is_own(result))
            return result;
    }
    return 0;
}

static int read_done(struct put_work *work, struct mc_reader *reader, struct mc_master_link *link, bool late)
{
    struct mc_wire_none head;
    struct mc_wire_code code;
    mc_wire_none_read(reader, &head);
    if (mc_list_read(reader) != work->open_count)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < work->open_count; i++) {
        struct put_one *one = work->open[i];
        mc_wire_code_read(reader, &code);
        if (code.code == MC_ERR_PUT_IN_PROGRESS && one->code == PENDING) {
            one->last = code.code; /* whole, but the value before it is not cleared yet: asking again finds out */
            continue;
        }
        if (code.code == MC_ERR_STALE && work->is_ahead)
            mc_blank_refused(work->store);
        /* What failed may be live with an owner that the master could not reach, and a master after it may find it: the
         * version is named as long as we ask. */
        if (one->code == PENDING && code.code == MC_ERR_STALE && work->expected != 0)
            one->code = code.code;
        if (one->code != PENDING || (code.code != 0 && code.code != MC_ERR_TRANSFER_FAIL))
            continue; /* decided before, or waiting for its turn (STALE: another upsert was faster) */
        if (code.code == 0) {
            one->code = 0;
            continue;
        }
        one->last = MC_ERR_TRANSFER_FAIL;
        pass_unconfirmed(work, one, link);
        int own = own_trouble(work, one);
        if (own == MC_ERR_INVALID_PARAMS) {
            one->code = own;
        } else if (own < 0) {
            one->last = own == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS ? MC_ERR_TRANSFER_FAIL : own;
            work->troubled = true;
        } else if (!late && ++one->again > PLACE_AGAIN_MAX) {
            one->code = MC_ERR_TRANSFER_FAIL;
        }
    }
    return reader->bad ? MC_ERR_PROTOCOL : 0;
}

static struct mc_pace *pace_of(const struct put_work *work, size_t transfer)
{
    return &work->store->commit_paces[work->transfers[transfer].place.segment % MC_COMMIT_PACES];
}

/* Is it the first of the round in that segment? Segments of a round are few. */
static bool is_first_there(const struct put_work *work, size_t transfer)
{
    for (size_t i = 0; i < transfer; i++)
        if (work->transfers[i].place.segment == work->transfers[transfer].place.segment)
            return false;
    return true;
}

/* The pace of the slowest owner of the round. */
static struct mc_pace *slowest_pace(const struct put_work *work)
{
    struct mc_pace *slowest = pace_of(work, 0);
    for (size_t i = 1; i < work->transfer_count; i++) {
        struct mc_pace *pace = pace_of(work, i);
        if (mc_pace_late_ns(pace) > mc_pace_late_ns(slowest))
            slowest = pace;
    }
    return slowest;
}

static void nudge_owners(void *context)
{
    const struct put_work *work = context;
    for (size_t i = 0; i < work->transfer_count; i++)
        if (work->transfers[i].result == 0 && is_first_there(work, i))
            mc_paths_nudge(work->store->paths, work->transfers[i].place.segment, false);
}

/* A lost packet is no pace: one that was made up for counts as `most_ns`. */
static void sample_owners(const struct put_work *work, uint64_t took_ns, uint64_t more_ns, uint64_t most_ns)
{
    uint64_t counts_ns = took_ns < most_ns ? took_ns : most_ns;
    for (size_t i = 0; i < work->transfer_count; i++)
        if (work->transfers[i].result == 0 && is_first_there(work, i))
            mc_pace_sample_up_to(pace_of(work, i), counts_ns > more_ns ? counts_ns - more_ns : 0, PACE_LONGEST_US);
}

/* An owner that is slow for all would get all puts of the others besides, if each of them left it for the next one. */
static uint64_t patience_ns(const struct put_work *work, uint64_t late_ns)
{
    uint64_t least_ns = COMMIT_WAIT_MS * 1000000ull, most_ns = COMMIT_WAIT_MAX_MS * 1000000ull;
    uint64_t wait_ns = 4 * late_ns > least_ns ? 4 * late_ns : least_ns;
    wait_ns <<= work->late_rounds < LATE_DOUBLE_MAX ? work->late_rounds : LATE_DOUBLE_MAX;
    return wait_ns < most_ns ? wait_ns : most_ns;
}

/* Waits until no grant of the round is open. An owner that does not confirm in time loses its grant. */
static int wait_done(struct put_work *work, struct mc_master_link *link, uint64_t request_id)
{
    struct mc_reader reader;
    uint64_t more_ns = work->granted_bytes * 1000000ull / COMMIT_BYTES_PER_MS, start_ns = mc_clock_ns();
    struct mc_link_wait wait = {.pace = slowest_pace(work), .nudge = nudge_owners, .context = work};
    wait.late_ns = mc_pace_late_ns(wait.pace) + more_ns;
    uint64_t until_ns = start_ns + patience_ns(work, wait.late_ns) + more_ns;
    int rc = mc_link_await(link, MC_MESSAGE_PUT_DONE, request_id,
                           until_ns < work->deadline_ns ? until_ns : work->deadline_ns, &wait, &reader);
    bool late = rc == MC_ERR_RPC_TIMEOUT;
    if (rc == 0 || late)
        sample_owners(work, mc_clock_ns() - start_ns, more_ns, late ? UINT64_MAX : wait.late_ns);
    if (late) {
        work->late_rounds++;
        write_revokes(work, &link->out, true);
        /* The answer comes at once, and without it the grants' fate is unknown: a little beyond the deadline. */
        uint64_t answer_ns = mc_clock_ns() + REVOKED_WAIT_MS * 1000000ull;
        uint64_t last_ns = work->deadline_ns + REVOKED_GRACE_MS * 1000000ull;
        answer_ns = answer_ns < last_ns ? answer_ns : last_ns;
        rc = mc_link_send(link, answer_ns);
        if (rc == 0)
            rc = mc_link_await(link, MC_MESSAGE_PUT_DONE, request_id, answer_ns, &wait, &reader);
    }
    if (rc == 0)
        rc = read_done(work, &reader, link, late);
    if (rc < 0)
        link->broken = true; /* a late PUT_DONE must not meet the next borrower; the master cuts what is open */
    else if (link->out.length > 0)
        (void)mc_link_send(link, work->deadline_ns); /* suspects */
    return rc;
}

/* ---- places that were granted ahead ---- */

/* Is it a put for which one may be there? */
static bool may_be_ahead(const struct put_work *work)
{
    const struct mc_replicate_config *config = work->config;
    const struct put_one *one = work->open[0];
    return work->store->has_blanks && !work->is_part && work->count == 1 && work->replica_count == 1 &&
           !work->replace && work->expected == 0 && one->group == 0 && one->length <= AHEAD_BYTES_MAX &&
           pins(config) == 0 && (config == NULL || (config->preferred_segment_count == 0 && !config->prefer_same_node));
}

/* The link that has a place for it, and the transfer into that; NULL: it is to be asked for one. */
static struct mc_master_link *begin_ahead(struct put_work *work)
{
    struct put_one *one = work->open[0];
    const struct mc_bytes *key = &one->item->key;
    struct mc_master_link *link =
        one->unsure != 0 ? NULL
                         : mc_blank_borrow(work->store, one->length, key->length, work->avoid, work->avoid_count);
    if (link == NULL)
        return NULL;
    struct mc_blank blank = link->blank;
    struct mc_wire_place place = {
        .segment = blank.segment, .slot = blank.slot, .generation = blank.generation, .offset = blank.offset};
    link->blank = (struct mc_blank){0};
    add_transfer(work, one, &place, &(struct mc_wire_granted){.replica_count = 1});
    one->first_transfer = 0;
    one->transfer_count = 1;
    one->unsure = blank.generation;
    one->blank_segment = blank.segment;
    one->blank_slot = blank.slot;
    link->request_id++;
    return link;
}

/* The master is told whose place it is, which it may refuse, and then gives it to others: so only when the write has
 * ended, and not before, with what is said of its owner meanwhile. */
static void write_bind(const struct put_work *work, struct mc_master_link *link, uint64_t request_id)
{
    const struct put_one *one = work->open[0];
    struct mc_buffer *out = &link->out;
    mc_wire_trace_tell(out, request_id, &link->agreed);
    struct mc_wire_put_bind head = {
        .segment = one->blank_segment, .slot = one->blank_slot, .generation = one->unsure, .flags = MC_PUT_BLANK};
    struct mc_wire_put_plain_item item = {.length = one->length,
                                          .key = mc_span(one->item->key.data, one->item->key.length)};
    size_t frame = mc_frame_begin(out, MC_MESSAGE_PUT_BIND, request_id);
    size_t list = mc_wire_put_bind_head(out, &head);
    mc_wire_put_plain_item_write(out, &item);
    mc_frame_end_list(out, frame, list, 1);
}

/* Asks for places. 0 and the link; or negative: then there is none. */
static int ask(struct put_work *work, struct mc_master_link **link)
{
    struct mc_reader reader;
    struct mc_traced *span = mc_traced_begin("mooncake.put.ask");
    int feature = work->is_part                              ? MC_FEATURE_STRIPES
                  : is_firm_or_not(work) || is_new_pin(work) ? MC_FEATURE_FIRM_PINS
                                                             : -1;
    int rc = mc_link_call_if(work->store, feature, work->deadline_ns, build_put_start, work, MC_MESSAGE_PUT_GRANTED,
                             link, &reader);
    mc_traced_end(span, rc);
    if (rc < 0)
        return rc;
    rc = read_granted(work, &reader);
    if (rc < 0) {
        (*link)->broken = true;
        mc_link_return(work->store, *link);
    }
    return rc;
}

/* One round over what is pending. Returns how many were granted, or negative: then nothing is known of the round's
 * items. */
static int put_round(struct put_work *work)
{
    struct mc_store *store = work->store;
    struct mc_master_link *link = NULL;
    work->open_count = work->transfer_count = 0;
    work->granted_bytes = 0;
    for (size_t i = 0; i < work->count; i++) {
        if (work->ones[i].code == PENDING)
            work->open[work->open_count++] = &work->ones[i];
    }
    int rc = 0;
    bool may_ahead = may_be_ahead(work) && mc_blank_may_ask(store);
    work->asks_ahead = may_ahead;
    if (may_ahead)
        link = begin_ahead(work);
    work->is_ahead = link != NULL;
    if (link == NULL)
        rc = ask(work, &link);
    if (rc < 0)
        return rc;
    uint64_t request_id = link->request_id;
    work->epoch = link->epoch;
    if (work->transfer_count == 0)
        goto done;
    struct mc_run run = {.deadline_ns = work->deadline_ns};
    (void)mc_store_move(store, link, link->epoch, work->transfers, work->transfer_count, &run, NULL, work->scratch,
                        &link->out); /* each transfer's result says it */
    if (is_any_unsure(work)) {       /* the end of this link has their writers' links cut, which a revoke would not */
        link->broken = true;
        rc = MC_ERR_RPC_FAIL;
        goto done;
    }
    if (work->is_ahead)
        write_bind(work, link, request_id);
    write_revokes(work, &link->out, false);
    struct mc_traced *span = mc_traced_begin("mooncake.put.confirm");
    rc = mc_link_send(link, work->deadline_ns);
    if (rc == 0)
        rc = wait_done(work, link, request_id);
    mc_traced_end(span, rc);
    if (rc == 0)
        rc = (int)work->transfer_count;
done:
    mc_link_return(store, link);
    return rc;
}

static size_t pending_count(const struct put_work *work)
{
    size_t count = 0;
    for (size_t i = 0; i < work->count; i++)
        count += work->ones[i].code == PENDING;
    return count;
}

/* Gives every item that is still pending the reason it was left with. */
static void give_up(struct put_work *work, int reason)
{
    for (size_t i = 0; i < work->count; i++) {
        struct put_one *one = &work->ones[i];
        if (one->code != PENDING)
            continue;
        int code = reason < 0 ? reason : one->last;
        one->code = code == MC_ERR_SPACE_SOON                                ? MC_ERR_NO_AVAILABLE_HANDLE
                    : code == MC_ERR_PUT_IN_PROGRESS || code == MC_ERR_STALE ? MC_ERR_REPLICA_IS_NOT_READY
                    : code >= 0                                              ? MC_ERR_RPC_TIMEOUT
                                                                             : code;
    }
}

/* Is a round that failed like that followed by another one? Its puts may have happened or not: asking again finds out.
 */
static bool goes_on(const struct put_work *work, int rc)
{
    if (rc >= 0 || rc == MC_ERR_BUSY)
        return true;
    return (mc_master_is_gone(rc) || rc == MC_ERR_RPC_TIMEOUT) && !mc_master_is_away(work->store);
}

static void put_rounds(struct put_work *work)
{
    uint64_t wait_us = WAIT_FIRST_US;
    while (pending_count(work) > 0) {
        work->avoid_count = mc_store_avoided(work->store, work->avoid, MC_AVOIDED_MAX - LATE_MAX);
        memcpy(work->avoid + work->avoid_count, work->late, work->late_count * sizeof(*work->late));
        work->avoid_count += work->late_count;
        work->late_count = 0;
        work->troubled = false;
        int rc = put_round(work);
        uint64_t now_ns = mc_clock_ns();
        if (!goes_on(work, rc) || (rc < 0 && now_ns >= work->deadline_ns)) {
            give_up(work, rc);
            return;
        }
        if (rc > 0 && !work->troubled) {
            wait_us = WAIT_FIRST_US;
            if (now_ns >= work->deadline_ns)
                give_up(work, 0);
        } else if (pending_count(work) > 0) {
            if (now_ns + wait_us * 1000 >= work->deadline_ns) {
                give_up(work, rc);
                return;
            }
            usleep((useconds_t)wait_us);
            wait_us = wait_us * 2 > WAIT_MAX_US ? WAIT_MAX_US : wait_us * 2;
        }
    }
}

/* The master would say of the second of two equal keys that it exists, though the first may yet fail. The twin is the
 * first of that key, whose result is its result; or, to be replaced in turn, the one before it. */
static void find_twins(struct put_one *ones, size_t count, bool in_turn)
{
    if (count < 2)
        return;
    uint16_t table[TWIN_TABLE] = {0}; /* index + 1 */
    for (size_t i = 0; i < count; i++) {
        size_t at = ones[i].hash.low % TWIN_TABLE;
        while (table[at] != 0 &&
               (ones[table[at] - 1].hash.low != ones[i].hash.low || ones[table[at] - 1].hash.high != ones[i].hash.high))
            at = (at + 1) % TWIN_TABLE;
        if (table[at] != 0) {
            ones[i].twin = &ones[table[at] - 1];
            ones[i].code = TWIN;
        }
        if (table[at] == 0 || in_turn)
            table[at] = (uint16_t)(i + 1);
    }
}

/* Those whose turn has come are to be put. */
static bool release_twins(struct put_work *work)
{
    bool any = false;
    for (size_t i = work->count; i-- > 0;) { /* from behind: one after the other of a key */
        struct put_one *one = &work->ones[i];
        if (one->code == TWIN && one->twin->code != TWIN) {
            one->code = PENDING;
            any = true;
        }
    }
    return any;
}

/* Up to MC_BATCH_MAX items that have a good key and a length. was_granted: they are parts of values in pieces, and may
 * be there even if their results say otherwise; else NULL. */
static void put_slice(struct mc_store *store, struct mc_put_item **items, const uint64_t *groups, size_t count,
                      const struct mc_replicate_config *config, bool replace, uint64_t expected, uint64_t deadline_ns,
                      bool *was_granted)
{
    uint32_t replicas = config == NULL || config->replica_count == 0 ? 1 : config->replica_count;
    struct put_work work = {.store = store,
                            .config = config,
                            .replace = replace,
                            .expected = expected,
                            .count = count,
                            .deadline_ns = deadline_ns,
                            .is_part = was_granted != NULL,
                            .replica_count =
                                (uint8_t)(replicas < MC_REPLICA_COUNT_MAX ? replicas : MC_REPLICA_COUNT_MAX)};
    work.transfer_capacity = count * work.replica_count;
    work.ones = calloc(count, sizeof(*work.ones));
    work.open = calloc(count, sizeof(struct put_one *));
    work.transfers = malloc(work.transfer_capacity * sizeof(*work.transfers));
    work.scratch = malloc(work.transfer_capacity * sizeof(struct mc_transfer *));
    bool whole = work.ones != NULL && work.open != NULL && work.transfers != NULL && work.scratch != NULL;
    if (whole) {
        for (size_t i = 0; i < count; i++)
            work.ones[i] = (struct put_one){.item = items[i],
                                            .hash = mc_hash(items[i]->key.data, items[i]->key.length),
                                            .length = mc_parts_length(items[i]->parts, items[i]->part_count),
                                            .group = groups[i],
                                            .code = PENDING};
        find_twins(work.ones, count, replace);
        do
            put_rounds(&work);
        while (replace && release_twins(&work));
    }
    for (size_t i = 0; i < count; i++) {
        const struct put_one *one = whole && work.ones[i].code == TWIN ? work.ones[i].twin : &work.ones[i];
        items[i]->result = whole ? one->code : MC_ERR_NO_MEMORY;
        if (replace)
            mc_locations_drop(&store->locations, mc_hash(items[i]->key.data, items[i]->key.length));
        if (was_granted != NULL)
            was_granted[i] = whole && work.ones[i].unsure != 0;
        if (items[i]->result == 0 && was_granted == NULL) {
            atomic_fetch_add_explicit(&store->put_objects, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&store->put_bytes, work.ones[i].length, memory_order_relaxed);
        }
    }
    free(work.scratch);
    free(work.transfers);
    free(work.open);
    free(work.ones);
}

void mc_put_parts(struct mc_store *store, struct mc_put_item *items, const uint64_t *groups, size_t count,
                  const struct mc_replicate_config *config, bool replace, uint64_t deadline_ns, bool *was_granted)
{
    struct mc_put_item *slice[MC_BATCH_MAX];
    mc_assert(count <= MC_BATCH_MAX);
    for (size_t i = 0; i < count; i++)
        slice[i] = &items[i];
    put_slice(store, slice, groups, count, config, replace, 0, deadline_ns, was_granted);
}

static int check_item(const struct mc_store *store, const struct mc_put_item *item, uint64_t *length)
{
    *length = item->parts == NULL ? 0 : mc_parts_length(item->parts, item->part_count);
    if ((store->local_buffer_size == 0 && !atomic_load(&store->draining)) || *length == 0 || *length == UINT64_MAX)
        return MC_ERR_INVALID_PARAMS;
    for (size_t i = 0; i < item->part_count; i++) {
        if (item->parts[i].iov_base == NULL && item->parts[i].iov_len > 0)
            return MC_ERR_INVALID_PARAMS;
    }
    return mc_key_check(item->key);
}

/* Codes that stand for several things: which it was. */
static void tell_refusal(const struct mc_store *store, const struct mc_put_item *item,
                         const struct mc_replicate_config *config)
{
    unsigned long long length = item->parts == NULL ? 0 : mc_parts_length(item->parts, item->part_count);
    if (item->result == MC_ERR_NO_AVAILABLE_HANDLE)
        mc_log_limited(WARNING,
                       "a value of %llu bytes is not put: no segment has room for it (NO_AVAILABLE_HANDLE). What is "
                       "there is pinned or in use, or no hole is that large",
                       length);
    else if (item->result == MC_ERR_INVALID_PARAMS && length == 0)
        mc_log_limited(WARNING, "a value of 0 bytes is not put (INVALID_PARAMS)");
    else if (item->result == MC_ERR_INVALID_PARAMS && store->local_buffer_size == 0)
        mc_log_limited(WARNING, "nothing is put: this store was set up with local_buffer_size 0 (INVALID_PARAMS)");
    else if (item->result == MC_ERR_INVALID_PARAMS && config != NULL &&
             (config->soft_pin_ttl_ms > 0 || config->firm_pin_ms > 0))
        mc_log_limited(WARNING,
                       "a value is not put (INVALID_PARAMS): its pin of %llu ms may be longer than the master's "
                       "--max_kv_soft_pin_ttl",
                       (unsigned long long)(config->firm_pin_ms > 0 ? config->firm_pin_ms : config->soft_pin_ttl_ms));
}

struct put_slice { /* what is put together */
    struct mc_put_item *items[MC_BATCH_MAX];
    uint64_t groups[MC_BATCH_MAX], bytes;
    size_t count;
    bool is_large;     /* they are put in pieces */
    uint64_t until_ns; /* where values are put in pieces, by when all of the call has ended; else 0 */
};

/* In pieces; what is to be put as one object after all is left. */
static void put_large(struct mc_store *store, struct put_slice *slice, const struct mc_replicate_config *config,
                      bool replace)
{
    size_t count = slice->count;
    mc_stripes_put(store, slice->items, count, config, replace, slice->until_ns);
    slice->count = 0;
    for (size_t i = 0; i < count; i++)
        if (slice->items[i]->result == MC_ERR_NOT_SUPPORTED)
            slice->items[slice->count++] = slice->items[i]; /* their groups are none */
}

static void slice_end(struct mc_store *store, struct put_slice *slice, const struct mc_replicate_config *config,
                      bool replace, uint64_t expected)
{
    if (slice->is_large && slice->count > 0)
        put_large(store, slice, config, replace);
    if (slice->count > 0)
        put_slice(store, slice->items, slice->groups, slice->count, config, replace, expected,
                  slice->until_ns != 0 ? slice->until_ns : mc_store_deadline(store, slice->bytes), NULL);
    slice->count = 0;
    slice->bytes = 0;
}

/* Of full keys. */
static int put_full(struct mc_store *store, struct mc_put_item *items, size_t count,
                    const struct mc_replicate_config *config, bool replace, uint64_t expected)
{
    struct put_slice slice;
    int rc = 0;
    slice.count = slice.bytes = 0;
    slice.is_large = false;
    slice.until_ns = store->stripe_bytes > 0 && expected == 0 ? mc_store_deadline(store, 0) : 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t length;
        items[i].result = check_item(store, &items[i], &length);
        if (items[i].result < 0)
            continue;
        if (slice.until_ns != 0)
            slice.until_ns += mc_store_deadline(store, length) - mc_store_deadline(store, 0);
        bool is_large = expected == 0 && mc_stripes_apply(store, length, config, i);
        if (is_large != slice.is_large)
            slice_end(store, &slice, config, replace, expected); /* in order: its key may stand there, too */
        slice.is_large = is_large;
        slice.groups[slice.count] = config == NULL || config->groups == NULL ? 0 : config->groups[i];
        slice.items[slice.count++] = &items[i];
        slice.bytes += length;
        if (slice.count == MC_BATCH_MAX)
            slice_end(store, &slice, config, replace, expected);
    }
    slice_end(store, &slice, config, replace, expected);
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = items[i].result;
        if (rc < 0 && expected == 0)
            tell_refusal(store, &items[i], config);
    }
    return rc;
}

/* The span of a call of a user's. */
static struct mc_traced *call_begin(const struct mc_put_item *items, size_t count, bool replace)
{
    struct mc_traced *span = count == 0 ? NULL : mc_traced_call(replace ? "mooncake.upsert" : "mooncake.put");
    if (span == NULL)
        return NULL;
    span->keys = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        span->bytes += items[i].parts == NULL ? 0 : mc_parts_length(items[i].parts, items[i].part_count);
    if (mc_key_check(items[0].key) == 0)
        mc_traced_key(span, items[0].key.data, items[0].key.length);
    return span;
}

static void call_end(struct mc_traced *span, const struct mc_put_item *items, size_t count, int rc)
{
    for (size_t i = 0; span != NULL && i < count && !mc_traced_is_failure(rc); i++)
        rc = items[i].result < 0 ? items[i].result : rc;
    mc_traced_end(span, rc);
}

/* Of keys as users name them; expected: of a full one. */
static int put_all(struct mc_store *store, struct mc_put_item *items, size_t count,
                   const struct mc_replicate_config *config, bool replace, uint64_t expected)
{
    struct mc_bytes *made = NULL;
    uint64_t since_ns = mc_clock_ns();
    int entered = mc_store_enter(store), rc = entered;
    struct mc_traced *span = entered == 0 && expected == 0 ? call_begin(items, count, replace) : NULL;
    if (rc == 0 && expected == 0 && count > 0)
        rc = mc_scope_enter(store, &items[0].key, sizeof(items[0]), count, &made);
    for (size_t i = 0; rc < 0 && i < count; i++)
        items[i].result = rc;
    if (rc == 0)
        rc = put_full(store, items, count, config, replace, expected);
    if (made != NULL)
        mc_scope_leave(&items[0].key, sizeof(items[0]), count, made);
    call_end(span, items, count, rc);
    if (entered == 0 && expected == 0)
        mc_call_times_add(&store->put_times, since_ns);
    if (entered == 0)
        mc_store_leave(store);
    return rc;
}

uint64_t mc_group(const char *name, size_t length)
{
    if (length == 0)
        return 0;
    uint64_t number = mc_hash(name, length).low;
    return number == 0 ? 1 : number;
}

int mc_store_put(struct mc_store *store, struct mc_put_item *items, size_t count,
                 const struct mc_replicate_config *config)
{
    return put_all(store, items, count, config, false, 0);
}

int mc_store_upsert(struct mc_store *store, struct mc_put_item *items, size_t count,
                    const struct mc_replicate_config *config)
{
    return put_all(store, items, count, config, true, 0);
}

int mc_put_expected(struct mc_store *store, struct mc_put_item *item, const struct mc_replicate_config *config,
                    uint64_t version)
{
    return put_all(store, item, 1, config, true, version);
}
