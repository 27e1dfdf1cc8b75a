/* Log lines to stderr in glog's form: "I1023 07:19:21.542047   228 file.c:40] text". One write(2) per line. With
 * MC_LOG_FORMAT=json each is an object of JSON, there and in the file.
 * A reader who stands still costs lines, which are counted and said, and nobody's time; so does a file system that
 * hangs under a regular file, but for 5 ms of those who write when it begins to.
 * MC_LOG_DIR, or mc_log_to_directory: the same lines also in a file there.
 * Level: MC_LOG_LEVEL = TRACE, DEBUG, INFO (default), WARNING, ERROR; or mc_log_set_level. -v=1 is DEBUG, -v=2 TRACE.
 */
#ifndef MC_ENV_LOG_H
#define MC_ENV_LOG_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum mc_log_level { MC_LOG_TRACE, MC_LOG_DEBUG, MC_LOG_INFO, MC_LOG_WARNING, MC_LOG_ERROR };

extern _Atomic int mc_log_threshold; /* lines below it are not made */

/* Something stands in the last line of the terminal that stderr is, without an end: each line wipes it first. Of who
 * draws it there (env/meter.h). */
extern _Atomic bool mc_log_wipes;
#define MC_LOG_WIPE "\r\033[K"

void mc_log_set_level(enum mc_log_level level);
/* What the flags --v and --minloglevel ask for, and sets it; -1: they ask for nothing. */
int mc_log_set_flags(int64_t detail, int64_t least);
/* From now on lines go also to DIRECTORY/PROGRAM.PID.log, after what is there. If they cannot, that is a warning. */
void mc_log_to_directory(const char *directory);
void mc_log_set_json(bool wanted);
/* Lines go to that descriptor from now on instead of stderr, whole and in glog's form; what cannot be written there
 * goes to stderr. The descriptor stays the caller's, and may be closed when no thread can be writing. Returns the one
 * before; what is on its way to that has a second, then it goes where lines go now. */
int mc_log_to(int fd);
/* Waits until lines that go to regular files are there, for at most so long; false: they are not. As exit does. */
bool mc_log_flush(uint32_t ms);
/* Ends the thread that writes those, until the next one comes: before what must have no other threads. False: it
 * hangs. */
bool mc_log_thread_end(void);
/* Parses a level's name (any case) or number; false when it is none. */
bool mc_log_parse_level(const char *text, enum mc_log_level *level);
void mc_log_write(enum mc_log_level level, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define mc_log(level, ...)                                                                                             \
    do {                                                                                                               \
        if ((int)MC_LOG_##level >= atomic_load_explicit(&mc_log_threshold, memory_order_relaxed))                      \
            mc_log_write(MC_LOG_##level, __FILE__, __LINE__, __VA_ARGS__);                                             \
    } while (0)

/* A line that is written once in the life of the process. */
#define mc_log_once(level, ...)                                                                                        \
    do {                                                                                                               \
        static atomic_bool is_said_;                                                                                   \
        if (!atomic_exchange(&is_said_, true))                                                                         \
            mc_log(level, __VA_ARGS__);                                                                                \
    } while (0)

/* State of a line that is written at most once a second, with the count of those held back. Zeroed = ready. */
struct mc_log_limit {
    _Atomic uint64_t next_ms;
    _Atomic uint64_t held_back;
};
/* True when the line may be written now; *held_back = lines swallowed since the last one. */
bool mc_log_allowed(struct mc_log_limit *limit, uint64_t *held_back);

#define mc_log_limited(level, format, ...)                                                                             \
    do {                                                                                                               \
        static struct mc_log_limit limit_;                                                                             \
        uint64_t held_back_;                                                                                           \
        if (mc_log_allowed(&limit_, &held_back_)) {                                                                    \
            if (held_back_ > 0)                                                                                        \
                mc_log(level, format " (and %llu like it)", ##__VA_ARGS__, (unsigned long long)held_back_);            \
            else                                                                                                       \
                mc_log(level, format, ##__VA_ARGS__);                                                                  \
        }                                                                                                              \
    } while (0)

#endif
