/*
 * A vhost-user back end: a disk in a file, or a network that sends every frame back.
 *
 *     cc -O2 vhost_device.c $(pkg-config --cflags --libs dormouse-vring)
 *     ./a.out SOCKET FILE      a disk, for instance for QEMU's vhost-user-blk-pci
 *     ./a.out SOCKET           a network, for instance for DPDK's net_virtio_user
 *
 * It serves one driver after another, and prints counts when a driver has gone. The protocol is that of QEMU's
 * docs/interop/vhost-user.rst; the devices are those of VirtIO 1.2, 5.1 and 5.2. A segment of a buffer must be in one of the
 * driver's memory regions.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <dormouse/vring.h>

#define QUEUES 2u
#define REGIONS 8u
#define FLAGS (DORMOUSE_VRING_PACKED | DORMOUSE_VRING_INDIRECT | DORMOUSE_VRING_EVENT_IDX | DORMOUSE_VRING_IN_ORDER)
/* VHOST_USER_F_PROTOCOL_FEATURES; then VHOST_USER_PROTOCOL_F_MQ and _CONFIG. */
#define PROTOCOL_FEATURES (1ull << 30)
#define PROTOCOL (1ull << 0 | 1ull << 9)
/* VIRTIO_BLK_F_SEG_MAX, _FLUSH and _MQ. */
#define BLK_FEATURES (1ull << 2 | 1ull << 9 | 1ull << 12)
#define SEGMENTS_MAX 1024u
#define FRAME_BYTES_MAX 65536u

struct header {
    uint32_t request, flags, size;
};

struct region {
    uint64_t addr, size_bytes, user_addr, offset;
};

union payload {
    uint64_t number;
    struct {
        uint32_t index, value;
    } state;
    struct {
        uint32_t index, flags;
        uint64_t descriptor, device, driver, log;
    } addrs;
    struct {
        uint32_t count, padding;
        struct region regions[REGIONS];
    } memory;
    struct {
        uint32_t offset, size_bytes, flags;
        unsigned char bytes[256];
    } config;
};

struct queue {
    struct dormouse_vring_device *device;
    uint64_t descriptor_addr, driver_addr, device_addr;
    uint32_t size;
    uint16_t base;
    int kick, call, is_enabled;
};

static struct queue queues[QUEUES];
static struct dormouse_vring_region regions[REGIONS];
/* Addresses of the regions in the driver's process, for the parts of queues, and the mappings that begin at their files' offset 0. */
static uint64_t user_addrs[REGIONS];
static struct iovec mappings[REGIONS];
static size_t region_count;
static uint64_t features;
static struct dormouse_vring_chain *chain, *answer;
/* The disk's file, or -1 for a network. */
static int disk = -1;
static uint64_t sectors, buffers, frames_dropped, violations;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Returns the address of memory that the driver knows by its own address; NULL if there is none. */
static void *here(uint64_t user_addr, size_t size_bytes)
{
    for (size_t index = 0; index < region_count; index++) {
        uint64_t offset = user_addr - user_addrs[index];
        if (user_addr >= user_addrs[index] && offset <= regions[index].size_bytes && size_bytes <= regions[index].size_bytes - offset)
            return (char *)regions[index].base + offset;
    }
    return NULL;
}

static void stop(struct queue *queue)
{
    if (!queue->device)
        return;
    queue->base = dormouse_vring_device_base(queue->device);
    violations += dormouse_vring_device_violations(queue->device);
    dormouse_vring_device_destroy(queue->device);
    queue->device = NULL;
}

