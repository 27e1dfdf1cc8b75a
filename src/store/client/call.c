/* The short calls: exist, size, describe, remove, hint. Each is one request to the master per MC_BATCH_MAX keys. */
#include "env/log.h"
#include "env/clock.h"
#include "store/client/calls.h"
#include "store/client/link.h"
#include "store/client/owners.h"
#include "store/client/scope.h"

#include <stdio.h>
#include <stdlib.h>

struct keys_request {
    const struct mc_bytes *keys;
    size_t count;
    bool force;
    struct mc_wire_hint hint;
    uint64_t deadline_ns; /* of all of the call; 0: as any call has */
    bool once;            /* a master that does not answer, or is busy, is not asked again */
};

static void write_keys(struct mc_buffer *out, const struct keys_request *request)
{
    size_t list = mc_list_begin(out);
    for (size_t i = 0; i < request->count; i++) {
        struct mc_wire_key key = {.key = mc_span(request->keys[i].data, request->keys[i].length)};
        mc_wire_key_write(out, &key);
    }
    mc_list_end(out, list, request->count);
}

static void build_exist(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    size_t frame = mc_frame_begin(out, MC_MESSAGE_EXIST, request_id);
    mc_wire_none_write(out, &(struct mc_wire_none){0});
    write_keys(out, context);
    mc_frame_end(out, frame);
}

static void build_look(struct mc_buffer *out, uint64_t request_id, const void *context, uint32_t flags)
{
    size_t frame = mc_frame_begin(out, MC_MESSAGE_GET, request_id);
    mc_wire_get_write(out, &(struct mc_wire_get){.flags = MC_GET_NO_LEASE | flags});
    write_keys(out, context);
    mc_frame_end(out, frame);
}

static void build_size(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    build_look(out, request_id, context, 0);
}

static void build_description(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    build_look(out, request_id, context, MC_GET_DISKS);
}

static void build_remove(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    const struct keys_request *request = context;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_REMOVE, request_id);
    mc_wire_remove_write(out, &(struct mc_wire_remove){.force = request->force});
    write_keys(out, request);
    mc_frame_end(out, frame);
}

static void build_hint(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    const struct keys_request *request = context;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_HINT, request_id);
    mc_wire_hint_write(out, &request->hint);
    write_keys(out, request);
    mc_frame_end(out, frame);
}

static void build_remove_all(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_remove_frame(out, mc_frame_begin(out, MC_MESSAGE_REMOVE_ALL, request_id),
                         &(struct mc_wire_remove){.force = *(const bool *)context});
}

static void build_remove_regex(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_remove_regex_frame(out, mc_frame_begin(out, MC_MESSAGE_REMOVE_REGEX, request_id), context);
}

/* ---- exist, size, remove, hint: a code for each key ---- */

typedef void put_result(void *results, size_t index, int64_t result);

struct keys_call { /* one kind of call */
    mc_link_build *build;
    enum mc_message reply;
    /* Sets the results of request->count keys from `at` on. 0, or the error of the whole request. repeated: the request
     * may have been carried out before, its answer was lost. */
    int (*read)(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results, size_t at);
    put_result *put;
};

static void put_int(void *results, size_t index, int64_t result)
{
    ((int *)results)[index] = (int)result;
}
static void put_int64(void *results, size_t index, int64_t result)
{
    ((int64_t *)results)[index] = result;
}

static int read_exist(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                      size_t at)
{
    struct mc_wire_exist_reply reply;
    (void)repeated;
    mc_wire_exist_reply_read(reader, &reply);
    bool is_good = !reader->bad && reply.results.length == request->count && reply.code <= 0;
    int rc = is_good ? reply.code : MC_ERR_PROTOCOL;
    for (size_t i = 0; rc == 0 && i < request->count; i++)
        put_int(results, at + i, ((const uint8_t *)reply.results.data)[i] == 1);
    return rc;
}

