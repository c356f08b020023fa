/*
 * Locks its memory while threads trace, as a process that may lock its present memory and little more. Without a
 * session it can. The argument is the flags of mlockall, or several, for successive calls.
 */
#define _GNU_SOURCE
#ifndef DORMOUSE_DISABLE
#include <dormouse/event.h>
#else
#define DORMOUSE_EVENT(...) free(malloc(1))
#endif
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 3 };

static volatile int is_over;
static unsigned long emitted[THREADS];

static void *trace(void *count)
{
	unsigned long *number = count;
	while (!is_over) {
		DORMOUSE_EVENT(locks, step, (number, *number));
		++*number;
		/* Slow enough for every budget. */
		if (*number % 16 == 0)
			usleep(20);
	}
	return NULL;
}

/* Returns the size of the mappings whose line in a smaps file contains this text, and whether any of them is locked. */
static unsigned long mapped(const char *text, int *is_locked)
{
	unsigned long start, end, sum = 0;
	int is_one = 0;
	char line[4096];
	FILE *file = fopen("/proc/self/smaps", "r");
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
			is_one = strstr(line, text) != NULL;
			sum += is_one ? end - start : 0;
		} else if (is_one && strncmp(line, "VmFlags:", 8) == 0) {
			*is_locked |= strstr(line, " lo ") != NULL;
		}
	}
	if (file)
		fclose(file);
	return sum;
}

static void limit(unsigned long session_bytes)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1)
		exit(90);
	fclose(file);
	unsigned long bytes = pages * (unsigned long)sysconf(_SC_PAGESIZE) - session_bytes + (1 << 20);
	struct rlimit memory = {bytes, bytes};
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	if (setrlimit(RLIMIT_MEMLOCK, &memory) != 0) {
		printf("%lu bytes\n", bytes);
		exit(77);
	}
	if (syscall(SYS_capget, &header, data) != 0)
		exit(91);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (syscall(SYS_capset, &header, data) != 0)
		exit(92);
}

int main(int count, char **argument)
{
	pthread_t threads[THREADS];
	unsigned long sum = 0;
	int is_locked = 0, is_other_locked = 0;
	/* Many limits do not permit locking more than 8 MiB, the size of one thread's stack. */
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 16);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], &small, trace, &emitted[i]);
	usleep(20000);
	const unsigned long before = mapped("dormouse-session", &is_locked);
	limit(before);
	for (int i = 1; i < count; i++) {
		errno = 0;
		int result = mlockall(atoi(argument[i]));
		printf("mlockall %s: %d %d\n", argument[i], result, errno);
		usleep(2000);
	}
	void *block = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mapped("[stack]", &is_other_locked);
	printf("stack locked %d, mapped %d\n", is_other_locked, block != MAP_FAILED);
	const unsigned long after = mapped("dormouse-session", &is_locked);
	usleep(20000);
	is_over = 1;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		sum += emitted[i];
	}
	fprintf(stderr, "emitted %lu\nlocked %d\nless %d\n", sum, is_locked, before != after);
	return 0;
}