/* Creates the device of a queue that is completely described. */
static void start(struct queue *queue)
{
    unsigned flags = dormouse_vring_flags_of(features);
    size_t size = queue->size, driver_bytes = flags & DORMOUSE_VRING_PACKED ? 4 : 6 + 2 * size;
    size_t device_bytes = flags & DORMOUSE_VRING_PACKED ? 4 : 6 + 8 * size;
    int is_ready = queue->is_enabled || !(features & PROTOCOL_FEATURES);
    if (queue->device || !is_ready || queue->kick < 0 || !queue->descriptor_addr || !region_count)
        return;
    struct dormouse_vring_areas areas = {
        .descriptor = here(queue->descriptor_addr, 16 * size),
        .descriptor_size_bytes = 16 * size,
        .driver = here(queue->driver_addr, driver_bytes),
        .driver_size_bytes = driver_bytes,
        .device = here(queue->device_addr, device_bytes),
        .device_size_bytes = device_bytes,
    };
    if (areas.descriptor && areas.driver && areas.device)
        queue->device = dormouse_vring_device_create_at(&areas, queue->size, flags, regions, region_count, queue->base);
    if (!queue->device)
        fprintf(stderr, "a queue of %u descriptors cannot be used\n", queue->size);
}

static void close_memory(void)
{
    for (; region_count; region_count--)
        munmap(mappings[region_count - 1].iov_base, mappings[region_count - 1].iov_len);
}

static void set_memory(const union payload *payload, const int *files, size_t file_count)
{
    for (size_t index = 0; index < QUEUES; index++)
        stop(&queues[index]);
    close_memory();
    for (; region_count < payload->memory.count && region_count < file_count; region_count++) {
        const struct region *region = &payload->memory.regions[region_count];
        size_t size_bytes = region->offset + region->size_bytes;
        struct stat status;
        void *base = MAP_FAILED;
        /* A mapping beyond the end of its file would end this process with SIGBUS. */
        if (!fstat(files[region_count], &status) && size_bytes >= region->offset && size_bytes <= (uint64_t)status.st_size)
            base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files[region_count], 0);
        if (base == MAP_FAILED)
            break;
        mappings[region_count] = (struct iovec){ base, size_bytes };
        user_addrs[region_count] = region->user_addr;
        regions[region_count] = (struct dormouse_vring_region){
            .addr = region->addr,
            .size_bytes = region->size_bytes,
            .base = (char *)base + region->offset,
        };
    }
    for (size_t index = 0; index < QUEUES; index++)
        start(&queues[index]);
}

/*
 * Stores the parts of segments that remain without the first `skip` bytes and the last `drop`. Returns the number of parts; -1 if the
 * driver has no such memory.
 */
static int parts(struct queue *queue, const struct dormouse_vring_segment *segments, size_t count, uint64_t skip, uint64_t drop,
                 struct iovec *to)
{
    uint64_t rest = 0;
    int number = 0;
    for (size_t index = 0; index < count; index++)
        rest += segments[index].len;
    if (rest < skip + drop || count > SEGMENTS_MAX)
        return -1;
    rest -= skip + drop;
    for (size_t index = 0; index < count && rest; index++) {
        uint64_t passed = skip < segments[index].len ? skip : segments[index].len;
        uint64_t len = segments[index].len - passed < rest ? segments[index].len - passed : rest;
        skip -= passed;
        rest -= len;
        if (!len)
            continue;
        to[number].iov_base = dormouse_vring_device_translate(queue->device, segments[index].addr + passed, len);
        to[number].iov_len = len;
        if (!to[number++].iov_base)
            return -1;
    }
    return number;
}

static size_t total(const struct iovec *of, int count)
{
    size_t size_bytes = 0;
    while (count > 0)
        size_bytes += of[--count].iov_len;
    return size_bytes;
}

/* Copies between parts and memory, up to the shorter one's end. Returns the number of bytes. */
static size_t copy(const struct iovec *of, int count, void *bytes, size_t size_bytes, int is_store)
{
    size_t done = 0;
    for (int index = 0; index < count && done < size_bytes; index++) {
        size_t len = of[index].iov_len < size_bytes - done ? of[index].iov_len : size_bytes - done;
        memcpy(is_store ? of[index].iov_base : (char *)bytes + done, is_store ? (char *)bytes + done : of[index].iov_base, len);
        done += len;
    }
    return done;
}

