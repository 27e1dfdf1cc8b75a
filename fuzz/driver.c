/* Runs a fuzz target over stored inputs without a fuzzer: arguments are files, or folders whose files are all run.
 * An input that breaks the target ends the process, so the last name printed is the guilty one. No input at all is an
 * error: a replay that replays nothing proves nothing. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_SIZE_MAX (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    /* Exactly as large as the input: a read one byte beyond it is then seen by ASan. */
    uint8_t *data = malloc(size == 0 ? 1 : size);
    int rc = data != NULL && fread(data, 1, size, file) == size ? 1 : -1;
    if (rc == 1) {
        printf("%s\n", path);
        fflush(stdout);
        (void)LLVMFuzzerTestOneInput(data, size);
    } else {
        fprintf(stderr, "%s: cannot be read\n", path);
    }
    free(data);
    (void)fclose(file);
    return rc;
}

/* Returns how many inputs were run, or -1. */
static int run(const char *path, int depth)
{
    struct stat status;
    if (stat(path, &status) != 0 || status.st_size > INPUT_SIZE_MAX) {
        fprintf(stderr, "%s: not there, or too large\n", path);
        return -1;
    }
    if (!S_ISDIR(status.st_mode))
        return run_file(path, (size_t)status.st_size);
    DIR *folder = depth > 0 ? opendir(path) : NULL;
    if (folder == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        return -1;
    }
    int total = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        int length = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        int count = length > 0 && (size_t)length < sizeof(name) ? run(name, depth - 1) : -1;
        if (count < 0) {
            total = -1;
            break;
        }
        total += count;
    }
    (void)closedir(folder);
    return total;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int count = run(argv[i], 2);
        if (count < 0)
            return 1;
        total += count;
    }
    if (total == 0) {
        fprintf(stderr, "no input was run\n");
        return 1;
    }
    printf("%d inputs\n", total);
    return 0;
}
