/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Virtqueues after VirtIO 1.2, split and packed, driver side and device side, for C11 and C++11 (gcc and clang).
 *
 *     size_t size_bytes = dormouse_vring_size_bytes(256, 0);                       zeroed memory that both sides share
 *     struct dormouse_vring_areas areas;
 *     dormouse_vring_place(&areas, memory, 256, 0);
 *     dormouse_vring_init(&areas, 256, 0);
 *
 *     driver = dormouse_vring_driver_create(&areas, 256, 0);                       device = dormouse_vring_device_create(&areas, 256, 0, …);
 *     dormouse_vring_driver_add(driver, segments, 1, 1, token);
 *     dormouse_vring_driver_publish(driver);                                       dormouse_vring_device_pop(device, chain);
 *     if (dormouse_vring_driver_needs_kick(driver))                                dormouse_vring_device_push_used(device, chain, written);
 *         kick();                                                                  dormouse_vring_device_publish_used(device);
 *     dormouse_vring_driver_take_used(driver, &completion);
 *
 * One thread at a time uses a side. The state that a side relies on is in its own memory and is never read back from the other side; each
 * word of the other side is read once and then checked. So this side stays inside its ring and its regions, whatever the other side writes. A
 * protocol violation is an error, is counted, and is described by …_why(); the side continues.
 *
 * Functions return 0 or a negative errno unless stated otherwise; only those that create change errno. Only functions that create, reset,
 * replace or destroy may block and allocate; a chain allocates when it grows. Pointers must refer to objects that were created and not
 * destroyed; NULL is allowed only where stated.
 *
 * Link with -ldormouse, or with -ldormouse_vring, which contains nothing else; see dormouse-vring(3).
 */
#ifndef DORMOUSE_VRING_H
#define DORMOUSE_VRING_H

#include <stddef.h>
#include <stdint.h>

/* A packed queue (VIRTIO_F_RING_PACKED); otherwise a split one. */
#define DORMOUSE_VRING_PACKED 1u
/* VIRTIO_F_INDIRECT_DESC: a descriptor may refer to a table of descriptors. */
#define DORMOUSE_VRING_INDIRECT 2u
/* VIRTIO_F_EVENT_IDX: each side says at which index it wants to be notified. */
#define DORMOUSE_VRING_EVENT_IDX 4u
/* VIRTIO_F_IN_ORDER: buffers are used in the order in which they were made available. */
#define DORMOUSE_VRING_IN_ORDER 8u

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_vring_driver;
struct dormouse_vring_device;
/* A buffer that a device has popped; reused for each buffer. */
struct dormouse_vring_chain;

/* The three parts of a queue, which need not be contiguous. They are aligned to 16, 4 and 4 bytes. */
struct dormouse_vring_areas {
    void *descriptor;
    size_t descriptor_size_bytes;
    void *driver;
    size_t driver_size_bytes;
    void *device;
    size_t device_size_bytes;
};

/* A contiguous part of a buffer, at an address that the device understands. */
struct dormouse_vring_segment {
    uint64_t addr;
    uint32_t len;
};

/* A buffer that came back: the token it was added with, and the number of bytes that the device says it wrote. */
struct dormouse_vring_completion {
    uint64_t token;
    uint32_t len;
};

/* A piece of the driver's memory that is mapped into this process. */
struct dormouse_vring_region {
    uint64_t addr;
    uint64_t size_bytes;
    void *base;
};

/*
 * Returns the number of bytes of a queue of `size` descriptors with contiguous areas; 0 if there is no such queue. A
 * queue has 1 to 32768 descriptors; a split queue has a power of two. MT-safe, wait-free, async-signal-safe.
 */
size_t dormouse_vring_size_bytes(uint32_t size, unsigned flags);

/*
 * Stores the areas of a queue of `size` descriptors at `base`, a multiple of 64.
 *
 * Errors: -EINVAL  invalid size or alignment
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_vring_place(struct dormouse_vring_areas *areas, void *base, uint32_t size, unsigned flags);

/*
 * Makes an empty queue. Call it before either side is created.
 *
 * Errors: -EINVAL  invalid size; an area too small or not aligned
 * Wait-free.
 */
int dormouse_vring_init(const struct dormouse_vring_areas *areas, uint32_t size, unsigned flags);

/* Returns the flags of a queue with these negotiated VirtIO feature bits. Bits that do not change queues are ignored. MT-safe, wait-free. */
unsigned dormouse_vring_flags_of(uint64_t features);

