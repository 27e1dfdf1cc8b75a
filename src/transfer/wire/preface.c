/* What comes before everything else between engines that have keys. */
#include "transfer/wire/preface.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"

#include <stdio.h>
#include <string.h>

#define AUTH_MAGIC UINT64_C(0x31687475612d636d)      /* "mc-auth1" */
#define CHALLENGE_MAGIC UINT64_C(0x316c6168632d636d) /* "mc-chal1" */
#define PROOF_MAGIC UINT64_C(0x31666f72702d636d)     /* "mc-prof1" */
#define WHO_MAX 40u
#define LOOK_MS 100u

/* Who proves, and at which port: what a proof is good for. */
static void who_proves(char who[WHO_MAX], const char *end, enum mc_preface_port port)
{
    snprintf(who, WHO_MAX, "mooncake engine %s %c 1", end, (int)port);
}

static void prove(const char *end, enum mc_preface_port port, const uint8_t *secret, const uint8_t *caller,
                  const uint8_t *server, const char *key, uint8_t proof[MC_KEY_SECRET_BYTES])
{
    char who[WHO_MAX];
    who_proves(who, end, port);
    mc_key_prove_end(who, secret, caller, server, mc_span_string(key), proof);
}

/* ---- the server's end ---- */

size_t mc_preface_window(struct mc_preface *preface, uint8_t **at)
{
    size_t whole = preface->is_asked ? sizeof(preface->in.proof) : sizeof(preface->in.auth);
    *at = preface->in.bytes + preface->used;
    return whole - preface->used;
}

static int refuse(struct mc_preface *preface, int code)
{
    preface->challenge = (struct mc_preface_challenge){.magic = CHALLENGE_MAGIC, .code = code};
    return code;
}

bool mc_preface_is_of_ours(const struct mc_key *key)
{
    struct mc_key own;
    bool is_same = mc_keys_own(&own) && strcmp(own.tenant, key->tenant) == 0;
    explicit_bzero(own.secret, sizeof(own.secret));
    return is_same;
}

static int auth_take(struct mc_preface *preface)
{
    const struct mc_preface_auth *auth = &preface->in.auth;
    struct mc_key key;
    size_t length = strnlen(auth->key, sizeof(auth->key));
    if (auth->port != preface->port || length == 0 || length == sizeof(auth->key))
        return MC_ERR_PROTOCOL;
    unsigned version = mc_keys_version();
    if (!mc_keys_find(mc_span(auth->key, length), &key))
        return refuse(preface, MC_ERR_NOT_PERMITTED);
    if (!mc_preface_is_of_ours(&key)) {
        explicit_bzero(key.secret, sizeof(key.secret));
        return refuse(preface, MC_ERR_TENANT_NOT_REGISTERED);
    }
    struct mc_preface_challenge *challenge = &preface->challenge;
    *challenge = (struct mc_preface_challenge){.magic = CHALLENGE_MAGIC};
    mc_key_draw(challenge->nonce);
    prove("server", preface->port, key.secret, auth->nonce, challenge->nonce, key.id, challenge->proof);
    prove("caller", preface->port, key.secret, auth->nonce, challenge->nonce, key.id, preface->expected);
    mc_key_note(&preface->proved, &key, version);
    explicit_bzero(key.secret, sizeof(key.secret));
    preface->key = key;
    preface->is_asked = true;
    preface->used = 0;
    return 1;
}

/* As far as it has come. */
static bool is_magic(const struct mc_preface *preface, uint64_t magic)
{
    return memcmp(preface->in.bytes, &magic, preface->used < sizeof(magic) ? preface->used : sizeof(magic)) == 0;
}

int mc_preface_received(struct mc_preface *preface, size_t count)
{
    uint64_t magic = preface->is_asked ? PROOF_MAGIC : AUTH_MAGIC;
    preface->used += (uint32_t)count;
    if (!is_magic(preface, magic)) {
        if (preface->is_asked)
            return MC_ERR_PROTOCOL;
        return preface->port == MC_PREFACE_HANDSHAKE ? refuse(preface, MC_ERR_NOT_PERMITTED) : MC_ERR_NOT_PERMITTED;
    }
    if (preface->used < (preface->is_asked ? sizeof(preface->in.proof) : sizeof(preface->in.auth)))
        return 0;
    if (!preface->is_asked)
        return auth_take(preface);
    preface->challenge.magic = 0;
    bool is_right = mc_key_equal(preface->in.proof.proof, preface->expected, sizeof(preface->expected));
    return is_right ? 2 : MC_ERR_NOT_PERMITTED;
}

