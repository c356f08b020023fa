/* Threads that trace for the first time in a signal handler, where nothing may be allocated. */
#define _GNU_SOURCE
#include <dormouse/event.h>
#include <dormouse/snapshot.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEYS = 40, THREADS = 50 };

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);

static __thread volatile sig_atomic_t is_in_handler;

static void check(void)
{
	if (is_in_handler)
		abort();
}

void *malloc(size_t size)
{
	check();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	check();
	return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size)
{
	check();
	return __libc_realloc(block, size);
}

static __thread stack_t found;

static void handle(int signal)
{
	is_in_handler = 1;
	DORMOUSE_EVENT(handler, ran, (signal, signal));
	/* The kernel restores the former stack when the handler returns. */
	sigaltstack(NULL, &found);
	is_in_handler = 0;
}

static void *work(void *stack)
{
	raise(SIGUSR1);
	if (found.ss_flags & SS_DISABLE)
		exit(2);
	*(void **)stack = found.ss_sp;
	return NULL;
}

int main(void)
{
	/* glibc has room for 32 keys in each thread, and allocates for later ones. */
	for (int i = 0; i < KEYS; i++) {
		pthread_key_t key;
		if (pthread_key_create(&key, NULL) != 0)
			return 1;
	}
	if (dormouse_snapshot_on("crash") != 0)
		return 1;
	struct sigaction action = {.sa_handler = handle};
	sigaction(SIGUSR1, &action, NULL);
	void *stacks[THREADS];
	int distinct = 0;
	for (int i = 0; i < THREADS; i++) {
		pthread_t thread;
		int before = 0;
		if (pthread_create(&thread, NULL, work, &stacks[i]) != 0)
			return 1;
		pthread_join(thread, NULL);
		for (int j = 0; j < i; j++)
			before |= stacks[j] == stacks[i];
		distinct += !before;
	}
	printf("stacks %d\n", distinct);
	return 0;
}
