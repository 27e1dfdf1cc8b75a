/* Tasks: the queues that they wait in, and their ends. */
#include "store/disk/inside.h"

void mc_disk_queue_add(struct mc_disk_queue *queue, struct mc_disk_task *task)
{
    task->next = NULL;
    *(queue->last != NULL ? &queue->last->next : &queue->first) = task;
    queue->last = task;
    queue->count++;
}

struct mc_disk_task *mc_disk_queue_take(struct mc_disk_queue *queue)
{
    struct mc_disk_task *task = queue->first;
    queue->first = task->next;
    queue->last = queue->first == NULL ? NULL : queue->last;
    queue->count--;
    return task;
}

void mc_disk_task_answer(struct mc_disk_task *task, int code)
{
    if (task->is_answered)
        return;
    task->is_answered = true;
    switch (task->kind) {
    case MC_DISK_TASK_STORE:
        task->answer.stored(task->context, code, code == 0 ? task->slot : MC_DISK_NO_SLOT);
        break;
    case MC_DISK_TASK_READ: {
        uint8_t *buffer = code == 0 ? task->buffer : NULL;
        task->buffer = code == 0 ? NULL : task->buffer; /* the caller's now */
        task->answer.was_read(task->context, code, &task->entry, buffer);
        break;
    }
    case MC_DISK_TASK_CLEAR:
    case MC_DISK_TASK_MARK:
        task->answer.done(task->context, code);
        break;
    case MC_DISK_TASK_INVENTORY:
        task->answer.listed(task->context, code, task->cursor);
        break;
    case MC_DISK_TASK_REWRITE:
        break;
    }
}

void mc_disk_task_free(struct mc_disk *disk, struct mc_disk_task *task)
{
    if (task->buffer != NULL)
        mc_disk_buffers_give_back(&disk->buffers, task->buffer);
    task->buffer = NULL;
    task->is_used = false;
    if (task->kind == MC_DISK_TASK_REWRITE)
        return;
    pthread_mutex_lock(&disk->lock);
    mc_disk_queue_add(&disk->free_tasks, task);
    pthread_mutex_unlock(&disk->lock);
}
