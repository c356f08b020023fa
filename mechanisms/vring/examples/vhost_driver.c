/*
 * A vhost-user front end: fills a disk of another program, for instance of qemu-storage-daemon, and reads it back.
 *
 *     cc -O2 vhost_driver.c $(pkg-config --cflags --libs dormouse-vring)
 *     ./a.out SOCKET
 *
 * Each word of eight bytes of the disk becomes its own number. It prints how many blocks were written, and how many were read back
 * wrong. The protocol is that of QEMU's docs/interop/vhost-user.rst; the device is that of VirtIO 1.2, 5.2.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <dormouse/vring.h>

#define SIZE 64u
#define DEPTH 16u
#define BLOCK_BYTES 4096u
/* VHOST_USER_F_PROTOCOL_FEATURES; then VHOST_USER_PROTOCOL_F_CONFIG. */
#define PROTOCOL_FEATURES (1ull << 30)
#define CONFIG (1ull << 9)
/* VIRTIO_BLK_F_FLUSH */
#define FLUSH (1ull << 9)
/* Address of the memory for the device. It is not the address here. */
#define ADDR 0x100000000ull

struct request {
    struct {
        uint32_t type, reserved;
        uint64_t sector;
    } header;
    unsigned char status;
    _Alignas(8) uint64_t words[BLOCK_BYTES / 8];
};

/* Memory that both programs share. */
struct shared {
    _Alignas(4096) unsigned char ring[8192];
    struct request requests[DEPTH];
};

static int device = -1, kick, call;
static struct shared *shared;
static struct dormouse_vring_driver *driver;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Sends a message, with a file if `file` is not negative. */
static void tell(uint32_t request, const void *payload, uint32_t size, int file)
{
    uint32_t header[3] = { request, 1, size };
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { { 0 } };
    struct iovec parts[2] = { { header, sizeof header }, { (void *)(uintptr_t)payload, size } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof file) };
        memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    }
    if (sendmsg(device, &message, MSG_NOSIGNAL) != (ssize_t)(sizeof header + size))
        fail("send a message");
}

/* Sends a message and receives the answer's payload in its place. */
static void ask(uint32_t request, void *payload, uint32_t sent, uint32_t received)
{
    uint32_t header[3];
    tell(request, payload, sent, -1);
    if (recv(device, header, sizeof header, MSG_WAITALL) != sizeof header || header[0] != request || header[2] != received ||
        recv(device, payload, received, MSG_WAITALL) != received)
        fail("receive an answer");
}

static void tell_number(uint32_t request, uint64_t number, int file)
{
    tell(request, &number, sizeof number, file);
}

static void start(int memory, uint64_t accepted)
{
    struct {
        uint32_t count, padding;
        uint64_t addr, size_bytes, user_addr, offset;
    } table = { 1, 0, ADDR, sizeof *shared, (uintptr_t)shared, 0 };
    unsigned flags = dormouse_vring_flags_of(accepted);
    struct dormouse_vring_areas areas;
    if (sizeof shared->ring < dormouse_vring_size_bytes(SIZE, flags) || dormouse_vring_place(&areas, shared->ring, SIZE, flags) ||
        dormouse_vring_init(&areas, SIZE, flags) || !(driver = dormouse_vring_driver_create(&areas, SIZE, flags)))
        fail("make a queue");
    struct {
        uint32_t index, flags;
        uint64_t descriptor, device, driver, log;
    } addrs = { 0, 0, (uintptr_t)areas.descriptor, (uintptr_t)areas.device, (uintptr_t)areas.driver, 0 };
    tell(5, &table, sizeof table, memory);                                          /* SET_MEM_TABLE */
    tell(8, (uint32_t[]){ 0, SIZE }, 8, -1);                                        /* SET_VRING_NUM */
    tell(10, (uint32_t[]){ 0, flags & DORMOUSE_VRING_PACKED ? 0x80008000 : 0 }, 8, -1); /* SET_VRING_BASE */
    tell(9, &addrs, sizeof addrs, -1);                                              /* SET_VRING_ADDR */
    tell_number(13, 0, call);                                                       /* SET_VRING_CALL */
    tell_number(12, 0, kick);                                                       /* SET_VRING_KICK */
    tell(18, (uint32_t[]){ 0, 1 }, 8, -1);                                          /* SET_VRING_ENABLE */
}

