/* What the checks say, and how they read the files of a machine. */
#include "doctor/doctor.h"

#include "base/error.h"
#include "env/json.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define FOLDER_NAMES_MAX 4096u

static char *copy_of(const char *text)
{
    struct mc_buffer copy = {0};
    mc_buffer_append(&copy, text, strlen(text) + 1);
    return (char *)copy.data;
}

/* What others say ends up in terminals and in JSON: control characters and what is not UTF-8 become question marks. */
static char *clean_copy_of(const char *text)
{
    char *copy = copy_of(text);
    unsigned char *end = (unsigned char *)copy + strlen(copy);
    for (unsigned char *at = (unsigned char *)copy; at < end;) {
        size_t length = mc_utf8_length(at, (size_t)(end - at));
        bool is_control = *at < 0x20 || *at == 0x7f || (length == 2 && at[0] == 0xc2 && at[1] < 0xa0);
        if (length != 0 && !is_control) {
            at += length;
            continue;
        }
        for (size_t i = 0; i < (length == 0 ? 1 : length); i++)
            *at++ = '?';
    }
    return copy;
}

void mc_doctor_say(struct mc_doctor *doctor, enum mc_verdict verdict, const char *name, int error, const char *fix,
                   const char *format, ...)
{
    char value[MC_DOCTOR_LINE_MAX];
    va_list arguments;
    doctor->verdicts[verdict]++;
    if (doctor->count == MC_DOCTOR_FACTS_MAX) {
        doctor->left_out++;
        return;
    }
    if (doctor->count % 64 == 0) {
        struct mc_fact *more = realloc(doctor->facts, (doctor->count + 64) * sizeof(*more));
        if (more == NULL) {
            doctor->left_out++;
            return;
        }
        doctor->facts = more;
    }
    va_start(arguments, format);
    (void)vsnprintf(value, sizeof(value), format, arguments);
    va_end(arguments);
    doctor->facts[doctor->count++] = (struct mc_fact){
        .section = doctor->section,
        .verdict = verdict,
        .name = clean_copy_of(name),
        .value = clean_copy_of(value),
        .fix = fix == NULL ? NULL : copy_of(fix),
        .error = error,
    };
}

enum mc_verdict mc_doctor_if_rdma(const struct mc_doctor *doctor, enum mc_verdict otherwise)
{
    return strcmp(doctor->config.protocol, "rdma") == 0 ? MC_VERDICT_BROKEN : otherwise;
}

/* ---- text ---- */

bool mc_doctor_path(const struct mc_doctor *doctor, char path[MC_DOCTOR_LINE_MAX], const char *name)
{
    int length = snprintf(path, MC_DOCTOR_LINE_MAX, "%s%s", doctor->config.root, name);
    return length > 0 && (size_t)length < MC_DOCTOR_LINE_MAX;
}

bool mc_doctor_line(const struct mc_doctor *doctor, char line[MC_DOCTOR_LINE_MAX], const char *name)
{
    char path[MC_DOCTOR_LINE_MAX];
    line[0] = 0;
    FILE *file = mc_doctor_path(doctor, path, name) ? fopen(path, "re") : NULL;
    bool is_there = file != NULL && fgets(line, (int)MC_DOCTOR_LINE_MAX, file) != NULL;
    if (file != NULL)
        fclose(file);
    line[strcspn(line, "\n")] = 0;
    return is_there;
}

bool mc_doctor_linef(const struct mc_doctor *doctor, char line[MC_DOCTOR_LINE_MAX], const char *format, ...)
{
    char name[MC_DOCTOR_LINE_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    return mc_doctor_line(doctor, line, name);
}

int64_t mc_doctor_number(const struct mc_doctor *doctor, const char *format, ...)
{
    char name[MC_DOCTOR_LINE_MAX], line[MC_DOCTOR_LINE_MAX], *rest;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    if (!mc_doctor_line(doctor, line, name))
        return -1;
    if (strcmp(line, "max") == 0)
        return INT64_MAX;
    errno = 0;
    long long number = strtoll(line, &rest, 10);
    return rest == line || errno != 0 ? -1 : number;
}

int64_t mc_doctor_member(const struct mc_doctor *doctor, const char *name, const char *key, int base)
{
    char path[MC_DOCTOR_LINE_MAX], line[MC_DOCTOR_LINE_MAX];
    size_t length = strlen(key);
    int64_t number = -1;
    FILE *file = mc_doctor_path(doctor, path, name) ? fopen(path, "re") : NULL;
    while (file != NULL && number < 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, key, length) == 0 && line[length] == ':')
            number = (int64_t)strtoull(line + length + 1, NULL, base);
    if (file != NULL)
        fclose(file);
    return number;
}

static int by_version(const void *left, const void *right)
{
    return strverscmp(*(char *const *)left, *(char *const *)right);
}

size_t mc_doctor_folder(const struct mc_doctor *doctor, const char *name, char ***names)
{
    char path[MC_DOCTOR_LINE_MAX];
    size_t count = 0;
    *names = NULL;
    DIR *folder = mc_doctor_path(doctor, path, name) ? opendir(path) : NULL;
    for (const struct dirent *entry; folder != NULL && count < FOLDER_NAMES_MAX && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char **more = count % 64 == 0 ? realloc(*names, (count + 64) * sizeof(*more)) : *names;
        if (more == NULL)
            break;
        *names = more;
        more[count++] = copy_of(entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    if (count > 0)
        qsort(*names, count, sizeof(**names), by_version);
    return count;
}

void mc_doctor_free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

const char *mc_doctor_size(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double number = (double)bytes;
    size_t unit = 0;
    for (; number >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        number /= 1024;
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", number, units[unit]);
    return text;
}

const char *mc_doctor_fix_of_connect(int error)
{
    switch (error) {
    case ECONNREFUSED:
        return "nobody listens on that port: is the process running, and is this its port? (ss -ltn there)";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "a firewall, a route or a wrong address: try it with nc -vz from here";
    default:
        return "is the name right, and known here? (getent hosts NAME)";
    }
}
