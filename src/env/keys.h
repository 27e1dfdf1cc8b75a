/* Keys: who may do what. A process that serves has a file of them; one that calls has one, its own. Without any, nobody
 * is asked for one.
 *
 * The file has a line for each key: its id, 64 hexadecimal digits of secret, its rights (read, write, node, admin,
 * separated by commas, or master alone) and, if it is not the default one, its tenant; what follows a '#' is a comment.
 * `mooncake_key` writes it. A thread (watch.h) reads it again within a second of a change, so keys are added and
 * revoked without a restart, and a file system that hangs holds up nobody who looks for a key; a file that cannot be
 * read, or has a bad line, does not replace the one before it.
 *
 * Where the keys come from, in this order: mc_keys_use (a flag), MC_AUTH_FILE, MC_AUTH_TOKEN ("id:secret", one key with
 * all rights). The first key of a file is what the process itself shows to others. All threads may call. */
#ifndef MC_ENV_KEYS_H
#define MC_ENV_KEYS_H

#include "base/bytes.h"

#define MC_KEY_ID_MAX 64u       /* bytes of an id or a tenant, with its end: letters, digits, '-', '_' and '.' */
#define MC_KEY_SECRET_BYTES 32u /* also of a proof */

enum mc_right {
    MC_RIGHT_READ = 1,
    MC_RIGHT_WRITE = 2,
    MC_RIGHT_NODE = 4,
    MC_RIGHT_ADMIN = 8,
    MC_RIGHTS_ALL = 15,
    MC_RIGHT_MASTER = 16
}; /* nobody shows such a key: masters prove their epochs with it */

struct mc_key {
    char id[MC_KEY_ID_MAX], tenant[MC_KEY_ID_MAX]; /* tenant "": the default one */
    uint8_t secret[MC_KEY_SECRET_BYTES];
    unsigned rights; /* of enum mc_right */
};

/* That file, whatever the environment says; NULL or "": as the environment says. Before the first call of the rest. */
void mc_keys_use(const char *file);
/* Reads them. 0, also when there are none; MC_ERR_INVALID_PARAMS with a line in error: the file or the token is bad, or
 * this machine has nothing to compute proofs with. */
int mc_keys_check(char *error, size_t error_size);
/* Are there keys? Then who comes has to prove one. */
bool mc_keys_are_wanted(void);
/* The key that this process shows. False: there are none. */
bool mc_keys_own(struct mc_key *key);
bool mc_keys_find(struct mc_span id, struct mc_key *key);
/* The file they are read from; false: there is none, they are of MC_AUTH_TOKEN. */
bool mc_keys_file(char *name, size_t size);
/* "id:secret", as in MC_AUTH_TOKEN or behind "Bearer ". Takes as long for any wrong secret. */
bool mc_keys_find_token(struct mc_span token, struct mc_key *key);

/* What a request's Authorization says: 0: the key has that right, or nobody is asked for one; 401: it shows no key of
 * ours, 403: one without that right, or of a tenant. "Bearer id:secret", or "Basic", as browsers ask their users for
 * it. NULL: there is none. */
int mc_keys_http_status(const char *authorization, unsigned right);
/* The same where each tenant is told of its own: of *key, without its secret, whose id is empty where nobody is asked
 * for one. */
int mc_keys_http_status_own(const char *authorization, unsigned right, struct mc_key *key);
/* Without keys, what only an administrator should do is done for neighbours alone (mc_socket_peer_is_near), unless
 * MC_PROTECTED_MODE says no. 0 or 403. */
int mc_keys_stranger_status(unsigned right, bool is_near);
#define MC_KEYS_STRANGER                                                                                               \
    "without keys this is done only for this machine and private networks: start this process with --auth_file, or "   \
    "with MC_PROTECTED_MODE=no if everybody who reaches this port may\n"
/* A browser sends what it knows of a port along with what any page makes it ask: what only an administrator should do
 * is not done for another site's page. origin, host: of the request; NULL: there is none. 0 or 403. */
int mc_keys_origin_status(unsigned right, const char *origin, const char *host);
#define MC_KEYS_ORIGIN "this is not done for a page of another site\n"
#define MC_KEYS_CHALLENGE "Basic realm=\"mooncake\", Bearer" /* WWW-Authenticate, beside 401 */
#define MC_KEYS_BEARER_MAX (MC_KEY_ID_MAX + 2 * MC_KEY_SECRET_BYTES + 16)
/* "Bearer id:secret" of this process's key. NULL: it has none. */
const char *mc_keys_bearer(char text[MC_KEYS_BEARER_MAX]);

/* A key that somebody has proved: does it still hold, or was it revoked, or its secret, rights or tenant changed since?
 */
struct mc_key_proved {
    char id[MC_KEY_ID_MAX];
    uint64_t mark;
    unsigned version; /* of all keys, when it was looked up, or looked at last */
};
/* Before a key is looked up, for mc_key_note. */
unsigned mc_keys_version(void);
/* A number that tells keys apart by their ids, never 0; and is there one of that number? */
uint64_t mc_key_number(const char *id);
bool mc_keys_has_number(uint64_t number);
void mc_key_note(struct mc_key_proved *proved, const struct mc_key *key, unsigned version);
/* Looks only where the keys have changed. */
bool mc_key_holds(struct mc_key_proved *proved);

/* The text of a file: what mc_keys_check makes of it. Count of keys in *keys (free), or negative with a line. */
int mc_keys_parse(const char *text, size_t length, struct mc_key **keys, char *error, size_t error_size);
/* "read,write" appended to nothing: text must hold 32 bytes. */
void mc_rights_format(char *text, size_t size, unsigned rights);
/* 0: there is none such. */
unsigned mc_rights_parse(struct mc_span text);

/* HMAC-SHA256 of the parts, one after the other, each with its length before it; 4 KiB at most in all. */
void mc_key_prove(const uint8_t secret[MC_KEY_SECRET_BYTES], const struct mc_span *parts, size_t count,
                  uint8_t proof[MC_KEY_SECRET_BYTES]);
/* The proof of one end of a connection that it has the secret: who proves, the random bytes of both ends, and the name
 * of the key. `who` differs by end and by protocol, so that no proof is of use anywhere else. */
void mc_key_prove_end(const char *who, const uint8_t secret[MC_KEY_SECRET_BYTES],
                      const uint8_t caller[MC_KEY_SECRET_BYTES], const uint8_t server[MC_KEY_SECRET_BYTES],
                      struct mc_span name, uint8_t proof[MC_KEY_SECRET_BYTES]);
/* Masters prove to each other that an epoch was one of theirs, by keys of right `master`, which their files have and no
 * one else's: nodes bring the proof of the highest epoch that they have met. Made with the first of these keys; false:
 * there is none. */
bool mc_keys_epoch_prove(uint64_t epoch, uint8_t proof[MC_KEY_SECRET_BYTES]);
/* Was it made with any of them? */
bool mc_keys_epoch_is_proved(uint64_t epoch, struct mc_span proof);
/* Random bytes: of an end of a connection, or of a secret. */
void mc_key_draw(uint8_t bytes[MC_KEY_SECRET_BYTES]);
/* Takes as long whatever differs. */
bool mc_key_equal(const void *a, const void *b, size_t length);

#endif