const char *mc_preface_fault(const struct mc_preface *preface, int code)
{
    if (preface->is_asked)
        return code == MC_ERR_NOT_PERMITTED ? "it does not have the secret of the key that it names"
                                            : "it did not go on as a proof does";
    if (code == MC_ERR_TENANT_NOT_REGISTERED)
        return "its key is of another tenant than our own, which is the first of our keys";
    if (code != MC_ERR_NOT_PERMITTED)
        return "it means another port, or names no key";
    return is_magic(preface, AUTH_MAGIC) ? "its key is none of ours (any more)"
                                         : "it has shown no key: it is told of none, or is an engine of "
                                           "the original or of a release without keys";
}

/* ---- the caller's end ---- */

bool mc_preface_is_refusal(struct mc_span bytes)
{
    uint64_t magic = CHALLENGE_MAGIC;
    return bytes.length >= sizeof(magic) && memcmp(bytes.data, &magic, sizeof(magic)) == 0;
}

static int receive_challenge(int fd, struct mc_preface_challenge *challenge, uint64_t deadline_ns,
                             bool (*is_useless)(void *context), void *context)
{
    size_t used = 0;
    while (used < sizeof(*challenge)) {
        uint64_t until_ns = mc_clock_ns() + LOOK_MS * 1000000ull;
        bool is_last = deadline_ns <= until_ns || (is_useless != NULL && is_useless(context));
        int64_t got = mc_socket_receive(fd, (uint8_t *)challenge + used, sizeof(*challenge) - used,
                                        deadline_ns < until_ns ? deadline_ns : until_ns, NULL);
        if (got < 0 && (got != MC_ERR_RPC_TIMEOUT || is_last))
            return (int)got;
        used += got < 0 ? 0 : (size_t)got;
    }
    return 0;
}

static int failed(const char *whom, int rc, const char *why)
{
    mc_log_limited(ERROR, "our key is of no use at the engine %s: %s", whom, why);
    return rc;
}

static int prove_with(const struct mc_key *key, int fd, enum mc_preface_port port, const char *whom,
                      uint64_t deadline_ns, bool (*is_useless)(void *context), void *context)
{
    struct mc_preface_auth auth = {.magic = AUTH_MAGIC, .port = (uint8_t)port};
    struct mc_preface_challenge challenge = {0};
    struct mc_preface_proof proof = {.magic = PROOF_MAGIC};
    uint8_t expected[MC_KEY_SECRET_BYTES];
    memcpy(auth.key, key->id, sizeof(auth.key));
    mc_key_draw(auth.nonce);
    struct iovec first = {&auth, sizeof(auth)}, second = {&proof, sizeof(proof)};
    int rc = mc_socket_send(fd, &first, 1, deadline_ns);
    if (rc == 0)
        rc = receive_challenge(fd, &challenge, deadline_ns, is_useless, context);
    if (rc == MC_ERR_RPC_FAIL)
        return failed(whom, rc, "it hung up: it has no keys, or is of the original or of a release without them");
    if (rc < 0)
        return rc;
    if (challenge.magic == CHALLENGE_MAGIC && challenge.code == MC_ERR_NOT_PERMITTED)
        return failed(whom, MC_ERR_NOT_PERMITTED, "it does not know it (any more): give both the same file of keys");
    if (challenge.magic == CHALLENGE_MAGIC && challenge.code == MC_ERR_TENANT_NOT_REGISTERED)
        return failed(whom, MC_ERR_NOT_PERMITTED, "it is of another tenant, or we are: engines serve their own");
    if (challenge.magic != CHALLENGE_MAGIC || challenge.code != 0)
        return failed(whom, MC_ERR_PROTOCOL, "it speaks another protocol");
    prove("server", port, key->secret, auth.nonce, challenge.nonce, key->id, expected);
    if (!mc_key_equal(expected, challenge.proof, sizeof(expected)))
        return failed(whom, MC_ERR_NOT_PERMITTED, "it has another secret under that id, or is no engine of ours");
    prove("caller", port, key->secret, auth.nonce, challenge.nonce, key->id, proof.proof);
    return mc_socket_send(fd, &second, 1, deadline_ns);
}

int mc_preface_prove(int fd, enum mc_preface_port port, const char *whom, uint64_t deadline_ns,
                     bool (*is_useless)(void *context), void *context)
{
    struct mc_key key;
    if (!mc_keys_own(&key))
        return 0;
    int rc = key.id[0] == 0 ? failed(whom, MC_ERR_NOT_PERMITTED, "it cannot be read, see above")
                            : prove_with(&key, fd, port, whom, deadline_ns, is_useless, context);
    explicit_bzero(&key, sizeof(key));
    return rc;
}
