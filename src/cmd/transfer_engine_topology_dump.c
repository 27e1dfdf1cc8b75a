/* transfer_engine_topology_dump: which RDMA devices are near which memory, with the original's flags. */
#include "base/error.h"
#include "base/options.h"
#include "env/log.h"
#include "rdma/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* clang-format off */
static const struct mc_option table[] = {
    {.name = "help", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows this text"},
    {.name = "h", .type = MC_OPTION_TEXT, .initial = "", .help = "", .alias_of = "help"},
    {.name = "version", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows the version"},
    {.name = "device_name", .type = MC_OPTION_TEXT, .initial = "", .help = "only these devices, separated by commas"},
    {.name = "backend", .type = MC_OPTION_TEXT, .initial = "auto", .help = "there is one engine here, te; tent is refused", .choices = "auto|te|tent"},
    {.name = "use_custom_topo", .type = MC_OPTION_BOOL, .initial = "false", .help = "uses the file that MC_CUSTOM_TOPO_JSON names; without this flag, sysfs alone"},
    {.name = "custom_topo_json", .type = MC_OPTION_TEXT, .initial = "", .help = "uses this file"},
};
/* clang-format on */

static void print_help(const struct mc_options *options)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(&text, "transfer_engine_topology_dump: which RDMA devices are near which memory, as the priority "
                            "matrix {\"cpu:0\": [[preferred], [others]]}.\nUsage: transfer_engine_topology_dump "
                            "[--device-name mlx5_0,mlx5_1] [--custom-topo-json FILE]\n");
    mc_options_help(options, &text);
    (void)fwrite(text.data, 1, text.length, stdout); /* main looks whether it was written */
    mc_buffer_free(&text);
}

static int dump(const struct mc_options *options)
{
    const char *file = mc_options_text(options, "custom_topo_json"), *given = getenv("MC_CUSTOM_TOPO_JSON");
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
    if (setenv("MC_CUSTOM_TOPO_JSON", file, 1) == 0)
        mc_topology_local(topology, mc_options_text(options, "device_name"), NULL, 0);
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
    char error[MC_OPTION_ERROR_MAX] = "";
    int code = 0;
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "transfer_engine_topology_dump: %s\n", error);
        code = 2;
    } else if (mc_options_bool(&options, "help")) {
        print_help(&options);
    } else if (mc_options_bool(&options, "version")) {
        printf("transfer_engine_topology_dump %s\n", MC_VERSION);
    } else if (strcmp(mc_options_text(&options, "backend"), "tent") == 0) {
        fprintf(stderr, "error: --backend tent: there is one engine here; use te\n");
        code = 1;
    } else {
        code = dump(&options);
    }
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
