/* Plain blocking TCP over loopback. */
#include "tool/plain.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

/* The descriptor when all went well; else it is closed. */
static int kept(int fd, bool good)
{
    if (good || fd < 0)
        return fd;
    close(fd);
    return -1;
}

static int without_delay(int fd)
{
    int one = 1;
    return kept(fd, setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
}

int mc_plain_listen(uint16_t *port)
{
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool good = bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 4) == 0 &&
                getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    *port = ntohs(address.sin_port);
    return kept(fd, good);
}

int mc_plain_accept(int listener)
{
    return without_delay(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
}

int mc_plain_connect(uint16_t port)
{
    struct sockaddr_in address = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return without_delay(kept(fd, connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0));
}

bool mc_plain_send(int fd, const void *data, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        ssize_t count = send(fd, (const uint8_t *)data + at, size - at, MSG_NOSIGNAL);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return false;
        at += count > 0 ? (uint64_t)count : 0;
    }
    return true;
}

bool mc_plain_receive(int fd, void *data, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        ssize_t count = recv(fd, (uint8_t *)data + at, size - at, 0);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return false;
        at += count > 0 ? (uint64_t)count : 0;
    }
    return true;
}
