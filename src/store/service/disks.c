/* What a store node tells of its disks. */
#include "store/service/disks.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const uint64_t bounds[MC_STORE_DISK_BOUND_COUNT] = {MC_STORE_DISK_BOUNDS_US};

static void put_head(struct mc_buffer *out, const char *name, const char *kind, const char *help)
{
    mc_buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* {disk="..." of a sample, and what may follow; closed by the caller. */
static void put_disk(struct mc_buffer *out, const char *name, const struct mc_store_disk *disk)
{
    mc_buffer_printf(out, "%s{disk=\"", name);
    for (const char *at = disk->path; *at != 0; at++) {
        if (*at == '\n')
            mc_buffer_append(out, "\\n", 2);
        else if (*at == '"' || *at == '\\')
            mc_buffer_printf(out, "\\%c", *at);
        else
            mc_buffer_put_u8(out, (uint8_t)*at);
    }
    mc_buffer_put_u8(out, '"');
}

/* ---- histograms ---- */

enum time_unit { MICROSECONDS, SECONDS }; /* the original's, and Prometheus's */

/* What a sample ends with. */
static void put_time(struct mc_buffer *out, uint64_t time_us, enum time_unit unit)
{
    if (unit == MICROSECONDS)
        mc_buffer_printf(out, " %" PRIu64 "\n", time_us);
    else
        mc_buffer_printf(out, " %.6f\n", (double)time_us / 1e6);
}

/* disk NULL: of all, without a label. */
static void put_histogram(struct mc_buffer *out, const char *name, const struct mc_store_disk *disk,
                          enum time_unit unit, const struct mc_store_disk_latency *latency)
{
    static const char *const ends[] = {"_sum", "_count"};
    uint64_t total = 0;
    for (size_t i = 0; i <= LENGTH(bounds); i++) {
        char bucket[96], bound[24] = "+Inf";
        total += latency->counts[i];
        (void)snprintf(bucket, sizeof(bucket), "%s_bucket", name);
        if (i < LENGTH(bounds))
            (void)snprintf(bound, sizeof(bound), "%.9g", (double)bounds[i] / (unit == SECONDS ? 1e6 : 1));
        if (disk == NULL)
            mc_buffer_printf(out, "%s{", bucket);
        else
            put_disk(out, bucket, disk);
        mc_buffer_printf(out, "%sle=\"%s\"} %" PRIu64 "\n", disk == NULL ? "" : ",", bound, total);
    }
    for (size_t i = 0; i < LENGTH(ends); i++) {
        char whole[96];
        (void)snprintf(whole, sizeof(whole), "%s%s", name, ends[i]);
        if (disk == NULL)
            mc_buffer_printf(out, "%s", whole);
        else
            put_disk(out, whole, disk);
        mc_buffer_printf(out, "%s", disk == NULL ? "" : "}");
        if (i == 0)
            put_time(out, latency->sum_us, unit);
        else
            mc_buffer_printf(out, " %" PRIu64 "\n", total);
    }
}

static void latency_add(struct mc_store_disk_latency *to, const struct mc_store_disk_latency *from)
{
    for (size_t i = 0; i < LENGTH(to->counts); i++)
        to->counts[i] += from->counts[i];
    to->sum_us += from->sum_us;
}

/* As far as a histogram tells: evenly within the bucket. What is beyond the last bound counts as that. */
static double quantile_us(const struct mc_store_disk_latency *latency, double part)
{
    uint64_t total = 0, below = 0;
    const size_t last = LENGTH(bounds) - 1;
    for (size_t i = 0; i < LENGTH(latency->counts); i++)
        total += latency->counts[i];
    double wanted = part * (double)total;
    for (size_t i = 0; i < LENGTH(bounds) && total > 0; i++) {
        uint64_t here = latency->counts[i];
        double from = i == 0 ? 0 : (double)bounds[i - 1];
        if (here > 0 && (double)(below + here) >= wanted)
            return from + ((double)bounds[i] - from) * (wanted - (double)below) / (double)here;
        below += here;
    }
    return total == 0 ? 0 : (double)bounds[last];
}

/* ---- the original's ---- */

struct way { /* reads, writes, or both */
    const char *name, *help;
    uint64_t objects, bytes;
    struct mc_store_disk_latency latency;
};

static void put_way(struct mc_buffer *out, const struct way *way)
{
    static const char *const quantiles[] = {"0.5", "0.9", "0.99"};
    static const double parts[] = {0.5, 0.9, 0.99};
    char name[64];
    uint64_t count = 0;
    (void)snprintf(name, sizeof(name), "mooncake_ssd_%s_bytes_total", way->name);
    mc_buffer_printf(out, "# HELP %s Bytes of objects %s\n# TYPE %s counter\n%s %" PRIu64 "\n", name, way->help, name,
                     name, way->bytes);
    (void)snprintf(name, sizeof(name), "mooncake_ssd_%s_ops_total", way->name);
    mc_buffer_printf(out, "# HELP %s Objects %s\n# TYPE %s counter\n%s %" PRIu64 "\n", name, way->help, name, name,
                     way->objects);
    (void)snprintf(name, sizeof(name), "mooncake_ssd_%s_latency_us", way->name);
    mc_buffer_printf(out, "# HELP %s How long one object took\n# TYPE %s histogram\n", name, name);
    put_histogram(out, name, NULL, MICROSECONDS, &way->latency);
    (void)snprintf(name, sizeof(name), "mooncake_ssd_%s_latency_summary_us", way->name);
    mc_buffer_printf(out, "# HELP %s The same, estimated from the histogram\n# TYPE %s summary\n", name, name);
    for (size_t i = 0; i < LENGTH(parts); i++)
        mc_buffer_printf(out, "%s{quantile=\"%s\"} %.0f\n", name, quantiles[i], quantile_us(&way->latency, parts[i]));
    for (size_t i = 0; i < LENGTH(way->latency.counts); i++)
        count += way->latency.counts[i];
    mc_buffer_printf(out, "%s_sum %" PRIu64 "\n%s_count %" PRIu64 "\n", name, way->latency.sum_us, name, count);
}

static void put_ways(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count)
{
    struct way ways[] = {{.name = "read", .help = "read from disks"},
                         {.name = "write", .help = "stored on disks"},
                         {.name = "total", .help = "read from disks and stored there"}};
    for (size_t i = 0; i < count; i++) {
        ways[0].objects += disks[i].served;
        ways[0].bytes += disks[i].bytes_served;
        latency_add(&ways[0].latency, &disks[i].read_latency);
        ways[1].objects += disks[i].stored;
        ways[1].bytes += disks[i].bytes_stored;
        latency_add(&ways[1].latency, &disks[i].store_latency);
    }
    for (size_t i = 0; i < 2; i++) {
        ways[2].objects += ways[i].objects;
        ways[2].bytes += ways[i].bytes;
        latency_add(&ways[2].latency, &ways[i].latency);
    }
    for (size_t i = 0; i < LENGTH(ways); i++)
        put_way(out, &ways[i]);
}

/* ---- ours ---- */

static const struct disk_row {
    const char *name, *kind, *help;
    size_t offset; /* of a uint64_t in struct mc_store_disk */
    unsigned us;   /* that one of it lasts, if it is a time: told in seconds */
} rows[] = {
#define FROM(field) offsetof(struct mc_store_disk, field), 0
#define SPAN(field, us) offsetof(struct mc_store_disk, field), us
    {"capacity_bytes", "gauge", "What it may take of its file system", FROM(capacity)},
    {"free_bytes", "gauge", "Of it, in regions in which nothing lies", FROM(free_bytes)},
    {"live_bytes", "gauge", "Of objects that are there", FROM(live_bytes)},
    {"objects", "gauge", "Objects that are there", FROM(objects)},
    {"objects_max", "gauge", "How many there may be", FROM(objects_max)},
    {"read_bytes_total", "counter", "Read from its files, of all kinds", FROM(bytes_read)},
    {"written_bytes_total", "counter", "Written to its files, of all kinds", FROM(bytes_written)},
    {"reads_total", "counter", "Reads of its files", FROM(reads)},
    {"writes_total", "counter", "Writes of its files", FROM(writes)},
    {"syncs_total", "counter", "Syncs of its files", FROM(syncs)},
    {"read_errors_total", "counter", "Reads that the kernel failed", FROM(read_errors)},
    {"write_errors_total", "counter", "Writes and syncs that the kernel failed", FROM(write_errors)},
    {"stored_total", "counter", "Objects stored", FROM(stored)},
    {"stored_bytes_total", "counter", "Of objects stored", FROM(bytes_stored)},
    {"rewritten_bytes_total", "counter", "Of objects written once more when room was made", FROM(bytes_rewritten)},
    {"served_total", "counter", "Objects read", FROM(served)},
    {"served_bytes_total", "counter", "Of objects read", FROM(bytes_served)},
    {"cleared_total", "counter", "Objects removed as the master said", FROM(cleared)},
    {"lost_total", "counter", "Objects given up, mostly for room", FROM(lost)},
    {"rotten_total", "counter", "Objects dropped since they could not be read as they were written", FROM(rotten)},
    {"late_total", "counter", "Reads without an answer by their deadline", FROM(late)},
    {"refused_total", "counter", "Calls refused at once", FROM(refused)},
    {"waiting", "gauge", "Calls without an answer", FROM(waiting)},
    {"under_way", "gauge", "Reads, writes and syncs of files under way", FROM(under_way)},
    {"oldest_seconds", "gauge", "For how long the oldest of them has lasted", SPAN(oldest_us, 1)},
    {"reused_age_seconds", "gauge", "How old the region was that was given up last for room",
     SPAN(reused_age_ms, 1000)},
    {"journal_bytes", "gauge", "Of the journal of what was removed", FROM(journal_bytes)},
    {"buffer_bytes", "gauge", "Of buffers that are in use", FROM(buffer_bytes)},
    {"recovery_seconds", "gauge", "How long it took to find again what was there", SPAN(recovery_ms, 1000)},
#undef FROM
#undef SPAN
};

static uint64_t value_of(const struct mc_store_disk *disk, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)disk + offset, sizeof(value));
    return value;
}

