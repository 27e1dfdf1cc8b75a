/* OpenSSL as one table of function pointers, opened at run time: nothing is linked, no header of it is needed, and what
 * the machine's updates mend is mended here. Versions 3 and 1.1 (1.1.1 is the first with TLS 1.3). */
#ifndef MC_ENV_OPENSSL_H
#define MC_ENV_OPENSSL_H

#include <stddef.h>
#include <time.h>

/* OpenSSL's own structs, which nobody looks into. */
struct ssl_ctx_st;
struct ssl_st;
struct ssl_method_st;
struct bio_st;
struct bio_method_st;
struct X509_VERIFY_PARAM_st;
struct evp_md_st;
struct ssl_session_st;
struct stack_st;
struct x509_st;
struct asn1_string_st;

/* return type, field, symbol, parameters. libcrypto's are found by way of libssl, which needs it. */
#define MC_OPENSSL_MAP(X)                                                                                              \
    X(const struct ssl_method_st *, client_method, "TLS_client_method", (void))                                        \
    X(const struct ssl_method_st *, server_method, "TLS_server_method", (void))                                        \
    X(struct ssl_ctx_st *, ctx_new, "SSL_CTX_new", (const struct ssl_method_st *))                                     \
    X(void, ctx_free, "SSL_CTX_free", (struct ssl_ctx_st *))                                                           \
    X(long, ctx_ctrl, "SSL_CTX_ctrl", (struct ssl_ctx_st *, int, long, void *))                                        \
    X(unsigned long, ctx_set_options, "SSL_CTX_set_options", (struct ssl_ctx_st *, unsigned long))                     \
    X(void, ctx_set_verify, "SSL_CTX_set_verify", (struct ssl_ctx_st *, int, void *))                                  \
    X(int, ctx_trust_file, "SSL_CTX_load_verify_locations", (struct ssl_ctx_st *, const char *, const char *))         \
    X(int, ctx_trust_machine, "SSL_CTX_set_default_verify_paths", (struct ssl_ctx_st *))                               \
    X(int, ctx_use_chain, "SSL_CTX_use_certificate_chain_file", (struct ssl_ctx_st *, const char *))                   \
    X(int, ctx_use_key, "SSL_CTX_use_PrivateKey_file", (struct ssl_ctx_st *, const char *, int))                       \
    X(const struct x509_st *, ctx_get_certificate, "SSL_CTX_get0_certificate", (const struct ssl_ctx_st *))            \
    X(void, ctx_set_password_function, "SSL_CTX_set_default_passwd_cb",                                                \
      (struct ssl_ctx_st *, int (*)(char *, int, int, void *)))                                                        \
    X(void, ctx_set_read_buffer, "SSL_CTX_set_default_read_buffer_len", (struct ssl_ctx_st *, size_t))                 \
    X(int, ctx_set_tickets, "SSL_CTX_set_num_tickets", (struct ssl_ctx_st *, size_t))                                  \
    X(int, ctx_set_session_context, "SSL_CTX_set_session_id_context",                                                  \
      (struct ssl_ctx_st *, const unsigned char *, unsigned))                                                          \
    X(long, ctx_set_timeout, "SSL_CTX_set_timeout", (struct ssl_ctx_st *, long))                                       \
    X(int, ctx_set_ticket_functions, "SSL_CTX_set_session_ticket_cb",                                                  \
      (struct ssl_ctx_st *, int (*)(struct ssl_st *, void *),                                                          \
       int (*)(struct ssl_st *, struct ssl_session_st *, const unsigned char *, size_t, int, void *), void *))         \
    X(void, ctx_set_new_session_function, "SSL_CTX_sess_set_new_cb",                                                   \
      (struct ssl_ctx_st *, int (*)(struct ssl_st *, struct ssl_session_st *)))                                        \
    X(struct ssl_ctx_st *, get_ctx, "SSL_get_SSL_CTX", (const struct ssl_st *))                                        \
    X(struct ssl_session_st *, get_session, "SSL_get_session", (const struct ssl_st *))                                \
    X(int, set_session, "SSL_set_session", (struct ssl_st *, struct ssl_session_st *))                                 \
    X(int, is_resumed, "SSL_session_reused", (const struct ssl_st *))                                                  \
    X(int, session_is_usable, "SSL_SESSION_is_resumable", (const struct ssl_session_st *))                             \
    X(int, session_set_data, "SSL_SESSION_set1_ticket_appdata", (struct ssl_session_st *, const void *, size_t))       \
    X(int, session_get_data, "SSL_SESSION_get0_ticket_appdata", (struct ssl_session_st *, void **, size_t *))          \
    X(void, free_session, "SSL_SESSION_free", (struct ssl_session_st *))                                               \
    X(int, set_data, "SSL_set_ex_data", (struct ssl_st *, int, void *))                                                \
    X(void *, get_data, "SSL_get_ex_data", (const struct ssl_st *, int))                                               \
    X(struct stack_st *, get_verified_chain, "SSL_get0_verified_chain", (const struct ssl_st *))                       \
    X(int, stack_count, "OPENSSL_sk_num", (const struct stack_st *))                                                   \
    X(void *, stack_get, "OPENSSL_sk_value", (const struct stack_st *, int))                                           \
    X(const struct asn1_string_st *, get_not_after, "X509_get0_notAfter", (const struct x509_st *))                    \
    X(int, time_to_tm, "ASN1_TIME_to_tm", (const struct asn1_string_st *, struct tm *))                                \
    X(struct ssl_st *, new_connection, "SSL_new", (struct ssl_ctx_st *))                                               \
    X(void, free_connection, "SSL_free", (struct ssl_st *))                                                            \
    X(void, set_bio, "SSL_set_bio", (struct ssl_st *, struct bio_st *, struct bio_st *))                               \
    X(void, set_connect_state, "SSL_set_connect_state", (struct ssl_st *))                                             \
    X(void, set_accept_state, "SSL_set_accept_state", (struct ssl_st *))                                               \
    X(long, ctrl, "SSL_ctrl", (struct ssl_st *, int, long, void *))                                                    \
    X(int, set_host, "SSL_set1_host", (struct ssl_st *, const char *))                                                 \
    X(struct X509_VERIFY_PARAM_st *, get_param, "SSL_get0_param", (struct ssl_st *))                                   \
    X(int, param_set_ip, "X509_VERIFY_PARAM_set1_ip_asc", (struct X509_VERIFY_PARAM_st *, const char *))               \
    X(void, param_set_host_flags, "X509_VERIFY_PARAM_set_hostflags", (struct X509_VERIFY_PARAM_st *, unsigned))        \
    X(int, do_handshake, "SSL_do_handshake", (struct ssl_st *))                                                        \
    X(int, get_error, "SSL_get_error", (const struct ssl_st *, int))                                                   \
    X(long, get_verify_result, "SSL_get_verify_result", (const struct ssl_st *))                                       \
    X(const char *, verify_text, "X509_verify_cert_error_string", (long))                                              \
    X(int, read, "SSL_read", (struct ssl_st *, void *, int))                                                           \
    X(int, peek, "SSL_peek", (struct ssl_st *, void *, int))                                                           \
    X(int, write, "SSL_write", (struct ssl_st *, const void *, int))                                                   \
    X(int, has_pending, "SSL_has_pending", (const struct ssl_st *))                                                    \
    X(int, end, "SSL_shutdown", (struct ssl_st *))                                                                     \
    X(void, set_ends, "SSL_set_shutdown", (struct ssl_st *, int))                                                      \
    X(struct bio_st *, bio_new, "BIO_new", (const struct bio_method_st *))                                             \
    X(int, bio_free, "BIO_free", (struct bio_st *))                                                                    \
    X(struct bio_method_st *, bio_method_new, "BIO_meth_new", (int, const char *))                                     \
    X(int, bio_method_set_read, "BIO_meth_set_read", (struct bio_method_st *, int (*)(struct bio_st *, char *, int)))  \
    X(int, bio_method_set_write, "BIO_meth_set_write",                                                                 \
      (struct bio_method_st *, int (*)(struct bio_st *, const char *, int)))                                           \
    X(int, bio_method_set_ctrl, "BIO_meth_set_ctrl",                                                                   \
      (struct bio_method_st *, long (*)(struct bio_st *, int, long, void *)))                                          \
    X(void, bio_set_init, "BIO_set_init", (struct bio_st *, int))                                                      \
    X(void, bio_set_data, "BIO_set_data", (struct bio_st *, void *))                                                   \
    X(void *, bio_get_data, "BIO_get_data", (struct bio_st *))                                                         \
    X(void, bio_set_flags, "BIO_set_flags", (struct bio_st *, int))                                                    \
    X(void, bio_clear_flags, "BIO_clear_flags", (struct bio_st *, int))                                                \
    X(unsigned long, error_next, "ERR_get_error", (void))                                                              \
    X(void, error_clear, "ERR_clear_error", (void))                                                                    \
    X(const char *, error_reason, "ERR_reason_error_string", (unsigned long))                                          \
    X(const struct evp_md_st *, sha256, "EVP_sha256", (void))                                                          \
    X(unsigned char *, hmac, "HMAC",                                                                                   \
      (const struct evp_md_st *, const void *, int, const unsigned char *, size_t, unsigned char *, unsigned *))

