/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Immediate values and static branches for C11 and C++11 (gcc and clang).
 *
 *     DEFINE_IMV(unsigned, batch_size) = 16;
 *     DEFINE_STATIC_KEY_FALSE(audit);
 *     ...
 *     for (i = 0; i < imv_read(batch_size); i++) { ... }   a constant in the instruction stream, no data access
 *     if (static_branch_unlikely(&audit)) { ... }          one instruction
 *     ...
 *     imv_set(batch_size, 64);                             while other threads execute the reads
 *     static_branch_enable(&audit);
 *
 *     DEFINE_STATIC_CALL(handle, plain);
 *     static_call(handle)(request);                        a direct call of the function that is current
 *     static_call_update(handle, traced);
 *
 *                                     in this object                     in another object
 *     in one unit                     DEFINE_IMV(type, name) = value;    EXPORT_IMV_SYMBOL(name) beside its definition
 *     in one unit, private to it      DEFINE_STATIC_IMV(type, name) = value;
 *     in every unit that reads it     DECLARE_IMV(type, name);           IMPORT_IMV(type, name);
 *
 * and likewise DEFINE_STATIC_KEY_FALSE(name), DEFINE_STATIC_KEY_TRUE(name), DECLARE_STATIC_KEY(name),
 * EXPORT_STATIC_KEY(name) and IMPORT_STATIC_KEY(name). An object is a program or a shared library.
 *
 * A value has 1, 2, 4 or 8 bytes: an integer, bool, an enum, a float, a pointer to data or to a function. A read
 * returns the contents of its variable, also before the constructors and if program text cannot be patched. It may be
 * used wherever an expression may within a function: inline functions, templates, lambdas. It orders nothing, like a
 * relaxed load.
 *
 * An exported name is a symbol of C, `name__imv` or `name__key`: in C++, define an exported variable outside of
 * namespaces or in extern "C" { }. A program exports to its libraries only if it is linked for that (-rdynamic, or
 * -Wl,--export-dynamic-symbol='*__imv').
 *
 * Link with -ldormouse_imv, or with -ldormouse, which contains it. On AArch64 branches and calls are patched, and values
 * are loads of their variables, as in Rust: an instruction with an immediate must not change while a CPU executes it, and
 * a value takes up to four of them.
 * On architectures other than AArch64 and x86-64, and with DORMOUSE_GENERIC defined, all of this is plain variables and
 * needs no library. Define it for every object of a process or for none. With DORMOUSE_NO_SHORT_NAMES defined there are
 * only the names with DORMOUSE_ in front.
 */
#ifndef DORMOUSE_IMV_H
#define DORMOUSE_IMV_H

#include <stddef.h>
#include <string.h>

#include <dormouse/static_key.h>

#define DORMOUSE_I_HIDDEN __attribute__((visibility("hidden")))
#define DORMOUSE_I_EXPORTED __attribute__((visibility("default")))
#define DORMOUSE_I_UNUSED __attribute__((unused))
/* A word that only the loader writes. */
#define DORMOUSE_I_SLOT __attribute__((unused, section(".data.rel.ro.dormouse_imv")))

