/* Sizes and times as people read them. */
#ifndef MC_BASE_SIZE_H
#define MC_BASE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* "0 B", "1.50 KB", "30.00 GB" (1024). */
void mc_size_text(char *text, size_t size, uint64_t bytes);
/* The whole number below; the nearest one that there is to what is none. */
uint64_t mc_size_of_real(double number);
/* Time as people read it: "90 s", "3 h 12 min". */
void mc_seconds_text(char *text, size_t size, uint64_t seconds);

#endif
