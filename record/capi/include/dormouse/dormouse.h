/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libdormouse, for C11 and C++. Programs that trace include <dormouse/event.h>; this header is what lies below it.
 *
 * What is traced is decided outside the program, by `dormouse record -e 'PATTERN' -- PROGRAM` and `dormouse arm PID
 * 'PATTERN'`. The latter calls the program by SIGURG, unless `dormouse record` has started it. DORMOUSE_LISTEN=0
 * in its environment, or -DDORMOUSE_NO_LISTEN for all of its files, does without; dormouse_stop_listening ends it. DORMOUSE_NO_RSEQ=1
 * forces the path for machines without restartable sequences.
 */
#ifndef DORMOUSE_DORMOUSE_H
#define DORMOUSE_DORMOUSE_H

#include <stddef.h>

#include <dormouse/abi/class.h>
#include <dormouse/abi/site.h>

/* The version that a program is compiled with. */
#define DORMOUSE_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The version that the program runs with. A static text. MT-safe, async-signal-safe. */
const char *dormouse_version(void);

/*
 * Writes one record of a class. Called by DORMOUSE_EVENT; a binding for another language that lays out classes itself may
 * call them too. The values are len bytes in one place, after which seven more may be read, in the order of the class's
 * fields and without gaps:
 *
 *     kind of field                  dormouse_record_words   dormouse_record_values      dormouse_record_views
 *     number, boolean, pointer       itself                  itself                      itself
 *     text                                                   address, up to the NUL      address and size_t length
 *     bytes, sequence                                        address and size_t count    address and size_t count
 *
 * A text of NULL is empty; a view of text has no NUL in it. What is pointed to is read before the call returns.
 *
 * The values must be what the class describes. The calls never block and cannot fail: what finds no room is counted in
 * the session. MT-safe, async-signal-safe.
 */
void dormouse_record_words(const struct dormouse_class *event_class, const volatile void *values, size_t len);
void dormouse_record_values(const struct dormouse_class *event_class, const volatile void *values, size_t len);
void dormouse_record_views(const struct dormouse_class *event_class, const volatile void *values, size_t len);

/*
 * Starts the tracer if it has not been, and adds the event classes of an object, bounded by its dormouse_events
 * section; forgets them again. event.h's constructor and destructor call them. Registering the same start again
 * changes nothing. MT-safe, blocking (a session is told of the new classes).
 */
void dormouse_register_events(const struct dormouse_event_record *start, const struct dormouse_event_record *stop);
void dormouse_unregister_events(const struct dormouse_event_record *start);

/*
 * Lets tools reach the program from now on, also in children that it forks, in the way that DORMOUSE_LISTEN says; by a signal, if it says nothing.
 * Programs do so by themselves before main, unless they are in a session of `dormouse record` or are compiled with -DDORMOUSE_NO_LISTEN.
 *
 * Errors: -EPERM   DORMOUSE_LISTEN=0 forbids it, the program has privileges that its caller has not (AT_SECURE), or a handler of its own for
 *                  SIGURG
 *         -EIO     there is no thread to be had, or no directory for the socket
 *         -ENOSYS  the library was built without it
 * MT-safe, blocking (50 ms at most), not async-signal-safe.
 */
int dormouse_listen(void);

/*
 * The same in one of two ways, whatever the environment says but for DORMOUSE_LISTEN=0.
 *
 * By a signal there is no thread until a tool comes: it sends SIGURG, and the next thread that passes a tracepoint outside of signal handlers
 * starts the thread, which ends again two seconds after the last tool, unless the program is in a session. The price: a call that sleeps may
 * return EINTR, the arguments of that tracepoint are evaluated, and the tool waits for it. Not for programs that have a handler of their own for
 * SIGURG, tracepoints in their allocator, or no tracepoints.
 *
 * Errors: as dormouse_listen and dormouse_stop_listening, and
 *         -EPERM   the program has a handler of its own for SIGURG
 *         -EINVAL  there is no such way
 * MT-safe, blocking (as the two), not async-signal-safe.
 */
enum dormouse_way {
    DORMOUSE_WAY_THREAD = 1,
    DORMOUSE_WAY_SIGNAL = 2
};
int dormouse_listen_by(int way);

/*
 * Ends that: when it returns 0 there is neither thread, socket nor handler, and they do not come back by themselves. Call it before the program enters a
 * sandbox (seccomp, Landlock), a user namespace, or becomes another user. Recording goes on.
 *
 * Errors: -EIO        the socket cannot be reached any more, for example after chroot
 *         -ETIMEDOUT  the thread did not end in time
 * MT-safe, blocking (five seconds at most, while a tool is answered), not async-signal-safe.
 */
int dormouse_stop_listening(void);

#ifdef DORMOUSE_NO_LISTEN
/* Before the object registers itself, which would start it. */
__attribute__((constructor(101), unused)) static void dormouse_i_no_listen(void)
{
    (void)dormouse_stop_listening();
}
#endif

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
