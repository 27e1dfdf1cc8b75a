/* The HTTP metadata server: a small key-value store in memory that transfer engines use to find each other. Requests
 * run on many threads.
 *
 * Whose address stands in a document gets what its engine's peers send. So without keys a caller from afar changes no
 * document but those that its own address has written, unless MC_PROTECTED_MODE says that everybody may. */
#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/master/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
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
    struct in6_addr writer; /* who wrote it last, an address of IPv4 as IPv6 maps it; zeros: that could not be told */
    char bytes[];           /* key, value */
};

struct address_look { /* somebody asks whether anybody is at the address of an entry that shall be replaced */
    struct address_look *next;
    uint64_t asker; /* by its address */
};

struct mc_metadata_store {
    size_t most;          /* constant */
    pthread_mutex_t lock; /* of what follows; nothing is waited for under it */
    struct value_entry **buckets;
    size_t bucket_count; /* a power of two */
    size_t count, total; /* total: bytes of all entries with their overhead */
    struct address_look *looks;
    unsigned look_count;
};

struct mc_metadata_store *mc_metadata_create(size_t most)
{
    struct mc_metadata_store *metadata = calloc(1, sizeof(*metadata));
    if (metadata == NULL)
        return NULL;
    metadata->most = most;
    metadata->bucket_count = BUCKETS_MIN;
    metadata->buckets = calloc(BUCKETS_MIN, sizeof(metadata->buckets[0]));
    if (metadata->buckets == NULL) {
        free(metadata);
        return NULL;
    }
    pthread_mutex_init(&metadata->lock, NULL);
    return metadata;
}

