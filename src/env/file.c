/* Reading text files. */
#include "env/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *hint_of(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return "is the name right? One without / at its beginning counts from the folder that this was started in";
    case EACCES:
    case EPERM:
        return "run this as its owner, or let this user have it (chown, chmod), and the folders above it";
    case EISDIR:
        return "a file is wanted: name one in it";
    case ENOSPC:
    case EDQUOT:
        return "make room there (df), or choose another folder";
    case EROFS:
        return "choose a folder that can be written to";
    case EEXIST:
        return "move what is there away";
    default:
        return "the kernel may say more (dmesg)";
    }
}

const char *mc_file_problem(int error)
{
    static _Thread_local char text[256];
    snprintf(text, sizeof(text), "%s; %s", strerror(error), hint_of(error));
    return text;
}

char *mc_file_read(void *context, const char *path, size_t *length, char *error, size_t error_size)
{
    (void)context;
    FILE *file = fopen(path, "rbe");
    char *text = malloc(MC_FILE_TEXT_MAX + 1);
    if (file == NULL || text == NULL) {
        snprintf(error, error_size, "cannot be opened: %s", mc_file_problem(errno));
        goto fail;
    }
    *length = fread(text, 1, MC_FILE_TEXT_MAX + 1, file);
    if (ferror(file) != 0) {
        snprintf(error, error_size, "cannot be read: %s", mc_file_problem(errno));
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
