/* Both sides of a virtqueue of either kind: alone, in two threads, and with invalid memory contents. */
#ifdef NDEBUG
#undef NDEBUG
#endif
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dormouse/vring.h>

#define SIZE 16u
#define ENTRIES 4u
#define COUNT 100000u
/* Address of the driver's memory in the device. */
#define ADDR 0x70000000u

struct queue {
    unsigned flags;
    unsigned char *memory;
    /* Two numbers for each buffer, and tables. */
    uint64_t *numbers;
    unsigned char *tables;
    struct dormouse_vring_areas areas;
    struct dormouse_vring_driver *driver;
    struct dormouse_vring_device *device;
    /* A side that has nothing to do sleeps. With polling, each would wait for all other processes of a busy machine
     * every time. */
    sem_t kicks, interrupts;
};

static void *aligned(size_t size_bytes)
{
    void *memory = NULL;
    assert(posix_memalign(&memory, 64, size_bytes) == 0);
    memset(memory, 0, size_bytes);
    return memory;
}

static void make(struct queue *queue, unsigned flags)
{
    struct dormouse_vring_region regions[2];
    size_t tables_size_bytes = SIZE * ENTRIES * 16, numbers_size_bytes = SIZE * 2 * sizeof(uint64_t);
    queue->flags = flags;
    assert(sem_init(&queue->kicks, 0, 0) == 0 && sem_init(&queue->interrupts, 0, 0) == 0);
    queue->memory = (unsigned char *)aligned(dormouse_vring_size_bytes(SIZE, flags));
    queue->numbers = (uint64_t *)aligned(numbers_size_bytes);
    queue->tables = (unsigned char *)aligned(tables_size_bytes);
    assert(dormouse_vring_place(&queue->areas, queue->memory, SIZE, flags) == 0);
    assert(dormouse_vring_init(&queue->areas, SIZE, flags) == 0);
    queue->driver = dormouse_vring_driver_create(&queue->areas, SIZE, flags);
    assert(queue->driver);
    regions[0].addr = ADDR;
    regions[0].size_bytes = numbers_size_bytes;
    regions[0].base = queue->numbers;
    regions[1].addr = 2 * (uint64_t)ADDR;
    regions[1].size_bytes = tables_size_bytes;
    regions[1].base = queue->tables;
    queue->device = dormouse_vring_device_create(&queue->areas, SIZE, flags, regions, 2);
    assert(queue->device);
    if (flags & DORMOUSE_VRING_INDIRECT)
        assert(dormouse_vring_driver_use_indirect(queue->driver, queue->tables, 2 * (uint64_t)ADDR, ENTRIES) == 0);
    else
        assert(dormouse_vring_driver_use_indirect(queue->driver, queue->tables, 2 * (uint64_t)ADDR, ENTRIES) == -EINVAL);
}

static void end(struct queue *queue)
{
    dormouse_vring_driver_destroy(queue->driver);
    dormouse_vring_device_destroy(queue->device);
    free(queue->memory);
    free(queue->numbers);
    free(queue->tables);
    sem_destroy(&queue->kicks);
    sem_destroy(&queue->interrupts);
}

/* Publishes pushed buffers to the driver, and wakes it if it wants that. */
static void publish_used(struct queue *queue)
{
    dormouse_vring_device_publish_used(queue->device);
    if (dormouse_vring_device_needs_interrupt(queue->device))
        sem_post(&queue->interrupts);
}

/* Doubles the driver's numbers. */
static void *serve(void *argument)
{
    struct queue *queue = (struct queue *)argument;
    struct dormouse_vring_chain *chain = dormouse_vring_chain_create();
    uint32_t done = 0;
    while (done < COUNT) {
        const struct dormouse_vring_segment *from, *to;
        size_t from_count, to_count;
        uint64_t *source, *target;
        int popped = dormouse_vring_device_pop(queue->device, chain);
        assert(popped >= 0);
        if (!popped) {
            publish_used(queue);
            if (!dormouse_vring_device_arm_notification(queue->device))
                sem_wait(&queue->kicks);
            dormouse_vring_device_disarm_notification(queue->device);
            continue;
        }
        from = dormouse_vring_chain_readable(chain, &from_count);
        to = dormouse_vring_chain_writable(chain, &to_count);
        assert(from_count == 1 && to_count == 1 && from->len == 8 && to->len == 8);
        source = (uint64_t *)dormouse_vring_device_translate(queue->device, from->addr, from->len);
        target = (uint64_t *)dormouse_vring_device_translate(queue->device, to->addr, to->len);
        assert(source && target);
        *target = 2 * *source;
        dormouse_vring_device_push_used(queue->device, chain, 8);
        done++;
    }
    publish_used(queue);
    assert(dormouse_vring_device_violations(queue->device) == 0);
    dormouse_vring_chain_destroy(chain);
    return NULL;
}

