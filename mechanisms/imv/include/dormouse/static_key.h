/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Static branches for C11 and C++11: gates that are dormant in the instruction stream and patched while the program runs.
 *
 *     static struct dormouse_static_key verbose = DORMOUSE_STATIC_KEY_INIT;
 *     ...
 *     if (DORMOUSE_STATIC_BRANCH(verbose)) { ... }         one instruction, no data access: a nop, or a jump if enabled
 *     ...
 *     dormouse_static_key_enable(&verbose);                while other threads execute the gate
 *
 * A site is born as a jump to a slow path that reads the key; the object's constructor registers its sites, which patches
 * them. So if program text cannot be patched, and before the constructor, a gate is only slower.
 *
 * The key belongs to the object (program or shared library) that contains the gate: make it `static`, or give it hidden
 * visibility. A local static of a C++ inline function or template is visible to other objects, and g++ -fPIC refuses it
 * ("asm operand 0 probably does not match constraints"); use DORMOUSE_INLINE_STATIC_KEY there:
 *
 *     inline void work() { struct work_key {}; if (DORMOUSE_STATIC_BRANCH(DORMOUSE_INLINE_STATIC_KEY(work_key))) ... }
 *
 * Link with -ldormouse, or with -ldormouse_imv if the program has no events. x86-64 and AArch64 are patched. Elsewhere,
 * and with DORMOUSE_GENERIC defined, gates read their key and need no library. Define it for every object of a process
 * or for none: code that is compiled with it changes keys without telling the library.
 */
#ifndef DORMOUSE_STATIC_KEY_H
#define DORMOUSE_STATIC_KEY_H

#include <errno.h>
#include <stdint.h>

#include <dormouse/abi/site.h>

#if defined(__x86_64__) && defined(__LP64__) && defined(__linux__) && !defined(DORMOUSE_GENERIC)
#define DORMOUSE_I_X86_64
#elif defined(__AARCH64EL__) && defined(__LP64__) && defined(__linux__) && !defined(DORMOUSE_GENERIC)
#define DORMOUSE_I_AARCH64
#else
#define DORMOUSE_I_GENERIC
#endif

/*
 * Constraint of an operand that is the address of a symbol in this object, and the modifier that prints it unchanged.
 * In the large code model of x86-64 gcc does not treat an address as a constant, but accepts the symbol in an operand of
 * any kind. Text and keys must be within 2 GiB there too: the linker refuses a program in which they are not.
 *
 * On AArch64 gcc accepts no symbol as "i" in position-independent code; "S" is a symbol in every code model. clang before
 * 19 takes no symbol with an offset (a key within a structure) as "S", but does as "i".
 *
 * On machines that are not patched, only the events of libdormouse have such an operand. For most of them gcc has no
 * modifier c for symbols, and prints a symbol unchanged without one.
 */
#ifdef __aarch64__
#define DORMOUSE_I_ADDRESS "Si"
#define DORMOUSE_I_PLAIN "c"
#elif defined(__code_model_large__) && !defined(__clang__)
#define DORMOUSE_I_ADDRESS "X"
#define DORMOUSE_I_PLAIN "p"
#elif !defined(__x86_64__)
#define DORMOUSE_I_ADDRESS "i"
#define DORMOUSE_I_PLAIN ""
#else
#define DORMOUSE_I_ADDRESS "i"
#define DORMOUSE_I_PLAIN "c"
#endif

/* An assembler operand that is the address of a symbol. */
#define DORMOUSE_I_SYMBOL(name) "%" DORMOUSE_I_PLAIN "[" #name "]"

