/* A peer of the transfer engine that answers the handshake and then says nothing on its data port. */
#ifndef MC_TESTS_SILENT_PEER_H
#define MC_TESTS_SILENT_PEER_H

#include "env/clock.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"

#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

struct silent {
    int rpc, data;
    uint16_t rpc_port, data_port;
    pthread_t thread;
    _Atomic bool stop, is_paused; /* is_paused: nor does it answer the handshake */
    _Atomic uint64_t process;     /* which one answers: its engine's id; 0: no engine of ours */
    _Atomic unsigned version;     /* of the protocol that it speaks */
};

static inline void *silent_main(void *argument)
{
    struct silent *silent = argument;
    while (!atomic_load(&silent->stop)) {
        struct pollfd waited = {.fd = silent->rpc, .events = POLLIN};
        if (poll(&waited, silent->is_paused ? 0 : 1, 20) != 1)
            continue;
        int fd = mc_socket_accept(silent->rpc);
        struct mc_document document = {
            .name = "silent", .is_tcp = true, .data_port = silent->data_port, .data_version = silent->version};
        document.id.low = silent->process;
        struct mc_buffer text = {0}, out = {0};
        uint8_t byte;
        (void)mc_socket_receive(fd, &byte, 1, mc_clock_ns() + 1000000000u, NULL);
        mc_document_write(&text, &document, "");
        mc_handshake_write(&out, MC_HANDSHAKE_METADATA, false, mc_span(text.data, text.length));
        struct iovec part = {out.data, out.length};
        (void)mc_socket_send(fd, &part, 1, mc_clock_ns() + 1000000000u);
        mc_buffer_free(&text);
        mc_buffer_free(&out);
        close(fd);
    }
    return NULL;
}

/* host "": every address of this host, each a name. */
static inline void silent_open_at(struct silent *silent, const char *host)
{
    *silent = (struct silent){.version = 2};
    silent->rpc = mc_tcp_listen(host, &silent->rpc_port);
    silent->data = mc_tcp_listen(host, &silent->data_port);
    assert_true(silent->rpc >= 0 && silent->data >= 0);
    assert_int_equal(pthread_create(&silent->thread, NULL, silent_main, silent), 0);
}

static inline void silent_open(struct silent *silent, char *name, size_t size)
{
    silent_open_at(silent, "127.0.0.1");
    mc_address_join(name, size, "127.0.0.1", silent->rpc_port);
}

static inline void silent_close(struct silent *silent)
{
    atomic_store(&silent->stop, true);
    pthread_join(silent->thread, NULL);
    close(silent->rpc);
    close(silent->data);
}

#endif
