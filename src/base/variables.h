/* The environment: one table (variables.def) of every variable that this product reads, or knows of and does not need.
 * Nothing else reads the environment, so what is not in the table cannot be read: there is no name for it here. A
 * variable that begins with MC_ or MOONCAKE_, is set, and is not in the table is named once by each process; so is one
 * that is known and changes nothing. */
#ifndef MC_BASE_VARIABLES_H
#define MC_BASE_VARIABLES_H

#include <stdbool.h>
#include <stddef.h>

enum mc_variable {
    MC_VARIABLE_NONE,
#define X(name, use, text) MC_VARIABLE_##name,
#define F(prefix, use, text)
#include "base/variables.def"
#undef X
#undef F
    MC_VARIABLE_COUNT
};

enum mc_variable_use {
    MC_VARIABLE_READ,     /* by this product; text: which part of it */
    MC_VARIABLE_OTHERS,   /* by other software beside it; text: which */
    MC_VARIABLE_NEEDLESS, /* by nobody: there is nothing here that it could change; text: why */
    MC_VARIABLE_ABSENT    /* by nobody: what it asks for is not here; text: what to do instead */
};

struct mc_variable_row {
    const char *name; /* of a family: what the names begin with */
    enum mc_variable_use use;
    const char *text;
    bool is_family;
};

/* The value of one that is in the table, or NULL. mc_variable(MC_PATHS). */
#define mc_variable(name) mc_variable_value(MC_VARIABLE_##name)
const char *mc_variable_value(enum mc_variable variable);
const char *mc_variable_name(enum mc_variable variable);

/* The row of a name, or NULL: it is not known. */
const struct mc_variable_row *mc_variable_find(const char *name);
/* The known name nearest to one that is not, or NULL. */
const char *mc_variable_nearest(const char *name);
/* Is the name in the table, or does it begin as most there do? Not one that Kubernetes or Docker sets for a service. */
bool mc_variable_is_setting(const char *name, const char *value);
/* Rows from 0 on; NULL behind the last. */
const struct mc_variable_row *mc_variable_row(size_t index);

#endif
