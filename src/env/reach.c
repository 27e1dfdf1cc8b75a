/* Whether a file system answers: see the header. */
#include "env/reach.h"

#include "base/error.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct touch { /* guarded by the lock, but for the path; given back by who asked, or by its thread if that left it */
    struct touch *next;
    bool is_done, is_left;
    char path[];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct touch *touches;
} reach;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In a forked child: the threads are not there, and who held the lock is not either. */
static void on_forked(void)
{
    mc_monitor_init(&reach.lock, &reach.changed);
    reach.touches = NULL;
}

static void reach_init(void)
{
    mc_monitor_init(&reach.lock, &reach.changed);
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

/* Cuts the last name off. False: there is none. */
static bool parent_of(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = 0;
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash[1] == 0)
        return false;
    slash[slash == path] = 0;
    return true;
}

/* What is known of a directory already is no answer: its room, and its names, are asked for anew. */
static void touch_make(const char *path)
{
    struct stat status;
    struct statvfs room;
    char *parent = NULL;
    bool is_there = stat(path, &status) == 0;
    if (!is_there && errno == ENOENT && (parent = strdup(path)) != NULL && parent_of(parent)) {
        path = parent;
        is_there = stat(path, &status) == 0;
    }
    if (is_there)
        (void)statvfs(path, &room);
    int fd = is_there ? open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd >= 0)
        close(fd);
    free(parent);
}

static void *touch_run(void *argument)
{
    struct touch *touch = argument, **at = &reach.touches;
    touch_make(touch->path);
    pthread_mutex_lock(&reach.lock);
    while (*at != touch)
        at = &(*at)->next;
    *at = touch->next;
    touch->is_done = true;
    pthread_cond_broadcast(&reach.changed);
    if (touch->is_left)
        free(touch);
    pthread_mutex_unlock(&reach.lock);
    return NULL;
}

/* Locked. */
static bool are_too_many_left(const char *path)
{
    unsigned left = 0, left_there = 0;
    for (const struct touch *touch = reach.touches; touch != NULL; touch = touch->next) {
        left += touch->is_left;
        left_there += touch->is_left && strcmp(touch->path, path) == 0;
    }
    return left >= MC_REACH_LEFT_MAX || left_there >= MC_REACH_AGAIN_MAX;
}

/* Locked. NULL: it is not asked. */
static struct touch *touch_begin(const char *path)
{
    size_t size = strlen(path) + 1;
    struct touch *touch = calloc(1, sizeof(*touch) + size);
    if (touch == NULL)
        return NULL;
    memcpy(touch->path, path, size);
    if (mc_thread_start(NULL, "mc-reach", touch_run, touch) != 0) {
        free(touch);
        return NULL;
    }
    touch->next = reach.touches;
    reach.touches = touch;
    return touch;
}

/* Locked. */
static bool are_done(struct touch *const *touches, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (touches[i] != NULL && !touches[i]->is_done)
            return false;
    return true;
}

void mc_path_answers_each(const char *const *paths, size_t count, uint64_t until_ns, bool *answers)
{
    struct touch *touches[MC_REACH_PATHS_MAX] = {NULL};
    mc_assert(count <= MC_REACH_PATHS_MAX);
    pthread_once(&once, reach_init);
    pthread_mutex_lock(&reach.lock);
    for (size_t i = 0; i < count; i++) {
        answers[i] = !are_too_many_left(paths[i]);
        if (answers[i] && paths[i][0] != 0)
            touches[i] = touch_begin(paths[i]);
    }
    while (!are_done(touches, count) && mc_monitor_wait(&reach.lock, &reach.changed, until_ns) == 0)
        ;
    for (size_t i = 0; i < count; i++) {
        if (touches[i] == NULL)
            continue;
        answers[i] = touches[i]->is_done;
        touches[i]->is_left = !answers[i];
        if (answers[i])
            free(touches[i]);
    }
    pthread_mutex_unlock(&reach.lock);
}

bool mc_path_answers(const char *path, uint64_t until_ns)
{
    bool answers;
    mc_path_answers_each(&path, 1, until_ns, &answers);
    return answers;
}
