/* The functions of transfer_engine_c.h, for a library of another name that has them too: libtransfer_engine.so, which
 * others link. Its functions call these, so that there is one table of engines in a process, whichever library's name a
 * program or its plugin was linked with. */
#ifndef MC_TRANSFER_ENGINE_ORIGINAL_CALLS_H
#define MC_TRANSFER_ENGINE_ORIGINAL_CALLS_H

#include "transfer_engine_c.h"

struct mc_original_calls {
#define X(type, name, parameters, arguments) type(*name) parameters;
#define NOTHING(name, parameters, arguments) void(*name) parameters;
#include "transfer/engine/original_calls.def"
#undef NOTHING
#undef X
};
MC_ORIGINAL_API extern const struct mc_original_calls mc_original_calls;

#endif
