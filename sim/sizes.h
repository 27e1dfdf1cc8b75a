/* Included before each of the product's files that knows the layout of a segment: tables that a simulated cluster never
 * fills are cut, because making and clearing them was a third of a run. */
#ifndef SIM_SIZES_H
#define SIM_SIZES_H

#include "engine/layout.h"

#undef MC_WRITERS_MAX
#define MC_WRITERS_MAX 64u /* an entry is 4 KiB; a life of a client takes one */

#endif
