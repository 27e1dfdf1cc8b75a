/* The label of the pod of a leader. */
#include "store/master/pod.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/k8s.h"
#include "env/log.h"
#include "env/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define LABEL "mooncake.io/store-role"
#define CALL_NS 2000000000u
#define LAST_CALL_NS 1000000000u
#define RETRY_NS 1000000000u
#define LOOK_NS 30000000000u /* what somebody else, or a call that came late, has changed is put right after so long */

struct mc_pod {
    struct mc_sleeper sleeper;
    struct mc_k8s *k8s;
    char path[2 * MC_POD_NAME_MAX + 64];
    struct mc_buffer reply;
    bool leads; /* what was said last; under the lock */
};

bool mc_pod_is_name(const char *text)
{
    struct mc_k8s_lease parsed;
    return strchr(text, '/') == NULL && mc_k8s_lease_parse(text, &parsed) == 0;
}

static bool set_label(struct mc_pod *pod, bool leads, uint64_t deadline_ns)
{
    const char *value = leads ? "\"leader\"" : "null";
    char body[128];
    int length = snprintf(body, sizeof(body), "{\"metadata\":{\"labels\":{\"" LABEL "\":%s}}}", value);
    int rc = mc_k8s_patch(pod->k8s, pod->path, mc_span(body, (size_t)length), deadline_ns, &pod->reply);
    if (rc == 404)
        mc_log_limited(ERROR, "no pod has the path %s: --pod_name and --pod_namespace name this master's", pod->path);
    return rc == 200;
}

/* Under the lock but for the call: what is wanted is looked at again after each. */
static void *run(void *argument)
{
    struct mc_pod *pod = argument;
    struct mc_sleeper *sleeper = &pod->sleeper;
    bool is_known = false, label = false; /* what it was last brought to, as far as that is known */
    bool is_last = false;
    uint64_t wake_ns = 0;
    pthread_mutex_lock(&sleeper->lock);
    while (!is_last) {
        bool wanted = pod->leads && !sleeper->stop, is_right = is_known && label == wanted;
        bool may_wait =
            is_right || !is_known; /* after a call that failed nothing is asked at once, whatever is wanted */
        uint64_t now_ns = mc_clock_ns();
        if (sleeper->stop && is_right)
            break;
        if (!sleeper->stop && may_wait && now_ns < wake_ns) {
            (void)mc_monitor_wait(&sleeper->lock, &sleeper->changed, wake_ns);
            continue;
        }
        is_last = sleeper->stop;
        pthread_mutex_unlock(&sleeper->lock);
        is_known = set_label(pod, wanted, now_ns + (is_last ? LAST_CALL_NS : CALL_NS));
        label = wanted;
        wake_ns = mc_clock_ns() + (is_known ? LOOK_NS : RETRY_NS);
        pthread_mutex_lock(&sleeper->lock);
    }
    pthread_mutex_unlock(&sleeper->lock);
    return NULL;
}

int mc_pod_create(const char *space, const char *name, struct mc_pod **out, char *error, size_t error_size)
{
    struct mc_pod *pod = calloc(1, sizeof(*pod));
    if (pod == NULL) {
        snprintf(error, error_size, "no memory for the label of a pod");
        return MC_ERR_NO_MEMORY;
    }
    int rc = mc_k8s_create(&pod->k8s, error, error_size);
    if (rc < 0) {
        free(pod);
        return rc;
    }
    snprintf(pod->path, sizeof(pod->path), "/api/v1/namespaces/%s/pods/%s", space, name);
    mc_monitor_init(&pod->sleeper.lock, &pod->sleeper.changed);
    if (mc_sleeper_start(&pod->sleeper, "mc-pod", run, pod) != 0) {
        snprintf(error, error_size, "no thread can be started for the label of a pod");
        mc_pod_destroy(pod);
        return MC_ERR_NO_MEMORY;
    }
    *out = pod;
    return 0;
}

void mc_pod_lead(struct mc_pod *pod, bool leads)
{
    if (pod == NULL)
        return;
    pthread_mutex_lock(&pod->sleeper.lock);
    if (pod->leads != leads)
        pthread_cond_signal(&pod->sleeper.changed);
    pod->leads = leads;
    pthread_mutex_unlock(&pod->sleeper.lock);
}

void mc_pod_destroy(struct mc_pod *pod)
{
    if (pod == NULL)
        return;
    mc_sleeper_end(&pod->sleeper);
    mc_k8s_destroy(pod->k8s);
    mc_buffer_free(&pod->reply);
    free(pod);
}
