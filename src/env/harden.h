/* Least privilege, for a process that asks for it: a user of its own, no capabilities, no way to gain any, and a filter
 * of system calls. What a break into it could do is then what the process itself does: files of its user, sockets,
 * threads, but no other program, no look into another process, no mount, no module, no namespace.
 *
 * To be called before threads start and before anything is opened: what the user may not read is found out at once, not
 * when it is read again. */
#ifndef MC_ENV_HARDEN_H
#define MC_ENV_HARDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define MC_HARDEN_USER "mooncake" /* whom a process of root becomes */

/* Who a hardened process is: of root, MC_HARDEN_USER; else whoever it is. 0, or MC_ERR_INVALID_PARAMS with a line in
 * error: there is no such user. */
int mc_harden_user(uid_t *user, gid_t *group, char *error, size_t error_size);
/* Does it, for good. 0 or negative, with a line in error. A system call that is not on the list gives ENOSYS from then
 * on, as from a kernel without it, so libraries of later releases take another way. */
int mc_harden(char *error, size_t error_size);
/* Is that system call on the list, whatever its arguments? */
bool mc_harden_allows(unsigned number);

#endif
