/* SPDX-License-Identifier: Apache-2.0
 *
 * MooncakeDistributedStore.setup: positional, by keyword, or one dict with either spelling of its keys. One table
 * serves all three. */
#include "python/store_module.h"

#include "env/log.h"

#include <string.h>

#define LOCAL_BUFFER_MIN 1024
#define DICT_SIZE_DEFAULT (UINT64_C(16) << 20)

enum setup_at {
    AT_LOCAL_HOSTNAME,
    AT_METADATA_SERVER,
    AT_GLOBAL_SEGMENT_SIZE,
    AT_LOCAL_BUFFER_SIZE,
    AT_PROTOCOL,
    AT_RDMA_DEVICES,
    AT_MASTER_SERVER_ADDR,
    AT_ENGINE,
    AT_ENABLE_SSD_OFFLOAD,
    AT_SSD_OFFLOAD_PATH,
    AT_TENANT_ID,
    AT_ENABLE_CLIENT_HTTP_SERVER,
    AT_CLIENT_HTTP_PORT,
    AT_DATA_DIR,
    AT_COUNT
};

/* In the order of the positional form; the canonical name wins over the other spelling. */
static const struct setup_parameter {
    const char *name, *other;
    bool needed;      /* without a default in the positional form */
    bool dict_needed; /* in the dict form */
} setup_parameters[AT_COUNT] = {
    [AT_LOCAL_HOSTNAME] = {"local_hostname", NULL, true, true},
    [AT_METADATA_SERVER] = {"metadata_server", NULL, true, true},
    [AT_GLOBAL_SEGMENT_SIZE] = {"global_segment_size", NULL, true, false},
    [AT_LOCAL_BUFFER_SIZE] = {"local_buffer_size", NULL, true, false},
    [AT_PROTOCOL] = {"protocol", NULL, true, false},
    [AT_RDMA_DEVICES] = {"rdma_devices", "device_name", true, false},
    [AT_MASTER_SERVER_ADDR] = {"master_server_addr", "master_server_address", true, false},
    [AT_ENGINE] = {"engine", NULL, false, false},
    [AT_ENABLE_SSD_OFFLOAD] = {"enable_ssd_offload", NULL, false, false},
    [AT_SSD_OFFLOAD_PATH] = {"ssd_offload_path", NULL, false, false},
    [AT_TENANT_ID] = {"tenant_id", NULL, false, false},
    [AT_ENABLE_CLIENT_HTTP_SERVER] = {"enable_client_http_server", NULL, false, false},
    [AT_CLIENT_HTTP_PORT] = {"client_http_port", NULL, false, false},
    [AT_DATA_DIR] = {"data_dir", NULL, false, false},
};

/* ---- sizes ---- */

/* The multiplier of "", "b", "k", "kb", "kib", "m" … "tib" in any case, or 0. Units are powers of 1024. */
static uint64_t size_unit(const char *text, size_t length)
{
    static const char letters[] = "kmgt";
    char low[4] = "";
    while (length > 0 && text[length - 1] == ' ')
        length--;
    if (length == 0)
        return 1;
    if (length >= sizeof(low) || memchr(text, 0, length) != NULL)
        return 0;
    for (size_t i = 0; i < length; i++)
        low[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] + ('a' - 'A') : text[i]);
    if (strcmp(low, "b") == 0)
        return 1;
    const char *letter = strchr(letters, low[0]);
    if (letter == NULL || (low[1] != 0 && strcmp(low + 1, "b") != 0 && strcmp(low + 1, "ib") != 0))
        return 0;
    return UINT64_C(1) << (10 * (letter - letters + 1));
}

/* "3gb", "16 MB", "1.5g", "1024". Not by strtod: it follows the locale and takes "inf". */
static int parse_size(const char *text, size_t length, uint64_t *size)
{
    uint64_t whole = 0;
    double fraction = 0, scale = 0.1;
    size_t at = 0, digits = 0;
    while (at < length && text[at] == ' ')
        at++;
    for (; at < length && text[at] >= '0' && text[at] <= '9'; at++, digits++) {
        if (whole > (UINT64_MAX - 9) / 10)
            return MC_ERR_INVALID_PARAMS;
        whole = whole * 10 + (uint64_t)(text[at] - '0');
    }
    if (at < length && text[at] == '.')
        for (at++; at < length && text[at] >= '0' && text[at] <= '9'; at++, digits++, scale /= 10)
            fraction += scale * (text[at] - '0');
    while (at < length && text[at] == ' ')
        at++;
    uint64_t unit = size_unit(text + at, length - at);
    if (digits == 0 || unit == 0 || whole > (uint64_t)INT64_MAX / unit)
        return MC_ERR_INVALID_PARAMS;
    *size = whole * unit + (uint64_t)(fraction * (double)unit);
    return *size > INT64_MAX ? MC_ERR_INVALID_PARAMS : 0;
}

