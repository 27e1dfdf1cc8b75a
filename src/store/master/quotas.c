#include "store/master/quotas.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/core/limits.h"
#include "store/master/quotas_etcd.h"
#include "store/master/server.h"
#include "store/wire/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define LOOK_MS 2000u      /* between two looks into etcd */
#define LOOK_MOST_MS 1500u /* for one, and so for the end of this process */
#define FIRST_MOST_MS 10000u
#define CHANGE_MOST_MS 2000u /* a request waits for it */
#define TELL_MOST_MS 1000u

struct quota_list {
    size_t count;
    uint64_t revision; /* of etcd; 0: it is not there */
    struct mc_quota_entry entries[MC_TENANTS_MAX];
};

struct mc_quotas {
    pthread_mutex_t lock; /* of what follows */
    struct quota_list list;
    size_t gone_count; /* names that a core may still know a quota of, and that are in the list no more */
    char gone[MC_TENANTS_MAX][64];
    bool is_new;      /* the core has not been told yet */
    uint64_t changes; /* that we have made: what was read meanwhile may be of before */

    char path[512]; /* of the file; "": none. Constant */
    /* etcd, NULL: none; one for the thread that changes, one for the thread that looks. */
    struct mc_quota_place *place, *looked;
    struct mc_sleeper looker;
    struct mc_server *server; /* of the looker */
    bool has_stopped;
};

const char *mc_quota_wrong(const struct mc_core_quota *quota)
{
    return quota->bytes == 0 || quota->bytes > MC_QUOTA_BYTES_MAX ? "a quota is 1 to 2^63 - 1 bytes"
           : quota->guaranteed_bytes > quota->bytes               ? "more bytes are guaranteed than the quota is"
           : quota->firm_bytes > quota->bytes                     ? "firm pins may have more than the quota is"
           : quota->objects > 0 && quota->guaranteed_objects > quota->objects
               ? "more objects are guaranteed than the quota is"
               : NULL;
}

/* ---- the text ---- */

struct quota_file {
    yaml_document_t document;
    const char *wrong;
};

static struct mc_span scalar_of(const yaml_node_t *node)
{
    return node == NULL || node->type != YAML_SCALAR_NODE ? mc_span(NULL, 0)
                                                          : mc_span(node->data.scalar.value, node->data.scalar.length);
}

/* The value of that name in a map; NULL: it is not there, or that is no map. */
static yaml_node_t *member_of(struct quota_file *file, const yaml_node_t *map, const char *name)
{
    if (map == NULL || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++)
        if (mc_span_equal(scalar_of(yaml_document_get_node(&file->document, pair->key)), mc_span_string(name)))
            return yaml_document_get_node(&file->document, pair->value);
    return NULL;
}

/* Digits and a unit. False: it is something else, or too much. */
static bool amount_parse(struct mc_span text, bool has_units, uint64_t *amount)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    const char *at = text.data, *end = at + text.length;
    uint64_t number = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (unsigned char)*at - (uint64_t)'0';
        if (number > (MC_QUOTA_BYTES_MAX - digit) / 10)
            return false;
        number = number * 10 + digit;
    }
    struct mc_span unit = mc_span(at, (size_t)(end - at));
    if (text.length == 0 || at == text.data)
        return false;
    *amount = number;
    for (unsigned i = 0; has_units && unit.length > 0 && i < 5; i++) {
        if (!mc_span_equal(unit, mc_span_string(units[i])))
            continue;
        *amount = number << 10 * i;
        return number <= MC_QUOTA_BYTES_MAX >> 10 * i;
    }
    return unit.length == 0;
}

