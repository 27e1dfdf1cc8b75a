/* Lines on their way to regular files. Their file system may stop answering (a dead server, a stuck daemon), which no
 * poll foretells: so the thread mc-log writes them, out of a ring of fixed size, and whoever has a line waits for it a
 * moment at most: 5 ms, and not at all while the thread is behind. So a line is in its file when its caller goes on, as
 * if he had written it himself, unless the file is slow. */
#ifndef MC_ENV_LOG_QUEUE_H
#define MC_ENV_LOG_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_LOG_LINE_MAX 2048u /* bytes */
#define MC_LOG_QUEUE_BYTES (256u << 10)

enum mc_log_target { MC_LOG_TO_LINES, MC_LOG_TO_FILE, MC_LOG_TO_STDERR, MC_LOG_TARGETS };

enum mc_log_put { MC_LOG_PUT, MC_LOG_FULL, MC_LOG_NO_THREAD }; /* no thread: none can be started */

/* Lines come to `write` in the order in which they were put, on the thread, which the first one starts. */
typedef void mc_log_queue_write(enum mc_log_target target, const char *text, size_t length);
enum mc_log_put mc_log_queue_put(enum mc_log_target target, const char *text, size_t length, mc_log_queue_write *write);
/* Waits until what was put before is written, for at most so long; false: it is not. */
bool mc_log_queue_flush(uint32_t ms);
/* That, and the thread has ended; the next line starts another. */
bool mc_log_queue_end(uint32_t ms);

#endif