/* 0, an enum mc_error, or 1 with an exception. */
static int take_size(PyObject *value, enum setup_at at, bool from_dict, uint64_t *size)
{
    Py_ssize_t length = 0;
    if (value == NULL) {
        *size = DICT_SIZE_DEFAULT;
        return 0;
    }
    if (!from_dict && !PyLong_Check(value) && !PyUnicode_Check(value) && !PyFloat_Check(value) &&
        !PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError, "setup() argument '%s' must be int or str, not %R", setup_parameters[at].name,
                     (PyObject *)Py_TYPE(value));
        return 1;
    }
    PyObject *text = PyObject_Str(value);
    const char *data = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, &length);
    int rc = data == NULL ? 1 : parse_size(data, (size_t)length, size);
    if (rc == 0 && from_dict && at == AT_LOCAL_BUFFER_SIZE && *size > 0 && *size < LOCAL_BUFFER_MIN)
        rc = MC_ERR_INVALID_PARAMS;
    if (rc < 0)
        mc_log(ERROR, "setup: %s \"%s\" is not a size; give bytes or a number with kb, mb, gb or tb%s",
               setup_parameters[at].name, data, at == AT_LOCAL_BUFFER_SIZE ? " (0, or 1 kb and more)" : "");
    Py_XDECREF(text);
    return rc;
}

/* ---- the three forms of arguments, each filling values[] with new references ---- */

static int take_positional(PyObject *const *args, Py_ssize_t count, PyObject **values)
{
    if (count > AT_COUNT) {
        PyErr_Format(PyExc_TypeError, "setup() takes at most %d arguments (%zd given)", (int)AT_COUNT, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(args[i]);
        values[i] = args[i];
    }
    return 0;
}

static int find_parameter(PyObject *name)
{
    for (int i = 0; i < AT_COUNT; i++)
        if (PyUnicode_CompareWithASCIIString(name, setup_parameters[i].name) == 0 ||
            (setup_parameters[i].other != NULL &&
             PyUnicode_CompareWithASCIIString(name, setup_parameters[i].other) == 0))
            return i;
    return -1;
}

static int take_named(PyObject *const *args, PyObject *keywords, PyObject **values)
{
    Py_ssize_t count = keywords == NULL ? 0 : PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i);
        int at = find_parameter(name);
        if (at < 0 || values[at] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         at < 0 ? "setup() got an unexpected keyword argument '%U'"
                                : "setup() got multiple values for argument '%U'",
                         name);
            return -1;
        }
        Py_INCREF(args[i]);
        values[at] = args[i];
    }
    for (int i = 0; i < AT_COUNT; i++) {
        if (setup_parameters[i].needed && values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "setup() missing required argument '%s'", setup_parameters[i].name);
            return -1;
        }
    }
    return 0;
}

/* Unknown keys are ignored, None is absent, any other value counts as its str(). */
static int take_dict(PyObject *config, PyObject **values)
{
    for (int i = 0; i < AT_COUNT; i++) {
        const struct setup_parameter *parameter = &setup_parameters[i];
        PyObject *value = PyDict_GetItemString(config, parameter->name);
        if ((value == NULL || value == Py_None) && parameter->other != NULL)
            value = PyDict_GetItemString(config, parameter->other);
        if (value == NULL || value == Py_None) {
            if (!parameter->dict_needed)
                continue;
            mc_log(ERROR, "setup: the config has no \"%s\"", parameter->name);
            return MC_ERR_INVALID_PARAMS;
        }
        if (i == AT_ENGINE || i == AT_GLOBAL_SEGMENT_SIZE || i == AT_LOCAL_BUFFER_SIZE) {
            Py_INCREF(value);
            values[i] = value;
        } else {
            values[i] = PyObject_Str(value);
        }
        if (values[i] == NULL)
            return 1;
    }
    return 0;
}

/* ---- the call ---- */

/* Borrowed text of a value; NULL stands for "not given". 0, or 1 with an exception. */
static int take_text(PyObject *value, enum setup_at at, const char **text)
{
    *text = NULL;
    if (value == NULL || (at == AT_DATA_DIR && value == Py_None))
        return 0;
    Py_ssize_t length = 0;
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "setup() argument '%s' must be str, not %R", setup_parameters[at].name,
                     (PyObject *)Py_TYPE(value));
        return 1;
    }
    *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (*text == NULL)
        return 1;
    if (strlen(*text) == (size_t)length)
        return 0;
    PyErr_Format(PyExc_ValueError, "setup() argument '%s' holds a NUL character", setup_parameters[at].name);
    return 1;
}

static bool is_on(PyObject *value)
{
    if (value == NULL || value == Py_None)
        return false;
    if (PyUnicode_Check(value))
        return PyUnicode_CompareWithASCIIString(value, "1") == 0 ||
               PyUnicode_CompareWithASCIIString(value, "true") == 0 ||
               PyUnicode_CompareWithASCIIString(value, "True") == 0;
    int truth = PyObject_IsTrue(value);
    if (truth < 0)
        PyErr_Clear();
    return truth > 0;
}