/* Executes a request of a disk (5.2.6). Returns the number of bytes written to the buffer. */
static uint32_t serve_disk(struct queue *queue)
{
    static struct iovec from[SEGMENTS_MAX], to[SEGMENTS_MAX], status[SEGMENTS_MAX];
    size_t readable, writable;
    const struct dormouse_vring_segment *first = dormouse_vring_chain_readable(chain, &readable);
    const struct dormouse_vring_segment *last = dormouse_vring_chain_writable(chain, &writable);
    struct {
        uint32_t type, reserved;
        uint64_t sector;
    } request;
    int heads = parts(queue, first, readable, 0, 0, from);
    uint64_t writable_bytes = 0;
    for (size_t index = 0; index < writable; index++)
        writable_bytes += last[index].len;
    int places = writable_bytes ? parts(queue, last, writable, writable_bytes - 1, 0, status) : -1;
    if (heads < 0 || places != 1 || copy(from, heads, &request, sizeof request, 0) < sizeof request) {
        violations++;
        return 0;
    }
    int outs = parts(queue, first, readable, sizeof request, 0, from), ins = parts(queue, last, writable, 0, 1, to);
    uint64_t size_bytes = request.type == 0 ? total(to, ins) : total(from, outs);
    unsigned char code = 1; /* VIRTIO_BLK_S_IOERR */
    uint32_t written = 0;
    int is_inside = size_bytes % 512 == 0 && request.sector <= sectors && size_bytes / 512 <= sectors - request.sector;
    if (outs < 0 || ins < 0) {
        violations++;
    } else if (request.type == 0 && is_inside) {
        if (preadv(disk, to, ins, (off_t)(request.sector * 512)) == (ssize_t)size_bytes) {
            code = 0;
            written = (uint32_t)size_bytes;
        }
    } else if (request.type == 1 && is_inside) {
        code = pwritev(disk, from, outs, (off_t)(request.sector * 512)) != (ssize_t)size_bytes;
    } else if (request.type == 4) {
        code = fdatasync(disk) != 0;
    } else if (request.type == 8) {
        char name[20] = "dormouse";
        written = (uint32_t)copy(to, ins, name, sizeof name, 1);
        code = 0;
    } else if (request.type > 1) {
        code = 2; /* VIRTIO_BLK_S_UNSUPP */
    }
    *(unsigned char *)status[0].iov_base = code;
    /* The count covers the status only if every byte before it was written. */
    return written == writable_bytes - 1 ? written + 1 : written;
}

static void signal_used(struct queue *queue)
{
    dormouse_vring_device_publish_used(queue->device);
    if (dormouse_vring_device_needs_interrupt(queue->device) && queue->call >= 0)
        eventfd_write(queue->call, 1);
}

/* Sends a frame back (5.1.6). A frame for which the driver has no buffer is dropped, as by a network. */
static void serve_network(struct queue *transmit, struct queue *receive)
{
    static struct iovec from[SEGMENTS_MAX], to[SEGMENTS_MAX];
    static unsigned char frame[FRAME_BYTES_MAX];
    static const uint16_t one_buffer = 1;
    size_t readable, writable;
    const struct dormouse_vring_segment *segments = dormouse_vring_chain_readable(chain, &readable);
    int count = parts(transmit, segments, readable, 0, 0, from);
    size_t size_bytes = copy(from, count, frame, sizeof frame, 0);
    if (size_bytes < 12) {
        violations++;
        return;
    }
    if (!receive->device || dormouse_vring_device_pop(receive->device, answer) != 1) {
        frames_dropped++;
        return;
    }
    memset(frame, 0, 10);
    memcpy(frame + 10, &one_buffer, sizeof one_buffer);
    segments = dormouse_vring_chain_writable(answer, &writable);
    count = parts(receive, segments, writable, 0, 0, to);
    size_t written = total(to, count) >= size_bytes ? copy(to, count, frame, size_bytes, 1) : 0;
    frames_dropped += !written;
    dormouse_vring_device_push_used(receive->device, answer, (uint32_t)written);
    signal_used(receive);
}

