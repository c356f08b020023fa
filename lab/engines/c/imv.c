/*
 * Gates and values of C programs, for the experiment `imv`; `imv_c.rs` is the program.
 *
 *   empty            the loop alone
 *   branch           static_branch_unlikely() of a disabled key
 *   armed            the same of an enabled key: a jump to a block, which the compiler has put aside, and back
 *   jump             the same code with an unconditional jump, which nobody patches, in place of the gate
 *   variable         a test of a flag
 *   value_i32        imv_read(), added to a sum
 *   global_i32       a relaxed load of a variable, added to a sum
 *   move5, move7, move8   mov of a constant in as many bytes, added to one of four sums; x86-64
 *   aligned8              the same as a patched value is: in an aligned word, with prefixes before it
 *   load                  a load of a variable in their place
 *   ..._16           16 of them in a row, each of another key, value or variable
 */
#include <stdbool.h>

#include <dormouse/imv.h>

#include "loops.h"

/* Names of 16 keys or values, in an order other than that of their definition. */
#define EACH_OF_16(X) X(a) X(h) X(o) X(f) X(m) X(d) X(k) X(b) X(i) X(p) X(g) X(n) X(e) X(l) X(c) X(j)

/* A variable that shares neither a line nor a pair of lines with another. */
#define APART __attribute__((aligned(128)))

static uint64_t taken;

static __attribute__((cold, noinline)) void take(void)
{
    __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
}

/* The block behind an armed gate: no instruction, but the compiler does not know that. */
#define BLOCK() __asm__ volatile("" : : : "memory")

