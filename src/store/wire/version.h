/* How two builds find out what they may say to each other: versions, features, names of builds. docs/versions.md says
 * what a version may change.
 *
 * HELLO and HELLO_REPLY carry the range of versions that their speaker knows; both sides then speak the highest that
 * both know. Within a version, fields are added at the ends of records, which an old reader skips, and new messages, or
 * new meanings, are said only to a peer whose hello has their feature's bit: mc_wire_can. */
#ifndef MC_WIRE_VERSION_H
#define MC_WIRE_VERSION_H

#include "store/wire/wire.h"

#define MC_BUILD_TEXT_MAX 64u /* bytes of a build's name with its end; a longer one is cut */

/* name, bit, what its speaker understands. A bit is never given a second meaning. */
#define MC_FEATURES(X)                                                                                                 \
    X(NAMED_BUILD, 0, "build in HELLO and HELLO_REPLY, layout in HELLO_REPLY")                                         \
    X(DISKS, 1, "segments that are disks: kind in MOUNT, version in INVENTORY, STORE, LOAD")                           \
    X(FLUSH, 2, "owners that leave with a disk: FLUSH, FLUSHED, keep in UNMOUNT")                                      \
    X(TAGS, 3, "peers that repeat the tags of places: tag in READ, WRITE and COMMIT")                                  \
    X(STAMPS, 4, "masters that know of stamps: stamp in HELLO")                                                        \
    X(PARTS, 5, "owners that take a value in parts, over several connections: skip and is_part in WRITE, WRITE_END")   \
    X(FIRM_PINS, 6,                                                                                                    \
      "masters that pin firmly or not at all, owners that write so: FIRM_PIN, OR_NOT in flags of PUT_START")           \
    X(TRACES, 7, "who makes spans of requests, while it does: TRACE")                                                  \
    X(HINTS, 8, "masters that take hints: HINT")                                                                       \
    X(STRIPES, 9, "masters that know heads and pieces, and who may be told of heads: whole in GET_FOUND")              \
    X(BLANKS, 10, "masters that grant places ahead: BLANK in flags of PUT_START, PUT_BIND, PUT_BLANKS")                \
    X(KEPT_HINTS, 11, "owners that keep beside a value what a hint says of it: HINTED")

enum mc_feature {
#define MC_FEATURE_ENUM(name, bit, what) MC_FEATURE_##name = (bit),
    MC_FEATURES(MC_FEATURE_ENUM)
#undef MC_FEATURE_ENUM
};

#define MC_FEATURE_BIT(name, bit, what) | UINT64_C(1) << (bit)
#define MC_FEATURES_OURS (UINT64_C(0) MC_FEATURES(MC_FEATURE_BIT))
/* Those of this process. It says TRACES only while it makes spans: a peer sends no context to who would drop it. */
uint64_t mc_wire_features(void);

struct mc_wire_peer { /* what was agreed with the other end of a connection; zeroed = nothing yet */
    uint16_t version;
    uint64_t features; /* that both have */
};

/* From what the other end's hello says. 0, or MC_ERR_INVALID_VERSION: no version that both know. */
int mc_wire_agree(struct mc_wire_peer *peer, uint16_t version_min, uint16_t version_max, uint64_t features);

static inline bool mc_wire_can(const struct mc_wire_peer *peer, enum mc_feature feature)
{
    return (peer->features >> feature & 1) != 0;
}

/* Fills in what every HELLO and HELLO_REPLY says of its speaker. */
void mc_wire_hello_sign(struct mc_wire_hello *hello);
void mc_wire_hello_reply_sign(struct mc_wire_hello_reply *reply);

/* A peer's name of its build, printable and ended; "an earlier build" of one that does not say. */
const char *mc_wire_build(char text[MC_BUILD_TEXT_MAX], struct mc_span build);

#endif
