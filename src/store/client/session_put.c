/* Put sessions: objects put together in memory of our own. */
#include "env/clock.h"
#include "store/client/state.h"

#include <stdlib.h>
#include <string.h>

#define SESSION_PUT_IDLE_MS 600000u /* a put session that nobody uses for so long is over, when its memory is wanted */
#define SESSION_PUT_BYTES_MAX (UINT64_C(16) << 30) /* of all put sessions of a store together */

struct options { /* a copy of the configuration of one start, shared by its keys */
    size_t users;
    struct mc_replicate_config config;
    char *text; /* of the names */
    const char *names[MC_REPLICA_COUNT_MAX];
};

struct mc_put_session {
    struct mc_put_session *next;
    struct mc_hash hash;
    struct options *options;
    uint8_t *data; /* zeroed at first: what no range covers is zero */
    uint64_t size, group, used_ms;
    unsigned users; /* copies into it under way */
    size_t key_length;
    char key[];
};

static void options_release(struct options *options)
{
    if (--options->users > 0)
        return;
    free(options->text);
    free(options);
}

static struct options *options_make(const struct mc_replicate_config *config)
{
    struct options *options = calloc(1, sizeof(*options));
    size_t bytes = 1, used = 0;
    if (options == NULL)
        return NULL;
    options->users = 1;
    if (config == NULL)
        return options;
    options->config = *config;
    options->config.groups = NULL; /* each session has its own */
    uint32_t count =
        config->preferred_segment_count < MC_REPLICA_COUNT_MAX ? config->preferred_segment_count : MC_REPLICA_COUNT_MAX;
    for (uint32_t i = 0; i < count; i++)
        bytes += strlen(config->preferred_segments[i]) + 1;
    options->text = malloc(bytes);
    if (options->text == NULL) {
        options_release(options);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t length = strlen(config->preferred_segments[i]) + 1;
        options->names[i] = memcpy(options->text + used, config->preferred_segments[i], length);
        used += length;
    }
    options->config.preferred_segment_count = count;
    options->config.preferred_segments = options->names;
    return options;
}

static struct mc_put_session **put_session_find(struct mc_sessions *sessions, struct mc_bytes key)
{
    struct mc_hash hash = mc_hash(key.data, key.length);
    struct mc_put_session **at = &sessions->puts[hash.low % MC_SESSION_BUCKETS];
    while (*at != NULL && !mc_session_is_of((*at)->hash, hash))
        at = &(*at)->next;
    return at;
}

/* Its data may be gigabytes, which the kernel takes long to take back: better without a lock that others wait for. */
static void memory_free(struct mc_put_session *session)
{
    free(session->data);
    free(session);
}

static void session_free(struct mc_put_session *session)
{
    options_release(session->options);
    memory_free(session);
}

/* Out of the table; then nobody finds it any more. Lock held. */
static struct mc_put_session *put_session_detach(struct mc_sessions *sessions, struct mc_put_session **at)
{
    struct mc_put_session *session = *at;
    *at = session->next;
    sessions->put_count--;
    sessions->put_bytes -= session->size;
    return session;
}

/* Ends what was left alone, so that memory that somebody has forgotten is there for others. Lock held. */
static void drop_idle(struct mc_sessions *sessions)
{
    uint64_t now_ms = mc_clock_ms();
    for (size_t i = 0; i < MC_SESSION_BUCKETS; i++) {
        for (struct mc_put_session **at = &sessions->puts[i]; *at != NULL;) {
            if ((*at)->users == 0 && now_ms - (*at)->used_ms >= SESSION_PUT_IDLE_MS)
                session_free(put_session_detach(sessions, at));
            else
                at = &(*at)->next;
        }
    }
}

