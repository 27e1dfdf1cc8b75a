/* The original's TCP data protocol. A request is a header of 24 bytes: u64 length, u64 address in the receiver's
 * memory, u8 opcode, 7 bytes; a WRITE's bytes follow it. The 7 bytes are zero, or, to an engine of ours whose document
 * says "cuts", the number of the connection, which every request of it has (settle.c). Opcode 0 READ, 1 WRITE; bit 7:
 * version 2, in which a status of 8 bytes goes back before a READ's bytes, or after all of a WRITE's bytes are in
 * memory. Version 1 has no status (outbound.h makes up for it). Requests of one connection are answered in order, so
 * several may be under way. After a status that is not 0 the connection ends. Numbers are little-endian.
 *
 * Before all else an engine whose document says "cuts" 2 or more is told who is meant: a header with MC_TCP_WHO, in
 * place of length and address the halves of the engine's id. There is no answer; but another engine, which has the
 * address by now, hangs up and takes nothing of what follows. One of an earlier release knows no such opcode, and takes
 * nothing either; the original takes it for a READ, of memory that is not there.
 *
 * Opcode 2, SUM, is for engines of ours whose document says "sums", in version 2 only: a status and, if it is OK, 8
 * bytes with the CRC32C of that range of the receiver's memory, in which the WRITEs before are. Of at most
 * MC_TCP_SUM_MAX bytes. Who may write and not read may ask it once of what the last WRITE has brought. */
#ifndef MC_TRANSFER_TCP_WIRE_H
#define MC_TRANSFER_TCP_WIRE_H

#include <stdint.h>

struct mc_tcp_header {
    uint64_t length, address;
    uint8_t opcode, lane[7];
};
_Static_assert(sizeof(struct mc_tcp_header) == 24, "wire format");

enum { MC_TCP_SUM = 2 };

struct mc_tcp_sum {
    uint64_t status, sum;
};
_Static_assert(sizeof(struct mc_tcp_sum) == 16, "wire format");

#define MC_TCP_SUM_MAX ((uint64_t)1 << 20) /* it is made in one go */
#define MC_TCP_LANE_MAX ((UINT64_C(1) << 56) - 1)
#define MC_TCP_OPCODE_VERSION_2 0x80u
#define MC_TCP_WHO 0x40u
#define MC_TCP_STATUS_MAGIC 0x4D435456ull
#define MC_TCP_STATUS_OK (MC_TCP_STATUS_MAGIC << 32)
#define MC_TCP_STATUS_REFUSED (MC_TCP_STATUS_OK | 1) /* not inside one registered range */

#endif
