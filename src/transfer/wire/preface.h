/* Keys between engines (env/keys.h): where a process has keys, each connection to its engines, and each of its own to
 * other engines, begins so, before anything that the port is for:
 *
 *   caller -> server  AUTH       which port it means, 32 random bytes, the id of its key
 *   server -> caller  CHALLENGE  32 random bytes of its own, and the server's proof; or why not, and the end
 *   caller -> server  PROOF      the caller's proof; what the port is for may come right behind it
 *
 * The proofs are those of the store (store/wire/proof.h), of another name: the server proves itself first, no proof is
 * of use a second time, at another port, or to a store. Each message has a fixed size, and the server takes no byte
 * beyond the one that it waits for. A caller that begins otherwise has no key. Then, and to who has none that counts,
 * the handshake port says why; other ports hang up: what is said there could be taken for the bytes that were asked
 * for.
 *
 * A server refuses keys of another tenant than its own key's, as it does unknown ones (MC_ERR_TENANT_NOT_REGISTERED in
 * CHALLENGE).
 *
 * To a server that has no keys (or knows none, as the original's) AUTH is what no request is: as a handshake it is
 * longer than any, as a request for data it is of no known kind. It hangs up. */
#ifndef MC_TRANSFER_PREFACE_H
#define MC_TRANSFER_PREFACE_H

#include "base/bytes.h"
#include "env/keys.h"

enum mc_preface_port { MC_PREFACE_HANDSHAKE = 'H', MC_PREFACE_DATA = 'D', MC_PREFACE_HOST = 'U' };

struct mc_preface_auth {
    uint64_t magic, zero; /* where a request for data has its length and address, */
    uint8_t port;         /* its kind, */
    uint8_t zeros[7];     /* and its connection */
    uint8_t nonce[MC_KEY_SECRET_BYTES];
    char key[MC_KEY_ID_MAX]; /* zeros behind it */
};
struct mc_preface_challenge {
    uint64_t magic;
    int32_t code, zero; /* 0; negative: no, and nothing else counts. MC_ERR_NOT_PERMITTED: the key is not known */
    uint8_t nonce[MC_KEY_SECRET_BYTES], proof[MC_KEY_SECRET_BYTES];
};
struct mc_preface_proof {
    uint64_t magic;
    uint8_t proof[MC_KEY_SECRET_BYTES];
};
_Static_assert(sizeof(struct mc_preface_auth) == 120 && sizeof(struct mc_preface_challenge) == 80 &&
                   sizeof(struct mc_preface_proof) == 40,
               "wire format");

/* ---- the server's end ---- */

struct mc_preface { /* zeroed, but for the port */
    enum mc_preface_port port;
    bool is_asked;
    uint32_t used;
    union {
        uint8_t bytes[sizeof(struct mc_preface_auth)];
        struct mc_preface_auth auth;
        struct mc_preface_proof proof;
    } in;
    struct mc_preface_challenge challenge;
    uint8_t expected[MC_KEY_SECRET_BYTES]; /* of the caller's proof */
    struct mc_key key;                     /* whose it is; counts once it has been proved. Without its secret */
    struct mc_key_proved proved;           /* likewise */
};

/* Where to receive the next bytes; at most so many. */
size_t mc_preface_window(struct mc_preface *preface, uint8_t **at);
/* So many have come. 0: more is needed. 1: preface->challenge is to be sent, then more is needed. 2: the caller has
 * proved preface->key. Negative: it has not (MC_ERR_NOT_PERMITTED: it has shown no key, or one that we do not know, or
 * the wrong secret; MC_ERR_TENANT_NOT_REGISTERED: one of another tenant than ours; MC_ERR_PROTOCOL): nothing more is
 * taken, and preface->challenge says so where challenge.magic is set. */
int mc_preface_received(struct mc_preface *preface, size_t count);
/* What a log says of a caller that was refused. */
const char *mc_preface_fault(const struct mc_preface *preface, int code);
/* Is it of the tenant that this process's own key has? What its engines have registered is that tenant's, and nobody
 * else's. */
bool mc_preface_is_of_ours(const struct mc_key *key);

/* ---- the caller's end ---- */

/* All of it, up to and with PROOF; 0 at once where this process has no keys. Ends early when is_useless says so, which
 * is asked now and then; NULL: it does not. Negative: as sockets fail, MC_ERR_NOT_PERMITTED or MC_ERR_PROTOCOL; and a
 * line of the log says what to do. whom: for that. */
int mc_preface_prove(int fd, enum mc_preface_port port, const char *whom, uint64_t deadline_ns,
                     bool (*is_useless)(void *context), void *context);
/* Is that the beginning of an answer by which a handshake port refuses who has shown no key? */
bool mc_preface_is_refusal(struct mc_span bytes);

#endif
