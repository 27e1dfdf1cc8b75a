/* Mutual proof of a secret. */
#include "store/wire/proof.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/socket.h"
#include "store/wire/stream.h"
#include "store/wire/version.h"

#define SERVER "mooncake server 1"
#define CALLER "mooncake caller 1"

static struct mc_span secret_span(const uint8_t bytes[MC_KEY_SECRET_BYTES])
{
    return mc_span(bytes, MC_KEY_SECRET_BYTES);
}

static bool is_nonce(struct mc_span bytes)
{
    return bytes.length == MC_KEY_SECRET_BYTES;
}

/* ---- the caller's end ---- */

void mc_prover_begin(struct mc_prover *prover, struct mc_span key, const uint8_t secret[MC_KEY_SECRET_BYTES],
                     struct mc_buffer *out)
{
    mc_assert(key.length > 0 && key.length <= sizeof(prover->key));
    memcpy(prover->key, key.data, key.length);
    prover->key_length = (uint16_t)key.length;
    memcpy(prover->secret, secret, sizeof(prover->secret));
    mc_key_draw(prover->nonce);
    struct mc_wire_auth auth = {.key = key, .nonce = secret_span(prover->nonce)};
    mc_wire_auth_frame(out, mc_frame_begin(out, MC_MESSAGE_AUTH, 0), &auth);
}

int mc_prover_take(const struct mc_prover *prover, const struct mc_frame *frame, struct mc_buffer *out,
                   char why[MC_PROOF_TEXT_MAX])
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_challenge challenge;
    uint8_t expected[MC_KEY_SECRET_BYTES], mine[MC_KEY_SECRET_BYTES];
    struct mc_span name = mc_span(prover->key, prover->key_length);
    why[0] = 0;
    mc_wire_challenge_read(&reader, &challenge);
    if (frame->type != MC_MESSAGE_CHALLENGE || mc_wire_check(frame->type, frame->body) != 0)
        return MC_ERR_PROTOCOL;
    if (challenge.code < 0) {
        snprintf(why, MC_PROOF_TEXT_MAX, "%.*s", (int)challenge.text.length,
                 challenge.text.length == 0 ? "" : (const char *)challenge.text.data);
        return challenge.code;
    }
    if (challenge.code != 0 || !is_nonce(challenge.nonce) || !is_nonce(challenge.proof))
        return MC_ERR_PROTOCOL;
    mc_key_prove_end(SERVER, prover->secret, prover->nonce, challenge.nonce.data, name, expected);
    if (!mc_key_equal(expected, challenge.proof.data, sizeof(expected))) {
        snprintf(why, MC_PROOF_TEXT_MAX,
                 "the secret of our key is not the one that it knows under that id, or it is no server of ours");
        return MC_ERR_NOT_PERMITTED;
    }
    mc_key_prove_end(CALLER, prover->secret, prover->nonce, challenge.nonce.data, name, mine);
    struct mc_wire_proof proof = {.proof = secret_span(mine)};
    mc_wire_proof_frame(out, mc_frame_begin(out, MC_MESSAGE_PROOF, 0), &proof);
    return 0;
}

static int send_all(int fd, const struct mc_buffer *out, uint64_t deadline_ns)
{
    struct iovec part = {out->data, out->length};
    return mc_socket_send(fd, &part, 1, deadline_ns);
}

int mc_prove(int fd, struct mc_span key, const uint8_t secret[MC_KEY_SECRET_BYTES], uint64_t deadline_ns,
             char why[MC_PROOF_TEXT_MAX])
{
    struct mc_buffer out = {.may_fail = true}, in = {.may_fail = true};
    struct mc_prover prover;
    struct mc_frame frame;
    why[0] = 0;
    mc_prover_begin(&prover, key, secret, &out);
    int rc = out.failed ? MC_ERR_NO_MEMORY : send_all(fd, &out, deadline_ns);
    out.length = 0;
    int64_t used = rc < 0 ? rc : mc_socket_receive_frame(fd, &in, &frame, deadline_ns, NULL);
    if (rc == 0 && used == MC_ERR_RPC_FAIL)
        snprintf(why, MC_PROOF_TEXT_MAX,
                 "it hung up when we began to prove our key: it may be of a release without keys");
    rc = used < 0 ? (int)used : mc_prover_take(&prover, &frame, &out, why);
    if (rc == 0 && (size_t)used != in.length) /* it speaks only when asked */
        rc = MC_ERR_PROTOCOL;
    if (rc == 0)
        rc = out.failed ? MC_ERR_NO_MEMORY : send_all(fd, &out, deadline_ns);
    explicit_bzero(prover.secret, sizeof(prover.secret));
    mc_buffer_free(&out);
    mc_buffer_free(&in);
    return rc;
}

