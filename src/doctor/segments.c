/* The segments that the master knows: what it says of each, and whether its owner's data port can be reached from this
 * host. All are connected to side by side, so a thousand silent ones take no longer than one. */
#include "doctor/doctor.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIALS_MAX 512u /* connected to; the others are not tried */

struct dial {
    char name[96], address[MC_ADDRESS_MAX], size[32], status[32], build[MC_DOCTOR_BUILD_MAX];
    uint64_t objects;
    int fd;    /* under way, or connected; -1 */
    int error; /* errno; 0: it is connected */
};

static void read_segment(struct dial *dial, struct mc_span text)
{
    struct mc_json_cursor member;
    *dial = (struct dial){.name = "?", .address = "?", .size = "?", .status = "?", .fd = -1};
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && mc_json_next(&member) == 1) {
        /* What is not as expected stays unknown: this is a report. */
        if (mc_json_is(member.name, "segment_name"))
            (void)mc_json_text(&member, dial->name, sizeof(dial->name));
        else if (mc_json_is(member.name, "te_endpoint"))
            (void)mc_json_text(&member, dial->address, sizeof(dial->address));
        else if (mc_json_is(member.name, "size_human"))
            (void)mc_json_text(&member, dial->size, sizeof(dial->size));
        else if (mc_json_is(member.name, "status"))
            (void)mc_json_text(&member, dial->status, sizeof(dial->status));
        else if (mc_json_is(member.name, "build"))
            (void)mc_json_text(&member, dial->build, sizeof(dial->build));
        else if (mc_json_is(member.name, "objects"))
            (void)mc_json_number(&member, &dial->objects);
    }
}

static void dial_begin(struct dial *dial, uint64_t deadline_ns)
{
    struct mc_tcp_address peer;
    dial->error = ETIMEDOUT;
    int count = mc_tcp_resolve(dial->address, deadline_ns, &peer, 1);
    if (count == 1)
        errno = 0;
    if (count == 1 && (dial->fd = mc_tcp_begin(&peer)) >= 0)
        return;
    dial->fd = -1;
    dial->error = count < 1 ? ENOENT : errno != 0 ? errno : EHOSTUNREACH;
}

/* Until all have answered, or the deadline. */
static void await(struct dial *dials, size_t count, uint64_t deadline_ns)
{
    struct pollfd fds[DIALS_MAX];
    size_t under_way = 0;
    for (size_t i = 0; i < count; i++) {
        fds[i] = (struct pollfd){.fd = dials[i].fd, .events = POLLOUT};
        under_way += dials[i].fd >= 0;
    }
    while (under_way > 0) {
        uint64_t now_ns = mc_clock_ns();
        int wait_ms = now_ns >= deadline_ns ? 0 : (int)((deadline_ns - now_ns) / 1000000 + 1);
        if (wait_ms == 0 || (poll(fds, count, wait_ms) < 0 && errno != EINTR))
            return;
        for (size_t i = 0; i < count; i++) {
            socklen_t length = sizeof(dials[i].error);
            if (fds[i].fd < 0 || fds[i].revents == 0)
                continue;
            if (getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &dials[i].error, &length) != 0)
                dials[i].error = errno;
            fds[i].fd = -1;
            under_way--;
        }
    }
}

static void say(struct mc_doctor *doctor, const struct dial *dial, bool is_tried)
{
    char title[128], why[160] = "", other[2 * MC_DOCTOR_BUILD_MAX + 64];
    bool is_well = strcmp(dial->status, "OK") == 0;
    bool is_reached = !is_tried || dial->error == 0;
    const char *fix = NULL;
    if (!is_well)
        fix = "its node is silent or leaves: nothing is placed there; look whether its process runs";
    else if (!is_reached && (strncmp(dial->address, "127.", 4) == 0 || strncmp(dial->address, "localhost", 9) == 0))
        fix = "that is each host's own address: give its node the name or address by which other hosts reach it "
              "(local_hostname)";
    else if (!is_reached)
        fix = mc_doctor_fix_of_connect(dial->error);
    else if (!is_tried)
        fix = "more segments than one run connects to: look at its own machine, or call it from here (nc -z)";
    else if (mc_doctor_other_build(doctor, dial->build, other, sizeof(other))[0] != 0)
        fix = MC_DOCTOR_FIX_BUILD;
    if (!is_tried)
        snprintf(why, sizeof(why), ", not tried");
    if (!is_reached)
        snprintf(why, sizeof(why), ", NOT REACHED from this host: %s",
                 dial->error == ENOENT ? "its name is not known here" : strerror(dial->error));
    snprintf(title, sizeof(title), "segment %s", dial->name);
    mc_doctor_say(doctor,
                  !is_well      ? MC_VERDICT_WARNING
                  : !is_reached ? MC_VERDICT_BROKEN
                  : fix != NULL ? MC_VERDICT_NOTE
                                : MC_VERDICT_FINE,
                  title, is_reached ? 0 : dial->error, fix, "%s, %s, at %s, %" PRIu64 " objects%s%s", dial->status,
                  dial->size, dial->address, dial->objects,
                  mc_doctor_other_build(doctor, dial->build, other, sizeof(other)), why);
}

