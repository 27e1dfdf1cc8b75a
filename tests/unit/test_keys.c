/* env/keys and store/wire/proof: files of keys, rights, and both ends of a proof, against each other and liars. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "own_stack.h"
#include "store/wire/proof.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define A64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define B64 "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"

static int parse(const char *text, struct mc_key **keys, char error[256])
{
    error[0] = 0;
    return mc_keys_parse(text, strlen(text), keys, error, 256);
}

/* ---- the file ---- */

static void a_file_of_keys(void **state)
{
    (void)state;
    struct mc_key *keys;
    char error[256];
    assert_int_equal(
        parse("# ours\n\n one " A64 " read,write  blue # its tenant\ntwo\t" B64 " admin,node", &keys, error), 2);
    assert_string_equal(keys[0].id, "one");
    assert_string_equal(keys[0].tenant, "blue");
    assert_int_equal(keys[0].rights, MC_RIGHT_READ | MC_RIGHT_WRITE);
    assert_int_equal(keys[0].secret[1], 0x11);
    assert_int_equal(keys[0].secret[31], 0xff);
    assert_string_equal(keys[1].id, "two");
    assert_string_equal(keys[1].tenant, "");
    assert_int_equal(keys[1].rights, MC_RIGHT_NODE | MC_RIGHT_ADMIN);
    free(keys);
    assert_int_equal(parse("a " A64 " node default", &keys, error), 1); /* that is none */
    assert_string_equal(keys[0].tenant, "");
    free(keys);
}

static void bad_lines_are_named_without_what_stands_there(void **state)
{
    static const struct {
        const char *text, *line, *says;
    } bad[] = {
        {"", "line 0", "no key"},
        {"# nothing\n\n", "line 2", "no key"},
        {"one\n", "line 1", "secret"},
        {"one secret read\n", "line 1", "secret"},
        {"a " A64 " read\nb " A64 "0 read\n", "line 2", "secret"},
        {"a " A64 "\n", "line 1", "rights"},
        {"a " A64 " read,,write\n", "line 1", "rights"},
        {"a " A64 " all\n", "line 1", "rights"},
        {"a/b " A64 " read\n", "line 1", "id"},
        {"a " A64 " read t/x\n", "line 1", "tenant"},
        {"a " A64 " read t more\n", "line 1", "behind"},
        {"a " A64 " read _t\n", "line 1", "begin with"},
        {"a " A64 " read,node t\n", "line 1", "a key of a tenant may read and write only"},
        {"a " A64 " admin t\n", "line 1", "a key of a tenant may read and write only"},
        {"a " A64 " read\na " B64 " read\n", "line 2", "before"},
        {"a " A64 " read,master\n", "line 1", "for nothing else"},
        {"a " A64 " master t\n", "line 1", "of no tenant"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mc_key *keys = NULL;
        char error[256];
        assert_int_equal(parse(bad[i].text, &keys, error), MC_ERR_INVALID_PARAMS);
        assert_null(keys);
        assert_non_null(strstr(error, bad[i].line));
        assert_non_null(strstr(error, bad[i].says));
        assert_null(strstr(error, "0011223344"));
    }
}

static void rights_there_and_back(void **state)
{
    char text[32];
    (void)state;
    for (unsigned rights = 1; rights <= MC_RIGHTS_ALL; rights++) {
        mc_rights_format(text, sizeof(text), rights);
        assert_int_equal(mc_rights_parse(mc_span_string(text)), rights);
    }
    assert_int_equal(mc_rights_parse(mc_span_string("master")), MC_RIGHT_MASTER);
    assert_int_equal(mc_rights_parse(mc_span_string("")), 0);
    assert_int_equal(mc_rights_parse(mc_span_string("Read")), 0);
}

static char path[64];

static void write_file(const char *text)
{
    char beside[80];
    snprintf(beside, sizeof(beside), "%s.new", path);
    FILE *file = fopen(beside, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(beside, 0600), 0);
    assert_int_equal(rename(beside, path), 0);
}

static bool is_proved(uint64_t epoch, const uint8_t proof[MC_KEY_SECRET_BYTES])
{
    return mc_keys_epoch_is_proved(epoch, mc_span(proof, MC_KEY_SECRET_BYTES));
}

/* Masters' own keys: shown to nobody, and by them epochs are proved, over a rotation, too. */
static void epochs_are_proved(void **state)
{
    char error[1024];
    struct mc_key key;
    uint8_t old[MC_KEY_SECRET_BYTES], both[MC_KEY_SECRET_BYTES], other[MC_KEY_SECRET_BYTES];
    (void)state;
    unsetenv("MC_AUTH_TOKEN");
    unsetenv("MC_AUTH_FILE");
    mc_keys_use("");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_false(mc_keys_epoch_prove(7, old));
    assert_false(is_proved(7, old));
    setenv("MC_AUTH_FILE", path, 1);
    write_file("first " A64 " read,write,node,admin\n");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_false(mc_keys_epoch_prove(7, old));
    write_file("m " A64 " master\n");
    assert_int_equal(mc_keys_check(error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "no key that anybody could show"));

    write_file("m " A64 " master\nfirst " B64 " read\n");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_own(&key));
    assert_string_equal(key.id, "first");
    assert_false(mc_keys_find(mc_span_string("m"), &key));
    assert_false(mc_keys_find_token(mc_span_string("m:" A64), &key));
    assert_true(mc_keys_epoch_prove(7, old));
    assert_true(is_proved(7, old));
    assert_false(is_proved(8, old));
    assert_false(mc_keys_epoch_is_proved(7, mc_span(old, 31)));
    assert_false(mc_keys_epoch_is_proved(7, mc_span(NULL, 0)));
    assert_true(mc_keys_epoch_prove(8, other));
    assert_memory_not_equal(old, other, sizeof(old));

    write_file("m " A64 " master\nfirst " B64 " read\nn " B64 " master\n");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_epoch_prove(7, both));
    assert_memory_equal(old, both, sizeof(old)); /* the first one's, until it is revoked */
    assert_true(is_proved(7, old));
    assert_true(mc_keys_has_number(mc_key_number("first")));
    assert_false(mc_keys_has_number(mc_key_number("m")));
    write_file("first " B64 " read\nn " B64 " master\n");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_false(is_proved(7, old));
    assert_true(mc_keys_epoch_prove(7, both));
    assert_memory_not_equal(old, both, sizeof(old));
    assert_true(is_proved(7, both));
    unsetenv("MC_AUTH_FILE");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

