/* Log lines in glog's form, or as JSON, one write(2) each. To a pipe, a socket or a terminal whoever has the line
 * writes it, if poll says that there is room. To a regular file, whose file system may hang whatever poll says, the
 * thread mc-log does (log_queue.c): at the end of the process, and before an assertion ends it, what is queued has a
 * second. */
#include "env/log.h"

#include "base/last_words.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/log_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES MC_LOG_LINE_MAX
#define LAST_MS 1000 /* for what is queued when there will be no more */

_Atomic int mc_log_threshold = MC_LOG_INFO;
_Atomic bool mc_log_wipes;

static _Atomic int log_fd = -1;                 /* of MC_LOG_DIR */
static _Atomic int line_fd = STDERR_FILENO;     /* where lines go */
static _Atomic bool is_json;                    /* on stderr and in the file */
static _Atomic uint64_t unsaid[MC_LOG_TARGETS]; /* lines that had no room there, since one that had */

static const char *const level_names[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR"};

void mc_log_set_level(enum mc_log_level level)
{
    atomic_store(&mc_log_threshold, (int)level);
}

void mc_log_set_json(bool wanted)
{
    atomic_store(&is_json, wanted);
}

int mc_log_set_flags(int64_t detail, int64_t least)
{
    int level = detail >= 2   ? MC_LOG_TRACE
                : detail == 1 ? MC_LOG_DEBUG
                : least >= 2  ? MC_LOG_ERROR
                : least == 1  ? MC_LOG_WARNING
                              : -1;
    if (level >= 0)
        mc_log_set_level((enum mc_log_level)level);
    return level;
}

bool mc_log_parse_level(const char *text, enum mc_log_level *level)
{
    for (int i = 0; i <= MC_LOG_ERROR; i++) {
        if (strcasecmp(text, level_names[i]) == 0 || (text[0] == '0' + i && text[1] == 0)) {
            *level = (enum mc_log_level)i;
            return true;
        }
    }
    return false;
}

void mc_log_to_directory(const char *directory)
{
    char path[PATH_MAX];
    int length =
        snprintf(path, sizeof(path), "%s/%s.%ld.log", directory, program_invocation_short_name, (long)getpid());
    int fd = (size_t)length < sizeof(path) ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd < 0) {
        mc_log(WARNING, "no log is written in %.200s: %s; it goes to stderr only", directory,
               (size_t)length < sizeof(path) ? strerror(errno) : "the path is too long");
        return;
    }
    int before = atomic_exchange(&log_fd, fd);
    bool is_written = mc_log_flush(LAST_MS); /* also what was put for the old one, and is written into either */
    if (before >= 0 && is_written)           /* else it is still written to */
        close(before);
}

/* Does a control character begin there, which a terminal obeys? In UTF-8 those of C1 are two bytes. */
static bool is_control(const char *at)
{
    uint8_t one = (uint8_t)at[0], two = one == 0 ? 0 : (uint8_t)at[1];
    return one < ' ' || one == 0x7f || (one == 0xc2 && two >= 0x80 && two < 0xa0);
}

/* A line is one line, whatever names of peers are in it: their control characters become \xNN. Returns the length of
 * what fits; no zero follows it. */
static size_t escape(char *to, size_t size, const char *from)
{
    size_t length = 0;
    for (; *from != 0; from++) {
        bool is_bad = is_control(from);
        size_t more = is_bad ? 4 : 1;
        if (length + more > size)
            break;
        if (is_bad) {
            static const char digits[] = "0123456789abcdef";
            uint8_t byte = (uint8_t)*from;
            memcpy(to + length, (char[]){'\\', 'x', digits[byte >> 4], digits[byte & 15]}, 4);
        } else {
            to[length] = *from;
        }
        length += more;
    }
    return length;
}

/* Bytes of the character of UTF-8 that begins there; 0: none does. */
static size_t character(const uint8_t *at)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    uint32_t code = length < 2 ? at[0] : at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2)
            return 0; /* the zero at the end, too */
        code = code << 6 | (at[i] & 0x3f);
    }
    return length > 1 && (code < least[length] || code > 0x10ffff || code >> 11 == 27) ? 0 : length;
}

/* What may stand between the quotes of JSON, whatever bytes peers have put into a name. Returns the length of what
 * fits, in whole characters. */