static void hand_over(unsigned flags)
{
    struct queue queue;
    pthread_t thread;
    uint32_t added = 0, taken = 0;
    int is_free[SIZE / 2];
    memset(is_free, 1, sizeof is_free);
    make(&queue, flags);
    assert(pthread_create(&thread, NULL, serve, &queue) == 0);
    while (taken < COUNT) {
        struct dormouse_vring_completion completion;
        uint32_t slot = added % (SIZE / 2), taken_before = taken;
        int answer;
        while (added < COUNT && is_free[slot]) {
            struct dormouse_vring_segment segments[2];
            segments[0].addr = ADDR + 16 * slot;
            segments[1].addr = ADDR + 16 * slot + 8;
            segments[0].len = segments[1].len = 8;
            queue.numbers[2 * slot] = added;
            if (dormouse_vring_driver_add(queue.driver, segments, 1, 1, added) == -ENOSPC)
                break;
            is_free[slot] = 0;
            slot = ++added % (SIZE / 2);
        }
        dormouse_vring_driver_publish(queue.driver);
        if (dormouse_vring_driver_needs_kick(queue.driver))
            sem_post(&queue.kicks);
        while ((answer = dormouse_vring_driver_take_used(queue.driver, &completion)) == 1) {
            assert(completion.token == taken && completion.len == 8);
            slot = taken++ % (SIZE / 2);
            assert(queue.numbers[2 * slot + 1] == 2 * completion.token);
            is_free[slot] = 1;
        }
        assert(answer == 0);
        if (taken == taken_before) {
            if (!dormouse_vring_driver_arm_interrupt(queue.driver))
                sem_wait(&queue.interrupts);
            dormouse_vring_driver_disarm_interrupt(queue.driver);
        }
    }
    pthread_join(thread, NULL);
    assert(dormouse_vring_driver_violations(queue.driver) == 0 && dormouse_vring_driver_free_count(queue.driver) == SIZE);
    end(&queue);
}

/* Checks which sides want to be notified, and are. */
static void notify(unsigned flags)
{
    struct queue queue;
    struct dormouse_vring_segment segment;
    struct dormouse_vring_completion completion;
    struct dormouse_vring_chain *chain = dormouse_vring_chain_create();
    int round;
    segment.addr = ADDR;
    segment.len = 8;
    make(&queue, flags);
    assert(dormouse_vring_driver_needs_kick(queue.driver) == 0);
    for (round = 0; round < 2; round++) {
        assert(dormouse_vring_device_arm_notification(queue.device) == 0);
        assert(dormouse_vring_driver_arm_interrupt(queue.driver) == 0);
        if (round == 0) {
            assert(dormouse_vring_driver_add(queue.driver, &segment, 1, 0, 7) == 0);
            assert(dormouse_vring_device_arm_notification(queue.device) == 0);
            dormouse_vring_driver_publish(queue.driver);
        } else {
            assert(dormouse_vring_driver_add_and_publish(queue.driver, &segment, 1, 0, 7) == 0);
        }
        assert(dormouse_vring_driver_needs_kick(queue.driver) == 1);
        assert(dormouse_vring_device_arm_notification(queue.device) == 1);
        assert(dormouse_vring_device_pop(queue.device, chain) == 1);
        dormouse_vring_device_disarm_notification(queue.device);
        dormouse_vring_device_push_used(queue.device, chain, 0);
        dormouse_vring_device_publish_used(queue.device);
        assert(dormouse_vring_device_needs_interrupt(queue.device) == 1);
        assert(dormouse_vring_driver_arm_interrupt(queue.driver) == 1);
        assert(dormouse_vring_driver_take_used(queue.driver, &completion) == 1 && completion.token == 7);
        dormouse_vring_driver_disarm_interrupt(queue.driver);
    }
    dormouse_vring_chain_destroy(chain);
    end(&queue);
}

