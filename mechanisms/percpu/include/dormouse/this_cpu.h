/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Per-CPU variables with inline operations, for C11 and C++11 (gcc and clang).
 *
 *     DEFINE_PER_CPU(uint64_t, hits);                    a variable of which every CPU has a copy
 *
 *     this_cpu_inc(hits);                                one restartable sequence: no call, no locked instruction
 *     for (unsigned cpu = 0; cpu < per_cpu_count(); cpu++)
 *         sum += per_cpu_read(hits, cpu);
 *
 * The variables of a program or shared library are in one section. Its constructor makes a copy of the section for each
 * CPU that may ever be online, with the initial values; the section itself stays unchanged. The copy of CPU n of a
 * variable is at `&variable + delta + (n << stride_shift)`.
 *
 * Operations on words of 4 and 8 bytes (integers and pointers), on the CPU that the thread runs on:
 *
 *     this_cpu_add(v, n), this_cpu_sub(v, n), this_cpu_inc(v), this_cpu_dec(v)    0 or an error
 *     this_cpu_write(v, value)                                                    0 or an error
 *     this_cpu_add_return(v, n)           the new value
 *     this_cpu_xchg(v, value)             the old value
 *     this_cpu_cmpxchg(v, old, value)     the old value: `value` was stored if it is equal to `old`
 *     this_cpu_read(v)                    the value on the CPU that the thread was on a moment ago
 *     this_cpu_ptr(v), per_cpu_ptr(v, cpu)    address of a copy
 *     this_cpu_push(list, node), this_cpu_pop(list)    on a struct dormouse_percpu_list
 *
 * `v` is a variable, or a field or element of one: this_cpu_inc(stats.hits). An operation happens completely or not at
 * all, as seen by threads and signal handlers on the same CPU. Additions order nothing; the other changes are releases
 * for readers on other CPUs. Only these operations may write the words.
 *
 * The same for an object in an area or pool that was allocated while the program runs, by its first copy's address:
 *
 *     const struct dormouse_percpu_area *area = dormouse_percpu_pool_area(pool);
 *     percpu_add(area, &object->hits, 1);
 *
 * Errors: -ENOMEM   no memory for the copies, or the object's constructors have not run yet
 *         -ERANGE   the thread is on a CPU that the pool does not have (its cpu_count was chosen too small)
 *         -ENOTSUP  there are no restartable sequences: over memory that processes share; or in a thread that is ending, or that
 *                   another library has registered; or, for an area by concurrency ids, in code compiled with DORMOUSE_GENERIC
 * Operations that return a value return 0 then, and nothing is pushed. None of this can happen with a variable if the C library registers
 * threads (glibc 2.35 and later).
 *
 * Variables belong to the program or shared library that defines them; the linker refuses another's. Give others the area
 * (per_cpu_area()) and the address of the first copy (per_cpu_ptr(v, 0)). A library that is loaded and unloaded many times uses its
 * memory again.
 *
 * MT-safe, lock-free, async-signal-safe. In a process without restartable sequences, for example under valgrind: blocking,
 * by a lock of the CPU. Do not use them between vfork() and exec.
 *
 * Link with -ldormouse_percpu or -ldormouse. Sections are inline on x86-64 and AArch64; elsewhere, and with
 * DORMOUSE_GENERIC defined, an operation is a call. See dormouse-percpu(3).
 */
#ifndef DORMOUSE_THIS_CPU_H
#define DORMOUSE_THIS_CPU_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <dormouse/percpu.h>

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__LP64__) && defined(__linux__) && !defined(DORMOUSE_GENERIC)
#define DORMOUSE_I_PERCPU_INLINE 1
#else
#define DORMOUSE_I_PERCPU_INLINE 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Memory with a stride for each CPU, or for each concurrency id. Only the library writes it. */
struct dormouse_percpu_area {
    ptrdiff_t rseq_offset;  /* from the thread pointer to the thread's rseq structure, in bytes */
    ptrdiff_t index_offset; /* from the thread pointer to the number of the copy that the thread uses, in bytes */
    char *first;            /* the first copy */
    ptrdiff_t delta;        /* from a variable to its first copy, in bytes; 0 if there are no variables */
    uint32_t stride_shift;  /* binary logarithm of the distance between copies in bytes */
    uint32_t count;         /* number of copies */
    const struct dormouse_percpu_area *whole; /* the area with what only the library knows; NULL if there are no copies */
    ptrdiff_t here_offset;  /* rseq_offset for sections of variables, whose distance and number are constants; 0: none */
};

/* Flag of an area: copies belong to concurrency ids and not to CPUs, if the kernel has them (Linux 6.3). A process with
 * fewer threads than CPUs then uses only as many copies as it has threads running at the same time. */
#define DORMOUSE_PERCPU_BY_CONCURRENCY_ID 1u

/*
 * Creates an area with copies of `size_bytes` zeroed bytes, each aligned to a page.
 *
 * NULL with errno: EINVAL  no bytes, or an unknown flag
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
const struct dormouse_percpu_area *dormouse_percpu_area_create(size_t size_bytes, unsigned flags);

/* Whether copies belong to concurrency ids. MT-safe, wait-free, async-signal-safe. */
int dormouse_percpu_area_is_by_concurrency_id(const struct dormouse_percpu_area *area);

/* Destroys an area of dormouse_percpu_area_create() that is not used any more. NULL is allowed. MT-safe, blocking, not
 * async-signal-safe. */
void dormouse_percpu_area_destroy(const struct dormouse_percpu_area *area);

