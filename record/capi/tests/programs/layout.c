/* Prints "name value" for every definition that the headers share with Rust. */
#include <dormouse/event.h>
#include <stdio.h>

#define SIZE(type) printf("sizeof %s %zu\n", #type, sizeof(struct type))
#define OFFSET(type, field) printf("offsetof %s.%s %zu\n", #type, #field, offsetof(struct type, field))
#define VALUE(name) printf("%s %llu\n", #name, (unsigned long long)(name))

int main(void)
{
    SIZE(dormouse_class);
    OFFSET(dormouse_class, enabled);
    OFFSET(dormouse_class, id);
    SIZE(dormouse_event_record);
    OFFSET(dormouse_event_record, key);
    OFFSET(dormouse_event_record, describe);
    VALUE(DORMOUSE_KIND_U8);
    VALUE(DORMOUSE_KIND_U16);
    VALUE(DORMOUSE_KIND_U32);
    VALUE(DORMOUSE_KIND_U64);
    VALUE(DORMOUSE_KIND_I8);
    VALUE(DORMOUSE_KIND_I16);
    VALUE(DORMOUSE_KIND_I32);
    VALUE(DORMOUSE_KIND_I64);
    VALUE(DORMOUSE_KIND_F32);
    VALUE(DORMOUSE_KIND_F64);
    VALUE(DORMOUSE_KIND_BOOL);
    VALUE(DORMOUSE_KIND_POINTER);
    VALUE(DORMOUSE_KIND_STR);
    VALUE(DORMOUSE_KIND_BYTES);
    VALUE(DORMOUSE_KIND_SEQUENCE);
    VALUE(DORMOUSE_KIND_LABELLED);
    VALUE(DORMOUSE_LEVEL_EMERG);
    VALUE(DORMOUSE_LEVEL_ALERT);
    VALUE(DORMOUSE_LEVEL_CRIT);
    VALUE(DORMOUSE_LEVEL_ERR);
    VALUE(DORMOUSE_LEVEL_WARNING);
    VALUE(DORMOUSE_LEVEL_NOTICE);
    VALUE(DORMOUSE_LEVEL_INFO);
    VALUE(DORMOUSE_LEVEL_DEBUG_SYSTEM);
    VALUE(DORMOUSE_LEVEL_DEBUG_PROGRAM);
    VALUE(DORMOUSE_LEVEL_DEBUG_PROCESS);
    VALUE(DORMOUSE_LEVEL_DEBUG_MODULE);
    VALUE(DORMOUSE_LEVEL_DEBUG_UNIT);
    VALUE(DORMOUSE_LEVEL_DEBUG_FUNCTION);
    VALUE(DORMOUSE_LEVEL_DEBUG_LINE);
    VALUE(DORMOUSE_LEVEL_DEBUG);
    VALUE(DORMOUSE_FIELD_COUNT_MAX);
    VALUE(DORMOUSE_NAME_LEN_MAX);
    VALUE(DORMOUSE_LABEL_COUNT_MAX);
    VALUE(DORMOUSE_CLASS_ID_NONE);
    return 0;
}
