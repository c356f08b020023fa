/* A child of vfork that traces on its parent's stack and thread-local data while another thread of the parent runs. */
#define _DEFAULT_SOURCE
#include <dormouse/event.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 50, EVENTS_OF_A_CHILD = 20, EVENTS_OF_THE_PARENT = 20, EVENTS_OF_THE_THREAD = 20000 };

static void *work(void *unused)
{
	(void)unused;
	for (int i = 0; i < EVENTS_OF_THE_THREAD; i++)
		DORMOUSE_EVENT(thread, step, (i, i));
	return NULL;
}

int main(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, work, NULL) != 0)
		return 1;
	for (int child = 0; child < CHILDREN; child++) {
		pid_t pid = vfork();
		if (pid == 0) {
			for (int i = 0; i < EVENTS_OF_A_CHILD; i++)
				DORMOUSE_EVENT(child, step, (pid, (int)getpid()), (i, i));
			_exit(0);
		}
		if (pid < 0)
			return 1;
		for (int i = 0; i < EVENTS_OF_THE_PARENT; i++)
			DORMOUSE_EVENT(parent, step, (pid, (int)getpid()), (i, i));
		waitpid(pid, NULL, 0);
	}
	pthread_join(thread, NULL);
	printf("pid %d\n", (int)getpid());
	return 0;
}
