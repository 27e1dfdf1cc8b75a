/* TLS, logins and files as a machine without them has them: what the product calls of them, and never gets anywhere;
 * but for a pod's token. Requests are answered before (etcd.c). */
#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/etcd_login.h"
#include "env/file.h"
#include "env/keys.h"
#include "env/secure.h"
#include "env/tls.h"
#include "plan.h"
#include "sim.h"

#include <stdlib.h>

int mc_tls_check(const struct mc_tls_settings *settings, char *error, size_t error_size)
{
    (void)settings, (void)error, (void)error_size;
    return 0;
}
int mc_tls_begin(const struct mc_tls_settings *settings, const char *address, int fd, struct mc_tls **tls, char *error,
                 size_t error_size)
{
    (void)settings, (void)address, (void)fd, (void)tls, (void)error, (void)error_size;
    mc_assert(false);
    return 0;
}
void mc_tls_end(struct mc_tls *tls)
{
    mc_assert(tls == NULL);
}
int mc_tls_shake(struct mc_tls *tls, uint64_t deadline_ns)
{
    (void)deadline_ns;
    mc_assert(tls == NULL);
    return 1;
}
int mc_tls_handshake(struct mc_tls *tls, uint64_t deadline_ns)
{
    (void)deadline_ns;
    mc_assert(tls == NULL);
    return 0;
}
int mc_tls_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count, uint64_t deadline_ns)
{
    (void)parts, (void)part_count, (void)deadline_ns;
    mc_assert(tls == NULL);
    return 0;
}
int64_t mc_tls_receive(struct mc_tls *tls, void *data, size_t size, uint64_t deadline_ns)
{
    (void)data, (void)size, (void)deadline_ns;
    mc_assert(tls == NULL);
    return 0;
}
int mc_tls_error(const struct mc_tls *tls)
{
    mc_assert(tls == NULL);
    return 0;
}
bool mc_tls_is_ready(struct mc_tls *tls)
{
    mc_assert(tls == NULL);
    return true;
}
int64_t mc_tls_read(struct mc_tls *tls, void *data, size_t size)
{
    (void)data, (void)size;
    mc_assert(tls == NULL);
    return 0;
}
bool mc_tls_holds(struct mc_tls *tls)
{
    mc_assert(tls == NULL);
    return false;
}
void mc_tls_hold(struct mc_tls *tls, bool only_held)
{
    (void)only_held;
    mc_assert(tls == NULL);
}

/* Nobody has TLS: what begins a connection finds nothing to do. */
mc_secure_entry *_Atomic mc_secure_table;
int mc_secure_check(bool serves, char *error, size_t error_size)
{
    (void)serves, (void)error, (void)error_size;
    return 0;
}
int mc_secure_call(int fd, const char *address)
{
    (void)fd, (void)address;
    return 0;
}
int mc_secure_call_like(int fd, int other)
{
    (void)fd, (void)other;
    return 0;
}
int mc_secure_accept(int fd)
{
    (void)fd;
    return 0;
}
int mc_secure_shake(int fd)
{
    (void)fd;
    return 1;
}
int mc_secure_connect(int fd, const char *address, uint64_t deadline_ns)
{
    (void)fd, (void)address, (void)deadline_ns;
    return 0;
}
struct mc_tls_settings mc_secure_serves(void)
{
    return (struct mc_tls_settings){.is_server = true};
}
bool mc_secure_is_called(void)
{
    return false;
}
bool mc_secure_is_served(void)
{
    return false;
}
void mc_secure_forget_entry(int fd)
{
    (void)fd;
    mc_assert(false);
}
void mc_secure_note(int fd, const void *data, size_t length, bool serves)
{
    (void)fd, (void)data, (void)length, (void)serves; /* what is no TLS may begin like it */
}
ssize_t mc_secure_recv(struct mc_tls *tls, const struct iovec *parts, size_t part_count)
{
    (void)parts, (void)part_count;
    mc_assert(tls == NULL);
    return 0;
}
ssize_t mc_secure_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count)
{
    (void)parts, (void)part_count;
    mc_assert(tls == NULL);
    return 0;
}

const char *mc_tls_problem(const struct mc_tls *tls)
{
    mc_assert(tls == NULL);
    return "";
}

