#include <dormouse/abi/tunable.h>
#include <stddef.h>
#include <stdio.h>

#define FIELD(field) printf(#field " %zu\n", offsetof(struct dormouse_tunable_record, field))

int main(void)
{
    printf("size %zu\n", sizeof(struct dormouse_tunable_record));
    FIELD(name);
    FIELD(description);
    FIELD(variable);
    FIELD(value_type);
    FIELD(reserved);
    FIELD(min);
    FIELD(max);
#define TYPE(type) printf(#type " %d\n", DORMOUSE_TUNABLE_TYPE_##type)
    TYPE(KEY);
    TYPE(BOOL);
    TYPE(U8);
    TYPE(U16);
    TYPE(U32);
    TYPE(U64);
    TYPE(I8);
    TYPE(I16);
    TYPE(I32);
    TYPE(I64);
    TYPE(F32);
    TYPE(F64);
    printf("section %s\n", DORMOUSE_TUNABLES_SECTION);
    return 0;
}
