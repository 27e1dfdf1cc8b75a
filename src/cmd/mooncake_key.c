/* mooncake_key: makes, lists and revokes the keys of a file. */
#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/unread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_MAX 5

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
};
/* clang-format on */

static const char help_head[] =
    "mooncake_key: the keys of a cluster, in a file that its processes read (--auth_file, MC_AUTH_FILE).\n"
    "Usage: mooncake_key new FILE ID RIGHTS [TENANT]   adds a key, and prints it as MC_AUTH_TOKEN wants it\n"
    "       mooncake_key list FILE                     the keys, without their secrets\n"
    "       mooncake_key token FILE ID                 prints one as MC_AUTH_TOKEN wants it\n"
    "       mooncake_key revoke FILE ID                takes one out\n"
    "RIGHTS: some of read,write,node,admin. node: lends memory to the pool. admin: drains, mounts over HTTP.\n"
    "        Or master alone: by it masters know each other's terms. It lies in their files only, nobody shows it.\n"
    "Who has the file open sees a change within a second.\n"
    "Exit code: 0; 1 when the file cannot be read or written, or has a bad line; 2 for a bad option, or no such key.\n";

static int file_failed(const char *path, const char *why)
{
    fprintf(stderr, "mooncake_key: %s: %s\n", path, why);
    return 1;
}

/* One process at a time changes the keys of a folder. Until the process ends; a file system without locks has none. */
static void folder_lock(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash == NULL ? "." : path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)flock(fd, LOCK_EX);
}

/* A new file takes the place of the old one, so its folder is what counts. */
static const char *not_written(int error)
{
    static char text[300];
    snprintf(text, sizeof(text), "cannot be written in that folder: %s", mc_file_problem(error));
    return text;
}

/* Whole or not at all: to a file beside it, which then takes its name. */
static int replace(const char *path, const struct mc_buffer *text)
{
    char beside[PATH_MAX];
    struct stat before;
    bool was_there = stat(path, &before) == 0;
    if (snprintf(beside, sizeof(beside), "%s.%ld", path, (long)getpid()) >= (int)sizeof(beside))
        return file_failed(path, "the name is too long: choose a shorter one");
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return file_failed(path, not_written(errno));
    bool is_done = !was_there || fchown(fd, before.st_uid, before.st_gid) == 0;
    is_done = is_done && (!was_there || fchmod(fd, before.st_mode & 0777) == 0);
    for (size_t at = 0; is_done && at < text->length;) {
        ssize_t written = write(fd, text->data + at, text->length - at);
        is_done = written > 0;
        at += written > 0 ? (size_t)written : 0;
    }
    is_done = is_done && fsync(fd) == 0;
    is_done = close(fd) == 0 && is_done && rename(beside, path) == 0;
    int reason = errno;
    if (is_done)
        return 0;
    (void)unlink(beside);
    return file_failed(path, not_written(reason));
}

static void print_token(const struct mc_key *key)
{
    printf("%s:", key->id);
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES; i++)
        printf("%02x", key->secret[i]);
    printf("\n");
}

struct key_file {
    const char *path;
    char *text;
    size_t length;
    struct mc_key *list;
    int count;
};

/* 0, or the exit code. may_miss: a file that is not there has no keys. */
static int keys_load(struct key_file *keys, bool may_miss)
{
    char error[512];
    if (may_miss && access(keys->path, F_OK) != 0)
        return 0;
    keys->text = mc_file_read(NULL, keys->path, &keys->length, error, sizeof(error));
    if (keys->text == NULL)
        return file_failed(keys->path, error);
    bool is_blank = strspn(keys->text, " \t\r\n") == keys->length;
    keys->count = is_blank ? 0 : mc_keys_parse(keys->text, keys->length, &keys->list, error, sizeof(error));
    if (keys->count >= 0 || may_miss)
        return 0;
    size_t used = strlen(error);
    snprintf(error + used, sizeof(error) - used,
             "; a line is ID SECRET RIGHTS [TENANT], as mooncake_key new writes it");
    return file_failed(keys->path, error);
}

static const struct mc_key *key_find(const struct key_file *keys, const char *id)
{
    for (int i = 0; i < keys->count; i++)
        if (strcmp(keys->list[i].id, id) == 0)
            return &keys->list[i];
    return NULL;
}

static int key_new(struct key_file *keys, const char *const *words, int count)
{
    struct mc_buffer text = {0};
    char error[512];
    if (key_find(keys, words[0]) != NULL) {
        fprintf(stderr, "mooncake_key: %s has a key %s already; revoke that first, or take another id\n", keys->path,
                words[0]);
        return 2;
    }
    mc_buffer_append(&text, keys->text, keys->length);
    if (text.length > 0 && text.data[text.length - 1] != '\n')
        mc_buffer_put_u8(&text, '\n');
    size_t line = text.length;
    mc_buffer_printf(&text, "%s ", words[0]);
    for (size_t i = 0; i < MC_KEY_SECRET_BYTES / sizeof(uint64_t); i++)
        mc_buffer_printf(&text, "%016llx", (unsigned long long)mc_random_u64());
    mc_buffer_printf(&text, " %s%s%s\n", words[1], count > 2 ? " " : "", count > 2 ? words[2] : "");
    struct mc_key *made = NULL;
    int code = 2;
    if (mc_keys_parse((const char *)text.data + line, text.length - line, &made, error, sizeof(error)) < 0)
        fprintf(stderr, "mooncake_key: %s\n", strchr(error, ':') == NULL ? error : strchr(error, ':') + 2);
    else
        code = replace(keys->path, &text);
    if (code == 0 && made[0].rights != MC_RIGHT_MASTER)
        print_token(&made[0]);
    free(made);
    mc_buffer_free(&text);
    return code;
}