static void errors(unsigned flags)
{
    struct queue queue;
    struct dormouse_vring_segment segments[SIZE + 1];
    struct dormouse_vring_completion completion;
    struct dormouse_vring_chain *chain = dormouse_vring_chain_create();
    struct dormouse_vring_areas areas;
    struct dormouse_vring_region regions[2];
    char text[256], shorter[5];
    size_t len;
    uint32_t index;
    make(&queue, flags);
    for (index = 0; index <= SIZE; index++) {
        segments[index].addr = ADDR;
        segments[index].len = UINT32_MAX;
    }
    assert(dormouse_vring_size_bytes(0, flags) == 0 && dormouse_vring_size_bytes(32769, flags) == 0);
    assert((dormouse_vring_size_bytes(15, flags) == 0) == !(flags & DORMOUSE_VRING_PACKED));
    assert(dormouse_vring_place(&areas, queue.memory + 8, SIZE, flags) == -EINVAL);
    areas = queue.areas;
    areas.device_size_bytes = 3;
    assert(dormouse_vring_init(&areas, SIZE, flags) == -EINVAL);
    errno = 0;
    assert(!dormouse_vring_driver_create(&areas, SIZE, flags) && errno == EINVAL);
    errno = 0;
    assert(!dormouse_vring_driver_create(&queue.areas, SIZE, 16) && errno == EINVAL);
    memset(regions, 0, sizeof regions);
    regions[0].size_bytes = regions[1].size_bytes = 8;
    errno = 0;
    assert(!dormouse_vring_device_create(&queue.areas, SIZE, flags, regions, 2) && errno == EINVAL);

    assert(dormouse_vring_driver_add(queue.driver, NULL, 0, 0, 0) == -EINVAL);
    assert(dormouse_vring_driver_add(queue.driver, segments, 2, 0, 0) == -EMSGSIZE);
    segments[1].len = 1;
    assert(dormouse_vring_driver_add(queue.driver, segments, 1, 1, 0) == 0);
    for (index = 0; index <= SIZE; index++)
        segments[index].len = 1;
    assert(dormouse_vring_driver_add(queue.driver, segments, SIZE + 1, 0, 0) == -EMSGSIZE);
    assert(dormouse_vring_driver_add(queue.driver, segments, SIZE, 0, 0) == -ENOSPC);
    assert(dormouse_vring_driver_add_and_publish(queue.driver, segments, SIZE, 0, 0) == -ENOSPC);
    assert(dormouse_vring_device_arm_notification(queue.device) == 0);
    dormouse_vring_device_disarm_notification(queue.device);
    len = dormouse_vring_driver_why(queue.driver, text, sizeof text);
    assert(len == strlen(text) && strstr(text, "descriptor"));
    assert(dormouse_vring_driver_why(queue.driver, shorter, sizeof shorter) == len && strlen(shorter) == 4);

    /* Both sides see memory full of ones. */
    dormouse_vring_driver_publish(queue.driver);
    memset(queue.areas.device, 0xFF, queue.areas.device_size_bytes);
    memset(queue.areas.descriptor, flags & DORMOUSE_VRING_PACKED ? 0x85 : 0xFF, queue.areas.descriptor_size_bytes);
    assert(dormouse_vring_driver_take_used(queue.driver, &completion) == -EPROTO);
    assert(dormouse_vring_driver_violations(queue.driver) == 1);
    if (flags & DORMOUSE_VRING_PACKED)
        memset(queue.areas.descriptor, 0x79, queue.areas.descriptor_size_bytes);
    assert((dormouse_vring_device_pop(queue.device, chain) == -EPROTO) == !(flags & DORMOUSE_VRING_PACKED));
    if (flags & DORMOUSE_VRING_PACKED) {
        /* Available, but with an id that no buffer can have. */
        memset(queue.areas.descriptor, 0xFF, 14);
        ((unsigned char *)queue.areas.descriptor)[14] = 0x80;
        ((unsigned char *)queue.areas.descriptor)[15] = 0;
        assert(dormouse_vring_device_pop(queue.device, chain) == -EPROTO);
    }
    assert(dormouse_vring_device_violations(queue.device) == 1);
    assert(dormouse_vring_device_why(queue.device, text, sizeof text) > 10);
    assert(!dormouse_vring_device_translate(queue.device, 0, 1));
    dormouse_vring_chain_destroy(chain);
    end(&queue);
}

/* Adds buffers with the tokens from `first` on, and publishes them. */
static void add(struct queue *queue, uint64_t first, uint64_t count)
{
    struct dormouse_vring_segment segment;
    segment.addr = ADDR;
    segment.len = 8;
    for (; count > 0; count--)
        assert(dormouse_vring_driver_add(queue->driver, &segment, 1, 0, first++) == 0);
    dormouse_vring_driver_publish(queue->driver);
}

/* Pops buffers and gives them back. */
static void finish(struct queue *queue, struct dormouse_vring_chain *chain, unsigned count)
{
    for (; count > 0; count--) {
        assert(dormouse_vring_device_pop(queue->device, chain) == 1);
        dormouse_vring_device_push_used(queue->device, chain, 0);
    }
    dormouse_vring_device_publish_used(queue->device);
}

