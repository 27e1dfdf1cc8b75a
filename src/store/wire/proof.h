/* Who is there: both ends of a connection prove that they have the same secret, before anything else is said.
 *
 *   caller -> server  AUTH       the id of its key, 32 random bytes
 *   server -> caller  CHALLENGE  32 random bytes of its own, and the proof of the server
 *   caller -> server  PROOF      the proof of the caller; the hello may come right behind it
 *
 * A proof is an HMAC of the secret over who proves, both random bytes and the key's id: none can be used a second time,
 * or by the other end. The caller looks at the server's proof before it shows its own, so a false server learns
 * nothing. The server reads nothing but these messages until then. What comes after is neither encrypted nor bound to
 * the proof: against who can change packets on their way only TLS helps.
 *
 * No sockets here, but for mc_prove: `out` is sent by whoever calls, at once. */
#ifndef MC_WIRE_PROOF_H
#define MC_WIRE_PROOF_H

#include "env/keys.h"
#include "store/wire/wire.h"

#define MC_PROOF_TEXT_MAX 256u
#define MC_PROOF_KEY_MAX 256u /* bytes of what names a key: an id, or a ticket */

/* ---- the caller's end ---- */

struct mc_prover {
    uint8_t nonce[MC_KEY_SECRET_BYTES], secret[MC_KEY_SECRET_BYTES];
    uint8_t key[MC_PROOF_KEY_MAX];
    uint16_t key_length;
};

/* Appends AUTH. */
void mc_prover_begin(struct mc_prover *prover, struct mc_span key, const uint8_t secret[MC_KEY_SECRET_BYTES],
                     struct mc_buffer *out);
/* The frame that has come. 0: the server has proved itself, and PROOF is appended; the hello may follow. Negative: it
 * has not, MC_ERR_NOT_PERMITTED, MC_ERR_PROTOCOL, or its own code; why says what to do. */
int mc_prover_take(const struct mc_prover *prover, const struct mc_frame *frame, struct mc_buffer *out,
                   char why[MC_PROOF_TEXT_MAX]);
/* All of it on a socket, up to and with PROOF. 0 or negative, as above or as sockets fail. */
int mc_prove(int fd, struct mc_span key, const uint8_t secret[MC_KEY_SECRET_BYTES], uint64_t deadline_ns,
             char why[MC_PROOF_TEXT_MAX]);
/* The same with this process's own key, towards a master. 0 at once where there are no keys. */
int mc_prove_own(int fd, uint64_t deadline_ns, char why[MC_PROOF_TEXT_MAX]);

/* ---- the server's end ---- */

/* Fills in the key of that name. False: there is none. */
typedef bool mc_gate_find(void *context, struct mc_span name, struct mc_key *key);

struct mc_gate { /* zeroed: shut */
    uint8_t peer_nonce[MC_KEY_SECRET_BYTES], nonce[MC_KEY_SECRET_BYTES];
    uint8_t name[MC_PROOF_KEY_MAX];
    uint16_t name_length;
    struct mc_key key;           /* whose it is; counts once is_open */
    struct mc_key_proved proved; /* likewise; of a key, not of a ticket */
    bool is_asked, is_open;
};

/* A frame that comes while the gate is shut. 1: it is open now; 0: go on; negative: nothing more is read, and the
 * connection ends once `out` is sent (where a refusal is appended). find NULL: this server wants no keys. */
int mc_gate_take(struct mc_gate *gate, const struct mc_frame *frame, mc_gate_find *find, void *context,
                 struct mc_buffer *out);

/* ---- tickets ---- */

/* Owners have no file of keys. An owner draws a key for tickets, which it tells the master with its MOUNT; the master
 * tells a client that asks for the segment a ticket (who it is for, and what its holder may) and the ticket's secret,
 * which is an HMAC of it under that key. The client proves that secret to the owner, the ticket being its name. */
#define MC_TICKET_BYTES 18u
#define MC_TICKET_OF_TENANT 64u /* beside the rights: its holder is of one tenant, and has a part of the memory only */

/* mark: 0 or 1, of the owner's key under which the secret is made. */
void mc_ticket_write(uint8_t ticket[MC_TICKET_BYTES], struct mc_id node, unsigned rights, unsigned mark);
void mc_ticket_secret(const uint8_t key[MC_KEY_SECRET_BYTES], struct mc_span ticket,
                      uint8_t secret[MC_KEY_SECRET_BYTES]);
/* False: it is none. */
bool mc_ticket_read(struct mc_span ticket, struct mc_id *node, unsigned *rights, unsigned *mark);

/* ---- rights ---- */

/* Of enum mc_right: a message of that type needs one of them, whichever; 0: none, any key may send it. */
unsigned mc_right_needed(unsigned type);
/* Has a holder of those rights what it needs? */
bool mc_right_suffices(unsigned rights, unsigned type);

#endif
