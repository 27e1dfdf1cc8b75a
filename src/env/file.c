/* Reading text files. */
#include "env/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *mc_file_read(void *context, const char *path, size_t *length, char *error, size_t error_size)
{
    (void)context;
    FILE *file = fopen(path, "rbe");
    char *text = malloc(MC_FILE_TEXT_MAX + 1);
    if (file == NULL || text == NULL) {
        snprintf(error, error_size, "cannot be opened: %s", strerror(errno));
        goto fail;
    }
    *length = fread(text, 1, MC_FILE_TEXT_MAX + 1, file);
    if (ferror(file) != 0) {
        snprintf(error, error_size, "cannot be read: %s", strerror(errno));
        goto fail;
    }
    if (*length > MC_FILE_TEXT_MAX) {
        snprintf(error, error_size, "longer than %u bytes", MC_FILE_TEXT_MAX);
        goto fail;
    }
    (void)fclose(file); /* it was only read */
    return text;
fail:
    free(text);
    if (file != NULL)
        (void)fclose(file);
    return NULL;
}