static const char *entry_read(struct quota_file *file, const yaml_node_t *map, struct mc_quota_entry *entry)
{
    static const struct {
        const char *name;
        bool has_units;
        size_t offset;
    } amounts[] = {{"quota", true, offsetof(struct mc_core_quota, bytes)},
                   {"objects", false, offsetof(struct mc_core_quota, objects)},
                   {"guaranteed", true, offsetof(struct mc_core_quota, guaranteed_bytes)},
                   {"guaranteed_objects", false, offsetof(struct mc_core_quota, guaranteed_objects)},
                   {"firm_pins", true, offsetof(struct mc_core_quota, firm_bytes)}};
    struct mc_span name = scalar_of(member_of(file, map, "name"));
    if (!mc_tenant_is_name(name))
        return "a tenant's name has 1 to 63 characters that can be printed, the first is no '_'";
    mc_assert(name.data != NULL);
    *entry = (struct mc_quota_entry){.quota = {.bytes = 0}};
    memcpy(entry->name, name.data, name.length);
    for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++) {
        const yaml_node_t *value = member_of(file, map, amounts[i].name);
        uint64_t *amount = (uint64_t *)(void *)((char *)&entry->quota + amounts[i].offset);
        if (value != NULL && !amount_parse(scalar_of(value), amounts[i].has_units, amount))
            return "an amount is a number, of bytes with B, KB, MB, GB or TB behind it";
    }
    return mc_quota_wrong(&entry->quota);
}

static int list_read(struct quota_file *file, struct mc_quota_entry *list, size_t capacity)
{
    const yaml_node_t *root = yaml_document_get_root_node(&file->document);
    const yaml_node_t *tenants = member_of(file, root, "tenants");
    size_t count = 0;
    if (!mc_span_equal(scalar_of(member_of(file, root, "version")), mc_span_string("1")))
        file->wrong = "version: 1 is to stand there";
    else if (tenants == NULL || tenants->type != YAML_SEQUENCE_NODE)
        file->wrong = "tenants is to be a list";
    if (file->wrong != NULL)
        return MC_ERR_INVALID_PARAMS;
    for (const yaml_node_item_t *item = tenants->data.sequence.items.start; item < tenants->data.sequence.items.top;
         item++) {
        file->wrong = count == capacity
                          ? "there are too many tenants"
                          : entry_read(file, yaml_document_get_node(&file->document, *item), &list[count]);
        for (size_t i = 0; file->wrong == NULL && i < count; i++)
            if (strcmp(list[i].name, list[count].name) == 0)
                file->wrong = "a name stands there twice";
        if (file->wrong != NULL)
            return MC_ERR_INVALID_PARAMS;
        count++;
    }
    return (int)count;
}

int mc_quotas_parse(const char *text, size_t length, struct mc_quota_entry *list, size_t capacity, char *error,
                    size_t error_size)
{
    struct quota_file file = {.wrong = NULL};
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0)
        return MC_ERR_NO_MEMORY;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    int rc = MC_ERR_INVALID_PARAMS;
    if (yaml_parser_load(&parser, &file.document) == 0) {
        file.wrong = parser.problem == NULL ? "that is no YAML" : parser.problem;
    } else {
        rc = list_read(&file, list, capacity);
        yaml_document_delete(&file.document);
    }
    if (rc < 0)
        snprintf(error, error_size, "%s", file.wrong);
    yaml_parser_delete(&parser);
    return rc;
}

void mc_quotas_format(struct mc_buffer *out, const struct mc_quota_entry *list, size_t count)
{
    mc_buffer_printf(out, "version: 1\n\ntenants:%s\n", count == 0 ? " []" : "");
    for (size_t i = 0; i < count; i++) {
        const struct mc_core_quota *quota = &list[i].quota;
        mc_buffer_printf(out, "  - name: \"");
        for (const char *at = list[i].name; *at != 0; at++)
            mc_buffer_printf(out, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
        mc_buffer_printf(out, "\"\n    quota: %llu\n", (unsigned long long)quota->bytes);
        if (quota->objects > 0)
            mc_buffer_printf(out, "    objects: %llu\n", (unsigned long long)quota->objects);
        if (quota->guaranteed_bytes > 0)
            mc_buffer_printf(out, "    guaranteed: %llu\n", (unsigned long long)quota->guaranteed_bytes);
        if (quota->guaranteed_objects > 0)
            mc_buffer_printf(out, "    guaranteed_objects: %llu\n", (unsigned long long)quota->guaranteed_objects);
        if (quota->firm_bytes > 0)
            mc_buffer_printf(out, "    firm_pins: %llu\n", (unsigned long long)quota->firm_bytes);
    }
}

/* ---- the list ---- */

static struct mc_quota_entry *entry_of(struct quota_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].name, name) == 0)
            return &list->entries[i];
    return NULL;
}

