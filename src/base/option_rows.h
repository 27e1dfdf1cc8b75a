/* How the rows of a table of options are written: flag, type, default, help, further fields. For the files that hold
 * such a table. */
#ifndef MC_BASE_OPTION_ROWS_H
#define MC_BASE_OPTION_ROWS_H

#include "base/options.h"

#define ROW(flag, kind, value, text, ...)                                                                              \
    {                                                                                                                  \
        .name = flag, .type = MC_OPTION_##kind, .initial = value, .help = text, __VA_ARGS__                            \
    }
#define NEEDLESS(...) ROW(__VA_ARGS__, .status = MC_OPTION_NEEDLESS)
#define ABSENT(sentence, ...) ROW(__VA_ARGS__, .status = MC_OPTION_ABSENT, .instead = sentence)
/* What mc_options_answer looks for, beside --help. */
#define VERSION(...)                                                                                                   \
    ROW("version", BOOL, "false", "shows the version", __VA_ARGS__),                                                   \
        ROW("verbose", BOOL, "false", "shows the version, the build, and the libraries in it", __VA_ARGS__)
#define ALIAS(flag, target) ROW(flag, TEXT, "", "", .alias_of = target)
/* Flags that the original's commands have from the library that writes their log. */
#define LOG_FORM "a line of the log has one form, and is written at once"
#define LOG_NOBODY "nobody is sent the log"
#define FLAGS_OF_ITS_LOG                                                                                               \
    NEEDLESS("colorlogtostderr", BOOL, "false", LOG_FORM), NEEDLESS("log_prefix", BOOL, "true", LOG_FORM),             \
        NEEDLESS("logbuflevel", INT, "0", LOG_FORM), NEEDLESS("logbufsecs", INT, "30", LOG_FORM),                      \
        NEEDLESS("drop_log_memory", BOOL, "true", LOG_FORM), NEEDLESS("log_backtrace_at", TEXT, "", LOG_FORM),         \
        NEEDLESS("symbolize_stacktrace", BOOL, "true", LOG_FORM), NEEDLESS("log_link", TEXT, "", LOG_FORM),            \
        NEEDLESS("logfile_mode", INT, "436", LOG_FORM), NEEDLESS("max_log_size", INT, "1800", LOG_FORM),               \
        NEEDLESS("stop_logging_if_full_disk", BOOL, "false", LOG_FORM),                                                \
        NEEDLESS("vmodule", TEXT, "", "the detail is the same everywhere: MC_LOG_LEVEL"),                              \
        NEEDLESS("alsologtoemail", TEXT, "", LOG_NOBODY), NEEDLESS("logemaillevel", INT, "999", LOG_NOBODY),           \
        NEEDLESS("logmailer", TEXT, "/bin/mail", LOG_NOBODY)
/* What stands for a variable of the environment. */
#define VARIABLE(flag, its, text) ROW(flag, TEXT, "", text "; empty: $" #its, .variable = MC_VARIABLE_##its)
/* TLS (env/secure.h): of who shows a certificate, of who has a port, and of who calls others. */
#define TLS_OF_ALL                                                                                                     \
    VARIABLE("tls_cert", MC_TLS_CERT, "TLS: a certificate (PEM), which is shown to others; own ports take TLS alone"), \
        VARIABLE("tls_key", MC_TLS_KEY, "TLS: its key, without a password, unless that lies in the same file")
#define TLS_OF_PORTS                                                                                                   \
    VARIABLE("tls_client_ca_cert", MC_TLS_CLIENT_CA_CERT,                                                              \
             "TLS: only who shows a certificate that this authority (PEM) has signed is let in")
#define TLS_OF_CALLS                                                                                                   \
    VARIABLE("tls_ca_cert", MC_TLS_CA_CERT,                                                                            \
             "TLS: others are called by it, and believed if this authority (PEM) has signed"),                         \
        VARIABLE("tls_server_name", MC_TLS_SERVER_NAME,                                                                \
                 "TLS: the name that they must prove, where it is not that of the address")
#define SECTION(text) .section = text
#define LIMITS(low, high) .minimum = (low), .maximum = (high)
#define PORT LIMITS(0, 65535)
#define CHOICES(text) .choices = text
#define FLAG_ONLY .is_flag_only = true
#define TO(config, member) .offset = offsetof(struct config, member), .size = sizeof(((struct config *)NULL)->member)

#endif
