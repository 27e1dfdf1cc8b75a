/* What strangers send to a store service. The first byte chooses: 0 the head of a request, 1 the body of a put, 2 a
 * config file, else %XX and chunk sizes. */
#include "base/error.h"
#include "env/log.h"
#include "store/service/config.h"
#include "store/service/put_body.h"
#include "store/service/rest.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_within(struct mc_span part, const char *text, size_t length)
{
    const char *at = part.data;
    return at == NULL || (at >= text && part.length <= length && at - text <= (ptrdiff_t)(length - part.length));
}

static void head(const char *text, size_t length)
{
    static const struct mc_message_rules rules = {MC_REST_HEAD_MAX, 100, true};
    struct mc_head head = {0};
    int rc = mc_head_read_request(&head, &rules, text, length);
    mc_assert(rc <= (int)(length < MC_REST_HEAD_MAX ? length : MC_REST_HEAD_MAX));
    if (rc > 0)
        mc_assert(is_within(mc_span_string(head.method), head.text, (size_t)rc) &&
                  is_within(mc_span_string(head.target), head.text, (size_t)rc));
    mc_head_free(&head);
}

static void put_body(char *text, size_t length)
{
    struct mc_put_body body;
    char reason[256];
    if (mc_put_body_parse(text, length, &body, reason, sizeof(reason)) == NULL)
        mc_assert(is_within(body.key, text, length) && is_within(body.value, text, length));
}

static void config(const char *text, size_t length)
{
    struct mc_service_config *made = calloc(1, sizeof(*made));
    char error[512];
    if (made != NULL)
        (void)mc_service_config_apply(made, text, length, "file", error, sizeof(error)); /* either is possible */
    free(made);
}

static void words(const char *text, size_t length)
{
    char *out = malloc(length + 1);
    const struct mc_head chunked = {.framing = MC_FRAMING_CHUNKED, .is_lenient = true};
    struct mc_body body;
    uint64_t size;
    if (out != NULL)
        mc_assert(mc_uri_decode(mc_span(text, length), out) <= (int64_t)length);
    free(out);
    mc_body_begin(&body, &chunked);
    mc_assert(mc_body_line(&body, text, length) <= (int64_t)length);
    (void)mc_service_parse_size(text, &size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    char *text = malloc(size); /* the rest and a zero, to the byte */
    if (text == NULL)
        return 0;
    mc_log_set_level(MC_LOG_ERROR);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] == 0)
        head(text, size - 1);
    else if (data[0] == 1)
        put_body(text, size - 1);
    else if (data[0] == 2)
        config(text, size - 1);
    else
        words(text, size - 1);
    free(text);
    return 0;
}
