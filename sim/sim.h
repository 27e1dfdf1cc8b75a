/* The simulated machine: fibers, processes, a virtual clock, chance. Everything of a run follows from the seed: nothing
 * of the host's time, addresses or scheduling may come in.
 *
 * A process is one life of a master, store node or client: fibers (its threads), descriptors, an arena for malloc and
 * an image of the product's variables. kill -9 drops all of them between two instructions of its fibers: at the next
 * simulated call or in the middle of a copy. What it shared with others (memory files, bytes already sent) stays.
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_PROCESSES_MAX 16u /* places; each holds one life at a time */
#define SIM_FDS_MAX 1024u
#define SIM_KEYS_MAX 16u
#define SIM_NEVER UINT64_MAX
#define SIM_MS 1000000ull

/* ---- chance: independent streams, so that leaving out a fault changes little else ---- */

enum sim_stream {
    SIM_PLAN,
    SIM_NET,
    SIM_SCHEDULE,
    SIM_PRODUCT,
    SIM_FAULTS,
    SIM_EXTRA,
    SIM_UPSERT,
    SIM_VARIANT,
    SIM_RETURN,
    SIM_ANSWER,
    SIM_NOTE,
    SIM_HARD,
    SIM_ELECTION,
    SIM_PIECES,
    SIM_WIDE,
    SIM_SESSION,
    SIM_PIN,
    SIM_JOB,
    SIM_WANT,
    SIM_OLD,
    SIM_LIMIT,
    SIM_FOREIGN,
    SIM_DISK,
    SIM_DISKS,
    SIM_QUOTA,
    SIM_DATA,
    SIM_FIRM,
    SIM_TOLD,
    SIM_WRITE,
    SIM_HINT,
    SIM_STREAMS
};

void sim_random_start(uint64_t seed);
extern uint64_t sim_streams_at[SIM_STREAMS];
static inline uint64_t sim_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}
static inline uint64_t sim_random(enum sim_stream stream)
{
    return sim_mix(sim_streams_at[stream] += 0x9e3779b97f4a7c15ull);
}
/* 0 .. count - 1 */
static inline uint32_t sim_below(enum sim_stream stream, uint32_t count)
{
    return (uint32_t)(((sim_random(stream) >> 32) * count) >> 32);
}
/* Once in `in` times. */
static inline bool sim_once_in(enum sim_stream stream, uint32_t in)
{
    return sim_below(stream, in) == 0;
}

/* ---- processes and fibers ---- */

struct sim_process;
struct sim_file;

struct sim_fiber {
    struct sim_process *process;
    void *stack, *context; /* context: the saved stack pointer */
    void *(*function)(void *argument);
    void *argument, *result;
    int saved_errno;
    const bool *awaited; /* it looks now and then whether this is set */
    uint64_t look_ns;
    char name[16];
    bool used, finished, detached, is_waiting, timed_out, is_halted;
    struct sim_fiber *next_waiter, *next_parked, *joiner, *next;
    void *keys[SIM_KEYS_MAX];
};

struct sim_process {
    uint32_t place, life; /* life: counts the processes in that place */
    char name[24];
    bool alive, stopped, closing;
    bool asleep;               /* its machine is */
    uint32_t halted;           /* threads of it that stand still */
    uint32_t address, machine; /* 10.0.0.address; machine: shares memory and abstract names */
    uint16_t port_next;
    struct sim_fiber *fibers, *parked;
    struct sim_file *fds[SIM_FDS_MAX];
    int fd_top;
    struct sim_arena *arena;
    uint32_t key_count;
    void (*key_destructors[SIM_KEYS_MAX])(void *value);
    uint8_t *image;   /* of the product's variables */
    void *core;       /* of a master */
    bool may_send;    /* of a leader: it has looked at its clock since it sent something */
    bool had_no_room; /* on its disk, or no descriptor for it: what it holds may end with it */
    uint64_t stopped_at_ns, stopped_ns;
    int64_t wall_s; /* how far its wall clock is off */
    void (*run)(struct sim_process *process);
};

extern uint64_t sim_now_ns;
extern struct sim_process sim_processes[SIM_PROCESSES_MAX];
extern struct sim_fiber *sim_fiber; /* the running one, NULL in the driver */
extern bool sim_tracing;
extern uint64_t sim_messages, sim_hash, sim_events;
extern uint32_t sim_delay_us_max, sim_preempt_in; /* drawn by the plan */

static inline struct sim_process *sim_process(void)
{
    return sim_fiber == NULL ? NULL : sim_fiber->process;
}

/* Its machine is awake. */
struct sim_process *sim_process_start(uint32_t place, const char *name, uint32_t machine,
                                      void (*run)(struct sim_process *process));
/* From the driver only. */
void sim_process_kill(struct sim_process *process);
void sim_process_stop(struct sim_process *process);
void sim_process_continue(struct sim_process *process);
/* With its machine. */
void sim_process_sleep(struct sim_process *process);
void sim_process_wake(struct sim_process *process);
/* One of its threads, by its name, stands still while the others go on; false when there is none. */
/* NULL: the one that runs just now, from its next pause on. */
bool sim_thread_halt(struct sim_process *process, const char *name);
void sim_threads_continue(struct sim_process *process);
/* Is all of it running? */
static inline bool sim_is_running(const struct sim_process *process)
{
    return process->alive && !process->stopped && !process->asleep && process->halted == 0;
}
/* How long it was not so far. */
uint64_t sim_process_stopped_ns(const struct sim_process *process);