static size_t escape_json(char *to, size_t size, const char *from)
{
    size_t length = 0;
    while (*from != 0) {
        char one[8];
        size_t taken = character((const uint8_t *)from);
        int more = (int)taken;
        if (taken == 0)
            more = snprintf(one, sizeof(one), "\\ufffd");
        else if (is_control(from))
            more = snprintf(one, sizeof(one), "\\u%04x", taken == 1 ? (uint8_t)from[0] : (uint8_t)from[1]);
        else if (*from == '"' || *from == '\\')
            more = snprintf(one, sizeof(one), "\\%c", *from);
        else
            memcpy(one, from, taken);
        if (length + (size_t)more > size)
            break;
        memcpy(to + length, one, (size_t)more);
        length += (size_t)more;
        from += taken == 0 ? 1 : taken;
    }
    return length;
}

int mc_log_to(int fd)
{
    (void)mc_log_flush(LAST_MS);
    return atomic_exchange(&line_fd, fd);
}

bool mc_log_flush(uint32_t ms)
{
    return mc_log_queue_flush(ms);
}

bool mc_log_thread_end(void)
{
    return mc_log_queue_end(LAST_MS);
}

__attribute__((destructor)) static void end(void)
{
    (void)mc_log_queue_end(LAST_MS);
}

/* Asks no server of a file system, as fstat and poll may. Where the kernel does not say, it is one for safety. */
static bool is_file(int fd)
{
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0)
        return errno != EBADF;
    return S_ISREG(status.stx_mode);
}

/* Who reads stderr may stand still (a terminal that was paused, a service manager that is stuck): that costs lines, and
 * not the time of who writes them. A pipe that is ready has room for a page, thus for a line; several threads that fill
 * the last one at once can still wait. An error is found by the write. */
static bool has_room(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    return poll(&one, 1, 0) != 0;
}

static size_t make_object(char text[LINE_MAX_BYTES], enum mc_log_level level, const char *file, int line,
                          const char *message)
{
    static const char end[] = {'"', '}', '\n'};
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t length = strftime(text, LINE_MAX_BYTES, "{\"time\":\"%Y-%m-%dT%H:%M:%S", &utc);
    length += (size_t)snprintf(text + length, LINE_MAX_BYTES - length,
                               ".%06ldZ\",\"level\":\"%s\",\"thread\":%ld,\"file\":\"%s\",\"line\":%d,\"message\":\"",
                               now.tv_nsec / 1000, level_names[level], (long)syscall(SYS_gettid), file, line);
    length += escape_json(text + length, LINE_MAX_BYTES - sizeof(end) - length, message);
    memcpy(text + length, end, sizeof(end));
    return length + sizeof(end);
}

static size_t make_line(char text[LINE_MAX_BYTES], bool wants_json, enum mc_log_level level, const char *path, int line,
                        const char *message)
{
    const char *name = strrchr(path, '/'), *file = name == NULL ? path : name + 1;
    if (wants_json)
        return make_object(text, level, file, line, message);
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = (size_t)snprintf(text, LINE_MAX_BYTES, "%c%02d%02d %02d:%02d:%02d.%06ld %5ld %s:%d] ",
                                     "DDIWE"[level], local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min,
                                     local.tm_sec, now.tv_nsec / 1000, (long)syscall(SYS_gettid), file, line);
    length += escape(text + length, LINE_MAX_BYTES - 1 - length, message);
    text[length++] = '\n';
    return length;
}

static ssize_t write_line(int fd, const char *text, size_t length)
{
    static const char wipe[] = MC_LOG_WIPE;
    char whole[LINE_MAX_BYTES + sizeof(wipe)];
    size_t before = fd == STDERR_FILENO && atomic_load_explicit(&mc_log_wipes, memory_order_relaxed) ? strlen(wipe) : 0;
    if (before == 0)
        return write(fd, text, length);
    memcpy(whole, wipe, before);
    memcpy(whole + before, text, length);
    return write(fd, whole, before + length);
}

/* On the thread mc-log, or for want of one on the caller's. The descriptor may have become another one, or no file. */
static void write_queued(enum mc_log_target target, const char *text, size_t length)
{
    int fd = target == MC_LOG_TO_FILE    ? atomic_load(&log_fd)
             : target == MC_LOG_TO_LINES ? atomic_load(&line_fd)
                                         : STDERR_FILENO;
    if (!is_file(fd) && !has_room(fd))
        atomic_fetch_add(&unsaid[target], 1);
    else if (write_line(fd, text, length) < 0 && target == MC_LOG_TO_LINES && fd != STDERR_FILENO)
        write_queued(MC_LOG_TO_STDERR, text, length); /* else nowhere to complain */
}

