#include <dormouse/abi/site.h>
#include <dormouse/imv.h>
#include <stdio.h>

#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))

int dormouse_imv_register(const struct dormouse_site_record *start, const struct dormouse_site_record *stop)
{
    return start == stop ? 0 : -1;
}

int dormouse_imv_unregister(const struct dormouse_site_record *start)
{
    (void)start;
    return 0;
}

int main(void)
{
    SIZE(dormouse_site_record);
    FIELD(dormouse_site_record, site);
    FIELD(dormouse_site_record, kind);
    FIELD(dormouse_site_record, key);
    FIELD(dormouse_site_record, target);
    SIZE(dormouse_event_record);
    FIELD(dormouse_event_record, key);
    FIELD(dormouse_event_record, describe);
    SIZE(dormouse_static_key);
    SIZE(dormouse_static_key_import);
    SIZE(dormouse_imv_change);
    SIZE(dormouse_static_key_deferred);
    static const unsigned char nop[DORMOUSE_X86_BRANCH_LEN] = DORMOUSE_X86_NOP;
    printf("jmp %d\ntest %d\n", DORMOUSE_X86_JMP, DORMOUSE_X86_TEST);
    printf("nop [%d, %d, %d, %d, %d]\nbranch_len %d\n", nop[0], nop[1], nop[2], nop[3], nop[4], DORMOUSE_X86_BRANCH_LEN);
    printf("value_len %d\ngated %d\n", DORMOUSE_X86_VALUE_LEN, DORMOUSE_X86_GATED_IMMEDIATE_OFFSET);
    printf("forms %d %d %d %d %d\n", DORMOUSE_SITE_FORM_MASK, DORMOUSE_SITE_BRANCH, DORMOUSE_SITE_VALUE,
           DORMOUSE_SITE_GATED_VALUE, DORMOUSE_SITE_DIRECT_BRANCH);
    printf("bits %d %d %d %d\n", DORMOUSE_SITE_WIDTH_SHIFT, DORMOUSE_SITE_SIGNED, DORMOUSE_SITE_INDIRECT,
           DORMOUSE_SITE_LIKELY);
    printf("call %d\n", DORMOUSE_SITE_CALL);
    printf("sites %s\nevents %s\n", DORMOUSE_SITES_SECTION, DORMOUSE_EVENTS_SECTION);
    return 0;
}
