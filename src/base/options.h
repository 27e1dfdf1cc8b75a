/* Command line options in gflags' syntax, driven by one const table; also what a config file's names are checked
 * against.
 *
 * Forms: --f=v, --f v, -f=v, -f v; for booleans also --f, --nof; dashes in a name count as underscores; --flagfile=F
 * reads more, one a line. A later flag overrides an earlier one; a flag overrides a config file; a file overrides the
 * default. Nothing in here does I/O: text of files comes from the caller. Errors are one line without a newline that
 * names the flag, its value and what is allowed.
 *
 * Invariant: every value in `values` is valid for its row of the table at any time.
 */
#ifndef MC_BASE_OPTIONS_H
#define MC_BASE_OPTIONS_H

#include "base/bytes.h"
#include "base/variables.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_OPTIONS_MAX 256      /* rows of a table */
#define MC_OPTION_TEXT_MAX 4096 /* bytes of a value */
#define MC_OPTION_ERROR_MAX 512 /* bytes of an error line */
#define MC_OPTION_FILE_DEPTH 4  /* a flag file in a flag file in ... */

enum mc_option_type {
    MC_OPTION_BOOL,
    MC_OPTION_INT,
    MC_OPTION_REAL,
    MC_OPTION_TEXT,
    MC_OPTION_MS, /* duration, kept in ms; a plain number is ms; 500ms, 5s, 30m, 1h */
    MC_OPTION_S   /* duration, kept in ms; a plain number is seconds */
};

enum mc_option_status {
    MC_OPTION_WORKS,
    MC_OPTION_NEEDLESS, /* accepted for compatibility; there is nothing here that it could change, as the help says */
    MC_OPTION_ABSENT    /* accepted; what it asks for is not here, and `instead` says what to do */
};

struct mc_option {
    const char *section; /* heading in the help; NULL: as the row before */
    const char *name;
    enum mc_option_type type;
    const char *initial; /* default, as it would be written */
    const char *help;
    int64_t minimum, maximum; /* numbers; durations in ms; both 0: any */
    const char *choices;      /* text: "a|b|c"; NULL: any */
    enum mc_option_status status;
    const char *instead;
    const char *file_name;     /* another name by which a config file may call it, or NULL */
    const char *alias_of;      /* setting this one sets that one; NULL: none */
    bool is_flag_only;         /* has no place in a config file */
    enum mc_variable variable; /* for which the value stands, unless it is empty (mc_flags_use); NONE: for none */
    size_t offset, size;       /* the member of the command's config that mc_options_store fills in; size 0: none */
};

enum mc_option_source { MC_OPTION_FROM_DEFAULT, MC_OPTION_FROM_FILE, MC_OPTION_FROM_FLAG };

struct mc_option_value {
    enum mc_option_source source;
    int64_t number; /* bool, int, durations */
    double real;
    char *text; /* text only; owned */
};

struct mc_options {
    const struct mc_option *table;
    size_t count;
    struct mc_option_value values[MC_OPTIONS_MAX];
};

/* The text of a file, or NULL with the reason in error. The caller of it frees. */
typedef char *mc_options_read(void *context, const char *path, size_t *length, char *error, size_t error_size);

/* Fills in the defaults. A table with a bad default is our own mistake and asserts. */
void mc_options_init(struct mc_options *options, const struct mc_option *table, size_t count);
void mc_options_free(struct mc_options *options);

/* argv[0] is skipped. 0 or MC_ERR_INVALID_PARAMS with the line in error. read may be NULL: flag files are refused then.
 */
int mc_options_parse(struct mc_options *options, int argc, char *const *argv, mc_options_read *read, void *context,
                     char *error, size_t error_size);
/* Sets one value from text. prefix ("--" or "file.yaml:3: ") only words the error. Keeps the old value when that came
 * from a stronger source. */
int mc_options_set(struct mc_options *options, size_t index, const char *text, enum mc_option_source source,
                   const char *prefix, char *error, size_t error_size);
/* Row of that name (dash = underscore; also by file_name), after aliases; -1 when there is none. */
int mc_options_find(const struct mc_options *options, const char *name);
/* The name nearest to a wrong one, or NULL when none is near. */
const char *mc_options_nearest(const struct mc_options *options, const char *name);

/* Values by name; a name that is not in the table asserts. */
const struct mc_option_value *mc_options_value(const struct mc_options *options, const char *name);
bool mc_options_bool(const struct mc_options *options, const char *name);
int64_t mc_options_int(const struct mc_options *options, const char *name);
double mc_options_real(const struct mc_options *options, const char *name);
const char *mc_options_text(const struct mc_options *options, const char *name);
enum mc_option_source mc_options_source(const struct mc_options *options, const char *name);
/* Does the value differ from the default? */
bool mc_options_changed(const struct mc_options *options, size_t index);

/* Writes each value whose row names a member (TO in option_rows.h) into the command's config. A text that does not fit
 * is MC_ERR_INVALID_PARAMS with the line in error. */
int mc_options_store(const struct mc_options *options, void *config, char *error, size_t error_size);

/* --help, --version and --verbose, which every command has (VERSION in option_rows.h): the answer, with `head` above
 * the flags. A table with a row `helpfull` has all flags shown by that one only. False: none was given. */
bool mc_options_answer(const struct mc_options *options, const char *command, const char *head, struct mc_buffer *out);
/* Appends a line per row with type, default, range and status; without `all` not of those that change nothing. */
void mc_options_help(const struct mc_options *options, bool all, struct mc_buffer *out);
/* Appends all values as YAML that can be given back as a config file. */
void mc_options_print(const struct mc_options *options, struct mc_buffer *out);

#endif
