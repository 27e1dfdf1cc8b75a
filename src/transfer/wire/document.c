/* Metadata documents: JSON in, JSON out. */
#include "transfer/wire/document.h"

#include "base/error.h"
#include "env/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BAD MC_TRANSFER_ERR_MALFORMED_JSON

/* ---- reading ---- */

static int read_buffer(struct mc_span text, struct mc_transfer_range *range)
{
    struct mc_json_cursor member;
    char name[MC_DOCUMENT_NAME_MAX] = "";
    int rc = mc_json_open(text, '{', &member);
    *range = (struct mc_transfer_range){0};
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        rc = 0;
        if (mc_json_is(member.name, "addr"))
            rc = mc_json_number(&member, &range->address);
        else if (mc_json_is(member.name, "length"))
            rc = mc_json_number(&member, &range->length);
        else if (mc_json_is(member.name, "name"))
            rc = mc_json_text(&member, name, sizeof(name));
        if (rc < 0)
            return BAD;
        rc = 0;
    }
    bool is_whole = rc == 0 && name[0] != 0 && range->address != 0 && range->length != 0 &&
                    range->length - 1 <= UINT64_MAX - range->address;
    return is_whole ? 0 : BAD;
}

static int read_buffers(struct mc_span text, struct mc_document *document)
{
    struct mc_json_cursor element;
    size_t capacity = 0;
    int rc = mc_json_open(text, '[', &element);
    if (rc < 0 || document->buffer_count > 0) /* twice */
        return BAD;
    while ((rc = mc_json_next(&element)) == 1) {
        if (document->buffer_count == capacity) {
            capacity = capacity == 0 ? 16 : capacity * 2;
            struct mc_transfer_range *more =
                capacity > MC_DOCUMENT_BUFFERS_MAX ? NULL : realloc(document->buffers, capacity * sizeof(*more));
            if (more == NULL)
                return MC_TRANSFER_ERR_MEMORY;
            document->buffers = more;
        }
        if (read_buffer(element.value, &document->buffers[document->buffer_count]) < 0)
            return BAD;
        document->buffer_count++;
    }
    return rc == 0 ? 0 : BAD;
}

/* A string, or an array of them where an engine has several transports. */
static int read_protocol(const struct mc_json_cursor *member, struct mc_document *document)
{
    struct mc_json_cursor element;
    if (member->kind == '"') {
        document->is_tcp = mc_json_is(member->value, "tcp");
        return 0;
    }
    int rc = mc_json_open(member->value, '[', &element);
    while (rc == 0 && (rc = mc_json_next(&element)) == 1) {
        document->is_tcp |= element.kind == '"' && mc_json_is(element.value, "tcp");
        rc = 0;
    }
    return rc == 0 ? 0 : BAD;
}

static bool hex_id(const char *text, struct mc_id *id)
{
    int used = 0;
    return strlen(text) == 32 && sscanf(text, "%16" SCNx64 "%16" SCNx64 "%n", &id->high, &id->low, &used) == 2 &&
           used == 32;
}

static int small_number(const struct mc_json_cursor *member, uint64_t most, uint64_t *number)
{
    return mc_json_number(member, number) == 0 && *number <= most ? 0 : BAD;
}

static int read_ours(struct mc_span text, struct mc_document *document)
{
    struct mc_json_cursor member;
    uint64_t number = 0, cuts = 0, sums = 0;
    char hex[40];
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        struct mc_id *id = mc_json_is(member.name, "host") ? &document->host
                           : mc_json_is(member.name, "id") ? &document->id
                                                           : NULL;
        rc = 0;
        if (id != NULL)
            rc = mc_json_text(&member, hex, sizeof(hex)) == 0 && hex_id(hex, id) ? 0 : BAD;
        else if (mc_json_is(member.name, "unix"))
            rc = mc_json_text(&member, document->unix_name, sizeof(document->unix_name));
        else if (mc_json_is(member.name, "rpc_port"))
            rc = small_number(&member, UINT16_MAX, &number);
        else if (mc_json_is(member.name, "cuts"))
            rc = mc_json_number(&member, &cuts) == 0 ? 0 : BAD;
        else if (mc_json_is(member.name, "sums"))
            rc = mc_json_number(&member, &sums) == 0 ? 0 : BAD;
        else if (mc_json_is(member.name, "rdma"))
            rc = document->remote != NULL ? BAD : mc_rdma_remote_read(member.value, &document->remote);
    }
    document->rpc_port = (uint16_t)number;
    document->can_cut = cuts != 0;
    document->can_mean = cuts >= 2;
    document->can_sum = sums != 0;
    return rc == 0 ? 0 : BAD;
}

static int read_member(const struct mc_json_cursor *member, struct mc_document *document)
{
    uint64_t number = 0;
    int rc = 0;
    if (mc_json_is(member->name, "name"))
        return mc_json_text(member, document->name, sizeof(document->name));
    if (mc_json_is(member->name, "protocol"))
        return read_protocol(member, document);
    if (mc_json_is(member->name, "tcp_data_host"))
        return mc_json_text(member, document->data_host, sizeof(document->data_host));
    if (mc_json_is(member->name, "tcp_data_port")) {
        rc = small_number(member, UINT16_MAX, &number);
        document->data_port = (uint16_t)number;
    } else if (mc_json_is(member->name, "tcp_proto_version")) {
        rc = small_number(member, UINT32_MAX, &number);
        document->data_version = number >= 2 ? 2 : 1;
    } else if (mc_json_is(member->name, "buffers")) {
        rc = read_buffers(member->value, document);
    } else if (mc_json_is(member->name, "mooncake_c")) {
        rc = read_ours(member->value, document);
    }
    return rc;
}