void mc_metadata_destroy(struct mc_metadata_store *metadata)
{
    if (metadata == NULL)
        return;
    for (size_t i = 0; i < metadata->bucket_count; i++) {
        for (struct value_entry *entry = metadata->buckets[i], *next; entry != NULL; entry = next) {
            next = entry->next;
            free(entry);
        }
    }
    pthread_mutex_destroy(&metadata->lock);
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
static bool take_key(struct mc_web_request *request, struct mc_buffer *key)
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

static void get_metadata(void *context, struct mc_web_request *request)
{
    struct mc_metadata_store *metadata = context;
    struct mc_buffer key = {.may_fail = true}, value = {.may_fail = true};
    if (!take_key(request, &key))
        return;
    pthread_mutex_lock(&metadata->lock);
    const struct value_entry *entry = *entry_find(metadata, &key, mc_hash(key.data, key.length).low);
    if (entry != NULL)
        mc_buffer_append(&value, entry->bytes + entry->key_length, entry->value_length);
    pthread_mutex_unlock(&metadata->lock);
    mc_buffer_free(&key);
    if (entry == NULL)
        mc_http_reply_text(request, 404, MC_HTTP_TEXT, "metadata not found");
    else
        mc_http_reply(request, 200, MC_HTTP_JSON, &value);
}

/* The address of an engine that is in use must not be taken over by another one of the same name. */
static bool is_protected(const struct mc_buffer *key)
{
    return memmem(key->data, key->length, "rpc_meta", 8) != NULL;
}

/* The address that stands in a document, when it is a number: names would have to be looked up, so they are believed.
 * False: there is none. */
static bool read_address(struct mc_span document, struct mc_tcp_address *to, char text[MC_ADDRESS_MAX])
{
    char host[INET6_ADDRSTRLEN];
    struct mc_span value;
    uint64_t port = 0;
    if (mc_json_find(document, "ip_or_host_name", &value) != 1 || value.length >= sizeof(host) ||
        mc_json_find_number(document, "rpc_port", &port) != 1 || port < LOOK_PORT_MIN || port > UINT16_MAX)
        return false;
    memcpy(host, value.data, value.length);
    host[value.length] = 0;
    mc_address_join(text, MC_ADDRESS_MAX, host, (uint16_t)port);
    memset(to, 0, sizeof(*to));
    if (inet_pton(AF_INET, host, &to->address.v4.sin_addr) == 1) {
        to->address.v4.sin_family = AF_INET;
        to->address.v4.sin_port = htons((uint16_t)port);
        to->length = sizeof(to->address.v4);
        return true;
    }
    to->address.v6.sin6_family = AF_INET6;
    to->address.v6.sin6_port = htons((uint16_t)port);
    to->length = sizeof(to->address.v6);
    return inet_pton(AF_INET6, host, &to->address.v6.sin6_addr) == 1;
}

/* With the lock. Puts it in place of what has its key; the metadata owns it then. False: there is no room. */
static bool put_entry(struct mc_metadata_store *metadata, struct value_entry *entry)
{
    struct mc_buffer key = {.data = (uint8_t *)entry->bytes, .length = entry->key_length};
    struct value_entry **link = entry_find(metadata, &key, entry->hash);
    size_t freed = *link == NULL ? 0 : cost((*link)->key_length, (*link)->value_length);
    size_t needed = cost(entry->key_length, entry->value_length);
    if (metadata->total - freed + needed > metadata->most)
        return false;
    if (*link != NULL)
        drop(metadata, link);
    link = entry_find(metadata, &key, entry->hash);
    entry->next = NULL;
    *link = entry;
    metadata->count++;
    metadata->total += needed;
    grow(metadata);
    return true;
}

static bool has_value(const struct value_entry *entry, const void *value, size_t length)
{
    return entry->value_length == length &&
           (length == 0 || memcmp(entry->bytes + entry->key_length, value, length) == 0);
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

/* With the lock. Whoever stores an address has us connect there. Nothing is sent, and the answer says whether somebody
 * listens: so not at this host for others, and few at a time for each. */
static bool may_look(const struct mc_metadata_store *metadata, int asker_fd, uint64_t asker, const struct sockaddr *to)
{
    struct sockaddr_storage from;
    socklen_t length = sizeof(from);
    unsigned count = 0;
    for (const struct address_look *look = metadata->looks; look != NULL; look = look->next)
        count += look->asker == asker;
    return metadata->look_count < LOOKS_MAX && count < LOOKS_OF_ONE &&
           (!is_inward(to) ||
            (getpeername(asker_fd, (struct sockaddr *)&from, &length) == 0 && is_inward((struct sockaddr *)&from)));
}

/* Waits. Does nobody take connections there, as far as can be found out? A process that is stopped still does. */
static bool is_nobody_there(const struct mc_tcp_address *to)
{
    int problem = 0, fd = mc_tcp_begin(to);
    socklen_t size = sizeof(problem);
    if (fd < 0)
        return fd == MC_ERR_RPC_FAIL; /* it is refused at once */
    bool is_silent = mc_socket_wait_write(fd, mc_clock_ns() + LOOK_MS * UINT64_C(1000000)) == MC_ERR_RPC_TIMEOUT;
    (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size);
    close(fd);
    return is_silent || problem == ECONNREFUSED || problem == EHOSTUNREACH;
}

/* With the lock, which is given up meanwhile. Is nobody at the address in that document any more? text: the address. */
static bool is_gone(struct mc_metadata_store *metadata, const struct mc_web_request *request, struct mc_span document,
                    char text[MC_ADDRESS_MAX])
{
    int fd = mc_web_descriptor(request);
    struct mc_tcp_address to;
    struct address_look look = {metadata->looks, mc_socket_peer_key(fd)}, **link = &metadata->looks;
    if (!read_address(document, &to, text) || !may_look(metadata, fd, look.asker, &to.address.any))
        return false;
    metadata->looks = &look;
    metadata->look_count++;
    pthread_mutex_unlock(&metadata->lock);
    bool is_nobody = is_nobody_there(&to);
    pthread_mutex_lock(&metadata->lock);
    while (*link != &look)
        link = &(*link)->next;
    *link = look.next;
    metadata->look_count--;
    return is_nobody;
}

/* With the lock, which may be given up meanwhile. May another value stand there instead? */
static bool may_replace(struct mc_metadata_store *metadata, const struct mc_web_request *request,
                        const struct mc_buffer *key, uint64_t hash)
{
    char address[MC_ADDRESS_MAX];
    const struct value_entry *old = *entry_find(metadata, key, hash);
    struct mc_buffer value = {.may_fail = true};
    mc_buffer_append(&value, old->bytes + old->key_length, old->value_length);
    bool may = !value.failed && is_gone(metadata, request, mc_span(value.data, value.length), address);
    old = *entry_find(metadata, key, hash);
    if (may && old != NULL && !has_value(old, value.data, value.length))
        may = false; /* whoever has written it meanwhile is there */
    if (may)
        mc_log(INFO, "the metadata of an engine at %s is replaced: nobody is there", address);
    mc_buffer_free(&value);
    return may;
}

static struct in6_addr writer_of(const struct mc_web_request *request)
{
    struct mc_tcp_address peer;
    struct in6_addr writer = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    if (!mc_tcp_peer(mc_web_descriptor(request), &peer))
        return (struct in6_addr){.s6_addr = {0}};
    if (peer.address.any.sa_family == AF_INET6)
        return peer.address.v6.sin6_addr;
    memcpy(&writer.s6_addr[12], &peer.address.v4.sin_addr, sizeof(peer.address.v4.sin_addr));
    return writer;
}

/* With the lock. May who asks change what stands there, or take it away? */
static bool may_change(const struct mc_web_request *request, const struct value_entry *entry)
{
    struct in6_addr writer = writer_of(request);
    if (mc_keys_stranger_status(MC_RIGHT_ADMIN, mc_socket_peer_is_near(mc_web_descriptor(request))) == 0)
        return true;
    return !IN6_IS_ADDR_UNSPECIFIED(&writer) && memcmp(&writer, &entry->writer, sizeof(writer)) == 0;
}

static void reply_foreign(struct mc_web_request *request)
{
    char caller[MC_ADDRESS_MAX];
    mc_socket_peer_text(mc_web_descriptor(request), caller);
    mc_log_limited(WARNING, "%s may not change a document that another address has written (no keys: docs/security.md)",
                   caller);
    mc_http_reply_text(request, 403, MC_HTTP_TEXT,
                       "Another address has written this. Without keys it is changed only from there, from this "
                       "machine and from private networks: start this server with --auth_file, or with "
                       "MC_PROTECTED_MODE=no if everybody who reaches this port may.\n");
}

enum stored { STORED_UPDATED, STORED_UNCHANGED, STORED_DUPLICATE, STORED_FULL, STORED_FOREIGN };

/* The metadata owns the entry then, or it is freed. */
static enum stored store(struct mc_metadata_store *metadata, const struct mc_web_request *request,
                         const struct mc_buffer *key, struct value_entry *entry)
{
    enum stored result = STORED_UPDATED;
    pthread_mutex_lock(&metadata->lock);
    const struct value_entry *old = *entry_find(metadata, key, entry->hash);
    if (old != NULL && !may_change(request, old)) {
        result = STORED_FOREIGN;
    } else if (old != NULL && is_protected(key)) {
        if (has_value(old, entry->bytes + entry->key_length, entry->value_length))
            result = STORED_UNCHANGED;
        else if (!may_replace(metadata, request, key, entry->hash))
            result = STORED_DUPLICATE;
        old = *entry_find(metadata, key, entry->hash); /* another one may have written it meanwhile */
        if (result == STORED_UPDATED && old != NULL && !may_change(request, old))
            result = STORED_FOREIGN;
    }
    if (result == STORED_UPDATED && !put_entry(metadata, entry))
        result = STORED_FULL;
    pthread_mutex_unlock(&metadata->lock);
    if (result != STORED_UPDATED)
        free(entry);
    return result;
}

/* NULL: no memory. */
static struct value_entry *entry_make(const struct mc_web_request *request, const struct mc_buffer *key,
                                      const struct mc_web_bytes *value)
{
    struct value_entry *entry = malloc(sizeof(*entry) + key->length + value->length);
    if (entry == NULL)
        return NULL;
    entry->hash = mc_hash(key->data, key->length).low;
    entry->key_length = key->length;
    entry->value_length = value->length;
    entry->writer = writer_of(request);
    memcpy(entry->bytes, key->data, key->length);
    memcpy(entry->bytes + key->length, value->data, value->length);
    return entry;
}

static void put_metadata(void *context, struct mc_web_request *request)
{
    static const struct {
        int code;
        const char *text;
    } replies[] = {
        [STORED_UPDATED] = {200, "metadata updated"},
        [STORED_UNCHANGED] = {200, "metadata unchanged"},
        [STORED_DUPLICATE] = {400, "Duplicate rpc_meta key not allowed"},
        [STORED_FULL] = {507, "The metadata server is full; delete keys that are not needed, or let it have more "
                              "memory (http_metadata_server_max_mib)."},
    };
    struct mc_buffer key = {.may_fail = true};
    struct mc_web_bytes body;
    if (!take_key(request, &key))
        return;
    if (!mc_http_body(request, &body)) {
        mc_buffer_free(&key);
        return;
    }
    bool is_long = body.length > METADATA_VALUE_MAX;
    struct value_entry *entry = is_long ? NULL : entry_make(request, &key, &body);
    mc_web_bytes_free(request, &body);
    enum stored result = entry == NULL ? STORED_FULL : store(context, request, &key, entry);
    mc_buffer_free(&key);
    if (is_long)
        mc_http_reply_text(request, 413, MC_HTTP_TEXT, "The value is longer than 1 MiB.");
    else if (entry == NULL)
        mc_http_reply_text(request, 507, MC_HTTP_TEXT, "The metadata server is out of memory.");
    else if (result == STORED_FOREIGN)
        reply_foreign(request);
    else
        mc_http_reply_text(request, replies[result].code, MC_HTTP_TEXT, replies[result].text);
}

static void delete_metadata(void *context, struct mc_web_request *request)
{
    struct mc_metadata_store *metadata = context;
    struct mc_buffer key = {.may_fail = true};
    if (!take_key(request, &key))
        return;
    pthread_mutex_lock(&metadata->lock);
    struct value_entry **link = entry_find(metadata, &key, mc_hash(key.data, key.length).low);
    bool is_there = *link != NULL, is_foreign = is_there && !may_change(request, *link);
    if (is_there && !is_foreign)
        drop(metadata, link);
    pthread_mutex_unlock(&metadata->lock);
    mc_buffer_free(&key);
    if (is_foreign)
        reply_foreign(request);
    else if (is_there)
        mc_http_reply_text(request, 200, MC_HTTP_TEXT, "metadata deleted");
    else
        mc_http_reply_text(request, 404, MC_HTTP_TEXT, "metadata not found");
}

static void get_health(void *context, struct mc_web_request *request)
{
    (void)context;
    mc_http_reply_text(request, 200, MC_HTTP_TEXT, "OK");
}

static const struct mc_http_route routes[] = {
    {"GET", "/metadata", get_metadata, MC_RIGHT_READ, false},
    {"PUT", "/metadata", put_metadata, MC_RIGHT_NODE, false},
    {"DELETE", "/metadata", delete_metadata, MC_RIGHT_NODE, false},
    {"GET", "/health", get_health, 0, true},
};

void mc_metadata_handle(void *metadata, struct mc_web_request *request)
{
    mc_http_dispatch(routes, sizeof(routes) / sizeof(routes[0]), metadata, request);
}

bool mc_metadata_is_quick(void *metadata, struct mc_span path)
{
    (void)metadata;
    return mc_span_equal(path, mc_span_string("/health"));
}
