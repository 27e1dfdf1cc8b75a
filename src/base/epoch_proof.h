/* By which masters believe each other's epochs (env/keys.h). Who meets a master keeps what it gives for its own. */
#ifndef MC_BASE_EPOCH_PROOF_H
#define MC_BASE_EPOCH_PROOF_H

#include "base/bytes.h"

#include <string.h>

#define MC_EPOCH_PROOF_BYTES 32u
struct mc_epoch_proof { /* zeroed: none */
    uint64_t epoch;
    uint8_t bytes[MC_EPOCH_PROOF_BYTES];
};
/* What the master of that epoch has said; of earlier ones than the one that is kept nothing is. */
static inline void mc_epoch_proof_keep(struct mc_epoch_proof *kept, uint64_t epoch, struct mc_span told)
{
    if (told.length != MC_EPOCH_PROOF_BYTES || epoch < kept->epoch)
        return;
    kept->epoch = epoch;
    memcpy(kept->bytes, told.data, MC_EPOCH_PROOF_BYTES);
}
/* Of that epoch; empty: there is none. */
static inline struct mc_span mc_epoch_proof_of(const struct mc_epoch_proof *kept, uint64_t epoch)
{
    return mc_span(kept->bytes, epoch != 0 && kept->epoch == epoch ? MC_EPOCH_PROOF_BYTES : 0);
}

#endif
