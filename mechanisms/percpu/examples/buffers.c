/*
 * Buffers in free lists, one for each CPU: the next thread on a CPU gets the buffer that was released there last, still
 * in its cache.
 *
 *     cc -O2 buffers.c -o buffers -pthread $(pkg-config --cflags --libs dormouse)
 *     ./buffers [THREADS]
 *
 * It prints how many requests there were, and how few buffers they needed.
 */
#include <dormouse/percpu.h>

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_COUNT_MAX = 64, REQUESTS = 100000 };

struct buffer {
    struct dormouse_percpu_node node;
    char bytes[4000];
};

/* Data of each CPU. */
struct cache {
    struct dormouse_percpu_list free_buffers;
    uint64_t taken;
    uint64_t made;
};

static struct dormouse_percpu_pool *pool;
static struct dormouse_percpu_object cache;

static struct buffer *take(void)
{
    dormouse_percpu_add(pool, cache, offsetof(struct cache, taken), 1);
    struct dormouse_percpu_node *node = dormouse_percpu_list_pop(pool, cache, offsetof(struct cache, free_buffers));
    if (node != NULL)
        return (struct buffer *)node;
    dormouse_percpu_add(pool, cache, offsetof(struct cache, made), 1);
    return malloc(sizeof(struct buffer));
}

static void give_back(struct buffer *buffer)
{
    dormouse_percpu_list_push(pool, cache, offsetof(struct cache, free_buffers), &buffer->node);
}

static void *serve(void *argument)
{
    for (int request = 0; request < REQUESTS; request++) {
        struct buffer *buffer = take();
        if (buffer == NULL)
            break;
        snprintf(buffer->bytes, sizeof buffer->bytes, "request %d of thread %s", request, (const char *)argument);
        give_back(buffer);
    }
    return NULL;
}

static void release(struct dormouse_percpu_node *node, void *released)
{
    ++*(uint64_t *)released;
    free(node);
}

/* Returns the sum over all CPUs. Must be called after the threads that add have ended. */
static uint64_t sum(size_t offset)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < dormouse_percpu_pool_cpu_count(pool); cpu++) {
        uint64_t word;
        memcpy(&word, (char *)dormouse_percpu_pool_address(pool, cache, cpu) + offset, sizeof word);
        sum += word;
    }
    return sum;
}

int main(int argc, char **argv)
{
    int thread_count = argc > 1 ? atoi(argv[1]) : 4;
    if (thread_count < 1 || thread_count > THREAD_COUNT_MAX) {
        fprintf(stderr, "buffers: from 1 to %d threads, please\n", THREAD_COUNT_MAX);
        return 2;
    }
    struct dormouse_percpu_error error;
    pool = dormouse_percpu_pool_create(NULL, &error);
    if (pool == NULL || dormouse_percpu_pool_alloc(pool, sizeof(struct cache), _Alignof(struct cache), &cache, &error) != 0) {
        fprintf(stderr, "buffers: %s\n", error.text);
        return 1;
    }
    pthread_t threads[THREAD_COUNT_MAX];
    char names[THREAD_COUNT_MAX][12];
    int started = 0;
    for (; started < thread_count; started++) {
        snprintf(names[started], sizeof names[started], "%d", started);
        if (pthread_create(&threads[started], NULL, serve, names[started]) != 0)
            break;
    }
    for (int thread = 0; thread < started; thread++)
        pthread_join(threads[thread], NULL);

    uint64_t released = 0;
    dormouse_percpu_list_drain(pool, cache, offsetof(struct cache, free_buffers), release, &released);
    printf("%llu requests, %llu buffers, %llu released\n", (unsigned long long)sum(offsetof(struct cache, taken)),
           (unsigned long long)sum(offsetof(struct cache, made)), (unsigned long long)released);
    if (dormouse_percpu_pool_free(pool, cache, &error) != 0)
        fprintf(stderr, "buffers: %s\n", error.text);
    dormouse_percpu_pool_destroy(pool);
    return 0;
}
