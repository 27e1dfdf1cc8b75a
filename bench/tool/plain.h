/* Plain blocking TCP over loopback, for the loops that the product is held against. */
#ifndef MC_TOOL_PLAIN_H
#define MC_TOOL_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

/* Descriptors, or -1 with errno. The kernel chooses the port. Connections of both ends send at once (TCP_NODELAY). */
int mc_plain_listen(uint16_t *port);
int mc_plain_accept(int listener);
int mc_plain_connect(uint16_t port);

/* All of it, or false. */
bool mc_plain_send(int fd, const void *data, uint64_t size);
bool mc_plain_receive(int fd, void *data, uint64_t size);

#endif