/* A fiber waits: until sim_wake or the deadline. True: woken. */
bool sim_wait(uint64_t deadline_ns);
void sim_wake(struct sim_fiber *fiber);
/* A point where another process may run, or this one may be stopped or killed. */
void sim_preempt(void);
void sim_sleep_ns(uint64_t ns);
/* Sleeps so long again and again until it is set. */
void sim_sleep_till(const bool *is_set, uint64_t ns);

/* The driver: function(argument) at that time. */
void sim_at(uint64_t time_ns, void (*function)(void *argument), void *argument);
/* Runs what is due until the time, or until nothing is left, or until somebody fails. */
void sim_run(uint64_t until_ns);
/* Called on a fiber in the middle of a copy: the plan may stop or kill the process there. May be NULL. */
extern void (*sim_in_copy)(struct sim_process *process);
/* The same before something is sent on a unix socket. */
extern void (*sim_in_unix_send)(struct sim_process *process);
/* The same before every sending. */
extern void (*sim_in_send)(struct sim_process *process);
extern void (*sim_in_receive)(struct sim_process *process, size_t parts); /* before the bytes are taken */
/* A process began, ended, stopped or went on, or two are cut off from each other or not any more. */
extern void (*sim_on_change)(void);
/* A process has ended: takes back what it holds beside its fibers. */
extern void (*sim_on_end)(struct sim_process *process);
/* Throws processes, fibers and the queue away, and these two; the next run starts at time 0. */
void sim_reset(uint64_t seed);

/* ---- clocks (clock.c); process: whose machine's; NULL: the world's ---- */

void sim_clocks_reset(void);
uint64_t sim_monotonic_ns(const struct sim_process *process);
uint64_t sim_boot_ns(const struct sim_process *process);
int64_t sim_wall_ns(const struct sim_process *process);
uint32_t sim_boots(const struct sim_process *process);
/* When will that machine's monotonic clock be there, if it does not sleep? */
uint64_t sim_world_ns(const struct sim_process *process, uint64_t monotonic_ns);
/* Draws since when it is up, and how fast its clock goes. */
void sim_clock_draw(uint32_t machine);
void sim_wall_step(uint32_t machine, int64_t step_ns);
void sim_machine_sleep(uint32_t machine); /* its processes sleep, too */
void sim_machine_wake(uint32_t machine);
bool sim_machine_sleeps(uint32_t machine);
void sim_machine_boot(uint32_t machine); /* its processes have ended */

/* ---- verdicts ---- */

/* The run has shown a fault. Does not return when called on a fiber. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern bool sim_failed;
extern char sim_failure[512];
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define sim_say(...)                                                                                                   \
    do {                                                                                                               \
        if (sim_tracing)                                                                                               \
            sim_trace(__VA_ARGS__);                                                                                    \
    } while (0)
/* Goes into the hash that two runs of one seed must share. */
static inline void sim_note(uint64_t value)
{
    sim_hash = (sim_hash ^ value ^ sim_now_ns) * 0x9e3779b97f4a7c15ull;
    sim_hash ^= sim_hash >> 29;
}

/* ---- want (want.c): does this call of the process fail because something has run out? ---- */

enum sim_shortage { SIM_SHORT_MEMORY, SIM_SHORT_FILES, SIM_SHORT_ROOM, SIM_SHORTAGES };
bool sim_is_short(enum sim_shortage what);
/* The process aborts: maybe because memory is out, and its code does not go on. Returns when it is not for that. */
extern void (*sim_in_abort)(struct sim_process *process);

/* ---- memory of the run, gone with sim_reset ---- */

void *sim_allocate(size_t size); /* zeroed */

/* ---- descriptors (stream.c, files.c) ---- */

void sim_net_reset(void);
void sim_files_reset(void);
void sim_process_close_files(struct sim_process *process);
/* Messages between the two processes wait while it is set. */
void sim_partition(uint32_t a, uint32_t b, bool is_cut);
void sim_partitions_end(void); /* all of them */
/* The same for those of one to the other. */
void sim_way_cut(uint32_t from, uint32_t to, bool is_cut);
bool sim_is_way_cut(uint32_t from, uint32_t to);
/* Does one of the two not hear the other? */
bool sim_is_partitioned(uint32_t a, uint32_t b);
/* Until then messages from one to the other may take a few hundredths of a second. */
void sim_slow_way(uint32_t from, uint32_t to, uint64_t until_ns);
/* Breaks all tcp connections between the two; what is under way is lost. */
void sim_cut_connections(uint32_t a, uint32_t b);
/* Until then nothing arrives over the tcp connections that there are between the two now: after a silence their kernels
 * try again late, when new connections are through at once. */
void sim_stall_connections(uint32_t a, uint32_t b, uint64_t until_ns);
/* Breaks one tcp connection; false when there is none. */
bool sim_break_connection(void);
/* The named files of the machine are gone. */
void sim_files_lose(uint32_t machine);
/* The machine went down: what was written and not synced to the disk may be missing. */
void sim_files_boot(uint32_t machine);
/* Flips a bit in the data of some memory file; false when there is none. */
bool sim_flip_bit(void);
/* Calls visit for each segment that a living process serves. */
void sim_each_segment(void (*visit)(const char *owner, const uint8_t *index, uint64_t index_size, const uint8_t *data,
                                    uint64_t data_size));
void sim_arena_reset(struct sim_process *process);
bool sim_arena_has(const void *pointer);

#endif
