/* Functions with branches. Prints them as they are in memory while the keys are disabled, and while they are enabled. */
#include <dormouse/imv.h>
#include <stdio.h>

DEFINE_STATIC_KEY(key);
IMPORT_STATIC_KEY(imported_branch);

#define FUNCTION(name, condition)                                                                                      \
    __attribute__((noinline)) static int name(void)                                                                    \
    {                                                                                                                  \
        if (condition)                                                                                                 \
            return 1;                                                                                                  \
        return 2;                                                                                                      \
    }
FUNCTION(unlikely, static_branch_unlikely(&key))
FUNCTION(likely, static_branch_likely(&key))
FUNCTION(imported_unlikely, static_branch_unlikely(&imported_branch))
FUNCTION(imported_likely, static_branch_likely(&imported_branch))

/* Number of bytes that contain a function, and what the compiler has put at the end of the section. */
enum { LEN = 1024 };

static int print_if(int (*function)(void), int answer, const char *name, const char *state)
{
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)function;
    printf("%s %s ", name, state);
    for (size_t index = 0; index < LEN; index++)
        printf("%02x", bytes[index]);
    putchar('\n');
    return function() == answer;
}

static int print_all(int answer, const char *state)
{
    return print_if(unlikely, answer, "unlikely", state) + print_if(likely, answer, "likely", state) +
           print_if(imported_unlikely, answer, "imported_unlikely", state) +
           print_if(imported_likely, answer, "imported_likely", state);
}

int main(void)
{
    if (print_all(2, "dormant") != 4)
        return 1;
    if (static_branch_enable(&key) || static_branch_enable(&imported_branch))
        return 2;
    return print_all(1, "armed") == 4 ? 0 : 3;
}