/* Adds the request of a slot: type 0 reads, 1 writes, and 4 makes permanent what was written. */
static void add(uint32_t slot, uint32_t type, uint64_t block)
{
    struct request *request = &shared->requests[slot];
    uint64_t addr = ADDR + (uint64_t)((char *)request - (char *)shared);
    struct dormouse_vring_segment segments[3] = { { addr, sizeof request->header } };
    size_t count = 1;
    request->header.type = type;
    request->header.sector = block * (BLOCK_BYTES / 512);
    request->status = 0xFF;
    for (uint64_t index = 0; index < BLOCK_BYTES / 8; index++)
        request->words[index] = type == 1 ? block * (BLOCK_BYTES / 8) + index : ~0ull;
    if (type != 4)
        segments[count++] = (struct dormouse_vring_segment){ addr + offsetof(struct request, words), BLOCK_BYTES };
    segments[count++] = (struct dormouse_vring_segment){ addr + offsetof(struct request, status), 1 };
    size_t readable = type == 1 ? 2 : 1;
    if (dormouse_vring_driver_add_and_publish(driver, segments, readable, count - readable, slot))
        fail("add a request");
    if (dormouse_vring_driver_needs_kick(driver) && eventfd_write(kick, 1))
        fail("kick");
}

/* Returns the slot of the next request that came back. */
static uint32_t take(void)
{
    struct dormouse_vring_completion done;
    int taken;
    while ((taken = dormouse_vring_driver_take_used(driver, &done)) == 0) {
        /* Some devices make the file non-blocking, so it is waited for before it is read. */
        struct pollfd wait = { .fd = call, .events = POLLIN };
        eventfd_t count;
        if (!dormouse_vring_driver_arm_interrupt(driver) && (poll(&wait, 1, -1) < 0 || eventfd_read(call, &count)))
            fail("wait");
    }
    if (taken < 0 || shared->requests[done.token].status != 0) {
        char why[128] = "";
        if (taken < 0)
            dormouse_vring_driver_why(driver, why, sizeof why);
        fprintf(stderr, "a request failed: %s\n", why);
        exit(1);
    }
    return (uint32_t)done.token;
}

/* Executes a request of this type for every block. Returns the number of blocks that were read back wrong. */
static uint64_t run(uint32_t type, uint64_t blocks)
{
    uint64_t next = 0, done = 0, wrong = 0;
    for (; next < DEPTH && next < blocks; next++)
        add((uint32_t)next, type, next);
    for (; done < blocks; done++) {
        uint32_t slot = take();
        const struct request *request = &shared->requests[slot];
        uint64_t first = request->header.sector * 512 / 8, is_wrong = 0;
        for (uint64_t index = 0; index < BLOCK_BYTES / 8; index++)
            is_wrong |= request->words[index] != first + index;
        wrong += is_wrong;
        if (next < blocks)
            add(slot, type, next++);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    uint64_t offered = 0, protocol = 0, capacity;
    struct {
        uint32_t offset, size_bytes, flags;
        uint64_t capacity;
    } __attribute__((packed)) config = { 0, 8, 0, 0 };
    if (argc != 2 || strlen(argv[1]) >= sizeof addr.sun_path) {
        fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
        return 2;
    }
    strcpy(addr.sun_path, argv[1]);
    device = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (device < 0 || connect(device, (struct sockaddr *)&addr, sizeof addr))
        fail(argv[1]);
    kick = eventfd(0, EFD_CLOEXEC);
    call = eventfd(0, EFD_CLOEXEC);
    /* Sealed, because a device could be killed by memory that is truncated. */
    int memory = memfd_create("vhost_driver", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (kick < 0 || call < 0 || memory < 0 || ftruncate(memory, sizeof *shared) || fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK))
        fail("memory");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (shared == MAP_FAILED)
        fail("memory");

    tell(3, NULL, 0, -1);             /* SET_OWNER */
    ask(1, &offered, 0, 8);           /* GET_FEATURES */
    uint64_t wanted = dormouse_vring_features_of(DORMOUSE_VRING_PACKED | DORMOUSE_VRING_EVENT_IDX) | PROTOCOL_FEATURES | FLUSH;
    uint64_t accepted = offered & wanted, needed = dormouse_vring_features_of(0) | PROTOCOL_FEATURES | FLUSH;
    if ((accepted & needed) == needed)
        ask(15, &protocol, 0, 8);     /* GET_PROTOCOL_FEATURES */
    if (!(protocol & CONFIG)) {
        fprintf(stderr, "%s is not a disk with a cache, after VirtIO 1.0 or later\n", argv[1]);
        return 1;
    }
    tell_number(16, CONFIG, -1);      /* SET_PROTOCOL_FEATURES */
    ask(24, &config, sizeof config, sizeof config); /* GET_CONFIG */
    capacity = config.capacity;
    tell_number(2, accepted, -1);     /* SET_FEATURES */
    start(memory, accepted);

    uint64_t blocks = capacity * 512 / BLOCK_BYTES;
    run(1, blocks);
    add(0, 4, 0);
    take();
    uint64_t wrong = run(0, blocks);
    printf("%llu blocks written, %llu wrong\n", (unsigned long long)blocks, (unsigned long long)wrong);
    dormouse_vring_driver_destroy(driver);
    return wrong != 0;
}
