/* Which build this is. */
#ifndef MC_BASE_BUILD_H
#define MC_BASE_BUILD_H

/* "0.5.0+c1 (git 1a2b3c4)", or "0.5.0+c1" where it was not built from a checkout. */
const char *mc_build(void);

/* A line for each library that is linked in: "  zlib 1.2.13 (Zlib)\n". */
const char *mc_build_parts(void);

#endif
