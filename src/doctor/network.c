/* The network as peers will see this machine: interfaces, its own name, the address that is published, free ports. */
#include "doctor/doctor.h"

#include "base/address.h"
#include "transfer/state/settings.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>

#define PORTS_TRIED 64u
#define INTERFACES_MAX 64u

static bool to_text(const struct sockaddr *address, char text[INET6_ADDRSTRLEN])
{
    const void *raw = NULL;
    if (address != NULL && address->sa_family == AF_INET)
        raw = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    else if (address != NULL && address->sa_family == AF_INET6)
        raw = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return raw != NULL && inet_ntop(address->sa_family, raw, text, INET6_ADDRSTRLEN) != NULL;
}

static void say_interface(struct mc_doctor *doctor, const char *name, const char *addresses)
{
    int64_t mtu = mc_doctor_number(doctor, "/sys/class/net/%s/mtu", name);
    int64_t speed = mc_doctor_number(doctor, "/sys/class/net/%s/speed", name);
    char rate[64] = "";
    if (speed > 0)
        snprintf(rate, sizeof(rate), ", %.10g Gbit/s", (double)speed / 1000);
    bool is_small = mtu > 0 && mtu < 9000 && speed >= 25000;
    mc_doctor_say(doctor, is_small ? MC_VERDICT_NOTE : MC_VERDICT_FINE, name, 0,
                  is_small ? "a fast link with small packets costs processor time: MTU 9000 if the switches allow it"
                           : NULL,
                  "%s, MTU %" PRId64 "%s", addresses, mtu, rate);
}

void mc_check_interfaces(struct mc_doctor *doctor)
{
    struct ifaddrs *all = NULL;
    char names[INTERFACES_MAX][IF_NAMESIZE], addresses[1024], text[INET6_ADDRSTRLEN];
    size_t count = 0;
    if (getifaddrs(&all) != 0) {
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "interfaces", errno, NULL, "cannot be listed");
        return;
    }
    for (const struct ifaddrs *one = all; one != NULL && count < INTERFACES_MAX; one = one->ifa_next) {
        bool is_known = (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0;
        for (size_t i = 0; i < count && !is_known; i++)
            is_known = strcmp(names[i], one->ifa_name) == 0;
        if (is_known)
            continue;
        snprintf(names[count++], IF_NAMESIZE, "%s", one->ifa_name);
        size_t used = 0;
        addresses[0] = 0;
        for (const struct ifaddrs *other = one; other != NULL; other = other->ifa_next)
            if (strcmp(other->ifa_name, one->ifa_name) == 0 && to_text(other->ifa_addr, text) &&
                used + sizeof(text) + 2 < sizeof(addresses))
                used +=
                    (size_t)snprintf(addresses + used, sizeof(addresses) - used, "%s%s", used == 0 ? "" : " ", text);
        say_interface(doctor, one->ifa_name, used == 0 ? "no address" : addresses);
    }
    freeifaddrs(all);
    if (count == 0)
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "interfaces", 0, NULL,
                      "only loopback is up: no other machine is reached");
}

void mc_check_host_name(struct mc_doctor *doctor)
{
    char name[256] = "", text[INET6_ADDRSTRLEN] = "";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (gethostname(name, sizeof(name) - 1) != 0)
        return;
    int rc = getaddrinfo(name, NULL, &hints, &found);
    if (rc != 0 || !to_text(found->ai_addr, text))
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "host name", 0,
                      "give engines and store nodes an address instead of this name, or enter it in DNS or /etc/hosts",
                      "%s has no address here: %s", name, rc != 0 ? gai_strerror(rc) : "none of IP");
    else if (mc_address_is_loopback(text))
        mc_doctor_say(
            doctor, MC_VERDICT_NOTE, "host name", 0,
            "good as local_hostname if other machines find another address under this name, as engines and store nodes "
            "then listen on all of ours: else give them an address",
            "%s is %s here", name, text);
    else
        mc_doctor_say(doctor, MC_VERDICT_FINE, "host name", 0, NULL, "%s is %s", name, text);
    if (found != NULL)
        freeaddrinfo(found);
}

static bool is_here(const char *address)
{
    struct ifaddrs *all = NULL;
    char text[INET6_ADDRSTRLEN];
    bool is_found = false;
    if (getifaddrs(&all) != 0)
        return true; /* nothing is known against it */
    for (const struct ifaddrs *one = all; one != NULL && !is_found; one = one->ifa_next)
        is_found = to_text(one->ifa_addr, text) && strcmp(text, address) == 0;
    freeifaddrs(all);
    return is_found;
}