static uint64_t told_length(const struct mc_wire_found *found)
{
    return found->whole != 0 ? found->whole : found->length;
}

static int read_size(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                     size_t at)
{
    struct mc_wire_none head;
    struct mc_wire_found found;
    (void)repeated;
    mc_wire_none_read(reader, &head);
    size_t count = mc_list_read(reader);
    for (size_t i = 0; i < count && i < request->count; i++) {
        mc_wire_found_read(reader, &found);
        put_int64(results, at + i, found.code < 0 ? found.code : (int64_t)told_length(&found));
    }
    return reader->bad || count != request->count ? MC_ERR_PROTOCOL : 0;
}

static int read_firm_pin(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                         size_t at)
{
    struct mc_wire_none head;
    struct mc_wire_found found;
    (void)repeated;
    mc_wire_none_read(reader, &head);
    size_t count = mc_list_read(reader);
    for (size_t i = 0; i < count && i < request->count; i++) {
        mc_wire_found_read(reader, &found);
        put_int64(results, at + i, found.code < 0 ? found.code : (int64_t)found.pin_ms);
    }
    return reader->bad || count != request->count ? MC_ERR_PROTOCOL : 0;
}

static int read_remove(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                       size_t at)
{
    struct mc_wire_none head;
    struct mc_wire_code code;
    mc_wire_none_read(reader, &head);
    size_t count = mc_list_read(reader);
    bool is_good = true;
    for (size_t i = 0; i < count && i < request->count; i++) {
        mc_wire_code_read(reader, &code);
        is_good = is_good && code.code <= 0;
        /* Not there any more: the try whose answer was lost has removed it. */
        put_int(results, at + i, repeated && code.code == MC_ERR_OBJECT_NOT_FOUND ? 0 : code.code);
    }
    return reader->bad || !is_good || count != request->count ? MC_ERR_PROTOCOL : 0;
}

static int read_hint(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                     size_t at)
{
    struct mc_wire_none head;
    struct mc_wire_code code;
    (void)repeated;
    mc_wire_none_read(reader, &head);
    size_t count = mc_list_read(reader);
    bool is_good = true;
    for (size_t i = 0; i < count && i < request->count; i++) {
        mc_wire_code_read(reader, &code);
        is_good = is_good && code.code <= MC_HINT_BEGUN;
        put_int(results, at + i, code.code);
    }
    return reader->bad || !is_good || count != request->count ? MC_ERR_PROTOCOL : 0;
}

/* One slice of a batch: its keys are all well formed. */
static int call_slice(struct mc_store *store, const struct keys_call *call, const struct keys_request *request,
                      uint64_t deadline_ns, void *results, size_t at)
{
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc;
    if (request->once)
        rc = mc_link_try(store, deadline_ns, call->build, request, call->reply, &link, &reader);
    else if (call->reply == MC_MESSAGE_HINT_REPLY)
        rc = mc_link_call_if(store, MC_FEATURE_HINTS, deadline_ns, call->build, request, call->reply, &link, &reader);
    else
        rc = mc_link_call(store, deadline_ns, call->build, request, call->reply, &link, &reader);
    if (rc == 0) {
        rc = call->read(&reader, request, link->repeated, results, at);
        mc_link_return(store, link);
    }
    for (size_t i = 0; rc < 0 && i < request->count; i++)
        call->put(results, at + i, rc);
    return rc;
}

/* Runs slices of at most MC_BATCH_MAX well-formed keys, with what else `wish` says; malformed ones get their code
 * without a question. Returns the first error of a whole slice. */
