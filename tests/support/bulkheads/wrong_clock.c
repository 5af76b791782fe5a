/* Shifts the wall clock of a process by WRONG_CLOCK_SECONDS. Monotonic time, sleeps and waits stay
   right: libfaketime makes either a sleep or a wait of Python fail. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void)
{
    const char *seconds = getenv("WRONG_CLOCK_SECONDS");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME_COARSE, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
