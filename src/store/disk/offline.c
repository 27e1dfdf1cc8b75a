/* The walk of recovery over files that are only read. What comes from them is believed as little as there. */
#include "store/disk/offline.h"

#include "env/json.h"
#include "env/meter.h"
#include "store/disk/dead.h"
#include "store/disk/directory.h"
#include "store/disk/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define VOLUMES_MAX (MC_DISK_REGIONS_MAX / MC_DISK_VOLUME_REGIONS)
#define JOURNAL_PAGES_MOST 65536u
#define KEY_TEXT_MAX (MC_KEY_LENGTH_MAX * 4u + 1u)

struct region_at {
    uint64_t sequence; /* 0: no header that is good */
    uint32_t region;
    enum mc_disk_verdict verdict;
};

struct disk_look {
    enum mc_disk_look_kind kind;
    bool is_json, is_in_use, has_no_memory;
    FILE *out;
    struct mc_meter *meter; /* in bytes of volumes */
    struct mc_buffer text;
    struct mc_json_writer json;
    int fd; /* of the directory */
    struct mc_disk_super super;
    int *volume_fds;
    uint32_t volume_count, region_count;
    struct region_at *regions; /* later ones first */
    uint64_t *killed;          /* by region */
    struct mc_disk_dead dead, seen;
    uint8_t *bytes, *extent;
    uint64_t journal_pages, journal_damaged, clears;
    uint64_t live, dead_found, copies, live_bytes, rotten, damaged_regions, gaps;
    uint64_t region_live, region_dead, region_rotten;
};

static void text_flush(struct disk_look *look)
{
    if (look->text.length == 0)
        return;
    mc_meter_hold(look->meter);
    (void)fwrite(look->text.data, 1, look->text.length, look->out); /* its end is seen by who closes it */
    mc_meter_go_on(look->meter);
    look->text.length = 0;
}

/* ---- files ---- */

static int part_open(const struct disk_look *look, const char *name)
{
    struct stat status;
    int fd = openat(look->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))) {
        close(fd);
        fd = -1;
        errno = ENOENT;
    }
    return fd;
}

