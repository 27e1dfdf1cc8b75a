#include "store/master/quotas.h"

#include "base/error.h"
#include "env/file.h"
#include "env/log.h"
#include "store/core/limits.h"
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

struct mc_quotas {
    pthread_mutex_t lock;
    char path[512]; /* "": none */
    size_t count;
    struct mc_quota_entry list[MC_TENANTS_MAX];
};

const char *mc_quota_wrong(const struct mc_core_quota *quota)
{
    return quota->bytes == 0 || quota->bytes > MC_QUOTA_BYTES_MAX ? "a quota is 1 to 2^63 - 1 bytes"
           : quota->guaranteed_bytes > quota->bytes               ? "more bytes are guaranteed than the quota is"
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
                   {"guaranteed_objects", false, offsetof(struct mc_core_quota, guaranteed_objects)}};
    struct mc_span name = scalar_of(member_of(file, map, "name"));
    if (!mc_tenant_is_name(name))
        return "a tenant's name has 1 to 63 characters that can be printed, the first is no '_'";
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
    }
}

/* ---- the list ---- */

static int file_load(struct mc_quotas *quotas, char *error, size_t error_size)
{
    char why[256] = "";
    size_t length = 0;
    char *text = mc_file_read(NULL, quotas->path, &length, why, sizeof(why));
    int count = text == NULL ? MC_ERR_INVALID_PARAMS
                             : mc_quotas_parse(text, length, quotas->list, MC_TENANTS_MAX, why, sizeof(why));
    free(text);
    if (count < 0) {
        snprintf(error, error_size, "--tenant_quota_connector_uri=%.200s: %s", quotas->path, why);
        return count;
    }
    quotas->count = (size_t)count;
    return 0;
}

int mc_quotas_create(const char *path, struct mc_quotas **made, char *error, size_t error_size)
{
    struct mc_quotas *quotas = calloc(1, sizeof(*quotas));
    if (quotas == NULL)
        return MC_ERR_NO_MEMORY;
    pthread_mutex_init(&quotas->lock, NULL);
    int rc = snprintf(quotas->path, sizeof(quotas->path), "%s", path) < (int)sizeof(quotas->path)
                 ? 0
                 : MC_ERR_INVALID_PARAMS;
    if (rc < 0)
        snprintf(error, error_size, "--tenant_quota_connector_uri is too long");
    else if (path[0] != 0)
        rc = file_load(quotas, error, error_size);
    if (rc < 0) {
        mc_quotas_destroy(quotas);
        return rc;
    }
    *made = quotas;
    return 0;
}

void mc_quotas_destroy(struct mc_quotas *quotas)
{
    if (quotas != NULL)
        pthread_mutex_destroy(&quotas->lock);
    free(quotas);
}

void mc_quotas_apply(void *of, struct mc_core *core)
{
    struct mc_quotas *quotas = of;
    pthread_mutex_lock(&quotas->lock);
    for (size_t i = 0; i < quotas->count; i++)
        (void)mc_core_quota(core, mc_span_string(quotas->list[i].name),
                            &quotas->list[i].quota); /* they are few enough */
    pthread_mutex_unlock(&quotas->lock);
}

/* Beside it and then in its place, so that there is always a whole one. */
static int file_save(const struct mc_quotas *quotas)
{
    char beside[PATH_MAX];
    struct mc_buffer text = {0};
    if (quotas->path[0] == 0)
        return 0;
    mc_quotas_format(&text, quotas->list, quotas->count);
    snprintf(beside, sizeof(beside), "%s.%ld", quotas->path, (long)getpid());
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool is_done = fd >= 0;
    for (size_t at = 0; is_done && at < text.length;) {
        ssize_t written = write(fd, text.data + at, text.length - at);
        is_done = written > 0;
        at += written > 0 ? (size_t)written : 0;
    }
    is_done = is_done && fsync(fd) == 0;
    if (fd >= 0)
        is_done = close(fd) == 0 && is_done;
    is_done = is_done && rename(beside, quotas->path) == 0;
    int reason = errno;
    mc_buffer_free(&text);
    if (is_done)
        return 0;
    (void)unlink(beside);
    mc_log(ERROR, "the quotas of tenants cannot be written to %s: %s", quotas->path, strerror(reason));
    return MC_ERR_INTERNAL_ERROR;
}

int mc_quotas_change(struct mc_quotas *quotas, const char *name, const struct mc_core_quota *quota)
{
    struct mc_quota_entry before = {.name = ""};
    size_t at = 0;
    pthread_mutex_lock(&quotas->lock);
    size_t count = quotas->count;
    while (at < count && strcmp(quotas->list[at].name, name) != 0)
        at++;
    int rc = at == MC_TENANTS_MAX ? MC_ERR_BUSY : 0;
    if (rc == 0 && at < count)
        before = quotas->list[at];
    if (rc == 0 && quota != NULL) {
        snprintf(quotas->list[at].name, sizeof(quotas->list[at].name), "%s", name);
        quotas->list[at].quota = *quota;
        quotas->count += at == count;
    } else if (rc == 0 && at < count) {
        quotas->list[at] = quotas->list[--quotas->count];
    }
    if (rc == 0)
        rc = file_save(quotas);
    if (rc < 0 && at < MC_TENANTS_MAX) {
        if (quota == NULL && at < count)
            quotas->list[count - 1] = quotas->list[at];
        if (at < count)
            quotas->list[at] = before;
        quotas->count = count;
    }
    pthread_mutex_unlock(&quotas->lock);
    return rc;
}
