/* What this process would show to others: a key, and a certificate. */
#include "doctor/doctor.h"

#include "env/keys.h"
#include "env/secure.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#define DAY_S 86400
#define WARN_DAYS 14

void mc_check_keys(struct mc_doctor *doctor)
{
    struct mc_key key;
    struct stat status;
    char file[PATH_MAX], rights[64], fix[PATH_MAX + 128];
    if (!mc_keys_own(&key)) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "key", 0, NULL,
                      "none: of a cluster with keys nothing is told (--auth_file, MC_AUTH_FILE, MC_AUTH_TOKEN)");
        return;
    }
    bool is_file = mc_keys_file(file, sizeof(file));
    bool is_open = is_file && stat(file, &status) == 0 && (status.st_mode & 077) != 0;
    mc_rights_format(rights, sizeof(rights), key.rights);
    snprintf(fix, sizeof(fix), "others than its owner can read the secrets in it: chmod 600 %s", file);
    if (is_file)
        mc_doctor_say(doctor, is_open ? MC_VERDICT_WARNING : MC_VERDICT_FINE, "key", 0, is_open ? fix : NULL,
                      "%s, rights %s, tenant %s, the first of %s (mode %03o)", key.id, rights,
                      key.tenant[0] == 0 ? "default" : key.tenant, file,
                      stat(file, &status) == 0 ? status.st_mode & 0777u : 0);
    else /* what it may do the file of who is asked says */
        mc_doctor_say(doctor, MC_VERDICT_FINE, "key", 0, NULL,
                      "%s, of MC_AUTH_TOKEN; its rights and tenant stand in the file of keys of who is asked", key.id);
}

static void say_certificate(struct mc_doctor *doctor, const struct mc_tls_settings *settings)
{
    char error[MC_TLS_PROBLEM_MAX], day[32] = "?";
    time_t until;
    struct tm parts;
    if (mc_tls_certificate_until(settings, &until, error, sizeof(error)) < 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "certificate", 0, "see to that the files are there and are PEM", "%s",
                      error);
        return;
    }
    long left_s = (long)(until - time(NULL)), days = left_s / DAY_S;
    if (gmtime_r(&until, &parts) != NULL)
        (void)strftime(day, sizeof(day), "%Y-%m-%d", &parts);
    const char *key = settings->key == NULL || settings->key[0] == 0 ? "in the same file" : settings->key;
    enum mc_verdict verdict = until != 0 && left_s <= 0        ? MC_VERDICT_BROKEN
                              : until != 0 && days < WARN_DAYS ? MC_VERDICT_WARNING
                                                               : MC_VERDICT_FINE;
    mc_doctor_say(doctor, verdict, "certificate", 0,
                  verdict == MC_VERDICT_FINE
                      ? NULL
                      : "have it signed anew, and put the new one in its place: it is read again without a restart",
                  "%s, and its key fits (%s); %s %s, %ld days", settings->certificate, key,
                  left_s <= 0 ? "has expired on" : "expires on", day, left_s <= 0 ? -days : days);
}

void mc_check_tls(struct mc_doctor *doctor)
{
    const struct mc_tls_settings settings = mc_secure_calls();
    if (!mc_secure_is_called()) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "TLS", 0, NULL, "off: neither MC_TLS_CA_CERT nor MC_TLS_CERT is set");
        return;
    }
    bool has_authority = settings.authority != NULL && settings.authority[0] != 0;
    mc_doctor_say(doctor, MC_VERDICT_FINE, "TLS", 0, NULL, "on; certificates of others are to be signed by %s%s%s",
                  has_authority ? settings.authority : "an authority of this machine",
                  settings.name == NULL || settings.name[0] == 0 ? "" : ", and to name ",
                  settings.name == NULL ? "" : settings.name);
    if (settings.certificate != NULL && settings.certificate[0] != 0)
        say_certificate(doctor, &settings);
}
