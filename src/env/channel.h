/* Connections of libevent that may have TLS (secure.h): a bufferevent over a socket, or over it one that encrypts what
 * is written and decrypts what comes. What is in its output buffer has not been taken by the socket yet, with TLS as
 * without, so who frees a connection whose buffer is empty loses nothing. All of them belong to one thread.
 *
 * Without TLS these are the calls of libevent themselves. */
#ifndef MC_ENV_CHANNEL_H
#define MC_ENV_CHANNEL_H

#include "env/tls.h"

#include <stdbool.h>

struct bufferevent;
struct event_base;
struct timeval;

/* Of a port of HTTP. fd -1: bufferevent_setfd says it later. options: those of bufferevent_socket_new; with TLS the
 * descriptor is closed with the connection in any case. NULL: no memory. */
struct bufferevent *mc_channel_accept(struct event_base *base, int fd, int options);
/* To a server at "host:port", with TLS: to be connected is the bufferevent below it (bufferevent_get_underlying). The
 * settings' texts are the caller's for as long. Freed with the connection. NULL: no memory. */
struct mc_channel;
struct bufferevent *mc_channel_call(struct event_base *base, const struct mc_tls_settings *settings,
                                    const char *address, int options, struct mc_channel **channel);
/* At its BEV_EVENT_CONNECTED: begins TLS; another follows when that is done. 0, or negative with a line in error. */
int mc_channel_begin(struct mc_channel *channel, char *error, size_t error_size);
/* It has ended: why, as far as TLS knows; "": it does not. */
const char *mc_channel_problem(struct mc_channel *channel);
/* Has the server said that nothing more comes? Has it refused who called (mc_tls_is_refused)? */
bool mc_channel_is_whole(const struct mc_channel *channel);
bool mc_channel_is_refused(const struct mc_channel *channel);
/* The end with BEV_EVENT_TIMEOUT | BEV_EVENT_WRITING when the socket takes nothing for so long. */
void mc_channel_set_stall(struct bufferevent *channel, const struct timeval *stall);
/* Nothing more will be written, and the output buffer is empty: TLS has its own word for an end in order. The socket's
 * is the caller's, as without TLS. */
void mc_channel_finish(struct bufferevent *channel);
/* Has who is at the other end shown a certificate, or is none asked for? */
bool mc_channel_is_known(struct bufferevent *channel);

#endif
