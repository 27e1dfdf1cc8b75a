/* The HTTP metadata server: a small key-value store in memory that transfer engines use to find each other. Only the
 * HTTP thread touches it. */
#include "base/checksum.h"
#include "base/error.h"
#include "env/json.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/master/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdlib.h>

#define METADATA_KEY_MAX 4096u
#define METADATA_VALUE_MAX (1u << 20)
#define BUCKETS_MIN 256u
#define LOOK_MS 2500u       /* one lost packet of a connection's beginning costs a second; askers have 3 s */
#define LOOKS_MAX 64u       /* under way at once */
#define LOOKS_OF_ONE 16u    /* of one asker's address */
#define LOOK_PORT_MIN 1024u /* engines listen at none below, and who asks us to look chose the address */

struct value_entry {
    struct value_entry *next;
    uint64_t hash;
    size_t key_length, value_length;
    char bytes[]; /* key, value */
};

struct
    address_look { /* whether anybody is at the address of an entry that shall be replaced; the request waits for it */
    struct mc_metadata_store *metadata;
    struct address_look *next, **at;
    struct evhttp_request *request;
    uint64_t asker; /* by its address */
    struct bufferevent *socket;
    struct value_entry *entry; /* what shall stand there */
    size_t old_length;         /* of the value that stood there; it lies behind the entry's own */
    char address[MC_ADDRESS_MAX];
};

struct mc_metadata_store {
    struct event_base *base;
    struct value_entry **buckets;
    size_t bucket_count;       /* a power of two */
    size_t count, total, most; /* total: bytes of all entries with their overhead; most: so many may be there */
    struct address_look *looks;
    unsigned look_count;
};

struct mc_metadata_store *mc_metadata_create(struct event_base *base, size_t most)
{
    struct mc_metadata_store *metadata = calloc(1, sizeof(*metadata));
    if (metadata == NULL)
        return NULL;
    metadata->base = base;
    metadata->most = most;
    metadata->bucket_count = BUCKETS_MIN;
    metadata->buckets = calloc(BUCKETS_MIN, sizeof(metadata->buckets[0]));
    if (metadata->buckets == NULL) {
        free(metadata);
        return NULL;
    }
    return metadata;
}

static void look_end(struct address_look *look)
{
    *look->at = look->next;
    if (look->next != NULL)
        look->next->at = look->at;
    look->metadata->look_count--;
    bufferevent_free(look->socket);
    free(look->entry);
    free(look);
}

void mc_metadata_destroy(struct mc_metadata_store *metadata)
{
    if (metadata == NULL)
        return;
    for (struct address_look *look = metadata->looks, *next; look != NULL; look = next) {
        next = look->next;
        look_end(look);
    }
    for (size_t i = 0; i < metadata->bucket_count; i++) {
        for (struct value_entry *entry = metadata->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry);
        }
    }
    free(metadata->buckets);
    free(metadata);
}

/* The link that points to the entry of that key, or the empty link where it would go. */
static struct value_entry **entry_find(struct mc_metadata_store *metadata, const struct mc_buffer *key, uint64_t hash)
{
    struct value_entry **link = &metadata->buckets[hash & (metadata->bucket_count - 1)];
    for (; *link != NULL; link = &(*link)->next) {
        if ((*link)->hash == hash && (*link)->key_length == key->length &&
            memcmp((*link)->bytes, key->data, key->length) == 0)
            break;
    }
    return link;
}

static size_t cost(size_t key_length, size_t value_length)
{
    return sizeof(struct value_entry) + 2 * sizeof(void *) + key_length + value_length;
}

/* Keeps the chains short; without memory they just get longer. */
static void grow(struct mc_metadata_store *metadata)
{
    size_t wanted = metadata->bucket_count * 2;
    struct value_entry **buckets = metadata->count < metadata->bucket_count ? NULL : calloc(wanted, sizeof(buckets[0]));
    if (buckets == NULL)
        return;
    for (size_t i = 0; i < metadata->bucket_count; i++) {
        for (struct value_entry *entry = metadata->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash & (wanted - 1)];
            buckets[entry->hash & (wanted - 1)] = entry;
        }
    }
    free(metadata->buckets);
    metadata->buckets = buckets;
    metadata->bucket_count = wanted;
}

