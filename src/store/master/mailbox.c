/* Questions from threads of HTTP requests to the core's thread. */
#include "store/master/mailbox.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A question, on its asker's stack. */
struct mail {
    mc_question *function;
    void *argument;
    enum mail_state { STATE_POSTED, STATE_RUNNING, STATE_DONE, STATE_REFUSED } state;
    pthread_cond_t changed;
    struct mail *next;
};

struct mc_mailbox {
    pthread_mutex_t mutex;      /* everything below */
    struct mail *first, **last; /* that wait, the one that was asked first before others */
    bool is_closed;
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
    pthread_mutex_init(&mailbox->mutex, NULL);
    mailbox->last = &mailbox->first;
    return mailbox;
}

void mc_mailbox_destroy(struct mc_mailbox *mailbox)
{
    if (mailbox == NULL)
        return;
    pthread_mutex_destroy(&mailbox->mutex);
    close(mailbox->fd);
    free(mailbox);
}

int mc_mailbox_fd(const struct mc_mailbox *mailbox)
{
    return mailbox->fd;
}

/* With the mutex. NULL: nobody waits. */
static struct mail *take_first(struct mc_mailbox *mailbox)
{
    struct mail *mail = mailbox->first;
    if (mail == NULL)
        return NULL;
    mailbox->first = mail->next;
    if (mailbox->first == NULL)
        mailbox->last = &mailbox->first;
    return mail;
}

/* With the mutex. Its asker waits no longer. */
static void take_back(struct mc_mailbox *mailbox, const struct mail *mail)
{
    struct mail **link = &mailbox->first;
    while (*link != mail)
        link = &(*link)->next;
    *link = mail->next;
    if (*link == NULL)
        mailbox->last = link;
}

/* With the mutex. */
static void ring(const struct mc_mailbox *mailbox)
{
    /* The counter cannot overflow: it is reset by every serve, and there are not so many askers. */
    uint64_t one = 1;
    mc_assert(write(mailbox->fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
}

/* With the mutex. */
static void post(struct mc_mailbox *mailbox, struct mail *mail, bool goes_first)
{
    struct mail **link = goes_first ? &mailbox->first : mailbox->last;
    mail->next = *link;
    *link = mail;
    if (mail->next == NULL)
        mailbox->last = &mail->next;
    ring(mailbox);
}

static int ask(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms, bool goes_first)
{
    struct mail mail = {.function = function, .argument = argument, .state = STATE_POSTED};
    uint64_t deadline_ns = mc_clock_ns() + timeout_ms * 1000000;
    int waited = 0;
    mc_condition_init(&mail.changed);
    pthread_mutex_lock(&mailbox->mutex);
    if (mailbox->is_closed)
        mail.state = STATE_REFUSED;
    else
        post(mailbox, &mail, goes_first);
    while (mail.state == STATE_POSTED && waited != ETIMEDOUT)
        waited = mc_monitor_wait(&mailbox->mutex, &mail.changed, deadline_ns);
    if (mail.state == STATE_POSTED)
        take_back(mailbox, &mail);
    /* Once begun it ends soon, and its argument must stay until then. */
    while (mail.state == STATE_RUNNING)
        pthread_cond_wait(&mail.changed, &mailbox->mutex);
    pthread_mutex_unlock(&mailbox->mutex);
    pthread_cond_destroy(&mail.changed);
    return mail.state == STATE_DONE      ? 0
           : mail.state == STATE_REFUSED ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
                                         : MC_ERR_RPC_TIMEOUT;
}

int mc_mailbox_ask(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms)
{
    return ask(mailbox, function, argument, timeout_ms, false);
}

int mc_mailbox_ask_first(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms)
{
    return ask(mailbox, function, argument, timeout_ms, true);
}

size_t mc_mailbox_waiting(struct mc_mailbox *mailbox)
{
    size_t count = 0;
    pthread_mutex_lock(&mailbox->mutex);
    for (const struct mail *mail = mailbox->first; mail != NULL; mail = mail->next)
        count++;
    pthread_mutex_unlock(&mailbox->mutex);
    return count;
}

/* With the mutex. Those that wait are refused. */
static void refuse_all(struct mc_mailbox *mailbox)
{
    struct mail *mail;
    while ((mail = take_first(mailbox)) != NULL) {
        mail->state = STATE_REFUSED;
        pthread_cond_signal(&mail->changed);
    }
}

void mc_mailbox_serve(struct mc_mailbox *mailbox, struct mc_core *core)
{
    uint64_t count;
    if (read(mailbox->fd, &count, sizeof(count)) < 0)
        return; /* nothing was posted */
    pthread_mutex_lock(&mailbox->mutex);
    struct mail *mail = take_first(mailbox);
    if (mail != NULL) {
        mail->state = STATE_RUNNING;
        pthread_mutex_unlock(&mailbox->mutex);
        mail->function(core, mail->argument);
        pthread_mutex_lock(&mailbox->mutex);
        mail->state = STATE_DONE;
        pthread_cond_signal(&mail->changed);
    }
    if (mailbox->first != NULL) /* another turn's: connections have theirs between two */
        ring(mailbox);
    pthread_mutex_unlock(&mailbox->mutex);
}

void mc_mailbox_refuse(struct mc_mailbox *mailbox)
{
    uint64_t count;
    if (read(mailbox->fd, &count, sizeof(count)) < 0)
        return; /* nothing was posted */
    pthread_mutex_lock(&mailbox->mutex);
    refuse_all(mailbox);
    pthread_mutex_unlock(&mailbox->mutex);
}

void mc_mailbox_close(struct mc_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->mutex);
    mailbox->is_closed = true;
    refuse_all(mailbox);
    pthread_mutex_unlock(&mailbox->mutex);
}
