/* Name and document of an engine at the metadata server. */
#include "transfer/serve/publish.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/resolve.h"
#include "transfer/peer/ask.h"
#include "transfer/serve/memory.h"
#include "transfer/wire/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PUBLISH_SHARE 10u /* so many times what the last document took is left before the next, within ... */
#define PUBLISH_PAUSE_MIN_MS 20u
#define PUBLISH_PAUSE_MAX_MS 200u
#define OFTEN_LOOKS 7u           /* are at the document, too: who is replaced notices by his next */
#define RARE_LOOKS 12u           /* then one in so many */
#define LOOK_NS 2000000000ull    /* to connect to who has our name ... */
#define ANSWER_NS 10000000000ull /* ... and for his word */
#define DOUBTS_ENOUGH 120u       /* of looks in a row that find nobody of that name: he has ended */
#define DOUBT_OF_WAY 10u         /* so much is one that finds no way, */
#define DOUBT_OF_NAME 1u         /* and one that finds no host: a name may be known late, or elsewhere */
#define TAKEN_MS 600000u         /* from one address it is taken once in so long */

/* What had no answer has its line in the log already. */
static int taken(struct mc_transfer_engine *engine, const char *key, int rc)
{
    if (rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE)
        mc_log(ERROR, "the metadata server at %s%s refuses %s", engine->metadata.kind->scheme, engine->metadata.server,
               key);
    return rc < 0 ? MC_TRANSFER_ERR_METADATA : 0;
}

static int publish_name(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    mc_rpc_meta_write(&value, engine->host, engine->rpc_port);
    struct mc_span text = mc_span(value.data, value.length);
    int rc = mc_metadata_put(&engine->metadata, key, text);
    if (rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE) {
        /* A process that ended without taking its entry back: servers refuse to overwrite one. */
        mc_log(INFO, "replacing what an earlier process has left at the metadata server under %s", key);
        rc = mc_metadata_remove(&engine->metadata, key);
        if (rc == 0)
            rc = mc_metadata_put(&engine->metadata, key, text);
    }
    mc_buffer_free(&value);
    return taken(engine, key, rc);
}

static uint64_t pause_of(uint64_t took_ns)
{
    uint64_t pause_ns = took_ns * PUBLISH_SHARE;
    pause_ns = pause_ns < PUBLISH_PAUSE_MIN_MS * 1000000ull ? PUBLISH_PAUSE_MIN_MS * 1000000ull : pause_ns;
    return pause_ns > PUBLISH_PAUSE_MAX_MS * 1000000ull ? PUBLISH_PAUSE_MAX_MS * 1000000ull : pause_ns;
}

/* The publish lock is held, so that an older document cannot overtake a newer one. */
static int publish_document(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    uint64_t start_ns = mc_clock_ns();
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->lock);
    engine->is_publishing_due = false; /* before the text is made: what changes from here on is due again */
    pthread_mutex_unlock(&engine->lock);
    uint64_t version = mc_transfer_document(engine, &value);
    int rc = mc_metadata_put(&engine->metadata, key, mc_span(value.data, value.length));
    mc_buffer_free(&value);
    if (rc == 0)
        engine->published_version = version;
    uint64_t end_ns = mc_clock_ns();
    pthread_mutex_lock(&engine->lock);
    engine->publishing_calm_ns = rc < 0 ? 0 : end_ns + pause_of(end_ns - start_ns);
    pthread_mutex_unlock(&engine->lock);
    return taken(engine, key, rc);
}

/* Whoever had the name before may have written over our document before he noticed; it is looked at while he may, and
 * now and then later. The publish lock is held. */
static void look_at_document(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX];
    struct mc_buffer value = {0};
    struct mc_document document = {0};
    uint32_t turn = engine->looks++;
    if (turn >= OFTEN_LOOKS && turn % RARE_LOOKS != 0)
        return;
    mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    int rc = mc_metadata_try(&engine->metadata, key, UINT64_MAX, &value);
    bool is_ours = rc == 1 && mc_document_read(mc_span(value.data, value.length), &document) == 0 &&
                   mc_id_equal(document.id, engine->id);
    mc_document_free(&document);
    mc_buffer_free(&value);
    if (rc >= 0 && !is_ours && publish_document(engine) == 0)
        mc_log(WARNING, "another engine had written over the document of %s; it stands there again", engine->name);
}

