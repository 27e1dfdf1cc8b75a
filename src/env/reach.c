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

struct touch { /* whose last holder gives it back */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned held;
    bool is_done;
    char path[];
};

/* With the lock, which it gives back. */
static void touch_release(struct touch *touch)
{
    bool is_last = --touch->held == 0;
    pthread_mutex_unlock(&touch->lock);
    if (!is_last)
        return;
    mc_monitor_destroy(&touch->lock, &touch->changed);
    free(touch);
}

/* Cuts the last name off. False: there is none. */
static bool parent_of(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash[1] == 0)
        return false;
    slash[slash == path] = 0;
    return true;
}

/* What is known of a directory already is no answer: its room, and its names, are asked for anew. */
static void *touch_run(void *argument)
{
    struct touch *touch = argument;
    struct stat status;
    struct statvfs room;
    bool is_there = stat(touch->path, &status) == 0;
    if (!is_there && errno == ENOENT && parent_of(touch->path))
        is_there = stat(touch->path, &status) == 0;
    if (is_there)
        (void)statvfs(touch->path, &room);
    int fd = is_there ? open(touch->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd >= 0)
        close(fd);
    pthread_mutex_lock(&touch->lock);
    touch->is_done = true;
    pthread_cond_signal(&touch->changed);
    touch_release(touch);
    return NULL;
}

bool mc_path_answers(const char *path, uint64_t until_ns)
{
    size_t size = strlen(path) + 1;
    struct touch *touch = calloc(1, sizeof(*touch) + size);
    if (touch == NULL)
        return true;
    memcpy(touch->path, path, size);
    mc_monitor_init(&touch->lock, &touch->changed);
    touch->held = 2;
    if (mc_thread_start(NULL, "mc-reach", touch_run, touch) != 0) {
        mc_monitor_destroy(&touch->lock, &touch->changed);
        free(touch);
        return true;
    }
    pthread_mutex_lock(&touch->lock);
    while (!touch->is_done && mc_monitor_wait(&touch->lock, &touch->changed, until_ns) == 0)
        ;
    bool is_done = touch->is_done;
    touch_release(touch);
    return is_done;
}
