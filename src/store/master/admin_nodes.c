/* The nodes of the pool, a page of them: the segments of one owner are one node. */
#include "base/error.h"
#include "store/master/http.h"

#include <stdio.h>
#include <stdlib.h>

#define NODES_PER_PAGE 50u
#define NODES_PER_PAGE_MAX 1000u
#define NAMES_MAX 16u /* different ones of one node that are told */

struct node_row {
    struct mc_id owner;
    const struct mc_core_segment *first; /* by its number */
    const char *names[NAMES_MAX];
    unsigned name_count;
    uint64_t segments, capacity, used, populated, largest_free, objects, slots, heard_ms, mounted_ms;
    uint64_t disks, disk_capacity, disk_used, disk_objects, disks_ill;
    int badness; /* index into states, of the worst segment */
};

/* From the best to the worst. */
static const char *const node_states[] = {"OK", "DRAINED", "DRAINING", "UNMOUNTING", "SUSPECT", "ABSENT"};
#define NODE_ABSENT 5

struct all_segments {
    struct mc_core_segment *of_kind[2]; /* memory, disks */
    int64_t count[2];
    const struct mc_core_segment **sorted; /* by owner, memory before disks */
    size_t total;
};

static int badness_of(const struct mc_core_segment *segment)
{
    const char *state = mc_view_segment_state(segment);
    int at = NODE_ABSENT - 1;
    while (at > 0 && strcmp(node_states[at], state) != 0)
        at--;
    return at;
}

/* What kind one is, its array says. */
static bool is_disk(const struct all_segments *all, const struct mc_core_segment *segment)
{
    return all->count[1] > 0 && segment >= all->of_kind[1] && segment < all->of_kind[1] + all->count[1];
}

