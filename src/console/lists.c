/* mooncake nodes, keys, events and slow: what comes a page at a time. */
#include "console/console.h"

#include "env/clock.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#define PAGE 500u
#define KEYS_SHOWN 100u
#define EVENTS_SHOWN 50u
#define FOLLOW_MS 1000
#define SLOW_SHOWN 20u
#define SLOW_MOST 128u

static struct mc_span whole(const struct mc_buffer *reply)
{
    return mc_span(reply->data, reply->length);
}

/* The elements of one list of an answer, each given to print, or added to the JSON. How many, or negative: it has none
 * such. */
static int64_t print_page(struct mc_console *console, const struct mc_buffer *reply, const char *name, uint64_t most,
                          bool *is_begun, void (*print)(FILE *out, struct mc_span element))
{
    struct mc_span list;
    struct mc_json_cursor cursor;
    int64_t count = 0;
    if (mc_json_find(whole(reply), name, &list) != 1 || mc_json_open(list, '[', &cursor) < 0) {
        (void)mc_console_strange(console);
        return -1;
    }
    while ((uint64_t)count < most && mc_json_next(&cursor) == 1) {
        if (console->is_json)
            mc_console_list_add(console, is_begun, cursor.value);
        else
            print(console->out, cursor.value);
        count++;
    }
    return count;
}

/* ---- nodes ---- */

void mc_console_print_nodes_head(FILE *out)
{
    fprintf(out, "%-32s %-10s %9s %10s %10s %6s %10s %7s %s\n", "NODE", "STATE", "OBJECTS", "USED", "OF", "", "LARGEST",
            "HEARD", "DISKS");
}

void mc_console_print_node(FILE *out, struct mc_span node)
{
    char name[300], state[32], objects[32], used[32], all[32], hole[32], disks[48] = "-";
    uint64_t capacity = mc_console_number(node, "capacity_bytes"), taken = mc_console_number(node, "used_bytes");
    uint64_t disk_count = mc_console_number(node, "disks"), ill = mc_console_number(node, "disks_ill");
    if (ill > 0)
        snprintf(disks, sizeof(disks), "%" PRIu64 ", %" PRIu64 " ail", disk_count, ill);
    else if (disk_count > 0)
        snprintf(disks, sizeof(disks), "%" PRIu64, disk_count);
    fprintf(out, "%-32s %-10s %9s %10s %10s %4.0f %% %10s %5.1f s %s\n",
            mc_console_text(node, "name", name, sizeof(name)), mc_console_text(node, "state", state, sizeof(state)),
            mc_console_count(objects, mc_console_number(node, "objects")), mc_console_size(used, taken),
            mc_console_size(all, capacity), capacity == 0 ? 0 : 100 * (double)taken / (double)capacity,
            mc_console_size(hole, mc_console_number(node, "largest_free_bytes")),
            (double)mc_console_number(node, "heard_ms") / 1000, disks);
}

int mc_console_nodes(struct mc_console *console)
{
    struct mc_buffer reply = {0}, path = {0};
    bool is_begun = false;
    int code = MC_CONSOLE_FINE;
    uint64_t most = console->limit != 0 ? console->limit : UINT64_MAX, shown = 0;
    if (!console->is_json)
        mc_console_print_nodes_head(console->out);
    for (bool has_more = true; has_more && code == MC_CONSOLE_FINE;) {
        path.length = 0;
        mc_buffer_printf(&path, "/api/v1/nodes?limit=%u&offset=%" PRIu64 "&sort=%s", PAGE, shown, console->sort);
        if (console->word_count > 0) {
            mc_buffer_printf(&path, "&find=");
            mc_console_escape(&path, mc_span_string(console->words[0]));
        }
        mc_buffer_put_u8(&path, 0);
        code = mc_console_ask(console, (const char *)path.data, NULL, &reply);
        int64_t count = code != MC_CONSOLE_FINE
                            ? -1
                            : print_page(console, &reply, "nodes", most - shown, &is_begun, mc_console_print_node);
        code = count < 0 ? MC_CONSOLE_FAILED : code;
        shown += count > 0 ? (uint64_t)count : 0;
        has_more = count == PAGE && shown < most;
    }
    if (console->is_json && code == MC_CONSOLE_FINE)
        mc_console_list_end(console, is_begun);
    mc_buffer_free(&reply);
    mc_buffer_free(&path);
    return code;
}

/* ---- keys ---- */