static int call_full_keys(struct mc_store *store, const struct keys_call *call, const struct mc_bytes *keys,
                          size_t count, const struct keys_request *wish, void *results)
{
    int rc, first = 0;
    uint64_t deadline_ns = wish->deadline_ns != 0 ? wish->deadline_ns : mc_store_deadline(store, 0);
    for (size_t at = 0; at < count;) {
        struct keys_request slice = {.keys = keys + at, .force = wish->force, .hint = wish->hint, .once = wish->once};
        rc = 0;
        while (slice.count < MC_BATCH_MAX && at + slice.count < count &&
               (rc = mc_key_check(keys[at + slice.count])) == 0)
            slice.count++;
        if (slice.count == 0) {
            call->put(results, at++, rc);
            continue;
        }
        rc = call_slice(store, call, &slice, deadline_ns, results, at);
        first = first < 0 ? first : rc;
        at += slice.count;
    }
    return first;
}

static const struct keys_request no_wish;

/* As users name them. */
static int call_keys(struct mc_store *store, const struct keys_call *call, const struct mc_bytes *keys, size_t count,
                     const struct keys_request *wish, void *results)
{
    struct mc_bytes *made = NULL;
    uint64_t since_ns = mc_clock_ns();
    int entered = mc_store_enter(store);
    int rc = entered < 0 ? entered : mc_scope_keys(store, &keys, count, &made);
    for (size_t i = 0; rc < 0 && i < count; i++)
        call->put(results, i, rc);
    if (rc == 0)
        rc = call_full_keys(store, call, keys, count, wish, results);
    free(made);
    if (entered == 0 && call->reply == MC_MESSAGE_EXIST_REPLY)
        mc_call_times_add(&store->exist_times, since_ns);
    if (entered == 0)
        mc_store_leave(store);
    return rc;
}

int mc_store_exist(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results)
{
    static const struct keys_call call = {build_exist, MC_MESSAGE_EXIST_REPLY, read_exist, put_int};
    return call_keys(store, &call, keys, count, &no_wish, results);
}

static int read_look(struct mc_reader *reader, const struct keys_request *request, bool repeated, void *results,
                     size_t at)
{
    struct mc_wire_none head;
    struct mc_wire_found found;
    (void)repeated;
    mc_wire_none_read(reader, &head);
    size_t count = mc_list_read(reader);
    for (size_t i = 0; i < count && i < request->count; i++) {
        mc_wire_found_read(reader, &found);
        put_int(results, at + i, found.code < 0 ? found.code : found.whole != 0 ? MC_LOOK_IN_PIECES : MC_LOOK_WHOLE);
    }
    return reader->bad || count != request->count ? MC_ERR_PROTOCOL : 0;
}

void mc_call_look(struct mc_store *store, const struct mc_bytes *keys, size_t count, uint64_t deadline_ns, int *results)
{
    static const struct keys_call call = {build_size, MC_MESSAGE_GET_FOUND, read_look, put_int};
    const struct keys_request wish = {.deadline_ns = deadline_ns};
    (void)call_full_keys(store, &call, keys, count, &wish, results);
}

/* The master looks at no slice behind the first that has a gap. */
int64_t mc_store_longest_prefix(struct mc_store *store, const struct mc_bytes *keys, size_t count)
{
    int found[MC_BATCH_MAX];
    size_t at = 0;
    do {
        size_t slice = count - at < MC_BATCH_MAX ? count - at : MC_BATCH_MAX;
        size_t matched = 0;
        int rc = mc_store_exist(store, keys + at, slice, found);
        if (slice == 0)
            return rc;
        while (matched < slice && found[matched] > 0)
            matched++;
        at += matched;
        if (matched < slice)
            return found[matched] < 0 ? found[matched] : (int64_t)at;
    } while (at < count);
    return (int64_t)at;
}

int mc_store_size(struct mc_store *store, const struct mc_bytes *keys, size_t count, int64_t *results)
{
    static const struct keys_call call = {build_size, MC_MESSAGE_GET_FOUND, read_size, put_int64};
    return call_keys(store, &call, keys, count, &no_wish, results);
}