/* Returns the area of a pool, for inline operations on its objects. It lives as long as the pool. MT-safe, wait-free,
 * async-signal-safe. */
const struct dormouse_percpu_area *dormouse_percpu_pool_area(const struct dormouse_percpu_pool *pool);

/*
 * Waits until every restartable sequence that now runs on `cpu`, or on any CPU if it is -1, in a thread of this process
 * has committed or started over. What the caller stored before is visible to sequences that start later. So a thread
 * that has replaced a pointer on a CPU knows that no sequence there uses the old one any more.
 *
 * 0, or: -EINVAL   no such CPU
 *        -ENOTSUP  the kernel has no such barrier (Linux 5.10), or this process has no restartable sequences
 * MT-safe, blocking for microseconds, not async-signal-safe.
 */
int dormouse_percpu_fence(int cpu);

/* Private: what the macros below call. */
#define DORMOUSE_I_PERCPU_ADD 0u
#define DORMOUSE_I_PERCPU_EXCHANGE 1u
#define DORMOUSE_I_PERCPU_COMPARE_EXCHANGE 2u
int dormouse_percpu_update(const struct dormouse_percpu_area *area, void *first, unsigned operation, size_t size_bytes,
                           uint64_t operand, uint64_t expected, uint64_t *old);
void dormouse_percpu_push(const struct dormouse_percpu_area *area, void *first, void *node);
void *dormouse_percpu_pop(const struct dormouse_percpu_area *area, void *first);
void dormouse_percpu_drain(const struct dormouse_percpu_area *area, void *first,
                           void (*take)(struct dormouse_percpu_node *node, void *argument), void *argument);
uint32_t dormouse_percpu_index(const struct dormouse_percpu_area *area);
void dormouse_percpu_register(struct dormouse_percpu_area *area, void *start, void *stop);
void dormouse_percpu_forget(const struct dormouse_percpu_area *area);

#define DORMOUSE_I_PERCPU_FUNCTION __attribute__((always_inline, unused)) static inline
#define DORMOUSE_I_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#if DORMOUSE_I_PERCPU_INLINE

/* Instructions that tests add to sections, to make them slow: they change neither registers nor flags. */
#ifndef DORMOUSE_I_PERCPU_DELAY
#define DORMOUSE_I_PERCPU_DELAY ""
#endif

/* How a section ended. */
#define DORMOUSE_I_PERCPU_DONE 0
#define DORMOUSE_I_PERCPU_OTHER_VALUE 1
#define DORMOUSE_I_PERCPU_AGAIN 2
#define DORMOUSE_I_PERCPU_NO_COPY 3

#ifdef __x86_64__

/* The beginning of a section, up to the distance of the CPU's copy in the register `a`, whose low half is `low`: the
 * kernel restarts at 6 what it interrupts between 4 and 5. `place` is where the number of the copy is, `count` the number
 * of copies, and `shift` the binary logarithm of their distance. */
#define DORMOUSE_I_PERCPU_BEGIN(a, low, place, count, shift)                                                           \
    ".pushsection __rseq_cs, \"aw\", @progbits\n\t"                                                                    \
    ".balign 32\n"                                                                                                     \
    "3:\n\t"                                                                                                           \
    ".long 0, 0\n\t"                                                                                                   \
    ".quad 4f, 5f - 4f, 6f\n\t"                                                                                        \
    ".popsection\n\t"                                                                                                  \
    "lea 3b(%%rip), " a "\n\t"                                                                                         \
    "mov " a ", %%fs:8(%[rseq])\n"                                                                                     \
    "4:\n\t"                                                                                                           \
    "mov %%fs:" place ", " low "\n\t"                                                                                  \
    "cmp " count ", " low "\n\t"                                                                                       \
    "jae 7f\n\t"                                                                                                       \
    "shl " shift ", " a "\n\t" DORMOUSE_I_PERCPU_DELAY

/* In an area, number of copies and distance are in memory. A variable's are constants of this header, so that an operation
 * loads only the place of the thread's rseq structure; of an object with more variables, or a CPU beyond them, the library
 * takes care. */
#define DORMOUSE_I_PERCPU_BEGIN_IN_AREA(a, low) DORMOUSE_I_PERCPU_BEGIN(a, low, "(%[index])", "%[count]", "%%cl")
#define DORMOUSE_I_PERCPU_IN_IN_AREA                                                                                   \
    [rseq] "r"(area->rseq_offset), [index] "r"(area->index_offset), [count] "m"(area->count), "c"(area->stride_shift)
#define DORMOUSE_I_PERCPU_BEGIN_HERE(a, low) DORMOUSE_I_PERCPU_BEGIN(a, low, "4(%[rseq])", "$1024", "$18")
#define DORMOUSE_I_PERCPU_IN_HERE [rseq] "r"(area->here_offset)

/* Code that may be unloaded must not leave its descriptor to the kernel: the next interruption would read it. A program
 * stays. */
#if defined(__PIC__) && !defined(__PIE__)
#define DORMOUSE_I_PERCPU_CLEAR "movq $0, %%fs:8(%[rseq])\n\t"
#else
#define DORMOUSE_I_PERCPU_CLEAR
#endif

/* The end of a section, after its last store. */
#define DORMOUSE_I_PERCPU_END(aborted, elsewhere)                                                                      \
    "5:\n\t" DORMOUSE_I_PERCPU_CLEAR ".pushsection __rseq_failure, \"ax\", @progbits\n\t"                              \
    ".byte 0x0f, 0xb9, 0x3d\n\t"                                                                                       \
    ".long 0x53053053\n"                                                                                               \
    "6:\n\t" aborted "7:\n\t" elsewhere