/* 0 or MC_ERR_BUSY: there are too many. */
static int list_change(struct quota_list *list, const char *name, const struct mc_core_quota *quota)
{
    struct mc_quota_entry *entry = entry_of(list, name);
    if (quota == NULL) {
        if (entry != NULL)
            *entry = list->entries[--list->count];
        return 0;
    }
    if (entry == NULL && list->count == MC_TENANTS_MAX)
        return MC_ERR_BUSY;
    if (entry == NULL)
        entry = &list->entries[list->count++];
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    entry->quota = *quota;
    return 0;
}

/* It is in the place of what was known, of which the core is told when that looks. Lock held. */
static void list_take(struct mc_quotas *quotas, struct quota_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < quotas->gone_count; i++)
        if (entry_of(list, quotas->gone[i]) == NULL)
            memmove(quotas->gone[kept++], quotas->gone[i], sizeof(quotas->gone[i]));
    for (size_t i = 0; i < quotas->list.count && kept < MC_TENANTS_MAX; i++)
        if (entry_of(list, quotas->list.entries[i].name) == NULL)
            memcpy(quotas->gone[kept++], quotas->list.entries[i].name, sizeof(quotas->gone[0]));
    quotas->gone_count = kept;
    quotas->list = *list;
    quotas->is_new = true;
}

static int list_parse(struct quota_list *list, const char *text, size_t length, char *why, size_t why_size)
{
    int count = mc_quotas_parse(text, length, list->entries, MC_TENANTS_MAX, why, why_size);
    list->count = count < 0 ? 0 : (size_t)count;
    return count < 0 ? count : 0;
}

/* ---- in a file ---- */

static int file_load(struct mc_quotas *quotas, char *error, size_t error_size)
{
    char why[256] = "";
    size_t length = 0;
    char *text = mc_file_read(NULL, quotas->path, &length, why, sizeof(why));
    int rc = text == NULL ? MC_ERR_INVALID_PARAMS : list_parse(&quotas->list, text, length, why, sizeof(why));
    free(text);
    if (rc < 0)
        snprintf(error, error_size, "--tenant_quota_connector_uri=%.200s: %s", quotas->path, why);
    return rc;
}

/* Beside it and then in its place, so that there is always a whole one. */
static int file_save(const struct mc_quotas *quotas, const struct mc_buffer *text)
{
    char beside[PATH_MAX];
    snprintf(beside, sizeof(beside), "%s.%ld", quotas->path, (long)getpid());
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool is_done = fd >= 0;
    for (size_t at = 0; is_done && at < text->length;) {
        ssize_t written = write(fd, text->data + at, text->length - at);
        is_done = written > 0;
        at += written > 0 ? (size_t)written : 0;
    }
    is_done = is_done && fsync(fd) == 0;
    if (fd >= 0)
        is_done = close(fd) == 0 && is_done;
    is_done = is_done && rename(beside, quotas->path) == 0;
    int reason = errno;
    if (is_done)
        return 0;
    (void)unlink(beside);
    mc_log(ERROR, "the quotas of tenants cannot be written to %s: %s", quotas->path, strerror(reason));
    return MC_ERR_INTERNAL_ERROR;
}

/* ---- in etcd ---- */

/* What is there, if it is another one than is known. 1: *text is it, and list what it says; 0: nothing new. What nobody
 * can read, or is not there any more, changes nothing: to take it for "no quotas" would stop everybody's puts. */
static int etcd_look(struct mc_quota_place *place, uint64_t known, uint64_t deadline_ns, struct quota_list *list,
                     struct mc_buffer *text)
{
    char why[256] = "";
    list->count = 0;
    int rc = mc_quota_place_read(place, deadline_ns, text, &list->revision);
    if (rc < 0 || list->revision == known)
        return rc;
    if (list->revision == 0) {
        mc_log_limited(WARNING, "the quotas of tenants are not in etcd any more; those that were known stay, and the "
                                "next change of one writes them there again");
        return 0;
    }
    rc = list_parse(list, (const char *)text->data, text->length, why, sizeof(why));
    if (rc == 0)
        return 1;
    mc_log_limited(ERROR, "the quotas of tenants in etcd cannot be read: %s; those that were known stay", why);
    return MC_ERR_PROTOCOL;
}

