/* With DORMOUSE_DISABLE: links without the library, and evaluates nothing. */
#include "common.h"

#include <stdio.h>

int evaluated;

int evaluate(int value)
{
    evaluated += 1;
    return value;
}

int main(void)
{
    DORMOUSE_EVENT(once, evaluated, (value, evaluate(42)), (bytes, DORMOUSE_BYTES(&evaluated, (size_t)evaluate(4))),
                   (array, DORMOUSE_ARRAY(&evaluated, (size_t)evaluate(1))));
    every_type();
    second_unit();
    cpp_unit();
    library_unit();
    printf("evaluated %d\n", evaluated);
    return 0;
}
