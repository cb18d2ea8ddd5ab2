/* Threads of our own that share the work of one call at a time.

   A share is claimed, by whoever comes first: the caller does all that nobody else has claimed, and
   waits only for shares under way. So a thread that the system does not run costs nothing, where
   OpenMP waits for every thread at the end of everything.

       ticket   which job this is, and how many of its shares are left to claim: one word, so that
                who claims a share knows whose it is; the job stays until the last share is done

   Threads look for work for a while before they sleep, and give the core away between two looks.
   There are no more of them than CPUs that the first caller may run on: others would take time from
   those that have work. A process that was forked has none, and makes its own. */
#define _GNU_SOURCE /* for sched_getaffinity */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "machine.h"

#define MOST_WORKERS 255
#define LOOKS 400 /* for work, before a thread sleeps; some 50 us */
#define PAUSES 8  /* between two looks */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static uint64_t ticket; /* job << 32 | shares left to claim */
static int busy, sleeping, left;
static void (*current)(void *, int);
static void *argument;
static int workers, most; /* `most`: 0 until it is known */

static inline void pause_a_little(void) {
    for (int i = 0; i < PAUSES; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Does shares as long as there are any to claim. */
static void help(void) {
    uint64_t seen = __atomic_load_n(&ticket, __ATOMIC_ACQUIRE);
    while (seen & 0xffffffffu) {
        if (!__atomic_compare_exchange_n(&ticket, &seen, seen - 1, 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            continue;
        current(argument, (int)(seen & 0xffffffffu) - 1);
        __atomic_fetch_sub(&left, 1, __ATOMIC_RELEASE);
        seen = __atomic_load_n(&ticket, __ATOMIC_ACQUIRE);
    }
}

static int is_work(void) { return (__atomic_load_n(&ticket, __ATOMIC_SEQ_CST) & 0xffffffffu) != 0; }

static void *work(void *nothing) {
    for (;;) {
        help();
        int looks = 0;
        while (!is_work() && ++looks < LOOKS) {
            pause_a_little();
            sched_yield();
        }
        if (looks < LOOKS) continue;
        pthread_mutex_lock(&mutex);
        __atomic_fetch_add(&sleeping, 1, __ATOMIC_SEQ_CST);
        while (!is_work()) pthread_cond_wait(&wake, &mutex);
        __atomic_fetch_sub(&sleeping, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&mutex);
    }
    return nothing;
}

/* In a process that was just forked, where no thread but the caller's is left. */
static void begin_anew(void) {
    ticket = 0;
    busy = sleeping = left = workers = most = 0;
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&wake, NULL);
}

/* CPUs that the caller may run on. */
static int cpus(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

/* Has at least so many workers, where the system gives them; `busy` is held. Returns how many. */
static int hire(int wanted) {
    static int follows; /* forks */
    if (!follows) follows = !pthread_atfork(NULL, NULL, begin_anew);
    if (!most) most = cpus();
    if (wanted > MOST_WORKERS) wanted = MOST_WORKERS;
    while (workers < wanted && workers < most - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL)) break;
        pthread_detach(thread);
        workers++;
    }
    return workers;
}

int lm_pool_run(void (*fn)(void *, int), void *with, int shares) {
    if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) return 0; /* by another caller */
    if (!hire(shares - 1)) {
        __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
        return 0;
    }
    current = fn;
    argument = with;
    __atomic_store_n(&left, shares, __ATOMIC_RELAXED);
    uint64_t job = (__atomic_load_n(&ticket, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&ticket, job << 32 | (uint32_t)shares, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&mutex);
    }
    help();
    for (int looks = 0; __atomic_load_n(&left, __ATOMIC_ACQUIRE); looks++) {
        pause_a_little();
        if (looks > LOOKS) sched_yield();
    }
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return 1;
}