#define DEFINE(x)                                                                                                      \
    DEFINE_STATIC_KEY(closed_##x);                                                                                     \
    DEFINE_STATIC_KEY(open_##x);                                                                                       \
    static struct APART { bool flag; } flag_##x;                                                                       \
    DEFINE_STATIC_IMV(int32_t, value_##x) = 1;                                                                         \
    static struct APART { int32_t number; } global_##x = { 1 };
EACH_OF_16(DEFINE)

#define BRANCH(x)                                                                                                      \
    if (static_branch_unlikely(&closed_##x))                                                                           \
        take();
#define ARMED(x)                                                                                                       \
    if (static_branch_unlikely(&open_##x))                                                                             \
        BLOCK();
#define FLAG(x)                                                                                                        \
    if (__atomic_load_n(&flag_##x.flag, __ATOMIC_RELAXED))                                                             \
        take();
#define VALUE(x) sum += (uint32_t)imv_read(value_##x);
#define GLOBAL(x) sum += (uint32_t)__atomic_load_n(&global_##x.number, __ATOMIC_RELAXED);

#if defined(__x86_64__)
/* A jump as long as an armed gate's, to a block that the compiler has put aside. */
static inline __attribute__((always_inline)) bool always(void)
{
    __asm__ goto(".byte 0xe9\n\t.long %l[there] - 1f\n1:" : : : : there);
    return false;
there:
    return true;
}
#define JUMP(x)                                                                                                        \
    if (__builtin_expect(always(), 0))                                                                                 \
        BLOCK();
#endif

static uint32_t last_sum;
#define SUM uint32_t sum = 0
#define NOTHING (void)0

LAB_REPEAT(empty, NOTHING, NOTHING)
LAB_REPEAT(branch, NOTHING, BRANCH(a))
LAB_REPEAT(armed, NOTHING, ARMED(a))
LAB_REPEAT(variable, NOTHING, FLAG(a))
LAB_LOOP(empty_16, NOTHING, NOTHING)
LAB_LOOP(branch_16, NOTHING, EACH_OF_16(BRANCH))
LAB_LOOP(armed_16, NOTHING, EACH_OF_16(ARMED))
LAB_LOOP(variable_16, NOTHING, EACH_OF_16(FLAG))
LAB_LOOP(value_i32_16, SUM, EACH_OF_16(VALUE) last_sum = sum)
LAB_LOOP(global_i32_16, SUM, EACH_OF_16(GLOBAL) last_sum = sum)
#if defined(__x86_64__)
LAB_REPEAT(jump, NOTHING, JUMP(a))
LAB_LOOP(jump_16, NOTHING, EACH_OF_16(JUMP))
#endif

#if defined(__x86_64__)
/* 16 instructions that put a number into %eax, and additions to four sums in turn. */
#define CONSTANT ".long 7\n\t"
#define TO_FOUR_SUMS(put)                                                                                              \
    put "add %%eax, %%ecx\n\t" put "add %%eax, %%edx\n\t" put "add %%eax, %%esi\n\t" put "add %%eax, %%edi\n\t"
#define PUT_16(put)                                                                                                    \
    __asm__ volatile(TO_FOUR_SUMS(put) TO_FOUR_SUMS(put) TO_FOUR_SUMS(put) TO_FOUR_SUMS(put)                           \
                     : : [variable] "m"(global_a.number) : "eax", "ecx", "edx", "esi", "edi", "cc")
LAB_LOOP(move5_16, NOTHING, PUT_16(".byte 0xb8\n\t" CONSTANT))
LAB_LOOP(move7_16, NOTHING, PUT_16(".byte 0x40, 0xc7, 0xc0\n\t" CONSTANT))
LAB_LOOP(move8_16, NOTHING, PUT_16(".byte 0x3e, 0x40, 0xc7, 0xc0\n\t" CONSTANT))
LAB_LOOP(aligned8_16, NOTHING, PUT_16(".balign 8, 0x3e\n\t.byte 0x3e, 0x40, 0xc7, 0xc0\n\t" CONSTANT))
LAB_LOOP(load_16, NOTHING, PUT_16("mov %[variable], %%eax\n\t"))
#endif

static const struct dormouse_lab_case cases[] = {
    { "empty", empty, 0 },           { "branch", branch, 0 },           { "armed", armed, 0 },
    { "variable", variable, 0 },     { "empty_16", empty_16, 0 },       { "branch_16", branch_16, 0 },
    { "armed_16", armed_16, 0 },     { "variable_16", variable_16, 0 }, { "value_i32_16", value_i32_16, 0 },
    { "global_i32_16", global_i32_16, 0 },
#if defined(__x86_64__)
    { "jump", jump, 0 },             { "jump_16", jump_16, 0 },         { "move5_16", move5_16, 0 },
    { "move7_16", move7_16, 0 },     { "move8_16", move8_16, 0 },       { "aligned8_16", aligned8_16, 0 },
    { "load_16", load_16, 0 },
#endif
};

/* Gives each value and variable a number of its own, and enables the keys that are open. Returns the cases; NULL if a
 * change was refused. */
const struct dormouse_lab_case *dormouse_lab_c_cases(size_t *count)
{
    int32_t next = 3;
    bool is_done = true;
#define PREPARE(x)                                                                                                     \
    is_done = is_done && imv_set(value_##x, next) == 0 && static_branch_enable(&open_##x) == 0;                        \
    global_##x.number = next;                                                                                          \
    next += 7;
    EACH_OF_16(PREPARE)
    *count = LAB_COUNT(cases);
    return is_done ? cases : NULL;
}

static bool is_open(void)
{
    int open = 0;
#define COUNT_OPEN(x)                                                                                                  \
    if (static_branch_unlikely(&open_##x))                                                                             \
        open++;
    EACH_OF_16(COUNT_OPEN)
    return open == 16;
}

/* Returns 0 if every gate and value answers as it should; otherwise the number of wrong answers. */
uint64_t dormouse_lab_c_arrived(void)
{
    const uint32_t times = 3, sum = 16 * 3 + 7 * 120;
    uint64_t wrong = taken + !is_open();
    value_i32_16(times, 0);
    wrong += last_sum != times * sum;
    global_i32_16(times, 0);
    wrong += last_sum != times * sum;
    return wrong;
}