static void take(struct queue *queue, uint64_t first, uint64_t count)
{
    struct dormouse_vring_completion completion;
    for (; count > 0; count--)
        assert(dormouse_vring_driver_take_used(queue->driver, &completion) == 1 && completion.token == first++);
    assert(dormouse_vring_driver_take_used(queue->driver, &completion) == 0);
}

/* A back end that is replaced, as by vhost-user: where the first one stopped, and with other memory. */
static void replaced(unsigned flags)
{
    struct queue queue;
    struct dormouse_vring_chain *chain = dormouse_vring_chain_create();
    struct dormouse_vring_region regions[2];
    uint64_t other[2] = { 0, 0 }, tokens[SIZE];
    unsigned round;
    uint16_t base;
    make(&queue, flags);
    memset(regions, 0, sizeof regions);
    for (round = 0; round < 7; round++) {
        add(&queue, 10, 5);
        finish(&queue, chain, 3);
        base = dormouse_vring_device_base(queue.device);
        dormouse_vring_device_destroy(queue.device);
        queue.device = dormouse_vring_device_create_at(&queue.areas, SIZE, flags, NULL, 0, base);
        assert(queue.device && dormouse_vring_device_base(queue.device) == base);
        finish(&queue, chain, 2);
        take(&queue, 10, 5);
    }
    if (flags & DORMOUSE_VRING_PACKED) {
        errno = 0;
        assert(!dormouse_vring_device_create_at(&queue.areas, SIZE, flags, NULL, 0, SIZE) && errno == EINVAL);
    }
    assert(!dormouse_vring_device_translate(queue.device, ADDR, 16));
    regions[0].addr = ADDR;
    regions[0].size_bytes = sizeof other;
    regions[0].base = other;
    assert(dormouse_vring_device_set_regions(queue.device, regions, 1) == 0);
    assert(dormouse_vring_device_translate(queue.device, ADDR + 8, 8) == &other[1]);
    regions[1] = regions[0];
    assert(dormouse_vring_device_set_regions(queue.device, regions, 2) == -EINVAL);
    assert(dormouse_vring_device_translate(queue.device, ADDR, 16) == other);

    /* The device dies while it has buffers: they come back, and the queue is like new. */
    for (round = 0; round < 7; round++) {
        add(&queue, 20, 5);
        finish(&queue, chain, 2);
        take(&queue, 20, 2);
        assert(dormouse_vring_device_pop(queue.device, chain) == 1);
        dormouse_vring_device_destroy(queue.device);
        assert(dormouse_vring_driver_reset(queue.driver, tokens, 2) == -ENOBUFS);
        assert(dormouse_vring_driver_reset(queue.driver, tokens, SIZE) == 3);
        assert(tokens[0] == 22 && tokens[1] == 23 && tokens[2] == 24);
        assert(dormouse_vring_driver_free_count(queue.driver) == SIZE);
        queue.device = dormouse_vring_device_create(&queue.areas, SIZE, flags, regions, 1);
        assert(queue.device);
        add(&queue, 22, 3);
        finish(&queue, chain, 3);
        take(&queue, 22, 3);
    }
    dormouse_vring_chain_destroy(chain);
    end(&queue);
}

static void feature_bits(void)
{
    unsigned flags;
    for (flags = 0; flags < 16; flags++) {
        uint64_t bits = dormouse_vring_features_of(flags);
        assert(dormouse_vring_flags_of(bits) == flags && dormouse_vring_flags_of(bits | 1u << 5) == flags);
        assert(bits >> 32 & 1);
    }
    assert(dormouse_vring_features_of(16) == 0);
    /* VIRTIO_F_INDIRECT_DESC, VIRTIO_F_EVENT_IDX, VIRTIO_F_RING_PACKED, VIRTIO_F_IN_ORDER: clause 6 of VirtIO 1.2. */
    assert(dormouse_vring_flags_of((uint64_t)1 << 28) == DORMOUSE_VRING_INDIRECT);
    assert(dormouse_vring_flags_of((uint64_t)1 << 29) == DORMOUSE_VRING_EVENT_IDX);
    assert(dormouse_vring_flags_of((uint64_t)1 << 34) == DORMOUSE_VRING_PACKED);
    assert(dormouse_vring_flags_of((uint64_t)1 << 35) == DORMOUSE_VRING_IN_ORDER);
}

int main(void)
{
    unsigned flags;
    feature_bits();
    for (flags = 0; flags < 16; flags++) {
        hand_over(flags);
        notify(flags);
        errors(flags);
        replaced(flags);
    }
    dormouse_vring_driver_destroy(NULL);
    dormouse_vring_device_destroy(NULL);
    dormouse_vring_chain_destroy(NULL);
    puts("fine");
    return 0;
}
