/* Spans of what a peer asks an owner for, from raw sockets: whole, refused, cut off in the middle, and none. */
#include "directory.h"
#include "env/spans.h"
#include "serve_rig.h"
#include "store/wire/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LENGTH 100000u

static char path[64];
static const struct mc_trace_context context = {{1, 2}, 3, MC_TRACE_SAMPLED};

static void spans_begin(void)
{
    char setting[80];
    snprintf(path, sizeof(path), "/tmp/mc-serve-trace-%d", (int)getpid());
    snprintf(setting, sizeof(setting), "file:%s", path);
    (void)unlink(path);
    setenv("MC_TRACES", setting, 1);
    mc_spans_start("an owner");
}

static const char *spans_end(void)
{
    static char text[1u << 20];
    mc_spans_end();
    FILE *file = fopen(path, "rb");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
    if (file != NULL)
        fclose(file);
    text[length] = 0;
    (void)unlink(path);
    return text;
}

static unsigned times(const char *text, const char *words)
{
    unsigned count = 0;
    for (; (text = strstr(text, words)) != NULL; text++)
        count++;
    return count;
}

static void say_trace(struct peer *peer, const struct mc_trace_context *trace)
{
    const struct mc_wire_trace head = {.trace = trace->id, .span = trace->span, .flags = trace->flags};
    mc_wire_trace_frame(&peer->out, mc_frame_begin(&peer->out, MC_MESSAGE_TRACE, 1), &head);
}

/* All of an object, of which each WRITE is a part of a trace, or none is. */
static void write_whole(struct rig *rig, struct peer *peer, uint32_t slot, uint64_t generation, uint64_t offset,
                        const struct mc_trace_context *trace)
{
    uint64_t whole = mc_key_offset(LENGTH) + 8;
    uint8_t *bytes = pattern_make(whole, slot);
    if (trace != NULL)
        say_trace(peer, trace);
    put_write(peer, slot, generation, offset, whole);
    mc_buffer_append(&peer->out, bytes, whole);
    put_commit(peer, slot, generation, offset, LENGTH);
    assert_int_equal(peer_flush(peer), 0);
    free(bytes);
    rig_wait_told(rig, slot + 1);
    assert_int_equal(rig->told[slot].code, 0);
}

static void read_whole(struct peer *peer, uint32_t slot, uint64_t generation, int code)
{
    struct mc_wire_read_reply reply;
    uint8_t *back = malloc(LENGTH);
    put_read(peer, 7, slot, generation, 0, LENGTH, false);
    assert_int_equal(peer_flush(peer), 0);
    assert_int_equal(hear_reply(peer, 7, &reply), code);
    if (code == 0) {
        peer_receive_bytes(peer, back, LENGTH);
        assert_int_equal(hear_end(peer, 7), 0);
    }
    free(back);
}

static void what_is_a_part_of_a_trace_is_a_span(void **state)
{
    (void)state;
    const struct mc_trace_context other = {{1, 2}, 4, MC_TRACE_SAMPLED}, unsampled = {{1, 2}, 5, 0};
    struct rig rig;
    spans_begin();
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    uint64_t extent = mc_extent_size(LENGTH, 8);
    write_whole(&rig, &peer, 0, 5, 0, &context);
    read_whole(&peer, 0, 5, 0); /* of nothing */
    say_trace(&peer, &context); /* said again: the last one counts */
    say_trace(&peer, &other);
    read_whole(&peer, 0, 5, 0);
    say_trace(&peer, &other);
    read_whole(&peer, 0, 99, MC_ERR_REPLICA_IS_GONE);
    write_whole(&rig, &peer, 1, 6, extent, NULL);
    say_trace(&peer, &unsampled);
    write_whole(&rig, &peer, 2, 7, 2 * extent, NULL);
    expect_pong(&peer, 12);
    peer_close(&peer);
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
    const char *text = spans_end();
    assert_int_equal(times(text, "\"traceId\":\"00000000000000020000000000000001\""), 3);
    assert_int_equal(times(text, "\"parentSpanId\":\"0000000000000003\",\"name\":\"mooncake.node.write\",\"kind\":2"),
                     1);
    assert_int_equal(times(text, "\"parentSpanId\":\"0000000000000004\",\"name\":\"mooncake.node.read\",\"kind\":2"),
                     2);
    assert_int_equal(times(text, "\"mooncake.bytes\",\"value\":{\"intValue\":\"100000\"}"),
                     1); /* none of who was refused */
    assert_int_equal(times(text, "\"message\":\"REPLICA_IS_GONE\""), 1);
    assert_int_equal(times(text, "\"status\":{}"), 2);
}

static void what_comes_to_no_end_is_a_failure(void **state)
{
    (void)state;
    struct rig rig;
    spans_begin();
    rig_start(&rig);
    for (unsigned i = 0; i < 2; i++) { /* in the middle of the bytes; before the COMMIT */
        struct peer peer = connect_peer(&rig, false);
        uint64_t whole = mc_key_offset(LENGTH) + 8;
        uint8_t *bytes = pattern_make(whole, i);
        say_trace(&peer, &context);
        put_write(&peer, i, 5, i * mc_extent_size(LENGTH, 8), whole);
        mc_buffer_append(&peer.out, bytes, i == 0 ? whole / 2 : whole);
        assert_int_equal(peer_flush(&peer), 0);
        free(bytes);
        peer_close(&peer);
        rig_wait_connections(&rig, 0);
    }
    rig_stop(&rig);
    assert_int_equal(times(spans_end(), "\"message\":\"RPC_FAIL\""), 2);
}

/* Bytes for a place that was granted anew to another: they are thrown away, which the span says. */
static void what_is_thrown_away_is_a_failure(void **state)
{
    (void)state;
    struct rig rig;
    spans_begin();
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    write_whole(&rig, &peer, 0, 9, 0, &context);
    uint64_t whole = mc_key_offset(LENGTH) + 8;
    uint8_t *bytes = pattern_make(whole, 0);
    say_trace(&peer, &context);
    put_write(&peer, 0, 5, 0, whole);
    mc_buffer_append(&peer.out, bytes, whole);
    put_commit(&peer, 0, 5, 0, LENGTH);
    assert_int_equal(peer_flush(&peer), 0);
    free(bytes);
    expect_pong(&peer, 12);
    peer_close(&peer);
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
    const char *text = spans_end();
    assert_int_equal(times(text, "\"message\":\"STALE\""), 1);
    assert_int_equal(times(text, "\"status\":{}"), 1);
}

static void who_makes_no_spans_takes_no_context(void **state)
{
    (void)state;
    for (unsigned is_on = 0; is_on < 2; is_on++) {
        struct rig rig;
        if (is_on)
            spans_begin();
        rig_start(&rig);
        struct peer peer = connect_peer(&rig, false);
        if (!is_on) {
            say_trace(&peer, &context);
        } else { /* that ends within a field */
            size_t frame = mc_frame_begin(&peer.out, MC_MESSAGE_TRACE, 1);
            mc_buffer_put_u16(&peer.out, 9);
            mc_buffer_append(&peer.out, "123456789", 9);
            mc_frame_end(&peer.out, frame);
        }
        assert_int_equal(peer_flush(&peer), 0);
        assert_true(peer_is_closed(&peer));
        peer_close(&peer);
        rig_stop(&rig);
        if (is_on)
            assert_string_equal(spans_end(), "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_a_part_of_a_trace_is_a_span),
        cmocka_unit_test(what_comes_to_no_end_is_a_failure),
        cmocka_unit_test(what_is_thrown_away_is_a_failure),
        cmocka_unit_test(who_makes_no_spans_takes_no_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