/* Settings of the original that this build accepts without doing what they say: never in silence. */
static void warn_ignored(PyObject **values)
{
    if (is_on(values[AT_ENABLE_SSD_OFFLOAD]))
        mc_log(WARNING, "setup: enable_ssd_offload is not in this build yet: objects stay in memory only");
    if (is_on(values[AT_ENABLE_CLIENT_HTTP_SERVER]))
        mc_log(WARNING, "setup: enable_client_http_server is not in this build yet: no HTTP server was started");
    if (values[AT_TENANT_ID] != NULL && PyUnicode_Check(values[AT_TENANT_ID]) &&
        PyUnicode_CompareWithASCIIString(values[AT_TENANT_ID], "default") != 0)
        mc_log(WARNING,
               "setup: tenants are not in this build yet: tenant_id is ignored, all clients share one space of keys");
}

static int make_config(PyObject **values, bool from_dict, struct mc_store_config *config)
{
    const struct {
        enum setup_at at;
        const char **text;
    } texts[] = {
        {AT_LOCAL_HOSTNAME, &config->local_hostname},
        {AT_METADATA_SERVER, &config->metadata_server},
        {AT_PROTOCOL, &config->protocol},
        {AT_RDMA_DEVICES, &config->rdma_devices},
        {AT_MASTER_SERVER_ADDR, &config->master_server_addr},
        {AT_DATA_DIR, &config->data_dir},
    };
    memset(config, 0, sizeof(*config));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (take_text(values[texts[i].at], texts[i].at, texts[i].text) != 0)
            return 1;
    int rc = take_size(values[AT_GLOBAL_SEGMENT_SIZE], AT_GLOBAL_SEGMENT_SIZE, from_dict, &config->global_segment_size);
    if (rc == 0)
        rc = take_size(values[AT_LOCAL_BUFFER_SIZE], AT_LOCAL_BUFFER_SIZE, from_dict, &config->local_buffer_size);
    return rc;
}

static int open_store(struct mc_py_store *self, const struct mc_store_config *config)
{
    struct mc_store *store = NULL;
    int rc = mc_py_store_opening(self);
    if (rc < 0)
        return rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_store_open(config, &store);
    mc_py_store_opened(self, rc == 0 ? store : NULL);
    Py_END_ALLOW_THREADS return rc;
}

/* The dict of setup(config) and setup(config=config), borrowed, or NULL. */
static PyObject *dict_form(PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    if (count + named != 1 || !PyDict_Check(args[0]))
        return NULL;
    return named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(keywords, 0), "config") == 0 ? args[0] : NULL;
}

const char mc_py_doc_setup[] =
    "setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices, "
    "master_server_addr, "
    "engine=None, enable_ssd_offload=False, ssd_offload_path='', tenant_id='default', enable_client_http_server=False, "
    "client_http_port=9300, data_dir=None)\n--\n\n"
    "Joins a cluster; also setup(config) with one dict of the same names.\n\n"
    "local_hostname       \"host\" or \"host:port\" under which others reach this store; no port: the system chooses "
    "one.\n"
    "metadata_server      accepted (\"P2PHANDSHAKE\", \"http://...\"); nothing is asked there.\n"
    "global_segment_size  bytes lent to the cluster; 0: none, a pure client.\n"
    "local_buffer_size    bytes; 0: a pure server, whose puts and gets return -600.\n"
    "protocol             \"tcp\" or \"rdma\".\n"
    "rdma_devices         to use, separated by commas; \"\" (all) by default. Other spelling: device_name.\n"
    "master_server_addr   \"host:port\" of mooncake_master. Other spelling: master_server_address.\n"
    "engine               accepted; the store has its own transport.\n"
    "data_dir             the segment lies in files there, best under /dev/shm, and outlives the process: the next "
    "store takes\n"
    "                     it up with its objects. None: environment MC_DATA_DIR; \"\": none. None of it is in the "
    "original.\n\n"
    "Sizes are int or text such as \"3gb\", \"16 MB\" (powers of 1024). In the dict every value may be a str, "
    "local_hostname and\n"
    "metadata_server must be there, sizes are 16 MB and the master 127.0.0.1:50051 when not given, unknown keys are "
    "ignored.\n\n"
    "Returns 0; -600: a bad value (the log says which), or set up already; -900: no master answers within its time. "
    "Raises TypeError for\n"
    "a wrong type, a missing or an unknown argument. Returns at once: the segment becomes usable in the background.";

PyObject *mc_py_store_setup(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[AT_COUNT] = {NULL};
    struct mc_store_config config;
    PyObject *dict = dict_form(args, count, keywords);
    int rc;
    if (dict != NULL)
        rc = take_dict(dict, values);
    else
        rc = take_positional(args, count, values) < 0 || take_named(args + count, keywords, values) < 0 ? 1 : 0;
    if (rc == 0)
        rc = make_config(values, dict != NULL, &config);
    if (rc == 0) {
        warn_ignored(values);
        rc = open_store((struct mc_py_store *)object, &config);
    }
    for (int i = 0; i < AT_COUNT; i++)
        Py_XDECREF(values[i]);
    return rc > 0 ? NULL : PyLong_FromLong(rc);
}
