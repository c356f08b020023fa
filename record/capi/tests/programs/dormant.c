/*
 * Passes a tracepoint, prints `ready PID`, and passes it again for each byte that it reads; with `once` it ends
 * instead. The first argument is the form: `alone`; `threads`, with four more threads that wait; `daemon`, whose first
 * two processes end; `plugin FILE`, whose tracepoint is in a library loaded by dlopen. With -DLIBRARY this is that
 * library; with -DDORMOUSE_DISABLE there are no tracepoints.
 */
#define _GNU_SOURCE

#if defined(LIBRARY) || !defined(PLUGIN)
#include <dormouse/event.h>
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void pass(void);

#if defined(LIBRARY) || !defined(PLUGIN)
void pass(void) {
    DORMOUSE_EVENT(dormant, pass);
}
#endif

#ifndef LIBRARY
static int ends[2];

static void *wait_for_end(void *unused) {
    char byte;
    return read(ends[0], &byte, 1) < 0 ? &ends : unused;
}

/* Becomes a daemon in a session of its own; called before there are threads. */
static void become_daemon(void) {
    for (int i = 0; i < 2; i++) {
        if (fork() != 0) {
            _exit(0);
        }
        setsid();
    }
}

int main(int argc, char **argv) {
    const char *form = argc > 1 ? argv[1] : "";
    void (*passed)(void) = NULL;
    pthread_t threads[4];
    if (strcmp(form, "daemon") == 0) {
        become_daemon();
    }
    if (strcmp(form, "threads") == 0) {
        if (pipe(ends) != 0) {
            return 1;
        }
        for (int i = 0; i < 4; i++) {
            if (pthread_create(&threads[i], NULL, wait_for_end, NULL) != 0) {
                return 1;
            }
        }
    }
#ifdef PLUGIN
    void *library = dlopen(argv[2], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&passed = dlsym(library, "pass");
#else
    passed = pass;
#endif
    passed();
    if (strcmp(argv[argc - 1], "once") != 0) {
        char byte;
        printf("ready %d\n", (int)getpid());
        fflush(stdout);
        while (read(0, &byte, 1) == 1) {
            passed();
        }
    }
    if (strcmp(form, "threads") == 0) {
        close(ends[1]);
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
        }
    }
    return 0;
}
#endif