/* One sample is 1, the others are 0. */
static void put_health(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count)
{
#define WORD(name, word) word,
    static const char *const healths[] = {MC_STORE_DISK_HEALTHS(WORD)};
    static const char name[] = "mooncake_client_disk_health";
    put_head(out, name, "gauge", "1 for what the disk is, 0 for what it is not");
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < LENGTH(healths); j++) {
            put_disk(out, name, &disks[i]);
            mc_buffer_printf(out, ",health=\"%s\"} %d\n", healths[j], disks[i].health == (int)j);
        }
    }
}

static void put_reasons(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count)
{
    static const char *const reasons[] = {MC_STORE_DISK_REASONS(WORD)};
    static const char name[] = "mooncake_client_disk_not_stored_total";
#undef WORD
    put_head(out, name, "counter", "Objects that were not stored, by reason");
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < LENGTH(reasons); j++) {
            put_disk(out, name, &disks[i]);
            mc_buffer_printf(out, ",reason=\"%s\"} %" PRIu64 "\n", reasons[j], disks[i].not_stored[j]);
        }
    }
}

static double amplification(const struct mc_store_disk *disk)
{
    return disk->bytes_stored == 0 ? 0 : (double)disk->bytes_written / (double)disk->bytes_stored;
}

void mc_disks_metrics(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count)
{
    static const char store[] = "mooncake_client_disk_store_seconds", read[] = "mooncake_client_disk_read_seconds",
                      ratio[] = "mooncake_client_disk_write_amplification";
    put_ways(out, disks, count);
    put_health(out, disks, count);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char name[96];
        (void)snprintf(name, sizeof(name), "mooncake_client_disk_%s", rows[i].name);
        put_head(out, name, rows[i].kind, rows[i].help);
        for (size_t j = 0; j < count; j++) {
            put_disk(out, name, &disks[j]);
            mc_buffer_put_u8(out, '}');
            if (rows[i].us != 0)
                put_time(out, value_of(&disks[j], rows[i].offset) * rows[i].us, SECONDS);
            else
                mc_buffer_printf(out, " %" PRIu64 "\n", value_of(&disks[j], rows[i].offset));
        }
    }
    put_head(out, ratio, "gauge", "Bytes written to its files by bytes of objects stored; 0: none was");
    for (size_t i = 0; i < count; i++) {
        put_disk(out, ratio, &disks[i]);
        mc_buffer_printf(out, "} %.3f\n", amplification(&disks[i]));
    }
    put_reasons(out, disks, count);
    put_head(out, store, "histogram", "How long it took to store an object");
    for (size_t i = 0; i < count; i++)
        put_histogram(out, store, &disks[i], SECONDS, &disks[i].store_latency);
    put_head(out, read, "histogram", "How long it took to read an object");
    for (size_t i = 0; i < count; i++)
        put_histogram(out, read, &disks[i], SECONDS, &disks[i].read_latency);
}

void mc_disks_summary(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count)
{
#define WORD(name, word) word,
    static const char *const healths[] = {MC_STORE_DISK_HEALTHS(WORD)};
#undef WORD
    for (size_t i = 0; i < count; i++) {
        const struct mc_store_disk *disk = &disks[i];
        mc_buffer_printf(out,
                         "SSD %s: %s, %" PRIu64 " B / %" PRIu64 " B in %" PRIu64 " objects, read %" PRIu64
                         " B in %" PRIu64 " objects, written %" PRIu64 " B in %" PRIu64
                         " objects, %.2f bytes written for each stored, %" PRIu64 " waiting\n",
                         disk->path, healths[disk->health], disk->live_bytes, disk->capacity, disk->objects,
                         disk->bytes_served, disk->served, disk->bytes_stored, disk->stored, amplification(disk),
                         disk->waiting);
    }
}
