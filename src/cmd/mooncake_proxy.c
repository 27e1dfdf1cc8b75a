/* mooncake_proxy: parse, run. */
#include "base/error.h"
#include "proxy/proxy.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct mc_proxy_config *config = calloc(1, sizeof(*config)); /* too large for a stack */
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    int code = 1;
    (void)signal(SIGPIPE, SIG_IGN);
    int rc = config == NULL ? MC_ERR_NO_MEMORY : mc_proxy_config_load(argc, argv, config, &text, error, sizeof(error));
    if (rc > 0)
        code = fwrite(text.data, 1, text.length, stdout) == text.length && fflush(stdout) == 0 ? 0 : 1;
    if (rc == 0)
        rc = mc_proxy_run(config, error, sizeof(error));
    if (rc == 0)
        code = 0;
    if (rc < 0)
        fprintf(stderr, "mooncake_proxy: %s\n", error[0] != 0 ? error : mc_error_text(rc));
    mc_buffer_free(&text);
    free(config);
    return code;
}