void mc_check_address(struct mc_doctor *doctor)
{
    struct mc_settings settings;
    struct in6_addr raw;
    char address[MC_ADDRESS_MAX];
    mc_settings_read(&settings);
    if (settings.bind_address[0] != 0) {
        bool is_address = inet_pton(AF_INET, settings.bind_address, &raw) == 1 ||
                          inet_pton(AF_INET6, settings.bind_address, &raw) == 1;
        bool is_wrong = is_address && !is_here(settings.bind_address);
        mc_doctor_say(doctor, is_wrong ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "address for peers", 0,
                      is_wrong ? "no interface here has it: fine behind address translation, else set "
                                 "MC_TCP_BIND_ADDRESS to an address "
                                 "of this machine"
                               : NULL,
                      "%s (MC_TCP_BIND_ADDRESS)", settings.bind_address);
        return;
    }
    mc_network_address(settings.use_ipv6, address, sizeof(address));
    mc_doctor_say(doctor, mc_address_is_loopback(address) ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "address for peers", 0,
                  mc_address_is_loopback(address) ? "peers of other machines need another: MC_TCP_BIND_ADDRESS" : NULL,
                  "%s, the first interface's; with P2PHANDSHAKE the host that is given to initialize", address);
}

void mc_check_ports(struct mc_doctor *doctor)
{
    struct mc_settings settings;
    char line[MC_DOCTOR_LINE_MAX];
    unsigned first = 0, last = 0, tried = 0, free_ports = 0;
    mc_settings_read(&settings);
    unsigned low = settings.port_first, high = settings.port_last, step = (high - low) / PORTS_TRIED + 1;
    for (unsigned port = low; port <= high; port += step) {
        uint16_t wanted = (uint16_t)port;
        int fd = mc_tcp_listen("0.0.0.0", &wanted);
        tried++;
        if (fd < 0)
            continue;
        free_ports++;
        close(fd);
    }
    mc_doctor_say(doctor,
                  free_ports == 0          ? MC_VERDICT_BROKEN
                  : free_ports * 4 < tried ? MC_VERDICT_WARNING
                                           : MC_VERDICT_FINE,
                  "ports of engines", 0,
                  free_ports * 4 < tried ? "an engine takes two: widen MC_MIN_RPC_PORT, MC_MAX_RPC_PORT" : NULL,
                  "%u to %u, %u of %u tried are free; firewalls must let them in", low, high, free_ports, tried);
    if (!mc_doctor_line(doctor, line, "/proc/sys/net/ipv4/ip_local_port_range") ||
        sscanf(line, "%u %u", &first, &last) != 2)
        return;
    bool overlaps = first <= high && low <= last;
    mc_doctor_say(doctor, overlaps ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "ports of connections", 0,
                  overlaps ? "connections of other programs may take ports of engines: sysctl "
                             "net.ipv4.ip_local_port_range, or another "
                             "MC_MIN_RPC_PORT, MC_MAX_RPC_PORT"
                           : NULL,
                  "%u to %u", first, last);
}

void mc_check_buffers(struct mc_doctor *doctor)
{
    static const struct {
        const char *file, *name;
    } rows[] = {{"/proc/sys/net/ipv4/tcp_rmem", "tcp receive buffer"},
                {"/proc/sys/net/ipv4/tcp_wmem", "tcp send buffer"}};
    char line[MC_DOCTOR_LINE_MAX], text[32];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        long long least, usual, most;
        if (!mc_doctor_line(doctor, line, rows[i].file) || sscanf(line, "%lld %lld %lld", &least, &usual, &most) != 3)
            continue;
        bool is_small = most < 4 << 20;
        mc_doctor_say(
            doctor, is_small ? MC_VERDICT_NOTE : MC_VERDICT_FINE, rows[i].name, 0,
            is_small
                ? "fast links with some delay need more: sysctl net.ipv4.tcp_rmem, tcp_wmem, at most 16 MiB and more"
                : NULL,
            "at most %s", mc_doctor_size(text, (uint64_t)(most < 0 ? 0 : most)));
    }
    if (mc_doctor_line(doctor, line, "/proc/sys/net/ipv4/tcp_congestion_control"))
        mc_doctor_say(doctor, MC_VERDICT_FINE, "congestion control", 0, NULL, "%s", line);
}
