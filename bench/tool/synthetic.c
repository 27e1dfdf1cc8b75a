/* Makes traces. `conversation` has the measures of the recorded hour (traces/NOTICE): how many turns a session has, how
 * long users think, how many blocks are new in a turn, how often a turn is asked again. The others are what a policy
 * meets elsewhere: documents of unequal popularity, the same among scans, one set over and over, and popularity that
 * changes. */
#include "tool/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOUR_MS 3600000u
#define SESSIONS 7400u
#define TURNS_MAX 40u
#define TURN_BLOCKS_MAX 250u
#define SESSION_BLOCKS_MAX 1000u
#define PROMPTS 8u /* long ones that several sessions begin with */
#define DOCUMENT_BLOCKS 20u
#define DOCUMENT_REQUESTS 15000u
#define DOCUMENTS 10000u
#define HOT_DOCUMENTS 2000u /* among scans */
#define LOOP_DOCUMENTS 1500u
#define SHIFTS 5u

struct maker {
    struct mc_trace *trace;
    uint64_t request_capacity, block_capacity;
    uint64_t random, next_id;
    bool failed; /* memory is out */
};

/* ---- chance ---- */

static uint64_t draw(struct maker *maker)
{
    uint64_t x = maker->random += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Of (0, 1]. */
static double draw_part(struct maker *maker)
{
    return (double)((draw(maker) >> 11) + 1) / (double)(1ull << 53);
}

static double draw_normal(struct maker *maker)
{
    return sqrt(-2 * log(draw_part(maker))) * cos(2 * M_PI * draw_part(maker));
}

static double draw_lognormal(struct maker *maker, double median, double sigma)
{
    return median * exp(sigma * draw_normal(maker));
}

static uint32_t draw_blocks(struct maker *maker, double median, double sigma)
{
    double blocks = draw_lognormal(maker, median, sigma);
    return blocks < 1 ? 1 : blocks > TURN_BLOCKS_MAX ? TURN_BLOCKS_MAX : (uint32_t)blocks;
}

/* Which of `count`: the n-th as likely as n^-0.9. */
static uint32_t draw_popular(struct maker *maker, uint32_t count)
{
    double last = pow(count, 0.1), at = 1 + draw_part(maker) * (last - 1);
    uint32_t number = (uint32_t)pow(at, 10) - 1;
    return number < count ? number : count - 1;
}

/* ---- requests ---- */

static bool grow(void **list, uint64_t wanted, uint64_t *capacity, size_t element)
{
    if (wanted <= *capacity)
        return true;
    uint64_t more = wanted * 2 + 1024;
    void *bigger = realloc(*list, more * element);
    if (bigger == NULL)
        return false;
    *list = bigger;
    *capacity = more;
    return true;
}

static void add_request(struct maker *maker, uint64_t time_ms, const uint64_t *ids, uint32_t count)
{
    struct mc_trace *trace = maker->trace;
    void *requests = trace->requests, *blocks = trace->block_ids;
    bool good = grow(&requests, trace->request_count + 1, &maker->request_capacity, sizeof(*trace->requests)) &&
                grow(&blocks, trace->block_count + count, &maker->block_capacity, sizeof(*trace->block_ids));
    trace->requests = requests;
    trace->block_ids = blocks;
    if (!good) {
        maker->failed = true;
        return;
    }
    memcpy(trace->block_ids + trace->block_count, ids, count * sizeof(*ids));
    trace->requests[trace->request_count++] = (struct mc_trace_request){.timestamp_ms = time_ms,
                                                                        .first_block = trace->block_count,
                                                                        .block_count = count,
                                                                        .input_tokens = count * MC_TRACE_BLOCK_TOKENS,
                                                                        .output_tokens = 350};
    trace->block_count += count;
}

static int compare_requests(const void *a, const void *b)
{
    const struct mc_trace_request *x = a, *y = b;
    if (x->timestamp_ms != y->timestamp_ms)
        return x->timestamp_ms < y->timestamp_ms ? -1 : 1;
    return (x->first_block > y->first_block) - (x->first_block < y->first_block);
}

/* ---- conversations ---- */

/* Of those that came so far, so many in a hundred take one more turn. */
static uint32_t goes_on_percent(uint32_t turns)
{
    static const uint8_t percent[] = {31, 42, 51, 59, 62, 66};
    return percent[turns <= sizeof(percent) ? turns - 1 : sizeof(percent) - 1];
}

static uint32_t append_new(struct maker *maker, uint64_t *ids, uint32_t count, uint32_t more)
{
    for (; more > 0 && count < SESSION_BLOCKS_MAX; more--)
        ids[count++] = maker->next_id++;
    return count;
}

static void make_session(struct maker *maker, uint64_t (*prompts)[TURN_BLOCKS_MAX], const uint32_t *lengths)
{
    uint64_t ids[SESSION_BLOCKS_MAX] = {0}; /* the first block is the same in all */
    uint32_t count = 1, before = 1;
    double time_ms = draw_part(maker) * HOUR_MS;
    if (draw(maker) % 50 == 0) {
        uint32_t which = (uint32_t)(draw(maker) % PROMPTS);
        memcpy(ids + 1, prompts[which], lengths[which] * sizeof(*ids));
        count += lengths[which];
    }
    count = append_new(maker, ids, count, draw_blocks(maker, 10, 1.2));
    for (uint32_t turn = 1; turn <= TURNS_MAX && time_ms < HOUR_MS; turn++) {
        add_request(maker, (uint64_t)time_ms, ids, count);
        if (draw(maker) % 100 >= goes_on_percent(turn))
            return;
        time_ms += draw_lognormal(maker, 123000, 0.98);
        if (draw(maker) % 10 == 0) /* asked again otherwise: what the last turn added is not in it */
            count = before;
        before = count;
        count = append_new(maker, ids, count, draw_blocks(maker, 2.5, 1.4));
    }
}

static void make_conversations(struct maker *maker)
{
    static uint64_t prompts[PROMPTS][TURN_BLOCKS_MAX];
    uint32_t lengths[PROMPTS];
    maker->next_id = 1;
    for (uint32_t i = 0; i < PROMPTS; i++)
        lengths[i] = append_new(maker, prompts[i], 0, 10 + (uint32_t)(draw(maker) % 50));
    for (uint32_t i = 0; i < SESSIONS && !maker->failed; i++)
        make_session(maker, prompts, lengths);
}

/* ---- documents ---- */

static void request_document(struct maker *maker, uint32_t number, uint64_t document)
{
    uint64_t ids[DOCUMENT_BLOCKS];
    for (uint32_t i = 0; i < DOCUMENT_BLOCKS; i++)
        ids[i] = document * DOCUMENT_BLOCKS + i;
    add_request(maker, (uint64_t)number * HOUR_MS / DOCUMENT_REQUESTS, ids, DOCUMENT_BLOCKS);
}

static void make_documents(struct maker *maker)
{
    for (uint32_t i = 0; i < DOCUMENT_REQUESTS; i++)
        request_document(maker, i, draw_popular(maker, DOCUMENTS));
}

static void make_scans(struct maker *maker)
{
    for (uint32_t i = 0; i < DOCUMENT_REQUESTS; i++)
        request_document(maker, i, i / 500 % 2 == 1 ? DOCUMENTS + i : draw_popular(maker, HOT_DOCUMENTS));
}

static void make_loop(struct maker *maker)
{
    for (uint32_t i = 0; i < DOCUMENT_REQUESTS; i++)
        request_document(maker, i, i % LOOP_DOCUMENTS);
}

/* What is popular is new with each shift. */
static void make_shifts(struct maker *maker)
{
    for (uint32_t i = 0; i < DOCUMENT_REQUESTS; i++)
        request_document(maker, i, draw_popular(maker, DOCUMENTS) + i / (DOCUMENT_REQUESTS / SHIFTS) * DOCUMENTS);
}

bool mc_synthetic_make(const char *kind, uint64_t seed, struct mc_trace *trace)
{
    static const struct {
        const char *name;
        void (*make)(struct maker *maker);
    } kinds[] = {{"conversation", make_conversations},
                 {"documents", make_documents},
                 {"scans", make_scans},
                 {"loop", make_loop},
                 {"shift", make_shifts}};
    struct maker maker = {.trace = trace, .random = seed, .failed = true};
    *trace = (struct mc_trace){0};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, kind) != 0)
            continue;
        maker.failed = false;
        kinds[i].make(&maker);
    }
    if (maker.failed)
        mc_trace_free(trace);
    else
        qsort(trace->requests, trace->request_count, sizeof(*trace->requests), compare_requests);
    return !maker.failed;
}