static void the_keys_of_this_process(void **state)
{
    char error[1024];
    struct mc_key key;
    (void)state;
    unsetenv("MC_AUTH_FILE");
    unsetenv("MC_AUTH_TOKEN");
    mc_keys_use("");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_false(mc_keys_are_wanted());
    assert_false(mc_keys_own(&key));
    assert_int_equal(mc_keys_http_status(NULL, MC_RIGHT_ADMIN), 0);

    setenv("MC_AUTH_TOKEN", "me:" A64, 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_are_wanted());
    assert_true(mc_keys_own(&key));
    assert_string_equal(key.id, "me");
    assert_int_equal(key.rights, MC_RIGHTS_ALL);
    setenv("MC_AUTH_TOKEN", "me:short", 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "MC_AUTH_TOKEN"));

    write_file("first " A64 " read\nother " B64 " write,read\n");
    setenv("MC_AUTH_FILE", path, 1); /* before the token */
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_own(&key));
    assert_string_equal(key.id, "first");
    assert_true(mc_keys_find(mc_span_string("other"), &key));
    assert_false(mc_keys_find(mc_span_string("othe"), &key));
    assert_true(mc_keys_find_token(mc_span_string("other:" B64), &key));
    assert_false(mc_keys_find_token(mc_span_string("other:" A64), &key));
    assert_false(mc_keys_find_token(mc_span_string("other"), &key));
    assert_int_equal(mc_keys_http_status("Bearer other:" B64, MC_RIGHT_WRITE), 0);
    assert_int_equal(mc_keys_http_status("bearer first:" A64, MC_RIGHT_WRITE), 403);
    assert_int_equal(mc_keys_http_status("Bearer first:" B64, MC_RIGHT_READ), 401);
    assert_int_equal(mc_keys_http_status(NULL, MC_RIGHT_READ), 401);

    setenv("MC_AUTH_FILE", "/no/such/file", 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "/no/such/file"));
    mc_keys_use(path); /* a flag comes first */
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_find(mc_span_string("first"), &key));
    mc_keys_use("");
    unsetenv("MC_AUTH_FILE");
    unsetenv("MC_AUTH_TOKEN");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

