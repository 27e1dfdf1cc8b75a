/* What the environment says, and the machine's own addresses and ports. */
#include "transfer/state/settings.h"
#include "transfer/wire/handshake.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define PORT_FIRST 15000
#define PORT_LAST 17000
#define PORT_TRIES 500
#define HANDSHAKE_PORT 12001
#define CHECKSUM_EVERY 100

uint64_t mc_settings_number(enum mc_variable variable, uint64_t initial, uint64_t least, uint64_t most)
{
    const char *text = mc_variable_value(variable);
    char *rest;
    if (text == NULL || text[0] == 0)
        return initial;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (text[0] >= '0' && text[0] <= '9' && *rest == 0 && errno == 0 && value >= least && value <= most)
        return value;
    mc_log(WARNING, "%s=%.40s: a number from %llu to %llu is expected; %llu is used", mc_variable_name(variable), text,
           (unsigned long long)least, (unsigned long long)most, (unsigned long long)initial);
    return initial;
}

static bool is_off(enum mc_variable variable)
{
    const char *text = mc_variable_value(variable);
    return text != NULL && (strcmp(text, "0") == 0 || strcasecmp(text, "false") == 0 || strcasecmp(text, "no") == 0 ||
                            strcasecmp(text, "off") == 0);
}

static bool is_ptrace(enum mc_variable variable)
{
    const char *text = mc_variable_value(variable);
    return text != NULL && strcasecmp(text, "ptrace") == 0;
}

/* One transfer in how many is checked. */
static uint32_t checksum_every(void)
{
    static const char *const on_words[] = {"on", "1", "true", "yes"};
    const char *text = mc_variable(MC_TE_CHECKSUM);
    if (text == NULL || text[0] == 0 || is_off(MC_VARIABLE_MC_TE_CHECKSUM))
        return 0;
    if (strcasecmp(text, "sampled") == 0)
        return (uint32_t)mc_settings_number(MC_VARIABLE_MC_TE_CHECKSUM_EVERY, CHECKSUM_EVERY, 1, 1000000);
    for (size_t i = 0; i < sizeof(on_words) / sizeof(on_words[0]); i++)
        if (strcasecmp(text, on_words[i]) == 0)
            return 1;
    mc_log(WARNING, "MC_TE_CHECKSUM=%.40s: off, sampled or on is expected; off is used", text);
    return 0;
}

void mc_settings_read(struct mc_settings *settings)
{
    uint64_t seconds = mc_settings_number(MC_VARIABLE_MC_TRANSFER_TIMEOUT, 30, 0, 1000000);
    const char *bind_address = mc_variable(MC_TCP_BIND_ADDRESS);
    *settings = (struct mc_settings){
        .timeout_ns = (seconds < 5 ? 5 : seconds) * 1000000000u,
        .handshake_connect_ms =
            (uint32_t)mc_settings_number(MC_VARIABLE_MC_HANDSHAKE_CONNECT_TIMEOUT, 5, 1, 3600) * 1000u,
        .handshake_length_max = mc_settings_number(MC_VARIABLE_MC_HANDSHAKE_MAX_LENGTH, MC_HANDSHAKE_LENGTH_DEFAULT, 64,
                                                   MC_HANDSHAKE_LENGTH_MAX),
        .port_first = (uint16_t)mc_settings_number(
            MC_VARIABLE_MC_MIN_RPC_PORT, mc_settings_number(MC_VARIABLE_MC_MIN_PRC_PORT, PORT_FIRST, 1024, 65535), 1024,
            65535),
        .port_last = (uint16_t)mc_settings_number(
            MC_VARIABLE_MC_MAX_RPC_PORT, mc_settings_number(MC_VARIABLE_MC_MAX_PRC_PORT, PORT_LAST, 1024, 65535), 1024,
            65535),
        .handshake_port = mc_variable(MC_LEGACY_RPC_PORT_BINDING) == NULL
                              ? 0
                              : (uint16_t)mc_settings_number(MC_VARIABLE_MC_HANDSHAKE_PORT, HANDSHAKE_PORT, 1, 65535),
        .tcp_version = mc_settings_number(MC_VARIABLE_MC_TCP_PROTO, 2, 1, 2) == 1 ? 1 : 2,
        .checksum_every = checksum_every(),
        .use_ipv6 = mc_variable(MC_USE_IPV6) != NULL, /* as in the original: there at all is on */
        .allow_local = mc_variable(MC_FORCE_TCP) == NULL && !is_off(MC_VARIABLE_MC_SAME_PROCESS),
        .allow_host = mc_variable(MC_FORCE_TCP) == NULL && !is_off(MC_VARIABLE_MC_SAME_HOST),
        .allow_tracers = mc_variable(MC_FORCE_TCP) == NULL && is_ptrace(MC_VARIABLE_MC_SAME_HOST),
    };
    bool is_said = mc_variable(MC_TCP_LANES_PER_PEER) != NULL || mc_variable(MC_TCP_MAX_CONNECTIONS_PER_PEER) != NULL;
    settings->lanes = (unsigned)mc_settings_number(
        MC_VARIABLE_MC_TCP_LANES_PER_PEER, mc_settings_number(MC_VARIABLE_MC_TCP_MAX_CONNECTIONS_PER_PEER, 4, 1, 16), 1,
        MC_PEER_LANES_MAX);
    settings->lanes_near = is_said ? settings->lanes : 1;
    if (settings->port_first > settings->port_last) {
        mc_log(WARNING, "MC_MIN_RPC_PORT is above MC_MAX_RPC_PORT; %d to %d are used", PORT_FIRST, PORT_LAST);
        settings->port_first = PORT_FIRST;
        settings->port_last = PORT_LAST;
    }
    snprintf(settings->bind_address, sizeof(settings->bind_address), "%s", bind_address == NULL ? "" : bind_address);
}

