/* Threads that help with large copies: a copy is cut into pieces, and whoever is free takes the next one. The caller
 * takes pieces too, and waits for nobody who has taken none: on a busy machine, where helpers wake late, it has done
 * most of them itself. They are started with the first copy that is large enough. */
#ifndef MC_ENV_CREW_H
#define MC_ENV_CREW_H

#include <stdbool.h>
#include <stdint.h>

#define MC_CREW_THREADS_MAX 16u        /* with the caller */
#define MC_CREW_BYTES_MIN (4ull << 20) /* smaller copies are done before a helper is awake */
#define MC_CREW_PIECE_BYTES (1ull << 20)

struct mc_crew;

/* As many as MC_COPY_THREADS says, by default as processors, and at most four. */
unsigned mc_crew_threads(void);
/* threads: with the caller. NULL: nobody helps, since one is enough or there is no memory. */
struct mc_crew *mc_crew_create(unsigned threads);
/* No run is under way. is_forked: in a child, which has none of the threads. */
void mc_crew_free(struct mc_crew *crew, bool is_forked);

/* Calls piece(context, i, ...) once for each i below count, from several threads at once, and returns when all have
 * returned. is_own: on the thread of the caller, who does all of them if another run is under way. crew may be NULL. */
void mc_crew_run(struct mc_crew *crew, uint32_t count, void (*piece)(void *context, uint32_t index, bool is_own),
                 void *context);

#endif