static int etcd_load(struct mc_quotas *quotas, const char *cluster_id, char *error, size_t error_size)
{
    struct mc_buffer text = {0};
    int rc = mc_quota_place_create(quotas->path, cluster_id, &quotas->place, error, error_size);
    if (rc == 0)
        rc = mc_quota_place_create(quotas->path, cluster_id, &quotas->looked, error, error_size);
    if (rc < 0)
        return rc;
    rc = etcd_look(quotas->place, 0, mc_clock_ns() + FIRST_MOST_MS * 1000000ull, &quotas->list, &text);
    mc_buffer_free(&text);
    if (rc < 0)
        snprintf(error, error_size,
                 "--tenant_quota_connector_uri=%.200s: the quotas of tenants cannot be read from etcd: %s",
                 quotas->path, mc_error_text(rc));
    else if (rc == 0)
        mc_log(WARNING, "no quotas of tenants are in etcd yet: until one is given nobody puts anything");
    return rc < 0 ? rc : 0;
}

static void etcd_refresh(struct mc_quotas *quotas, struct quota_list *list, struct mc_buffer *text)
{
    pthread_mutex_lock(&quotas->lock);
    uint64_t changes = quotas->changes, known = quotas->list.revision;
    pthread_mutex_unlock(&quotas->lock);
    int rc = etcd_look(quotas->looked, known, mc_clock_ns() + LOOK_MOST_MS * 1000000ull, list, text);
    pthread_mutex_lock(&quotas->lock);
    if (rc == 1 && quotas->changes == changes)
        list_take(quotas, list);
    pthread_mutex_unlock(&quotas->lock);
}

static void ask_apply(struct mc_core *core, void *quotas)
{
    mc_quotas_apply(quotas, core);
}

/* The core hears of what is new; that of a standby, later. */
static void tell_core(struct mc_quotas *quotas)
{
    pthread_mutex_lock(&quotas->lock);
    bool is_new = quotas->is_new;
    pthread_mutex_unlock(&quotas->lock);
    if (is_new && mc_server_ask(quotas->server, ask_apply, quotas, TELL_MOST_MS) == 0)
        mc_log(INFO, "the quotas of tenants were changed in etcd, and hold from now on");
}

