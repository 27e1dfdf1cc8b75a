/* The table of checks, and what is made of their facts. */
#include "doctor/doctor.h"

#include "base/error.h"
#include "env/json.h"
#include "env/meter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const struct check {
    const char *section, *name;
    void (*run)(struct mc_doctor *doctor);
} checks[] = {
#define ROW(section, name) {section, #name, mc_check_##name},
    MC_DOCTOR_CHECKS(ROW)
#undef ROW
};

static const char *const verdict_names[] = {"fine", "note", "warning", "broken"};
static const char *const verdict_marks[] = {"ok", "note", "WARN", "FAIL"};

void mc_doctor_init(struct mc_doctor *doctor, const struct mc_doctor_config *config)
{
    *doctor = (struct mc_doctor){.config = *config};
}

void mc_doctor_free(struct mc_doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++) {
        free(doctor->facts[i].name);
        free(doctor->facts[i].value);
        free(doctor->facts[i].fix);
    }
    free(doctor->facts);
    *doctor = (struct mc_doctor){0};
}

void mc_doctor_run(struct mc_doctor *doctor)
{
    struct mc_meter meter;
    mc_meter_begin(&meter);
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        doctor->section = checks[i].section;
        mc_meter_step(&meter, checks[i].name, "", 0, 0);
        mc_meter_note(&meter, "check %zu of %zu", i + 1, sizeof(checks) / sizeof(checks[0]));
        checks[i].run(doctor);
    }
    mc_meter_end(&meter);
}

int mc_doctor_code(const struct mc_doctor *doctor)
{
    return doctor->verdicts[MC_VERDICT_BROKEN] > 0 ? 1 : 0;
}

/* ---- saying ---- */

/* Never NULL: without memory the process ends, as with every buffer. */
static size_t name_width(const struct mc_doctor *doctor)
{
    size_t width = 0;
    for (size_t i = 0; i < doctor->count; i++) {
        size_t length = strlen(doctor->facts[i].name);
        if (length > width && length <= 40)
            width = length;
    }
    return width;
}

void mc_doctor_print(const struct mc_doctor *doctor, struct mc_buffer *out)
{
    int width = (int)name_width(doctor);
    const char *section = "";
    for (size_t i = 0; i < doctor->count; i++) {
        const struct mc_fact *fact = &doctor->facts[i];
        if (strcmp(section, fact->section) != 0)
            mc_buffer_printf(out, "%s%s\n", i == 0 ? "" : "\n", fact->section);
        section = fact->section;
        mc_buffer_printf(out, "  %-4s  %-*s  %s", verdict_marks[fact->verdict], width, fact->name, fact->value);
        if (fact->error != 0)
            mc_buffer_printf(out, " (errno %d: %s)", fact->error, strerror(fact->error));
        mc_buffer_append(out, "\n", 1);
        if (fact->fix != NULL)
            mc_buffer_printf(out, "        %*s  -> %s\n", width, "", fact->fix);
    }
    if (doctor->left_out > 0)
        mc_buffer_printf(out, "\n%zu more facts are left out\n", doctor->left_out);
    mc_buffer_printf(out, "\n%zu broken, %zu warnings\n", doctor->verdicts[MC_VERDICT_BROKEN],
                     doctor->verdicts[MC_VERDICT_WARNING]);
}

static void put_member(struct mc_buffer *out, const char *name, const char *text)
{
    mc_buffer_printf(out, "\"%s\":", name);
    mc_json_put_text(out, text);
}

void mc_doctor_print_json(const struct mc_doctor *doctor, struct mc_buffer *out)
{
    mc_buffer_printf(out, "{\"code\":%d,\"broken\":%zu,\"warnings\":%zu,\"facts\":[", mc_doctor_code(doctor),
                     doctor->verdicts[MC_VERDICT_BROKEN], doctor->verdicts[MC_VERDICT_WARNING]);
    for (size_t i = 0; i < doctor->count; i++) {
        const struct mc_fact *fact = &doctor->facts[i];
        mc_buffer_printf(out, "%s\n{", i == 0 ? "" : ",");
        put_member(out, "section", fact->section);
        mc_buffer_printf(out, ",\"verdict\":\"%s\",", verdict_names[fact->verdict]);
        put_member(out, "name", fact->name);
        mc_buffer_append(out, ",", 1);
        put_member(out, "value", fact->value);
        if (fact->error != 0) {
            mc_buffer_printf(out, ",\"errno\":%d,", fact->error);
            put_member(out, "error", strerror(fact->error));
        }
        if (fact->fix != NULL) {
            mc_buffer_append(out, ",", 1);
            put_member(out, "fix", fact->fix);
        }
        mc_buffer_append(out, "}", 1);
    }
    mc_buffer_printf(out, "]}\n");
}

/* ---- reading ---- */
