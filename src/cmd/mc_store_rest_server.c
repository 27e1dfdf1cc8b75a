/* mc_store_rest_server: a store node with the REST API; also what `python -m mooncake.mooncake_store_service` runs. */
#include "store/service/service.h"

int main(int argc, char **argv)
{
    return mc_service_main(MC_SERVICE_REST, argc, argv);
}
