/* Keys of a process: the file, the token, and proofs. */
#include "env/keys.h"

#include "base/checksum.h"
#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/json.h"
#include "env/log.h"
#include "env/openssl.h"
#include "env/watch.h"

#include <ctype.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

#define KEYS_MAX 4096u
#define PROVEN_MAX 4096u

static const struct {
    const char *name;
    enum mc_right right;
} right_names[] = {{"read", MC_RIGHT_READ},
                   {"write", MC_RIGHT_WRITE},
                   {"node", MC_RIGHT_NODE},
                   {"admin", MC_RIGHT_ADMIN},
                   {"master", MC_RIGHT_MASTER}};
#define RIGHTS (sizeof(right_names) / sizeof(right_names[0]))

void mc_rights_format(char *text, size_t size, unsigned rights)
{
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < RIGHTS && length < size; i++)
        if (rights & right_names[i].right)
            length +=
                (size_t)snprintf(text + length, size - length, "%s%s", length > 0 ? "," : "", right_names[i].name);
}

unsigned mc_rights_parse(struct mc_span text)
{
    const char *at = text.data, *end = at + text.length;
    unsigned rights = 0;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        struct mc_span word = mc_span(at, (size_t)((comma == NULL ? end : comma) - at));
        unsigned found = 0;
        for (size_t i = 0; i < RIGHTS; i++)
            if (mc_span_equal(word, mc_span_string(right_names[i].name)))
                found = right_names[i].right;
        if (found == 0)
            return 0;
        rights |= found;
        at = comma == NULL ? end : comma + 1;
    }
    return rights;
}

/* ---- text ---- */

static struct mc_span word_of(const char **at, const char *end)
{
    while (*at < end && isblank((unsigned char)**at))
        ++*at;
    const char *start = *at;
    while (*at < end && !isspace((unsigned char)**at) && **at != '#')
        ++*at;
    return mc_span(start, (size_t)(*at - start));
}

static bool copy_name(char to[MC_KEY_ID_MAX], struct mc_span name)
{
    const char *bytes = name.data;
    if (name.length == 0 || name.length >= MC_KEY_ID_MAX)
        return false;
    for (size_t i = 0; i < name.length; i++)
        if (!isalnum((unsigned char)bytes[i]) && bytes[i] != '-' && bytes[i] != '_' && bytes[i] != '.')
            return false;
    memcpy(to, bytes, name.length);
    to[name.length] = 0;
    return true;
}