static int no_such(const struct key_file *keys, const char *id)
{
    fprintf(stderr, "mooncake_key: %s has no key %s; mooncake_key list tells which it has\n", keys->path, id);
    return 2;
}

static int key_revoke(struct key_file *keys, const char *id)
{
    struct mc_buffer text = {0};
    size_t id_length = strlen(id);
    if (key_find(keys, id) == NULL)
        return no_such(keys, id);
    int shown = 0; /* others than it, which somebody can show */
    for (int i = 0; i < keys->count; i++)
        shown += keys->list[i].rights != MC_RIGHT_MASTER && strcmp(keys->list[i].id, id) != 0;
    if (shown == 0) {
        fprintf(stderr,
                "mooncake_key: %s is the last key of %s, and a file without keys lets nobody in: make another "
                "one first\n",
                id, keys->path);
        return 2;
    }
    for (const char *at = keys->text, *end = keys->text + keys->length; at < end;) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        next = next == NULL ? end : next + 1;
        const char *word = at + strspn(at, " \t");
        bool is_it = (size_t)(next - word) > id_length && memcmp(word, id, id_length) == 0 &&
                     (word[id_length] == ' ' || word[id_length] == '\t');
        if (!is_it)
            mc_buffer_append(&text, at, (size_t)(next - at));
        at = next;
    }
    int code = replace(keys->path, &text);
    mc_buffer_free(&text);
    return code;
}

static int key_list(const struct key_file *keys)
{
    char rights[32];
    for (int i = 0; i < keys->count; i++) {
        mc_rights_format(rights, sizeof(rights), keys->list[i].rights);
        printf("%s %s%s%s\n", keys->list[i].id, rights, keys->list[i].tenant[0] != 0 ? " " : "", keys->list[i].tenant);
    }
    return 0;
}

static int work(const char *const *words, int count)
{
    bool is_new = count >= 4 && strcmp(words[0], "new") == 0, is_list = count == 2 && strcmp(words[0], "list") == 0;
    bool is_token = count == 3 && strcmp(words[0], "token") == 0;
    bool is_revoke = count == 3 && strcmp(words[0], "revoke") == 0;
    if (!is_new && !is_list && !is_token && !is_revoke) {
        fprintf(stderr, "mooncake_key: new FILE ID RIGHTS [TENANT], list FILE, token FILE ID or revoke FILE ID; --help "
                        "says more\n");
        return 2;
    }
    char real[PATH_MAX]; /* a link stays one */
    struct key_file keys = {.path = realpath(words[1], real) != NULL ? real : words[1]};
    if (is_new || is_revoke)
        folder_lock(keys.path);
    int code = keys_load(&keys, is_new);
    if (code == 0 && keys.count < 0) /* only of new: a file that is not one of keys is not added to */
        code = file_failed(words[1], "this is no file of keys, and is left as it is: name another one");
    if (code == 0 && is_new)
        code = key_new(&keys, words + 2, count - 2);
    else if (code == 0 && is_list)
        code = key_list(&keys);
    else if (code == 0 && is_revoke)
        code = key_revoke(&keys, words[2]);
    else if (code == 0) {
        const struct mc_key *key = key_find(&keys, words[2]);
        code = key == NULL ? no_such(&keys, words[2]) : 0;
        if (key != NULL && key->rights == MC_RIGHT_MASTER) {
            fprintf(stderr, "mooncake_key: %s is of right master: nobody shows it, masters read it in their file\n",
                    key->id);
            code = 2;
        } else if (key != NULL)
            print_token(key);
    }
    free(keys.text);
    free(keys.list);
    return code;
}

/* Takes the words that are no flags out of argv. How many there were. */
static int words_take(int *argc, char **argv, const char *words[WORDS_MAX])
{
    int count = 0, kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (argv[i][0] == '-')
            argv[kept++] = argv[i];
        else if (count++ < WORDS_MAX)
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
    const char *words[WORDS_MAX] = {"", "", "", "", ""};
    int code = 2;
    (void)signal(SIGPIPE, SIG_IGN);
    if (mc_variable(MC_LOG_LEVEL) == NULL)
        mc_log_set_level(MC_LOG_WARNING);
    int count = words_take(&argc, argv, words);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake_key: %s\n", error);
    } else if (mc_options_answer(&options, "mooncake_key", help_head, &text)) {
        (void)fwrite(text.data, 1, text.length, stdout); /* fflush says whether it was written */
        code = 0;
    } else {
        mc_unread_tell();
        code = work(words, count > WORDS_MAX ? 0 : count);
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