/* Lock held. */
static int start_one(struct mc_sessions *sessions, struct mc_bytes key, uint64_t size, uint64_t group,
                     struct options *options)
{
    if (*put_session_find(sessions, key) != NULL)
        return MC_ERR_INVALID_PARAMS;
    if (sessions->put_count >= MC_SESSION_KEYS_MAX || size > SESSION_PUT_BYTES_MAX - sessions->put_bytes)
        drop_idle(sessions);
    if (sessions->put_count >= MC_SESSION_KEYS_MAX)
        return MC_ERR_BUSY;
    if (size > SESSION_PUT_BYTES_MAX - sessions->put_bytes)
        return MC_ERR_NO_AVAILABLE_HANDLE;
    struct mc_put_session *session = malloc(sizeof(*session) + key.length);
    uint8_t *data = session == NULL ? NULL : calloc(1, size);
    if (data == NULL) {
        free(session);
        return MC_ERR_NO_AVAILABLE_HANDLE;
    }
    struct mc_put_session **at = put_session_find(sessions, key);
    *session = (struct mc_put_session){.next = NULL,
                                       .hash = mc_hash(key.data, key.length),
                                       .options = options,
                                       .data = data,
                                       .size = size,
                                       .group = group,
                                       .used_ms = mc_clock_ms(),
                                       .key_length = key.length};
    memcpy(session->key, key.data, key.length);
    options->users++;
    *at = session;
    sessions->put_count++;
    sessions->put_bytes += size;
    return 0;
}

static int enter(struct mc_store *store, int *results, size_t count)
{
    int rc = mc_store_enter(store);
    if (rc == 0 && store->local_buffer_size == 0) {
        mc_store_leave(store);
        rc = MC_ERR_INVALID_PARAMS;
    }
    for (size_t i = 0; rc < 0 && i < count; i++)
        results[i] = rc;
    return rc;
}

int mc_store_put_session_start(struct mc_store *store, const struct mc_bytes *keys, const uint64_t *sizes, size_t count,
                               const struct mc_replicate_config *config, int *results)
{
    int rc = enter(store, results, count), first = 0;
    if (rc < 0)
        return rc;
    struct mc_sessions *sessions = &store->sessions;
    struct options *options = options_make(config);
    /* What is there already is told now, before anything is copied. */
    (void)mc_store_exist(store, keys, count, results);
    pthread_mutex_lock(&sessions->lock);
    if (sessions->puts == NULL)
        sessions->puts = calloc(MC_SESSION_BUCKETS, sizeof(struct mc_put_session *));
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] == 0)
            results[i] = MC_ERR_INVALID_PARAMS;
        else if (results[i] > 0)
            results[i] = MC_ERR_OBJECT_ALREADY_EXISTS;
        else if (results[i] == 0)
            results[i] = sessions->puts == NULL || options == NULL
                             ? MC_ERR_NO_MEMORY
                             : start_one(sessions, keys[i], sizes[i],
                                         config == NULL || config->groups == NULL ? 0 : config->groups[i], options);
        first = first < 0 ? first : results[i];
    }
    if (options != NULL)
        options_release(options);
    pthread_mutex_unlock(&sessions->lock);
    mc_store_leave(store);
    return first;
}

/* False: a device's memory that cannot be read. */
static bool copy_in(uint8_t *to, const void *from, size_t size)
{
    if (size == 0) /* then it may be nowhere */
        return true;
    if (mc_gpu_is_there())
        return mc_gpu_copy(to, from, size) == 0;
    memcpy(to, from, size);
    return true;
}

static int64_t copy_range(struct mc_sessions *sessions, const struct mc_put_range_item *item)
{
    if (mc_key_check(item->key) < 0 || (item->source == NULL && item->size > 0))
        return MC_ERR_INVALID_PARAMS;
    pthread_mutex_lock(&sessions->lock);
    struct mc_put_session *session = sessions->puts == NULL ? NULL : *put_session_find(sessions, item->key);
    bool fits =
        session != NULL && item->target_offset <= session->size && item->size <= session->size - item->target_offset;
    if (fits) {
        session->users++;
        session->used_ms = mc_clock_ms();
    }
    pthread_mutex_unlock(&sessions->lock);
    if (!fits)
        return MC_ERR_INVALID_PARAMS;
    bool is_copied = copy_in(session->data + item->target_offset, item->source, (size_t)item->size);
    pthread_mutex_lock(&sessions->lock);
    if (--session->users == 0)
        pthread_cond_broadcast(&sessions->quiet);
    pthread_mutex_unlock(&sessions->lock);
    return is_copied ? (int64_t)item->size : MC_ERR_INVALID_PARAMS;
}

