/* Leaks a block, and prints a line. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    void *volatile block = malloc(77);
    block = NULL;
    puts("hello");
    return block != NULL;
}
