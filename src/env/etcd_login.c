/* Logins to etcd. */
#include "env/etcd_login.h"

#include "base/checksum.h"
#include "base/error.h"
#include "base/variables.h"
#include "env/file.h"
#include "env/json.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKENS_MAX 4u
#define PASSWORD_MAX 512

/* The file's name is in the environment: what stands in it is what must not be there. */
static const char *login_file(void)
{
    const char *path = mc_variable(MC_ETCD_CONF_FILE);
    return path == NULL ? "" : path;
}

struct mc_tls_settings mc_etcd_tls(void)
{
    return (struct mc_tls_settings){.authority = mc_variable(MC_ETCD_TLS_CA_CERT),
                                    .certificate = mc_variable(MC_ETCD_TLS_CERT),
                                    .key = mc_variable(MC_ETCD_TLS_KEY),
                                    .name = mc_variable(MC_ETCD_TLS_SERVER_NAME),
                                    .authority_is = "MC_ETCD_TLS_CA_CERT",
                                    .certificate_is = "MC_ETCD_TLS_CERT",
                                    .key_is = "MC_ETCD_TLS_KEY",
                                    .name_is = "MC_ETCD_TLS_SERVER_NAME"};
}

bool mc_etcd_tls_is_set(void)
{
    const char *authority = mc_variable(MC_ETCD_TLS_CA_CERT);
    return authority != NULL && authority[0] != 0;
}

bool mc_etcd_has_login(void)
{
    return login_file()[0] != 0;
}

/* ---- the file: "username=..." and "password=...", # for comments ---- */

struct login {
    char user[MC_ETCD_USER_MAX], password[PASSWORD_MAX];
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static void trim(const char **from, const char **end)
{
    while (*from < *end && is_blank(**from))
        (*from)++;
    while (*from < *end && is_blank((*end)[-1]))
        (*end)--;
}

/* NULL, or what is wrong with the line. */
static const char *read_line(struct login *login, const char *from, const char *end)
{
    trim(&from, &end);
    if (from == end || *from == '#')
        return NULL;
    const char *equals = memchr(from, '=', (size_t)(end - from));
    if (equals == NULL)
        return "name=value is expected";
    const char *name_end = equals, *value = equals + 1;
    trim(&from, &name_end);
    trim(&value, &end);
    struct mc_span name = mc_span(from, (size_t)(name_end - from));
    bool is_user = mc_span_equal(name, mc_span_string("username"));
    if (!is_user && !mc_span_equal(name, mc_span_string("password")))
        return "neither username nor password";
    size_t size = is_user ? sizeof(login->user) : sizeof(login->password), length = (size_t)(end - value);
    if (length >= size || memchr(value, 0, length) != NULL)
        return "a value that is too long or holds a zero";
    char *target = is_user ? login->user : login->password;
    memcpy(target, value, length);
    target[length] = 0;
    return NULL;
}

static int read_login(struct login *login, char *error, size_t error_size)
{
    char why[128];
    size_t length = 0;
    const char *path = login_file(), *problem = NULL;
    *login = (struct login){.user = ""};
    char *text = mc_file_read(NULL, path, &length, why, sizeof(why));
    if (text == NULL) {
        snprintf(error, error_size, "MC_ETCD_CONF_FILE=%.300s %s", path, why);
        return MC_ERR_INVALID_PARAMS;
    }
    unsigned line = 0;
    for (const char *at = text, *end = text + length; at < end && problem == NULL;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop == NULL ? end : stop;
        line++;
        problem = read_line(login, at, stop);
        at = stop + 1;
    }
    explicit_bzero(text, length);
    free(text);
    if (problem != NULL)
        snprintf(error, error_size, "MC_ETCD_CONF_FILE=%.300s, line %u: %s", path, line, problem);
    else if (login->user[0] == 0 || login->password[0] == 0)
        snprintf(error, error_size, "MC_ETCD_CONF_FILE=%.300s: the lines username=... and password=... are expected",
                 path);
    else
        return 0;
    return MC_ERR_INVALID_PARAMS;
}

int mc_etcd_login_body(struct mc_buffer *body, char user[MC_ETCD_USER_MAX], char *error, size_t error_size)
{
    struct login login;
    int rc = read_login(&login, error, error_size);
    if (rc == 0) {
        mc_buffer_printf(body, "{\"name\":");
        mc_json_put_text(body, login.user);
        mc_buffer_printf(body, ",\"password\":");
        mc_json_put_text(body, login.password);
        mc_buffer_printf(body, "}");
        memcpy(user, login.user, MC_ETCD_USER_MAX);
    }
    explicit_bzero(&login, sizeof(login));
    return rc;
}

/* ---- tokens: a login costs etcd a tenth of a second of work, and many clients live for one question ---- */

static struct token {
    struct mc_hash whose; /* of whose endpoints, by which file; zero: this place is free */
    char text[MC_ETCD_TOKEN_MAX];
} tokens[TOKENS_MAX];
static unsigned next_token;
static pthread_mutex_t tokens_lock = PTHREAD_MUTEX_INITIALIZER;

static struct mc_hash hash_of(const char *endpoints)
{
    struct mc_buffer whole = {0};
    mc_buffer_printf(&whole, "%s %s", endpoints, login_file());
    struct mc_hash hash = mc_hash(whole.data, whole.length);
    mc_buffer_free(&whole);
    return hash;
}

/* The lock is held. */
static struct token *token_of(struct mc_hash whose)
{
    for (size_t i = 0; i < TOKENS_MAX; i++)
        if (tokens[i].whose.low == whose.low && tokens[i].whose.high == whose.high)
            return &tokens[i];
    return NULL;
}

void mc_etcd_token_get(const char *endpoints, char text[MC_ETCD_TOKEN_MAX])
{
    struct mc_hash whose = hash_of(endpoints);
    pthread_mutex_lock(&tokens_lock);
    const struct token *token = token_of(whose);
    snprintf(text, MC_ETCD_TOKEN_MAX, "%s", token == NULL ? "" : token->text);
    pthread_mutex_unlock(&tokens_lock);
}

void mc_etcd_token_set(const char *endpoints, const char *text)
{
    struct mc_hash whose = hash_of(endpoints);
    pthread_mutex_lock(&tokens_lock);
    struct token *token = token_of(whose);
    if (token == NULL)
        token = &tokens[next_token++ % TOKENS_MAX];
    token->whose = whose;
    snprintf(token->text, sizeof(token->text), "%s", text);
    pthread_mutex_unlock(&tokens_lock);
}