int mc_document_read(struct mc_span text, struct mc_document *document)
{
    struct mc_json_cursor member;
    bool has_protocol = false;
    *document = (struct mc_document){.data_version = 1};
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        has_protocol |= mc_json_is(member.name, "protocol");
        rc = read_member(&member, document);
    }
    if (rc == MC_TRANSFER_ERR_MEMORY)
        return rc;
    return rc == 0 && document->name[0] != 0 && has_protocol ? 0 : BAD;
}

void mc_document_free(struct mc_document *document)
{
    free(document->buffers);
    mc_rdma_remote_release(document->remote);
    document->remote = NULL;
    document->buffers = NULL;
    document->buffer_count = 0;
}

int mc_rpc_meta_read(struct mc_span text, char *host, size_t host_size, uint16_t *port)
{
    struct mc_json_cursor member;
    uint64_t number = 0;
    int rc = mc_json_open(text, '{', &member);
    host[0] = 0;
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        rc = 0;
        if (mc_json_is(member.name, "ip_or_host_name"))
            rc = mc_json_text(&member, host, host_size);
        else if (mc_json_is(member.name, "rpc_port"))
            rc = small_number(&member, UINT16_MAX, &number);
    }
    *port = (uint16_t)number;
    return rc == 0 && host[0] != 0 && number != 0 ? 0 : BAD;
}

/* ---- writing ---- */

void mc_document_write(struct mc_buffer *out, const struct mc_document *document, const char *timestamp)
{
    mc_buffer_printf(out, "{\"buffers\":[");
    for (size_t i = 0; i < document->buffer_count; i++) {
        mc_buffer_printf(out, "%s{\"addr\":%" PRIu64 ",\"length\":%" PRIu64 ",\"name\":", i == 0 ? "" : ",",
                         document->buffers[i].address, document->buffers[i].length);
        if (document->places != NULL && document->places[i].kind == MC_GPU_MEMORY)
            mc_buffer_printf(out, "\"cuda:%d\"", document->places[i].number);
        else
            mc_json_put_text(out, document->name);
        mc_buffer_append(out, "}", 1);
    }
    mc_buffer_printf(out, "],");
    if (!mc_id_is_zero(document->id)) {
        mc_buffer_printf(out,
                         "\"mooncake_c\":{\"host\":\"%016" PRIx64 "%016" PRIx64 "\",\"id\":\"%016" PRIx64 "%016" PRIx64
                         "\",\"unix\":",
                         document->host.high, document->host.low, document->id.high, document->id.low);
        mc_json_put_text(out, document->unix_name);
        if (document->can_cut)
            mc_buffer_printf(out, ",\"cuts\":%d", document->can_mean ? 2 : 1);
        if (document->can_sum)
            mc_buffer_printf(out, ",\"sums\":1");
        if (document->rpc_port != 0)
            mc_buffer_printf(out, ",\"rpc_port\":%u", (unsigned)document->rpc_port);
        if (document->rdma.length > 0) {
            mc_buffer_printf(out, ",\"rdma\":");
            mc_buffer_append(out, document->rdma.data, document->rdma.length);
        }
        mc_buffer_printf(out, "},");
    }
    mc_buffer_printf(out, "\"name\":");
    mc_json_put_text(out, document->name);
    mc_buffer_printf(
        out, ",\"protocol\":\"%s\",\"rdma_server_name\":\"\",\"tcp_data_host\":", document->is_tcp ? "tcp" : "rdma");
    mc_json_put_text(out, document->data_host);
    mc_buffer_printf(out,
                     ",\"tcp_data_port\":%u,\"tcp_proto_version\":%u,\"timestamp\":", (unsigned)document->data_port,
                     document->data_version);
    mc_json_put_text(out, timestamp);
    mc_buffer_append(out, "}", 1);
}

void mc_rpc_meta_write(struct mc_buffer *out, const char *host, uint16_t port)
{
    mc_buffer_printf(out, "{\"ip_or_host_name\":");
    mc_json_put_text(out, host);
    mc_buffer_printf(out, ",\"rpc_port\":%u}", (unsigned)port);
}

/* ---- keys ---- */

static void make_key(char *key, size_t size, const char *cluster_id, const char *kind, const char *name)
{
    bool has_cluster = cluster_id != NULL && cluster_id[0] != 0;
    snprintf(key, size, "mooncake/%s%s%s%s", has_cluster ? cluster_id : "", has_cluster ? "/" : "", kind, name);
}

void mc_segment_key(char *key, size_t size, const char *cluster_id, const char *name)
{
    if (strchr(name, '/') != NULL)
        snprintf(key, size, "mooncake/%s", name);
    else
        make_key(key, size, cluster_id, "ram/", name);
}

void mc_rpc_meta_key(char *key, size_t size, const char *cluster_id, const char *name)
{
    make_key(key, size, cluster_id, "rpc_meta/", name);
}
