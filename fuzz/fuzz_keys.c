/* Keys: who proves itself, and who says so. The first byte chooses: 0 the text of a file; 1 what HTTP's Authorization,
 * Origin and Host say; 2 what a server hears before a key is proved, frames by the tables; 3 the same, after what makes
 * it ask; else what a caller hears from a server that it has shown a key to. Nobody gets through without the secret. */
#include "base/error.h"
#include "env/keys.h"
#include "env/log.h"
#include "store/wire/proof.h"
#include "hostile.h"

#include <stdio.h>
#include <stdlib.h>

#define A16 "0123456789abcdef"
#define SECRET A16 A16 A16 A16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void begin(void)
{
    char error[256];
    mc_log_set_level(MC_LOG_ERROR);
    mc_assert(setenv("MC_AUTH_TOKEN", "me:" SECRET, 1) == 0);
    mc_assert(mc_keys_check(error, sizeof(error)) == 0);
}

static void file(const char *text, size_t length)
{
    struct mc_key *keys = NULL;
    char error[256] = "", rights[64];
    int count = mc_keys_parse(text, length, &keys, error, sizeof(error));
    mc_assert((count < 0) == (error[0] != 0) && strchr(error, '\n') == NULL);
    for (int i = 0; i < count; i++) {
        mc_assert(keys[i].id[0] != 0 && keys[i].rights != 0 && keys[i].rights <= (MC_RIGHTS_ALL | MC_RIGHT_MASTER));
        mc_rights_format(rights, sizeof(rights), keys[i].rights);
        mc_assert(mc_rights_parse(mc_span_string(rights)) == keys[i].rights); /* written and read again, the same */
    }
    if (count >= 0)
        free(keys);
}

static void http(char *text)
{
    struct mc_key key;
    char *origin = strchr(text, '\n'), *host = NULL;
    if (origin != NULL) {
        *origin++ = 0;
        host = strchr(origin, '\n');
    }
    if (host != NULL)
        *host++ = 0;
    int status = mc_keys_http_status(text, MC_RIGHT_ADMIN);
    mc_assert(status == 401 ||
              (status == 0 && (strcasestr(text, "me:" SECRET) != NULL || strncasecmp(text, "basic", 5) == 0)));
    status = mc_keys_http_status_own(text, MC_RIGHT_READ, &key);
    mc_assert(status == 401 || (status == 0 && strcmp(key.id, "me") == 0));
    status = mc_keys_origin_status(MC_RIGHT_ADMIN, origin, host);
    mc_assert(status == 0 || status == 403);
}

static bool find(void *context, struct mc_span name, struct mc_key *key)
{
    (void)context;
    struct mc_id node;
    unsigned rights, mark;
    if (mc_ticket_read(name, &node, &rights, &mark))
        mc_assert(name.length == MC_TICKET_BYTES && (rights & ~(MC_RIGHTS_ALL | MC_TICKET_OF_TENANT)) == 0);
    return mc_keys_find(name, key);
}

static const struct hostile_value values[] = {{.name = "key", .bytes = {"me", 2}},
                                              {.name = "nonce", .bytes = {A16 A16, 32}},
                                              {.name = "proof", .bytes = {A16 A16, 32}}};

/* A server, or who has shown itself to one. */
static void hear(struct mc_reader in, unsigned first, bool is_caller)
{
    struct hostile hostile = {in, values, 3, 1};
    struct mc_buffer said = {0}, out = {0};
    struct mc_gate gate = {0};
    struct mc_prover prover;
    struct mc_key own;
    struct mc_frame frame;
    size_t used;
    char why[MC_PROOF_TEXT_MAX];
    int rc = 0;
    mc_assert(mc_keys_own(&own));
    mc_prover_begin(&prover, mc_span_string(own.id), own.secret, &out);
    for (unsigned i = 0; i < 8 && rc == 0; i++) {
        unsigned type = first != 0 ? first : mc_reader_u8(&hostile.in) % 84;
        first = 0;
        (void)hostile_say(&hostile, type, 1, &said);
        while (rc == 0 && mc_frame_parse(said.data, said.length, &frame, &used) == 1) {
            rc = is_caller ? mc_prover_take(&prover, &frame, &out, why) : mc_gate_take(&gate, &frame, find, NULL, &out);
            mc_assert(is_caller ? rc < 0 : rc <= 0); /* nobody has the secret: its nonce is random */
            mc_buffer_consume(&said, used);
        }
        said.length = 0;
    }
    mc_assert(!gate.is_open && out.length < 16384);
    mc_buffer_free(&said);
    mc_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool has_begun;
    if (size == 0)
        return 0;
    if (!has_begun)
        begin();
    has_begun = true;
    char *text = malloc(size); /* the rest and a zero, to the byte */
    mc_assert(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    struct mc_reader rest = mc_reader(data + 1, size - 1);
    if (data[0] == 0)
        file(text, size - 1);
    else if (data[0] == 1)
        http(text);
    else if (data[0] == 2)
        hear(rest, 0, false);
    else if (data[0] == 3)
        hear(rest, MC_MESSAGE_AUTH, false);
    else
        hear(rest, MC_MESSAGE_CHALLENGE, true);
    free(text);
    return 0;
}