/* Returns the VirtIO feature bits of these flags, with VIRTIO_F_VERSION_1; 0 for other flags. MT-safe, wait-free. */
uint64_t dormouse_vring_features_of(unsigned flags);

/*
 * Creates the driver of an empty queue. The areas must stay mapped until it is destroyed, and no other code of this
 * program may write the driver's side.
 *
 * NULL with errno: EINVAL  invalid size or flags; an area too small or not aligned
 * MT-safe, blocking.
 */
struct dormouse_vring_driver *dormouse_vring_driver_create(const struct dormouse_vring_areas *areas, uint32_t size, unsigned flags);

/* Frees a driver. NULL is allowed. MT-safe, blocking. */
void dormouse_vring_driver_destroy(struct dormouse_vring_driver *driver);

/*
 * Puts buffers of 2 to `entries` segments into indirect tables from now on; each then takes one descriptor of the
 * queue. `tables` has 16 × `entries` bytes for each descriptor of the queue, begins at a multiple of 16, and stays
 * mapped; `addr` is its address for the device.
 *
 * Errors: -EINVAL  not aligned, or DORMOUSE_VRING_INDIRECT was not among the flags
 * Wait-free.
 */
int dormouse_vring_driver_use_indirect(struct dormouse_vring_driver *driver, void *tables, uint64_t addr, uint16_t entries);

/*
 * Adds a buffer: first segments that the device reads, then segments that it writes. The device does not see it before
 * it is published.
 *
 * Errors: -ENOSPC    too few descriptors are free: take used buffers first
 *         -EINVAL    no segment
 *         -EMSGSIZE  more segments than the queue has descriptors, or more than 2^32 bytes
 * Wait-free.
 */
int dormouse_vring_driver_add(struct dormouse_vring_driver *driver, const struct dormouse_vring_segment *segments, size_t readable_count,
                              size_t writable_count, uint64_t token);

/* Shows the device everything that was added. Wait-free. */
void dormouse_vring_driver_publish(struct dormouse_vring_driver *driver);

/*
 * dormouse_vring_driver_add() and dormouse_vring_driver_publish() in one, for the last buffer of several or the only one.
 *
 * Errors: as dormouse_vring_driver_add(); nothing is published
 * Wait-free.
 */
int dormouse_vring_driver_add_and_publish(struct dormouse_vring_driver *driver, const struct dormouse_vring_segment *segments,
                                          size_t readable_count, size_t writable_count, uint64_t token);

/* Returns 1 if the device wants to be notified of what was published since the last call. Wait-free. */
int dormouse_vring_driver_needs_kick(struct dormouse_vring_driver *driver);

/*
 * Takes back the next used buffer. Returns 1 and stores `*completion`; 0: there is none.
 *
 * Errors: -EPROTO  the device has violated the protocol
 * Wait-free.
 */
int dormouse_vring_driver_take_used(struct dormouse_vring_driver *driver, struct dormouse_vring_completion *completion);

/*
 * Makes the queue empty again, after the device has stopped or died, and stores the token of each buffer that was added
 * and did not come back, the oldest first. Such a buffer can have been executed, or not, or in part; add it again to have
 * it executed. Take used buffers until there is none before. The next device begins at an empty queue. Returns the number
 * of tokens, at most the queue's size.
 *
 * Errors: -ENOBUFS  more than `max` tokens; nothing was changed
 * Blocking: it allocates.
 */
int dormouse_vring_driver_reset(struct dormouse_vring_driver *driver, uint64_t *tokens, size_t max);

/* Asks to be notified of the next buffer that comes back. Returns 1 if one came meanwhile: take it before waiting. Wait-free. */
int dormouse_vring_driver_arm_interrupt(struct dormouse_vring_driver *driver);

/* Asks not to be notified for now; some notifications may still come. Wait-free. */
void dormouse_vring_driver_disarm_interrupt(struct dormouse_vring_driver *driver);

/* Returns the number of free descriptors. Wait-free. */
uint16_t dormouse_vring_driver_free_count(const struct dormouse_vring_driver *driver);

/* Returns the number of times that the device has violated the protocol. Wait-free. */
uint64_t dormouse_vring_driver_violations(const struct dormouse_vring_driver *driver);

/* Writes a text about the last error, of at most `size` bytes with its NUL. Returns the length of the whole text, as snprintf() does. */
size_t dormouse_vring_driver_why(const struct dormouse_vring_driver *driver, char *text, size_t size);

