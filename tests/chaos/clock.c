/* Adds the seconds in the file CHAOS_CLOCK to the wall clock of a process. The monotonic clock stays.
 *
 *     cc -shared -fPIC -O2 -o clock.so clock.c -ldl
 *     CHAOS_CLOCK=/path LD_PRELOAD=./clock.so program
 *
 * libfaketime 0.9.10 does the same, but with its setting DONT_FAKE_MONOTONIC each absolute clock_nanosleep fails, which
 * is what time.sleep of Python 3.11 calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *offset;
static const long zero = 0;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void load(void) {
  const char *path = getenv("CHAOS_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  offset = map == MAP_FAILED ? &zero : (const volatile long *)map;
}

int clock_gettime(clockid_t id, struct timespec *at) {
  if (!real_gettime) load();
  int result = real_gettime(id, at);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
  return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