int mc_transfer_publish(struct mc_transfer_engine *engine)
{
    if (engine->metadata.is_p2p)
        return 0;
    pthread_mutex_lock(&engine->publish_lock);
    int rc = publish_document(engine);
    if (rc == 0)
        rc = publish_name(engine);
    engine->is_published = rc == 0;
    if (rc == 0)
        look_at_document(engine); /* whoever had the name may have restored his before it was ours */
    pthread_mutex_unlock(&engine->publish_lock);
    return rc;
}

/* The server has taken a document just now, or the names thread has one to bring: then it brings this change, too. */
static bool is_left_to_names(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool is_left =
        engine->publishing_calm_ns != 0 && (engine->is_publishing_due || mc_clock_ns() < engine->publishing_calm_ns);
    if (is_left && !engine->is_publishing_due) {
        engine->is_publishing_due = true;
        pthread_cond_signal(&engine->names_changed);
    }
    pthread_mutex_unlock(&engine->lock);
    return is_left;
}

enum holder { NOBODY, US, ANOTHER, UNKNOWN };

/* Under whom our name stands at the server; address: MC_ADDRESS_MAX bytes, of ANOTHER, "" when that cannot be read. */
static enum holder holder_of_name(struct mc_transfer_engine *engine, const char *key, char *address)
{
    char host[MC_ADDRESS_MAX - 8];
    struct mc_buffer value = {0};
    uint16_t port = 0;
    int rc = mc_metadata_try(&engine->metadata, key, UINT64_MAX, &value);
    bool is_read = rc == 1 && mc_rpc_meta_read(mc_span(value.data, value.length), host, sizeof(host), &port) == 0;
    bool is_ours = is_read && port == engine->rpc_port && strcmp(host, engine->host) == 0;
    address[0] = 0;
    if (is_read)
        mc_address_join(address, MC_ADDRESS_MAX, host, port);
    mc_buffer_free(&value);
    return is_ours ? US : rc == 1 ? ANOTHER : rc == 0 ? NOBODY : UNKNOWN;
}

/* The publish lock is held. */
static void lose_name(struct mc_transfer_engine *engine)
{
    if (engine->is_published)
        mc_log(WARNING,
               "another address stands under the name %s at the metadata server; peers will not find this engine as "
               "long as an engine of that name answers there",
               engine->name);
    engine->is_lost |= engine->is_published;
    engine->is_published = false;
}

/* Unless another thread has told of this change along with its own, or the name is somebody else's by now: what stands
 * there then is his. */
static int publish_changes(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX], address[MC_ADDRESS_MAX];
    int rc = 0;
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock);
    bool is_due = engine->is_published && mc_transfer_document_version(engine) != engine->published_version;
    enum holder holder = is_due ? holder_of_name(engine, key, address) : US;
    if (holder == ANOTHER)
        lose_name(engine);
    else if (is_due)
        rc = holder == UNKNOWN ? MC_TRANSFER_ERR_METADATA : publish_document(engine);
    pthread_mutex_unlock(&engine->publish_lock);
    if (holder != UNKNOWN)
        return rc;
    mc_log_limited(ERROR, "the metadata server at %s%s does not answer: it is not told what is registered",
                   engine->metadata.kind->scheme, engine->metadata.server);
    pthread_mutex_lock(&engine->lock);
    engine->publishing_calm_ns = 0;
    pthread_mutex_unlock(&engine->lock);
    return rc;
}

int mc_transfer_publish_document(struct mc_transfer_engine *engine, bool may_wait)
{
    if (engine->metadata.is_p2p || (may_wait && is_left_to_names(engine)))
        return 0;
    return publish_changes(engine);
}

