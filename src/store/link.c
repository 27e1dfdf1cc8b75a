/* Connections to the master: the idle stack, hello, request and reply in the calling thread. */
#include "store/link.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/store.h"
#include "wire/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int mc_hello(struct mc_store *store, int fd, enum mc_role role, uint64_t deadline_ns, struct mc_wire_hello_reply *reply,
             char *text, size_t text_size)
{
    struct mc_buffer out = {0}, in = {0};
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = (uint8_t)role,
                                  .node = store->node,
                                  .incarnation = store->incarnation,
                                  .name = mc_span_string(store->hostname),
                                  .token = mc_span(NULL, 0)};
    size_t frame_start = mc_frame_begin(&out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&out, &hello);
    mc_frame_end(&out, frame_start);
    struct iovec part = {out.data, out.length};
    struct mc_frame frame;
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    if (rc < 0)
        goto done;
    int64_t used = mc_socket_receive_frame(fd, &in, &frame, deadline_ns, NULL);
    if (used < 0) {
        rc = (int)used;
        goto done;
    }
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    mc_wire_hello_reply_read(&reader, reply);
    if (reader.bad || frame.type != MC_MESSAGE_HELLO_REPLY) {
        rc = MC_ERR_PROTOCOL;
        goto done;
    }
    rc = reply->code;
    snprintf(text, text_size, "%.*s", (int)reply->text.length, (const char *)reply->text.data);
    reply->text = mc_span(NULL, 0); /* it borrowed from `in` */
done:
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    return rc;
}

void mc_store_met_master(struct mc_store *store, const struct mc_wire_hello_reply *reply)
{
    pthread_mutex_lock(&store->lock);
    store->master_node = reply->node;
    pthread_mutex_unlock(&store->lock);
    atomic_store(&store->lease_ttl_ms, reply->lease_ttl_ms);
    atomic_store(&store->epoch, reply->epoch);
}

/* The master of this machine that we have met, over its unix socket; negative when it is elsewhere or gone. */
static int connect_near(struct mc_store *store, uint64_t deadline_ns)
{
    char name[MC_MASTER_UNIX_MAX];
    pthread_mutex_lock(&store->lock);
    struct mc_id node = store->master_node;
    pthread_mutex_unlock(&store->lock);
    if (mc_id_is_zero(node))
        return MC_ERR_RPC_FAIL;
    mc_master_unix_name(name, sizeof(name), node);
    return mc_unix_connect(name, deadline_ns);
}

static int link_connect(struct mc_store *store, uint64_t deadline_ns, struct mc_link **made)
{
    char text[256] = "";
    struct mc_wire_hello_reply reply;
    int fd = connect_near(store, deadline_ns);
    if (fd < 0)
        fd = mc_tcp_connect(store->master_address, deadline_ns);
    if (fd < 0) {
        mc_log_limited(WARNING, "cannot reach the master at %s: %s; check the address and that mooncake_master runs",
                       store->master_address, strerror(errno));
        return fd;
    }
    int rc = mc_hello(store, fd, MC_ROLE_CALL, deadline_ns, &reply, text, sizeof(text));
    if (rc < 0) {
        mc_log_limited(WARNING, "the master at %s refused this client: %s %s", store->master_address, mc_error_name(rc),
                       text);
        close(fd);
        return rc;
    }
    mc_store_met_master(store, &reply);
    struct mc_link *link = calloc(1, sizeof(*link));
    if (link == NULL) {
        close(fd);
        return MC_ERR_NO_MEMORY;
    }
    link->fd = fd;
    link->epoch = reply.epoch;
    *made = link;
    return 0;
}

void mc_link_free(struct mc_link *link)
{
    close(link->fd);
    mc_buffer_free(&link->in);
    mc_buffer_free(&link->out);
    free(link);
}

/* Lock held. */
static void borrowed_add(struct mc_store *store, struct mc_link *link)
{
    link->next_borrowed = store->borrowed;
    link->borrowed_at = &store->borrowed;
    if (store->borrowed != NULL)
        store->borrowed->borrowed_at = &link->next_borrowed;
    store->borrowed = link;
}

