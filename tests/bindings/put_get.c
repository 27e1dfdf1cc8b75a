/* A user of the original store's C interface. Arguments: "host:port" of a master. Exits 0 when the bytes are right. */
#include "store_c.h"

#include <stdio.h>
#include <string.h>

int main(int count, char **arguments)
{
    char back[16] = "";
    const char *key = "in C";
    mooncake_store_t store = mooncake_store_create();
    if (count != 2 || store == NULL ||
        mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", arguments[1]) != 0)
        return 1;
    const int put = mooncake_store_put(store, key, "hello", 5, NULL);
    const long long got = mooncake_store_get_into(store, key, back, sizeof(back));
    const int removed = mooncake_store_remove(store, key, 1);
    mooncake_store_destroy(store);
    printf("put %d, got %lld bytes: %s, removed %d\n", put, got, back, removed);
    return put == 0 && got == 5 && strcmp(back, "hello") == 0 && removed == 0 ? 0 : 1;
}