struct mc_tls_settings mc_etcd_tls(void)
{
    return (struct mc_tls_settings){.authority = NULL};
}
bool mc_etcd_tls_is_set(void)
{
    return false;
}
bool mc_etcd_has_login(void)
{
    return false;
}
int mc_etcd_login_body(struct mc_buffer *body, char user[MC_ETCD_USER_MAX], char *error, size_t error_size)
{
    (void)body, (void)user, (void)error, (void)error_size;
    return MC_ERR_INVALID_PARAMS;
}
void mc_etcd_token_get(const char *endpoints, char token[MC_ETCD_TOKEN_MAX])
{
    (void)endpoints;
    token[0] = 0;
}
void mc_etcd_token_set(const char *endpoints, const char *token)
{
    (void)endpoints, (void)token;
}

char *mc_file_read(void *context, const char *path, size_t *length, char *error, size_t error_size)
{
    (void)context, (void)path, (void)error, (void)error_size;
    *length = 5;
    return strdup("token");
}

bool mc_keys_are_wanted(void)
{
    return false;
}
int mc_keys_stranger_status(unsigned right, bool is_near)
{
    (void)right, (void)is_near;
    return 0;
}
bool mc_keys_own(struct mc_key *key)
{
    (void)key;
    return false;
}
bool mc_keys_find(struct mc_span id, struct mc_key *key)
{
    (void)id, (void)key;
    return false;
}
void mc_rights_format(char *text, size_t size, unsigned rights)
{
    (void)size, (void)rights;
    text[0] = 0;
}
void mc_key_prove(const uint8_t secret[MC_KEY_SECRET_BYTES], const struct mc_span *parts, size_t count,
                  uint8_t proof[MC_KEY_SECRET_BYTES])
{
    (void)secret, (void)parts, (void)count, (void)proof;
    mc_assert(false);
}
void mc_key_prove_end(const char *who, const uint8_t secret[MC_KEY_SECRET_BYTES],
                      const uint8_t caller[MC_KEY_SECRET_BYTES], const uint8_t server[MC_KEY_SECRET_BYTES],
                      struct mc_span name, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    (void)who, (void)secret, (void)caller, (void)server, (void)name, (void)proof;
    mc_assert(false);
}
/* Where a plan wants epochs to be proved: anybody could make these, and nobody here does. */
bool mc_keys_epoch_prove(uint64_t epoch, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    uint64_t word = mc_hash(&epoch, sizeof(epoch)).low;
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i += sizeof(word), word = word * 3 + 1)
        memcpy(proof + i, &word, sizeof(word));
    return sim_plan->proves_epochs;
}
bool mc_keys_epoch_is_proved(uint64_t epoch, struct mc_span proof)
{
    uint8_t made[MC_KEY_SECRET_BYTES];
    bool is_proved =
        proof.length == sizeof(made) && mc_keys_epoch_prove(epoch, made) && memcmp(made, proof.data, sizeof(made)) == 0;
    if (!is_proved)
        sim_fail("a node cannot prove that it has met epoch %llu", (unsigned long long)epoch);
    return is_proved;
}
bool mc_keys_has_number(uint64_t number)
{
    (void)number;
    return true;
}
uint64_t mc_key_number(const char *id)
{
    (void)id;
    mc_assert(false);
    return 0;
}
void mc_key_draw(uint8_t bytes[MC_KEY_SECRET_BYTES]) /* a store node draws one, whether it is wanted or not */
{
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i += sizeof(uint64_t)) {
        uint64_t value = mc_random_u64();
        memcpy(bytes + i, &value, sizeof(value));
    }
}
bool mc_key_equal(const void *a, const void *b, size_t length)
{
    (void)a, (void)b, (void)length;
    mc_assert(false);
    return false;
}
int mc_keys_check(char *error, size_t error_size)
{
    (void)error, (void)error_size;
    return 0;
}
unsigned mc_keys_version(void)
{
    return 0;
}
void mc_key_note(struct mc_key_proved *proved, const struct mc_key *key, unsigned version)
{
    (void)proved, (void)key, (void)version;
    mc_assert(false);
}
bool mc_key_holds(struct mc_key_proved *proved)
{
    (void)proved;
    mc_assert(false);
    return false;
}