#ifdef __cplusplus
extern "C" {
#endif

/* A count of the users that have enabled the branch; above zero means enabled. Only the library changes it. */
struct dormouse_static_key {
    int32_t enabled;
};

#define DORMOUSE_STATIC_KEY_INIT { 0 }
#define DORMOUSE_STATIC_KEY_INIT_ENABLED { 1 }

/* A reference to another object's key: a word that the loader fills in. */
struct dormouse_static_key_import {
    struct dormouse_static_key *volatile key;
};

/*
 * Records of one kind in a section of every object, bounded by the linker. Each translation unit opens the section,
 * even without a record: otherwise an object without records would find another object's bounds. The first of the
 * object's translation units whose constructor runs registers the records, and the last one whose destructor runs
 * forgets them. The loader runs them sequentially.
 */
#define DORMOUSE_I_RECORDS(kind, flags, type, constructor_, destructor_, add, forget)                                  \
    __asm__(".pushsection dormouse_" #kind ",\"" flags "\",%progbits\n\t.balign 8\n\t.popsection");                    \
    extern const struct type __start_dormouse_##kind[] __attribute__((weak, visibility("hidden")));                    \
    extern const struct type __stop_dormouse_##kind[] __attribute__((weak, visibility("hidden")));                     \
    /* One variable for the object. */                                                                                 \
    extern int dormouse_i_##kind##_units __attribute__((weak, visibility("hidden")));                                  \
    int dormouse_i_##kind##_units = 0;                                                                                 \
    __attribute__((constructor_)) static void dormouse_i_add_##kind(void)                                              \
    {                                                                                                                  \
        if (dormouse_i_##kind##_units++ == 0)                                                                          \
            (void)add(__start_dormouse_##kind, __stop_dormouse_##kind);                                                \
    }                                                                                                                  \
    __attribute__((destructor_)) static void dormouse_i_forget_##kind(void)                                            \
    {                                                                                                                  \
        if (--dormouse_i_##kind##_units == 0)                                                                          \
            (void)forget(__start_dormouse_##kind);                                                                     \
    }

#ifndef DORMOUSE_I_GENERIC

/*
 * Increments or decrements the count of a key. When it returns 0, every later execution of a gate takes its branch if
 * the key is enabled, and none does if it is not.
 *
 * Errors: -EDEADLK  called by a signal handler that interrupted an update of the same thread; nothing was changed
 *         -EINVAL   disabled more often than enabled
 *         -EACCES   program text can no longer be written, and some site still gives the former answer; the key is changed
 * MT-safe, blocking, async-signal-safe.
 */
int dormouse_static_key_enable(struct dormouse_static_key *key);
int dormouse_static_key_disable(struct dormouse_static_key *key);

/*
 * Register the sites of an object, bounded by its dormouse_sites section, and forget them. This header's constructor
 * and destructor call these functions. Registering the same start again changes nothing.
 *
 * Errors: -EDEADLK, as for enabling a key; -ENOSPC too many objects: this one's sites read their keys. MT-safe, blocking.
 */
int dormouse_imv_register(const struct dormouse_site_record *start, const struct dormouse_site_record *stop);
int dormouse_imv_unregister(const struct dormouse_site_record *start);

#else

static inline int dormouse_i_static_key_count(struct dormouse_static_key *key, int32_t difference)
{
    int32_t next, count = __atomic_load_n(&key->enabled, __ATOMIC_RELAXED);
    do {
        if (__builtin_add_overflow(count, difference, &next) || next < 0)
            return -EINVAL;
    } while (!__atomic_compare_exchange_n(&key->enabled, &count, next, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    return 0;
}

static inline int dormouse_static_key_enable(struct dormouse_static_key *key)
{
    return dormouse_i_static_key_count(key, 1);
}

static inline int dormouse_static_key_disable(struct dormouse_static_key *key)
{
    return dormouse_i_static_key_count(key, -1);
}

#endif

#ifndef DORMOUSE_I_GENERIC

DORMOUSE_I_RECORDS(sites, "aR", dormouse_site_record, constructor, destructor, dormouse_imv_register,
                   dormouse_imv_unregister)

/*
 * No form below declares memory as clobbered: a negative answer synchronises with nothing, so the compiler may move
 * accesses across it. A positive answer passes a compiler barrier, and the load of the key at `slow` is an acquire. (The
 * patcher synchronises the CPUs before it lets threads past without that load.)
 */

/*
 *   site:  jmp slow  (b slow)          born               patched: jmp target (b target) or a nop of that length
 *   next:
 *   section dormouse_sites += { site - ., kind, key - ., target - . }
 *   announcement
 */
#define DORMOUSE_I_SITE(slow, target, announcement)                                                                    \
    "772:\n\t"                                                                                                         \
    DORMOUSE_I_JUMP(slow)                                                                                              \
    "773:\n\t"                                                                                                         \
    DORMOUSE_I_SITE_RECORD(DORMOUSE_I_SYMBOL(dormouse_i_key), target " - .") announcement

/* The record of site 772. The arguments are assembler text. */
#define DORMOUSE_I_SITE_RECORD(key, target)                                                                            \
    ".pushsection dormouse_sites,\"aR?\",%%progbits\n\t"                                                               \
    ".balign 8\n\t"                                                                                                    \
    ".long 772b - .\n\t"                                                                                               \
    ".long %c[dormouse_i_kind]\n\t"                                                                                    \
    ".long " key " - .\n\t"                                                                                            \
    ".long " target "\n\t"                                                                                             \
    ".popsection\n\t"

#ifdef DORMOUSE_I_X86_64
#define DORMOUSE_I_JUMP(slow) ".byte 0xe9\n\t.long " slow " - 773f\n"
#define DORMOUSE_I_CLOBBERS "cc"
#define DORMOUSE_I_COUNT int32_t
#define DORMOUSE_I_SET_0 "xorl %0, %0\n\t"
#define DORMOUSE_I_SET_1 "movl $1, %0\n\t"
#define DORMOUSE_I_GO_ON "jmp 773b\n\t"
#define DORMOUSE_I_LOAD_COUNT                                                                                          \
    ".if %c[dormouse_i_kind] & 32\n\t"                                                                                 \
    "movq " DORMOUSE_I_SYMBOL(dormouse_i_key) "(%%rip), %q0\n\t"                                                       \
    "movl (%q0), %0\n\t"                                                                                               \
    ".else\n\t"                                                                                                        \
    "movl " DORMOUSE_I_SYMBOL(dormouse_i_key) "(%%rip), %0\n\t"                                                        \
    ".endif\n\t"
#else
#define DORMOUSE_I_JUMP(slow) "b " slow "\n"
#define DORMOUSE_I_CLOBBERS
#define DORMOUSE_I_COUNT int64_t
#define DORMOUSE_I_SET_0 "mov %0, xzr\n\t"
#define DORMOUSE_I_SET_1 "mov %0, #1\n\t"
#define DORMOUSE_I_GO_ON "b 773b\n\t"
#define DORMOUSE_I_LOAD_COUNT                                                                                          \
    "adrp %0, " DORMOUSE_I_SYMBOL(dormouse_i_key) "\n\t"                                                               \
    "add %0, %0, :lo12:" DORMOUSE_I_SYMBOL(dormouse_i_key) "\n\t"                                                      \
    ".if %c[dormouse_i_kind] & 32\n\t"                                                                                 \
    "ldr %0, [%0]\n\t"                                                                                                 \
    ".endif\n\t"                                                                                                       \
    "ldar %w0, [%0]\n\t"
#endif

#if !defined(__clang__) || __clang_major__ >= 17

#ifdef DORMOUSE_I_X86_64

/*
 *   site -> slow;  next:  ...       slow: if key.enabled > 0 goto taken;  goto next
 *
 * The gate of a tracer, a statement that jumps to the label `taken` if the key is enabled: it is less work for a compiler
 * than a value that is tested. While it is enabled it reads its key, so a disabled key closes it even if text can no
 * longer be written; the code behind it needs data of the same cache line. The slow path is at the end of the section. A
 * plain load is an acquire on x86-64; a compiler barrier must follow the label.
 */
#define DORMOUSE_I_GATE(key_lvalue, announcement, taken)                                                               \
    __asm__ goto(DORMOUSE_I_SITE("774f", "774f", announcement) ".subsection 1\n"                                       \
                 "774:\n\t"                                                                                            \
                 "cmpl $0, " DORMOUSE_I_SYMBOL(dormouse_i_key) "(%%rip)\n\t"                                           \
                 "jg %l[" #taken "]\n\t"                                                                               \
                 "jmp 773b\n\t"                                                                                        \
                 ".previous"                                                                                           \
                 :                                                                                                     \
                 : [dormouse_i_key] DORMOUSE_I_ADDRESS(&(key_lvalue)), [dormouse_i_kind] "i"(DORMOUSE_SITE_BRANCH)     \
                 : "cc"                                                                                                \
                 : taken)

#else

/* The same on AArch64. Only unconditional branches leave the slow path: a conditional one reaches 1 MiB, and the end of
 * the section may be further away. The compiler keeps nothing in x16, which linkers use too. */
#define DORMOUSE_I_GATE(key_lvalue, announcement, taken)                                                               \
    __asm__ goto(DORMOUSE_I_SITE("774f", "774f", announcement) ".subsection 1\n"                                       \
                 "774:\n\t"                                                                                            \
                 "adrp x16, " DORMOUSE_I_SYMBOL(dormouse_i_key) "\n\t"                                                \
                 "add x16, x16, :lo12:" DORMOUSE_I_SYMBOL(dormouse_i_key) "\n\t"                                      \
                 "ldar w16, [x16]\n\t"                                                                                \
                 "cmp w16, #0\n\t"                                                                                    \
                 "b.le 775f\n\t"                                                                                      \
                 "b %l[" #taken "]\n"                                                                                  \
                 "775:\n\t"                                                                                           \
                 "b 773b\n\t"                                                                                         \
                 ".previous"                                                                                           \
                 :                                                                                                     \
                 : [dormouse_i_key] DORMOUSE_I_ADDRESS(&(key_lvalue)), [dormouse_i_kind] "i"(DORMOUSE_SITE_BRANCH)     \
                 : "x16", "cc"                                                                                         \
                 : taken)

#endif

/*   site -> slow;  answer = is_likely;  target: answer = !is_likely;  slow: answer = key.enabled > 0   */
#define DORMOUSE_I_STATIC_BRANCH(key_lvalue, is_import, key_pointer, is_likely)                                        \
    __extension__({                                                                                                    \
        __label__ dormouse_i_slow, dormouse_i_target, dormouse_i_done;                                                 \
        int dormouse_i_taken = (is_likely);                                                                            \
        __asm__ goto(DORMOUSE_I_SITE("%l[dormouse_i_slow]", "%l[dormouse_i_target]", "")                               \
                     :                                                                                                 \
                     : [dormouse_i_key] DORMOUSE_I_ADDRESS(&(key_lvalue)),                                             \
                       [dormouse_i_kind] "i"(DORMOUSE_I_DIRECT_KIND(is_import, is_likely))                             \
                     : DORMOUSE_I_CLOBBERS                                                                             \
                     : dormouse_i_slow, dormouse_i_target);                                                            \
        goto dormouse_i_done;                                                                                          \
    dormouse_i_slow:                                                                                                   \
        dormouse_i_taken = __atomic_load_n(&(key_pointer)->enabled, __ATOMIC_ACQUIRE) > 0;                             \
        goto dormouse_i_done;                                                                                          \
    dormouse_i_target:                                                                                                 \
        dormouse_i_taken = !(is_likely);                                                                               \
    dormouse_i_done:                                                                                                   \
        if (__builtin_expect(dormouse_i_taken, is_likely))                                                             \
            __asm__ volatile("" : : : "memory");                                                                       \
        __builtin_expect(dormouse_i_taken, is_likely);                                                                 \
    })

#else

/*
 * clang before 17 takes the labels of one asm goto for targets of every other in the function, and refuses two gates.
 * So for that compiler the other paths are assembly too, at the end of the section:
 *
 *   count = is_likely;  site -> slow;  next: answer = count > 0
 *   slow: count = key.enabled (acquire); goto next                          target: count = !is_likely; goto next
 *
 * A plain load is an acquire on x86-64; the empty asm prevents the compiler from reordering. A branch that is not direct
 * has the slow path as its target.
 */
#define DORMOUSE_I_ANSWER(key_lvalue, kind, target, is_likely, announcement)                                           \
    __extension__({                                                                                                    \
        DORMOUSE_I_COUNT dormouse_i_count;                                                                             \
        __asm__ volatile(".if %c[dormouse_i_kind] & 64\n\t"                                                            \
                         DORMOUSE_I_SET_1                                                                              \
                         ".else\n\t"                                                                                   \
                         DORMOUSE_I_SET_0                                                                              \
                         ".endif\n"                                                                                    \
                         DORMOUSE_I_SITE("774f", target, announcement) ".subsection 1\n"                               \
                         "774:\n\t"                                                                                    \
                         DORMOUSE_I_LOAD_COUNT                                                                         \
                         DORMOUSE_I_GO_ON                                                                              \
                         ".if %c[dormouse_i_kind] & 3\n"                                                               \
                         "775:\n\t"                                                                                    \
                         ".if %c[dormouse_i_kind] & 64\n\t"                                                            \
                         DORMOUSE_I_SET_0                                                                              \
                         ".else\n\t"                                                                                   \
                         DORMOUSE_I_SET_1                                                                              \
                         ".endif\n\t"                                                                                  \
                         DORMOUSE_I_GO_ON                                                                              \
                         ".endif\n\t"                                                                                  \
                         ".previous"                                                                                   \
                         : "=r"(dormouse_i_count)                                                                      \
                         : [dormouse_i_key] DORMOUSE_I_ADDRESS(&(key_lvalue)), [dormouse_i_kind] "i"(kind)             \
                         : DORMOUSE_I_CLOBBERS);                                                                       \
        if (__builtin_expect((int32_t)dormouse_i_count > 0, is_likely))                                                \
            __asm__ volatile("" : : : "memory");                                                                       \
        __builtin_expect((int32_t)dormouse_i_count > 0, is_likely);                                                    \
    })
#define DORMOUSE_I_STATIC_BRANCH(key_lvalue, is_import, key_pointer, is_likely)                                        \
    DORMOUSE_I_ANSWER(key_lvalue, DORMOUSE_I_DIRECT_KIND(is_import, is_likely), "775f", is_likely, "")
#define DORMOUSE_I_GATE(key_lvalue, announcement, taken)                                                               \
    do {                                                                                                               \
        if (DORMOUSE_I_ANSWER(key_lvalue, DORMOUSE_SITE_BRANCH, "774f", 0, announcement))                              \
            goto taken;                                                                                                \
    } while (0)

#endif

#define DORMOUSE_I_DIRECT_KIND(is_import, is_likely)                                                                   \
    (DORMOUSE_SITE_DIRECT_BRANCH | ((is_import) ? DORMOUSE_SITE_INDIRECT : 0) | ((is_likely) ? DORMOUSE_SITE_LIKELY : 0))

#else

#define DORMOUSE_I_STATIC_BRANCH(key_lvalue, is_import, key_pointer, is_likely)                                        \
    __builtin_expect(__atomic_load_n(&(key_pointer)->enabled, __ATOMIC_ACQUIRE) > 0, is_likely)

#define DORMOUSE_I_GATE(key_lvalue, announcement, taken)                                                               \
    do {                                                                                                               \
        __asm__ volatile(announcement : : [dormouse_i_key] DORMOUSE_I_ADDRESS(&(key_lvalue)));                         \
        if (DORMOUSE_STATIC_BRANCH(key_lvalue))                                                                        \
            goto taken;                                                                                                \
    } while (0)

#endif

/* Whether the branch is taken: an int, 0 while the key is disabled. */
#define DORMOUSE_STATIC_BRANCH(key_lvalue) DORMOUSE_I_STATIC_BRANCH(key_lvalue, 0, &(key_lvalue), 0)

#ifdef __cplusplus
} /* extern "C" */

namespace dormouse {
namespace detail {

/* One key per tag type, shared by the translation units of an object and hidden from other objects. */
template <class Tag> struct __attribute__((visibility("hidden"))) inline_static_key {
    static struct dormouse_static_key key;
};

template <class Tag> struct dormouse_static_key inline_static_key<Tag>::key = DORMOUSE_STATIC_KEY_INIT;

} /* namespace detail */
} /* namespace dormouse */

#define DORMOUSE_INLINE_STATIC_KEY(tag) (::dormouse::detail::inline_static_key<tag>::key)
#endif

#endif