/* The address of the first interface that has these flags; false: none has. */
static bool pick(const struct ifaddrs *all, bool use_ipv6, unsigned flags, char *address, size_t size)
{
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        char text[INET6_ADDRSTRLEN] = "";
        if (one->ifa_addr == NULL || (one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & flags) != flags)
            continue;
        const void *raw = NULL;
        if (one->ifa_addr->sa_family == AF_INET && !use_ipv6) {
            raw = &((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr;
        } else if (one->ifa_addr->sa_family == AF_INET6 && use_ipv6) {
            const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)one->ifa_addr)->sin6_addr;
            raw = IN6_IS_ADDR_LINKLOCAL(v6) ? NULL : v6; /* of no use without its interface */
        }
        if (raw == NULL || inet_ntop(one->ifa_addr->sa_family, raw, text, sizeof(text)) == NULL)
            continue;
        snprintf(address, size, "%s", text);
        return true;
    }
    return false;
}

void mc_network_pick(const struct ifaddrs *all, bool use_ipv6, char *address, size_t size)
{
    /* One that is up, but whose cable is not plugged in (or whose bridge has no port), reaches nobody. */
    if (!pick(all, use_ipv6, IFF_UP | IFF_RUNNING, address, size) && !pick(all, use_ipv6, IFF_UP, address, size))
        snprintf(address, size, "%s", use_ipv6 ? "::1" : "127.0.0.1");
}

void mc_network_address(bool use_ipv6, char *address, size_t size)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        all = NULL;
    mc_network_pick(all, use_ipv6, address, size);
    if (all != NULL)
        freeifaddrs(all);
}

int mc_network_listen(const struct mc_settings *settings, const char *host, uint16_t *port)
{
    uint64_t ports = (uint64_t)settings->port_last - settings->port_first + 1, start = mc_random_u64() % ports;
    for (uint64_t i = 0; i < PORT_TRIES && i < ports; i++) {
        *port = (uint16_t)(settings->port_first + (start + i * 7919u) % ports);
        int fd = mc_tcp_listen(host, port);
        if (fd >= 0)
            return fd;
        if (errno != EADDRINUSE && errno != EACCES)
            break;
    }
    mc_log(ERROR, "no free port for %s between %u and %u (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT): %s",
           host[0] == 0 ? "any address" : host, (unsigned)settings->port_first, (unsigned)settings->port_last,
           strerror(errno));
    return MC_ERR_RPC_FAIL;
}