static void drop(struct mc_metadata_store *metadata, struct value_entry **link)
{
    struct value_entry *entry = *link;
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
    if (key->failed) {
        mc_buffer_free(key);
        mc_http_reply_error(request, MC_ERR_NO_MEMORY);
        return false;
    }
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
    struct mc_metadata_store *metadata = context;
    struct mc_buffer key = {.may_fail = true}, value = {.may_fail = true};
    if (!take_key(request, &key))
        return;
    const struct value_entry *entry = *entry_find(metadata, &key, mc_hash(key.data, key.length).low);
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

/* The address that stands in an entry, when it is a number: names would have to be looked up, so they are believed.
 * False: there is none. */
static bool read_address(const struct value_entry *entry, struct sockaddr_storage *to, int *to_length, char *text,
                         size_t size)
{
    char host[INET6_ADDRSTRLEN];
    struct mc_span value, document = mc_span(entry->bytes + entry->key_length, entry->value_length);
    uint64_t port = 0;
    if (mc_json_find(document, "ip_or_host_name", &value) != 1 || value.length >= sizeof(host) ||
        mc_json_find_number(document, "rpc_port", &port) != 1 || port < LOOK_PORT_MIN || port > UINT16_MAX)
        return false;
    memcpy(host, value.data, value.length);
    host[value.length] = 0;
    mc_address_join(text, size, host, (uint16_t)port);
    *to_length = sizeof(*to);
    return evutil_parse_sockaddr_port(text, (struct sockaddr *)to, to_length) == 0;
}

/* Puts it in place of what has its key. The metadata owns it then. */
static void put_entry(struct mc_metadata_store *metadata, struct evhttp_request *request, struct value_entry *entry)
{
    struct mc_buffer key = {.data = (uint8_t *)entry->bytes, .length = entry->key_length};
    struct value_entry **link = entry_find(metadata, &key, entry->hash);
    size_t freed = *link == NULL ? 0 : cost((*link)->key_length, (*link)->value_length);
    size_t needed = cost(entry->key_length, entry->value_length);
    if (metadata->total - freed + needed > metadata->most) {
        free(entry);
        mc_http_reply_text(request, 507, MC_HTTP_TEXT,
                           "The metadata server is full; delete keys that are not needed, or let it have more memory "
                           "(http_metadata_server_max_mib).");
        return;
    }
    if (*link != NULL)
        drop(metadata, link);
    link = entry_find(metadata, &key, entry->hash);
    entry->next = NULL;
    *link = entry;
    metadata->count++;
    metadata->total += needed;
    grow(metadata);
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, "metadata updated");
}

static bool has_value(const struct value_entry *entry, const char *value, size_t length)
{
    return entry->value_length == length && memcmp(entry->bytes + entry->key_length, value, length) == 0;
}

static void on_looked(struct bufferevent *socket, short events, void *argument)
{
    struct address_look *look = argument;
    struct mc_metadata_store *metadata = look->metadata;
    struct value_entry *entry = look->entry;
    struct mc_buffer key = {.data = (uint8_t *)entry->bytes, .length = entry->key_length};
    const struct value_entry *old = *entry_find(metadata, &key, entry->hash);
    const char *old_value = entry->bytes + entry->key_length + entry->value_length;
    (void)socket;
    bool is_our_trouble = (events & BEV_EVENT_ERROR) != 0 && errno != ECONNREFUSED && errno != EHOSTUNREACH;
    /* Whoever has written it meanwhile is there. */
    bool is_changed = old != NULL && !has_value(old, old_value, look->old_length);
    if ((events & BEV_EVENT_CONNECTED) != 0 || is_our_trouble || is_changed) {
        mc_http_reply_text(look->request, 400, MC_HTTP_TEXT, "Duplicate rpc_meta key not allowed");
    } else {
        mc_log(INFO, "the metadata of an engine at %s is replaced: nobody is there", look->address);
        put_entry(metadata, look->request, entry);
        look->entry = NULL;
    }
    look_end(look);
}

/* This host itself, in whatever way it is written. */
static bool is_inward(const struct sockaddr *address)
{
    struct in_addr four = {0};
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        if (!IN6_IS_ADDR_V4MAPPED(six))
            return IN6_IS_ADDR_LOOPBACK(six) || IN6_IS_ADDR_UNSPECIFIED(six);
        memcpy(&four, &six->s6_addr[12], sizeof(four));
    } else {
        four = ((const struct sockaddr_in *)(const void *)address)->sin_addr;
    }
    return ntohl(four.s_addr) >> 24 == 127 || four.s_addr == 0;
}

/* Whoever stores an address has us connect there. Nothing is sent, and the answer says whether somebody listens: so not
 * at this host for others, and few at a time for each. */
