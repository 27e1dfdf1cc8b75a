/* Text files that a user names: read whole, up to a limit. */
#ifndef MC_ENV_FILE_H
#define MC_ENV_FILE_H

#include <stddef.h>

#define MC_FILE_TEXT_MAX (1u << 20) /* bytes of a config or flag file */

/* The file's bytes (free), or NULL with the reason in error. Has the form of mc_options_read; context is not used. */
char *mc_file_read(void *context, const char *path, size_t *length, char *error, size_t error_size);
/* What the kernel says of a file that could not be opened, read or written, and what to do: "No such file or directory;
 * is the name right? ...". The same text at the next call of this thread. */
const char *mc_file_problem(int error);

#endif
