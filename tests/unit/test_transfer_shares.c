/* What all peers of an engine share: no address takes it all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "transfer/peer/peer.h"
#include "transfer/peer/settle.h"
#include "transfer/serve/service_inside.h"
#include "transfer/wire/handshake.h"
#include "transfer_world.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* What an engine answers to who asks it from another address than all others here; "": it hangs up. */
static void ask_from_elsewhere(const struct world *world, enum mc_handshake_type type, const char *json,
                               char answer[1024])
{
    struct mc_buffer question = {0};
    struct mc_handshake frame;
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET,
                                                             .sin_port = htons(world->far->rpc_port),
                                                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t bytes[1024];
    size_t length = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &from.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    mc_handshake_write(&question, type, false, mc_span_string(json));
    assert_true(send(fd, question.data, question.length, MSG_NOSIGNAL) == (ssize_t)question.length);
    answer[0] = 0;
    for (int64_t more; length < sizeof(bytes); length += (size_t)more) {
        more = mc_socket_receive(fd, bytes + length, sizeof(bytes) - length, mc_clock_ns() + 10 * SECOND_NS, NULL);
        if (more <= 0)
            break;
    }
    if (mc_handshake_read(mc_span(bytes, length), sizeof(bytes), &frame) == 1)
        snprintf(answer, 1024, "%.*s", (int)frame.json.length, (const char *)frame.json.data);
    close(fd);
    mc_buffer_free(&question);
}

/* None is forgotten that was noted: who names too many is refused, and others are not. */
static void test_cuts_of_another_address(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    static uint64_t numbers[MC_SETTLE_NUMBERS_MAX];
    char answer[1024];
    uint64_t number = 0, deadline_ns = mc_clock_ns() + 30 * SECOND_NS;
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &peer), 0);
    do {
        assert_true(number <= MC_SERVICE_CUTS_MAX);
        for (unsigned i = 0; i < MC_SETTLE_NUMBERS_MAX; i++)
            numbers[i] = ++number;
    } while (mc_settle_cut(peer, numbers, MC_SETTLE_NUMBERS_MAX, deadline_ns) == 0);
    ask_from_elsewhere(world, MC_HANDSHAKE_CONNECTION, "{\"mooncake_c\":{\"cut\":[1000001,1000002,1000001]}}", answer);
    assert_non_null(strstr(answer, "\"cut\":"));
    assert_true(mc_service_is_cut(world->far->service, 1000001) && mc_service_is_cut(world->far->service, 1000002));
    assert_true(mc_service_is_cut(world->far->service, 1));
    mc_peer_release(peer);
}

/* However small they are. */
static void test_notes_of_another_address(void **state)
{
    struct world *world = *state;
    struct mc_transfer_note note = {"n", "m"};
    char answer[1024], *name, *message;
    uint32_t count = 0, taken = 0;
    while (count <= MC_TRANSFER_NOTES_MAX && mc_transfer_notify(world->near, mc_transfer_name(world->far), &note) == 0)
        count++;
    assert_in_range(count, MC_TRANSFER_NOTES_MAX / 2, MC_TRANSFER_NOTES_MAX);
    ask_from_elsewhere(world, MC_HANDSHAKE_NOTIFY, "{\"name\":\"other\",\"notify_msg\":\"one\"}", answer);
    assert_non_null(strstr(answer, "success"));
    for (; mc_transfer_take_note(world->far, &name, &message) == 1; taken++) {
        assert_string_equal(message, taken < count ? "m" : "one");
        free(name);
        free(message);
    }
    assert_int_equal(taken, count + 1);
    assert_int_equal(world->far->note_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST_OF_WORLD(test_cuts_of_another_address),
                                       TEST_OF_WORLD(test_notes_of_another_address)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
