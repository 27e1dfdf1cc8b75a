/* Files that may change while a process goes on. For each kind of them a thread, of which there is none until the first
 * of them, looks about once a second, so that a file system that hangs holds up nobody who needs what was read before,
 * and no other kind. */
#ifndef MC_ENV_WATCH_H
#define MC_ENV_WATCH_H

/* From now on a thread of that name (a literal, at most 15 bytes) calls look, which may wait for a file and must hold
 * no lock over that. Again and again with the same one is as good as once, and costs next to nothing; a forked child
 * has the thread from its own first call. */
void mc_watch(const char *name, void (*look)(void));

#endif