/* Serves what there is in a queue. A receive queue is not served by itself: its buffers wait for frames. */
static void serve(struct queue *queue)
{
    if (!queue->device || (disk < 0 && queue == &queues[0]))
        return;
    for (int last = 0;;) {
        int popped = dormouse_vring_device_pop(queue->device, chain);
        if (popped == 1) {
            uint32_t written = 0;
            if (disk < 0)
                serve_network(queue, &queues[0]);
            else
                written = serve_disk(queue);
            dormouse_vring_device_push_used(queue->device, chain, written);
            signal_used(queue);
            buffers++;
        } else if ((popped < 0 && last < 0) || (popped == 0 && !dormouse_vring_device_arm_notification(queue->device))) {
            /* After two violations in succession a kick is waited for: the driver's index can be invalid for good. */
            return;
        }
        last = popped;
    }
}

static int receive(int socket, struct header *header, union payload *payload, int *files, size_t *file_count)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(REGIONS * sizeof(int))];
    } control;
    struct iovec part = { header, sizeof *header };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    *file_count = 0;
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    struct cmsghdr *carried = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (carried && carried->cmsg_level == SOL_SOCKET && carried->cmsg_type == SCM_RIGHTS) {
        *file_count = (carried->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(files, CMSG_DATA(carried), *file_count * sizeof(int));
    }
    memset(payload, 0, sizeof *payload);
    return got == (ssize_t)sizeof *header && header->size <= sizeof *payload &&
           (!header->size || recv(socket, payload, header->size, MSG_WAITALL) == (ssize_t)header->size);
}

static int reply(int socket, struct header *header, const union payload *payload, uint32_t size)
{
    struct iovec of[2] = { { header, sizeof *header }, { (void *)(uintptr_t)payload, size } };
    header->flags = 1 | 4; /* version 1, a reply */
    header->size = size;
    return writev(socket, of, 2) == (ssize_t)(sizeof *header + size);
}

/* Acts on a message. Returns 0 if the connection must end. Files that it keeps are set to -1 in `files`. */
static int handle(int socket, struct header *header, union payload *payload, int *files, size_t file_count)
{
    static const char *const kinds[] = { "network", "disk" };
    uint32_t index = header->request == 12 || header->request == 13 || header->request == 18 ? (uint32_t)(payload->number & 0xFF) :
                                                                                               payload->state.index;
    struct queue *queue = index < QUEUES ? &queues[index] : NULL;
    switch (header->request) {
    case 8: /* SET_VRING_NUM */
    case 9: /* SET_VRING_ADDR */
    case 10: /* SET_VRING_BASE */
    case 11: /* GET_VRING_BASE */
    case 12: /* SET_VRING_KICK */
    case 13: /* SET_VRING_CALL */
    case 18: /* SET_VRING_ENABLE */
        if (!queue)
            return 0;
        stop(queue);
    }
    switch (header->request) {
    case 1: /* GET_FEATURES */
        payload->number = dormouse_vring_features_of(FLAGS) | PROTOCOL_FEATURES | (disk < 0 ? 0 : BLK_FEATURES);
        return reply(socket, header, payload, sizeof payload->number);
    case 2: /* SET_FEATURES */
        features = payload->number;
        return 1;
    case 3: /* SET_OWNER */
    case 14: /* SET_VRING_ERR */
        return 1;
    case 5: /* SET_MEM_TABLE */
        set_memory(payload, files, file_count);
        return region_count == payload->memory.count;
    case 8:
        queue->size = payload->state.value;
        break;
    case 9:
        queue->descriptor_addr = payload->addrs.descriptor;
        queue->driver_addr = payload->addrs.driver;
        queue->device_addr = payload->addrs.device;
        break;
    case 10:
        queue->base = (uint16_t)payload->state.value;
        break;
    case 11: /* also stops the queue until the next kick file */
        if (queue->kick >= 0)
            close(queue->kick);
        queue->kick = -1;
        /* In a packed queue the upper half is the position of used descriptors, the same while nothing is in flight. */
        payload->state.value = queue->base;
        if (features & dormouse_vring_features_of(DORMOUSE_VRING_PACKED) & ~dormouse_vring_features_of(0))
            payload->state.value |= (uint32_t)queue->base << 16;
        return reply(socket, header, payload, sizeof payload->state);
    case 12:
    case 13: {
        int *kept = header->request == 12 ? &queue->kick : &queue->call;
        if (*kept >= 0)
            close(*kept);
        *kept = file_count ? files[0] : -1;
        files[0] = -1;
        if (*kept >= 0)
            fcntl(*kept, F_SETFL, O_NONBLOCK);
        break;
    }
    case 15: /* GET_PROTOCOL_FEATURES */
        payload->number = PROTOCOL;
        return reply(socket, header, payload, sizeof payload->number);
    case 16: /* SET_PROTOCOL_FEATURES */
        return !(payload->number & ~PROTOCOL);
    case 17: /* GET_QUEUE_NUM */
        payload->number = QUEUES;
        return reply(socket, header, payload, sizeof payload->number);
    case 18:
        queue->is_enabled = payload->state.value != 0;
        break;
    case 24: { /* GET_CONFIG */
        struct {
            uint64_t capacity;
            uint32_t size_max, seg_max, unused[4];
            uint16_t unused_too, queues;
        } config = { .capacity = sectors, .seg_max = 126, .queues = QUEUES };
        unsigned char space[sizeof payload->config.bytes] = { 0 };
        if (payload->config.size_bytes > sizeof space || payload->config.offset > sizeof space - payload->config.size_bytes)
            return 0;
        memcpy(space, &config, sizeof config);
        memcpy(payload->config.bytes, space + payload->config.offset, payload->config.size_bytes);
        return reply(socket, header, payload, header->size);
    }
    default:
        fprintf(stderr, "message %u is not for this %s\n", header->request, kinds[disk >= 0]);
        return 0;
    }
    start(queue);
    return 1;
}

