/* The HTTP metadata server: a small key-value store in memory that transfer engines use to find each other. Only the
 * HTTP thread touches it. */
#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/socket.h"
#include "master/http.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <unistd.h>

#define METADATA_KEY_MAX 4096u
#define METADATA_VALUE_MAX (1u << 20)
#define METADATA_TOTAL_MAX (64u << 20) /* bytes of all entries with their overhead */
#define BUCKETS_MIN 256u
#define LOOK_MS 200u /* the thread's other requests wait for so long; only when two engines want one name */

struct entry {
    struct entry *next;
    uint64_t hash;
    size_t key_length, value_length;
    char bytes[]; /* key, value */
};

struct mc_metadata {
    struct entry **buckets;
    size_t bucket_count; /* a power of two */
    size_t count, total;
};

struct mc_metadata *mc_metadata_create(void)
{
    struct mc_metadata *metadata = calloc(1, sizeof(*metadata));
    if (metadata == NULL)
        return NULL;
    metadata->bucket_count = BUCKETS_MIN;
    metadata->buckets = calloc(BUCKETS_MIN, sizeof(metadata->buckets[0]));
    if (metadata->buckets == NULL) {
        free(metadata);
        return NULL;
    }
    return metadata;
}

void mc_metadata_destroy(struct mc_metadata *metadata)
{
    if (metadata == NULL)
        return;
    for (size_t i = 0; i < metadata->bucket_count; i++) {
        for (struct entry *entry = metadata->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry);
        }
    }
    free(metadata->buckets);
    free(metadata);
}

/* The link that points to the entry of that key, or the empty link where it would go. */
static struct entry **find(struct mc_metadata *metadata, const struct mc_buffer *key, uint64_t hash)
{
    struct entry **link = &metadata->buckets[hash & (metadata->bucket_count - 1)];
    for (; *link != NULL; link = &(*link)->next) {
        if ((*link)->hash == hash && (*link)->key_length == key->length &&
            memcmp((*link)->bytes, key->data, key->length) == 0)
            break;
    }
    return link;
}

static size_t cost(size_t key_length, size_t value_length)
{
    return sizeof(struct entry) + 2 * sizeof(void *) + key_length + value_length;
}

/* Keeps the chains short; without memory they just get longer. */
static void grow(struct mc_metadata *metadata)
{
    size_t wanted = metadata->bucket_count * 2;
    struct entry **buckets = metadata->count < metadata->bucket_count ? NULL : calloc(wanted, sizeof(buckets[0]));
    if (buckets == NULL)
        return;
    for (size_t i = 0; i < metadata->bucket_count; i++) {
        for (struct entry *entry = metadata->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash & (wanted - 1)];
            buckets[entry->hash & (wanted - 1)] = entry;
        }
    }
    free(metadata->buckets);
    metadata->buckets = buckets;
    metadata->bucket_count = wanted;
}

static void drop(struct mc_metadata *metadata, struct entry **link)
{
    struct entry *entry = *link;
    *link = entry->next;
    metadata->count--;
    metadata->total -= cost(entry->key_length, entry->value_length);
    free(entry);
}

/* Blanks around a key are none of it. */
static void trim(struct mc_buffer *key)
{
    static const char blanks[] = " \t\r\n\v\f";
    size_t start = 0;
    while (key->length > 0 && memchr(blanks, key->data[key->length - 1], sizeof(blanks) - 1) != NULL)
        key->length--;
    while (start < key->length && memchr(blanks, key->data[start], sizeof(blanks) - 1) != NULL)
        start++;
    mc_buffer_consume(key, start);
}

/* The key of the request; false after having answered. */
static bool take_key(struct evhttp_request *request, struct mc_buffer *key)
{
    bool is_there = mc_http_parameter(request, "key", key);
    trim(key);
    if (!is_there || key->length == 0) {
        mc_http_reply_text(request, 400, MC_HTTP_TEXT,
                           "Missing key parameter. The metadata server is serving; use /metadata?key=...");
        mc_buffer_free(key);
        return false;
    }
    if (key->length > METADATA_KEY_MAX) {
        mc_http_reply_text(request, 413, MC_HTTP_TEXT, "The key is longer than 4096 bytes.");
        mc_buffer_free(key);
        return false;
    }
    return true;
}

static void get_metadata(void *context, struct evhttp_request *request)
{
    struct mc_metadata *metadata = context;
    struct mc_buffer key = {0}, value = {0};
    if (!take_key(request, &key))
        return;
    const struct entry *entry = *find(metadata, &key, mc_hash(key.data, key.length).low);
    mc_buffer_free(&key);
    if (entry == NULL) {
        mc_http_reply_text(request, 404, MC_HTTP_TEXT, "metadata not found");
        return;
    }
    mc_buffer_append(&value, entry->bytes + entry->key_length, entry->value_length);
    mc_http_reply(request, 200, MC_HTTP_JSON, &value);
}

