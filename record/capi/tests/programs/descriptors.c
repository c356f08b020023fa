/* Prints its descriptors. If it is recorded, programs that it executes are too. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dormouse/event.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	errno = 4242;
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	while (directory && (entry = readdir(directory)))
		printf("%s ", entry->d_name);
	printf("%d\n", errno);
	fflush(stdout);
	if (!directory || closedir(directory) != 0 || opendir("/no/such/directory") || errno != ENOENT)
		return 1;
	if (opendir("/proc/self/stat") || errno != ENOTDIR)
		return 2;
	DORMOUSE_EVENT(test, listed, (count, count));
	if (count > 1)
		return 0;
	int status = 1;
	pid_t child = fork();
	if (child == 0) {
		execl(arguments[0], arguments[0], "again", (char *)NULL);
		_exit(3);
	}
	waitpid(child, &status, 0);
	return status != 0;
}
