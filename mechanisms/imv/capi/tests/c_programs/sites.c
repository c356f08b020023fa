/* One site of each kind. Prints the name and bytes of each in memory, and the bytes that a gate jumps to. */
#include "sites.h"

#include <stdio.h>

#define DEFINE(name, type, value) DEFINE_IMV(type, name) = value;
#define IMPORT(name, type, value) IMPORT_IMV(type, name);
EACH_NEAR(DEFINE)
EACH_IMPORTED(IMPORT)
DEFINE_STATIC_KEY(branch);
IMPORT_STATIC_KEY(imported_branch);

#define READ(name, type, value)                                                                                        \
    __attribute__((noinline)) static type read_##name(void)                                                            \
    {                                                                                                                  \
        return imv_read(name);                                                                                         \
    }
EACH_NEAR(READ)
EACH_IMPORTED(READ)

__attribute__((noinline)) static int read_branches(void)
{
    int answer = 0;
    if (static_branch_unlikely(&branch))
        answer += 1;
    if (static_branch_unlikely(&imported_branch))
        answer += 2;
    return answer;
}

static void print_bytes(const unsigned char *bytes, size_t len)
{
    putchar(' ');
    for (size_t index = 0; index < len; index++)
        printf("%02x", bytes[index]);
}

#define NAME(name, type, value) {&name, #name},

int main(void)
{
    const struct {
        volatile void *variable;
        const char *name;
    } names[] = {EACH_NEAR(NAME) EACH_IMPORTED(NAME){&branch, "branch"}, {&imported_branch, "imported_branch"}};

#define USE(name, type, value)                                                                                         \
    if (read_##name() != (type)value)                                                                                  \
        return 1;
    EACH_NEAR(USE)
    EACH_IMPORTED(USE)
    if (read_branches() != 0)
        return 1;

    for (const struct dormouse_site_record *record = __start_dormouse_sites; record < __stop_dormouse_sites; record++) {
        const unsigned char *site = (const unsigned char *)&record->site + record->site;
        const char *key = (const char *)&record->key + record->key;
        for (size_t index = 0; index < sizeof names / sizeof *names; index++)
            if ((const volatile void *)key == names[index].variable)
                printf("%s", names[index].name);
#ifdef __aarch64__
        print_bytes(site, 4);
#else
        int is_gated = (record->kind & DORMOUSE_SITE_FORM_MASK) == DORMOUSE_SITE_GATED_VALUE;
        int is_value = (record->kind & DORMOUSE_SITE_FORM_MASK) == DORMOUSE_SITE_VALUE;
        print_bytes(site, is_gated ? 15 : is_value ? DORMOUSE_X86_VALUE_LEN : DORMOUSE_X86_BRANCH_LEN);
        if (is_gated) {
            int32_t displacement;
            memcpy(&displacement, site + 1, sizeof displacement);
            print_bytes(site + 5 + displacement, 16);
        }
#endif
        putchar('\n');
    }
    return 0;
}
