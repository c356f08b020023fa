/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libdormouse, for C11 and C++. Programs that trace include <dormouse/event.h>, which includes this header.
 *
 * Tracing is controlled from outside the program, by `dormouse record -e 'PATTERN' -- PROGRAM` and `dormouse arm PID
 * 'PATTERN'`. The latter calls the program by SIGURG, unless `dormouse record` has started it. DORMOUSE_LISTEN=0 in its
 * environment, or -DDORMOUSE_NO_LISTEN for all of its files, turns this off; dormouse_stop_listening ends it.
 * DORMOUSE_NO_RSEQ=1 forces the path for machines without restartable sequences.
 */
#ifndef DORMOUSE_DORMOUSE_H
#define DORMOUSE_DORMOUSE_H

#include <stddef.h>

#include <dormouse/abi/class.h>
#include <dormouse/abi/site.h>

/* Version of the headers that a program is compiled with. */
#define DORMOUSE_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library that a program runs with, as a static text. MT-safe, async-signal-safe. */
const char *dormouse_version(void);

/*
 * Writes one record of a class. Called by DORMOUSE_EVENT, and by bindings for other languages that lay out classes
 * themselves. The values are len contiguous bytes, in the order of the class's fields and without gaps; the seven bytes
 * after them must be readable:
 *
 *     kind of field                  dormouse_record_words   dormouse_record_values      dormouse_record_views
 *     number, boolean, pointer       the value               the value                   the value
 *     text                           not allowed             address, up to the NUL      address and size_t length
 *     bytes, sequence                not allowed             address and size_t count    address and size_t count
 *
 * A text of NULL is empty; a view of text must contain no NUL. Pointers are read before the call returns.
 *
 * The values must be those that the class describes. The calls never block and cannot fail: events without room are
 * counted in the session. MT-safe, async-signal-safe.
 */
void dormouse_record_words(const struct dormouse_class *event_class, const volatile void *values, size_t len);
void dormouse_record_values(const struct dormouse_class *event_class, const volatile void *values, size_t len);
void dormouse_record_views(const struct dormouse_class *event_class, const volatile void *values, size_t len);

/*
 * dormouse_register_events starts the tracer if necessary, and adds the event classes of an object, bounded by its
 * dormouse_events section. dormouse_unregister_events forgets them. event.h's constructor and destructor call these
 * functions. Registering the same start again changes nothing. MT-safe, blocking (a session is told of the new
 * classes).
 */
void dormouse_register_events(const struct dormouse_event_record *start, const struct dormouse_event_record *stop);
void dormouse_unregister_events(const struct dormouse_event_record *start);

/*
 * Lets tools reach the program from now on, and children that it forks, in the way that DORMOUSE_LISTEN selects; by
 * default, by a signal. Programs do this before main by themselves, unless they are in a session of `dormouse record`
 * or are compiled with -DDORMOUSE_NO_LISTEN.
 *
 * Errors: -EPERM   DORMOUSE_LISTEN=0 forbids it, the program has privileges that its caller does not have (AT_SECURE),
 *                  or the program has its own handler for SIGURG
 *         -EIO     no thread can be started, or there is no directory for the socket
 *         -ENOSYS  the library was built without this feature
 * MT-safe, blocking (50 ms at most), not async-signal-safe.
 */
int dormouse_listen(void);

/*
 * Lets tools reach the program in one of two ways. The environment is ignored, except for DORMOUSE_LISTEN=0.
 *
 * By a signal, no thread exists until a tool connects: the tool sends SIGURG, and the next thread that passes a
 * tracepoint outside signal handlers starts the thread. It ends two seconds after the last tool, unless the program is
 * in a session. Costs: a blocking call may return EINTR, the arguments of that tracepoint are evaluated, and the tool
 * waits for the tracepoint. Not for programs that have their own handler for SIGURG, tracepoints in their allocator, or
 * no tracepoints.
 *
 * Errors: those of dormouse_listen and dormouse_stop_listening, and
 *         -EPERM   the program has its own handler for SIGURG
 *         -EINVAL  way is not an enum dormouse_way
 * MT-safe, blocking (like those two functions), not async-signal-safe.
 */
enum dormouse_way {
    DORMOUSE_WAY_THREAD = 1,
    DORMOUSE_WAY_SIGNAL = 2
};
int dormouse_listen_by(int way);

/*
 * Ends listening: when this returns 0 there is no thread, socket or handler, and none is started again by default. Call
 * it before the program enters a sandbox (seccomp, Landlock), a user namespace, or becomes another user. Recording
 * continues.
 *
 * Errors: -EIO        the socket cannot be reached any more, for example after chroot
 *         -ETIMEDOUT  the thread did not end in time
 * MT-safe, blocking (five seconds at most, while a tool is answered), not async-signal-safe.
 */
int dormouse_stop_listening(void);

#ifdef DORMOUSE_NO_LISTEN
/* Runs before the object registers itself, which would start listening. */
__attribute__((constructor(101), unused)) static void dormouse_i_no_listen(void)
{
    (void)dormouse_stop_listening();
}
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
