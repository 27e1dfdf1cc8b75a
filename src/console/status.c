/* mooncake status: the cluster in a dozen lines. */
#include "console/console.h"

#include "base/address.h"

#include <stdlib.h>
#include <string.h>

#define BAR 24 /* characters of one */

/* One that listens on all addresses tells none: it is where it was asked. */
static void put_reached(const struct mc_console *console, char *leader, size_t size)
{
    char host[MC_ADDRESS_MAX - 8], port_of[MC_ADDRESS_MAX];
    const char *colon = strrchr(leader, ':');
    uint16_t port = 0;
    bool is_any = strncmp(leader, "0.0.0.0:", 8) == 0 || strncmp(leader, "[::]:", 5) == 0;
    if (!is_any || mc_address_split(console->address, host, sizeof(host), &port) < 0)
        return;
    mc_address_join(port_of, sizeof(port_of), host, (uint16_t)strtoul(colon + 1, NULL, 10));
    snprintf(leader, size, "%s", port_of);
}

static void print_leader(const struct mc_console *console, struct mc_span data)
{
    FILE *out = console->out;
    char role[32], state[32], leader[300], build[80], up[32];
    bool is_leader = strcmp(mc_console_text(data, "role", role, sizeof(role)), "leader") == 0;
    (void)mc_console_text(data, "leader_address", leader, sizeof(leader));
    if (is_leader)
        put_reached(console, leader, sizeof(leader));
    fprintf(out, "master    %s, %s; %s; up %s, epoch %llu\n", role,
            mc_console_text(data, "state", state, sizeof(state)), mc_console_text(data, "build", build, sizeof(build)),
            mc_console_time(up, mc_console_number(data, "uptime_seconds")),
            (unsigned long long)mc_console_number(data, "epoch"));
    if (leader[0] == 0)
        fprintf(out, "leader    nobody leads\n");
    else
        fprintf(out, "leader    %s%s\n", leader, is_leader ? "" : "; this one knows nothing of objects: ask that one");
}

static void print_standbys(FILE *out, struct mc_span data)
{
    struct mc_span list;
    struct mc_json_cursor cursor;
    char name[80], address[300], build[80], since[32];
    uint64_t now_ms = mc_console_number(data, "time_ms");
    size_t count = 0;
    if (mc_json_find(data, "standbys", &list) != 1 || mc_json_open(list, '[', &cursor) < 0)
        return; /* no election, or a master of a release before */
    for (; mc_json_next(&cursor) == 1; count++) {
        uint64_t since_ms = mc_console_number(cursor.value, "since_ms");
        fprintf(out, "standby   %s, %s; %s; waits %s, heard %.1f s ago\n",
                mc_console_text(cursor.value, "address", address, sizeof(address)),
                mc_console_text(cursor.value, "name", name, sizeof(name)),
                mc_console_text(cursor.value, "build", build, sizeof(build)),
                mc_console_time(since, now_ms > since_ms ? (now_ms - since_ms) / 1000 : 0),
                (double)mc_console_number(cursor.value, "heard_ms") / 1000);
    }
    if (!mc_console_bool(data, "standbys_are_known"))
        fprintf(out, "standby   the place of the election has not said lately who waits\n");
    else if (count == 0)
        fprintf(out, "standby   none says that it waits; masters of releases before this one do not\n");
}

static double part(double of, double all)
{
    return all <= 0 ? 0 : 100 * of / all;
}

static void print_memory(FILE *out, struct mc_span data)
{
    char used[32], all[32], hole[32], clearing[32], count[32];
    uint64_t capacity = mc_console_number(data, "memory.capacity_bytes");
    uint64_t taken = mc_console_number(data, "memory.used_bytes");
    uint64_t ready = mc_console_number(data, "memory.populated_bytes");
    fprintf(out, "memory    %s of %s used (%.1f %%), largest free piece %s, %s being cleared",
            mc_console_size(used, taken), mc_console_size(all, capacity), part((double)taken, (double)capacity),
            mc_console_size(hole, mc_console_number(data, "memory.largest_free_bytes")),
            mc_console_size(clearing, mc_console_number(data, "memory.clearing_bytes") +
                                          mc_console_number(data, "memory.quarantine_bytes")));
    if (ready < capacity)
        fprintf(out, ", %.0f %% ready", part((double)ready, (double)capacity));
    fprintf(out, "\nobjects   %s", mc_console_count(count, mc_console_number(data, "objects")));
    fprintf(out, ", %s of them pinned softly\n", mc_console_count(count, mc_console_number(data, "soft_pinned")));
}

