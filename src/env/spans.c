#include "env/spans.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/http.h"
#include "env/json.h"
#include "env/log.h"
#include "env/setting.h"
#include "env/spans_otlp.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define QUEUE_MAX 4096u      /* spans that wait */
#define BATCH_MAX 512u       /* of one request */
#define BATCH_SOON 256u      /* so many do not wait for more */
#define SEND_EVERY_MS 500u   /* else they do, for so long */
#define SEND_MS 2000u        /* for one request */
#define PAUSE_FIRST_MS 1000u /* after one that failed, doubling, and up to a quarter more: not all come at once */
#define PAUSE_LAST_MS 30000u
#define RETRY_LAST_S 300u  /* a collector that wants to be left alone for longer is asked after this all the same */
#define KEPT_TRIES 5u      /* what it says it may take later is sent so often, */
#define KEPT_MS 120000u    /* and first so long ago at most; then it is dropped */
#define RATE_DEFAULT 1000u /* spans a second */
#define RATE_MAX 1000000u
#define FILE_BYTES_MAX (1u << 30) /* a file grows no further */

enum keys_told { KEYS_NONE, KEYS_HASH, KEYS_TEXT };

/* All that spans have in this process. The lock is held for a few instructions, but for where a part of the process
 * begins or ends. */
static struct {
    pthread_mutex_t lock, life; /* life: of parts that begin and end, one after the other */
    pthread_cond_t changed;
    pthread_t thread;
    unsigned users;
    bool is_ready, has_thread, stop, has_ended;
    bool is_stuck;       /* a thread of before writes into a file that takes nothing: what is its alone stays so */
    uint64_t stop_by_ns; /* once it is to stop */
    struct mc_traced *queue[QUEUE_MAX]; /* a ring */
    size_t first, count;
    uint64_t rate, credit, credited_ns; /* credit: spans that may be made now, in 1/10^9 */
    struct mc_spans_counts counts;
    enum keys_told keys;
    struct mc_trace_context process; /* as TRACEPARENT says */
    /* The thread's alone, while it runs. */
    struct mc_otlp otlp;
    int file; /* -1: they are sent */
    uint64_t pause_ms, resume_ns, retry_s;
    struct mc_traced *kept[BATCH_MAX]; /* to be sent again */
    size_t kept_count;
    unsigned kept_tries;
    uint64_t kept_since_ns;
    bool is_failing, is_torn; /* is_torn: a line of the file has no end */
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .life = PTHREAD_MUTEX_INITIALIZER, .file = -1};

/* Of this thread: what its user has said that calls are a part of, and the span that it is in now. */
static _Thread_local struct mc_trace_context entered, inside;

/* ---- contexts ---- */

void mc_trace_enter(const struct mc_trace_context *trace)
{
    entered = trace == NULL ? (struct mc_trace_context){.flags = 0} : *trace;
}

struct mc_trace_context mc_trace_now(void)
{
    return mc_trace_is_valid(&inside) ? inside : entered;
}

struct mc_trace_context mc_trace_inside(void)
{
    return inside;
}

static bool text_read(const char *text, struct mc_trace_context *trace)
{
    if (mc_trace_parse(text, trace))
        return true;
    mc_log_once(WARNING, "a trace context is ignored, as it is no traceparent of W3C: '%.80s'", text);
    return false;
}

void mc_trace_enter_text(const char *text)
{
    struct mc_trace_context trace = {.flags = 0};
    if (text != NULL)
        (void)text_read(text, &trace);
    entered = trace;
}

/* ---- making spans ---- */

/* May one more be made? Whoever asks for them, they are no more than so many a second. The clock is read under the
 * lock: a time of before another thread's would be one of long after it. */