struct mc_openssl {
#define FIELD(type, name, symbol, parameters) type(*name) parameters;
    MC_OPENSSL_MAP(FIELD)
#undef FIELD
};

/* The same for the whole life of the process; NULL with a line in error: there is none on this machine. */
const struct mc_openssl *mc_openssl_open(char *error, size_t error_size);

/* Constants of its headers; they are part of its binary interface. */
#define MC_OPENSSL_PEM 1
#define MC_OPENSSL_VERIFY_PEER 1
#define MC_OPENSSL_VERIFY_DEMAND 2 /* a peer without a certificate is refused, too */
#define MC_OPENSSL_NO_RENEGOTIATION 0x40000000ul
#define MC_OPENSSL_CTRL_MODE 33 /* of a context */
#define MC_OPENSSL_MODE_MOVING_WRITE 2
#define MC_OPENSSL_MODE_RELEASE_BUFFERS 16
#define MC_OPENSSL_CTRL_READ_AHEAD 41
#define MC_OPENSSL_CTRL_SESSION_CACHE 44
#define MC_OPENSSL_SESSIONS_ARE_TOLD 0x301 /* to a caller, and kept nowhere else */
#define MC_OPENSSL_CTRL_TICKET_KEYS 59
#define MC_OPENSSL_CTRL_SERVER_NAME 55     /* of a connection */
#define MC_OPENSSL_CTRL_PEER_SIGNATURE 108 /* of a connection: by which the peer has proved its certificate */
#define MC_OPENSSL_CTRL_LEAST_VERSION 123
#define MC_OPENSSL_TLS_1_2 0x0303
#define MC_OPENSSL_TLS_1_3 0x0304
/* Of a BIO: to be asked again, for want of a read or of a write; what it is told to do. */
#define MC_OPENSSL_BIO_READ_LATER (8 | 1)
#define MC_OPENSSL_BIO_WRITE_LATER (8 | 2)
#define MC_OPENSSL_BIO_FLAGS 0xf
#define MC_OPENSSL_BIO_FLUSH 11
#define MC_OPENSSL_BIO_TYPE (0x0400 | 0x7f) /* sends and receives; a number of nobody's */
#define MC_OPENSSL_NO_PARTIAL_WILDCARDS 0x4u
#define MC_OPENSSL_NEVER_THE_SUBJECT 0x20u
enum {
    MC_OPENSSL_ERROR_SSL = 1,
    MC_OPENSSL_ERROR_WANT_READ = 2,
    MC_OPENSSL_ERROR_WANT_WRITE = 3,
    MC_OPENSSL_ERROR_CLOSED = 6
};
#define MC_OPENSSL_ENDS_BOTH 3 /* both sides have said that nothing more comes */
enum {                         /* of a ticket: what became of it, and what is to */
       MC_OPENSSL_TICKET_GOOD = 5,
       MC_OPENSSL_TICKET_GOOD_RENEW = 6,
       MC_OPENSSL_TICKET_IGNORE = 2, /* and another one is given */
       MC_OPENSSL_TICKET_USE = 4     /* the same */
};
/* Of an error number: what went wrong, as libssl counts it; alerts of the peer are 1000 and their number in TLS. */
#define MC_OPENSSL_REASON(number) ((unsigned)((number)&0xfffu))
enum {
    MC_OPENSSL_REASON_NOT_VERIFIED = 134,
    MC_OPENSSL_REASON_HTTP = 156,
    MC_OPENSSL_REASON_TOO_LONG = 198,
    MC_OPENSSL_REASON_NO_CERTIFICATE = 199,
    MC_OPENSSL_REASON_NOT_TLS = 267,
    MC_OPENSSL_REASON_OLD_PROTOCOL = 258,
    MC_OPENSSL_REASON_ALERT = 1000,
};
enum {
    MC_OPENSSL_ALERT_FAILURE = 40,
    MC_OPENSSL_ALERT_BAD_CERTIFICATE = 42,
    MC_OPENSSL_ALERT_ACCESS_DENIED = 49,
    MC_OPENSSL_ALERT_PROTOCOL_VERSION = 70,
    MC_OPENSSL_ALERT_CERTIFICATE_REQUIRED = 116,
};
enum { /* of SSL_get_verify_result */
       MC_OPENSSL_NO_ISSUER = 2,
       MC_OPENSSL_NOT_YET_VALID = 9,
       MC_OPENSSL_EXPIRED = 10,
       MC_OPENSSL_SELF_SIGNED = 18,
       MC_OPENSSL_SELF_SIGNED_IN_CHAIN = 19,
       MC_OPENSSL_NO_ISSUER_HERE = 20,
       MC_OPENSSL_NOT_SIGNED = 21,
       MC_OPENSSL_OTHER_HOST = 62,
       MC_OPENSSL_OTHER_IP = 64,
};

#endif