static void print_key(FILE *out, struct mc_span key)
{
    char name[4096], size[32];
    fprintf(out, "%10s  %s\n", mc_console_size(size, mc_console_number(key, "bytes")),
            mc_console_text(key, "key", name, sizeof(name)));
}

static int list_keys(struct mc_console *console)
{
    struct mc_buffer reply = {0}, path = {0};
    char cursor[32] = "0";
    bool is_begun = false;
    int code = MC_CONSOLE_FINE;
    uint64_t left = console->limit != 0 ? console->limit : KEYS_SHOWN;
    while (code == MC_CONSOLE_FINE && left > 0 && cursor[0] != 0) {
        path.length = 0;
        mc_buffer_printf(&path, "/api/v1/keys?limit=%" PRIu64 "&cursor=%s&prefix=", left < PAGE ? left : PAGE, cursor);
        mc_console_escape(&path, mc_span_string(console->prefix));
        mc_buffer_put_u8(&path, 0);
        code = mc_console_ask(console, (const char *)path.data, NULL, &reply);
        int64_t count = code != MC_CONSOLE_FINE ? -1 : print_page(console, &reply, "keys", left, &is_begun, print_key);
        code = count < 0 ? MC_CONSOLE_FAILED : code;
        left -= count > 0 ? (uint64_t)count : 0;
        (void)mc_console_text(whole(&reply), "cursor", cursor, sizeof(cursor));
    }
    if (console->is_json && code == MC_CONSOLE_FINE)
        mc_console_list_end(console, is_begun);
    else if (code == MC_CONSOLE_FINE && cursor[0] != 0)
        fprintf(stderr, "mooncake: there may be more; --limit shows more of them\n");
    mc_buffer_free(&reply);
    mc_buffer_free(&path);
    return code;
}

static void print_one_key(FILE *out, struct mc_span data)
{
    char name[4096], size[32], node[300], address[300], state[32], reason[64], ago[32];
    struct mc_span list;
    struct mc_json_cursor cursor;
    (void)mc_console_text(data, "key", name, sizeof(name));
    if (!mc_console_bool(data, "is_there")) {
        fprintf(out, "%s is not there: %s", name, mc_console_text(data, "reason", reason, sizeof(reason)));
        if (mc_console_real(data, "most_seconds_ago") > 0)
            fprintf(out, ", at least %s ago", mc_console_time(ago, mc_console_whole(data, "least_seconds_ago")));
        fprintf(out, "\n");
        return;
    }
    fprintf(out, "%s: %s", name, mc_console_size(size, mc_console_number(data, "bytes")));
    uint64_t firm_ms = mc_console_number(data, "firm_pin_ms");
    if (firm_ms > 0)
        fprintf(out, ", pinned firmly for %s", mc_console_time(ago, firm_ms / 1000));
    fprintf(out, "\n");
    if (mc_json_find(data, "replicas", &list) != 1 || mc_json_open(list, '[', &cursor) < 0)
        return;
    while (mc_json_next(&cursor) == 1)
        fprintf(out, "  on %s (%s), %s, %s\n", mc_console_text(cursor.value, "node", node, sizeof(node)),
                mc_console_text(cursor.value, "address", address, sizeof(address)),
                mc_console_bool(cursor.value, "is_on_disk") ? "disk" : "memory",
                mc_console_text(cursor.value, "state", state, sizeof(state)));
}

int mc_console_keys(struct mc_console *console)
{
    struct mc_buffer reply = {0}, path = {0};
    struct mc_span data;
    if (console->word_count == 0)
        return list_keys(console);
    mc_buffer_printf(&path, "/api/v1/key?key=");
    mc_console_escape(&path, mc_span_string(console->words[0]));
    mc_buffer_put_u8(&path, 0);
    int code = mc_console_ask(console, (const char *)path.data, NULL, &reply);
    if (code == MC_CONSOLE_FINE && mc_json_find(whole(&reply), "data", &data) != 1)
        code = mc_console_strange(console);
    if (code == MC_CONSOLE_FINE && console->is_json) {
        mc_console_put_json(console->out, data);
        fprintf(console->out, "\n");
    } else if (code == MC_CONSOLE_FINE) {
        print_one_key(console->out, data);
    }
    if (code == MC_CONSOLE_FINE && !mc_console_bool(data, "is_there"))
        code = MC_CONSOLE_FAILED; /* for scripts */
    mc_buffer_free(&reply);
    mc_buffer_free(&path);
    return code;
}

/* ---- events ---- */