#ifdef __cplusplus
#define DORMOUSE_I_STATIC_ASSERT static_assert
extern "C" {
#else
#define DORMOUSE_I_STATIC_ASSERT _Static_assert
#endif

/* A change for dormouse_imv_update(). DORMOUSE_IMV_CHANGE, DORMOUSE_STATIC_KEY_ENABLE and _DISABLE initialise it. */
struct dormouse_imv_change {
    void *variable;      /* the variable or the key */
    uint64_t bits;       /* the value, in the lowest bytes */
    uint32_t operation;  /* DORMOUSE_IMV_OPERATION_... */
    uint32_t size_bytes; /* of the value */
    uint64_t former;     /* private */
};

#define DORMOUSE_IMV_OPERATION_SET 0
#define DORMOUSE_IMV_OPERATION_ENABLE 1
#define DORMOUSE_IMV_OPERATION_DISABLE 2
#define DORMOUSE_IMV_OPERATION_PUBLISH 3 /* like SET, and what was written before is visible to readers of the new value */

/*
 * The users of a key that is disabled only when it has had none for a period. DEFINE_STATIC_KEY_DEFERRED defines it. Fields
 * are private.
 */
struct dormouse_static_key_deferred {
    struct dormouse_static_key *key;
    uint64_t period_ns;     /* time that the key stays enabled without users, in nanoseconds */
    uint64_t idle_since_ns; /* time at which the last user left */
    uint32_t users;         /* number of users */
    uint32_t is_holding;    /* 1 while the key is enabled on behalf of the users */
};

/* The state of the library. */
struct dormouse_imv_state {
    char writer[16];  /* way in which sites are written: unprobed, mprotect, procmem, none */
    char reason[112]; /* reason for this writer, one line */
    size_t objects;   /* number of registered objects with sites */
    size_t sites;     /* number of sites in all objects */
    size_t patched;   /* number of sites whose instruction agrees with the value or key; the others read it */
};

#ifndef DORMOUSE_I_GENERIC

/*
 * Makes changes together, with one synchronisation of the CPUs. When it returns 0, every later read returns the new
 * value, and every later execution of a gate the new answer; until then each of them separately may return the old or
 * the new one.
 *
 * Errors: -EDEADLK  called by a signal handler that interrupted an update of the same thread; nothing was changed
 *         -EACCES   program text can no longer be written, and some site has an old value or gives a key's former answer:
 *                   no value was changed, all keys were
 *         -EINVAL   a key was disabled more often than enabled, and left out, but all other changes are made; or an operation
 *                   or a size is unknown or a variable is not aligned to its size, and nothing was changed
 * MT-safe, blocking, async-signal-safe.
 */
int dormouse_imv_update(struct dormouse_imv_change *changes, size_t count);

/* Sets a variable of `size_bytes` bytes, aligned to its size, to the bytes at `value`. Errors and properties are
 * those of dormouse_imv_update(). */
int dormouse_imv_set(void *variable, const void *value, size_t size_bytes);

/*
 * Add a user of a deferred key, and remove one. The first user enables the key, unless it is still enabled on behalf of
 * former users; removing one changes nothing, but begins the period if it was the last. `now_ns` is the time, in
 * nanoseconds of a clock that never goes back.
 *
 * Errors: those of dormouse_static_key_enable(), and -EACCES if another library has the sites. MT-safe, blocking,
 * async-signal-safe.
 */
int dormouse_static_key_deferred_enable(struct dormouse_static_key_deferred *deferred);
int dormouse_static_key_deferred_disable(struct dormouse_static_key_deferred *deferred, uint64_t now_ns);

/*
 * Disables a deferred key if it has had no user for the whole period, and stores the time that the period still takes, in
 * nanoseconds, or 0, if left_ns is not NULL. UINT64_MAX as the time ends any period. The program calls it from a loop or
 * timer of its own. Errors and properties are those of the functions above.
 */
int dormouse_static_key_deferred_expire(struct dormouse_static_key_deferred *deferred, uint64_t now_ns, uint64_t *left_ns);

/* Returns 1 if there are sites of the variable or key, and the instructions of all agree with it, otherwise 0 or -EDEADLK.
 * MT-safe, blocking, async-signal-safe. */
int dormouse_imv_is_patched(const void *variable);

/*
 * Sets how often the code of one value or static call may be changed in a second, after a burst of 64 changes; the default
 * is 200. Each change interrupts every running thread of the process. A value that is set more often is read from its
 * variable, as long as it is. UINT32_MAX is no limit. Errors: -EDEADLK, as for dormouse_imv_update(). MT-safe, blocking,
 * async-signal-safe.
 */
int dormouse_imv_set_patch_rate(uint32_t per_second);

/* Stores the state of the library. Errors: -EDEADLK, as for dormouse_imv_update(). MT-safe, blocking,
 * async-signal-safe. */
int dormouse_imv_status(struct dormouse_imv_state *state);

#else

#define DORMOUSE_I_IMV_STORE(type)                                                                                     \
    case sizeof(type): {                                                                                               \
        type bits;                                                                                                     \
        memcpy(&bits, value, sizeof bits);                                                                             \
        __atomic_store_n((type *)variable, bits, __ATOMIC_RELAXED);                                                    \
        return 0;                                                                                                      \
    }

static inline int dormouse_imv_set(void *variable, const void *value, size_t size_bytes)
{
    switch (size_bytes) {
        DORMOUSE_I_IMV_STORE(uint8_t)
        DORMOUSE_I_IMV_STORE(uint16_t)
        DORMOUSE_I_IMV_STORE(uint32_t)
        DORMOUSE_I_IMV_STORE(uint64_t)
    default:
        return -EINVAL;
    }
}

#undef DORMOUSE_I_IMV_STORE

static inline int dormouse_imv_update(struct dormouse_imv_change *changes, size_t count)
{
    int answer = 0;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (size_t index = 0; index < count; index++) {
        struct dormouse_imv_change *change = &changes[index];
        struct dormouse_static_key *key = (struct dormouse_static_key *)change->variable;
        int error = change->operation == DORMOUSE_IMV_OPERATION_SET || change->operation == DORMOUSE_IMV_OPERATION_PUBLISH
                        ? dormouse_imv_set(change->variable, &change->bits, change->size_bytes)
                        : dormouse_i_static_key_count(key, change->operation == DORMOUSE_IMV_OPERATION_ENABLE ? 1 : -1);
        answer = error ? error : answer;
    }
    return answer;
}

static inline int dormouse_imv_is_patched(const void *variable)
{
    (void)variable;
    return 0;
}

/* Changes cost nothing here, so nothing is deferred. */
static inline int dormouse_static_key_deferred_enable(struct dormouse_static_key_deferred *deferred)
{
    (void)__atomic_add_fetch(&deferred->users, 1, __ATOMIC_RELAXED);
    return dormouse_static_key_enable(deferred->key);
}

static inline int dormouse_static_key_deferred_disable(struct dormouse_static_key_deferred *deferred, uint64_t now_ns)
{
    uint32_t users = __atomic_load_n(&deferred->users, __ATOMIC_RELAXED);
    (void)now_ns;
    do {
        if (users == 0)
            return -EINVAL;
    } while (!__atomic_compare_exchange_n(&deferred->users, &users, users - 1, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return dormouse_static_key_disable(deferred->key);
}

static inline int dormouse_static_key_deferred_expire(struct dormouse_static_key_deferred *deferred, uint64_t now_ns,
                                                      uint64_t *left_ns)
{
    (void)deferred;
    (void)now_ns;
    if (left_ns)
        *left_ns = 0;
    return 0;
}

static inline int dormouse_imv_set_patch_rate(uint32_t per_second)
{
    (void)per_second;
    return 0;
}

static inline int dormouse_imv_status(struct dormouse_imv_state *state)
{
    memset(state, 0, sizeof *state);
    strcpy(state->writer, "none");
    strcpy(state->reason, "compiled without a patcher: values and keys are read");
    return 0;
}

#endif

/* Sets a pointer; what was written before is visible to code that uses its new value. */
static inline int dormouse_i_publish(void *variable, uintptr_t address)
{
    struct dormouse_imv_change change = {variable, address, DORMOUSE_IMV_OPERATION_PUBLISH, sizeof(address), 0};
    return dormouse_imv_update(&change, 1);
}

/* Returns the variable: the symbol itself or, if imported, the address that it contains. */
static inline void *dormouse_i_variable(void *symbol, int is_import)
{
    return is_import ? *(void *volatile *)symbol : symbol;
}

static inline struct dormouse_static_key *dormouse_i_own_key(struct dormouse_static_key *key)
{
    return key;
}

static inline struct dormouse_static_key *dormouse_i_imported_key(struct dormouse_static_key_import *import)
{
    return import->key;
}

#ifdef __cplusplus
} /* extern "C" */

namespace dormouse {
namespace detail {

inline struct dormouse_static_key *key_of(struct dormouse_static_key *key)
{
    return dormouse_i_own_key(key);
}

inline struct dormouse_static_key *key_of(struct dormouse_static_key_import *import)
{
    return dormouse_i_imported_key(import);
}

} /* namespace detail */
} /* namespace dormouse */

#define DORMOUSE_I_KEY_OF(key) (::dormouse::detail::key_of(key))
#else
#define DORMOUSE_I_KEY_OF(key)                                                                                         \
    (_Generic((key), struct dormouse_static_key *                                                                      \
              : dormouse_i_own_key, struct dormouse_static_key_import *                                                \
              : dormouse_i_imported_key)(key))
#endif

/* The meaning of a name in this unit: its type, and whether it is a variable or an import, which is the address of
 * one. */
#define DORMOUSE_I_NAME_IMV(type, name, place)                                                                         \
    typedef __typeof__(type) name##__imv_type DORMOUSE_I_UNUSED;                                                       \
    typedef char name##__imv_place[place] DORMOUSE_I_UNUSED;                                                           \
    DORMOUSE_I_STATIC_ASSERT(sizeof(type) == 1 || sizeof(type) == 2 || sizeof(type) == 4 || sizeof(type) == 8,         \
                             "an immediate has 1, 2, 4 or 8 bytes")
#define DORMOUSE_I_IS_IMPORT(name) (sizeof(name##__imv_place) == 2)
#define DORMOUSE_I_VARIABLE(name) ((name##__imv_type *)dormouse_i_variable((void *)&name, DORMOUSE_I_IS_IMPORT(name)))

/* The variable changes atomically, so it is aligned to its size. */
#define DORMOUSE_DECLARE_IMV(type, name)                                                                               \
    DORMOUSE_I_NAME_IMV(type, name, 1);                                                                                \
    extern name##__imv_type name DORMOUSE_I_HIDDEN __attribute__((aligned(sizeof(type))))
#define DORMOUSE_DEFINE_IMV(type, name)                                                                                \
    DORMOUSE_DECLARE_IMV(type, name);                                                                                  \
    name##__imv_type name
#define DORMOUSE_DEFINE_STATIC_IMV(type, name)                                                                         \
    DORMOUSE_I_NAME_IMV(type, name, 1);                                                                                \
    static name##__imv_type name __attribute__((aligned(sizeof(type))))

/* Other objects use a separate symbol, so that this object's own code need not ask the loader. */
#define DORMOUSE_EXPORT_IMV_SYMBOL(name)                                                                               \
    extern name##__imv_type name##__imv_exported __asm__(DORMOUSE_I_EXPORTED_IMV(name)) DORMOUSE_I_EXPORTED            \
        __attribute__((alias(#name)))

/*
 * The word is volatile and looks writable, so that neither compiler nor linker replaces it by the address: a program
 * that is not position-independent would get its own copy of the variable.
 */
#define DORMOUSE_IMPORT_IMV(type, name)                                                                                \
    DORMOUSE_I_NAME_IMV(type, name, 2);                                                                                \
    extern name##__imv_type name##__imv_exported __asm__(DORMOUSE_I_EXPORTED_IMV(name)) DORMOUSE_I_EXPORTED;           \
    static void *volatile name DORMOUSE_I_SLOT = (void *)&name##__imv_exported

/* A mixture of objects that patch and objects that do not fails to link. */
#ifdef DORMOUSE_I_GENERIC
#define DORMOUSE_I_EXPORTED_IMV(name) #name "__imv_generic"
#define DORMOUSE_I_EXPORTED_KEY(name) #name "__key_generic"
#else
#define DORMOUSE_I_EXPORTED_IMV(name) #name "__imv"
#define DORMOUSE_I_EXPORTED_KEY(name) #name "__key"
#endif

/* The variable's value, by an atomic load: for code that is not worth a site. */
#define DORMOUSE_IMV_READ_VARIABLE(name)                                                                               \
    __extension__({                                                                                                    \
        name##__imv_type dormouse_i_loaded;                                                                            \
        __atomic_load(DORMOUSE_I_VARIABLE(name), &dormouse_i_loaded, __ATOMIC_RELAXED);                                \
        dormouse_i_loaded;                                                                                             \
    })

/* Sets the variable. 0 or a negative errno, like dormouse_imv_set(). */
#define DORMOUSE_IMV_SET(name, value_)                                                                                 \
    __extension__({                                                                                                    \
        name##__imv_type dormouse_i_value = (value_);                                                                  \
        dormouse_imv_set(DORMOUSE_I_VARIABLE(name), &dormouse_i_value, sizeof dormouse_i_value);                       \
    })

/* Initialisers of struct dormouse_imv_change, within a function. */
#define DORMOUSE_IMV_CHANGE(name, value_)                                                                              \
    {                                                                                                                  \
        DORMOUSE_I_VARIABLE(name), __extension__({                                                                     \
            union {                                                                                                    \
                uint64_t bits;                                                                                         \
                name##__imv_type value;                                                                                \
            } dormouse_i_bits;                                                                                         \
            dormouse_i_bits.bits = 0;                                                                                  \
            dormouse_i_bits.value = (value_);                                                                          \
            dormouse_i_bits.bits;                                                                                      \
        }),                                                                                                            \
            DORMOUSE_IMV_OPERATION_SET, sizeof(name##__imv_type), 0                                                    \
    }
#define DORMOUSE_STATIC_KEY_ENABLE(name)                                                                               \
    {                                                                                                                  \
        DORMOUSE_I_KEY_OF(&name), 0, DORMOUSE_IMV_OPERATION_ENABLE, 0, 0                                               \
    }
#define DORMOUSE_STATIC_KEY_DISABLE(name)                                                                              \
    {                                                                                                                  \
        DORMOUSE_I_KEY_OF(&name), 0, DORMOUSE_IMV_OPERATION_DISABLE, 0, 0                                              \
    }

#ifdef DORMOUSE_I_X86_64

/*   bits = zero-extended value at address   */
#define DORMOUSE_I_LOAD(address)                                                                                       \
    ".if %c[dormouse_i_size] == 8\n\t"                                                                                 \
    "movq " address ", %q[dormouse_i_bits]\n\t"                                                                        \
    ".elseif %c[dormouse_i_size] == 4\n\t"                                                                             \
    "movl " address ", %k[dormouse_i_bits]\n\t"                                                                        \
    ".elseif %c[dormouse_i_size] == 2\n\t"                                                                             \
    "movzwl " address ", %k[dormouse_i_bits]\n\t"                                                                      \
    ".else\n\t"                                                                                                        \
    "movzbl " address ", %k[dormouse_i_bits]\n\t"                                                                      \
    ".endif\n\t"

/*
 *   this object's, 1, 2 or 4 bytes:
 *     site:  bits = variable                 3E.. mov(zx): eight bytes, aligned to 8           patched: 3E REX C7 imm32
 *   8 bytes, or another object's:
 *     site:  E9 (slow - next)                so that the immediate is aligned to 8             patched: A9 ...
 *     next:  bits = immediate                REX B8+r imm64
 *     after:
 *     slow:  bits = variable, or the variable that the import names; goto after
 *   section dormouse_sites += { site - ., kind, name - ., 0 }
 *
 * The assembler chooses by size and place, which are constants, so there is one form for every type. Bits are always
 * zero-extended: the compiler takes the value from the lowest of them, and extends it itself if necessary. Volatile,
 * because it changes without the compiler's knowledge; memory is not clobbered, because a read orders nothing.
 */
#define DORMOUSE_IMV_READ(name)                                                                                        \
    __extension__({                                                                                                    \
        union {                                                                                                        \
            uint64_t bits;                                                                                             \
            name##__imv_type value;                                                                                    \
        } dormouse_i_read;                                                                                             \
        __asm__ volatile(".balign 8, 0x3e\n\t"                                                                         \
                         ".if %c[dormouse_i_kind] & 2\n\t"                                                             \
                         ".byte 0x3e\n"                                                                                \
                         "772:\n\t"                                                                                    \
                         ".byte 0xe9\n\t"                                                                              \
                         ".long 775f - 773f\n"                                                                         \
                         "773:\n\t"                                                                                    \
                         "movabsq $0, %q[dormouse_i_bits]\n"                                                           \
                         "774:\n\t"                                                                                    \
                         ".subsection 1\n"                                                                             \
                         "775:\n\t"                                                                                    \
                         ".if %c[dormouse_i_kind] & 32\n\t"                                                            \
                         "movq " DORMOUSE_I_SYMBOL(dormouse_i_name) "(%%rip), %q[dormouse_i_bits]\n\t"                 \
                         DORMOUSE_I_LOAD("(%q[dormouse_i_bits])")                                                      \
                         ".else\n\t"                                                                                   \
                         DORMOUSE_I_LOAD(DORMOUSE_I_SYMBOL(dormouse_i_name) "(%%rip)")                                 \
                         ".endif\n\t"                                                                                  \
                         "jmp 774b\n\t"                                                                                \
                         ".previous\n\t"                                                                               \
                         ".else\n"                                                                                     \
                         "772:\n\t"                                                                                    \
                         ".skip 8 - (774f - 773f), 0x3e\n"                                                             \
                         "773:\n\t"                                                                                    \
                         DORMOUSE_I_LOAD(DORMOUSE_I_SYMBOL(dormouse_i_name) "(%%rip)")                                 \
                         "774:\n\t"                                                                                    \
                         ".endif\n\t"                                                                                  \
                         DORMOUSE_I_SITE_RECORD(DORMOUSE_I_SYMBOL(dormouse_i_name), "0")                               \
                         : [dormouse_i_bits] "=r"(dormouse_i_read.bits)                                                \
                         : [dormouse_i_name] DORMOUSE_I_ADDRESS(&name), [dormouse_i_size] "i"(sizeof(name##__imv_type)), \
                           [dormouse_i_kind] "i"(DORMOUSE_I_KIND(sizeof(name##__imv_type), DORMOUSE_I_IS_IMPORT(name)))\
                         : "cc");                                                                                      \
        dormouse_i_read.value;                                                                                         \
    })

#define DORMOUSE_I_KIND(size, is_import)                                                                               \
    (((is_import) || (size) == 8 ? DORMOUSE_SITE_GATED_VALUE : DORMOUSE_SITE_VALUE) |                                  \
     ((is_import) ? DORMOUSE_SITE_INDIRECT : 0) |                                                                      \
     ((size) == 8 ? 3 : (size) == 4 ? 2 : (size) == 2 ? 1 : 0) << DORMOUSE_SITE_WIDTH_SHIFT)

/* The template contains these literals. */
DORMOUSE_I_STATIC_ASSERT(DORMOUSE_SITE_VALUE == 1 && DORMOUSE_SITE_GATED_VALUE == 2, "");
DORMOUSE_I_STATIC_ASSERT(DORMOUSE_SITE_INDIRECT == 32, "");
DORMOUSE_I_STATIC_ASSERT(DORMOUSE_X86_VALUE_LEN == 8 && DORMOUSE_X86_GATED_IMMEDIATE_OFFSET == 7, "");

#else

#define DORMOUSE_IMV_READ(name) DORMOUSE_IMV_READ_VARIABLE(name)

#endif

/*
 * A static call: DEFINE_STATIC_CALL(name, function) in one unit, DECLARE_STATIC_CALL(name, function) in others of the object;
 * `function` gives the type. static_call(name)(arguments) calls the current function: a direct call of an entry that
 * jumps to it. static_call_update(name, other) exchanges it by one store, and what was written before is visible to the
 * new function. While text cannot be written, or if the function is more than 2 GiB away (128 MiB on AArch64), the entry
 * jumps through the variable; static_call_is_direct(name) tells. A call is not an address constant: take that of a
 * function instead.
 *
 *   x86-64:   name__call:   jmp function                         eight bytes, aligned to 8
 *                           jmp *name__call_target               born, and out of reach
 *   AArch64:  name__call:   b function
 *                           x16 = name__call_target; br x16      born, and out of reach; x16 belongs to linkers between functions
 */
#define DORMOUSE_I_CALL_TARGET(name) #name "__call_target"
#define DORMOUSE_I_NAME_CALL(name, function)                                                                           \
    typedef __typeof__(function) name##__call_type DORMOUSE_I_UNUSED;                                                  \
    extern name##__call_type *name##__call_target __asm__(DORMOUSE_I_CALL_TARGET(name)) DORMOUSE_I_HIDDEN
#ifndef DORMOUSE_I_GENERIC
#define DORMOUSE_DECLARE_STATIC_CALL(name, function)                                                                   \
    DORMOUSE_I_NAME_CALL(name, function);                                                                              \
    extern name##__call_type name##__call __asm__(#name "__call") DORMOUSE_I_HIDDEN
#define DORMOUSE_STATIC_CALL(name) (name##__call)
DORMOUSE_I_STATIC_ASSERT(DORMOUSE_SITE_CALL == 143, "");
#endif

#ifdef DORMOUSE_I_X86_64
#define DORMOUSE_DEFINE_STATIC_CALL(name, function)                                                                    \
    DORMOUSE_DECLARE_STATIC_CALL(name, function);                                                                      \
    __attribute__((used)) name##__call_type *name##__call_target = function;                                           \
    __asm__(".pushsection .text.dormouse_call_" #name ",\"ax\",@progbits\n\t"                                          \
            ".balign 8\n\t"                                                                                            \
            ".globl " #name "__call\n\t"                                                                               \
            ".hidden " #name "__call\n\t"                                                                              \
            ".type " #name "__call, @function\n"                                                                       \
            #name "__call:\n\t"                                                                                        \
            ".byte 0xe9\n\t"                                                                                           \
            ".long 3\n\t"                                                                                              \
            ".byte 0xcc, 0xcc, 0xcc\n\t"                                                                               \
            "jmp *" DORMOUSE_I_CALL_TARGET(name) "(%rip)\n\t"                                                          \
            ".size " #name "__call, . - " #name "__call\n\t"                                                           \
            ".popsection\n\t"                                                                                          \
            ".pushsection dormouse_sites,\"aR\",@progbits\n\t"                                                         \
            ".balign 8\n\t"                                                                                            \
            ".long " #name "__call - .\n\t"                                                                            \
            ".long 143\n\t"                                                                                            \
            ".long " DORMOUSE_I_CALL_TARGET(name) " - .\n\t"                                                           \
            ".long " #name "__call + 8 - .\n\t"                                                                        \
            ".popsection")
#elif defined(DORMOUSE_I_AARCH64)
/* Where the compiler guards branches (BTI), the entry begins with a landing pad, because its address may be taken. */
#ifdef __ARM_FEATURE_BTI_DEFAULT
#define DORMOUSE_I_CALL_PAD "hint #34\n"
#else
#define DORMOUSE_I_CALL_PAD
#endif
/* (F) of the library: the load of the function's address is an acquire, so that what was written before is visible. */
#define DORMOUSE_DEFINE_STATIC_CALL(name, function)                                                                    \
    DORMOUSE_DECLARE_STATIC_CALL(name, function);                                                                      \
    __attribute__((used)) name##__call_type *name##__call_target = function;                                           \
    __asm__(".pushsection .text.dormouse_call_" #name ",\"ax\",%progbits\n\t"                                          \
            ".balign 4\n\t"                                                                                            \
            ".globl " #name "__call\n\t"                                                                               \
            ".hidden " #name "__call\n\t"                                                                              \
            ".type " #name "__call, %function\n"                                                                       \
            #name "__call:\n\t"                                                                                        \
            DORMOUSE_I_CALL_PAD                                                                                        \
            "772:\n\t"                                                                                                 \
            "b 773f\n"                                                                                                 \
            "773:\n\t"                                                                                                 \
            "adrp x16, " DORMOUSE_I_CALL_TARGET(name) "\n\t"                                                           \
            "add x16, x16, :lo12:" DORMOUSE_I_CALL_TARGET(name) "\n\t"                                                 \
            "ldar x16, [x16]\n\t"                                                                                      \
            "br x16\n\t"                                                                                               \
            ".size " #name "__call, . - " #name "__call\n\t"                                                           \
            ".popsection\n\t"                                                                                          \
            ".pushsection dormouse_sites,\"aR\",%progbits\n\t"                                                         \
            ".balign 8\n\t"                                                                                            \
            ".long 772b - .\n\t"                                                                                       \
            ".long 143\n\t"                                                                                            \
            ".long " DORMOUSE_I_CALL_TARGET(name) " - .\n\t"                                                           \
            ".long 773b - .\n\t"                                                                                       \
            ".popsection")
#else
#define DORMOUSE_DECLARE_STATIC_CALL(name, function) DORMOUSE_I_NAME_CALL(name, function)
#define DORMOUSE_DEFINE_STATIC_CALL(name, function)                                                                    \
    DORMOUSE_DECLARE_STATIC_CALL(name, function);                                                                      \
    name##__call_type *name##__call_target = function
#define DORMOUSE_STATIC_CALL(name) (__atomic_load_n(&name##__call_target, __ATOMIC_ACQUIRE))
#endif

/* 0 or a negative errno, like dormouse_imv_set(). */
#define DORMOUSE_STATIC_CALL_UPDATE(name, function)                                                                    \
    __extension__({                                                                                                    \
        name##__call_type *dormouse_i_function = (function);                                                           \
        dormouse_i_publish((void *)&name##__call_target, (uintptr_t)dormouse_i_function);                              \
    })
#define DORMOUSE_STATIC_CALL_IS_DIRECT(name) (dormouse_imv_is_patched((void *)&name##__call_target) > 0)

#define DORMOUSE_DECLARE_STATIC_KEY(name) extern struct dormouse_static_key name DORMOUSE_I_HIDDEN
#define DORMOUSE_DEFINE_STATIC_KEY_FALSE(name)                                                                         \
    DORMOUSE_DECLARE_STATIC_KEY(name);                                                                                 \
    struct dormouse_static_key name = DORMOUSE_STATIC_KEY_INIT
#define DORMOUSE_DEFINE_STATIC_KEY_TRUE(name)                                                                          \
    DORMOUSE_DECLARE_STATIC_KEY(name);                                                                                 \
    struct dormouse_static_key name = DORMOUSE_STATIC_KEY_INIT_ENABLED
#define DORMOUSE_DEFINE_STATIC_KEY(name) DORMOUSE_DEFINE_STATIC_KEY_FALSE(name)
#define DORMOUSE_EXPORT_STATIC_KEY(name)                                                                               \
    extern struct dormouse_static_key name##__key_exported __asm__(DORMOUSE_I_EXPORTED_KEY(name)) DORMOUSE_I_EXPORTED  \
        __attribute__((alias(#name)))
#define DORMOUSE_IMPORT_STATIC_KEY(name)                                                                               \
    extern struct dormouse_static_key name##__key_exported __asm__(DORMOUSE_I_EXPORTED_KEY(name)) DORMOUSE_I_EXPORTED; \
    static struct dormouse_static_key_import name DORMOUSE_I_SLOT = { &name##__key_exported }

/* Whether the branch is taken. An unlikely one is a nop while the key is disabled and a jump while it is enabled, a likely
 * one the opposite. */
#define DORMOUSE_STATIC_BRANCH_UNLIKELY(key) DORMOUSE_I_KEY_BRANCH(key, 0)
#define DORMOUSE_STATIC_BRANCH_LIKELY(key) DORMOUSE_I_KEY_BRANCH(key, 1)
#define DORMOUSE_I_KEY_BRANCH(key, is_likely)                                                                          \
    (DORMOUSE_I_STATIC_BRANCH(*(key), sizeof *(key) != sizeof(struct dormouse_static_key), DORMOUSE_I_KEY_OF(key),      \
                              is_likely) != 0)

/* A key counts the users that have enabled it: increment and enable are the same operation. 0 or a negative errno. */
#define DORMOUSE_STATIC_BRANCH_ENABLE(key) dormouse_static_key_enable(DORMOUSE_I_KEY_OF(key))
#define DORMOUSE_STATIC_BRANCH_DISABLE(key) dormouse_static_key_disable(DORMOUSE_I_KEY_OF(key))

/* Whether a key is enabled, and the number of users that have enabled it, by a load of the key. */
#define DORMOUSE_STATIC_KEY_ENABLED(key) (DORMOUSE_STATIC_KEY_COUNT(key) > 0)
#define DORMOUSE_STATIC_KEY_COUNT(key) __atomic_load_n(&DORMOUSE_I_KEY_OF(key)->enabled, __ATOMIC_ACQUIRE)

/* Defines the deferral of this object's key for this unit: it stays enabled for a period without users. */
#define DORMOUSE_DEFINE_STATIC_KEY_DEFERRED(name, key, period_ns)                                                      \
    static struct dormouse_static_key_deferred name = { &key, period_ns, 0, 0, 0 }

#ifndef DORMOUSE_NO_SHORT_NAMES
#define DEFINE_IMV(type, name) DORMOUSE_DEFINE_IMV(type, name)
#define DEFINE_STATIC_IMV(type, name) DORMOUSE_DEFINE_STATIC_IMV(type, name)
#define DECLARE_IMV(type, name) DORMOUSE_DECLARE_IMV(type, name)
#define EXPORT_IMV_SYMBOL(name) DORMOUSE_EXPORT_IMV_SYMBOL(name)
#define IMPORT_IMV(type, name) DORMOUSE_IMPORT_IMV(type, name)
#define imv_read(name) DORMOUSE_IMV_READ(name)
#define _imv_read(name) DORMOUSE_IMV_READ_VARIABLE(name)
#define imv_set(name, value) DORMOUSE_IMV_SET(name, value)
#define IMV_CHANGE(name, value) DORMOUSE_IMV_CHANGE(name, value)
#define STATIC_KEY_ENABLE(name) DORMOUSE_STATIC_KEY_ENABLE(name)
#define STATIC_KEY_DISABLE(name) DORMOUSE_STATIC_KEY_DISABLE(name)
#define DEFINE_STATIC_KEY(name) DORMOUSE_DEFINE_STATIC_KEY(name)
#define DEFINE_STATIC_KEY_FALSE(name) DORMOUSE_DEFINE_STATIC_KEY_FALSE(name)
#define DEFINE_STATIC_KEY_TRUE(name) DORMOUSE_DEFINE_STATIC_KEY_TRUE(name)
#define DECLARE_STATIC_KEY(name) DORMOUSE_DECLARE_STATIC_KEY(name)
#define EXPORT_STATIC_KEY(name) DORMOUSE_EXPORT_STATIC_KEY(name)
#define IMPORT_STATIC_KEY(name) DORMOUSE_IMPORT_STATIC_KEY(name)
#define DEFINE_STATIC_CALL(name, function) DORMOUSE_DEFINE_STATIC_CALL(name, function)
#define DECLARE_STATIC_CALL(name, function) DORMOUSE_DECLARE_STATIC_CALL(name, function)
#define static_call(name) DORMOUSE_STATIC_CALL(name)
#define static_call_update(name, function) DORMOUSE_STATIC_CALL_UPDATE(name, function)
#define static_call_is_direct(name) DORMOUSE_STATIC_CALL_IS_DIRECT(name)
#define static_branch_unlikely(key) DORMOUSE_STATIC_BRANCH_UNLIKELY(key)
#define static_branch_likely(key) DORMOUSE_STATIC_BRANCH_LIKELY(key)
#define static_branch_enable(key) DORMOUSE_STATIC_BRANCH_ENABLE(key)
#define static_branch_disable(key) DORMOUSE_STATIC_BRANCH_DISABLE(key)
#define static_key_enabled(key) DORMOUSE_STATIC_KEY_ENABLED(key)
#define static_key_count(key) DORMOUSE_STATIC_KEY_COUNT(key)
#define DEFINE_STATIC_KEY_DEFERRED(name, key, period_ns) DORMOUSE_DEFINE_STATIC_KEY_DEFERRED(name, key, period_ns)
#define static_branch_deferred_inc(deferred) dormouse_static_key_deferred_enable(deferred)
#define static_branch_deferred_dec(deferred, now_ns) dormouse_static_key_deferred_disable(deferred, now_ns)
#define static_key_deferred_expire(deferred, now_ns, left_ns)                                                          \
    dormouse_static_key_deferred_expire(deferred, now_ns, left_ns)
#define static_branch_inc(key) DORMOUSE_STATIC_BRANCH_ENABLE(key)
#define static_branch_dec(key) DORMOUSE_STATIC_BRANCH_DISABLE(key)
#endif

#endif