static int compare_owners(const void *a, const void *b)
{
    const struct mc_core_segment *x = *(const struct mc_core_segment *const *)a;
    const struct mc_core_segment *y = *(const struct mc_core_segment *const *)b;
    if (x->owner.high != y->owner.high)
        return x->owner.high < y->owner.high ? -1 : 1;
    if (x->owner.low != y->owner.low)
        return x->owner.low < y->owner.low ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static void segments_free(struct all_segments *all)
{
    free(all->of_kind[0]);
    free(all->of_kind[1]);
    free(all->sorted);
}

static int segments_collect(struct mc_server *server, struct all_segments *all)
{
    for (int kind = 0; kind < 2; kind++) {
        all->count[kind] = mc_view_collect(server, kind == 1, &all->of_kind[kind]);
        if (all->count[kind] < 0)
            return (int)all->count[kind];
        all->total += (size_t)all->count[kind];
    }
    all->sorted = calloc(all->total + 1, sizeof(all->sorted[0]));
    if (all->sorted == NULL)
        return MC_ERR_NO_MEMORY;
    size_t at = 0;
    for (int kind = 0; kind < 2; kind++)
        for (int64_t i = 0; i < all->count[kind]; i++)
            all->sorted[at++] = &all->of_kind[kind][i];
    qsort(all->sorted, all->total, sizeof(all->sorted[0]), compare_owners);
    return 0;
}

static void row_name(struct node_row *row, const char *name)
{
    for (unsigned i = 0; i < row->name_count; i++)
        if (strcmp(row->names[i], name) == 0)
            return;
    if (row->name_count < NAMES_MAX)
        row->names[row->name_count++] = name;
}

static void row_add(struct node_row *row, const struct mc_core_segment *segment, bool disk)
{
    if (disk) {
        row->disks++;
        row->disk_capacity += segment->capacity;
        row->disk_used += segment->used;
        row->disk_objects += segment->objects;
        row->disks_ill += segment->absent || segment->health != MC_TOLD_WELL;
        return;
    }
    int badness = badness_of(segment);
    row->badness = row->segments == 0 || badness > row->badness ? badness : row->badness;
    if (row->segments++ == 0)
        row->first = segment;
    row_name(row, segment->name);
    row->capacity += segment->capacity;
    row->used += segment->used;
    row->populated += segment->populated;
    row->objects += segment->objects;
    row->slots += segment->slot_count;
    row->heard_ms = segment->heard_ms;
    row->mounted_ms = segment->mounted_ms > row->mounted_ms ? segment->mounted_ms : row->mounted_ms;
    if (segment->largest_free > row->largest_free)
        row->largest_free = segment->largest_free;
}

/* One row for each owner. rows has room for as many as there are segments. */
static size_t rows_make(const struct all_segments *all, struct node_row *rows)
{
    size_t count = 0;
    mc_assert(rows != NULL);
    for (size_t i = 0; i < all->total; i++) {
        const struct mc_core_segment *segment = all->sorted[i];
        if (count == 0 || !mc_id_equal(rows[count - 1].owner, segment->owner))
            rows[count++] = (struct node_row){.owner = segment->owner, .first = segment, .badness = NODE_ABSENT};
        row_add(&rows[count - 1], segment, is_disk(all, segment));
    }
    return count;
}

/* ---- the order ---- */

static int compare_names(const void *a, const void *b)
{
    const struct node_row *x = a, *y = b;
    int order = strcmp(x->first->name, y->first->name);
    return order != 0 ? order : (x->owner.low > y->owner.low) - (x->owner.low < y->owner.low);
}

/* The worst first; of equal ones by name. */
static int compare_states(const void *a, const void *b)
{
    const struct node_row *x = a, *y = b;
    int worse = (x->badness < y->badness) - (x->badness > y->badness);
    int ill = (x->disks_ill < y->disks_ill) - (x->disks_ill > y->disks_ill);
    return worse != 0 ? worse : ill != 0 ? ill : compare_names(a, b);
}

static double use_of(const struct node_row *row)
{
    return row->capacity == 0 ? 0 : (double)row->used / (double)row->capacity;
}

static int compare_use(const void *a, const void *b)
{
    double x = use_of(a), y = use_of(b);
    return x != y ? (x < y ? 1 : -1) : compare_names(a, b);
}

static int compare_objects(const void *a, const void *b)
{
    const struct node_row *x = a, *y = b;
    int order = (x->objects < y->objects) - (x->objects > y->objects);
    return order != 0 ? order : compare_names(a, b);
}

static int compare_heard(const void *a, const void *b)
{
    const struct node_row *x = a, *y = b;
    int order = (x->heard_ms < y->heard_ms) - (x->heard_ms > y->heard_ms);
    return order != 0 ? order : compare_names(a, b);
}

static const struct {
    const char *name;
    int (*compare)(const void *, const void *);
} orders[] = {{"state", compare_states},
              {"name", compare_names},
              {"use", compare_use},
              {"objects", compare_objects},
              {"heard", compare_heard}};

struct node_wish {
    uint64_t offset, limit;
    struct mc_buffer find;
    int (*compare)(const void *, const void *);
};

/* False: a parameter is not valid. */
static bool wish_read(struct mc_web_request *request, struct node_wish *wish)
{
    struct mc_buffer sort = {.may_fail = true};
    wish->find.may_fail = true;
    bool is_sorted = mc_http_parameter(request, "sort", &sort);
    if (mc_http_parameter(request, "find", &wish->find))
        mc_buffer_put_u8(&wish->find, 0);
    wish->compare = is_sorted ? NULL : compare_states;
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++)
        if (mc_span_equal(mc_span(sort.data, sort.length), mc_span_string(orders[i].name)))
            wish->compare = orders[i].compare;
    mc_buffer_free(&sort);
    return wish->compare != NULL && !wish->find.failed &&
           mc_http_number(request, "offset", 0, UINT32_MAX, &wish->offset) &&
           mc_http_number(request, "limit", NODES_PER_PAGE, NODES_PER_PAGE_MAX, &wish->limit);
}

