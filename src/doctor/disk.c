/* The folder for the disk tier that --disk names. */
#include "doctor/doctor.h"

#include "store/disk/probe.h"

void mc_check_disk(struct mc_doctor *doctor)
{
    static const enum mc_verdict verdicts[] = {
        [MC_DISK_FIT] = MC_VERDICT_FINE,
        [MC_DISK_NOTED] = MC_VERDICT_NOTE,
        [MC_DISK_WARNED] = MC_VERDICT_WARNING,
        [MC_DISK_UNFIT] = MC_VERDICT_BROKEN,
    };
    struct mc_disk_probe probe;
    if (doctor->config.disk[0] == 0)
        return;
    mc_disk_probe(doctor->config.disk, true, &probe);
    for (unsigned i = 0; i < probe.count; i++) {
        const struct mc_disk_finding *finding = &probe.findings[i];
        mc_doctor_say(doctor, verdicts[finding->fitness], finding->name, finding->error, finding->fix, "%s",
                      finding->value);
    }
}