int mc_store_firm_pin_left(struct mc_store *store, const struct mc_bytes *keys, size_t count, int64_t *results)
{
    static const struct keys_call call = {build_size, MC_MESSAGE_GET_FOUND, read_firm_pin, put_int64};
    return call_keys(store, &call, keys, count, &no_wish, results);
}

static const struct keys_call remove_call = {build_remove, MC_MESSAGE_REMOVE_REPLY, read_remove, put_int};

int mc_store_remove(struct mc_store *store, const struct mc_bytes *keys, size_t count, bool force, int *results)
{
    return call_keys(store, &remove_call, keys, count, &(struct keys_request){.force = force}, results);
}

int mc_store_hint(struct mc_store *store, const struct mc_bytes *keys, size_t count, enum mc_hint hint, uint64_t for_ms,
                  int *results)
{
    static const struct keys_call call = {build_hint, MC_MESSAGE_HINT_REPLY, read_hint, put_int};
    struct keys_request wish = {.hint = {.hint = (uint8_t)hint, .for_ms = for_ms}};
    bool is_known = hint >= MC_HINT_DROP && hint <= MC_HINT_PREFETCH;
    for (size_t i = 0; !is_known && i < count; i++)
        results[i] = MC_ERR_INVALID_PARAMS;
    return is_known ? call_keys(store, &call, keys, count, &wish, results) : MC_ERR_INVALID_PARAMS;
}

int mc_call_remove(struct mc_store *store, struct mc_bytes key)
{
    int removed = 0, rc = call_full_keys(store, &remove_call, &key, 1, &no_wish, &removed);
    return rc < 0 ? rc : removed;
}

void mc_call_remove_parts(struct mc_store *store, const struct mc_bytes *keys, size_t count, uint64_t deadline_ns)
{
    int results[MC_BATCH_MAX];
    const struct keys_request wish = {.force = true, .deadline_ns = deadline_ns, .once = true};
    mc_assert(count <= MC_BATCH_MAX);
    if (count > 0 && mc_clock_ns() < deadline_ns)
        (void)call_full_keys(store, &remove_call, keys, count, &wish, results);
}

/* ---- the rest ---- */

static int64_t removal(struct mc_store *store, mc_link_build *build, const void *context)
{
    struct mc_master_link *link;
    struct mc_reader reader;
    struct mc_wire_count_reply reply;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    if (!mc_id_is_zero(store->stamp) && atomic_load(&store->is_stamp_unknown)) {
        mc_log_limited(WARNING,
                       "nothing is removed: this master is of a release before stamps, and would remove objects "
                       "of other stamps, too");
        mc_store_leave(store);
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    }
    /* A sweep of millions of objects is long and still makes progress: the master answers when it is done. */
    uint64_t deadline_ns = mc_store_deadline(store, 0) + 60u * 1000000000ull;
    rc = mc_link_call(store, deadline_ns, build, context, MC_MESSAGE_COUNT_REPLY, &link, &reader);
    int64_t result = rc;
    if (rc == 0) {
        mc_wire_count_reply_read(&reader, &reply);
        result = reader.bad ? MC_ERR_PROTOCOL : reply.code < 0 ? reply.code : (int64_t)reply.count;
        mc_link_return(store, link);
    }
    mc_store_leave(store);
    return result;
}

int64_t mc_store_remove_all(struct mc_store *store, bool force)
{
    return removal(store, build_remove_all, &force);
}