/* The address of an engine that is in use must not be taken over by another one of the same name. */
static bool is_protected(const struct mc_buffer *key)
{
    return memmem(key->data, key->length, "rpc_meta", 8) != NULL;
}

/* Does nobody take connections at the address that stands there? Names would have to be looked up, so they are
 * believed. A process that is stopped still takes them. */
static bool is_gone(const struct entry *entry)
{
    char host[INET6_ADDRSTRLEN], address[MC_ADDRESS_MAX];
    struct mc_span text = mc_span(entry->bytes + entry->key_length, entry->value_length), value;
    struct in6_addr number;
    uint64_t port = 0;
    if (mc_json_find(text, "ip_or_host_name", &value) != 1 || value.length >= sizeof(host) ||
        mc_json_find_number(text, "rpc_port", &port) != 1 || port == 0 || port > UINT16_MAX)
        return false;
    memcpy(host, value.data, value.length);
    host[value.length] = 0;
    if (inet_pton(AF_INET, host, &number) != 1 && inet_pton(AF_INET6, host, &number) != 1)
        return false;
    mc_address_join(address, sizeof(address), host, (uint16_t)port);
    int fd = mc_tcp_connect(address, mc_clock_ns() + LOOK_MS * 1000000u);
    if (fd >= 0)
        close(fd);
    else
        mc_log(INFO, "the metadata of an engine at %s is replaced: nobody is there", address);
    return fd < 0;
}

/* After a replacement that is refused, or has no effect: the request is answered. */
static bool is_refused(struct evhttp_request *request, const struct mc_buffer *key, const struct entry *old,
                       const struct entry *entry)
{
    if (!is_protected(key))
        return false;
    bool is_same = old->value_length == entry->value_length &&
                   memcmp(old->bytes + old->key_length, entry->bytes + entry->key_length, entry->value_length) == 0;
    if (!is_same && is_gone(old))
        return false;
    mc_http_reply_text(request, is_same ? 200 : 400, MC_HTTP_TEXT,
                       is_same ? "metadata unchanged" : "Duplicate rpc_meta key not allowed");
    return true;
}

static void store(struct mc_metadata *metadata, struct evhttp_request *request, const struct mc_buffer *key,
                  struct evbuffer *body)
{
    size_t length = evbuffer_get_length(body);
    uint64_t hash = mc_hash(key->data, key->length).low;
    struct entry **link = find(metadata, key, hash), *old = *link;
    size_t freed = old == NULL ? 0 : cost(old->key_length, old->value_length);
    struct entry *entry = malloc(sizeof(*entry) + key->length + length);
    if (entry == NULL || metadata->total - freed + cost(key->length, length) > METADATA_TOTAL_MAX) {
        free(entry);
        mc_http_reply_text(request, 507, MC_HTTP_TEXT, "The metadata server is full; delete keys that are not needed.");
        return;
    }
    entry->hash = hash;
    entry->key_length = key->length;
    entry->value_length = length;
    memcpy(entry->bytes, key->data, key->length);
    mc_assert(evbuffer_copyout(body, entry->bytes + key->length, length) == (ev_ssize_t)length);
    if (old != NULL && is_refused(request, key, old, entry)) {
        free(entry);
        return;
    }
    if (old != NULL)
        drop(metadata, link);
    link = find(metadata, key, hash);
    entry->next = NULL;
    *link = entry;
    metadata->count++;
    metadata->total += cost(key->length, length);
    grow(metadata);
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, "metadata updated");
}

static void put_metadata(void *context, struct evhttp_request *request)
{
    struct mc_buffer key = {0};
    struct evbuffer *body = evhttp_request_get_input_buffer(request);
    if (!take_key(request, &key))
        return;
    if (evbuffer_get_length(body) > METADATA_VALUE_MAX)
        mc_http_reply_text(request, 413, MC_HTTP_TEXT, "The value is longer than 1 MiB.");
    else
        store(context, request, &key, body);
    mc_buffer_free(&key);
}

static void delete_metadata(void *context, struct evhttp_request *request)
{
    struct mc_metadata *metadata = context;
    struct mc_buffer key = {0};
    if (!take_key(request, &key))
        return;
    struct entry **link = find(metadata, &key, mc_hash(key.data, key.length).low);
    mc_buffer_free(&key);
    if (*link == NULL) {
        mc_http_reply_text(request, 404, MC_HTTP_TEXT, "metadata not found");
        return;
    }
    drop(metadata, link);
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, "metadata deleted");
}

static void get_health(void *context, struct evhttp_request *request)
{
    (void)context;
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, "OK");
}

static const struct mc_http_route routes[] = {
    {EVHTTP_REQ_GET, "/metadata", get_metadata},
    {EVHTTP_REQ_PUT, "/metadata", put_metadata},
    {EVHTTP_REQ_DELETE, "/metadata", delete_metadata},
    {EVHTTP_REQ_GET, "/health", get_health},
};

void mc_metadata_handle(struct evhttp_request *request, void *metadata)
{
    mc_http_dispatch(routes, sizeof(routes) / sizeof(routes[0]), metadata, request);
}
