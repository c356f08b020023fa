/*
 * Work for another process, which is killed again and again: every request is answered.
 *
 *     cc -O2 restart.c $(pkg-config --cflags --libs dormouse-vring)
 *     ./a.out [REQUESTS] [REQUESTS_OF_A_WORKER]
 *
 * It prints how many requests there were, how many workers were killed, and how many requests were handed out again.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dormouse/vring.h>

#define SIZE 64u
#define FLAGS (DORMOUSE_VRING_PACKED | DORMOUSE_VRING_EVENT_IDX)
/* Address of the requests for the worker. */
#define ADDR 0x1000u

struct request {
    uint64_t number, answer;
};

/* Memory that both processes share. */
struct shared {
    _Alignas(64) unsigned char ring[8192];
    struct request requests[SIZE];
};

static struct shared *shared;
static struct dormouse_vring_areas areas;
static int kick, interrupt;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void wake(int event)
{
    if (eventfd_write(event, 1))
        fail("wake the other side");
}

static void sleep_until(int event)
{
    eventfd_t count;
    if (eventfd_read(event, &count))
        fail("wait for the other side");
}

/* Number of steps of the Collatz sequence. */
static uint64_t steps(uint64_t number)
{
    uint64_t count = 0;
    for (; number > 1; count++)
        number = number % 2 ? 3 * number + 1 : number / 2;
    return count;
}

static void work(void)
{
    struct dormouse_vring_region region = { .addr = ADDR, .size_bytes = sizeof shared->requests, .base = shared->requests };
    struct dormouse_vring_device *device = dormouse_vring_device_create(&areas, SIZE, FLAGS, &region, 1);
    struct dormouse_vring_chain *chain = dormouse_vring_chain_create();
    if (!device || !chain)
        fail("device");
    for (;;) {
        while (dormouse_vring_device_pop(device, chain) == 1) {
            size_t count;
            const struct dormouse_vring_segment *segment = dormouse_vring_chain_writable(chain, &count);
            struct request *request = count ? dormouse_vring_device_translate(device, segment->addr, sizeof *request) : NULL;
            if (request)
                request->answer = steps(request->number);
            dormouse_vring_device_push_used(device, chain, sizeof *request);
            dormouse_vring_device_publish_used(device);
            if (dormouse_vring_device_needs_interrupt(device))
                wake(interrupt);
        }
        if (!dormouse_vring_device_arm_notification(device))
            sleep_until(kick);
    }
}

static pid_t worker(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        work();
    _exit(1);
}

static struct dormouse_vring_driver *driver;

static void hand_out(uint64_t slot)
{
    struct dormouse_vring_segment segment = { .addr = ADDR + slot * sizeof(struct request), .len = sizeof(struct request) };
    if (dormouse_vring_driver_add_and_publish(driver, &segment, 0, 1, slot))
        fail("add");
    if (dormouse_vring_driver_needs_kick(driver))
        wake(kick);
}

int main(int argc, char **argv)
{
    uint64_t requests = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000, each = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    uint64_t next = 0, answered = 0, wrong = 0, killed = 0, again = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    kick = eventfd(0, EFD_CLOEXEC);
    interrupt = eventfd(0, EFD_CLOEXEC);
    if (shared == MAP_FAILED || kick < 0 || interrupt < 0 || sizeof shared->ring < dormouse_vring_size_bytes(SIZE, FLAGS))
        fail("memory");
    if (dormouse_vring_place(&areas, shared->ring, SIZE, FLAGS) || dormouse_vring_init(&areas, SIZE, FLAGS))
        return 1;
    driver = dormouse_vring_driver_create(&areas, SIZE, FLAGS);
    if (!driver)
        fail("driver");
    pid_t pid = worker();
    for (; next < SIZE && next < requests; next++) {
        shared->requests[next].number = next + 1;
        hand_out(next);
    }
    while (answered < requests) {
        struct dormouse_vring_completion done;
        int taken = dormouse_vring_driver_take_used(driver, &done);
        if (taken < 0)
            return 1;
        if (taken) {
            struct request *request = &shared->requests[done.token];
            wrong += request->answer != steps(request->number);
            if (next < requests) {
                request->number = ++next;
                hand_out(done.token);
            }
            if (++answered % each || answered == requests || !pid)
                continue;
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            pid = 0;
            killed++;
            continue;
        }
        if (!pid) {
            /* What the worker had finished was taken. */
            uint64_t tokens[SIZE];
            int count = dormouse_vring_driver_reset(driver, tokens, SIZE);
            pid = worker();
            for (int index = 0; index < count; index++)
                hand_out(tokens[index]);
            again += (uint64_t)count;
        }
        if (!dormouse_vring_driver_arm_interrupt(driver))
            sleep_until(interrupt);
    }
    if (pid) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    dormouse_vring_driver_destroy(driver);
    printf("%llu requests, %llu workers killed, %llu requests handed out again, %llu wrong answers\n", (unsigned long long)answered,
           (unsigned long long)killed, (unsigned long long)again, (unsigned long long)wrong);
    return wrong != 0;
}