int mc_store_put_session_ranges(struct mc_store *store, struct mc_put_range_item *items, size_t count)
{
    int rc = mc_store_enter(store), first = 0;
    for (size_t i = 0; i < count; i++) {
        items[i].result = rc < 0 ? rc : copy_range(&store->sessions, &items[i]);
        first = first < 0 || items[i].result >= 0 ? first : (int)items[i].result;
    }
    if (rc == 0)
        mc_store_leave(store);
    return first;
}

/* The key's session, which is now ours alone; NULL when there is none. */
static struct mc_put_session *claim(struct mc_sessions *sessions, struct mc_bytes key)
{
    struct mc_put_session *session = NULL;
    if (mc_key_check(key) < 0)
        return NULL;
    pthread_mutex_lock(&sessions->lock);
    struct mc_put_session **at = sessions->puts == NULL ? NULL : put_session_find(sessions, key);
    if (at != NULL && *at != NULL)
        session = put_session_detach(sessions, at);
    while (session != NULL && session->users > 0) /* copies: they end by themselves */
        pthread_cond_wait(&sessions->quiet, &sessions->lock);
    pthread_mutex_unlock(&sessions->lock);
    return session;
}

/* Puts those that were started together in one call. */
static void put_claimed(struct mc_store *store, struct mc_put_session **claimed, size_t count,
                        struct mc_put_item *items, struct iovec *parts, uint64_t *groups, int *results)
{
    for (size_t at = 0, next; at < count; at = next) {
        next = at + 1;
        size_t item_count = 0;
        if (claimed[at] == NULL) {
            results[at] = MC_ERR_INVALID_PARAMS;
            continue;
        }
        for (next = at; next < count && claimed[next] != NULL && claimed[next]->options == claimed[at]->options;
             next++) {
            const struct mc_put_session *session = claimed[next];
            parts[item_count] = (struct iovec){session->data, session->size};
            groups[item_count] = session->group;
            items[item_count] = (struct mc_put_item){
                .key = {session->key, session->key_length}, .parts = &parts[item_count], .part_count = 1};
            item_count++;
        }
        struct mc_replicate_config config = claimed[at]->options->config;
        config.groups = groups;
        (void)mc_store_put(store, items, item_count, &config); /* each item has its result */
        for (size_t i = 0; i < item_count; i++)
            results[at + i] = items[i].result;
    }
}

static int end_all(struct mc_store *store, const struct mc_bytes *keys, size_t count, bool put, int *results)
{
    int rc = enter(store, results, count), first = 0;
    if (rc < 0)
        return rc;
    struct mc_put_session **claimed = calloc(count + 1, sizeof(struct mc_put_session *));
    struct mc_put_item *items = calloc(count + 1, sizeof(*items));
    struct iovec *parts = calloc(count + 1, sizeof(*parts));
    uint64_t *groups = calloc(count + 1, sizeof(*groups));
    bool whole = claimed != NULL && items != NULL && parts != NULL && groups != NULL;
    for (size_t i = 0; i < count; i++) {
        if (whole)
            claimed[i] = claim(&store->sessions, keys[i]);
        results[i] = !whole ? MC_ERR_NO_MEMORY : claimed[i] == NULL ? MC_ERR_INVALID_PARAMS : 0;
    }
    if (whole && put)
        put_claimed(store, claimed, count, items, parts, groups, results);
    pthread_mutex_lock(&store->sessions.lock); /* options are shared with sessions that go on */
    for (size_t i = 0; whole && i < count; i++)
        if (claimed[i] != NULL)
            options_release(claimed[i]->options);
    pthread_mutex_unlock(&store->sessions.lock);
    for (size_t i = 0; whole && i < count; i++)
        if (claimed[i] != NULL)
            memory_free(claimed[i]);
    for (size_t i = 0; i < count; i++)
        first = first < 0 ? first : results[i];
    free(groups);
    free(parts);
    free(items);
    free(claimed);
    mc_store_leave(store);
    return first;
}

int mc_store_put_session_end(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results)
{
    return end_all(store, keys, count, true, results);
}

int mc_store_put_session_revoke(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results)
{
    return end_all(store, keys, count, false, results);
}

void mc_put_sessions_free(struct mc_sessions *sessions)
{
    for (size_t i = 0; sessions->puts != NULL && i < MC_SESSION_BUCKETS; i++) {
        while (sessions->puts[i] != NULL)
            session_free(put_session_detach(sessions, &sessions->puts[i]));
    }
    free(sessions->puts);
}