/*
 * Creates the device of an empty queue, with the driver's memory: regions that do not overlap; or none, if buffers are
 * not addresses and there are no indirect tables. All of it must stay mapped until the device is destroyed, and no
 * other code of this program may write the device's side.
 *
 * NULL with errno: EINVAL  invalid size or flags; an area too small or not aligned; regions that overlap
 * MT-safe, blocking.
 */
struct dormouse_vring_device *dormouse_vring_device_create(const struct dormouse_vring_areas *areas, uint32_t size, unsigned flags,
                                                           const struct dormouse_vring_region *regions, size_t region_count);

/*
 * Creates the device of a queue in which everything before `base` has been taken and used: what vhost calls the base of a
 * queue (VHOST_USER_SET_VRING_BASE). In a packed queue bit 15 is the wrap counter, and an empty queue has 0x8000.
 *
 * NULL with errno: as dormouse_vring_device_create()
 * MT-safe, blocking.
 */
struct dormouse_vring_device *dormouse_vring_device_create_at(const struct dormouse_vring_areas *areas, uint32_t size, unsigned flags,
                                                              const struct dormouse_vring_region *regions, size_t region_count, uint16_t base);

/* Returns the device's position, as dormouse_vring_device_create_at() takes it (VHOST_USER_GET_VRING_BASE). Wait-free. */
uint16_t dormouse_vring_device_base(const struct dormouse_vring_device *device);

/*
 * Replaces the driver's memory, as for VHOST_USER_SET_MEM_TABLE. Addresses that dormouse_vring_device_translate() returned
 * before are invalid once the earlier memory is unmapped.
 *
 * Errors: -EINVAL  regions that overlap; nothing was changed
 * Blocking: it allocates.
 */
int dormouse_vring_device_set_regions(struct dormouse_vring_device *device, const struct dormouse_vring_region *regions, size_t region_count);

/* Frees a device. NULL is allowed. MT-safe, blocking. */
void dormouse_vring_device_destroy(struct dormouse_vring_device *device);

/* Creates a chain to pop into. MT-safe, blocking. */
struct dormouse_vring_chain *dormouse_vring_chain_create(void);

/* Frees a chain. NULL is allowed. MT-safe, blocking. */
void dormouse_vring_chain_destroy(struct dormouse_vring_chain *chain);

/*
 * Returns the segments that the device reads, and those that it writes. Valid until the next pop. The driver has chosen
 * the addresses. Wait-free.
 */
const struct dormouse_vring_segment *dormouse_vring_chain_readable(const struct dormouse_vring_chain *chain, size_t *count);
const struct dormouse_vring_segment *dormouse_vring_chain_writable(const struct dormouse_vring_chain *chain, size_t *count);

/* Returns the address of the `size_bytes` bytes at the driver's `addr`; NULL if they are not all in one of the regions. Wait-free. */
void *dormouse_vring_device_translate(const struct dormouse_vring_device *device, uint64_t addr, uint64_t size_bytes);

/*
 * Pops the next available buffer into `chain`. Returns 1; 0: there is none.
 *
 * Errors: -EPROTO  the driver has violated the protocol
 * Wait-free.
 */
int dormouse_vring_device_pop(struct dormouse_vring_device *device, struct dormouse_vring_chain *chain);

/*
 * Gives back a buffer that was popped, once, with the number of bytes written to it. The driver does not see it before it is published.
 * With DORMOUSE_VRING_IN_ORDER, buffers must come back in the order in which they were popped. Wait-free.
 */
void dormouse_vring_device_push_used(struct dormouse_vring_device *device, const struct dormouse_vring_chain *chain, uint32_t len);

/* Shows the driver everything that was pushed. Wait-free. */
void dormouse_vring_device_publish_used(struct dormouse_vring_device *device);

/* Returns 1 if the driver wants to be notified of what was published since the last call. Wait-free. */
int dormouse_vring_device_needs_interrupt(struct dormouse_vring_device *device);

/* Asks to be notified of the next buffer. Returns 1 if one came meanwhile: pop it before waiting. Wait-free. */
int dormouse_vring_device_arm_notification(struct dormouse_vring_device *device);

/* Asks not to be notified for now; some notifications may still come. Wait-free. */
void dormouse_vring_device_disarm_notification(struct dormouse_vring_device *device);

/* Returns the number of times that the driver has violated the protocol. Wait-free. */
uint64_t dormouse_vring_device_violations(const struct dormouse_vring_device *device);

/* Writes a text about the last error, like dormouse_vring_driver_why(). */
size_t dormouse_vring_device_why(const struct dormouse_vring_device *device, char *text, size_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