struct asked { /* what the functions below are called with, none of it on their stack */
    struct mc_key_proved proved;
    struct mc_key key;
    const char *authorization;
    char bearer[MC_KEYS_BEARER_MAX];
    bool is_right;
};

static void *ask_by_token(void *argument)
{
    struct asked *asked = argument;
    asked->is_right = mc_keys_find_token(mc_span_string("me:" A64), &asked->key);
    return NULL;
}

static void *ask_whether_it_holds(void *argument)
{
    struct asked *asked = argument;
    asked->is_right = mc_key_holds(&asked->proved);
    return NULL;
}

static void *ask_for_the_own_one(void *argument)
{
    struct asked *asked = argument;
    asked->is_right = mc_keys_own(&asked->key);
    return NULL;
}

static void *ask_for_the_bearer(void *argument)
{
    struct asked *asked = argument;
    asked->is_right = mc_keys_bearer(asked->bearer) == asked->bearer;
    return NULL;
}

static void *ask_for_the_status(void *argument)
{
    struct asked *asked = argument;
    asked->is_right = mc_keys_http_status(asked->authorization, MC_RIGHT_ADMIN) == 0;
    return NULL;
}

static void *ask_for_ones_own_status(void *argument)
{
    struct asked *asked = argument;
    struct mc_key key;
    asked->is_right = mc_keys_http_status_own(asked->authorization, MC_RIGHT_ADMIN, &key) == 0 && key.id[0] == 'm';
    return NULL;
}

static void *leave_one(void *argument)
{
    struct asked *asked = argument;
    uint8_t copy[MC_KEY_SECRET_BYTES];
    memcpy(copy, asked->key.secret, sizeof(copy));
    own_stack_use(copy);
    asked->is_right = copy[0] == asked->key.secret[0];
    return NULL;
}

static void no_secret_stays_on_a_stack(void **state)
{
    static struct asked asked;
    char error[1024];
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* what a function has lies elsewhere then */
    skip();
#endif
    setenv("MC_AUTH_TOKEN", "me:" A64, 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_keys_own(&asked.key));
    uint8_t secret[MC_KEY_SECRET_BYTES];
    memcpy(secret, asked.key.secret, sizeof(secret));
    assert_int_equal(left_on_stack(leave_one, &asked, secret, sizeof(secret)), 1); /* so it would be seen */
    assert_int_equal(left_on_stack(ask_by_token, &asked, secret, sizeof(secret)), 0);
    assert_true(asked.is_right);
    mc_key_note(&asked.proved, &asked.key, mc_keys_version() - 1); /* it is looked up again */
    assert_int_equal(left_on_stack(ask_whether_it_holds, &asked, secret, sizeof(secret)), 0);
    assert_true(asked.is_right);
    asked.authorization = "Bearer me:" A64;
    void *(*asks[])(void *) = {ask_for_the_own_one, ask_for_the_bearer, ask_for_the_status, ask_for_ones_own_status};
    for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
        asked.is_right = false;
        assert_int_equal(left_on_stack(asks[i], &asked, secret, sizeof(secret)), 0);
        assert_true(asked.is_right);
    }
    unsetenv("MC_AUTH_TOKEN");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