static bool secret_parse(uint8_t secret[MC_KEY_SECRET_BYTES], struct mc_span text)
{
    const char *digits = text.data;
    if (text.length != 2 * MC_KEY_SECRET_BYTES)
        return false;
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i++) {
        int high = mc_hex_digit(digits[2 * i]), low = mc_hex_digit(digits[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        secret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* What is wrong with a line, without a word of it that might be a secret; NULL: nothing. */
static const char *line_parse(struct mc_key *key, const char *at, const char *end)
{
    *key = (struct mc_key){.rights = 0};
    if (!copy_name(key->id, word_of(&at, end)))
        return "the id is to be letters, digits, '-', '_' and '.', at most 63";
    if (!secret_parse(key->secret, word_of(&at, end)))
        return "the secret is to be 64 hexadecimal digits";
    key->rights = mc_rights_parse(word_of(&at, end));
    if (key->rights == 0)
        return "the rights are to be some of read,write,node,admin, or master";
    struct mc_span tenant = word_of(&at, end), rest = word_of(&at, end);
    if (tenant.length > 0 && !copy_name(key->tenant, tenant))
        return "the tenant is to be letters, digits, '-', '_' and '.', at most 63";
    if (strcmp(key->tenant, "default") == 0)
        key->tenant[0] = 0;
    if (key->tenant[0] == '_')
        return "the tenant is not to begin with '_'";
    if (key->tenant[0] != 0 && (key->rights & (MC_RIGHT_NODE | MC_RIGHT_ADMIN)) != 0)
        return "a key of a tenant may read and write only: who lends memory or drains sees the objects of all";
    if ((key->rights & MC_RIGHT_MASTER) != 0 && (key->rights != MC_RIGHT_MASTER || key->tenant[0] != 0))
        return "a key of right master is for nothing else, and of no tenant";
    return rest.length > 0 ? "there is something behind the tenant" : NULL;
}

static bool is_blank(const char *at, const char *end)
{
    return word_of(&at, end).length == 0;
}

/* Keys of right master prove epochs, and are shown to nobody. */
static bool is_shown(const struct mc_key *key)
{
    return (key->rights & MC_RIGHT_MASTER) == 0;
}

int mc_keys_parse(const char *text, size_t length, struct mc_key **keys, char *error, size_t error_size)
{
    const char *at = text, *end = text + length;
    struct mc_key *made = calloc(KEYS_MAX, sizeof(*made));
    const char *wrong = made == NULL ? "out of memory" : NULL;
    unsigned line = 0;
    int count = 0;
    while (at < end && wrong == NULL) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        const char *stop = next == NULL ? end : next;
        line++;
        if (!is_blank(at, stop)) {
            wrong = count == KEYS_MAX ? "there are more than 4096 keys" : line_parse(&made[count], at, stop);
            for (int i = 0; i < count && wrong == NULL; i++)
                wrong = strcmp(made[i].id, made[count].id) == 0 ? "the id was there before" : NULL;
            count++;
        }
        at = next == NULL ? end : next + 1;
    }
    if (wrong == NULL && count == 0)
        wrong = "there is no key";
    if (wrong != NULL) {
        snprintf(error, error_size, "line %u: %s", line, wrong);
        free(made);
        return MC_ERR_INVALID_PARAMS;
    }
    *keys = made;
    return count;
}

/* ---- the keys of this process ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows; never held over a file */
static char given[PATH_MAX];                             /* by a flag; empty: none */
/* What the environment said at the start, or at the last mc_keys_check: it may be changed under threads that read. */
static char file_name[PATH_MAX], own_token[MC_KEYS_BEARER_MAX];
static atomic_int wanted = -1; /* -1: not looked yet */
static uint64_t settings;      /* counts how often these were taken */
static struct mc_key *known;   /* NULL: none */
static int known_count;
static struct stat known_file;
static bool is_read;
static atomic_uint version; /* counts the changes of `known` */

/* What the settings of a moment lead to. */
struct keys_reading {
    char file[PATH_MAX], token[MC_KEYS_BEARER_MAX];
    uint64_t settings;
    struct mc_key *keys;
    int count; /* negative: error says why */
    struct stat status;
    char error[PATH_MAX + 600];
};

void mc_keys_use(const char *file)
{
    pthread_mutex_lock(&lock);
    snprintf(given, sizeof(given), "%s", file == NULL ? "" : file);
    atomic_store(&wanted, -1);
    is_read = false;
    pthread_mutex_unlock(&lock);
}

bool mc_keys_file(char *name, size_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(name, size, "%s", file_name);
    pthread_mutex_unlock(&lock);
    return name[0] != 0;
}

/* Lock held. */
static void settings_take(void)
{
    const char *file = given[0] != 0 ? given : mc_variable(MC_AUTH_FILE), *shown = mc_variable(MC_AUTH_TOKEN);
    snprintf(file_name, sizeof(file_name), "%s", file == NULL ? "" : file);
    snprintf(own_token, sizeof(own_token), "%s", shown == NULL ? "" : shown);
    atomic_store(&wanted, file_name[0] != 0 || own_token[0] != 0);
    settings++;
}

static void keys_free(struct mc_key *keys, int count)
{
    if (keys != NULL)
        explicit_bzero(keys, (size_t)count * sizeof(*keys));
    free(keys);
}

static void token_read(struct keys_reading *reading)
{
    const char *token = reading->token, *colon = strchr(token, ':');
    struct mc_key *key = calloc(1, sizeof(*key));
    if (key == NULL || colon == NULL || !copy_name(key->id, mc_span(token, (size_t)(colon - token))) ||
        !secret_parse(key->secret, mc_span_string(colon + 1))) {
        free(key);
        snprintf(reading->error, sizeof(reading->error),
                 "MC_AUTH_TOKEN is to be id:secret, the secret of 64 hexadecimal digits");
        reading->count = MC_ERR_INVALID_PARAMS;
        return;
    }
    key->rights = MC_RIGHTS_ALL;
    reading->keys = key;
    reading->count = 1;
}

static bool has_shown(const struct mc_key *keys, int count)
{
    int shown = 0;
    for (int i = 0; i < count; i++)
        shown += is_shown(&keys[i]);
    return shown > 0;
}

static void file_read(struct keys_reading *reading)
{
    const char *file = reading->file;
    char why[512];
    size_t length;
    if (stat(file, &reading->status) == 0 && (reading->status.st_mode & 077) != 0)
        mc_log_once(WARNING, "the file of keys %s can be read by others than its owner: chmod 600 %s", file, file);
    char *text = mc_file_read(NULL, file, &length, why, sizeof(why));
    reading->count =
        text == NULL ? MC_ERR_INVALID_PARAMS : mc_keys_parse(text, length, &reading->keys, why, sizeof(why));
    if (text != NULL)
        explicit_bzero(text, length);
    free(text);
    if (reading->count > 0 && !has_shown(reading->keys, reading->count)) {
        keys_free(reading->keys, reading->count);
        reading->keys = NULL;
        reading->count = MC_ERR_INVALID_PARAMS;
        snprintf(why, sizeof(why), "it has no key that anybody could show, but of right master only");
    }
    if (reading->count < 0)
        snprintf(reading->error, sizeof(reading->error), "the file of keys %s cannot be used: %s", file, why);
}

/* Without the lock: it may take as long as a file system does. */
static void keys_read(struct keys_reading *reading)
{
    if (reading->file[0] == 0 && reading->token[0] == 0)
        return;
    if (mc_openssl_open(reading->error, sizeof(reading->error)) == NULL)
        reading->count = MC_ERR_INVALID_PARAMS;
    else if (reading->file[0] != 0)
        file_read(reading);
    else
        token_read(reading);
}

/* Lock held. */
static struct keys_reading *reading_begin(void)
{
    struct keys_reading *reading = calloc(1, sizeof(*reading));
    if (reading == NULL)
        return NULL;
    memcpy(reading->file, file_name, sizeof(reading->file));
    memcpy(reading->token, own_token, sizeof(reading->token));
    reading->settings = settings;
    reading->status = known_file;
    return reading;
}

/* Takes what was read. False: the settings are others by now. Lock held. */
static bool reading_take(struct keys_reading *reading)
{
    if (reading->settings != settings)
        return false;
    is_read = true;
    known_file = reading->status;
    if (reading->count < 0)
        return true;
    struct mc_key *before = known;
    int before_count = known_count;
    known = reading->keys;
    known_count = reading->count;
    atomic_fetch_add(&version, 1);
    reading->keys = before;
    reading->count = before_count;
    return true;
}

static void reading_end(struct keys_reading *reading)
{
    keys_free(reading->keys, reading->count < 0 ? 0 : reading->count);
    explicit_bzero(reading->token, sizeof(reading->token));
    free(reading);
}

/* ---- looking at the file again ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}
static void after_fork_parent(void)
{
    pthread_mutex_unlock(&lock);
}
static void after_fork_child(void) /* which has one thread */
{
    pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child); /* fails for want of memory only */
}

static bool file_changed(const char *file, const struct stat *before)
{
    struct stat now;
    return stat(file, &now) == 0 &&
           (now.st_ino != before->st_ino || now.st_size != before->st_size ||
            now.st_ctim.tv_sec != before->st_ctim.tv_sec || now.st_ctim.tv_nsec != before->st_ctim.tv_nsec ||
            now.st_mtim.tv_sec != before->st_mtim.tv_sec || now.st_mtim.tv_nsec != before->st_mtim.tv_nsec);
}

/* A file system may hang: who looks a key up never waits for one. */
static void look_again(void)
{
    char file[PATH_MAX];
    pthread_mutex_lock(&lock);
    memcpy(file, file_name, sizeof(file));
    struct stat before = known_file;
    pthread_mutex_unlock(&lock);
    if (file[0] == 0 || !file_changed(file, &before))
        return;
    pthread_mutex_lock(&lock);
    struct keys_reading *reading = reading_begin();
    pthread_mutex_unlock(&lock);
    if (reading == NULL)
        return;
    file_read(reading);
    int count = reading->count;
    pthread_mutex_lock(&lock);
    bool is_taken = reading_take(reading);
    pthread_mutex_unlock(&lock);
    if (is_taken && count >= 0)
        mc_log(INFO, "the file of keys %s was read again: %d keys", reading->file, count);
    else if (is_taken)
        mc_log(ERROR, "%s; the keys before stay", reading->error);
    reading_end(reading);
}

int mc_keys_check(char *error, size_t error_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    settings_take();
    struct keys_reading *reading = reading_begin();
    pthread_mutex_unlock(&lock);
    if (reading == NULL) {
        snprintf(error, error_size, "out of memory");
        return MC_ERR_INVALID_PARAMS;
    }
    keys_read(reading);
    int rc = reading->count < 0 ? reading->count : 0;
    if (rc < 0)
        snprintf(error, error_size, "%s", reading->error);
    pthread_mutex_lock(&lock);
    (void)reading_take(reading); /* else another thread has read what holds now */
    bool has_file = file_name[0] != 0;
    pthread_mutex_unlock(&lock);
    reading_end(reading);
    if (has_file)
        mc_watch("mc-keys", look_again);
    return rc;
}

/* A process that has not checked them: nobody asked it to. */
static void read_once(void)
{
    char error[sizeof(((struct keys_reading *)NULL)->error)];
    pthread_mutex_lock(&lock);
    bool is_late = !is_read;
    pthread_mutex_unlock(&lock);
    if (is_late && mc_keys_check(error, sizeof(error)) < 0)
        mc_log(ERROR, "%s; nobody is let in", error);
}

bool mc_keys_are_wanted(void)
{
    int known_to_be = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (known_to_be < 0) {
        pthread_mutex_lock(&lock);
        settings_take();
        known_to_be = atomic_load(&wanted);
        pthread_mutex_unlock(&lock);
    }
    return known_to_be != 0;
}

bool mc_keys_own(struct mc_key *key)
{
    if (!mc_keys_are_wanted())
        return false;
    read_once();
    pthread_mutex_lock(&lock);
    *key = (struct mc_key){.rights = 0};
    for (int i = known_count - 1; i >= 0; i--)
        if (is_shown(&known[i]))
            *key = known[i];
    pthread_mutex_unlock(&lock);
    return true;
}

bool mc_keys_find(struct mc_span id, struct mc_key *key)
{
    bool found = false;
    read_once();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < known_count && !found; i++) {
        found = is_shown(&known[i]) && mc_span_equal(id, mc_span_string(known[i].id));
        if (found)
            *key = known[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool mc_keys_find_token(struct mc_span token, struct mc_key *key)
{
    uint8_t secret[MC_KEY_SECRET_BYTES];
    const char *text = token.data, *colon = token.length == 0 ? NULL : memchr(text, ':', token.length);
    struct mc_key found = {.rights = 0};
    if (colon == NULL)
        return false;
    size_t length = (size_t)(colon - text);
    bool is_known = mc_keys_find(mc_span(text, length), &found);
    bool is_right = secret_parse(secret, mc_span(colon + 1, token.length - length - 1)) &&
                    mc_key_equal(secret, found.secret, sizeof(secret));
    if (is_known && is_right)
        *key = found;
    explicit_bzero(secret, sizeof(secret));
    explicit_bzero(&found, sizeof(found));
    return is_known && is_right;
}

/* ---- keys that were proved ---- */

unsigned mc_keys_version(void)
{
    return atomic_load_explicit(&version, memory_order_acquire);
}

static uint64_t mark_of(const struct mc_key *key)
{
    return mc_hash(key->secret, sizeof(key->secret)).low ^ mc_hash(key->tenant, strlen(key->tenant)).high ^ key->rights;
}

uint64_t mc_key_number(const char *id)
{
    return mc_hash(id, strlen(id)).low | 1;
}

bool mc_keys_has_number(uint64_t number)
{
    bool found = false;
    read_once();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < known_count && !found; i++)
        found = is_shown(&known[i]) && mc_key_number(known[i].id) == number;
    pthread_mutex_unlock(&lock);
    return found;
}

void mc_key_note(struct mc_key_proved *proved, const struct mc_key *key, unsigned version_before)
{
    *proved = (struct mc_key_proved){.mark = mark_of(key), .version = version_before};
    memcpy(proved->id, key->id, sizeof(proved->id));
}

bool mc_key_holds(struct mc_key_proved *proved)
{
    unsigned now = mc_keys_version();
    struct mc_key key = {.rights = 0};
    if (proved->version == now)
        return true;
    bool holds = mc_keys_find(mc_span_string(proved->id), &key) && mark_of(&key) == proved->mark;
    explicit_bzero(&key, sizeof(key));
    if (holds)
        proved->version = now;
    return holds;
}

/* ---- HTTP ---- */

int mc_keys_http_status(const char *authorization, unsigned right)
{
    struct mc_key key;
    int status = mc_keys_http_status_own(authorization, right, &key);
    return status == 0 && key.tenant[0] != 0 ? 403 : status;
}

int mc_keys_http_status_own(const char *authorization, unsigned right, struct mc_key *of)
{
    struct mc_key key = {.rights = 0};
    *of = key;
    struct mc_buffer decoded = {.may_fail = true};
    bool is_known = false;
    if (!mc_keys_are_wanted())
        return 0;
    if (authorization != NULL && strncasecmp(authorization, "Bearer ", 7) == 0)
        is_known = mc_keys_find_token(mc_span_string(authorization + 7), &key);
    else if (authorization != NULL && strncasecmp(authorization, "Basic ", 6) == 0)
        is_known = mc_base64_decode(&decoded, mc_span_string(authorization + 6)) == 0 && !decoded.failed &&
                   mc_keys_find_token(mc_span(decoded.data, decoded.length), &key);
    if (decoded.length > 0)
        explicit_bzero(decoded.data, decoded.length);
    mc_buffer_free(&decoded);
    explicit_bzero(key.secret, sizeof(key.secret));
    *of = key;
    return !is_known ? 401 : (key.rights & right) == right ? 0 : 403;
}

int mc_keys_stranger_status(unsigned right, bool is_near)
{
    const char *mode = mc_variable(MC_PROTECTED_MODE);
    bool is_off = mode != NULL && (strcmp(mode, "no") == 0 || strcmp(mode, "0") == 0 || strcmp(mode, "false") == 0);
    return right != MC_RIGHT_ADMIN || is_near || is_off || mc_keys_are_wanted() ? 0 : 403;
}

int mc_keys_origin_status(unsigned right, const char *origin, const char *host)
{
    const char *site = origin == NULL ? NULL : strstr(origin, "://");
    bool is_same = origin == NULL || (site != NULL && host != NULL && strcasecmp(site + 3, host) == 0);
    return right != MC_RIGHT_ADMIN || is_same ? 0 : 403;
}

const char *mc_keys_bearer(char text[MC_KEYS_BEARER_MAX])
{
    struct mc_key key;
    if (!mc_keys_own(&key) || key.id[0] == 0)
        return NULL;
    int length = snprintf(text, MC_KEYS_BEARER_MAX, "Bearer %s:", key.id);
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i++)
        length += snprintf(text + length, MC_KEYS_BEARER_MAX - (size_t)length, "%02x", key.secret[i]);
    explicit_bzero(&key, sizeof(key));
    return text;
}

/* ---- proofs ---- */

void mc_key_prove(const uint8_t secret[MC_KEY_SECRET_BYTES], const struct mc_span *parts, size_t count,
                  uint8_t proof[MC_KEY_SECRET_BYTES])
{
    uint8_t all[PROVEN_MAX];
    size_t length = 0;
    unsigned made = 0;
    char error[256];
    const struct mc_openssl *openssl = mc_openssl_open(error, sizeof(error));
    mc_assert(openssl != NULL); /* mc_keys_check has looked */
    for (size_t i = 0; i < count; i++) {
        uint32_t part = (uint32_t)parts[i].length;
        mc_assert(length + sizeof(part) + part <= sizeof(all));
        memcpy(all + length, &part, sizeof(part));
        if (part > 0)
            memcpy(all + length + sizeof(part), parts[i].data, part);
        length += sizeof(part) + part;
    }
    mc_assert(openssl->hmac(openssl->sha256(), secret, MC_KEY_SECRET_BYTES, all, length, proof, &made) != NULL);
    mc_assert(made == MC_KEY_SECRET_BYTES);
}

void mc_key_prove_end(const char *who, const uint8_t secret[MC_KEY_SECRET_BYTES],
                      const uint8_t caller[MC_KEY_SECRET_BYTES], const uint8_t server[MC_KEY_SECRET_BYTES],
                      struct mc_span name, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    struct mc_span parts[] = {mc_span_string(who), mc_span(caller, MC_KEY_SECRET_BYTES),
                              mc_span(server, MC_KEY_SECRET_BYTES), name};
    mc_key_prove(secret, parts, sizeof(parts) / sizeof(parts[0]), proof);
}

static void epoch_prove(const struct mc_key *key, uint64_t epoch, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    struct mc_span parts[] = {mc_span_string("mooncake epoch 1"), mc_span(&epoch, sizeof(epoch))};
    mc_key_prove(key->secret, parts, 2, proof);
}

bool mc_keys_epoch_prove(uint64_t epoch, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    static struct { /* asked for with each heartbeat of each node */
        uint64_t epoch;
        unsigned version;
        bool is_made;
        uint8_t proof[MC_KEY_SECRET_BYTES];
    } last;
    if (!mc_keys_are_wanted())
        return false;
    read_once();
    pthread_mutex_lock(&lock);
    if (last.version != atomic_load(&version) || last.epoch != epoch) {
        last.version = atomic_load(&version);
        last.epoch = epoch;
        last.is_made = false;
        for (int i = 0; i < known_count && !last.is_made; i++) {
            last.is_made = !is_shown(&known[i]);
            if (last.is_made)
                epoch_prove(&known[i], epoch, last.proof);
        }
    }
    bool is_made = last.is_made;
    memcpy(proof, last.proof, sizeof(last.proof));
    pthread_mutex_unlock(&lock);
    return is_made;
}

bool mc_keys_epoch_is_proved(uint64_t epoch, struct mc_span proof)
{
    uint8_t made[MC_KEY_SECRET_BYTES];
    bool is_proved = false;
    if (!mc_keys_are_wanted() || proof.length != sizeof(made))
        return false;
    read_once();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < known_count && !is_proved; i++) {
        if (is_shown(&known[i]))
            continue;
        epoch_prove(&known[i], epoch, made);
        is_proved = mc_key_equal(made, proof.data, sizeof(made));
    }
    pthread_mutex_unlock(&lock);
    return is_proved;
}

void mc_key_draw(uint8_t bytes[MC_KEY_SECRET_BYTES])
{
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i += sizeof(uint64_t)) {
        uint64_t value = mc_random_u64();
        memcpy(bytes + i, &value, sizeof(value));
    }
}

bool mc_key_equal(const void *a, const void *b, size_t length)
{
    const volatile uint8_t *left = a, *right = b;
    uint8_t differs = 0;
    for (size_t i = 0; i < length; i++)
        differs |= left[i] ^ right[i];
    return differs == 0;
}
