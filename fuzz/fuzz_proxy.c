/* What the proxy reads from strangers. The first byte chooses: 0 a request, 1 a response, 2 JSON that is edited; for
 * the first two the second byte is the size of the pieces in which it comes. */
#include "base/error.h"
#include "proxy/join.h"
#include "proxy/message.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The state of a connection's input: a head, its body, the next head. Returns the bytes that were bodies. */
static size_t read_messages(const uint8_t *data, size_t size, size_t piece, bool is_request, int *end)
{
    struct evbuffer *in = evbuffer_new(), *out = evbuffer_new();
    struct mc_head head = {0};
    struct mc_body body = {0};
    bool has_head = false;
    int rc = 0;
    mc_assert(in != NULL && out != NULL);
    for (size_t at = 0; at < size && rc >= 0; at += piece) {
        mc_assert(evbuffer_add(in, data + at, size - at < piece ? size - at : piece) == 0);
        do {
            if (!has_head) {
                rc = is_request ? mc_head_take_request(&head, in) : mc_head_take_response(&head, in, false);
                if (rc > 0)
                    mc_body_begin(&body, &head);
                has_head = rc > 0;
            } else {
                rc = mc_body_decode(&body, in, out);
                has_head = rc <= 0;
            }
        } while (rc > 0);
    }
    size_t length = evbuffer_get_length(out);
    mc_assert(length <= size);
    mc_head_free(&head);
    evbuffer_free(in);
    evbuffer_free(out);
    *end = rc < 0 ? -1 : 0;
    return length;
}

static void edit(const uint8_t *data, size_t size)
{
    static const char *const without[] = {"max_tokens", "stream", NULL};
    static struct mc_members members, again;
    struct mc_buffer out = {0};
    const char *problem;
    size_t at;
    if (mc_members_scan(&members, mc_span(data, size), &at, &problem) < 0)
        return;
    mc_members_write(&members, without, "\"max_tokens\":1", &out);
    /* What was JSON stays JSON, and holds what was added. */
    mc_assert(mc_members_scan(&again, mc_span(out.data, out.length), &at, &problem) == 0 ||
              members.count == MC_EDIT_MEMBERS_MAX);
    mc_assert(members.count == MC_EDIT_MEMBERS_MAX || mc_members_find(&again, "max_tokens")->value.length == 1);
    mc_assert(mc_members_find(&again, "stream") == NULL || members.count == MC_EDIT_MEMBERS_MAX);
    mc_buffer_free(&out);
}

/* What is put in before a list is all that is added, whatever the answer is. */
static void join(const uint8_t *data, size_t size)
{
    static struct mc_members members;
    struct mc_buffer out = {0};
    size_t event = mc_join_event(mc_span(data, size));
    mc_assert(event <= size);
    bool has_list = mc_join_list(&members, mc_span(data, size)).data != NULL;
    mc_join_write(&members, mc_span(data, size), mc_span_string("1"), &out);
    mc_assert(has_list ? out.length == size + 1 || out.length == size + 2 : out.length == size);
    mc_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int whole, pieces;
    if (size < 2)
        return 0;
    if (data[0] % 3 == 2) {
        edit(data + 1, size - 1);
        join(data + 1, size - 1);
        return 0;
    }
    size_t piece = data[1] == 0 ? 1 : data[1];
    size_t at_once = read_messages(data + 2, size - 2, size, data[0] % 3 == 0, &whole);
    size_t in_pieces = read_messages(data + 2, size - 2, piece, data[0] % 3 == 0, &pieces);
    /* How it comes changes neither what it is nor what it holds. */
    mc_assert(whole == pieces);
    mc_assert(whole < 0 || at_once == in_pieces);
    return 0;
}