static void put_when(char when[32], uint64_t wall_ms)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm parts;
    snprintf(when, 32, "?");
    if (localtime_r(&seconds, &parts) != NULL)
        (void)strftime(when, 32, "%Y-%m-%d %H:%M:%S", &parts);
}

void mc_console_print_event(FILE *out, struct mc_span event)
{
    char text[300], kind[32], level[32], when[32];
    put_when(when, mc_console_number(event, "time_ms"));
    uint64_t count = mc_console_number(event, "count");
    fprintf(out, "%s %-9s%s %s", when, mc_console_text(event, "kind", kind, sizeof(kind)),
            strcmp(mc_console_text(event, "level", level, sizeof(level)), "warning") == 0 ? "!" : " ",
            mc_console_text(event, "text", text, sizeof(text)));
    if (count > 1)
        fprintf(out, " (%" PRIu64 " times)", count);
    fprintf(out, "\n");
}

int mc_console_events(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    char path[96];
    bool is_begun = false;
    uint64_t most = console->limit != 0 ? console->limit : EVENTS_SHOWN;
    snprintf(path, sizeof(path), "/api/v1/events?limit=%" PRIu64, most < 1000 ? most : 1000);
    int code = mc_console_ask(console, path, NULL, &reply);
    while (code == MC_CONSOLE_FINE) {
        if (print_page(console, &reply, "events", UINT64_MAX, &is_begun, mc_console_print_event) < 0)
            code = MC_CONSOLE_FAILED;
        if (!console->follows || code != MC_CONSOLE_FINE)
            break;
        if (fflush(console->out) != 0)
            break; /* whoever read it has gone */
        snprintf(path, sizeof(path), "/api/v1/events?limit=1000&since=%" PRIu64,
                 mc_console_number(whole(&reply), "last"));
        (void)poll(NULL, 0, FOLLOW_MS);
        code = mc_console_ask(console, path, NULL, &reply);
    }
    if (console->is_json && code == MC_CONSOLE_FINE)
        mc_console_list_end(console, is_begun);
    mc_buffer_free(&reply);
    return code;
}

/* ---- slow calls ---- */

static void print_call(FILE *out, struct mc_span call, const char *when, const char *end)
{
    char kind[32], key[700], tenant[80], client[80], address[300];
    (void)mc_console_text(call, "tenant", tenant, sizeof(tenant));
    (void)mc_console_text(call, "client", client, sizeof(client));
    (void)mc_console_text(call, "address", address, sizeof(address));
    fprintf(out, "%-19s %9.3f s  %-11s %-20s %s%s by %s%s%s%s", when, (double)mc_console_number(call, "ms") / 1000,
            mc_console_text(call, "kind", kind, sizeof(kind)), end, mc_console_text(call, "key", key, sizeof(key)),
            mc_console_bool(call, "key_is_cut") ? "..." : "", client[0] == 0 ? "one that has gone" : client,
            address[0] == 0 ? "" : " at ", address, tenant[0] == 0 || strcmp(tenant, "default") == 0 ? "" : ", of ");
    fprintf(out, "%s\n", tenant[0] == 0 || strcmp(tenant, "default") == 0 ? "" : tenant);
}

static void print_slow(FILE *out, struct mc_span call)
{
    char when[32], result[64];
    put_when(when, mc_console_number(call, "time_ms"));
    print_call(out, call, when, mc_console_text(call, "result", result, sizeof(result)));
}

static void print_open(FILE *out, struct mc_span call)
{
    char size[32], text[64];
    snprintf(text, sizeof(text), "open, %s", mc_console_size(size, mc_console_number(call, "bytes")));
    print_call(out, call, "now", text);
}

int mc_console_slow(struct mc_console *console)
{
    struct mc_buffer reply = {0};
    char path[64];
    bool is_begun = false;
    uint64_t most = console->limit != 0 ? console->limit : SLOW_SHOWN;
    snprintf(path, sizeof(path), "/api/v1/slow?limit=%" PRIu64, most < SLOW_MOST ? most : SLOW_MOST);
    int code = mc_console_ask(console, path, NULL, &reply);
    if (code == MC_CONSOLE_FINE && console->is_json) {
        mc_console_put_json(console->out, whole(&reply));
        fprintf(console->out, "\n");
    } else if (code == MC_CONSOLE_FINE &&
               (print_page(console, &reply, "open", UINT64_MAX, &is_begun, print_open) < 0 ||
                print_page(console, &reply, "calls", UINT64_MAX, &is_begun, print_slow) < 0)) {
        code = MC_CONSOLE_FAILED;
    }
    mc_buffer_free(&reply);
    return code;
}
