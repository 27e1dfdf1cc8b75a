/* Shares of an owner's data connections. */
#include "store/segment/serve_shares.h"

#include "base/error.h"

#include <stdlib.h>

/* ---- parties ---- */

static struct mc_party **party_find(struct mc_parties *parties, struct mc_id id)
{
    struct mc_party **at = &parties->buckets[(id.low ^ id.high) % MC_SHARES_BUCKETS];
    while (*at != NULL && !mc_id_equal((*at)->id, id))
        at = &(*at)->next;
    return at;
}

static struct mc_party *party_take(struct mc_parties *parties, struct mc_id id)
{
    struct mc_party **at = party_find(parties, id), *party = *at;
    if (party == NULL) {
        party = calloc(1, sizeof(*party));
        if (party == NULL)
            return NULL;
        party->id = id;
        *at = party;
        parties->count++;
    }
    party->count++;
    return party;
}

static void party_give(struct mc_parties *parties, struct mc_party *party)
{
    if (--party->count > 0)
        return;
    struct mc_party **at = party_find(parties, party->id);
    *at = party->next;
    parties->count--;
    free(party);
}

static uint32_t party_share(const struct mc_shares *shares, uint32_t parties)
{
    uint32_t share = shares->limit / (parties == 0 ? 1 : parties);
    return share == 0 ? 1 : share;
}

/* ---- rest ---- */

static struct mc_guests *guests_of(struct mc_shares *shares, const struct mc_guest *guest)
{
    return guest->rest == MC_REST_FRESH ? &shares->fresh : &shares->settled;
}

static void guest_append(struct mc_guests *guests, struct mc_guest *guest)
{
    guest->older = guests->newest;
    guest->newer = NULL;
    if (guests->newest != NULL)
        guests->newest->newer = guest;
    else
        guests->oldest = guest;
    guests->newest = guest;
}

void mc_shares_wake(struct mc_shares *shares, struct mc_guest *guest)
{
    if (guest->rest == MC_REST_NOT)
        return;
    struct mc_guests *guests = guests_of(shares, guest);
    if (guest->older != NULL)
        guest->older->newer = guest->newer;
    else
        guests->oldest = guest->newer;
    if (guest->newer != NULL)
        guest->newer->older = guest->older;
    else
        guests->newest = guest->older;
    guest->older = guest->newer = NULL;
    guest->rest = MC_REST_NOT;
}

void mc_shares_rest(struct mc_shares *shares, struct mc_guest *guest, uint64_t now_ms)
{
    mc_shares_wake(shares, guest);
    guest->rest = MC_REST_FRESH;
    guest->since_ms = now_ms;
    guest_append(&shares->fresh, guest);
}

void mc_shares_settle(struct mc_shares *shares, struct mc_guest *guest)
{
    mc_assert(guest->rest == MC_REST_FRESH);
    mc_shares_wake(shares, guest);
    guest->rest = MC_REST_SETTLED;
    guest_append(&shares->settled, guest);
}

struct mc_guest *mc_shares_oldest(const struct mc_shares *shares)
{
    return shares->settled.oldest != NULL ? shares->settled.oldest : shares->fresh.oldest;
}

/* ---- places ---- */

int mc_shares_enter(struct mc_shares *shares, struct mc_guest *guest, struct mc_id peer, struct mc_id host)
{
    guest->peer = party_take(&shares->peers, peer);
    guest->host = guest->peer == NULL ? NULL : party_take(&shares->hosts, host);
    if (guest->host == NULL) {
        if (guest->peer != NULL)
            party_give(&shares->peers, guest->peer);
        guest->peer = NULL;
        return MC_ERR_NO_MEMORY;
    }
    shares->count++;
    return 0;
}

void mc_shares_leave(struct mc_shares *shares, struct mc_guest *guest)
{
    mc_shares_wake(shares, guest);
    if (guest->peer == NULL)
        return;
    party_give(&shares->peers, guest->peer);
    party_give(&shares->hosts, guest->host);
    guest->peer = guest->host = NULL;
    shares->count--;
}

struct newcomer {
    struct mc_id peer, host;
    uint32_t peer_share, host_share;
    bool peer_has_share, host_has_share; /* already: takes the place of one of its own, or none */
};

static struct newcomer newcomer_of(struct mc_shares *shares, struct mc_id peer_id, struct mc_id host_id)
{
    const struct mc_party *peer = *party_find(&shares->peers, peer_id), *host = *party_find(&shares->hosts, host_id);
    struct newcomer newcomer = {.peer = peer_id, .host = host_id};
    newcomer.peer_share = party_share(shares, shares->peers.count + (peer == NULL));
    newcomer.host_share = party_share(shares, shares->hosts.count + (host == NULL));
    newcomer.peer_has_share = peer != NULL && peer->count >= newcomer.peer_share;
    newcomer.host_has_share = host != NULL && host->count >= newcomer.host_share;
    return newcomer;
}

/* May this one go for it, if all have a fair part? */
static bool is_spare(const struct newcomer *newcomer, const struct mc_guest *guest)
{
    if (!newcomer->host_has_share && guest->host->count > newcomer->host_share)
        return true;
    return newcomer->peer_has_share   ? mc_id_equal(guest->peer->id, newcomer->peer)
           : newcomer->host_has_share ? mc_id_equal(guest->host->id, newcomer->host)
                                      : true;
}

/* Is it of one that has more than a fair part, or the newcomer's own? */
static bool is_first_to_go(const struct newcomer *newcomer, const struct mc_guest *guest)
{
    return newcomer->peer_has_share || guest->peer->count > newcomer->peer_share ||
           guest->host->count > newcomer->host_share;
}

bool mc_shares_ask(struct mc_shares *shares, struct mc_id peer, struct mc_id host, uint64_t now_ms,
                   struct mc_guest **victim)
{
    *victim = NULL;
    if (shares->count < shares->limit)
        return true;
    struct newcomer newcomer = newcomer_of(shares, peer, host);
    struct mc_guest *guest = mc_shares_oldest(shares), *spare = NULL;
    for (uint32_t looks = 0; guest != NULL && looks < MC_SHARES_LOOKS; looks++) {
        if (guest->since_ms + MC_SHARES_LEAST_MS > now_ms) /* and so have all behind it */
            break;
        if (is_spare(&newcomer, guest)) {
            spare = spare == NULL ? guest : spare;
            if (is_first_to_go(&newcomer, guest)) {
                *victim = guest;
                return true;
            }
        }
        guest = guest->newer == NULL && guest->rest == MC_REST_SETTLED ? shares->fresh.oldest : guest->newer;
    }
    if (spare != NULL && spare->since_ms + MC_SHARES_SPARE_MS <= now_ms)
        *victim = spare;
    return *victim != NULL;
}

bool mc_shares_may_take(struct mc_shares *shares, struct mc_id peer, struct mc_id host, const struct mc_guest *guest)
{
    struct newcomer newcomer = newcomer_of(shares, peer, host);
    return is_spare(&newcomer, guest) &&
           (guest->host->count > newcomer.host_share || mc_id_equal(guest->host->id, host));
}