int mc_prove_own(int fd, uint64_t deadline_ns, char why[MC_PROOF_TEXT_MAX])
{
    struct mc_key key;
    why[0] = 0;
    if (!mc_keys_own(&key))
        return 0;
    if (key.id[0] == 0) {
        snprintf(why, MC_PROOF_TEXT_MAX, "our own key cannot be read, see the log");
        return MC_ERR_NOT_PERMITTED;
    }
    int rc = mc_prove(fd, mc_span_string(key.id), key.secret, deadline_ns, why);
    explicit_bzero(key.secret, sizeof(key.secret));
    return rc;
}

/* ---- the server's end ---- */

static int refuse(const struct mc_frame *frame, int code, const char *text, struct mc_buffer *out)
{
    struct mc_wire_challenge no = {.code = code, .text = mc_span_string(text)};
    mc_wire_challenge_frame(out, mc_frame_begin(out, MC_MESSAGE_CHALLENGE, frame->request_id), &no);
    return code;
}

static int auth_take(struct mc_gate *gate, const struct mc_frame *frame, mc_gate_find *find, void *context,
                     struct mc_buffer *out)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_auth auth;
    uint8_t mine[MC_KEY_SECRET_BYTES];
    mc_wire_auth_read(&reader, &auth);
    if (mc_wire_check(frame->type, frame->body) != 0 || gate->is_asked || !is_nonce(auth.nonce) ||
        auth.key.length == 0 || auth.key.length > sizeof(gate->name))
        return MC_ERR_PROTOCOL;
    if (find == NULL)
        return refuse(
            frame, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE,
            "this server has no keys, so it cannot prove that it is yours: start it with --auth_file, or call "
            "it without MC_AUTH_FILE and MC_AUTH_TOKEN",
            out);
    unsigned version = mc_keys_version();
    if (!find(context, auth.key, &gate->key))
        return refuse(frame, MC_ERR_NOT_PERMITTED,
                      "this server does not know that key (any more): mooncake_key list FILE tells which there are",
                      out);
    memcpy(gate->peer_nonce, auth.nonce.data, sizeof(gate->peer_nonce));
    memcpy(gate->name, auth.key.data, auth.key.length);
    gate->name_length = (uint16_t)auth.key.length;
    mc_key_note(&gate->proved, &gate->key, version);
    mc_key_draw(gate->nonce);
    mc_key_prove_end(SERVER, gate->key.secret, gate->peer_nonce, gate->nonce, auth.key, mine);
    struct mc_wire_challenge challenge = {.nonce = secret_span(gate->nonce), .proof = secret_span(mine)};
    mc_wire_challenge_frame(out, mc_frame_begin(out, MC_MESSAGE_CHALLENGE, frame->request_id), &challenge);
    gate->is_asked = true;
    return 0;
}

static int proof_take(struct mc_gate *gate, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_proof proof;
    uint8_t expected[MC_KEY_SECRET_BYTES];
    mc_wire_proof_read(&reader, &proof);
    if (mc_wire_check(frame->type, frame->body) != 0 || !gate->is_asked || !is_nonce(proof.proof))
        return MC_ERR_PROTOCOL;
    mc_key_prove_end(CALLER, gate->key.secret, gate->peer_nonce, gate->nonce, mc_span(gate->name, gate->name_length),
                     expected);
    if (!mc_key_equal(expected, proof.proof.data, sizeof(expected)))
        return MC_ERR_NOT_PERMITTED;
    explicit_bzero(gate->key.secret, sizeof(gate->key.secret));
    gate->is_open = true;
    return 1;
}