void mc_transfer_withdraw(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX], address[MC_ADDRESS_MAX];
    int rc = 0;
    if (engine->metadata.is_p2p)
        return;
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock);
    /* Only what is still ours: somebody else may have taken the name over. */
    bool is_ours = (engine->is_published || engine->is_lost) && holder_of_name(engine, key, address) == US;
    engine->is_published = engine->is_lost = false;
    if (is_ours) {
        rc = mc_metadata_remove(&engine->metadata, key);
        mc_segment_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
        if (rc == 0)
            rc = mc_metadata_remove(&engine->metadata, key);
    }
    pthread_mutex_unlock(&engine->publish_lock);
    if (rc < 0)
        mc_log(WARNING, "the metadata server still holds the name %s of this engine", engine->name);
}

/* ---- a server that has forgotten us is told again ---- */

/* That host has refused: surely, unless its name may be another host's by now. */
static enum mc_sight sight_of_failed(int rc, int error)
{
    if (rc == MC_ERR_RPC_FAIL && error == ECONNREFUSED)
        return MC_SIGHT_ENDED;
    bool is_theirs = rc == MC_ERR_RPC_TIMEOUT || error == EHOSTUNREACH || error == EHOSTDOWN;
    return is_theirs && (rc == MC_ERR_RPC_FAIL || rc == MC_ERR_RPC_TIMEOUT) ? MC_SIGHT_DOUBTFUL : MC_SIGHT_UNSEEN;
}

static enum mc_sight ask_who(struct mc_transfer_engine *engine, const char *address, int fd)
{
    struct mc_buffer value = {0};
    struct mc_document document = {0};
    uint64_t end_ns = mc_clock_ns() + ANSWER_NS;
    int rc = mc_ask_prove(engine, fd, MC_PREFACE_HANDSHAKE, address, end_ns);
    if (rc == 0)
        rc = mc_ask_on(engine, fd, MC_HANDSHAKE_METADATA, mc_span("{}", 2), end_ns, &value);
    enum mc_sight sight = rc < 0 && mc_clock_ns() >= end_ns ? MC_SIGHT_LIVES : MC_SIGHT_DOUBTFUL;
    if (rc == 0 && mc_document_read(mc_span(value.data, value.length), &document) == 0)
        sight = strcmp(document.name, engine->name) == 0 && !mc_id_equal(document.id, engine->id) ? MC_SIGHT_LIVES
                                                                                                  : MC_SIGHT_ENDED;
    mc_document_free(&document);
    mc_buffer_free(&value);
    return sight;
}

enum mc_sight mc_transfer_look(struct mc_transfer_engine *engine, const char *address)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = 0;
    struct mc_resolved there;
    uint64_t deadline_ns = mc_clock_ns() + LOOK_NS;
    if (address[0] == 0)
        return MC_SIGHT_ENDED;
    /* That a name server says nothing is no word of who has the name. */
    if (mc_address_split(address, host, sizeof(host), &port) < 0)
        return MC_SIGHT_UNSEEN;
    if (mc_resolve(host, port, deadline_ns, &there) < 0)
        return there.is_denied ? MC_SIGHT_NAMELESS : MC_SIGHT_UNSEEN;
    errno = 0;
    int fd = mc_tcp_connect(address, deadline_ns);
    if (fd < 0)
        return sight_of_failed(fd, errno);
    mc_transfer_note_fd(fd);
    enum mc_sight sight = ask_who(engine, address, fd);
    mc_transfer_close_fd(fd);
    return engine->is_closing ? MC_SIGHT_UNSEEN : sight;
}

bool mc_transfer_doubt(struct mc_doubt *doubt, const char *address, enum mc_sight sight)
{
    if (strcmp(address, doubt->address) != 0)
        doubt->sum = 0;
    snprintf(doubt->address, sizeof(doubt->address), "%s", address);
    uint32_t weight = sight == MC_SIGHT_DOUBTFUL ? DOUBT_OF_WAY : sight == MC_SIGHT_NAMELESS ? DOUBT_OF_NAME : 0;
    doubt->sum = weight == 0 ? 0 : doubt->sum + weight;
    return sight == MC_SIGHT_ENDED || doubt->sum >= DOUBTS_ENOUGH;
}

/* The publish lock is held. */
static void take_name(struct mc_transfer_engine *engine, const char *why)
{
    if (publish_document(engine) < 0 || publish_name(engine) < 0)
        return;
    mc_log(WARNING, "the metadata server had %s the name %s; this engine has written its own again", why, engine->name);
    engine->is_published = true;
    engine->is_lost = false;
    engine->looks = 0; /* whoever has put something else there may do so again */
}

