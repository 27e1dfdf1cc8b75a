/* What a hostile master tells people: the commands of `mooncake`, and what mooncake_doctor says of an admin port. First
 * byte: which command; second: how; the rest: the answers to its questions, with a zero behind each; one that begins
 * with ! is refused. Whatever is said, what is printed is text, and JSON is JSON. No connection leaves this process. */
#include "base/error.h"
#include "console/console.h"
#include "doctor/doctor.h"
#include "env/http.h"
#include "env/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define QUESTIONS_MAX 64u /* of one command: who is always told that there is more asks as often */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* fuzz/meson.build: instead of the true ones */
int __wrap_mc_http_once(const char *address, const struct mc_tls_settings *tls, const struct mc_http_question *question,
                        uint64_t deadline_ns, struct mc_buffer *reply, int *error);
int __wrap_mc_tcp_resolve(const char *address, uint64_t deadline_ns, struct mc_tcp_address *peers, size_t capacity);
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms);
int __real_poll(struct pollfd *fds, nfds_t count, int wait_ms);

static const uint8_t *at, *input_end;
static unsigned asked;

static struct mc_span next_answer(void)
{
    const uint8_t *start = at;
    while (at < input_end && *at != 0)
        at++;
    struct mc_span answer = mc_span(start, (size_t)(at - start));
    if (at < input_end)
        at++;
    return answer;
}

int __wrap_mc_http_once(const char *address, const struct mc_tls_settings *tls, const struct mc_http_question *question,
                        uint64_t deadline_ns, struct mc_buffer *reply, int *error)
{
    (void)address;
    (void)tls;
    (void)deadline_ns;
    mc_assert(question->path[0] == '/');
    reply->length = 0;
    *error = ECONNREFUSED;
    if (at == input_end || asked++ == QUESTIONS_MAX)
        return MC_ERR_RPC_FAIL;
    struct mc_span answer = next_answer();
    bool is_refused = answer.length > 0 && *(const char *)answer.data == '!';
    mc_buffer_append(reply, (const uint8_t *)answer.data + is_refused, answer.length - is_refused);
    *error = 0;
    return is_refused ? 500 : 200;
}

/* Some have an address, at which nobody listens. */
int __wrap_mc_tcp_resolve(const char *address, uint64_t deadline_ns, struct mc_tcp_address *peers, size_t capacity)
{
    (void)deadline_ns;
    mc_assert(strlen(address) < MC_ADDRESS_MAX && capacity > 0);
    peers[0] = (struct mc_tcp_address){.length = sizeof(peers[0].address.v4)};
    peers[0].address.v4 =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(1), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return address[0] == '1';
}

/* Nobody sleeps between two questions. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int wait_ms)
{
    return count == 0 ? 0 : __real_poll(fds, count, wait_ms);
}

/* Nothing that a terminal takes as an order. */
static void check_text(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i], next = i + 1 < length ? (uint8_t)text[i + 1] : 0;
        mc_assert(byte >= ' ' || byte == '\n' || byte == '\r' || byte == '\t');
        mc_assert(byte != 0x7f && !(byte == 0xc2 && next >= 0x80 && next < 0xa0));
    }
}

static void check_json(const char *text, size_t length)
{
    struct mc_span value;
    mc_assert(length == 0 || mc_json_find(mc_span(text, length), "nowhere", &value) >= 0);
}

/* ---- mooncake ---- */

static int run(struct mc_console *console, uint8_t command)
{
    switch (command % 10) {
    case 0:
        return mc_console_status(console);
    case 1:
        return mc_console_nodes(console);
    case 2:
        console->word_count = 0;
        return mc_console_keys(console);
    case 3:
        return mc_console_keys(console);
    case 4:
        return mc_console_events(console);
    case 5:
        return mc_console_drain(console);
    case 6:
        return mc_console_undrain(console);
    case 7:
        return mc_console_top(console);
    case 8:
        return mc_console_slow(console);
    default:
        return mc_console_misses(console);
    }
}

static void command(uint8_t which, uint8_t how)
{
    static const char *const words[] = {"a word"};
    char *text[2] = {NULL, NULL};
    size_t length[2] = {0, 0};
    FILE *before = stderr;
    struct mc_console console = {.master = "m",
                                 .admin = "",
                                 .address = "127.0.0.1:9003",
                                 .prefix = "p",
                                 .sort = "name",
                                 .limit = how & 8 ? 3 : 0,
                                 .is_json = how & 1,
                                 .follows = how & 2,
                                 .waits = how & 2,
                                 .is_once = true,
                                 .words = words,
                                 .word_count = how & 4 ? 0 : 1};
    console.out = open_memstream(&text[0], &length[0]);
    stderr = open_memstream(&text[1], &length[1]);
    mc_assert(console.out != NULL && stderr != NULL);
    int code = run(&console, which);
    (void)fclose(stderr);
    stderr = before;
    (void)fclose(console.out);
    bool is_key = which % 10 == 3 || which % 10 == 9;              /* of one that is away it says so */
    mc_assert(code == MC_CONSOLE_FINE || length[1] > 0 || is_key); /* else it says why */
    for (int i = 0; i < 2; i++) {
        check_text(text[i], length[i]);
        free(text[i]);
    }
    /* (What follows a job or events writes one value after the other.) */
}

/* ---- mooncake_doctor ---- */

static void doctor(uint8_t how)
{
    struct mc_doctor doctor;
    struct mc_buffer out = {0}, json = {0};
    const struct mc_doctor_config config = {.peer = "",
                                            .master = "",
                                            .admin = "127.0.0.1:9003",
                                            .metadata = "",
                                            .protocol = how & 1 ? "rdma" : "",
                                            .device_name = "",
                                            .root = "/nonexistent",
                                            .disk = ""};
    mc_doctor_init(&doctor, &config);
    doctor.section = "fuzz";
    if (how & 2)
        mc_doctor_pairs(&doctor, next_answer());
    mc_check_admin(&doctor);
    mc_doctor_print(&doctor, &out);
    mc_doctor_print_json(&doctor, &json);
    check_text((const char *)out.data, out.length);
    check_text((const char *)json.data, json.length);
    check_json((const char *)json.data, json.length);
    mc_buffer_free(&out);
    mc_buffer_free(&json);
    mc_doctor_free(&doctor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    mc_log_set_level(MC_LOG_ERROR);
    at = data + 2;
    input_end = data + size;
    asked = 0;
    if (data[0] % 9 == 8)
        doctor(data[1]);
    else
        command(data[0] % 9, data[1]);
    return 0;
}
