/* Preloaded into a node: its clocks are as the file WRONG_CLOCK_FILE says, which may change at any time.

   The file has a selector (which of two settings is valid), a counter of the readings that were bent, and the two
   settings, all 64 bits wide. A setting says: at the true monotonic time `since` all clocks were `ahead` ns ahead,
   and run faster by `rate` parts in a million from then on; the wall clock is `wall` ns further ahead. Without the
   file the clocks are true.

   Who waits until a moment of the bent monotonic clock must wake at the true one: the library translates the
   deadlines of futexes, on which all locks of the program wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct setting { int64_t since, ahead, rate, wall; };
struct bent { uint64_t selector, readings; struct setting settings[2]; };

static volatile struct bent *file;
static int (*true_gettime)(clockid_t, struct timespec *);
static long (*true_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
    true_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    true_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    const char *path = getenv("WRONG_CLOCK_FILE");
    int opened = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (opened < 0) return;
    void *mapped = mmap(NULL, sizeof(struct bent), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    if (mapped != MAP_FAILED) file = mapped;
}

static int64_t nanoseconds(const struct timespec *time) { return time->tv_sec * SECOND + time->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
    struct timespec time = {ns / SECOND, ns % SECOND};
    return time;
}

static int read_true(clockid_t clock, struct timespec *now) {
    if (!true_gettime) begin();
    return true_gettime(clock, now);
}

static struct setting valid(void) {
    struct setting setting;
    uint64_t selector;
    do {
        selector = __atomic_load_n(&file->selector, __ATOMIC_ACQUIRE);
        setting.since = file->settings[selector & 1].since;
        setting.ahead = file->settings[selector & 1].ahead;
        setting.rate = file->settings[selector & 1].rate;
        setting.wall = file->settings[selector & 1].wall;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (selector != __atomic_load_n(&file->selector, __ATOMIC_RELAXED));
    return setting;
}

/* How far all clocks are ahead at a true monotonic time. */
static int64_t ahead_at(const struct setting *setting, int64_t monotonic) {
    return setting->ahead + (int64_t)((double)(monotonic - setting->since) * (double)setting->rate / 1e6);
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = read_true(clock, now);
    int monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
    if (result != 0 || !file || !(monotonic || is_wall(clock))) return result;
    struct setting setting = valid();
    struct timespec true_monotonic;
    read_true(CLOCK_MONOTONIC, &true_monotonic);
    int64_t ahead = ahead_at(&setting, nanoseconds(&true_monotonic));
    if (is_wall(clock)) ahead += setting.wall;
    if (ahead != 0) __atomic_fetch_add(&file->readings, 1, __ATOMIC_RELAXED);
    *now = timespec_of(nanoseconds(now) + ahead);
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec time;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    if (result == 0 && now) {
        now->tv_sec = time.tv_sec;
        now->tv_usec = time.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

/* The true monotonic time at which the bent clock shows `bent`. */
static int64_t true_time(int64_t bent) {
    struct setting setting = valid();
    double since_bent = (double)(bent - setting.since - setting.ahead);
    return setting.since + (int64_t)(since_bent / (1.0 + (double)setting.rate / 1e6));
}

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a[6];
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (!true_syscall) begin();
    struct timespec deadline;
    int absolute = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    if (file && absolute && a[3] && !(a[1] & FUTEX_CLOCK_REALTIME)) {
        int64_t at = true_time(nanoseconds((const struct timespec *)a[3]));
        deadline = timespec_of(at > 0 ? at : 0);
        a[3] = (long)&deadline;
    }
    return true_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