#define DORMOUSE_I_PERCPU_END_WITH_OUTCOME                                                                             \
    DORMOUSE_I_PERCPU_END("mov $2, %[outcome]\n\tjmp 5b\n", "mov $3, %[outcome]\n\tjmp 5b\n")                          \
    "8:\n\tmov $1, %[outcome]\n\tjmp 5b\n\t.popsection"

/*
 * Defines the operations on words of `bits` bits, with the suffix and operand modifier of their instructions. The words
 * are in an area, or they are variables.
 */
#define DORMOUSE_I_PERCPU_DEFINE(kind, KIND, bits, suffix, size)                                                       \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_add##bits##kind(const struct dormouse_percpu_area *area,          \
                                                                     void *first, uint##bits##_t n)                    \
    {                                                                                                                  \
        __asm__ goto(DORMOUSE_I_PERCPU_BEGIN_##KIND("%%rax", "%%eax") "add" suffix " %" size "[n], (%[first], %%rax)\n"   \
                     DORMOUSE_I_PERCPU_END("jmp %l[again]\n", "jmp %l[again]\n") ".popsection"                         \
                     : : [first] "r"(first), [n] "er"(n), DORMOUSE_I_PERCPU_IN_##KIND : "rax", "cc" : again);\
        return DORMOUSE_I_PERCPU_DONE;                                                                                 \
    again:                                                                                                             \
        return DORMOUSE_I_PERCPU_AGAIN;                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_add_return##bits##kind(                                           \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t n, uint64_t *old)                         \
    {                                                                                                                  \
        uint64_t a;                                                                                                    \
        uint##bits##_t was, sum;                                                                                       \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_BEGIN_##KIND("%[a]", "%k[a]") "add %[first], %[a]\n\t"                         \
                         "mov (%[a]), %[was]\n\t"                                                                      \
                         "mov %[was], %[sum]\n\t"                                                                      \
                         "add %" size "[n], %[sum]\n\t"                                                                \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "mov %[sum], (%[a])\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                                     \
                         : [a] "=&r"(a), [outcome] "+&r"(outcome), [was] "=&r"(was), [sum] "=&r"(sum)                  \
                         : [first] "r"(first), [n] "er"(n), DORMOUSE_I_PERCPU_IN_##KIND                   \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_exchange##bits##kind(                                             \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t value, uint64_t *old)                     \
    {                                                                                                                  \
        uint64_t a;                                                                                                    \
        uint##bits##_t was;                                                                                            \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_BEGIN_##KIND("%[a]", "%k[a]") "add %[first], %[a]\n\t"                         \
                         "mov (%[a]), %[was]\n\t"                                                                      \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "mov" suffix " %" size "[value], (%[a])\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                 \
                         : [a] "=&r"(a), [outcome] "+&r"(outcome), [was] "=&r"(was)                                    \
                         : [first] "r"(first), [value] "er"(value), DORMOUSE_I_PERCPU_IN_##KIND           \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_compare_exchange##bits##kind(                                     \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t expected, uint##bits##_t value,           \
        uint64_t *old)                                                                                                 \
    {                                                                                                                  \
        uint64_t a;                                                                                                    \
        uint##bits##_t was;                                                                                            \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_BEGIN_##KIND("%[a]", "%k[a]") "add %[first], %[a]\n\t"                         \
                         "mov (%[a]), %[was]\n\t"                                                                      \
                         "cmp %" size "[expected], %[was]\n\t"                                                         \
                         "jne 8f\n\t"                                                                                  \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "mov" suffix " %" size "[value], (%[a])\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                 \
                         : [a] "=&r"(a), [outcome] "+&r"(outcome), [was] "=&r"(was)                                    \
                         : [first] "r"(first), [expected] "er"(expected), [value] "er"(value),                         \
                           DORMOUSE_I_PERCPU_IN_##KIND                                                    \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }

DORMOUSE_I_PERCPU_DEFINE(_here, HERE, 64, "q", "")
DORMOUSE_I_PERCPU_DEFINE(_here, HERE, 32, "l", "k")
DORMOUSE_I_PERCPU_DEFINE(_in_area, IN_AREA, 64, "q", "")
DORMOUSE_I_PERCPU_DEFINE(_in_area, IN_AREA, 32, "l", "k")

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_try_push(const struct dormouse_percpu_area *area, void *first,
                                                          struct dormouse_percpu_node *node)
{
    uint64_t a, head;
    int outcome = DORMOUSE_I_PERCPU_DONE;
    __asm__ volatile(DORMOUSE_I_PERCPU_BEGIN_IN_AREA("%[a]", "%k[a]") "add %[first], %[a]\n\t"
                     "mov (%[a]), %[head]\n\t"
                     "mov %[head], (%[node])\n\t"
                     DORMOUSE_I_PERCPU_DELAY
                     "mov %[node], (%[a])\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME
                     : [a] "=&r"(a), [outcome] "+&r"(outcome), [head] "=&r"(head)
                     : [first] "r"(first), [node] "r"(node), DORMOUSE_I_PERCPU_IN_IN_AREA
                     : "cc", "memory");
    return outcome;
}

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_try_pop(const struct dormouse_percpu_area *area, void *first,
                                                         struct dormouse_percpu_node **node)
{
    uint64_t a, next;
    int outcome = DORMOUSE_I_PERCPU_DONE;
    __asm__ volatile(DORMOUSE_I_PERCPU_BEGIN_IN_AREA("%[a]", "%k[a]") "add %[first], %[a]\n\t"
                     "mov (%[a]), %[node]\n\t"
                     "test %[node], %[node]\n\t"
                     "jz 8f\n\t"
                     "mov (%[node]), %[next]\n\t"
                     DORMOUSE_I_PERCPU_DELAY
                     "mov %[next], (%[a])\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME
                     : [a] "=&r"(a), [outcome] "+&r"(outcome), [node] "=&r"(*node), [next] "=&r"(next)
                     : [first] "r"(first), DORMOUSE_I_PERCPU_IN_IN_AREA
                     : "cc", "memory");
    return outcome;
}

#else

/*
 * The same on AArch64, where the register `thread` has the address of the thread's rseq structure. The kernel's signature is
 * an instruction, so it is the same word in code of either byte order. What a section does instead of its store is at the
 * end of the text section, to which only unconditional branches go: a conditional one reaches 1 MiB.
 *
 * Other CPUs may see stores in a different order. So a final store that makes other stores reachable is a release (`stlr`,
 * which takes an address and no distance). On the CPU itself program order is enough.
 */
#define DORMOUSE_I_PERCPU_BEGIN(a, low, thread, place, count, shift)                                                   \
    ".pushsection __rseq_cs, \"aw\", %%progbits\n\t"                                                                   \
    ".balign 32\n"                                                                                                     \
    "3:\n\t"                                                                                                           \
    ".word 0, 0\n\t"                                                                                                   \
    ".xword 4f, 5f - 4f, 6f\n\t"                                                                                       \
    ".popsection\n\t"                                                                                                  \
    "mrs " thread ", tpidr_el0\n\t"                                                                                    \
    "add " thread ", " thread ", %[rseq]\n\t"                                                                          \
    "adrp " a ", 3b\n\t"                                                                                               \
    "add " a ", " a ", :lo12:3b\n\t"                                                                                   \
    "str " a ", [" thread ", #8]\n"                                                                                    \
    "4:\n\t"                                                                                                           \
    "ldr " low ", [" thread ", " place "]\n\t"                                                                         \
    "cmp " low ", " count "\n\t"                                                                                       \
    "b.lo 9f\n\t"                                                                                                      \
    "b 7f\n"                                                                                                           \
    "9:\n\t"                                                                                                           \
    "lsl " a ", " a ", " shift "\n\t" DORMOUSE_I_PERCPU_DELAY

#define DORMOUSE_I_PERCPU_BEGIN_IN_AREA(a, low, thread)                                                                \
    DORMOUSE_I_PERCPU_BEGIN(a, low, thread, "%[index]", "%w[count]", "%[shift]")
#define DORMOUSE_I_PERCPU_IN_IN_AREA                                                                                   \
    [rseq] "r"(area->rseq_offset), [index] "r"(area->index_offset - area->rseq_offset), [count] "r"(area->count),      \
        [shift] "r"((uint64_t)area->stride_shift)
#define DORMOUSE_I_PERCPU_BEGIN_HERE(a, low, thread) DORMOUSE_I_PERCPU_BEGIN(a, low, thread, "#4", "#1024", "#18")
#define DORMOUSE_I_PERCPU_IN_HERE [rseq] "r"(area->here_offset)

#if defined(__PIC__) && !defined(__PIE__)
#define DORMOUSE_I_PERCPU_CLEAR(thread) "str xzr, [" thread ", #8]\n\t"
#else
#define DORMOUSE_I_PERCPU_CLEAR(thread)
#endif

#define DORMOUSE_I_PERCPU_END(thread, aborted, elsewhere)                                                              \
    "5:\n\t" DORMOUSE_I_PERCPU_CLEAR(thread) ".subsection 1\n\t"                                                       \
    ".inst 0xd428bc00\n"                                                                                               \
    "6:\n\t" aborted "7:\n\t" elsewhere

#define DORMOUSE_I_PERCPU_END_WITH_OUTCOME                                                                             \
    DORMOUSE_I_PERCPU_END("%[thread]", "mov %w[outcome], #2\n\tb 5b\n", "mov %w[outcome], #3\n\tb 5b\n")              \
    "8:\n\tmov %w[outcome], #1\n\tb 5b\n\t.previous"

/* Registers that all sections with an outcome change: `a` is the address of the word in the CPU's copy, once it is known. */
#define DORMOUSE_I_PERCPU_OUT [a] "=&r"(a), [thread] "=&r"(thread), [outcome] "+&r"(outcome)
#define DORMOUSE_I_PERCPU_FIND_HERE DORMOUSE_I_PERCPU_BEGIN_HERE("%[a]", "%w[a]", "%[thread]") "add %[a], %[a], %[first]\n\t"
#define DORMOUSE_I_PERCPU_FIND_IN_AREA                                                                                 \
    DORMOUSE_I_PERCPU_BEGIN_IN_AREA("%[a]", "%w[a]", "%[thread]") "add %[a], %[a], %[first]\n\t"

/* Defines the operations on words of `bits` bits, with the operand modifier of their registers. */
#define DORMOUSE_I_PERCPU_DEFINE(kind, KIND, bits, size)                                                               \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_add##bits##kind(const struct dormouse_percpu_area *area,          \
                                                                     void *first, uint##bits##_t n)                    \
    {                                                                                                                  \
        __asm__ goto(DORMOUSE_I_PERCPU_BEGIN_##KIND("x10", "w10", "x11")                                               \
                     "ldr " size "12, [%[first], x10]\n\t"                                                             \
                     "add " size "12, " size "12, %" size "[n]\n\t"                                                    \
                     DORMOUSE_I_PERCPU_DELAY                                                                           \
                     "str " size "12, [%[first], x10]\n"                                                               \
                     DORMOUSE_I_PERCPU_END("x11", "b %l[again]\n", "b %l[again]\n\t") ".previous"                      \
                     : : [first] "r"(first), [n] "rI"(n), DORMOUSE_I_PERCPU_IN_##KIND                                  \
                     : "x10", "x11", "x12", "cc" : again);                                                             \
        return DORMOUSE_I_PERCPU_DONE;                                                                                 \
    again:                                                                                                             \
        return DORMOUSE_I_PERCPU_AGAIN;                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_add_return##bits##kind(                                           \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t n, uint64_t *old)                         \
    {                                                                                                                  \
        uint64_t a, thread;                                                                                            \
        uint##bits##_t was, sum;                                                                                       \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_FIND_##KIND                                                                 \
                         "ldr %" size "[was], [%[a]]\n\t"                                                              \
                         "add %" size "[sum], %" size "[was], %" size "[n]\n\t"                                        \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "str %" size "[sum], [%[a]]\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                             \
                         : DORMOUSE_I_PERCPU_OUT, [was] "=&r"(was), [sum] "=&r"(sum)                                   \
                         : [first] "r"(first), [n] "rI"(n), DORMOUSE_I_PERCPU_IN_##KIND                                \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_exchange##bits##kind(                                             \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t value, uint64_t *old)                     \
    {                                                                                                                  \
        uint64_t a, thread;                                                                                            \
        uint##bits##_t was;                                                                                            \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_FIND_##KIND                                                                 \
                         "ldr %" size "[was], [%[a]]\n\t"                                                              \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "stlr %" size "[value], [%[a]]\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                          \
                         : DORMOUSE_I_PERCPU_OUT, [was] "=&r"(was)                                                     \
                         : [first] "r"(first), [value] "rZ"(value), DORMOUSE_I_PERCPU_IN_##KIND                        \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }                                                                                                                  \
    DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_compare_exchange##bits##kind(                                     \
        const struct dormouse_percpu_area *area, void *first, uint##bits##_t expected, uint##bits##_t value,           \
        uint64_t *old)                                                                                                 \
    {                                                                                                                  \
        uint64_t a, thread;                                                                                            \
        uint##bits##_t was;                                                                                            \
        int outcome = DORMOUSE_I_PERCPU_DONE;                                                                          \
        __asm__ volatile(DORMOUSE_I_PERCPU_FIND_##KIND                                                                 \
                         "ldr %" size "[was], [%[a]]\n\t"                                                              \
                         "cmp %" size "[was], %" size "[expected]\n\t"                                                 \
                         "b.eq 9f\n\t"                                                                                 \
                         "b 8f\n"                                                                                      \
                         "9:\n\t"                                                                                      \
                         DORMOUSE_I_PERCPU_DELAY                                                                       \
                         "stlr %" size "[value], [%[a]]\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME                          \
                         : DORMOUSE_I_PERCPU_OUT, [was] "=&r"(was)                                                     \
                         : [first] "r"(first), [expected] "rI"(expected), [value] "rZ"(value),                         \
                           DORMOUSE_I_PERCPU_IN_##KIND                                                                 \
                         : "cc", "memory");                                                                            \
        *old = was;                                                                                                    \
        return outcome;                                                                                                \
    }

DORMOUSE_I_PERCPU_DEFINE(_here, HERE, 64, "x")
DORMOUSE_I_PERCPU_DEFINE(_here, HERE, 32, "w")
DORMOUSE_I_PERCPU_DEFINE(_in_area, IN_AREA, 64, "x")
DORMOUSE_I_PERCPU_DEFINE(_in_area, IN_AREA, 32, "w")

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_try_push(const struct dormouse_percpu_area *area, void *first,
                                                          struct dormouse_percpu_node *node)
{
    uint64_t a, thread, head;
    int outcome = DORMOUSE_I_PERCPU_DONE;
    __asm__ volatile(DORMOUSE_I_PERCPU_FIND_IN_AREA
                     "ldr %[head], [%[a]]\n\t"
                     "str %[head], [%[node]]\n\t"
                     DORMOUSE_I_PERCPU_DELAY
                     "stlr %[node], [%[a]]\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME
                     : DORMOUSE_I_PERCPU_OUT, [head] "=&r"(head)
                     : [first] "r"(first), [node] "r"(node), DORMOUSE_I_PERCPU_IN_IN_AREA
                     : "cc", "memory");
    return outcome;
}

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_try_pop(const struct dormouse_percpu_area *area, void *first,
                                                         struct dormouse_percpu_node **node)
{
    uint64_t a, thread, next;
    int outcome = DORMOUSE_I_PERCPU_DONE;
    __asm__ volatile(DORMOUSE_I_PERCPU_FIND_IN_AREA
                     "ldr %[node], [%[a]]\n\t"
                     "cbnz %[node], 9f\n\t"
                     "b 8f\n"
                     "9:\n\t"
                     "ldr %[next], [%[node]]\n\t"
                     DORMOUSE_I_PERCPU_DELAY
                     "stlr %[next], [%[a]]\n" DORMOUSE_I_PERCPU_END_WITH_OUTCOME
                     : DORMOUSE_I_PERCPU_OUT, [node] "=&r"(*node), [next] "=&r"(next)
                     : [first] "r"(first), DORMOUSE_I_PERCPU_IN_IN_AREA
                     : "cc", "memory");
    return outcome;
}

#endif /* __x86_64__ */

/* Chooses the operation for a word of that size, in a variable or in an area. */
#define DORMOUSE_I_PERCPU_TRY(name, ...)                                                                               \
    (is_variable ? size_bytes == 8 ? dormouse_i_percpu_##name##64_here(area, first, __VA_ARGS__)                       \
                                   : dormouse_i_percpu_##name##32_here(area, first, __VA_ARGS__)                       \
     : size_bytes == 8 ? dormouse_i_percpu_##name##64_in_area(area, first, __VA_ARGS__)                                \
                       : dormouse_i_percpu_##name##32_in_area(area, first, __VA_ARGS__))

#endif /* DORMOUSE_I_PERCPU_INLINE */

/*
 * Operations on the word whose first copy is at `first`. A section that did not commit goes on in the library, which
 * registers the thread if need be, starts over until it is done, or takes a lock in a process without sequences. Its
 * -EAGAIN asks for another section: it has none for concurrency ids.
 */
DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_change(const struct dormouse_percpu_area *area, int is_variable,
                                                        void *first, unsigned operation, size_t size_bytes,
                                                        uint64_t operand, uint64_t expected, uint64_t *old)
{
    int result;
    do {
#if DORMOUSE_I_PERCPU_INLINE
        int outcome = is_variable && DORMOUSE_I_UNLIKELY(area->here_offset == 0) ? DORMOUSE_I_PERCPU_NO_COPY
                      :  operation == DORMOUSE_I_PERCPU_ADD      ? DORMOUSE_I_PERCPU_TRY(add_return, operand, old)
                      : operation == DORMOUSE_I_PERCPU_EXCHANGE ? DORMOUSE_I_PERCPU_TRY(exchange, operand, old)
                                                                : DORMOUSE_I_PERCPU_TRY(compare_exchange, expected, operand, old);
        if (!DORMOUSE_I_UNLIKELY(outcome > DORMOUSE_I_PERCPU_OTHER_VALUE))
            return 0;
#endif
        if (is_variable && area->whole == NULL)
            return -ENOMEM;
        result = dormouse_percpu_update(area->whole, first, operation, size_bytes, operand, expected, old);
    } while (DORMOUSE_I_UNLIKELY(!is_variable && result == -EAGAIN));
    return result;
}

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_add(const struct dormouse_percpu_area *area, int is_variable,
                                                     void *first, size_t size_bytes, uint64_t n)
{
    int result;
    do {
        uint64_t old;
#if DORMOUSE_I_PERCPU_INLINE
        if (!DORMOUSE_I_UNLIKELY((is_variable && area->here_offset == 0) || DORMOUSE_I_PERCPU_TRY(add, n)))
            return 0;
#endif
        if (is_variable && area->whole == NULL)
            return -ENOMEM;
        result = dormouse_percpu_update(area->whole, first, DORMOUSE_I_PERCPU_ADD, size_bytes, n, 0, &old);
    } while (DORMOUSE_I_UNLIKELY(!is_variable && result == -EAGAIN));
    return result;
}

DORMOUSE_I_PERCPU_FUNCTION int dormouse_i_percpu_write(const struct dormouse_percpu_area *area, int is_variable,
                                                       void *first, size_t size_bytes, uint64_t value)
{
    uint64_t old;
    return dormouse_i_percpu_change(area, is_variable, first, DORMOUSE_I_PERCPU_EXCHANGE, size_bytes, value, 0, &old);
}

/* Returns the old value; 0 if there was an error. */
DORMOUSE_I_PERCPU_FUNCTION uint64_t dormouse_i_percpu_fetch(const struct dormouse_percpu_area *area, int is_variable,
                                                            void *first, unsigned operation, size_t size_bytes,
                                                            uint64_t operand, uint64_t expected)
{
    uint64_t old = 0;
    int result = dormouse_i_percpu_change(area, is_variable, first, operation, size_bytes, operand, expected, &old);
    return DORMOUSE_I_UNLIKELY(result != 0) ? 0 : old;
}

/* Returns the new value; 0 if there was an error. */
DORMOUSE_I_PERCPU_FUNCTION uint64_t dormouse_i_percpu_sum(const struct dormouse_percpu_area *area, int is_variable,
                                                          void *first, size_t size_bytes, uint64_t n)
{
    uint64_t old = 0;
    int result = dormouse_i_percpu_change(area, is_variable, first, DORMOUSE_I_PERCPU_ADD, size_bytes, n, 0, &old);
    return DORMOUSE_I_UNLIKELY(result != 0) ? 0 : old + n;
}

/* Returns the number of the copy that the thread used a moment ago. */
DORMOUSE_I_PERCPU_FUNCTION uint32_t dormouse_i_percpu_index(const struct dormouse_percpu_area *area)
{
#if DORMOUSE_I_PERCPU_INLINE
    uint32_t index;
#ifdef __x86_64__
    __asm__ volatile("mov %%fs:(%[offset]), %[index]" : [index] "=r"(index) : [offset] "r"(area->index_offset));
#else
    uint64_t thread;
    __asm__ volatile("mrs %[thread], tpidr_el0\n\tldr %w[index], [%[thread], %[offset]]"
                     : [index] "=r"(index), [thread] "=&r"(thread)
                     : [offset] "r"(area->index_offset));
#endif
    if (!DORMOUSE_I_UNLIKELY(index >= area->count))
        return index;
#endif
    return dormouse_percpu_index(area->whole);
}

DORMOUSE_I_PERCPU_FUNCTION void *dormouse_i_percpu_at(const struct dormouse_percpu_area *area, void *first, uint32_t index)
{
    return (void *)((uintptr_t)first + ((uintptr_t)index << (area->stride_shift & 63)));
}

/* Returns the address of the CPU's copy; without memory for copies, that of the initial value. */
DORMOUSE_I_PERCPU_FUNCTION void *dormouse_i_percpu_here(const struct dormouse_percpu_area *area, void *first)
{
    return DORMOUSE_I_UNLIKELY(area->count == 0) ? first
                                                 : dormouse_i_percpu_at(area, first, dormouse_i_percpu_index(area));
}

DORMOUSE_I_PERCPU_FUNCTION void dormouse_i_percpu_push(const struct dormouse_percpu_area *area, void *first,
                                                       struct dormouse_percpu_node *node)
{
#if DORMOUSE_I_PERCPU_INLINE
    if (!DORMOUSE_I_UNLIKELY(area->whole == NULL || dormouse_i_percpu_try_push(area, first, node)))
        return;
#endif
    if (area->whole != NULL)
        dormouse_percpu_push(area->whole, first, node);
}

DORMOUSE_I_PERCPU_FUNCTION struct dormouse_percpu_node *dormouse_i_percpu_pop(const struct dormouse_percpu_area *area,
                                                                              void *first)
{
#if DORMOUSE_I_PERCPU_INLINE
    struct dormouse_percpu_node *node;
    if (!DORMOUSE_I_UNLIKELY(area->whole == NULL || dormouse_i_percpu_try_pop(area, first, &node)))
        return node;
#endif
    return area->whole == NULL ? NULL : (struct dormouse_percpu_node *)dormouse_percpu_pop(area->whole, first);
}

/* The size of a word; a compile-time error if it is not 4 or 8. */
#define DORMOUSE_I_PERCPU_SIZE(word) (sizeof(word) * sizeof(char[sizeof(word) == 4 || sizeof(word) == 8 ? 1 : -1]))
#define DORMOUSE_I_PERCPU_VALUE(word, value) ((uint64_t)(__typeof__(word))(value))

/* Operations on the word at `p` in the first copy, in a variable or in an area. */
#define DORMOUSE_I_PERCPU_ADD_TO(area, is_variable, p, n)                                                              \
    dormouse_i_percpu_add(area, is_variable, (void *)(p), DORMOUSE_I_PERCPU_SIZE(*(p)), (uint64_t)(n))
#define DORMOUSE_I_PERCPU_WRITE_TO(area, is_variable, p, value)                                                        \
    dormouse_i_percpu_write(area, is_variable, (void *)(p), DORMOUSE_I_PERCPU_SIZE(*(p)),                              \
                            DORMOUSE_I_PERCPU_VALUE(*(p), value))
/* A value of the word's type; nothing warns if it is not used. */
#define DORMOUSE_I_PERCPU_RESULT(word, value)                                                                          \
    __extension__({                                                                                                    \
        __typeof__(word) dormouse_i_result = (__typeof__(word))(value);                                                \
        dormouse_i_result;                                                                                             \
    })
#define DORMOUSE_I_PERCPU_SUM_OF(area, is_variable, p, n)                                                              \
    DORMOUSE_I_PERCPU_RESULT(*(p), dormouse_i_percpu_sum(area, is_variable, (void *)(p),                               \
                                                         DORMOUSE_I_PERCPU_SIZE(*(p)), (uint64_t)(n)))
#define DORMOUSE_I_PERCPU_FETCH(area, is_variable, operation, p, value, expected)                                      \
    DORMOUSE_I_PERCPU_RESULT(*(p), dormouse_i_percpu_fetch(area, is_variable, (void *)(p), operation,                  \
                                                           DORMOUSE_I_PERCPU_SIZE(*(p)),                               \
                                                           DORMOUSE_I_PERCPU_VALUE(*(p), value),                       \
                                                           DORMOUSE_I_PERCPU_VALUE(*(p), expected)))

/* Operations on a word of an object in an area or pool; `p` is the address of the word in the first copy. */
#define percpu_add(area, p, n) DORMOUSE_I_PERCPU_ADD_TO(area, 0, p, n)
#define percpu_sub(area, p, n) percpu_add(area, p, 0 - (uint64_t)(n))
#define percpu_write(area, p, value) DORMOUSE_I_PERCPU_WRITE_TO(area, 0, p, value)
#define percpu_add_return(area, p, n) DORMOUSE_I_PERCPU_SUM_OF(area, 0, p, n)
#define percpu_xchg(area, p, value) DORMOUSE_I_PERCPU_FETCH(area, 0, DORMOUSE_I_PERCPU_EXCHANGE, p, value, 0)
#define percpu_cmpxchg(area, p, expected, value)                                                                       \
    DORMOUSE_I_PERCPU_FETCH(area, 0, DORMOUSE_I_PERCPU_COMPARE_EXCHANGE, p, value, expected)
#define percpu_this_ptr(area, p) ((__typeof__(p))dormouse_i_percpu_here(area, (void *)(p)))
#define percpu_ptr(area, p, index) ((__typeof__(p))dormouse_i_percpu_at(area, (void *)(p), index))
#define percpu_push(area, list, node) dormouse_i_percpu_push(area, (void *)(list), node)
#define percpu_pop(area, list) dormouse_i_percpu_pop(area, (void *)(list))
/* Takes all nodes off the lists of all CPUs, and calls take(node, argument) with each; no other thread may use the list. */
#define percpu_drain(area, list, take, argument) dormouse_percpu_drain((area)->whole, (void *)(list), take, argument)

/* The bounds of this object's variables. */
extern char __start_dormouse_percpu[] __attribute__((weak, visibility("hidden")));
extern char __stop_dormouse_percpu[] __attribute__((weak, visibility("hidden")));

/* The area with their copies. It changes once, before constructors without a priority run: to the compiler a constant, so
 * that it is not read again after each call. */
extern const struct dormouse_percpu_area dormouse_i_percpu_area __attribute__((visibility("hidden")));
__asm__(".ifndef dormouse_i_percpu_area\n\t"
        ".pushsection .bss.dormouse_i_percpu_area, \"aw\", %nobits\n\t"
        ".weak dormouse_i_percpu_area\n\t"
        ".hidden dormouse_i_percpu_area\n\t"
        ".type dormouse_i_percpu_area, %object\n\t"
        ".size dormouse_i_percpu_area, 64\n\t"
        ".balign 64\n"
        "dormouse_i_percpu_area:\n\t"
        ".zero 64\n\t"
        ".popsection\n\t"
        ".endif");

/* The first of the object's translation units makes the copies, before constructors without a priority. */
__attribute__((constructor(101), unused)) static void dormouse_i_percpu_construct(void)
{
    if (&__start_dormouse_percpu[0] != &__stop_dormouse_percpu[0])
        dormouse_percpu_register((struct dormouse_percpu_area *)(uintptr_t)&dormouse_i_percpu_area, __start_dormouse_percpu,
                                 __stop_dormouse_percpu);
}

#if defined(__PIC__) && !defined(__PIE__)
/* The memory serves another object that is loaded after this one was unloaded. */
__attribute__((destructor(101), unused)) static void dormouse_i_percpu_destruct(void)
{
    if (dormouse_i_percpu_area.whole != NULL)
        dormouse_percpu_forget(dormouse_i_percpu_area.whole);
}
#endif

/* Returns the area of this object's variables. It has no copies before the object's constructors run, or if there is no
 * memory for them. */
DORMOUSE_I_PERCPU_FUNCTION const struct dormouse_percpu_area *per_cpu_area(void)
{
    return &dormouse_i_percpu_area;
}

/* Returns the number of copies: CPUs from 0 on. */
DORMOUSE_I_PERCPU_FUNCTION uint32_t per_cpu_count(void)
{
    return per_cpu_area()->count;
}

DORMOUSE_I_PERCPU_FUNCTION void *dormouse_i_percpu_first(void *variable)
{
    return (void *)((uintptr_t)variable + (uintptr_t)per_cpu_area()->delta);
}

/* Defines a variable, with its initial value if one follows, which is a constant: DEFINE_PER_CPU(int, limit) = 4; */
#define DEFINE_PER_CPU(type, name)                                                                                     \
    __attribute__((section("dormouse_percpu"), visibility("hidden"))) __typeof__(type) name
#define DEFINE_STATIC_PER_CPU(type, name) __attribute__((section("dormouse_percpu"))) static __typeof__(type) name
/* Declares a variable that another translation unit of the same program or library defines. */
#define DECLARE_PER_CPU(type, name) extern __attribute__((visibility("hidden"))) __typeof__(type) name

#define DORMOUSE_I_PERCPU_FIRST(variable) ((__typeof__(&(variable)))dormouse_i_percpu_first((void *)&(variable)))

#define this_cpu_add(variable, n) DORMOUSE_I_PERCPU_ADD_TO(per_cpu_area(), 1, DORMOUSE_I_PERCPU_FIRST(variable), n)
#define this_cpu_sub(variable, n) this_cpu_add(variable, 0 - (uint64_t)(n))
#define this_cpu_inc(variable) this_cpu_add(variable, 1)
#define this_cpu_dec(variable) this_cpu_sub(variable, 1)
#define this_cpu_write(variable, value)                                                                                \
    DORMOUSE_I_PERCPU_WRITE_TO(per_cpu_area(), 1, DORMOUSE_I_PERCPU_FIRST(variable), value)
#define this_cpu_add_return(variable, n)                                                                               \
    DORMOUSE_I_PERCPU_SUM_OF(per_cpu_area(), 1, DORMOUSE_I_PERCPU_FIRST(variable), n)
#define this_cpu_xchg(variable, value)                                                                                 \
    DORMOUSE_I_PERCPU_FETCH(per_cpu_area(), 1, DORMOUSE_I_PERCPU_EXCHANGE, DORMOUSE_I_PERCPU_FIRST(variable), value, 0)
#define this_cpu_cmpxchg(variable, expected, value)                                                                    \
    DORMOUSE_I_PERCPU_FETCH(per_cpu_area(), 1, DORMOUSE_I_PERCPU_COMPARE_EXCHANGE, DORMOUSE_I_PERCPU_FIRST(variable),  \
                            value, expected)
#define this_cpu_ptr(variable) percpu_this_ptr(per_cpu_area(), DORMOUSE_I_PERCPU_FIRST(variable))
#define this_cpu_read(variable) __atomic_load_n(this_cpu_ptr(variable), __ATOMIC_ACQUIRE)
#define per_cpu_ptr(variable, cpu) percpu_ptr(per_cpu_area(), DORMOUSE_I_PERCPU_FIRST(variable), cpu)
#define per_cpu_read(variable, cpu) __atomic_load_n(per_cpu_ptr(variable, cpu), __ATOMIC_ACQUIRE)
#define this_cpu_push(list, node) percpu_push(per_cpu_area(), DORMOUSE_I_PERCPU_FIRST(list), node)
#define this_cpu_pop(list) percpu_pop(per_cpu_area(), DORMOUSE_I_PERCPU_FIRST(list))
#define per_cpu_drain(list, take, argument)                                                                            \
    percpu_drain(per_cpu_area(), DORMOUSE_I_PERCPU_FIRST(list), take, argument)

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