static void take_from(struct mc_transfer_engine *engine, const char *key, const char *address)
{
    char now[MC_ADDRESS_MAX];
    pthread_mutex_lock(&engine->publish_lock);
    if (engine->is_lost && holder_of_name(engine, key, now) == ANOTHER && strcmp(now, address) == 0)
        take_name(engine, "who is not an engine of that name, or not any more, under");
    if (engine->is_published) {
        snprintf(engine->taken_from, sizeof(engine->taken_from), "%s", address);
        engine->taken_ms = mc_clock_ms();
    }
    pthread_mutex_unlock(&engine->publish_lock);
}

/* Another address has our name. Whoever answers there keeps it: two that live do not write over each other in turns.
 * Nor when each seems to have ended to the other (both at 127.0.0.1 of their hosts, a firewall that refuses): the
 * address of one from whom it was taken, and who stands there again, is written by somebody. */
static void judge(struct mc_transfer_engine *engine, const char *key, const char *address)
{
    bool was_taken = engine->taken_ms != 0 && strcmp(address, engine->taken_from) == 0;
    if (was_taken && mc_clock_ms() - engine->taken_ms < TAKEN_MS)
        return;
    if (mc_transfer_doubt(&engine->doubt, address, mc_transfer_look(engine, address)))
        take_from(engine, key, address);
}

static void name_check(struct mc_transfer_engine *engine)
{
    char key[MC_TRANSFER_KEY_MAX], address[MC_ADDRESS_MAX];
    mc_rpc_meta_key(key, sizeof(key), engine->metadata.cluster_id, engine->name);
    pthread_mutex_lock(&engine->publish_lock);
    enum holder holder = engine->is_published || engine->is_lost ? holder_of_name(engine, key, address) : US;
    if (holder == NOBODY || (holder == US && engine->is_lost))
        take_name(engine, "lost");
    if (holder == ANOTHER)
        lose_name(engine);
    if (holder == US && engine->is_published)
        look_at_document(engine);
    pthread_mutex_unlock(&engine->publish_lock);
    if (holder == US)
        (void)publish_changes(engine); /* what it did not take before; a line of the log says so, if it does not now */
    if (holder == ANOTHER)
        judge(engine, key, address);
    else
        engine->doubt.sum = 0;
}

/* Brings what is due; with engine->lock held, which is let go meanwhile. */
static void bring(struct mc_transfer_engine *engine)
{
    engine->is_publishing_due = false; /* also when there is nothing to bring any more */
    pthread_mutex_unlock(&engine->lock);
    (void)publish_changes(engine); /* tried again by the next look */
    pthread_mutex_lock(&engine->lock);
}

static void *names_main(void *argument)
{
    struct mc_transfer_engine *engine = argument;
    uint64_t look_ns = mc_clock_ns() + MC_METADATA_LOOK_S * 1000000000ull;
    pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        bool is_due = engine->is_publishing_due && engine->publishing_calm_ns < look_ns;
        uint64_t until_ns = is_due ? engine->publishing_calm_ns : look_ns;
        if (mc_clock_ns() < until_ns) {
            (void)mc_monitor_wait(&engine->lock, &engine->names_changed, until_ns);
        } else if (is_due) {
            bring(engine);
        } else {
            pthread_mutex_unlock(&engine->lock);
            name_check(engine);
            look_ns = mc_clock_ns() + MC_METADATA_LOOK_S * 1000000000ull;
            pthread_mutex_lock(&engine->lock);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

int mc_transfer_names_start(struct mc_transfer_engine *engine)
{
    if (engine->metadata.is_p2p)
        return 0;
    engine->has_names_thread = mc_thread_start(&engine->names_thread, "mc-names", names_main, engine) == 0;
    return engine->has_names_thread ? 0 : MC_TRANSFER_ERR_MEMORY;
}

void mc_transfer_names_stop(struct mc_transfer_engine *engine)
{
    if (!engine->has_names_thread)
        return;
    pthread_mutex_lock(&engine->lock);
    pthread_cond_broadcast(&engine->names_changed);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->names_thread, NULL);
}