int64_t mc_store_remove_by_regex(struct mc_store *store, struct mc_bytes pattern, bool force)
{
    if (pattern.data == NULL || pattern.length == 0 || pattern.length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_PARAMS;
    struct mc_wire_remove_regex request = {.force = force, .pattern = mc_span(pattern.data, pattern.length)};
    int64_t rc = removal(store, build_remove_regex, &request);
    if (rc == MC_ERR_INVALID_PARAMS)
        mc_log_limited(WARNING, "nothing is removed: '%.*s' is no expression (INVALID_PARAMS)",
                       (int)(pattern.length < 100 ? pattern.length : 100), (const char *)pattern.data);
    return rc;
}

int mc_call_describe(struct mc_store *store, const struct mc_bytes *key, bool with_disks, uint64_t deadline_ns,
                     struct mc_replica_description *descriptions, size_t capacity, struct mc_described *described)
{
    struct keys_request request = {.keys = key, .count = 1};
    struct mc_master_link *link;
    struct mc_reader reader;
    struct mc_wire_none head;
    struct mc_wire_found found = {.code = MC_ERR_PROTOCOL};
    struct mc_place places[MC_REPLICA_COUNT_MAX];
    struct mc_replica_description disk = {.is_on_disk = 1, .status = 3};
    int rc = mc_link_call(store, deadline_ns, with_disks ? build_description : build_size, &request,
                          MC_MESSAGE_GET_FOUND, &link, &reader);
    if (rc < 0)
        return rc;
    mc_wire_none_read(&reader, &head);
    if (mc_list_read(&reader) == 1)
        mc_wire_found_read(&reader, &found);
    size_t place_count = mc_list_read(&reader);
    for (size_t i = 0; i < place_count && i < MC_REPLICA_COUNT_MAX; i++) {
        struct mc_wire_place place;
        mc_wire_place_read(&reader, &place);
        places[i] = mc_place_of(&place);
        *described = (struct mc_described){.version = place.generation - place.replica, .pins = found.pins};
    }
    rc = reader.bad || place_count > MC_REPLICA_COUNT_MAX || found.disk.length >= sizeof(disk.segment_name)
             ? MC_ERR_PROTOCOL
             : found.code;
    bool is_on_disk = rc == 0 && found.disk.length > 0; /* the frame ends with the link */
    if (is_on_disk)
        memcpy(disk.segment_name, found.disk.data, found.disk.length);
    disk.size = told_length(&found);
    uint64_t epoch = link->epoch;
    mc_link_return(store, link);
    for (size_t i = 0; rc == 0 && i < place_count && i < capacity; i++) {
        struct mc_endpoint endpoint;
        rc = mc_store_endpoint(store, epoch, places[i].segment, deadline_ns, &endpoint);
        if (rc < 0)
            break;
        descriptions[i] = (struct mc_replica_description){.size = disk.size, .address = places[i].offset, .status = 3};
        snprintf(descriptions[i].segment_name, sizeof(descriptions[i].segment_name), "%s", endpoint.name);
    }
    if (rc == 0 && is_on_disk && place_count < capacity)
        descriptions[place_count] = disk;
    return rc < 0 ? rc : (int)place_count + is_on_disk;
}

int mc_store_describe(struct mc_store *store, struct mc_bytes key, struct mc_replica_description *descriptions,
                      size_t capacity)
{
    struct mc_described described;
    struct mc_bytes *made = NULL;
    const struct mc_bytes *full = &key;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = mc_scope_keys(store, &full, 1, &made);
    if (rc == 0)
        rc = mc_key_check(*full);
    if (rc == 0)
        rc = mc_call_describe(store, full, true, mc_store_deadline(store, 0), descriptions, capacity, &described);
    free(made);
    mc_store_leave(store);
    return rc;
}

static void build_segment_named(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_name_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENT_NAMED, request_id),
                       &(struct mc_wire_name){.name = mc_span_string(context)});
}

int mc_call_segment_named(struct mc_store *store, const char *name, uint64_t deadline_ns)
{
    struct mc_master_link *link;
    struct mc_reader reader;
    struct mc_wire_segment_reply reply;
    int rc = mc_link_call(store, deadline_ns, build_segment_named, name, MC_MESSAGE_SEGMENT_REPLY, &link, &reader);
    if (rc < 0)
        return rc;
    mc_wire_segment_reply_read(&reader, &reply);
    mc_link_return(store, link);
    return reader.bad ? MC_ERR_PROTOCOL : reply.code;
}