static void strangers_without_keys(void **state)
{
    char error[1024];
    (void)state;
    unsetenv("MC_PROTECTED_MODE");
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_ADMIN, false), 403);
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_ADMIN, true), 0);
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_WRITE, false), 0);
    setenv("MC_PROTECTED_MODE", "yes", 1);
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_ADMIN, false), 403);
    setenv("MC_PROTECTED_MODE", "no", 1);
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_ADMIN, false), 0);
    unsetenv("MC_PROTECTED_MODE");
    setenv("MC_AUTH_TOKEN", "me:" A64, 1); /* the keys decide */
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_int_equal(mc_keys_stranger_status(MC_RIGHT_ADMIN, false), 0);
    unsetenv("MC_AUTH_TOKEN");
    assert_true(mc_keys_are_wanted()); /* until it is looked at again */
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_false(mc_keys_are_wanted());
    assert_int_equal(mc_keys_origin_status(MC_RIGHT_ADMIN, "https://evil.example", "master:9003"), 403);
    assert_int_equal(mc_keys_origin_status(MC_RIGHT_ADMIN, "null", "master:9003"), 403);
    assert_int_equal(mc_keys_origin_status(MC_RIGHT_ADMIN, "http://master:9003", "Master:9003"), 0);
    assert_int_equal(mc_keys_origin_status(MC_RIGHT_ADMIN, NULL, "master:9003"), 0);
    assert_int_equal(mc_keys_origin_status(MC_RIGHT_READ, "https://evil.example", "master:9003"), 0);
}

/* ---- proofs ---- */

static void a_proof_is_hmac_sha256(void **state)
{
    uint8_t secret[MC_KEY_SECRET_BYTES] = {0}, proof[MC_KEY_SECRET_BYTES], other[MC_KEY_SECRET_BYTES];
    struct mc_span one[] = {mc_span_string("ab"), mc_span_string("c")},
                   two[] = {mc_span_string("a"), mc_span_string("bc")};
    /* python: hmac.new(bytes(32), b"\2\0\0\0ab\1\0\0\0c", "sha256") */
    static const uint8_t expected[] = {0xa3, 0xc6, 0x1c, 0x2c, 0x89, 0xf3, 0x91, 0x2d, 0x6d, 0x30, 0x8b,
                                       0xe0, 0xbc, 0x46, 0x10, 0x25, 0x97, 0x66, 0xb0, 0x44, 0x5e, 0x7c,
                                       0x86, 0xfc, 0xc6, 0xec, 0x37, 0xa9, 0x83, 0xc9, 0xc4, 0xee};
    (void)state;
    mc_key_prove(secret, one, 2, proof);
    assert_memory_equal(proof, expected, sizeof(expected));
    mc_key_prove(secret, two, 2, other); /* where one part ends counts */
    assert_memory_not_equal(proof, other, sizeof(proof));
    assert_true(mc_key_equal(proof, expected, sizeof(expected)));
    assert_false(mc_key_equal(proof, other, sizeof(proof)));
}

struct rig {
    struct mc_key key;
    struct mc_prover prover;
    struct mc_gate gate;
    struct mc_buffer out;
    char why[MC_PROOF_TEXT_MAX];
};

static bool find(void *context, struct mc_span name, struct mc_key *key)
{
    const struct rig *rig = context;
    *key = rig->key;
    return mc_span_equal(name, mc_span_string(rig->key.id));
}

static void rig_begin(struct rig *rig)
{
    *rig = (struct rig){.key = {.id = "k", .rights = MC_RIGHT_READ}};
    memset(rig->key.secret, 7, sizeof(rig->key.secret));
}

static struct mc_frame frame_of(const struct mc_buffer *out)
{
    struct mc_frame frame;
    size_t used;
    assert_int_equal(mc_frame_parse(out->data, out->length, &frame, &used), 1);
    assert_int_equal(used, out->length);
    return frame;
}

/* What is in rig->out goes to the gate; its answer is there then. */
static int to_gate(struct rig *rig)
{
    struct mc_buffer answer = {0};
    struct mc_frame frame = frame_of(&rig->out);
    int rc = mc_gate_take(&rig->gate, &frame, find, rig, &answer);
    mc_buffer_free(&rig->out);
    rig->out = answer;
    return rc;
}

