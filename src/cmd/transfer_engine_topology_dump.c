/* transfer_engine_topology_dump: which RDMA devices are near which memory, with the original's flags. */
#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/log.h"
#include "env/unread.h"
#include "rdma/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
    ROW("device_name", TEXT, "", "only these devices, separated by commas"),
    ROW("backend", TEXT, "auto", "there is one engine here, te; tent is refused", CHOICES("auto|te|tent")),
    ROW("use_custom_topo", BOOL, "false", "uses the file that MC_CUSTOM_TOPO_JSON names; without this flag, sysfs alone"),
    ROW("custom_topo_json", TEXT, "", "uses this file"),
};
/* clang-format on */

static const char help_head[] =
    "transfer_engine_topology_dump: which RDMA devices are near which memory, as the priority matrix "
    "{\"cpu:0\": [[preferred], [others]]}.\n"
    "Usage: transfer_engine_topology_dump [--device-name mlx5_0,mlx5_1] [--custom-topo-json FILE]\n";

static int dump(const struct mc_options *options)
{
    const char *file = mc_options_text(options, "custom_topo_json"), *given = mc_variable(MC_CUSTOM_TOPO_JSON);
    struct mc_topology *topology = calloc(1, sizeof(*topology));
    struct mc_buffer text = {0};
    bool uses_custom = mc_options_bool(options, "use_custom_topo");
    if (topology == NULL)
        return 1;
    if (file[0] == 0 && uses_custom && (given == NULL || given[0] == 0)) {
        fprintf(stderr, "error: --use-custom-topo requires MC_CUSTOM_TOPO_JSON\n");
        free(topology);
        return 1;
    }
    if (file[0] == 0 && uses_custom)
        file = given;
    /* What the engine of this environment would see, but for the file. */
    const char *names = mc_options_text(options, "device_name");
    bool is_given = setenv("MC_CUSTOM_TOPO_JSON", file, 1) == 0 && mc_topology_given(topology, names);
    if (file[0] != 0 && !is_given)
        fprintf(
            stderr,
            "%s cannot be used, so this is what sysfs says: name a file that this user can read, with a matrix such "
            "as {\"cpu:0\": [[\"mlx5_0\"], [\"mlx5_1\"]]}\n",
            file);
    if (!is_given)
        mc_topology_discover(topology, "/sys", names, mc_variable(MC_TE_FILTERS), NULL, 0);
    mc_topology_write(topology, &text);
    printf("Local topology [te/%s%s%s]: %.*s\n", file[0] == 0 ? "discover" : "custom (", file, file[0] == 0 ? "" : ")",
           (int)text.length, (const char *)text.data);
    mc_buffer_free(&text);
    free(topology);
    return 0;
}

int main(int argc, char **argv)
{
    struct mc_options options;
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    int code = 0;
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "transfer_engine_topology_dump: %s\n", error);
        code = 2;
    } else if (mc_options_answer(&options, "transfer_engine_topology_dump", help_head, &text)) {
        (void)fwrite(text.data, 1, text.length, stdout); /* fflush says whether it was written */
    } else if (strcmp(mc_options_text(&options, "backend"), "tent") == 0) {
        fprintf(stderr, "error: --backend tent: there is one engine here; use te\n");
        code = 1;
    } else {
        mc_unread_tell();
        code = dump(&options);
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
