/* Edits of a request's JSON without taking it apart: the members of the outer object are found, and everything that is
 * not changed is passed on byte by byte. So numbers keep their digits, strings their escapes, and a prompt of megabytes
 * costs one look and one copy.
 *
 * Invariant: after a scan that returned 0 the text is JSON, and every span lies inside it.
 */
#ifndef MC_PROXY_EDIT_H
#define MC_PROXY_EDIT_H

#include "base/bytes.h"

#define MC_EDIT_MEMBERS_MAX 512 /* of the outer object */

struct mc_edit_member {
    struct mc_span name;  /* what is between the quotes */
    struct mc_span value; /* its text */
    size_t from, to;      /* the whole member without commas */
};

struct mc_members { /* of the outer object, in their order */
    struct mc_span text;
    struct mc_edit_member list[MC_EDIT_MEMBERS_MAX];
    size_t count;
};

/* 0, or MC_ERR_INVALID_PARAMS with the place of the first byte that is wrong in *at and what is wrong in *problem. */
int mc_members_scan(struct mc_members *members, struct mc_span text, size_t *at, const char **problem);
/* The last one of that name, as Python would take it; NULL: none. */
const struct mc_edit_member *mc_members_find(const struct mc_members *members, const char *name);
/* Is its value the word true? */
bool mc_members_is_true(const struct mc_members *members, const char *name);
/* Appends the object without the members named in `without` (NULL at the end), and with `more` ("\"a\":1,\"b\":2") as
 * the last ones. */
void mc_members_write(const struct mc_members *members, const char *const *without, const char *more,
                      struct mc_buffer *out);

#endif