static bool credit_take(void)
{
    pthread_mutex_lock(&self.lock);
    const uint64_t most = self.rate * 1000000000ull, now_ns = mc_clock_ns();
    uint64_t passed_ns = now_ns - self.credited_ns;
    self.credited_ns = now_ns;
    self.credit = passed_ns >= 1000000000ull ? most : self.credit + passed_ns * self.rate;
    self.credit = self.credit < most ? self.credit : most;
    bool is_there = self.credit >= 1000000000ull;
    self.credit -= is_there ? 1000000000ull : 0;
    self.counts.dropped += !is_there;
    pthread_mutex_unlock(&self.lock);
    return is_there;
}

struct mc_traced *mc_traced_make(const char *name, enum mc_span_kind kind, const struct mc_trace_context *parent)
{
    if (!mc_trace_is_sampled(parent) || !credit_take())
        return NULL;
    struct mc_traced *span = calloc(1, sizeof(*span));
    if (span == NULL)
        return NULL;
    span->name = name;
    span->kind = (uint8_t)kind;
    span->parent = parent->span;
    span->self = *parent;
    span->self.span = mc_random_u64() | 1; /* never none */
    span->since_ns = mc_clock_ns();
    span->begin_ns = mc_clock_wall_ns();
    return span;
}

struct mc_traced *mc_traced_make_here(const char *name, bool is_call)
{
    const struct mc_trace_context *user = mc_trace_is_valid(&entered) ? &entered : &self.process;
    const struct mc_trace_context *parent = is_call && !mc_trace_is_valid(&inside) ? user : &inside;
    struct mc_traced *span = mc_traced_make(name, is_call ? MC_SPAN_INTERNAL : MC_SPAN_CLIENT, parent);
    if (span == NULL)
        return NULL;
    span->is_of_thread = true;
    span->before = inside;
    inside = span->self;
    return span;
}

void mc_traced_done(struct mc_traced *span, int code)
{
    span->code = code < 0 ? code : 0;
    span->end_ns = span->begin_ns + (mc_clock_ns() - span->since_ns);
    if (span->is_of_thread)
        inside = span->before;
    pthread_mutex_lock(&self.lock);
    bool is_room = self.count < QUEUE_MAX && self.has_thread && !self.stop;
    if (is_room)
        self.queue[(self.first + self.count++) % QUEUE_MAX] = span;
    else
        self.counts.dropped++;
    if (is_room && self.count == BATCH_SOON)
        pthread_cond_signal(&self.changed);
    pthread_mutex_unlock(&self.lock);
    if (!is_room)
        free(span);
}