int mc_gate_take(struct mc_gate *gate, const struct mc_frame *frame, mc_gate_find *find, void *context,
                 struct mc_buffer *out)
{
    if (frame->type == MC_MESSAGE_AUTH)
        return auth_take(gate, frame, find, context, out);
    if (frame->type == MC_MESSAGE_PROOF)
        return proof_take(gate, frame);
    if (frame->type != MC_MESSAGE_HELLO)
        return MC_ERR_PROTOCOL;
    struct mc_wire_hello_reply no = {
        .code = MC_ERR_NOT_PERMITTED,
        .text = mc_span_string("who calls here has to prove a key: set MC_AUTH_FILE or MC_AUTH_TOKEN there")};
    mc_wire_hello_reply_sign(&no);
    mc_wire_hello_reply_frame(out, mc_frame_begin(out, MC_MESSAGE_HELLO_REPLY, frame->request_id), &no);
    return MC_ERR_NOT_PERMITTED;
}

/* ---- tickets ---- */

#define TICKET_VERSION 1u
#define TICKET_MARK 128u /* beside the rights */

void mc_ticket_write(uint8_t ticket[MC_TICKET_BYTES], struct mc_id node, unsigned rights, unsigned mark)
{
    ticket[0] = TICKET_VERSION;
    ticket[1] = (uint8_t)(rights | (mark != 0 ? TICKET_MARK : 0));
    memcpy(ticket + 2, &node.low, sizeof(node.low));
    memcpy(ticket + 10, &node.high, sizeof(node.high));
}

void mc_ticket_secret(const uint8_t key[MC_KEY_SECRET_BYTES], struct mc_span ticket,
                      uint8_t secret[MC_KEY_SECRET_BYTES])
{
    struct mc_span parts[] = {mc_span_string("mooncake ticket 1"), ticket};
    mc_key_prove(key, parts, sizeof(parts) / sizeof(parts[0]), secret);
}

bool mc_ticket_read(struct mc_span ticket, struct mc_id *node, unsigned *rights, unsigned *mark)
{
    const uint8_t *bytes = ticket.data;
    if (ticket.length != MC_TICKET_BYTES || bytes[0] != TICKET_VERSION)
        return false;
    *rights = bytes[1] & (MC_RIGHTS_ALL | MC_TICKET_OF_TENANT); /* a stranger may have named any */
    *mark = (bytes[1] & TICKET_MARK) != 0;
    memcpy(&node->low, bytes + 2, sizeof(node->low));
    memcpy(&node->high, bytes + 10, sizeof(node->high));
    return true;
}

/* ---- rights ---- */

unsigned mc_right_needed(unsigned type)
{
    switch (type) {
    case MC_MESSAGE_MOUNT:
    case MC_MESSAGE_UNMOUNT:
    case MC_MESSAGE_FLUSH:
    case MC_MESSAGE_LIVE:
    case MC_MESSAGE_CLEARED:
    case MC_MESSAGE_CUT_DONE:
    case MC_MESSAGE_INVENTORY:
    case MC_MESSAGE_LOST:
    case MC_MESSAGE_HINTED:
        return MC_RIGHT_NODE;
    case MC_MESSAGE_PUT_START:
    case MC_MESSAGE_PUT_REVOKE:
    case MC_MESSAGE_PUT_BIND:
    case MC_MESSAGE_REMOVE:
    case MC_MESSAGE_REMOVE_REGEX:
    case MC_MESSAGE_REMOVE_ALL:
    case MC_MESSAGE_COMMIT:
    case MC_MESSAGE_WRITE:
    case MC_MESSAGE_ATTACH:     /* the map can be written */
    case MC_MESSAGE_RDMA_OFFER: /* and so can registered memory */
        return MC_RIGHT_WRITE;
    case MC_MESSAGE_GET:
    case MC_MESSAGE_EXIST:
    case MC_MESSAGE_SEGMENT_KEYS:
    case MC_MESSAGE_READ:
    case MC_MESSAGE_ROTTEN: /* who says so has read it */
        return MC_RIGHT_READ;
    case MC_MESSAGE_HINT: /* which of them, the core knows */
        return MC_RIGHT_READ | MC_RIGHT_WRITE;
    case MC_MESSAGE_SEGMENT: /* where others are, and that one of them is not there: who uses the pool, or is of it */
    case MC_MESSAGE_SEGMENT_NAMED:
    case MC_MESSAGE_SEGMENTS:
    case MC_MESSAGE_SUSPECT:
        return MC_RIGHT_READ | MC_RIGHT_WRITE | MC_RIGHT_NODE;
    default:
        return 0;
    }
}

bool mc_right_suffices(unsigned rights, unsigned type)
{
    unsigned needed = mc_right_needed(type);
    return needed == 0 || (rights & needed) != 0;
}
