/* HTTP/1 messages in libevent's buffers; see message.h. */
#include "proxy/message.h"

#include <strings.h>

bool mc_header_is_hop(const struct mc_head *head, const char *name)
{
    static const char *const names[] = {"connection",
                                        "keep-alive",
                                        "proxy-authenticate",
                                        "proxy-authorization",
                                        "proxy-connection",
                                        "te",
                                        "trailer",
                                        "transfer-encoding",
                                        "upgrade",
                                        "host",
                                        "content-length",
                                        "expect"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return mc_head_lists(head, "connection", name);
}

/* The first bytes in one piece, as many as are there. */
static const char *head_look(struct evbuffer *in, size_t most, size_t *length)
{
    size_t there = evbuffer_get_length(in);
    const char *start = (const char *)evbuffer_pullup(in, (ev_ssize_t)(there < most ? there : most));
    *length = start == NULL ? 0 : there < most ? there : most;
    return start;
}

static const struct mc_message_rules rules = {MC_PROXY_HEAD_MAX, MC_MESSAGE_HEADERS_MAX, false};

int mc_head_take_request(struct mc_head *head, struct evbuffer *in)
{
    size_t length;
    const char *start;
    /* An empty line before a request is an old client's habit behind the body of the one before. */
    while ((start = head_look(in, 2, &length)) != NULL && length == 2 && start[0] == '\r' && start[1] == '\n')
        (void)evbuffer_drain(in, 2);
    start = head_look(in, MC_PROXY_HEAD_MAX, &length);
    int rc = mc_head_read_request(head, &rules, start, length);
    return rc > 0 ? evbuffer_drain(in, (size_t)rc) + 1 : rc;
}

int mc_head_take_response(struct mc_head *head, struct evbuffer *in, bool is_head)
{
    size_t length;
    const char *start = head_look(in, MC_PROXY_HEAD_MAX, &length);
    int rc = mc_head_read_response(head, &rules, start, length, is_head);
    return rc > 0 ? evbuffer_drain(in, (size_t)rc) + 1 : rc;
}

int mc_body_decode(struct mc_body *body, struct evbuffer *in, struct evbuffer *out)
{
    while (body->state != MC_BODY_DONE) {
        size_t length = evbuffer_get_length(in);
        if (body->state == MC_BODY_DATA) {
            size_t part = length < body->left ? length : (size_t)body->left;
            if (length == 0)
                return 0;
            if (evbuffer_remove_buffer(in, out, part) != (int)part)
                return -1;
            mc_body_took(body, part);
            continue;
        }
        const char *line = head_look(in, MC_MESSAGE_LINE_MAX + 2, &length);
        int rc = mc_body_line(body, line, length);
        if (rc <= 0 || evbuffer_drain(in, (size_t)rc) != 0)
            return rc < 0 ? -1 : 0;
        if (body->framing == MC_FRAMING_CHUNKED && body->left >= UINT64_MAX / 2)
            return -1;
    }
    return 1;
}