static void print_members(FILE *out, struct mc_span data)
{
    static const struct {
        const char *path, *word;
    } bad[] = {{"segments.suspect", "suspect"},
               {"segments.recovering", "being taken in"},
               {"segments.draining", "being drained"},
               {"segments.drained", "drained"}};
    fprintf(out, "segments  %llu", (unsigned long long)mc_console_number(data, "segments.mounted"));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t count = mc_console_number(data, bad[i].path);
        if (count > 0)
            fprintf(out, ", %llu %s", (unsigned long long)count, bad[i].word);
    }
    fprintf(out, "; %llu members, %llu connections\n", (unsigned long long)mc_console_number(data, "members"),
            (unsigned long long)mc_console_number(data, "connections"));
}

static void print_disks(FILE *out, struct mc_span data)
{
    static const char *const ills[] = {"absent", "slow", "read_only", "off"};
    char used[32], all[32], path[32];
    uint64_t mounted = mc_console_number(data, "disks.mounted"), off = mc_console_number(data, "disks.off");
    if (mounted + off == 0)
        return;
    fprintf(out, "disks     %llu, %s of %s used", (unsigned long long)mounted,
            mc_console_size(used, mc_console_number(data, "disks.used_bytes")),
            mc_console_size(all, mc_console_number(data, "disks.capacity_bytes")));
    for (size_t i = 0; i < sizeof(ills) / sizeof(ills[0]); i++) {
        snprintf(path, sizeof(path), "disks.%s", ills[i]);
        uint64_t count = mc_console_number(data, path);
        if (count > 0)
            fprintf(out, ", %llu %s", (unsigned long long)count, ills[i]);
    }
    fprintf(out, "\n");
}

static void print_rates(FILE *out, struct mc_span data)
{
    char bytes[32];
    struct mc_span value;
    double lookups = mc_console_real(data, "per_second.lookups");
    double hits = mc_console_real(data, "per_second.lookup_hits");
    fprintf(out, "lookups   %.1f/s, ", lookups);
    if (lookups > 0)
        fprintf(out, "%.1f %% found", part(hits, lookups));
    else
        fprintf(out, "nothing is looked for");
    if (mc_json_find(data, "hit_ratio_lately", &value) == 1 && !mc_span_equal(value, mc_span_string("null")))
        fprintf(out, "; %.1f %% lately", 100 * mc_console_real(data, "hit_ratio_lately"));
    fprintf(out, "\nputs      %.1f/s, %s/s; gets %.1f/s; removes %.1f/s\n",
            mc_console_real(data, "per_second.put_end_items"),
            mc_console_size(bytes, mc_console_whole(data, "per_second.put_bytes")),
            mc_console_real(data, "per_second.get_items"), mc_console_real(data, "per_second.remove_items"));
    fprintf(out, "evicted   %.1f/s, ", mc_console_real(data, "per_second.evicted_objects"));
    fprintf(out, "%s/s; puts without room %.1f/s; longest turn of the master %.1f ms\n",
            mc_console_size(bytes, mc_console_whole(data, "per_second.evicted_bytes")),
            mc_console_real(data, "per_second.allocation_failures"),
            (double)mc_console_number(data, "turns.longest_us") / 1000);
}

/* What went for, and how long before that it was used. */
static void print_evictions(FILE *out, struct mc_span data)
{
    char least[32], median[32], most[32];
    struct mc_span reasons;
    if (mc_console_number(data, "totals.evicted_objects") == 0 || mc_json_find(data, "evictions", &reasons) != 1)
        return; /* none went, or a master of a release before does not say for what */
    fprintf(out, "room for  ");
    mc_console_print_parts(out, data, "evictions");
    if (mc_console_number(data, "eviction_ages.lately") > 0)
        fprintf(out, "; used %s to %s before, half of the last within %s",
                mc_console_time(least, mc_console_number(data, "eviction_ages.least_ms") / 1000),
                mc_console_time(most, mc_console_number(data, "eviction_ages.most_ms") / 1000),
                mc_console_time(median, mc_console_number(data, "eviction_ages.median_ms") / 1000));
    fprintf(out, "\n");
}

/* Nothing where nobody pins or hints. */
static void print_promises(FILE *out, struct mc_span data)
{
    static const char *const hints[] = {"drop", "pause", "resume", "prefetch"};
    static const char *const outcomes[] = {"done", "begun", "absent", "no_room", "refused"};
    char bytes[32], budget[32], count[32], path[48];
    uint64_t pinned = mc_console_number(data, "firm_pins.bytes"), hard = mc_console_number(data, "hard_pin_bytes");
    uint64_t over = mc_console_number(data, "firm_pins.expired"),
             refused = mc_console_number(data, "firm_pins.refused");
    if (pinned + over + refused + hard > 0)
        fprintf(out, "pinned    %s of %s firmly, %s objects; %llu were refused; %s for ever\n",
                mc_console_size(bytes, pinned),
                mc_console_size(budget, mc_console_number(data, "firm_pins.budget_bytes")),
                mc_console_count(count, mc_console_number(data, "firm_pins.objects")), (unsigned long long)refused,
                mc_console_size(path, hard));
    bool is_begun = false;
    for (size_t hint = 0; hint < sizeof(hints) / sizeof(hints[0]); hint++) {
        for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++) {
            snprintf(path, sizeof(path), "hints.%s.%s", hints[hint], outcomes[i]);
            uint64_t keys = mc_console_number(data, path);
            if (keys > 0)
                fprintf(out, "%s%s %s %s", is_begun ? ", " : "hints     ", hints[hint], outcomes[i],
                        mc_console_count(count, keys));
            is_begun = is_begun || keys > 0;
        }
    }
    fprintf(out, "%s", is_begun ? "\n" : "");
}

