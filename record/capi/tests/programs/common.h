/* Declarations that the test program's units share. */
#ifndef COMMON_H
#define COMMON_H

#include <dormouse/event.h>

/* One function with a copy in each unit. */
static inline void shared_inline(int unit)
{
    DORMOUSE_EVENT(units, shared, (unit, unit));
}

#ifdef __cplusplus
extern "C" {
#endif

/* Counts its calls: a dormant event must not evaluate it. */
int evaluate(int value);
extern int evaluated;

void every_type(void);
void second_unit(void);
void cpp_unit(void);
void library_unit(void);

#ifdef __cplusplus
}
#endif
#endif
