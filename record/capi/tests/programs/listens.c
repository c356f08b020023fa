/* Prints the number of threads: before main, after the listener was stopped, and after it was started again. */
#include <dirent.h>
#include <dormouse/event.h>
#include <stdio.h>

static int threads(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/task");
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += entry->d_name[0] != '.';
	closedir(dir);
	return count;
}

int main(void)
{
	DORMOUSE_EVENT(listens, begun, (one, 1));
	int first = threads();
	int stopped = dormouse_stop_listening();
	int second = threads();
	int started = dormouse_listen();
	printf("%d %d %d %d %d\n", first, stopped, second, started, threads());
	int none = dormouse_listen_by(3);
	int by_signal = dormouse_listen_by(DORMOUSE_WAY_SIGNAL);
	int without = threads();
	int by_thread = dormouse_listen_by(DORMOUSE_WAY_THREAD);
	printf("%d %d %d %d %d\n", none, by_signal, without, by_thread, threads());
	return 0;
}