static void *looker_main(void *argument)
{
    struct mc_quotas *quotas = argument;
    struct mc_sleeper *self = &quotas->looker;
    struct quota_list *list = malloc(sizeof(*list));
    struct mc_buffer text = {0};
    pthread_mutex_lock(&self->lock);
    while (!self->stop && list != NULL) {
        (void)mc_monitor_wait(&self->lock, &self->changed, mc_clock_ns() + LOOK_MS * 1000000ull);
        bool is_over = self->stop;
        pthread_mutex_unlock(&self->lock);
        if (!is_over) {
            etcd_refresh(quotas, list, &text);
            tell_core(quotas);
        }
        pthread_mutex_lock(&self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    mc_buffer_free(&text);
    free(list);
    return NULL;
}

/* Somebody else has changed them: what they are now counts. 0, also when it was we, who have not heard our answer: then
 * *is_ours. */
static int etcd_again(struct mc_quotas *quotas, struct quota_list *list, const struct mc_buffer *wanted,
                      uint64_t deadline_ns, bool *is_ours)
{
    struct mc_buffer text = {0};
    uint64_t known = list->revision;
    int rc = etcd_look(quotas->place, known, deadline_ns, list, &text);
    *is_ours = rc == 1 && mc_span_equal(mc_span(text.data, text.length), mc_span(wanted->data, wanted->length));
    pthread_mutex_lock(&quotas->lock);
    if (rc == 1)
        list_take(quotas, list);
    else if (rc == 0)
        quotas->list.revision = list->revision; /* they are not there any more */
    quotas->changes++;
    pthread_mutex_unlock(&quotas->lock);
    mc_buffer_free(&text);
    return rc < 0 ? rc : 0;
}

/* ---- both ---- */

int mc_quotas_create(const char *path, const char *cluster_id, struct mc_quotas **made, char *error, size_t error_size)
{
    struct mc_quotas *quotas = calloc(1, sizeof(*quotas));
    if (quotas == NULL)
        return MC_ERR_NO_MEMORY;
    pthread_mutex_init(&quotas->lock, NULL);
    mc_monitor_init(&quotas->looker.lock, &quotas->looker.changed);
    int rc = snprintf(quotas->path, sizeof(quotas->path), "%s", path) < (int)sizeof(quotas->path)
                 ? 0
                 : MC_ERR_INVALID_PARAMS;
    if (rc < 0)
        snprintf(error, error_size, "--tenant_quota_connector_uri is too long");
    else if (path[0] != 0)
        rc = cluster_id != NULL ? etcd_load(quotas, cluster_id, error, error_size)
                                : file_load(quotas, error, error_size);
    if (rc < 0) {
        mc_quotas_destroy(quotas);
        return rc;
    }
    *made = quotas;
    return 0;
}

int mc_quotas_start(struct mc_quotas *quotas, struct mc_server *server)
{
    bool is_needed = quotas != NULL && quotas->looked != NULL;
    if (is_needed)
        quotas->server = server;
    return is_needed && mc_sleeper_start(&quotas->looker, "mc-quotas", looker_main, quotas) != 0 ? MC_ERR_NO_MEMORY : 0;
}

void mc_quotas_stop(struct mc_quotas *quotas)
{
    if (quotas == NULL || quotas->has_stopped)
        return;
    mc_sleeper_end(&quotas->looker);
    quotas->has_stopped = true;
}

void mc_quotas_destroy(struct mc_quotas *quotas)
{
    if (quotas == NULL)
        return;
    mc_quotas_stop(quotas);
    mc_quota_place_destroy(quotas->place);
    mc_quota_place_destroy(quotas->looked);
    pthread_mutex_destroy(&quotas->lock);
    free(quotas);
}

void mc_quotas_apply(void *of, struct mc_core *core)
{
    struct mc_quotas *quotas = of;
    pthread_mutex_lock(&quotas->lock);
    for (size_t i = 0; i < quotas->gone_count; i++)
        mc_core_quota_withdraw(core, mc_span_string(quotas->gone[i]));
    for (size_t i = 0; i < quotas->list.count; i++)
        (void)mc_core_quota(core, mc_span_string(quotas->list.entries[i].name),
                            &quotas->list.entries[i].quota); /* they are few enough */
    quotas->gone_count = 0;
    quotas->is_new = false;
    pthread_mutex_unlock(&quotas->lock);
}

static int save(struct mc_quotas *quotas, struct quota_list *list, struct mc_buffer *text, uint64_t deadline_ns)
{
    text->length = 0;
    mc_quotas_format(text, list->entries, list->count);
    if (quotas->place != NULL)
        return mc_quota_place_swap(quotas->place, deadline_ns, mc_span(text->data, text->length), &list->revision);
    return quotas->path[0] == 0 ? 0 : file_save(quotas, text);
}

int mc_quotas_change(struct mc_quotas *quotas, const char *name, const struct mc_core_quota *quota)
{
    uint64_t deadline_ns = mc_clock_ns() + CHANGE_MOST_MS * 1000000ull;
    struct quota_list *list = malloc(sizeof(*list));
    struct mc_buffer text = {0};
    bool is_ours = false;
    int rc = list == NULL ? MC_ERR_NO_MEMORY : MC_ERR_ETCD_TRANSACTION_FAIL;
    while (rc == MC_ERR_ETCD_TRANSACTION_FAIL && !is_ours) {
        pthread_mutex_lock(&quotas->lock);
        *list = quotas->list;
        pthread_mutex_unlock(&quotas->lock);
        rc = list_change(list, name, quota);
        if (rc == 0)
            rc = save(quotas, list, &text, deadline_ns);
        if (rc == MC_ERR_ETCD_TRANSACTION_FAIL) {
            int seen = mc_clock_ns() < deadline_ns ? etcd_again(quotas, list, &text, deadline_ns, &is_ours)
                                                   : MC_ERR_RPC_TIMEOUT;
            rc = seen < 0 ? seen : rc;
        }
    }
    if (rc == 0) {
        pthread_mutex_lock(&quotas->lock);
        quotas->list = *list;
        quotas->changes++;
        pthread_mutex_unlock(&quotas->lock);
    }
    free(list);
    mc_buffer_free(&text);
    return is_ours ? 0 : rc;
}
