/* One question at a time from the HTTP thread to the core's thread. */
#include "store/master/mailbox.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum mail_state { STATE_EMPTY, STATE_POSTED, STATE_RUNNING, STATE_DONE, STATE_REFUSED };

struct mc_mailbox {
    pthread_mutex_t mutex; /* everything below */
    pthread_cond_t changed;
    enum mail_state state;
    bool is_closed;
    mc_question *function;
    void *argument;
    int fd; /* constant */
};

struct mc_mailbox *mc_mailbox_create(void)
{
    struct mc_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    if (mailbox == NULL)
        return NULL;
    mailbox->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (mailbox->fd < 0) {
        free(mailbox);
        return NULL;
    }
    mc_monitor_init(&mailbox->mutex, &mailbox->changed);
    return mailbox;
}

void mc_mailbox_destroy(struct mc_mailbox *mailbox)
{
    if (mailbox == NULL)
        return;
    mc_monitor_destroy(&mailbox->mutex, &mailbox->changed);
    close(mailbox->fd);
    free(mailbox);
}

int mc_mailbox_fd(const struct mc_mailbox *mailbox)
{
    return mailbox->fd;
}

int mc_mailbox_ask(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms)
{
    uint64_t deadline_ns = mc_clock_ns() + timeout_ms * 1000000, one = 1;
    int rc = 0, waited = 0;
    pthread_mutex_lock(&mailbox->mutex);
    mc_assert(mailbox->state == STATE_EMPTY);
    if (!mailbox->is_closed) {
        mailbox->function = function;
        mailbox->argument = argument;
        mailbox->state = STATE_POSTED;
        /* The counter cannot overflow: it is reset by every serve and grows by one a question. */
        mc_assert(write(mailbox->fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
    }
    while (mailbox->state == STATE_POSTED && !mailbox->is_closed && waited != ETIMEDOUT)
        waited = mc_monitor_wait(&mailbox->mutex, &mailbox->changed, deadline_ns);
    /* Once begun it ends soon, and its argument must stay until then. */
    while (mailbox->state == STATE_RUNNING)
        pthread_cond_wait(&mailbox->changed, &mailbox->mutex);
    if (mailbox->state != STATE_DONE)
        rc = mailbox->is_closed || mailbox->state == STATE_REFUSED ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
                                                                   : MC_ERR_RPC_TIMEOUT;
    mailbox->state = STATE_EMPTY;
    pthread_mutex_unlock(&mailbox->mutex);
    return rc;
}

void mc_mailbox_serve(struct mc_mailbox *mailbox, struct mc_core *core)
{
    uint64_t count;
    if (read(mailbox->fd, &count, sizeof(count)) < 0)
        return; /* nothing was posted */
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->state == STATE_POSTED) {
        mailbox->state = STATE_RUNNING;
        pthread_mutex_unlock(&mailbox->mutex);
        mailbox->function(core, mailbox->argument);
        pthread_mutex_lock(&mailbox->mutex);
        mailbox->state = STATE_DONE;
        pthread_cond_signal(&mailbox->changed);
    }
    pthread_mutex_unlock(&mailbox->mutex);
}

void mc_mailbox_refuse(struct mc_mailbox *mailbox)
{
    uint64_t count;
    if (read(mailbox->fd, &count, sizeof(count)) < 0)
        return; /* nothing was posted */
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->state == STATE_POSTED) {
        mailbox->state = STATE_REFUSED;
        pthread_cond_signal(&mailbox->changed);
    }
    pthread_mutex_unlock(&mailbox->mutex);
}

void mc_mailbox_close(struct mc_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->mutex);
    mailbox->is_closed = true;
    pthread_cond_signal(&mailbox->changed);
    pthread_mutex_unlock(&mailbox->mutex);
}
