/*
 * A small shop: worker threads take orders from a queue, look up prices, and charge cards that are sometimes refused.
 *
 *     cc -O2 shop.c -o shop -pthread $(pkg-config --cflags --libs dormouse)
 *     ./shop [SECONDS] [WORKERS]
 *
 * It prints its process id. While it runs:
 *
 *     dormouse arm PID 'shop:*'
 */
#include <dormouse/event.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE_SIZE = 64, LINE_COUNT_MAX = 4, WORKER_COUNT_MAX = 64 };

enum payment { CASH, CARD, VOUCHER };

struct order {
    uint64_t id;
    const char *customer;
    enum payment payment;
    uint32_t line_count;
    uint32_t articles[LINE_COUNT_MAX];
};

static struct order queue[QUEUE_SIZE];
static size_t queue_taken, queue_placed;
static bool closed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static const char *const customers[] = {"Ada", "Grace", "Hedy", "Katherine", "Radia"};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void place(uint64_t id, uint64_t *random)
{
    struct order order = {.id = id, .payment = (enum payment)(next_random(random) % 3)};
    order.customer = customers[next_random(random) % (sizeof customers / sizeof *customers)];
    order.line_count = 1 + next_random(random) % LINE_COUNT_MAX;
    for (uint32_t line = 0; line < order.line_count; line++)
        order.articles[line] = next_random(random) % 1000;

    pthread_mutex_lock(&lock);
    while (queue_placed - queue_taken == QUEUE_SIZE)
        pthread_cond_wait(&changed, &lock);
    queue[queue_placed++ % QUEUE_SIZE] = order;
    DORMOUSE_EVENT(shop, order_placed, (id, order.id), (customer, order.customer),
                   (articles, DORMOUSE_ARRAY(order.articles, order.line_count)), (waiting, queue_placed - queue_taken));
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static bool take(struct order *order)
{
    pthread_mutex_lock(&lock);
    while (queue_placed == queue_taken && !closed)
        pthread_cond_wait(&changed, &lock);
    bool taken = queue_placed != queue_taken;
    if (taken) {
        *order = queue[queue_taken++ % QUEUE_SIZE];
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

static double price_of(uint32_t article, uint64_t *random)
{
    bool cached = next_random(random) % 8 != 0;
    if (!cached)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    double price = 0.99 + article % 90;
    DORMOUSE_EVENT(shop, price_looked_up, (article, article), (cached, cached), (price, price));
    return price;
}

static int charge(const struct order *order, double total, uint64_t *random)
{
    int error = order->payment == CARD && next_random(random) % 20 == 0 ? EACCES : 0;
    if (error)
        DORMOUSE_EVENT(shop, card_refused, (id, order->id), (total, total), (error, error));
    return error;
}

static void *work(void *argument)
{
    int worker = (int)(intptr_t)argument;
    uint64_t random = 7 + (uint64_t)worker;
    uint64_t served = 0;
    struct order order;
    DORMOUSE_EVENT(shop, worker_started, (worker, worker));
    while (take(&order)) {
        uint64_t begin_ns = now_ns();
        DORMOUSE_EVENT(shop, order_begin, (id, order.id), (worker, worker), (payment, order.payment));
        double total = 0;
        for (uint32_t line = 0; line < order.line_count; line++)
            total += price_of(order.articles[line], &random);
        int error = charge(&order, total, &random);
        served += error == 0;
        DORMOUSE_EVENT(shop, order_end, (id, order.id), (total, total), (ok, (bool)!error),
                       (duration_ns, now_ns() - begin_ns));
    }
    DORMOUSE_EVENT(shop, worker_stopped, (worker, worker), (served, served));
    return NULL;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    int worker_count = argc > 2 ? atoi(argv[2]) : 2;
    if (!(seconds > 0) || worker_count < 1 || worker_count > WORKER_COUNT_MAX) {
        fprintf(stderr, "usage: %s [SECONDS] [WORKERS, up to %d]\n", argv[0], WORKER_COUNT_MAX);
        return 2;
    }
    printf("%d\n", getpid());
    fflush(stdout);

    pthread_t workers[WORKER_COUNT_MAX];
    for (int worker = 0; worker < worker_count; worker++)
        if (pthread_create(&workers[worker], NULL, work, (void *)(intptr_t)worker) != 0) {
            fprintf(stderr, "%s: cannot start worker %d\n", argv[0], worker);
            return 1;
        }

    uint64_t end_ns = now_ns() + (uint64_t)(seconds * 1e9);
    uint64_t random = 1;
    uint64_t count = 0;
    while (now_ns() < end_ns) {
        place(count++, &random);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    pthread_mutex_lock(&lock);
    closed = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int worker = 0; worker < worker_count; worker++)
        pthread_join(workers[worker], NULL);
    printf("%llu orders\n", (unsigned long long)count);
    return 0;
}