/* "[########            ]", of a part between 0 and 1. */
static void print_bar(FILE *out, double ratio)
{
    int filled = ratio >= 1 ? BAR : ratio > 0 ? (int)(BAR * ratio) : 0;
    fprintf(out, "[%.*s%*s] %3.0f %%", filled, "########################", BAR - filled, "",
            100 * (ratio < 1 ? ratio : 1));
}

static void print_recovery(FILE *out, struct mc_span data)
{
    char told[32], most[32], left[32], rate[32];
    uint64_t segments = mc_console_number(data, "recovery.segments"),
             done = mc_console_number(data, "recovery.segments_done");
    uint64_t objects = mc_console_number(data, "recovery.objects_told");
    uint64_t at_most = mc_console_number(data, "recovery.objects_at_most");
    uint64_t left_ms = mc_console_number(data, "recovery.left_ms");
    bool is_known = mc_console_bool(data, "recovery.objects_are_known");
    if (segments == 0)
        return;
    fprintf(out, "taken in  ");
    print_bar(out,
              is_known && at_most > 0 ? (double)objects / (double)at_most : (double)done / (double)(done + segments));
    fprintf(out, "  %llu of %llu segments, %s of at most %s%s objects, %s/s", (unsigned long long)done,
            (unsigned long long)(done + segments), mc_console_count(told, objects), mc_console_count(most, at_most),
            is_known ? "" : " and more",
            mc_console_count(rate, mc_console_number(data, "recovery.objects_per_second")));
    if (left_ms > 0)
        fprintf(out, ", about %s left", mc_console_time(left, (left_ms + 999) / 1000));
    if (mc_console_number(data, "recovery.segments_awaited") > 0)
        fprintf(out, "; the owners of %llu are awaited",
                (unsigned long long)mc_console_number(data, "recovery.segments_awaited"));
    fprintf(out, "\n");
}

static void print_drains(FILE *out, struct mc_span data)
{
    struct mc_span list;
    struct mc_json_cursor cursor;
    char name[300], status[32], left[32];
    if (mc_json_find(data, "drains", &list) != 1 || mc_json_open(list, '[', &cursor) < 0)
        return;
    while (mc_json_next(&cursor) == 1) {
        if (strcmp(mc_console_text(cursor.value, "status", status, sizeof(status)), "RUNNING") != 0)
            continue;
        uint64_t moved = mc_console_number(cursor.value, "succeeded_units");
        uint64_t all = mc_console_number(cursor.value, "total_units");
        fprintf(out, "draining  ");
        print_bar(out, all > 0 ? (double)moved / (double)all : 0);
        fprintf(out, "  %s: %llu of %llu objects moved",
                mc_console_text(cursor.value, "segments.0", name, sizeof(name)), (unsigned long long)moved,
                (unsigned long long)all);
        uint64_t left_ms = mc_console_number(cursor.value, "left_ms");
        if (left_ms > 0)
            fprintf(out, ", %.1f/s, about %s left", mc_console_real(cursor.value, "units_per_second"),
                    mc_console_time(left, (left_ms + 999) / 1000));
        fprintf(out, "\n");
    }
}

void mc_console_print_status(const struct mc_console *console, struct mc_span data)
{
    FILE *out = console->out;
    print_leader(console, data);
    print_standbys(out, data);
    if (!mc_console_bool(data, "is_ready"))
        return;
    print_memory(out, data);
    print_members(out, data);
    print_disks(out, data);
    print_rates(out, data);
    print_evictions(out, data);
    print_promises(out, data);
    print_recovery(out, data);
    print_drains(out, data);
}

int mc_console_status(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    struct mc_span data;
    int code = mc_console_ask(console, "/api/v1/overview", NULL, &reply);
    if (code == MC_CONSOLE_FINE && mc_json_find(mc_span(reply.data, reply.length), "data", &data) != 1)
        code = mc_console_strange(console);
    if (code == MC_CONSOLE_FINE && console->is_json) {
        mc_console_put_json(console->out, data);
        fprintf(console->out, "\n");
    } else if (code == MC_CONSOLE_FINE) {
        mc_console_print_status(console, data);
    }
    mc_buffer_free(&reply);
    return code;
}
