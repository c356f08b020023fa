/*
 * Faults that a program handles, and faults that end it. The first argument selects the action, the second says whether
 * it installs its handlers before or after the first event. Built without events, it calls libc instead of tracing.
 */
#define _GNU_SOURCE
#ifndef DORMOUSE_DISABLE
#include <dormouse/event.h>
#endif
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef DORMOUSE_DISABLE
#define EVENT(name) (void)open("/" #name, O_RDONLY)
#else
#define EVENT(name) DORMOUSE_EVENT(crash, name)
#endif

enum { FAULTS = 5, THREADS = 8 };

static char *page;
static volatile sig_atomic_t handled;
static sigjmp_buf before;
static struct sigaction former;

static void open_page(int protection)
{
	mprotect(page, 4096, protection);
}

/* Makes an access that a handler may have to make possible. */
static void touch(void)
{
	*(volatile char *)page = 1;
}

static void faults(int count)
{
	for (int i = 0; i < count; i++) {
		open_page(PROT_NONE);
		touch();
	}
}

static void fix(int number)
{
	(void)number;
	handled++;
	open_page(PROT_READ | PROT_WRITE);
}

static void jump(int number)
{
	(void)number;
	handled++;
	siglongjmp(before, 1);
}

static void reset(int number)
{
	signal(number, SIG_DFL);
}

static void reset_and_raise(int number)
{
	signal(number, SIG_DFL);
	raise(number);
}

static void fix_and_reset(int number)
{
	fix(number);
	signal(number, SIG_DFL);
}

static void chain(int number, siginfo_t *info, void *context)
{
	if (former.sa_flags & SA_SIGINFO) {
		former.sa_sigaction(number, info, context);
	} else if (former.sa_handler == SIG_DFL) {
		sigaction(number, &former, NULL);
	} else {
		former.sa_handler(number);
	}
}

static void end(int number)
{
	(void)number;
	exit(3);
}

static void end_at_once(int number)
{
	(void)number;
	_exit(4);
}

static void count(int number)
{
	(void)number;
	handled++;
}

static void set(int number, void (*handler)(int), int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
	struct sigaction told;
	if (sigaction(number, &action, NULL) != 0 || sigaction(number, NULL, &told) != 0)
		exit(90);
	/* Except for a flag of the kernel's. */
	if (told.sa_handler != handler || (told.sa_flags & ~0x04000000) != flags)
		exit(91);
}

static void set_chain(void)
{
	struct sigaction action = {.sa_sigaction = chain, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, &former);
}

static int overflow(int depth)
{
	volatile char bytes[4096];
	bytes[0] = (char)depth;
	return overflow(depth + 1) + bytes[0];
}

static pthread_barrier_t barrier;

static void *fault_together(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&barrier);
	*(volatile char *)8 = 1;
	return NULL;
}

static const char *what;

static int is(const char *name)
{
	return strcmp(what, name) == 0;
}

static void prepare(void)
{
	if (is("fix") || is("fix-then-trap") || is("child"))
		set(SIGSEGV, fix, 0);
	if (is("fix-open"))
		set(SIGSEGV, fix, SA_NODEFER);
	if (is("reset"))
		set(SIGSEGV, reset, 0);
	if (is("reset-and-raise"))
		set(SIGSEGV, reset_and_raise, SA_NODEFER);
	if (is("fix-and-reset") || is("fix-and-reset-then-fault"))
		set(SIGSEGV, fix_and_reset, 0);
	if (is("once") || is("once-then-fault"))
		set(SIGSEGV, fix, SA_RESETHAND);
	if (is("strict") && sysv_signal(SIGSEGV, fix) != SIG_DFL)
		exit(92);
	if (is("jump") || is("jump-then-exit") || is("jump-then-fault"))
		set(SIGSEGV, jump, 0);
	if (is("overflow"))
		set(SIGSEGV, jump, SA_ONSTACK);
	if (is("chain")) {
		set(SIGSEGV, fix, 0);
		set_chain();
	}
	if (is("chain-to-default"))
		set_chain();
	if (is("exit"))
		set(SIGSEGV, end, 0);
	if (is("exit-at-once"))
		set(SIGSEGV, end_at_once, SA_NODEFER);
	if (is("abort-handled") || is("raise-handled"))
		set(SIGABRT, count, 0);
	if (is("abort-jump"))
		set(SIGABRT, jump, 0);
	if (is("kill-handled"))
		set(SIGSEGV, count, 0);
	if (is("ignored") || is("ignored-fault"))
		signal(SIGSEGV, SIG_IGN);
}

int main(int arguments, char **argument)
{
	if (arguments < 3)
		return 99;
	what = argument[1];
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (strcmp(argument[2], "before") == 0)
		prepare();
	EVENT(first);
	if (strcmp(argument[2], "before") != 0)
		prepare();

	if (is("fix") || is("fix-open") || is("chain")) {
		faults(FAULTS);
	} else if (is("fix-then-trap")) {
		faults(FAULTS);
		EVENT(last);
		__builtin_trap();
	} else if (is("once") || is("fix-and-reset")) {
		faults(1);
	} else if (is("once-then-fault") || is("strict") || is("fix-and-reset-then-fault")) {
		faults(1);
		EVENT(last);
		faults(1);
	} else if (is("jump") || is("jump-then-exit") || is("jump-then-fault")) {
		while (handled < FAULTS)
			if (sigsetjmp(before, 1) == 0)
				touch();
		if (is("jump-then-exit"))
			exit(0);
		if (is("jump-then-fault")) {
			signal(SIGSEGV, SIG_DFL);
			EVENT(last);
			touch();
		}
	} else if (is("overflow")) {
		static char stack[1 << 16];
		stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
		sigaltstack(&alternate, NULL);
		if (sigsetjmp(before, 1) == 0)
			overflow(0);
	} else if (is("abort-jump")) {
		if (sigsetjmp(before, 1) == 0)
			abort();
	} else if (is("abort-handled") || is("abort")) {
		EVENT(last);
		abort();
	} else if (is("raise-handled")) {
		raise(SIGABRT);
	} else if (is("kill") || is("kill-handled") || is("ignored")) {
		EVENT(last);
		kill(getpid(), SIGSEGV);
	} else if (is("threads")) {
		pthread_t threads[THREADS];
		pthread_barrier_init(&barrier, NULL, THREADS);
		EVENT(last);
		for (int i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, fault_together, NULL);
		pthread_join(threads[0], NULL);
	} else if (is("child")) {
		faults(1);
		pid_t child = fork();
		if (child == 0) {
			faults(1);
			signal(SIGSEGV, SIG_DFL);
			EVENT(last);
			faults(1);
		}
		int status;
		waitpid(child, &status, 0);
		faults(1);
		return WIFSIGNALED(status) ? 0 : 94;
	} else {
		EVENT(last);
		touch();
	}
	printf("handled %d\n", handled);
	return 0;
}