/* What peers and callers name may be any bytes, and the text is to be UTF-8. */
static void text_copy(char text[MC_SPAN_TEXT_MAX], const char *from, size_t length)
{
    length = length < MC_SPAN_TEXT_MAX ? length : MC_SPAN_TEXT_MAX - 1;
    for (size_t i = 0; i < length; i++)
        text[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    text[length] = 0;
}

void mc_traced_segment(struct mc_traced *span, const char *name)
{
    text_copy(span->segment, name, strlen(name));
}

void mc_traced_key(struct mc_traced *span, const void *key, size_t length)
{
    if (self.keys == KEYS_HASH) {
        struct mc_hash hash = mc_hash(key, length);
        snprintf(span->key, sizeof(span->key), "%016llx%016llx", (unsigned long long)hash.high,
                 (unsigned long long)hash.low);
    } else if (self.keys == KEYS_TEXT) {
        text_copy(span->key, key, length);
    }
}

struct mc_spans_counts mc_spans_counts(void)
{
    pthread_mutex_lock(&self.lock);
    struct mc_spans_counts counts = self.counts;
    pthread_mutex_unlock(&self.lock);
    return counts;
}

/* ---- sending ---- */

/* Who ends waits for no more than one request. */
static uint64_t send_until_ns(void)
{
    uint64_t until_ns = mc_clock_ns() + SEND_MS * 1000000ull;
    pthread_mutex_lock(&self.lock);
    if (self.stop && self.stop_by_ns < until_ns)
        until_ns = self.stop_by_ns;
    pthread_mutex_unlock(&self.lock);
    return until_ns;
}

/* OTLP over HTTP: after these the same request is to be sent again, later. After others it is not: what came of it is
 * not known, or would come of it again. */
static bool is_for_later(int status)
{
    return status == 429 || status == 502 || status == 503 || status == 504;
}

/* 0, or not: with why. MC_ERR_BUSY: it may take the same later. */
static int text_send(const struct mc_buffer *text, size_t *refused, char *why, size_t why_size)
{
    uint64_t rejected = 0;
    struct mc_buffer reply = {.may_fail = true};
    const struct mc_tls_settings tls = {.authority = self.otlp.authority[0] == 0 ? NULL : self.otlp.authority,
                                        .authority_is = self.otlp.authority_is};
    const struct mc_http_question question = {.method = "POST",
                                              .path = self.otlp.path,
                                              .headers = (const char *)self.otlp.headers.data,
                                              .body = mc_span(text->data, text->length),
                                              .retry_s = &self.retry_s};
    int error = 0;
    int rc =
        mc_http_once(self.otlp.address, self.otlp.is_tls ? &tls : NULL, &question, send_until_ns(), &reply, &error);
    if (rc >= 200 && rc < 300 && reply.length > 0)
        (void)mc_json_find_number(mc_span(reply.data, reply.length), "partialSuccess.rejectedSpans", &rejected);
    mc_buffer_free(&reply);
    *refused = (size_t)rejected;
    if (rc >= 200 && rc < 300)
        return 0;
    const char *port = strrchr(self.otlp.address, ':');
    if (rc >= 0)
        snprintf(why, why_size, "it answers %d", rc);
    else if (port != NULL && strcmp(port, ":4317") == 0)
        snprintf(why, why_size, "%s (4317 is the port of gRPC; OTLP over HTTP has 4318)", mc_error_text(rc));
    else
        snprintf(why, why_size, "%s", error != 0 ? strerror(error) : mc_error_text(rc));
    return is_for_later(rc) ? MC_ERR_BUSY : MC_ERR_RPC_FAIL;
}

static int text_keep(const struct mc_buffer *text, char *why, size_t why_size)
{
    struct stat status;
    struct iovec parts[] = {{"\n", self.is_torn}, {text->data, text->length}, {"\n", 1}};
    size_t whole = (self.is_torn ? 1 : 0) + text->length + 1;
    if (fstat(self.file, &status) == 0 && S_ISREG(status.st_mode) &&
        (uint64_t)status.st_size + whole > FILE_BYTES_MAX) {
        snprintf(why, why_size, "it has 1 GiB, and gets no more");
        return MC_ERR_FILE_WRITE_FAIL;
    }
    errno = 0; /* one write for each line: other processes may append to the file, too */
    ssize_t written = writev(self.file, parts, sizeof(parts) / sizeof(parts[0]));
    self.is_torn = written > 0 ? (size_t)written < whole : self.is_torn;
    if (written == (ssize_t)whole)
        return 0;
    snprintf(why, why_size, "%s", written < 0 ? strerror(errno) : "not all of a line was taken");
    return MC_ERR_FILE_WRITE_FAIL;
}

/* What goes wrong is said when it begins, and when it is over. */
static void outcome_note(int rc, const char *why, uint64_t now_ns)
{
    const char *where = self.file >= 0 ? "the file of MC_TRACES" : self.otlp.address;
    if (rc < 0 && !self.is_failing)
        mc_log(WARNING, "spans of traces do not get to %s: %s; %s", where, why,
               rc == MC_ERR_BUSY ? "they are sent again a few times, and dropped where that is of no use"
                                 : "they are dropped until they do");
    else if (rc == 0 && self.is_failing)
        mc_log(INFO, "spans of traces get to %s again", where);
    self.is_failing = rc < 0;
    self.pause_ms = rc == 0 ? 0 : self.pause_ms == 0 ? PAUSE_FIRST_MS : self.pause_ms * 2;
    self.pause_ms = self.pause_ms < PAUSE_LAST_MS ? self.pause_ms : PAUSE_LAST_MS;
    uint64_t wait_ms = self.pause_ms + (self.pause_ms == 0 ? 0 : mc_random_u64() % (self.pause_ms / 4));
    uint64_t asked_ms = (self.retry_s < RETRY_LAST_S ? self.retry_s : RETRY_LAST_S) * 1000;
    self.resume_ns = now_ns + (rc < 0 && asked_ms > wait_ms ? asked_ms : wait_ms) * 1000000ull;
}

/* They are sent again, or not: then, or when they have got there, it is as if there were none. */
static bool batch_keep(struct mc_traced **batch, size_t count, bool is_for_later, uint64_t now_ns)
{
    if (self.kept_tries == 0)
        self.kept_since_ns = now_ns;
    self.kept_tries++;
    if (!is_for_later || self.kept_tries == KEPT_TRIES || self.resume_ns - self.kept_since_ns >= KEPT_MS * 1000000ull) {
        self.kept_tries = 0;
        return false;
    }
    memcpy(self.kept, batch, count * sizeof(*batch));
    self.kept_count = count;
    return true;
}

/* True: they are to be sent again, and kept for that. */
static bool batch_send(struct mc_traced **batch, size_t count)
{
    struct mc_buffer text = {.may_fail = true};
    char why[160] = "";
    size_t refused = 0;
    self.retry_s = 0;
    mc_otlp_write(&text, &self.otlp, batch, count);
    int rc = text.failed      ? MC_ERR_NO_MEMORY
             : self.file >= 0 ? text_keep(&text, why, sizeof(why))
                              : text_send(&text, &refused, why, sizeof(why));
    if (text.failed)
        snprintf(why, sizeof(why), "there is no memory");
    mc_buffer_free(&text);
    uint64_t now_ns = mc_clock_ns();
    outcome_note(rc, why, now_ns);
    bool is_kept = batch_keep(batch, count, rc == MC_ERR_BUSY, now_ns);
    pthread_mutex_lock(&self.lock);
    refused = rc < 0 || refused > count ? count : refused;
    self.counts.sent += count - refused;
    self.counts.dropped += is_kept ? 0 : refused;
    self.counts.failed_sends += rc < 0;
    pthread_mutex_unlock(&self.lock);
    return is_kept;
}

/* With the lock. What was kept goes first, alone. */
static size_t batch_pick(struct mc_traced **batch)
{
    size_t taken = self.kept_count;
    memcpy(batch, self.kept, taken * sizeof(*batch));
    self.kept_count = 0;
    while (taken < BATCH_MAX && self.kept_tries == 0 && self.count > 0) {
        batch[taken++] = self.queue[self.first];
        self.first = (self.first + 1) % QUEUE_MAX;
        self.count--;
    }
    return taken;
}

/* Sleeps until a batch is to be sent. Returns how many it is of; 0: the thread is to end. */
static size_t batch_take(struct mc_traced **batch)
{
    size_t taken = 0;
    pthread_mutex_lock(&self.lock);
    uint64_t until_ns = mc_clock_ns() + SEND_EVERY_MS * 1000000ull;
    until_ns = until_ns > self.resume_ns ? until_ns : self.resume_ns;
    while (!self.stop) {
        uint64_t now_ns = mc_clock_ns();
        if (now_ns >= until_ns && self.count + self.kept_count == 0)
            until_ns = now_ns + SEND_EVERY_MS * 1000000ull;
        else if (now_ns >= until_ns || (self.count >= BATCH_SOON && now_ns >= self.resume_ns))
            break;
        (void)mc_monitor_wait(&self.lock, &self.changed, until_ns);
    }
    bool is_lost = self.stop && (self.is_failing || mc_clock_ns() >= self.stop_by_ns);
    if (!is_lost)
        taken = batch_pick(batch);
    pthread_mutex_unlock(&self.lock);
    return taken;
}

static void *spans_run(void *unused)
{
    struct mc_traced *batch[BATCH_MAX];
    (void)unused;
    for (size_t count; (count = batch_take(batch)) > 0;) {
        bool is_kept = batch_send(batch, count);
        while (!is_kept && count > 0)
            free(batch[--count]);
    }
    pthread_mutex_lock(&self.lock);
    self.counts.dropped += self.kept_count;
    while (self.kept_count > 0)
        free(self.kept[--self.kept_count]);
    self.has_ended = true;
    pthread_cond_broadcast(&self.changed);
    pthread_mutex_unlock(&self.lock);
    return NULL;
}

/* ---- life ---- */

/* In a forked child: the thread is not there, and who held a lock is not either. What waits is the parent's. */
static void on_forked(void)
{
    atomic_store(&mc_traces_wanted, false);
    pthread_mutex_init(&self.life, NULL);
    mc_monitor_init(&self.lock, &self.changed);
    self.users = 0;
    self.first = self.count = self.kept_count = 0;
    self.has_thread = self.stop = self.is_stuck = self.is_torn = false;
    self.otlp = (struct mc_otlp){.is_tls = false}; /* the thread may have been reading it: it is not given back */
    if (self.file >= 0)
        close(self.file);
    self.file = -1;
    entered = inside = (struct mc_trace_context){.flags = 0};
}

/* Does its last line have an end? */
static bool ends_whole(const char *path, int file)
{
    struct stat status;
    char last = '\n';
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
        return true;
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    if (reader < 0)
        return true;
    if (pread(reader, &last, 1, status.st_size - 1) != 1)
        last = '\n';
    close(reader);
    return last == '\n';
}

static int target_open(const char *wanted, char *error, size_t error_size)
{
    if (strcasecmp(wanted, "otlp") == 0)
        return mc_otlp_target(&self.otlp, error, error_size);
    if (strncmp(wanted, "file:", 5) != 0 || wanted[5] == 0) {
        snprintf(error, error_size, "otlp or file:PATH is expected");
        return MC_ERR_INVALID_PARAMS;
    }
    self.file = open(wanted + 5, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (self.file >= 0) {
        self.is_torn = !ends_whole(wanted + 5, self.file);
        return 0;
    }
    snprintf(error, error_size, "%s", strerror(errno));
    return MC_ERR_FILE_OPEN_FAIL;
}

static void settings_read(void)
{
    const char *keys = mc_variable(MC_TRACES_KEYS), *parent = mc_variable(TRACEPARENT);
    bool is_text = keys != NULL && strcasecmp(keys, "key") == 0,
         is_hash = keys != NULL && strcasecmp(keys, "hash") == 0;
    self.keys = is_text ? KEYS_TEXT : is_hash ? KEYS_HASH : KEYS_NONE;
    if (self.keys == KEYS_NONE && keys != NULL && keys[0] != 0 && strcasecmp(keys, "none") != 0)
        mc_log(WARNING, "MC_TRACES_KEYS='%.40s' is taken for none: hash, key or none is expected", keys);
    self.rate = mc_setting_number(MC_TRACES_RATE, " of spans a second", 1, RATE_MAX, RATE_DEFAULT);
    self.credit = 0;
    self.credited_ns = 0; /* long ago: the first has all of a second's */
    self.process = (struct mc_trace_context){.flags = 0};
    if (parent != NULL && parent[0] != 0)
        (void)text_read(parent, &self.process);
}

static void target_close(void)
{
    mc_otlp_free(&self.otlp);
    if (self.file >= 0)
        close(self.file);
    self.file = -1;
}

/* The thread that was left alone may have come to its end since. */
static void stuck_look(void)
{
    pthread_mutex_lock(&self.lock);
    bool has_come = self.is_stuck && self.has_ended;
    pthread_mutex_unlock(&self.lock);
    if (has_come) {
        target_close();
        self.is_stuck = false;
    }
}

static void spans_open(const char *service)
{
    const char *wanted = mc_variable(MC_TRACES);
    char error[320] = "a thread cannot be started";
    if (wanted == NULL || wanted[0] == 0 || strcasecmp(wanted, "none") == 0)
        return;
    if (mc_otlp_is_off()) {
        mc_log(INFO,
               "no traces are made: MC_TRACES asks for them, and OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER says no");
        return;
    }
    stuck_look();
    if (self.is_stuck) {
        mc_log(WARNING, "no traces are made: a write of spans of before has not come back");
        return;
    }
    int rc = target_open(wanted, error, sizeof(error)); /* without the lock: its file system may hang */
    pthread_mutex_lock(&self.lock);                     /* a span of before, when spans were wanted, may end only now */
    self.stop = self.has_ended = self.is_failing = false;
    self.pause_ms = self.resume_ns = self.kept_tries = 0;
    settings_read();
    mc_otlp_name(&self.otlp, service);
    self.has_thread = rc == 0 && mc_thread_start(&self.thread, "mc-traces", spans_run, NULL) == 0;
    bool is_there = self.has_thread;
    pthread_mutex_unlock(&self.lock);
    if (!is_there) {
        mc_log(WARNING, "no traces are made: MC_TRACES=%.100s: %s", wanted, error);
        target_close();
        return;
    }
    mc_log(INFO, "spans of traces go to %s", self.file >= 0 ? wanted + 5 : self.otlp.address);
    atomic_store(&mc_traces_wanted, true);
}

/* False: it does not, as the disk of its file, or a name server, hangs. It is left alone then, with what it uses. */
static bool thread_ends(void)
{
    const uint64_t until_ns = self.stop_by_ns + SEND_MS * 1000000ull;
    pthread_mutex_lock(&self.lock);
    while (!self.has_ended && mc_clock_ns() < until_ns)
        (void)mc_monitor_wait(&self.lock, &self.changed, until_ns);
    bool has_ended = self.has_ended;
    pthread_mutex_unlock(&self.lock);
    if (has_ended) {
        pthread_join(self.thread, NULL);
        return true;
    }
    mc_log(WARNING, "the last spans of traces are not waited for: a write, or the search for a name, hangs");
    pthread_detach(self.thread);
    return false;
}

static void spans_close(void)
{
    if (!self.has_thread)
        return;
    atomic_store(&mc_traces_wanted, false);
    pthread_mutex_lock(&self.lock);
    self.stop = true;
    self.stop_by_ns = mc_clock_ns() + SEND_MS * 1000000ull;
    pthread_cond_signal(&self.changed);
    pthread_mutex_unlock(&self.lock);
    self.is_stuck = !thread_ends();
    pthread_mutex_lock(&self.lock);
    self.has_thread = false;
    self.counts.dropped += self.count;
    for (; self.count > 0; self.count--) {
        free(self.queue[self.first]);
        self.first = (self.first + 1) % QUEUE_MAX;
    }
    pthread_mutex_unlock(&self.lock);
    if (!self.is_stuck)
        target_close();
}

void mc_spans_start(const char *service)
{
    pthread_mutex_lock(&self.life);
    if (!self.is_ready) {
        mc_condition_init(&self.changed);
        (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
        self.is_ready = true;
    }
    if (self.users++ == 0)
        spans_open(service);
    pthread_mutex_unlock(&self.life);
}

void mc_spans_end(void)
{
    pthread_mutex_lock(&self.life);
    if (self.users > 0 && --self.users == 0)
        spans_close();
    pthread_mutex_unlock(&self.life);
}