/* How many bytes there are, up to length. */
static uint32_t bytes_read(int fd, uint8_t *bytes, uint32_t length, uint64_t offset)
{
    uint32_t done = 0;
    while (done < length) {
        ssize_t got = pread(fd, bytes + done, length - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (uint32_t)got;
    }
    return done;
}

static uint64_t region_at_file(const struct disk_look *look, uint32_t region, uint64_t offset)
{
    return (uint64_t)(region % MC_DISK_VOLUME_REGIONS) * look->super.region_bytes + offset;
}

static bool is_in_use(const struct disk_look *look)
{
    int fd = part_open(look, "lock");
    bool is_locked = fd >= 0 && mc_disk_lock_is_held(fd);
    if (fd >= 0)
        close(fd); /* and whoever waits for it tries again in a moment */
    return is_locked;
}

static void volumes_open(struct disk_look *look)
{
    for (uint32_t i = 0; i < VOLUMES_MAX; i++) {
        char name[MC_DISK_NAME_MAX];
        struct stat status;
        (void)snprintf(name, sizeof(name), "volume.%u", i);
        look->volume_fds[i] = part_open(look, name);
        if (look->volume_fds[i] < 0 || fstat(look->volume_fds[i], &status) != 0)
            continue;
        uint64_t there = (uint64_t)status.st_size / look->super.region_bytes;
        look->volume_count = i + 1;
        look->region_count =
            i * MC_DISK_VOLUME_REGIONS + (there > MC_DISK_VOLUME_REGIONS ? MC_DISK_VOLUME_REGIONS : (uint32_t)there);
    }
}

/* ---- the journal ---- */

static void clear_note(struct disk_look *look, const struct mc_disk_clear *clear)
{
    look->clears++;
    if (clear->generation != 0)
        look->has_no_memory = mc_disk_dead_add(&look->dead, clear->generation) < 0 || look->has_no_memory;
    else if (clear->region < look->region_count && clear->sequence > look->killed[clear->region])
        look->killed[clear->region] = clear->sequence;
}

static void journal_load(struct disk_look *look, const char *name)
{
    int fd = part_open(look, name);
    for (uint64_t at = 0; fd >= 0 && at < JOURNAL_PAGES_MOST; at++) {
        struct mc_disk_head head;
        struct mc_disk_clear clear;
        if (bytes_read(fd, look->bytes, MC_DISK_PAGE, at * MC_DISK_PAGE) < MC_DISK_PAGE)
            break;
        look->journal_pages++;
        if (!mc_disk_clears_read(look->bytes, look->super.segment_id, &head) || head.at != at) {
            look->journal_damaged++;
            continue;
        }
        for (uint32_t i = 0; i < head.count; i++) {
            memcpy(&clear, look->bytes + sizeof(head) + i * sizeof(clear), sizeof(clear));
            clear_note(look, &clear);
        }
    }
    if (fd >= 0)
        close(fd);
}

/* ---- objects ---- */

/* Bytes that are no letters of ASCII as \xNN. */
static void key_format(char text[KEY_TEXT_MAX], const uint8_t *key, uint32_t length)
{
    char *at = text;
    for (uint32_t i = 0; i < length; i++) {
        if (key[i] > ' ' && key[i] < 0x7f && key[i] != '\\')
            *at++ = (char)key[i];
        else
            at += snprintf(at, 5, "\\x%02x", key[i]);
    }
    *at = 0;
}

static bool extent_is_whole(struct disk_look *look, uint32_t region, const struct mc_disk_record *record)
{
    uint64_t bytes = mc_disk_extent_bytes(record->entry.length, record->entry.key_length);
    int fd = look->volume_fds[region / MC_DISK_VOLUME_REGIONS];
    uint64_t offset = region_at_file(look, region, (uint64_t)record->page * MC_DISK_PAGE);
    return bytes_read(fd, look->extent, (uint32_t)bytes, offset) == bytes &&
           mc_disk_extent_check(look->extent, &record->entry) == 0;
}

static void object_print(struct disk_look *look, uint32_t region, const struct mc_disk_record *record, bool is_whole)
{
    char key[KEY_TEXT_MAX];
    key_format(key, record->key, record->entry.key_length);
    if (look->is_json) {
        mc_json_begin(&look->json, NULL, '{');
        mc_json_add_text(&look->json, "key", key);
        mc_json_add_number(&look->json, "generation", record->entry.generation);
        mc_json_add_number(&look->json, "length", record->entry.length);
        mc_json_add_number(&look->json, "region", region);
        mc_json_add_number(&look->json, "offset", (uint64_t)record->page * MC_DISK_PAGE);
        mc_json_add_bool(&look->json, "whole", is_whole);
        mc_json_end(&look->json, '}');
    } else {
        mc_buffer_printf(&look->text,
                         "  %s%s  generation %" PRIu64 ", %" PRIu32 " bytes, region %" PRIu32 " at %" PRIu64 "\n",
                         is_whole ? "" : "NOT WHOLE ", key, record->entry.generation, record->entry.length, region,
                         (uint64_t)record->page * MC_DISK_PAGE);
    }
    text_flush(look);
}

static void record_look(struct disk_look *look, const struct mc_disk_walk *walk, const struct mc_disk_record *record)
{
    uint64_t generation = record->entry.generation;
    if (look->killed[walk->region] >= walk->header.sequence || mc_disk_dead_has(&look->dead, generation)) {
        look->region_dead++;
        return;
    }
    if (mc_disk_dead_has(&look->seen, generation)) {
        look->copies++;
        return;
    }
    look->has_no_memory = mc_disk_dead_add(&look->seen, generation) < 0 || look->has_no_memory;
    look->region_live++;
    look->live_bytes += mc_disk_extent_bytes(record->entry.length, record->entry.key_length);
    bool is_whole = look->kind != MC_DISK_LOOK_CHECK || extent_is_whole(look, walk->region, record);
    look->region_rotten += is_whole ? 0 : 1;
    if (look->kind == MC_DISK_LOOK_LIST || !is_whole)
        object_print(look, walk->region, record, is_whole);
}

/* ---- regions ---- */

static void region_print(struct disk_look *look, const struct mc_disk_walk *walk)
{
    if (look->is_json || (look->kind == MC_DISK_LOOK_LIST && walk->verdict == MC_DISK_GOOD))
        return;
    if (walk->verdict != MC_DISK_GOOD)
        mc_buffer_printf(&look->text, "  region %" PRIu32 ": its header is %s\n", walk->region,
                         mc_disk_verdict_text(walk->verdict));
    else
        mc_buffer_printf(&look->text,
                         "  region %" PRIu32 ": number %" PRIu64 ", %s, %" PRIu64 " live, %" PRIu64 " dead%s%s\n",
                         walk->region, walk->header.sequence, walk->has_footer ? "sealed" : "not sealed",
                         look->region_live, look->region_dead, walk->gaps > 0 ? ", groups torn" : "",
                         look->region_rotten > 0            ? ", NOT WHOLE"
                         : look->kind == MC_DISK_LOOK_CHECK ? ", whole"
                                                            : "");
    text_flush(look);
}

/* before: the bytes of the regions that were looked at. */
static void region_look(struct disk_look *look, uint32_t region, uint64_t before)
{
    struct mc_disk_walk walk;
    bool has_more = true;
    int fd = look->volume_fds[region / MC_DISK_VOLUME_REGIONS];
    look->region_live = look->region_dead = look->region_rotten = 0;
    mc_disk_walk_start(&walk, look->super.segment_id, look->super.region_bytes, region);
    while (has_more) {
        mc_meter_at(look->meter, before + walk.offset);
        uint32_t got = bytes_read(fd, look->bytes, walk.length, region_at_file(look, region, walk.offset));
        struct mc_disk_record record;
        has_more = mc_disk_walk_feed(&walk, look->bytes, got);
        struct mc_reader reader = mc_reader(walk.table.data, walk.table.length);
        while (mc_disk_record_next(&reader, look->super.region_bytes, &record))
            record_look(look, &walk, &record);
    }
    if (walk.verdict != MC_DISK_BLANK)
        region_print(look, &walk);
    look->live += look->region_live;
    look->dead_found += look->region_dead;
    look->rotten += look->region_rotten;
    look->gaps += walk.gaps;
    look->damaged_regions += walk.verdict != MC_DISK_GOOD && walk.verdict != MC_DISK_BLANK ? 1 : 0;
}

static int later_first(const void *a, const void *b)
{
    const struct region_at *first = a, *second = b;
    if (first->sequence != second->sequence)
        return first->sequence > second->sequence ? -1 : 1;
    return first->region < second->region ? -1 : 1;
}

/* Of two copies of an object the later one counts: so later regions are looked at first. */
static void regions_look(struct disk_look *look, const char *directory)
{
    uint32_t count = 0;
    mc_meter_step(look->meter, directory, "headers", look->region_count, 0);
    for (uint32_t i = 0; i < look->region_count; i++) {
        struct mc_disk_head head;
        int fd = look->volume_fds[i / MC_DISK_VOLUME_REGIONS];
        mc_meter_at(look->meter, i);
        if (fd < 0 || bytes_read(fd, look->bytes, MC_DISK_PAGE, region_at_file(look, i, 0)) < MC_DISK_PAGE)
            continue;
        bool is_good =
            mc_disk_head_read(look->bytes, MC_DISK_HEAD_REGION, look->super.segment_id, &head) == MC_DISK_GOOD;
        look->regions[count++] = (struct region_at){.sequence = is_good ? head.sequence : 0, .region = i};
    }
    qsort(look->regions, count, sizeof(*look->regions), later_first);
    mc_meter_step(look->meter, directory, "B", count * look->super.region_bytes, 0);
    for (uint32_t i = 0; i < count; i++)
        region_look(look, look->regions[i].region, i * look->super.region_bytes);
}

/* ---- one directory ---- */

static enum mc_disk_look_code problem_print(struct disk_look *look, const char *directory, const char *what,
                                            enum mc_disk_look_code code)
{
    if (look->is_json) {
        mc_json_begin(&look->json, NULL, '{');
        mc_json_add_text(&look->json, "directory", directory);
        mc_json_add_text(&look->json, "problem", what);
        mc_json_end(&look->json, '}');
    } else {
        mc_buffer_printf(&look->text, "%s: %s\n", directory, what);
    }
    text_flush(look);
    return code;
}

static void head_print(struct disk_look *look, const char *directory)
{
    char id[MC_ID_TEXT_MAX], cluster[MC_ID_TEXT_MAX];
    const struct mc_disk_super *super = &look->super;
    mc_id_format(id, super->segment_id);
    mc_id_format(cluster, super->mark.cluster);
    if (look->is_json) {
        mc_json_begin(&look->json, NULL, '{');
        mc_json_add_text(&look->json, "directory", directory);
        mc_json_add_text(&look->json, "id", id);
        mc_json_add_text(&look->json, "cluster", cluster);
        mc_json_add_bool(&look->json, "in_use", look->is_in_use);
        mc_json_add_number(&look->json, "epoch", super->mark.epoch);
        mc_json_add_number(&look->json, "region_bytes", super->region_bytes);
        if (look->kind != MC_DISK_LOOK_STAT)
            mc_json_begin(&look->json, "objects", '[');
    } else {
        mc_buffer_printf(&look->text, "%s: disk %s, epoch %" PRIu64 ", regions of %" PRIu64 " MiB%s\n", directory, id,
                         super->mark.epoch, super->region_bytes >> 20,
                         look->is_in_use ? "; in use, so what is being written may look torn" : "");
    }
    text_flush(look);
}

static bool is_damaged(const struct disk_look *look)
{
    return look->rotten > 0 || look->damaged_regions > 0 || look->journal_damaged > 0;
}

static void foot_print(struct disk_look *look)
{
    if (look->is_json) {
        if (look->kind != MC_DISK_LOOK_STAT)
            mc_json_end(&look->json, ']');
        mc_json_add_number(&look->json, "regions", look->region_count);
        mc_json_add_number(&look->json, "live", look->live);
        mc_json_add_number(&look->json, "live_bytes", look->live_bytes);
        mc_json_add_number(&look->json, "dead", look->dead_found);
        mc_json_add_number(&look->json, "copies", look->copies);
        mc_json_add_number(&look->json, "not_whole", look->rotten);
        mc_json_add_number(&look->json, "damaged_regions", look->damaged_regions);
        mc_json_add_number(&look->json, "torn_groups", look->gaps);
        mc_json_add_number(&look->json, "removals", look->clears);
        mc_json_add_number(&look->json, "damaged_journal_pages", look->journal_damaged);
        mc_json_add_bool(&look->json, "whole", !is_damaged(look));
        mc_json_end(&look->json, '}');
    } else {
        mc_buffer_printf(&look->text,
                         "  %" PRIu64 " objects, %" PRIu64 " bytes on the disk; %" PRIu64 " dead, %" PRIu64
                         " older copies; %" PRIu64 " removals in the journal\n",
                         look->live, look->live_bytes, look->dead_found, look->copies, look->clears);
        if (is_damaged(look))
            mc_buffer_printf(&look->text,
                             "  NOT WHOLE: %" PRIu64 " objects, %" PRIu64 " headers of regions, %" PRIu64
                             " pages of the journal\n",
                             look->rotten, look->damaged_regions, look->journal_damaged);
        else if (look->kind == MC_DISK_LOOK_CHECK)
            mc_buffer_printf(&look->text, "  whole: every block of every object matches its checksum\n");
    }
    text_flush(look);
}

static bool tables_make(struct disk_look *look)
{
    look->volume_fds = malloc(VOLUMES_MAX * sizeof(*look->volume_fds));
    look->bytes = malloc(mc_disk_walk_bytes(look->super.region_bytes));
    look->extent = malloc(look->super.region_bytes);
    if (look->volume_fds == NULL || look->bytes == NULL || look->extent == NULL)
        return false;
    volumes_open(look);
    look->regions = calloc(look->region_count + 1u, sizeof(*look->regions));
    look->killed = calloc(look->region_count + 1u, sizeof(*look->killed));
    return look->regions != NULL && look->killed != NULL;
}

static void tables_free(struct disk_look *look)
{
    for (uint32_t i = 0; look->volume_fds != NULL && i < look->volume_count; i++) {
        if (look->volume_fds[i] >= 0)
            close(look->volume_fds[i]);
    }
    mc_disk_dead_free(&look->seen);
    mc_disk_dead_free(&look->dead);
    free(look->killed);
    free(look->regions);
    free(look->extent);
    free(look->bytes);
    free(look->volume_fds);
}

static enum mc_disk_look_code contents_look(struct disk_look *look, const char *directory)
{
    enum mc_disk_look_code code = MC_DISK_LOOK_NO_DISK;
    if (!tables_make(look)) {
        code = problem_print(look, directory, "no memory for its tables: give this process more", code);
        goto out;
    }
    journal_load(look, "clears.0");
    journal_load(look, "clears.1");
    head_print(look, directory);
    regions_look(look, directory);
    foot_print(look);
    code = is_damaged(look) ? MC_DISK_LOOK_DAMAGED : MC_DISK_LOOK_WHOLE;
    if (look->has_no_memory) /* what it said of the dead may be wrong */
        code = problem_print(look, directory, "no memory for all of it: give this process more", MC_DISK_LOOK_NO_DISK);
out:
    tables_free(look);
    return code;
}

/* Why there is nothing to look at, and what to do. */
static const char *why_not(int error)
{
    return error == EACCES || error == EPERM
               ? "not to be read by this user: run mooncake_disk as the user of its store node, or as root"
           : error == ENOENT || error == ENOTDIR
               ? "no disk of ours: give the folder that the node has as --disks, or a directory mooncake-c.<n> in it"
               : "its file identity cannot be opened: the kernel's log may say why (dmesg)";
}

static enum mc_disk_look_code directory_look(struct disk_look *base, const char *directory)
{
    struct disk_look copy = *base, *look = &copy;
    uint8_t page[MC_DISK_PAGE];
    enum mc_disk_look_code code = MC_DISK_LOOK_NO_DISK;
    int fd = -1;
    look->text = (struct mc_buffer){0};
    look->json.out = &look->text;
    look->fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (look->fd >= 0)
        fd = part_open(look, "identity");
    if (fd < 0) {
        code = problem_print(look, directory, why_not(errno), code);
        goto out;
    }
    enum mc_disk_verdict verdict = mc_disk_identity_read(fd, page, &look->super);
    look->is_in_use = is_in_use(look);
    if (verdict == MC_DISK_OTHER_VERSION)
        code = problem_print(look, directory,
                             "a disk of another version: use the mooncake_disk of the release that wrote it", code);
    else if (verdict != MC_DISK_GOOD)
        code = problem_print(look, directory,
                             "its identity is damaged: nothing of it can be found any more; move the directory away, "
                             "and the node makes a new one",
                             MC_DISK_LOOK_DAMAGED);
    else if (look->is_in_use && look->kind == MC_DISK_LOOK_CHECK)
        code = problem_print(look, directory, "in use by a process; stop it first, or use list or stat",
                             MC_DISK_LOOK_IN_USE);
    else
        code = contents_look(look, directory);
out:
    if (fd >= 0)
        close(fd);
    if (look->fd >= 0)
        close(look->fd);
    base->json = look->json;
    mc_buffer_free(&look->text);
    return code;
}

enum mc_disk_look_code mc_disk_look(const char *path, enum mc_disk_look_kind kind, bool is_json, FILE *out)
{
    struct mc_meter meter;
    struct disk_look look = {.kind = kind, .is_json = is_json, .out = out, .fd = -1, .meter = &meter};
    char directory[MC_DISK_PATH_MAX + MC_DISK_NAME_MAX];
    struct stat status;
    enum mc_disk_look_code worst = MC_DISK_LOOK_WHOLE;
    unsigned found = 0;
    look.json = (struct mc_json_writer){.out = &look.text};
    mc_meter_begin(&meter);
    if (is_json)
        mc_json_begin(&look.json, NULL, '[');
    text_flush(&look);
    for (unsigned i = 0; i < MC_DISK_DIRECTORIES_MAX && strlen(path) < MC_DISK_PATH_MAX; i++) {
        (void)snprintf(directory, sizeof(directory), "%s/" MC_DISK_NAME_FORMAT, path, i);
        if (stat(directory, &status) != 0)
            continue;
        found++;
        enum mc_disk_look_code code = directory_look(&look, directory);
        worst = code > worst ? code : worst;
    }
    if (found == 0)
        worst = directory_look(&look, path);
    look.json.out = &look.text;
    if (is_json) {
        mc_json_end(&look.json, ']');
        mc_buffer_printf(&look.text, "\n");
    }
    text_flush(&look);
    mc_meter_end(&meter);
    mc_buffer_free(&look.text);
    return worst;
}