/* ---- disks ---- */

static void say_disk(struct mc_doctor *doctor, struct mc_span text)
{
    struct mc_json_cursor member;
    char name[96] = "?", directory[256] = "?", status[32] = "?", health[32] = "?", title[128];
    uint64_t objects = 0;
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && mc_json_next(&member) == 1) {
        if (mc_json_is(member.name, "segment_name"))
            (void)mc_json_text(&member, name, sizeof(name));
        else if (mc_json_is(member.name, "directory"))
            (void)mc_json_text(&member, directory, sizeof(directory));
        else if (mc_json_is(member.name, "status"))
            (void)mc_json_text(&member, status, sizeof(status));
        else if (mc_json_is(member.name, "health"))
            (void)mc_json_text(&member, health, sizeof(health));
        else if (mc_json_is(member.name, "objects"))
            (void)mc_json_number(&member, &objects);
    }
    bool is_well = strcmp(health, "ok") == 0;
    const char *fix = is_well                            ? NULL
                      : strcmp(health, "slow") == 0      ? "its device does not answer: look at the kernel's log there"
                      : strcmp(health, "read_only") == 0 ? "writing failed: the node's log says where; it is tried "
                                                           "again when the node is restarted"
                                                         : "its node is gone: with the directory it brings it back";
    snprintf(title, sizeof(title), "disk of %s", name);
    mc_doctor_say(doctor, is_well ? MC_VERDICT_FINE : MC_VERDICT_WARNING, title, 0, fix,
                  "%s, %s, %s, %" PRIu64 " objects", health, status, directory, objects);
}

static void say_disks_off(struct mc_doctor *doctor, struct mc_span text)
{
    struct mc_json_cursor member;
    char node[96] = "?", title[128];
    uint64_t count = 0;
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && mc_json_next(&member) == 1) {
        if (mc_json_is(member.name, "node"))
            (void)mc_json_text(&member, node, sizeof(node));
        else if (mc_json_is(member.name, "disks"))
            (void)mc_json_number(&member, &count);
    }
    snprintf(title, sizeof(title), "disks of %s", node);
    mc_doctor_say(doctor, MC_VERDICT_WARNING, title, 0, "its log says why; mooncake_doctor --disk looks at a folder",
                  "%" PRIu64 " cannot be used", count);
}

/* What an older master does not tell is left out. */
static void each(struct mc_doctor *doctor, struct mc_span json, const char *name,
                 void (*visit)(struct mc_doctor *doctor, struct mc_span text))
{
    struct mc_span list;
    struct mc_json_cursor element;
    if (mc_json_find(json, name, &list) != 1 || mc_json_open(list, '[', &element) != 0)
        return;
    for (unsigned left = DIALS_MAX; left > 0 && mc_json_next(&element) == 1; left--)
        visit(doctor, element.value);
}

void mc_doctor_disks(struct mc_doctor *doctor, struct mc_span json)
{
    each(doctor, json, "disks", say_disk);
    each(doctor, json, "disks_off", say_disks_off);
}

void mc_doctor_segments(struct mc_doctor *doctor, struct mc_span json)
{
    struct mc_span list;
    struct mc_json_cursor element;
    struct dial *dials = calloc(DIALS_MAX, sizeof(*dials)), further;
    size_t count = 0;
    uint64_t deadline_ns = mc_clock_ns() + MC_DOCTOR_WAIT_MS * 1000000ull;
    if (dials == NULL || mc_json_find(json, "segments", &list) != 1 || mc_json_open(list, '[', &element) != 0) {
        free(dials);
        return;
    }
    bool is_more = mc_json_next(&element) == 1;
    for (; is_more && count < DIALS_MAX; is_more = mc_json_next(&element) == 1) {
        read_segment(&dials[count], element.value);
        dial_begin(&dials[count++], deadline_ns);
    }
    await(dials, count, deadline_ns);
    for (size_t i = 0; i < count; i++) {
        say(doctor, &dials[i], true);
        mc_fd_close(dials[i].fd);
    }
    free(dials);
    for (; is_more; is_more = mc_json_next(&element) == 1) {
        read_segment(&further, element.value);
        say(doctor, &further, false);
    }
}
