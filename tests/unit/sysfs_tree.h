/* Trees like sysfs in a folder of their own, with PCI devices and RDMA devices at made-up places. */
#ifndef MC_TESTS_SYSFS_TREE_H
#define MC_TESTS_SYSFS_TREE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "rdma/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tree {
    char root[64];
    struct mc_topology topology;
};

static inline void make_folders(const char *path)
{
    char part[512];
    snprintf(part, sizeof(part), "%s", path);
    for (char *at = part + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        (void)mkdir(part, 0700);
        *at = '/';
    }
}

static inline void put(const struct tree *tree, const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s/%s", tree->root, path);
    make_folders(whole);
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline void join(const struct tree *tree, const char *path, const char *target)
{
    char whole[512], full[512];
    snprintf(whole, sizeof(whole), "%s/%s", tree->root, path);
    snprintf(full, sizeof(full), "%s/%s", tree->root, target);
    make_folders(whole);
    assert_int_equal(symlink(full, whole), 0);
}

/* A PCI device at that place below devices/, known under its last name. */
static inline void put_pci(const struct tree *tree, const char *place, const char *node)
{
    char path[256], target[256];
    snprintf(path, sizeof(path), "devices/%s/numa_node", place);
    put(tree, path, node);
    snprintf(path, sizeof(path), "bus/pci/devices/%s", strrchr(place, '/') + 1);
    snprintf(target, sizeof(target), "devices/%s", place);
    join(tree, path, target);
}

static inline void put_nic(const struct tree *tree, const char *name, const char *place, const char *node,
                           const char *state)
{
    char path[256], target[256];
    put_pci(tree, place, node);
    snprintf(path, sizeof(path), "class/infiniband/%s/device", name);
    snprintf(target, sizeof(target), "devices/%s", place);
    join(tree, path, target);
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/1/state", name);
    put(tree, path, state);
}

static inline int set_up(void **state)
{
    struct tree *tree = calloc(1, sizeof(*tree));
    assert_non_null(tree);
    snprintf(tree->root, sizeof(tree->root), "/tmp/test_topology_XXXXXX");
    assert_non_null(mkdtemp(tree->root));
    *state = tree;
    return 0;
}

static inline int tear_down(void **state)
{
    struct tree *tree = *state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", tree->root);
    int rc = system(command);
    free(tree);
    return rc;
}

#endif
