/* A library whose import takes as long as a test wants: it says that it has begun, and waits for a byte. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void wait_for_the_test(void)
{
    char byte = 0;
    const char *says = getenv("MC_TEST_IMPORT_SAYS"), *waits = getenv("MC_TEST_IMPORT_WAITS");
    if (says == NULL || waits == NULL || write(atoi(says), &byte, 1) != 1)
        return;
    (void)!read(atoi(waits), &byte, 1);
}
