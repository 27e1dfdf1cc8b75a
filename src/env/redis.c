/* Redis: one command, one connection. */
#include "env/redis.h"

#include "base/error.h"

#include <hiredis/read.h>
#include <stdio.h>

#define RECEIVE_BYTES 16384u

/* ---- hiredis's reader, which makes what we tell it to make ---- */

struct answer {
    int type; /* REDIS_REPLY_..., 0: none yet */
    struct mc_buffer *text;
};

/* What is made is never NULL, which would mean out of memory; parts of an array are dropped as they come. */
static void *make_text(const redisReadTask *task, char *text, size_t length)
{
    struct answer *answer = task->privdata;
    if (task->parent == NULL) {
        answer->type = task->type;
        mc_buffer_append(answer->text, text, length);
    }
    return answer;
}
static void *make_number(const redisReadTask *task, long long number)
{
    struct answer *answer = task->privdata;
    (void)number;
    if (task->parent == NULL)
        answer->type = task->type;
    return answer;
}
static void *make_nil(const redisReadTask *task) /* whose type is that of what is not there */
{
    struct answer *answer = task->privdata;
    if (task->parent == NULL)
        answer->type = REDIS_REPLY_NIL;
    return answer;
}
static void forget(void *object)
{
    (void)object; /* the answer is the caller's */
}

static int receive(int fd, redisReader *reader, struct answer *answer, uint64_t deadline_ns)
{
    char bytes[RECEIVE_BYTES];
    void *object = NULL;
    reader->privdata = answer;
    for (size_t total = 0; total <= MC_REDIS_REPLY_MAX;) {
        int64_t got = mc_socket_receive(fd, bytes, sizeof(bytes), deadline_ns, NULL);
        if (got < 0)
            return (int)got;
        total += (size_t)got;
        if (redisReaderFeed(reader, bytes, (size_t)got) != REDIS_OK || redisReaderGetReply(reader, &object) != REDIS_OK)
            return MC_ERR_PROTOCOL;
        if (object != NULL)
            return answer->type == 0 ? MC_ERR_PROTOCOL : 0;
    }
    return MC_ERR_PROTOCOL;
}

/* ---- one command ---- */

static int exchange(int fd, redisReader *reader, const struct mc_span *words, size_t count, uint64_t deadline_ns,
                    struct mc_buffer *reply)
{
    struct mc_buffer out = {0};
    struct answer answer = {0, reply};
    reply->length = 0;
    mc_buffer_printf(&out, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        mc_buffer_printf(&out, "$%zu\r\n", words[i].length);
        mc_buffer_append(&out, words[i].data, words[i].length);
        mc_buffer_append(&out, "\r\n", 2);
    }
    struct iovec part = {out.data, out.length};
    int rc = mc_socket_send(fd, &part, 1, deadline_ns);
    mc_buffer_free(&out);
    if (rc == 0)
        rc = receive(fd, reader, &answer, deadline_ns);
    if (rc < 0)
        return rc;
    return answer.type == REDIS_REPLY_ERROR ? MC_ERR_INVALID_PARAMS : answer.type == REDIS_REPLY_NIL ? 0 : 1;
}

static bool is_there(const char *text)
{
    return text != NULL && text[0] != 0;
}

/* The command goes out only when the server has taken these: it would end in another database. */
static int log_in(int fd, redisReader *reader, const struct mc_redis_login *login, uint64_t deadline_ns,
                  struct mc_buffer *reply)
{
    char number[16];
    int rc = 1;
    if (is_there(login->password)) {
        struct mc_span words[3] = {mc_span_string("AUTH")};
        size_t count = 1;
        if (is_there(login->user))
            words[count++] = mc_span_string(login->user);
        words[count++] = mc_span_string(login->password);
        rc = exchange(fd, reader, words, count, deadline_ns, reply);
    }
    if (rc == 1 && login->database != 0) {
        snprintf(number, sizeof(number), "%u", login->database);
        struct mc_span words[2] = {mc_span_string("SELECT"), mc_span_string(number)};
        rc = exchange(fd, reader, words, 2, deadline_ns, reply);
    }
    return rc == 0 ? MC_ERR_PROTOCOL : rc;
}

int mc_redis_call(const struct mc_redis_login *login, const struct mc_span *words, size_t count, uint64_t deadline_ns,
                  struct mc_buffer *reply)
{
    static redisReplyObjectFunctions functions = {
        .createString = make_text, .createInteger = make_number, .createNil = make_nil, .freeObject = forget};
    reply->length = 0;
    int fd = mc_tcp_connect(login->address, deadline_ns);
    if (fd < 0)
        return fd;
    int secured = login->tls == NULL ? 0 : mc_secure_connect_by(login->tls, fd, login->address, deadline_ns);
    if (secured < 0) {
        mc_fd_close(fd);
        return secured;
    }
    redisReader *reader = redisReaderCreateWithFunctions(&functions);
    int rc = reader == NULL ? MC_ERR_NO_MEMORY : log_in(fd, reader, login, deadline_ns, reply);
    if (rc == 1)
        rc = exchange(fd, reader, words, count, deadline_ns, reply);
    if (reader != NULL)
        redisReaderFree(reader);
    mc_fd_close(fd);
    return rc;
}