/* Keeps those whose name has the words that are looked for. */
static size_t rows_find(struct node_row *rows, size_t count, const struct mc_buffer *find)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_found = find->length == 0;
        for (unsigned k = 0; !is_found && k < rows[i].name_count; k++)
            is_found = strstr(rows[i].names[k], (const char *)find->data) != NULL;
        if (is_found || (rows[i].name_count == 0 && strstr(rows[i].first->name, (const char *)find->data) != NULL))
            rows[kept++] = rows[i];
    }
    return kept;
}

/* ---- the answer ---- */

static void write_row(struct mc_json_writer *writer, const struct node_row *row)
{
    char id[48];
    const struct mc_core_segment *first = row->first;
    snprintf(id, sizeof(id), MC_ID_LOG, MC_ID_LOG_ARGS(row->owner));
    mc_json_begin(writer, NULL, '{');
    mc_http_json_add(writer, "name", first->name, strlen(first->name));
    mc_json_add_text(writer, "id", id);
    mc_json_add_text(writer, "state", node_states[row->badness]);
    mc_http_json_add(writer, "address", first->tcp_address, strlen(first->tcp_address));
    mc_json_add_number(writer, "segments", row->segments);
    mc_json_begin(writer, "segment_names", '[');
    for (unsigned i = 0; i < row->name_count; i++)
        mc_http_json_add(writer, NULL, row->names[i], strlen(row->names[i]));
    mc_json_end(writer, ']');
    mc_json_add_number(writer, "capacity_bytes", row->capacity);
    mc_json_add_number(writer, "used_bytes", row->used);
    mc_json_add_number(writer, "populated_bytes", row->populated);
    mc_json_add_number(writer, "largest_free_bytes", row->largest_free);
    mc_json_add_number(writer, "objects", row->objects);
    mc_json_add_number(writer, "slots", row->slots);
    mc_json_add_number(writer, "heard_ms", row->heard_ms);
    mc_json_add_number(writer, "mounted_seconds", row->mounted_ms / 1000);
    mc_json_add_bool(writer, "is_recovering", first->recovering);
    mc_json_add_number(writer, "disks", row->disks);
    mc_json_add_number(writer, "disks_ill", row->disks_ill);
    mc_json_add_number(writer, "disk_capacity_bytes", row->disk_capacity);
    mc_json_add_number(writer, "disk_used_bytes", row->disk_used);
    mc_json_add_number(writer, "disk_objects", row->disk_objects);
    mc_http_json_add(writer, "build", first->build, strlen(first->build));
    mc_json_end(writer, '}');
}

static void reply_rows(struct mc_web_request *request, const struct node_wish *wish, struct node_row *rows,
                       size_t total)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    size_t found = rows_find(rows, total, &wish->find);
    mc_assert(rows != NULL);
    qsort(rows, found, sizeof(rows[0]), wish->compare);
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_add_number(&writer, "total", total);
    mc_json_add_number(&writer, "found", found);
    mc_json_add_number(&writer, "offset", wish->offset);
    mc_json_begin(&writer, "nodes", '[');
    for (uint64_t i = wish->offset; i < found && i - wish->offset < wish->limit; i++)
        write_row(&writer, &rows[i]);
    mc_json_end(&writer, ']');
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

void mc_view_nodes(const struct mc_view *view, struct mc_web_request *request)
{
    struct all_segments all = {.total = 0};
    struct node_wish wish = {.offset = 0};
    struct node_row *rows = NULL;
    int rc = wish_read(request, &wish) ? segments_collect(view->server, &all) : MC_ERR_INVALID_PARAMS;
    if (rc == 0)
        rows = calloc(all.total + 1, sizeof(rows[0]));
    if (rc == 0 && rows == NULL)
        rc = MC_ERR_NO_MEMORY;
    if (rc < 0)
        mc_http_reply_error(request, rc);
    else
        reply_rows(request, &wish, rows, rows_make(&all, rows));
    free(rows);
    segments_free(&all);
    mc_buffer_free(&wish.find);
}
