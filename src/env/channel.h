/* Connections of libevent that may have TLS (secure.h): a bufferevent over a socket, or over it one that encrypts what
 * is written and decrypts what comes. What is in its output buffer has not been taken by the socket yet, with TLS as
 * without, so who frees a connection whose buffer is empty loses nothing. All of them belong to one thread.
 *
 * Without TLS these are the calls of libevent themselves. */
#ifndef MC_ENV_CHANNEL_H
#define MC_ENV_CHANNEL_H

#include <stdbool.h>

struct bufferevent;
struct event_base;
struct timeval;

/* Of a port of HTTP. fd -1: bufferevent_setfd says it later. options: those of bufferevent_socket_new; with TLS the
 * descriptor is closed with the connection in any case. NULL: no memory. */
struct bufferevent *mc_channel_accept(struct event_base *base, int fd, int options);
/* The end with BEV_EVENT_TIMEOUT | BEV_EVENT_WRITING when the socket takes nothing for so long. */
void mc_channel_set_stall(struct bufferevent *channel, const struct timeval *stall);
/* Nothing more will be written, and the output buffer is empty: TLS has its own word for an end in order. The socket's
 * is the caller's, as without TLS. */
void mc_channel_finish(struct bufferevent *channel);
/* Has who is at the other end shown a certificate, or is none asked for? */
bool mc_channel_is_known(struct bufferevent *channel);

#endif
