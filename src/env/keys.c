/* Keys of a process: the file, the token, and proofs. */
#include "env/keys.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/json.h"
#include "env/log.h"
#include "env/openssl.h"

#include <ctype.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

#define KEYS_MAX 4096u
#define LOOK_MS 1000u /* between two looks whether the file has changed */
#define PROVEN_MAX 4096u

static const struct {
    const char *name;
    enum mc_right right;
} right_names[] = {
    {"read", MC_RIGHT_READ}, {"write", MC_RIGHT_WRITE}, {"node", MC_RIGHT_NODE}, {"admin", MC_RIGHT_ADMIN}};
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
        return "the rights are to be some of read,write,node,admin";
    struct mc_span tenant = word_of(&at, end), rest = word_of(&at, end);
    if (tenant.length > 0 && !copy_name(key->tenant, tenant))
        return "the tenant is to be letters, digits, '-', '_' and '.', at most 63";
    return rest.length > 0 ? "there is something behind the tenant" : NULL;
}

static bool is_blank(const char *at, const char *end)
{
    return word_of(&at, end).length == 0;
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char given[PATH_MAX]; /* by a flag; empty: none */
/* What the environment said at the start, or at the last mc_keys_check: it may be changed under threads that read. */
static char file_name[PATH_MAX], own_token[MC_KEYS_BEARER_MAX];
static atomic_int wanted = -1; /* -1: not looked yet */
static struct mc_key *known;   /* NULL: not read yet, or none */
static int known_count;
static struct stat known_file;
static uint64_t looked_ms;
static bool is_read;

void mc_keys_use(const char *file)
{
    pthread_mutex_lock(&lock);
    snprintf(given, sizeof(given), "%s", file == NULL ? "" : file);
    atomic_store(&wanted, -1);
    is_read = false;
    pthread_mutex_unlock(&lock);
}

/* Lock held. */
static void settings_take(void)
{
    const char *file = given[0] != 0 ? given : mc_variable(MC_AUTH_FILE), *shown = mc_variable(MC_AUTH_TOKEN);
    snprintf(file_name, sizeof(file_name), "%s", file == NULL ? "" : file);
    snprintf(own_token, sizeof(own_token), "%s", shown == NULL ? "" : shown);
    atomic_store(&wanted, file_name[0] != 0 || own_token[0] != 0);
}

static const char *file_of(void)
{
    return file_name[0] != 0 ? file_name : NULL;
}

static void on_forked(void) /* the child has one thread, which does not hold it */
{
    pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

static void keys_replace(struct mc_key *keys, int count)
{
    if (known != NULL)
        explicit_bzero(known, (size_t)known_count * sizeof(*known));
    free(known);
    known = keys;
    known_count = count;
}

static int token_take(char *error, size_t error_size)
{
    const char *colon = strchr(own_token, ':');
    struct mc_key *key = calloc(1, sizeof(*key));
    if (key == NULL || colon == NULL || !copy_name(key->id, mc_span(own_token, (size_t)(colon - own_token))) ||
        !secret_parse(key->secret, mc_span_string(colon + 1))) {
        free(key);
        snprintf(error, error_size, "MC_AUTH_TOKEN is to be id:secret, the secret of 64 hexadecimal digits");
        return MC_ERR_INVALID_PARAMS;
    }
    key->rights = MC_RIGHTS_ALL;
    keys_replace(key, 1);
    return 0;
}

static int file_take(const char *file, char *error, size_t error_size)
{
    char why[512];
    size_t length;
    struct mc_key *keys = NULL;
    struct stat status = {0};
    if (stat(file, &status) == 0 && (status.st_mode & 077) != 0)
        mc_log_once(WARNING, "the file of keys %s can be read by others than its owner: chmod 600 %s", file, file);
    char *text = mc_file_read(NULL, file, &length, why, sizeof(why));
    int count = text == NULL ? MC_ERR_INVALID_PARAMS : mc_keys_parse(text, length, &keys, why, sizeof(why));
    if (text != NULL)
        explicit_bzero(text, length);
    free(text);
    known_file = status;
    if (count < 0) {
        snprintf(error, error_size, "the file of keys %s cannot be used: %s", file, why);
        return MC_ERR_INVALID_PARAMS;
    }
    keys_replace(keys, count);
    return 0;
}

/* Lock held. */
static int keys_read(char *error, size_t error_size)
{
    const char *file = file_of();
    if (file == NULL && own_token[0] == 0) {
        keys_replace(NULL, 0);
        return 0;
    }
    if (mc_openssl_open(error, error_size) == NULL)
        return MC_ERR_INVALID_PARAMS;
    return file != NULL ? file_take(file, error, error_size) : token_take(error, error_size);
}

static bool file_changed(void)
{
    struct stat now;
    return stat(file_of(), &now) == 0 &&
           (now.st_ino != known_file.st_ino || now.st_size != known_file.st_size ||
            now.st_ctim.tv_sec != known_file.st_ctim.tv_sec || now.st_ctim.tv_nsec != known_file.st_ctim.tv_nsec ||
            now.st_mtim.tv_sec != known_file.st_mtim.tv_sec || now.st_mtim.tv_nsec != known_file.st_mtim.tv_nsec);
}

/* Lock held. Looks again, now and then. */
static void keys_refresh(void)
{
    char error[1024];
    uint64_t now_ms = mc_clock_ms();
    if (is_read && (file_of() == NULL || now_ms - looked_ms < LOOK_MS || !file_changed())) {
        looked_ms = now_ms - looked_ms < LOOK_MS ? looked_ms : now_ms;
        return;
    }
    bool again = is_read;
    is_read = true;
    looked_ms = now_ms;
    if (keys_read(error, sizeof(error)) < 0)
        mc_log(ERROR, "%s%s", error, again ? "; the keys before stay" : "; nobody is let in");
    else if (again)
        mc_log(INFO, "the file of keys %s was read again: %d keys", file_of(), known_count);
}

int mc_keys_check(char *error, size_t error_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    settings_take();
    int rc = keys_read(error, error_size);
    is_read = true;
    looked_ms = mc_clock_ms();
    pthread_mutex_unlock(&lock);
    return rc;
}

bool mc_keys_are_wanted(void)
{
    int known_to_be = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (known_to_be < 0) { /* a process that has not checked them: a transfer engine's, the doctor's */
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
    pthread_mutex_lock(&lock);
    keys_refresh();
    *key = known == NULL ? (struct mc_key){.rights = 0} : known[0];
    pthread_mutex_unlock(&lock);
    return true;
}

bool mc_keys_find(struct mc_span id, struct mc_key *key)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    keys_refresh();
    for (int i = 0; i < known_count && !found; i++) {
        found = mc_span_equal(id, mc_span_string(known[i].id));
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
    return is_known && is_right;
}

/* ---- HTTP ---- */

int mc_keys_http_status(const char *authorization, unsigned right)
{
    struct mc_key key = {.rights = 0};
    struct mc_buffer decoded = {.may_fail = true};
    bool is_known = false;
    if (!mc_keys_are_wanted())
        return 0;
    if (authorization != NULL && strncasecmp(authorization, "Bearer ", 7) == 0)
        is_known = mc_keys_find_token(mc_span_string(authorization + 7), &key);
    else if (authorization != NULL && strncasecmp(authorization, "Basic ", 6) == 0)
        is_known = mc_base64_decode(&decoded, mc_span_string(authorization + 6)) == 0 && !decoded.failed &&
                   mc_keys_find_token(mc_span(decoded.data, decoded.length), &key);
    mc_buffer_free(&decoded);
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