static void borrowed_remove(struct mc_link *link)
{
    *link->borrowed_at = link->next_borrowed;
    if (link->next_borrowed != NULL)
        link->next_borrowed->borrowed_at = link->borrowed_at;
}

int mc_link_borrow(struct mc_store *store, uint64_t deadline_ns, struct mc_link **link)
{
    pthread_mutex_lock(&store->lock);
    *link = store->idle;
    if (*link != NULL) {
        store->idle = (*link)->next;
        store->idle_count--;
        borrowed_add(store, *link);
    }
    pthread_mutex_unlock(&store->lock);
    if (*link != NULL) {
        (*link)->reused = true;
        return 0;
    }
    int rc = link_connect(store, deadline_ns, link);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&store->lock);
    borrowed_add(store, *link);
    pthread_mutex_unlock(&store->lock);
    return 0;
}

void mc_link_return(struct mc_store *store, struct mc_link *link)
{
    link->out.length = 0;
    pthread_mutex_lock(&store->lock);
    borrowed_remove(link);
    bool keep = !link->broken && store->idle_count < MC_LINKS_IDLE_MAX && !atomic_load(&store->closing);
    if (keep) {
        link->next = store->idle;
        store->idle = link;
        store->idle_count++;
    }
    pthread_mutex_unlock(&store->lock);
    if (!keep)
        mc_link_free(link);
}

int mc_link_send(struct mc_link *link, uint64_t deadline_ns)
{
    struct iovec part = {link->out.data, link->out.length};
    int rc = link->out.length == 0 ? 0 : mc_socket_send(link->fd, &part, 1, deadline_ns);
    link->out.length = 0;
    if (rc < 0)
        link->broken = true;
    return rc;
}

int mc_link_receive(struct mc_link *link, enum mc_message type, uint64_t request_id, uint64_t deadline_ns,
                    struct mc_reader *reader)
{
    struct mc_frame frame;
    mc_buffer_consume(&link->in, link->used);
    link->used = 0;
    int64_t used = mc_socket_receive_frame(link->fd, &link->in, &frame, deadline_ns, &link->spin);
    if (used < 0) {
        /* A writer that waits for PUT_DONE may ask again; nobody else can tell a late answer from his own. */
        link->broken = used != MC_ERR_RPC_TIMEOUT || type != MC_MESSAGE_PUT_DONE;
        return (int)used;
    }
    link->used = (size_t)used;
    *reader = mc_reader(frame.body.data, frame.body.length);
    if (frame.request_id != request_id || (frame.type != type && frame.type != MC_MESSAGE_FAILED)) {
        mc_log_limited(WARNING, "master answered %s to request %llu where %s to %llu was due",
                       mc_message_name(frame.type), (unsigned long long)frame.request_id, mc_message_name(type),
                       (unsigned long long)request_id);
        link->broken = true;
        return MC_ERR_PROTOCOL;
    }
    if (frame.type == MC_MESSAGE_FAILED) {
        struct mc_wire_code code;
        mc_wire_code_read(reader, &code);
        return reader->bad || code.code >= 0 ? MC_ERR_PROTOCOL : code.code;
    }
    return 0;
}

int mc_link_call(struct mc_store *store, uint64_t deadline_ns, mc_link_build *build, const void *context,
                 enum mc_message reply, struct mc_link **link, struct mc_reader *reader)
{
    for (;;) {
        int rc = mc_link_borrow(store, deadline_ns, link);
        if (rc < 0)
            return rc;
        uint64_t request_id = ++(*link)->request_id;
        build(&(*link)->out, request_id, context);
        rc = mc_link_send(*link, deadline_ns);
        if (rc == 0)
            rc = mc_link_receive(*link, reply, request_id, deadline_ns, reader);
        if (rc == 0)
            return 0;
        bool again = rc == MC_ERR_RPC_FAIL && (*link)->reused && (*link)->broken;
        mc_link_return(store, *link);
        *link = NULL;
        if (!again)
            return rc;
    }
}
