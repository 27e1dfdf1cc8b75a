/* mooncake_client: a store node as a process of its own. */
#include "store/service/service.h"

int main(int argc, char **argv)
{
    return mc_service_main(MC_SERVICE_CLIENT, argc, argv);
}