static int to_prover(struct rig *rig)
{
    struct mc_buffer answer = {0};
    struct mc_frame frame = frame_of(&rig->out);
    int rc = mc_prover_take(&rig->prover, &frame, &answer, rig->why);
    mc_buffer_free(&rig->out);
    rig->out = answer;
    return rc;
}

static void both_ends_agree(void **state)
{
    struct rig rig;
    (void)state;
    rig_begin(&rig);
    mc_prover_begin(&rig.prover, mc_span_string("k"), rig.key.secret, &rig.out);
    assert_int_equal(to_gate(&rig), 0);
    assert_false(rig.gate.is_open);
    assert_int_equal(to_prover(&rig), 0);
    assert_int_equal(to_gate(&rig), 1);
    assert_true(rig.gate.is_open);
    assert_int_equal(rig.gate.key.rights, MC_RIGHT_READ);
    mc_buffer_free(&rig.out);
}

static void another_secret_shows_at_the_caller(void **state)
{
    struct rig rig;
    uint8_t wrong[MC_KEY_SECRET_BYTES] = {0};
    (void)state;
    rig_begin(&rig);
    mc_prover_begin(&rig.prover, mc_span_string("k"), wrong, &rig.out);
    assert_int_equal(to_gate(&rig), 0);
    assert_int_equal(to_prover(&rig), MC_ERR_NOT_PERMITTED);
    assert_int_equal(rig.out.length, 0); /* nothing was shown to it */
    assert_non_null(strstr(rig.why, "secret"));
}

/* Each bit of each message changed, on its way: never open. */
static void no_changed_bit_opens(void **state)
{
    struct rig rig;
    unsigned refused = 0;
    (void)state;
    for (unsigned message = 0; message < 3; message++) {
        for (size_t bit = 8 * MC_FRAME_HEADER_SIZE;; bit++) {
            int rc = 0;
            bool is_over = false;
            rig_begin(&rig);
            mc_prover_begin(&rig.prover, mc_span_string("k"), rig.key.secret, &rig.out);
            for (unsigned step = 0; step < 3 && rc == 0; step++) {
                if (step == message && bit / 8 >= rig.out.length) {
                    is_over = true;
                    break;
                }
                if (step == message)
                    rig.out.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
                rc = step == 1 ? to_prover(&rig) : to_gate(&rig);
            }
            mc_buffer_free(&rig.out);
            if (is_over)
                break;
            assert_false(rig.gate.is_open);
            assert_true(rc <= 0);
            refused += rc < 0;
        }
    }
    assert_true(refused > 8 * 3 * MC_KEY_SECRET_BYTES);
}

static void the_gate_takes_nothing_else(void **state)
{
    struct rig rig;
    (void)state;
    for (unsigned type = 0; type < 100; type++) {
        if (type == MC_MESSAGE_AUTH)
            continue;
        rig_begin(&rig);
        struct mc_frame frame = {.type = (uint16_t)type, .body = mc_span("\0\0", 2)};
        assert_true(mc_gate_take(&rig.gate, &frame, find, &rig, &rig.out) < 0);
        assert_false(rig.gate.is_open);
        if (type == MC_MESSAGE_HELLO) {
            struct mc_wire_hello_reply reply;
            struct mc_frame answer = frame_of(&rig.out);
            struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
            mc_wire_hello_reply_read(&reader, &reply);
            assert_int_equal(reply.code, MC_ERR_NOT_PERMITTED);
            assert_true(reply.epoch == 0 && mc_id_is_zero(reply.node));
        }
        mc_buffer_free(&rig.out);
    }
}

static void a_second_question_is_refused(void **state)
{
    struct rig rig;
    (void)state;
    rig_begin(&rig);
    mc_prover_begin(&rig.prover, mc_span_string("k"), rig.key.secret, &rig.out);
    assert_int_equal(to_gate(&rig), 0);
    mc_buffer_free(&rig.out);
    mc_prover_begin(&rig.prover, mc_span_string("k"), rig.key.secret, &rig.out);
    assert_int_equal(to_gate(&rig), MC_ERR_PROTOCOL);
    mc_buffer_free(&rig.out);
}