static void serve_driver(int socket)
{
    for (size_t index = 0; index < QUEUES; index++)
        queues[index] = (struct queue){ .kick = -1, .call = -1 };
    features = buffers = frames_dropped = violations = 0;
    for (int goes_on = 1; goes_on;) {
        struct pollfd waits[1 + QUEUES] = { { .fd = socket, .events = POLLIN } };
        for (size_t index = 0; index < QUEUES; index++) {
            serve(&queues[index]);
            waits[1 + index] = (struct pollfd){ .fd = queues[index].device ? queues[index].kick : -1, .events = POLLIN };
        }
        if (poll(waits, 1 + QUEUES, -1) < 0)
            fail("poll");
        for (size_t index = 0; index < QUEUES; index++) {
            eventfd_t kicks;
            /* It does not block, and only a driver that reads its own kicks makes it fail. */
            if (waits[1 + index].revents)
                eventfd_read(queues[index].kick, &kicks);
        }
        if (waits[0].revents) {
            struct header header;
            union payload payload;
            int files[REGIONS];
            size_t file_count = 0;
            goes_on = goes_on && receive(socket, &header, &payload, files, &file_count) &&
                      handle(socket, &header, &payload, files, file_count);
            for (size_t index = 0; index < file_count; index++) {
                if (files[index] >= 0)
                    close(files[index]);
            }
        }
    }
    for (size_t index = 0; index < QUEUES; index++) {
        stop(&queues[index]);
        if (queues[index].kick >= 0)
            close(queues[index].kick);
        if (queues[index].call >= 0)
            close(queues[index].call);
    }
    close_memory();
    printf("%llu buffers, %llu frames dropped, %llu violations\n", (unsigned long long)buffers, (unsigned long long)frames_dropped,
           (unsigned long long)violations);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    if (argc < 2 || argc > 3 || strlen(argv[1]) >= sizeof addr.sun_path) {
        fprintf(stderr, "usage: %s SOCKET [FILE]\n", argv[0]);
        return 2;
    }
    if (argc == 3) {
        disk = open(argv[2], O_RDWR | O_CLOEXEC);
        off_t end = disk < 0 ? -1 : lseek(disk, 0, SEEK_END);
        if (end < 0)
            fail(argv[2]);
        sectors = (uint64_t)end / 512;
    }
    strcpy(addr.sun_path, argv[1]);
    chain = dormouse_vring_chain_create();
    answer = dormouse_vring_chain_create();
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!chain || !answer || listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof addr) || listen(listener, 1))
        fail(argv[1]);
    for (;;) {
        int driver = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (driver < 0)
            fail("accept");
        serve_driver(driver);
        close(driver);
    }
}
