/*
 * A program whose threads spend much time in the loader.
 *
 *     program DIR COUNT THREADS PROGRESS
 *
 * Unless THREADS is 0, that many threads load plugins DIR/plugin-NNN.so, call them and unload them; each thread counts
 * its rounds in the file PROGRESS. Two more threads fork, and walk the list of objects. The program obeys commands on
 * its input, one per line:
 *
 *     fire N     traces app:fired N times
 *     fork       traces app:forked in a child that ends by exit, and waits for it
 *     load       starts a thread that loads DIR/held.so, which answers from its constructor, and traces held:work once
 *     loaded     waits for that thread
 *     calm       ends the threads
 *     round      loads each plugin once, in order
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dormouse/event.h>
#include <dormouse/imv.h>
#include <dormouse/tunable.h>

#define THREADS_MAX 62

DEFINE_IMV(int, pace) = 3;
DORMOUSE_TUNABLE(pace, "storm.pace", "for the test to set");

static const char *dir;
static int plugin_count;
static _Atomic uint64_t *progress;
static atomic_bool is_over;

static void fail(const char *what)
{
    fprintf(stderr, "program: %s\n", what);
    exit(1);
}

static void load(const char *path, int number)
{
    union {
        void *object;
        void (*function)(int);
    } work;
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (plugin == NULL)
        fail(dlerror());
    work.object = dlsym(plugin, "plugin_work");
    if (work.object == NULL)
        fail(dlerror());
    work.function(number);
    if (dlclose(plugin) != 0)
        fail(dlerror());
}

static void load_plugin(int number)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/plugin-%03d.so", dir, number);
    load(path, number);
}

/*
 * Ends by _exit while other threads unload plugins: glibc's child of fork inherits the state of the lock on the list of
 * exit functions, which dlclose holds at times, and exit could wait for it for ever.
 */
static void child(void (*end)(int))
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        DORMOUSE_EVENT(app, forked);
        end(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        fail("a child did not end well");
}

static void *storm(void *argument)
{
    uintptr_t me = (uintptr_t)argument;
    uint32_t random = 2463534242u + (uint32_t)me * 7919u;

    while (!is_over) {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        load_plugin((int)(random % (uint32_t)plugin_count));
        progress[me] += 1;
    }
    return NULL;
}

static void *fork_often(void *argument)
{
    while (!is_over) {
        child(_exit);
        progress[(uintptr_t)argument] += 1;
        usleep(10000);
    }
    return NULL;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info;
    (void)size;
    *(int *)data += 1;
    /* The list of objects is locked here. */
    DORMOUSE_EVENT(app, visited, (count, *(int *)data));
    return 0;
}

static void *walk(void *argument)
{
    while (!is_over) {
        int count = 0;

        dl_iterate_phdr(visit, &count);
        progress[(uintptr_t)argument] += 1;
        usleep(1000);
    }
    return NULL;
}

static void *load_held(void *argument)
{
    char path[4096];

    (void)argument;
    snprintf(path, sizeof(path), "%s/held.so", dir);
    load(path, imv_read(pace));
    return NULL;
}

static void start(pthread_t *thread, void *(*run)(void *), uintptr_t argument)
{
    if (pthread_create(thread, NULL, run, (void *)argument) != 0)
        fail("no thread can be started");
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS_MAX + 2], loader;
    uintptr_t thread_count;
    char line[64];
    int file;

    if (count != 5)
        fail("DIR COUNT THREADS PROGRESS");
    dir = arguments[1];
    plugin_count = atoi(arguments[2]);
    thread_count = (uintptr_t)atoi(arguments[3]);
    if (thread_count > THREADS_MAX)
        fail("too many threads");
    file = open(arguments[4], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 512) != 0)
        fail("the file cannot be made");
    progress = mmap(NULL, 512, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (progress == MAP_FAILED)
        fail("the file cannot be mapped");

    if (thread_count != 0) {
        for (uintptr_t thread = 0; thread < thread_count; thread++)
            start(&threads[thread], storm, thread);
        start(&threads[thread_count], fork_often, thread_count);
        start(&threads[thread_count + 1], walk, thread_count + 1);
        thread_count += 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof(line), stdin) != NULL) {
        int n = 0;

        if (sscanf(line, "fire %d", &n) == 1)
            while (n-- > 0)
                DORMOUSE_EVENT(app, fired, (left, n));
        else if (strcmp(line, "fork\n") == 0)
            child(exit);
        else if (strcmp(line, "load\n") == 0) {
            start(&loader, load_held, 0);
            continue;
        } else if (strcmp(line, "loaded\n") == 0)
            pthread_join(loader, NULL);
        else if (strcmp(line, "calm\n") == 0) {
            is_over = true;
            while (thread_count > 0)
                pthread_join(threads[--thread_count], NULL);
        } else if (strcmp(line, "round\n") == 0)
            for (int number = 0; number < plugin_count; number++)
                load_plugin(number);
        else
            fail("what is meant by that?");
        printf("done: %s", line);
    }
    return 0;
}