static void who_has_no_keys_says_so(void **state)
{
    struct rig rig;
    struct mc_buffer answer = {0};
    (void)state;
    rig_begin(&rig);
    mc_prover_begin(&rig.prover, mc_span_string("k"), rig.key.secret, &rig.out);
    struct mc_frame frame = frame_of(&rig.out);
    assert_int_equal(mc_gate_take(&rig.gate, &frame, NULL, NULL, &answer), MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    mc_buffer_free(&rig.out);
    rig.out = answer;
    assert_int_equal(to_prover(&rig), MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    assert_non_null(strstr(rig.why, "--auth_file"));
    mc_buffer_free(&rig.out);
}

static void tickets_name_their_holder(void **state)
{
    uint8_t key[MC_KEY_SECRET_BYTES], other[MC_KEY_SECRET_BYTES], ticket[MC_TICKET_BYTES];
    uint8_t secret[MC_KEY_SECRET_BYTES], again[MC_KEY_SECRET_BYTES];
    struct mc_id node = {0x1122334455667788u, 0x99aabbccddeeff00u}, read;
    unsigned rights, mark;
    (void)state;
    mc_key_draw(key);
    mc_key_draw(other);
    assert_memory_not_equal(key, other, sizeof(key));
    for (unsigned told = 2; told > 0; told--) {
        mc_ticket_write(ticket, node, MC_RIGHT_READ, told - 1);
        assert_true(mc_ticket_read(mc_span(ticket, sizeof(ticket)), &read, &rights, &mark));
        assert_true(mc_id_equal(node, read));
        assert_int_equal(rights, MC_RIGHT_READ);
        assert_int_equal(mark, told - 1);
        mc_ticket_write(ticket, node, MC_RIGHTS_ALL | MC_TICKET_OF_TENANT, told - 1);
        assert_true(mc_ticket_read(mc_span(ticket, sizeof(ticket)), &read, &rights, &mark));
        assert_int_equal(rights, MC_RIGHTS_ALL | MC_TICKET_OF_TENANT);
        assert_int_equal(mark, told - 1);
    }
    ticket[1] |= 0x30; /* rights that there are not */
    assert_true(mc_ticket_read(mc_span(ticket, sizeof(ticket)), &read, &rights, &mark));
    assert_int_equal(rights, MC_RIGHTS_ALL | MC_TICKET_OF_TENANT);
    mc_ticket_secret(key, mc_span(ticket, sizeof(ticket)), secret);
    mc_ticket_secret(other, mc_span(ticket, sizeof(ticket)), again);
    assert_memory_not_equal(secret, again, sizeof(secret));
    for (size_t bit = 0; bit < 8 * sizeof(ticket); bit++) { /* another ticket has another secret */
        ticket[bit / 8] ^= (uint8_t)(1u << bit % 8);
        mc_ticket_secret(key, mc_span(ticket, sizeof(ticket)), again);
        assert_memory_not_equal(secret, again, sizeof(secret));
        ticket[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_false(mc_ticket_read(mc_span(ticket, sizeof(ticket) - 1), &read, &rights, &mark));
    ticket[0]++;
    assert_false(mc_ticket_read(mc_span(ticket, sizeof(ticket)), &read, &rights, &mark));
}

/* Every message that changes something needs a right, whatever is added to the table later. */
static void messages_and_rights(void **state)
{
    static const unsigned free_for_all[] = {
        MC_MESSAGE_HELLO, MC_MESSAGE_HEARTBEAT, MC_MESSAGE_RENEW, MC_MESSAGE_PING, MC_MESSAGE_PONG, MC_MESSAGE_AUTH,
        MC_MESSAGE_PROOF, MC_MESSAGE_TRACE, /* the request behind it needs one */
        /* answers, and what a master or an owner says; they are no requests */
        MC_MESSAGE_HELLO_REPLY, MC_MESSAGE_FAILED, MC_MESSAGE_CHALLENGE, MC_MESSAGE_HEARTBEAT_REPLY,
        MC_MESSAGE_MOUNT_REPLY, MC_MESSAGE_UNMOUNT_REPLY, MC_MESSAGE_CLEAR, MC_MESSAGE_CUT, MC_MESSAGE_INVENTORY_ACK,
        MC_MESSAGE_OFFERED, MC_MESSAGE_CHECK, MC_MESSAGE_STORE, MC_MESSAGE_LOAD, MC_MESSAGE_FLUSHED,
        MC_MESSAGE_SEGMENT_REPLY, MC_MESSAGE_SEGMENTS_REPLY, MC_MESSAGE_SEGMENT_KEYS_REPLY, MC_MESSAGE_PUT_GRANTED,
        MC_MESSAGE_PUT_DONE, MC_MESSAGE_PUT_BLANKS, MC_MESSAGE_GET_FOUND, MC_MESSAGE_EXIST_REPLY,
        MC_MESSAGE_REMOVE_REPLY, MC_MESSAGE_HINT_REPLY, MC_MESSAGE_COUNT_REPLY, MC_MESSAGE_ATTACH_REPLY,
        MC_MESSAGE_READ_REPLY, MC_MESSAGE_READ_END, MC_MESSAGE_WRITE_END, MC_MESSAGE_RDMA_ANSWER};
    (void)state;
    for (unsigned type = 1; type < 200; type++) {
        bool is_free = strcmp(mc_message_name(type), "?") == 0;
        for (size_t i = 0; i < sizeof(free_for_all) / sizeof(free_for_all[0]); i++)
            is_free |= free_for_all[i] == type;
        if (is_free != (mc_right_needed(type) == 0))
            fail_msg("%s", mc_message_name(type));
    }
}

/* What clients say beside their calls: each right that lets its holder use the pool, or be of it, is enough. */
static void words_beside_calls_need_any_right_to_the_pool(void **state)
{
    static const unsigned places[] = {MC_MESSAGE_SEGMENT, MC_MESSAGE_SEGMENT_NAMED, MC_MESSAGE_SEGMENTS,
                                      MC_MESSAGE_SUSPECT};
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assert_true(mc_right_suffices(MC_RIGHT_READ, places[i]));
        assert_true(mc_right_suffices(MC_RIGHT_WRITE, places[i]));
        assert_true(mc_right_suffices(MC_RIGHT_NODE, places[i]));
        assert_false(mc_right_suffices(MC_RIGHT_ADMIN | MC_RIGHT_MASTER, places[i]));
    }
    assert_true(mc_right_suffices(MC_RIGHT_READ, MC_MESSAGE_ROTTEN));
    assert_false(mc_right_suffices(MC_RIGHTS_ALL & ~(unsigned)MC_RIGHT_READ, MC_MESSAGE_ROTTEN));
    assert_false(mc_right_suffices(MC_RIGHTS_ALL & ~(unsigned)MC_RIGHT_WRITE, MC_MESSAGE_WRITE));
    assert_true(mc_right_suffices(0, MC_MESSAGE_PING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_beside_calls_need_any_right_to_the_pool),
        cmocka_unit_test(a_file_of_keys),
        cmocka_unit_test(bad_lines_are_named_without_what_stands_there),
        cmocka_unit_test(rights_there_and_back),
        cmocka_unit_test(the_keys_of_this_process),
        cmocka_unit_test(epochs_are_proved),
        cmocka_unit_test(no_secret_stays_on_a_stack),
        cmocka_unit_test(strangers_without_keys),
        cmocka_unit_test(a_proof_is_hmac_sha256),
        cmocka_unit_test(both_ends_agree),
        cmocka_unit_test(another_secret_shows_at_the_caller),
        cmocka_unit_test(no_changed_bit_opens),
        cmocka_unit_test(the_gate_takes_nothing_else),
        cmocka_unit_test(a_second_question_is_refused),
        cmocka_unit_test(who_has_no_keys_says_so),
        cmocka_unit_test(tickets_name_their_holder),
        cmocka_unit_test(messages_and_rights),
    };
    snprintf(path, sizeof(path), "/tmp/mc-keys-%ld", (long)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return failed;
}
