/* mooncake_disk: parse, look, print. */
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/log.h"
#include "env/unread.h"
#include "store/disk/offline.h"

#include <signal.h>
#include <stdlib.h>

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
    ROW("json", BOOL, "false", "the same as JSON, one element of a list for each disk"),
};
/* clang-format on */

static const char help_head[] =
    "mooncake_disk: looks at what a store node keeps on a disk. It only reads.\n"
    "Usage: mooncake_disk check|list|stat PATH [--json]\n"
    "  check  reads every object and compares every block with its checksum; refuses a disk that is in use\n"
    "  list   every object that would be found at the next start\n"
    "  stat   regions, and how much lives in them\n"
    "PATH: a directory mooncake-c.<n>, or the one that holds such.\n"
    "Exit code: 0; 1 when something is not whole; 2 for a bad option, or no disk that can be read; 3 in use.\n";

static const char *const works[] = {"stat", "list", "check"}; /* in the order of enum mc_disk_look_kind */

static int work_find(const char *word)
{
    for (int i = 0; i < (int)(sizeof(works) / sizeof(works[0])); i++) {
        if (strcmp(word, works[i]) == 0)
            return i;
    }
    return -1;
}

/* Takes the words that are no flags out of argv: at most two. How many there were. */
static int words_take(int *argc, char **argv, const char *words[2])
{
    int count = 0, kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-')
            argv[kept++] = argv[i];
        else if (count++ < 2)
            words[count - 1] = argv[i];
    }
    *argc = kept;
    return count;
}

int main(int argc, char **argv)
{
    struct mc_options options;
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    const char *words[2] = {"", ""};
    int code = MC_DISK_LOOK_NO_DISK;
    (void)signal(SIGPIPE, SIG_IGN);
    if (mc_variable(MC_LOG_LEVEL) == NULL)
        mc_log_set_level(MC_LOG_WARNING);
    int count = words_take(&argc, argv, words), kind = work_find(words[0]);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake_disk: %s\n", error);
    } else if (mc_options_answer(&options, "mooncake_disk", help_head, &text)) {
        (void)fwrite(text.data, 1, text.length, stdout); /* fflush says whether it was written */
        code = 0;
    } else if (count != 2 || kind < 0) {
        fprintf(stderr, "mooncake_disk: check, list or stat, and one path; --help says more\n");
    } else {
        mc_unread_tell();
        code = (int)mc_disk_look(words[1], (enum mc_disk_look_kind)kind, mc_options_bool(&options, "json"), stdout);
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