static bool may_look(const struct mc_metadata_store *metadata, int asker_fd, uint64_t asker, const struct sockaddr *to)
{
    struct sockaddr_storage from;
    socklen_t length = sizeof(from);
    unsigned count = 0;
    for (const struct address_look *look = metadata->looks; look != NULL; look = look->next)
        count += look->asker == asker;
    return count < LOOKS_OF_ONE && (!is_inward(to) || (getpeername(asker_fd, (struct sockaddr *)&from, &length) == 0 &&
                                                       is_inward((struct sockaddr *)&from)));
}

/* The request is answered once it is known whether anybody takes connections at the old entry's address; a process that
 * is stopped still does. False: that cannot be found out, so the old entry stays. entry has room for the old value. */
static bool look_begin(struct mc_metadata_store *metadata, struct evhttp_request *request,
                       const struct value_entry *old, struct value_entry *entry)
{
    static const struct timeval patience = {LOOK_MS / 1000, LOOK_MS % 1000 * 1000};
    struct sockaddr_storage to;
    int to_length;
    struct address_look *look = metadata->look_count < LOOKS_MAX ? calloc(1, sizeof(*look)) : NULL;
    if (look == NULL)
        return false;
    int asker_fd = (int)bufferevent_getfd(evhttp_connection_get_bufferevent(evhttp_request_get_connection(request)));
    look->asker = mc_socket_peer_key(asker_fd);
    look->socket = read_address(old, &to, &to_length, look->address, sizeof(look->address)) &&
                           may_look(metadata, asker_fd, look->asker, (struct sockaddr *)&to)
                       ? bufferevent_socket_new(metadata->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS)
                       : NULL;
    if (look->socket == NULL) {
        free(look);
        return false;
    }
    memcpy(entry->bytes + entry->key_length + entry->value_length, old->bytes + old->key_length, old->value_length);
    look->metadata = metadata;
    look->request = request;
    look->entry = entry;
    look->old_length = old->value_length;
    look->next = metadata->looks;
    look->at = &metadata->looks;
    if (look->next != NULL)
        look->next->at = &look->next;
    metadata->looks = look;
    metadata->look_count++;
    bufferevent_setcb(look->socket, NULL, NULL, on_looked, look);
    bufferevent_set_timeouts(look->socket, NULL, &patience); /* of the connection's beginning, too */
    if (bufferevent_socket_connect(look->socket, (struct sockaddr *)&to, to_length) == 0)
        return true; /* whoever refuses is told to on_looked as well */
    look->entry = NULL;
    look_end(look);
    return false;
}

static void store(struct mc_metadata_store *metadata, struct evhttp_request *request, const struct mc_buffer *key,
                  struct evbuffer *body)
{
    size_t length = evbuffer_get_length(body);
    uint64_t hash = mc_hash(key->data, key->length).low;
    const struct value_entry *old = *entry_find(metadata, key, hash);
    size_t room = old != NULL && is_protected(key) ? old->value_length : 0;
    struct value_entry *entry = malloc(sizeof(*entry) + key->length + length + room);
    if (entry == NULL) {
        mc_http_reply_text(request, 507, MC_HTTP_TEXT, "The metadata server is out of memory.");
        return;
    }
    entry->hash = hash;
    entry->key_length = key->length;
    entry->value_length = length;
    memcpy(entry->bytes, key->data, key->length);
    mc_assert(evbuffer_copyout(body, entry->bytes + key->length, length) == (ev_ssize_t)length);
    if (old == NULL || !is_protected(key)) {
        put_entry(metadata, request, entry);
        return;
    }
    bool is_same = has_value(old, entry->bytes + key->length, length);
    if (!is_same && look_begin(metadata, request, old, entry))
        return;
    free(entry);
    mc_http_reply_text(request, is_same ? 200 : 400, MC_HTTP_TEXT,
                       is_same ? "metadata unchanged" : "Duplicate rpc_meta key not allowed");
}

static void put_metadata(void *context, struct evhttp_request *request)
{
    struct mc_buffer key = {.may_fail = true};
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
    struct mc_metadata_store *metadata = context;
    struct mc_buffer key = {.may_fail = true};
    if (!take_key(request, &key))
        return;
    struct value_entry **link = entry_find(metadata, &key, mc_hash(key.data, key.length).low);
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
    {EVHTTP_REQ_GET, "/metadata", get_metadata, MC_RIGHT_READ, false},
    {EVHTTP_REQ_PUT, "/metadata", put_metadata, MC_RIGHT_NODE, false},
    {EVHTTP_REQ_DELETE, "/metadata", delete_metadata, MC_RIGHT_NODE, false},
    {EVHTTP_REQ_GET, "/health", get_health, 0, true},
};

void mc_metadata_handle(struct evhttp_request *request, void *metadata)
{
    mc_http_dispatch(routes, sizeof(routes) / sizeof(routes[0]), metadata, request);
}
