/* Which masters an owner has met, and when something was last heard of them: evidence that a later master asks for.
 * Times are CLOCK_BOOTTIME, so that they mean the same to the next process of this machine. */
#include "store/owner/inside.h"

#include "env/clock.h"

static uint32_t age_ms_of(uint64_t then_ms)
{
    uint64_t now_ms = mc_clock_boot_ms();
    if (then_ms == 0)
        return UINT32_MAX;
    uint64_t age_ms = now_ms > then_ms ? now_ms - then_ms : 0;
    return age_ms < UINT32_MAX ? (uint32_t)age_ms : UINT32_MAX;
}

/* Lock held. */
static void master_heard(struct mc_owner *owner, uint64_t epoch, bool acts, uint16_t frame_time)
{
    if (epoch < owner->seen_epoch || epoch == 0)
        return;
    owner->seen_epoch = epoch;
    if (acts)
        owner->acting_epoch = epoch;
    uint64_t sent_ms = mc_master_time_of(&owner->master_time, epoch, frame_time, mc_clock_boot_ms());
    if (owner->acting_epoch == epoch && sent_ms > owner->seen_ms)
        owner->seen_ms = sent_ms;
}

void mc_owner_heard(struct mc_owner *owner, uint64_t epoch, bool acts, uint16_t frame_time)
{
    pthread_mutex_lock(&owner->lock);
    master_heard(owner, epoch, acts, frame_time);
    pthread_mutex_unlock(&owner->lock);
}

uint64_t mc_owner_age_told(struct mc_owner *owner, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms)
{
    pthread_mutex_lock(&owner->lock);
    if (epoch >= owner->seen_epoch) /* not of a master that another thread knows to be of the past */
        mc_master_time_learn(&owner->master_time, epoch, age_ms, asked_ms, mc_clock_boot_ms());
    uint64_t answered_ms = mc_master_time_answered(&owner->master_time, epoch, age_ms, asked_ms);
    pthread_mutex_unlock(&owner->lock);
    return answered_ms;
}

/* By the master's age a contact is only ever later. Lock held. */
static void contact_set(struct mc_owner *owner, uint64_t contact_ms, uint64_t at_ms)
{
    uint64_t known_ms = mc_segment_memory_contact_at_ms(owner->memory);
    mc_segment_memory_set_contact_ms(owner->memory, contact_ms);
    mc_segment_memory_set_contact_at_ms(owner->memory, at_ms > known_ms ? at_ms : known_ms);
}

void mc_owner_contact(struct mc_owner *owner, uint64_t epoch, bool acts, uint64_t answered_ms, uint64_t at_ms,
                      uint16_t frame_time)
{
    pthread_mutex_lock(&owner->lock);
    master_heard(owner, epoch, acts, frame_time);
    if (answered_ms != 0) {
        if (owner->answered_epoch != epoch || at_ms > owner->answered_at_ms)
            owner->answered_at_ms = at_ms;
        owner->answered_epoch = epoch;
        owner->answered_ms = answered_ms;
    }
    /* A heartbeat that another master answered says nothing of this one. */
    if (!owner->has_left && mc_segment_memory_epoch(owner->memory) == epoch &&
        answered_ms > mc_segment_memory_contact_ms(owner->memory))
        contact_set(owner, answered_ms, at_ms);
    pthread_mutex_unlock(&owner->lock);
}

void mc_owner_contact_end(struct mc_owner *owner)
{
    pthread_mutex_lock(&owner->lock);
    owner->has_left = true;
    mc_segment_memory_set_contact_ms(owner->memory, 0);
    mc_segment_memory_set_contact_at_ms(owner->memory, 0);
    pthread_mutex_unlock(&owner->lock);
}

uint64_t mc_owner_seen(struct mc_owner *owner, uint32_t *age_ms)
{
    pthread_mutex_lock(&owner->lock);
    uint64_t epoch = owner->seen_epoch, seen_ms = owner->seen_ms;
    if (mc_segment_memory_met(owner->memory) > epoch) /* met by the process whose memory we have taken up */
        epoch = mc_segment_memory_met(owner->memory);
    if (mc_segment_memory_contact_ms(owner->memory) > seen_ms) /* and that of its epoch has offered it */
        seen_ms = mc_segment_memory_contact_ms(owner->memory);
    pthread_mutex_unlock(&owner->lock);
    *age_ms = epoch == 0 ? 0 : age_ms_of(seen_ms);
    return epoch;
}

void mc_owner_proof_told(struct mc_owner *owner, uint64_t epoch, struct mc_span proof)
{
    pthread_mutex_lock(&owner->lock);
    mc_epoch_proof_keep(&owner->seen_proof, epoch, proof);
    mc_segment_memory_keep_proof(owner->memory, &owner->seen_proof); /* of the epoch that it has met, else not yet */
    pthread_mutex_unlock(&owner->lock);
}

struct mc_epoch_proof mc_owner_proof(struct mc_owner *owner, uint64_t epoch)
{
    pthread_mutex_lock(&owner->lock);
    struct mc_epoch_proof proof = owner->seen_proof;
    if (proof.epoch != epoch) /* met by the process whose memory we have taken up */
        proof = mc_segment_memory_proof(owner->memory);
    pthread_mutex_unlock(&owner->lock);
    return proof.epoch == epoch ? proof : (struct mc_epoch_proof){0};
}

/* What is the contact with a master that has answered no heartbeat yet? The time from which it counts our silence is
 * that of a hello of ours. That came after the master before it had its end, so after the contact with that one; the
 * bound by our own hello is for the moment in which two take themselves for the master. By that master's age it was
 * when that began. */
void mc_owner_epoch_set(struct mc_owner *owner, uint64_t epoch)
{
    pthread_mutex_lock(&owner->lock);
    if (mc_segment_memory_epoch(owner->memory) == epoch) { /* what was heard may be of other memory of ours */
        pthread_mutex_unlock(&owner->lock);
        return;
    }
    uint64_t at_ms = 1;
    uint64_t contact_ms = mc_segment_memory_contact_ms(owner->memory);
    if (contact_ms > owner->hello_ms)
        contact_ms = owner->hello_ms;
    if (owner->answered_epoch == epoch && owner->answered_ms > contact_ms)
        contact_ms = owner->answered_ms;
    if (owner->answered_epoch == epoch)
        at_ms = owner->answered_at_ms;
    if (owner->has_left) /* we are on the way out: nothing gives the contact back */
        contact_ms = at_ms = 0;
    /* In this order: a process that ends in between leaves a memory without contact, never one with another's. */
    mc_segment_memory_set_contact_ms(owner->memory, 0);
    mc_segment_memory_set_epoch(owner->memory, epoch);
    mc_segment_memory_set_contact_ms(owner->memory, contact_ms);
    mc_segment_memory_set_contact_at_ms(owner->memory, at_ms);
    pthread_mutex_unlock(&owner->lock);
}

void mc_owner_forget(struct mc_owner *owner)
{
    pthread_mutex_lock(&owner->lock);
    owner->seen_epoch = owner->acting_epoch = owner->seen_ms = owner->answered_epoch = owner->answered_ms =
        owner->answered_at_ms = 0;
    owner->master_time = (struct mc_master_time){0};
    owner->seen_proof = (struct mc_epoch_proof){0};
    pthread_mutex_unlock(&owner->lock);
}

uint32_t mc_owner_contact_age_ms(struct mc_owner *owner)
{
    return age_ms_of(mc_segment_memory_contact_ms(owner->memory));
}