/* False: there is no room. */
static bool send_one(enum mc_log_target target, int fd, bool is_queued, const char *text, size_t length)
{
    if (is_queued) {
        enum mc_log_put put = mc_log_queue_put(target, text, length, write_queued);
        if (put == MC_LOG_NO_THREAD)
            write_queued(target, text, length);
        return put != MC_LOG_FULL;
    }
    if (!has_room(fd))
        return false;
    if (write_line(fd, text, length) < 0 && target == MC_LOG_TO_LINES && fd != STDERR_FILENO)
        (void)send_one(MC_LOG_TO_STDERR, STDERR_FILENO, is_file(STDERR_FILENO), text, length);
    return true;
}

/* Before it goes the count of those that were lost. */
static void send_line(enum mc_log_target target, int fd, const char *text, size_t length)
{
    bool is_queued = target == MC_LOG_TO_FILE || is_file(fd), has_room = true;
    _Atomic uint64_t *count = &unsaid[target];
    uint64_t lost = atomic_load_explicit(count, memory_order_relaxed) == 0 ? 0 : atomic_exchange(count, 0);
    if (lost > 0) {
        char first[LINE_MAX_BYTES], message[80];
        (void)snprintf(message, sizeof(message), "%llu lines are lost: %s", (unsigned long long)lost,
                       is_queued ? "their file did not take them" : "nobody has read them");
        size_t first_length = make_line(first, text[0] == '{', MC_LOG_WARNING, __FILE__, __LINE__, message);
        has_room = send_one(target, fd, is_queued, first, first_length);
    }
    if (!has_room || !send_one(target, fd, is_queued, text, length))
        atomic_fetch_add(count, 1 + (has_room ? 0 : lost));
}

/* What an assertion says, after all that was said before it. */
static void write_last(const char *text, size_t length)
{
    struct pollfd one = {.fd = STDERR_FILENO, .events = POLLOUT};
    int file_fd = atomic_load(&log_fd);
    bool is_queued = is_file(STDERR_FILENO);
    (void)mc_log_flush(LAST_MS);
    if (file_fd >= 0)
        (void)send_one(MC_LOG_TO_FILE, file_fd, true, text, length);
    if (is_queued)
        (void)send_one(MC_LOG_TO_STDERR, STDERR_FILENO, true, text, length);
    (void)mc_log_flush(LAST_MS);
    if (!is_queued && poll(&one, 1, LAST_MS) != 0 && write_line(STDERR_FILENO, text, length) < 0)
        return; /* nowhere to complain */
}

void mc_log_write(enum mc_log_level level, const char *file, int line, const char *format, ...)
{
    char text[LINE_MAX_BYTES], message[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int printed = vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    if (printed < 0)
        message[0] = 0;
    /* Who has taken the lines over reads glog's form. */
    bool wants_json = atomic_load_explicit(&is_json, memory_order_relaxed);
    bool is_taken = atomic_load_explicit(&line_fd, memory_order_relaxed) != STDERR_FILENO;
    size_t length = make_line(text, wants_json && !is_taken, level, file, line, message);
    int file_fd = atomic_load_explicit(&log_fd, memory_order_relaxed);
    send_line(MC_LOG_TO_LINES, atomic_load_explicit(&line_fd, memory_order_relaxed), text, length);
    if (file_fd >= 0 && wants_json && is_taken)
        length = make_line(text, true, level, file, line, message);
    if (file_fd >= 0)
        send_line(MC_LOG_TO_FILE, file_fd, text, length);
}

bool mc_log_allowed(struct mc_log_limit *limit, uint64_t *held_back)
{
    uint64_t now_ms = mc_clock_ms(), next_ms = atomic_load(&limit->next_ms);
    if (now_ms < next_ms || !atomic_compare_exchange_strong(&limit->next_ms, &next_ms, now_ms + 1000)) {
        atomic_fetch_add(&limit->held_back, 1);
        return false;
    }
    *held_back = atomic_exchange(&limit->held_back, 0);
    return true;
}

/* Before main: the library has no init call that every user makes. An unknown value leaves INFO. */
__attribute__((constructor)) static void begin(void)
{
    mc_last_words = write_last;
    const char *text = mc_variable(MC_LOG_LEVEL);
    enum mc_log_level level;
    if (text != NULL && mc_log_parse_level(text, &level))
        mc_log_set_level(level);
    const char *form = mc_variable(MC_LOG_FORMAT);
    mc_log_set_json(form != NULL && strcasecmp(form, "json") == 0);
    if (form != NULL && form[0] != 0 && strcasecmp(form, "json") != 0 && strcasecmp(form, "glog") != 0)
        mc_log(WARNING, "MC_LOG_FORMAT=%.40s: json or glog is expected; it is glog", form);
    const char *directory = mc_variable(MC_LOG_DIR);
    if (directory != NULL && directory[0] != 0)
        mc_log_to_directory(directory);
}
