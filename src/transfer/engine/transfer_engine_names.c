/* All of libtransfer_engine.so: the functions of transfer_engine_c.h, each of which is one call of libmooncake.so's. */
#include "transfer/engine/original_calls.h"

#define X(type, name, parameters, arguments)                                                                           \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return mc_original_calls.name arguments;                                                                       \
    }
#define NOTHING(name, parameters, arguments)                                                                           \
    void name parameters                                                                                               \
    {                                                                                                                  \
        mc_original_calls.name arguments;                                                                              \
    }
#include "transfer/engine/original_calls.def"
